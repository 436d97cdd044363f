"""Short paths where nothing is gained by long ones.

Objectives such as total_flow do not care which of a demand's paths carries a Gbit/s, and an optimum
may send traffic over long paths on an empty network.  From a feasible allocation, flow moves to
shorter paths of the same demand.  What each demand carries in total stays, and so do value, bound
and gap, exactly; only mean latency falls.  Under max_link_utilisation links may be loaded up to the
largest utilisation that there is.

1. All demands take their shortest path, but for those whose shortest path has a link that would
   then be overfull: these keep their splits.  Some rounds, since the splits that are kept need
   capacity too.
2. Those that kept their splits move flow one after the other, from the longest path that carries
   any to the shortest one with capacity left.

This is greedy: it does not find the least mean latency among all allocations of the same value.  A
price on latency in the program itself cannot replace it at usual gaps: a price that is small enough
to cost less than the gap is lost in the error that the gap allows (docs/operating.md has a
measurement).
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

_OPERATIONS_PER_PATH = 100  # scalar operations, approximately
_MIN_GAIN = 1e-9  # relative difference of lengths from which on flow moves
_MIN_SHARE = 1e-9  # of a demand, below which moving it is not worth the time
_MAX_ROUNDS = 8  # of the first stage; then the second one starts from the splits as they were


def shortened(problem: Problem, splits: Tensor, length: Tensor | None = None) -> Tensor:
    """Splits of the same value on shorter paths.

    Args:
        problem: B matrices.  Under side conditions, with costs of links, and on a GPU the splits
            stay as they are.
        splits: (B, D, K), feasible.
        length: (E,) what is preferred to be small, such as ms; None for the latency.

    Returns:
        (B, D, K); a path whose flow stays keeps its split to the bit.
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
    packed, moved = problem.paths.packed, splits.to(torch.float64, copy=True).contiguous()
    with threads_for(_OPERATIONS_PER_PATH * len(moved) * packed.num_paths):
        _shorten(
            packed.scan,
            packed.max_slots,
            lengths.numpy(),
            problem.demand.to(torch.float64).contiguous().numpy(),
            capacity.contiguous().numpy(),
            limit.contiguous().numpy(),
            moved.numpy(),
        )
    return moved.to(splits.dtype)


class _Latencies(NamedTuple):
    """Latencies of paths (D, K), ms, and those of the links (E,) that they are sums of."""

    of_links: FloatArray
    of_paths: Tensor


_KEPT: weakref.WeakKeyDictionary[PathOps, _Latencies] = weakref.WeakKeyDictionary()


def _latencies(problem: Problem) -> Tensor:
    """(D, K) ms of each path, which all problems on the same paths have in common."""
    known = _KEPT.get(problem.ops)
    of_links = problem.topology.latency
    if known is None or not np.array_equal(known.of_links, of_links):
        links = torch.as_tensor(of_links).to(torch.float64)
        of_paths = problem.ops.path_sum(links[None])[0]
        known = _KEPT[problem.ops] = _Latencies(of_links.copy(), of_paths)
    return known.of_paths


