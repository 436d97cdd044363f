"""Solving B matrices under any objective: one program, or the tasks of a sequence of programs."""

from __future__ import annotations

import dataclasses
import math
import time
from functools import partial
from numbers import Real
from typing import Protocol, TypedDict, Unpack, runtime_checkable

import torch
from torch import Tensor

from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.bounds import usable_prices
from teal.problem.prox import project_box
from teal.runtime.interruptible import Deadline, Steps, complete, quietly
from teal.runtime.kernel_cache import is_interpreting
from teal.runtime.parallel import is_large
from teal.solvers import least_cost
from teal.solvers.interior import engine as interior
from teal.solvers.pdhg.fused.engine import FusedEngine
from teal.solvers.pdhg.fused.rehearsal import rehearse_for
from teal.solvers.pdhg.model_start import foretells_work, gains_from_start
from teal.solvers.pdhg.reduction import spans_decades
from teal.solvers.pdhg.single import (
    SearchOptions,
    is_solved_without_kernels,
    iteration_dtype,
    solving_single,
    starts_from_samples,
)
from teal.solvers.result import PdhgResult, PdhgState, ProgressCallback, Starter
from teal.solvers.sequences import class_rows, max_min, priority, rate_cuts
from teal.solvers.sequences.task import Tasks, carrying_out
from teal.spec import register

ENGINES = ("auto", "fused", "plain", "equilibrated", "interior")
WarmStart = tuple[Tensor, Tensor] | PdhgState | PdhgResult


@runtime_checkable
class MakeTasks(Protocol):
    """Makes the tasks of an objective that is a sequence of programs."""

    def __call__(
        self,
        problem: Problem,
        gap: float,
        *,
        knows_value_steps: bool,
        start: PdhgState | None = None,
    ) -> Tasks:
        """The tasks.

        Args:
            problem: B matrices.
            gap: target.
            knows_value_steps: whether programs may have values that fall in steps
                (:mod:`teal.problem.steps`).
            start: splits and prices near the solution; None for none.
        """
        ...


_SEQUENCES: dict[str, MakeTasks] = {
    ObjectiveName.PRIORITY: priority.tasks,
    ObjectiveName.MAX_MIN: max_min.tasks,
}


def tasks_of(problem: Problem, gap: float) -> Tasks:
    """The tasks of a problem whose objective is a sequence of programs, for a solver that takes no
    steps of value.
    """
    return _SEQUENCES[problem.objective.name](problem, gap, knows_value_steps=False)


def register_sequence(name: str, make_tasks: MakeTasks, *, replace: bool = False) -> None:
    """How :func:`solve` solves an objective that is a sequence of programs.

    Args:
        name: name of the objective; see :func:`teal.objectives.register_objective`.
        make_tasks: makes its tasks (:mod:`teal.solvers.sequences.task`).
        replace: whether it may take the place of another one.

    Raises:
        InputError: the name is taken.
    """
    register(_SEQUENCES, "sequence", name, make_tasks, replace=replace)


def solve(
    problem: Problem,
    *,
    gap: float = 1e-2,
    deadline: float = math.inf,
    max_iterations: int = 10_000,
    warm_start: WarmStart | None = None,
    starter: Starter | None = None,
    engine: str = "auto",
    dtype: torch.dtype | None = None,
    report: ProgressCallback | None = None,
) -> PdhgResult:
    """Iterate until every matrix has a certified ``gap``, or the time or the iterations are used
    up.

    Whichever of the three stops it, the best feasible allocation and the best prices found are
    returned.

    Args:
        problem: B matrices, solved MAX_LANES at a time (by the CUDA engine as many as fit in
            memory).
        gap: target: (bound - value) / bound, or (value - bound) / value for a minimum.  For
            max_concurrent_flow the iteration stops on the gap of the equivalent largest
            utilisation.
        deadline: seconds from now.  Setting up and one gap check (two after a warm start) are done
            in any case, for each part of the batch.
        max_iterations: largest number of iterations of a program; under priority and max_min there
            are several.
        warm_start: an earlier result or its state, or splits (B, D, K) and prices (B, E) from
            anywhere: those of the matrix before, of the same matrix before a failure, or of a
            model.  Under priority the last program starts from it; of a result under priority or
            max_min the prices of all its programs go on proving bounds.
        starter: such as a PriceGNN.  On networks so large that the engine starts from a sample of
            the demands, it solves the sample (targets of 0.5% and above, programs that maximise a
            value; iterations do otherwise).  On smaller ones it gives the start that ``warm_start``
            does not give, and of a program that maximises a value one wherever that saves
            iterations (:mod:`teal.solvers.pdhg.model_start`).  With auto, balanced programs and
            concave utilities do without.  Not under priority and max_min.
        engine: interior (interior points: programs over paths, on the CPU), fused (PDHG; CPU, and
            GPU with numba-cuda), plain (any device), equilibrated (any device; for magnitudes that
            span many decades), or auto: the one of the first two that is expected to be faster,
            from a warm start PDHG and then interior points, and equilibrated where magnitudes span
            more than four decades or where the gap stops shrinking, unless the network is large.
            Under side conditions whose columns are not paths (promises, added rows) auto is plain
            in the place of fused.
        dtype: type of the splits during the iteration; None for float32, or float64 where ``gap``
            is below 1e-5 and, with auto, where float32 stalls.
        report: called after each full gap check between iterations, and under priority and max_min
            after each program; the gap is infinite while it is not known.

    Raises:
        InputError: settings out of range, a warm start of another shape, a warm start, starter or
            engine that this program does not take, or too little memory for one matrix.
    """
    if not _is_at_least_0(deadline):
        raise InputError("solve", "deadline", "seconds, a number >= 0", repr(deadline))
    settings = _Settings(
        gap=gap,
        max_iterations=max_iterations,
        warm_start=warm_start,
        starter=starter,
        engine=engine,
        dtype=dtype,
        report=report,
    )
    settings.prepare(problem)  # before the clock starts
    return complete(_prepared(problem, settings, Deadline.after(deadline)))


