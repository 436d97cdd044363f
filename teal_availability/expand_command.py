"""The command `teal expand`: capacity expansion for bandwidth guarantees, from settings to
purchases, reservations and files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from teal import Problem, Topology, TrafficMatrices, load_traffic, save_topology
from teal.app.command import EXIT_FAILED, EXIT_OK, Notify, Outcome
from teal.app.options import with_options
from teal.app.run_files import write_files, write_manifest
from teal.app.settings import seconds
from teal.app.table import Column, Table
from teal.app.text import digits
from teal.formats import topology_from
from teal.formats.rows import write_csv
from teal.problem.bounds import gap_between
from teal.runtime import rounding
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import check_out_folder
from teal_availability.expansion import Expansion, LinkPairs, expansion
from teal_availability.protection_options import (
    Request,
    candidate_paths_for,
    option_texts,
    resolve_requests,
    validated_request,
)
from teal_availability.settings import ExpandConfig, ExpandOptions
from teal_availability.study import failing_components
from teal_availability.survival import survival_probabilities

PURCHASES = "purchases.csv"
PROMISES = "promises.csv"
TOPOLOGY = "topology.json"
MANIFEST = "manifest.json"
# Availability target of the traffic peaks, unless --availability is set.
_DEFAULT_AVAILABILITY = 0.999
# Rows of the table in the terminal.
_MAX_TABLE_ROWS = 30


@dataclasses.dataclass(frozen=True)
class PurchaseRow:
    """Expansion of one cable, in both directions.

    Attributes:
        source, target: names of the end nodes.
        capacity: current capacity, Gbit/s.
        bought: added capacity, Gbit/s.
        cost: cost of the added capacity.
    """

    source: str
    target: str
    capacity: float
    bought: float
    cost: float


@dataclasses.dataclass(frozen=True)
class ReservationRow:
    """Reservation of rates on paths that meets a request for a bandwidth guarantee.

    Attributes:
        source, target: nodes.
        rate: Gbit/s.
        availability: requested availability.
        kept: availability of the reservation; 0 if no protection option reaches the target.
        way: protection option as text: m of n, and the nodes of each reserved path; "" without an
            option.
        reserved: Gbit/s on each reserved path.
    """

    source: str
    target: str
    rate: float
    availability: float
    kept: float
    way: str
    reserved: float


@dataclasses.dataclass(frozen=True, eq=False)
class ExpansionReport:
    """Capacity expansion that meets all feasible requests, with a lower bound on its cost.

    Attributes:
        purchases: a row for each expanded cable, the most expensive first.
        reservations: a row for each request, in their order.
        cost: total cost.
        bound: lower bound on the cost of any expansion with such reservations.
        upgraded: the network with the added capacity.
    """

    purchases: list[PurchaseRow]
    reservations: list[ReservationRow]
    cost: float
    bound: float
    upgraded: Topology

    @property
    def gap(self) -> float:
        """Relative gap (cost - bound) / cost of the purchases; 0 where nothing is bought."""
        return gap_between(self.bound, self.cost, 1.0)

    @property
    def answer(self) -> str:
        """One or two sentences with the purchased capacity, its cost and the lower bound on the
        cost.
        """
        num_kept = sum(bool(row.way) for row in self.reservations)
        bought_capacity = sum(row.bought for row in self.purchases)
        purchase_sentence = (
            f"{bought_capacity:.6g} Gbit/s on {len(self.purchases)} cables, at a cost of "
            f"{self.cost:.6g}, keep {num_kept} promises; no purchase with such reservations costs "
            f"less than {rounding.at_least(self.bound)}."
        )
        if not self.purchases:
            purchase_sentence = f"Nothing is to be bought: {num_kept} promises are kept."
        num_impossible = len(self.reservations) - num_kept
        if not num_impossible:
            return purchase_sentence
        return (
            f"{purchase_sentence} {num_impossible} are impossible: no protection option on the "
            "candidate paths reaches their availability, at any capacity."
        )

    def __repr__(self) -> str:
        """Return the answer and the table of purchases, as text."""
        return f"{self.answer}\n{purchase_table(self).markdown()}"

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each expanded cable."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(row) for row in self.purchases])

    def files(self) -> dict[str, Callable[[Path], None]]:
        """Return the writer of each result file, by file name."""
        return {
            PURCHASES: partial(_write_purchases, rows=self.purchases),
            PROMISES: partial(write_csv, rows=self.reservations),
            TOPOLOGY: partial(save_topology, topology=self.upgraded),
        }

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write tables and the expanded network to a folder, as ``teal expand`` does.

        Args:
            folder: the folder.
            overwrite: whether existing results are replaced.

        Raises:
            InputError: existing results without ``overwrite``.
        """
        write_files(folder, self.files(), overwrite=overwrite)


