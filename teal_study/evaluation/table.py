"""Tables that compare schemes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from teal.app.table import Column, Table
from teal.app.text import milliseconds, percent, ratio_text, time_text
from teal.objectives import Objective
from teal.problem.allocation import Status
from teal.runtime.bootstrap import interval_of_mean
from teal_study.evaluation.cases import Protocol
from teal_study.evaluation.intervals import OF_OPTIMUM, DifferenceRow, difference_rows
from teal_study.evaluation.rows import Row, by_level, by_network, shares_of_optimum

# Statuses without a usable allocation.
_UNUSABLE_STATUSES = {status.value for status in Status if not status.usable}
# Longest name of a scheme with which all columns and the latency fit 80 characters.
_MAX_NAME_BESIDE_LATENCY = 12


@dataclasses.dataclass(frozen=True)
class ClassSummary:
    """Summary of a priority class under one scheme.

    Attributes:
        name: name of the class.
        satisfied_demand: mean served share of the demand of the class.
        gap: widest gap of the class by the scheme's own prices.
    """

    name: str
    satisfied_demand: float
    gap: float


@dataclasses.dataclass(frozen=True)
class Summary:
    """Summary of one scheme over its cases.

    A failed case counts with satisfied demand and value 0 (infinite for a value that is minimised)
    and gap 1.

    Attributes:
        scheme: specification of the scheme.
        value: mean objective.
        of_optimum: mean of value / optimum of LP-all; NaN without an optimum.
        worst: worst value / optimum of LP-all in a case; NaN without an optimum.
        satisfied_demand: mean served share of all demand.
        gap: mean gap by the scheme's own prices.
        gap_known: mean gap by the best bound of all schemes.
        max_violation: largest violation of any rule.
        build_s: median seconds to build a model, as the scheme reports.
        solve_s: median seconds to solve it, as the scheme reports.
        total_s: median seconds by the clock of the evaluation.
        parallel_s: median seconds to build and solve with one processor per subproblem.
        status: number of cases of each status, such as ``691 optimal``.
        classes: summaries of the priority classes, the highest one first; () under another
            objective.
        fairness: under max_min, mean fairness over the cases; the fairness of a case is the
            geometric mean of min(f / g, g / f) over the demands, with f the rate of a demand and g
            its rate under the best scheme.
        latency_mean: mean over the cases of the mean latency of the volume, ms; NaN without
            latencies.
        latency_99: mean over the cases of the latency that 99% of the volume do not exceed, ms.
        largest_stretch: largest ratio of the latency of a used path to that of the demand's fastest
            path.
        cut_demand: mean share of all demand that the model's splits carry when they are only scaled
            down to fit the capacities; NaN without a model.
        cut_gap: mean gap of the cut splits, by the prices of the model.
        compared: number of cases with an optimum of LP-all.
        of_optimum_low: lower end of the 95% interval of the mean share of the optimum.
        of_optimum_high: upper end of this interval.
    """

    scheme: str
    value: float
    of_optimum: float
    worst: float
    satisfied_demand: float
    gap: float
    gap_known: float
    max_violation: float
    build_s: float
    solve_s: float
    total_s: float
    parallel_s: float
    status: str
    classes: tuple[ClassSummary, ...] = ()
    fairness: float = math.nan
    latency_mean: float = math.nan
    latency_99: float = math.nan
    largest_stretch: float = math.nan
    cut_demand: float = math.nan
    cut_gap: float = math.nan
    compared: int = 0
    of_optimum_low: float = math.nan
    of_optimum_high: float = math.nan


def summarise(rows: list[Row]) -> list[Summary]:
    """Return a summary of each scheme, in order of appearance.

    Args:
        rows: rows of cases; LP-all's optimal rows give the optima.
    """
    share_of_row = shares_of_optimum(rows)
    return [
        _summary(scheme, [row for row in rows if row.scheme == scheme], share_of_row)
        for scheme in dict.fromkeys(row.scheme for row in rows)
    ]


def _summary(scheme: str, rows: list[Row], share_by_row: Mapping[int, float]) -> Summary:
    """Summarise the rows of a scheme.

    Args:
        scheme: name of the scheme.
        rows: its rows, at least one.
        share_by_row: value / optimum by ``id`` of a row; NaN without an optimum.
    """
    usable_rows = [row for row in rows if not math.isnan(row.value)]
    # Failed cases count in means, unless the scheme has no usable allocation at all.
    counted_rows = [row for row in rows if row.was_run] if usable_rows else []
    # Shares of the optimum, with the interval of their mean.
    indexed_shares = [(row.index, share_by_row[id(row)]) for row in counted_rows]
    indexed_shares = [(index, share) for index, share in indexed_shares if not math.isnan(share)]
    optimum_shares = [share for _, share in indexed_shares]
    are_finite = bool(optimum_shares) and all(map(math.isfinite, optimum_shares))
    interval = interval_of_mean(indexed_shares) if are_finite else None
    worst = (min if Objective(rows[0].objective).rules.sense > 0 else max)(
        optimum_shares, default=math.nan
    )
    status_counts = Counter(row.status for row in rows)
    # Means and extremes in the order of the attributes: quality and gaps, times, statuses and
    # classes, fairness and latencies, the model alone, and the share of the optimum.
    return Summary(
        scheme,
        _mean([row.counted("value") for row in counted_rows]),
        _mean(optimum_shares),
        worst,
        _mean([row.counted("satisfied_demand") for row in counted_rows]),
        _mean([row.counted("gap") for row in counted_rows]),
        _mean([value for row in counted_rows if not math.isnan(value := row.counted("gap_known"))]),
        max((row.max_violation for row in usable_rows), default=math.nan),
        _median([row.build_s for row in usable_rows]),
        _median([row.solve_s for row in usable_rows]),
        _median([row.total_s for row in usable_rows]),
        _median([row.parallel_s for row in usable_rows if not math.isnan(row.parallel_s)]),
        ", ".join(f"{count} {status}" for status, count in status_counts.items()),
        _class_summaries(usable_rows),
        _known_mean(usable_rows, "fairness"),
        _known_mean(usable_rows, "latency_mean"),
        _known_mean(usable_rows, "latency_99"),
        max(
            (row.largest_stretch for row in usable_rows if not math.isnan(row.largest_stretch)),
            default=math.nan,
        ),
        _known_mean(usable_rows, "cut_demand"),
        _known_mean(usable_rows, "cut_gap"),
        len(optimum_shares),
        math.nan if interval is None else interval.low,
        math.nan if interval is None else interval.high,
    )


def _class_summaries(rows: list[Row]) -> tuple[ClassSummary, ...]:
    """Return a summary of each priority class, the highest one first; a class without demand counts
    as fully served.

    Args:
        rows: usable rows of one scheme, with the records of their classes as JSON.
    """
    records_by_class: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        for class_record in json.loads(row.classes or "[]"):
            records_by_class.setdefault(class_record["class"], []).append(class_record)
    # A class without demand counts as fully served.
    return tuple(
        ClassSummary(
            name,
            _mean(
                [
                    class_record["value"] / class_record["demand"]
                    if class_record["demand"] > 0
                    else 1.0
                    for class_record in class_records
                ]
            ),
            max(class_record["gap"] for class_record in class_records),
        )
        for name, class_records in records_by_class.items()
    )


def summaries_of(rows: list[Row]) -> list[dict[str, object]]:
    """Return the summaries of each network, protocol, level and scheme as dictionaries.

    Args:
        rows: rows of any networks.
    """
    return [
        {"topology": topology, "traffic": traffic, "protocol": protocol, "level": level}
        | dataclasses.asdict(summary)
        for (topology, traffic), network_rows in by_network(rows).items()
        for (protocol, level), level_rows in by_level(network_rows).items()
        for summary in summarise(level_rows)
    ]


def summary_tables(rows: list[Row], *, wide: bool) -> Iterator[Table]:
    """Yield the tables for a terminal: for each network one of the nominal matrices, then of the
    changed ones.

    Args:
        rows: rows of cases, at least one.
        wide: whether all columns are shown; otherwise those that fit 80 characters.
    """
    for (topology, traffic), network_rows in by_network(rows).items():
        rows_by_level = by_level(network_rows)
        nominal_rows = rows_by_level.pop((Protocol.OFFLINE.value, ""), [])
        if nominal_rows:
            yield summary_table(
                summarise(nominal_rows),
                nominal_rows[0].objective,
                f"{topology}, {traffic}",
                wide=wide,
            )
        # One table of all changed matrices if it may be wide, else one for each protocol.
        if wide:
            level_groups = [rows_by_level] if rows_by_level else []
        else:
            protocols = dict.fromkeys(protocol for protocol, _ in rows_by_level)
            level_groups = [
                {key: level_rows for key, level_rows in rows_by_level.items() if key[0] == protocol}
                for protocol in protocols
            ]
        yield from (_level_table(level_group, topology) for level_group in level_groups)


def difference_tables(rows: list[Row]) -> Iterator[Table]:
    """Yield a table for each network: mean differences of value / LP-all's optimum between two
    schemes, over the cases that both have.

    There is a row for each pair of schemes, protocol and level; the earlier scheme is subtracted.

    Args:
        rows: rows of any networks.
    """
    columns = (
        Column("scheme", "scheme"),
        Column("less", "less", is_name=True),
        Column("protocol", "protocol"),
        Column("level", "level", optional=True),
        Column("difference (points)", "mean", _points_text),
        Column(
            "95%", "low", text=lambda row: f"{_points_text(row.low)} to {_points_text(row.high)}"
        ),
        Column("cases", "cases", str),
    )
    rows_by_network: dict[tuple[str, str], list[DifferenceRow]] = {}
    for row in difference_rows(rows):
        if row.measure == OF_OPTIMUM:
            rows_by_network.setdefault((row.topology, row.traffic), []).append(row)
    for (topology, traffic), network_rows in rows_by_network.items():
        title = f"{topology}, {traffic}: differences of the share of LP-all's optimum"
        yield Table(title, columns, network_rows)


def _points_text(share: float) -> str:
    """Format a difference of shares as percentage points with a sign, such as +1.25 for 0.0125."""
    return f"{100 * share:+.2f}"


def _level_table(levels: dict[tuple[str, str], list[Row]], topology: str) -> Table:
    """Return the table of mean quality with schemes as rows, and levels of all protocols as
    columns.

    A cell of a scheme that failed some cases also has the number of solved cases, since its mean is
    over fewer cases.

    Args:
        levels: rows by protocol and level.
        topology: name of the network, for the title.
    """
    rows = [row for level_rows in levels.values() for row in level_rows]
    quality = Quality.of(rows[0].objective)

    def quality_text(scheme_rows: Sequence[Row]) -> str:
        """Return the mean quality of a scheme's rows, with solved / all cases if some failed."""
        values = [quality.of_row(row) for row in scheme_rows if row.usable]
        solved_text = (
            f" ({len(values)}/{len(scheme_rows)})" if 0 < len(values) < len(scheme_rows) else ""
        )
        return f"{_mean(values):.2f}{solved_text}" if values else "-"

    def column(protocol: str, level: str) -> Column:
        """Return the column of a level; the value of a cell is the rows of the scheme."""
        rows_of_level = levels[protocol, level]
        return Column(
            f"{protocol} {level}",
            lambda scheme: [row for row in rows_of_level if row.scheme == scheme],
            quality_text,
        )

    columns = (Column("scheme", str), *(column(*key) for key in levels))
    return Table(
        f"{topology}: mean {quality.label}",
        columns,
        list(dict.fromkeys(row.scheme for row in rows)),
    )


