"""Allocations as files.

Of one matrix, as a table: one row for each path that carries traffic, with columns ``source``,
``target``, ``k`` (index of the path among the demand's paths, from 0), ``nodes`` and ``links``
(names along the path: lists in Parquet, JSON lists in CSV), ``split`` (share of the demand),
``flow`` (Gbit/s) and, if there are any, whole-number ``weight``s and the priority ``class``.  A
link is named ``source->target``, parallel ones ``source->target#1``, ``#2``, ... in the order of
the file.

Of one matrix, as JSON: for each ingress router its demands, with the rate that is admitted and
shed, and their paths:

    {"topology": ..., "unit": "Gbit/s", "figures": {...}, "routers": {"ROUTER": [
        {"target": ..., "demand": ..., "admitted": ..., "shed": ..., "paths": [
            {"nodes": [...], "links": [...], "split": ..., "rate": ..., "weight": ...}]}]}}

For many matrices there is one Parquet file of the paths, with ``source``, ``target``, ``demand``
(index d of the demand), ``k`` and ``nodes``, and files with one row for each matrix.  Their column
``splits`` (shares) or ``weights`` (entries of split tables, whole numbers) has D * K numbers, that
of demand d and path k at position d * K + k.
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

Demand = tuple[int, int, str]  # numbers of source and target, and the class, "" without classes
PathValues = dict[tuple[int, ...], float]  # by the numbers of the links along a path

_EXPECTED = "a .json file of teal solve --out, or an answer of teal serve to one matrix"
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "text"}
ALLOCATION_SUFFIXES = (".json", ".parquet", ".csv")  # of the files that write_allocation can write


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
    """Write the allocation of one matrix.  Returns the number of paths that carry traffic.

    Args:
        file: .json, .csv or .parquet.
        topology: gives the names of the nodes.
        paths: candidate paths, (D, K).
        demand: (D,) Gbit/s.
        splits: (D, K) share of the demand on each path.
        weights: (D, K) whole numbers of split tables; None for none.
        figures: figures of the allocation, for a .json file.
        classes: classes of the demands; None for none.
    """
    if file.suffix.lower() == ".json":
        head = json.dumps(_head(topology, figures or {}), allow_nan=False).removesuffix("}")
        with atomic_file(file) as temporary, temporary.open("w", encoding="utf-8") as stream:
            stream.write(head + ', "routers": {')
            for number, (router, entries) in enumerate(
                _by_router(topology, paths, demand, splits, weights, classes)
            ):
                text = json.dumps(entries, allow_nan=False)
                stream.write(f"{', ' if number else ''}{json.dumps(router)}: {text}")
            stream.write("}}\n")
        return int(((splits > 0) & (demand > 0)[:, None] & paths.mask).sum())
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    columns = _carrying(topology, paths, demand, splits, weights, classes)
    if file.suffix.lower() == ".csv":
        for name in ("nodes", "links"):
            columns[name] = pa.array([json.dumps(one) for one in columns[name].to_pylist()])
    table = pa.table(columns)
    with atomic_file(file) as temporary:
        (csv.write_csv if file.suffix.lower() == ".csv" else pq.write_table)(table, str(temporary))
    return len(table)


def _carrying(
    topology: Topology,
    paths: PathSet,
    demand: FloatArray,
    splits: FloatArray,
    weights: npt.NDArray[np.integer] | None,
    classes: DemandClasses | None,
) -> dict[str, Any]:
    """The columns of the paths that carry traffic."""
    import pyarrow as pa

    demand_index, k = np.nonzero((splits > 0) & (demand > 0)[:, None] & paths.mask)
    columns = _path_columns(topology, paths, demand_index, k)
    columns["split"] = pa.array(splits[demand_index, k])
    columns["flow"] = pa.array(splits[demand_index, k] * demand[demand_index])
    if weights is not None:
        columns["weight"] = pa.array(weights[demand_index, k])
    if classes is not None:
        columns["class"] = pa.array(np.array(classes.names)[classes.of_demand[demand_index]])
    return columns


def _head(topology: Topology, figures: Mapping[str, Any]) -> dict[str, Any]:
    return {"topology": topology.name, "unit": "Gbit/s", "figures": dict(figures)}


def _by_router(
    topology: Topology,
    paths: PathSet,
    demand: FloatArray,
    splits: FloatArray,
    weights: npt.NDArray[np.integer] | None,
    classes: DemandClasses | None,
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Each ingress router and its demands, those of higher classes first."""
    names, link_names = topology.node_names, np.array(topology.link_names(), dtype=object)
    node_names = np.array(names, dtype=object)
    has_demand = demand > 0
    carries = (splits > 0) & has_demand[:, None] & paths.mask
    class_of = None if classes is None else np.array(classes.names, dtype=object)[classes.of_demand]
    by_source = np.argsort(
        paths.pairs[:, 0], kind="stable"
    )  # sorted already, unless there are classes
    by_source = by_source[has_demand[by_source]]
    source = paths.pairs[by_source, 0]
    first_rows = np.flatnonzero(np.diff(source, prepend=-1))
    for start, end in itertools.pairwise([*first_rows.tolist(), len(source)]):
        rows = by_source[start:end]
        demand_index, k = np.nonzero(carries[rows])
        along = links_along(topology, paths, rows[demand_index], k)
        nodes, links = node_names[along.nodes].tolist(), link_names[along.links].tolist()
        node_starts, link_starts = along.node_starts.tolist(), along.link_starts.tolist()
        split = splits[rows[demand_index], k]
        flow = split * demand[rows[demand_index]]
        entries: list[list[dict[str, Any]]] = [[] for _ in rows]
        for i, row in enumerate(demand_index.tolist()):
            entry = {
                "nodes": nodes[node_starts[i] : node_starts[i + 1]],
                "links": links[link_starts[i] : link_starts[i + 1]],
                "split": float(split[i]),
                "rate": float(flow[i]),
            }
            if weights is not None:
                entry["weight"] = int(weights[rows[row], k[i]])
            entries[row].append(entry)
        targets, rates = paths.pairs[rows, 1].tolist(), demand[rows].tolist()
        demands: list[dict[str, Any]] = []
        for row, target, rate, entry_row in zip(
            rows.tolist(), targets, rates, entries, strict=True
        ):
            admitted = sum(entry["rate"] for entry in entry_row)
            one = {
                "target": names[target],
                "demand": rate,
                "admitted": admitted,
                "shed": max(0.0, rate - admitted),
            }
            demands.append(
                one | ({} if class_of is None else {"class": class_of[row]}) | {"paths": entry_row}
            )
        yield names[source[start]], demands


