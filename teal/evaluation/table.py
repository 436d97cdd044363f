"""Tables that compare schemes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from rich.markup import escape
from rich.table import Table

from teal.app.text import milliseconds, percent, ratio_text, time_text
from teal.evaluation.cases import Protocol
from teal.evaluation.rows import Row, by_level, by_network
from teal.objectives import Objective
from teal.problem.allocation import Status

_BAD = {status.value for status in Status if not status.usable}
_MAX_NAME_BESIDE_LATENCY = 12  # characters of a scheme's name, with which all columns fit into 80
REFERENCE_SCHEME = "lp-all"  # whose optima the others are compared with


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
    """One scheme over its cases; those that it failed count as :meth:`teal.evaluation.rows.Row.counted` says.

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
        fairness: under max_min, mean fairness against the best scheme (see :class:`teal.evaluation.rows.Row`).
        latency_mean: ms, mean over the cases of the mean over the volume; NaN without latencies.
        latency_99: ms, mean over the cases of the least latency that 99% of the volume do not exceed.
        largest_stretch: largest over the cases.
        cut_demand: mean share of all demand that the model's splits carry, cut to fit and not repaired; NaN without a
            model.
        cut_gap: mean gap of those, by the prices of the model.
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


def summarise(rows: list[Row]) -> list[Summary]:
    """One summary a scheme, in order of appearance.  Optima are those of LP-all's optimal rows."""
    optimum: dict[tuple[object, ...], float] = {}
    for row in rows:
        if row.scheme.split(":")[0] == REFERENCE_SCHEME and row.status == Status.OPTIMAL.value:
            better = max if Objective(row.objective).rules.sense > 0 else min
            optimum[_case(row)] = better(row.value, optimum.get(_case(row), row.value))
    summaries = []
    for scheme in dict.fromkeys(row.scheme for row in rows):
        all_rows = [row for row in rows if row.scheme == scheme]
        usable = [row for row in all_rows if not math.isnan(row.value)]
        counted = [row for row in all_rows if row.was_run] if usable else []  # a scheme that never worked has no mean
        ratios = [row.counted("value") / optimum[_case(row)] for row in counted if optimum.get(_case(row), 0.0) > 0]
        worst = (min if Objective(all_rows[0].objective).rules.sense > 0 else max)(ratios, default=math.nan)
        counts = Counter(row.status for row in all_rows)
        summaries.append(
            Summary(
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
                max((row.largest_stretch for row in usable if not math.isnan(row.largest_stretch)), default=math.nan),
                _known_mean(usable, "cut_demand"),
                _known_mean(usable, "cut_gap"),
            )
        )
    return summaries


def _classes(rows: list[Row]) -> tuple[ClassSummary, ...]:
    """One summary a class; classes without demand count as carried."""
    lines: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        for line in json.loads(row.classes or "[]"):
            lines.setdefault(line["class"], []).append(line)
    return tuple(
        ClassSummary(
            name,
            _mean([line["value"] / line["demand"] if line["demand"] > 0 else 1.0 for line in of_class]),
            max(line["gap"] for line in of_class),
        )
        for name, of_class in lines.items()
    )


def summaries_of(rows: list[Row]) -> list[dict[str, object]]:
    """The summaries of each network, protocol and level, as plain records."""
    return [
        {"topology": topology, "traffic": traffic, "protocol": protocol, "level": level} | dataclasses.asdict(summary)
        for (topology, traffic), network_rows in by_network(rows).items()
        for (protocol, level), of_level in by_level(network_rows).items()
        for summary in summarise(of_level)
    ]


def render_all(rows: list[Row], *, wide: bool) -> Iterator[Table]:
    """The tables for a terminal: for each network one of the unchanged matrices, then of the changed ones.

    Args:
        rows: at least one.
        wide: all columns; otherwise those that fit 80 characters.
    """
    for (topology, traffic), network_rows in by_network(rows).items():
        levels = by_level(network_rows)
        offline = levels.pop((Protocol.OFFLINE.value, ""), [])
        if offline:
            yield render(summarise(offline), offline[0].objective, f"{topology}, {traffic}", wide=wide)
        if wide:
            parts = [levels] if levels else []
        else:
            protocols = dict.fromkeys(protocol for protocol, _ in levels)
            parts = [
                {key: of_level for key, of_level in levels.items() if key[0] == protocol} for protocol in protocols
            ]
        yield from (_render_levels(part, topology) for part in parts)


