"""Clocks that several benchmarks share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import teal


def median_s(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call, s; without a call before the first that counts if ``repeats`` is 1."""
    if repeats > 1:
        call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def matrix_by_matrix(scheme: str, problem: teal.Problem) -> tuple[Tensor, float]:
    """(B, D, K) splits of a scheme that gets one matrix at a time, and the median time of a matrix,
    s.
    """
    made, seconds, splits = teal.make_scheme(scheme), [], []
    made.solve(problem.row(0))  # compilation
    for row in range(problem.batch):
        begin = time.perf_counter()
        splits.append(made.solve(problem.row(row)).splits)
        seconds.append(time.perf_counter() - begin)
    return torch.cat(splits), statistics.median(seconds)
