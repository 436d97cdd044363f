"""Solving B matrices: reduction, choice of engines, parts that fit, and a second engine where the first one stalls."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.pathops import PathOps
from teal.problem import Problem
from teal.problem.bounds import usable_prices
from teal.problem.prox import project_box
from teal.runtime.interruptible import Deadline, Steps, complete, quietly
from teal.solvers.pdhg.engine import PdhgEngine
from teal.solvers.pdhg.equilibrated import EquilibratedEngine, spans_decades
from teal.solvers.pdhg.fused.engine import MAX_LANES, FusedEngine
from teal.solvers.pdhg.fused.rehearsal import rehearse_for
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.pdhg.reduction import Reduction, is_ordinary
from teal.solvers.pdhg.samples.start import SampledStart, is_faster
from teal.solvers.pdhg.search import LARGE_WORK, Search
from teal.solvers.result import PdhgResult, PdhgState, ProgressCallback, Starter, Stop, better, merged
from teal.solvers.sequences import max_min, priority
from teal.solvers.sequences.task import Tasks, carrying_out

ENGINES = ("auto", "fused", "plain", "equilibrated")
_FLOAT64_BELOW_GAP = 1e-5  # target gap below which float32 splits are too coarse
WarmStart = tuple[Tensor, Tensor] | PdhgState | PdhgResult


@runtime_checkable
class MakeTasks(Protocol):
    """Makes the tasks of an objective that is a sequence of programs."""

    def __call__(self, problem: Problem, gap: float, *, takes_steps: bool) -> Tasks:
        """The tasks.

        Args:
            problem: B matrices.
            gap: target.
            takes_steps: whether programs may have values that fall in steps (:mod:`teal.problem.steps`).
        """
        ...


_SEQUENCES: dict[str, MakeTasks] = {ObjectiveName.PRIORITY: priority.tasks, ObjectiveName.MAX_MIN: max_min.tasks}


def register_sequence(name: str, make_tasks: MakeTasks) -> None:
    """How :func:`solve` solves an objective that is a sequence of programs.

    Args:
        name: of the objective; see :func:`teal.objectives.register_objective`.
        make_tasks: makes its tasks (:mod:`teal.solvers.sequences.task`).
    """
    _SEQUENCES[name] = make_tasks


@dataclasses.dataclass(frozen=True)
class _Limits:
    """When to stop.

    Attributes:
        gap: target.
        deadline: of all matrices.
        max_iterations: largest number of iterations.
        report: called after each full gap check between iterations; None for nobody.
        starter: see :func:`solve`.
    """

    gap: float
    deadline: Deadline
    max_iterations: int
    report: ProgressCallback | None
    starter: Starter | None


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
            matrix before, of the same matrix before a failure, or of a model.  Not under priority and max_min.
        starter: such as a PriceGNN.  On networks so large that the engine starts from a sample of the demands, it
            solves the sample (targets of 0.5% and above, programs that maximise a value; iterations do otherwise); on
            smaller ones it gives the start that ``warm_start`` does not give.  Only where ``warm_start`` may be.
        engine: fused (CPU, and GPU with numba-cuda), plain (any device), equilibrated (any device; for magnitudes that
            span many decades), or auto: the faster of the first two that runs here, and equilibrated where magnitudes
            span more than four decades or where the gap stops shrinking, unless the network is large.  Under side
            conditions auto is plain in the place of fused, and fused may not be named.
        dtype: of the splits during the iteration; None for float32, or float64 where ``gap`` is below 1e-5 and, with
            auto, where float32 stalls.
        report: called after each full gap check between iterations, and under priority and max_min after each program;
            the gap is infinite while it is not known.

    Raises:
        InputError: settings out of range, a warm start of another shape, a warm start, starter or engine that this
            program does not take, or too little memory for one matrix.
    """
    if math.isnan(deadline):
        raise InputError("solve", "deadline", "seconds", deadline)
    _check(problem, gap, max_iterations, warm_start, starter, engine)
    prepare(problem, gap=gap, engine=engine, dtype=dtype)  # before the clock starts
    steps = solving(
        problem, gap=gap, deadline=Deadline.after(deadline), max_iterations=max_iterations, warm_start=warm_start,
        starter=starter, engine=engine, dtype=dtype, report=report,
    )  # fmt: skip
    return complete(steps)


