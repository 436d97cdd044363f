"""The charts of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from teal.evaluation import Row
from teal.evaluation.cases import Protocol
from teal.evaluation.fairness_curve import FairnessPoint
from teal.network.traffic import spread
from teal.reports.chart import MAX_POINTS, SHARE_RANGE, Chart, Series, distribution
from teal.reports.groups import by_level, by_scheme
from teal.reports.table import Quality
from teal.runtime.arrays import FloatArray

_MIN_DRAWN_GAP = 1e-4  # per cent: smaller gaps are drawn at this one, since the axis is logarithmic
# Axis titles of the charts over levels.
_LEVEL_TITLES = {
    Protocol.FAILURES: "number of failed cables",
    Protocol.NOISE: "noise, as a multiple of the variance of changes",
    Protocol.SPATIAL: "share of the largest tenth of the demands",
    Protocol.SCALE: "demands multiplied by",
    Protocol.CHURN: "volume that may move",
}
_CHANGES = {
    Protocol.FAILURES: "when cables fail",
    Protocol.NOISE: "under noise",
    Protocol.SPATIAL: "as demand shifts between pairs",
    Protocol.SCALE: "as demand grows",
    Protocol.CHURN: "if little may move",
}
# Level under which the unchanged matrices appear in these charts.
_UNCHANGED_LEVEL = {
    Protocol.FAILURES: "0",
    Protocol.NOISE: "0",
    Protocol.SPATIAL: "unchanged",
    Protocol.SCALE: "1",
    Protocol.CHURN: "no limit",
}


class Charts:
    """The charts of one network.

    Args:
        rows: of the network.
        fairness: what fairness costs on one of its matrices; () where nobody asked.
    """

    def __init__(self, rows: Sequence[Row], fairness: Sequence[FairnessPoint] = ()) -> None:
        self._fairness_curve = fairness
        self._rows = [row for row in rows if row.usable]
        self._schemes = list(dict.fromkeys(row.scheme for row in rows))
        self._quality = Quality.of(rows[0].objective)
        self._levels, self._levels_with_failed = by_level(self._rows), by_level(rows)

    def all(self) -> list[Chart]:
        """Every chart for which there are rows."""
        offline = self._levels.get((Protocol.OFFLINE.value, ""), [])
        charts: list[Chart] = []
        if offline:
            charts.append(self.against_time(offline))
            if self._fairness_curve:
                charts.append(self._fairness(offline, self._fairness_curve))
            if len({row.index for row in offline}) > 1:
                charts += [self.over_time(offline), self._gaps(offline), self._times(offline)]
        for (protocol, level), rows in self._levels.items():
            if protocol == Protocol.ONLINE.value:
                charts.append(self._online(level, rows))
        for kind in _LEVEL_TITLES:
            if any(protocol == kind.value for protocol, _ in self._levels):
                charts.append(self._by_level(kind))
        return charts

    def against_time(self, rows: list[Row]) -> Chart:
        """Quality against time of the unchanged matrices."""
        series = []
        for scheme, of_scheme in by_scheme(rows).items():
            times, values = _array(of_scheme, lambda r: 1e3 * r.total_s), _array(of_scheme, self._quality.of_row)
            drawn = spread(np.arange(len(of_scheme)), MAX_POINTS)
            series += [
                Series(scheme, "points", times[drawn].tolist(), values[drawn].tolist()),
                Series(scheme, "mean", [float(np.median(times))], [float(values.mean())]),
            ]
        return Chart(
            "quality-against-time", f"{self._quality.label.capitalize()} against time",
            "Small marks: matrices. Large marks: mean quality at median time (build and solve).", "time (ms)",
            self._quality.label, tuple(series), "log",
        )  # fmt: skip

    def _fairness(self, rows: list[Row], curve: Sequence[FairnessPoint]) -> Chart:
        least, total = ([100 * getattr(point, name) for point in curve] for name in ("least_share", "total_share"))
        schemes = [
            Series(scheme, "mean", [100 * float(x.mean())], [100 * float(y.mean())])
            for scheme, of_scheme in by_scheme(rows).items()
            for x, y in [(_array(of_scheme, lambda r: r.least_share), _array(of_scheme, lambda r: r.satisfied_demand))]
            if np.isfinite(x).all()
        ]
        names = [point.objective.removeprefix("alpha_fair:alpha=") for point in curve]
        return Chart(
            "fairness", "What fairness costs",
            f"Total share against the least share of a demand. Line: alpha-fair, the first matrix, alpha {names[0]} "
            f"(total flow) to {names[-2]}, then the largest least share. Large marks: means of the schemes.",
            "least share of a demand (%)", "share of all demand (%)",
            (Series("alpha-fair", "marked", least, total), *schemes),
        )  # fmt: skip

    def over_time(self, rows: list[Row]) -> Chart:
        """Quality of the unchanged matrices in the order of their times."""
        return Chart(
            "quality-over-time", f"{self._quality.label.capitalize()} over time",
            "The unchanged matrices, in the order of their times.", "", self._quality.label,
            self._timeline(rows), "time",
        )  # fmt: skip

    def _gaps(self, rows: list[Row]) -> Chart:
        return Chart(
            "gaps", "Gap by the best bound: share of matrices",
            "Share of the matrices whose certified distance to the optimum, by the best bound of all schemes, is at "
            f"most this; gaps below {_MIN_DRAWN_GAP:.4f}% are drawn there.", "gap (%)",
            "share of matrices (%)", self._distribution(rows, lambda r: max(100 * r.gap_known, _MIN_DRAWN_GAP)), "log",
            SHARE_RANGE,
        )  # fmt: skip

    def _times(self, rows: list[Row]) -> Chart:
        return Chart(
            "times", "Time: share of matrices",
            "Share of the matrices that are solved within this time; setting up the program is part of it.",
            "time (ms)", "share of matrices (%)",
            self._distribution(rows, lambda r: 1e3 * r.total_s), "log", SHARE_RANGE,
        )  # fmt: skip

    def _online(self, level: str, rows: list[Row]) -> Chart:
        return Chart(
            "online", f"Online, a new matrix every {level.removesuffix('s')} s",
            "Until a scheme has computed, its last allocation stays in force and carries demand up to its rates.",
            "", self._quality.label, self._timeline(rows), "time",
        )  # fmt: skip

    def _timeline(self, rows: list[Row]) -> tuple[Series, ...]:
        return tuple(
            Series(
                scheme, "line", [row.timestamp for row in of_scheme], [self._quality.of_row(row) for row in of_scheme]
            )
            for scheme, of_scheme in by_scheme(rows).items()
        )

    def _distribution(self, rows: list[Row], number: Callable[[Row], float]) -> tuple[Series, ...]:
        return tuple(
            distribution(scheme, _array(of_scheme, number)) for scheme, of_scheme in by_scheme(rows).items()
        )  # fmt: skip

    def _by_level(self, protocol: Protocol) -> Chart:
        unchanged = {_UNCHANGED_LEVEL[protocol]: self._levels.get((Protocol.OFFLINE.value, ""), [])}
        levels = unchanged | {level: rows for (kind, level), rows in self._levels.items() if kind == protocol.value}
        if protocol is Protocol.SCALE:
            levels = dict(sorted(levels.items(), key=lambda item: float(item[0])))
        series = []
        for scheme in self._schemes:
            values = [
                _array([row for row in rows if row.scheme == scheme], self._quality.of_row) for rows in levels.values()
            ]
            # A mean over fewer cases would favour a scheme that fails the hard ones.
            counts = [len({(row.index, row.draw) for row in self._all_rows(protocol, level)}) for level in levels]
            is_complete = [len(v) == count > 0 for v, count in zip(values, counts, strict=True)]
            if any(is_complete):
                means = [float(v.mean()) if whole else None for v, whole in zip(values, is_complete, strict=True)]
                series.append(Series(scheme, "marked", list(levels), means))
        return Chart(
            protocol.value, f"{self._quality.label.capitalize()} {_CHANGES[protocol]}",
            "Mean over matrices and draws. No mark where a scheme failed.",
            _LEVEL_TITLES[protocol], self._quality.label, tuple(series), "category",
        )  # fmt: skip

    def _all_rows(self, protocol: Protocol, level: str) -> list[Row]:
        """The rows of a level, including failed ones; those of unchanged matrices for the unchanged level."""
        if level == _UNCHANGED_LEVEL[protocol]:
            return self._levels_with_failed.get((Protocol.OFFLINE.value, ""), [])
        return self._levels_with_failed.get((protocol.value, level), [])


def _array(rows: Sequence[Row], number: Callable[[Row], float]) -> FloatArray:
    return np.array([number(row) for row in rows], np.float64)
