"""TEAVAR*: the allocation whose loss is bounded with probability beta under failing links.

Bogle et al., "TEAVAR", SIGCOMM 2019, with the loss summed over demands as in NCFlow's and Teal's comparisons.  With
scenarios s of probability pi[s], total demand D, and flows f[p] that are reserved whether or not links fail:

    min  alpha + sum_s pi[s] u[s] / (1 - beta) + (1 - sum_s pi[s]) (D - alpha) / (1 - beta)
    s.t. u[s] + alpha >= sum_k max(0, d[k] - sum of f[p] over the paths of k that s leaves),
         load[e] <= c[e],  sum_p f[p] <= d[k],  f, u >= 0.

alpha is then the value at risk, the minimum the conditional value at risk: a scenario that is not enumerated counts as
the loss of everything.  Cables fail, both directions at once, independently.  The program has S D entries: small
networks.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from baselines.linear_program import LinearProgram, LpSettings, solve_program, solver_options
from baselines.matrix import Array, Matrix, MatrixResult, as_part, ones, only, per_matrix
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.spec import Spec

_MOST_ROWS = 2_000_000
_MOST_PATHS = 32  # of a demand
_WEIBULL_SHAPE, _WEIBULL_SCALE = 0.8, 1e-4


@dataclasses.dataclass(frozen=True, eq=False)
class Scenarios:
    """(S,) probabilities, (S, E) whether a link works.  The first is that nothing fails."""

    probability: Array
    works: Array


@dataclasses.dataclass(frozen=True)
class Teavar:
    """TEAVAR*.

    Attributes:
        beta: availability that is asked for.
        failure: probability that a cable is down; 0 draws one for each, Weibull(0.8, 1e-4), by ``seed``.
        single: look at the scenario without failures alone, which makes it LP-all.
        seed: see above.
        how: the solver.
    """

    beta: float = 0.99
    failure: float = 0.004
    single: bool = False
    seed: int = 0
    how: LpSettings = dataclasses.field(default_factory=LpSettings)

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix.

        Raises:
            InputError: another program than total_flow, or too large a network.
            SolverError: of the solver.
        """
        only("teavar", problem.objective, ObjectiveName.TOTAL_FLOW)
        if problem.paths.num_paths > _MOST_PATHS:
            raise InputError("teavar", "K", f"at most {_MOST_PATHS} paths a demand", problem.paths.num_paths)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        begin = time.perf_counter()
        program, columns = self._program(matrix, self.scenarios(matrix))
        build_s = time.perf_counter() - begin
        found = solve_program(program, self.how)
        flow = np.zeros(matrix.mask.shape)
        flow.reshape(-1)[columns] = found.x[: len(columns)]
        return MatrixResult(flow, status=as_part(found.status), build_s=build_s)

    def scenarios(self, matrix: Matrix) -> Scenarios:
        """Those of a matrix; links that are down already stay down."""
        topology = matrix.network.problem.topology
        works = matrix.capacity > 0
        cables = [alive for cable in topology.cables() if (alive := [link for link in cable if works[link]])]
        rng = np.random.default_rng(self.seed)
        drawn = np.minimum(0.5, _WEIBULL_SCALE * rng.weibull(_WEIBULL_SHAPE, len(cables)))
        chance = np.full(len(cables), self.failure) if self.failure else drawn
        if self.single:
            chance = np.zeros(len(cables))
        demands = int((matrix.routable & (matrix.demand > 0)).sum())
        found = likeliest(chance, 1 - (1 - self.beta) / 2, _MOST_ROWS // max(1, demands))
        left = np.ones((len(found), topology.num_links), bool)
        for row, (_, failed) in enumerate(found):
            for cable in failed:
                left[row, cables[cable]] = False
        return Scenarios(np.array([probability for probability, _ in found]), left)

    def _program(self, matrix: Matrix, scenarios: Scenarios) -> tuple[LinearProgram, Array]:
        paths = matrix.columns(matrix.routable)
        count, width, demands = len(scenarios.probability), len(paths.place), len(paths.demands)
        links, demand = len(matrix.capacity), matrix.demand[paths.demands]
        left = (~scenarios.works).astype(float) @ paths.loads(links) == 0  # (S, width)
        # What a demand loses hangs on which of its paths are left, and scenarios share that: one loss for each pattern.
        bit = sp.csr_array(
            (2.0 ** (paths.place % matrix.mask.shape[1]), (np.arange(width), paths.demand)), shape=(width, demands)
        )
        pattern = (left @ bit).astype(np.int64)  # (S, demands)
        codes, loss = np.unique((pattern + (np.arange(demands) << _MOST_PATHS)).reshape(-1), return_inverse=True)
        owner, losses = codes >> _MOST_PATHS, len(codes)
        # Variables, all of them at least 0: flows (width), losses, u (S), alpha.
        total = width + losses + count + 1
        first = np.unique(loss, return_index=True)[1] // demands  # a scenario with that pattern
        counts = np.bincount(paths.demand, minlength=demands)[owner]  # paths come demand by demand
        begins = np.searchsorted(paths.demand, owner)
        of_loss = np.repeat(np.arange(losses), counts)
        path = np.arange(counts.sum()) + np.repeat(begins - (np.cumsum(counts) - counts), counts)
        kept = left[first[of_loss], path]
        of_loss, path, number = of_loss[kept], path[kept], np.arange(losses)
        delivered = ones(of_loss, path, (losses, total))
        lost = ones(number, width + number, (losses, total))
        summed = ones(np.repeat(np.arange(count), demands), width + loss, (count, total))
        above = ones(np.arange(count), width + losses + np.arange(count), (count, total))
        alpha = ones(np.arange(count), np.full(count, total - 1), (count, total))
        flows = (paths.loads(links), paths.served())
        loads, served = (sp.hstack([m, sp.csr_array((m.shape[0], total - width))]) for m in flows)
        rows = sp.vstack([loads, served, -delivered - lost, summed - above - alpha], format="csr")
        limits = np.concatenate([matrix.capacity, demand, -demand[owner], np.zeros(count)])
        rest = max(0.0, 1 - float(scenarios.probability.sum()))
        cost, upper = np.zeros(total), np.full(total, np.inf)
        cost[width + losses : -1] = scenarios.probability / (1 - self.beta)
        cost[-1], upper[-1] = 1 - rest / (1 - self.beta), demand.sum()
        return LinearProgram(cost, rows, limits, upper=upper), paths.place


def likeliest(chance: Array, coverage: float, most: int = 1_000_000) -> list[tuple[float, tuple[int, ...]]]:
    """(probability, what fails) of all scenarios above a cut-off, which halves until they cover ``coverage``.

    Args:
        chance: (n,) probability that each fails, below 1.

    Raises:
        InputError: that takes more than ``most`` scenarios.
    """
    nothing, odds = float(np.prod(1 - chance)), chance / (1 - chance)
    order = np.argsort(-odds, kind="stable")
    cutoff = nothing
    found: list[tuple[float, tuple[int, ...]]] = [(nothing, ())]
    while sum(probability for probability, _ in found) < coverage and cutoff > 1e-12:
        cutoff /= 2
        found = []
        stack: list[tuple[float, tuple[int, ...], int]] = [(nothing, (), 0)]
        while stack:
            probability, failed, first = stack.pop()
            found.append((probability, failed))
            if len(found) > most:
                limit = f"few enough cables or demands that {most:,} scenarios are likely enough"
                raise InputError("teavar", "network", limit, f"{len(chance):,} cables")
            for place in range(first, len(order)):
                one = int(order[place])
                if probability * odds[one] < cutoff:
                    break  # those after it are less likely still
                stack.append((probability * float(odds[one]), (*failed, one), place + 1))
    return sorted(found, key=lambda s: -s[0])


def make(spec: Spec, model: Path | None) -> Teavar:
    """``teavar[:beta=0.99,failure=0.004,single=0,seed=0,solver=highs|gurobi,method=auto,time_limit=0]``."""
    options, how = solver_options(spec, beta=0.99, failure=0.004, single=False, seed=0)
    if not 0 < options["beta"] < 1:
        raise InputError(spec.text, "beta", "a probability in (0, 1)", options["beta"])
    if not 0 <= options["failure"] < 0.5:
        raise InputError(spec.text, "failure", "a probability below 0.5", options["failure"])
    return Teavar(**options, how=how)
