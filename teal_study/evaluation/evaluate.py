"""Schemes on the cases of a network: warm-up, timing, time limit, failures, online protocol.

The online protocol measures what a network carries while a scheme is computing.  An interval of a
TE controller begins with new demands.  Until a scheme has computed, its previous allocation stays
installed and carries min(new demand, old flow) of each demand (Xu et al., "Teal", SIGCOMM 2023,
section 5.1).  A scheme that has not finished when the next interval begins skips that interval.

Axis letters: B matrices (1 here), D demands, K paths of a demand, E links.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teal.app.instance import Instance
from teal.errors import InputError, SolverError
from teal.problem import Allocation, Assessment, Problem, Status, assess
from teal.proofs.write import proved_gap, write_proof
from teal.runtime.kernel_cache import num_compiled
from teal.runtime.progress import progress_bar
from teal.schemes import Follower, Scheme
from teal.solvers import pipeline
from teal.solvers.projection import CutOnly, cut_only
from teal.solvers.result import Starter
from teal_study.evaluation.cases import Case, Cases, Protocol
from teal_study.evaluation.comparison import SchemeResult
from teal_study.evaluation.rows import (
    LEFT_OUT,
    CaseResult,
    Row,
    failed_allocation,
    gap_of,
    make_rows,
    usable_utilisations,
    weighted_mean,
)


@dataclasses.dataclass(eq=False)
class LazyAllocation:
    """Allocation of a scheme for one matrix, computed when it is first read.

    Attributes:
        solve: computes the allocation.
        demand: (1, D) Gbit/s of the matrix.
    """

    solve: Callable[[], Allocation]
    demand: Tensor

    @cached_property
    def allocation(self) -> Allocation:
        """Allocation of the matrix, B = 1; the first access computes it."""
        return self.solve()


@dataclasses.dataclass(frozen=True)
class Piece:
    """Part of an interval, with the allocation that is installed during it.

    Attributes:
        share: share of the interval.
        installed: the allocation.
    """

    share: float
    installed: LazyAllocation


class Timeline:
    """Installed allocations of one scheme over consecutive intervals.

    The allocation of the first matrix is installed at once, for all schemes alike.

    Args:
        interval_s: seconds of an interval.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        # Index of the current interval.
        self._interval_index = -1
        self._installed: LazyAllocation | None = None
        # Allocation being computed, with the time at which it is ready.
        self._computing: tuple[float, LazyAllocation] | None = None

    def step(self, allocation: LazyAllocation, seconds: float) -> list[Piece]:
        """Advance by one interval.

        A scheme that is idle starts computing for the new matrix; it installs the allocation when
        ready.

        Args:
            allocation: allocation of the interval's matrix.
            seconds: time that the scheme takes to compute it; NaN if it fails.

        Returns:
            pieces whose shares sum to 1; none if the scheme has had no allocation yet.
        """
        self._interval_index += 1
        begin = self._interval_index * self._interval_s
        end = begin + self._interval_s
        if self._computing and self._computing[0] <= begin:
            self._install()
        # An idle scheme computes for this matrix, unless it fails (NaN); the first allocation is
        # ready at once.
        has_failed = seconds != seconds
        if self._computing is None and not has_failed:
            self._computing = (begin if self._installed is None else begin + seconds, allocation)
        # The new allocation replaces the previous one within the interval, if it is ready by then.
        previous = self._installed
        previous_share = 1.0
        if self._computing and self._computing[0] < end:
            previous_share = (self._computing[0] - begin) / self._interval_s
            self._install()
        pieces = [Piece(previous_share, previous)] if previous and previous_share else []
        return (
            [*pieces, Piece(1 - previous_share, self._installed)]
            if self._installed and previous_share < 1
            else pieces
        )

    def _install(self) -> None:
        """Install the allocation that the scheme has computed; the scheme is idle then."""
        assert self._computing is not None
        self._installed = self._computing[1]
        self._computing = None


