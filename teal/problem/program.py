"""Linear program over columns and rows, the input of bounds, engines and LP solvers.

Side conditions rewrite the program over paths and links to such a program.  With columns j of each
demand d (paths, bundles of paths, doubled paths), rows r (links and budgets), and coefficients a[r,
d, j] of a Gbit/s on a column in a row,

    max sum v[d, j] x[d, j]
    s.t.  sum a[r, d, j] x[d, j] <= limit[r],   x[d] = demand[d] w[d],  w[d] in W,

where W is a :class:`teal.problem.sets.DemandSet`. Any prices y[r] >= 0 prove

    optimum <= sum_r limit[r] y[r] + sum_d demand[d] support(v[d, j] - sum_r a[r, d, j] y[r]).

The programs of the largest utilisation, max -theta with loads of at most theta limit[r], have the
same bound for prices on the simplex sum_r limit[r] y[r] = 1, without its first term: see
:mod:`teal.problem.sets`. Main class: :class:`Program`. Prices of added rows minimise the bound by
cutting planes (Kelley 1960).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from teal.pathops import PathOps
from teal.pathops.columns import AddedRowOps
from teal.problem.sets import DemandSet, NonNegative, PriceSet
from teal.runtime.arrays import FloatArray
from teal.runtime.lp import solve_lp
from teal.runtime.shapes import Bool, Float

# Largest number of evaluations of a cutting-plane search; one variable needs about ten.
_MAX_TANGENTS = 60
# Growth of an interval whose end has a negative slope, and largest number of such steps.
_BRACKET_GROWTH = 8.0
_MAX_BRACKET_STEPS = 12
# Relative gap between the best value and the lower bound at which a search ends.
_VALUE_TOLERANCE = 1e-9


def minimise_convex(function: Callable[[Tensor], Tensor], ends: Tensor) -> Tensor:
    """Return near-minimisers (B, n) of B convex functions of n variables >= 0.

    By cutting planes (Kelley 1960): the next point minimises the maximum of all tangents so far.

    Args:
        function: maps points (B, n) to values (B,), one function for each row; differentiable
            almost everywhere.
        ends: (B, n) guess of an upper bound on the minimisers; it is extended if needed.
    """
    return (
        _minimise_on_segment(function, ends)
        if ends.shape[1] == 1
        else _minimise_in_box(function, ends)
    )


def _value_and_gradient(
    function: Callable[[Tensor], Tensor], point: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the value (B,) and the gradient (B, n) of functions at points (B, n)."""
    with torch.enable_grad():
        variable = point.detach().clone().requires_grad_()
        value = function(variable)
        (slope,) = torch.autograd.grad(value.sum(), variable)
    return value.detach(), slope


