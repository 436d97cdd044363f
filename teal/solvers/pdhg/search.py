"""The search: iterate until a target gap, a deadline or an iteration limit, and keep the best that was found."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from teal.errors import InputError
from teal.problem import Problem
from teal.problem.bounds import from_utilisation
from teal.problem.bounds import gap as certified_gap
from teal.runtime.shapes import Float
from teal.solvers.pdhg.engine import PdhgEngine, PdhgState
from teal.solvers.pdhg.fused import MAX_LANES, FusedEngine
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.projection import project

ENGINES = ("auto", "fused", "plain")
_FLOAT64_BELOW_GAP = 1e-5  # target gap below which float32 splits are too coarse
_FIRST_CHECK = 6  # iterations after which the first full gap check is made at the latest; easy programs need no more
_CHECK_GROWTH = 2.0  # x iterations done at the last full gap check: the latest next one, so that checks stay few
_CHECK_SPACING = 1.25  # x iterations done at the last full gap check: the earliest next one, which costs 2 iterations
_CHECK_WHEN_WITHIN = 1.6  # x target gap: a check is made early if newest bound and last known value are this close
_LARGE_WORK = 500_000  # trie nodes + path slots of one matrix; above it a CPU tests the bound after every iteration
_STRIDE = 4  # iterations between two tests of the bound below that and on GPUs, where a test costs as much as these
_CHECK_COST = 2.0  # iterations: cost of a full gap check, assumed until one has been timed
_LAST_CHECK_COST = 3.0  # full gap checks: cost of the last one, which also runs _LAST_REFILL rounds
# Rounds that hand unused capacity to unserved demand, in the last check only: in every check they take longer than
# the iterations that they save.
_LAST_REFILL = 3


@dataclasses.dataclass(frozen=True, eq=False)
class PdhgResult:
    """The best allocation and the best prices that were found.

    Attributes:
        splits: (B, D, K) share of the demand on each path; feasible.
        prices: (B, E) value per Gbit/s; 1/(Gbit/s) for a balanced objective.
        value: (B,) objective of the splits.
        bound: (B,) limit of the objective that the prices prove: upper for a maximum, lower for a minimum.
        gap: (B,) certified gap between value and bound.
        iterations: number of iterations done; of matrices that were solved in several parts, the largest number.
        solve_s: wall-clock seconds.
        state: best splits and prices, from which the solve of another matrix can start.
    """

    splits: Float[Tensor, "B D K"]
    prices: Float[Tensor, "B E"]
    value: Float[Tensor, " B"]
    bound: Float[Tensor, " B"]
    gap: Float[Tensor, " B"]
    iterations: int
    solve_s: float
    state: PdhgState


# Called with the iterations done and the widest gap of the matrices that are being solved together.
ProgressCallback = Callable[[int, float], None]
WarmStart = tuple[Tensor, Tensor] | PdhgState | PdhgResult


@torch.no_grad()
def solve(
    problem: Problem,
    *,
    gap: float = 1e-2,
    deadline: float = math.inf,
    max_iterations: int = 10_000,
    warm_start: WarmStart | None = None,
    engine: str = "auto",
    dtype: torch.dtype | None = None,
    report: ProgressCallback | None = None,
) -> PdhgResult:
    """Iterate until every matrix has a certified ``gap``, or the time or the iterations are used up.

    Whichever of the three stops it, the best feasible allocation and the best prices found are returned.

    Args:
        problem: B matrices, solved MAX_LANES at a time (by the CUDA engine as many as fit in memory).
        gap: target: (bound - value) / bound, or (value - bound) / value for a minimum.  For max_concurrent_flow the
            iteration stops on the gap of the equivalent largest utilisation.
        deadline: seconds from now.  Setting up and one gap check (two after a warm start) are done in any case, for
            each part of the batch.
        max_iterations: largest number of iterations.
        warm_start: an earlier result or its state, or splits (B, D, K) and prices (B, E) from anywhere: those of the
            matrix before, of the same matrix before a failure, or of a model.
        engine: fused (CPU, and GPU with numba-cuda), plain (any device), or auto for the faster one that runs here.
        dtype: of the splits during the iteration; None for float32, or float64 where ``gap`` is below 1e-5.
        report: called after each full gap check between iterations.

    Raises:
        InputError: a warm start of another shape, an unknown engine, or too little memory for one matrix.
    """
    begin = time.perf_counter()
    if not 0 <= gap < math.inf:
        raise InputError("solve", "gap", "a number >= 0", gap)
    if engine not in ENGINES:
        raise InputError("solve", "engine", " or ".join(ENGINES), repr(engine))
    state = _starting_state(problem, warm_start)
    real = dtype or (torch.float64 if gap < _FLOAT64_BELOW_GAP else torch.float32)
    make_engine, lanes = _engine(problem, engine, real)
    results: list[PdhgResult] = []
    for first in range(0, problem.batch, lanes):
        rows = slice(first, first + lanes)
        part = problem.rows(rows)
        part_state = None if state is None else state.rows(rows)
        now = time.perf_counter()
        part_deadline = (begin + deadline - now) * part.batch / (problem.batch - first)
        # No other variable holds the engine, so that its memory is free for the next part.
        search = _Search(part, make_engine(part, part_state, real), gap, max_iterations, report, begin=now)
        results.append(search.run(part_deadline, warm=part_state is not None))
        del search
    return results[0] if len(results) == 1 else _merged(results, time.perf_counter() - begin)


def _engine(problem: Problem, name: str, dtype: torch.dtype) -> tuple[Callable[..., PdhgEngine], int]:
    """The engine's class, and how many matrices it solves at once."""
    has_cuda_engine = problem.ops.backend.name == "cuda"
    if name == "plain" or (name == "auto" and not has_cuda_engine and problem.ops.device.type != "cpu"):
        return PlainEngine, MAX_LANES
    if not has_cuda_engine:
        if problem.ops.device.type != "cpu":
            raise InputError("solve", "engine", f"plain, the only one on {problem.ops.device} without numba-cuda", name)
        return FusedEngine, MAX_LANES
    from teal.solvers.pdhg.cuda_engine import CudaEngine, lanes

    return CudaEngine, lanes(problem, dtype)


