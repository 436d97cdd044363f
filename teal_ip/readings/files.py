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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from teal.errors import InputError, listed
from teal.formats import cells
from teal.formats.numerals import plain_numbers
from teal.formats.parts import keys_of, list_of, object_of, objects_of
from teal.formats.times import naive_times, seconds_of_numbers, seconds_of_texts
from teal.formats.units import gbps_per_unit
from teal.network import Topology
from teal.network.topology import without_port
from teal.runtime.archives import check_npz
from teal.runtime.arrays import AnyArray, BoolArray, FloatArray
from teal.runtime.storage import atomic_file
from teal_ip.readings.rates import GBIT_PER_BYTE, IntervalRates, median_interval
from teal_ip.readings.readings import Counters, without_own_traffic

# Labels that name router and interface, in order of preference.
_ROUTER = ("router", "instance", "source", "agent_host", "hostname", "sysName")
_INTERFACE = ("ifName", "interface", "interface_name", "ifDescr", "device", "name")
_DIRECTIONS = {
    "in": re.compile("in_?(octets|bytes)|receive", re.I),
    "out": re.compile("out_?(octets|bytes)|transmit", re.I),
}


def read_prometheus(path: Path) -> Any:
    """Read responses into a pandas frame: columns time, router, interface, direction and bytes.

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


# Router, interface and direction.
_SeriesKey = tuple[str, str, str]


def _rows(document: Any, location: str) -> Iterator[tuple[float, str, str, str, float]]:
    """Yield time, router, interface, direction and value of each reading of all responses."""
    for key, values in _values_by_key(document, location).items():
        for position, entry in enumerate(values):
            field = f"{' '.join(key)}: values[{position}]"
            time_and_value = list_of(entry, location, field)
            if len(time_and_value) != 2:
                raise InputError(location, field, "[time, value]", repr(entry)[:80])
            time, value = (_number(item, location, field) for item in time_and_value)
            yield time, *key, value


def _values_by_key(document: Any, location: str) -> dict[_SeriesKey, list[Any]]:
    """Return the unparsed readings of each interface and direction.

    Raises:
        InputError: a series without a key, or two equally wide counters of one key.
    """
    labels_by_key: dict[_SeriesKey, dict[str, Any]] = {}
    values_by_key: dict[_SeriesKey, list[Any]] = {}
    for position_text, series in _series(document, location):
        labels = object_of(series.get("metric"), location, f"{position_text}: metric")
        key = _series_key(labels, location, position_text)
        values = list_of(series.get("values"), location, f"{position_text}: values")
        previous = labels_by_key.setdefault(key, labels)
        # Counters of 64 bits replace those of 32.
        if previous is labels or _is_wide(labels) > _is_wide(previous):
            labels_by_key[key] = labels
            values_by_key[key] = values
        elif _is_wide(labels) == _is_wide(previous):
            raise _ambiguous_series(key, previous, labels, location, position_text)
    return values_by_key


def _series_key(labels: dict[str, Any], location: str, position_text: str) -> _SeriesKey:
    """Return router, interface and direction of a series from its labels.

    Raises:
        InputError: a label is missing, or the name of the metric has no direction.
    """
    router = without_port(_label(labels, _ROUTER, location, position_text))
    interface = _label(labels, _INTERFACE, location, position_text)
    name = str(labels.get("__name__", ""))
    direction = labels.get("direction") or next(
        (d for d, words in _DIRECTIONS.items() if words.search(name)), ""
    )
    if direction not in _DIRECTIONS:
        raise InputError(
            location,
            f"{position_text}: direction",
            "a label direction, or a name such as ifHCInOctets (rate() and sum() "
            "drop the name: query the counter itself)",
            name or "no name",
        )
    return router, interface, direction


def _ambiguous_series(
    key: _SeriesKey,
    previous: dict[str, Any],
    labels: dict[str, Any],
    location: str,
    position_text: str,
) -> InputError:
    """Error for two series of one key, with the labels in which they differ."""
    router, interface, direction = key
    differing = [
        f"{name}={previous.get(name)!r} and {labels.get(name)!r}"
        for name in dict.fromkeys([*previous, *labels])
        if previous.get(name) != labels.get(name)
    ]
    expected = (
        f"one series of {interface}, {direction}, of {router} (choose by a label in the query)"
    )
    return InputError(
        location,
        position_text,
        expected,
        f"two: {', '.join(differing) or 'with the same labels'}",
    )


def _series(document: Any, location: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield position and content of each series of one or more responses."""
    responses = document if isinstance(document, list) else [document]
    for index, item in enumerate(responses):
        position_text = f"[{index}]." if isinstance(document, list) else ""
        response = object_of(item, location, position_text or "response")
        if response.get("status") == "error" or "error" in response:
            error_text = f"{response.get('errorType', 'error')}: {response.get('error')}"
            raise InputError(
                location, f"{position_text}status", "a Prometheus response with data", error_text
            )
        data = object_of(response.get("data"), location, f"{position_text}data")
        if "result" not in data:
            expected = "data.result with metric and values, of a range query"
            raise InputError(location, position_text, expected, f"the keys {keys_of([response])}")
        if data.get("resultType", "matrix") != "matrix":
            raise InputError(
                location,
                f"{position_text}data.resultType",
                "matrix, of a range query",
                repr(data["resultType"]),
            )
        for position, series in enumerate(
            objects_of(data["result"], location, f"{position_text}data.result")
        ):
            yield f"{position_text}data.result[{position}]", series


