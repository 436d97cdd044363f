"""Measured demands from flow records.

Formats: nfdump's CSV (``-o csv`` of versions 1.6 and 1.7, since 1.7.5 with a duration instead of an
end time, and ``-o csv-fast`` with times in milliseconds) and JSON (``-o json``), and pmacct's JSON,
one record per line.  A table of prefixes and routers locates addresses by longest-prefix match.  A
record enters the network at the router of its source address and leaves it at the router of its
destination; records within a router, or of addresses without a prefix, are excluded and counted.
Bytes are spread evenly over the duration of a record, and multiplied by the sampling rate (of the
record, if it has one).

A router that exports records has measured demands to all others, 0 without records; demands from
other routers are unknown.  Entry point: :func:`load_flows`.
"""

from __future__ import annotations

import csv
import ipaddress
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from teal.errors import InputError
from teal.formats import side_tables
from teal.formats.parts import keys_of
from teal.formats.times import seconds_of
from teal.network import Topology, TrafficMatrices
from teal.network.rates import ArrayRates

# Gbit of one byte.
_GBIT_OF_BYTE = 8e-9
# Names of each field in nfdump's CSV 1.6, CSV 1.7 and JSON, and in pmacct's JSON.
_FIELD_NAMES = {
    "source": ("sa", "srcAddr", "src4_addr", "src6_addr", "ip_src"),
    "target": ("da", "dstAddr", "dst4_addr", "dst6_addr", "ip_dst"),
    "bytes": ("ibyt", "bytes", "in_bytes"),
    "first": ("ts", "firstSeen", "t_first", "first", "timestamp_start", "stamp_inserted"),
    "last": ("te", "lastSeen", "t_last", "last", "timestamp_end", "stamp_updated"),
    "duration": ("td", "duration"),
}
# Fields without which a record is rejected.
_REQUIRED_FIELDS = ("source", "target", "bytes", "first")
# Fields that identify records of unsupported programs.
_UNSUPPORTED_PROGRAMS = {
    "time_flow_start_ns": "goflow2",
    "sampler_address": "goflow2",
    "flowStartMilliseconds": "an IPFIX collector",
}
# Columns of the table of prefixes.
_PREFIX_COLUMNS = (
    side_tables.Column("prefix", required=True),
    side_tables.Column("router", required=True),
)
# Maximum number of intervals of one record.
_MAX_INTERVALS = 1_000_000
# Columns that identify the heading of an nfdump CSV file.
_TARGET_COLUMNS = ("da", "dstAddr")
# Maximum time by which a flow may end before it begins, since exporters correct their clocks, s.
_MAX_CLOCK_STEP_S = 60.0


class _Record(NamedTuple):
    """Flow record.

    Attributes:
        source: source IP address.
        target: destination IP address.
        volume: traffic after correction for sampling, Gbit.
        start_s: start, seconds since 1970.
        end_s: end, seconds since 1970; before the start if the exporter's clock was set back.
    """

    source: str
    target: str
    volume: float
    start_s: float
    end_s: float


class Prefixes:
    """Map of IP addresses to routers, by longest-prefix match.

    Args:
        routers: index of the router of each IP prefix (``ipaddress`` network).
    """

    def __init__(self, routers: dict[Any, int]) -> None:
        # Routers by (IP version, prefix length) and network address.
        self._routers_by_length: dict[tuple[int, int], dict[int, int]] = {}
        for network, router in routers.items():
            version_and_length = network.version, network.prefixlen
            self._routers_by_length.setdefault(version_and_length, {})[
                int(network.network_address)
            ] = router
        self._longest_first_keys = sorted(
            self._routers_by_length, key=lambda version_and_length: -version_and_length[1]
        )
        self._router_by_address: dict[str, int] = {}

    @classmethod
    def load(cls, path: Path, topology: Topology) -> Prefixes:
        """Read a table of prefixes and their routers.

        Args:
            path: table (.csv) with the columns prefix and router.
            topology: the network.

        Raises:
            InputError: no such file, an invalid prefix, or an unknown router.
        """
        rows = side_tables.read_side_table(path, _PREFIX_COLUMNS)
        # Parse the prefixes.
        ip_networks: list[Any] = []
        for row in rows:
            text = row.text("prefix")
            try:
                ip_networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                expected = "a prefix such as 10.1.0.0/16"
                raise InputError(row.where, "prefix", expected, repr(text)) from None
        # Find their routers; a prefix that occurs twice must have the same router.
        nodes = [row.node("router", topology) for row in rows]
        side_tables.require_once(rows, ip_networks, "each prefix", nodes)
        routers = dict(zip(ip_networks, nodes, strict=True))
        if not routers:
            raise InputError.invalid(str(path), "prefixes", "the table has no prefix; add rows")
        return cls(routers)

    def router(self, address: str) -> int:
        """Return the index of the router of an IP address; -1 if it is invalid, or in no prefix.

        Results are cached by address.
        """
        if address not in self._router_by_address:
            self._router_by_address[address] = self._longest_match(address)
        return self._router_by_address[address]

    def _longest_match(self, address: str) -> int:
        """Return the router of the longest prefix that contains an address; -1 for none."""
        try:
            parsed_address = ipaddress.ip_address(address)
        except ValueError:
            return -1
        # Try the longest prefixes first: clear the bits of the address behind the prefix length.
        for version, prefix_length in self._longest_first_keys:
            if version == parsed_address.version:
                num_host_bits = parsed_address.max_prefixlen - prefix_length
                router = self._routers_by_length[version, prefix_length].get(
                    int(parsed_address) >> num_host_bits << num_host_bits
                )
                if router is not None:
                    return router
        return -1