@dataclasses.dataclass(frozen=True)
class Quality:
    """Metric that plots and tables show for a row: satisfied demand in %, or the value of an
    objective with its own metric, such as the largest utilisation.

    Attributes:
        objective: the objective.
        label: name of the metric, for an axis or a column.
    """

    objective: Objective
    label: str

    @classmethod
    def of(cls, name: str) -> Quality:
        """Return the quality metric of an objective, given by its name."""
        objective = Objective(name)
        return cls(objective, objective.rules.measure_label or "satisfied demand (%)")

    def of_row(self, row: Row) -> float:
        """Return the quality of a row: satisfied demand in %, or the value of the objective."""
        # Only objectives with a metric of their own have a label.
        return row.value if self.objective.rules.measure_label else 100 * row.satisfied_demand


def summary_table(summaries: list[Summary], objective: str, title: str, *, wide: bool) -> Table:
    """Return the table of the schemes of one network: quality, share of the optimum, gap, time.

    Args:
        summaries: a summary of each scheme.
        objective: objective of all of them.
        title: title in the terminal.
        wide: whether all columns are shown, as on the page; otherwise those that fit 80 characters.
    """
    columns = _scheme_columns(summaries, objective)
    caption = ""
    if not wide:
        # Under priority each class has its own optimum, so a single share or gap is not shown.
        has_classes = any(summary.classes for summary in summaries)
        # A fair allocation has less flow than the optimum of LP-all, by intention.
        shows_fairness = columns["fairness"].is_shown(summaries)
        has_room = (
            max((len(summary.scheme) for summary in summaries), default=0)
            <= _MAX_NAME_BESIDE_LATENCY
        )
        hidden_keys = _WIDE_ONLY_COLUMNS | (
            {"of_optimum", "gap"} if has_classes else {"of_optimum"} if shows_fairness else set()
        )
        # No latency beside long names, and no metrics of the cut splits under an objective with a
        # metric of its own.
        hidden_keys |= set() if has_room else {"latency"}
        if Objective(objective).rules.measure_label:
            hidden_keys |= {"cut"}
        columns = {key: column for key, column in columns.items() if key not in hidden_keys}
        # Two-line labels leave space for the names of schemes.
        if "cut" in columns and columns["cut"].is_shown(summaries):
            columns = {
                key: dataclasses.replace(
                    shown_column, label=shown_column.label.replace(" ", "\n", 1)
                )
                for key, shown_column in columns.items()
            }
        # The caption has the statuses ("691 optimal, 2 failed") of schemes that failed some cases.
        failed_summaries = [
            summary
            for summary in summaries
            if _UNUSABLE_STATUSES & {part.split(" ", 1)[1] for part in summary.status.split(", ")}
        ]
        caption = "; ".join(f"{summary.scheme}: {summary.status}" for summary in failed_summaries)
    return Table(
        f"{title}; objective: {objective}", tuple(columns.values()), summaries, caption=caption
    )


