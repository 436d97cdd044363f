"""Fair shares by the engines: equal to each other, certified, and within the bounds of an
interior-point method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import teal
from baselines.lp_all import LpAll
from teal.errors import InputError
from teal.problem import Problem, assess
from teal.runtime.interruptible import complete
from teal.solvers.columns import generating_columns
from teal.solvers.pdhg.fused.engine import FusedEngine
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.pdhg.shards.sharded import ShardedProblem
from teal.solvers.pipeline import solve
from teal.testing import cabled_topology, random_problem

SPECS = [
    "proportional_fair",
    "proportional_fair:weight=1",
    "alpha_fair:alpha=0.5",
    "alpha_fair:alpha=2",
    "alpha_fair:alpha=2,weight=1",
    "alpha_fair:alpha=4",
]


def _fair(base: Problem, spec: str) -> Problem:
    return Problem.create(
        base.topology, base.paths, spec, base.demand.numpy(), capacity=base.capacity.numpy()
    )


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_compiled_engine_takes_the_steps_of_the_plain_one(spec: str, seed: int) -> None:
    problem = _fair(random_problem(seed, batch=3, failed=seed), spec)
    engines = [make(problem, None, torch.float64) for make in (PlainEngine, FusedEngine)]
    for count in (1, 7, 30):
        bounds = [engine.advance(count) for engine in engines]
        torch.testing.assert_close(bounds[0], bounds[1], rtol=1e-7, atol=1e-9)
        checks = [engine.check(refill=2) for engine in engines]
        for plain, fused in zip(*checks, strict=True):
            torch.testing.assert_close(plain, fused, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(
            engines[0].state().splits, engines[1].state().splits, rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", range(4))
def test_random_networks_are_certified_and_bracket_the_interior_point_method(
    spec: str, seed: int
) -> None:
    """Parallel links, links of one direction, pairs without a path and demands of 0 among them."""
    pytest.importorskip("cvxpy", reason="needs cvxpy: pip install '.[baselines]'")
    topology = cabled_topology(seed, nodes=5)
    paths = teal.compute_paths(topology, teal.network.all_pairs(topology), num_paths=3, cache=False)
    rng = np.random.default_rng(seed)
    demand = rng.lognormal(1, 1.5, (1, paths.num_demands)) * (
        rng.random((1, paths.num_demands)) > 0.2
    )
    problem = Problem.create(topology, paths, spec, demand)
    result = solve(problem, gap=1e-6, max_iterations=20_000)
    assert float(result.gap[0]) <= 1e-6
    reference = LpAll().solve(problem)
    assert reference.status[0].usable
    own = assess(problem, result)
    theirs = assess(problem, reference)
    assert float(own.max_violation[0]) <= 1e-9
    optimum = float(theirs.value[0])
    assert float(own.value[0]) <= optimum * (1 + 1e-7)
    assert float(own.bound[0]) >= optimum * (1 - 1e-7)
    # Their prices prove a bound by the same theorem, and their value lies below ours.
    assert float(theirs.bound[0]) >= float(own.value[0]) * (1 - 1e-9)
    assert float(theirs.gap[0]) <= 1e-4


@pytest.mark.parametrize("spec", SPECS)
def test_b4_is_within_1e_7_of_the_sum_of_weights_of_the_interior_point_method(spec: str) -> None:
    pytest.importorskip("cvxpy", reason="needs cvxpy: pip install '.[baselines]'")
    topology = teal.load_topology("b4")
    matrix = teal.load_traffic("gravity:seed=0,count=1,load=6", topology).read([0])
    problem = Problem.create(topology, teal.compute_paths(topology), spec, matrix)
    assert problem.utility is not None
    result = solve(problem, gap=1e-8, max_iterations=20_000)
    reference = LpAll().solve(problem)
    curve = problem.utility.curve
    value, bound, optimum = (
        float(curve.utility(number)[0])
        for number in (result.value, result.bound, problem.value(reference.splits))
    )
    assert value - 1e-7 <= optimum <= bound + 1e-7
    assert bound - value <= 1e-7


def test_a_batch_is_solved_as_each_matrix_alone_and_a_warm_start_is_taken() -> None:
    problem = _fair(random_problem(5, batch=3, idle=0.0), "proportional_fair")
    together = solve(problem, gap=1e-4)
    for row in range(problem.batch):
        reference = solve(problem.row(row), gap=1e-4)
        assert float(reference.value[0]) == pytest.approx(float(together.value[row]), rel=3e-4)
    second = solve(problem, gap=1e-4, warm_start=together)
    assert second.iterations == 0
    more = solve(problem.with_demand(problem.demand * 1.01), gap=1e-3, warm_start=together)
    assert float(more.gap.max()) <= 1e-3


def test_a_large_alpha_gives_the_least_share_and_alpha_0_the_largest_total() -> None:
    base = random_problem(2, nodes=8, batch=1, idle=0.0)
    least = []
    total = []
    for alpha in (0, 1, 4, 16):
        problem = _fair(base, f"alpha_fair:alpha={alpha}")
        share = solve(problem, gap=1e-5, max_iterations=20_000).splits.sum(-1)
        routable = problem.routable & (problem.demand > 0)
        least.append(float(share[routable].min()))
        total.append(float((share * problem.demand).sum()))
    assert least[-1] > least[0]
    assert all(total[0] >= later * (1 - 1e-4) for later in total)
    most = solve(_fair(base, "max_concurrent_flow"), gap=1e-6)
    assert least[-1] >= 0.9 * float(most.value[0])


def test_paths_are_added_until_the_gap_over_all_paths_is_reached() -> None:
    topology = teal.load_topology("b4")
    matrix = teal.load_traffic("gravity:seed=0,count=1,load=6", topology).read([0])
    few = teal.compute_paths(topology, num_paths=1)
    problem = Problem.create(topology, few, "proportional_fair", matrix)
    last = complete(generating_columns(problem, target=1e-2))
    assert float(last.gap_all_paths[0]) <= 1e-2
    assert float(last.result.value[0]) > float(solve(problem, gap=1e-2).value[0])


def test_shards_refuse() -> None:
    problem = random_problem(1, batch=1)
    with pytest.raises(InputError, match="linear in flow"):
        ShardedProblem(
            problem.topology,
            problem.paths.pairs,
            problem.demand[0].numpy(),
            objective="proportional_fair",
            num_shards=2,
        )
