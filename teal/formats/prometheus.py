"""Counters of a Prometheus range query (``/api/v1/query_range``), as a table that :mod:`teal.formats.counters` reads.

A file has one answer, or a list of answers, such as those to ``ifHCInOctets`` and ``ifHCOutOctets`` (snmp_exporter) or
``interfaces_interface_state_counters_in_octets`` (gnmic).  A series becomes rows of

    router      label router, instance, source, agent_host, hostname or sysName, without a port
    interface   label ifName, interface, interface_name, ifDescr, device or name
    direction   label direction; else by the name of the metric: in or receive, out or transmit
    bytes       the value: byte counters, not rates, so that wraps and resets are seen
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teal.errors import InputError

_ROUTER = ("router", "instance", "source", "agent_host", "hostname", "sysName")
_INTERFACE = ("ifName", "interface", "interface_name", "ifDescr", "device", "name")
_DIRECTIONS = {
    "in": re.compile("in_?(octets|bytes)|receive", re.I),
    "out": re.compile("out_?(octets|bytes)|transmit", re.I),
}


def read_prometheus(path: Path) -> Any:
    """A pandas frame with the columns time, router, interface, direction, bytes.

    Raises:
        InputError: no JSON, no range query, or a series whose router, interface or direction is not said.
    """
    import pandas as pd

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(path), "", "JSON of a Prometheus range query", str(error)) from None
    rows = [row for one in (document if isinstance(document, list) else [document]) for row in _rows(one, str(path))]
    if not rows:
        raise InputError(str(path), "data.result", "at least one series with values", "none")
    return pd.DataFrame(rows, columns=["time", "router", "interface", "direction", "bytes"])


def _rows(document: Any, where: str) -> Iterator[tuple[float, str, str, str, float]]:
    try:
        series = document["data"]["result"]
        if document["data"].get("resultType", "matrix") != "matrix":
            raise InputError(where, "data.resultType", "matrix, of a range query", document["data"]["resultType"])
        for number, one in enumerate(series):
            labels, place = one["metric"], f"data.result[{number}]"
            router = _label(labels, _ROUTER, where, place).rsplit(":", 1)[0]
            interface, name = _label(labels, _INTERFACE, where, place), str(labels.get("__name__", ""))
            direction = labels.get("direction") or next(
                (d for d, words in _DIRECTIONS.items() if words.search(name)), ""
            )
            if direction not in _DIRECTIONS:
                raise InputError(
                    where, f"{place}: direction", "a label direction, or a name such as ifHCInOctets (rate() and sum() "
                    "drop the name: query the counter itself)", name or "no name",
                )  # fmt: skip
            for time, value in one["values"]:
                yield float(time), router, interface, direction, float(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        expected = "data.result with metric and values, of a range query"
        raise InputError(where, "", expected, f"{type(error).__name__}: {error}") from None


def _label(labels: dict[str, Any], names: tuple[str, ...], where: str, place: str) -> str:
    for name in names:
        if labels.get(name):
            return str(labels[name])
    raise InputError(where, f"{place}: metric", "one of the labels " + ", ".join(names), sorted(labels))
