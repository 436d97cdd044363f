"""LP-all under concave values of demands, through cvxpy.

With shares z[d, j] of a demand on its columns (its paths, unless side conditions rewrite them) and
rows r (links, and the budgets of conditions),

    max sum over d of W[d] u(sum_j z[d, j])
    s.t.  sum_j z[d, j] <= 1,  load[r] <= limit[r],  0 <= z <= max_share.

Utilities (:mod:`teal.problem.curves`) are exponential cones for log and power cones for other
alpha, solved by Clarabel, an interior-point method.  Bandwidth functions
(:mod:`teal.network.bandwidth_functions`) are piecewise linear, with a variable for the share in
each piece; HiGHS solves them.
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
    """Solve every matrix of a problem with concave values of demands, through cvxpy.

    Without side conditions, splits are projected onto the capacities, since the solver keeps
    constraints only to a tolerance.

    Args:
        cvxpy: the imported module.
        problem: float64 problem whose demands have a concave utility or bandwidth functions.
        time_limit: time limit for each matrix, s; 0 for none.
    """
    splits = torch.zeros_like(problem.even_splits)
    prices = torch.zeros_like(problem.capacity)
    statuses = list[Status]()
    build_s = list[float]()
    solve_s = list[float]()
    for b in range(problem.batch):
        begin = time.perf_counter()
        matrix_problem = problem.row(b)
        column_program = matrix_problem.rewritten.program
        cvxpy_problem, shares, row_constraints, value_unit = _build_cvxpy_problem(
            cvxpy, matrix_problem, column_program
        )
        time_options = {"time_limit": time_limit} if time_limit else {}
        tolerances = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), _TOLERANCE)
        solver_options = (
            {"solver": "HIGHS"} if problem.utility is None else {"solver": "CLARABEL", **tolerances}
        )
        built = time.perf_counter()
        try:
            with warnings.catch_warnings():
                # Warnings of inaccurate results are ignored: the status reports them.
                warnings.simplefilter("ignore")
                cvxpy_problem.solve(**solver_options, **time_options)
            status = _STATUSES.get(cvxpy_problem.status, Status.FAILED)
        except cvxpy.SolverError:
            status = Status.FAILED
        statuses.append(status)
        build_s.append(built - begin)
        solve_s.append(time.perf_counter() - built)
        # Splits from the shares of the columns, and link prices from the duals of the rows.
        if status.usable:
            column_shares = torch.zeros_like(column_program.live, dtype=splits.dtype)
            column_shares[column_program.live] = torch.from_numpy(np.maximum(shares.value, 0)).to(
                column_shares
            )
            splits[b] = matrix_problem.rewritten.splits(column_shares)[0]
            num_links = problem.topology.num_links
            # The rows are divided by their limits: divide the duals, too.
            row_dual = torch.from_numpy(np.maximum(row_constraints.dual_value, 0)[:num_links]).to(
                prices
            )
            prices[b] = row_dual * value_unit * problem.inverse_capacity[b]
    splits = splits if problem.conditions else project(problem, splits)
    return Allocation(splits, prices, tuple(statuses), tuple(build_s), tuple(solve_s))


def _build_cvxpy_problem(
    cvxpy: Any, problem: Problem, column_program: Program
) -> tuple[Any, Any, Any, float]:
    """Build the program of one matrix.

    Args:
        cvxpy: the imported module.
        problem: problem with B = 1.
        column_program: program of the matrix over columns and rows.

    Returns:
        cvxpy problem; its variable, the shares (n,) of the live columns; its constraint of the rows
        (R,), relative to their limits; and the unit of the objective, the sum of all weights.
    """
    # Weights of the demands, relative to their sum.
    utility = problem.utility
    is_live = column_program.live[0].cpu().numpy()
    column_demand, _ = np.nonzero(is_live)
    demand = problem.demand[0].cpu().numpy()
    limit = column_program.limit[0].cpu().numpy()
    utility_weight = problem.demand_value if utility is None else utility.unit_value[0]
    weight = (utility_weight * problem.demand[0]).cpu().numpy()
    value_unit = float(weight.sum()) or 1.0
    weight = weight / value_unit
    # (R, n) utilisation of each row by a share of 1 on each column, and (D, n) demand of each
    # column.
    incidence = column_program.columns.incidence(len(limit))[:, np.flatnonzero(is_live.reshape(-1))]
    inverse_limit = np.where(limit > 0, 1 / np.where(limit > 0, limit, 1), 0.0)
    utilisation = sp.csr_matrix(
        sp.diags_array(inverse_limit) @ incidence @ sp.diags_array(demand[column_demand])
    )
    demand_incidence = sp.csr_matrix(
        (np.ones(len(column_demand)), (column_demand, np.arange(len(column_demand)))),
        (len(demand), len(column_demand)),
    )
    shares = cvxpy.Variable(len(column_demand), nonneg=True)
    served_share = demand_incidence @ shares
    extra_constraints = []
    max_share = getattr(column_program.demand_set, "max_share", None)
    if max_share is not None:
        extra_constraints.append(shares <= max_share[0].cpu().numpy()[is_live])
    # Objective.
    if utility is not None:
        goal = _utility_goal(cvxpy, utility.curve.alpha, weight, served_share)
    else:
        goal, constraints = _bandwidth_goal(cvxpy, problem, weight, served_share)
        extra_constraints += constraints
    row_constraints = utilisation @ shares <= 1
    return (
        cvxpy.Problem(
            cvxpy.Maximize(goal), [served_share <= 1, row_constraints, *extra_constraints]
        ),
        shares,
        row_constraints,
        value_unit,
    )


def _utility_goal(cvxpy: Any, alpha: float, weight: Array, served_share: Any) -> Any:
    """Return the weighted sum of the utilities of the served shares, a cvxpy expression.

    Args:
        cvxpy: the imported module.
        alpha: exponent of alpha-fairness; 1 for the logarithm.
        weight: (D,) weight of each demand.
        served_share: (D,) cvxpy expression, served share of each demand.
    """
    # u(z) = log z for alpha = 1, else (z^(1 - alpha) - 1) / (1 - alpha).
    has_weight = weight > 0
    power = None if alpha == 1 else cvxpy.power(served_share[has_weight], 1 - alpha)
    value = cvxpy.log(served_share[has_weight]) if power is None else (power - 1) / (1 - alpha)
    return weight[has_weight] @ value


def _bandwidth_goal(
    cvxpy: Any, problem: Problem, weight: Array, served_share: Any
) -> tuple[Any, list[Any]]:
    """Return the sum of the bandwidth functions, and the constraints of their pieces.

    The served share of a demand is the sum of its shares in the pieces, each at most as wide as the
    piece.

    Args:
        cvxpy: the imported module.
        problem: problem with B = 1.
        weight: (D,) weight of each demand.
        served_share: (D,) cvxpy expression, served share of each demand.
    """
    steps = problem.steps
    assert steps is not None
    # (D, pieces) share of the demand at which each piece ends, and slope of the value in it.
    end = steps.end[0].cpu().numpy()
    level = np.broadcast_to(steps.level.cpu().numpy(), end.shape)
    # Slopes fall from piece to piece, so that an optimum fills the pieces in order.
    piece_shares = [cvxpy.Variable(len(weight), nonneg=True) for _ in end.T]
    constraints = [
        piece_share <= width
        for piece_share, width in zip(piece_shares, np.diff(end, prepend=0.0).T, strict=True)
    ]
    constraints.append(sum(piece_shares) == served_share)
    goal = sum(
        (weight * piece_level) @ piece_share
        for piece_level, piece_share in zip(level.T, piece_shares, strict=True)
    )
    return goal, constraints