def _minimise_on_segment(function: Callable[[Tensor], Tensor], high_guess: Tensor) -> Tensor:
    """Minimise B convex functions of one variable by cutting planes, all rows together.

    The next point is the intersection of the tangents on both sides of the minimum.

    Args:
        function: maps points (B, 1) to values (B,).
        high_guess: (B, 1) guess of an upper bound on the minimisers.

    Returns:
        (B, 1) near-minimisers.
    """

    def tangent(point: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = _value_and_gradient(function, point[:, None])
        return value, slope[:, 0]

    # Extend the interval until the slope at its end is not negative.
    low = torch.zeros_like(high_guess[:, 0])
    high = high_guess[:, 0].clone()
    value_low, slope_low = tangent(low)
    value_high, slope_high = tangent(high)
    for _ in range(_MAX_BRACKET_STEPS):
        if not bool((slope_high < 0).any()):
            break
        high = torch.where(slope_high < 0, _BRACKET_GROWTH * high, high)
        value_high, slope_high = tangent(high)
    # Cutting planes; rows stop when the tangents prove that their best value is optimal.
    best_value = torch.minimum(value_low, value_high)
    best_point = torch.where(value_low <= value_high, low, high)
    for iteration in range(_MAX_TANGENTS):
        slope_difference = slope_high - slope_low
        intersection = (value_low - value_high + slope_high * high - slope_low * low) / torch.where(
            slope_difference > 0, slope_difference, 1
        )
        # The intersection of the tangents is a lower bound.
        lower_bound = value_low + slope_low * (intersection - low)
        is_running = (
            (slope_low < 0)
            & (slope_high > 0)
            & (best_value - lower_bound > _VALUE_TOLERANCE * best_value.abs())
        )
        if not bool(is_running.any()):
            break
        # Intersections converge slowly for very different slopes: bisect at every third point.
        next_point = (
            (low + high) / 2
            if iteration % 3 == 2
            else torch.minimum(torch.maximum(intersection, low), high)
        )
        value, slope = tangent(torch.where(is_running, next_point, best_point))
        is_better = is_running & (value < best_value)
        best_value = torch.where(is_better, value, best_value)
        best_point = torch.where(is_better, next_point, best_point)
        # Replace the end of the interval on the side of the new point.
        replaces_high = is_running & (slope >= 0)
        replaces_low = is_running & (slope < 0)
        high, value_high, slope_high = (
            torch.where(replaces_high, new, old)
            for new, old in ((next_point, high), (value, value_high), (slope, slope_high))
        )
        low, value_low, slope_low = (
            torch.where(replaces_low, new, old)
            for new, old in ((next_point, low), (value, value_low), (slope, slope_low))
        )
    return best_point[:, None]


def _minimise_in_box(function: Callable[[Tensor], Tensor], ends: Tensor) -> Tensor:
    """Minimise B convex functions of several variables by cutting planes.

    The next point of a row minimises the maximum of all its tangents so far, by a small LP.

    Args:
        function: maps points (B, n) to values (B,).
        ends: (B, n) guess of an upper bound on the minimisers.

    Returns:
        (B, n) near-minimisers.
    """
    # A box that contains the minimisers even if the guess is too small.
    ends = ends * _BRACKET_GROWTH**2
    best_value = torch.full_like(ends[:, 0], torch.inf)
    best_point = torch.zeros_like(ends)
    # For each row, the tangents so far: slope (n,) and value at 0.
    tangents: list[list[tuple[FloatArray, float]]] = [[] for _ in ends]
    point = torch.zeros_like(ends)
    for _ in range(_MAX_TANGENTS):
        value, slope = _value_and_gradient(function, point)
        is_better = value < best_value
        best_value = torch.where(is_better, value, best_value)
        best_point = torch.where(is_better[:, None], point, best_point)
        # (B,) value of the tangent at 0.
        offset = value - (slope * point).sum(1)
        is_running = False
        next_point = best_point.clone()
        for b, row_tangents in enumerate(tangents):
            row_tangents.append((slope[b].cpu().numpy(), float(offset[b])))
            lower_bound, minimiser = _minimise_tangents(row_tangents, ends[b].cpu().numpy())
            if float(best_value[b]) - lower_bound > _VALUE_TOLERANCE * abs(float(best_value[b])):
                is_running = True
                next_point[b] = torch.from_numpy(minimiser).to(point)
        if not is_running:
            break
        point = next_point
    return best_point


def _minimise_tangents(
    tangents: list[tuple[FloatArray, float]], ends: FloatArray
) -> tuple[float, FloatArray]:
    """Minimise the maximum of affine functions slope' x + offset over a box, by a small LP.

    Args:
        tangents: slope (n,) and offset of each function.
        ends: (n,) upper bounds of the box [0, ends].

    Returns:
        the minimum and the minimising point (n,); -inf and the middle of the box if the LP fails.
    """
    slopes = np.stack([slope for slope, _ in tangents])
    offsets = np.array([offset for _, offset in tangents])
    scale = float(np.abs(offsets).max()) or 1.0
    tangent_rows = np.hstack([slopes * ends / scale, -np.ones((len(tangents), 1))])
    # LP in x / ends and the maximum t, both scaled: min t s.t. slope' x + offset <= t.
    cost = np.append(np.zeros(len(ends)), [1.0])
    lower = np.zeros(len(ends) + 1)
    upper = np.ones(len(ends) + 1)
    lower[-1] = -np.inf
    upper[-1] = np.inf
    solution = solve_lp(cost, (tangent_rows, -offsets / scale), low=lower, high=upper)
    if solution.x is None or not solution.is_solved:
        return -np.inf, ends / 2
    return solution.value * scale, solution.x[:-1] * ends


# Largest number of multiples x matrices x demands whose bounds are computed together: 1 MiB an
# array.
_MAX_BOUND_ENTRIES = 1 << 17

# Maps the value of all rows (B,) and the price of each column (B, D, J) to a bound (B,).
RowBound = Callable[[Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Linear program of each of B matrices, over J columns of each of D demands and R rows.

    Columns are paths and rows are links, unless side conditions have rewritten the program.

    Attributes:
        columns: sums of column values over rows, and of row values along columns.
        demand: (B, D) Gbit/s.
        limit: (B, R) upper bound on the load of each row, Gbit/s; 0 closes the columns on the row.
        value: (D, J) value of a Gbit/s on each column.
        demand_set: feasible set of the shares of a demand.
        price_set: feasible set of the dual prices of the rows.
    """

    columns: PathOps
    demand: Float[Tensor, "B D"]
    limit: Float[Tensor, "B R"]
    value: Float[Tensor, "D J"]
    demand_set: DemandSet
    price_set: PriceSet = dataclasses.field(default_factory=NonNegative)

    @cached_property
    def live(self) -> Bool[Tensor, "B D J"]:
        """Whether each column is live, (B, D, J): it exists, and all its rows have a
        limit above 0.
        """
        return live_columns(self.columns, self.limit)

    @cached_property
    def has_one_value(self) -> bool:
        """Whether all columns of each demand have the same value, so that the cheapest live column
        is the best one.
        """
        return bool(((self.value == self.value[:, :1]) | ~self.columns.mask).all())

    @cached_property
    def routable_demand(self) -> Float[Tensor, "B D"]:
        """Demands in Gbit/s, (B, D), with 0 for those without a live column."""
        return torch.where(self.live.any(-1), self.demand, 0)

    def flows(self, shares: Tensor) -> Tensor:
        """Return the flow (B, D, J) in Gbit/s on each column, of shares (B, D, J)."""
        return shares * self.demand[..., None]

    def loads(self, shares: Tensor) -> Tensor:
        """Return the load (B, R) in Gbit/s of each row, of shares (B, D, J)."""
        return self.columns.link_sum(self.flows(shares))

    def overload(self, load: Tensor) -> Tensor:
        """Return the relative overload (B, R) of each row: (load - limit) / limit, and 0 without
        load.

        For a row with a limit of 0 it is the load over the largest limit.

        Args:
            load: (B, R) Gbit/s.
        """
        is_closed = self.limit <= 0
        # Divide by the limit instead of multiplying by an inverse, which is clamped for tiny
        # limits.
        scale = torch.where(
            is_closed, self.limit.amax(1, keepdim=True).clamp(min=1e-30), self.limit
        )
        return torch.where(load > 0, (load - torch.where(is_closed, 0, self.limit)) / scale, 0)

    def bound(self, prices: Tensor) -> Tensor:
        """Return the Lagrangian dual bound (B,) on the maximum; infinite where it is not finite.

        With the limits c and prices y it is c' y + sum of demand * support(value - price of the
        column).

        Args:
            prices: (B, R) y >= 0, value per Gbit/s.
        """
        return self._bound_at((self.limit * prices).sum(1), self.columns.path_sum(prices))

    def bounds_along(self, prices: Tensor, multiples: Tensor) -> Tensor:
        """Return the dual bound (M, B) at each multiple of the prices.

        One pass over all columns serves all multiples if the cheapest column of a demand is the
        best one.

        Args:
            prices: (B, R) y >= 0, value per Gbit/s.
            multiples: (M,) factors of the prices.
        """
        row_value = (self.limit * prices).sum(1)
        column_price = self.columns.path_sum(prices)
        if not (self.demand_set.uses_best_column and self.has_one_value):
            return torch.stack(
                [
                    self._bound_at(multiple * row_value, multiple * column_price)
                    for multiple in multiples.to(prices)
                ]
            )
        # (B, D) price of the cheapest live column, which is the best one at every multiple.
        cheapest_price = torch.where(self.live, column_price, torch.inf).amin(-1)
        has_column = cheapest_price.isfinite()
        value = self.value[:, 0]

        # (m, B) bounds of multiples (m, 1): support of the rows, and demand times best profit.
        def bound_at(multiple: Tensor) -> Tensor:
            values = multiple * row_value
            price_factor = self.price_set.scale(values) * multiple
            profit = torch.where(has_column, value - price_factor[..., None] * cheapest_price, 0)
            demand_part = (self.demand * self.demand_set.support_of_best(profit)).sum(-1)
            return _finite_bound(self.price_set.support(values) + demand_part)

        multiples_per_chunk = max(1, _MAX_BOUND_ENTRIES // max(1, cheapest_price.numel()))
        return torch.cat(
            [bound_at(chunk[:, None]) for chunk in multiples.to(prices).split(multiples_per_chunk)]
        )

    def _bound_at(self, row_value: Tensor, column_price: Tensor) -> Tensor:
        """Return the dual bound (B,) from sums of prices.

        Args:
            row_value: (B,) sum over the rows of limit times price.
            column_price: (B, D, J) sum of the prices of the rows of each column.
        """
        scale = self.price_set.scale(row_value)[:, None, None]
        demand_support = self.demand_set.support(self.value - scale * column_price, self.live)
        return _finite_bound(
            self.price_set.support(row_value) + (self.demand * demand_support).sum(1)
        )

    def with_added_prices(self, prices: Tensor, bound: RowBound | None = None) -> Tensor:
        """Return prices (B, R) of all rows: the given ones, and the best ones of the added rows.

        Any prices prove a bound, and the bound is convex in the prices: those of the added rows
        minimise it, by cutting planes.

        Args:
            prices: (B, E) of the first E rows.
            bound: bound to minimise, a function of the value of all rows (B,) and the price of each
                column (B, D, J); None for the dual bound.
        """
        bound = bound or self._bound_at
        num_links = prices.shape[1]
        num_rows = self.limit.shape[1]
        all_prices = torch.cat([prices, prices.new_zeros(len(prices), num_rows - num_links)], 1)
        if num_rows == num_links:
            return all_prices
        # The bound is a function of row values and column prices, which are linear in the prices.
        row_value = (self.limit * all_prices).sum(1)
        column_price = self.columns.path_sum(all_prices)
        unit_prices = torch.eye(num_rows, dtype=prices.dtype, device=prices.device)[num_links:]
        # (added rows, D, J) coefficient of a Gbit/s on each column in each added row.
        coefficients = self.columns.path_sum(unit_prices)
        max_value = (
            self.value.amax().clamp(min=0) if self.value.numel() else self.value.new_zeros(())
        )
        min_coefficient = torch.where(coefficients > 0, coefficients, torch.inf).flatten(1).amin(1)

        # (B,) bound as a function of the prices (B, added rows) of the added rows.
        def bound_at(added_prices: Tensor) -> Tensor:
            added_price = torch.einsum("br,rdj->bdj", added_prices, coefficients)
            return bound(
                row_value + (self.limit[:, num_links:] * added_prices).sum(1),
                column_price + added_price,
            )

        # Upper ends of the search: prices at which no column on the row is profitable.
        max_added_prices = torch.where(min_coefficient.isfinite(), max_value / min_coefficient, 0)
        all_prices[:, num_links:] = minimise_convex(
            bound_at, max_added_prices.expand(len(prices), -1)
        )
        return all_prices

    def with_row(self, coefficient: Tensor, limit: Tensor) -> Program:
        """Return the program with an added row, scaled so that its largest coefficient is 1.

        Args:
            coefficient: (D, J) >= 0, coefficient of a Gbit/s on each column.
            limit: (B,) right-hand side of the row.
        """
        max_coefficient = coefficient.amax() if coefficient.numel() else coefficient.new_ones(())
        scale = torch.where(max_coefficient > 0, max_coefficient, 1)
        columns = AddedRowOps(self.columns, coefficient / scale)
        return dataclasses.replace(
            self, columns=columns, limit=torch.cat([self.limit, (limit / scale)[:, None]], 1)
        )


def live_columns(columns: PathOps, limit: Tensor, *, may_be_closed: bool | None = None) -> Tensor:
    """Return for each column (B, D, J) whether it exists and uses no row with a limit of 0.

    Args:
        columns: operations over the columns.
        limit: (B, R) limit of each row, Gbit/s.
        may_be_closed: whether a limit may be 0; None to read the limits.
    """
    exists = columns.mask.expand(len(limit), -1, -1)
    is_closed = limit <= 0
    if not (bool(is_closed.any()) if may_be_closed is None else may_be_closed):
        return exists
    return exists & (columns.path_max(is_closed.to(limit.dtype))[0] == 0)


def _finite_bound(bound: Tensor) -> Tensor:
    """Return the bounds (B,) with NaN and negative infinity replaced by infinity, the trivial
    bound.
    """
    return torch.where(bound.isfinite(), bound, torch.inf)
