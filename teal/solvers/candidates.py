"""A set of candidate paths chosen for representative matrices: few paths, over which little is lost
against all paths.

From a first path set, column generation (:mod:`teal.solvers.columns`) adds paths for one matrix
after the other, until the allocation over them is certified to be within ``gap`` of the optimum
over all paths of the network.  Then

- an added path that carries less than 5% of its demand in every matrix is left out again (less than
  0.1%, if the target gap is missed otherwise);
- of a demand with more than ``max_paths`` paths those of the first set are kept, and of the added
  ones those that carry the largest shares (of all paths those, if the first set alone has as many);
- the paths of a demand are sorted by the largest share that each carries in a matrix, so that the
  first J of them are the best J.

Paths of the first set are kept also where they carry nothing: what survives a failure there,
survives it here.
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
from teal.network.path_changes import with_columns
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
from teal.solvers.columns import ColumnRound, improving
from teal.solvers.interior import all_paths
from teal.solvers.pdhg import solving

_FORMAT = 2  # part of the cache key: raise it when other paths are chosen
_MATRICES = (
    4  # representative matrices; 8 lost 0.05 points less on unseen ones, and took twice the time
)
# Path slots of all representative matrices, at most: Kdl's 2.3 million and ASN's 12 million allow
# one matrix.
_MAX_SLOTS = 4_000_000
_MAX_CHOSEN_SLOTS = (
    30_000_000  # path slots of a first set, above which rounds take minutes and many gigabytes
)
# Least share of its demand that an added path must carry in some matrix, tried in this order: 5%
# costs nothing on Rocketfuel's networks and halves the paths and the time of a solve, 20% costs up
# to 10% of the value.
_MIN_SHARES = 0.05, 0.001
_SEARCH_SHARE = (
    0.5  # of the target gap, to which paths are added; the rest is for leaving paths out
)


@dataclasses.dataclass(frozen=True, eq=False)
class ChosenPaths:
    """A path set, and what it is certified to lose.

    Attributes:
        paths: the set.
        gaps: (B,) of each matrix: certified gap of an allocation over the set to the optimum over
            all paths.
        limited: number of demands for which ``max_paths`` left out a path that carried something.
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
    """A path set for representative matrices; equal arguments give equal sets, but for a deadline
    that ends the choice.

    Under an objective that is a sequence of programs, paths are chosen for the single program that
    its rules name.

    Args:
        topology: the network.
        demand: (B, D) or (D,) Gbit/s, of the pairs of ``paths``.
        paths: the first set, of pairs of nodes that differ; None for 4 edge-disjoint paths of every
            pair.
        objective: the program, or its name; None for total_flow.
        weight: (D,) of the demands, for weighted_flow; None for 1 each.
        gap: target, of every matrix; missed where ``max_paths`` or the deadline forbids it.
        max_paths: paths of a demand, at most.
        deadline: seconds after which no further round of column generation begins.
        cache: keep the set on disk, by the content of the arguments, and take it from there.
        report: called after each round with the number of the matrix.

    Raises:
        InputError: what :meth:`teal.Problem.create` refuses, or ``gap`` or ``max_paths`` out of
            range.

    Example:
        >>> chosen = teal.choose_paths(topology, traffic.read([0, 10]), objective=objective)
        >>> problem = teal.Problem.create(topology, chosen.paths, objective, traffic.read([20]))
    """
    if not 1 <= max_paths <= MAX_PATHS:
        raise InputError("paths", "max_paths", f"1 to {MAX_PATHS}", max_paths)
    if not 0 < gap < 1:
        raise InputError("paths", "gap", "a number in (0, 1)", gap)
    first = compute_paths(topology, cache=cache) if paths is None else paths
    program = Objective.of(objective or Objective()).for_paths
    problem = Problem.create(topology, first, program, demand, weight=weight)
    key = content_key(
        _FORMAT,
        first.key,
        topology.content_key(),
        str(program.name),
        program.epsilon,
        problem.demand_value.numpy(),
        problem.demand.numpy(),
        gap,
        max_paths,
    )
    in_time = content_key(key, deadline)  # of a choice that the deadline ended
    for known in (key, in_time) if cache else ():
        with contextlib.suppress(
            InputError, OSError, ValueError, KeyError, TypeError
        ):  # absent, damaged: chosen again
            figures = json.loads(cache_file(known).with_suffix(".json").read_text())
            gaps = torch.tensor(figures["gaps"], dtype=torch.float64)
            return ChosenPaths(
                load_paths(cache_file(known), topology), gaps, int(figures["limited"])
            )
    end = Deadline.after(deadline)
    chosen = _chosen(problem, gap, max_paths, end, report)
    key = in_time if end.is_over else key
    file = cache_file(key)
    chosen = dataclasses.replace(chosen, paths=dataclasses.replace(chosen.paths, key=key))
    if cache and not is_interpreting():  # HiGHS has chosen then, and the engine may choose others
        save_paths(file, chosen.paths)
        with atomic_file(file.with_suffix(".json")) as temporary:
            temporary.write_text(
                json.dumps({"gaps": chosen.gaps.tolist(), "limited": chosen.limited})
            )
    return chosen


