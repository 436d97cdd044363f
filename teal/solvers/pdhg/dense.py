"""What engines over torch tensors share: the scaled program, where to begin, and what an iterate is worth."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.bounds import dual_bound
from teal.network import PathSet
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.solvers.pdhg.engine import PdhgState, first_omega, price_guess
from teal.solvers.projection import project

_LOOK_BYTES = 8 * 10  # a path and matrix: float64 tensors (B, D, K) that a look or the scaling holds at once


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """What depends on the program alone.

    Attributes:
        scale: (B, 1) S: value of all demand; of a balanced program, utilisation under an even split.
        along: (B, D, 1) h.
        through: (B, E) m, over S for a balanced program.
        unit: (B, 1) what a price per Gbit/s is over y / c: S, of a balanced program 1.
    """

    scale: Tensor
    along: Tensor
    through: Tensor
    unit: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """Splits (B, D, K) and scaled prices y (B, E)."""

    splits: Tensor
    dual: Tensor

    def plus(self, other: Point, weight: Tensor) -> Point:
        """Self + weight (other - self), weight (B,)."""
        w = weight[:, None]
        return Point(
            self.splits + w[..., None] * (other.splits - self.splits), self.dual + w * (other.dual - self.dual)
        )

    def where(self, rows: Tensor, other: Point) -> Point:
        """Self in the ``rows`` (B,), else other."""
        r = rows[:, None]
        return Point(torch.where(r[..., None], self.splits, other.splits), torch.where(r, self.dual, other.dual))


def in_utilisations(problem: Problem) -> Problem:
    """The program as engines solve it: a balanced one as max_link_utilisation."""
    if not problem.objective.is_balanced:
        return problem
    return dataclasses.replace(problem, objective=Objective(ObjectiveName.MAX_LINK_UTILISATION))


def scaling(problem: Problem) -> Scaling:
    """Precompute."""
    mask = problem.path_mask
    if problem.objective.maximises_value:
        scale = (problem.demand * (problem.path_value * mask).amax(-1)).sum(1, keepdim=True)
    else:
        scale = problem.utilisation(problem.even_splits).amax(1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1)
    through = problem.pressure if problem.objective.maximises_value else problem.pressure / scale
    along = problem.ops.path_sum(problem.inverse_capacity).amax(-1, keepdim=True)
    unit = scale if problem.objective.maximises_value else torch.ones_like(scale)
    return Scaling(scale, torch.where(along > 0, along, 1), torch.where(through > 0, through, 1e-30), unit)


def start(problem: Problem, scale: Scaling, state: PdhgState | None) -> Point:
    """Where to begin: at ``state``, made feasible, or at no flow (a balanced program: even splits) and no price."""
    balanced, live = problem.objective.is_balanced, problem.capacity > 0
    splits, dual = torch.zeros_like(problem.even_splits), torch.zeros_like(problem.capacity)
    if state is not None:
        given = state.splits.to(splits).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)
        splits = torch.where(problem.path_mask & (problem.demand > 0)[..., None], given, 0)
        dual = state.prices.to(dual).clamp(min=0) * problem.capacity
    total = splits.sum(-1, keepdim=True)
    if not balanced:
        return Point(splits / total.clamp(min=1), dual / scale.scale)
    splits = torch.where(total > 1e-12, splits / total.clamp(min=1e-12), problem.even_splits)
    dual = torch.where(dual.sum(1, keepdim=True) > 0, dual, live.to(dual))
    return Point(splits, dual / dual.sum(1, keepdim=True).clamp(min=1e-300))


def guessed_omega(problem: Problem, scale: Scaling) -> Tensor:
    """(B,) the first primal weight, from one trial routing."""
    rate = torch.where(problem.routable, problem.demand, 0)
    effort = (rate * scale.along[..., 0]).sum(1)
    if problem.objective.is_balanced:
        guess = price_guess(problem.capacity, problem.loads(problem.even_splits), None)
        return first_omega(scale.through, guess, effort / scale.scale[:, 0])
    first = torch.zeros_like(problem.even_splits)
    first[..., 0] = 1
    total = rate.sum(1, keepdim=True)
    value = 1 / torch.where(total > 0, total, 1)
    trial = problem.loads(torch.where(problem.path_mask, first, 0))
    return first_omega(scale.through, price_guess(problem.capacity, trial, value), effort)


class DenseEngine:
    """What an Engine over dense torch tensors looks with, in float64; keeps the best of what it saw."""

    def __init__(self, exact: Problem, unit: Tensor) -> None:
        """Of the program ``exact``, in float64, with ``unit`` (B, 1) of its :class:`Scaling`."""
        self._exact, self._unit = exact, unit.to(torch.float64)
        self._looked: Tensor | None = None
        self._kept: tuple[Tensor, Tensor] | None = None

    def _offered(self) -> Point:
        """Where the last iteration's step led."""
        raise NotImplementedError

    def _prices(self, dual: Tensor) -> Tensor:
        """(B, E) value per Gbit/s of scaled prices y."""
        return self._unit * dual.to(torch.float64) * self._exact.inverse_capacity

    def _bound(self, dual: Tensor) -> Tensor:
        """(B,) bound of scaled prices y, on the host."""
        return dual_bound(self._exact, self._prices(dual)).cpu()

    def certify(self) -> Tensor:
        """See Engine."""
        return self._bound(self._offered().dual)

    def look(self, refill: int = 0) -> tuple[Tensor, Tensor]:
        """See Engine."""
        point = self._offered()
        self._looked = project(self._exact, point.splits.to(torch.float64), refill)
        bound = dual_bound(self._exact, self._prices(point.dual))
        value, bound = torch.stack([self._exact.value(self._looked), bound]).cpu()
        return value, bound

    def keep(self, allocations: Tensor, prices: Tensor) -> None:
        """See Engine."""
        offered = self._prices(self._offered().dual)
        splits, known = (self._looked, offered) if self._kept is None else self._kept
        if self._looked is None or splits is None:
            raise RuntimeError("keep comes after look")
        allocations, prices = allocations.to(offered.device), prices.to(offered.device)
        splits = torch.where(allocations[:, None, None], self._looked, splits)
        self._kept = splits, torch.where(prices[:, None], offered, known)

    def best(self) -> tuple[Tensor, Tensor]:
        """See Engine."""
        if self._kept is None:
            raise RuntimeError("nothing was kept")
        return self._kept

    def state(self) -> PdhgState:
        """See Engine."""
        point = self._offered()
        return PdhgState(point.splits.to(torch.float64), self._prices(point.dual))


def bytes_needed(paths: PathSet, dtype: torch.dtype) -> int:
    """Memory of a GPU that one matrix takes while it is solved, about; the path set's own comes on top, once."""
    size, places, nodes = dtype.itemsize, paths.leaf.size, paths.trie.num_nodes
    iterating = size * (3 * places + nodes + 2 * paths.num_demands)
    return iterating + _LOOK_BYTES * places + 8 * (nodes + 2 * paths.num_demands + 30 * paths.num_links)
