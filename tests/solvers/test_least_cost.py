"""The least cost against linear programs: over candidate paths, over all paths, and where not all
demand can be carried."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from baselines import arc_form
from baselines.lp_all import LpAll
from teal.errors import InputError
from teal.network import Topology, compute_paths
from teal.network.path_changes import first_paths_of_each
from teal.problem import Problem, Status, assess, dual_bound
from teal.problem.bounds import all_paths_bound
from teal.runtime.interruptible import Deadline
from teal.runtime.kernel_cache import interpreting
from teal.solvers import least_cost
from teal.solvers.columns import generate_columns
from teal.solvers.result import Stop
from teal.testing import cabled_topology, make_topology, random_problem
from tests.bounds import Cases

LEAST_COST = "least_cost"


def with_costs(problem: Problem, seed: int, magnitude: float = 1.0) -> Problem:
    """The problem with random costs of links, some of them 0."""
    generator = np.random.default_rng(seed)
    cost = magnitude * generator.integers(0, 10, problem.topology.num_links)
    topology = dataclasses.replace(problem.topology, cost=cost.astype(np.float64))
    return Problem.create(
        topology,
        problem.paths,
        LEAST_COST,
        problem.demand.numpy(),
        capacity=problem.capacity.numpy(),
    )


def loaded(seed: int, load: float, magnitude: float = 1.0) -> Problem:
    """A random network of cables, some of several parallel links or of one direction, and demand
    between nodes that it connects.
    """
    topology = cabled_topology(seed)
    paths = compute_paths(topology, num_paths=3)
    rates = np.where(paths.mask.any(1), _rates(topology, seed), 0.0)
    problem = Problem.create(topology, paths, LEAST_COST, rates * load)
    return with_costs(problem, seed, magnitude)


def _rates(topology: Topology, seed: int) -> np.ndarray:
    count = topology.num_nodes * (topology.num_nodes - 1)
    return np.random.default_rng(seed).exponential(1.0, (1, count))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    load=st.sampled_from([0.02, 0.1, 0.3, 1.0]),
    magnitude=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_the_least_cost_is_that_of_the_lp(seed: int, load: float, magnitude: float) -> None:
    problem = loaded(seed, load, magnitude)
    reference = LpAll().solve(problem)
    result = teal.solve(problem, gap=1e-7)
    solution = assess(problem, result)
    if reference.status[0] is Status.INFEASIBLE:
        assert result.stopped_by == (Stop.INFEASIBLE,)
        assert solution.status == (Status.INFEASIBLE,)
        assert result.largest_share is not None
        share, bound = result.largest_share[0].tolist()
        concurrent = Problem.create(
            problem.topology, problem.paths, "max_concurrent_flow", problem.demand.numpy()
        )
        most = float(assess(concurrent, LpAll().solve(concurrent)).value)
        assert share == pytest.approx(most, rel=1e-2)
        assert share - 1e-7 <= most <= bound + 1e-7
        return
    optimum = float(assess(problem, reference).value)
    assert solution.status == (Status.FEASIBLE,)
    assert float(solution.max_violation) <= 1e-9
    assert float(solution.value) == pytest.approx(optimum, rel=1e-6, abs=1e-9 * magnitude)
    assert float(solution.bound) <= optimum * (1 + 1e-7) + 1e-9 * magnitude
    assert float(solution.gap) <= 1e-7


@pytest.mark.parametrize("over_all_paths", [False, True])
def test_a_demand_without_a_path_is_infeasible(over_all_paths: bool) -> None:
    """Of a -> b and a -> c, where c has no link, not all can be carried; b's matrix alone can."""
    topology = make_topology([(0, 1, 10.0), (1, 0, 10.0)], min_nodes=3)
    pairs = np.array([[0, 1], [0, 2]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=2, cache=False)
    problem = Problem.create(topology, paths, LEAST_COST, np.array([[5.0, 5.0], [5.0, 0.0]]))
    result = generate_columns(problem).result if over_all_paths else teal.solve(problem, gap=1e-6)
    assert result.stopped_by == (Stop.INFEASIBLE, Stop.GAP)
    assert result.largest_share is not None
    assert result.largest_share[0].tolist() == [0.0, 0.0]
    assert math.isinf(float(result.gap[0]))
    assert assess(problem, result).status == (Status.INFEASIBLE, Status.FEASIBLE)
    # The validator needs no claim of the solver.
    claimed = dataclasses.replace(result.allocation, status=(Status.FEASIBLE,) * 2)
    assert assess(problem, claimed).status == (Status.INFEASIBLE, Status.FEASIBLE)


def test_splits_above_capacities_have_no_certified_gap() -> None:
    """A search that ends before its first feasible allocation has an infinite value and gap: its
    cost lies below every bound.
    """
    topology = make_topology([(0, 1, 1.0), (1, 2, 1.0), (0, 2, 1.0)])
    pairs = np.array([[0, 2]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=2, cache=False)
    problem = Problem.create(topology, paths, LEAST_COST, np.array([[1.9]]))
    splits = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    prices = torch.full((1, 3), 0.5, dtype=torch.float64)
    result = least_cost.make_result(problem, splits, prices, 0, 1e-6, Deadline())
    assert math.isinf(float(result.value[0]))
    assert math.isinf(float(result.gap[0]))


def test_the_largest_share_is_not_rounded() -> None:
    """0.7 Gbit/s for a demand of 1: the share is 0.7, and its bound is not below it."""
    topology = make_topology([(0, 1, 0.7)])
    pairs = np.array([[0, 1]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    problem = Problem.create(topology, paths, LEAST_COST, np.ones((1, 1)))
    result = teal.solve(problem, gap=1e-6)
    assert result.largest_share is not None
    assert result.largest_share.dtype == torch.float64
    share, bound = result.largest_share[0].tolist()
    assert share == pytest.approx(0.7, rel=1e-12)
    assert bound >= 0.7 * (1 - 1e-12)


@pytest.mark.parametrize("backup", [1e3, 1e8, 1e12, 1e15])
@pytest.mark.parametrize("over_all_paths", [False, True])
def test_an_extreme_cost_takes_no_digits_from_the_others(
    backup: float, over_all_paths: bool
) -> None:
    """15 Gbit/s over paths of 10 that cost 2 and 6: 50, whatever a third path costs."""
    links = [(0, 1), (1, 4), (0, 2), (2, 4), (0, 3), (3, 4)]
    topology = make_topology([(a, b, 10.0) for a, b in links])
    cost = np.array([1, 1, 3, 3, backup, backup], dtype=np.float64)
    topology = dataclasses.replace(topology, cost=cost)
    pairs = np.array([[0, 4]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=3, cache=False)
    problem = Problem.create(topology, paths, LEAST_COST, np.array([[15.0]]))
    if over_all_paths:
        last = generate_columns(problem, target=1e-6)
        value = float(last.result.value[0])
        bound = float(last.bound_all_paths[0])
    else:
        result = teal.solve(problem, gap=1e-6)
        value = float(result.value[0])
        bound = float(result.bound[0])
    assert value == pytest.approx(50, rel=2e-6)
    assert 50 * (1 - 2e-6) <= bound <= 50 * (1 + 1e-12)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), load=st.sampled_from([0.02, 0.1, 0.3, 1.0]))
def test_the_least_cost_over_all_paths_is_that_of_the_arc_form(seed: int, load: float) -> None:
    problem = loaded(seed, load)
    first = problem.with_paths(first_paths_of_each(problem.paths, 1))
    optimum = arc_form.optimum(first)
    last = generate_columns(first, target=1e-6)
    over = first.with_paths(last.paths)
    result = assess(over, last.result)
    if math.isinf(optimum):
        assert last.result.stopped_by == (Stop.INFEASIBLE,)
        assert last.result.largest_share is not None
        assert float(last.result.largest_share[0, 1]) < 1
        return
    assert result.status == (Status.FEASIBLE,)
    assert float(result.max_violation) <= 1e-9
    assert float(result.value) == pytest.approx(optimum, rel=2e-6, abs=1e-9)
    assert float(last.bound_all_paths) <= optimum * (1 + 1e-9) + 1e-9
    torch.testing.assert_close(all_paths_bound(over, last.result.prices), last.bound_all_paths)
    assert float(last.gap_all_paths) <= 1e-6


def test_any_prices_bound_the_least_cost() -> None:
    """A cost is never negative: a bound above 0 says something."""
    cases = Cases()

    @settings(max_examples=40)
    @given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.0, 0.1, 1.0, 30.0]))
    def check(seed: int, scale: float) -> None:
        problem = loaded(seed, 0.1)
        generator = torch.Generator().manual_seed(seed)
        prices = scale * torch.rand(problem.capacity.shape, generator=generator).double() ** 3
        reference = LpAll().solve(problem)
        optimum = math.inf
        if reference.status[0].usable:
            optimum = float(assess(problem, reference).value)
        bound = float(dual_bound(problem, prices))
        over_all = all_paths_bound(problem, prices)
        assert bound <= optimum * (1 + 1e-7) + 1e-9
        assert float(over_all) <= arc_form.optimum(problem) * (1 + 1e-7) + 1e-9
        cases.add(min(bound, float(over_all)) > 0.01 * min(optimum, 1e12) > 0)

    check()
    cases.require_most()


