"""Means over cases, and differences between schemes on the same cases, with 95% intervals
(:mod:`teal.runtime.bootstrap`).

Draws of one matrix (other failed links, other noise) and repeats of a scheme with other seeds are
not independent of each other, so that whole matrices are drawn.  A case that a scheme failed counts
as :meth:`teal.evaluation.rows.Row.counted` says.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from teal.evaluation.rows import Row, by_level, by_network, shares_of_optimum
from teal.objectives import Objective
from teal.runtime.bootstrap import interval_of_mean

SUMMARY = "summary.csv"
DIFFERENCES = "differences.csv"
# Value over that of LP-all's optimal row of the same case.
OF_OPTIMUM = "of_optimum"
_MEASURES = (
    "satisfied_demand",
    OF_OPTIMUM,
    "value",
    "gap",
    "gap_known",
    "cut_demand",
    "cut_gap",
    "max_link_utilisation",
    "latency_mean",
    "solve_s",
    "wall_s",
)


@dataclasses.dataclass(frozen=True)
class MeanRow:
    """One column of one scheme over the cases of a network, a protocol and a level.

    Attributes:
        topology, traffic, protocol, level, scheme: as in rows.
        measure: name of the column.
        cases: number of rows with a value.
        failed: number of rows without a usable allocation.
        matrices: number of different matrices among those with a value.
        mean: mean of the column.
        low, high: ends of the 95% interval of the mean; the mean itself for one matrix.
        worst: the worst share of the optimum; NaN of other measures.

    A measure has no row where a case counts as infinite.
    """

    topology: str
    traffic: str
    protocol: str
    level: str
    scheme: str
    measure: str
    cases: int
    failed: int
    matrices: int
    mean: float
    low: float
    high: float
    worst: float


@dataclasses.dataclass(frozen=True)
class DifferenceRow:
    """One column of a scheme less that of another one, over the cases that both have.

    Attributes:
        topology, traffic, protocol, level, scheme: as in rows.
        less: the other scheme.
        measure: name of the column.
        cases: number of cases in which both have a value.
        matrices: number of different matrices among them.
        mean: mean of the difference.
        low, high: ends of the 95% interval of the mean; the mean itself for one matrix.
    """

    topology: str
    traffic: str
    protocol: str
    level: str
    scheme: str
    less: str
    measure: str
    cases: int
    matrices: int
    mean: float
    low: float
    high: float


def mean_rows(rows: list[Row]) -> Iterator[MeanRow]:
    """A row for each network, protocol, level, scheme and measure that has values; equal rows give
    equal intervals.
    """
    shares = shares_of_optimum(rows)
    for group, schemes in _groups(rows):
        for scheme, scheme_rows in schemes.items():
            failed = sum(not row.usable for row in scheme_rows)
            is_maximum = Objective(scheme_rows[0].objective).rules.sense > 0
            for measure in _MEASURES:
                cases = _finite_cases(
                    [(row.index, _counted(row, measure, shares)) for row in scheme_rows]
                )
                if cases:
                    interval = interval_of_mean(cases)
                    yield MeanRow(
                        *group,
                        scheme,
                        measure,
                        len(cases),
                        failed,
                        interval.matrices,
                        interval.mean,
                        interval.low,
                        interval.high,
                        (min if is_maximum else max)(value for _, value in cases)
                        if measure == OF_OPTIMUM
                        else math.nan,
                    )


def difference_rows(rows: list[Row]) -> Iterator[DifferenceRow]:
    """A row for each network, protocol, level, pair of schemes and measure that both have on some
    cases.
    """
    shares = shares_of_optimum(rows)
    for group, schemes in _groups(rows):
        for (first_scheme, first_rows), (second_scheme, second_rows) in itertools.combinations(
            schemes.items(), 2
        ):
            by_case = {(row.draw, row.index): row for row in first_rows}
            pairs = [
                (row, by_case[row.draw, row.index])
                for row in second_rows
                if (row.draw, row.index) in by_case
            ]
            for measure in _MEASURES:
                cases = _finite_cases(
                    [
                        (
                            minuend.index,
                            _difference(
                                _counted(minuend, measure, shares),
                                _counted(subtrahend, measure, shares),
                            ),
                        )
                        for minuend, subtrahend in pairs
                    ]
                )
                if cases:
                    interval = interval_of_mean(cases)
                    yield DifferenceRow(
                        *group,
                        second_scheme,
                        first_scheme,
                        measure,
                        len(cases),
                        interval.matrices,
                        interval.mean,
                        interval.low,
                        interval.high,
                    )


def _groups(rows: list[Row]) -> Iterator[tuple[tuple[str, str, str, str], dict[str, list[Row]]]]:
    """The rows of each network, traffic, protocol and level, by scheme; a scheme that never worked
    is left out.
    """
    for (topology, traffic), of_network in by_network(rows).items():
        for (protocol, level), of_level in by_level(of_network).items():
            schemes: dict[str, list[Row]] = {}
            for row in of_level:
                schemes.setdefault(row.scheme, []).append(row)
            worked = {
                name: scheme_rows
                for name, scheme_rows in schemes.items()
                if any(row.usable for row in scheme_rows)
            }
            yield (topology, traffic, protocol, level), worked


def _counted(row: Row, measure: str, shares: Mapping[int, float]) -> float:
    """The number that a mean takes for a row; shares of the optimum are by the row's identity."""
    return shares[id(row)] if measure == OF_OPTIMUM else row.counted(measure)


def _difference(minuend: float, subtrahend: float) -> float:
    """One number less another; infinite where either is."""
    return math.inf if math.isinf(minuend) or math.isinf(subtrahend) else minuend - subtrahend


def _finite_cases(cases: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The cases with a value; none where one is infinite, since there is then no mean."""
    if any(math.isinf(value) for _, value in cases):
        return []
    return [(index, value) for index, value in cases if not math.isnan(value)]