def read_allocation(file: Path) -> dict[str, Any]:
    """The parsed .json file of an allocation.

    Raises:
        InputError: no such file, or no JSON object.
    """
    try:
        stored = parsed_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(file), "", _EXPECTED, error) from None
    found = dict(_required(dict, stored, str(file), ""))
    return _of_service(found, str(file)) if "allocations" in found else found


def _of_service(answer: dict[str, Any], where: str) -> dict[str, Any]:
    """The answer of the service to one matrix, by name, as the file of an allocation.

    Raises:
        InputError: several matrices, arrays in the place of names, or another format.
    """
    allocations = _member(list, answer, "allocations", where)
    if len(allocations) != 1:
        raise InputError(
            where, "allocations", "the answer to one matrix", f"{len(allocations)} of them"
        )
    if "demands" not in _required(dict, allocations[0], where, "allocations"):
        raise InputError(where, "form", "an answer by name (form: named)", "arrays")
    links = _names_of_links(_member(list, allocations[0], "utilisation", where), where)
    routers: dict[str, list[dict[str, Any]]] = {}
    for demand in _member(list, allocations[0], "demands", where):
        source = _member(str, demand, "source", where)
        rate, admitted = (
            amount_of(demand.get(name), where, name) for name in ("demand", "admitted")
        )
        stored = [
            _required(dict, path, where, "paths") for path in _member(list, demand, "paths", where)
        ]
        weights = sum(amount_of(path.get("weight", 0), where, "weight") for path in stored)
        paths = []
        for path in stored:
            split = amount_of(path["weight"] if weights else path.get("split"), where, "split")
            if weights:
                split *= (admitted / rate if rate > 0 else 1.0) / weights
            numbers = _member(list, path, "links", where)
            names = [
                links[number] if number in range(len(links)) else repr(number) for number in numbers
            ]
            paths.append({**path, "links": names, "split": split, "rate": split * rate})
        routers.setdefault(source, []).append(
            {**demand, "shed": max(0.0, rate - admitted), "paths": paths}
        )
    return {"unit": "Gbit/s", "figures": {}, "routers": routers}


