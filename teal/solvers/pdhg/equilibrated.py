"""The engine for programs whose magnitudes span many decades: the plain engine with step sizes of their own for paths.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.  The step sizes of the other engines are one a demand, set
by its narrowest path: where one path of a demand is a million times narrower than another, the wide one fills a
million times too slowly.  Here the diagonal preconditioner of Pock & Chambolle (2011, lemma 2) is applied after
scaling each variable by the magnitude that it can have in an optimum:

    a[d, k] = min(1, S b[d, k] / demand[d])      largest share that a path can carry, b its bottleneck (S = 1 for value
                                                 maximisation: the utilisation of a link is at most 1);
    r[e]    = c[e] V / S for value maximisation: y if the price is V, the largest value of a Gbit/s;
              min(c[e], load[e] / S), over the largest of them, for a balanced program, load with all shares at a;
    h[d, k] = sum of r / c along the path / a[d, k],        m[e] = sum of demand a / c over the paths / r[e].

S of a balanced program is the largest utilisation if each demand is split in proportion to the bottlenecks of its
paths.  The primal weight starts at 1, since all magnitudes are 1 after scaling.
"""

from __future__ import annotations

import torch
from torch import Tensor

from teal.problem import Problem
from teal.solvers.pdhg.dense import DenseEngine, Point, Scaling, start, total_value
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.result import PdhgState

MAX_CAPACITY_RATIO = 1e4  # largest over smallest capacity, and demand over smallest capacity
_LEAST_DIVISOR = 1e-300  # instead of 0 as a divisor


def spans_decades(problem: Problem) -> Tensor:
    """(B,) bool: whether the magnitudes of a matrix differ by more than the other engines' step sizes can follow."""
    live = problem.capacity > 0
    largest = torch.where(live, problem.capacity, 0).amax(1)
    smallest = torch.where(live, problem.capacity, torch.inf).amin(1)
    if not problem.demand.shape[1]:
        return largest > MAX_CAPACITY_RATIO * smallest
    return (largest > MAX_CAPACITY_RATIO * smallest) | (problem.demand.amax(1) > MAX_CAPACITY_RATIO * smallest)


def equilibrated_scaling(problem: Problem) -> Scaling:
    """The constants above, for a program in float64."""
    demand, bottleneck = problem.demand[..., None], problem.bottleneck
    on_simplex = problem.price_set.on_simplex
    total = problem.utilisation(_in_proportion(bottleneck)).amax(1) if on_simplex else total_value(problem)
    scale = torch.where(total > 0, total, 1)[:, None]
    load_scale = scale if on_simplex else torch.ones_like(scale)
    if not on_simplex:
        flow = torch.minimum(demand, bottleneck)
        if problem.largest_share is not None:
            flow = torch.minimum(flow, demand * problem.largest_share)
        dual_size = problem.capacity * problem.path_value.amax() / scale
    else:
        flow = torch.minimum(demand, scale[..., None] * bottleneck)
        carried = torch.minimum(problem.capacity, problem.ops.link_sum(flow) / scale)
        dual_size = (carried / carried.amax(1, keepdim=True).clamp(min=_LEAST_DIVISOR)).clamp(min=1e-30)
    largest_share = torch.where(demand > 0, flow / demand.clamp(min=_LEAST_DIVISOR), problem.path_mask.to(demand))
    inverse_sum = problem.ops.path_sum(dual_size * problem.inverse_capacity) / largest_share.clamp(min=_LEAST_DIVISOR)
    full = (
        problem.ops.link_sum(problem.flows(largest_share))
        * problem.inverse_capacity
        / dual_size.clamp(min=_LEAST_DIVISOR)
    )
    full = full / load_scale
    return Scaling(
        objective_scale=scale,
        inverse_capacity_sum=torch.where(problem.path_mask & (inverse_sum > 0), inverse_sum, 1),
        full_path_utilisation=torch.where(full > 0, full, 1e-30),
        load_scale=load_scale,
        largest_share=largest_share,
    )


def _in_proportion(shares: Tensor) -> Tensor:
    """(B, D, K) ``shares`` scaled to a sum of 1 for each demand; 0 where all are 0."""
    return shares / shares.sum(-1, keepdim=True).clamp(min=_LEAST_DIVISOR)


class EquilibratedEngine(PlainEngine):
    """See :class:`teal.solvers.pdhg.engine.PdhgEngine`; always in float64."""

    def __init__(self, problem: Problem, state: PdhgState | None, dtype: torch.dtype) -> None:
        self._problem = exact = problem.solved.to(torch.float64)
        self._scale = scale = equilibrated_scaling(exact)
        DenseEngine.__init__(self, exact, scale.price_scale)
        self._begin(self._first_point(state), torch.ones_like(exact.capacity[:, 0]))

    def _first_point(self, state: PdhgState | None) -> Point:
        """``state`` with shares that the paths can carry; without one, in a balanced program, shares in proportion."""
        exact, largest_share = self._problem, self._scale.largest_share
        point = start(exact, self._scale, state)
        splits = torch.minimum(point.splits, largest_share)
        if exact.demand_set.carries_all:
            has_splits = splits.sum(-1, keepdim=True) > 0
            shares = torch.where(has_splits, splits, exact.bottleneck) if state is not None else exact.bottleneck
            splits = _in_proportion(shares)
        return Point(splits, point.dual)
