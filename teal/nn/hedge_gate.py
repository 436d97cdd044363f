"""A model that corrects a mixture of hedges: for any network, any history and any list of hedges.

With x_h[d, k] the splits of hedge h, w[h] the weights of the mixture, and z = sum_h w[h] x_h the
mixture:

1. Gate: w[d, h] is proportional to w[h] exp(g[d, h]), so that each demand has weights of its own; g
   is a perceptron of what is known about the demand, the hedge, and both.
2. Prices: for each of J sets of scenarios (the newest matrix, the last matrices, a forecast and its
   past errors), the share of the link e in the largest utilisations of the scenarios,

       y_j[e] = mean over s of softmax over e of (u_s[e](z) / (SHARPNESS max u_s)),

   is a price y_j[e] / c[e]; p_j[d, k] is its sum over a path, less the mean over the demand's splits, over the mean
   over all demand.
3. Correction: with m[d, k] = sum_h w[d, h] x_h[d, k] and g = exp(-sum_j r_j[d] p_j[d, k]), x[d, k]
   is proportional to m g + FLOOR max(0, g - 1): a step of mirror descent on a mean of the scenario
   programs, whose step sizes r are another perceptron's output.

Both perceptrons end with weights 0 before training, so that the model begins as the mixture.  No
input depends on the numbers of nodes, links, demands or hedges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from teal.problem import Problem
from teal.runtime.shapes import Float

SCENARIO_SETS = 4  # J
_NEAR_LARGEST_SHARE = (
    0.05  # share of the largest utilisation by which a link may be below it and still count
)
_MIN_GROWING_SPLIT = 1e-3  # split from which a path that no hedge uses can grow
_MAX_STEP = 4.0  # of the exponent of a correction
_MAX_INPUT = 5.0  # of an input, by which outliers are limited
# Factors that bring inputs to about 1: logs of weights and of shares of volume spread over 3,
# losses of hedges differ by tenths, splits by fifths of the volume, and the log of a history's
# length is up to 5.
_LOG_FACTOR = 1 / 3
_LOSS_FACTOR = 10.0
_APART_FACTOR = 5.0
_LENGTH_FACTOR = 1 / 5
_MIN_DIVISOR = 1e-30  # least divisor, so that 0 / 0 is 0
_DEMAND_INPUTS = 6
_SERIES_INPUTS = 4
_HEDGE_INPUTS = 3
_PAIR_INPUTS = SCENARIO_SETS + 1
_TREND_MATRICES = 12  # newest matrices that tell a trend


@dataclasses.dataclass(frozen=True)
class HedgeGateConfig:
    """Shapes.

    Attributes:
        hidden: width of the perceptrons.
    """

    hidden: int = 32


class GateInputs(NamedTuple):
    """The inputs of the model; none of them depends on the weights.

    Attributes:
        gate: (H, D, F) inputs of the gate.
        step: (D, G) inputs of the step sizes.
        prices: (J, D, K) p_j.
        log_weights: (H,) log w.
        live: (D, K) 1 for live paths, else 0.
    """

    gate: Float[Tensor, "H D F"]
    step: Float[Tensor, "D G"]
    prices: Float[Tensor, "J D K"]
    log_weights: Float[Tensor, " H"]
    live: Float[Tensor, "D K"]


class HedgeGate(nn.Module):
    """The gate over the default mixture (equations in the module)."""

    def __init__(self, config: HedgeGateConfig) -> None:
        super().__init__()
        self.config = config
        shared = _DEMAND_INPUTS + _SERIES_INPUTS
        self.gate = _perceptron(shared + _HEDGE_INPUTS + _PAIR_INPUTS, config.hidden, 1)
        self.step = _perceptron(shared + SCENARIO_SETS, config.hidden, SCENARIO_SETS)

    def forward(
        self, inputs: GateInputs, decisions: Float[Tensor, "H D K"]
    ) -> Float[Tensor, "D K"]:
        """Splits; 0 where no path is live.

        Args:
            inputs: see :func:`gate_inputs`.
            decisions: splits of the hedges.
        """
        weights = (inputs.log_weights[:, None] + self.gate(inputs.gate)[..., 0]).softmax(0)
        splits = torch.einsum("hd,hdk->dk", weights, decisions)
        exponent = -torch.einsum("dj,jdk->dk", self.step(inputs.step), inputs.prices)
        exponent = _MAX_STEP * torch.tanh(exponent / _MAX_STEP)
        growth = torch.exp(exponent)
        # A path that no hedge uses may grow, and without a correction all splits stay as they are.
        moved = inputs.live * (splits * growth + _MIN_GROWING_SPLIT * (growth - 1).clamp(min=0))
        return (
            splits.sum(-1, keepdim=True)
            * moved
            / moved.sum(-1, keepdim=True).clamp(min=_MIN_DIVISOR)
        )


def gate_inputs(
    problem: Problem,
    recent: Float[Tensor, "T D"],
    scenario_sets: Sequence[Tensor],
    decisions: Float[Tensor, "H D K"],
    weights: Float[Tensor, " H"],
    recent_losses: Float[Tensor, " H"],
) -> GateInputs:
    """Compute the inputs of the model.

    Args:
        problem: the network; B = 1, its demand is ignored.
        recent: the newest matrices, oldest first, Gbit/s.
        scenario_sets: J sets of matrices (S, D), S of any size.
        decisions: splits of the hedges.
        weights: weights of the mixture.
        recent_losses: recent losses of the hedges, less that of the mixture.
    """
    # Prices of the links under the mixture, in each set of scenarios.
    mixture = torch.einsum("h,hdk->dk", weights, decisions)
    prices, peaked = zip(
        *(_prices(problem, mixture, scenarios) for scenarios in scenario_sets), strict=True
    )
    price = torch.stack(prices)
    # Inputs of demands, and of pairs of a hedge and a demand.
    demand, series = _demand_inputs(recent)
    moved = decisions - mixture
    distance = moved.abs().sum(-1) / 2
    mean = recent.mean(0)
    pair = torch.cat([torch.einsum("hdk,jdk->hdj", moved, price), distance[..., None]], -1)
    # Inputs of hedges: weight, recent loss, and distance from the mixture.
    log_weights = weights.clamp(min=1e-6).log()
    apart = (distance * mean).sum(1) / mean.sum().clamp(min=_MIN_DIVISOR)
    hedge = torch.stack(
        [
            _LOG_FACTOR * (log_weights - log_weights.mean()),
            _LOSS_FACTOR * recent_losses,
            _APART_FACTOR * apart,
        ],
        -1,
    )
    # Concatenate the inputs of the gate and of the step.
    hedges, demands = distance.shape
    shared = torch.cat([demand, series.expand(demands, -1)], -1)
    gate = torch.cat(
        [shared.expand(hedges, -1, -1), hedge[:, None].expand(-1, demands, -1), pair], -1
    )
    step = torch.cat([shared, torch.stack(peaked).expand(demands, -1)], -1)
    limit = (-_MAX_INPUT, _MAX_INPUT)
    return GateInputs(
        gate.clamp(*limit),
        step.clamp(*limit),
        price.clamp(*limit),
        log_weights,
        problem.path_mask[0].to(mixture),
    )


def _prices(problem: Problem, splits: Tensor, scenarios: Tensor) -> tuple[Tensor, Tensor]:
    """(D, K) p_j of the module, and how much the scenarios agree: largest mean utilisation over the
    mean largest.
    """
    several = problem.rows(torch.zeros(len(scenarios), dtype=torch.long)).with_demand(scenarios)
    utilisation = several.utilisation(splits.expand(len(scenarios), -1, -1))
    largest = utilisation.amax(1, keepdim=True).clamp(min=_MIN_DIVISOR)
    share = (utilisation / (_NEAR_LARGEST_SHARE * largest)).softmax(1).mean(0)
    price = problem.ops.path_sum((share * problem.inverse_capacity[0])[None])[0]
    carried = (splits * price).sum(-1, keepdim=True)
    volume = scenarios.mean(0)
    typical = (volume * carried[:, 0]).sum() / volume.sum().clamp(min=_MIN_DIVISOR)
    agreement = (utilisation / largest).mean(0).amax()
    return (price - carried) / typical.clamp(min=_MIN_DIVISOR), agreement


def _demand_inputs(recent: Tensor) -> tuple[Tensor, Tensor]:
    """(D, 6) of each demand and (4,) of the series, without units."""
    # Mean, variance and autocorrelation of each demand, relative to its mean.
    mean = recent.mean(0).clamp(min=_MIN_DIVISOR)
    relative = recent / mean
    centred = relative - 1
    spread = centred.square().mean(0)
    product = (centred[1:] * centred[:-1]).sum(0) / centred[:-1].square().sum(0).clamp(
        min=_MIN_DIVISOR
    )
    # Inputs of each demand.
    last = relative[-_TREND_MATRICES:]
    demand = torch.stack(
        [
            _LOG_FACTOR * (mean / mean.mean()).log(),
            spread.sqrt(),
            product,
            relative[-1] - 1,
            last.mean(0) - 1,
            last.amax(0) - 1,
        ],
        -1,
    )
    # Inputs of the series, weighted by the mean rates.
    volume = mean / mean.sum()
    total = recent.sum(1) / mean.sum()
    series = torch.stack(
        [
            (volume * spread.sqrt()).sum(),
            (volume * product).sum(),
            total[-1] - 1,
            _LENGTH_FACTOR * torch.tensor(len(recent)).to(mean).log(),
        ]
    )
    return demand, series


def _perceptron(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """Three layers, of which the last begins with weights 0."""
    last = nn.Linear(hidden, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last
    )
