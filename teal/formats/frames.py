"""Networks and traffic from Python objects: networkx graphs, pandas frames and series, arrays,
dicts.

A graph has attributes ``capacity`` (Gbit/s) and optionally ``latency`` (ms) on edges, and
optionally ``pos`` or ``lon`` and ``lat`` on nodes.  Traffic, in Gbit/s:

- a frame with columns ``source``, ``target``, ``rate`` and optionally ``timestamp``, ``class`` and
  ``endpoint``, read as the tables of :mod:`teal.formats.tables`;
- a square frame, whose index and columns are node names: one matrix, a row per source unless its
  axes are named the other way round;
- a frame with times as index and pairs of names as columns (a MultiIndex);
- a series with pairs of names as index, or a dict ``{("a", "b"): 3.0}``: one matrix;
- an array (N, N) or (T, N, N) over the nodes in their order, or (T, N (N - 1)) over all ordered
  pairs; T matrices get artificial times, 300 s apart.

Entry points: :func:`topology_from_graph`, :func:`traffic_from_object`.
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

# Names of index levels and axes.
_SOURCES = ("source", "from")
_TARGETS = ("target", "to")
# Time of matrices without times.
_DEFAULT_TIMES = np.array(["2024-01-01T00:00:00"], dtype="datetime64[s]")
# Interval of matrices without times.
_DEFAULT_INTERVAL = np.timedelta64(300, "s")


def topology_from_graph(
    graph: Any, default_capacity: float | None, attributes: Attributes
) -> Topology:
    """Build the network of a networkx graph, directed or not, with or without parallel edges.

    Args:
        graph: the graph.
        default_capacity: Gbit/s of edges without capacity; None refuses them.
        attributes: names of the edge attributes.

    Raises:
        InputError: an error of :func:`teal.formats.records.topology_from_records`.
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
    traffic_object: Any, topology: Topology, class_order: Sequence[str] = (), unit: str = ""
) -> TrafficMatrices:
    """Build traffic matrices from a Python object; absent pairs of nodes have rate 0.

    Args:
        traffic_object: a pandas frame (table, square of nodes, or times by pairs), a series
            over pairs, a dict of pairs, or an array (N, N), (T, N, N) or (T, N (N - 1)); Gbit/s.
        topology: network with the node names.
        class_order: names in the column ``class`` of a table, the highest priority first; () orders
            them by number or by name.
        unit: unit by which the caller scales the rates afterwards, so that a unit in a heading is
            ignored; "" applies the unit in the heading.

    Raises:
        InputError: another kind of object or shape, a missing column, an unknown node, a rate that
            is negative or not a number, or a repeated pair.
    """
    # Tables, which may have classes.
    if hasattr(traffic_object, "columns") and hasattr(traffic_object, "index"):
        frame = _levels_to_columns(traffic_object)
        if is_table(frame):
            return read_frame(frame, topology, class_order, unit)
    if class_order:
        raise InputError.invalid(
            "--classes",
            "",
            f"the traffic has no classes, but {','.join(class_order)} orders classes",
            "give the fraction of each class as NAME=FRACTION",
        )
    # One matrix from a dict of pairs.
    if isinstance(traffic_object, Mapping):
        pairs = list(traffic_object)
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise InputError(
                "dict", "", 'pairs of names, such as {("a", "b"): 3.0}', repr(pairs[:1])
            )
        names = np.array(pairs, dtype=object).reshape(-1, 2)
        rates = _parse_rates(list(traffic_object.values()), "dict")[None]
        return _build_matrices(
            names[:, 0], names[:, 1], rates, _DEFAULT_TIMES[:1], topology, "dict"
        )
    # A frame without table columns, a series, or an array.
    if hasattr(traffic_object, "columns"):
        return _from_frame(traffic_object, topology)
    if hasattr(traffic_object, "index") and hasattr(traffic_object, "to_numpy"):
        _require_pairs(traffic_object.index, "series")
        sources, targets = _level_ends(traffic_object.index, "series")
        rates = _parse_rates(traffic_object.tolist(), "series")[None]
        return _build_matrices(sources, targets, rates, _DEFAULT_TIMES[:1], topology, "series")
    if isinstance(traffic_object, np.ndarray):
        return _from_array(traffic_object, topology)
    expected = "a file or name, a pandas frame or series, a dict of pairs, or an array"
    raise InputError("traffic", "", expected, type(traffic_object).__name__)