def _names_of_links(links: list[Any], where: str) -> list[str]:
    """The names of a network's links, from their sources and targets in the network's order."""
    ends = [
        (_member(str, link, "source", where), _member(str, link, "target", where)) for link in links
    ]
    nodes = list(dict.fromkeys(itertools.chain.from_iterable(ends)))
    number, ones = {name: node for node, name in enumerate(nodes)}, np.ones(len(ends))
    source, target = (np.array([number[pair[end]] for pair in ends], np.int32) for end in (0, 1))
    places = np.full((len(nodes), 2), np.nan)
    return Topology("service", tuple(nodes), source, target, ones, ones, places).link_names()


def stored_paths(
    allocation: dict[str, Any],
    topology: Topology,
    where: str,
    value: str = "rate",
    *,
    is_older: bool = False,
) -> dict[Demand, PathValues]:
    """The paths of each demand of the parsed .json file of an allocation, and a value of each.

    Args:
        allocation: the parsed file.
        topology: the network.
        where: name of the file, for messages.
        value: ``rate``, Gbit/s, or ``split``, share of the demand.
        is_older: whether nodes and links that the network does not have are left out; they are
            refused otherwise.

    Raises:
        InputError: another format; a node or link that the network does not have; links that are no
            path of their demand; a value that is no number of at least 0; a demand, or a path of a
            demand, that is listed twice.
    """
    number = {name: link for link, name in enumerate(topology.link_names())}
    node, found = topology.node_index(), dict[Demand, PathValues]()
    for router, demands in _required(dict, allocation.get("routers"), where, "routers").items():
        for stored in _required(list, demands, where, router):
            target = _member(str, stored, "target", f"{where}, {router}")
            here = f"{where}, {router} to {target}"
            of_class = _member(str, {"class": "", **stored}, "class", here)
            demand = node.get(router, -1), node.get(target, -1), of_class
            paths = _member(list, stored, "paths", here)
            if min(demand[:2]) >= 0:
                if demand in found:
                    raise InputError(here, of_class, "each demand once", "this one twice")
                found[demand] = _values(paths, number, topology, demand, here, value, is_older)
            elif not is_older:
                unknown = router if demand[0] < 0 else target
                raise InputError(here, "routers", f"nodes of {topology.name}", repr(unknown))
    return found


def _values(
    stored: list[Any],
    number: Mapping[str, int],
    topology: Topology,
    demand: Demand,
    where: str,
    value: str,
    is_older: bool,
) -> PathValues:
    """The stored paths of one demand, with a value of each; arguments and errors as of
    :func:`stored_paths`.
    """
    found = PathValues()
    for path in stored:
        names = [str(name) for name in _member(list, path, "links", where)]
        links = tuple(number.get(name, -1) for name in names)
        if -1 in links and is_older:
            continue
        if -1 in links:
            unknown = names[links.index(-1)]
            raise InputError(where, "links", f"links of {topology.name}", repr(unknown))
        require_path(links, topology, demand, where)
        if links in found:
            raise InputError(where, "paths", "each path once", f"{', '.join(names)} twice")
        found[links] = amount_of(path.get(value), where, value)
    return found


