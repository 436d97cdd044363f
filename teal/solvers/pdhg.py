"""PDHG, primal-dual hybrid gradient (Chambolle & Pock 2011), in splits and scaled prices: the plain reference.

Saddle point, with S a scale that makes the objective of order 1 and prices p[e] = S y[e] / c[e]:

    max over w, min over y >= 0 of   sum demand v w / S - sum_e y[e] (load[e](w) / c[e] - 1),

the splits w[d, :] in {w >= 0, sum <= 1}.  One iteration (step sizes as in Pock & Chambolle 2011, one a
demand so that the Euclidean projection stays the right prox):

    w' = Proj(w + (v / S - pathsum(y / c)) / (omega h[d])),        h[d] = max over k of sum of 1/c along the path;
    y' = max(0, y + omega (load(2 w' - w) / c - 1) / m[e]),        m[e] = sum of demand / c over all paths through e.

max_link_utilisation: the y lie on the simplex, loads are over S, and sum w = 1.

Every few iterations the last and the average iterate are projected to feasible allocations and their
prices certified; the best of each ever seen is what is returned, whenever one stops.  From there PDLP's
rules (Applegate et al. 2021): restart to the better of the two when the gap has fallen far enough or
the cycle has grown long, and set the primal weight omega by how far either side has moved since.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
from torch import Tensor

from teal.bounds import gap as certified_gap
from teal.bounds import scaled_dual_bound
from teal.problem import Problem
from teal.solvers.projection import project
from teal.solvers.prox import project_splits, weighted_simplex

_FIRST_OMEGA = 0.01
_SUFFICIENT, _NECESSARY, _LONG = 0.2, 0.8, 0.36  # PDLP's restart parameters
_REFILL = 2


@dataclasses.dataclass(frozen=True, eq=False)
class PdhgState:
    """What one iteration hands to the next, and a later matrix can start from.

    Attributes:
        splits: (B, D, K).
        dual: (B, E) y.
        omega: (B, 1) primal weight.
    """

    splits: Tensor
    dual: Tensor
    omega: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class PdhgScaling:
    """What depends on the problem alone.

    Attributes:
        scale: (B, 1) S: value of all demand; of max_link_utilisation, utilisation under an even split.
        along: (B, D, 1) h.
        through: (B, E) m, over S for max_link_utilisation.
    """

    scale: Tensor
    along: Tensor
    through: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class PdhgResult:
    """The best that was seen.

    Attributes:
        splits: (B, D, K), feasible.
        prices: (B, E), value per Gbit/s.
        value, bound, gap: (B,) of them.
        iterations: done.
        state: to start the next matrix from.
    """

    splits: Tensor
    prices: Tensor
    value: Tensor
    bound: Tensor
    gap: Tensor
    iterations: int
    state: PdhgState


def scaling(problem: Problem) -> PdhgScaling:
    """Precompute."""
    mask, inverse = problem.path_mask, problem.inverse_capacity
    if problem.objective.maximises_value:
        scale = (problem.demand * (problem.path_value * mask).amax(-1)).sum(1, keepdim=True)
    else:
        scale = problem.utilisation(problem.even_splits).amax(1, keepdim=True)
    scale = scale.clamp(min=1e-30)
    through = problem.pressure if problem.objective.maximises_value else problem.pressure / scale
    along = torch.where(mask, problem.ops.path_sum(inverse), 0).amax(-1, keepdim=True)
    return PdhgScaling(scale, along.clamp(min=1e-30), through.clamp(min=1e-30))


def start(
    problem: Problem, scale: PdhgScaling, splits: Tensor | None = None, prices: Tensor | None = None
) -> PdhgState:
    """The state at ``splits`` (B, D, K) and ``prices`` (B, E); without them no flow and no price."""
    if splits is None:
        splits = torch.zeros_like(problem.path_value.expand(problem.batch, -1, -1))
    splits = project_splits(splits.to(problem.demand), problem.path_mask, may_shed=problem.objective.may_shed)
    dual = torch.zeros_like(problem.capacity) if prices is None else prices.to(problem.capacity) * problem.capacity
    if problem.objective.maximises_value:
        dual = dual / scale.scale
    else:
        live = problem.capacity > 0
        dual = torch.where(dual.sum(1, keepdim=True) > 0, dual, live.to(dual))
        dual = dual / dual.sum(1, keepdim=True).clamp(min=1e-30)
    return PdhgState(splits, dual, torch.full_like(scale.scale, _FIRST_OMEGA))


def step(problem: Problem, scale: PdhgScaling, state: PdhgState) -> PdhgState:
    """One iteration.  Pure."""
    inverse = problem.inverse_capacity
    omega = state.omega[..., None]
    pull = problem.ops.path_sum(state.dual * inverse)
    push = problem.path_value / scale.scale[..., None]
    moved = state.splits + (push - pull) / (omega * scale.along)
    splits = project_splits(moved, problem.path_mask, may_shed=problem.objective.may_shed)
    load = problem.loads(2 * splits - state.splits) * inverse
    if problem.objective.maximises_value:
        dual = (state.dual + state.omega * (load - 1) / scale.through).clamp(min=0)
        dual = torch.where(problem.capacity > 0, dual, 0)
    else:
        slope = state.omega / scale.through
        dual = weighted_simplex(state.dual + slope * load / scale.scale, slope, 1.0, problem.capacity > 0)
    return PdhgState(splits, dual, state.omega)


def prices(problem: Problem, scale: PdhgScaling, state: PdhgState) -> Tensor:
    """(B, E) link prices in value per Gbit/s: S y / c (of max_link_utilisation y / c)."""
    unit = scale.scale if problem.objective.maximises_value else 1.0
    return unit * state.dual * problem.inverse_capacity


def solve(
    problem: Problem,
    *,
    gap: float = 1e-2,
    deadline: float = float("inf"),
    max_iterations: int = 10_000,
    check_every: int = 10,
    warm_start: tuple[Tensor, Tensor] | PdhgState | None = None,
) -> PdhgResult:
    """Iterate until every matrix has a certified ``gap``, or time or iterations are up.

    Args:
        problem: B matrices, solved together.
        gap: target, (bound - value) / bound.
        deadline: seconds from now; looked at every ``check_every`` iterations.
        max_iterations: most iterations.
        check_every: iterations from one certificate to the next; a certificate costs about as much
            as five iterations.
        warm_start: (splits, prices) of an earlier answer, of a network, or the state of a result.
    """
    begin = time.perf_counter()
    problem = problem.to(torch.float64)
    scale = scaling(problem)
    if isinstance(warm_start, PdhgState):
        splits = project_splits(warm_start.splits, problem.path_mask, may_shed=problem.objective.may_shed)
        state = dataclasses.replace(warm_start, splits=splits)
    else:
        state = start(problem, scale, *(warm_start or (None, None)))
    best = _Best(problem, gap)
    origin = average = state  # of this cycle, row by row
    length = torch.zeros_like(problem.demand[:, 0])
    at_restart = previous = best.look(scale, state)  # (B,) gaps
    iterations = 0
    while iterations < max_iterations and not best.reached and time.perf_counter() - begin < deadline:
        for _ in range(min(check_every, max_iterations - iterations)):
            state = step(problem, scale, state)
            iterations, length = iterations + 1, length + 1
            average = _mix(average, state, 1 / length)
        own, mean = best.look(scale, state), best.look(scale, average)
        candidate = torch.minimum(own, mean)
        due = (
            (candidate <= _SUFFICIENT * at_restart)
            | ((candidate <= _NECESSARY * at_restart) & (candidate > previous))
            | (length >= max(_LONG * iterations, 4 * check_every))
        )
        better = _choose(mean < own, average, state)
        fresh = dataclasses.replace(better, omega=_weight(problem, scale, origin, better))
        state, origin, average = (_choose(due, fresh, old) for old in (state, origin, average))
        length = torch.where(due, 0, length)
        at_restart = torch.where(due, candidate, at_restart)
        previous = candidate
    return best.result(iterations, state)


def _mix(a: PdhgState, b: PdhgState, share: Tensor) -> PdhgState:
    """Row by row ``a + share (b - a)``, share (B,)."""
    splits = torch.lerp(a.splits, b.splits, share[:, None, None])
    return PdhgState(splits, torch.lerp(a.dual, b.dual, share[:, None]), b.omega)


def _choose(first: Tensor, a: PdhgState, b: PdhgState) -> PdhgState:
    """Row by row ``a`` where ``first`` (B,), else ``b``."""
    rows = first[:, None]
    return PdhgState(
        torch.where(rows[..., None], a.splits, b.splits),
        torch.where(rows, a.dual, b.dual),
        torch.where(rows, a.omega, b.omega),
    )


def _weight(problem: Problem, scale: PdhgScaling, origin: PdhgState, state: PdhgState) -> Tensor:
    """(B, 1) omega, half way in its logarithm to how far the dual moved over how far the primal did.

    Both distances in the metrics of the steps: demand h for splits, m for prices.
    """
    weight = problem.demand[..., None] * scale.along
    if not problem.objective.maximises_value:
        weight = weight / scale.scale[..., None]
    primal = (weight * (state.splits - origin.splits).square()).sum((1, 2)).sqrt()
    dual = (scale.through * (state.dual - origin.dual).square()).sum(1).sqrt()
    known = (primal > 1e-12) & (dual > 1e-12)
    target = torch.where(known, dual / primal.clamp(min=1e-12), origin.omega[:, 0]).clamp(1e-6, 1e3)
    return (0.5 * target.log() + 0.5 * origin.omega[:, 0].log()).exp()[:, None]


class _Best:
    """The best feasible allocation and the best certified prices of each matrix so far.

    A matrix that has reached the target keeps what it has, so that it gets the same answer in any batch.
    """

    def __init__(self, problem: Problem, target: float) -> None:
        self._problem, self._target = problem, target
        self._sign = 1 if problem.objective.maximises_value else -1
        self._kept: dict[str, Any] = {}

    def look(self, scale: PdhgScaling, state: PdhgState) -> Tensor:
        """Take what ``state`` has to offer; its own gap, (B,)."""
        problem = self._problem
        splits = project(problem, state.splits, _REFILL)
        price = prices(problem, scale, state)
        offered = {"splits": splits, "value": problem.value(splits), "prices": price}
        offered["bound"] = scaled_dual_bound(problem, price)
        self._kept = self._kept or offered
        going_on = self._gap() > self._target
        for score, what, sign in (("value", "splits", self._sign), ("bound", "prices", -self._sign)):
            win = going_on & (sign * offered[score] > sign * self._kept[score])
            shape = (-1, *[1] * (offered[what].dim() - 1))
            self._kept[what] = torch.where(win.view(shape), offered[what], self._kept[what])
            self._kept[score] = torch.where(win, offered[score], self._kept[score])
        return certified_gap(problem, offered["value"], offered["bound"])

    def _gap(self) -> Tensor:
        return certified_gap(self._problem, self._kept["value"], self._kept["bound"])

    @property
    def reached(self) -> bool:
        return bool((self._gap() <= self._target).all())

    def result(self, iterations: int, state: PdhgState) -> PdhgResult:
        return PdhgResult(**self._kept, gap=self._gap(), iterations=iterations, state=state)
