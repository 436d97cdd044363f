"""FlowGNN in the form ``universal``: weights that depend neither on the network nor on the number
of paths of a demand.

As in the paper (Xu et al., "Teal", SIGCOMM 2023, section 3.2) links and paths have embeddings,
paths and links exchange them in layers, and so do the paths of a demand.  What the paper
concatenates over the K paths of a demand is a mean here, and what it divides by the roots of
degrees is a mean weighted by demand, so that neither K nor the number of demands appears in a
weight or sets a scale.  A sample of the demands at raised rates looks like all of them.

With h[e] the state of link e, g[p] that of path p, c capacities, v values over their mean, layer l
computes

    price[e]  = softplus(a_l . h[e] + b_l),
    profit[p] = v[p] - sum of price[e] over the links of p,
    z[p]      = u_l . g[p] + q_l bounded(profit[p]),       w = softmax of z over the paths of a demand and rejection,
    load, elasticity = sums over the paths through a link of  demand w  and  q_l demand w (1 - w),
    G[e]      = mean of g[p] over the paths through e, weighted by demand,
    h[e]     += MLP_l(h, G, what is known of the link),
    g[p]     += silu(A_l g[p] + B_l (mean of g over the demand's paths) + mean of V_l h[e] along p + C_l x[p]),

with x[p] what is known of the path: its worst utilisation, its profit, and its share w.  The last z
are the means of the policy.  Under the balanced programs nothing is rejected and prices are divided
by the mean price of a path at the loads before.

Links are few, and their part is torch.  Paths are many: :class:`teal.nn.flow_passes.TorchPasses` is
their part with gradients, and :class:`teal.nn.flow_passes_fused.CompiledPasses` the same, compiled,
without.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from teal.nn.flow_gnn_config import FlowGnnConfig
from teal.nn.flow_models import FlowModel
from teal.nn.flow_passes import PathEncoder, PathPasses, PathUpdate, TorchPasses
from teal.nn.flow_passes_fused import CompiledPasses
from teal.nn.policy import FIRST_RAW_PRICE, price_of
from teal.problem import Problem
from teal.problem.problem import mean_capacity, mean_value

LOGIT_CLAMP = 30.0  # largest absolute value of a mean of the policy
# Features of a link: those that stay the same in all layers, and those that do not.
_STATIC = 4
_DYNAMIC = 5
_OFFSET = 1e-4  # added to utilisations and elasticities before the logarithm
# Initial q of the first and the last layer, 1 over the mean value.
_FIRST_SHARPNESS = 5.0
_LAST_SHARPNESS = 20.0


class _LinkUpdate(nn.Module):
    """The change of the state of a link, from its state, what its paths say, and features."""

    def __init__(self, state: int, width: int) -> None:
        super().__init__()
        last = nn.Linear(state, state)
        with torch.no_grad():
            last.weight.mul_(0.3)
        self.net = nn.Sequential(
            nn.Linear(state + width + _STATIC + _DYNAMIC, state), nn.SiLU(), last
        )

    def forward(self, state: Tensor, of_paths: Tensor, features: Tensor) -> Tensor:
        """(B, E, H), (B, E, F), (B, E, 9) -> (B, E, H)."""
        return state + self.net(torch.cat([state, of_paths, features], -1))


def _price_layer(state: int) -> nn.Linear:
    """From the state of a link to its raw price, near 0 at first."""
    layer = nn.Linear(state, 1)
    with torch.no_grad():
        layer.weight.mul_(0.3)
    nn.init.constant_(layer.bias, FIRST_RAW_PRICE)
    return layer


class UniversalFlowGnn(FlowModel):
    """FlowGNN for any number of paths and demands (equations in the module).

    Args:
        config: shapes; ``num_paths`` is what the model was trained with, and any other number is as
            good.
    """

    clamp = LOGIT_CLAMP
    takes_any_paths = True

    def __init__(self, config: FlowGnnConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        state = 2 * config.width
        self.link_in = nn.Sequential(nn.Linear(_STATIC, state), nn.SiLU(), nn.Linear(state, state))
        self.path_in = PathEncoder(width)
        self.link_layers = nn.ModuleList(_LinkUpdate(state, width) for _ in range(config.layers))
        self.path_layers = nn.ModuleList(PathUpdate(width) for _ in range(config.layers))
        self.messages = nn.ModuleList(nn.Linear(state, width) for _ in range(config.layers))
        self.price = nn.ModuleList(_price_layer(state) for _ in range(config.layers + 1))
        sharpness = torch.linspace(
            math.log(_FIRST_SHARPNESS), math.log(_LAST_SHARPNESS), config.layers + 1
        )
        # Sharpness under total flow, and of the balanced programs.
        self.log_sharpness = nn.Parameter(sharpness[:, None].repeat(1, 2))
        self.bound_layer = _LinkUpdate(state, width)
        bound_last = nn.Linear(state, 1)
        nn.init.constant_(bound_last.bias, FIRST_RAW_PRICE)
        self.bound_price = nn.Sequential(nn.Linear(state, state), nn.SiLU(), bound_last)

    def forward(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Means of the normal distribution of the actions (B, D, K), and link prices (B, E), value
        per Gbit/s.

        ``problem`` must be in the model's floating-point type.
        """
        every, prices = self.tentative(problem)
        return every[-1], prices

    def tentative(self, problem: Problem) -> tuple[list[Tensor], Tensor]:
        """The z (B, D, K) of all layers, the last of which are the policy's means; and link prices
        (B, E).
        """
        passes = TorchPasses(problem, self.clamp)
        prices = self.run(problem, passes)
        return passes.actions, prices

    @torch.no_grad()
    def allocate(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Splits (B, D, K) of the policy's means, and link prices (B, E), in compiled passes where
        these apply.
        """
        accepted = CompiledPasses.accepts(problem, self.config.width)
        passes = (CompiledPasses if accepted else TorchPasses)(problem, self.clamp)
        prices = self.run(problem, passes)
        return passes.splits, prices

    def run(self, problem: Problem, passes: PathPasses) -> Tensor:
        """All layers; the prices (B, E) for the bound."""
        links = _Links(problem, passes)
        state = self.link_in(links.static)
        for number in range(self.config.layers + 1):
            if number:
                features = torch.cat([links.static, links.dynamic()], -1)
                state = self.link_layers[number - 1](state, links.of_paths, features)
            price = nn.functional.softplus(self.price[number](state).squeeze(-1)) * links.live
            sharpness = self.log_sharpness[number, int(links.carries_all)].exp()
            relative = price / links.unit(price)
            if number:
                message = self.messages[number - 1](state)
                weights = self.path_layers[number - 1]
                assert isinstance(weights, PathUpdate)
                passes.update(weights, relative, sharpness, message, links.utilisation)
            else:
                passes.encode(self.path_in, relative, sharpness, links.utilisation)
            links.take(price, passes.sums)
        features = torch.cat([links.static, links.dynamic()], -1)
        state = self.bound_layer(state, links.of_paths, features)
        raw = self.bound_price(state).squeeze(-1)
        prices = price_of(raw, maximises_value=problem.objective.maximises_value) * links.live
        return prices * links.mean_value


class _Links:
    """The features of the links of a problem, and the last messages of the paths to them.

    Args:
        problem: B matrices.
        passes: over its paths.

    Attributes:
        carries_all: whether nothing may be rejected.
        live: (B, E) whether a link works.
        static: (B, E, 4) features that stay the same.
        utilisation: (B, E) of the last splits (at first even ones); in a balanced program over the
            largest.
        of_paths: (B, E, F) G of the last pass.
        mean_value: () unit of values and prices; 1 in the balanced programs, which have no values.
    """

    def __init__(self, problem: Problem, passes: PathPasses) -> None:
        self.carries_all = problem.demand_set.carries_all
        self.live = problem.capacity > 0
        self._inverse = problem.inverse_capacity
        self.mean_value = (
            torch.ones((), dtype=problem.demand.dtype, device=problem.demand.device)
            if self.carries_all
            else mean_value(problem).clamp(min=1e-30)
        )
        self._rate = problem.routable_demand.sum(1, keepdim=True).clamp(min=1e-30)
        self._load = passes.even_load
        full = passes.full_load
        self._weight = torch.where(full > 0, 1 / full.clamp(min=1e-30), 0)
        self.utilisation, self._largest = self._relative(self._load)
        size = (problem.capacity / mean_capacity(problem).clamp(min=1e-30)).clamp(min=_OFFSET).log()
        features = [size, (self.utilisation + _OFFSET).log() / 2, torch.ones_like(size)]
        features = [torch.where(self.live, feature, 0) for feature in features]
        self.static = torch.stack([*features, torch.full_like(size, float(self.carries_all))], -1)
        self._price = self._elasticity = torch.zeros_like(self.utilisation)
        self.of_paths = torch.zeros(0)

    def _relative(self, load: Tensor) -> tuple[Tensor, Tensor]:
        """(B, E) utilisation, in a balanced program over the largest; and (B, 1) what it was
        divided by.
        """
        utilisation = load * self._inverse
        if not self.carries_all:
            return utilisation, torch.ones_like(utilisation[:, :1])
        largest = utilisation.amax(1, keepdim=True).clamp(min=1e-30)
        return utilisation / largest, largest

    def unit(self, price: Tensor) -> Tensor:
        """(B, 1) by which prices are divided: 1, in a balanced program the mean price of a path at
        the last loads.
        """
        if not self.carries_all:
            return torch.ones_like(price[:, :1])
        return ((self._load * price).sum(1, keepdim=True) / self._rate).clamp(min=1e-30)

    def take(self, price: Tensor, sums: Tensor) -> None:
        """Keep what the paths answered.

        Args:
            price: (B, E) that they were given.
            sums: (B, E, F + 2) load, elasticity, and sum of demand g.
        """
        self._price = price
        self._load = sums[..., 0]
        self.utilisation, self._largest = self._relative(self._load)
        self._elasticity = sums[..., 1] * self._inverse / self._largest
        self.of_paths = sums[..., 2:] * self._weight[..., None]

    def dynamic(self) -> Tensor:
        """(B, E, 5) features that change."""
        excess = self.utilisation - 1
        return torch.stack(
            [
                (self.utilisation + _OFFSET).log().clamp(-4, 4),
                torch.tanh(excess),
                (self._elasticity + _OFFSET).log(),
                torch.tanh(5 * excess / (self._elasticity + 0.05)),
                (self._price + 1e-3).log() / 3,
            ],
            -1,
        )