def _levels_to_columns(frame: Any) -> Any:
    """Turn the index levels of a pandas frame into columns if all are named like columns of a
    traffic table and the result has ``source`` and ``target``; else return the frame unchanged.
    """
    levels = [str(name).strip().lower() for name in getattr(frame.index, "names", [])]
    column_names = {*_SOURCES, *_TARGETS, "timestamp", "time", "class", "endpoint"}
    if getattr(frame.columns, "nlevels", 1) > 1 or not levels or not set(levels) <= column_names:
        return frame
    columns = {str(name).strip().lower() for name in frame.columns}
    # The table needs source and target, and no level may repeat the name of a column.
    has_ends = {"source", "target"} <= columns | set(levels)
    return frame.reset_index() if has_ends and not set(levels) & columns else frame


def _level_ends(index: Any, where: str) -> tuple[AnyArray, AnyArray]:
    """Return the source names and target names, (n,) each, of a MultiIndex with two levels.

    Levels named target and source are swapped; unnamed levels are source, target.

    Args:
        index: pandas index of n pairs.
        where: kind of object, for messages.

    Raises:
        InputError: names of the levels that contradict their order.
    """
    first_level, second_level = (str(name).strip().lower() for name in index.names)
    is_swapped = first_level in _TARGETS and second_level in _SOURCES
    if not is_swapped and (first_level in _TARGETS or second_level in _SOURCES):
        expected = "levels named source and target, or unnamed in the order source, target"
        raise InputError(where, "index", expected, f"{index.names[0]}, {index.names[1]}")
    order = (1, 0) if is_swapped else (0, 1)
    sources, targets = (index.get_level_values(level).to_numpy() for level in order)
    return sources, targets


def _parse_rates(values: Sequence[Any], where: str) -> FloatArray:
    """Parse n rates of any type into (n,) floats; NaN where a value is missing.

    Raises:
        InputError: a value that is not a number.
    """
    rates = np.empty(len(values))
    for index, value in enumerate(values):
        text = cell_text(value)
        try:
            rates[index] = float(text) if text else math.nan
        except ValueError:
            raise InputError(where, "rate", "a number (Gbit/s)", repr(value)[:80]) from None
    return rates


def _from_array(value: FloatArray, topology: Topology) -> TrafficMatrices:
    """Build matrices from an array (N, N), (T, N, N), or (T, N (N - 1)) over all ordered pairs of
    different nodes, by source, then target; Gbit/s.
    """
    num_nodes = topology.num_nodes
    if value.dtype.kind not in "iuf":
        raise InputError("array", "dtype", "real numbers", value.dtype)
    # (N (N - 1), 2) source and target of all pairs of different nodes.
    pairs = np.array(
        [
            (source, target)
            for source in range(num_nodes)
            for target in range(num_nodes)
            if source != target
        ]
    )
    # Convert the array to (T, N (N - 1)).
    array = value[None] if value.ndim == 2 and value.shape == (num_nodes, num_nodes) else value
    if array.ndim == 3 and array.shape[1:] == (num_nodes, num_nodes):
        _require_empty_diagonal(np.einsum("tnn->tn", array), "array")
        array = array[:, pairs[:, 0], pairs[:, 1]]
    if array.ndim != 2 or array.shape[1] != len(pairs):
        expected = f"({num_nodes}, {num_nodes}), (T, {num_nodes}, {num_nodes}) or (T, {len(pairs)})"
        raise InputError("array", "shape", expected, value.shape)
    names = np.array(topology.node_names, dtype=object)[pairs]
    times = _DEFAULT_TIMES[0] + _DEFAULT_INTERVAL * np.arange(len(array))
    return _build_matrices(
        names[:, 0], names[:, 1], array.astype(np.float64), times, topology, "array"
    )


def _require_empty_diagonal(rates: AnyArray, where: str) -> None:
    """Raise InputError if a node has demand to itself.

    Args:
        rates: Gbit/s of nodes to themselves, of any shape; NaN counts as 0.
        where: kind of object, for messages.
    """
    nonzero = rates[np.nan_to_num(rates) != 0]
    if len(nonzero):
        raise InputError.invalid(
            where,
            "rate",
            f"a node has a demand of {float(nonzero[0]):g} to itself",
            "set the diagonal to 0, as by numpy.fill_diagonal(matrix, 0)",
        )


