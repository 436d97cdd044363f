"""The report of an evaluation: tables, charts and maps of its record."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from teal.app.chart import MAX_POINTS, Chart, Series, distribution
from teal.app.image import plot_panels
from teal.app.page import Section, write_page
from teal.app.run_files import write_files
from teal.app.text import milliseconds, percent, time_text
from teal.app.web.layout import drawing, utilisation_map
from teal.evaluation.cases import Protocol
from teal.evaluation.fairness_curve import FairnessPoint
from teal.evaluation.intervals import DIFFERENCES, SUMMARY, difference_rows, mean_rows
from teal.evaluation.record import (
    NETWORKS,
    ROWS,
    TABLE,
    UTILISATION,
    NetworkRecord,
    Record,
    ResultKey,
)
from teal.evaluation.rows import Row, by_level, by_network, by_scheme
from teal.evaluation.table import Quality, Summary, summarise, summary_table, summary_tables
from teal.formats.rows import write_csv
from teal.network.traffic import spread
from teal.runtime.arrays import Float32Array, FloatArray
from teal.runtime.storage import check_out_folder

PLOT = "results.png"
REPORT = "report.html"
# Per cent; smaller gaps are drawn at this one, since the axis is logarithmic.
_MIN_DRAWN_GAP = 1e-4
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
        rows: rows of the network.
        fairness: what fairness costs on one of its matrices; () where nobody asked.
    """

    def __init__(self, rows: Sequence[Row], fairness: Sequence[FairnessPoint] = ()) -> None:
        self._fairness_curve = fairness
        self._rows = [row for row in rows if row.usable]
        self._schemes = list(dict.fromkeys(row.scheme for row in rows))
        self._quality = Quality.of(rows[0].objective)
        self._levels = by_level(self._rows)
        self._levels_with_failed = by_level(rows)

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
            times = _array(of_scheme, lambda r: 1e3 * r.total_s)
            values = _array(of_scheme, self._quality.of_row)
            drawn = spread(np.arange(len(of_scheme)), MAX_POINTS)
            series += [
                Series(scheme, "points", times[drawn].tolist(), values[drawn].tolist()),
                Series(scheme, "mean", [float(np.median(times))], [float(values.mean())]),
            ]
        return Chart(
            "quality-against-time",
            f"{self._quality.label.capitalize()} against time",
            "Small marks: matrices. Large marks: mean quality at median time (build and solve).",
            "time (ms)",
            self._quality.label,
            tuple(series),
            "log",
        )

    def _fairness(self, rows: list[Row], curve: Sequence[FairnessPoint]) -> Chart:
        # The curve, and the means of the schemes.
        lowest, total = (
            [100 * getattr(point, name) for point in curve]
            for name in ("least_share", "total_share")
        )
        schemes = [
            Series(scheme, "mean", [100 * float(x.mean())], [100 * float(y.mean())])
            for scheme, of_scheme in by_scheme(rows).items()
            for x, y in [
                (
                    _array(of_scheme, lambda r: r.least_share),
                    _array(of_scheme, lambda r: r.satisfied_demand),
                )
            ]
            if np.isfinite(x).all()
        ]
        # Chart of both.
        names = [point.objective.removeprefix("alpha_fair:alpha=") for point in curve]
        return Chart(
            "fairness",
            "What fairness costs",
            "Total share against the least share of a demand. Line: alpha-fair, the first matrix, "
            f"alpha {names[0]} (total flow) to {names[-2]}, then the largest least share. Large "
            "marks: means of the schemes.",
            "least share of a demand (%)",
            "share of all demand (%)",
            (Series("alpha-fair", "marked", lowest, total), *schemes),
        )

    def over_time(self, rows: list[Row]) -> Chart:
        """Quality of the unchanged matrices in the order of their times."""
        return Chart(
            "quality-over-time",
            f"{self._quality.label.capitalize()} over time",
            "The unchanged matrices, in the order of their times.",
            "",
            self._quality.label,
            self._timeline(rows),
            "time",
        )

    def _gaps(self, rows: list[Row]) -> Chart:
        return Chart(
            "gaps",
            "Gap by the best bound: share of matrices",
            "Share of the matrices whose certified distance to the optimum, by the best bound of "
            "all schemes, is at "
            f"most this; gaps below {_MIN_DRAWN_GAP:.4f}% are drawn there.",
            "gap (%)",
            "share of matrices (%)",
            self._distribution(rows, lambda r: max(100 * r.gap_known, _MIN_DRAWN_GAP)),
            "log",
            shows_shares=True,
        )

    def _times(self, rows: list[Row]) -> Chart:
        return Chart(
            "times",
            "Time: share of matrices",
            "Share of the matrices that are solved within this time; setting up the program is "
            "part of it.",
            "time (ms)",
            "share of matrices (%)",
            self._distribution(rows, lambda r: 1e3 * r.total_s),
            "log",
            shows_shares=True,
        )

    def _online(self, level: str, rows: list[Row]) -> Chart:
        return Chart(
            "online",
            f"Online, a new matrix every {level.removesuffix('s')} s",
            "Until a scheme has computed, its last allocation stays in force and carries demand "
            "up to its rates.",
            "",
            self._quality.label,
            self._timeline(rows),
            "time",
        )

    def _timeline(self, rows: list[Row]) -> tuple[Series, ...]:
        return tuple(
            Series(
                scheme,
                "line",
                [row.timestamp for row in of_scheme],
                [self._quality.of_row(row) for row in of_scheme],
            )
            for scheme, of_scheme in by_scheme(rows).items()
        )

    def _distribution(self, rows: list[Row], number: Callable[[Row], float]) -> tuple[Series, ...]:
        return tuple(
            distribution(scheme, _array(of_scheme, number))
            for scheme, of_scheme in by_scheme(rows).items()
        )

    def _by_level(self, protocol: Protocol) -> Chart:
        unchanged = {_UNCHANGED_LEVEL[protocol]: self._levels.get((Protocol.OFFLINE.value, ""), [])}
        levels = unchanged | {
            level: rows for (kind, level), rows in self._levels.items() if kind == protocol.value
        }
        if protocol is Protocol.SCALE:
            levels = dict(sorted(levels.items(), key=lambda item: float(item[0])))
        series = []
        for scheme in self._schemes:
            values = [
                _array([row for row in rows if row.scheme == scheme], self._quality.of_row)
                for rows in levels.values()
            ]
            # A mean over fewer cases would favour a scheme that fails the hard ones.
            counts = [
                len({(row.index, row.draw) for row in self._all_rows(protocol, level)})
                for level in levels
            ]
            is_complete = [len(v) == count > 0 for v, count in zip(values, counts, strict=True)]
            if any(is_complete):
                means = [
                    float(v.mean()) if is_whole else None
                    for v, is_whole in zip(values, is_complete, strict=True)
                ]
                series.append(Series(scheme, "marked", list(levels), means))
        return Chart(
            protocol.value,
            f"{self._quality.label.capitalize()} {_CHANGES[protocol]}",
            "Mean over matrices and draws. No mark where a scheme failed.",
            _LEVEL_TITLES[protocol],
            self._quality.label,
            tuple(series),
            "category",
        )

    def _all_rows(self, protocol: Protocol, level: str) -> list[Row]:
        """The rows of a level, including failed ones; those of unchanged matrices for the unchanged
        level.
        """
        if level == _UNCHANGED_LEVEL[protocol]:
            return self._levels_with_failed.get((Protocol.OFFLINE.value, ""), [])
        return self._levels_with_failed.get((protocol.value, level), [])


