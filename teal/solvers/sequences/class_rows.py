"""The weighted programs of priority classes, and what their solutions mean for each class.

Where several classes of a pair of nodes may use the same paths, their demands are one row, whose value falls in steps
(:mod:`teal.problem.steps`); elsewhere, and for engines that know no steps, each class has rows of its own.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from teal.network.merged import MergedRows, merged_rows
from teal.network.subset import first_demands
from teal.objectives import Objective, ObjectiveName
from teal.pathops import make_path_ops
from teal.problem import Problem
from teal.problem.bounds import finite_prices
from teal.problem.priority import ClassFigures, bound_of_class, class_figures
from teal.problem.steps import ValueSteps
from teal.runtime.arrays import Int64Array


def class_weights(number: int, ratio: float) -> list[float]:
    """Values of a Gbit/s of the classes up to ``number``, which has 1; each ``ratio`` times that of the next one."""
    return [ratio ** (number - above) for above in range(number + 1)]


class ClassRows:
    """The rows of a problem of C classes.

    Args:
        problem: B matrices under priority.
        may_merge: whether the engine knows steps.

    Attributes:
        is_merged: whether a row may stand for several classes.
    """

    def __init__(self, problem: Problem, *, may_merge: bool) -> None:
        assert problem.classes is not None
        self._classes, self._problem = problem.classes, problem.to(torch.float64)
        exact = self._problem
        demands = np.arange(problem.paths.num_demands)
        own_rows = MergedRows(problem.paths, demands, demands)
        merged = merged_rows(problem.paths) if may_merge else own_rows
        self.is_merged = len(merged.first) < len(demands)
        self._rows = merged if self.is_merged else own_rows
        self._row = [_as_slice(self._rows.row[block]) for block in self._classes.blocks]
        # (B, R, C) Gbit/s of each class in each row.
        self._amount = exact.demand.new_zeros(problem.batch, len(self._rows.first), len(self._classes))
        for number, block in enumerate(self._classes.blocks):
            self._amount[:, self._row[number], number] = exact.demand[:, block]
        self._programs = [self._program(exact, number) for number in range(len(self._classes))]

    def _amounts(self, number: int) -> Tensor:
        """(B, R, c) of the classes up to ``number``, in their rows."""
        count = int(np.searchsorted(self._rows.first, self._classes.ptr[number + 1]))
        return self._amount[:, :count, : number + 1]

    def _program(self, exact: Problem, number: int) -> Problem:
        """The program of the classes up to ``number``, without values."""
        if exact.conditions:  # which may read all demands: those of lower classes stay, without value
            return dataclasses.replace(exact, objective=Objective(ObjectiveName.WEIGHTED_FLOW), classes=None)
        if not self.is_merged:
            part = exact.first_demands(int(self._classes.ptr[number + 1]))
            return dataclasses.replace(
                part, objective=Objective(ObjectiveName.WEIGHTED_FLOW), demand_value=torch.ones_like(part.demand[0])
            )
        demand, paths, ops = self._amounts(number).sum(-1), self._rows.paths, exact.ops
        if demand.shape[1] < paths.num_demands:
            paths = first_demands(paths, demand.shape[1])
        if paths is not exact.paths:
            ops = make_path_ops(paths, exact.ops.device)
        return dataclasses.replace(
            exact, paths=paths, ops=ops, objective=Objective(ObjectiveName.WEIGHTED_FLOW), demand=demand,
            demand_value=torch.ones_like(demand[0]), classes=None,
        )  # fmt: skip

    def program(self, number: int, ratio: float) -> Problem:
        """The weighted program of the classes up to ``number``, in float64.

        Args:
            number: of the class, whose Gbit/s have the value 1.
            ratio: value of a Gbit/s of a class over that of the next one.
        """
        program = self._programs[number]
        weight = program.demand.new_tensor(class_weights(number, ratio))
        if not self.is_merged:
            size = torch.as_tensor(self._classes.ptr[: number + 2]).diff().to(weight.device)
            value = torch.zeros_like(program.demand[0])
            value[: int(size.sum())] = weight.repeat_interleave(size)
            return dataclasses.replace(program, demand_value=value)
        steps = None
        if number:
            end = self._amounts(number).cumsum(-1)
            end = torch.where(end[..., -1:] > 0, end / end[..., -1:], 1)  # the last one is 1 exactly
            steps = ValueSteps(weight / weight[0], end)
        return dataclasses.replace(program, demand_value=weight[0].repeat(program.demand.shape[1]), steps=steps)

    def carried(self, number: int, splits: Tensor) -> Tensor:
        """(B, c) Gbit/s of each class up to ``number``, of splits (B, R, K) of its program."""
        return self._served(number, splits).sum(1)

    def _served(self, number: int, splits: Tensor) -> Tensor:
        """(B, R, c) Gbit/s of each class in each row, which serves the highest class first."""
        amount = self._amounts(number)
        served = (splits.to(amount).sum(-1) * self._programs[number].demand)[:, : amount.shape[1], None]
        return torch.minimum((served - (amount.cumsum(-1) - amount)).clamp(min=0), amount)

    def splits(self, splits: Tensor) -> Tensor:
        """(B, D, K) splits of all demands, of splits (B, R, K) of the last program."""
        if not self.is_merged:
            return splits
        number = len(self._classes) - 1
        amount, served = self._amounts(number), self._served(number, splits)
        mix = splits / splits.sum(-1, keepdim=True).clamp(min=1e-300)
        out = splits.new_empty(len(splits), int(self._classes.ptr[-1]), splits.shape[2])
        for number, (block, row) in enumerate(zip(self._classes.blocks, self._row, strict=True)):
            of_class = amount[:, row, number]
            share = torch.where(of_class > 0, served[:, row, number] / of_class.clamp(min=1e-300), 0)
            torch.mul(mix[:, row], share[..., None], out=out[:, block])
        return out

    def figures(self, splits: Tensor, prices: Tensor) -> ClassFigures:
        """The figures of the last program's splits, as :func:`teal.problem.priority.class_figures`, in less time.

        Args:
            splits: (B, R, K).
            prices: (B, C, E) of every program, in units of the value of its class.
        """
        if self._problem.conditions:
            return class_figures(self._problem, splits, prices)
        last = len(self._classes) - 1
        value, bounds = self.carried(last, splits), []
        for number, program in enumerate(self._programs):
            of_class = finite_prices(prices[:, number])
            least = program.cheapest_path_cost(program.ops.path_sum(of_class))
            amount = self._amounts(number) * program.routable[..., None]
            bounds.append(
                bound_of_class(program.capacity_value(of_class), amount.unbind(-1), [least] * (number + 1), value)
            )
        return ClassFigures.of_bounds(self._classes.names, self._amount.sum(1), value, bounds)


def _as_slice(rows: Int64Array) -> slice | Tensor:
    """``rows`` as a slice where they follow each other, which reads and writes without a copy; else as a tensor."""
    first = int(rows[0]) if len(rows) else 0
    if (rows == np.arange(first, first + len(rows))).all():
        return slice(first, first + len(rows))
    return torch.from_numpy(rows)
