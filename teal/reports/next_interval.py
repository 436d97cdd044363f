"""The result of `teal evaluate --next-interval` as tables and as a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from teal.evaluation.next_interval import NextRow, NextSummary
from teal.objectives import ObjectiveName
from teal.reports.plots import COLOURS
from teal.reports.table import time_text


def render_next_interval(summaries: Sequence[NextSummary]) -> Iterator[Table]:
    """A table for each network: realised over optimum, churn, the stated limit, time."""
    for network in dict.fromkeys((s.topology, s.traffic) for s in summaries):
        own = [s for s in summaries if (s.topology, s.traffic) == network]
        table = Table(title=f"{network[0]}, {network[1]}: {own[0].intervals} intervals, realised / optimum")
        table.title_justify = "left"
        table.add_column("scheme", no_wrap=True)
        for column in ("mean", "p50", "p90", "p99", "worst", "churn", "limit held", "limit - ratio", "time"):
            table.add_column(column, justify="right")
        for s in sorted(own, key=lambda s: abs(s.mean - 1) if math.isfinite(s.mean) else math.inf):
            ratios = (_number(value) for value in (s.mean, s.p50, s.p90, s.p99, s.worst))
            shares = (_share(value) for value in (s.churn, s.coverage))
            table.add_row(escape(s.scheme), *ratios, *shares, _number(s.width), time_text(s.solve_s))
        yield table


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _share(value: float) -> str:
    return f"{100 * value:.1f}%" if math.isfinite(value) else "-"


def plot_next_interval(path: Path, rows: Sequence[NextRow]) -> None:
    """For each network two panels: realised over optimum over time, and its distribution."""
    networks = list(dict.fromkeys((row.topology, row.traffic) for row in rows))
    figure = Figure(figsize=(11, 4.2 * len(networks)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(networks), 2, width_ratios=[3, 2], squeeze=False)
    for (over_time, distribution), network in zip(panels, networks, strict=True):
        own = [row for row in rows if (row.topology, row.traffic) == network]
        _plot_network(over_time, distribution, own)
        over_time.set_title(f"{network[0]}, {network[1]}", fontsize="medium")
    figure.savefig(path, dpi=130)


def _plot_network(over_time: Axes, distribution: Axes, rows: Sequence[NextRow]) -> None:
    what = "utilisation" if rows[0].objective == ObjectiveName.MAX_LINK_UTILISATION.value else "satisfied demand"
    for number, scheme in enumerate(dict.fromkeys(row.scheme for row in rows)):
        own = [row for row in rows if row.scheme == scheme and math.isfinite(row.ratio)]
        colour, line = COLOURS[number % len(COLOURS)], "-" if number < len(COLOURS) else "--"
        times = np.array([row.timestamp for row in own], dtype="datetime64[s]")
        ratios = np.array([row.ratio for row in own])
        over_time.plot(
            times, ratios, line, color=colour, linewidth=1.0, alpha=0.85, label=scheme, zorder=3 - number / 100
        )
        shares = (np.arange(len(ratios)) + 1) / max(1, len(ratios))
        distribution.plot(
            np.sort(ratios), shares, line, color=colour, linewidth=1.4, label=scheme, zorder=3 - number / 100
        )
    locator = AutoDateLocator()
    over_time.xaxis.set_major_locator(locator)
    over_time.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    over_time.set_ylabel(f"realised {what} / optimum")
    distribution.set(xlabel=f"realised {what} / optimum", ylabel="share of intervals at most")
    for axes in (over_time, distribution):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    distribution.legend(loc="lower right", fontsize="small")
