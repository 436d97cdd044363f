"""Draw the pictures of :mod:`engine`: gap against time, and the time of each solver as bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from timing import State

_MIN_GAP = 1e-8  # smaller gaps are drawn at this height
_MARKERS = {"HiGHS": "^", "Gurobi": "v", "Clarabel": "s", "PDLP": "D"}
# Bars of the overview: column of engine-summary.csv, label, colour.
_BARS = (
    ("Teal cold to 0.01", "Teal, gap certified to be at most 1%", "#00796b"),
    ("Teal cold to 1e-06", "Teal, gap certified to be at most 1e-6", "#80cbc4"),
    ("HiGHS cold, exact", "HiGHS, its fastest setting, exact to 1e-6, solver alone", "#757575"),
    ("PDLP cold", "PDLP, tolerance of 1e-3 on its residuals, solver alone", "#e0a030"),
)


def gap_against_time(file: Path, rows: Sequence[Any]) -> None:
    """Plot certified gap against time in a panel for each network: Teal as lines, each setting of
    another solver as a mark, which is filled for a warm start.

    Args:
        file: PNG file to write.
        rows: :class:`engine.Measured` of all networks.
    """
    names = list(dict.fromkeys(row.network for row in rows))
    num_columns = min(3, len(names))
    num_panel_rows = math.ceil(len(names) / num_columns)
    figure = Figure(figsize=(4.6 * num_columns, 3.6 * num_panel_rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(num_panel_rows, num_columns, squeeze=False)
    handles: dict[str, Any] = {}
    for axis, name in zip(panels.flat, names, strict=False):
        network_rows = [row for row in rows if row.network == name]
        handles |= _plot_network(axis, [row for row in network_rows if row.state == State.SOLVED])
        stopped_rows = [row for row in network_rows if row.state == State.STOPPED]
        stopped = ", ".join(dict.fromkeys(row.solver for row in stopped_rows))
        title = f"{name} (stopped: {stopped})" if stopped else name
        axis.set(xscale="log", yscale="log", title=title, xlabel="seconds", ylabel="certified gap")
        # The time axis has whole decades.
        low, high = axis.get_xlim()
        axis.set_xlim(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)))
        axis.grid(alpha=0.3)
    # Remove the unused panels.
    for axis in list(panels.flat)[len(names) :]:
        axis.remove()
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(file, dpi=130)


def _plot_network(axis: Any, solved: Sequence[Any]) -> dict[str, Any]:
    """Plot the solved rows of one network; return the artists by their label in the legend.

    Args:
        axis: axes of the panel.
        solved: :class:`engine.Measured` rows of the network that were solved.
    """
    handles: dict[str, Any] = {}
    for start, colour in (("cold", "C0"), ("warm", "C1")):
        teal_rows = [row for row in solved if row.solver == "Teal" and row.start == start]
        teal_rows.sort(key=lambda row: row.seconds)
        times = [row.seconds for row in teal_rows]
        gaps = [max(row.gap, _MIN_GAP) for row in teal_rows]
        (handles[f"Teal, {start}"],) = axis.plot(times, gaps, "o-", color=colour, ms=4)
    for number, (solver, marker) in enumerate(_MARKERS.items()):
        for start, style in (("cold", "none"), ("warm", "full")):
            points = [row for row in solved if row.solver == solver and row.start == start]
            if not points:
                continue
            (handles[f"{solver}, {start}, each setting"],) = axis.plot(
                [row.solver_s for row in points],
                [max(row.gap, _MIN_GAP) for row in points],
                marker,
                color=f"C{number + 2}",
                fillstyle=style,
                ms=6,
            )
    return handles


def overview(file: Path, lines: Sequence[Mapping[str, Any]], limit: float) -> None:
    """Draw the time of each solver on each network as a bar.

    A solver that was stopped has a hatched bar that ends at the limit; for a solver that was not
    run the words "not run" replace the bar.

    Args:
        file: PNG file to write.
        lines: rows of engine-summary.csv.
        limit: time limit of each solver, s.
    """
    figure = Figure(figsize=(9, 1.1 + 0.75 * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    shortest = min(
        float(line[column])
        for line in lines
        for column, _, _ in _BARS
        if _is_number(line.get(column, ""))
    )
    # On a logarithmic axis, bars begin at half of the shortest time.
    axis_start = shortest / 2
    for number, (column, label, colour) in enumerate(_BARS):
        # An invisible bar makes the entry of the legend.
        axis.barh([math.nan], [math.nan], color=colour, label=label)
        for row, line in enumerate(lines):
            text = str(line.get(column) or "not run")
            height = row + 0.2 * (number - 1.5)
            _draw_bar(axis, height, text, colour, axis_start, limit)
    labels = [f"{line['network']}\n{int(line['demands']):,} demands" for line in lines]
    axis.set_yticks(range(len(lines)), labels)
    axis.set(xscale="log", xlabel="seconds, cold start", xlim=(axis_start, limit * 3))
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(file, dpi=140)


def _draw_bar(
    axis: Any, height: float, text: str, colour: str, axis_start: float, limit: float
) -> None:
    """Draw one bar, with its time to the right of it.

    Args:
        axis: axes of the picture.
        height: middle of the bar, in rows.
        text: seconds, "> SECONDS" if the solver was stopped, or "not run".
        colour: colour of the solver.
        axis_start: left end of the time axis, s.
        limit: time at which solvers are stopped, s.
    """
    if text == "not run":
        axis.text(axis_start * 1.05, height, " not run", va="center", fontsize=7, color=colour)
        return
    is_stopped = text.startswith(">")
    seconds = limit if is_stopped else float(text)
    axis.barh(
        height,
        seconds - axis_start,
        0.18,
        left=axis_start,
        color=colour,
        hatch="//" if is_stopped else "",
        edgecolor="w",
    )
    label = f" > {limit:g} s" if is_stopped else f" {_time_text(seconds)}"
    axis.text(seconds, height, label, va="center", fontsize=7)


def _is_number(text: Any) -> bool:
    """Whether a cell is a finite number, and not ">LIMIT", "not run" or empty."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _time_text(seconds: float) -> str:
    """Return a time with two significant digits, in ms below 0.1 s."""
    return f"{1e3 * seconds:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s"
