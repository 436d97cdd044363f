"""Tables of a terminal as Markdown and LaTeX, for pages and papers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from rich.table import Table
from rich.text import Text

_OF_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}",
}  # fmt: skip


def _rows(table: Table) -> list[list[str]]:
    """Headings, then the cells of each row, without markup."""
    columns = [[column.header, *column.cells] for column in table.columns]
    return [[Text.from_markup(str(cell)).plain for cell in row] for row in zip(*columns, strict=True)]


def _title(table: Table) -> str:
    return Text.from_markup(str(table.title or "")).plain


def markdown(table: Table) -> str:
    """A table in the syntax of GitHub and MkDocs, its title as a paragraph before it."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in _rows(table)]
    marks = ["---:" if column.justify == "right" else "---" for column in table.columns]
    return "\n".join([f"**{_title(table)}**", "", lines[0], f"| {' | '.join(marks)} |", *lines[1:], ""])


def latex(table: Table) -> str:
    """A table for the package booktabs, its title as the caption."""
    kinds = "".join("r" if column.justify == "right" else "l" for column in table.columns)
    lines = [" & ".join(map(_escaped, row)) + r" \\" for row in _rows(table)]
    caption, columns = rf"\caption{{{_escaped(_title(table))}}}", rf"\begin{{tabular}}{{{kinds}}}"
    return "\n".join(
        [
            r"\begin{table}", r"\centering", caption, columns,
            r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
        ]
    )  # fmt: skip


def _escaped(text: str) -> str:
    return "".join(_OF_LATEX.get(letter, letter) for letter in text)


def writers(tables: Iterable[Table], name: str) -> dict[str, Callable[[Path], None]]:
    """Functions that write tables as ``name.md`` and ``name.tex``, for :func:`teal.app.run_files.write_files`."""
    kept = list(tables)
    texts = {f"{name}{ending}": "\n".join(map(form, kept)) for ending, form in ((".md", markdown), (".tex", latex))}
    return {file: partial(_write, text=text) for file, text in texts.items()}


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
