"""The course of an audit as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from teal.evaluation.audit import Generation
from teal.reports.chart import COLOURS


def plot_audit(path: Path, generations: Sequence[Generation], scheme: str, measure: str) -> None:
    """Proven loss against the number of matrices that were tried."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.step(
        [one.evaluations for one in generations], [100 * one.loss for one in generations], where="post",
        color=COLOURS[0], marker="o", markersize=3,
    )  # fmt: skip
    axes.set_xlabel("matrices tried")
    axes.set_ylabel(f"proven loss (% of the {'optimum' if measure == 'optimum' else 'sum of capacities'})")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_title(f"worst demands for {scheme}", fontsize="medium")
    figure.savefig(path, dpi=140)
