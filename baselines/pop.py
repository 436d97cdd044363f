"""POP: k replicas of the network, each with 1/k of every capacity and a random part of the demands.

Narayanan et al., "Solving Large-Scale Granular Resource Allocation Problems Efficiently with POP",
SOSP 2021.  First, large demands are split: of D demands the largest piece is halved until there are
D (1 + phi) pieces.  The pieces of one demand are assigned to different replicas, if there are
enough.  The LPs of the replicas are independent, and their flows are added.
"""

from __future__ import annotations

import dataclasses
import heapq
import time
from pathlib import Path

import numpy as np

from baselines.linear_program import LpSettings, solver_options
from baselines.matrix import Array, Matrix, MatrixResult, per_matrix, require_objective
from baselines.path_program import SUPPORTED_OBJECTIVES, path_program
from baselines.workers import solve_all
from teal.errors import InputError
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.spec import Spec


@dataclasses.dataclass(frozen=True)
class Pop:
    """POP: independent LPs of replicas of the network, each with a part of the demands.

    Attributes:
        replicas: number of replicas k.
        phi: additional pieces of demands, as a share of the number of demands.
        seed: seed of the assignment to replicas.
        workers: number of processes that solve LPs at the same time; 0 for one per core.
        settings: settings of the LP solver.
    """

    replicas: int = 4
    phi: float = 0.25
    seed: int = 0
    workers: int = 0
    settings: LpSettings = dataclasses.field(default_factory=LpSettings)

    def solve(self, problem: Problem) -> Allocation:
        """Return for every matrix the sum of the replicas' flows as splits, and their mean prices.

        Raises:
            InputError: the objective is max_concurrent_flow, which is not supported.
            SolverError: the LP solver cannot run.
        """
        require_objective("pop", problem.objective, *SUPPORTED_OBJECTIVES)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        """Solve the LPs of the replicas of one matrix, add their flows, and average
        their prices.
        """
        begin = time.perf_counter()
        num_replicas = self.replicas
        replica_demands = split(matrix.demand, num_replicas, self.phi, self.seed)
        split_s = time.perf_counter() - begin
        routable = matrix.routable
        capacity = matrix.capacity / num_replicas
        # An LP for each replica, which has 1/k of every capacity.
        lps = [
            path_program(matrix.with_demand(demand), routable, capacity)
            for demand in replica_demands
        ]
        build_s = time.perf_counter() - begin
        solutions = solve_all([lp.program for lp in lps], self.settings, self.workers)
        statuses = [solution.status for solution in solutions]
        status = next(
            (s for s in statuses if not s.usable),
            Status.OPTIMAL if num_replicas == 1 else Status.FEASIBLE,
        )
        # Sum of the flows, mean of the prices, and the longest time of a replica.
        solved_lps = list(zip(lps, solutions, strict=True))
        return MatrixResult(
            sum((lp.flow(solution) for lp, solution in solved_lps), np.zeros(matrix.mask.shape)),
            sum((lp.prices(solution) for lp, solution in solved_lps), np.zeros(len(capacity)))
            / num_replicas,
            status,
            build_s,
            parallel_s=split_s + max(lp.build_s + solution.seconds for lp, solution in solved_lps),
        )


def split(demand: Array, replicas: int, phi: float, seed: int) -> Array:
    """Divide the demands among k replicas; return (k, D) rates whose sum over the replicas is
    ``demand``.

    Args:
        demand: (D,) rate of each demand.
        replicas: number of replicas k.
        phi: additional pieces, as a share of the number of demands above 0.
        seed: seed of the assignment.
    """
    if replicas == 1:
        return demand[None].copy()
    rng = np.random.default_rng(seed)
    replica_demands = np.zeros((replicas, len(demand)))
    # Halve the largest piece until there are enough pieces.  The heap has (-rate, demand), so that
    # the largest piece is first.
    heap = [(-rate, d) for d, rate in enumerate(demand.tolist()) if rate > 0]
    heapq.heapify(heap)
    for _ in range(int(phi * len(heap))):
        rate, d = heap[0]
        heapq.heapreplace(heap, (rate / 2, d))
        heapq.heappush(heap, (rate / 2, d))
    pieces: dict[int, list[float]] = {}
    for rate, d in heap:
        pieces.setdefault(d, []).append(-rate)
    # Assign the pieces of a split demand to all replicas in turn, those with the fewest pieces
    # first, ties in random order.
    num_pieces = np.zeros(replicas)
    for d, rates in pieces.items():
        if len(rates) > 1:
            order = np.lexsort((rng.random(replicas), num_pieces))
            for i, rate in enumerate(sorted(rates, reverse=True)):
                replica_demands[order[i % replicas], d] += rate
                num_pieces[order[i % replicas]] += 1
    # Assign the other demands at random; the numbers of two replicas differ by at most one.
    unsplit_demands = np.array([d for d, rates in pieces.items() if len(rates) == 1], np.int64)
    replica_demands[
        rng.permutation(np.resize(rng.permutation(replicas), len(unsplit_demands))), unsplit_demands
    ] = demand[unsplit_demands]
    return replica_demands


def make(spec: Spec, model: Path | None) -> Pop:
    """Build the scheme from its specification; the options and their defaults are
    ``pop[:replicas=4,phi=0.25,seed=0,workers=0,solver=highs|gurobi,method=auto|simplex|ipm,
    time_limit=0]``.
    """
    options, settings = solver_options(spec, replicas=4, phi=0.25, seed=0, workers=0)
    for option, minimum in (("replicas", 1), ("phi", 0), ("seed", 0), ("workers", 0)):
        if not options[option] >= minimum:
            raise InputError(spec.text, option, f"a number >= {minimum}", options[option])
    return Pop(**options, settings=settings)
