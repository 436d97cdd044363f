"""Service-time estimates of a network: expected and minimum time of an answer, length of a slice.

:class:`ServiceTimeEstimate` keeps an exponential moving average and a minimum for each kind of
task, for answers without iterations; admission control and the queue use them.
:class:`SolverTimes` compares searches with and without a model. Times are in seconds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from teal.solvers.pdhg import MAX_LANES
from teal_serve.engine.allocation_task import AllocationTask

# Minimum and maximum length of a time slice of the solver thread.
SLICE_S = 0.5
_MAX_SLICE_S = 60.0
# Weight of the newest measurement in the moving average.
_NEWEST_WEIGHT = 0.2
# Fixed part of the time of a batch, as a fraction of the time for one matrix, until it is measured;
# 0.4 on GEANT.
_DEFAULT_FIXED_SHARE = 0.4
# Below 1, so that more matrices always count as more work.
_MAX_FIXED_SHARE = 0.95
# Factor of the slice length after a normal slice, so that one slow iteration is forgotten.
_SLICE_DECAY = 0.7


# Seconds to encode a demand by name, until measured: 0.25 s for 20,000 on a virtual Xeon. Arrays
# are encoded faster.
_DEFAULT_WRITING_S = 1.2e-5
# Answers with fewer demands are not timed, since their fixed time dominates.
_MIN_TIMED_DEMANDS = 1_000


class ServiceTimeEstimate:
    """Estimated time of an answer without iterations (set-up, gap check, validation).

    Tasks of one kind (``AllocationTask.kind``) have a common estimate. With n matrices in batches
    of at most L, the time is t1 * (f * ceil(n / L) + (1 - f) * n): t1 seconds for one matrix, of
    which the fraction f is spent once for each batch.

    Attributes:
        slice_s: length of a time slice, seconds; longer if an iteration or gap check takes longer.
    """

    def __init__(self) -> None:
        self.slice_s = SLICE_S
        # Moving average and minimum of the seconds for one matrix (t1), by kind of task.
        self._mean_s: dict[tuple[Any, ...], float] = {}
        self._min_s: dict[tuple[Any, ...], float] = {}
        # Seconds for one matrix of a plain program, and fixed fraction of a batch (f).
        self._plain_program_s = 0.0
        self._fixed_share = _DEFAULT_FIXED_SHARE
        # Seconds to encode a demand, by whether it is written by name.
        self._writing_s = {True: _DEFAULT_WRITING_S, False: 0.0}

    def calibrate(self, task: AllocationTask, one_matrix_s: float, batch_s: float | None) -> None:
        """Set the estimate of a plain program, and the fixed fraction of a batch.

        Args:
            task: task without classes and conditions.
            one_matrix_s: seconds for one matrix.
            batch_s: seconds for a batch of MAX_LANES matrices; None if not measured.
        """
        self._plain_program_s = self._mean_s[task.kind] = self._min_s[task.kind] = one_matrix_s
        if batch_s is not None:
            # Seconds for one more matrix in a batch.
            marginal_s = (batch_s - one_matrix_s) / (MAX_LANES - 1)
            # One more matrix takes (1 - f) * t1, so that f = 1 - marginal time / t1.
            self._fixed_share = min(_MAX_FIXED_SHARE, max(0.0, 1 - marginal_s / one_matrix_s))

    def expected_s(self, num_matrices: int, task: AllocationTask) -> float:
        """Return the expected seconds for an answer, from the moving average.

        A kind that was not measured yet takes an assumed multiple of the plain program.

        Args:
            num_matrices: number of matrices of the answer.
            task: requested program.
        """
        return self._mean_s.get(
            task.kind, self._plain_program_s * task.default_relative_work
        ) * self._relative_work(num_matrices)

    def min_s(self, num_matrices: int, task: AllocationTask) -> float:
        """Return the minimum seconds for an answer, from the shortest measured time.

        It is 0 if the kind of task was not measured yet.

        Args:
            num_matrices: number of matrices of the answer.
            task: requested program.
        """
        return self._min_s.get(task.kind, 0.0) * self._relative_work(num_matrices)

    def _relative_work(self, num_matrices: int) -> float:
        """Return the work for n matrices, as a multiple of the work for one.

        It is f * ceil(n / MAX_LANES) + (1 - f) * n, with the fraction f of the work for one matrix
        that is done once for each batch.
        """
        # -(-n // L) is ceil(n / L), the number of batches.
        return (
            self._fixed_share * -(-num_matrices // MAX_LANES)
            + (1 - self._fixed_share) * num_matrices
        )

    def record(self, num_matrices: int, task: AllocationTask, seconds: float) -> None:
        """Update moving average and minimum by the time of an answer without iterations.

        Args:
            num_matrices: number of matrices of the answer.
            task: requested program.
            seconds: seconds for all matrices.
        """
        seconds_per_matrix = seconds / self._relative_work(num_matrices)
        mean_s = self.expected_s(1, task)
        self._mean_s[task.kind] = mean_s + _NEWEST_WEIGHT * (seconds_per_matrix - mean_s)
        self._min_s[task.kind] = min(
            seconds_per_matrix, self._min_s.get(task.kind, seconds_per_matrix)
        )

    def record_overrun(self, seconds: float, slice_s: float) -> None:
        """Lengthen slices to the longest iteration or check; shorten them slowly afterwards.

        Args:
            seconds: seconds that the solver took for a slice.
            slice_s: allowed length of that slice, seconds.
        """
        # A slice that overruns contained an iteration or gap check, which cannot be interrupted.
        uninterruptible_s = seconds if seconds > slice_s else 0.0
        self.slice_s = min(
            _MAX_SLICE_S, max(SLICE_S, _SLICE_DECAY * self.slice_s, uninterruptible_s)
        )

    def writing_s(self, num_demands: int, is_named: bool) -> float:
        """Return the expected seconds to encode an answer.

        Args:
            num_demands: number of demands in the answer.
            is_named: whether they are written by name instead of as arrays.
        """
        return self._writing_s[is_named] * num_demands

    def record_writing(self, num_demands: int, is_named: bool, seconds: float) -> None:
        """Update the moving average of the encoding time; small answers are ignored.

        Args:
            num_demands: number of demands in the answer.
            is_named: whether they were written by name instead of as arrays.
            seconds: seconds to encode the answer.
        """
        mean_s = self._writing_s[is_named]
        if num_demands >= _MIN_TIMED_DEMANDS:
            self._writing_s[is_named] = mean_s + _NEWEST_WEIGHT * (seconds / num_demands - mean_s)


# Weight of the newest time of an alternative; large, since the slower one is measured rarely.
_NEWEST_SOLVER_WEIGHT = 0.5
# The slower alternative is measured again once in this number of requests of a kind.
_RETRY_SLOWER_EVERY = 32


class SolverTimes:
    """Choice between searches with and without a model, by measured seconds per matrix.

    Whether a model saves time depends on network, model and machine. Both alternatives are measured
    on requests: each once, then the faster one, and the slower one again at intervals.
    """

    def __init__(self) -> None:
        # Moving average of the seconds per matrix, by kind of search and use of the model.
        self._mean_s: dict[tuple[SearchKind, bool], float] = {}
        self._num_requests: dict[SearchKind, int] = {}

    def prefer_model(self, kind: SearchKind) -> bool:
        """Return whether to use the model for the next search of a kind.

        Until both alternatives are measured, the next search uses one without a measurement, the
        model first. Then it uses the faster one, except at every 32nd request.
        """
        # Mean seconds per matrix of both alternatives; None if not measured yet.
        with_model_s, without_model_s = (
            self._mean_s.get((kind, has_model)) for has_model in (True, False)
        )
        if with_model_s is None or without_model_s is None:
            return with_model_s is None
        self._num_requests[kind] = self._num_requests.get(kind, 0) + 1
        # "!=" swaps the choice if the slower alternative is measured again.
        return (with_model_s < without_model_s) != (
            self._num_requests[kind] % _RETRY_SLOWER_EVERY == 0
        )

    def record(self, kind: SearchKind, has_model: bool, seconds: float) -> None:
        """Update the moving average of the seconds per matrix.

        Args:
            kind: kind of a search that reached its gap.
            has_model: whether the search used the model.
            seconds: seconds per matrix.
        """
        mean_s = self._mean_s.get((kind, has_model), seconds)
        change_s = _NEWEST_SOLVER_WEIGHT * (seconds - mean_s)
        self._mean_s[kind, has_model] = mean_s + change_s


class SearchKind(NamedTuple):
    """Key of searches that take similar time on a network.

    Attributes:
        objective: objective of the matrices.
        task_kind: kind of the task (``AllocationTask.kind``): classes, conditions, solver.
        gap_decade: rounded decimal logarithm of the requested gap.
        is_warm: whether the search is warm-started.
    """

    objective: str
    task_kind: tuple[Any, ...]
    gap_decade: int
    is_warm: bool

    @classmethod
    def of(cls, task: AllocationTask, gap: float, *, is_warm: bool) -> SearchKind:
        """Return the kind of a search.

        Args:
            task: requested program.
            gap: target of the certified gap.
            is_warm: whether the search is warm-started.
        """
        # Gaps below 1e-12 count as 1e-12.
        gap_decade = round(math.log10(max(gap, 1e-12)))
        return cls(task.objective, task.kind, gap_decade, is_warm)
