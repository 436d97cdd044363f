"""Certificates of reserved rates: delivered shares, and upper bounds proved by link prices.

No solver is called, and no solver result is trusted. With rates x[d, k] (Gbit/s) on the paths k of
demand d, the traffic that arrives in survival state s (exactly the paths of s survive) is

    min(rate of demand d, sum of x[d, k] over the paths k in s).

The bounds are weak duality of the linear programs of :mod:`teal_availability.guarantees`.
"""

from __future__ import annotations

import numpy as np

from teal import Problem
from teal.network.path_links import path_links_of
from teal.runtime.arrays import FloatArray
from teal_availability.matrix import capacity_of, demand_of
from teal_availability.survival import SurvivalStates
from teal_availability.tolerances import max_missed_time


def arriving_shares(
    survival_states: SurvivalStates, demand: FloatArray, rates: FloatArray
) -> FloatArray:
    """Return the delivered share (D, 2^K) of each demand in each survival state.

    The delivered share is the sum of the rates on the paths that survive in the state, divided by
    the demand, and at most 1. It is 1 for a demand of 0.

    Args:
        survival_states: survival states of the demands.
        demand: (D,) Gbit/s.
        rates: (D, K) reserved Gbit/s on each path.
    """
    arriving = rates @ survival_states.survives.T.astype(np.float64)
    share = np.ones_like(arriving)
    np.divide(arriving, demand[:, None], out=share, where=demand[:, None] > 0)
    capped: FloatArray = np.minimum(share, 1.0)
    return capped


def expected_share(survival_states: SurvivalStates, demand: FloatArray, rates: FloatArray) -> float:
    """Return the expected delivered share of all traffic over time; 1 without demand.

    Args:
        survival_states: survival states of the demands.
        demand: (D,) Gbit/s.
        rates: (D, K) reserved Gbit/s on each path.
    """
    total = float(demand.sum())
    mean_share = (
        survival_states.probability * arriving_shares(survival_states, demand, rates)
    ).sum(1)
    return float(demand @ mean_share) / total if total > 0 else 1.0


def tail_mean_shares(
    survival_states: SurvivalStates, demand: FloatArray, rates: FloatArray, availability: float
) -> FloatArray:
    """Return the mean delivered share (D,) of each demand in the worst 1 - availability of the
    time: one minus the conditional value at risk (CVaR) of its loss.

    Args:
        survival_states: survival states of the demands.
        demand: (D,) Gbit/s.
        rates: (D, K) reserved Gbit/s on each path.
        availability: share of the time, in (0, 1).
    """
    share = arriving_shares(survival_states, demand, rates)
    tail_time = 1 - availability
    # Fill the tail with the states of the smallest shares.
    order = np.argsort(share, axis=1, kind="stable")
    ascending_share = np.take_along_axis(share, order, 1)
    probability = np.take_along_axis(survival_states.probability, order, 1)
    preceding_probability = np.cumsum(probability, axis=1) - probability
    tail_probability = np.clip(tail_time - preceding_probability, 0.0, probability)
    # Mean share in the tail; the divisor is never 0.
    tail_mean: FloatArray = (tail_probability * ascending_share).sum(1) / np.maximum(
        tail_probability.sum(1), 1e-300
    )
    return tail_mean


def quantile_shares(
    survival_states: SurvivalStates, demand: FloatArray, rates: FloatArray, availability: float
) -> FloatArray:
    """Return the largest share (D,) that each demand keeps in at least ``availability`` of the
    time.

    Args:
        survival_states: survival states of the demands.
        demand: (D,) Gbit/s.
        rates: (D, K) reserved Gbit/s on each path.
        availability: share of the time, in (0, 1).
    """
    share = arriving_shares(survival_states, demand, rates)
    # (D, 2^K) shares and probabilities of the survival states, by descending share.
    order = np.argsort(-share, axis=1, kind="stable")
    descending_share = np.take_along_axis(share, order, 1)
    probability = np.take_along_axis(survival_states.probability, order, 1)

    # Total probability of the later states, whose share is smaller, summed from the smallest for
    # accuracy. The quantile is the first share for which it is at most 1 - availability.
    tail_probability = np.cumsum(probability[:, ::-1], axis=1)[:, ::-1]
    missed_time = tail_probability - probability
    # Number of states with too much probability behind them: the index of the quantile.
    quantile_index = (
        (missed_time > max_missed_time(availability)).sum(1).clip(max=share.shape[1] - 1)
    )
    quantile: FloatArray = descending_share[np.arange(len(share)), quantile_index]
    return quantile


