"""IGP metrics by simulated annealing, with exact incremental shortest paths and ECMP loads.

Score of metrics: (1 / p) log sum u^p over the utilisations u of all links, in all matrices and all scenarios (none or
some links failed), p = 10; the metrics with the least largest utilisation are kept.  A move changes one or a few links.
Only destinations whose shortest paths may change are computed anew: those where a link that rises is a next hop, or one
that falls is as short as the present way; the test is exact.

Moves (after Fortz and Thorup, "Internet traffic engineering by optimizing OSPF weights", INFOCOM 2000, and measured
here): make several next hops of a node equally good towards a destination of traffic on a busy link; raise a busy link
to tie with an alternative or pass it, or lower the alternative; small steps; a random value.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from teal.errors import InputError
from teal.network import Topology
from teal.network.ecmp import EcmpDag, check_metric, igp_links, new_dags
from teal.pathops.igp_failures import IgpFailures
from teal.runtime.arrays import FloatArray
from teal.runtime.memory import require
from teal.solvers.metric_moves import anneal, load_all, score_of

_HOT, _COLD = 0.01, 0.0005  # temperatures at the start and at the end, in units of the score
_MOVES_AT_ONCE = 500  # between looks at the clock
_SIGNALS_EVERY_S = 0.2  # between looks for Ctrl-C
_EQUAL = 1e-9  # relative difference of utilisations that are equal but for rounding
_COPIES = 3  # of the loads of all destinations that a walk has in memory, approximately


@dataclasses.dataclass(frozen=True, eq=False)
class MetricSearch:
    """What is optimised.

    Attributes:
        topology: the network.
        volume: (M, N, N) Gbit/s, destination first.
        failures: numbers of the links of each failure that counts too; () for none.
        most: largest metric.
        start: (E,) metrics in force.
        at_most: links whose metrics may differ from ``start``; E for all.
    """

    topology: Topology
    volume: FloatArray
    failures: Sequence[Sequence[int]]
    most: int
    start: FloatArray
    at_most: int


@dataclasses.dataclass(frozen=True, eq=False)
class MetricResult:
    """The best metrics that were found.

    Attributes:
        metric: (E,).
        utilisation: largest of a link over all matrices and failures.
        before: that of the metrics in force.
        moves: tried in total.
    """

    metric: FloatArray
    utilisation: float
    before: float
    moves: int


class _Walk:
    """One annealing run."""

    def __init__(self, search: MetricSearch, first: FloatArray, seed: int) -> None:
        topology = search.topology
        self.search, self.moves = search, 0
        self.rng = np.random.default_rng(seed)
        scenarios, nodes, links = len(search.failures) + 1, topology.num_nodes, topology.num_links
        self.links = igp_links(topology, np.ones(links))
        dead = topology.capacity <= 0
        self.is_failed = np.tile(dead, (scenarios, 1))
        for s, failed in enumerate(search.failures):
            self.is_failed[s + 1, list(failed)] = True
        self.metric = np.where(self.is_failed, np.inf, np.where(dead, search.start, first))
        self.inverse = np.where(self.is_failed, 0, 1 / np.where(dead, 1, topology.capacity))
        self.distance = np.empty((scenarios, nodes, nodes))
        self.by_destination = np.empty((scenarios, len(search.volume), nodes, links))
        self.load = np.empty((scenarios, len(search.volume), links))
        self.has_demand = search.volume.sum((0, 2)) > 0
        size = 2 * links + 2
        load_all(
            self.links, self.metric, self.distance, self.by_destination, self.load, search.volume,
            new_dags(1, nodes, links), np.empty(size), np.empty(size, dtype=np.int32), np.empty(nodes),
        )  # fmt: skip
        self.best_metric = self.metric[0].copy()
        self.best = float(score_of(self.load, self.inverse)[1])

    def run(self, seconds: float, stop: threading.Event) -> None:
        """Anneal for so many seconds, or until told to stop."""
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds and not stop.is_set():
            done = min(1.0, (time.perf_counter() - begin) / max(seconds, 1e-9))
            temperature = _HOT * (_COLD / _HOT) ** done
            self.best = float(anneal(
                self.links, self.metric, self.search.start, self.distance, self.by_destination, self.load,
                self.search.volume, self.inverse, self.has_demand, self.is_failed, float(self.search.most),
                self.search.at_most, temperature, _MOVES_AT_ONCE, self.rng, self.best_metric, self.best,
            ))  # fmt: skip
            self.moves += _MOVES_AT_ONCE


def improve_metrics(
    search: MetricSearch,
    seconds: float,
    starts: Sequence[FloatArray] = (),
    seed: int = 0,
    threads: int = 2,
    best_so_far: FloatArray | None = None,
) -> MetricResult:
    """Search for metrics with a small largest utilisation.

    Args:
        search: what is optimised.
        seconds: length of the search.
        starts: metrics (E,) to start from beside those in force and random ones; not used where changes are limited.
        seed: of all draws.
        threads: walks at a time.
        best_so_far: metrics (E,) of an earlier search, than which the result is not worse.

    Ctrl-C ends the search with the best so far.

    Raises:
        InputError: metrics in force above ``most``, an earlier result with too many changes, or a state that does not
            fit into memory.
    """
    topology = search.topology
    check_metric(topology, search.start)
    if search.start[topology.capacity > 0].max() > search.most:
        raise InputError("metrics", "most", f"at least {search.start.max():g}, the largest in force", search.most)
    scenarios = len(search.failures) + 1
    needed = 8 * scenarios * len(search.volume) * topology.num_nodes * topology.num_links * _COPIES * threads
    require("metrics", needed, "fewer matrices or failures")
    firsts = [search.start]
    if best_so_far is not None:
        changed = int((best_so_far != search.start).sum())
        if changed > search.at_most:
            raise InputError("metrics", "best_so_far", f"at most {search.at_most} changes", changed)
        firsts.append(best_so_far)
    if search.at_most >= topology.num_links:
        rng = np.random.default_rng(seed)
        firsts += [np.clip(np.round(one), 1, search.most) for one in starts]
        firsts.append(rng.integers(5, 16, topology.num_links).clip(1, search.most).astype(np.float64))
    walks = [_Walk(search, first, seed + 1_000_003 * number) for number, first in enumerate(firsts)]
    before = walks[0].best
    rounds, stop = math.ceil(len(walks) / threads), threading.Event()
    for group in range(rounds):
        part = walks[group * threads : (group + 1) * threads]
        with ThreadPoolExecutor(len(part)) as pool:
            running = [pool.submit(walk.run, seconds / rounds, stop) for walk in part]
            try:
                while wait(running, _SIGNALS_EVERY_S).not_done:
                    pass  # a wait without an end would not see a signal that another thread received
            except KeyboardInterrupt:  # the walks end within a second, with the best so far
                stop.set()
        for one in running:
            one.result()  # raises what a walk raised
        if stop.is_set():
            break
    best = min(walks, key=lambda walk: walk.best)
    metric = np.where(topology.capacity > 0, best.best_metric, search.start)
    return MetricResult(metric, best.best, before, sum(walk.moves for walk in walks))


def largest_utilisation(search: MetricSearch, metric: FloatArray) -> float:
    """The largest utilisation over all matrices and failures under these metrics (E,)."""
    loads = IgpFailures(EcmpDag.of(search.topology, metric), search.volume)
    results = loads.under([[], *(list(one) for one in search.failures)])
    return float(results.utilisation.max())


def change_order(
    search: MetricSearch, metric: FloatArray, report: Callable[[int], None] = lambda _: None
) -> tuple[list[int], list[float]]:
    """Links in an order in which their metrics can change one by one, and the largest utilisation after each change.

    Greedy: the next change is the one after which the largest utilisation is least; changes that can no longer be made
    without exceeding both ends come last, so that the second result says how far the order exceeds them.

    Args:
        search: whose ``start`` are the metrics in force.
        metric: (E,) to come to.
        report: called with the number of changes that are placed.
    """
    left = [int(e) for e in np.flatnonzero(metric != search.start)]
    now, order, after = search.start.copy(), list[int](), list[float]()
    while left:
        scores = [_with_change(search, now, e, metric[e]) for e in left]
        chosen = int(np.argmin(scores))
        after.append(scores[chosen])
        now[left[chosen]] = metric[left[chosen]]
        order.append(left.pop(chosen))
        report(len(order))
    return order, after


def useful_changes(search: MetricSearch, metric: FloatArray) -> tuple[list[int], list[float]]:
    """The order of changes up to the least utilisation on the way, without changes that gain nothing.

    Arguments and results are those of :func:`change_order`.
    """
    before = largest_utilisation(search, search.start)
    while True:
        order, after = change_order(search, metric)
        reached = [before, *after]
        least = min(reached) * (1 + _EQUAL)
        length = next(n for n, value in enumerate(reached) if value <= least)
        now, useful = search.start.copy(), order[:length]
        now[useful] = metric[useful]
        for link in order[:length]:
            if _with_change(search, now, link, search.start[link]) <= least:
                now[link] = search.start[link]
                useful.remove(link)
        if len(useful) == length:
            return useful, after[:length]
        metric = now


def _with_change(search: MetricSearch, metric: FloatArray, link: int, value: float) -> float:
    """The largest utilisation under metrics (E,) of which one is another."""
    trial = metric.copy()
    trial[link] = value
    return largest_utilisation(search, trial)
