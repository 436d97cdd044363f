"""Base of the engines over dense torch tensors: scaled program, starting point, gap check.

:class:`Scaling` holds the constants of the iteration, :class:`Point` an iterate z, and
:class:`DenseEngine` the gap check in float64 and the incumbent. Symbols: table in
:mod:`teal.solvers.pdhg`.
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
from teal.solvers.result import SolveState

# Bytes per path slot and matrix: four persistent float64 tensors (B, D, K), and eight that a check
# allocates at once, in torch's memory and again in that of the recorded graph.
_SLOT_BYTES = 8 * 20
# Bytes per link and matrix: thirty float64 tensors (B, E).
_LINK_BYTES = 8 * 30


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """Constants of the iteration for one program.

    Attributes:
        objective_scale: (B, 1) S, value of all demand; in a min-max program the largest
            utilisation under even splits.
        inverse_capacity_sum: (B, D, 1) h, largest sum of 1 / c along a path of the demand; for step
            sizes per path (B, D, K), one value of each path.
        full_path_utilisation: (B, E) m, utilisation if every path carried all of its demand.
        load_scale: (B, 1) divisor of utilisations: S where prices lie on the simplex, else 1.
    """

    objective_scale: Tensor
    inverse_capacity_sum: Tensor
    full_path_utilisation: Tensor
    load_scale: Tensor

    @property
    def price_scale(self) -> Tensor:
        """Ratio (B, 1) of a link's price to its dual variable over its capacity."""
        return self.objective_scale / self.load_scale


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """An iterate z of the search.

    Attributes:
        splits: (B, D, K) share of each demand on each path.
        dual: (B, E) dual variables y of the links.
    """

    splits: Tensor
    dual: Tensor

    def towards(self, target: Point, weight: Tensor) -> Point:
        """Return the point self + weight (target - self), with a weight of each matrix, (B,)."""
        row_weight = weight[:, None]
        return Point(
            self.splits + row_weight[..., None] * (target.splits - self.splits),
            self.dual + row_weight * (target.dual - self.dual),
        )

    def where(self, mask: Tensor, alternative: Point) -> Point:
        """Return this point in the matrices where ``mask`` (B,) is true, else ``alternative``."""
        row_mask = mask[:, None]
        return Point(
            torch.where(row_mask[..., None], self.splits, alternative.splits),
            torch.where(row_mask, self.dual, alternative.dual),
        )


def scaling(problem: Problem) -> Scaling:
    """Compute the constants of the iteration: S, h of each demand and m of each link.

    S is the value of all demand, or the largest utilisation under even splits; h[d] = largest sum
    of 1 / capacity along a path; m[e] = utilisation if every path carried all of its demand, over S
    for a min-max program.

    Args:
        problem: B matrices.
    """
    # S: the value of all demand, or the largest utilisation under even splits.
    on_simplex = problem.price_set.on_simplex
    unscaled_objective = (
        problem.utilisation(problem.even_splits).amax(1) if on_simplex else total_value(problem)
    )
    # Under a utility marginal values exceed those at full service.
    if problem.utility is not None:
        unscaled_objective = unscaled_objective * problem.utility.value_scale(
            problem.utilisation(problem.first_path_splits).amax(1)
        )
    # Step sizes: m of each link, and h of each demand.
    objective_scale = torch.where(unscaled_objective > 0, unscaled_objective, 1)[:, None]
    load_scale = objective_scale if on_simplex else torch.ones_like(objective_scale)
    full_path_utilisation = problem.full_path_utilisation / load_scale
    inverse_capacity_sum = problem.ops.path_sum(problem.inverse_capacity)
    # Columns with bounds differ by magnitudes (a budget is small beside capacities), so each keeps
    # its own step size.
    if problem.max_share is None:
        inverse_capacity_sum = inverse_capacity_sum.amax(-1, keepdim=True)
    # Positive, also for links without a path and demands without a live path.
    return Scaling(
        objective_scale=objective_scale,
        inverse_capacity_sum=torch.where(inverse_capacity_sum > 0, inverse_capacity_sum, 1),
        full_path_utilisation=torch.where(full_path_utilisation > 0, full_path_utilisation, 1e-30),
        load_scale=load_scale,
    )


