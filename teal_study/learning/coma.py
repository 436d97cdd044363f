"""COMA* (Xu et al., "Teal", SIGCOMM 2023, section 3.3 and appendix B): policy gradient with
counterfactual advantages.

Every demand i is an agent; an episode is one step; the reward R is shared.  The advantage of an
agent's action is R minus its expectation over other actions of this agent, with all other actions
fixed:

    A_i = R(a) - E[R(a_-i, a_i')],   a_-i the actions of all others, a_i' from i's policy.

R depends on i only through its flows f_i.  Three ways to compute A_i:

- Value maximisation: R is the sum of value * flow * share granted by the links of a path,
  min(1, c / load) on its most utilised link e*.  Exact parts, for each sample: the change of i's
  served value, with its flow in the loads of e* and of the path's smallest link (which may become
  the bottleneck), and the change of other demands' value on paths whose most utilised link is e*.
  Loads of other links enter to first order, for all demands at once:

    A_i = < dR/df_i, f_i - mean over the samples of f_i' >.

- Min-max programs: R is minus the soft maximum of the utilisations u,

    R = -(u_max / s) log sum over e of exp(s u[e] / u_max).

  Every link's term depends on u_max, so that R is computed exactly for every demand and draw: E
  exponentials each, which is affordable on networks of some hundred nodes (:func:`is_affordable`).
- Otherwise, and with split tables, all of R is taken to first order.

The map from actions to splits need not be differentiable: with ``entries`` above 0 the splits are
the integer weights of a split table (:mod:`teal.solvers.split_table`).  The first order misses one
effect of rounded flows: a demand whose paths are scaled down by one factor loses on all of them
when it starts to use an overloaded path.

``tests/teal_study/learning/test_coma.py`` compares the advantages with brute force on three nodes.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from teal.nn.policy import CLAMP, action_splits
from teal.problem import Problem
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.parallel import inlined_kernel, kernel, parallel_kernel
from teal.solvers.split_table import in_table
from teal_study.learning.losses import MAXIMUM_SHARPNESS, reward, total_demand_value
from teal_study.learning.noise import Noise

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-call"


# Maximum number of exponentials for all demands in one draw, about 0.3 s on two cores.
_MAX_EXPONENTIALS = 50_000_000


def is_affordable(problem: Problem) -> bool:
    """Whether the reward change of a min-max program is computed exactly: on the CPU, with paths
    as columns, and with few demands times links.
    """
    if problem.ops.device.type != "cpu" or not problem.ops.is_over_paths:
        return False
    return problem.demand.numel() * problem.topology.num_links <= _MAX_EXPONENTIALS


def change_of_reward(problem: Problem, splits: Tensor, drawn_splits: Tensor) -> Tensor:
    """Return the change of the reward, (B, D), if one demand alone switches to its drawn splits.

    R(splits of all other demands, drawn splits of d) - R(splits), for each demand d, with R minus
    the soft maximum of the utilisations.

    Args:
        problem: B matrices of a min-max program, for which :func:`is_affordable` is true.
        splits: (B, D, K) splits of all demands.
        drawn_splits: (B, D, K) other splits of all demands.
    """
    trie = problem.paths.trie
    utilisation = (problem.loads(splits) * problem.inverse_capacity).to(torch.float64)
    # (B, D, K) change of each path's flow, Gbit/s, and trie node of the last link of the path, -1
    # without a live path.
    flow_change = problem.flows(drawn_splits - splits).to(torch.float64)
    end_node = torch.where(problem.path_mask, torch.from_numpy(problem.paths.leaf).long(), -1)
    reward_change = np.zeros(problem.demand.shape)
    _reward_changes(
        utilisation.numpy(),
        _soft_maxima(utilisation.numpy(), MAXIMUM_SHARPNESS),
        problem.inverse_capacity.to(torch.float64).numpy(),
        flow_change.numpy(),
        end_node.numpy(),
        np.asarray(trie.parent),
        np.asarray(trie.link),
        MAXIMUM_SHARPNESS,
        reward_change,
    )
    return torch.from_numpy(reward_change).to(splits.dtype)


@inlined_kernel
def _soft_maximum(utilisation, sharpness):  # type: ignore[no-untyped-def]
    """Return the soft maximum (u_max / s) log sum_e exp(s u[e] / u_max) of utilisations u (E,)."""
    max_utilisation = 1e-30
    for e in range(len(utilisation)):
        max_utilisation = max(max_utilisation, utilisation[e])
    # u_max is at least 1e-30, so that the division is defined. Exponents are at most 0, so that
    # nothing overflows; u_max enters as a factor.
    exponential_sum = 0.0
    for e in range(len(utilisation)):
        exponential_sum += math.exp(sharpness * (utilisation[e] / max_utilisation - 1))
    return max_utilisation * (1 + math.log(exponential_sum) / sharpness)


@kernel
def _soft_maxima(utilisation: FloatArray, sharpness: float) -> FloatArray:
    """Return the soft maximum of each matrix, (B,), of utilisations (B, E)."""
    result = np.empty(len(utilisation))
    for b in range(len(utilisation)):
        result[b] = _soft_maximum(utilisation[b], sharpness)
    return result


def _num_demands(node: Int64Array) -> int:
    """Return D, the number of parallel tasks of :func:`_reward_changes`."""
    return node.shape[1]


@parallel_kernel("node", _num_demands)
def _reward_changes(
    demand: int,
    utilisation: FloatArray,
    soft_maxima: FloatArray,
    inverse_capacity: FloatArray,
    flow_change: FloatArray,
    node: Int64Array,
    parent: AnyArray,
    link: AnyArray,
    sharpness: float,
    reward_change: FloatArray,
) -> None:
    """Compute the reward change of each matrix if one demand alone changes its flows.

    change = soft maximum of the utilisations before - soft maximum after.

    Args:
        demand: index of the demand.
        utilisation: (B, E) utilisation before.
        soft_maxima: (B,) soft maximum of these utilisations.
        inverse_capacity: (B, E) 1 / capacity, 1/(Gbit/s).
        flow_change: (B, D, K) change of the flow on each path, Gbit/s.
        node: (B, D, K) trie node where each path ends; -1 for a missing or failed path.
        parent: (T,) parent of each trie node; -1 at the first link of a path.
        link: (T,) link into each trie node.
        sharpness: s of the soft maximum.
        reward_change: (B, D) change of the reward (column ``demand`` is written).
    """
    for b in range(len(reward_change)):
        # Utilisations after the change: walk every path from its end to the source.
        link_utilisation = utilisation[b].copy()
        for k in range(node.shape[2]):
            trie_node = node[b, demand, k]
            while trie_node >= 0:
                link_utilisation[link[trie_node]] += (
                    flow_change[b, demand, k] * inverse_capacity[b, link[trie_node]]
                )
                trie_node = parent[trie_node]
        reward_change[b, demand] = soft_maxima[b] - _soft_maximum(link_utilisation, sharpness)


@dataclasses.dataclass(frozen=True)
class Exploration:
    """Exploration settings of COMA*.

    Attributes:
        std: standard deviation of the Gaussian policy; 1 in the paper.
        samples: number of counterfactual actions drawn per agent; 5 in the paper.
        episodes: number of joint actions drawn per matrix; 1 in the paper.  An episode costs one
            reward and its gradient, far less than the pass through the model, and the variance of
            the policy gradient falls as 1 / episodes.
        entries: entries of the split table to which splits are rounded; 0 for no rounding.
        clamp: largest absolute value of an action; larger ones are clamped.
    """

    std: float
    samples: int = 5
    episodes: int = 4
    entries: int = 0
    clamp: float = CLAMP

    def execute(self, problem: Problem, actions: Tensor) -> Tensor:
        """Convert actions to splits (B, D, K): softmax, then rounding to a split table."""
        maximises_value = problem.objective.maximises_value
        splits = action_splits(
            actions, problem.path_mask, maximises_value=maximises_value, clamp=self.clamp
        )
        return in_table(splits, self.entries) if self.entries else splits


def sample_actions(means: Tensor, std: float, noise: Noise) -> Tensor:
    """Draw actions (B, D, K) from the Gaussian policy N(means, std^2)."""
    return means.detach() + std * noise.normal(means)


def advantages(
    problem: Problem, means: Tensor, actions: Tensor, exploration: Exploration, noise: Noise
) -> Tensor:
    """Return the counterfactual advantage A_i of every agent's action, (B, D), without gradient.

    A_i = R(a) - mean over samples of R(a_-i, a_i'), with R the reward and a_-i the actions of all
    other agents.

    Args:
        problem: B matrices.
        means: (B, D, K) means of the policy, from which the samples a_i' are drawn.
        actions: (B, D, K) joint action a.
        exploration: number of samples, standard deviation, and entries of the split tables to
            which actions are rounded (0: none).
        noise: source of the samples.
    """
    splits = exploration.execute(problem, actions).detach()
    sample_splits = (
        exploration.execute(problem, sample_actions(means, exploration.std, noise))
        for _ in range(exploration.samples)
    )
    # Value maximisation without rounding to tables: differences of the reward, nearly exact.
    if problem.objective.maximises_value and not exploration.entries:
        reward_change = _RewardChange(problem, splits)
        return (
            -sum(
                (reward_change.change(drawn) for drawn in sample_splits), start=splits.new_zeros(())
            )
            / exploration.samples
        )
    # Min-max programs of few demands times links: exact differences of the reward.
    if problem.demand_set.carries_all and is_affordable(problem):
        changes = (change_of_reward(problem, splits, drawn) for drawn in sample_splits)
        return -sum(changes, start=splits.new_zeros(())) / exploration.samples
    # First order: gradient of the reward times the difference from the expected splits.
    splits.requires_grad_()
    (reward_gradient,) = torch.autograd.grad(
        reward(problem, splits, cut_demands_whole=exploration.entries > 0).sum(), splits
    )
    expected_splits = sum(sample_splits, start=torch.zeros_like(splits)) / exploration.samples
    return (reward_gradient * (splits - expected_splits)).sum(-1).detach()


class _RewardChange:
    """Change of the reward of value maximisation if one demand alone switches to other splits.

    e* is the most utilised link of a path.  Exact: the demand's own value, limited by e* and by the
    smallest link of the path, and the value of other flows limited by e*.  First order: other
    links.

    Args:
        problem: B matrices that maximise value.
        splits: (B, D, K) splits of all demands.
    """

    def __init__(self, problem: Problem, splits: Tensor) -> None:
        self._problem = problem
        self._flow = problem.flows(splits)
        load = problem.loads(splits).requires_grad_()
        capacity = problem.capacity.clamp(min=torch.finfo(splits.dtype).tiny)
        # Path values over the value of all demand.
        self._value = problem.path_value / total_demand_value(problem)[:, None, None]
        # Utilisation and index of e* of each path, gradient of the reward by the link loads, and
        # index of the link with the smallest capacity on each path.
        max_utilisation, bottleneck = problem.ops.path_max(load * problem.inverse_capacity)
        flow_value = self._flow * self._value
        (load_gradient,) = torch.autograd.grad(
            (flow_value / max_utilisation.clamp(min=1)).sum(), load
        )
        _, smallest_link = problem.ops.path_max(-capacity)
        is_live_path = bottleneck >= 0
        bottleneck = bottleneck.clamp(min=0).flatten(1)
        smallest_link = smallest_link.clamp(min=0).flatten(1)

        # Values (B, E) at the links (B, D K) of all paths, as (B, D, K).
        def gather_links(values: Tensor, links: Tensor) -> Tensor:
            return values.detach().gather(1, links).view_as(flow_value)

        # (B, D, K) load and capacity of e* and of the smallest link of each path.
        self._load_and_capacity = [
            (gather_links(load, links), gather_links(capacity, links))
            for links in (bottleneck, smallest_link)
        ]
        # (B, E) total value of the flows whose e* is a link; for each path (B, D, K) that of its
        # e*, without its own flow.
        link_value = torch.zeros_like(capacity).scatter_add(
            1, bottleneck, torch.where(is_live_path, flow_value, 0).flatten(1)
        )
        self._other_value = gather_links(link_value, bottleneck) - flow_value
        # Gradient by the loads of all links of a path except e*.
        self._other_link_gradient = problem.ops.path_sum(load_gradient) - gather_links(
            load_gradient, bottleneck
        )
        self._current_value = self._served_value(self._flow)

    def _served_value(self, flow: Tensor) -> Tensor:
        """Return the value of each demand's flows, (B, D), scaled down to the capacities.

        Args:
            flow: (B, D, K) flows of a demand, with the flows of all others unchanged.
        """
        link_utilisations = [
            (load + flow - self._flow) / capacity for load, capacity in self._load_and_capacity
        ]
        return (flow * self._value / torch.maximum(*link_utilisations).clamp(min=1)).sum(-1)

    def change(self, splits: Tensor) -> Tensor:
        """Return the change of the reward, (B, D), if one demand alone switches to ``splits``.

        Args:
            splits: (B, D, K) new splits of every demand.
        """
        flow = self._problem.flows(splits)
        flow_change = flow - self._flow
        # Change of the share that e* grants to other flows.
        (load, capacity) = self._load_and_capacity[0]
        granted_change = 1 / ((load + flow_change) / capacity).clamp(min=1) - 1 / (
            load / capacity
        ).clamp(min=1)
        # Exact change of the own value, first order of other links, exact change of other flows.
        return (
            self._served_value(flow)
            - self._current_value
            + (self._other_link_gradient * flow_change + self._other_value * granted_change).sum(-1)
        )


def coma_loss(problem: Problem, means: Tensor, exploration: Exploration, noise: Noise) -> Tensor:
    """Return the policy gradient loss (B,): -sum over agents of A_i log pi(a_i), episode mean.

    Args:
        problem: B matrices.
        means: (B, D, K) means of the Gaussian policy pi, with gradients.
        exploration: standard deviation, and numbers of samples and episodes.
        noise: source of the actions.
    """
    loss = means.new_zeros(problem.batch)
    for _ in range(exploration.episodes):
        actions = sample_actions(means, exploration.std, noise)
        advantage = advantages(problem, means, actions, exploration, noise)
        # Log density of the actions up to a constant.
        log_density = -0.5 * ((actions - means) / exploration.std).square()
        loss = (
            loss
            - (advantage * torch.where(problem.path_mask, log_density, 0).sum(-1)).sum(1)
            / exploration.episodes
        )
    return loss
