"""One scheme through the cases of an evaluation: warm-up, timing, time limit, failures, the online timeline."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from teal.errors import InputError, SolverError
from teal.evaluation.cases import Case, Protocol
from teal.evaluation.comparison import SchemeResult
from teal.evaluation.online import LazyAllocation, Timeline, carried_over
from teal.evaluation.rows import LEFT_OUT, Row, failed_allocation, gap_of, weighted_mean
from teal.problem import Allocation, Assessment, Problem, Status, assess
from teal.proofs.write import proved_gap, write_proof
from teal.runtime.kernel_cache import num_compiled
from teal.schemes import Follower, Scheme
from teal.solvers.cut_only import CutOnly, cut_only
from teal.solvers.result import Starter

# Seconds: a first solve that took longer is kept as the result instead of being repeated, even if kernels were compiled
# in it; and one that took longer than the second number if none was, such as that of a linear program.
MAX_WARM_UP_S, _MAX_UNCOMPILED_S = 60.0, 1.0

Before = Callable[[Case], Problem | None]  # the problem of the interval before a case


@dataclasses.dataclass(eq=False)
class SchemeRunner:
    """Runs one scheme.

    Attributes:
        name: of the scheme, in rows and messages.
        scheme: what is run.
        before: gives the problem of the interval before, for schemes that start from it.
        notify: called with each failure.
        where: name of the network, for messages.
        time_limit: seconds for one matrix; a scheme that takes longer is not run any more.
        interval_s: seconds of an interval of the online protocol; 0 without it.
        is_proving: whether every allocation is proved in whole numbers.
        excluded: why the scheme is not run any more; ``""`` while it is run.
    """

    name: str
    scheme: Scheme
    before: Before
    notify: Callable[[str], None]
    where: str
    time_limit: float = math.inf
    interval_s: float = 0.0
    is_proving: bool = False
    excluded: str = ""

    def __post_init__(self) -> None:
        self._timeline = Timeline(self.interval_s)
        self._busy_s = 0.0  # wall-clock seconds of the last call
        self._warm_up_result: Allocation | None = None  # of a warm-up that is not repeated

    def warm_up(self, problem: Problem, case: Case, *, has_worked: bool) -> InputError | None:
        """Solve a case without counting it, so that compilation and caches are not timed.

        Where nothing was compiled, a solve that took long is kept: it is the result of the first case.

        A scheme that fails here is excluded, unless it ``has_worked`` in an earlier part of the run.

        Returns:
            the error if it is the user's.
        """
        compiled = num_compiled()
        try:
            allocation = self._solve(problem, case)
        except Exception as error:
            if has_worked:
                return None
            self._exclude(one_line(error))
            return error if isinstance(error, InputError) else None
        longest = MAX_WARM_UP_S if num_compiled() > compiled else _MAX_UNCOMPILED_S
        if self._busy_s > longest:
            self._warm_up_result = allocation
        return None

    def run(self, problem: Problem, case: Case) -> SchemeResult:
        """Solve a case; a failure, by whatever exception, becomes the note of the result."""
        note = self.excluded
        if not note:
            try:
                allocation = self._warm_up_result or self._solve(problem, case)
                self._warm_up_result = None
                assessment = assess(problem, allocation)
                note, proved_gap = self._prove(problem, allocation, assessment)
                return SchemeResult(
                    allocation, assessment, note, wall_s=self._busy_s,
                    model_alone=_model_alone(problem, self.scheme), proved_gap=proved_gap,
                )  # fmt: skip
            except Exception as error:
                note = one_line(error)
                self.notify(f"{self.name} on {self.where}, matrix {case.index}: {note}")
        failed = failed_allocation(problem)
        return SchemeResult(failed, assess(problem, failed), note)

    def _prove(self, problem: Problem, allocation: Allocation, assessment: Assessment) -> tuple[str, float]:
        """Why there is no proof, "" where there is one or none was asked for, and the gap that it shows."""
        if not self.is_proving or not assessment.status[0].usable:
            return "", math.nan
        try:
            with tempfile.TemporaryDirectory() as folder:
                return "", proved_gap(write_proof(Path(folder), problem, allocation))
        except Exception as error:  # the allocation counts all the same
            return f"not proved: {one_line(error)}", math.nan

    def check_time_limit(self, row: Row) -> None:
        """Exclude the scheme if its last case took longer than the limit."""
        spent_s = max(row.total_s if row.usable else 0.0, self._busy_s)
        self._busy_s = 0.0
        if spent_s > self.time_limit and not self.excluded:
            self._exclude(f"{LEFT_OUT} after {spent_s:.0f} s for one matrix")

    def _exclude(self, reason: str) -> None:
        self.notify(f"{self.name} on {self.where}: {reason}")
        self.excluded = reason

    def _solve(self, problem: Problem, case: Case) -> Allocation:
        if isinstance(self.scheme, Follower):
            self.scheme.follow(self.before(case))
        # Properties that all schemes use and that are computed once: not part of any scheme's time.
        _ = problem.path_mask, problem.path_value, problem.inverse_capacity
        begin = time.perf_counter()
        try:
            allocation = self.scheme.solve(problem)
            if allocation.splits.is_cuda:
                torch.cuda.synchronize(allocation.splits.device)
        finally:
            self._busy_s = time.perf_counter() - begin
        return dataclasses.replace(
            allocation,
            build_s=(float(allocation.build_s[0]),),
            solve_s=(float(allocation.solve_s[0]),),
            parallel_s=tuple(None if s is None else float(s) for s in allocation.parallel_s),
        )

    def replay(self, problem: Problem, case: Case, row: Row) -> None:
        """Take a case that an earlier part of the run measured into the online timeline."""
        lazy = LazyAllocation(lambda: self._solve(problem, case), problem.demand)
        self._timeline.step(lazy, row.total_s if row.usable else math.nan)

    def online_row(self, problem: Problem, row: Row, result: SchemeResult, *, was_excluded: bool) -> Row:
        """The row of the online protocol for the interval of ``row``.

        Args:
            problem: of the matrix.
            row: of the offline protocol.
            result: of the scheme for this matrix.
            was_excluded: whether the scheme was not run for this matrix: then no allocation of it stays installed.
        """
        lazy = LazyAllocation(lambda: result.allocation, problem.demand)
        pieces = self._timeline.step(lazy, row.total_s if row.usable else math.nan)
        row = dataclasses.replace(row, protocol=Protocol.ONLINE.value, level=f"{self.interval_s:g}s")
        if was_excluded or not pieces:
            return row
        try:
            parts = [assess(problem, carried_over(problem, piece.installed)) for piece in pieces]
        except Exception as error:  # an allocation of an earlier part of the run is computed again, and may fail
            unknown = dict.fromkeys(("value", "satisfied_demand", "bound", "gap", "gap_known"), math.nan)
            return dataclasses.replace(row, status=Status.FAILED.value, note=one_line(error), **unknown)  # type: ignore[arg-type]
        shares: Sequence[float] = [piece.share for piece in pieces]
        value = weighted_mean(shares, [part.value for part in parts])
        best_bound = row.value / (1 - row.gap_known) if row.gap_known < 1 else math.nan
        return dataclasses.replace(
            row,
            value=value,
            satisfied_demand=weighted_mean(shares, [part.satisfied_demand for part in parts]),
            gap=gap_of(problem, value, row.bound),
            gap_known=gap_of(problem, value, best_bound),
            max_link_utilisation=max(float(part.max_link_utilisation[0]) for part in parts),
            max_violation=max(float(part.max_violation[0]) for part in parts),
            cut_demand=math.nan,
            cut_gap=math.nan,
            proved_gap=math.nan,
            least_share=math.nan,
            status=Status.FEASIBLE.value if all(part.status[0].usable for part in parts) else row.status,
        )


def _model_alone(problem: Problem, scheme: Scheme) -> CutOnly | None:
    """Figures of a scheme's model without any repair, not timed; None where there is no such model.

    A scheme of somebody else may have a method of this name that means something else.
    """
    if not isinstance(scheme, Starter):
        return None
    try:
        return cut_only(problem, *scheme.start(problem))
    except Exception:
        return None


def one_line(error: Exception) -> str:
    """An error as one line of text, with its type unless it is Teal's own."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError | SolverError) else f"{type(error).__name__}: {text}"
