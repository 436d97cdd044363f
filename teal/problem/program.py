r"""The linear program that side conditions rewrite and that bounds, engines and LP solvers take:
columns and rows.

With columns j of each demand d (paths, bundles of paths, every path twice), rows r (links, and one
for each budget), and a[r, d, j] what a Gbit/s on a column puts on a row,

    max sum v[d, j] x[d, j]
    s.t.  sum a[r, d, j] x[d, j] <= limit[r],   x[d] = demand[d] w[d],  w[d] in W,

where W is a :class:`teal.problem.sets.DemandSet`.  Any prices y[r] >= 0 prove

    optimum <= sum_r limit[r] y[r] + sum_d demand[d] support(v[d, j] - sum_r a[r, d, j] y[r]).

The programs of the largest utilisation, max -theta with loads of at most theta limit[r], have the
same bound for prices on the simplex sum_r limit[r] y[r] = 1, without its first term: see
:mod:`teal.problem.sets`.
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

_MAX_POINTS = 60  # that are tried; about ten are needed for one number
_END_GROWTH, _MAX_ENDS = 8.0, 12  # x the end where the function still falls there, and how often
# share of the least value so far that another point may lie below it, at which the search ends
_VALUE_TOLERANCE = 1e-9


def least_points(function: Callable[[Tensor], Tensor], ends: Tensor) -> Tensor:
    """(B, n) where each of B convex functions of n numbers >= 0 is least, nearly (Kelley 1960).

    Args:
        function: (B, n) -> (B,), differentiable almost everywhere.
        ends: (B, n) numbers beyond which the least seldom lies.
    """
    return _on_a_line(function, ends) if ends.shape[1] == 1 else _in_a_box(function, ends)


def _tangent(function: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
    """Value (B,) and slope (B, n) of functions at points (B, n)."""
    with torch.enable_grad():
        free = point.detach().clone().requires_grad_()
        value = function(free)
        (slope,) = torch.autograd.grad(value.sum(), free)
    return value.detach(), slope


def _on_a_line(function: Callable[[Tensor], Tensor], ends: Tensor) -> Tensor:
    """Least value over one number: the next point is where the tangents on both sides of the least
    meet, all rows together.
    """

    def tangent(point: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = _tangent(function, point[:, None])
        return value, slope[:, 0]

    low, high = torch.zeros_like(ends[:, 0]), ends[:, 0].clone()
    (at_low, slope_low), (at_high, slope_high) = tangent(low), tangent(high)
    for _ in range(_MAX_ENDS):
        if not bool((slope_high < 0).any()):
            break
        high = torch.where(slope_high < 0, _END_GROWTH * high, high)
        at_high, slope_high = tangent(high)
    best, point = torch.minimum(at_low, at_high), torch.where(at_low <= at_high, low, high)
    for number in range(_MAX_POINTS):
        fall = slope_high - slope_low
        meeting = (at_low - at_high + slope_high * high - slope_low * low) / torch.where(
            fall > 0, fall, 1
        )
        least = at_low + slope_low * (meeting - low)  # of the two tangents: no point is below it
        is_open = (
            (slope_low < 0) & (slope_high > 0) & (best - least > _VALUE_TOLERANCE * best.abs())
        )
        if not bool(is_open.any()):
            break
        # Tangents of one long edge and one short one creep: every third point is the middle.
        inside = (
            (low + high) / 2
            if number % 3 == 2
            else torch.minimum(torch.maximum(meeting, low), high)
        )
        value, slope = tangent(torch.where(is_open, inside, point))
        is_better = is_open & (value < best)
        best, point = torch.where(is_better, value, best), torch.where(is_better, inside, point)
        rises, falls = is_open & (slope >= 0), is_open & (slope < 0)
        high, at_high, slope_high = (
            torch.where(rises, new, old)
            for new, old in ((inside, high), (value, at_high), (slope, slope_high))
        )
        low, at_low, slope_low = (
            torch.where(falls, new, old)
            for new, old in ((inside, low), (value, at_low), (slope, slope_low))
        )
    return point[:, None]


def _in_a_box(function: Callable[[Tensor], Tensor], ends: Tensor) -> Tensor:
    """Least value over several numbers: the next point is where the largest of all tangents so far
    is least, by a small LP a row.
    """
    ends = ends * _END_GROWTH**2
    best, best_point = torch.full_like(ends[:, 0], torch.inf), torch.zeros_like(ends)
    tangents: list[list[tuple[FloatArray, float]]] = [
        [] for _ in ends
    ]  # slope and value at 0 of each, by row
    point = torch.zeros_like(ends)
    for _ in range(_MAX_POINTS):
        value, slope = _tangent(function, point)
        is_better = value < best
        best, best_point = (
            torch.where(is_better, value, best),
            torch.where(is_better[:, None], point, best_point),
        )
        offset, is_open, following = value - (slope * point).sum(1), False, best_point.clone()
        for row, planes in enumerate(tangents):
            planes.append((slope[row].cpu().numpy(), float(offset[row])))
            lowest, place = _least_of(planes, ends[row].cpu().numpy())
            if float(best[row]) - lowest > _VALUE_TOLERANCE * abs(float(best[row])):
                is_open, following[row] = True, torch.from_numpy(place).to(point)
        if not is_open:
            break
        point = following
    return best_point


def _least_of(
    tangents: list[tuple[FloatArray, float]], ends: FloatArray
) -> tuple[float, FloatArray]:
    """Least of the largest of all slope x + offset over the box [0, ends], and where it is."""
    slopes, offsets = (
        np.stack([slope for slope, _ in tangents]),
        np.array([offset for _, offset in tangents]),
    )
    size = float(np.abs(offsets).max()) or 1.0
    rows = np.hstack([slopes * ends / size, -np.ones((len(tangents), 1))])
    cost, low, high = (
        np.append(np.zeros(len(ends)), [1.0]),
        np.zeros(len(ends) + 1),
        np.ones(len(ends) + 1),
    )
    low[-1], high[-1] = -np.inf, np.inf
    solution = solve_lp(cost, (rows, -offsets / size), low=low, high=high)
    if solution.x is None or not solution.is_solved:
        return -np.inf, ends / 2
    return solution.value * size, solution.x[:-1] * ends


# Multiples times matrices times demands whose bounds are computed together: 1 MiB an array.
_BOUNDED_DEMANDS = 1 << 17

RowBound = Callable[
    [Tensor, Tensor], Tensor
]  # value of all rows (B,), price of each column (B, D, J) -> bound (B,)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """One program for each of B matrices.

    Attributes:
        columns: their sums over rows, and the sums of rows along them.
        demand: (B, D) Gbit/s.
        limit: (B, R) Gbit/s; 0 closes the columns on a row.
        value: (D, J) value of a Gbit/s on each column.
        demand_set: what a demand may do.
        price_set: set in which the prices of the rows may lie.
    """

    columns: PathOps
    demand: Float[Tensor, "B D"]
    limit: Float[Tensor, "B R"]
    value: Float[Tensor, "D J"]
    demand_set: DemandSet
    price_set: PriceSet = dataclasses.field(default_factory=NonNegative)

    @cached_property
    def live(self) -> Bool[Tensor, "B D J"]:
        """(B, D, J) columns that exist and are on no row without a limit above 0."""
        return live_columns(self.columns, self.limit)

    @cached_property
    def has_one_value(self) -> bool:
        """Whether all columns of a demand have the same value, so that the cheapest one is the
        best.
        """
        return bool(((self.value == self.value[:, :1]) | ~self.columns.mask).all())

    @cached_property
    def routable_demand(self) -> Float[Tensor, "B D"]:
        """(B, D) Gbit/s, 0 for a demand without a live column."""
        return torch.where(self.live.any(-1), self.demand, 0)

    def flows(self, shares: Tensor) -> Tensor:
        """(B, D, J) Gbit/s on each column, of shares (B, D, J)."""
        return shares * self.demand[..., None]

    def loads(self, shares: Tensor) -> Tensor:
        """(B, R) what shares (B, D, J) put on each row, Gbit/s."""
        return self.columns.link_sum(self.flows(shares))

    def overload(self, load: Tensor) -> Tensor:
        """(B, R) (load - limit) / limit; for a limit of 0 the load over the largest limit; 0
        without load.
        """
        closed = self.limit <= 0
        # Divided by the limit itself, not multiplied by an inverse, which is limited where the
        # limit is next to 0.
        scale = torch.where(closed, self.limit.amax(1, keepdim=True).clamp(min=1e-30), self.limit)
        return torch.where(load > 0, (load - torch.where(closed, 0, self.limit)) / scale, 0)

    def bound(self, prices: Tensor) -> Tensor:
        """(B,) the bound of the module on the maximum; infinite where it is no number, for want of
        range.

        Args:
            prices: (B, R) y >= 0, value per Gbit/s.
        """
        return self._bound_at((self.limit * prices).sum(1), self.columns.path_sum(prices))

    def bounds_along(self, prices: Tensor, multiples: Tensor) -> Tensor:
        """(M, B) :meth:`bound` of multiples (M,) of the prices, by one pass over all columns if
        values allow it.
        """
        row_value, column_price = (self.limit * prices).sum(1), self.columns.path_sum(prices)
        if not (self.demand_set.uses_best_column and self.has_one_value):
            return torch.stack(
                [self._bound_at(m * row_value, m * column_price) for m in multiples.to(prices)]
            )
        # The cheapest column is the best one at every multiple.
        cheapest = torch.where(self.live, column_price, torch.inf).amin(-1)
        has_column, value = cheapest.isfinite(), self.value[:, 0]

        def at(multiple: Tensor) -> Tensor:  # (m, 1) -> (m, B)
            values = multiple * row_value
            factor = self.price_set.scale(values) * multiple
            profit = torch.where(has_column, value - factor[..., None] * cheapest, 0)
            demand_part = (self.demand * self.demand_set.of_best(profit)).sum(-1)
            return _proven(self.price_set.support(values) + demand_part)

        block = max(1, _BOUNDED_DEMANDS // max(1, cheapest.numel()))
        return torch.cat([at(some[:, None]) for some in multiples.to(prices).split(block)])

    def _bound_at(self, row_value: Tensor, column_price: Tensor) -> Tensor:
        """(B,) the bound, of the value of all rows (B,) and the price of each column (B, D, J)."""
        scale = self.price_set.scale(row_value)[:, None, None]
        support = self.demand_set.support(self.value - scale * column_price, self.live)
        return _proven(self.price_set.support(row_value) + (self.demand * support).sum(1))

    def with_added_prices(self, prices: Tensor, bound: RowBound | None = None) -> Tensor:
        """(B, R) prices of all rows: those given for the first ones, and for the others those that
        prove most.

        Any price proves a bound, and the bound is convex in each, so that the least of a few points
        is good.

        Args:
            prices: (B, E) of the first E rows.
            bound: to be minimised, of the value of all rows (B,) and the price of each column (B,
                D, J); None for :meth:`bound`.
        """
        bound, links, rows = bound or self._bound_at, prices.shape[1], self.limit.shape[1]
        full = torch.cat([prices, prices.new_zeros(len(prices), rows - links)], 1)
        if rows == links:
            return full
        row_value, column_price = (self.limit * full).sum(1), self.columns.path_sum(full)
        units = torch.eye(rows, dtype=prices.dtype, device=prices.device)[links:]
        coefficients = self.columns.path_sum(units)  # (rows - links, D, J)
        highest = self.value.amax().clamp(min=0) if self.value.numel() else self.value.new_zeros(())
        smallest = torch.where(coefficients > 0, coefficients, torch.inf).flatten(1).amin(1)

        def at(added: Tensor) -> Tensor:
            more = torch.einsum("br,rdj->bdj", added, coefficients)
            return bound(row_value + (self.limit[:, links:] * added).sum(1), column_price + more)

        # Without other demands no column on a row is worth such a price; the search goes on beyond
        # it where that helps.
        ends = torch.where(smallest.isfinite(), highest / smallest, 0)
        full[:, links:] = least_points(at, ends.expand(len(prices), -1))
        return full

    def with_row(self, coefficient: Tensor, limit: Tensor) -> Program:
        """The program with a row more, whose unit is that of its largest coefficient.

        Args:
            coefficient: (D, J) >= 0, what a Gbit/s of each column puts on the row.
            limit: (B,).
        """
        largest = coefficient.amax() if coefficient.numel() else coefficient.new_ones(())
        unit = torch.where(largest > 0, largest, 1)
        columns = AddedRowOps(self.columns, coefficient / unit)
        return dataclasses.replace(
            self, columns=columns, limit=torch.cat([self.limit, (limit / unit)[:, None]], 1)
        )


def live_columns(columns: PathOps, limit: Tensor, *, may_be_closed: bool | None = None) -> Tensor:
    """(B, D, J) columns that exist and are on no row whose limit (B, R) is 0.

    Args:
        columns: the columns.
        limit: (B, R).
        may_be_closed: whether a limit may be 0; None: by the limits.
    """
    exists = columns.mask.expand(len(limit), -1, -1)
    closed = limit <= 0
    if not (bool(closed.any()) if may_be_closed is None else may_be_closed):
        return exists
    return exists & (columns.path_max(closed.to(limit.dtype))[0] == 0)


def _proven(bound: Tensor) -> Tensor:
    """(B,) bounds; infinite, which proves nothing, where they are no numbers."""
    return torch.where(bound.isfinite(), bound, torch.inf)
