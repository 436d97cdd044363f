"""The inputs of FlowGNN: one HeteroData with link nodes and path nodes.

The batch comes first everywhere: link features are (B, E, F), path features (B, D, K, F).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from teal.problem import Problem
from teal.problem.scale import mean_capacity, mean_value

RAW_LINK_FEATURES, RAW_PATH_FEATURES = 1, 1
SCALED_LINK_FEATURES, SCALED_PATH_FEATURES = 3, 4
_FLOOR_SHARE = 1e-4  # x mean capacity: demands and capacities below it have nearly the same feature


def hetero_data(problem: Problem, *, scaled: bool) -> HeteroData:
    """The bipartite graph of ``problem``.

    Published form: a link has its capacity, a path its demand, both in Gbit/s.

    Scaled form, with c the mean of the live capacities: a link has log(capacity / c), the log of its
    utilisation if every path carried all its demand, and whether it is live; a path has
    log(demand / c), the largest such utilisation along it, its value over the mean value, and its
    number of links over the mean number.

    ``ops`` are the path operations, which replace an ``edge_index``; :func:`explicit_edge_index` makes one for tests.
    """
    ops, mask, dtype = problem.ops, problem.path_mask, problem.demand.dtype
    count = ops.mask.sum().clamp(min=1)
    data = HeteroData()
    data.ops, data.mask, data.maximises_value = ops, mask, problem.objective.maximises_value
    data.demand, data.inverse_capacity = problem.demand, problem.inverse_capacity
    data.path_degree, data.link_degree = ops.hops.to(dtype), ops.paths_through.to(dtype)
    data.value = problem.path_value / mean_value(problem).clamp(min=1e-30)  # (D, K), mean 1
    if not scaled:
        data["link"].x = problem.capacity.unsqueeze(-1)
        data["path"].x = (problem.demand[..., None] * mask).unsqueeze(-1)
        return data
    live = problem.capacity > 0
    typical_capacity = mean_capacity(problem).clamp(min=1e-30)
    log_utilisation = torch.where(live, (problem.full_path_utilisation + _FLOOR_SHARE).log(), 0)
    log_capacity = torch.where(live, (problem.capacity / typical_capacity).clamp(min=_FLOOR_SHARE).log(), 0)
    data["link"].x = torch.stack([log_capacity, log_utilisation, live.to(dtype)], -1)
    size = (problem.demand / typical_capacity + _FLOOR_SHARE).log()[..., None]
    tightest = ops.path_max(log_utilisation)[0]
    hops = data.path_degree / (data.path_degree.sum() / count).clamp(min=1e-30)
    features = [feature.expand(mask.shape) for feature in (size, tightest, data.value, hops)]
    data["path"].x = torch.stack(features, -1) * mask[..., None]
    return data


def explicit_edge_index(problem: Problem) -> Tensor:
    """(2, incidences) path number ``d * K + k`` and link number of every (path, link) pair."""
    path, link = problem.paths.incidences()
    return torch.stack([torch.from_numpy(path), torch.from_numpy(link)]).to(problem.ops.device)
