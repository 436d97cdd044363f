"""The programs: what is optimised, in which sense, and whether a demand may be shed.

With flows x[d, k] >= 0, capacities c[e] and load[e] the sum of x over the paths through e:

- value maximisation: max sum v[d, k] x[d, k]  s.t.  sum_k x[d, k] <= demand[d], load[e] <= c[e];
- max_link_utilisation: min theta  s.t.  sum_k x[d, k] = demand[d], load[e] <= theta c[e], over the
  demands that have a path left.  A demand without one cannot be carried by anybody; it is left out
  of program, bound and validator alike, and seen in the satisfied demand.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from teal.errors import InputError

FloatArray = npt.NDArray[np.floating]


class ObjectiveName(StrEnum):
    """The four objectives."""

    TOTAL_FLOW = "total_flow"
    WEIGHTED_FLOW = "weighted_flow"
    LATENCY_PENALISED_FLOW = "latency_penalised_flow"
    MAX_LINK_UTILISATION = "max_link_utilisation"


@dataclasses.dataclass(frozen=True)
class Objective:
    """One of the programs above.

    Attributes:
        name: which.
        epsilon: of latency_penalised_flow, in [0, 1): what the longest path loses of its value.

    Raises:
        InputError: ``epsilon`` out of range.
    """

    name: ObjectiveName = ObjectiveName.TOTAL_FLOW
    epsilon: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < 1:
            raise InputError("objective", "epsilon", "a number in [0, 1)", self.epsilon)

    @property
    def maximises_value(self) -> bool:
        """True for the three value-maximising programs, false for max_link_utilisation."""
        return self.name is not ObjectiveName.MAX_LINK_UTILISATION

    @property
    def may_shed(self) -> bool:
        """Whether a demand may be carried in part: then the policy has a reject option."""
        return self.maximises_value

    def path_value(self, latency: FloatArray, weight: FloatArray | None) -> FloatArray:
        """Value v[d, k] of one Gbit/s on each path.

        total_flow: 1.  weighted_flow: the demand's weight.  latency_penalised_flow:
        1 - epsilon * latency[d, k] / max latency.  max_link_utilisation has no values: 0.

        Args:
            latency: (D, K) ms, 0 where there is no path.
            weight: (D,) priority of each demand; only weighted_flow reads it.

        Raises:
            InputError: weighted_flow without weights.
        """
        match self.name:
            case ObjectiveName.TOTAL_FLOW:
                return np.ones_like(latency)
            case ObjectiveName.WEIGHTED_FLOW:
                if weight is None:
                    raise InputError("objective weighted_flow", "weight", "a weight for each demand", "none")
                return np.repeat(weight[:, None], latency.shape[1], axis=1)
            case ObjectiveName.LATENCY_PENALISED_FLOW:
                longest = latency.max(initial=0.0)
                return 1.0 - self.epsilon * latency / longest if longest > 0 else np.ones_like(latency)
            case ObjectiveName.MAX_LINK_UTILISATION:
                return np.zeros_like(latency)
