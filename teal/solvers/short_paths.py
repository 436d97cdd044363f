"""Greedy reduction of path lengths at the same value.

Objectives such as total_flow are indifferent between the paths of a demand, so that an optimum may
use long paths on an empty network.  :func:`shortened` moves flow of a feasible allocation to
shorter paths of the same demand.  The flow of each demand is unchanged, and therefore value, bound
and gap; the mean latency decreases.  Under max_link_utilisation loads may rise up to the current
largest utilisation.

1. All demands take their shortest path, except those whose shortest path would have an overloaded
   link: these keep their splits.  Several rounds, since kept splits use capacity, too.
2. The demands with kept splits, one after the other, move flow from their longest used path to
   their shortest path with unused capacity.

The result is not the smallest mean latency among all allocations of the same value.  A latency cost
in the program cannot replace it at usual gaps: a cost below the gap is lost in the tolerance
(docs/operating.md has a measurement).
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from teal.network.packed import PathScan
from teal.pathops import PathOps
from teal.problem import Problem
from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.parallel import inner_kernel, kernel, partitioned_kernel, threads_for

_OPERATIONS_PER_PATH = 100  # scalar operations, approximately; sets the threads
_MIN_GAIN = 1e-9  # smallest relative difference of lengths for a move
_MIN_SHARE = 1e-9  # smallest share of a demand to move
_MAX_ROUNDS = 8  # rounds of the first stage; then the second one starts from the given splits


def shortened(problem: Problem, splits: Tensor, length: Tensor | None = None) -> Tensor:
    """Move flow to shorter paths of the same demand, at the same value.

    Args:
        problem: B matrices.  Under side conditions, with link costs, and on a GPU the splits are
            returned unchanged.
        splits: (B, D, K) feasible splits.
        length: (E,) length of each link; None for the latency.

    Returns:
        (B, D, K) splits; bitwise equal on paths with unchanged flow.
    """
    # The kernels support plain paths only; under link costs a move would change the value.
    is_supported = (
        problem.ops.is_over_paths and not problem.conditions and not problem.has_link_cost
    )
    if not is_supported or splits.is_cuda or problem.ops.column_paths is not problem.paths:
        return splits
    # (D, K) length of each path.
    path_length = _latencies(problem)
    if length is not None:
        path_length = problem.ops.path_sum(length.to(torch.float64)[None])[0]
    # (B, E) largest load after the moves: capacity, or in a min-max program capacity times the
    # current largest utilisation.
    capacity = problem.capacity.to(torch.float64)
    load_limit = capacity
    if problem.demand_set.carries_all:
        load_limit = capacity * problem.utilisation(splits.to(problem.demand)).amax(
            1, keepdim=True
        ).to(torch.float64)
    # Move the flow in a copy of the splits, matrix by matrix.
    packed = problem.paths.packed
    new_splits = splits.to(torch.float64, copy=True).contiguous()
    with threads_for(_OPERATIONS_PER_PATH * len(new_splits) * packed.num_paths):
        _shorten(
            packed.scan,
            packed.max_trie_nodes,
            path_length.numpy(),
            problem.demand.to(torch.float64).contiguous().numpy(),
            capacity.contiguous().numpy(),
            load_limit.contiguous().numpy(),
            new_splits.numpy(),
        )
    return new_splits.to(splits.dtype)


class _Latencies(NamedTuple):
    """Cached latencies of paths, with the latencies of links for validation.

    Attributes:
        link_latency: (E,) ms.
        path_latency: (D, K) ms.
    """

    link_latency: FloatArray
    path_latency: Tensor


_LATENCY_CACHE: weakref.WeakKeyDictionary[PathOps, _Latencies] = weakref.WeakKeyDictionary()


def _latencies(problem: Problem) -> Tensor:
    """Return the latency (D, K) of each path in ms; cached for all problems on the same paths."""
    cached = _LATENCY_CACHE.get(problem.ops)
    link_latency = problem.topology.latency
    if cached is None or not np.array_equal(cached.link_latency, link_latency):
        links = torch.as_tensor(link_latency).to(torch.float64)
        path_latency = problem.ops.path_sum(links[None])[0]
        cached = _LATENCY_CACHE[problem.ops] = _Latencies(link_latency.copy(), path_latency)
    return cached.path_latency


def preferred(problem: Problem, splits: Tensor, prefer: str) -> Tensor:
    """Return splits (B, D, K) with flow moved to shorter paths, by latency or number of links.

    Args:
        problem: B matrices.
        splits: (B, D, K) feasible splits.
        prefer: "latency" or "hops", the length to reduce; "none" to return ``splits``.
    """
    if prefer == "none":
        return splits
    return shortened(
        problem, splits, torch.ones(problem.topology.num_links) if prefer == "hops" else None
    )


@partitioned_kernel("splits")
def _shorten(
    begin: int,
    end: int,
    scan: PathScan,
    max_trie_nodes: int,
    length: FloatArray,
    demand: FloatArray,
    capacity: FloatArray,
    load_limit: FloatArray,
    splits: FloatArray,
) -> None:
    """Move flow to shorter paths, matrix by matrix, in place.

    Args:
        begin, end: range of matrices of this call.
        scan: tries and paths of all sources, source by source.
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source itself.
        length: (D, K) length of each path.
        demand: (B, D) Gbit/s.
        capacity: (B, E) Gbit/s; 0 for a failed link.
        load_limit: (B, E) largest load after the moves, Gbit/s; a current load may exceed it.
        splits: (B, D, K) feasible splits (updated).
    """
    for b in range(begin, end):
        _shorten_matrix(
            scan, max_trie_nodes, length, demand[b], capacity[b], load_limit[b], splits[b]
        )


@kernel
def _shorten_matrix(
    scan: PathScan,
    max_trie_nodes: int,
    length: FloatArray,
    demand: FloatArray,
    capacity: FloatArray,
    load_limit: FloatArray,
    splits: FloatArray,
) -> None:
    """Move flow of one matrix to shorter paths, in place.

    Stage 1 sends every demand over its shortest live path, then restores the splits of demands
    whose shortest path has an overloaded link, in several rounds.  Stage 2 moves flow of these
    demands to shorter paths with unused capacity.  Loops replace NumPy operations, which take
    seconds to compile.

    Args:
        scan: tries and paths of all sources, source by source.
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source itself.
        length: (D, K) length of each path.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s; 0 for a failed link.
        load_limit: (E,) largest load after the moves, Gbit/s.
        splits: (D, K) feasible splits (updated).
    """
    (num_demands, num_paths) = splits.shape
    num_links = len(capacity)
    # Scratch for the trie of one source: flow through each node, and whether the path to it has a
    # marked link.
    node_flow = np.empty(max_trie_nodes)
    node_is_marked = np.empty(max_trie_nodes, np.bool_)
    # (D, K) whether each path is live, and whether it has an overloaded link; (E,) whether each
    # link has failed, and whether it is overloaded.
    is_live = np.ones((num_demands, num_paths), np.bool_)
    has_overload = np.zeros((num_demands, num_paths), np.bool_)
    is_failed = np.empty(num_links, np.bool_)
    is_overloaded = np.empty(num_links, np.bool_)
    any_failed = False
    for e in range(num_links):
        is_failed[e] = capacity[e] <= 0
        any_failed = any_failed or is_failed[e]
    # Live paths have no failed link: mark the paths that have one, then negate.
    if any_failed:
        _mark_paths(scan, is_failed, node_is_marked, is_live)
        for d in range(num_demands):
            for k in range(num_paths):
                is_live[d, k] = not is_live[d, k]
    # Stage 1: all flow on the shortest live path of each demand; demands without one keep theirs.
    # (D, K) flows before and after the moves, Gbit/s.
    initial_flow = np.zeros((num_demands, num_paths))
    new_flow = np.zeros((num_demands, num_paths))
    shortest_path = np.zeros(num_demands, np.int64)
    keeps_splits = np.zeros(num_demands, np.bool_)
    for d in range(num_demands):
        demand_flow = 0.0
        shortest_k = -1
        for k in range(np.int64(scan.path_count[d])):
            initial_flow[d, k] = splits[d, k] * demand[d]
            demand_flow += initial_flow[d, k]
            if is_live[d, k] and (shortest_k < 0 or length[d, k] < length[d, shortest_k]):
                shortest_k = k
        if shortest_k < 0:
            keeps_splits[d] = True
            _copy_flows(initial_flow, new_flow, d)
        else:
            shortest_path[d] = shortest_k
            new_flow[d, shortest_k] = demand_flow
    # Loads of new_flow, largest loads and residual capacities of the links, Gbit/s.
    load = np.zeros(num_links)
    max_load = np.empty(num_links)
    residual = np.empty(num_links)
    _sum_loads(scan, new_flow, node_flow, load)
    for e in range(num_links):
        max_load[e] = load_limit[e]
    # Where the shortest paths overload links, some demands return to their initial splits.
    if _mark_overloaded(load, max_load, is_overloaded):
        initial_load = np.zeros(num_links)
        _sum_loads(scan, initial_flow, node_flow, initial_load)
        for e in range(num_links):
            # An initial load may exceed the limit by rounding.
            max_load[e] = max(load_limit[e], initial_load[e])
        # Restore the splits of demands with an overloaded shortest path.
        any_overloaded = _mark_overloaded(load, max_load, is_overloaded)
        for _ in range(_MAX_ROUNDS):
            if not any_overloaded:
                break
            _mark_paths(scan, is_overloaded, node_is_marked, has_overload)
            for d in range(num_demands):
                if (
                    has_overload[d, shortest_path[d]]
                    and new_flow[d, shortest_path[d]] > 0
                    and not keeps_splits[d]
                ):
                    keeps_splits[d] = True
                    _copy_flows(initial_flow, new_flow, d)
            _sum_loads(scan, new_flow, node_flow, load)
            any_overloaded = _mark_overloaded(load, max_load, is_overloaded)
        # Restore all splits if some link is still overloaded.
        if any_overloaded:
            load = initial_load
            for d in range(num_demands):
                keeps_splits[d] = True
                _copy_flows(initial_flow, new_flow, d)
    # Stage 2: move flow of the demands that keep their splits to shorter paths.
    for e in range(num_links):
        residual[e] = max(max_load[e] - load[e], 0.0)
    _move_to_shorter_paths(scan, keeps_splits, is_live, length, demand, residual, new_flow)
    # Write the splits of changed flows.
    for d in range(num_demands):
        for k in range(num_paths if demand[d] > 0 else 0):
            if new_flow[d, k] != initial_flow[d, k]:
                splits[d, k] = new_flow[d, k] / demand[d]


@inner_kernel
def _copy_flows(initial_flow: FloatArray, new_flow: FloatArray, d: int) -> None:
    """Copy the flows of demand ``d`` from ``initial_flow`` (D, K) to ``new_flow`` (D, K)."""
    for k in range(initial_flow.shape[1]):
        new_flow[d, k] = initial_flow[d, k]


@inner_kernel
def _mark_overloaded(load: FloatArray, max_load: FloatArray, is_overloaded: BoolArray) -> bool:
    """Set ``is_overloaded`` (E,) where a load exceeds ``max_load``; return whether any does."""
    any_overloaded = False
    for e in range(len(load)):
        is_overloaded[e] = load[e] > max_load[e]
        any_overloaded = any_overloaded or is_overloaded[e]
    return any_overloaded


@kernel
def _sum_loads(scan: PathScan, flow: FloatArray, node_flow: FloatArray, load: FloatArray) -> None:
    """Compute the link loads of path flows.

    Args:
        scan: tries and paths of all sources.
        flow: (D, K) Gbit/s.
        node_flow: (trie nodes + 1,) scratch, flow through each trie node of a source.
        load: (E,) Gbit/s (written).
    """
    for e in range(len(load)):
        load[e] = 0.0
    # Per source s: its trie nodes begin at node_ptr[s], its paths at path_ptr[s].
    for s in range(len(scan.node_ptr) - 1):
        # Positions of the source's first trie entry, and of the first path of the present demand.
        first_node = scan.node_ptr[s]
        first_path = scan.path_ptr[s]
        num_nodes = scan.node_ptr[s + 1] - first_node
        # Flow that ends at each node; node 0 is the source, node i has the arrays' entry i - 1.
        for node in range(num_nodes + 1):
            node_flow[node] = 0.0
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            num_paths = np.int64(scan.path_count[d])
            for k in range(num_paths):
                node_flow[np.int64(scan.end_node[first_path + k])] += flow[d, k]
            first_path += num_paths
        # From the leaves to the source: children come after their parents.
        for node in range(num_nodes, 0, -1):
            flow_through = node_flow[node]
            load[np.int64(scan.link[first_node + node - 1])] += flow_through
            node_flow[np.int64(scan.parent[first_node + node - 1])] += flow_through


@kernel
def _mark_paths(
    scan: PathScan, link_is_marked: BoolArray, node_is_marked: BoolArray, path_is_marked: BoolArray
) -> None:
    """Compute whether each path has a marked link.

    Args:
        scan: tries and paths of all sources.
        link_is_marked: (E,) whether each link is marked.
        node_is_marked: (trie nodes + 1,) scratch, whether the path to each trie node of a source
            has a marked link.
        path_is_marked: (D, K) whether each path has a marked link (written).
    """
    # Node 0 is the source; node i of a source's trie has the entry i - 1 of its arrays.
    node_is_marked[0] = False
    for s in range(len(scan.node_ptr) - 1):
        # Positions of the source's first trie entry, and of the first path of the present demand.
        first_node = scan.node_ptr[s]
        first_path = scan.path_ptr[s]
        for node in range(1, scan.node_ptr[s + 1] - first_node + 1):
            link = np.int64(scan.link[first_node + node - 1])
            parent = np.int64(scan.parent[first_node + node - 1])
            node_is_marked[node] = node_is_marked[parent] or link_is_marked[link]
        # A path has a marked link if the path to its last node has one.
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            num_paths = np.int64(scan.path_count[d])
            for k in range(num_paths):
                path_is_marked[d, k] = node_is_marked[np.int64(scan.end_node[first_path + k])]
            first_path += num_paths


@kernel
def _move_to_shorter_paths(
    scan: PathScan,
    may_move: BoolArray,
    is_live: BoolArray,
    length: FloatArray,
    demand: FloatArray,
    residual: FloatArray,
    flow: FloatArray,
) -> None:
    """Move flow of some demands from their longest used path to shorter paths with unused capacity.

    Demand after demand: take the flow off the longest used path, and fill the shorter live paths in
    order of length up to their bottlenecks; the rest returns.  Repeat until some flow returns, or
    the longest used path has no shorter alternative.

    Args:
        scan: tries and paths of all sources.
        may_move: (D,) whether a demand's flow may move.
        is_live: (D, K) whether each path is live.
        length: (D, K) length of each path.
        demand: (D,) Gbit/s.
        residual: (E,) residual capacity, Gbit/s (updated).
        flow: (D, K) Gbit/s (updated).
    """
    # Per source: node 0 of its trie is the source, node i has the entry i - 1 of the arrays.
    for s in range(len(scan.node_ptr) - 1):
        # Positions of the source's first trie entry, and of the first path of the present demand.
        first_node = scan.node_ptr[s]
        first_path = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            num_paths = np.int64(scan.path_count[d])
            # In each pass, move flow from the longest used path to shorter ones.
            for _ in range(num_paths if may_move[d] else 0):
                longest_path = -1
                for k in range(num_paths):
                    is_used = flow[d, k] > _MIN_SHARE * demand[d]
                    if is_used and (longest_path < 0 or length[d, k] > length[d, longest_path]):
                        longest_path = k
                if longest_path < 0:
                    break
                longest_path_flow = flow[d, longest_path]
                node = np.int64(scan.end_node[first_path + longest_path])
                # Take the flow off every link from the end of the path up to the source, so that
                # links common to both paths become free.
                while node > 0:
                    residual[np.int64(scan.link[first_node + node - 1])] += longest_path_flow
                    node = np.int64(scan.parent[first_node + node - 1])
                # Fill the shorter paths in order of length; each has to be longer than the last
                # one tried.
                remaining_flow = longest_path_flow
                last_length = -np.inf
                while remaining_flow > 0.0:
                    shorter_path = -1
                    for k in range(num_paths):
                        is_untried = length[d, k] > last_length and is_live[d, k]
                        is_shorter = length[d, k] < length[d, longest_path] * (1 - _MIN_GAIN)
                        if (
                            is_untried
                            and is_shorter
                            and (shorter_path < 0 or length[d, k] < length[d, shorter_path])
                        ):
                            shorter_path = k
                    if shorter_path < 0:
                        break
                    last_length = length[d, shorter_path]
                    # Largest amount that fits: bottleneck of the residual capacities.
                    moved_flow = remaining_flow
                    node = np.int64(scan.end_node[first_path + shorter_path])
                    while node > 0:
                        moved_flow = min(
                            moved_flow, residual[np.int64(scan.link[first_node + node - 1])]
                        )
                        node = np.int64(scan.parent[first_node + node - 1])
                    # Move it, and use up the capacity of the path's links.
                    if moved_flow > 0.0:
                        node = np.int64(scan.end_node[first_path + shorter_path])
                        while node > 0:
                            residual[np.int64(scan.link[first_node + node - 1])] -= moved_flow
                            node = np.int64(scan.parent[first_node + node - 1])
                        flow[d, shorter_path] += moved_flow
                        remaining_flow -= moved_flow
                # Flow that did not fit returns to the longest path, and ends the passes.
                flow[d, longest_path] = remaining_flow
                if remaining_flow > 0.0:
                    node = np.int64(scan.end_node[first_path + longest_path])
                    while node > 0:
                        residual[np.int64(scan.link[first_node + node - 1])] -= remaining_flow
                        node = np.int64(scan.parent[first_node + node - 1])
                    break
            first_path += num_paths
