"""Plots for notebooks (``teal.plot``): functions from results of the library to matplotlib axes."""

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
# Distance of each direction of a cable from the line between its nodes, as a fraction of the
# drawing's size.
_OFFSET_FRACTION = 0.006


def network(
    problem: Problem, allocation: Allocation | None = None, row: int = 0, ax: Axes | None = None
) -> Axes:
    """Draw the network, its links coloured by utilisation.

    Args:
        problem: problem of B matrices.
        allocation: allocation of the problem; None to draw the network alone.
        row: index of the matrix whose utilisation is drawn, 0 to B - 1.
        ax: axes to draw into; None for new ones.

    Raises:
        InputError: the allocation has other paths than the problem.
    """
    topology = problem.topology
    ax = _axes(ax, (8, 5.5))
    # (N, 2) positions of the nodes, and (E, 2) ends of the links.
    position = positions(topology.coordinates, topology.link_source, topology.link_target)
    start = position[topology.link_source]
    end = position[topology.link_target]
    # Draw each direction of a cable beside the line between its nodes: shift both ends along the
    # unit normal, (E, 2).
    direction = end - start
    normal = (
        np.stack([direction[:, 1], -direction[:, 0]], 1)
        / np.maximum(np.hypot(*direction.T), 1e-12)[:, None]
    )
    shift = _OFFSET_FRACTION * np.ptp(position, 0).max() * normal
    lines = LineCollection(
        np.stack([start + shift, end + shift], 1).tolist(), linewidths=1.8, zorder=1
    )
    # Colour the links by utilisation.
    if allocation is None:
        lines.set_color("#8a94a0")
    else:
        if allocation.paths is not None:
            raise InputError.invalid(
                "plot.network",
                "allocation",
                "the allocation has other candidate paths than the problem",
                "pass an allocation over the problem's paths",
            )
        # Utilisation of each link, (E,), by the splits of this matrix, (1, D, K).
        one_matrix = problem.row(row).to(allocation.splits.dtype)
        utilisation = one_matrix.utilisation(allocation.splits[row : row + 1])[0].cpu().numpy()
        lines.set_array(100 * utilisation)
        lines.set_cmap("viridis_r")
        lines.set_norm(Normalize(0, max(100.0, float(100 * utilisation.max(initial=0)))))
        ax.figure.colorbar(lines, ax=ax, label="link utilisation (%)", pad=0.02)
    # Draw links, nodes and names.
    ax.add_collection(lines)
    ax.scatter(position[:, 0], position[:, 1], s=18, color="#1c2430", zorder=2)
    if topology.num_nodes <= _MAX_NAMES:
        for name, (x, y) in zip(topology.node_names, position.tolist(), strict=True):
            ax.annotate(name, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=7)
    ax.set_title(topology.name)
    ax.set_axis_off()
    ax.autoscale()
    return ax


def gap_over_time(
    runs: Mapping[str, Sequence[tuple[float, float]]], ax: Axes | None = None
) -> Axes:
    """Plot certified gaps against time, on logarithmic axes, with a line for each run.

    >>> points = []
    >>> begin = time.perf_counter()
    >>> teal.solve(problem, gap=1e-4, report=lambda _, gap: points.append((time.perf_counter() -
    begin, gap)))
    >>> teal.plot.gap_over_time({"PDHG": points})

    Args:
        runs: by name of a run: pairs of seconds and certified relative gap (0.01 is 1%).
        ax: axes to draw into; None for new ones.
    """
    ax = _axes(ax, (6, 4))
    for index, (name, points) in enumerate(runs.items()):
        if points:
            seconds, gaps = np.array(points, float).T
            ax.plot(
                1e3 * seconds,
                100 * gaps,
                marker="o",
                markersize=4,
                color=COLOURS[index % len(COLOURS)],
                label=name,
            )
    # Logarithmic axes with plain numbers.
    ax.set(xscale="log", yscale="log", xlabel="time (ms)", ylabel="certified gap (%)")
    plain_log_axis(ax.xaxis, subs=(1.0, 2.0, 5.0))
    plain_log_axis(ax.yaxis)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    if ax.lines:
        ax.legend(fontsize="small")
    return ax


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """Return ``ax``, or for None the axes of a new pyplot figure, which notebooks show."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    figure_and_axes: Any = plt.subplots(figsize=size, layout="constrained")
    axes: Axes = figure_and_axes[1]
    return axes
