"""Strict priority classes: lexicographic maximisation by a sequence of weighted programs.

Each class is certified (:mod:`teal.problem.priority`).  The program of class c, with the classes
above it, is weighted: a Gbit/s of a class has r times the value of one of the next class.  By
duality the prices p of its solution, in units of class c's value, bound P_c, and its splits serve
as much of the higher classes as possible.  The allocation is that of the last class's program,
which is solved first; the others give bounds, and are solved for classes whose demand alone is no
sufficient bound.  The target gap of a program is the target of class c times the share of class c
in the weighted value.  Where a class misses its target, the cause is improved: the program of the
class, if its bound is loose; the last program, if it serves too little of the class; or r, if the
last program is already solved closely.

Volumes that differ by many decades exceed the accuracy of one weighted program: on small networks
HiGHS solves these programs (:mod:`teal.solvers.exact`).

The residual form (:func:`residual_tasks`) is simpler: each class is allocated on the residual
capacity of the higher ones, which keep their splits; docs/operating.md gives its cost.  Entry
point: :func:`tasks`.
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
from teal.problem.priority import ClassCertificates, by_class, class_certificates
from teal.runtime.interruptible import Deadline, Steps
from teal.solvers.exact import MAX_COLUMNS, exact_classes
from teal.solvers.projection import project
from teal.solvers.result import SolveResult, SolveState, stops_of_sequence
from teal.solvers.sequences.class_rows import ClassRows, class_weights
from teal.solvers.sequences.task import Compute, Progress, Solve, SubTasks, Tasks

_TARGET_SHRINKAGE = 0.5  # largest factor on the target gap of a program that is solved again
_MIN_TARGET = 1e-7  # relative gap; float64 sums certify no smaller one
# Share of a class's missing value above which the gap of the last program, not r, is the cause.
_UNSOLVED_SHARE = 0.25
# r of the first programs.  A smaller r leaves lower classes a larger share of the value, so that
# targets are wider. Solved to 0.05% on B4, GEANT and UsCarrier, a higher class missed its bound by
# at most 0.5%; with 4 0.25, with 2 2.5%.
_FIRST_RATIO = 3.0
_RATIO_GROWTH = 4.0  # factor on r where r is the cause
_MAX_RESOLVES = 12  # largest number of programs after the first pass over all classes
# Share of a link's capacity below which residual capacity counts as 0: rounding errors would spread
# the next program over many decades.
_CLOSED_CAPACITY_SHARE = 1e-6


class _Sequence:
    """Weighted programs of all priority classes, with their latest results.

    The program of class c contains the classes up to c, the highest class first.  A Gbit/s of a
    class has r times the value of a Gbit/s of the next lower class.

    Args:
        problem: B matrices under priority.
        gap: target gap of every class.
        supports_piecewise_linear_values: whether the solver accepts piecewise constant marginal
            values.
        start: warm start of the last program, over all demands; None for a cold start.
    """

    def __init__(
        self,
        problem: Problem,
        gap: float,
        *,
        supports_piecewise_linear_values: bool,
        start: SolveState | None = None,
    ) -> None:
        assert problem.classes is not None
        self.problem = problem
        self.num_classes = len(problem.classes)
        self._gap = gap
        self._rows = ClassRows(problem, may_merge=supports_piecewise_linear_values)
        self._results: list[SolveResult | None] = [None] * self.num_classes
        self._ratio = _FIRST_RATIO
        self._start = None if start is None else self._rows.state(start)
        # (B, C, E) prices of the warm start: they prove bounds here too, though looser ones.
        self._start_prices = self._rows.start_prices(start)
        # Target gap of each program.
        class_demand = by_class(problem, problem.routable_demand)
        self._target_gaps = [
            self._program_gap(class_index, class_demand) for class_index in range(self.num_classes)
        ]

    def _program_gap(self, class_index: int, values: Tensor) -> float:
        """Return the relative gap of a weighted program at which its class reaches the target gap.

        It is the target times the smallest share, over the matrices, of the class in the weighted
        value.

        Args:
            class_index: index of the class.
            values: (B, C) flows or demands of the classes, Gbit/s.
        """
        weighted_value = (
            values[:, : class_index + 1]
            * values.new_tensor(class_weights(class_index, self._ratio))
        ).sum(1)
        share = torch.where(
            weighted_value > 0, values[:, class_index] / weighted_value.clamp(min=1e-300), 1.0
        )
        positive = share[share > 0]
        return max(_MIN_TARGET, self._gap * float(positive.min())) if len(positive) else self._gap

    def solve(self, class_index: int, *, may_skip: bool) -> SubTasks:
        """Yield the program of a class, to be solved to its target gap from its last result.

        Args:
            class_index: index of the class.
            may_skip: whether to skip the program after the deadline.

        Returns:
            false if the program was skipped.
        """
        previous_result = self._results[class_index]
        start = self._start if class_index == self.num_classes - 1 else None
        result = yield Solve(
            self._rows.program(class_index, self._ratio),
            self._target_gaps[class_index],
            start if previous_result is None else previous_result.state,
            may_skip=may_skip,
        )
        if result is not None:
            self._results[class_index] = result
        return result is not None

    def certificates(self) -> ClassCertificates:
        """Return value and bound of each class.

        Values are those of the splits of the last class's program; the bound of a class comes from
        the prices of its program.
        """
        return self._rows.certificates(self.last_class_result.splits, self.prices)

    @property
    def splits(self) -> Tensor:
        """Splits (B, D, K) of all demands in the result of the last class's program."""
        return self._rows.splits(self.last_class_result.splits)

    @property
    def last_class_result(self) -> SolveResult:
        """Latest result of the last class's program, which contains all classes."""
        result = self._results[-1]
        assert result is not None
        return result

    @property
    def prices(self) -> Tensor:
        """Prices (B, C, E) of the program of each class, in units of the class's value.

        Classes whose program is not solved have the prices of the warm start, or 0.
        """
        start_prices = self._start_prices
        prices = [
            start_prices[:, class_index] if result is None else result.prices
            for class_index, result in enumerate(self._results)
        ]
        return torch.stack(prices, 1)

    def improve(self, certificates: ClassCertificates) -> SubTasks:
        """Yield one program to be solved more closely, for the class with the widest gap.

        If the bound of this class is loose, it is the program of the class.  Otherwise the last
        program serves too little of the class: it is solved more closely, or with a larger ratio r.

        Args:
            certificates: value and bound of each class at the last splits.

        Returns:
            false after the deadline, or if no program helps.
        """
        # Class and matrix with the widest gap.
        class_index = int(certificates.gap.amax(0).argmax())
        matrix_index = int(certificates.gap[:, class_index].argmax())
        result = self._results[class_index]
        if result is None:
            return (yield from self.solve(class_index, may_skip=True))
        # Flow of the class in its program, and the part of its bound that the last program misses.
        class_flow = self._rows.class_flows(class_index, result.splits)[matrix_index, class_index]
        missing_value = float(
            certificates.bound[matrix_index, class_index]
            - certificates.value[matrix_index, class_index]
        )
        # Loose bound: more than half of the missing value is above the flow of the class's program.
        is_bound_loose = (
            float(certificates.bound[matrix_index, class_index] - class_flow) > missing_value / 2
        )
        # With a tight bound, improve the last program: raise r if that program's gap explains too
        # little of the missing value.
        is_ratio_raised = False
        if class_index < self.num_classes - 1 and not is_bound_loose:
            last_program_result = self.last_class_result
            missing_weighted_value = (
                missing_value * class_weights(self.num_classes - 1, self._ratio)[class_index]
            )
            is_ratio_raised = _UNSOLVED_SHARE * missing_weighted_value > float(
                last_program_result.bound[matrix_index] - last_program_result.value[matrix_index]
            )
            class_index = self.num_classes - 1
            if is_ratio_raised:
                self._ratio *= _RATIO_GROWTH
        # The program is solved as closely as possible already.
        if self._target_gaps[class_index] <= _MIN_TARGET and not is_ratio_raised:
            return False
        # Solve again at half the target gap or less.
        tighter_target = max(_MIN_TARGET, _TARGET_SHRINKAGE * self._target_gaps[class_index])
        self._target_gaps[class_index] = min(
            self._program_gap(class_index, certificates.value), tighter_target
        )
        return (yield from self.solve(class_index, may_skip=True))


