"""Import of interface counters: tables -> rates of links and external interfaces.

A table has a row for each reading, in any order:

| column | content |
|---|---|
| ``time`` | ISO 8601, or seconds since 1970; for a rate the end of its interval, or instead ``start`` |
| ``router`` | name of the node |
| ``interface`` | name; or instead ``neighbour``, the router at the other end, empty for external interfaces |
| ``direction`` | ``in`` or ``out``, from the router's point of view |
| ``bytes`` | a cumulative counter (32 or 64 bits), or instead ``rate``, by default in Gbit/s |

A table of router, interface, neighbour (empty: external) and, for parallel links, number (counted
from 1 like the names of links) maps interfaces to links.  By default an interface named like a
neighbour (``b``, or ``b#2`` for parallel links) is the link to it, and any other one is external.
External interfaces of a router are summed, and so are several interfaces of one link.  If other
routers have external interfaces, a router without one whose links are all read has no traffic of
its own, unless the ingress and egress of its links differ by more than 10%.

Counters become rates over the intervals between two readings.  A decrease is a wrap if the counter
was in the last quarter of its width and the rate stays below the interface's capacity, else a
reset, after which that interval is missing.  Readings need not be simultaneous: the rate of an
interval is the mean over its overlap with the readings.

A .npz file holds the arrays of :class:`teal_ip.readings.readings.Counters` by name, as written by
`teal estimate`.

Responses to a Prometheus range query (``/api/v1/query_range``) are converted to such a table.  A
file has one response, or a list of responses, such as those for ``ifHCInOctets`` and
``ifHCOutOctets`` (snmp_exporter) or ``interfaces_interface_state_counters_in_octets`` (gnmic).  A
series becomes rows of

    router      label router, instance, source, agent_host, hostname or sysName, without a port
    interface   label ifName, interface, interface_name, ifDescr, device or name
    direction   label direction; else from the name of the metric: in or receive, out or transmit
    bytes       the value: byte counters, not rates, so that wraps and resets are detected

Entry points: :func:`load_counters`, :func:`save_counters`, :func:`interfaces_of`.
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
    """Read responses into a pandas frame with the columns time, router, interface, direction, bytes.

    Raises:
        InputError: no JSON, no range query, or a series without router, interface or direction.
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
    """Yield time, router, interface, direction and value of each reading of one or more responses."""
    labels_by_key: dict[tuple[str, str, str], dict[str, Any]] = {}
    values_by_key: dict[tuple[str, str, str], list[Any]] = {}
    for position_text, series in _series(document, where):
        labels = object_of(series.get("metric"), where, f"{position_text}: metric")
        router = without_port(_label(labels, _ROUTER, where, position_text))
        interface = _label(labels, _INTERFACE, where, position_text)
        name = str(labels.get("__name__", ""))
        direction = labels.get("direction") or next(
            (d for d, words in _DIRECTIONS.items() if words.search(name)), ""
        )
        if direction not in _DIRECTIONS:
            raise InputError(
                where,
                f"{position_text}: direction",
                "a label direction, or a name such as ifHCInOctets (rate() and sum() "
                "drop the name: query the counter itself)",
                name or "no name",
            )
        key = (router, interface, direction)
        values = list_of(series.get("values"), where, f"{position_text}: values")
        previous = labels_by_key.setdefault(key, labels)
        # Counters of 64 bits replace those of 32.
        if previous is labels or _is_wide(labels) > _is_wide(previous):
            labels_by_key[key] = labels
            values_by_key[key] = values
        elif _is_wide(labels) == _is_wide(previous):
            names = [*previous, *labels]
            differing = [
                f"{n}={previous.get(n)!r} and {labels.get(n)!r}"
                for n in dict.fromkeys(names)
                if previous.get(n) != labels.get(n)
            ]
            expected = (
                f"one series of {interface}, {direction}, of {router} (choose by a label in the "
                "query)"
            )
            raise InputError(
                where,
                position_text,
                expected,
                f"two: {', '.join(differing) or 'with the same labels'}",
            )
    for key, values in values_by_key.items():
        for position, entry in enumerate(values):
            field = f"{' '.join(key)}: values[{position}]"
            time_and_value = list_of(entry, where, field)
            if len(time_and_value) != 2:
                raise InputError(where, field, "[time, value]", repr(entry)[:80])
            time, value = (_number(item, where, field) for item in time_and_value)
            yield time, *key, value


