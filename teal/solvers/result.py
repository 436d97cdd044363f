"""The result of a solve: the best allocation and prices, how good they are, and what ended the
search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from teal.problem import Allocation, Problem, ProgramPrices, Status
from teal.problem.assessment import WithLines
from teal.problem.bounds import gap as certified_gap
from teal.problem.bounds import gap_between
from teal.problem.lines import Lines
from teal.runtime.shapes import Float


@dataclasses.dataclass(frozen=True, eq=False)
class PdhgState:
    """A starting point for another matrix, or for the same one under other capacities.

    Attributes:
        splits: (B, D, K) share of each demand on each path; need not be feasible.
        prices: (B, E) p >= 0, value per Gbit/s; 1/(Gbit/s) for a balanced program.
        program_prices: prices of each program of a sequence; None where there are none.
    """

    splits: Tensor
    prices: Tensor
    program_prices: ProgramPrices | None = None

    def rows(self, rows: slice | Tensor) -> PdhgState:
        """The state of some of the matrices."""
        of_programs = None if self.program_prices is None else self.program_prices.rows(rows)
        return PdhgState(self.splits[rows], self.prices[rows], of_programs)

    def repeated(self, batch: int) -> PdhgState:
        """The state of one matrix for each of several."""
        return self.rows(torch.zeros(batch, dtype=torch.int64))


@runtime_checkable
class Starter(Protocol):
    """A start of PDHG, such as a PriceGNN.

    It may also have a method ``start_sample`` of the same form, for samples of the demands;
    ``rehearse(problem)``, called before a clock starts, that loads what ``start`` needs; and, if
    its work can be chosen, ``start_for(problem, iterations)`` for a program that would take so many
    iterations from nothing, with ``rounds_for(iterations)``, the rounds that it makes there.
    """

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Splits (B, D, K), which need not be feasible, and prices (B, E)."""
        ...


def start_of_sample(starter: Starter, problem: Problem) -> tuple[Tensor, Tensor]:
    """The start of a sample of the demands: that of ``start_sample`` where the starter has it."""
    return getattr(starter, "start_sample", starter.start)(problem)


def start_for(starter: Starter, problem: Problem, iterations: float) -> tuple[Tensor, Tensor]:
    """The start for a program of so many iterations: that of ``start_for`` where the starter has
    it.
    """
    adapted = getattr(starter, "start_for", None)
    return starter.start(problem) if adapted is None else adapted(problem, iterations)


def rounds_for(starter: Starter, iterations: float) -> int:
    """The rounds of :func:`start_for`: those of ``rounds_for`` where the starter has it, else those
    of a PriceGNN.
    """
    found = getattr(starter, "rounds_for", None)
    return _USUAL_ROUNDS if found is None else found(iterations)


_USUAL_ROUNDS = 22
_TENSORS = (
    "splits",
    "prices",
    "value",
    "bound",
    "gap",
)  # fields of PdhgResult with an entry a matrix
_OF_SEQUENCES = (
    "program_prices",
    "lines",
)  # fields of PdhgResult that only sequences of programs have


class Stop(StrEnum):
    """The reason why the search for a matrix ended."""

    GAP = "gap"  # the target gap is certified
    DEADLINE = "deadline"
    # the largest number of them; of a sequence also where no program helps any more
    ITERATIONS = "iterations"
    # the gap was reached in a reduced program, and lost to the range of numbers in this one
    ROUNDING = "rounding"
    INFEASIBLE = "infeasible"  # prices prove that all demand cannot be carried
    STALLED = "stalled"  # the gap no longer shrinks; only where another engine goes on


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Solution:
    """Value and bound of one program of one kind or another, and how its search ended.

    Attributes:
        value: value of the solution.
        bound: certified bound on the optimum: upper for a maximum, lower for a minimum.
        sense: 1.0 for a maximum, -1.0 for a minimum.
        iterations: iterations or rounds of the search.
        solve_s: wall-clock seconds.
        stopped_by: reason why the search ended.
    """

    value: float
    bound: float
    sense: float
    iterations: int
    solve_s: float
    stopped_by: Stop

    @property
    def gap(self) -> float:
        """(bound - value) / bound, or (value - bound) / value for a minimum
        (:func:`teal.problem.bounds.gap`).
        """
        return gap_between(self.value, self.bound, self.sense)

    @property
    def reached(self) -> bool:
        """Whether the target gap was certified."""
        return self.stopped_by == Stop.GAP


def stops_of_sequence(gaps: Tensor, target: float) -> tuple[Stop, ...]:
    """The reasons why a sequence of programs ended, by the certified gaps (B,) of its
    allocation.
    """
    return tuple(Stop.GAP if gap <= target else Stop.ITERATIONS for gap in gaps.tolist())


# Called with the iterations done and the widest gap of the matrices that are being solved together.
ProgressCallback = Callable[[int, float], None]


