r"""A limit on churn: the volume that a new allocation moves onto paths, against the splits in force.

With w0[d, k] the splits in force, 0 on paths that are not live, the reference flows demand[d] w0[d, k] are what the
network carries if nothing is changed.  An allocation x moves

    moved(x) = sum over d, k of max(0, x[d, k] - demand[d] w0[d, k])      Gbit/s,

and may move ``share`` of the routable demand.  Taking flow off a path is free, since what is shed needs no new path.

Bound, by weak duality, for prices p[e] >= 0 and a price pi >= 0 of moving a Gbit/s, with
g[d, k] = v[d, k] - price(d, k):

    optimum <= sum_e c[e] p[e] + pi share sum of demand + sum_d demand[d] best(d),
    best(d) = max sum_k g[d, k] a[k] + (g[d, k] - pi) b[k]  s.t.  0 <= a[k] <= w0[d, k],  b >= 0,  sum_k a + b <= 1,

a knapsack, which is filled in the order of the profits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from teal.errors import InputError
from teal.runtime.shapes import Float

_HALVINGS = 40  # of the interval in which the best price of moving is searched; any price proves a bound


@dataclasses.dataclass(frozen=True, eq=False)
class ChurnLimit:
    """The limit of B matrices.

    Attributes:
        previous: (B, D, K) splits in force.
        share: of the routable demand that may move, in [0, 1].
    """

    previous: Float[Tensor, "B D K"]
    share: float

    @classmethod
    def checked(cls, previous: Tensor, share: float, shape: Sequence[int]) -> ChurnLimit:
        """A limit of B matrices, validated.

        Args:
            previous: (B, D, K), or (D, K) for all matrices.
            share: of the routable demand.
            shape: (B, D, K).

        Raises:
            InputError: another shape, entries that are no shares, or a share out of range.
        """
        if not 0 <= share <= 1:
            raise InputError("churn", "share", "a number in [0, 1]", share)
        if tuple(previous.shape) not in (tuple(shape), tuple(shape[1:])):
            raise InputError("churn", "previous", f"splits {tuple(shape)}", tuple(previous.shape))
        if not bool((torch.isfinite(previous) & (previous >= 0)).all()):
            raise InputError("churn", "previous", "finite shares >= 0", "a negative, infinite or NaN entry")
        return cls(previous.expand(*shape), share)

    def rows(self, rows: slice | Tensor) -> ChurnLimit:
        """The limit of some of the matrices."""
        return ChurnLimit(self.previous[rows], self.share)


def best_profit(profit: Tensor, kept: Tensor, price: Tensor) -> tuple[Tensor, Tensor]:
    """(B, D) best(d) of the module, and the share of the demand that it moves.

    Args:
        profit: (B, D, K) g, -inf on paths that are not live.
        kept: (B, D, K) w0.
        price: (B,) pi.
    """
    both = torch.cat([profit, profit - price[:, None, None]], -1)
    room = torch.cat([kept, torch.ones_like(kept)], -1)
    is_moved = torch.cat([torch.zeros_like(kept), torch.ones_like(kept)], -1)
    order = both.argsort(dim=-1, descending=True, stable=True)
    both, room, is_moved = (part.gather(-1, order) for part in (both, room, is_moved))
    room = torch.where(both > 0, room, 0)
    before = room.cumsum(-1) - room
    taken = torch.minimum(room, (1 - before).clamp(min=0))
    return (taken * both.clamp(min=0)).sum(-1), (taken * is_moved).sum(-1)


def profit_under_limit(demand: Tensor, profit: Tensor, kept: Tensor, budget: Tensor) -> Tensor:
    """(B,) the least over pi of pi budget + sum_d demand[d] best(d), by bisection on what is moved.

    Args:
        demand: (B, D) Gbit/s.
        profit: (B, D, K) g, -inf on paths that are not live.
        kept: (B, D, K) w0.
        budget: (B,) Gbit/s that may move.
    """
    low = torch.zeros_like(budget)
    high = profit.clamp(min=0).amax((1, 2)) if profit.numel() else low  # at this price nothing is moved

    def at(price: Tensor) -> tuple[Tensor, Tensor]:
        best, moved = best_profit(profit, kept, price)
        return price * budget + (demand * best).sum(1), (demand * moved).sum(1)

    least = torch.minimum(at(low)[0], at(high)[0])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        value, moved = at(middle)
        least = torch.minimum(least, value)
        low, high = torch.where(moved > budget, middle, low), torch.where(moved > budget, high, middle)
    return least
