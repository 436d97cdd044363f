"""Concave utilities of demands: alpha-fairness.

With shares s[d] = x[d] / demand[d] in (0, 1], weights W[d] and (Mo & Walrand 2000, definition 2)

    u(s) = (s^(1 - alpha) - 1) / (1 - alpha),    log s for alpha = 1,
    so that u(1) = 0 and u'(1) = 1,

the program is max sum over d of W[d] u(s[d]). alpha = 0 is total flow, 1 proportional fairness
(Kelly 1998), and as alpha grows the solution approaches the largest least share. W[d] = demand[d]
weights each Gbit/s alike, W[d] = 1 each demand. By weak duality, with link prices y >= 0 and pi[d]
the price of the cheapest path,

    sum W u(s)  <=  sum c y + sum over d of max over s in (0, 1] of W u(s) - demand pi s,

where the maximum is at s = 1 if pi demand <= W, else at s = (pi demand / W)^(-1 / alpha).

Values are reported as the *equivalent common share*: the share M that, common to all demands, has
the same utility,

    u(M) = sum W u(s) / sum W,
    M = exp(mean log share) for alpha = 1, the weighted mean share for alpha = 0.

M is monotone in the utility, so that a bound on one bounds the other. Where most demands are fully
served, a small gap of M may be a large part of the loss: the gap of the loss is (u(M bound) - u(M))
/ -u(M).

Engines maximise sum W (u(s) + 1), which at prices of 0 is sum W as for total flow; W is scaled so
that this is the sum of all routable demand. Demands of 0 and unroutable demands have no weight.
Main classes: :class:`Curve`, :class:`Concave`.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from typing_extensions import override

from teal.problem.prox import project_box, project_splits
from teal.problem.sets import ByBestColumn
from teal.runtime.shapes import Float

# Largest number of Newton steps for the sum of a demand's shares; 3 to 8 are needed.
_MAX_NEWTON_STEPS = 60
# Bisection steps for the shift of a demand with column limits; enough for full precision.
_BISECTIONS = 100
# Newton steps of at most this many units in the last place count as converged.
_STEP_ROUNDING = 4
# Smallest divisor, instead of 0.
_MIN_DIVISOR = 1e-300
# Relative difference up to which values of a Gbit/s are equal.
_EQUAL_VALUE_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True)
class Curve:
    """Utility of a demand's carried share s: u(s) = (s^(1 - alpha) - 1) / (1 - alpha), and log s
    for alpha = 1.

    Attributes:
        alpha: exponent, at least 0.
    """

    alpha: float

    def utility(self, share: Tensor) -> Tensor:
        """Return the utility u(s) of each share s; -inf for a share of 0 if alpha is at least 1."""
        if self.alpha == 1:
            return share.log()
        power = 1 - self.alpha
        # (s^power - 1) / power; expm1 is accurate for alpha near 1 and shares near 1.
        return torch.expm1(power * share.log()) / power

    def share_of(self, utility: Tensor) -> Tensor:
        """Return the carried share that has each given utility, clamped to [0, 1]."""
        utility = utility.clamp(max=0)
        if self.alpha == 1:
            return utility.exp()
        power = 1 - self.alpha
        return (torch.log1p((power * utility).clamp(min=-1)) / power).exp()

    def best_share(self, price: Tensor) -> Tensor:
        """Return the share s in [0, 1] that maximises u(s) - price * s; it is 1 for a price of at
        most 1.
        """
        if self.alpha == 0:
            return (price <= 1).to(price)
        return price.clamp(min=1) ** (-1 / self.alpha)


@dataclasses.dataclass(frozen=True, eq=False)
class Concave(ByBestColumn):
    """Demand set {w >= 0, sum w <= 1} with a concave utility u of the carried share.

    The value of a demand with weight W is W u(sum w).

    Attributes:
        curve: utility u of the carried share.
        unit_value: (B, D) W / demand, the value of a Gbit/s at the share 1; 0 where a demand has no
            weight.
        demand: (B, D) Gbit/s.
        value: (D,) value of the columns in the program, which is not part of the utility and is
            subtracted from their profits.
        max_share: (B, D, J) largest share of its demand on each column, w <= max_share; None for no
            limit.
    """

    curve: Curve
    unit_value: Float[Tensor, "B D"]
    demand: Float[Tensor, "B D"]
    value: Float[Tensor, " D"]
    max_share: Float[Tensor, "B D J"] | None = None

    @property
    @override
    def uses_best_column(self) -> bool:  # type: ignore[override]
        return self.max_share is None

    @property
    def total(self) -> Tensor:
        """Sum of the weights W of all demands, (B,)."""
        return (self.unit_value * self.demand).sum(-1)

    def value_scale(self, trial_utilisation: Tensor) -> Tensor:
        """Return the typical marginal value (B,) of a Gbit/s, relative to that at full service, by
        which engines scale their step sizes.

        If a routing of all demand has the largest utilisation theta, a demand with the share
        1 / theta has the marginal value theta^alpha, but few demands have so small a share.  A
        smaller power of theta is used: the one that needed the fewest iterations on B4, GEANT and
        UsCarrier for alpha up to 16.  It is max(0, alpha - 3); where a Gbit/s has the same value
        for all demands, min(alpha, max(1, alpha - 3)).

        Args:
            trial_utilisation: (B,) largest utilisation theta of a routing of all demand.
        """
        alpha = self.curve.alpha
        min_unit_value = torch.where(self.unit_value > 0, self.unit_value, torch.inf).amin(-1)
        is_equal = self.unit_value.amax(-1) <= (1 + _EQUAL_VALUE_TOLERANCE) * min_unit_value
        power = torch.where(is_equal, min(alpha, max(1.0, alpha - 3)), max(0.0, alpha - 3))
        return trial_utilisation.clamp(min=1) ** power.to(trial_utilisation)

    def score(self, share: Tensor) -> Tensor:
        """Return the sum (B,) over the demands of W (u(s) + 1), with weights W and
        shares s (B, D).
        """
        weight = self.unit_value * self.demand
        utility = self.curve.utility(torch.where(weight > 0, share, 1).clamp(max=1))
        return torch.where(weight > 0, weight * (utility + 1), 0).sum(-1)

    def equivalent(self, score: Tensor) -> Tensor:
        """Return the equivalent common share (B,): the share that, common to all demands, has a
        given score; 1 if no demand has a weight.

        Args:
            score: (B,) sum over the demands of W (u(s) + 1).
        """
        total = self.total.to(score)
        mean = torch.where(total > 0, score / total.clamp(min=_MIN_DIVISOR) - 1, 0)
        return self.curve.share_of(mean)

    def support_of_best(self, best: Tensor) -> Tensor:
        """Return the support (B, D) for each Gbit/s of demand: the maximum over shares s in (0, 1]
        of W (u(s) + 1) / demand - price * s, with the weight W of the demand.

        Args:
            best: (B, D) largest profit, column value less price, of a live column.
        """
        unit_value = self.unit_value.to(best)
        price = (self.value.to(best) - best).clamp(min=0)
        share = self.curve.best_share(price / unit_value.clamp(min=_MIN_DIVISOR))
        share = share.clamp(min=torch.finfo(share.dtype).tiny)
        return torch.where(
            unit_value > 0, unit_value * (self.curve.utility(share) + 1) - price * share, 0
        )

    def support(self, profit: Tensor, live: Tensor) -> Tensor:
        """Return the support (B, D) for each Gbit/s of demand: the maximum over column shares w of
        W (u(sum w) + 1) / demand less the cost of w, with the weight W of the demand.

        With limits on columns the cheapest columns are filled first.  With p[j] the prices in
        ascending order and R[j] the sum of the first j limits, the best total share is the maximum
        over j of min(R[j], best share if all columns had the price p[j]).

        Args:
            profit: (B, D, J) column value less price of a Gbit/s on each column.
            live: (B, D, J) usable columns.
        """
        if self.max_share is None:
            return super().support(profit, live)
        price = (self.value[:, None].to(profit) - profit).clamp(min=0)
        # Sort live columns by price.
        price, order = torch.where(live, price, torch.inf).sort(-1)
        column_limit = torch.where(price.isfinite(), self.max_share.to(profit).gather(-1, order), 0)
        price = torch.where(price.isfinite(), price, 0)
        # Best share, and the cost of the columns that carry it.
        cumulative_limit = column_limit.cumsum(-1)
        unit_value = self.unit_value.to(profit)[..., None]
        share_at_price = self.curve.best_share(price / unit_value.clamp(min=_MIN_DIVISOR))
        total_share = torch.where(
            column_limit > 0, torch.minimum(cumulative_limit.clamp(max=1), share_at_price), 0
        ).amax(-1, keepdim=True)
        total_share = total_share.clamp(min=torch.finfo(total_share.dtype).tiny)
        cost = (
            price
            * torch.minimum(
                column_limit, (total_share - cumulative_limit + column_limit).clamp(min=0)
            )
        ).sum(-1, keepdim=True)
        best_value = unit_value * (self.curve.utility(total_share) + 1) - cost
        return torch.where(unit_value > 0, best_value, 0)[..., 0]

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Return the proximal step of the shares (B, D, J) under the utility.

        Args:
            point: (B, D, J) shares after a gradient step that includes the column values; they are
                subtracted again, since the utility replaces them.
            live: (B, D, J) usable columns; the others get 0.
            slope: unused; computed from ``step``.
            step: (B, D, 1) step size of each demand, or (B, D, J) of each column with limits on
                columns.
        """
        # Undo the gradient step of the linear values.
        point = torch.where(live, point - self.value[:, None].to(point) * step, 0)
        # Minimise |w - point|^2 / 2 - c u(sum w): the weight c of the utility u.
        max_step = step.amax(-1, keepdim=True)
        utility_weight = self.unit_value[..., None].to(point) * max_step
        if self.max_share is None:
            return project_concave(point, live, utility_weight, self.curve.alpha)
        max_share = torch.where(live, self.max_share.to(point), 0)
        return project_concave_box(
            point, max_share, (step / max_step).expand_as(point), utility_weight, self.curve.alpha
        )


