"""Priority classes by a sequence of programs, each certified (see :mod:`teal.problem.priority`).

The program of class c, with the classes above it, is solved as a weighted one: a Gbit/s of a class
has r times the value of one of the next class, so that by duality the prices p of its solution, in
units of class c's value, bound P_c, and its splits carry as much of the higher classes as they can.
The allocation is that of the last class's program, which is solved first; the others give bounds,
and are solved for classes to which the bound by the demand alone does not give the target.  A
program is solved to the gap that class c needs, which is smaller than the target in the proportion
of class c's value to that of all classes together.  Where a class misses its target, what is to
blame is mended: the program of the class, if its bound is wide; the last program, if it carries too
little of the class; or r, if the last program is solved so closely that it must be r.

Classes whose volumes differ by many decades are beyond the accuracy of one weighted program: on
small networks their programs are then solved by HiGHS (:mod:`teal.solvers.exact`).

The residual form is simpler: each class gets an allocation of its own on the capacity that higher
classes left, and these stay where they are.  docs/operating.md has what that costs.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from torch import Tensor

from teal.errors import InputError
from teal.network.subset import of_demands
from teal.objectives import Objective
from teal.pathops import make_path_ops
from teal.problem import Problem, ProgramPrices
from teal.problem.priority import ClassFigures, by_class, class_figures
from teal.runtime.interruptible import Deadline, Steps
from teal.solvers.exact import MAX_COLUMNS, exact_classes
from teal.solvers.projection import project
from teal.solvers.result import PdhgResult, PdhgState, stops_of_sequence
from teal.solvers.sequences.class_rows import ClassRows, class_weights
from teal.solvers.sequences.task import Compute, PartOfTasks, Progress, Solve, Tasks

_TARGET_SHRINKAGE = 0.5  # x the target of a program that was not enough, at most
_MIN_TARGET = 1e-7  # relative; float64 sums prove no less
# The last program is to blame for what a class misses, and not r, if its gap is more than this
# share of the value that the class would add.
_UNSOLVED_SHARE = 0.25
# r of the first programs.  A smaller one leaves lower classes a larger share of the value, so that
# targets are wider. Solved to 0.05% on B4, GEANT and UsCarrier, a higher class missed its bound by
# at most 0.5%; with 4 0.25, with 2 2.5%.
_FIRST_RATIO = 3.0
_RATIO_GROWTH = 4.0  # x r where r is to blame
_MAX_RESOLVES = 12  # programs that are solved again after the first pass over all classes
# Share of a link's capacity below which what higher classes leave counts as nothing: remainders of
# rounding spread the next program over many decades.
_CLOSED_CAPACITY_SHARE = 1e-6


class _Sequence:
    """The programs of all classes, and what each has found so far.

    Args:
        problem: B matrices under priority.
        gap: target of every class.
        knows_value_steps: whether programs may have values that fall in steps.
        start: start of the last program, as splits of all demands and prices; None for none.
    """

    def __init__(
        self,
        problem: Problem,
        gap: float,
        *,
        knows_value_steps: bool,
        start: PdhgState | None = None,
    ) -> None:
        assert problem.classes is not None
        self.problem, self.count, self._gap = problem, len(problem.classes), gap
        self._rows = ClassRows(problem, may_merge=knows_value_steps)
        self._results: list[PdhgResult | None] = [None] * self.count
        self._ratio, self._start = _FIRST_RATIO, None if start is None else self._rows.state(start)
        # (B, C, E) of an earlier solution, which prove bounds here too, though less close ones.
        self._start_prices = self._rows.start_prices(start)
        demand = by_class(problem, problem.routable_demand)
        self._target = [self._needed(number, demand) for number in range(self.count)]

    def _needed(self, number: int, values: Tensor) -> float:
        """Relative gap of the weighted program at which class ``number`` has its target.

        Args:
            number: number of the class.
            values: (B, C) Gbit/s of the classes, or their demands.
        """
        weighted = (
            values[:, : number + 1] * values.new_tensor(class_weights(number, self._ratio))
        ).sum(1)
        share = torch.where(weighted > 0, values[:, number] / weighted.clamp(min=1e-300), 1.0)
        positive = share[share > 0]
        return max(_MIN_TARGET, self._gap * float(positive.min())) if len(positive) else self._gap

    def solving(self, number: int, *, may_skip: bool) -> PartOfTasks:
        """Solve the program of a class to its target, from its last result if there is one; false
        if it was skipped.
        """
        last = self._results[number]
        start = self._start if number == self.count - 1 else None
        result = yield Solve(
            self._rows.program(number, self._ratio),
            self._target[number],
            start if last is None else last.state,
            may_skip=may_skip,
        )
        if result is not None:
            self._results[number] = result
        return result is not None

    def figures(self) -> ClassFigures:
        """The figures of the last program's splits, by the prices of every program."""
        return self._rows.figures(self.last.splits, self.prices)

    @property
    def splits(self) -> Tensor:
        """(B, D, K) of the last program, for all demands."""
        return self._rows.splits(self.last.splits)

    @property
    def last(self) -> PdhgResult:
        """The result of the last class's program."""
        result = self._results[-1]
        assert result is not None
        return result

    @property
    def prices(self) -> Tensor:
        """(B, C, E) of each program, in units of its class's value; those of the start, or 0, where
        none was solved.
        """
        before = self._start_prices
        known = [
            before[:, number] if result is None else result.prices
            for number, result in enumerate(self._results)
        ]
        return torch.stack(known, 1)

    def improving(self, figures: ClassFigures) -> PartOfTasks:
        """Solve one program further, for the class with the widest gap; false if no time is left or
        nothing helps.

        Args:
            figures: figures of the last splits.
        """
        number = int(figures.gap.amax(0).argmax())
        row = int(figures.gap[:, number].argmax())
        result = self._results[number]
        if result is None:
            return (yield from self.solving(number, may_skip=True))
        carried = self._rows.carried(number, result.splits)[row, number]
        missing = float(figures.bound[row, number] - figures.value[row, number])
        # Where the bound is not loose, the last program carries too little of the class.
        is_bound_loose = float(figures.bound[row, number] - carried) > missing / 2
        was_raised = False
        if number < self.count - 1 and not is_bound_loose:
            last = self.last
            added = missing * class_weights(self.count - 1, self._ratio)[number]
            was_raised = _UNSOLVED_SHARE * added > float(last.bound[row] - last.value[row])
            number = self.count - 1
            if was_raised:
                self._ratio *= _RATIO_GROWTH
        if self._target[number] <= _MIN_TARGET and not was_raised:
            return False
        tighter = max(_MIN_TARGET, _TARGET_SHRINKAGE * self._target[number])
        self._target[number] = min(self._needed(number, figures.value), tighter)
        return (yield from self.solving(number, may_skip=True))


