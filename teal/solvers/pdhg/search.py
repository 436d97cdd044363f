"""The search: iterate until a target gap, a deadline or an iteration limit, keeping the best that was seen."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from teal.bounds import from_utilisation
from teal.bounds import gap as certified_gap
from teal.errors import InputError
from teal.problem import Problem
from teal.solvers.pdhg.engine import Engine, PdhgState
from teal.solvers.pdhg.fused import MOST_LANES, FusedEngine
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.projection import project

ENGINES = ("auto", "fused", "plain")
_NARROW_GAP = 1e-5  # below it float32 splits are too coarse
_FIRST_LOOK, _GROWTH = 6, 2.0  # iterations to the first look at the latest, and from one to the next
_PROMISE, _SPACING = 1.6, 1.25  # an earlier one at so many times the target, so much later than the last
_SMALL = 500_000  # trie nodes and paths: below, and on a GPU, several iterations go by
_STRIDE = 4  # between two glances at the bound, which cost about as much as one of them
_LOOK_COST, _LAST_COST = 2.0, 3.0  # of a look in iterations, until one was timed; of the last one in looks
_LAST_REFILL = 3  # rounds; near the optimum they bring less than the iterations that they would cost


@dataclasses.dataclass(frozen=True, eq=False)
class PdhgResult:
    """The best that was seen.

    Attributes:
        splits: (B, D, K), feasible.
        prices: (B, E), value per Gbit/s.
        value, bound, gap: (B,) of them.
        iterations: done.
        solve_s: seconds it took.
        state: to start the next matrix from.
    """

    splits: Tensor
    prices: Tensor
    value: Tensor
    bound: Tensor
    gap: Tensor
    iterations: int
    solve_s: float
    state: PdhgState


Report = Callable[[int, float], None]
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
    report: Report | None = None,
) -> PdhgResult:
    """Iterate until every matrix has a certified ``gap``, or time or iterations are up.

    The best feasible allocation and the best prices seen are returned, whichever of the three stops it.

    Args:
        problem: B matrices, solved together (16 at a time; on a GPU as many as fit its memory).
        gap: target, (bound - value) / bound, or (theta - bound) / theta.
        deadline: seconds from now.  Setting up and one look are done in any case.
        max_iterations: most iterations.
        warm_start: an earlier result or its state, or (splits (B, D, K), prices (B, E)) of anything: the
            matrix before, the same one before a failure, a network's answer.
        engine: fused (CPU, and GPU with numba-cuda), plain (any device), auto for the faster one that runs.
        dtype: of the splits while iterating; None for float32, or float64 where ``gap`` asks for it.
        report: told after each look how many iterations were done and the widest gap so far.

    Raises:
        InputError: a warm start of another shape, an engine that there is not, or too little memory for one matrix.
    """
    begin = time.perf_counter()
    if not 0 <= gap < math.inf:
        raise InputError("solve", "gap", "a number >= 0", gap)
    if engine not in ENGINES:
        raise InputError("solve", "engine", " or ".join(ENGINES), repr(engine))
    state = _state(problem, warm_start)
    real = dtype or (torch.float64 if gap < _NARROW_GAP else torch.float32)
    make, lanes = _engine(problem, engine, real)
    results: list[PdhgResult] = []
    for first in range(0, problem.batch, lanes):
        rows = slice(first, first + lanes)
        part = dataclasses.replace(problem, demand=problem.demand[rows], capacity=problem.capacity[rows])
        own = None if state is None else state.rows(rows)
        now = time.perf_counter()
        share = (begin + deadline - now) * part.batch / (problem.batch - first)
        # Nothing else holds the engine, so that its memory is free for the next part.
        search = _Search(part, make(part, own, real), gap, max_iterations, report, begin=now)
        results.append(search.run(share, warm=own is not None))
        del search
    return results[0] if len(results) == 1 else _merged(results, time.perf_counter() - begin)


def _engine(problem: Problem, name: str, dtype: torch.dtype) -> tuple[Callable[..., Engine], int]:
    """The engine to use, and how many matrices it takes at once."""
    on_gpu = problem.ops.backend.name == "cuda"
    if name == "plain" or (name == "auto" and not on_gpu and problem.ops.device.type != "cpu"):
        return PlainEngine, MOST_LANES
    if not on_gpu:
        if problem.ops.device.type != "cpu":
            raise InputError("solve", "engine", f"plain, the only one on {problem.ops.device} without numba-cuda", name)
        return FusedEngine, MOST_LANES
    from teal.solvers.pdhg.cuda_engine import CudaEngine, lanes

    return CudaEngine, lanes(problem, dtype)


class _Search:
    """One engine's way to the target."""

    def __init__(
        self, problem: Problem, engine: Engine, target: float, most: int, report: Report | None, begin: float
    ) -> None:
        self._report, self._begin = report, begin
        self._problem, self._engine, self._target, self._most = problem, engine, target, most
        self._up = problem.objective.maximises_value
        worst = torch.full((problem.batch,), math.inf, dtype=torch.float64)
        self._value, self._bound = (-worst, worst) if self._up else (worst, torch.zeros_like(worst))
        work = problem.paths.trie.num_nodes + problem.paths.leaf.size
        on_host = problem.demand.device.type == "cpu"
        self._stride = 1 if work > _SMALL and on_host else _STRIDE

    def run(self, deadline: float, *, warm: bool) -> PdhgResult:
        """Alternate iterations and looks; ``deadline`` in seconds from ``begin``."""
        engine, done, next_look, looked = self._engine, 0, _FIRST_LOOK, -1
        pace, look_s = 0.0, 0.0  # seconds an iteration, a look
        if warm:
            look_s, looked, next_look = self._look(), 0, 1
        while done < self._most and not self._reached(self._bound):
            spent = time.perf_counter() - self._begin
            reserve = _LAST_COST * (look_s or _LOOK_COST * pace) + pace
            if spent + reserve >= deadline:
                break
            count = max(1, min(self._stride, self._most - done, next_look - done))
            if pace and math.isfinite(deadline):
                count = max(1, min(count, int((deadline - spent - reserve) / pace)))
            begin = time.perf_counter()
            bound = engine.advance(count)
            pace, done = (time.perf_counter() - begin) / count, done + count
            promise = self._better(bound)
            if self._reached(promise) and done < next_look:
                self._take_bound(engine.certify())
            elif done >= next_look or (done >= _SPACING * looked and self._promising(promise)):
                look_s, looked = self._look(), done
                if self._report is not None:
                    self._report(done, float(self._gaps(self._bound).max()))
                next_look = max(looked + 2, math.ceil(_GROWTH * looked))
        if not self._reached(self._bound):
            self._look(_LAST_REFILL)
        return self._result(done)

    def _promising(self, bound: Tensor) -> bool:
        """Whether a better value may be all that is missing: near the optimum the bound is what lags."""
        return bool((self._gaps(bound) <= _PROMISE * self._target).all())

    def _better(self, bound: Tensor) -> Tensor:
        return torch.minimum(self._bound, bound) if self._up else torch.maximum(self._bound, bound)

    def _gaps(self, bound: Tensor) -> Tensor:
        """(B,) of the best value, infinite before the first look, and ``bound``; balanced programs in utilisations."""
        high, low = (bound, self._value) if self._up else (self._value, bound)
        gaps = torch.where(high > 0, (high - low) / high.clamp(min=1e-300), 0)
        return torch.where(self._value.isfinite(), gaps, math.inf)

    def _reached(self, bound: Tensor) -> bool:
        """Whether every matrix is at the target."""
        return bool((self._gaps(bound) <= self._target).all())

    def _open(self) -> Tensor:
        """(B,) matrices that are not there yet: the others keep what they have."""
        return self._gaps(self._bound) > self._target

    def _take_bound(self, bound: Tensor) -> None:
        win = self._open() & ((bound < self._bound) if self._up else (bound > self._bound))
        self._bound = torch.where(win, bound, self._bound)
        self._engine.keep(torch.zeros_like(win), win)

    def _look(self, refill: int = 0) -> float:
        """Take what the engine offers; the seconds it took."""
        begin = time.perf_counter()
        value, bound = self._engine.look(refill)
        going_on = self._open()
        better = going_on & ((value > self._value) if self._up else (value < self._value))
        closer = going_on & ((bound < self._bound) if self._up else (bound > self._bound))
        self._value = torch.where(better, value, self._value)
        self._bound = torch.where(closer, bound, self._bound)
        self._engine.keep(better, closer)
        return time.perf_counter() - begin

    def _result(self, iterations: int) -> PdhgResult:
        problem, value, bound = self._problem.to(torch.float64), self._value, self._bound
        splits, prices = self._engine.best()
        if problem.objective.is_balanced:
            value, bound = from_utilisation(problem, value), from_utilisation(problem, bound)
        carried = project(problem, splits) if problem.objective.is_balanced and problem.objective.may_shed else splits
        value, bound = value.to(splits.device), bound.to(splits.device)
        return PdhgResult(
            splits=carried,
            prices=prices,
            value=value,
            bound=bound,
            gap=certified_gap(problem, value, bound),
            iterations=iterations,
            solve_s=time.perf_counter() - self._begin,
            state=PdhgState(splits, prices),
        )


def _state(problem: Problem, warm_start: WarmStart | None) -> PdhgState | None:
    if warm_start is None:
        return None
    state = warm_start.state if isinstance(warm_start, PdhgResult) else warm_start
    state = PdhgState(*state) if isinstance(state, tuple) else state
    expected = (problem.batch, *problem.paths.leaf.shape), (problem.batch, problem.topology.num_links)
    found = tuple(state.splits.shape), tuple(state.prices.shape)
    if found != expected:
        raise InputError("solve", "warm_start", f"splits and prices of shape {expected}", found)
    # Whatever it comes from: nothing negative, and nothing that is not a number.  Engines see to the splits.
    return PdhgState(state.splits, torch.nan_to_num(state.prices, nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0))


def _merged(results: list[PdhgResult], seconds: float) -> PdhgResult:
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
