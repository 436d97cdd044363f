"""Schemes on the same cases, measured by the same validator and the same clock."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from teal.errors import InputError
from teal.evaluation.cases import Case, Cases, Protocol
from teal.evaluation.comparison import SchemeResult
from teal.evaluation.instance import Instance
from teal.evaluation.rows import CaseResult, Row, make_rows, usable_utilisations
from teal.evaluation.runner import MAX_WARM_UP_S, SchemeRunner
from teal.problem import Problem
from teal.schemes import Scheme
from teal.solvers import pdhg

_GAP_IN_FORCE = 1e-3  # of the allocation of the matrix before, which is in force when a case under churn begins
_REFRESH_AFTER_S = 0.5  # seconds without an update, after which the progress bar is redrawn for a new text


@dataclasses.dataclass(eq=False)
class Evaluation:
    """Schemes on the cases of one network.

    A scheme that fails, by whatever exception, fails its row alone, which says why.  A scheme that fails on its first
    case, or takes longer than ``time_limit`` for one case, is not run any more.

    Attributes:
        instance: network, paths, traffic.
        schemes: by the names that rows have.
        time_limit: seconds for one matrix.
        interval_s: seconds of an interval of the online protocol, which needs consecutive matrices; 0 without it.
        is_proving: whether every allocation is proved in whole numbers.
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
        self._problem: Problem | None = None  # of the last case; others share its path operations
        self._last_before: tuple[int, Problem | None] = (-1, None)  # index of a case, and the problem before it
        self._last_in_force: tuple[int, Tensor] | None = None  # index of a case, and the splits before it

    @property
    def excluded(self) -> dict[str, str]:
        """Why schemes are not run any more, by name."""
        return {name: runner.excluded for name, runner in self._runners.items() if runner.excluded}

    def run(self, cases: Cases, done: Mapping[str, Sequence[Row]] | None = None) -> Iterator[CaseResult]:
        """Evaluate the cases that are not ``done``, one at a time, so that times are those of one matrix.

        Each scheme first solves one case that is not counted, for compilation and caches.

        Args:
            cases: in order.
            done: rows of an earlier part of the run, by key of the case.

        Raises:
            InputError: of every scheme on its first case, such as a model for another K, if ``strict``.
        """
        done = done or {}
        self._capacity = cases.topology.capacity
        earlier_rows = [row for rows in done.values() for row in rows]
        has_worked = {row.scheme for row in earlier_rows}
        is_slow = {row.scheme for row in earlier_rows if row.total_s > MAX_WARM_UP_S}
        with tqdm(total=len(cases), desc="evaluating", unit="matrix") as bar:
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
        """The matrix before that of ``case``, on the network before any failure of the case; None for the first."""
        if self._last_before[0] != case.index:
            before = None
            if case.index:
                demand = self.instance.traffic.read([case.index - 1])
                before = self.instance.problem(demand, capacity=self._capacity)
            self._last_before = case.index, before
        return self._last_before[1]

    def _warm_up(
        self, problem: Problem, case: Case, has_worked: Container[str], is_slow: Container[str], bar: Any
    ) -> None:
        """Let the schemes solve a case that is not counted, except those that are known to be slow."""
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
    """Set the text of the progress bar; redraw at once only if it has not been redrawn for a while."""
    bar.set_postfix_str(text, refresh=time.time() - getattr(bar, "last_print_t", time.time()) > _REFRESH_AFTER_S)
