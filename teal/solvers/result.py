"""Results and states of a solve, the reason of a stop, and the interface of learned starts.

:class:`PdhgResult` is the result of every solver of B matrices (not of PDHG alone),
:class:`PdhgState` a warm start, :class:`Stop` the stopping criterion that held, :class:`Starter`
the interface of a model that gives starts.
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
    """Warm start for another matrix, or for the same matrix under other capacities.

    Attributes:
        splits: (B, D, K) share of each demand on each path; may be infeasible.
        prices: (B, E) p >= 0, value per Gbit/s; 1/(Gbit/s) for a balanced program.
        program_prices: prices of each program of a sequence; None for a single program.
    """

    splits: Tensor
    prices: Tensor
    program_prices: ProgramPrices | None = None

    def rows(self, rows: slice | Tensor) -> PdhgState:
        """Return the state of some of the matrices."""
        program_prices = None if self.program_prices is None else self.program_prices.rows(rows)
        return PdhgState(self.splits[rows], self.prices[rows], program_prices)

    def repeated(self, batch: int) -> PdhgState:
        """Repeat the state of one matrix for each of several."""
        return self.rows(torch.zeros(batch, dtype=torch.int64))


@runtime_checkable
class Starter(Protocol):
    """Learned start of PDHG, such as a PriceGNN.

    Optional methods: ``start_sample``, like ``start``, for samples of the demands;
    ``rehearse(problem)``, called before the clock starts, to load what ``start`` needs; and, for
    adjustable work, ``start_for(problem, iterations)`` for a program of a predicted number of
    iterations, with ``rounds_for(iterations)``, the number of rounds of such a start.
    """

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K), possibly infeasible, and prices (B, E)."""
        ...


