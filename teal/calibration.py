"""Scaling demands so that networks of every size are loaded alike."""

from __future__ import annotations

import math

import numpy as np

from teal.errors import InputError, SolverError
from teal.network import PathSet, Topology, TrafficMatrices
from teal.network.traffic import Rows, spread
from teal.objectives import Objective
from teal.problem import Problem
from teal.solvers import pdhg

_TOLERANCE = 5e-4  # of the share
_GAP = 1e-3  # certified, of each optimum
_WIDEST_GAP = 1e-2
_MOST_ITERATIONS = 2000
_MOST_SAMPLES, _SAMPLE_ENTRIES = 21, 200_000


def calibration_factor(topology: Topology, paths: PathSet, traffic: TrafficMatrices, rows: Rows, share: float) -> float:
    """The factor at which LP-all satisfies ``share`` of the median of the matrices ``rows``.

    The optimum of total flow is found by PDHG to a certified gap of 0.1%, and no LP solver is needed;
    the median goes over up to 21 of the matrices, evenly spread, fewer on large networks (at least 5).
    The satisfied share falls as the factor grows: bracketed, then found by bisection in its logarithm.

    Raises:
        InputError: ``share`` not in (0, 1), or more than the network can route at any load.
        SolverError: an optimum is not known to 1% after 2,000 iterations.
    """
    where = "--calibrate"
    if not 0 < share < 1:
        raise InputError(where, "", "a share between 0 and 1", share)
    count = int(np.clip(_SAMPLE_ENTRIES // traffic.num_demands, 5, _MOST_SAMPLES))
    demand = traffic.read(spread(rows, count))
    demand = demand[demand.sum(1) > 0]
    if not len(demand):
        raise InputError(where, "traffic", "a training matrix with demand", "none")
    base = Problem.create(topology, paths, Objective(), demand)
    routable = float((base.demand * base.routable).sum(1).div(base.demand.sum(1)).median())
    if routable <= share:
        raise InputError(where, "", f"a share below the {routable:.3f} of demand that has a path", share)
    search = _Search(base)
    low = high = 0.0 - math.log(float(base.utilisation(base.even_splits).amax(1).median()))
    while search.share(high) > share:
        low, high = high, high + math.log(2)
    while search.share(low) < share:
        low, high = low - math.log(2), low
    while high - low > 1e-6:
        middle = (low + high) / 2
        reached = search.share(middle)
        if abs(reached - share) < _TOLERANCE:
            return math.exp(middle)
        low, high = (middle, high) if reached > share else (low, middle)
    return math.exp((low + high) / 2)


class _Search:
    """Median satisfied share at a factor, each optimum started from where the last one ended."""

    def __init__(self, base: Problem) -> None:
        self._base = base
        self._state: pdhg.PdhgState | None = None

    def share(self, log_factor: float) -> float:
        problem = self._base.with_demand(self._base.demand * math.exp(log_factor))
        found = pdhg.solve(problem, gap=_GAP, max_iterations=_MOST_ITERATIONS, warm_start=self._state)
        widest = float(found.gap.max())
        if widest > _WIDEST_GAP:
            raise SolverError(
                f"--calibrate: an optimum is known to {100 * widest:.1f}% only: {found.iterations} iterations"
            )
        self._state = found.state
        return float(((found.value + found.bound) / 2 / problem.demand.sum(1)).median())
