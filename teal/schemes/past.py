"""The knowledge of a hedge when it allocates for an interval."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from teal.network import TrafficMatrices
from teal.network.traffic import spread
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime.arrays import FloatArray

_MAX_RATES = 10_000_000  # of the matrices of a window, 80 MB as float64; several hedges hold some
_MIN_MATRICES = (
    16  # of a window on the largest networks: the scenarios that one pass over the paths serves
)
# Matrices x path slots up to which the scenario program of dropped flow is solved: a second for
# some 300 iterations.
_MAX_FLOW_WORK = 400_000


class Hedge(Protocol):
    """A way to allocate for an interval whose matrix is not known."""

    def allocate(self, past: Past) -> Tensor:
        """(D, K) splits for the interval ``past.lead`` intervals after the newest matrix."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Past:
    """The matrices that were measured before the interval that is allocated for.

    Attributes:
        network: network, paths and objective, and the capacities in force; B = 1, its demand means
            nothing.
        traffic: the matrices that are known, oldest first; later ones are not in it.
        lead: intervals from the newest known matrix to the one that is allocated for, at least 1.
        first_row: number of the oldest of these matrices in the whole series.
    """

    network: Problem
    traffic: TrafficMatrices
    lead: int = 1
    first_row: int = 0

    @property
    def known(self) -> int:
        """Number of matrices that are known."""
        return self.traffic.num_matrices

    @property
    def target(self) -> np.datetime64:
        """Time of the interval that is allocated for, if no interval is missing before it."""
        return self.traffic.timestamps[-1] + np.timedelta64(
            self.lead * self.traffic.interval_s, "s"
        )

    @property
    def traffic_row(self) -> int:
        """Number in the whole series of the matrix of that interval."""
        return self.first_row + self.known - 1 + self.lead

    def before(self, known: int) -> Past:
        """The past as it was when only the first ``known`` matrices were known."""
        return dataclasses.replace(self, traffic=self.traffic.part(0, known))

    def matrix(self, row: int) -> Problem | None:
        """A known matrix, by its number in the whole series, as for :meth:`scenarios`; None without
        demand.
        """
        demand = (
            self.traffic.read([row - self.first_row]) if row >= self.first_row else np.zeros((1, 1))
        )
        return self._under_own_objective(demand) if demand.sum() > 0 else None

    def most(self, window: int) -> int:
        """``window``, or as many matrices of so many demands as a hedge may hold in memory; at
        least 16.
        """
        return min(window, max(_MIN_MATRICES, _MAX_RATES // self.traffic.num_demands))

    def last(self, window: int, count: int = 0) -> Problem:
        """The last matrices, oldest first, to minimise the largest link utilisation.

        Matrices without demand are left out, since they are gaps; if all have none, the newest is
        returned.

        Args:
            window: number of matrices; fewer if fewer are known.
            count: number of matrices, evenly spread, at most; 0 for all.
        """
        return self._balanced(self._last(window, count))

    def scenarios(self, window: int, count: int = 0) -> Problem:
        """Splits over scenarios that, under total_flow, lose as little as possible where that
        program is solved in time.

        Args:
            window, count: as in :meth:`last`.
        """
        return self._under_own_objective(self._last(window, count))

    def _last(self, window: int, count: int) -> FloatArray:
        rows = spread(np.arange(max(0, self.known - window), self.known), count)
        demand = self.traffic.read(rows)
        has_demand = demand.sum(1) > 0
        return demand[has_demand] if has_demand.any() else demand[-1:]

    def _under_own_objective(self, demand: FloatArray) -> Problem:
        is_flow = self.network.objective.name is ObjectiveName.TOTAL_FLOW
        if is_flow and len(demand) * self.network.paths.leaf.size <= _MAX_FLOW_WORK:
            return self.network.with_demand(torch.from_numpy(demand))
        return self._balanced(demand)

    def _balanced(self, demand: FloatArray) -> Problem:
        """Matrices (B, D) whose largest utilisation is to be minimised."""
        matrices = self.network.with_demand(torch.from_numpy(demand))
        return matrices.balanced(ObjectiveName.MAX_LINK_UTILISATION, matrices.demand)
