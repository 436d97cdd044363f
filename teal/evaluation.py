"""Schemes on the same cases, through the same validator, on the same clock."""

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

from teal.allocation import Allocation, Status
from teal.assessment import Assessment, assess
from teal.bounds import all_paths_bound, gap
from teal.errors import InputError, SolverError
from teal.instance import Instance
from teal.network.topology import FloatArray
from teal.online import Answer, Timeline, carried_over
from teal.problem import Problem
from teal.protocols import Case, Cases, Protocol
from teal.schemes import Follower, Scheme

_WORTH_KEEPING = 60.0  # seconds: an answer that took longer is not made again only to have compiled before
_STILL = 0.5  # seconds without a sign


@dataclasses.dataclass(frozen=True)
class Row:
    """One scheme on one case.  Rates in Gbit/s, times in seconds; NaN where there is no allocation.

    Attributes:
        scheme: as it was specified.
        topology, traffic: names.
        protocol, level, draw: what was done to matrix or network (see :mod:`teal.protocols`).
        index: row of the matrix in the traffic; timestamp: its time, ISO 8601.
        objective: which program.
        value: the objective; satisfied_demand: share of all demand that is carried.  Online both are means over time.
        bound: certified bound on the optimum from the scheme's own prices; gap: how far the optimum may be by it.
        gap_known: the same by the best bound that any scheme has of this matrix; of a scheme with paths of its own by
            the bound over all paths of the network.
        max_link_utilisation: largest load / capacity.
        max_violation: largest violation of any rule, as a share (see :mod:`teal.feasibility`).
        build_s, solve_s: time to build a model and to solve it; parallel_s: what both would take if every independent
            subproblem had a processor of its own, NaN where there are none.
        status: optimal, feasible, infeasible (says the validator), time_limit or failed.
        note: why it failed.
    """

    scheme: str
    topology: str
    traffic: str
    protocol: str
    level: str
    draw: int
    index: int
    timestamp: str
    objective: str
    value: float
    satisfied_demand: float
    bound: float
    gap: float
    gap_known: float
    max_link_utilisation: float
    max_violation: float
    build_s: float
    solve_s: float
    parallel_s: float
    status: str
    note: str = ""

    @property
    def usable(self) -> bool:
        """Whether there is an allocation that one may install."""
        return Status(self.status).usable

    @property
    def taken_s(self) -> float:
        """Seconds to build and to solve."""
        return self.build_s + self.solve_s


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """What came of one case.

    Attributes:
        key: of the case.
        rows: one for each scheme; with the online protocol two.
        utilisation: (E,) load / capacity of each scheme that has an allocation; NaN for a failed link.
    """

    key: str
    rows: tuple[Row, ...]
    utilisation: Mapping[str, FloatArray]


@dataclasses.dataclass(frozen=True, eq=False)
class _Found:
    """What a scheme made of a case, and what it is worth."""

    allocation: Allocation
    measured: Assessment
    note: str = ""