def _series(document: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield position and content of each series of one or more responses."""
    answers = document if isinstance(document, list) else [document]
    for index, response in enumerate(answers):
        position_text = f"[{index}]." if isinstance(document, list) else ""
        answer = object_of(response, where, position_text or "answer")
        if answer.get("status") == "error" or "error" in answer:
            error_text = f"{answer.get('errorType', 'error')}: {answer.get('error')}"
            raise InputError(
                where, f"{position_text}status", "an answer of Prometheus with data", error_text
            )
        data = object_of(answer.get("data"), where, f"{position_text}data")
        if "result" not in data:
            expected = "data.result with metric and values, of a range query"
            raise InputError(where, position_text, expected, f"the keys {keys_of([answer])}")
        if data.get("resultType", "matrix") != "matrix":
            raise InputError(
                where,
                f"{position_text}data.resultType",
                "matrix, of a range query",
                repr(data["resultType"]),
            )
        for position, series in enumerate(
            objects_of(data["result"], where, f"{position_text}data.result")
        ):
            yield f"{position_text}data.result[{position}]", series


def _is_wide(labels: dict[str, Any]) -> bool:
    """Whether a series is a 64-bit counter by its name: ifHCInOctets instead of ifInOctets."""
    return "hc" in str(labels.get("__name__", "")).lower()


def _number(value: Any, where: str, field: str) -> float:
    """Parse a number of a response; Prometheus also writes NaN and +Inf."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(where, field, "a number", repr(value)[:80]) from None


def _label(labels: dict[str, Any], names: tuple[str, ...], where: str, position_text: str) -> str:
    for name in names:
        if labels.get(name):
            return str(labels[name])
    raise InputError(
        where, f"{position_text}: metric", "one of the labels " + ", ".join(names), sorted(labels)
    )


_ARRAYS = ("timestamps", "interval_s", "sent", "received", "ingress", "egress")
# Widths of counters.
_WIDTHS = (2.0**32, 2.0**64)
# Share of the width above which a decreasing counter may have wrapped.
_LAST_PART = 0.75
# Number of readings up to which a counter's rises say nothing about its width.
_FEW_READINGS = 3
# Decreases below 2^32 that indicate a 32-bit counter: a router does not restart repeatedly.
_FALLS_OF_A_NARROW_COUNTER = 2
# Largest plausible rate, as a multiple of the interface's capacity.
_MAX_RATE_OVER_CAPACITY = 1.5
_BITS = 8.0
_GIGA = 1e9
# Share of an interval that readings must cover.
_MIN_SHARE = 0.5


def load_counters(
    path: Path | str,
    topology: Topology,
    *,
    interfaces: Path | str | None = None,
    unit: str = "",
    interval_s: float = 0.0,
    ignore: str = "",
) -> Counters:
    """Read counters from a file.

    Args:
        path: a .csv, .parquet, .json (of Prometheus) or .npz file.
        topology: the network.
        interfaces: table that maps interfaces to links; None for names of neighbours.
        unit: unit of the column rate; "" for Gbit/s.
        interval_s: length of an interval, seconds; 0 for the median time between two readings.
        ignore: regular expression of names of interfaces to ignore; "" for none.

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
    """Write a .npz file for :func:`load_counters`."""
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
        # For messages.
        frame.attrs["where"] = str(path)
        return frame
    except InputError:
        raise
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise InputError(str(path), "", "a table of counters", str(error).splitlines()[0]) from None


def _read_csv(path: Path) -> Any:
    """Read a frame of texts: NA and null are names, and an empty cell is empty."""
    import pandas as pd

    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        separator = cells.separator_of(stream.readline())
    frame = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    frame.attrs["separator"] = separator
    return frame


@dataclasses.dataclass(frozen=True)
class _Interface:
    """Target of an interface: the link out of the router, and the one into it; both None if it is
    external.
    """

    out_link: int | None
    in_link: int | None
    is_ignored: bool = False

    @property
    def is_border(self) -> bool:
        """Whether the interface is external."""
        return self.out_link is None and self.in_link is None and not self.is_ignored


# Router and interface.
_InterfaceKey = tuple[str, str]
# Maps router and interface to the interface's target; None if unknown.
_TargetLookup = Callable[[str, str], _Interface | None]


def counters_from_frame(
    frame: Any,
    topology: Topology,
    where: str,
    interfaces: Any | None = None,
    unit: str = "",
    interval_s: float = 0.0,
    ignore: str = "",
) -> Counters:
    """Convert a pandas frame to counters (module docstring).

    Args:
        frame: a row for each reading.
        topology: the network.
        where: name of the source, for messages.
        interfaces: frame of router, interface, neighbour and number.
        unit: unit of the column rate.
        interval_s: length of an interval, seconds; 0 for the median time between two readings.
        ignore: regular expression of names of interfaces to ignore; "" for none.
    """
    import pandas as pd

    # Columns.
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
    # Values and directions.
    times = _times(frame[time_column], where)
    value = _numbers(frame[value_column], where, value_column, separator)
    invalid = np.flatnonzero(~np.isfinite(value) | (value < 0))
    notes = (
        [f"{len(invalid):,} of {len(frame):,} readings are empty or negative, and left out"]
        if len(invalid)
        else []
    )
    direction = frame["direction"].astype(str).str.strip().str.lower().to_numpy()
    wrong_rows = np.flatnonzero((direction != "in") & (direction != "out"))
    if len(wrong_rows):
        raise InputError(
            where,
            f"row {wrong_rows[0] + 2}: direction",
            "in or out",
            repr(direction[wrong_rows[0]]),
        )
    # Routers and interfaces.
    target_of, in_table = _interface_targets(topology, interfaces, where)
    names = _cell_texts(frame[name_column], cells.cell_text)
    routers = _cell_texts(frame["router"], lambda cell: topology.name_of(cells.cell_text(cell)))
    index = topology.node_index()
    unknown = sorted(set(routers) - set(index))
    if unknown:
        expected = (
            f"a node of {topology.name} (--routers says by which other names routers are called)"
        )
        raise InputError(
            where, "router", expected, listed([repr(name) for name in unknown], _MAX_LISTED)
        )
    targets = {
        interface_key: target_of(*interface_key)
        for interface_key in set(zip(routers, names, strict=True))
    }
    ignored = _ignored(targets, ignore)
    if ignored:
        notes.append(f"{len(ignored):,} interfaces are ignored")
    _check_known(
        {
            interface_key: target
            for interface_key, target in targets.items()
            if interface_key not in ignored
        },
        where,
    )
    is_ignored = np.array(
        [interface_key in ignored for interface_key in zip(routers, names, strict=True)], dtype=bool
    )
    # Intervals.
    keep = np.isfinite(value) & (value >= 0) & ~is_ignored
    step = interval_s or _median_interval(times[keep], routers[keep], names[keep], direction[keep])
    if not step > 0:
        raise InputError(where, "time", "at least two readings of an interface", "one")
    times = times + step if by_start else times
    ends = np.arange(
        times[keep].min() + (step if value_column == "bytes" else 0),
        times[keep].max() + step / 2,
        step,
    )
    shape = (len(ends), topology.num_links)
    sent = np.full(shape, np.nan)
    received = np.full(shape, np.nan)
    ingress, egress = (np.full((len(ends), topology.num_nodes), np.nan) for _ in range(2))
    unit = unit or units.get("rate", "")
    factor = gbps_per_unit(unit, "--counter-unit") if unit else 1.0
    if value_column == "bytes":
        factor = _BITS / _GIGA
    wraps = resets = 0
    # Interfaces whose counters may have 32 bits.
    narrow: list[str] = []
    members: dict[tuple[str, int], list[str]] = {}
    groups = (
        pd.DataFrame({"r": routers[keep], "n": names[keep], "d": direction[keep]})
        .groupby(["r", "n", "d"])
        .indices
    )
    # Rates of each interface and direction, summed by link or router.
    for (router, name, flow_direction), rows in groups.items():
        read_times = times[keep][rows]
        reading = value[keep][rows]
        order = np.argsort(read_times, kind="stable")
        read_times = read_times[order]
        reading = reading[order]
        is_repeated = np.diff(read_times, prepend=-math.inf) == 0
        if (is_repeated & (np.diff(reading, prepend=0.0) != 0)).any():
            expected = (
                "one reading at a time; interfaces that have a name each (--interfaces), or "
                "neighbours a#1, a#2"
            )
            raise InputError(
                where, name_column, expected, f"several of {name!r}, {flow_direction}, at {router}"
            )
        read_times = read_times[~is_repeated]
        reading = reading[~is_repeated]
        target = targets[router, name]
        # Guaranteed by _check_known.
        assert target is not None
        link = target.out_link if flow_direction == "out" else target.in_link
        capacity = (
            float(topology.capacity[link]) if link is not None else float(topology.capacity.sum())
        )
        if value_column == "bytes":
            title = f"{name or 'external'} of {router}, {flow_direction}"
            if _may_be_narrow(read_times, reading, capacity, where, title):
                narrow.append(title)
            rate, starts, wraps_and_resets = _rates(read_times, reading * factor, capacity, factor)
            wraps = wraps + wraps_and_resets[0]
            resets = resets + wraps_and_resets[1]
            series = _interval_means(starts, read_times[1:], rate, ends, step)
        else:
            series = _nearest_rates(read_times, reading * factor, ends, step)
        if link is not None:
            link_rates = (sent if flow_direction == "out" else received)[:, link]
            names_of_link = members.setdefault((flow_direction, link), [])
            link_rates[:] = link_rates + series if names_of_link else series
            names_of_link.append(name)
        elif target.is_border:
            side = egress if flow_direction == "out" else ingress
            node = index[router]
            side[:, node] = np.where(
                np.isnan(side[:, node]), series, side[:, node] + np.nan_to_num(series)
            )
    # Notes, and routers without traffic of their own.
    for (flow_direction, link), named in members.items():
        if len(named) > 1:
            notes.append(
                f"{topology.link_names()[link]}, {flow_direction}: the sum of the interfaces "
                f"{', '.join(named)}"
            )
    notes += [f"{wraps:,} counter wraps, {resets:,} resets"] if wraps or resets else []
    if narrow:
        notes.append(
            f"{WARNING}counters that stay below 2^32 and may be of 32 bits, which then wrap more "
            f"than once between two readings, so that rates are too low: {listed(narrow)}"
        )
    known_targets = {
        interface_key: target
        for interface_key, target in (in_table | targets).items()
        if interface_key not in ignored
    }
    borders = {
        router
        for (router, _), target in known_targets.items()
        if target is not None and target.is_border
    }
    is_candidate = np.isin(topology.node_names, sorted(set(routers) - borders))
    transit_only = without_own_traffic(topology, is_candidate, sent, received) if borders else []
    if transit_only:
        ingress[:, transit_only] = egress[:, transit_only] = 0.0
        inner_names = ", ".join(topology.node_names[node] for node in transit_only)
        notes.append(
            "no traffic of their own, as all interfaces are read and none is external: "
            f"{inner_names}"
        )
    notes += _implausible_rates(topology, sent, received, value_column)
    silent = int((np.isnan(sent) & np.isnan(received)).all(0).sum())
    notes += [f"{silent} of {topology.num_links} links have no counter"] if silent else []
    timestamps = np.round(ends).astype("int64").astype("datetime64[s]")
    return Counters(timestamps, float(step), sent, received, ingress, egress, tuple(notes))


def _cell_texts(column: Any, text_of: Callable[[Any], str]) -> AnyArray:
    """Text (n,) of each cell, computed once for equal cells."""
    import pandas as pd

    codes, distinct = pd.factorize(column, use_na_sentinel=False)
    return np.array([text_of(cell) for cell in distinct], dtype=object)[codes]


def _numbers(column: Any, where: str, name: str, separator: str) -> FloatArray:
    """Numbers (n,) of a column; NaN for other texts."""
    import pandas as pd

    if column.dtype.kind not in "iuf":
        texts = column.fillna("").astype(str)
        if separator not in ("", ",") or texts.str.contains(",", regex=False).any():
            texts = pd.Series(plain_numbers(texts.tolist(), where, f"column {name}", separator))
        column = pd.to_numeric(texts, errors="coerce")
    return np.asarray(column.to_numpy(dtype=np.float64))


def _times(column: Any, where: str) -> FloatArray:
    """Times (n,) in seconds since 1970."""
    if column.dtype.kind == "M" or hasattr(column.dtype, "tz"):
        return np.asarray(naive_times(column).astype("datetime64[ns]").astype(np.int64) / 1e9)
    if column.dtype.kind in "iuf":
        return seconds_of_numbers(column.to_numpy(), where, "time")
    return seconds_of_texts(column.map(cells.cell_text), where, "time", first_row=2)


def _interface_targets(
    topology: Topology, interfaces: Any | None, where: str
) -> tuple[_TargetLookup, dict[_InterfaceKey, _Interface]]:
    """Return the function from router and interface to the interface's target (None if the table
    lacks it), and the content of the table; {} without a table.
    """
    index = topology.node_index()
    external = _Interface(None, None)

    def to_neighbour(router: str, neighbour: str, member: int, file: str, field: str) -> _Interface:
        try:
            links = topology.find_links(router, neighbour, member)
        except InputError:
            links = []
        outgoing = [link for link in links if topology.link_source[link] == index[router]]
        incoming = [link for link in links if topology.link_target[link] == index[router]]
        if max(len(outgoing), len(incoming)) != 1:
            expected = (
                f"a neighbour of {router} in {topology.name}, and which of parallel links: 1, 2, "
                "..."
            )
            raise InputError(
                file, field, expected, repr(f"{neighbour}#{member}" if member else neighbour)
            )
        return _Interface(outgoing[0] if outgoing else None, incoming[0] if incoming else None)

    if interfaces is None:
        neighbours = {
            (topology.node_names[a], topology.node_names[b])
            for a, b in zip(
                topology.link_source.tolist(), topology.link_target.tolist(), strict=True
            )
        }

        def by_name(router: str, name: str) -> _Interface:
            neighbour_name, member = topology.member(router, name)
            neighbour_name = topology.name_of(neighbour_name)
            is_link = (router, neighbour_name) in neighbours or (
                neighbour_name,
                router,
            ) in neighbours
            return (
                to_neighbour(router, neighbour_name, member, where, "interface")
                if is_link
                else external
            )

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
    table_targets: dict[_InterfaceKey, _Interface] = {}
    for line, row in enumerate(table.to_dict("records"), 2):
        router = topology.name_of(cells.cell_text(row["router"]))
        name = cells.cell_text(row["interface"])
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
            table_targets[router, name] = _Interface(None, None, is_ignored=True)
        elif not neighbour:
            table_targets[router, name] = external
        else:
            neighbour_name = topology.name_of(neighbour)
            table_targets[router, name] = to_neighbour(
                router, neighbour_name, member, file, f"row {line}: neighbour"
            )
    return lambda router, name: table_targets.get((router, name)), table_targets


def interfaces_of(
    path: Path, topology: Topology
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the names of interfaces in a table: by the link that leaves the router, and the external
    ones by router.

    Raises:
        InputError: no such file, or a row outside the network.
    """
    names = topology.link_names()
    by_link = dict[str, list[str]]()
    external = dict[str, list[str]]()
    targets = _interface_targets(topology, _read(path), str(path))[1]
    for (router, name), target in sorted(targets.items(), key=lambda one: one[0]):
        if target.is_border:
            external.setdefault(router, []).append(name)
        elif target.out_link is not None:
            by_link.setdefault(names[target.out_link], []).append(name)
    return by_link, external


