"""95% intervals of means over matrices that follow each other, by the block bootstrap.

Blocks of consecutive matrices are drawn and not single ones, since matrices that follow each other
are alike: the circular block bootstrap of Politis and Romano (1992), with blocks of ceil(n^(1/3))
of n matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_DRAWS = 2000
_LEVEL = 0.95
_MIN_IN_BLOCKS = (
    4  # matrices; fewer are drawn one by one, since two blocks of two would hold them all
)


class Interval(NamedTuple):
    """A mean and its interval, 95% unless another level was asked for.

    Attributes:
        mean: mean of the values.
        low, high: ends of the interval; the mean itself for one matrix.
        matrices: number of different matrices.
    """

    mean: float
    low: float
    high: float
    matrices: int


def interval_of_mean(known: Sequence[tuple[int, float]], level: float = _LEVEL) -> Interval:
    """The mean of some values, and its interval; equal values give equal intervals.

    Args:
        known: number of the matrix, and value, for each case; several cases may be of one matrix.
        level: confidence level.
    """
    indices, place = np.unique([index for index, _ in known], return_inverse=True)
    values, count = np.array([value for _, value in known]), len(indices)
    sums, counts = np.bincount(place, values), np.bincount(place)
    length = 1 if count < _MIN_IN_BLOCKS else math.ceil(count ** (1 / 3))
    begins = np.random.default_rng(0).integers(0, count, (_DRAWS, math.ceil(count / length), 1))
    drawn = ((begins + np.arange(length)) % count).reshape(_DRAWS, -1)[:, :count]
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values.mean()), float(low), float(high), count)
