"""Import of interface counters: tables of readings to rates of links and external interfaces.

A table has a row for each reading, in any order:

- ``time``: ISO 8601, or seconds since 1970; for rates the end of the interval, or a column
  ``start`` with its start instead;
- ``router``: name of the node;
- ``interface``: name of the interface, or a column ``neighbour`` instead: the router at the other
  end, empty for external interfaces;
- ``direction``: ``in`` or ``out``, from the router's point of view;
- ``bytes``: a cumulative counter (32 or 64 bits), or a column ``rate`` instead, by default in
  Gbit/s.

A table of router, interface, neighbour (empty: external) and, for parallel links, number (counted
from 1 like the names of links) maps interfaces to links.  By default an interface named like a
neighbour (``b``, or ``b#2`` for parallel links) is the link to it, and any other one is external.
External interfaces of a router are summed, and so are several interfaces of one link.  A
router without external interfaces is transit-only (ingress and egress 0) if other routers have
some, all its links are read, and what enters and leaves it differs by at most 10%.

Counters become rates over the intervals between two readings.  A decrease is a wrap if the counter
was in the last quarter of its range and the rate is plausible for the capacity of the interface;
else it is a reset, and that interval is missing.  Readings need not be simultaneous: the rate of an
interval is the mean over its overlap with the readings.

A .npz file has the arrays of :class:`teal_ip.readings.readings.Counters` by name, as written by
:func:`save_counters`.

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

# Labels of Prometheus series for router and interface, in order of preference, and patterns of
# metric names that say the direction.
_ROUTER_LABELS = ("router", "instance", "source", "agent_host", "hostname", "sysName")
_INTERFACE_LABELS = ("ifName", "interface", "interface_name", "ifDescr", "device", "name")
_DIRECTION_PATTERNS = {
    "in": re.compile("in_?(octets|bytes)|receive", re.I),
    "out": re.compile("out_?(octets|bytes)|transmit", re.I),
}


def read_prometheus(path: Path) -> Any:
    """Read Prometheus responses into a pandas frame with columns time, router, interface, direction
    and bytes.

    Args:
        path: a .json file with one response to a range query, or a list of responses.

    Raises:
        InputError: no JSON, no range query, or a series without router, interface or direction.
    """
    import pandas as pd

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError.invalid(
            str(path), "", f"not readable as JSON response of a Prometheus range query ({error})"
        ) from None
    rows = list(_response_rows(document, str(path)))
    if not rows:
        raise InputError.invalid(
            str(path), "data.result", "no series has values", "query at least one series"
        )
    return pd.DataFrame(rows, columns=["time", "router", "interface", "direction", "bytes"])


# (router, interface, direction).
_SeriesKey = tuple[str, str, str]


def _response_rows(document: Any, location: str) -> Iterator[tuple[float, str, str, str, float]]:
    """Yield (time in seconds since 1970, router, interface, direction, bytes) for each reading.

    Args:
        document: parsed file: a response, or a list of responses.
        location: the file, for messages.
    """
    for key, values in _values_by_key(document, location).items():
        for position, entry in enumerate(values):
            field = f"{' '.join(key)}: values[{position}]"
            # Each reading is a list [time, value].
            time_and_value = list_of(entry, location, field)
            if len(time_and_value) != 2:
                raise InputError(location, field, "[time, value]", repr(entry)[:80])
            time, value = (_parse_number(item, location, field) for item in time_and_value)
            yield time, *key, value


def _values_by_key(document: Any, location: str) -> dict[_SeriesKey, list[Any]]:
    """Return the readings of each series, lists [time, value] as in the response, by (router,
    interface, direction).

    If an interface and direction has a 32-bit and a 64-bit counter, the 64-bit one is used.

    Args:
        document: parsed file: a response, or a list of responses.
        location: the file, for messages.

    Raises:
        InputError: a series without router, interface or direction, or two counters of one
            interface and direction with the same width.
    """
    labels_by_key: dict[_SeriesKey, dict[str, Any]] = {}
    values_by_key: dict[_SeriesKey, list[Any]] = {}
    for position_text, series in _series_of_responses(document, location):
        labels = object_of(series.get("metric"), location, f"{position_text}: metric")
        key = _series_key(labels, location, position_text)
        values = list_of(series.get("values"), location, f"{position_text}: values")
        previous_labels = labels_by_key.setdefault(key, labels)
        # A 64-bit counter replaces a 32-bit one.
        if previous_labels is labels or _is_64_bit(labels) > _is_64_bit(previous_labels):
            labels_by_key[key] = labels
            values_by_key[key] = values
        elif _is_64_bit(labels) == _is_64_bit(previous_labels):
            raise _ambiguous_series(key, previous_labels, labels, location, position_text)
    return values_by_key


def _series_key(labels: dict[str, Any], location: str, position_text: str) -> _SeriesKey:
    """Return router, interface and direction of a series from its labels.

    Args:
        labels: labels by name, with the name of the metric as ``__name__``.
        location: the file, for messages.
        position_text: position of the series in the file, for messages.

    Raises:
        InputError: a label is missing, or the name of the metric has no direction.
    """
    router = without_port(_first_label(labels, _ROUTER_LABELS, location, position_text))
    interface = _first_label(labels, _INTERFACE_LABELS, location, position_text)
    # Direction: its label, else the pattern that the name of the metric matches.
    metric_name = str(labels.get("__name__", ""))
    direction = labels.get("direction") or next(
        (d for d, pattern in _DIRECTION_PATTERNS.items() if pattern.search(metric_name)), ""
    )
    if direction not in _DIRECTION_PATTERNS:
        raise InputError.invalid(
            location,
            f"{position_text}: direction",
            f"neither a label direction nor the metric name {metric_name!r} says in or out",
            "query the counter itself, such as ifHCInOctets: rate() and sum() drop the name",
        )
    return router, interface, direction


def _ambiguous_series(
    key: _SeriesKey,
    first_labels: dict[str, Any],
    second_labels: dict[str, Any],
    location: str,
    position_text: str,
) -> InputError:
    """Return the error for two series of one interface and direction.

    Its message names the labels in which the series differ.

    Args:
        key: router, interface and direction.
        first_labels: labels of the first series.
        second_labels: labels of the second series.
        location: the file, for messages.
        position_text: position of the second series in the file, for messages.
    """
    router, interface, direction = key
    # Labels whose values differ between the series, or that one of them lacks.
    label_differences = [
        f"{name}={first_labels.get(name)!r} and {second_labels.get(name)!r}"
        for name in dict.fromkeys([*first_labels, *second_labels])
        if first_labels.get(name) != second_labels.get(name)
    ]
    labels_text = ", ".join(label_differences) or "with the same labels"
    return InputError.invalid(
        location,
        position_text,
        f"two series for {interface} of {router}, direction {direction}: {labels_text}",
        "select one by a label in the query",
    )


def _series_of_responses(document: Any, location: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield position (for messages) and content of each series of one or more responses.

    Args:
        document: parsed file: a response, or a list of responses.
        location: the file, for messages.

    Raises:
        InputError: an error response, or one that is not of a range query.
    """
    # One response, or a list of responses: reject errors, and results other than of a range query.
    responses = document if isinstance(document, list) else [document]
    for index, item in enumerate(responses):
        position_text = f"[{index}]." if isinstance(document, list) else ""
        response = object_of(item, location, position_text or "response")
        if response.get("status") == "error" or "error" in response:
            error_text = f"{response.get('errorType', 'error')}: {response.get('error')}"
            raise InputError.invalid(
                location, f"{position_text}status", f"Prometheus returned an error: {error_text}"
            )
        data = object_of(response.get("data"), location, f"{position_text}data")
        if "result" not in data:
            raise InputError.invalid(
                location,
                position_text,
                f"no data.result; the response has the keys {keys_of([response])}",
                "use the response of a range query",
            )
        if data.get("resultType", "matrix") != "matrix":
            raise InputError(
                location,
                f"{position_text}data.resultType",
                "the result type matrix of a range query",
                repr(data["resultType"]),
            )
        # The series of the response.
        for position, series in enumerate(
            objects_of(data["result"], location, f"{position_text}data.result")
        ):
            yield f"{position_text}data.result[{position}]", series