@dataclasses.dataclass(eq=False)
class Evaluation:
    """Schemes on the cases of one network.

    A scheme that fails, by whatever exception, fails its row, which says why, and the others go on.  One that fails
    on the first case, before it has any row, or is busy for longer than ``time_limit`` with one case, is left out from
    there on.

    Attributes:
        instance: network, paths, traffic.
        schemes: by the names that rows have.
        time_limit: seconds for one matrix.
        interval_s: of the online protocol, which needs consecutive matrices; 0 for none.
        strict: an InputError is raised if it is all that any scheme has to say of the first case.
        say: is told of failures, once each.
        left_out: why a scheme is not run any more; what an earlier part of the run found, to begin with.
    """

    instance: Instance
    schemes: Mapping[str, Scheme]
    time_limit: float = math.inf
    interval_s: float = 0.0
    strict: bool = True
    say: Callable[[str], None] = lambda _: None
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise InputError for an online protocol of a program that cannot leave demand behind."""
        objective = self.instance.objective
        if self.interval_s and not objective.maximises_value:
            raise InputError("--online", "objective", "one that maximises flow", objective.name.value)
        self._capacity = self.instance.topology.capacity
        self._busy: dict[str, float] = {}  # seconds with the last case, by our clock
        self._ready: dict[str, Allocation] = {}  # what warming up made and is worth keeping
        self._timelines = {name: Timeline(self.interval_s) for name in self.schemes}
        self._problem: Problem | None = None
        self._followed: tuple[int, Problem | None] = (-1, None)

    def run(self, cases: Cases, done: Mapping[str, Sequence[Row]] | None = None) -> Iterator[Measured]:
        """Evaluate the cases that are not ``done`` (rows by key), one at a time, so that a time is that of one matrix.

        Each scheme first solves one case that is not counted: compilation and caches.

        Raises:
            InputError: from every scheme, such as a model for another K, if strict; before anything is measured.
        """
        done = done or {}
        self._capacity = cases.topology.capacity
        earlier = [row for rows in done.values() for row in rows]
        known = {row.scheme for row in earlier}
        slow = {row.scheme for row in earlier if row.taken_s > _WORTH_KEEPING}
        with tqdm(total=len(cases), desc="evaluating", unit="matrix") as bar:
            for case in cases:
                problem = self._of(case)
                if case.key in done:
                    self._replay(problem, case, done[case.key])
                else:
                    if self._problem is None:
                        names = [name for name in self.schemes if name not in slow]
                        self._warm_up(problem, case, names, known, bar)
                        self._problem = problem
                    yield self._measure(problem, case, bar)
                bar.update()

    def _of(self, case: Case) -> Problem:
        if self._problem is None:
            return self.instance.problem(case.demand, capacity=case.capacity)
        problem = self._problem.with_demand(torch.from_numpy(case.demand[None]))
        if not np.array_equal(case.capacity, problem.capacity[0].cpu().numpy()):
            problem = problem.with_capacity(torch.from_numpy(case.capacity))
        return problem

    def _warm_up(self, problem: Problem, case: Case, names: Sequence[str], known: Container[str], bar: Any) -> None:
        """Let ``names`` solve a case; one that cannot is left out, unless it is ``known`` to be able to."""
        faults: list[InputError] = []
        for name in names:
            if name in self.left_out:
                continue
            _show(bar, f"{name}, warming up")
            try:
                allocation = self._solve(name, problem, case)
            except Exception as error:
                if name not in known:
                    if isinstance(error, InputError):
                        faults.append(error)
                    self._leave_out(name, _reason(error))
            else:
                if allocation.build_s[0] + allocation.solve_s[0] > _WORTH_KEEPING:
                    self._ready[name] = allocation
        if self.strict and faults and len(faults) == len(self.schemes):
            raise faults[0]

    def _solve(self, name: str, problem: Problem, case: Case) -> Allocation:
        scheme = self.schemes[name]
        if isinstance(scheme, Follower):
            scheme.follow(self._before(case))
        # What all of them share belongs to nobody's time.
        _ = problem.path_mask, problem.path_value, problem.inverse_capacity
        begin = time.perf_counter()
        try:
            found = scheme.solve(problem)
        finally:
            self._busy[name] = time.perf_counter() - begin
        return dataclasses.replace(
            found,
            build_s=(float(found.build_s[0]),),
            solve_s=(float(found.solve_s[0]),),
            parallel_s=tuple(None if s is None else float(s) for s in found.parallel_s),
        )

    def _before(self, case: Case) -> Problem | None:
        """The matrix before that of ``case``, on the network before anything failed in the case."""
        if self._followed[0] != case.index:
            before = None
            if case.index:
                demand = self.instance.traffic.read([case.index - 1])
                before = self.instance.problem(demand, capacity=self._capacity)
            self._followed = case.index, before
        return self._followed[1]

    def _leave_out(self, name: str, reason: str) -> None:
        self.say(f"{name} on {self.instance.topology.name}: {reason}")
        self.left_out[name] = reason

    def _mind_the_limit(self, row: Row) -> None:
        taken = max(row.taken_s if row.usable else 0.0, self._busy.pop(row.scheme, 0.0))
        if taken > self.time_limit and row.scheme not in self.left_out:
            self._leave_out(row.scheme, f"left out after {taken:.0f} s for one matrix")

    def _measure(self, problem: Problem, case: Case, bar: Any) -> Measured:
        found = {}
        for name in self.schemes:
            _show(bar, name)
            found[name] = self._attempt(name, problem, case)
        gone = set(self.left_out)
        rows = _rows(self.instance, case, problem, found)
        for row in rows:
            self._mind_the_limit(row)
        utilisation = {name: _utilisation(problem, f) for name, f in found.items() if f.measured.status[0].usable}
        if self.interval_s and case.protocol is Protocol.OFFLINE:
            rows += [self._online(problem, row, found[row.scheme], row.scheme in gone) for row in rows]
        return Measured(case.key, tuple(rows), utilisation)

    def _attempt(self, name: str, problem: Problem, case: Case) -> _Found:
        note = self.left_out.get(name, "")
        if not note:
            try:
                allocation = self._ready.pop(name, None) or self._solve(name, problem, case)
                return _Found(allocation, assess(problem, allocation))
            except Exception as error:
                note = _reason(error)
                self.say(f"{name} on {self.instance.topology.name}, matrix {case.index}: {note}")
        nothing = _failed(problem)
        return _Found(nothing, assess(problem, nothing), note)

    def _replay(self, problem: Problem, case: Case, rows: Sequence[Row]) -> None:
        """Let the timelines pass over a case that an earlier run measured."""
        if self.interval_s and case.protocol is Protocol.OFFLINE:
            for row in rows:
                if row.protocol == case.protocol and row.scheme in self._timelines:
                    answer = Answer(lambda n=row.scheme: self._solve(n, problem, case), problem.demand)  # type: ignore[misc]
                    self._timelines[row.scheme].step(answer, row.taken_s if row.usable else math.nan)

    def _online(self, problem: Problem, row: Row, found: _Found, gone: bool) -> Row:
        answer = Answer(lambda: found.allocation, problem.demand)
        pieces = self._timelines[row.scheme].step(answer, row.taken_s if row.usable else math.nan)
        row = dataclasses.replace(row, protocol=Protocol.ONLINE.value, level=f"{self.interval_s:g}s")
        if gone or not pieces:  # what is not run any more has not installed anything for ever
            return row
        try:
            parts = [assess(problem, carried_over(problem, piece.answer)) for piece in pieces]
        except Exception as error:  # of an answer that a resumed run had to make again
            nothing: Any = dict.fromkeys(("value", "satisfied_demand", "bound", "gap", "gap_known"), math.nan)
            return dataclasses.replace(row, status=Status.FAILED.value, note=_reason(error), **nothing)
        shares = [piece.share for piece in pieces]

        def mean(values: Sequence[Tensor]) -> float:
            return sum(share * float(value[0]) for share, value in zip(shares, values, strict=True))

        value = mean([part.value for part in parts])
        known = row.value / (1 - row.gap_known) if row.gap_known < 1 else math.nan
        return dataclasses.replace(
            row,
            value=value,
            satisfied_demand=mean([part.satisfied_demand for part in parts]),
            gap=_gap(problem, value, row.bound),
            gap_known=_gap(problem, value, known),
            max_link_utilisation=max(float(part.max_link_utilisation[0]) for part in parts),
            max_violation=max(float(part.max_violation[0]) for part in parts),
            status=Status.FEASIBLE.value if all(part.status[0].usable for part in parts) else row.status,
        )


def _gap(problem: Problem, value: float, bound: float) -> float:
    return float(gap(problem, *(torch.tensor([x], dtype=torch.float64) for x in (value, bound))))


def _show(bar: Any, doing: str) -> None:
    """What is being waited for; at once only if the bar has not moved for a while."""
    bar.set_postfix_str(doing, refresh=time.time() - getattr(bar, "last_print_t", time.time()) > _STILL)


def _reason(error: Exception) -> str:
    """One line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, InputError | SolverError) else f"{type(error).__name__}: {text}"