def _is_wide(labels: dict[str, Any]) -> bool:
    """Whether a series is a 64-bit counter by its name: ifHCInOctets instead of ifInOctets."""
    return "hc" in str(labels.get("__name__", "")).lower()


def _number(value: Any, location: str, field: str) -> float:
    """Parse a number of a response; Prometheus also writes NaN and +Inf."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(location, field, "a number", repr(value)[:80]) from None


def _label(
    labels: dict[str, Any], names: tuple[str, ...], location: str, position_text: str
) -> str:
    for name in names:
        if labels.get(name):
            return str(labels[name])
    raise InputError(
        location,
        f"{position_text}: metric",
        "one of the labels " + ", ".join(names),
        sorted(labels),
    )


_ARRAYS = ("timestamps", "interval_s", "sent", "received", "ingress", "egress")


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


_EXTERNAL = _Interface(None, None)
# Router and interface.
_InterfaceKey = tuple[str, str]
# Maps router and interface to the interface's target; None if unknown.
_TargetLookup = Callable[[str, str], _Interface | None]


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Columns of a table of readings.

    Attributes:
        time_column: time, or start for rates that are labelled by the starts of their intervals.
        name_column: interface or neighbour.
        value_column: bytes or rate.
        rate_unit: unit in the heading of the column rate; "" for none.
    """

    time_column: str
    name_column: str
    value_column: str
    rate_unit: str

    @property
    def is_by_start(self) -> bool:
        """Whether times are the starts of intervals."""
        return self.time_column == "start"

    @property
    def is_cumulative(self) -> bool:
        """Whether values are counters, not rates."""
        return self.value_column == "bytes"