def _is_64_bit(labels: dict[str, Any]) -> bool:
    """Return whether a metric is a 64-bit counter by its name: ifHCInOctets is, ifInOctets is
    not.
    """
    return "hc" in str(labels.get("__name__", "")).lower()


def _parse_number(value: Any, location: str, field: str) -> float:
    """Return a time or value of a response as a float; Prometheus also writes NaN and +Inf.

    Raises:
        InputError: not a number.
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(location, field, "a number", repr(value)[:80]) from None


def _first_label(
    labels: dict[str, Any], names: tuple[str, ...], location: str, position_text: str
) -> str:
    """Return the value of a label of a series: of the first of several names that it has.

    Args:
        labels: labels of the series by name.
        names: names of labels, in order of preference.
        location: the file, for messages.
        position_text: position of the series in the file, for messages.

    Raises:
        InputError: the series has none of the labels.
    """
    for name in names:
        if labels.get(name):
            return str(labels[name])
    raise InputError(
        location,
        f"{position_text}: metric",
        "one of the labels " + ", ".join(names),
        sorted(labels),
    )


# Arrays of a .npz file of counters.
_ARRAY_NAMES = ("timestamps", "interval_s", "sent", "received", "ingress", "egress")


def load_counters(
    path: Path | str,
    topology: Topology,
    *,
    interfaces: Path | str | None = None,
    unit: str = "",
    interval_s: float = 0.0,
    ignore: str = "",
) -> Counters:
    """Read interface counters from a file, as rates of links and external interfaces.

    Args:
        path: a .csv, .parquet, .json (Prometheus responses) or .npz file.
        topology: the network.
        interfaces: table that maps interfaces to links; None if interfaces are named like
            neighbours.
        unit: unit of the column rate; "" for the unit in its heading, else Gbit/s.
        interval_s: length of an interval, seconds; 0 for the median time between two readings.
        ignore: regular expression for names of interfaces to ignore; "" for none.

    Raises:
        InputError: no such file, a missing column, an invalid value, an unknown router or
            interface, or no external interface.
    """
    path = Path(path)
    if path.suffix.lower() == ".npz":
        counters = _load_npz(path)
    else:
        counters = counters_from_frame(
            _read_table(path),
            topology,
            str(path),
            interfaces and _read_table(Path(interfaces)),
            unit,
            interval_s,
            ignore,
        )
    counters.check(topology)
    return counters


def save_counters(path: Path | str, counters: Counters) -> None:
    """Write counters to a .npz file, which :func:`load_counters` reads."""
    arrays = {name: getattr(counters, name) for name in _ARRAY_NAMES}
    arrays["timestamps"] = counters.timestamps.astype("datetime64[s]").astype(np.int64)
    with atomic_file(Path(path)) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)


def _load_npz(path: Path) -> Counters:
    """Return the counters of a .npz file that :func:`save_counters` wrote.

    Raises:
        InputError: no such file, another format, or a missing array.
    """
    try:
        check_npz(path)
        with np.load(path, allow_pickle=False) as archive:
            missing_names = [name for name in _ARRAY_NAMES if name not in archive.files]
            if missing_names:
                raise InputError.invalid(str(path), "arrays", f"missing {', '.join(missing_names)}")
            arrays = {name: archive[name] for name in _ARRAY_NAMES}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError.invalid(
            str(path), "", f"not readable as a .npz file of counters ({error})"
        ) from None
    # Times are stored as seconds since 1970.
    times = arrays.pop("timestamps").astype("datetime64[s]")
    interval_s = float(arrays.pop("interval_s"))
    return Counters(
        times, interval_s, **{name: array.astype(np.float64) for name, array in arrays.items()}
    )


def _read_table(path: Path) -> Any:
    """Read a .csv, .parquet or .json (Prometheus) file into a pandas frame.

    Raises:
        InputError: no such file, or another format.
    """
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
            path.suffix or "no suffix",
        )
    try:
        frame = reader(path)
        # The location is used in messages.
        frame.attrs["where"] = str(path)
        return frame
    except InputError:
        raise
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise InputError.invalid(
            str(path), "", f"not readable as a table of counters ({str(error).splitlines()[0]})"
        ) from None


def _read_csv(path: Path) -> Any:
    """Read a .csv file into a frame of strings.

    Cells such as NA and null stay strings, and empty cells are "".  The column separator is stored
    in ``frame.attrs``.
    """
    import pandas as pd

    # The heading shows the column separator.
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        separator = cells.separator_of(stream.readline())
    frame = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    frame.attrs["separator"] = separator
    return frame


@dataclasses.dataclass(frozen=True)
class _InterfaceTarget:
    """Links of the network that an interface belongs to.

    Attributes:
        out_link: index of the link that leaves the router; None for none.
        in_link: index of the link that enters the router; None for none.
        is_ignored: whether readings of the interface are dropped.
    """

    out_link: int | None
    in_link: int | None
    is_ignored: bool = False

    @property
    def is_external(self) -> bool:
        """Whether the interface is external: without links, and not ignored."""
        return self.out_link is None and self.in_link is None and not self.is_ignored


_EXTERNAL = _InterfaceTarget(None, None)
# (router, interface).
_InterfaceKey = tuple[str, str]
# Function from router and interface to the links of the interface; None if unknown.
_TargetLookup = Callable[[str, str], _InterfaceTarget | None]


@dataclasses.dataclass(frozen=True)
class _TableLayout:
    """Columns of a table of readings.

    Attributes:
        time_column: time; or start, for rates with the starts of their intervals.
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
        """Whether the times of rates are the starts of their intervals, not the ends."""
        return self.time_column == "start"

    @property
    def is_cumulative(self) -> bool:
        """Whether the values are cumulative byte counters, not rates."""
        return self.value_column == "bytes"


