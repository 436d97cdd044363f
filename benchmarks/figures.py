r"""Stored figures, and the tables and numbers of README and docs that are filled from them.

    python -m benchmarks.figures              # fill README.md and the pages in docs/, in place
    python -m benchmarks.figures --check      # name pages that differ from the stored figures
    python benchmarks/remake.py               # make stale figures anew, and store them

A stored file is the CSV file of a benchmark behind a header of lines ``# key: value``: the command,
the machine, what ran beside, commit and date, and the folders of the code that the figures measure.
``benchmarks/recipes.toml`` says how each is made.

A page has a table between two comments, and a number or a line of the header likewise::

    <!-- table: engine.csv | network=Kdl | load, cold to 1%:time "to 1%" -->
    <!-- end -->
    Measured on <!-- header: engine.csv | machine -->2 cores<!-- end -->.
    Kdl takes <!-- value: engine.csv | network=Kdl | cold to 1%:time -->0.14 s<!-- end -->.

The parts are the file, conditions (``COLUMN=VALUE, ...``; ``A/B`` for one of several values) and
columns, each with a format and a heading (names with commas in quotation marks).  Formats: ``time``
(from s), ``ms`` (the same from ms), ``percent0`` to ``percent2`` (of a share), ``count``, ``g3``
(significant digits), ``code``, and none; a cell that is no number, such as ``not run``, stays, and
``>60`` of seconds becomes ``> 60 s``.  A file with the columns ``measure`` and ``value`` has a
row for each figure, and is read as one column for each measure. ``transposed`` behind ``table``
turns rows into columns.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import math
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "figures"
KEYS = ("command", "machine", "beside", "commit", "date", "sources")  # of each header
_MARK = re.compile(
    r"(?P<open><!-- (?P<kind>table|value|header)(?P<transposed> transposed)?: (?P<spec>[^>]*?) -->)"
    r".*?(?P<close><!-- end -->)",
    re.S,
)
_COLUMN = re.compile(r'^(?P<name>"[^"]+"|[^:"]+?)(?::(?P<form>\w+))?(?: "(?P<heading>[^"]*)")?$')

Row = dict[str, str]


def pages() -> list[Path]:
    """The files that may hold figures."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def read(name: str) -> tuple[Row, list[Row]]:
    """Header and rows of a stored file; one row for each group of figures if it has a row for each
    figure.
    """
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    header = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
    if rows and {"measure", "value"} <= set(rows[0]):
        groups: dict[tuple[str, ...], Row] = {}
        keys = [key for key in rows[0] if key not in ("measure", "value", "unit", "aim")]
        for row in rows:
            group = tuple(row[key] for key in keys)
            groups.setdefault(group, dict(zip(keys, group, strict=True)))[row["measure"]] = row[
                "value"
            ]
        rows = list(groups.values())
    return header, rows


def fill(text: str) -> str:
    """A page with its tables and numbers as the stored files have them.

    Raises:
        ValueError: if a file has no such column, or not one row for a number.
    """

    def filled(matched: re.Match[str]) -> str:
        parts = [part.strip() for part in matched["spec"].split("|")]
        if matched["kind"] == "header":
            return f"{matched['open']}{read(parts[0])[0][parts[1]]}{matched['close']}"
        if len(parts) != 3:
            raise ValueError(f"{matched['spec']}: expected FILE | CONDITIONS | COLUMNS")
        rows = _selected(read(parts[0])[1], parts[1], matched["spec"])
        columns = [_column(column.strip(), matched["spec"]) for column in _split(parts[2])]
        cells = [[_text(row.get(name, ""), form) for name, form, _ in columns] for row in rows]
        columns_of_rows = {name for row in rows for name in row}
        missing = [name for name, _, _ in columns if rows and name not in columns_of_rows]
        if missing or not rows:
            raise ValueError(
                f"{matched['spec']}: {'no column ' + missing[0] if missing else 'no row'}"
            )
        if matched["kind"] == "value":
            if len(cells) != 1:
                raise ValueError(f"{matched['spec']}: {len(cells)} rows in place of one")
            return f"{matched['open']}{', '.join(cells[0])}{matched['close']}"
        table = [[heading for _, _, heading in columns], *cells]
        if matched["transposed"]:
            table = [list(row) for row in zip(*table, strict=True)]
        table.insert(1, ["---"] * len(table[0]))
        return "\n".join(
            [matched["open"], *("| " + " | ".join(row) + " |" for row in table), matched["close"]]
        )

    return _MARK.sub(filled, text)


