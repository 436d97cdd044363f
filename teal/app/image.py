"""Image files of charts, drawn by matplotlib without a display.

Entry points: :func:`plot_panels`, :func:`save_charts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from teal.app.chart import Chart, Series, Styles

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", ":", "-.")
# Line width in a file (points) of a line that is one pixel wide on a page.
_POINTS_PER_PIXEL = 0.5
# Width and height of one chart.
_PANEL_INCHES = (5.5, 4.2)
_FORMATS = (".svg", ".pdf")
# Position of a legend below the axes, as a fraction of their size.
_BELOW_AXES = (0.5, -0.16)
_LEGEND_COLUMNS = 3
# Maximum characters of a line of the legend, including marks, in the width of one chart.
_LEGEND_LETTERS = 80
# Width of the mark of a series and the space around it, in characters.
_MARK_LETTERS = 8


def plain_log_axis(axis: Axis, subs: tuple[float, ...] = (1.0,)) -> None:
    """Set the ticks of a logarithmic matplotlib axis to multiples of powers of ten, and write them
    as plain numbers, such as 0.01, 10 and 2000.

    Args:
        axis: the axis (written).
        subs: multiples of each power of ten that have a tick.
    """
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def draw(axes: Axes, chart: Chart, styles: Styles) -> None:
    """Draw a chart into axes.

    Args:
        axes: matplotlib axes (written).
        chart: series and labels of the axes.
        styles: colour and marks of each scheme.
    """
    # Series; the legend has those that are not small points, by scheme.
    legend_handles: dict[str, Artist] = {}
    for series in chart.series:
        handle = _draw_series(axes, series, styles, is_time=chart.x_scale == "time")
        if series.kind != "points":
            legend_handles[series.scheme] = handle
    # Labels, ranges and ticks of the axes; less than two decades have ticks at 2 and 5, too.
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.set_title(_literal(chart.title), fontsize="medium")
    if chart.y_range is not None:
        axes.set_ylim(*chart.y_range)
    if chart.x_scale == "log":
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        plain_log_axis(axes.xaxis, subs=(1.0, 2.0, 5.0) if high < 100 * low else (1.0,))
    if chart.x_scale == "time":
        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    # Legend below the axes, in as many columns as the longest label permits.
    if legend_handles:
        labels = [_shortened(name, _LEGEND_LETTERS - _MARK_LETTERS) for name in legend_handles]
        max_characters = max(map(len, labels)) + _MARK_LETTERS
        axes.legend(
            legend_handles.values(),
            map(_literal, labels),
            loc="upper center",
            bbox_to_anchor=_BELOW_AXES,
            ncols=min(len(legend_handles), _LEGEND_COLUMNS, _LEGEND_LETTERS // max_characters),
            fontsize="small",
            frameon=False,
        )


def _shortened(text: str, max_letters: int) -> str:
    """Return a text of at most ``max_letters`` characters: a longer one gets an ellipsis in its
    middle.
    """
    if len(text) <= max_letters:
        return text
    head_length = (max_letters - 1) // 2
    tail_length = max_letters - 1 - head_length
    return text[:head_length] + "\N{HORIZONTAL ELLIPSIS}" + text[len(text) - tail_length :]


def _literal(text: str) -> str:
    """Return a text with dollar signs escaped, between which matplotlib would read formulas."""
    return text.replace("$", r"\$")


def _draw_series(axes: Axes, series: Series, styles: Styles, *, is_time: bool) -> Artist:
    """Draw the points or the line of a series; return its artist, for the legend.

    Args:
        axes: matplotlib axes (written).
        series: points of one scheme.
        styles: colour and marks of each scheme.
        is_time: whether x values are times.
    """
    # Data and style.
    name = series.scheme
    colour = styles.colour(series.scheme)
    x = np.array(series.x, dtype="datetime64[s]") if is_time else series.x
    y = [np.nan if value is None else value for value in series.y]
    marker = styles.pick(name, MARKERS)
    # Marks or lines.
    match series.kind:
        case "points":
            return axes.scatter(x, y, s=9, alpha=0.25, color=colour, marker=marker, linewidths=0)
        case "mean":
            return axes.scatter(
                x,
                y,
                s=70,
                color=colour,
                marker=marker,
                edgecolors="black",
                linewidths=0.6,
                zorder=3,
            )
        # Lines, with marks for the kind "marked".
        case _:
            (line,) = axes.plot(
                x,
                y,
                styles.pick(name, _DASHES),
                color=colour,
                linewidth=_POINTS_PER_PIXEL * styles.width(name),
                marker=marker if series.kind == "marked" else None,
                markersize=5,
            )
            return line


def plot_panels(path: Path, rows: Sequence[tuple[str, Sequence[Chart]]]) -> None:
    """Write an image file with a row of charts for each network.

    Args:
        path: path of the file; its suffix decides the format.
        rows: name and charts of each network.
    """
    # A grid of axes with as many columns as the longest row.
    columns = max(len(charts) for _, charts in rows)
    figure = Figure(
        figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * len(rows)), layout="constrained"
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for row_axes, (network, charts) in zip(panels, rows, strict=True):
        styles = Styles(
            tuple(dict.fromkeys(series.scheme for chart in charts for series in chart.series))
        )
        for axes, chart in zip(row_axes, charts, strict=False):
            draw(axes, chart, styles)
            axes.set_title(f"{network}: {chart.title}", fontsize="medium")
        # Hide axes without a chart.
        for axes in row_axes[len(charts) :]:
            axes.set_visible(False)
    figure.savefig(path, dpi=150)


def save_charts(
    folder: Path,
    charts: Mapping[str, Sequence[Chart]],
    check: Callable[[Path, Sequence[str]], None],
) -> list[Path]:
    """Write every chart as SVG and PDF; return the paths of the files.

    Args:
        folder: folder of the files, created if it does not exist.
        charts: charts of each network, by its name.
        check: function that raises an error if files of these names must not be written into the
            folder.
    """
    # A scheme has one style in all charts.
    styles = Styles(
        tuple(
            dict.fromkeys(
                series.scheme
                for network_charts in charts.values()
                for chart in network_charts
                for series in chart.series
            )
        )
    )
    # Chart of each file: NETWORK-CHART.svg and .pdf.
    chart_of_file: dict[str, Chart] = {}
    for network, network_charts in charts.items():
        prefix = "".join(letter if letter.isalnum() else "-" for letter in network)
        chart_of_file |= {
            f"{prefix}-{chart.name}{suffix}": chart
            for chart in network_charts
            for suffix in _FORMATS
        }
    # Check the names of all files before any is written.
    check(folder, list(chart_of_file))
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in chart_of_file.items():
        figure = Figure(figsize=_PANEL_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.subplots(), chart, styles)
        figure.savefig(folder / name)
    return [folder / name for name in chart_of_file]