@dataclasses.dataclass(frozen=True, eq=False)
class PdhgResult(WithLines):
    """The best allocation and the best prices that were found.

    Attributes:
        splits: (B, D, K) share of the demand on each path; feasible.
        prices: (B, E) value per Gbit/s; 1/(Gbit/s) where all demand is carried, and under max_min.
        value: (B,) objective of the splits.
        bound: (B,) limit of the objective that the prices prove: upper for a maximum, lower for a
            minimum.
        gap: (B,) certified gap between value and bound; infinite if either is no number.
        iterations: number of iterations done; of matrices that were solved in several parts, the
            largest number.
        solve_s: wall-clock seconds.
        state: best splits and prices, from which the solve of another matrix can start.
        stopped_by: (B,) what ended the search.
        program_prices: prices of each program of a sequence, see
            :class:`teal.problem.ProgramPrices`.
        lines: certified figures of each class or level of a sequence; under priority value and
            bound are sums over the classes, and the gap is that of the class with the widest one.
        largest_share: (B, 2) share of every demand that the splits carry, and that no allocation
            exceeds, of matrices that cannot be carried whole, NaN for others; None where all can.
    """

    splits: Float[Tensor, "B D K"]
    prices: Float[Tensor, "B E"]
    value: Float[Tensor, " B"]
    bound: Float[Tensor, " B"]
    gap: Float[Tensor, " B"]
    iterations: int
    solve_s: float
    state: PdhgState
    stopped_by: tuple[Stop, ...]
    program_prices: ProgramPrices | None = None
    lines: Lines | None = None
    largest_share: Float[Tensor, "B 2"] | None = None

    def __repr__(self) -> str:
        value, gap = (
            ", ".join(f"{x:.6g}" for x in part[:4].tolist()) for part in (self.value, self.gap)
        )
        more = ", ..." if len(self.value) > 4 else ""
        return (
            f"PdhgResult(value {value}{more}; gap {gap}{more}; {self.iterations} iterations, "
            f"{self.solve_s:.3g} s)"
        )

    @property
    def allocation(self) -> Allocation:
        """The splits with their prices, as schemes return them."""
        made = Allocation.of_batch(self.splits, self.prices, self.solve_s, self.program_prices)
        is_infeasible = [stop is Stop.INFEASIBLE for stop in self.stopped_by]
        if not any(is_infeasible):
            return made
        status = (Status.INFEASIBLE if one else Status.FEASIBLE for one in is_infeasible)
        return dataclasses.replace(made, status=tuple(status))

    def rows(self, rows: Tensor) -> PdhgResult:
        """The results of some of the matrices, by their numbers."""
        changed: dict[str, Any] = {field: getattr(self, field)[rows] for field in _TENSORS}
        for field in _OF_SEQUENCES:
            part = getattr(self, field)
            changed[field] = None if part is None else part.rows(rows)
        if self.largest_share is not None:
            changed["largest_share"] = self.largest_share[rows]
        stopped_by = tuple(self.stopped_by[row] for row in rows.tolist())
        return dataclasses.replace(
            self, **changed, state=self.state.rows(rows), stopped_by=stopped_by
        )

    def replaced(self, rows: Tensor, others: PdhgResult) -> PdhgResult:
        """The result with those of some of the matrices replaced by ``others``; for a single
        program alone.

        Raises:
            ValueError: results of a sequence of programs.
        """
        if any(getattr(self, field) is not None for field in _OF_SEQUENCES):
            raise ValueError(
                "results of a sequence of programs have certificates for all matrices together"
            )

        def put(old: Tensor, new: Tensor) -> Tensor:
            return old.index_copy(0, rows.to(old.device), new)

        stopped_by = list(self.stopped_by)
        for row, stop in zip(rows.tolist(), others.stopped_by, strict=True):
            stopped_by[row] = stop
        tensors: dict[str, Any] = {
            field: put(getattr(self, field), getattr(others, field)) for field in _TENSORS
        }
        state = PdhgState(
            put(self.state.splits, others.state.splits), put(self.state.prices, others.state.prices)
        )
        iterations = max(self.iterations, others.iterations)
        return dataclasses.replace(
            self, **tensors, state=state, stopped_by=tuple(stopped_by), iterations=iterations
        )


def better(problem: Problem, first: PdhgResult, second: PdhgResult) -> PdhgResult:
    """The better allocation and the better prices of each matrix, from two results for the same
    matrices.
    """
    sense = problem.objective.rules.sense
    is_better = sense * first.value > sense * second.value
    is_tighter = sense * first.bound < sense * second.bound
    value = torch.where(is_better, first.value, second.value)
    bound = torch.where(is_tighter, first.bound, second.bound)
    splits = torch.where(is_better[:, None, None], first.splits, second.splits)
    prices = torch.where(is_tighter[:, None], first.prices, second.prices)
    return dataclasses.replace(
        second,
        splits=splits,
        prices=prices,
        state=PdhgState(splits, prices),
        value=value,
        bound=bound,
        gap=certified_gap(problem, value, bound),
        iterations=first.iterations + second.iterations,
    )


def merged(results: list[PdhgResult]) -> PdhgResult:
    """One result of parts that were solved one after another."""

    def joined(field: str) -> Tensor:
        return torch.cat([getattr(result, field) for result in results])

    tensors: dict[str, Any] = {field: joined(field) for field in _TENSORS}
    if any(result.largest_share is not None for result in results):
        unknown = torch.full((1, 2), torch.nan)
        shares = [
            unknown.to(result.value).expand(len(result.value), -1)
            if result.largest_share is None
            else result.largest_share
            for result in results
        ]
        tensors["largest_share"] = torch.cat(shares)
    return PdhgResult(
        **tensors,
        iterations=max(result.iterations for result in results),
        solve_s=sum(result.solve_s for result in results),
        state=PdhgState(
            torch.cat([result.state.splits for result in results]),
            torch.cat([result.state.prices for result in results]),
        ),
        stopped_by=tuple(stop for result in results for stop in result.stopped_by),
    )
