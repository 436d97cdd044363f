"""Short paths where nothing is gained by long ones.

Objectives such as total_flow do not care which of a demand's paths carries a Gbit/s, and an optimum may send traffic
over long paths on an empty network.  From a feasible allocation, flow moves to shorter paths of the same demand.  What
each demand carries in total stays, and so do value, bound and gap, exactly; only mean latency falls.  Under
max_link_utilisation links may be loaded up to the largest utilisation that there is.

1. All demands take their shortest path, but for those whose shortest path has a link that would then be overfull: these
   keep their splits.  Some rounds, since the splits that are kept need capacity too.
2. Those that kept their splits move flow one after the other, from the longest path that carries any to the shortest
   one with capacity left.

This is greedy: it does not find the least mean latency among all allocations of the same value.  A price on latency in
the program itself cannot replace it at usual gaps: a price that is small enough to cost less than the gap is lost in
the error that the gap allows (docs/operating.md has a measurement).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from teal.network.packed import PathScan
from teal.problem import Problem
from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.parallel import parallel_kernel, prange, threads_for

_OPERATIONS_PER_PATH = 100  # scalar operations, approximately
_LEAST_GAIN = 1e-9  # relative difference of lengths from which on flow moves
_LEAST_SHARE = 1e-9  # of a demand, below which moving it is not worth the time
_MOST_ROUNDS = 8  # of the first stage; then the second one starts from the splits as they were


def shortened(problem: Problem, splits: Tensor, length: Tensor | None = None) -> Tensor:
    """Splits of the same value on shorter paths.

    Args:
        problem: B matrices.  Under side conditions, with costs of links, and on a GPU the splits stay as they are.
        splits: (B, D, K), feasible.
        length: (E,) what is preferred to be small, such as ms; None for the latency.

    Returns:
        (B, D, K).
    """
    is_plain = problem.ops.is_over_paths and not problem.conditions and not problem.has_link_cost
    if not is_plain or splits.is_cuda or problem.ops.column_paths is not problem.paths:
        return splits
    if length is None:
        length = torch.as_tensor(problem.topology.latency)
    demand = problem.demand.to(torch.float64)
    flow = splits.to(torch.float64) * demand[..., None]
    lengths = problem.ops.path_sum(length.to(torch.float64)[None])[0]
    moved, room, kept = _on_shortest(problem, flow, lengths)
    if bool(kept.any()):
        packed = problem.paths.packed
        with threads_for(_OPERATIONS_PER_PATH * int(kept.sum()) * flow.shape[-1]):
            _shorten(
                packed.scan, kept.numpy(), problem.path_mask.numpy(), lengths.numpy(), demand.numpy(),
                room.contiguous().numpy(),
                moved.numpy(),
            )  # fmt: skip
    if torch.equal(moved, flow):
        return splits
    shares = (moved / demand.clamp(min=1e-300)[..., None]).to(splits.dtype)
    return torch.where(problem.demand[..., None] > 0, shares, splits)


def _limit(problem: Problem, flow: Tensor) -> Tensor:
    """(B, E) Gbit/s that links may carry, if they carry ``flow`` (B, D, K) now."""
    load, limit = problem.ops.link_sum(flow), problem.capacity.to(torch.float64)
    if problem.demand_set.carries_all:
        limit = limit * problem.utilisation_of(load.to(problem.capacity)).amax(1, keepdim=True).to(torch.float64)
    return torch.maximum(limit, load)  # which may be above by rounding


def _on_shortest(problem: Problem, flow: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Put all demands on their shortest path that fit there.

    Returns:
        Flow (B, D, K), what each link may still take (B, E), and (B, D) which demands kept theirs.
    """
    first = torch.where(problem.path_mask, length, torch.inf).argmin(-1, keepdim=True).expand(len(flow), -1, -1)
    total = flow.sum(-1, keepdim=True)
    shortest = torch.zeros_like(flow).scatter_(-1, first, total)
    kept = torch.zeros(flow.shape[:2], dtype=torch.bool)
    load = problem.ops.link_sum(shortest)
    if not problem.demand_set.carries_all and bool((load <= problem.capacity).all()):
        return shortest, problem.capacity - load, kept
    limit, moved = _limit(problem, flow), shortest
    for _ in range(_MOST_ROUNDS):
        is_overfull = load > limit
        if not bool(is_overfull.any()):
            return moved.contiguous(), (limit - load).clamp(min=0), kept
        touched = problem.ops.path_sum(is_overfull.to(torch.float64)).expand_as(flow).gather(-1, first)
        kept |= ((touched > 0) & (total > 0))[..., 0]
        moved = torch.where(kept[..., None], flow, shortest)
        load = problem.ops.link_sum(moved)
    return flow.clone(), (limit - problem.ops.link_sum(flow)).clamp(min=0), torch.ones_like(kept)


def preferred(problem: Problem, splits: Tensor, prefer: str) -> Tensor:
    """:func:`shortened` by latency, by hops, or not at all (none)."""
    if prefer == "none":
        return splits
    return shortened(problem, splits, torch.ones(problem.topology.num_links) if prefer == "hops" else None)


@parallel_kernel
def _shorten(
    scan: PathScan, is_open: BoolArray, live: BoolArray, length: FloatArray, demand: FloatArray, room: FloatArray,
    flow: FloatArray
) -> None:  # fmt: skip
    """Move flow (B, D, K) of open demands (B, D) in place; ``room`` (B, E) is what each link may still take."""
    for b in prange(len(demand)):
        free, moving = room[b], flow[b]
        for s in range(len(scan.node_ptr) - 1):
            first, path = scan.node_ptr[s], scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                count = np.int64(scan.path_count[d])
                # The longest path that carries flow gives to the shortest with room, until lengths meet.
                for _ in range(count if is_open[b, d] else 0):
                    giver = -1
                    for k in range(count):
                        carries = moving[d, k] > _LEAST_SHARE * demand[b, d]
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
                            is_next = length[d, k] > last and live[b, d, k]
                            is_shorter = length[d, k] < length[d, giver] * (1 - _LEAST_GAIN)
                            if is_next and is_shorter and (taker < 0 or length[d, k] < length[d, taker]):
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
