"""Tables of interface counters -> rates of links and external interfaces.

A table has a row for each reading, in any order:

| column | what |
|---|---|
| ``time`` | ISO 8601, or seconds since 1970; of a rate the end of its interval, or in its place ``start`` |
| ``router`` | name of the node |
| ``interface`` | name; or instead ``neighbour``, the router at the other end, empty for external interfaces |
| ``direction`` | ``in`` or ``out``, as the router sees it |
| ``bytes`` | a counter that only rises (32 or 64 bits), or instead ``rate``, by default in Gbit/s |

Interfaces are led back to links by a table of router, interface, neighbour (empty: external) and,
where there are parallel links, number, which counts from 1 like the names of links; by default an
interface that is named like a neighbour (``b``, or ``b#2`` where links are parallel) is the link to
it, and any other one is external.  External interfaces of a router are summed, and so are several
interfaces of one link.  A router whose links are all read and that has no external interface, while
others have some, sends and receives nothing of its own, unless what enters and leaves by its links
differs by more than 10%.

Counters become rates over the intervals between two readings.  A fall is a wrap where the counter
was in the last quarter of its width and the rate stays below what the interface can carry, else a
reset, after which that interval is missing. Readings need not be simultaneous: the rate of an
interval is the mean over what it shares with the readings.

A .npz file holds the arrays of :class:`teal_ip.readings.readings.Counters` by their names, as `teal
estimate` writes them.

The answers to a Prometheus range query (``/api/v1/query_range``) become such a table.

A file has one answer, or a list of answers, such as those to ``ifHCInOctets`` and ``ifHCOutOctets``
(snmp_exporter) or ``interfaces_interface_state_counters_in_octets`` (gnmic).  A series becomes rows
of

    router      label router, instance, source, agent_host, hostname or sysName, without a port
    interface   label ifName, interface, interface_name, ifDescr, device or name
    direction   label direction; else by the name of the metric: in or receive, out or transmit
    bytes       the value: byte counters, not rates, so that wraps and resets are seen
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import WARNING, InputError, listed
from teal.formats import cells
from teal.formats.numerals import plain_numbers
from teal.formats.parts import keys_of, list_of, object_of, objects_of
from teal.formats.times import naive_times, seconds_of_numbers, seconds_of_texts
from teal.formats.units import gbps_per_unit
from teal.network import Topology
from teal.network.topology import without_port
from teal.runtime.archives import check_npz
from teal.runtime.arrays import AnyArray, FloatArray
from teal.runtime.storage import atomic_file
from teal_ip.readings.readings import Counters, without_own_traffic

_ROUTER = ("router", "instance", "source", "agent_host", "hostname", "sysName")
_INTERFACE = ("ifName", "interface", "interface_name", "ifDescr", "device", "name")
_DIRECTIONS = {
    "in": re.compile("in_?(octets|bytes)|receive", re.I),
    "out": re.compile("out_?(octets|bytes)|transmit", re.I),
}


def read_prometheus(path: Path) -> Any:
    """A pandas frame with the columns time, router, interface, direction, bytes.

    Raises:
        InputError: no JSON, no range query, or a series whose router, interface or direction is not
            said.
    """
    import pandas as pd

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(path), "", "JSON of a Prometheus range query", str(error)) from None
    rows = list(_rows(document, str(path)))
    if not rows:
        raise InputError(str(path), "data.result", "at least one series with values", "none")
    return pd.DataFrame(rows, columns=["time", "router", "interface", "direction", "bytes"])


def _rows(document: Any, where: str) -> Iterator[tuple[float, str, str, str, float]]:
    """Time, router, interface, direction and value of each reading of an answer, or of a list of
    answers.
    """
    seen: dict[tuple[str, str, str], dict[str, Any]] = {}
    kept: dict[tuple[str, str, str], list[Any]] = {}
    for place, one in _series(document, where):
        labels = object_of(one.get("metric"), where, f"{place}: metric")
        router = without_port(_label(labels, _ROUTER, where, place))
        interface, name = _label(labels, _INTERFACE, where, place), str(labels.get("__name__", ""))
        direction = labels.get("direction") or next(
            (d for d, words in _DIRECTIONS.items() if words.search(name)), ""
        )
        if direction not in _DIRECTIONS:
            raise InputError(
                where,
                f"{place}: direction",
                "a label direction, or a name such as ifHCInOctets (rate() and sum() "
                "drop the name: query the counter itself)",
                name or "no name",
            )
        key = router, interface, direction
        values = list_of(one.get("values"), where, f"{place}: values")
        before = seen.setdefault(key, labels)
        if before is labels or _is_wide(labels) > _is_wide(before):  # 64 bits before 32
            seen[key], kept[key] = labels, values
        elif _is_wide(labels) == _is_wide(before):
            names = [*before, *labels]
            differing = [
                f"{n}={before.get(n)!r} and {labels.get(n)!r}"
                for n in dict.fromkeys(names)
                if before.get(n) != labels.get(n)
            ]
            expected = (
                f"one series of {interface}, {direction}, of {router} (choose by a label in the "
                "query)"
            )
            raise InputError(
                where, place, expected, f"two: {', '.join(differing) or 'with the same labels'}"
            )
    for key, values in kept.items():
        for position, entry in enumerate(values):
            field = f"{' '.join(key)}: values[{position}]"
            pair = list_of(entry, where, field)
            if len(pair) != 2:
                raise InputError(where, field, "[time, value]", repr(entry)[:80])
            time, value = (_number(part, where, field) for part in pair)
            yield time, *key, value


def _series(document: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and content of each series of an answer, or of a list of answers."""
    answers = document if isinstance(document, list) else [document]
    for number, one in enumerate(answers):
        place = f"[{number}]." if isinstance(document, list) else ""
        answer = object_of(one, where, place or "answer")
        if answer.get("status") == "error" or "error" in answer:
            found = f"{answer.get('errorType', 'error')}: {answer.get('error')}"
            raise InputError(where, f"{place}status", "an answer of Prometheus with data", found)
        data = object_of(answer.get("data"), where, f"{place}data")
        if "result" not in data:
            expected = "data.result with metric and values, of a range query"
            raise InputError(where, place, expected, f"the keys {keys_of([answer])}")
        if data.get("resultType", "matrix") != "matrix":
            raise InputError(
                where,
                f"{place}data.resultType",
                "matrix, of a range query",
                repr(data["resultType"]),
            )
        for position, series in enumerate(objects_of(data["result"], where, f"{place}data.result")):
            yield f"{place}data.result[{position}]", series