def _array(rows: Sequence[Row], number: Callable[[Row], float]) -> FloatArray:
    return np.array([number(row) for row in rows], np.float64)


# Relative difference up to which two qualities count as equal.
_SAME = 5e-4
# Relative loss of quality up to which a faster scheme is named.
_NEAR = 0.01


def compared(rows: Sequence[Row]) -> str:
    """The schemes and networks that were compared, for a heading."""
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    networks = list(dict.fromkeys(row.topology for row in rows))
    return f"{_list(schemes)} on {_list(networks)}"


def findings(rows: list[Row]) -> list[str]:
    """Sentences about one network: the best, the fastest near it, what is certified, latency,
    failures.

    Args:
        rows: rows of one network and one objective.
    """
    levels = by_level(rows)
    offline = levels.pop((Protocol.OFFLINE.value, ""), [])
    sentences = list(_of_unchanged(offline)) if offline else []
    for (protocol, level), of_level in levels.items():
        ranked = _ranked(summarise(of_level), of_level[0].objective)
        if len(ranked) > 1:
            best = ranked[0]
            worst = ranked[-1]
            text = _text(best, of_level[0].objective)
            sentences.append(
                f"Under {protocol} {level}: best {best.scheme} ({text}), last {worst.scheme} "
                f"({_text(worst, of_level[0].objective)})."
            )
    failed: dict[str, int] = {}
    for row in rows:
        if not row.usable:
            failed[row.scheme] = failed.get(row.scheme, 0) + 1
    for scheme, count in failed.items():
        total = sum(row.scheme == scheme for row in rows)
        sentences.append(f"{scheme} gave no usable allocation in {count:,} of {total:,} cases.")
    return sentences


