"""How the reward of a balanced program changes if one demand alone takes other splits: exact, one demand at a time.

The reward is minus the soft maximum of the utilisations u,

    R = -(u_max / s) log sum over e of exp(s u[e] / u_max),

in which every link's term depends on u_max.  So a demand that moves flow changes all terms where it changes the
largest utilisation, and they are added up anew: E exponentials for each demand and draw, which is affordable on
networks of some hundred nodes (:func:`is_affordable`).
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from teal.learning.losses import MAXIMUM_SHARPNESS
from teal.problem import Problem
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.parallel import inlined_kernel, parallel_kernel, prange

_MOST_EXPONENTIALS = 50_000_000  # of all demands in one draw, about 0.3 s on two cores


def is_affordable(problem: Problem) -> bool:
    """Whether the exact change is computed for this problem: on the CPU, over paths, and small enough."""
    if problem.ops.device.type != "cpu" or not problem.ops.is_over_paths:
        return False
    return problem.demand.numel() * problem.topology.num_links <= _MOST_EXPONENTIALS


def change_of_reward(problem: Problem, splits: Tensor, drawn: Tensor) -> Tensor:
    """(B, D) change of the reward if each demand alone takes its splits of ``drawn`` in place of those of ``splits``.

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
        utilisation.numpy(), problem.inverse_capacity.to(torch.float64).numpy(), moved.numpy(), node.numpy(),
        np.asarray(trie.parent), np.asarray(trie.link), MAXIMUM_SHARPNESS, change,
    )  # fmt: skip
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


@parallel_kernel
def _changes(
    utilisation: FloatArray,
    inverse: FloatArray,
    moved: FloatArray,
    node: Int64Array,
    parent: AnyArray,
    link: AnyArray,
    sharpness: float,
    change: FloatArray,
) -> None:
    batch, demands = change.shape
    for b in range(batch):
        before = _soft_maximum(utilisation[b], sharpness)
        for d in prange(demands):
            one = utilisation[b].copy()
            for k in range(node.shape[2]):
                at = node[b, d, k]
                while at >= 0:
                    one[link[at]] += moved[b, d, k] * inverse[b, link[at]]
                    at = parent[at]
            change[b, d] = before - _soft_maximum(one, sharpness)