def _write_purchases(path: Path, rows: Sequence[PurchaseRow]) -> None:
    """Write the purchases to a CSV file; without purchases, it has only the header line.

    Args:
        path: the file.
        rows: a row for each expanded cable.
    """
    if rows:
        write_csv(path, rows=rows)
    else:
        names = [field.name for field in dataclasses.fields(PurchaseRow)]
        path.write_text(",".join(names) + "\n", encoding="utf-8")


def purchase_table(report: ExpansionReport) -> Table:
    """Return the table of the purchases for the terminal, the most expensive first."""
    columns = (
        Column("cable", lambda row: f"{row.source} - {row.target}"),
        Column("Gbit/s", "capacity", digits(4)),
        Column("bought", "bought", digits(4)),
        Column("cost", "cost", digits(4)),
    )
    title = f"purchases, in each direction; gap {rounding.gap_text(report.gap)}"
    return Table(title, columns, report.purchases, _MAX_TABLE_ROWS)


def peak_requests(
    topology: Topology, traffic: TrafficMatrices, availability: float
) -> list[Request]:
    """Return a request for the peak rate of each node pair, at one availability.

    Args:
        topology: the network.
        traffic: matrices over its nodes.
        availability: target, a share of the time in (0, 1).

    Raises:
        InputError: an availability out of its range.
    """
    # (D,) peak rate of each demand, Gbit/s.
    peak = np.zeros(traffic.num_demands)
    for matrices in traffic.chunks(np.arange(traffic.num_matrices)):
        peak = np.maximum(peak, matrices.max(0))
    # Several demands of a node pair, such as of different classes, have the sum of their peaks.
    names = topology.node_names
    peak_by_pair: dict[tuple[str, str], float] = {}
    for (source, target), rate in zip(traffic.pairs.tolist(), peak.tolist(), strict=True):
        if rate > 0:
            pair = names[source], names[target]
            peak_by_pair[pair] = peak_by_pair.get(pair, 0.0) + rate
    return [
        validated_request(Request(*pair, rate, availability, rate), topology, "traffic")
        for pair, rate in peak_by_pair.items()
    ]


def expansion_of(
    topology: Topology, requests: Sequence[Request], options: ExpandOptions
) -> ExpansionReport:
    """Find a low-cost expansion with which a network meets all requests.

    Args:
        topology: the network.
        requests: the requests.
        options: the failing components, the candidate paths, and the costs.

    Raises:
        InputError: no request, or invalid options.
        SolverError: the relaxation was not solved.
    """
    # Candidate paths of the requests, and how often they survive.
    components = failing_components(topology, options)
    problem = candidate_paths_for(topology, requests, options.num_paths, components.groups)
    survival_states = survival_probabilities(problem, components)
    # Pairs of opposite links with their costs, and the expansion of each.
    link_pairs = topology.link_pairs()
    pairs = LinkPairs.from_links(link_pairs, _pair_costs(topology, link_pairs, options.cost))
    time_limit = seconds(options.deadline, "--deadline")
    result = expansion(problem, survival_states, requests, pairs, time_limit)
    upgraded = dataclasses.replace(
        topology, capacity=topology.capacity + result.added_capacity[pairs.pair_of_link]
    )
    return ExpansionReport(
        _purchase_rows(topology, link_pairs, pairs, result),
        _reservation_rows(problem, requests, result),
        result.cost,
        result.bound,
        upgraded,
    )


def _pair_costs(
    topology: Topology, link_pairs: Sequence[Sequence[int]], cost_kind: str
) -> FloatArray:
    """Return the cost (C,) of a Gbit/s on each pair of links.

    Args:
        topology: the network.
        link_pairs: link indices of each of C pairs.
        cost_kind: ``capacity`` for a cost of 1, or ``length`` for the mean latency of the pair, ms.
    """
    if cost_kind == "capacity":
        return np.ones(len(link_pairs))
    return np.array([topology.latency[list(links)].mean() for links in link_pairs])


