"""Allocation files: one matrix as a table or JSON, many matrices as Parquet.

One matrix as a table: one row for each path with traffic, with columns ``source``, ``target``,
``k`` (index of the path among the demand's paths, from 0), ``nodes`` and ``links`` (names along the
path: lists in Parquet, JSON lists in CSV), ``split`` (share of the demand), ``flow`` (Gbit/s) and,
if there are any, integer ``weight``s and the priority ``class``.  A link is named
``source->target``, parallel ones ``source->target#1``, ``#2``, ... in the order of the file.

One matrix as JSON: the demands of each ingress router, with the admitted and shed rate, and their
paths:

    {"topology": ..., "unit": "Gbit/s", "figures": {...}, "routers": {"ROUTER": [
        {"target": ..., "demand": ..., "admitted": ..., "shed": ..., "paths": [
            {"nodes": [...], "links": [...], "split": ..., "rate": ..., "weight": ...}]}]}}

For many matrices there is one Parquet file of the paths, with ``source``, ``target``, ``demand``
(index d of the demand), ``k`` and ``nodes``, and files with one row for each matrix.  Their column
``splits`` (split ratios) or ``weights`` (integer entries of split tables) has D * K numbers: demand
d and path k are at position d * K + k.  Entry points: :func:`write_allocation`,
:func:`read_allocation`, :class:`MatrixFile`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from teal.errors import InputError
from teal.formats.rows import column_names
from teal.network import DemandClasses, PathSet, Topology
from teal.network.path_changes import with_listed_paths
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.storage import atomic_file, parsed_json

# Demand: node indices of source and target, and the name of its class ("" without classes).
Demand = tuple[int, int, str]
# Paths of one demand, each as the tuple of its link indices, with a number: split ratio or Gbit/s.
PathValues = dict[tuple[int, ...], float]

_EXPECTED = "a .json file of teal solve --out, or a response of teal serve to one matrix"
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "text"}
# Formats that write_allocation can write.
ALLOCATION_SUFFIXES = (".json", ".parquet", ".csv")


def write_allocation(
    file: Path,
    topology: Topology,
    paths: PathSet,
    demand: FloatArray,
    splits: FloatArray,
    weights: npt.NDArray[np.integer] | None = None,
    figures: Mapping[str, Any] | None = None,
    classes: DemandClasses | None = None,
) -> int:
    """Write the allocation of one matrix; return the number of paths with traffic.

    Args:
        file: .json, .csv or .parquet.
        topology: network with the node names.
        paths: candidate paths, (D, K).
        demand: (D,) Gbit/s.
        splits: (D, K) fraction of each demand on each path.
        weights: (D, K) integer weights of split tables; None for none.
        figures: metrics of the allocation, by name, for a .json file.
        classes: classes of the demands; None for none.
    """
    # JSON, written router by router to bound the memory.
    if file.suffix.lower() == ".json":
        head = json.dumps(_head(topology, figures or {}), allow_nan=False).removesuffix("}")
        with atomic_file(file) as temporary, temporary.open("w", encoding="utf-8") as stream:
            stream.write(head + ', "routers": {')
            for index, (router, entries) in enumerate(
                _demands_by_router(topology, paths, demand, splits, weights, classes)
            ):
                text = json.dumps(entries, allow_nan=False)
                stream.write(f"{', ' if index else ''}{json.dumps(router)}: {text}")
            stream.write("}}\n")
        return int(((splits > 0) & (demand > 0)[:, None] & paths.mask).sum())
    # Table with a row for each used path; CSV has no lists, so that they become JSON.
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    columns = _used_path_columns(topology, paths, demand, splits, weights, classes)
    if file.suffix.lower() == ".csv":
        for name in ("nodes", "links"):
            columns[name] = pa.array([json.dumps(names) for names in columns[name].to_pylist()])
    table = pa.table(columns)
    with atomic_file(file) as temporary:
        (csv.write_csv if file.suffix.lower() == ".csv" else pq.write_table)(table, str(temporary))
    return len(table)


def _used_path_columns(
    topology: Topology,
    paths: PathSet,
    demand_gbps: FloatArray,
    splits: FloatArray,
    weights: npt.NDArray[np.integer] | None,
    classes: DemandClasses | None,
) -> dict[str, Any]:
    """Return the Arrow columns of a table with a row for each path with traffic.

    Args:
        topology: network with the names.
        paths: candidate paths, (D, K).
        demand_gbps: (D,) Gbit/s.
        splits: (D, K) fraction of each demand on each path.
        weights: (D, K) integer weights of split tables; None for none.
        classes: classes of the demands; None for none.
    """
    import pyarrow as pa

    demand_index, path_index = np.nonzero((splits > 0) & (demand_gbps > 0)[:, None] & paths.mask)
    columns = _path_columns(topology, paths, demand_index, path_index)
    columns["split"] = pa.array(splits[demand_index, path_index])
    columns["flow"] = pa.array(splits[demand_index, path_index] * demand_gbps[demand_index])
    if weights is not None:
        columns["weight"] = pa.array(weights[demand_index, path_index])
    if classes is not None:
        columns["class"] = pa.array(np.array(classes.names)[classes.of_demand[demand_index]])
    return columns


def _head(topology: Topology, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an allocation's JSON that precede its routers."""
    return {"topology": topology.name, "unit": "Gbit/s", "figures": dict(figures)}


