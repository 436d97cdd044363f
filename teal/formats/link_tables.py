"""Links as a table, CSV or Excel: a row for each cable, or for each direction of one.

Columns ``source``, ``target``, ``capacity``, and perhaps ``latency`` (or ``delay``, ms),
``metric``, ``metric_back`` (that of the other direction, for a row a circuit; also ``metric_az``
and ``metric_za``), ``te_metric``, ``cost`` (of a Gbit/s), ``affinity`` (names of administrative
groups, ``red;core``), ``members`` (links of an aggregation group, whose capacities add up),
``status``, ``up`` and the like (a link with any sign of being down is out of service),
``overload`` (``yes``: the IGP does not use the link, as one of the largest metric) and ``one_way``
(``yes``: the row is one direction, whatever the others are).  How names of columns, units and
decimal commas are read says :mod:`teal.formats.cells`; other names can be given.
A cell may name its unit: 100G, 10 Gbit/s, 400GE, 2x100G, 3.5ms, 800us.

If for most rows there is one in the other direction, rows are directions; otherwise cables.  Rows
that do not follow the others, identical rows, names that look alike and capacities far from the
others are named in warnings.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

from teal.errors import WARNING, InputError, listed
from teal.formats.cells import CellTable, cells_of_frame, heading, place_of, read_cells
from teal.formats.records import (
    OVERLOAD_NAMES,
    Attributes,
    LinkRecord,
    affinities_of,
    is_state_name,
    is_true,
    number,
    out_of_service,
    topology_from_records,
    unknown_status,
)
from teal.formats.units import gbps_per_unit, ms_per_unit
from teal.network import Topology

SUFFIXES = (".csv", ".tsv", ".xlsx")
ATTRIBUTES = (
    "capacity",
    "latency",
    "source",
    "target",
    "metric",
    "metric_back",
    "te_metric",
    "cost",
    "affinity",
    "members",
    "status",
    "capacity_unit",
)
_OTHER_NAMES = {
    "latency": ("delay",),
    "capacity": ("bandwidth",),
    "source": ("from",),
    "target": ("to",),
    "metric": ("metric_az",),
    "metric_back": ("metric_za", "reverse_metric"),
    "affinity": ("affinities",),
    "overload": OVERLOAD_NAMES[1:],
}
_COLUMNS = (
    "source",
    "target",
    "capacity",
    "latency",
    "metric",
    "metric_back",
    "te_metric",
    "cost",
    "affinity",
    "members",
    "overload",
    "one_way",
)
_NUMERIC = ("capacity", "latency", "metric", "metric_back", "te_metric", "cost", "members")
_COUNTED = re.compile(
    r"(?:(\d+)\s*x\s*)?([0-9.]+(?:e[+-]?\d+)?)\s*([a-zA-Z][a-zA-Z0-9/-]*)?", re.IGNORECASE
)
_GLYPHS = str.maketrans("0o1I|", "OOlll")  # characters that look alike
_FAR = 1000.0  # times the median of the capacities: a capacity as far from it may have another unit
_MOST_GBPS = 10_000.0  # of a usual link; medians above it are more often Mbit/s or bit/s


def read_link_table(path: Path, default_capacity: float | None, attributes: Attributes) -> Topology:
    """Read a network.

    Args:
        path: path of a .csv, .tsv or .xlsx file.
        default_capacity: Gbit/s of links that have none; None to refuse them.
        attributes: names of the columns, and of the sheet of a workbook.

    Raises:
        InputError: a column missing, a cell that is no number with a unit, or what
            :func:`topology_from_records` refuses.
    """

    def is_header(row: list[str]) -> bool:
        return (
            _place_of("source", row, attributes) is not None
            and _place_of("target", row, attributes) is not None
        )

    return _from_cells(
        path.stem, read_cells(path, is_header, attributes.inside), default_capacity, attributes
    )


def topology_from_link_frame(
    frame: Any, default_capacity: float | None, attributes: Attributes
) -> Topology:
    """The network of a pandas frame with the columns of a table; arguments and errors as in
    :func:`read_link_table`.
    """
    table = cells_of_frame(frame, "data frame")
    return _from_cells("frame", table, default_capacity, attributes)


def _from_cells(
    name: str, table: CellTable, default_capacity: float | None, attributes: Attributes
) -> Topology:
    """The network of a table's rows.

    Raises:
        InputError: no row, a cell that cannot be read, or what :func:`topology_from_records`
            refuses.
    """
    where, header = table.where, table.header
    columns = _columns(table, attributes)
    cells = {
        column: table.numbers(place) if column in _NUMERIC else table.texts(place)
        for column, place in columns.items()
    }
    units = {
        column: heading(header[columns[column]])[1] if column in columns else ""
        for column in _NUMERIC
    }
    if attributes.capacity_unit:
        units["capacity"] = attributes.capacity_unit
    states = {
        text: table.texts(place)
        for place, text in enumerate(header)
        if is_state_name(text, attributes.status)
    }
    unknown_states: list[object] = []
    records = list[LinkRecord]()
    declared_one_way = list[LinkRecord]()  # rows whose column one_way says so
    nodes = dict[str, tuple[float, float] | None]()
    first_row = dict[tuple[str, ...], str]()
    identical = list[str]()
    for row, (line, texts) in enumerate(table.rows):
        cell = {column: values[row].strip() for column, values in cells.items()}
        if not any(cell.values()):
            continue
        field = f"{table.row_word} {line}"
        before = first_row.setdefault(tuple(texts), field)
        if before != field:
            identical.append(f"{field} and {before}")
        is_single = is_true(cell.get("one_way"), where, f"{field}: one_way")
        kind = declared_one_way if is_single else records
        state = {name: texts_of[row] for name, texts_of in states.items()}
        has_failed, unknown = out_of_service(state, attributes.status)
        unknown_states += unknown
        kind.append(_record(cell, units, where, field, tuple(header), has_failed))
        nodes.setdefault(cell["source"])
        nodes.setdefault(cell["target"])
    if not records and not declared_one_way:
        raise InputError(where, "", "a row for each link", "none")
    unpaired = _rows_of_one_direction(records)
    # A row is one direction of a link where most rows have a partner in the other one.
    between_nodes = sum(one.source != one.target for one in records)
    is_directed = 2 * len(unpaired) < between_nodes or not records
    if is_directed and "metric_back" in columns:
        expected = "a row for each circuit, since there is a metric of the other direction"
        raise InputError(
            where, header[columns["metric_back"]], expected, "a row for each direction"
        )
    unused = [
        text
        for place, text in enumerate(header)
        if text.strip() and place not in columns.values() and text not in states
    ]
    notes = [f"Columns that are not used: {', '.join(unused)}."] if unused else []
    notes.append(
        f"A row is {'one direction of a link' if is_directed else 'a cable with both directions'}."
    )
    for text, found in (
        (
            "rows without one in the other direction, unlike most, read as links of one direction",
            unpaired if is_directed else [],
        ),
        ("identical rows, read as parallel links", identical),
        ("names that look alike, of different nodes", alike(list(nodes))),
        *_doubtful_capacities(records),
    ):
        if found:
            notes.append(f"{WARNING}{where}: {text}: {listed(found)}.")
    notes += unknown_status(where, unknown_states)
    if declared_one_way and not is_directed:
        records += [_back(one) for one in records]
        is_directed = True
    return topology_from_records(
        name,
        where,
        nodes,
        records + declared_one_way,
        directed=is_directed,
        default_capacity=default_capacity,
        notes=tuple(notes),
    )


def _back(one: LinkRecord) -> LinkRecord:
    """The other direction of a cable."""
    metric = one.metric if one.metric_back is None else one.metric_back
    return dataclasses.replace(
        one, source=one.target, target=one.source, metric=metric, metric_back=None
    )


def _record(
    cell: dict[str, str],
    units: dict[str, str],
    where: str,
    field: str,
    header: tuple[str, ...],
    has_failed: bool,
) -> LinkRecord:
    """The link of a row."""
    for end in ("source", "target"):
        if not cell[end]:
            raise InputError(where, f"{field}: {end}", "a name of a node", "an empty cell")

    def value(column: str) -> float | None:
        return number(cell[column], where, f"{field}: {column}") if cell.get(column) else None

    capacity = gbps(cell.get("capacity", ""), units["capacity"], where, f"{field}: capacity")
    members = value("members")
    if capacity is not None and members is not None:
        capacity *= members
    is_overloaded = is_true(cell.get("overload"), where, f"{field}: overload")
    return LinkRecord(
        cell["source"],
        cell["target"],
        capacity,
        milliseconds(cell.get("latency", ""), units["latency"], where, f"{field}: latency"),
        field,
        header,
        value("metric"),
        has_failed or is_overloaded,
        metric_back=value("metric_back"),
        te_metric=value("te_metric"),
        affinities=affinities_of(cell.get("affinity"), where, f"{field}: affinity"),
        cost=value("cost"),
    )


def _rows_of_one_direction(records: list[LinkRecord]) -> list[str]:
    """The rows without a partner in the other direction: each has one as long as one is left."""
    between = [one for one in records if one.source != one.target]
    left = Counter((one.target, one.source) for one in between)
    alone = list[str]()
    for one in between:
        left[one.source, one.target] -= 1
        if left[one.source, one.target] < 0:
            alone.append(f"{one.field} ({one.source} -> {one.target})")
    return alone


def _doubtful_capacities(records: list[LinkRecord]) -> list[tuple[str, list[str]]]:
    """Warnings about capacities whose unit may be another one, and the rows that each is about."""
    known = [one for one in records if one.capacity]
    if not known:
        return []
    median = statistics.median(float(one.capacity or 0.0) for one in known)
    far = [
        f"{one.field} ({one.capacity:g})"
        for one in known
        if not median / _FAR < float(one.capacity or 0.0) < median * _FAR
    ]
    warnings = [(f"capacities {_FAR:g} times off their median, {median:g} Gbit/s", far)]
    if median > _MOST_GBPS:
        advice = "if they are in another unit, --attributes capacity_unit=bit/s or Mbit/s says so"
        warnings.append(
            (f"capacities of {median:g} Gbit/s in the median; {advice}", [known[0].field])
        )
    return warnings


def alike(names: list[str]) -> list[str]:
    """Pairs of names that differ by case, accents or separators, or by 0 and O, or 1, I and l."""
    found, plain = dict[tuple[str, str], None](), list[str]()
    for name in names:
        letters = "".join(
            c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c)
        )
        plain.append(re.sub(r"[\s_.-]+", "-", letters).strip("-"))
    for keys in ([name.casefold() for name in plain], [name.translate(_GLYPHS) for name in plain]):
        first = dict[str, str]()
        for name, key in zip(names, keys, strict=True):
            if (before := first.setdefault(key, name)) != name:
                found[before, name] = None
    return [f"{a!r} and {b!r}" for a, b in found]


def gbps(text: str, unit: str, where: str, field: str) -> float | None:
    """Gbit/s of a cell such as 100G, 2x100G, 10 Gbit/s or 40; None for an empty one.

    Args:
        text: text of the cell, with its number as Python writes numbers.
        unit: unit of cells without one; "" for Gbit/s.
        where: the file, for messages.
        field: the cell, for messages.

    Raises:
        InputError: any other text.
    """
    if not text:
        return None
    match = _COUNTED.fullmatch(text.strip())
    if not match:
        raise InputError(where, field, "a capacity such as 100G, 10 Gbit/s or 2x100G", repr(text))
    members, value, own = match.groups()
    factor = gbps_per_unit(own or unit or "Gbit/s", f"{where}: {field}")
    return int(members or 1) * number(value, where, field) * factor


def milliseconds(text: str, unit: str, where: str, field: str) -> float | None:
    """Milliseconds of a cell such as 3.5, 3.5ms or 800us; None for an empty one; arguments and
    errors as for :func:`gbps`.
    """
    if not text:
        return None
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?\d+)?)\s*([a-zA-Zµμ]*)", text)
    if not match:
        raise InputError(where, field, "a delay such as 3.5, 3.5ms or 800us", repr(text))
    return number(match[1], where, field) * ms_per_unit(match[2] or unit, where, field)


def _columns(table: CellTable, attributes: Attributes) -> dict[str, int]:
    """Place of each column that is used."""
    columns = {}
    for name in _COLUMNS:
        asked = getattr(attributes, name, name)
        place = _place_of(name, table.header, attributes)
        if place is not None:
            columns[name] = place
            _require_once(table, place)
        elif name in ("source", "target") or asked != name:
            raise InputError(table.where, asked, f"a column {asked}", table.columns_text)
    status = attributes.status
    if status != "status" and not any(is_state_name(text, status) for text in table.header):
        raise InputError(table.where, status, f"a column {status}", table.columns_text)
    return columns


def _require_once(table: CellTable, place: int) -> None:
    """Raise InputError where another column has the name of this one."""
    name = heading(table.header[place])[0]
    same = [text for text in table.header if heading(text)[0] == name]
    if len(same) > 1:
        raise InputError(table.where, name, "this column once", ", ".join(map(repr, same)))


def _place_of(name: str, header: list[str], attributes: Attributes) -> int | None:
    """Place of the column of an attribute, by the name that was given for it or one of its usual
    names.
    """
    asked = getattr(attributes, name, name)
    usual = _OTHER_NAMES.get(name, ()) if asked == name else ()
    places = (place_of(option, header) for option in (asked, *usual))
    return next((place for place in places if place is not None), None)