def more_paths(
    problem: Problem, *, gap: float, max_paths: int, deadline: float = math.inf
) -> PathSet:
    """The paths of a problem and, at the end of each demand's columns, those that its matrix
    misses.

    The same set if its optimum is certified to be within ``gap`` of that over all paths, so that it
    seldom changes.

    Args:
        problem: one matrix under an objective that is a single program.
        gap: to the optimum over all paths, above which paths are added until half of it is reached.
        max_paths: paths of a demand; demands that have as many get no more.
        deadline: seconds after which no further round of column generation begins.
    """
    first, end = problem.paths, Deadline.after(deadline)
    result = complete(solving(problem, gap=_SEARCH_SHARE * gap, deadline=end))
    bound = all_paths_bound(problem, result.prices)
    if float(certified_gap(problem, result.value, bound).max()) <= gap or end.is_over:
        return first
    last = complete(improving(problem, target=_SEARCH_SHARE * gap, deadline=end))
    most = _carried(problem, last.result.splits)
    keep, _ = _kept(last.paths, first, most, _MIN_SHARES[0], max(max_paths, first.num_paths + 1))
    room = np.maximum(max_paths, first.mask.sum(1))  # a demand of the first set may have more
    count = np.minimum(keep.sum(1), room)
    if count.sum() == first.mask.sum():
        return first
    return _in_order(last.paths, most, np.argsort(~keep, axis=1, kind="stable"), count)[0]


