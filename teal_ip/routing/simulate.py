"""Simulate the installed routing: link loads, latencies and lost traffic, without failure and under
each failure; forecast the months in which growth fills links.

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

# Maximum number of loads (failures times links) for a page with the loads of all failures: 1 MB.
_MAX_PAGE_LOADS = 400_000
# Maximum number of loads by matrix, destination and link in memory at a time: 256 MiB.
_MAX_BLOCK_ENTRIES = 2**25
# Relative rounding error of a sum of demands: smaller lost traffic counts as none.
_ROUNDING = 1e-12
# Quantile of the latency, weighted by volume, that is reported.
_TAIL_QUANTILE = 0.99


@dataclasses.dataclass(frozen=True)
class MatrixLoad:
    """Loads of one matrix without failure.

    Attributes:
        index: index of the matrix.
        timestamp: timestamp of the matrix, ISO 8601.
        demand: sum of all demands, Gbit/s.
        utilisation: largest link utilisation.
        busiest: name of the most utilised link; "" if none is used.
        overload: load above capacity, summed over links, Gbit/s.
        lost: Gbit/s that is not delivered: no path, or a policy with an unusable segment.
        latency_mean: mean latency over the delivered volume, ms.
        latency_99: 99th percentile of the latency of demands, weighted by volume, ms; the latency
            of a demand is the mean over its paths.
        latency_worst: largest latency of a demand, ms.
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
    """Loads under one failure; each number is the maximum over all matrices.

    Attributes:
        failure: name of the failed element.
        kind: cable, link, node, group or pair.
        index: index of the matrix with the largest utilisation; of several, that with most lost
            traffic.
        timestamp: timestamp of that matrix, ISO 8601.
        utilisation: largest utilisation of a live link, after convergence.
        busiest: name of that link.
        overload: load above capacity, summed over links, Gbit/s.
        lost: Gbit/s between live nodes that is not delivered.
        own: demand from and to a failed node, Gbit/s; no routing can deliver it. 0 if links fail.
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
class CapacityForecast:
    """Forecast of the months in which links become full, with growing traffic and fixed routing.

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
        """Links that become full by the horizon, without failure or under one, the first month
        first.
        """
        in_time = [link for link in self.links if is_full_by(link.full_under_failure, self.horizon)]
        return sorted(
            in_time,
            key=lambda link: (month_order(link.full_under_failure), -link.failed_utilisation),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Simulation:
    """Simulated loads of E links.

    Attributes:
        topology: the network, with the current metrics.
        matrices: loads of each matrix without failure, in time order.
        failures: loads under each failure, the worst first.
        mean_load: (E,) mean over the matrices without failure, Gbit/s.
        largest_load: (E,) maximum over the matrices without failure, Gbit/s.
        failure_loads: loads (E,) under each of the worst failures with its worst matrix, Gbit/s, by
            name of the failure, the worst first; NaN on failed links.
        plain_load: (E,) maximum over the matrices without failure, Gbit/s, if all demands followed
            the IGP's shortest paths; None if the installed routing is the IGP alone.
        forecast: month in which each link is full; None without growth.
        without_path: demands of the worst matrix that have no path, or lose traffic on a policy.
    """

    topology: Topology
    matrices: list[MatrixLoad]
    failures: list[FailureLoad]
    mean_load: FloatArray
    largest_load: FloatArray
    failure_loads: dict[str, FloatArray]
    plain_load: FloatArray | None = None
    forecast: CapacityForecast | None = None
    without_path: WithoutPath | None = None

    @property
    def worst_matrix(self) -> MatrixLoad:
        """Loads of the matrix with the largest utilisation without failure."""
        return max(self.matrices, key=lambda matrix: matrix.utilisation)

    def to_json(self) -> dict[str, Any]:
        """Return all results as JSON values; NaN and infinity become null."""
        fields = {
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
            **({} if self.forecast is None else {"forecasts": self.forecast.links}),
        }
        return dict(json_value(fields))


def simulate(
    dag: EcmpDag,
    traffic: TrafficMatrices,
    options: SimulateOptions,
    notify: Callable[[str], None] = lambda _: None,
    *,
    keeps_all: bool = False,
) -> Simulation:
    """Simulate the selected matrices without failure and under each failure.

    Args:
        dag: shortest paths under the current metrics.
        traffic: the matrices.
        options: installed routing, failures and matrices.
        notify: called with progress messages.
        keeps_all: whether to return the link loads under all failures, not just under the worst
            ones; ignored if there are too many loads for a page.

    Raises:
        InputError: invalid input.
    """
    # Read the inputs.  Growth is fitted before the traffic is scaled.
    topology = dag.topology
    growth = growth_of(options, traffic, notify) if options.growth_per_year else None
    traffic = traffic.scaled(options.growth)
    matrix_indices = selected_matrix_indices(options.index, options.limit, traffic)
    routing = installed_routing(options, dag, traffic.pairs)
    groups = None if options.groups is None else load_groups(options.groups, topology)
    failures = list(failures_of(options.failures, topology, groups or {}))
    # Simulate in blocks of matrices that fit into memory.
    block_size = max(1, _MAX_BLOCK_ENTRIES // (topology.num_nodes * topology.num_links))
    has_all_loads = keeps_all and len(failures) * topology.num_links <= _MAX_PAGE_LOADS
    num_kept = len(failures) if has_all_loads else options.worst
    result = simulate_in_blocks(
        routing,
        traffic,
        matrix_indices,
        failures,
        num_kept,
        repairing=options.repair,
        block=block_size,
        notify=notify,
    )
    # Demands of the worst matrix that lose traffic: their latency is infinite.
    demand = traffic.read([result.worst_matrix.index])[0]
    without_path = WithoutPath.of(topology, traffic.pairs, demand, np.isfinite(routing.latency()))
    result = dataclasses.replace(result, without_path=without_path)
    # Forecast the month in which each link is full.
    if growth is None:
        return result
    loads_by_failure = largest_loads(
        routing, traffic, matrix_indices, failures, block=block_size, notify=notify
    )
    last_timestamp = traffic.timestamps[matrix_indices[-1]]
    failure_names = [NO_FAILURE.name, *(failure.name for failure in failures)]
    forecasts = link_forecasts(
        topology,
        topology.capacity,
        loads_by_failure,
        failure_names,
        options.max_utilisation,
        growth,
        last_timestamp,
    )
    horizon = month_after(last_timestamp, options.horizon_years) if options.horizon else ""
    return dataclasses.replace(
        result, forecast=CapacityForecast(growth, options.max_utilisation, horizon, forecasts)
    )


def installed_routing(config: SimulateOptions, dag: EcmpDag, pairs: IntArray) -> InstalledRouting:
    """Return the routing of the settings: tunnels of a file, or the IGP with policies and
    algorithms.

    Args:
        config: settings.
        dag: shortest paths under the current metrics.
        pairs: (D, 2) source and target of each demand.

    Raises:
        InputError: an invalid file or algorithm definition.
    """
    if config.allocation is not None:
        return TunnelRouting(dag, pairs, Tunnels.read(config.allocation, dag.topology, pairs))
    return igp_routing(dag, pairs, config.policies, config.flex_algo, config.algorithm_of)


def simulate_in_blocks(
    routing: InstalledRouting,
    traffic: TrafficMatrices,
    rows: Int64Array,
    failures: Sequence[Failure],
    num_kept: int,
    *,
    repairing: bool = False,
    block: int = 16,
    notify: Callable[[str], None] = lambda _: None,
) -> Simulation:
    """Simulate matrices without failure and under each failure, in blocks.

    Args:
        routing: routing of the demands.
        traffic: the matrices.
        rows: indices of the matrices.
        failures: failures to simulate.
        num_kept: number of failures, the worst ones, whose link loads are returned.
        repairing: also simulate fast reroute.
        block: number of matrices in memory at a time.
        notify: called with progress messages.
    """
    topology = routing.dag.topology
    link_names = topology.link_names()
    # Loads of each matrix; (E,) sum and maximum of the link loads over the matrices, Gbit/s;
    # maximum with the IGP alone; and loads under failures.
    matrices: list[MatrixLoad] = []
    load_sum = np.zeros(topology.num_links)
    largest_load = np.zeros(topology.num_links)
    largest_igp_load = None if routing.is_igp_alone else np.zeros(topology.num_links)
    failure_loads = _FailureLoads(routing, traffic, failures, repairing=repairing)
    for first_row in range(0, len(rows), block):
        indices = rows[first_row : first_row + block]
        demand = traffic.read(indices)
        # Loads without failure, under the installed routing and under the IGP alone.
        loads = routing.loads(demand)
        load_sum += loads.load.sum(0)
        largest_load = np.maximum(largest_load, loads.load.max(0))
        if largest_igp_load is not None:
            largest_igp_load = np.maximum(
                largest_igp_load, igp_loads(routing, traffic.pairs, demand).max(0)
            )
        for m, index in enumerate(indices.tolist()):
            matrices.append(_matrix_load(index, traffic, demand[m], loads, m, link_names, routing))
        # Loads under each failure.
        if failures:
            failure_loads.add(indices, demand)
        if len(rows) > block:
            notify(f"{min(first_row + block, len(rows)):,} of {len(rows):,} matrices simulated")
    # Keep the link loads of the worst failures.
    worst_first = failure_loads.worst_first()
    return Simulation(
        topology,
        matrices,
        [failure_loads.by_index[s] for s in worst_first],
        load_sum / max(1, len(rows)),
        largest_load,
        failure_loads.link_loads(worst_first[:num_kept]),
        largest_igp_load,
    )


class _FailureLoads:
    """Accumulator of the loads under each failure, over the matrices added so far.

    Args:
        routing: routing of the demands.
        traffic: the matrices.
        failures: failures to simulate.
        repairing: whether to simulate fast reroute, too.

    Attributes:
        by_index: loads under each failure, by index of the failure.
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
        """Simulate a block of M matrices under all failures, and update ``by_index``.

        Args:
            indices: (M,) indices of the matrices.
            demand: (M, D) Gbit/s.
        """
        pairs = self._traffic.pairs
        converged_results = loads_under(self._routing, pairs, demand, self._failures)
        fast_reroute_results = (
            loads_under(self._routing, pairs, demand, self._failures, repairing=True)
            if self._repairing
            else None
        )
        for s in range(len(self._failures)):
            failure_load = self._largest_of_block(
                s, indices, demand, converged_results, fast_reroute_results
            )
            self.by_index[s] = (
                _combine_matrices(self.by_index[s], failure_load)
                if s in self.by_index
                else failure_load
            )

    def _largest_of_block(
        self,
        s: int,
        indices: Int64Array,
        demand: FloatArray,
        converged_results: FailureResults,
        fast_reroute_results: FailureResults | None,
    ) -> FailureLoad:
        """Return the loads under failure s: the worst matrix of a block, and maxima over the block.

        Args:
            s: index of the failure.
            indices: (M,) indices of the matrices.
            demand: (M, D) Gbit/s.
            converged_results: loads after convergence.
            fast_reroute_results: loads during fast reroute; None unless simulated.
        """
        failure = self._failures[s]
        # (M,) demand from and to a failed node, which does not count as lost traffic.
        node_demand = np.zeros(len(indices))
        if failure.kind == "node":
            is_endpoint = (self._traffic.pairs == self._node_index[failure.name]).any(1)
            node_demand = demand[:, is_endpoint].sum(1)
        # (M,) other lost traffic; rounding errors of the difference become 0.
        lost = converged_results.lost[s] - node_demand
        lost = np.where(lost > _ROUNDING * node_demand, lost, 0.0)
        # Matrix with the largest utilisation, then the most lost traffic; ``lexsort`` sorts by its
        # last key first.
        worst_position = int(np.lexsort((lost, converged_results.utilisation[s]))[-1])
        matrix_index = indices[worst_position]
        # Utilisation and link are those of the worst matrix, the other figures maxima over all.
        return FailureLoad(
            failure.name,
            failure.kind,
            int(matrix_index),
            str(self._traffic.timestamps[matrix_index]),
            float(converged_results.utilisation[s, worst_position]),
            _link_name(self._link_names, int(converged_results.busiest[s, worst_position])),
            float(converged_results.overload[s].max()),
            float(lost.max()),
            float(node_demand.max()),
            math.nan
            if fast_reroute_results is None
            else float(fast_reroute_results.utilisation[s].max()),
            math.nan
            if fast_reroute_results is None
            else float(fast_reroute_results.at_risk[s].max()),
        )

    def worst_first(self) -> list[int]:
        """Return the indices of the failures by utilisation, then lost traffic, the worst first."""
        return sorted(self.by_index, key=lambda s: severity(self.by_index[s]), reverse=True)

    def link_loads(self, failure_indices: Sequence[int]) -> dict[str, FloatArray]:
        """Return the link loads (E,) under failures, Gbit/s, by name of the failure.

        Each failure has the loads of its worst matrix, with NaN on failed links.

        Args:
            failure_indices: indices of the failures.
        """
        # Failures with the same worst matrix are simulated together.
        load_by_index: dict[int, FloatArray] = {}
        for matrix_index in {self.by_index[s].index for s in failure_indices}:
            failures_of_matrix = [
                s for s in failure_indices if self.by_index[s].index == matrix_index
            ]
            loads = loads_under(
                self._routing,
                self._traffic.pairs,
                self._traffic.read([matrix_index]),
                [self._failures[s] for s in failures_of_matrix],
                loads=True,
            ).load[:, 0]
            for s, load in zip(failures_of_matrix, loads, strict=True):
                load[list(self._failures[s].links)] = np.nan
                load_by_index[s] = load
        return {self._failures[s].name: load_by_index[s] for s in failure_indices}


def largest_loads(
    routing: InstalledRouting,
    traffic: TrafficMatrices,
    rows: Int64Array,
    failures: Sequence[Failure],
    *,
    block: int = 16,
    notify: Callable[[str], None] = lambda _: None,
) -> FloatArray:
    """Return the largest load of each of E links over all matrices.

    Args:
        routing: routing of the demands.
        traffic: the matrices.
        rows: indices of the matrices.
        failures: F failures.
        block: number of matrices in memory at a time.
        notify: called with progress messages.

    Returns:
        (1 + F, E) Gbit/s, without failure in row 0, then under each failure.
    """
    num_links = routing.dag.topology.num_links
    largest = np.zeros((1 + len(failures), num_links))
    for first_row in range(0, len(rows), block):
        indices = rows[first_row : first_row + block]
        demand = traffic.read(indices)
        largest[0] = np.maximum(largest[0], routing.loads(demand).load.max(0))
        # Under failures, in chunks of failures that fit into memory.
        chunk_size = max(1, _MAX_BLOCK_ENTRIES // (len(indices) * num_links))
        for first_failure in range(0, len(failures), chunk_size):
            chunk = failures[first_failure : first_failure + chunk_size]
            failure_load = loads_under(routing, traffic.pairs, demand, chunk, loads=True).load.max(
                1
            )
            chunk_rows = slice(1 + first_failure, 1 + first_failure + len(failure_load))
            largest[chunk_rows] = np.maximum(largest[chunk_rows], failure_load)
        if len(rows) > block:
            notify(f"forecast: {min(first_row + block, len(rows)):,} of {len(rows):,} matrices")
    return largest


def utilisations(
    routing: InstalledRouting,
    traffic: TrafficMatrices,
    failures: Sequence[Failure],
    block: int = 16,
) -> FloatArray:
    """Return the largest link utilisation of each of M matrices, without and under failures.

    Args:
        routing: routing of the demands.
        traffic: the M matrices.
        failures: F failures.
        block: number of matrices in memory at a time.

    Returns:
        (M, 1 + F) without failure in column 0, then under each failure.
    """
    all_failures = [NO_FAILURE, *failures]
    results = [
        loads_under(routing, traffic.pairs, demand, all_failures)
        for demand in traffic.chunks(size=block)
    ]
    return np.concatenate([result.utilisation.T for result in results])


def worst_matrix_indices(utilisation: FloatArray, count: int) -> Int64Array:
    """Return the indices of the worst matrices under the worst failures.

    Each failure contributes the matrix with its largest utilisation; failures are visited by
    descending utilisation, and repeated matrices are dropped.

    Args:
        utilisation: (M, F) largest link utilisation of each matrix under each failure.
        count: maximum number of matrices; 0 for all.
    """
    if not count:
        return np.arange(len(utilisation))
    # Matrix with the largest utilisation under each failure, the worst failure first; the keys of a
    # dictionary drop repeated matrices.
    order = np.argsort(-utilisation.max(0), kind="stable")
    return np.array(list(dict.fromkeys(utilisation.argmax(0)[order].tolist()))[:count])


# Fields of FailureLoad that are maxima over the matrices independently of each other.
_MAXIMISED_FIELDS = ("overload", "lost", "own", "repair_utilisation", "at_risk")


def _combine_matrices(first: FailureLoad, second: FailureLoad) -> FailureLoad:
    """Return the loads under a failure over two sets of matrices together, given those over each
    set.

    The result has the worst matrix of both sets; lost traffic, overload and the figures of fast
    reroute are the maxima over both.
    """
    largest = {name: max(getattr(first, name), getattr(second, name)) for name in _MAXIMISED_FIELDS}
    return dataclasses.replace(max(first, second, key=severity), **largest)


def severity(failure_load: FailureLoad) -> tuple[float, float]:
    """Return the sort key of a failure, larger for worse ones: utilisation to nine digits, then
    lost traffic, Gbit/s.
    """
    return float(f"{failure_load.utilisation:.9g}"), failure_load.lost


def _link_name(names: list[str], link: int) -> str:
    """Return the name of a link by its index; "" for index -1."""
    return names[link] if link >= 0 else ""


def _matrix_load(
    index: int,
    traffic: TrafficMatrices,
    demand: FloatArray,
    loads: Loads,
    block_position: int,
    link_names: list[str],
    routing: InstalledRouting,
) -> MatrixLoad:
    """Return the utilisation, lost traffic and latency of matrix m of a block, without failure.

    Args:
        index: index of the matrix in ``traffic``.
        traffic: the matrices.
        demand: (D,) Gbit/s.
        loads: loads of the block.
        block_position: position of the matrix in the block.
        link_names: names of the links.
        routing: routing of the demands.
    """
    # Utilisation; 0 for links without capacity.
    capacity = routing.dag.topology.capacity
    load = loads.load[block_position]
    utilisation = np.where(capacity > 0, load / np.where(capacity > 0, capacity, 1), 0)
    busiest_link = int(utilisation.argmax())
    # Mean, 99th percentile and maximum of the latency of delivered demands, weighted by volume.
    latency = routing.latency()
    has_latency = np.isfinite(latency) & (demand > 0)
    volume = demand[has_latency]
    latency = latency[has_latency]
    # Index of the first demand, in order of latency, up to which 99% of the volume is counted, less
    # a tolerance of 1e-12 Gbit/s for rounding errors.
    latency_order = np.argsort(latency)
    cumulative_volume = np.cumsum(volume[latency_order])
    percentile_index = (
        int(np.searchsorted(cumulative_volume, _TAIL_QUANTILE * cumulative_volume[-1] - 1e-12))
        if len(latency_order)
        else 0
    )
    # Load above capacity and lost traffic; the latency is NaN if no demand is delivered.
    return MatrixLoad(
        index,
        str(traffic.timestamps[index]),
        float(demand.sum()),
        float(utilisation[busiest_link]),
        link_names[busiest_link] if utilisation[busiest_link] > 0 else "",
        float(np.maximum(0, load - capacity).sum()),
        float(loads.lost[block_position]),
        float((volume * latency).sum() / volume.sum()) if len(latency_order) else math.nan,
        float(latency[latency_order[min(percentile_index, len(latency_order) - 1)]])
        if len(latency_order)
        else math.nan,
        float(latency.max()) if len(latency_order) else math.nan,
    )


def selected_matrix_indices(index: int, limit: int, traffic: TrafficMatrices) -> Int64Array:
    """Return the indices of the selected matrices.

    Args:
        index: index of one matrix; -1 for all.
        limit: maximum number of matrices if all are selected, the first ones; 0 for no limit.
        traffic: the matrices.

    Raises:
        InputError: an index out of range.
    """
    num_matrices = traffic.num_matrices
    if index >= num_matrices:
        raise InputError(
            "--index", "", f"an index from 0 to {num_matrices - 1}, or -1 for all matrices", index
        )
    return np.array([index]) if index >= 0 else np.arange(min(num_matrices, limit or num_matrices))


def measurements_of(policies: Path | None, dag: EcmpDag, pairs: IntArray) -> sp.csr_array:
    """Return the measurement matrix F (E + 2 N, D): counters = F @ demands.

    Row e is the share of each demand on link e; rows E + n and E + N + n select the demands from
    and to node n.

    Args:
        policies: file of segment lists; None for shortest paths only.
        dag: the IGP's shortest paths.
        pairs: (D, 2) source and target of each demand.
    """
    return igp_routing(dag, pairs, policies).measurements()


def synthetic_counters(
    dag: EcmpDag,
    measurements: sp.csr_array,
    traffic: TrafficMatrices,
    relative_error: float,
    seed: int,
) -> Counters:
    """Return simulated counters: F @ demands, with independent relative errors at each interface.

    Args:
        dag: shortest paths.
        measurements: (E + 2 N, D) measurement matrix F.
        traffic: the matrices.
        relative_error: relative standard deviation of a counter.
        seed: random seed.
    """
    # Exact rates (T, E + 2 N) of links, ingress and egress; links are repeated, since both ends
    # count.
    num_links = dag.topology.num_links
    num_nodes = dag.topology.num_nodes
    rng = np.random.default_rng(seed)
    exact_rates = np.concatenate([(measurements @ chunk.T).T for chunk in traffic.chunks()])
    counter_rates = np.concatenate([exact_rates[:, :num_links], exact_rates], 1)
    # Add independent relative errors, and divide the columns into rates sent and received on links,
    # and ingress and egress of nodes.
    counter_rates = np.maximum(
        counter_rates * (1 + relative_error * rng.normal(size=counter_rates.shape)), 0.0
    )
    sent_rates, received, ingress, egress = np.split(
        counter_rates, np.cumsum([num_links, num_links, num_nodes]), axis=1
    )
    return Counters(
        traffic.timestamps, float(traffic.interval_s), sent_rates, received, ingress, egress
    )
