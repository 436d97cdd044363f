"""Allocations over a scheme's own paths: the candidate paths extended by those that carry flow."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from baselines.contraction import LinkPath
from teal.network import PathSet
from teal.network.path_changes import with_more_paths
from teal.problem import Problem


def with_flows(
    problem: Problem, flows: list[list[dict[LinkPath, float]]]
) -> tuple[PathSet, Tensor]:
    """The candidate paths extended by all paths in ``flows``, and the splits (B, D, K') over them.

    Args:
        problem: B matrices.
        flows: for each matrix and demand, path -> Gbit/s.
    """
    paths = problem.paths
    demands = problem.paths.num_demands
    used = [
        dict.fromkeys(path for matrix_flows in flows for path in matrix_flows[d])
        for d in range(demands)
    ]
    column = [_path_columns(paths, d) for d in range(demands)]
    new = [
        [path for path in demand_paths if path not in column[d]]
        for d, demand_paths in enumerate(used)
    ]
    for number in range(max(map(len, new), default=0)):  # one new path per demand at a time
        added = [new_paths[number] if number < len(new_paths) else () for new_paths in new]
        ptr = np.concatenate([[0], np.cumsum([len(path) for path in added])]).astype(np.int64)
        links = np.array([link for path in added for link in path], np.int32)
        paths = with_more_paths(paths, ptr, links)
    if any(new):
        column = [_path_columns(paths, d) for d in range(demands)]
    splits = np.zeros((len(flows), *paths.leaf.shape))
    rates = problem.demand.cpu().numpy()
    for b, matrix_flows in enumerate(flows):
        for d, path_flows in enumerate(matrix_flows):
            for path, flow in path_flows.items():
                splits[b, d, column[d][path]] += flow / rates[b, d]
    return paths, torch.from_numpy(splits).to(problem.demand)


def _path_columns(paths: PathSet, demand: int) -> dict[LinkPath, int]:
    """Path -> its column k, for the paths of one demand."""
    return {
        tuple(paths.links_of(demand, k)): k for k in np.flatnonzero(paths.mask[demand]).tolist()
    }
