"""The report: one self-contained page with tables, charts and maps of an evaluation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from teal.evaluation import Row
from teal.evaluation.cases import Protocol
from teal.reports.charts import Charts
from teal.reports.maps import network_map
from teal.reports.record import Record
from teal.reports.table import Quality, Summary, by_level, by_network, percent, summarise, time_text
from teal.web import network_map_js, plotly_js

_ASSETS = Path(__file__).parent / "assets"


def write_report(path: Path, record: Record) -> None:
    """Write the page.  It contains everything, also Plotly's JavaScript (4.5 MB), and loads nothing from elsewhere.

    Args:
        path: of the file.
        record: of the evaluation, with at least one row; all rows must have one objective.
    """
    import jinja2

    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(_ASSETS), autoescape=True, trim_blocks=True)
    schemes = list(dict.fromkeys(row.scheme for row in record.rows))
    networks = [_network(number, record, rows, schemes) for number, rows in enumerate(by_network(record.rows).values())]
    page = environment.get_template("report.html").render(
        networks=networks,
        objective=record.rows[0].objective,
        style=(_ASSETS / "report.css").read_text(encoding="utf-8"),
        script=(_ASSETS / "report.js").read_text(encoding="utf-8"),
        plotly=plotly_js(),
        network_map=network_map_js(),
        # The page has figures and maps once, as JSON: they are removed from ``networks``.
        figures={c["id"]: c.pop("figure") for network in networks for c in network["charts"]},
        maps={network["id"]: network.pop("map") for network in networks if network["map"]},
    )
    path.write_text(page, encoding="utf-8")


def _network(number: int, record: Record, rows: list[Row], schemes: list[str]) -> dict[str, Any]:
    """The template's data of one network.

    Args:
        number: of the network on the page, for the identifiers of its elements.
        record: of the evaluation.
        rows: of the network.
        schemes: all schemes of the page, so that a scheme has the same colour in all charts.
    """
    key = rows[0].topology, rows[0].traffic
    networks = [network for network in record.networks if (network.topology, network.traffic) == key]
    levels = by_level(rows)
    offline = levels.get((Protocol.OFFLINE.value, ""), [])  # the offline protocol has one level, without a name
    charts = [
        {"id": f"chart-{number}-{i}", "title": title, "text": text, "figure": json.loads(figure.to_json())}
        for i, (title, text, figure) in enumerate(Charts(rows, schemes).all())
    ]
    times = {row.index: row.timestamp for row in rows}
    notes = dict.fromkeys((row.scheme, row.note) for row in rows if row.note)
    return {
        "id": f"network-{number}",
        "topology": key[0],
        "traffic": key[1],
        "matrices": len({row.index for row in rows}),
        "nodes": len(networks[0].nodes) if networks else None,
        "links": len(networks[0].source) if networks else None,
        "label": Quality.of(rows[0].objective).label,
        "table": [_line(summary, rows[0].objective) for summary in summarise(offline)],
        "notes": [f"{scheme}: {note}" for scheme, note in notes],
        "charts": charts,
        "map": network_map(networks[0], record.utilisation, times) if networks else None,
    }


def _line(summary: Summary, objective: str) -> dict[str, Any]:
    """A line of the table: scheme, cells as (text, number to sort by, as text) in the template's order, status.

    The first cell is the satisfied demand in percent or, of other objectives, their value.
    """
    quality = 100 * summary.satisfied_demand if Quality.of(objective).objective.maximises_value else summary.value
    cells = [
        (f"{quality:.3f}", quality),
        (percent(summary.of_optimum), summary.of_optimum),
        (percent(summary.gap), summary.gap),
        (percent(summary.gap_known), summary.gap_known),
        (time_text(summary.total_s), summary.total_s),
        (time_text(summary.parallel_s), summary.parallel_s),
    ]
    known = [("-", "") if math.isnan(number) else (text, repr(number)) for text, number in cells]
    return {"scheme": summary.scheme, "cells": known, "status": summary.status}
