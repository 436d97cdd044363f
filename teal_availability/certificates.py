"""Arithmetic of reserved rates: what they keep, and bounds that prices prove.  No solver is called,
and nothing of one is trusted.

With rates x[d, k] (Gbit/s) on the paths of a demand of d Gbit/s, what arrives while exactly the
paths of a set s survive is

    min(d, S[d, s]),  S[d, s] = sum of x[d, k] over the paths k in s.
"""

from __future__ import annotations

import numpy as np

from teal import Problem
from teal.network.path_links import path_links_of
from teal.runtime.arrays import FloatArray
from teal_availability.matrix import capacity_of, demand_of
from teal_availability.patterns import Patterns
from teal_availability.tolerances import missed_time


def kept(patterns: Patterns, demand: FloatArray, rates: FloatArray) -> FloatArray:
    """(D, 2^K) share of each demand that arrives while exactly the paths of a set survive; 1 of a
    demand of 0.
    """
    arriving = rates @ patterns.survives.T.astype(np.float64)
    share = np.ones_like(arriving)
    np.divide(arriving, demand[:, None], out=share, where=demand[:, None] > 0)
    found: FloatArray = np.minimum(share, 1.0)
    return found


def expected_share(patterns: Patterns, demand: FloatArray, rates: FloatArray) -> float:
    """Share of all traffic that arrives on average over time; 1 without demand."""
    total = float(demand.sum())
    of_demand = (patterns.probability * kept(patterns, demand, rates)).sum(1)
    return float(demand @ of_demand) / total if total > 0 else 1.0


def tail_shares(
    patterns: Patterns, demand: FloatArray, rates: FloatArray, availability: float
) -> FloatArray:
    """(D,) share of each demand that arrives on average in the worst 1 - availability of the
    time.
    """
    share = kept(patterns, demand, rates)
    tail = 1 - availability
    order = np.argsort(share, axis=1, kind="stable")
    worst_first = np.take_along_axis(share, order, 1)
    time = np.take_along_axis(patterns.probability, order, 1)
    before = np.cumsum(time, axis=1) - time
    of_tail = np.clip(tail - before, 0.0, time)
    found: FloatArray = (of_tail * worst_first).sum(1) / np.maximum(of_tail.sum(1), 1e-300)
    return found


def quantile_shares(
    patterns: Patterns, demand: FloatArray, rates: FloatArray, availability: float
) -> FloatArray:
    """(D,) the largest share that each demand keeps in at least ``availability`` of the time."""
    share = kept(patterns, demand, rates)
    order = np.argsort(-share, axis=1, kind="stable")
    best_first = np.take_along_axis(share, order, 1)
    probability = np.take_along_axis(patterns.probability, order, 1)
    # Time in patterns with a smaller share; summed from the smallest one, which keeps its digits.
    from_here = np.cumsum(probability[:, ::-1], axis=1)[:, ::-1]
    missed = from_here - probability
    reached = (missed > missed_time(availability)).sum(1).clip(max=share.shape[1] - 1)
    found: FloatArray = best_first[np.arange(len(share)), reached]
    return found


def within_capacities(problem: Problem, rates: FloatArray) -> FloatArray:
    """(D, K) rates, each path cut by the fullest of its links; 0 on paths with a dead link."""
    links = path_links_of(problem.paths)
    capacity = capacity_of(problem)
    flat = np.maximum(rates.reshape(-1), 0.0)
    found = np.zeros_like(flat)
    if not len(links.slot):
        return found.reshape(rates.shape)
    dead = np.add.reduceat((capacity[links.link] <= 0).astype(np.int64), links.link_ptr[:-1]) > 0
    flow = np.where(dead, 0.0, flat[links.slot])
    load = np.bincount(links.link, np.repeat(flow, np.diff(links.link_ptr)), len(capacity))
    excess = np.ones_like(capacity)
    np.divide(load, capacity, out=excess, where=capacity > 0)
    worst = np.maximum.reduceat(np.maximum(1.0, excess)[links.link], links.link_ptr[:-1])
    found[links.slot] = flow / worst
    return found.reshape(rates.shape)


def path_prices(problem: Problem, prices: FloatArray) -> FloatArray:
    """(D, K) sum of the prices along each path; infinite where there is none, or a link is dead, so
    that nothing can be reserved.
    """
    links = path_links_of(problem.paths)
    found = np.full(problem.paths.mask.size, np.inf)
    if len(links.slot):
        is_dead = capacity_of(problem)[links.link] <= 0
        dead = np.add.reduceat(is_dead.astype(np.int64), links.link_ptr[:-1]) > 0
        sums = np.add.reduceat(prices[links.link], links.link_ptr[:-1])
        found[links.slot] = np.where(dead, np.inf, sums)
    return found.reshape(problem.paths.mask.shape)


