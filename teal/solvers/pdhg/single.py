"""One program: under its conditions, reduced, by the engine that suits it, and by another one where
that one stalls.
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

# Columns of all matrices up to which HiGHS, which cannot pause, solves programs where no kernel has
# been compiled.
_EXACT_COLUMNS = 12_000
_WORST_START_GAP = 0.1  # gap up to which what one engine has reached is a start for another one
_FLOAT64_BELOW_GAP = 1e-5  # target gap below which float32 splits are too coarse


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """How one program is solved.

    Attributes:
        gap: target.
        deadline: deadline of all matrices.
        max_iterations: largest number of iterations.
        report: called after each full gap check between iterations; None for no call.
        starter: see :func:`solve`.
    """

    gap: float
    deadline: Deadline
    max_iterations: int
    report: ProgressCallback | None
    starter: Starter | None


def _solving_unconditioned(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    engine: str,
    dtype: torch.dtype | None,
) -> Steps[PdhgResult]:
    """One program without conditions: reduced where it is not ordinary."""
    if is_solved_without_kernels(problem, engine):
        exact = yield from _solving_exactly(problem, options)
        if exact is not None:
            return exact
    if is_ordinary(problem):
        return (
            yield from _solving_reduced(
                problem, state, options, engine, dtype, may_span_decades=False
            )
        )
    reduction = Reduction(problem)
    result = yield from _solving_reduced(
        reduction.problem, reduction.reduced(state), options, engine, dtype
    )
    return reduction.result(result, options.gap)


def _solving_by_interior_points(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    first: interior.FirstProgram | None = None,
) -> Steps[PdhgResult]:
    if not interior.accepts(problem):
        expected = "another one: interior points take programs over paths, on the CPU"
        raise InputError("solve", "engine", expected, "interior")
    if state is None and options.starter is not None:
        state = usable_start(problem, options.starter.start)
    result = yield from interior.solving(
        problem, state, options.gap, options.max_iterations, options.deadline, first
    )
    if options.report is not None:
        options.report(result.iterations, float(result.gap.max()))
    return result


def is_solved_without_kernels(problem: Problem, engine: str) -> bool:
    """Whether HiGHS solves a small program because the engine's kernels have not been compiled on
    this machine.
    """
    if not is_interpreting() or engine != "auto" or problem.ops.device.type != "cpu":
        return False
    return problem.is_linear and problem.batch * int(problem.ops.mask.sum()) <= _EXACT_COLUMNS


def solving_single(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    engine: str,
    dtype: torch.dtype | None,
) -> Steps[PdhgResult]:
    """The solution of one program.

    Args:
        problem: B matrices under an objective that is a single program.
        state: to start from; None for nothing.
        options: how to solve it.
        engine, dtype: as in :func:`teal.solvers.pdhg.solve`.
    """
    if problem.conditions:
        return (yield from _solving_rewritten(problem, state, options, engine, dtype))
    return (yield from _solving_unconditioned(problem, state, options, engine, dtype))


def _solving_rewritten(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    engine: str,
    dtype: torch.dtype | None,
) -> Steps[PdhgResult]:
    """The program that the side conditions make, over its own columns and rows; the result is over
    paths and links.
    """
    rewritten, over, links = problem.rewritten, problem.over_columns, problem.topology.num_links
    if not over.ops.is_over_paths:
        dtype = (
            torch.float64
        )  # coefficients and limits of added rows may be small beside capacities
    columns = None
    if state is not None:
        prices = over.program.with_added_prices(state.prices.to(over.capacity))
        columns = PdhgState(rewritten.shares(state.splits.to(over.demand)), prices)
    elif rewritten.start is not None:
        columns = PdhgState(rewritten.start, torch.zeros_like(over.capacity))
    options = dataclasses.replace(options, starter=None)
    result = yield from _solving_unconditioned(over, columns, options, engine, dtype)
    splits, prices = rewritten.splits(result.splits), result.prices[:, :links]
    last = PdhgState(rewritten.splits(result.state.splits), result.state.prices[:, :links])
    return dataclasses.replace(result, splits=splits, prices=prices, state=last)


def _solving_exactly(problem: Problem, options: SearchOptions) -> Steps[PdhgResult | None]:
    """The optimum by linear programs, one a matrix; None if one was not solved in time or to the
    target gap.

    Args:
        problem: B matrices over the columns and rows of a program.
        options: as in :func:`solving_single`.
    """
    exact = problem.to(torch.float64)
    shares, prices = torch.zeros_like(exact.even_splits), torch.zeros_like(exact.capacity)
    for row in range(exact.batch):
        yield
        solved = (
            None
            if options.deadline.is_over
            else exact_program(exact.row(row).program, options.deadline.left)
        )
        if solved is None:
            return None
        shares[row], prices[row] = solved[0][0], solved[1][0]
    splits = project(exact, shares, refill=0)
    value, bound = exact.value(splits), dual_bound(exact, prices)
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
    """The type of the splits in the iteration."""
    if (
        problem.utility is not None
    ):  # float32 would round shares next to 0 to 0, of which there is no utility
        return torch.float64
    return dtype or (torch.float64 if gap < _FLOAT64_BELOW_GAP else torch.float32)


def _solving_reduced(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    engine: str,
    dtype: torch.dtype | None,
    *,
    may_span_decades: bool = True,
) -> Steps[PdhgResult]:
    """Solve each matrix by the engine that suits it, then those that stalled by another one."""
    if engine == "interior":
        return (yield from _solving_by_interior_points(problem, state, options))
    before = None
    by_interior_points = None
    if _may_ask_interior_points(options, engine, dtype):
        program = interior.FirstProgram(problem)
        before, by_interior_points = _turns(problem, state, options, program)
    if by_interior_points is not None:
        found = yield from _solving_by_interior_points(problem, None, by_interior_points, program)
        rows = _stopped_by(found, *(stop for stop in Stop if stop is not Stop.GAP))
        if not len(rows):
            return found
        part = found.rows(rows)
        begin = None if state is None else state.rows(rows)
        if begin is None and float(part.gap.max()) <= _WORST_START_GAP:
            begin = part.state
        rest = dataclasses.replace(
            by_interior_points,
            max_iterations=max(0, options.max_iterations - found.iterations),
            starter=None,
        )
        later = yield from _solving_by_pdhg(
            problem.rows(rows), begin, rest, engine, dtype, None, may_span_decades
        )
        return found.replaced(rows, _best_of(problem.rows(rows), part, later, options.gap))
    return (
        yield from _solving_by_pdhg(
            problem, state, options, engine, dtype, before, may_span_decades
        )
    )


def _stopped_by(result: PdhgResult, *reasons: Stop) -> Tensor:
    """Numbers of the matrices whose search ended for one of the reasons."""
    is_one = [stop in reasons for stop in result.stopped_by]
    return torch.tensor(is_one, dtype=torch.bool).nonzero()[:, 0]


def _best_of(problem: Problem, first: PdhgResult, second: PdhgResult, gap: float) -> PdhgResult:
    """The better allocation and the better prices of each matrix, which together may reach the
    target.
    """
    both = better(problem, first, second)
    stops = zip(both.gap.tolist(), second.stopped_by, strict=True)
    return dataclasses.replace(
        both, stopped_by=tuple(Stop.GAP if one <= gap else stop for one, stop in stops)
    )


def _solving_by_pdhg(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    engine: str,
    dtype: torch.dtype | None,
    before: int | None,
    may_span_decades: bool,
) -> Steps[PdhgResult]:
    """Solve by PDHG; ``before`` as in :func:`_solving_in_turn`."""
    real = iteration_dtype(problem, options.gap, dtype)
    if engine != "auto":
        return (yield from _solving_parts(problem, state, options, engine, real))
    is_small = problem.paths.scan_size <= LARGE_WORK and problem.is_linear
    # The equilibrated engine takes long above that size, and knows no steps; a stall of float32 may
    # still be mended.
    fallback = (
        "equilibrated" if is_small else "auto" if real is torch.float32 and dtype is None else ""
    )
    is_wide = (
        spans_decades(problem).cpu()
        if is_small and may_span_decades
        else torch.zeros(problem.batch, dtype=torch.bool)
    )
    if bool(is_wide.all()) and problem.batch:
        return (yield from _solving_parts(problem, state, options, "equilibrated", real))
    if not bool(is_wide.any()):
        result = yield from _solving_in_turn(
            problem, state, options, real, before, may_stall=bool(fallback)
        )
    else:
        groups = [(~is_wide).nonzero()[:, 0], is_wide.nonzero()[:, 0]]
        parts: list[PdhgResult] = []
        for rows, name in zip(groups, ("auto", "equilibrated"), strict=True):
            left = problem.batch - sum(len(part.value) for part in parts)
            part_options = dataclasses.replace(
                options, deadline=options.deadline.share(len(rows) / left)
            )
            part_state = None if state is None else state.rows(rows)
            part = yield from _solving_parts(
                problem.rows(rows),
                part_state,
                part_options,
                name,
                real,
                may_stall=bool(fallback and name == "auto"),
            )
            parts.append(part)
        result = merged(parts).rows(torch.cat(groups).argsort())
    stalled = _stopped_by(result, Stop.STALLED)
    if not len(stalled) or not fallback:
        return result
    rest = dataclasses.replace(
        options, max_iterations=max(0, options.max_iterations - result.iterations)
    )
    earlier = result.rows(stalled)
    # Of a balanced program the equilibrated engine has better prices of its own than those that led
    # nowhere.
    begin = None if is_small and problem.price_set.on_simplex else earlier.state
    second = yield from _solving_parts(
        problem.rows(stalled), begin, rest, fallback, torch.float64, may_leave_start=False
    )
    best = _best_of(problem.rows(stalled), earlier, second, options.gap)
    return result.replaced(stalled, best)


def _may_ask_interior_points(
    options: SearchOptions, engine: str, dtype: torch.dtype | None
) -> bool:
    """Whether interior points are a choice: whoever asks for few iterations means those of PDHG."""
    is_asked = engine == "auto" and dtype in (None, torch.float64)
    return is_asked and options.max_iterations >= interior.MAX_ITERATIONS


def _turns(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    program: interior.FirstProgram,
) -> tuple[int | None, SearchOptions | None]:
    """Iterations of PDHG before interior points are asked, None for all of them; and, where these
    are asked first, how: from the model only where it saves time.

    Args:
        problem, state, options: as in :func:`solving_single`.
        program: the program of the first matrix.
    """
    gap, left = options.gap, options.deadline.left
    is_warm = state is not None
    has_model = options.starter is not None and not is_warm
    if has_model and interior.is_faster_from_model(problem, gap, left, program):
        return 0, options
    before = interior.pdhg_iterations_before(problem, gap, left, program, is_warm=is_warm)
    alone = dataclasses.replace(options, starter=None)
    return before, alone if before == 0 else None


def _solving_in_turn(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    dtype: torch.dtype,
    before: int | None,
    *,
    may_stall: bool,
) -> Steps[PdhgResult]:
    """Solve by PDHG for some iterations, what is left by interior points from there, and what these
    leave by PDHG again.

    Args:
        problem, state, options, dtype, may_stall: as in :func:`_solving_parts`.
        before: the iterations; None for all of them.
    """
    if before is None or before >= options.max_iterations:
        return (
            yield from _solving_parts(problem, state, options, "auto", dtype, may_stall=may_stall)
        )
    first = dataclasses.replace(options, max_iterations=before)
    result = yield from _solving_parts(problem, state, first, "auto", dtype, may_stall=may_stall)
    for name in ("interior", "auto"):
        rows = _stopped_by(result, Stop.ITERATIONS, Stop.STALLED)
        if not len(rows) or options.deadline.is_over:
            break
        part, earlier = problem.rows(rows), result.rows(rows)
        left = max(0, options.max_iterations - result.iterations)
        rest = dataclasses.replace(options, max_iterations=left)
        if name == "interior":
            later = yield from _solving_by_interior_points(part, earlier.state, rest)
        else:
            later = yield from _solving_parts(
                part, earlier.state, rest, name, dtype, may_stall=may_stall, may_leave_start=False
            )
        result = result.replaced(rows, _best_of(part, earlier, later, options.gap))
    return result


def _solving_parts(
    problem: Problem,
    state: PdhgState | None,
    options: SearchOptions,
    name: str,
    dtype: torch.dtype,
    *,
    may_stall: bool = False,
    may_leave_start: bool = True,
) -> Steps[PdhgResult]:
    """Solve by one engine, as many matrices at a time as it takes."""
    make_engine, lanes = _engine(problem, name, dtype)
    results: list[PdhgResult] = []
    for first in range(0, problem.batch, lanes):
        rows = slice(first, first + lanes)
        part = problem if lanes >= problem.batch else problem.rows(rows)
        part_state = None if state is None else state.rows(rows)
        begin, part_deadline = (
            time.perf_counter(),
            options.deadline.share(part.batch / (problem.batch - first)),
        )
        engine = make_engine(part, part_state, dtype)
        sampled, model = None, None
        if (
            may_leave_start
            and isinstance(engine, FusedEngine)
            and starts_from_samples(part, options.gap, name)
        ):
            sampled = SampledStart(part, engine, options.gap, options.starter)
        elif (
            may_leave_start
            and options.starter
            and isinstance(engine, FusedEngine)
            and foretells_work(part, name)
        ):
            model = ModelStart(
                part, engine, options.gap, options.starter, is_warm=part_state is not None
            )
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
        results.append((yield from search.solving(part_deadline, warm=part_state is not None)))
        del search, sampled, model, engine  # so that the memory is free for the next part
    return results[0] if len(results) == 1 else merged(results)


def _engine(
    problem: Problem, name: str, dtype: torch.dtype
) -> tuple[Callable[..., PdhgEngine], int]:
    """The engine's class, and how many matrices it solves at once."""
    if name == "equilibrated":
        if not problem.is_linear:
            raise InputError(
                "solve",
                "engine",
                "auto, fused or plain, for a value that is not linear in flow",
                name,
            )
        return EquilibratedEngine, MAX_LANES
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
                "plain or equilibrated: no compiled engine takes this program",
                name,
            )
    return PlainEngine, MAX_LANES


def starts_from_samples(problem: Problem, gap: float, engine: str) -> bool:
    """Whether the search for one program without conditions starts from samples of the demands.

    Args:
        problem: B matrices.
        gap: target.
        engine: as in :func:`teal.solvers.pdhg.solve`.
    """
    # Drawn in proportion to rates, a sample says little of demands that count alike whatever their
    # rate.
    is_fair_by_demand = problem.utility is None or problem.objective.rules.weight_by == "demand"
    takes_samples = engine == "auto" and problem.largest_share is None and is_fair_by_demand
    takes_samples = takes_samples and FusedEngine.accepts(problem)
    return takes_samples and is_faster(problem.paths, gap)
