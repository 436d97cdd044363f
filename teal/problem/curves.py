r"""Demands whose value is a concave utility of the share that is carried: alpha-fairness.

With shares s[d] = x[d] / demand[d] in (0, 1], weights W[d] and (Mo & Walrand 2000, definition 2)

    u(s) = (s^(1 - alpha) - 1) / (1 - alpha),    log s for alpha = 1,
    so that u(1) = 0 and u'(1) = 1,

the program is max sum over d of W[d] u(s[d]).  alpha = 0 is total flow, 1 proportional fairness
(Kelly 1998), and as alpha grows the least share becomes the largest possible.  W[d] = demand[d]
weighs each Gbit/s alike, W[d] = 1 each demand.  By weak duality, with y >= 0 the prices of links
and pi[d] that of the cheapest path,

    sum W u(s)  <=  sum c y + sum over d of max over s in (0, 1] of W u(s) - demand pi s,

where the maximum is at s = 1 if pi demand <= W, else at s = (pi demand / W)^(-1 / alpha).

Figures are of the *equivalent common share*: the share M that, if all demands had it, would have
the same utility,

    u(M) = sum W u(s) / sum W,
    M = exp(mean log share) for alpha = 1, the weighted mean share for alpha = 0.

M is monotone in the utility, so that a bound on the one bounds the other.  Where most demands are
carried whole, a small gap of M may be a large part of what is lost: the gap of the loss is (u(M
bound) - u(M)) / -u(M).

Engines maximise sum W (u(s) + 1), which at prices of 0 is sum W as for total flow; W is scaled so
that this is the sum of all routable demand.  Demands of 0 and those without a live path have no
weight: no allocation carries them.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from typing_extensions import override

from teal.problem.prox import project_box, project_splits
from teal.problem.sets import ByBestColumn
from teal.runtime.shapes import Float

_NEWTON_STEPS = (
    60  # at most, of the sum of a demand's shares; each step comes from below, 3 to 8 are taken
)
# of the shift of a demand with limits of its columns, as many as bring it to its last digit
_BISECTIONS = 100
_ROUNDING = 4  # units in the last place up to which a step counts as none
_MIN_DIVISOR = 1e-300  # instead of 0 as a divisor
_EQUAL_WORTH = 1e-9  # relative difference up to which worths are equal


@dataclasses.dataclass(frozen=True)
class Curve:
    """The utility u of one share.

    Attributes:
        alpha: at least 0.
    """

    alpha: float

    def utility(self, share: Tensor) -> Tensor:
        """u(s), -inf for a share of 0 where alpha is at least 1."""
        if self.alpha == 1:
            return share.log()
        power = 1 - self.alpha
        return (
            torch.expm1(power * share.log()) / power
        )  # exact also next to alpha = 1 and to a share of 1

    def share_of(self, utility: Tensor) -> Tensor:
        """The share of a utility, its inverse; 1 for utilities above 0, 0 below the utility of
        every share.
        """
        utility = utility.clamp(max=0)
        if self.alpha == 1:
            return utility.exp()
        power = 1 - self.alpha
        return (torch.log1p((power * utility).clamp(min=-1)) / power).exp()

    def best_share(self, price: Tensor) -> Tensor:
        """The s in [0, 1] that maximises u(s) - price s: 1 up to a price of 1."""
        if self.alpha == 0:
            return (price <= 1).to(price)
        return price.clamp(min=1) ** (-1 / self.alpha)


@dataclasses.dataclass(frozen=True, eq=False)
class Concave(ByBestColumn):
    """{w >= 0, sum w <= 1} with the value of the module.

    Attributes:
        curve: u.
        worth: (B, D) W / demand, value of a Gbit/s at the share 1; 0 where a demand has no weight.
        demand: (B, D) Gbit/s.
        value: (D,) that columns have in the program, which is no part of this value and is taken
            off their profits.
        max_share: (B, D, J) of its demand that each column may carry, w <= max_share; None for no
            limit.
    """

    curve: Curve
    worth: Float[Tensor, "B D"]
    demand: Float[Tensor, "B D"]
    value: Float[Tensor, " D"]
    max_share: Float[Tensor, "B D J"] | None = None

    @property
    @override
    def uses_best_column(self) -> bool:  # type: ignore[override]
        return self.max_share is None

    @property
    def total(self) -> Tensor:
        """(B,) sum of W."""
        return (self.worth * self.demand).sum(-1)

    def value_scale(self, trial_utilisation: Tensor) -> Tensor:
        """(B,) by which a Gbit/s is worth more than at the share 1, roughly: for the step sizes of
        engines.

        Where a routing of all demand uses the fullest link theta times, shares near 1 / theta have
        the worth theta^alpha; few demands are there.  Of the powers that were tried on B4, GEANT
        and UsCarrier for alpha up to 16, these needed the fewest iterations: alpha - 3 but at least
        0; and where a Gbit/s of all demands has one worth, at least 1 (alpha, below 1).  Elsewhere
        the demands that lack capacity are those of little worth.

        Args:
            trial_utilisation: (B,) theta.
        """
        alpha, least = self.curve.alpha, torch.where(self.worth > 0, self.worth, torch.inf).amin(-1)
        is_equal = self.worth.amax(-1) <= (1 + _EQUAL_WORTH) * least
        power = torch.where(is_equal, min(alpha, max(1.0, alpha - 3)), max(0.0, alpha - 3))
        return trial_utilisation.clamp(min=1) ** power.to(trial_utilisation)

    def score(self, share: Tensor) -> Tensor:
        """(B,) sum of W (u(s) + 1), of shares (B, D)."""
        weight = self.worth * self.demand
        utility = self.curve.utility(torch.where(weight > 0, share, 1).clamp(max=1))
        return torch.where(weight > 0, weight * (utility + 1), 0).sum(-1)

    def equivalent(self, score: Tensor) -> Tensor:
        """(B,) the equivalent common share of a score; 1 where no demand has a weight."""
        total = self.total.to(score)
        mean = torch.where(total > 0, score / total.clamp(min=_MIN_DIVISOR) - 1, 0)
        return self.curve.share_of(mean)

    def of_best(self, best: Tensor) -> Tensor:
        """The maximum of the module, with W, for each Gbit/s of demand; see DemandSet."""
        worth = self.worth.to(best)
        price = (self.value.to(best) - best).clamp(min=0)
        share = self.curve.best_share(price / worth.clamp(min=_MIN_DIVISOR))
        share = share.clamp(min=torch.finfo(share.dtype).tiny)
        return torch.where(worth > 0, worth * (self.curve.utility(share) + 1) - price * share, 0)

    def support(self, profit: Tensor, live: Tensor) -> Tensor:
        """The maximum of the module (:meth:`DemandSet.support`).

        With limits the cheapest columns are filled first: with p[j] their prices in rising order
        and R[j] the sum of the first j limits, the best share is max over j of min(R[j], the best
        share at the price p[j] alone).
        """
        if self.max_share is None:
            return super().support(profit, live)
        price = (self.value[:, None].to(profit) - profit).clamp(min=0)
        price, order = torch.where(live, price, torch.inf).sort(-1)
        room = torch.where(price.isfinite(), self.max_share.to(profit).gather(-1, order), 0)
        price = torch.where(price.isfinite(), price, 0)
        filled = room.cumsum(-1)
        worth = self.worth.to(profit)[..., None]
        alone = self.curve.best_share(price / worth.clamp(min=_MIN_DIVISOR))
        share = torch.where(room > 0, torch.minimum(filled.clamp(max=1), alone), 0).amax(
            -1, keepdim=True
        )
        share = share.clamp(min=torch.finfo(share.dtype).tiny)
        paid = (price * torch.minimum(room, (share - filled + room).clamp(min=0))).sum(
            -1, keepdim=True
        )
        best = worth * (self.curve.utility(share) + 1) - paid
        return torch.where(worth > 0, best, 0)[..., 0]

    def project(self, point: Tensor, live: Tensor, slope: Tensor | None, step: Tensor) -> Tensor:
        """Nearest splits (:meth:`DemandSet.project`); without limits one step size a demand."""
        point = torch.where(live, point - self.value[:, None].to(point) * step, 0)
        longest = step.amax(-1, keepdim=True)
        strength = self.worth[..., None].to(point) * longest
        if self.max_share is None:
            return project_concave(point, live, strength, self.curve.alpha)
        largest = torch.where(live, self.max_share.to(point), 0)
        return project_concave_box(
            point, largest, (step / longest).expand_as(point), strength, self.curve.alpha
        )


def project_concave(point: Tensor, live: Tensor, strength: Tensor, alpha: float) -> Tensor:
    """Minimum of |w - y|^2 / 2 - c u(sum w) over {w >= 0, sum w <= 1}: (B, D, K).

    By its optimality conditions w = max(0, y - t) with t = max(-c z^-alpha, shift of the simplex),
    z the sum of w.  If the j largest entries, whose sum is Y, are above t, then z = Y + j c
    z^-alpha; the right j gives the largest t.

    Args:
        point: (B, D, K) y.
        live: (B, D, K) entries that take part; the others get 0.
        strength: (B, D, 1) c, at least 0; a demand with 0 gets the projection of y onto the
            simplex.
        alpha: exponent of u.
    """
    ordered = torch.where(live, point, -torch.inf).sort(-1, descending=True).values
    count = torch.arange(1, point.shape[-1] + 1, device=point.device).to(point)
    sums = ordered.cumsum(-1)  # -inf beyond the live ones
    exists = ordered.isfinite()
    total = _sum_of(torch.where(exists, sums, 0), count * strength, alpha)
    shift = -strength * total.clamp(min=torch.finfo(point.dtype).tiny) ** -alpha
    shift = torch.where(exists, shift, -torch.inf).amax(-1, keepdim=True)
    whole = torch.where(exists, (sums - 1) / count, -torch.inf).amax(-1, keepdim=True)
    shift = torch.maximum(shift, whole)
    moved = torch.where(live, (point - shift).clamp(min=0), 0)
    return torch.where(strength > 0, moved, project_splits(point, live, carries_all=False))


def project_concave_box(
    point: Tensor, largest: Tensor, slope: Tensor, strength: Tensor, alpha: float
) -> Tensor:
    """Minimum of sum (w - y)^2 / (2 slope) - c u(sum w) over {0 <= w <= largest, sum w <= 1}: (B,
    D, J).

    By its optimality conditions w = clip(y - slope t, 0, largest) with t = -c z^-alpha, z the sum
    of w, or the larger t at which z is 1.  t + c z(t)^-alpha rises with t, so that bisection finds
    its root.

    Args:
        point: (B, D, J) y.
        largest: (B, D, J) at least 0.
        slope: (B, D, J) above 0.
        strength: (B, D, 1) c, at least 0; a demand with 0 gets the projection of y onto the box.
        alpha: exponent of u.
    """
    tiny = torch.finfo(point.dtype).tiny

    def at(t: Tensor) -> Tensor:
        return torch.minimum((point - slope * t).clamp(min=0), largest)

    def pull(total: Tensor) -> Tensor:
        return strength * total.clamp(min=tiny) ** -alpha

    high = (point / slope).amax(-1, keepdim=True)
    low = ((point - largest) / slope).amin(-1, keepdim=True)  # below it w = largest as well
    low = low.clamp(min=torch.finfo(point.dtype).min / 4)
    high = torch.maximum(high, low)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_above = middle + pull(at(middle).sum(-1, keepdim=True)) > 0
        low, high = torch.where(is_above, low, middle), torch.where(is_above, middle, high)
    moved = torch.where(strength > 0, point - slope * low, point)
    return project_box(moved, largest, slope)


def _sum_of(total: Tensor, strength: Tensor, alpha: float) -> Tensor:
    """The root z > 0 of z = Y + a z^-alpha, entry by entry.

    Args:
        total: Y, of either sign.
        strength: a, at least 0.
        alpha: at least 0.
    """
    if alpha == 0:
        return total + strength
    if alpha == 1:
        root = (total.square() + 4 * strength).sqrt()
        # Of a negative Y the difference would lose all digits.
        return torch.where(
            total >= 0, (total + root) / 2, 2 * strength / (root - total).clamp(min=_MIN_DIVISOR)
        )
    # z - Y - a z^-alpha is rising and concave: Newton's method from below the root stays below it,
    # and converges.
    size = strength.clamp(min=_MIN_DIVISOR) ** (1 / (1 + alpha))
    below = (strength / (size - total).clamp(min=_MIN_DIVISOR)).clamp(min=_MIN_DIVISOR) ** (
        1 / alpha
    )
    z = torch.where(total >= 0, torch.maximum(total, size), torch.minimum(below, size)).clamp(
        min=_MIN_DIVISOR
    )
    for _ in range(_NEWTON_STEPS):
        pull = strength * z**-alpha
        step = -(z - total - pull) / (1 + alpha * pull / z)
        z = torch.where(step.isfinite() & (step > 0), z + step, z)
        if not bool((step > _ROUNDING * torch.finfo(z.dtype).eps * z).any()):
            break
    return z
