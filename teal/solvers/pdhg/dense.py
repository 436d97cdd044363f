"""The parts that the engines over torch tensors share: the scaled program, the starting point, the
gap check.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from teal.network import PathSet
from teal.problem import Problem, dual_bound
from teal.problem.bounds import from_score, usable_prices
from teal.solvers.pdhg.engine import guess_dual, initial_primal_weight
from teal.solvers.projection import project, scaled_to_one
from teal.solvers.result import PdhgState

# Bytes a path slot and matrix: four float64 tensors (B, D, K) that stay, and eight that a check
# holds at once, in torch's memory and again in that of its recording.
_CHECK_BYTES = 8 * 20
_LINK_BYTES = 8 * 30  # bytes a link and matrix: thirty float64 tensors (B, E)


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """Constants of the iteration, which depend on the program alone.

    Attributes:
        objective_scale: (B, 1) S.
        inverse_capacity_sum: (B, D, 1) h; (B, D, K) if each path has a step size of its own, as
            under ``largest_share``.
        full_path_utilisation: (B, E) m.
        load_scale: (B, 1) by which utilisations are divided: S where prices lie on the simplex,
            else 1.
        largest_share: (B, D, K) share of its demand that a path carries at most, for the
            equilibrated engine; else 1.
        dual_size: (B, E) r, in proportion to which a balanced program's first prices are, for the
            same; else 1.
    """

    objective_scale: Tensor
    inverse_capacity_sum: Tensor
    full_path_utilisation: Tensor
    load_scale: Tensor
    largest_share: Tensor = dataclasses.field(default_factory=lambda: torch.ones(()))
    dual_size: Tensor | float = 1.0

    @property
    def price_scale(self) -> Tensor:
        """(B, 1) price over y / c."""
        return self.objective_scale / self.load_scale


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """An iterate z: splits (B, D, K) and dual variables y (B, E)."""

    splits: Tensor
    dual: Tensor

    def towards(self, other: Point, weight: Tensor) -> Point:
        """Self + weight (other - self), weight (B,)."""
        w = weight[:, None]
        return Point(
            self.splits + w[..., None] * (other.splits - self.splits),
            self.dual + w * (other.dual - self.dual),
        )

    def where(self, rows: Tensor, other: Point) -> Point:
        """Self in the ``rows`` (B,) that are true, else other."""
        r = rows[:, None]
        return Point(
            torch.where(r[..., None], self.splits, other.splits),
            torch.where(r, self.dual, other.dual),
        )


def scaling(problem: Problem) -> Scaling:
    """Compute the constants."""
    on_simplex = problem.price_set.on_simplex
    total = problem.utilisation(problem.even_splits).amax(1) if on_simplex else total_value(problem)
    if problem.utility is not None:
        total = total * problem.utility.value_scale(
            problem.utilisation(problem.first_path_splits).amax(1)
        )
    objective_scale = torch.where(total > 0, total, 1)[:, None]
    load_scale = objective_scale if on_simplex else torch.ones_like(objective_scale)
    full = problem.full_path_utilisation / load_scale
    inverse_sum = problem.ops.path_sum(problem.inverse_capacity)
    if (
        problem.largest_share is None
    ):  # else columns differ by magnitudes: a budget is small beside capacities
        inverse_sum = inverse_sum.amax(-1, keepdim=True)
    return Scaling(
        objective_scale=objective_scale,
        inverse_capacity_sum=torch.where(inverse_sum > 0, inverse_sum, 1),
        full_path_utilisation=torch.where(full > 0, full, 1e-30),
        load_scale=load_scale,
    )


def total_value(problem: Problem) -> Tensor:
    """(B,) value of all routable demand, each on its best path."""
    mask = problem.path_mask
    return (
        problem.demand * problem.demand_set.support(problem.path_value.expand_as(mask), mask)
    ).sum(1)


def start(problem: Problem, scale: Scaling, state: PdhgState | None) -> Point:
    """The first iterate: ``state`` made feasible, or no flow and no prices (balanced: even splits,
    prices by size).
    """
    splits, dual = torch.zeros_like(problem.even_splits), torch.zeros_like(problem.capacity)
    if state is not None:
        positive = state.splits.to(splits).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)
        splits = torch.where(problem.path_mask & (problem.demand > 0)[..., None], positive, 0)
        prices = state.prices.clamp(min=0)
        if prices.shape[1] == problem.topology.num_links:  # and no rows of side conditions
            prices = usable_prices(problem, prices, most=1.0)
        dual = prices.to(dual) * problem.capacity
    if not problem.price_set.on_simplex:
        if problem.largest_share is not None:
            splits = torch.minimum(splits, problem.largest_share.to(splits))
        return Point(
            splits / splits.sum(-1, keepdim=True).clamp(min=1), dual / scale.objective_scale
        )
    splits = scaled_to_one(problem, splits)
    first = torch.where(problem.capacity > 0, scale.dual_size, torch.zeros_like(dual))
    dual = torch.where(dual.sum(1, keepdim=True) > 0, dual, first)
    return Point(splits, dual / dual.sum(1, keepdim=True).clamp(min=1e-300))


def trial_primal_weight(problem: Problem, scale: Scaling) -> Tensor:
    """(B,) the first primal weight, from one trial routing: first paths, or even splits for a
    balanced program.
    """
    demand = problem.routable_demand
    squared_primal_distance = (demand * scale.inverse_capacity_sum[..., 0]).sum(
        1
    ) / scale.load_scale[:, 0]
    if problem.price_set.on_simplex:
        guess = guess_dual(problem.capacity, problem.loads(problem.even_splits), None)
    else:
        total = demand.sum(1, keepdim=True)
        mean_scaled_value = 1 / torch.where(total > 0, total, 1)  # S is the value of all demand
        guess = guess_dual(
            problem.capacity, problem.loads(problem.first_path_splits), mean_scaled_value
        )
    return initial_primal_weight(scale.full_path_utilisation, guess, squared_primal_distance)


class DenseEngine:
    """The gap check of an engine over dense torch tensors, in float64; keeps the best that was
    checked.
    """

    def __init__(self, exact: Problem, price_scale: Tensor) -> None:
        """For the program ``exact``, in float64, with the ``price_scale`` (B, 1) of its
        :class:`Scaling`.
        """
        self._exact, self._price_scale = exact, price_scale.to(torch.float64)
        self._checked_splits: Tensor | None = None
        self._kept: tuple[Tensor, Tensor] | None = None  # splits and prices

    def _last_step(self) -> Point:
        """T(z) of the last iteration."""
        raise NotImplementedError

    def _prices(self, dual: Tensor) -> Tensor:
        """(B, E) value per Gbit/s, of y."""
        return self._price_scale * dual.to(torch.float64) * self._exact.inverse_capacity

    def _bound(self, dual: Tensor) -> Tensor:
        """(B,) bound of y, on the host."""
        return dual_bound(self._exact, self._prices(dual)).cpu()

    def trivial_bound(self) -> Tensor:
        """The bound at prices of 0 (:meth:`PdhgEngine.trivial_bound`)."""
        return from_score(self._exact, total_value(self._exact)).cpu()

    def certify(self) -> Tensor:
        """Certify given prices and splits (:meth:`PdhgEngine.certify`)."""
        return self._bound(self._last_step().dual)

    def check(self, refill: int = 0, enough: float = math.inf) -> tuple[Tensor, Tensor]:
        """Certify the present point (:meth:`PdhgEngine.check`)."""
        point = self._last_step()
        self._checked_splits = project(self._exact, point.splits.to(torch.float64), refill)
        bound = dual_bound(self._exact, self._prices(point.dual))
        value, bound = torch.stack([self._exact.value(self._checked_splits), bound]).cpu()
        return value, bound

    def keep(self, is_best_allocation: Tensor, is_best_prices: Tensor) -> None:
        """Keep the better results (:meth:`PdhgEngine.keep`)."""
        new_prices = self._prices(self._last_step().dual)
        no_prices = torch.zeros_like(new_prices)  # those of the trivial bound
        splits, kept_prices = (
            (self._checked_splits, no_prices) if self._kept is None else self._kept
        )
        if self._checked_splits is None or splits is None:
            raise RuntimeError("keep must follow check")
        is_best_allocation, is_best_prices = (
            is_best_allocation.to(new_prices.device),
            is_best_prices.to(new_prices.device),
        )
        splits = torch.where(is_best_allocation[:, None, None], self._checked_splits, splits)
        self._kept = splits, torch.where(is_best_prices[:, None], new_prices, kept_prices)

    def best(self) -> tuple[Tensor, Tensor]:
        """The best results so far (:meth:`PdhgEngine.best`)."""
        if self._kept is None:
            raise RuntimeError("nothing was kept")
        return self._kept

    def state(self) -> PdhgState:
        """The state for a later start (:meth:`PdhgEngine.state`)."""
        point = self._last_step()
        return PdhgState(point.splits.to(torch.float64), self._prices(point.dual))


def bytes_needed(paths: PathSet, dtype: torch.dtype) -> int:
    """Estimated GPU memory to solve one matrix; the memory of the path set comes on top, once."""
    size, slots, nodes = dtype.itemsize, paths.leaf.size, paths.trie.num_nodes
    iteration = size * (3 * slots + nodes + 2 * paths.num_demands)
    return (
        iteration
        + _CHECK_BYTES * slots
        + 8 * (nodes + 2 * paths.num_demands)
        + _LINK_BYTES * paths.num_links
    )
