"""Tasks of an objective that is a sequence of programs, one at a time.

Such an objective is a generator: it yields tasks, is sent their results, and returns a
:class:`PdhgResult`.  It knows no clock and no engine; :func:`carrying_out` has both, and says what
ended the search where the target was missed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any, Protocol, runtime_checkable

from teal.problem import Problem
from teal.runtime.interruptible import Deadline, Steps
from teal.solvers.result import PdhgResult, PdhgState, ProgressCallback, Stop


@dataclasses.dataclass(frozen=True, eq=False)
class TimeShare:
    """The time of some tasks together, counted from when the first of them begins.

    Attributes:
        fraction: fraction of the time that is then left to ``enclosing``.
        enclosing: the time of which it is a part; None for that of the sequence.
    """

    fraction: float
    enclosing: TimeShare | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Solve:
    """A program to solve; its answer is a :class:`PdhgResult`.

    Attributes:
        problem: problem whose objective is a single program.
        gap: target.
        start: start of the search; None for none.
        time: time that it may take; None for all that is left.
        may_skip: whether the answer may be None where no time is left.
        max_iterations: None for that of the sequence.
    """

    problem: Problem
    gap: float
    start: PdhgState | None = None
    time: TimeShare | None = None
    may_skip: bool = False
    max_iterations: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Compute:
    """A computation other than a program; its answer is what the computation returns.

    Attributes:
        begin: makes the computation, which obeys the deadline that it is given.
        time: as in :class:`Solve`.
    """

    begin: Callable[[Deadline], Steps[Any]]
    time: TimeShare | None = None


@dataclasses.dataclass(frozen=True)
class Progress:
    """The widest gap that is certified so far, infinite if none is known; its answer is None."""

    gap: float


Task = Solve | Compute | Progress
Tasks = Generator[Task, Any, PdhgResult]
PartOfTasks = Generator[Task, Any, Any]


@runtime_checkable
class SolveProgram(Protocol):
    """Solves one program; see :func:`teal.solvers.pdhg.solve`."""

    def __call__(
        self,
        problem: Problem,
        *,
        gap: float,
        deadline: Deadline,
        max_iterations: int,
        warm_start: PdhgState | None,
    ) -> Steps[PdhgResult]:
        """Solve all matrices."""
        ...


def carrying_out(
    tasks: Tasks,
    solve: SolveProgram,
    *,
    deadline: Deadline | None = None,
    max_iterations: int = 10_000,
    report: ProgressCallback | None = None,
) -> Steps[PdhgResult]:
    """Do the tasks in their order, pausing where ``solve`` does and after each task; the result of
    the sequence.

    Args:
        tasks: tasks of the sequence.
        solve: for one program.
        deadline: deadline of the sequence; None for none.
        max_iterations: iterations of each program, at most.
        report: called with the iterations of all programs and the gap of each :class:`Progress`.
    """
    whole, iterations, answer, was_skipped = deadline or Deadline(), 0, None, False
    deadlines: dict[TimeShare, Deadline] = {}

    def until(time: TimeShare | None) -> Deadline:
        if time is None:
            return whole
        if time not in deadlines:
            deadlines[time] = until(time.enclosing).share(time.fraction)
        return deadlines[time]

    while True:
        try:
            task = tasks.send(answer)
        except StopIteration as end:
            result: PdhgResult = end.value
            missed = Stop.DEADLINE if was_skipped or whole.is_over else Stop.ITERATIONS
            stopped_by = tuple(
                Stop.GAP if stop is Stop.GAP else missed for stop in result.stopped_by
            )
            return dataclasses.replace(result, iterations=iterations, stopped_by=stopped_by)
        answer = None
        if isinstance(task, Progress):
            if report is not None:
                report(iterations, task.gap)
            continue
        end_of_task = until(task.time)
        if isinstance(task, Compute):
            answer = yield from task.begin(end_of_task)
        elif task.may_skip and end_of_task.is_over:
            was_skipped = True
        else:
            most = (
                max_iterations
                if task.max_iterations is None
                else min(max_iterations, task.max_iterations)
            )
            answer = yield from solve(
                task.problem,
                gap=task.gap,
                deadline=end_of_task,
                max_iterations=most,
                warm_start=task.start,
            )
            iterations += answer.iterations
        yield
