"""The report of an evaluation: tables, charts and maps of its record."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from teal.evaluation import Row
from teal.evaluation.cases import Protocol
from teal.reports.chart import Chart
from teal.reports.charts import Charts
from teal.reports.groups import by_level, by_network
from teal.reports.image import plot_panels
from teal.reports.maps import network_map
from teal.reports.page import Cell, Column, Section, write_page
from teal.reports.record import Record
from teal.reports.table import Quality, Summary, percent, summarise, time_text


def write_report(path: Path, record: Record) -> None:
    """Write the page.

    Args:
        path: of the file.
        record: of the evaluation, with at least one row; all rows must have one objective.
    """
    networks = by_network(record.rows)
    several = _several(networks)
    sections = [_section(record, rows, is_one_of_several=key[0] in several) for key, rows in networks.items()]
    write_page(
        path, "Traffic engineering, evaluated",
        f"Objective: `{record.rows[0].objective}`. Every allocation was measured by one validator; a gap is certified: "
        "the optimum is no further away than that.",
        sections,
    )  # fmt: skip


def figures_of(record: Record) -> dict[str, list[Chart]]:
    """The charts of each network; its name has the traffic too where there are several of one network."""
    networks = by_network(record.rows)
    several = _several(networks)
    return {
        f"{topology}, {traffic}" if topology in several else topology: Charts(rows).all()
        for (topology, traffic), rows in networks.items()
    }


def _several(networks: Iterable[tuple[str, str]]) -> set[str]:
    """Networks that occur with several traffics."""
    count = Counter(topology for topology, _ in networks)
    return {topology for topology, times in count.items() if times > 1}


def plot_results(path: Path, rows: list[Row]) -> None:
    """For each network two panels of the unchanged matrices: quality over time, and quality against time to solve."""
    networks = by_network([row for row in rows if row.protocol == Protocol.OFFLINE.value])
    panels = []
    for (topology, _), own in networks.items():
        charts, usable = Charts(own), [row for row in own if row.usable]
        panels.append((topology, [charts.over_time(usable), charts.against_time(usable)]))
    plot_panels(path, panels)


def _section(record: Record, rows: list[Row], *, is_one_of_several: bool) -> Section:
    """One network.

    Args:
        record: of the evaluation.
        rows: of the network.
        is_one_of_several: see Section.
    """
    key = rows[0].topology, rows[0].traffic
    networks = [network for network in record.networks if (network.topology, network.traffic) == key]
    offline = by_level(rows).get((Protocol.OFFLINE.value, ""), [])  # the offline protocol has one level, without a name
    times = {row.index: row.timestamp for row in rows}
    notes = dict.fromkeys((row.scheme, row.note) for row in rows if row.note)
    count = len({row.index for row in rows})
    facts = f"{count} {'matrix' if count == 1 else 'matrices'}"
    if networks:
        network = networks[0]
        facts = f"{len(network.nodes)} nodes, {len(network.source)} directed links, {network.selection or facts}"
    quality = Quality.of(rows[0].objective)
    labels = (
        quality.label, "of LP-all", "own certified gap", "gap by the best bound", "time, median",
        "if parallel",
    )  # fmt: skip
    return Section(
        title=key[0],
        facts=facts,
        traffic=key[1],
        columns=[
            *(Column(label, most_is_best=(number == 0 and quality.objective.higher_is_better) or number == 1)
              for number, label in enumerate(labels)),
            Column("status", is_number=False),
        ],
        lines=[_line(summary, rows[0].objective) for summary in summarise(offline)],
        charts=Charts(rows).all(),
        notes=[f"{scheme}: {note}" for scheme, note in notes],
        map=network_map(networks[0], record.utilisation, times) if networks else None,
        is_one_of_several=is_one_of_several,
    )  # fmt: skip


def _line(summary: Summary, objective: str) -> tuple[str, list[Cell]]:
    """A line of the table; the first cell is the satisfied demand in percent or, of other objectives, their value."""
    is_share = Quality.of(objective).objective.maximises_value
    quality = 100 * summary.satisfied_demand if is_share else summary.value
    cells = [
        ("-" if math.isnan(quality) else f"{quality:.2f}" if is_share else f"{quality:.4g}", quality),
        (percent(summary.of_optimum), summary.of_optimum),
        (percent(summary.gap), summary.gap),
        (percent(summary.gap_known), summary.gap_known),
        (time_text(summary.total_s), summary.total_s),
        (time_text(summary.parallel_s), summary.parallel_s),
    ]
    return summary.scheme, [*(Cell(text, number) for text, number in cells), Cell(summary.status)]
