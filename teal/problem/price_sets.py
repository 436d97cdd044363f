"""Where the prices of a program may lie: sets of y, with what they prove and a projection for PDHG.

Every program is solved as a maximum,

    max over w of min over y in Y of <value, w> - <y, load(w) - limit>.

Non-negative prices belong to rows whose loads may not exceed their limits.  Prices on the simplex, where the sum of
limit[r] y[r] is 1, belong to max -theta with load <= theta limit: the largest utilisation with its sign reversed.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from teal.problem.prox import weighted_simplex


@runtime_checkable
class PriceSet(Protocol):
    """One of the sets.

    Attributes:
        on_simplex: whether prices lie on the simplex: a bound then does not depend on their scale.
    """

    @property
    def on_simplex(self) -> bool:
        """See the class."""
        ...

    def scale(self, row_value: Tensor) -> Tensor:
        """(B,) factor that brings prices into the set; 0 for prices that prove nothing.

        Args:
            row_value: (B,) sum of limit times price.
        """
        ...

    def support(self, row_value: Tensor) -> Tensor:
        """(B,) what rows add to the bound of the maximum, of the sum of limit times price (B,), prices in the set."""
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
        """See PriceSet."""
        return torch.ones_like(row_value)

    def support(self, row_value: Tensor) -> Tensor:
        """See PriceSet."""
        return row_value

    def usable(self, prices: Tensor, largest_value: Tensor, most: float) -> Tensor:
        """See PriceSet: above ``most`` V the price is V, at which no path over the row is worth using already."""
        return torch.where(prices > most * largest_value, largest_value, prices)

    def project(self, dual: Tensor, utilisation: Tensor, step: Tensor, live: Tensor) -> Tensor:
        """See PriceSet."""
        return torch.where(live, (dual + step * (utilisation - 1)).clamp(min=0), 0)


@dataclasses.dataclass(frozen=True)
class Simplex:
    """{y >= 0, sum_r limit[r] y[r] = 1}."""

    on_simplex = True

    def scale(self, row_value: Tensor) -> Tensor:
        """See PriceSet."""
        return torch.where(row_value > 0, 1 / row_value, 0)

    def support(self, row_value: Tensor) -> Tensor:
        """See PriceSet."""
        return torch.zeros_like(row_value)

    def usable(self, prices: Tensor, largest_value: Tensor, most: float) -> Tensor:
        """See PriceSet: the largest price becomes at most 1."""
        return prices / prices.amax(1, keepdim=True).clamp(min=1)

    def project(self, dual: Tensor, utilisation: Tensor, step: Tensor, live: Tensor) -> Tensor:
        """See PriceSet."""
        return weighted_simplex(dual + step * utilisation, step, 1.0, live)
