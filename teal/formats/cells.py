"""Tables as people keep them: CSV files of any usual separator, and Excel workbooks, as rows of
texts.

The separator of a CSV file is a comma, a semicolon or a tab, whichever its first line has most of.
Rows above the line of names, such as a title, are left out.  Names of columns are matched without
case, and with spaces, hyphens and underscores alike; one may have a unit behind it:
``Capacity (Mbps)``, ``delay_ms``.  Decimal commas are those of :mod:`teal.formats.numerals`.  Names
of nodes are texts, also ``NA`` and ``null``; an empty cell is empty.
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

_MAX_TITLE_ROWS = 10  # above the names of the columns
_BRACKETED = re.compile(r"(.*?)[\s_]*[(\[]\s*([^)\]]+?)\s*[)\]]\s*")
_SUFFIXED = re.compile(r"(.*)_([a-z]+)")


@dataclasses.dataclass(frozen=True)
class CellTable:
    """A table of texts.

    Attributes:
        where: the file, for messages.
        header: names of the columns as the file writes them.
        rows: number of each row in the file, and its cells.
        separator: what separates columns in the file; "" in a workbook or a frame, whose cells are
            separate.
        row_word: what a row is called in messages.
    """

    where: str
    header: list[str]
    rows: list[tuple[int, list[str]]]
    separator: str = ""
    row_word: str = "line"

    def place(self, name: str) -> int | None:
        """Number of a column by its name, with or without a unit; None if there is none."""
        return place_of(name, self.header)

    @property
    def columns_text(self) -> str:
        """The names of the columns, for messages, and what may be wrong with a single one."""
        names = ", ".join(self.header) or "none"
        if self.separator and len(self.header) == 1:
            return f"{names} (columns are separated by commas, semicolons or tabs)"
        return names

    def texts(self, place: int) -> list[str]:
        """The cells of a column, "" where a row is too short."""
        return [row[place] if place < len(row) else "" for _, row in self.rows]

    def numbers(self, place: int) -> list[str]:
        """The cells of a column with numbers as Python writes them.

        Raises:
            InputError: see :func:`teal.formats.numerals.decimal_of`.
        """
        return plain_numbers(
            self.texts(place), self.where, f"column {self.header[place]}", self.separator
        )

    def records(
        self, columns: Sequence[str], numeric: Collection[str] = ()
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """Place in the file, and the cells by name, of each row that is not empty.

        Args:
            columns: names of columns; one that the table does not have is left out.
            numeric: those that hold numbers.

        Raises:
            InputError: numbers that may be read in two ways.
        """
        by_name: dict[str, list[str]] = {}
        for name in columns:
            place = self.place(name)
            if place is not None:
                by_name[name] = self.numbers(place) if name in numeric else self.texts(place)
        for row, (number, _) in enumerate(self.rows):
            cells = {name: values[row] for name, values in by_name.items()}
            if any(cells.values()):
                yield f"{self.row_word} {number}", cells

    def require(self, columns: Sequence[str]) -> None:
        """Raise InputError unless the table has these columns."""
        missing = [name for name in columns if self.place(name) is None]
        if missing:
            raise InputError(self.where, "columns", ", ".join(columns), self.columns_text)


def place_of(name: str, header: Sequence[str]) -> int | None:
    """Number of a column by its name, with or without a unit; None if there is none."""
    wanted = plain_heading(name)
    for headings in ([plain_heading(one) for one in header], [heading(one)[0] for one in header]):
        if wanted in headings:
            return headings.index(wanted)
    return None


def plain_heading(name: str) -> str:
    """The name of a column as it is matched: metric az, Metric-AZ and metric_az are one."""
    return re.sub(r"[\s_-]+", "_", name.strip().strip("\ufeff").lower())


def heading(name: str) -> tuple[str, str]:
    """The name of a column as it is matched, without its unit, and the unit: "" if it has none."""
    bracketed = _BRACKETED.fullmatch(name.strip().strip("\ufeff"))
    if bracketed and (is_rate_unit(bracketed[2]) or is_time_unit(bracketed[2])):
        return plain_heading(bracketed[1]), bracketed[2]
    plain = plain_heading(name)
    suffixed = _SUFFIXED.fullmatch(plain)
    if suffixed and (is_rate_unit(suffixed[2]) or is_time_unit(suffixed[2])):
        return suffixed[1], suffixed[2]
    return plain, ""


def bracketed_heading(name: str) -> tuple[str, str]:
    """A heading without the text in brackets behind it, and that text; "" for no brackets."""
    bracketed = _BRACKETED.fullmatch(name.strip().strip("\ufeff"))
    return (bracketed[1], bracketed[2]) if bracketed else (name, "")


def cells_of_frame(frame: Any, where: str) -> CellTable:
    """The cells of a pandas frame as texts; a missing value is an empty cell."""
    rows = [list(map(cell_text, row)) for row in frame.itertuples(index=False)]
    header = [str(column) for column in frame.columns]
    return CellTable(where, header, list(enumerate(rows)), row_word="row")


def read_cells(
    path: Path, is_header: Callable[[list[str]], bool] | None = None, sheet: str = ""
) -> CellTable:
    """Read a .csv, .tsv or .xlsx file.

    Args:
        path: path of the file.
        is_header: says whether a row holds the names of the columns; None to take the first one.
        sheet: name of the sheet of a workbook; "" for the one that was open last.

    Raises:
        InputError: no such file, no text in UTF-8, no workbook, no such sheet, or an empty file.
    """
    if path.suffix.lower() == ".xlsx":
        rows, separator = _rows_of_workbook(path, sheet), ""
    else:
        if sheet:
            expected = "no # behind a file that is no workbook (.xlsx)"
            raise InputError(str(path), "", expected, f"#{sheet}")
        rows, separator = _rows_of_csv(path)
    if not rows:
        raise InputError(str(path), "", "a line of names of columns", "an empty file")
    first = 0
    if is_header is not None:
        candidates = range(min(len(rows), _MAX_TITLE_ROWS))
        first = next((number for number in candidates if is_header(rows[number][1])), 0)
    return CellTable(str(path), rows[first][1], rows[first + 1 :], separator)


def _rows_of_csv(path: Path) -> tuple[list[tuple[int, list[str]]], str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(str(path), "", "a text file in UTF-8", str(error)) from None
    except OSError as error:
        raise InputError(
            str(path), "", "a .csv, .tsv or .xlsx table", error.strerror or str(error)
        ) from None
    if "\0" in text:
        raise InputError(str(path), "", "a text file in UTF-8", "a file with null characters")
    lines = text.splitlines(keepends=True)
    separator = separator_of(lines[0]) if lines else ","
    reader, first, rows = csv.reader(lines, delimiter=separator), 1, list[tuple[int, list[str]]]()
    try:
        for row in reader:
            if row:
                rows.append((first, [canonical_name(cell) for cell in row]))
            first = reader.line_num + 1  # a cell in quotes may go over several lines
    except csv.Error as error:
        raise InputError(
            str(path), f"line {reader.line_num}", "a line of a CSV file", str(error)
        ) from None
    return rows, separator


def separator_of(line: str) -> str:
    """The sign between the columns of a CSV file, by its first line."""
    return max(",;\t", key=line.count)


def _rows_of_workbook(path: Path, sheet: str) -> list[tuple[int, list[str]]]:
    try:
        import openpyxl
    except ImportError:
        raise InputError(
            str(path), "", "pip install openpyxl, to read Excel files", "openpyxl is missing"
        ) from None
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        if sheet and sheet not in book.sheetnames:
            expected = "one of: " + ", ".join(book.sheetnames)
            raise InputError(str(path), f"#{sheet}", expected, "none of them")
        chosen: Any = book[sheet] if sheet else book.active
        rows = [[cell_text(cell) for cell in row] for row in chosen.iter_rows(values_only=True)]
    except InputError:
        raise
    except (
        Exception
    ) as error:  # a workbook can be broken in many ways, each with an exception of its own
        raise InputError(
            str(path), "", "an Excel workbook", f"{type(error).__name__}: {error}"[:120]
        ) from None
    return [(number, row) for number, row in enumerate(rows, start=1) if any(row)]


def cell_text(value: Any) -> str:
    """The text of a cell of a workbook or a frame; "" for an empty one.

    A number is written so that no other reading is possible: 1.125 as 1.1250, since 1.125 may have
    been meant as 1125.
    """
    if _is_missing(value):
        return ""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return canonical_name(str(value))
    if isinstance(value, numbers.Integral):  # of any length: ids of 64 bits keep their digits
        return str(int(value))
    number = float(value)
    text = f"{number:.0f}" if number.is_integer() else repr(number)
    return f"{text}0" if re.fullmatch(r"\d+\.\d{3}", text) else text


def _is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or pandas's NA and NaT, which compare with nothing."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, numbers.Real) and bool(value != value)
