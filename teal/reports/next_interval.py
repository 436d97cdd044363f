"""The result of `teal evaluate --next-interval` as tables, charts and a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from teal.evaluation.next_interval import NextRow, NextSummary, summarise
from teal.network.traffic import spread
from teal.objectives import ObjectiveName
from teal.reports.chart import MAX_POINTS, SHARE_RANGE, Chart, Series, distribution
from teal.reports.groups import by_network, by_scheme
from teal.reports.image import plot_panels
from teal.reports.page import Cell, Column, Section, write_page
from teal.reports.text import time_text

_COLUMNS = ("mean", "p50", "p90", "p99", "worst", "churn", "limit held", "limit - ratio", "time")
_NARROW = ("mean", "p99", "churn", "limit held", "time")


def render_next_interval(summaries: Sequence[NextSummary], *, wide: bool) -> Iterator[Table]:
    """A table for each network: realised over optimum, churn, the stated limit, time.

    Args:
        summaries: of all networks.
        wide: all columns; otherwise those that fit 80 characters.
    """
    for (topology, traffic), of_network in by_network(summaries).items():
        table = Table(title=escape(f"{topology}, {traffic}: {of_network[0].intervals} intervals, realised / optimum"))
        table.title_justify = "left"
        table.add_column("scheme", no_wrap=wide, overflow="fold")
        shown = [number for number, column in enumerate(_COLUMNS) if wide or column in _NARROW]
        for number in shown:
            table.add_column(_COLUMNS[number], justify="right")
        for s in _from_the_best(of_network):
            cells = _cells(s)
            table.add_row(escape(s.scheme), *(cells[number][0] for number in shown))
        yield table


def _from_the_best(summaries: Sequence[NextSummary]) -> list[NextSummary]:
    return sorted(summaries, key=lambda s: abs(s.mean - 1) if math.isfinite(s.mean) else math.inf)


def _cells(s: NextSummary) -> list[tuple[str, float]]:
    """Text and number of each column."""
    ratios = [(_number(value), value) for value in (s.mean, s.p50, s.p90, s.p99, s.worst)]
    shares = [(_share(value), value) for value in (s.churn, s.coverage)]
    return [*ratios, *shares, (_number(s.width), s.width), (time_text(s.solve_s), s.solve_s)]


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _share(value: float) -> str:
    return f"{100 * value:.1f}%" if math.isfinite(value) else "-"


def charts_of(rows: Sequence[NextRow]) -> list[Chart]:
    """The charts of one network: over time, distributions, and the best scheme within its stated limit."""
    what = "utilisation" if rows[0].objective == ObjectiveName.MAX_LINK_UTILISATION.value else "satisfied demand"
    label = f"realised {what} / optimum"
    schemes = by_scheme(rows)
    charts = [
        Chart("ratio-over-time", f"Realised {what} over the optimum", "Each interval, whose matrix no scheme had seen.",
              "", label, tuple(_over_time(name, part, lambda r: r.ratio) for name, part in schemes.items()), "time"),
        Chart("ratio", "Share of intervals", "Intervals whose ratio is at most so large.", label,
              "share of intervals (%)",
              tuple(distribution(name, np.array([r.ratio for r in part])) for name, part in schemes.items()), "linear",
              SHARE_RANGE),
    ]  # fmt: skip
    if any(math.isfinite(row.limit) for row in rows):
        best = _from_the_best(summarise(rows))[0].scheme
        charts.append(
            Chart(
                "limit", f"{best}: the stated limit", "Stated before the interval, to hold in 95% of them.",
                "", label, (_over_time(best, schemes[best], lambda r: r.ratio),
                            _over_time("stated limit", schemes[best], lambda r: r.limit)), "time",
            )
        )  # fmt: skip
    moved = tuple(_over_time(name, of_scheme, lambda r: 100 * r.churn) for name, of_scheme in schemes.items())
    charts.append(Chart("churn", "Churn", "Share of the volume that moves between two intervals.", "", "churn (%)",
                        moved, "time"))  # fmt: skip
    return charts


def _over_time(name: str, rows: Sequence[NextRow], number: Callable[[NextRow], float]) -> Series:
    drawn = [rows[i] for i in spread(np.arange(len(rows)), MAX_POINTS).tolist()]
    values = [number(row) for row in drawn]
    return Series(name, "line", [row.timestamp for row in drawn], [v if math.isfinite(v) else None for v in values])


def figures_of_intervals(rows: Sequence[NextRow]) -> dict[str, list[Chart]]:
    """The charts of each network."""
    return {topology: charts_of(of_network) for (topology, _), of_network in by_network(rows).items()}


def plot_next_interval(path: Path, rows: Sequence[NextRow]) -> None:
    """For each network two panels: realised over optimum over time, and its distribution."""
    plot_panels(path, [(topology, charts_of(of_network)[:2]) for (topology, _), of_network in by_network(rows).items()])


def write_next_interval_report(path: Path, rows: Sequence[NextRow], selections: Mapping[str, str]) -> None:
    """Write the page.

    Args:
        path: of the file.
        rows: at least one.
        selections: which matrices were measured, in words, by the name of the topology.
    """
    sections = []
    for (topology, traffic), of_network in by_network(rows).items():
        lines = [(s.scheme, [Cell(*cell) for cell in _cells(s)]) for s in _from_the_best(summarise(of_network))]
        count = len({row.index for row in of_network})
        sections.append(
            Section(
                title=topology, facts=selections.get(topology, f"{count} intervals"), traffic=traffic,
                columns=[Column(name) for name in _COLUMNS], lines=lines, charts=charts_of(of_network),
            )
        )  # fmt: skip
    write_page(
        path, "The next interval",
        f"Objective: `{rows[0].objective}`. Schemes allocated for matrices that they had not seen; the traffic then "
        "followed their splits. Ratios are to the optimum of the matrix that came, which nobody knew; 1 is best.",
        sections,
    )  # fmt: skip
