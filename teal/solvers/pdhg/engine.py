"""Interface of a PDHG engine, restart parameters (PDLP), and the first primal weight.

:class:`PdhgEngine` is what :mod:`teal.solvers.pdhg.search` drives.  :func:`guess_dual` and
:func:`initial_primal_weight` give the starting values that all engines share.  Symbols: table in
:mod:`teal.solvers.pdhg`.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from teal.solvers.result import SolveState

# Restart criteria of PDLP (Applegate et al. 2021), on the fixed-point error relative to the start
# of the cycle: below SUFFICIENT; below NECESSARY and increasing; or (artificial restart) the cycle
# is longer than ARTIFICIAL times all iterations so far.
RESTART_SUFFICIENT = 0.2
RESTART_NECESSARY = 0.8
RESTART_ARTIFICIAL = 0.36
# Limit of the ratio between the primal weight and initial_primal_weight, up or down: without it the
# weight diverges on programs that are nearly solved.
MAX_WEIGHT_CHANGE = 30.0
# Squared distance (dimensionless) of w or y from the anchor below which rounding dominates: omega
# then stays unchanged.
MIN_SQUARED_DISTANCE = 1e-20
# Smallest share of a demand that scales its step size (share metric).
MIN_SHARE = 1e-12
# Largest factor by which that scale of a demand changes at a restart.
MAX_SHARE_CHANGE = 3.0
# omega where the trial routing overloads no link, so that guess_dual is 0; such programs take few
# iterations.
_DEFAULT_PRIMAL_WEIGHT = 0.02
# Sum of guess_dual's y in a min-max program.  The optimal y sum to 1, but on fewer links, each
# with a larger y; 4 compensates, as measured on B4, GEANT, UsCarrier and Kdl.
_MIN_MAX_DUAL_SUM = 4.0


@runtime_checkable
class PdhgEngine(Protocol):
    """Interface of an engine: PDHG iterations of B matrices, gap checks and the incumbent.

    Min-max programs (max_link_utilisation, max_concurrent_flow) are solved as
    max_link_utilisation: values and bounds are utilisations. Values and bounds (B,) are float64 on
    the host.
    """

    def advance(self, num_iterations: int) -> Tensor:
        """Run ``num_iterations`` iterations.

        Returns (B,) dual bounds before the last iteration, in the precision of the iteration: only
        :meth:`certify` accounts for rounding.
        """
        ...

    def trivial_bound(self) -> Tensor:
        """Return (B,) the certified bound at zero prices: the value of all routable demand; 0 for a
        min-max program.
        """
        ...

    def certify(self) -> Tensor:
        """Return (B,) certified dual bounds at the prices of the last PDHG step."""
        ...

    def check(self, refill: int = 0, sufficient_ratio: float = math.inf) -> tuple[Tensor, Tensor]:
        """Run a gap check; return (B,) values and (B,) certified dual bounds.

        They are those of the last PDHG step, with its splits projected to feasible ones.

        Args:
            refill: largest number of rounds that allocate unused capacity to unserved demand;
                without effect in a min-max program.
            sufficient_ratio: value over bound of all matrices at which the rounds end early.
        """
        ...

    def keep(self, has_new_allocation: Tensor, has_new_prices: Tensor) -> None:
        """Replace the incumbent by results of the last check or certificate.

        Args:
            has_new_allocation: (B,) bool, matrices with a new incumbent allocation; the first call
                stores all.
            has_new_prices: (B,) bool, matrices with new incumbent prices.
        """
        ...

    def incumbent(self) -> tuple[Tensor, Tensor]:
        """Return the incumbent splits (B, D, K) and prices (B, E), float64.

        Prices are 0 until better ones have been stored.
        """
        ...

    def state(self) -> SolveState:
        """Return splits (B, D, K) and prices (B, E) of the last PDHG step, feasible or not."""
        ...


def initial_primal_weight(
    full_path_utilisation: Tensor, dual_guess: Tensor, squared_primal_distance: Tensor
) -> Tensor:
    """Return (B,) the first primal weight |y| / |w|, the ratio of the distances to an optimum.

    The norms of dual variables y and splits w are those of the step sizes:
    |y|^2 = sum_e m[e] y[e]^2 and |w|^2 = sum_d demand[d] h[d] |w[d]|^2.

    Args:
        full_path_utilisation: (B, E) m, utilisation if every path carried all of its demand.
        dual_guess: (B, E) y, from :func:`guess_dual`.
        squared_primal_distance: (B,) |w|^2 of the splits that send each demand on one path:
            sum_d demand[d] h[d], with h[d] the largest sum of 1 / capacity along a path (over the
            scale of the objective for a min-max program).
    """
    squared_dual_distance = (full_path_utilisation * dual_guess.square()).sum(1)
    weight = (squared_dual_distance / squared_primal_distance.clamp(min=1e-300)).sqrt()
    return torch.where(squared_dual_distance > 0, weight, _DEFAULT_PRIMAL_WEIGHT)


def guess_dual(capacity: Tensor, trial_load: Tensor, mean_scaled_value: Tensor | None) -> Tensor:
    """Return (B, E) an estimate of the optimal scaled dual variables from one trial routing.

    Every overloaded link gets the mean value of a demanded Gbit/s as its price. In a min-max
    program all links with at least half of the largest utilisation, which are candidates for tight
    links, get the same price.

    Args:
        capacity: (B, E) Gbit/s.
        trial_load: (B, E) load of the trial routing, Gbit/s: every demand on its first path, or in
            a min-max program split evenly over its paths.
        mean_scaled_value: (B, 1) mean value of a demanded Gbit/s over the scale of the objective,
            1/(Gbit/s); None for a min-max program.
    """
    live = capacity > 0
    utilisation = torch.where(live, trial_load / capacity.clamp(min=1e-300), 0)
    if mean_scaled_value is not None:
        return torch.where(utilisation > 1, capacity * mean_scaled_value, 0)
    candidate_capacity = torch.where(
        utilisation >= 0.5 * utilisation.amax(1, keepdim=True), capacity, 0
    )
    return (
        _MIN_MAX_DUAL_SUM
        * candidate_capacity
        / candidate_capacity.sum(1, keepdim=True).clamp(min=1e-300)
    )
