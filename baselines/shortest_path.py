"""Shortest path: every demand on its first live path; traffic above the capacity of a link is dropped."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.solvers.projection import project
from teal.spec import Spec


class ShortestPath:
    """Shortest path, as described in the module."""

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix."""
        begin, problem = time.perf_counter(), problem.to(torch.float64)
        mask = problem.path_mask
        first = mask & (mask.cumsum(-1) == 1)
        splits = project(problem, first.to(problem.demand), refill=0)
        return Allocation.of_batch(splits, None, time.perf_counter() - begin)


def make(spec: Spec, model: Path | None) -> ShortestPath:
    """``shortest-path``."""
    spec.parse_options()
    return ShortestPath()