def _demands_by_router(
    topology: Topology,
    paths: PathSet,
    demand_gbps: FloatArray,
    splits: FloatArray,
    weights: npt.NDArray[np.integer] | None,
    classes: DemandClasses | None,
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the name of each ingress router with the JSON entries of its demands, higher classes
    first.

    Demands of rate 0 are omitted.

    Args:
        topology: network with the names.
        paths: candidate paths, (D, K).
        demand_gbps: (D,) Gbit/s.
        splits: (D, K) fraction of each demand on each path.
        weights: (D, K) integer weights of split tables; None for none.
        classes: classes of the demands; None for none.
    """
    names = topology.node_names
    # Arrays (E,) and (N,) of names, for indexing by arrays of links and nodes.
    link_names = np.array(topology.link_names(), dtype=object)
    node_names = np.array(names, dtype=object)
    has_demand = demand_gbps > 0
    # (D, K) whether a path has traffic.
    is_used = (splits > 0) & has_demand[:, None] & paths.mask
    # (D,) class name of each demand; None without classes.
    class_names = (
        None if classes is None else np.array(classes.names, dtype=object)[classes.of_demand]
    )
    # Group the demands above 0 by source.  They are sorted by source already unless there are
    # classes; the stable sort keeps higher classes first.
    demand_order = np.argsort(paths.pairs[:, 0], kind="stable")
    demand_order = demand_order[has_demand[demand_order]]
    source = paths.pairs[demand_order, 0]
    group_starts = np.flatnonzero(np.diff(source, prepend=-1))
    for start, end in itertools.pairwise([*group_starts.tolist(), len(source)]):
        # Used paths of this router: the position of each path's demand among the demands of the
        # router, and the index of the path among the K paths of its demand.
        router_demands = demand_order[start:end]
        demand_positions, path_index = np.nonzero(is_used[router_demands])
        path_links = links_along(topology, paths, router_demands[demand_positions], path_index)
        path_splits = splits[router_demands[demand_positions], path_index]
        path_flows = path_splits * demand_gbps[router_demands[demand_positions]]
        # Group the entries of the paths by demand.
        entries = _path_entries(path_links, node_names, link_names, path_splits, path_flows)
        entries_of_demand: list[list[dict[str, Any]]] = [[] for _ in router_demands]
        for i, demand_position in enumerate(demand_positions.tolist()):
            if weights is not None:
                entries[i]["weight"] = int(weights[router_demands[demand_position], path_index[i]])
            entries_of_demand[demand_position].append(entries[i])
        # One entry for each demand.
        demand_entries = [
            _demand_entry(
                names[target], rate, None if class_names is None else class_names[d], path_entries
            )
            for d, target, rate, path_entries in zip(
                router_demands.tolist(),
                paths.pairs[router_demands, 1].tolist(),
                demand_gbps[router_demands].tolist(),
                entries_of_demand,
                strict=True,
            )
        ]
        yield names[source[start]], demand_entries


def _path_entries(
    path_links: PathLinks,
    node_names: npt.NDArray[Any],
    link_names: npt.NDArray[Any],
    split: FloatArray,
    flow: FloatArray,
) -> list[dict[str, Any]]:
    """Return the JSON entries of R paths: names of their nodes and links, split ratio and rate.

    Args:
        path_links: nodes and links along the paths, as indices.
        node_names: (N,) names of all nodes.
        link_names: (E,) names of all links.
        split: (R,) fraction of the demand on each path.
        flow: (R,) Gbit/s on each path.
    """
    nodes = node_names[path_links.nodes].tolist()
    links = link_names[path_links.links].tolist()
    node_starts = path_links.node_starts.tolist()
    link_starts = path_links.link_starts.tolist()
    return [
        {
            "nodes": nodes[node_starts[i] : node_starts[i + 1]],
            "links": links[link_starts[i] : link_starts[i + 1]],
            "split": float(split[i]),
            "rate": float(flow[i]),
        }
        for i in range(len(split))
    ]


def _demand_entry(
    target: str, rate: float, class_name: str | None, paths: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the JSON entry of a demand, with its admitted and shed rate.

    Args:
        target: name of its target.
        rate: demand, Gbit/s.
        class_name: name of its class; None without classes.
        paths: JSON entries of its paths, with ``rate`` in Gbit/s.
    """
    admitted = sum(path["rate"] for path in paths)
    entry = {
        "target": target,
        "demand": rate,
        "admitted": admitted,
        "shed": max(0.0, rate - admitted),
    }
    return entry | ({} if class_name is None else {"class": class_name}) | {"paths": paths}


def read_allocation(file: Path) -> dict[str, Any]:
    """Read and parse the .json file of an allocation.

    Raises:
        InputError: no such file, or not a JSON object.
    """
    try:
        document = parsed_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError.invalid(
            str(file), "", f"the allocation cannot be read: {error}", f"use {_EXPECTED}"
        ) from None
    allocation = dict(_require_type(dict, document, str(file), ""))
    return (
        _convert_service_response(allocation, str(file))
        if "allocations" in allocation
        else allocation
    )


def _convert_response_paths(
    demand: dict[str, Any], rate: float, admitted: float, link_names: Sequence[str], where: str
) -> list[dict[str, Any]]:
    """Return the paths of a demand of a response with named links, split ratios and rates.

    Args:
        demand: the demand in the response.
        rate: Gbit/s of the demand.
        admitted: Gbit/s that is admitted.
        link_names: name of each link, by its index.
        where: name of the file, for messages.

    Raises:
        InputError: an invalid part.
    """
    response_paths = [
        _require_type(dict, path, where, "paths")
        for path in _typed_member(list, demand, "paths", where)
    ]
    # Split ratios, from integer weights if there are any; an invalid link index becomes a name that
    # no link has, so that the error names it later.
    total_weight = sum(amount_of(path.get("weight", 0), where, "weight") for path in response_paths)
    paths = []
    for path in response_paths:
        split = amount_of(path["weight"] if total_weight else path.get("split"), where, "split")
        if total_weight:
            split *= (admitted / rate if rate > 0 else 1.0) / total_weight
        names = [
            link_names[index] if index in range(len(link_names)) else repr(index)
            for index in _typed_member(list, path, "links", where)
        ]
        paths.append({**path, "links": names, "split": split, "rate": split * rate})
    return paths


def _convert_service_response(response: dict[str, Any], where: str) -> dict[str, Any]:
    """Convert a response of ``teal serve`` to one matrix to the format of an allocation file.

    Links are named instead of numbered, demands are grouped by ingress router, and integer weights
    w become split ratios w / sum(w) * admitted / demand.

    Args:
        response: parsed JSON in the form ``named``.
        where: name of the file, for messages.

    Raises:
        InputError: several matrices, arrays instead of names, or another format.
    """
    allocations = _typed_member(list, response, "allocations", where)
    if len(allocations) != 1:
        raise InputError.invalid(
            where,
            "allocations",
            f"the response has {len(allocations)} matrices instead of one",
            "request one matrix",
        )
    if "demands" not in _require_type(dict, allocations[0], where, "allocations"):
        raise InputError.invalid(
            where,
            "form",
            "the response has arrays instead of names",
            'request it with "form": "named"',
        )
    # Names of the links, by index.
    link_names = _link_names(_typed_member(list, allocations[0], "utilisation", where), where)
    # Demands by ingress router.
    routers: dict[str, list[dict[str, Any]]] = {}
    for demand in _typed_member(list, allocations[0], "demands", where):
        source = _typed_member(str, demand, "source", where)
        rate, admitted = (
            amount_of(demand.get(name), where, name) for name in ("demand", "admitted")
        )
        paths = _convert_response_paths(demand, rate, admitted, link_names, where)
        routers.setdefault(source, []).append(
            {**demand, "shed": max(0.0, rate - admitted), "paths": paths}
        )
    return {"unit": "Gbit/s", "figures": {}, "routers": routers}


def _link_names(link_objects: list[Any], where: str) -> list[str]:
    """Return the names of a network's links, ``source->target`` with ``#1``, ``#2``, ... for
    parallel ones.

    Args:
        link_objects: JSON objects with node names ``source`` and ``target``, in the order of the
            network's links.
        where: name of the file, for messages.
    """
    ends = [
        (_typed_member(str, link, "source", where), _typed_member(str, link, "target", where))
        for link in link_objects
    ]
    # Build a network with these ends, which names its links; capacities and latencies are 1.
    nodes = list(dict.fromkeys(itertools.chain.from_iterable(ends)))
    node_index = {name: node for node, name in enumerate(nodes)}
    unit_values = np.ones(len(ends))
    source, target = (
        np.array([node_index[pair[end]] for pair in ends], np.int32) for end in (0, 1)
    )
    coordinates = np.full((len(nodes), 2), np.nan)
    return Topology(
        "service", tuple(nodes), source, target, unit_values, unit_values, coordinates
    ).link_names()


def stored_paths(
    allocation: dict[str, Any],
    topology: Topology,
    where: str,
    value_name: str = "rate",
    *,
    skips_unknown: bool = False,
) -> dict[Demand, PathValues]:
    """Return the paths of each demand in a parsed allocation file, with the rate or split ratio of
    each path.

    Args:
        allocation: the parsed file.
        topology: the network.
        where: name of the file, for messages.
        value_name: ``rate``, Gbit/s, or ``split``, fraction of the demand.
        skips_unknown: whether to skip unknown nodes and links, as in a file of an older state of
            the network; otherwise they are errors.

    Returns:
        By demand (source index, target index, class name): by path (tuple of link indices): value.

    Raises:
        InputError: another format; an unknown node or link; links that do not form a path of their
            demand; a value that is not a number >= 0; a repeated demand or path.
    """
    link_index = {name: link for link, name in enumerate(topology.link_names())}
    node_index = topology.node_index()
    paths_of_demand = dict[Demand, PathValues]()
    for router, entries in _require_type(dict, allocation.get("routers"), where, "routers").items():
        for entry in _require_type(list, entries, where, router):
            # Source, target and class of the demand; -1 for an unknown node.
            target = _typed_member(str, entry, "target", f"{where}, {router}")
            location = f"{where}, {router} to {target}"
            class_name = _typed_member(str, {"class": "", **entry}, "class", location)
            demand = node_index.get(router, -1), node_index.get(target, -1), class_name
            paths = _typed_member(list, entry, "paths", location)
            # Store the paths of a demand whose two nodes are known.
            if min(demand[:2]) >= 0:
                if demand in paths_of_demand:
                    raise InputError.invalid(
                        location, class_name, "the demand has two entries", "remove one"
                    )
                paths_of_demand[demand] = _path_values(
                    paths, link_index, topology, demand, location, value_name, skips_unknown
                )
            elif not skips_unknown:
                unknown = router if demand[0] < 0 else target
                raise InputError(location, "routers", f"nodes of {topology.name}", repr(unknown))
    return paths_of_demand


def _path_values(
    path_entries: list[Any],
    link_index: Mapping[str, int],
    topology: Topology,
    demand: Demand,
    where: str,
    value_name: str,
    skips_unknown: bool,
) -> PathValues:
    """Return the paths of one demand, as tuples of link indices, with the value of each.

    Args:
        path_entries: JSON entries of the paths.
        link_index: index of each link by its name.
        topology: the network.
        demand: the demand, whose source and target each path must connect.
        where: file and demand, for messages.
        value_name: member of an entry to return: ``rate`` (Gbit/s) or ``split``.
        skips_unknown: whether to skip paths over unknown links instead of refusing them.

    Raises:
        InputError: an unknown link, links that are not a path of the demand, a value that is not a
            number >= 0, or a repeated path.
    """
    values = PathValues()
    for path in path_entries:
        names = [str(name) for name in _typed_member(list, path, "links", where)]
        # Link indices along the path; -1 for an unknown link.
        links = tuple(link_index.get(name, -1) for name in names)
        if -1 in links and skips_unknown:
            continue
        if -1 in links:
            unknown = names[links.index(-1)]
            raise InputError(where, "links", f"links of {topology.name}", repr(unknown))
        require_path(links, topology, demand, where)
        if links in values:
            raise InputError.invalid(
                where, "paths", f"the path {', '.join(names)} has two entries", "remove one"
            )
        values[links] = amount_of(path.get(value_name), where, value_name)
    return values


def _typed_member(expected_type: type, record: Any, name: str, where: str) -> Any:
    """Return the member ``name`` of a JSON object; raise InputError unless ``record`` is an object
    and the member has the expected type.
    """
    return _require_type(
        expected_type, _require_type(dict, record, where, "").get(name), where, name
    )


def _require_type(expected_type: type, value: Any, where: str, field: str) -> Any:
    """Return the JSON value; raise InputError unless it has the expected type."""
    if not isinstance(value, expected_type):
        actual = "none" if value is None else repr(value)[:80]
        raise InputError(
            where, field, f"{_KINDS[expected_type]}, as teal solve --out X.json writes it", actual
        )
    return value


def amount_of(value: Any, where: str, field: str, expected: str = "a number >= 0") -> float:
    """Parse a finite number >= 0, such as a rate or a split ratio; raise InputError for anything
    else.

    Args:
        value: JSON value; texts of numbers are accepted.
        where: name of the file, for messages.
        field: name of the value, for messages.
        expected: description of the accepted values, for messages.
    """
    try:
        amount = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise InputError(where, field, expected, repr(value)[:80])
    return amount


def require_path(links: tuple[int, ...], topology: Topology, demand: Demand, where: str) -> None:
    """Raise InputError unless links form a path from the source of a demand to its target.

    Args:
        links: link indices in the order of the path.
        topology: the network.
        demand: source index, target index and class name.
        where: file and demand, for messages.
    """
    nodes = [demand[0], *(int(topology.link_target[link]) for link in links)]
    is_connected = all(
        int(topology.link_source[link]) == node for link, node in zip(links, nodes, strict=False)
    )
    if not is_connected or nodes[-1] != demand[1] or not links:
        names = topology.node_names
        link_text = ", ".join(topology.link_name(link) for link in links) or "no link"
        raise InputError(
            where, "links", f"a path from {names[demand[0]]} to {names[demand[1]]}", link_text
        )


def read_splits(
    allocation: dict[str, Any],
    topology: Topology,
    paths: PathSet,
    where: str,
    classes: DemandClasses | None = None,
) -> FloatArray:
    """Return the (D, K) split ratios of a parsed allocation file over candidate paths.

    Paths that are not candidates, and unknown nodes and links, are skipped.

    Args:
        allocation: parsed file, of a network with the same names of links.
        topology: the network.
        paths: candidate paths, (D, K).
        where: name of the file, for messages.
        classes: classes of the demands; None for none.

    Raises:
        InputError: another format, an invalid path or split, or classes on one side only.
    """
    splits = np.zeros(paths.leaf.shape)
    # Match the stored paths of each demand d with its candidates k by their links.
    for d, path_splits in _stored_splits(allocation, topology, paths, where, classes).items():
        candidates = {
            tuple(paths.links_of(d, k)): k for k in range(paths.num_paths) if paths.leaf[d, k] >= 0
        }
        for links, split in path_splits.items():
            if links in candidates:
                splits[d, candidates[links]] = split
    return splits


def with_stored_paths(
    allocation: dict[str, Any],
    topology: Topology,
    paths: PathSet,
    where: str,
    classes: DemandClasses | None = None,
) -> PathSet:
    """Add the paths of a parsed allocation file to the candidate paths.

    Paths over unknown links are skipped.

    Args:
        allocation: parsed file, of a network with the same names of links.
        topology: the network.
        paths: candidate paths, (D, K).
        where: name of the file, for messages.
        classes: classes of the demands; None for none.

    Raises:
        InputError: another format, an invalid path or split, or classes on one side only.
    """
    new_paths: dict[int, list[tuple[int, ...]]] = {}
    for d, path_splits in _stored_splits(allocation, topology, paths, where, classes).items():
        candidates = {tuple(paths.links_of(d, k)) for k in range(paths.num_paths)}
        new_paths[d] = [links for links in path_splits if links not in candidates]
    return with_listed_paths(paths, new_paths)


def _stored_splits(
    allocation: dict[str, Any],
    topology: Topology,
    paths: PathSet,
    where: str,
    classes: DemandClasses | None,
) -> dict[int, PathValues]:
    """Return, by demand index, the split ratio of each stored path (tuple of link indices).

    Demands that are not stored are absent.

    Args:
        allocation: parsed file, of a network with the same names of links.
        topology: the network.
        paths: path set of the D demands, which decides their indices.
        where: name of the file, for messages.
        classes: classes of the demands; None for none.

    Raises:
        InputError: an invalid file, or demands with classes where there are none, or vice versa.
    """
    splits_of_demand = stored_paths(allocation, topology, where, "split", skips_unknown=True)
    for *_, class_name in splits_of_demand:
        if (class_name != "") != (classes is not None):
            problem = (
                f"the allocation has the class {class_name}, but the traffic has no classes"
                if class_name
                else "the traffic has classes, but the allocation has none"
            )
            raise InputError.invalid(
                where, "class", problem, "use traffic and an allocation with the same classes"
            )
    return {
        index: splits_of_demand[demand]
        for demand, index in demand_numbers(paths, classes).items()
        if demand in splits_of_demand
    }


def demand_numbers(paths: PathSet, classes: DemandClasses | None) -> dict[Demand, int]:
    """Return the index of each demand of a path set, by (source index, target index, class name);
    the class name is "" without classes.
    """
    names = (
        [""] * len(paths.pairs)
        if classes is None
        else [classes.names[class_index] for class_index in classes.of_demand]
    )
    return {
        (int(source), int(target), name): index
        for index, ((source, target), name) in enumerate(zip(paths.pairs, names, strict=True))
    }


def write_candidates(file: Path, topology: Topology, paths: PathSet) -> None:
    """Write all candidate paths as Parquet, a row per path: demand index, source, target, ``k``,
    and the names of its nodes and links.

    Args:
        file: path of the file.
        topology: network with the names.
        paths: candidate paths, (D, K).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    demand_index, k = np.nonzero(paths.mask)
    table = pa.table(
        {
            "demand": pa.array(demand_index.astype(np.int32)),
            **_path_columns(topology, paths, demand_index, k),
        }
    )
    with atomic_file(file) as temporary:
        pq.write_table(table, temporary)


class MatrixFile:
    """Writer of a Parquet file with one row per matrix: the fields of a dataclass, and a (D, K)
    array as a list of D * K numbers.

    Args:
        file: path of the file.
        name: name of the column with the arrays: ``splits`` (split ratios) or ``weights`` (integer
            entries of split tables).
    """

    def __init__(self, file: Path, name: str) -> None:
        self._file = file
        self._array_column = name
        self._writer: Any = None

    def add(self, rows: Sequence[Any], shares: npt.NDArray[Any] | None) -> None:
        """Append the rows of B matrices to the file.

        Args:
            rows: B dataclasses of one type, whose fields are columns.
            shares: (B, D, K) split ratios or weights; None for a file without this column, so that
                all calls must then pass None.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Columns of the fields, then the D * K numbers of each row as a list.
        fields = column_names(rows[0])
        columns: dict[str, Any] = {field: [getattr(row, field) for row in rows] for field in fields}
        if shares is not None:
            flat = pa.array(np.ascontiguousarray(shares).reshape(-1))
            columns[self._array_column] = pa.FixedSizeListArray.from_arrays(flat, shares[0].size)
        table = pa.table(columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(str(self._file), table.schema, compression="zstd")
        self._writer.write_table(table)

    def close(self) -> None:
        """Complete the file after the last row; without any row no file exists."""
        if self._writer is not None:
            self._writer.close()


def _path_columns(
    topology: Topology, paths: PathSet, demand_index: npt.NDArray[Any], path_index: npt.NDArray[Any]
) -> dict[str, Any]:
    """Return the Arrow columns source, target, k, nodes and links of R paths, by their names.

    Args:
        topology: network with the names.
        paths: candidate paths, (D, K).
        demand_index: (R,) demand of each path.
        path_index: (R,) index of each path among the K paths of its demand.
    """
    import pyarrow as pa

    node_names = pa.array(topology.node_names)
    link_names = pa.array(topology.link_names())
    # (R, 2) source and target of each path.
    ends = paths.pairs[demand_index]
    path_links = links_along(topology, paths, demand_index, path_index)

    # Arrow lists of names, one for each path: starts (R + 1,) and concatenated values.
    def list_array(starts: Int64Array, values: Any) -> Any:
        return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), values)

    return {
        "source": node_names.take(pa.array(ends[:, 0])),
        "target": node_names.take(pa.array(ends[:, 1])),
        "k": pa.array(path_index.astype(np.int32)),
        "nodes": list_array(path_links.node_starts, node_names.take(pa.array(path_links.nodes))),
        "links": list_array(path_links.link_starts, link_names.take(pa.array(path_links.links))),
    }