def _is_wide(labels: dict[str, Any]) -> bool:
    """Whether a series is a counter of 64 bits by its name: ifHCInOctets, where ifInOctets has
    32.
    """
    return "hc" in str(labels.get("__name__", "")).lower()


def _number(value: Any, where: str, field: str) -> float:
    """A number of an answer; Prometheus writes NaN and +Inf too."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(where, field, "a number", repr(value)[:80]) from None


def _label(labels: dict[str, Any], names: tuple[str, ...], where: str, place: str) -> str:
    for name in names:
        if labels.get(name):
            return str(labels[name])
    raise InputError(
        where, f"{place}: metric", "one of the labels " + ", ".join(names), sorted(labels)
    )


_ARRAYS = ("timestamps", "interval_s", "sent", "received", "ingress", "egress")
_WIDTHS = (2.0**32, 2.0**64)  # of counters
_LAST_PART = 0.75  # of the width: a counter that falls from above it may have wrapped
_FEW_READINGS = 3  # of a counter, from whose rises nothing follows about its width
_FALLS_OF_A_NARROW_COUNTER = 2  # below 2^32: a router does not start anew again and again
_SPARE = 1.5  # times the capacity of an interface: the largest rate that is believed
_BITS = 8.0
_GIGA = 1e9
_MIN_SHARE = 0.5  # of an interval that readings must cover


def load_counters(
    path: Path | str,
    topology: Topology,
    *,
    interfaces: Path | str | None = None,
    unit: str = "",
    interval_s: float = 0.0,
    ignore: str = "",
) -> Counters:
    """Read counters.

    Args:
        path: a .csv, .parquet, .json (of Prometheus) or .npz file.
        topology: the network.
        interfaces: table that leads interfaces back to links; None for names of neighbours.
        unit: unit of the column rate; "" for Gbit/s.
        interval_s: seconds of an interval; 0 for the median time between two readings.
        ignore: regular expression of the names of interfaces that are left out; "" for none.

    Raises:
        InputError: no such file, a missing column, an invalid value, an unknown router or
            interface, or no external interface.
    """
    path = Path(path)
    if path.suffix.lower() == ".npz":
        counters = _from_npz(path)
    else:
        counters = counters_from_frame(
            _read(path),
            topology,
            str(path),
            interfaces and _read(Path(interfaces)),
            unit,
            interval_s,
            ignore,
        )
    counters.check(topology)
    return counters


def save_counters(path: Path | str, counters: Counters) -> None:
    """Write a .npz file that :func:`load_counters` reads."""
    arrays = {name: getattr(counters, name) for name in _ARRAYS}
    arrays["timestamps"] = counters.timestamps.astype("datetime64[s]").astype(np.int64)
    with atomic_file(Path(path)) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


def _from_npz(path: Path) -> Counters:
    try:
        check_npz(path)
        with np.load(path, allow_pickle=False) as stored:
            missing = [name for name in _ARRAYS if name not in stored.files]
            if missing:
                raise InputError(
                    str(path), "arrays", ", ".join(_ARRAYS), "no " + ", ".join(missing)
                )
            arrays = {name: stored[name] for name in _ARRAYS}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(str(path), "", "a .npz file of counters", str(error)) from None
    times = arrays.pop("timestamps").astype("datetime64[s]")
    interval_s = float(arrays.pop("interval_s"))
    return Counters(
        times, interval_s, **{name: array.astype(np.float64) for name, array in arrays.items()}
    )


def _read(path: Path) -> Any:
    import pandas as pd

    readers: dict[str, Callable[..., Any]] = {
        ".csv": _read_csv,
        ".parquet": pd.read_parquet,
        ".json": read_prometheus,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            str(path),
            "",
            "a .csv, .parquet, .json (Prometheus) or .npz file",
            path.suffix or "no ending",
        )
    try:
        frame = reader(path)
        frame.attrs["where"] = str(path)  # for messages
        return frame
    except InputError:
        raise
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise InputError(str(path), "", "a table of counters", str(error).splitlines()[0]) from None


def _read_csv(path: Path) -> Any:
    """A frame of texts: NA and null are names, and an empty cell is empty."""
    import pandas as pd

    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        separator = cells.separator_of(stream.readline())
    frame = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    frame.attrs["separator"] = separator
    return frame


@dataclasses.dataclass(frozen=True)
class _Interface:
    """Where an interface leads: the link out of the router, the one into it; None for both if it is
    external.
    """

    out_link: int | None
    in_link: int | None
    is_ignored: bool = False

    @property
    def is_border(self) -> bool:
        """Whether it is external."""
        return self.out_link is None and self.in_link is None and not self.is_ignored


_Place = tuple[str, str]  # router and interface
_Leads = Callable[
    [str, str], _Interface | None
]  # from router and interface to where it leads; None if that is unknown


def counters_from_frame(
    frame: Any,
    topology: Topology,
    where: str,
    interfaces: Any | None = None,
    unit: str = "",
    interval_s: float = 0.0,
    ignore: str = "",
) -> Counters:
    """The counters of a pandas frame; see the module.

    Args:
        frame: a row for each reading.
        topology: the network.
        where: named in messages.
        interfaces: frame of router, interface, neighbour and number.
        unit: unit of the column rate.
        interval_s: seconds of an interval; 0 for the median time between two readings.
        ignore: regular expression of the names of interfaces that are left out; "" for none.
    """
    import pandas as pd

    units = {plain: unit for plain, unit in map(cells.heading, map(str, frame.columns)) if unit}
    separator = frame.attrs.get("separator", "")
    frame = frame.rename(columns={name: cells.heading(str(name))[0] for name in frame.columns})
    name_column = "interface" if "interface" in frame.columns else "neighbour"
    value_column = "bytes" if "bytes" in frame.columns else "rate"
    by_start = "start" in frame.columns and "time" not in frame.columns
    time_column = "start" if by_start else "time"
    if by_start and value_column == "bytes":
        raise InputError(
            where, "start", "the time at which the counter was read, in a column time", "a start"
        )
    needed = (time_column, "router", name_column, "direction", value_column)
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        expected = "columns time, router, interface or neighbour, direction, bytes or rate"
        raise InputError(where, "columns", expected, "no " + ", ".join(missing))
    times = _times(frame[time_column], where)
    value = _values(frame[value_column], where, value_column, separator)
    bad = np.flatnonzero(~np.isfinite(value) | (value < 0))
    notes = (
        [f"{len(bad):,} of {len(frame):,} readings are empty or negative, and left out"]
        if len(bad)
        else []
    )
    direction = frame["direction"].astype(str).str.strip().str.lower().to_numpy()
    wrong = np.flatnonzero((direction != "in") & (direction != "out"))
    if len(wrong):
        raise InputError(
            where, f"row {wrong[0] + 2}: direction", "in or out", repr(direction[wrong[0]])
        )
    leads, in_table = _leads_of(topology, interfaces, where)
    names = _texts(frame[name_column], cells.cell_text)
    routers = _texts(frame["router"], lambda cell: topology.name_of(cells.cell_text(cell)))
    index = topology.node_index()
    unknown = sorted(set(routers) - set(index))
    if unknown:
        expected = (
            f"a node of {topology.name} (--routers says by which other names routers are called)"
        )
        raise InputError(
            where, "router", expected, listed([repr(name) for name in unknown], _MAX_LISTED)
        )
    lead_of = {place: leads(*place) for place in set(zip(routers, names, strict=True))}
    ignored = _ignored(lead_of, ignore)
    if ignored:
        notes.append(f"{len(ignored):,} interfaces are ignored")
    _check_known({place: lead for place, lead in lead_of.items() if place not in ignored}, where)
    is_ignored = np.array(
        [place in ignored for place in zip(routers, names, strict=True)], dtype=bool
    )
    keep = np.isfinite(value) & (value >= 0) & ~is_ignored
    step = interval_s or _usual_step(times[keep], routers[keep], names[keep], direction[keep])
    if not step > 0:
        raise InputError(where, "time", "at least two readings of an interface", "one")
    times = times + step if by_start else times
    ends = np.arange(
        times[keep].min() + (step if value_column == "bytes" else 0),
        times[keep].max() + step / 2,
        step,
    )
    shape = len(ends), topology.num_links
    sent, received = np.full(shape, np.nan), np.full(shape, np.nan)
    ingress, egress = (np.full((len(ends), topology.num_nodes), np.nan) for _ in range(2))
    unit = unit or units.get("rate", "")
    factor = gbps_per_unit(unit, "--counter-unit") if unit else 1.0
    if value_column == "bytes":
        factor = _BITS / _GIGA
    wraps = resets = 0
    narrow: list[str] = []  # interfaces whose counters may be of 32 bits
    members: dict[tuple[str, int], list[str]] = {}
    groups = (
        pd.DataFrame({"r": routers[keep], "n": names[keep], "d": direction[keep]})
        .groupby(["r", "n", "d"])
        .indices
    )
    for (router, name, way), rows in groups.items():
        at, reading = times[keep][rows], value[keep][rows]
        order = np.argsort(at, kind="stable")
        at, reading = at[order], reading[order]
        again = np.diff(at, prepend=-math.inf) == 0
        if (again & (np.diff(reading, prepend=0.0) != 0)).any():
            expected = (
                "one reading at a time; interfaces that have a name each (--interfaces), or "
                "neighbours a#1, a#2"
            )
            raise InputError(
                where, name_column, expected, f"several of {name!r}, {way}, at {router}"
            )
        at, reading = at[~again], reading[~again]
        lead = lead_of[router, name]
        assert lead is not None  # _check_known
        link = lead.out_link if way == "out" else lead.in_link
        capacity = (
            float(topology.capacity[link]) if link is not None else float(topology.capacity.sum())
        )
        if value_column == "bytes":
            title = f"{name or 'external'} of {router}, {way}"
            if _may_be_narrow(at, reading, capacity, where, title):
                narrow.append(title)
            rate, starts, found = _rates(at, reading * factor, capacity, factor)
            wraps, resets = wraps + found[0], resets + found[1]
            series = _means(starts, at[1:], rate, ends, step)
        else:
            series = _nearest(at, reading * factor, ends, step)
        if link is not None:
            of_link = (sent if way == "out" else received)[:, link]
            names_of_link = members.setdefault((way, link), [])
            of_link[:] = of_link + series if names_of_link else series
            names_of_link.append(name)
        elif lead.is_border:
            side = egress if way == "out" else ingress
            node = index[router]
            side[:, node] = np.where(
                np.isnan(side[:, node]), series, side[:, node] + np.nan_to_num(series)
            )
    for (way, link), named in members.items():
        if len(named) > 1:
            notes.append(
                f"{topology.link_names()[link]}, {way}: the sum of the interfaces "
                f"{', '.join(named)}"
            )
    notes += [f"{wraps:,} counter wraps, {resets:,} resets"] if wraps or resets else []
    if narrow:
        notes.append(
            f"{WARNING}counters that stay below 2^32 and may be of 32 bits, which then wrap more "
            f"than once between two readings, so that rates are too low: {listed(narrow)}"
        )
    used = {place: lead for place, lead in (in_table | lead_of).items() if place not in ignored}
    borders = {router for (router, _), lead in used.items() if lead is not None and lead.is_border}
    asked = np.isin(topology.node_names, sorted(set(routers) - borders))
    inner = without_own_traffic(topology, asked, sent, received) if borders else []
    if inner:
        ingress[:, inner] = egress[:, inner] = 0.0
        named_inner = ", ".join(topology.node_names[node] for node in inner)
        notes.append(
            "no traffic of their own, as all interfaces are read and none is external: "
            f"{named_inner}"
        )
    notes += _too_large(topology, sent, received, value_column)
    silent = int((np.isnan(sent) & np.isnan(received)).all(0).sum())
    notes += [f"{silent} of {topology.num_links} links have no counter"] if silent else []
    stamps = np.round(ends).astype("int64").astype("datetime64[s]")
    return Counters(stamps, float(step), sent, received, ingress, egress, tuple(notes))


def _texts(column: Any, text_of: Callable[[Any], str]) -> AnyArray:
    """(n,) the text of each cell, which is made once for equal cells."""
    import pandas as pd

    places, distinct = pd.factorize(column, use_na_sentinel=False)
    return np.array([text_of(cell) for cell in distinct], dtype=object)[places]


def _values(column: Any, where: str, name: str, separator: str) -> FloatArray:
    """(n,) numbers of a column; NaN for what is none."""
    import pandas as pd

    if column.dtype.kind not in "iuf":
        texts = column.fillna("").astype(str)
        if separator not in ("", ",") or texts.str.contains(",", regex=False).any():
            texts = pd.Series(plain_numbers(texts.tolist(), where, f"column {name}", separator))
        column = pd.to_numeric(texts, errors="coerce")
    return np.asarray(column.to_numpy(dtype=np.float64))


def _times(column: Any, where: str) -> FloatArray:
    """(n,) seconds since 1970."""
    if column.dtype.kind == "M" or hasattr(column.dtype, "tz"):
        return np.asarray(naive_times(column).astype("datetime64[ns]").astype(np.int64) / 1e9)
    if column.dtype.kind in "iuf":
        return seconds_of_numbers(column.to_numpy(), where, "time")
    return seconds_of_texts(column.map(cells.cell_text), where, "time", first_row=2)


def _leads_of(
    topology: Topology, interfaces: Any | None, where: str
) -> tuple[_Leads, dict[_Place, _Interface]]:
    """The function from router and interface to where that leads (None where the table does not say
    it).

    Beside it what the table says of all of its interfaces; {} without a table.
    """
    index, external = topology.node_index(), _Interface(None, None)

    def to_neighbour(router: str, neighbour: str, member: int, file: str, what: str) -> _Interface:
        try:
            links = topology.find_links(router, neighbour, member)
        except InputError:
            links = []
        forth = [link for link in links if topology.link_source[link] == index[router]]
        back = [link for link in links if topology.link_target[link] == index[router]]
        if max(len(forth), len(back)) != 1:
            expected = (
                f"a neighbour of {router} in {topology.name}, and which of parallel links: 1, 2, "
                "..."
            )
            raise InputError(
                file, what, expected, repr(f"{neighbour}#{member}" if member else neighbour)
            )
        return _Interface(forth[0] if forth else None, back[0] if back else None)

    if interfaces is None:
        neighbours = {
            (topology.node_names[a], topology.node_names[b])
            for a, b in zip(
                topology.link_source.tolist(), topology.link_target.tolist(), strict=True
            )
        }

        def by_name(router: str, name: str) -> _Interface:
            other, member = topology.member(router, name)
            other = topology.name_of(other)
            is_link = (router, other) in neighbours or (other, router) in neighbours
            return to_neighbour(router, other, member, where, "interface") if is_link else external

        return by_name, {}
    table = interfaces.rename(
        columns={name: str(name).strip().lower() for name in interfaces.columns}
    )
    file = str(interfaces.attrs.get("where", "--interfaces"))
    missing = [name for name in ("router", "interface", "neighbour") if name not in table.columns]
    if missing:
        raise InputError(
            file, "columns", "router, interface, neighbour", "no " + ", ".join(missing)
        )
    known: dict[_Place, _Interface] = {}
    for line, row in enumerate(table.to_dict("records"), 2):
        router, name = (
            topology.name_of(cells.cell_text(row["router"])),
            cells.cell_text(row["interface"]),
        )
        neighbour = cells.cell_text(row["neighbour"])
        number = cells.cell_text(row.get("number")).removesuffix(".0")
        if number and not (number.isdecimal() and int(number)):
            raise InputError(
                file, f"row {line}: number", "a whole number of at least 1", repr(number)
            )
        member = int(number or 0)
        if router not in index:
            raise InputError(
                file, f"row {line}: router", f"a node of {topology.name}", repr(router)
            )
        if str(row.get("ignore", "")).strip().lower() in _YES:
            known[router, name] = _Interface(None, None, is_ignored=True)
        elif not neighbour:
            known[router, name] = external
        else:
            other = topology.name_of(neighbour)
            known[router, name] = to_neighbour(
                router, other, member, file, f"row {line}: neighbour"
            )
    return lambda router, name: known.get((router, name)), known


def interfaces_of(
    path: Path, topology: Topology
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Names of interfaces in a table: by the link that leaves the router, and the external ones by
    router.

    Raises:
        InputError: no such file, or a row that the network does not have.
    """
    names, of_link, external = topology.link_names(), dict[str, list[str]](), dict[str, list[str]]()
    table = _leads_of(topology, _read(path), str(path))[1]
    for (router, name), lead in sorted(table.items(), key=lambda one: one[0]):
        if lead.is_border:
            external.setdefault(router, []).append(name)
        elif lead.out_link is not None:
            of_link.setdefault(names[lead.out_link], []).append(name)
    return of_link, external