def carried_over(problem: Problem, installed: LazyAllocation) -> Allocation:
    """Return the flow of this matrix that an allocation for an earlier one carries.

    Each demand gets min(new demand, old flow), in the proportions of the old flow.

    Args:
        problem: the new matrix, B = 1.
        installed: the allocation for the earlier matrix.
    """
    # Old flows (1, D, K), Gbit/s; those of a demand are scaled down to the new demand, where they
    # exceed it.
    old_allocation = installed.allocation
    flow = old_allocation.splits.to(problem.demand) * installed.demand[..., None]
    old_rate = flow.sum(-1, keepdim=True)
    demand = problem.demand[..., None]
    carried_flow = flow * torch.where(old_rate > demand, demand / old_rate.clamp(min=1e-300), 1.0)
    splits = torch.where(demand > 0, carried_flow / demand.clamp(min=1e-300), 0.0)
    return dataclasses.replace(old_allocation, splits=splits, prices=None)


# A warm-up solve is not repeated but counts as the result of the first case if it took longer than
# this, seconds: the first limit applies if kernels were compiled in it, the second if not, as in a
# linear program.
MAX_WARM_UP_S = 60.0
_MAX_UNCOMPILED_S = 1.0

# Function that returns the problem of the interval before a case.
Before = Callable[[Case], Problem | None]


