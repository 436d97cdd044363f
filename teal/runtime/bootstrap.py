"""Confidence intervals of means over a series of matrices, by the circular block bootstrap.

Consecutive matrices are correlated, so blocks of ceil(n^(1/3)) of n matrices are drawn instead of
single ones (Politis and Romano 1992); ``scipy.stats.bootstrap`` draws single ones alone.  Entry
point: :func:`interval_of_mean`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_NUM_RESAMPLES = 2000
_CONFIDENCE_LEVEL = 0.95
# Minimum number of matrices for blocks; fewer are drawn one by one, since two blocks of two would
# hold them all.
_MIN_MATRICES_FOR_BLOCKS = 4


class Interval(NamedTuple):
    """Mean of values over a series of matrices, with its confidence interval.

    Attributes:
        mean: mean of the values.
        low, high: ends of the interval; the mean itself for a single matrix.
        matrices: number of distinct matrices.
    """

    mean: float
    low: float
    high: float
    matrices: int


def interval_of_mean(
    samples: Sequence[tuple[int, float]], level: float = _CONFIDENCE_LEVEL
) -> Interval:
    """Return the mean of values and its percentile interval by the circular block bootstrap.

    Of n matrices, blocks of ceil(n^(1/3)) consecutive ones are drawn with replacement until a
    resample has n matrices; the interval is between quantiles of the means of 2,000 resamples.  The
    seed is fixed, so that the result is deterministic.

    Args:
        samples: matrix index and value of each case; several cases may have the same matrix.
        level: confidence level.
    """
    # Sum and number of the values of each of the n distinct matrices.
    matrix_indices, matrix_of_value = np.unique(
        [index for index, _ in samples], return_inverse=True
    )
    values = np.array([value for _, value in samples])
    num_matrices = len(matrix_indices)
    sums = np.bincount(matrix_of_value, values)
    counts = np.bincount(matrix_of_value)
    # (resamples, n) matrices of the drawn blocks, which wrap around at the end.
    block_length = (
        1 if num_matrices < _MIN_MATRICES_FOR_BLOCKS else math.ceil(num_matrices ** (1 / 3))
    )
    block_starts = np.random.default_rng(0).integers(
        0, num_matrices, (_NUM_RESAMPLES, math.ceil(num_matrices / block_length), 1)
    )
    resamples = ((block_starts + np.arange(block_length)) % num_matrices).reshape(
        _NUM_RESAMPLES, -1
    )[:, :num_matrices]
    means = sums[resamples].sum(1) / counts[resamples].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values.mean()), float(low), float(high), num_matrices)
