"""Report of an evaluation: tables, charts, maps and findings of its record."""

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
from teal.formats.rows import write_csv
from teal.network.traffic import spread
from teal.runtime.arrays import Float32Array, FloatArray
from teal.runtime.storage import check_out_folder
from teal_study.evaluation.cases import Protocol
from teal_study.evaluation.fairness_curve import FairnessPoint
from teal_study.evaluation.intervals import DIFFERENCES, SUMMARY, difference_rows, mean_rows
from teal_study.evaluation.record import (
    NETWORKS,
    ROWS,
    TABLE,
    UTILISATION,
    NetworkRecord,
    Record,
    ResultKey,
)
from teal_study.evaluation.rows import Row, by_level, by_network, by_scheme
from teal_study.evaluation.table import Quality, Summary, summarise, summary_table, summary_tables

PLOT = "results.png"
REPORT = "report.html"
# Smaller gaps, in %, are drawn at this value, since the axis is logarithmic.
_MIN_DRAWN_GAP = 1e-4
# Axis titles of the charts over levels.
_LEVEL_TITLES = {
    Protocol.FAILURES: "number of failed cables",
    Protocol.NOISE: "noise, as a multiple of the variance of changes",
    Protocol.SPATIAL: "share of the largest tenth of the demands",
    Protocol.SCALE: "demands multiplied by",
    Protocol.CHURN: "volume that may move",
}
# Ends of the chart titles over levels.
_LEVEL_TITLE_ENDS = {
    Protocol.FAILURES: "when cables fail",
    Protocol.NOISE: "under noise",
    Protocol.SPATIAL: "as demand shifts between pairs",
    Protocol.SCALE: "as demand grows",
    Protocol.CHURN: "if little may move",
}
# Level at which the nominal (unchanged) matrices appear in the charts over levels.
_NOMINAL_LEVEL = {
    Protocol.FAILURES: "0",
    Protocol.NOISE: "0",
    Protocol.SPATIAL: "unchanged",
    Protocol.SCALE: "1",
    Protocol.CHURN: "no limit",
}


