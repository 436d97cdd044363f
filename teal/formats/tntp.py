"""Reader of road networks in the TNTP format (Transportation Networks for Research):
``NAME_net.tntp`` and ``NAME_trips.tntp``, also compressed by gzip.

A network starts with ``<KEY> value`` lines, followed by one line per link: start, end, capacity,
length, free flow time and more, terminated by a semicolon.  Its cost is the free flow time.  Zones,
the nodes below ``<FIRST THRU NODE>``, carry no transit traffic.  Trips are lists ``target : rate;``
after ``Origin source``; trips within a zone are dropped.  Capacities and trips are read as Gbit/s.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from pathlib import Path

import numpy as np

from teal.errors import InputError
from teal.formats.commalab import matrix_of, network_of_costs
from teal.formats.side_tables import warn
from teal.network import Topology, TrafficMatrices

SUFFIXES = (".tntp", ".tntp.gz")
_KEY = re.compile(r"<([^>]+)>\s*(\S*)")
_ORIGIN = re.compile(r"Origin\s*:?\s*(\d+)", re.IGNORECASE)
_TRIP = re.compile(r"(\d+)\s*:\s*(\S+)")
_TOTAL = "TOTAL OD FLOW"
# Relative tolerance, since publishers round the total.
_TOTAL_TOLERANCE = 0.005
# Maximum number of characters of a text in a message.
_MAX_EXCERPT = 40
# Fields of a link that are read: start, end, capacity, length, free flow time.
_LINK_FIELDS = 5


def read_tntp_topology(path: Path) -> Topology:
    """Read the road network of a ``_net.tntp`` file; the free flow time of a link is its cost and,
    in ms, its latency.

    Raises:
        InputError: an invalid file, or an error of :class:`teal.Topology`.
    """
    where = str(path)
    (header_values, lines) = _read_file(path)
    # Nodes below the first through node are zones.
    num_nodes, first_through_node = (
        _positive_integer(header_values, key, where)
        for key in ("NUMBER OF NODES", "FIRST THRU NODE")
    )
    # Fields of each link; the header may state their number.
    rows = [line.split(";")[0].split() for _, line in lines if not line.startswith("~")]
    num_links = (
        _positive_integer(header_values, "NUMBER OF LINKS", where)
        if "NUMBER OF LINKS" in header_values
        else len(rows)
    )
    if num_links != len(rows):
        raise InputError.invalid(
            where,
            "links",
            f"<NUMBER OF LINKS> is {num_links}, but the file has {len(rows)} links",
            "correct the number, or download the file again",
        )
    # Number of the first link with too few fields, from 1; 0 for none.
    short_row = next((index for index, row in enumerate(rows, 1) if len(row) < _LINK_FIELDS), 0)
    if short_row or not rows:
        expected = f"{_LINK_FIELDS} numbers (start, end, capacity, length, free flow time)"
        num_fields = len(rows[short_row - 1]) if short_row else 0
        raise InputError(
            where, f"link {short_row}" if short_row else "links", expected, f"{num_fields} numbers"
        )
    # Convert the numbers; the free flow time is the cost.
    try:
        links = np.array([row[:_LINK_FIELDS] for row in rows], np.float64)
    except ValueError as error:
        raise InputError.invalid(where, "links", f"a field is not a number: {error}") from None
    return network_of_costs(
        _name(path),
        where,
        num_nodes,
        ends=links[:, :2],
        cost=links[:, 4],
        capacity=links[:, 2],
        no_transit=first_through_node - 1,
    )


def read_tntp_traffic(path: Path, topology: Topology) -> TrafficMatrices:
    """Read the trips of a ``_trips.tntp`` file as one traffic matrix, in Gbit/s.

    Raises:
        InputError: an invalid file, or an unknown zone.
    """
    where = str(path)
    (header_values, lines) = _read_file(path)
    # Pairs (origin, target) and rates of the trips; a line "Origin N" sets the origin.
    source = 0
    ends = list[tuple[int, int]]()
    rates = list[float]()
    for line_number, line in lines:
        if line.startswith("~"):
            continue
        origin = _ORIGIN.match(line)
        if origin is not None:
            source = int(origin[1])
            continue
        # Trips "target : rate", separated by semicolons.
        for trip in filter(None, map(str.strip, line.split(";"))):
            match = _TRIP.fullmatch(trip)
            try:
                rates.append(float(match[2]) if match else math.nan)
            except ValueError:
                match = None
            if match is None:
                expected = "trips such as 12 : 3.5; or Origin 7"
                raise InputError(where, f"line {line_number}", expected, repr(trip[:_MAX_EXCERPT]))
            ends.append((source, int(match[1])))
    # Build the matrix.
    if not ends:
        raise InputError.invalid(
            where, "", "the file has no trips", "add lines Origin N, each followed by trips"
        )
    _warn_of_total(header_values.get(_TOTAL, ""), sum(rates), where)
    pairs = np.array(ends, np.float64)
    return matrix_of(path, _name(path), pairs, np.array(rates), topology)


def _warn_of_total(text: str, total: float, where: str) -> None:
    """Warn if the sum of the trips differs from the total that the file states, as in a truncated
    file.

    Args:
        text: total that the file states; a text that is not a number is ignored.
        total: sum of the trips.
        where: name of the file, for messages.
    """
    try:
        stated_total = float(text.rstrip(";"))
    except ValueError:
        return
    if abs(stated_total - total) > _TOTAL_TOLERANCE * abs(stated_total):
        warn(
            f"{where}: <{_TOTAL}> is {stated_total:g}, but the sum of the trips is {total:g}: the "
            "file may be truncated"
        )


def _name(path: Path) -> str:
    """Return the name of a file without ``_net`` or ``_trips`` and suffix."""
    return re.sub(r"(_net|_trips)?\.tntp(\.gz)?$", "", path.name, flags=re.IGNORECASE)


def _read_file(path: Path) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """Return the header of a TNTP file, the values of its ``<KEY> value`` lines by upper-case key,
    and line number and text of its other non-empty lines.

    Raises:
        InputError: a damaged gzip file.
    """
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8", errors="replace") as stream:
            texts = [line.strip() for line in stream]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError.invalid(
            str(path),
            "",
            f"the gzip file is truncated or damaged: {error}",
            "download it again",
        ) from None
    # Separate the header from the other lines.
    header_values = dict[str, str]()
    lines = list[tuple[int, str]]()
    for line_number, text in enumerate(texts, 1):
        match = _KEY.match(text)
        if match is not None:
            header_values[match[1].strip().upper()] = match[2]
        elif text:
            lines.append((line_number, text))
    return header_values, lines


def _positive_integer(header_values: dict[str, str], key: str, where: str) -> int:
    """Parse the value of a key of the header; raise InputError unless it is an integer > 0."""
    text = header_values.get(key, "")
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise InputError(where, f"<{key}>", "an integer > 0", repr(text))
    return int(text)
