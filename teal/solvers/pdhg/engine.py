"""The interface between the search and the engines that iterate, and what all engines start from.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from teal.solvers.result import PdhgState

# Restart criteria of PDLP (Applegate et al. 2021): restart when the fixed-point error is below
# SUFFICIENT times that at the start of the cycle, or below NECESSARY times it and rising again, or
# when the cycle is longer than ARTIFICIAL times all iterations so far.
RESTART_SUFFICIENT, RESTART_NECESSARY, RESTART_ARTIFICIAL = 0.2, 0.8, 0.36
# Factor by which the primal weight may differ from initial_primal_weight, up or down: without a
# limit it diverges on programs that are nearly solved.
MAX_WEIGHT_CHANGE = 30.0
# Squared distance (without unit) of w or y from the anchor below which rounding dominates: omega
# then stays as it is.
MIN_SQUARED_DISTANCE = 1e-20
MIN_SHARE = 1e-12  # of a demand, in the units of step sizes
MAX_CHANGE_OF_SHARE = (
    3.0  # factor by which the unit of a demand's step size changes at a restart, at most
)
# omega where the trial routing overloads no link, so that guess_dual is 0; such programs are solved
# in few iterations.
_DEFAULT_PRIMAL_WEIGHT = 0.02
# Sum of guess_dual's y in a balanced program.  The true y sum to 1, but on fewer links, each with a
# larger y; 4 makes up for that, as measured on B4, GEANT, UsCarrier and Kdl.
_BALANCED_DUAL_SUM = 4.0


@runtime_checkable
class PdhgEngine(Protocol):
    """Iterates B matrices.

    Balanced programs (max_link_utilisation, max_concurrent_flow) are treated as
    max_link_utilisation here: values and bounds are utilisations.  Values and bounds (B,) are
    float64 on the host.
    """

    def advance(self, count: int) -> Tensor:
        """Do ``count`` iterations.

        Returns (B,) bounds of the optimal value from the y at which the last iteration started.
        They are computed in the precision of the iteration: only :meth:`certify` is safe from
        rounding.
        """
        ...

    def trivial_bound(self) -> Tensor:
        """(B,) certified bound by prices of 0: the value of all routable demand; 0 in a balanced
        program.
        """
        ...

    def certify(self) -> Tensor:
        """(B,) certified bound of the optimal value from the prices of T(z) in the last
        iteration.
        """
        ...

    def check(self, refill: int = 0, enough: float = math.inf) -> tuple[Tensor, Tensor]:
        """Gap check: (B,) value of the splits of T(z) after projection to feasible ones, and
        :meth:`certify`.

        Args:
            refill: largest number of rounds in which flows that were cut take up capacity that is
                still unused (see :func:`teal.solvers.projection.project`); without effect in a
                balanced program.
            enough: value over bound of all matrices at which no further round is needed.
        """
        ...

    def keep(self, is_best_allocation: Tensor, is_best_prices: Tensor) -> None:
        """Keep the results of the last check or certificate that are the best so far.

        Args:
            is_best_allocation: (B,) bool, matrices whose allocation is to be kept; the first call
                keeps all.
            is_best_prices: (B,) bool, matrices whose prices are to be kept.
        """
        ...

    def best(self) -> tuple[Tensor, Tensor]:
        """The splits (B, D, K) and prices (B, E) that were kept, float64; prices of 0 where none
        were better.
        """
        ...

    def state(self) -> PdhgState:
        """T(z) of the last iteration, feasible or not."""
        ...


def initial_primal_weight(
    full_path_utilisation: Tensor, dual_guess: Tensor, squared_primal_distance: Tensor
) -> Tensor:
    """(B,) first omega = |y| / |w| with |y|^2 = sum_e m[e] y[e]^2 and |w|^2 = sum_d demand[d] h[d]
    |w[d]|^2.

    These are the distances that y and w must move, in the norms of the step sizes.

    Args:
        full_path_utilisation: (B, E) m.
        dual_guess: (B, E) y, from :func:`guess_dual`.
        squared_primal_distance: (B,) sum_d demand[d] h[d] (over S for a balanced program): |w|^2
            between w = 0 and one path for each demand.
    """
    squared_dual_distance = (full_path_utilisation * dual_guess.square()).sum(1)
    weight = (squared_dual_distance / squared_primal_distance.clamp(min=1e-300)).sqrt()
    return torch.where(squared_dual_distance > 0, weight, _DEFAULT_PRIMAL_WEIGHT)


def guess_dual(capacity: Tensor, trial_load: Tensor, mean_scaled_value: Tensor | None) -> Tensor:
    """(B, E) a guess of the optimal y, from one trial routing.

    Every link that the routing overloads gets the mean value of a demanded Gbit/s as its price; in
    a balanced program all links with at least half of the largest utilisation, which may well be
    tight in the optimum, get the same price.

    Args:
        capacity: (B, E) Gbit/s.
        trial_load: (B, E) load of the trial routing, Gbit/s: every demand on its first path, or in
            a balanced program spread evenly over its paths.
        mean_scaled_value: (B, 1) mean of v / S over all demanded Gbit/s, 1/(Gbit/s); None for a
            balanced program.
    """
    live = capacity > 0
    utilisation = torch.where(live, trial_load / capacity.clamp(min=1e-300), 0)
    if mean_scaled_value is not None:
        return torch.where(utilisation > 1, capacity * mean_scaled_value, 0)
    tight = torch.where(utilisation >= 0.5 * utilisation.amax(1, keepdim=True), capacity, 0)
    return _BALANCED_DUAL_SUM * tight / tight.sum(1, keepdim=True).clamp(min=1e-300)
