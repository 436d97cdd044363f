"""Tasks of a sequence of programs, and the loop that runs them.

A sequence objective is a generator: it yields tasks, receives their results, and returns a
:class:`SolveResult`. It is independent of clocks and engines; :func:`run_tasks` provides both, and
sets the stopping criterion of matrices that missed the target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any, Protocol, runtime_checkable

from teal.problem import Problem
from teal.runtime.interruptible import Deadline, Steps
from teal.solvers.result import ProgressCallback, SolveResult, SolveState, Stage, Stop


@dataclasses.dataclass(frozen=True, eq=False)
class TimeShare:
    """Time budget that several tasks share; it begins with the first of these tasks.

    Attributes:
        fraction: fraction of the remaining time of ``enclosing``.
        enclosing: the enclosing time budget; None for the time of the sequence.
    """

    fraction: float
    enclosing: TimeShare | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Solve:
    """Task to solve a program; the sequence receives a :class:`SolveResult`.

    Attributes:
        problem: problem whose objective is a single program.
        gap: target gap.
        start: warm start; None for a cold start.
        time: time budget; None for all remaining time.
        may_skip: whether the program may be skipped after the deadline; the sequence then receives
            None.
        max_iterations: iteration limit; None for the limit of the sequence.
    """

    problem: Problem
    gap: float
    start: SolveState | None = None
    time: TimeShare | None = None
    may_skip: bool = False
    max_iterations: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Compute:
    """Task to run a computation other than a program; the sequence receives its result.

    Attributes:
        begin: function that creates the computation from its deadline.
        time: time budget; None for all remaining time.
    """

    begin: Callable[[Deadline], Steps[Any]]
    time: TimeShare | None = None


@dataclasses.dataclass(frozen=True)
class Progress:
    """Task to report progress; the sequence receives None.

    Attributes:
        gap: widest certified gap of a matrix so far, infinite if unknown.
    """

    gap: float


Task = Solve | Compute | Progress
Tasks = Generator[Task, Any, SolveResult]
SubTasks = Generator[Task, Any, Any]


@runtime_checkable
class SolveProgram(Protocol):
    """Solver of one program, such as :func:`teal.solvers.pipeline.solving`."""

    def __call__(
        self,
        problem: Problem,
        *,
        gap: float,
        deadline: Deadline,
        max_iterations: int,
        warm_start: SolveState | None,
    ) -> Steps[SolveResult]:
        """Solve all matrices of a problem, pausing between iterations.

        Args:
            problem: B matrices under an objective that is a single program.
            gap: target gap.
            deadline: deadline of the last iteration.
            max_iterations: iteration limit.
            warm_start: start; None for a cold start.
        """
        ...


def run_tasks(
    tasks: Tasks,
    solve: SolveProgram,
    *,
    deadline: Deadline | None = None,
    max_iterations: int = 10_000,
    report: ProgressCallback | None = None,
) -> Steps[SolveResult]:
    """Run the tasks of a sequence in order, and return its result.

    The computation pauses where ``solve`` does, and after each task.  Matrices that missed the
    target gap get the deadline or the iteration limit as their stopping criterion.

    Args:
        tasks: tasks of the sequence.
        solve: solver of one program.
        deadline: deadline of the sequence; None for no limit.
        max_iterations: iteration limit of each program.
        report: progress callback: iterations of all programs, and the gap of a :class:`Progress`.
    """
    sequence_deadline = deadline or Deadline()
    # Iterations and stages of all programs; result of the last task; whether a program was skipped;
    # deadline of each time budget that has begun.
    iterations = 0
    trace: list[Stage] = []
    task_result = None
    was_skipped = False
    deadlines: dict[TimeShare, Deadline] = {}

    def budget_deadline(time: TimeShare | None) -> Deadline:
        """Return the deadline of a time budget, set when its first task begins."""
        if time is None:
            return sequence_deadline
        if time not in deadlines:
            deadlines[time] = budget_deadline(time.enclosing).share(time.fraction)
        return deadlines[time]

    while True:
        # Send the result of the last task to the sequence, which yields the next task.  At its end
        # set the stopping criteria.
        try:
            task = tasks.send(task_result)
        except StopIteration as end:
            result: SolveResult = end.value
            missed_stop = (
                Stop.DEADLINE if was_skipped or sequence_deadline.is_over else Stop.ITERATIONS
            )
            stopped_by = tuple(
                Stop.GAP if stop is Stop.GAP else missed_stop for stop in result.stopped_by
            )
            return dataclasses.replace(
                result, iterations=iterations, stopped_by=stopped_by, trace=tuple(trace)
            )
        task_result = None
        if isinstance(task, Progress):
            if report is not None:
                report(iterations, task.gap)
            continue
        # Run the task within its time budget.
        task_deadline = budget_deadline(task.time)
        if isinstance(task, Compute):
            task_result = yield from task.begin(task_deadline)
        elif task.may_skip and task_deadline.is_over:
            was_skipped = True
        else:
            iteration_limit = (
                max_iterations
                if task.max_iterations is None
                else min(max_iterations, task.max_iterations)
            )
            task_result = yield from solve(
                task.problem,
                gap=task.gap,
                deadline=task_deadline,
                max_iterations=iteration_limit,
                warm_start=task.start,
            )
            iterations += task_result.iterations
            trace += task_result.trace
        yield
