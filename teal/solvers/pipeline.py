"""Solve pipeline: from a problem to feasible splits, dual prices and a certified gap.

:func:`solve` takes B matrices under any objective and returns a
:class:`~teal.solvers.result.SolveResult`; :func:`solving` is the same as a computation that can be
paused.  An objective is one program, a sequence of programs (:mod:`teal.solvers.sequences`), or a
least-cost program (:mod:`teal.solvers.least_cost`).  One program passes these stages, each a
function of this module or of the module in brackets:

1. :func:`rewrite_conditions`: side conditions become a program over columns and rows;
2. :func:`presolve`: extreme magnitudes are removed and units scaled
   (:mod:`teal.solvers.pdhg.reduction`);
3. :func:`choose_engines` (:mod:`teal.solvers.engine_choice`): engines by predicted time;
4. :func:`iterate`: the engines take turns until every matrix has the target gap, or a limit ends
   the solve; each certifies its own result;
5. the result is translated back through presolve and rewriting, and certified there.

``SolveResult.trace`` has the time of each stage.
"""

from __future__ import annotations

import dataclasses
import math
import time
from functools import partial
from numbers import Real
from typing import Protocol, TypedDict, Unpack, runtime_checkable

import torch
from torch import Tensor

from teal.deprecated import old_method
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.bounds import usable_prices
from teal.problem.prox import project_box
from teal.runtime.interruptible import Deadline, Steps, complete, with_single_threaded_torch
from teal.runtime.kernel_cache import is_interpreting
from teal.solvers import cost_model, least_cost
from teal.solvers.contract import Limits, Start
from teal.solvers.engine_choice import (
    EngineRun,
    choose_engines,
    current_engine,
    engine_names,
    is_engine,
    may_use_interior_points,
    may_use_simplex,
)
from teal.solvers.highs import Highs
from teal.solvers.interior import engine as interior
from teal.solvers.pdhg.fused.engine import FusedEngine
from teal.solvers.pdhg.fused.warm_up import warm_up_kernels_for
from teal.solvers.pdhg.model_start import may_start_from_model
from teal.solvers.pdhg.reduction import Reduction, is_ordinary, spans_decades
from teal.solvers.pdhg.solver import iteration_dtype, starts_from_samples
from teal.solvers.result import (
    ENGINE_RUN,
    ProgressCallback,
    SolveResult,
    SolveState,
    Stage,
    Starter,
    Stop,
    better,
)
from teal.solvers.sequences import class_rows, max_min, priority, rate_cuts
from teal.solvers.sequences.task import Tasks, run_tasks
from teal.solvers.simplex import engine as simplex
from teal.spec import register

# Largest gap of an engine's result that warm-starts another engine.
_MAX_START_GAP = 0.1
WarmStart = tuple[Tensor, Tensor] | SolveState | SolveResult


@runtime_checkable
class MakeTasks(Protocol):
    """Factory of the tasks of an objective that is a sequence of programs."""

    def __call__(
        self,
        problem: Problem,
        gap: float,
        *,
        supports_piecewise_linear_values: bool,
        start: SolveState | None = None,
    ) -> Tasks:
        """Return the tasks of a problem.

        Args:
            problem: B matrices.
            gap: target gap.
            supports_piecewise_linear_values: whether the solver accepts piecewise constant marginal
                values (:mod:`teal.problem.steps`).
            start: warm start, splits and prices; None for a cold start.
        """
        ...


_SEQUENCES: dict[str, MakeTasks] = {
    ObjectiveName.PRIORITY: priority.tasks,
    ObjectiveName.MAX_MIN: max_min.tasks,
}


def tasks_of(problem: Problem, gap: float) -> Tasks:
    """Return the tasks of a sequence objective, for a solver without piecewise constant marginal
    values.

    Args:
        problem: B matrices under an objective that is a sequence of programs.
        gap: target gap.
    """
    return _SEQUENCES[problem.objective.name](problem, gap, supports_piecewise_linear_values=False)


