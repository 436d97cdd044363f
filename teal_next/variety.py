r"""Randomised splits that change from interval to interval, so that counters identify matrices.

Under one routing, many matrices explain the same counters; another routing excludes some of them.
Many splits are nearly optimal, and a random one of them costs little:

    min <r, w>   over splits w   with   load(w) <= (1 + budget) U c,
    r random, uniform in [0, 1) for each path,

where c are the link capacities and U is the optimal largest utilisation of the estimated matrix.  A
share of each demand follows the random splits, the rest the optimal ones.  Measurements on Abilene
and GEANT: docs/counters.md.  Entry point: :func:`vary`.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from teal.errors import InputError
from teal.problem import Problem
from teal.runtime.lp import solve_lp
from teal.solvers.pipeline import solve

# Certified gap of the optimal largest utilisation.
_GAP = 1e-3


def vary(problem: Problem, *, budget: float = 0.02, share: float = 0.5, seed: int = 0) -> Tensor:
    """Compute split ratios (D, K) for one matrix, partly optimal and partly random.

    The random splits w minimise random costs r per path, among all splits whose largest utilisation
    is at most (1 + budget) times the optimal one. With x* the optimal splits, the result is

        (1 - share) x* + share w.

    Args:
        problem: one matrix under max_link_utilisation, such as an estimate.
        budget: relative excess of the optimal largest utilisation that is allowed.
        share: share of every demand that follows the random splits; 0 for none.
        seed: seed of the random costs, a different one for each interval.

    Raises:
        InputError: another objective, several matrices, or an option out of its range.
        SolverError: HiGHS failed.
    """
    # Check the arguments.
    if problem.batch != 1 or problem.objective.name != "max_link_utilisation":
        expected = "one matrix under max_link_utilisation"
        raise InputError(
            "vary", "problem", expected, f"{problem.batch} under {problem.objective.name}"
        )
    if not (budget >= 0 and 0 <= share <= 1):
        raise InputError(
            "vary",
            "options",
            "a budget of at least 0 and a share in [0, 1]",
            f"budget {budget:g} and share {share:g}",
        )
    # Optimal splits, and the limit of the utilisation.
    result = solve(problem, gap=_GAP)
    best = result.splits[0].to(torch.float64)
    if share == 0:
        return best
    limit = (1 + budget) * float(result.value[0])
    # Columns of the linear program: slots d K + k of the live paths of positive demands.
    num_paths = problem.paths.num_paths
    demand = problem.demand[0].to(torch.float64).cpu().numpy()
    live = problem.path_mask[0].cpu().numpy() & (demand > 0)[:, None]
    column = np.flatnonzero(live.reshape(-1))
    # Rows: utilisation of each link with capacity, and the sum of each demand's splits.
    capacity = problem.capacity[0].to(torch.float64).cpu().numpy()
    links = np.flatnonzero(capacity > 0)
    loads = problem.ops.incidence(problem.topology.num_links).tocsc()[:, column].tocsr()[links]
    loads = (
        sp.diags_array(1 / capacity[links]) @ loads @ sp.diags_array(demand[column // num_paths])
    )
    demands, demand_row = np.unique(column // num_paths, return_inverse=True)
    sums = sp.csr_array(
        (np.ones(len(column)), (demand_row, np.arange(len(column)))),
        shape=(len(demands), len(column)),
    )
    # Minimise random costs.
    cost = np.random.default_rng(seed).random(len(column))
    solution = solve_lp(
        cost, (loads, np.full(len(links), limit)), (sums, np.ones(len(demands)))
    ).solution("vary")
    # Mix both splits; demands of 0 keep the optimal ones.
    random_splits = best.clone().reshape(-1)
    random_splits[torch.from_numpy(column)] = torch.from_numpy(np.maximum(solution, 0.0))
    return (1 - share) * best + share * random_splits.reshape(best.shape)