def interface_names(path: Path, topology: Topology) -> dict[str, list[str]]:
    """Return the names of the interfaces of links in a table, by link; errors as in
    :func:`interfaces_of`.
    """
    return interfaces_of(path, topology)[0]


# Texts of the column ignore that exclude an interface.
_YES = ("1", "1.0", "true", "yes", "x")
# Maximum number of routers or interfaces in a message.
_MAX_LISTED = 20


def _ignored(
    lead_of: Mapping[_InterfaceKey, _Interface | None], pattern: str
) -> set[_InterfaceKey]:
    """Return the interfaces that the pattern or the table excludes."""
    try:
        expression = re.compile(pattern) if pattern else None
    except re.error as error:
        raise InputError(
            "--ignore-interfaces", "", "a regular expression", f"{pattern!r}: {error}"
        ) from None
    by_table = {
        interface_key
        for interface_key, lead in lead_of.items()
        if lead is not None and lead.is_ignored
    }
    return by_table | {
        interface_key
        for interface_key in lead_of
        if expression is not None and expression.fullmatch(interface_key[1])
    }


def _check_known(lead_of: Mapping[_InterfaceKey, _Interface | None], where: str) -> None:
    """Raise InputError for interfaces that the table lacks, with a pattern that would exclude them."""
    unknown = sorted(interface_key for interface_key, lead in lead_of.items() if lead is None)
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


