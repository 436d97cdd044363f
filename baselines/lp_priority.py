"""Priority classes by a sequence of LPs, the reference of :mod:`teal.solvers.sequences.priority`.

With x[d, k] the flow on path k of demand d and V_j the optimum of class j, the LP of class c is

    max sum of x over class c  s.t.  sum_k x[d, k] <= demand[d],  load[e] <= capacity[e],
    sum of x over class j >= V_j for every higher class j,  x >= 0.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import scipy.sparse as sp
import torch

from baselines.linear_program import LpSettings
from baselines.lp_solver import solve_program
from baselines.matrix import Array, Matrix, matrices
from baselines.path_program import path_program
from teal.problem import Allocation, Problem, ProgramPrices, Status

# share of V_j by which the next LPs may fall short of it, so that rounding makes none infeasible
_SLACK = 1e-9


def solve_in_order(problem: Problem, settings: LpSettings) -> Allocation:
    """The lexicographic optimum of every matrix, with the prices of every class's LP.

    Args:
        problem: under priority, in float64.
        settings: of the LP solver.
    """
    assert problem.classes is not None
    splits = np.zeros((problem.batch, *problem.paths.mask.shape))
    prices = np.zeros((problem.batch, len(problem.classes), problem.topology.num_links))
    statuses = []
    build_s = []
    solve_s = []
    for b, matrix in enumerate(matrices(problem)):
        begin = time.perf_counter()
        flow, prices[b], status, seconds = _solve_class(
            matrix, problem.classes.of_demand, len(problem.classes), settings
        )
        demand = matrix.demand[:, None]
        splits[b] = np.divide(flow, demand, out=np.zeros_like(flow), where=demand > 0)
        statuses.append(status)
        solve_s.append(seconds)
        build_s.append(time.perf_counter() - begin - seconds)
    price_rows = torch.from_numpy(prices).to(problem.demand)
    return Allocation(
        torch.from_numpy(splits).to(problem.demand),
        price_rows[:, -1],
        tuple(statuses),
        tuple(build_s),
        tuple(solve_s),
        program_prices=ProgramPrices(price_rows),
    )


def _solve_class(
    matrix: Matrix, of_demand: Array, count: int, settings: LpSettings
) -> tuple[Array, Array, Status, float]:
    """Flow (D, K) of the last LP, prices (C, E) of all, the status, and the seconds that the solver
    took.
    """
    prices = np.zeros((count, len(matrix.capacity)))
    reached = list[float]()
    flow = np.zeros(matrix.mask.shape)
    seconds = 0.0
    for class_index in range(count):
        lp = path_program(matrix, matrix.routable & (of_demand <= class_index), matrix.capacity)
        of_variable = of_demand[lp.path // matrix.mask.shape[1]]
        promised = [
            sp.csr_array(-(of_variable == higher_class).astype(float)[None])
            for higher_class in range(class_index)
        ]
        program = dataclasses.replace(
            lp.program,
            cost=-(of_variable == class_index).astype(float),
            a_ub=sp.csr_array(sp.vstack([lp.program.a_ub, *promised])),
            b_ub=np.concatenate([lp.program.b_ub, [-value * (1 - _SLACK) for value in reached]]),
        )
        solution = solve_program(program, settings)
        seconds += solution.seconds
        if not solution.status.usable:
            return flow, prices, solution.status, seconds
        flow = lp.flow(solution)
        prices[class_index] = lp.prices(solution)
        reached.append(float(flow[of_demand == class_index].sum()))
    return flow, prices, Status.OPTIMAL, seconds