# Columns that a terminal of 80 characters does not show.
_WIDE_ONLY_COLUMNS = {
    "value",
    "carried",
    "build",
    "interval",
    "worst",
    "compared",
    "gap_known",
    "max_violation",
    "solve",
    "parallel",
    "cut_gap",
    "status",
}


def _scheme_columns(summaries: list[Summary], objective: str) -> dict[str, Column]:
    """Return all columns of the table of schemes, by a short key.

    Args:
        summaries: a summary of each scheme; their priority classes have a column each.
        objective: objective of all of them, whose metric ranks the schemes.
    """
    quality = _quality_columns(objective)
    classes = dict.fromkeys(
        class_summary.name for summary in summaries for class_summary in summary.classes
    )
    return {
        "scheme": Column("scheme", "scheme"),
        "fairness": Column("fairness", "fairness", ratio_text, most_is_best=True, optional=True),
        **quality,
        **{f"class {name}": _class_column(name) for name in classes},
        "of_optimum": Column("of LP-all", "of_optimum", percent, most_is_best=True),
        "interval": Column(
            "of LP-all, 95%",
            "of_optimum_low",
            text=_interval_text,
            most_is_best=True,
            optional=True,
        ),
        "worst": Column("of LP-all, worst", "worst", percent, most_is_best=True),
        "compared": Column("cases", lambda summary: summary.compared or None, str, optional=True),
        "cut": Column("cut only", "cut_demand", percent, most_is_best=True, optional=True),
        "cut_gap": Column("gap, cut only", "cut_gap", percent, optional=True),
        "gap": Column("certified gap", "gap", percent),
        "gap_known": Column("gap by the best bound", "gap_known", percent),
        "max_violation": Column(
            "max violation",
            "max_violation",
            lambda violation: "-" if math.isnan(violation) else f"{violation:.0e}",
        ),
        "time": Column("time", "total_s", time_text),
        "build": Column("build", "build_s", time_text),
        "solve": Column("solve", "solve_s", time_text),
        "parallel": Column("if parallel", "parallel_s", time_text, optional=True),
        "latency": Column("latency", "latency_mean", milliseconds, optional=True),
        "status": Column("status", "status"),
    }


