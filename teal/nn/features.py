"""What a network sees of a problem: one HeteroData with link nodes and path nodes.

The batch comes first everywhere: link features are (B, E, F), path features (B, D, K, F).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from teal.problem import Problem

RAW_LINK_FEATURES, RAW_PATH_FEATURES = 1, 1
SCALED_LINK_FEATURES, SCALED_PATH_FEATURES = 3, 4
_FLOOR = 1e-4  # of a mean capacity: smaller demands all look alike


def hetero_data(problem: Problem, *, scaled: bool) -> HeteroData:
    """The bipartite graph of ``problem``.

    Published form: a link has its capacity, a path its demand, both in Gbit/s.

    Scaled form, with c the mean of the live capacities: a link has log(capacity / c), the log of its
    utilisation if every path carried all its demand, and whether it is live; a path has
    log(demand / c), the largest such utilisation along it, its value over the mean value, and its
    number of links over the mean number.

    ``ops`` are the path operations, so that nobody needs an ``edge_index``; see
    :func:`explicit_edge_index` for that.
    """
    ops, mask = problem.ops, problem.path_mask
    data = HeteroData()
    if not scaled:
        data["link"].x = problem.capacity.unsqueeze(-1)
        data["path"].x = (problem.demand[..., None] * mask).unsqueeze(-1)
    else:
        live = problem.capacity > 0
        unit = problem.capacity.sum(1, keepdim=True) / live.sum(1, keepdim=True).clamp(min=1)  # (B, 1)
        pressure = ops.link_sum(problem.flows(mask.to(problem.demand.dtype))) * problem.inverse_capacity
        pressure = torch.where(live, (pressure + _FLOOR).log(), 0)
        relative = (problem.capacity / unit.clamp(min=1e-30)).clamp(min=_FLOOR).log()
        data["link"].x = torch.stack([torch.where(live, relative, 0), pressure, live.to(relative.dtype)], -1)
        size = (problem.demand / unit.clamp(min=1e-30) + _FLOOR).log()[..., None].expand(mask.shape)
        value = problem.path_value / problem.path_value.mean().clamp(min=1e-30) * ops.mask.to(relative.dtype).mean()
        hops = torch.as_tensor(problem.paths.hops, dtype=value.dtype, device=value.device)
        hops = hops / hops.sum().clamp(min=1) * ops.mask.sum()
        tightest = ops.path_max(pressure - pressure.amin(1, keepdim=True))[0] + pressure.amin(1)[:, None, None]
        features = [size, tightest, value.expand(mask.shape), hops.expand(mask.shape)]
        data["path"].x = torch.stack(features, -1) * mask[..., None]
    data.ops = ops
    data.demand, data.inverse_capacity = problem.demand, problem.inverse_capacity
    mean_value = problem.path_value.sum() / ops.mask.sum().clamp(min=1)
    data.value = problem.path_value / mean_value.clamp(min=1e-30)  # (D, K), mean 1
    data.may_shed = problem.objective.may_shed
    data.mask = mask
    data.path_degree = torch.as_tensor(problem.paths.hops, dtype=problem.demand.dtype, device=ops.device)
    data.link_degree = ops.link_sum(ops.mask[None].to(problem.demand.dtype))[0]
    return data


def explicit_edge_index(problem: Problem) -> Tensor:
    """(2, incidences) path number ``d * K + k`` and link number: what the trie stands for."""
    path, link = problem.paths.incidences()
    return torch.stack([torch.from_numpy(path), torch.from_numpy(link)]).to(problem.ops.device)