def takes_warm_start(problem: Problem) -> bool:
    """Whether the solution is that of one program, which can start from an earlier solution."""
    return not problem.objective.rules.is_sequence


@torch.no_grad()
def solving(
    problem: Problem,
    *,
    gap: float = 1e-2,
    deadline: Deadline | None = None,
    max_iterations: int = 10_000,
    warm_start: WarmStart | None = None,
    starter: Starter | None = None,
    engine: str = "auto",
    dtype: torch.dtype | None = None,
    report: ProgressCallback | None = None,
) -> Steps[PdhgResult]:
    """:func:`solve` as a computation that pauses at the end of iterations (:mod:`teal.runtime.interruptible`).

    Args:
        problem: as of :func:`solve`.
        gap: as of :func:`solve`.
        deadline: None for none.
        max_iterations, warm_start, starter, engine, dtype, report: as of :func:`solve`.

    Raises:
        InputError: see :func:`solve`; at the first step.
    """
    _check(problem, gap, max_iterations, warm_start, starter, engine)
    prepare(problem, gap=gap, engine=engine, dtype=dtype)
    steps = _solving(
        problem, _Limits(gap, deadline or Deadline(), max_iterations, report, starter), warm_start, engine, dtype
    )
    return (yield from quietly(steps, problem.batch * problem.paths.leaf.size))


def _check(
    problem: Problem,
    gap: float,
    max_iterations: int,
    warm_start: WarmStart | None,
    starter: Starter | None,
    engine: str,
) -> None:
    """Raise InputError for arguments of :func:`solve` that are out of range or would have no effect."""
    if not problem.batch:
        raise InputError("solve", "problem", "at least one matrix", "none")
    if not 0 <= gap < math.inf:
        raise InputError("solve", "gap", "a number >= 0", gap)
    if max_iterations < 0:
        raise InputError("solve", "max_iterations", "a whole number >= 0", max_iterations)
    if engine not in ENGINES:
        raise InputError("solve", "engine", " or ".join(ENGINES), repr(engine))
    if not takes_warm_start(problem):
        what = problem.objective.name
        for name, value in (("warm_start", warm_start), ("starter", starter)):
            if value is not None:
                raise InputError("solve", name, f"none: {what} takes more than one program", "one")
    if problem.conditions and engine == "fused":
        raise InputError("solve", "engine", "another one: fused takes no side conditions", repr(engine))


def _solving(
    problem: Problem, limits: _Limits, warm_start: WarmStart | None, engine: str, dtype: torch.dtype | None
) -> Steps[PdhgResult]:
    """The solution of a program, of the programs of a sequence, or of the program that side conditions make."""
    begin = time.perf_counter()
    if make_tasks := _SEQUENCES.get(problem.objective.name):
        result = yield from carrying_out(
            make_tasks(problem, limits.gap, takes_steps=_knows_steps(problem, engine)),
            partial(solving, engine=engine, dtype=dtype),
            deadline=limits.deadline, max_iterations=limits.max_iterations, report=limits.report,
        )  # fmt: skip
        return dataclasses.replace(result, solve_s=time.perf_counter() - begin)
    state = _starting_state(problem, warm_start)
    if (
        state is None
        and limits.starter is not None
        and (problem.conditions or not is_faster(problem.paths, limits.gap))
    ):
        state = _starting_state(problem, limits.starter.start(problem))
    if problem.conditions:
        result = yield from _solving_rewritten(problem, state, limits, engine, dtype)
    else:
        result = yield from _solving_single(problem, state, limits, engine, dtype)
    return dataclasses.replace(result, solve_s=time.perf_counter() - begin)


