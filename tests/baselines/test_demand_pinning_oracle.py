"""Demand pinning against a program of its own: explicit paths, a plain loop for the pinned demands,
one dense LP.

The rules, where the published heuristic leaves a choice:

- by ``alpha``, a demand is optimised if it is at or above the (1 - alpha) quantile of all demands
  above 0.001 Gbit/s, those without a path included; by ``threshold``, if it is above that share of
  the mean capacity of the live links. So a demand at the border is optimised in the first case and
  pinned in the second;
- every other demand is pinned, in the order of demand numbers, to its first live path;
- where values are maximised, what the residual capacity of that path cannot carry is not served on
  other paths either; under max_link_utilisation a pinned demand is on its path as a whole.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from baselines.demand_pinning import DemandPinning
from baselines.largest import largest
from baselines.matrix import Array, matrices
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.testing import assert_feasible, make_topology, random_problem
from tests.explicit import explicit_paths

MLU = ObjectiveName.MAX_LINK_UTILISATION


@dataclasses.dataclass(frozen=True)
class Program:
    """The arrays of a matrix: n live paths, E links, D demands.

    Attributes:
        use: (E, n) 1 where a path uses a link.
        owner: (D, n) 1 where a path serves a demand.
        value: (n,) of one Gbit/s.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s.
    """

    use: Array
    owner: Array
    value: Array
    demand: Array
    capacity: Array

    @classmethod
    def of(cls, problem: Problem) -> Program:
        use, owner = explicit_paths(problem)
        value = problem.demand_value.numpy() @ owner - problem.link_cost.numpy() @ use
        return cls(use, owner, value, problem.demand[0].numpy(), problem.capacity[0].numpy())

    def flow(self, problem: Problem, splits: torch.Tensor) -> Array:
        """(n,) Gbit/s on each path."""
        flow = splits[0].numpy() * self.demand[:, None]
        assert not flow[~problem.path_mask[0].numpy()].any()
        return np.asarray(flow[problem.path_mask[0].numpy()])

    def largest_utilisation(self, flow: Array) -> float:
        live = self.capacity > 0
        return float(((self.use @ flow)[live] / self.capacity[live]).max(initial=0.0))

    def best_value(self, demand: Array, capacity: Array) -> float:
        """The largest value of flows for these demands within these capacities."""
        if not len(self.value):
            return 0.0
        rows, limits = np.vstack([self.use, self.owner]), np.concatenate([capacity, demand])
        return -float(linprog(-self.value, rows, limits, method="highs").fun)

    def least_utilisation(self, demand: Array, background: Array) -> float:
        """The least largest utilisation of flows that serve these demands beside other loads."""
        count, links = len(self.value), self.capacity > 0
        served = self.owner.any(1)
        rows = np.hstack([self.use[links], -self.capacity[links, None]])
        sums = np.hstack([self.owner[served], np.zeros((int(served.sum()), 1))])
        cost = np.append(np.zeros(count), 1.0)
        result = linprog(cost, rows, -background[links], sums, demand[served], method="highs")
        return float(result.fun)


def _quantile(values: list[float], share: float) -> float:
    """By linear interpolation between the sorted values."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    below = min(int(position + 1e-9), len(ordered) - 1)
    weight = max(0.0, position - below) if position - below > 1e-9 else 0.0
    return ordered[below] + (weight * (ordered[below + 1] - ordered[below]) if weight else 0.0)


def optimised(program: Program, alpha: float, threshold: float) -> Array:
    """(D,) true for the demands that the LP may split."""
    if threshold:
        live = [c for c in program.capacity.tolist() if c > 0]
        border = threshold * sum(live) / len(live) if live else 0.0
        return np.array([rate > border * (1 + 1e-12) for rate in program.demand.tolist()])
    ranked = [rate for rate in program.demand.tolist() if rate > 1e-3]
    if not ranked:
        return np.zeros(len(program.demand), bool)
    return np.asarray(program.demand >= _quantile(ranked, 1 - alpha))


