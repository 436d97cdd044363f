"""IGP metric optimisation by simulated annealing, with incremental shortest paths and ECMP loads.

Score of metrics: (1 / p) log sum u^p over the utilisations u of all links, in all matrices and all
scenarios (no or some failed links), p = 10; the incumbent has the smallest largest utilisation.  A
move changes one or a few links.  Only destinations whose shortest paths may change are recomputed:
those where a rising link is a next hop, or a falling one is as short as the current path; the test
is exact.

Moves (after Fortz and Thorup, "Internet traffic engineering by optimizing OSPF weights", INFOCOM
2000, and measured here): make several next hops of a node equally good towards a destination of
traffic on a busy link; raise a busy link to tie with an alternative or exceed it, or lower the
alternative; small steps; a random value.  Entry points: :func:`improve_metrics`,
:func:`useful_changes`.
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

# Power p of the score; with 24 the search sees the most utilised links only and gets trapped.
_POWER = 10.0
# A busy link is drawn with probability proportional to u^8.
_BUSY_POWER = 8.0
# Shares of the kinds of moves in all, cumulative: small step, random value, equal next hops; the
# remaining ones tie a link with an alternative.
_SMALL_STEPS = 0.12
_RANDOM_VALUES = 0.25
_EQUAL_HOPS = 0.55
# Maximum number of links of a move.
_MAX_CHANGED = 8


@kernel
def score_of(load: FloatArray, inverse: FloatArray) -> tuple[float, float]:
    """Score and largest utilisation of loads (S, M, E) with 1 / capacity (S, E)."""
    # Largest utilisation.
    largest = 0.0
    for s in range(load.shape[0]):
        for m in range(load.shape[1]):
            for e in range(load.shape[2]):
                largest = max(largest, load[s, m, e] * inverse[s, e])
    if largest <= 0.0:
        return -np.inf, 0.0
    # Sum of u^10, relative to the largest one so that nothing overflows.
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
    """Compute distances and loads of all scenarios."""
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
def _propose(links, metric, distance, load, inverse, has_demand, max_metric, rng, changed, values):  # type: ignore[no-untyped-def]
    """Propose a move for the scenario without failure: fill ``changed`` with links and ``values``
    with their metrics; return the number of links.
    """
    # A small step or a random value of a random link.
    num_links = len(metric)
    kind = rng.random()
    m = rng.integers(0, load.shape[0])
    if kind < _RANDOM_VALUES:
        e = rng.integers(0, num_links)
        changed[0] = e
        if kind < _SMALL_STEPS:
            values[0] = min(max_metric, max(1.0, metric[e] + rng.integers(-3, 4)))
        else:
            values[0] = 1.0 + rng.integers(0, int(max_metric))
        return 1
    # Draw a busy link, with probability proportional to u^8.
    largest = 0.0
    total = 0.0
    for e in range(num_links):
        largest = max(largest, load[m, e] * inverse[e])
    if largest <= 0.0:
        return 0
    for e in range(num_links):
        total += (load[m, e] * inverse[e] / largest) ** _BUSY_POWER
    draw = rng.random() * total
    busy = 0
    for e in range(num_links):
        draw -= (load[m, e] * inverse[e] / largest) ** _BUSY_POWER
        if draw <= 0.0:
            busy = e
            break
    # Find a destination whose shortest paths use the busy link, the first from a random position.
    num_nodes = distance.shape[0]
    first_candidate = rng.integers(0, num_nodes)
    t = -1
    node = links.tail[busy]
    for i in range(num_nodes):
        candidate = (first_candidate + i) % num_nodes
        to_end = distance[candidate, links.head[busy]]
        if (
            has_demand[candidate]
            and to_end < np.inf
            and distance[candidate, node] == metric[busy] + to_end
        ):
            t = candidate
            break
    if t < 0:
        return 0
    # Make several next hops of a node equally good.
    if kind < _EQUAL_HOPS:
        num_hops = rng.integers(0, 3)
        # Move up to two hops upstream, each time to a node that sends over this one.
        for _ in range(num_hops):
            upstream = -1
            first = links.in_ptr[node]
            count = links.in_ptr[node + 1] - first
            start_offset = rng.integers(0, max(1, count))
            for j in range(count):
                e = links.in_link[first + (start_offset + j) % count]
                if distance[t, links.tail[e]] == metric[e] + distance[t, node]:
                    upstream = links.tail[e]
                    break
            if upstream < 0:
                break
            node = upstream
        # Choose the common distance, and for each link the metric that attains it.
        size = 0
        level = distance[t, node]
        if rng.random() < 0.5:
            level += 1.0
        for j in range(links.out_ptr[node], links.out_ptr[node + 1]):
            e = links.out_link[j]
            new_value = level - distance[t, links.head[e]]
            is_allowed = (
                new_value >= 1.0
                and new_value <= max_metric
                and size < _MAX_CHANGED
                and metric[e] != new_value
            )
            if is_allowed and rng.random() < 0.7:
                changed[size] = e
                values[size] = new_value
                size += 1
        return size
    # Find the best alternative to the busy link.
    shortest = np.inf
    alternative = -1
    for j in range(links.out_ptr[node], links.out_ptr[node + 1]):
        e = links.out_link[j]
        length = metric[e] + distance[t, links.head[e]]
        if e != busy and length < shortest:
            shortest = length
            alternative = e
    if alternative < 0:
        return 0
    # Raise the busy link to tie with the alternative, or lower the alternative; or exceed the tie.
    margin = 1.0 if rng.random() < 0.5 else 0.0
    if rng.random() < 0.6:
        value = shortest - distance[t, links.head[busy]] + margin
        changed[0] = busy
    else:
        value = distance[t, node] - distance[t, links.head[alternative]] - margin
        changed[0] = alternative
    values[0] = min(max_metric, max(1.0, value))
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
    max_metric,
    at_most,
    temperature,
    moves,
    rng,
    best_metric,
    best_value,
):
    """Try ``moves`` moves, updating the state in place; return the smallest largest utilisation.

    Indices: s of scenarios, the first without failure; m of matrices; t of destinations; e of
    links; i of the links of a move, or of the affected pairs of scenario and destination.
    """
    # Work arrays.
    num_scenarios, num_matrices, num_links = load.shape
    num_nodes = distance.shape[1]
    after = new_dags(1, num_nodes, num_links)
    keys = np.empty(2 * num_links + 2)
    heap = np.empty(2 * num_links + 2, dtype=np.int32)
    passing = np.empty(num_nodes)
    changed = np.empty(_MAX_CHANGED, dtype=np.int64)
    values = np.empty(_MAX_CHANGED)
    old_values = np.empty(_MAX_CHANGED)
    affected = np.empty((num_scenarios * num_nodes, 2), dtype=np.int64)
    new_distance = np.empty((num_scenarios * num_nodes, num_nodes))
    new_load = np.empty((num_scenarios * num_nodes, num_matrices, num_links))
    trial = load.copy()
    current_score, _ = score_of(load, inverse)
    current_metric = metric[0]
    for _ in range(moves):
        # Propose a move.
        size = _propose(
            links,
            current_metric,
            distance[0],
            load[0],
            inverse[0],
            has_demand,
            max_metric,
            rng,
            changed,
            values,
        )
        # Reject it if too many links would differ from the current metrics.
        num_different = 0
        for e in range(num_links):
            value = current_metric[e]
            for i in range(size):
                if changed[i] == e:
                    value = values[i]
            num_different += value != start[e]
        if size == 0 or num_different > at_most:
            continue
        # Recompute the destinations whose shortest paths may change.
        for i in range(size):
            old_values[i] = current_metric[changed[i]]
        num_affected = 0
        trial[:] = load
        for s in range(num_scenarios):
            is_ready = False
            for t in range(num_nodes):
                if not has_demand[t]:
                    continue
                # A rising link must be a next hop, a falling one as short as the current path.
                is_affected = False
                for i in range(size):
                    e = changed[i]
                    if is_failed[s, e]:
                        continue
                    to_start = distance[s, t, links.tail[e]]
                    to_end = distance[s, t, links.head[e]]
                    if to_end == np.inf:
                        continue
                    if values[i] > old_values[i]:
                        is_affected |= to_start == old_values[i] + to_end
                    elif values[i] < old_values[i]:
                        is_affected |= to_end + values[i] <= to_start
                if not is_affected:
                    continue
                # Set the metrics of the scenario once.
                if not is_ready:
                    links.metric[:] = metric[s]
                    for i in range(size):
                        if not is_failed[s, changed[i]]:
                            links.metric[changed[i]] = values[i]
                    is_ready = True
                # Shortest paths and loads towards this destination.
                grow_dag(t, as_int64(0), links, after, keys, heap)
                affected[num_affected, 0] = s
                affected[num_affected, 1] = t
                new_distance[num_affected] = after.distance[0]
                new_load[num_affected] = 0.0
                for m in range(num_matrices):
                    passing[:] = volume[m, t]
                    load_inwards(0, links.head, after, passing, new_load[num_affected, m])
                    for e in range(num_links):
                        trial[s, m, e] += new_load[num_affected, m, e] - by_destination[s, m, t, e]
                num_affected += 1
        # Metropolis acceptance.
        score, largest = score_of(trial, inverse)
        if score <= current_score or rng.random() < math.exp((current_score - score) / temperature):
            # Install loads, metrics, distances, and the loads of each destination.
            current_score = score
            load[:] = trial
            for i in range(size):
                for s in range(num_scenarios):
                    if not is_failed[s, changed[i]]:
                        metric[s, changed[i]] = values[i]
            for i in range(num_affected):
                s, t = affected[i]
                distance[s, t] = new_distance[i]
                for m in range(num_matrices):
                    by_destination[s, m, t] = new_load[i, m]
            # Update the incumbent.
            if largest < best_value * (1 - 1e-12):
                best_value = largest
                for e in range(num_links):
                    best_metric[e] = current_metric[e]
    return best_value


# Temperatures at the start and at the end, in units of the score.
_HOT = 0.01
_COLD = 0.0005
# Moves between checks of the clock: at first, and at most.
_FIRST_MOVES = 4
_MAX_MOVES = 500
# Target time between checks of the clock, seconds.
_LOOK_EVERY_S = 0.2
# Time between checks for Ctrl-C, seconds.
_SIGNALS_EVERY_S = 0.2
# Relative difference of utilisations up to which they are equal but for rounding.
_EQUAL = 1e-9
# Copies of the loads of all destinations in the memory of a walk, approximately.
_COPIES = 3


@dataclasses.dataclass(frozen=True, eq=False)
class MetricSearch:
    """Metric search problem.

    Attributes:
        topology: the network.
        volume: (M, N, N) Gbit/s, destination first.
        failures: link indices of each failure; () for none.
        most: largest metric.
        start: (E,) current metrics.
        at_most: maximum number of links whose metrics may differ from ``start``; E for all.
    """

    topology: Topology
    volume: FloatArray
    failures: Sequence[Sequence[int]]
    most: int
    start: FloatArray
    at_most: int


@dataclasses.dataclass(frozen=True, eq=False)
class MetricResult:
    """Best metrics found.

    Attributes:
        metric: (E,) metrics.
        utilisation: largest link utilisation over all matrices and failures.
        before: largest utilisation of the current metrics.
        moves: number of moves.
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
        scenarios = len(search.failures) + 1
        nodes = topology.num_nodes
        links = topology.num_links
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
        self.best_metric = first.copy()
        self.best = math.inf

    def run(self, full_deadline: Deadline, share: float) -> MetricResult:
        """Compute the initial state, then anneal for a share of the remaining time."""
        self._load_all(full_deadline)
        end = full_deadline.share(share)
        num_moves = 0
        batch_moves = _FIRST_MOVES
        begin = current_time = time.perf_counter()
        length = max(end.remaining_s, 1e-9)
        while not end.is_over:
            # Geometric cooling.
            temperature = _HOT * (_COLD / _HOT) ** min(1.0, (current_time - begin) / length)
            self._anneal(temperature, batch_moves)
            num_moves += batch_moves
            # Size of the next batch, from the time of this one.
            previous = current_time
            current_time = time.perf_counter()
            batch_moves = max(
                1,
                min(
                    _MAX_MOVES,
                    int(batch_moves * _LOOK_EVERY_S / max(current_time - previous, 1e-9)),
                    4 * batch_moves,
                ),
            )
        return MetricResult(self.best_metric, self.best, math.nan, num_moves)

    def _anneal(self, temperature: float, num_moves: int) -> None:
        """Try moves at one temperature, updating state and incumbent."""
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
                num_moves,
                self.rng,
                self.best_metric,
                self.best,
            )
        )

    def _load_all(self, end: Deadline) -> None:
        """Compute the state, one scenario after the other, and its score; nothing after the
        deadline.
        """
        nodes = self.distance.shape[1]
        links = self.load.shape[2]
        after = new_dags(1, nodes, links)
        keys = np.empty(2 * links + 2)
        heap = np.empty(2 * links + 2, dtype=np.int32)
        passing = np.empty(nodes)
        for s in range(len(self.load)):
            if end.is_over:
                return
            scenario = slice(s, s + 1)
            load_all(
                self.links,
                self.metric[scenario],
                self.distance[scenario],
                self.by_destination[scenario],
                self.load[scenario],
                self.search.volume,
                after,
                keys,
                heap,
                passing,
            )
        self.best = float(score_of(self.load, self.inverse)[1])


