"""Tables: what a terminal and a page show, cells with marks of Markdown and LaTeX, and the tables
of a run."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from teal.app.command import print_tables
from teal.app.table import Cell, Column, Table, writers
from teal.app.text import percent
from teal.cli import main

RECORDS = [
    {"name": "x[1]|y", "gap": 0.005, "limit": math.nan},
    {"name": "p_q", "gap": math.nan, "limit": math.nan},
]


def _table(*more: Column) -> Table:
    columns = (Column("scheme", itemgetter("name")), Column("gap", itemgetter("gap"), percent))
    return Table("a[b]_c", (*columns, *more), RECORDS)


def test_a_heading_of_two_lines_is_one_line_in_markdown() -> None:
    heading = _table(Column("of\nLP-all", itemgetter("gap"), percent)).markdown().splitlines()[2]
    assert heading == "| scheme | gap | of LP-all |"


def test_a_column_without_any_value_is_left_out_if_it_is_optional() -> None:
    limit = Column("limit", itemgetter("limit"), percent)
    assert _table(limit).texts()[0] == ["scheme", "gap", "limit"]
    optional = dataclasses.replace(limit, optional=True)
    assert _table(optional).texts()[0] == ["scheme", "gap"]
    some = Table("", [optional], [*RECORDS, {"limit": 0.0}])
    assert some.texts() == [["limit"], ["-"], ["-"], ["0.00%"]], "0 is a value"


def test_a_terminal_shows_the_first_records_and_a_page_all_with_numbers_to_sort_by() -> None:
    table = dataclasses.replace(_table(), shown=1)
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table.of_terminal())
    text = console.export_text()
    assert "a[b]_c" in text
    assert "x[1]|y" in text
    assert "p_q" not in text
    assert "the first 1 of 2" in text
    assert table.lines == [
        [Cell("x[1]|y", "x[1]|y", False), Cell("0.50%", "0.005", True)],
        [Cell("p_q", "p_q", False), Cell("-", "", True)],
    ]


def test_a_file_has_every_column_of_a_wide_table(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column(f"heading {number}", itemgetter("gap"), percent) for number in range(30)]
    print_tables([Table("wide", columns, RECORDS)])
    assert "heading 29" in capsys.readouterr().out
    print_tables([Table("narrow", columns[:7], RECORDS)], wide=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-2].count("│") == 8, "each column is there"


def test_a_column_may_sort_by_another_number_than_its_text_begins_with() -> None:
    column = Column("share (gap)", itemgetter("gap"), text=lambda record: f"{record['name']} (1%)")
    assert column.is_number
    assert [column.cell(record) for record in RECORDS] == [
        Cell("x[1]|y (1%)", "0.005", True),
        Cell("p_q (1%)", "", True),
    ]
    infinite = Column("time", itemgetter("time"), str)
    assert infinite.cell({"time": math.inf}).sort == "Infinity"
    assert infinite.cell({"time": np.float32(1.5)}).sort == "1.5"


def test_cells_are_as_in_the_terminal_and_escaped_for_each_language() -> None:
    assert _table().markdown().splitlines() == [
        "**a[b]_c**",
        "",
        "| scheme | gap |",
        "| --- | ---: |",
        r"| x[1]\|y | 0.50% |",
        "| p_q | - |",
    ]
    lines = _table().latex().splitlines()
    assert r"\caption{a[b]\_c}" in lines
    assert r"\begin{tabular}{lr}" in lines
    assert r"x[1]\textbar{}y & 0.50\% \\" in lines
    assert r"p\_q & - \\" in lines
    assert len(re.findall(r"(?<!\\)[&]", _table().latex())) == 3


@pytest.mark.slow
def test_the_tables_of_an_evaluation_are_written_beside_its_charts(tmp_path: Path) -> None:
    pytest.importorskip("teal_study", reason="needs the package teal_study")
    run, figures = tmp_path / "run", tmp_path / "figures"
    evaluate = [
        "evaluate",
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,count=10,load=4",
        "--limit",
        "2",
    ]
    assert (
        main([*evaluate, "--scheme", "shortest-path", "--scheme", "cspf", "--out", str(run)]) == 0
    )
    assert main(["report", "--results", str(run), "--figures", str(figures)]) == 0
    text = (figures / "tables.md").read_text(encoding="utf-8")
    assert text.count("| shortest-path |") == text.count("| cspf |") == 1
    assert (figures / "tables.tex").read_text(encoding="utf-8").count(
        r"\begin{tabular}"
    ) == text.count("**") // 2
    again = ["report", "--results", str(run), "--figures", str(figures)]
    assert main(again) == 2, "not replaced unasked"
    chosen = ["--columns", "Time; satisfied", "--label", "cspf=Ours & theirs"]
    assert main([*again, "--overwrite", *chosen]) == 0
    lines = (figures / "tables.tex").read_text(encoding="utf-8").splitlines()
    assert r"scheme & time & satisfied \\" in lines
    assert any(line.startswith(r"Ours \& theirs & ") for line in lines)
    assert "Ours &amp; theirs" in (figures / "b4-times.svg").read_text(encoding="utf-8")
    rows = (figures / "tables.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "table,scheme,time,satisfied"
    assert rows[2].split(",")[-3] == "Ours & theirs"
    formula = ["--columns", "scheme; time", "--label", r"cspf=a$\foo$"]
    assert main([*again, "--overwrite", *formula]) == 0, "a label is no formula"
    assert r"a$\foo$" in (figures / "tables.csv").read_text(encoding="utf-8")
    for wrong in (["--columns", "tim"], ["--label", "other=x"], ["--label", "cspf="]):
        assert main([*again, "--overwrite", *wrong]) == 2
    page = ["report", "--results", str(run), "--out", str(tmp_path / "a.html")]
    assert main([*page, "--columns", "time"]) == 2, "a page has all columns"


def test_several_tables_are_one_file(tmp_path: Path) -> None:
    for name, write in writers([_table(), _table()], "summary").items():
        write(tmp_path / name)
    assert (tmp_path / "summary.md").read_text().count("| --- | ---: |") == 2
    assert (tmp_path / "summary.tex").read_text().count(r"\toprule") == 2