@dataclasses.dataclass(frozen=True, eq=False)
class _InterfaceReadings:
    """Table of n readings of interfaces, as columns.

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
        """Return pairs of router and interface, one for each of the n readings."""
        return zip(self.routers, self.interfaces, strict=True)

    def select(self, mask: BoolArray) -> _InterfaceReadings:
        """Return the readings for which ``mask`` (n,) is true."""
        return _InterfaceReadings(
            self.times[mask],
            self.values[mask],
            self.directions[mask],
            self.routers[mask],
            self.interfaces[mask],
        )

    def by_interface(self) -> Iterator[tuple[str, str, str, AnyArray]]:
        """Yield router, interface, direction, and indices of its readings, for each interface and
        direction.
        """
        import pandas as pd

        # Group the rows by router, name of the interface, and direction.
        columns = {"r": self.routers, "n": self.interfaces, "d": self.directions}
        for (router, interface, direction), rows in (
            pd.DataFrame(columns).groupby(["r", "n", "d"]).indices.items()
        ):
            yield router, interface, direction, rows


def counters_from_frame(
    frame: Any,
    topology: Topology,
    location: str,
    interfaces: Any | None = None,
    unit: str = "",
    interval_s: float = 0.0,
    ignore: str = "",
) -> Counters:
    """Convert a pandas frame of readings to rates of links and external interfaces.

    Args:
        frame: one row per reading, with columns time (or start), router, interface (or neighbour),
            direction, bytes (or rate).
        topology: the network.
        location: name of the source, for messages.
        interfaces: frame of router, interface, neighbour and number; None if interfaces are named
            like neighbours.
        unit: unit of the column rate; "" for the unit in its heading, else Gbit/s.
        interval_s: length of an interval, seconds; 0 for the median time between two readings.
        ignore: regular expression for names of interfaces to ignore; "" for none.

    Raises:
        InputError: a missing column, an invalid value, or an unknown router or interface.
    """
    # Parse the cells; exclude empty and negative readings.
    layout, frame = _detect_layout(frame, location)
    times, reading_values, directions = _parse_values(frame, layout, location)
    is_valid = np.isfinite(reading_values) & (reading_values >= 0)
    num_invalid = len(reading_values) - int(is_valid.sum())
    notes = (
        [f"{num_invalid:,} of {len(frame):,} readings excluded: empty or negative"]
        if num_invalid
        else []
    )
    # Map interfaces to links; drop the ignored ones.
    find_target, table_targets = _interface_targets(topology, interfaces, location)
    readings = _InterfaceReadings(
        times,
        reading_values,
        directions,
        routers=_cell_texts(frame["router"], lambda cell: topology.name_of(cells.cell_text(cell))),
        interfaces=_cell_texts(frame[layout.name_column], cells.cell_text),
    )
    _check_routers(readings, topology, location)
    router_names = set(readings.routers)
    targets, ignored_keys = _match_interfaces(readings, find_target, ignore, location)
    if ignored_keys:
        notes.append(f"{len(ignored_keys):,} interfaces ignored")
    is_ignored = np.array([key in ignored_keys for key in readings.interface_keys()], dtype=bool)
    readings = readings.select(is_valid & ~is_ignored)
    # Divide the time into intervals.
    readings, interval_ends, interval_length_s = _assign_intervals(
        readings, layout, interval_s, location
    )
    # Compute mean rates in each interval, summed by link or router.
    rates = IntervalRates(
        topology,
        interval_ends,
        interval_length_s,
        gbit_per_unit=_gbit_per_unit(layout, unit),
        is_cumulative=layout.is_cumulative,
        location=location,
    )
    _add_interfaces(rates, readings, targets, topology, location, layout.name_column)
    notes += rates.notes()
    # Set ingress and egress of transit-only routers to 0.
    all_targets = {
        key: target for key, target in (table_targets | targets).items() if key not in ignored_keys
    }
    notes += _clear_transit_only(rates, topology, router_names, all_targets)
    notes += rates.plausibility_notes()
    return rates.to_counters(notes)


def _detect_layout(frame: Any, location: str) -> tuple[_TableLayout, Any]:
    """Return the layout of a table, and the table with normalised column names.

    Args:
        frame: table of readings.
        location: the file, for messages.

    Raises:
        InputError: a missing column, or counters with the column start.
    """
    # Divide headings such as "rate (Mbit/s)" into name and unit.
    unit_by_heading = {
        plain: unit for plain, unit in map(cells.heading, map(str, frame.columns)) if unit
    }
    frame = frame.rename(columns={name: cells.heading(str(name))[0] for name in frame.columns})
    # Choose the columns: start is used without time only, neighbour without interface, rate without
    # bytes.
    is_by_start = "start" in frame.columns and "time" not in frame.columns
    layout = _TableLayout(
        time_column="start" if is_by_start else "time",
        name_column="interface" if "interface" in frame.columns else "neighbour",
        value_column="bytes" if "bytes" in frame.columns else "rate",
        rate_unit=unit_by_heading.get("rate", ""),
    )
    if is_by_start and layout.is_cumulative:
        raise InputError.invalid(
            location,
            "start",
            "counters (column bytes) need the time of each reading, not the start of an interval",
            "use a column time",
        )
    # Check that no column is missing.
    required_columns = (
        layout.time_column,
        "router",
        layout.name_column,
        "direction",
        layout.value_column,
    )
    missing_columns = [name for name in required_columns if name not in frame.columns]
    if missing_columns:
        raise InputError.invalid(
            location,
            "columns",
            f"missing {', '.join(missing_columns)}",
            "use the columns time, router, interface or neighbour, direction, bytes or rate",
        )
    return layout, frame


def _parse_values(
    frame: Any, layout: _TableLayout, location: str
) -> tuple[FloatArray, FloatArray, AnyArray]:
    """Return times (n,), seconds since 1970, values (n,) and directions (n,) of a table.

    Values are bytes or rates in the unit of the table, NaN for cells that are no number; directions
    are ``in`` or ``out``.

    Args:
        frame: table of n readings with normalised column names.
        layout: columns of the table.
        location: the file, for messages.

    Raises:
        InputError: an ambiguous time or number, or a direction other than in or out.
    """
    times = _parse_times(frame[layout.time_column], location)
    separator = frame.attrs.get("separator", "")
    column = layout.value_column
    values = _parse_numbers(frame[column], location, column, separator)
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


def _check_routers(readings: _InterfaceReadings, topology: Topology, location: str) -> None:
    """Raise InputError if readings are of routers that the network does not have."""
    unknown_routers = sorted(set(readings.routers) - set(topology.node_index()))
    if unknown_routers:
        names = listed([repr(name) for name in unknown_routers], _MAX_LISTED)
        raise InputError.invalid(
            location,
            "router",
            f"not a node of {topology.name}: {names}",
            "map other names of routers to nodes with --routers",
        )


def _match_interfaces(
    readings: _InterfaceReadings, find_target: _TargetLookup, ignore: str, location: str
) -> tuple[dict[_InterfaceKey, _InterfaceTarget | None], set[_InterfaceKey]]:
    """Return the links of all interfaces with readings, and the set of ignored interfaces.

    Args:
        readings: the readings.
        find_target: function from router and interface to the links of the interface.
        ignore: regular expression for names of interfaces to ignore; "" for none.
        location: the file, for messages.

    Raises:
        InputError: an unknown interface, or an invalid regular expression.
    """
    targets = {key: find_target(*key) for key in set(readings.interface_keys())}
    ignored_keys = _ignored_interfaces(targets, ignore)
    _check_all_known(
        {key: target for key, target in targets.items() if key not in ignored_keys}, location
    )
    return targets, ignored_keys


def _assign_intervals(
    readings: _InterfaceReadings, layout: _TableLayout, interval_s: float, location: str
) -> tuple[_InterfaceReadings, FloatArray, float]:
    """Divide the time of the readings into intervals of equal length.

    Args:
        readings: the readings.
        layout: columns of the table.
        interval_s: length of an interval, seconds; 0 for the median time between two readings.
        location: the file, for messages.

    Returns:
        readings, with the starts of their intervals replaced by the ends; ends (T,) of the
        intervals, seconds since 1970; length of an interval, seconds.

    Raises:
        InputError: no interface has two readings.
    """
    interval_length_s = interval_s or median_interval(
        readings.times, readings.routers, readings.interfaces, readings.directions
    )
    if not interval_length_s > 0:
        raise InputError.invalid(
            location,
            "time",
            "no interface has two readings",
            "give at least two readings of each interface",
        )
    if layout.is_by_start:
        readings = dataclasses.replace(readings, times=readings.times + interval_length_s)
    # Intervals begin with the first reading of a counter, or end with the first rate.
    interval_ends = np.arange(
        readings.times.min() + (interval_length_s if layout.is_cumulative else 0),
        readings.times.max() + interval_length_s / 2,
        interval_length_s,
    )
    return readings, interval_ends, interval_length_s


def _gbit_per_unit(layout: _TableLayout, unit: str) -> float:
    """Return the factor that converts values to Gbit (counters) or Gbit/s (rates).

    Args:
        layout: columns of the table.
        unit: unit of the column rate; "" for the unit in its heading, else Gbit/s.

    Raises:
        InputError: an unknown unit.
    """
    unit = unit or layout.rate_unit
    gbit_per_unit = gbps_per_unit(unit, "--counter-unit") if unit else 1.0
    return GBIT_PER_BYTE if layout.is_cumulative else gbit_per_unit


def _add_interfaces(
    rates: IntervalRates,
    readings: _InterfaceReadings,
    targets: Mapping[_InterfaceKey, _InterfaceTarget | None],
    topology: Topology,
    location: str,
    name_column: str,
) -> None:
    """Add the mean rates of each interface to its link, or to its router if it is external.

    Args:
        rates: rates over the intervals (updated).
        readings: the readings.
        targets: links of each interface, by (router, interface).
        topology: the network.
        location: the file, for messages.
        name_column: column of interface names, for messages.

    Raises:
        InputError: different readings of one time, or a 32-bit counter that may wrap twice between
            readings.
    """
    node_index = topology.node_index()
    for router, interface, direction, rows in readings.by_interface():
        label = f"{interface or 'external'} of {router}, {direction}"
        # Sort by time, and drop repeated readings.
        read_times = readings.times[rows]
        reading_values = readings.values[rows]
        time_order = np.argsort(read_times, kind="stable")
        read_times = read_times[time_order]
        reading_values = reading_values[time_order]
        # A reading is repeated if it has the time of the one before; its value must be the same.
        is_repeated = np.diff(read_times, prepend=-math.inf) == 0
        if (is_repeated & (np.diff(reading_values, prepend=0.0) != 0)).any():
            raise InputError.invalid(
                location,
                name_column,
                f"several readings of {interface!r} of {router}, direction {direction}, at one time",
                "give each interface a name of its own (--interfaces), or call parallel links a#1, "
                "a#2",
            )
        # Add the mean rates over the intervals; an external interface may carry as much as all
        # links.
        target = targets[router, interface]
        # Unknown interfaces were rejected before.
        assert target is not None
        link = target.out_link if direction == "out" else target.in_link
        capacity = (
            float(topology.capacity[link]) if link is not None else float(topology.capacity.sum())
        )
        interface_rates = rates.mean_rates(
            read_times[~is_repeated], reading_values[~is_repeated], capacity, label
        )
        if link is not None:
            rates.add_to_link(link, direction, interface, interface_rates)
        elif target.is_external:
            rates.add_to_router(node_index[router], direction, interface_rates)


def _clear_transit_only(
    rates: IntervalRates,
    topology: Topology,
    router_names: set[str],
    targets: Mapping[_InterfaceKey, _InterfaceTarget | None],
) -> list[str]:
    """Set ingress and egress of transit-only routers to 0; return a note with their names.

    Nothing happens if no router has an external interface.

    Args:
        rates: rates of all interfaces; ingress and egress are updated.
        topology: the network.
        router_names: names of the routers with readings.
        targets: links of each interface by (router, interface), without ignored interfaces.

    Returns:
        one note, or none if no router is transit-only.
    """
    # Candidates are routers with readings, but without external interfaces.
    border_routers = {
        router
        for (router, _), target in targets.items()
        if target is not None and target.is_external
    }
    if not border_routers:
        return []
    is_candidate = np.isin(topology.node_names, sorted(router_names - border_routers))
    transit_only_nodes = without_own_traffic(topology, is_candidate, rates.sent, rates.received)
    if not transit_only_nodes:
        return []
    rates.ingress[:, transit_only_nodes] = rates.egress[:, transit_only_nodes] = 0.0
    names = ", ".join(topology.node_names[node] for node in transit_only_nodes)
    return [
        "no traffic of their own (all interfaces are read, none is external, and the links balance): "
        f"{names}"
    ]


def _cell_texts(column: Any, to_text: Callable[[Any], str]) -> AnyArray:
    """Return the texts (n,) of the cells of a column.

    Args:
        column: pandas column of n cells.
        to_text: returns the text of a cell; called once for each distinct cell.
    """
    import pandas as pd

    # Index of the distinct cell that each cell equals.
    codes, distinct = pd.factorize(column, use_na_sentinel=False)
    return np.array([to_text(cell) for cell in distinct], dtype=object)[codes]


def _parse_numbers(column: Any, location: str, name: str, separator: str) -> FloatArray:
    """Return the numbers (n,) of a column; NaN for cells that are no number.

    Args:
        column: pandas column of n numbers or strings.
        location: the file, for messages.
        name: name of the column, for messages.
        separator: column separator of a .csv file; "" for other files.

    Raises:
        InputError: an ambiguous decimal separator.
    """
    import pandas as pd

    if column.dtype.kind not in "iuf":
        texts = column.fillna("").astype(str)
        # Convert decimal commas and separators of thousands.
        if separator not in ("", ",") or texts.str.contains(",", regex=False).any():
            texts = pd.Series(plain_numbers(texts.tolist(), location, f"column {name}", separator))
        column = pd.to_numeric(texts, errors="coerce")
    return np.asarray(column.to_numpy(dtype=np.float64))


def _parse_times(column: Any, location: str) -> FloatArray:
    """Return the times (n,) of a column of dates, numbers or strings, seconds since 1970."""
    # Dates (dtype M, or with time zone), numbers, else strings.
    if column.dtype.kind == "M" or hasattr(column.dtype, "tz"):
        return np.asarray(naive_times(column).astype("datetime64[ns]").astype(np.int64) / 1e9)
    if column.dtype.kind in "iuf":
        return seconds_of_numbers(column.to_numpy(), location, "time")
    return seconds_of_texts(column.map(cells.cell_text), location, "time", first_row=2)


def _interface_targets(
    topology: Topology, interfaces: Any | None, location: str
) -> tuple[_TargetLookup, dict[_InterfaceKey, _InterfaceTarget]]:
    """Return the map of interfaces to links, as a function and as a table.

    Args:
        topology: the network.
        interfaces: frame of router, interface, neighbour and number; None if interfaces are named
            like neighbours.
        location: the file, for messages.

    Returns:
        function from router and interface to the links of the interface, or None for an interface
        that the table lacks; and links by (router, interface) in the table, {} without a table.
    """
    if interfaces is None:
        return _lookup_by_name(topology, location), {}
    table_targets = _table_targets(topology, interfaces)
    return lambda router, name: table_targets.get((router, name)), table_targets


def _lookup_by_name(topology: Topology, location: str) -> _TargetLookup:
    """Return a function from router and interface to the links of the interface, by its name.

    An interface with the name of a neighbour is the link to it; any other name is external.
    """
    # Pairs of nodes with a link.
    adjacent_pairs = {
        (topology.node_names[a], topology.node_names[b])
        for a, b in zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    }

    def find_target(router: str, name: str) -> _InterfaceTarget:
        """Return the links of an interface named like the neighbour, such as b, or b#2."""
        # Neighbour, and number of the parallel link; 0 without one.
        neighbour, link_number = topology.member(router, name)
        neighbour = topology.name_of(neighbour)
        if (router, neighbour) not in adjacent_pairs and (neighbour, router) not in adjacent_pairs:
            return _EXTERNAL
        return _neighbour_target(topology, router, neighbour, link_number, location, "interface")

    return find_target


