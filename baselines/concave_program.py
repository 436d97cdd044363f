"""LP-all under concave values of demands, through cvxpy.

With shares z[d, k] of a demand on its paths,

    max sum over d of W[d] u(sum_k z[d, k])  s.t.  sum_k z[d, k] <= 1,  load[e] <= c[e],  z >= 0.

Utilities (:mod:`teal.problem.curves`) are exponential cones for log and power cones for other alpha, which Clarabel
takes, an interior-point method.  Bandwidth functions (:mod:`teal.network.bandwidth_functions`) are linear, with a share
for each piece that is at most as long as the piece; HiGHS solves them.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.solvers.projection import project

_TOLERANCE = 1e-9  # of the gap and of the rows
_STATUSES = {"optimal": Status.OPTIMAL, "optimal_inaccurate": Status.FEASIBLE, "user_limit": Status.TIME_LIMIT}


def solve_concave(cvxpy: Any, problem: Problem, time_limit: float) -> Allocation:
    """Solve every matrix; the splits are projected, since the solver's rows hold to its tolerance.

    Args:
        cvxpy: the module.
        problem: whose demands have a utility or a value that falls in steps, in float64.
        time_limit: s for each matrix; 0 for none.
    """
    splits, prices = torch.zeros_like(problem.even_splits), torch.zeros_like(problem.capacity)
    statuses, build_s, solve_s = list[Status](), list[float](), list[float]()
    for b in range(problem.batch):
        begin = time.perf_counter()
        program, shares, rows, unit = _program(cvxpy, problem.row(b))
        limit = {"time_limit": time_limit} if time_limit else {}
        tolerances = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), _TOLERANCE)
        of_solver = {"solver": "HIGHS"} if problem.utility is None else {"solver": "CLARABEL", **tolerances}
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
            found = torch.zeros_like(splits[b])
            found[problem.path_mask[b]] = torch.from_numpy(shares.value).to(found)
            splits[b] = found
            dual = torch.from_numpy(np.maximum(rows.dual_value, 0)).to(prices)  # of rows in units of the capacity
            prices[b] = dual * unit * problem.inverse_capacity[b]
    return Allocation(project(problem, splits), prices, tuple(statuses), tuple(build_s), tuple(solve_s))


def _program(cvxpy: Any, problem: Problem) -> tuple[Any, Any, Any, float]:
    """The program of one matrix, the shares of its live paths, the rows of links, and the unit of its value."""
    utility, steps = problem.utility, problem.steps
    mask = problem.path_mask[0].cpu().numpy()
    d, _ = np.nonzero(mask)
    demand, capacity = problem.demand[0].cpu().numpy(), problem.capacity[0].cpu().numpy()
    worth = problem.demand_value if utility is None else utility.worth[0]
    weight = (worth * problem.demand[0]).cpu().numpy()
    unit = float(weight.sum()) or 1.0
    weight = weight / unit
    along = [problem.paths.links_of(int(i), int(k)) for i, k in zip(*np.nonzero(mask), strict=True)]
    lengths = [len(links) for links in along]
    rows = np.concatenate([np.asarray(links) for links in along]) if along else np.zeros(0, int)
    columns = np.repeat(np.arange(len(d)), lengths)
    use = sp.csr_matrix((np.repeat(demand[d], lengths) / capacity[rows], (rows, columns)), (len(capacity), len(d)))
    of_demand = sp.csr_matrix((np.ones(len(d)), (d, np.arange(len(d)))), (len(demand), len(d)))
    shares = cvxpy.Variable(len(d), nonneg=True)
    total, has_weight, further = of_demand @ shares, weight > 0, []
    if utility is not None:
        alpha = utility.curve.alpha
        power = None if alpha == 1 else cvxpy.power(total[has_weight], 1 - alpha)
        value = cvxpy.log(total[has_weight]) if power is None else (power - 1) / (1 - alpha)
        goal = weight[has_weight] @ value
    else:
        assert steps is not None
        end = steps.end[0].cpu().numpy()
        level = np.broadcast_to(steps.level.cpu().numpy(), end.shape)
        parts = [cvxpy.Variable(len(demand), nonneg=True) for _ in end.T]
        further = [part <= width for part, width in zip(parts, np.diff(end, prepend=0.0).T, strict=True)]
        further.append(sum(parts) == total)
        goal = sum((weight * of_piece) @ part for of_piece, part in zip(level.T, parts, strict=True))
    links = use @ shares <= 1
    return cvxpy.Problem(cvxpy.Maximize(goal), [total <= 1, links, *further]), shares, links, unit