def two_routes(capacity: float) -> Problem:
    """A demand of 3 Gbit/s over a route of cost 1 and one of cost 1 + 4."""
    topology = make_topology([(0, 2, capacity), (0, 1, 5.0), (1, 2, 5.0)])
    topology = dataclasses.replace(
        topology, latency=np.array([1.0, 1.0, 4.0]), metric=np.array([10, 1, 1])
    )
    pairs = np.array([[0, 2]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=2)
    return Problem.create(topology, paths, LEAST_COST, np.array([[3.0]]))


def test_the_cheap_route_is_filled_first() -> None:
    problem = two_routes(2.0)
    result = teal.solve(problem, gap=1e-9)
    assert float(result.value) == pytest.approx(2 * 1 + 1 * 5)
    assert result.splits[0, 0].tolist() == pytest.approx([2 / 3, 1 / 3], abs=1e-7)
    assert float(result.prices[0, 0]) == pytest.approx(4.0)  # what another Gbit/s there saves


@pytest.mark.parametrize(("first", "is_within"), [(2.0, True), (2.0 * (1 + 1e-6), False)])
def test_capacities_hold_to_rounding_alone(first: float, is_within: bool) -> None:
    problem = two_routes(2.0)
    splits = torch.tensor([[[first / 3, 1 - first / 3]]], dtype=torch.float64)
    assert least_cost.is_feasible(problem, splits) == is_within


def test_the_cost_may_be_another_one() -> None:
    problem = two_routes(2.0)
    by_metric = Problem.create(
        problem.topology, problem.paths, "least_cost:cost=metric", problem.demand.numpy()
    )
    assert float(teal.solve(by_metric, gap=1e-9).value) == pytest.approx(3 * 2)
    by_hops = Problem.create(
        problem.topology, problem.paths, "least_cost:cost=hops", problem.demand.numpy()
    )
    assert float(teal.solve(by_hops, gap=1e-9).value) == pytest.approx(2 * 1 + 1 * 2)
    with pytest.raises(InputError, match="te_metric"):
        Problem.create(
            problem.topology, problem.paths, "least_cost:cost=te_metric", problem.demand.numpy()
        )


def test_a_largest_utilisation_limits_every_link() -> None:
    problem = two_routes(2.0)
    limited = Problem.create(
        problem.topology, problem.paths, "least_cost:max_utilisation=0.5", problem.demand.numpy()
    )
    result = teal.solve(limited, gap=1e-9)
    assert float(result.value) == pytest.approx(1 * 1 + 2 * 5)
    solution = assess(limited, result)
    assert float(solution.max_link_utilisation) == pytest.approx(0.5)
    assert float(limited.utilisation(result.splits).max()) == pytest.approx(0.5)
    assert solution.status == (Status.FEASIBLE,)
    failed = limited.with_capacity(np.array([0.0, 5.0, 5.0]))
    assert teal.solve(failed, gap=1e-9).stopped_by == (Stop.INFEASIBLE,)
    assert float(failed.capacity[0, 1]) == pytest.approx(2.5)


def test_more_demand_than_all_routes_carry_is_refused_with_the_largest_share() -> None:
    problem = two_routes(2.0).with_demand(torch.tensor([[14.0]], dtype=torch.float64))
    result = teal.solve(problem)
    assert result.stopped_by == (Stop.INFEASIBLE,)
    assert result.largest_share is not None
    assert result.largest_share[0].tolist() == pytest.approx([0.5, 0.5], rel=1e-6)
    assert float(result.splits.sum()) == pytest.approx(0.5, rel=1e-6)
    # The search for an allocation of all demand ends at the optimum of what may be left out.
    assert result.iterations < 60


def test_a_deadline_ends_before_it_is_known_how_much_can_be_carried() -> None:
    """Neither dearer unserved demand nor the largest share is tried after the deadline."""
    topology = make_topology([(0, 1, 2.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=1, cache=False)
    problem = Problem.create(topology, paths, LEAST_COST, np.array([[3.0]]))
    result = teal.solve(problem, gap=1e-6, deadline=0)
    assert result.stopped_by == (Stop.DEADLINE,)
    assert result.largest_share is None
    assert math.isinf(float(result.gap))


@pytest.mark.parametrize(
    ("bound", "is_impossible"), [(1 - 1e-12, False), (1 - 1e-6, True), (1.0, False)]
)
def test_rounding_alone_makes_no_matrix_infeasible(bound: float, is_impossible: bool) -> None:
    splits = torch.zeros(1, 1, 1)
    prices = torch.zeros(1, 1)
    result = least_cost.ConcurrentFlow(bound, bound, splits, prices)
    assert result.is_infeasible == is_impossible


@pytest.mark.parametrize("seed", range(20))
def test_demand_that_fills_every_route_is_feasible(seed: int) -> None:
    """Capacities of three routes, whose sum is the demand, do not add up to it exactly."""
    capacity = np.random.default_rng(seed).lognormal(0, 1, 3)
    links = [(0, 1, capacity[0]), (0, 2, capacity[1]), (2, 1, 9e9), (0, 3, capacity[2])]
    topology = make_topology([*links, (3, 1, 9e9)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=3, cache=False)
    problem = Problem.create(topology, paths, LEAST_COST, np.array([[sum(capacity)]]))
    result = teal.solve(problem, gap=1e-6)
    assert result.stopped_by == (Stop.GAP,)
    expected = capacity[0] + 2 * (capacity[1] + capacity[2])
    assert float(result.value) == pytest.approx(expected, rel=1e-6)


def test_each_matrix_starts_from_its_own_optimum() -> None:
    topology = teal.load_topology("b4")
    demand = teal.load_traffic("gravity:count=3,load=1.5", topology).read([0, 1, 2])
    paths = compute_paths(topology)
    problem = Problem.create(topology, paths, LEAST_COST, demand * np.array([[1.0], [0.2], [0.6]]))
    optimum = teal.solve(problem, gap=1e-9)
    assert optimum.iterations > 0
    second = teal.solve(problem, gap=1e-6, warm_start=optimum)
    assert second.iterations == 0
    torch.testing.assert_close(second.value, optimum.value, rtol=1e-6, atol=0)


def test_a_failed_link_does_not_set_the_price_of_unserved_demand() -> None:
    """The link of no cost has failed; the live one is dear."""
    topology = make_topology([(0, 1, 5.0), (0, 2, 5.0), (2, 1, 5.0)])
    topology = dataclasses.replace(topology, cost=np.array([0.0, 1e7, 0.0]))
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=1, cache=False)
    problem = Problem.create(topology, paths, LEAST_COST, np.array([[3.0]]))
    failed = problem.with_capacity(np.array([0.0, 5.0, 5.0]))
    last = generate_columns(failed, target=1e-6)
    assert float(last.result.value) == pytest.approx(3e7)
    assert float(last.bound_all_paths) == pytest.approx(3e7, rel=2e-6)
    assert last.result.iterations < 60


def test_a_dear_detour_is_taken_however_dear() -> None:
    topology = make_topology([(0, 1, 1.0), (0, 2, 9.0), (2, 1, 9.0)])
    topology = dataclasses.replace(topology, cost=np.array([1e-3, 1e4, 1e4]))
    pairs = np.array([[0, 1]], np.int32)
    for num_paths in (1, 2):
        paths = compute_paths(topology, pairs, num_paths=num_paths)
        problem = Problem.create(topology, paths, LEAST_COST, np.array([[3.0]]))
        last = generate_columns(problem, target=1e-6)
        assert float(last.result.value) == pytest.approx(1e-3 + 2 * 2e4)


def test_the_bound_over_all_paths_holds_where_unserved_demand_became_dearer() -> None:
    """1 Gbit/s over a link of cost 1, the rest over three links of cost 3 each."""
    topology = make_topology([(0, 1, 1.0), (0, 2, 9.0), (2, 3, 9.0), (3, 1, 9.0)])
    topology = dataclasses.replace(topology, cost=np.array([1.0, 3.0, 3.0, 3.0]))
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=1)
    problem = Problem.create(topology, paths, LEAST_COST, np.array([[3.0]]))
    last = generate_columns(problem, target=1e-6)
    optimum = 1 * 1 + 2 * 9
    assert float(last.result.value) == pytest.approx(optimum)
    assert 0 <= float(last.gap_all_paths) <= 1e-6
    bound = float(last.bound_all_paths)
    assert optimum * (1 - 1e-6) <= bound <= optimum * (1 + 1e-9)


def test_several_matrices_are_solved_each_for_itself() -> None:
    topology = teal.load_topology("b4")
    paths = compute_paths(topology)
    demand = teal.load_traffic("gravity:count=4,load=1.5", topology).read([0, 1, 2, 3])
    problem = Problem.create(topology, paths, LEAST_COST, demand)
    together = teal.solve(problem, gap=1e-6)
    for row in range(4):
        reference = teal.solve(problem.row(row), gap=1e-6)
        assert together.stopped_by[row] == reference.stopped_by[0]
        torch.testing.assert_close(together.value[row], reference.value[0])
    last = generate_columns(problem, target=1e-5)
    assert last.result.splits.shape == (4, *last.paths.mask.shape)
    assert bool((last.bound_all_paths <= together.value * (1 + 1e-6)).all())


def test_matrices_that_need_other_paths_share_the_set_that_has_all() -> None:
    topology = make_topology(
        [(0, 1, 1.0), (0, 2, 1.0), (2, 1, 1.0), (0, 3, 1.0), (3, 1, 1.0), (1, 0, 1.0)]
    )
    pairs = np.array([[0, 1]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=1)
    problem = Problem.create(topology, paths, LEAST_COST, np.array([[0.5], [2.5], [1.5]]))
    last = generate_columns(problem, target=1e-6)
    assert last.result.value.tolist() == pytest.approx([0.5, 4.0, 2.0], rel=1e-5)
    result = assess(problem.with_paths(last.paths), last.result)
    assert set(result.status) == {Status.FEASIBLE}


def test_a_start_from_the_matrix_before_gives_the_same_cost() -> None:
    topology = teal.load_topology("b4")
    paths = compute_paths(topology)
    demand = teal.load_traffic("gravity:count=2,load=1.5", topology).read([0, 1])
    first, second = (Problem.create(topology, paths, LEAST_COST, row) for row in demand)
    cold = teal.solve(second, gap=1e-7)
    warm = teal.solve(second, gap=1e-7, warm_start=teal.solve(first, gap=1e-3))
    torch.testing.assert_close(cold.value, warm.value, rtol=1e-6, atol=0)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    load=st.sampled_from([0.1, 0.3, 0.6]),
    costly=st.sampled_from([0.0, 0.25]),
)
def test_an_optimum_of_nothing_is_found(seed: int, load: float, costly: float) -> None:
    problem = loaded(seed, load)
    cost = (np.random.default_rng(seed).random(problem.topology.num_links) < costly).astype(float)
    topology = dataclasses.replace(problem.topology, cost=cost)
    problem = Problem.create(topology, problem.paths, LEAST_COST, problem.demand.numpy())
    optimum = arc_form.optimum(problem)
    last = generate_columns(problem, target=1e-4)
    if math.isinf(optimum):
        assert last.result.stopped_by == (Stop.INFEASIBLE,)
        return
    result = assess(problem.with_paths(last.paths), last.result)
    assert result.status == (Status.FEASIBLE,)
    assert float(result.value) == pytest.approx(optimum, rel=2e-4, abs=1e-6)
    # The bound adds products of prices and rates, which round where the optimum is 0.
    assert 0 <= float(last.bound_all_paths) <= float(result.value) * (1 + 1e-9) + 1e-12
    assert not math.copysign(1, float(result.value)) < 0


def test_nothing_compiled_gives_the_same_cost() -> None:
    problem = two_routes(2.0)
    with interpreting():
        assert float(teal.solve(problem, gap=1e-6).value) == pytest.approx(7.0)


def test_other_engines_and_schemes_say_that_they_do_not_take_it() -> None:
    problem = two_routes(2.0)
    with pytest.raises(InputError, match="engine"):
        teal.solve(problem, engine="plain")
    for scheme in ("teal", "price-gnn", "pop"):
        with pytest.raises(InputError, match="least_cost"):
            teal.make_scheme(scheme).solve(problem)


def test_options_that_are_no_options_are_refused() -> None:
    for text in (
        "cost=fibre",
        "max_utilisation=0",
        "max_utilisation=1.5",
        "max_utilisation=x",
        "a=1",
    ):
        with pytest.raises(InputError):
            teal.Objective(f"least_cost:{text}")


def test_a_demand_without_a_path_is_infeasible_and_the_others_are_routed_at_their_least_cost() -> (
    None
):
    problem = with_costs(random_problem(3, failed=4, batch=1), 3)
    light = problem.with_demand(problem.demand * 1e-3)
    assert bool((~light.routable & (light.demand > 0)).any())
    assert assess(light, teal.solve(light, gap=1e-6)).status == (Status.INFEASIBLE,)

    routable = light.with_demand(torch.where(light.routable, light.demand, 0))
    theirs = assess(routable, teal.solve(routable, gap=1e-6))
    assert theirs.status == (Status.FEASIBLE,)
    assert torch.equal(teal.solve(light, gap=1e-6).splits, teal.solve(routable, gap=1e-6).splits)
