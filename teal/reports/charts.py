"""The interactive charts of the report, as Plotly figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from teal.evaluation import Row
from teal.network.topology import FloatArray
from teal.network.traffic import spread
from teal.protocols import Protocol
from teal.reports.plots import COLOURS
from teal.reports.table import Quality, by_level

_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
_DASHES = ("solid", "dash", "dot", "dashdot")
_MOST_POINTS = 400  # of a scheme in a chart
_LEAST_GAP = 1e-4  # per cent; what is below is drawn there
_NAMES = {
    Protocol.FAILURES: "links failed, both directions",
    Protocol.NOISE: "noise, times the variance of changes",
    Protocol.SPATIAL: "share of the largest tenth of the demands",
    Protocol.SCALE: "demands times",
}
_PLAIN = {Protocol.FAILURES: "0", Protocol.NOISE: "0", Protocol.SPATIAL: "as it came", Protocol.SCALE: "1"}


class Charts:
    """The charts of one network; a scheme has one colour, symbol and dash in all of them.

    Args:
        rows: of the network.
        schemes: of the whole report, which says who has which colour.
    """

    def __init__(self, rows: Sequence[Row], schemes: Sequence[str]) -> None:
        self._rows = [row for row in rows if row.usable]
        self._schemes = list(schemes)
        self._quality = Quality.of(rows[0].objective)
        self._levels, self._all = by_level(list(self._rows)), by_level(list(rows))

    def all(self) -> list[tuple[str, str, Any]]:
        """(title, what it shows, figure) of every chart that there is something to draw for."""
        offline = self._levels.get((Protocol.OFFLINE.value, ""), [])
        charts: list[tuple[str, str, Any]] = []
        if offline:
            several = len({row.index for row in offline}) > 1
            charts.append(
                (
                    f"{self._quality.label.capitalize()} against time",
                    "One small mark a matrix, a large one for mean quality at median time (build and solve).",
                    self._against_time(offline),
                )
            )
            if several:
                charts.append(
                    (
                        "Gap by the best bound: share of matrices",
                        "How much of the optimum may be missing at most, by the best bound that any scheme has.",
                        self._distribution(offline, lambda r: 100 * max(r.gap_known, 0.0), "gap (%)", _LEAST_GAP),
                    )
                )
                charts.append(
                    (
                        "Time: share of matrices",
                        "Build and solve.",
                        self._distribution(offline, lambda r: 1e3 * r.taken_s, "time (ms)", 0.0),
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
        for kind, name in _NAMES.items():
            if any(protocol == kind.value for protocol, _ in self._levels):
                charts.append(
                    (
                        f"{kind.value.capitalize()}",
                        f"Mean over matrices and draws; {name}. No mark where a scheme failed.",
                        self._by(kind),
                    )
                )
        return charts

    def _against_time(self, rows: list[Row]) -> Any:
        figure = _figure("time (ms)", self._quality.label, log=True)
        for scheme, own in _by_scheme(rows).items():
            style = self._style(scheme)
            taken, reached = _array(own, lambda r: 1e3 * r.taken_s), _array(own, self._quality.of_row)
            some = spread(np.arange(len(own)), _MOST_POINTS)
            figure.add_scatter(
                x=taken[some], y=reached[some], mode="markers", legendgroup=scheme, showlegend=False, hoverinfo="skip",
                marker={**style, "size": 4, "opacity": 0.35},
            )  # fmt: skip
            figure.add_scatter(
                x=[np.median(taken)], y=[reached.mean()], mode="markers", name=scheme, legendgroup=scheme,
                marker={**style, "size": 13, "line": {"width": 1, "color": "black"}},
                hovertemplate="%{y:.3f}, %{x:.3g} ms<extra>" + _safe(scheme) + "</extra>",
            )  # fmt: skip
        return figure

    def _distribution(self, rows: list[Row], number: Callable[[Row], float], label: str, least: float) -> Any:
        figure = _figure(label, "share of matrices (%)", log=True)
        figure.update_yaxes(range=[0, 103])
        for scheme, own in _by_scheme(rows).items():
            values = np.sort(np.maximum(_array(own, number), least))
            values = values[~np.isnan(values)]
            if len(values):
                some = spread(np.arange(len(values)), _MOST_POINTS)
                share = 100 * (some + 1) / len(values)
                values = values[some]
                steps = np.concatenate([[0.0], np.repeat(share, 2)[:-1]])
                self._line(figure, scheme, np.repeat(values, 2), steps, markers=False)
        return figure

    def _timeline(self, rows: list[Row]) -> Any:
        figure = _figure("", self._quality.label)
        for scheme, own in _by_scheme(rows).items():
            times = [row.timestamp for row in own]
            self._line(figure, scheme, times, _array(own, self._quality.of_row), markers=False)
        return figure

    def _by(self, protocol: Protocol) -> Any:
        plain = {_PLAIN[protocol]: self._levels.get((Protocol.OFFLINE.value, ""), [])}
        found = plain | {level: rows for (kind, level), rows in self._levels.items() if kind == protocol.value}
        if protocol is Protocol.SCALE:
            found = dict(sorted(found.items(), key=lambda item: float(item[0])))
        figure = _figure(_NAMES[protocol], self._quality.label)
        figure.update_xaxes(type="category")
        for scheme in self._schemes:
            means = [
                _array([row for row in rows if row.scheme == scheme], self._quality.of_row) for rows in found.values()
            ]
            # A mean over the cases that a scheme managed would flatter one that fails the hard ones.
            whole = [len({(row.index, row.draw) for row in self._everything(protocol, level)}) for level in found]
            full = [len(values) == count > 0 for values, count in zip(means, whole, strict=True)]
            if any(full):
                heights = [float(v.mean()) if good else None for v, good in zip(means, full, strict=True)]
                self._line(figure, scheme, list(found), heights, markers=True)
        return figure

    def _everything(self, protocol: Protocol, level: str) -> list[Row]:
        """The rows of a level, of failed cases too; of matrices as they came where there is no such level."""
        if level == _PLAIN[protocol]:
            return self._all.get((Protocol.OFFLINE.value, ""), [])
        return self._all.get((protocol.value, level), [])

    def _line(self, figure: Any, scheme: str, x: Any, y: Any, *, markers: bool) -> None:
        style = self._style(scheme)
        figure.add_scatter(
            x=x, y=y, name=scheme, mode="lines+markers" if markers else "lines", marker={**style, "size": 7},
            line={"color": style["color"], "width": 1.6, "dash": self._dash(scheme)},
            hovertemplate="%{y:.3f}<extra>" + _safe(scheme) + "</extra>",
        )  # fmt: skip

    def _style(self, scheme: str) -> dict[str, Any]:
        number = self._schemes.index(scheme)
        turn = number // len(COLOURS)  # the second round of colours has other symbols
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
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.scheme, []).append(row)
    return found


def _array(rows: Sequence[Row], number: Callable[[Row], float]) -> FloatArray:
    return np.array([number(row) for row in rows], np.float64)


def _safe(text: str) -> str:
    """Plotly reads a subset of HTML in its texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
