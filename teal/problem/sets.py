"""Feasible sets of demand shares and of row prices, with their support functions (for bounds) and
their projections (for PDHG).

The share w[d, j] of a demand d on
column j carries w[d, j] demand[d] Gbit/s; the shares of a demand lie in a set W
(:class:`DemandSet`). By weak duality a demand adds ``demand[d] support(g[d])`` to
every bound, with g[d, j] the profit of a Gbit/s on column j (value less prices) and

    support(g) = max over w in W of sum_j g[j] w[j]
        (less the value that later steps of a :class:`Stepped` set lack).

Prices y lie in a set Y (:class:`PriceSet`). Every program is solved as a maximum,

    max over w of min over y in Y of <value, w> - <y, load(w) - limit>.

Non-negative prices belong to rows whose loads may not exceed their limits. Prices on the simplex,
where the sum of limit[r] y[r] is 1, belong to max -theta with load <= theta limit, where theta is
the largest utilisation.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from typing_extensions import override

from teal.problem.prox import project_box, project_splits, project_steps, weighted_simplex
from teal.problem.steps import ValueSteps
from teal.runtime.shapes import Float


@runtime_checkable
class DemandSet(Protocol):
    """Protocol of the feasible set of a demand's shares.

    Attributes:
        uses_best_column: whether the support depends only on the largest profit of a column.
        carries_all: whether all of a demand with a live column is carried.
    """

    @property
    def uses_best_column(self) -> bool:
        """Whether the support depends only on the largest profit of a column."""
        ...

    @property
    def carries_all(self) -> bool:
        """Whether every demand with a live column must be carried in full."""
        ...

    def support_of_best(self, best: Tensor) -> Tensor:
        """Return the support function (B, D) of each demand's shares, from its largest profit:
        the largest profit of feasible shares, per Gbit/s of demand.

        Args:
            best: (B, D) largest profit of a Gbit/s on a live column; 0 for a demand without one.

        Raises:
            NotImplementedError: the support depends on all profits.
        """
        ...

    def support(self, profit: Tensor, live: Tensor) -> Tensor:
        """Return the support function (B, D): max over w in W of the sum of profit[j] w[j].

        Args:
            profit: (B, D, J) value less price of a Gbit/s on each column.
            live: (B, D, J) usable columns.
        """
        ...

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Return the nearest shares (B, D, J) to ``point`` in the metric diag(1 / slope).

        Args:
            point: (B, D, J) shares after a gradient step with the value of the first Gbit/s.
            live: (B, D, J) usable columns; the others get 0.
            slope: (B, D, J) step size of each column over the largest of its demand; None for one
                step size per demand.
            step: (B, D, 1), or (B, D, J) with ``slope``: step size over the unit of value, the
                change of a share by a value per Gbit/s.
        """
        ...


class ByBestColumn:
    """Base class of sets whose support depends on the best column alone."""

    uses_best_column = True
    carries_all = False

    def support_of_best(self, best: Tensor) -> Tensor:
        """Return the support (B, D) from the largest profit (B, D) of each demand's
        live columns.
        """
        raise NotImplementedError

    def support(self, profit: Tensor, live: Tensor) -> Tensor:
        """Return the support (B, D): that of the column with the largest profit.

        Args:
            profit: (B, D, J) value less price of a Gbit/s on each column.
            live: (B, D, J) usable columns.
        """
        has_column = live.any(-1)
        best = torch.where(live, profit, -torch.inf).amax(-1)
        return self.support_of_best(torch.where(has_column, best, 0))


