"""Input of ``teal upgrade``: network with candidate cables, demands, failures and settings.

Axis letters: M matrices, D demands, C cables (pairs of opposite links), E links, J module sizes.
Entry point: :func:`load_task`; :func:`purchases` names the result.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from teal.app.instance import Instance, instance_of, load_network
from teal.app.settings import seconds
from teal.errors import InputError
from teal.formats import side_tables
from teal.formats.groups import load_groups
from teal.network import PathSet, Topology, TrafficMatrices, all_pairs, compute_paths
from teal.network.failures import Failure, cable_failures, group_failures, pair_failures
from teal.network.path_changes import with_listed_paths
from teal.problem import Problem
from teal.runtime import rounding
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal_ip.purchases.hose import Hose
from teal_ip.purchases.result import Purchase
from teal_ip.purchases.scenarios import Scenarios, scenarios_of
from teal_ip.purchases.settings import UpgradeOptions

# Columns of the table of hose limits, of costs, and of candidate cables.
_HOSE_COLUMNS = (
    side_tables.Column("node", required=True),
    side_tables.Column("out", side_tables.Kind.RATE, required=True),
    side_tables.Column("in", side_tables.Kind.RATE, required=True),
)
_COST_COLUMN = side_tables.Column("cost", side_tables.Kind.NUMBER, required=True)
_CANDIDATE_COLUMNS = (
    side_tables.SOURCE,
    side_tables.TARGET,
    side_tables.Column("latency", side_tables.Kind.DELAY, required=True, aliases=("delay",)),
    side_tables.Column("cost", side_tables.Kind.NUMBER),
    side_tables.Column("most", side_tables.Kind.RATE),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Offer:
    """Network with the cables whose capacity can be expanded, existing or new.

    Attributes:
        topology: network with candidate cables as links, whose capacity is the median of the
            others', for the path search.
        existing_capacity: (E,) existing Gbit/s; 0 on candidate cables.
        cost: (C,) cost of a Gbit/s on each pair of opposite links; a cable of parallel links has
            several such pairs.
        max_added: (C,) largest Gbit/s that can be added; infinite for no limit.
        candidates: indices of the pairs of links that do not exist yet.
    """

    topology: Topology
    existing_capacity: FloatArray
    cost: FloatArray
    max_added: FloatArray
    candidates: tuple[int, ...]


def make_offer(config: UpgradeOptions, topology: Topology) -> Offer:
    """Return the cables that can be expanded, existing and candidate, with their costs and limits.

    Args:
        config: the settings.
        topology: the network without candidate cables.

    Raises:
        InputError: an invalid file, or a cable without a cost.
    """
    # The network with candidate cables, if there are any; their capacity is 0 before the expansion.
    num_existing = len(topology.link_pairs())
    existing_capacity = topology.capacity
    extended_topology = topology
    candidate_cost = np.zeros(0)
    candidate_limit = np.zeros(0)
    if config.candidates is not None:
        extended_topology, candidate_cost, candidate_limit = _with_candidates(
            str(config.candidates), topology
        )
        existing_capacity = np.concatenate(
            [existing_capacity, np.zeros(extended_topology.num_links - topology.num_links)]
        )
    # Costs of --cost; a cost in the row of a candidate cable replaces its cost.
    cost = _costs(config.cost, extended_topology)
    if len(candidate_cost):
        cost[num_existing:] = np.where(
            np.isnan(candidate_cost), cost[num_existing:], candidate_cost
        )
    # Every cable needs a cost: that of its row, or of --cost.
    unpriced_cables = np.flatnonzero(np.isnan(cost))
    if len(unpriced_cables):
        name = extended_topology.link_name(extended_topology.link_pairs()[unpriced_cables[0]][0])
        raise InputError.invalid(
            config.cost, "cost", f"no cost for cable {name}", "add a row for every cable"
        )
    max_added = np.concatenate([np.full(num_existing, np.inf), candidate_limit])
    return Offer(
        extended_topology,
        existing_capacity,
        cost,
        max_added,
        tuple(range(num_existing, len(max_added))),
    )


def failures_of(config: UpgradeOptions, topology: Topology) -> list[Failure]:
    """Return the failures to plan for, besides the network without failure: cables, pairs of cables
    and groups, as the settings request.

    Args:
        config: the settings.
        topology: the network, with candidate cables.

    Raises:
        InputError: an invalid file of groups.
    """
    cables = cable_failures(topology) if config.failures != "none" else []
    failures = list(cables)
    # All pairs of cables; the costs, by which pairs are sorted, are 0, and 0 is no limit on them.
    if config.failures == "pairs":
        failures += pair_failures(cables, {cable.name: 0.0 for cable in cables}, 0)
    if config.groups is not None:
        failures += group_failures(load_groups(config.groups, topology))
    return failures


def make_hose(
    config: UpgradeOptions, topology: Topology, pairs: IntArray, matrices: FloatArray
) -> Hose:
    """Return the hose of a file, or of the peaks of the matrices, times the growth.

    Args:
        config: the settings.
        topology: the network.
        pairs: (D, 2) source and target of each demand.
        matrices: (M, D) Gbit/s, for the peaks.

    Raises:
        InputError: an invalid file.
    """
    if config.hose is None:
        peaks = Hose.of_history(pairs, matrices, topology.num_nodes)
        return Hose(pairs, config.growth * peaks.out, config.growth * peaks.into)
    # Limits (2, N) of sent and received Gbit/s; NaN without a row.
    limits = np.full((2, topology.num_nodes), np.nan)
    rows = side_tables.read_side_table(config.hose, _HOSE_COLUMNS)
    nodes = [row.node("node", topology) for row in rows]
    side_tables.require_once(rows, nodes, "each node")
    for row, node in zip(rows, nodes, strict=True):
        limits[:, node] = row.number("out", minimum=0.0), row.number("in", minimum=0.0)
    nodes_without_limits = np.flatnonzero(np.isnan(limits).any(0))
    if len(nodes_without_limits):
        raise InputError.invalid(
            str(config.hose),
            "node",
            f"no limits for node {topology.node_names[nodes_without_limits[0]]}",
            "add a row for every node",
        )
    return Hose(pairs, config.growth * limits[0], config.growth * limits[1])


def _costs(cost_setting: str, topology: Topology) -> FloatArray:
    """Return the cost (C,) of a Gbit/s on each pair of links; NaN if the file has none.

    Args:
        cost_setting: ``capacity`` (1 each), ``length`` (latency, ms), or a table of costs.
        topology: the network with its candidate cables.

    Raises:
        InputError: a cost that is not above 0, or an unknown cable.
    """
    pairs = topology.link_pairs()
    if cost_setting == "capacity":
        return np.ones(len(pairs))
    if cost_setting == "length":
        return np.array([float(topology.latency[links].min()) for links in pairs])
    # A table: a row has the cost of every pair of links between two nodes.
    pair_by_link = {link: c for c, links in enumerate(pairs) for link in links}
    cost = np.full(len(pairs), np.nan)
    if not Path(cost_setting).is_file():
        expected = "capacity, length, or a table (.csv, .xlsx) of source, target, cost"
        raise InputError("--cost", "", expected, repr(cost_setting))
    rows = side_tables.read_side_table(
        cost_setting, (side_tables.SOURCE, side_tables.TARGET, _COST_COLUMN)
    )
    pairs_by_row = [
        [pair_by_link[link] for link in topology.find_links(row.text("source"), row.text("target"))]
        for row in rows
    ]
    side_tables.require_once(
        rows, map(tuple, pairs_by_row), "each cable", [row.number("cost") for row in rows]
    )
    for row, row_pairs in zip(rows, pairs_by_row, strict=True):
        cost[row_pairs] = row.number("cost")
    return cost


def _with_candidates(path: str, topology: Topology) -> tuple[Topology, FloatArray, FloatArray]:
    """Read the candidate cables; return the network with them, their costs and their limits.

    Args:
        path: table of candidate cables.
        topology: the network without them.

    Returns:
        the network, costs (n,) of a Gbit/s, NaN if the table has none, and limits (n,), Gbit/s,
        infinite for no limit.

    Raises:
        InputError: an invalid table, or a cable that exists already.
    """
    # Rows of the table; the ends of a cable must differ from those of every other cable.
    connected_pairs = {tuple(sorted(pair)) for pair in _ends(topology)}
    ends, latency, cost, limits = [], [], [], []
    for row in side_tables.read_side_table(path, _CANDIDATE_COLUMNS):
        pair = [row.node("source", topology), row.node("target", topology)]
        key = (min(pair), max(pair))
        if pair[0] == pair[1] or key in connected_pairs:
            pair_text = f"{row.text('source')} - {row.text('target')}"
            problem = f"{pair_text} is no new cable: its ends are equal, or a cable connects them"
            raise InputError.invalid(row.where, "", problem)
        # Missing cells: no cost (NaN), no limit (infinite).
        connected_pairs.add(key)
        ends.append(pair)
        latency.append(row.number("latency"))
        has_cost = row.values.get("cost") is not None
        cost.append(row.number("cost") if has_cost else math.nan)
        has_limit = row.values.get("most") is not None
        limits.append(row.number("most") if has_limit else math.inf)
    if not ends:
        raise InputError.invalid(path, "rows", "the table has no cables", "add a row per new cable")
    end_array = np.array(ends, dtype=topology.link_source.dtype)
    return _with_cables(topology, end_array, np.array(latency)), np.array(cost), np.array(limits)


def _with_cables(topology: Topology, ends: IntArray, latency: FloatArray) -> Topology:
    """Add cables of the median capacity, with a link in each direction.

    Args:
        topology: the network.
        ends: (n, 2) nodes at the ends of each cable.
        latency: (n,) ms.
    """
    median_capacity = float(np.median(topology.capacity[topology.capacity > 0]))
    new_latency = np.repeat(latency, 2)
    num_new_links = len(new_latency)
    # Metrics that the network has: new links have the latency in ms as IGP metric, at least 1, and
    # a TE metric of 0.
    metric = te_metric = None
    if topology.metric is not None:
        new_metric = np.maximum(1, np.round(new_latency)).astype(topology.metric.dtype)
        metric = np.concatenate([topology.metric, new_metric])
    if topology.te_metric is not None:
        te_metric = np.pad(topology.te_metric, (0, num_new_links))
    no_affinities = [frozenset[str]()] * num_new_links
    return dataclasses.replace(
        topology,
        link_source=np.concatenate([topology.link_source, ends.reshape(-1)]),
        link_target=np.concatenate([topology.link_target, ends[:, ::-1].reshape(-1)]),
        capacity=np.concatenate([topology.capacity, np.full(num_new_links, median_capacity)]),
        latency=np.concatenate([topology.latency, new_latency]),
        metric=metric,
        te_metric=te_metric,
        affinities=(*topology.affinities, *no_affinities) if topology.affinities else (),
    )


def _ends(topology: Topology) -> Iterator[tuple[int, int]]:
    """Yield the node indices of source and target of each link, in the order of the links."""
    yield from zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)


# Added capacity, Gbit/s, below which a cable counts as unchanged.
_MIN_ADDED_CAPACITY = 1e-9
Notify = Callable[[str], None]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class UpgradeTask:
    """Input of the search: network, matrices, failures and settings.

    Attributes:
        config: settings.
        instance: traffic, candidate paths and latency limits.
        offer: network with candidate cables, costs and limits.
        problem: the program of the first matrix, for its network and paths.
        num_matrices: number of matrices, without those held back by --replay.
        rows: indices of the matrices to plan for.
        matrices: (M, D) these matrices, Gbit/s.
        failures: failures to plan for, besides the network without failure.
        deadline: time limit.
        notify: called with the progress.
        failed: messages of failed steps after the search.
        proves: whether the plan carries a proof of its bound.
    """

    config: UpgradeOptions
    instance: Instance
    offer: Offer
    problem: Problem
    num_matrices: int
    rows: Int64Array
    matrices: FloatArray
    failures: list[Failure]
    deadline: Deadline
    notify: Notify
    failed: list[str] = dataclasses.field(default_factory=list)
    proves: bool = False

    def scenarios(
        self, matrices: FloatArray, failures: Sequence[Failure]
    ) -> tuple[Scenarios, dict[int, list[int]]]:
        """Return the scenarios of matrices without failure and under each failure.

        Args:
            matrices: (M, D) Gbit/s, used without further growth.
            failures: the failures.

        Returns:
            the scenarios, and the disconnected demands by index of the failure, -1 for none.
        """
        return scenarios_of(
            self.problem,
            matrices,
            [failure.links for failure in failures],
            self.offer.cost,
            self.config.max_utilisation,
            existing_capacity=self.offer.existing_capacity,
            max_added=self.offer.max_added,
            max_latency=self.instance.max_latency,
        )

    def with_more(self, rows: Int64Array, scenarios: Scenarios) -> tuple[UpgradeTask, Scenarios]:
        """Return the input and the scenarios with further matrices to plan for, the new scenarios
        last.

        Args:
            rows: indices of the matrices.
            scenarios: scenarios of the matrices so far.
        """
        # The task keeps the matrices without growth; only the scenarios are scaled by it.
        self.notify(f"adding to the plan {len(rows)} matrices that do not fit it")
        new_matrices = self.instance.traffic.read(rows)
        new_scenarios, _ = self.scenarios(self.config.growth * new_matrices, self.failures)
        rows_and_matrices = (
            np.concatenate([self.rows, rows]),
            np.concatenate([self.matrices, new_matrices]),
        )
        return dataclasses.replace(
            self, rows=rows_and_matrices[0], matrices=rows_and_matrices[1]
        ), scenarios.joined(new_scenarios)

    def attempt(self, step_name: str, step: Callable[[], T]) -> T | None:
        """Return the result of a step after the search; on an exception report it, append it to
        ``failed`` and return None, so that the plan is not lost.

        Args:
            step_name: name of the step in the message.
            step: function without arguments.
        """
        try:
            return step()
        # Any exception: the search may have taken hours.
        except Exception as error:
            message = f"{step_name} failed: {type(error).__name__}: {error}"
            # In place, since all versions of the task share the list.  Each message occurs once,
            # the latest one last.
            self.failed[:] = [*(text for text in self.failed if text != message), message]
            self.notify(message)
            return None

    def report(self, number: int, cost: float, bound: float) -> None:
        """Report a round of the search.

        Args:
            number: index of the round.
            cost: cost of the incumbent.
            bound: lower bound on the cost.
        """
        self.notify(f"round {number}: cost {cost:.6g}, lower bound {rounding.at_least(bound)}")


def load_task(topology: Any, traffic: Any, config: UpgradeOptions, notify: Notify) -> UpgradeTask:
    """Return the input of the search: network, traffic, candidate paths, failures and settings.

    Args:
        topology: the network, or a file or name.
        traffic: its matrices, or a file or name.
        config: settings.
        notify: called with the progress.
    """
    network, all_traffic = load_network(topology, traffic, config.program, notify)
    # With a hose any two nodes may exchange traffic, not only the pairs of the file.
    if config.demands == "hose":
        all_traffic = all_traffic.over(all_pairs(network))

    # Routing by the IGP needs no candidate paths: one per demand is enough, unless demands are
    # calibrated over the candidate paths.
    needs_one_path = config.routing == "ecmp" and config.calibrate is None and config.paths is None
    program_config = dataclasses.replace(
        config.program, num_paths=1 if needs_one_path else config.num_paths
    )
    time_limit_s = seconds(config.deadline, "--deadline") if config.deadline else math.inf
    # The latest matrices are held back for --replay.
    planning_traffic = all_traffic.part(0, num_planning_matrices(all_traffic, config))
    instance = instance_of(network, planning_traffic, program_config, notify, time_limit_s)
    network_offer = make_offer(config, instance.topology)
    # New cables: extend the network and the candidate paths.
    if network_offer.candidates:
        paths = _with_candidate_paths(config, instance.paths, network_offer.topology)
        instance = dataclasses.replace(instance, topology=network_offer.topology, paths=paths)
    # Matrices to plan for, evenly spaced over the traffic; calibration scales all of them.
    num_matrices = instance.traffic.num_matrices
    rows = _planned_rows(config, num_matrices)
    planned_traffic = _apply_calibration(config, all_traffic, instance.traffic)
    instance = dataclasses.replace(instance, traffic=planned_traffic)
    matrices = planned_traffic.read(rows)
    failures = failures_of(config, network_offer.topology)
    # Add a path to each demand whose candidate paths all fail together: here, once, and not for
    # each block of matrices.
    instance = instance.surviving([failure.links for failure in failures], notify)
    return UpgradeTask(
        config,
        instance,
        network_offer,
        instance.problem(matrices[:1]),
        num_matrices,
        rows,
        matrices,
        failures,
        instance.end,
        notify,
    )


def _planned_rows(config: UpgradeOptions, num_matrices: int) -> Int64Array:
    """Return the indices of the matrices to plan for at first: evenly spaced over the traffic, or
    all for hose and pipe.

    Args:
        config: the settings; ``matrices`` is the number of matrices, 0 for all.
        num_matrices: number of matrices available for planning.
    """
    if config.demands != "matrices":
        return np.arange(num_matrices)
    count = min(num_matrices, config.matrices or num_matrices)
    return np.unique(np.linspace(0, num_matrices - 1, count).astype(int))


def _apply_calibration(
    config: UpgradeOptions, all_traffic: TrafficMatrices, calibrated_traffic: TrafficMatrices
) -> TrafficMatrices:
    """Return all matrices, scaled by the factor of the first one if demands are calibrated.

    Args:
        config: settings.
        all_traffic: all matrices.
        calibrated_traffic: the first matrices, calibrated.
    """
    factor = 1.0
    if config.calibrate is not None and all_traffic.num_matrices:
        raw_total = all_traffic.read([0]).sum()
        factor = float(calibrated_traffic.read([0]).sum() / raw_total) if raw_total > 0 else 1.0
    return all_traffic if factor == 1.0 else all_traffic.scaled(factor)


def _with_candidate_paths(config: UpgradeOptions, paths: PathSet, topology: Topology) -> PathSet:
    """Return the candidate paths with those of a path search on the network with the new cables.

    The paths without new cables stay, since no new cable may be built.  The links of new cables are
    the last ones of ``topology``, so the indices of the others stay.

    Args:
        config: settings of the path search.
        paths: candidate paths without the new cables.
        topology: the network with the new cables.
    """
    # Paths over the network with the new cables, which are added demand by demand.
    new_paths = compute_paths(
        topology,
        paths.pairs,
        num_paths=config.first_paths,
        method=config.path_method,
        weight=config.path_weight,
        cache=False,
    )
    paths = dataclasses.replace(
        paths, num_links=topology.num_links, topology_key=topology.graph_key()
    )
    paths_by_demand = {
        d: [new_paths.links_of(d, k) for k in range(new_paths.num_paths) if new_paths.mask[d, k]]
        for d in range(new_paths.num_demands)
    }
    return with_listed_paths(paths, paths_by_demand)


def num_planning_matrices(traffic: TrafficMatrices, config: UpgradeOptions) -> int:
    """Return the number of matrices available for planning: all except the latest ones, whose share
    is --replay; at least 1.
    """
    return max(1, round((1 - config.replay) * traffic.num_matrices))


def purchases(
    task: UpgradeTask, added_capacity: FloatArray, modules: Int64Array | None, by: str = ""
) -> list[Purchase]:
    """Return the added capacity by cable, the most expensive first; parallel links are one cable.

    Args:
        task: supplies names, costs and sizes.
        added_capacity: (C,) Gbit/s on each pair of links.
        modules: (C, J) number of modules of each size; None for any amounts.
        by: last month of the quarter by which they are needed; "" without a horizon.
    """
    topology = task.offer.topology
    sizes = task.config.sizes
    purchase_rows = []
    pair_by_link = {
        link: pair for pair, links in enumerate(topology.link_pairs()) for link in links
    }
    # Cost of each pair of links.
    module_price = np.array([unit_price for _, unit_price in sizes])
    pair_cost = task.offer.cost * (added_capacity if modules is None else modules @ module_price)
    # Cables with added capacity: sums over their parallel links.
    for links in topology.cables():
        pairs = sorted({pair_by_link[link] for link in links})
        if not (added_capacity[pairs] > _MIN_ADDED_CAPACITY).any():
            continue
        first = links[0]
        # Links of the cable in the direction of its first link.
        forward_links = [e for e in links if topology.link_source[e] == topology.link_source[first]]
        num_modules = [] if modules is None else modules[pairs].sum(0).tolist()
        purchase_rows.append(
            Purchase(
                source=topology.node_names[topology.link_source[first]],
                target=topology.node_names[topology.link_target[first]],
                capacity=float(task.offer.existing_capacity[forward_links].sum()),
                bought=float(added_capacity[pairs].sum()),
                cost=float(pair_cost[pairs].sum()),
                by=by,
                modules=" + ".join(
                    f"{n} x {size:g}" for n, (size, _) in zip(num_modules, sizes, strict=False) if n
                ),
            )
        )
    return sorted(purchase_rows, key=lambda purchase: -purchase.cost)
