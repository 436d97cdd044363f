"""Self-contained HTML page with tables, charts (Plotly) and network maps.

Entry point: :func:`write_page`.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from teal.app.chart import Chart, Series, Styles
from teal.app.table import Table
from teal.app.web import network_map_js, plotly_js

_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
_DASHES = ("solid", "dash", "dot", "dashdot")
# Margin at both ends of a logarithmic axis: fraction of its range, and minimum in decades.
_LOG_MARGIN_SHARE = 0.04
_MIN_LOG_MARGIN = 0.02
# Maximum range of an axis with ticks at 1, 2 and 5, in decades.
_FEW_DECADES = 1.5
# Maximum number of category labels on an axis.
_MAX_NAMES = 30
# Rotation of category labels, degrees.
_NAME_ANGLE = -60
_AXIS_TYPES = {"linear": "linear", "log": "log", "category": "category", "time": "date"}


def figure(chart: Chart, styles: Styles) -> dict[str, Any]:
    """Return the Plotly figure (data and layout) of a chart.

    The script of the page (report.js) sets colours of text, axes and background.

    Args:
        chart: series and axes.
        styles: colour and marks of each scheme.
    """
    # Legend, below the plot at first; positions are fractions of the plot's height, margins pixels.
    legend: dict[str, Any] = {"orientation": "h", "y": -0.22, "yanchor": "top"}
    top_margin = 28
    if chart.x_scale == "category":
        # The legend is above the plot, since long names are below it.
        legend |= {"y": 1.02, "yanchor": "bottom"}
        top_margin = 56
    # Vertical axis, with the range of the chart if it has one.
    y_axis: dict[str, Any] = {"title": {"text": chart.y_label}, "automargin": True}
    if chart.y_range is not None:
        y_axis["range"] = list(chart.y_range)
    # The legend names a scheme once: its small points only if it has no mean.
    has_mean = {series.scheme for series in chart.series if series.kind == "mean"}
    # The hover text has one point of a chart with points, else all lines at one x.
    return {
        "data": [
            _trace(
                series,
                styles,
                chart,
                is_named=series.kind != "points" or series.scheme not in has_mean,
            )
            for series in chart.series
        ],
        "layout": {
            "margin": {"l": 58, "r": 10, "t": top_margin, "b": 46},
            "hovermode": "closest"
            if any(series.kind == "points" for series in chart.series)
            else "x unified",
            "legend": {**legend, "font": {"size": 11}},
            "font": {"size": 12},
            "xaxis": _x_axis(chart),
            "yaxis": y_axis,
        },
    }


def _x_axis(chart: Chart) -> dict[str, Any]:
    """Return Plotly's settings of the horizontal axis of a chart, a dict for JSON."""
    x_axis: dict[str, Any] = {
        "title": {"text": chart.x_label},
        "type": _AXIS_TYPES[chart.x_scale],
        "automargin": True,
        "nticks": 8,
        "tickangle": 0,
    }
    if chart.x_scale == "category":
        # Rotate category labels, since names such as those of cables are long.
        x_axis |= {"nticks": _MAX_NAMES, "tickangle": _NAME_ANGLE, "tickfont": {"size": 10}}
    if chart.x_scale == "log":
        x_axis |= {
            "exponentformat": "none",
            # D1: thin lines at 1, 2, ..., 9 times each power of ten.
            "minor": {"showgrid": True, "dtick": "D1"},
            **_log_range(chart),
        }
    return x_axis


def _log_range(chart: Chart) -> dict[str, Any]:
    """Return Plotly's settings of a logarithmic axis: range with a margin, so that no line lies on
    the border, and ticks at powers of ten, also at 2 and 5 times them if the range is short.
    """
    values = [x for series in chart.series for x in series.x if x is not None and x > 0]
    if not values:
        return {}
    log_min = math.log10(min(values))
    log_max = math.log10(max(values))
    margin = max(_MIN_LOG_MARGIN, _LOG_MARGIN_SHARE * (log_max - log_min))
    return {
        "range": [log_min - margin, log_max + margin],
        # D2: ticks at 1, 2 and 5 times each power of ten.
        "dtick": 1 if log_max - log_min > _FEW_DECADES else "D2",
    }


