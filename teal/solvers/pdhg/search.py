"""The search with one engine: until a target gap, a deadline, an iteration limit or a stall; it
keeps the best.
"""

from __future__ import annotations

import math
import time
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from teal.problem import Problem
from teal.problem.bounds import from_score, relative_gap
from teal.problem.bounds import gap as certified_gap
from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.solvers.pdhg.engine import PdhgEngine
from teal.solvers.projection import project
from teal.solvers.result import PdhgResult, PdhgState, ProgressCallback, Stop

# iterations after which the first full gap check is made at the latest; easy programs need no more
FIRST_CHECK = 6
# x iterations done at the last full gap check: the latest next one, so that checks stay few
_CHECK_GROWTH = 2.0
# x iterations done at the last full gap check: none is made earlier, since it costs 2 iterations
_CHECK_SPACING = 1.25
_CHECK_WHEN_WITHIN = (
    1.6  # x target gap: a check is made early if newest bound and last known value are this close
)
# Iterations that count as done in the spacing of checks after a start from a model, whose gap is
# near the target: a check takes as long as 5 iterations.
_AHEAD_OF_MODEL = 24
# Trie nodes and path slots of one matrix above which an iteration takes longer than a test of its
# bound on a CPU, and the equilibrated engine too long to be of use.
LARGE_WORK = 500_000
# Iterations between two tests of the bound on GPUs, and on a CPU up to LARGE_WORK, where a test
# costs as much as these.
_ITERATIONS_PER_TEST = 4
_CHECK_COST = 2.0  # iterations: cost of a full gap check, assumed until one has been timed
_LAST_CHECK_COST = 3.0  # full gap checks: cost of the last one, which also runs LAST_REFILL rounds
# Rounds that hand unused capacity to unserved demand, in the last check only: in every check they
# take longer than the iterations that they save.
LAST_REFILL = 3
_REFILLABLE_GAP_FACTOR = (
    2.0  # x target gap: of a warm start, up to which refilling may be all that is missing
)
_WARM_START_GAP_FACTOR = 3.0  # x target gap: a warm start with a wider gap gives way to samples
# After samples, iterations to the next full gap check: so many for each target gap that is left.  A
# check with refill costs 7 iterations on Kdl, and without it the value lags 10 iterations behind.
_ITERATIONS_PER_GAP, _MIN_ITERATIONS_TO_CHECK, _MAX_ITERATIONS_TO_CHECK = 6, 4, 24
_SAMPLING_GAP_FACTOR = (
    3.5  # x target gap: within it, iterations take less time than a larger sample
)
_FAIR_SAMPLING_GAP_FACTOR = (
    1.0  # of a utility, whose programs take more iterations; of Kdl at load 20, 181 or 52
)
_SAMPLE_TIME = 0.3  # share of the remaining time that the sample's solution may take
# A search has stalled if, after at least _STALL_AFTER iterations, a _STALL_SPAN-fold increase of
# their number has not brought the widest gap below _STALL_GAP times what it was; even PDHG's worst
# case is proportional to 1 / iterations.
_STALL_AFTER = 300
_STALL_SPAN = 4.0
_STALL_GAP = 0.7


class Sampled(Protocol):
    """Starts of an engine from samples of the demands; see
    :class:`teal.solvers.pdhg.samples.start.SampledStart`.
    """

    def respond(self, unfinished: Tensor, deadline: Deadline) -> Steps[bool]:
        """Put the engine at the response of all demands to the next sample's prices; false if there
        is none.
        """
        ...

    def correct(self) -> bool:
        """Put the engine at the response to corrected prices of that sample; false if they cannot
        be corrected.
        """
        ...


class Modelled(Protocol):
    """A start of an engine from a model; see :class:`teal.solvers.pdhg.model_start.ModelStart`.

    The argument ``gap`` is that of the first gap check.
    """

    def cost(self, gap: float) -> float:
        """Number of iterations that take as long as the model."""
        ...

    def saves_time(self, gap: float) -> bool:
        """Whether the model takes less time than the iterations that it saves."""
        ...

    def start(self, gap: float) -> None:
        """Put the engine at the model's start."""
        ...