def preferred(problem: Problem, splits: Tensor, prefer: str) -> Tensor:
    """:func:`shortened` by latency, by hops, or not at all (none)."""
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
    """Move the splits (B, D, K) in place; links may carry ``limit`` (B, E), or what they carry
    now.
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
    """Both stages for one matrix; loops in the place of NumPy's operations, which take seconds to
    compile.
    """
    (demands, num_paths), links = splits.shape, len(capacity)
    slot, marked = np.empty(slots), np.empty(slots, np.bool_)
    live, touched = (
        np.ones((demands, num_paths), np.bool_),
        np.zeros((demands, num_paths), np.bool_),
    )
    is_closed, is_over, any_closed = np.empty(links, np.bool_), np.empty(links, np.bool_), False
    for e in range(links):
        is_closed[e] = capacity[e] <= 0
        any_closed = any_closed or is_closed[e]
    if any_closed:
        _mark_paths(scan, is_closed, marked, live)
        for d in range(demands):
            for k in range(num_paths):
                live[d, k] = not live[d, k]
    flow, moved = np.zeros((demands, num_paths)), np.zeros((demands, num_paths))
    first, kept = np.zeros(demands, np.int64), np.zeros(demands, np.bool_)
    for d in range(demands):
        total, shortest = 0.0, -1
        for k in range(np.int64(scan.path_count[d])):
            flow[d, k] = splits[d, k] * demand[d]
            total += flow[d, k]
            if live[d, k] and (shortest < 0 or length[d, k] < length[d, shortest]):
                shortest = k
        if shortest < 0:
            kept[d] = True
            _copy_flows(flow, moved, d)
        else:
            first[d] = shortest
            moved[d, shortest] = total
    load, most, room = np.zeros(links), np.empty(links), np.empty(links)
    _sum_loads(scan, moved, slot, load)
    for e in range(links):
        most[e] = limit[e]
    if _mark_over(load, most, is_over):
        before = np.zeros(links)
        _sum_loads(scan, flow, slot, before)
        for e in range(links):
            most[e] = max(limit[e], before[e])  # which may be above the limit by rounding
        any_over = _mark_over(load, most, is_over)
        for _ in range(_MAX_ROUNDS):
            if not any_over:
                break
            _mark_paths(scan, is_over, marked, touched)
            for d in range(demands):
                if touched[d, first[d]] and moved[d, first[d]] > 0 and not kept[d]:
                    kept[d] = True
                    _copy_flows(flow, moved, d)
            _sum_loads(scan, moved, slot, load)
            any_over = _mark_over(load, most, is_over)
        if any_over:
            load = before
            for d in range(demands):
                kept[d] = True
                _copy_flows(flow, moved, d)
    for e in range(links):
        room[e] = max(most[e] - load[e], 0.0)
    _move_kept(scan, kept, live, length, demand, room, moved)
    for d in range(demands):
        for k in range(num_paths if demand[d] > 0 else 0):
            if moved[d, k] != flow[d, k]:
                splits[d, k] = moved[d, k] / demand[d]


@inner_kernel
def _copy_flows(flow: FloatArray, moved: FloatArray, d: int) -> None:
    """Copy the flows (D, K) of demand ``d``."""
    for k in range(flow.shape[1]):
        moved[d, k] = flow[d, k]


@inner_kernel
def _mark_over(load: FloatArray, most: FloatArray, is_over: BoolArray) -> bool:
    """Write which links (E,) carry more than ``most``; whether any does."""
    any_over = False
    for e in range(len(load)):
        is_over[e] = load[e] > most[e]
        any_over = any_over or is_over[e]
    return any_over


@kernel
def _sum_loads(scan: PathScan, flow: FloatArray, slot: FloatArray, load: FloatArray) -> None:
    """Write the load (E,) of flow (D, K)."""
    for e in range(len(load)):
        load[e] = 0.0
    for s in range(len(scan.node_ptr) - 1):
        begin, path = scan.node_ptr[s], scan.path_ptr[s]
        nodes = scan.node_ptr[s + 1] - begin
        for node in range(nodes + 1):
            slot[node] = 0.0
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            count = np.int64(scan.path_count[d])
            for k in range(count):
                slot[np.int64(scan.end_node[path + k])] += flow[d, k]
            path += count
        for node in range(nodes, 0, -1):  # children come after their parents
            carried = slot[node]
            load[np.int64(scan.link[begin + node - 1])] += carried
            slot[np.int64(scan.parent[begin + node - 1])] += carried


@kernel
def _mark_paths(scan: PathScan, on_link: BoolArray, marked: BoolArray, on_path: BoolArray) -> None:
    """Write to (D, K) whether a path has a link that is marked (E,)."""
    marked[0] = False
    for s in range(len(scan.node_ptr) - 1):
        begin, path = scan.node_ptr[s], scan.path_ptr[s]
        for node in range(1, scan.node_ptr[s + 1] - begin + 1):
            link, parent = (
                np.int64(scan.link[begin + node - 1]),
                np.int64(scan.parent[begin + node - 1]),
            )
            marked[node] = marked[parent] or on_link[link]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            count = np.int64(scan.path_count[d])
            for k in range(count):
                on_path[d, k] = marked[np.int64(scan.end_node[path + k])]
            path += count


@kernel
def _move_kept(
    scan: PathScan,
    is_open: BoolArray,
    live: BoolArray,
    length: FloatArray,
    demand: FloatArray,
    free: FloatArray,
    moving: FloatArray,
) -> None:
    """Move flow (D, K) of open demands (D,) in place; ``free`` (E,) is what each link may still
    take.
    """
    for s in range(len(scan.node_ptr) - 1):
        first, path = scan.node_ptr[s], scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            count = np.int64(scan.path_count[d])
            # The longest path that carries flow gives to the shortest with room, until lengths
            # meet.
            for _ in range(count if is_open[d] else 0):
                giver = -1
                for k in range(count):
                    carries = moving[d, k] > _MIN_SHARE * demand[d]
                    if carries and (giver < 0 or length[d, k] > length[d, giver]):
                        giver = k
                if giver < 0:
                    break
                amount = moving[d, giver]
                node = np.int64(scan.end_node[path + giver])
                while node > 0:  # its own flow makes room on links that both paths have
                    free[np.int64(scan.link[first + node - 1])] += amount
                    node = np.int64(scan.parent[first + node - 1])
                left = amount
                last = -np.inf
                while left > 0.0:
                    taker = -1
                    for k in range(count):
                        is_next = length[d, k] > last and live[d, k]
                        is_shorter = length[d, k] < length[d, giver] * (1 - _MIN_GAIN)
                        if (
                            is_next
                            and is_shorter
                            and (taker < 0 or length[d, k] < length[d, taker])
                        ):
                            taker = k
                    if taker < 0:
                        break
                    last, most = length[d, taker], left
                    node = np.int64(scan.end_node[path + taker])
                    while node > 0:
                        most = min(most, free[np.int64(scan.link[first + node - 1])])
                        node = np.int64(scan.parent[first + node - 1])
                    if most > 0.0:
                        node = np.int64(scan.end_node[path + taker])
                        while node > 0:
                            free[np.int64(scan.link[first + node - 1])] -= most
                            node = np.int64(scan.parent[first + node - 1])
                        moving[d, taker] += most
                        left -= most
                moving[d, giver] = left
                if left > 0.0:
                    node = np.int64(scan.end_node[path + giver])
                    while node > 0:
                        free[np.int64(scan.link[first + node - 1])] -= left
                        node = np.int64(scan.parent[first + node - 1])
                    break
            path += count
