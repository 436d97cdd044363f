"""IGP metric optimisation by simulated annealing, with incremental shortest paths and ECMP loads.

Score of metrics: log ||u||_p = (1 / p) log sum u^p over the utilisations u of all links, in all
matrices and all scenarios, p = 10.  A scenario is a set of failed links; scenario 0 has none.  The
incumbent has the smallest largest utilisation.  A move changes the metrics of one or a few links.
Only destinations whose shortest paths may change are recomputed: those where a link whose metric
rises is a next hop, or a link whose metric falls becomes as short as the current path.

Moves (after Fortz and Thorup, "Internet traffic engineering by optimizing OSPF weights", INFOCOM
2000): make several next hops of a node equally good towards a destination of traffic on a busy
link; raise the metric of a busy link to tie with an alternative or exceed it, or lower that of the
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
from teal.network.ecmp import (
    EcmpDag,
    IgpLinks,
    check_metric,
    igp_links,
    new_dags,
    shortest_path_dag,
)
from teal.pathops.segment_passes import add_ecmp_loads
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline
from teal.runtime.memory import require
from teal.runtime.parallel import as_int64, inner_kernel, kernel
from teal_ip.routing.igp_failures import IgpFailures

# Exponent p of the score; with 24 only the most utilised links count, and the search gets trapped.
_NORM_POWER = 10.0
# A busy link is drawn with probability proportional to u^8.
_BUSY_LINK_POWER = 8.0
# Cumulative probabilities of the kinds of moves: a small step, a random value, equal next hops;
# else, tie a busy link with its best alternative.
_UP_TO_SMALL_STEP = 0.12
_UP_TO_RANDOM_VALUE = 0.25
_UP_TO_EQUAL_HOPS = 0.55
# Maximum number of links of a move.
_MAX_CHANGED = 8


@kernel
def log_p_norm(load: FloatArray, inverse_capacity: FloatArray) -> tuple[float, float]:
    """Return log ||u||_p of the link utilisations u, p = 10, and the largest utilisation.

    Args:
        load: (S, M, E) link loads under each scenario and matrix, Gbit/s.
        inverse_capacity: (S, E) 1 / capacity; 0 for failed links.
    """
    # Largest utilisation.
    max_utilisation = 0.0
    for s in range(load.shape[0]):
        for m in range(load.shape[1]):
            for e in range(load.shape[2]):
                max_utilisation = max(max_utilisation, load[s, m, e] * inverse_capacity[s, e])
    if max_utilisation <= 0.0:
        return -np.inf, 0.0
    # Sum of (u / max u)^10; the ratio avoids overflow.
    power_sum = 0.0
    for s in range(load.shape[0]):
        for m in range(load.shape[1]):
            for e in range(load.shape[2]):
                ratio = load[s, m, e] * inverse_capacity[s, e] / max_utilisation
                ratio_2 = ratio * ratio
                ratio_4 = ratio_2 * ratio_2
                power_sum += ratio_4 * ratio_4 * ratio_2
    return math.log(max_utilisation) + math.log(power_sum) / _NORM_POWER, max_utilisation


@kernel
def compute_loads(  # type: ignore[no-untyped-def]
    links,
    metric,
    distance,
    load_by_destination,
    load,
    volume,
    dag,
    heap_keys,
    heap_nodes,
    node_traffic,
):
    """Compute distances and link loads of S scenarios and M matrices.

    Args:
        links: the E links of the network; ``metric`` is overwritten.
        metric: (S, E) metrics; infinite for failed links.
        distance: (S, N, N) distance from node u to destination t, at [s, t, u] (written).
        load_by_destination: (S, M, N, E) link loads of the traffic to each destination, Gbit/s
            (written).
        load: (S, M, E) link loads, Gbit/s (written).
        volume: (M, N, N) demand from node u to destination t at [m, t, u], Gbit/s.
        dag: shortest-path DAG towards one destination, in row 0 (scratch).
        heap_keys: (2 E + 2,) distances in the heap of Dijkstra's algorithm (scratch).
        heap_nodes: (2 E + 2,) nodes in the heap (scratch).
        node_traffic: (N,) Gbit/s through each node to one destination (scratch).
    """
    load[:] = 0.0
    load_by_destination[:] = 0.0
    for s in range(len(load)):
        links.metric[:] = metric[s]
        for t in range(volume.shape[1]):
            # DAG towards node t, distances to it, and loads of the traffic to it.
            shortest_path_dag(t, as_int64(0), links, dag, heap_keys, heap_nodes)
            distance[s, t] = dag.distance[0]
            for m in range(len(volume)):
                node_traffic[:] = volume[m, t]
                add_ecmp_loads(0, links.head, dag, node_traffic, load_by_destination[s, m, t])
                for e in range(load.shape[2]):
                    load[s, m, e] += load_by_destination[s, m, t, e]


@inner_kernel
def _propose(  # type: ignore[no-untyped-def]
    links,
    metric,
    distance,
    load,
    inverse_capacity,
    is_destination,
    max_metric,
    rng,
    changed_link,
    new_metric,
):
    """Propose a move from the current metrics: new metrics of one or a few links.

    The move is drawn at random: a small step or a random metric of a random link; equally good next
    hops of a node upstream of a busy link; or a tie of a busy link with its best alternative.

    Args:
        links: the E links of the network, in CSR form.
        metric: (E,) current metrics.
        distance: (N, N) distance from node u to destination t without failure, at [t, u].
        load: (M, E) link loads without failure, Gbit/s.
        inverse_capacity: (E,) 1 / capacity; 0 for links without capacity.
        is_destination: (N,) whether a node receives traffic.
        max_metric: largest metric.
        rng: random generator.
        changed_link: (8,) links of the move; the first entries are written.
        new_metric: (8,) their new metrics (written likewise).

    Returns:
        number of links of the move; 0 for no move.
    """
    # Draw the kind of move and a matrix.  The first two kinds change the metric of a random link:
    # by at most 3, or to a random value.
    num_links = len(metric)
    kind_draw = rng.random()
    m = rng.integers(0, load.shape[0])
    if kind_draw < _UP_TO_RANDOM_VALUE:
        e = rng.integers(0, num_links)
        changed_link[0] = e
        if kind_draw < _UP_TO_SMALL_STEP:
            new_metric[0] = min(max_metric, max(1.0, metric[e] + rng.integers(-3, 4)))
        else:
            new_metric[0] = 1.0 + rng.integers(0, int(max_metric))
        return 1
    # Draw a busy link, with probability proportional to u^8.
    max_utilisation = 0.0
    weight_sum = 0.0
    for e in range(num_links):
        max_utilisation = max(max_utilisation, load[m, e] * inverse_capacity[e])
    if max_utilisation <= 0.0:
        return 0
    for e in range(num_links):
        weight_sum += (load[m, e] * inverse_capacity[e] / max_utilisation) ** _BUSY_LINK_POWER
    busy_draw = rng.random() * weight_sum
    busy_link = 0
    for e in range(num_links):
        busy_draw -= (load[m, e] * inverse_capacity[e] / max_utilisation) ** _BUSY_LINK_POWER
        if busy_draw <= 0.0:
            busy_link = e
            break
    # Find a destination that receives traffic and whose shortest paths use the busy link: try all
    # destinations in turn, starting with a random one.
    num_nodes = distance.shape[0]
    first_destination = rng.integers(0, num_nodes)
    t = -1
    u = links.tail[busy_link]
    for i in range(num_nodes):
        destination = (first_destination + i) % num_nodes
        head_distance = distance[destination, links.head[busy_link]]
        if (
            is_destination[destination]
            and head_distance < np.inf
            and distance[destination, u] == metric[busy_link] + head_distance
        ):
            t = destination
            break
    if t < 0:
        return 0
    # Make several next hops of a node equally good.
    if kind_draw < _UP_TO_EQUAL_HOPS:
        num_upstream_hops = rng.integers(0, 3)
        # Walk up to two hops upstream along shortest paths.
        for _ in range(num_upstream_hops):
            upstream = -1
            first_in_link = links.in_ptr[u]
            num_in_links = links.in_ptr[u + 1] - first_in_link
            start_offset = rng.integers(0, max(1, num_in_links))
            for j in range(num_in_links):
                e = links.in_link[first_in_link + (start_offset + j) % num_in_links]
                if distance[t, links.tail[e]] == metric[e] + distance[t, u]:
                    upstream = links.tail[e]
                    break
            if upstream < 0:
                break
            u = upstream
        # Choose a distance of u to the destination: the current one, or 1 more.  Change each link
        # out of u, with probability 0.7, to the metric at which the path over it has this distance.
        move_size = 0
        common_distance = distance[t, u]
        if rng.random() < 0.5:
            common_distance += 1.0
        for j in range(links.out_ptr[u], links.out_ptr[u + 1]):
            e = links.out_link[j]
            tie_metric = common_distance - distance[t, links.head[e]]
            is_candidate = (
                tie_metric >= 1.0
                and tie_metric <= max_metric
                and move_size < _MAX_CHANGED
                and metric[e] != tie_metric
            )
            if is_candidate and rng.random() < 0.7:
                changed_link[move_size] = e
                new_metric[move_size] = tie_metric
                move_size += 1
        return move_size
    # Find the best alternative to the busy link: another link out of the same node.
    shortest_length = np.inf
    alternative_link = -1
    for j in range(links.out_ptr[u], links.out_ptr[u + 1]):
        e = links.out_link[j]
        length = metric[e] + distance[t, links.head[e]]
        if e != busy_link and length < shortest_length:
            shortest_length = length
            alternative_link = e
    if alternative_link < 0:
        return 0
    # Raise the metric of the busy link (probability 0.6) until both paths are equally long, or
    # lower that of the alternative; with a margin of 1 (probability 0.5) the alternative becomes
    # shorter.
    margin = 1.0 if rng.random() < 0.5 else 0.0
    if rng.random() < 0.6:
        changed_metric = shortest_length - distance[t, links.head[busy_link]] + margin
        changed_link[0] = busy_link
    else:
        changed_metric = distance[t, u] - distance[t, links.head[alternative_link]] - margin
        changed_link[0] = alternative_link
    new_metric[0] = min(max_metric, max(1.0, changed_metric))
    return 1


@kernel
def anneal(  # type: ignore[no-untyped-def]
    links: IgpLinks,
    metric,
    start_metric,
    distance,
    load_by_destination,
    load,
    volume,
    inverse_capacity,
    is_destination,
    is_failed,
    max_metric,
    max_changes,
    temperature,
    num_moves,
    rng,
    best_metric,
    best_utilisation,
):
    """Run moves of simulated annealing over IGP metrics; update the state and the incumbent.

    The score is the log of the 10-norm of the link utilisations (:func:`log_p_norm`).

    S scenarios (sets of failed links, the first empty), M matrices, N nodes, E links.

    Args:
        links: the E links of the network; ``metric`` is overwritten.
        metric: (S, E) current metrics by scenario; infinite for failed links (updated).
        start_metric: (E,) metrics from which changes are counted.
        distance: (S, N, N) distance from node u to destination t, at [s, t, u] (updated).
        load_by_destination: (S, M, N, E) link loads of the traffic to each destination, Gbit/s
            (updated).
        load: (S, M, E) link loads, Gbit/s (updated).
        volume: (M, N, N) demand from node u to destination t at [m, t, u], Gbit/s.
        inverse_capacity: (S, E) 1 / capacity; 0 for failed links.
        is_destination: (N,) whether a node receives traffic.
        is_failed: (S, E) whether a link has failed.
        max_metric: largest metric.
        max_changes: maximum number of links whose metric differs from ``start_metric``.
        temperature: temperature of the Metropolis rule, in units of the score.
        num_moves: number of moves.
        rng: random generator.
        best_metric: (E,) metrics of the incumbent (updated).
        best_utilisation: largest link utilisation of the incumbent.

    Returns:
        largest link utilisation of the new incumbent.
    """
    # Scratch arrays: DAG towards one destination, heap, and traffic through each node (N,).
    num_scenarios, num_matrices, num_links = load.shape
    num_nodes = distance.shape[1]
    dag = new_dags(1, num_nodes, num_links)
    heap_keys = np.empty(2 * num_links + 2)
    heap_nodes = np.empty(2 * num_links + 2, dtype=np.int32)
    node_traffic = np.empty(num_nodes)
    # (8,) links of a move, and their metrics after and before.
    changed_link = np.empty(_MAX_CHANGED, dtype=np.int64)
    new_metric = np.empty(_MAX_CHANGED)
    old_metric = np.empty(_MAX_CHANGED)
    # Affected pairs (scenario, destination) of a move, at most S N; for each, the distances (N,)
    # and link loads (M, E) of its traffic after the move.
    affected_pair = np.empty((num_scenarios * num_nodes, 2), dtype=np.int64)
    new_distance = np.empty((num_scenarios * num_nodes, num_nodes))
    new_load = np.empty((num_scenarios * num_nodes, num_matrices, num_links))
    # (S, M, E) loads after the move.
    trial_load = load.copy()
    current_score, _ = log_p_norm(load, inverse_capacity)
    # Current metrics: those of the scenario without failure, a view that accepted moves change.
    current_metric = metric[0]
    for _ in range(num_moves):
        # Propose a move.
        move_size = _propose(
            links,
            current_metric,
            distance[0],
            load[0],
            inverse_capacity[0],
            is_destination,
            max_metric,
            rng,
            changed_link,
            new_metric,
        )
        # Reject it if the metrics of too many links would differ from ``start_metric``.
        num_differing_links = 0
        for e in range(num_links):
            trial_metric = current_metric[e]
            for i in range(move_size):
                if changed_link[i] == e:
                    trial_metric = new_metric[i]
            num_differing_links += trial_metric != start_metric[e]
        if move_size == 0 or num_differing_links > max_changes:
            continue
        # Recompute the destinations whose shortest paths may change.
        for i in range(move_size):
            old_metric[i] = current_metric[changed_link[i]]
        num_affected = 0
        trial_load[:] = load
        for s in range(num_scenarios):
            has_scenario_metrics = False
            for t in range(num_nodes):
                if not is_destination[t]:
                    continue
                # A link whose metric rises must be a next hop; one whose metric falls must become
                # as short as the current path.
                is_affected = False
                for i in range(move_size):
                    e = changed_link[i]
                    if is_failed[s, e]:
                        continue
                    tail_distance = distance[s, t, links.tail[e]]
                    head_distance = distance[s, t, links.head[e]]
                    if head_distance == np.inf:
                        continue
                    if new_metric[i] > old_metric[i]:
                        is_affected |= tail_distance == old_metric[i] + head_distance
                    elif new_metric[i] < old_metric[i]:
                        is_affected |= head_distance + new_metric[i] <= tail_distance
                if not is_affected:
                    continue
                # Set the metrics of the scenario once.
                if not has_scenario_metrics:
                    links.metric[:] = metric[s]
                    for i in range(move_size):
                        if not is_failed[s, changed_link[i]]:
                            links.metric[changed_link[i]] = new_metric[i]
                    has_scenario_metrics = True
                # Shortest paths and loads towards this destination.
                shortest_path_dag(t, as_int64(0), links, dag, heap_keys, heap_nodes)
                affected_pair[num_affected, 0] = s
                affected_pair[num_affected, 1] = t
                new_distance[num_affected] = dag.distance[0]
                new_load[num_affected] = 0.0
                for m in range(num_matrices):
                    node_traffic[:] = volume[m, t]
                    add_ecmp_loads(0, links.head, dag, node_traffic, new_load[num_affected, m])
                    for e in range(num_links):
                        trial_load[s, m, e] += (
                            new_load[num_affected, m, e] - load_by_destination[s, m, t, e]
                        )
                num_affected += 1
        # Metropolis acceptance.
        trial_score, trial_utilisation = log_p_norm(trial_load, inverse_capacity)
        if trial_score <= current_score or rng.random() < math.exp(
            (current_score - trial_score) / temperature
        ):
            # Accept the move: update score, loads, metrics and distances.
            current_score = trial_score
            load[:] = trial_load
            for i in range(move_size):
                for s in range(num_scenarios):
                    if not is_failed[s, changed_link[i]]:
                        metric[s, changed_link[i]] = new_metric[i]
            for i in range(num_affected):
                s, t = affected_pair[i]
                distance[s, t] = new_distance[i]
                for m in range(num_matrices):
                    load_by_destination[s, m, t] = new_load[i, m]
            # Update the incumbent; smaller differences are rounding errors.
            if trial_utilisation < best_utilisation * (1 - 1e-12):
                best_utilisation = trial_utilisation
                for e in range(num_links):
                    best_metric[e] = current_metric[e]
    return best_utilisation


# Temperatures of geometric cooling, in units of the score.
_FIRST_TEMPERATURE = 0.01
_LAST_TEMPERATURE = 0.0005
# Moves of a batch, between two checks of the clock: the first batch, and the largest.
_FIRST_BATCH_MOVES = 4
_MAX_BATCH_MOVES = 500
# Target time of a batch of moves, seconds.
_BATCH_S = 0.2
# Time between checks for Ctrl-C, seconds.
_SIGNAL_CHECK_S = 0.2
# Relative rounding error of a utilisation: smaller differences count as equal.
_ROUNDING = 1e-9
# Approximate memory of an annealing walk, in copies of its link loads by scenario, matrix and
# destination.
_NUM_LOAD_COPIES = 3


@dataclasses.dataclass(frozen=True, eq=False)
class MetricSearch:
    """Search problem: the network, traffic and failures for which metrics are optimised, and the
    limits.

    Attributes:
        topology: the network of N nodes and E links.
        volume: (M, N, N) demand from node u to destination t at [m, t, u], Gbit/s.
        failures: link indices of each failure; () to consider no failure.
        max_metric: largest metric.
        start: (E,) current metrics.
        max_changes: maximum number of links whose metrics may differ from ``start``; E for all.
    """

    topology: Topology
    volume: FloatArray
    failures: Sequence[Sequence[int]]
    max_metric: int
    start: FloatArray
    max_changes: int


@dataclasses.dataclass(frozen=True, eq=False)
class MetricResult:
    """Best metrics found.

    Attributes:
        metric: (E,) metrics.
        utilisation: largest link utilisation over all matrices and failures.
        before: largest link utilisation with the current metrics.
        num_moves: number of moves that were tried.
        was_interrupted: whether Ctrl-C ended the search.
    """

    metric: FloatArray
    utilisation: float
    before: float
    num_moves: int
    was_interrupted: bool = False


class _AnnealingWalk:
    """State and incumbent of one annealing run, for S scenarios (no failure, then each failure).

    Args:
        search: search problem.
        start_metric: (E,) metrics at the start.
        seed: random seed.

    Attributes:
        search: search problem.
        rng: random generator.
        links: the E links of the network; ``metric`` is scratch memory.
        is_failed: (S, E) failed links of each scenario; scenario 0 has only links without capacity.
        metric: (S, E) current metrics; infinite for failed links.
        inverse_capacity: (S, E) 1 / capacity; 0 for failed links.
        distance: (S, N, N) distance from node u to destination t, at [s, t, u].
        load_by_destination: (S, M, N, E) link loads of the traffic to each destination, Gbit/s.
        load: (S, M, E) link loads, Gbit/s.
        is_destination: (N,) whether a node receives traffic.
        best_metric: (E,) metrics of the incumbent.
        best_utilisation: largest link utilisation of the incumbent; infinite until it is computed.
    """

    def __init__(self, search: MetricSearch, start_metric: FloatArray, seed: int) -> None:
        topology = search.topology
        self.search = search
        self.rng = np.random.default_rng(seed)
        num_scenarios = len(search.failures) + 1
        num_nodes = topology.num_nodes
        num_links = topology.num_links
        self.links = igp_links(topology, np.ones(num_links))
        # Links without capacity have failed in all scenarios.
        has_no_capacity = topology.capacity <= 0
        self.is_failed = np.tile(has_no_capacity, (num_scenarios, 1))
        for s, failed in enumerate(search.failures):
            self.is_failed[s + 1, list(failed)] = True
        self.metric = np.where(
            self.is_failed, np.inf, np.where(has_no_capacity, search.start, start_metric)
        )
        # 1 / capacity, so that the utilisation of a failed link is 0.
        self.inverse_capacity = np.where(
            self.is_failed, 0, 1 / np.where(has_no_capacity, 1, topology.capacity)
        )
        # Allocated here, and filled before the first move.
        self.distance = np.empty((num_scenarios, num_nodes, num_nodes))
        self.load_by_destination = np.empty(
            (num_scenarios, len(search.volume), num_nodes, num_links)
        )
        self.load = np.empty((num_scenarios, len(search.volume), num_links))
        self.is_destination = search.volume.sum((0, 2)) > 0
        self.best_metric = start_metric.copy()
        self.best_utilisation = math.inf

    def run(self, full_deadline: Deadline, time_share: float) -> MetricResult:
        """Compute the initial state, then anneal; return the incumbent.

        Args:
            full_deadline: deadline of all walks.
            time_share: share of the remaining time for this walk.

        Returns:
            metrics and utilisation of the incumbent, and number of moves; ``before`` is NaN.
        """
        self._compute_initial_state(full_deadline)
        deadline = full_deadline.share(time_share)
        num_moves = 0
        batch_moves = _FIRST_BATCH_MOVES
        walk_begin = current_time = time.perf_counter()
        # A positive duration, since the temperature divides by it.
        duration_s = max(deadline.remaining_s, 1e-9)
        while not deadline.is_over:
            # Geometric cooling.
            temperature = _FIRST_TEMPERATURE * (_LAST_TEMPERATURE / _FIRST_TEMPERATURE) ** min(
                1.0, (current_time - walk_begin) / duration_s
            )
            self._anneal(temperature, batch_moves)
            num_moves += batch_moves
            # Fit the next batch to the target time, at most four times as many moves.
            batch_begin = current_time
            current_time = time.perf_counter()
            batch_moves = max(
                1,
                min(
                    _MAX_BATCH_MOVES,
                    int(batch_moves * _BATCH_S / max(current_time - batch_begin, 1e-9)),
                    4 * batch_moves,
                ),
            )
        return MetricResult(self.best_metric, self.best_utilisation, math.nan, num_moves)

    def _anneal(self, temperature: float, num_moves: int) -> None:
        """Try ``num_moves`` moves at one temperature, in units of the score; update state and
        incumbent.
        """
        self.best_utilisation = float(
            anneal(
                self.links,
                self.metric,
                self.search.start,
                self.distance,
                self.load_by_destination,
                self.load,
                self.search.volume,
                self.inverse_capacity,
                self.is_destination,
                self.is_failed,
                float(self.search.max_metric),
                self.search.max_changes,
                temperature,
                num_moves,
                self.rng,
                self.best_metric,
                self.best_utilisation,
            )
        )

    def _compute_initial_state(self, deadline: Deadline) -> None:
        """Compute distances, loads and the largest utilisation of the starting metrics.

        At the deadline it stops between two scenarios, and the largest utilisation stays infinite.
        """
        # Scratch arrays: DAG towards one destination, heap, traffic through each node (N,).
        num_nodes = self.distance.shape[1]
        num_links = self.load.shape[2]
        dag = new_dags(1, num_nodes, num_links)
        heap_keys = np.empty(2 * num_links + 2)
        heap_nodes = np.empty(2 * num_links + 2, dtype=np.int32)
        node_traffic = np.empty(num_nodes)
        # Scenarios one by one, so that the deadline is checked between them.
        for s in range(len(self.load)):
            if deadline.is_over:
                return
            scenario = slice(s, s + 1)
            compute_loads(
                self.links,
                self.metric[scenario],
                self.distance[scenario],
                self.load_by_destination[scenario],
                self.load[scenario],
                self.search.volume,
                dag,
                heap_keys,
                heap_nodes,
                node_traffic,
            )
        self.best_utilisation = float(log_p_norm(self.load, self.inverse_capacity)[1])


def _run_walk(
    search: MetricSearch,
    start_metric: FloatArray,
    seed: int,
    full_deadline: Deadline,
    time_share: float,
) -> MetricResult:
    """Run an annealing walk, and return its incumbent; the memory of its state is freed.

    Args:
        search: search problem.
        start_metric: (E,) metrics at the start.
        seed: random seed.
        full_deadline: deadline of all walks.
        time_share: share of the remaining time for this walk.
    """
    return _AnnealingWalk(search, start_metric, seed).run(full_deadline, time_share)


def improve_metrics(
    search: MetricSearch,
    seconds: float,
    starts: Sequence[FloatArray] = (),
    seed: int = 0,
    threads: int = 2,
    best_so_far: FloatArray | None = None,
) -> MetricResult:
    """Search for metrics with a small largest utilisation.

    Runs a walk of simulated annealing from each starting point.  Ctrl-C ends the search with the
    incumbent.

    Args:
        search: search problem.
        seconds: time limit.
        starts: starting metrics (E,), besides the current and random ones; ignored if changes are
            limited.
        seed: random seed.
        threads: number of concurrent walks.
        best_so_far: incumbent metrics (E,) of an earlier search.

    Raises:
        InputError: current metrics above ``search.max_metric``, metrics ``best_so_far`` with more
            changes than ``search.max_changes``, or a state that does not fit into memory.
    """
    _check_search(search, threads)
    topology = search.topology
    utilisation_before = largest_utilisation(search, search.start)
    # Starting points: the current metrics, and the incumbent of an earlier search.  If all metrics
    # may change: also ``starts``, and random metrics from 5 to 15.
    starting_metrics = [search.start]
    results = [MetricResult(search.start, utilisation_before, utilisation_before, 0)]
    if best_so_far is not None:
        num_changed = int((best_so_far != search.start).sum())
        if num_changed > search.max_changes:
            raise InputError.invalid(
                "metrics",
                "best_so_far",
                f"{num_changed} metrics differ from the current ones, above the maximum of "
                f"{search.max_changes}",
            )
        starting_metrics.append(best_so_far)
        results.append(
            MetricResult(
                best_so_far, largest_utilisation(search, best_so_far), utilisation_before, 0
            )
        )
    # All metrics may change.
    if search.max_changes >= topology.num_links:
        rng = np.random.default_rng(seed)
        starting_metrics += [np.clip(np.round(metric), 1, search.max_metric) for metric in starts]
        starting_metrics.append(
            rng.integers(5, 16, topology.num_links).clip(1, search.max_metric).astype(np.float64)
        )
    # Run the walks, and choose the best result.
    deadline = Deadline.after(seconds)
    walk_results, was_interrupted = _run_walks(search, starting_metrics, seed, threads, deadline)
    results += walk_results
    best_result = min(results, key=lambda result: result.utilisation)
    metric = np.where(topology.capacity > 0, best_result.metric, search.start)
    num_moves = sum(result.num_moves for result in results)
    return MetricResult(
        metric, best_result.utilisation, utilisation_before, num_moves, was_interrupted
    )


def _check_search(search: MetricSearch, threads: int) -> None:
    """Validate the current metrics, and check that concurrent walks fit into memory.

    Args:
        search: search problem.
        threads: number of concurrent walks.

    Raises:
        InputError: current metrics above ``search.max_metric``, or walks that do not fit into
            memory.
    """
    topology = search.topology
    check_metric(topology, search.start)
    if search.start[topology.capacity > 0].max() > search.max_metric:
        raise InputError(
            "metrics",
            "max_metric",
            f"at least {search.start.max():g}, the largest current metric",
            search.max_metric,
        )
    num_scenarios = len(search.failures) + 1
    # The loads are float64, 8 bytes each.
    num_bytes = (
        8
        * num_scenarios
        * len(search.volume)
        * topology.num_nodes
        * topology.num_links
        * _NUM_LOAD_COPIES
        * threads
    )
    require("metrics", num_bytes, "fewer matrices or failures")


def _run_walks(
    search: MetricSearch,
    starting_metrics: Sequence[FloatArray],
    seed: int,
    threads: int,
    deadline: Deadline,
) -> tuple[list[MetricResult], bool]:
    """Run an annealing walk from each starting point, ``threads`` walks at a time.

    Args:
        search: search problem.
        starting_metrics: metrics (E,) at the start of each walk.
        seed: random seed.
        threads: number of concurrent walks.
        deadline: deadline of all walks; each group of concurrent walks gets an equal share of time
            per walk.

    Returns:
        result of each walk that was run, and whether Ctrl-C ended the search.
    """
    results = list[MetricResult]()
    was_interrupted = False
    # Groups of concurrent walks, one group after the other; the remaining time is shared equally by
    # the remaining walks.
    for first_walk in range(0, len(starting_metrics), threads):
        walk_indices = range(first_walk, min(first_walk + threads, len(starting_metrics)))
        time_share = len(walk_indices) / (len(starting_metrics) - first_walk)
        with ThreadPoolExecutor(threads) as pool:
            running = []
            try:
                # The seeds of walks are far apart, so that runs with adjacent seeds share none.
                for walk in walk_indices:
                    seed_of_walk = seed + 1_000_003 * walk
                    running.append(
                        pool.submit(
                            _run_walk,
                            search,
                            starting_metrics[walk],
                            seed_of_walk,
                            deadline,
                            time_share,
                        )
                    )
                while wait(running, _SIGNAL_CHECK_S).not_done:
                    # A wait without a timeout would miss a signal received by another thread.
                    pass
            # Expire the deadline: each walk returns its incumbent within a second.
            except KeyboardInterrupt:
                deadline.expire()
                was_interrupted = True
        # ``result`` raises the exception of a walk, if any.
        results += [future.result() for future in running]
        if deadline.is_over:
            break
    return results, was_interrupted


def largest_utilisation(search: MetricSearch, metric: FloatArray) -> float:
    """Return the largest link utilisation under metrics (E,), over all matrices, without failure
    and under each failure.
    """
    loads = IgpFailures(EcmpDag.of(search.topology, metric), search.volume)
    results = loads.under([[], *(list(links) for links in search.failures)])
    return float(results.utilisation.max())


def change_order(
    search: MetricSearch,
    metric: FloatArray,
    report: Callable[[int], None] = lambda _: None,
    deadline: Deadline | None = None,
) -> tuple[list[int], list[float]]:
    """Order metric changes so that they can be applied one by one with small utilisation.

    Greedy: each step applies the remaining change after which the largest link utilisation is
    smallest.

    Args:
        search: search problem, whose ``start`` are the current metrics.
        metric: (E,) new metrics.
        report: called with the number of ordered changes.
        deadline: time limit, after which the remaining changes follow by link index.

    Returns:
        links in order of their changes, and largest link utilisation after each change; NaN where
        the time limit prevented its computation.
    """
    deadline = deadline or Deadline()
    remaining_links = [int(e) for e in np.flatnonzero(metric != search.start)]
    current_metric = search.start.copy()
    order = list[int]()
    utilisation_after = list[float]()
    while remaining_links:
        # Largest link utilisation after each of the remaining changes.
        trial_utilisations = []
        for e in remaining_links:
            # At the deadline: the other changes by link index, and the utilisation after the last.
            if deadline.is_over:
                unknown = [math.nan] * (len(remaining_links) - 1)
                return [*order, *remaining_links], [
                    *utilisation_after,
                    *unknown,
                    largest_utilisation(search, metric),
                ]
            trial_utilisations.append(
                _utilisation_with_change(search, current_metric, e, metric[e])
            )
        # Apply the change with the smallest utilisation.
        best_index = int(np.argmin(trial_utilisations))
        utilisation_after.append(trial_utilisations[best_index])
        current_metric[remaining_links[best_index]] = metric[remaining_links[best_index]]
        order.append(remaining_links.pop(best_index))
        report(len(order))
    return order, utilisation_after


def useful_changes(
    search: MetricSearch, metric: FloatArray, deadline: Deadline | None = None
) -> tuple[list[int], list[float]]:
    """Order metric changes, and omit those that do not reduce the largest utilisation.

    The largest utilisation after each change of the order has a minimum.  Changes after the minimum
    are omitted.  Then each other change is omitted if the minimum is still reached without it.  The
    rest is ordered again, until no change is omitted.

    Args:
        search: search problem, whose ``start`` are the current metrics.
        metric: (E,) new metrics.
        deadline: time limit; the changes ordered so far are returned.

    Returns:
        links in order of their changes, and largest link utilisation after each change.
    """
    deadline = deadline or Deadline()
    utilisation_before = largest_utilisation(search, search.start)
    while True:
        order, utilisation_after = change_order(search, metric, deadline=deadline)
        utilisation_by_step = [utilisation_before, *utilisation_after]
        # Shortest prefix of the order with the smallest utilisation.
        target_utilisation = float(np.nanmin(utilisation_by_step)) * (1 + _ROUNDING)
        num_changes = next(
            n for n, value in enumerate(utilisation_by_step) if value <= target_utilisation
        )
        trial_metric = search.start.copy()
        useful_links = order[:num_changes]
        trial_metric[useful_links] = metric[useful_links]
        # Revert each change that the target utilisation does not need.
        for link in order[:num_changes]:
            if deadline.is_over:
                break
            if (
                _utilisation_with_change(search, trial_metric, link, search.start[link])
                <= target_utilisation
            ):
                trial_metric[link] = search.start[link]
                useful_links.remove(link)
        if len(useful_links) == num_changes or deadline.is_over:
            return order[:num_changes], utilisation_after[:num_changes]
        metric = trial_metric


def _utilisation_with_change(
    search: MetricSearch, metric: FloatArray, link: int, new_metric: float
) -> float:
    """Return the largest link utilisation under metrics (E,) if ``link`` gets the metric
    ``new_metric``.
    """
    trial = metric.copy()
    trial[link] = new_metric
    return largest_utilisation(search, trial)
