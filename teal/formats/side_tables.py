"""Tables that accompany a network and its traffic: components, groups, weights, costs, guarantees.

All are read by the same rules: a .csv file (columns separated by commas, semicolons or tabs, with
or without a byte order mark), an .xlsx workbook, or a pandas frame; column names without case;
units in a heading (``MTBF (s)``, ``rate_mbps``) or behind a number; decimal commas as in
:mod:`teal.formats.numerals`; empty rows are skipped.  An :class:`~teal.errors.InputWarning` names
unused columns.

A reader declares its columns (:class:`Column`) and gets the values of each row
(:func:`read_side_table`), numbers in the project's units.
"""

from __future__ import annotations

import enum
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from teal.errors import InputError, InputWarning, did_you_mean, listed
from teal.formats.cells import (
    CellTable,
    bracketed_heading,
    cells_of_frame,
    plain_heading,
    read_cells,
)
from teal.formats.units import gbps_per_unit, is_rate_unit, is_time_unit, ms_per_unit
from teal.network import Topology

SUFFIXES = (".csv", ".tsv", ".xlsx")
_NUMBER_AND_UNIT = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(.*)")
_HOURS_PER_UNIT = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1 / 3600),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 1 / 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 1.0),
    **dict.fromkeys(("d", "day", "days"), 24.0),
    **dict.fromkeys(("w", "week", "weeks"), 168.0),
    **dict.fromkeys(("y", "yr", "year", "years"), 8766.0),
}
_YES = ("yes", "y", "true", "1", "x", "on")
_NO = ("no", "n", "false", "0", "off")


class Kind(enum.Enum):
    """Content of the cells of a column; the value is the description for messages."""

    TEXT = "a text"
    NUMBER = "a number"
    RATE = "a rate such as 10, 10G or 500 Mbit/s (Gbit/s without a unit)"
    DELAY = "a delay such as 3.5, 3.5ms or 800us (ms without a unit)"
    DURATION = "a time such as 2000h, 90d, 30min or 45s (hours without a unit)"
    SHARE = "a share such as 0.9995 or 99.95%"
    YES_NO = "yes or no"


class Column(NamedTuple):
    """Declaration of a column that a side table may have.

    Attributes:
        name: lower-case name.
        kind: content of its cells.
        required: whether the table must have it.
        aliases: other names.
    """

    name: str
    kind: Kind = Kind.TEXT
    required: bool = False
    aliases: tuple[str, ...] = ()


SOURCE = Column("source", required=True, aliases=("from",))
TARGET = Column("target", required=True, aliases=("to",))


class Row(NamedTuple):
    """Non-empty row of a side table, with its values in the project's units.

    Attributes:
        where: file and line, for messages.
        values: value of each present column; None for an empty cell.
    """

    where: str
    values: dict[str, Any]

    def text(self, name: str) -> str:
        """Return the text of this row in the column ``name``; "" for an empty cell or a missing
        column.
        """
        return self.values.get(name) or ""

    def node(self, name: str, topology: Topology) -> int:
        """Return the index of the node that this row names in a column.

        Args:
            name: name of the column.
            topology: network with the node names and aliases.

        Raises:
            InputError: an unknown node.
        """
        index = topology.node_index()
        node = topology.name_of(self.text(name))
        if node not in index:
            actual = repr(self.text(name)) + did_you_mean(node, index)
            raise InputError(self.where, name, f"a node of {topology.name}", actual)
        return index[node]

    def number(self, name: str, *, minimum: float | None = None) -> float:
        """Return the number of this row in a column.

        Args:
            name: name of the column.
            minimum: smallest accepted number; None accepts numbers above 0.

        Raises:
            InputError: an empty cell, or a number out of range.
        """
        value = self.values.get(name)
        expected = "a number above 0" if minimum is None else f"a number of at least {minimum:g}"
        if value is None:
            raise InputError(self.where, name, expected, "an empty cell")
        if value <= 0 if minimum is None else value < minimum:
            raise InputError(self.where, name, expected, f"{value:g}")
        return float(value)


