"""Tables beside a network, read by one set of rules: every way of writing one gives the same
rows."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from teal.errors import InputError, InputWarning
from teal.formats.side_tables import (
    SOURCE,
    TARGET,
    Column,
    Kind,
    read_side_table,
    require_once,
)

COLUMNS = (
    SOURCE,
    TARGET,
    Column("rate", Kind.RATE, required=True),
    Column("mtbf", Kind.DURATION),
    Column("delay", Kind.DELAY),
    Column("availability", Kind.SHARE),
    Column("value", Kind.NUMBER),
    Column("sold", Kind.YES_NO),
)
HEADER = ["source", "target", "rate", "mtbf", "delay", "availability", "value", "sold"]
EXPECTED = {
    "source": "a",
    "target": "b",
    "rate": pytest.approx(2.5),
    "mtbf": pytest.approx(48.0),
    "delay": pytest.approx(1.5),
    "availability": pytest.approx(0.9995),
    "value": pytest.approx(7.25),
    "sold": True,
}


def _values(path: Path, text: str, encoding: str = "utf-8") -> dict[str, Any]:
    path.write_text(text, encoding=encoding)
    rows = read_side_table(path, COLUMNS)
    assert len(rows) == 1
    return rows[0].values


@pytest.mark.parametrize(
    ("separator", "bom", "end", "title"),
    list(itertools.product([",", ";", "\t"], [False, True], ["\n", "\r\n"], [False, True])),
)
def test_separators_marks_and_titles_do_not_matter(
    tmp_path: Path, separator: str, bom: bool, end: str, title: bool
) -> None:
    row = ["a", "b", "2.5", "48", "1.5", "0.9995", "7.25", "yes"]
    lines = [separator.join(HEADER), separator.join(row), separator * 7, ""]
    if title:
        lines.insert(0, separator.join(["Promises of 2026", *[""] * 7]))
    found = _values(tmp_path / "t.csv", end.join(lines), "utf-8-sig" if bom else "utf-8")
    assert found == EXPECTED


@pytest.mark.parametrize(
    ("column", "heading", "cell"),
    [
        ("rate", "Rate (Mbit/s)", "2500"),
        ("rate", "rate_mbps", "2500"),
        ("rate", "RATE [Gbps]", "2.5"),
        ("rate", "rate", "2500M"),
        ("rate", "rate", "2.5 Gbit/s"),
        ("mtbf", "MTBF (s)", "172800"),
        ("mtbf", "mtbf (min)", "2880"),
        ("mtbf", "mtbf_d", "2"),
        ("mtbf", "MTBF (h)", "48"),
        ("mtbf", "mtbf", "2d"),
        ("mtbf", "mtbf", "48 hours"),
        ("delay", "Delay (us)", "1500"),
        ("delay", "delay", "1500us"),
        ("availability", "Availability (%)", "99.95"),
        ("availability", "availability_percent", "99.95"),
        ("availability", "availability", "99.95%"),
        ("value", "value (EUR)", "7.25"),
        ("sold", "SOLD", "Y"),
        ("sold", "sold", "1.0"),
        ("sold", "sold", "x"),
        ("source", "From", "a"),
        ("target", " to ", "b"),
    ],
)
def test_units_stand_in_the_heading_or_the_cell(
    tmp_path: Path, column: str, heading: str, cell: str
) -> None:
    header = [heading if name == column else name for name in HEADER]
    row = dict(zip(HEADER, ["a", "b", "2.5", "48", "1.5", "0.9995", "7.25", "yes"], strict=True))
    cells = [*{**row, column: cell}.values()]
    text = f"{','.join(header)}\n{','.join(cells)}\n"
    assert _values(tmp_path / "t.csv", text) == EXPECTED
    frame = pd.DataFrame([cells], columns=header)
    assert read_side_table(frame, COLUMNS)[0].values == EXPECTED


def test_decimal_commas_are_those_of_all_tables(tmp_path: Path) -> None:
    text = f"{';'.join(HEADER)}\na;b;2,5;48;1,5;0,9995;7,25;ja\n".replace(";ja", ";yes")
    assert _values(tmp_path / "t.csv", text) == EXPECTED
    assert _values(tmp_path / "t.tsv", text.replace(";", "\t")) == EXPECTED
    ambiguous = "source;target;rate\na;b;8.760\n"
    with pytest.raises(InputError, match=r"ambiguous: 8\.76 or 8760"):
        _values(tmp_path / "t.csv", ambiguous)


def test_a_workbook_is_read_as_a_text(tmp_path: Path) -> None:
    frame = pd.DataFrame([["a", "b", 2500, 48, 1.5, 0.9995, 7.25, "yes"]], columns=HEADER)
    frame = frame.rename(columns={"rate": "Rate (Mbit/s)"})
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    assert read_side_table(tmp_path / "t.xlsx", COLUMNS)[0].values == EXPECTED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("source,target\na,b\n", r"columns: expected source, target, rate \(optional:"),
        ("source target rate\na b 1\n", "separated by commas, semicolons or tabs"),
        ("source,target,rate,Rate (G)\na,b,1,1\n", "rate: two columns have this name"),
        ("source,target,rate (weeks)\na,b,1\n", "an unsupported unit"),
        (
            "source,target,rate,value (per Mbit/s)\na,b,1,1\n",
            "value: the heading 'value \\(per Mbit/s\\)' has an unsupported",
        ),
        ("source,target,rate\na,b,much\n", "line 2: rate: expected a rate such as"),
        ("source,target,rate\na,b,5 apples\n", "line 2: rate: expected a rate such as"),
        ("source,target,rate,sold\na,b,1,maybe\n", "line 2: sold: expected yes or no"),
    ],
)
def test_a_fault_is_one_line_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        read_side_table(file, COLUMNS)


def test_a_column_that_is_not_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("source,target,rate,revenue\na,b,1,5\n")
    with pytest.warns(InputWarning, match="unused columns: revenue"):
        read_side_table(file, COLUMNS)


def test_what_is_said_twice_is_refused_unless_it_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("source,target,rate\na,b,1\nb,a,1\nb,a,2\n")
    rows = read_side_table(file, COLUMNS)
    cables = [frozenset([row.text("source"), row.text("target")]) for row in rows]
    rates = [row.values["rate"] for row in rows]
    require_once(rows[:2], cables[:2], "each cable", rates[:2])
    with pytest.raises(InputError, match=r"line 4: the row repeats .*line 2, but each cable may"):
        require_once(rows, cables, "each cable", rates)
    with pytest.raises(InputError, match="line 3: the row repeats"):
        require_once(rows[:2], cables[:2], "each cable")
