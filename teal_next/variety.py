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
    optimal_splits = result.splits[0].to(torch.float64)
    if share == 0:
        return optimal_splits
    utilisation_limit = (1 + budget) * float(result.value[0])
    # Columns of the linear program: slots d K + k of the live paths of positive demands.
    num_paths = problem.paths.num_paths
    demand = problem.demand[0].to(torch.float64).cpu().numpy()
    is_column_slot = problem.path_mask[0].cpu().numpy() & (demand > 0)[:, None]
    slot_of_column = np.flatnonzero(is_column_slot.reshape(-1))
    # Rows: utilisation of each link with capacity, and the sum of each demand's splits.
    capacity = problem.capacity[0].to(torch.float64).cpu().numpy()
    link_indices = np.flatnonzero(capacity > 0)
    utilisation_rows = (
        problem.ops.incidence(problem.topology.num_links)
        .tocsc()[:, slot_of_column]
        .tocsr()[link_indices]
    )
    # Scale by demand / capacity: the matrix then maps splits to link utilisations.
    utilisation_rows = (
        sp.diags_array(1 / capacity[link_indices])
        @ utilisation_rows
        @ sp.diags_array(demand[slot_of_column // num_paths])
    )
    # One row for each demand with a column, with ones in the columns of its paths.
    routed_demands, row_of_column = np.unique(slot_of_column // num_paths, return_inverse=True)
    split_sum_rows = sp.csr_array(
        (np.ones(len(slot_of_column)), (row_of_column, np.arange(len(slot_of_column)))),
        shape=(len(routed_demands), len(slot_of_column)),
    )
    # Minimise the random costs: utilisations at most the limit, splits of a demand sum to 1.
    random_costs = np.random.default_rng(seed).random(len(slot_of_column))
    solution = solve_lp(
        random_costs,
        (utilisation_rows, np.full(len(link_indices), utilisation_limit)),
        (split_sum_rows, np.ones(len(routed_demands))),
    ).solution("vary")
    # Mix both splits; demands of 0 keep the optimal ones.
    random_splits = optimal_splits.clone().reshape(-1)
    random_splits[torch.from_numpy(slot_of_column)] = torch.from_numpy(np.maximum(solution, 0.0))
    return (1 - share) * optimal_splits + share * random_splits.reshape(optimal_splits.shape)
