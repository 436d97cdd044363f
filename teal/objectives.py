"""The programs: objective, sense, and whether a demand may be carried in part (shed).

With flows x[d, k] >= 0, capacities c[e] and load[e] the sum of x over the paths through e:

- value maximisation: max sum v[d, k] x[d, k]  s.t.  sum_k x[d, k] <= demand[d], load[e] <= c[e].
  A path's value is additive, v[d, k] = value of the demand - sum of its links' costs;
- max_link_utilisation: min theta  s.t.  sum_k x[d, k] = demand[d], load[e] <= theta c[e];
- max_concurrent_flow: max alpha <= 1  s.t.  sum_k x[d, k] >= alpha demand[d] (and <= demand[d]),
  load[e] <= c[e].  Scaling all flows alike shows that alpha = min(1, 1 / theta), so that both are
  solved as one program; capacity that is left over is given to demands that can use it.

- max_min: the rates f[d] = sum_k x[d, k] are max-min fair: no f[d] / w[d], with w[d] the demand's weight, can be raised
  without lowering another one that is not larger.  Value and bound are flows, see :mod:`teal.problem.fair_levels`.
  Schemes without a method for it maximise the sum of w[d] f[d].
- priority: demands belong to classes, the highest first.  The flow of class 1 is maximal; that of class 2 is maximal
  among the allocations that carry as much of class 1; and so on.  See :mod:`teal.problem.priority`.
  Schemes without a method for it solve the weighted program, in which a Gbit/s of a class has CLASS_RATIO times the
  value of one of the next class.

max_link_utilisation and max_concurrent_flow, the balanced programs, include only demands with a live path.  No
allocation can carry the others: they are left out of program, bound and validator alike, and show in the satisfied
demand.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum

import numpy as np

from teal.errors import InputError
from teal.runtime.arrays import AnyArray, FloatArray


class ObjectiveName(StrEnum):
    """The objectives."""

    TOTAL_FLOW = "total_flow"
    WEIGHTED_FLOW = "weighted_flow"
    LATENCY_PENALISED_FLOW = "latency_penalised_flow"
    MAX_LINK_UTILISATION = "max_link_utilisation"
    MAX_CONCURRENT_FLOW = "max_concurrent_flow"
    PRIORITY = "priority"
    MAX_MIN = "max_min"


# Value of a Gbit/s over that of one of the next class.  It must exceed the flow of the next class that a Gbit/s can
# displace, where bottlenecks follow each other along its path: with 2, higher classes lost up to 3% of their flow on
# UsCarrier, with 3 up to 0.3%, with 4 up to 0.02%; more makes the programs harder to solve.
CLASS_RATIO = 4.0


# The objectives that are a sequence of programs: one for each class, one for each level of rates.
SEQUENCES = (ObjectiveName.PRIORITY, ObjectiveName.MAX_MIN)
SINGLE_PROGRAMS = tuple(name for name in ObjectiveName if name not in SEQUENCES)
PROMISES = (
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.WEIGHTED_FLOW,
    ObjectiveName.PRIORITY,
)  # whose flows may be promises
WEIGHTED = (ObjectiveName.WEIGHTED_FLOW, ObjectiveName.PRIORITY)  # the objectives that need weights


@dataclasses.dataclass(frozen=True)
class Objective:
    """One of the programs above.

    Attributes:
        name: which program.
        epsilon: for latency_penalised_flow, in [0, 1): share of its value that the path of largest latency loses.

    Raises:
        InputError: an unknown name, or ``epsilon`` out of range.
    """

    name: ObjectiveName = ObjectiveName.TOTAL_FLOW
    epsilon: float = 0.5

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "name", ObjectiveName(self.name))  # a plain string is accepted too
        except ValueError:
            raise InputError("objective", "name", ", ".join(ObjectiveName), repr(self.name)) from None
        if not 0 <= self.epsilon < 1:
            raise InputError("objective", "epsilon", "a number in [0, 1)", self.epsilon)

    @property
    def maximises_value(self) -> bool:
        """True for the programs that maximise a sum over flows; solvers and policies may reject demand there."""
        return not self.is_balanced

    @property
    def is_balanced(self) -> bool:
        """True where all demands are carried in the same proportion: solved as max_link_utilisation."""
        return self.name in (ObjectiveName.MAX_LINK_UTILISATION, ObjectiveName.MAX_CONCURRENT_FLOW)

    @property
    def is_sequence(self) -> bool:
        """True for priority and max_min, which are a sequence of programs."""
        return self.name in SEQUENCES

    @property
    def has_classes(self) -> bool:
        """True for priority, whose classes have a value and a bound each."""
        return self.name is ObjectiveName.PRIORITY

    @property
    def is_fair(self) -> bool:
        """True for max_min, whose levels of rates have a bound each."""
        return self.name is ObjectiveName.MAX_MIN

    @property
    def higher_is_better(self) -> bool:
        """False for max_link_utilisation alone."""
        return self.name is not ObjectiveName.MAX_LINK_UTILISATION

    @property
    def may_shed(self) -> bool:
        """Whether an allocation may carry a demand in part; loads must then stay within capacities.

        Differs from :attr:`maximises_value` for max_concurrent_flow, which sheds but is solved as a balanced program.
        """
        return self.higher_is_better

    def demand_value(self, weight: AnyArray | None, demands: int) -> FloatArray:
        """(D,) value of one Gbit/s of each demand: its weight, else 1; 0 for the balanced programs.

        Raises:
            InputError: weighted_flow or priority without weights; a weight of 0 under max_min.
        """
        if self.is_balanced:
            return np.zeros(demands)
        if self.is_fair and weight is not None:
            if not np.all(np.asarray(weight) > 0):
                raise InputError("objective max_min", "weight", "above 0", float(np.min(weight)))
        elif self.name not in WEIGHTED:
            return np.ones(demands)
        if weight is None:
            raise InputError(f"objective {self.name.value}", "weight", "a weight for each demand", "none")
        return np.asarray(weight, dtype=np.float64)

    def link_cost(self, latency: FloatArray, max_latency: float) -> FloatArray:
        """(E,) value that one Gbit/s loses on each link: epsilon * latency / max_latency, 0 for other objectives.

        Args:
            latency: (E,) ms.
            max_latency: largest latency of a candidate path, ms.
        """
        if self.name is not ObjectiveName.LATENCY_PENALISED_FLOW or max_latency <= 0:
            return np.zeros_like(latency)
        return self.epsilon * latency / max_latency
