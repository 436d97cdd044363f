"""TEAVAR*: the allocation with the least conditional value at risk of lost traffic when links fail.

Bogle et al., "TEAVAR", SIGCOMM 2019, with the loss summed over demands as in the comparisons of the
NCFlow and Teal papers.  With scenarios s of probability pi[s], total demand T, availability beta,
and flows f[p] that are reserved whether or not links fail (flows, demands and losses in the unit of
the matrix):

    min  alpha + sum_s pi[s] u[s] / (1 - beta) + (1 - sum_s pi[s]) (T - alpha) / (1 - beta) s.t.
    u[s] + alpha >= sum_k max(0, d[k] - sum of f[p] over the paths of demand k that are live in s),
         load[e] <= c[e],  sum_p f[p] <= d[k],  0 <= alpha <= T,  f, u >= 0.

At the optimum alpha is the value at risk and the objective the conditional value at risk.  In a
scenario that is not enumerated all traffic counts as lost.  Cables (both directions of a link) fail
independently of each other.  The program grows with the number of scenarios times demands, so this
is for small networks.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from baselines.linear_program import LinearProgram, LpSettings, solver_options
from baselines.lp_solver import solve_program
from baselines.matrix import (
    Array,
    Matrix,
    MatrixResult,
    PathVariables,
    heuristic_status,
    per_matrix,
    require_objective,
    sparse_ones,
)
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.spec import Spec

# Maximum number of scenarios times demands, which bounds memory.
_MAX_ROWS = 2_000_000
# Maximum number of paths per demand: the live ones of a scenario are coded in as many bits.
_MAX_PATHS = 32
# Weibull distribution of the failure probability of a cable.
_WEIBULL_SHAPE = 0.8
_WEIBULL_SCALE = 1e-4
# Probability below which no scenarios are enumerated.
_MIN_CUTOFF = 1e-12


@dataclasses.dataclass(frozen=True, eq=False)
class Scenarios:
    """S failure scenarios; in the first one nothing fails.

    Attributes:
        probability: (S,) probability of each scenario.
        works: (S, E) true where a link is live.
    """

    probability: Array
    works: Array


@dataclasses.dataclass(frozen=True)
class Teavar:
    """TEAVAR*: the allocation with the least conditional value at risk of the lost traffic.

    Attributes:
        beta: required availability, a probability.
        failure: probability that a cable is down; 0 for a random one for each cable, Weibull(0.8,
            1e-4), at most 0.5.
        single: whether only the scenario without failures is considered, which gives LP-all.
        seed: seed of the random failure probabilities.
        settings: settings of the LP solver.
    """

    beta: float = 0.99
    failure: float = 0.004
    single: bool = False
    seed: int = 0
    settings: LpSettings = dataclasses.field(default_factory=LpSettings)

    def solve(self, problem: Problem) -> Allocation:
        """Return for every matrix the splits with the least conditional value at risk.

        Raises:
            InputError: the objective is not total_flow, or the network needs too many paths or
                scenarios.
            SolverError: the LP solver cannot run.
        """
        require_objective("teavar", problem.objective, ObjectiveName.TOTAL_FLOW)
        if problem.paths.num_paths > _MAX_PATHS:
            raise InputError(
                "teavar", "K", f"at most {_MAX_PATHS} paths per demand", problem.paths.num_paths
            )
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        """Build and solve the LP of one matrix; the result has the reserved path flows."""
        begin = time.perf_counter()
        program, path = self._program(matrix, self.scenarios(matrix))
        build_s = time.perf_counter() - begin
        solution = solve_program(program, self.settings)
        flow = np.zeros(matrix.mask.shape)
        flow.reshape(-1)[path] = solution.x[: len(path)]
        return MatrixResult(flow, status=heuristic_status(solution.status), build_s=build_s)

    def scenarios(self, matrix: Matrix) -> Scenarios:
        """Return the most likely scenarios of a matrix, in which failed links stay failed.

        Their probabilities sum to at least 1 - (1 - beta) / 2, or all others are negligible.

        Args:
            matrix: network, with a capacity of 0 for failed links.

        Raises:
            InputError: too many scenarios are needed.
        """
        topology = matrix.network.problem.topology
        live_links = matrix.capacity > 0
        cables = [
            live
            for cable in topology.cables()
            if (live := [link for link in cable if live_links[link]])
        ]
        # Failure probability of each cable.
        rng = np.random.default_rng(self.seed)
        random_failure = np.minimum(0.5, _WEIBULL_SCALE * rng.weibull(_WEIBULL_SHAPE, len(cables)))
        failure = np.full(len(cables), self.failure) if self.failure else random_failure
        if self.single:
            failure = np.zeros(len(cables))
        # Number of demands with a rate and a live path, which limits the number of scenarios.
        num_demands = int((matrix.routable & (matrix.demand > 0)).sum())
        scenario_list = most_likely_scenarios(
            failure, 1 - (1 - self.beta) / 2, _MAX_ROWS // max(1, num_demands)
        )
        # (S, E) whether each link is live: the links of failed cables are not.
        works = np.ones((len(scenario_list), topology.num_links), bool)
        for s, (_, failed) in enumerate(scenario_list):
            for cable in failed:
                works[s, cables[cable]] = False
        return Scenarios(np.array([probability for probability, _ in scenario_list]), works)

    def _program(self, matrix: Matrix, scenarios: Scenarios) -> tuple[LinearProgram, Array]:
        """Build the LP that minimises the conditional value at risk (CVaR) of the loss.

        Args:
            matrix: demands, live paths and capacities.
            scenarios: S failure scenarios.

        Returns:
            the LP, and the path indices d K + k of its first variables, the flows.
        """
        # Flows and losses of the demands with a live path.
        paths = matrix.path_variables(matrix.routable)
        num_scenarios = len(scenarios.probability)
        num_flows = len(paths.path)
        num_demands = len(paths.demands)
        num_links = len(matrix.capacity)
        demand = matrix.demand[paths.demands]
        losses = _LossVariables.of(matrix, paths, scenarios)
        # Variables, all >= 0: flows, losses, excess u (S,) of the loss over alpha, and the value at
        # risk alpha.
        num_variables = num_flows + losses.count + num_scenarios + 1
        excess_column = num_flows + losses.count + np.arange(num_scenarios)
        # Rows: capacities; demands; loss of each demand and set of live paths >= demand - flow;
        # loss of each scenario - u - alpha <= 0.
        loss_rows = losses.rows(paths, num_variables)
        loss_terms = sparse_ones(
            np.repeat(np.arange(num_scenarios), num_demands),
            num_flows + losses.index,
            (num_scenarios, num_variables),
        )
        excess_terms = sparse_ones(
            np.arange(num_scenarios), excess_column, (num_scenarios, num_variables)
        )
        alpha_terms = sparse_ones(
            np.arange(num_scenarios),
            np.full(num_scenarios, num_variables - 1),
            (num_scenarios, num_variables),
        )
        # Rows of capacities and demands, with zeros for the variables after the flows.
        incidences = (paths.link_incidence(num_links), paths.demand_incidence())
        loads, demand_rows = (
            sp.hstack(
                [matrix_rows, sp.csr_array((matrix_rows.shape[0], num_variables - num_flows))]
            )
            for matrix_rows in incidences
        )
        rows = sp.vstack(
            [loads, demand_rows, loss_rows, loss_terms - excess_terms - alpha_terms], format="csr"
        )
        limits = np.concatenate(
            [matrix.capacity, demand, -demand[losses.demand], np.zeros(num_scenarios)]
        )
        # Objective: all traffic counts as lost in a scenario that is not enumerated.
        unlisted_probability = max(0.0, 1 - float(scenarios.probability.sum()))
        cost = np.zeros(num_variables)
        upper = np.full(num_variables, np.inf)
        cost[excess_column] = scenarios.probability / (1 - self.beta)
        # The last variable is alpha, at most the total demand.
        cost[-1] = 1 - unlisted_probability / (1 - self.beta)
        upper[-1] = demand.sum()
        return LinearProgram(cost, rows, limits, upper=upper), paths.path


@dataclasses.dataclass(frozen=True, eq=False)
class _LossVariables:
    """Loss variables of an LP with S scenarios, m demands and n paths.

    The loss of a demand in a scenario depends only on its set of live paths (its pattern).  All
    scenarios in which a demand has one pattern share one loss variable.

    Attributes:
        live: (S, n) whether each path is live in each scenario.
        index: (S m,) index of the loss variable of each demand in each scenario.
        demand: (losses,) position of the demand of each loss variable among the m demands,
            ascending.
    """

    live: Array
    index: Array
    demand: Array

    @property
    def count(self) -> int:
        """Number of loss variables of the LP."""
        return len(self.demand)

    @classmethod
    def of(cls, matrix: Matrix, paths: PathVariables, scenarios: Scenarios) -> _LossVariables:
        """Return a loss variable for each demand and pattern of live paths in the scenarios."""
        num_flows = len(paths.path)
        num_demands = len(paths.demands)
        is_failed = (~scenarios.works).astype(float)
        # A path is live in a scenario if none of its links has failed.
        live = is_failed @ paths.link_incidence(len(matrix.capacity)) == 0
        # (n, m) matrix that sums the bits of a demand's live paths to a code.
        path_bits = sp.csr_array(
            (2.0 ** (paths.path % matrix.mask.shape[1]), (np.arange(num_flows), paths.demand_row)),
            shape=(num_flows, num_demands),
        )
        pattern = (live @ path_bits).astype(np.int64)  # (S, demands)
        # A loss variable for each distinct code: the demand above bit 32, its pattern below.
        pattern_codes, index = np.unique(
            (pattern + (np.arange(num_demands) << _MAX_PATHS)).reshape(-1), return_inverse=True
        )
        return cls(live, index, pattern_codes >> _MAX_PATHS)

    def rows(self, paths: PathVariables, num_variables: int) -> sp.csr_array:
        """Return a row for each loss variable, minus the demand's flow on live paths minus the
        loss: a matrix (losses, num_variables).

        Args:
            paths: paths of the demands, whose flows are the first variables.
            num_variables: number of variables of the LP.
        """
        num_flows = len(paths.path)
        num_demands = len(paths.demands)
        # A scenario with the pattern of each loss.
        example_scenario = np.unique(self.index, return_index=True)[1] // num_demands
        # Each pair of a loss and a path of its demand; ``demand_row`` is ascending.
        counts = np.bincount(paths.demand_row, minlength=num_demands)[self.demand]
        starts = np.searchsorted(paths.demand_row, self.demand)
        row = np.repeat(np.arange(self.count), counts)
        column = np.arange(counts.sum()) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        # Flows on live paths, and losses.
        is_live = self.live[example_scenario[row], column]
        delivered = sparse_ones(row[is_live], column[is_live], (self.count, num_variables))
        loss = sparse_ones(
            np.arange(self.count), num_flows + np.arange(self.count), (self.count, num_variables)
        )
        return sp.csr_array(-delivered - loss)


def most_likely_scenarios(
    failure: Array, coverage: float, max_scenarios: int = 1_000_000
) -> list[tuple[float, tuple[int, ...]]]:
    """Return the most likely sets of failed items, in descending order of probability.

    All sets above a cut-off are enumerated by depth-first search.  The cut-off starts at the
    probability that nothing fails, and is halved until the sets cover ``coverage``.

    Args:
        failure: (n,) probability that each item fails, below 1; items fail independently.
        coverage: required sum of the probabilities.
        max_scenarios: largest number of sets.

    Returns:
        pairs of probability and failed items.

    Raises:
        InputError: the required coverage takes more than ``max_scenarios``.
    """
    no_failure = float(np.prod(1 - failure))
    # A set in which item i fails, too, is odds[i] times as probable.
    odds = failure / (1 - failure)
    order = np.argsort(-odds, kind="stable")
    cutoff = no_failure
    scenarios: list[tuple[float, tuple[int, ...]]] = [(no_failure, ())]
    while sum(probability for probability, _ in scenarios) < coverage and cutoff > _MIN_CUTOFF:
        cutoff /= 2
        scenarios = []
        # Entries: probability, failed items, and the first position in ``order`` of the items that
        # may be added.
        stack: list[tuple[float, tuple[int, ...], int]] = [(no_failure, (), 0)]
        while stack:
            probability, failed, first_position = stack.pop()
            scenarios.append((probability, failed))
            if len(scenarios) > max_scenarios:
                raise InputError.invalid(
                    "teavar",
                    "network",
                    f"failures of {len(failure):,} cables need more than {max_scenarios:,} "
                    f"scenarios to cover {coverage:.4g} of the probability",
                    "lower beta",
                )
            for position in range(first_position, len(order)):
                item = int(order[position])
                if probability * odds[item] < cutoff:
                    # The items after it are less likely to fail.
                    break
                stack.append((probability * float(odds[item]), (*failed, item), position + 1))
    return sorted(scenarios, key=lambda s: -s[0])


def make(spec: Spec, model: Path | None) -> Teavar:
    """Build the scheme from its specification; the options and their defaults are
    ``teavar[:beta=0.99,failure=0.004,single=0,seed=0,solver=highs|gurobi,method=auto,
    time_limit=0]``.
    """
    options, settings = solver_options(spec, beta=0.99, failure=0.004, single=False, seed=0)
    if not 0 < options["beta"] < 1:
        raise InputError(spec.text, "beta", "a probability in (0, 1)", options["beta"])
    if not 0 <= options["failure"] < 0.5:
        raise InputError(spec.text, "failure", "a probability in [0, 0.5)", options["failure"])
    return Teavar(**options, settings=settings)
