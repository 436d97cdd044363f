"""IGP metrics by simulated annealing, with exact incremental shortest paths and ECMP loads.

Score of metrics: (1 / p) log sum u^p over the utilisations u of all links, in all matrices and all
scenarios (none or some links failed), p = 10; the metrics with the least largest utilisation are
kept.  A move changes one or a few links. Only destinations whose shortest paths may change are
computed anew: those where a link that rises is a next hop, or one that falls is as short as the
present way; the test is exact.

Moves (after Fortz and Thorup, "Internet traffic engineering by optimizing OSPF weights", INFOCOM
2000, and measured here): make several next hops of a node equally good towards a destination of
traffic on a busy link; raise a busy link to tie with an alternative or pass it, or lower the
alternative; small steps; a random value.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from teal.errors import InputError
from teal.network import Topology
from teal.network.ecmp import EcmpDag, IgpLinks, check_metric, grow_dag, igp_links, new_dags
from teal.pathops.segment_passes import load_inwards
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline
from teal.runtime.memory import require
from teal.runtime.parallel import as_int64, inner_kernel, kernel
from teal_ip.routing.igp_failures import IgpFailures

_POWER = 10.0  # p of the score; with 24 the search sees the busiest links alone and is trapped
_BUSY_POWER = 8.0  # a busy link is drawn with probability in proportion to u^8
_MAX_CHANGED = 8  # links of a move


@kernel
def score_of(load: FloatArray, inverse: FloatArray) -> tuple[float, float]:
    """The score, and the largest utilisation, of loads (S, M, E) with 1 / capacity (S, E)."""
    largest = 0.0
    for s in range(load.shape[0]):
        for m in range(load.shape[1]):
            for e in range(load.shape[2]):
                largest = max(largest, load[s, m, e] * inverse[s, e])
    if largest <= 0.0:
        return -np.inf, 0.0
    total = 0.0
    for s in range(load.shape[0]):
        for m in range(load.shape[1]):
            for e in range(load.shape[2]):
                u = load[s, m, e] * inverse[s, e] / largest
                u2 = u * u
                u4 = u2 * u2
                total += u4 * u4 * u2
    return math.log(largest) + math.log(total) / _POWER, largest


@kernel
def load_all(links, metric, distance, by_destination, load, volume, after, keys, nodes, passing):  # type: ignore[no-untyped-def]
    """Fill the state of all scenarios."""
    load[:] = 0.0
    by_destination[:] = 0.0
    for s in range(len(load)):
        links.metric[:] = metric[s]
        for t in range(volume.shape[1]):
            grow_dag(t, as_int64(0), links, after, keys, nodes)
            distance[s, t] = after.distance[0]
            for m in range(len(volume)):
                passing[:] = volume[m, t]
                load_inwards(0, links.head, after, passing, by_destination[s, m, t])
                for e in range(load.shape[2]):
                    load[s, m, e] += by_destination[s, m, t, e]


@inner_kernel
def _propose(links, metric, distance, load, inverse, has_demand, most, rng, changed, values):  # type: ignore[no-untyped-def]
    """A move for the scenario without failure: fills ``changed`` and ``values``; the number of
    links.
    """
    num_links = len(metric)
    kind = rng.random()
    m = rng.integers(0, load.shape[0])
    if kind < 0.25:
        e = rng.integers(0, num_links)
        changed[0] = e
        if kind < 0.12:
            values[0] = min(most, max(1.0, metric[e] + rng.integers(-3, 4)))
        else:
            values[0] = 1.0 + rng.integers(0, int(most))
        return 1
    largest, total = 0.0, 0.0
    for e in range(num_links):
        largest = max(largest, load[m, e] * inverse[e])
    if largest <= 0.0:
        return 0
    for e in range(num_links):
        total += (load[m, e] * inverse[e] / largest) ** _BUSY_POWER
    draw, busy = rng.random() * total, 0
    for e in range(num_links):
        draw -= (load[m, e] * inverse[e] / largest) ** _BUSY_POWER
        if draw <= 0.0:
            busy = e
            break
    # a destination of traffic on the busy link, the first from a random place
    nodes = distance.shape[0]
    begin, t, u = rng.integers(0, nodes), -1, links.tail[busy]
    for i in range(nodes):
        candidate = (begin + i) % nodes
        to_end = distance[candidate, links.head[busy]]
        if (
            has_demand[candidate]
            and to_end < np.inf
            and distance[candidate, u] == metric[busy] + to_end
        ):
            t = candidate
            break
    if t < 0:
        return 0
    if kind < 0.55:
        hops = rng.integers(0, 3)
        for _ in range(hops):  # upstream, to a node that sends over this one
            found = -1
            first = links.in_ptr[u]
            count = links.in_ptr[u + 1] - first
            offset = rng.integers(0, max(1, count))
            for j in range(count):
                e = links.in_link[first + (offset + j) % count]
                if distance[t, links.tail[e]] == metric[e] + distance[t, u]:
                    found = links.tail[e]
                    break
            if found < 0:
                break
            u = found
        size, level = 0, distance[t, u]
        if rng.random() < 0.5:
            level += 1.0
        for j in range(links.out_ptr[u], links.out_ptr[u + 1]):
            e = links.out_link[j]
            wanted = level - distance[t, links.head[e]]
            fits = wanted >= 1.0 and wanted <= most and size < _MAX_CHANGED and metric[e] != wanted
            if fits and rng.random() < 0.7:
                changed[size], values[size] = e, wanted
                size += 1
        return size
    best, other = np.inf, -1
    for j in range(links.out_ptr[u], links.out_ptr[u + 1]):
        e = links.out_link[j]
        length = metric[e] + distance[t, links.head[e]]
        if e != busy and length < best:
            best, other = length, e
    if other < 0:
        return 0
    pass_it = 1.0 if rng.random() < 0.5 else 0.0
    if rng.random() < 0.6:
        value = best - distance[t, links.head[busy]] + pass_it
        changed[0] = busy
    else:
        value = distance[t, u] - distance[t, links.head[other]] - pass_it
        changed[0] = other
    values[0] = min(most, max(1.0, value))
    return 1


@kernel
def anneal(  # type: ignore[no-untyped-def]
    links: IgpLinks,
    metric,
    start,
    distance,
    by_destination,
    load,
    volume,
    inverse,
    has_demand,
    is_failed,
    most,
    at_most,
    temperature,
    moves,
    rng,
    best_metric,
    best_value,
):
    """Try so many moves; the least largest utilisation so far.  Changes the state in place."""
    scenarios, matrices, num_links = load.shape
    nodes = distance.shape[1]
    after = new_dags(1, nodes, num_links)
    keys, heap = np.empty(2 * num_links + 2), np.empty(2 * num_links + 2, dtype=np.int32)
    passing = np.empty(nodes)
    changed, values, old = (
        np.empty(_MAX_CHANGED, dtype=np.int64),
        np.empty(_MAX_CHANGED),
        np.empty(_MAX_CHANGED),
    )
    affected = np.empty((scenarios * nodes, 2), dtype=np.int64)
    new_distance = np.empty((scenarios * nodes, nodes))
    new_load = np.empty((scenarios * nodes, matrices, num_links))
    trial = load.copy()
    now, _ = score_of(load, inverse)
    plain = metric[0]
    for _ in range(moves):
        size = _propose(
            links, plain, distance[0], load[0], inverse[0], has_demand, most, rng, changed, values
        )
        different = 0
        for e in range(num_links):
            value = plain[e]
            for i in range(size):
                if changed[i] == e:
                    value = values[i]
            different += value != start[e]
        if size == 0 or different > at_most:
            continue
        for i in range(size):
            old[i] = plain[changed[i]]
        count = 0
        trial[:] = load
        for s in range(scenarios):
            is_ready = False
            for t in range(nodes):
                if not has_demand[t]:
                    continue
                is_hit = False
                for i in range(size):
                    e = changed[i]
                    if is_failed[s, e]:
                        continue
                    to_start, to_end = distance[s, t, links.tail[e]], distance[s, t, links.head[e]]
                    if to_end == np.inf:
                        continue
                    if values[i] > old[i]:
                        is_hit |= to_start == old[i] + to_end
                    elif values[i] < old[i]:
                        is_hit |= to_end + values[i] <= to_start
                if not is_hit:
                    continue
                if not is_ready:
                    links.metric[:] = metric[s]
                    for i in range(size):
                        if not is_failed[s, changed[i]]:
                            links.metric[changed[i]] = values[i]
                    is_ready = True
                grow_dag(t, as_int64(0), links, after, keys, heap)
                affected[count, 0], affected[count, 1] = s, t
                new_distance[count] = after.distance[0]
                new_load[count] = 0.0
                for m in range(matrices):
                    passing[:] = volume[m, t]
                    load_inwards(0, links.head, after, passing, new_load[count, m])
                    for e in range(num_links):
                        trial[s, m, e] += new_load[count, m, e] - by_destination[s, m, t, e]
                count += 1
        score, largest = score_of(trial, inverse)
        if score <= now or rng.random() < math.exp((now - score) / temperature):
            now = score
            load[:] = trial
            for i in range(size):
                for s in range(scenarios):
                    if not is_failed[s, changed[i]]:
                        metric[s, changed[i]] = values[i]
            for i in range(count):
                s, t = affected[i]
                distance[s, t] = new_distance[i]
                for m in range(matrices):
                    by_destination[s, m, t] = new_load[i, m]
            if largest < best_value * (1 - 1e-12):
                best_value = largest
                for e in range(num_links):
                    best_metric[e] = plain[e]
    return best_value


_HOT, _COLD = 0.01, 0.0005  # temperatures at the start and at the end, in units of the score
_FIRST_MOVES, _MOST_MOVES = 4, 500  # between looks at the clock: at first, and at most
_LOOK_EVERY_S = 0.2  # between them, about
_SIGNALS_EVERY_S = 0.2  # between looks for Ctrl-C
_EQUAL = 1e-9  # relative difference of utilisations that are equal but for rounding
_COPIES = 3  # of the loads of all destinations that a walk has in memory, approximately


@dataclasses.dataclass(frozen=True, eq=False)
class MetricSearch:
    """The program of metrics that is searched.

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
        before: value of the metrics in force.
        moves: tried in total.
        was_interrupted: whether Ctrl-C ended the search.
    """

    metric: FloatArray
    utilisation: float
    before: float
    moves: int
    was_interrupted: bool = False


class _Walk:
    """One annealing run."""

    def __init__(self, search: MetricSearch, first: FloatArray, seed: int) -> None:
        topology = search.topology
        self.search = search
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
        self.best_metric, self.best = first.copy(), math.inf

    def run(self, whole: Deadline, share: float) -> MetricResult:
        """Anneal for a share of the time until the deadline that is left once the state is
        filled.
        """
        self._load_all(whole)
        end, moves, count = whole.share(share), 0, _FIRST_MOVES
        begin = now = time.perf_counter()
        length = max(end.left, 1e-9)
        while not end.is_over:
            temperature = _HOT * (_COLD / _HOT) ** min(1.0, (now - begin) / length)
            self.best = float(
                anneal(
                    self.links,
                    self.metric,
                    self.search.start,
                    self.distance,
                    self.by_destination,
                    self.load,
                    self.search.volume,
                    self.inverse,
                    self.has_demand,
                    self.is_failed,
                    float(self.search.most),
                    self.search.at_most,
                    temperature,
                    count,
                    self.rng,
                    self.best_metric,
                    self.best,
                )
            )
            moves += count
            before, now = now, time.perf_counter()
            count = max(
                1, min(_MOST_MOVES, int(count * _LOOK_EVERY_S / max(now - before, 1e-9)), 4 * count)
            )
        return MetricResult(self.best_metric, self.best, math.nan, moves)

    def _load_all(self, end: Deadline) -> None:
        """Fill the state, one scenario after the other, and measure it; nothing is measured after
        the deadline.
        """
        nodes, links = self.distance.shape[1], self.load.shape[2]
        after, keys = new_dags(1, nodes, links), np.empty(2 * links + 2)
        heap, passing = np.empty(2 * links + 2, dtype=np.int32), np.empty(nodes)
        for s in range(len(self.load)):
            if end.is_over:
                return
            part = slice(s, s + 1)
            load_all(
                self.links,
                self.metric[part],
                self.distance[part],
                self.by_destination[part],
                self.load[part],
                self.search.volume,
                after,
                keys,
                heap,
                passing,
            )
        self.best = float(score_of(self.load, self.inverse)[1])


def _walk(
    search: MetricSearch, first: FloatArray, seed: int, whole: Deadline, share: float
) -> MetricResult:
    """One annealing run, whose memory is given back at its end."""
    return _Walk(search, first, seed).run(whole, share)


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
        starts: metrics (E,) to start from beside those in force and random ones; not used where
            changes are limited.
        seed: seed of all draws.
        threads: walks at a time.
        best_so_far: metrics (E,) of an earlier search, than which the result is not worse.

    Ctrl-C ends the search with the best so far.

    Raises:
        InputError: metrics in force above ``most``, an earlier result with too many changes, or a
            state that does not fit into memory.
    """
    topology = search.topology
    check_metric(topology, search.start)
    if search.start[topology.capacity > 0].max() > search.most:
        raise InputError(
            "metrics", "most", f"at least {search.start.max():g}, the largest in force", search.most
        )
    scenarios = len(search.failures) + 1
    needed = (
        8
        * scenarios
        * len(search.volume)
        * topology.num_nodes
        * topology.num_links
        * _COPIES
        * threads
    )
    require("metrics", needed, "fewer matrices or failures")
    before = largest_utilisation(search, search.start)
    firsts = [search.start]
    found = [MetricResult(search.start, before, before, 0)]
    if best_so_far is not None:
        changed = int((best_so_far != search.start).sum())
        if changed > search.at_most:
            raise InputError("metrics", "best_so_far", f"at most {search.at_most} changes", changed)
        firsts.append(best_so_far)
        found.append(MetricResult(best_so_far, largest_utilisation(search, best_so_far), before, 0))
    if search.at_most >= topology.num_links:
        rng = np.random.default_rng(seed)
        firsts += [np.clip(np.round(one), 1, search.most) for one in starts]
        firsts.append(
            rng.integers(5, 16, topology.num_links).clip(1, search.most).astype(np.float64)
        )
    end = Deadline.after(seconds)
    was_interrupted = False
    for group in range(0, len(firsts), threads):
        numbers = range(group, min(group + threads, len(firsts)))
        share = len(numbers) / (len(firsts) - group)
        with ThreadPoolExecutor(threads) as pool:
            running = []
            try:
                for n in numbers:
                    seed_of_walk = seed + 1_000_003 * n
                    running.append(pool.submit(_walk, search, firsts[n], seed_of_walk, end, share))
                while wait(running, _SIGNALS_EVERY_S).not_done:
                    # a wait without an end would not see a signal that another thread received
                    pass
            except KeyboardInterrupt:  # the walks end within a second, with the best so far
                end.expire()
                was_interrupted = True
        found += [one.result() for one in running]  # raises what a walk raised
        if end.is_over:
            break
    best = min(found, key=lambda one: one.utilisation)
    metric = np.where(topology.capacity > 0, best.metric, search.start)
    return MetricResult(
        metric, best.utilisation, before, sum(one.moves for one in found), was_interrupted
    )