@dataclasses.dataclass(frozen=True, eq=False)
class _Readings:
    """Readings of interfaces, a row each.

    Attributes:
        times: (n,) seconds since 1970.
        values: (n,) bytes or rates; NaN where empty.
        directions: (n,) in or out.
        routers: (n,) names of nodes.
        interfaces: (n,) names of interfaces, or of neighbours.
    """

    times: FloatArray
    values: FloatArray
    directions: AnyArray
    routers: AnyArray
    interfaces: AnyArray

    def interface_keys(self) -> Iterable[_InterfaceKey]:
        """Router and interface of each row."""
        return zip(self.routers, self.interfaces, strict=True)

    def select(self, mask: BoolArray) -> _Readings:
        """Return the rows of a mask (n,)."""
        return _Readings(
            self.times[mask],
            self.values[mask],
            self.directions[mask],
            self.routers[mask],
            self.interfaces[mask],
        )

    def by_interface(self) -> Iterator[tuple[str, str, str, AnyArray]]:
        """Yield router, interface, direction, and the indices of their rows."""
        import pandas as pd

        columns = {"r": self.routers, "n": self.interfaces, "d": self.directions}
        for (router, interface, direction), rows in (
            pd.DataFrame(columns).groupby(["r", "n", "d"]).indices.items()
        ):
            yield router, interface, direction, rows


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
    # Cells of the table.
    layout, frame = _layout_of(frame, where)
    times, values, directions = _values_of(frame, layout, where)
    is_valid = np.isfinite(values) & (values >= 0)
    num_invalid = len(values) - int(is_valid.sum())
    notes = (
        [f"{num_invalid:,} of {len(frame):,} readings are empty or negative, and excluded"]
        if num_invalid
        else []
    )
    # Routers and interfaces.
    target_of, table_targets = _interface_targets(topology, interfaces, where)
    readings = _Readings(
        times,
        values,
        directions,
        routers=_cell_texts(frame["router"], lambda cell: topology.name_of(cells.cell_text(cell))),
        interfaces=_cell_texts(frame[layout.name_column], cells.cell_text),
    )
    _check_routers(readings, topology, where)
    routers = set(readings.routers)
    targets, ignored = _match_interfaces(readings, target_of, ignore, where)
    if ignored:
        notes.append(f"{len(ignored):,} interfaces are ignored")
    is_ignored = np.array([key in ignored for key in readings.interface_keys()], dtype=bool)
    readings = readings.select(is_valid & ~is_ignored)
    # Intervals.
    readings, ends, step = _intervals_of(readings, layout, interval_s, where)
    # Rates of the intervals, summed by link or router.
    rates = IntervalRates(
        topology,
        ends,
        step,
        factor=_gbit_per_unit(layout, unit),
        is_cumulative=layout.is_cumulative,
        location=where,
    )
    _add_interfaces(rates, readings, targets, topology, where, layout.name_column)
    notes += rates.notes()
    # Routers without traffic of their own.
    all_targets = {
        key: target for key, target in (table_targets | targets).items() if key not in ignored
    }
    notes += _clear_transit_only(rates, topology, routers, all_targets)
    notes += rates.plausibility_notes()
    return rates.to_counters(notes)


def _layout_of(frame: Any, location: str) -> tuple[_Layout, Any]:
    """Return the layout of a table, and the table with normalised column names.

    Raises:
        InputError: a missing column, or counters with the column start.
    """
    units = {plain: unit for plain, unit in map(cells.heading, map(str, frame.columns)) if unit}
    frame = frame.rename(columns={name: cells.heading(str(name))[0] for name in frame.columns})
    is_by_start = "start" in frame.columns and "time" not in frame.columns
    layout = _Layout(
        time_column="start" if is_by_start else "time",
        name_column="interface" if "interface" in frame.columns else "neighbour",
        value_column="bytes" if "bytes" in frame.columns else "rate",
        rate_unit=units.get("rate", ""),
    )
    if is_by_start and layout.is_cumulative:
        raise InputError(
            location,
            "start",
            "the time at which the counter was read, in a column time",
            "a start",
        )
    required = (
        layout.time_column,
        "router",
        layout.name_column,
        "direction",
        layout.value_column,
    )
    missing = [name for name in required if name not in frame.columns]
    if missing:
        expected = "columns time, router, interface or neighbour, direction, bytes or rate"
        raise InputError(location, "columns", expected, "no " + ", ".join(missing))
    return layout, frame


