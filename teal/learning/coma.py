"""COMA* (Xu et al., "Teal", SIGCOMM 2023, section 3.3 and appendix B): policy gradient with
counterfactual advantages.

Every demand i is an agent; an episode is one step; the reward R is shared.  The advantage of i's
action is R minus its expectation when i alone draws another action and all other actions stay:

    A_i = R(a) - E[R(a_-i, a_i')],   a_i' from i's policy.

R depends on i only through its flows f_i.  For value maximisation, R is the sum of value times flow
times the share that the links of a path grant, min(1, c / load) on its most utilised link e*.  What
i gains or loses itself is computed exactly for each sample, with its own flow in the loads of e*
and of the path's smallest link (on which another flow of i may be the first to be cut); so is what
the flows whose most utilised link is e* lose by it.  The change of loads on other links is taken to
first order, for all demands at once:

    A_i = < dR/df_i, f_i - mean over the samples of f_i' >.

For the balanced programs R is computed anew for every demand and draw; on large
networks all of R is taken to first order.

The map from actions to splits need not be differentiable: with ``entries`` above 0 the splits are
the integer weights of a split table (:mod:`teal.solvers.split_table`), and the first order is used.
Rounded flows jump, and a demand whose paths are cut by one factor loses on all of them when it
starts to use an overloaded path; the first order misses that.

``tests/learning/test_coma.py`` compares the advantages with brute force on three nodes.

How the reward of a balanced program changes if one demand alone takes other splits: exact, one
demand at a time.

The reward is minus the soft maximum of the utilisations u,

    R = -(u_max / s) log sum over e of exp(s u[e] / u_max),

in which every link's term depends on u_max.  So a demand that moves flow changes all terms where it
changes the largest utilisation, and they are added up anew: E exponentials for each demand and
draw, which is affordable on networks of some hundred nodes (:func:`is_affordable`).
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from teal.learning.losses import MAXIMUM_SHARPNESS, reward, total_demand_value
from teal.learning.noise import Noise
from teal.nn.policy import CLAMP, action_splits
from teal.problem import Problem
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.parallel import inlined_kernel, kernel, parallel_kernel
from teal.solvers.split_table import in_table

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-call"


_MAX_EXPONENTIALS = 50_000_000  # of all demands in one draw, about 0.3 s on two cores


def is_affordable(problem: Problem) -> bool:
    """Whether the exact change is computed for this problem: on the CPU, over paths, and small
    enough.
    """
    if problem.ops.device.type != "cpu" or not problem.ops.is_over_paths:
        return False
    return problem.demand.numel() * problem.topology.num_links <= _MAX_EXPONENTIALS


def change_of_reward(problem: Problem, splits: Tensor, drawn: Tensor) -> Tensor:
    """(B, D) change of the reward if each demand alone takes its splits of ``drawn`` in place of
    those of ``splits``.

    Args:
        problem: B matrices of a balanced program, for which :func:`is_affordable` is true.
        splits: (B, D, K) of all demands.
        drawn: (B, D, K) other ones.
    """
    trie = problem.paths.trie
    utilisation = (problem.loads(splits) * problem.inverse_capacity).to(torch.float64)
    moved = problem.flows(drawn - splits).to(torch.float64)
    node = torch.where(problem.path_mask, torch.from_numpy(problem.paths.leaf).long(), -1)
    change = np.zeros(problem.demand.shape)
    _changes(
        utilisation.numpy(),
        _soft_maxima(utilisation.numpy(), MAXIMUM_SHARPNESS),
        problem.inverse_capacity.to(torch.float64).numpy(),
        moved.numpy(),
        node.numpy(),
        np.asarray(trie.parent),
        np.asarray(trie.link),
        MAXIMUM_SHARPNESS,
        change,
    )
    return torch.from_numpy(change).to(splits.dtype)


@inlined_kernel
def _soft_maximum(utilisation, sharpness):  # type: ignore[no-untyped-def]
    """(u_max / s) log sum exp(s u / u_max)."""
    largest = 1e-30
    for e in range(len(utilisation)):
        largest = max(largest, utilisation[e])
    total = 0.0
    for e in range(len(utilisation)):
        total += math.exp(sharpness * (utilisation[e] / largest - 1))
    return largest * (1 + math.log(total) / sharpness)


@kernel
def _soft_maxima(utilisation: FloatArray, sharpness: float) -> FloatArray:
    """(B,) soft maxima of (B, E) utilisations."""
    result = np.empty(len(utilisation))
    for b in range(len(utilisation)):
        result[b] = _soft_maximum(utilisation[b], sharpness)
    return result


def _num_demands(node: Int64Array) -> int:
    return node.shape[1]


@parallel_kernel("node", _num_demands)
def _changes(
    demand: int,
    utilisation: FloatArray,
    before: FloatArray,
    inverse: FloatArray,
    moved: FloatArray,
    node: Int64Array,
    parent: AnyArray,
    link: AnyArray,
    sharpness: float,
    change: FloatArray,
) -> None:
    for b in range(len(change)):
        link_utilisation = utilisation[b].copy()
        for k in range(node.shape[2]):
            trie_node = node[b, demand, k]
            while trie_node >= 0:
                link_utilisation[link[trie_node]] += (
                    moved[b, demand, k] * inverse[b, link[trie_node]]
                )
                trie_node = parent[trie_node]
        change[b, demand] = before[b] - _soft_maximum(link_utilisation, sharpness)


@dataclasses.dataclass(frozen=True)
class Exploration:
    """How COMA* explores.

    Attributes:
        std: standard deviation of the Gaussian policy; 1 in the paper.
        samples: actions drawn for the expectation; 5 in the paper.
        episodes: joint actions drawn for each matrix; 1 in the paper.  An episode costs one reward
            and its gradient, far less than the pass through the model, and the variance of the
            policy gradient falls as 1 / episodes.
        entries: entries of a split table that the splits are rounded to; 0 for none.
        clamp: actions are clamped to +- this.
    """

    std: float
    samples: int = 5
    episodes: int = 4
    entries: int = 0
    clamp: float = CLAMP

    def execute(self, problem: Problem, actions: Tensor) -> Tensor:
        """Actions (B, D, K) -> splits (B, D, K)."""
        maximises_value = problem.objective.maximises_value
        splits = action_splits(
            actions, problem.path_mask, maximises_value=maximises_value, clamp=self.clamp
        )
        return in_table(splits, self.entries) if self.entries else splits


def sample_actions(means: Tensor, std: float, noise: Noise) -> Tensor:
    """Actions (B, D, K) from the Gaussian policy N(means, std^2)."""
    return means.detach() + std * noise.normal(means)


def advantages(
    problem: Problem, means: Tensor, actions: Tensor, exploration: Exploration, noise: Noise
) -> Tensor:
    """A_i as above, with ``exploration.samples`` draws of each agent's action: (B, D), without
    gradient.
    """
    splits = exploration.execute(problem, actions).detach()
    draws = (
        exploration.execute(problem, sample_actions(means, exploration.std, noise))
        for _ in range(exploration.samples)
    )
    if problem.objective.maximises_value and not exploration.entries:
        change = _OwnChange(problem, splits)
        return (
            -sum((change.to(drawn) for drawn in draws), start=splits.new_zeros(()))
            / exploration.samples
        )
    if problem.demand_set.carries_all and is_affordable(problem):
        changes = (change_of_reward(problem, splits, drawn) for drawn in draws)
        return -sum(changes, start=splits.new_zeros(())) / exploration.samples
    splits.requires_grad_()
    (slope,) = torch.autograd.grad(
        reward(problem, splits, cut_demands_whole=exploration.entries > 0).sum(), splits
    )
    expected = sum(draws, start=torch.zeros_like(splits)) / exploration.samples
    return (slope * (splits - expected)).sum(-1).detach()


class _OwnChange:
    """How the reward changes if one demand alone takes other splits.

    Args:
        problem: B matrices that maximise value.
        splits: (B, D, K) of all demands.
    """

    def __init__(self, problem: Problem, splits: Tensor) -> None:
        self._problem = problem
        self._flow = problem.flows(splits)
        load = problem.loads(splits).requires_grad_()
        capacity = problem.capacity.clamp(min=torch.finfo(splits.dtype).tiny)
        self._value = problem.path_value / total_demand_value(problem)[:, None, None]
        ratio, link = problem.ops.path_max(load * problem.inverse_capacity)
        value = self._flow * self._value
        (slope,) = torch.autograd.grad((value / ratio.clamp(min=1)).sum(), load)
        _, smallest = problem.ops.path_max(-capacity)
        exists = link >= 0
        link = link.clamp(min=0).flatten(1)
        smallest = smallest.clamp(min=0).flatten(1)

        def at(values: Tensor, links: Tensor) -> Tensor:
            return values.detach().gather(1, links).view_as(value)

        self._links = [(at(load, links), at(capacity, links)) for links in (link, smallest)]
        # Value of the flows whose most utilised link is e*, without the demand's own.
        passing = torch.zeros_like(capacity).scatter_add(
            1, link, torch.where(exists, value, 0).flatten(1)
        )
        self._other_value = at(passing, link) - value
        self._slope = problem.ops.path_sum(slope) - at(slope, link)
        self._before = self._change(self._flow)

    def _change(self, flow: Tensor) -> Tensor:
        """(B, D) what each demand's flows (B, D, K) are worth to it."""
        cuts = [(load + flow - self._flow) / capacity for load, capacity in self._links]
        return (flow * self._value / torch.maximum(*cuts).clamp(min=1)).sum(-1)

    def to(self, splits: Tensor) -> Tensor:
        """(B, D) change of the reward if each demand alone takes its ``splits`` (B, D, K)."""
        flow = self._problem.flows(splits)
        moved = flow - self._flow
        (load, capacity) = self._links[0]
        granted = 1 / ((load + moved) / capacity).clamp(min=1) - 1 / (load / capacity).clamp(min=1)
        return (
            self._change(flow)
            - self._before
            + (self._slope * moved + self._other_value * granted).sum(-1)
        )


def coma_loss(problem: Problem, means: Tensor, exploration: Exploration, noise: Noise) -> Tensor:
    """The policy gradient loss, (B,): minus the sum over agents of A_i log pi(a_i), mean over
    episodes.

    Args:
        problem: B matrices.
        means: (B, D, K) from the policy.
        exploration: how to explore.
        noise: source of the actions.
    """
    loss = means.new_zeros(problem.batch)
    for _ in range(exploration.episodes):
        actions = sample_actions(means, exploration.std, noise)
        advantage = advantages(problem, means, actions, exploration, noise)
        log_density = -0.5 * ((actions - means) / exploration.std).square()
        loss = (
            loss
            - (advantage * torch.where(problem.path_mask, log_density, 0).sum(-1)).sum(1)
            / exploration.episodes
        )
    return loss
