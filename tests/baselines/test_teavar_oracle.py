"""TEAVAR* against a dense LP with a loss for each scenario and demand, over scenarios found by
trying all of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog

from baselines.matrix import Array, matrices
from baselines.teavar import Teavar
from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.testing import assert_feasible, make_topology, random_problem
from tests.baselines.test_demand_pinning_oracle import Program


def live_cables(problem: Problem) -> list[list[int]]:
    """The live links of each pair of neighbours, in the order in which the pairs occur among all
    links."""
    topology, capacity = problem.topology, problem.capacity[0].numpy()
    of_pair: dict[frozenset[int], list[int]] = {}
    for link, ends in enumerate(
        zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    ):
        of_pair.setdefault(frozenset(ends), []).append(link)
    cables = [[link for link in links if capacity[link] > 0] for links in of_pair.values()]
    return [links for links in cables if links]


def chances(scheme: Teavar, count: int) -> list[float]:
    """The probability that each cable is down."""
    if scheme.single:
        return [0.0] * count
    if scheme.failure:
        return [scheme.failure] * count
    drawn = np.random.default_rng(scheme.seed).weibull(0.8, count) * 1e-4
    return [min(0.5, chance) for chance in drawn.tolist()]


def all_scenarios(problem: Problem, chance: list[float]) -> tuple[Array, Array]:
    """(2^n,) probability and (2^n, E) live links, of every set of the n cables that may fail."""
    cables = live_cables(problem)
    probability, works = [], []
    for down in itertools.product([False, True], repeat=len(cables)):
        probability.append(
            math.prod(c if failed else 1 - c for c, failed in zip(chance, down, strict=True))
        )
        links = np.ones(problem.topology.num_links, bool)
        links[
            [link for cable, failed in zip(cables, down, strict=True) if failed for link in cable]
        ] = False
        works.append(links)
    return np.array(probability), np.array(works)


def likely(probability: Array, beta: float) -> Array:
    """(S,) numbers of the scenarios above the cut-off: that of no failure, halved until they cover
    enough."""
    cutoff, chosen = float(probability[0]), np.array([0])
    while probability[chosen].sum() < 1 - (1 - beta) / 2:
        cutoff /= 2
        chosen = np.flatnonzero(probability >= cutoff)
    return chosen


class Oracle:
    """The program of TEAVAR* for one matrix, and the risk of given flows.

    Args:
        problem: of one matrix.
        scheme: its options.
    """

    def __init__(self, problem: Problem, scheme: Teavar) -> None:
        self.program = Program.of(problem)
        active = self.program.owner.any(1) & (self.program.demand > 0)
        self._owner, self._demand = self.program.owner[active], self.program.demand[active]
        self._beta, self.total = scheme.beta, float(self.program.demand[active].sum())
        self.all_probability, self.all_works = all_scenarios(
            problem, chances(scheme, len(live_cables(problem)))
        )
        chosen = likely(self.all_probability, scheme.beta)
        self.probability, self.works = self.all_probability[chosen], self.all_works[chosen]

    def _live(self, works: Array) -> Array:
        """(n,) 1 where a path has no failed link."""
        return np.asarray(((~works).astype(float) @ self.program.use == 0).astype(float))

    def least_risk(self) -> float:
        """The optimum, over flows (n), losses (S, k), excesses u (S) and alpha."""
        paths, demands, count = len(self.program.value), len(self._demand), len(self.probability)
        width = paths + count * demands + count + 1
        capacity_rows, demand_rows = (
            np.zeros((len(m), width)) for m in (self.program.use, self._owner)
        )
        capacity_rows[:, :paths], demand_rows[:, :paths] = self.program.use, self._owner
        loss_rows, sum_rows = np.zeros((count * demands, width)), np.zeros((count, width))
        for s in range(count):
            of_scenario = slice(s * demands, (s + 1) * demands)
            loss_rows[of_scenario, :paths] = -self._owner * self._live(self.works[s])
            loss_rows[of_scenario, paths + s * demands : paths + (s + 1) * demands] = -np.eye(
                demands
            )
            sum_rows[s, paths + s * demands : paths + (s + 1) * demands] = 1
            sum_rows[s, [paths + count * demands + s, width - 1]] = -1
        rows = np.vstack([capacity_rows, demand_rows, loss_rows, sum_rows])
        limits = [
            self.program.capacity,
            self._demand,
            -np.tile(self._demand, count),
            np.zeros(count),
        ]
        missing, cost = 1 - float(self.probability.sum()), np.zeros(width)
        cost[paths + count * demands : -1] = self.probability / (1 - self._beta)
        cost[-1] = 1 - missing / (1 - self._beta)
        bounds = [(0, None)] * (width - 1) + [(0, self.total)]
        result = linprog(cost, rows, np.concatenate(limits), bounds=bounds, method="highs")
        return float(result.fun) + missing * self.total / (1 - self._beta)

    def losses(self, flow: Array, works: Array) -> Array:
        """(scenarios,) Gbit/s that these flows do not deliver; what has failed is not sent over
        other paths."""
        lost = [
            np.maximum(0, self._demand - self._owner @ (flow * self._live(live))).sum()
            for live in works
        ]
        return np.array(lost)

    def risk(self, flow: Array) -> float:
        """The objective of these flows, with the best alpha; in scenarios that are not enumerated
        all is lost."""
        missing, lost = 1 - float(self.probability.sum()), self.losses(flow, self.works)
        return min(
            alpha
            + float(self.probability @ np.maximum(0, lost - alpha) + missing * (self.total - alpha))
            / share
            for share in [1 - self._beta]
            for alpha in [0.0, self.total, *lost.tolist()]
        )

    def exact_risk(self, flow: Array) -> float:
        """The mean of the worst (1 - beta) of all scenarios."""
        lost, left, mean = self.losses(flow, self.all_works), 1 - self._beta, 0.0
        for s in np.argsort(-lost, kind="stable").tolist():
            part = min(left, float(self.all_probability[s]))
            mean, left = mean + part * float(lost[s]), left - part
        return mean / (1 - self._beta)


def small_problem(seed: int, failed: int = 0) -> Problem:
    """At most 10 cables."""
    return random_problem(seed, batch=1, nodes=5, density=0.45, failed=failed)


def check(problem: Problem, scheme: Teavar) -> Oracle:
    """Compare the scheme with the oracle on one matrix."""
    allocation = scheme.solve(problem)
    assert_feasible(problem, allocation)
    oracle = Oracle(problem, scheme)
    flow, best = oracle.program.flow(problem, allocation.splits), oracle.least_risk()
    assert oracle.risk(flow) == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert oracle.exact_risk(flow) <= best + 1e-6, (
        "counting what is not enumerated as lost can only add to the risk"
    )
    return oracle


@pytest.mark.parametrize("failed", [0, 2])
@pytest.mark.parametrize(
    "scheme", [Teavar(beta=0.9, failure=0.05), Teavar(beta=0.99), Teavar(beta=0.95, failure=0.1)]
)
def test_the_risk_of_the_flows_is_the_optimum_of_the_oracle(scheme: Teavar, failed: int) -> None:
    for seed in range(6):
        check(small_problem(seed, failed), scheme)


@pytest.mark.parametrize("seed", [0, 3])
def test_random_failure_probabilities_are_those_of_the_seed(seed: int) -> None:
    """A demanding beta, since cables fail rarely: some scenarios with failures are needed."""
    sizes = []
    for number in range(4):
        scheme = Teavar(beta=0.9999, failure=0.0, seed=seed)
        oracle = check(small_problem(number, failed=number % 2), scheme)
        sizes.append(len(oracle.probability))
    assert max(sizes) > 2


@pytest.mark.parametrize("failure", [0.02, 0.13, 0.45])
@pytest.mark.parametrize("beta", [0.8, 0.99, 0.9999])
def test_the_scenarios_are_those_above_the_halved_cut_off(beta: float, failure: float) -> None:
    for seed in range(3):
        problem, scheme = small_problem(seed, failed=1), Teavar(beta=beta, failure=failure)
        scenarios, oracle = scheme.scenarios(next(iter(matrices(problem)))), Oracle(problem, scheme)
        assert sorted(map(tuple, scenarios.works.tolist())) == sorted(
            map(tuple, oracle.works.tolist())
        )
        of_links = dict(
            zip(map(tuple, oracle.works.tolist()), oracle.probability.tolist(), strict=True)
        )
        for works, probability in zip(
            scenarios.works.tolist(), scenarios.probability.tolist(), strict=True
        ):
            assert probability == pytest.approx(of_links[tuple(works)], rel=1e-9)
        assert scenarios.works[0].all()


def test_without_failures_the_flow_is_the_largest() -> None:
    for seed in range(6):
        problem = small_problem(seed, failed=seed % 2)
        program = Program.of(problem)
        flow = program.flow(problem, Teavar(single=True).solve(problem).splits)
        assert flow.sum() == pytest.approx(
            program.best_value(program.demand, program.capacity), rel=1e-6, abs=1e-6
        )


def test_both_directions_and_parallel_links_of_a_cable_fail_together() -> None:
    """Two parallel links 0 -> 1 are one cable: with beta = 0.9 a flow over them is as safe as over
    one of them."""
    links = [(0, 1, 3.0), (0, 1, 2.0), (1, 0, 1.0), (0, 2, 2.0), (2, 1, 4.0), (1, 2, 1.0)]
    topology = make_topology(links)
    paths = compute_paths(topology, np.array([[0, 1], [2, 1]], np.int32), num_paths=3, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([[6.0, 2.0]]))
    assert live_cables(problem) == [[0, 1, 2], [3], [4, 5]]
    for beta in (0.6, 0.9, 0.97):
        check(problem, Teavar(beta=beta, failure=0.06))


def test_a_network_without_live_links_or_without_demand_has_no_flow() -> None:
    dead, idle = small_problem(2, failed=99), small_problem(2)
    idle = idle.with_demand(idle.demand * 0)
    for problem in (dead, idle):
        allocation = Teavar(beta=0.9).solve(problem)
        assert_feasible(problem, allocation)
        assert not Program.of(problem).flow(problem, allocation.splits).any()
