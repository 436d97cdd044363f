"""`teal expand`: from settings to a purchase, the reservations of promises, and files."""

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
from teal_availability.expansion import Expansion, Pairs, expansion
from teal_availability.patterns import pattern_probabilities
from teal_availability.settings import ExpandConfig, ExpandOptions
from teal_availability.study import failing_components
from teal_availability.ways import Request, checked, paths_for, requests_of, way_texts

PURCHASES, PROMISES, TOPOLOGY = "purchases.csv", "promises.csv", "topology.json"
MANIFEST = "manifest.json"
_USUAL_AVAILABILITY = 0.999  # of the peaks of traffic
_SHOWN = 30  # purchases in the terminal


@dataclasses.dataclass(frozen=True)
class Bought:
    """A purchase on one cable, in both directions.

    Attributes:
        source, target: nodes.
        capacity: Gbit/s that are there.
        bought: Gbit/s that are added.
        cost: cost of what is added.
    """

    source: str
    target: str
    capacity: float
    bought: float
    cost: float


@dataclasses.dataclass(frozen=True)
class Reservation:
    """How a promise is kept.

    Attributes:
        source, target: nodes.
        rate: Gbit/s.
        availability: share of the time that is asked for.
        kept: share of the time for which it is kept; 0 where no reservation on the candidate paths
            does.
        way: how many of which paths must survive, node by node; "" without a reservation.
        reserved: Gbit/s on each of these paths.
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
    """The least capacity to buy with which all promises are kept that can be.

    Attributes:
        purchases: a row for each cable of which something is bought, the dearest first.
        reservations: a row for each promise, in their order.
        cost: sum of the costs.
        bound: no purchase with such reservations costs less.
        upgraded: the network with the purchase.
    """

    purchases: list[Bought]
    reservations: list[Reservation]
    cost: float
    bound: float
    upgraded: Topology

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; 0 where nothing is bought."""
        return gap_between(self.bound, self.cost, 1.0)

    @property
    def answer(self) -> str:
        """The purchase, in a sentence or two."""
        kept = sum(bool(row.way) for row in self.reservations)
        bought = sum(row.bought for row in self.purchases)
        first = (
            f"{bought:.6g} Gbit/s on {len(self.purchases)} cables, at a cost of {self.cost:.6g}, "
            f"keep {kept} promises; no purchase with such reservations costs less than "
            f"{rounding.at_least(self.bound)}."
        )
        if not self.purchases:
            first = f"Nothing is to be bought: {kept} promises are kept."
        impossible = len(self.reservations) - kept
        if not impossible:
            return first
        return (
            f"{first} {impossible} are impossible: no candidate paths that work keep them for so "
            "much of the time, at any capacity."
        )

    def __repr__(self) -> str:
        """The answer and the table."""
        return f"{self.answer}\n{purchase_table(self).markdown()}"

    def to_frame(self) -> Any:
        """A pandas frame, a row for each cable of which something is bought."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(row) for row in self.purchases])

    def files(self) -> dict[str, Callable[[Path], None]]:
        """The writers of the files, by their names."""
        return {
            PURCHASES: partial(_write_purchases, rows=self.purchases),
            PROMISES: partial(write_csv, rows=self.reservations),
            TOPOLOGY: partial(save_topology, topology=self.upgraded),
        }

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write tables and the network with the purchase, as ``teal expand`` does.

        Raises:
            InputError: there are results in it, and ``overwrite`` is false.
        """
        write_files(folder, self.files(), overwrite=overwrite)


def _write_purchases(path: Path, rows: Sequence[Bought]) -> None:
    """Write the purchases; where there are none, the heading."""
    if rows:
        write_csv(path, rows=rows)
    else:
        names = [field.name for field in dataclasses.fields(Bought)]
        path.write_text(",".join(names) + "\n", encoding="utf-8")


def purchase_table(report: ExpansionReport) -> Table:
    """The purchases, the dearest first."""
    columns = (
        Column("cable", lambda row: f"{row.source} - {row.target}"),
        Column("Gbit/s", "capacity", digits(4)),
        Column("bought", "bought", digits(4)),
        Column("cost", "cost", digits(4)),
    )
    title = f"purchases, in each direction; gap {rounding.gap_text(report.gap)}"
    return Table(title, columns, report.purchases, _SHOWN)


