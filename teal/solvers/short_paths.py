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
    """Move flow to shorter paths at the same value.

    Args:
        problem: B matrices.  Under side conditions, with link costs, and on a GPU the splits are
            returned unchanged.
        splits: (B, D, K) feasible splits.
        length: (E,) length of each link; None for the latency.

    Returns:
        (B, D, K) splits; bitwise equal on paths with unchanged flow.
    """
    is_plain = problem.ops.is_over_paths and not problem.conditions and not problem.has_link_cost
    if not is_plain or splits.is_cuda or problem.ops.column_paths is not problem.paths:
        return splits
    lengths = _latencies(problem)
    if length is not None:
        lengths = problem.ops.path_sum(length.to(torch.float64)[None])[0]
    capacity = problem.capacity.to(torch.float64)
    limit = capacity
    if problem.demand_set.carries_all:
        limit = capacity * problem.utilisation(splits.to(problem.demand)).amax(1, keepdim=True).to(
            torch.float64
        )
    packed = problem.paths.packed
    result = splits.to(torch.float64, copy=True).contiguous()
    with threads_for(_OPERATIONS_PER_PATH * len(result) * packed.num_paths):
        _shorten(
            packed.scan,
            packed.max_slots,
            lengths.numpy(),
            problem.demand.to(torch.float64).contiguous().numpy(),
            capacity.contiguous().numpy(),
            limit.contiguous().numpy(),
            result.numpy(),
        )
    return result.to(splits.dtype)


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
    """Return (D, K) latency of each path, ms; cached for all problems on the same paths."""
    cached = _LATENCY_CACHE.get(problem.ops)
    link_latency = problem.topology.latency
    if cached is None or not np.array_equal(cached.link_latency, link_latency):
        links = torch.as_tensor(link_latency).to(torch.float64)
        path_latency = problem.ops.path_sum(links[None])[0]
        cached = _LATENCY_CACHE[problem.ops] = _Latencies(link_latency.copy(), path_latency)
    return cached.path_latency


def preferred(problem: Problem, splits: Tensor, prefer: str) -> Tensor:
    """Apply :func:`shortened` by latency, by hops, or not at all (none)."""
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
    slots: int,
    length: FloatArray,
    demand: FloatArray,
    capacity: FloatArray,
    limit: FloatArray,
    splits: FloatArray,
) -> None:
    """Shorten the splits (B, D, K) in place, up to link loads ``limit`` (B, E) or the current
    ones.
    """
    for b in range(begin, end):
        _shorten_matrix(scan, slots, length, demand[b], capacity[b], limit[b], splits[b])


@kernel
def _shorten_matrix(
    scan: PathScan,
    slots: int,
    length: FloatArray,
    demand: FloatArray,
    capacity: FloatArray,
    limit: FloatArray,
    splits: FloatArray,
) -> None:
    """Run both stages for one matrix; loops instead of NumPy operations, which take seconds to
    compile.
    """
    (demands, num_paths) = splits.shape
    links = len(capacity)
    node_flow = np.empty(slots)
    node_flag = np.empty(slots, np.bool_)
    live = np.ones((demands, num_paths), np.bool_)
    has_overload = np.zeros((demands, num_paths), np.bool_)
    is_closed = np.empty(links, np.bool_)
    is_over = np.empty(links, np.bool_)
    any_closed = False
    for e in range(links):
        is_closed[e] = capacity[e] <= 0
        any_closed = any_closed or is_closed[e]
    if any_closed:
        _mark_paths(scan, is_closed, node_flag, live)
        for d in range(demands):
            for k in range(num_paths):
                live[d, k] = not live[d, k]
    # Stage 1: all flow on the shortest live path of each demand.
    flow = np.zeros((demands, num_paths))
    new_flow = np.zeros((demands, num_paths))
    shortest_path = np.zeros(demands, np.int64)
    is_kept = np.zeros(demands, np.bool_)
    for d in range(demands):
        total = 0.0
        shortest = -1
        for k in range(np.int64(scan.path_count[d])):
            flow[d, k] = splits[d, k] * demand[d]
            total += flow[d, k]
            if live[d, k] and (shortest < 0 or length[d, k] < length[d, shortest]):
                shortest = k
        if shortest < 0:
            is_kept[d] = True
            _copy_flows(flow, new_flow, d)
        else:
            shortest_path[d] = shortest
            new_flow[d, shortest] = total
    load = np.zeros(links)
    max_load = np.empty(links)
    unused = np.empty(links)
    _sum_loads(scan, new_flow, node_flow, load)
    for e in range(links):
        max_load[e] = limit[e]
    if _mark_over(load, max_load, is_over):
        initial_load = np.zeros(links)
        _sum_loads(scan, flow, node_flow, initial_load)
        for e in range(links):
            max_load[e] = max(limit[e], initial_load[e])  # may exceed the limit by rounding
        # Restore the splits of demands with an overloaded shortest path.
        any_over = _mark_over(load, max_load, is_over)
        for _ in range(_MAX_ROUNDS):
            if not any_over:
                break
            _mark_paths(scan, is_over, node_flag, has_overload)
            for d in range(demands):
                if (
                    has_overload[d, shortest_path[d]]
                    and new_flow[d, shortest_path[d]] > 0
                    and not is_kept[d]
                ):
                    is_kept[d] = True
                    _copy_flows(flow, new_flow, d)
            _sum_loads(scan, new_flow, node_flow, load)
            any_over = _mark_over(load, max_load, is_over)
        if any_over:
            load = initial_load
            for d in range(demands):
                is_kept[d] = True
                _copy_flows(flow, new_flow, d)
    # Stage 2: move the flow of kept demands.
    for e in range(links):
        unused[e] = max(max_load[e] - load[e], 0.0)
    _move_to_shorter_paths(scan, is_kept, live, length, demand, unused, new_flow)
    for d in range(demands):
        for k in range(num_paths if demand[d] > 0 else 0):
            if new_flow[d, k] != flow[d, k]:
                splits[d, k] = new_flow[d, k] / demand[d]


