"""The paths' part of a universal FlowGNN (:mod:`teal.nn.universal_flow_gnn`): weights, and passes
with gradients.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from teal.nn.policy import action_splits, bounded_profit
from teal.problem import Problem
from teal.problem.problem import mean_value

# Number of features of a path.
STATIC_FEATURES = 4
DYNAMIC_FEATURES = 4
UTILISATION_OFFSET = (
    1e-2  # added to utilisations before the logarithm: a link below a hundredth is an empty one
)


class PathEncoder(nn.Module):
    """The first state of a path from its features, and the weights of its first action.

    Args:
        width: F.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Linear(STATIC_FEATURES, width)
        self.action = _small(nn.Linear(width, 1))


class PathUpdate(nn.Module):
    """The weights of A, B, C and u in a layer.

    Args:
        width: F.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.demand = nn.Linear(width, width, bias=False)
        self.features = nn.Linear(DYNAMIC_FEATURES, width, bias=False)
        self.action = _small(nn.Linear(width, 1))


def _small(layer: nn.Linear) -> nn.Linear:
    """With small weights, so that profits alone decide the first actions."""
    with torch.no_grad():
        layer.weight.mul_(0.3)
        layer.bias.zero_()
    return layer


class PathPasses(Protocol):
    """One pass over all paths a layer.

    Attributes:
        even_load: (B, E) Gbit/s if every demand is split evenly over its live paths.
        full_load: (B, E) Gbit/s if every live path carried all of its demand.
        sums: (B, E, F + 2) of the last pass: load, elasticity, and the sum of demand g over the
            live paths through a link.
    """

    even_load: Tensor
    full_load: Tensor
    sums: Tensor

    @property
    def splits(self) -> Tensor:
        """(B, D, K) of the last pass."""
        ...

    def encode(
        self, weights: PathEncoder, price: Tensor, sharpness: Tensor, utilisation: Tensor
    ) -> None:
        """The first states, and the splits at these prices.

        Args:
            weights: weights of the encoder.
            price: (B, E) over the unit of the values.
            sharpness: () q.
            utilisation: (B, E) of even splits.
        """
        ...

    def update(
        self,
        weights: PathUpdate,
        price: Tensor,
        sharpness: Tensor,
        message: Tensor,
        utilisation: Tensor,
    ) -> None:
        """Advance the kept states by a layer, and set the splits at these prices and their sums.

        Symbols are those of :mod:`teal.nn.universal_flow_gnn`.

        Args:
            weights: weights of the layer.
            price: (B, E) of each link, over the mean value of a Gbit/s.
            sharpness: () q, of the choice among the paths.
            message: (B, E, F) V h, what each link's state says to the paths over it.
            utilisation: (B, E) of the last splits.
        """
        ...


class TorchPasses:
    """The passes in torch, differentiable: the reference.  See :class:`PathPasses`.

    Args:
        problem: B matrices.
        clamp: largest absolute value of an action.

    Attributes:
        actions: z (B, D, K) of every pass.
        state: g (B, D, K, F) after the last pass.
    """

    def __init__(self, problem: Problem, clamp: float) -> None:
        self.actions: list[Tensor] = []
        self._problem = problem
        self._ops = problem.ops
        self._clamp = clamp
        self._mask = problem.path_mask
        self._live = self._mask.unsqueeze(-1).to(problem.demand.dtype)
        self._count = self._live.sum(-2).clamp(min=1)  # (B, D, 1)
        self._hops = problem.ops.hops.to(problem.demand.dtype)
        self._carries_all = problem.demand_set.carries_all
        self.even_load = problem.loads(problem.even_splits)
        self.full_load = problem.loads(self._live.squeeze(-1))
        self.sums = self.state = self.splits = torch.zeros(0)
        if self._carries_all:
            self._value = torch.zeros_like(problem.path_value)
        else:
            self._value = problem.path_value / mean_value(problem).clamp(min=1e-30)

    def encode(
        self, weights: PathEncoder, price: Tensor, sharpness: Tensor, utilisation: Tensor
    ) -> None:
        """First states of the paths, as in :meth:`PathPasses.encode`."""
        features = torch.stack(
            [
                torch.log1p(
                    10 * self._problem.demand[..., None] / self._problem.bottleneck.clamp(min=1e-30)
                ),
                (self._ops.path_max(utilisation)[0] + UTILISATION_OFFSET).log(),
                self._value.expand(self._mask.shape) - (0.0 if self._carries_all else 1.0),
                (self._hops.clamp(min=1).log() - 2).expand(self._mask.shape),
            ],
            -1,
        )
        features = torch.where(self._mask[..., None], features, 0)
        self.state = nn.functional.silu(weights.features(features)) * self._live
        profit = self._profit(price)
        self._act(weights.action(self.state).squeeze(-1) + sharpness * profit, sharpness)

    def update(
        self,
        weights: PathUpdate,
        price: Tensor,
        sharpness: Tensor,
        message: Tensor,
        utilisation: Tensor,
    ) -> None:
        """States after a layer, as in :meth:`PathPasses.update`."""
        worst = self._ops.path_max(utilisation)[0]
        profit = self._profit(price)
        features = torch.stack(
            [(worst + UTILISATION_OFFSET).log(), 1 - 1 / worst.clamp(min=1), profit, self.splits],
            -1,
        )
        of_demand = weights.demand(self.state.sum(-2) / self._count).unsqueeze(-2)
        along = self._ops.path_sum(message) / self._hops.clamp(min=1)[..., None]
        change = nn.functional.silu(
            weights.own(self.state) + of_demand + along + weights.features(features)
        )
        self.state = (self.state + change) * self._live
        self._act(weights.action(self.state).squeeze(-1) + sharpness * profit, sharpness)

    def _profit(self, price: Tensor) -> Tensor:
        """(B, D, K) bounded profit of every path."""
        return bounded_profit(self._value - self._ops.path_sum(price))

    def _act(self, actions: Tensor, sharpness: Tensor) -> None:
        """Keep the actions, their splits and sums."""
        maximises_value = not self._carries_all
        self.splits = action_splits(
            actions, self._mask, maximises_value=maximises_value, clamp=self._clamp
        )
        flow = self._problem.flows(self.splits)
        demand = self._problem.demand[..., None, None]
        both = torch.stack([flow, sharpness * flow * (1 - self.splits)], -1)
        self.sums = self._ops.link_sum(torch.cat([both, demand * self.state], -1))
        self.actions.append(actions)
