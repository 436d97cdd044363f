"""The result of `teal plan` as tables and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from teal.evaluation.plan import Outage, by_cable, loss, severity
from teal.reports.table import percent

_MAX_CABLES = 25  # rows of the plot


def render_plan(outages: Sequence[Outage], worst: int, *, higher_is_better: bool) -> list[Table]:
    """A table of the ``worst`` cases, and one of as many cables."""
    change = "lost" if higher_is_better else "utilisation up by"
    cases = Table(title=f"worst cases of {len(outages):,}", title_justify="left")
    for column in ("cable", "at", change, "stranded", "satisfied demand", "certified gap"):
        cases.add_column(column, justify="left" if column in ("cable", "at") else "right")
    failures = sorted((o for o in outages if o.a), key=lambda o: severity(o, higher_is_better))[::-1]
    for o in failures[:worst]:
        lost = loss(o, higher_is_better=higher_is_better)
        cases.add_row(
            escape(f"{o.a} - {o.b}"), o.timestamp, percent(lost), percent(o.stranded), percent(o.satisfied_demand),
            percent(o.gap),
        )  # fmt: skip
    cables = Table(title="worst cables", title_justify="left")
    for column in ("cable", f"{change}, worst", "at", f"{change}, mean", "stranded, mean"):
        cables.add_column(column, justify="left" if column in ("cable", "at") else "right")
    for c in by_cable(outages, higher_is_better=higher_is_better)[:worst]:
        cables.add_row(escape(f"{c.a} - {c.b}"), percent(c.worst), c.worst_at, percent(c.mean), percent(c.stranded))
    return [cases, cables]


def plot_plan(path: Path, outages: Sequence[Outage], *, higher_is_better: bool) -> None:
    """A heat map of what failures cost: cables down, time across; the worst cables only."""
    cables = by_cable(outages, higher_is_better=higher_is_better)[:_MAX_CABLES]
    rows = {(cable.a, cable.b): number for number, cable in enumerate(cables)}
    columns = {index: number for number, index in enumerate(dict.fromkeys(outage.index for outage in outages))}
    times = {outage.index: outage.timestamp for outage in outages}
    lost = np.zeros((len(rows), len(columns)))
    for outage in outages:
        if (outage.a, outage.b) in rows:
            cell = rows[outage.a, outage.b], columns[outage.index]
            lost[cell] = 100 * np.nan_to_num(loss(outage, higher_is_better=higher_is_better))
    figure = Figure(figsize=(11, 1.6 + 0.26 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(lost, aspect="auto", interpolation="nearest", cmap="magma_r", vmin=0)
    axes.set_yticks(range(len(rows)), [f"{a} - {b}" for a, b in rows], fontsize="small")
    shown = np.unique(np.linspace(0, len(columns) - 1, 7).round().astype(int)).tolist()
    indices = list(columns)
    axes.set_xticks(shown, [times[indices[i]].replace("T", "\n") for i in shown], fontsize="small")
    label = "of the value lost (%)" if higher_is_better else "largest utilisation up by (%)"
    figure.colorbar(image, ax=axes, label=label, pad=0.01)
    axes.set_title(f"the {len(rows)} cables whose failure costs most, over {len(columns)} matrices", fontsize="medium")
    figure.savefig(path, dpi=140)
