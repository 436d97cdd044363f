"""The tables that set schemes side by side."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
from rich.markup import escape
from rich.table import Table

from teal.allocation import Status
from teal.evaluation import Row
from teal.objectives import Objective, ObjectiveName
from teal.protocols import Protocol

YARDSTICK = "lp-all"


@dataclasses.dataclass(frozen=True)
class Summary:
    """One scheme over all its cases.

    Attributes:
        scheme: as it was specified.
        value: mean objective.
        of_optimum: mean over the cases of value / optimum, NaN without an optimum to compare with.
        worst: the worst of these ratios.
        satisfied_demand, gap, gap_known: means.
        max_violation: the largest.
        build_s, solve_s, taken_s (both), parallel_s: medians.
        status: how many ended how, ``691 optimal``.
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
    taken_s: float
    parallel_s: float
    status: str


def summarise(rows: list[Row]) -> list[Summary]:
    """One summary a scheme, in order of appearance.  Optima come from LP-all's rows that are optimal."""
    minimised = bool(rows) and not Objective(ObjectiveName(rows[0].objective)).higher_is_better
    best: dict[tuple[object, ...], float] = {}
    for row in rows:
        if row.scheme.split(":")[0] == YARDSTICK and row.status == Status.OPTIMAL.value:
            better = min if minimised else max
            best[_case(row)] = better(row.value, best.get(_case(row), row.value))
    summaries = []
    for scheme in dict.fromkeys(row.scheme for row in rows):
        own = [row for row in rows if row.scheme == scheme]
        kept = [row for row in own if not math.isnan(row.value)]
        ratios = [row.value / best[_case(row)] for row in kept if best.get(_case(row), 0.0) > 0]
        worst = (max if minimised else min)(ratios, default=math.nan)
        counts = Counter(row.status for row in own)
        summaries.append(
            Summary(
                scheme,
                _mean([row.value for row in kept]),
                _mean(ratios),
                worst,
                _mean([row.satisfied_demand for row in kept]),
                _mean([row.gap for row in kept]),
                _mean([row.gap_known for row in kept if not math.isnan(row.gap_known)]),
                max((row.max_violation for row in kept), default=math.nan),
                _median([row.build_s for row in kept]),
                _median([row.solve_s for row in kept]),
                _median([row.taken_s for row in kept]),
                _median([row.parallel_s for row in kept if not math.isnan(row.parallel_s)]),
                ", ".join(f"{count} {status}" for status, count in counts.items()),
            )
        )
    return summaries


def by_network(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each (topology, traffic), in order of appearance."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.topology, row.traffic), []).append(row)
    return found


def by_level(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each (protocol, level), in order of appearance."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.protocol, row.level), []).append(row)
    return found


def render_all(rows: list[Row]) -> Iterator[Table]:
    """For a terminal: of each network the matrices as they came, then what else was done to them."""
    for (topology, traffic), own in by_network(rows).items():
        levels = by_level(own)
        offline = levels.pop((Protocol.OFFLINE.value, ""), [])
        if offline:
            yield render(summarise(offline), offline[0].objective, f"{topology}, {traffic}")
        if levels:
            yield _render_levels(levels, topology)


def _render_levels(levels: dict[tuple[str, str], list[Row]], topology: str) -> Table:
    """Schemes down, levels of all protocols across: what is satisfied, or how full the fullest link is.

    Where a scheme failed some cases it says how many it managed: its mean is over others than theirs.
    """
    rows = [row for own in levels.values() for row in own]
    quality = Quality.of(rows[0].objective)
    table = Table(title=escape(f"{topology}: mean {quality.label}"), title_justify="left")
    table.add_column("scheme", no_wrap=True)
    for protocol, level in levels:
        table.add_column(f"{protocol} {level}", justify="right")
    for scheme in dict.fromkeys(row.scheme for row in rows):
        cells = []
        for own in levels.values():
            kept = [row for row in own if row.scheme == scheme]
            usable = [quality.of_row(row) for row in kept if row.usable]
            some = f" ({len(usable)}/{len(kept)})" if 0 < len(usable) < len(kept) else ""
            cells.append(f"{_mean(usable):.2f}{some}" if usable else "-")
        table.add_row(escape(scheme), *cells)
    return table


def _case(row: Row) -> tuple[object, ...]:
    return row.topology, row.traffic, row.protocol, row.level, row.draw, row.index


@dataclasses.dataclass(frozen=True)
class Quality:
    """What plots and tables show of a row: satisfied demand in per cent, or the value of a balanced program.

    Attributes:
        objective: which program.
        label: of axis or column.
    """

    objective: Objective
    label: str

    @classmethod
    def of(cls, name: str) -> Quality:
        """Of an objective by name."""
        objective = Objective(ObjectiveName(name))
        if objective.maximises_value:
            return cls(objective, "satisfied demand (%)")
        return cls(objective, "least share carried" if objective.may_shed else "largest link utilisation")

    def of_row(self, row: Row) -> float:
        """The number that the label names."""
        return 100 * row.satisfied_demand if self.objective.maximises_value else row.value


def render(summaries: list[Summary], objective: str, title: str) -> Table:
    """The table for a terminal."""
    program = Objective(ObjectiveName(objective))
    minimised = not program.higher_is_better
    value = "mean max link utilisation" if minimised else "mean value (Gbit/s)"
    if program.is_balanced and not minimised:
        value = "mean least share"
    table = Table(title=escape(f"{title}; objective: {objective}"), title_justify="left")
    table.add_column("scheme", no_wrap=True)
    columns: tuple[str, ...] = (
        value, "of LP-all, mean", "of LP-all, worst", "satisfied demand", "certified gap", "gap by the best bound",
        "max violation", "build, median", "solve, median",
    )  # fmt: skip
    parallel = any(not math.isnan(s.parallel_s) for s in summaries)
    if parallel:
        columns = (*columns, "in parallel, median")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("status")
    for s in summaries:
        table.add_row(
            escape(s.scheme), _number(s.value), percent(s.of_optimum), percent(s.worst), percent(s.satisfied_demand),
            percent(s.gap), percent(s.gap_known),
            "-" if math.isnan(s.max_violation) else f"{s.max_violation:.0e}", time_text(s.build_s),
            time_text(s.solve_s), *([time_text(s.parallel_s)] if parallel else []), s.status,
        )  # fmt: skip
    return table


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else math.nan


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.5g}"


def percent(share: float) -> str:
    """``12.34%``; ``-`` for NaN."""
    return "-" if math.isnan(share) else f"{round(100 * share, 2) + 0.0:.2f}%"  # + 0.0: no "-0.00%"


def time_text(seconds: float) -> str:
    """``1.2 ms``, ``3.40 s``; ``-`` for NaN."""
    if math.isnan(seconds):
        return "-"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
