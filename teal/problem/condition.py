"""Side conditions of a problem, such as a limit on churn.

Each class validates its use, rewrites the program, and computes its violation.  A condition turns
the program over paths into a program over other columns and rows
(:class:`teal.problem.program.Program`), whose solutions it maps back to splits. Bounds, engines and
LP solvers handle columns and rows alone; the validator asks each condition for the violation, which
is computed without the rewritten program. Base class: :class:`Condition`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import Tensor

from teal.errors import InputError
from teal.objectives import Objective, ObjectiveName
from teal.option import Option
from teal.pathops import PathOps
from teal.problem.program import Program

# Link indices of each group.
LinkGroups = Sequence[Sequence[int]]
# Rules of the validator, besides the side conditions.
VALIDATOR_RULES = (
    "capacity",
    "demand",
    "sign",
    "mask",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Rewritten:
    """Rewritten program, with the maps between its column shares and the splits over paths.

    Attributes:
        program: the rewritten program.
        splits: maps (B, D, J) shares to (B, D, K) splits.
        shares: maps (B, D, K) splits to (B, D, J) shares from which a search may start, feasible or
            not.
        start: (B, D, J) default starting shares of a search; None for none.
    """

    program: Program
    splits: Callable[[Tensor], Tensor]
    shares: Callable[[Tensor], Tensor]
    start: Tensor | None = None

    @classmethod
    def of(cls, program: Program) -> Rewritten:
        """Wrap a program whose columns are the paths: the shares of its columns are the splits."""
        return cls(program, lambda shares: shares, lambda splits: splits)

    def by(self, condition: Condition) -> Rewritten:
        """Return the program rewritten by one more condition, with the maps of both composed."""
        rewritten = condition.rewrite(self.program)
        start = rewritten.start
        if start is None and self.start is not None:
            start = rewritten.shares(self.start)
        return Rewritten(
            rewritten.program,
            lambda shares: self.splits(rewritten.splits(shares)),
            lambda splits: rewritten.shares(self.shares(splits)),
            start,
        )


# Methods of conditions that packages may still define: old name -> new name.
_OLD_METHODS = {"asked": "from_request", "refuses": "unmet_requirement"}


@dataclasses.dataclass(frozen=True, eq=False)
class ConditionRequest:
    """Data of a service request for a condition.

    Attributes:
        value: value of the option.
        network_data: data that :meth:`Condition.prepare` computed for the network.
        previous: (D, K) installed splits; None if the request names none.
        num_classes: number of classes, each with all node pairs of the network; 1 without classes.
        has_latency_limits: whether a class has a latency limit, and so may have fewer paths than
            others.
    """

    value: Any
    network_data: Mapping[str, Any]
    previous: Tensor | None
    num_classes: int
    has_latency_limits: bool


class Condition:
    """Side condition of B matrices. Subclasses are frozen dataclasses.

    :meth:`rewrite` may change columns, rows, and the largest share of a demand on a column (a
    demand set :class:`teal.problem.sets.Capped`), but neither demands nor values. A subclass with
    data by matrix or by path overrides :meth:`rows`, :meth:`for_batch` and :meth:`on_paths`, which
    return the condition itself by default.

    Attributes:
        name: name in messages, options and figures; unique in a problem, and not the name of a rule
            of the validator.
        changes_columns: whether the rewritten program has other columns; such conditions rewrite
            first.
        option: option by which a service request contains the condition; None for none.
        needs_previous: whether a request must name the installed splits as well.
        splits_determine_shares: whether splits over paths determine the shares of the rewritten
            columns.
        allows_rounding: whether splits that are rounded to integer weights can be scaled down so
            that they meet the condition.
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
        """Compute network data for requests, once per network; {} for none.

        Args:
            network: operations over the candidate paths of all node pairs.
            num_links: E.
            groups: link groups that fail together, by the word of the option.

        Raises:
            InputError: the network does not support the condition.
        """
        return {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Accept methods of subclasses under their old names, with a DeprecationWarning."""
        super().__init_subclass__(**options)
        for old, new in _OLD_METHODS.items():
            if old in vars(cls) and new not in vars(cls):
                message = f"{cls.__name__}.{old} is deprecated: name it {new}"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                setattr(cls, new, vars(cls)[old])

    @classmethod
    def from_request(cls, request: ConditionRequest) -> Self:
        """Build the condition of one matrix from a service request.

        Args:
            request: value of the option, network data and installed splits.

        Raises:
            InputError: the network does not support the condition.
        """
        raise NotImplementedError

    def figures(self, program: Program, splits: Tensor) -> dict[str, Tensor]:
        """Return additional metrics (B,) of splits for responses, by name.

        Args:
            program: program over paths.
            splits: (B, D, K) share of each demand on each path.
        """
        return {}

    def unmet_requirement(self, objective: Objective, other_conditions: Sequence[Condition]) -> str:
        """Return why the condition cannot be combined with a problem; "" if it can.

        The text names what the condition requires: it follows "expected" in a message.

        Args:
            objective: objective of the problem.
            other_conditions: other conditions of the problem.
        """
        if objective.rules.carries_all or objective.name == ObjectiveName.MAX_MIN:
            return f"an objective that maximises a sum over flows, not {objective.name}"
        return ""

    def rewrite(self, program: Program) -> Rewritten:
        """Rewrite a program under the condition.

        Args:
            program: program over paths, or rewritten by other conditions.
        """
        raise NotImplementedError

    def violation(self, program: Program, splits: Tensor) -> Tensor:
        """Return the violation (B,) of the condition by splits, dimensionless; 0 if it is kept.

        Args:
            program: program over paths, in float64.
            splits: (B, D, K) share of each demand on each path, 0 for demands of 0.
        """
        raise NotImplementedError

    def scaled(self, program: Program, splits: Tensor) -> Tensor:
        """Scale down the splits of each demand so that they keep the condition.

        The ratios of a demand's paths are preserved, as forwarding tables require.

        Args:
            program: program over paths.
            splits: (B, D, K) that may break the condition.
        """
        return splits

    def rows(self, rows: slice | Tensor) -> Self:
        """Return the condition of some of the matrices, by a slice, indices or booleans."""
        return self

    def for_batch(self, batch: int) -> Self:
        """Return the condition for ``batch`` other matrices.

        Raises:
            InputError: the data of the condition differ between the matrices.
        """
        return self

    def on_paths(self, ops: PathOps, num_links: int) -> Self:
        """Return the condition over other candidate paths.

        Args:
            ops: operations over the new paths.
            num_links: E.

        Raises:
            InputError: the condition depends on the old paths.
        """
        return self


def with_condition(
    objective: Objective, conditions: Sequence[Condition], new: Condition
) -> tuple[Condition, ...]:
    """Add a condition to others; return all in the order in which they rewrite a program, those
    that change columns first.

    Args:
        objective: objective of the problem.
        conditions: conditions of the problem so far.
        new: condition to add.

    Raises:
        InputError: incompatible conditions or objective, a repeated name, or two conditions that
            change columns.
    """
    # Each condition must support the objective and the conditions beside it.
    for condition, other_conditions in (
        (new, conditions),
        *((condition, (new,)) for condition in conditions),
    ):
        if expected := condition.unmet_requirement(objective, other_conditions):
            actual = ", ".join((objective.name, *(each.name for each in other_conditions)))
            raise InputError(condition.name, "problem", expected, actual)
    # Violations are reported by name, so that names must differ.
    if new.name in (*VALIDATOR_RULES, *(condition.name for condition in conditions)):
        raise InputError.invalid(
            new.name,
            "name",
            "the problem has a rule or condition of this name",
            "choose another one",
        )
    column_changing = [condition.name for condition in conditions if condition.changes_columns]
    if new.changes_columns and column_changing:
        raise InputError.invalid(
            new.name,
            "problem",
            f"only one condition may change path variables, and {column_changing[0]} does",
            "remove one of the two",
        )
    return tuple(sorted((*conditions, new), key=lambda condition: not condition.changes_columns))
