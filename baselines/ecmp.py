"""ECMP: every demand in equal parts over its live candidate paths with the fewest links.

Routers split hop by hop over all shortest paths of the network; this scheme splits over the shortest candidate paths
only.  Traffic above the capacity of a link is dropped.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch

from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.solvers.projection import project
from teal.spec import Spec


class Ecmp:
    """ECMP, as described in the module."""

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix."""
        begin, problem = time.perf_counter(), problem.to(torch.float64)
        mask = problem.path_mask
        hops = torch.where(mask, problem.ops.hops, torch.iinfo(problem.ops.hops.dtype).max)
        shortest = (mask & (hops == hops.amin(-1, keepdim=True))).to(problem.demand)
        splits = project(problem, shortest / shortest.sum(-1, keepdim=True).clamp(min=1), refill=0)
        return Allocation.of_batch(splits, None, time.perf_counter() - begin)


def make(spec: Spec, model: Path | None) -> Ecmp:
    """``ecmp``."""
    spec.parse_options()
    return Ecmp()