def tasks(
    problem: Problem, gap: float, *, knows_value_steps: bool = False, start: PdhgState | None = None
) -> Tasks:
    """The tasks of a lexicographic allocation of every matrix, each class certified to ``gap``.

    The program of the last class is solved in any case.

    Args:
        problem: B matrices under priority.
        gap: target of every class: (bound - value) / bound.
        knows_value_steps: whether programs may have values that fall in steps, so that the classes
            of a pair are a row.
        start: splits and prices near the solution; None for none.
    """
    num_columns = problem.rewritten.program.columns.mask.numel()
    is_small = problem.demand.device.type == "cpu" and num_columns <= MAX_COLUMNS
    sequence = _Sequence(problem, gap, knows_value_steps=knows_value_steps, start=start)
    yield from sequence.solving(sequence.count - 1, may_skip=False)
    figures = sequence.figures()
    splits, prices, best = sequence.splits, sequence.prices, figures
    for left in range(sequence.count + _MAX_RESOLVES, -1, -1):
        widest = float(figures.gap.max())
        if widest < float(best.gap.max()):  # a larger r leaves lower classes less accuracy
            splits, prices, best = sequence.splits, sequence.prices, figures
        yield Progress(float(best.gap.max()))
        if widest <= gap or not left or not (yield from sequence.improving(figures)):
            break
        figures = sequence.figures()
    figures = best
    if float(figures.gap.max()) > gap and is_small:
        splits, prices, figures = yield Compute(
            partial(_with_exact_rows, problem, splits, prices, figures, gap)
        )
    return _result(splits, prices, figures, gap)