def _median_interval(times: FloatArray, *keys: Any) -> float:
    """Median time between two readings of the same interface, seconds."""
    import pandas as pd

    groups = pd.DataFrame(dict(enumerate(keys))).groupby(list(range(len(keys)))).indices
    steps = [np.diff(np.sort(times[rows])) for rows in groups.values() if len(rows) > 1]
    return float(np.median(np.concatenate(steps))) if steps else 0.0


def _may_be_narrow(
    read_times: FloatArray, reading: FloatArray, capacity: float, where: str, name: str
) -> bool:
    """Whether a counter may have 32 bits and wrap more than once between two readings, so that its
    rate is unknown; a counter that certainly does is an error.

    A 64-bit counter that stays below 2^32 rises in all of many readings.  RFC 2863 3.1.6 requires
    64-bit counters (ifHCInOctets) above 20 Mbit/s for this reason.

    Args:
        read_times: (n,) seconds.
        reading: (n,) bytes.
        capacity: capacity of the interface, Gbit/s.
        where: the file, for messages.
        name: the interface, for messages.

    Raises:
        InputError: the counter decreases repeatedly, never exceeds 2^32, and could wrap twice.
    """
    if len(reading) < 2 or reading.max() >= _WIDTHS[0] or capacity <= 0:
        return False
    falls = int((np.diff(reading) < 0).sum())
    seconds = float(np.median(np.diff(read_times)))
    wrap_s = _WIDTHS[0] * _BITS / (capacity * _GIGA)
    if seconds <= wrap_s:
        return False
    if falls >= _FALLS_OF_A_NARROW_COUNTER:
        raise InputError(
            where,
            name,
            f"counters of 64 bits (ifHCInOctets, ifHCOutOctets), or readings every {wrap_s:.3g} s: "
            f"at {capacity:g} Gbit/s a counter of 32 bits wraps more than once between two readings",
            f"32 bits, read every {seconds:g} s",
        )
    is_short = len(reading) <= _FEW_READINGS
    return falls > 0 or (is_short and reading.max() >= _WIDTHS[0] / 2)


