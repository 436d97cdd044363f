"""The scheme ``protected``: rates that survive the failure of any one cable or group of cables.

:func:`teal.solvers.protection.protect` solves the program.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch

from teal.errors import InputError
from teal.problem import Allocation, Problem
from teal.solvers.protection import groups_to_survive, protect
from teal.spec import Spec


@dataclasses.dataclass(frozen=True)
class ProtectedScheme:
    """Scheme that maximises the rates that survive the failure of any one group of links.

    Attributes:
        gap: certified gap of the value of these rates; evaluations show the gap to the optimum
            without protection.
        groups: file of groups that fail together; "" for the groups of the problem, or every cable
            if it has none.
    """

    gap: float = 1e-3
    groups: str = ""

    def solve(self, problem: Problem) -> Allocation:
        """Return the allocation of all matrices, whose rates survive the failure of any one group.

        The matrices are solved in one batch; each gets an equal part of the time.
        """
        groups = groups_to_survive(problem, self.groups)
        begin = time.perf_counter()
        result = protect(problem, groups, gap=self.gap).result
        # Pairs without demand carry nothing.
        splits = torch.where(problem.demand[..., None] > 0, result.splits, 0)
        return Allocation.of_batch(splits, result.prices, time.perf_counter() - begin)


def make(spec: Spec, model: Path | None) -> ProtectedScheme:
    """Create the scheme of a specification ``protected[:gap=0.001,groups=FILE]``.

    Args:
        spec: name and options of the scheme.
        model: not used; the scheme has no model.

    Raises:
        InputError: an unknown option, or an invalid value.
    """
    options: Any = spec.parse_options(gap=1e-3, groups="")
    scheme = ProtectedScheme(**options)
    if not 0 < scheme.gap < 1:
        raise InputError(spec.text, "gap", "a number in (0, 1)", scheme.gap)
    return scheme
