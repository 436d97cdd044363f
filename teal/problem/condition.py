"""Side conditions: each is one class, which says what it refuses, how it rewrites a program and how it is checked.

A condition turns the program over paths into one over other columns and rows (:class:`teal.problem.program.Program`),
whose solutions it turns back into splits.  Bound, engines and LP know columns and rows alone; the validator asks each
condition how far an allocation breaks it, which is computed without the rewritten program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from teal.objectives import Objective
from teal.pathops import PathOps
from teal.problem.program import Program


@dataclasses.dataclass(frozen=True, eq=False)
class Rewritten:
    """A rewritten program, and the ways between its shares of columns and the splits of paths.

    Attributes:
        program: the rewritten one.
        splits: (B, D, J) shares -> (B, D, K) splits.
        shares: (B, D, K) splits -> (B, D, J) shares from which a search may start, feasible or not.
        start: (B, D, J) shares from which a search starts that is given no other; None for none.
    """

    program: Program
    splits: Callable[[Tensor], Tensor]
    shares: Callable[[Tensor], Tensor]
    start: Tensor | None = None

    @classmethod
    def of(cls, program: Program) -> Rewritten:
        """A program over paths, not rewritten yet."""
        return cls(program, lambda shares: shares, lambda splits: splits)

    def by(self, condition: Condition) -> Rewritten:
        """Rewritten further."""
        last = condition.rewrite(self.program)
        start = last.start
        if start is None and self.start is not None:
            start = last.shares(self.start)
        return Rewritten(
            last.program, lambda shares: self.splits(last.splits(shares)),
            lambda splits: last.shares(self.shares(splits)), start,
        )  # fmt: skip


class Condition:
    """A side condition of B matrices.  Subclasses are frozen dataclasses.

    Attributes:
        name: in messages, options and figures.
        changes_columns: whether the columns of the rewritten program are others; such conditions rewrite first.
    """

    name: ClassVar[str]
    changes_columns: ClassVar[bool] = False

    def refuses(self, objective: Objective, others: Sequence[Condition]) -> str:
        """Why it cannot hold under an objective or beside other conditions; "" if it can.

        Args:
            objective: of the problem.
            others: conditions of the problem.
        """
        if not objective.maximises_value or objective.is_fair:
            return f"an objective that maximises a sum over flows, not {objective.name.value}"
        return ""

    def rewrite(self, program: Program) -> Rewritten:
        """The program under the condition.

        Args:
            program: over paths, or as other conditions left it.
        """
        raise NotImplementedError

    def violation(self, program: Program, splits: Tensor) -> Tensor:
        """(B,) how far splits (B, D, K) break the condition, without a unit; 0 where they keep it.

        Args:
            program: over paths, in float64.
            splits: (B, D, K), 0 for demands of 0.
        """
        raise NotImplementedError

    def rows(self, rows: slice | Tensor) -> Self:
        """The condition of some of the matrices."""
        return self

    def first_demands(self, count: int, program: Program) -> Self:
        """The condition where only the first ``count`` demands are carried, with as much room as it has for all.

        Args:
            count: of demands.
            program: of all demands, over paths.
        """
        return self

    def for_batch(self, batch: int) -> Self:
        """The condition of other matrices, as many as ``batch``.

        Raises:
            InputError: it differs between the matrices.
        """
        return self

    def on_paths(self, ops: PathOps, num_links: int) -> Self:
        """The condition over other candidate paths.

        Args:
            ops: over these paths.
            num_links: E.

        Raises:
            InputError: it speaks of the paths as they were.
        """
        return self


def zeros_of(program: Program) -> Tensor:
    """(B,) zeros."""
    return (
        torch.zeros_like(program.demand[:, 0])
        if program.demand.shape[1]
        else program.limit.new_zeros(len(program.limit))
    )
