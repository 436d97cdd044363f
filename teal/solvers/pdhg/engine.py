"""What an engine of PDHG offers to the search that drives it, and what all engines start from."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

SUFFICIENT, NECESSARY, LONG = 0.2, 0.8, 0.36  # when to restart: PDLP's (Applegate et al. 2021)
OMEGA_RANGE = 30.0  # most that the primal weight moves away from the first one, up or down
_FALLBACK_OMEGA = 0.02
_BALANCED = 4.0  # the links that are tight in the end are fewer than those of the guess; measured on four networks


@dataclasses.dataclass(frozen=True, eq=False)
class PdhgState:
    """From where another matrix, or the same one under other capacities, can start.

    Attributes:
        splits: (B, D, K).
        prices: (B, E) value per Gbit/s.
    """

    splits: Tensor
    prices: Tensor

    def rows(self, rows: slice) -> PdhgState:
        """Some of the matrices."""
        return PdhgState(self.splits[rows], self.prices[rows])


class Engine(Protocol):
    """B matrices on their way to the optimum.

    Balanced programs (max_link_utilisation, max_concurrent_flow) are told in utilisations here: value and
    bound are those of max_link_utilisation.  Values and bounds (B,) are float64 on the host.
    """

    def advance(self, count: int) -> Tensor:
        """Do ``count`` iterations.  Returns (B,) bounds of where the last one started, up to rounding."""
        ...

    def certify(self) -> Tensor:
        """(B,) the certified bound of the last iteration's prices."""
        ...

    def look(self, refill: int = 0) -> tuple[Tensor, Tensor]:
        """(B,) value of the last iteration's splits once they are feasible, and :meth:`certify`.

        Args:
            refill: rounds in which the projection gives back capacity.
        """
        ...

    def keep(self, allocations: Tensor, prices: Tensor) -> None:
        """Remember what the last look saw, for the rows (B,) that each is the best of so far."""
        ...

    def best(self) -> tuple[Tensor, Tensor]:
        """The splits (B, D, K) and prices (B, E) that were kept, float64."""
        ...

    def state(self) -> PdhgState:
        """Where the last iteration ended, feasible or not."""
        ...


def first_omega(through: Tensor, guess: Tensor, effort: Tensor) -> Tensor:
    """(B,) the primal weight, how far prices have to go over how far splits do, both in the metric of the steps.

    Args:
        through: (B, E) m.
        guess: (B, E) y if every link that one routing overloads had a price as large as a demand's value
            (or, of a balanced program, if all of the most used ones had the same).
        effort: (B,) sum of demand h, the square of the way from no splits to one path each.
    """
    way = (through * guess.square()).sum(1)
    omega = (way / effort.clamp(min=1e-300)).sqrt()
    return torch.where(way > 0, omega, _FALLBACK_OMEGA)


def price_guess(capacity: Tensor, trial: Tensor, value: Tensor | None) -> Tensor:
    """(B, E) the ``guess`` of :func:`first_omega`.

    Args:
        capacity: (B, E); trial: (B, E) load of one routing.
        value: (B, 1) mean value of a demand's Gbit/s over S; None for a balanced program.
    """
    live = capacity > 0
    used = torch.where(live, trial / capacity.clamp(min=1e-300), 0)
    if value is not None:
        return torch.where(used > 1, capacity * value, 0)
    tight = torch.where(used >= 0.5 * used.amax(1, keepdim=True), capacity, 0)
    return _BALANCED * tight / tight.sum(1, keepdim=True).clamp(min=1e-300)