class _Search:
    """Drives one engine to the target gap.

    Args:
        problem: the matrices, as many as the engine solves at once.
        engine: at its starting point.
        target_gap: at which the search stops.
        max_iterations: at which the search stops.
        report: see :func:`solve`.
        begin: ``time.perf_counter()`` at the start, from which the deadline counts.
    """

    def __init__(
        self,
        problem: Problem,
        engine: PdhgEngine,
        target_gap: float,
        max_iterations: int,
        report: ProgressCallback | None,
        begin: float,
    ) -> None:
        self._problem, self._engine, self._report = problem, engine, report
        self._target_gap, self._max_iterations, self._begin = target_gap, max_iterations, begin
        self._maximises = problem.objective.maximises_value  # else all values are utilisations, to be minimised
        worst = torch.full((problem.batch,), math.inf, dtype=torch.float64)
        self._value, self._bound = (-worst, worst) if self._maximises else (worst, torch.zeros_like(worst))
        work = problem.paths.trie.num_nodes + problem.paths.leaf.size
        on_cpu = problem.demand.device.type == "cpu"
        self._stride = 1 if work > _LARGE_WORK and on_cpu else _STRIDE

    def run(self, deadline: float, *, warm: bool) -> PdhgResult:
        """Alternate iterations and gap checks; ``deadline`` in seconds from ``begin``."""
        engine = self._engine
        done, next_check, last_check = 0, _FIRST_CHECK, -1  # iterations; -1: no check has been made
        iteration_s, check_s = 0.0, 0.0  # seconds of an iteration and of a check, 0 until they are timed
        if warm:
            check_s, last_check, next_check = self._check(), 0, 1
        while done < self._max_iterations and not self._all_within(self._bound):
            elapsed = time.perf_counter() - self._begin
            reserve = _LAST_CHECK_COST * (check_s or _CHECK_COST * iteration_s) + iteration_s
            if elapsed + reserve >= deadline:
                break
            count = max(1, min(self._stride, self._max_iterations - done, next_check - done))
            if iteration_s and math.isfinite(deadline):
                count = max(1, min(count, int((deadline - elapsed - reserve) / iteration_s)))
            advance_begin = time.perf_counter()
            iteration_bound = engine.advance(count)
            iteration_s, done = (time.perf_counter() - advance_begin) / count, done + count
            bound = self._tighter(iteration_bound)  # true up to the rounding of float32, so only an indication
            if self._all_within(bound) and done < next_check:
                self._take_bound(engine.certify())
            elif done >= next_check or (done >= _CHECK_SPACING * last_check and self._is_promising(bound)):
                check_s, last_check = self._check(), done
                if self._report is not None:
                    self._report(done, float(self._gaps(self._bound).max()))
                next_check = max(last_check + 2, math.ceil(_CHECK_GROWTH * last_check))
        if not self._all_within(self._bound):
            self._check(_LAST_REFILL)
        return self._result(done)

    def _is_promising(self, bound: Tensor) -> bool:
        """Whether a full gap check may reach the target: the value may have improved since the last check."""
        return bool((self._gaps(bound) <= _CHECK_WHEN_WITHIN * self._target_gap).all())

    def _tighter(self, bound: Tensor) -> Tensor:
        """(B,) the tighter of the best bound and ``bound``."""
        return torch.minimum(self._bound, bound) if self._maximises else torch.maximum(self._bound, bound)

    def _gaps(self, bound: Tensor) -> Tensor:
        """(B,) gaps between the best values and ``bound``; infinite before the first check."""
        high, low = (bound, self._value) if self._maximises else (self._value, bound)
        gaps = torch.where(high > 0, (high - low) / high.clamp(min=1e-300), 0)
        return torch.where(self._value.isfinite(), gaps, math.inf)

    def _all_within(self, bound: Tensor) -> bool:
        """Whether every matrix has the target gap."""
        return bool((self._gaps(bound) <= self._target_gap).all())

    def _unfinished(self) -> Tensor:
        """(B,) matrices that lack the target gap; the others keep their results."""
        return self._gaps(self._bound) > self._target_gap

    def _take_bound(self, bound: Tensor) -> None:
        """Take certified bounds (B,) where they are tighter, and the prices that they belong to."""
        is_tighter = self._unfinished() & ((bound < self._bound) if self._maximises else (bound > self._bound))
        self._bound = torch.where(is_tighter, bound, self._bound)
        self._engine.keep(torch.zeros_like(is_tighter), is_tighter)

    def _check(self, refill: int = 0) -> float:
        """Make a full gap check and keep the better allocations and prices.  Returns the seconds that it took.

        Args:
            refill: see :data:`_LAST_REFILL`.
        """
        begin = time.perf_counter()
        value, bound = self._engine.check(refill)
        unfinished = self._unfinished()
        is_better = unfinished & ((value > self._value) if self._maximises else (value < self._value))
        is_tighter = unfinished & ((bound < self._bound) if self._maximises else (bound > self._bound))
        self._value = torch.where(is_better, value, self._value)
        self._bound = torch.where(is_tighter, bound, self._bound)
        self._engine.keep(is_better, is_tighter)
        return time.perf_counter() - begin

    def _result(self, iterations: int) -> PdhgResult:
        problem, value, bound = self._problem.to(torch.float64), self._value, self._bound
        splits, prices = self._engine.best()
        state = PdhgState(splits, prices)
        if problem.objective.is_balanced:
            value, bound = from_utilisation(problem, value), from_utilisation(problem, bound)
            if problem.objective.may_shed:
                splits = project(problem, splits)
        value, bound = value.to(splits.device), bound.to(splits.device)
        return PdhgResult(
            splits=splits,
            prices=prices,
            value=value,
            bound=bound,
            gap=certified_gap(problem, value, bound),
            iterations=iterations,
            solve_s=time.perf_counter() - self._begin,
            state=state,
        )


