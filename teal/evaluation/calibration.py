"""Scaling demands so that the optimum satisfies a given share of them."""

from __future__ import annotations

import math

import numpy as np

from teal.errors import InputError, SolverError
from teal.network import PathSet, Topology, TrafficMatrices
from teal.network.traffic import spread
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import Int64Array
from teal.solvers import pdhg

_TOLERANCE = 5e-4  # of the satisfied share
_TARGET_GAP = 1e-3  # certified gap to which each optimum is solved
_MAX_GAP = 1e-2  # certified gap of an optimum above which calibration fails
_MAX_ITERATIONS = 2000  # of PDHG for each optimum
_MAX_MATRICES = 21  # over which the median is taken
_MAX_ENTRIES = 200_000  # demands of all these matrices together, approximately


def calibration_factor(
    topology: Topology, paths: PathSet, traffic: TrafficMatrices, rows: Int64Array, share: float
) -> float:
    """The factor at which LP-all satisfies ``share`` of the median of the matrices ``rows``.

    The optimum of total flow is solved by PDHG to a certified gap of 0.1%, without an LP solver.  The median is
    taken over up to 21 of the matrices, evenly spread, fewer on large networks (at least 5).  The satisfied share
    falls as the factor grows, so that the factor is bracketed and then found by bisection in its logarithm.

    Args:
        topology: the network.
        paths: of the traffic's pairs.
        traffic: the matrices.
        rows: those to take into account.
        share: of the demand, in (0, 1).

    Raises:
        InputError: ``share`` not in (0, 1), or more than the network can route at any load.
        SolverError: an optimum is not known to 1% after 2,000 iterations.
    """
    where = "--calibrate"
    if not 0 < share < 1:
        raise InputError(where, "", "a share between 0 and 1", share)
    count = int(np.clip(_MAX_ENTRIES // traffic.num_demands, 5, _MAX_MATRICES))
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
    """The median satisfied share at a factor; each optimum is solved from the state of the one before."""

    def __init__(self, base: Problem) -> None:
        self._base = base
        self._state: pdhg.PdhgState | None = None

    def share(self, log_factor: float) -> float:
        problem = self._base.with_demand(self._base.demand * math.exp(log_factor))
        result = pdhg.solve(problem, gap=_TARGET_GAP, max_iterations=_MAX_ITERATIONS, warm_start=self._state)
        widest = float(result.gap.max())
        if widest > _MAX_GAP:
            raise SolverError(
                f"--calibrate: an optimum has a gap of {100 * widest:.1f}% after {result.iterations} iterations"
            )
        self._state = result.state
        return float(((result.value + result.bound) / 2 / problem.demand.sum(1)).median())
