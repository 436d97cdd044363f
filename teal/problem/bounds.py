"""Certified bounds on the optimum from link prices, by weak duality; any prices give a bound.

For prices p[e] >= 0 of links with capacities c[e], price(d, k) the sum of p over the links of path
k of demand d, and v[d, k] the value of a Gbit/s on it:

- value maximisation:  optimum <= sum_e c[e] p[e] + sum_d demand[d] max(0, max_k (v[d, k] - price(d,
  k)));
- max_link_utilisation, with prices scaled so that sum_e c[e] p[e] = 1: optimum >= sum_d demand[d]
  min_k price(d, k);
- least_cost:  optimum >= sum_d demand[d] min_k (cost(d, k) + price(d, k)) - sum_e c[e] p[e];
- max_concurrent_flow: optimum <= min(1, 1 / theta) with the bound theta of max_link_utilisation;
- side conditions: the bound of the rewritten program (:mod:`teal.problem.program`), whose added
  rows get the prices with the tightest bound; value steps: see :mod:`teal.problem.steps`.

A price above V, the largest value of a Gbit/s, proves no more than V, since no path over the link
is profitable at V; prices above a million times V are replaced by V, so that sums stay finite. A
bound that is not finite is replaced by infinity (0 for a minimum), the trivial bound.

Maxima and minima are over live paths, as in the allocation. Over all paths of the network, with
price(d) the shortest path under the prices, the same formulas bound the optimum over any choice of
paths: :func:`all_paths_bound`. Entry points: :func:`dual_bound`, :func:`scaled_dual_bound`,
:func:`gap`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from teal.network.shortest import shortest_trees
from teal.problem.problem import Problem
from teal.runtime.arrays import FloatArray

# Sources whose shortest paths to all nodes are in memory at once.
_MAX_SOURCES_PER_CHUNK = 512
# Relative excess of a value over its bound by rounding, for sums of up to millions of terms.
_GAP_ROUNDING = 1e-9
# Relative rounding of the sums in a bound on a cost.
_COST_ROUNDING = 1e-13
# Price multiples of scaled_dual_bound: 13 from 1/4 to 2, evenly spaced in the logarithm.
PRICE_SCALES = torch.logspace(-2, 1, 13, base=2.0, dtype=torch.float64)


def dual_bound(problem: Problem, prices: Tensor) -> Tensor:
    """Return the Lagrangian dual bound (B,) of link prices on the optimum, in float64.

    Value maximisation: sum of capacity * price + sum of demand * max(0, max over live paths of
    value less price of the path).

    Args:
        problem: B matrices.
        prices: (B, E), value per Gbit/s.  Negative and NaN entries count as 0.
    """
    return _best_bound(problem, prices, prices.new_ones(1, dtype=torch.float64))


def scaled_dual_bound(problem: Problem, prices: Tensor) -> Tensor:
    """Return the best dual bound (B,) over multiples of the prices, in float64.

    The multiples are 0 and 13 factors from 1/4 to 2.  The multiple 0 gives the trivial bound, the
    total value of all routable demand.  For prices on the simplex all multiples give one bound, so
    that only the prices themselves are used.

    Args:
        problem: B matrices.
        prices: (B, E), value per Gbit/s.  Negative and NaN entries count as 0.
    """
    return _best_bound(problem, prices, torch.from_numpy(multiples(problem)))


# On the simplex every multiple of the prices gives the same bound.
_SINGLE_SCALE = np.ones(1)
_ALL_SCALES = np.concatenate([np.zeros(1), PRICE_SCALES.numpy()])


def multiples(problem: Problem) -> FloatArray:
    """Return the multiples (m,) of the prices among which the best dual bound is selected: 1 for
    prices on the simplex, else 0 and 13 factors from 1/4 to 2.
    """
    return _SINGLE_SCALE if problem.price_set.on_simplex else _ALL_SCALES


def finite_prices(prices: Tensor) -> Tensor:
    """Return ``prices`` in float64, with 0 for negative, NaN and infinite entries."""
    if prices.device.type == "cpu" and not prices.requires_grad:
        # NumPy takes a third of torch's time for the prices of a small network.
        values = prices.numpy()
        finite = np.where((values > 0) & (values < np.inf), values, 0.0)
        return torch.from_numpy(finite.astype(np.float64, copy=False))
    return torch.nan_to_num(prices.to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)


def usable_prices(problem: Problem, prices: Tensor, max_ratio: float = 1e6) -> Tensor:
    """Return prices (B, E) with finite sums, whose bound is as tight as that of ``prices``.

    Negative, NaN and infinite entries become 0; the result is in float64.

    Args:
        problem: problem with objective and values.
        prices: (B, E) dual price of each link, value per Gbit/s.
        max_ratio: multiple of the largest value of a Gbit/s up to which prices stay unchanged.
    """
    prices = finite_prices(prices)
    # Values are unbounded under a utility (shares near 0), and for demand that must be carried.
    if problem.utility is not None or problem.objective.rules.may_be_infeasible:
        return prices
    return problem.price_set.usable(prices, _max_value(problem.demand_value), max_ratio)


def _max_value(values: Tensor) -> Tensor | float:
    """Return the largest value of a Gbit/s of any demand, at least 0; a number on the CPU.

    Args:
        values: (D,) value of a Gbit/s of each demand.
    """
    if values.device.type == "cpu" and not values.requires_grad:
        return float(values.numpy().max(initial=0.0))
    return torch.cat([values, values.new_zeros(1)]).amax().to(torch.float64)


def _best_bound(problem: Problem, prices: Tensor, price_multiples: Tensor) -> Tensor:
    """Return the best bound (B,) over several multiples of the prices.

    Args:
        problem: B matrices.
        prices: (B, E) dual price of each link, value per Gbit/s.
        price_multiples: (M,) multiples.
    """
    program = problem.to(torch.float64).rewritten.program
    prices = usable_prices(problem, prices)
    if program.limit.shape[1] == prices.shape[1]:
        return from_score(problem, program.bounds_along(prices, price_multiples).amin(0), prices)
    # Prices of added rows are optimised for the prices themselves, scaled with them, and optimised
    # again for the best multiple.
    all_prices = program.with_added_prices(prices)
    bounds = program.bounds_along(all_prices, price_multiples)
    if len(price_multiples) > 1:
        best_scale = price_multiples.to(all_prices)[bounds.argmin(0)][:, None]
        bounds = torch.cat(
            [bounds, program.bound(program.with_added_prices(best_scale * prices))[None]]
        )
    return from_score(problem, bounds.amin(0), prices)


def all_paths_bound(problem: Problem, prices: Tensor) -> Tensor:
    """Return the dual bound (B,) over all paths of the network, in float64.

    Pricing runs Dijkstra's algorithm from each source, for each matrix.  Programs that serve all
    demand include the demands that have a live candidate path, as the allocation does.  For fair
    shares the bound is 1 if a demand without a live candidate path is connected: its weight is not
    known before it has a path.

    Args:
        problem: B matrices.
        prices: (B, E), value per Gbit/s.  Negative and NaN entries count as 0.
    """
    problem, prices = problem.to(torch.float64), usable_prices(problem, prices)
    program = problem.program
    row_value = problem.capacity_value(prices)
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
    """Return the price plus the cost (B, E) of a Gbit/s on each link; infinite for a failed link.

    Args:
        problem: problem with link costs.
        prices: (B, E) dual price of each link, value per Gbit/s.
    """
    return torch.where(problem.capacity > 0, prices + problem.link_cost, torch.inf)


def _all_paths_profit(problem: Problem, weight: Tensor, demand: Tensor) -> float:
    """Return the sum over the demands of demand times the profit of its best path.

    The profit is the demand's value less the length of its shortest path in the network; infinite
    under a utility if a demand without a live candidate path is connected.

    Args:
        problem: problem with network, pairs and values.
        weight: (E,) price plus cost of each link, infinite where it has failed.
        demand: (D,) Gbit/s.
    """
    paths = problem.paths
    topology = problem.topology
    sources, source_index = np.unique(paths.pairs[:, 0], return_inverse=True)
    # Sort the demands by source, to run Dijkstra's algorithm for a chunk of sources at a time.
    demands_by_source = np.argsort(source_index, kind="stable")
    source_index = source_index[demands_by_source]
    targets = paths.pairs[demands_by_source, 1]
    link_weight = weight.cpu().numpy()
    # (D,) length of each demand's shortest path.
    path_length = np.empty(len(demands_by_source))
    for first in range(0, len(sources), _MAX_SOURCES_PER_CHUNK):
        # Demands of these sources.
        chunk_slice = slice(*np.searchsorted(source_index, [first, first + _MAX_SOURCES_PER_CHUNK]))
        tree_distance, _ = shortest_trees(
            topology.num_nodes,
            topology.link_source,
            topology.link_target,
            link_weight,
            sources[first : first + _MAX_SOURCES_PER_CHUNK],
            topology.no_transit,
        )
        path_length[demands_by_source[chunk_slice]] = tree_distance[
            source_index[chunk_slice] - first, targets[chunk_slice]
        ]
    min_cost = torch.from_numpy(path_length).to(demand)
    if problem.utility is not None and bool(
        (min_cost.isfinite() & (demand > 0) & ~problem.routable[0]).any()
    ):
        return math.inf
    # Profit of the best path; 0 without a path.
    profit = torch.where(min_cost.isfinite(), problem.demand_value - min_cost, 0)
    # Support function of the demand set: an unprofitable demand counts 0 if it may be shed.
    return float((demand * problem.demand_set.support_of_best(profit[None])[0]).sum())


def from_score(problem: Problem, score: Tensor, prices: Tensor | None = None) -> Tensor:
    """Convert scores to values or bounds (B,) of the objective.

    A score is the value of the program as a maximum: minus the cost or the utilisation where it is
    minimised.  Bounds on a cost are lowered by their rounding error.

    Args:
        problem: B matrices.
        score: (B,) scores of the program.
        prices: (B, E) dual prices that prove a bound, to estimate its rounding; None if unknown.
    """
    rules = problem.objective.rules
    if prices is None or not rules.may_be_infeasible:
        return rules.from_score(problem, score)
    # Rounding is relative to the sums in the score: costs of flows, and prices of capacity.
    # The bound may use a multiple of the prices, up to the largest of PRICE_SCALES.
    capacity_cost = float(PRICE_SCALES.max()) * problem.capacity_value(prices.to(problem.capacity))
    rounding = _COST_ROUNDING * (score.abs() + capacity_cost.to(score))
    return (-score - rounding).clamp(min=0)


def gap(problem: Problem, value: Tensor, bound: Tensor) -> Tensor:
    """Return the relative optimality gap (B,): (bound - value) / bound, for a minimum (value -
    bound) / value.

    The gap is relative to the larger absolute value of the two, also for values below 0.  It is 0
    where both are 0, and infinite where value or bound is NaN or infinite.

    Args:
        problem: problem whose objective says whether it is a maximum or a minimum.
        value: (B,) values of allocations.
        bound: (B,) bounds on the optimum.
    """
    values = value.cpu().numpy()
    bounds = bound.cpu().numpy()
    gaps = relative_gap(values, bounds, problem.objective.rules.sense)
    # A value or bound that is infinite or NaN makes the gap NaN.
    if not np.isfinite(gaps).all():
        gaps = np.where(np.isfinite(values) & np.isfinite(bounds), gaps, np.inf)
    return torch.from_numpy(gaps).to(value.device)


def relative_gap(value: FloatArray, bound: FloatArray, sense: float) -> FloatArray:
    """Return the relative gap (B,): (bound - value) / bound, for a minimum (value - bound) / value.

    It is NaN where ``bound`` is NaN or infinite.  Where a value exceeds its bound, the gap is 0 if
    the excess may be rounding, else negative.

    Args:
        value: (B,) values of the objective.
        bound: (B,) bounds on the optimum.
        sense: 1.0 for a maximum, -1.0 for a minimum.
    """
    high, low = (bound, value) if sense > 0 else (value, bound)
    magnitude = np.maximum(np.abs(high), np.abs(low))
    # Infinities and zeros give NaN.
    with np.errstate(invalid="ignore", divide="ignore"):
        gap: FloatArray = np.asarray((high - low) / magnitude)
    if np.all(gap >= 0):
        return gap
    gap = np.where(magnitude == 0, 0.0, gap)
    return np.where((gap < 0) & (gap > -_GAP_ROUNDING), 0.0, gap)


def gap_between(value: float, bound: float, sense: float) -> float:
    """Return the relative optimality gap of one value: (bound - value) / bound for a maximum.

    Infinite (not certified) where value or bound is NaN or infinite.

    Args:
        value: value of the objective.
        bound: bound on the optimum.
        sense: 1.0 for a maximum, -1.0 for a minimum.
    """
    if not (math.isfinite(value) and math.isfinite(bound)):
        return math.inf
    return float(relative_gap(np.asarray(value), np.asarray(bound), sense))