def start_of_sample(starter: Starter, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return a model's splits and prices for a sample of the demands.

    Calls ``start_sample`` if the starter has it, else ``start``.
    """
    return getattr(starter, "start_sample", starter.start)(problem)


def start_for(starter: Starter, problem: Problem, iterations: float) -> tuple[Tensor, Tensor]:
    """Return a model's splits and prices for a program that needs about ``iterations`` iterations.

    Calls ``start_for`` if the starter has it, else ``start``.
    """
    method = getattr(starter, "start_for", None)
    return starter.start(problem) if method is None else method(problem, iterations)


def rounds_for(starter: Starter, iterations: float) -> int:
    """Return the number of rounds that a model runs for a program of ``iterations`` iterations.

    Calls ``rounds_for`` if the starter has it; else 22, the rounds of a PriceGNN.
    """
    method = getattr(starter, "rounds_for", None)
    return _DEFAULT_ROUNDS if method is None else method(iterations)


_DEFAULT_ROUNDS = 22  # rounds of a PriceGNN
# Fields of PdhgResult with an entry per matrix.
_TENSOR_FIELDS = (
    "splits",
    "prices",
    "value",
    "bound",
    "gap",
)
# Fields of PdhgResult that only sequences of programs have.
_SEQUENCE_FIELDS = (
    "program_prices",
    "lines",
)


class Stop(StrEnum):
    """Stopping criterion that ended the search for a matrix."""

    # The target gap is certified.
    GAP = "gap"
    DEADLINE = "deadline"
    # The iteration limit; in a sequence also that no further program helps.
    ITERATIONS = "iterations"
    # The presolved program reached the gap, and rounding lost it in the original program.
    ROUNDING = "rounding"
    # Prices prove that the network cannot carry all demand.
    INFEASIBLE = "infeasible"
    # The gap no longer shrinks; only where another engine continues.
    STALLED = "stalled"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Solution:
    """Value and bound of one program of any kind, with its stopping criterion.

    Attributes:
        value: value of the solution.
        bound: certified bound on the optimum: upper for a maximum, lower for a minimum.
        sense: 1.0 for a maximum, -1.0 for a minimum.
        iterations: iterations or rounds of the search.
        solve_s: wall-clock seconds.
        stopped_by: stopping criterion.
    """

    value: float
    bound: float
    sense: float
    iterations: int
    solve_s: float
    stopped_by: Stop

    @property
    def gap(self) -> float:
        """Certified relative gap: (bound - value) / bound for a maximum, (value - bound) / value
        for a minimum.
        """
        return gap_between(self.value, self.bound, self.sense)

    @property
    def reached(self) -> bool:
        """Whether the target gap was certified."""
        return self.stopped_by == Stop.GAP


def stops_of_sequence(gaps: Tensor, target: float) -> tuple[Stop, ...]:
    """Return the stopping criterion of each matrix of a sequence: GAP where the certified gap (B,)
    is at most ``target``, else ITERATIONS.
    """
    return tuple(Stop.GAP if gap <= target else Stop.ITERATIONS for gap in gaps.tolist())


# Called with the number of iterations and the widest gap of the matrices of one search.
ProgressCallback = Callable[[int, float], None]


@dataclasses.dataclass(frozen=True, eq=False)
class PdhgResult(WithLines):
    """Incumbent of a solve: the best allocation and the best dual prices of B matrices.

    Attributes:
        splits: (B, D, K) share of the demand on each path; feasible.
        prices: (B, E) value per Gbit/s; 1/(Gbit/s) where all demand is carried, and under max_min.
        value: (B,) objective of the splits.
        bound: (B,) dual bound of the objective at the prices: upper for a maximum, lower for a
            minimum.
        gap: (B,) certified gap between value and bound; infinite if either is not finite.
        iterations: number of iterations; of several parts of the batch, the largest number.
        solve_s: wall-clock seconds.
        state: best splits and prices, a warm start of another solve.
        stopped_by: (B,) stopping criterion of each matrix.
        program_prices: prices of each program of a sequence, see
            :class:`teal.problem.ProgramPrices`.
        lines: certified figures of each class or level of a sequence; under priority value and
            bound are sums over the classes, and the gap is the widest gap of a class.
        largest_share: (B, 2) common served fraction of every demand and its upper bound, for
            matrices that cannot be fully served, NaN for others; None if all are fully served.
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
        """Splits and prices as an :class:`teal.problem.Allocation`, the return type of schemes."""
        allocation = Allocation.of_batch(
            self.splits, self.prices, self.solve_s, self.program_prices
        )
        is_infeasible = [stop is Stop.INFEASIBLE for stop in self.stopped_by]
        if not any(is_infeasible):
            return allocation
        status = (
            Status.INFEASIBLE if is_row_infeasible else Status.FEASIBLE
            for is_row_infeasible in is_infeasible
        )
        return dataclasses.replace(allocation, status=tuple(status))

    def rows(self, rows: Tensor) -> PdhgResult:
        """Return the results of some of the matrices, by index."""
        changed: dict[str, Any] = {field: getattr(self, field)[rows] for field in _TENSOR_FIELDS}
        for field in _SEQUENCE_FIELDS:
            part = getattr(self, field)
            changed[field] = None if part is None else part.rows(rows)
        if self.largest_share is not None:
            changed["largest_share"] = self.largest_share[rows]
        stopped_by = tuple(self.stopped_by[row] for row in rows.tolist())
        return dataclasses.replace(
            self, **changed, state=self.state.rows(rows), stopped_by=stopped_by
        )

    def replaced(self, rows: Tensor, replacements: PdhgResult) -> PdhgResult:
        """Return a copy with new results for some matrices; single programs only.

        Args:
            rows: (n,) indices of these matrices.
            replacements: n results.

        Raises:
            ValueError: results of a sequence of programs.
        """
        if any(getattr(self, field) is not None for field in _SEQUENCE_FIELDS):
            raise ValueError(
                "cannot replace results of single matrices: a sequence of programs has one "
                "certificate for all matrices"
            )

        def copy_rows(old: Tensor, new: Tensor) -> Tensor:
            return old.index_copy(0, rows.to(old.device), new)

        stopped_by = list(self.stopped_by)
        for row, stop in zip(rows.tolist(), replacements.stopped_by, strict=True):
            stopped_by[row] = stop
        tensors: dict[str, Any] = {
            field: copy_rows(getattr(self, field), getattr(replacements, field))
            for field in _TENSOR_FIELDS
        }
        state = PdhgState(
            copy_rows(self.state.splits, replacements.state.splits),
            copy_rows(self.state.prices, replacements.state.prices),
        )
        iterations = max(self.iterations, replacements.iterations)
        return dataclasses.replace(
            self, **tensors, state=state, stopped_by=tuple(stopped_by), iterations=iterations
        )


def better(problem: Problem, first: PdhgResult, second: PdhgResult) -> PdhgResult:
    """Combine two results for the same matrices: the better allocation and the better prices of
    each matrix.

    Args:
        problem: B matrices.
        first, second: results; other fields come from ``second``, and iterations are added up.
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
    """Concatenate the results of parts of a batch, solved one after another.

    Iterations are those of the longest part, seconds the sum.
    """

    def concatenate(field: str) -> Tensor:
        return torch.cat([getattr(result, field) for result in results])

    tensors: dict[str, Any] = {field: concatenate(field) for field in _TENSOR_FIELDS}
    if any(result.largest_share is not None for result in results):
        not_available = torch.full((1, 2), torch.nan)
        shares = [
            not_available.to(result.value).expand(len(result.value), -1)
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
