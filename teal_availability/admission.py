"""Which promises of a rate for a share of the time a network can keep at once, and at which price.

A promise is kept by reserving r / m on each of n paths, of which at least m survive for its share
of the time: one path (m = n = 1), a copy on another one (m = 1, n = 2), two of three, and so on.
The share of the time is the exact sum over the patterns of surviving paths
(:mod:`teal_availability.patterns`).  Reserved rates never exceed capacities, so that all promises
are kept at once.

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
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from teal import InputError, Problem, SolverError, Topology
from teal.formats.cells import heading, read_cells
from teal.formats.units import gbps_per_unit
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.lp import Between, solve_lp, solve_milp
from teal_availability.matrix import capacity_of
from teal_availability.patterns import Patterns

ACCEPTED, REFUSED, SOLD, IMPOSSIBLE = "accepted", "refused", "sold", "impossible"
_COLUMNS = ("source", "target", "rate", "availability", "value", "sold")
_YES, _NO = ("yes", "true", "1"), ("", "no", "false", "0")
_ROUNDING = 1e-9  # share of a capacity, or of the time that a promise may be missed
_MOST_WHOLE = 20_000  # ways of all promises up to which whole numbers are tried


@dataclasses.dataclass(frozen=True)
class Request:
    """A promise that is asked for.

    Attributes:
        source, target: nodes.
        rate: Gbit/s.
        availability: share of the time.
        value: worth of keeping it, in any unit.
        is_sold: whether it was promised before, and must be kept.
    """

    source: str
    target: str
    rate: float
    availability: float
    value: float
    is_sold: bool = False


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to keep a promise.

    Attributes:
        request: its number.
        paths: numbers of the paths of its demand.
        needed: m, paths that must survive; each carries rate / m.
        availability: share of the time in which so many do.
    """

    request: int
    paths: tuple[int, ...]
    needed: int
    availability: float


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


def read_requests(path: Path, topology: Topology) -> list[Request]:
    """The promises of a table (.csv, .xlsx): source, target, rate (Gbit/s), availability; value (by
    default the rate), sold (yes or no).

    Raises:
        InputError: a fault in the table.
    """
    table = read_cells(path)
    table.require(_COLUMNS[:4])
    where = str(path)
    found = []
    unit = heading(table.header[table.place("rate") or 0])[1]
    gbps = gbps_per_unit(unit, where) if unit else 1.0
    for place, cells in table.records(_COLUMNS, numeric=("rate", "availability", "value")):
        rate = _number(where, place, "rate", cells["rate"]) * gbps
        value = cells.get("value", "").strip()
        sold = cells.get("sold", "").strip().lower()
        if sold not in _YES + _NO:
            raise InputError(where, f"{place}: sold", "yes or no", repr(sold))
        request = Request(
            cells["source"].strip(),
            cells["target"].strip(),
            rate,
            _number(where, place, "availability", cells["availability"]),
            _number(where, place, "value", value) if value else rate,
            sold in _YES,
        )
        found.append(checked(request, topology, f"{where}: {place}"))
    return found


def checked(request: Request, topology: Topology, where: str) -> Request:
    """The request by the names of its nodes.

    Raises:
        InputError: an unknown node, or a number out of its range.
    """
    source, target = (topology.name_of(name) for name in (request.source, request.target))
    for name in (source, target):
        if name not in topology.node_names:
            raise InputError(where, "node", f"a node of {topology.name}", repr(name))
    if source == target:
        raise InputError(where, "node", "two nodes", source)
    for field in ("rate", "value"):
        if not 0 < getattr(request, field) < math.inf:
            raise InputError(where, field, "a number above 0", getattr(request, field))
    if not 0 < request.availability < 1:
        raise InputError(where, "availability", "a share in (0, 1)", request.availability)
    return dataclasses.replace(request, source=source, target=target)