def scale_to_capacities(problem: Problem, rates: FloatArray) -> FloatArray:
    """Scale rates down to the link capacities.

    The rate of a path is divided by the utilisation of its fullest link, if above 1; paths over a
    link of capacity 0 get rate 0.

    Args:
        problem: one matrix with its candidate paths.
        rates: (D, K) Gbit/s on each path; negative rates count as 0.

    Returns:
        rates (D, K) whose link loads are within capacities.
    """
    # The P paths in CSR form: their positions d K + k (slot), and their links; link_ptr[:-1] has
    # the position of the first link of each path.
    path_links = path_links_of(problem.paths)
    capacity = capacity_of(problem)
    path_rates = np.maximum(rates.reshape(-1), 0.0)
    scaled_rates = np.zeros_like(path_rates)
    if not len(path_links.slot):
        return scaled_rates.reshape(rates.shape)
    # Flow (P,) of each path, 0 over a link of capacity 0, and utilisation (E,) of each link.
    is_dead_path = (
        np.add.reduceat((capacity[path_links.link] <= 0).astype(np.int64), path_links.link_ptr[:-1])
        > 0
    )
    flow = np.where(is_dead_path, 0.0, path_rates[path_links.slot])
    load = np.bincount(
        path_links.link, np.repeat(flow, np.diff(path_links.link_ptr)), len(capacity)
    )
    utilisation = np.ones_like(capacity)
    np.divide(load, capacity, out=utilisation, where=capacity > 0)
    # Largest utilisation (P,) on each path, at least 1.
    max_path_utilisation = np.maximum.reduceat(
        np.maximum(1.0, utilisation)[path_links.link], path_links.link_ptr[:-1]
    )
    scaled_rates[path_links.slot] = flow / max_path_utilisation
    return scaled_rates.reshape(rates.shape)


def path_prices(problem: Problem, prices: FloatArray) -> FloatArray:
    """Return the price (D, K) of each path: the sum of its link prices.

    Missing paths and paths over a link of capacity 0 have an infinite price.

    Args:
        problem: one matrix with its candidate paths.
        prices: (E,) link prices.
    """
    path_links = path_links_of(problem.paths)
    path_price = np.full(problem.paths.mask.size, np.inf)
    if len(path_links.slot):
        # Sum the link prices of each path; link_ptr[:-1] has the position of its first link.
        is_dead_link = capacity_of(problem)[path_links.link] <= 0
        is_dead_path = np.add.reduceat(is_dead_link.astype(np.int64), path_links.link_ptr[:-1]) > 0
        link_price_sums = np.add.reduceat(prices[path_links.link], path_links.link_ptr[:-1])
        path_price[path_links.slot] = np.where(is_dead_path, np.inf, link_price_sums)
    return path_price.reshape(problem.paths.mask.shape)


def expected_share_bound(
    problem: Problem, survival_states: SurvivalStates, prices: FloatArray, weights: FloatArray
) -> float:
    """Return an upper bound on the expected delivered share of all traffic, by weak duality.

    For any link prices y[e] >= 0 and weights w[d, s] >= 0 of demands and survival states with

        sum of w[d, s] over the states in which path k survives  <=  price of path k,

    where the price of a path is the sum of its link prices, no rates deliver more than

        sum_e capacity[e] y[e] + sum_d demand[d] sum_s max(0, p[d, s] - w[d, s])

    Gbit/s, where p[d, s] is the probability of a survival state. Weights that violate the condition
    are scaled down.

    Args:
        problem: one matrix.
        survival_states: probabilities of its survival states.
        prices: (E,) link prices, any numbers; negative ones count as 0.
        weights: (D, 2^K) weights of the survival states, any numbers; negative ones count as 0.
    """
    demand = demand_of(problem)
    prices = np.maximum(prices, 0.0)
    total = float(demand.sum())
    if total <= 0:
        return 1.0
    path_price = path_prices(problem, prices)
    scaled_weights = _scale_to_prices(path_price, survival_states, np.maximum(weights, 0.0))
    # (D, 2^K) probability of each survival state beyond its weight.
    excess_probability = np.maximum(0.0, survival_states.probability - scaled_weights)
    # Nothing can arrive while no path survives.
    excess_probability[:, 0] = 0.0
    bound = float(capacity_of(problem) @ prices) + float(demand @ excess_probability.sum(1))
    # Another upper bound: all of a demand arrives while some path survives.
    return min(bound / total, float(demand @ (1 - survival_states.probability[:, 0])) / total)