def pinned_flow(program: Program, pinned: Array, *, cut: bool) -> Array:
    """(n,) flow of the pinned demands on their first live paths.

    Args:
        program: the matrix.
        pinned: (D,) bool.
        cut: whether a demand takes no more than what the demands before it have left.
    """
    flow, residual = np.zeros(len(program.value)), program.capacity.copy()
    for d in np.flatnonzero(pinned).tolist():
        columns = np.flatnonzero(program.owner[d])
        if len(columns):
            links = program.use[:, columns[0]] > 0
            flow[columns[0]] = (
                min(program.demand[d], residual[links].min()) if cut else program.demand[d]
            )
            residual[links] -= flow[columns[0]]
    return flow


def check(problem: Problem, scheme: DemandPinning) -> tuple[Array, Array]:
    """Compare the scheme with the oracle on one matrix; (D,) which demands are optimised, and the
    flow of each."""
    allocation = scheme.solve(problem)
    program = Program.of(problem)
    flow = program.flow(problem, allocation.splits)
    choice = optimised(program, scheme.alpha, scheme.threshold)
    assert scheme.optimised(next(iter(matrices(problem)))).tolist() == choice.tolist()
    of_pinned = ~choice @ program.owner > 0
    maximises = problem.objective.maximises_value
    pinned = pinned_flow(program, ~choice, cut=maximises)
    np.testing.assert_allclose(flow[of_pinned], pinned[of_pinned], rtol=1e-9, atol=1e-9)
    rest, load = np.where(choice, program.demand, 0), program.use @ pinned
    if maximises:
        assert_feasible(problem, allocation)
        best = program.value @ pinned + program.best_value(
            rest, np.maximum(program.capacity - load, 0)
        )
        assert program.value @ flow == pytest.approx(best, rel=1e-6, abs=1e-6)
    else:
        assert program.largest_utilisation(flow) == pytest.approx(
            program.least_utilisation(rest, load), rel=1e-6
        )
        np.testing.assert_allclose(
            (program.owner @ flow)[program.owner.any(1)], program.demand[program.owner.any(1)]
        )
    return choice, program.owner @ flow


@pytest.mark.parametrize("failed", [0, 2, 5])
@pytest.mark.parametrize(
    "scheme", [DemandPinning(alpha=0.1), DemandPinning(alpha=0.4), DemandPinning(threshold=0.05)]
)
def test_values_and_pinned_flows_equal_those_of_the_oracle(
    scheme: DemandPinning, failed: int
) -> None:
    for seed in range(25):
        check(random_problem(seed, batch=1, failed=failed), scheme)


@pytest.mark.parametrize(
    "objective",
    [
        ObjectiveName.WEIGHTED_FLOW,
        ObjectiveName.LATENCY_PENALISED_FLOW,
        ObjectiveName.MAX_LINK_UTILISATION,
    ],
)
def test_the_other_objectives_equal_the_oracle(objective: ObjectiveName) -> None:
    for seed in range(12):
        problem = random_problem(seed, batch=1, failed=seed % 3, objective=objective)
        check(problem, DemandPinning(alpha=0.3))
        check(problem, DemandPinning(threshold=0.2))


def test_each_matrix_of_a_batch_has_its_own_failures_and_choice() -> None:
    problem = random_problem(7, batch=4, failed=3)
    splits = DemandPinning(alpha=0.3).solve(problem).splits
    for b in range(4):
        row = problem.row(b)
        check(row, DemandPinning(alpha=0.3))
        program = Program.of(row)
        alone = DemandPinning(alpha=0.3).solve(row).splits
        values = [program.value @ program.flow(row, s) for s in (splits[b : b + 1], alone)]
        assert values[0] == pytest.approx(values[1], rel=1e-9)


def _whole_numbers(seed: int, failed: int = 2) -> Problem:
    """Small whole demands and capacities, so that many demands are equal, to the border too, and
    many links fill."""
    problem, rng = random_problem(seed, batch=1, failed=failed), np.random.default_rng(seed)
    demand = torch.from_numpy(rng.integers(0, 5, problem.demand.shape).astype(float))
    capacity = torch.from_numpy(rng.integers(2, 7, problem.capacity.shape).astype(float))
    return problem.with_demand(demand).with_capacity(
        torch.where(problem.capacity > 0, capacity, 0.0)
    )


