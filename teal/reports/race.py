"""The result of `teal evaluate --race` as a table and as a plot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from teal.evaluation.race import COLD, FROM, SITUATIONS, WARM, RaceRun, TimeToGap
from teal.reports.chart import COLOURS
from teal.reports.image import MARKERS, plain_log_axis
from teal.reports.text import time_text

_MIN_DRAWN_GAP = 1e-5  # smaller gaps are drawn at this one, since the axis is logarithmic


def render_times_to_gap(times: Sequence[TimeToGap], gap: float) -> Table:
    """Schemes down, situations across: time to the gap, and the speedup over the better of cold and warm PDHG."""
    table = Table(title=f"time to a certified gap of {100 * gap:g}% (against the better of cold and warm PDHG)")
    table.title_justify = "left"
    table.add_column("scheme", no_wrap=True)
    for situation in SITUATIONS:
        table.add_column(situation, justify="right")
    cells = {(s.situation, s.scheme): s for s in times}
    for scheme in dict.fromkeys(s.scheme for s in times):
        row = [cells.get((situation, scheme)) for situation in SITUATIONS]
        table.add_row(scheme, *(_cell(standing) for standing in row))
    return table


def _cell(time: TimeToGap | None) -> str:
    if time is None:
        return "-"
    if not math.isfinite(time.seconds):
        return "not reached"
    ratio = "" if time.scheme in (COLD, WARM) else f" ({time.speedup:.2g}x)"
    return time_text(time.seconds) + ratio


def plot_race(path: Path, runs: Sequence[RaceRun]) -> None:
    """Certified gap against time: a row of panels a network and traffic, a panel a situation.

    A line is a scheme that was run to several target gaps, a single mark a scheme without targets; medians over the
    matrices.
    """
    groups = list(dict.fromkeys((run.topology, run.traffic) for run in runs))
    shape = len(groups), len(SITUATIONS)
    figure = Figure(figsize=(3.3 * shape[1], 0.6 + 2.6 * shape[0]), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(*shape, squeeze=False, sharey=True)
    schemes = list(dict.fromkeys(run.scheme for run in runs))
    # A model and PDHG from that model have one colour; PDHG without a model is dashed.
    bases = list(dict.fromkeys([COLD, WARM, *(scheme.removesuffix(FROM) for scheme in schemes)]))
    handles = {}
    for line, group in zip(panels, groups, strict=True):
        for axes, situation in zip(line, SITUATIONS, strict=True):
            panel_runs = [run for run in runs if (run.topology, run.traffic) == group and run.situation == situation]
            for scheme in schemes:
                points = _points([run for run in panel_runs if run.scheme == scheme])
                number = bases.index(scheme.removesuffix(FROM))
                is_single = len(points) == 1
                if points:
                    (handles[scheme],) = axes.plot(
                        *zip(*points, strict=True), color=COLOURS[number % len(COLOURS)],
                        linestyle="--" if scheme in (COLD, WARM) else "-",
                        marker="*" if is_single else MARKERS[number % len(MARKERS)], markersize=11 if is_single else 4,
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


def _points(runs: list[RaceRun]) -> list[tuple[float, float]]:
    """(ms, %) median over the matrices, one for each target, forward in time.

    The gap is the narrowest that is reached by then: times of runs to neighbouring targets may be the wrong way round,
    by chance.
    """
    kept = [run for run in runs if not math.isnan(run.gap)]
    targets = dict.fromkeys("none" if math.isnan(run.target) else run.target for run in kept)
    points = []
    for target in targets:
        group = [run for run in kept if ("none" if math.isnan(run.target) else run.target) == target]
        gap = float(np.median([run.gap for run in group]))
        points.append((1e3 * float(np.median([run.seconds for run in group])), 100 * max(gap, _MIN_DRAWN_GAP)))
    points.sort()
    gaps = itertools.accumulate((gap for _, gap in points), min)
    return [(milliseconds, gap) for (milliseconds, _), gap in zip(points, gaps, strict=True)]
