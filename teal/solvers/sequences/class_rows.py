"""Weighted programs of priority classes, with classes of a node pair merged into one row.

:class:`ClassRows` builds the programs and translates solutions to classes.  Classes of a node pair
with the same paths share a row with piecewise constant marginal values
(:mod:`teal.problem.steps`); otherwise, and for engines without value steps, each class has separate
rows.
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
from teal.problem.priority import ClassCertificates, bound_of_class, class_certificates
from teal.problem.steps import ValueSteps
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.parallel import partitioned_kernel, threads_for
from teal.solvers.result import SolveState

# Number of parts of the rows whose sums are added in order, so that results do not depend on the
# number of threads.
_SUM_PARTS = 64


def class_weights(class_index: int, ratio: float) -> list[float]:
    """Return the value of a Gbit/s of each class up to ``class_index``, the highest class first.

    Class c has ratio^(class_index - c), so that the class ``class_index`` has 1.
    """
    return [ratio ** (class_index - higher) for higher in range(class_index + 1)]


@partitioned_kernel("out")
def _sum_class_flows(
    begin: int,
    end: int,
    splits: AnyArray,
    demand: FloatArray,
    class_demands: FloatArray,
    out: FloatArray,
) -> None:
    """Sum the served flow of each class over the rows of one matrix.

    Each of R rows has the demands of a node pair in C classes, over K paths; it serves the highest
    class first.

    Args:
        begin, end: range of parts of the rows for this call.
        splits: (R, K) splits.
        demand: (R,) demand of all classes, Gbit/s.
        class_demands: (C, R) demand of each class, Gbit/s.
        out: (parts, C) sums over each part of the rows, Gbit/s (added to).
    """
    num_parts = len(out)
    num_rows = len(demand)
    num_classes = len(class_demands)
    for part in range(begin, end):
        for row in range(num_rows * part // num_parts, num_rows * (part + 1) // num_parts):
            # Distribute the served flow of the row over its classes.
            remaining = splits[row].sum() * demand[row]
            for class_index in range(num_classes):
                class_flow = min(remaining, class_demands[class_index, row])
                out[part, class_index] += class_flow
                remaining -= class_flow


@partitioned_kernel("row")
def _split_class(
    begin: int,
    end: int,
    splits: AnyArray,
    demand: FloatArray,
    class_demands: FloatArray,
    class_index: int,
    row: Int64Array,
    out: AnyArray,
) -> None:
    """Compute splits of the demands of one class, in the ratios of the splits of their rows.

    A row serves the highest class first; lower classes get the remaining flow.

    Args:
        begin, end: range of demands of this call.
        splits: (R, K) splits of the rows.
        demand: (R,) demand of all classes in each row, Gbit/s.
        class_demands: (C, R) demand of each class in each row, Gbit/s.
        class_index: index of the class.
        row: (n,) row of each demand of the class.
        out: (n, K) splits of these demands (written).
    """
    for i in range(begin, end):
        # Served flow of the row, less what higher classes take.
        row_splits = splits[row[i]]
        split_sum = row_splits.sum()
        remaining = split_sum * demand[row[i]]
        for higher in range(class_index):
            remaining -= min(remaining, class_demands[higher, row[i]])
        # Flow of the class, divided among the paths as in the row.
        class_demand = class_demands[class_index, row[i]]
        class_flow = min(remaining, class_demand)
        factor = class_flow / (class_demand * split_sum) if class_flow > 0 else 0.0
        for k in range(len(row_splits)):
            out[i, k] = factor * row_splits[k]


@functools.cache
def warm_up_kernels() -> None:
    """Compile the kernels of this module on one row, before a time limit begins."""
    splits = np.zeros((1, 1))
    zeros = np.zeros((1, 1))
    with threads_for(splits.size):
        _sum_class_flows(splits, zeros[0], zeros, np.zeros((1, 1)))
        _split_class(splits, zeros[0], zeros, 0, np.zeros(1, np.int64), splits)


class ClassRows:
    """Rows of a problem of C classes, from which the weighted programs are built.

    A row is a demand, or the demands of all classes of a node pair.

    Args:
        problem: B matrices under priority.
        may_merge: whether the engine supports piecewise constant marginal values.

    Attributes:
        is_merged: whether some row contains several classes.
    """

    def __init__(self, problem: Problem, *, may_merge: bool) -> None:
        assert problem.classes is not None
        self._classes = problem.classes
        self._problem = problem.to(torch.float64)
        problem64 = self._problem
        # Rows of node pairs if the engine supports them and classes share pairs; else one per
        # demand.
        demands = np.arange(problem.paths.num_demands)
        separate_rows = MergedRows(problem.paths, demands, demands)
        pair_rows = merged_rows(problem.paths) if may_merge else separate_rows
        self.is_merged = len(pair_rows.first) < len(demands)
        self._rows = pair_rows if self.is_merged else separate_rows
        # (B, C, R) demand of each class in each row, Gbit/s.
        self._all_class_demands = problem64.demand.new_zeros(
            problem.batch, len(self._classes), len(self._rows.first)
        )
        for class_index, class_slice in enumerate(self._classes.blocks):
            self._all_class_demands[
                :, class_index, torch.from_numpy(self._rows.row[class_slice])
            ] = problem64.demand[:, class_slice]
        self._programs: dict[int, Problem] = {}
        # Cache per class: the last prices (B, E), and the cost of each row's cheapest path (B, R).
        self._cheapest_costs: dict[int, tuple[Tensor, Tensor]] = {}

    def _class_demands(self, class_index: int) -> Tensor:
        """Return the demands (B, c, R) in Gbit/s of the first c classes in each of R rows.

        c is ``class_index`` + 1; the rows are those with a demand of these classes.
        """
        num_rows = int(np.searchsorted(self._rows.first, self._classes.ptr[class_index + 1]))
        return self._all_class_demands[:, : class_index + 1, :num_rows]

    def _program(self, class_index: int) -> Problem:
        """Return the cached program of the classes up to ``class_index``, before it is weighted."""
        if class_index not in self._programs:
            self._programs[class_index] = self._new_program(class_index)
        return self._programs[class_index]

    def _new_program(self, class_index: int) -> Problem:
        """Build the program of the classes up to ``class_index``; ``program`` sets their values."""
        problem64 = self._problem
        # Conditions may need all demands: lower classes stay, and get the value 0.
        if problem64.conditions:
            return dataclasses.replace(
                problem64, objective=Objective(ObjectiveName.WEIGHTED_FLOW), classes=None
            )
        # A row is a demand of one class, sorted by class.
        if not self.is_merged:
            part = problem64.first_demands(int(self._classes.ptr[class_index + 1]))
            return dataclasses.replace(
                part,
                objective=Objective(ObjectiveName.WEIGHTED_FLOW),
                demand_value=torch.ones_like(part.demand[0]),
            )
        # A row is a node pair with the demand of all these classes.
        demand = self._class_demands(class_index).sum(1)
        paths = self._rows.paths
        ops = problem64.ops
        if demand.shape[1] < paths.num_demands:
            paths = first_demands(paths, demand.shape[1])
        if paths is not problem64.paths:
            ops = make_path_ops(paths, problem64.ops.device)
        return dataclasses.replace(
            problem64,
            paths=paths,
            ops=ops,
            objective=Objective(ObjectiveName.WEIGHTED_FLOW),
            demand=demand,
            demand_value=torch.ones_like(demand[0]),
            classes=None,
        )

    def program(self, class_index: int, ratio: float) -> Problem:
        """Build the weighted program of the classes up to ``class_index``, in float64.

        Args:
            class_index: index of the class with the value 1 per Gbit/s.
            ratio: value of a Gbit/s of a class over its value in the next lower class.
        """
        program = self._program(class_index)
        weight = program.demand.new_tensor(class_weights(class_index, ratio))
        # Separate rows: each demand has the value of its class.
        if not self.is_merged:
            class_size = (
                torch.as_tensor(self._classes.ptr[: class_index + 2]).diff().to(weight.device)
            )
            value = torch.zeros_like(program.demand[0])
            value[: int(class_size.sum())] = weight.repeat_interleave(class_size)
            return dataclasses.replace(program, demand_value=value)
        # Merged rows: one value step per class, in the order of the classes.
        steps = None
        if class_index:
            step_end = self._class_demands(class_index).cumsum(1)
            # A step for each class: its end as a share of the row's demand, exactly 1 for the last
            # class, and its value over that of the highest class.
            step_end = torch.where(step_end[:, -1:] > 0, step_end / step_end[:, -1:], 1)
            steps = ValueSteps((weight / weight[0])[None], step_end.transpose(1, 2).contiguous())
        return dataclasses.replace(
            program, demand_value=weight[0].repeat(program.demand.shape[1]), steps=steps
        )

    def splits(self, splits: Tensor) -> Tensor:
        """Return the splits (B, D, K) of all demands for splits (B, R, K) of the last program."""
        if not self.is_merged:
            return splits
        # Divide the flows of the rows, matrix by matrix and class by class.
        last_class = len(self._classes) - 1
        out = np.empty((len(splits), int(self._classes.ptr[-1]), splits.shape[2]))
        parts = zip(*self._kernel_arrays(last_class, splits), out, strict=True)
        for row_splits, demand, class_demands, demand_splits in parts:
            for class_index, class_slice in enumerate(self._classes.blocks):
                with threads_for(demand_splits[class_slice].size):
                    _split_class(
                        row_splits,
                        demand,
                        class_demands,
                        class_index,
                        self._rows.row[class_slice],
                        demand_splits[class_slice],
                    )
        return torch.from_numpy(out).to(splits)

    def state(self, state: SolveState) -> SolveState:
        """Return a warm start over the rows of the last program for one over all demands.

        The flows of the demands of a row are added up; prices stay.
        """
        if not self.is_merged:
            return state
        # (B, R, K) flows of the rows, Gbit/s, and their splits.
        program = self._program(len(self._classes) - 1)
        flows = state.splits.new_zeros(
            len(state.splits), len(self._rows.first), state.splits.shape[2]
        )
        demand_flows = self._problem.flows(state.splits.to(self._problem.demand)).to(flows)
        flows.index_add_(1, torch.from_numpy(self._rows.row).to(flows.device), demand_flows)
        demand = program.demand[..., None].to(flows)
        return SolveState(torch.where(demand > 0, flows / demand.clamp(min=1e-30), 0), state.prices)

    def start_prices(self, state: SolveState | None) -> Tensor:
        """Return the prices (B, C, E) of each class's program in a warm start; 0 if missing."""
        shape = self._problem.batch, len(self._classes), self._problem.topology.num_links
        prices = (
            None if state is None or state.program_prices is None else state.program_prices.prices
        )
        if prices is None or prices.shape != shape:
            return self._problem.capacity.new_zeros(shape)
        return finite_prices(prices.to(self._problem.capacity))

    def class_flows(self, class_index: int, splits: Tensor) -> Tensor:
        """Return the flows (B, c) in Gbit/s of the c classes up to ``class_index``.

        Args:
            class_index: index of the class.
            splits: (B, R, K) splits of its program.
        """
        # Sums of each matrix over parts of the rows, in parallel.
        sums = np.zeros((len(splits), _SUM_PARTS, class_index + 1))
        for row_splits, demand, class_demands, out in zip(
            *self._kernel_arrays(class_index, splits), sums, strict=True
        ):
            with threads_for(row_splits.size + class_demands.size):
                _sum_class_flows(row_splits, demand, class_demands, out)
        return torch.from_numpy(sums.sum(1)).to(splits.device)

    def _kernel_arrays(
        self, class_index: int, splits: Tensor
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the arrays that the kernels read for the program of a class.

        Args:
            class_index: index of the class, of c classes up to it.
            splits: (B, R, K) splits of the program; further rows are ignored.

        Returns:
            splits (B, R, K), demands (B, R) in Gbit/s, and demands (B, c, R) of each class.
        """
        class_demands = self._class_demands(class_index)
        rows = class_demands.shape[2]
        parts = (splits[:, :rows], self._program(class_index).demand[:, :rows], class_demands)
        row_splits, demand, amounts = (
            part.to("cpu", torch.float64).contiguous().numpy() for part in parts
        )
        return row_splits, demand, amounts

    def certificates(self, splits: Tensor, prices: Tensor) -> ClassCertificates:
        """Return value and bound of each class.

        Values come from the last program's splits, the bound of a class from the prices of its
        program.

        Args:
            splits: (B, R, K) splits.
            prices: (B, C, E) prices of every program, in units of its class's value; 0 if missing.
        """
        if self._problem.conditions:
            return class_certificates(self._problem, splits, prices)
        value = self.class_flows(len(self._classes) - 1, splits)
        bounds = [
            self._bound(class_index, prices[:, class_index], value)
            for class_index in range(len(self._classes))
        ]
        return ClassCertificates.of_bounds(
            self._classes.names, self._all_class_demands.sum(2), value, bounds
        )

    def _bound(self, class_index: int, prices: Tensor, class_flow: Tensor) -> Tensor:
        """Return (B,) the dual bound on the flow of a class, given the flows of higher classes.

        Args:
            class_index: index of the class.
            prices: (B, E) prices of the class's program; zeros give the bound of its routable
                demand.
            class_flow: (B, C) flows of the classes, Gbit/s.
        """
        program = self._program(class_index)
        prices = finite_prices(prices)
        class_demands = self._class_demands(class_index) * program.routable[:, None]
        # Without prices the bound is the demand of the class.
        if not bool(prices.any()):
            return class_demands[:, -1].sum(1)
        # Cost of the cheapest path of each row at these prices, the same for all classes.
        cached = self._cheapest_costs.get(class_index)
        if cached is None or not torch.equal(cached[0], prices):
            cached = self._cheapest_costs[class_index] = (
                prices,
                program.cheapest_path_cost(program.ops.path_sum(prices)),
            )
        cheapest_costs = [cached[1]] * (class_index + 1)
        return bound_of_class(
            program.capacity_value(prices), class_demands.unbind(1), cheapest_costs, class_flow
        )
