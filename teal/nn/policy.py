"""From embeddings to actions: the policy shared by all demands, and the price head shared by all
links.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

CLAMP = 10.0  # largest absolute value of an action
_HIDDEN_NEURONS = 24  # neurons of the policy's hidden layer
_MIN_PROFIT = -3.0  # mean values: lower limit of a bounded profit
FIRST_RAW_PRICE = -4.0  # prices start near 0, because most links are not full
# Lower limit of a price's slope where it should rise: the slope of the first prices, so that prices
# above these have the exact gradient.
_MIN_RISING_SLOPE = 1 / (1 + math.exp(-FIRST_RAW_PRICE))


class Policy(nn.Module):
    """From the K path embeddings of a demand to K means of a Gaussian (Teal, section 3.3).

    Every demand is an agent; all share these weights.  A hidden layer of 24, or ``linear`` as in
    the paper's release.
    """

    def __init__(self, num_paths: int, width: int, *, linear: bool = False) -> None:
        super().__init__()
        inputs = num_paths * width
        hidden = nn.Sequential(
            nn.Linear(inputs, _HIDDEN_NEURONS), nn.SiLU(), nn.Linear(_HIDDEN_NEURONS, num_paths)
        )
        self.net = nn.Linear(inputs, num_paths) if linear else hidden

    def forward(self, path: Tensor) -> Tensor:
        """(B, D, K, F) -> means (B, D, K)."""
        return self.net(path.flatten(2))


class _Price(torch.autograd.Function):
    """Softplus with a projected gradient (:func:`price_of`)."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor) -> Tensor:
        """Softplus of ``raw``."""
        ctx.save_for_backward(raw)
        return nn.functional.softplus(raw)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient in ``raw``, whose slope has a lower limit where the price should rise."""
        (raw,) = ctx.saved_tensors
        slope = raw.sigmoid()
        rising_slope = slope.clamp(min=_MIN_RISING_SLOPE)
        return gradient * torch.where(gradient < 0, rising_slope, slope)


def price_of(raw: Tensor, *, maximises_value: bool) -> Tensor:
    """Softplus of ``raw``, whose gradient lets a price near 0 rise again.

    The first steps lower all prices at once, since most links have capacity to spare.  Softplus is
    flat there: without a lower limit of its slope no gradient would bring back the prices of the
    full links, and the bound would stay that of zero prices, the value of all demand.  As in a
    projected gradient, the limit holds only where the price should rise.

    Args:
        raw: last layer of a price head, any shape.
        maximises_value: false for a balanced program, whose bound is the same for any multiple of
            the prices: its gradient does not vanish near 0, and is that of softplus.
    """
    price: Tensor = _Price.apply(raw) if maximises_value else nn.functional.softplus(raw)
    return price


class PriceHead(nn.Module):
    """From the embedding of a link to its share of price, softplus so that it is positive.

    Not in the paper.  The prices certify the model's own allocation and are the first multipliers
    of the repair. The head is trained on the bound itself (:mod:`teal.learning.losses`).
    """

    def __init__(self, width: int, hidden: int = 16) -> None:
        super().__init__()
        last = nn.Linear(hidden, 1)
        nn.init.constant_(last.bias, -3.0)  # prices start near 0, because most links are not full
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), last)

    def forward(self, link: Tensor, *, maximises_value: bool) -> Tensor:
        """(B, E, F) -> (B, E), positive; ``maximises_value`` as in :func:`price_of`."""
        return price_of(self.net(link).squeeze(-1), maximises_value=maximises_value)


def bounded_profit(profit: Tensor) -> Tensor:
    """A path's profit over the mean value; a loss x < 0 becomes x / (1 - x / 3), which stays above
    -3.

    On long paths prices sum to large losses, and actions beyond the clamp would have no gradient.
    """
    return torch.where(profit < 0, profit / (1 + profit.clamp(max=0) / _MIN_PROFIT), profit)


def action_splits(
    actions: Tensor, mask: Tensor, *, maximises_value: bool, clamp: float = CLAMP
) -> Tensor:
    """Softmax over the K paths and, if ``maximises_value``, a reject option with action 0: (B, D,
    K).

    Args:
        actions: (B, D, K).
        mask: (B, D, K) live paths; the others get 0.
        maximises_value: whether a demand may be rejected in part.
        clamp: actions are clamped to +- this.
    """
    logits = torch.where(mask, actions.clamp(-clamp, clamp), -torch.inf)
    if maximises_value:
        reject = torch.zeros_like(logits[..., :1])
        return torch.cat([logits, reject], -1).softmax(-1)[..., :-1]
    # A softmax over no path would be NaN.
    logits = torch.where(mask.any(-1, keepdim=True), logits, 0)
    return logits.softmax(-1) * mask
