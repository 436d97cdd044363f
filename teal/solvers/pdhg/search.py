"""Search with one engine: alternate iterations and gap checks until a stopping criterion holds.

:class:`Search` keeps the incumbent of each matrix, the best feasible value and the best dual bound,
and stops at a target gap, a deadline, an iteration limit or a stall.  It schedules the checks,
whose cost is a few iterations, and starts from sampled demands or from a model where that saves
time.
"""

from __future__ import annotations

import dataclasses
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
from teal.solvers.result import ProgressCallback, SolveResult, SolveState, Stop

# Iterations: latest first full gap check; easy programs need no more.
FIRST_CHECK = 6
# Latest next full gap check, as a multiple of the iterations at the last one: keeps checks rare.
_MAX_CHECK_GROWTH = 2.0
# Earliest next full gap check, as a multiple of the same: a check costs 2 iterations.
_MIN_CHECK_GROWTH = 1.25
# Multiple of the target gap: check early where the newest bound and the last value are this close.
_EARLY_CHECK_GAP_FACTOR = 1.6
# Iterations that a start from a model counts for in the schedule of checks: its gap is near the
# target, and a check takes as long as 5 iterations.
_MODEL_ITERATIONS = 24
# Trie nodes and path slots of one matrix above which a CPU iteration takes longer than a test of
# its bound.
LARGE_WORK = 500_000
# Iterations between two tests of the bound on GPUs, and on a CPU up to LARGE_WORK, where a test
# costs as much as these.
_ITERATIONS_PER_TEST = 4
# Iterations: cost of a full gap check, assumed until the first one has been timed.
_CHECK_COST = 2.0
# Full gap checks: cost of the last check, which also runs LAST_REFILL rounds.
_LAST_CHECK_COST = 3.0
# Rounds that allocate unused capacity to unserved demand, in the last check only: in every check
# they take longer than the iterations that they save.
LAST_REFILL = 3
# Multiple of the target gap up to which refill alone may bring a warm start to the target.
_REFILLABLE_GAP_FACTOR = 2.0
# Multiple of the target gap above which sampled demands replace a warm start.
_WARM_START_GAP_FACTOR = 3.0
# After samples, iterations to the next full gap check for each multiple of the target gap.  A check
# with refill costs 7 iterations on Kdl, and without it the value lags 10 iterations behind.
_ITERATIONS_PER_GAP = 6
_MIN_ITERATIONS_TO_CHECK = 4
_MAX_ITERATIONS_TO_CHECK = 24
# Multiple of the target gap below which iterations take less time than a larger sample.
_SAMPLING_GAP_FACTOR = 3.5
# The same under a utility, whose programs take more iterations: on Kdl at load 20, 181 or 52.
_FAIR_SAMPLING_GAP_FACTOR = 1.0
_SAMPLE_TIME_SHARE = 0.3  # limit of the sample's solve time, as a share of the remaining time
# A search has stalled if, after at least _MIN_STALL_ITERATIONS iterations, a _STALL_SPAN-fold
# increase of their number has left the widest gap above _STALL_GAP_RATIO times its earlier value;
# even PDHG's worst case is proportional to 1 / iterations.
_MIN_STALL_ITERATIONS = 300
_STALL_SPAN = 4.0
_STALL_GAP_RATIO = 0.7


class SampledStartProtocol(Protocol):
    """Restart of an engine at the splits with which all demands respond to a sample's prices.

    Implemented by :class:`teal.solvers.pdhg.samples.start.SampledStart`.
    """

    def respond(self, unfinished: Tensor, deadline: Deadline) -> Steps[bool]:
        """Solve the next sample, and restart the engine at the response to its prices.

        Args:
            unfinished: (B,) whether a matrix is above the target gap.
            deadline: time limit of the sample.

        Returns:
            Whether there was another sample.
        """
        ...

    def correct(self) -> bool:
        """Restart the engine at the response to the last sample's prices after a Newton step.

        Returns:
            Whether the prices could be corrected.
        """
        ...


