"""POP against one dense LP for each replica, and its division of the demands against a plain loop
of halvings."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baselines.matrix import Array
from baselines.pop import Pop, split
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.testing import assert_feasible, random_problem
from tests.baselines.test_demand_pinning_oracle import Program

MLU = ObjectiveName.MAX_LINK_UTILISATION
FLOW_OBJECTIVES = [
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.WEIGHTED_FLOW,
    ObjectiveName.LATENCY_PENALISED_FLOW,
]


def pieces(demand: Array, phi: float) -> list[list[float]]:
    """For each demand its pieces, largest first, after phi n halvings of the largest piece; n
    demands are above 0."""
    parts = [[rate] if rate > 0 else [] for rate in demand.tolist()]
    for _ in range(int(phi * sum(map(len, parts)))):
        d = max((d for d in range(len(parts)) if parts[d]), key=lambda d: max(parts[d]))
        half = max(parts[d]) / 2
        parts[d].remove(2 * half)
        parts[d] += [half, half]
    return [sorted(of_one, reverse=True) for of_one in parts]


def dealt(parts: list[float], replicas: int) -> list[float]:
    """What each replica has, largest first, after the pieces of one demand have gone to all
    replicas in turn."""
    return sorted((sum(parts[i::replicas]) for i in range(replicas)), reverse=True)


@pytest.mark.parametrize("phi", [0.0, 0.25, 1.0, 3.0])
@pytest.mark.parametrize("replicas", [2, 3, 4, 16])
def test_every_demand_is_divided_as_by_halving_the_largest_piece(replicas: int, phi: float) -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        demand = rng.lognormal(0, 1.5, 30) * (rng.random(30) > 0.2)
        shares = split(demand, replicas, phi, seed)
        np.testing.assert_allclose(shares.sum(0), demand, rtol=1e-12)
        expected = pieces(demand, phi)
        assert sum(map(len, expected)) == int((1 + phi) * np.count_nonzero(demand))
        for d, of_one in enumerate(expected):
            np.testing.assert_allclose(
                np.sort(shares[:, d])[::-1], dealt(of_one, replicas), rtol=1e-12
            )
            assert np.count_nonzero(shares[:, d]) == min(replicas, len(of_one)), (
                "different replicas for the pieces"
            )
        whole = [d for d, of_one in enumerate(expected) if len(of_one) == 1]
        per_replica = np.count_nonzero(shares[:, whole], axis=1)
        assert per_replica.max() - per_replica.min() <= 1
    assert np.array_equal(split(demand, replicas, phi, 5), split(demand, replicas, phi, 5))


def replica_values(program: Program, shares: Array) -> list[float]:
    """The optimum of each replica: its demands within an equal part of every capacity."""
    count = len(shares)
    if not program.value.any():
        idle = np.zeros(len(program.capacity))
        scaled = [
            Program(program.use, program.owner, program.value, s, program.capacity / count)
            for s in shares
        ]
        return [replica.least_utilisation(replica.demand, idle) for replica in scaled]
    return [program.best_value(share, program.capacity / count) for share in shares]


def flow_of(problem: Problem, scheme: Pop) -> tuple[Program, Array, Array]:
    """The program of one matrix, the flow that the scheme gives, and its prices."""
    allocation = scheme.solve(problem)
    assert_feasible(problem, allocation)
    program = Program.of(problem)
    assert allocation.prices is not None
    return program, program.flow(problem, allocation.splits), allocation.prices[0].numpy()


def bound(program: Program, prices: Array) -> float:
    """No flows within the capacities are worth more, by weak duality."""
    worth = np.maximum(0, program.value - prices @ program.use)
    best = np.array([worth[owned > 0].max(initial=0.0) for owned in program.owner])
    return float(prices @ program.capacity + best @ program.demand)


@pytest.mark.parametrize("objective", FLOW_OBJECTIVES)
@pytest.mark.parametrize(
    "scheme",
    [
        Pop(replicas=2, phi=0.0, workers=1),
        Pop(replicas=3, workers=1, seed=4),
        Pop(phi=1.0, workers=1),
    ],
)
def test_the_value_is_the_sum_of_the_optima_of_the_replicas(
    scheme: Pop, objective: ObjectiveName
) -> None:
    for seed in range(8):
        problem = random_problem(seed, batch=1, failed=seed % 4, objective=objective)
        program, flow, prices = flow_of(problem, scheme)
        shares = split(program.demand, scheme.replicas, scheme.phi, scheme.seed)
        values = replica_values(program, shares)
        assert program.value @ flow == pytest.approx(sum(values), rel=1e-6, abs=1e-6)
        best = program.best_value(program.demand, program.capacity)
        assert sum(values) <= best * (1 + 1e-6) + 1e-9 <= bound(program, prices) * (1 + 1e-6) + 1e-6
        assert (prices >= 0).all()


def test_the_prices_are_the_mean_of_those_of_the_replicas() -> None:
    """Their bound is then exact for a network in which every replica has the same demands."""
    for seed in range(8):
        problem = random_problem(seed, batch=1, objective=ObjectiveName.WEIGHTED_FLOW)
        program, _, prices = flow_of(problem, Pop(replicas=1, workers=1))
        assert bound(program, prices) == pytest.approx(
            program.best_value(program.demand, program.capacity), rel=1e-6
        )
        # Every demand is halved once if phi is 1 and no demand is more than twice another one.
        rng = np.random.default_rng(seed)
        even = problem.with_demand(torch.from_numpy(rng.uniform(1.01, 2, problem.demand.shape)))
        program, flow, prices = flow_of(even, Pop(replicas=2, phi=1.0, workers=1))
        best = program.best_value(program.demand, program.capacity)
        assert program.value @ flow == pytest.approx(best, rel=1e-6)
        assert bound(program, prices) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_largest_utilisation_is_at_most_the_mean_of_the_replicas(replicas: int) -> None:
    for seed in range(8):
        problem = random_problem(seed, batch=1, failed=seed % 3, objective=MLU)
        scheme = Pop(replicas=replicas, workers=1)
        program, flow, _ = flow_of(problem, scheme)
        values = replica_values(program, split(program.demand, replicas, scheme.phi, scheme.seed))
        least = program.least_utilisation(program.demand, np.zeros(len(program.capacity)))
        utilisation = program.largest_utilisation(flow)
        assert least * (1 - 1e-6) <= utilisation <= np.mean(values) * (1 + 1e-6)
        if replicas == 1:
            assert utilisation == pytest.approx(least, rel=1e-6)
        served = program.owner @ flow
        np.testing.assert_allclose(served, program.demand * program.owner.any(1), rtol=1e-6)


def test_every_matrix_of_a_batch_is_divided_by_itself() -> None:
    problem, scheme = random_problem(5, batch=4, failed=2), Pop(replicas=3, workers=1)
    splits = scheme.solve(problem).splits
    for b in range(4):
        program = Program.of(problem.row(b))
        shares = split(program.demand, 3, scheme.phi, scheme.seed)
        value = program.value @ program.flow(problem.row(b), splits[b : b + 1])
        assert value == pytest.approx(sum(replica_values(program, shares)), rel=1e-6)
