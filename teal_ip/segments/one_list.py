"""One list for each demand: rounding of a fractional solution, and local search from there,
compiled.

A round takes the busiest link, and of the demands on it the move to another midpoint that lowers
the sum of p-th powers of utilisations most, with p from 8 to 64: high powers see the busiest links
alone.  Midpoints are proposed by the prices u^(p - 1) / c, the gradient of that sum.
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

_POWERS = (8.0, 16.0, 32.0, 64.0)
_MAX_TRIED = (
    64  # demands on the busiest link for which a move is computed in a round, those with most on it
)
_MAX_MOVES = 20_000


@dataclasses.dataclass(frozen=True, eq=False)
class OneList:
    """One midpoint for each demand.

    Attributes:
        mid: (D, 1).
        utilisation: largest of a link.
        rounded: largest utilisation of the rounded start.
        moves: moves that local search made.
        solve_s: seconds.
    """

    mid: IntArray
    utilisation: float
    rounded: float
    moves: int
    solve_s: float


def one_list(
    problem: SegmentProblem, mid: IntArray, share: FloatArray, deadline: Deadline
) -> OneList:
    """Give each demand the list with its largest share, then improve.

    Args:
        problem: one matrix.
        mid: (D, K) midpoints of a fractional solution, best a basic one.
        share: (D, K).
        deadline: after which to stop with the best so far.
    """
    begin = time.perf_counter()
    largest = np.where(mid >= 0, share, -1).argmax(1)
    chosen = np.ascontiguousarray(mid[np.arange(len(mid)), largest])
    ones = np.ones((len(mid), 1))
    rounded = problem.utilisation(problem.loads(np.ascontiguousarray(chosen[:, None]), ones))
    best, best_value, moves = chosen.copy(), rounded, 0
    for power in _POWERS:
        if deadline.is_over:
            break
        load = problem.loads(np.ascontiguousarray(chosen[:, None]), ones)
        links, dags = problem.dag.links, problem.dag.dags
        while moves < _MAX_MOVES and not deadline.is_over:
            made = _improve(
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
            moves += made
            value = problem.utilisation(load)
            if value < best_value:
                best, best_value = chosen.copy(), value
            if made < 200:
                break
    result = np.ascontiguousarray(best[:, None])
    exact = problem.utilisation(problem.loads(result, ones))
    return OneList(result, exact, rounded, moves, time.perf_counter() - begin)


@inner_kernel
def _move_load(head, dags, source, target, mid, amount, volume, load):  # type: ignore[no-untyped-def]
    """Add the load of ``amount`` Gbit/s from source by a midpoint to target."""
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
    most: int,
):
    """Make up to ``most`` moves, changing ``chosen`` (D,) and ``load`` (E,); their number."""
    nodes, links, demands = dags.distance.shape[1], len(load), len(demand)
    on_link, pi = np.empty((nodes, nodes)), np.empty((nodes, nodes))
    price, only = np.empty(links), np.zeros(links)
    volume, trial = np.empty(nodes), np.empty(links)
    part = np.empty(demands)
    made = 0
    while made < most:
        busiest, largest = 0, 0.0
        for e in range(links):
            if load[e] * inverse[e] > largest:
                busiest, largest = e, load[e] * inverse[e]
        if largest <= 0:
            return made
        now = 0.0
        for e in range(links):
            u = load[e] * inverse[e] / largest
            price[e] = u ** (power - 1) * inverse[e] + 1e-9 * inverse[e]
            now += u**power
        only[:] = 0.0
        only[busiest] = 1.0
        for t in range(nodes):
            sum_outwards(t, head, dags, only, on_link[t])
            sum_outwards(t, head, dags, price, pi[t])
        for d in range(demands):
            m = chosen[d]
            part[d] = demand[d] * (on_link[m, source[d]] + on_link[target[d], m])
        order = np.argsort(-part)
        best_demand, best_mid, best_norm = -1, -1, now * (1 - 1e-9)
        for i in range(min(_MAX_TRIED, demands)):
            d = order[i]
            if part[d] <= 0:
                break
            s, t, least, where = source[d], target[d], np.inf, -1
            for m in range(nodes):
                cost = pi[m, s] + pi[t, m]
                if m != chosen[d] and m != s and cost < least:
                    least, where = cost, m
            if where < 0 or least >= pi[chosen[d], s] + pi[t, chosen[d]]:
                continue
            trial[:] = load
            _move_load(head, dags, s, t, chosen[d], -demand[d], volume, trial)
            _move_load(head, dags, s, t, where, demand[d], volume, trial)
            norm = 0.0
            for e in range(links):
                norm += (max(0.0, trial[e]) * inverse[e] / largest) ** power
            if norm < best_norm:
                best_demand, best_mid, best_norm = d, where, norm
        if best_demand < 0:
            return made
        d = best_demand
        _move_load(head, dags, source[d], target[d], chosen[d], -demand[d], volume, load)
        _move_load(head, dags, source[d], target[d], best_mid, demand[d], volume, load)
        for e in range(links):
            load[e] = max(0.0, load[e])
        chosen[d] = best_mid
        made += 1
    return made
