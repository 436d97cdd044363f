"""Side conditions: each is one class, which says what it refuses, how it rewrites a program and how
it is checked.

A condition turns the program over paths into one over other columns and rows
(:class:`teal.problem.program.Program`), whose solutions it turns back into splits.  Bound, engines
and LP know columns and rows alone; the validator asks each condition how far an allocation breaks
it, which is computed without the rewritten program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor

from teal.errors import InputError
from teal.objectives import Objective, ObjectiveName
from teal.option import Option
from teal.pathops import PathOps
from teal.problem.program import Program

LinkGroups = Sequence[Sequence[int]]  # numbers of the links of each group
VALIDATOR_RULES = (
    "capacity",
    "demand",
    "sign",
    "mask",
)  # of the validator, beside those of the conditions


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
        """A program whose columns are still the paths: shares of columns are splits."""
        return cls(program, lambda shares: shares, lambda splits: splits)

    def by(self, condition: Condition) -> Rewritten:
        """Rewritten further."""
        last = condition.rewrite(self.program)
        start = last.start
        if start is None and self.start is not None:
            start = last.shares(self.start)
        return Rewritten(
            last.program,
            lambda shares: self.splits(last.splits(shares)),
            lambda splits: last.shares(self.shares(splits)),
            start,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class ConditionRequest:
    """The part of a request that concerns a condition.

    Attributes:
        value: value of the option.
        network_data: see :meth:`Condition.prepare`.
        previous: (D, K) splits in force; None if the request names none.
        num_classes: classes of demands, each with all pairs of the network; 1 without classes.
        has_latency_limits: whether a class may use fewer paths than others.
    """

    value: Any
    network_data: Mapping[str, Any]
    previous: Tensor | None
    num_classes: int
    has_latency_limits: bool


class Condition:
    """A side condition of B matrices.  Subclasses are frozen dataclasses.

    :meth:`rewrite` may change columns, rows, and how large a share of its demand a column may carry
    (a demand set :class:`teal.problem.sets.Capped`), neither demands nor values.  A subclass that
    has data by matrix or by path overrides :meth:`rows`, :meth:`for_batch` and :meth:`on_paths`,
    which return the condition itself.

    Attributes:
        name: in messages, options and figures; each once in a problem, and no rule of the
            validator.
        changes_columns: whether the columns of the rewritten program are others; such conditions
            rewrite first.
        option: option by which a request to the service asks for it; None for none.
        needs_previous: whether a request must name the splits in force beside the option.
        splits_determine_shares: whether splits of paths say which shares of the rewritten columns
            they came from.
        allows_rounding: whether splits that were rounded to whole-number weights can be scaled down
            to keep it.
    """

    name: ClassVar[str]
    changes_columns: ClassVar[bool] = False
    option: ClassVar[Option | None] = None
    needs_previous: ClassVar[bool] = False
    splits_determine_shares: ClassVar[bool] = True
    allows_rounding: ClassVar[bool] = True

    @classmethod
    def prepare(
        cls, network: PathOps, num_links: int, groups: Mapping[str, LinkGroups]
    ) -> dict[str, Any]:
        """Compute what requests need, once for a network; {} for nothing.

        Args:
            network: over the candidate paths of all pairs of nodes.
            num_links: E.
            groups: numbers of the links that fail together, by a word that an option may be.

        Raises:
            InputError: no request on this network may ask for the condition.
        """
        return {}

    @classmethod
    def asked(cls, request: ConditionRequest) -> Self:
        """The condition, for B = 1, that a request asks for by its option.

        Raises:
            InputError: the network cannot have it.
        """
        raise NotImplementedError

    def figures(self, program: Program, splits: Tensor) -> dict[str, Tensor]:
        """(B,) figures of splits (B, D, K) that answers have beside those of the objective, by
        their names.

        Args:
            program: over paths.
            splits: (B, D, K).
        """
        return {}

    def refuses(self, objective: Objective, others: Sequence[Condition]) -> str:
        """Why it cannot hold under an objective or beside other conditions; "" if it can.

        Args:
            objective: objective of the problem.
            others: conditions that it is to stand beside.
        """
        if objective.rules.carries_all or objective.name == ObjectiveName.MAX_MIN:
            return f"an objective that maximises a sum over flows, not {objective.name}"
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

    def scaled(self, program: Program, splits: Tensor) -> Tensor:
        """Splits (B, D, K) that keep the condition, in the same ratios a demand, as tables need
        them.

        Args:
            program: over paths.
            splits: (B, D, K) that may break it; each demand may be scaled down by a factor of its
                own.
        """
        return splits

    def rows(self, rows: slice | Tensor) -> Self:
        """The condition of some of the matrices."""
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


def together(
    objective: Objective, conditions: Sequence[Condition], new: Condition
) -> tuple[Condition, ...]:
    """Conditions and one more, in the order in which they rewrite a program.

    Raises:
        InputError: one of them refuses the objective or another one, two have one name or change
            columns.
    """
    for one, others in ((new, conditions), *((one, (new,)) for one in conditions)):
        if expected := one.refuses(objective, others):
            actual = ", ".join((objective.name, *(other.name for other in others)))
            raise InputError(one.name, "problem", expected, actual)
    if new.name in (*VALIDATOR_RULES, *(one.name for one in conditions)):
        raise InputError(new.name, "name", "one that no rule and no other condition has", new.name)
    changing = [one.name for one in conditions if one.changes_columns]
    if new.changes_columns and changing:
        raise InputError(
            new.name, "problem", "no other condition that changes columns", changing[0]
        )
    return tuple(sorted((*conditions, new), key=lambda one: not one.changes_columns))
