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
from teal.evaluation.cases import Protocol
from teal.evaluation.intervals import OF_OPTIMUM, DifferenceRow, difference_rows
from teal.evaluation.rows import Row, by_level, by_network, shares_of_optimum
from teal.objectives import Objective
from teal.problem.allocation import Status
from teal.runtime.bootstrap import interval_of_mean

_BAD = {status.value for status in Status if not status.usable}
# Characters of a scheme's name with which all columns fit into 80.
_MAX_NAME_BESIDE_LATENCY = 12


@dataclasses.dataclass(frozen=True)
class ClassSummary:
    """A priority class under one scheme.

    Attributes:
        name: name of the class.
        satisfied_demand: mean share of its demand that is carried.
        gap: its widest gap by the scheme's own prices.
    """

    name: str
    satisfied_demand: float
    gap: float


@dataclasses.dataclass(frozen=True)
class Summary:
    """One scheme over its cases; those that it failed count as
    :meth:`teal.evaluation.rows.Row.counted` says.

    Attributes:
        scheme: as it was specified.
        value: mean objective.
        of_optimum: mean of value / optimum; NaN without an optimum to compare with.
        worst: the worst of these ratios.
        satisfied_demand: mean share of all demand that is carried.
        gap: mean gap by the scheme's own prices.
        gap_known: mean gap by the best bound of all schemes.
        max_violation: largest violation of any rule.
        build_s: median seconds to build a model, as the scheme reports.
        solve_s: median seconds to solve it, as the scheme reports.
        total_s: median seconds by the clock of the evaluation.
        parallel_s: median seconds to build and solve with a processor for each subproblem.
        status: number of cases that ended in each way, such as ``691 optimal``.
        classes: under priority, the highest one first.
        fairness: under max_min, mean fairness against the best scheme (see
            :class:`teal.evaluation.rows.Row`).
        latency_mean: ms, mean over the cases of the mean over the volume; NaN without latencies.
        latency_99: ms, mean over the cases of the least latency that 99% of the volume do not
            exceed.
        largest_stretch: largest over the cases.
        cut_demand: mean share of all demand that the model's splits carry, cut to fit and not
            repaired; NaN without a model.
        cut_gap: mean gap of those, by the prices of the model.
        compared: number of cases with an optimum to compare with.
        of_optimum_low: lower end of the 95% interval of the mean share of the optimum.
        of_optimum_high: its upper end.
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
    """Return one summary for each scheme, in order of appearance.  Optima are those of LP-all's
    optimal rows.
    """
    share_of_row = shares_of_optimum(rows)
    return [
        _summary(scheme, [row for row in rows if row.scheme == scheme], share_of_row)
        for scheme in dict.fromkeys(row.scheme for row in rows)
    ]


def _summary(scheme: str, rows: list[Row], share_of_row: Mapping[int, float]) -> Summary:
    """Summarise the rows of a scheme.

    Args:
        scheme: name of the scheme.
        rows: its rows, at least one.
        share_of_row: share of the optimum by ``id`` of a row; NaN where there is no optimum.
    """
    usable = [row for row in rows if not math.isnan(row.value)]
    # A scheme that never worked has no mean.
    counted = [row for row in rows if row.was_run] if usable else []
    # Shares of the optimum, with the interval of their mean.
    shares = [(row.index, share_of_row[id(row)]) for row in counted]
    shares = [(index, share) for index, share in shares if not math.isnan(share)]
    ratios = [share for _, share in shares]
    are_finite = bool(ratios) and all(map(math.isfinite, ratios))
    interval = interval_of_mean(shares) if are_finite else None
    worst = (min if Objective(rows[0].objective).rules.sense > 0 else max)(ratios, default=math.nan)
    counts = Counter(row.status for row in rows)
    return Summary(
        scheme,
        _mean([row.counted("value") for row in counted]),
        _mean(ratios),
        worst,
        _mean([row.counted("satisfied_demand") for row in counted]),
        _mean([row.counted("gap") for row in counted]),
        _mean([value for row in counted if not math.isnan(value := row.counted("gap_known"))]),
        max((row.max_violation for row in usable), default=math.nan),
        _median([row.build_s for row in usable]),
        _median([row.solve_s for row in usable]),
        _median([row.total_s for row in usable]),
        _median([row.parallel_s for row in usable if not math.isnan(row.parallel_s)]),
        ", ".join(f"{count} {status}" for status, count in counts.items()),
        _classes(usable),
        _known_mean(usable, "fairness"),
        _known_mean(usable, "latency_mean"),
        _known_mean(usable, "latency_99"),
        max(
            (row.largest_stretch for row in usable if not math.isnan(row.largest_stretch)),
            default=math.nan,
        ),
        _known_mean(usable, "cut_demand"),
        _known_mean(usable, "cut_gap"),
        len(ratios),
        math.nan if interval is None else interval.low,
        math.nan if interval is None else interval.high,
    )


def _classes(rows: list[Row]) -> tuple[ClassSummary, ...]:
    """One summary a class; classes without demand count as carried."""
    lines: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        for line in json.loads(row.classes or "[]"):
            lines.setdefault(line["class"], []).append(line)
    return tuple(
        ClassSummary(
            name,
            _mean(
                [line["value"] / line["demand"] if line["demand"] > 0 else 1.0 for line in of_class]
            ),
            max(line["gap"] for line in of_class),
        )
        for name, of_class in lines.items()
    )


def summaries_of(rows: list[Row]) -> list[dict[str, object]]:
    """The summaries of each network, protocol and level, as plain records."""
    return [
        {"topology": topology, "traffic": traffic, "protocol": protocol, "level": level}
        | dataclasses.asdict(summary)
        for (topology, traffic), network_rows in by_network(rows).items()
        for (protocol, level), of_level in by_level(network_rows).items()
        for summary in summarise(of_level)
    ]


def summary_tables(rows: list[Row], *, wide: bool) -> Iterator[Table]:
    """The tables for a terminal: for each network one of the unchanged matrices, then of the
    changed ones.

    Args:
        rows: at least one.
        wide: all columns; otherwise those that fit 80 characters.
    """
    for (topology, traffic), network_rows in by_network(rows).items():
        levels = by_level(network_rows)
        offline = levels.pop((Protocol.OFFLINE.value, ""), [])
        if offline:
            yield summary_table(
                summarise(offline), offline[0].objective, f"{topology}, {traffic}", wide=wide
            )
        if wide:
            parts = [levels] if levels else []
        else:
            protocols = dict.fromkeys(protocol for protocol, _ in levels)
            parts = [
                {key: of_level for key, of_level in levels.items() if key[0] == protocol}
                for protocol in protocols
            ]
        yield from (_level_table(part, topology) for part in parts)


def difference_tables(rows: list[Row]) -> Iterator[Table]:
    """For each network the differences between the schemes' shares of LP-all's optimum, over the
    cases that both have: of each scheme from those before it.

    Args:
        rows: rows of any networks.
    """
    columns = (
        Column("scheme", "scheme"),
        Column("less", "less", is_name=True),
        Column("protocol", "protocol"),
        Column("level", "level", optional=True),
        Column("difference (points)", "mean", _points),
        Column("95%", "low", text=lambda row: f"{_points(row.low)} to {_points(row.high)}"),
        Column("cases", "cases", str),
    )
    by_network: dict[tuple[str, str], list[DifferenceRow]] = {}
    for row in difference_rows(rows):
        if row.measure == OF_OPTIMUM:
            by_network.setdefault((row.topology, row.traffic), []).append(row)
    for (topology, traffic), network_rows in by_network.items():
        title = f"{topology}, {traffic}: share of LP-all's optimum, of a scheme less another one's"
        yield Table(title, columns, network_rows)


def _points(share: float) -> str:
    """Percentage points of a share, with the sign."""
    return f"{100 * share:+.2f}"


def _level_table(levels: dict[tuple[str, str], list[Row]], topology: str) -> Table:
    """Schemes down, levels of all protocols across: mean quality (see :class:`Quality`).

    Where a scheme failed some cases, the cell shows how many it solved, because its mean is over
    fewer cases.
    """
    rows = [row for level_rows in levels.values() for row in level_rows]
    quality = Quality.of(rows[0].objective)

    def text(of_scheme: Sequence[Row]) -> str:
        values = [quality.of_row(row) for row in of_scheme if row.usable]
        solved = f" ({len(values)}/{len(of_scheme)})" if 0 < len(values) < len(of_scheme) else ""
        return f"{_mean(values):.2f}{solved}" if values else "-"

    def column(protocol: str, level: str) -> Column:
        of_level = levels[protocol, level]
        return Column(
            f"{protocol} {level}",
            lambda scheme: [row for row in of_level if row.scheme == scheme],
            text,
        )

    columns = (Column("scheme", str), *(column(*key) for key in levels))
    return Table(
        f"{topology}: mean {quality.label}",
        columns,
        list(dict.fromkeys(row.scheme for row in rows)),
    )


@dataclasses.dataclass(frozen=True)
class Quality:
    """The number that plots and tables show for a row: satisfied demand in %, or the value of a
    balanced program.

    Attributes:
        objective: the program.
        label: name of the number, for an axis or a column.
    """

    objective: Objective
    label: str

    @classmethod
    def of(cls, name: str) -> Quality:
        """The quality for the objective ``name``."""
        objective = Objective(name)
        return cls(objective, objective.rules.measure_label or "satisfied demand (%)")

    def of_row(self, row: Row) -> float:
        """The number for a row."""
        return row.value if self.objective.rules.measure_label else 100 * row.satisfied_demand


def summary_table(summaries: list[Summary], objective: str, title: str, *, wide: bool) -> Table:
    """The schemes of one network: quality, share of the optimum, gap, time; or all columns.

    Args:
        summaries: one a scheme.
        objective: program of all of them.
        title: title in the terminal.
        wide: all columns, as on the page; otherwise those that fit 80 characters.
    """
    columns = _columns(summaries, objective)
    caption = ""
    if not wide:
        # With classes each class has an optimum of its own.
        is_sum = any(s.classes for s in summaries)
        # A fair allocation has less flow than the optimum.
        is_compared = columns["fairness"].is_shown(summaries)
        has_room = max((len(s.scheme) for s in summaries), default=0) <= _MAX_NAME_BESIDE_LATENCY
        hidden = _WIDE | (
            {"of_optimum", "gap"} if is_sum else {"of_optimum"} if is_compared else set()
        )
        hidden |= set() if has_room else {"latency"}
        if Objective(objective).rules.measure_label:
            hidden |= {"cut"}
        columns = {key: column for key, column in columns.items() if key not in hidden}
        # Labels of two lines leave space for the names of schemes.
        if "cut" in columns and columns["cut"].is_shown(summaries):
            columns = {
                key: dataclasses.replace(
                    shown_column, label=shown_column.label.replace(" ", "\n", 1)
                )
                for key, shown_column in columns.items()
            }
        failed = [
            s for s in summaries if _BAD & {part.split(" ", 1)[1] for part in s.status.split(", ")}
        ]
        caption = "; ".join(f"{s.scheme}: {s.status}" for s in failed)
    return Table(
        f"{title}; objective: {objective}", tuple(columns.values()), summaries, caption=caption
    )


# Columns that a terminal of 80 characters does not show.
_WIDE = {
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


def _columns(summaries: list[Summary], objective: str) -> dict[str, Column]:
    """All columns, by a short name."""
    quality = _quality_columns(objective)
    classes = dict.fromkeys(class_figures.name for s in summaries for class_figures in s.classes)
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
        "compared": Column("cases", lambda s: s.compared or None, str, optional=True),
        "cut": Column("cut only", "cut_demand", percent, most_is_best=True, optional=True),
        "cut_gap": Column("gap, cut only", "cut_gap", percent, optional=True),
        "gap": Column("certified gap", "gap", percent),
        "gap_known": Column("gap by the best bound", "gap_known", percent),
        "max_violation": Column(
            "max violation", "max_violation", lambda v: "-" if math.isnan(v) else f"{v:.0e}"
        ),
        "time": Column("time", "total_s", time_text),
        "build": Column("build", "build_s", time_text),
        "solve": Column("solve", "solve_s", time_text),
        "parallel": Column("if parallel", "parallel_s", time_text, optional=True),
        "latency": Column("latency", "latency_mean", milliseconds, optional=True),
        "status": Column("status", "status"),
    }


def _quality_columns(objective: str) -> dict[str, Column]:
    """Return the columns of the value and the satisfied demand."""
    rules = Objective(objective).rules
    if rules.measure_label:
        return {
            "quality": Column(rules.measure_label, "value", _number, most_is_best=rules.sense > 0),
            "carried": Column("satisfied", "satisfied_demand", percent, most_is_best=True),
        }
    return {
        "quality": Column("satisfied", "satisfied_demand", percent, most_is_best=True),
        "value": Column("value, Gbit/s", "value", _number, most_is_best=True),
    }


def _interval_text(summary: Summary) -> str:
    """The 95% interval of the mean share of the optimum."""
    low = summary.of_optimum_low
    high = summary.of_optimum_high
    return "-" if math.isnan(low) else f"{percent(low)} to {percent(high)}"


def _class_column(name: str) -> Column:
    """Satisfied demand of a class, and its gap in brackets."""

    def satisfied(summary: Summary) -> float:
        return next(
            (
                class_figures.satisfied_demand
                for class_figures in summary.classes
                if class_figures.name == name
            ),
            math.nan,
        )

    return Column(f"{name} (gap)", satisfied, text=lambda s: class_text(s, name), most_is_best=True)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _known_mean(rows: list[Row], name: str) -> float:
    """Mean of a column over the rows that have it."""
    return _mean([getattr(row, name) for row in rows if not math.isnan(getattr(row, name))])


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else math.nan


def _number(value: float) -> str:
    return f"{value:.5g}" if math.isfinite(value) else "-"


def class_text(summary: Summary, name: str) -> str:
    """Satisfied demand of a class and its gap, such as ``99.83% (0.15%)``; ``-`` if the scheme has
    none.
    """
    figures = next(
        (class_figures for class_figures in summary.classes if class_figures.name == name), None
    )
    return (
        "-" if figures is None else f"{percent(figures.satisfied_demand)} ({percent(figures.gap)})"
    )
