"""Links as a table, CSV or Excel: a row for each cable, or for each direction of one.

Columns ``source``, ``target``, ``capacity``, and perhaps ``latency`` (or ``delay``, ms), ``metric``, ``metric_back``
(that of the other direction, for a row a circuit; also ``metric_az`` and ``metric_za``), ``te_metric``, ``affinity``
(names of administrative groups, ``red;core``) and ``members`` (links of an aggregation group, whose capacities add up);
names are matched without case, and others can be given.  A
cell may name its unit: 100G, 10 Gbit/s, 400GE, 2x100G, 3.5ms, 800us.  If for most rows there is one in the other
direction, rows are directions; otherwise cables.  Rows that do not follow the others, identical rows and names that
look alike are named in warnings.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from teal.errors import WARNING, InputError, listed
from teal.formats.records import Attributes, LinkRecord, affinities_of, number, topology_from_records
from teal.formats.units import gbps_per_unit
from teal.network import Topology

SUFFIXES = (".csv", ".xlsx")
_OTHER_NAMES = {"latency": ("delay",), "capacity": ("bandwidth",), "source": ("from",), "target": ("to",),
                "metric": ("metric_az",), "metric_back": ("metric_za", "reverse_metric"),
                "affinity": ("affinities",)}  # fmt: skip
_COUNTED = re.compile(r"(?:(\d+)\s*x\s*)?([0-9.]+(?:e[+-]?\d+)?)\s*([a-zA-Z/]*)", re.IGNORECASE)
_SHORT_UNITS = {"G": "Gbit/s", "GE": "Gbit/s", "M": "Mbit/s", "T": "Tbit/s", "K": "kbit/s", "TE": "Tbit/s"}
_GLYPHS = str.maketrans("0o1I|", "OOlll")  # characters that look alike
_MS_PER_UNIT = {"": 1.0, "ms": 1.0, "us": 1e-3, "µs": 1e-3, "s": 1e3}


def read_link_table(path: Path, default_capacity: float | None, attributes: Attributes) -> Topology:
    """Read a network.

    Args:
        path: path of a .csv or .xlsx file.
        default_capacity: Gbit/s of links that have none; None to refuse them.
        attributes: names of the columns.

    Raises:
        InputError: a column missing, a cell that is no number with a unit, or what :func:`topology_from_records`
            refuses.
    """
    header, rows = cells(path)
    return _from_cells(path.stem, str(path), header, rows, default_capacity, attributes)


def topology_from_link_frame(frame: Any, default_capacity: float | None, attributes: Attributes) -> Topology:
    """The network of a pandas frame with the columns of a table; arguments and errors as in :func:`read_link_table`."""
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
    same, first = list[str](), dict[tuple[str, ...], str]()
    for line, row in rows:
        cell = {name: row[place].strip() if place < len(row) else "" for name, place in columns.items()}
        if not any(cell.values()):
            continue
        field = f"{row_word} {line}"
        if (before := first.setdefault(tuple(row), field)) != field:
            same.append(f"{field} and {before}")
        for end in ("source", "target"):
            if not cell[end]:
                raise InputError(where, f"{field}: {end}", "a name of a node", "an empty cell")
            nodes.setdefault(cell[end])
        capacity = gbps(cell.get("capacity", ""), attributes.capacity_unit, where, f"{field}: capacity")
        if capacity is not None and cell.get("members"):
            capacity *= number(cell["members"], where, f"{field}: members")
        metric, back = (
            number(cell[name], where, f"{field}: {name}") if cell.get(name) else None
            for name in ("metric", "metric_back")
        )
        records.append(LinkRecord(
            cell["source"], cell["target"], capacity, _ms(cell.get("latency", ""), where, f"{field}: latency"), field,
            tuple(header), metric, metric_back=back,
            te_metric=number(cell["te_metric"], where, f"{field}: te_metric") if cell.get("te_metric") else None,
            affinities=affinities_of(cell.get("affinity"), where, f"{field}: affinity"),
        ))  # fmt: skip
    if not records:
        raise InputError(where, "", "a row for each link", "none")
    between = [one for one in records if one.source != one.target]
    left, alone = Counter((one.target, one.source) for one in between), list[str]()
    for one in between:  # each row has a partner as long as one in the other direction is left
        left[one.source, one.target] -= 1
        if left[one.source, one.target] < 0:
            alone.append(f"{one.field} ({one.source} -> {one.target})")
    directed = 2 * len(alone) < len(between)
    if directed and "metric_back" in columns:
        expected = "a row for each circuit, since there is a metric of the other direction"
        raise InputError(where, header[columns["metric_back"]], expected, "a row for each direction")
    unused = [name for place, name in enumerate(header) if name.strip() and place not in columns.values()]
    notes = [f"Columns that are not used: {', '.join(unused)}."] if unused else []
    notes.append(f"A row is {'one direction of a link' if directed else 'a cable with both directions'}.")
    one_way = alone if directed else []
    for text, found in (
        ("rows without one in the other direction, unlike most, read as links of one direction", one_way),
        ("identical rows, read as parallel links", same),
        ("names that look alike, of different nodes", _alike(list(nodes))),
    ):
        if found:
            notes.append(f"{WARNING}{where}: {text}: {listed(found)}.")
    return topology_from_records(
        name, where, nodes, records, directed=directed, default_capacity=default_capacity, notes=tuple(notes)
    )


def _alike(names: list[str]) -> list[str]:
    """Pairs of names that differ by case, accents or separators, or by 0 and O, or 1, I and l."""
    found, plain = dict[tuple[str, str], None](), list[str]()
    for name in names:
        letters = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
        plain.append(re.sub(r"[\s_.-]+", "-", letters).strip("-"))
    for keys in ([name.casefold() for name in plain], [name.translate(_GLYPHS) for name in plain]):
        first = dict[str, str]()
        for name, key in zip(names, keys, strict=True):
            if (before := first.setdefault(key, name)) != name:
                found[before, name] = None
    return [f"{a!r} and {b!r}" for a, b in found]


def gbps(text: str, unit: str, where: str, field: str) -> float | None:
    """Gbit/s of a cell such as 100G, 2x100G, 10 Gbit/s or 40; None for an empty one.

    Args:
        text: text of the cell.
        unit: unit of cells without one; "" for Gbit/s.
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
    joined = [re.sub(r"[\s-]+", "_", name) for name in plain]  # metric az is metric_az
    columns = {}
    for name in (
        "source", "target", "capacity", "latency", "metric", "metric_back", "te_metric", "affinity", "members",
    ):  # fmt: skip
        asked = getattr(attributes, name, name)
        for option in (asked, *(_OTHER_NAMES.get(name, ()) if asked == name else ())):
            if option.lower() in plain or option.lower() in joined:
                columns[name] = (plain if option.lower() in plain else joined).index(option.lower())
                break
        else:
            if name in ("source", "target") or asked != name:
                raise InputError(where, asked, f"a column {asked}", ", ".join(header))
    return columns


def cells(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Names of the columns of a .csv or .xlsx file, and number and texts of each row.

    Raises:
        InputError: no text in UTF-8, no workbook, or an empty file.
    """
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
