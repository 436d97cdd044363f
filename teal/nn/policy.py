"""Heads of FlowGNN: policy from path embeddings to actions, price head from link embeddings to
prices.

:func:`action_splits` converts actions to splits by a softmax.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

# Largest absolute value of an action.
CLAMP = 10.0
# Neurons of the policy's hidden layer.
_HIDDEN_NEURONS = 24
# Lower limit of a bounded profit, in units of the mean value.
_MIN_PROFIT = -3.0
# Bias of raw prices: prices start near 0, because most links are not full.
FIRST_RAW_PRICE = -4.0
# Lower limit of a price's slope where it should rise: the slope of the first prices, so that prices
# above these have the exact gradient.
_MIN_RISING_SLOPE = 1 / (1 + math.exp(-FIRST_RAW_PRICE))


class Policy(nn.Module):
    """Map the K path embeddings of a demand to the means of K Gaussian actions.

    Teal (SIGCOMM 2023), section 3.3.  Every demand is an agent; all agents share the weights.

    Args:
        num_paths: K.
        width: F, size of a path embedding.
        linear: whether there is no hidden layer, as in the paper's release; otherwise one of 24
            neurons.
    """

    def __init__(self, num_paths: int, width: int, *, linear: bool = False) -> None:
        super().__init__()
        num_inputs = num_paths * width
        perceptron = nn.Sequential(
            nn.Linear(num_inputs, _HIDDEN_NEURONS), nn.SiLU(), nn.Linear(_HIDDEN_NEURONS, num_paths)
        )
        self.net = nn.Linear(num_inputs, num_paths) if linear else perceptron

    def forward(self, path: Tensor) -> Tensor:
        """Map path embeddings (B, D, K, F) to means (B, D, K)."""
        return self.net(path.flatten(2))


class _ProjectedSoftplus(torch.autograd.Function):
    """Softplus with a projected gradient (:func:`price_softplus`)."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor) -> Tensor:
        """Return softplus(raw)."""
        ctx.save_for_backward(raw)
        return nn.functional.softplus(raw)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to ``raw``: sigmoid(raw) times the incoming gradient.

        Where the price should rise (negative gradient), the slope has a lower limit.
        """
        (raw,) = ctx.saved_tensors
        slope = raw.sigmoid()
        rising_slope = slope.clamp(min=_MIN_RISING_SLOPE)
        return gradient * torch.where(gradient < 0, rising_slope, slope)


def price_softplus(raw: Tensor, *, maximises_value: bool) -> Tensor:
    """Return softplus(raw), with a gradient that lets a price near 0 rise again.

    The first steps lower all prices at once, since most links have capacity to spare.  Softplus is
    flat there: without a lower limit of its slope no gradient would bring back the prices of the
    full links, and the bound would stay that of zero prices, the value of all demand.  As in a
    projected gradient, the limit holds only where the price should rise.

    Args:
        raw: output of the last layer of a price head, any shape.
        maximises_value: false for a min-max program, which uses the gradient of softplus: its
            bound is the same for any multiple of the prices, so that no gradient vanishes near 0.
    """
    price: Tensor = (
        _ProjectedSoftplus.apply(raw) if maximises_value else nn.functional.softplus(raw)
    )
    return price


class PriceHead(nn.Module):
    """Map link embeddings to positive relative prices, by a perceptron and softplus.

    Not in the paper.  The prices certify the allocation of the model and start the repair.  The
    head is trained on the dual bound (:mod:`teal_study.learning.losses`).

    Args:
        width: F, size of a link embedding.
        hidden: number of hidden neurons.
    """

    def __init__(self, width: int, hidden: int = 16) -> None:
        super().__init__()
        last = nn.Linear(hidden, 1)
        # Prices start near 0, because most links are not full.
        nn.init.constant_(last.bias, -3.0)
        self.net = nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), last)

    def forward(self, link: Tensor, *, maximises_value: bool) -> Tensor:
        """Map link embeddings (B, E, F) to positive prices (B, E).

        Args:
            link: embeddings.
            maximises_value: whether the objective maximises value; the gradient of a price near 0
                then has a lower limit where the price should rise.
        """
        return price_softplus(self.net(link).squeeze(-1), maximises_value=maximises_value)


def bounded_profit(profit: Tensor) -> Tensor:
    """Bound losses: return x / (1 - x / 3), above -3, for a profit x < 0, and x otherwise.

    On long paths prices sum to large losses, and actions beyond the clamp would have no gradient.

    Args:
        profit: profits of paths over the mean value.
    """
    return torch.where(profit < 0, profit / (1 + profit.clamp(max=0) / _MIN_PROFIT), profit)


def action_splits(
    actions: Tensor, mask: Tensor, *, maximises_value: bool, clamp: float = CLAMP
) -> Tensor:
    """Convert actions to splits (B, D, K): a softmax over the K paths of each demand.

    If ``maximises_value``, a reject option with the action 0 takes part.

    Args:
        actions: (B, D, K) actions of the paths.
        mask: (B, D, K) live paths; the splits of others are 0.
        maximises_value: whether a demand may be rejected in part.
        clamp: largest absolute value of an action; larger ones are clamped.
    """
    logits = torch.where(mask, actions.clamp(-clamp, clamp), -torch.inf)
    if maximises_value:
        reject_logit = torch.zeros_like(logits[..., :1])
        return torch.cat([logits, reject_logit], -1).softmax(-1)[..., :-1]
    # A softmax over no path would be NaN.
    logits = torch.where(mask.any(-1, keepdim=True), logits, 0)
    return logits.softmax(-1) * mask