def project_concave(point: Tensor, live: Tensor, utility_weight: Tensor, alpha: float) -> Tensor:
    """Minimise |w - y|^2 / 2 - c u(sum w) over {w >= 0, sum w <= 1}, for each demand.

    By its optimality conditions w = max(0, y - t).  The shift t is -c z^-alpha with z the sum of w,
    or the larger shift of the projection onto the simplex, at which z = 1.  If the j largest
    entries of y, whose sum is Y, are above t, then z = Y + j c z^-alpha; the correct j gives the
    largest t.

    Args:
        point: (B, D, K) y.
        live: (B, D, K) live entries; the others get 0.
        utility_weight: (B, D, 1) c, at least 0; a demand with 0 gets the projection of y onto the
            simplex.
        alpha: exponent of u.
    """
    # Prefix sums of the sorted entries.
    sorted_point = torch.where(live, point, -torch.inf).sort(-1, descending=True).values
    num_entries = torch.arange(1, point.shape[-1] + 1, device=point.device).to(point)
    # -inf beyond the live entries.
    prefix_sums = sorted_point.cumsum(-1)
    exists = sorted_point.isfinite()
    # (B, D, K) shift t of each prefix; the largest is the correct one.
    prefix_total = _solve_total_share(
        torch.where(exists, prefix_sums, 0), num_entries * utility_weight, alpha
    )
    shift = -utility_weight * prefix_total.clamp(min=torch.finfo(point.dtype).tiny) ** -alpha
    shift = torch.where(exists, shift, -torch.inf).amax(-1, keepdim=True)
    # Shift of the projection onto the simplex, at which the sum is 1.
    full_shift = torch.where(exists, (prefix_sums - 1) / num_entries, -torch.inf).amax(
        -1, keepdim=True
    )
    shift = torch.maximum(shift, full_shift)
    projected = torch.where(live, (point - shift).clamp(min=0), 0)
    return torch.where(
        utility_weight > 0, projected, project_splits(point, live, carries_all=False)
    )


