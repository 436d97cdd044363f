"""Value steps: piecewise-linear concave values of demands, whose first part has the largest value.

With C steps, a demand d of which the share z is carried has the value

    demand[d] demand_value[d] sum over c of level[d, c] (min(z, end[d, c]) - min(z, end[d, c - 1])),
    end[d, -1] = 0,

which is concave, since levels fall. If the best path of d has the profit g for each Gbit/s in the
first step (value less prices), then its term in the dual bound is, for each Gbit/s of demand,

    sum over c of (end[d, c] - end[d, c - 1]) max(0, g - demand_value[d] (1 - level[d, c])).

Priority classes of a node pair with the same paths are steps of one demand: serving the highest
class first is never worse. Bandwidth functions are steps, too
(:mod:`teal.network.bandwidth_functions`). Entry point: :class:`ValueSteps`.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from teal.network.bandwidth_functions import BandwidthFunctions
from teal.runtime.shapes import Float


@dataclasses.dataclass(frozen=True, eq=False)
class ValueSteps:
    """The C value steps of D demands in B matrices.

    Attributes:
        level: (D, C) value of a Gbit/s in each step relative to the first step: 1 first,
            non-increasing; (1, C) if it is the same for all demands.
        end: (B, D, C) share of the demand at which each step ends, non-decreasing; 1 for the last
            step.
    """

    level: Float[Tensor, "D C"]
    end: Float[Tensor, "B D C"]

    @classmethod
    def of_functions(cls, functions: BandwidthFunctions, demand: Tensor) -> ValueSteps:
        """Build the steps of demands from the pieces of bandwidth functions.

        Args:
            functions: bandwidth functions of D demands.
            demand: (B, D) Gbit/s.
        """
        end = torch.from_numpy(functions.end).to(demand)[None]
        rate = demand[..., None]
        if not functions.by_share:
            end = torch.where(rate > 0, end / rate.clamp(min=torch.finfo(rate.dtype).tiny), 1)
        level = torch.from_numpy(functions.slope / functions.slope[:, :1]).to(demand)
        return cls(level, end.expand(*demand.shape, -1).clamp(max=1).contiguous())

    def profit(self, best: Tensor, demand_value: Tensor) -> Tensor:
        """Return the term (B, D) of each demand in the dual bound, value for each Gbit/s of demand.

        It is sum over the steps of width * max(0, best - demand_value * (1 - level)).

        Args:
            best: (B, D) profit of a Gbit/s on the best path in the first step.
            demand_value: (D,) value of a Gbit/s in the first step.
        """
        total = torch.zeros_like(best)
        start = torch.zeros_like(best)
        for step, level in enumerate(self.level.to(best).T):
            end = self.end[..., step].to(best)
            total = total + (end - start) * (best - demand_value * (1 - level)).clamp(min=0)
            start = end
        return total

    def lost(self, share: Tensor) -> Tensor:
        """Return the value (B, D) that carried demands lack because later steps have lower levels,
        relative to the value of the whole demand at the level of the first step.

        Args:
            share: (B, D) carried share of each demand.
        """
        level = self.level.to(share)
        lost_value = torch.zeros_like(share)
        for step in range(1, level.shape[-1]):
            lost_value = lost_value + (level[:, step - 1] - level[:, step]) * (
                share - self.end[..., step - 1].to(share)
            ).clamp(min=0)
        return lost_value

    def of_part(self, share: Tensor) -> ValueSteps:
        """Return the steps of the first part of each demand, with ends relative to that part.

        Args:
            share: (B, D) part over the demand; steps stay unchanged where it is 0 or NaN.
        """
        share = torch.where(share > 0, share, 1).to(self.end)
        return ValueSteps(self.level, (self.end / share[..., None]).clamp(max=1))

    def last_level(self) -> Tensor:
        """Return the value (B, D) of the last Gbit/s of each demand relative to its first one."""
        # Index of the first step that ends at the whole demand.
        step = (self.end[..., :-1] < 1).sum(-1, keepdim=True)
        return self.level.expand_as(self.end).gather(-1, step)[..., 0]

    def rows(self, rows: slice | Tensor) -> ValueSteps:
        """Return the steps of some of the matrices, by a slice, indices or booleans."""
        return ValueSteps(self.level, self.end[rows])

    def demands(self, demands: slice | Tensor) -> ValueSteps:
        """Return the steps of some of the demands, by a slice, indices or booleans."""
        return ValueSteps(
            self.level if len(self.level) == 1 else self.level[demands], self.end[:, demands]
        )
