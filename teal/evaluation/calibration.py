"""Scaling demands so that the optimum satisfies a given share of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tqdm import tqdm

from teal.errors import InputError, SolverError
from teal.network import PathSet, Topology, TrafficMatrices
from teal.network.traffic import spread
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import Int64Array
from teal.solvers import pdhg

_TARGET_GAP = 1e-3  # relative certified gap at which PDHG stops for each optimum
_TOLERANCE = _TARGET_GAP / 2  # absolute error of the satisfied share; the optima are not known better
_MAX_GAP = 1e-2  # largest relative gap of an optimum that is accepted when the iterations run out
_MAX_ITERATIONS = 2000  # of PDHG for each optimum; usual ones take below 100
_MAX_MATRICES = 21  # largest number of matrices in the median; odd, so that the median is one of them
_MIN_MATRICES = 5  # smallest number of matrices in the median, however large the network
_TARGET_ENTRIES = 200_000  # matrices x demands that are solved together, which bounds memory and time
_MIN_BRACKET = 1e-6  # width of the bracket of ln(factor) at which bisection ends: the factor is known to 1 in a million
_SILENT_S = 1.0  # seconds after which the bar of a calibration is shown


def calibration_factor(
    topology: Topology, paths: PathSet, traffic: TrafficMatrices, rows: Int64Array, share: float
) -> float:
    """The factor by which all demands are multiplied so that the optimal total flow carries ``share`` of the demand.

    That is the share in the median over the matrices ``rows``: over up to 21 of them, evenly spread, fewer on large
    networks (at least 5).  Each optimum is solved by PDHG to a certified gap of 0.1%, without an LP solver.  The
    satisfied share falls as the factor grows, so that the factor is bracketed and then found by bisection in its
    logarithm.

    Args:
        topology: the network.
        paths: candidate paths of each demand, in the order of the traffic's demands.
        traffic: matrices before scaling, Gbit/s.
        rows: indices of the matrices to take into account, the training matrices.
        share: of the demand, in (0, 1).

    Raises:
        InputError: ``share`` not in (0, 1), or more than the network can route at any load.
        SolverError: an optimum is not known to 1% after 2,000 iterations.
    """
    where = "--calibrate"
    if not 0 < share < 1:
        raise InputError(where, "", "a share between 0 and 1", share)
    count = int(np.clip(_TARGET_ENTRIES // traffic.num_demands, _MIN_MATRICES, _MAX_MATRICES))
    demand = traffic.read(spread(rows, count))
    demand = demand[demand.sum(1) > 0]
    if not len(demand):
        raise InputError(where, "traffic", "a training matrix with demand", "none")
    base = Problem.create(topology, paths, Objective(), demand)
    routable = float((base.demand * base.routable).sum(1).div(base.demand.sum(1)).median())
    if routable <= share:
        raise InputError(where, "", f"a share below the {routable:.3f} of demand that has a path", share)
    with tqdm(desc=f"calibrating on {len(demand)} matrices", unit="load", delay=_SILENT_S, leave=False) as bar:
        return _bisected(_Search(base, bar), base, share)


def _bisected(search: _Search, base: Problem, share: float) -> float:
    """The factor at which the optimum satisfies ``share``."""
    # Start at the load at which even splits just fill the busiest link.
    low = high = -math.log(float(base.utilisation(base.even_splits).amax(1).median()))
    while search.median_share(high) > share:
        low, high = high, high + math.log(2)
    while search.median_share(low) < share:
        low, high = low - math.log(2), low
    while high - low > _MIN_BRACKET:
        middle = (low + high) / 2
        reached = search.median_share(middle)
        if abs(reached - share) < _TOLERANCE:
            return math.exp(middle)
        low, high = (middle, high) if reached > share else (low, middle)
    return math.exp((low + high) / 2)


class _Search:
    """The median satisfied share at a factor.  Each call starts PDHG from the final state of the previous call."""

    def __init__(self, base: Problem, bar: Any) -> None:
        self._base, self._bar = base, bar
        self._state: pdhg.PdhgState | None = None

    def median_share(self, log_factor: float) -> float:
        """The median over the matrices of optimal flow / demand, with all demands times exp(log_factor)."""
        problem = self._base.with_demand(self._base.demand * math.exp(log_factor))
        result = pdhg.solve(problem, gap=_TARGET_GAP, max_iterations=_MAX_ITERATIONS, warm_start=self._state)
        largest_gap = float(result.gap.max())
        if largest_gap > _MAX_GAP:
            raise SolverError(
                f"--calibrate: an optimum is known only to {100 * largest_gap:.1f}% after {result.iterations} "
                f"iterations, {100 * _MAX_GAP:.0f}% is needed: try another share or fewer demands"
            )
        self._state = result.state
        self._bar.update()
        # The optimum lies between value and bound; their mean halves the largest error.
        return float(((result.value + result.bound) / 2 / problem.demand.sum(1)).median())