class Charts:
    """Charts of one network.

    Args:
        rows: rows of the network.
        fairness: price of fairness on one of its matrices; () for none.
    """

    def __init__(self, rows: Sequence[Row], fairness: Sequence[FairnessPoint] = ()) -> None:
        self._fairness_curve = fairness
        self._rows = [row for row in rows if row.usable]
        self._schemes = list(dict.fromkeys(row.scheme for row in rows))
        self._quality = Quality.of(rows[0].objective)
        # Rows by (protocol, level): the usable ones, then all.
        self._usable_rows_by_level = by_level(self._rows)
        self._all_rows_by_level = by_level(rows)

    def all(self) -> list[Chart]:
        """Return every chart for which there are rows.

        The nominal matrices have up to five charts; the online protocol has one, and so has each
        protocol with levels.
        """
        offline = self._usable_rows_by_level.get((Protocol.OFFLINE.value, ""), [])
        charts: list[Chart] = []
        if offline:
            charts.append(self.against_time(offline))
            if self._fairness_curve:
                charts.append(self._fairness(offline, self._fairness_curve))
            if len({row.index for row in offline}) > 1:
                charts += [self.over_time(offline), self._gaps(offline), self._times(offline)]
        for (protocol, level), rows in self._usable_rows_by_level.items():
            if protocol == Protocol.ONLINE.value:
                charts.append(self._online(level, rows))
        for kind in _LEVEL_TITLES:
            if any(protocol == kind.value for protocol, _ in self._usable_rows_by_level):
                charts.append(self._level_chart(kind))
        return charts

    def against_time(self, rows: list[Row]) -> Chart:
        """Return the chart of quality against solve time of the nominal matrices.

        Args:
            rows: usable rows of the nominal matrices.
        """
        series = []
        for scheme, scheme_rows in by_scheme(rows).items():
            times = _values_of_rows(scheme_rows, lambda r: 1e3 * r.total_s)
            values = _values_of_rows(scheme_rows, self._quality.of_row)
            drawn_rows = spread(np.arange(len(scheme_rows)), MAX_POINTS)
            series += [
                Series(scheme, "points", times[drawn_rows].tolist(), values[drawn_rows].tolist()),
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
        """Return the chart of the price of fairness: total against smallest served share.

        Args:
            rows: rows of the nominal matrices.
            curve: results of alpha-fair objectives on the first matrix.
        """
        # Points of the curve and means of the schemes, as (least share, total share) in percent.
        curve_least_shares, total_shares = (
            [100 * getattr(point, name) for point in curve]
            for name in ("least_share", "total_share")
        )
        schemes = [
            Series(
                scheme, "mean", [100 * float(least_shares.mean())], [100 * float(satisfied.mean())]
            )
            for scheme, scheme_rows in by_scheme(rows).items()
            for least_shares, satisfied in [
                (
                    _values_of_rows(scheme_rows, lambda r: r.least_share),
                    _values_of_rows(scheme_rows, lambda r: r.satisfied_demand),
                )
            ]
            if np.isfinite(least_shares).all()
        ]
        # Chart: the curve is a line, the schemes are marks.  The last point of the curve is the
        # largest least share, and the one before it has the largest alpha.
        names = [point.objective.removeprefix("alpha_fair:alpha=") for point in curve]
        return Chart(
            "fairness",
            "What fairness costs",
            "Total share against the least share of a demand. Line: alpha-fair, the first matrix, "
            f"alpha {names[0]} (total flow) to {names[-2]}, then the largest least share. Large "
            "marks: means of the schemes.",
            "least share of a demand (%)",
            "share of all demand (%)",
            (Series("alpha-fair", "marked", curve_least_shares, total_shares), *schemes),
        )

    def over_time(self, rows: list[Row]) -> Chart:
        """Return the chart of the quality of each nominal matrix, in time order.

        Args:
            rows: usable rows of the nominal matrices.
        """
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
        """Return the chart of the cumulative distribution of the gaps by the best bound.

        Args:
            rows: usable rows of the nominal matrices.
        """
        return Chart(
            "gaps",
            "Gap by the best bound: share of matrices",
            "Share of the matrices with at most this certified gap to the optimum, by the best "
            f"bound of all schemes; gaps below {_MIN_DRAWN_GAP:.4f}% are drawn at that value.",
            "gap (%)",
            "share of matrices (%)",
            self._distribution(rows, lambda r: max(100 * r.gap_known, _MIN_DRAWN_GAP)),
            "log",
            shows_shares=True,
        )

    def _times(self, rows: list[Row]) -> Chart:
        """Return the chart of the cumulative distribution of the times to build and solve.

        Args:
            rows: usable rows of the nominal matrices.
        """
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
        """Return the chart of quality under the online protocol over time.

        Args:
            level: interval between matrices, such as ``300s``.
            rows: usable rows of the online protocol.
        """
        return Chart(
            "online",
            f"Online, a new matrix every {level.removesuffix('s')} s",
            "Until a scheme has computed, its last allocation stays installed and carries demand "
            "up to its rates.",
            "",
            self._quality.label,
            self._timeline(rows),
            "time",
        )

    def _timeline(self, rows: list[Row]) -> tuple[Series, ...]:
        """Return a line for each scheme: quality by time of the matrix.

        Args:
            rows: usable rows of one protocol and level.
        """
        return tuple(
            Series(
                scheme,
                "line",
                [row.timestamp for row in scheme_rows],
                [self._quality.of_row(row) for row in scheme_rows],
            )
            for scheme, scheme_rows in by_scheme(rows).items()
        )

    def _distribution(
        self, rows: list[Row], value_of_row: Callable[[Row], float]
    ) -> tuple[Series, ...]:
        """Return a cumulative distribution per scheme.

        Args:
            rows: rows of one protocol and level.
            value_of_row: value of a row, such as its gap.
        """
        return tuple(
            distribution(scheme, _values_of_rows(scheme_rows, value_of_row))
            for scheme, scheme_rows in by_scheme(rows).items()
        )

    def _level_chart(self, protocol: Protocol) -> Chart:
        """Return the chart of mean quality over the levels of a protocol, the nominal matrices
        included.

        A scheme has no mark at a level at which it failed some case: a mean over fewer cases would
        favour schemes that fail hard cases.

        Args:
            protocol: the protocol, such as failures.
        """
        # Usable rows by level, the nominal one first; scales in ascending order.
        nominal_level = {
            _NOMINAL_LEVEL[protocol]: self._usable_rows_by_level.get(
                (Protocol.OFFLINE.value, ""), []
            )
        }
        rows_by_level = nominal_level | {
            level: rows
            for (row_protocol, level), rows in self._usable_rows_by_level.items()
            if row_protocol == protocol.value
        }
        if protocol is Protocol.SCALE:
            rows_by_level = dict(sorted(rows_by_level.items(), key=lambda item: float(item[0])))
        series = []
        for scheme in self._schemes:
            values_by_level = [
                _values_of_rows([row for row in rows if row.scheme == scheme], self._quality.of_row)
                for rows in rows_by_level.values()
            ]
            # Number of cases of each level, failed ones included; a scheme has a mark only where it
            # solved all of them.
            case_counts = [
                len({(row.index, row.draw) for row in self._all_rows(protocol, level)})
                for level in rows_by_level
            ]
            is_complete = [
                len(level_values) == count > 0
                for level_values, count in zip(values_by_level, case_counts, strict=True)
            ]
            if any(is_complete):
                means = [
                    float(level_values.mean()) if has_all_cases else None
                    for level_values, has_all_cases in zip(
                        values_by_level, is_complete, strict=True
                    )
                ]
                series.append(Series(scheme, "marked", list(rows_by_level), means))
        return Chart(
            protocol.value,
            f"{self._quality.label.capitalize()} {_LEVEL_TITLE_ENDS[protocol]}",
            "Mean over matrices and draws. No mark where a scheme failed.",
            _LEVEL_TITLES[protocol],
            self._quality.label,
            tuple(series),
            "category",
        )

    def _all_rows(self, protocol: Protocol, level: str) -> list[Row]:
        """Return the rows of a level of a protocol, failed ones included.

        Args:
            protocol: the protocol, such as failures.
            level: text of the level; the unchanged level has the rows of the nominal matrices.
        """
        if level == _NOMINAL_LEVEL[protocol]:
            return self._all_rows_by_level.get((Protocol.OFFLINE.value, ""), [])
        return self._all_rows_by_level.get((protocol.value, level), [])


def _values_of_rows(rows: Sequence[Row], value_of_row: Callable[[Row], float]) -> FloatArray:
    """Return the values of n rows as an array (n,).

    Args:
        rows: the rows.
        value_of_row: function from a row to its value.
    """
    return np.array([value_of_row(row) for row in rows], np.float64)


# Relative loss of quality against the best scheme up to which a scheme counts as equally good.
_MAX_EQUAL_LOSS = 5e-4
# Relative loss of quality against the best scheme up to which a scheme can be named as the fastest.
_MAX_NEAR_LOSS = 0.01


def compared(rows: Sequence[Row]) -> str:
    """Return the names of the schemes and networks of some rows, for a heading."""
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    networks = list(dict.fromkeys(row.topology for row in rows))
    return f"{_joined_names(schemes)} on {_joined_names(networks)}"


def findings(rows: list[Row]) -> list[str]:
    """Return sentences about one network: best scheme, fastest scheme near it, narrowest gap,
    latency, ranking under changes, and failures.

    Args:
        rows: rows of one network and one objective.
    """
    # Nominal matrices; then the best and the worst scheme at each level of each protocol.
    rows_by_level = by_level(rows)
    nominal_rows = rows_by_level.pop((Protocol.OFFLINE.value, ""), [])
    sentences = list(_nominal_findings(nominal_rows)) if nominal_rows else []
    for (protocol, level), level_rows in rows_by_level.items():
        ranked = _ranked(summarise(level_rows), level_rows[0].objective)
        if len(ranked) > 1:
            best = ranked[0]
            worst = ranked[-1]
            best_text = _quality_text(best, level_rows[0].objective)
            sentences.append(
                f"Under {protocol} {level}: best {best.scheme} ({best_text}), worst {worst.scheme} "
                f"({_quality_text(worst, level_rows[0].objective)})."
            )
    # Schemes without a usable allocation in some cases.
    num_failed_by_scheme: dict[str, int] = {}
    for row in rows:
        if not row.usable:
            num_failed_by_scheme[row.scheme] = num_failed_by_scheme.get(row.scheme, 0) + 1
    for scheme, num_failed in num_failed_by_scheme.items():
        num_cases = sum(row.scheme == scheme for row in rows)
        sentences.append(
            f"{scheme} gave no usable allocation in {num_failed:,} of {num_cases:,} cases."
        )
    return sentences


def _nominal_findings(rows: list[Row]) -> Iterator[str]:
    """Yield sentences on the schemes under the nominal matrices: the best, the fastest near it, the
    narrowest gap, latencies.

    Args:
        rows: rows of the nominal matrices.
    """
    objective = rows[0].objective
    ranked = _ranked(summarise(rows), objective)
    if not ranked:
        yield "No scheme gave a usable allocation."
        return
    # The best schemes.
    best_summaries = [
        summary
        for summary in ranked
        if _relative_loss(summary, ranked[0], objective) <= _MAX_EQUAL_LOSS
    ]
    names = _joined_names([summary.scheme for summary in best_summaries])
    yield f"Best: {names}, {_quality_text(ranked[0], objective)}" + (
        " (no more than 0.05% apart)." if len(best_summaries) > 1 else "."
    )
    # The fastest scheme near the best one.
    yield from _time_sentence(ranked, objective)
    # The narrowest gap, of the schemes that have one.
    with_gap = [summary for summary in ranked if not math.isnan(summary.gap)]
    if with_gap:
        narrowest = min(with_gap, key=lambda summary: summary.gap)
        yield f"Narrowest certified gap on average: {narrowest.scheme}, {percent(narrowest.gap)}."
    # Latencies.
    with_latency = [summary for summary in ranked if not math.isnan(summary.latency_mean)]
    if len(with_latency) > 1:
        lowest_latency, highest_latency = (
            choose(with_latency, key=lambda summary: summary.latency_mean) for choose in (min, max)
        )
        yield (
            f"Mean latency lies between {milliseconds(lowest_latency.latency_mean)} "
            f"({lowest_latency.scheme}) and {milliseconds(highest_latency.latency_mean)} "
            f"({highest_latency.scheme})."
        )


def _time_sentence(ranked: list[Summary], objective: str) -> Iterator[str]:
    """Yield a sentence on the fastest scheme within 1% of the best one, and the slowest of all.

    Args:
        ranked: summaries, the best first.
        objective: name of the objective.
    """
    near_best = [
        summary
        for summary in ranked
        if _relative_loss(summary, ranked[0], objective) <= _MAX_NEAR_LOSS
        and not math.isnan(summary.total_s)
    ]
    if not near_best or len(ranked) == 1:
        return
    fastest = min(near_best, key=lambda summary: summary.total_s)
    slowest = max(
        (summary for summary in ranked if not math.isnan(summary.total_s)),
        key=lambda summary: summary.total_s,
    )
    yield (
        f"Fastest scheme within 1% of the best: {fastest.scheme}, median "
        f"{time_text(fastest.total_s)} per matrix; slowest of all: {slowest.scheme}, "
        f"{time_text(slowest.total_s)}."
    )


def _ranked(summaries: Sequence[Summary], objective: str) -> list[Summary]:
    """Return the summaries whose quality is finite, the best one first.

    Args:
        summaries: summaries of schemes.
        objective: name of the objective.
    """
    finite = [summary for summary in summaries if math.isfinite(_goodness(summary, objective))]
    return sorted(finite, key=lambda summary: -_goodness(summary, objective))


def _goodness(summary: Summary, objective: str) -> float:
    """Return the quality of a summary as a number that is larger for better schemes: the value,
    negated if it is minimised, or the satisfied demand.
    """
    rules = Quality.of(objective).objective.rules
    return rules.sense * summary.value if rules.measure_label else summary.satisfied_demand


def _relative_loss(summary: Summary, best: Summary, objective: str) -> float:
    """Return the relative loss of quality of a summary against the best one; 0 for the best one.

    Args:
        summary: summary of a scheme.
        best: summary of the best scheme.
        objective: name of the objective.
    """
    best_goodness = _goodness(best, objective)
    return (
        (best_goodness - _goodness(summary, objective)) / abs(best_goodness)
        if best_goodness
        else 0.0
    )


def _quality_text(summary: Summary, objective: str) -> str:
    """Return the text of a summary's quality: the objective's metric with its value, or the share
    of the demand that is carried.
    """
    measure = Quality.of(objective).objective.rules.measure_label
    return (
        f"{measure} {summary.value:.4g}"
        if measure
        else f"{percent(summary.satisfied_demand)} of the demand carried"
    )


def _joined_names(names: Sequence[str]) -> str:
    """Join names with commas, and the last one with "and"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))


# Maximum number of nominal cases on a map, and of changed ones.
_MAX_MAP_CASES = 24


def network_map(
    network: NetworkRecord, utilisation: Mapping[ResultKey, Float32Array], times: Mapping[int, str]
) -> dict[str, Any] | None:
    """Return the data of a utilisation map, as lists and strings; None without utilisations.

    A cable is drawn once, in the colour of its more utilised direction.

    Args:
        network: the network.
        utilisation: (E,) load / capacity by key of the row, of this network and others.
        times: times of matrices, by index.
    """
    network_utilisation = {
        key: links
        for key, links in utilisation.items()
        if (key.topology, key.traffic) == (network.topology, network.traffic)
    }
    if not network_utilisation:
        return None
    # Cases are keys without a scheme; each has the utilisations of its schemes.
    cases = _selected_cases(list(dict.fromkeys(key.with_scheme("") for key in network_utilisation)))
    schemes = list(dict.fromkeys(key.scheme for key in network_utilisation))
    utilisation_by_case = {
        _case_name(case, times.get(case.index, "")): {
            scheme: network_utilisation[case.with_scheme(scheme)]
            for scheme in schemes
            if case.with_scheme(scheme) in network_utilisation
        }
        for case in cases
    }
    drawing_data = drawing(
        network.nodes, network.coordinates, network.source, network.target, network.capacity
    )
    return utilisation_map(drawing_data, utilisation_by_case)


def _selected_cases(cases: Sequence[ResultKey]) -> list[ResultKey]:
    """Return at most _MAX_MAP_CASES nominal cases and as many changed ones, evenly spread."""
    nominal = [case for case in cases if case.protocol == Protocol.OFFLINE.value]
    changed = [case for case in cases if case.protocol != Protocol.OFFLINE.value]
    return [
        kind_cases[i]
        for kind_cases in (nominal, changed)
        for i in spread(np.arange(len(kind_cases)), _MAX_MAP_CASES).tolist()
    ]


def _case_name(case: ResultKey, time: str) -> str:
    """Return the name of a case on the map: index and time of the matrix, change, and draw.

    Args:
        case: key of the case.
        time: time of the matrix, ISO 8601.
    """
    change = "" if case.protocol == Protocol.OFFLINE.value else f", {case.protocol} {case.level}"
    return f"{case.index}: {time.replace('T', ' ')}{change}" + (
        f", draw {case.draw}" if case.draw else ""
    )


# Number of most utilised links that a sentence names.
_MAX_NAMED_LINKS = 3


def write_report(path: Path, record: Record) -> None:
    """Write the page of an evaluation.

    Args:
        path: file to write.
        record: record of the evaluation, with at least one row; all rows must have one objective.
    """
    sections = [_section(record, title, rows) for title, rows in _by_title(record).items()]
    write_page(
        path,
        compared(record.rows),
        f"Objective: `{record.rows[0].objective}`. Every allocation was assessed by the same "
        "validator. Gaps are certified: the optimum is at most that far away.",
        sections,
    )


def figures_of(record: Record) -> dict[str, list[Chart]]:
    """Return the charts of each network, by the title of its section.

    Args:
        record: record of the evaluation.
    """
    return {
        title: Charts(
            rows,
            [point for network in _recorded_networks(record, rows) for point in network.fairness],
        ).all()
        for title, rows in _by_title(record).items()
    }


def _recorded_networks(record: Record, rows: list[Row]) -> list[NetworkRecord]:
    """Return the recorded network of some rows, as a list of one; [] if it is not recorded.

    Args:
        record: record of the evaluation.
        rows: rows of one network, at least one.
    """
    key = rows[0].topology, rows[0].traffic
    return [network for network in record.networks if (network.topology, network.traffic) == key]


def _by_title(record: Record) -> dict[str, list[Row]]:
    """Return the rows of each network by its name, with the traffic if a network has several."""
    networks = by_network(record.rows)
    num_traffics = Counter(topology for topology, _ in networks)
    return {
        f"{topology}, {traffic}" if num_traffics[topology] > 1 else topology: rows
        for (topology, traffic), rows in networks.items()
    }


class EvaluationReport(Record):
    """Results of schemes on the same matrices, with export to a frame, a page and files."""

    def __repr__(self) -> str:
        """Return the summary tables as Markdown."""
        return "\n".join(table.markdown() for table in summary_tables(self.rows, wide=False))

    def _repr_markdown_(self) -> str:
        """Return the summary tables as Markdown, which a notebook displays."""
        return repr(self)

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each scheme and case, and the columns of
        results.csv.
        """
        import pandas as pd

        return pd.DataFrame([vars(row) for row in self.rows])

    def save_page(self, path: Path | str) -> None:
        """Write the report of the evaluation to an HTML file."""
        write_report(Path(path), self)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write rows, tables, plot and page to a folder.

        Args:
            folder: output folder.
            overwrite: whether existing results may be replaced.

        Raises:
            InputError: the folder has results, and ``overwrite`` is false.
        """
        names = [ROWS, TABLE, UTILISATION, NETWORKS, SUMMARY, DIFFERENCES, PLOT, REPORT]
        check_out_folder(Path(folder), names, overwrite=overwrite)
        self.save_rows(Path(folder))
        write_files(Path(folder), report_files(self))


def report_files(record: Record) -> dict[str, Callable[[Path], None]]:
    """Return the functions that write means, differences, plot and page of a record to a path, by
    file name.
    """
    means = list(mean_rows(record.rows))
    differences = list(difference_rows(record.rows))
    return {
        **({SUMMARY: partial(write_csv, rows=means)} if means else {}),
        **({DIFFERENCES: partial(write_csv, rows=differences)} if differences else {}),
        PLOT: partial(plot_results, rows=record.rows),
        REPORT: partial(write_report, record=record),
    }


def plot_results(path: Path, rows: list[Row]) -> None:
    """Plot two panels for each network: quality of the nominal matrices over time, and against
    solve time.

    Args:
        path: image file to write.
        rows: rows of all networks.
    """
    networks = by_network([row for row in rows if row.protocol == Protocol.OFFLINE.value])
    panels = []
    for (topology, _), network_rows in networks.items():
        charts = Charts(network_rows)
        usable_rows = [row for row in network_rows if row.usable]
        panels.append((topology, [charts.over_time(usable_rows), charts.against_time(usable_rows)]))
    plot_panels(path, panels)


def _section(record: Record, title: str, rows: list[Row]) -> Section:
    """Return the section of the page about one network.

    Args:
        record: record of the evaluation.
        title: title of the section.
        rows: rows of the network.
    """
    # Facts of the network: matrices, and nodes and links if the network is recorded.
    networks = _recorded_networks(record, rows)
    # The offline protocol (nominal matrices) has one level, without a name.
    nominal_rows = by_level(rows).get((Protocol.OFFLINE.value, ""), [])
    times = {row.index: row.timestamp for row in rows}
    notes = dict.fromkeys((row.scheme, row.note) for row in rows if row.note)
    num_matrices = len({row.index for row in rows})
    facts = f"{num_matrices} {'matrix' if num_matrices == 1 else 'matrices'}"
    if networks:
        network = networks[0]
        facts = (
            f"{len(network.nodes)} nodes, {len(network.source)} directed links, "
            f"{network.selection or facts}"
        )
    summaries = summarise(nominal_rows)
    return Section(
        title=title,
        facts=facts,
        traffic=rows[0].traffic,
        table=summary_table(summaries, rows[0].objective, "", wide=True),
        charts=Charts(rows, networks[0].fairness if networks else ()).all(),
        findings=[
            *findings(rows),
            *_most_utilised_links(record, networks, nominal_rows, summaries),
        ],
        notes=[f"{scheme}: {note}" for scheme, note in notes],
        map=network_map(networks[0], record.utilisation, times) if networks else None,
    )


def _most_utilised_links(
    record: Record, networks: list[NetworkRecord], nominal_rows: list[Row], summaries: list[Summary]
) -> list[str]:
    """Return a sentence on the most utilised links, on average over the nominal matrices, under the
    scheme with the smallest gap; [] if unknown.

    Args:
        record: record of the evaluation.
        networks: the recorded network; [] if unknown.
        nominal_rows: rows of the nominal matrices.
        summaries: summaries of these rows.
    """
    with_known_gap = [entry for entry in summaries if not math.isnan(entry.gap_known)]
    if not networks or not with_known_gap:
        return []
    network = networks[0]
    best_summary = min(with_known_gap, key=lambda entry: entry.gap_known)
    # Utilisations (E,) of the nominal matrices under this scheme, without those with failed links.
    utilisations = [
        record.utilisation.get(ResultKey.of(row))
        for row in nominal_rows
        if row.scheme == best_summary.scheme
    ]
    known_utilisations = [
        entry for entry in utilisations if entry is not None and np.isfinite(entry).all()
    ]
    if not known_utilisations:
        return []
    mean_utilisation = np.mean(known_utilisations, axis=0)
    names = [
        f"{network.nodes[network.source[e]]} to {network.nodes[network.target[e]]} "
        f"{100 * mean_utilisation[e]:.1f}%"
        for e in np.argsort(-mean_utilisation, kind="stable")[:_MAX_NAMED_LINKS].tolist()
    ]
    return [f"Fullest links under {best_summary.scheme}, on average: {', '.join(names)}."]
