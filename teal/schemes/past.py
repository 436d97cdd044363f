"""Data of a hedge: the traffic matrices that were measured before the interval to allocate.

A hedge (:class:`Hedge`) allocates for an interval whose matrix is unknown, from a :class:`Past`.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from teal.deprecated import with_old_attributes, with_old_keywords
from teal.network import TrafficMatrices
from teal.network.traffic import spread
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime.arrays import FloatArray

# Largest number of rates in a window: 80 MB as float64, and several hedges hold a window each.
_MAX_RATES = 10_000_000
# Smallest window on large networks: number of scenarios in one pass over the paths.
_MIN_MATRICES = 16
# Matrices times path slots up to which the scenario program of dropped flow is solved: about 300
# iterations per second.
_MAX_FLOW_WORK = 400_000


class Hedge(Protocol):
    """Method that allocates for a future interval, from the traffic matrices of earlier ones."""

    def allocate(self, past: Past) -> Tensor:
        """Return splits (D, K) for the interval ``past.lead`` intervals after the newest matrix."""
        ...


@with_old_attributes
@dataclasses.dataclass(frozen=True, eq=False)
class Past:
    """Traffic matrices that were measured before the interval to allocate.

    Attributes:
        network: network, paths, objective and current capacities; B = 1, its demand is unused.
        traffic: the known matrices, oldest first.
        lead: intervals from the newest known matrix to the interval to allocate, at least 1.
        first_row: row of the oldest of these matrices in the whole series.
    """

    network: Problem
    traffic: TrafficMatrices
    lead: int = 1
    first_row: int = 0

    @property
    def num_known(self) -> int:
        """Number of matrices that were measured before the interval to allocate."""
        return self.traffic.num_matrices

    @property
    def target(self) -> np.datetime64:
        """Time of the interval to allocate, if no interval before it is missing."""
        return self.traffic.timestamps[-1] + np.timedelta64(
            self.lead * self.traffic.interval_s, "s"
        )

    @property
    def traffic_row(self) -> int:
        """Row, in the whole series of matrices, of the interval to allocate."""
        return self.first_row + self.num_known - 1 + self.lead

    @with_old_keywords
    def before(self, num_known: int) -> Past:
        """Return the earlier past in which only the first ``num_known`` matrices were known."""
        return dataclasses.replace(self, traffic=self.traffic.part(0, num_known))

    def matrix(self, row: int) -> Problem | None:
        """Return the problem of one known matrix; None if it has no demand.

        Under total_flow the problem minimises the dropped flow if that program is small, else the
        largest utilisation.

        Args:
            row: row of the matrix in the whole series; None for rows before the known ones.
        """
        # Rows before the known matrices count as matrices without demand.
        demand = (
            self.traffic.read([row - self.first_row]) if row >= self.first_row else np.zeros((1, 1))
        )
        return self._under_own_objective(demand) if demand.sum() > 0 else None

    def window_length(self, window: int) -> int:
        """Return the number of matrices, at most ``window``, that a hedge may hold in memory.

        Large networks reduce it, but to no fewer than 16.
        """
        return min(window, max(_MIN_MATRICES, _MAX_RATES // self.traffic.num_demands))

    def last(self, window: int, count: int = 0) -> Problem:
        """Return a problem that minimises the largest link utilisation of the last known matrices.

        Matrices are in time order, oldest first.  Matrices without demand are gaps in the
        measurement and are excluded; if all have none, the problem has the newest one.

        Args:
            window: number of matrices; fewer if fewer are known.
            count: largest number of matrices, evenly spread; 0 for all.
        """
        return self._as_min_max_program(self._last(window, count))

    def scenarios(self, window: int, count: int = 0) -> Problem:
        """Return a problem of the last known matrices, oldest first: scenarios of one allocation.

        Under total_flow it minimises the dropped flow if that program is small, else the largest
        utilisation.

        Args:
            window: number of matrices; fewer if fewer are known.
            count: largest number of matrices, evenly spread; 0 for all.
        """
        return self._under_own_objective(self._last(window, count))

    def _last(self, window: int, count: int) -> FloatArray:
        """Return the demands (n, D) in Gbit/s of the last known matrices, oldest first.

        Matrices without demand are excluded; if all have none, the newest one is returned.

        Args:
            window: number of matrices; fewer if fewer are known.
            count: largest number of matrices, evenly spread over the window; 0 for all.
        """
        rows = spread(np.arange(max(0, self.num_known - window), self.num_known), count)
        demand = self.traffic.read(rows)
        has_demand = demand.sum(1) > 0
        return demand[has_demand] if has_demand.any() else demand[-1:]

    def _under_own_objective(self, demand: FloatArray) -> Problem:
        """Return the problem of demands (B, D), Gbit/s, for the network's objective.

        Under total_flow it minimises the dropped flow if that program is small; in all other cases
        it minimises the largest utilisation.
        """
        is_flow = self.network.objective.name is ObjectiveName.TOTAL_FLOW
        if is_flow and len(demand) * self.network.paths.leaf.size <= _MAX_FLOW_WORK:
            return self.network.with_demand(torch.from_numpy(demand))
        return self._as_min_max_program(demand)

    def _as_min_max_program(self, demand: FloatArray) -> Problem:
        """Return the problem that minimises the largest utilisation of demands (B, D), Gbit/s."""
        matrices = self.network.with_demand(torch.from_numpy(demand))
        return matrices.as_min_max_program(ObjectiveName.MAX_LINK_UTILISATION, matrices.demand)
