"""Protected allocation: guaranteed rates with reservations, and a simulation of failures.

:func:`protect` maximises the rates that survive the failure of any one group of links
(:mod:`teal.problem.protection`); :func:`under_failures` checks an allocation independently.
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
from teal.solvers import pipeline
from teal.solvers.result import SolveResult


@dataclasses.dataclass(frozen=True, eq=False)
class Protected:
    """Allocation of B matrices whose guaranteed rates survive failures of link groups.

    Attributes:
        result: splits without failures (guaranteed rates in the ratio of the reservations), prices,
            value and certified bound of the guaranteed rates.
        reserved: (B, D, K) share of the demand reserved on each path.
        unprotected: (B,) share of all demand that no reservation can protect.
    """

    result: SolveResult
    reserved: Float[Tensor, "B D K"]
    unprotected: Float[Tensor, " B"]


def groups_to_survive(problem: Problem, file: str) -> Sequence[Sequence[int]]:
    """Return the link indices of each group of links that fail together.

    Args:
        problem: the problem, whose protection may name groups.
        file: file with the groups; "" for the groups of the problem, or every cable if it has none.

    Raises:
        InputError: an unreadable or invalid file.
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
    """Maximise the guaranteed rates that survive the failure of any one group of links.

    Args:
        problem: B matrices under total_flow or weighted_flow.
        groups: link indices of each group; None for every cable.
        gap: target gap of the value of the guaranteed rates.
        max_iterations: iteration limit of PDHG.

    Raises:
        InputError: the problem does not support protection, or a group is invalid.
    """
    # Solve the problem with this protection in place of an earlier one.
    groups = problem.topology.cables() if groups is None else groups
    protection = Protection.of(problem.ops, problem.topology.num_links, groups)
    other_conditions = tuple(
        condition for condition in problem.conditions if not isinstance(condition, Protection)
    )
    base_problem = dataclasses.replace(problem, conditions=other_conditions)
    result = pipeline.solve(base_problem.under(protection), gap=gap, max_iterations=max_iterations)
    # Share of the demand that no reservation on its paths can protect.
    total = problem.demand.sum(1).clamp(min=1e-300)
    unprotected_share = (problem.demand * protection.unprotected(base_problem.program)).sum(
        1
    ) / total
    return Protected(result, protection.reserved(result.splits), unprotected_share)


def under_failures(
    problem: Problem, splits: Tensor, groups: Sequence[Sequence[int]] | None = None
) -> tuple[Tensor, Tensor]:
    """Simulate the failure of each group, after which routers rescale the splits to live paths.

    Args:
        problem: B matrices.
        splits: (B, D, K) splits.
        groups: link indices of each of G groups; None for every cable.

    Returns:
        utilisation (G, B), the largest load over capacity of a working link, and the flow (G, B) in
        Gbit/s of demands whose used paths have all failed.
    """
    groups = problem.topology.cables() if groups is None else groups
    # (G, D, K) paths that the failure of each group breaks.
    is_broken = torch.from_numpy(failed_paths(problem.ops, problem.topology.num_links, groups)).to(
        problem.ops.device
    )
    served_fraction = splits.sum(-1, keepdim=True)
    utilisation = []
    disconnected_flow = []
    for group_index, links in enumerate(groups):
        # Rescale the splits of the live paths to the same sum.
        live_splits = torch.where(is_broken[group_index], 0, splits)
        live_fraction = live_splits.sum(-1, keepdim=True)
        rescaled_splits = torch.where(
            live_fraction > 0, live_splits * (served_fraction / live_fraction.clamp(min=1e-30)), 0
        )
        # Loads of the links that have not failed.
        is_working = problem.capacity > 0
        is_working[:, list(links)] = False
        load = torch.where(is_working, problem.loads(rescaled_splits), 0)
        utilisation.append((load * problem.inverse_capacity).amax(1))
        disconnected_flow.append(
            (problem.demand * torch.where(live_fraction > 0, 0, served_fraction)[..., 0]).sum(1)
        )
    return torch.stack(utilisation), torch.stack(disconnected_flow)