def _of_unchanged(rows: list[Row]) -> Iterator[str]:
    """Yield sentences on the schemes under the unchanged matrices: the best, the fastest, the
    narrowest gap, latencies.
    """
    objective = rows[0].objective
    ranked = _ranked(summarise(rows), objective)
    if not ranked:
        yield "No scheme gave a usable allocation."
        return
    # The best schemes.
    best = [summary for summary in ranked if _behind(summary, ranked[0], objective) <= _SAME]
    names = _list([summary.scheme for summary in best])
    yield f"Best: {names}, {_text(ranked[0], objective)}" + (
        " (no more than 0.05% apart)." if len(best) > 1 else "."
    )
    # The fastest scheme near the best one.
    yield from _time_sentence(ranked, objective)
    # The narrowest gap.
    proven = [summary for summary in ranked if not math.isnan(summary.gap)]
    if proven:
        tight = min(proven, key=lambda summary: summary.gap)
        yield f"Narrowest certified gap on average: {tight.scheme}, {percent(tight.gap)}."
    # Latencies.
    with_latency = [summary for summary in ranked if not math.isnan(summary.latency_mean)]
    if len(with_latency) > 1:
        low, high = (
            choose(with_latency, key=lambda summary: summary.latency_mean) for choose in (min, max)
        )
        yield (
            f"Mean latency lies between {milliseconds(low.latency_mean)} ({low.scheme}) and "
            f"{milliseconds(high.latency_mean)} ({high.scheme})."
        )


def _time_sentence(ranked: list[Summary], objective: str) -> Iterator[str]:
    """Yield a sentence on the fastest scheme near the best one, and the slowest of all."""
    near = [
        summary
        for summary in ranked
        if _behind(summary, ranked[0], objective) <= _NEAR and not math.isnan(summary.total_s)
    ]
    if not near or len(ranked) == 1:
        return
    fast = min(near, key=lambda summary: summary.total_s)
    slow = max(
        (summary for summary in ranked if not math.isnan(summary.total_s)),
        key=lambda summary: summary.total_s,
    )
    yield (
        f"Fastest of those within 1% of it: {fast.scheme}, {time_text(fast.total_s)} a matrix in "
        f"the median; the slowest of all is {slow.scheme}, {time_text(slow.total_s)}."
    )


def _ranked(summaries: Sequence[Summary], objective: str) -> list[Summary]:
    """The summaries with a quality, the best first."""
    finite = [summary for summary in summaries if math.isfinite(_goodness(summary, objective))]
    return sorted(finite, key=lambda summary: -_goodness(summary, objective))


def _goodness(summary: Summary, objective: str) -> float:
    """A number that is larger where the quality is better."""
    rules = Quality.of(objective).objective.rules
    return rules.sense * summary.value if rules.measure_label else summary.satisfied_demand


def _behind(summary: Summary, best: Summary, objective: str) -> float:
    """Relative loss of quality against the best."""
    best_goodness = _goodness(best, objective)
    return (
        (best_goodness - _goodness(summary, objective)) / abs(best_goodness)
        if best_goodness
        else 0.0
    )