def tasks(
    problem: Problem,
    gap: float,
    *,
    supports_piecewise_linear_values: bool = False,
    start: SolveState | None = None,
) -> Tasks:
    """Yield the tasks of a lexicographic allocation of every matrix, each class certified.

    The program of the last class is solved first and always.  Then the class with the widest gap is
    improved until all classes reach the target, or no program helps.

    Args:
        problem: B matrices under priority.
        gap: target gap of every class: (bound - value) / bound.
        supports_piecewise_linear_values: whether the solver accepts piecewise linear concave
            values, so that the classes of a node pair become one demand.
        start: warm start, splits and prices; None for a cold start.
    """
    # HiGHS may finish small problems on the CPU.
    num_columns = problem.rewritten.program.columns.mask.numel()
    suits_highs = problem.demand.device.type == "cpu" and num_columns <= MAX_COLUMNS
    sequence = _Sequence(
        problem, gap, supports_piecewise_linear_values=supports_piecewise_linear_values, start=start
    )
    yield from sequence.solve(sequence.num_classes - 1, may_skip=False)
    # Incumbent: splits, prices, and value and bound of each class.
    certificates = sequence.certificates()
    splits = sequence.splits
    prices = sequence.prices
    best_certificates = certificates
    for remaining_programs in range(sequence.num_classes + _MAX_RESOLVES, -1, -1):
        max_gap = float(certificates.gap.max())
        # Update the incumbent; it may be better than the last result, since a larger ratio r of the
        # values of successive classes reduces the accuracy of lower classes.
        if max_gap < float(best_certificates.gap.max()):
            splits = sequence.splits
            prices = sequence.prices
            best_certificates = certificates
        yield Progress(float(best_certificates.gap.max()))
        if (
            max_gap <= gap
            or not remaining_programs
            or not (yield from sequence.improve(certificates))
        ):
            break
        certificates = sequence.certificates()
    # Small problems: solve matrices that missed the target by HiGHS.
    certificates = best_certificates
    if float(certificates.gap.max()) > gap and suits_highs:
        splits, prices, certificates = yield Compute(
            partial(_improved_by_highs, problem, splits, prices, certificates, gap)
        )
    return _result(splits, prices, certificates, gap)


