"""PriceGNN: a graph neural network that learns the dual update, for any topology.

The state of a link is a price and a hidden vector (the memory).  In each round

1. path_sum of the prices gives each path's profit, in units of the mean demand value;
2. a softmax of profit / temperature over the paths of a demand and a reject option gives splits;
3. link_sum gives each link's load, and its elasticity, the decrease of the load per unit of price:
   the sum of demand w (1 - w) / temperature over the paths through the link, with splits w (the
   diagonal of the Hessian of the smoothed dual);
4. a GRU cell and a small perceptron, shared by all links, update memory and price.

The splits after the last round are the result of the allocating pass.  A second pass of this kind,
the bounding pass, starts from its prices and computes prices for the dual bound: prices that steer
a softmax give no tight bound.  Splits and prices together are a warm start of PDHG.

The number of rounds can be chosen at each call: link inputs contain the progress of the pass and
the number of rounds, temperatures are interpolated, and training draws random numbers of rounds.

In min-max programs nothing is rejected, and only ratios of prices and of loads matter: path prices
are divided by their mean over the cheapest paths, and loads by the largest utilisation.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import teal.nn.price_gnn_fused as fused
from teal.pathops.response import FAILED_WEIGHT, Responses
from teal.problem import Problem
from teal.problem.problem import mean_capacity, mean_value
from teal.runtime.arrays import Float32Array, FloatArray

# Numbers of features of a link: constant ones, those that change from round to round, and those of
# the bounding pass alone, from the result of the allocating pass.
_NUM_STATIC_FEATURES = 4
_NUM_ROUND_FEATURES = 7
_NUM_ALLOCATING_FEATURES = 2
# Added to utilisations and elasticities before the logarithm.
_LOG_OFFSET = 1e-4
# Factor from the perceptron's output to the change of the raw price, whose softplus is the price
# over the mean value.
_PRICE_GAIN = 3.0
# Bias of the first raw prices, so that prices start near 0.
_FIRST_RAW_PRICE = -4.0
# Demand value over temperature at which the rejected share rounds to 0.
_NOTHING_REJECTED = 60.0


@dataclasses.dataclass(frozen=True)
class PriceGnnConfig:
    """Shapes of a PriceGNN.

    Attributes:
        hidden: H, size of each link's recurrent state (the memory).
        rounds: default number of rounds of the allocating pass.
        bound_rounds: default number of rounds of the bounding pass.
    """

    hidden: int = 32
    rounds: int = 8
    bound_rounds: int = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """Splits and prices after a round of message passing.

    Attributes:
        splits: (B, D, K) share of each demand on each path.
        prices: (B, E) link prices, value per Gbit/s.
        profit: (B, D, K) profit of each path over the mean value; undefined for a compiled round,
            which has no gradients.
        temperature: () softmax temperature of the splits.
    """

    splits: Tensor
    prices: Tensor
    profit: Tensor
    temperature: Tensor


class _LinkResponse(NamedTuple):
    """Response of the demands to link prices.

    Attributes:
        utilisation: (B, E) load over capacity.
        elasticity: (B, E) decrease of the utilisation per unit of price.
    """

    utilisation: Tensor
    elasticity: Tensor


class PriceGNN(nn.Module):
    """Graph neural network that maps a traffic engineering problem to splits and link prices.

    A link has a price and a memory of H numbers.  In each round the demands respond to the prices
    by a softmax over their paths, and a GRU cell and a perceptron, shared by all links, update
    memory and price from the link's load.  An allocating pass of several rounds gives the splits, a
    bounding pass improves the prices for the dual bound.

    Args:
        config: shapes; None for the defaults.
    """

    def __init__(self, config: PriceGnnConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PriceGnnConfig()
        hidden = config.hidden
        # Small weights of the encoder's last layer: all first prices are near 0.
        last = nn.Linear(hidden, hidden + 1)
        with torch.no_grad():
            last.weight.mul_(0.3)
            last.bias[0] = _FIRST_RAW_PRICE
        self.encoder = nn.Sequential(nn.Linear(_NUM_STATIC_FEATURES, hidden), nn.SiLU(), last)
        num_features = _NUM_STATIC_FEATURES + _NUM_ROUND_FEATURES
        self.update = _Update(num_features, hidden)
        self.bound_update = _Update(num_features + _NUM_ALLOCATING_FEATURES, hidden)
        # First temperatures, over the mean value: falling from 0.2 to 0.03 in the allocating pass,
        # and from 0.03 to 0.015 in the bounding pass.
        self.log_temperature = nn.Parameter(
            torch.linspace(math.log(0.2), math.log(0.03), config.rounds + 1)
        )
        self.bound_log_temperature = nn.Parameter(
            torch.linspace(math.log(0.03), math.log(0.015), max(1, config.bound_rounds))
        )

    def with_rounds(self, rounds: int, bound_rounds: int) -> PriceGNN:
        """Return a copy of the model with other default numbers of rounds.

        The learned temperatures, one per round, are interpolated.

        Args:
            rounds: number of rounds of the allocating pass.
            bound_rounds: number of rounds of the bounding pass.
        """
        resized = PriceGNN(
            dataclasses.replace(self.config, rounds=rounds, bound_rounds=bound_rounds)
        )
        weights = self.state_dict()
        # Interpolate the log temperatures of both passes at evenly spaced progress.
        for name in ("log_temperature", "bound_log_temperature"):
            positions = torch.linspace(0, 1, len(resized.state_dict()[name])).tolist()
            weights[name] = torch.stack(
                [_interpolate(weights[name], position) for position in positions]
            )
        resized.load_state_dict(weights)
        return resized

    def forward(
        self, problem: Problem, rounds: int | None = None, bound_rounds: int | None = None
    ) -> tuple[list[Round], Tensor]:
        """Compute splits (allocating pass), then prices for the dual bound (bounding pass).

        Args:
            problem: B matrices, in the floating-point type of the weights.
            rounds: number of rounds of the allocating pass: more rounds give a better allocation;
                None for the configured number.
            bound_rounds: number of rounds of the bounding pass; None for the configured number.

        Returns:
            All rounds of the allocating pass, the last one with its result (without gradients only
            the last one), and (B, E) prices for the dual bound, value per Gbit/s.
        """
        num_rounds = self.config.rounds if rounds is None else rounds
        num_bound_rounds = self.config.bound_rounds if bound_rounds is None else bound_rounds
        relative_problem = _RelativeProblem(problem)
        if relative_problem.has_kernels and not torch.is_grad_enabled():
            return self._forward_compiled(relative_problem, problem, num_rounds, num_bound_rounds)
        # Encode the links, (B, E, H + 1).
        encoded = self.encoder(relative_problem.static)
        raw_price = encoded[..., 0]
        memory = torch.tanh(encoded[..., 1:])
        # Allocating pass: demands respond to the prices, links update memory and price.
        round_results: list[Round] = []
        for round_index in range(num_rounds + 1):
            temperature = _interpolate(self.log_temperature, round_index / max(1, num_rounds))
            round_result, response = relative_problem.respond(raw_price, temperature)
            round_results = (
                [*round_results, round_result] if torch.is_grad_enabled() else [round_result]
            )
            # The last round only computes splits; the bounding pass starts from its prices.
            if round_index < num_rounds:
                features = torch.cat(
                    [
                        relative_problem.static,
                        relative_problem.round_features(
                            raw_price, response, round_index, num_rounds
                        ),
                    ],
                    -1,
                )
                memory, price_change = self.update(features, memory)
                raw_price = raw_price + _PRICE_GAIN * price_change
        # Bounding pass: improve the prices alone, without gradients into the allocating pass.
        raw_price = self._bounding_pass(
            relative_problem,
            relative_problem.allocating_features(response.utilisation).detach(),
            raw_price.detach(),
            memory.detach(),
            num_bound_rounds,
        )
        return round_results, relative_problem.prices(raw_price) * relative_problem.mean_value

    def _bounding_pass(
        self,
        relative_problem: _RelativeProblem,
        allocating_features: Tensor,
        raw_price: Tensor,
        memory: Tensor,
        num_bound_rounds: int,
    ) -> Tensor:
        """Return the raw prices (B, E) after the rounds of the bounding pass.

        A price is the softplus of its raw price.

        Args:
            relative_problem: the problem in relative units.
            allocating_features: (B, E, 2) features of each link from the allocating pass.
            raw_price: (B, E) raw prices after the allocating pass.
            memory: (B, E, H) memory of the links after the allocating pass.
            num_bound_rounds: number of rounds.
        """
        for round_index in range(num_bound_rounds):
            temperature = _interpolate(
                self.bound_log_temperature, round_index / max(1, num_bound_rounds - 1)
            )
            _, response = relative_problem.respond(raw_price, temperature)
            round_features = relative_problem.round_features(
                raw_price, response, round_index, num_bound_rounds
            )
            features = torch.cat([relative_problem.static, round_features, allocating_features], -1)
            memory, price_change = self.bound_update(features, memory)
            raw_price = raw_price + _PRICE_GAIN * price_change
        return raw_price

    def _forward_compiled(
        self,
        relative_problem: _RelativeProblem,
        problem: Problem,
        num_rounds: int,
        num_bound_rounds: int,
    ) -> tuple[list[Round], Tensor]:
        """Run the forward pass in compiled kernels, without gradients.

        Args:
            relative_problem: the problem in relative units.
            problem: B matrices, float32 on the CPU.
            num_rounds: number of rounds of the allocating pass.
            num_bound_rounds: number of rounds of the bounding pass.

        Returns:
            The last round of the allocating pass, and (B, E) prices for the dual bound.
        """
        # Encode the links: raw prices (B E,) and memory (B E, H).
        encoded = self.encoder(relative_problem.static)
        raw_price = encoded[..., 0].flatten().numpy().copy()
        memory = torch.tanh(encoded[..., 1:]).flatten(0, 1).numpy()
        links = relative_problem.link_inputs()
        # (B, E) link weights, price plus cost over the mean value.
        weight = np.empty(tuple(problem.capacity.shape), np.float32)
        splits = torch.zeros(problem.batch, *problem.paths.leaf.shape)
        fused.compute_weights(raw_price, links, weight.reshape(-1))

        def run_pass(
            update: _Update, temperatures: Tensor, progress: FloatArray, features: Float32Array
        ) -> None:
            """Run the rounds of a pass; memory, prices and weights of the links change in place."""
            fused.make_rounds(
                _sharpness(temperatures, progress),
                relative_problem.responses,
                links,
                features,
                memory,
                raw_price,
                fused.kernel_parameters(update.cell, update.move),
                fused.Constants(_PRICE_GAIN, _LOG_OFFSET),
                weight,
            )

        # Allocating pass, then the splits and loads at its last prices.
        no_features = np.empty((len(raw_price), 0), np.float32)
        run_pass(
            self.update,
            self.log_temperature,
            np.arange(num_rounds) / max(1, num_rounds),
            no_features,
        )
        # Entries 2 e of the response are loads, 2 e + 1 elasticities.
        last_progress = 1.0 if num_rounds else 0.0
        temperature = _interpolate(self.log_temperature, last_progress).exp()
        load = torch.from_numpy(
            relative_problem.responses.at(weight, 1 / float(temperature), splits.numpy()).sum(0)[
                :, ::2
            ]
        )
        # The splits stand in for the profits, which are undefined here.
        result = Round(splits, relative_problem.link_prices(raw_price), splits, temperature)
        # Bounding pass, with features of the allocation.
        features = (
            relative_problem.allocating_features(load * relative_problem.inverse_capacity)
            .flatten(0, 1)
            .numpy()
        )
        progress = np.arange(num_bound_rounds) / max(1, num_bound_rounds - 1)
        run_pass(self.bound_update, self.bound_log_temperature, progress, features)
        return [result], relative_problem.link_prices(raw_price)


def _sharpness(log_temperatures: Tensor, progress: FloatArray) -> Float32Array:
    """Return 1 / temperature at each progress in [0, 1], (R,) float32.

    Log temperatures are interpolated linearly between equally spaced knots.

    Args:
        log_temperatures: (knots,) log temperatures from progress 0 to 1.
        progress: (R,) progress of each round.
    """
    knots = log_temperatures.detach().numpy().astype(np.float64)
    knot_progress = np.linspace(0, 1, len(knots))
    return np.exp(-np.interp(progress, knot_progress, knots)).astype(np.float32)


def _interpolate(knots: Tensor, progress: float) -> Tensor:
    """Interpolate linearly between equally spaced knots, with gradients.

    Args:
        knots: (n,) values, the first at progress 0 and the last at progress 1.
        progress: in [0, 1].
    """
    # Position in units of the distance of two knots, and the last knot before it.
    position = progress * (len(knots) - 1)
    lower_knot = min(int(position), max(0, len(knots) - 2))
    return knots[lower_knot].lerp(knots[min(lower_knot + 1, len(knots) - 1)], position - lower_knot)


class _Update(nn.Module):
    """GRU cell and perceptron that update a link's memory and raw price, shared by all links.

    Args:
        features: F, number of features of a link.
        hidden: H, size of the memory.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(features, hidden)
        last = nn.Linear(hidden, 1)
        # Before training, prices do not change.
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.move = nn.Sequential(nn.Linear(hidden + features, hidden), nn.SiLU(), last)

    def forward(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next memory (B, E, H) and the change of the raw price (B, E).

        Args:
            features: (B, E, F) features of the links.
            memory: (B, E, H) last memory of the links.
        """
        # One row per matrix and link.
        feature_rows = features.flatten(0, 1)
        memory_rows = memory.flatten(0, 1)
        memory_rows = self.cell(feature_rows, memory_rows)
        price_change = self.move(torch.cat([memory_rows, feature_rows], -1))
        return memory_rows.view_as(memory), price_change.view(memory.shape[:2])


class _RelativeProblem:
    """A problem in relative units, so that networks of all sizes have features of order 1.

    Values and prices are over the mean demand value, loads over capacities; in a min-max program
    (which must carry all demand) loads are over the largest utilisation.

    Args:
        problem: B matrices.

    Attributes:
        has_kernels: whether the compiled kernels support the problem.
        inverse_capacity: (B, E) 1 / capacity, 0 for a failed link.
        mean_value: unit of values and prices; 1 in a min-max program.
        static: (B, E, 4) link features that do not change from round to round: log relative
            capacity, log utilisation under even splits, whether the link is live, whether the
            program is balanced.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._ops = problem.ops
        self._carries_all = problem.demand_set.carries_all
        self.has_kernels = (
            not self._carries_all
            and problem.demand.dtype == torch.float32
            and problem.ops.backend.name == "numba"
        )
        self._live = problem.capacity > 0
        self.inverse_capacity = problem.inverse_capacity
        # Unit of values and prices; the min-max programs have no values.
        self.mean_value: Tensor | float = (
            1.0 if self._carries_all else mean_value(problem).clamp(min=1e-30)
        )
        if self.has_kernels:
            self.responses = Responses(
                problem.paths, problem.demand, problem.demand_value / self.mean_value
            )
        # Features that do not change; the factor 1 / 2 brings the log utilisation to order 1.
        live = self._live
        even_utilisation = self._even_utilisation()
        log_capacity = (
            (problem.capacity / mean_capacity(problem).clamp(min=1e-30))
            .clamp(min=_LOG_OFFSET)
            .log()
        )
        features = [
            log_capacity,
            (even_utilisation + _LOG_OFFSET).log() / 2,
            torch.ones_like(log_capacity),
        ]
        features = [torch.where(live, feature, 0) for feature in features]
        self.static = torch.stack(
            [*features, torch.full_like(log_capacity, float(self._carries_all))], -1
        )

    def _even_utilisation(self) -> Tensor:
        """Return the utilisation of every link under even splits, (B, E); in a min-max program
        over the largest one.
        """
        problem = self._problem
        if self.has_kernels:
            # A softmax at equal prices and a value far above them splits evenly over live paths.
            # Entries 2 e of the result are loads, 2 e + 1 elasticities.
            weight = torch.where(self._live, 0.0, FAILED_WEIGHT).numpy()
            nothing_rejected = torch.full_like(problem.demand_value, _NOTHING_REJECTED)
            even_responses = Responses(problem.paths, problem.demand, nothing_rejected)
            load = torch.from_numpy(even_responses.at(weight, 1.0).sum(0)[:, ::2])
        else:
            load = problem.loads(problem.even_splits)
        utilisation = load * self.inverse_capacity
        return (
            utilisation / utilisation.amax(1, keepdim=True).clamp(min=1e-30)
            if self._carries_all
            else utilisation
        )

    def link_inputs(self) -> fused.LinkInputs:
        """Return inverse capacities, live flags, costs and static features for the compiled rounds,
        one row per matrix and link.
        """
        cost = (self._problem.link_cost / self.mean_value).expand_as(self.inverse_capacity)
        rows = (
            values.contiguous().flatten().numpy()
            for values in (self.inverse_capacity, self._live, cost)
        )
        inverse_capacity, live, costs = rows
        return fused.LinkInputs(inverse_capacity, live, costs, self.static.flatten(0, 1).numpy())

    def link_prices(self, raw_price: Float32Array) -> Tensor:
        """Convert raw prices (B E,) to prices (B, E), value per Gbit/s."""
        return (
            self.prices(torch.from_numpy(raw_price).view(self.inverse_capacity.shape))
            * self.mean_value
        )

    def allocating_features(self, utilisation: Tensor) -> Tensor:
        """Return the link features (B, E, 2) that the bounding pass gets from the allocating pass.

        They are the log utilisation, and the bounded excess tanh(5 (utilisation - 1)).

        Args:
            utilisation: (B, E) utilisation after the allocating pass.
        """
        return torch.stack([_clamped_log(utilisation), torch.tanh(5 * (utilisation - 1))], -1)

    def prices(self, raw_price: Tensor) -> Tensor:
        """Return softplus of raw prices (B, E), prices over the mean value; 0 on a failed link."""
        return nn.functional.softplus(raw_price) * self._live

    def respond(self, raw_price: Tensor, log_temperature: Tensor) -> tuple[Round, _LinkResponse]:
        """Compute the softmax response of all demands to link prices, and the link loads.

        With the temperature T, path k of demand d gets the share w[d, k] = exp(profit[d, k] / T) /
        (1 + sum_j exp(profit[d, j] / T)).  The 1 is the reject option; min-max programs have none.
        The elasticity of a link is the sum of demand w (1 - w) / T over the paths through it.

        Args:
            raw_price: (B, E) arguments of the softplus that gives the prices.
            log_temperature: () logarithm of T.

        Returns:
            Splits and prices of the round, and utilisation and elasticity of the links.
        """
        problem = self._problem
        prices = self.prices(raw_price)
        temperature = log_temperature.exp()
        path_price = self._ops.path_sum(prices)
        # In a min-max program (carries_all) prices are relative to the mean price of the cheapest
        # paths, weighted by demand.
        if self._carries_all:
            cheapest_price = problem.cheapest_path_cost(path_price, unroutable=torch.inf)
            rate = problem.routable_demand
            mean_cheapest_price = (rate * torch.where(rate > 0, cheapest_price, 0)).sum(
                1
            ) / rate.sum(1).clamp(min=1e-30)
            path_price = path_price / mean_cheapest_price.clamp(min=1e-30)[:, None, None]
        profit = (
            -path_price if self._carries_all else problem.path_value / self.mean_value - path_price
        )
        # Softmax over the paths and, where demand may be rejected, a reject option (logit 0).
        logits = torch.where(problem.path_mask, profit / temperature, -torch.inf)
        if self._carries_all:
            # A softmax over no path would be NaN.
            logits = torch.where(problem.routable[..., None], logits, 0)
            splits = logits.softmax(-1) * problem.path_mask
        else:
            splits = torch.cat([logits, torch.zeros_like(logits[..., :1])], -1).softmax(-1)[
                ..., :-1
            ]
        # Load and elasticity of the links.
        flow = problem.flows(splits)
        link_sums = self._ops.link_sum(torch.stack([flow, flow * (1 - splits) / temperature], -1))
        return Round(splits, prices * self.mean_value, profit, temperature), self._link_response(
            *link_sums.unbind(-1)
        )

    def _link_response(self, load: Tensor, elasticity: Tensor) -> _LinkResponse:
        """Divide load and elasticity (B, E) by the capacities, in a min-max program also by the
        largest utilisation.
        """
        utilisation = load * self.inverse_capacity
        elasticity = elasticity * self.inverse_capacity
        if not self._carries_all:
            return _LinkResponse(utilisation, elasticity)
        max_utilisation = utilisation.amax(1, keepdim=True).clamp(min=1e-30)
        return _LinkResponse(utilisation / max_utilisation, elasticity / max_utilisation)

    def round_features(
        self, raw_price: Tensor, response: _LinkResponse, round_index: int, num_rounds: int
    ) -> Tensor:
        """Return the link features (B, E, 7) that change from round to round.

        Log price, log utilisation, excess utilisation, log elasticity, Newton step of the price,
        progress of the pass, and step of the progress.

        Args:
            raw_price: (B, E) arguments of the softplus that gives the prices.
            response: utilisation and elasticity of the links.
            round_index: index of the round.
            num_rounds: number of rounds of the pass.
        """
        # Price change that would bring the utilisation to 1.  The offsets 0.05 and 0.001 avoid a
        # division by 0 and the log of 0; factors and tanh keep the features of order 1.
        newton_step = (response.utilisation - 1) / (response.elasticity + 0.05)
        return torch.stack(
            [
                (self.prices(raw_price) + 1e-3).log() / 3,
                _clamped_log(response.utilisation),
                torch.tanh(response.utilisation - 1),
                (response.elasticity + _LOG_OFFSET).log(),
                torch.tanh(5 * newton_step),
                torch.full_like(raw_price, round_index / num_rounds),
                torch.full_like(raw_price, 2 / num_rounds),
            ],
            -1,
        )


def _clamped_log(utilisation: Tensor) -> Tensor:
    """Return the logarithm of each utilisation plus 1e-4, clamped to [-4, 4]."""
    return (utilisation + _LOG_OFFSET).log().clamp(-4, 4)
