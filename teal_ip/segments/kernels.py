"""Compiled kernels of the PDHG iteration over midpoints (:mod:`teal_ip.segments`).

Axis letters: N nodes, D demands, K slots, which hold the midpoints of a demand in memory.  A
segment (t, u) carries traffic from node u to node t on the IGP's shortest paths; arrays (N, N) of
segments have the destination t first.  Its price is the sum over links of ECMP share times link
price.
"""

from __future__ import annotations

import numpy as np

from teal.network.ecmp import Dags
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.parallel import kernel, partitioned_kernel

# Scalar operations per slot of a step, approximately; decides how many threads are used.
OPERATIONS_PER_SLOT = 20


def grouped(node: IntArray, num_nodes: int) -> tuple[IntArray, IntArray]:
    """Group demands by a node of each, in CSR form.

    Args:
        node: (D,) source, or target, of each demand.
        num_nodes: number of nodes, N.

    Returns:
        ptr (N + 1,) and order (D,): the demands of node n are order[ptr[n]:ptr[n + 1]].
    """
    ptr = np.concatenate([[0], np.cumsum(np.bincount(node, minlength=num_nodes))]).astype(np.int32)
    return ptr, np.argsort(node, kind="stable").astype(np.int32)


@partitioned_kernel("segment_price")
def cheapest_midpoints(
    begin: int,
    end: int,
    segment_price: FloatArray,
    price_by_source: FloatArray,
    source: IntArray,
    target: IntArray,
    ptr: IntArray,
    order: IntArray,
    cheapest_mid: IntArray,
    cost: FloatArray,
) -> None:
    """Find the midpoint m with the least list cost price(s to m) + price(m to t) for each demand.

    A demand has source s and target t.  Threads split the sources ``begin`` to ``end``.

    Args:
        segment_price: (N, N) price of the segment from node u to node t at [t, u]; value per
            Gbit/s.
        price_by_source: (N, N) its transpose, so that both rows of a sum are contiguous.
        source: (D,) source of each demand.
        target: (D,) target of each demand.
        ptr: (N + 1,) the demands of source s are order[ptr[s]:ptr[s + 1]].
        order: (D,) demand indices, grouped by source.
        cheapest_mid: (D,) output, cheapest midpoint; the target itself (no midpoint) on a tie.
        cost: (D,) output, cost of the list over that midpoint.
    """
    nodes = len(segment_price)
    for s in range(begin, end):
        # (N,) cost of the list over each midpoint.
        list_cost = np.empty(nodes)
        for i in range(ptr[s], ptr[s + 1]):
            d = order[i]
            t = target[d]
            for m in range(nodes):
                list_cost[m] = price_by_source[s, m] + segment_price[t, m]
            min_cost = list_cost[0]
            for m in range(1, nodes):
                min_cost = min(min_cost, list_cost[m])
            # The shortest path to the target wins ties, then the midpoint of the lowest index.
            cheapest = t
            if list_cost[t] > min_cost:
                for m in range(nodes):
                    if list_cost[m] == min_cost:
                        cheapest = m
                        break
            cheapest_mid[d], cost[d] = cheapest, min_cost


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
    """Add the traffic of all first segments, from sources to midpoints, to ``volume``.

        volume[s, mid[d, k]] += demand[d] * share[d, k]    for each demand d of source s, slot k

    Threads split the sources ``begin`` to ``end``.

    Args:
        ptr: (N + 1,) the demands of source s are order[ptr[s]:ptr[s + 1]].
        order: (D,) demand indices, grouped by source.
        demand: (D,) Gbit/s.
        mid: (D, K) midpoint of each slot; -1 for an empty slot.
        share: (D, K) split ratio of each slot.
        volume: (N, N) Gbit/s, source first (written).
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
    """Add the traffic of all last segments, from midpoints to targets, to ``volume``.

        volume[t, mid[d, k]] += demand[d] * share[d, k]    for each demand d of target t, slot k

    A slot whose midpoint is the target has no last segment.  Threads split the targets ``begin`` to
    ``end``.

    Args:
        ptr: (N + 1,) the demands of target t are order[ptr[t]:ptr[t + 1]].
        order: (D,) demand indices, grouped by target.
        demand: (D,) Gbit/s.
        mid: (D, K) midpoint of each slot; -1 for an empty slot.
        share: (D, K) split ratio of each slot.
        volume: (N, N) Gbit/s, target first (written).
    """
    for t in range(begin, end):
        for i in range(ptr[t], ptr[t + 1]):
            d = order[i]
            for k in range(mid.shape[1]):
                if mid[d, k] >= 0 and mid[d, k] != t:
                    volume[t, mid[d, k]] += demand[d] * share[d, k]


@kernel
def _project(share: FloatArray, count: int, sums_to_one: bool) -> None:
    """Project the first ``count`` entries of ``share`` onto the simplex, in place (Euclidean norm).

    The projection is max(0, share - threshold), where the threshold makes the sum 1.

    Args:
        share: (K,) split ratios of one demand (written).
        count: number of entries that are used.
        sums_to_one: whether the set is sum = 1; otherwise sum <= 1.
    """
    # Sum of the clipped entries: at most 1 is already feasible for sum <= 1.
    total = 0.0
    for k in range(count):
        total += max(0.0, share[k])
    if not sums_to_one and total <= 1.0:
        for k in range(count):
            share[k] = max(0.0, share[k])
        return
    # Michelot's algorithm: threshold (sum - 1) / number of the entries that stay positive, until
    # their set is constant.
    num_positive = count
    excess = -1.0
    for k in range(count):
        excess += share[k]
    threshold = excess / num_positive
    while True:
        new_num_positive = 0
        new_excess = -1.0
        for k in range(count):
            if share[k] > threshold:
                new_num_positive += 1
                new_excess += share[k]
        # Stop when no entry was dropped.  Rounding may bring an entry back, hence ">=".
        if new_num_positive >= num_positive or new_num_positive == 0:
            break
        num_positive = new_num_positive
        threshold = new_excess / num_positive
    for k in range(count):
        share[k] = max(0.0, share[k] - threshold)


@partitioned_kernel("ptr", lambda ptr: len(ptr) - 1)
def step(
    begin: int,
    end: int,
    segment_price: FloatArray,
    price_by_source: FloatArray,
    target: IntArray,
    ptr: IntArray,
    order: IntArray,
    mid: IntArray,
    tau: FloatArray,
    omega: float,
    flow_value: float,
    share: FloatArray,
    extrapolated: FloatArray,
    share_total: FloatArray,
) -> None:
    """Take one primal PDHG step of all demands.

    For slot k of demand d (source s, target t) with midpoint m:

        x'[d, k] = proj(x[d, k] + tau[d] / omega * (flow_value - price(s to m) - price(m to t)))
        extrapolated[d, k] = 2 x'[d, k] - x[d, k]

    where proj is the projection onto sum = 1, or onto sum <= 1 if ``flow_value`` is above 0.
    Threads split the sources ``begin`` to ``end``.

    Args:
        segment_price: (N, N) price of the segment from node u to node t at [t, u]; value per
            Gbit/s.
        price_by_source: (N, N) its transpose.
        target: (D,) target of each demand.
        ptr: (N + 1,) the demands of source s are order[ptr[s]:ptr[s + 1]].
        order: (D,) demand indices, grouped by source.
        mid: (D, K) midpoint of each slot; -1 for empty slots, which come last.
        tau: (D,) primal step size at a primal weight of 1.
        omega: primal weight.
        flow_value: utility of a Gbit/s; 0 where the split ratios sum to 1.
        share: (D, K) split ratios x (written).
        extrapolated: (D, K) output, extrapolated split ratios.
        share_total: (D, K) sum of the iterates x', for their average (written).
    """
    slots = mid.shape[1]
    for s in range(begin, end):
        # (K,) new split ratios of one demand, x'.
        new_share = np.empty(slots)
        for i in range(ptr[s], ptr[s + 1]):
            d = order[i]
            t, step_size, num_used = target[d], tau[d] / omega, 0
            # Gradient step.
            for k in range(slots):
                m = mid[d, k]
                if m < 0:
                    break
                new_share[k] = share[d, k] + step_size * (
                    flow_value - price_by_source[s, m] - segment_price[t, m]
                )
                num_used += 1
            # Projection, extrapolation and running sum.
            _project(new_share, num_used, flow_value == 0.0)
            for k in range(num_used):
                extrapolated[d, k] = 2 * new_share[k] - share[d, k]
                share[d, k] = new_share[k]
                share_total[d, k] += new_share[k]


@partitioned_kernel("cheapest_mid")
def take_midpoints(
    begin: int,
    end: int,
    segment_price: FloatArray,
    price_by_source: FloatArray,
    source: IntArray,
    target: IntArray,
    cheapest_mid: IntArray,
    cheapest_cost: FloatArray,
    mid: IntArray,
    share: FloatArray,
    average: FloatArray,
) -> None:
    """Add the cheapest midpoint of each demand to its slots if it is cheaper than all stored ones.

    The midpoint takes a free slot with split ratio 0.  If none is free, it replaces the midpoint of
    the slot with the smallest average and inherits the slot's split ratio.  The first slot holds
    the shortest paths to the target and never changes.  Threads split the demands ``begin`` to
    ``end``.

    Args:
        segment_price: (N, N) price of the segment from node u to node t at [t, u]; value per
            Gbit/s.
        price_by_source: (N, N) its transpose.
        source: (D,) source of each demand.
        target: (D,) target of each demand.
        cheapest_mid: (D,) cheapest midpoint.
        cheapest_cost: (D,) cost of the list over that midpoint.
        mid: (D, K) midpoints; -1 for an empty slot (written).
        share: (D, K) split ratios of the slots (written).
        average: (D, K) running sums or averages of the split ratios (written).
    """
    slots = mid.shape[1]
    for d in range(begin, end):
        s, t, m = source[d], target[d], cheapest_mid[d]
        # Cheapest stored list, first free slot, and least used slot.
        is_stored, min_cost, free_slot, least_used_slot = False, np.inf, -1, -1
        for k in range(slots):
            if mid[d, k] < 0:
                free_slot = k
                break
            if mid[d, k] == m:
                is_stored = True
                break
            min_cost = min(min_cost, price_by_source[s, mid[d, k]] + segment_price[t, mid[d, k]])
            if k > 0 and (least_used_slot < 0 or average[d, k] < average[d, least_used_slot]):
                least_used_slot = k
        # Nothing to add: stored already, the source itself, or not cheaper beyond rounding.
        if is_stored or m == s or cheapest_cost[d] >= min_cost * (1 - 1e-9):
            continue
        if free_slot >= 0:
            mid[d, free_slot], share[d, free_slot], average[d, free_slot] = m, 0.0, 0.0
        elif least_used_slot >= 0:
            mid[d, least_used_slot] = m


@kernel
def first_next_hops(head: IntArray, dags: Dags, next_hop: IntArray) -> None:
    """Fill in the first next hop from each node to each destination.

    Args:
        head: (E,) node where each link ends.
        dags: shortest-path DAGs towards all N destinations; towards t, the first ``reached[t]``
            nodes of ``order[t]`` have a path, and node i of them has the next-hop links
            ``arc[t, arc_start[t, i]:arc_start[t, i + 1]]``.
        next_hop: (N, N) output, neighbour of each node (column) towards each destination (row); the
            entries of the destination itself and of nodes without a path are not written.
    """
    for t in range(len(next_hop)):
        for i in range(1, dags.reached[t]):
            next_hop[t, dags.order[t, i]] = head[dags.arc[t, dags.arc_start[t, i]]]


@kernel
def max_antichain_saving(dags: Dags, next_hop: IntArray, saving: FloatArray) -> float:
    """Return the largest total saving of a set of (destination, node) pairs in which no node lies
    on the path of another one to the same destination.

    Towards each destination the next hops form a tree, and the nodes of the set are an antichain of
    it. Dynamic program from the leaves to the root, for each node v:

        subtree_saving[v] = sum over children c of max(saving[c], subtree_saving[c])

    Args:
        dags: shortest-path DAGs towards all N destinations; towards t, the first ``reached[t]``
            nodes of ``order[t]`` have a path, sorted by distance.
        next_hop: (N, N) neighbour of each node (column) towards each destination (row).
        saving: (N, N) saving of each node (column) for each destination (row).
    """
    total = 0.0
    # (N,) largest saving of an antichain strictly below each node.
    subtree_saving = np.empty(len(next_hop))
    for t in range(len(next_hop)):
        subtree_saving[:] = 0.0
        # Nodes from the farthest to the nearest, without the destination.
        for j in range(dags.reached[t] - 1):
            node = dags.order[t, dags.reached[t] - 1 - j]
            subtree_saving[next_hop[t, node]] += max(saving[t, node], subtree_saving[node])
        total += subtree_saving[t]
    return total
