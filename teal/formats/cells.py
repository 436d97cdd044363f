"""Tables of texts from CSV files with any common separator, and from Excel workbooks.

The separator of a CSV file is the most frequent of comma, semicolon and tab in its first line.
Title rows above the header are skipped.  Column names are matched without case, with spaces,
hyphens and underscores equivalent, and may have a unit: ``Capacity (Mbps)``, ``delay_ms``.  Decimal
commas are those of :mod:`teal.formats.numerals`.  Node names are texts, also ``NA`` and ``null``.
Entry points: :func:`read_cells`, :class:`CellTable`.
"""

from __future__ import annotations

import csv
import dataclasses
import numbers
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.formats.numerals import plain_numbers
from teal.formats.units import is_rate_unit, is_time_unit
from teal.network.topology import canonical_name

# Maximum number of title rows above the column names.
_MAX_TITLE_ROWS = 10
_BRACKETED = re.compile(r"(.*?)[\s_]*[(\[]\s*([^)\]]+?)\s*[)\]]\s*")
_SUFFIXED = re.compile(r"(.*)_([a-z]+)")


@dataclasses.dataclass(frozen=True)
class CellTable:
    """Table of a file or a frame whose cells are texts.

    Attributes:
        where: name of the file, for messages.
        header: column names as in the file.
        rows: line number in the file, and cells, of each row below the header.
        separator: column separator of the file; "" for a workbook or a frame.
        row_word: word for a row in messages.
    """

    where: str
    header: list[str]
    rows: list[tuple[int, list[str]]]
    separator: str = ""
    row_word: str = "line"

    def column_index(self, name: str) -> int | None:
        """Return the index of a column by its name, with or without a unit; None if there is
        none.
        """
        return find_column(name, self.header)

    @property
    def columns_text(self) -> str:
        """The column names in one text for messages, with a hint at separators if a file has only
        one column.
        """
        names = ", ".join(self.header) or "none"
        if self.separator and len(self.header) == 1:
            return f"{names} (columns are separated by commas, semicolons or tabs)"
        return names

    def texts(self, column: int) -> list[str]:
        """Return the cells of the column with this index, one per row; "" for rows that are too
        short.
        """
        return [row[column] if column < len(row) else "" for _, row in self.rows]

    def numbers(self, column: int) -> list[str]:
        """Return the cells of the column with this index, one per row, with all numbers in Python's
        notation.

        Raises:
            InputError: decimal points and decimal commas in the column, or ambiguous numbers only.
        """
        return plain_numbers(
            self.texts(column), self.where, f"column {self.header[column]}", self.separator
        )

    def records(
        self, columns: Sequence[str], numeric: Collection[str] = ()
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the location of each non-empty row, such as ``line 3``, and its cells by the names
        in ``columns``.

        Args:
            columns: names of columns; missing ones are skipped.
            numeric: columns with numbers, which are converted to Python's notation.

        Raises:
            InputError: decimal points and decimal commas in a column, or ambiguous numbers only.
        """
        column_cells: dict[str, list[str]] = {}
        for name in columns:
            column = self.column_index(name)
            if column is not None:
                column_cells[name] = self.numbers(column) if name in numeric else self.texts(column)
        for row, (row_number, _) in enumerate(self.rows):
            cells = {name: values[row] for name, values in column_cells.items()}
            if any(cells.values()):
                yield f"{self.row_word} {row_number}", cells

    def require(self, columns: Sequence[str]) -> None:
        """Raise InputError unless the table has these columns."""
        missing = [name for name in columns if self.column_index(name) is None]
        if missing:
            raise InputError(self.where, "columns", ", ".join(columns), self.columns_text)


def find_column(name: str, header: Sequence[str]) -> int | None:
    """Return the index of a column by its name, with or without a unit; None if there is none."""
    normalised = plain_heading(name)
    for headings in (
        [plain_heading(title) for title in header],
        [heading(title)[0] for title in header],
    ):
        if normalised in headings:
            return headings.index(normalised)
    return None


def plain_heading(name: str) -> str:
    """Normalise a column name: metric az, Metric-AZ and metric_az are equal."""
    return re.sub(r"[\s_-]+", "_", name.strip().strip("\ufeff").lower())


def heading(name: str) -> tuple[str, str]:
    """Split a column name into the normalised name and its unit, "" for none."""
    bracket_match = _BRACKETED.fullmatch(name.strip().strip("\ufeff"))
    if bracket_match and (is_rate_unit(bracket_match[2]) or is_time_unit(bracket_match[2])):
        return plain_heading(bracket_match[1]), bracket_match[2]
    plain = plain_heading(name)
    suffix_match = _SUFFIXED.fullmatch(plain)
    if suffix_match and (is_rate_unit(suffix_match[2]) or is_time_unit(suffix_match[2])):
        return suffix_match[1], suffix_match[2]
    return plain, ""


def bracketed_heading(name: str) -> tuple[str, str]:
    """Split a heading such as ``MTBF (s)`` into the name and the text in brackets, "" for none."""
    bracket_match = _BRACKETED.fullmatch(name.strip().strip("\ufeff"))
    return (bracket_match[1], bracket_match[2]) if bracket_match else (name, "")


def cells_of_frame(frame: Any, where: str) -> CellTable:
    """Return the cells of a pandas frame as texts; missing values are empty."""
    rows = [list(map(cell_text, row)) for row in frame.itertuples(index=False)]
    header = [str(column) for column in frame.columns]
    return CellTable(where, header, list(enumerate(rows)), row_word="row")


def read_cells(
    path: Path, is_header: Callable[[list[str]], bool] | None = None, sheet: str = ""
) -> CellTable:
    """Read the table of a .csv, .tsv or .xlsx file as texts.

    Args:
        path: path of the file.
        is_header: predicate that recognises the header among the first rows; None takes the first
            row.
        sheet: sheet of a workbook; "" for the active one.

    Raises:
        InputError: a missing file, not UTF-8, not a workbook, an unknown sheet, or an empty file.
    """
    if path.suffix.lower() == ".xlsx":
        rows = _rows_of_workbook(path, sheet)
        separator = ""
    else:
        if sheet:
            raise InputError.invalid(
                str(path),
                "",
                f"no sheet #{sheet}, since only .xlsx files have sheets",
                "drop # and the text behind it",
            )
        rows, separator = _rows_of_csv(path)
    if not rows:
        raise InputError.invalid(
            str(path), "", "the file is empty", "begin with a line of column names"
        )
    # Skip title rows above the header.
    header_index = 0
    if is_header is not None:
        candidates = range(min(len(rows), _MAX_TITLE_ROWS))
        header_index = next((index for index in candidates if is_header(rows[index][1])), 0)
    return CellTable(str(path), rows[header_index][1], rows[header_index + 1 :], separator)


def _rows_of_csv(path: Path) -> tuple[list[tuple[int, list[str]]], str]:
    """Return line number and cells of each non-empty row of a CSV file, and its separator.

    Raises:
        InputError: a file that cannot be read, is not UTF-8, or is not CSV.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError.invalid(
            str(path), "", f"the file is not UTF-8 text: {error}", "save it as UTF-8"
        ) from None
    except OSError as error:
        raise InputError.invalid(
            str(path), "", f"the table cannot be read: {error.strerror or error}"
        ) from None
    if "\0" in text:
        raise InputError.invalid(
            str(path),
            "",
            "the file is not UTF-8 text: it has null characters",
            "save it as UTF-8",
        )
    # Read the rows, each with the line at which it starts.
    lines = text.splitlines(keepends=True)
    separator = separator_of(lines[0]) if lines else ","
    reader = csv.reader(lines, delimiter=separator)
    row_line = 1
    rows = list[tuple[int, list[str]]]()
    try:
        for row in reader:
            if row:
                rows.append((row_line, [canonical_name(cell) for cell in row]))
            # A quoted cell may span several lines.
            row_line = reader.line_num + 1
    except csv.Error as error:
        raise InputError.invalid(
            str(path), f"line {reader.line_num}", f"the line is not valid CSV: {error}"
        ) from None
    return rows, separator


def separator_of(line: str) -> str:
    """Return the column separator of a table: the most frequent of comma, semicolon and tab in this
    line.
    """
    return max(",;\t", key=line.count)


def _rows_of_workbook(path: Path, sheet: str) -> list[tuple[int, list[str]]]:
    """Return row number, from 1, and cells of each non-empty row of an Excel sheet.

    Args:
        path: path of the workbook.
        sheet: name of the sheet; "" for the active one.

    Raises:
        InputError: openpyxl is not installed, a damaged workbook, or an unknown sheet.
    """
    try:
        import openpyxl
    except ImportError:
        raise InputError.invalid(
            str(path),
            "",
            "reading Excel files needs the package openpyxl, which is not installed",
            "run pip install openpyxl",
        ) from None
    # Values of formulas, as stored by the last program that computed them.
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        if sheet and sheet not in book.sheetnames:
            raise InputError.invalid(
                str(path),
                f"#{sheet}",
                "the workbook has no such sheet",
                f"use one of: {', '.join(book.sheetnames)}",
            )
        worksheet: Any = book[sheet] if sheet else book.active
        rows = [[cell_text(cell) for cell in row] for row in worksheet.iter_rows(values_only=True)]
    except InputError:
        raise
    except Exception as error:
        # openpyxl raises exceptions of many types for damaged workbooks.
        fault = f"{type(error).__name__}: {error}"[:120]
        raise InputError.invalid(
            str(path), "", f"the Excel workbook cannot be read: {fault}"
        ) from None
    return [(row_number, row) for row_number, row in enumerate(rows, start=1) if any(row)]


def cell_text(value: Any) -> str:
    """Return the text of a cell of a workbook or a frame; "" for an empty one.

    A number is written unambiguously: 1.125 as 1.1250, since 1.125 may mean 1125.
    """
    if _is_missing(value):
        return ""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return canonical_name(str(value))
    # Python integers of any length, so that 64-bit ids keep their digits.
    if isinstance(value, numbers.Integral):
        return str(int(value))
    number = float(value)
    text = f"{number:.0f}" if number.is_integer() else repr(number)
    return f"{text}0" if re.fullmatch(r"\d+\.\d{3}", text) else text


def _is_missing(value: Any) -> bool:
    """Return whether a cell is empty: None, NaN, or pandas's NA and NaT, recognised by their type
    names, since comparing them fails.
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, numbers.Real) and bool(value != value)
