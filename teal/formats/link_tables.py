"""Links as a table, CSV or Excel: a row for each cable, or for each direction of one.

Columns ``source``, ``target``, ``capacity``, and perhaps ``latency`` (or ``delay``, ms), ``metric`` and ``members``
(links of an aggregation group, whose capacities add up); names are matched without case, and others can be given.  A
cell may name its unit: 100G, 10 Gbit/s, 400GE, 2x100G, 3.5ms, 800us.  If for every row there is one in the other
direction, rows are directions; otherwise cables.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.formats.records import Attributes, LinkRecord, number, topology_from_records
from teal.formats.units import gbps_per_unit
from teal.network import Topology

SUFFIXES = (".csv", ".xlsx")
_OTHER_NAMES = {"latency": ("delay",), "capacity": ("bandwidth",), "source": ("from",), "target": ("to",)}
_COUNTED = re.compile(r"(?:(\d+)\s*x\s*)?([0-9.]+(?:e[+-]?\d+)?)\s*([a-zA-Z/]*)", re.IGNORECASE)
_SHORT_UNITS = {"G": "Gbit/s", "GE": "Gbit/s", "M": "Mbit/s", "T": "Tbit/s", "K": "kbit/s", "TE": "Tbit/s"}
_MS_PER_UNIT = {"": 1.0, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "s": 1e3}


def read_link_table(path: Path, default_capacity: float | None, attributes: Attributes) -> Topology:
    """Read a network.

    Args:
        path: of a .csv or .xlsx file.
        default_capacity: Gbit/s of links that have none; None to refuse them.
        attributes: names of the columns.

    Raises:
        InputError: a column missing, a cell that is no number with a unit, or what :func:`topology_from_records`
            refuses.
    """
    header, rows = _cells(path)
    return _from_cells(path.stem, str(path), header, rows, default_capacity, attributes)


def topology_from_link_frame(frame: Any, default_capacity: float | None, attributes: Attributes) -> Topology:
    """The network of a pandas frame with the columns of a table; arguments and errors as of :func:`read_link_table`."""
    header = [str(column) for column in frame.columns]
    rows = ((number, ["" if value != value else str(value) for value in row])  # a NaN is an empty cell
            for number, row in enumerate(frame.itertuples(index=False)))  # fmt: skip
    return _from_cells("frame", "data frame", header, rows, default_capacity, attributes, "row")


def _from_cells(
    name: str,
    where: str,
    header: list[str],
    rows: Iterable[tuple[int, list[str]]],
    default_capacity: float | None,
    attributes: Attributes,
    row_word: str = "line",
) -> Topology:
    columns = _columns(header, attributes, where)
    records, nodes = [], dict[str, tuple[float, float] | None]()
    for line, row in rows:
        cell = {name: row[place].strip() if place < len(row) else "" for name, place in columns.items()}
        if not any(cell.values()):
            continue
        field = f"{row_word} {line}"
        for end in ("source", "target"):
            if not cell[end]:
                raise InputError(where, f"{field}: {end}", "a name of a node", "an empty cell")
            nodes.setdefault(cell[end])
        capacity = gbps(cell.get("capacity", ""), attributes.capacity_unit, where, f"{field}: capacity")
        if capacity is not None and cell.get("members"):
            capacity *= number(cell["members"], where, f"{field}: members")
        metric = cell.get("metric")
        records.append(LinkRecord(
            cell["source"], cell["target"], capacity, _ms(cell.get("latency", ""), where, f"{field}: latency"), field,
            tuple(header), number(metric, where, f"{field}: metric") if metric else None,
        ))  # fmt: skip
    if not records:
        raise InputError(where, "", "a row for each link", "none")
    count = Counter((one.source, one.target) for one in records)
    directed = all(count[a, b] == count[b, a] for a, b in count)
    unused = [name for place, name in enumerate(header) if name.strip() and place not in columns.values()]
    notes = [f"Columns that are not used: {', '.join(unused)}."] if unused else []
    notes.append(f"A row is {'one direction of a link' if directed else 'a cable with both directions'}.")
    return topology_from_records(
        name, where, nodes, records, directed=directed, default_capacity=default_capacity, notes=tuple(notes)
    )


def gbps(text: str, unit: str, where: str, field: str) -> float | None:
    """Gbit/s of a cell such as 100G, 2x100G, 10 Gbit/s or 40; None for an empty one.

    Args:
        text: of the cell.
        unit: of cells without one; "" for Gbit/s.
        where, field: for messages.

    Raises:
        InputError: any other text.
    """
    if not text:
        return None
    match = _COUNTED.fullmatch(text.strip().replace(",", ""))
    if not match:
        raise InputError(where, field, "a capacity such as 100G, 10 Gbit/s or 2x100G", repr(text))
    members, value, own = match.groups()
    name = _SHORT_UNITS.get(own.upper(), own) or unit or "Gbit/s"
    return int(members or 1) * number(value, where, field) * gbps_per_unit(name, f"{where}: {field}")


def _ms(text: str, where: str, field: str) -> float | None:
    if not text:
        return None
    match = re.fullmatch(r"([0-9.eE+-]+)\s*([a-zA-Zµ]*)", text)
    if not match or match[2].lower() not in _MS_PER_UNIT:
        raise InputError(where, field, "a delay such as 3.5, 3.5ms or 800us", repr(text))
    return number(match[1], where, field) * _MS_PER_UNIT[match[2].lower()]


def _columns(header: list[str], attributes: Attributes, where: str) -> dict[str, int]:
    """Place of each column that is used."""
    plain = [name.strip().strip("\ufeff").lower() for name in header]
    columns = {}
    for name in ("source", "target", "capacity", "latency", "metric", "members"):
        asked = getattr(attributes, name, name)
        for option in (asked, *(_OTHER_NAMES.get(name, ()) if asked == name else ())):
            if option.lower() in plain:
                columns[name] = plain.index(option.lower())
                break
        else:
            if name in ("source", "target") or asked != name:
                raise InputError(where, asked, f"a column {asked}", ", ".join(header))
    return columns


def _cells(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Names of the columns, and number and texts of each row."""
    if path.suffix.lower() == ".xlsx":
        return _excel(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(str(path), "", "a text file in UTF-8", str(error)) from None
    if not lines:
        raise InputError(str(path), "", "a line of names of columns", "an empty file")
    delimiter = max(",;\t", key=lines[0].count)
    rows = list(csv.reader(lines, delimiter=delimiter))
    return rows[0], iter(enumerate(rows[1:], start=2))


def _excel(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    try:
        import openpyxl
    except ImportError:
        raise InputError(str(path), "", "pip install openpyxl, to read Excel files", "openpyxl is missing") from None
    try:
        sheet: Any = openpyxl.load_workbook(path, read_only=True, data_only=True).active
        rows = [["" if cell is None else str(cell) for cell in row] for row in sheet.iter_rows(values_only=True)]
    except Exception as error:  # a workbook can be broken in many ways, each with an exception of its own
        raise InputError(str(path), "", "an Excel workbook", f"{type(error).__name__}: {error}"[:120]) from None
    if not rows:
        raise InputError(str(path), "", "a row of names of columns", "an empty sheet")
    return rows[0], iter(enumerate(rows[1:], start=2))