def _solving_single(
    problem: Problem, state: PdhgState | None, limits: _Limits, engine: str, dtype: torch.dtype | None
) -> Steps[PdhgResult]:
    """One program without conditions: reduced where it is not ordinary."""
    if is_ordinary(problem):
        return (yield from _solving_reduced(problem, state, limits, engine, dtype, may_span_decades=False))
    reduction = Reduction(problem)
    result = yield from _solving_reduced(reduction.problem, reduction.reduced(state), limits, engine, dtype)
    return reduction.result(result, limits.gap)


def _solving_rewritten(
    problem: Problem, state: PdhgState | None, limits: _Limits, engine: str, dtype: torch.dtype | None
) -> Steps[PdhgResult]:
    """The program that the side conditions make, over its own columns and rows; the result is over paths and links."""
    rewritten, over, links = problem.rewritten, problem.over_columns, problem.topology.num_links
    if over.largest_share is not None:
        dtype = torch.float64  # shares of columns are differences of splits, and a budget is small beside capacities
    columns = None
    if state is not None:
        prices = over.program.completed(state.prices.to(over.capacity))
        columns = PdhgState(rewritten.shares(state.splits.to(over.demand)), prices)
    elif rewritten.start is not None:
        columns = PdhgState(rewritten.start, torch.zeros_like(over.capacity))
    result = yield from _solving_single(over, columns, dataclasses.replace(limits, starter=None), engine, dtype)
    splits, prices = rewritten.splits(result.splits), result.prices[:, :links]
    last = PdhgState(rewritten.splits(result.state.splits), result.state.prices[:, :links])
    return dataclasses.replace(result, splits=splits, prices=prices, state=last)


def prepare(problem: Problem, *, gap: float = 1e-2, engine: str = "auto", dtype: torch.dtype | None = None) -> None:
    """Compile what :func:`solve` runs for such a problem, which :func:`solve` does too before its clock starts.

    Args:
        problem: B matrices.
        gap, engine, dtype: as of :func:`solve`.
    """
    if problem.conditions:
        if (largest := problem.over_columns.largest_share) is not None:
            project_box(torch.zeros_like(largest), largest, torch.ones_like(largest))
    elif problem.ops.device.type == "cpu" and problem.batch and engine in ("auto", "fused"):
        rehearse_for(
            problem.paths, problem.batch, gap, _real(gap, dtype),
            carries_all=problem.objective.rules.carries_all or problem.objective.name == ObjectiveName.MAX_MIN,
            same_capacity=bool((problem.capacity == problem.capacity[:1]).all()),
        )  # fmt: skip


def _knows_steps(problem: Problem, engine: str) -> bool:
    """Whether the engine takes values that fall in steps, and the program needs no other engine."""
    if problem.conditions:
        return False
    if engine == "plain":
        return True
    if engine not in ("auto", "fused") or problem.ops.device.type != "cpu":
        return False
    return problem.usable.demand is problem.demand and not bool(spans_decades(problem).any())


def _real(gap: float, dtype: torch.dtype | None) -> torch.dtype:
    """The type of the splits in the iteration."""
    return dtype or (torch.float64 if gap < _FLOAT64_BELOW_GAP else torch.float32)


