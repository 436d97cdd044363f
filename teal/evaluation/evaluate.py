"""Schemes on the cases of a network: warm-up, timing, time limit, failures, the online timeline.

The online protocol says what a network carries while a scheme is still computing.

An interval of a TE controller begins with new demands.  Until a scheme has computed, its previous
allocation stays installed and carries min(new demand, old flow) of each demand (Xu et al., "Teal",
SIGCOMM 2023, section 5.1); a scheme that has not finished when the next interval begins skips that
one.
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
from teal.evaluation.cases import Case, Cases, Protocol
from teal.evaluation.comparison import SchemeResult
from teal.evaluation.rows import (
    LEFT_OUT,
    CaseResult,
    Row,
    failed_allocation,
    gap_of,
    make_rows,
    usable_utilisations,
    weighted_mean,
)
from teal.problem import Allocation, Assessment, Problem, Status, assess
from teal.proofs.write import proved_gap, write_proof
from teal.runtime.kernel_cache import num_compiled
from teal.runtime.progress import progress_bar
from teal.schemes import Follower, Scheme
from teal.solvers import pdhg
from teal.solvers.projection import CutOnly, cut_only
from teal.solvers.result import Starter


@dataclasses.dataclass(eq=False)
class LazyAllocation:
    """The allocation of a scheme for one matrix, computed when it is first read.

    Attributes:
        solve: computes it.
        demand: (1, D) Gbit/s of the matrix.
    """

    solve: Callable[[], Allocation]
    demand: Tensor

    @cached_property
    def allocation(self) -> Allocation:
        """The allocation, B = 1."""
        return self.solve()


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of an interval, and what is installed during it.

    Attributes:
        share: share of the interval.
        installed: the allocation.
    """

    share: float
    installed: LazyAllocation