def total_value(problem: Problem) -> Tensor:
    """Return (B,) the value of all routable demand, each on its best path."""
    mask = problem.path_mask
    return (
        problem.demand * problem.demand_set.support(problem.path_value.expand_as(mask), mask)
    ).sum(1)


def start(problem: Problem, scale: Scaling, state: SolveState | None) -> Point:
    """Return the first iterate: ``state`` made feasible, or no flow and zero prices.

    Without a state a min-max program starts from even splits, and from equal dual variables of
    all live links.

    Args:
        problem: B matrices.
        scale: scaling of the program.
        state: splits (B, D, K) and prices (B, E); None for a cold start.
    """
    splits = torch.zeros_like(problem.even_splits)
    dual = torch.zeros_like(problem.capacity)
    if state is not None:
        # Finite splits >= 0 on the paths of demands; y = price * capacity.
        finite_splits = (
            state.splits.to(splits).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(min=0)
        )
        splits = torch.where(problem.path_mask & (problem.demand > 0)[..., None], finite_splits, 0)
        prices = state.prices.clamp(min=0)
        # Prices of links alone can be sanitised; rows of side conditions have none here.
        if prices.shape[1] == problem.topology.num_links:
            prices = usable_prices(problem, prices, max_ratio=1.0)
        dual = prices.to(dual) * problem.capacity
    # Project onto the demand sets, and prices of a min-max program onto the simplex.
    if not problem.price_set.on_simplex:
        if problem.max_share is not None:
            splits = torch.minimum(splits, problem.max_share.to(splits))
        return Point(
            splits / splits.sum(-1, keepdim=True).clamp(min=1), dual / scale.objective_scale
        )
    # Min-max program: splits with the sum 1; y with the sum 1, equal on all live links where all
    # are 0.
    splits = scaled_to_one(problem, splits)
    equal_dual = (problem.capacity > 0).to(dual)
    dual = torch.where(dual.sum(1, keepdim=True) > 0, dual, equal_dual)
    return Point(splits, dual / dual.sum(1, keepdim=True).clamp(min=1e-300))


def trial_primal_weight(problem: Problem, scale: Scaling) -> Tensor:
    """Return (B,) the first primal weight |y| / |w|, from a trial routing.

    |w| is the norm of splits that send each demand on one path, y the price guess for the links
    that the trial routing overloads: first paths, or even splits for a min-max program.

    Args:
        problem: B matrices.
        scale: step sizes of the program.
    """
    demand = problem.routable_demand
    # |w|^2 = sum of demand h; over S in a min-max program.
    squared_primal_distance = (demand * scale.inverse_capacity_sum[..., 0]).sum(
        1
    ) / scale.load_scale[:, 0]
    # y from the loads of the trial routing.
    if problem.price_set.on_simplex:
        dual_guess = guess_dual(problem.capacity, problem.loads(problem.even_splits), None)
    else:
        # S is the value of all demand.
        total_demand = demand.sum(1, keepdim=True)
        mean_scaled_value = 1 / torch.where(total_demand > 0, total_demand, 1)
        dual_guess = guess_dual(
            problem.capacity, problem.loads(problem.first_path_splits), mean_scaled_value
        )
    return initial_primal_weight(scale.full_path_utilisation, dual_guess, squared_primal_distance)