def read_side_table(source: Any, columns: Sequence[Column]) -> list[Row]:
    """Read the non-empty rows of a side table, with values in the project's units.

    Args:
        source: path of a .csv, .tsv or .xlsx file, or a pandas frame.
        columns: columns of the table; a warning names others.

    Raises:
        InputError: a missing file, a missing required column, a repeated column, an unsupported
            unit, or an invalid cell.
    """
    # Index and unit of each column that the table has.
    table = _read_table(source, columns)
    indices, units = _column_indices(table, columns)
    if not indices or any(
        column_spec.required and column_spec.name not in indices for column_spec in columns
    ):
        raise InputError(table.where, "columns", _describe_columns(columns), table.columns_text)
    unused = [
        text
        for index, text in enumerate(table.header)
        if text.strip() and index not in indices.values()
    ]
    if unused:
        warn(f"{table.where}: unused columns: {listed(unused, 10)}")
    # Read the cells of the used columns.
    cells: dict[str, list[str]] = {}
    for column in columns:
        if column.name in indices:
            is_number = column.kind not in (Kind.TEXT, Kind.YES_NO)
            read_column = table.numbers if is_number else table.texts
            cells[column.name] = read_column(indices[column.name])
    # Convert the values of each non-empty row to the project's units.
    rows = []
    for row_index, (line, _) in enumerate(table.rows):
        texts = {name: column_cells[row_index].strip() for name, column_cells in cells.items()}
        if not any(texts.values()):
            continue
        location = f"{table.where}: {table.row_word} {line}"
        values = {
            column.name: _parse_value(texts[column.name], column, units[column.name], location)
            for column in columns
            if column.name in texts
        }
        rows.append(Row(location, values))
    return rows


def warn(text: str) -> None:
    """Issue an InputWarning about a part of an input that is ignored or doubtful."""
    # Attribute the warning to the caller of the function that calls this one.
    warnings.warn(text, InputWarning, stacklevel=3)


def require_once(
    rows: Sequence[Row],
    keys: Iterable[object],
    key_text: str,
    values: Sequence[object] | None = None,
) -> None:
    """Raise InputError if two rows have the same key.

    Args:
        rows: the rows.
        keys: key of each row, such as its cable.
        key_text: description of a key, for the message, such as "each cable".
        values: value of each row; rows with the same key and value are accepted, such as both
            directions of a cable.  None accepts no repeated key.
    """
    first_index_of_key: dict[object, int] = {}
    for index, key in enumerate(keys):
        first_index = first_index_of_key.setdefault(key, index)
        if first_index == index or (values is not None and values[first_index] == values[index]):
            continue
        row = rows[index]
        raise InputError.invalid(
            row.where,
            "",
            f"the row repeats {rows[first_index].where}, but {key_text} may have one row only",
            "remove one",
        )


def _read_table(source: Any, columns: Sequence[Column]) -> CellTable:
    """Return the cells of a .csv, .tsv or .xlsx file, or of a pandas frame.

    Args:
        source: path or frame.
        columns: columns of the table, which recognise its header below title rows.

    Raises:
        InputError: no such file, or another kind of input.
    """
    if hasattr(source, "columns") and hasattr(source, "itertuples"):
        return cells_of_frame(source, "data frame")
    if not isinstance(source, str | Path):
        expected = "a .csv, .tsv or .xlsx file, or a pandas frame"
        raise InputError("table", "", expected, type(source).__name__)
    path = Path(source)
    if path.suffix.lower() not in SUFFIXES or not path.is_file():
        expected = "a table: a .csv, .tsv or .xlsx file"
        if not path.is_file():
            raise InputError.invalid(str(path), "", "no such file", f"name {expected}")
        raise InputError(str(path), "", expected, f"the suffix {path.suffix!r}")
    # The header has all required columns, or any column if none is required.
    required = [column for column in columns if column.required]

    def is_header(cells: list[str]) -> bool:
        names = {name for cell in cells for name in (plain_heading(cell), _split_heading(cell)[0])}
        if not required:
            return any(names & {column.name, *column.aliases} for column in columns)
        return all(names & {column.name, *column.aliases} for column in required)

    return read_cells(path, is_header)


def _describe_columns(columns: Sequence[Column]) -> str:
    """Describe the required and optional columns of a table, for a message."""
    required = ", ".join(column.name for column in columns if column.required)
    optional = ", ".join(column.name for column in columns if not column.required)
    if not required:
        return f"some of {optional}"
    return f"{required} (optional: {optional})" if optional else required


def _split_heading(text: str) -> tuple[str, str]:
    """Split a heading such as ``MTBF (s)`` into name and unit, "" for no unit."""
    name, unit = bracketed_heading(text)
    return plain_heading(name), unit