def _is_at_least_0(value: object) -> bool:
    """Whether a value of any type is a number of at least 0, perhaps infinite."""
    return isinstance(value, Real) and float(value) >= 0


def takes_starter(problem: Problem) -> bool:
    """Whether the solution is that of one program, for which a model can give a start."""
    rules = problem.objective.rules
    return not (rules.is_sequence or rules.may_have_no_allocation)


class SolveOptions(TypedDict, total=False):
    """Options of :func:`solve` but its deadline; see there."""

    gap: float
    max_iterations: int
    warm_start: WarmStart | None
    starter: Starter | None
    engine: str
    dtype: torch.dtype | None
    report: ProgressCallback | None


def solving(
    problem: Problem, *, deadline: Deadline | None = None, **options: Unpack[SolveOptions]
) -> Steps[PdhgResult]:
    """:func:`solve` as a computation that pauses at the end of iterations
    (:mod:`teal.runtime.interruptible`).

    Args:
        problem: as in :func:`solve`.
        deadline: None for none.
        options: as in :func:`solve`.

    Raises:
        InputError: see :func:`solve`; at the first step.
    """
    settings = _Settings(**options)
    settings.prepare(problem)
    return (yield from _prepared(problem, settings, deadline or Deadline()))


@torch.no_grad()
def _prepared(problem: Problem, settings: _Settings, deadline: Deadline) -> Steps[PdhgResult]:
    """The solution, once everything is compiled that it needs."""
    steps = _solving(problem, settings, deadline)
    return (yield from quietly(steps, problem.batch * problem.paths.mask.size))


@dataclasses.dataclass(frozen=True, eq=False)
class _Settings:
    """The options of :func:`solve` but its deadline; see there."""

    gap: float = 1e-2
    max_iterations: int = 10_000
    warm_start: WarmStart | None = None
    starter: Starter | None = None
    engine: str = "auto"
    dtype: torch.dtype | None = None
    report: ProgressCallback | None = None

    def check(self, problem: Problem) -> None:
        """Raise InputError for options that are out of range or would have no effect."""
        if not problem.batch:
            raise InputError("solve", "problem", "at least one matrix", "none")
        if not _is_at_least_0(self.gap) or self.gap == math.inf:
            raise InputError("solve", "gap", "a number >= 0, such as 0.01 for 1%", repr(self.gap))
        if self.max_iterations < 0:
            raise InputError("solve", "max_iterations", "a whole number >= 0", self.max_iterations)
        if self.engine not in ENGINES:
            raise InputError("solve", "engine", " or ".join(ENGINES), repr(self.engine))
        if self.starter is not None and not takes_starter(problem):
            raise InputError(
                "solve",
                "starter",
                f"none: {problem.objective.name} takes more than one program, or none that "
                "models learn",
                "one",
            )

    def prepare(self, problem: Problem) -> None:
        """Check the options, and compile what the search needs (:func:`prepare`).

        Raises:
            InputError: see :meth:`check`.
        """
        self.check(problem)
        prepare(problem, gap=self.gap, engine=self.engine, dtype=self.dtype, starter=self.starter)


