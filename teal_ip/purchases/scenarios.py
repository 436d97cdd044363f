"""Scenarios that must fit after an expansion: matrices, failures, costs, and the utilisation limit.

Axis letters: S scenarios, F failures, M matrices, D demands, C cables, E links.  Entry point:
:func:`scenarios_of`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from teal.deprecated import with_old_attributes, with_old_keywords
from teal.errors import InputError
from teal.network import PathSet
from teal.network.reachability import reaches, with_surviving_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray

# Capacity of a candidate cable that is not built, over the median capacity.  With a capacity of 0
# the solver would treat it as failed, and would compute no price for it.
_UNBOUGHT_SHARE = 1e-3


@with_old_attributes
@dataclasses.dataclass(frozen=True, eq=False)
class Scenarios:
    """Scenarios (a matrix under a failure) that must fit after an expansion.

    Attributes:
        problem: network and paths, under max_link_utilisation; B = 1, its demand is ignored.
        demand: (S, D) Gbit/s; 0 for disconnected demands.
        live: (S, E) whether a link is up; candidate links are up.
        cable: (E,) index of the cable of each link; parallel links are separate cables here.
        cost: (C,) cost of a Gbit/s on each cable, above 0.
        max_utilisation: largest allowed utilisation, u.
        existing_capacity: (E,) Gbit/s before the expansion; 0 on candidate cables.
        max_added: (C,) largest Gbit/s that can be added; infinite for no limit.
        intact: (S,) index of the scenario of the same matrix without failure, or its own.
    """

    problem: Problem
    demand: FloatArray
    live: BoolArray
    cable: Int64Array
    cost: FloatArray
    max_utilisation: float
    existing_capacity: FloatArray
    max_added: FloatArray
    intact: Int64Array

    def __post_init__(self) -> None:
        """Raise InputError for a cost that is not finite, or not above 0."""
        is_invalid = ~(np.isfinite(self.cost) & (self.cost > 0))
        if is_invalid.any():
            cable = int(is_invalid.argmax())
            raise InputError(
                "upgrade",
                f"cost of cable {cable}",
                "a finite cost > 0 per Gbit/s",
                self.cost[cable],
            )

    @property
    def num_cables(self) -> int:
        """Number of cables, C; parallel links are separate cables."""
        return len(self.cost)

    @property
    def num_scenarios(self) -> int:
        """Number of scenarios (matrices under failures), S."""
        return len(self.demand)

    def with_paths(self, paths: PathSet) -> Scenarios:
        """Return the scenarios over other candidate paths of the same demands."""
        return dataclasses.replace(self, problem=self.problem.with_paths(paths))

    def with_scenarios(self, demand: FloatArray, live: BoolArray) -> Scenarios:
        """Return these scenarios, followed by n further ones, each of which is stored as its own
        scenario without failure (``intact``).

        Args:
            demand: (n, D) Gbit/s.
            live: (n, E) whether each link is up.
        """
        return self.joined(self.select(demand, live))

    def joined(self, more: Scenarios) -> Scenarios:
        """Return these scenarios, followed by ``more`` scenarios of the same network."""
        return dataclasses.replace(
            self,
            demand=np.concatenate([self.demand, more.demand]),
            live=np.concatenate([self.live, more.live]),
            intact=np.concatenate([self.intact, self.num_scenarios + more.intact]),
        )

    def select(self, demand: FloatArray, live: BoolArray) -> Scenarios:
        """Return n other scenarios of the same network and costs, each of which is stored as its
        own scenario without failure (``intact``).

        Args:
            demand: (n, D) Gbit/s.
            live: (n, E) whether each link is up.
        """
        return dataclasses.replace(self, demand=demand, live=live, intact=np.arange(len(demand)))

    def scaled(self, factor: float) -> Scenarios:
        """Return the scenarios with all demands multiplied by a factor."""
        return dataclasses.replace(self, demand=factor * self.demand)

    def batch(self, rows: IntArray | Int64Array, added_capacity: FloatArray) -> Problem:
        """Return some scenarios as matrices of one problem, with an expansion.

        Args:
            rows: (n,) indices of the scenarios.
            added_capacity: (C,) Gbit/s added to each cable.
        """
        capacity = torch.from_numpy(np.ascontiguousarray(self.capacity(added_capacity, rows)))
        return dataclasses.replace(
            self.problem, demand=torch.from_numpy(self.demand[rows]), capacity=capacity
        )

    def capacity(self, added_capacity: FloatArray, rows: IntArray | Int64Array) -> FloatArray:
        """Return the link capacities (n, E) of some scenarios with an expansion, Gbit/s.

        Failed links have 0; candidate cables that are not built have a small capacity.

        Args:
            added_capacity: (C,) Gbit/s added to each cable.
            rows: (n,) indices of the scenarios.
        """
        expanded = self.existing_capacity + added_capacity[self.cable]
        # Candidate cables that are not built get a small capacity, so that the solver prices them.
        unbuilt_capacity = _UNBOUGHT_SHARE * float(
            np.median(self.existing_capacity[self.existing_capacity > 0])
        )
        expanded = np.where(
            self.existing_capacity > 0, expanded, np.maximum(expanded, unbuilt_capacity)
        )
        return np.where(self.live[rows], expanded[None], 0.0)

    def needed(self, load: FloatArray) -> FloatArray:
        """Return the smallest expansion (C,), Gbit/s, with which loads respect the utilisation
        limit u.

            needed[c] = max(0, load[s, e] / u - existing[e])  over scenarios s, live links e of c

        where existing[e] is the capacity of link e before the expansion.

        Args:
            load: (S, E) Gbit/s.
        """
        shortfall = np.where(
            self.live, load / self.max_utilisation - self.existing_capacity, 0.0
        ).max(0, initial=0.0)
        needed = np.zeros(self.num_cables)
        np.maximum.at(needed, self.cable, shortfall)
        return needed

    def utilisation(self, load: FloatArray, added_capacity: FloatArray) -> FloatArray:
        """Return the largest link utilisation (S,) of loads with an expansion.

        Args:
            load: (S, E) Gbit/s.
            added_capacity: (C,) Gbit/s added to each cable; candidates that are not built have
                none.
        """
        capacity = np.where(
            self.live, (self.existing_capacity + added_capacity[self.cable])[None], 0.0
        )
        return np.asarray(load_over_capacity(load, capacity).max(1, initial=0.0))


def load_over_capacity(load: FloatArray, capacity: FloatArray) -> FloatArray:
    """Return load / capacity, for two arrays of one shape in Gbit/s; 0 for links without
    capacity.
    """
    return np.asarray(np.divide(load, capacity, out=np.zeros_like(load), where=capacity > 0))


@with_old_keywords
def scenarios_of(
    problem: Problem,
    matrices: FloatArray,
    failures: Sequence[Sequence[int]],
    cost: FloatArray,
    max_utilisation: float,
    growth: float = 1.0,
    *,
    existing_capacity: FloatArray | None = None,
    max_added: FloatArray | None = None,
    max_latency: FloatArray | None = None,
) -> tuple[Scenarios, dict[int, list[int]]]:
    """Build the scenarios of every matrix without failure and under each failure.

    A demand is disconnected if the network with all candidate cables has no path for it: it is
    excluded from the scenario, since no expansion could serve it.  A connected demand without a
    live candidate path gets a path (:mod:`teal.network.reachability`).

    Args:
        problem: network and paths, B = 1; candidate cables are links with any capacity above 0.
        matrices: (M, D) Gbit/s.
        failures: links of each failure.
        cost: (C,) cost of a Gbit/s on each link and its opposite, in the order of
            ``problem.topology.link_pairs()``.
        max_utilisation: largest allowed utilisation, above 0.
        growth: factor of all demands.
        existing_capacity: (E,) Gbit/s before the expansion, 0 on candidate cables; None for the
            capacities of the topology.
        max_added: (C,) largest Gbit/s that can be added; None for no limit.
        max_latency: (D,) ms that a path may take, infinite for no limit; None for no limits.

    Returns:
        the scenarios, a block of 1 + F for each matrix, first without failure; and the disconnected
        demands by index of the failure, -1 for none.
    """
    topology = problem.topology
    # Cable of each link: a link and its opposite one are one cable.
    cable = np.zeros(topology.num_links, dtype=np.int64)
    for cable_index, links in enumerate(topology.link_pairs()):
        cable[links] = cable_index
    # Live links (1 + F, E) and connected demands (1 + F, D), and a path for each connected demand.
    live = live_links(problem, failures)
    is_connected = np.array(
        [reaches(topology, problem.paths.pairs, row, max_latency) for row in live]
    )
    if isinstance(problem.paths, PathSet):
        paths = with_surviving_paths(
            problem.paths, topology, [(), *failures], max_latency=max_latency
        )
        problem = problem if paths is problem.paths else problem.with_paths(paths)
    # Demands above 0 that each failure disconnects; row 0 is no failure.
    has_demand = (matrices > 0).any(0)
    disconnected = {
        row - 1: np.flatnonzero(~is_connected[row] & has_demand).tolist()
        for row in range(len(live))
        if (~is_connected[row] & has_demand).any()
    }
    # Demand (S, D) of the connected demands, a block of 1 + F scenarios for each matrix.
    demand = (
        growth * np.repeat(matrices, len(live), axis=0) * np.tile(is_connected, (len(matrices), 1))
    )
    min_max_problem = dataclasses.replace(problem, objective=Objective("max_link_utilisation")).to(
        torch.float64
    )
    # The scenario without failure (``intact``) is the first one of each block.
    scenarios = Scenarios(
        min_max_problem,
        demand,
        np.tile(live, (len(matrices), 1)),
        cable,
        cost,
        max_utilisation,
        topology.capacity if existing_capacity is None else existing_capacity,
        np.full(len(cost), np.inf) if max_added is None else max_added,
        np.repeat(np.arange(len(matrices)) * len(live), len(live)),
    )
    return scenarios, disconnected


def live_links(problem: Problem, failures: Sequence[Sequence[int]]) -> BoolArray:
    """Return whether each link is up (1 + F, E), without failure and under each failure.

    Args:
        problem: supplies the network; a link of capacity 0 is never up.
        failures: links of each failure.
    """
    live = np.ones((1 + len(failures), problem.topology.num_links), dtype=bool)
    for row, failed_links in enumerate(failures, 1):
        live[row, list(failed_links)] = False
    return live & (problem.topology.capacity > 0)[None]