def _number(where: str, place: str, name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(where, f"{place}: {name}", "a number above 0", repr(text)) from None


def ways_of(
    number: int, request: Request, survives: FloatArray, live: Sequence[int]
) -> Iterator[Way]:
    """The ways to keep a promise for so much of the time, none of which has a path too many.

    Args:
        number: number of the request.
        request: the request.
        survives: (2^K,) share of the time in which exactly the paths of a set survive.
        live: paths that are there.
    """
    sets = np.arange(len(survives))
    for needed in range(1, len(live) + 1):
        found: list[set[int]] = []
        for count in range(needed, len(live) + 1):
            for paths in itertools.combinations(live, count):
                if any(fewer <= set(paths) for fewer in found):
                    continue
                alive = sum((sets >> path) & 1 for path in paths)
                availability = float(survives[alive >= needed].sum())
                if availability >= request.availability - _ROUNDING * (1 - request.availability):
                    found.append(set(paths))
                    yield Way(number, paths, needed, availability)


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
    capacity = capacity_of(problem)
    names = problem.topology.node_names
    demand = {(names[s], names[t]): d for d, (s, t) in enumerate(problem.paths.pairs.tolist())}
    live = problem.path_mask[0].cpu().numpy()
    ways: list[Way] = []
    for number, request in enumerate(requests):
        d = demand[request.source, request.target]
        paths = np.flatnonzero(live[d]).tolist()
        ways += ways_of(number, request, patterns.probability[d], paths)
    possible = {way.request for way in ways}
    loads = _loads(problem, requests, ways, demand)
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
    unit = float(worth.mean())
    relaxed = solve_lp(
        -worth[of_way] / unit,
        (
            sp.vstack([used, takes[~sold]], format="csr"),
            np.ones(len(is_used) + int((~sold).sum())),
        ),
        (takes[sold], np.ones(int(sold.sum()))) if sold.any() else None,
        by_interior_points=len(ways) > _MOST_WHOLE,
    )
    if relaxed.is_infeasible:
        raise _not_kept()
    share, prices = relaxed.solution("admission"), np.zeros(len(capacity))
    prices[is_used] = relaxed.duals[: len(is_used)] * unit / capacity[is_used]
    chosen = _rounded(requests, ways, loads, capacity, share, prices)
    bound = math.inf
    if len(ways) <= _MOST_WHOLE:
        whole = solve_milp(
            -worth[of_way] / unit,
            [Between(used, high=1.0), Between(takes, low=sold.astype(float), high=1.0)],
            np.ones(len(ways)),
            high=1.0,
            seconds=seconds,
            relative_gap=1e-6,
        )
        if whole.is_infeasible and chosen is None:
            raise _not_kept()
        bound = -whole.bound * unit
        exact = [] if whole.x is None else np.flatnonzero(whole.x > 0.5).tolist()
        # Within capacities, and not only within the tolerances of HiGHS.
        within = bool((loads[exact].sum(0) <= capacity * (1 + _ROUNDING)).all())
        better = chosen is None or worth[of_way[exact]].sum() > worth[of_way[chosen]].sum()
        if whole.x is not None and within and better:
            chosen = exact
    if chosen is None:
        raise SolverError("admission: no choice with all sold promises was found in time")
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


def _loads(
    problem: Problem,
    requests: Sequence[Request],
    ways: Sequence[Way],
    demand: dict[tuple[str, str], int],
) -> sp.csr_array:
    """(W, E) Gbit/s that each way reserves on each link."""
    rows: list[int] = []
    links: list[int] = []
    rates: list[float] = []
    for row, way in enumerate(ways):
        request = requests[way.request]
        d = demand[request.source, request.target]
        for path in way.paths:
            of_path = problem.paths.links_of(d, path)
            rows += [row] * len(of_path)
            links += [int(link) for link in of_path]
            rates += [request.rate / way.needed] * len(of_path)
    shape = (len(ways), problem.topology.num_links)
    return sp.csr_array((rates, (rows, links)), shape=shape)


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
    by_request = _by_request(ways)

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
            if (own.data <= left[own.col] + _ROUNDING * capacity[own.col]).all():
                left[own.col] -= own.data
                chosen.append(number)
                break
        else:
            if requests[request].is_sold:
                return None
    return chosen


def _by_request(ways: Sequence[Way]) -> dict[int, list[int]]:
    """Numbers of the ways of each request."""
    found: dict[int, list[int]] = {}
    for number, way in enumerate(ways):
        found.setdefault(way.request, []).append(number)
    return found


def _sparing(
    ways: Sequence[Way], loads: sp.csr_array, capacity: FloatArray, chosen: Sequence[int]
) -> list[int]:
    """Ways of the same promises, each the one that reserves least over all links of those that fit
    beside the others.
    """
    total = np.asarray(loads.sum(1)).reshape(-1)
    left = capacity - np.asarray(loads[list(chosen)].sum(0)).reshape(-1)
    found = []
    by_request = _by_request(ways)
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