def common_share_bound(
    problem: Problem,
    survival_states: SurvivalStates,
    availability: float,
    prices: FloatArray,
    weights: FloatArray,
    demand_weights: FloatArray,
    guaranteed_share: FloatArray | None = None,
) -> float:
    """Return an upper bound on the common share at an availability, by weak duality.

    The common share is the largest fraction that every demand keeps, on average in the worst
    1 - availability of the time: one minus the largest CVaR of a demand's loss.

    Take any prices y[e] >= 0 of links, weights r[d] >= 0 of demands that sum to 1, and weights
    w[d, s] >= 0 of survival states with

        w[d, s] <= r[d] * probability[d, s] / (1 - availability),
        sum of w[d, s] over the states in which path k survives  <=  demand[d] * price of path k,

    where the price of a path is the sum of its link prices. No rates have a larger common share
    than

        sum_e capacity[e] y[e] + sum_d (r[d] - sum_s w[d, s]).

    Weights that violate the conditions are scaled down. If demands of upper classes keep guaranteed
    shares g[d], the weights r of the other demands sum to 1, and the bound is reduced by the sum of
    r[d] g[d] over the upper classes.

    Args:
        problem: one matrix.
        survival_states: probabilities of its survival states.
        availability: share of the time, in (0, 1).
        prices: (E,) link prices, any numbers; negative ones count as 0.
        weights: (D, 2^K) weights of the survival states, any numbers; negative ones count as 0.
        demand_weights: (D,) weights of the demands, any numbers; 0 for excluded demands.
        guaranteed_share: (D,) share that a demand of an upper class keeps; NaN for the demands to
            which the common share applies. None: it applies to all demands.
    """
    # Weights of the demands, and of those to which the common share applies: without any, 1 is the
    # bound.
    demand = demand_of(problem)
    demand_weights = np.maximum(demand_weights, 0.0)
    guaranteed_share = (
        np.full(len(demand), np.nan) if guaranteed_share is None else guaranteed_share
    )
    is_higher_class = ~np.isnan(guaranteed_share)
    common_weight = float(demand_weights[~is_higher_class].sum())
    if common_weight <= 0:
        return 1.0
    # Normalise: the demand weights of the common share sum to 1.
    prices = np.maximum(prices, 0.0) / common_weight
    demand_weights = demand_weights / common_weight
    # Scale the weights of survival states to the demand times the path prices (infinite without a
    # path), to the limits by their probabilities, and to a sum of at most r[d] per demand.
    path_price = path_prices(problem, prices)
    is_path = np.isfinite(path_price)
    max_path_weight = np.where(
        is_path, np.where(is_path, path_price, 0.0) * demand[:, None], np.inf
    )
    scaled_weights = _scale_to_prices(
        max_path_weight, survival_states, np.maximum(weights, 0.0) / common_weight
    )
    max_weights = demand_weights[:, None] * survival_states.probability / (1 - availability)
    scaled_weights = np.minimum(scaled_weights, max_weights)
    scale_down = np.maximum(1.0, scaled_weights.sum(1) / np.maximum(demand_weights, 1e-300))
    # Dual objective: capacities at their prices, and the demand weights that exceed the state
    # weights, less the guaranteed shares.
    excess_weights = np.maximum(0.0, demand_weights - (scaled_weights / scale_down[:, None]).sum(1))
    guaranteed_value = float(demand_weights[is_higher_class] @ guaranteed_share[is_higher_class])
    bound = float(capacity_of(problem) @ prices) + float(excess_weights.sum()) - guaranteed_value
    return min(1.0, max(0.0, bound))


def feasible_weights(
    problem: Problem, survival_states: SurvivalStates, prices: FloatArray
) -> FloatArray:
    """Return weights (D, 2^K) of survival states that are dual feasible for given link prices.

    The weight of a state is at most its probability, and the weights of the states in which path k
    survives sum to at most the price of path k. The most probable states of a demand get their
    weight first (greedy).

    Args:
        problem: one matrix with its candidate paths.
        survival_states: probabilities of its survival states.
        prices: (E,) link prices.
    """
    residual_price = path_prices(problem, prices)
    order = np.argsort(-survival_states.probability, axis=1, kind="stable")
    weights = np.zeros_like(survival_states.probability)
    demand_indices = np.arange(len(order))
    # Treat the i-th most probable survival state of every demand at once, for i = 0, 1, ...
    for states in order.T:
        # Assign up to the smallest remaining price of the surviving paths, and subtract it.
        survives = survival_states.survives[states]
        min_residual_price = np.where(survives, residual_price, np.inf).min(1)
        state_weight = np.where(
            states > 0,
            np.minimum(survival_states.probability[demand_indices, states], min_residual_price),
            0.0,
        )
        weights[demand_indices, states] = state_weight
        residual_price = np.where(survives, residual_price - state_weight[:, None], residual_price)
    return weights


def _scale_to_prices(
    price: FloatArray, survival_states: SurvivalStates, weights: FloatArray
) -> FloatArray:
    """Scale the weights of each demand down to the prices of its paths, by one factor per demand.

    In the result, the weights of the states in which path k survives sum to at most the price of
    path k. The weight of the state without a surviving path is unchanged.

    Args:
        price: (D, K) price of each path; infinite for missing paths.
        survival_states: survival states of the demands.
        weights: (D, 2^K) non-negative weights of the survival states.
    """
    # Total weight (D, K) of the states in which each path survives.
    path_weight = weights @ survival_states.survives.astype(np.float64)
    scale = np.full_like(price, np.inf)
    np.divide(price, path_weight, out=scale, where=path_weight > 0)
    scaled: FloatArray = weights * np.minimum(1.0, scale.min(1))[:, None]
    scaled[:, 0] = weights[:, 0]
    return scaled
