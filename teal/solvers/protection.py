"""Promises that hold (see :mod:`teal.problem.protection`), with their reservations; and a
simulation of failures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from teal.formats.groups import failing_links
from teal.problem import Problem
from teal.problem.protection import Protection, failed_paths
from teal.runtime.shapes import Float
from teal.solvers import pdhg
from teal.solvers.result import PdhgResult


@dataclasses.dataclass(frozen=True, eq=False)
class Protected:
    """A protected allocation of B matrices.

    Attributes:
        result: splits (what is sent while nothing fails: the promises in the ratio of the
            reservations), prices, value and certified bound of all promises that hold.
        reserved: (B, D, K) share of the demand that is reserved on each path.
        unprotected: (B,) share of all demand that no reservation can protect.
    """

    result: PdhgResult
    reserved: Float[Tensor, "B D K"]
    unprotected: Float[Tensor, " B"]


def groups_to_survive(problem: Problem, file: str) -> Sequence[Sequence[int]]:
    """Numbers of the links of each group in a file; for "" of the problem's groups, or of every
    cable without any.

    Raises:
        InputError: see :func:`teal.formats.groups.load_groups`.
    """
    protection = problem.condition(Protection)
    return (
        failing_links(file, problem.topology) if file or protection is None else protection.groups
    )


def protect(
    problem: Problem,
    groups: Sequence[Sequence[int]] | None = None,
    *,
    gap: float = 1e-3,
    max_iterations: int = 10_000,
) -> Protected:
    """The largest promises that hold under the failure of any one group.

    Args:
        problem: B matrices under total_flow or weighted_flow.
        groups: numbers of the links of each; None for every cable.
        gap: certified gap of the promises' value.
        max_iterations: iterations of PDHG.

    Raises:
        InputError: see :meth:`teal.Problem.with_protection`.
    """
    groups = problem.topology.cables() if groups is None else groups
    protection = Protection.of(problem.ops, problem.topology.num_links, groups)
    others = tuple(one for one in problem.conditions if not isinstance(one, Protection))
    plain = dataclasses.replace(problem, conditions=others)
    result = pdhg.solve(plain.under(protection), gap=gap, max_iterations=max_iterations)
    total = problem.demand.sum(1).clamp(min=1e-300)
    without = (problem.demand * protection.unprotected(plain.program)).sum(1) / total
    return Protected(result, protection.reserved(result.splits), without)


def under_failures(
    problem: Problem, splits: Tensor, groups: Sequence[Sequence[int]] | None = None
) -> tuple[Tensor, Tensor]:
    """The figures of an allocation if each group fails and routers rescale: an independent check.

    Args:
        problem: B matrices.
        splits: (B, D, K).
        groups: as in :func:`protect`.

    Returns:
        utilisation: (G, B) largest load over capacity of a link that has not failed.
        lost: (G, B) Gbit/s of demands none of whose used paths is left.
    """
    groups = problem.topology.cables() if groups is None else groups
    failed = torch.from_numpy(failed_paths(problem.ops, problem.topology.num_links, groups)).to(
        problem.ops.device
    )
    carried = splits.sum(-1, keepdim=True)
    utilisation, lost = [], []
    for number, links in enumerate(groups):
        live = torch.where(failed[number], 0, splits)
        left = live.sum(-1, keepdim=True)
        rescaled = torch.where(left > 0, live * (carried / left.clamp(min=1e-30)), 0)
        working = problem.capacity > 0
        working[:, list(links)] = False
        load = torch.where(working, problem.loads(rescaled), 0)
        utilisation.append((load * problem.inverse_capacity).amax(1))
        lost.append((problem.demand * torch.where(left > 0, 0, carried)[..., 0]).sum(1))
    return torch.stack(utilisation), torch.stack(lost)
