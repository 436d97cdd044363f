"""Allocations that do not depend on the traffic: lower references for learned schemes.

- ``shortest-path``: every demand on its live path of the fewest links, the first one at a tie;
  traffic above the capacity of a link is dropped.  With ``refill=4`` dropped traffic is then placed
  on the residual capacity of its paths in four rounds, as in the repair of learned schemes.
- ``null``: splits of 0, then these rounds: the flow that the repair alone carries.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from teal.errors import InputError
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.solvers.projection import project
from teal.spec import Spec

# Rounds of refilling; learned schemes have as many.
_NULL_REFILL = 4


class Uninformed:
    """Allocator with splits that do not depend on the demands, projected onto the capacities and
    refilled.

    Args:
        refill: rounds in which unserved demand takes residual capacity of its paths.
        is_null: whether splits are 0; otherwise all demand is on the shortest live path.
    """

    def __init__(self, refill: int, *, is_null: bool = False) -> None:
        self.refill = refill
        self.is_null = is_null

    def solve(self, problem: Problem) -> Allocation:
        """Project the fixed splits of every matrix onto the capacities, and refill."""
        begin = time.perf_counter()
        problem = problem.to(torch.float64)
        is_chosen = _is_shortest(problem)
        if self.is_null:
            is_chosen = torch.zeros_like(is_chosen)
        splits = project(problem, is_chosen.to(problem.demand), refill=self.refill)
        return Allocation.of_batch(splits, None, time.perf_counter() - begin)


def _is_shortest(problem: Problem) -> torch.Tensor:
    """Return for each path (B, D, K) whether it is its demand's live path of the fewest links, the
    first one at a tie.
    """
    mask = problem.path_mask
    hops = problem.ops.hops.expand_as(mask).to(problem.demand)
    live_hops = hops.masked_fill(~mask, torch.inf)
    is_fewest = mask & (live_hops == live_hops.amin(-1, keepdim=True))
    return is_fewest & (is_fewest.cumsum(-1) == 1)


def make(spec: Spec, model: Path | None) -> Uninformed:
    """Build the scheme from its specification; the options and their defaults are
    ``shortest-path[:refill=0]``.
    """
    return Uninformed(**_options(spec, 0))


def make_null(spec: Spec, model: Path | None) -> Uninformed:
    """Build the scheme from its specification; the options and their defaults are
    ``null[:refill=4]``.
    """
    return Uninformed(**_options(spec, _NULL_REFILL), is_null=True)


def _options(spec: Spec, refill: int) -> Any:
    """Parse the options of a scheme; ``refill`` is the default number of rounds."""
    options: Any = spec.parse_options(refill=refill)
    if options["refill"] < 0:
        raise InputError(spec.text, "refill", "an integer >= 0", options["refill"])
    return options
