"""Unsplittable routing: one segment list per demand, by rounding and local search.

The start assigns each demand its list with the largest share in a fractional solution.  A step of
local search takes the most utilised link and, among the demands on it, moves the one to another
midpoint that reduces the sum of p-th powers of link utilisations most.  p rises from 8 to 64, since
high powers weigh the most utilised links alone.  The prices u^(p - 1) / c, the gradient of that
sum, propose the midpoints.  Entry point: :func:`one_list`.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from teal.network.ecmp import Dags
from teal.pathops.segment_passes import load_inwards, sum_outwards
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.parallel import inner_kernel, kernel
from teal_ip.segments.problem import SegmentProblem

# Exponents p of the sum of link utilisations, one phase each.
_POWERS = (8.0, 16.0, 32.0, 64.0)
# Demands on the most utilised link, in descending order of traffic, whose moves a step evaluates.
_MAX_TRIED = 64
_MAX_MOVES = 20_000


@dataclasses.dataclass(frozen=True, eq=False)
class OneList:
    """Routing with one midpoint per demand.

    Attributes:
        mid: (D, 1) midpoints.
        utilisation: largest link utilisation.
        rounded: largest link utilisation of the rounded start.
        moves: number of moves of the local search.
        solve_s: solve time, seconds.
    """

    mid: IntArray
    utilisation: float
    rounded: float
    moves: int
    solve_s: float


def one_list(
    problem: SegmentProblem, mid: IntArray, share: FloatArray, deadline: Deadline
) -> OneList:
    """Round each demand to its list with the largest share, then improve by local search.

    Args:
        problem: the two-segment program of one matrix.
        mid: (D, K) midpoints of a fractional solution, preferably a basic one.
        share: (D, K) split ratios.
        deadline: time limit, after which the incumbent is returned.
    """
    begin = time.perf_counter()
    # Round.
    largest = np.where(mid >= 0, share, -1).argmax(1)
    chosen = np.ascontiguousarray(mid[np.arange(len(mid)), largest])
    ones = np.ones((len(mid), 1))
    rounded = problem.utilisation(problem.loads(np.ascontiguousarray(chosen[:, None]), ones))
    best = chosen.copy()
    best_value = rounded
    moves = 0
    # Local search, with higher powers in turn.
    for power in _POWERS:
        if deadline.is_over:
            break
        load = problem.loads(np.ascontiguousarray(chosen[:, None]), ones)
        links = problem.dag.links
        dags = problem.dag.dags
        while moves < _MAX_MOVES and not deadline.is_over:
            num_moves = _improve(
                links.head,
                dags,
                problem.source,
                problem.target,
                problem.demand,
                problem.inverse_capacity,
                power,
                chosen,
                load,
                200,
            )
            moves += num_moves
            value = problem.utilisation(load)
            if value < best_value:
                best = chosen.copy()
                best_value = value
            if num_moves < 200:
                break
    result = np.ascontiguousarray(best[:, None])
    utilisation = problem.utilisation(problem.loads(result, ones))
    return OneList(result, utilisation, rounded, moves, time.perf_counter() - begin)


@inner_kernel
def _move_load(head, dags, source, target, mid, amount, volume, load):  # type: ignore[no-untyped-def]
    """Add to ``load`` the load of ``amount`` Gbit/s from source via a midpoint to target."""
    volume[:] = 0.0
    volume[source] = amount
    load_inwards(mid, head, dags, volume, load)
    if mid != target:
        volume[:] = 0.0
        volume[mid] = amount
        load_inwards(target, head, dags, volume, load)


@kernel
def _improve(  # type: ignore[no-untyped-def]
    head: IntArray,
    dags: Dags,
    source: IntArray,
    target: IntArray,
    demand: FloatArray,
    inverse: FloatArray,
    power: float,
    chosen: IntArray,
    load: FloatArray,
    max_moves: int,
):
    """Make up to ``max_moves`` moves, in place in ``chosen`` (D,) and ``load`` (E,); return their
    number.
    """
    nodes, links, demands = dags.distance.shape[1], len(load), len(demand)
    on_link, pi = np.empty((nodes, nodes)), np.empty((nodes, nodes))
    price, indicator = np.empty(links), np.zeros(links)
    volume, trial = np.empty(nodes), np.empty(links)
    traffic_on_link = np.empty(demands)
    num_moves = 0
    while num_moves < max_moves:
        # Most utilised link.
        busiest = 0
        largest = 0.0
        for e in range(links):
            if load[e] * inverse[e] > largest:
                busiest = e
                largest = load[e] * inverse[e]
        if largest <= 0:
            return num_moves
        # Objective (sum of powers, scaled) and its gradient.
        norm_before = 0.0
        for e in range(links):
            u = load[e] * inverse[e] / largest
            price[e] = u ** (power - 1) * inverse[e] + 1e-9 * inverse[e]
            norm_before += u**power
        # Prices of all segments, and their shares on the most utilised link.
        indicator[:] = 0.0
        indicator[busiest] = 1.0
        for t in range(nodes):
            sum_outwards(t, head, dags, indicator, on_link[t])
            sum_outwards(t, head, dags, price, pi[t])
        for d in range(demands):
            m = chosen[d]
            traffic_on_link[d] = demand[d] * (on_link[m, source[d]] + on_link[target[d], m])
        # Best move of the demands with the most traffic on that link.
        order = np.argsort(-traffic_on_link)
        best_demand, best_mid, best_norm = -1, -1, norm_before * (1 - 1e-9)
        for i in range(min(_MAX_TRIED, demands)):
            d = order[i]
            if traffic_on_link[d] <= 0:
                break
            # Cheapest midpoint under the prices.
            s, t, min_cost, best_stop = source[d], target[d], np.inf, -1
            for m in range(nodes):
                cost = pi[m, s] + pi[t, m]
                if m != chosen[d] and m != s and cost < min_cost:
                    min_cost, best_stop = cost, m
            if best_stop < 0 or min_cost >= pi[chosen[d], s] + pi[t, chosen[d]]:
                continue
            # Objective after the move.
            trial[:] = load
            _move_load(head, dags, s, t, chosen[d], -demand[d], volume, trial)
            _move_load(head, dags, s, t, best_stop, demand[d], volume, trial)
            norm = 0.0
            for e in range(links):
                norm += (max(0.0, trial[e]) * inverse[e] / largest) ** power
            if norm < best_norm:
                best_demand, best_mid, best_norm = d, best_stop, norm
        if best_demand < 0:
            return num_moves
        # Move that demand; rounding may leave loads below 0.
        d = best_demand
        _move_load(head, dags, source[d], target[d], chosen[d], -demand[d], volume, load)
        _move_load(head, dags, source[d], target[d], best_mid, demand[d], volume, load)
        for e in range(links):
            load[e] = max(0.0, load[e])
        chosen[d] = best_mid
        num_moves += 1
    return num_moves
