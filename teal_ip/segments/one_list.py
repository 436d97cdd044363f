"""Unsplittable routing: one segment list per demand, by rounding and local search.

The start assigns each demand its list with the largest split ratio in a fractional solution.  A
step of local search looks at the demands on the most utilised link, and moves one of them to
another midpoint: the move that reduces the sum of p-th powers of link utilisations most.  p rises
from 8 to 64, since high powers weigh the most utilised links alone.  The prices u^(p - 1) / c, the
gradient of that sum, propose the midpoints.  Entry point: :func:`one_list`.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from teal.network.ecmp import Dags
from teal.pathops.segment_passes import add_ecmp_loads, ecmp_path_sums
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.parallel import inner_kernel, kernel
from teal_ip.segments.problem import SegmentProblem

# Exponents p of the sum of powers of link utilisations, one phase of local search each.
_POWERS = (8.0, 16.0, 32.0, 64.0)
# Demands on the most utilised link, in descending order of traffic, whose moves a step evaluates.
_MAX_TRIED = 64
# Largest number of moves of all phases.
_MAX_MOVES = 20_000


@dataclasses.dataclass(frozen=True, eq=False)
class OneList:
    """Routing with one midpoint per demand.

    Attributes:
        mid: (D, 1) midpoints.
        utilisation: largest link utilisation.
        rounded: largest link utilisation of the rounded start.
        total_moves: number of moves of the local search, over all powers.
        solve_s: solve time, seconds.
    """

    mid: IntArray
    utilisation: float
    rounded: float
    total_moves: int
    solve_s: float


def one_list(
    problem: SegmentProblem, mid: IntArray, share: FloatArray, deadline: Deadline
) -> OneList:
    """Round each demand to its list with the largest split ratio, then improve by local search.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        mid: (D, K) midpoints of a fractional solution, preferably a basic one; -1 for an empty
            slot.
        share: (D, K) split ratios.
        deadline: time limit, after which the incumbent is returned.
    """
    begin = time.perf_counter()
    # Rounding: midpoint (D,) of the slot with the largest split ratio.
    largest_slot = np.where(mid >= 0, share, -1).argmax(1)
    current_mid = np.ascontiguousarray(mid[np.arange(len(mid)), largest_slot])
    ones = np.ones((len(mid), 1))
    rounded_utilisation = problem.utilisation(
        problem.loads(np.ascontiguousarray(current_mid[:, None]), ones)
    )
    best_mid = current_mid.copy()
    incumbent_value = rounded_utilisation
    total_moves = 0
    # Local search, one phase per power; it changes the midpoints (D,) and the loads (E,) in place.
    for power in _POWERS:
        if deadline.is_over:
            break
        load = problem.loads(np.ascontiguousarray(current_mid[:, None]), ones)
        links = problem.dag.links
        dags = problem.dag.dags
        while total_moves < _MAX_MOVES and not deadline.is_over:
            # A batch of 200 moves, after which the incumbent and the deadline are checked.
            num_moves = _improve(
                links.head,
                dags,
                problem.source,
                problem.target,
                problem.demand,
                problem.inverse_capacity,
                power,
                current_mid,
                load,
                200,
            )
            total_moves += num_moves
            # Incumbent: a move lowers the sum of powers, but may raise the largest utilisation.
            value = problem.utilisation(load)
            if value < incumbent_value:
                best_mid = current_mid.copy()
                incumbent_value = value
            # Fewer moves than allowed: no move improves at this power.
            if num_moves < 200:
                break
    incumbent_mid = np.ascontiguousarray(best_mid[:, None])
    utilisation = problem.utilisation(problem.loads(incumbent_mid, ones))
    return OneList(
        incumbent_mid, utilisation, rounded_utilisation, total_moves, time.perf_counter() - begin
    )


@inner_kernel
def _add_list_load(head, dags, source, target, mid, amount, volume, load):  # type: ignore[no-untyped-def]
    """Add the load of ``amount`` Gbit/s from a source via a midpoint to a target.

    Args:
        head: (E,) node where each link ends.
        dags: shortest-path DAGs towards all N destinations.
        source: node where the first segment begins.
        target: node where the last segment ends.
        mid: node between them; the target itself for a single segment.
        amount: Gbit/s; negative to remove the load.
        volume: (N,) scratch memory.
        load: (E,) Gbit/s (written).
    """
    volume[:] = 0.0
    volume[source] = amount
    add_ecmp_loads(mid, head, dags, volume, load)
    if mid != target:
        volume[:] = 0.0
        volume[mid] = amount
        add_ecmp_loads(target, head, dags, volume, load)


@kernel
def _improve(  # type: ignore[no-untyped-def]
    head: IntArray,
    dags: Dags,
    source: IntArray,
    target: IntArray,
    demand: FloatArray,
    inverse_capacity: FloatArray,
    power: float,
    midpoint: IntArray,
    load: FloatArray,
    max_moves: int,
):
    """Make up to ``max_moves`` moves of local search for one midpoint per demand; return their
    number.

    With utilisation u[e] = load[e] / c[e], and U = max u before the move, the objective is
    sum_e (u[e] / U)^p.  One move reroutes one demand that crosses the most utilised link to its
    cheapest midpoint under the prices (u[e] / U)^(p - 1) / c[e], the gradient of the objective up
    to a factor.  Of the demands that are tried, the move that lowers the objective most is made.

    Args:
        head: (E,) node where each link ends.
        dags: shortest-path DAGs towards all N destinations.
        source: (D,) source s of each demand.
        target: (D,) target t of each demand.
        demand: (D,) Gbit/s.
        inverse_capacity: (E,) 1 / (Gbit/s); 0 for failed links.
        power: exponent p.
        midpoint: (D,) midpoint of each demand; the target itself for its shortest paths (written).
        load: (E,) Gbit/s under these midpoints (written).
        max_moves: largest number of moves.
    """
    nodes, links, demands = dags.distance.shape[1], len(load), len(demand)
    # (N, N), at [destination, source]: share of the segment's traffic on the most utilised link,
    # and price of the segment.
    busiest_share = np.empty((nodes, nodes))
    segment_price = np.empty((nodes, nodes))
    # (E,) link prices, and 1 for the most utilised link, else 0.
    price = np.empty(links)
    busiest_indicator = np.zeros(links)
    # (N,) scratch memory of _add_list_load, and (E,) link loads after a move that is tried.
    volume = np.empty(nodes)
    trial_load = np.empty(links)
    # (D,) Gbit/s of each demand on the most utilised link.
    traffic_on_link = np.empty(demands)
    num_moves = 0
    while num_moves < max_moves:
        # Most utilised link.
        busiest_link = 0
        max_utilisation = 0.0
        for e in range(links):
            if load[e] * inverse_capacity[e] > max_utilisation:
                busiest_link = e
                max_utilisation = load[e] * inverse_capacity[e]
        if max_utilisation <= 0:
            return num_moves
        # Objective, and link prices: its gradient, and a small part of 1 / c against ties.
        current_power_sum = 0.0
        for e in range(links):
            # Utilisation over the largest one, at most 1, so that its powers do not overflow.
            relative_utilisation = load[e] * inverse_capacity[e] / max_utilisation
            price[e] = (
                relative_utilisation ** (power - 1) * inverse_capacity[e]
                + 1e-9 * inverse_capacity[e]
            )
            current_power_sum += relative_utilisation**power
        # Price of each segment, and its share on the most utilised link.
        busiest_indicator[:] = 0.0
        busiest_indicator[busiest_link] = 1.0
        for t in range(nodes):
            ecmp_path_sums(t, head, dags, busiest_indicator, busiest_share[t])
            ecmp_path_sums(t, head, dags, price, segment_price[t])
        for d in range(demands):
            m = midpoint[d]
            traffic_on_link[d] = demand[d] * (
                busiest_share[m, source[d]] + busiest_share[target[d], m]
            )
        # Best move of the demands with the most traffic on that link, in descending order.
        order = np.argsort(-traffic_on_link)
        best_demand, best_mid, best_power_sum = -1, -1, current_power_sum * (1 - 1e-9)
        for i in range(min(_MAX_TRIED, demands)):
            d = order[i]
            if traffic_on_link[d] <= 0:
                break
            # Cheapest other midpoint under the prices; the source itself is none.
            s, t, min_cost, new_mid = source[d], target[d], np.inf, -1
            for m in range(nodes):
                cost = segment_price[m, s] + segment_price[t, m]
                if m != midpoint[d] and m != s and cost < min_cost:
                    min_cost, new_mid = cost, m
            if (
                new_mid < 0
                or min_cost >= segment_price[midpoint[d], s] + segment_price[t, midpoint[d]]
            ):
                continue
            # Objective after the move.
            trial_load[:] = load
            _add_list_load(head, dags, s, t, midpoint[d], -demand[d], volume, trial_load)
            _add_list_load(head, dags, s, t, new_mid, demand[d], volume, trial_load)
            power_sum = 0.0
            for e in range(links):
                power_sum += (
                    max(0.0, trial_load[e]) * inverse_capacity[e] / max_utilisation
                ) ** power
            if power_sum < best_power_sum:
                best_demand, best_mid, best_power_sum = d, new_mid, power_sum
        if best_demand < 0:
            return num_moves
        # Make the best move; rounding may leave loads below 0.
        d = best_demand
        _add_list_load(head, dags, source[d], target[d], midpoint[d], -demand[d], volume, load)
        _add_list_load(head, dags, source[d], target[d], best_mid, demand[d], volume, load)
        for e in range(links):
            load[e] = max(0.0, load[e])
        midpoint[d] = best_mid
        num_moves += 1
    return num_moves