def _member(kind: type, record: Any, name: str, where: str) -> Any:
    """A member of an object, if both are of the kinds that the format has there."""
    return _required(kind, _required(dict, record, where, "").get(name), where, name)


def _required(kind: type, value: Any, where: str, field: str) -> Any:
    """The value, if it is of the kind that the format has there."""
    if not isinstance(value, kind):
        found = "none" if value is None else repr(value)[:80]
        raise InputError(
            where, field, f"{_KINDS[kind]}, as teal solve --out X.json writes it", found
        )
    return value


def amount_of(
    value: Any, where: str, field: str, expected: str = "a number of at least 0"
) -> float:
    """A finite number of at least 0; raises InputError for anything else."""
    try:
        amount = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise InputError(where, field, expected, repr(value)[:80])
    return amount


def require_path(links: tuple[int, ...], topology: Topology, demand: Demand, where: str) -> None:
    """Raise InputError unless the links lead from the source of a demand to its target."""
    nodes = [demand[0], *(int(topology.link_target[link]) for link in links)]
    leads = all(
        int(topology.link_source[link]) == node for link, node in zip(links, nodes, strict=False)
    )
    if not leads or nodes[-1] != demand[1] or not links:
        names = topology.node_names
        along = ", ".join(topology.link_name(link) for link in links) or "no link"
        raise InputError(
            where, "links", f"a path from {names[demand[0]]} to {names[demand[1]]}", along
        )


def read_splits(
    allocation: dict[str, Any],
    topology: Topology,
    paths: PathSet,
    where: str,
    classes: DemandClasses | None = None,
) -> FloatArray:
    """(D, K) splits of the parsed .json file of an allocation; paths that are no candidates are
    left out.

    Args:
        allocation: allocation of a network with the same names of links.
        topology: the network.
        paths: candidate paths.
        where: name of the file, for messages.
        classes: classes of the demands; None for none.

    Raises:
        InputError: as of :func:`stored_paths`; demands with classes where there are none, or the
            other way round.
    """
    splits = np.zeros(paths.leaf.shape)
    for d, stored in _stored_splits(allocation, topology, paths, where, classes).items():
        candidates = {
            tuple(paths.links_of(d, k)): k for k in range(paths.num_paths) if paths.leaf[d, k] >= 0
        }
        for links, split in stored.items():
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
    """``paths`` and those of an allocation that are none of them yet; arguments as in
    :func:`read_splits`.

    Paths over links that the network does not have are left out.
    """
    more: dict[int, list[tuple[int, ...]]] = {}
    for d, stored in _stored_splits(allocation, topology, paths, where, classes).items():
        candidates = {tuple(paths.links_of(d, k)) for k in range(paths.num_paths)}
        more[d] = [links for links in stored if links not in candidates]
    return with_listed_paths(paths, more)


def _stored_splits(
    allocation: dict[str, Any],
    topology: Topology,
    paths: PathSet,
    where: str,
    classes: DemandClasses | None,
) -> dict[int, PathValues]:
    """The splits of the stored paths of each demand, by its number; arguments and errors as of
    :func:`read_splits`.
    """
    stored = stored_paths(allocation, topology, where, "split", is_older=True)
    for *_, name in stored:
        if (name != "") != (classes is not None):
            expected = (
                "an allocation with classes"
                if classes is not None
                else "an allocation without classes"
            )
            raise InputError(where, "class", expected, name or "none")
    return {
        number: stored[demand]
        for demand, number in demand_numbers(paths, classes).items()
        if demand in stored
    }


def demand_numbers(paths: PathSet, classes: DemandClasses | None) -> dict[Demand, int]:
    """The number of each demand of a path set."""
    names = (
        [""] * len(paths.pairs)
        if classes is None
        else [classes.names[c] for c in classes.of_demand]
    )
    return {
        (int(s), int(t), name): d
        for d, ((s, t), name) in enumerate(zip(paths.pairs, names, strict=True))
    }


