"""Plots for notebooks: each takes what the library returns and gives matplotlib axes, as
``teal.plot``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize

from teal.app.chart import COLOURS
from teal.app.image import plain_log_axis
from teal.app.web.layout import positions
from teal.errors import InputError
from teal.problem import Allocation, Problem

# Maximum number of nodes of a network whose names are drawn.
_MAX_NAMES = 40
# Share of the drawing's size by which the two directions of a cable are apart.
_OFFSET_SHARE = 0.006


def network(
    problem: Problem, allocation: Allocation | None = None, row: int = 0, ax: Axes | None = None
) -> Axes:
    """Draw the network, its links coloured by utilisation.

    Args:
        problem: B matrices.
        allocation: allocation of the problem; None to draw the network alone.
        row: number of one of the B matrices.
        ax: axes to draw into; None for new ones.

    Raises:
        InputError: an allocation over paths of its own, which these splits are not over.
    """
    topology = problem.topology
    ax = _axes(ax, (8, 5.5))
    # Draw each direction beside the line between the nodes.
    where = positions(topology.coordinates, topology.link_source, topology.link_target)
    a = where[topology.link_source]
    b = where[topology.link_target]
    along = b - a
    normal = (
        np.stack([along[:, 1], -along[:, 0]], 1) / np.maximum(np.hypot(*along.T), 1e-12)[:, None]
    )
    shift = _OFFSET_SHARE * np.ptp(where, 0).max() * normal
    lines = LineCollection(np.stack([a + shift, b + shift], 1).tolist(), linewidths=1.8, zorder=1)
    # Colour the links by utilisation.
    if allocation is None:
        lines.set_color("#8a94a0")
    else:
        if allocation.paths is not None:
            raise InputError(
                "plot.network", "allocation", "splits over the problem's paths", "paths of its own"
            )
        several = problem.row(row).to(allocation.splits.dtype)
        utilisation = several.utilisation(allocation.splits[row : row + 1])[0].cpu().numpy()
        lines.set_array(100 * utilisation)
        lines.set_cmap("viridis_r")
        lines.set_norm(Normalize(0, max(100.0, float(100 * utilisation.max(initial=0)))))
        ax.figure.colorbar(lines, ax=ax, label="link utilisation (%)", pad=0.02)
    # Draw links, nodes and names.
    ax.add_collection(lines)
    ax.scatter(where[:, 0], where[:, 1], s=18, color="#1c2430", zorder=2)
    if topology.num_nodes <= _MAX_NAMES:
        for name, (x, y) in zip(topology.node_names, where.tolist(), strict=True):
            ax.annotate(name, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=7)
    ax.set_title(topology.name)
    ax.set_axis_off()
    ax.autoscale()
    return ax


def gap_over_time(
    runs: Mapping[str, Sequence[tuple[float, float]]], ax: Axes | None = None
) -> Axes:
    """Certified gap against time, both logarithmic, a line for each name.

    >>> points = []
    >>> begin = time.perf_counter()
    >>> teal.solve(problem, gap=1e-4, report=lambda _, gap: points.append((time.perf_counter() -
    begin, gap)))
    >>> teal.plot.gap_over_time({"PDHG": points})

    Args:
        runs: by name, points of seconds and certified gap (a share).
        ax: axes to draw into; None for new ones.
    """
    ax = _axes(ax, (6, 4))
    for number, (name, points) in enumerate(runs.items()):
        if points:
            seconds, gaps = np.array(points, float).T
            ax.plot(
                1e3 * seconds,
                100 * gaps,
                marker="o",
                markersize=4,
                color=COLOURS[number % len(COLOURS)],
                label=name,
            )
    ax.set(xscale="log", yscale="log", xlabel="time (ms)", ylabel="certified gap (%)")
    plain_log_axis(ax.xaxis, subs=(1.0, 2.0, 5.0))
    plain_log_axis(ax.yaxis)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.lines:
        ax.legend(fontsize="small")
    return ax


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The axes given, or those of a new figure of pyplot, which notebooks show."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    figure_and_axes: Any = plt.subplots(figsize=size, layout="constrained")
    axes: Axes = figure_and_axes[1]
    return axes