def _result(
    splits: Tensor, prices: Tensor, certificates: ClassCertificates, gap: float
) -> SolveResult:
    """Create the result of an allocation under priority.

    Value and bound are sums over the classes; the gap is the widest gap of a class.

    Args:
        splits: (B, D, K) splits.
        prices: (B, C, E) prices of the program of each class.
        certificates: value and bound of each class.
        gap: target gap.
    """
    gaps = certificates.gap.amax(1)
    return SolveResult(
        splits=splits,
        prices=prices[:, -1],
        value=certificates.value.sum(1),
        bound=certificates.bound.sum(1),
        gap=gaps,
        iterations=0,
        solve_s=0.0,
        state=SolveState(splits, prices[:, -1], ProgramPrices(prices)),
        stopped_by=stops_of_sequence(gaps, gap),
        program_prices=ProgramPrices(prices),
        part_certificates=certificates,
    )


def _improved_by_highs(
    problem: Problem,
    splits: Tensor,
    prices: Tensor,
    certificates: ClassCertificates,
    gap: float,
    deadline: Deadline,
) -> Steps[tuple[Tensor, Tensor, ClassCertificates]]:
    """Solve matrices that missed the target gap by HiGHS; keep the solutions with smaller gaps.

    Args:
        problem: B matrices under priority.
        splits: (B, D, K) splits.
        prices: (B, C, E) prices of the program of each class.
        certificates: value and bound of each class.
        gap: target gap.
        deadline: time after which no matrix is begun.

    Returns:
        splits (B, D, K), prices (B, C, E), and value and bound of each class.
    """
    problem64 = problem.to(torch.float64)
    splits = splits.to(torch.float64).clone()
    prices = prices.clone()
    for row in (certificates.gap.amax(1) > gap).nonzero()[:, 0].tolist():
        yield
        if deadline.is_over:
            break
        row_problem = problem64.row(row)
        assert row_problem.classes is not None
        solution = exact_classes(row_problem.rewritten.program, row_problem.classes, deadline)
        if solution is None:
            continue
        # Splits of the linear program, projected to feasible ones, with its link prices.
        shares = project(row_problem.over_columns, solution[0])
        row_prices = solution[1][..., : prices.shape[-1]]
        row_splits = row_problem.rewritten.splits(shares)
        # Keep this solution if its widest gap is smaller.
        if float(class_certificates(row_problem, row_splits, row_prices).gap.max()) < float(
            certificates.gap[row].max()
        ):
            splits[row] = row_splits[0]
            prices[row] = row_prices[0]
    return splits, prices, class_certificates(problem64, splits, prices)


def residual_tasks(problem: Problem, gap: float) -> Tasks:
    """Yield the tasks of the residual form of priority.

    Each class is allocated on the capacity that the higher classes leave unused.  The result has
    valid splits; its prices, value and bound are those of the last class's program.

    Args:
        problem: B matrices under priority.
        gap: target gap of every class's program.

    Raises:
        InputError: side conditions, since they couple the classes.
    """
    assert problem.classes is not None
    if problem.conditions:
        raise InputError("form=residual", "problem", "a problem without side conditions", problem)
    residual_capacity = problem.capacity
    splits = torch.zeros_like(problem.path_mask, dtype=problem.demand.dtype)
    # The demands of a class are consecutive; highest class first.
    for class_demands in problem.classes.blocks:
        paths = of_demands(
            problem.paths, torch.arange(class_demands.start, class_demands.stop).numpy()
        )
        program = dataclasses.replace(
            problem,
            paths=paths,
            ops=make_path_ops(paths, problem.ops.device),
            demand=problem.demand[:, class_demands],
            capacity=residual_capacity,
            demand_value=torch.ones_like(problem.demand_value[class_demands]),
            classes=None,
            objective=Objective(),
        )
        result = yield Solve(program, gap)
        splits[:, class_demands] = result.splits.to(splits)
        # Capacity left for the lower classes; almost full links are closed.
        residual_capacity = (
            residual_capacity - program.loads(result.splits.to(program.demand))
        ).clamp(min=0)
        residual_capacity = torch.where(
            residual_capacity > _CLOSED_CAPACITY_SHARE * problem.capacity, residual_capacity, 0
        )
    return dataclasses.replace(result, splits=splits)
