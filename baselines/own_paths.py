"""Allocations over paths that are not among the candidates: the candidates, and those."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baselines.contraction import LinkPath
from teal.network import PathSet
from teal.network.extension import with_more_paths
from teal.problem import Problem


def with_flows(problem: Problem, flows: list[list[dict[LinkPath, float]]]) -> tuple[PathSet, Tensor]:
    """The candidate paths with all that carry anything, and the splits (B, D, K') over them.

    Args:
        flows: of each matrix and demand, Gbit/s by path, a path being its links in order.
    """
    paths, demands = problem.paths, problem.paths.num_demands
    wanted = [dict.fromkeys(path for own in flows for path in own[d]) for d in range(demands)]
    place = [_places(paths, d) for d in range(demands)]
    new = [[path for path in own if path not in place[d]] for d, own in enumerate(wanted)]
    for number in range(max(map(len, new), default=0)):
        fresh = [own[number] if number < len(own) else () for own in new]
        ptr = np.concatenate([[0], np.cumsum([len(path) for path in fresh])]).astype(np.int64)
        links = np.array([link for path in fresh for link in path], np.int32)
        paths = with_more_paths(paths, ptr, links)
    if any(new):
        place = [_places(paths, d) for d in range(demands)]
    splits = np.zeros((len(flows), *paths.leaf.shape))
    rates = problem.demand.cpu().numpy()
    for b, own in enumerate(flows):
        for d, carried in enumerate(own):
            for path, flow in carried.items():
                splits[b, d, place[d][path]] += flow / rates[b, d]
    return paths, torch.from_numpy(splits).to(problem.demand)


def _places(paths: PathSet, demand: int) -> dict[LinkPath, int]:
    return {tuple(paths.path_links(demand, k)): k for k in np.flatnonzero(paths.mask[demand]).tolist()}