def _solving(problem: Problem, settings: _Settings, deadline: Deadline) -> Steps[PdhgResult]:
    """The solution of a program, or of the programs of a sequence."""
    begin, engine, dtype = time.perf_counter(), settings.engine, settings.dtype
    if make_tasks := _SEQUENCES.get(problem.objective.name):
        result = yield from carrying_out(
            make_tasks(
                problem,
                settings.gap,
                knows_value_steps=_knows_steps(problem, engine),
                start=_starting_state(problem, settings.warm_start),
            ),
            partial(solving, engine=engine, dtype=dtype),
            deadline=deadline,
            max_iterations=settings.max_iterations,
            report=settings.report,
        )
        return dataclasses.replace(result, solve_s=time.perf_counter() - begin)
    state, starter = _starting_state(problem, settings.warm_start), settings.starter
    if not _may_ask_model(problem, engine):
        starter = None
    if problem.objective.rules.may_have_no_allocation:
        limits = settings.gap, settings.max_iterations, deadline
        return (yield from least_cost.solving(problem, state, *limits, engine, _balance))
    is_sampled = not problem.conditions and starts_from_samples(problem, settings.gap, engine)
    if (
        state is None
        and starter is not None
        and not (is_sampled or foretells_work(problem, engine))
    ):
        state = _starting_state(problem, starter.start(problem))
    options = SearchOptions(
        settings.gap, deadline, settings.max_iterations, settings.report, starter
    )
    result = yield from solving_single(problem, state, options, engine, dtype)
    return dataclasses.replace(result, solve_s=time.perf_counter() - begin)


def _balance(problem: Problem, gap: float, deadline: Deadline) -> Steps[PdhgResult]:
    return (yield from solving(problem, gap=gap, deadline=deadline))


def _may_ask_model(problem: Problem, engine: str) -> bool:
    """Whether a model may give the start; an engine that is named always takes it."""
    return engine != "auto" or gains_from_start(problem)


def prepare(
    problem: Problem,
    *,
    gap: float = 1e-2,
    engine: str = "auto",
    dtype: torch.dtype | None = None,
    starter: Starter | None = None,
) -> None:
    """Compile what :func:`solve` runs for such a problem, which :func:`solve` does too before its
    clock starts.

    Args:
        problem: B matrices.
        gap, engine, dtype, starter: as in :func:`solve`.
    """
    if problem.objective.rules.may_have_no_allocation:
        if not is_interpreting():
            interior.warm_up_for(problem.ops.mask.numel())
        return
    rehearse = getattr(starter, "rehearse", None)
    if rehearse is not None and _may_ask_model(problem, engine):
        rehearse(problem)
    if problem.classes is not None and not problem.conditions:
        class_rows.rehearse(on_all=is_large(problem.paths.mask.size))
    if problem.objective.name == ObjectiveName.MAX_MIN:
        rate_cuts.rehearse()
    over = problem.over_columns if problem.conditions else problem
    if is_solved_without_kernels(over, engine) and not over.objective.rules.is_sequence:
        return
    if over.largest_share is not None:
        first = over.largest_share[:1, :1]
        project_box(torch.zeros_like(first), first, torch.ones_like(first))
    if engine == "interior" or (engine == "auto" and interior.is_candidate(over)):
        interior.warm_up_for(over.ops.mask.numel())
    if problem.batch and engine in ("auto", "fused") and FusedEngine.accepts(over):
        rehearse_for(over, gap, iteration_dtype(over, gap, dtype))


def _knows_steps(problem: Problem, engine: str) -> bool:
    """Whether the engine takes values that fall in steps, and the program needs no other engine."""
    if problem.conditions:
        return False
    if engine == "plain":
        return True
    if engine not in ("auto", "fused") or problem.ops.device.type != "cpu":
        return False
    return problem.usable.demand is problem.demand and not bool(spans_decades(problem).any())


def _starting_state(problem: Problem, warm_start: WarmStart | None) -> PdhgState | None:
    """The state of ``warm_start``, with prices whose sums are finite; engines repair the splits,
    and that of a GPU the prices too, among its recorded launches.

    Raises:
        InputError: splits or prices of another shape.
    """
    if warm_start is None:
        return None
    state = warm_start.state if isinstance(warm_start, PdhgResult) else warm_start
    state = PdhgState(*state) if isinstance(state, tuple) else state
    expected = (
        (problem.batch, *problem.paths.mask.shape),
        (problem.batch, problem.topology.num_links),
    )
    actual = tuple(state.splits.shape), tuple(state.prices.shape)
    if actual != expected:
        raise InputError("solve", "warm_start", f"splits and prices of shape {expected}", actual)
    device = problem.demand.device
    prices = state.prices.to(device)
    if not problem.demand.is_cuda or problem.conditions or problem.objective.rules.is_sequence:
        prices = usable_prices(problem, prices, most=1.0)
    of_programs = state.program_prices
    if of_programs is not None and len(of_programs.prices) != problem.batch:
        of_programs = None  # those of another batch say nothing here
    return PdhgState(state.splits.to(device), prices, of_programs)