def project_concave_box(
    point: Tensor, max_share: Tensor, slope: Tensor, utility_weight: Tensor, alpha: float
) -> Tensor:
    """Minimise sum (w - y)^2 / (2 slope) - c u(sum w) over {0 <= w <= max_share, sum w <= 1}.

    By its optimality conditions w = clip(y - slope t, 0, max_share) with t = -c z^-alpha and z the
    sum of w, or with the larger t at which z is 1. The function t + c z(t)^-alpha increases with t,
    so that bisection finds its root.

    Args:
        point: (B, D, J) y.
        max_share: (B, D, J) largest share on each column.
        slope: (B, D, J) above 0.
        utility_weight: (B, D, 1) c, at least 0; where it is 0, y is projected onto the box.
        alpha: exponent of u.
    """
    tiny = torch.finfo(point.dtype).tiny

    # Shares w (B, D, J) at a shift (B, D, 1), and c z^-alpha for a sum of shares z (B, D, 1).
    def shares_at(t: Tensor) -> Tensor:
        return torch.minimum((point - slope * t).clamp(min=0), max_share)

    def marginal_utility(total: Tensor) -> Tensor:
        return utility_weight * total.clamp(min=tiny) ** -alpha

    # Above this shift w = 0.
    shift_high = (point / slope).amax(-1, keepdim=True)
    # Below this shift w = max_share.
    shift_low = ((point - max_share) / slope).amin(-1, keepdim=True)
    # Finite, so that the middle of the interval does not overflow.
    shift_low = shift_low.clamp(min=torch.finfo(point.dtype).min / 4)
    shift_high = torch.maximum(shift_high, shift_low)
    for _ in range(_BISECTIONS):
        shift_middle = (shift_low + shift_high) / 2
        is_above = (
            shift_middle + marginal_utility(shares_at(shift_middle).sum(-1, keepdim=True)) > 0
        )
        shift_low = torch.where(is_above, shift_low, shift_middle)
        shift_high = torch.where(is_above, shift_middle, shift_high)
    shifted = torch.where(utility_weight > 0, point - slope * shift_low, point)
    return project_box(shifted, max_share, slope)


