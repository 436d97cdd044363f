"""Allocations as files.

Of one matrix, as a table: one row for each path that carries traffic, with columns ``source``, ``target``, ``k`` (index
of the path among the demand's paths, from 0), ``nodes`` and ``links`` (names along the path: lists in Parquet, JSON
lists in CSV), ``split`` (share of the demand), ``flow`` (Gbit/s) and, if there are any, whole-number ``weight``s.  A
link is named ``source->target``, parallel ones ``source->target#1``, ``#2``, ... in the order of the file.

Of one matrix, as JSON: for each ingress router its demands, with the rate that is admitted and shed, and their paths:

    {"topology": ..., "unit": "Gbit/s", "figures": {...}, "routers": {"ROUTER": [
        {"target": ..., "demand": ..., "admitted": ..., "shed": ..., "paths": [
            {"nodes": [...], "links": [...], "split": ..., "rate": ..., "weight": ...}]}]}}

For many matrices there is one Parquet file of the paths, with ``source``, ``target``, ``demand`` (index d of the
demand), ``k`` and ``nodes``, and files with one row for each matrix.  Their column ``splits`` (shares) or ``weights``
(entries of split tables, whole numbers) has D * K numbers, that of demand d and path k at position d * K + k.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.formats.rows import columns_of
from teal.network import PathSet, Topology
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import atomic_file

ALLOCATION_SUFFIXES = (".json", ".parquet", ".csv")  # of the files that write_allocation can write


def write_allocation(
    file: Path,
    topology: Topology,
    paths: PathSet,
    demand: FloatArray,
    splits: FloatArray,
    weights: npt.NDArray[np.integer] | None = None,
    figures: Mapping[str, Any] | None = None,
) -> int:
    """Write the allocation of one matrix.  Returns the number of paths that carry traffic.

    Args:
        file: .json, .csv or .parquet.
        topology: gives the names of the nodes.
        paths: candidate paths, (D, K).
        demand: (D,) Gbit/s.
        splits: (D, K) share of the demand on each path.
        weights: (D, K) whole numbers of split tables; None for none.
        figures: of the allocation, for a .json file.
    """
    if file.suffix.lower() == ".json":
        text = json.dumps(allocation_json(topology, paths, demand, splits, weights, figures or {}), allow_nan=False)
        with atomic_file(file) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
        return int(((splits > 0) & (demand > 0)[:, None] & paths.mask).sum())
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    columns = _carrying(topology, paths, demand, splits, weights)
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
) -> dict[str, Any]:
    """The columns of the paths that carry traffic."""
    import pyarrow as pa

    demand_index, k = np.nonzero((splits > 0) & (demand > 0)[:, None] & paths.mask)
    columns = _path_columns(topology, paths, demand_index, k)
    columns["split"] = pa.array(splits[demand_index, k])
    columns["flow"] = pa.array(splits[demand_index, k] * demand[demand_index])
    if weights is not None:
        columns["weight"] = pa.array(weights[demand_index, k])
    return columns


def allocation_json(
    topology: Topology,
    paths: PathSet,
    demand: FloatArray,
    splits: FloatArray,
    weights: npt.NDArray[np.integer] | None,
    figures: Mapping[str, Any],
) -> dict[str, Any]:
    """What each ingress router installs (see the module); demands of 0 are left out.

    Args:
        topology, paths, demand, splits, weights, figures: as of :func:`write_allocation`.
    """
    columns = {name: column.to_pylist() for name, column in _carrying(topology, paths, demand, splits, weights).items()}
    of_demand: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in range(len(columns["k"])):
        entry = {name: columns[name][row] for name in ("nodes", "links", "split")} | {"rate": columns["flow"][row]}
        if weights is not None:
            entry["weight"] = columns["weight"][row]
        of_demand.setdefault((columns["source"][row], columns["target"][row]), []).append(entry)
    routers: dict[str, list[dict[str, Any]]] = {}
    for (source, target), rate in zip(paths.pairs.tolist(), demand.tolist(), strict=True):
        if rate > 0:
            names = topology.node_names[source], topology.node_names[target]
            own = of_demand.get(names, [])
            admitted = sum(entry["rate"] for entry in own)
            shed = max(0.0, rate - admitted)
            routers.setdefault(names[0], []).append(
                {"target": names[1], "demand": rate, "admitted": admitted, "shed": shed, "paths": own}
            )
    return {"topology": topology.name, "unit": "Gbit/s", "figures": dict(figures), "routers": routers}


def write_candidates(file: Path, topology: Topology, paths: PathSet) -> None:
    """Write all candidate paths as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    demand_index, k = np.nonzero(paths.mask)
    table = pa.table(
        {"demand": pa.array(demand_index.astype(np.int32)), **_path_columns(topology, paths, demand_index, k)}
    )
    with atomic_file(file) as temporary:
        pq.write_table(table, temporary)


class MatrixFile:
    """A Parquet file that is being written, one row for each matrix: the fields of a dataclass, and (D, K) shares.

    Args:
        file: path of the file.
        name: of the column with the shares, ``splits`` or ``weights``.
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

        fields = columns_of(rows[0])
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
    """Columns source, target, k, nodes and links; row i has path ``k[i]`` of demand ``demand_index[i]``."""
    import pyarrow as pa

    names, link_names = pa.array(topology.node_names), pa.array(topology.link_names())
    ends = paths.pairs[demand_index]
    # Nodes and links along each path are filled in from its end; the first node is the source.
    node, length = paths.leaf[demand_index, k].astype(np.int64), paths.hops[demand_index, k].astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(length + 1)])
    link_offsets = np.concatenate([[0], np.cumsum(length)])
    path_nodes, path_links = np.empty(offsets[-1], dtype=np.int32), np.empty(link_offsets[-1], dtype=np.int32)
    path_nodes[offsets[:-1]] = ends[:, 0]
    place, link_place = offsets[:-1] + length, link_offsets[:-1] + length - 1
    while len(node):
        path_nodes[place] = topology.link_target[paths.trie.link[node]]
        path_links[link_place] = paths.trie.link[node]
        node, place, link_place = paths.trie.parent[node].astype(np.int64), place - 1, link_place - 1
        is_inside = node >= 0
        node, place, link_place = node[is_inside], place[is_inside], link_place[is_inside]

    def lists(starts: npt.NDArray[np.int64], values: Any) -> Any:
        return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), values)

    return {
        "source": names.take(pa.array(ends[:, 0])),
        "target": names.take(pa.array(ends[:, 1])),
        "k": pa.array(k.astype(np.int32)),
        "nodes": lists(offsets, names.take(pa.array(path_nodes))),
        "links": lists(link_offsets, link_names.take(pa.array(path_links))),
    }
