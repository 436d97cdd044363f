"""Plots as image files, by matplotlib without a display."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from teal.evaluation import Row
from teal.evaluation.cases import Protocol
from teal.reports.table import Quality, by_network

# Okabe and Ito's palette, which people with colour blindness can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def plain_log_axis(axis: Axis, subs: tuple[float, ...] = (1.0,)) -> None:
    """Ticks of a logarithmic axis at ``subs`` of each decade, written as 0.01, 10, 2000."""
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def plot_results(path: Path, rows: list[Row]) -> None:
    """For each network two panels of the unchanged matrices: quality over time, and quality against time to solve.

    Quality is the satisfied demand, or the value of the objective where all of it must be carried.
    """
    networks = by_network([row for row in rows if row.protocol == Protocol.OFFLINE.value])
    figure = Figure(figsize=(11, 4.2 * len(networks)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(networks), 2, width_ratios=[3, 2], squeeze=False)
    for (over_time, against), network_rows in zip(panels, networks.values(), strict=True):
        _plot_network(over_time, against, network_rows)
    figure.savefig(path, dpi=150)


def _plot_network(over_time: Axes, against: Axes, rows: list[Row]) -> None:
    quality = Quality.of(rows[0].objective)
    for number, scheme in enumerate(dict.fromkeys(row.scheme for row in rows)):
        usable = [row for row in rows if row.scheme == scheme and row.usable]
        if not usable:
            continue
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        values = np.array([quality.of_row(row) for row in usable])
        times = np.array([row.timestamp for row in usable], dtype="datetime64[s]")
        line = "-" if number % 2 == 0 else "--"  # so that two equal curves are both visible
        over_time.plot(times, values, line, color=colour, linewidth=1.4, label=scheme)
        seconds = np.array([row.total_s for row in usable])
        against.scatter(1e3 * seconds, values, s=9, alpha=0.25, color=colour, marker=marker, linewidths=0)
        against.scatter(
            1e3 * np.median(seconds), values.mean(), s=70, color=colour, marker=marker, edgecolors="black", label=scheme
        )
    locator = AutoDateLocator()
    over_time.xaxis.set_major_locator(locator)
    over_time.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    over_time.set(ylabel=quality.label, title=f"{rows[0].topology}, {rows[0].objective}")
    against.set(xscale="log", xlabel="time a matrix, build and solve (ms)", ylabel=quality.label)
    against.set_title("large: mean quality, median time")
    plain_log_axis(against.xaxis, subs=(1.0, 2.0, 5.0))
    for axes in (over_time, against):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    if over_time.lines:
        over_time.legend(loc="best", fontsize="small", framealpha=0.8)