class DenseEngine:
    """Base of engines over dense torch tensors: gap check in float64, and incumbent.

    Args:
        exact: B matrices, float64.
        price_scale: (B, 1) ratio of a link's price to its dual variable over its capacity.
    """

    def __init__(self, exact: Problem, price_scale: Tensor) -> None:
        self._exact = exact
        self._price_scale = price_scale.to(torch.float64)
        self._projected_splits: Tensor | None = None
        self._incumbent: tuple[Tensor, Tensor] | None = None  # (splits, prices)

    def _last_step(self) -> Point:
        """Return T(z), the splits and dual variables of the last PDHG step."""
        raise NotImplementedError

    def _prices(self, dual: Tensor) -> Tensor:
        """Return the (B, E) link prices p of dual variables y (B, E), value per Gbit/s."""
        return self._price_scale * dual.to(torch.float64) * self._exact.inverse_capacity

    def _bound(self, dual: Tensor) -> Tensor:
        """Return the (B,) dual bounds at the prices of y (B, E), on the host."""
        return dual_bound(self._exact, self._prices(dual)).cpu()

    def trivial_bound(self) -> Tensor:
        """Return the (B,) certified dual bounds at zero prices."""
        return from_score(self._exact, total_value(self._exact)).cpu()

    def certify(self) -> Tensor:
        """Return (B,) certified dual bounds at the prices of the last PDHG step."""
        return self._bound(self._last_step().dual)

    def check(self, refill: int = 0, sufficient_ratio: float = math.inf) -> tuple[Tensor, Tensor]:
        """Run a gap check; return (B,) values and (B,) certified dual bounds.

        They are those of the last PDHG step, with its splits projected to feasible ones.

        Args:
            refill: rounds that allocate unused capacity to unserved demand.
            sufficient_ratio: unused; all rounds run.
        """
        point = self._last_step()
        self._projected_splits = project(self._exact, point.splits.to(torch.float64), refill)
        bound = dual_bound(self._exact, self._prices(point.dual))
        value, bound = torch.stack([self._exact.value(self._projected_splits), bound]).cpu()
        return value, bound

    def keep(self, has_new_allocation: Tensor, has_new_prices: Tensor) -> None:
        """Replace the incumbent of some matrices by results of the last check.

        Args:
            has_new_allocation: (B,) bool, matrices with a new incumbent allocation.
            has_new_prices: (B,) bool, matrices with new incumbent prices.
        """
        new_prices = self._prices(self._last_step().dual)
        # The first call stores the splits of the check; prices of 0 prove the trivial bound.
        zero_prices = torch.zeros_like(new_prices)
        splits, incumbent_prices = (
            (self._projected_splits, zero_prices) if self._incumbent is None else self._incumbent
        )
        if self._projected_splits is None or splits is None:
            raise RuntimeError("keep() called before check(): no allocation to store")
        # Replace splits and prices of the chosen matrices.
        has_new_allocation = has_new_allocation.to(new_prices.device)
        has_new_prices = has_new_prices.to(new_prices.device)
        splits = torch.where(has_new_allocation[:, None, None], self._projected_splits, splits)
        self._incumbent = splits, torch.where(has_new_prices[:, None], new_prices, incumbent_prices)

    def incumbent(self) -> tuple[Tensor, Tensor]:
        """Return the incumbent splits (B, D, K) and prices (B, E), float64."""
        if self._incumbent is None:
            raise RuntimeError("incumbent() called before keep(): no incumbent stored")
        return self._incumbent

    def state(self) -> SolveState:
        """Return splits (B, D, K) and prices (B, E) of the last PDHG step, feasible or not."""
        point = self._last_step()
        return SolveState(point.splits.to(torch.float64), self._prices(point.dual))


def bytes_needed(paths: PathSet, dtype: torch.dtype) -> int:
    """Estimate the GPU memory of the solve of one matrix, in bytes, without the path set."""
    # Splits of z, z_0 and T(z), node flows, demands and h in ``dtype``; the rest in float64.
    entry_bytes = dtype.itemsize
    num_path_slots = paths.leaf.size
    num_nodes = paths.trie.num_nodes
    iteration_bytes = entry_bytes * (3 * num_path_slots + num_nodes + 2 * paths.num_demands)
    # Add the float64 tensors: splits, node flows and demands of checks, and links.
    return (
        iteration_bytes
        + _SLOT_BYTES * num_path_slots
        + 8 * (num_nodes + 2 * paths.num_demands)
        + _LINK_BYTES * paths.num_links
    )
