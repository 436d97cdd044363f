"""Prices -> a certified bound on the optimum, by weak duality.  Whatever the prices, the bound holds.

For prices p[e] >= 0 and price(d, k) the sum of p over the links of path (d, k):

- value maximisation:  optimum <= sum_e c[e] p[e] + sum_d demand[d] max(0, max_k (v[d, k] - price(d, k)));
- max_link_utilisation, prices scaled so that sum_e c[e] p[e] = 1:
  optimum >= sum_d demand[d] min_k price(d, k);
- max_concurrent_flow: optimum <= min(1, 1 / theta) of that bound theta.

The maxima and minima go over the paths that exist and have not failed, as in the allocation.  With the
least over all paths of the network in place of the K candidates, price(d) = the shortest path under the
prices, the same formulas bound what any choice of paths could reach: :func:`all_paths_bound`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from teal.network.shortest import shortest_trees
from teal.problem import Problem

_SOURCES = 512  # whose shortest paths are held at a time
_SCALES = torch.logspace(-2, 1, 13, base=2.0, dtype=torch.float64)


def dual_bound(problem: Problem, prices: Tensor) -> Tensor:
    """The bound above: (B,), in float64.

    Args:
        prices: (B, E), value per Gbit/s.  Negative and NaN entries count as 0.
    """
    return _bounds(problem, prices, _SCALES.new_ones(1)).squeeze(0)


def scaled_dual_bound(problem: Problem, prices: Tensor) -> Tensor:
    """The best of :func:`dual_bound` over multiples of the prices from 1/4 to 2, and over 0: (B,).

    One path_sum serves all multiples.  The multiple 0 gives the total value of all routable demand,
    so the bound is never worse than that.  The balanced programs scale prices anyway.
    """
    if not problem.objective.maximises_value:
        return dual_bound(problem, prices)
    return _bounds(problem, prices, torch.cat([_SCALES.new_zeros(1), _SCALES])).amin(0)


def _bounds(problem: Problem, prices: Tensor, scales: Tensor) -> Tensor:
    """(scales, B)."""
    problem = problem.to(torch.float64)
    prices = torch.nan_to_num(prices.to(torch.float64), nan=0.0, posinf=0.0).clamp(min=0)
    worth = (problem.capacity * prices).sum(1)  # (B,)
    path_price = problem.ops.path_sum(prices)  # (B, D, K)
    if not problem.objective.maximises_value:
        cheapest = torch.where(problem.path_mask, path_price, torch.inf).amin(-1)
        cheapest = torch.where(problem.routable, cheapest, 0)
        theta = (problem.demand * cheapest).sum(1)
        theta = torch.where(worth > 0, theta / worth.clamp(min=1e-300), 0)
        return from_utilisation(problem, theta).unsqueeze(0)
    if problem.has_link_cost:
        profits = (
            torch.where(problem.path_mask, problem.path_value - scale * path_price, 0).amax(-1)
            for scale in scales.tolist()
        )
    else:  # the cheapest path is the best at any scale: no pass over all paths for each
        cheapest = torch.where(problem.path_mask, path_price, torch.inf).amin(-1)
        cheapest = torch.where(problem.routable, cheapest, 0)
        value = torch.where(problem.routable, problem.demand_value, 0)
        profits = (value - scale * cheapest for scale in scales.tolist())
    spent = torch.stack([(problem.demand * profit.clamp(min=0)).sum(1) for profit in profits])
    return scales.to(worth)[:, None] * worth + spent


def all_paths_bound(problem: Problem, prices: Tensor) -> Tensor:
    """(B,) bound on the optimum over all paths that there are, in float64: one Dijkstra a source and matrix.

    The balanced programs go over the demands that have a candidate path left, as the allocation does.

    Args:
        prices: (B, E), value per Gbit/s.  Negative and NaN entries count as 0.
    """
    problem = problem.to(torch.float64)
    prices = torch.nan_to_num(prices.to(torch.float64), nan=0.0, posinf=0.0).clamp(min=0)
    worth = (problem.capacity * prices).sum(1)
    demand = problem.demand if problem.objective.maximises_value else problem.demand * problem.routable
    weights = link_weights(problem, prices)
    spent = torch.tensor([_best_of_all_paths(problem, w, d) for w, d in zip(weights, demand, strict=True)])
    spent = spent.to(worth)
    if problem.objective.maximises_value:
        return worth + spent
    return from_utilisation(problem, torch.where(worth > 0, -spent / worth.clamp(min=1e-300), 0))


def link_weights(problem: Problem, prices: Tensor) -> Tensor:
    """(B, E) what one Gbit/s pays on each link: its price and its cost; infinite where it has failed."""
    return torch.where(problem.capacity > 0, prices + problem.link_cost, torch.inf)


def _best_of_all_paths(problem: Problem, weight: Tensor, demand: Tensor) -> float:
    """Sum of demand times profit of its best path, at least 0 if it may be rejected."""
    paths, topology = problem.paths, problem.topology
    sources, rows = np.unique(paths.pairs[:, 0], return_inverse=True)
    rates, value, link_weight = demand.cpu().numpy(), problem.demand_value.cpu().numpy(), weight.cpu().numpy()
    total = 0.0
    for first in range(0, len(sources), _SOURCES):
        own = slice(*np.searchsorted(rows, [first, first + _SOURCES]))
        distance, _ = shortest_trees(
            topology.num_nodes, topology.link_source, topology.link_target, link_weight,
            sources[first : first + _SOURCES],
        )  # fmt: skip
        nearest = distance[rows[own] - first, paths.pairs[own, 1]]
        nearest = np.where(np.isfinite(nearest), nearest, value[own] if problem.objective.maximises_value else 0.0)
        profit = value[own] - nearest
        total += float(rates[own] @ (np.maximum(profit, 0) if problem.objective.maximises_value else profit))
    return total


def from_utilisation(problem: Problem, theta: Tensor) -> Tensor:
    """A value or bound of a balanced program, given that of max_link_utilisation."""
    return 1 / theta.clamp(min=1) if problem.objective.higher_is_better else theta


def gap(problem: Problem, value: Tensor, bound: Tensor) -> Tensor:
    """(B,) how far the optimum may be: (bound - value) / bound, or (theta - bound) / theta."""
    if problem.objective.higher_is_better:
        return torch.where(bound > 0, (bound - value) / bound.clamp(min=1e-300), 0)
    return torch.where(value > 0, (value - bound) / value.clamp(min=1e-300), 0)