def _starting_state(problem: Problem, warm_start: WarmStart | None) -> PdhgState | None:
    """The state of ``warm_start``, with prices that are finite and not negative; engines repair the splits.

    Raises:
        InputError: splits or prices of another shape.
    """
    if warm_start is None:
        return None
    state = warm_start.state if isinstance(warm_start, PdhgResult) else warm_start
    state = PdhgState(*state) if isinstance(state, tuple) else state
    expected = (problem.batch, *problem.paths.leaf.shape), (problem.batch, problem.topology.num_links)
    actual = tuple(state.splits.shape), tuple(state.prices.shape)
    if actual != expected:
        raise InputError("solve", "warm_start", f"splits and prices of shape {expected}", actual)
    return PdhgState(state.splits, torch.nan_to_num(state.prices, nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0))


def _merged(results: list[PdhgResult], seconds: float) -> PdhgResult:
    """One result of parts that were solved one after another."""

    def joined(field: str) -> Tensor:
        return torch.cat([getattr(result, field) for result in results])

    return PdhgResult(
        **{field: joined(field) for field in ("splits", "prices", "value", "bound", "gap")},
        iterations=max(result.iterations for result in results),
        solve_s=seconds,
        state=PdhgState(
            torch.cat([result.state.splits for result in results]),
            torch.cat([result.state.prices for result in results]),
        ),
    )
