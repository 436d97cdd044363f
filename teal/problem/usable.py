"""The program without demand and capacity that no allocation can use (:attr:`teal.Problem.usable`).

Value maximisation has the same allocations and optimum with

    capacity'[e] = min(capacity[e], sum over d of demand'[d]),
    demand'[d] = min(demand[d], sum over k of bottleneck[d, k]),

and numbers of more equal size.  Demands are limited only in matrices whose largest demand is more than 10,000 times the
smallest capacity.  In the other objectives, all demand and capacity counts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Demand over the smallest capacity above which these limit demands to what their paths can carry.  In ordinary
# networks the limits would change little, and take a pass over all paths.
_EXTREME_LOAD = 1e4


def usable_part(
    demand: Tensor,
    capacity: Tensor,
    *,
    carried: Callable[[], Tensor],
    routable: Callable[[], Tensor],
    all_have_paths: bool,
) -> tuple[Tensor, Tensor]:
    """Demand (B, D) and capacity (B, E) of the module, Gbit/s; ``demand`` itself where it stays as it is.

    Args:
        demand: (B, D) Gbit/s.
        capacity: (B, E) Gbit/s.
        carried: gives (B, D) Gbit/s that the paths of each demand can carry; called where that matters.
        routable: gives (B, D) Gbit/s of the demands with a live path; called where that matters.
        all_have_paths: whether every demand has a candidate path.
    """
    smallest = torch.where(capacity > 0, capacity, torch.inf).amin(1)
    is_extreme = demand.amax(1) > _EXTREME_LOAD * smallest if demand.shape[1] else smallest < 0
    if bool(is_extreme.any()):
        demand = torch.where(is_extreme[:, None], torch.minimum(demand, carried()), demand)
    total = demand.sum(1, keepdim=True)
    # A link that is narrow beside all demand is narrow beside the routable demand too, unless that is tiny.
    is_wide = (_EXTREME_LOAD * capacity > total).any(1, keepdim=True)
    if not (all_have_paths and bool((capacity > 0).all())) and bool(is_wide.any()):
        total = torch.where(is_wide, torch.minimum(demand, routable()).sum(1, keepdim=True), total)
    return demand, torch.where(total > 0, torch.minimum(capacity, total), capacity)  # 0 would mean a failed link