def _walk(
    search: MetricSearch, first: FloatArray, seed: int, full_deadline: Deadline, share: float
) -> MetricResult:
    """Run one annealing walk, whose memory is freed at its end."""
    return _Walk(search, first, seed).run(full_deadline, share)


def improve_metrics(
    search: MetricSearch,
    seconds: float,
    starts: Sequence[FloatArray] = (),
    seed: int = 0,
    threads: int = 2,
    best_so_far: FloatArray | None = None,
) -> MetricResult:
    """Search for metrics with a small largest utilisation.

    Ctrl-C ends the search with the best so far.

    Args:
        search: search problem.
        seconds: time limit.
        starts: starting metrics (E,), besides the current and random ones; ignored if changes are
            limited.
        seed: random seed.
        threads: number of concurrent walks.
        best_so_far: incumbent metrics (E,) of an earlier search.

    Raises:
        InputError: current metrics above ``most``, an incumbent with too many changes, or a state
            that does not fit into memory.
    """
    _check_search(search, threads)
    topology = search.topology
    before = largest_utilisation(search, search.start)
    # Starting points: the current metrics, the incumbent, and if all may change, given and random
    # ones.
    starting_metrics = [search.start]
    results = [MetricResult(search.start, before, before, 0)]
    if best_so_far is not None:
        num_changed = int((best_so_far != search.start).sum())
        if num_changed > search.at_most:
            raise InputError(
                "metrics", "best_so_far", f"at most {search.at_most} changes", num_changed
            )
        starting_metrics.append(best_so_far)
        results.append(
            MetricResult(best_so_far, largest_utilisation(search, best_so_far), before, 0)
        )
    if search.at_most >= topology.num_links:
        rng = np.random.default_rng(seed)
        starting_metrics += [np.clip(np.round(metric), 1, search.most) for metric in starts]
        starting_metrics.append(
            rng.integers(5, 16, topology.num_links).clip(1, search.most).astype(np.float64)
        )
    # Annealing walks.
    end = Deadline.after(seconds)
    walk_results, was_interrupted = _run_walks(search, starting_metrics, seed, threads, end)
    results += walk_results
    best = min(results, key=lambda result: result.utilisation)
    metric = np.where(topology.capacity > 0, best.metric, search.start)
    num_moves = sum(result.moves for result in results)
    return MetricResult(metric, best.utilisation, before, num_moves, was_interrupted)


