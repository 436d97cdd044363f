"""The weighted programs of priority classes, and what their solutions mean for each class.

Where several classes of a pair of nodes may use the same paths, their demands are one row, whose
value falls in steps (:mod:`teal.problem.steps`); elsewhere, and for engines that know no steps,
each class has rows of its own.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import torch
from torch import Tensor

from teal.network.path_changes import MergedRows, merged_rows
from teal.network.subset import first_demands
from teal.objectives import Objective, ObjectiveName
from teal.pathops import make_path_ops
from teal.problem import Problem
from teal.problem.bounds import finite_prices
from teal.problem.priority import ClassFigures, bound_of_class, class_figures
from teal.problem.steps import ValueSteps
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.parallel import on_all_threads, partitioned_kernel, threads_for
from teal.solvers.result import PdhgState

# of the rows, whose sums are added in their order, so that no result depends on the number of
# threads
_SUM_PARTS = 64


def class_weights(number: int, ratio: float) -> list[float]:
    """Values of a Gbit/s of the classes up to ``number``, which has 1; each ``ratio`` times that of
    the next one.
    """
    return [ratio ** (number - above) for above in range(number + 1)]


@partitioned_kernel("out")
def _carried(
    begin: int, end: int, splits: AnyArray, demand: FloatArray, amount: FloatArray, out: FloatArray
) -> None:
    """Sum what the rows of one matrix carry of each class; a row serves the highest class first.

    Args:
        splits: (R, K).
        demand: (R,) Gbit/s of all classes.
        amount: (C, R) Gbit/s of each class.
        out: (parts, C) receives the sums over each part of the rows.
    """
    parts, rows, classes = len(out), len(demand), len(amount)
    for part in range(begin, end):
        for row in range(rows * part // parts, rows * (part + 1) // parts):
            left = splits[row].sum() * demand[row]
            for number in range(classes):
                served = min(left, amount[number, row])
                out[part, number] += served
                left -= served


@partitioned_kernel("row")
def _shared_out(
    begin: int,
    end: int,
    splits: AnyArray,
    demand: FloatArray,
    amount: FloatArray,
    number: int,
    row: Int64Array,
    out: AnyArray,
) -> None:
    """Splits of the demands of one class, in the ratio of those of their rows.

    Args:
        splits, demand, amount: as in :func:`_carried`.
        number: number of the class.
        row: (n,) of each demand.
        out: (n, K) receives the splits.
    """
    for i in range(begin, end):
        of_row = splits[row[i]]
        total = of_row.sum()
        left = total * demand[row[i]]
        for above in range(number):
            left -= min(left, amount[above, row[i]])
        of_class = amount[number, row[i]]
        served = min(left, of_class)
        factor = served / (of_class * total) if served > 0 else 0.0
        for k in range(len(of_row)):
            out[i, k] = factor * of_row[k]


@functools.cache
def rehearse(*, on_all: bool) -> None:
    """Call the kernels once, so that they are compiled before a clock starts."""
    splits, one = np.zeros((1, 1)), np.zeros((1, 1))
    with on_all_threads(on_all), threads_for(splits.size):
        _carried(splits, one[0], one, np.zeros((1, 1)))
        _shared_out(splits, one[0], one, 0, np.zeros(1, np.int64), splits)


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
        # (B, C, R) Gbit/s of each class in each row.
        self._amount = exact.demand.new_zeros(
            problem.batch, len(self._classes), len(self._rows.first)
        )
        for number, block in enumerate(self._classes.blocks):
            self._amount[:, number, torch.from_numpy(self._rows.row[block])] = exact.demand[
                :, block
            ]
        self._without_values: dict[int, Problem] = {}
        # Of each class: the last prices (B, E), and what the cheapest path of each row costs at
        # them, (B, R).
        self._least: dict[int, tuple[Tensor, Tensor]] = {}

    def _amounts(self, number: int) -> Tensor:
        """(B, c, R) of the classes up to ``number``, in their rows."""
        count = int(np.searchsorted(self._rows.first, self._classes.ptr[number + 1]))
        return self._amount[:, : number + 1, :count]

    def _program(self, number: int) -> Problem:
        """The program of the classes up to ``number``, without values; made once."""
        if number not in self._without_values:
            self._without_values[number] = self._new_program(number)
        return self._without_values[number]

    def _new_program(self, number: int) -> Problem:
        exact = self._problem
        if (
            exact.conditions
        ):  # which may read all demands: those of lower classes stay, without value
            return dataclasses.replace(
                exact, objective=Objective(ObjectiveName.WEIGHTED_FLOW), classes=None
            )
        if not self.is_merged:
            part = exact.first_demands(int(self._classes.ptr[number + 1]))
            return dataclasses.replace(
                part,
                objective=Objective(ObjectiveName.WEIGHTED_FLOW),
                demand_value=torch.ones_like(part.demand[0]),
            )
        demand, paths, ops = self._amounts(number).sum(1), self._rows.paths, exact.ops
        if demand.shape[1] < paths.num_demands:
            paths = first_demands(paths, demand.shape[1])
        if paths is not exact.paths:
            ops = make_path_ops(paths, exact.ops.device)
        return dataclasses.replace(
            exact,
            paths=paths,
            ops=ops,
            objective=Objective(ObjectiveName.WEIGHTED_FLOW),
            demand=demand,
            demand_value=torch.ones_like(demand[0]),
            classes=None,
        )

    def program(self, number: int, ratio: float) -> Problem:
        """The weighted program of the classes up to ``number``, in float64.

        Args:
            number: number of the class, whose Gbit/s have the value 1.
            ratio: value of a Gbit/s of a class over that of the next one.
        """
        program = self._program(number)
        weight = program.demand.new_tensor(class_weights(number, ratio))
        if not self.is_merged:
            size = torch.as_tensor(self._classes.ptr[: number + 2]).diff().to(weight.device)
            value = torch.zeros_like(program.demand[0])
            value[: int(size.sum())] = weight.repeat_interleave(size)
            return dataclasses.replace(program, demand_value=value)
        steps = None
        if number:
            end = self._amounts(number).cumsum(1)
            end = torch.where(end[:, -1:] > 0, end / end[:, -1:], 1)  # the last one is 1 exactly
            steps = ValueSteps((weight / weight[0])[None], end.transpose(1, 2).contiguous())
        return dataclasses.replace(
            program, demand_value=weight[0].repeat(program.demand.shape[1]), steps=steps
        )

    def splits(self, splits: Tensor) -> Tensor:
        """(B, D, K) splits of all demands, of splits (B, R, K) of the last program."""
        if not self.is_merged:
            return splits
        number = len(self._classes) - 1
        out = np.empty((len(splits), int(self._classes.ptr[-1]), splits.shape[2]))
        parts = zip(*self._arrays(number, splits), out, strict=True)
        for of_rows, demand, amount, of_demands in parts:
            for of_class, block in enumerate(self._classes.blocks):
                with threads_for(of_demands[block].size):
                    _shared_out(
                        of_rows, demand, amount, of_class, self._rows.row[block], of_demands[block]
                    )
        return torch.from_numpy(out).to(splits)

    def state(self, state: PdhgState) -> PdhgState:
        """A state over the rows of the last program, of one over all demands: the opposite of
        :meth:`splits`.
        """
        if not self.is_merged:
            return state
        program = self._program(len(self._classes) - 1)
        flows = state.splits.new_zeros(
            len(state.splits), len(self._rows.first), state.splits.shape[2]
        )
        sent = self._problem.flows(state.splits.to(self._problem.demand)).to(flows)
        flows.index_add_(1, torch.from_numpy(self._rows.row).to(flows.device), sent)
        demand = program.demand[..., None].to(flows)
        return PdhgState(torch.where(demand > 0, flows / demand.clamp(min=1e-30), 0), state.prices)

    def start_prices(self, state: PdhgState | None) -> Tensor:
        """(B, C, E) prices of every program in a state; 0 where it has none."""
        shape = self._problem.batch, len(self._classes), self._problem.topology.num_links
        known = (
            None if state is None or state.program_prices is None else state.program_prices.prices
        )
        if known is None or known.shape != shape:
            return self._problem.capacity.new_zeros(shape)
        return finite_prices(known.to(self._problem.capacity))

    def carried(self, number: int, splits: Tensor) -> Tensor:
        """(B, c) Gbit/s of each class up to ``number``, of splits (B, R, K) of its program."""
        sums = np.zeros((len(splits), _SUM_PARTS, number + 1))
        for of_rows, demand, amount, out in zip(*self._arrays(number, splits), sums, strict=True):
            with threads_for(of_rows.size + amount.size):
                _carried(of_rows, demand, amount, out)
        return torch.from_numpy(sums.sum(1)).to(splits.device)

    def _arrays(self, number: int, splits: Tensor) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Splits (B, R, K), demands (B, R) and amounts (B, c, R) of the program of class
        ``number``, for kernels.
        """
        amount = self._amounts(number)
        rows = amount.shape[2]
        parts = (splits[:, :rows], self._program(number).demand[:, :rows], amount)
        of_rows, demand, amounts = (
            part.to("cpu", torch.float64).contiguous().numpy() for part in parts
        )
        return of_rows, demand, amounts

    def figures(self, splits: Tensor, prices: Tensor) -> ClassFigures:
        """The figures of the last program's splits, as :func:`teal.problem.priority.class_figures`,
        in less time.

        Args:
            splits: (B, R, K).
            prices: (B, C, E) of every program, in units of the value of its class; 0 for none.
        """
        if self._problem.conditions:
            return class_figures(self._problem, splits, prices)
        value = self.carried(len(self._classes) - 1, splits)
        bounds = [
            self._bound(number, prices[:, number], value) for number in range(len(self._classes))
        ]
        return ClassFigures.of_bounds(self._classes.names, self._amount.sum(2), value, bounds)

    def _bound(self, number: int, prices: Tensor, value: Tensor) -> Tensor:
        """(B,) the bound on the flow of a class, by prices (B, E), beside flows (B, C) of higher
        ones.
        """
        program, prices = self._program(number), finite_prices(prices)
        amount = self._amounts(number) * program.routable[:, None]
        if not bool(prices.any()):
            return amount[:, -1].sum(1)
        before = self._least.get(number)
        if before is None or not torch.equal(before[0], prices):
            before = self._least[number] = (
                prices,
                program.cheapest_path_cost(program.ops.path_sum(prices)),
            )
        least = [before[1]] * (number + 1)
        return bound_of_class(program.capacity_value(prices), amount.unbind(1), least, value)
