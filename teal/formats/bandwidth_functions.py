"""Files of bandwidth functions (:mod:`teal.network.bandwidth_functions`): a point a row, or a
function an object.

A table (.csv, .xlsx) has the columns ``rate`` (Gbit/s), or ``share`` (of the demand), and
``value``, which for shares is for each Gbit/s of demand; and to say whose function it is ``source``
and ``target``, or ``class``, or neither for a function of all demands.  Each function begins at
(0, 0) and stays at the value of its last point.

A .json file is a list,
``[{"source": "A", "target": "B", "points": [[2, 20], [10, 28]]}, {"class": "gold", ...}]``, with
``shares`` in the place of ``points`` for shares of the demand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import InputError
from teal.formats.side_tables import SUFFIXES, Column, Kind, read_side_table
from teal.network import DemandClasses, Topology
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.runtime.arrays import IntArray
from teal.runtime.storage import parsed_json

_EXPECTED = "a table (.csv, .xlsx) or a .json file"
_SUFFIXES = (*SUFFIXES, ".json")
_NAMES = ("source", "target", "class")
_COLUMNS = (
    Column("source", aliases=("from",)),
    Column("target", aliases=("to",)),
    Column("class"),
    Column("rate", Kind.RATE),
    Column("share", Kind.SHARE),
    Column("value", Kind.NUMBER, required=True),
)
_Key = tuple[str, str, str]  # source, target and class; "" for any


def read_bandwidth_functions(
    file: Path, topology: Topology, pairs: IntArray, classes: DemandClasses | None
) -> BandwidthFunctions:
    """The functions of demands.

    A demand has the function of its nodes, else that of its class, else that of all demands.

    Args:
        file: .csv, .xlsx or .json.
        topology: gives the names of nodes.
        pairs: (D, 2) source and target of each demand.
        classes: classes of the demands; None for none.

    Raises:
        InputError: another format, an unknown node or class, a function that is not concave, a
            demand without one.
    """
    if file.suffix.lower() not in _SUFFIXES:
        raise InputError(str(file), "functions", _EXPECTED, repr(file.name))
    if file.suffix.lower() in SUFFIXES:
        return _of_points(_of_table(file), str(file), topology, pairs, classes)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(str(file), "functions", _EXPECTED, error) from None
    return _of_points(_of_json(text, str(file)), str(file), topology, pairs, classes)


def bandwidth_functions_of(
    functions: Any,
    where: str,
    topology: Topology,
    pairs: IntArray,
    classes: DemandClasses | None = None,
) -> BandwidthFunctions:
    """The functions of demands from what a JSON file has; see :func:`read_bandwidth_functions`.

    Args:
        functions: list of objects.
        where: file or option that messages name.
        topology, pairs, classes: network and demands that the functions belong to.
    """
    return _of_points(_of_objects(functions, where), where, topology, pairs, classes)


def _of_points(
    rows: Iterator[tuple[str, _Key, str, float, float]],
    file: str,
    topology: Topology,
    pairs: IntArray,
    classes: DemandClasses | None,
) -> BandwidthFunctions:
    """The function of each demand from place, owner, kind, rate and value of each point."""
    points: dict[_Key, list[tuple[float, float]]] = {}
    first: dict[_Key, str] = {}
    kinds: set[str] = set()
    for where, key, kind, rate, value in rows:
        _check_names(where, key, topology, classes)
        kinds.add(kind)
        first.setdefault(key, where)
        points.setdefault(key, []).append((rate, value))
    if not points or len(kinds) > 1:
        raise InputError(
            file, "functions", "points by rate, or points by share", "both" if kinds else "none"
        )
    number = {key: i for i, key in enumerate(points)}
    for key, of_key in points.items():  # so that a fault is told with its line
        try:
            BandwidthFunctions.of_points([of_key], [0])
        except InputError as error:
            raise InputError(first[key], error.field, error.expected, error.actual) from None
    names = [""] * len(pairs) if classes is None else [classes.names[c] for c in classes.of_demand]
    of_demand = np.empty(len(pairs), dtype=np.int64)
    for d, ((s, t), name) in enumerate(zip(pairs.tolist(), names, strict=True)):
        source, target = topology.node_names[s], topology.node_names[t]
        keys = ((source, target, name), (source, target, ""), ("", "", name), ("", "", ""))
        found = next((number[key] for key in keys if key in number), None)
        if found is None:
            of_class = f" of class {name}" if name else ""
            raise InputError(file, "functions", f"one for {source} to {target}{of_class}", "none")
        of_demand[d] = found
    return BandwidthFunctions.of_points(
        list(points.values()), of_demand, by_share=kinds == {"share"}
    )


def _check_names(where: str, key: _Key, topology: Topology, classes: DemandClasses | None) -> None:
    """Raise InputError for a name that network and traffic do not have."""
    source, target, name = key
    if bool(source) != bool(target):
        raise InputError(where, "source and target", "both or neither", source or target)
    for node in filter(None, (source, target)):
        if node not in topology.node_index():
            raise InputError(where, "source and target", f"nodes of {topology.name}", repr(node))
    if name and (classes is None or name not in classes.names):
        raise InputError(
            where, "class", "none" if classes is None else ", ".join(classes.names), repr(name)
        )


def _of_table(file: Path) -> Iterator[tuple[str, _Key, str, float, float]]:
    """Place, owner, kind, rate and value of each point."""
    rows = read_side_table(file, _COLUMNS)
    for row in rows:
        given = [name for name in ("rate", "share") if name in row.values]
        if len(given) != 1:
            expected = "rate or share, value, and perhaps source and target, or class"
            raise InputError(str(file), "columns", expected, ", ".join(row.values))
        source, target, name = map(row.text, _NAMES)
        kind = given[0]
        point = row.number(kind, least=-math.inf), row.number("value", least=-math.inf)
        yield row.where, (source, target, name), kind, *point


def _of_json(text: str, file: str) -> Iterator[tuple[str, _Key, str, float, float]]:
    """Place, owner, kind, rate and value of each point."""
    try:
        functions = parsed_json(text)
    except ValueError as error:
        raise InputError(file, "functions", "JSON", error) from None
    yield from _of_objects(functions, file)


def _of_objects(functions: Any, file: str) -> Iterator[tuple[str, _Key, str, float, float]]:
    """Place, owner, kind, rate and value of each point."""
    if not isinstance(functions, list) or not all(isinstance(one, dict) for one in functions):
        raise InputError(file, "functions", "a list of objects", type(functions).__name__)
    for number, one in enumerate(functions):
        where = f"{file}, function {number}"
        source, target, name = (str(one.get(field, "")) for field in _NAMES)
        kind, points = ("share", one["shares"]) if "shares" in one else ("rate", one.get("points"))
        if not isinstance(points, list) or not all(
            isinstance(point, list) and len(point) == 2 for point in points
        ):
            raise InputError(where, "points", "a list of [rate, value]", repr(points)[:80])
        for rate, value in points:
            yield (
                where,
                (source, target, name),
                kind,
                _number(rate, where, kind),
                _number(value, where, "value"),
            )


def _number(value: Any, where: str, field: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(where, field, "a number", repr(value)) from None
