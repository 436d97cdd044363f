"""Compiled kernels of the PDHG iteration over midpoints; symbols as in :mod:`teal_ip.segments`."""

from __future__ import annotations

import numpy as np

from teal.network.ecmp import Dags
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.parallel import kernel, partitioned_kernel

# Scalar operations per slot of a step, approximately; decides how many threads are used.
OPERATIONS_PER_SLOT = 20


def grouped(node: IntArray, nodes: int) -> tuple[IntArray, IntArray]:
    """Return pointers (N + 1,) and demand indices (D,), grouped by a node of each demand (D,)."""
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
    """Find the midpoint m of least cost pi[m, s] + pi[t, m] for each demand.

    Args:
        pi: (N, N) destination first.
        pi_from: (N, N) its transpose, so that both rows of a sum are contiguous.
        source: (D,) s.
        target: (D,) t.
        ptr: (N + 1,) demands by source.
        order: (D,) demand indices, grouped by source.
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
            min_cost = total[0]
            for m in range(1, nodes):
                min_cost = min(min_cost, total[m])
            best_stop = t
            if total[t] > min_cost:
                for m in range(nodes):
                    if total[m] == min_cost:
                        best_stop = m
                        break
            best[d], cost[d] = best_stop, min_cost


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
    """Add the traffic from sources to midpoints to (N, N) volume[source, midpoint]; threads split
    the sources.
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
    """Add the traffic from midpoints to targets to (N, N) volume[target, midpoint]; threads split
    the targets.
    """
    for t in range(begin, end):
        for i in range(ptr[t], ptr[t + 1]):
            d = order[i]
            for k in range(mid.shape[1]):
                if mid[d, k] >= 0 and mid[d, k] != t:
                    volume[t, mid[d, k]] += demand[d] * share[d, k]


@kernel
def _project(share: FloatArray, count: int, sums_to_one: bool) -> None:
    """Project the first ``count`` entries onto the simplex sum = 1, or sum <= 1, in place."""
    total = 0.0
    for k in range(count):
        total += max(0.0, share[k])
    if not sums_to_one and total <= 1.0:
        for k in range(count):
            share[k] = max(0.0, share[k])
        return
    # Michelot's algorithm: drop entries that would become negative until there are none.
    num_positive = count
    excess = -1.0
    for k in range(count):
        excess += share[k]
    level = excess / num_positive
    while True:
        new_num_positive = 0
        new_sum = -1.0
        for k in range(count):
            if share[k] > level:
                new_num_positive += 1
                new_sum += share[k]
        # Rounding may bring an entry back.
        if new_num_positive >= num_positive or new_num_positive == 0:
            break
        num_positive = new_num_positive
        level = new_sum / num_positive
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
    """Take one primal step of all demands: shares, their extrapolation 2 x' - x, running totals.

    Args:
        pi: (N, N) prices of segments, destination first.
        pi_from: (N, N) its transpose.
        target: (D,) t.
        ptr: (N + 1,) demands by source.
        order: (D,) demand indices, grouped by source.
        mid: (D, K) midpoints, -1 for empty slots, which come last.
        tau: (D,) step size at a primal weight of 1.
        omega: primal weight.
        value: utility of a Gbit/s; 0 where shares sum to 1.
        share: (D, K) shares, updated in place.
        extrapolated: (D, K) receives the extrapolation.
        total: (D, K) running totals, to which the new shares are added.
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
    """Store the cheapest midpoint of each demand if it costs less than all stored ones: in a free
    slot, or in the least used slot, whose share it inherits.

    The first slot, with the shortest paths to the target, never changes.

    Args:
        pi: (N, N) prices of segments, destination first.
        pi_from: (N, N) its transpose.
        source: (D,) s.
        target: (D,) t.
        best: (D,) cheapest midpoint.
        cost: (D,) cost of the cheapest midpoint.
        mid: (D, K) midpoints, updated in place.
        share: (D, K) shares of the slots, updated in place.
        average: (D, K) running averages of the slots, updated in place.
    """
    slots = mid.shape[1]
    for d in range(begin, end):
        s, t, m = source[d], target[d], best[d]
        is_stored, min_cost, free, smallest = False, np.inf, -1, -1
        for k in range(slots):
            if mid[d, k] < 0:
                free = k
                break
            if mid[d, k] == m:
                is_stored = True
                break
            min_cost = min(min_cost, pi_from[s, mid[d, k]] + pi[t, mid[d, k]])
            if k > 0 and (smallest < 0 or average[d, k] < average[d, smallest]):
                smallest = k
        if is_stored or m == s or cost[d] >= min_cost * (1 - 1e-9):
            continue
        if free >= 0:
            mid[d, free], share[d, free], average[d, free] = m, 0.0, 0.0
        elif smallest >= 0:
            mid[d, smallest] = m


@kernel
def first_next_hops(head: IntArray, dags: Dags, parent: IntArray) -> None:
    """Fill ``parent`` (N, N) with the first next hop from each node (column) to each destination
    (row); entries without a path stay.
    """
    for t in range(len(parent)):
        for i in range(1, dags.reached[t]):
            parent[t, dags.order[t, i]] = head[dags.arc[t, dags.arc_start[t, i]]]


@kernel
def max_antichain_saving(dags: Dags, parent: IntArray, saving: FloatArray) -> float:
    """Return the largest total saving of nodes (N, N), by destination, where no chosen node lies on
    the path of another.

    Towards each destination the next hops ``parent`` form a tree.  A dynamic program from the
    leaves to the root chooses either a node or nodes of its subtree.
    """
    total, subtree_saving = 0.0, np.empty(len(parent))
    for t in range(len(parent)):
        subtree_saving[:] = 0.0
        for j in range(dags.reached[t] - 1):
            node = dags.order[t, dags.reached[t] - 1 - j]
            subtree_saving[parent[t, node]] += max(saving[t, node], subtree_saving[node])
        total += subtree_saving[t]
    return total
