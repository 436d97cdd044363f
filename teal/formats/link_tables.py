"""Reader of networks as tables of links, CSV or Excel: a row per cable, or per direction.

Columns ``source``, ``target``, ``capacity``, and optionally ``latency`` (or ``delay``, ms),
``metric``, ``metric_back`` (of the reverse direction, for a row per circuit; also ``metric_az`` and
``metric_za``), ``te_metric``, ``cost`` (of a Gbit/s), ``affinity`` (names of administrative groups,
``red;core``), ``members`` (links of an aggregation group, whose capacities add up), ``status``,
``up`` and the like (a link with any sign of being down is out of service), ``overload`` (``yes``:
the IGP does not use the link, as with the maximum metric) and ``one_way`` (``yes``: the row is one
direction, whatever the other rows are).  :mod:`teal.formats.cells` describes column names, units
and decimal commas; other names can be configured.
A cell may have a unit: 100G, 10 Gbit/s, 400GE, 2x100G, 3.5ms, 800us.

If most rows have a counterpart in the reverse direction, rows are directions; otherwise cables.
Warnings name rows that deviate, identical rows, similar names and outlying capacities.  Entry
point: :func:`read_link_table`.
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
from teal.formats.cells import CellTable, cells_of_frame, find_column, heading, read_cells
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
_ALIASES = {
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
_NUMERIC_COLUMNS = ("capacity", "latency", "metric", "metric_back", "te_metric", "cost", "members")
_CAPACITY_TEXT = re.compile(
    r"(?:(\d+)\s*x\s*)?([0-9.]+(?:e[+-]?\d+)?)\s*([a-zA-Z][a-zA-Z0-9/-]*)?", re.IGNORECASE
)
# Maps characters that look alike to one of them.
_LOOKALIKE_GLYPHS = str.maketrans("0o1I|", "OOlll")
# Capacities this many times away from the median may have another unit.
_OUTLIER_FACTOR = 1000.0
# Largest plausible median capacity, Gbit/s; larger ones are more often Mbit/s or bit/s.
_MAX_PLAUSIBLE_MEDIAN_GBPS = 10_000.0


def read_link_table(path: Path, default_capacity: float | None, attributes: Attributes) -> Topology:
    """Read a network from a table with a row per cable or per direction of a cable.

    Args:
        path: path of a .csv, .tsv or .xlsx file.
        default_capacity: Gbit/s of links without a capacity; None refuses them.
        attributes: names of the columns, and of the sheet of a workbook.

    Raises:
        InputError: a missing column, an invalid cell, or an error of
            :func:`topology_from_records`.
    """

    def is_header(row: list[str]) -> bool:
        return (
            _find_attribute_column("source", row, attributes) is not None
            and _find_attribute_column("target", row, attributes) is not None
        )

    return _from_cells(
        path.stem, read_cells(path, is_header, attributes.inside), default_capacity, attributes
    )


def topology_from_link_frame(
    frame: Any, default_capacity: float | None, attributes: Attributes
) -> Topology:
    """Build the network of a pandas frame with a row per link and the columns of a link table.

    Args:
        frame: the frame.
        default_capacity: Gbit/s of links without a capacity; None refuses them.
        attributes: names of the columns.

    Raises:
        InputError: a missing column, or an invalid cell.
    """
    table = cells_of_frame(frame, "data frame")
    return _from_cells("frame", table, default_capacity, attributes)


def _from_cells(
    name: str, table: CellTable, default_capacity: float | None, attributes: Attributes
) -> Topology:
    """Build the network of a table of links.

    Args:
        name: name of the network.
        table: the table, a row per cable or per direction.
        default_capacity: Gbit/s of links without a capacity; None refuses them.
        attributes: names of the columns.

    Raises:
        InputError: no rows, an invalid cell, or an error of :func:`topology_from_records`.
    """
    where = table.where
    columns = _columns(table, attributes)
    rows = _read_rows(table, columns, attributes)
    records = rows.records
    if not records and not rows.one_way:
        raise InputError.invalid(where, "", "the table has no rows", "add a row for each link")
    # A row is one direction if most rows have a row in the reverse direction, else a cable.
    unpaired_rows = _unpaired_rows(records)
    num_non_loops = sum(record.source != record.target for record in records)
    is_directed = 2 * len(unpaired_rows) < num_non_loops or not records
    if is_directed and "metric_back" in columns:
        raise InputError.invalid(
            where,
            table.header[columns["metric_back"]],
            "the column has metrics of the reverse direction, but reverse links have rows, too",
            "drop the column, or keep one row for each cable",
        )
    notes = _notes(table, columns, rows, is_directed, unpaired_rows)
    # If some rows are marked as one direction, expand the cables of the others.
    if rows.one_way and not is_directed:
        records = [*records, *(_reverse(record) for record in records)]
        is_directed = True
    return topology_from_records(
        name,
        where,
        rows.nodes,
        records + rows.one_way,
        directed=is_directed,
        default_capacity=default_capacity,
        notes=notes,
    )


@dataclasses.dataclass
class _Rows:
    """Link records of a table, and descriptions of its doubtful rows for warnings.

    Attributes:
        state_columns: cells of each status column, by its heading.
        records: a record for each row, except those of ``one_way``.
        one_way: records of the rows whose column one_way is true.
        nodes: nodes in order of first occurrence; positions are unknown.
        identical_rows: descriptions of rows that equal an earlier row.
        unknown_states: status values of unknown meaning.
    """

    state_columns: dict[str, list[str]]
    records: list[LinkRecord] = dataclasses.field(default_factory=list)
    one_way: list[LinkRecord] = dataclasses.field(default_factory=list)
    nodes: dict[str, tuple[float, float] | None] = dataclasses.field(default_factory=dict)
    identical_rows: list[str] = dataclasses.field(default_factory=list)
    unknown_states: list[object] = dataclasses.field(default_factory=list)


def _read_rows(table: CellTable, columns: dict[str, int], attributes: Attributes) -> _Rows:
    """Convert the rows of a table to link records; empty rows are skipped.

    Args:
        table: the table.
        columns: index of each used column, by the name of its attribute.
        attributes: names of the columns.

    Raises:
        InputError: an invalid cell.
    """
    where = table.where
    header = table.header
    # Cells of each used column, units in their headings ("" for none), and status columns.
    cells = {
        column: table.numbers(column_index)
        if column in _NUMERIC_COLUMNS
        else table.texts(column_index)
        for column, column_index in columns.items()
    }
    units = {
        column: heading(header[columns[column]])[1] if column in columns else ""
        for column in _NUMERIC_COLUMNS
    }
    if attributes.capacity_unit:
        units["capacity"] = attributes.capacity_unit
    rows = _Rows(
        {
            text: table.texts(column_index)
            for column_index, text in enumerate(header)
            if is_state_name(text, attributes.status)
        }
    )
    # One record for each row; rows marked as one-way are collected separately.
    first_locations = dict[tuple[str, ...], str]()
    for row, (line, texts) in enumerate(table.rows):
        row_cells = {column: values[row].strip() for column, values in cells.items()}
        if not any(row_cells.values()):
            continue
        field = f"{table.row_word} {line}"
        # Note identical rows, by the location of the first one.
        first_location = first_locations.setdefault(tuple(texts), field)
        if first_location != field:
            rows.identical_rows.append(f"{field} and {first_location}")
        is_one_way = is_true(row_cells.get("one_way"), where, f"{field}: one_way")
        state = {name: state_cells[row] for name, state_cells in rows.state_columns.items()}
        has_failed, unknown = out_of_service(state, attributes.status)
        rows.unknown_states += unknown
        record = _record(row_cells, units, where, field, tuple(header), has_failed)
        (rows.one_way if is_one_way else rows.records).append(record)
        rows.nodes.setdefault(row_cells["source"])
        rows.nodes.setdefault(row_cells["target"])
    return rows


def _notes(
    table: CellTable,
    columns: dict[str, int],
    rows: _Rows,
    is_directed: bool,
    unpaired_rows: list[str],
) -> tuple[str, ...]:
    """Return notes on unused columns and on the meaning of a row, and warnings about doubtful rows.

    Args:
        table: the table.
        columns: index of each used column, by the name of its attribute.
        rows: its rows.
        is_directed: whether a row is one direction of a link; otherwise it is a cable.
        unpaired_rows: descriptions of the rows without a row in the reverse direction.
    """
    # Unused columns, and the meaning of a row.
    unused = [
        text
        for column_index, text in enumerate(table.header)
        if text.strip() and column_index not in columns.values() and text not in rows.state_columns
    ]
    notes = [f"Unused columns: {', '.join(unused)}."] if unused else []
    notes.append(
        f"A row is {'one direction of a link' if is_directed else 'a cable with both directions'}."
    )
    # Warnings, each with its first rows.
    for text, examples in (
        (
            "rows without a row of the reverse direction, read as one-way links",
            unpaired_rows if is_directed else [],
        ),
        ("identical rows, read as parallel links", rows.identical_rows),
        ("similar names of different nodes", similar_name_pairs(list(rows.nodes))),
        *_outlying_capacities(rows.records),
    ):
        if examples:
            notes.append(f"{WARNING}{table.where}: {text}: {listed(examples)}.")
    return (*notes, *unknown_status(table.where, rows.unknown_states))


def _reverse(record: LinkRecord) -> LinkRecord:
    """Return the record of a cable's reverse direction: source and target swapped, with the metric
    of that direction.
    """
    metric = record.metric if record.metric_back is None else record.metric_back
    return dataclasses.replace(
        record, source=record.target, target=record.source, metric=metric, metric_back=None
    )


def _record(
    cells: dict[str, str],
    units: dict[str, str],
    where: str,
    field: str,
    header: tuple[str, ...],
    has_failed: bool,
) -> LinkRecord:
    """Build the link record of a row, with its cells converted to Gbit/s and ms.

    Args:
        cells: cell of each used column, by the name of its attribute; "" for an empty one.
        units: unit in the heading of each numeric column; "" for none.
        where: name of the file, for messages.
        field: the row, for messages.
        header: names of all columns, for messages.
        has_failed: whether a status column says that the link is down.

    Raises:
        InputError: an invalid cell.
    """
    for end in ("source", "target"):
        if not cells[end]:
            raise InputError(where, f"{field}: {end}", "a name of a node", "an empty cell")

    def value(column: str) -> float | None:
        return number(cells[column], where, f"{field}: {column}") if cells.get(column) else None

    # The capacity of an aggregation group is that of all members.
    capacity = parse_gbps(cells.get("capacity", ""), units["capacity"], where, f"{field}: capacity")
    members = value("members")
    if capacity is not None and members is not None:
        capacity *= members
    is_overloaded = is_true(cells.get("overload"), where, f"{field}: overload")
    # In order: source, target, capacity, latency, row, names of other attributes, metric, and
    # whether the link is out of service.
    return LinkRecord(
        cells["source"],
        cells["target"],
        capacity,
        parse_milliseconds(cells.get("latency", ""), units["latency"], where, f"{field}: latency"),
        field,
        header,
        value("metric"),
        has_failed or is_overloaded,
        metric_back=value("metric_back"),
        te_metric=value("te_metric"),
        affinities=affinities_of(cells.get("affinity"), where, f"{field}: affinity"),
        cost=value("cost"),
    )


def _unpaired_rows(records: list[LinkRecord]) -> list[str]:
    """Return descriptions of the rows that have no row in the reverse direction; parallel links are
    matched one to one.
    """
    non_loops = [record for record in records if record.source != record.target]
    # Number of rows, not matched yet, whose reverse direction is (source, target).
    unmatched = Counter((record.target, record.source) for record in non_loops)
    unpaired_rows = list[str]()
    for record in non_loops:
        unmatched[record.source, record.target] -= 1
        if unmatched[record.source, record.target] < 0:
            unpaired_rows.append(f"{record.field} ({record.source} -> {record.target})")
    return unpaired_rows


def _outlying_capacities(records: list[LinkRecord]) -> list[tuple[str, list[str]]]:
    """Return the texts of possible warnings that capacities have another unit, each with the rows
    that it concerns; a text without rows is no warning.
    """
    records_with_capacity = [record for record in records if record.capacity]
    if not records_with_capacity:
        return []
    # Capacities far from the median.
    median = statistics.median(float(record.capacity or 0.0) for record in records_with_capacity)
    outliers = [
        f"{record.field} ({record.capacity:g})"
        for record in records_with_capacity
        if not median / _OUTLIER_FACTOR < float(record.capacity or 0.0) < median * _OUTLIER_FACTOR
    ]
    warnings = [
        (f"capacities {_OUTLIER_FACTOR:g} times off their median, {median:g} Gbit/s", outliers)
    ]
    # A median that is implausible for Gbit/s, with the first row as example.
    if median > _MAX_PLAUSIBLE_MEDIAN_GBPS:
        remedy = "if they are not Gbit/s, use --attributes capacity_unit=bit/s or Mbit/s"
        warnings.append(
            (
                f"the median of the capacities is {median:g} Gbit/s; {remedy}",
                [records_with_capacity[0].field],
            )
        )
    return warnings


def similar_name_pairs(names: list[str]) -> list[str]:
    """Return descriptions ``'a' and 'b'`` of pairs of names that differ only by case, accents,
    separators, or similar characters (0 and O; 1, I and l).
    """
    # Ordered set of pairs of similar names.  Names are similar if they have the same key: without
    # case, or with characters that look alike replaced.
    similar_pairs = dict[tuple[str, str], None]()
    # Names without accents, with "-" for every separator.
    plain_names = list[str]()
    for name in names:
        # Letters without combining accents.
        letters = "".join(
            character
            for character in unicodedata.normalize("NFKD", name)
            if not unicodedata.combining(character)
        )
        plain_names.append(re.sub(r"[\s_.-]+", "-", letters).strip("-"))
    # Pair each name with the first one of the same key.
    for keys in (
        [name.casefold() for name in plain_names],
        [name.translate(_LOOKALIKE_GLYPHS) for name in plain_names],
    ):
        first_name = dict[str, str]()
        for name, key in zip(names, keys, strict=True):
            if (earlier_name := first_name.setdefault(key, name)) != name:
                similar_pairs[earlier_name, name] = None
    return [f"{a!r} and {b!r}" for a, b in similar_pairs]


def parse_gbps(text: str, unit: str, where: str, field: str) -> float | None:
    """Parse the Gbit/s of a cell such as 100G, 2x100G, 10 Gbit/s or 40; None for an empty cell.

    Args:
        text: text of the cell, with its number in Python's notation.
        unit: unit of cells without one; "" for Gbit/s.
        where: name of the file, for messages.
        field: the cell, for messages.

    Raises:
        InputError: an invalid text.
    """
    if not text:
        return None
    match = _CAPACITY_TEXT.fullmatch(text.strip())
    if not match:
        raise InputError(where, field, "a capacity such as 100G, 10 Gbit/s or 2x100G", repr(text))
    multiplier, number_text, cell_unit = match.groups()
    factor = gbps_per_unit(cell_unit or unit or "Gbit/s", f"{where}: {field}")
    return int(multiplier or 1) * number(number_text, where, field) * factor


def parse_milliseconds(text: str, unit: str, where: str, field: str) -> float | None:
    """Parse the milliseconds of a cell such as 3.5, 3.5ms or 800us; None for an empty cell.

    Args:
        text: text of the cell, with its number in Python's notation.
        unit: unit of cells without one; "" for ms.
        where: name of the file, for messages.
        field: the cell, for messages.

    Raises:
        InputError: an invalid text.
    """
    if not text:
        return None
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?\d+)?)\s*([a-zA-Zµμ]*)", text)
    if not match:
        raise InputError(where, field, "a delay such as 3.5, 3.5ms or 800us", repr(text))
    return number(match[1], where, field) * ms_per_unit(match[2] or unit, where, field)


def _columns(table: CellTable, attributes: Attributes) -> dict[str, int]:
    """Return the index of each used column, by the name of its attribute.

    Raises:
        InputError: no column source or target, no column with a configured name, or two columns
            with one name.
    """
    columns = {}
    for name in _COLUMNS:
        column_name = getattr(attributes, name, name)
        index = _find_attribute_column(name, table.header, attributes)
        if index is not None:
            columns[name] = index
            _require_unique_heading(table, index)
        # A required column, or one whose name the user has configured, is missing.
        elif name in ("source", "target") or column_name != name:
            raise InputError(
                table.where, column_name, f"a column {column_name}", table.columns_text
            )
    # A configured status column must exist; the default name status may be absent.
    status = attributes.status
    if status != "status" and not any(is_state_name(text, status) for text in table.header):
        raise InputError(table.where, status, f"a column {status}", table.columns_text)
    return columns


def _require_unique_heading(table: CellTable, index: int) -> None:
    """Raise InputError if several columns have the name of column ``index``."""
    name = heading(table.header[index])[0]
    duplicates = [text for text in table.header if heading(text)[0] == name]
    if len(duplicates) > 1:
        raise InputError.invalid(
            table.where,
            name,
            f"{len(duplicates)} columns have this name: {', '.join(map(repr, duplicates))}",
            "keep one",
        )


def _find_attribute_column(name: str, header: list[str], attributes: Attributes) -> int | None:
    """Return the column index of an attribute, by its configured name or its default names; None if
    there is no such column.
    """
    column_name = getattr(attributes, name, name)
    # Aliases count only where the user has configured no other name.
    aliases = _ALIASES.get(name, ()) if column_name == name else ()
    indices = (find_column(option, header) for option in (column_name, *aliases))
    return next((index for index in indices if index is not None), None)
