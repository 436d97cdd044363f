"""The table that sets schemes side by side."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
from rich.table import Table

from teal.evaluation import Row
from teal.objectives import Objective, ObjectiveName

YARDSTICK = "lp-all"


@dataclasses.dataclass(frozen=True)
class Summary:
    """One scheme over all its matrices.

    Attributes:
        scheme: as it was specified.
        value: mean objective.
        of_optimum: mean over the matrices of value / optimum, NaN without an optimum to compare with.
        worst: the worst of these ratios.
        satisfied_demand, gap, gap_known: means.
        max_violation: the largest.
        build_s, solve_s, parallel_s: medians.
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
    parallel_s: float
    status: str


def summarise(rows: list[Row]) -> list[Summary]:
    """One summary a scheme, in order of appearance.  Optima come from LP-all's rows that are optimal."""
    best = {r.index: r.value for r in rows if r.scheme.split(":")[0] == YARDSTICK and r.status == "optimal"}
    minimised = bool(rows) and not Objective(ObjectiveName(rows[0].objective)).higher_is_better
    summaries = []
    for scheme in dict.fromkeys(row.scheme for row in rows):
        own = [row for row in rows if row.scheme == scheme]
        kept = [row for row in own if not math.isnan(row.value)]
        ratios = [row.value / best[row.index] for row in kept if best.get(row.index, 0.0) > 0]
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
                _median([row.parallel_s for row in kept if not math.isnan(row.parallel_s)]),
                ", ".join(f"{count} {status}" for status, count in counts.items()),
            )
        )
    return summaries


def render(summaries: list[Summary], objective: str) -> Table:
    """The table for a terminal."""
    program = Objective(ObjectiveName(objective))
    minimised = not program.higher_is_better
    value = "mean max link utilisation" if minimised else "mean value (Gbit/s)"
    if program.is_balanced and not minimised:
        value = "mean least share"
    table = Table(title=f"objective: {objective}", title_justify="left")
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
            s.scheme, _number(s.value), _percent(s.of_optimum), _percent(s.worst), _percent(s.satisfied_demand),
            _percent(s.gap), _percent(s.gap_known),
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


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{round(100 * share, 2) + 0.0:.2f}%"  # + 0.0: no "-0.00%"


def time_text(seconds: float) -> str:
    """``1.2 ms``, ``3.40 s``; ``-`` for NaN."""
    if math.isnan(seconds):
        return "-"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
