"""POP: k replicas of the network, each with a k-th of the capacities and a random share of the demands.

Narayanan et al., "Solving Large-Scale Granular Resource Allocation Problems Efficiently with POP", SOSP 2021.  Large
demands are split first: the largest is halved until there are N (1 + phi) of them, and the pieces of one go to
different replicas while there are any.  The replicas' programs are independent, and their flows add up.
"""

from __future__ import annotations

import dataclasses
import heapq
import time
from pathlib import Path

import numpy as np

from baselines.linear_program import LpSettings, solver_options
from baselines.matrix import Array, Matrix, MatrixResult, only, per_matrix
from baselines.path_program import KNOWN, path_program
from baselines.workers import solve_all
from teal.errors import InputError
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.spec import Spec


@dataclasses.dataclass(frozen=True)
class Pop:
    """POP.

    Attributes:
        replicas: k.
        phi: how many more pieces than demands there are, as a share.
        seed: of the shares.
        workers: processes at a time; 0 for one a core.
        how: the solver.
    """

    replicas: int = 4
    phi: float = 0.25
    seed: int = 0
    workers: int = 0
    how: LpSettings = dataclasses.field(default_factory=LpSettings)

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix.

        Raises:
            InputError: max_concurrent_flow, which it does not know.
            SolverError: of the solver.
        """
        only("pop", problem.objective, *KNOWN)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        begin, count = time.perf_counter(), self.replicas
        shares = split(matrix.demand, count, self.phi, self.seed)
        shared_s = time.perf_counter() - begin
        everyone, capacity = matrix.routable, matrix.capacity / count
        parts = [path_program(matrix.with_demand(share), everyone, capacity) for share in shares]
        build_s = time.perf_counter() - begin
        found = solve_all([part.program for part in parts], self.how, self.workers)
        ended = [solution.status for solution in found]
        status = next((s for s in ended if not s.usable), Status.OPTIMAL if count == 1 else Status.FEASIBLE)
        pairs = list(zip(parts, found, strict=True))
        return MatrixResult(
            sum((part.flow(solution) for part, solution in pairs), np.zeros(matrix.mask.shape)),
            sum((part.prices(solution) for part, solution in pairs), np.zeros(len(capacity))) / count,
            status,
            build_s,
            parallel_s=shared_s + max(part.build_s + solution.seconds for part, solution in pairs),
        )


def split(demand: Array, replicas: int, phi: float, seed: int) -> Array:
    """(replicas, D) shares that add up to ``demand``."""
    if replicas == 1:
        return demand[None].copy()
    rng, shares = np.random.default_rng(seed), np.zeros((replicas, len(demand)))
    heap = [(-rate, d) for d, rate in enumerate(demand.tolist()) if rate > 0]
    heapq.heapify(heap)
    for _ in range(int(phi * len(heap))):
        rate, d = heap[0]
        heapq.heapreplace(heap, (rate / 2, d))
        heapq.heappush(heap, (rate / 2, d))
    sizes: dict[int, list[float]] = {}
    for rate, d in heap:
        sizes.setdefault(d, []).append(-rate)
    counts = np.zeros(replicas)
    for d, own in sizes.items():
        if len(own) > 1:  # to those that have the fewest pieces, all of them in turn
            order = np.lexsort((rng.random(replicas), counts))
            for i, rate in enumerate(sorted(own, reverse=True)):
                shares[order[i % replicas], d] += rate
                counts[order[i % replicas]] += 1
    whole = np.array([d for d, own in sizes.items() if len(own) == 1], np.int64)
    shares[rng.permutation(np.resize(rng.permutation(replicas), len(whole))), whole] = demand[whole]
    return shares


def make(spec: Spec, model: Path | None) -> Pop:
    """``pop[:replicas=4,phi=0.25,seed=0,workers=0,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``."""
    options, how = solver_options(spec, replicas=4, phi=0.25, seed=0, workers=0)
    for option, least in (("replicas", 1), ("phi", 0), ("seed", 0), ("workers", 0)):
        if not options[option] >= least:
            raise InputError(spec.text, option, f"a number of at least {least}", options[option])
    return Pop(**options, how=how)
