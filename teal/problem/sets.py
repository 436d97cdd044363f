"""Sets of shares that a demand may have over its columns, with a support for bounds and a
projection for PDHG.

The shares w[d, j] of a demand d, of which w[d, j] demand[d] Gbit/s flow on column j, lie in a set W
that each program chooses.  By weak duality a demand adds ``demand[d] support(g[d])`` to every
bound, with g[d, j] the profit of a Gbit/s on column j (value less prices) and

    support(g) = max over w in W of sum_j g[j] w[j]
        (less what later steps lose, see :class:`Stepped`).

Where the prices of a program may lie: sets of y, with what they prove and a projection for PDHG.

Every program is solved as a maximum,

    max over w of min over y in Y of <value, w> - <y, load(w) - limit>.

Non-negative prices belong to rows whose loads may not exceed their limits.  Prices on the simplex,
where the sum of limit[r] y[r] is 1, belong to max -theta with load <= theta limit: the largest
utilisation with its sign reversed.
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
    """One of the sets.

    Attributes:
        uses_best_column: whether the support is a function of the largest profit alone,
            :meth:`of_best`.
        carries_all: whether a demand with a live column is carried whole.
    """

    @property
    def uses_best_column(self) -> bool:
        """Whether the best column alone decides the support."""
        ...

    @property
    def carries_all(self) -> bool:
        """Whether all demand is carried."""
        ...

    def of_best(self, best: Tensor) -> Tensor:
        """(B, D) support, of the largest profit (B, D) of a live column; 0 profit for a demand
        without one.

        Raises:
            NotImplementedError: the support depends on all profits.
        """
        ...

    def support(self, profit: Tensor, live: Tensor) -> Tensor:
        """(B, D) support, value for each Gbit/s of demand.

        Args:
            profit: (B, D, J) of a Gbit/s on each column.
            live: (B, D, J) columns that may be used.
        """
        ...

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """(B, D, J) nearest shares to ``point`` in the metric diag(1 / slope).

        Args:
            point: (B, D, J) shares after a gradient step with the value of the first Gbit/s.
            live: (B, D, J) columns that may be used; the others get 0.
            slope: (B, D, J) step size of each column over the largest of its demand; None for one
                step size a demand.
            step: (B, D, 1), or (B, D, J) with ``slope``: step size over the unit of value, by which
                a value per Gbit/s moves a share.
        """
        ...


class ByBestColumn:
    """A set whose support depends on the best column alone."""

    uses_best_column, carries_all = True, False

    def of_best(self, best: Tensor) -> Tensor:
        """The support by the largest profit (:meth:`DemandSet.of_best`)."""
        raise NotImplementedError

    def support(self, profit: Tensor, live: Tensor) -> Tensor:
        """The support of the set (:meth:`DemandSet.support`)."""
        has_column = live.any(-1)
        best = torch.where(live, profit, -torch.inf).amax(-1)
        return self.of_best(torch.where(has_column, best, 0))


class AtMostOne(ByBestColumn):
    """{w >= 0, sum w <= 1}: a demand may be carried in part."""

    def of_best(self, best: Tensor) -> Tensor:
        """max(0, best); see DemandSet."""
        return best.clamp(min=0)

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Nearest splits, as in :meth:`DemandSet.project`."""
        return project_splits(point, live, carries_all=False, slope=slope)


class ExactlyOne(ByBestColumn):
    """{w >= 0, sum w = 1}: a demand with a live column is carried whole."""

    carries_all = True

    def of_best(self, best: Tensor) -> Tensor:
        """Best, of either sign; see DemandSet."""
        return best

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Nearest splits, as in :meth:`DemandSet.project`."""
        return project_splits(point, live, carries_all=True, slope=slope)


@dataclasses.dataclass(frozen=True, eq=False)
class Stepped(ByBestColumn):
    """{w >= 0, sum w <= 1}, with a value that falls in steps (:mod:`teal.problem.steps`).

    Attributes:
        steps: steps of the value.
        value: (D,) of a Gbit/s in the first step.
    """

    steps: ValueSteps
    value: Float[Tensor, " D"]

    @override
    def of_best(self, best: Tensor) -> Tensor:
        return self.steps.profit(best, self.value)

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Nearest splits (:meth:`DemandSet.project`); one step size a demand."""
        drop = self.value[:, None].to(step) * (1 - self.steps.level.to(step)) * step
        return project_steps(point, live, self.steps.end.to(point), drop)


