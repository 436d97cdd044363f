"""Tables of results: columns defined once, for the terminal, HTML pages, Markdown, LaTeX and CSV.

A :class:`Table` has records (any objects) and :class:`Column` objects that read and format their
values.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table as TerminalTable


class Cell(NamedTuple):
    """Text of a table's cell, with its sort key and alignment.

    Attributes:
        text: displayed text.
        sort: sort key on a page; "" for an unknown number, which is sorted last.
        is_number: whether the cell is aligned as a number.
    """

    text: str
    sort: str
    is_number: bool


@dataclasses.dataclass(frozen=True)
class Column:
    """Column of a table: its heading, and how a record's value is read and formatted.

    Attributes:
        label: heading, with the unit.
        value: name of a record's attribute, or function from a record to its value; pages sort by
            numeric values.
        show: function that formats a number; None for a column of texts.
        most_is_best: whether larger numbers are better, so that the first click on the heading of a
            page sorts in descending order.
        text: function from a record to its displayed text, instead of ``show``; None to use
            ``show``.
        optional: whether to omit the column if no record has a value (all are NaN, None or "").
        is_name: whether the column names records, as the first column of a table does.
    """

    label: str
    value: str | Callable[[Any], Any]
    show: Callable[[Any], str] | None = None
    most_is_best: bool = False
    text: Callable[[Any], str] | None = None
    optional: bool = False
    is_name: bool = False

    @property
    def is_number(self) -> bool:
        """Whether the cells of the column are sorted and aligned as numbers."""
        return self.show is not None or self.text is not None

    def of(self, record: Any) -> Any:
        """Return the value of a record in this column: the record's attribute, or the result of the
        column's function.
        """
        return (
            self.value(record) if callable(self.value) else operator.attrgetter(self.value)(record)
        )

    def cell(self, record: Any) -> Cell:
        """Return the cell of a record in this column: its displayed text and its sort key."""
        value = self.of(record)
        # Displayed text: by the function ``text``, else by ``show``, else the value itself.
        text = (
            self.text(record)
            if self.text is not None
            else str(value)
            if self.show is None
            else self.show(value)
        )
        if not isinstance(value, Real):
            return Cell(text, text, self.is_number)
        number = float(value)
        # The sort key of a number in JavaScript's notation.
        sort = "" if math.isnan(number) else repr(number).replace("inf", "Infinity")
        return Cell(text, sort, self.is_number)

    def is_shown(self, records: Iterable[Any]) -> bool:
        """Return whether the table of these records has the column: it is not optional, or some
        record has a value in it.
        """
        # NaN differs from itself.
        return not self.optional or any(
            value not in (None, "") and value == value for value in map(self.of, records)
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Table with a row for each record, for printing and files.

    Attributes:
        title: heading in the terminal, Markdown and LaTeX; pages have their own headings.
        columns: columns in their order; the first one names the records.
        records: records in their order.
        shown: maximum number of records in the terminal, Markdown, LaTeX and CSV; None for all.
        caption: line below the table in the terminal.
    """

    title: str
    columns: Sequence[Column]
    records: Sequence[Any]
    shown: int | None = None
    caption: str = ""

    def __post_init__(self) -> None:
        """Drop the optional columns in which no record has a value."""
        columns = tuple(column for column in self.columns if column.is_shown(self.records))
        object.__setattr__(self, "columns", columns)

    @property
    def by_heading(self) -> dict[str, Column]:
        """Dictionary of the columns after the first one, by their headings in lower case without
        line breaks.
        """
        return {" ".join(column.label.lower().split()): column for column in self.columns[1:]}

    def with_columns(self, headings: Sequence[str]) -> Table:
        """Restrict the table to the first column, the columns that name records, and the columns
        with these headings, in this order; unchanged if it has none of the headings.
        """
        columns_by_heading = self.by_heading
        columns = [
            columns_by_heading[heading] for heading in headings if heading in columns_by_heading
        ]
        if not columns:
            return self
        names = [column for column in self.columns[1:] if column.is_name and column not in columns]
        return dataclasses.replace(self, columns=(self.columns[0], *names, *columns))

    def labelled(self, labels: Mapping[str, str]) -> Table:
        """Return the table with renamed records.

        Args:
            labels: new name by present name, for the first column and others that name records;
                names without an entry stay.
        """
        first, *later_columns = self.columns

        # A column that shows the new names of the records.
        def labelled(column: Column) -> Column:
            def label(record: Any) -> str:
                name = str(column.of(record))
                return labels.get(name, name)

            return dataclasses.replace(column, value=label, show=None, text=None)

        labelled_columns = [
            labelled(column) if column.is_name else column for column in later_columns
        ]
        return dataclasses.replace(self, columns=(labelled(first), *labelled_columns))

    @property
    def lines(self) -> list[list[Cell]]:
        """Rows of the table: the cells of each record, in the order of the columns."""
        return [[column.cell(record) for column in self.columns] for record in self.records]

    def texts(self) -> list[list[str]]:
        """Return the rows of the table as texts: the headings, then the displayed texts of each
        record, up to ``shown`` records.
        """
        lines = self.lines[: self.shown]
        return [
            [column.label for column in self.columns],
            *([cell.text for cell in line] for line in lines),
        ]

    def of_terminal(self) -> TerminalTable:
        """Return the table as an object that the package rich prints."""
        from rich.markup import escape
        from rich.table import Table as TerminalTable

        # Columns; only the first one is wrapped, others are cut.
        headings, *lines = self.texts()
        table = TerminalTable(
            title=escape(self.title), title_justify="left", caption_justify="left"
        )
        for index, (heading, column) in enumerate(zip(headings, self.columns, strict=True)):
            table.add_column(
                escape(heading),
                justify="right" if column.is_number else "left",
                overflow="ellipsis" if index else "fold",
            )
        # Rows, and a caption, which tells whether rows are missing.
        for line in lines:
            table.add_row(*map(escape, line))
        if self.caption:
            table.caption = escape(self.caption)
        elif len(lines) < len(self.records):
            table.caption = (
                f"the first {len(lines):,} of {len(self.records):,} rows; --out writes all"
            )
        return table

    def markdown(self) -> str:
        """Return the table in Markdown (GitHub, MkDocs), after a paragraph with its title."""
        # Cells without line breaks and column separators.
        rows = (
            (" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in self.texts()
        )
        headings, *lines = (f"| {' | '.join(row)} |" for row in rows)
        marks = ["---:" if column.is_number else "---" for column in self.columns]
        return "\n".join(
            [f"**{self.title}**", "", headings, f"| {' | '.join(marks)} |", *lines, ""]
        )

    def latex(self) -> str:
        """Return the table in LaTeX, for the package booktabs, with its title as the caption."""
        alignments = "".join("r" if column.is_number else "l" for column in self.columns)
        headings, *lines = (" & ".join(map(_latex, row)) + r" \\" for row in self.texts())
        # A floating table with its caption above it.
        caption = rf"\caption{{{_latex(self.title)}}}"
        columns = rf"\begin{{tabular}}{{{alignments}}}"
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                caption,
                columns,
                r"\toprule",
                headings,
                r"\midrule",
                *lines,
                r"\bottomrule",
                r"\end{tabular}",
                r"\end{table}",
                "",
            ]
        )