def _implausible_rates(
    topology: Topology, sent: FloatArray, received: FloatArray, column: str
) -> list[str]:
    """Warn about links with a larger rate than their capacity."""
    capacity = np.where(topology.capacity > 0, topology.capacity, np.inf)
    largest = np.fmax(
        *(np.where(np.isnan(rates), 0.0, rates).max(0, initial=0.0) for rates in (sent, received))
    )
    names = topology.link_names()
    link_texts = [
        f"{names[link]} ({largest[link]:g} of {capacity[link]:g} Gbit/s)"
        for link in np.flatnonzero(largest > _MAX_RATE_OVER_CAPACITY * capacity)
    ]
    if not link_texts:
        return []
    advice = (
        "--counter-unit names the unit of rates"
        if column == "rate"
        else "the counters may be of bits, not bytes"
    )
    return [f"{WARNING}more was counted than the links can carry ({advice}): {listed(link_texts)}"]


def _rates(
    read_times: FloatArray, amount: FloatArray, capacity: float, factor: float
) -> tuple[FloatArray, FloatArray, tuple[int, int]]:
    """Return Gbit/s between readings, NaN after a reset; start times; numbers of wraps and resets.

    Args:
        read_times: (n,) seconds.
        amount: (n,) readings in Gbit.
        capacity: capacity of the interface, Gbit/s.
        factor: Gbit of a unit of the counter.
    """
    seconds = np.diff(read_times)
    change = np.diff(amount)
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
            if (
                may_wrap
                and seconds[i] > 0
                and wrapped <= _MAX_RATE_OVER_CAPACITY * capacity * seconds[i]
            ):
                change[i] = wrapped
                wraps = wraps + 1
                break
    resets = int((change < 0).sum())
    rate = np.where(
        (change >= 0) & (seconds > 0), change / np.where(seconds > 0, seconds, 1), np.nan
    )
    return rate, read_times[:-1], (wraps, resets)