def test_equal_demands_and_full_links_equal_the_oracle() -> None:
    at_border = at_threshold = 0
    for seed in range(25):
        problem = _whole_numbers(seed)
        choice, _ = check(problem, DemandPinning(alpha=0.3))
        demand = problem.demand[0].numpy()
        at_border += int(demand[choice].min() == np.quantile(demand[demand > 1e-3], 0.7))
        live = problem.capacity[0].numpy()
        share = 2 / float(live[live > 0].mean())
        if (
            share * float(live[live > 0].mean()) == 2
        ):  # the border is 2 Gbit/s, a demand of many pairs
            check(problem, DemandPinning(threshold=share))
            at_threshold += 1
    assert at_border > 10
    assert at_threshold > 10


def test_by_alpha_a_demand_at_the_border_is_optimised_and_by_threshold_it_is_pinned() -> None:
    """If (n - 1) (1 - alpha) is an integer, the quantile of n demands is one of them, without
    any equal demands."""
    problem = random_problem(0, batch=1, idle=0.0)
    rank = np.arange(1.0, problem.paths.num_demands + 1)
    problem = problem.with_demand(torch.from_numpy(np.where(rank <= 41, rank, 0.0))[None])
    choice, _ = check(problem, DemandPinning(alpha=0.25))
    assert np.flatnonzero(choice).tolist() == list(range(30, 41)), (
        "31, which is the quantile, to 41 Gbit/s"
    )
    equal = problem.with_capacity(torch.full_like(problem.capacity, 4.0))
    choice, _ = check(equal, DemandPinning(threshold=2.0))
    assert np.flatnonzero(choice).tolist() == list(range(8, 41)), "9 to 41 Gbit/s; 8 is the border"


def test_demands_without_a_path_count_for_the_quantile() -> None:
    """The median of 1, 2, 8 and 9 Gbit/s is 5; without the 9, which has no path, it would be 2."""
    topology = make_topology([(0, 1, 4.0), (0, 2, 4.0), (2, 1, 4.0)], min_nodes=4)
    pairs = np.array([[0, 1], [0, 2], [0, 3], [2, 1]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=2, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([[8.0, 1.0, 9.0, 2.0]]))
    choice, served = check(problem, DemandPinning(alpha=0.5))
    assert choice.tolist() == [True, False, True, False]
    np.testing.assert_allclose(served, [6.0, 1.0, 0.0, 2.0])


def _shared_link(demand: list[float], capacity: list[float]) -> Problem:
    """Demands 0 -> 2, 1 -> 2 and 3 -> 2, all over 3 -> 2 first; the first of them also has a way
    over 4 and 5."""
    ends = [(0, 3), (1, 3), (3, 2), (0, 4), (4, 5), (5, 2)]
    topology = make_topology([(*pair, 9.0) for pair in ends])
    pairs = np.array([[0, 2], [1, 2], [3, 2]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=2, cache=False)
    return Problem.create(
        topology, paths, Objective(), np.array([demand]), capacity=np.array([capacity])
    )


@pytest.mark.parametrize(
    ("demand", "capacity", "served"),
    [
        # All are pinned.  3 -> 2 is full before the last demand, and the first does not try its
        # second path.
        ([2.0, 2.0, 1.0], [9, 9, 3, 9, 9, 9], [2.0, 1.0, 0.0]),
        ([4.0, 1.0, 1.0], [9, 9, 3, 9, 9, 9], [3.0, 0.0, 0.0]),
        # The first path of the first demand has failed: its second one is the first live one.
        ([2.0, 2.0, 1.0], [0, 9, 3, 9, 9, 9], [2.0, 2.0, 1.0]),
        # A demand of zero takes no room, and a demand without a live path no turn.
        ([0.0, 2.0, 2.0], [9, 9, 3, 9, 9, 9], [0.0, 2.0, 1.0]),
        ([2.0, 2.0, 2.0], [0, 0, 3, 1, 9, 9], [1.0, 0.0, 2.0]),
    ],
)
def test_pinned_demands_share_a_full_link_in_the_order_of_their_numbers(
    demand: list[float], capacity: list[float], served: list[float]
) -> None:
    choice, actual = check(_shared_link(demand, capacity), DemandPinning(threshold=9.0))
    assert not choice.any()
    np.testing.assert_allclose(actual, served)


def test_a_demand_at_the_quantile_is_large_whatever_rounding_says() -> None:
    """1 - 0.7 is rounded up: the position of the 0.3 quantile of 11 demands is then just above that
    of demand 4."""
    demand = np.array([1.0, 2, 3, 4, 50, 60, 70, 80, 90, 100, 110])
    assert largest(demand, 0.7).sum() == 8
