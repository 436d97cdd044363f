"""Latency of what an allocation carries."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from teal.problem import Problem

_TAIL = 0.99  # share of the volume


class LatencyFigures(NamedTuple):
    """Latency of one matrix; NaN where nothing is carried.

    Attributes:
        mean: ms, over the volume.
        tail: ms, least that 99% of the volume do not exceed.
        stretch: largest latency of a path that is used over that of the demand's fastest live candidate path.
    """

    mean: float
    tail: float
    stretch: float


def latency_figures(problem: Problem, splits: Tensor) -> LatencyFigures:
    """Of a problem of one matrix and splits (D, K)."""
    flow = problem.flows(splits[None].to(problem.demand))[0].double()
    latency = torch.as_tensor(problem.topology.latency, device=flow.device)[None]
    of_path = problem.ops.path_sum(latency)[0].expand_as(flow)
    fastest = torch.where(problem.path_mask[0], of_path, torch.inf).amin(-1, keepdim=True)
    used = flow > 1e-9 * problem.demand[0].double()[:, None]
    if not bool(used.any()):
        return LatencyFigures(float("nan"), float("nan"), float("nan"))
    values, order = of_path[used].sort()
    volume = flow[used][order].cumsum(0)
    at = int(torch.searchsorted(volume, _TAIL * volume[-1] * (1 - 1e-12)))
    mean = float((of_path * flow)[used].sum() / volume[-1])
    return LatencyFigures(mean, float(values[at]), float((of_path / fastest)[used].max()))
