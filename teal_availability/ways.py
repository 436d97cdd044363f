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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from teal import InputError, Problem, Topology, compute_paths
from teal.formats import side_tables
from teal.runtime.arrays import FloatArray
from teal_availability.patterns import Patterns
from teal_availability.tolerances import check_availability, missed_time

_COLUMNS = (
    side_tables.SOURCE,
    side_tables.TARGET,
    side_tables.Column("rate", side_tables.Kind.RATE, required=True),
    side_tables.Column("availability", side_tables.Kind.SHARE, required=True),
    side_tables.Column("value", side_tables.Kind.NUMBER),
    side_tables.Column("sold", side_tables.Kind.YES_NO),
)
MOST_WHOLE = 20_000  # ways of all promises, up to which whole numbers are tried


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


def read_requests(table: Any, topology: Topology) -> list[Request]:
    """The promises of a table: source, target, rate (Gbit/s), availability; value (by default the
    rate), sold (yes or no).

    Args:
        table: a .csv or .xlsx file, or a pandas frame.
        topology: the network whose nodes it names.

    Raises:
        InputError: a fault in the table.
    """
    found = []
    for row in side_tables.read_side_table(table, _COLUMNS):
        rate = row.number("rate")
        has_value = row.values.get("value") is not None
        request = Request(
            row.text("source"),
            row.text("target"),
            rate,
            row.number("availability"),
            row.number("value") if has_value else rate,
            bool(row.values.get("sold")),
        )
        found.append(checked(request, topology, row.where))
    return found


def requests_of(promises: Any, topology: Topology) -> list[Request]:
    """The promises of a table (a file or a pandas frame), or those that are given.

    Raises:
        InputError: a fault in them, or none.
    """
    if isinstance(promises, str | Path) or hasattr(promises, "columns"):
        requests = read_requests(promises, topology)
    else:
        expected = "a table of promises, or a list of Request"
        if not isinstance(promises, Iterable):
            raise InputError("promises", "", expected, type(promises).__name__)
        given = list(promises)
        for one in given:
            if not isinstance(one, Request):
                raise InputError("promises", "", expected, repr(one)[:80])
        requests = [checked(one, topology, f"promise {number}") for number, one in enumerate(given)]
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
    for field in ("rate", "value", "availability"):
        number = getattr(request, field)
        if isinstance(number, str) or not 0 < number < math.inf:
            raise InputError(where, field, "a number above 0", repr(number))
    check_availability(request.availability, where)
    return dataclasses.replace(request, source=source, target=target)


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
                missed = float(survives[alive < needed].sum())
                if missed <= missed_time(request.availability):
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


def paths_for(
    topology: Topology,
    requests: Sequence[Request],
    num_paths: int,
    groups: Sequence[Sequence[int]] = (),
) -> Problem:
    """The candidate paths of the pairs of nodes of several promises, as a program of total_flow
    without demand of its own.

    Paths are maximally disjoint: edge-disjoint ones, and behind them others that share as few
    cables and groups as possible, since two paths over one shared cable may keep a promise that
    neither keeps alone.

    Args:
        topology: the network.
        requests: the promises.
        num_paths: K, number of paths of a pair at most.
        groups: numbers of the links of each group of cables that fail together.
    """
    index = topology.node_index()
    pairs = sorted({(index[one.source], index[one.target]) for one in requests})
    paths = compute_paths(
        topology,
        np.array(pairs, dtype=np.int32),
        num_paths=num_paths,
        method="maximally-disjoint",
        groups=[*topology.cables(), *groups] if groups else None,
    )
    return Problem.create(topology, paths, "total_flow", np.ones((1, len(pairs))))


def by_request_of(ways: Sequence[Way]) -> dict[int, list[int]]:
    """Numbers of the ways of each request."""
    found: dict[int, list[int]] = {}
    for number, way in enumerate(ways):
        found.setdefault(way.request, []).append(number)
    return found