def _result(splits: Tensor, prices: Tensor, figures: ClassFigures, gap: float) -> PdhgResult:
    """The result of splits (B, D, K) and prices (B, C, E) of the program of each class."""
    gaps = figures.gap.amax(1)
    return PdhgResult(
        splits=splits,
        prices=prices[:, -1],
        value=figures.value.sum(1),
        bound=figures.bound.sum(1),
        gap=gaps,
        iterations=0,
        solve_s=0.0,
        state=PdhgState(splits, prices[:, -1], ProgramPrices(prices)),
        stopped_by=stops_of_sequence(gaps, gap),
        program_prices=ProgramPrices(prices),
        lines=figures,
    )


def _with_exact_rows(
    problem: Problem,
    splits: Tensor,
    prices: Tensor,
    figures: ClassFigures,
    gap: float,
    deadline: Deadline,
) -> Steps[tuple[Tensor, Tensor, ClassFigures]]:
    """The result with matrices that missed ``gap`` solved by linear programs, where that closes the
    gap further.

    Args:
        problem: B matrices under priority.
        splits: (B, D, K).
        prices: (B, C, E).
        figures: figures of both.
        gap: target.
        deadline: after which no further matrix is begun.
    """
    exact = problem.to(torch.float64)
    splits, prices = splits.to(torch.float64).clone(), prices.clone()
    for row in (figures.gap.amax(1) > gap).nonzero()[:, 0].tolist():
        yield
        if deadline.is_over:
            break
        one = exact.row(row)
        assert one.classes is not None
        solved = exact_classes(one.rewritten.program, one.classes, deadline)
        if solved is None:
            continue
        shares, row_prices = (
            project(one.over_columns, solved[0]),
            solved[1][..., : prices.shape[-1]],
        )
        row_splits = one.rewritten.splits(shares)
        if float(class_figures(one, row_splits, row_prices).gap.max()) < float(
            figures.gap[row].max()
        ):
            splits[row], prices[row] = row_splits[0], row_prices[0]
    return splits, prices, class_figures(exact, splits, prices)


def residual_tasks(problem: Problem, gap: float) -> Tasks:
    """The tasks of the residual form, whose result has splits alone: each class on the capacity
    that higher ones left.

    Args:
        problem: B matrices under priority.
        gap: gap of every class's program.

    Raises:
        InputError: side conditions, which are on all classes together.
    """
    assert problem.classes is not None
    if problem.conditions:
        raise InputError("form=residual", "problem", "one without side conditions", problem)
    residual, splits = (
        problem.capacity,
        torch.zeros_like(problem.path_mask, dtype=problem.demand.dtype),
    )
    for rows in problem.classes.blocks:
        paths = of_demands(problem.paths, torch.arange(rows.start, rows.stop).numpy())
        program = dataclasses.replace(
            problem,
            paths=paths,
            ops=make_path_ops(paths, problem.ops.device),
            demand=problem.demand[:, rows],
            capacity=residual,
            demand_value=torch.ones_like(problem.demand_value[rows]),
            classes=None,
            objective=Objective(),
        )
        result = yield Solve(program, gap)
        splits[:, rows] = result.splits.to(splits)
        residual = (residual - program.loads(result.splits.to(program.demand))).clamp(min=0)
        residual = torch.where(residual > _CLOSED_CAPACITY_SHARE * problem.capacity, residual, 0)
    return dataclasses.replace(result, splits=splits)