def _text(summary: Summary, objective: str) -> str:
    measure = Quality.of(objective).objective.rules.measure_label
    return (
        f"{measure} {summary.value:.4g}"
        if measure
        else f"{percent(summary.satisfied_demand)} of the demand carried"
    )


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))


# Maximum number of unchanged matrices on a map, and of changed ones.
_MAX_CASES = 24


def network_map(
    network: NetworkRecord, utilisation: Mapping[ResultKey, Float32Array], times: Mapping[int, str]
) -> dict[str, Any] | None:
    """The data of a map, as lists and strings; None if no utilisation of this network is known.

    A cable is drawn once, in the colour of its fuller direction.

    Args:
        network: the network.
        utilisation: (E,) of this network and others, by row.
        times: times of matrices, by index.
    """
    of_network = {
        key: links
        for key, links in utilisation.items()
        if (key.topology, key.traffic) == (network.topology, network.traffic)
    }
    if not of_network:
        return None
    cases = _selected(list(dict.fromkeys(key.with_scheme("") for key in of_network)))
    schemes = list(dict.fromkeys(key.scheme for key in of_network))
    shown = {
        _name(case, times.get(case.index, "")): {
            scheme: of_network[case.with_scheme(scheme)]
            for scheme in schemes
            if case.with_scheme(scheme) in of_network
        }
        for case in cases
    }
    drawn = drawing(
        network.nodes, network.coordinates, network.source, network.target, network.capacity
    )
    return utilisation_map(drawn, shown)


def _selected(cases: Sequence[ResultKey]) -> list[ResultKey]:
    unchanged = [case for case in cases if case.protocol == Protocol.OFFLINE.value]
    changed = [case for case in cases if case.protocol != Protocol.OFFLINE.value]
    return [
        part[i]
        for part in (unchanged, changed)
        for i in spread(np.arange(len(part)), _MAX_CASES).tolist()
    ]


def _name(case: ResultKey, time: str) -> str:
    change = "" if case.protocol == Protocol.OFFLINE.value else f", {case.protocol} {case.level}"
    return f"{case.index}: {time.replace('T', ' ')}{change}" + (
        f", draw {case.draw}" if case.draw else ""
    )


# Maximum number of links that are named.
_MAX_FULL = 3


def write_report(path: Path, record: Record) -> None:
    """Write the page.

    Args:
        path: path of the file.
        record: record of the evaluation, with at least one row; all rows must have one objective.
    """
    sections = [_section(record, title, rows) for title, rows in _by_title(record).items()]
    write_page(
        path,
        compared(record.rows),
        f"Objective: `{record.rows[0].objective}`. Every allocation was measured by one validator; "
        "a gap is certified: "
        "the optimum is no further away than that.",
        sections,
    )


def figures_of(record: Record) -> dict[str, list[Chart]]:
    """The charts of each network."""
    return {
        title: Charts(
            rows, [point for network in _networks(record, rows) for point in network.fairness]
        ).all()
        for title, rows in _by_title(record).items()
    }


def _networks(record: Record, rows: list[Row]) -> list[NetworkRecord]:
    """The network of the rows of one network; [] if it is not recorded."""
    key = rows[0].topology, rows[0].traffic
    return [network for network in record.networks if (network.topology, network.traffic) == key]


def _by_title(record: Record) -> dict[str, list[Row]]:
    """The rows of each network by its name, which has the traffic too where there are several of
    one network.
    """
    networks = by_network(record.rows)
    count = Counter(topology for topology, _ in networks)
    return {
        f"{topology}, {traffic}" if count[topology] > 1 else topology: rows
        for (topology, traffic), rows in networks.items()
    }


