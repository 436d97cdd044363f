"""The interface between the search and the engines that iterate, and what all engines start from.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch
from torch import Tensor

# Restart criteria of PDLP (Applegate et al. 2021): restart when the fixed-point error is below SUFFICIENT times that
# at the start of the cycle, or below NECESSARY times it and rising again, or when the cycle is longer than
# ARTIFICIAL times all iterations so far.
RESTART_SUFFICIENT, RESTART_NECESSARY, RESTART_ARTIFICIAL = 0.2, 0.8, 0.36
MAX_WEIGHT_CHANGE = 30.0  # factor by which the primal weight may move away from the first one, up or down
MIN_DISTANCE = 1e-20  # squared distance below which an iterate has not moved, and the primal weight stays
_DEFAULT_PRIMAL_WEIGHT = 0.02  # where no link is overloaded, so that nothing can be estimated
# Sum of the y guessed for a balanced program, where 1 is their true sum: in the end fewer links are tight than guessed.
_BALANCED_GUESS = 4.0  # measured on B4, GEANT, UsCarrier and Kdl


@dataclasses.dataclass(frozen=True, eq=False)
class PdhgState:
    """A starting point for another matrix, or for the same one under other capacities.

    Attributes:
        splits: (B, D, K).
        prices: (B, E) value per Gbit/s.
    """

    splits: Tensor
    prices: Tensor

    def rows(self, rows: slice) -> PdhgState:
        """The state of some of the matrices."""
        return PdhgState(self.splits[rows], self.prices[rows])


class PdhgEngine(Protocol):
    """Iterates B matrices.

    Balanced programs (max_link_utilisation, max_concurrent_flow) are treated as max_link_utilisation here: values and
    bounds are utilisations.  Values and bounds (B,) are float64 on the host.
    """

    def advance(self, count: int) -> Tensor:
        """Do ``count`` iterations.  Returns (B,) bounds of the point where the last one started, up to rounding."""
        ...

    def certify(self) -> Tensor:
        """(B,) certified bound of the prices after the last iteration."""
        ...

    def check(self, refill: int = 0) -> tuple[Tensor, Tensor]:
        """Gap check: (B,) value of the last iteration's splits once they are feasible, and :meth:`certify`.

        Args:
            refill: rounds in which the projection gives capacity back (see :func:`teal.solvers.projection.project`).
        """
        ...

    def keep(self, allocations: Tensor, prices: Tensor) -> None:
        """Keep the allocation and the prices of the last check for the rows (B,) in which each is the best so far."""
        ...

    def best(self) -> tuple[Tensor, Tensor]:
        """The splits (B, D, K) and prices (B, E) that were kept, float64."""
        ...

    def state(self) -> PdhgState:
        """The point after the last iteration, feasible or not."""
        ...


def initial_primal_weight(full_path_utilisation: Tensor, dual_guess: Tensor, primal_distance: Tensor) -> Tensor:
    """(B,) the distance that y must move over the distance that w must move, both in the metric of the steps.

    Args:
        full_path_utilisation: (B, E) m.
        dual_guess: (B, E) from :func:`guess_dual`.
        primal_distance: (B,) sum of demand h, the squared distance from no splits to one path a demand.
    """
    dual_distance = (full_path_utilisation * dual_guess.square()).sum(1)
    weight = (dual_distance / primal_distance.clamp(min=1e-300)).sqrt()
    return torch.where(dual_distance > 0, weight, _DEFAULT_PRIMAL_WEIGHT)


def guess_dual(capacity: Tensor, trial_load: Tensor, value: Tensor | None) -> Tensor:
    """(B, E) a guess of the optimal y, from one trial routing.

    Every link that the routing overloads gets the value of a demand as its price; in a balanced program all links
    with at least half of the largest utilisation get the same price.

    Args:
        capacity: (B, E) Gbit/s.
        trial_load: (B, E) load of the trial routing, Gbit/s.
        value: (B, 1) mean value of a demand's Gbit/s over S; None for a balanced program.
    """
    live = capacity > 0
    utilisation = torch.where(live, trial_load / capacity.clamp(min=1e-300), 0)
    if value is not None:
        return torch.where(utilisation > 1, capacity * value, 0)
    tight = torch.where(utilisation >= 0.5 * utilisation.amax(1, keepdim=True), capacity, 0)
    return _BALANCED_GUESS * tight / tight.sum(1, keepdim=True).clamp(min=1e-300)
