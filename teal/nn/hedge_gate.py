"""A network that corrects a mixture of hedges (routing rules for unknown demand).

It takes any network, any history of matrices and any list of hedges.

With x_h[d, k] the splits of hedge h, w[h] its weight, and the mixture z = sum_h w[h] x_h, the mean
of the hedges' splits:

1. Gate: w[d, h] is proportional to w[h] exp(g[d, h]), so that each demand has separate weights; g
   is a perceptron of features of the demand, the hedge, and both.
2. Prices: for each of J sets of scenarios (the newest matrix, the last matrices, a forecast and its
   past errors), the share of the link e in the largest utilisations of the scenarios s is

       y_j[e] = mean over s of softmax over e of (u_s[e] / (0.05 max u_s)),

   with u_s[e] the utilisation of link e under the mixture in scenario s.  The link's price is
   y_j[e] over its capacity; p_j[d, k] is the sum of the prices along a path, minus the mean over
   the demand's splits, divided by the mean over all demand.
3. Correction: with m[d, k] = sum_h w[d, h] x_h[d, k] and a = exp(-sum_j r_j[d] p_j[d, k]), x[d, k]
   is proportional to m a + 0.001 max(0, a - 1): a step of mirror descent on a mean of the scenario
   programs, whose step sizes r_j[d] are another perceptron's output.

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

SCENARIO_SETS = 4  # J, number of sets of scenarios
# Softmax temperature of the link prices, as a share of the largest utilisation.
_NEAR_LARGEST_SHARE = 0.05
# Split from which a path that no hedge uses can grow.
_MIN_GROWING_SPLIT = 1e-3
# Largest absolute value of the exponent of a correction.
_MAX_EXPONENT = 4.0
# Largest absolute value of an input; limits outliers.
_MAX_INPUT = 5.0
# Factors that bring inputs to about 1: logs of weights and of shares of volume spread over 3,
# losses of hedges differ by tenths, splits by fifths of the volume, and the log of a history's
# length is up to 5.
_LOG_FACTOR = 1 / 3
_LOSS_FACTOR = 10.0
_DISTANCE_FACTOR = 5.0
_LENGTH_FACTOR = 1 / 5
# Smallest divisor, so that 0 / 0 is 0.
_MIN_DIVISOR = 1e-30
# Numbers of inputs per demand, per series of matrices, per hedge, and per pair of hedge and demand.
_DEMAND_INPUTS = 6
_SERIES_INPUTS = 4
_HEDGE_INPUTS = 3
_PAIR_INPUTS = SCENARIO_SETS + 1
# Number of newest matrices in the trend inputs.
_TREND_MATRICES = 12


@dataclasses.dataclass(frozen=True)
class HedgeGateConfig:
    """Shapes of a HedgeGate.

    Attributes:
        hidden: width of the perceptrons.
    """

    hidden: int = 32


class GateInputs(NamedTuple):
    """Inputs of a HedgeGate, which are computed, not learned.

    H hedges, D demands, J sets of scenarios; F = 18 inputs of the gate, G = 14 of the step sizes.

    Attributes:
        gate: (H, D, F) inputs of the gate.
        step: (D, G) inputs of the step sizes.
        prices: (J, D, K) relative price of each path in each set of scenarios.
        log_weights: (H,) logarithms of the hedges' weights in the mixture.
        live: (D, K) 1 for live paths, else 0.
    """

    gate: Float[Tensor, "H D F"]
    step: Float[Tensor, "D G"]
    prices: Float[Tensor, "J D K"]
    log_weights: Float[Tensor, " H"]
    live: Float[Tensor, "D K"]


class HedgeGate(nn.Module):
    """Correction of a mixture of hedges: weights per demand, then a multiplicative step on splits.

    Gate: the weight w[d, h] of hedge h for demand d is proportional to w[h] exp(gate[d, h]), with
    its weight w[h] in the mixture.  Step: x[d, k] proportional to
    (sum_h w[d, h] x_h[d, k]) exp(-sum_j r_j[d] p_j[d, k]), with hedges x_h, path prices p_j and
    learned step sizes r_j.

    Args:
        config: shapes.
    """

    def __init__(self, config: HedgeGateConfig) -> None:
        super().__init__()
        self.config = config
        num_shared_inputs = _DEMAND_INPUTS + _SERIES_INPUTS
        self.gate = _perceptron(num_shared_inputs + _HEDGE_INPUTS + _PAIR_INPUTS, config.hidden, 1)
        self.step = _perceptron(num_shared_inputs + SCENARIO_SETS, config.hidden, SCENARIO_SETS)

    def forward(
        self, inputs: GateInputs, decisions: Float[Tensor, "H D K"]
    ) -> Float[Tensor, "D K"]:
        """Return the corrected splits (D, K); 0 where no path is live.

        Args:
            inputs: inputs of the gate and of the step, and path prices.
            decisions: (H, D, K) splits of the hedges.
        """
        # Gate: mix the hedges with separate weights per demand.
        weights = (inputs.log_weights[:, None] + self.gate(inputs.gate)[..., 0]).softmax(0)
        splits = torch.einsum("hd,hdk->dk", weights, decisions)
        # Mirror descent step: multiply by exp(-step size * price), with a bounded exponent.
        exponent = -torch.einsum("dj,jdk->dk", self.step(inputs.step), inputs.prices)
        exponent = _MAX_EXPONENT * torch.tanh(exponent / _MAX_EXPONENT)
        growth = torch.exp(exponent)
        # A path that no hedge uses may grow, and without a correction all splits stay as they are.
        scaled_splits = inputs.live * (
            splits * growth + _MIN_GROWING_SPLIT * (growth - 1).clamp(min=0)
        )
        return (
            splits.sum(-1, keepdim=True)
            * scaled_splits
            / scaled_splits.sum(-1, keepdim=True).clamp(min=_MIN_DIVISOR)
        )


def gate_inputs(
    problem: Problem,
    recent: Float[Tensor, "T D"],
    scenario_sets: Sequence[Tensor],
    decisions: Float[Tensor, "H D K"],
    weights: Float[Tensor, " H"],
    recent_losses: Float[Tensor, " H"],
) -> GateInputs:
    """Compute the inputs of a HedgeGate: features of demands, hedges and pairs, and path prices.

    Args:
        problem: network and paths, B = 1; its demand is ignored.
        recent: (T, D) newest traffic matrices, oldest first, Gbit/s.
        scenario_sets: J sets of matrices (scenarios, D) in Gbit/s, of any sizes.
        decisions: (H, D, K) splits of the hedges.
        weights: (H,) weights of the mixture.
        recent_losses: (H,) recent losses of the hedges minus that of the mixture.
    """
    # Path prices under the mixture, and agreement of the scenarios, in each set of scenarios.
    mixture = torch.einsum("h,hdk->dk", weights, decisions)
    prices, agreements = zip(
        *(_path_prices(problem, mixture, scenarios) for scenarios in scenario_sets), strict=True
    )
    path_prices = torch.stack(prices)
    # Inputs of demands and the series, and of pairs of a hedge and a demand: price difference from
    # the mixture, and share of the demand on other paths.
    demand_inputs, series_inputs = _demand_inputs(recent)
    deviation = decisions - mixture
    distance = deviation.abs().sum(-1) / 2
    mean_demand = recent.mean(0)
    pair_inputs = torch.cat(
        [torch.einsum("hdk,jdk->hdj", deviation, path_prices), distance[..., None]], -1
    )
    # Inputs of hedges: weight, recent loss, and distance from the mixture.
    log_weights = weights.clamp(min=1e-6).log()
    mean_distance = (distance * mean_demand).sum(1) / mean_demand.sum().clamp(min=_MIN_DIVISOR)
    hedge_inputs = torch.stack(
        [
            _LOG_FACTOR * (log_weights - log_weights.mean()),
            _LOSS_FACTOR * recent_losses,
            _DISTANCE_FACTOR * mean_distance,
        ],
        -1,
    )
    # Concatenate the inputs of the gate, (H, D, F), and of the step, (D, G).
    num_hedges, num_demands = distance.shape
    shared_inputs = torch.cat([demand_inputs, series_inputs.expand(num_demands, -1)], -1)
    gate = torch.cat(
        [
            shared_inputs.expand(num_hedges, -1, -1),
            hedge_inputs[:, None].expand(-1, num_demands, -1),
            pair_inputs,
        ],
        -1,
    )
    step = torch.cat([shared_inputs, torch.stack(agreements).expand(num_demands, -1)], -1)
    limit = (-_MAX_INPUT, _MAX_INPUT)
    return GateInputs(
        gate.clamp(*limit),
        step.clamp(*limit),
        path_prices.clamp(*limit),
        log_weights,
        problem.path_mask[0].to(mixture),
    )


def _path_prices(problem: Problem, splits: Tensor, scenarios: Tensor) -> tuple[Tensor, Tensor]:
    """Compute relative path prices of one set of scenarios, and how much the scenarios agree.

    A link's price is the mean over the scenarios of softmax(utilisation / (0.05 largest)), over its
    capacity.

    Args:
        problem: network and paths, B = 1.
        splits: (D, K) splits of the mixture.
        scenarios: (scenarios, D) traffic matrices, Gbit/s.

    Returns:
        (D, K) path prices minus the mean price of their demand, over the mean price of all demand;
        and () the agreement of the scenarios: the largest, over the links, of the mean over the
        scenarios of utilisation over the scenario's largest utilisation; 1 if one link is the most
        utilised in all.
    """
    # Utilisations under the mixture, with each scenario as a matrix of one batch; share of each
    # link in the largest utilisations; prices of paths.
    scenario_problem = problem.rows(torch.zeros(len(scenarios), dtype=torch.long)).with_demand(
        scenarios
    )
    utilisation = scenario_problem.utilisation(splits.expand(len(scenarios), -1, -1))
    max_utilisation = utilisation.amax(1, keepdim=True).clamp(min=_MIN_DIVISOR)
    link_share = (utilisation / (_NEAR_LARGEST_SHARE * max_utilisation)).softmax(1).mean(0)
    path_price = problem.ops.path_sum((link_share * problem.inverse_capacity[0])[None])[0]
    # Mean price of each demand and of all demand, weighted by its splits and its mean rate.
    mean_price = (splits * path_price).sum(-1, keepdim=True)
    mean_demand = scenarios.mean(0)
    overall_mean_price = (mean_demand * mean_price[:, 0]).sum() / mean_demand.sum().clamp(
        min=_MIN_DIVISOR
    )
    agreement = (utilisation / max_utilisation).mean(0).amax()
    return (path_price - mean_price) / overall_mean_price.clamp(min=_MIN_DIVISOR), agreement


def _demand_inputs(recent: Tensor) -> tuple[Tensor, Tensor]:
    """Compute dimensionless statistics of recent traffic.

    Args:
        recent: (T, D) traffic matrices, oldest first, Gbit/s.

    Returns:
        (D, 6) inputs of each demand: log relative volume, coefficient of variation,
        autocorrelation, and newest, mean recent and largest recent rate relative to its mean; and
        (4,) inputs of the series: mean variation, mean autocorrelation, newest total, and log
        length.
    """
    # Rates relative to the mean of their demand: deviation from 1, variance, autocorrelation at a
    # lag of one matrix.
    mean_rate = recent.mean(0).clamp(min=_MIN_DIVISOR)
    relative_rate = recent / mean_rate
    deviation = relative_rate - 1
    variance = deviation.square().mean(0)
    autocorrelation = (deviation[1:] * deviation[:-1]).sum(0) / deviation[:-1].square().sum(
        0
    ).clamp(min=_MIN_DIVISOR)
    # Inputs of each demand.
    newest_rates = relative_rate[-_TREND_MATRICES:]
    demand_inputs = torch.stack(
        [
            _LOG_FACTOR * (mean_rate / mean_rate.mean()).log(),
            variance.sqrt(),
            autocorrelation,
            relative_rate[-1] - 1,
            newest_rates.mean(0) - 1,
            newest_rates.amax(0) - 1,
        ],
        -1,
    )
    # Inputs of the series, weighted by the mean rates.
    demand_share = mean_rate / mean_rate.sum()
    relative_total = recent.sum(1) / mean_rate.sum()
    series_inputs = torch.stack(
        [
            (demand_share * variance.sqrt()).sum(),
            (demand_share * autocorrelation).sum(),
            relative_total[-1] - 1,
            _LENGTH_FACTOR * torch.tensor(len(recent)).to(mean_rate).log(),
        ]
    )
    return demand_inputs, series_inputs


def _perceptron(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """Create a perceptron with two hidden layers of width ``hidden``, whose outputs are 0 before
    training.
    """
    last = nn.Linear(hidden, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last
    )
