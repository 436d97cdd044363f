"""Results and states of a solve, the reason of a stop, and the interface of learned starts.

:class:`SolveResult` is the result of every engine for B matrices, :class:`SolveState` a warm start,
:class:`Stop` the stopping criterion that held, :class:`Starter` the interface of a model that gives
starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from teal.deprecated import with_old_names
from teal.problem import Allocation, Problem, ProgramPrices, Status
from teal.problem.assessment import WithPartCertificates
from teal.problem.bounds import gap as certified_gap
from teal.problem.bounds import gap_between, usable_prices
from teal.problem.part_certificates import PartCertificates
from teal.runtime.shapes import Float


@dataclasses.dataclass(frozen=True, eq=False)
class SolveState:
    """Splits and dual prices that a solve of a similar problem starts from (warm start).

    Attributes:
        splits: (B, D, K) share of each demand on each path; may be infeasible.
        prices: (B, E) dual price of each link, value per Gbit/s; 1/(Gbit/s) for a min-max program.
        program_prices: prices of each program of a sequence; None for a single program.
        is_predicted: whether a model has predicted them.
    """

    splits: Tensor
    prices: Tensor
    program_prices: ProgramPrices | None = None
    is_predicted: bool = False

    def rows(self, rows: slice | Tensor) -> SolveState:
        """Return the state of the matrices at these indices, in this order."""
        program_prices = None if self.program_prices is None else self.program_prices.rows(rows)
        return SolveState(
            self.splits[rows], self.prices[rows], program_prices, is_predicted=self.is_predicted
        )

    def repeated(self, batch: int) -> SolveState:
        """Return the state of the first matrix, repeated for ``batch`` matrices."""
        return self.rows(torch.zeros(batch, dtype=torch.int64))


@runtime_checkable
class Starter(Protocol):
    """Model that predicts splits and prices from which a search starts, such as a PriceGNN.

    It may have further methods: ``start_sample(problem)``, like ``start``, for a sample of the
    demands; ``warm_up_kernels(problem)``, which loads the kernels and weights of ``start`` before a
    time limit begins; ``start_for(problem, iterations)``, a start whose work suits a program of a
    predicted number of iterations; and ``rounds_for(iterations)``, the number of message-passing
    rounds of this start.
    """

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return predicted splits (B, D, K), possibly infeasible, and link prices (B, E)."""
        ...