class AtMostOne(ByBestColumn):
    """Demand set {w >= 0, sum w <= 1}: demand may be shed."""

    def support_of_best(self, best: Tensor) -> Tensor:
        """Return the support (B, D), max(0, largest profit), since an unprofitable
        demand is shed.
        """
        return best.clamp(min=0)

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Project shares (B, D, J) onto {w >= 0, sum w <= 1}, 0 on columns that are not live."""
        return project_splits(point, live, carries_all=False, slope=slope)


class ExactlyOne(ByBestColumn):
    """Demand set {w >= 0, sum w = 1}: all of a demand with a live column is carried."""

    carries_all = True

    def support_of_best(self, best: Tensor) -> Tensor:
        """Return the support (B, D): the largest profit, even if negative, since all is carried."""
        return best

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Project shares (B, D, J) onto {w >= 0, sum w = 1}, 0 on columns that are not live."""
        return project_splits(point, live, carries_all=True, slope=slope)


@dataclasses.dataclass(frozen=True, eq=False)
class Stepped(ByBestColumn):
    """Demand set {w >= 0, sum w <= 1} with value steps: the value of a Gbit/s falls in C steps.

    Attributes:
        steps: C value steps of each demand.
        value: (D,) value of a Gbit/s in the first step.
    """

    steps: ValueSteps
    value: Float[Tensor, " D"]

    @override
    def support_of_best(self, best: Tensor) -> Tensor:
        """Return the support (B, D) from the largest profit (B, D) in the first step: the steps
        that are profitable are filled.
        """
        return self.steps.profit(best, self.value)

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Return the proximal step of the shares (B, D, J), with one step size per demand.

        Args:
            point: (B, D, J) shares after a gradient step with the value of the first step.
            live: (B, D, J) usable columns; the others get 0.
            slope: unused.
            step: (B, D, 1) step size of each demand.
        """
        # (B, D, C) reduction of the gradient step in each value step: value (1 - level) step.
        drop = self.value[:, None].to(step) * (1 - self.steps.level.to(step)) * step
        return project_steps(point, live, self.steps.end.to(point), drop)


@dataclasses.dataclass(frozen=True, eq=False)
class Capped:
    """Demand set {0 <= w <= max_share, sum w <= 1}: demand may be shed, and columns are limited.

    The support is a fractional knapsack, filled by descending profit.

    Attributes:
        max_share: (B, D, J) largest share of its demand on each column.
    """

    max_share: Float[Tensor, "B D J"]

    uses_best_column = False
    carries_all = False

    def support_of_best(self, best: Tensor) -> Tensor:
        """Raise NotImplementedError, since the support depends on the profits of all columns."""
        raise NotImplementedError

    def support(self, profit: Tensor, live: Tensor) -> Tensor:
        """Return the support (B, D): the profit of a knapsack, filled by descending profit.

        Args:
            profit: (B, D, J) value less price of a Gbit/s on each column.
            live: (B, D, J) usable columns.
        """
        order, share = self.knapsack(torch.where(live, profit, -torch.inf))
        sorted_profit = profit.gather(-1, order)
        return (torch.where(share > 0, sorted_profit.clamp(min=0), 0) * share).sum(-1)

    def knapsack(self, profit: Tensor) -> tuple[Tensor, Tensor]:
        """Return the columns by descending profit, and the share on each, filled greedily.

        Args:
            profit: (B, D, J) value less price of a Gbit/s; -inf for unusable columns.

        Returns:
            column indices (B, D, J), and the shares (B, D, J) in that order.
        """
        order = profit.argsort(dim=-1, descending=True, stable=True)
        available = torch.where(profit > -torch.inf, self.max_share.to(profit), 0).gather(-1, order)
        preceding_share = available.cumsum(-1) - available
        return order, torch.minimum(available, (1 - preceding_share).clamp(min=0))

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Project shares (B, D, J) onto {0 <= w <= max_share, sum w <= 1}."""
        max_share = torch.where(live, self.max_share.to(point), 0)
        return project_box(point, max_share, torch.ones_like(point) if slope is None else slope)


