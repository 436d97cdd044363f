"""Promises of a rate for a share of the time, and the ways to keep each on the candidate paths.

A promise of r Gbit/s is kept by reserving r / m on each of n paths, of which at least m survive for
its share of the time: one path (m = n = 1), a copy on another one (m = 1, n = 2), two of three, and
so on.  The share of the time is the exact sum over the patterns of surviving paths
(:mod:`teal_availability.patterns`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from teal import InputError, Problem, Topology, compute_paths
from teal.formats.cells import heading, read_cells
from teal.formats.units import gbps_per_unit
from teal.runtime.arrays import FloatArray
from teal_availability.patterns import Patterns

_COLUMNS = ("source", "target", "rate", "availability", "value", "sold")
MOST_WHOLE = 20_000  # ways of all promises, up to which whole numbers are tried
_YES, _NO = ("yes", "true", "1"), ("", "no", "false", "0")
_ROUNDING = 1e-9  # share of the time that a promise may be missed


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


def requests_of(promises: Any, topology: Topology) -> list[Request]:
    """The promises of a file, or those that are given.

    Raises:
        InputError: a fault in them, or none.
    """
    if isinstance(promises, str | Path):
        requests = read_requests(Path(promises), topology)
    else:
        requests = [
            checked(one, topology, f"promise {number}") for number, one in enumerate(promises)
        ]
    if not requests:
        raise InputError("promises", "", "a promise at least", "none")
    return requests


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


def all_ways(problem: Problem, patterns: Patterns, requests: Sequence[Request]) -> list[Way]:
    """The ways to keep each of several promises, those of a promise side by side.

    Args:
        problem: the network, with the pairs of nodes of all requests among its demands.
        patterns: probabilities of its paths.
        requests: the promises.
    """
    demand = _demand_of_names(problem)
    is_live = problem.path_mask[0].cpu().numpy()
    found: list[Way] = []
    for number, request in enumerate(requests):
        d = demand[request.source, request.target]
        live = np.flatnonzero(is_live[d]).tolist()
        found += ways_of(number, request, patterns.probability[d], live)
    return found


def _demand_of_names(problem: Problem) -> dict[tuple[str, str], int]:
    names = problem.topology.node_names
    return {(names[s], names[t]): d for d, (s, t) in enumerate(problem.paths.pairs.tolist())}


def loads_of(problem: Problem, requests: Sequence[Request], ways: Sequence[Way]) -> sp.csr_array:
    """(W, E) Gbit/s that each way reserves on each link."""
    demand = _demand_of_names(problem)
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


def way_texts(
    problem: Problem, requests: Sequence[Request], ways: Sequence[Way | None]
) -> list[str]:
    """How many of which paths must survive for each request, such as ``1 of 2: a|b|d a|c|d``; ""
    without a way.
    """
    names = problem.topology.node_names
    target = problem.topology.link_target.tolist()
    demand = _demand_of_names(problem)
    texts = []
    for request, way in zip(requests, ways, strict=True):
        if way is None:
            texts.append("")
            continue
        number = demand[request.source, request.target]
        paths = [
            "|".join([request.source, *(names[target[link]] for link in links)])
            for links in (problem.paths.links_of(number, path) for path in way.paths)
        ]
        texts.append(f"{way.needed} of {len(paths)}: {' '.join(paths)}")
    return texts


def paths_for(topology: Topology, requests: Sequence[Request], num_paths: int) -> Problem:
    """The candidate paths of the pairs of nodes of several promises, as a program of total_flow
    without demand of its own.
    """
    index = topology.node_index()
    pairs = sorted({(index[one.source], index[one.target]) for one in requests})
    paths = compute_paths(topology, np.array(pairs, dtype=np.int32), num_paths=num_paths)
    return Problem.create(topology, paths, "total_flow", np.ones((1, len(pairs))))


def by_request_of(ways: Sequence[Way]) -> dict[int, list[int]]:
    """Numbers of the ways of each request."""
    found: dict[int, list[int]] = {}
    for number, way in enumerate(ways):
        found.setdefault(way.request, []).append(number)
    return found