def _failed(problem: Problem) -> Allocation:
    nothing = torch.zeros_like(problem.path_value.expand(problem.batch, -1, -1))
    none = (float("nan"),) * problem.batch
    return Allocation(nothing, None, (Status.FAILED,) * problem.batch, none, none)


def _utilisation(problem: Problem, found: _Found) -> FloatArray:
    allocation = found.allocation
    over = problem if allocation.paths is None else problem.with_paths(allocation.paths)
    shares = over.utilisation(allocation.splits.to(problem.demand))[0]
    return torch.where(problem.capacity[0] > 0, shares, torch.nan).cpu().numpy()


def _rows(instance: Instance, case: Case, problem: Problem, found: Mapping[str, _Found]) -> list[Row]:
    known, wide = _best_bounds(problem, found)
    rows = []
    for name, f in found.items():
        figures = vars(f.measured).copy()
        (status,) = figures.pop("status")
        (parallel,) = f.allocation.parallel_s or (None,)
        best = known if f.allocation.paths is None else wide
        rows.append(
            Row(
                scheme=name,
                topology=instance.topology.name,
                traffic=instance.traffic.name,
                protocol=case.protocol.value,
                level=case.level,
                draw=case.draw,
                index=case.index,
                timestamp=str(instance.traffic.timestamps[case.index]),
                objective=problem.objective.name.value,
                gap_known=float(gap(problem, f.measured.value, best)[0]),
                build_s=f.allocation.build_s[0],
                solve_s=f.allocation.solve_s[0],
                parallel_s=float("nan") if parallel is None else parallel,
                status=status.value,
                note=f.note,
                **{field: float(values[0]) for field, values in figures.items()},
            )
        )
    return rows


def _best_bounds(problem: Problem, found: Mapping[str, _Found]) -> tuple[Tensor, Tensor]:
    """(1,) the best bound over the candidate paths, and that of the same prices over all paths, if anybody needs it."""
    nothing = torch.full((1,), float("nan"), dtype=torch.float64)
    own = {
        name: f.measured.bound
        for name, f in found.items()
        if f.allocation.paths is None and not bool(f.measured.bound.isnan())
    }
    elsewhere = any(f.allocation.paths is not None for f in found.values())
    best = nothing
    prices = torch.zeros_like(problem.capacity)
    if own:
        first = (min if problem.objective.higher_is_better else max)(own, key=lambda name: float(own[name]))
        best, said = own[first], found[first].allocation.prices
        prices = prices if said is None else said
    return best, all_paths_bound(problem, prices) if elsewhere else nothing
