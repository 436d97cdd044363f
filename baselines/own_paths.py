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
    """Extend the candidate paths by all paths with flow, and convert the flows to splits.

    Args:
        problem: problem of B matrices.
        flows: for each matrix and demand, the flow on each path in Gbit/s, by path.

    Returns:
        the extended paths, K' per demand, and the splits (B, D, K') over them.
    """
    paths = problem.paths
    num_demands = problem.paths.num_demands
    # For each demand its paths with flow, the column of each candidate path, and the new paths.
    used_paths = [
        dict.fromkeys(path for matrix_flows in flows for path in matrix_flows[d])
        for d in range(num_demands)
    ]
    path_columns = [_path_columns(paths, d) for d in range(num_demands)]
    new_paths_by_demand = [
        [path for path in demand_paths if path not in path_columns[d]]
        for d, demand_paths in enumerate(used_paths)
    ]
    # Add the new paths, one for each demand at a time; a demand without another one gets ().
    for index in range(max(map(len, new_paths_by_demand), default=0)):
        added_paths = [
            new_paths[index] if index < len(new_paths) else () for new_paths in new_paths_by_demand
        ]
        ptr = np.concatenate([[0], np.cumsum([len(path) for path in added_paths])]).astype(np.int64)
        links = np.array([link for path in added_paths for link in path], np.int32)
        paths = with_more_paths(paths, ptr, links)
    if any(new_paths_by_demand):
        path_columns = [_path_columns(paths, d) for d in range(num_demands)]
    # Splits are flows over the rates of the demands.
    splits = np.zeros((len(flows), *paths.leaf.shape))
    rates = problem.demand.cpu().numpy()
    for b, matrix_flows in enumerate(flows):
        for d, path_flows in enumerate(matrix_flows):
            for path, flow in path_flows.items():
                splits[b, d, path_columns[d][path]] += flow / rates[b, d]
    return paths, torch.from_numpy(splits).to(problem.demand)


def _path_columns(paths: PathSet, demand: int) -> dict[LinkPath, int]:
    """Return the path index k of each path of one demand, by its links."""
    return {
        tuple(paths.links_of(demand, k)): k for k in np.flatnonzero(paths.mask[demand]).tolist()
    }
