"""Bandwidth guarantees with availability targets, and the protection options (m-of-n paths) that
meet each of them.

A guarantee of r Gbit/s is met by reserving r / m on each of n candidate paths, of which at least m
survive for its share of the time: unprotected (m = n = 1), 1+1 (m = 1, n = 2), two of three, and so
on. Its availability is an exact sum over survival states (:mod:`teal_availability.survival`). Entry
points: :func:`resolve_requests`, :func:`all_feasible_options`.
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
from teal_availability.survival import SurvivalStates
from teal_availability.tolerances import check_availability, max_missed_time

_COLUMNS = (
    side_tables.SOURCE,
    side_tables.TARGET,
    side_tables.Column("rate", side_tables.Kind.RATE, required=True),
    side_tables.Column("availability", side_tables.Kind.SHARE, required=True),
    side_tables.Column("value", side_tables.Kind.NUMBER),
    side_tables.Column("sold", side_tables.Kind.YES_NO),
)
# Maximum number of protection options of all requests together for which an integer program is
# solved.
MAX_INTEGER_OPTIONS = 20_000


@dataclasses.dataclass(frozen=True)
class Request:
    """Request for a bandwidth guarantee.

    Attributes:
        source, target: names of the nodes.
        rate: Gbit/s.
        availability: target, a share of the time.
        value: value of granting the request, in any unit.
        is_sold: whether the request was granted before and must be kept.
    """

    source: str
    target: str
    rate: float
    availability: float
    value: float
    is_sold: bool = False


@dataclasses.dataclass(frozen=True)
class ProtectionOption:
    """Set of reserved paths that meets a guarantee.

    Attributes:
        request_index: index of the request.
        paths: indices of the paths among those of its demand.
        min_surviving: m, number of paths that must survive; each carries rate / m.
        availability: share of the time in which at least m paths survive.
    """

    request_index: int
    paths: tuple[int, ...]
    min_surviving: int
    availability: float


def read_requests(table: Any, topology: Topology) -> list[Request]:
    """Read requests for bandwidth guarantees from a table.

    It has the columns source, target, rate (Gbit/s) and availability, and optionally value (by
    default the rate) and sold (yes or no).

    Args:
        table: a .csv or .xlsx file, or a pandas frame.
        topology: the network whose nodes the table names.

    Raises:
        InputError: an invalid table.
    """
    requests = []
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
        requests.append(validated_request(request, topology, row.where))
    return requests


def resolve_requests(promises: Any, topology: Topology) -> list[Request]:
    """Return validated requests from a table or a sequence.

    Args:
        promises: a file, a pandas frame, or an iterable of :class:`Request`.
        topology: the network whose nodes they name.

    Raises:
        InputError: an invalid request, or no request.
    """
    # A file or a pandas frame.
    if isinstance(promises, str | Path) or hasattr(promises, "columns"):
        requests = read_requests(promises, topology)
    else:
        # Check the type of each item, then its values.
        expected = "a table of promises or a list of Request"
        if not isinstance(promises, Iterable):
            raise InputError("promises", "", expected, type(promises).__name__)
        items = list(promises)
        for item in items:
            if not isinstance(item, Request):
                raise InputError("promises", "", expected, repr(item)[:80])
        requests = [
            validated_request(item, topology, f"promise {index}")
            for index, item in enumerate(items)
        ]
    if not requests:
        raise InputError.invalid("promises", "", "the table has no promise; give at least one")
    return requests


def validated_request(request: Request, topology: Topology, location: str) -> Request:
    """Check a request, and resolve aliases of its nodes to the names in the topology.

    Args:
        request: the request.
        topology: the network.
        location: row of the table or other location, for messages.

    Raises:
        InputError: an unknown node, or a value out of its range.
    """
    # Nodes: known and different.
    source, target = (topology.name_of(name) for name in (request.source, request.target))
    for name in (source, target):
        if name not in topology.node_names:
            raise InputError(location, "node", f"a node of {topology.name}", repr(name))
    if source == target:
        raise InputError.invalid(
            location, "node", f"source and target are the same node, {source!r}"
        )
    # Numbers: positive and finite; the availability below 1.
    for field in ("rate", "value", "availability"):
        value = getattr(request, field)
        if isinstance(value, str) or not 0 < value < math.inf:
            raise InputError(location, field, "a number above 0", repr(value))
    check_availability(request.availability, location)
    return dataclasses.replace(request, source=source, target=target)


def feasible_options(
    request_index: int, request: Request, state_probability: FloatArray, live_paths: Sequence[int]
) -> Iterator[ProtectionOption]:
    """Yield the minimal protection options (m of n paths) that meet a request.

    An option is minimal if no proper subset of its paths meets the request with the same m. Its
    availability is the total probability of the survival states in which at least m of its paths
    survive.

    Args:
        request_index: index of the request.
        request: the request.
        state_probability: (2^K,) probability of each survival state of the demand.
        live_paths: indices of the paths that exist and have no link of capacity 0.
    """
    # All survival states; bit k is 1 if path k survives.
    states = np.arange(len(state_probability))
    for min_surviving in range(1, len(live_paths) + 1):
        minimal_sets: list[set[int]] = []
        # Smaller path sets first; supersets of a feasible set are not minimal.
        for num_reserved in range(min_surviving, len(live_paths) + 1):
            for paths in itertools.combinations(live_paths, num_reserved):
                if any(feasible_set <= set(paths) for feasible_set in minimal_sets):
                    continue
                # (2^K,) number of the reserved paths that survive in each state.
                num_surviving = sum((states >> path) & 1 for path in paths)
                availability = float(state_probability[num_surviving >= min_surviving].sum())
                missed_time = float(state_probability[num_surviving < min_surviving].sum())
                if missed_time <= max_missed_time(request.availability):
                    minimal_sets.append(set(paths))
                    yield ProtectionOption(request_index, paths, min_surviving, availability)


def all_feasible_options(
    problem: Problem, survival_states: SurvivalStates, requests: Sequence[Request]
) -> list[ProtectionOption]:
    """Return the m-of-n protections that meet each request, without those that would still meet it
    with fewer paths at the same m.

    Args:
        problem: the network; its demands include the node pairs of all requests.
        survival_states: probabilities of its survival states.
        requests: the requests.
    """
    demand_by_nodes = _demand_by_nodes(problem)
    is_live = problem.path_mask[0].cpu().numpy()
    options: list[ProtectionOption] = []
    for request_index, request in enumerate(requests):
        demand_index = demand_by_nodes[request.source, request.target]
        live_paths = np.flatnonzero(is_live[demand_index]).tolist()
        options += feasible_options(
            request_index, request, survival_states.probability[demand_index], live_paths
        )
    return options


def _demand_by_nodes(problem: Problem) -> dict[tuple[str, str], int]:
    """Return the index of each demand, by the names of its source and target.

    Args:
        problem: network and node pairs of the demands.
    """
    names = problem.topology.node_names
    return {(names[s], names[t]): d for d, (s, t) in enumerate(problem.paths.pairs.tolist())}


def option_loads(
    problem: Problem, requests: Sequence[Request], options: Sequence[ProtectionOption]
) -> sp.csr_array:
    """Return the rate (W, E) in Gbit/s that each of W protection options reserves on each link.

    An option with m of n paths reserves rate / m on each of its n paths.

    Args:
        problem: the network with candidate paths of the requests' node pairs.
        requests: the requests.
        options: W protection options of the requests.
    """
    demand_by_nodes = _demand_by_nodes(problem)
    # Entries of the sparse matrix: option, link, reserved rate.
    option_rows: list[int] = []
    links: list[int] = []
    rates: list[float] = []
    for row, option in enumerate(options):
        request = requests[option.request_index]
        demand_index = demand_by_nodes[request.source, request.target]
        for path in option.paths:
            path_links = problem.paths.links_of(demand_index, path)
            option_rows += [row] * len(path_links)
            links += [int(link) for link in path_links]
            rates += [request.rate / option.min_surviving] * len(path_links)
    shape = (len(options), problem.topology.num_links)
    return sp.csr_array((rates, (option_rows, links)), shape=shape)


def option_texts(
    problem: Problem, requests: Sequence[Request], options: Sequence[ProtectionOption | None]
) -> list[str]:
    """Describe the protection option of each request, such as ``1 of 2: a|b|d a|c|d``.

    The text has the number m of paths that must survive, the number n of reserved paths, and the
    nodes of each reserved path; it is "" without an option.

    Args:
        problem: the network with candidate paths of the requests' node pairs.
        requests: the requests.
        options: protection option of each request, or None.
    """
    names = problem.topology.node_names
    target = problem.topology.link_target.tolist()
    demand_by_nodes = _demand_by_nodes(problem)
    texts = []
    for request, option in zip(requests, options, strict=True):
        if option is None:
            texts.append("")
            continue
        demand_index = demand_by_nodes[request.source, request.target]
        paths = [
            "|".join([request.source, *(names[target[link]] for link in links)])
            for links in (problem.paths.links_of(demand_index, path) for path in option.paths)
        ]
        texts.append(f"{option.min_surviving} of {len(paths)}: {' '.join(paths)}")
    return texts


def candidate_paths_for(
    topology: Topology,
    requests: Sequence[Request],
    num_paths: int,
    groups: Sequence[Sequence[int]] = (),
) -> Problem:
    """Compute candidate paths for the node pairs of several requests.

    Paths are maximally disjoint: edge-disjoint paths first, then paths that share as few cables and
    groups as possible, since two paths over one shared cable may meet a guarantee that neither
    meets alone.

    Args:
        topology: the network.
        requests: the requests.
        num_paths: K, maximum number of paths of a node pair.
        groups: link indices of each group of cables that fail together.

    Returns:
        a problem under total_flow with these paths, and a demand of 1 Gbit/s for each node pair.
    """
    node_index = topology.node_index()
    pairs = sorted(
        {(node_index[request.source], node_index[request.target]) for request in requests}
    )
    paths = compute_paths(
        topology,
        np.array(pairs, dtype=np.int32),
        num_paths=num_paths,
        method="maximally-disjoint",
        groups=[*topology.cables(), *groups] if groups else None,
    )
    return Problem.create(topology, paths, "total_flow", np.ones((1, len(pairs))))


def options_by_request(options: Sequence[ProtectionOption]) -> dict[int, list[int]]:
    """Return the indices of the options of each request, by the index of the request."""
    by_request: dict[int, list[int]] = {}
    for option_index, option in enumerate(options):
        by_request.setdefault(option.request_index, []).append(option_index)
    return by_request