def interface_names(path: Path, topology: Topology) -> dict[str, list[str]]:
    """Names of the interfaces of links in a table of interfaces, by the link; errors as of
    :func:`interfaces_of`.
    """
    return interfaces_of(path, topology)[0]


_YES = ("1", "1.0", "true", "yes", "x")  # texts of the column ignore that leave an interface out
_MAX_LISTED = 20  # routers or interfaces in a message


def _ignored(lead_of: Mapping[_Place, _Interface | None], pattern: str) -> set[_Place]:
    """The interfaces that the pattern or the table leaves out."""
    try:
        expression = re.compile(pattern) if pattern else None
    except re.error as error:
        raise InputError(
            "--ignore-interfaces", "", "a regular expression", f"{pattern!r}: {error}"
        ) from None
    by_table = {place for place, lead in lead_of.items() if lead is not None and lead.is_ignored}
    return by_table | {
        place for place in lead_of if expression is not None and expression.fullmatch(place[1])
    }


def _check_known(lead_of: Mapping[_Place, _Interface | None], where: str) -> None:
    """Raise InputError for all interfaces that the table does not have, with a pattern that would
    leave them out.
    """
    unknown = sorted(place for place, lead in lead_of.items() if lead is None)
    if unknown:
        forms = sorted({re.sub(r"\d+", r"\\d+", re.escape(name)) for _, name in unknown})
        advice = (
            f"add these {len(unknown):,} (neighbour empty: external), or --ignore-interfaces "
            f"'{'|'.join(forms)}'"
        )
        expected = f"interfaces of the table --interfaces: {advice}"
        raise InputError(
            where,
            "interface",
            expected,
            listed([f"{name} of {router}" for router, name in unknown], _MAX_LISTED),
        )


