"""Short paths where nothing is gained by long ones.

Objectives such as total_flow do not care which of a demand's paths carries a Gbit/s, and an optimum may send traffic
over long paths on an empty network.  From a feasible allocation, demand by demand, flow moves from the longest path
that carries any to the shortest one with capacity left.  What each demand carries in total stays, and so do value,
bound and gap, exactly; only mean latency falls.  Under max_link_utilisation links may be loaded up to the largest
utilisation that there is.

This is greedy: it does not find the least mean latency among all allocations of the same value.
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
    flow = problem.to(torch.float64).flows(splits.to(torch.float64)).contiguous()
    load = problem.ops.link_sum(flow)
    limit = problem.capacity.to(torch.float64)
    if problem.demand_set.carries_all:
        limit = limit * problem.utilisation_of(load.to(problem.capacity)).amax(1, keepdim=True).to(torch.float64)
    lengths = problem.ops.path_sum(length.to(torch.float64)[None])[0]
    room = (limit - load).clamp(min=0).contiguous()
    moved = flow.clone()
    before = moved.numpy().copy()
    packed = problem.paths.packed
    with threads_for(_OPERATIONS_PER_PATH * problem.batch * packed.num_paths):
        _shorten(
            packed.scan, problem.path_mask.numpy(), lengths.numpy(), problem.demand.to(torch.float64).numpy(),
            room.numpy(), moved.numpy(),
        )  # fmt: skip
    if np.array_equal(before, moved.numpy()):
        return splits
    shares = moved / problem.demand.to(torch.float64).clamp(min=1e-300)[..., None]
    return torch.where(problem.demand[..., None] > 0, shares, splits.to(shares)).to(splits.dtype)


def preferred(problem: Problem, splits: Tensor, prefer: str) -> Tensor:
    """:func:`shortened` by latency, by hops, or not at all (none)."""
    if prefer == "none":
        return splits
    return shortened(problem, splits, torch.ones(problem.topology.num_links) if prefer == "hops" else None)


@parallel_kernel
def _shorten(
    scan: PathScan, live: BoolArray, length: FloatArray, demand: FloatArray, room: FloatArray, flow: FloatArray
) -> None:
    """Move flow (B, D, K) in place; ``room`` (B, E) is what each link may still take."""
    for b in prange(len(demand)):
        free, moving = room[b], flow[b]
        for s in range(len(scan.node_ptr) - 1):
            first, path = scan.node_ptr[s], scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                count = np.int64(scan.path_count[d])
                # The longest path that carries flow gives to the shortest with room, until lengths meet.
                for _ in range(count):
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
                    node = np.int64(scan.end_node[path + giver])
                    while node > 0:
                        free[np.int64(scan.link[first + node - 1])] -= left
                        node = np.int64(scan.parent[first + node - 1])
                    if left > 0.0:
                        break
                path += count