def _table_targets(topology: Topology, interfaces: Any) -> dict[_InterfaceKey, _InterfaceTarget]:
    """Return the links of each interface in a table, by (router, interface).

    Args:
        topology: the network.
        interfaces: frame of router, interface, neighbour and, optionally, number and ignore.

    Raises:
        InputError: a missing column, or a row outside the network.
    """
    table = interfaces.rename(
        columns={name: str(name).strip().lower() for name in interfaces.columns}
    )
    location = str(interfaces.attrs.get("where", "--interfaces"))
    missing_columns = [
        name for name in ("router", "interface", "neighbour") if name not in table.columns
    ]
    if missing_columns:
        raise InputError.invalid(
            location,
            "columns",
            f"missing {', '.join(missing_columns)}",
            "use the columns router, interface, neighbour",
        )
    node_index = topology.node_index()
    targets: dict[_InterfaceKey, _InterfaceTarget] = {}
    for row_number, row in enumerate(table.to_dict("records"), 2):
        # Parse the row.
        router = topology.name_of(cells.cell_text(row["router"]))
        interface = cells.cell_text(row["interface"])
        neighbour = cells.cell_text(row["neighbour"])
        number = cells.cell_text(row.get("number")).removesuffix(".0")
        if number and not (number.isdecimal() and int(number)):
            raise InputError(
                location, f"row {row_number}: number", "a positive integer", repr(number)
            )
        if router not in node_index:
            raise InputError(
                location, f"row {row_number}: router", f"a node of {topology.name}", repr(router)
            )
        # The interface is ignored, external, or on the links to a neighbour.
        if str(row.get("ignore", "")).strip().lower() in _TRUE_TEXTS:
            target = _InterfaceTarget(None, None, is_ignored=True)
        elif not neighbour:
            target = _EXTERNAL
        else:
            target = _neighbour_target(
                topology,
                router,
                topology.name_of(neighbour),
                int(number or 0),
                location,
                f"row {row_number}: neighbour",
            )
        targets[router, interface] = target
    return targets


