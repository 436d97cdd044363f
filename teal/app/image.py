"""Charts as image files, by matplotlib without a display."""

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
# Points of a line in a file for each pixel on a page.
_POINTS_PER_PIXEL = 0.5
# Width and height of one plot.
_PANEL_INCHES = (5.5, 4.2)
_FORMATS = (".svg", ".pdf")
# Position of a legend, in parts of the axes, where it covers no line.
_BELOW_AXES = (0.5, -0.16)
_LEGEND_COLUMNS = 3
# Letters of a line of the legend, with its marks, in the width of one plot.
_LEGEND_LETTERS = 80
# Width of the mark of a series and the space around it, in letters.
_MARK_LETTERS = 8


def plain_log_axis(axis: Axis, subs: tuple[float, ...] = (1.0,)) -> None:
    """Ticks of a logarithmic axis at ``subs`` of each decade, written as 0.01, 10, 2000."""
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def draw(axes: Axes, chart: Chart, styles: Styles) -> None:
    """Draw a chart into axes."""
    # Series.
    drawn: dict[str, Artist] = {}
    for series in chart.series:
        handle = _draw_series(axes, series, styles, is_time=chart.x_scale == "time")
        if series.kind != "points":
            drawn[series.scheme] = handle
    # Axes.
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
    # Legend below the axes, in columns of equal width.
    if drawn:
        labels = [_shortened(name, _LEGEND_LETTERS - _MARK_LETTERS) for name in drawn]
        widest = max(map(len, labels)) + _MARK_LETTERS
        axes.legend(
            drawn.values(),
            map(_literal, labels),
            loc="upper center",
            bbox_to_anchor=_BELOW_AXES,
            ncols=min(len(drawn), _LEGEND_COLUMNS, _LEGEND_LETTERS // widest),
            fontsize="small",
            frameon=False,
        )


def _shortened(text: str, letters: int) -> str:
    """A text of so many letters at most, without its middle if it has more."""
    if len(text) <= letters:
        return text
    before = (letters - 1) // 2
    return text[:before] + "\N{HORIZONTAL ELLIPSIS}" + text[len(text) - (letters - 1 - before) :]


def _literal(text: str) -> str:
    """The text without formulas, which matplotlib reads between dollar signs."""
    return text.replace("$", r"\$")


def _draw_series(axes: Axes, series: Series, styles: Styles, *, is_time: bool) -> Artist:
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
    """A file with a row of charts for each network.

    Args:
        path: path of the file; its ending says which format.
        rows: name of each network, and its charts, as many for each.
    """
    columns = max(len(charts) for _, charts in rows)
    figure = Figure(
        figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * len(rows)), layout="constrained"
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for line, (network, charts) in zip(panels, rows, strict=True):
        styles = Styles(tuple(dict.fromkeys(s.scheme for chart in charts for s in chart.series)))
        for axes, chart in zip(line, charts, strict=False):
            draw(axes, chart, styles)
            axes.set_title(f"{network}: {chart.title}", fontsize="medium")
        for axes in line[len(charts) :]:
            axes.set_visible(False)
    figure.savefig(path, dpi=150)


def save_charts(
    folder: Path,
    charts: Mapping[str, Sequence[Chart]],
    check: Callable[[Path, Sequence[str]], None],
) -> list[Path]:
    """Write every chart as SVG and PDF, for papers; returns the files.

    Args:
        folder: is made if it does not exist.
        charts: charts of each network, by its name.
        check: raises an error if files of these names must not be written there.
    """
    styles = Styles(
        tuple(
            dict.fromkeys(
                s.scheme
                for of_network in charts.values()
                for chart in of_network
                for s in chart.series
            )
        )
    )
    named: dict[str, Chart] = {}
    for network, of_network in charts.items():
        prefix = "".join(letter if letter.isalnum() else "-" for letter in network)
        named |= {
            f"{prefix}-{chart.name}{ending}": chart for chart in of_network for ending in _FORMATS
        }
    check(folder, list(named))
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in named.items():
        figure = Figure(figsize=_PANEL_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.subplots(), chart, styles)
        figure.savefig(folder / name)
    return [folder / name for name in named]