def _from_frame(frame: Any, topology: Topology) -> TrafficMatrices:
    """Build matrices from a frame without table columns: a row per time and a column per pair of
    nodes, or a row and a column per node.
    """
    where = "data frame"
    # A row per time: the columns are pairs (a MultiIndex).
    columns = [cell_text(name) for name in frame.columns]
    if getattr(frame.columns, "nlevels", 1) == 2:
        sources, targets = _level_ends(frame.columns, where)
        times = _parse_times(frame.index.to_series(), where)
        return _build_matrices(
            sources, targets, _parse_rate_table(frame, where), times, topology, where
        )
    # A row and a column per node: some rows and columns have names of nodes.
    node_index = topology.node_index()
    rows = [cell_text(name) for name in frame.index]
    if set(rows) & set(node_index) and set(columns) & set(node_index):
        return _from_square(frame, rows, columns, topology)
    expected = (
        "columns source, target, rate (and timestamp), a square of nodes, or times by pairs of "
        "nodes"
    )
    raise InputError(where, "", expected, f"the columns {', '.join(columns[:10])}")


def _parse_rate_table(frame: Any, where: str) -> FloatArray:
    """Parse the cells of a pandas frame into an array of its shape; NaN where a value is
    missing.
    """
    columns = [
        _parse_rates(frame.iloc[:, column].tolist(), where) for column in range(frame.shape[1])
    ]
    return np.stack(columns, 1) if columns else np.zeros((len(frame), 0))


def _from_square(
    frame: Any, rows: list[str], columns: list[str], topology: Topology
) -> TrafficMatrices:
    """Build one matrix from a square frame over the nodes.

    Args:
        frame: rates, a row per source and a column per target, or vice versa if its axes are named
            so.
        rows: names of the nodes of the rows.
        columns: names of the nodes of the columns.
        topology: network with the node names.
    """
    where = "data frame"
    rates = _parse_rate_table(frame, where)
    # Transpose a frame whose rows are targets, by the names of its axes.
    row_axis = str(frame.index.name).strip().lower()
    column_axis = str(frame.columns.name).strip().lower()
    if row_axis in _TARGETS or column_axis in _SOURCES:
        rows, columns, rates = columns, rows, rates.T
        if row_axis in _SOURCES or column_axis in _TARGETS:
            expected = "axes named source and target, or unnamed in the order source, target"
            raise InputError(where, "axes", expected, f"{frame.index.name}, {frame.columns.name}")
    # Flatten to one entry per pair; drop self-loops, which must be empty.
    sources = np.repeat(np.array(rows, dtype=object), len(columns))
    targets = np.tile(np.array(columns, dtype=object), len(rows))
    pair_rates = rates.reshape(-1)
    _require_empty_diagonal(pair_rates[sources == targets], where)
    is_missing = np.isnan(pair_rates) & (sources != targets)
    if is_missing.any():
        warn(f"{where}: {int(is_missing.sum()):,} rates are missing and are read as 0")
    is_proper = sources != targets
    return _build_matrices(
        sources[is_proper],
        targets[is_proper],
        np.nan_to_num(pair_rates, nan=0.0, posinf=np.inf)[None, is_proper],
        _DEFAULT_TIMES[:1],
        topology,
        where,
    )


def _parse_times(column: Any, where: str) -> AnyArray:
    """Parse a pandas series of times, numbers or texts into (n,) times, rounded down to seconds.

    Raises:
        InputError: a time before 1990 or after 2100.
    """
    if column.dtype.kind == "M" or hasattr(column.dtype, "tz"):
        integers = naive_times(column).astype("datetime64[s]").astype(np.int64)
        seconds = seconds_of_numbers(integers, where, "timestamp")
    elif column.dtype.kind in "iuf":
        seconds = seconds_of_numbers(column.to_numpy(), where, "timestamp")
    else:
        seconds = seconds_of_texts(column.map(str), where, "timestamp")
    return np.floor(seconds).astype(np.int64).astype("datetime64[s]")


