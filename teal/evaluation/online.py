"""The online protocol: what a network carries while a scheme is still computing.

An interval of a TE controller begins with new demands.  Until a scheme has computed, its previous allocation stays
installed and carries min(new demand, old flow) of each demand (Xu et al., "Teal", SIGCOMM 2023, section 5.1); a scheme
that has not finished when the next interval begins skips that one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from teal.problem import Allocation, Problem


@dataclasses.dataclass(eq=False)
class LazyAllocation:
    """The allocation of a scheme for one matrix, computed when it is first read.

    Attributes:
        solve: computes it.
        demand: (1, D) Gbit/s of the matrix.
    """

    solve: Callable[[], Allocation]
    demand: Tensor

    @cached_property
    def allocation(self) -> Allocation:
        """The allocation, B = 1."""
        return self.solve()


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of an interval, and what is installed during it.

    Attributes:
        share: of the interval.
        installed: the allocation.
    """

    share: float
    installed: LazyAllocation


class Timeline:
    """One scheme through consecutive intervals.

    The allocation of the first matrix is installed at once, for all schemes alike.

    Args:
        interval_s: seconds of an interval.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._number = -1  # of the current interval
        self._installed: LazyAllocation | None = None
        self._computing: tuple[float, LazyAllocation] | None = None  # time when it is ready, and the allocation

    def step(self, allocation: LazyAllocation, seconds: float) -> list[Piece]:
        """Go through the next interval.

        Args:
            allocation: of the interval's matrix.
            seconds: that the scheme takes to compute it; NaN if it fails.

        Returns:
            pieces whose shares sum to 1; none if the scheme has had no allocation yet.
        """
        self._number += 1
        begin = self._number * self._interval_s
        end = begin + self._interval_s
        if self._computing and self._computing[0] <= begin:
            self._install()
        has_failed = seconds != seconds  # NaN
        if self._computing is None and not has_failed:
            self._computing = (begin if self._installed is None else begin + seconds, allocation)
        before, share = self._installed, 1.0
        if self._computing and self._computing[0] < end:
            share = (self._computing[0] - begin) / self._interval_s
            self._install()
        pieces = [Piece(share, before)] if before and share else []
        return [*pieces, Piece(1 - share, self._installed)] if self._installed and share < 1 else pieces

    def _install(self) -> None:
        assert self._computing is not None
        self._installed, self._computing = self._computing[1], None


def carried_over(problem: Problem, installed: LazyAllocation) -> Allocation:
    """What an allocation for an earlier matrix carries of this one: min(new demand, old flow) of each demand.

    Args:
        problem: the new matrix, B = 1.
        installed: the allocation for the earlier one.
    """
    old = installed.allocation
    flow = old.splits.to(problem.demand) * installed.demand[..., None]
    routed, demand = flow.sum(-1, keepdim=True), problem.demand[..., None]
    carried = flow * torch.where(routed > demand, demand / routed.clamp(min=1e-300), 1.0)
    splits = torch.where(demand > 0, carried / demand.clamp(min=1e-300), 0.0)
    return dataclasses.replace(old, splits=splits, prices=None)
