"""Flow records -> measured demands of the routers that export them.

Formats: nfdump's CSV (``-o csv`` of versions 1.6 and 1.7, which from 1.7.5 on has a duration
    instead of an end, and ``-o csv-fast``, whose times are milliseconds) and JSON (``-o json``),
    and pmacct's JSON, one record per line.  A table of prefixes and routers locates addresses by
    longest-prefix match.  A record enters the network at the source's router and leaves it at the
    destination's; records within a router, or of addresses without a prefix, are excluded and
    counted.  Bytes are spread evenly over the duration of a record, and multiplied by the sampling
    rate (of the record, if it has one).

A router that exports has measured demands to all others, 0 without records; the demands of a router
that does not export are unknown.  Entry point: :func:`load_flows`.
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

_GBIT_OF_BYTE = 8e-9
# Fields of a record: names in nfdump's CSV 1.6, 1.7, its JSON, and pmacct's JSON.
_FIELDS = {
    "source": ("sa", "srcAddr", "src4_addr", "src6_addr", "ip_src"),
    "target": ("da", "dstAddr", "dst4_addr", "dst6_addr", "ip_dst"),
    "bytes": ("ibyt", "bytes", "in_bytes"),
    "first": ("ts", "firstSeen", "t_first", "first", "timestamp_start", "stamp_inserted"),
    "last": ("te", "lastSeen", "t_last", "last", "timestamp_end", "stamp_updated"),
    "duration": ("td", "duration"),
}
_NEEDED = ("source", "target", "bytes", "first")
_UNSUPPORTED = {
    "time_flow_start_ns": "goflow2",
    "sampler_address": "goflow2",
    "flowStartMilliseconds": "an IPFIX collector",
}
_PREFIXES = (
    side_tables.Column("prefix", required=True),
    side_tables.Column("router", required=True),
)
_MAX_INTERVALS = 1_000_000
# Columns of nfdump's CSV files that identify a heading.
_TARGETS = ("da", "dstAddr")
# Seconds by which a flow may end before it begins: exporters correct their clocks during flows.
_MAX_CLOCK_STEP_S = 60.0


class _Record(NamedTuple):
    source: str
    target: str
    # Gbit.
    amount: float
    # Seconds since 1970; ``last`` is before ``first`` if the exporter's clock was set back.
    first: float
    last: float


class Prefixes:
    """Routers of IP addresses, by longest-prefix match.

    Args:
        routers: router index by IP prefix.
    """

    def __init__(self, routers: dict[Any, int]) -> None:
        self._by_length: dict[tuple[int, int], dict[int, int]] = {}
        for network, router in routers.items():
            key = network.version, network.prefixlen
            self._by_length.setdefault(key, {})[int(network.network_address)] = router
        self._order = sorted(self._by_length, key=lambda key: -key[1])
        self._known: dict[str, int] = {}

    @classmethod
    def load(cls, path: Path, topology: Topology) -> Prefixes:
        """Read a table with the columns prefix and router.

        Raises:
            InputError: no such file, an invalid prefix, or an unknown router.
        """
        rows = side_tables.read_side_table(path, _PREFIXES)
        networks: list[Any] = []
        for row in rows:
            text = row.text("prefix")
            try:
                networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                expected = "a prefix such as 10.1.0.0/16"
                raise InputError(row.where, "prefix", expected, repr(text)) from None
        nodes = [row.node("router", topology) for row in rows]
        side_tables.require_once(rows, networks, "each prefix", nodes)
        routers = dict(zip(networks, nodes, strict=True))
        if not routers:
            raise InputError(str(path), "prefixes", "at least one prefix", "none")
        return cls(routers)

    def router(self, address: str) -> int:
        """Return the index of an address's router; -1 for an address without a prefix, or for an
        invalid one.
        """
        if address not in self._known:
            self._known[address] = self._search(address)
        return self._known[address]

    def _search(self, address: str) -> int:
        try:
            parsed_address = ipaddress.ip_address(address)
        except ValueError:
            return -1
        for version, length in self._order:
            if version == parsed_address.version:
                shift = parsed_address.max_prefixlen - length
                router = self._by_length[version, length].get(int(parsed_address) >> shift << shift)
                if router is not None:
                    return router
        return -1


class Flows(NamedTuple):
    """Traffic measured by flow records.

    Attributes:
        traffic: demands of the exporting routers.
        notes: excluded records.
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
        prefixes: routers of addresses, by prefix.
        interval_s: length of an interval, seconds; each ends at a multiple of it.
        sampling: packets per sampled packet, for records without a sampling rate.
        exporters: routers that exported these records; () for all at which some record enters.

    Raises:
        InputError: no such file, another format, a record with missing fields, or no record
            between two routers.
    """
    if not interval_s > 0:
        raise InputError(str(path), "interval", "seconds above 0", interval_s)
    # Validate the exporters.
    index = topology.node_index()
    unknown = [name for name in exporters if name not in index]
    if unknown:
        raise InputError(str(path), "exporters", f"nodes of {topology.name}", ", ".join(unknown))
    exporter_indices = {index[name] for name in exporters}
    # Spread the records over intervals.
    amounts = _FlowAmounts(path, interval_s)
    for record in _records(path, sampling):
        amounts.add(record, prefixes, exporter_indices)
    if not amounts.by_interval:
        raise InputError(
            str(path),
            "records",
            "records between two routers",
            f"none; {amounts.num_without_prefix} outside all prefixes",
        )
    # Matrices of the exporters.
    routers = sorted(exporter_indices or {source for _, source, _ in amounts.by_interval})
    traffic = amounts.to_traffic(routers, topology.num_nodes)
    return Flows(traffic, amounts.notes())


class _FlowAmounts:
    """Measured traffic by interval, and numbers of excluded records.

    Attributes:
        by_interval: Gbit by index of the interval, source and target; interval i ends at (i + 1)
            times its length.
        num_without_prefix: records of addresses in no prefix.
        num_within_router: records within a router, or of one that does not export.
        num_reversed: records that end before they begin.
    """

    def __init__(self, path: Path, interval_s: float) -> None:
        self.by_interval: dict[tuple[int, int, int], float] = {}
        self.num_without_prefix = 0
        self.num_within_router = 0
        self.num_reversed = 0
        self._path = path
        self._interval_s = interval_s

    def add(self, record: _Record, prefixes: Prefixes, exporter_indices: set[int]) -> None:
        """Spread a record over its intervals, in proportion to the time; exclude it if it is not
        between two routers, or not of an exporter.

        Raises:
            InputError: a record of too many intervals.
        """
        self.num_reversed += record.last < record.first
        # Source and target.
        source = prefixes.router(record.source)
        target = prefixes.router(record.target)
        if source < 0 or target < 0:
            self.num_without_prefix += 1
            return
        if source == target or (exporter_indices and source not in exporter_indices):
            self.num_within_router += 1
            return
        # Intervals.
        interval_s = self._interval_s
        begin = record.first
        end = max(record.last, record.first)
        first = int(begin // interval_s)
        last = int(end // interval_s)
        if last - first > _MAX_INTERVALS:
            raise InputError(
                str(self._path),
                "times",
                f"records of at most {_MAX_INTERVALS} intervals",
                end - begin,
            )
        for interval in range(first, last + 1):
            overlap = min(end, (interval + 1) * interval_s) - max(begin, interval * interval_s)
            share = overlap / (end - begin) if end > begin else 1.0
            key = (interval, source, target)
            self.by_interval[key] = self.by_interval.get(key, 0.0) + share * record.amount

    def to_traffic(self, routers: list[int], num_nodes: int) -> TrafficMatrices:
        """Return the matrices of all demands from these routers."""
        pairs = np.array(
            [(s, t) for s in routers for t in range(num_nodes) if s != t], dtype=np.int32
        )
        pair_index = {(int(s), int(t)): d for d, (s, t) in enumerate(pairs)}
        intervals = sorted({interval for interval, _, _ in self.by_interval})
        row_of_interval = {interval: row for row, interval in enumerate(intervals)}
        rates = np.zeros((len(intervals), len(pairs)))
        for (interval, source, target), amount in self.by_interval.items():
            row = row_of_interval[interval]
            rates[row, pair_index[source, target]] += amount / self._interval_s
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
        """Notes on excluded and reversed records."""
        notes = []
        if self.num_without_prefix:
            notes.append(f"{self.num_without_prefix:,} records of addresses in no prefix")
        if self.num_within_router:
            notes.append(
                f"{self.num_within_router:,} records within a router, or of one that does not "
                "export"
            )
        if self.num_reversed:
            notes.append(
                f"{self.num_reversed:,} records end before they begin: counted when they begin"
            )
        return tuple(notes)


def _records(path: Path, sampling: float) -> Iterator[_Record]:
    try:
        if path.suffix.lower() == ".csv":
            with path.open(newline="", encoding="utf-8-sig") as stream:
                for line, row in _nfdump_rows(stream, path):
                    yield _record(row, f"line {line}", path, sampling)
            return
        if path.suffix.lower() != ".json":
            raise InputError(
                str(path), "", "a .csv or .json file of flow records", path.suffix or "no ending"
            )
        text = path.read_text(encoding="utf-8")
        objects = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else map(json.loads, filter(str.strip, text.splitlines()))
        )
        for index, record in enumerate(objects):
            if not isinstance(record, dict):
                raise InputError(str(path), f"record {index}", "an object", repr(record)[:80])
            _check_kind(record, path)
            if record.get("type", "FLOW") == "FLOW":
                yield _record(record, f"record {index}", path, sampling)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            str(path), "", "flow records of nfdump or pmacct", str(error).splitlines()[0]
        ) from None


def _nfdump_rows(stream: TextIO, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and fields of each record of nfdump's CSV.

    A summary follows the records of a file; if files were concatenated, the heading of the next one
    follows the summary.
    """
    reader = csv.reader(stream)
    columns: list[str] = []
    is_summary = False
    for cells in reader:
        if set(_TARGETS) & set(cells):
            columns = cells
            is_summary = False
            continue
        if not columns:
            _check_kind(dict.fromkeys(cells, ""), path)
            expected = "those of nfdump's CSV, such as sa, da, ibyt"
            raise InputError(str(path), "columns", expected, ", ".join(cells))
        row = dict(zip(columns, cells, strict=False))
        is_summary = is_summary or not any(row.get(name) for name in _TARGETS)
        if cells and not is_summary:
            yield reader.line_num, row


