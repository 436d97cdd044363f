"""Files of bandwidth functions (:mod:`teal.network.bandwidth_functions`): tables or JSON.

A table (.csv, .xlsx) has one point per row, with the columns ``rate`` (Gbit/s) or ``share`` (of the
demand), and ``value`` (per Gbit/s of demand for shares); the owner of the function is given by
``source`` and ``target``, or ``class``, or neither for a function of all demands.  Each function
starts at (0, 0) and is constant beyond its last point.

A .json file is a list,
``[{"source": "A", "target": "B", "points": [[2, 20], [10, 28]]}, {"class": "gold", ...}]``, with
``shares`` instead of ``points`` for shares of the demand.  Entry point:
:func:`read_bandwidth_functions`.
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
_OWNER_COLUMNS = ("source", "target", "class")
_COLUMNS = (
    Column("source", aliases=("from",)),
    Column("target", aliases=("to",)),
    Column("class"),
    Column("rate", Kind.RATE),
    Column("share", Kind.SHARE),
    Column("value", Kind.NUMBER, required=True),
)
# Owner of a function: names of source, target and class; "" matches any.
_Owner = tuple[str, str, str]


def read_bandwidth_functions(
    file: Path, topology: Topology, pairs: IntArray, classes: DemandClasses | None
) -> BandwidthFunctions:
    """Read the bandwidth functions of demands.

    The function of a demand is that of its nodes, else of its class, else of all demands.

    Args:
        file: .csv, .xlsx or .json.
        topology: network with the node names.
        pairs: (D, 2) source and target of each demand.
        classes: classes of the demands; None for none.

    Raises:
        InputError: another format, an unknown node or class, a function that is not concave, or a
            demand without a function.
    """
    if file.suffix.lower() not in _SUFFIXES:
        raise InputError(str(file), "functions", _EXPECTED, repr(file.name))
    if file.suffix.lower() in SUFFIXES:
        return _assign_functions(_table_points(file), str(file), topology, pairs, classes)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError.invalid(
            str(file), "functions", f"the file cannot be read: {error}", f"use {_EXPECTED}"
        ) from None
    return _assign_functions(_json_points(text, str(file)), str(file), topology, pairs, classes)


def bandwidth_functions_of(
    functions: Any,
    where: str,
    topology: Topology,
    pairs: IntArray,
    classes: DemandClasses | None = None,
) -> BandwidthFunctions:
    """Build the bandwidth functions of demands from parsed JSON.

    The function of a demand is that of its nodes, else of its class, else of all demands.

    Args:
        functions: list of objects with ``points`` or ``shares``, and optionally ``source`` and
            ``target``, or ``class``.
        where: file or option, for messages.
        topology: network with the node names.
        pairs: (D, 2) source and target of each demand.
        classes: classes of the demands; None for none.

    Raises:
        InputError: another format, an unknown node or class, a function that is not concave, or a
            demand without a function.
    """
    return _assign_functions(_object_points(functions, where), where, topology, pairs, classes)


def _assign_functions(
    rows: Iterator[tuple[str, _Owner, str, float, float]],
    file: str,
    topology: Topology,
    pairs: IntArray,
    classes: DemandClasses | None,
) -> BandwidthFunctions:
    """Assign a function to each demand: that of its nodes, else of its class, else of all demands.

    Args:
        rows: for each point of all functions: location for messages, owner (source, target,
            class), meaning of the next number (``rate``, Gbit/s, or ``share`` of the demand), that
            number, and the value.
        file: name of the file, for messages.
        topology: network with the node names.
        pairs: (D, 2) source and target of each demand.
        classes: classes of the demands; None for none.

    Raises:
        InputError: no points, or some by rate and others by share; an unknown node or class; a
            function that is not concave; a demand without a function.
    """
    # Group the points (rate, value) by owner.
    points: dict[_Owner, list[tuple[float, float]]] = {}
    first_location: dict[_Owner, str] = {}
    measures: set[str] = set()
    for where, owner, measure, rate, value in rows:
        _check_owner(where, owner, topology, classes)
        measures.add(measure)
        first_location.setdefault(owner, where)
        points.setdefault(owner, []).append((rate, value))
    if not points or len(measures) > 1:
        problem = (
            "some points are by rate, others by share of the demand"
            if measures
            else "the file has no points"
        )
        raise InputError.invalid(file, "functions", problem, "give points by rate, or by share")
    function_index = {owner: i for i, owner in enumerate(points)}
    # Validate each function here, so that an error names its line.
    for owner, owner_points in points.items():
        try:
            BandwidthFunctions.of_points([owner_points], [0])
        except InputError as error:
            raise error.relocated(first_location[owner], error.field) from None
    # Index of the function of each demand, (D,): the most specific owner that matches.
    class_names = (
        [""] * len(pairs) if classes is None else [classes.names[c] for c in classes.of_demand]
    )
    function_of_demand = np.empty(len(pairs), dtype=np.int64)
    for demand, ((source_node, target_node), class_name) in enumerate(
        zip(pairs.tolist(), class_names, strict=True)
    ):
        source = topology.node_names[source_node]
        target = topology.node_names[target_node]
        # Owners that match the demand, the most specific first.
        candidate_owners = (
            (source, target, class_name),
            (source, target, ""),
            ("", "", class_name),
            ("", "", ""),
        )
        # None if no owner matches the demand.
        index = next(
            (function_index[owner] for owner in candidate_owners if owner in function_index), None
        )
        if index is None:
            class_text = f" of class {class_name}" if class_name else ""
            raise InputError.invalid(
                file,
                "functions",
                f"no function for the demand from {source} to {target}{class_text}",
                "add one, or one for all demands (without source, target and class)",
            )
        function_of_demand[demand] = index
    return BandwidthFunctions.of_points(
        list(points.values()), function_of_demand, by_share=measures == {"share"}
    )


def _check_owner(
    where: str, owner: _Owner, topology: Topology, classes: DemandClasses | None
) -> None:
    """Raise InputError for an owner of a function with an unknown node or class, or with one node
    only.

    Args:
        where: location of the function, for messages.
        owner: names of the owner's source, target and class; "" for any.
        topology: network with the node names.
        classes: classes of the demands; None for none.
    """
    source, target, name = owner
    if bool(source) != bool(target):
        raise InputError.invalid(
            where,
            "source and target",
            f"only the {'source' if source else 'target'} is given, {source or target!r}",
            "give both, or neither",
        )
    for node in filter(None, (source, target)):
        if node not in topology.node_index():
            raise InputError(where, "source and target", f"nodes of {topology.name}", repr(node))
    if name and (classes is None or name not in classes.names):
        if classes is None:
            raise InputError.invalid(
                where, "class", f"the traffic has no classes, but the function is of {name!r}"
            )
        raise InputError(where, "class", f"one of {', '.join(classes.names)}", repr(name))


def _table_points(file: Path) -> Iterator[tuple[str, _Owner, str, float, float]]:
    """Yield the points of all functions in a table: location, owner (source, target, class),
    meaning of the first number (``rate``, Gbit/s, or ``share`` of the demand), that number, and the
    value.
    """
    rows = read_side_table(file, _COLUMNS)
    for row in rows:
        present = [name for name in ("rate", "share") if name in row.values]
        if len(present) != 1:
            expected = "rate or share, value; optional: source and target, or class"
            raise InputError(str(file), "columns", expected, ", ".join(row.values))
        # Any numbers are accepted here; they are validated with the whole function.
        source, target, name = map(row.text, _OWNER_COLUMNS)
        measure = present[0]
        point = row.number(measure, minimum=-math.inf), row.number("value", minimum=-math.inf)
        yield row.where, (source, target, name), measure, *point


def _json_points(text: str, file: str) -> Iterator[tuple[str, _Owner, str, float, float]]:
    """Yield the points of all functions in JSON text: location, owner (source, target, class),
    meaning of the first number (``rate``, Gbit/s, or ``share`` of the demand), that number, and the
    value.
    """
    try:
        functions = parsed_json(text)
    except ValueError as error:
        raise InputError.invalid(
            file, "functions", f"the file is not valid JSON: {error}"
        ) from None
    yield from _object_points(functions, file)


def _object_points(functions: Any, file: str) -> Iterator[tuple[str, _Owner, str, float, float]]:
    """Yield the points of all functions in parsed JSON: location, owner (source, target, class),
    meaning of the first number (``rate``, Gbit/s, or ``share`` of the demand), that number, and the
    value.
    """
    if not isinstance(functions, list) or not all(
        isinstance(function, dict) for function in functions
    ):
        raise InputError(file, "functions", "a list of objects", type(functions).__name__)
    for index, function in enumerate(functions):
        where = f"{file}, function {index}"
        source, target, class_name = (str(function.get(field, "")) for field in _OWNER_COLUMNS)
        # Points by share of the demand, or by rate.
        measure, points = (
            ("share", function["shares"])
            if "shares" in function
            else ("rate", function.get("points"))
        )
        if not isinstance(points, list) or not all(
            isinstance(point, list) and len(point) == 2 for point in points
        ):
            raise InputError(where, "points", "a list of [rate, value]", repr(points)[:80])
        for rate, value in points:
            yield (
                where,
                (source, target, class_name),
                measure,
                _number(rate, where, measure),
                _number(value, where, "value"),
            )


def _number(value: Any, where: str, field: str) -> float:
    """Parse a number from JSON; raise InputError, naming ``where`` and ``field``, for anything
    else.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(where, field, "a number", repr(value)) from None