class Timeline:
    """One scheme through consecutive intervals.

    The allocation of the first matrix is installed at once, for all schemes alike.

    Args:
        interval_s: seconds of an interval.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        # Index of the current interval.
        self._number = -1
        self._installed: LazyAllocation | None = None
        # Time when it is ready, and the allocation.
        self._computing: tuple[float, LazyAllocation] | None = None

    def step(self, allocation: LazyAllocation, seconds: float) -> list[Piece]:
        """Go through the next interval.

        Args:
            allocation: allocation of the interval's matrix.
            seconds: time that the scheme takes to compute it; NaN if it fails.

        Returns:
            pieces whose shares sum to 1; none if the scheme has had no allocation yet.
        """
        self._number += 1
        begin = self._number * self._interval_s
        end = begin + self._interval_s
        if self._computing and self._computing[0] <= begin:
            self._install()
        has_failed = seconds != seconds  # NaN
        if self._computing is None and not has_failed:
            self._computing = (begin if self._installed is None else begin + seconds, allocation)
        before = self._installed
        share = 1.0
        if self._computing and self._computing[0] < end:
            share = (self._computing[0] - begin) / self._interval_s
            self._install()
        pieces = [Piece(share, before)] if before and share else []
        return (
            [*pieces, Piece(1 - share, self._installed)]
            if self._installed and share < 1
            else pieces
        )

    def _install(self) -> None:
        assert self._computing is not None
        self._installed = self._computing[1]
        self._computing = None


def carried_over(problem: Problem, installed: LazyAllocation) -> Allocation:
    """The flow of this matrix that an allocation for an earlier one carries: min(new demand, old
    flow) of each demand.

    Args:
        problem: the new matrix, B = 1.
        installed: the allocation for the earlier one.
    """
    old = installed.allocation
    flow = old.splits.to(problem.demand) * installed.demand[..., None]
    routed = flow.sum(-1, keepdim=True)
    demand = problem.demand[..., None]
    carried = flow * torch.where(routed > demand, demand / routed.clamp(min=1e-300), 1.0)
    splits = torch.where(demand > 0, carried / demand.clamp(min=1e-300), 0.0)
    return dataclasses.replace(old, splits=splits, prices=None)


# Seconds: a first solve that took longer is kept as the result instead of being repeated, even if
# kernels were compiled in it; and one that took longer than the second number if none was, such as
# that of a linear program.
MAX_WARM_UP_S = 60.0
_MAX_UNCOMPILED_S = 1.0

# Function that returns the problem of the interval before a case.
Before = Callable[[Case], Problem | None]


@dataclasses.dataclass(eq=False)
class SchemeRunner:
    """Runs one scheme.

    Attributes:
        name: name of the scheme, in rows and messages.
        scheme: what is run.
        before: gives the problem of the interval before, for schemes that start from it.
        notify: called with each failure.
        where: name of the network, for messages.
        time_limit: seconds for one matrix; a scheme that takes longer is not run any more.
        interval_s: seconds of an interval of the online protocol; 0 without it.
        is_proving: whether every allocation is proved in integers.
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
        # Wall-clock seconds of the last call.
        self._busy_s = 0.0
        # Result of a warm-up that is not repeated.
        self._warm_up_result: Allocation | None = None

    def warm_up(self, problem: Problem, case: Case, *, has_worked: bool) -> InputError | None:
        """Solve a case without counting it, so that compilation and caches are not timed.

        Where nothing was compiled, a solve that took long is kept: it is the result of the first
        case.

        A scheme that fails here is excluded, unless it ``has_worked`` in an earlier part of the
        run.

        Returns:
            the error if it is the user's.
        """
        compiled = num_compiled()
        is_on_gpu = problem.demand.device.type != "cpu"
        try:
            allocation = self._solve(problem, case)
            if is_on_gpu and self._busy_s <= MAX_WARM_UP_S:
                # Launches are recorded the second time.
                allocation = self._solve(problem, case)
        except Exception as error:
            if has_worked:
                return None
            self._exclude(one_line(error))
            return error if isinstance(error, InputError) else None
        # On a GPU nobody counts what is compiled, and the first call of most schemes compiles or
        # loads kernels.
        may_compile = num_compiled() > compiled or is_on_gpu
        longest = MAX_WARM_UP_S if may_compile else _MAX_UNCOMPILED_S
        if self._busy_s > longest:
            self._warm_up_result = allocation
        return None

    def run(self, problem: Problem, case: Case) -> SchemeResult:
        """Solve a case; a failure, by whatever exception, becomes the note of the result."""
        failed = failed_allocation(problem)
        if self.excluded:
            return SchemeResult(failed, assess(problem, failed), self.excluded)
        try:
            allocation = self._warm_up_result or self._solve(problem, case)  # sets _busy_s
            self._warm_up_result = None
            assessment = assess(problem, allocation)
            note, proved_gap = self._prove(problem, allocation, assessment)
            return SchemeResult(
                allocation,
                assessment,
                note,
                wall_s=self._busy_s,
                model_alone=_model_alone(problem, self.scheme),
                proved_gap=proved_gap,
            )
        except Exception as error:
            failure = one_line(error)
            self.notify(f"{self.name} on {self.where}, matrix {case.index}: {failure}")
            return SchemeResult(failed, assess(problem, failed), failure)

    def _prove(
        self, problem: Problem, allocation: Allocation, assessment: Assessment
    ) -> tuple[str, float]:
        """Why there is no proof, "" where there is one or none was asked for, and the gap that it
        shows.
        """
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

    def online_row(
        self, problem: Problem, row: Row, result: SchemeResult, *, was_excluded: bool
    ) -> Row:
        """The row of the online protocol for the interval of ``row``.

        Args:
            problem: problem of the matrix.
            row: row of the offline protocol.
            result: result of the scheme for this matrix.
            was_excluded: whether the scheme was not run for this matrix: then no allocation of it
                stays installed.
        """
        lazy = LazyAllocation(lambda: result.allocation, problem.demand)
        pieces = self._timeline.step(lazy, row.total_s if row.usable else math.nan)
        row = dataclasses.replace(
            row, protocol=Protocol.ONLINE.value, level=f"{self.interval_s:g}s"
        )
        if was_excluded or not pieces:
            return row
        try:
            parts = [assess(problem, carried_over(problem, piece.installed)) for piece in pieces]
        # An allocation of an earlier part of the run is computed again, and may fail.
        except Exception as error:
            unknown = dict.fromkeys(
                ("value", "satisfied_demand", "bound", "gap", "gap_known"), math.nan
            )
            return dataclasses.replace(
                row,
                status=Status.FAILED.value,
                note=one_line(error),
                **unknown,  # type: ignore[arg-type]
            )
        return _interval_row(problem, row, [piece.share for piece in pieces], parts)


