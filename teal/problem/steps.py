"""A value of demands that falls in steps: the first part of a demand is worth more than the next.

With C steps, a demand d of which the share z is carried has the value

    demand[d] demand_value[d] sum over c of level[d, c] (min(z, end[d, c]) - min(z, end[d, c - 1])),
    end[d, -1] = 0,

which is concave, since levels fall.  If the best path of d has the profit g for each Gbit/s in the
first step (value less prices), then the part of d in weak duality is, for each Gbit/s of demand,

    sum over c of (end[d, c] - end[d, c - 1]) max(0, g - demand_value[d] (1 - level[d, c])).

Classes of a pair of nodes that may use the same paths are such steps of one demand: to serve the
highest class first is never worse.  So are bandwidth functions, one for each demand
(:mod:`teal.network.bandwidth_functions`).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.network.bandwidth_functions import BandwidthFunctions
from teal.runtime.shapes import Float


@dataclasses.dataclass(frozen=True, eq=False)
class ValueSteps:
    """C steps of the value of D demands in B matrices.

    Attributes:
        level: (D, C) value of a Gbit/s in each step over that in the first one: 1 first, and
            falling; (1, C) if it is the same for all demands.
        end: (B, D, C) share of the demand at which each step ends, not falling; 1 for the last
            step.
    """

    level: Float[Tensor, "D C"]
    end: Float[Tensor, "B D C"]

    @classmethod
    def of_functions(cls, functions: BandwidthFunctions, demand: Tensor) -> ValueSteps:
        """The pieces of bandwidth functions as steps of the demands (B, D), Gbit/s."""
        end, rate = torch.from_numpy(functions.end).to(demand)[None], demand[..., None]
        if not functions.by_share:
            end = torch.where(rate > 0, end / rate.clamp(min=torch.finfo(rate.dtype).tiny), 1)
        level = torch.from_numpy(functions.slope / functions.slope[:, :1]).to(demand)
        return cls(level, end.expand(*demand.shape, -1).clamp(max=1).contiguous())

    def profit(self, best: Tensor, demand_value: Tensor) -> Tensor:
        """(B, D) the part of each demand in weak duality, value for each Gbit/s of demand.

        Args:
            best: (B, D) g, profit of the best path in the first step, value per Gbit/s.
            demand_value: (D,) value of a Gbit/s in the first step.
        """
        total, start = torch.zeros_like(best), torch.zeros_like(best)
        for c, level in enumerate(self.level.to(best).T):
            end = self.end[..., c].to(best)
            total = total + (end - start) * (best - demand_value * (1 - level)).clamp(min=0)
            start = end
        return total

    def lost(self, share: Tensor) -> Tensor:
        """(B, D) share of the first step's value that is lost, since some of ``share`` (B, D) lies
        in later steps.
        """
        level = self.level.to(share)
        total = torch.zeros_like(share)
        for c in range(1, level.shape[-1]):
            total = total + (level[:, c - 1] - level[:, c]) * (
                share - self.end[..., c - 1].to(share)
            ).clamp(min=0)
        return total

    def of_part(self, share: Tensor) -> ValueSteps:
        """The steps as shares of the first part of each demand.

        Args:
            share: (B, D) of the demand that the part is; the steps stay where it is 0 or NaN.
        """
        share = torch.where(share > 0, share, 1).to(self.end)
        return ValueSteps(self.level, (self.end / share[..., None]).clamp(max=1))

    def last_level(self) -> Tensor:
        """(B, D) value of the last Gbit/s of each demand over that of its first one."""
        step = (self.end[..., :-1] < 1).sum(-1, keepdim=True)
        return self.level.expand_as(self.end).gather(-1, step)[..., 0]

    def rows(self, rows: slice | Tensor) -> ValueSteps:
        """The steps in some of the matrices."""
        return ValueSteps(self.level, self.end[rows])

    def demands(self, demands: slice | Tensor) -> ValueSteps:
        """The steps of some of the demands."""
        return ValueSteps(
            self.level if len(self.level) == 1 else self.level[demands], self.end[:, demands]
        )