def largest_utilisation(search: MetricSearch, metric: FloatArray) -> float:
    """The largest utilisation over all matrices and failures under these metrics (E,)."""
    loads = IgpFailures(EcmpDag.of(search.topology, metric), search.volume)
    results = loads.under([[], *(list(one) for one in search.failures)])
    return float(results.utilisation.max())


def change_order(
    search: MetricSearch,
    metric: FloatArray,
    report: Callable[[int], None] = lambda _: None,
    end: Deadline | None = None,
) -> tuple[list[int], list[float]]:
    """Links in an order in which their metrics can change one by one, and the largest utilisation
    after each change.

    Greedy: the next change is the one after which the largest utilisation is least; changes that
    can no longer be made without exceeding both ends come last, so that the second result says how
    far the order exceeds them.

    Args:
        search: search whose ``start`` are the metrics in force.
        metric: (E,) to come to.
        report: called with the number of changes that are placed.
        end: after which the changes that are left follow in the order of their numbers, each with
            NaN but the last.
    """
    end = end or Deadline()
    left = [int(e) for e in np.flatnonzero(metric != search.start)]
    now, order, after = search.start.copy(), list[int](), list[float]()
    while left:
        scores = []
        for e in left:
            if end.is_over:
                measured = [math.nan] * (len(left) - 1)
                return [*order, *left], [*after, *measured, largest_utilisation(search, metric)]
            scores.append(_with_change(search, now, e, metric[e]))
        chosen = int(np.argmin(scores))
        after.append(scores[chosen])
        now[left[chosen]] = metric[left[chosen]]
        order.append(left.pop(chosen))
        report(len(order))
    return order, after


def useful_changes(
    search: MetricSearch, metric: FloatArray, end: Deadline | None = None
) -> tuple[list[int], list[float]]:
    """The order of changes up to the least utilisation on the way, without changes that gain
    nothing.

    Arguments and results are those of :func:`change_order`.
    """
    end = end or Deadline()
    before = largest_utilisation(search, search.start)
    while True:
        order, after = change_order(search, metric, end=end)
        reached = [before, *after]
        least = float(np.nanmin(reached)) * (1 + _EQUAL)
        length = next(n for n, value in enumerate(reached) if value <= least)
        now, useful = search.start.copy(), order[:length]
        now[useful] = metric[useful]
        for link in order[:length]:
            if end.is_over:
                break
            if _with_change(search, now, link, search.start[link]) <= least:
                now[link] = search.start[link]
                useful.remove(link)
        if len(useful) == length or end.is_over:
            return order[:length], after[:length]
        metric = now


def _with_change(search: MetricSearch, metric: FloatArray, link: int, value: float) -> float:
    """The largest utilisation under metrics (E,) of which one is another."""
    trial = metric.copy()
    trial[link] = value
    return largest_utilisation(search, trial)