def _record(row: dict[str, Any], position: str, path: Path, sampling: float) -> _Record:
    values: dict[str, Any] = {}
    for field, names in _FIELDS.items():
        values[field] = next((row[name] for name in names if row.get(name) not in (None, "")), None)
        if values[field] is None and field in _NEEDED:
            raise InputError(str(path), position, "one of " + ", ".join(names), "none of them")
    first = seconds_of(values["first"], str(path), position)
    last = first
    if values["last"] is not None:
        last = seconds_of(values["last"], str(path), position)
    elif values["duration"] is not None:
        last = first + _duration(values["duration"], position, path)
    if last < first - _MAX_CLOCK_STEP_S:
        expected = f"an end at most {_MAX_CLOCK_STEP_S:g} s before the start (clocks of exporters)"
        raise InputError(str(path), position, expected, f"{values['first']}, {values['last']}")
    try:
        amount = (
            float(values["bytes"]) * _GBIT_OF_BYTE * float(row.get("sampling_rate") or sampling)
        )
    except (TypeError, ValueError):
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise InputError(str(path), position, "a number of bytes >= 0", repr(values["bytes"]))
    return _Record(
        str(values["source"]).strip(), str(values["target"]).strip(), amount, first, last
    )


def _duration(value: Any, position: str, path: Path) -> float:
    """Parse seconds from a number, or from hours, minutes and seconds: 00:20:00.000."""
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


def _check_kind(row: dict[str, Any], path: Path) -> None:
    """Raise InputError for records of a known program that is not supported."""
    for name, program in _UNSUPPORTED.items():
        if name in row:
            expected = "flow records of nfdump (-o csv or -o json) or pmacct"
            raise InputError(
                str(path), "records", expected, f"records of {program} ({keys_of([row])}, ...)"
            )