def _usual_step(times: FloatArray, *keys: Any) -> float:
    """Median seconds between two readings of the same interface."""
    import pandas as pd

    groups = pd.DataFrame(dict(enumerate(keys))).groupby(list(range(len(keys)))).indices
    steps = [np.diff(np.sort(times[rows])) for rows in groups.values() if len(rows) > 1]
    return float(np.median(np.concatenate(steps))) if steps else 0.0


def _may_be_narrow(
    at: FloatArray, reading: FloatArray, capacity: float, where: str, name: str
) -> bool:
    """Whether a counter may be of 32 bits and wrap more than once between two readings, so that no
    rate can be known from it; one that certainly is is refused.

    A counter of 64 bits that stays below 2^32 rises in all of many readings.

    RFC 2863 3.1.6 asks for counters of 64 bits (ifHCInOctets) above 20 Mbit/s for this reason.

    Args:
        at: (n,) seconds.
        reading: (n,) bytes.
        capacity: what the interface can carry, Gbit/s.
        where: the file, for messages.
        name: the interface, for messages.

    Raises:
        InputError: the counter falls again and again, never passes 2^32, and could wrap twice.
    """
    if len(reading) < 2 or reading.max() >= _WIDTHS[0] or capacity <= 0:
        return False
    falls = int((np.diff(reading) < 0).sum())
    seconds = float(np.median(np.diff(at)))
    wrap_s = _WIDTHS[0] * _BITS / (capacity * _GIGA)
    if seconds <= wrap_s:
        return False
    if falls >= _FALLS_OF_A_NARROW_COUNTER:
        raise InputError(
            where,
            name,
            f"counters of 64 bits (ifHCInOctets, ifHCOutOctets), or readings every {wrap_s:.3g} s: "
            f"at {capacity:g} "
            "Gbit/s a counter of 32 bits wraps more than once between two readings",
            f"32 bits, read every {seconds:g} s",
        )
    is_short = len(reading) <= _FEW_READINGS
    return falls > 0 or (is_short and reading.max() >= _WIDTHS[0] / 2)


