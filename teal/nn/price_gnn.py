"""PriceGNN: a network that learns the dual update, and is tied to no topology.

State is a hidden vector and a price per link.  In each round

1. path_sum of the prices gives each path's profit, in mean values;
2. a softmax of profit / temperature over the paths of a demand, and rejecting it, gives splits;
3. link_sum gives each link's load, and how fast it would fall if its price rose, the elasticity
   sum of demand w (1 - w) / temperature over the paths through it (the diagonal of the Hessian of the smoothed dual);
4. a GRU cell and a small perceptron, the same for all links, move the price.

After the last round the splits are the answer.  A second, shorter pass of the same kind goes on from there to prices
that bound the optimum, which prices that steer a softmax do not do well.  Both start PDHG.

The number of rounds is a dial: links are told how far the pass is and how many rounds it has, temperatures are
interpolated, and training draws the numbers at random.

Under the balanced programs nothing is rejected, only ratios of prices and of loads count, and the network sees them
so: path prices over the mean cheapest one, loads over the largest utilisation.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import teal.nn.price_gnn_fused as fused
from teal.pathops.response import DEAD, Array, Responses
from teal.problem import Problem

_STATIC = 4  # features of a link that no round changes
_MOVING = 7  # and those that each does
_USED = 2  # what the second pass knows of the first
_TINY = 1e-4
_GAIN = 3.0  # of a move of the price, which is kept as the argument of a softplus
_ALL = 60.0  # worth over temperature at which nothing is rejected
_FIRST = -4.0  # of that argument: links start next to free


@dataclasses.dataclass(frozen=True)
class PriceGnnConfig:
    """Shapes of a PriceGNN.

    Attributes:
        hidden: numbers a link remembers.
        rounds: of the pass that allocates, unless a call says otherwise.
        bound_rounds: of the pass that bounds.
    """

    hidden: int = 32
    rounds: int = 8
    bound_rounds: int = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """What a round ends with.

    Attributes:
        splits: (B, D, K).
        prices: (B, E) value per Gbit/s.
        profit: (B, D, K) of a path in mean values; of a compiled round, which has no gradients, nothing of use.
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

    def forward(
        self, problem: Problem, rounds: int | None = None, bound_rounds: int | None = None
    ) -> tuple[list[Round], Tensor]:
        """The rounds, the last of which is the answer, and prices (B, E) for the bound.

        While no gradients are wanted, the last round alone.  ``problem`` must be in the network's floating-point type.

        Args:
            rounds: more for a better answer, fewer for an earlier one; None for the configuration's.
            bound_rounds: likewise.
        """
        count = self.config.rounds if rounds is None else rounds
        bounds = self.config.bound_rounds if bound_rounds is None else bound_rounds
        view = _View(problem)
        if view.fused and not torch.is_grad_enabled():
            return self._infer(view, problem, count, bounds)
        start = self.encoder(view.static)  # (B, E, H + 1)
        price, memory = start[..., 0], torch.tanh(start[..., 1:])
        done: list[Round] = []
        for number in range(count + 1):
            temperature = _between(self.log_temperature, number / max(1, count))
            now, told = view.respond(price, temperature)
            done = [*done, now] if torch.is_grad_enabled() else [now]
            if number < count:
                features = torch.cat([view.static, view.moving(price, told, number, count)], -1)
                memory, move = self.update(features, memory)
                price = price + _GAIN * move
        used = view.used(told.load).detach()
        price, memory = price.detach(), memory.detach()
        for number in range(bounds):
            _, told = view.respond(price, _between(self.bound_log_temperature, number / max(1, bounds - 1)))
            features = torch.cat([view.static, view.moving(price, told, number, bounds), used], -1)
            memory, move = self.bound_update(features, memory)
            price = price + _GAIN * move
        return done, view.prices(price) * view.unit

    def _infer(self, view: _View, problem: Problem, count: int, bounds: int) -> tuple[list[Round], Tensor]:
        """The same in compiled kernels, the last round alone."""
        start = self.encoder(view.static)
        argument, memory = start[..., 0].flatten().numpy().copy(), torch.tanh(start[..., 1:]).flatten(0, 1).numpy()
        links, weight = view.links(), np.empty_like(argument)
        shape = problem.capacity.shape
        splits = torch.zeros(problem.batch, *problem.paths.leaf.shape)
        fused.weigh(argument, links, weight)

        def answer(knots: Tensor, progress: float, into: Tensor | None = None) -> Array:
            sharpness = math.exp(-float(_between(knots, progress)))
            return view.responses.at(weight.reshape(shape), sharpness, None if into is None else into.numpy())

        nothing = np.empty((len(argument), 0), np.float32)
        weights = fused.weights_of(self.update.cell, self.update.move)
        for number in range(count):
            sums = answer(self.log_temperature, number / count)
            fused.update(sums, links, nothing, memory, argument, number, count, weights, _GAIN, _TINY, weight)
        load = torch.from_numpy(answer(self.log_temperature, 1.0 if count else 0.0, splits).sum(0)[:, ::2])
        temperature = _between(self.log_temperature, 1.0 if count else 0.0).exp()
        last = Round(splits, view.prices_of(argument), splits, temperature)
        used = view.used(load * view.inverse).flatten(0, 1).numpy()
        weights = fused.weights_of(self.bound_update.cell, self.bound_update.move)
        for number in range(bounds):
            sums = answer(self.bound_log_temperature, number / max(1, bounds - 1))
            fused.update(sums, links, used, memory, argument, number, bounds, weights, _GAIN, _TINY, weight)
        return [last], view.prices_of(argument)