@dataclasses.dataclass(frozen=True, eq=False)
class Capped:
    """{0 <= w <= max_share, sum w <= 1}: the support is a knapsack, filled in the order of the
    profits.

    Attributes:
        max_share: (B, D, J) of its demand that each column may carry.
    """

    max_share: Float[Tensor, "B D J"]

    uses_best_column, carries_all = False, False

    def of_best(self, best: Tensor) -> Tensor:
        """The support by the largest profit (:meth:`DemandSet.of_best`)."""
        raise NotImplementedError

    def support(self, profit: Tensor, live: Tensor) -> Tensor:
        """The support of the set (:meth:`DemandSet.support`)."""
        order, taken = self.knapsack(torch.where(live, profit, -torch.inf))
        ordered = profit.gather(-1, order)
        return (torch.where(taken > 0, ordered.clamp(min=0), 0) * taken).sum(-1)

    def knapsack(self, profit: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D, J) columns in the order of falling profit, and the share that each takes of what
        is left.

        Args:
            profit: (B, D, J), -inf for columns that may not be used.
        """
        order = profit.argsort(dim=-1, descending=True, stable=True)
        room = torch.where(profit > -torch.inf, self.max_share.to(profit), 0).gather(-1, order)
        before = room.cumsum(-1) - room
        return order, torch.minimum(room, (1 - before).clamp(min=0))

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Nearest splits (:meth:`DemandSet.project`)."""
        largest = torch.where(live, self.max_share.to(point), 0)
        return project_box(point, largest, torch.ones_like(point) if slope is None else slope)


@runtime_checkable
class PriceSet(Protocol):
    """One of the sets.

    Attributes:
        on_simplex: whether prices lie on the simplex: a bound then does not depend on their scale.
    """

    @property
    def on_simplex(self) -> bool:
        """Whether the prices lie on a simplex."""
        ...

    def scale(self, row_value: Tensor) -> Tensor:
        """(B,) factor that brings prices into the set; 0 for prices that prove nothing.

        Args:
            row_value: (B,) sum of limit times price.
        """
        ...

    def support(self, row_value: Tensor) -> Tensor:
        """(B,) what rows add to the bound of the maximum, of the sum of limit times price (B,),
        prices in the set.
        """
        ...

    def usable(self, prices: Tensor, largest_value: Tensor, most: float) -> Tensor:
        """(B, R) prices that prove no less than ``prices``, and whose sums are finite.

        Args:
            prices: (B, R), finite and >= 0.
            largest_value: () V, of a Gbit/s.
            most: multiple of V up to which a price stays as it is.
        """
        ...

    def project(self, dual: Tensor, utilisation: Tensor, step: Tensor, live: Tensor) -> Tensor:
        """(B, R) y, times the limits, after a step of PDHG.

        Args:
            dual: (B, R) before the step.
            utilisation: (B, R) load over limit, scaled.
            step: (B, R) step sizes.
            live: (B, R) rows whose limit is above 0; the others get 0.
        """
        ...


@dataclasses.dataclass(frozen=True)
class NonNegative:
    """{y >= 0}."""

    on_simplex = False

    def scale(self, row_value: Tensor) -> Tensor:
        """Scale of the prices (:meth:`PriceSet.scale`)."""
        return torch.ones_like(row_value)

    def support(self, row_value: Tensor) -> Tensor:
        """The support of the set (:meth:`PriceSet.support`)."""
        return row_value

    def usable(self, prices: Tensor, largest_value: Tensor, most: float) -> Tensor:
        """Prices of at most V, the value ``most``, at which no path over the row is worth using
        already (:meth:`PriceSet.usable`).
        """
        return torch.where(prices > most * largest_value, largest_value, prices)

    def project(self, dual: Tensor, utilisation: Tensor, step: Tensor, live: Tensor) -> Tensor:
        """Nearest prices (:meth:`PriceSet.project`)."""
        return torch.where(live, (dual + step * (utilisation - 1)).clamp(min=0), 0)


@dataclasses.dataclass(frozen=True)
class Simplex:
    """{y >= 0, sum_r limit[r] y[r] = 1}."""

    on_simplex = True

    def scale(self, row_value: Tensor) -> Tensor:
        """Scale of the prices (:meth:`PriceSet.scale`)."""
        is_above = row_value > 0
        return torch.where(
            is_above, 1 / torch.where(is_above, row_value, 1), 0
        )  # 1 / 0 has no gradient

    def support(self, row_value: Tensor) -> Tensor:
        """The support of the set (:meth:`PriceSet.support`)."""
        return torch.zeros_like(row_value)

    def usable(self, prices: Tensor, largest_value: Tensor, most: float) -> Tensor:
        """Prices of which the largest is at most 1 (:meth:`PriceSet.usable`)."""
        return prices / prices.amax(1, keepdim=True).clamp(min=1)

    def project(self, dual: Tensor, utilisation: Tensor, step: Tensor, live: Tensor) -> Tensor:
        """Nearest prices (:meth:`PriceSet.project`)."""
        return weighted_simplex(dual + step * utilisation, step, 1.0, live)