def _column(text: str, spec: str) -> tuple[str, str, str]:
    """Name, format and heading of a column."""
    matched = _COLUMN.match(text)
    if not matched:
        raise ValueError(f'{spec}: expected COLUMN:FORMAT "HEADING", ...')
    name = matched["name"].strip('"')
    return name, matched["form"] or "", name if matched["heading"] is None else matched["heading"]


def _split(text: str) -> list[str]:
    """The parts between commas that are not in quotation marks."""
    return re.findall(r'(?:"[^"]*"|[^,"])+', text)


def _selected(rows: list[Row], conditions: str, spec: str) -> list[Row]:
    for condition in filter(None, map(str.strip, _split(conditions))):
        column, _, values = condition.partition("=")
        if rows and not any(column in row for row in rows):
            raise ValueError(f"{spec}: no column {column}")
        allowed = (
            values.strip('"').split("/") if not values.startswith('"') else [values.strip('"')]
        )
        rows = [row for row in rows if row.get(column) in allowed]
    return rows


def _text(value: str, form: str) -> str:
    if form == "code":
        return f"`{value}`"
    if not form or not value:
        return value or "-"
    if value.startswith(">"):
        bound = re.sub(r"\.0+(?!\d)", "", _text(value[1:], form))
        return f"> {bound}"
    try:
        number = float(value)
    except ValueError:
        return value
    if not math.isfinite(number):
        return "-"
    if form == "count":
        return f"{number:,.0f}"
    if form.startswith("percent"):
        return f"{100 * number + 0.0:.{form[7:] or 2}f}%"
    if form == "ms":
        form = "time"
        number = number / 1000
    if form == "time":
        unit, scale = next(
            (u, s)
            for u, s in (("us", 1e6), ("ms", 1e3), ("s", 1.0))
            if number * s < 1000 or u == "s"
        )
        return (
            f"{_digits(number * scale, 2 if number * scale < 10 else 3)} {unit}" if number else "0"
        )
    if form.startswith("g"):
        return _digits(number, int(form[1:] or 3))
    raise ValueError(f"{form}: no such format")


def _digits(number: float, digits: int) -> str:
    """A number with so many significant digits, without an exponent."""
    if not number:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(number)))
    return f"{round(number, places):,.{max(places, 0)}f}"


def store(file: Path, name: str, command: str, beside: str, sources: list[str]) -> Path:
    """Copy a benchmark's CSV file into ``docs/figures`` behind a header; the path of the copy.

    Args:
        file: of the benchmark.
        name: of the copy.
        command: that made it.
        beside: what else ran on the machine.
        sources: files and folders of the code that the figures measure.
    """
    header = {
        "command": command,
        "machine": _machine(),
        "beside": beside,
        "commit": git("rev-parse", "--short", "HEAD").strip(),
        "date": datetime.date.today().isoformat(),
        "sources": " ".join(sources),
    }
    lines = file.read_text(encoding="utf-8").splitlines()
    body = [line for line in lines if not line.startswith("# ")]
    out = FOLDER / name
    head = [f"# {key}: {header[key]}" for key in KEYS]
    out.write_text("\n".join([*head, *body, ""]), encoding="utf-8")
    return out


def _machine() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        re.findall(r"^model name\s*: (.*)$", info.read_text(), flags=re.M) if info.is_file() else []
    )
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = names[0] if names else platform.processor() or platform.machine()
    return (
        f"{os.cpu_count()} cores of {processor}, {gib:.0f} GiB, Python {platform.python_version()}"
    )


def git(*words: str) -> str:
    """Output of a git command in this checkout."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
    ).stdout


def fill_pages(*, is_check: bool = False) -> bool:
    """Fill the pages from the stored figures, or check them; whether any differs."""
    differs = False
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = fill(text)
        if new == text:
            continue
        differs = True
        print(page.relative_to(ROOT), "differs" if is_check else "filled")
        if not is_check:
            page.write_text(new, encoding="utf-8")
    return differs


def main() -> int:
    """Fill the pages, or check them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 if a page would change"
    )
    options = parser.parse_args()
    differs = fill_pages(is_check=options.check)
    return int(options.check and differs)


if __name__ == "__main__":
    sys.exit(main())