class Search:
    """Drives one engine to the target gap.

    Args:
        problem: the matrices, as many as the engine solves at once.
        engine: at its starting point.
        target_gap: at which the search stops.
        max_iterations: at which the search stops.
        report: see :func:`solve`.
        begin: ``time.perf_counter()`` at the start, from which the time of the result counts.
        may_stall: whether to stop where the gap no longer shrinks.
        sampled: starts of the engine from samples of the demands; None where iterations take less
            time.
        model: a model's start, made after the first gap check where it saves time; None for none.
        is_large: whether an iteration takes longer than a test of its bound; None: see the paths of
            ``problem``.

    Attributes:
        value: (B,) the best so far, float64; of a balanced program the largest utilisation.
        bound: (B,) the best so far, of the same kind.
    """

    def __init__(
        self,
        problem: Problem,
        engine: PdhgEngine,
        target_gap: float,
        max_iterations: int,
        report: ProgressCallback | None,
        begin: float,
        *,
        may_stall: bool,
        sampled: Sampled | None = None,
        model: Modelled | None = None,
        is_large: bool | None = None,
    ) -> None:
        self._problem, self._engine, self._report = problem, engine, report
        self._target_gap, self._max_iterations, self._begin = target_gap, max_iterations, begin
        self._sense = problem.solved.objective.rules.sense  # of the values that the engine computes
        # (B,) the best so far, in NumPy: torch's calls on a few numbers would take as long as small
        # iterations.
        self._value = np.full(problem.batch, -self._sense * math.inf)
        self._bound = engine.trivial_bound().numpy()
        # The gaps between them once they are computed; _keep, which changes them, forgets the gaps.
        self._known_gaps: FloatArray | None = None
        self._may_stall, self._sampled, self._model = may_stall, sampled, model
        self._is_refilled = (
            False  # whether the last check was one with refill, and nothing has moved since
        )
        self._history: list[
            tuple[int, float]
        ] = []  # iterations done and widest gap at the full gap checks
        if is_large is None:
            is_large = problem.paths.scan_size > LARGE_WORK and problem.demand.device.type == "cpu"
        self._stride = 1 if is_large else _ITERATIONS_PER_TEST

    @property
    def value(self) -> Tensor:
        """(B,) see the class."""
        return torch.from_numpy(self._value)

    @property
    def bound(self) -> Tensor:
        """(B,) see the class."""
        return torch.from_numpy(self._bound)

    def run(self, seconds: float, *, warm: bool) -> PdhgResult:
        """Alternate iterations and gap checks for so many seconds from the start at most."""
        return complete(self.solving(Deadline(self._begin + seconds), warm=warm))

    def solving(self, deadline: Deadline, *, warm: bool) -> Steps[PdhgResult]:
        """:meth:`run`, pausing after every few iterations."""
        return self._result(*(yield from self.iterating(deadline, warm=warm)))

    def iterating(self, deadline: Deadline, *, warm: bool) -> Steps[tuple[int, Stop]]:
        """:meth:`solving` without its result: the number of iterations, and what ended the
        search.
        """
        engine = self._engine
        done, next_check, last_check = 0, FIRST_CHECK, -1  # iterations; -1: no check has been made
        stop = Stop.ITERATIONS
        iteration_s, check_s = (
            0.0,
            0.0,
        )  # seconds of an iteration and of a check, 0 until they are timed
        ahead = 0  # iterations that count as done in the spacing of checks
        if warm:
            check_s, last_check, next_check = self._check(), 0, 1
            if not (self._is_refilled or self._is_done or self._is_beyond(_REFILLABLE_GAP_FACTOR)):
                self._check(LAST_REFILL)
            if self._max_iterations > 0 and self._start_from_model(
                deadline.left, check_s / _CHECK_COST
            ):
                ahead = _AHEAD_OF_MODEL
        refill = 0  # rounds in full gap checks between iterations
        if self._max_iterations > 0 and (not warm or self._is_beyond(_WARM_START_GAP_FACTOR)):
            sampled_check_s = yield from self._start_from_samples(deadline)
            if sampled_check_s:
                check_s, last_check, next_check, refill = (
                    sampled_check_s,
                    0,
                    self._after_samples(0),
                    LAST_REFILL,
                )
        while done < self._max_iterations and not self._is_done:
            left = deadline.left
            reserve = _LAST_CHECK_COST * (check_s or _CHECK_COST * iteration_s) + iteration_s
            if left <= reserve:
                stop = Stop.DEADLINE
                break
            count = max(1, min(self._stride, self._max_iterations - done, next_check - done))
            if iteration_s and math.isfinite(left):
                count = max(1, min(count, int((left - reserve) / iteration_s)))
            advance_begin = time.perf_counter()
            iteration_bound, self._is_refilled = engine.advance(count).numpy(), False
            iteration_s, done = (time.perf_counter() - advance_begin) / count, done + count
            bound = self._tighter(
                iteration_bound
            )  # true up to the rounding of float32, so only an indication
            if self._all_within(bound) and done < next_check:
                self._take_bound(engine.certify().numpy())
            elif done >= next_check or (
                not refill
                and done + ahead >= _CHECK_SPACING * (last_check + ahead)
                and self._is_promising(bound)
            ):
                check_s, last_check = self._check(refill), done
                if self._start_from_model(deadline.left - _LAST_CHECK_COST * check_s, iteration_s):
                    ahead = _AHEAD_OF_MODEL
                if self._report is not None:
                    self._report(done, float(self._best_gaps.max()))
                next_check = max(
                    last_check + 2, math.ceil(_CHECK_GROWTH * (last_check + ahead)) - ahead
                )
                if refill:
                    next_check = min(next_check, self._after_samples(last_check))
                if self._may_stall and self._has_stalled(done):
                    stop = Stop.STALLED
                    break
            yield
        if not self._is_done and not self._is_refilled:
            self._check(LAST_REFILL)
        return done, stop if self._unfinished().any() else Stop.GAP

    def _start_from_samples(self, deadline: Deadline) -> Steps[float]:
        """Respond to larger and larger samples, each also after a correction, until the gap is near
        the target.

        Returns the seconds of the last sample's gap check; 0 if there was no sample.
        """
        check_s = 0.0
        factor = (
            _SAMPLING_GAP_FACTOR if self._problem.utility is None else _FAIR_SAMPLING_GAP_FACTOR
        )
        while self._sampled is not None and self._is_beyond(factor):
            remaining = deadline.left - _LAST_CHECK_COST * check_s
            if remaining <= 0:
                break
            sample_end = Deadline(time.perf_counter() + _SAMPLE_TIME * remaining, deadline)
            if not (
                yield from self._sampled.respond(torch.from_numpy(self._unfinished()), sample_end)
            ):
                break
            self._is_refilled = False
            check_s = self._check(LAST_REFILL)
            is_late = _LAST_CHECK_COST * check_s >= deadline.left
            if not is_late and not self._is_done and self._sampled.correct():
                self._check(LAST_REFILL)
            yield
        return check_s

    def _start_from_model(self, seconds: float, iteration_s: float) -> bool:
        """Go on from the model where that saves time, after the first gap check alone; returns
        whether it did.

        Args:
            seconds: time that the model may take.
            iteration_s: time of an iteration.
        """
        model, self._model = self._model, None
        if model is None or self._is_done:
            return False
        gap = float(self._best_gaps.max())
        if not math.isfinite(gap):  # for want of range: nothing is foretold
            return False
        if model.cost(gap) * iteration_s > seconds or not model.saves_time(gap):
            return False
        model.start(gap)
        self._check(LAST_REFILL)
        return True

    def _after_samples(self, done: int) -> int:
        """Iterations at the next full gap check of a start from samples, whose bound is good and
        value is not.
        """
        widest = float(self._best_gaps.max())
        steps = _ITERATIONS_PER_GAP * widest / max(self._target_gap, 1e-300)
        return done + int(
            min(_MAX_ITERATIONS_TO_CHECK, max(_MIN_ITERATIONS_TO_CHECK, steps))
        )  # in this order NaN counts as few

    def _is_beyond(self, factor: float) -> bool:
        """Whether a gap is wider than ``factor`` times the target."""
        return not (self._best_gaps <= factor * self._target_gap).all()

    def _has_stalled(self, done: int) -> bool:
        """Whether the widest gap has not shrunk enough for the iterations that were done since."""
        widest = float(self._best_gaps.max())
        earlier = [gap for count, gap in self._history if count * _STALL_SPAN <= done]
        self._history.append((done, widest))
        return done >= _STALL_AFTER and bool(earlier) and widest > _STALL_GAP * earlier[-1]

    def _is_promising(self, bound: FloatArray) -> bool:
        """Whether a full gap check may reach the target: the value may have improved since the last
        check.
        """
        return bool((self._gaps(bound) <= _CHECK_WHEN_WITHIN * self._target_gap).all())

    def _tighter(self, bound: FloatArray) -> FloatArray:
        """(B,) the tighter of the best bound and ``bound``."""
        return np.minimum(self._bound, bound) if self._sense > 0 else np.maximum(self._bound, bound)

    def _is_above(self, first: FloatArray, second: FloatArray) -> BoolArray:
        """(B,) where ``first`` is the better value, or the wider bound."""
        return first > second if self._sense > 0 else first < second

    def _gaps(self, bound: FloatArray) -> FloatArray:
        """(B,) gaps between the best values and ``bound``; infinite before the first check.

        NaN where ``bound`` is NaN or infinite: callers test for gaps that are small enough, which
        NaN is not.
        """
        return np.where(
            np.isfinite(self._value), relative_gap(self._value, bound, self._sense), math.inf
        )

    @property
    def _best_gaps(self) -> FloatArray:
        """(B,) gaps between the best values and the best bounds, computed once for each of them."""
        if self._known_gaps is None:
            self._known_gaps = self._gaps(self._bound)
        return self._known_gaps

    @property
    def _is_done(self) -> bool:
        """Whether every matrix has the target gap."""
        return bool((self._best_gaps <= self._target_gap).all())

    def _all_within(self, bound: FloatArray) -> bool:
        """Whether every matrix has the target gap with ``bound``."""
        return bool((self._gaps(bound) <= self._target_gap).all())

    def _unfinished(self) -> BoolArray:
        """(B,) matrices that lack the target gap; the others keep their results."""
        return ~(self._best_gaps <= self._target_gap)

    def _take_bound(self, bound: FloatArray) -> None:
        """Take certified bounds (B,) where they are tighter, and the prices that they belong to."""
        self._keep(
            np.zeros(len(bound), np.bool_),
            self._unfinished() & self._is_above(self._bound, bound),
            bound,
        )

    def _keep(self, is_better: BoolArray, is_tighter: BoolArray, bound: FloatArray) -> None:
        """Keep the engine's allocations that are better, and bounds (B,) that are tighter with
        their prices.
        """
        self._bound = np.where(is_tighter, bound, self._bound)
        self._known_gaps = None
        self._engine.keep(torch.from_numpy(is_better), torch.from_numpy(is_tighter))

    def _check(self, refill: int = 0) -> float:
        """Make a full gap check and keep the better allocations and prices.  Returns the seconds
        that it took.

        Args:
            refill: see :data:`LAST_REFILL`.
        """
        # Where all demand is carried there is nothing to refill.
        begin, self._is_refilled = time.perf_counter(), refill == LAST_REFILL or self._sense < 0
        value, bound = (
            numbers.numpy() for numbers in self._engine.check(refill, 1 - self._target_gap)
        )
        unfinished = self._unfinished()
        is_better = unfinished & self._is_above(value, self._value)
        is_tighter = unfinished & self._is_above(self._bound, bound)
        self._value = np.where(is_better, value, self._value)
        self._keep(is_better, is_tighter, bound)
        return time.perf_counter() - begin

    def _result(self, iterations: int, stop: Stop) -> PdhgResult:
        problem, value, bound = self._problem.to(torch.float64), self.value, self.bound
        stopped_by = tuple(
            stop if unfinished else Stop.GAP for unfinished in self._unfinished().tolist()
        )
        splits, prices = self._engine.best()
        state = PdhgState(splits, prices)
        if problem.solved is not problem:
            bound, splits = from_score(problem, self._sense * bound), project(problem, splits)
            value = problem.value(splits).cpu()
        # Computed on the host, and moved together.
        found = torch.stack([value, bound, certified_gap(problem, value, bound)])
        value, bound, gap = found.to(splits.device).unbind()
        return PdhgResult(
            splits=splits,
            prices=prices,
            value=value,
            bound=bound,
            gap=gap,
            iterations=iterations,
            solve_s=time.perf_counter() - self._begin,
            state=state,
            stopped_by=stopped_by,
        )
