"""LP-all under concave values of demands, through cvxpy.

With shares z[d, j] of a demand on its columns, which are its paths, or those of
:mod:`teal.problem.program` under side conditions, and rows r, which are the links and one for each
budget,

    max sum over d of W[d] u(sum_j z[d, j])
    s.t.  sum_j z[d, j] <= 1,  load[r] <= limit[r],  0 <= z <= largest.

Utilities (:mod:`teal.problem.curves`) are exponential cones for log and power cones for other
alpha, which Clarabel takes, an interior-point method.  Bandwidth functions
(:mod:`teal.network.bandwidth_functions`) are linear, with a share for each piece that is at most as
long as the piece; HiGHS solves them.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from baselines.matrix import Array
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.problem.program import Program
from teal.solvers.projection import project

# Tolerance of the gap and of the constraints.
_TOLERANCE = 1e-9
_STATUSES = {
    "optimal": Status.OPTIMAL,
    "optimal_inaccurate": Status.FEASIBLE,
    "user_limit": Status.TIME_LIMIT,
}


def solve_concave(cvxpy: Any, problem: Problem, time_limit: float) -> Allocation:
    """Solve every matrix; splits are projected, since the solver's rows hold to its tolerance
    (without conditions).

    Args:
        cvxpy: the module.
        problem: whose demands have a utility or a value that falls in steps, in float64.
        time_limit: s for each matrix; 0 for none.
    """
    splits = torch.zeros_like(problem.even_splits)
    prices = torch.zeros_like(problem.capacity)
    statuses = list[Status]()
    build_s = list[float]()
    solve_s = list[float]()
    for b in range(problem.batch):
        begin = time.perf_counter()
        row = problem.row(b)
        columns = row.rewritten.program
        program, shares, rows, unit = _program(cvxpy, row, columns)
        limit = {"time_limit": time_limit} if time_limit else {}
        tolerances = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), _TOLERANCE)
        of_solver = (
            {"solver": "HIGHS"} if problem.utility is None else {"solver": "CLARABEL", **tolerances}
        )
        built = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of inaccurate results, which the status reports
                program.solve(**of_solver, **limit)
            status = _STATUSES.get(program.status, Status.FAILED)
        except cvxpy.SolverError:
            status = Status.FAILED
        statuses.append(status)
        build_s.append(built - begin)
        solve_s.append(time.perf_counter() - built)
        if status.usable:
            dual_prices = torch.zeros_like(columns.live, dtype=splits.dtype)
            dual_prices[columns.live] = torch.from_numpy(np.maximum(shares.value, 0)).to(
                dual_prices
            )
            splits[b] = row.rewritten.splits(dual_prices)[0]
            links = problem.topology.num_links
            # Duals are those of rows scaled by the limit.
            dual = torch.from_numpy(np.maximum(rows.dual_value, 0)[:links]).to(prices)
            prices[b] = dual * unit * problem.inverse_capacity[b]
    splits = splits if problem.conditions else project(problem, splits)
    return Allocation(splits, prices, tuple(statuses), tuple(build_s), tuple(solve_s))


def _program(cvxpy: Any, problem: Problem, columns: Program) -> tuple[Any, Any, Any, float]:
    """Program of one matrix, shares of its live columns, rows, and unit of the value."""
    # Weights of the demands, relative to their sum.
    utility = problem.utility
    mask = columns.live[0].cpu().numpy()
    d, _ = np.nonzero(mask)
    demand = problem.demand[0].cpu().numpy()
    limit = columns.limit[0].cpu().numpy()
    utility_weight = problem.demand_value if utility is None else utility.unit_value[0]
    weight = (utility_weight * problem.demand[0]).cpu().numpy()
    unit = float(weight.sum()) or 1.0
    weight = weight / unit
    # Constraints of the rows, relative to their limits, and shares of the demands.
    on_rows = columns.columns.incidence(len(limit))[:, np.flatnonzero(mask.reshape(-1))]
    inverse = np.where(limit > 0, 1 / np.where(limit > 0, limit, 1), 0.0)
    use = sp.csr_matrix(sp.diags_array(inverse) @ on_rows @ sp.diags_array(demand[d]))
    of_demand = sp.csr_matrix((np.ones(len(d)), (d, np.arange(len(d)))), (len(demand), len(d)))
    shares = cvxpy.Variable(len(d), nonneg=True)
    total = of_demand @ shares
    extra_constraints = []
    largest = getattr(columns.demand_set, "max_share", None)
    if largest is not None:
        extra_constraints.append(shares <= largest[0].cpu().numpy()[mask])
    # Objective.
    if utility is not None:
        goal = _utility_goal(cvxpy, utility.curve.alpha, weight, total)
    else:
        goal, constraints = _bandwidth_goal(cvxpy, problem, weight, total)
        extra_constraints += constraints
    links = use @ shares <= 1
    return (
        cvxpy.Problem(cvxpy.Maximize(goal), [total <= 1, links, *extra_constraints]),
        shares,
        links,
        unit,
    )


def _utility_goal(cvxpy: Any, alpha: float, weight: Array, total: Any) -> Any:
    """Weighted sum of the utilities of the served shares.

    Args:
        cvxpy: the module.
        alpha: parameter of alpha-fairness.
        weight: (D,) weight of each demand.
        total: cvxpy expression, served share of each demand.
    """
    has_weight = weight > 0
    power = None if alpha == 1 else cvxpy.power(total[has_weight], 1 - alpha)
    value = cvxpy.log(total[has_weight]) if power is None else (power - 1) / (1 - alpha)
    return weight[has_weight] @ value


def _bandwidth_goal(
    cvxpy: Any, problem: Problem, weight: Array, total: Any
) -> tuple[Any, list[Any]]:
    """Sum of the bandwidth functions of the served shares, and the constraints of their pieces.

    Args:
        cvxpy: the module.
        problem: one matrix.
        weight: (D,) weight of each demand.
        total: cvxpy expression, served share of each demand.
    """
    steps = problem.steps
    assert steps is not None
    end = steps.end[0].cpu().numpy()
    level = np.broadcast_to(steps.level.cpu().numpy(), end.shape)
    parts = [cvxpy.Variable(len(weight), nonneg=True) for _ in end.T]
    constraints = [
        part <= width for part, width in zip(parts, np.diff(end, prepend=0.0).T, strict=True)
    ]
    constraints.append(sum(parts) == total)
    goal = sum((weight * of_piece) @ part for of_piece, part in zip(level.T, parts, strict=True))
    return goal, constraints
