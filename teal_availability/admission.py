"""Which promises of a rate for a share of the time a network can keep at once, and at which price.

Each promise is kept in one of its ways (:mod:`teal_availability.ways`).  Reserved rates never
exceed capacities, so that all promises are kept at once.

Which are accepted is a packing program: each promise j has a value v[j] and takes at most one of
its ways c, which loads links by a[c, e] Gbit/s.  For any prices y >= 0 of the links, no set of
promises has a larger value than

    sum_e capacity[e] y[e] + sum_j max(0, max_c v[j] - sum_e a[c, e] y[e]),

where a promise that was sold before counts even if its term is negative.  The price of a promise is
the least sum_e a[c, e] y[e] over its ways: what its reservation costs at the prices of the relaxed
program, in which parts of promises are kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from teal import InputError, Problem, SolverError
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.lp import Between, solve_lp, solve_milp
from teal_availability.matrix import capacity_of
from teal_availability.patterns import Patterns
from teal_availability.tolerances import CAPACITY_TOLERANCE
from teal_availability.ways import MOST_WHOLE, Request, Way, all_ways, by_request_of, loads_of

ACCEPTED, REFUSED, SOLD, IMPOSSIBLE = "accepted", "refused", "sold", "impossible"
_RELATIVE_GAP = 1e-6  # of the integer program, unless the least value needs a smaller one
# HiGHS's tolerance of a reduced cost: each promise may cost the bound so many mean values.
_DUAL_TOLERANCE = 1e-7


@dataclasses.dataclass(frozen=True, eq=False)
class Admission:
    """The promises that are kept at once.

    Attributes:
        status: answer to each request: accepted, refused, sold, or impossible (its paths never
            survive for so much of the time).
        way: the way that each is kept; None for those that are not.
        price: (J,) cost of the cheapest way of each request at the prices; infinite without one.
        value: sum of the values of the requests that are kept.
        bound: no set of requests that keeps the sold ones has a larger value, if they are kept in
            such ways.
        prices: (E,) of the links.
    """

    status: tuple[str, ...]
    way: tuple[Way | None, ...]
    price: FloatArray
    value: float
    bound: float
    prices: FloatArray


def choose_promises(
    problem: Problem,
    patterns: Patterns,
    requests: Sequence[Request],
    seconds: float = 30.0,
) -> Admission:
    """Choose the promises that are kept.

    Args:
        problem: the network, with the pairs of nodes of all requests among its demands.
        patterns: probabilities of its paths.
        requests: the promises.
        seconds: time limit of the search by whole numbers.

    Raises:
        InputError: the sold promises cannot be kept in such ways.
        SolverError: the program was not solved, or no choice with the sold promises was found.
    """
    # The tolerance is a part of the capacity, so that value and bound are those of one program.
    capacity = capacity_of(problem) * (1 + CAPACITY_TOLERANCE)
    ways = all_ways(problem, patterns, requests)
    possible = {way.request for way in ways}
    loads = loads_of(problem, requests, ways)
    fits = np.flatnonzero(_worst(loads, capacity) <= 1)  # in an empty network
    ways, loads = [ways[i] for i in fits.tolist()], loads[fits]
    of_way = np.array([way.request for way in ways], dtype=np.int64)
    worth = np.array([request.value for request in requests])
    sold = np.array([request.is_sold for request in requests])
    _check_sold(requests, sold, possible, of_way)
    if not ways:
        return _result(requests, possible, ways, [], loads, capacity, np.zeros(len(capacity)), 0.0)
    takes = sp.csr_array(
        (np.ones(len(ways)), (of_way, np.arange(len(ways)))), shape=(len(requests), len(ways))
    )
    # In shares of each capacity, beside which HiGHS's tolerances are small whatever the unit.
    is_used = np.flatnonzero(capacity > 0)
    used = (loads[:, is_used] @ sp.diags_array(1 / capacity[is_used])).T.tocsr()
    # The geometric mean: values of 1e8 and 1 are then both far from HiGHS's tolerances.
    unit = float(np.exp(np.log(worth).mean()))
    relaxed = solve_lp(
        -worth[of_way] / unit,
        (
            sp.vstack([used, takes[~sold]], format="csr"),
            np.ones(len(is_used) + int((~sold).sum())),
        ),
        (takes[sold], np.ones(int(sold.sum()))) if sold.any() else None,
        by_interior_points=len(ways) > MOST_WHOLE,
    )
    if relaxed.is_infeasible:
        raise _not_kept()
    share, prices = relaxed.solution("admission"), np.zeros(len(capacity))
    prices[is_used] = relaxed.duals[: len(is_used)] * unit / capacity[is_used]
    chosen = _rounded(requests, ways, loads, capacity, share, prices)
    bound = math.inf
    if len(ways) <= MOST_WHOLE:
        least_part = float(worth.min() / worth.sum())  # the search must not end before this part
        whole = solve_milp(
            -worth[of_way] / unit,
            [Between(used, high=1.0), Between(takes, low=sold.astype(float), high=1.0)],
            np.ones(len(ways)),
            high=1.0,
            seconds=seconds,
            relative_gap=min(_RELATIVE_GAP, 0.5 * least_part),
        )
        if whole.is_infeasible and chosen is None:
            raise _not_kept()
        bound = (-whole.bound + _DUAL_TOLERANCE * len(requests)) * unit
        exact = [] if whole.x is None else np.flatnonzero(whole.x > 0.5).tolist()
        # Within capacities, and not only within the tolerances of HiGHS.
        within = bool((loads[exact].sum(0) <= capacity).all())
        better = chosen is None or worth[of_way[exact]].sum() > worth[of_way[chosen]].sum()
        if whole.x is not None and within and better:
            chosen = exact
    if chosen is None:
        raise SolverError("admission: no choice with all sold promises was found in time")
    chosen = _completed(requests, ways, loads, capacity, chosen)
    chosen = _sparing(ways, loads, capacity, chosen)
    return _result(requests, possible, ways, chosen, loads, capacity, prices, bound)


def _worst(loads: sp.csr_array, capacity: FloatArray) -> FloatArray:
    """(W,) the largest share of a capacity that each way reserves; infinite over a dead link."""
    inverse = np.full_like(capacity, np.inf)
    np.divide(1.0, capacity, out=inverse, where=capacity > 0)
    found = np.zeros(loads.shape[0])
    entries = loads.tocoo()
    np.maximum.at(found, entries.row, entries.data * inverse[entries.col])
    return found


def _check_sold(
    requests: Sequence[Request], sold: np.ndarray, possible: set[int], of_way: Int64Array
) -> None:
    """Refuse a sold promise that cannot be kept alone."""
    for number in np.flatnonzero(sold & ~np.isin(np.arange(len(requests)), of_way)).tolist():
        one = requests[number]
        expected = (
            f"a sold promise that these paths can keep for {one.availability:.6g} of the time"
        )
        if number in possible:
            expected = f"a sold promise of {one.rate:.6g} Gbit/s that fits into an empty network"
        raise InputError("promises", f"{one.source} -> {one.target}", expected, "another one")


def _not_kept() -> InputError:
    expected = "sold promises that can be kept at once"
    return InputError("promises", "sold", expected, "more than the capacities allow")


def _rounded(
    requests: Sequence[Request],
    ways: Sequence[Way],
    loads: sp.csr_array,
    capacity: FloatArray,
    share: FloatArray,
    prices: FloatArray,
) -> list[int] | None:
    """Ways that fit together, at most one of each promise: sold promises first, then by the share
    that the relaxed program takes, and by value over price; None if a sold one does not fit.
    """
    cost = loads @ prices
    left = capacity.copy()  # Gbit/s
    by_request = by_request_of(ways)

    def rank(request: int) -> tuple[float, ...]:
        own = by_request[request]
        return (
            -float(requests[request].is_sold),
            -round(float(share[own].sum()), 6),
            float(cost[own].min()) / requests[request].value,
        )

    chosen = []
    for request in sorted(by_request, key=rank):
        for number in sorted(by_request[request], key=lambda way: (-share[way], cost[way])):
            own = loads[[number]].tocoo()
            if (own.data <= left[own.col]).all():
                left[own.col] -= own.data
                chosen.append(number)
                break
        else:
            if requests[request].is_sold:
                return None
    return chosen


def _completed(
    requests: Sequence[Request],
    ways: Sequence[Way],
    loads: sp.csr_array,
    capacity: FloatArray,
    chosen: Sequence[int],
) -> list[int]:
    """The chosen ways, and one of each further promise that still fits, the largest value first.

    An integer program may leave out a promise whose value is below its tolerances.
    """
    left = capacity - np.asarray(loads[list(chosen)].sum(0)).reshape(-1)
    by_request = by_request_of(ways)
    has_way = {ways[number].request for number in chosen}
    open_requests = [request for request in by_request if request not in has_way]
    completed = list(chosen)
    for request in sorted(open_requests, key=lambda number: -requests[number].value):
        for number in by_request[request]:
            load = loads[[number]].tocoo()
            if (load.data <= left[load.col]).all():
                left[load.col] -= load.data
                completed.append(number)
                break
    return completed


def _sparing(
    ways: Sequence[Way], loads: sp.csr_array, capacity: FloatArray, chosen: Sequence[int]
) -> list[int]:
    """Ways of the same promises, each the one that reserves least over all links of those that fit
    beside the others.
    """
    total = np.asarray(loads.sum(1)).reshape(-1)
    left = capacity - np.asarray(loads[list(chosen)].sum(0)).reshape(-1)
    found = []
    by_request = by_request_of(ways)
    for number in chosen:
        left = left + loads[[number]].toarray()[0]
        own = by_request[ways[number].request]
        for other in sorted(own, key=lambda way: total[way]):
            needs = loads[[other]].toarray()[0]
            if other == number or (needs <= np.maximum(left, 0.0)).all():
                break
        left = left - needs
        found.append(other)
    return found


def _result(
    requests: Sequence[Request],
    possible: set[int],
    ways: Sequence[Way],
    chosen: Sequence[int],
    loads: sp.csr_array,
    capacity: FloatArray,
    prices: FloatArray,
    bound: float,
) -> Admission:
    """The admission of chosen ways; its bound is checked against that of the prices."""
    cost = loads @ np.maximum(prices, 0.0)
    price = np.full(len(requests), np.inf)
    np.minimum.at(price, np.array([way.request for way in ways], dtype=np.int64), cost)
    way_of: list[Way | None] = [None] * len(requests)
    for number in chosen:
        way_of[ways[number].request] = ways[number]
    status = tuple(
        SOLD
        if request.is_sold
        else ACCEPTED
        if way is not None
        else REFUSED
        if number in possible
        else IMPOSSIBLE
        for number, (request, way) in enumerate(zip(requests, way_of, strict=True))
    )
    value = sum(
        request.value for request, way in zip(requests, way_of, strict=True) if way is not None
    )
    gains = np.array([request.value for request in requests]) - price
    sold = np.array([request.is_sold for request in requests])
    by_prices = float(capacity @ np.maximum(prices, 0.0))
    by_prices += float(np.where(sold, gains, np.maximum(gains, 0.0)).sum())
    return Admission(status, tuple(way_of), price, value, max(value, min(bound, by_prices)), prices)
