"""Means over cases with 95% confidence intervals, by the bootstrap over matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from teal.evaluation import Row
from teal.reports.groups import by_level, by_network

SUMMARY = "summary.csv"
_MEASURES = (
    "satisfied_demand", "value", "gap", "gap_known", "max_link_utilisation", "latency_mean", "solve_s",
)  # fmt: skip
_DRAWS = 2000  # of the bootstrap
_LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class MeanRow:
    """One column of one scheme over the cases of a network, a protocol and a level.

    Draws of one matrix (other failed links, other noise) and repeats of a scheme with other seeds are not independent
    of each other, so that whole matrices are drawn.

    Attributes:
        topology, traffic, protocol, level, scheme: as in rows.
        measure: name of the column.
        cases: number of rows with a value.
        matrices: number of different matrices among them.
        mean: of the column.
        low, high: ends of the 95% interval of the mean; the mean itself for one matrix.
    """

    topology: str
    traffic: str
    protocol: str
    level: str
    scheme: str
    measure: str
    cases: int
    matrices: int
    mean: float
    low: float
    high: float


def mean_rows(rows: list[Row]) -> Iterator[MeanRow]:
    """A row for each network, protocol, level, scheme and measure that has values; equal rows give equal intervals."""
    for (topology, traffic), of_network in by_network(rows).items():
        for (protocol, level), of_level in by_level(of_network).items():
            for scheme in dict.fromkeys(row.scheme for row in of_level):
                own = [row for row in of_level if row.scheme == scheme and row.usable]
                for measure in _MEASURES:
                    known = [(row.index, value) for row in own if np.isfinite(value := getattr(row, measure))]
                    if known:
                        mean, low, high, matrices = _interval(known)
                        yield MeanRow(
                            topology, traffic, protocol, level, scheme, measure, len(known), matrices, mean, low, high
                        )


def _interval(known: list[tuple[int, float]]) -> tuple[float, float, float, int]:
    """Mean, ends of its interval, and the number of matrices."""
    indices, place = np.unique([index for index, _ in known], return_inverse=True)
    values = np.array([value for _, value in known])
    sums, counts = np.bincount(place, values), np.bincount(place)
    drawn = np.random.default_rng(0).integers(0, len(indices), (_DRAWS, len(indices)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(values.mean()), float(low), float(high), len(indices)
