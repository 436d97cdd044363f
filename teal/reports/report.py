"""The report of an evaluation: tables, charts and maps of its record."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np

from teal.evaluation import Row
from teal.evaluation.cases import Protocol
from teal.reports.chart import Chart
from teal.reports.charts import Charts
from teal.reports.findings import compared, findings
from teal.reports.groups import by_level, by_network
from teal.reports.image import plot_panels
from teal.reports.maps import network_map
from teal.reports.page import Cell, Column, Section, write_page
from teal.reports.record import NetworkRecord, Record, ResultKey
from teal.reports.table import Quality, Summary, class_text, summarise
from teal.reports.text import milliseconds, percent, ratio_text, time_text

_MOST_FULL = 3  # links that are named
_TIMES = ("time, median", "build", "solve", "if parallel")  # the last three as schemes report them


def write_report(path: Path, record: Record) -> None:
    """Write the page.

    Args:
        path: of the file.
        record: of the evaluation, with at least one row; all rows must have one objective.
    """
    sections = [_section(record, title, rows) for title, rows in _by_title(record).items()]
    write_page(
        path, compared(record.rows),
        f"Objective: `{record.rows[0].objective}`. Every allocation was measured by one validator; a gap is certified: "
        "the optimum is no further away than that.",
        sections,
    )  # fmt: skip


def figures_of(record: Record) -> dict[str, list[Chart]]:
    """The charts of each network."""
    return {
        title: Charts(rows, [point for network in _networks(record, rows) for point in network.fairness]).all()
        for title, rows in _by_title(record).items()
    }


def _networks(record: Record, rows: list[Row]) -> list[NetworkRecord]:
    """The network of the rows of one network; [] if it is not recorded."""
    key = rows[0].topology, rows[0].traffic
    return [network for network in record.networks if (network.topology, network.traffic) == key]


def _by_title(record: Record) -> dict[str, list[Row]]:
    """The rows of each network by its name, which has the traffic too where there are several of one network."""
    networks = by_network(record.rows)
    count = Counter(topology for topology, _ in networks)
    return {
        f"{topology}, {traffic}" if count[topology] > 1 else topology: rows
        for (topology, traffic), rows in networks.items()
    }


def plot_results(path: Path, rows: list[Row]) -> None:
    """For each network two panels of the unchanged matrices: quality over time, and quality against time to solve."""
    networks = by_network([row for row in rows if row.protocol == Protocol.OFFLINE.value])
    panels = []
    for (topology, _), of_network in networks.items():
        charts, usable = Charts(of_network), [row for row in of_network if row.usable]
        panels.append((topology, [charts.over_time(usable), charts.against_time(usable)]))
    plot_panels(path, panels)


def _section(record: Record, title: str, rows: list[Row]) -> Section:
    """One network.

    Args:
        record: of the evaluation.
        title: of the section.
        rows: of the network.
    """
    networks = _networks(record, rows)
    offline = by_level(rows).get((Protocol.OFFLINE.value, ""), [])  # the offline protocol has one level, without a name
    times = {row.index: row.timestamp for row in rows}
    notes = dict.fromkeys((row.scheme, row.note) for row in rows if row.note)
    count = len({row.index for row in rows})
    facts = f"{count} {'matrix' if count == 1 else 'matrices'}"
    if networks:
        network = networks[0]
        facts = f"{len(network.nodes)} nodes, {len(network.source)} directed links, {network.selection or facts}"
    quality, summaries = Quality.of(rows[0].objective), summarise(offline)
    classes = list(dict.fromkeys(one.name for summary in summaries for one in summary.classes))
    is_compared = any(not math.isnan(summary.fairness) for summary in summaries)
    has_models = any(not math.isnan(summary.cut_demand) for summary in summaries)
    has_latency = any(not math.isnan(summary.latency_mean) for summary in summaries)
    return Section(
        title=title,
        facts=facts,
        traffic=rows[0].traffic,
        columns=[
            Column(quality.label, most_is_best=quality.objective.rules.sense > 0),
            *(Column(f"{name} (gap)", most_is_best=True) for name in classes),
            *([Column("fairness", most_is_best=True)] if is_compared else []),
            Column("of LP-all", most_is_best=True),
            *map(Column, ("own certified gap", "gap by the best bound", *_TIMES)),
            *([Column("cut only", most_is_best=True)] if has_models else []),
            *([Column("latency")] if has_latency else []),
            Column("status", is_number=False),
        ],
        lines=[
            _line(summary, rows[0].objective, classes, is_compared, has_latency, has_models) for summary in summaries
        ],
        charts=Charts(rows, networks[0].fairness if networks else ()).all(),
        findings=[*findings(rows), *_fullest(record, networks, offline, summaries)],
        notes=[f"{scheme}: {note}" for scheme, note in notes],
        map=network_map(networks[0], record.utilisation, times) if networks else None,
    )  # fmt: skip


def _fullest(record: Record, networks: list[NetworkRecord], offline: list[Row], summaries: list[Summary]) -> list[str]:
    """The links that are fullest on average under the scheme with the smallest gap, in a sentence; [] if unknown."""
    known = [one for one in summaries if not math.isnan(one.gap_known)]
    if not networks or not known:
        return []
    network, best = networks[0], min(known, key=lambda one: one.gap_known)
    loads = [record.utilisation.get(ResultKey.of(row)) for row in offline if row.scheme == best.scheme]
    shares = [one for one in loads if one is not None and np.isfinite(one).all()]
    if not shares:
        return []
    mean = np.mean(shares, axis=0)
    names = [
        f"{network.nodes[network.source[e]]} to {network.nodes[network.target[e]]} {100 * mean[e]:.1f}%"
        for e in np.argsort(-mean, kind="stable")[:_MOST_FULL].tolist()
    ]
    return [f"Fullest links under {best.scheme}, on average: {', '.join(names)}."]


def _line(
    summary: Summary, objective: str, classes: list[str], is_compared: bool, has_latency: bool, has_models: bool
) -> tuple[str, list[Cell]]:
    """A line of the table; the first cell is the satisfied demand in percent or, of other objectives, their value."""
    satisfied = {one.name: one.satisfied_demand for one in summary.classes}
    is_share = Quality.of(objective).objective.rules.measure_label is None
    quality = 100 * summary.satisfied_demand if is_share else summary.value
    cells = [
        ("-" if not math.isfinite(quality) else f"{quality:.2f}" if is_share else f"{quality:.4g}", quality),
        *((class_text(summary, name), satisfied.get(name, math.nan)) for name in classes),
        *([(ratio_text(summary.fairness), summary.fairness)] if is_compared else []),
        (percent(summary.of_optimum), summary.of_optimum),
        (percent(summary.gap), summary.gap),
        (percent(summary.gap_known), summary.gap_known),
        (time_text(summary.total_s), summary.total_s),
        (time_text(summary.build_s), summary.build_s),
        (time_text(summary.solve_s), summary.solve_s),
        (time_text(summary.parallel_s), summary.parallel_s),
        *([(percent(summary.cut_demand), summary.cut_demand)] if has_models else []),
        *([(milliseconds(summary.latency_mean), summary.latency_mean)] if has_latency else []),
    ]
    return summary.scheme, [*(Cell(text, number) for text, number in cells), Cell(summary.status)]
