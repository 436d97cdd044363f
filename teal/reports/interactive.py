"""Charts as Plotly figures: plain data for the page's JavaScript, without Plotly's Python package."""

from __future__ import annotations

from typing import Any

from teal.reports.chart import Chart, Series, Styles

_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
_DASHES = ("solid", "dash", "dot", "dashdot")
_AXIS_TYPES = {"linear": "linear", "log": "log", "category": "category", "time": "date"}


def figure(chart: Chart, styles: Styles) -> dict[str, Any]:
    """The figure; colours of text, axes and background are the page's, see report.js."""
    x_axis: dict[str, Any] = {
        "title": {"text": chart.x_label}, "type": _AXIS_TYPES[chart.x_scale], "automargin": True, "nticks": 8,
        "tickangle": 0,
    }  # fmt: skip
    if chart.x_scale == "log":
        x_axis |= {"exponentformat": "none", "minor": {"showgrid": True}}
    y_axis: dict[str, Any] = {"title": {"text": chart.y_label}, "automargin": True}
    if chart.y_range is not None:
        y_axis["range"] = list(chart.y_range)
    has_mean = {series.scheme for series in chart.series if series.kind == "mean"}
    return {
        "data": [_trace(series, styles, is_named=series.kind != "points" or series.scheme not in has_mean)
                 for series in chart.series],
        "layout": {
            "margin": {"l": 58, "r": 10, "t": 10, "b": 46},
            "hovermode": "closest",
            "legend": {"orientation": "h", "y": -0.22, "yanchor": "top", "font": {"size": 11}},
            "font": {"size": 12},
            "xaxis": x_axis,
            "yaxis": y_axis,
        },
    }  # fmt: skip


def _trace(series: Series, styles: Styles, *, is_named: bool) -> dict[str, Any]:
    name, colour = series.scheme, styles.colour(series.scheme)
    marker: dict[str, Any] = {"color": colour, "symbol": styles.pick(name, _SYMBOLS)}
    trace: dict[str, Any] = {
        "type": "scatter", "name": name, "legendgroup": name, "showlegend": is_named, "x": list(series.x),
        "y": list(series.y), "marker": marker, "hovertemplate": f"%{{y:.4~g}}, %{{x}}<extra>{_safe(name)}</extra>",
    }  # fmt: skip
    match series.kind:
        case "points":
            return trace | {"mode": "markers", "marker": marker | {"size": 4, "opacity": 0.35}}
        case "mean":
            return trace | {
                "mode": "markers",
                "marker": marker | {"size": 13, "line": {"width": 1, "color": "#808080"}},
            }
        case _:
            line = {"color": colour, "width": styles.width(name), "dash": styles.pick(name, _DASHES)}
            mode = "lines+markers" if series.kind == "marked" else "lines"
            return trace | {"mode": mode, "line": line, "marker": marker | {"size": 7}}


def _safe(text: str) -> str:
    """Escape a text for Plotly, which interprets some HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
