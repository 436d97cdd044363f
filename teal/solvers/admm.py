"""ADMM with Teal's splitting, in scaled rows, its copies eliminated.

Teal (Xu et al., SIGCOMM 2023, section 3.4 and appendix C) copies each path flow once for each link
that the path uses, so that the capacity rows fall apart by link.  With splits x[d, k], copies
z[d, k, e], h[d, k] = sum of 1/c[e] along the path, and rows divided by their capacity, the program is

    max  sum v demand x   s.t.   sum_k x + s[d] = 1,   sum over paths through e of (demand/c) z + t[e] = 1,
                                 x[d, k] - z[d, k, e] = 0,   x, s, t >= 0,

with penalty rho (demand/c) on each copy, rho on a capacity row, and rho demand eta on a demand row
(eta = mean of h over the demand's paths).  One iteration minimises the augmented Lagrangian over
(z, t, s), moves the multipliers, then minimises over x.

The multipliers of all copies on a link come out equal to each other and to the link's own, y[e]
(z is free, x alone carries the sign), so that the copies need not be stored:

    y <- max(0, y + (load(x)/c - 1) / (1 + m)),        m[e] = sum of demand/c over all paths through e;
    x <- argmin over x >= 0 of the demand's own K x K problem,
         h_k (x_k - x_old) + pathsum((2 y - y_old)/c) - v/rho + eta (sum x - q) = 0 where x_k > 0,

q = 1 - s - u with u the demand row's multiplier.  State: one number a link and demand, K a demand,
where the textbook form keeps one for each of the (path, link) pairs (30 million on Kdl).
``tests/solvers/test_admm.py`` holds the two forms equal.

Demands of rate 0 follow the same recursion; nothing flows for them, whatever their splits.

For max_link_utilisation the 1 on the right of the capacity rows is theta, minimised with (z, t): it
makes the y sum to 1/rho.  Demand rows are equalities.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from teal.problem import Problem
from teal.solvers.prox import weighted_simplex

SMALL_NETWORK = 100  # nodes; Teal runs 2 iterations below, 5 from there on
DEFAULT_RHO = 0.3


@dataclasses.dataclass(frozen=True, eq=False)
class AdmmState:
    """What one iteration hands to the next.

    Attributes:
        splits: (B, D, K), may be over capacity.
        link_dual: (B, E) y, multiplier of the capacity rows and of the copies, scaled by rho.
        demand_dual: (B, D) u, multiplier of the demand rows, scaled.
    """

    splits: Tensor
    link_dual: Tensor
    demand_dual: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class AdmmScaling:
    """What depends on the problem alone.

    Attributes:
        rho: (B, 1) penalty, in value x Gbit/s (no unit for max_link_utilisation).
        along: (B, D, K) h, sum of 1/c along each path.
        eta: (B, D, 1) penalty of the demand row over rho x demand.
        through: (B, E) m, sum of demand/c over the paths through each link.
    """

    rho: Tensor
    along: Tensor
    eta: Tensor
    through: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class AdmmResiduals:
    """(B,) each; 0 at an optimum.

    Attributes:
        capacity: largest over-utilisation, load/c - 1 (for max_link_utilisation, which has none, 0).
        demand: largest violation of a demand row.
        change: largest change of a split or a multiplier in the last iteration, the multipliers of the
            links over (1 + m), as their rows are.
    """

    capacity: Tensor
    demand: Tensor
    change: Tensor


class AdmmResult(NamedTuple):
    """Where a run ended: splits (B, D, K), perhaps over capacity; prices (B, E); residuals."""

    splits: Tensor
    prices: Tensor
    residuals: AdmmResiduals


def scaling(problem: Problem, rho: float = DEFAULT_RHO) -> AdmmScaling:
    """Precompute; ``rho`` is relative to mean capacity x mean value (to 1 for the balanced programs)."""
    inverse = problem.inverse_capacity
    mask = problem.path_mask
    along = problem.ops.path_sum(inverse)
    along = torch.where(mask, along, 1).clamp(min=1e-30)
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    eta = torch.where(mask, along, 0).sum(-1, keepdim=True) / count
    if problem.objective.maximises_value:
        unit = problem.mean_capacity * problem.mean_value
    else:
        unit = torch.ones_like(inverse[:, :1])
    return AdmmScaling(rho * unit.clamp(min=1e-30), along, eta.clamp(min=1e-30), problem.pressure)


def start(problem: Problem, scale: AdmmScaling, splits: Tensor, prices: Tensor | None = None) -> AdmmState:
    """The state that stands at ``splits`` (B, D, K) and, if there are any, at ``prices`` (B, E).

    The multipliers of the demand rows start at 0.  The prices of the balanced programs count only by
    their ratios.
    """
    dual = torch.zeros_like(problem.capacity)
    if prices is not None:
        worth = prices.to(dual) * problem.capacity
        if problem.objective.maximises_value:
            dual = worth / scale.rho
        else:
            dual = worth / worth.sum(1, keepdim=True).clamp(min=1e-30) / scale.rho
    return AdmmState(torch.where(problem.path_mask, splits, 0), dual, torch.zeros_like(problem.demand))


def step(problem: Problem, scale: AdmmScaling, state: AdmmState) -> AdmmState:
    """One iteration: multipliers of links and demands, then splits.  Pure."""
    link_dual = _link_dual(problem, scale, state)
    total = state.splits.sum(-1)
    if problem.objective.maximises_value:
        demand_dual = (state.demand_dual + total - 1).clamp(min=0)
        slack = (1 - total - state.demand_dual).clamp(min=0)
    else:
        demand_dual = state.demand_dual + total - 1
        slack = torch.zeros_like(total)
    push = problem.path_value / scale.rho[..., None]
    pull = problem.ops.path_sum((2 * link_dual - state.link_dual) * problem.inverse_capacity)
    target = (1 - slack - demand_dual)[..., None]
    linear = scale.along * state.splits - pull + push + scale.eta * target
    splits = _nonnegative_solve(linear, scale.along, scale.eta, problem.path_mask)
    return AdmmState(splits, link_dual, demand_dual)


def residuals(problem: Problem, scale: AdmmScaling, before: AdmmState, after: AdmmState) -> AdmmResiduals:
    """How far ``after`` is from an optimum, by its rows and by how much the last iteration moved it."""
    total = after.splits.sum(-1)
    off = total - 1 if problem.objective.maximises_value else torch.where(problem.routable, (total - 1).abs(), 0)
    off = torch.where(problem.demand > 0, off, 0)
    over = problem.utilisation(after.splits) - 1
    moved = [
        (after.splits - before.splits).flatten(1),
        (after.link_dual - before.link_dual) * (1 + scale.through),
        torch.where(problem.routable, after.demand_dual - before.demand_dual, 0),
    ]
    return AdmmResiduals(
        (over.amax(1) if problem.objective.maximises_value else torch.zeros_like(over[:, 0])).clamp(min=0),
        off.amax(1).clamp(min=0),
        torch.cat(moved, 1).abs().amax(1),
    )


def link_prices(problem: Problem, scale: AdmmScaling, state: AdmmState) -> Tensor:
    """(B, E) link prices in value per Gbit/s: rho y / c."""
    return scale.rho * state.link_dual * problem.inverse_capacity


def solve(
    problem: Problem, splits: Tensor, iterations: int, rho: float = DEFAULT_RHO, prices: Tensor | None = None
) -> AdmmResult:
    """Run so many iterations from ``splits`` and, if there are any, ``prices``."""
    scale = scaling(problem, rho)
    before = state = start(problem, scale, splits, prices)
    for _ in range(iterations):
        before, state = state, step(problem, scale, state)
    found = residuals(problem, scale, before, state)
    return AdmmResult(state.splits, link_prices(problem, scale, state), found)


def default_iterations(problem: Problem) -> int:
    """Teal's: 2 below 100 nodes, 5 from there on."""
    return 2 if problem.topology.num_nodes < SMALL_NETWORK else 5