def writers(tables: Iterable[Table], name: str) -> dict[str, Callable[[Path], None]]:
    """Return functions that write tables in Markdown and LaTeX to a path, by the names of the
    files.

    Args:
        tables: the tables, written one below the other.
        name: name of the files without suffix.
    """
    written_tables = list(tables)
    texts = {
        f"{name}.md": map(Table.markdown, written_tables),
        f"{name}.tex": map(Table.latex, written_tables),
    }
    return {file: partial(_write, text="\n".join(parts)) for file, parts in texts.items()}


def csv_writer(tables: Sequence[Table]) -> Callable[[Path], None]:
    """Return a function that writes tables to a CSV file, one below the other.

    A row has the title of its table and the displayed texts of the cells; a row of headings comes
    before each table.
    """

    def write(file: Path) -> None:
        with file.open("w", newline="", encoding="utf-8") as stream:
            rows = csv.writer(stream)
            for table in tables:
                headings, *lines = table.texts()
                rows.writerow(["table", *(" ".join(heading.split()) for heading in headings)])
                rows.writerows([table.title, *line] for line in lines)

    return write


def _write(file: Path, text: str) -> None:
    """Write a text to a file as UTF-8."""
    file.write_text(text, encoding="utf-8")


# LaTeX text of special characters.
_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def _latex(text: str) -> str:
    """Return a text with the characters escaped that LaTeX would interpret."""
    return "".join(_LATEX_ESCAPES.get(letter, letter) for letter in text)