def write_candidates(file: Path, topology: Topology, paths: PathSet) -> None:
    """Write all candidate paths as Parquet."""
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
    """A Parquet file that is being written, one row for each matrix: the fields of a dataclass, and
    (D, K) shares.

    Args:
        file: path of the file.
        name: name of the column with the shares, ``splits`` or ``weights``.
    """

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name = file, name
        self._writer: Any = None

    def add(self, rows: Sequence[Any], shares: npt.NDArray[Any] | None) -> None:
        """Write B rows.

        Args:
            rows: B dataclasses, all of one type.
            shares: (B, D, K); None leaves out the column, in all calls or in none.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        fields = column_names(rows[0])
        columns: dict[str, Any] = {field: [getattr(row, field) for row in rows] for field in fields}
        if shares is not None:
            flat = pa.array(np.ascontiguousarray(shares).reshape(-1))
            columns[self._name] = pa.FixedSizeListArray.from_arrays(flat, shares[0].size)
        table = pa.table(columns)
        if self._writer is None:
            self._writer = pq.ParquetWriter(str(self._file), table.schema, compression="zstd")
        self._writer.write_table(table)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


def _path_columns(
    topology: Topology, paths: PathSet, demand_index: npt.NDArray[Any], k: npt.NDArray[Any]
) -> dict[str, Any]:
    """Columns source, target, k, nodes and links; row i has path ``k[i]`` of demand
    ``demand_index[i]``.
    """
    import pyarrow as pa

    names, link_names = pa.array(topology.node_names), pa.array(topology.link_names())
    ends, along = paths.pairs[demand_index], links_along(topology, paths, demand_index, k)

    def lists(starts: Int64Array, values: Any) -> Any:
        return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), values)

    return {
        "source": names.take(pa.array(ends[:, 0])),
        "target": names.take(pa.array(ends[:, 1])),
        "k": pa.array(k.astype(np.int32)),
        "nodes": lists(along.node_starts, names.take(pa.array(along.nodes))),
        "links": lists(along.link_starts, link_names.take(pa.array(along.links))),
    }


class PathLinks(NamedTuple):
    """Numbers of nodes and links along R paths: those of path i from ``starts[i]`` to
    ``starts[i + 1]``.
    """

    node_starts: Int64Array
    nodes: IntArray
    link_starts: Int64Array
    links: IntArray


def links_along(
    topology: Topology, paths: PathSet, demand_index: npt.NDArray[Any], k: npt.NDArray[Any]
) -> PathLinks:
    """Nodes and links along the paths ``k[i]`` of the demands ``demand_index[i]``.

    They are filled in from the end of each path; its first node is the source.
    """
    node, length = (
        paths.leaf[demand_index, k].astype(np.int64),
        paths.hops[demand_index, k].astype(np.int64),
    )
    offsets = np.concatenate([[0], np.cumsum(length + 1)])
    link_offsets = np.concatenate([[0], np.cumsum(length)])
    path_nodes, path_links = (
        np.empty(offsets[-1], dtype=np.int32),
        np.empty(link_offsets[-1], dtype=np.int32),
    )
    path_nodes[offsets[:-1]] = paths.pairs[demand_index, 0]
    place, link_place = offsets[:-1] + length, link_offsets[:-1] + length - 1
    while len(node):
        path_nodes[place] = topology.link_target[paths.trie.link[node]]
        path_links[link_place] = paths.trie.link[node]
        node, place, link_place = (
            paths.trie.parent[node].astype(np.int64),
            place - 1,
            link_place - 1,
        )
        is_inside = node >= 0
        node, place, link_place = node[is_inside], place[is_inside], link_place[is_inside]
    return PathLinks(offsets, path_nodes, link_offsets, path_links)