def _column_indices(
    table: CellTable, columns: Sequence[Column]
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the index and the unit ("" for none) of each present column, by its name.

    Raises:
        InputError: a repeated column, or an unsupported unit.
    """
    # Each heading belongs to the first declared column that it names.
    indices: dict[str, int] = {}
    units: dict[str, str] = {}
    for index, text in enumerate(table.header):
        for column in columns:
            unit = _unit_in_heading(text, column)
            if unit is None:
                continue
            if column.name in indices:
                duplicates = f"{table.header[indices[column.name]]!r} and {text!r}"
                raise InputError.invalid(
                    table.where,
                    column.name,
                    f"two columns have this name: {duplicates}",
                    "keep one",
                )
            # A unit in the heading must suit the content of the column.
            if unit and not _accepts_unit(column.kind, unit):
                raise InputError.invalid(
                    table.where,
                    column.name,
                    f"the heading {text!r} has an unsupported unit",
                    f"use a unit of {column.kind.value}, or none",
                )
            indices[column.name] = index
            units[column.name] = unit
            break
    return indices, units


def _unit_in_heading(heading: str, column: Column) -> str | None:
    """Return the unit in a heading, "" for none; None if it is not a heading of this column."""
    plain = plain_heading(heading)
    name_without_unit, unit = _split_heading(heading)
    for name in (column.name, *column.aliases):
        if plain == name:
            return ""
        # NAME (UNIT)
        if name_without_unit == name and unit:
            return unit
        # NAME_UNIT
        suffix = plain.removeprefix(f"{name}_")
        if suffix != plain and _is_unit(column.kind, suffix):
            return suffix
    return None


def _is_unit(kind: Kind, text: str) -> bool:
    """Return whether a text is a unit of a kind of columns: rates, delays, durations or shares."""
    match kind:
        case Kind.RATE:
            return is_rate_unit(text)
        case Kind.DELAY:
            return is_time_unit(text)
        case Kind.DURATION:
            return text.lower() in _HOURS_PER_UNIT
        case Kind.SHARE:
            return text.lower() in ("%", "percent", "pct")
    return False


def _accepts_unit(kind: Kind, unit: str) -> bool:
    """Return whether a heading of this kind may have this text in brackets.

    A plain number may have an arbitrary unit, such as a currency, but not a rate unit that would
    scale the number.
    """
    if kind in (Kind.TEXT, Kind.YES_NO):
        return True
    if kind is Kind.NUMBER:
        # Refuse a per cent sign, and units of rates other than Gbit/s.
        words = re.split(r"[\s/]+", unit)
        return "%" not in unit and not any(
            is_rate_unit(word) and gbps_per_unit(word, "") != 1 for word in words
        )
    return _is_unit(kind, unit)


def _parse_value(text: str, column: Column, unit: str, where: str) -> Any:
    """Parse the value of a cell; None for an empty one.

    Args:
        text: the cell; numbers in Python's notation.
        column: column of the cell.
        unit: unit in the heading; "" for none.
        where: file and line, for messages.

    Raises:
        InputError: an invalid text.
    """
    if not text:
        return None
    if column.kind is Kind.TEXT:
        return text
    if column.kind is Kind.YES_NO:
        word = text.lower().removesuffix(".0")
        if word not in _YES + _NO:
            raise InputError(where, column.name, column.kind.value, repr(text))
        return word in _YES
    # A number, which may be followed by its unit; K, M, G and T alone are units of rates.
    match = _NUMBER_AND_UNIT.fullmatch(text)
    number = float(match[1]) if match else math.nan
    cell_unit = match[2].strip() if match else ""
    is_short_rate = column.kind is Kind.RATE and cell_unit.upper() in ("K", "M", "G", "T")
    is_known = not cell_unit or is_short_rate or _is_unit(column.kind, cell_unit)
    if not math.isfinite(number) or not is_known:
        raise InputError(where, column.name, column.kind.value, repr(text))
    return number * _factor(column.kind, cell_unit or unit, where, column.name)


def _factor(kind: Kind, unit: str, where: str, field: str) -> float:
    """Return the factor that converts a number in ``unit`` to the project's unit (Gbit/s, ms, hours
    or a fraction); 1 for "".
    """
    if not unit or kind is Kind.NUMBER:
        return 1.0
    match kind:
        case Kind.RATE:
            return gbps_per_unit(unit, f"{where}: {field}")
        case Kind.DELAY:
            return ms_per_unit(unit, where, field)
        case Kind.DURATION:
            return _HOURS_PER_UNIT[unit.lower()]
    # The only unit of a share is per cent.
    return 0.01