class Flows(NamedTuple):
    """Demands measured by flow records.

    Attributes:
        traffic: demands from the exporting routers.
        notes: texts on excluded records, and on records that end before they begin.
    """

    traffic: TrafficMatrices
    notes: tuple[str, ...]


def load_flows(
    path: Path,
    topology: Topology,
    prefixes: Prefixes,
    *,
    interval_s: float,
    sampling: float = 1.0,
    exporters: tuple[str, ...] = (),
) -> Flows:
    """Read flow records and aggregate them into traffic matrices.

    Args:
        path: a .csv or .json file.
        topology: the network.
        prefixes: map of addresses to routers.
        interval_s: length of an interval, seconds; each ends at a multiple of it.
        sampling: packets per sampled packet, for records without a sampling rate.
        exporters: names of the routers that exported the records; () for all routers where a record
            enters the network.

    Raises:
        InputError: no such file, another format, a record with missing fields, or no record
            between two routers.
    """
    if not interval_s > 0:
        raise InputError(str(path), "interval", "seconds above 0", interval_s)
    # Validate the exporters.
    node_index = topology.node_index()
    unknown_names = [name for name in exporters if name not in node_index]
    if unknown_names:
        raise InputError(
            str(path), "exporters", f"nodes of {topology.name}", ", ".join(unknown_names)
        )
    exporter_indices = {node_index[name] for name in exporters}
    # Spread the records over intervals.
    volumes = _FlowVolumes(path, interval_s)
    for record in _read_records(path, sampling):
        volumes.add(record, prefixes, exporter_indices)
    if not volumes.by_interval:
        raise InputError.invalid(
            str(path),
            "records",
            f"no record is between two routers; {volumes.num_without_prefix} have an address "
            "outside all prefixes",
            "complete the table of prefixes",
        )
    # Demands from the exporters.
    source_routers = sorted(exporter_indices or {source for _, source, _ in volumes.by_interval})
    traffic = volumes.to_traffic(source_routers, topology.num_nodes)
    return Flows(traffic, volumes.notes())


