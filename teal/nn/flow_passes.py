"""Path layers of a universal FlowGNN (:mod:`teal.nn.universal_flow_gnn`): weights, and passes over
the paths in torch, with gradients.

Main classes: :class:`PathEncoder` and :class:`PathUpdate` (weights), :class:`PathPasses` (interface
of the passes), :class:`TorchPasses` (differentiable implementation).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from teal.nn.policy import action_splits, bounded_profit
from teal.problem import Problem
from teal.problem.problem import mean_value

# Features of a path in the encoder and in a layer.
STATIC_FEATURES = 4
DYNAMIC_FEATURES = 4
# Added to utilisations before the logarithm, so that links with a utilisation far below 1% look
# alike.
UTILISATION_OFFSET = 1e-2


class PathEncoder(nn.Module):
    """Weights of the first state of a path, from its features, and of its first action.

    Args:
        width: F, numbers of a path state.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Linear(STATIC_FEATURES, width)
        self.action = _small(nn.Linear(width, 1))


class PathUpdate(nn.Module):
    """Weights of a layer: a path's state is updated from itself, its demand and its features.

    g += silu(A g + B (mean g of the demand's paths) + (mean message of the path's links) + C x);
    the action is u . g plus a multiple of the profit.

    Args:
        width: F, numbers of a path state.

    Attributes:
        own: A and the bias, of the path's state g.
        demand: B, of the mean state of the demand's paths.
        features: C, of the path's features x.
        action: u and its bias, of the action.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.demand = nn.Linear(width, width, bias=False)
        self.features = nn.Linear(DYNAMIC_FEATURES, width, bias=False)
        self.action = _small(nn.Linear(width, 1))


def _small(layer: nn.Linear) -> nn.Linear:
    """Scale the weights of a layer down, so that profits dominate the first actions."""
    with torch.no_grad():
        layer.weight.mul_(0.3)
        layer.bias.zero_()
    return layer


class PathPasses(Protocol):
    """Passes over all paths of a problem: one for the encoder, one per layer.

    A pass updates the path states g, the splits, and the sums over the links.  B matrices, D
    demands, K paths per demand, E links, F numbers per path state.

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
        """(B, D, K) splits of the last pass."""
        ...

    def encode(
        self, weights: PathEncoder, price: Tensor, sharpness: Tensor, utilisation: Tensor
    ) -> None:
        """Set the first states of the paths, their splits at these prices, and the link sums.

        Args:
            weights: weights of the encoder.
            price: (B, E) link prices, over the mean value (over the mean path price in a min-max
                program).
            sharpness: () q, factor of the profit in an action.
            utilisation: (B, E) utilisation of even splits.
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
        """Advance the path states by one layer; set their splits at these prices and the link sums.

        g += silu(A g + B (mean g of the demand's paths) + (mean message of the path's links) + C x)

        Args:
            weights: weights A, B, C of the layer, and of the action.
            price: (B, E) link prices, over the mean value (over the mean path price in a min-max
                program).
            sharpness: () q, factor of the profit in an action.
            message: (B, E, F) message of each link to its paths, a linear map of its state.
            utilisation: (B, E) utilisation of the last splits.
        """
        ...


class TorchPasses:
    """Differentiable passes over all paths in torch, the reference (:class:`PathPasses`).

    Args:
        problem: B matrices.
        clamp: largest absolute value of an action.

    Attributes:
        actions: (B, D, K) actions z of every pass.
        state: (B, D, K, F) path states g after the last pass; 0 for a path with a failed link.
        splits: (B, D, K) splits of the last pass.
        even_load: (B, E) load if every demand is split evenly over its live paths, Gbit/s.
        full_load: (B, E) load if every live path carried all of its demand, Gbit/s.
        sums: (B, E, F + 2) of the last pass: load, elasticity, and sum of demand g over the paths
            through each link.
    """

    def __init__(self, problem: Problem, clamp: float) -> None:
        self.actions: list[Tensor] = []
        self._problem = problem
        self._ops = problem.ops
        self._clamp = clamp
        self._mask = problem.path_mask
        # (B, D, K, 1) 1 for a live path, else 0; (B, D, 1) number of live paths; (D, K) links.
        self._live_factor = self._mask.unsqueeze(-1).to(problem.demand.dtype)
        self._num_live_paths = self._live_factor.sum(-2).clamp(min=1)
        self._hops = problem.ops.hops.to(problem.demand.dtype)
        self._carries_all = problem.demand_set.carries_all
        self.even_load = problem.loads(problem.even_splits)
        self.full_load = problem.loads(self._live_factor.squeeze(-1))
        self.sums = self.state = self.splits = torch.zeros(0)
        # (D, K) path values over the mean value; 0 in a min-max program.
        if self._carries_all:
            self._path_value = torch.zeros_like(problem.path_value)
        else:
            self._path_value = problem.path_value / mean_value(problem).clamp(min=1e-30)

    def encode(
        self, weights: PathEncoder, price: Tensor, sharpness: Tensor, utilisation: Tensor
    ) -> None:
        """Set first states g = silu(C x + bias), actions (softmax logits), splits and link sums.

        The features x are log(1 + 10 demand / smallest capacity), log of the largest utilisation,
        value (minus 1 unless balanced), and log(hops) - 2; C are the weights.

        Args:
            weights: weights of the encoder.
            price: (B, E) link prices, over the mean value (over the mean path price in a min-max
                program).
            sharpness: () q, factor of the profit in an action.
            utilisation: (B, E) utilisation of even splits.
        """
        # The constants 10, 1 and 2 scale and centre the features.
        features = torch.stack(
            [
                torch.log1p(
                    10 * self._problem.demand[..., None] / self._problem.bottleneck.clamp(min=1e-30)
                ),
                (self._ops.path_max(utilisation)[0] + UTILISATION_OFFSET).log(),
                self._path_value.expand(self._mask.shape) - (0.0 if self._carries_all else 1.0),
                (self._hops.clamp(min=1).log() - 2).expand(self._mask.shape),
            ],
            -1,
        )
        features = torch.where(self._mask[..., None], features, 0)
        self.state = nn.functional.silu(weights.features(features)) * self._live_factor
        profit = self._profit(price)
        self._set_splits(weights.action(self.state).squeeze(-1) + sharpness * profit, sharpness)

    def update(
        self,
        weights: PathUpdate,
        price: Tensor,
        sharpness: Tensor,
        message: Tensor,
        utilisation: Tensor,
    ) -> None:
        """Advance the path states by one layer, and set their actions and splits.

        g += silu(A g + B (mean g of the demand's paths) + (mean message of the path's links) + C x)
        with x: log of the largest utilisation on the path, its excess, profit, and last split.

        Args:
            weights: weights A, B, C of the layer, and of the action.
            price: (B, E) link prices, over the mean value (over the mean path price in a min-max
                program).
            sharpness: () q, factor of the profit in an action.
            message: (B, E, F) message of each link to its paths.
            utilisation: (B, E) utilisation of the last splits.
        """
        # Features x of the paths: log and excess of the largest utilisation, profit, last split.
        max_utilisation = self._ops.path_max(utilisation)[0]
        profit = self._profit(price)
        features = torch.stack(
            [
                (max_utilisation + UTILISATION_OFFSET).log(),
                1 - 1 / max_utilisation.clamp(min=1),
                profit,
                self.splits,
            ],
            -1,
        )
        # Mean state of each demand's paths, mean message of each path's links, residual update.
        demand_term = weights.demand(self.state.sum(-2) / self._num_live_paths).unsqueeze(-2)
        mean_message = self._ops.path_sum(message) / self._hops.clamp(min=1)[..., None]
        state_change = nn.functional.silu(
            weights.own(self.state) + demand_term + mean_message + weights.features(features)
        )
        self.state = (self.state + state_change) * self._live_factor
        self._set_splits(weights.action(self.state).squeeze(-1) + sharpness * profit, sharpness)

    def _profit(self, price: Tensor) -> Tensor:
        """Return the bounded profit of every path, (B, D, K): value minus prices of its links."""
        return bounded_profit(self._path_value - self._ops.path_sum(price))

    def _set_splits(self, actions: Tensor, sharpness: Tensor) -> None:
        """Append the actions of a pass, and set their softmax splits and the link sums.

        Args:
            actions: (B, D, K) actions.
            sharpness: () q, factor of the profit in an action.
        """
        maximises_value = not self._carries_all
        self.splits = action_splits(
            actions, self._mask, maximises_value=maximises_value, clamp=self._clamp
        )
        flow = self._problem.flows(self.splits)
        demand = self._problem.demand[..., None, None]
        # Load, elasticity and demand-weighted states, (B, D, K, F + 2) before the sum.
        load_elasticity = torch.stack([flow, sharpness * flow * (1 - self.splits)], -1)
        self.sums = self._ops.link_sum(torch.cat([load_elasticity, demand * self.state], -1))
        self.actions.append(actions)