class ModelStartProtocol(Protocol):
    """Restart of an engine at a model's splits and prices.

    Implemented by :class:`teal.solvers.pdhg.model_start.ModelStart`.  The argument ``gap`` is the
    gap of the first gap check.
    """

    def cost(self, gap: float) -> float:
        """Return the number of iterations that take as long as the model."""
        ...

    def saves_time(self, gap: float) -> bool:
        """Whether the model takes less time than the iterations that it saves."""
        ...

    def start(self, gap: float) -> None:
        """Start the engine at the splits and prices of the model."""
        ...


@dataclasses.dataclass
class _CheckSchedule:
    """Schedule of the full gap checks of a search.

    Attributes:
        next_check_iteration: iterations at the latest next check.
        last_check_iteration: iterations at the last check; -1 before the first.
        model_iterations: iterations that the start from a model counts for; 0 without one.
        refill_rounds: rounds in each check that allocate unused capacity to unserved demand; above
            0 after a start from samples, whose bound is tight and value is not.
        check_s: seconds of the last check; 0 before the first.
        iteration_s: seconds of an iteration; 0 before the first.
    """

    next_check_iteration: int = FIRST_CHECK
    last_check_iteration: int = -1
    model_iterations: int = 0
    refill_rounds: int = 0
    check_s: float = 0.0
    iteration_s: float = 0.0

    def is_due(self, num_iterations: int) -> bool:
        """Whether the next check is due after ``num_iterations``."""
        return num_iterations >= self.next_check_iteration

    def may_be_early(self, num_iterations: int) -> bool:
        """Whether a check after ``num_iterations`` may come before the next one is due."""
        earliest = _MIN_CHECK_GROWTH * (self.last_check_iteration + self.model_iterations)
        return not self.refill_rounds and num_iterations + self.model_iterations >= earliest

    def latest_next_check(self) -> int:
        """Return the number of iterations at which the next check is due at the latest."""
        # A multiple of the iterations at the last check, with those that a model counts for.
        latest = (
            math.ceil(_MAX_CHECK_GROWTH * (self.last_check_iteration + self.model_iterations))
            - self.model_iterations
        )
        return max(self.last_check_iteration + 2, latest)