class PathLinks(NamedTuple):
    """Node and link indices along R paths, in CSR form.

    Attributes:
        node_starts: (R + 1,) path i has nodes[node_starts[i]:node_starts[i + 1]].
        nodes: node indices from source to target, of all paths one after the other.
        link_starts: (R + 1,) path i has links[link_starts[i]:link_starts[i + 1]].
        links: link indices from source to target, of all paths one after the other.
    """

    node_starts: Int64Array
    nodes: IntArray
    link_starts: Int64Array
    links: IntArray


def links_along(
    topology: Topology, paths: PathSet, demand_index: npt.NDArray[Any], path_index: npt.NDArray[Any]
) -> PathLinks:
    """Return the nodes and links along R candidate paths, from source to target.

    A path is a leaf of the trie of paths; each trie node adds one link to the path of its parent.
    All paths are walked from their leaves towards the root at once, so that they are filled
    backwards.

    Args:
        topology: the network.
        paths: candidate paths, (D, K).
        demand_index: (R,) demand of each path.
        path_index: (R,) index of each path among the K paths of its demand.
    """
    # Trie node of each path, first its leaf, and number of its links.
    trie_node = paths.leaf[demand_index, path_index].astype(np.int64)
    num_hops = paths.hops[demand_index, path_index].astype(np.int64)
    # A path of h links has h + 1 nodes.
    node_starts = np.concatenate([[0], np.cumsum(num_hops + 1)])
    link_starts = np.concatenate([[0], np.cumsum(num_hops)])
    path_nodes = np.empty(node_starts[-1], dtype=np.int32)
    path_links = np.empty(link_starts[-1], dtype=np.int32)
    # The first node is the source of the demand.
    path_nodes[node_starts[:-1]] = paths.pairs[demand_index, 0]
    # Where the next node and link of each path are written.
    node_position = node_starts[:-1] + num_hops
    link_position = link_starts[:-1] + num_hops - 1
    # Write the last missing link of each path and the node at its end, then go to the parent.
    while len(trie_node):
        path_nodes[node_position] = topology.link_target[paths.trie.link[trie_node]]
        path_links[link_position] = paths.trie.link[trie_node]
        trie_node = paths.trie.parent[trie_node].astype(np.int64)
        node_position = node_position - 1
        link_position = link_position - 1
        # Drop paths that have reached the root: their parent is -1.
        is_unfinished = trie_node >= 0
        trie_node = trie_node[is_unfinished]
        node_position = node_position[is_unfinished]
        link_position = link_position[is_unfinished]
    return PathLinks(node_starts, path_nodes, link_starts, path_links)