def _interval_means(
    starts: FloatArray, stops: FloatArray, rate: FloatArray, ends: FloatArray, step: float
) -> FloatArray:
    """Mean (T,) of piecewise constant rates over the intervals that end at ``ends``; NaN if more than
    half of an interval is unknown.
    """
    known = np.isfinite(rate)
    starts = starts[known]
    stops = stops[known]
    rate = rate[known]
    if not len(rate):
        return np.full(len(ends), np.nan)
    volume = np.concatenate([[0.0], np.cumsum(rate * (stops - starts))])
    covered = np.concatenate([[0.0], np.cumsum(stops - starts)])

    def until(time: FloatArray, total: FloatArray, slope: FloatArray) -> FloatArray:
        """Cumulative total at each time; the pieces are sorted and do not overlap."""
        i = np.clip(np.searchsorted(starts, time, side="right") - 1, 0, len(starts) - 1)
        inside = np.clip(time - starts[i], 0.0, stops[i] - starts[i])
        return np.asarray(total[i] + slope[i] * inside)

    amount = until(ends, volume, rate) - until(ends - step, volume, rate)
    seconds = until(ends, covered, np.ones_like(rate)) - until(
        ends - step, covered, np.ones_like(rate)
    )
    return np.where(seconds >= _MIN_SHARE * step, amount / np.maximum(seconds, 1e-300), np.nan)


def _nearest_rates(
    read_times: FloatArray, rate: FloatArray, ends: FloatArray, step: float
) -> FloatArray:
    """Mean (T,) of the rates nearest to each end; NaN without any within half a step."""
    index = np.round((read_times - ends[0]) / step).astype(int)
    inside = (index >= 0) & (index < len(ends))
    total = np.bincount(index[inside], rate[inside], len(ends))
    count = np.bincount(index[inside], minlength=len(ends))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