class Search:
    """Driver of one engine to the target gap; keeps the incumbent.

    Args:
        problem: the matrices, as many as the engine solves at once.
        engine: engine at its starting point.
        target_gap: gap at which the search stops.
        max_iterations: iteration limit.
        report: progress callback, called with iterations and widest gap after each full gap check;
            None for no calls.
        begin: ``time.perf_counter()`` at the start of the solve, for the reported solve time.
        may_stall: whether to stop where the gap no longer shrinks.
        sampled: starts of the engine from sampled demands; None where iterations take less time.
        model: start from a model, used after the first gap check where it saves time; None for no
            model.
        is_large: whether an iteration takes longer than a test of its bound; None decides by the
            paths of ``problem``.

    Attributes:
        value: (B,) incumbent value, float64; for a min-max program the largest utilisation.
        bound: (B,) incumbent bound, in the same unit.
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
        sampled: SampledStartProtocol | None = None,
        model: ModelStartProtocol | None = None,
        is_large: bool | None = None,
    ) -> None:
        self._problem = problem
        self._engine = engine
        self._report = report
        self._target_gap = target_gap
        self._max_iterations = max_iterations
        self._begin = begin
        # Sense (1 or -1) of the values that the engine computes.
        self._sense = problem.solved.objective.rules.sense
        # (B,) incumbent values and bounds in NumPy: torch's calls on a few numbers would take as
        # long as small iterations.
        self._value = np.full(problem.batch, -self._sense * math.inf)
        self._bound = engine.trivial_bound().numpy()
        # (B,) gaps between incumbent values and bounds; _update_incumbent invalidates this cache.
        self._cached_gaps: FloatArray | None = None
        self._may_stall = may_stall
        self._sampled = sampled
        self._model = model
        # Whether the last check allocated unused capacity to unserved demand (refill), and the
        # engine has not moved since.
        self._is_refilled = False
        # Iterations and widest gap at each full gap check.
        self._history: list[tuple[int, float]] = []
        if is_large is None:
            is_large = problem.paths.scan_size > LARGE_WORK and problem.demand.device.type == "cpu"
        self._iterations_per_test = 1 if is_large else _ITERATIONS_PER_TEST

    @property
    def value(self) -> Tensor:
        """Incumbent values (B,), float64; for a min-max program the largest utilisation."""
        return torch.from_numpy(self._value)

    @property
    def bound(self) -> Tensor:
        """Incumbent dual bounds (B,), in the unit of the values."""
        return torch.from_numpy(self._bound)

    def run(self, seconds: float, *, warm: bool) -> SolveResult:
        """Alternate iterations and gap checks for at most ``seconds`` from the start of the solve.

        Args:
            seconds: time limit.
            warm: whether the engine starts from an earlier allocation.
        """
        return complete(self.run_steps(Deadline(self._begin + seconds), warm=warm))

    def run_steps(self, deadline: Deadline, *, warm: bool) -> Steps[SolveResult]:
        """Alternate iterations and gap checks; a computation that pauses after every few
        iterations.

        Args:
            deadline: deadline of the search.
            warm: whether the engine starts from an earlier allocation.
        """
        return self._result(*(yield from self.iterate(deadline, warm=warm)))

    def iterate(self, deadline: Deadline, *, warm: bool) -> Steps[tuple[int, Stop]]:
        """Iterate until a stopping criterion holds, pausing after every few iterations.

        Args:
            deadline: deadline of the search.
            warm: whether the engine starts from an earlier allocation, which is checked first.

        Returns:
            Number of iterations, and reason for the stop.
        """
        engine = self._engine
        schedule = _CheckSchedule()
        num_iterations = 0
        stop_reason = Stop.ITERATIONS
        if warm:
            self._check_warm_start(schedule, deadline)
        # Sampled demands replace a cold start and a poor warm start.
        if self._max_iterations > 0 and (not warm or self._exceeds_target(_WARM_START_GAP_FACTOR)):
            sampled_check_s = yield from self._start_from_samples(deadline)
            # The gap check of a sample counts as the check after 0 iterations.
            if sampled_check_s:
                schedule.check_s = sampled_check_s
                schedule.last_check_iteration = 0
                schedule.next_check_iteration = self._check_after_samples(0)
                schedule.refill_rounds = LAST_REFILL
        while num_iterations < self._max_iterations and not self._is_done:
            iterations_to_test = self._iterations_to_next_test(
                num_iterations, schedule, deadline.remaining_s
            )
            if not iterations_to_test:
                stop_reason = Stop.DEADLINE
                break
            # Iterate, up to the next test of the bound.
            advance_begin = time.perf_counter()
            iteration_bound = engine.advance(iterations_to_test).numpy()
            self._is_refilled = False
            schedule.iteration_s = (time.perf_counter() - advance_begin) / iterations_to_test
            num_iterations = num_iterations + iterations_to_test
            # Check when due, early if promising, or certify the bound if it reaches the target.
            # The engine's bound ignores rounding of float32, so it only triggers checks.
            newest_bound = self._tighter_bound(iteration_bound)
            if (
                self._reaches_target(newest_bound)
                and num_iterations < schedule.next_check_iteration
            ):
                self._update_bound(engine.certify().numpy())
            elif schedule.is_due(num_iterations) or (
                schedule.may_be_early(num_iterations) and self._is_promising(newest_bound)
            ):
                self._check_by_schedule(num_iterations, schedule, deadline)
                if self._may_stall and self._has_stalled(num_iterations):
                    stop_reason = Stop.STALLED
                    break
            yield
        # Last check, which also allocates unused capacity to unserved demand.
        if not self._is_done and not self._is_refilled:
            self._check(LAST_REFILL)
        return num_iterations, stop_reason if self._unfinished().any() else Stop.GAP

    def _check_warm_start(self, schedule: _CheckSchedule, deadline: Deadline) -> None:
        """Run the gap checks of a warm start, before the first iteration.

        If the gap is near the target, a second check allocates unused capacity to unserved demand.
        If it is still above the target, the engine restarts from a model where that saves time.

        Args:
            schedule: schedule of the checks (updated).
            deadline: deadline of the search.
        """
        schedule.check_s = self._check()
        schedule.last_check_iteration = 0
        schedule.next_check_iteration = 1
        if not (self._is_refilled or self._is_done or self._exceeds_target(_REFILLABLE_GAP_FACTOR)):
            self._check(LAST_REFILL)
        iteration_s = schedule.check_s / _CHECK_COST
        if self._max_iterations > 0 and self._start_from_model(deadline.remaining_s, iteration_s):
            schedule.model_iterations = _MODEL_ITERATIONS

    def _iterations_to_next_test(
        self, num_iterations: int, schedule: _CheckSchedule, remaining_s: float
    ) -> int:
        """Return the number of iterations to the next test of the bound; 0 if none ends in time."""
        # Reserve the time of the last check.
        iteration_s = schedule.iteration_s
        check_s = schedule.check_s or _CHECK_COST * iteration_s
        reserve_s = _LAST_CHECK_COST * check_s + iteration_s
        if remaining_s <= reserve_s:
            return 0
        # Up to the next test of the bound, the iteration limit and the next check.
        iterations_to_test = min(
            self._iterations_per_test,
            self._max_iterations - num_iterations,
            schedule.next_check_iteration - num_iterations,
        )
        # No more than the remaining time permits, by the time of the last iterations.
        if iteration_s and math.isfinite(remaining_s):
            iterations_to_test = min(
                iterations_to_test, int((remaining_s - reserve_s) / iteration_s)
            )
        return max(1, iterations_to_test)

    def _check_by_schedule(
        self, num_iterations: int, schedule: _CheckSchedule, deadline: Deadline
    ) -> None:
        """Run a full gap check, restart from a model where that saves time, and schedule the next
        check.

        Args:
            num_iterations: iterations so far.
            schedule: schedule of the checks (updated).
            deadline: deadline of the search.
        """
        schedule.check_s = self._check(schedule.refill_rounds)
        schedule.last_check_iteration = num_iterations
        # Time for the model, after the last check has its reserve.
        max_model_s = deadline.remaining_s - _LAST_CHECK_COST * schedule.check_s
        if self._start_from_model(max_model_s, schedule.iteration_s):
            schedule.model_iterations = _MODEL_ITERATIONS
        if self._report is not None:
            self._report(num_iterations, float(self._incumbent_gaps.max()))
        # After a start from samples the next check may be due earlier.
        schedule.next_check_iteration = schedule.latest_next_check()
        if schedule.refill_rounds:
            schedule.next_check_iteration = min(
                schedule.next_check_iteration, self._check_after_samples(num_iterations)
            )

    def _start_from_samples(self, deadline: Deadline) -> Steps[float]:
        """Start from growing samples of the demands until the gap is near the target.

        Each sample is solved, all demands respond to its prices, and a second response follows
        after one Newton step on the prices.

        Returns:
            Seconds of the last sample's gap check; 0 without a sample.
        """
        check_s = 0.0
        near_gap_factor = (
            _SAMPLING_GAP_FACTOR if self._problem.utility is None else _FAIR_SAMPLING_GAP_FACTOR
        )
        while self._sampled is not None and self._exceeds_target(near_gap_factor):
            remaining_time_s = deadline.remaining_s - _LAST_CHECK_COST * check_s
            if remaining_time_s <= 0:
                break
            # Solve a sample in a share of the remaining time, and respond to its prices.
            sample_deadline = Deadline(
                time.perf_counter() + _SAMPLE_TIME_SHARE * remaining_time_s, deadline
            )
            if not (
                yield from self._sampled.respond(
                    torch.from_numpy(self._unfinished()), sample_deadline
                )
            ):
                break
            self._is_refilled = False
            check_s = self._check(LAST_REFILL)
            # A second response, after a Newton step on the prices, if its check ends in time.
            is_out_of_time = _LAST_CHECK_COST * check_s >= deadline.remaining_s
            if not is_out_of_time and not self._is_done and self._sampled.correct():
                self._check(LAST_REFILL)
            yield
        return check_s

    def _start_from_model(self, max_model_s: float, iteration_s: float) -> bool:
        """Restart from the model where that saves time; later calls do nothing.

        Args:
            max_model_s: time limit of the model.
            iteration_s: seconds of an iteration.

        Returns:
            Whether the engine restarted.
        """
        model = self._model
        self._model = None
        if model is None or self._is_done:
            return False
        gap = float(self._incumbent_gaps.max())
        # An infinite gap predicts no number of iterations.
        if not math.isfinite(gap):
            return False
        # The model would take too long, or longer than the iterations that it saves.
        if model.cost(gap) * iteration_s > max_model_s or not model.saves_time(gap):
            return False
        model.start(gap)
        self._check(LAST_REFILL)
        return True

    def _check_after_samples(self, num_iterations: int) -> int:
        """Return the iteration of the next full gap check after a start from samples.

        Proportional to gap over target gap, since the bound is tight and the value improves with
        the iterations.
        """
        max_gap = float(self._incumbent_gaps.max())
        extra_iterations = _ITERATIONS_PER_GAP * max_gap / max(self._target_gap, 1e-300)
        # In this order NaN gives the minimum.
        return num_iterations + int(
            min(_MAX_ITERATIONS_TO_CHECK, max(_MIN_ITERATIONS_TO_CHECK, extra_iterations))
        )

    def _exceeds_target(self, factor: float) -> bool:
        """Whether the gap of some matrix exceeds ``factor`` times the target gap."""
        return not (self._incumbent_gaps <= factor * self._target_gap).all()

    def _has_stalled(self, num_iterations: int) -> bool:
        """Whether the search has stalled.

        True if a ``_STALL_SPAN``-fold increase of the iterations has left the widest gap above
        ``_STALL_GAP_RATIO`` times its earlier value.  Records this check in the history.
        """
        max_gap = float(self._incumbent_gaps.max())
        # Gaps of the checks at no more than 1 / _STALL_SPAN of the present iterations.
        earlier_gaps = [
            gap
            for earlier_iterations, gap in self._history
            if earlier_iterations * _STALL_SPAN <= num_iterations
        ]
        self._history.append((num_iterations, max_gap))
        return (
            num_iterations >= _MIN_STALL_ITERATIONS
            and bool(earlier_gaps)
            and max_gap > _STALL_GAP_RATIO * earlier_gaps[-1]
        )

    def _is_promising(self, bound: FloatArray) -> bool:
        """Whether the incumbent values are within 1.6 target gaps of ``bound`` (B,), so that a full
        gap check may reach the target.
        """
        return bool((self._gaps(bound) <= _EARLY_CHECK_GAP_FACTOR * self._target_gap).all())

    def _tighter_bound(self, bound: FloatArray) -> FloatArray:
        """Return (B,) the tighter of the incumbent bound and ``bound``."""
        return np.minimum(self._bound, bound) if self._sense > 0 else np.maximum(self._bound, bound)

    def _is_greater(self, first: FloatArray, second: FloatArray) -> BoolArray:
        """Return (B,) whether ``first`` is greater in the sense of the objective: a better value,
        or a looser bound.
        """
        return first > second if self._sense > 0 else first < second

    def _gaps(self, bound: FloatArray) -> FloatArray:
        """Return (B,) gaps between the incumbent values and ``bound``; infinite before the first
        check.

        NaN where ``bound`` is NaN or infinite: callers compare with ``<=``, which is false for NaN.
        """
        return np.where(
            np.isfinite(self._value), relative_gap(self._value, bound, self._sense), math.inf
        )

    @property
    def _incumbent_gaps(self) -> FloatArray:
        """Gaps (B,) between incumbent values and bounds; computed once per incumbent."""
        if self._cached_gaps is None:
            self._cached_gaps = self._gaps(self._bound)
        return self._cached_gaps

    @property
    def _is_done(self) -> bool:
        """Whether the incumbents of all matrices reach the target gap."""
        return bool((self._incumbent_gaps <= self._target_gap).all())

    def _reaches_target(self, bound: FloatArray) -> bool:
        """Whether every matrix reaches the target gap with the dual bounds ``bound`` (B,)."""
        return bool((self._gaps(bound) <= self._target_gap).all())

    def _unfinished(self) -> BoolArray:
        """Return (B,) whether a matrix is above the target gap; the others keep their results."""
        return ~(self._incumbent_gaps <= self._target_gap)

    def _update_bound(self, bound: FloatArray) -> None:
        """Replace incumbent bounds (B,) and their prices where the certified ``bound`` is
        tighter.
        """
        self._update_incumbent(
            np.zeros(len(bound), np.bool_),
            self._unfinished() & self._is_greater(self._bound, bound),
            bound,
        )

    def _update_incumbent(
        self, is_better: BoolArray, is_tighter: BoolArray, bound: FloatArray
    ) -> None:
        """Store better allocations, and tighter bounds with their prices.

        Args:
            is_better: (B,) matrices whose last checked allocation replaces the incumbent's.
            is_tighter: (B,) matrices whose bound and prices are replaced.
            bound: (B,) new bounds.
        """
        self._bound = np.where(is_tighter, bound, self._bound)
        self._cached_gaps = None
        self._engine.keep(torch.from_numpy(is_better), torch.from_numpy(is_tighter))

    def _check(self, refill: int = 0) -> float:
        """Run a full gap check and update the incumbent; return its seconds.

        Args:
            refill: rounds that allocate unused capacity to unserved demand.
        """
        begin = time.perf_counter()
        # A min-max program (sense -1) has no unserved demand.
        self._is_refilled = refill == LAST_REFILL or self._sense < 0
        # The refill rounds end early where value / bound reaches 1 - target gap.
        value, bound = (
            tensor.numpy() for tensor in self._engine.check(refill, 1 - self._target_gap)
        )
        unfinished = self._unfinished()
        is_better = unfinished & self._is_greater(value, self._value)
        is_tighter = unfinished & self._is_greater(self._bound, bound)
        self._value = np.where(is_better, value, self._value)
        self._update_incumbent(is_better, is_tighter, bound)
        return time.perf_counter() - begin

    def _result(self, iterations: int, stop: Stop) -> SolveResult:
        """Create the result from the incumbent.

        Under max_concurrent_flow, which is solved as max_link_utilisation, project the splits and
        convert the bound.
        """
        problem = self._problem.to(torch.float64)
        value = self.value
        bound = self.bound
        stopped_by = tuple(
            stop if unfinished else Stop.GAP for unfinished in self._unfinished().tolist()
        )
        splits, prices = self._engine.incumbent()
        state = SolveState(splits, prices)
        # Under max_concurrent_flow: project the splits, and convert the bound.
        if problem.solved is not problem:
            bound = from_score(problem, self._sense * bound)
            splits = project(problem, splits)
            value = problem.value(splits).cpu()
        # Computed on the host, and moved to the device in one copy.
        stacked_results = torch.stack([value, bound, certified_gap(problem, value, bound)])
        value, bound, gap = stacked_results.to(splits.device).unbind()
        return SolveResult(
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