def _values_of(
    frame: Any, layout: _Layout, location: str
) -> tuple[FloatArray, FloatArray, AnyArray]:
    """Parse times (n,), values (n,) and directions (n,) of a table.

    Raises:
        InputError: an ambiguous time or number, or a direction other than in or out.
    """
    times = _times(frame[layout.time_column], location)
    separator = frame.attrs.get("separator", "")
    column = layout.value_column
    values = _numbers(frame[column], location, column, separator)
    directions = frame["direction"].astype(str).str.strip().str.lower().to_numpy()
    invalid_rows = np.flatnonzero((directions != "in") & (directions != "out"))
    if len(invalid_rows):
        raise InputError(
            location,
            f"row {invalid_rows[0] + 2}: direction",
            "in or out",
            repr(directions[invalid_rows[0]]),
        )
    return times, values, directions


def _check_routers(readings: _Readings, topology: Topology, location: str) -> None:
    """Raise InputError for routers outside the network."""
    unknown = sorted(set(readings.routers) - set(topology.node_index()))
    if unknown:
        expected = (
            f"a node of {topology.name} (--routers lists the other names by which routers are "
            "called)"
        )
        raise InputError(
            location, "router", expected, listed([repr(name) for name in unknown], _MAX_LISTED)
        )


def _match_interfaces(
    readings: _Readings, target_of: _TargetLookup, ignore: str, location: str
) -> tuple[dict[_InterfaceKey, _Interface | None], set[_InterfaceKey]]:
    """Return the targets of all interfaces with readings, and the ignored ones among them.

    Raises:
        InputError: an interface without a target, or an invalid pattern ``ignore``.
    """
    targets = {key: target_of(*key) for key in set(readings.interface_keys())}
    ignored = _ignored(targets, ignore)
    _check_known({key: target for key, target in targets.items() if key not in ignored}, location)
    return targets, ignored


def _intervals_of(
    readings: _Readings, layout: _Layout, interval_s: float, location: str
) -> tuple[_Readings, FloatArray, float]:
    """Return the readings with the ends of their intervals as times, the ends (T,) of all intervals,
    and their length; seconds.

    Args:
        readings: the readings.
        layout: columns of the table.
        interval_s: length of an interval; 0 for the median time between two readings.
        location: the file, for messages.

    Raises:
        InputError: no interface has two readings.
    """
    step = interval_s or median_interval(
        readings.times, readings.routers, readings.interfaces, readings.directions
    )
    if not step > 0:
        raise InputError(location, "time", "at least two readings of an interface", "one")
    if layout.is_by_start:
        readings = dataclasses.replace(readings, times=readings.times + step)
    ends = np.arange(
        readings.times.min() + (step if layout.is_cumulative else 0),
        readings.times.max() + step / 2,
        step,
    )
    return readings, ends, step


def _gbit_per_unit(layout: _Layout, unit: str) -> float:
    """Gbit, or Gbit/s, of a unit of the values.

    Raises:
        InputError: an unknown unit.
    """
    unit = unit or layout.rate_unit
    factor = gbps_per_unit(unit, "--counter-unit") if unit else 1.0
    return GBIT_PER_BYTE if layout.is_cumulative else factor


def _add_interfaces(
    rates: IntervalRates,
    readings: _Readings,
    targets: Mapping[_InterfaceKey, _Interface | None],
    topology: Topology,
    location: str,
    name_column: str,
) -> None:
    """Add the rates of each interface and direction to its link, or to its router if it is external.

    Raises:
        InputError: different readings of one time, or a 32-bit counter that is too fast.
    """
    index = topology.node_index()
    for router, name, direction, rows in readings.by_interface():
        title = f"{name or 'external'} of {router}, {direction}"
        # Sort by time, without repetitions.
        read_times = readings.times[rows]
        values = readings.values[rows]
        order = np.argsort(read_times, kind="stable")
        read_times = read_times[order]
        values = values[order]
        is_repeated = np.diff(read_times, prepend=-math.inf) == 0
        if (is_repeated & (np.diff(values, prepend=0.0) != 0)).any():
            expected = (
                "one reading at a time; interfaces that have a name each (--interfaces), or "
                "neighbours a#1, a#2"
            )
            raise InputError(
                location, name_column, expected, f"several of {name!r}, {direction}, at {router}"
            )
        # Rates.
        target = targets[router, name]
        # Guaranteed by _check_known.
        assert target is not None
        link = target.out_link if direction == "out" else target.in_link
        capacity = (
            float(topology.capacity[link]) if link is not None else float(topology.capacity.sum())
        )
        series = rates.means(read_times[~is_repeated], values[~is_repeated], capacity, title)
        if link is not None:
            rates.add_to_link(link, direction, name, series)
        elif target.is_border:
            rates.add_to_router(index[router], direction, series)


