"""FlowGNN in the form ``universal``: weights independent of the network and of the number of paths.

As in the paper (Xu et al., "Teal", SIGCOMM 2023, section 3.2) links and paths have embeddings,
which they exchange in layers, and so do the paths of a demand.  Two differences make the weights
independent of K and of the number of demands: the mean over the K paths of a demand replaces their
concatenation, and a mean weighted by demand replaces the division by roots of degrees.  A sample of
the demands at raised rates therefore has the same inputs as all demands.

With h[e] the state of link e, g[p] that of path p, v values over their mean, layer l computes, with
learned weights a_l, b_l, u_l, q_l, A_l, B_l, C_l, V_l and a perceptron MLP_l,

    price[e]  = softplus(a_l . h[e] + b_l),
    profit[p] = v[p] - sum of price[e] over the links of p,
    z[p]      = u_l . g[p] + q_l bounded(profit[p]),
    w         = softmax of z over the paths of a demand and rejection,
    load, elasticity = sums over the paths through a link of  demand w  and  q_l demand w (1 - w),
    G[e]      = mean of g[p] over the paths through e, weighted by demand,
    h[e]     += MLP_l(h, G, features of the link),
    g[p]     += silu(A_l g[p] + B_l (mean of g over the demand's paths)
                     + mean of V_l h[e] along p + C_l x[p]),

with features x[p] of the path: its worst utilisation and excess, its profit, and its split w.  The
last z are the means of the policy.  In a min-max program nothing is rejected, and prices are
divided by the mean price of a path at the previous loads.

Links are few: their layers are torch modules.  Paths are many: their passes are
:class:`teal.nn.flow_passes.TorchPasses` (with gradients) or
:class:`teal.nn.flow_passes_fused.CompiledPasses` (compiled, for inference).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from teal.nn.flow_gnn_config import FlowGnnConfig
from teal.nn.flow_models import FlowModel
from teal.nn.flow_passes import PathEncoder, PathPasses, PathUpdate, TorchPasses
from teal.nn.flow_passes_fused import CompiledPasses
from teal.nn.policy import FIRST_RAW_PRICE, price_softplus
from teal.problem import Problem
from teal.problem.problem import mean_capacity, mean_value

# Largest absolute value of an action.
LOGIT_CLAMP = 30.0
# Numbers of features of a link: constant ones, and those that change from layer to layer.
_NUM_STATIC_FEATURES = 4
_NUM_DYNAMIC_FEATURES = 5
# Added to utilisations and elasticities before the logarithm.
_LOG_OFFSET = 1e-4
# Initial q of the first and the last layer, 1 over the mean value.
_FIRST_SHARPNESS = 5.0
_LAST_SHARPNESS = 20.0


class _LinkUpdate(nn.Module):
    """Residual update of link states from the states, the mean states of their paths, and features.

    Args:
        state: H, numbers of a link state.
        width: F, numbers of a path state.
    """

    def __init__(self, link_state_size: int, path_state_size: int) -> None:
        super().__init__()
        # Small weights of the last layer: before training an update changes the state little.
        last = nn.Linear(link_state_size, link_state_size)
        with torch.no_grad():
            last.weight.mul_(0.3)
        self.net = nn.Sequential(
            nn.Linear(
                link_state_size + path_state_size + _NUM_STATIC_FEATURES + _NUM_DYNAMIC_FEATURES,
                link_state_size,
            ),
            nn.SiLU(),
            last,
        )

    def forward(self, state: Tensor, mean_path_states: Tensor, features: Tensor) -> Tensor:
        """Return the next link states, (B, E, H).

        Args:
            state: (B, E, H) link states.
            mean_path_states: (B, E, F) mean state of the paths through each link, weighted by demand.
            features: (B, E, 9) features of the links.
        """
        return state + self.net(torch.cat([state, mean_path_states, features], -1))


def _price_layer(link_state_size: int) -> nn.Linear:
    """Create the linear map from a link state to a raw price; prices are near 0 before training."""
    layer = nn.Linear(link_state_size, 1)
    with torch.no_grad():
        layer.weight.mul_(0.3)
    nn.init.constant_(layer.bias, FIRST_RAW_PRICE)
    return layer


class UniversalFlowGnn(FlowModel):
    """FlowGNN for any network and any number of paths and demands.

    Each layer: link prices and path profits give actions and splits; the splits give link loads;
    loads and path states update the link states, then link messages update the path states.

    Args:
        config: shapes; ``num_paths`` is K of the training paths, and other numbers work too.
    """

    clamp = LOGIT_CLAMP
    takes_any_paths = True

    def __init__(self, config: FlowGnnConfig) -> None:
        super().__init__()
        self.config = config
        # Numbers of a path state and of a link state.
        path_state_size = config.width
        link_state_size = 2 * config.width
        # First states; updates and messages of each layer; raw prices of encoder and layers.
        self.link_in = nn.Sequential(
            nn.Linear(_NUM_STATIC_FEATURES, link_state_size),
            nn.SiLU(),
            nn.Linear(link_state_size, link_state_size),
        )
        self.path_in = PathEncoder(path_state_size)
        self.link_layers = nn.ModuleList(
            _LinkUpdate(link_state_size, path_state_size) for _ in range(config.layers)
        )
        self.path_layers = nn.ModuleList(PathUpdate(path_state_size) for _ in range(config.layers))
        self.messages = nn.ModuleList(
            nn.Linear(link_state_size, path_state_size) for _ in range(config.layers)
        )
        self.price = nn.ModuleList(_price_layer(link_state_size) for _ in range(config.layers + 1))
        first_log_sharpness = torch.linspace(
            math.log(_FIRST_SHARPNESS), math.log(_LAST_SHARPNESS), config.layers + 1
        )
        # Sharpness q of each layer: in value maximisation, and in min-max programs.
        self.log_sharpness = nn.Parameter(first_log_sharpness[:, None].repeat(1, 2))
        # Prices for the dual bound, from a last update of the link states.
        self.bound_layer = _LinkUpdate(link_state_size, path_state_size)
        bound_last = nn.Linear(link_state_size, 1)
        nn.init.constant_(bound_last.bias, FIRST_RAW_PRICE)
        self.bound_price = nn.Sequential(
            nn.Linear(link_state_size, link_state_size), nn.SiLU(), bound_last
        )

    def forward(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return the means of the actions' normal distribution (B, D, K), and link prices (B, E).

        Prices are in value per Gbit/s.

        Args:
            problem: B matrices, in the model's floating-point type.
        """
        layer_actions, prices = self.tentative(problem)
        return layer_actions[-1], prices

    def tentative(self, problem: Problem) -> tuple[list[Tensor], Tensor]:
        """Return the actions z (B, D, K) of all layers, and link prices (B, E), with gradients.

        The last actions are the means of the policy.
        """
        passes = TorchPasses(problem, self.clamp)
        prices = self.run(problem, passes)
        return passes.actions, prices

    @torch.no_grad()
    def allocate(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Return splits (B, D, K) at the mean actions, and link prices (B, E), without gradients.

        Compiled passes are used where they support the problem.
        """
        accepted = CompiledPasses.accepts(problem, self.config.width)
        passes = (CompiledPasses if accepted else TorchPasses)(problem, self.clamp)
        prices = self.run(problem, passes)
        return passes.splits, prices

    def run(self, problem: Problem, passes: PathPasses) -> Tensor:
        """Run all layers; return link prices (B, E) for the dual bound, value per Gbit/s.

        Args:
            problem: B matrices.
            passes: passes over the paths of the problem; they hold actions and splits afterwards.
        """
        links = _LinkFeatures(problem, passes)
        link_states = self.link_in(links.static)
        for layer in range(self.config.layers + 1):
            # Update the link states, except in layer 0, which encodes; then compute prices.
            if layer:
                features = torch.cat([links.static, links.dynamic_features()], -1)
                link_states = self.link_layers[layer - 1](
                    link_states, links.mean_path_states, features
                )
            price = nn.functional.softplus(self.price[layer](link_states).squeeze(-1)) * links.live
            # Factor q of profits, which min-max programs have apart; prices over their unit.
            sharpness = self.log_sharpness[layer, int(links.carries_all)].exp()
            relative_price = price / links.price_unit(price)
            # Path states, actions, splits and link sums.
            if layer:
                message = self.messages[layer - 1](link_states)
                weights = self.path_layers[layer - 1]
                assert isinstance(weights, PathUpdate)
                passes.update(weights, relative_price, sharpness, message, links.utilisation)
            else:
                passes.encode(self.path_in, relative_price, sharpness, links.utilisation)
            links.set_sums(price, passes.sums)
        # Prices for the dual bound, from a last update of the link states.
        features = torch.cat([links.static, links.dynamic_features()], -1)
        link_states = self.bound_layer(link_states, links.mean_path_states, features)
        raw = self.bound_price(link_states).squeeze(-1)
        prices = price_softplus(raw, maximises_value=problem.objective.maximises_value) * links.live
        return prices * links.mean_value


class _LinkFeatures:
    """Link features of a problem, updated after each pass over the paths.

    Args:
        problem: B matrices.
        passes: passes over the paths of the problem.

    Attributes:
        carries_all: whether all demand must be carried (min-max program).
        live: (B, E) whether a link works.
        static: (B, E, 4) constant features: log relative capacity, log utilisation of even splits,
            whether the link is live, whether the program is balanced.
        utilisation: (B, E) utilisation of the last splits, before them of even splits; in a
            min-max program over the largest one.
        mean_path_states: (B, E, F) mean state of the paths through each link, weighted by demand.
        mean_value: () unit of values and prices; 1 in a min-max program, which has no values.
    """

    def __init__(self, problem: Problem, passes: PathPasses) -> None:
        self.carries_all = problem.demand_set.carries_all
        self.live = problem.capacity > 0
        self._inverse_capacity = problem.inverse_capacity
        self.mean_value = (
            torch.ones((), dtype=problem.demand.dtype, device=problem.demand.device)
            if self.carries_all
            else mean_value(problem).clamp(min=1e-30)
        )
        # (B, 1) sum of the demands, Gbit/s; (B, E) loads of even splits; (B, E) factor of the sums
        # of path states, 1 / (demand of all paths through the link).
        self._total_demand = problem.routable_demand.sum(1, keepdim=True).clamp(min=1e-30)
        self._load = passes.even_load
        full_path_load = passes.full_load
        self._inverse_path_demand = torch.where(
            full_path_load > 0, 1 / full_path_load.clamp(min=1e-30), 0
        )
        # Constant features, 0 on failed links; the factor 1 / 2 brings the log utilisation to
        # order 1.
        self.utilisation, self._utilisation_unit = self._relative_utilisation(self._load)
        log_capacity = (
            (problem.capacity / mean_capacity(problem).clamp(min=1e-30))
            .clamp(min=_LOG_OFFSET)
            .log()
        )
        features = [
            log_capacity,
            (self.utilisation + _LOG_OFFSET).log() / 2,
            torch.ones_like(log_capacity),
        ]
        features = [torch.where(self.live, feature, 0) for feature in features]
        self.static = torch.stack(
            [*features, torch.full_like(log_capacity, float(self.carries_all))], -1
        )
        self._price = self._elasticity = torch.zeros_like(self.utilisation)
        self.mean_path_states = torch.zeros(0)

    def _relative_utilisation(self, load: Tensor) -> tuple[Tensor, Tensor]:
        """Return the utilisation (B, E) of loads (B, E) in Gbit/s, and its divisor (B, 1).

        The divisor is the largest utilisation in a min-max program, else 1.
        """
        utilisation = load * self._inverse_capacity
        if not self.carries_all:
            return utilisation, torch.ones_like(utilisation[:, :1])
        max_utilisation = utilisation.amax(1, keepdim=True).clamp(min=1e-30)
        return utilisation / max_utilisation, max_utilisation

    def price_unit(self, price: Tensor) -> Tensor:
        """Return the divisor of prices, (B, 1): 1, in a min-max program the mean path price.

        The mean is weighted by the last flows.

        Args:
            price: (B, E) link prices.
        """
        if not self.carries_all:
            return torch.ones_like(price[:, :1])
        return ((self._load * price).sum(1, keepdim=True) / self._total_demand).clamp(min=1e-30)

    def set_sums(self, price: Tensor, sums: Tensor) -> None:
        """Update the features from the link sums of a pass.

        Args:
            price: (B, E) prices of the pass.
            sums: (B, E, F + 2) load, elasticity, and sum of demand g over the paths through a link.
        """
        self._price = price
        self._load = sums[..., 0]
        self.utilisation, self._utilisation_unit = self._relative_utilisation(self._load)
        self._elasticity = sums[..., 1] * self._inverse_capacity / self._utilisation_unit
        self.mean_path_states = sums[..., 2:] * self._inverse_path_demand[..., None]

    def dynamic_features(self) -> Tensor:
        """Return the features that change from layer to layer, (B, E, 5).

        Log utilisation, excess utilisation, log elasticity, Newton step of the price, log price.
        """
        # The offsets 0.05 and 0.001 avoid a division by 0 and the log of 0; factors, clamp and tanh
        # keep the features of order 1.
        excess = self.utilisation - 1
        return torch.stack(
            [
                (self.utilisation + _LOG_OFFSET).log().clamp(-4, 4),
                torch.tanh(excess),
                (self._elasticity + _LOG_OFFSET).log(),
                torch.tanh(5 * excess / (self._elasticity + 0.05)),
                (self._price + 1e-3).log() / 3,
            ],
            -1,
        )
