"""Simulate the installed routing: link loads, latencies and losses, without failure and under each
failure, and the months in which growth fills links.

Entry point: :func:`simulate`; results in :class:`Simulation`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.formats.groups import load_groups
from teal.network import Topology, TrafficMatrices
from teal.network.ecmp import EcmpDag
from teal.network.failures import NO_FAILURE, Failure, failures_of
from teal.network.unreachable import WithoutPath
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.storage import json_value
from teal_ip.readings.readings import Counters
from teal_ip.routing.flex_algo import igp_routing
from teal_ip.routing.growth import (
    Growth,
    LinkForecast,
    growth_of,
    is_full_by,
    link_forecasts,
    month_after,
    month_order,
)
from teal_ip.routing.igp_failures import FailureResults
from teal_ip.routing.installed import InstalledRouting, Loads, igp_loads, loads_under
from teal_ip.routing.settings import SimulateOptions
from teal_ip.routing.tunnels import TunnelRouting, Tunnels

# Failures times links up to which the page has the loads of all failures, 1 MB at most.
_MAX_KEPT_LOADS = 400_000
# Entries of loads by matrix, destination and link that are in memory at a time, 256 MiB.
_BLOCK_NUMBERS = 2**25
# Relative rounding error of a sum of demands.
_ROUNDING = 1e-12
# Share of the volume whose latency is reported.
_TAIL = 0.99


@dataclasses.dataclass(frozen=True)
class MatrixLoad:
    """Loads of one matrix without failure.

    Attributes:
        index: index of the matrix.
        timestamp: timestamp of the matrix, ISO 8601.
        demand: Gbit/s.
        utilisation: largest link utilisation.
        busiest: name of the most utilised link.
        overload: Gbit/s above the capacities, over all links.
        lost: Gbit/s between nodes without a path.
        latency_mean: ms, mean over the volume that has a path.
        latency_99: ms, 99th percentile over the volume; each demand has the mean of its paths.
        latency_worst: ms, largest of a demand.
    """

    index: int
    timestamp: str
    demand: float
    utilisation: float
    busiest: str
    overload: float
    lost: float
    latency_mean: float
    latency_99: float
    latency_worst: float


@dataclasses.dataclass(frozen=True)
class FailureLoad:
    """Loads under one failure: each figure is the largest of all matrices.

    Attributes:
        failure: name of the failed element.
        kind: cable, link, node, group or pair.
        index: index of the matrix with the largest utilisation; on a tie, with the most lost.
        timestamp: timestamp of that matrix, ISO 8601.
        utilisation: largest utilisation of a live link, after convergence.
        busiest: name of that link.
        overload: Gbit/s above the capacities.
        lost: Gbit/s between live nodes without a path.
        own: Gbit/s that a failed node itself sends and receives, which no routing carries; 0 if
            links fail.
        repair_utilisation: largest utilisation during fast reroute; NaN unless simulated.
        at_risk: Gbit/s at risk of micro-loops before all routers have converged; NaN unless
            simulated.
    """

    failure: str
    kind: str
    index: int
    timestamp: str
    utilisation: float
    busiest: str
    overload: float
    lost: float
    own: float
    repair_utilisation: float
    at_risk: float


@dataclasses.dataclass(frozen=True, eq=False)
class Outlook:
    """Forecast: the months in which links are full if traffic grows and the routing stays.

    Attributes:
        growth: growth of all demands.
        limit: utilisation above which a link is full.
        horizon: month up to which links are counted; "" for no end.
        links: all links with a capacity, the most utilised under failure first.
    """

    growth: Growth
    limit: float
    horizon: str
    links: list[LinkForecast]

    @property
    def full(self) -> list[LinkForecast]:
        """Links that are full by the horizon, without or under failure, in order of the month."""
        in_time = [link for link in self.links if is_full_by(link.full_under_failure, self.horizon)]
        return sorted(
            in_time,
            key=lambda link: (month_order(link.full_under_failure), -link.failed_utilisation),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Simulation:
    """Result of a simulation.

    Attributes:
        topology: the network, with the current metrics.
        matrices: loads without failure, in time order.
        failures: loads under failures, the worst first.
        mean_load: (E,) Gbit/s without failure.
        largest_load: (E,) Gbit/s without failure.
        failure_loads: load (E,) Gbit/s of its worst matrix under each of the worst failures, by
            name, the worst first; NaN on failed links.
        plain_load: (E,) Gbit/s, largest without failure if all demands followed the IGP's shortest
            paths; None if they do.
        outlook: growth, and the month in which each link is full; None without growth.
        without_path: demands of the worst matrix that have no path, or that lose traffic on their
            policies.
    """

    topology: Topology
    matrices: list[MatrixLoad]
    failures: list[FailureLoad]
    mean_load: FloatArray
    largest_load: FloatArray
    failure_loads: dict[str, FloatArray]
    plain_load: FloatArray | None = None
    outlook: Outlook | None = None
    without_path: WithoutPath | None = None

    @property
    def worst_matrix(self) -> MatrixLoad:
        """The matrix with the largest utilisation."""
        return max(self.matrices, key=lambda matrix: matrix.utilisation)

    def to_json(self) -> dict[str, Any]:
        """All figures as JSON values; numbers that JSON lacks become null."""
        figures = {
            "matrices": self.matrices,
            "failures": self.failures,
            "links": [
                {"link": name, "mean_load": mean, "largest_load": largest, "capacity": capacity}
                for name, mean, largest, capacity in zip(
                    self.topology.link_names(),
                    self.mean_load.tolist(),
                    self.largest_load.tolist(),
                    self.topology.capacity.tolist(),
                    strict=True,
                )
            ],
            **({} if self.without_path is None else {"without_path": self.without_path.to_json()}),
            **({} if self.outlook is None else {"forecasts": self.outlook.links}),
        }
        return dict(json_value(figures))


def simulate(
    dag: EcmpDag,
    traffic: TrafficMatrices,
    options: SimulateOptions,
    notify: Callable[[str], None] = lambda _: None,
    *,
    keeps_all: bool = False,
) -> Simulation:
    """Simulate all matrices and failures.

    Args:
        dag: shortest paths under the current metrics.
        traffic: the matrices.
        options: installed routing, failures and matrices.
        notify: called with the progress.
        keeps_all: whether to keep link loads of all failures, if they are not too many, not just of
            the worst ones.

    Raises:
        InputError: invalid input.
    """
    # Inputs; growth is fitted to the traffic before scaling.
    topology = dag.topology
    growth = growth_of(options, traffic, notify) if options.growth_per_year else None
    traffic = traffic.scaled(options.growth)
    rows = chosen_rows(options.index, options.limit, traffic)
    routing = installed_routing(options, dag, traffic.pairs)
    groups = None if options.groups is None else load_groups(options.groups, topology)
    failures = list(failures_of(options.failures, topology, groups or {}))
    # Loads.
    block = max(1, _BLOCK_NUMBERS // (topology.num_nodes * topology.num_links))
    is_for_all = keeps_all and len(failures) * topology.num_links <= _MAX_KEPT_LOADS
    num_kept = len(failures) if is_for_all else options.worst
    result = simulated(
        routing,
        traffic,
        rows,
        failures,
        num_kept,
        repairing=options.repair,
        block=block,
        notify=notify,
    )
    demand = traffic.read([result.worst_matrix.index])[0]
    lost = WithoutPath.of(topology, traffic.pairs, demand, np.isfinite(routing.latency()))
    result = dataclasses.replace(result, without_path=lost)
    # Forecast.
    if growth is None:
        return result
    load = largest_loads(routing, traffic, rows, failures, block=block, notify=notify)
    today = traffic.timestamps[rows[-1]]
    names = [NO_FAILURE.name, *(failure.name for failure in failures)]
    links = link_forecasts(
        topology, topology.capacity, load, names, options.max_utilisation, growth, today
    )
    horizon = month_after(today, options.horizon_years) if options.horizon else ""
    return dataclasses.replace(
        result, outlook=Outlook(growth, options.max_utilisation, horizon, links)
    )


def installed_routing(config: SimulateOptions, dag: EcmpDag, pairs: IntArray) -> InstalledRouting:
    """Return the routing of the settings.

    Raises:
        InputError: an invalid file or algorithm definition.
    """
    if config.allocation is not None:
        return TunnelRouting(dag, pairs, Tunnels.read(config.allocation, dag.topology, pairs))
    return igp_routing(dag, pairs, config.policies, config.flex_algo, config.algorithm_of)


def simulated(
    routing: InstalledRouting,
    traffic: TrafficMatrices,
    rows: Int64Array,
    failures: Sequence[Failure],
    worst: int,
    *,
    repairing: bool = False,
    block: int = 16,
    notify: Callable[[str], None] = lambda _: None,
) -> Simulation:
    """Simulate some matrices.

    Args:
        routing: routing of the demands.
        traffic: the matrices.
        rows: indices of the matrices.
        failures: failures to simulate.
        worst: number of failures whose link loads are kept.
        repairing: also simulate fast reroute.
        block: matrices in memory at a time.
        notify: called with the progress.
    """
    topology = routing.dag.topology
    names = topology.link_names()
    matrices: list[MatrixLoad] = []
    total = np.zeros(topology.num_links)
    largest = np.zeros(topology.num_links)
    plain = None if routing.is_igp_alone else np.zeros(topology.num_links)
    failure_loads = _FailureLoads(routing, traffic, failures, repairing=repairing)
    # All matrices, in blocks.
    for begin in range(0, len(rows), block):
        indices = rows[begin : begin + block]
        demand = traffic.read(indices)
        # Loads without failure, and of the shortest paths alone.
        loads = routing.loads(demand)
        total += loads.load.sum(0)
        largest = np.maximum(largest, loads.load.max(0))
        if plain is not None:
            plain = np.maximum(plain, igp_loads(routing, traffic.pairs, demand).max(0))
        for m, index in enumerate(indices.tolist()):
            matrices.append(_matrix_load(index, traffic, demand[m], loads, m, names, routing))
        # Loads under each failure.
        if failures:
            failure_loads.add(indices, demand)
        if len(rows) > block:
            notify(f"{min(begin + block, len(rows)):,} of {len(rows):,} matrices")
    # Link loads of the worst failures.
    worst_first = failure_loads.worst_first()
    return Simulation(
        topology,
        matrices,
        [failure_loads.by_index[s] for s in worst_first],
        total / max(1, len(rows)),
        largest,
        failure_loads.link_loads(worst_first[:worst]),
        plain,
    )


class _FailureLoads:
    """Loads under each failure, over the matrices so far.

    Attributes:
        by_index: loads by index of the failure.
    """

    def __init__(
        self,
        routing: InstalledRouting,
        traffic: TrafficMatrices,
        failures: Sequence[Failure],
        *,
        repairing: bool,
    ) -> None:
        self.by_index: dict[int, FailureLoad] = {}
        self._routing = routing
        self._traffic = traffic
        self._failures = failures
        self._repairing = repairing
        self._link_names = routing.dag.topology.link_names()
        self._node_index = routing.dag.topology.node_index()

    def add(self, indices: Int64Array, demand: FloatArray) -> None:
        """Simulate a block of matrices of these indices (M,), with demands (M, D) in Gbit/s."""
        pairs = self._traffic.pairs
        after = loads_under(self._routing, pairs, demand, self._failures)
        repair = (
            loads_under(self._routing, pairs, demand, self._failures, repairing=True)
            if self._repairing
            else None
        )
        for s in range(len(self._failures)):
            failure_load = self._largest_of_block(s, indices, demand, after, repair)
            self.by_index[s] = (
                _combine(self.by_index[s], failure_load) if s in self.by_index else failure_load
            )

    def _largest_of_block(
        self,
        s: int,
        indices: Int64Array,
        demand: FloatArray,
        after: FailureResults,
        repair: FailureResults | None,
    ) -> FailureLoad:
        """Return the worst matrix of a block under failure s, and the largest of each figure.

        Args:
            s: index of the failure.
            indices: (M,) indices of the matrices.
            demand: (M, D) Gbit/s.
            after: loads after convergence.
            repair: loads during fast reroute; None unless simulated.
        """
        failure = self._failures[s]
        # Traffic from and to a failed node is not counted as lost.
        own_traffic = np.zeros(len(indices))
        if failure.kind == "node":
            is_of_node = (self._traffic.pairs == self._node_index[failure.name]).any(1)
            own_traffic = demand[:, is_of_node].sum(1)
        other_lost = after.lost[s] - own_traffic
        other_lost = np.where(other_lost > _ROUNDING * own_traffic, other_lost, 0.0)
        worst_matrix = int(np.lexsort((other_lost, after.utilisation[s]))[-1])
        index = indices[worst_matrix]
        return FailureLoad(
            failure.name,
            failure.kind,
            int(index),
            str(self._traffic.timestamps[index]),
            float(after.utilisation[s, worst_matrix]),
            _name(self._link_names, int(after.busiest[s, worst_matrix])),
            float(after.overload[s].max()),
            float(other_lost.max()),
            float(own_traffic.max()),
            math.nan if repair is None else float(repair.utilisation[s].max()),
            math.nan if repair is None else float(repair.at_risk[s].max()),
        )

    def worst_first(self) -> list[int]:
        """Indices of the failures, the worst first."""
        return sorted(self.by_index, key=lambda s: severity(self.by_index[s]), reverse=True)

    def link_loads(self, indices: Sequence[int]) -> dict[str, FloatArray]:
        """Loads (E,) of all links by name of the failure, each under its worst matrix; NaN for
        failed links.
        """
        load_by_index: dict[int, FloatArray] = {}
        for matrix in {self.by_index[s].index for s in indices}:
            failures_of_matrix = [s for s in indices if self.by_index[s].index == matrix]
            loads = loads_under(
                self._routing,
                self._traffic.pairs,
                self._traffic.read([matrix]),
                [self._failures[s] for s in failures_of_matrix],
                loads=True,
            ).load[:, 0]
            for s, load in zip(failures_of_matrix, loads, strict=True):
                load[list(self._failures[s].links)] = np.nan
                load_by_index[s] = load
        return {self._failures[s].name: load_by_index[s] for s in indices}


def largest_loads(
    routing: InstalledRouting,
    traffic: TrafficMatrices,
    rows: Int64Array,
    failures: Sequence[Failure],
    *,
    block: int = 16,
    notify: Callable[[str], None] = lambda _: None,
) -> FloatArray:
    """Largest load (1 + F, E) of each link over all matrices, Gbit/s, without failure and under
    each of F failures; arguments as in :func:`simulated`.
    """
    num_links = routing.dag.topology.num_links
    largest = np.zeros((1 + len(failures), num_links))
    for begin in range(0, len(rows), block):
        indices = rows[begin : begin + block]
        demand = traffic.read(indices)
        largest[0] = np.maximum(largest[0], routing.loads(demand).load.max(0))
        chunk_size = max(1, _BLOCK_NUMBERS // (len(indices) * num_links))
        for first in range(0, len(failures), chunk_size):
            chunk = failures[first : first + chunk_size]
            after = loads_under(routing, traffic.pairs, demand, chunk, loads=True).load.max(1)
            chunk_rows = slice(1 + first, 1 + first + len(after))
            largest[chunk_rows] = np.maximum(largest[chunk_rows], after)
        if len(rows) > block:
            notify(f"largest loads: {min(begin + block, len(rows)):,} of {len(rows):,} matrices")
    return largest


def utilisations(
    routing: InstalledRouting,
    traffic: TrafficMatrices,
    failures: Sequence[Failure],
    block: int = 16,
) -> FloatArray:
    """Largest link utilisation (M, 1 + F) of each matrix without failure and under each of F
    failures.
    """
    all_failures = [NO_FAILURE, *failures]
    results = [
        loads_under(routing, traffic.pairs, demand, all_failures)
        for demand in traffic.chunks(size=block)
    ]
    return np.concatenate([result.utilisation.T for result in results])


def worst_rows(utilisation: FloatArray, count: int) -> Int64Array:
    """Indices of the worst matrices: that of the largest utilisation under each failure, in
    descending order of the failures' utilisation.

    Args:
        utilisation: (M, F) largest link utilisation of each matrix under each failure.
        count: maximum number of matrices; 0 for all.
    """
    if not count:
        return np.arange(len(utilisation))
    order = np.argsort(-utilisation.max(0), kind="stable")
    return np.array(list(dict.fromkeys(utilisation.argmax(0)[order].tolist()))[:count])


# Fields of FailureLoad whose largest value over the matrices is reported on its own.
_FIGURES = ("overload", "lost", "own", "repair_utilisation", "at_risk")


def _combine(first: FailureLoad, second: FailureLoad) -> FailureLoad:
    """Combine the loads under one failure of two sets of matrices."""
    largest = {name: max(getattr(first, name), getattr(second, name)) for name in _FIGURES}
    return dataclasses.replace(max(first, second, key=severity), **largest)


def severity(failure_load: FailureLoad) -> tuple[float, float]:
    """Sort key of failures, larger is worse: utilisation to nine digits, then lost traffic."""
    return float(f"{failure_load.utilisation:.9g}"), failure_load.lost


def _name(names: list[str], link: int) -> str:
    return names[link] if link >= 0 else ""


def _matrix_load(
    index: int,
    traffic: TrafficMatrices,
    demand: FloatArray,
    loads: Loads,
    m: int,
    names: list[str],
    routing: InstalledRouting,
) -> MatrixLoad:
    # Utilisation.
    capacity = routing.dag.topology.capacity
    load = loads.load[m]
    utilisation = np.where(capacity > 0, load / np.where(capacity > 0, capacity, 1), 0)
    busiest = int(utilisation.argmax())
    # Latency, weighted by volume.
    latency = routing.latency()
    carried = np.isfinite(latency) & (demand > 0)
    volume = demand[carried]
    latency = latency[carried]
    order = np.argsort(latency)
    cumulative_volume = np.cumsum(volume[order])
    percentile_index = (
        int(np.searchsorted(cumulative_volume, _TAIL * cumulative_volume[-1] - 1e-12))
        if len(order)
        else 0
    )
    return MatrixLoad(
        index,
        str(traffic.timestamps[index]),
        float(demand.sum()),
        float(utilisation[busiest]),
        names[busiest],
        float(np.maximum(0, load - capacity).sum()),
        float(loads.lost[m]),
        float((volume * latency).sum() / volume.sum()) if len(order) else math.nan,
        float(latency[order[min(percentile_index, len(order) - 1)]]) if len(order) else math.nan,
        float(latency.max()) if len(order) else math.nan,
    )


def chosen_rows(index: int, limit: int, traffic: TrafficMatrices) -> Int64Array:
    """Indices of the selected matrices: one, or for -1 all, at most ``limit`` unless that is 0.

    Raises:
        InputError: an index out of range.
    """
    num_matrices = traffic.num_matrices
    if index >= num_matrices:
        raise InputError(
            "--index", "", f"a matrix from 0 to {num_matrices - 1}, or -1 for all", index
        )
    return np.array([index]) if index >= 0 else np.arange(min(num_matrices, limit or num_matrices))


def measurements_of(policies: Path | None, dag: EcmpDag, pairs: IntArray) -> sp.csr_array:
    """Measurement matrix F (E + 2 N, D) under the IGP's shortest paths and the segment lists of a
    file, if any.
    """
    return igp_routing(dag, pairs, policies).measurements()


def synthetic_counters(
    dag: EcmpDag, measurements: sp.csr_array, traffic: TrafficMatrices, error: float, seed: int
) -> Counters:
    """Simulate counters: loads of the matrices with independent relative errors.

    Args:
        dag: shortest paths.
        measurements: (E + 2 N, D) measurement matrix F.
        traffic: the matrices.
        error: relative standard deviation of a counter.
        seed: random seed.
    """
    num_links = dag.topology.num_links
    num_nodes = dag.topology.num_nodes
    rng = np.random.default_rng(seed)
    values = np.concatenate([(measurements @ chunk.T).T for chunk in traffic.chunks()])
    both_ends = np.concatenate([values[:, :num_links], values], 1)
    both_ends = np.maximum(both_ends * (1 + error * rng.normal(size=both_ends.shape)), 0.0)
    sent, received, ingress, egress = np.split(
        both_ends, np.cumsum([num_links, num_links, num_nodes]), axis=1
    )
    return Counters(traffic.timestamps, float(traffic.interval_s), sent, received, ingress, egress)
