"""Conversion of the units in files to Gbit/s and ms."""

from __future__ import annotations

import math
import re

from teal.errors import InputError

_MS_PER_UNIT = {
    "ms": 1.0,
    "msec": 1.0,
    "us": 1e-3,
    "µs": 1e-3,
    "μs": 1e-3,
    "usec": 1e-3,
    "ns": 1e-6,
    "s": 1e3,
}
# Short rates of interfaces: 10G, 100GE, 100 GbE, 400 Gig.
_SHORT_RATE = re.compile(r"([KMGT])(?:E|BE|BASE-?\w*|IG|IGE|B|BIT)?", re.IGNORECASE)
_BYTE_RATE = re.compile(r"B(yte)?s?(ps|/s)|[KMGT]?octets?(/s)?", re.IGNORECASE)
_GBPS_PER_UNIT = {
    "BITPERSEC": 1e-9,
    "KBITPERSEC": 1e-6,
    "MBITPERSEC": 1e-3,
    "GBITPERSEC": 1.0,
    "TBITPERSEC": 1e3,
}
_ALIASES = {"BPS": "BITPERSEC", "BITS": "BITPERSEC", "BIT": "BITPERSEC"}
_EARTH_RADIUS_KM = 6371.0
# Propagation delay in fibre.
_MS_PER_KM = 1 / 200.0
# Minimum latency of a link: latencies must be positive.
MIN_LATENCY_MS = 0.01


def gbps_per_unit(unit: str, where: str) -> float:
    """Return the Gbit/s in one ``unit``, such as MBITPERSEC, Mbit/s, Mbps, Gb/s or G.

    Raises:
        InputError: a unit that is not one of a bit rate.
    """
    if re.search(r"B(yte)?s?(ps|/s)|octet|^[KMGT]?B$", unit.strip()):
        raise InputError(where, "unit", "bits per second, such as Gbit/s", f"{unit!r} (bytes)")
    factor = _gbps(unit)
    if factor is None:
        raise InputError(
            where,
            "unit",
            "a unit of bit rate, such as Gbit/s, Mbps, kbit/s, bit/s or 100GE",
            repr(unit),
        )
    return factor


def _gbps(unit: str) -> float | None:
    """Return the Gbit/s in one unit; None for a text that is not a rate of bits."""
    # Short forms such as G; then spellings such as Mbit/s and Mbps, rewritten as SNDlib's
    # MBITPERSEC.
    short = _SHORT_RATE.fullmatch(unit.strip())
    if short:
        return _GBPS_PER_UNIT[f"{short[1].upper()}BITPERSEC"]
    name = unit.strip().upper().replace("/SEC", "/S").replace("BITS/S", "BIT/S")
    name = name.replace("BIT/S", "BITPERSEC").replace("B/S", "BITPERSEC")
    name = _ALIASES.get(name, name).replace("BPS", "BITPERSEC")
    return _GBPS_PER_UNIT.get(name)


def is_rate_unit(text: str) -> bool:
    """Return whether a text is a unit of rates, of bits (accepted) or bytes (refused)."""
    return _BYTE_RATE.fullmatch(text.strip()) is not None or (
        len(text.strip()) > 1 and _gbps(text) is not None
    )


def is_time_unit(text: str) -> bool:
    """Return whether a text is a unit of delays, such as ms or us, in any case."""
    return text.strip().lower() in _MS_PER_UNIT


def ms_per_unit(unit: str, where: str, field: str) -> float:
    """Return the milliseconds in one ``unit``; "" for ms.

    Raises:
        InputError: another unit.
    """
    if unit.strip() and not is_time_unit(unit):
        raise InputError(where, field, "a delay such as 3.5, 3.5ms or 800us", repr(unit))
    return _MS_PER_UNIT[unit.strip().lower() or "ms"]


def fibre_latency_ms(kilometres: float) -> float:
    """Return the propagation delay in fibre over this distance, ms; at least 0.01 ms."""
    return max(kilometres * _MS_PER_KM, MIN_LATENCY_MS)


def great_circle_km(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Return the great-circle distance between two points (longitude, latitude), degrees, by the
    haversine formula: h = sin^2(dlat / 2) + cos lat1 cos lat2 sin^2(dlon / 2),
    d = 2 R arcsin(sqrt(h)).
    """
    (lon1, lat1), (lon2, lat2) = (tuple(map(math.radians, point)) for point in (a, b))
    h = (
        math.sin((lat2 - lat1) / 2) ** 2
        + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    )
    return 2 * _EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(h)))