@inner_kernel
def _copy_flows(flow: FloatArray, new_flow: FloatArray, d: int) -> None:
    """Copy the flows of demand ``d``."""
    for k in range(flow.shape[1]):
        new_flow[d, k] = flow[d, k]


@inner_kernel
def _mark_over(load: FloatArray, max_load: FloatArray, is_over: BoolArray) -> bool:
    """Write whether each link (E,) carries more than ``max_load``; return whether any does."""
    any_over = False
    for e in range(len(load)):
        is_over[e] = load[e] > max_load[e]
        any_over = any_over or is_over[e]
    return any_over


@kernel
def _sum_loads(scan: PathScan, flow: FloatArray, node_flow: FloatArray, load: FloatArray) -> None:
    """Compute the loads (E,) of flows (D, K)."""
    for e in range(len(load)):
        load[e] = 0.0
    for s in range(len(scan.node_ptr) - 1):
        begin = scan.node_ptr[s]
        path = scan.path_ptr[s]
        nodes = scan.node_ptr[s + 1] - begin
        for node in range(nodes + 1):
            node_flow[node] = 0.0
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            num_paths = np.int64(scan.path_count[d])
            for k in range(num_paths):
                node_flow[np.int64(scan.end_node[path + k])] += flow[d, k]
            path += num_paths
        for node in range(nodes, 0, -1):  # children come after their parents
            passing = node_flow[node]
            load[np.int64(scan.link[begin + node - 1])] += passing
            node_flow[np.int64(scan.parent[begin + node - 1])] += passing


@kernel
def _mark_paths(
    scan: PathScan, on_link: BoolArray, node_flag: BoolArray, on_path: BoolArray
) -> None:
    """Write to (D, K) whether a path has a marked link (E,)."""
    node_flag[0] = False
    for s in range(len(scan.node_ptr) - 1):
        begin = scan.node_ptr[s]
        path = scan.path_ptr[s]
        for node in range(1, scan.node_ptr[s + 1] - begin + 1):
            link = np.int64(scan.link[begin + node - 1])
            parent = np.int64(scan.parent[begin + node - 1])
            node_flag[node] = node_flag[parent] or on_link[link]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            num_paths = np.int64(scan.path_count[d])
            for k in range(num_paths):
                on_path[d, k] = node_flag[np.int64(scan.end_node[path + k])]
            path += num_paths


@kernel
def _move_to_shorter_paths(
    scan: PathScan,
    is_open: BoolArray,
    live: BoolArray,
    length: FloatArray,
    demand: FloatArray,
    unused: FloatArray,
    flow: FloatArray,
) -> None:
    """Move flow (D, K) of open demands (D,) in place; ``unused`` (E,) is the residual capacity."""
    for s in range(len(scan.node_ptr) - 1):
        first = scan.node_ptr[s]
        path = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            num_paths = np.int64(scan.path_count[d])
            # From the longest used path to the shortest one with unused capacity, until lengths
            # meet.
            for _ in range(num_paths if is_open[d] else 0):
                longest = -1
                for k in range(num_paths):
                    is_used = flow[d, k] > _MIN_SHARE * demand[d]
                    if is_used and (longest < 0 or length[d, k] > length[d, longest]):
                        longest = k
                if longest < 0:
                    break
                amount = flow[d, longest]
                node = np.int64(scan.end_node[path + longest])
                # Remove the flow first: common links of both paths become free.
                while node > 0:
                    unused[np.int64(scan.link[first + node - 1])] += amount
                    node = np.int64(scan.parent[first + node - 1])
                remaining = amount
                last_length = -np.inf
                while remaining > 0.0:
                    shorter = -1
                    for k in range(num_paths):
                        is_next = length[d, k] > last_length and live[d, k]
                        is_shorter = length[d, k] < length[d, longest] * (1 - _MIN_GAIN)
                        if (
                            is_next
                            and is_shorter
                            and (shorter < 0 or length[d, k] < length[d, shorter])
                        ):
                            shorter = k
                    if shorter < 0:
                        break
                    last_length = length[d, shorter]
                    moved = remaining
                    node = np.int64(scan.end_node[path + shorter])
                    while node > 0:
                        moved = min(moved, unused[np.int64(scan.link[first + node - 1])])
                        node = np.int64(scan.parent[first + node - 1])
                    if moved > 0.0:
                        node = np.int64(scan.end_node[path + shorter])
                        while node > 0:
                            unused[np.int64(scan.link[first + node - 1])] -= moved
                            node = np.int64(scan.parent[first + node - 1])
                        flow[d, shorter] += moved
                        remaining -= moved
                flow[d, longest] = remaining
                if remaining > 0.0:
                    node = np.int64(scan.end_node[path + longest])
                    while node > 0:
                        unused[np.int64(scan.link[first + node - 1])] -= remaining
                        node = np.int64(scan.parent[first + node - 1])
                    break
            path += num_paths
