"""Online: what a network carries while a scheme is still computing.

An interval of a TE controller begins with new demands.  Until a scheme has computed, its previous allocation stays in
force and carries, of each demand, min(new demand, old flow) (Teal, section 5.1); a scheme that is not done when the
next interval begins leaves that one out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from teal.allocation import Allocation
from teal.problem import Problem


@dataclasses.dataclass(eq=False)
class Answer:
    """What a scheme makes of one matrix; made when it is first asked for.

    Attributes:
        make: solves the matrix.
        demand: (1, D) of that matrix.
    """

    make: Callable[[], Allocation]
    demand: Tensor

    @cached_property
    def allocation(self) -> Allocation:
        """The allocation, B = 1."""
        return self.make()


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of an interval, and the answer in force."""

    share: float
    answer: Answer


class Timeline:
    """One scheme through consecutive intervals.

    The first matrix finds its own answer installed, for all schemes alike.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._number = -1
        self._installed: Answer | None = None
        self._computing: tuple[float, Answer] | None = None  # ready when, and with what

    def step(self, answer: Answer, seconds: float) -> list[Piece]:
        """Go through the next interval, for which ``answer`` would take ``seconds``; NaN if there is no answer.

        Returns:
            pieces whose shares add up to 1; none if the scheme never had an answer.
        """
        self._number += 1
        begin = self._number * self._interval_s
        end = begin + self._interval_s
        if self._computing and self._computing[0] <= begin:
            self._install()
        if self._computing is None and seconds == seconds:  # not NaN
            self._computing = (begin if self._installed is None else begin + seconds, answer)
        before, share = self._installed, 1.0
        if self._computing and self._computing[0] < end:
            share = (self._computing[0] - begin) / self._interval_s
            self._install()
        pieces = [Piece(share, before)] if before and share else []
        return [*pieces, Piece(1 - share, self._installed)] if self._installed and share < 1 else pieces

    def _install(self) -> None:
        assert self._computing is not None
        self._installed, self._computing = self._computing[1], None


def carried_over(problem: Problem, answer: Answer) -> Allocation:
    """What ``answer``, of an earlier matrix, carries of the one of ``problem``: min(new demand, old flow) of each."""
    old = answer.allocation
    flow = old.splits.to(problem.demand) * answer.demand[..., None]
    routed, demand = flow.sum(-1, keepdim=True), problem.demand[..., None]
    carried = flow * torch.where(routed > demand, demand / routed.clamp(min=1e-300), 1.0)
    splits = torch.where(demand > 0, carried / demand.clamp(min=1e-300), 0.0)
    return dataclasses.replace(old, splits=splits, prices=None)