def _neighbour_target(
    topology: Topology, router: str, neighbour: str, link_number: int, location: str, field: str
) -> _InterfaceTarget:
    """Return the links from and to a neighbour, to which an interface of a router belongs.

    Args:
        topology: the network.
        router: name of a node.
        neighbour: name of the neighbour.
        link_number: number of the parallel link, from 1; 0 if there is only one.
        location: the file, for messages.
        field: column, for messages.

    Raises:
        InputError: no link to the neighbour, or several parallel links and no number.
    """
    # Without any link, the check below fails.
    try:
        links = topology.find_links(router, neighbour, link_number)
    except InputError:
        links = []
    outgoing = [e for e in links if topology.node_names[topology.link_source[e]] == router]
    incoming = [e for e in links if topology.node_names[topology.link_target[e]] == router]
    if max(len(outgoing), len(incoming)) != 1:
        expected = f"a neighbour of {router} in {topology.name}, with a number 1, 2, ... for parallel links"
        raise InputError(
            location,
            field,
            expected,
            repr(f"{neighbour}#{link_number}" if link_number else neighbour),
        )
    return _InterfaceTarget(outgoing[0] if outgoing else None, incoming[0] if incoming else None)


def interfaces_of(
    path: Path, topology: Topology
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the names of the interfaces in a table.

    Args:
        path: table of router, interface, neighbour and number.
        topology: the network.

    Returns:
        names of interfaces by the name of the link that leaves their router; and names of external
        interfaces by router.

    Raises:
        InputError: no such file, or a row outside the network.
    """
    names = topology.link_names()
    names_by_link = dict[str, list[str]]()
    names_by_router = dict[str, list[str]]()
    targets = _interface_targets(topology, _read_table(path), str(path))[1]
    for (router, name), target in sorted(targets.items(), key=lambda entry: entry[0]):
        if target.is_external:
            names_by_router.setdefault(router, []).append(name)
        elif target.out_link is not None:
            names_by_link.setdefault(names[target.out_link], []).append(name)
    return names_by_link, names_by_router


def interface_names(path: Path, topology: Topology) -> dict[str, list[str]]:
    """Return the names of the interfaces in a table, by the name of the link that leaves the
    router.

    Args:
        path: table of router, interface, neighbour and number.
        topology: the network.

    Raises:
        InputError: no such file, or a row outside the network.
    """
    return interfaces_of(path, topology)[0]


# Cells of the column ignore that mean yes.
_TRUE_TEXTS = ("1", "1.0", "true", "yes", "x")
# Maximum number of routers or interfaces in a message.
_MAX_LISTED = 20


def _ignored_interfaces(
    targets: Mapping[_InterfaceKey, _InterfaceTarget | None], pattern: str
) -> set[_InterfaceKey]:
    """Return the interfaces that the table or a regular expression excludes.

    Args:
        targets: links of each interface, by (router, interface).
        pattern: regular expression for names of interfaces; "" for none.

    Raises:
        InputError: an invalid regular expression.
    """
    try:
        expression = re.compile(pattern) if pattern else None
    except re.error as error:
        raise InputError(
            "--ignore-interfaces", "", "a regular expression", f"{pattern!r}: {error}"
        ) from None
    # Interfaces marked in the table, and those whose whole name matches the expression.
    ignored_by_table = {
        interface_key
        for interface_key, target in targets.items()
        if target is not None and target.is_ignored
    }
    return ignored_by_table | {
        interface_key
        for interface_key in targets
        if expression is not None and expression.fullmatch(interface_key[1])
    }


def _check_all_known(
    targets: Mapping[_InterfaceKey, _InterfaceTarget | None], location: str
) -> None:
    """Raise InputError if the table of interfaces lacks some interfaces.

    The message suggests a pattern for --ignore-interfaces that matches them.

    Args:
        targets: links of each interface, by (router, interface); None for an unknown one.
        location: the file, for messages.
    """
    unknown_keys = sorted(
        interface_key for interface_key, target in targets.items() if target is None
    )
    if unknown_keys:
        # Patterns have \d+ in the place of numbers.
        patterns = sorted({re.sub(r"\d+", r"\\d+", re.escape(name)) for _, name in unknown_keys})
        names = listed([f"{name} of {router}" for router, name in unknown_keys], _MAX_LISTED)
        raise InputError.invalid(
            location,
            "interface",
            f"{len(unknown_keys):,} interfaces are not in the table --interfaces: {names}",
            "add them (empty neighbour for external ones), or use --ignore-interfaces "
            f"'{'|'.join(patterns)}'",
        )
