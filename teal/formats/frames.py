"""Networks and traffic that are objects already: graphs of networkx, frames and series of pandas,
arrays, dicts.

A graph has attributes ``capacity`` (Gbit/s), perhaps ``latency`` (ms) on edges, and perhaps ``pos``
or ``lon`` and ``lat`` on nodes.  Traffic, in Gbit/s:

- a frame with columns ``source``, ``target``, ``rate`` and perhaps ``timestamp``, as the tables of
  :mod:`teal.formats.tables`; without times it is one matrix;
- a square frame, whose index and columns are names of nodes: one matrix;
- a frame whose index are times and whose columns are pairs of names (a MultiIndex);
- a series whose index are pairs of names, or a dict ``{("a", "b"): 3.0}``: one matrix;
- an array (N, N) or (T, N, N) over the nodes in their order, or (T, N (N - 1)) over all ordered
  pairs; T matrices have invented times, 300 s apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from teal.errors import InputError, did_you_mean
from teal.formats.node_link import topology_from_node_link
from teal.formats.records import Attributes
from teal.formats.times import naive_times, seconds_of_numbers, seconds_of_texts
from teal.network import Topology, TrafficMatrices
from teal.network.rates import ArrayRates
from teal.network.topology import canonical_name
from teal.network.traffic import usual_interval
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.storage import content_key

_COLUMNS = ("timestamp", "source", "target", "rate")
_TIMES = np.array(["2024-01-01T00:00:00"], dtype="datetime64[s]")  # of matrices that have none
_USUAL_INTERVAL = np.timedelta64(300, "s")  # between them


def topology_from_graph(
    graph: Any, default_capacity: float | None, attributes: Attributes
) -> Topology:
    """The network of a networkx graph, directed or not, with parallel edges or without.

    Args:
        graph: the graph.
        default_capacity: Gbit/s of edges without capacity; None refuses them.
        attributes: names of the attributes of edges.

    Raises:
        InputError: what :func:`teal.formats.records.topology_from_records` refuses.
    """
    nodes = [{"id": node, **data} for node, data in graph.nodes(data=True)]
    links = [{**data, "source": a, "target": b} for a, b, data in graph.edges(data=True)]
    data = {
        "directed": graph.is_directed(),
        "graph": dict(graph.graph),
        "nodes": nodes,
        "links": links,
    }
    name = str(graph.name or "graph")
    return topology_from_node_link(
        data, name, f"networkx graph {name}", default_capacity, attributes
    )


def traffic_from_object(value: Any, topology: Topology) -> TrafficMatrices:
    """The matrices of an object; a pair that it does not name has rate 0.

    Args:
        value: see the module.
        topology: network whose nodes the object names.

    Raises:
        InputError: another kind of object or shape, a column missing, an unknown node, a rate that
            is negative or no number, a pair twice.
    """
    if isinstance(value, Mapping):
        pairs = list(value)
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise InputError(
                "dict", "", 'pairs of names, such as {("a", "b"): 3.0}', repr(pairs[:1])
            )
        names = np.array(pairs, dtype=object).reshape(-1, 2)
        return _matrices(
            names[:, 0], names[:, 1], np.array([list(value.values())]), _TIMES[:1], topology, "dict"
        )
    if hasattr(value, "columns"):
        return _from_frame(value, topology)
    if hasattr(value, "index") and hasattr(value, "to_numpy"):
        _require_pairs(value.index, "series")
        a, b = (value.index.get_level_values(level).to_numpy() for level in (0, 1))
        return _matrices(a, b, value.to_numpy(np.float64)[None], _TIMES[:1], topology, "series")
    if isinstance(value, np.ndarray):
        return _from_array(value, topology)
    expected = "a file or name, a pandas frame or series, a dict of pairs, or an array"
    raise InputError("traffic", "", expected, type(value).__name__)


def _from_array(value: FloatArray, topology: Topology) -> TrafficMatrices:
    nodes = topology.num_nodes
    ends = np.array([(a, b) for a in range(nodes) for b in range(nodes) if a != b])
    array = value[None] if value.ndim == 2 and value.shape == (nodes, nodes) else value
    if array.ndim == 3 and array.shape[1:] == (nodes, nodes):
        own = np.einsum("tnn->tn", array)
        if (own != 0).any():
            raise InputError("array", "rate", "0 from a node to itself", float(own[own != 0][0]))
        array = array[:, ends[:, 0], ends[:, 1]]
    if array.ndim != 2 or array.shape[1] != len(ends):
        expected = f"({nodes}, {nodes}), (T, {nodes}, {nodes}) or (T, {len(ends)}) rates"
        raise InputError("array", "shape", expected, value.shape)
    names = np.array(topology.node_names, dtype=object)[ends]
    times = _TIMES[0] + _USUAL_INTERVAL * np.arange(len(array))
    return _matrices(names[:, 0], names[:, 1], array.astype(np.float64), times, topology, "array")


def _from_frame(frame: Any, topology: Topology) -> TrafficMatrices:
    where, columns = "data frame", list(map(str, frame.columns))
    if set(_COLUMNS[1:]) <= set(columns):
        return _from_table(frame, topology)
    if getattr(frame.columns, "nlevels", 1) == 2:
        a, b = (frame.columns.get_level_values(level).to_numpy() for level in (0, 1))
        times = _moments(frame.index.to_series(), where)
        return _matrices(a, b, frame.to_numpy(np.float64), times, topology, where)
    index = topology.node_index()
    if set(map(str, frame.index)) & set(index) and set(columns) & set(index):
        rows, cols = (
            grid.ravel()
            for grid in np.meshgrid(range(len(frame)), range(len(columns)), indexing="ij")
        )
        a, b = (
            np.array(list(map(str, frame.index)), dtype=object)[rows],
            np.array(columns, dtype=object)[cols],
        )
        rates, other = np.nan_to_num(frame.to_numpy(np.float64)[rows, cols]), a != b
        return _matrices(a[other], b[other], rates[None, other], _TIMES[:1], topology, where)
    expected = "columns source, target, rate (and timestamp), a square of nodes, or times and pairs"
    raise InputError(where, "", expected, ", ".join(columns[:10]))


def _from_table(frame: Any, topology: Topology) -> TrafficMatrices:
    where, ends = (
        "data frame",
        [frame[column].astype(str).to_numpy() for column in ("source", "target")],
    )
    moments = np.repeat(_TIMES[:1], len(frame))
    if "timestamp" in frame.columns:
        moments = _moments(frame["timestamp"], where)
    times, row = np.unique(moments, return_inverse=True)
    numbers = [np.unique(names, return_inverse=True)[1] for names in ends]
    codes, column = np.unique(numbers[0] * len(frame) + numbers[1], return_inverse=True)
    _indices(ends[0], ends[1], topology, where)  # a wrong name is said first
    if len(np.unique(row * len(codes) + column)) < len(row):
        raise InputError(
            where, "timestamp", "each source and target once at each time", "a pair twice"
        )
    rates = np.zeros((len(times), len(codes)))
    rates[row, column] = frame["rate"].to_numpy(np.float64)
    first = np.unique(column, return_index=True)[1]
    return _matrices(ends[0][first], ends[1][first], rates, times, topology, where)


def _moments(column: Any, where: str) -> AnyArray:
    """(n,) times of a pandas series of times, numbers or texts."""
    if column.dtype.kind == "M" or hasattr(column.dtype, "tz"):
        return np.asarray(naive_times(column).astype("datetime64[s]"))
    if column.dtype.kind in "iuf":
        seconds = seconds_of_numbers(column.to_numpy(), where, "timestamp")
    else:
        seconds = seconds_of_texts(column.map(str), where, "timestamp")
    return np.floor(seconds).astype(np.int64).astype("datetime64[s]")


def _matrices(
    source: AnyArray,
    target: AnyArray,
    rates: FloatArray,
    times: AnyArray,
    topology: Topology,
    where: str,
) -> TrafficMatrices:
    """Matrices (T, D) between named nodes, in any order of pairs."""
    ends = _indices(source, target, topology, where)
    bad = ~(np.isfinite(rates) & (rates >= 0)).all(0) | (ends[0] == ends[1])
    if bad.any():
        pair = int(np.flatnonzero(bad)[0])
        found = f"{rates[:, pair].min():g} from {source[pair]} to {target[pair]}"
        raise InputError(where, "rate", "finite rates >= 0 between different nodes", found)
    codes = ends[0] * topology.num_nodes + ends[1]
    order = np.argsort(codes, kind="stable")
    if (np.diff(codes[order]) == 0).any():
        raise InputError(where, "", "each source and target once", "a pair twice")
    pairs = np.stack([ends[0][order], ends[1][order]], 1).astype(np.int32)
    values = np.ascontiguousarray(rates[:, order])
    return TrafficMatrices(
        name="frame" if where == "data frame" else where,
        pairs=pairs,
        timestamps=times.astype("datetime64[s]"),
        rates=ArrayRates(values),
        interval_s=usual_interval(times.astype("datetime64[s]")),
        key=content_key(values, pairs, times.astype("datetime64[s]")),
        origin=where,
    )


def _indices(
    source: AnyArray, target: AnyArray, topology: Topology, where: str
) -> list[Int64Array]:
    """(D,) indices of the sources, and of the targets; raises InputError for names that the network
    does not have.
    """
    index, ends = topology.node_index(), []
    for field, names in (("source", source), ("target", target)):
        text = [name if name in index else canonical_name(name) for name in map(str, names)]
        unknown = [name for name in dict.fromkeys(text) if name not in index]
        if unknown:
            found = ", ".join(map(repr, unknown[:10])) + did_you_mean(unknown[0], index)
            raise InputError(where, field, f"nodes of {topology.name}", found)
        ends.append(np.array([index[name] for name in text], dtype=np.int64))
    return ends


def _require_pairs(index: Any, where: str) -> None:
    if getattr(index, "nlevels", 1) != 2:
        raise InputError(
            where,
            "index",
            "pairs of names (source, target)",
            getattr(index, "name", None) or "others",
        )