def _purchase_rows(
    topology: Topology, link_pairs: Sequence[Sequence[int]], pairs: LinkPairs, result: Expansion
) -> list[PurchaseRow]:
    """Return a row for each expanded pair of links, the most expensive first.

    Args:
        topology: the network before the expansion.
        link_pairs: link indices of each of C pairs.
        pairs: the C pairs with their costs.
        result: the expansion.
    """
    names = topology.node_names
    rows = []
    for index, links in enumerate(link_pairs):
        bought = float(result.added_capacity[index])
        if bought > 0:
            source = topology.link_source[links[0]]
            target = topology.link_target[links[0]]
            capacity = float(topology.capacity[list(links)].min())
            cost = bought * float(pairs.cost[index])
            rows.append(PurchaseRow(names[source], names[target], capacity, bought, cost))
    return sorted(rows, key=lambda row: -row.cost)


def _reservation_rows(
    problem: Problem, requests: Sequence[Request], result: Expansion
) -> list[ReservationRow]:
    """Return a row for each request with its reservation.

    Args:
        problem: the network with the candidate paths of the requests.
        requests: the requests.
        result: the expansion, with a protection option for each feasible request.
    """
    texts = option_texts(problem, requests, result.option)
    return [
        ReservationRow(
            request.source,
            request.target,
            request.rate,
            request.availability,
            0.0 if option is None else option.availability,
            text,
            0.0 if option is None else request.rate / option.min_surviving,
        )
        for request, option, text in zip(requests, result.option, texts, strict=True)
    ]


def run_expand(config: ExpandConfig, notify: Notify) -> ExpansionReport:
    """Find an expansion by the settings of ``teal expand``, and write all result files.

    Args:
        config: the settings.
        notify: called with progress messages.

    Raises:
        InputError: invalid settings, or existing results in OUT without ``overwrite``.
    """
    names = PURCHASES, PROMISES, TOPOLOGY, MANIFEST
    check_out_folder(config.out, names, overwrite=config.overwrite)
    topology = topology_from(config.topology, config)
    notify(f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} directed links")
    # Requests of the table, or for the traffic peaks.
    if config.promises is not None:
        requests = resolve_requests(config.promises, topology)
    else:
        traffic = load_traffic(config.traffic, topology, unit=config.traffic_unit)
        availability = _DEFAULT_AVAILABILITY if config.availability is None else config.availability
        requests = peak_requests(topology, traffic, availability)
    report = expansion_of(topology, requests, config)
    write_files(config.out, {**report.files(), MANIFEST: partial(write_manifest, settings=config)})
    return report


def expand_outcome(config: ExpandConfig, notify: Notify) -> Outcome:
    """Run `teal expand`.

    Args:
        config: the settings.
        notify: called with progress messages.

    Returns:
        table, JSON data and written files; the exit code is a failure if no request can be met.
    """
    report = run_expand(config, notify)
    tables = [purchase_table(report)] if report.purchases else []
    return Outcome(
        text=report.answer,
        tables=tables,
        written=f"{config.out}: purchases, reservations, and the network with the purchase",
        data={
            "answer": report.answer,
            "cost": report.cost,
            "bound": report.bound,
            "gap": report.gap,
            "purchases": [dataclasses.asdict(row) for row in report.purchases],
            "impossible": [[row.source, row.target] for row in report.reservations if not row.way],
        },
        exit_code=EXIT_OK if any(row.way for row in report.reservations) else EXIT_FAILED,
    )


@with_options(ExpandOptions)
def expand(topology: Any, promises: Any, options: ExpandOptions) -> ExpansionReport:
    """Find the least capacity to buy so that a network meets all bandwidth guarantees.

    Options are the same as in ``teal expand``; no file is written.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        promises: a file, or several :class:`teal_availability.Request`, such as those of
            :func:`teal_availability.peak_requests`.
        options: keyword options of the command.

    Raises:
        InputError: invalid input.
        SolverError: the relaxation was not solved.
    """
    network = topology_from(topology, options)
    return expansion_of(network, resolve_requests(promises, network), options)