def register_sequence(name: str, make_tasks: MakeTasks, *, replace: bool = False) -> None:
    """Register the task factory of an objective that is a sequence of programs.

    Args:
        name: name of a registered objective.
        make_tasks: factory of its tasks (:mod:`teal.solvers.sequences.task`).
        replace: whether an existing factory of this name may be replaced.

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
) -> SolveResult:
    """Solve each matrix to a certified ``gap``, within a deadline and an iteration limit.

    Returns the incumbent in every case: the best feasible allocation and the best dual prices.

    Args:
        problem: B matrices, solved MAX_LANES at a time (by the CUDA engine as many as fit in
            memory).
        gap: target: (bound - value) / bound, or (value - bound) / value for a minimum.  For
            max_concurrent_flow the iteration stops on the gap of the equivalent largest
            utilisation.
        deadline: seconds from now.  Set-up and one gap check (two after a warm start) always run,
            for each part of the batch.
        max_iterations: iteration limit of each program; priority and max_min solve several.
        warm_start: an earlier result or its state, or splits (B, D, K) and prices (B, E) from any
            source: the previous matrix, the same matrix before a failure, a model.  Under priority
            the last program starts from it; a result under priority or max_min also contributes the
            prices of all its programs as dual bounds.
        starter: learned start, such as a PriceGNN.  On large networks, where the engine starts from
            sampled demands, it solves the sample (targets of 0.5% and above, value maximisation).
            On smaller networks it replaces a missing ``warm_start``; in value maximisation only
            where this saves iterations (:mod:`teal.solvers.pdhg.model_start`).  With auto, min-max
            programs and concave utilities ignore it.  Rejected under priority and max_min.
        engine: interior (interior-point method: programs over paths, on the CPU), simplex (dual
            simplex method from the basis of a similar matrix: linear values over paths, on the
            CPU), fused (PDHG; CPU, and GPU with numba-cuda), plain (PDHG, any device), the name of
            an engine that a package announces, or auto.  Auto selects the simplex method on small
            networks for several matrices, or after a warm start to a narrow gap, else interior
            points or PDHG by predicted time, and interior points for magnitudes that span more than
            four decades
            (:mod:`teal.solvers.engine_choice`).  Under side conditions whose columns
            are not paths (bundles of paths, added rows) PDHG is plain instead of fused.
        dtype: type of the splits during the iteration; None for float32, or float64 where ``gap``
            is below 1e-5 and, with auto, where float32 stalls.
        report: called after each full gap check between iterations, and under priority and max_min
            after each program; the gap is infinite until it is known.

    Raises:
        InputError: options out of range, a warm start of another shape, a warm start, starter or
            engine that does not apply to this program, or too little memory for one matrix.
    """
    if not _is_non_negative(deadline):
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
    # Compile before the clock starts.
    settings.prepare(problem)
    return complete(_solve_prepared(problem, settings, Deadline.after(deadline)))


def _is_non_negative(value: object) -> bool:
    """Whether a value of any type is a real number of at least 0, or infinity."""
    return isinstance(value, Real) and float(value) >= 0


def takes_starter(problem: Problem) -> bool:
    """Whether the objective is one program that always has an allocation, so that a model's start
    applies to it.
    """
    rules = problem.objective.rules
    return not (rules.is_sequence or rules.may_be_infeasible)


class SolveOptions(TypedDict, total=False):
    """Options of :func:`solve` without its deadline.

    Attributes:
        gap: target gap.
        max_iterations: iteration limit of each program.
        warm_start: an earlier result, its state, or splits and prices.
        starter: model whose splits and prices may start the search.
        engine: name of an engine, or "auto".
        dtype: type of the splits in the iteration; None to choose by the target gap.
        report: progress callback.
    """

    gap: float
    max_iterations: int
    warm_start: WarmStart | None
    starter: Starter | None
    engine: str
    dtype: torch.dtype | None
    report: ProgressCallback | None


def solving(
    problem: Problem, *, deadline: Deadline | None = None, **options: Unpack[SolveOptions]
) -> Steps[SolveResult]:
    """Solve each matrix to a certified gap, as a computation that pauses between iterations.

    :func:`solve` describes the options and the result.

    Args:
        problem: B matrices.
        deadline: end of the solve; None for no limit.
        options: ``gap``, ``max_iterations``, ``warm_start``, ``starter``, ``engine``, ``dtype`` and
            ``report`` of :func:`solve`.

    Raises:
        InputError: invalid options or a start that does not apply; raised at the first step.
    """
    settings = _Settings(**options)
    settings.prepare(problem)
    return (yield from _solve_prepared(problem, settings, deadline or Deadline()))


@torch.no_grad()
def _solve_prepared(
    problem: Problem, settings: _Settings, deadline: Deadline
) -> Steps[SolveResult]:
    """Solve a problem whose kernels are compiled.

    Torch runs on one thread if the problem is small, where threads cost more than they save.
    """
    steps = _solve_steps(problem, settings, deadline)
    return (yield from with_single_threaded_torch(steps, problem.batch * problem.paths.mask.size))


@dataclasses.dataclass(frozen=True, eq=False)
class _Settings:
    """Options of :func:`solve` without its deadline.

    Attributes:
        gap: target gap.
        max_iterations: iteration limit of each program.
        warm_start: an earlier result, its state, or splits and prices; None for a cold start.
        starter: model whose splits and prices may start the search; None for no model.
        engine: name of an engine, or "auto".
        dtype: type of the splits in the iteration; None to choose by the target gap.
        report: progress callback; None for no calls.
    """

    gap: float = 1e-2
    max_iterations: int = 10_000
    warm_start: WarmStart | None = None
    starter: Starter | None = None
    engine: str = "auto"
    dtype: torch.dtype | None = None
    report: ProgressCallback | None = None

    def __post_init__(self) -> None:
        """Replace the name of an engine that is gone."""
        object.__setattr__(self, "engine", current_engine(self.engine))

    def check(self, problem: Problem) -> None:
        """Validate the options.

        Raises:
            InputError: an option out of range or without effect.
        """
        if not problem.batch:
            raise InputError.invalid(
                "solve", "problem", "no traffic matrix", "give at least one matrix"
            )
        if not _is_non_negative(self.gap) or self.gap == math.inf:
            raise InputError("solve", "gap", "a number >= 0, such as 0.01 for 1%", repr(self.gap))
        if self.max_iterations < 0:
            raise InputError("solve", "max_iterations", "an integer >= 0", self.max_iterations)
        if not is_engine(self.engine):
            raise InputError("solve", "engine", " or ".join(engine_names()), repr(self.engine))
        if self.starter is not None and not takes_starter(problem):
            raise InputError.invalid(
                "solve",
                "starter",
                f"{problem.objective.name} is not solved as one program, which a model could start",
                "omit starter",
            )

    def prepare(self, problem: Problem) -> None:
        """Validate the options and compile the kernels of the solve.

        Raises:
            InputError: an option out of range or without effect.
        """
        self.check(problem)
        prepare(
            problem,
            gap=self.gap,
            engine=self.engine,
            dtype=self.dtype,
            starter=self.starter,
            is_warm=self.warm_start is not None,
        )


def _solve_steps(problem: Problem, settings: _Settings, deadline: Deadline) -> Steps[SolveResult]:
    """Solve the program of an objective, or the programs of a sequence, and time the solve.

    Args:
        problem: B matrices, whose kernels are compiled.
        settings: validated options.
        deadline: end of the solve.
    """
    begin = time.perf_counter()
    limits = Limits(settings.gap, deadline, settings.max_iterations, settings.report)
    engine = settings.engine
    # A sequence of programs: each task solves its programs by `solving`.
    if make_tasks := _SEQUENCES.get(problem.objective.name):
        result = yield from run_tasks(
            make_tasks(
                problem,
                settings.gap,
                supports_piecewise_linear_values=_accepts_value_steps(problem, engine),
                start=_warm_start_state(problem, settings.warm_start),
            ),
            partial(solving, engine=engine, dtype=settings.dtype),
            deadline=deadline,
            max_iterations=settings.max_iterations,
            report=settings.report,
        )
        return dataclasses.replace(result, solve_s=time.perf_counter() - begin)
    # Least cost may be infeasible, so it has a separate solver.
    if problem.objective.rules.may_be_infeasible:
        state = _warm_start_state(problem, settings.warm_start)
        return (
            yield from least_cost.solving(
                problem,
                state,
                settings.gap,
                settings.max_iterations,
                deadline,
                engine,
                _minimise_mlu,
            )
        )
    # Other objectives are a single program.
    start = _start_of(problem, settings)
    result = yield from solve_program(problem, start, limits, engine, settings.dtype)
    return dataclasses.replace(result, solve_s=time.perf_counter() - begin)


def _minimise_mlu(problem: Problem, gap: float, deadline: Deadline) -> Steps[SolveResult]:
    """Minimise the largest utilisation, which tells least cost whether a matrix is feasible."""
    return (yield from solving(problem, gap=gap, deadline=deadline))


def _may_use_model(problem: Problem, engine: str) -> bool:
    """Whether a model may provide the start: with a named engine always, with "auto" in programs
    that may benefit from one.
    """
    return engine != "auto" or cost_model.may_benefit_from_model(problem)


def _start_of(problem: Problem, settings: _Settings) -> Start:
    """Return the start of one program: the warm start, and the model that may replace it.

    Args:
        problem: B matrices.
        settings: options with the warm start and the model.
    """
    state = _warm_start_state(problem, settings.warm_start)
    model = settings.starter if _may_use_model(problem, settings.engine) else None
    if model is None or state is not None:
        return Start(state, model)
    # A model predicts the start here, unless the engine decides about it later.
    will_sample_demands = not problem.conditions and starts_from_samples(
        problem, settings.gap, settings.engine
    )
    if will_sample_demands or may_start_from_model(problem, settings.engine):
        return Start(None, model)
    predicted_state = SolveState(*model.start(problem), is_predicted=True)
    return Start(_warm_start_state(problem, predicted_state), model)


def solve_program(
    problem: Problem, start: Start, limits: Limits, engine: str, dtype: torch.dtype | None
) -> Steps[SolveResult]:
    """Solve one program through all stages of the pipeline, pausing between iterations.

    Args:
        problem: B matrices under an objective that is a single program.
        start: start of the search.
        limits: target and limits.
        engine: "auto", or the name of an engine.
        dtype: type of the splits in the iteration; None to choose by the target gap.
    """
    if problem.conditions:
        return (yield from _solve_rewritten(problem, start, limits, engine, dtype))
    begin = time.perf_counter()
    # Presolve, unless a few sums show that nothing would change.
    reduction = presolve(problem)
    program = problem if reduction is None else reduction.problem
    if reduction is not None:
        start = Start(reduction.reduced(start.state), start.model)
    presolve_end = time.perf_counter()
    # Choose the engines, and let them take turns.
    choice = choose_engines(
        program, start, limits, engine, dtype, may_span_decades=reduction is not None
    )
    choice_end = time.perf_counter()
    result, turn_records = yield from iterate(program, choice.runs, limits)
    # Translate the result back, and certify it for the original program.
    undo_begin = time.perf_counter()
    if reduction is not None:
        result = reduction.result(result, limits.gap)
    trace = (
        Stage("presolve", presolve_end - begin),
        Stage("choose engines", choice_end - presolve_end, choice.reason, choice.predicted_s),
        *turn_records,
        Stage("undo presolve", time.perf_counter() - undo_begin),
    )
    return dataclasses.replace(result, trace=trace)


def presolve(problem: Problem) -> Reduction | None:
    """Return the presolved program with its translation; None for a program of ordinary numbers.

    Args:
        problem: B matrices without side conditions.
    """
    return None if is_ordinary(problem) else Reduction(problem)


def rewrite_conditions(
    problem: Problem, state: SolveState | None
) -> tuple[Problem, SolveState | None]:
    """Return the program over columns and rows of a problem with side conditions, and its start.

    Args:
        problem: B matrices with side conditions.
        state: warm start, splits of paths and prices of links; None for a cold start.
    """
    rewritten = problem.rewritten
    program = problem.over_columns
    if state is not None:
        prices = program.program.with_added_prices(state.prices.to(program.capacity))
        shares = rewritten.shares(state.splits.to(program.demand))
        return program, SolveState(shares, prices, is_predicted=state.is_predicted)
    # Without a warm start, the rewrite may know a feasible point.
    if rewritten.start is not None:
        return program, SolveState(rewritten.start, torch.zeros_like(program.capacity))
    return program, None


def _solve_rewritten(
    problem: Problem, start: Start, limits: Limits, engine: str, dtype: torch.dtype | None
) -> Steps[SolveResult]:
    """Solve a program with side conditions; return splits of paths and prices of links.

    Args:
        problem: B matrices with side conditions.
        start: start of the search.
        limits: target and limits.
        engine: "auto", or the name of an engine.
        dtype: type of the splits in the iteration; None to choose by the target gap.
    """
    begin = time.perf_counter()
    program, state = rewrite_conditions(problem, start.state)
    # Coefficients and limits of added rows may be small beside capacities.
    if not program.ops.is_over_paths:
        dtype = torch.float64
    rewrite_end = time.perf_counter()
    # No model starts a program over columns.
    result = yield from solve_program(program, Start(state), limits, engine, dtype)
    # Translate the result back to paths and links.
    undo_begin = time.perf_counter()
    rewritten = problem.rewritten
    num_links = problem.topology.num_links
    splits = rewritten.splits(result.splits)
    last_state = SolveState(
        rewritten.splits(result.state.splits), result.state.prices[:, :num_links]
    )
    trace = (
        Stage("rewrite conditions", rewrite_end - begin),
        *result.trace,
        Stage("undo rewriting", time.perf_counter() - undo_begin),
    )
    return dataclasses.replace(
        result, splits=splits, prices=result.prices[:, :num_links], state=last_state, trace=trace
    )


def iterate(
    problem: Problem, runs: tuple[EngineRun, ...], limits: Limits
) -> Steps[tuple[SolveResult, list[Stage]]]:
    """Let engines take turns until every matrix has the target gap, or a limit ends the solve;
    return the result, and a record of each turn.

    A later turn solves the matrices that are left above the target gap, from the best splits and
    prices so far, and the better allocation and the better prices are kept.

    Args:
        problem: B matrices of one program, presolved.
        runs: turns of the engines, at least one.
        limits: target and limits.
    """
    result: SolveResult | None = None
    trace: list[Stage] = []
    for run in runs:
        begin = time.perf_counter()
        # The first turn solves all matrices.
        if result is None:
            turn_limits = _limits_of_run(limits, run, 0)
            result = yield from run.engine.solve(problem, run.start or Start(), turn_limits)
            trace.append(_stage_of(run, result, begin))
            continue
        # Matrices above the target gap, (n,) indices.
        unsolved_rows = [row for row, stop in enumerate(result.stopped_by) if stop is not Stop.GAP]
        if not unsolved_rows or limits.deadline.is_over:
            break
        rows = torch.tensor(unsolved_rows)
        unsolved_problem = problem.rows(rows)
        earlier_result = result.rows(rows)
        # Start of the turn: that of its plan, else the results so far if they are near the optimum.
        if run.start is not None:
            start = run.start.rows(rows)
        else:
            is_near_optimal = float(earlier_result.gap.max()) <= _MAX_START_GAP
            start = Start(earlier_result.state if is_near_optimal else None)
        turn_limits = _limits_of_run(limits, run, result.iterations)
        later_result = yield from run.engine.solve(unsolved_problem, start, turn_limits)
        trace.append(_stage_of(run, later_result, begin))
        result = result.replaced(
            rows, _combine(unsolved_problem, earlier_result, later_result, limits.gap)
        )
    assert result is not None, "at least one turn"
    return result, trace


def _limits_of_run(limits: Limits, run: EngineRun, earlier_iterations: int) -> Limits:
    """Return the limits of a turn after so many iterations of earlier turns."""
    if run.max_iterations is None and not earlier_iterations:
        return limits
    remaining_iterations = max(0, limits.max_iterations - earlier_iterations)
    if run.max_iterations is not None:
        remaining_iterations = min(remaining_iterations, run.max_iterations)
    return dataclasses.replace(limits, max_iterations=remaining_iterations)


def _stage_of(run: EngineRun, result: SolveResult, begin: float) -> Stage:
    """Return the record of a turn that began at ``begin``, by ``time.perf_counter()``."""
    return Stage(
        f"{ENGINE_RUN}{run.engine.name}",
        time.perf_counter() - begin,
        # Some engines say how their last solve began.
        getattr(run.engine, "detail", ""),
        matrices=len(result.gap),
        iterations=result.iterations,
    )


def _combine(problem: Problem, first: SolveResult, second: SolveResult, gap: float) -> SolveResult:
    """Combine the better allocation and the better prices of each matrix; together they may reach
    the target gap.

    Args:
        problem: the matrices of both results.
        first, second: results of two engines.
        gap: target gap; matrices above it keep the stopping reason of ``second``.
    """
    incumbent = better(problem, first, second)
    stops = zip(incumbent.gap.tolist(), second.stopped_by, strict=True)
    return dataclasses.replace(
        incumbent,
        stopped_by=tuple(Stop.GAP if gap_reached <= gap else stop for gap_reached, stop in stops),
    )


def prepare(
    problem: Problem,
    *,
    gap: float = 1e-2,
    engine: str = "auto",
    dtype: torch.dtype | None = None,
    starter: Starter | None = None,
    is_warm: bool = False,
) -> None:
    """Compile the kernels that :func:`solve` needs for a problem, so that its clock does not count
    them.

    Args:
        problem: B matrices.
        gap: target gap.
        engine: "auto", or the name of an engine.
        dtype: type of the splits in the iteration; None to choose by the target gap.
        starter: model for the start; its kernels are loaded, too.
        is_warm: whether the solve has a warm start.
    """
    engine = current_engine(engine)
    # Least cost solves by interior points alone.
    if problem.objective.rules.may_be_infeasible:
        if not is_interpreting():
            interior.warm_up_for(problem.ops.mask.numel(), may_select=False)
        return
    # Kernels of the model, by the present or the deprecated name of its method, and of sequences of
    # programs.
    warm_up_starter = getattr(starter, "warm_up_kernels", None) or old_method(
        starter, "rehearse", "warm_up_kernels"
    )
    if warm_up_starter is not None and _may_use_model(problem, engine):
        warm_up_starter(problem)
    if problem.classes is not None and not problem.conditions:
        class_rows.warm_up_kernels()
    if problem.objective.name == ObjectiveName.MAX_MIN:
        rate_cuts.warm_up_kernels()
    # The kernels of the engines that may solve the program.
    program_problem = problem.over_columns if problem.conditions else problem
    is_sequence = program_problem.objective.rules.is_sequence
    # HiGHS solves a small program where no kernel is compiled: there is nothing to compile.
    if engine == "auto" and Highs().accepts(program_problem) and not is_sequence:
        return
    # Compile the projection onto a box, which bounded columns need, by one call.
    if program_problem.max_share is not None:
        sample_box = program_problem.max_share[:1, :1]
        project_box(torch.zeros_like(sample_box), sample_box, torch.ones_like(sample_box))
    if engine in ("interior", "simplex") or (
        engine == "auto" and may_use_interior_points(program_problem)
    ):
        interior.warm_up_for(
            program_problem.ops.mask.numel(),
            may_select=cost_model.may_benefit_from_model(program_problem),
        )
    may_be_simplex = engine == "auto" and may_use_simplex(program_problem, is_warm=is_warm, gap=gap)
    if engine == "simplex" or may_be_simplex:
        simplex.warm_up()
    if problem.batch and engine in ("auto", "fused") and FusedEngine.accepts(program_problem):
        warm_up_kernels_for(program_problem, gap, iteration_dtype(program_problem, gap, dtype))


def _accepts_value_steps(problem: Problem, engine: str) -> bool:
    """Whether the engine solves piecewise constant marginal values of the problem.

    The plain engine does, and the fused engine on a CPU if the program needs no presolve and its
    magnitudes span at most four decades.
    """
    if problem.conditions:
        return False
    if engine == "plain":
        return True
    if engine not in ("auto", "fused") or problem.ops.device.type != "cpu":
        return False
    # ``usable`` has another demand tensor if presolve would limit demands.
    return problem.usable.demand is problem.demand and not bool(spans_decades(problem).any())


def _warm_start_state(problem: Problem, warm_start: WarmStart | None) -> SolveState | None:
    """Return a warm start as a state on the problem's device, with finite prices.

    Engines project the splits; the GPU engine also sanitises prices, within its recorded launches.

    Args:
        problem: B matrices.
        warm_start: a result, its state, or splits (B, D, K) and prices (B, E); None for a cold
            start.

    Raises:
        InputError: splits or prices of another shape.
    """
    if warm_start is None:
        return None
    # Validate shapes.
    state = warm_start.state if isinstance(warm_start, SolveResult) else warm_start
    state = SolveState(*state) if isinstance(state, tuple) else state
    expected_shapes = (
        (problem.batch, *problem.paths.mask.shape),
        (problem.batch, problem.topology.num_links),
    )
    actual_shapes = tuple(state.splits.shape), tuple(state.prices.shape)
    if actual_shapes != expected_shapes:
        raise InputError(
            "solve",
            "warm_start",
            f"splits and prices of the shapes {expected_shapes[0]} and {expected_shapes[1]}",
            f"{actual_shapes[0]} and {actual_shapes[1]}",
        )
    # Move to the device and replace non-finite prices.
    device = problem.demand.device
    prices = state.prices.to(device)
    if not problem.demand.is_cuda or problem.conditions or problem.objective.rules.is_sequence:
        prices = usable_prices(problem, prices, max_ratio=1.0)
    program_prices = state.program_prices
    if program_prices is not None and len(program_prices.prices) != problem.batch:
        # Prices of another batch prove no bounds here.
        program_prices = None
    return SolveState(
        state.splits.to(device), prices, program_prices, is_predicted=state.is_predicted
    )
