"""PriceGNN: a network that learns the dual update, and is tied to no topology.

State is a hidden vector and a price per link.  In each round

1. path_sum of the prices gives each path's profit, in mean values;
2. a softmax of profit / temperature over the paths of a demand, and rejecting it, gives splits;
3. link_sum gives each link's load, and how fast it would fall if its price rose, the elasticity
   sum of demand w (1 - w) / temperature over the paths through it (the diagonal of the Hessian of the smoothed dual);
4. a GRU cell and a small perceptron, the same for all links, move the price.

After the last round the splits are the answer.  A second, shorter pass of the same kind goes on from there to prices
that bound the optimum, which prices that steer a softmax do not do well.  Both start PDHG.

Under the balanced programs nothing is rejected, only ratios of prices and of loads count, and the network sees them
so: path prices over the mean cheapest one, loads over the largest utilisation.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from teal.pathops.response import DEAD, respond
from teal.problem import Problem

_STATIC = 4  # features of a link that no round changes
_MOVING = 6  # and those that each does
_USED = 2  # what the second pass knows of the first
_TINY = 1e-4
_GAIN = 3.0  # of a move of the price, which is kept as the argument of a softplus
_FIRST = -4.0  # of that argument: links start next to free


@dataclasses.dataclass(frozen=True)
class PriceGnnConfig:
    """Shapes of a PriceGNN.

    Attributes:
        hidden: numbers a link remembers.
        rounds: of the pass that allocates.
        bound_rounds: of the pass that bounds.
    """

    hidden: int = 24
    rounds: int = 8
    bound_rounds: int = 5


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """What a round ends with.

    Attributes:
        splits: (B, D, K).
        prices: (B, E) value per Gbit/s.
        profit: (B, D, K) of a path in mean values; in a fused round, which has no gradients, nothing of use.
        temperature: () of the softmax.
    """

    splits: Tensor
    prices: Tensor
    profit: Tensor
    temperature: Tensor


class _Told(NamedTuple):
    """(B, E) load over capacity, and how fast it falls as the price rises."""

    load: Tensor
    elasticity: Tensor


class PriceGNN(nn.Module):
    """See the module."""

    def __init__(self, config: PriceGnnConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PriceGnnConfig()
        hidden = config.hidden
        last = nn.Linear(hidden, hidden + 1)
        with torch.no_grad():
            last.weight.mul_(0.3)
            last.bias[0] = _FIRST
        self.encoder = nn.Sequential(nn.Linear(_STATIC, hidden), nn.SiLU(), last)
        self.update = _Update(_STATIC + _MOVING, hidden)
        self.bound_update = _Update(_STATIC + _MOVING + _USED, hidden)
        self.log_temperature = nn.Parameter(torch.linspace(math.log(0.2), math.log(0.03), config.rounds + 1))
        self.bound_log_temperature = nn.Parameter(
            torch.linspace(math.log(0.03), math.log(0.015), max(1, config.bound_rounds))
        )

    def forward(self, problem: Problem) -> tuple[list[Round], Tensor]:
        """The rounds, the last of which is the answer, and prices (B, E) for the bound.

        While no gradients are wanted, the last round alone.  ``problem`` must be in the network's floating-point type.
        """
        view = _View(problem)
        start = self.encoder(view.static)  # (B, E, H + 1)
        price, memory = start[..., 0], torch.tanh(start[..., 1:])
        rounds, count = [], self.config.rounds
        for number in range(count + 1):
            now, told = view.respond(price, self.log_temperature[number], last=number == count)
            if now is not None:
                rounds.append(now)
            if number < count:
                progress = torch.full_like(price, number / count)
                features = torch.cat([view.static, view.moving(price, told, progress)], -1)
                memory, move = self.update(features, memory)
                price = price + _GAIN * move
        used = torch.stack([_log(told.load), torch.tanh(5 * (told.load - 1))], -1).detach()
        price, memory = price.detach(), memory.detach()
        for number in range(self.config.bound_rounds):
            _, told = view.respond(price, self.bound_log_temperature[number])
            progress = torch.full_like(price, number / self.config.bound_rounds)
            features = torch.cat([view.static, view.moving(price, told, progress), used], -1)
            memory, move = self.bound_update(features, memory)
            price = price + _GAIN * move
        return rounds, view.prices(price) * view.unit


class _Update(nn.Module):
    """A link's next memory and the move of its price."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(features, hidden)
        last = nn.Linear(hidden, 1)
        nn.init.zeros_(last.weight)  # prices stay where they are until something is learnt
        nn.init.zeros_(last.bias)
        self.move = nn.Sequential(nn.Linear(hidden + features, hidden), nn.SiLU(), last)

    def forward(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(B, E, F), (B, E, H) -> (B, E, H), (B, E)."""
        rows, kept = features.flatten(0, 1), memory.flatten(0, 1)
        kept = self.cell(rows, kept)
        return kept.view_as(memory), self.move(torch.cat([kept, rows], -1)).view(memory.shape[:2])


class _View:
    """A problem as the network sees it: everything in units in which networks of all sizes are alike."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._ops, self._mask = problem, problem.ops, problem.path_mask
        self._balanced = problem.objective.is_balanced
        self._fused = not self._balanced and problem.demand.device.type == "cpu" and problem.ops.backend.name == "numba"
        self._live, self._inverse = problem.capacity > 0, problem.inverse_capacity
        self.unit: Tensor | float = 1.0 if self._balanced else problem.mean_value.clamp(min=1e-30)
        self._value = torch.zeros_like(problem.path_value) if self._balanced else problem.path_value / self.unit
        live, pressure = self._live, problem.pressure
        if self._balanced:
            pressure = pressure / pressure.amax(1, keepdim=True).clamp(min=1e-30)
        size = (problem.capacity / problem.mean_capacity.clamp(min=1e-30)).clamp(min=_TINY).log()
        known = [size, (pressure + _TINY).log() / 2, torch.ones_like(size)]
        known = [torch.where(live, k, 0) for k in known]
        self.static = torch.stack([*known, torch.full_like(size, float(self._balanced))], -1)  # (B, E, 4)

    def prices(self, argument: Tensor) -> Tensor:
        """(B, E) in mean values, 0 on a failed link."""
        return nn.functional.softplus(argument) * self._live

    def respond(self, argument: Tensor, log_temperature: Tensor, *, last: bool = False) -> tuple[Round | None, _Told]:
        """What every demand does at these prices, and what links are told of it.

        Fused where nobody asks for gradients; splits are then left out of all rounds but the ``last``.
        """
        if self._fused and not torch.is_grad_enabled():
            return self._respond_fused(argument, log_temperature, last)
        problem, prices, temperature = self._problem, self.prices(argument), log_temperature.exp()
        cost = self._ops.path_sum(prices)
        if self._balanced:
            cheapest = torch.where(self._mask, cost, torch.inf).amin(-1)
            rate = torch.where(problem.routable, problem.demand, 0)
            total = (rate * torch.where(rate > 0, cheapest, 0)).sum(1) / rate.sum(1).clamp(min=1e-30)
            cost = cost / total.clamp(min=1e-30)[:, None, None]
        profit = self._value - cost
        logits = torch.where(self._mask, profit / temperature, -torch.inf)
        if self._balanced:
            logits = torch.where(problem.routable[..., None], logits, 0)  # a softmax over nothing is NaN
            splits = logits.softmax(-1) * self._mask
        else:
            splits = torch.cat([logits, torch.zeros_like(logits[..., :1])], -1).softmax(-1)[..., :-1]
        flow = problem.flows(splits)
        sums = self._ops.link_sum(torch.stack([flow, flow * (1 - splits) / temperature], -1))
        return Round(splits, prices * self.unit, profit, temperature), self._told(*sums.unbind(-1))

    def _respond_fused(self, argument: Tensor, log_temperature: Tensor, last: bool) -> tuple[Round | None, _Told]:
        problem, prices, temperature = self._problem, self.prices(argument), log_temperature.exp()
        weight = torch.where(self._live, prices + problem.link_cost / self.unit, DEAD)
        worth = problem.demand_value / self.unit
        load, elasticity, splits = respond(
            problem.paths, weight, problem.demand, worth, 1 / float(temperature), want_splits=last
        )
        told = self._told(load, elasticity)
        return None if splits is None else Round(splits, prices * self.unit, splits, temperature), told

    def _told(self, load: Tensor, elasticity: Tensor) -> _Told:
        """Over capacity; under the balanced programs over the largest utilisation too."""
        load, elasticity = load * self._inverse, elasticity * self._inverse
        if not self._balanced:
            return _Told(load, elasticity)
        worst = load.amax(1, keepdim=True).clamp(min=1e-30)
        return _Told(load / worst, elasticity / worst)

    def moving(self, argument: Tensor, told: _Told, progress: Tensor) -> Tensor:
        """(B, E, 6) what a link sees in a round."""
        newton = (told.load - 1) / (told.elasticity + 0.05)
        return torch.stack(
            [
                (self.prices(argument) + 1e-3).log() / 3,
                _log(told.load),
                torch.tanh(told.load - 1),
                (told.elasticity + _TINY).log(),
                torch.tanh(5 * newton),
                progress,
            ],
            -1,
        )


def _log(load: Tensor) -> Tensor:
    return (load + _TINY).log().clamp(-4, 4)
