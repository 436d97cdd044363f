"""The result of `teal plan` as tables and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.markup import escape
from rich.table import Table

from teal.evaluation.plan import Outage, by_failure, loss
from teal.objectives import Objective
from teal.reports.table import percent

_MAX_FAILURES = 25  # rows of the plot


def render_plan(outages: Sequence[Outage], worst: int, objective: Objective) -> list[Table]:
    """For each kind a table of the ``worst`` failures, each at the matrix that it costs most."""
    tables, ranked = [], by_failure(outages, objective)
    for kind in dict.fromkeys(o.kind for o in outages if o.failure):
        failures = [one for one in ranked if one.kind == kind]
        costly = sum(one.worst > 0 or one.stranded > 0 for one in failures)
        table = Table(title=f"{costly} of {len(failures)} {kind}s cost something certainly", title_justify="left")
        for column in (kind, objective.rules.loss_label, "at most", "at", "mean", "stranded"):
            table.add_column(column, justify="left" if column in (kind, "at") else "right")
        for c in failures[:worst]:
            table.add_row(
                escape(c.failure), percent(c.worst), percent(c.worst_at_most), minute(c.worst_at), percent(c.mean),
                percent(c.stranded),
            )  # fmt: skip
        tables.append(table)
    return tables


def minute(timestamp: str) -> str:
    """A time without its seconds, where these are 0."""
    return timestamp.removesuffix(":00").replace("T", " ") if timestamp.count(":") == 2 else timestamp


def plot_plan(path: Path, outages: Sequence[Outage], objective: Objective) -> None:
    """A heat map of what failures cost: failures down, time across; the worst ones only."""
    failures = by_failure(outages, objective)[:_MAX_FAILURES]
    rows = {failure.failure: number for number, failure in enumerate(failures)}
    columns = {index: number for number, index in enumerate(dict.fromkeys(outage.index for outage in outages))}
    times = {outage.index: outage.timestamp for outage in outages}
    lost = np.zeros((len(rows), len(columns)))
    for outage in outages:
        if outage.failure in rows:
            cell = rows[outage.failure], columns[outage.index]
            lost[cell] = 100 * np.nan_to_num(loss(outage, objective))
    figure = Figure(figsize=(11, 1.6 + 0.26 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(lost, aspect="auto", interpolation="nearest", cmap="magma_r", vmin=0)
    axes.set_yticks(range(len(rows)), list(rows), fontsize="small")
    shown = np.unique(np.linspace(0, len(columns) - 1, 7).round().astype(int)).tolist()
    indices = list(columns)
    axes.set_xticks(shown, [times[indices[i]].replace("T", "\n") for i in shown], fontsize="small")
    figure.colorbar(image, ax=axes, label=f"{objective.rules.loss_label} (%)", pad=0.01)
    axes.set_title(f"the {len(rows)} failures that cost most, over {len(columns)} matrices", fontsize="medium")
    figure.savefig(path, dpi=140)