def _check_search(search: MetricSearch, threads: int) -> None:
    """Validate the current metrics and the memory of concurrent walks.

    Raises:
        InputError: current metrics above ``most``, or a state that does not fit into memory.
    """
    topology = search.topology
    check_metric(topology, search.start)
    if search.start[topology.capacity > 0].max() > search.most:
        raise InputError(
            "metrics",
            "most",
            f"at least {search.start.max():g}, the largest current metric",
            search.most,
        )
    num_scenarios = len(search.failures) + 1
    num_bytes = (
        8
        * num_scenarios
        * len(search.volume)
        * topology.num_nodes
        * topology.num_links
        * _COPIES
        * threads
    )
    require("metrics", num_bytes, "fewer matrices or failures")


def _run_walks(
    search: MetricSearch,
    starting_metrics: Sequence[FloatArray],
    seed: int,
    threads: int,
    end: Deadline,
) -> tuple[list[MetricResult], bool]:
    """Run a walk from each starting point, in groups of concurrent ones that each get their share
    of the remaining time; also return whether Ctrl-C ended them.
    """
    results = list[MetricResult]()
    was_interrupted = False
    for group in range(0, len(starting_metrics), threads):
        walk_indices = range(group, min(group + threads, len(starting_metrics)))
        share = len(walk_indices) / (len(starting_metrics) - group)
        with ThreadPoolExecutor(threads) as pool:
            running = []
            try:
                for walk in walk_indices:
                    seed_of_walk = seed + 1_000_003 * walk
                    running.append(
                        pool.submit(_walk, search, starting_metrics[walk], seed_of_walk, end, share)
                    )
                while wait(running, _SIGNALS_EVERY_S).not_done:
                    # A wait without a timeout would miss a signal received by another thread.
                    pass
            # The walks end within a second, with the best so far.
            except KeyboardInterrupt:
                end.expire()
                was_interrupted = True
        # This raises the errors of walks.
        results += [future.result() for future in running]
        if end.is_over:
            break
    return results, was_interrupted


