"""Means over cases, and paired differences between schemes on the same cases, with 95% bootstrap
intervals (:mod:`teal.runtime.bootstrap`).

Draws of one matrix (other failed links, other noise) and repeats of a scheme with other seeds are
not independent of each other, so the bootstrap draws whole matrices.  A failed case counts with
satisfied demand and value 0 (infinite for a value that is minimised) and gap 1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from teal.objectives import Objective
from teal.runtime.bootstrap import interval_of_mean
from teal_study.evaluation.rows import Row, by_level, by_network, shares_of_optimum

SUMMARY = "summary.csv"
DIFFERENCES = "differences.csv"
# Metric: value over the value of LP-all's optimal row of the same case.
OF_OPTIMUM = "of_optimum"
# Columns of rows, and OF_OPTIMUM, that are summarised.
_METRICS = (
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
    """Mean of one metric of one scheme over the cases of a network, a protocol and a level.

    There is no row for a metric that is infinite in some case.

    Attributes:
        topology, traffic, protocol, level, scheme: common values of the rows of cases.
        measure: name of the metric.
        cases: number of cases with a value.
        failed: number of cases without a usable allocation.
        matrices: number of distinct matrices among those with a value.
        mean: mean of the metric.
        low, high: ends of the 95% interval of the mean; the mean itself for one matrix.
        worst: worst share of the optimum; NaN for other metrics.
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
    """Mean difference of one metric between two schemes, over the cases that both have.

    Attributes:
        topology, traffic, protocol, level, scheme: common values of the rows of cases.
        less: the scheme whose metric is subtracted.
        measure: name of the metric.
        cases: number of cases in which both have a value.
        matrices: number of distinct matrices among them.
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
    """Yield the mean of each metric that has values, for each network, protocol, level and scheme.

    The bootstrap is deterministic: equal rows give equal intervals.

    Args:
        rows: rows of cases.
    """
    shares = shares_of_optimum(rows)
    for group, rows_by_scheme in _rows_by_group(rows):
        for scheme, scheme_rows in rows_by_scheme.items():
            num_failed = sum(not row.usable for row in scheme_rows)
            is_maximum = Objective(scheme_rows[0].objective).rules.sense > 0
            for metric in _METRICS:
                # Index of the matrix and value of the metric for each case, without NaN values; no
                # cases if a value is infinite, which omits the metric.
                cases = _finite_cases(
                    [(row.index, _counted_value(row, metric, shares)) for row in scheme_rows]
                )
                # Only the share of the optimum has a worst value.
                if cases:
                    interval = interval_of_mean(cases)
                    yield MeanRow(
                        *group,
                        scheme,
                        metric,
                        len(cases),
                        num_failed,
                        interval.matrices,
                        interval.mean,
                        interval.low,
                        interval.high,
                        (min if is_maximum else max)(value for _, value in cases)
                        if metric == OF_OPTIMUM
                        else math.nan,
                    )


def difference_rows(rows: list[Row]) -> Iterator[DifferenceRow]:
    """Yield the mean difference of each metric that both schemes have, for each network, protocol,
    level and pair of schemes.

    Args:
        rows: rows of cases.
    """
    shares = shares_of_optimum(rows)
    for group, rows_by_scheme in _rows_by_group(rows):
        for (first_scheme, first_rows), (second_scheme, second_rows) in itertools.combinations(
            rows_by_scheme.items(), 2
        ):
            # Rows (second scheme, first scheme) of the cases that both schemes have.
            first_row_by_case = {(row.draw, row.index): row for row in first_rows}
            row_pairs = [
                (row, first_row_by_case[row.draw, row.index])
                for row in second_rows
                if (row.draw, row.index) in first_row_by_case
            ]
            # Index of the matrix, and difference of the metric, of each case.
            for metric in _METRICS:
                cases = _finite_cases(
                    [
                        (
                            minuend.index,
                            _difference(
                                _counted_value(minuend, metric, shares),
                                _counted_value(subtrahend, metric, shares),
                            ),
                        )
                        for minuend, subtrahend in row_pairs
                    ]
                )
                if cases:
                    interval = interval_of_mean(cases)
                    yield DifferenceRow(
                        *group,
                        second_scheme,
                        first_scheme,
                        metric,
                        len(cases),
                        interval.matrices,
                        interval.mean,
                        interval.low,
                        interval.high,
                    )


def _rows_by_group(
    rows: list[Row],
) -> Iterator[tuple[tuple[str, str, str, str], dict[str, list[Row]]]]:
    """Yield (network, traffic, protocol, level) with the rows of each scheme, by scheme.

    A scheme without any usable allocation is omitted.

    Args:
        rows: rows of cases.
    """
    for (topology, traffic), network_rows in by_network(rows).items():
        for (protocol, level), level_rows in by_level(network_rows).items():
            rows_by_scheme: dict[str, list[Row]] = {}
            for row in level_rows:
                rows_by_scheme.setdefault(row.scheme, []).append(row)
            usable_schemes = {
                name: scheme_rows
                for name, scheme_rows in rows_by_scheme.items()
                if any(row.usable for row in scheme_rows)
            }
            yield (topology, traffic, protocol, level), usable_schemes


def _counted_value(row: Row, metric: str, shares: Mapping[int, float]) -> float:
    """Return the value of a metric that a mean uses for a row.

    Args:
        row: the row.
        metric: name of the metric.
        shares: share of the optimum by ``id`` of the row.
    """
    return shares[id(row)] if metric == OF_OPTIMUM else row.counted(metric)


def _difference(minuend: float, subtrahend: float) -> float:
    """Return minuend - subtrahend; infinity if either one is infinite, for which no mean exists."""
    return math.inf if math.isinf(minuend) or math.isinf(subtrahend) else minuend - subtrahend


def _finite_cases(cases: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the cases that have a value; none if a value is infinite, since there is no mean then.

    Args:
        cases: index of the matrix and value of each case.
    """
    if any(math.isinf(value) for _, value in cases):
        return []
    return [(index, value) for index, value in cases if not math.isnan(value)]
