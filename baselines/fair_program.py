"""LP-all under concave utilities: the program of :mod:`teal.problem.curves` by Clarabel, an interior-point method.

With shares z[d, k] of a demand on its paths,

    max sum over d of W[d] u(sum_k z[d, k])  s.t.  sum_k z[d, k] <= 1,  load[e] <= c[e],  z >= 0,

as exponential cones for log and power cones for other alpha, through cvxpy.
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


def solve_fair(cvxpy: Any, problem: Problem, time_limit: float) -> Allocation:
    """Solve every matrix; the splits are projected, since the solver's rows hold to its tolerance.

    Args:
        cvxpy: the module.
        problem: whose demands have a utility, in float64.
        time_limit: s for each matrix; 0 for none.
    """
    splits, prices = torch.zeros_like(problem.even_splits), torch.zeros_like(problem.capacity)
    statuses, build_s, solve_s = list[Status](), list[float](), list[float]()
    for b in range(problem.batch):
        begin = time.perf_counter()
        program, shares, rows = _program(cvxpy, problem.row(b))
        limit = {"time_limit": time_limit} if time_limit else {}
        tolerances = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), _TOLERANCE)
        built = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of inaccurate results, which the status reports
                program.solve(solver="CLARABEL", **tolerances, **limit)
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
            prices[b] = _prices(problem.row(b), rows)
    return Allocation(project(problem, splits), prices, tuple(statuses), tuple(build_s), tuple(solve_s))


def _program(cvxpy: Any, problem: Problem) -> tuple[Any, Any, Any]:
    """The program of one matrix, the shares of its live paths, and the rows of links."""
    utility = problem.utility
    assert utility is not None
    mask = problem.path_mask[0].cpu().numpy()
    d, _ = np.nonzero(mask)
    demand, capacity = problem.demand[0].cpu().numpy(), problem.capacity[0].cpu().numpy()
    weight = (utility.worth * utility.demand)[0].cpu().numpy()
    weight = weight / weight.sum() if weight.sum() > 0 else weight
    along = [problem.paths.links_of(int(i), int(k)) for i, k in zip(*np.nonzero(mask), strict=True)]
    lengths = [len(links) for links in along]
    rows = np.concatenate([np.asarray(links) for links in along]) if along else np.zeros(0, int)
    columns = np.repeat(np.arange(len(d)), lengths)
    use = sp.csr_matrix((np.repeat(demand[d], lengths) / capacity[rows], (rows, columns)), (len(capacity), len(d)))
    of_demand = sp.csr_matrix((np.ones(len(d)), (d, np.arange(len(d)))), (len(demand), len(d)))
    shares = cvxpy.Variable(len(d), nonneg=True)
    total, has_weight, alpha = of_demand @ shares, weight > 0, utility.curve.alpha
    if alpha == 1:
        value = cvxpy.log(total[has_weight])
    else:
        value = (cvxpy.power(total[has_weight], 1 - alpha) - 1) / (1 - alpha)
    links = use @ shares <= 1
    return cvxpy.Problem(cvxpy.Maximize(weight[has_weight] @ value), [total <= 1, links]), shares, links


def _prices(problem: Problem, rows: Any) -> torch.Tensor:
    """(E,) prices of the dual variables of links, whose rows are in units of the capacity."""
    assert problem.utility is not None
    dual = torch.from_numpy(np.maximum(rows.dual_value, 0)).to(problem.capacity)
    return dual * problem.utility.total * problem.inverse_capacity[0]
