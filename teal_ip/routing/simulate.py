"""Loads of the routing that is installed, without failure and under each: `teal simulate`."""

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
from teal_ip.routing.installed import InstalledRouting, Loads, igp_loads, loads_under
from teal_ip.routing.settings import SimulateOptions
from teal_ip.routing.tunnels import TunnelRouting, Tunnels

_MAX_KEPT_NUMBERS = (
    400_000  # failures times links up to which the page has the loads of all failures, 1 MB at most
)
# Numbers of loads by matrix, destination and link that are in memory at a time, 256 MiB.
_BLOCK_NUMBERS = 2**25
_ROUNDING = 1e-12  # relative error of a sum of demands
_TAIL = 0.99  # share of the volume whose latency is printed


@dataclasses.dataclass(frozen=True)
class MatrixLoad:
    """One matrix without failure.

    Attributes:
        index: number of the matrix.
        timestamp: its time, ISO 8601.
        demand: Gbit/s.
        utilisation: largest of a link.
        busiest: name of that link.
        overload: Gbit/s above the capacities, over all links.
        lost: Gbit/s between nodes without a path.
        latency_mean: ms, mean over the volume that has a path.
        latency_99: ms, least that 99% of the volume do not exceed; each demand has the mean of its
            paths.
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
    """One failure: each figure is the largest of all matrices.

    Attributes:
        failure: name of what is down.
        kind: cable, link, node, group or pair.
        index: number of the matrix with the largest utilisation, of several the one with most lost.
        timestamp: its time, ISO 8601.
        utilisation: largest of a link that works, after convergence.
        busiest: name of that link.
        overload: Gbit/s above the capacities.
        lost: Gbit/s between nodes that work and have no path.
        own: Gbit/s that a failed node itself sends and receives, which no routing carries; 0 if
            links fail.
        repair_utilisation: largest while backup paths are in use; NaN unless asked for.
        at_risk: Gbit/s that may run into a micro-loop before all routers have converged; NaN unless
            asked for.
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
    """When links are full, if traffic grows and the routing stays as it is.

    Attributes:
        growth: growth of all demands.
        limit: utilisation above which a link is full.
        horizon: month up to which links are counted; "" for no end.
        links: all links with a capacity, the fullest under failure first.
    """

    growth: Growth
    limit: float
    horizon: str
    links: list[LinkForecast]

    @property
    def full(self) -> list[LinkForecast]:
        """The links that are full by the horizon without failure or under one, the first to be full
        first.
        """
        in_time = [one for one in self.links if is_full_by(one.full_under_failure, self.horizon)]
        return sorted(
            in_time, key=lambda one: (month_order(one.full_under_failure), -one.failed_utilisation)
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Simulation:
    """The loads of the routing.

    Attributes:
        topology: the network, with the metrics in force.
        matrices: without failure, in time order.
        failures: the worst first.
        mean_load: (E,) Gbit/s without failure.
        largest_load: (E,) Gbit/s without failure.
        failure_loads: load (E,) Gbit/s of its worst matrix under each of the worst failures, by
            name, the worst first; NaN on links that are down.
        plain_load: (E,) Gbit/s, largest without failure if all demands took the IGP's shortest
            paths; None if they do.
        outlook: how traffic grows, and when each link is full; None unless asked for.
        without_path: demands of the worst matrix that have no path, or of which policies lose a
            part.
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
        return max(self.matrices, key=lambda one: one.utilisation)

    def to_json(self) -> dict[str, Any]:
        """All figures; numbers that JSON cannot hold become null."""
        figures = {
            "matrices": self.matrices,
            "failures": self.failures,
            "links": [
                {"link": name, "mean_load": mean, "largest_load": most, "capacity": capacity}
                for name, mean, most, capacity in zip(
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
    """Compute all loads.

    Args:
        dag: shortest paths with the metrics in force.
        traffic: the matrices.
        options: what is installed, and which failures and matrices.
        notify: called with the progress.
        keeps_all: whether the loads of links are kept for all failures, where they are not too
            many, and not just for the worst ones.

    Raises:
        InputError: a fault in what the user gave.
    """
    topology = dag.topology
    growth = (
        growth_of(options, traffic, notify) if options.growth_per_year else None
    )  # of the traffic as it was
    traffic = traffic.scaled(options.growth)
    rows = chosen_rows(options.index, options.limit, traffic)
    routing = installed_routing(options, dag, traffic.pairs)
    groups = None if options.groups is None else load_groups(options.groups, topology)
    failures = list(failures_of(options.failures, topology, groups or {}))
    block = max(1, _BLOCK_NUMBERS // (topology.num_nodes * topology.num_links))
    is_for_all = keeps_all and len(failures) * topology.num_links <= _MAX_KEPT_NUMBERS
    kept = len(failures) if is_for_all else options.worst
    result = simulated(
        routing, traffic, rows, failures, kept, repairing=options.repair, block=block, notify=notify
    )
    demand = traffic.read([result.worst_matrix.index])[0]
    lost = WithoutPath.of(topology, traffic.pairs, demand, np.isfinite(routing.latency()))
    result = dataclasses.replace(result, without_path=lost)
    if growth is None:
        return result
    load = largest_loads(routing, traffic, rows, failures, block=block, notify=notify)
    today, names = (
        traffic.timestamps[rows[-1]],
        [NO_FAILURE.name, *(failure.name for failure in failures)],
    )
    links = link_forecasts(
        topology, topology.capacity, load, names, options.max_utilisation, growth, today
    )
    horizon = month_after(today, options.horizon_years) if options.horizon else ""
    return dataclasses.replace(
        result, outlook=Outlook(growth, options.max_utilisation, horizon, links)
    )


def installed_routing(config: SimulateOptions, dag: EcmpDag, pairs: IntArray) -> InstalledRouting:
    """The routing that the settings say.

    Raises:
        InputError: a fault in a file, or in the definition of an algorithm.
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
    """The loads of some matrices.

    Args:
        routing: routing of the demands.
        traffic: the matrices.
        rows: their numbers.
        failures: what fails.
        worst: number of failures whose loads are kept.
        repairing: also compute loads under fast reroute.
        block: matrices in memory at a time.
        notify: called with the progress.
    """
    topology, names = routing.dag.topology, routing.dag.topology.link_names()
    sets, index_of = [list(failure.links) for failure in failures], topology.node_index()
    matrices: list[MatrixLoad] = []
    total, largest = np.zeros(topology.num_links), np.zeros(topology.num_links)
    plain = None if routing.is_igp_alone else np.zeros(topology.num_links)
    found: dict[int, FailureLoad] = {}
    for begin in range(0, len(rows), block):
        part = rows[begin : begin + block]
        demand = traffic.read(part)
        loads = routing.loads(demand)
        total += loads.load.sum(0)
        largest = np.maximum(largest, loads.load.max(0))
        if plain is not None:
            plain = np.maximum(plain, igp_loads(routing, traffic.pairs, demand).max(0))
        for m, index in enumerate(part.tolist()):
            matrices.append(_matrix_load(index, traffic, demand[m], loads, m, names, routing))
        if failures:
            after = loads_under(routing, traffic.pairs, demand, failures)
            repair = (
                loads_under(routing, traffic.pairs, demand, failures, repairing=True)
                if repairing
                else None
            )
            for s, failure in enumerate(failures):
                own = np.zeros(len(part))
                if failure.kind == "node":
                    own = demand[:, (traffic.pairs == index_of[failure.name]).any(1)].sum(1)
                others = after.lost[s] - own
                others = np.where(others > _ROUNDING * own, others, 0.0)
                m = int(np.lexsort((others, after.utilisation[s]))[-1])
                one = FailureLoad(
                    failure.name,
                    failure.kind,
                    int(part[m]),
                    str(traffic.timestamps[part[m]]),
                    float(after.utilisation[s, m]),
                    _name(names, int(after.busiest[s, m])),
                    float(after.overload[s].max()),
                    float(others.max()),
                    float(own.max()),
                    math.nan if repair is None else float(repair.utilisation[s].max()),
                    math.nan if repair is None else float(repair.at_risk[s].max()),
                )
                found[s] = _joined(found[s], one) if s in found else one
        if len(rows) > block:
            notify(f"{min(begin + block, len(rows)):,} of {len(rows):,} matrices")
    order = sorted(found, key=lambda s: severity(found[s]), reverse=True)
    kept = order[:worst]
    load_of: dict[int, FloatArray] = {}
    for index in {found[s].index for s in kept}:
        of_matrix = [s for s in kept if found[s].index == index]
        of_failures = [failures[s] for s in of_matrix]
        after_each = loads_under(
            routing, traffic.pairs, traffic.read([index]), of_failures, loads=True
        ).load[:, 0]
        for s, load in zip(of_matrix, after_each, strict=True):
            load[sets[s]] = np.nan
            load_of[s] = load
    mean, failure_loads = total / max(1, len(rows)), {failures[s].name: load_of[s] for s in kept}
    return Simulation(
        topology, matrices, [found[s] for s in order], mean, largest, failure_loads, plain
    )


def largest_loads(
    routing: InstalledRouting,
    traffic: TrafficMatrices,
    rows: Int64Array,
    failures: Sequence[Failure],
    *,
    block: int = 16,
    notify: Callable[[str], None] = lambda _: None,
) -> FloatArray:
    """(1 + F, E) Gbit/s: the largest load of each link of all matrices, without failure and under
    each of F failures.

    Arguments are those of :func:`simulated`.
    """
    num_links = routing.dag.topology.num_links
    largest = np.zeros((1 + len(failures), num_links))
    for begin in range(0, len(rows), block):
        part = rows[begin : begin + block]
        demand = traffic.read(part)
        largest[0] = np.maximum(largest[0], routing.loads(demand).load.max(0))
        at_once = max(1, _BLOCK_NUMBERS // (len(part) * num_links))
        for first in range(0, len(failures), at_once):
            some = failures[first : first + at_once]
            after = loads_under(routing, traffic.pairs, demand, some, loads=True).load.max(1)
            own = slice(1 + first, 1 + first + len(after))
            largest[own] = np.maximum(largest[own], after)
        if len(rows) > block:
            notify(f"largest loads: {min(begin + block, len(rows)):,} of {len(rows):,} matrices")
    return largest


def utilisations(
    routing: InstalledRouting,
    traffic: TrafficMatrices,
    failures: Sequence[Failure],
    block: int = 16,
) -> FloatArray:
    """(M, 1 + F) largest utilisation of a link, of each matrix without failure and under each of F
    failures.
    """
    every = [NO_FAILURE, *failures]
    parts = [
        loads_under(routing, traffic.pairs, demand, every) for demand in traffic.chunks(size=block)
    ]
    return np.concatenate([part.utilisation.T for part in parts])


def worst_rows(utilisation: FloatArray, count: int) -> Int64Array:
    """Numbers of matrices: that of the largest utilisation under each failure, those of the fullest
    failures first.

    Args:
        utilisation: (M, F) of each matrix under each failure.
        count: number of matrices, at most; 0 for all.
    """
    if not count:
        return np.arange(len(utilisation))
    order = np.argsort(-utilisation.max(0), kind="stable")
    return np.array(list(dict.fromkeys(utilisation.argmax(0)[order].tolist()))[:count])


_FIGURES = (
    "overload",
    "lost",
    "own",
    "repair_utilisation",
    "at_risk",
)  # beside the utilisation and where it is


def _joined(first: FailureLoad, second: FailureLoad) -> FailureLoad:
    """A failure under the matrices of both."""
    most = {name: max(getattr(first, name), getattr(second, name)) for name in _FIGURES}
    return dataclasses.replace(max(first, second, key=severity), **most)


def severity(one: FailureLoad) -> tuple[float, float]:
    """Sort key of failures, larger is worse: the utilisation to nine digits, then lost traffic."""
    return float(f"{one.utilisation:.9g}"), one.lost


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
    capacity, load = routing.dag.topology.capacity, loads.load[m]
    utilisation = np.where(capacity > 0, load / np.where(capacity > 0, capacity, 1), 0)
    busiest = int(utilisation.argmax())
    delay = routing.latency()
    carried = np.isfinite(delay) & (demand > 0)
    volume, delay = demand[carried], delay[carried]
    order = np.argsort(delay)
    reached = np.cumsum(volume[order])
    at = int(np.searchsorted(reached, _TAIL * reached[-1] - 1e-12)) if len(order) else 0
    return MatrixLoad(
        index,
        str(traffic.timestamps[index]),
        float(demand.sum()),
        float(utilisation[busiest]),
        names[busiest],
        float(np.maximum(0, load - capacity).sum()),
        float(loads.lost[m]),
        float((volume * delay).sum() / volume.sum()) if len(order) else math.nan,
        float(delay[order[min(at, len(order) - 1)]]) if len(order) else math.nan,
        float(delay.max()) if len(order) else math.nan,
    )


def chosen_rows(index: int, limit: int, traffic: TrafficMatrices) -> Int64Array:
    """Numbers of the matrices: one, or for -1 all, at most ``limit`` unless that is 0.

    Raises:
        InputError: a number that the traffic does not have.
    """
    count = traffic.num_matrices
    if index >= count:
        raise InputError("--index", "", f"a matrix from 0 to {count - 1}, or -1 for all", index)
    return np.array([index]) if index >= 0 else np.arange(min(count, limit or count))


def measurements_of(policies: Path | None, dag: EcmpDag, pairs: IntArray) -> sp.csr_array:
    """(E + 2 N, D) F under the IGP's shortest paths and the segment lists of a file, if there are
    any.
    """
    return igp_routing(dag, pairs, policies).measurements()


def synthetic_counters(
    dag: EcmpDag, measurements: sp.csr_array, traffic: TrafficMatrices, error: float, seed: int
) -> Counters:
    """The counters that would be read: loads of the matrices, each counter off by so much,
    independently.

    Args:
        dag: shortest paths.
        measurements: (E + 2 N, D) F.
        traffic: the matrices.
        error: standard deviation, as a share of the counter.
        seed: seed of the draws.
    """
    links, nodes, rng = dag.topology.num_links, dag.topology.num_nodes, np.random.default_rng(seed)
    values = np.concatenate([(measurements @ chunk.T).T for chunk in traffic.chunks()])
    doubled = np.concatenate([values[:, :links], values], 1)
    doubled = np.maximum(doubled * (1 + error * rng.normal(size=doubled.shape)), 0.0)
    sent, received, ingress, egress = np.split(doubled, np.cumsum([links, links, nodes]), axis=1)
    return Counters(traffic.timestamps, float(traffic.interval_s), sent, received, ingress, egress)
