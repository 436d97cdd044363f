"""ECMP: every demand along all shortest paths, in equal parts at every hop.

By default these are the shortest paths of the network under its IGP metrics (of hops where it has
none), as in routers; they are recomputed after failures.  With ``over=candidates`` a demand is
divided evenly over its live candidate paths with the fewest links: the published tables of this
project have that form.  Where the objective may shed traffic, flows over overloaded links are
scaled down.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from teal.errors import InputError
from teal.problem import Allocation, Problem
from teal.schemes.igp import Igp, ecmp_allocation
from teal.solvers.projection import project
from teal.spec import Spec


class Ecmp:
    """ECMP over the shortest paths of the network.

    Args:
        metric: link metric of the IGP: file, hops, latency or inverse-capacity.
    """

    def __init__(self, metric: str = "file") -> None:
        self._igp = Igp(metric)

    def solve(self, problem: Problem) -> Allocation:
        """Route every matrix along the shortest paths of the IGP, in equal parts at every hop."""
        return ecmp_allocation(problem, self._igp.of(problem))


class EcmpOverCandidates:
    """ECMP over the candidate paths with the fewest links."""

    def solve(self, problem: Problem) -> Allocation:
        """Divide every demand evenly over its live candidate paths with the fewest links, and scale
        flows down to the capacities.
        """
        begin = time.perf_counter()
        problem = problem.to(torch.float64)
        mask = problem.path_mask
        hops = torch.where(mask, problem.ops.hops, torch.iinfo(problem.ops.hops.dtype).max)
        shortest = (mask & (hops == hops.amin(-1, keepdim=True))).to(problem.demand)
        splits = project(problem, shortest / shortest.sum(-1, keepdim=True).clamp(min=1), refill=0)
        return Allocation.of_batch(splits, None, time.perf_counter() - begin)


def make(spec: Spec, model: Path | None) -> Ecmp | EcmpOverCandidates:
    """Build the scheme from its specification; the options and their defaults are
    ``ecmp[:over=igp|candidates,metric=file|hops|latency|inverse-capacity]``.
    """
    options: Any = spec.parse_options(over="igp", metric="file")
    if options["over"] not in ("igp", "candidates"):
        raise InputError(spec.text, "over", "igp or candidates", repr(options["over"]))
    return Ecmp(options["metric"]) if options["over"] == "igp" else EcmpOverCandidates()
