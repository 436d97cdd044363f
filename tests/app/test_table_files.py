"""Tables as Markdown and LaTeX: cells with marks of either language, and the tables of a run that exists."""

from __future__ import annotations

import re
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from teal.app.table_files import latex, markdown, writers
from teal.cli import main


def _table() -> Table:
    table = Table(title=escape("a[b]_c"))
    table.add_column("scheme")
    table.add_column("gap", justify="right")
    table.add_row(escape("x[1]|y"), "0.5%")
    table.add_row("[bold]p_q[/bold]", "-")
    return table


def test_cells_are_as_in_the_terminal_and_escaped_for_each_language() -> None:
    assert markdown(_table()).splitlines() == [
        "**a[b]_c**", "", "| scheme | gap |", "| --- | ---: |", r"| x[1]\|y | 0.5% |", "| p_q | - |",
    ]  # fmt: skip
    lines = latex(_table()).splitlines()
    assert r"\caption{a[b]\_c}" in lines
    assert r"\begin{tabular}{lr}" in lines
    assert r"x[1]\textbar{}y & 0.5\% \\" in lines
    assert r"p\_q & - \\" in lines
    assert len(re.findall(r"(?<!\\)[&]", latex(_table()))) == 3


def test_the_tables_of_an_evaluation_are_written_beside_its_charts(tmp_path: Path) -> None:
    run, figures = tmp_path / "run", tmp_path / "figures"
    evaluate = ["evaluate", "--topology", "b4", "--traffic", "gravity:seed=0,count=10,load=4", "--limit", "2"]
    assert main([*evaluate, "--scheme", "shortest-path", "--scheme", "cspf", "--out", str(run)]) == 0
    assert main(["report", "--results", str(run), "--figures", str(figures)]) == 0
    text = (figures / "tables.md").read_text(encoding="utf-8")
    assert text.count("| shortest-path |") == text.count("| cspf |") == 1
    assert (figures / "tables.tex").read_text(encoding="utf-8").count(r"\begin{tabular}") == text.count("**") // 2
    assert main(["report", "--results", str(run), "--figures", str(figures)]) == 2, "not replaced unasked"


def test_several_tables_are_one_file(tmp_path: Path) -> None:
    for name, write in writers([_table(), _table()], "summary").items():
        write(tmp_path / name)
    assert (tmp_path / "summary.md").read_text().count("| --- | ---: |") == 2
    assert (tmp_path / "summary.tex").read_text().count(r"\toprule") == 2