def _clear_transit_only(
    rates: IntervalRates,
    topology: Topology,
    routers: set[str],
    targets: Mapping[_InterfaceKey, _Interface | None],
) -> list[str]:
    """Set ingress and egress of routers without traffic of their own to 0; return a note on them.

    Args:
        rates: rates of all interfaces; ingress and egress are updated.
        topology: the network.
        routers: names of the routers with readings.
        targets: interfaces of readings and table that are not ignored.
    """
    borders = {
        router for (router, _), target in targets.items() if target is not None and target.is_border
    }
    if not borders:
        return []
    is_candidate = np.isin(topology.node_names, sorted(routers - borders))
    transit_only = without_own_traffic(topology, is_candidate, rates.sent, rates.received)
    if not transit_only:
        return []
    rates.ingress[:, transit_only] = rates.egress[:, transit_only] = 0.0
    names = ", ".join(topology.node_names[node] for node in transit_only)
    return [f"no traffic of their own, as all interfaces are read and none is external: {names}"]


def _cell_texts(column: Any, text_of: Callable[[Any], str]) -> AnyArray:
    """Text (n,) of each cell, computed once for equal cells."""
    import pandas as pd

    codes, distinct = pd.factorize(column, use_na_sentinel=False)
    return np.array([text_of(cell) for cell in distinct], dtype=object)[codes]


def _numbers(column: Any, location: str, name: str, separator: str) -> FloatArray:
    """Numbers (n,) of a column; NaN for other texts."""
    import pandas as pd

    if column.dtype.kind not in "iuf":
        texts = column.fillna("").astype(str)
        if separator not in ("", ",") or texts.str.contains(",", regex=False).any():
            texts = pd.Series(plain_numbers(texts.tolist(), location, f"column {name}", separator))
        column = pd.to_numeric(texts, errors="coerce")
    return np.asarray(column.to_numpy(dtype=np.float64))


def _times(column: Any, location: str) -> FloatArray:
    """Times (n,) in seconds since 1970."""
    if column.dtype.kind == "M" or hasattr(column.dtype, "tz"):
        return np.asarray(naive_times(column).astype("datetime64[ns]").astype(np.int64) / 1e9)
    if column.dtype.kind in "iuf":
        return seconds_of_numbers(column.to_numpy(), location, "time")
    return seconds_of_texts(column.map(cells.cell_text), location, "time", first_row=2)


def _interface_targets(
    topology: Topology, interfaces: Any | None, location: str
) -> tuple[_TargetLookup, dict[_InterfaceKey, _Interface]]:
    """Return the function from router and interface to the interface's target (None if the table
    lacks it), and the content of the table; {} without a table.
    """
    if interfaces is None:
        return _lookup_by_name(topology, location), {}
    table_targets = _table_targets(topology, interfaces)
    return lambda router, name: table_targets.get((router, name)), table_targets


def _lookup_by_name(topology: Topology, location: str) -> _TargetLookup:
    """Return the lookup of interfaces that are named like neighbours; other names are external."""
    neighbours = {
        (topology.node_names[a], topology.node_names[b])
        for a, b in zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    }

    def target_of(router: str, name: str) -> _Interface:
        neighbour, member = topology.member(router, name)
        neighbour = topology.name_of(neighbour)
        if (router, neighbour) not in neighbours and (neighbour, router) not in neighbours:
            return _EXTERNAL
        return _interface_to(topology, router, neighbour, member, location, "interface")

    return target_of