def _render_levels(levels: dict[tuple[str, str], list[Row]], topology: str) -> Table:
    """Schemes down, levels of all protocols across: mean quality (see :class:`Quality`).

    Where a scheme failed some cases, the cell shows how many it solved, because its mean is over fewer cases.
    """
    rows = [row for level_rows in levels.values() for row in level_rows]
    quality = Quality.of(rows[0].objective)
    table = Table(title=escape(f"{topology}: mean {quality.label}"), title_justify="left")
    table.add_column("scheme", no_wrap=True)
    for protocol, level in levels:
        table.add_column(f"{protocol} {level}", justify="right")
    for scheme in dict.fromkeys(row.scheme for row in rows):
        cells = []
        for level_rows in levels.values():
            scheme_rows = [row for row in level_rows if row.scheme == scheme]
            values = [quality.of_row(row) for row in scheme_rows if row.usable]
            solved = f" ({len(values)}/{len(scheme_rows)})" if 0 < len(values) < len(scheme_rows) else ""
            cells.append(f"{_mean(values):.2f}{solved}" if values else "-")
        table.add_row(escape(scheme), *cells)
    return table


def _case(row: Row) -> tuple[object, ...]:
    """Identifies the case of a row among all networks."""
    return row.topology, row.traffic, row.protocol, row.level, row.draw, row.index


@dataclasses.dataclass(frozen=True)
class Quality:
    """The number that plots and tables show for a row: satisfied demand in %, or the value of a balanced program.

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


def render(summaries: list[Summary], objective: str, title: str, *, wide: bool) -> Table:
    """The table for a terminal: quality, share of the optimum, gap, time; or all columns."""
    measure = Objective(objective).rules.measure_label
    table = Table(title=escape(f"{title}; objective: {objective}"), title_justify="left")
    table.add_column("scheme", no_wrap=wide, overflow="fold")
    has_models = not measure and any(not math.isnan(s.cut_demand) for s in summaries)
    columns: dict[str, Callable[[Summary], str]] = {
        measure or "satisfied": lambda s: _number(s.value) if measure else percent(s.satisfied_demand),
        "of LP-all": lambda s: percent(s.of_optimum),
        **({"cut only": lambda s: percent(s.cut_demand)} if has_models else {}),
        "certified gap": lambda s: percent(s.gap),
        "time": lambda s: time_text(s.total_s),
    }
    of_class: dict[str, Callable[[Summary], str]] = {
        name: lambda s, name=name: class_text(s, name)  # type: ignore[misc]
        for name in dict.fromkeys(one.name for s in summaries for one in s.classes)
    }
    if of_class:  # of which each has an optimum of its own, so that a share of the sum says little
        del columns["of LP-all"], columns["certified gap"]
        columns |= of_class
    is_compared = any(not math.isnan(s.fairness) for s in summaries)
    if is_compared:
        del columns["of LP-all"]  # of the flow, of which a fair allocation has less than the optimum
        columns = {"fairness": lambda s: ratio_text(s.fairness), **columns}
    if wide:
        columns = {
            f"mean {measure or 'value (Gbit/s)'}": lambda s: _number(s.value),
            "of LP-all, mean": lambda s: percent(s.of_optimum),
            "of LP-all, worst": lambda s: percent(s.worst),
            "satisfied demand": lambda s: percent(s.satisfied_demand),
            "certified gap": lambda s: percent(s.gap),
            "gap by the best bound": lambda s: percent(s.gap_known),
            "max violation": lambda s: "-" if math.isnan(s.max_violation) else f"{s.max_violation:.0e}",
            "time, median": lambda s: time_text(s.total_s),
            "build, median": lambda s: time_text(s.build_s),
            "solve, median": lambda s: time_text(s.solve_s),
        }
        if any(not math.isnan(s.cut_demand) for s in summaries):
            columns["cut only"] = lambda s: percent(s.cut_demand)
            columns["gap, cut only"] = lambda s: percent(s.cut_gap)
        if any(not math.isnan(s.parallel_s) for s in summaries):
            columns["in parallel, median"] = lambda s: time_text(s.parallel_s)
        columns |= of_class
        if is_compared:
            columns["fairness"] = lambda s: ratio_text(s.fairness)
    has_room = wide or max((len(s.scheme) for s in summaries), default=0) <= _MAX_NAME_BESIDE_LATENCY
    if has_room and any(not math.isnan(s.latency_mean) for s in summaries):
        columns["latency"] = lambda s: milliseconds(s.latency_mean)
    for column in columns:  # headings of two lines leave room for the names of schemes
        heading = column.replace(" ", "\n", 1) if has_models and not wide else column
        table.add_column(escape(heading), justify="right")
    if wide:
        table.add_column("status")
    elif failed := [s for s in summaries if _BAD & {part.split(" ", 1)[1] for part in s.status.split(", ")}]:
        table.caption = escape("; ".join(f"{s.scheme}: {s.status}" for s in failed))
        table.caption_justify = "left"
    for s in summaries:
        table.add_row(escape(s.scheme), *(cell(s) for cell in columns.values()), *([s.status] if wide else []))
    return table


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
    """Satisfied demand of a class and its gap, such as ``99.83% (0.15%)``; ``-`` if the scheme has none."""
    figures = next((one for one in summary.classes if one.name == name), None)
    return "-" if figures is None else f"{percent(figures.satisfied_demand)} ({percent(figures.gap)})"