def representative_matrices(paths: PathSet) -> int:
    """Number of matrices for which paths should be chosen, from a first set: 4, 1 where that takes
    long, 0 too long.
    """
    if paths.leaf.size > _MAX_CHOSEN_SLOTS:
        return 0
    return int(np.clip(_MAX_SLOTS // max(1, paths.leaf.size), 1, _MATRICES))


def _chosen(
    problem: Problem,
    gap: float,
    max_paths: int,
    end: Deadline,
    report: Callable[[int, ColumnRound], None] | None,
) -> ChosenPaths:
    """The set for the matrices of a problem, whose paths are the first set; arguments as in
    :func:`choose_paths`.
    """
    first = paths = problem.paths
    most: FloatArray = np.zeros(first.leaf.shape)  # largest share that each path carries
    bounds = []
    for row in range(problem.batch):
        one = problem.row(row).with_paths(paths)
        last = complete(
            improving(
                one,
                target=_SEARCH_SHARE * gap,
                deadline=end.share(1 / (problem.batch - row)),
                report=report and partial(report, row),
                engine=_engine(one),
            )
        )
        bounds.append(last.bound_all_paths)
        most = np.pad(most, ((0, 0), (0, last.paths.num_paths - most.shape[1])))
        np.maximum(most, _carried(one, last.result.splits), out=most)
        paths = last.paths
        if row < problem.batch - 1:  # the last one's unused paths go below
            keep, _ = _kept(paths, first, most, _MIN_SHARES[-1], MAX_PATHS)
            paths, most = _in_order(
                paths, most, np.argsort(~keep, axis=1, kind="stable"), keep.sum(1)
            )
    for least_share in _MIN_SHARES:
        keep, limited = _kept(paths, first, most, least_share, max_paths)
        order = np.argsort(
            np.where(keep, -most, np.inf), axis=1, kind="stable"
        )  # the best one first
        kept, _ = _in_order(paths, most, order, keep.sum(1))
        chosen = problem.with_paths(kept)
        # One matrix at a time, as before: a batch would compile kernels for more lanes.
        solved = (
            complete(solving(chosen.row(b), gap=_SEARCH_SHARE * gap, deadline=end))
            for b in range(chosen.batch)
        )
        gaps = certified_gap(chosen, torch.cat([one.value for one in solved]), torch.cat(bounds))
        if float(gaps.max()) <= gap or end.is_over:
            break
    return ChosenPaths(kept, gaps, limited)


def _engine(problem: Problem) -> str:
    """The engine of :func:`improving`, for one matrix.

    Small networks are solved exactly, and the exact prices of the largest utilisation are on a few
    links, so that no path is missed.  Coarse prices are on all busy links; the paths that they add
    improve no optimum of these matrices, but hedges for other ones.
    """
    is_exact = all_paths.has_few_paths(problem) and problem.objective.rules.balances
    return "pdhg" if is_exact else "auto"


def _carried(problem: Problem, splits: Tensor) -> FloatArray:
    """(D, K) share of each demand on each path; 0 where a demand is 0.

    Args:
        problem: one matrix.
        splits: (1, D, K).
    """
    has_demand = problem.demand[0] > 0
    return torch.where(has_demand[:, None], splits[0], 0).to(torch.float64).cpu().numpy()


def _kept(
    paths: PathSet, first: PathSet, most: FloatArray, least_share: float, max_paths: int
) -> tuple[BoolArray, int]:
    """(D, K) whether each path is kept, and the number of demands that lose a used one because of
    ``max_paths``.

    Args:
        paths: the first set's paths of each demand in front, then added ones.
        first: the first set, whose paths are kept before added ones, if ``max_paths`` leaves room
            for more.
        most: (D, K) largest share that each path carries.
        least_share: share that an added path must carry.
        max_paths: paths of a demand.
    """
    is_first = np.arange(paths.num_paths) < first.mask.sum(1)[:, None]
    is_used = paths.mask & (most >= least_share)
    bonus = 2 if max_paths > first.num_paths else 0  # shares are at most 1
    rank = np.where(is_first, most + bonus, np.where(is_used, most, -1))
    above = np.argsort(
        np.argsort(-rank, axis=1, kind="stable"), axis=1
    )  # number of paths that rank above each
    keep = (rank >= 0) & (above < max_paths)
    return keep, int((is_used & ~keep).any(1).sum())


def _in_order(
    paths: PathSet, most: FloatArray, order: Int64Array, count: Int64Array
) -> tuple[PathSet, FloatArray]:
    """The first ``count`` (D,) paths of each demand in an order (D, K), and their entries of
    ``most`` (D, K).
    """
    if (count == paths.mask.sum(1)).all() and (order == np.arange(paths.num_paths)).all():
        return paths, most
    width = max(1, int(count.max(initial=1)))
    is_kept = np.arange(width) < count[:, None]
    most = np.where(is_kept, np.take_along_axis(most, order, 1)[:, :width], 0)
    return with_columns(paths, np.where(is_kept, order[:, :width], -1)), most