def _solve_total_share(offset: Tensor, utility_weight: Tensor, alpha: float) -> Tensor:
    """Return the root z > 0 of z = Y + a z^-alpha for each pair of entries Y and a.

    Args:
        offset: Y of each equation, of any shape and sign.
        utility_weight: a of each equation, at least 0, in the shape of ``offset``.
        alpha: exponent, at least 0.
    """
    # Closed forms for alpha 0 and 1.
    if alpha == 0:
        return offset + utility_weight
    if alpha == 1:
        root = (offset.square() + 4 * utility_weight).sqrt()
        # For a negative Y, avoid cancellation.
        return torch.where(
            offset >= 0,
            (offset + root) / 2,
            2 * utility_weight / (root - offset).clamp(min=_MIN_DIVISOR),
        )
    # z - Y - a z^-alpha is increasing and concave: Newton's method from below stays below the root,
    # and converges.
    # Start below the root.  root_at_zero is the root for Y = 0, so for Y >= 0 it and Y are lower
    # bounds.  For Y < 0 the root z is below root_at_zero, hence z = (a / (z - Y))^(1 / alpha)
    # >= (a / (root_at_zero - Y))^(1 / alpha).
    root_at_zero = utility_weight.clamp(min=_MIN_DIVISOR) ** (1 / (1 + alpha))
    lower_bound = (utility_weight / (root_at_zero - offset).clamp(min=_MIN_DIVISOR)).clamp(
        min=_MIN_DIVISOR
    ) ** (1 / alpha)
    z = torch.where(
        offset >= 0, torch.maximum(offset, root_at_zero), torch.minimum(lower_bound, root_at_zero)
    ).clamp(min=_MIN_DIVISOR)
    for _ in range(_MAX_NEWTON_STEPS):
        marginal_utility = utility_weight * z**-alpha
        step = -(z - offset - marginal_utility) / (1 + alpha * marginal_utility / z)
        z = torch.where(step.isfinite() & (step > 0), z + step, z)
        if not bool((step > _STEP_ROUNDING * torch.finfo(z.dtype).eps * z).any()):
            break
    return z