def _link_dual(problem: Problem, scale: AdmmScaling, state: AdmmState) -> Tensor:
    """(B, E) the new y."""
    load = problem.loads(state.splits) * problem.inverse_capacity
    slope = 1 / (1 + scale.through)
    live = problem.capacity > 0
    if problem.objective.maximises_value:
        return torch.where(live, state.link_dual + (load - 1) * slope, 0).clamp(min=0)
    # y = max(0, a - theta slope), with theta such that the y sum to 1 / rho.
    return weighted_simplex(state.link_dual + load * slope, slope, 1 / scale.rho, live)


def _nonnegative_solve(linear: Tensor, along: Tensor, eta: Tensor, mask: Tensor) -> Tensor:
    """Solve for x >= 0 with along_k x_k + eta sum(x) = linear_k where x_k > 0: (B, D, K), exact.

    x_k = max(0, linear_k - eta total) / along_k; the total follows from which k are positive, and
    those are the largest ``linear``: of all prefixes of the sorted order, the right one gives the
    largest total.
    """
    linear = torch.where(mask, linear, -torch.inf)
    ordered, order = linear.sort(-1, descending=True)
    weight = torch.where(mask, 1 / along, 0).gather(-1, order)
    gains = (torch.where(weight > 0, ordered, 0) * weight).cumsum(-1)
    total = (gains / (1 + eta * weight.cumsum(-1))).amax(-1, keepdim=True).clamp(min=0)
    return torch.where(mask, (linear - eta * total).clamp(min=0) / along, 0)
