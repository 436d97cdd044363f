"""The race as a table and as a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from teal.race import COLD, FROM, SITUATIONS, WARM, Lap, Standing
from teal.reports.plots import COLOURS, MARKERS, plain_log_axis
from teal.reports.table import time_text

_LEAST = 1e-5  # gap that is drawn; what is below is drawn there


def render_standings(found: Sequence[Standing], gap: float) -> Table:
    """Schemes down, situations across: time to the gap, and how many times sooner than the better PDHG."""
    table = Table(title=f"time to a certified gap of {100 * gap:g}% (against the better of cold and warm PDHG)")
    table.title_justify = "left"
    table.add_column("scheme", no_wrap=True)
    for situation in SITUATIONS:
        table.add_column(situation, justify="right")
    cells = {(s.situation, s.scheme): s for s in found}
    for scheme in dict.fromkeys(s.scheme for s in found):
        row = [cells.get((situation, scheme)) for situation in SITUATIONS]
        table.add_row(scheme, *(_cell(standing) for standing in row))
    return table


def _cell(standing: Standing | None) -> str:
    if standing is None:
        return "-"
    if not math.isfinite(standing.seconds):
        return "not reached"
    ratio = "" if standing.scheme in (COLD, WARM) else f" ({standing.against:.2g}x)"
    return time_text(standing.seconds) + ratio


def plot_race(path: Path, laps: Sequence[Lap]) -> None:
    """Certified gap against time: a row of panels a network and traffic, a panel a situation.

    A line is a scheme told to go on to smaller and smaller gaps, a mark alone one answer; medians over the matrices.
    """
    groups = list(dict.fromkeys((lap.topology, lap.traffic) for lap in laps))
    shape = len(groups), len(SITUATIONS)
    figure = Figure(figsize=(3.3 * shape[1], 0.6 + 2.6 * shape[0]), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(*shape, squeeze=False, sharey=True)
    schemes = list(dict.fromkeys(lap.scheme for lap in laps))
    # A model and PDHG from it have one colour, and what starts elsewhere dashes.
    bases = list(dict.fromkeys([COLD, WARM, *(scheme.removesuffix(FROM) for scheme in schemes)]))
    handles = {}
    for line, group in zip(panels, groups, strict=True):
        for axes, situation in zip(line, SITUATIONS, strict=True):
            own = [lap for lap in laps if (lap.topology, lap.traffic) == group and lap.situation == situation]
            for scheme in schemes:
                points = _points([lap for lap in own if lap.scheme == scheme])
                number = bases.index(scheme.removesuffix(FROM))
                alone = len(points) == 1
                if points:
                    (handles[scheme],) = axes.plot(
                        *zip(*points, strict=True), color=COLOURS[number % len(COLOURS)],
                        linestyle="--" if scheme in (COLD, WARM) else "-",
                        marker="*" if alone else MARKERS[number % len(MARKERS)], markersize=11 if alone else 4,
                    )  # fmt: skip
            axes.set(xscale="log", yscale="log", title=situation)
            axes.title.set_fontsize("medium")
            plain_log_axis(axes.xaxis, subs=(1.0, 2.0, 5.0))
            plain_log_axis(axes.yaxis)
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel(f"{group[0]}\n{group[1]}\ncertified gap (%)", fontsize="small")
    for axes in panels[-1]:
        axes.set_xlabel("time (ms)")
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=130)


def _points(laps: list[Lap]) -> list[tuple[float, float]]:
    """(ms, %) median over the matrices, one for each target."""
    kept = [lap for lap in laps if not math.isnan(lap.gap)]
    targets = dict.fromkeys("none" if math.isnan(lap.target) else lap.target for lap in kept)
    points = []
    for target in targets:
        own = [lap for lap in kept if ("none" if math.isnan(lap.target) else lap.target) == target]
        gap = float(np.median([lap.gap for lap in own]))
        points.append((1e3 * float(np.median([lap.seconds for lap in own])), 100 * max(gap, _LEAST)))
    return points
