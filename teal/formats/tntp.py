"""Road networks in the TNTP format (Transportation Networks for Research): ``NAME_net.tntp`` and
``NAME_trips.tntp``, also compressed by gzip.

A network begins with ``<KEY> value`` lines; behind them each line is a link: start, end, capacity,
length, free flow time and more, with a semicolon at its end.  Its cost is the free flow time.
Zones, the nodes below ``<FIRST THRU NODE>``, carry no transit traffic.  Trips are lists ``target :
rate;`` behind ``Origin source``; trips within a zone are left out.  Capacities and trips are read
as Gbit/s.
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
_TOTAL_TOLERANCE = 0.005  # relative: publishers round the total
_SHOWN = 40  # characters of a text in a message
_FIELDS = 5  # of a link that are read: start, end, capacity, length, free flow time


def read_tntp_topology(path: Path) -> Topology:
    """Read a network.

    Raises:
        InputError: a fault in the file, or what :class:`teal.Topology` refuses.
    """
    where, (keys, lines) = str(path), _parts(path)
    nodes, first = (_whole(keys, key, where) for key in ("NUMBER OF NODES", "FIRST THRU NODE"))
    rows = [line.split(";")[0].split() for _, line in lines if not line.startswith("~")]
    count = _whole(keys, "NUMBER OF LINKS", where) if "NUMBER OF LINKS" in keys else len(rows)
    if count != len(rows):
        raise InputError(where, "links", f"{count}, as <NUMBER OF LINKS> says", len(rows))
    short = next((number for number, row in enumerate(rows, 1) if len(row) < _FIELDS), 0)
    if short or not rows:
        expected = f"links of {_FIELDS} numbers: start, end, capacity, length, free flow time"
        raise InputError(where, f"link {short}" if short else "", expected, "fewer")
    try:
        links = np.array([row[:_FIELDS] for row in rows], np.float64)
    except ValueError as error:
        raise InputError(where, "links", "numbers", str(error)) from None
    return network_of_costs(
        _name(path),
        where,
        nodes,
        ends=links[:, :2],
        cost=links[:, 4],
        capacity=links[:, 2],
        no_transit=first - 1,
    )


def read_tntp_traffic(path: Path, topology: Topology) -> TrafficMatrices:
    """Read the trips as one matrix.

    Raises:
        InputError: a fault in the file, or a zone that the network does not have.
    """
    where, (keys, lines) = str(path), _parts(path)
    source, ends, rates = 0, list[tuple[int, int]](), list[float]()
    for number, line in lines:
        if line.startswith("~"):
            continue
        origin = _ORIGIN.match(line)
        if origin is not None:
            source = int(origin[1])
            continue
        for trip in filter(None, map(str.strip, line.split(";"))):
            found = _TRIP.fullmatch(trip)
            try:
                rates.append(float(found[2]) if found else math.nan)
            except ValueError:
                found = None
            if found is None:
                expected = "trips such as 12 : 3.5; or Origin 7"
                raise InputError(where, f"line {number}", expected, repr(trip[:_SHOWN]))
            ends.append((source, int(found[1])))
    if not ends:
        raise InputError(where, "", "Origin lines with trips", "none")
    _warn_of_total(keys.get(_TOTAL, ""), sum(rates), where)
    pairs = np.array(ends, np.float64)
    return matrix_of(path, _name(path), pairs, np.array(rates), topology)


def _warn_of_total(text: str, total: float, where: str) -> None:
    """Warn where the trips do not add up to what the file says, as after a broken download."""
    try:
        stated = float(text.rstrip(";"))
    except ValueError:
        return
    if abs(stated - total) > _TOTAL_TOLERANCE * abs(stated):
        warn(
            f"{where}: <{_TOTAL}> is {stated:g}, but the trips of the file add up to {total:g}: "
            "is the file whole?"
        )


def _name(path: Path) -> str:
    """The name of a network or of its trips."""
    return re.sub(r"(_net|_trips)?\.tntp(\.gz)?$", "", path.name, flags=re.IGNORECASE)


def _parts(path: Path) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """The keys at the begin of a file, and the numbers and texts of the other lines."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rt", encoding="utf-8", errors="replace") as stream:
            texts = [line.strip() for line in stream]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(str(path), "", "a file of gzip, whole", str(error)) from None
    keys, lines = dict[str, str](), list[tuple[int, str]]()
    for number, text in enumerate(texts, 1):
        found = _KEY.match(text)
        if found is not None:
            keys[found[1].strip().upper()] = found[2]
        elif text:
            lines.append((number, text))
    return keys, lines


def _whole(keys: dict[str, str], key: str, where: str) -> int:
    text = keys.get(key, "")
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise InputError(where, f"<{key}>", "a whole number above 0", repr(text))
    return int(text)
