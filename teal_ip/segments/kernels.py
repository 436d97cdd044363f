"""Compiled parts of the iteration over midpoints; symbols as in :mod:`teal_ip.segments`."""

from __future__ import annotations

import numpy as np

from teal.network.ecmp import Dags
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.parallel import kernel, partitioned_kernel

OPERATIONS_PER_SLOT = 20  # scalar operations of a step, approximately


def grouped(node: IntArray, nodes: int) -> tuple[IntArray, IntArray]:
    """Pointers (N + 1,) and demand numbers (D,), grouped by a node of each demand (D,)."""
    ptr = np.concatenate([[0], np.cumsum(np.bincount(node, minlength=nodes))]).astype(np.int32)
    return ptr, np.argsort(node, kind="stable").astype(np.int32)


@partitioned_kernel("pi")
def cheapest_midpoints(
    begin: int,
    end: int,
    pi: FloatArray,
    pi_from: FloatArray,
    source: IntArray,
    target: IntArray,
    ptr: IntArray,
    order: IntArray,
    best: IntArray,
    cost: FloatArray,
) -> None:
    """The least pi[m, s] + pi[t, m] of each demand over all midpoints m.

    Args:
        pi: (N, N) destination first.
        pi_from: (N, N) its transpose, so that both rows of a sum are contiguous.
        source: (D,) s.
        target: (D,) t.
        ptr: (N + 1,) demands by source.
        order: (D,) their numbers.
        best: (D,) receives the midpoint; the target itself on a tie.
        cost: (D,) receives the cost.
    """
    nodes = len(pi)
    for s in range(begin, end):
        total = np.empty(nodes)
        for i in range(ptr[s], ptr[s + 1]):
            d = order[i]
            t = target[d]
            for m in range(nodes):
                total[m] = pi_from[s, m] + pi[t, m]
            least = total[0]
            for m in range(1, nodes):
                least = min(least, total[m])
            where = t
            if total[t] > least:
                for m in range(nodes):
                    if total[m] == least:
                        where = m
                        break
            best[d], cost[d] = where, least


@partitioned_kernel("volume")
def first_segments(
    begin: int,
    end: int,
    ptr: IntArray,
    order: IntArray,
    demand: FloatArray,
    mid: IntArray,
    share: FloatArray,
    volume: FloatArray,
) -> None:
    """Add the volumes from sources to midpoints to (N, N) volume[source, midpoint]; one source a
    thread.
    """
    for s in range(begin, end):
        for i in range(ptr[s], ptr[s + 1]):
            d = order[i]
            for k in range(mid.shape[1]):
                if mid[d, k] >= 0:
                    volume[s, mid[d, k]] += demand[d] * share[d, k]


@partitioned_kernel("volume")
def last_segments(
    begin: int,
    end: int,
    ptr: IntArray,
    order: IntArray,
    demand: FloatArray,
    mid: IntArray,
    share: FloatArray,
    volume: FloatArray,
) -> None:
    """Add the volumes from midpoints to targets to (N, N) volume[target, midpoint]; one target a
    thread.
    """
    for t in range(begin, end):
        for i in range(ptr[t], ptr[t + 1]):
            d = order[i]
            for k in range(mid.shape[1]):
                if mid[d, k] >= 0 and mid[d, k] != t:
                    volume[t, mid[d, k]] += demand[d] * share[d, k]


@kernel
def _project(share: FloatArray, count: int, sums_to_one: bool) -> None:
    """The nearest point of the simplex sum = 1 or <= 1, of the first ``count`` entries."""
    total = 0.0
    for k in range(count):
        total += max(0.0, share[k])
    if not sums_to_one and total <= 1.0:
        for k in range(count):
            share[k] = max(0.0, share[k])
        return
    # Michelot's algorithm: leave out what would be negative until nothing is.
    left, excess = count, -1.0
    for k in range(count):
        excess += share[k]
    level = excess / left
    while True:
        new_left, new_sum = 0, -1.0
        for k in range(count):
            if share[k] > level:
                new_left += 1
                new_sum += share[k]
        if new_left >= left or new_left == 0:  # rounding may put one back
            break
        left = new_left
        level = new_sum / left
    for k in range(count):
        share[k] = max(0.0, share[k] - level)