def _quality_columns(objective: str) -> dict[str, Column]:
    """Return the columns of value and satisfied demand, by key; "quality" is the key of the column
    that ranks schemes.

    Args:
        objective: name of the objective.
    """
    rules = Objective(objective).rules
    if rules.measure_label:
        return {
            "quality": Column(
                rules.measure_label, "value", _number_text, most_is_best=rules.sense > 0
            ),
            "carried": Column("satisfied", "satisfied_demand", percent, most_is_best=True),
        }
    return {
        "quality": Column("satisfied", "satisfied_demand", percent, most_is_best=True),
        "value": Column("value, Gbit/s", "value", _number_text, most_is_best=True),
    }


def _interval_text(summary: Summary) -> str:
    """Format the 95% interval of the mean share of the optimum, such as "99.1% to 99.4%"; "-" if it
    is unknown.
    """
    low = summary.of_optimum_low
    high = summary.of_optimum_high
    return "-" if math.isnan(low) else f"{percent(low)} to {percent(high)}"


def _class_column(class_name: str) -> Column:
    """Return the column of a priority class: its satisfied demand, and its gap in brackets.

    Args:
        class_name: name of the class.
    """

    def satisfied(summary: Summary) -> float:
        """Return the satisfied demand of this class under a scheme; NaN if the network lacks it."""
        return next(
            (
                class_summary.satisfied_demand
                for class_summary in summary.classes
                if class_summary.name == class_name
            ),
            math.nan,
        )

    return Column(
        f"{class_name} (gap)",
        satisfied,
        text=lambda s: class_text(s, class_name),
        most_is_best=True,
    )


def _mean(values: list[float]) -> float:
    """Return the mean of some values; NaN if there are none."""
    return float(np.mean(values)) if values else math.nan


def _known_mean(rows: list[Row], name: str) -> float:
    """Return the mean of a column over the rows in which it is not NaN; NaN if there are none."""
    return _mean([getattr(row, name) for row in rows if not math.isnan(getattr(row, name))])


def _median(values: list[float]) -> float:
    """Return the median of some values; NaN if there are none."""
    return float(np.median(values)) if values else math.nan


def _number_text(value: float) -> str:
    """Format a number with five significant digits; "-" if it is not finite."""
    return f"{value:.5g}" if math.isfinite(value) else "-"


def class_text(summary: Summary, name: str) -> str:
    """Format the satisfied demand and the gap of a priority class, such as ``99.83% (0.15%)``;
    ``-`` if the scheme has no such class.

    Args:
        summary: summary of the scheme.
        name: name of the class.
    """
    class_summary = next(
        (candidate for candidate in summary.classes if candidate.name == name), None
    )
    return (
        "-"
        if class_summary is None
        else f"{percent(class_summary.satisfied_demand)} ({percent(class_summary.gap)})"
    )
