"""The programs: what is optimised, in which sense, and whether a demand may be shed.

With flows x[d, k] >= 0, capacities c[e] and load[e] the sum of x over the paths through e:

- value maximisation: max sum v[d, k] x[d, k]  s.t.  sum_k x[d, k] <= demand[d], load[e] <= c[e].
  A path's value is additive, v[d, k] = value of the demand - sum of its links' costs;
- max_link_utilisation: min theta  s.t.  sum_k x[d, k] = demand[d], load[e] <= theta c[e];
- max_concurrent_flow: max alpha <= 1  s.t.  sum_k x[d, k] >= alpha demand[d] (and <= demand[d]),
  load[e] <= c[e].  Scaling all flows alike shows that alpha = min(1, 1 / theta), so that both are
  solved as one; what capacity is left goes to whoever can use it.

The last two, the balanced programs, go over the demands that have a path left.  A demand without one cannot be
carried by anybody; it is left out of program, bound and validator alike, and seen in the satisfied demand.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from teal.errors import InputError

FloatArray = npt.NDArray[np.floating]


class ObjectiveName(StrEnum):
    """The five objectives."""

    TOTAL_FLOW = "total_flow"
    WEIGHTED_FLOW = "weighted_flow"
    LATENCY_PENALISED_FLOW = "latency_penalised_flow"
    MAX_LINK_UTILISATION = "max_link_utilisation"
    MAX_CONCURRENT_FLOW = "max_concurrent_flow"


@dataclasses.dataclass(frozen=True)
class Objective:
    """One of the programs above.

    Attributes:
        name: which.
        epsilon: of latency_penalised_flow, in [0, 1): what the longest path loses of its value.

    Raises:
        InputError: an unknown name, or ``epsilon`` out of range.
    """

    name: ObjectiveName = ObjectiveName.TOTAL_FLOW
    epsilon: float = 0.5

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "name", ObjectiveName(self.name))  # a plain string is as good
        except ValueError:
            raise InputError("objective", "name", ", ".join(ObjectiveName), repr(self.name)) from None
        if not 0 <= self.epsilon < 1:
            raise InputError("objective", "epsilon", "a number in [0, 1)", self.epsilon)

    @property
    def maximises_value(self) -> bool:
        """True for the three programs that maximise a sum over flows: there solvers and policies reject demand."""
        return not self.is_balanced

    @property
    def is_balanced(self) -> bool:
        """True where all demands are carried in the same proportion: solved as max_link_utilisation."""
        return self.name in (ObjectiveName.MAX_LINK_UTILISATION, ObjectiveName.MAX_CONCURRENT_FLOW)

    @property
    def higher_is_better(self) -> bool:
        """False for max_link_utilisation alone."""
        return self.name is not ObjectiveName.MAX_LINK_UTILISATION

    @property
    def may_shed(self) -> bool:
        """Whether an allocation may carry a demand in part, and must then respect capacities."""
        return self.higher_is_better

    def demand_value(self, weight: FloatArray | None, demands: int) -> FloatArray:
        """(D,) what one Gbit/s of each demand is worth: its weight, else 1; 0 for the balanced programs.

        Raises:
            InputError: weighted_flow without weights.
        """
        if self.is_balanced:
            return np.zeros(demands)
        if self.name is not ObjectiveName.WEIGHTED_FLOW:
            return np.ones(demands)
        if weight is None:
            raise InputError("objective weighted_flow", "weight", "a weight for each demand", "none")
        return np.asarray(weight, dtype=np.float64)

    def link_cost(self, latency: FloatArray, longest: float) -> FloatArray:
        """(E,) what one Gbit/s loses on each link: epsilon * latency / longest under latency_penalised_flow.

        Args:
            latency: (E,) ms.
            longest: ms, largest latency of a candidate path; other candidates, another scale of costs.
        """
        if self.name is not ObjectiveName.LATENCY_PENALISED_FLOW or longest <= 0:
            return np.zeros_like(latency)
        return self.epsilon * latency / longest