def _too_large(
    topology: Topology, sent: FloatArray, received: FloatArray, column: str
) -> list[str]:
    """A warning about links on which more was counted than they can carry."""
    capacity = np.where(topology.capacity > 0, topology.capacity, np.inf)
    largest = np.fmax(
        *(np.where(np.isnan(rates), 0.0, rates).max(0, initial=0.0) for rates in (sent, received))
    )
    names = topology.link_names()
    found = [
        f"{names[link]} ({largest[link]:g} of {capacity[link]:g} Gbit/s)"
        for link in np.flatnonzero(largest > _SPARE * capacity)
    ]
    if not found:
        return []
    advice = (
        "--counter-unit names the unit of rates"
        if column == "rate"
        else "the counters may be of bits, not bytes"
    )
    return [f"{WARNING}more was counted than the links can carry ({advice}): {listed(found)}"]


def _rates(
    at: FloatArray, amount: FloatArray, capacity: float, factor: float
) -> tuple[FloatArray, FloatArray, tuple[int, int]]:
    """Gbit/s between readings, NaN after a reset; where each begins; numbers of wraps and resets.

    Args:
        at: (n,) seconds.
        amount: (n,) readings in Gbit.
        capacity: capacity of the interface, Gbit/s.
        factor: Gbit of a unit of the counter.
    """
    seconds, change = np.diff(at), np.diff(amount)
    falls = np.flatnonzero(change < 0)
    is_narrow = len(falls) >= _FALLS_OF_A_NARROW_COUNTER and bool(
        (amount < _WIDTHS[0] * factor).all()
    )
    wraps = 0
    for i in falls.tolist():
        for width in _WIDTHS:
            full = width * factor
            wrapped = change[i] + full
            is_late = amount[i] >= _LAST_PART * full and amount[i] <= full
            may_wrap = is_late or (is_narrow and width == _WIDTHS[0])
            if may_wrap and seconds[i] > 0 and wrapped <= _SPARE * capacity * seconds[i]:
                change[i], wraps = wrapped, wraps + 1
                break
    resets = int((change < 0).sum())
    rate = np.where(
        (change >= 0) & (seconds > 0), change / np.where(seconds > 0, seconds, 1), np.nan
    )
    return rate, at[:-1], (wraps, resets)