def _build_matrices(
    source_names: AnyArray,
    target_names: AnyArray,
    rates: FloatArray,
    times: AnyArray,
    topology: Topology,
    where: str,
) -> TrafficMatrices:
    """Build T matrices of D demands between named nodes, sorted by pair.

    Args:
        source_names: (D,) names of the sources.
        target_names: (D,) names of the targets.
        rates: (T, D) Gbit/s; NaN is an error.
        times: (T,) times of the matrices.
        topology: network with the node names.
        where: kind of object, for messages.

    Raises:
        InputError: an unknown node, a self-loop, a repeated pair, or a rate that is negative or not
            finite.
    """
    # Drop self-loops whose rates are all 0: pandas creates them when it groups by categories.
    is_empty = (np.nan_to_num(rates) == 0).all(0)
    is_loop = [str(a) == str(b) for a, b in zip(source_names, target_names, strict=True)]
    is_kept = ~(is_empty & np.array(is_loop, dtype=bool))
    source_names = source_names[is_kept]
    target_names = target_names[is_kept]
    rates = rates[:, is_kept]
    # Refuse rates that are negative or not finite, and other self-loops.
    node_indices = _node_indices(source_names, target_names, topology, where)
    is_invalid = ~(np.isfinite(rates) & (rates >= 0)).all(0) | (node_indices[0] == node_indices[1])
    if is_invalid.any():
        pair = int(np.flatnonzero(is_invalid)[0])
        remedy = (
            "omit absent pairs, as by groupby(..., observed=True)"
            if np.isnan(rates[:, pair]).any()
            else "use finite rates >= 0 between different nodes"
        )
        raise InputError.invalid(
            where,
            "rate",
            f"the rate from {source_names[pair]} to {target_names[pair]} is "
            f"{rates[:, pair].min():g}",
            remedy,
        )
    # Sort by source, then target.
    pair_codes = node_indices[0] * topology.num_nodes + node_indices[1]
    pair_order = np.argsort(pair_codes, kind="stable")
    if (np.diff(pair_codes[pair_order]) == 0).any():
        raise InputError.invalid(
            where, "", "two rates have the same source and target", "add them up"
        )
    # (D, 2) node indices and (T, D) rates in this order.
    pairs = np.stack([node_indices[0][pair_order], node_indices[1][pair_order]], 1).astype(np.int32)
    sorted_rates = np.ascontiguousarray(rates[:, pair_order])
    return TrafficMatrices(
        name="frame" if where == "data frame" else where,
        pairs=pairs,
        timestamps=times.astype("datetime64[s]"),
        rates=ArrayRates(sorted_rates),
        interval_s=usual_interval(times.astype("datetime64[s]")),
        key=content_key(sorted_rates, pairs, times.astype("datetime64[s]")),
        origin=where,
    )


def _node_indices(
    source_names: AnyArray, target_names: AnyArray, topology: Topology, where: str
) -> list[Int64Array]:
    """Return node indices (D,) of the sources and (D,) of the targets; raise InputError for unknown
    names.

    Args:
        source_names: (D,) names.
        target_names: (D,) names.
        topology: network with the node names.
        where: kind of object, for messages.
    """
    node_index = topology.node_index()
    ends = []
    for field, names in (("source", source_names), ("target", target_names)):
        texts = [
            name_or_key if isinstance(name_or_key, str) else cell_text(name_or_key)
            for name_or_key in names
        ]
        # Look up the name as it is, or else in canonical Unicode form.
        known_names = [name if name in node_index else canonical_name(name) for name in texts]
        unknown = [name for name in dict.fromkeys(known_names) if name not in node_index]
        if unknown:
            actual = ", ".join(map(repr, unknown[:10])) + did_you_mean(unknown[0], node_index)
            raise InputError(where, field, f"nodes of {topology.name}", actual)
        ends.append(np.array([node_index[name] for name in known_names], dtype=np.int64))
    return ends


def _require_pairs(index: Any, where: str) -> None:
    """Raise InputError unless an index of pandas has two levels: pairs of node names."""
    if getattr(index, "nlevels", 1) != 2:
        raise InputError.invalid(
            where,
            "index",
            "the index has no pairs of node names",
            "use a MultiIndex with the levels source and target",
        )