class _FlowVolumes:
    """Accumulator of flow records by interval, source and target.

    Args:
        path: file of the records, for messages.
        interval_s: length of an interval, seconds.

    Attributes:
        by_interval: traffic by (interval, source, target), Gbit; interval i begins i interval
            lengths after 1970.
        num_without_prefix: number of records with an address in no prefix.
        num_not_counted: number of records within a router, or from a router that is no exporter.
        num_reversed: number of records that end before they begin.
    """

    def __init__(self, path: Path, interval_s: float) -> None:
        self.by_interval: dict[tuple[int, int, int], float] = {}
        self.num_without_prefix = 0
        self.num_not_counted = 0
        self.num_reversed = 0
        self._path = path
        self._interval_s = interval_s

    def add(self, record: _Record, prefixes: Prefixes, exporter_indices: set[int]) -> None:
        """Add a record: its traffic is divided over intervals in proportion to the time in each.

        Records within a router, of addresses in no prefix, or not from an exporter are excluded and
        counted.

        Args:
            record: the record.
            prefixes: map of addresses to routers.
            exporter_indices: indices of the exporters; empty for all.

        Raises:
            InputError: a record that lasts too many intervals.
        """
        self.num_reversed += record.end_s < record.start_s
        # Locate source and target.
        source = prefixes.router(record.source)
        target = prefixes.router(record.target)
        if source < 0 or target < 0:
            self.num_without_prefix += 1
            return
        if source == target or (exporter_indices and source not in exporter_indices):
            self.num_not_counted += 1
            return
        # Divide the traffic over the intervals; a record without duration belongs to one of them.
        interval_s = self._interval_s
        begin = record.start_s
        end = max(record.end_s, record.start_s)
        first_interval = int(begin // interval_s)
        last_interval = int(end // interval_s)
        if last_interval - first_interval > _MAX_INTERVALS:
            raise InputError(
                str(self._path),
                "times",
                f"records of at most {_MAX_INTERVALS} intervals",
                f"a record of {end - begin:g} s",
            )
        # Each interval gets the share of the record's duration that lies in it.
        for interval in range(first_interval, last_interval + 1):
            overlap = min(end, (interval + 1) * interval_s) - max(begin, interval * interval_s)
            share = overlap / (end - begin) if end > begin else 1.0
            key = (interval, source, target)
            self.by_interval[key] = self.by_interval.get(key, 0.0) + share * record.volume

    def to_traffic(self, source_routers: list[int], num_nodes: int) -> TrafficMatrices:
        """Return the demands from some routers to all others, as one matrix for each interval.

        Args:
            source_routers: indices of the routers, the sources of all demands.
            num_nodes: number of nodes of the network.
        """
        # Demands (source, target), and intervals with traffic.
        pairs = np.array(
            [(s, t) for s in source_routers for t in range(num_nodes) if s != t], dtype=np.int32
        )
        pair_index = {(int(s), int(t)): d for d, (s, t) in enumerate(pairs)}
        intervals = sorted({interval for interval, _, _ in self.by_interval})
        row_of_interval = {interval: row for row, interval in enumerate(intervals)}
        # Mean rate of each demand in each interval.
        rates = np.zeros((len(intervals), len(pairs)))
        for (interval, source, target), volume in self.by_interval.items():
            row = row_of_interval[interval]
            rates[row, pair_index[source, target]] += volume / self._interval_s
        # Intervals are labelled by their ends.
        ends = (np.array(intervals) + 1) * self._interval_s
        times = np.round(ends).astype("int64").astype("datetime64[s]")
        return TrafficMatrices(
            self._path.stem,
            pairs,
            times,
            ArrayRates(rates),
            round(self._interval_s),
            origin=str(self._path),
        )

    def notes(self) -> tuple[str, ...]:
        """Return texts on excluded records, and on records that end before they begin."""
        notes = []
        if self.num_without_prefix:
            notes.append(f"{self.num_without_prefix:,} records excluded: an address in no prefix")
        if self.num_not_counted:
            notes.append(
                f"{self.num_not_counted:,} records excluded: within a router, or from a router "
                "that is no exporter"
            )
        if self.num_reversed:
            notes.append(
                f"{self.num_reversed:,} records end before they begin: counted at their start"
            )
        return tuple(notes)


def _read_records(path: Path, sampling: float) -> Iterator[_Record]:
    """Yield the flow records of a file.

    Args:
        path: a .csv or .json file.
        sampling: packets per sampled packet, for records without a sampling rate.

    Raises:
        InputError: no such file, another format, or an invalid record.
    """
    try:
        if path.suffix.lower() == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as stream:
                for line, row in _nfdump_rows(stream, path):
                    yield _parse_record(row, f"line {line}", path, sampling)
            return
        if path.suffix.lower() != ".json":
            raise InputError(
                str(path), "", "a .csv or .json file of flow records", path.suffix or "no suffix"
            )
        # JSON: one array of records (nfdump), or one record per line (pmacct).
        text = path.read_text(encoding="utf-8")
        objects = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else map(json.loads, filter(str.strip, text.splitlines()))
        )
        # Skip records of another type than flows.
        for index, record in enumerate(objects):
            if not isinstance(record, dict):
                raise InputError(str(path), f"record {index}", "an object", repr(record)[:80])
            _check_supported(record, path)
            if record.get("type", "FLOW") == "FLOW":
                yield _parse_record(record, f"record {index}", path, sampling)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError.invalid(
            str(path),
            "",
            f"not readable as flow records of nfdump or pmacct ({str(error).splitlines()[0]})",
        ) from None


def _nfdump_rows(stream: TextIO, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and fields, text by column name, of each record of an nfdump CSV file.

    A heading with the names of the columns comes before the records, and a summary behind them is
    skipped.  Both may occur repeatedly, in concatenated files.

    Args:
        stream: the open file.
        path: the file, for messages.

    Raises:
        InputError: a file without a heading of nfdump.
    """
    reader = csv.reader(stream)
    columns: list[str] = []
    is_summary = False
    for cells in reader:
        # Blank lines may be anywhere.
        if not cells:
            continue
        # A heading names the columns of the records that follow.
        if set(_TARGET_COLUMNS) & set(cells):
            columns = cells
            is_summary = False
            continue
        # Nothing but a heading may come first.
        if not columns:
            _check_supported(dict.fromkeys(cells, ""), path)
            expected = "columns of nfdump's CSV, such as sa, da, ibyt"
            raise InputError(str(path), "columns", expected, ", ".join(cells))
        row = dict(zip(columns, cells, strict=False))
        # The summary begins with the first line without a destination address.
        is_summary = is_summary or not any(row.get(name) for name in _TARGET_COLUMNS)
        if not is_summary:
            yield reader.line_num, row


def _parse_record(row: dict[str, Any], position: str, path: Path, sampling: float) -> _Record:
    """Parse a flow record.

    Args:
        row: fields by name.
        position: line or record, for messages.
        path: file, for messages.
        sampling: packets per sampled packet, if the record has no sampling rate.

    Raises:
        InputError: a missing or invalid field.
    """
    # First name of each field that the record has.
    field_values: dict[str, Any] = {}
    for field, names in _FIELD_NAMES.items():
        field_values[field] = next(
            (row[name] for name in names if row.get(name) not in (None, "")), None
        )
        if field_values[field] is None and field in _REQUIRED_FIELDS:
            raise InputError.invalid(
                str(path),
                position,
                f"the record has no {field}",
                f"export one of the fields {', '.join(names)}",
            )
    # Start and end; without an end or a duration, the record ends when it begins.
    start_s = seconds_of(field_values["first"], str(path), position)
    end_s = start_s
    if field_values["last"] is not None:
        end_s = seconds_of(field_values["last"], str(path), position)
    elif field_values["duration"] is not None:
        end_s = start_s + _parse_duration_s(field_values["duration"], position, path)
    if end_s < start_s - _MAX_CLOCK_STEP_S:
        raise InputError.invalid(
            str(path),
            position,
            f"the record ends more than {_MAX_CLOCK_STEP_S:g} s before it begins; correct it: "
            f"{field_values['first']}, {field_values['last']}",
        )
    # Traffic in Gbit, corrected for sampling.
    try:
        volume = (
            float(field_values["bytes"])
            * _GBIT_OF_BYTE
            * float(row.get("sampling_rate") or sampling)
        )
    except (TypeError, ValueError):
        volume = math.nan
    if not 0 <= volume < math.inf:
        raise InputError(str(path), position, "a number of bytes >= 0", repr(field_values["bytes"]))
    return _Record(
        str(field_values["source"]).strip(),
        str(field_values["target"]).strip(),
        volume,
        start_s,
        end_s,
    )


def _parse_duration_s(value: Any, position: str, path: Path) -> float:
    """Return the seconds of a duration, given as seconds or as hours:minutes:seconds
    (00:20:00.000).

    Args:
        value: number or text of the record.
        position: line or record, for messages.
        path: file, for messages.

    Raises:
        InputError: not a duration of at least 0.
    """
    # Hours, minutes and seconds, or seconds only: the last part counts 1 s, the one before it 60 s.
    parts = str(value).strip().split(":")
    try:
        seconds = sum(float(part) * 60.0**power for power, part in enumerate(reversed(parts)))
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InputError(
            str(path), position, "a duration in seconds, or hours:minutes:seconds", repr(value)
        )
    return seconds


def _check_supported(row: dict[str, Any], path: Path) -> None:
    """Raise InputError if the fields of a record are those of a known, unsupported program."""
    for name, program in _UNSUPPORTED_PROGRAMS.items():
        if name in row:
            expected = "flow records of nfdump (-o csv or -o json) or pmacct"
            raise InputError(
                str(path), "records", expected, f"records of {program} ({keys_of([row])}, ...)"
            )