def _means(
    starts: FloatArray, stops: FloatArray, rate: FloatArray, ends: FloatArray, step: float
) -> FloatArray:
    """(T,) mean of piecewise constant rates over the intervals that end at ``ends``; NaN where more
    than half of an interval is unknown.
    """
    known = np.isfinite(rate)
    starts, stops, rate = starts[known], stops[known], rate[known]
    if not len(rate):
        return np.full(len(ends), np.nan)
    volume = np.concatenate([[0.0], np.cumsum(rate * (stops - starts))])
    covered = np.concatenate([[0.0], np.cumsum(stops - starts)])

    def until(time: FloatArray, total: FloatArray, slope: FloatArray) -> FloatArray:
        """The total up to each time; the pieces are sorted and do not overlap."""
        i = np.clip(np.searchsorted(starts, time, side="right") - 1, 0, len(starts) - 1)
        inside = np.clip(time - starts[i], 0.0, stops[i] - starts[i])
        return np.asarray(total[i] + slope[i] * inside)

    amount = until(ends, volume, rate) - until(ends - step, volume, rate)
    seconds = until(ends, covered, np.ones_like(rate)) - until(
        ends - step, covered, np.ones_like(rate)
    )
    return np.where(seconds >= _MIN_SHARE * step, amount / np.maximum(seconds, 1e-300), np.nan)


def _nearest(at: FloatArray, rate: FloatArray, ends: FloatArray, step: float) -> FloatArray:
    """(T,) mean of the rates that were read nearest to each end; NaN where none is within half a
    step.
    """
    place = np.round((at - ends[0]) / step).astype(int)
    inside = (place >= 0) & (place < len(ends))
    total = np.bincount(place[inside], rate[inside], len(ends))
    count = np.bincount(place[inside], minlength=len(ends))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
