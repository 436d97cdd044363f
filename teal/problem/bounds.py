"""Link prices -> a certified bound on the optimum, by weak duality.  The bound holds for any
prices.

For prices p[e] >= 0 and price(d, k), the sum of p over the links of path (d, k):

- value maximisation:  optimum <= sum_e c[e] p[e] + sum_d demand[d] max(0, max_k (v[d, k] - price(d,
  k)));
- max_link_utilisation, with prices scaled so that sum_e c[e] p[e] = 1:
  optimum >= sum_d demand[d] min_k price(d, k);
- least_cost:  optimum >= sum_d demand[d] min_k (cost(d, k) + price(d, k)) - sum_e c[e] p[e];
- max_concurrent_flow: optimum <= min(1, 1 / theta) with theta that bound of max_link_utilisation.

- under side conditions: that of the rewritten program (:mod:`teal.problem.program`), whose rows
  beyond the links get the prices that prove most; a value that falls in steps: see
  :mod:`teal.problem.steps`.

A price above V, the largest value of a Gbit/s, proves no more than V does, since no path over the
link is worth using at V already; prices of more than a million times V count as V, so that sums
stay finite.  A bound that is no number, for want of range, counts as infinite (0 for a minimum),
which proves nothing.

The maxima and minima are taken over live paths, as in the allocation.  Taken over all paths of the
network instead, where price(d) is the shortest path under the prices, the same formulas bound the
optimum over any choice of paths: :func:`all_paths_bound`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from teal.network.shortest import shortest_trees
from teal.problem.problem import Problem
from teal.runtime.arrays import FloatArray

_SOURCES_AT_A_TIME = 512  # sources whose shortest paths to all nodes are in memory at once
# share by which rounding of sums of up to millions of terms may put a value beyond its bound
_MAX_ROUNDING = 1e-9
# Multiples of the prices that scaled_dual_bound tries: 13 from 1/4 to 2, evenly spaced in the
# logarithm.
_COST_ROUNDING = 1e-13  # of the sums that make a bound on a cost
PRICE_SCALES = torch.logspace(-2, 1, 13, base=2.0, dtype=torch.float64)


def dual_bound(problem: Problem, prices: Tensor) -> Tensor:
    """The bound above: (B,), float64.

    Args:
        problem: B matrices.
        prices: (B, E), value per Gbit/s.  Negative and NaN entries count as 0.
    """
    return _bounds(problem, prices, prices.new_ones(1, dtype=torch.float64))


def scaled_dual_bound(problem: Problem, prices: Tensor) -> Tensor:
    """The best of :func:`dual_bound` over multiples of the prices from 1/4 to 2, and over 0: (B,),
    float64.

    One path_sum serves all multiples.  The multiple 0 gives the total value of all routable demand,
    so the bound is never worse than that.  Bounds from prices on the simplex do not depend on the
    scale.
    """
    return _bounds(problem, prices, torch.from_numpy(multiples(problem)))


_ONCE = np.ones(1)  # on the simplex every multiple of prices gives the same bound
_MANY = np.concatenate([np.zeros(1), PRICE_SCALES.numpy()])


def multiples(problem: Problem) -> FloatArray:
    """(m,) multiples of the prices that :func:`scaled_dual_bound` tries."""
    return _ONCE if problem.price_set.on_simplex else _MANY


def finite_prices(prices: Tensor) -> Tensor:
    """``prices`` in float64; entries that are negative, NaN or infinite are 0, since any prices
    prove a bound.
    """
    return torch.nan_to_num(prices.to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)


def usable_prices(problem: Problem, prices: Tensor, most: float = 1e6) -> Tensor:
    """(B, E) prices in float64 that prove no less than ``prices``, and whose sums are finite.

    Entries that are negative, NaN or infinite become 0.

    Args:
        problem: for objective and values.
        prices: (B, E).
        most: see :meth:`teal.problem.sets.PriceSet.usable`.
    """
    prices = finite_prices(prices)
    # A share next to 0 is worth any price, and so is a demand that must be carried.
    if problem.utility is not None or problem.objective.rules.may_have_no_allocation:
        return prices
    largest = torch.cat([problem.demand_value, problem.demand_value.new_zeros(1)]).amax().to(prices)
    return problem.price_set.usable(prices, largest, most)


def _bounds(problem: Problem, prices: Tensor, scales: Tensor) -> Tensor:
    """(B,) the best bound of multiples of the prices."""
    program, prices = problem.to(torch.float64).rewritten.program, usable_prices(problem, prices)
    if program.limit.shape[1] == prices.shape[1]:
        return from_score(problem, program.bounds_along(prices, scales).amin(0), prices)
    # Rows beyond the links have prices that nobody gave: they are found for the prices themselves,
    # multiplied with them, and found again for the best multiple.
    full = program.with_added_prices(prices)
    bounds = program.bounds_along(full, scales)
    if len(scales) > 1:
        best = scales.to(full)[bounds.argmin(0)][:, None]
        bounds = torch.cat([bounds, program.bound(program.with_added_prices(best * prices))[None]])
    return from_score(problem, bounds.amin(0), prices)


def all_paths_bound(problem: Problem, prices: Tensor) -> Tensor:
    """(B,) bound on the optimum over all paths of the network, float64: one run of Dijkstra a
    source and matrix.

    The balanced programs include the demands that have a live candidate path, as the allocation
    does.  Of fair shares the bound is 1 while the network connects a demand without one: its weight
    is not known before it has a path.

    Args:
        problem: B matrices.
        prices: (B, E), value per Gbit/s.  Negative and NaN entries count as 0.
    """
    problem, prices = problem.to(torch.float64), usable_prices(problem, prices)
    program, row_value = problem.program, problem.capacity_value(prices)
    scale = program.price_set.scale(row_value)
    demand = problem.routable_demand if program.demand_set.carries_all else problem.demand
    weights = link_weights(problem, scale[:, None] * prices)
    profits = [
        _all_paths_profit(problem.row(row), weights[row], demand[row])
        for row in range(problem.batch)
    ]
    bound = program.price_set.support(row_value) + row_value.new_tensor(profits)
    return from_score(problem, torch.where(bound.isfinite(), bound, torch.inf), prices)


def link_weights(problem: Problem, prices: Tensor) -> Tensor:
    """(B, E) price plus cost of one Gbit/s on each link; infinite where the link has failed."""
    return torch.where(problem.capacity > 0, prices + problem.link_cost, torch.inf)


def _all_paths_profit(problem: Problem, weight: Tensor, demand: Tensor) -> float:
    """Sum over the demands of demand times what its best path adds to the bound.

    Args:
        problem: for network, pairs and values.
        weight: (E,) of each link, infinite where it has failed.
        demand: (D,) Gbit/s.
    """
    paths, topology = problem.paths, problem.topology
    sources, source_row = np.unique(paths.pairs[:, 0], return_inverse=True)
    order = np.argsort(source_row, kind="stable")  # demands of classes are sorted class by class
    source_row, targets = source_row[order], paths.pairs[order, 1]
    link_weight, distances = weight.cpu().numpy(), np.empty(len(order))
    for first in range(0, len(sources), _SOURCES_AT_A_TIME):
        chunk = slice(
            *np.searchsorted(source_row, [first, first + _SOURCES_AT_A_TIME])
        )  # demands of these sources
        distance, _ = shortest_trees(
            topology.num_nodes,
            topology.link_source,
            topology.link_target,
            link_weight,
            sources[first : first + _SOURCES_AT_A_TIME],
            topology.no_transit,
        )
        distances[order[chunk]] = distance[source_row[chunk] - first, targets[chunk]]
    least = torch.from_numpy(distances).to(demand)
    if problem.utility is not None and bool(
        (least.isfinite() & (demand > 0) & ~problem.routable[0]).any()
    ):
        return math.inf
    profit = torch.where(least.isfinite(), problem.demand_value - least, 0)
    return float((demand * problem.demand_set.of_best(profit[None])[0]).sum())


def from_score(problem: Problem, score: Tensor, prices: Tensor | None = None) -> Tensor:
    """(B,) values or bounds of the objective, of those of its program as a maximum.

    Args:
        problem: B matrices.
        score: (B,) of the program.
        prices: (B, E) that prove a bound, by which its rounding is estimated; None for unknown
            ones.
    """
    rules = problem.objective.rules
    if prices is None or not rules.may_have_no_allocation:
        return rules.from_score(problem, score)
    # Sums of this size make the score: costs of flows, and prices of the capacity that they fill.
    paid = float(PRICE_SCALES.max()) * problem.capacity_value(prices.to(problem.capacity))
    rounding = _COST_ROUNDING * (score.abs() + paid.to(score))
    return (-score - rounding).clamp(min=0)


def gap(problem: Problem, value: Tensor, bound: Tensor) -> Tensor:
    """(B,) how far the optimum may be: (bound - value) / bound, or (value - bound) / value for a
    minimum.

    Values below 0 are losses: the gap of a maximum -L is that of the minimum L.  0 where both are
    0; infinite, not certified, where value or bound is NaN or infinite.
    """
    values, bounds = value.cpu().numpy(), bound.cpu().numpy()
    gaps = relative_gap(values, bounds, problem.objective.rules.sense)
    certified = np.where(np.isfinite(values) & np.isfinite(bounds), gaps, np.inf)
    return torch.from_numpy(certified).to(value.device)


def relative_gap(value: FloatArray, bound: FloatArray, sense: float) -> FloatArray:
    """:func:`gap` by formula alone: NaN where ``bound`` is NaN or infinite.

    A value beyond its bound by the rounding of two sums has gap 0; any larger excess stays, and is
    negative.

    Args:
        value: (B,).
        bound: (B,).
        sense: 1.0 if larger values are better, -1.0 if smaller ones are.
    """
    high, low = (bound, value) if sense > 0 else (value, bound)
    largest = np.maximum(np.abs(high), np.abs(low))
    with np.errstate(invalid="ignore", divide="ignore"):  # infinities
        gap: FloatArray = np.asarray((high - low) / largest)
    if np.all(gap >= 0):
        return gap
    gap = np.where(largest == 0, 0.0, gap)
    return np.where((gap < 0) & (gap > -_MAX_ROUNDING), 0.0, gap)


def gap_between(value: float, bound: float, sense: float) -> float:
    """:func:`relative_gap` of one value; infinite, not certified, where value or bound is NaN or
    infinite.
    """
    if not (math.isfinite(value) and math.isfinite(bound)):
        return math.inf
    return float(relative_gap(np.asarray(value), np.asarray(bound), sense))
