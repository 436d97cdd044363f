"""Selection of candidate paths for representative matrices, within a certified gap of all paths.

From an initial path set, column generation (:mod:`teal.solvers.columns`) adds paths for one matrix
after the other, until the allocation over them is certified to be within ``gap`` of the optimum
over all paths of the network.  Then

- prune: an added path that carries less than 5% of its demand in every matrix is removed (less than
  0.1%, if the target gap is missed otherwise);
- limit: a demand with more than ``max_paths`` paths keeps the initial paths, and the added paths
  with the largest shares (the paths with the largest shares, if the initial set alone has as many);
- sort: the paths of a demand are sorted by their largest share in a matrix, so that the first J
  paths are the best J.

Unused paths of the initial set stay, so that the selection survives the same failures.  Entry
points: :func:`choose_paths`, :func:`more_paths`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.network import PathSet, Topology, compute_paths
from teal.network.packed import MAX_PATHS
from teal.network.path_changes import select_paths
from teal.network.path_file import load_paths, save_paths
from teal.network.path_options import USUAL_MOST_PATHS
from teal.network.paths import cache_file
from teal.objectives import Objective
from teal.problem import Problem, all_paths_bound
from teal.problem.bounds import gap as certified_gap
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.interruptible import Deadline, complete
from teal.runtime.kernel_cache import is_interpreting
from teal.runtime.storage import atomic_file, content_key
from teal.solvers.columns import ColumnRound, generating_columns
from teal.solvers.interior import all_paths
from teal.solvers.pipeline import solving

_FORMAT = 2  # part of the cache key: increment when the selection changes
# Number of representative matrices; 8 lost 0.05 points less on unseen ones, and took twice the
# time.
_NUM_MATRICES = 4
# Largest number of path slots of all representative matrices: Kdl's 2.3 million and ASN's 12
# million allow one matrix.
_MAX_SLOTS = 4_000_000
# Path slots of an initial set above which rounds take minutes and many gigabytes.
_MAX_CHOSEN_SLOTS = 30_000_000
# Smallest share of its demand that an added path must carry in some matrix, in the order of trial:
# 5% costs nothing on Rocketfuel's networks and halves the paths and the time of a solve, 20% costs
# up to 10% of the value.
_MIN_SHARES = 0.05, 0.001
# Share of the target gap at which column generation stops; the pruning uses the other part.
_SEARCH_GAP_SHARE = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class ChosenPaths:
    """Selected path set, with its certified loss.

    Attributes:
        paths: the path set.
        gaps: (B,) certified gap between an allocation over the set and the optimum over all paths.
        limited: number of demands for which ``max_paths`` removed a used path.
    """

    paths: PathSet
    gaps: Tensor
    limited: int


def choose_paths(
    topology: Topology,
    demand: FloatArray,
    *,
    paths: PathSet | None = None,
    objective: Objective | str | None = None,
    weight: FloatArray | None = None,
    gap: float = 1e-2,
    max_paths: int = USUAL_MOST_PATHS,
    deadline: float = math.inf,
    cache: bool = True,
    report: Callable[[int, ColumnRound], None] | None = None,
) -> ChosenPaths:
    """Select a path set for representative matrices of a network.

    The selection is deterministic unless the deadline ends it.  For an objective that is a sequence
    of programs, it uses the single program that the objective's rules name.

    Args:
        topology: the network.
        demand: (B, D) or (D,) Gbit/s, of the pairs of ``paths``.
        paths: initial set, of distinct node pairs; None for 4 edge-disjoint paths of every pair.
        objective: the objective, or its name; None for total_flow.
        weight: (D,) weights of the demands, for weighted_flow; None for 1 each.
        gap: target gap of every matrix; ``max_paths`` or the deadline may prevent it.
        max_paths: largest number of paths of a demand.
        deadline: seconds until the last round of column generation may begin.
        cache: whether to read and write the set on disk, by the content of the arguments.
        report: progress callback, called after each round with the index of the matrix.

    Raises:
        InputError: invalid arguments of :meth:`teal.Problem.create`, or ``gap`` or ``max_paths``
            out of range.

    Example:
        >>> chosen = teal.choose_paths(topology, traffic.read([0, 10]), objective=objective)
        >>> problem = teal.Problem.create(topology, chosen.paths, objective, traffic.read([20]))
    """
    # Check the arguments, and build the problem over the initial paths.
    if not 1 <= max_paths <= MAX_PATHS:
        raise InputError("paths", "max_paths", f"an integer from 1 to {MAX_PATHS}", max_paths)
    if not 0 < gap < 1:
        raise InputError("paths", "gap", "a number in (0, 1)", gap)
    initial_paths = compute_paths(topology, cache=cache) if paths is None else paths
    path_objective = Objective.of(objective or Objective()).for_paths
    problem = Problem.create(topology, initial_paths, path_objective, demand, weight=weight)
    # The cache key is a hash of all inputs; selections that the deadline ended have a second key.
    key = content_key(
        _FORMAT,
        initial_paths.key,
        topology.content_key(),
        str(path_objective.name),
        path_objective.epsilon,
        problem.demand_value.numpy(),
        problem.demand.numpy(),
        gap,
        max_paths,
    )
    deadline_key = content_key(key, deadline)
    for cached_key in (key, deadline_key) if cache else ():
        # Read a cached selection; if its files are missing or damaged, select again.
        with contextlib.suppress(InputError, OSError, ValueError, KeyError, TypeError):
            record = json.loads(cache_file(cached_key).with_suffix(".json").read_text())
            gaps = torch.tensor(record["gaps"], dtype=torch.float64)
            return ChosenPaths(
                load_paths(cache_file(cached_key), topology), gaps, int(record["limited"])
            )
    # Select, and write the selection to the cache.
    end = Deadline.after(deadline)
    selection = _choose(problem, gap, max_paths, end, report)
    key = deadline_key if end.is_over else key
    file = cache_file(key)
    selection = dataclasses.replace(selection, paths=dataclasses.replace(selection.paths, key=key))
    # Without compiled kernels HiGHS solves the programs, which may lead to other paths than the
    # engine does: the selection is then not cached.
    if cache and not is_interpreting():
        save_paths(file, selection.paths)
        with atomic_file(file.with_suffix(".json")) as temporary:
            temporary.write_text(
                json.dumps({"gaps": selection.gaps.tolist(), "limited": selection.limited})
            )
    return selection


def more_paths(
    problem: Problem, *, gap: float, max_paths: int, deadline: float = math.inf
) -> PathSet:
    """Return the paths of one matrix with missing ones appended to those of each demand.

    The set is unchanged if its optimum is certified to be within ``gap`` of the optimum over all
    paths.

    Args:
        problem: one matrix under an objective that is a single program.
        gap: gap to the optimum over all paths above which paths are added; column generation then
            stops at half of it.
        max_paths: largest number of paths of a demand.
        deadline: seconds until the last round of column generation may begin.
    """
    # Certify the present path set.
    initial_paths = problem.paths
    end = Deadline.after(deadline)
    result = complete(solving(problem, gap=_SEARCH_GAP_SHARE * gap, deadline=end))
    bound = all_paths_bound(problem, result.prices)
    if float(certified_gap(problem, result.value, bound).max()) <= gap or end.is_over:
        return initial_paths
    # Generate paths, and keep those that carry at least 5% of their demand.
    generated_solution = complete(
        generating_columns(problem, target=_SEARCH_GAP_SHARE * gap, deadline=end)
    )
    largest_shares = _served_shares(problem, generated_solution.result.splits)
    # A limit above the size of the initial set ranks initial paths before added ones.
    is_kept, _ = _select_paths(
        generated_solution.paths,
        initial_paths,
        largest_shares,
        _MIN_SHARES[0],
        max(max_paths, initial_paths.num_paths + 1),
    )
    # Limit the added paths; the initial set alone may have more than max_paths.
    max_path_count = np.maximum(max_paths, initial_paths.mask.sum(1))
    path_count = np.minimum(is_kept.sum(1), max_path_count)
    if path_count.sum() == initial_paths.mask.sum():
        return initial_paths
    return _reorder_paths(
        generated_solution.paths,
        largest_shares,
        np.argsort(~is_kept, axis=1, kind="stable"),
        path_count,
    )[0]


def representative_matrices(paths: PathSet) -> int:
    """Return the number of representative matrices for a selection from an initial path set.

    It is 4, less for larger path sets, and 0 where a selection takes too long.
    """
    if paths.leaf.size > _MAX_CHOSEN_SLOTS:
        return 0
    return int(np.clip(_MAX_SLOTS // max(1, paths.leaf.size), 1, _NUM_MATRICES))


def _choose(
    problem: Problem,
    gap: float,
    max_paths: int,
    deadline: Deadline,
    report: Callable[[int, ColumnRound], None] | None,
) -> ChosenPaths:
    """Select paths for representative matrices: generate, prune, limit and sort.

    Args:
        problem: B matrices; its paths are the initial set.
        gap: target gap of every matrix to the optimum over all paths.
        max_paths: largest number of paths of a demand.
        deadline: deadline of the last round of column generation.
        report: progress callback, called after each round with the index of the matrix.
    """
    # Generate paths for one matrix after the other.
    initial_paths = problem.paths
    paths = initial_paths
    # (D, K) largest share of its demand that each path carries in a matrix.
    largest_shares: FloatArray = np.zeros(initial_paths.leaf.shape)
    bounds = []
    for row in range(problem.batch):
        row_problem = problem.row(row).with_paths(paths)
        # Each matrix gets an equal part of the time that is left.
        generated_solution = complete(
            generating_columns(
                row_problem,
                target=_SEARCH_GAP_SHARE * gap,
                deadline=deadline.share(1 / (problem.batch - row)),
                report=report and partial(report, row),
                engine=_choose_engine(row_problem),
            )
        )
        # Update the largest shares, with 0 for the paths that were added now.
        bounds.append(generated_solution.bound_all_paths)
        largest_shares = np.pad(
            largest_shares,
            ((0, 0), (0, generated_solution.paths.num_paths - largest_shares.shape[1])),
        )
        np.maximum(
            largest_shares,
            _served_shares(row_problem, generated_solution.result.splits),
            out=largest_shares,
        )
        paths = generated_solution.paths
        # Remove added paths with negligible shares; after the last matrix this follows below.
        if row < problem.batch - 1:
            is_kept, _ = _select_paths(
                paths, initial_paths, largest_shares, _MIN_SHARES[-1], MAX_PATHS
            )
            paths, largest_shares = _reorder_paths(
                paths, largest_shares, np.argsort(~is_kept, axis=1, kind="stable"), is_kept.sum(1)
            )
    # Prune, limit and sort; keep more paths if the target gap is missed.
    bound = torch.cat(bounds)
    for min_share in _MIN_SHARES:
        is_kept, num_limited = _select_paths(
            paths, initial_paths, largest_shares, min_share, max_paths
        )
        # Sort each demand's paths by largest share, kept ones first.
        order = np.argsort(np.where(is_kept, -largest_shares, np.inf), axis=1, kind="stable")
        selected_paths, _ = _reorder_paths(paths, largest_shares, order, is_kept.sum(1))
        gaps = _gaps_to_all_paths(
            problem.with_paths(selected_paths), bound, _SEARCH_GAP_SHARE * gap, deadline
        )
        if float(gaps.max()) <= gap or deadline.is_over:
            break
    return ChosenPaths(selected_paths, gaps, num_limited)


def _gaps_to_all_paths(
    problem: Problem, bound: Tensor, target_gap: float, deadline: Deadline
) -> Tensor:
    """Return (B,) certified gaps of a problem's optimum over its paths to bounds over all paths.

    Args:
        problem: B matrices with the selected paths.
        bound: (B,) bounds over all paths.
        target_gap: gap at which each solve stops.
        deadline: end of the last solve.
    """
    # One matrix at a time: a batch would compile kernels for more SIMD lanes.
    results = (
        complete(solving(problem.row(row), gap=target_gap, deadline=deadline))
        for row in range(problem.batch)
    )
    return certified_gap(problem, torch.cat([result.value for result in results]), bound)


def _choose_engine(problem: Problem) -> str:
    """Return the engine of column generation for one matrix, "pdhg" or "auto".

    It is "pdhg" where the largest utilisation is minimised on a small network.  Exact dual prices
    of the largest utilisation are positive on few links only.  Coarse prices of PDHG are positive
    on all busy links: the paths that they add do not improve the optimum of the representative
    matrices, but prepare the set for other ones.
    """
    would_use_exact_prices = (
        all_paths.has_few_paths(problem) and problem.objective.rules.minimises_utilisation
    )
    return "pdhg" if would_use_exact_prices else "auto"


def _served_shares(problem: Problem, splits: Tensor) -> FloatArray:
    """Return (D, K) the share of each demand on each path; 0 for demands without traffic.

    Args:
        problem: one matrix.
        splits: (1, D, K) splits.
    """
    has_demand = problem.demand[0] > 0
    return torch.where(has_demand[:, None], splits[0], 0).to(torch.float64).cpu().numpy()


def _select_paths(
    paths: PathSet,
    initial_paths: PathSet,
    largest_shares: FloatArray,
    min_share: float,
    max_paths: int,
) -> tuple[BoolArray, int]:
    """Return (D, K) whether each path is kept, and the number of demands that lose a path in use.

    Each demand keeps its ``max_paths`` best paths.  Initial paths rank before added paths
    with a share of at least ``min_share``; both groups are ordered by largest share.  If the
    initial set alone has ``max_paths`` paths, all are ordered by largest share.

    Args:
        paths: paths of each demand, initial paths before added ones.
        initial_paths: the initial set.
        largest_shares: (D, K) largest share of each path in a matrix.
        min_share: smallest share of an added path.
        max_paths: largest number of paths of a demand.
    """
    is_initial = np.arange(paths.num_paths) < initial_paths.mask.sum(1)[:, None]
    has_min_share = paths.mask & (largest_shares >= min_share)
    # Shares are at most 1, so a bonus of 2 ranks initial paths first.
    initial_bonus = 2 if max_paths > initial_paths.num_paths else 0
    score = np.where(
        is_initial, largest_shares + initial_bonus, np.where(has_min_share, largest_shares, -1)
    )
    # Rank of each path by falling score, from 0.
    rank = np.argsort(np.argsort(-score, axis=1, kind="stable"), axis=1)
    is_kept = (score >= 0) & (rank < max_paths)
    return is_kept, int((has_min_share & ~is_kept).any(1).sum())


def _reorder_paths(
    paths: PathSet, largest_shares: FloatArray, order: Int64Array, path_count: Int64Array
) -> tuple[PathSet, FloatArray]:
    """Return a path set with the first paths of each demand in a given order, and their shares.

    Args:
        paths: path set.
        largest_shares: (D, K) share of each path.
        order: (D, K) path indices of each demand, in the new order.
        path_count: (D,) number of paths to keep of each demand.
    """
    if (path_count == paths.mask.sum(1)).all() and (order == np.arange(paths.num_paths)).all():
        return paths, largest_shares
    # Cut to the largest path count; -1 is an empty slot.
    max_path_count = max(1, int(path_count.max(initial=1)))
    is_kept = np.arange(max_path_count) < path_count[:, None]
    largest_shares = np.where(
        is_kept, np.take_along_axis(largest_shares, order, 1)[:, :max_path_count], 0
    )
    return select_paths(paths, np.where(is_kept, order[:, :max_path_count], -1)), largest_shares