def _interval_row(
    problem: Problem, row: Row, shares: Sequence[float], parts: Sequence[Assessment]
) -> Row:
    """Return the row of an interval in which several allocations were installed.

    Args:
        problem: problem of the matrix.
        row: row of the online protocol, with the bounds of the matrix.
        shares: share of the interval for which each allocation was installed.
        parts: assessment of each allocation.
    """
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
        status=Status.FEASIBLE.value
        if all(part.status[0].usable for part in parts)
        else row.status,
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
    return (
        text if isinstance(error, InputError | SolverError) else f"{type(error).__name__}: {text}"
    )


# Gap of the allocation of the matrix before, which is in force when a case under churn begins.
_GAP_IN_FORCE = 1e-3
# Seconds without an update, after which the progress bar is redrawn for a new text.
_REFRESH_AFTER_S = 0.5


@dataclasses.dataclass(eq=False)
class Evaluation:
    """Schemes on the cases of one network.

    A scheme that fails, by whatever exception, fails its row alone, which says why.  A scheme that
    fails on its first case, or takes longer than ``time_limit`` for one case, is not run any more.

    Attributes:
        instance: network, paths, traffic.
        schemes: by the names that rows have.
        time_limit: seconds for one matrix.
        interval_s: seconds of an interval of the online protocol, which needs consecutive matrices;
            0 without it.
        is_proving: whether every allocation is proved in integers.
        strict: whether to raise the InputError if every scheme fails with one on its first case.
        notify: called with each failure.
        already_excluded: why schemes were excluded before an interrupted run was resumed, by name.
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
        """Raise InputError for an online protocol of a program that cannot carry demand in part."""
        objective = self.instance.objective
        if self.interval_s and objective.rules.carries_all:
            raise InputError("--online", "objective", "one that maximises flow", objective.name)
        self._runners = {
            name: SchemeRunner(
                name=name,
                scheme=scheme,
                before=self._before,
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
        # Problem of the last case; others share its path operations.
        self._problem: Problem | None = None
        # Index of a case, and the problem before it.
        self._last_before: tuple[int, Problem | None] = (
            -1,
            None,
        )
        # Index of a case, and the splits before it.
        self._last_in_force: tuple[int, Tensor] | None = None

    @property
    def excluded(self) -> dict[str, str]:
        """Why schemes are not run any more, by name."""
        return {name: runner.excluded for name, runner in self._runners.items() if runner.excluded}

    def run(
        self, cases: Cases, done: Mapping[str, Sequence[Row]] | None = None
    ) -> Iterator[CaseResult]:
        """Evaluate the cases that are not ``done``, one at a time, so that times are those of one
        matrix.

        Each scheme first solves one case that is not counted, for compilation and caches.

        Args:
            cases: in order.
            done: rows of an earlier part of the run, by key of the case.

        Raises:
            InputError: of every scheme on its first case, such as a model for another K, if
                ``strict``.
        """
        done = done or {}
        self._capacity = cases.topology.capacity
        earlier_rows = [row for rows in done.values() for row in rows]
        has_worked = {row.scheme for row in earlier_rows}
        is_slow = {row.scheme for row in earlier_rows if row.total_s > MAX_WARM_UP_S}
        with progress_bar(total=len(cases), desc="evaluating", unit="matrix") as bar:
            for case in cases:
                problem = self._problem_of(case)
                if case.key in done:
                    self._replay(problem, case, done[case.key])
                else:
                    if self._problem is None:
                        self._warm_up(problem, case, has_worked, is_slow, bar)
                        self._problem = problem
                    yield self._measure(problem, case, bar)
                bar.update()

    def _problem_of(self, case: Case) -> Problem:
        if self._problem is None:
            return self.instance.problem(case.demand, capacity=case.capacity)
        problem = self._problem.with_demand(torch.from_numpy(case.demand[None]))
        if not np.array_equal(case.capacity, problem.capacity[0].cpu().numpy()):
            problem = problem.with_capacity(torch.from_numpy(case.capacity))
        if case.max_churn is not None:
            problem = problem.with_churn_limit(self._in_force(case), case.max_churn)
        return problem

    def _in_force(self, case: Case) -> Tensor:
        """(D, K) splits that are in force when a case begins: the optimum of the matrix before."""
        if self._last_in_force is None or self._last_in_force[0] != case.index:
            before = self._before(case)
            assert before is not None
            self._last_in_force = case.index, pdhg.solve(before, gap=_GAP_IN_FORCE).splits[0]
        return self._last_in_force[1]

    def _before(self, case: Case) -> Problem | None:
        """The matrix before that of ``case``, on the network before any failure of the case; None
        for the first.
        """
        if self._last_before[0] != case.index:
            before = None
            if case.index:
                demand = self.instance.traffic.read([case.index - 1])
                before = self.instance.problem(demand, capacity=self._capacity)
            self._last_before = case.index, before
        return self._last_before[1]

    def _warm_up(
        self,
        problem: Problem,
        case: Case,
        has_worked: Container[str],
        is_slow: Container[str],
        bar: Any,
    ) -> None:
        """Let the schemes solve a case that is not counted, except those that are known to be
        slow.
        """
        faults: list[InputError] = []
        for name, runner in self._runners.items():
            if name in is_slow or runner.excluded:
                continue
            _show(bar, f"{name}, warming up")
            fault = runner.warm_up(problem, case, has_worked=name in has_worked)
            faults += [] if fault is None else [fault]
        if self.strict and faults and len(faults) == len(self.schemes):
            raise faults[0]

    def _measure(self, problem: Problem, case: Case, bar: Any) -> CaseResult:
        results: dict[str, SchemeResult] = {}
        for name, runner in self._runners.items():
            _show(bar, name)
            results[name] = runner.run(problem, case)
        was_excluded = set(self.excluded)
        rows = make_rows(self.instance, case, problem, results)
        for row in rows:
            self._runners[row.scheme].check_time_limit(row)
        if self.interval_s and case.protocol is Protocol.OFFLINE:
            rows += [
                self._runners[row.scheme].online_row(
                    problem, row, results[row.scheme], was_excluded=row.scheme in was_excluded
                )
                for row in rows
            ]
        return CaseResult(case.key, tuple(rows), usable_utilisations(problem, results))

    def _replay(self, problem: Problem, case: Case, rows: Sequence[Row]) -> None:
        """Take a case of an earlier part of the run into the online timelines."""
        if self.interval_s and case.protocol is Protocol.OFFLINE:
            for row in rows:
                if row.protocol == case.protocol and row.scheme in self._runners:
                    self._runners[row.scheme].replay(problem, case, row)


def _show(bar: Any, text: str) -> None:
    """Set the text of the progress bar; redraw at once only if it has not been redrawn for a
    while.
    """
    bar.set_postfix_str(
        text, refresh=time.time() - getattr(bar, "last_print_t", time.time()) > _REFRESH_AFTER_S
    )