def _solving_reduced(
    problem: Problem,
    state: PdhgState | None,
    limits: _Limits,
    engine: str,
    dtype: torch.dtype | None,
    *,
    may_span_decades: bool = True,
) -> Steps[PdhgResult]:
    """Solve each matrix by the engine that suits it, then those that stalled by another one."""
    real = _real(limits.gap, dtype)
    if engine != "auto":
        return (yield from _solving_parts(problem, state, limits, engine, real))
    is_small = problem.paths.trie.num_nodes + problem.paths.leaf.size <= LARGE_WORK and problem.steps is None
    # The equilibrated engine takes long above that size, and knows no steps; a stall of float32 may still be mended.
    fallback = "equilibrated" if is_small else "auto" if real is torch.float32 and dtype is None else ""
    is_wide = (
        spans_decades(problem).cpu() if is_small and may_span_decades else torch.zeros(problem.batch, dtype=torch.bool)
    )
    if bool(is_wide.all()) and problem.batch:
        return (yield from _solving_parts(problem, state, limits, "equilibrated", real))
    if not bool(is_wide.any()):
        result = yield from _solving_parts(problem, state, limits, "auto", real, may_stall=bool(fallback))
    else:
        groups = [(~is_wide).nonzero()[:, 0], is_wide.nonzero()[:, 0]]
        parts: list[PdhgResult] = []
        for rows, name in zip(groups, ("auto", "equilibrated"), strict=True):
            left = problem.batch - sum(len(part.value) for part in parts)
            part_limits = dataclasses.replace(limits, deadline=limits.deadline.share(len(rows) / left))
            part_state = None if state is None else state.rows(rows)
            part = yield from _solving_parts(
                problem.rows(rows), part_state, part_limits, name, real, may_stall=bool(fallback and name == "auto")
            )
            parts.append(part)
        result = merged(parts).rows(torch.cat(groups).argsort())
    stalled = torch.tensor([stop is Stop.STALLED for stop in result.stopped_by], dtype=torch.bool).nonzero()[:, 0]
    if not len(stalled):
        return result
    rest = dataclasses.replace(limits, max_iterations=max(0, limits.max_iterations - result.iterations))
    earlier = result.rows(stalled)
    second = yield from _solving_parts(
        problem.rows(stalled), earlier.state, rest, fallback, torch.float64, may_sample=False
    )
    return result.replaced(stalled, better(problem.rows(stalled), earlier, second))


def _solving_parts(
    problem: Problem,
    state: PdhgState | None,
    limits: _Limits,
    name: str,
    dtype: torch.dtype,
    *,
    may_stall: bool = False,
    may_sample: bool = True,
) -> Steps[PdhgResult]:
    """Solve by one engine, as many matrices at a time as it takes."""
    make_engine, lanes = _engine(problem, name, dtype)
    results: list[PdhgResult] = []
    for first in range(0, problem.batch, lanes):
        rows = slice(first, first + lanes)
        part = problem.rows(rows)
        part_state = None if state is None else state.rows(rows)
        begin, part_deadline = time.perf_counter(), limits.deadline.share(part.batch / (problem.batch - first))
        engine = make_engine(part, part_state, dtype)
        sampled = None
        if may_sample and name == "auto" and isinstance(engine, FusedEngine) and is_faster(part.paths, limits.gap):
            sampled = SampledStart(part, engine, limits.gap, limits.starter)
        search = Search(
            part, engine, limits.gap, limits.max_iterations, limits.report, begin=begin, may_stall=may_stall,
            sampled=sampled,
        )  # fmt: skip
        results.append((yield from search.solving(part_deadline, warm=part_state is not None)))
        del search, sampled, engine  # so that the memory is free for the next part
    return results[0] if len(results) == 1 else merged(results)


def _engine(problem: Problem, name: str, dtype: torch.dtype) -> tuple[Callable[..., PdhgEngine], int]:
    """The engine's class, and how many matrices it solves at once."""
    if name == "equilibrated":
        return EquilibratedEngine, MAX_LANES
    # Kernels know paths and links; other columns and rows are the torch engines'.
    takes_kernels = type(problem.ops) is PathOps and problem.largest_share is None
    has_cuda_engine = problem.ops.backend.name == "cuda" and takes_kernels
    may_be_plain = not takes_kernels or (not has_cuda_engine and problem.ops.device.type != "cpu")
    if name == "plain" or (name == "auto" and may_be_plain):
        return PlainEngine, MAX_LANES
    if not has_cuda_engine:
        if problem.ops.device.type != "cpu":
            raise InputError("solve", "engine", f"plain, the only one on {problem.ops.device} without numba-cuda", name)
        return FusedEngine, MAX_LANES
    from teal.solvers.pdhg.cuda.engine import CudaEngine, lanes

    return CudaEngine, lanes(problem, dtype)


def _starting_state(problem: Problem, warm_start: WarmStart | None) -> PdhgState | None:
    """The state of ``warm_start``, with prices whose sums are finite; engines repair the splits.

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
    device = problem.demand.device
    return PdhgState(state.splits.to(device), usable_prices(problem, state.prices.to(device), most=1.0))