def _table_targets(topology: Topology, interfaces: Any) -> dict[_InterfaceKey, _Interface]:
    """Return the targets of a table of router, interface, neighbour, number and ignore.

    Raises:
        InputError: a missing column, or a row outside the network.
    """
    table = interfaces.rename(
        columns={name: str(name).strip().lower() for name in interfaces.columns}
    )
    location = str(interfaces.attrs.get("where", "--interfaces"))
    missing = [name for name in ("router", "interface", "neighbour") if name not in table.columns]
    if missing:
        raise InputError(
            location, "columns", "router, interface, neighbour", "no " + ", ".join(missing)
        )
    index = topology.node_index()
    targets: dict[_InterfaceKey, _Interface] = {}
    for line, row in enumerate(table.to_dict("records"), 2):
        # Cells of the row.
        router = topology.name_of(cells.cell_text(row["router"]))
        interface = cells.cell_text(row["interface"])
        neighbour = cells.cell_text(row["neighbour"])
        number = cells.cell_text(row.get("number")).removesuffix(".0")
        if number and not (number.isdecimal() and int(number)):
            raise InputError(location, f"row {line}: number", "a positive integer", repr(number))
        if router not in index:
            raise InputError(
                location, f"row {line}: router", f"a node of {topology.name}", repr(router)
            )
        # Target: ignored, external, or the links to a neighbour.
        if str(row.get("ignore", "")).strip().lower() in _YES:
            target = _Interface(None, None, is_ignored=True)
        elif not neighbour:
            target = _EXTERNAL
        else:
            target = _interface_to(
                topology,
                router,
                topology.name_of(neighbour),
                int(number or 0),
                location,
                f"row {line}: neighbour",
            )
        targets[router, interface] = target
    return targets


def _interface_to(
    topology: Topology, router: str, neighbour: str, member: int, location: str, field: str
) -> _Interface:
    """Return the interface of a router on the links from and to a neighbour.

    Args:
        topology: the network.
        router: name of a node.
        neighbour: name of the neighbour.
        member: index of the parallel cable, from 1; 0 for a single one.
        location: the file, for messages.
        field: column, for messages.

    Raises:
        InputError: no link, or several parallel ones.
    """
    try:
        links = topology.find_links(router, neighbour, member)
    except InputError:
        links = []
    outgoing = [e for e in links if topology.node_names[topology.link_source[e]] == router]
    incoming = [e for e in links if topology.node_names[topology.link_target[e]] == router]
    if max(len(outgoing), len(incoming)) != 1:
        expected = (
            f"a neighbour of {router} in {topology.name}, and which of parallel links: 1, 2, ..."
        )
        raise InputError(
            location, field, expected, repr(f"{neighbour}#{member}" if member else neighbour)
        )
    return _Interface(outgoing[0] if outgoing else None, incoming[0] if incoming else None)


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
    for (router, name), target in sorted(targets.items(), key=lambda entry: entry[0]):
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
    targets: Mapping[_InterfaceKey, _Interface | None], pattern: str
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
        for interface_key, target in targets.items()
        if target is not None and target.is_ignored
    }
    return by_table | {
        interface_key
        for interface_key in targets
        if expression is not None and expression.fullmatch(interface_key[1])
    }


def _check_known(targets: Mapping[_InterfaceKey, _Interface | None], location: str) -> None:
    """Raise InputError for interfaces that the table lacks, with a pattern that would exclude them."""
    unknown = sorted(interface_key for interface_key, target in targets.items() if target is None)
    if unknown:
        forms = sorted({re.sub(r"\d+", r"\\d+", re.escape(name)) for _, name in unknown})
        advice = (
            f"add these {len(unknown):,} (neighbour empty: external), or --ignore-interfaces "
            f"'{'|'.join(forms)}'"
        )
        expected = f"interfaces of the table --interfaces: {advice}"
        raise InputError(
            location,
            "interface",
            expected,
            listed([f"{name} of {router}" for router, name in unknown], _MAX_LISTED),
        )