def _between(knots: Tensor, progress: float) -> Tensor:
    """() linear between equally spaced values, the first at 0 and the last at 1."""
    place = progress * (len(knots) - 1)
    below = min(int(place), max(0, len(knots) - 2))
    return knots[below].lerp(knots[min(below + 1, len(knots) - 1)], place - below)


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
        self.fused = (
            not self._balanced and problem.demand.dtype == torch.float32 and problem.ops.backend.name == "numba"
        )
        self._live, self.inverse = problem.capacity > 0, problem.inverse_capacity
        self.unit: Tensor | float = 1.0 if self._balanced else problem.mean_value.clamp(min=1e-30)
        if self.fused:
            self.responses = Responses(problem.paths, problem.demand, problem.demand_value / self.unit)
        live, pressure = self._live, self._pressure()
        size = (problem.capacity / problem.mean_capacity.clamp(min=1e-30)).clamp(min=_TINY).log()
        known = [size, (pressure + _TINY).log() / 2, torch.ones_like(size)]
        known = [torch.where(live, k, 0) for k in known]
        self.static = torch.stack([*known, torch.full_like(size, float(self._balanced))], -1)  # (B, E, 4)

    def _pressure(self) -> Tensor:
        """(B, E) utilisation if every demand were spread evenly; under the balanced programs over the largest one."""
        problem = self._problem
        if self.fused:
            dead = torch.where(self._live, 0.0, DEAD).numpy()
            everything = Responses(problem.paths, problem.demand, torch.full_like(problem.demand_value, _ALL))
            load = torch.from_numpy(everything.at(dead, 1.0).sum(0)[:, ::2])
        else:
            load = problem.loads(problem.even_splits)
        pressure = load * self.inverse
        return pressure / pressure.amax(1, keepdim=True).clamp(min=1e-30) if self._balanced else pressure

    def links(self) -> fused.Links:
        """As the compiled rounds read them."""
        cost = (self._problem.link_cost / self.unit).expand_as(self.inverse)
        rows = (v.contiguous().flatten().numpy() for v in (self.inverse, self._live, cost))
        inverse, live, costs = rows
        return fused.Links(inverse, live, costs, self.static.flatten(0, 1).numpy())

    def prices_of(self, argument: Array) -> Tensor:
        """(B, E) value per Gbit/s, from (B E,) arguments."""
        return self.prices(torch.from_numpy(argument).view(self.inverse.shape)) * self.unit

    def used(self, load: Tensor) -> Tensor:
        """(B, E, 2) what the second pass knows of the utilisation (B, E) that the first one ended with."""
        return torch.stack([_log(load), torch.tanh(5 * (load - 1))], -1)

    def prices(self, argument: Tensor) -> Tensor:
        """(B, E) in mean values, 0 on a failed link."""
        return nn.functional.softplus(argument) * self._live

    def respond(self, argument: Tensor, log_temperature: Tensor) -> tuple[Round, _Told]:
        """What every demand does at these prices, and what links are told of it."""
        problem, prices, temperature = self._problem, self.prices(argument), log_temperature.exp()
        cost = self._ops.path_sum(prices)
        if self._balanced:
            cheapest = torch.where(self._mask, cost, torch.inf).amin(-1)
            rate = torch.where(problem.routable, problem.demand, 0)
            total = (rate * torch.where(rate > 0, cheapest, 0)).sum(1) / rate.sum(1).clamp(min=1e-30)
            cost = cost / total.clamp(min=1e-30)[:, None, None]
        profit = -cost if self._balanced else problem.path_value / self.unit - cost
        logits = torch.where(self._mask, profit / temperature, -torch.inf)
        if self._balanced:
            logits = torch.where(problem.routable[..., None], logits, 0)  # a softmax over nothing is NaN
            splits = logits.softmax(-1) * self._mask
        else:
            splits = torch.cat([logits, torch.zeros_like(logits[..., :1])], -1).softmax(-1)[..., :-1]
        flow = problem.flows(splits)
        sums = self._ops.link_sum(torch.stack([flow, flow * (1 - splits) / temperature], -1))
        return Round(splits, prices * self.unit, profit, temperature), self._told(*sums.unbind(-1))

    def _told(self, load: Tensor, elasticity: Tensor) -> _Told:
        """Over capacity; under the balanced programs over the largest utilisation too."""
        load, elasticity = load * self.inverse, elasticity * self.inverse
        if not self._balanced:
            return _Told(load, elasticity)
        worst = load.amax(1, keepdim=True).clamp(min=1e-30)
        return _Told(load / worst, elasticity / worst)

    def moving(self, argument: Tensor, told: _Told, number: int, count: int) -> Tensor:
        """(B, E, 7) what a link sees in round ``number`` of ``count``."""
        newton = (told.load - 1) / (told.elasticity + 0.05)
        return torch.stack(
            [
                (self.prices(argument) + 1e-3).log() / 3,
                _log(told.load),
                torch.tanh(told.load - 1),
                (told.elasticity + _TINY).log(),
                torch.tanh(5 * newton),
                torch.full_like(argument, number / count),
                torch.full_like(argument, 2 / count),
            ],
            -1,
        )


def _log(load: Tensor) -> Tensor:
    return (load + _TINY).log().clamp(-4, 4)
