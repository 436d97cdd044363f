"""Multipliers that prove what a promise costs at given prices, for every demand at once.

A promise of one Gbit/s reserves a[k] on the paths so that every group of failures leaves it: the least cost is

    min sum_k price[k] a[k]  s.t.  sum over k that survive g of a[k] >= 1 for every g   =   max sum_g m[g]
                                                     s.t.  sum over g that k survives of m[g] <= price[k],  m >= 0,

by linear duality; the maximum over the groups is reached on the smallest sets of paths that groups leave.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from teal.errors import SolverError
from teal.problem import Problem
from teal.problem.protection import Protection, failed_paths
from teal.runtime.arrays import BoolArray, FloatArray

_SCALE = 2.0**14  # of prices in the linear program, whose tolerance is then 6e-12 of a price of 1
_ROUNDING = 2.0**-40  # share by which multipliers are lowered, so that their rounded sums stay within prices


def group_multipliers(
    problem: Problem, protection: Protection, prices: FloatArray, bits: int
) -> tuple[list[list[str]], FloatArray]:
    """For each demand the words ``@GROUP:MULTIPLIER`` of a proof, and (D,) the sums of its multipliers.

    Args:
        problem: B = 1.
        protection: groups, and the smallest sets of paths that they leave.
        prices: (E,) of the links.
        bits: multipliers are whole numbers of 2^-bits.

    Raises:
        SolverError: the linear program was not solved.
    """
    live = problem.path_mask[0].cpu().numpy()
    rounded = torch.from_numpy(np.floor(prices * 2.0**bits) / 2.0**bits)
    price = problem.ops.path_sum(rounded[None].to(problem.capacity))[0].cpu().numpy()
    names, survives = _groups_of_sets(problem, protection)
    survives &= live[:, None]
    d, m = np.nonzero(survives.any(-1))
    path_row, variable = np.cumsum(live.reshape(-1)).reshape(live.shape) - 1, np.zeros(names.shape, dtype=np.int64)
    variable[d, m] = np.arange(len(d))
    of_demand, of_set, k = np.nonzero(survives)
    entries = np.ones(len(k)), (path_row[of_demand, k], variable[of_demand, of_set])
    matrix = coo_matrix(entries, shape=(int(live.sum()), len(d))).tocsr()
    solved = linprog(-np.ones(len(d)), A_ub=matrix, b_ub=_SCALE * price[live], method="highs")
    if solved.x is None:
        raise SolverError(f"the multipliers of the groups: {solved.message}")
    words: list[list[str]] = [[] for _ in live]
    sums = np.zeros(len(live))
    # The solver keeps its rows to 1e-7: each demand's multipliers are scaled until its paths' prices hold exactly.
    multiplier = np.maximum(solved.x, 0) / _SCALE
    multiplier[(matrix.T @ (price[live] <= 0)) > 0] = 0
    paid = np.zeros(live.shape)
    paid[live] = matrix @ multiplier
    factor = np.where(paid > price, price / np.maximum(paid, 1e-300), 1).min(1)[d]
    for number in np.flatnonzero(multiplier > 0).tolist():
        units = int(multiplier[number] * factor[number] * (1 - _ROUNDING) * 2.0**bits)
        words[d[number]].append(f"@{names[d[number], m[number]]}:{units}")
        sums[d[number]] += units / 2.0**bits
    # A group that leaves nothing: no price limits its multiplier, and one of the demand's worth proves a promise of 0.
    worth = problem.demand_value.cpu().numpy()
    for lost in np.flatnonzero(~survives.any(-1).all(-1)).tolist():
        name = names[lost, np.flatnonzero(~survives[lost].any(-1))[0]]
        words[lost], sums[lost] = [f"@{name}:{int((worth[lost] + 1) * 2.0**bits)}"], worth[lost] + 1
    return words, sums


def _groups_of_sets(problem: Problem, protection: Protection) -> tuple[np.ndarray, BoolArray]:
    """(D, M) name of a group that leaves each set of paths, "" for no failure, and (D, M, K) the paths that it leaves.

    Sets are those of the paths that carry promises; a group may leave further paths, which count here.
    """
    exists, sets = (
        problem.ops.mask.cpu().numpy(),
        protection.sets.cpu().numpy() & problem.ops.mask.cpu().numpy()[:, None],
    )
    carries = sets.any(1)[:, None]
    names, left = np.full(sets.shape[:2], "", dtype=object), np.repeat(exists[:, None], sets.shape[1], 1)
    is_named = (exists[:, None] & carries == sets).all(-1)  # left by no failure
    for group, failed in enumerate(failed_paths(problem.ops, problem.topology.num_links, protection.groups)):
        survivors = (exists & ~failed)[:, None]
        found = ~is_named & (survivors & carries == sets).all(-1)
        names[found] = str(group)
        left = np.where(found[..., None], survivors, left)
        is_named |= found
    return names, left