@dataclasses.dataclass(eq=False)
class SchemeRunner:
    """Runs one scheme on the cases of a network, with clock, time limit and failures.

    Attributes:
        name: name of the scheme, in rows and messages.
        scheme: the scheme.
        before: returns the problem of the previous interval, for schemes that start from it.
        notify: called with each failure.
        where: name of the network, for messages.
        time_limit: seconds for one matrix; a scheme that takes longer is excluded.
        interval_s: seconds of an interval of the online protocol; 0 without it.
        is_proving: whether the gap of every allocation is proved in integers.
        excluded: reason for which the scheme is excluded from further cases; ``""`` if it is not.
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
        # Wall-clock seconds of the last solve; 0 once the time limit has been checked.
        self._last_solve_s = 0.0
        # Result of a warm-up that is not repeated.
        self._warm_up_result: Allocation | None = None

    def warm_up(self, problem: Problem, case: Case, *, has_worked: bool) -> InputError | None:
        """Solve a case without counting it, so that compilation and caches are not timed.

        If nothing was compiled, a solve that took long is the result of the first case.  A scheme
        that fails here is excluded, unless it succeeded in an earlier part of the run.

        Args:
            problem: problem of the case.
            case: the first case.
            has_worked: whether the scheme succeeded in an earlier part of the run.

        Returns:
            the error if it is an InputError, else None.
        """
        num_compiled_before = num_compiled()
        is_on_gpu = problem.demand.device.type != "cpu"
        try:
            allocation = self._solve(problem, case)
            if is_on_gpu and self._last_solve_s <= MAX_WARM_UP_S:
                # The second solve records the kernel launches as a graph.
                allocation = self._solve(problem, case)
        except Exception as error:
            if has_worked:
                return None
            self._exclude(one_line(error))
            return error if isinstance(error, InputError) else None
        # On a GPU compilations are not counted; the first call of most schemes compiles or loads
        # kernels.
        may_compile = num_compiled() > num_compiled_before or is_on_gpu
        max_warm_up_s = MAX_WARM_UP_S if may_compile else _MAX_UNCOMPILED_S
        if self._last_solve_s > max_warm_up_s:
            self._warm_up_result = allocation
        return None

    def run(self, problem: Problem, case: Case) -> SchemeResult:
        """Solve, time and assess a case; an exception of any kind becomes the note of the result.

        Args:
            problem: problem of the case.
            case: the case.
        """
        no_allocation = failed_allocation(problem)
        if self.excluded:
            return SchemeResult(no_allocation, assess(problem, no_allocation), self.excluded)
        try:
            # The warm-up or this solve stores its wall-clock seconds in _last_solve_s.
            allocation = self._warm_up_result or self._solve(problem, case)
            self._warm_up_result = None
            assessment = assess(problem, allocation)
            note, proved_gap = self._prove(problem, allocation, assessment)
            return SchemeResult(
                allocation,
                assessment,
                note,
                wall_s=self._last_solve_s,
                model_alone=_model_alone(problem, self.scheme),
                proved_gap=proved_gap,
            )
        except Exception as error:
            failure = one_line(error)
            self.notify(f"{self.name} on {self.where}, matrix {case.index}: {failure}")
            return SchemeResult(no_allocation, assess(problem, no_allocation), failure)

    def _prove(
        self, problem: Problem, allocation: Allocation, assessment: Assessment
    ) -> tuple[str, float]:
        """Prove the gap of an allocation in integers, if proofs are requested.

        Args:
            problem: problem of the case.
            allocation: the allocation.
            assessment: its assessment; an unusable allocation is not proved.

        Returns:
            the reason for a failed proof, "" if there is a proof or none was requested; and the
            proved gap, NaN without a proof.
        """
        if not self.is_proving or not assessment.status[0].usable:
            return "", math.nan
        try:
            with tempfile.TemporaryDirectory() as folder:
                return "", proved_gap(write_proof(Path(folder), problem, allocation))
        # The allocation counts even without a proof.
        except Exception as error:
            return f"not proved: {one_line(error)}", math.nan

    def check_time_limit(self, row: Row) -> None:
        """Exclude the scheme from further cases if its last case took longer than the time limit.

        Args:
            row: row of the last case.
        """
        spent_s = max(row.total_s if row.usable else 0.0, self._last_solve_s)
        self._last_solve_s = 0.0
        if spent_s > self.time_limit and not self.excluded:
            self._exclude(f"{LEFT_OUT} after {spent_s:.0f} s for one matrix")

    def _exclude(self, reason: str) -> None:
        """Exclude the scheme from further cases, and report the reason."""
        self.notify(f"{self.name} on {self.where}: {reason}")
        self.excluded = reason

    def _solve(self, problem: Problem, case: Case) -> Allocation:
        """Return the allocation of a case; store the wall-clock seconds of the solve in
        ``_last_solve_s``.

        Args:
            problem: problem of the case.
            case: the case; schemes that continue from the previous interval get its problem.
        """
        if isinstance(self.scheme, Follower):
            self.scheme.follow(self.before(case))
        # Properties that all schemes use are computed here, so that they are in no scheme's time.
        _ = problem.path_mask, problem.path_value, problem.inverse_capacity
        begin = time.perf_counter()
        try:
            allocation = self.scheme.solve(problem)
            if allocation.splits.is_cuda:
                torch.cuda.synchronize(allocation.splits.device)
        finally:
            self._last_solve_s = time.perf_counter() - begin
        return dataclasses.replace(
            allocation,
            build_s=(float(allocation.build_s[0]),),
            solve_s=(float(allocation.solve_s[0]),),
            parallel_s=tuple(None if s is None else float(s) for s in allocation.parallel_s),
        )

    def replay(self, problem: Problem, case: Case, row: Row) -> None:
        """Advance the online timeline by a case that an earlier part of the run measured.

        Args:
            problem: problem of the case.
            case: the case.
            row: its stored row.
        """
        lazy_allocation = LazyAllocation(lambda: self._solve(problem, case), problem.demand)
        self._timeline.step(lazy_allocation, row.total_s if row.usable else math.nan)

    def online_row(
        self, problem: Problem, row: Row, result: SchemeResult, *, was_excluded: bool
    ) -> Row:
        """Return the row of the online protocol for the interval of a case.

        Args:
            problem: problem of the matrix.
            row: row of the offline protocol.
            result: result of the scheme for this matrix.
            was_excluded: whether the scheme was not run for this matrix: then no allocation of it
                stays installed.
        """
        lazy_allocation = LazyAllocation(lambda: result.allocation, problem.demand)
        pieces = self._timeline.step(lazy_allocation, row.total_s if row.usable else math.nan)
        row = dataclasses.replace(
            row, protocol=Protocol.ONLINE.value, level=f"{self.interval_s:g}s"
        )
        if was_excluded or not pieces:
            return row
        try:
            assessments = [
                assess(problem, carried_over(problem, piece.installed)) for piece in pieces
            ]
        # An allocation of an earlier part of the run is computed again, and may fail.
        except Exception as error:
            unknown_metrics = dict.fromkeys(
                ("value", "satisfied_demand", "bound", "gap", "gap_known"), math.nan
            )
            return dataclasses.replace(
                row,
                status=Status.FAILED.value,
                note=one_line(error),
                **unknown_metrics,  # type: ignore[arg-type]
            )
        return _interval_row(problem, row, [piece.share for piece in pieces], assessments)


def _interval_row(
    problem: Problem, row: Row, shares: Sequence[float], assessments: Sequence[Assessment]
) -> Row:
    """Return the row of an interval in which several allocations were installed: means over the
    interval of value and satisfied demand, maxima of utilisation and violation.

    Args:
        problem: problem of the matrix.
        row: row of the online protocol, with the bounds of the matrix.
        shares: share of the interval for which each allocation was installed.
        assessments: assessment of each allocation.
    """
    # The best bound of all schemes, from gap_known = 1 - value / bound of the offline row.
    value = weighted_mean(shares, [assessment.value for assessment in assessments])
    best_bound = row.value / (1 - row.gap_known) if row.gap_known < 1 else math.nan
    return dataclasses.replace(
        row,
        value=value,
        satisfied_demand=weighted_mean(
            shares, [assessment.satisfied_demand for assessment in assessments]
        ),
        gap=gap_of(problem, value, row.bound),
        gap_known=gap_of(problem, value, best_bound),
        max_link_utilisation=max(
            float(assessment.max_link_utilisation[0]) for assessment in assessments
        ),
        max_violation=max(float(assessment.max_violation[0]) for assessment in assessments),
        cut_demand=math.nan,
        cut_gap=math.nan,
        proved_gap=math.nan,
        least_share=math.nan,
        status=Status.FEASIBLE.value
        if all(assessment.status[0].usable for assessment in assessments)
        else row.status,
    )


def _model_alone(problem: Problem, scheme: Scheme) -> CutOnly | None:
    """Return the metrics of the splits of a scheme's model, only scaled down to fit the capacities;
    None for a scheme without a model.

    The time is not measured.  A scheme of another package may have a method of the same name with
    another meaning, so any exception means None.

    Args:
        problem: problem of the case, B = 1.
        scheme: the scheme.
    """
    if not isinstance(scheme, Starter):
        return None
    try:
        return cut_only(problem, *scheme.start(problem))
    except Exception:
        return None


def one_line(error: Exception) -> str:
    """Format an error as one line of text, with its type unless it is an error of Teal."""
    text = " ".join(str(error).split())
    return (
        text if isinstance(error, InputError | SolverError) else f"{type(error).__name__}: {text}"
    )


# Gap of the allocation of the previous matrix, which is installed when a case under churn begins.
_INSTALLED_GAP = 1e-3
# Seconds without an update after which the progress bar is redrawn for a new text.
_REFRESH_AFTER_S = 0.5


@dataclasses.dataclass(eq=False)
class Evaluation:
    """Schemes on the cases of one network.

    An exception of a scheme fails only its row, which gives the reason.  A scheme that fails on its
    first case, or takes longer than ``time_limit`` for one case, is excluded from further cases.

    Attributes:
        instance: network, paths, traffic.
        schemes: schemes by name in the rows.
        time_limit: seconds for one matrix.
        interval_s: seconds of an interval of the online protocol, which needs consecutive matrices;
            0 without it.
        is_proving: whether every allocation is proved in integers.
        strict: whether to raise the InputError if every scheme fails with one on its first case.
        notify: called with each failure.
        already_excluded: reasons for which an earlier part of the run excluded schemes, by name of
            the scheme; None for none.
    """

    instance: Instance
    schemes: Mapping[str, Scheme]
    time_limit: float = math.inf
    interval_s: float = 0.0
    is_proving: bool = False
    strict: bool = True
    notify: Callable[[str], None] = lambda _: None
    already_excluded: dataclasses.InitVar[Mapping[str, str] | None] = None

    def __post_init__(self, already_excluded: Mapping[str, str] | None) -> None:
        """Raise InputError for an online protocol under an objective that cannot carry part of the
        demand.
        """
        objective = self.instance.objective
        if self.interval_s and objective.rules.carries_all:
            raise InputError(
                "--online", "objective", "an objective that maximises flow", objective.name
            )
        self._runners = {
            name: SchemeRunner(
                name=name,
                scheme=scheme,
                before=self._previous_problem,
                notify=self.notify,
                where=self.instance.topology.name,
                time_limit=self.time_limit,
                interval_s=self.interval_s,
                is_proving=self.is_proving,
                excluded=(already_excluded or {}).get(name, ""),
            )
            for name, scheme in self.schemes.items()
        }
        self._capacity = self.instance.topology.capacity
        # Problem of the first case; later ones share its path operations.
        self._first_problem: Problem | None = None
        # Cache: index of a matrix, and the problem of the previous matrix.
        self._previous_problem_cache: tuple[int, Problem | None] = (
            -1,
            None,
        )
        # Cache: index of a matrix, and the splits (D, K) installed before it.
        self._installed_splits_cache: tuple[int, Tensor] | None = None

    @property
    def excluded(self) -> dict[str, str]:
        """Reasons for which schemes are excluded from further cases, by name of the scheme."""
        return {name: runner.excluded for name, runner in self._runners.items() if runner.excluded}

    def run(
        self, cases: Cases, finished: Mapping[str, Sequence[Row]] | None = None
    ) -> Iterator[CaseResult]:
        """Evaluate the cases that an earlier part of the run has not finished, one at a time, so
        that times are those of one matrix.

        Each scheme first solves one case that is not counted, for compilation and caches.

        Args:
            cases: cases in order.
            finished: rows of an earlier part of the run, by key of the case; None for none.

        Yields:
            the results of each case.

        Raises:
            InputError: with ``strict``, if every scheme fails with an InputError on its first case,
                such as a model for another number of paths.
        """
        finished = finished or {}
        self._capacity = cases.topology.capacity
        earlier_rows = [row for rows in finished.values() for row in rows]
        working_schemes = {row.scheme for row in earlier_rows}
        slow_schemes = {row.scheme for row in earlier_rows if row.total_s > MAX_WARM_UP_S}
        with progress_bar(total=len(cases), desc="evaluating", unit="matrix") as bar:
            for case in cases:
                problem = self._case_problem(case)
                if case.key in finished:
                    self._replay(problem, case, finished[case.key])
                else:
                    if self._first_problem is None:
                        self._warm_up(problem, case, working_schemes, slow_schemes, bar)
                        self._first_problem = problem
                    yield self._evaluate_case(problem, case, bar)
                bar.update()

    def _case_problem(self, case: Case) -> Problem:
        """Return the problem of a case, which shares the path operations of the first one."""
        if self._first_problem is None:
            return self.instance.problem(case.demand, capacity=case.capacity)
        problem = self._first_problem.with_demand(torch.from_numpy(case.demand[None]))
        if not np.array_equal(case.capacity, problem.capacity[0].cpu().numpy()):
            problem = problem.with_capacity(torch.from_numpy(case.capacity))
        if case.max_churn is not None:
            problem = problem.with_churn_limit(self._installed_splits(case), case.max_churn)
        return problem

    def _installed_splits(self, case: Case) -> Tensor:
        """Return the splits (D, K) that are installed when a case begins: the optimum of the
        previous matrix.
        """
        if self._installed_splits_cache is None or self._installed_splits_cache[0] != case.index:
            previous = self._previous_problem(case)
            assert previous is not None
            self._installed_splits_cache = (
                case.index,
                pipeline.solve(previous, gap=_INSTALLED_GAP).splits[0],
            )
        return self._installed_splits_cache[1]

    def _previous_problem(self, case: Case) -> Problem | None:
        """Return the problem of the previous matrix, on the network before any failure of the case;
        None for the first matrix.
        """
        # The problem of the last call is cached: all schemes and changes of a matrix need it.
        if self._previous_problem_cache[0] != case.index:
            previous = None
            if case.index:
                demand = self.instance.traffic.read([case.index - 1])
                previous = self.instance.problem(demand, capacity=self._capacity)
            self._previous_problem_cache = case.index, previous
        return self._previous_problem_cache[1]

    def _warm_up(
        self,
        problem: Problem,
        case: Case,
        working_schemes: Container[str],
        slow_schemes: Container[str],
        bar: Any,
    ) -> None:
        """Let each scheme solve a case that is not counted, except excluded and slow ones.

        Args:
            problem: problem of the case.
            case: the first unfinished case.
            working_schemes: schemes that have rows of an earlier part of the run.
            slow_schemes: schemes that took longer than the limit of a warm-up.
            bar: progress bar, which shows the current scheme.

        Raises:
            InputError: with ``strict``, if every scheme fails with an InputError.
        """
        input_errors: list[InputError] = []
        for name, runner in self._runners.items():
            if name in slow_schemes or runner.excluded:
                continue
            _show_status(bar, f"{name}, warming up")
            input_error = runner.warm_up(problem, case, has_worked=name in working_schemes)
            input_errors += [] if input_error is None else [input_error]
        if self.strict and input_errors and len(input_errors) == len(self.schemes):
            raise input_errors[0]

    def _evaluate_case(self, problem: Problem, case: Case, bar: Any) -> CaseResult:
        """Run all schemes on a case; return their rows and link utilisations.

        Args:
            problem: problem of the case.
            case: the case.
            bar: progress bar, which shows the current scheme.
        """
        results: dict[str, SchemeResult] = {}
        for name, runner in self._runners.items():
            _show_status(bar, name)
            results[name] = runner.run(problem, case)
        # Schemes that were not run on this case; those over the time limit are excluded only now.
        was_excluded = set(self.excluded)
        rows = make_rows(self.instance, case, problem, results)
        for row in rows:
            self._runners[row.scheme].check_time_limit(row)
        # The online protocol has a second row for each scheme.
        if self.interval_s and case.protocol is Protocol.OFFLINE:
            rows += [
                self._runners[row.scheme].online_row(
                    problem, row, results[row.scheme], was_excluded=row.scheme in was_excluded
                )
                for row in rows
            ]
        return CaseResult(case.key, tuple(rows), usable_utilisations(problem, results))

    def _replay(self, problem: Problem, case: Case, rows: Sequence[Row]) -> None:
        """Advance the online timelines of all schemes by a case that was run before a resume.

        Args:
            problem: problem of the case.
            case: the case.
            rows: its stored rows.
        """
        # The online protocol (interval_s > 0) follows from the solve times of the offline rows.
        if self.interval_s and case.protocol is Protocol.OFFLINE:
            for row in rows:
                if row.protocol == case.protocol and row.scheme in self._runners:
                    self._runners[row.scheme].replay(problem, case, row)


def _show_status(bar: Any, text: str) -> None:
    """Set the text of the progress bar; redraw it only if the last update was more than
    _REFRESH_AFTER_S seconds ago.
    """
    bar.set_postfix_str(
        text, refresh=time.time() - getattr(bar, "last_print_t", time.time()) > _REFRESH_AFTER_S
    )