@runtime_checkable
class PriceSet(Protocol):
    """Protocol of the feasible set of row prices.

    Attributes:
        on_simplex: whether prices lie on the simplex, where a bound does not depend on their scale.
    """

    @property
    def on_simplex(self) -> bool:
        """Whether the prices lie on a simplex, where a bound does not depend on their scale."""
        ...

    def scale(self, row_value: Tensor) -> Tensor:
        """Return the factor (B,) that scales prices into the set; 0 for prices that prove nothing.

        Args:
            row_value: (B,) sum of limit times price.
        """
        ...

    def support(self, row_value: Tensor) -> Tensor:
        """Return the term (B,) of the rows in the dual bound, for prices in the set.

        Args:
            row_value: (B,) sum over the rows of limit times price.
        """
        ...

    def usable(self, prices: Tensor, largest_value: Tensor | float, max_ratio: float) -> Tensor:
        """Return prices (B, R) with finite sums, whose bound is as tight as that of ``prices``.

        Args:
            prices: (B, R), finite and >= 0.
            largest_value: V, largest value of a Gbit/s, a number or () tensor.
            max_ratio: multiple of V up to which prices stay unchanged.
        """
        ...

    def project(self, dual: Tensor, utilisation: Tensor, step: Tensor, live: Tensor) -> Tensor:
        """Return the projected dual step of PDHG: (B, R) price times limit of each row.

        Args:
            dual: (B, R) price times limit before the step.
            utilisation: (B, R) load over limit, scaled.
            step: (B, R) step sizes.
            live: (B, R) rows whose limit is above 0; the others get 0.
        """
        ...


@dataclasses.dataclass(frozen=True)
class NonNegative:
    """Price set {y >= 0}, of rows whose loads may not exceed their limits."""

    on_simplex = False

    def scale(self, row_value: Tensor) -> Tensor:
        """Return the factors 1 (B,), since non-negative prices need no scaling."""
        return torch.ones_like(row_value)

    def support(self, row_value: Tensor) -> Tensor:
        """Return the term (B,) of the rows in the dual bound: the sum of limit times price."""
        return row_value

    def usable(self, prices: Tensor, largest_value: Tensor | float, max_ratio: float) -> Tensor:
        """Replace prices above ``max_ratio`` times V by V, the largest value of a Gbit/s.

        At V no path over the row is profitable, so that larger prices prove no more.
        """
        return torch.where(prices > max_ratio * largest_value, largest_value, prices)

    def project(self, dual: Tensor, utilisation: Tensor, step: Tensor, live: Tensor) -> Tensor:
        """Return max(0, dual + step (utilisation - 1)) (B, R), 0 for rows that are not live."""
        return torch.where(live, (dual + step * (utilisation - 1)).clamp(min=0), 0)


@dataclasses.dataclass(frozen=True)
class Simplex:
    """Price set {y >= 0, sum_r limit[r] y[r] = 1}, of programs that minimise the largest
    utilisation.
    """

    on_simplex = True

    def scale(self, row_value: Tensor) -> Tensor:
        """Return the factors (B,) that scale prices onto the simplex: 1 / (sum of limit times
        price), and 0 where the sum is 0.
        """
        is_above = row_value > 0
        # Avoid 1 / 0, which has no gradient.
        return torch.where(is_above, 1 / torch.where(is_above, row_value, 1), 0)

    def support(self, row_value: Tensor) -> Tensor:
        """Return zeros (B,), since the term of the rows is constant on the simplex."""
        return torch.zeros_like(row_value)

    def usable(self, prices: Tensor, largest_value: Tensor | float, max_ratio: float) -> Tensor:
        """Scale prices (B, R) to at most 1; bounds do not depend on the scale."""
        return prices / prices.amax(1, keepdim=True).clamp(min=1)

    def project(self, dual: Tensor, utilisation: Tensor, step: Tensor, live: Tensor) -> Tensor:
        """Project dual + step * utilisation (B, R) onto the simplex, in metric diag(1 / step)."""
        return weighted_simplex(dual + step * utilisation, step, 1.0, live)
