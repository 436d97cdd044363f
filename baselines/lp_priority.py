"""Priority classes by a sequence of LPs: the lexicographic optimum, a reference for tests.

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

# The flow of a higher class may be below V_j by this share, so that rounding makes no LP
# infeasible.
_SLACK = 1e-9


def solve_in_order(problem: Problem, settings: LpSettings) -> Allocation:
    """Solve every matrix to the lexicographic optimum; the result has the prices of every class's
    LP.

    Args:
        problem: problem under priority, in float64.
        settings: settings of the LP solver.
    """
    assert problem.classes is not None
    splits = np.zeros((problem.batch, *problem.paths.mask.shape))
    prices = np.zeros((problem.batch, len(problem.classes), problem.topology.num_links))
    statuses = []
    build_s = []
    solve_s = []
    for b, matrix in enumerate(matrices(problem)):
        begin = time.perf_counter()
        flow, prices[b], status, seconds = _solve_classes(
            matrix, problem.classes.of_demand, len(problem.classes), settings
        )
        # Convert flows to splits.
        demand = matrix.demand[:, None]
        splits[b] = np.divide(flow, demand, out=np.zeros_like(flow), where=demand > 0)
        statuses.append(status)
        solve_s.append(seconds)
        build_s.append(time.perf_counter() - begin - seconds)
    class_prices = torch.from_numpy(prices).to(problem.demand)
    return Allocation(
        torch.from_numpy(splits).to(problem.demand),
        class_prices[:, -1],
        tuple(statuses),
        tuple(build_s),
        tuple(solve_s),
        program_prices=ProgramPrices(class_prices),
    )


def _solve_classes(
    matrix: Matrix, demand_class: Array, num_classes: int, settings: LpSettings
) -> tuple[Array, Array, Status, float]:
    """Solve the LPs of all classes of one matrix, the highest class first.

    Args:
        matrix: demands, live paths and capacities.
        demand_class: (D,) index of the class of each demand, the highest class first.
        num_classes: number of classes, C.
        settings: settings of the LP solver.

    Returns:
        flow (D, K) of the last LP, prices (C, E) of all LPs, status of the last LP, and time of the
        solver, s.
    """
    prices = np.zeros((num_classes, len(matrix.capacity)))
    class_flow = list[float]()
    flow = np.zeros(matrix.mask.shape)
    seconds = 0.0
    for class_index in range(num_classes):
        # Demands of this class and all higher ones.
        lp = path_program(matrix, matrix.routable & (demand_class <= class_index), matrix.capacity)
        variable_class = demand_class[lp.path // matrix.mask.shape[1]]
        # Rows that keep the flow of each higher class: -sum of x <= -V_j.
        flow_rows = [
            sp.csr_array(-(variable_class == higher_class).astype(float)[None])
            for higher_class in range(class_index)
        ]
        program = dataclasses.replace(
            lp.program,
            cost=-(variable_class == class_index).astype(float),
            a_ub=sp.csr_array(sp.vstack([lp.program.a_ub, *flow_rows])),
            b_ub=np.concatenate([lp.program.b_ub, [-value * (1 - _SLACK) for value in class_flow]]),
        )
        solution = solve_program(program, settings)
        seconds += solution.seconds
        if not solution.status.usable:
            return flow, prices, solution.status, seconds
        flow = lp.flow(solution)
        prices[class_index] = lp.prices(solution)
        class_flow.append(float(flow[demand_class == class_index].sum()))
    return flow, prices, Status.OPTIMAL, seconds