def peak_requests(
    topology: Topology, traffic: TrafficMatrices, availability: float
) -> list[Request]:
    """A promise of the largest rate of each pair of nodes, for one share of the time.

    Args:
        topology: the network.
        traffic: matrices over its nodes.
        availability: share of the time, in (0, 1).

    Raises:
        InputError: a share out of its range.
    """
    peak = np.zeros(traffic.num_demands)
    for matrices in traffic.chunks(np.arange(traffic.num_matrices)):
        peak = np.maximum(peak, matrices.max(0))
    names = topology.node_names
    total: dict[tuple[str, str], float] = {}
    for (source, target), rate in zip(traffic.pairs.tolist(), peak.tolist(), strict=True):
        if rate > 0:
            pair = names[source], names[target]
            total[pair] = total.get(pair, 0.0) + rate
    return [
        checked(Request(*pair, rate, availability, rate), topology, "traffic")
        for pair, rate in total.items()
    ]


def expansion_of(
    topology: Topology, requests: Sequence[Request], options: ExpandOptions
) -> ExpansionReport:
    """Find a purchase with which a network keeps promises.

    Args:
        topology: the network.
        requests: the promises.
        options: what fails, the candidate paths, and the costs.

    Raises:
        InputError: no promise, or a fault in the options.
        SolverError: the relaxed program was not solved.
    """
    components = failing_components(topology, options)
    problem = paths_for(topology, requests, options.num_paths, components.groups)
    patterns = pattern_probabilities(problem, components)
    cables = topology.link_pairs()
    pairs = Pairs.of(cables, _costs(topology, cables, options.cost))
    limit = seconds(options.deadline, "--deadline")
    found = expansion(problem, patterns, requests, pairs, limit)
    upgraded = dataclasses.replace(
        topology, capacity=topology.capacity + found.bought[pairs.of_link]
    )
    return ExpansionReport(
        _purchases(topology, cables, pairs, found),
        _reservations(problem, requests, found),
        found.cost,
        found.bound,
        upgraded,
    )


def _costs(topology: Topology, cables: Sequence[Sequence[int]], kind: str) -> FloatArray:
    """(C,) cost of a Gbit/s on each pair of links."""
    if kind == "capacity":
        return np.ones(len(cables))
    return np.array([topology.latency[list(links)].mean() for links in cables])


def _purchases(
    topology: Topology, cables: Sequence[Sequence[int]], pairs: Pairs, found: Expansion
) -> list[Bought]:
    names = topology.node_names
    rows = []
    for number, links in enumerate(cables):
        bought = float(found.bought[number])
        if bought > 0:
            source = topology.link_source[links[0]]
            target = topology.link_target[links[0]]
            capacity = float(topology.capacity[list(links)].min())
            cost = bought * float(pairs.cost[number])
            rows.append(Bought(names[source], names[target], capacity, bought, cost))
    return sorted(rows, key=lambda row: -row.cost)


def _reservations(
    problem: Problem, requests: Sequence[Request], found: Expansion
) -> list[Reservation]:
    texts = way_texts(problem, requests, found.way)
    return [
        Reservation(
            request.source,
            request.target,
            request.rate,
            request.availability,
            0.0 if way is None else way.availability,
            text,
            0.0 if way is None else request.rate / way.needed,
        )
        for request, way, text in zip(requests, found.way, texts, strict=True)
    ]


def run_expand(config: ExpandConfig, notify: Notify) -> ExpansionReport:
    """Find a purchase, and write everything.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    names = PURCHASES, PROMISES, TOPOLOGY, MANIFEST
    check_out_folder(config.out, names, overwrite=config.overwrite)
    topology = topology_from(config.topology, config)
    notify(f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} directed links")
    if config.promises is not None:
        requests = requests_of(config.promises, topology)
    else:
        traffic = load_traffic(config.traffic, topology, unit=config.traffic_unit)
        share = _USUAL_AVAILABILITY if config.availability is None else config.availability
        requests = peak_requests(topology, traffic, share)
    report = expansion_of(topology, requests, config)
    write_files(config.out, {**report.files(), MANIFEST: partial(write_manifest, settings=config)})
    return report


def expand_outcome(config: ExpandConfig, notify: Notify) -> Outcome:
    """`teal expand`."""
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
    """Find the least capacity to buy with which a network keeps promises; the options are those of
    ``teal expand``.  No file is written.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        promises: a file, or several :class:`teal_availability.Request`, such as those of
            :func:`teal_availability.peak_requests`.
        options: by name.

    Raises:
        InputError: a fault in the input.
        SolverError: the relaxed program was not solved.
    """
    network = topology_from(topology, options)
    return expansion_of(network, requests_of(promises, network), options)
