"""The interactive charts of the report, as Plotly figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from teal.evaluation import Row
from teal.evaluation.cases import Protocol
from teal.network.traffic import spread
from teal.reports.plots import COLOURS
from teal.reports.table import Quality, by_level
from teal.runtime.arrays import FloatArray

_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
_DASHES = ("solid", "dash", "dot", "dashdot")
_MAX_POINTS = 400  # points of a scheme in a chart; more are thinned out evenly
_MIN_DRAWN_GAP = 1e-4  # per cent: smaller gaps are drawn at this one, since the axis is logarithmic
# Axis titles of the charts over levels.
_LEVEL_TITLES = {
    Protocol.FAILURES: "links failed, both directions",
    Protocol.NOISE: "noise, times the variance of changes",
    Protocol.SPATIAL: "share of the largest tenth of the demands",
    Protocol.SCALE: "demands times",
}
# Level under which the unchanged matrices appear in these charts.
_UNCHANGED_LEVEL = {Protocol.FAILURES: "0", Protocol.NOISE: "0", Protocol.SPATIAL: "unchanged", Protocol.SCALE: "1"}


class Charts:
    """The charts of one network; a scheme has one colour, symbol and dash in all of them.

    Args:
        rows: of the network.
        schemes: of the whole report, in whose order colours are assigned.
    """

    def __init__(self, rows: Sequence[Row], schemes: Sequence[str]) -> None:
        self._rows = [row for row in rows if row.usable]
        self._schemes = list(schemes)
        self._quality = Quality.of(rows[0].objective)
        self._levels, self._levels_with_failed = by_level(list(self._rows)), by_level(list(rows))

    def all(self) -> list[tuple[str, str, Any]]:
        """(title, caption, figure) of every chart for which there are rows."""
        offline = self._levels.get((Protocol.OFFLINE.value, ""), [])
        charts: list[tuple[str, str, Any]] = []
        if offline:
            has_several = len({row.index for row in offline}) > 1
            charts.append(
                (
                    f"{self._quality.label.capitalize()} against time",
                    "Small marks: matrices. Large marks: mean quality at median time (build and solve).",
                    self._against_time(offline),
                )
            )
            if has_several:
                charts.append(
                    (
                        "Gap by the best bound: share of matrices",
                        "Upper limit of the distance to the optimum, by the best bound of all schemes.",
                        self._distribution(offline, lambda r: 100 * max(r.gap_known, 0.0), "gap (%)", _MIN_DRAWN_GAP),
                    )
                )
                charts.append(
                    (
                        "Time: share of matrices",
                        "Build and solve.",
                        self._distribution(offline, lambda r: 1e3 * r.total_s, "time (ms)", 0.0),
                    )
                )
        for (protocol, level), rows in self._levels.items():
            if protocol == Protocol.ONLINE.value:
                charts.append(
                    (
                        f"Online: an interval of {level}",
                        "Until a scheme has computed, its last allocation carries min(new demand, old flow).",
                        self._timeline(rows),
                    )
                )
        for kind, name in _LEVEL_TITLES.items():
            if any(protocol == kind.value for protocol, _ in self._levels):
                charts.append(
                    (
                        f"{kind.value.capitalize()}",
                        f"Mean over matrices and draws; {name}. No mark where a scheme failed.",
                        self._by_level(kind),
                    )
                )
        return charts

    def _against_time(self, rows: list[Row]) -> Any:
        figure = _figure("time (ms)", self._quality.label, log=True)
        for scheme, scheme_rows in _by_scheme(rows).items():
            style = self._style(scheme)
            times = _array(scheme_rows, lambda r: 1e3 * r.total_s)
            values = _array(scheme_rows, self._quality.of_row)
            drawn = spread(np.arange(len(scheme_rows)), _MAX_POINTS)
            figure.add_scatter(
                x=times[drawn], y=values[drawn], mode="markers", legendgroup=scheme, showlegend=False, hoverinfo="skip",
                marker={**style, "size": 4, "opacity": 0.35},
            )  # fmt: skip
            figure.add_scatter(
                x=[np.median(times)], y=[values.mean()], mode="markers", name=scheme, legendgroup=scheme,
                marker={**style, "size": 13, "line": {"width": 1, "color": "black"}},
                hovertemplate="%{y:.3f}, %{x:.3g} ms<extra>" + _safe(scheme) + "</extra>",
            )  # fmt: skip
        return figure

    def _distribution(self, rows: list[Row], number: Callable[[Row], float], label: str, minimum: float) -> Any:
        figure = _figure(label, "share of matrices (%)", log=True)
        figure.update_yaxes(range=[0, 103])
        for scheme, scheme_rows in _by_scheme(rows).items():
            values = np.sort(np.maximum(_array(scheme_rows, number), minimum))
            values = values[~np.isnan(values)]
            if len(values):
                drawn = spread(np.arange(len(values)), _MAX_POINTS)
                share = 100 * (drawn + 1) / len(values)
                values = values[drawn]
                steps = np.concatenate([[0.0], np.repeat(share, 2)[:-1]])
                self._line(figure, scheme, np.repeat(values, 2), steps, markers=False)
        return figure

    def _timeline(self, rows: list[Row]) -> Any:
        figure = _figure("", self._quality.label)
        for scheme, scheme_rows in _by_scheme(rows).items():
            times = [row.timestamp for row in scheme_rows]
            self._line(figure, scheme, times, _array(scheme_rows, self._quality.of_row), markers=False)
        return figure

    def _by_level(self, protocol: Protocol) -> Any:
        unchanged = {_UNCHANGED_LEVEL[protocol]: self._levels.get((Protocol.OFFLINE.value, ""), [])}
        levels = unchanged | {level: rows for (kind, level), rows in self._levels.items() if kind == protocol.value}
        if protocol is Protocol.SCALE:
            levels = dict(sorted(levels.items(), key=lambda item: float(item[0])))
        figure = _figure(_LEVEL_TITLES[protocol], self._quality.label)
        figure.update_xaxes(type="category")
        for scheme in self._schemes:
            values = [
                _array([row for row in rows if row.scheme == scheme], self._quality.of_row) for rows in levels.values()
            ]
            # A mean over fewer cases would favour a scheme that fails the hard ones.
            counts = [len({(row.index, row.draw) for row in self._all_rows(protocol, level)}) for level in levels]
            is_complete = [len(v) == count > 0 for v, count in zip(values, counts, strict=True)]
            if any(is_complete):
                means = [float(v.mean()) if whole else None for v, whole in zip(values, is_complete, strict=True)]
                self._line(figure, scheme, list(levels), means, markers=True)
        return figure

    def _all_rows(self, protocol: Protocol, level: str) -> list[Row]:
        """The rows of a level, including failed ones; those of unchanged matrices for the unchanged level."""
        if level == _UNCHANGED_LEVEL[protocol]:
            return self._levels_with_failed.get((Protocol.OFFLINE.value, ""), [])
        return self._levels_with_failed.get((protocol.value, level), [])

    def _line(self, figure: Any, scheme: str, x: Any, y: Any, *, markers: bool) -> None:
        style = self._style(scheme)
        figure.add_scatter(
            x=x, y=y, name=scheme, mode="lines+markers" if markers else "lines", marker={**style, "size": 7},
            line={"color": style["color"], "width": 1.6, "dash": self._dash(scheme)},
            hovertemplate="%{y:.3f}<extra>" + _safe(scheme) + "</extra>",
        )  # fmt: skip

    def _style(self, scheme: str) -> dict[str, Any]:
        number = self._schemes.index(scheme)
        turn = number // len(COLOURS)  # schemes with the same colour get different symbols
        return {"color": COLOURS[number % len(COLOURS)], "symbol": _SYMBOLS[(number + turn) % len(_SYMBOLS)]}

    def _dash(self, scheme: str) -> str:
        return _DASHES[self._schemes.index(scheme) // len(COLOURS) % len(_DASHES)]


def _figure(x: str, y: str, *, log: bool = False) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        margin={"l": 58, "r": 10, "t": 10, "b": 46},
        height=400,
        hovermode="closest",
        legend={"orientation": "h", "y": -0.22, "yanchor": "top", "font": {"size": 11}},
        font={"size": 12},
    )
    figure.update_xaxes(title=x, type="log" if log else None, automargin=True)
    if log:
        figure.update_xaxes(dtick=1, exponentformat="none", minor={"showgrid": True})
    figure.update_yaxes(title=y, automargin=True)
    return figure


def _by_scheme(rows: list[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.scheme, []).append(row)
    return groups


def _array(rows: Sequence[Row], number: Callable[[Row], float]) -> FloatArray:
    return np.array([number(row) for row in rows], np.float64)


def _safe(text: str) -> str:
    """Escape a text for Plotly, which interprets some HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
