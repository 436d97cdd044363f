"""Column generation: the paths that a path set lacks, found by the prices.

A demand's best missing path is its shortest one under the link prices p, and it is worth adding if its
reduced profit v - p(path) exceeds that of all paths that it has (and 0).  When no demand has such a
path, prices and allocation are optimal over all paths there are (Dantzig & Wolfe 1960; for
multicommodity flow Tomlin 1966).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from teal.bounds import all_paths_bound, gap, link_weights
from teal.network.extension import with_more_paths
from teal.network.path_set import PathSet
from teal.network.shortest import shortest_trees
from teal.problem import Problem
from teal.solvers.pdhg import PdhgResult, PdhgState, solve

_SHARE = 0.1  # of the target gap: what all paths that are left out of a round may bring together
_TIE = 1e-6  # of the largest price, added per hop: of equally cheap paths take a short one


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnRound:
    """One round.

    Attributes:
        paths: the path set that was solved with.
        found: its solution.
        value: (B,).
        gap: (B,) certified, to the optimum over these paths.
        bound_all_paths: (B,) closest so far, on the optimum over all paths.
        gap_all_paths: (B,).
        added: paths that the next round has more.
    """

    paths: PathSet
    found: PdhgResult
    value: Tensor
    gap: Tensor
    bound_all_paths: Tensor
    gap_all_paths: Tensor
    added: int


def improve(
    problem: Problem,
    *,
    target: float = 1e-2,
    max_rounds: int = 30,
    report: Callable[[ColumnRound], None] | None = None,
) -> ColumnRound:
    """Add paths until the allocation over them is within ``target`` of the optimum over all paths.

    Each round solves to a third of the target, or to half of what the paths are known to cost while
    that is more, and adds for each matrix and demand the path of best reduced profit.

    Args:
        problem: B matrices; the paths serve all of them.
        target: gap_all_paths at which to stop, of every matrix.
        max_rounds: most rounds.
        report: called after each round.
    """
    state: PdhgState | None = None
    closest: Tensor | None = None
    wide, last = 0.1, None
    for number in range(max_rounds):
        found = solve(problem, gap=max(target / 3, wide / 2), warm_start=state)
        bound = all_paths_bound(problem, found.prices)
        if problem.objective.higher_is_better:
            closest = bound if closest is None else torch.minimum(closest, bound)
        else:
            closest = bound if closest is None else torch.maximum(closest, bound)
        gaps = gap(problem, found.value, closest)
        wide = float(gaps.max())
        finished = wide <= target or number == max_rounds - 1
        paths = problem.paths if finished else _enriched(problem, found, target)
        added = int(paths.mask.sum()) - int(problem.paths.mask.sum())
        last = ColumnRound(problem.paths, found, found.value, found.gap, closest, gaps, added)
        if report is not None:
            report(last)
        if finished or (not added and float(found.gap.max()) <= target / 3):
            break
        state = found.state
        if added:
            room = paths.num_paths - problem.paths.num_paths
            state = PdhgState(torch.nn.functional.pad(state.splits, (0, room)), state.prices)
            problem = problem.with_paths(paths)
    assert last is not None
    return last


def _enriched(problem: Problem, found: PdhgResult, target: float) -> PathSet:
    """The problem's paths and, for each matrix, the best missing ones."""
    paths = problem.paths
    for row in range(problem.batch):
        worthwhile = float(found.bound[row]) * target
        if problem.objective.is_balanced and problem.objective.higher_is_better:
            worthwhile = target / max(float(found.bound[row]), 1e-12)  # of the utilisation that it stands for
        paths = _add_for(problem.row(row), found.prices[row : row + 1], worthwhile, paths)
    return paths


def _add_for(problem: Problem, prices: Tensor, worthwhile: float, paths: PathSet) -> PathSet:
    topology, pairs = problem.topology, problem.paths.pairs
    weight = link_weights(problem, prices)[0].cpu().numpy()
    # What the paths at hand offer, and what the network does.
    value = problem.demand_value
    along = problem.ops.path_sum(prices + problem.link_cost)[0]
    cheapest = torch.where(problem.path_mask[0], along, torch.inf).amin(-1).cpu().numpy()
    finite = weight[np.isfinite(weight)]
    tie = _TIE * float(finite.max(initial=0.0)) or 1.0
    sources, rows = np.unique(pairs[:, 0], return_inverse=True)
    nodes, tail, head = topology.num_nodes, topology.link_source, topology.link_target
    distance, into = shortest_trees(nodes, tail, head, weight + tie, sources)
    nearest = distance[rows, pairs[:, 1]]
    demand = problem.demand[0].cpu().numpy()
    if problem.objective.maximises_value:
        limit = np.minimum(cheapest, value.cpu().numpy())
    else:
        limit = np.where(problem.routable[0].cpu().numpy(), cheapest, -np.inf)
        demand = demand / max(float((problem.capacity[0] * prices[0]).sum()), 1e-300)
    gain = np.where(np.isfinite(nearest), demand * (limit - nearest), -np.inf)
    chosen = np.flatnonzero(gain > _SHARE * worthwhile / len(demand))
    links = [np.zeros(0, np.int32)]
    ptr = np.zeros(len(pairs) + 1, dtype=np.int64)
    for d in chosen.tolist():
        path, node, tree = [], int(pairs[d, 1]), into[rows[d]]
        while node != pairs[d, 0]:
            path.append(tree[node])
            node = int(tail[tree[node]])
        links.append(np.array(path[::-1], dtype=np.int32))
        ptr[d + 1] = len(path)
    return with_more_paths(paths, np.cumsum(ptr), np.concatenate(links)) if len(chosen) else paths
