"""Conversion of the units in files to Gbit/s and ms, which all other code uses."""

from __future__ import annotations

import math
import re

from teal.errors import InputError

_TO_GBPS = {"BITPERSEC": 1e-9, "KBITPERSEC": 1e-6, "MBITPERSEC": 1e-3, "GBITPERSEC": 1.0, "TBITPERSEC": 1e3}
_ALIASES = {"BPS": "BITPERSEC", "BITS": "BITPERSEC", "BIT": "BITPERSEC"}
_EARTH_RADIUS_KM = 6371.0
_MS_PER_KM = 1 / 200.0  # time of light in fibre
MIN_LATENCY_MS = 0.01  # of a link: latencies must be positive


def gbps_per_unit(unit: str, where: str) -> float:
    """Gbit/s in one ``unit``, such as MBITPERSEC, Mbit/s, Mbps or Gb/s.

    Raises:
        InputError: a unit that is not a rate of bits.
    """
    if re.search(r"B(yte)?(ps|/s)", unit.strip()):
        raise InputError(where, "unit", "bits a second, such as Gbit/s", f"{unit!r} (bytes)")
    name = unit.strip().upper().replace("/SEC", "/S").replace("BIT/S", "BITPERSEC").replace("B/S", "BITPERSEC")
    name = _ALIASES.get(name, name).replace("BPS", "BITPERSEC")
    if name not in _TO_GBPS:
        raise InputError(where, "unit", "one of " + ", ".join(sorted(_TO_GBPS)), repr(unit))
    return _TO_GBPS[name]


def fibre_latency_ms(kilometres: float) -> float:
    """Time of light through fibre of this length, at least 0.01 ms."""
    return max(kilometres * _MS_PER_KM, MIN_LATENCY_MS)


def great_circle_km(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Distance between two (longitude, latitude) points, which are in degrees."""
    (lon1, lat1), (lon2, lat2) = (tuple(map(math.radians, point)) for point in (a, b))
    h = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * _EARTH_RADIUS_KM * math.asin(min(1.0, math.sqrt(h)))
