"""LP-all under side conditions: the linear program over rewritten columns and rows.

With x[d, j] the flow of demand d on column j, v its value per Gbit/s, a[r, d, j] its coefficient in
row r, and max_share the largest share of the demand on the column:

    max sum v[d, j] x[d, j]  s.t.  sum a[r, d, j] x[d, j] <= limit[r],  sum_j x[d, j] <= demand[d],
    0 <= x[d, j] <= demand[d] max_share[d, j].

Under priority there is one program for each class: it maximises the flow of the class, while higher
classes keep theirs.
"""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse as sp
import torch

from baselines.linear_program import LinearProgram, LpSettings, LpSolution
from baselines.lp_solver import solve_program
from baselines.matrix import Array, power_of_two
from teal.problem import Allocation, Problem, ProgramPrices, Status
from teal.problem.program import Program
from teal.problem.sets import Capped

# The flow of a higher class may fall by this share in later LPs, so that rounding makes none
# infeasible.
_SLACK = 1e-9


def solve_under_conditions(problem: Problem, settings: LpSettings) -> Allocation:
    """Solve every matrix to optimality; under priority, with the prices of each class's LP.

    Args:
        problem: problem with side conditions, in float64.
        settings: settings of the LP solver.
    """
    num_programs = 1 if problem.classes is None else len(problem.classes)
    prices = np.zeros((problem.batch, num_programs, problem.topology.num_links))
    splits = torch.zeros_like(problem.even_splits)
    statuses = []
    build_s = []
    solve_s = []
    for b in range(problem.batch):
        begin = time.perf_counter()
        matrix_problem = problem.row(b)
        # Solve the LPs of the classes in turn.
        programs = _ClassPrograms(
            matrix_problem.rewritten.program,
            np.zeros(problem.paths.num_demands, int)
            if problem.classes is None
            else problem.classes.of_demand,
            is_ordered=problem.classes is not None,
        )
        status = programs.solve(prices[b], settings)
        # Convert shares of the columns to splits of the candidate paths.
        if status.usable:
            splits[b] = matrix_problem.rewritten.splits(programs.shares())[0]
        statuses.append(status)
        solve_s.append(programs.seconds)
        build_s.append(time.perf_counter() - begin - programs.seconds)
    # Gather the results of all matrices.
    all_prices = torch.from_numpy(prices).to(problem.demand)
    return Allocation(
        splits,
        all_prices[:, -1],
        tuple(statuses),
        tuple(build_s),
        tuple(solve_s),
        program_prices=None if problem.classes is None else ProgramPrices(all_prices),
    )


class _ClassPrograms:
    """The LPs of one matrix, one for each class of demands.

    Args:
        program: program of one matrix with J columns of each of D demands and R rows, Gbit/s.
        demand_class: (D,) class of each demand.
        is_ordered: whether to maximise the flow of each class while higher classes keep their flow;
            otherwise the value of all demands is maximised.

    Attributes:
        seconds: time of the solver so far, s.
    """

    def __init__(self, program: Program, demand_class: Array, *, is_ordered: bool) -> None:
        self._program = program
        self._is_ordered = is_ordered
        self._limit = program.limit[0].cpu().numpy()
        demand = program.demand[0].cpu().numpy()
        live = program.live[0].cpu().numpy()
        self._unit = (
            float(power_of_two(self._limit[self._limit > 0].mean()))
            if (self._limit > 0).any()
            else 1.0
        )
        # (n,) indices d J + j of live columns with demand, and the demand and class of each.
        self._column = np.flatnonzero((live & (demand > 0)[:, None]).reshape(-1))
        self._column_demand = self._column // live.shape[1]
        self._column_class = demand_class[self._column_demand]
        # (R + D, n) rows of the program, then of the demands; rates are in a unit near the mean
        # limit.
        rows = program.columns.incidence(len(self._limit))[:, self._column]
        demand_rows = sp.csr_array(
            (np.ones(len(self._column)), (self._column_demand, np.arange(len(self._column)))),
            shape=(len(demand), len(self._column)),
        )
        self._rows = sp.vstack([rows, demand_rows], format="csr")
        self._rhs = np.concatenate([self._limit, demand]) / self._unit
        # (n,) values and upper bounds of the columns.
        self._value = program.value.expand(live.shape).cpu().numpy().reshape(-1)[self._column]
        max_share = np.ones(len(self._column))
        if isinstance(program.demand_set, Capped):
            max_share = program.demand_set.max_share[0].cpu().numpy().reshape(-1)[self._column]
        self._max_flow = max_share * demand[self._column_demand] / self._unit
        # Flow of each solved class, and of each column in the last solution.
        self._class_flow: list[float] = []
        self._flow = np.zeros(len(self._column))
        self.seconds = 0.0

    def solve(self, prices: Array, settings: LpSettings) -> Status:
        """Solve the LPs of all classes, until one has no usable solution; return the last status.

        Args:
            prices: (classes, E) receives the prices of the links.
            settings: settings of the LP solver.
        """
        status = Status.OPTIMAL
        for class_index in range(len(prices)):
            solution = solve_program(self.program(class_index), settings)
            self.store(class_index, solution)
            status = solution.status
            if not status.usable:
                break
            prices[class_index] = self.prices(solution)[: prices.shape[1]]
        return status

    def program(self, class_index: int) -> LinearProgram:
        """Return the LP of a class, which maximises its flow while each higher class keeps its
        flow; the LP of the value if classes are not ordered.

        Args:
            class_index: index of the class, the highest first; 0 if there are no classes.
        """
        # Objective: the flow of the class, or the value of all demands.
        value = (
            (self._column_class == class_index).astype(float) if self._is_ordered else self._value
        )
        kept_flow_rows = [
            sp.csr_array(-(self._column_class == higher_class).astype(float)[None])
            for higher_class in range(class_index)
        ]
        # Columns of lower classes are fixed at 0.
        upper = np.where(self._column_class <= class_index, self._max_flow, 0.0)
        return LinearProgram(
            -value,
            sp.csr_array(sp.vstack([self._rows, *kept_flow_rows])),
            np.concatenate([self._rhs, [-flow * (1 - _SLACK) for flow in self._class_flow]]),
            upper=upper,
            size=self._max_flow,
        )

    def store(self, class_index: int, solution: LpSolution) -> None:
        """Store the solution of a class: flow of the columns and of the class, and time."""
        self._flow = np.maximum(solution.x, 0)
        self.seconds = self.seconds + solution.seconds
        self._class_flow.append(float(self._flow[self._column_class == class_index].sum()))

    def prices(self, solution: LpSolution) -> Array:
        """Return the dual prices (R,) of the rows of the program: links, then those of
        conditions.
        """
        return solution.dual[: len(self._limit)]

    def shares(self) -> torch.Tensor:
        """Return the shares (1, D, J) of the demands on the columns in the last solution."""
        demand = self._program.demand[0].cpu().numpy()
        shares = np.zeros(self._program.live[0].shape)
        shares.reshape(-1)[self._column] = self._flow * self._unit / demand[self._column_demand]
        return torch.from_numpy(shares)[None].to(self._program.demand)
