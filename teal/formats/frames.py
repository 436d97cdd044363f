"""Networks and traffic that are objects already: graphs of networkx, frames and series of pandas,
arrays, dicts.

A graph has attributes ``capacity`` (Gbit/s), perhaps ``latency`` (ms) on edges, and perhaps ``pos``
or ``lon`` and ``lat`` on nodes.  Traffic, in Gbit/s:

- a frame with columns ``source``, ``target``, ``rate`` and perhaps ``timestamp``, ``class`` and
  ``endpoint``, read as the tables of :mod:`teal.formats.tables`;
- a square frame, whose index and columns are names of nodes: one matrix, a row a source unless its
  axes are named the other way round;
- a frame whose index are times and whose columns are pairs of names (a MultiIndex);
- a series whose index are pairs of names, or a dict ``{("a", "b"): 3.0}``: one matrix;
- an array (N, N) or (T, N, N) over the nodes in their order, or (T, N (N - 1)) over all ordered
  pairs; T matrices have invented times, 300 s apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from teal.errors import InputError, did_you_mean
from teal.formats.cells import cell_text
from teal.formats.node_link import topology_from_node_link
from teal.formats.records import Attributes
from teal.formats.side_tables import warn
from teal.formats.tables import is_table, read_frame
from teal.formats.times import naive_times, seconds_of_numbers, seconds_of_texts
from teal.network import Topology, TrafficMatrices
from teal.network.rates import ArrayRates
from teal.network.topology import canonical_name
from teal.network.traffic import usual_interval
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.storage import content_key

_SOURCES, _TARGETS = ("source", "from"), ("target", "to")  # names of levels and axes
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
    nodes = [{**data, "id": node} for node, data in graph.nodes(data=True)]
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


def traffic_from_object(
    value: Any, topology: Topology, class_order: Sequence[str] = (), unit: str = ""
) -> TrafficMatrices:
    """The matrices of an object; a pair that it does not name has rate 0.

    Args:
        value: see the module.
        topology: network whose nodes the object names.
        class_order: names in the column ``class`` of a table, the highest priority first; () for
            the default.
        unit: unit by which the caller multiplies the rates, in the place of one in a heading; ""
            for none.

    Raises:
        InputError: another kind of object or shape, a column missing, an unknown node, a rate that
            is negative or no number, a pair twice.
    """
    if hasattr(value, "columns") and hasattr(value, "index"):
        frame = _with_named_levels(value)
        if is_table(frame):
            return read_frame(frame, topology, class_order, unit)
    if class_order:
        expected = "shares, for traffic that has no classes"
        raise InputError("--classes", "", expected, ",".join(class_order))
    if isinstance(value, Mapping):
        pairs = list(value)
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise InputError(
                "dict", "", 'pairs of names, such as {("a", "b"): 3.0}', repr(pairs[:1])
            )
        names = np.array(pairs, dtype=object).reshape(-1, 2)
        rates = _numbers(list(value.values()), "dict")[None]
        return _matrices(names[:, 0], names[:, 1], rates, _TIMES[:1], topology, "dict")
    if hasattr(value, "columns"):
        return _from_frame(value, topology)
    if hasattr(value, "index") and hasattr(value, "to_numpy"):
        _require_pairs(value.index, "series")
        a, b = _ends_of_levels(value.index, "series")
        rates = _numbers(value.tolist(), "series")[None]
        return _matrices(a, b, rates, _TIMES[:1], topology, "series")
    if isinstance(value, np.ndarray):
        return _from_array(value, topology)
    expected = "a file or name, a pandas frame or series, a dict of pairs, or an array"
    raise InputError("traffic", "", expected, type(value).__name__)


def _with_named_levels(frame: Any) -> Any:
    """The frame, with levels of its index that are called as columns of a table as columns."""
    levels = [str(name).strip().lower() for name in getattr(frame.index, "names", [])]
    known = {*_SOURCES, *_TARGETS, "timestamp", "time", "class", "endpoint"}
    if getattr(frame.columns, "nlevels", 1) > 1 or not levels or not set(levels) <= known:
        return frame
    columns = {str(name).strip().lower() for name in frame.columns}
    has_ends = {"source", "target"} <= columns | set(levels)
    return frame.reset_index() if has_ends and not set(levels) & columns else frame


def _ends_of_levels(index: Any, where: str) -> tuple[AnyArray, AnyArray]:
    """Sources and targets of a MultiIndex: by the names of its levels, else in their order.

    Raises:
        InputError: names that say something else.
    """
    first, second = (str(name).strip().lower() for name in index.names)
    is_swapped = first in _TARGETS and second in _SOURCES
    if not is_swapped and (first in _TARGETS or second in _SOURCES):
        expected = "levels named source and target, or without names in this order"
        raise InputError(where, "index", expected, f"{index.names[0]}, {index.names[1]}")
    order = (1, 0) if is_swapped else (0, 1)
    a, b = (index.get_level_values(level).to_numpy() for level in order)
    return a, b


def _numbers(values: Sequence[Any], where: str) -> FloatArray:
    """Rates as numbers; NaN where a value is missing.

    Raises:
        InputError: a value that is no number.
    """
    rates = np.empty(len(values))
    for place, value in enumerate(values):
        text = cell_text(value)
        try:
            rates[place] = float(text) if text else math.nan
        except ValueError:
            raise InputError(where, "rate", "numbers (Gbit/s)", repr(value)[:80]) from None
    return rates


def _from_array(value: FloatArray, topology: Topology) -> TrafficMatrices:
    nodes = topology.num_nodes
    if value.dtype.kind not in "iuf":
        raise InputError("array", "dtype", "real numbers", value.dtype)
    ends = np.array([(a, b) for a in range(nodes) for b in range(nodes) if a != b])
    array = value[None] if value.ndim == 2 and value.shape == (nodes, nodes) else value
    if array.ndim == 3 and array.shape[1:] == (nodes, nodes):
        _require_empty_diagonal(np.einsum("tnn->tn", array), "array")
        array = array[:, ends[:, 0], ends[:, 1]]
    if array.ndim != 2 or array.shape[1] != len(ends):
        expected = f"({nodes}, {nodes}), (T, {nodes}, {nodes}) or (T, {len(ends)}) rates"
        raise InputError("array", "shape", expected, value.shape)
    names = np.array(topology.node_names, dtype=object)[ends]
    times = _TIMES[0] + _USUAL_INTERVAL * np.arange(len(array))
    return _matrices(names[:, 0], names[:, 1], array.astype(np.float64), times, topology, "array")


def _require_empty_diagonal(rates: AnyArray, where: str) -> None:
    """Raise InputError for demand from a node to itself."""
    own = rates[np.nan_to_num(rates) != 0]
    if len(own):
        expected = (
            "0 from a node to itself (numpy.fill_diagonal(matrix, 0) leaves such traffic out)"
        )
        raise InputError(where, "rate", expected, float(own[0]))


def _from_frame(frame: Any, topology: Topology) -> TrafficMatrices:
    where, columns = "data frame", [cell_text(name) for name in frame.columns]
    if getattr(frame.columns, "nlevels", 1) == 2:
        a, b = _ends_of_levels(frame.columns, where)
        times = _moments(frame.index.to_series(), where)
        return _matrices(a, b, _table_of_numbers(frame, where), times, topology, where)
    index = topology.node_index()
    rows = [cell_text(name) for name in frame.index]
    if set(rows) & set(index) and set(columns) & set(index):
        return _from_square(frame, rows, columns, topology)
    expected = "columns source, target, rate (and timestamp), a square of nodes, or times and pairs"
    raise InputError(where, "", expected, ", ".join(columns[:10]))


def _table_of_numbers(frame: Any, where: str) -> FloatArray:
    """(rows, columns) of a frame as numbers; NaN where a value is missing."""
    columns = [_numbers(frame.iloc[:, place].tolist(), where) for place in range(frame.shape[1])]
    return np.stack(columns, 1) if columns else np.zeros((len(frame), 0))


def _from_square(
    frame: Any, rows: list[str], columns: list[str], topology: Topology
) -> TrafficMatrices:
    """One matrix of a frame with a row a source and a column a target, or the other way round where
    its axes are named so.
    """
    where = "data frame"
    rates = _table_of_numbers(frame, where)
    of_rows = str(frame.index.name).strip().lower()
    of_columns = str(frame.columns.name).strip().lower()
    if of_rows in _TARGETS or of_columns in _SOURCES:
        rows, columns, rates = columns, rows, rates.T
        if of_rows in _SOURCES or of_columns in _TARGETS:
            expected = "axes named source and target, or without names in this order"
            raise InputError(where, "axes", expected, f"{frame.index.name}, {frame.columns.name}")
    a = np.repeat(np.array(rows, dtype=object), len(columns))
    b = np.tile(np.array(columns, dtype=object), len(rows))
    flat = rates.reshape(-1)
    _require_empty_diagonal(flat[a == b], where)
    missing = np.isnan(flat) & (a != b)
    if missing.any():
        warn(f"{where}: {int(missing.sum()):,} rates are missing and count as 0")
    kept = a != b
    return _matrices(
        a[kept],
        b[kept],
        np.nan_to_num(flat, nan=0.0, posinf=np.inf)[None, kept],
        _TIMES[:1],
        topology,
        where,
    )


def _moments(column: Any, where: str) -> AnyArray:
    """(n,) times of a pandas series of times, numbers or texts.

    Raises:
        InputError: a time before 1990 or after 2100.
    """
    if column.dtype.kind == "M" or hasattr(column.dtype, "tz"):
        whole = naive_times(column).astype("datetime64[s]").astype(np.int64)
        seconds = seconds_of_numbers(whole, where, "timestamp")
    elif column.dtype.kind in "iuf":
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
    # Grouping by categories makes pairs of a node with itself, which have no rate.
    is_empty = (np.nan_to_num(rates) == 0).all(0)
    ends_at_itself = [str(a) == str(b) for a, b in zip(source, target, strict=True)]
    kept = ~(is_empty & np.array(ends_at_itself, dtype=bool))
    source, target, rates = source[kept], target[kept], rates[:, kept]
    ends = _indices(source, target, topology, where)
    bad = ~(np.isfinite(rates) & (rates >= 0)).all(0) | (ends[0] == ends[1])
    if bad.any():
        pair = int(np.flatnonzero(bad)[0])
        found = f"{rates[:, pair].min():g} from {source[pair]} to {target[pair]}"
        expected = "finite rates >= 0 between different nodes"
        if np.isnan(rates[:, pair]).any():
            expected += " (groupby(..., observed=True) leaves out pairs that do not occur)"
        raise InputError(where, "rate", expected, found)
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
        plain = [one if isinstance(one, str) else cell_text(one) for one in names]
        text = [name if name in index else canonical_name(name) for name in plain]
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