@partitioned_kernel("ptr", lambda ptr: len(ptr) - 1)
def step(
    begin: int,
    end: int,
    pi: FloatArray,
    pi_from: FloatArray,
    target: IntArray,
    ptr: IntArray,
    order: IntArray,
    mid: IntArray,
    tau: FloatArray,
    omega: float,
    value: float,
    share: FloatArray,
    extrapolated: FloatArray,
    total: FloatArray,
) -> None:
    """One primal step of all demands: shares, their extrapolation 2 x' - x, and their running
    total.

    Args:
        pi: (N, N) prices of segments, destination first.
        pi_from: (N, N) its transpose.
        target: (D,) t.
        ptr: (N + 1,) demands by source.
        order: (D,) their numbers.
        mid: (D, K) midpoints, -1 for none, which stand last.
        tau: (D,) step size at a primal weight of 1.
        omega: primal weight.
        value: value of a Gbit/s, 0 where shares sum to 1.
        share: (D, K) changed.
        extrapolated: (D, K) filled.
        total: (D, K) to which the new shares are added.
    """
    slots = mid.shape[1]
    for s in range(begin, end):
        new = np.empty(slots)
        for i in range(ptr[s], ptr[s + 1]):
            d = order[i]
            t, size, count = target[d], tau[d] / omega, 0
            for k in range(slots):
                m = mid[d, k]
                if m < 0:
                    break
                new[k] = share[d, k] + size * (value - pi_from[s, m] - pi[t, m])
                count += 1
            _project(new, count, value == 0.0)
            for k in range(count):
                extrapolated[d, k] = 2 * new[k] - share[d, k]
                share[d, k] = new[k]
                total[d, k] += new[k]


@partitioned_kernel("best")
def take_midpoints(
    begin: int,
    end: int,
    pi: FloatArray,
    pi_from: FloatArray,
    source: IntArray,
    target: IntArray,
    best: IntArray,
    cost: FloatArray,
    mid: IntArray,
    share: FloatArray,
    average: FloatArray,
) -> None:
    """Let each demand hold its cheapest midpoint: in a free slot, or in that of the least share,
    which it takes over.

    The first slot, straight to the target, stays.

    Args:
        pi: (N, N) prices of segments, destination first.
        pi_from: (N, N) its transpose.
        source: (D,) s.
        target: (D,) t.
        best: (D,) midpoint.
        cost: (D,) its cost.
        mid: (D, K) changed.
        share: (D, K) the shares go with their slots.
        average: (D, K) likewise.
    """
    slots = mid.shape[1]
    for d in range(begin, end):
        s, t, m = source[d], target[d], best[d]
        held, least, free, smallest = False, np.inf, -1, -1
        for k in range(slots):
            if mid[d, k] < 0:
                free = k
                break
            if mid[d, k] == m:
                held = True
                break
            least = min(least, pi_from[s, mid[d, k]] + pi[t, mid[d, k]])
            if k > 0 and (smallest < 0 or average[d, k] < average[d, smallest]):
                smallest = k
        if held or m == s or cost[d] >= least * (1 - 1e-9):
            continue
        if free >= 0:
            mid[d, free], share[d, free], average[d, free] = m, 0.0, 0.0
        elif smallest >= 0:
            mid[d, smallest] = m


@kernel
def first_next_hops(head: IntArray, dags: Dags, parent: IntArray) -> None:
    """Fill ``parent`` (N, N) with the first next hop towards the first node from the second one;
    others stay.
    """
    for t in range(len(parent)):
        for i in range(1, dags.reached[t]):
            parent[t, dags.order[t, i]] = head[dags.arc[t, dags.arc_start[t, i]]]


@kernel
def most_saved(dags: Dags, parent: IntArray, saving: FloatArray) -> float:
    """The largest sum of savings of nodes (N, N), by destination, of which none is on the way of
    another.

    Towards each destination the ways along ``parent`` are a tree, where a node saves itself or lets
    those behind it.
    """
    total, behind = 0.0, np.empty(len(parent))
    for t in range(len(parent)):
        behind[:] = 0.0
        for j in range(dags.reached[t] - 1):
            node = dags.order[t, dags.reached[t] - 1 - j]
            behind[parent[t, node]] += max(saving[t, node], behind[node])
        total += behind[t]
    return total
