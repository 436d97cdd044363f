"""Readings of interface counters from Prometheus.

Responses to a range query (``/api/v1/query_range``) are converted to a table of readings
(:mod:`teal_ip.readings.files`).  A file has one response, or a list of responses, such as those for
``ifHCInOctets`` and ``ifHCOutOctets`` (snmp_exporter) or
``interfaces_interface_state_counters_in_octets`` (gnmic).  A series becomes rows of

    router      label router, instance, source, agent_host, hostname or sysName, without a port
    interface   label ifName, interface, interface_name, ifDescr, device or name
    direction   label direction; else from the name of the metric: in or receive, out or transmit
    bytes       the value: byte counters, not rates, so that wraps and resets are detected

Entry point: :func:`read_prometheus`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.formats.parts import keys_of, list_of, object_of, objects_of
from teal.network.topology import without_port

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
