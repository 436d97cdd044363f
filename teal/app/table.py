"""Tables of results: each column is written once, and shown in the terminal, on a page, in Markdown
and in LaTeX.
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
    """A cell of a table.

    Attributes:
        text: text that is shown.
        sort: what a page sorts by; "" for a number that is unknown, which stays last.
        is_number: whether it is aligned as a number.
    """

    text: str
    sort: str
    is_number: bool


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        label: heading, with the unit.
        value: attribute of a record, or function from a record to the value, by which a page sorts
            if it is a number.
        show: function from a value to its text, of a column of numbers; None for a column of texts.
        most_is_best: whether the largest number is the best, which a first click on a page puts on
            top.
        text: function from a record to its text in the place of ``show``; None for ``show``.
        optional: whether the column is left out where no record has a value: all are NaN, None or
            "".
        is_name: whether it names records too, as the first column of a table does.
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
        """Whether it is sorted and aligned as numbers."""
        return self.show is not None or self.text is not None

    def of(self, record: Any) -> Any:
        """The value of a record."""
        return (
            self.value(record) if callable(self.value) else operator.attrgetter(self.value)(record)
        )

    def cell(self, record: Any) -> Cell:
        """The cell of a record."""
        value = self.of(record)
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
        # As JavaScript writes it.
        sort = "" if math.isnan(number) else repr(number).replace("inf", "Infinity")
        return Cell(text, sort, self.is_number)

    def is_shown(self, records: Iterable[Any]) -> bool:
        """Whether the column is not optional, or a record has a value."""
        return not self.optional or any(
            value not in (None, "") and value == value for value in map(self.of, records)
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Records and the columns that show them.

    Attributes:
        title: heading in the terminal; a page has its own.
        columns: in their order; the first one names the records.
        records: in their order.
        shown: number of records that a terminal shows; None for all.
        caption: line below the table of a terminal.
    """

    title: str
    columns: Sequence[Column]
    records: Sequence[Any]
    shown: int | None = None
    caption: str = ""

    def __post_init__(self) -> None:
        columns = tuple(column for column in self.columns if column.is_shown(self.records))
        object.__setattr__(self, "columns", columns)

    @property
    def by_heading(self) -> dict[str, Column]:
        """The columns after the first one by their headings, in one line and small letters."""
        return {" ".join(column.label.lower().split()): column for column in self.columns[1:]}

    def with_columns(self, headings: Sequence[str]) -> Table:
        """The table with those of the headings that it has, after the first column and in this
        order; with all columns where it has none of them.
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
        """The table with other names in its first column, and in others that name records."""
        first, *later_columns = self.columns

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
        """The cells of each record."""
        return [[column.cell(record) for column in self.columns] for record in self.records]

    def texts(self) -> list[list[str]]:
        """Headings, then the texts of the records that a terminal shows."""
        lines = self.lines[: self.shown]
        return [
            [column.label for column in self.columns],
            *([cell.text for cell in line] for line in lines),
        ]

    def of_terminal(self) -> TerminalTable:
        """The table as the package rich prints it."""
        from rich.markup import escape
        from rich.table import Table as TerminalTable

        headings, *lines = self.texts()
        table = TerminalTable(
            title=escape(self.title), title_justify="left", caption_justify="left"
        )
        for number, (heading, column) in enumerate(zip(headings, self.columns, strict=True)):
            table.add_column(
                escape(heading),
                justify="right" if column.is_number else "left",
                overflow="ellipsis" if number else "fold",
            )
        for line in lines:
            table.add_row(*map(escape, line))
        if self.caption:
            table.caption = escape(self.caption)
        elif len(lines) < len(self.records):
            table.caption = f"the first {len(lines):,} of {len(self.records):,}; --out has all"
        return table

    def markdown(self) -> str:
        """The table in the syntax of GitHub and MkDocs, its title as a paragraph before it."""
        rows = (
            (" ".join(cell.split()).replace("|", "\\|") for cell in row) for row in self.texts()
        )
        headings, *lines = (f"| {' | '.join(row)} |" for row in rows)
        marks = ["---:" if column.is_number else "---" for column in self.columns]
        return "\n".join(
            [f"**{self.title}**", "", headings, f"| {' | '.join(marks)} |", *lines, ""]
        )

    def latex(self) -> str:
        """The table for the package booktabs, its title as the caption."""
        kinds = "".join("r" if column.is_number else "l" for column in self.columns)
        headings, *lines = (" & ".join(map(_latex, row)) + r" \\" for row in self.texts())
        caption = rf"\caption{{{_latex(self.title)}}}"
        columns = rf"\begin{{tabular}}{{{kinds}}}"
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
    """Functions that write tables as ``name.md`` and ``name.tex``, for
    :func:`teal.app.run_files.write_files`.
    """
    written_tables = list(tables)
    texts = {
        f"{name}.md": map(Table.markdown, written_tables),
        f"{name}.tex": map(Table.latex, written_tables),
    }
    return {file: partial(_write, text="\n".join(parts)) for file, parts in texts.items()}


def csv_writer(tables: Sequence[Table]) -> Callable[[Path], None]:
    """A function that writes tables as CSV, one below the other: cells as they are shown, behind
    the title of their table.
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
    file.write_text(text, encoding="utf-8")


_OF_LATEX = {
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
    return "".join(_OF_LATEX.get(letter, letter) for letter in text)
