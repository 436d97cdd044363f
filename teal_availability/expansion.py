"""The least capacity to buy with which a network keeps all promises.

Each promise j is kept in one of its ways w (:mod:`teal_availability.ways`), which loads links by
a[w, e] Gbit/s.  A pair is a link and its opposite one, which are bought together: a Gbit/s of pair
p costs k[p], and adds a Gbit/s to both.  The purchase is

    min  sum_p k[p] u[p]   over u >= 0 and one way w(j) of each promise,
    sum_j a[w(j), e] <= capacity[e] + u[p(e)]  for each link e.

For any prices y >= 0 of the links with  sum of y over the links of p <= k[p],  no purchase costs
less than

    sum_j min_w sum_e a[w, e] y[e] - sum_e capacity[e] y[e].

The prices are those of the relaxed program, in which a promise may be divided between its ways.  A
choice of ways is found from its solution: each promise in turn moves to the way that costs least
beside all others, until none moves; small programs are solved in whole numbers.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from teal import Problem
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.lp import Between, solve_lp, solve_milp
from teal_availability.matrix import capacity_of
from teal_availability.patterns import Patterns
from teal_availability.tolerances import CAPACITY_TOLERANCE
from teal_availability.ways import MOST_WHOLE, Request, Way, all_ways, by_request_of, loads_of

_MOST_ROUNDS = 50  # in each of which every promise may move once; seldom more than ten are made
_LEAST_SAVING = 1e-9  # share of the cost that a move must save, above rounding
_RELATIVE_GAP = 1e-6  # at which whole numbers are solved


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """A purchase with which all promises that are possible are kept at once.

    Attributes:
        way: the way that each promise is kept; None where its paths never survive for so much of
            the time.
        load: (E,) Gbit/s that are reserved on each link.
        bought: (C,) Gbit/s on each pair of links.
        cost: sum of the cost of what is bought.
        bound: no purchase costs less, if the promises are kept in such ways.
        prices: (E,) of the links, which prove a part of the bound.
    """

    way: tuple[Way | None, ...]
    load: FloatArray
    bought: FloatArray
    cost: float
    bound: float
    prices: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """Links with their opposite ones.

    Attributes:
        order: (E,) the links, those of a pair side by side.
        start: (C,) place of each pair's first link in ``order``.
        of_link: (E,) pair of each link.
        cost: (C,) of a Gbit/s on the links of each pair.
    """

    order: Int64Array
    start: Int64Array
    of_link: Int64Array
    cost: FloatArray

    @classmethod
    def of(cls, pairs: Sequence[Sequence[int]], cost: FloatArray) -> Pairs:
        """The pairs by the links of each, and the cost (C,), above 0, of a Gbit/s on each."""
        length = np.array([len(links) for links in pairs])
        order = np.concatenate([np.asarray(links, dtype=np.int64) for links in pairs])
        of_link = np.empty(len(order), dtype=np.int64)
        of_link[order] = np.repeat(np.arange(len(pairs)), length)
        return cls(order, np.cumsum(length) - length, of_link, cost)

    def needed(self, missing: FloatArray) -> FloatArray:
        """(..., C) Gbit/s to buy where so much (..., E) is missing on the links."""
        largest = np.maximum.reduceat(missing[..., self.order], self.start, axis=-1)
        return np.maximum(largest, 0.0)

    def purchase(self, load: FloatArray, capacity: FloatArray) -> FloatArray:
        """(C,) Gbit/s to buy for loads (E,); nothing for what the tolerance allows."""
        is_over = load > capacity * (1 + CAPACITY_TOLERANCE)
        return self.needed(np.where(is_over, load - capacity, 0.0))


def bound_by_prices(
    request: Int64Array, loads: sp.csr_array, capacity: FloatArray, pairs: Pairs, prices: FloatArray
) -> float:
    """The least that any purchase costs, by any prices; see the module.

    Args:
        request: (W,) promise of each way.
        loads: (W, E) Gbit/s of each way.
        capacity: (E,) Gbit/s.
        pairs: the links that are bought together.
        prices: (E,) any numbers.
    """
    prices = np.maximum(prices, 0.0)
    of_pair = np.bincount(pairs.of_link, prices, minlength=len(pairs.cost))
    largest = np.divide(pairs.cost, of_pair, out=np.ones_like(of_pair), where=of_pair > pairs.cost)
    prices = prices * largest[pairs.of_link]
    cost = loads @ prices
    cheapest = np.full(int(request.max(initial=-1)) + 1, np.inf)
    np.minimum.at(cheapest, request, cost)
    return max(0.0, float(cheapest[np.isfinite(cheapest)].sum() - capacity @ prices))


def expansion(
    problem: Problem,
    patterns: Patterns,
    requests: Sequence[Request],
    pairs: Pairs,
    seconds: float = 30.0,
) -> Expansion:
    """Find a purchase with which all promises are kept.

    Args:
        problem: the network, with the pairs of nodes of all requests among its demands.
        patterns: probabilities of its paths.
        requests: the promises; whether one is sold, and what it is worth, makes no difference.
        pairs: the links that are bought together, and what a Gbit/s costs.
        seconds: time limit, approximately, of the moves and of the search by whole numbers, once
            the relaxed program is solved.

    Raises:
        SolverError: the relaxed program was not solved.
    """
    capacity = capacity_of(problem)
    ways = all_ways(problem, patterns, requests)
    if not ways:
        nothing = np.zeros(len(pairs.cost))
        of_links = np.zeros(len(capacity))
        return Expansion((None,) * len(requests), of_links, nothing, 0.0, 0.0, of_links)
    loads = loads_of(problem, requests, ways)
    request = np.array([way.request for way in ways], dtype=np.int64)
    share, prices = _relaxed(request, loads, capacity, pairs)
    bound = bound_by_prices(request, loads, capacity, pairs, prices)
    end = time.perf_counter() + seconds
    own = [np.array(numbers) for numbers in by_request_of(ways).values()]
    chosen = np.array([numbers[share[numbers].argmax()] for numbers in own])
    chosen = _moved(own, chosen, loads, capacity, pairs, loads @ prices, end)
    cost = _cost(loads, chosen, capacity, pairs)
    if len(ways) <= MOST_WHOLE and cost > bound * (1 + _RELATIVE_GAP):
        left = max(0.1, end - time.perf_counter())
        whole, whole_bound = _whole(request, loads, capacity, pairs, left)
        bound = max(bound, whole_bound)
        if whole is not None and _cost(loads, whole, capacity, pairs) < cost:
            chosen = whole
    load = np.asarray(loads[chosen].sum(0)).reshape(-1)
    bought = pairs.purchase(load, capacity)
    cost = float(bought @ pairs.cost)
    way: list[Way | None] = [None] * len(requests)
    for number in chosen.tolist():
        way[ways[number].request] = ways[number]
    return Expansion(tuple(way), load, bought, cost, min(bound, cost), prices)


def _cost(loads: sp.csr_array, chosen: Int64Array, capacity: FloatArray, pairs: Pairs) -> float:
    load = np.asarray(loads[chosen].sum(0)).reshape(-1)
    return float(pairs.purchase(load, capacity) @ pairs.cost)


def _rows(
    request: Int64Array, loads: sp.csr_array, pairs: Pairs
) -> tuple[sp.csr_array, sp.csr_array]:
    """Rows over ways and pairs: loads less what is bought (E, W + C), and the ways of each promise
    (J, W + C).
    """
    ways, links = loads.shape
    buys = sp.csr_array(
        (-np.ones(links), (np.arange(links), pairs.of_link)), shape=(links, len(pairs.cost))
    )
    numbers, row = np.unique(request, return_inverse=True)
    takes = sp.csr_array(
        (np.ones(ways), (row, np.arange(ways))), shape=(len(numbers), ways + len(pairs.cost))
    )
    return sp.hstack([loads.T, buys], format="csr"), takes


def _relaxed(
    request: Int64Array, loads: sp.csr_array, capacity: FloatArray, pairs: Pairs
) -> tuple[FloatArray, FloatArray]:
    """The share (W,) of each promise in each way by the relaxed program, and prices (E,)."""
    ways = len(request)
    unit = float(loads.data.mean())  # Gbit/s, beside which HiGHS's tolerances are small
    within, takes = _rows(request, loads / unit, pairs)
    per_unit = float(pairs.cost.mean())
    cost = np.concatenate([np.zeros(ways), pairs.cost / per_unit])
    found = solve_lp(
        cost,
        (within, capacity / unit),
        (takes, np.ones(takes.shape[0])),
    )
    return found.solution("expansion")[:ways], found.duals * per_unit


def _whole(
    request: Int64Array,
    loads: sp.csr_array,
    capacity: FloatArray,
    pairs: Pairs,
    seconds: float,
) -> tuple[Int64Array | None, float]:
    """A choice of ways by whole numbers, None where none was found, and a bound on the cost."""
    ways = len(request)
    unit = float(loads.data.mean())  # Gbit/s, as in :func:`_relaxed`
    within, takes = _rows(request, loads / unit, pairs)
    per_unit = float(pairs.cost.mean())
    cost = np.concatenate([np.zeros(ways), pairs.cost / per_unit])
    is_whole: BoolArray = np.arange(len(cost)) < ways
    found = solve_milp(
        cost,
        [Between(within, high=capacity / unit), Between(takes, low=1.0, high=1.0)],
        is_whole.astype(float),
        high=np.where(is_whole, 1.0, np.inf),
        seconds=seconds,
        relative_gap=_RELATIVE_GAP,
    )
    chosen = None if found.x is None else np.flatnonzero(found.x[:ways] > 0.5)
    if chosen is not None and len(chosen) != takes.shape[0]:
        chosen = None
    return chosen, max(0.0, float(found.bound) * unit * per_unit)


def _moved(
    own: Sequence[Int64Array],
    chosen: Int64Array,
    loads: sp.csr_array,
    capacity: FloatArray,
    pairs: Pairs,
    priced: FloatArray,
    end: float,
) -> Int64Array:
    """The choice after each promise has moved, in turn, to the way that costs least beside all
    others, and of equal ones to that of the lowest price, until none moves.

    Args:
        own: ways of each promise.
        chosen: (J,) way of each promise.
        loads, capacity, pairs: as in :func:`bound_by_prices`.
        priced: (W,) cost of each way at the prices.
        end: on the clock, after which no round begins.
    """
    chosen = chosen.copy()
    missing = np.asarray(loads[chosen].sum(0)).reshape(-1) - capacity
    for _ in range(_MOST_ROUNDS):
        has_moved = False
        for number, ways in enumerate(own):
            if len(ways) == 1:
                continue
            block = loads[ways].toarray()
            place = int(np.flatnonzero(ways == chosen[number])[0])
            others = missing - block[place]
            cost = pairs.needed(others + block) @ pairs.cost
            saves = cost < cost[place] - _LEAST_SAVING * (1 + cost[place])
            saves |= (cost <= cost[place]) & (priced[ways] < priced[ways[place]])
            if not saves.any():
                continue
            best = min(np.flatnonzero(saves).tolist(), key=lambda i: (cost[i], priced[ways[i]]))
            missing = others + block[best]
            chosen[number] = ways[best]
            has_moved = True
        if not has_moved or time.perf_counter() > end:
            break
    return chosen