def expected_share_bound(
    problem: Problem, patterns: Patterns, prices: FloatArray, weights: FloatArray
) -> float:
    """The largest share of all traffic that can arrive on average over time, at most.

    For any prices y >= 0 of the links and weights w >= 0 of the patterns with

        sum of w[d, s] over the patterns with path k  <=  sum of y over the links of path k,

    no rates bring more than sum_e c[e] y[e] + sum_d d sum_s max(0, p[d, s] - w[d, s]) Gbit/s.
    Weights that are too large are made smaller in proportion.

    Args:
        problem: one matrix.
        patterns: probabilities of its paths.
        prices: (E,) any numbers.
        weights: (D, 2^K) any numbers.
    """
    demand = demand_of(problem)
    prices = np.maximum(prices, 0.0)
    total = float(demand.sum())
    if total <= 0:
        return 1.0
    price = path_prices(problem, prices)
    fitting = _fitting(price, patterns, np.maximum(weights, 0.0))
    missed = np.maximum(0.0, patterns.probability - fitting)
    missed[:, 0] = 0.0  # while no path survives nothing can arrive
    bound = float(capacity_of(problem) @ prices) + float(demand @ missed.sum(1))
    return min(bound / total, float(demand @ (1 - patterns.probability[:, 0])) / total)


def common_share_bound(
    problem: Problem,
    patterns: Patterns,
    availability: float,
    prices: FloatArray,
    weights: FloatArray,
    of_demand: FloatArray,
    kept: FloatArray | None = None,
) -> float:
    """The largest common share at an availability, at most.

    For any prices y >= 0, weights of demands r >= 0 that sum to 1, and weights w >= 0 of patterns
    with w[d, s] <= r[d] p[d, s] / (1 - beta) and

        sum of w[d, s] over the patterns with path k  <=  d times the price of path k,

    no rates have a larger common share than sum_e c[e] y[e] + sum_d (r[d] - sum_s w[d, s]).
    Weights that are too large are made smaller.  Where demands of upper classes keep shares k[d],
    the weights of the others sum to 1, and no such rates have a larger one than this less
    sum_d r[d] k[d] over the upper classes.

    Args:
        problem: one matrix.
        patterns: probabilities of its paths.
        availability: beta.
        prices: (E,) any numbers.
        weights: (D, 2^K) any numbers.
        of_demand: (D,) any numbers, 0 for demands that have no part in the share.
        kept: (D,) share that a demand of an upper class keeps; NaN for those of the common share.
            None: all are of the common share.
    """
    demand = demand_of(problem)
    of_demand = np.maximum(of_demand, 0.0)
    kept = np.full(len(demand), np.nan) if kept is None else kept
    is_upper = ~np.isnan(kept)
    total = float(of_demand[~is_upper].sum())
    if total <= 0:
        return 1.0
    # Those of the common share in a sum of 1, as the bound wants them.
    prices = np.maximum(prices, 0.0) / total
    of_demand = of_demand / total
    price = path_prices(problem, prices)
    is_path = np.isfinite(price)
    price = np.where(is_path, np.where(is_path, price, 0.0) * demand[:, None], np.inf)
    fitting = _fitting(price, patterns, np.maximum(weights, 0.0) / total)
    most = of_demand[:, None] * patterns.probability / (1 - availability)
    fitting = np.minimum(fitting, most)
    too_much = np.maximum(1.0, fitting.sum(1) / np.maximum(of_demand, 1e-300))
    spare = np.maximum(0.0, of_demand - (fitting / too_much[:, None]).sum(1))
    of_upper = float(of_demand[is_upper] @ kept[is_upper])
    bound = float(capacity_of(problem) @ prices) + float(spare.sum()) - of_upper
    return min(1.0, max(0.0, bound))


def weights_that_fit(problem: Problem, patterns: Patterns, prices: FloatArray) -> FloatArray:
    """(D, 2^K) weights for :func:`expected_share_bound` that prices allow, the most probable
    patterns first.
    """
    left = path_prices(problem, prices)
    order = np.argsort(-patterns.probability, axis=1, kind="stable")
    weights = np.zeros_like(patterns.probability)
    demands = np.arange(len(order))
    for sets in order.T:
        inside = patterns.survives[sets]
        room = np.where(inside, left, np.inf).min(1)
        weight = np.where(sets > 0, np.minimum(patterns.probability[demands, sets], room), 0.0)
        weights[demands, sets] = weight
        left = np.where(inside, left - weight[:, None], left)
    return weights


def _fitting(price: FloatArray, patterns: Patterns, weights: FloatArray) -> FloatArray:
    """Weights of each demand made smaller in proportion, so that those of a path's patterns add up
    to its price (D, K) at most.  The weight of no path surviving stays.
    """
    used = weights @ patterns.survives.astype(np.float64)
    share = np.full_like(price, np.inf)
    np.divide(price, used, out=share, where=used > 0)
    found: FloatArray = weights * np.minimum(1.0, share.min(1))[:, None]
    found[:, 0] = weights[:, 0]
    return found
