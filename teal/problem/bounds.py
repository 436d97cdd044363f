"""Link prices -> a certified bound on the optimum, by weak duality.  The bound holds for any prices.

For prices p[e] >= 0 and price(d, k), the sum of p over the links of path (d, k):

- value maximisation:  optimum <= sum_e c[e] p[e] + sum_d demand[d] max(0, max_k (v[d, k] - price(d, k)));
- max_link_utilisation, with prices scaled so that sum_e c[e] p[e] = 1:
  optimum >= sum_d demand[d] min_k price(d, k);
- max_concurrent_flow: optimum <= min(1, 1 / theta) with theta that bound of max_link_utilisation.

- under side conditions: that of the rewritten program (:mod:`teal.problem.program`), whose rows beyond the links get
  the prices that prove most; a value that falls in steps: see :mod:`teal.problem.steps`.

A price above V, the largest value of a Gbit/s, proves no more than V does, since no path over the link is worth using
at V already; prices of more than a million times V count as V, so that sums stay finite.  A bound that is no number,
for want of range, counts as infinite (0 for a minimum), which proves nothing.

The maxima and minima are taken over live paths, as in the allocation.  Taken over all paths of the network instead,
where price(d) is the shortest path under the prices, the same formulas bound the optimum over any choice of paths:
:func:`all_paths_bound`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from teal.network.shortest import shortest_trees
from teal.problem.problem import Problem
from teal.problem.program import Program

_SOURCES_AT_A_TIME = 512  # sources whose shortest paths to all nodes are in memory at once
# Multiples of the prices that scaled_dual_bound tries: 13 from 1/4 to 2, evenly spaced in the logarithm.
_PRICE_SCALES = torch.logspace(-2, 1, 13, base=2.0, dtype=torch.float64)


def dual_bound(problem: Problem, prices: Tensor) -> Tensor:
    """The bound above: (B,), float64.

    Args:
        problem: B matrices.
        prices: (B, E), value per Gbit/s.  Negative and NaN entries count as 0.
    """
    return _bounds(problem, prices, _PRICE_SCALES.new_ones(1)).squeeze(0)


def scaled_dual_bound(problem: Problem, prices: Tensor) -> Tensor:
    """The best of :func:`dual_bound` over multiples of the prices from 1/4 to 2, and over 0: (B,), float64.

    One path_sum serves all multiples.  The multiple 0 gives the total value of all routable demand, so the bound is
    never worse than that.  The bounds of the balanced programs do not depend on the scale of the prices.
    """
    if not problem.objective.maximises_value:
        return dual_bound(problem, prices)
    return _bounds(problem, prices, torch.cat([_PRICE_SCALES.new_zeros(1), _PRICE_SCALES])).amin(0)


def finite_prices(prices: Tensor) -> Tensor:
    """``prices`` in float64; entries that are negative, NaN or infinite are 0, since any prices prove a bound."""
    return torch.nan_to_num(prices.to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)


def usable_prices(problem: Problem, prices: Tensor, most: float = 1e6) -> Tensor:
    """(B, E) prices in float64 that prove no less than ``prices``, and whose sums are finite.

    Entries that are negative, NaN or infinite become 0.  For value maximisation entries above ``most`` times V, the
    largest value of a Gbit/s, become V; for the balanced programs, whose bounds do not depend on the scale, the largest
    entry becomes at most 1.

    Args:
        problem: for objective and values.
        prices: (B, E).
        most: multiple of V up to which an entry stays as it is.
    """
    prices = finite_prices(prices)
    if not problem.objective.maximises_value:
        return prices / prices.amax(1, keepdim=True).clamp(min=1)
    largest = torch.cat([problem.demand_value, problem.demand_value.new_zeros(1)]).amax().to(prices)
    return torch.where(prices > most * largest, largest, prices)


def _bounds(problem: Problem, prices: Tensor, scales: Tensor) -> Tensor:
    """(scales, B) bounds of multiples of the prices, or more rows of further bounds."""
    prices, problem = usable_prices(problem, prices), problem.over_columns if problem.conditions else problem
    problem = problem.to(torch.float64)
    program = problem.program
    if program.limit.shape[1] > prices.shape[1] or not program.demand_set.uses_best_column:
        return _least_bounds(program, prices, scales)
    capacity_value = problem.capacity_value(prices)  # (B,)
    path_price = problem.ops.path_sum(prices)  # (B, D, K)
    if not problem.objective.maximises_value:
        theta = (problem.demand * problem.cheapest_path_cost(path_price)).sum(1)
        theta = torch.where(capacity_value > 0, theta / capacity_value, 0)
        return from_utilisation(problem, _finite(theta)).unsqueeze(0)
    if problem.has_link_cost:
        profits = (
            torch.where(problem.path_mask, problem.path_value - scale * path_price, 0).amax(-1)
            for scale in scales.tolist()
        )
    else:  # the cheapest path is the best one at every scale, so that no scale needs a pass over all paths
        cheapest = problem.cheapest_path_cost(path_price)
        value = torch.where(problem.routable, problem.demand_value, 0)
        profits = (value - scale * cheapest for scale in scales.tolist())
    demand_profit = torch.stack([(problem.demand * program.demand_set.of_best(profit)).sum(1) for profit in profits])
    bounds = scales.to(capacity_value)[:, None] * capacity_value + demand_profit
    return torch.where(bounds.isfinite(), bounds, torch.inf)


def _least_bounds(program: Program, prices: Tensor, scales: Tensor) -> Tensor:
    """(scales, B) bounds of multiples of link prices, where rows beyond the links have prices that nobody gave.

    These are found for the prices themselves, multiplied with them, and found again for the best multiple.
    """
    full = program.completed(prices)
    bounds = torch.stack([program.bound(scale * full) for scale in scales.to(full)])
    bounds = torch.where(bounds.isfinite(), bounds, torch.inf)
    if len(scales) > 1:
        best = scales.to(full)[bounds.argmin(0)][:, None]
        again = program.bound(program.completed(best * prices))
        bounds = torch.cat([bounds, torch.where(again.isfinite(), again, torch.inf)[None]])
    return bounds


def _finite(theta: Tensor) -> Tensor:
    """``theta``, or 0, which bounds every utilisation, where it is no number."""
    return torch.where(theta.isfinite(), theta, 0)


def all_paths_bound(problem: Problem, prices: Tensor) -> Tensor:
    """(B,) bound on the optimum over all paths of the network, float64: one run of Dijkstra a source and matrix.

    The balanced programs include the demands that have a live candidate path, as the allocation does.

    Args:
        problem: B matrices.
        prices: (B, E), value per Gbit/s.  Negative and NaN entries count as 0.
    """
    problem, prices = problem.to(torch.float64), usable_prices(problem, prices)
    capacity_value = problem.capacity_value(prices)
    demand = problem.demand if problem.objective.maximises_value else problem.demand * problem.routable
    weights = link_weights(problem, prices)
    profits = [_all_paths_profit(problem, w, d) for w, d in zip(weights, demand, strict=True)]
    profit = torch.tensor(profits, dtype=torch.float64, device=capacity_value.device)
    if problem.objective.maximises_value:
        bound = capacity_value + profit
        return torch.where(bound.isfinite(), bound, torch.inf)
    theta = torch.where(capacity_value > 0, -profit / capacity_value, 0)
    return from_utilisation(problem, _finite(theta))


def link_weights(problem: Problem, prices: Tensor) -> Tensor:
    """(B, E) price plus cost of one Gbit/s on each link; infinite where the link has failed."""
    return torch.where(problem.capacity > 0, prices + problem.link_cost, torch.inf)


def _all_paths_profit(problem: Problem, weight: Tensor, demand: Tensor) -> float:
    """Sum over the demands of demand times the profit of the best path; losses count only in balanced programs.

    Args:
        problem: for network, pairs and values.
        weight: (E,) of each link, infinite where it has failed.
        demand: (D,) Gbit/s.
    """
    paths, topology = problem.paths, problem.topology
    sources, source_row = np.unique(paths.pairs[:, 0], return_inverse=True)
    rates, value, link_weight = demand.cpu().numpy(), problem.demand_value.cpu().numpy(), weight.cpu().numpy()
    total = 0.0
    for first in range(0, len(sources), _SOURCES_AT_A_TIME):
        chunk = slice(*np.searchsorted(source_row, [first, first + _SOURCES_AT_A_TIME]))  # demands of these sources
        distance, _ = shortest_trees(
            topology.num_nodes, topology.link_source, topology.link_target, link_weight,
            sources[first : first + _SOURCES_AT_A_TIME],
        )  # fmt: skip
        least = distance[source_row[chunk] - first, paths.pairs[chunk, 1]]
        least = np.where(np.isfinite(least), least, value[chunk] if problem.objective.maximises_value else 0.0)
        profit = value[chunk] - least
        total += float(rates[chunk] @ (np.maximum(profit, 0) if problem.objective.maximises_value else profit))
    return total


def from_utilisation(problem: Problem, theta: Tensor) -> Tensor:
    """Value or bound of a balanced program, from that of max_link_utilisation."""
    return 1 / theta.clamp(min=1) if problem.objective.higher_is_better else theta


def gap(problem: Problem, value: Tensor, bound: Tensor) -> Tensor:
    """(B,) how far the optimum may be: (bound - value) / bound, or (value - bound) / value for a minimum.

    0 where both are 0; infinite, not certified, where value or bound is NaN or infinite.
    """
    high, low = (bound, value) if problem.objective.higher_is_better else (value, bound)
    gaps = torch.where(high > 0, (high - low) / high, 0)
    return torch.where(value.isfinite() & bound.isfinite(), gaps, torch.inf)
