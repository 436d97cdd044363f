"""Solve pipeline of one program: condition rewrite, presolve, engine selection, batch split,
search.

:func:`solve_single` rewrites side conditions into a program over columns, presolves programs with
extreme magnitudes (:class:`teal.solvers.pdhg.reduction.Reduction`), selects PDHG or interior points
by predicted time, and solves matrices that stalled again by another engine.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch
from torch import Tensor

from teal.errors import InputError
from teal.problem import Problem, dual_bound
from teal.problem.bounds import gap as certified_gap
from teal.runtime.interruptible import Deadline, Steps
from teal.runtime.kernel_cache import is_interpreting
from teal.solvers.exact import exact_program
from teal.solvers.interior import engine as interior
from teal.solvers.pdhg.engine import PdhgEngine
from teal.solvers.pdhg.fused.engine import MAX_LANES, FusedEngine, lanes_of
from teal.solvers.pdhg.model_start import ModelStart, foretells_work, usable_start
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.pdhg.reduction import EquilibratedEngine, Reduction, is_ordinary, spans_decades
from teal.solvers.pdhg.samples.start import SampledStart, is_faster
from teal.solvers.pdhg.search import LARGE_WORK, Search
from teal.solvers.projection import project
from teal.solvers.result import (
    PdhgResult,
    PdhgState,
    ProgressCallback,
    Starter,
    Stop,
    better,
    merged,
)

# Columns of all matrices up to which HiGHS, which cannot pause, replaces kernels that are not
# compiled yet.
_MAX_EXACT_COLUMNS = 12_000
_MAX_START_GAP = 0.1  # largest gap of one engine's result that warm-starts another engine
_FLOAT64_BELOW_GAP = 1e-5  # target gap below which float32 splits are too coarse


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """Target and limits of the search for one program.

    Attributes:
        gap: target gap.
        deadline: deadline of all matrices.
        max_iterations: iteration limit.
        report: progress callback, called after each full gap check; None for no calls.
        starter: model whose splits and prices may start the search; None for no model.
    """

    gap: float
    deadline: Deadline
    max_iterations: int
    report: ProgressCallback | None
    starter: Starter | None


def _solve_presolved(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    engine: str,
    dtype: torch.dtype | None,
) -> Steps[PdhgResult]:
    """Solve one program without side conditions, presolved if its magnitudes are extreme.

    Args:
        problem: B matrices over the paths, or over the columns of a rewritten program.
        state: warm start; None for a cold start.
        options: target and limits of the search.
        engine: "auto", or the name of an engine.
        dtype: type of the splits in the iteration; None to choose by the target gap.
    """
    # Small program on a machine whose kernels are not compiled yet: HiGHS, if in time.
    if is_solved_without_kernels(problem, engine):
        exact = yield from _solve_by_highs(problem, options)
        if exact is not None:
            return exact
    if is_ordinary(problem):
        return (
            yield from _solve_with_selected_engines(
                problem, state, options, engine, dtype, may_span_decades=False
            )
        )
    # Presolve, solve, and translate the result back.
    reduction = Reduction(problem)
    result = yield from _solve_with_selected_engines(
        reduction.problem, reduction.reduced(state), options, engine, dtype
    )
    return reduction.result(result, options.gap)


def _solve_by_interior_points(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    first_program: interior.FirstProgram | None = None,
) -> Steps[PdhgResult]:
    """Solve by interior points, from the warm start, else from the model's splits and prices.

    Args:
        problem: B matrices of one program without side conditions.
        state: warm start; None for a cold start.
        options: target and limits of the search.
        first_program: presolved program of the first matrix; None to presolve it here.

    Raises:
        InputError: the program is not over paths, or not on the CPU.
    """
    if not interior.accepts(problem):
        raise InputError.invalid(
            "solve",
            "engine",
            "interior points solve programs over paths, on the CPU, and do not support this one",
            "use engine auto",
        )
    if state is None and options.starter is not None:
        state = usable_start(problem, options.starter.start)
    result = yield from interior.solving(
        problem, state, options.gap, options.max_iterations, options.deadline, first_program
    )
    if options.report is not None:
        options.report(result.iterations, float(result.gap.max()))
    return result


def is_solved_without_kernels(problem: Problem, engine: str) -> bool:
    """Whether HiGHS solves a small program, since the kernels are not compiled on this machine."""
    if not is_interpreting() or engine != "auto" or problem.ops.device.type != "cpu":
        return False
    return problem.is_linear and problem.batch * int(problem.ops.mask.sum()) <= _MAX_EXACT_COLUMNS


def solve_single(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    engine: str,
    dtype: torch.dtype | None,
) -> Steps[PdhgResult]:
    """Solve one program, pausing between iterations.

    Args:
        problem: B matrices under an objective that is a single program.
        state: warm start; None for a cold start.
        options: target and limits of the search.
        engine: "auto", or the name of an engine.
        dtype: type of the splits in the iteration; None to choose by the target gap.
    """
    if problem.conditions:
        return (yield from _solve_rewritten(problem, state, options, engine, dtype))
    return (yield from _solve_presolved(problem, state, options, engine, dtype))


def _solve_rewritten(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    engine: str,
    dtype: torch.dtype | None,
) -> Steps[PdhgResult]:
    """Solve a program with side conditions, rewritten over columns and rows; return splits of paths
    and prices of links.

    Args:
        problem: B matrices with side conditions.
        state: warm start, splits of paths and prices of links; None for a cold start.
        options: target and limits of the search.
        engine: "auto", or the name of an engine.
        dtype: type of the splits in the iteration; None to choose by the target gap.
    """
    rewritten = problem.rewritten
    column_problem = problem.over_columns
    num_links = problem.topology.num_links
    # Coefficients and limits of added rows may be small beside capacities.
    if not column_problem.ops.is_over_paths:
        dtype = torch.float64
    # Translate the warm start to columns; without one, the rewrite may know a feasible point.
    column_state = None
    if state is not None:
        prices = column_problem.program.with_added_prices(state.prices.to(column_problem.capacity))
        column_state = PdhgState(rewritten.shares(state.splits.to(column_problem.demand)), prices)
    elif rewritten.start is not None:
        column_state = PdhgState(rewritten.start, torch.zeros_like(column_problem.capacity))
    # No model starts a program over columns.
    options = dataclasses.replace(options, starter=None)
    result = yield from _solve_presolved(column_problem, column_state, options, engine, dtype)
    # Translate the result back to paths and links.
    splits = rewritten.splits(result.splits)
    prices = result.prices[:, :num_links]
    last_state = PdhgState(
        rewritten.splits(result.state.splits), result.state.prices[:, :num_links]
    )
    return dataclasses.replace(result, splits=splits, prices=prices, state=last_state)


def _solve_by_highs(problem: Problem, options: SearchOptions) -> Steps[PdhgResult | None]:
    """Solve one linear program per matrix by HiGHS.

    Args:
        problem: B matrices over the columns and rows of a program.
        options: target gap and deadline.

    Returns:
        The optimum; None if a matrix missed the deadline or the target gap.
    """
    # Optimal shares of the columns (B, D, K) and row prices (B, rows), matrix by matrix.
    exact = problem.to(torch.float64)
    shares = torch.zeros_like(exact.even_splits)
    prices = torch.zeros_like(exact.capacity)
    for row in range(exact.batch):
        yield
        solution = (
            None
            if options.deadline.is_over
            else exact_program(exact.row(row).program, options.deadline.remaining_s)
        )
        if solution is None:
            return None
        shares[row] = solution[0][0]
        prices[row] = solution[1][0]
    # HiGHS's optimum is feasible within its tolerance only: scale it down to the capacities, with
    # no rounds that allocate unused capacity (``refill``), and certify the gap.
    splits = project(exact, shares, refill=0)
    value = exact.value(splits)
    bound = dual_bound(exact, prices)
    gaps = certified_gap(exact, value, bound)
    if not bool((gaps <= options.gap).all()):
        return None
    return PdhgResult(
        splits=splits,
        prices=prices,
        value=value,
        bound=bound,
        gap=gaps,
        iterations=0,
        solve_s=0.0,
        state=PdhgState(splits, prices),
        stopped_by=(Stop.GAP,) * exact.batch,
    )


def iteration_dtype(problem: Problem, gap: float, dtype: torch.dtype | None) -> torch.dtype:
    """Return the floating-point type of the splits in the iteration.

    float64 under a utility; else ``dtype``, or if it is None float64 for target gaps below 1e-5 and
    float32 for others.
    """
    # float32 would round small shares to 0, where the utility is undefined.
    if problem.utility is not None:
        return torch.float64
    return dtype or (torch.float64 if gap < _FLOAT64_BELOW_GAP else torch.float32)


def _solve_with_selected_engines(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    engine: str,
    dtype: torch.dtype | None,
    *,
    may_span_decades: bool = True,
) -> Steps[PdhgResult]:
    """Solve by the engine with the shorter predicted time, and unfinished matrices by another.

    Args:
        problem: B matrices of one program without side conditions.
        state: warm start; None for a cold start.
        options: target and limits of the search.
        engine: "auto" to select by predicted time, or the name of an engine.
        dtype: type of the splits in the iteration; None to choose by the target gap.
        may_span_decades: whether magnitudes may span decades.
    """
    if engine == "interior":
        return (yield from _solve_by_interior_points(problem, state, options))
    # Select the first engine by predicted time.
    pdhg_iterations = None
    interior_options = None
    if _may_use_interior_points(options, engine, dtype):
        program = interior.FirstProgram(problem)
        pdhg_iterations, interior_options = _select_first_engine(problem, state, options, program)
    # Interior points first, then PDHG for matrices above the target gap.
    if interior_options is not None:
        interior_result = yield from _solve_by_interior_points(
            problem, None, interior_options, program
        )
        # Indices of the matrices above the target gap: all reasons to stop but ``Stop.GAP``.
        rows = _stopped_rows(interior_result, *(stop for stop in Stop if stop is not Stop.GAP))
        if not len(rows):
            return interior_result
        unfinished = interior_result.rows(rows)
        # PDHG starts from the caller's warm start, else from a result near the optimum.
        begin_state = None if state is None else state.rows(rows)
        if begin_state is None and float(unfinished.gap.max()) <= _MAX_START_GAP:
            begin_state = unfinished.state
        remaining_options = dataclasses.replace(
            interior_options,
            max_iterations=max(0, options.max_iterations - interior_result.iterations),
            starter=None,
        )
        # None: PDHG runs to the end, without another turn of interior points.
        pdhg_result = yield from _solve_by_pdhg(
            problem.rows(rows),
            begin_state,
            remaining_options,
            engine,
            dtype,
            None,
            may_span_decades,
        )
        return interior_result.replaced(
            rows, _combine(problem.rows(rows), unfinished, pdhg_result, options.gap)
        )
    return (
        yield from _solve_by_pdhg(
            problem, state, options, engine, dtype, pdhg_iterations, may_span_decades
        )
    )


def _stopped_rows(result: PdhgResult, *reasons: Stop) -> Tensor:
    """Return the indices of the matrices whose search stopped for one of the reasons."""
    is_stopped = [stop in reasons for stop in result.stopped_by]
    return torch.tensor(is_stopped, dtype=torch.bool).nonzero()[:, 0]


def _combine(problem: Problem, first: PdhgResult, second: PdhgResult, gap: float) -> PdhgResult:
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


def _solve_by_pdhg(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    engine: str,
    dtype: torch.dtype | None,
    pdhg_iterations: int | None,
    may_span_decades: bool,
) -> Steps[PdhgResult]:
    """Solve by PDHG, with the equilibrated engine for matrices whose magnitudes span decades, and
    for stalled ones.

    Args:
        problem: B matrices of one program without side conditions.
        state: warm start; None for a cold start.
        options: target and limits of the search.
        engine: "auto", or the name of a PDHG engine.
        dtype: type of the splits in the iteration; None to choose by the target gap.
        pdhg_iterations: iterations before interior points take over; None for PDHG alone.
        may_span_decades: whether magnitudes may span decades.
    """
    # A named engine solves all matrices; no other engine helps after a stall.
    iteration_type = iteration_dtype(problem, options.gap, dtype)
    if engine != "auto":
        return (yield from _solve_in_batches(problem, state, options, engine, iteration_type))
    is_small = problem.paths.scan_size <= LARGE_WORK and problem.is_linear
    fallback = _fallback_engine(is_small, iteration_type, dtype)
    # Split the batch into matrices of ordinary and of wide magnitudes.
    is_wide = (
        spans_decades(problem).cpu()
        if is_small and may_span_decades
        else torch.zeros(problem.batch, dtype=torch.bool)
    )
    if bool(is_wide.all()) and problem.batch:
        return (
            yield from _solve_in_batches(problem, state, options, "equilibrated", iteration_type)
        )
    if bool(is_wide.any()):
        result = yield from _solve_by_magnitude(
            problem, state, options, iteration_type, is_wide, may_stall=bool(fallback)
        )
    else:
        result = yield from _solve_in_turns(
            problem, state, options, iteration_type, pdhg_iterations, may_stall=bool(fallback)
        )
    # Solve stalled matrices by the fallback engine, if there is one.
    if not fallback:
        return result
    return (yield from _solve_stalled_again(problem, result, options, fallback))


def _fallback_engine(is_small: bool, iteration_type: torch.dtype, dtype: torch.dtype | None) -> str:
    """Return the engine for matrices that stalled, or "" for none.

    The equilibrated engine is slow on large networks and has no value steps; float64 may still
    resolve a stall of float32.

    Args:
        is_small: whether the program is small and linear.
        iteration_type: type of the splits in the first search.
        dtype: type that the caller asked for; None for no choice.
    """
    if is_small:
        return "equilibrated"
    return "auto" if iteration_type is torch.float32 and dtype is None else ""


def _solve_by_magnitude(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    iteration_type: torch.dtype,
    is_wide: Tensor,
    *,
    may_stall: bool,
) -> Steps[PdhgResult]:
    """Solve matrices of ordinary magnitudes, then those whose magnitudes span decades.

    Args:
        problem: B matrices of one program without side conditions.
        state: warm start; None for a cold start.
        options: target and limits of the search.
        iteration_type: type of the splits in the iteration.
        is_wide: (B,) bool, matrices for the equilibrated engine; some, not all.
        may_stall: whether the ordinary engine may stop at a stall.
    """
    # Indices of the matrices of each engine; each group gets time in proportion to its size.
    groups = [(~is_wide).nonzero()[:, 0], is_wide.nonzero()[:, 0]]
    parts: list[PdhgResult] = []
    for rows, name in zip(groups, ("auto", "equilibrated"), strict=True):
        num_remaining = problem.batch - sum(len(part.value) for part in parts)
        part_options = dataclasses.replace(
            options, deadline=options.deadline.share(len(rows) / num_remaining)
        )
        part = yield from _solve_in_batches(
            problem.rows(rows),
            None if state is None else state.rows(rows),
            part_options,
            name,
            iteration_type,
            may_stall=may_stall and name == "auto",
        )
        parts.append(part)
    # Restore the order of the matrices.
    return merged(parts).rows(torch.cat(groups).argsort())


def _solve_stalled_again(
    problem: Problem, result: PdhgResult, options: SearchOptions, engine: str
) -> Steps[PdhgResult]:
    """Solve the stalled matrices of a result by another engine; keep the better allocation and
    prices.

    Args:
        problem: B matrices.
        result: result of the first search.
        options: target and limits; iterations of ``result`` count against the limit.
        engine: engine of the second search.
    """
    stalled = _stopped_rows(result, Stop.STALLED)
    if not len(stalled):
        return result
    remaining_options = dataclasses.replace(
        options, max_iterations=max(0, options.max_iterations - result.iterations)
    )
    earlier = result.rows(stalled)
    # In a balanced program the equilibrated engine's initial prices are better than the prices of
    # the stalled search.
    is_cold_start = engine == "equilibrated" and problem.price_set.on_simplex
    second = yield from _solve_in_batches(
        problem.rows(stalled),
        None if is_cold_start else earlier.state,
        remaining_options,
        engine,
        torch.float64,
        may_replace_start=False,
    )
    best = _combine(problem.rows(stalled), earlier, second, options.gap)
    return result.replaced(stalled, best)


def _may_use_interior_points(
    options: SearchOptions, engine: str, dtype: torch.dtype | None
) -> bool:
    """Whether interior points are a candidate engine.

    A caller that names an engine, float32 or a small iteration limit asks for PDHG.
    """
    is_allowed = engine == "auto" and dtype in (None, torch.float64)
    return is_allowed and options.max_iterations >= interior.MAX_ITERATIONS


def _select_first_engine(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    program: interior.FirstProgram,
) -> tuple[int | None, SearchOptions | None]:
    """Select the first engine by predicted time.

    Args:
        problem: B matrices of one program without side conditions.
        state: warm start; None for a cold start.
        options: target and limits of the search.
        program: presolved program of the first matrix.

    Returns:
        Number of PDHG iterations to run first (None: PDHG only; 0: interior points first); and the
        options of interior points if they run first, else None.
    """
    gap = options.gap
    remaining_s = options.deadline.remaining_s
    is_warm = state is not None
    has_model = options.starter is not None and not is_warm
    if has_model and interior.is_faster_from_model(problem, gap, remaining_s, program):
        return 0, options
    pdhg_iterations = interior.pdhg_iterations_before(
        problem, gap, remaining_s, program, is_warm=is_warm
    )
    interior_options = dataclasses.replace(options, starter=None)
    return pdhg_iterations, interior_options if pdhg_iterations == 0 else None


def _solve_in_turns(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    dtype: torch.dtype,
    pdhg_iterations: int | None,
    *,
    may_stall: bool,
) -> Steps[PdhgResult]:
    """Alternate engines: some iterations of PDHG, then interior points, then PDHG again.

    Each engine continues with the unfinished matrices from the state of the last one.

    Args:
        problem: B matrices of one program without side conditions.
        state: warm start; None for a cold start.
        options: target and limits of the search.
        dtype: type of the splits in the iteration.
        pdhg_iterations: iterations before interior points; None for all iterations.
        may_stall: whether PDHG stops where the gap no longer shrinks.
    """
    # PDHG alone.
    if pdhg_iterations is None or pdhg_iterations >= options.max_iterations:
        return (
            yield from _solve_in_batches(
                problem, state, options, "auto", dtype, may_stall=may_stall
            )
        )
    # Some iterations of PDHG, then interior points and PDHG on the unfinished matrices.
    first_options = dataclasses.replace(options, max_iterations=pdhg_iterations)
    result = yield from _solve_in_batches(
        problem, state, first_options, "auto", dtype, may_stall=may_stall
    )
    for name in ("interior", "auto"):
        # Indices of the matrices above the target gap, with the iterations that remain.
        rows = _stopped_rows(result, Stop.ITERATIONS, Stop.STALLED)
        if not len(rows) or options.deadline.is_over:
            break
        part = problem.rows(rows)
        earlier = result.rows(rows)
        remaining_iterations = max(0, options.max_iterations - result.iterations)
        remaining_options = dataclasses.replace(options, max_iterations=remaining_iterations)
        if name == "interior":
            later = yield from _solve_by_interior_points(part, earlier.state, remaining_options)
        else:
            later = yield from _solve_in_batches(
                part,
                earlier.state,
                remaining_options,
                name,
                dtype,
                may_stall=may_stall,
                may_replace_start=False,
            )
        result = result.replaced(rows, _combine(part, earlier, later, options.gap))
    return result


def _solve_in_batches(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    name: str,
    dtype: torch.dtype,
    *,
    may_stall: bool = False,
    may_replace_start: bool = True,
) -> Steps[PdhgResult]:
    """Solve by one engine, in parts of the batch of the size that the engine solves at once.

    Args:
        problem: B matrices of one program without side conditions.
        state: warm start; None for a cold start.
        options: target and limits of the search.
        name: name of the engine.
        dtype: type of the splits in the iteration.
        may_stall: whether to stop where the gap no longer shrinks.
        may_replace_start: whether sampled demands or a model may replace the start.
    """
    # ``lanes``: number of matrices that the engine solves at once.
    make_engine, lanes = _engine_factory(problem, name, dtype)
    results: list[PdhgResult] = []
    for first in range(0, problem.batch, lanes):
        rows = slice(first, first + lanes)
        part = problem if lanes >= problem.batch else problem.rows(rows)
        part_state = None if state is None else state.rows(rows)
        # Each part gets time in proportion to its number of matrices.
        begin = time.perf_counter()
        part_deadline = options.deadline.share(part.batch / (problem.batch - first))
        engine = make_engine(part, part_state, dtype)
        # Start that may replace ``state``: sampled demands, or a model.
        sampled = None
        model = None
        if (
            may_replace_start
            and isinstance(engine, FusedEngine)
            and starts_from_samples(part, options.gap, name)
        ):
            sampled = SampledStart(part, engine, options.gap, options.starter)
        elif (
            may_replace_start
            and options.starter
            and isinstance(engine, FusedEngine)
            and foretells_work(part, name)
        ):
            model = ModelStart(
                part, engine, options.gap, options.starter, is_warm=part_state is not None
            )
        # Search to the target gap.
        search = Search(
            part,
            engine,
            options.gap,
            options.max_iterations,
            options.report,
            begin=begin,
            may_stall=may_stall,
            sampled=sampled,
            model=model,
        )
        results.append((yield from search.run_steps(part_deadline, warm=part_state is not None)))
        # Free the memory for the next part.
        del search, sampled, model, engine
    return results[0] if len(results) == 1 else merged(results)


def _engine_factory(
    problem: Problem, name: str, dtype: torch.dtype
) -> tuple[Callable[..., PdhgEngine], int]:
    """Return the engine's class, and the number of matrices that it solves at once.

    Args:
        problem: B matrices.
        name: "auto", "fused", "plain" or "equilibrated".
        dtype: type of the splits in the iteration.

    Raises:
        InputError: the engine does not support the program.
    """
    if name == "equilibrated":
        if not problem.is_linear:
            raise InputError(
                "solve",
                "engine",
                "auto, fused or plain (the value is not linear in the flow)",
                name,
            )
        return EquilibratedEngine, MAX_LANES
    # Compiled engines: on the CPU, then on a GPU.
    if name != "plain":
        if FusedEngine.accepts(problem):
            return FusedEngine, lanes_of(dtype)[-1]
        if problem.ops.backend.name == "cuda":
            from teal.solvers.pdhg.cuda.engine import CudaEngine, lanes

            if CudaEngine.accepts(problem):
                return CudaEngine, lanes(problem, dtype)
        if name == "fused":
            raise InputError(
                "solve",
                "engine",
                "auto, plain or equilibrated (no compiled engine supports this program)",
                name,
            )
    # The reference engine supports every program.
    return PlainEngine, MAX_LANES


def starts_from_samples(problem: Problem, gap: float, engine: str) -> bool:
    """Whether the search for one program without side conditions starts from sampled demands.

    Args:
        problem: B matrices.
        gap: target gap.
        engine: "auto", or the name of an engine; only "auto" samples.
    """
    # Samples are drawn in proportion to rates, so they represent demands of equal weight poorly.
    is_weighted_by_demand = problem.utility is None or problem.objective.rules.weight_by == "demand"
    may_sample = engine == "auto" and problem.largest_share is None and is_weighted_by_demand
    may_sample = may_sample and FusedEngine.accepts(problem)
    return may_sample and is_faster(problem.paths, gap)