def start_of_sample(starter: Starter, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return a model's splits (B, D, K) and prices (B, E) for a sample of the demands.

    Calls ``start_sample`` if the starter has it, else ``start``.
    """
    return getattr(starter, "start_sample", starter.start)(problem)


def start_for(starter: Starter, problem: Problem, iterations: float) -> tuple[Tensor, Tensor]:
    """Return a model's splits (B, D, K) and prices (B, E) for a program of a predicted difficulty.

    Calls ``start_for`` if the starter has it, else ``start``.

    Args:
        starter: the model.
        problem: B matrices.
        iterations: predicted number of iterations of the solve.
    """
    method = getattr(starter, "start_for", None)
    return starter.start(problem) if method is None else method(problem, iterations)


def rounds_for(starter: Starter, iterations: float) -> int:
    """Return the number of message-passing rounds of a model for a program of this difficulty.

    The difficulty is the predicted number ``iterations`` of iterations of the solve.

    Calls ``rounds_for`` if the starter has it; else 22, the rounds of a PriceGNN.
    """
    method = getattr(starter, "rounds_for", None)
    return _DEFAULT_ROUNDS if method is None else method(iterations)


def usable_start(problem: Problem, start: Callable[[Problem], tuple[Tensor, Tensor]]) -> SolveState:
    """Return a model's splits and prices as a valid start: splits >= 0 with sums of at most 1, and
    finite prices.

    Args:
        problem: B matrices.
        start: function of the problem that returns splits (B, D, K) and prices (B, E).
    """
    splits, prices = (tensor.to(torch.float64) for tensor in start(problem))
    # NaN, infinite and negative splits become 0.
    splits = splits.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    return SolveState(
        splits / splits.sum(-1, keepdim=True).clamp(min=1),
        usable_prices(problem, prices, max_ratio=1.0),
        is_predicted=True,
    )


_DEFAULT_ROUNDS = 22  # rounds of a PriceGNN
# Fields of SolveResult with an entry per matrix.
_TENSOR_FIELDS = (
    "splits",
    "prices",
    "value",
    "bound",
    "gap",
)
# Fields of SolveResult that only sequences of programs have.
_SEQUENCE_FIELDS = (
    "program_prices",
    "part_certificates",
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
    """Value and certified bound of one optimisation, with its stopping criterion.

    Attributes:
        value: value of the solution.
        bound: certified bound on the optimum: upper for a maximum, lower for a minimum.
        sense: 1.0 for a maximum, -1.0 for a minimum.
        iterations: iterations or rounds of the search.
        solve_s: wall-clock seconds.
        stopped_by: criterion that ended the search.
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
    """Return the stopping criterion of each of B matrices under a sequence of programs.

    It is GAP if the certified gap is at most ``target``, else ITERATIONS.

    Args:
        gaps: (B,) certified gaps.
        target: target gap.
    """
    return tuple(Stop.GAP if gap <= target else Stop.ITERATIONS for gap in gaps.tolist())


# Start of the names of stages that are turns of engines.
ENGINE_RUN = "iterate: "


@dataclasses.dataclass(frozen=True)
class Stage:
    """Record of a stage of a solve.

    Attributes:
        name: name of the stage, such as "presolve" or "iterate: interior".
        seconds: wall-clock time, s.
        detail: reason of a choice; or start and selected columns of a turn.
        predicted_s: predicted seconds of the engines that were compared, by engine and start.
        matrices: number of matrices of a turn of an engine; 0 for other stages.
        iterations: number of iterations of a turn; the largest number of a matrix.
    """

    name: str
    seconds: float
    detail: str = ""
    predicted_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    matrices: int = 0
    iterations: int = 0

    @property
    def is_engine_run(self) -> bool:
        """Whether the stage is a turn of an engine."""
        return self.name.startswith(ENGINE_RUN)

    def describe(self) -> str:
        """Return a line of text, such as ``choose engines: 0.3 ms, shortest predicted time
        (predicted: interior, cold 2 ms; pdhg 9 ms)``.
        """
        parts = [f"{1e3 * self.seconds:.3g} ms"]
        if self.is_engine_run:
            parts.append(f"{self.iterations} iterations")
        if self.detail:
            parts.append(self.detail)
        if self.matrices > 1:
            parts.append(f"{self.matrices} matrices")
        text = f"{self.name}: {', '.join(parts)}"
        predicted = "; ".join(
            f"{engine} {1e3 * seconds:.3g} ms" for engine, seconds in self.predicted_s.items()
        )
        return f"{text} (predicted: {predicted})" if predicted else text


# Called with the number of iterations and the widest gap of the matrices of one search.
ProgressCallback = Callable[[int, float], None]


@dataclasses.dataclass(frozen=True, eq=False)
class SolveResult(WithPartCertificates):
    """Incumbent of a solve: the best allocation and the best dual prices of B matrices.

    Attributes:
        splits: (B, D, K) share of the demand on each path; feasible.
        prices: (B, E) value per Gbit/s; 1/(Gbit/s) where all demand is carried, and under max_min.
        value: (B,) objective of the splits.
        bound: (B,) dual bound of the objective at the prices: upper for a maximum, lower for a
            minimum.
        gap: (B,) certified gap between value and bound; infinite if either is not finite.
        iterations: number of iterations; the largest number if the batch was solved in parts.
        solve_s: wall-clock seconds.
        state: best splits and prices, from which another solve can start.
        stopped_by: (B,) stopping criterion of each matrix.
        program_prices: prices of each program of a sequence, see
            :class:`teal.problem.ProgramPrices`.
        part_certificates: value, bound and gap of each class or level of a sequence of programs;
            None for a single program.  Under priority ``value`` and ``bound`` are sums over the
            classes, and ``gap`` is the widest gap of a class.
        largest_share: (B, 2) common served fraction of every demand and its upper bound, for
            matrices that cannot be fully served, NaN for others; None if all are fully served.
        trace: stages of the solve, in order; of a sequence those of all its programs.
    """

    splits: Float[Tensor, "B D K"]
    prices: Float[Tensor, "B E"]
    value: Float[Tensor, " B"]
    bound: Float[Tensor, " B"]
    gap: Float[Tensor, " B"]
    iterations: int
    solve_s: float
    state: SolveState
    stopped_by: tuple[Stop, ...]
    program_prices: ProgramPrices | None = None
    part_certificates: PartCertificates | None = None
    largest_share: Float[Tensor, "B 2"] | None = None
    trace: tuple[Stage, ...] = ()

    @property
    def engine_runs(self) -> tuple[str, ...]:
        """A text for each run of an engine: its name, iterations, start, and selected columns.

        Runs of an engine that differ in the iterations only are summed up in one text.
        """
        engine_runs = [stage for stage in self.trace if stage.is_engine_run]
        iterations_by_kind: dict[tuple[str, str, int], list[int]] = {}
        for stage in engine_runs:
            kind = stage.name.removeprefix(ENGINE_RUN), stage.detail, stage.matrices
            iterations_by_kind.setdefault(kind, []).append(stage.iterations)
        texts = []
        for (engine, detail, matrices), iterations in iterations_by_kind.items():
            parts = [f"{engine}: {sum(iterations)} iterations"]
            # A sequence of programs has several runs of a kind.
            if len(iterations) > 1:
                parts.append(f"{len(iterations)} turns")
            if detail:
                parts.append(detail)
            if matrices > 1:
                parts.append(f"{matrices} matrices")
            texts.append(", ".join(parts))
        return tuple(texts)

    def __repr__(self) -> str:
        value, gap = (
            ", ".join(f"{x:.6g}" for x in part[:4].tolist()) for part in (self.value, self.gap)
        )
        more = ", ..." if len(self.value) > 4 else ""
        return (
            f"SolveResult(value {value}{more}; gap {gap}{more}; {self.iterations} iterations, "
            f"{self.solve_s:.3g} s)"
        )

    @property
    def allocation(self) -> Allocation:
        """Splits and prices as an :class:`teal.problem.Allocation`, the return type of schemes.

        It has a status for each matrix if some matrix is infeasible.
        """
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

    def in_dtype(self, dtype: torch.dtype) -> SolveResult:
        """Return the result with all tensors in a floating-point type: itself if they have it."""
        if all(getattr(self, field).dtype == dtype for field in _TENSOR_FIELDS):
            return self
        tensors: dict[str, Any] = {
            field: getattr(self, field).to(dtype) for field in _TENSOR_FIELDS
        }
        state = SolveState(self.state.splits.to(dtype), self.state.prices.to(dtype))
        return dataclasses.replace(self, **tensors, state=state)

    def rows(self, rows: Tensor) -> SolveResult:
        """Return the results of the matrices at the indices ``rows`` (n,), in this order."""
        # Select the entries of every field that has one per matrix.
        selected_fields: dict[str, Any] = {
            field: getattr(self, field)[rows] for field in _TENSOR_FIELDS
        }
        for field in _SEQUENCE_FIELDS:
            part = getattr(self, field)
            selected_fields[field] = None if part is None else part.rows(rows)
        if self.largest_share is not None:
            selected_fields["largest_share"] = self.largest_share[rows]
        stopped_by = tuple(self.stopped_by[row] for row in rows.tolist())
        return dataclasses.replace(
            self, **selected_fields, state=self.state.rows(rows), stopped_by=stopped_by
        )

    def replaced(self, rows: Tensor, replacements: SolveResult) -> SolveResult:
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
            # Copy of ``old`` with the rows of ``new`` at these indices; engines differ in their
            # floating-point type, and the wider one is kept.
            dtype = torch.promote_types(old.dtype, new.dtype)
            return old.to(dtype).index_copy(0, rows.to(old.device), new.to(dtype))

        stopped_by = list(self.stopped_by)
        for row, stop in zip(rows.tolist(), replacements.stopped_by, strict=True):
            stopped_by[row] = stop
        tensors: dict[str, Any] = {
            field: copy_rows(getattr(self, field), getattr(replacements, field))
            for field in _TENSOR_FIELDS
        }
        state = SolveState(
            copy_rows(self.state.splits, replacements.state.splits),
            copy_rows(self.state.prices, replacements.state.prices),
        )
        iterations = max(self.iterations, replacements.iterations)
        return dataclasses.replace(
            self, **tensors, state=state, stopped_by=tuple(stopped_by), iterations=iterations
        )


def better(problem: Problem, first: SolveResult, second: SolveResult) -> SolveResult:
    """Return the better allocation and the tighter bound of each matrix from two results.

    The gap is that between this value and this bound.

    Args:
        problem: B matrices.
        first, second: results for these matrices; fields other than splits, prices, value, bound
            and gap come from ``second``, and iterations are added up.
    """
    sense = problem.objective.rules.sense
    # Larger is better for a maximum (sense 1), smaller for a minimum (sense -1).
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
        state=SolveState(splits, prices),
        value=value,
        bound=bound,
        gap=certified_gap(problem, value, bound),
        iterations=first.iterations + second.iterations,
    )


def merged(results: list[SolveResult]) -> SolveResult:
    """Concatenate the results of parts of a batch, solved one after another.

    The iterations are the largest number of a part; the seconds are added up.
    """

    def concatenate(field: str) -> Tensor:
        return torch.cat([getattr(result, field) for result in results])

    tensors: dict[str, Any] = {field: concatenate(field) for field in _TENSOR_FIELDS}
    # NaN for matrices without a largest share.
    if any(result.largest_share is not None for result in results):
        not_available = torch.full((1, 2), torch.nan)
        shares = [
            not_available.to(result.value).expand(len(result.value), -1)
            if result.largest_share is None
            else result.largest_share
            for result in results
        ]
        tensors["largest_share"] = torch.cat(shares)
    return SolveResult(
        **tensors,
        iterations=max(result.iterations for result in results),
        solve_s=sum(result.solve_s for result in results),
        state=SolveState(
            torch.cat([result.state.splits for result in results]),
            torch.cat([result.state.prices for result in results]),
        ),
        stopped_by=tuple(stop for result in results for stop in result.stopped_by),
    )


__getattr__ = with_old_names(__name__, globals())
