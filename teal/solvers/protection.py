r"""Allocations that keep their promise under the failure of any one group of links, by local rescaling alone.

As in FFC (Liu et al., "Traffic engineering with forward fault correction", SIGCOMM 2014): a[d, k] Gbit/s are reserved
on the paths of a demand, of which b[d] are promised; with L(d, g) the paths of d that survive the failure of group g,

    max sum_d b[d]  s.t.  sum over k in L(d, g) of a[d, k] >= b[d] for every group g, and for no failure,
    load[e](a) <= c[e],  b[d] <= demand[d],  a >= 0.

The router sends b[d] over its live paths in the ratio of the reservations: then no path ever carries more than is
reserved on it, so that no link overflows, whatever group fails, and only the router of the demand need know of it.

The reservations for one promised Gbit/s form the polyhedron {a >= 0: sum over L of a >= 1 for every L}.  Its vertices
are bundles of paths (two disjoint paths with 1 each, three with 1/2 each, ...); every reservation is a sum of them.  So
the program is one of value maximisation over bundles in the place of paths: the engine, its certified bound and the
projection serve it as they are.  A demand none of whose paths survive some group can be promised nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.pathops.bundles import BundleOps
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.runtime.shapes import Float
from teal.solvers import pdhg

MAX_PATHS = 6  # K: vertices are enumerated
_EXACT = 1e-9  # by which a vertex may miss a constraint, for rounding


@dataclasses.dataclass(frozen=True, eq=False)
class Protected:
    """A protected allocation of B matrices.

    Attributes:
        splits: (B, D, K) what is sent while nothing fails: the promise in the ratio of the reservations.
        reserved: (B, D, K) share of the demand that is reserved on each path.
        prices: (B, E) that prove the bound.
        value: (B,) value of all promises.
        bound: (B,) certified bound on the value of any promises that hold.
        gap: (B,).
        unprotected: (B,) share of all demand that no reservation can protect.
        iterations: of PDHG.
    """

    splits: Float[Tensor, "B D K"]
    reserved: Float[Tensor, "B D K"]
    prices: Float[Tensor, "B E"]
    value: Float[Tensor, " B"]
    bound: Float[Tensor, " B"]
    gap: Float[Tensor, " B"]
    unprotected: Float[Tensor, " B"]
    iterations: int


def protect(
    problem: Problem, groups: Sequence[Sequence[int]] | None = None, *, gap: float = 1e-3, max_iterations: int = 10_000
) -> Protected:
    """The largest promises that hold under the failure of any one group.

    Args:
        problem: B matrices of value maximisation with the same live links.
        groups: numbers of the links of each; None for every cable.
        gap: certified gap of the promises' value.
        max_iterations: of PDHG.

    Raises:
        InputError: another objective, too many paths a demand, or matrices with different failed links.
    """
    own = bundle_problem(problem, groups)
    result = pdhg.solve(own, gap=gap, max_iterations=max_iterations, engine="plain")
    ops = own.ops
    assert isinstance(ops, BundleOps)
    reserved = ops.on_paths(result.splits)
    promise = result.splits.sum(-1, keepdim=True)
    splits = reserved * (promise / reserved.sum(-1, keepdim=True).clamp(min=1e-30))
    total = problem.demand.sum(1).clamp(min=1e-300)
    without = (problem.demand * ~ops.mask.any(-1)).sum(1) / total
    return Protected(
        splits, reserved, result.prices, result.value, result.bound, result.gap, without, result.iterations
    )


def bundle_problem(problem: Problem, groups: Sequence[Sequence[int]] | None) -> Problem:
    """The program of the module, whose paths are bundles; arguments and errors as of :func:`protect`."""
    if not problem.objective.maximises_value or problem.objective.is_sequence or problem.churn is not None:
        raise InputError("protect", "objective", "one that maximises a value", problem.objective.name.value)
    if problem.paths.num_paths > MAX_PATHS:
        raise InputError("protect", "num_paths", f"at most {MAX_PATHS}", problem.paths.num_paths)
    if not bool((problem.path_mask == problem.path_mask[:1]).all()):
        raise InputError("protect", "capacity", "the same live links for all matrices", "different ones")
    groups = problem.topology.cables() if groups is None else groups
    survives = surviving_paths(problem, groups)  # (G, D, K)
    families: dict[bytes, list[int]] = {}
    for d in range(survives.shape[1]):
        families.setdefault(np.unique(survives[:, d], axis=0).tobytes(), []).append(d)
    width = problem.paths.num_paths
    bundles = {
        family: vertices(np.frombuffer(family, dtype=bool).reshape(-1, width)) for family in families
    }  # fmt: skip
    most = max((len(own) for own in bundles.values()), default=0)
    weight = np.zeros((survives.shape[1], max(1, most), width))
    for family, demands in families.items():
        own = bundles[family]
        weight[np.array(demands)[:, None], np.arange(len(own))] = own
    ops = BundleOps(problem.ops, torch.from_numpy(weight))
    return dataclasses.replace(problem.to(torch.float64), ops=ops)


def surviving_paths(problem: Problem, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """(G + 1, D, K) bool, the live paths that survive no failure and each group."""
    failed = torch.zeros(len(groups) + 1, problem.topology.num_links, dtype=torch.float64)
    for number, links in enumerate(groups, start=1):
        failed[number, list(links)] = 1
    hit = problem.ops.path_max(failed.to(problem.ops.device))[0] > 0
    survives: np.ndarray = (problem.path_mask[:1] & ~hit).cpu().numpy()
    return survives


def vertices(sets: np.ndarray) -> FloatArray:
    """(J, K) vertices of {a >= 0: sum of a over each set >= 1}, all of them; none if a set is empty.

    Args:
        sets: (m, K) bool.
    """
    if not sets.any(1).all():
        return np.zeros((0, sets.shape[1]))
    width = sets.shape[1]
    used = np.flatnonzero(sets.any(0))
    rows = np.unique(sets[:, used].astype(float), axis=0)
    smaller = [
        i for i, row in enumerate(rows) if not any((other <= row).all() and (other < row).any() for other in rows)
    ]
    rows = rows[smaller]  # a set that contains another one says nothing more
    all_rows = np.vstack([rows, np.eye(len(used))])
    right = np.concatenate([np.ones(len(rows)), np.zeros(len(used))])
    found: list[FloatArray] = []
    for chosen in itertools.combinations(range(len(all_rows)), len(used)):
        basis = all_rows[list(chosen)]
        if abs(np.linalg.det(basis)) < _EXACT:
            continue
        point = np.linalg.solve(basis, right[list(chosen)])
        is_inside = (point >= -_EXACT).all() and (rows @ point >= 1 - _EXACT).all()
        if is_inside and not any(np.abs(point - other).max() < _EXACT for other in found):
            found.append(np.maximum(point, 0))
    whole = np.zeros((len(found), width))
    whole[:, used] = np.array(found)
    return whole


def under_failures(
    problem: Problem, splits: Tensor, groups: Sequence[Sequence[int]] | None = None
) -> tuple[Tensor, Tensor]:
    """What happens to an allocation if each group fails and routers rescale: an independent check.

    Args:
        problem: B matrices.
        splits: (B, D, K).
        groups: as of :func:`protect`.

    Returns:
        utilisation: (G, B) largest load over capacity of a link that has not failed.
        lost: (G, B) Gbit/s of demands none of whose used paths is left.
    """
    groups = problem.topology.cables() if groups is None else groups
    survives = torch.from_numpy(surviving_paths(problem, groups)[1:]).to(problem.ops.device)
    carried = splits.sum(-1, keepdim=True)
    utilisation, lost = [], []
    for number, links in enumerate(groups):
        live = torch.where(survives[number], splits, 0)
        left = live.sum(-1, keepdim=True)
        rescaled = torch.where(left > 0, live * (carried / left.clamp(min=1e-30)), 0)
        working = problem.capacity > 0
        working[:, list(links)] = False
        load = torch.where(working, problem.loads(rescaled), 0)
        utilisation.append((load * problem.inverse_capacity).amax(1))
        lost.append((problem.demand * torch.where(left > 0, 0, carried)[..., 0]).sum(1))
    return torch.stack(utilisation), torch.stack(lost)
