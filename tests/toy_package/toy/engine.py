"""toy-greedy: each demand on its first paths with free capacity, in the order of the demands."""

from typing import Any

import numpy as np
import torch

from teal.extend import Limits, Start, certified_result


class Greedy:
    """First fit for total flow; a full link has the price of the most valuable Gbit/s."""

    name = "toy-greedy"

    def accepts(self, problem: Any) -> bool:
        """Whether demand may be unserved, for a linear value."""
        return problem.is_linear and not problem.demand_set.carries_all

    def predict_seconds(self, problem: Any, start: Start, gap: float) -> float:
        """A millisecond."""
        return 1e-3

    def solve(self, problem: Any, start: Start, limits: Limits) -> Any:
        """Allocate matrix by matrix."""
        exact = problem.to(torch.float64)
        paths = exact.paths
        splits = torch.zeros(exact.batch, *paths.mask.shape, dtype=torch.float64)
        prices = torch.zeros_like(exact.capacity)
        for b in range(exact.batch):
            free = exact.capacity[b].numpy().copy()
            for d, k in np.argwhere(paths.mask):
                rate = float(exact.demand[b, d])
                links = paths.links_of(d, k)
                left = rate * (1 - float(splits[b, d].sum()))
                flow = min(left, free[links].min()) if rate else 0.0
                free[links] -= flow
                splits[b, d, k] = flow / rate if rate else 0.0
            full = torch.from_numpy(free <= 1e-9 * exact.capacity[b].numpy())
            prices[b] = full * float(exact.demand_value.max())
            yield  # other requests may run here, and Ctrl-C is seen
        return certified_result(exact, splits, prices, limits.gap)