def largest_utilisation(search: MetricSearch, metric: FloatArray) -> float:
    """Largest link utilisation over all matrices and failures under these metrics (E,)."""
    loads = IgpFailures(EcmpDag.of(search.topology, metric), search.volume)
    results = loads.under([[], *(list(links) for links in search.failures)])
    return float(results.utilisation.max())


def change_order(
    search: MetricSearch,
    metric: FloatArray,
    report: Callable[[int], None] = lambda _: None,
    end: Deadline | None = None,
) -> tuple[list[int], list[float]]:
    """Order links such that their metrics can change one by one; also return the largest
    utilisation after each change.

    Greedy: the next change is the one with the smallest largest utilisation; changes that exceed
    both ends come last, so the second result shows by how much the order exceeds them.

    Args:
        search: search problem, whose ``start`` are the current metrics.
        metric: (E,) new metrics.
        report: called with the number of ordered changes.
        end: time limit, after which the remaining changes follow by index, with NaN except for the
            last.
    """
    end = end or Deadline()
    remaining = [int(e) for e in np.flatnonzero(metric != search.start)]
    current = search.start.copy()
    order = list[int]()
    after = list[float]()
    while remaining:
        scores = []
        for e in remaining:
            if end.is_over:
                unknown = [math.nan] * (len(remaining) - 1)
                return [*order, *remaining], [*after, *unknown, largest_utilisation(search, metric)]
            scores.append(_with_change(search, current, e, metric[e]))
        chosen = int(np.argmin(scores))
        after.append(scores[chosen])
        current[remaining[chosen]] = metric[remaining[chosen]]
        order.append(remaining.pop(chosen))
        report(len(order))
    return order, after


def useful_changes(
    search: MetricSearch, metric: FloatArray, end: Deadline | None = None
) -> tuple[list[int], list[float]]:
    """Order changes up to the smallest utilisation on the way, without useless ones; arguments and
    results as in :func:`change_order`.
    """
    end = end or Deadline()
    before = largest_utilisation(search, search.start)
    while True:
        order, after = change_order(search, metric, end=end)
        utilisation = [before, *after]
        target = float(np.nanmin(utilisation)) * (1 + _EQUAL)
        length = next(n for n, value in enumerate(utilisation) if value <= target)
        trial_metric = search.start.copy()
        useful = order[:length]
        trial_metric[useful] = metric[useful]
        for link in order[:length]:
            if end.is_over:
                break
            if _with_change(search, trial_metric, link, search.start[link]) <= target:
                trial_metric[link] = search.start[link]
                useful.remove(link)
        if len(useful) == length or end.is_over:
            return order[:length], after[:length]
        metric = trial_metric


def _with_change(search: MetricSearch, metric: FloatArray, link: int, value: float) -> float:
    """Largest link utilisation under metrics (E,) with one changed."""
    trial = metric.copy()
    trial[link] = value
    return largest_utilisation(search, trial)