def _trace(series: Series, styles: Styles, chart: Chart, *, is_named: bool) -> dict[str, Any]:
    """Return the Plotly trace of a series.

    Args:
        series: points of one scheme.
        styles: colour and marks of each scheme.
        chart: chart of the series.
        is_named: whether the legend has an entry for the series.
    """
    # Attributes of all kinds of series.
    name = series.scheme
    colour = styles.colour(series.scheme)
    marker: dict[str, Any] = {"color": colour, "symbol": styles.pick(name, _SYMBOLS)}
    hover = "%{y:.4~g}"
    if chart.x_scale not in ("category", "time") and series.kind == "points":
        hover += f", %{{x:.3~g}} {_safe(chart.x_label)}"
    trace: dict[str, Any] = {
        "type": "scatter",
        "name": name,
        "legendgroup": name,
        "showlegend": is_named,
        "x": list(series.x),
        "y": list(series.y),
        "marker": marker,
        "hovertemplate": hover + f"<extra>{_safe(name)}</extra>",
    }
    # Marks or lines.
    match series.kind:
        case "points":
            return trace | {"mode": "markers", "marker": marker | {"size": 5, "opacity": 0.6}}
        case "mean":
            return trace | {
                "mode": "markers",
                "marker": marker | {"size": 13, "line": {"width": 1, "color": "#808080"}},
            }
        case _:
            line = {
                "color": colour,
                "width": styles.width(name),
                "dash": styles.pick(name, _DASHES),
            }
            mode = "lines+markers" if series.kind == "marked" else "lines"
            return trace | {"mode": mode, "line": line, "marker": marker | {"size": 7}}


def _safe(text: str) -> str:
    """Return a text with & and < escaped, since Plotly interprets some HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


_ASSETS = Path(__file__).parent / "assets"


@dataclasses.dataclass(frozen=True, eq=False)
class Section:
    """Section of an HTML page about one network: its table, charts and map.

    Attributes:
        title: name of the network, with that of the traffic if the page has several sections of one
            network.
        facts: a line about the network.
        traffic: name of the traffic.
        table: table of results; None for none.
        charts: charts, in their order on the page.
        notes: reasons of failed schemes.
        map: data of the map in report.js: positions, links, and utilisations by case and scheme;
            None for no map.
        map_first: whether the map is above the table.
        findings: sentences about the results.
        case_label: label of the list of cases on the map.
        scheme_label: label of the list of schemes on the map.
    """

    title: str
    facts: str
    traffic: str
    table: Table | None = None
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()
    map: dict[str, Any] | None = None
    map_first: bool = False
    findings: Sequence[str] = ()
    case_label: str = "Matrix"
    scheme_label: str = "Scheme"


def write_page(path: Path, heading: str, introduction: str, sections: Sequence[Section]) -> None:
    """Write an HTML page that includes all scripts, such as Plotly's (4.5 MB), so that it loads
    nothing from the network.

    Args:
        path: path of the file.
        heading: heading of the page.
        introduction: a paragraph; text between backquotes is shown as code.
        sections: one or more sections, each about one network.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS), autoescape=True, trim_blocks=True
    )
    # Figures of the charts, by the id of their HTML element; a scheme has one style in all of them.
    styles = Styles(
        tuple(
            dict.fromkeys(
                series.scheme
                for section in sections
                for chart in section.charts
                for series in chart.series
            )
        )
    )
    figures = {
        f"chart-{section_index}-{chart_index}": figure(chart, styles)
        for section_index, section in enumerate(sections)
        for chart_index, chart in enumerate(section.charts)
    }
    # Render the template; its variables are the keywords.
    page = environment.get_template("report.html").render(
        heading=heading,
        introduction=introduction.split("`"),
        sections=sections,
        made=f"{version('teal-te')} on {datetime.date.today().isoformat()}",
        style=(_ASSETS / "report.css").read_text(encoding="utf-8"),
        script=(_ASSETS / "report.js").read_text(encoding="utf-8"),
        plotly=plotly_js(),
        network_map=network_map_js(),
        figures=figures,
        maps={
            f"network-{section_index}": section.map
            for section_index, section in enumerate(sections)
            if section.map is not None
        },
    )
    path.write_text(page, encoding="utf-8")
