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
    """Return the Markdown pages that may have figures: those in the root and below docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def read(name: str) -> tuple[Row, list[Row]]:
    """Return the header and the rows of a stored file, by key and by column.

    If the file has the columns ``measure`` and ``value``, its rows are grouped by the remaining
    columns: each group is returned as one row, with the values of its measures as columns.

    Args:
        name: name of the file in docs/figures.
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
    """Return a page with its tables, numbers and header lines filled from the stored files.

    A mark is a pair of comments around each, ``<!-- KIND: FILE | ... -->`` and ``<!-- end -->``.

    Args:
        text: text of the page.

    Raises:
        ValueError: if a mark cannot be read, no row meets its conditions, a column is missing, or
            more than one row meets the conditions of a number.
    """

    def filled_mark(matched: re.Match[str]) -> str:
        """Return the opening comment, the new content and the closing comment of one mark."""
        parts = [part.strip() for part in matched["spec"].split("|")]
        if matched["kind"] == "header":
            header, _ = read(parts[0])
            return f"{matched['open']}{header[parts[1]]}{matched['close']}"
        if len(parts) != 3:
            raise ValueError(f"{matched['spec']}: expected FILE | CONDITIONS | COLUMNS")
        rows = _select_rows(read(parts[0])[1], parts[1], matched["spec"])
        columns = [_parse_column(column.strip(), matched["spec"]) for column in _split(parts[2])]
        cells = [
            [_format_cell(row.get(name, ""), cell_format) for name, cell_format, _ in columns]
            for row in rows
        ]
        present_columns = {name for row in rows for name in row}
        missing = [name for name, _, _ in columns if rows and name not in present_columns]
        if missing or not rows:
            raise ValueError(
                f"{matched['spec']}: {'no column ' + missing[0] if missing else 'no row'}"
            )
        if matched["kind"] == "value":
            if len(cells) != 1:
                raise ValueError(f"{matched['spec']}: {len(cells)} rows in place of one")
            return f"{matched['open']}{', '.join(cells[0])}{matched['close']}"
        # A table: headings, a line of dashes, and the rows.
        table = [[heading for _, _, heading in columns], *cells]
        if matched["transposed"]:
            table = [list(row) for row in zip(*table, strict=True)]
        table.insert(1, ["---"] * len(table[0]))
        return "\n".join(
            [matched["open"], *("| " + " | ".join(row) + " |" for row in table), matched["close"]]
        )

    return _MARK.sub(filled_mark, text)


def _parse_column(text: str, spec: str) -> tuple[str, str, str]:
    """Return the name, the format and the heading of a column.

    Args:
        text: column of a mark, ``NAME:FORMAT "HEADING"``; format and heading may be missing.
        spec: text of the mark, for the message.
    """
    matched = _COLUMN.match(text)
    if not matched:
        raise ValueError(f'{spec}: expected COLUMN:FORMAT "HEADING", ...')
    name = matched["name"].strip('"')
    return name, matched["form"] or "", name if matched["heading"] is None else matched["heading"]


def _split(text: str) -> list[str]:
    """Split a text at its commas, except for those in quotation marks."""
    return re.findall(r'(?:"[^"]*"|[^,"])+', text)


def _select_rows(rows: list[Row], conditions: str, spec: str) -> list[Row]:
    """Return the rows that meet all conditions.

    Args:
        rows: rows by column.
        conditions: ``COLUMN=VALUE, ...``, where ``A/B`` allows several values unless quoted.
        spec: text of the mark, for the message.
    """
    for condition in filter(None, map(str.strip, _split(conditions))):
        column, _, values = condition.partition("=")
        if rows and not any(column in row for row in rows):
            raise ValueError(f"{spec}: no column {column}")
        allowed = (
            values.strip('"').split("/") if not values.startswith('"') else [values.strip('"')]
        )
        rows = [row for row in rows if row.get(column) in allowed]
    return rows


def _format_cell(value: str, cell_format: str) -> str:
    """Return a stored value as the text of a cell, in one of the formats of the
    module docstring.

    Args:
        value: value as stored; empty for none.
        cell_format: format, such as ``time`` or ``percent1``; empty for none.
    """
    if cell_format == "code":
        return f"`{value}`"
    if not cell_format or not value:
        return value or "-"
    # A time limit: no decimals.
    if value.startswith(">"):
        bound = re.sub(r"\.0+(?!\d)", "", _format_cell(value[1:], cell_format))
        return f"> {bound}"
    try:
        number = float(value)
    except ValueError:
        return value
    if not math.isfinite(number):
        return "-"
    if cell_format == "count":
        return f"{number:,.0f}"
    if cell_format.startswith("percent"):
        return f"{100 * number + 0.0:.{cell_format[7:] or 2}f}%"
    if cell_format == "ms":
        cell_format = "time"
        number = number / 1000
    if cell_format == "time":
        # The first unit in which the number is below 1000.
        unit, scale = next(
            (u, s)
            for u, s in (("us", 1e6), ("ms", 1e3), ("s", 1.0))
            if number * s < 1000 or u == "s"
        )
        return (
            f"{_format_digits(number * scale, 2 if number * scale < 10 else 3)} {unit}"
            if number
            else "0"
        )
    if cell_format.startswith("g"):
        return _format_digits(number, int(cell_format[1:] or 3))
    raise ValueError(
        f"{cell_format}: no such format; expected time, ms, percent0 to percent2, count, "
        "g1 to g9 or code"
    )


def _format_digits(number: float, digits: int) -> str:
    """Return a number with ``digits`` significant digits and commas, without an exponent."""
    if not number:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(number)))
    return f"{round(number, places):,.{max(places, 0)}f}"


def store(file: Path, name: str, command: str, beside: str, sources: list[str]) -> Path:
    """Copy a benchmark's CSV file into ``docs/figures``, with a header that says how it was made.

    Args:
        file: CSV file of the benchmark.
        name: name of the copy.
        command: command that made the file.
        beside: other programs that ran on the machine, or "nothing".
        sources: files and folders of the code that the figures measure.

    Returns:
        path of the copy.
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
    header_lines = [f"# {key}: {header[key]}" for key in KEYS]
    out.write_text("\n".join([*header_lines, *body, ""]), encoding="utf-8")
    return out


def _machine() -> str:
    """Return the number and kind of the cores, the memory and the Python version, as one text."""
    cpu_info = Path("/proc/cpuinfo")
    names = (
        re.findall(r"^model name\s*: (.*)$", cpu_info.read_text(), flags=re.M)
        if cpu_info.is_file()
        else []
    )
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = names[0] if names else platform.processor() or platform.machine()
    return (
        f"{os.cpu_count()} cores of {processor}, {gib:.0f} GiB, Python {platform.python_version()}"
    )


def git(*words: str) -> str:
    """Return the output of a git command in this checkout; ``words`` are its arguments."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
    ).stdout


def fill_pages(*, is_check: bool = False) -> bool:
    """Fill the pages from the stored figures, and print those that differed.

    Args:
        is_check: compare only, and write nothing.

    Returns:
        whether any page differed.
    """
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
    """Fill the pages, or check them with --check; return 1 if a checked page differs, else 0."""
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