class EvaluationReport(Record):
    """Schemes on the same matrices, as a frame, a page and files."""

    def __repr__(self) -> str:
        """The tables."""
        return "\n".join(table.markdown() for table in summary_tables(self.rows, wide=False))

    def _repr_markdown_(self) -> str:
        """The tables, as a notebook shows them."""
        return repr(self)

    def to_frame(self) -> Any:
        """A pandas frame, a row for each scheme and case, as in results.csv."""
        import pandas as pd

        return pd.DataFrame([vars(row) for row in self.rows])

    def save_page(self, path: Path | str) -> None:
        """Write the page that ``teal evaluate`` writes."""
        write_report(Path(path), self)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write rows, tables, plot and page to a folder, as ``teal evaluate`` does.

        Raises:
            InputError: there are results in it, and ``overwrite`` is false.
        """
        names = [ROWS, TABLE, UTILISATION, NETWORKS, SUMMARY, DIFFERENCES, PLOT, REPORT]
        check_out_folder(Path(folder), names, overwrite=overwrite)
        self.save_rows(Path(folder))
        write_files(Path(folder), report_files(self))


def report_files(record: Record) -> dict[str, Callable[[Path], None]]:
    """The writers of the files that show a record, by the names of the files."""
    means = list(mean_rows(record.rows))
    differences = list(difference_rows(record.rows))
    return {
        **({SUMMARY: partial(write_csv, rows=means)} if means else {}),
        **({DIFFERENCES: partial(write_csv, rows=differences)} if differences else {}),
        PLOT: partial(plot_results, rows=record.rows),
        REPORT: partial(write_report, record=record),
    }


def plot_results(path: Path, rows: list[Row]) -> None:
    """For each network two panels of the unchanged matrices: quality over time, and quality against
    time to solve.
    """
    networks = by_network([row for row in rows if row.protocol == Protocol.OFFLINE.value])
    panels = []
    for (topology, _), of_network in networks.items():
        charts = Charts(of_network)
        usable = [row for row in of_network if row.usable]
        panels.append((topology, [charts.over_time(usable), charts.against_time(usable)]))
    plot_panels(path, panels)


def _section(record: Record, title: str, rows: list[Row]) -> Section:
    """One network.

    Args:
        record: record of the evaluation.
        title: title of the section.
        rows: rows of the network.
    """
    networks = _networks(record, rows)
    # The offline protocol has one level, without a name.
    offline = by_level(rows).get((Protocol.OFFLINE.value, ""), [])
    times = {row.index: row.timestamp for row in rows}
    notes = dict.fromkeys((row.scheme, row.note) for row in rows if row.note)
    count = len({row.index for row in rows})
    facts = f"{count} {'matrix' if count == 1 else 'matrices'}"
    if networks:
        network = networks[0]
        facts = (
            f"{len(network.nodes)} nodes, {len(network.source)} directed links, "
            f"{network.selection or facts}"
        )
    summaries = summarise(offline)
    return Section(
        title=title,
        facts=facts,
        traffic=rows[0].traffic,
        table=summary_table(summaries, rows[0].objective, "", wide=True),
        charts=Charts(rows, networks[0].fairness if networks else ()).all(),
        findings=[*findings(rows), *_fullest(record, networks, offline, summaries)],
        notes=[f"{scheme}: {note}" for scheme, note in notes],
        map=network_map(networks[0], record.utilisation, times) if networks else None,
    )


def _fullest(
    record: Record, networks: list[NetworkRecord], offline: list[Row], summaries: list[Summary]
) -> list[str]:
    """The links that are fullest on average under the scheme with the smallest gap, in a sentence;
    [] if unknown.
    """
    finite = [summary for summary in summaries if not math.isnan(summary.gap_known)]
    if not networks or not finite:
        return []
    network = networks[0]
    best = min(finite, key=lambda summary: summary.gap_known)
    loads = [
        record.utilisation.get(ResultKey.of(row)) for row in offline if row.scheme == best.scheme
    ]
    shares = [summary for summary in loads if summary is not None and np.isfinite(summary).all()]
    if not shares:
        return []
    mean = np.mean(shares, axis=0)
    names = [
        f"{network.nodes[network.source[e]]} to {network.nodes[network.target[e]]} "
        f"{100 * mean[e]:.1f}%"
        for e in np.argsort(-mean, kind="stable")[:_MAX_FULL].tolist()
    ]
    return [f"Fullest links under {best.scheme}, on average: {', '.join(names)}."]
