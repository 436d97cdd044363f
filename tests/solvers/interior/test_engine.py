"""Interior points against optima by hand, an explicit program in HiGHS, and exact fractions."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from teal.errors import InputError
from teal.network import compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.feasibility import TOLERANCE, violations
from teal.problem.steps import ValueSteps
from teal.runtime.interruptible import Deadline, complete
from teal.solvers import cost_model
from teal.solvers.contract import Limits, Start
from teal.solvers.engine_choice import Choice, choose_engines
from teal.solvers.interior import engine
from teal.solvers.result import Stop
from teal.testing import make_topology, random_problem, random_topology, with_random_steps
from tests.extremes import ROUNDING, exact_bound, extreme_problem, share_program
from tests.solvers.engine_times import prefer


def _solve(problem: Problem, gap: float = 1e-8) -> teal.SolveResult:
    return teal.solve(problem, gap=gap, engine="interior")


def _two_paths(objective: str, demand: float) -> Problem:
    """From 0 to 1 by a link of 2 Gbit/s, or by two links of 1 and 3 Gbit/s."""
    topology = make_topology([(0, 1, 2.0), (0, 2, 1.0), (2, 1, 3.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=2, cache=False)
    return Problem.create(topology, paths, Objective(objective), np.array([[demand]]))


def test_two_paths_by_hand() -> None:
    flow = _solve(_two_paths("total_flow", 4.0), 1e-7)
    assert float(flow.value) == pytest.approx(3.0, rel=1e-7)
    assert float(flow.bound) == pytest.approx(3.0, rel=1e-7)
    # A Gbit/s more on either of the two links that bind carries one more; the third has room.
    np.testing.assert_allclose(flow.prices[0].numpy(), [1.0, 1.0, 0.0], atol=1e-6)
    assert flow.stopped_by == (Stop.GAP,)
    balance = _solve(_two_paths("max_link_utilisation", 1.5), 1e-7)
    assert float(balance.value) == pytest.approx(0.5, rel=1e-7)
    np.testing.assert_allclose(balance.splits[0, 0].numpy(), [2 / 3, 1 / 3], atol=1e-6)
    half = _solve(_two_paths("max_concurrent_flow", 6.0), 1e-7)
    assert float(half.value) == pytest.approx(0.5, rel=1e-7)


@pytest.mark.parametrize("objective", ["total_flow", "max_link_utilisation"])
def test_beyond_the_range_of_float64_the_search_ends_with_the_best(objective: str) -> None:
    """No gap of 1e-15 can be certified; what is returned is as good as can be."""
    result = _solve(_two_paths(objective, 1.5 if "max" in objective else 4.0), 1e-15)
    assert float(result.gap) < 1e-6
    assert result.iterations < engine.MAX_ITERATIONS


def test_what_cannot_bind_needs_no_iteration() -> None:
    result = _solve(_two_paths("total_flow", 0.5))
    assert result.iterations == 0
    assert float(result.value) == 0.5
    assert float(result.gap) == 0.0


def _as_checked(problem: Problem, gap: float) -> None:
    """Feasible, proven in exact arithmetic, and the optimum that HiGHS finds."""
    result = _solve(problem, gap)
    assert float(violations(problem, result.splits).largest.max()) <= TOLERANCE
    assert not bool(result.splits.isnan().any() | result.prices.isnan().any())
    sign = problem.objective.rules.sense
    for row in range(problem.batch):
        one = problem.row(row)
        optimum = share_program(one)
        value, bound = float(result.value[row]), float(result.bound[row])
        scale = max(abs(optimum), abs(value), 1e-300)
        assert sign * (optimum - value) >= -1e-7 * scale
        assert sign * (bound - optimum) >= -1e-7 * scale
        proven = float(exact_bound(one, result.prices[row]))
        assert sign * (bound - proven) >= -ROUNDING * max(abs(proven), abs(bound))
        assert float(result.gap[row]) <= gap, (value, bound, optimum)


@given(
    seed=st.integers(0, 100_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.sampled_from([0, 0, 2, 99]),
)
@settings(max_examples=60, deadline=None)
def test_random_programs(seed: int, objective: ObjectiveName, failed: int) -> None:
    """One-way links, demands of 0, pairs without a path, failed links."""
    _as_checked(random_problem(seed, objective=objective, failed=failed), 1e-7)


@given(seed=st.integers(0, 100_000), objective=st.sampled_from(SINGLE_PROGRAMS))
@settings(max_examples=30, deadline=None)
def test_parallel_links(seed: int, objective: ObjectiveName) -> None:
    rng = np.random.default_rng(seed)
    topology = random_topology(seed, 5, 0.6)
    double = [
        (int(s), int(t), float(c))
        for s, t, c in zip(
            topology.link_source, topology.link_target, topology.capacity, strict=True
        )
        for _ in range(int(rng.integers(1, 4)))
    ]
    topology = make_topology(double)
    paths = compute_paths(topology, num_paths=4, cache=False)
    demand = rng.lognormal(0, 1.0, (1, paths.num_demands))
    weight = rng.choice([1.0, 3.0], paths.num_demands)
    _as_checked(Problem.create(topology, paths, Objective(objective), demand, weight=weight), 1e-7)


@given(seed=st.integers(0, 100_000))
@settings(max_examples=60, deadline=None)
def test_magnitudes_of_many_decades(seed: int) -> None:
    """Whatever was reached is feasible and proven; most programs reach the target."""
    problem, _ = extreme_problem(seed)
    if not engine.accepts(problem):
        return
    result = teal.solve(problem, gap=1e-3, engine="interior")
    assert not bool(result.splits.isnan().any() | result.prices.isnan().any())
    assert float(violations(problem, result.splits).largest) <= TOLERANCE
    sign, proven = problem.objective.rules.sense, float(exact_bound(problem, result.prices[0]))
    value, bound = float(result.value), float(result.bound)
    slack = ROUNDING * max(abs(proven), abs(value))
    if math.isfinite(bound):
        assert sign * (proven - value) >= -slack
        assert sign * (bound - proven) >= -slack


def test_a_batch_is_solved_as_its_matrices() -> None:
    problem = random_problem(3, batch=5)
    together = _solve(problem)
    for row in range(5):
        alone = _solve(problem.row(row))
        torch.testing.assert_close(together.splits[row], alone.splits[0], rtol=0, atol=0)
        torch.testing.assert_close(together.prices[row], alone.prices[0], rtol=0, atol=0)


@pytest.mark.parametrize("objective", ["proportional_fair:weight=1", "alpha_fair:alpha=2"])
def test_fair_shares_of_different_matrices_are_all_solved(objective: str) -> None:
    calm = random_problem(4, batch=3)
    demand = calm.demand * torch.tensor([[1.0], [7.0], [0.2]], dtype=calm.demand.dtype)
    problem = Problem.create(calm.topology, calm.paths, Objective(objective), demand.numpy())
    assert float(_solve(problem, 1e-7).gap.max()) <= 1e-6


def test_limits_on_churn_are_those_of_each_matrix() -> None:
    problem = random_problem(4, nodes=9, num_paths=4, batch=3)
    scale = torch.tensor([0.7, 0.3, 0.9], dtype=torch.float64)[:, None, None]
    in_force = scale * problem.first_path_splits
    limited = problem.with_churn_limit(in_force, 0.1)
    together = _solve(limited, 1e-8)
    assert float(together.gap.max()) <= 1e-7
    for row in range(3):
        alone = problem.row(row).with_churn_limit(in_force[row : row + 1], 0.1)
        assert float(together.value[row]) == pytest.approx(
            float(_solve(alone, 1e-8).value), rel=1e-6
        )


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(
    "kind", ["total_flow", "max_link_utilisation", "proportional_fair", "churn"]
)
def test_several_threads_take_the_steps_of_one(
    kind: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One matrix on all threads, and matrices side by side."""
    objective = "total_flow" if kind == "churn" else kind
    calm = random_problem(4, nodes=9, num_paths=4, batch=batch)
    problem = Problem.create(calm.topology, calm.paths, Objective(objective), calm.demand.numpy())
    if kind == "churn":
        problem = problem.with_churn_limit(problem.first_path_splits[0], 0.1)
    results = []
    for threads in (1, 2):
        monkeypatch.setattr("numba.get_num_threads", lambda threads=threads: threads)
        for name in ("_MIN_LARGE_COLUMNS", "_MIN_LARGE_UPDATES"):
            monkeypatch.setattr(f"teal.solvers.interior.search.{name}", 1)
        monkeypatch.setattr(engine, "_MIN_PARALLEL_SCAN", 1)
        results.append(_solve(problem, 1e-7))
    assert results[0].iterations == results[1].iterations > 3
    torch.testing.assert_close(results[0].value, results[1].value, rtol=1e-8, atol=0)
    torch.testing.assert_close(results[0].bound, results[1].bound, rtol=1e-8, atol=0)


def test_iterations_end_with_what_there_is() -> None:
    """A bound and a feasible allocation from the first iteration on."""
    problem = random_problem(1, nodes=9, num_paths=4)
    gaps = [
        float(teal.solve(problem, gap=1e-9, engine="interior", max_iterations=n).gap.max())
        for n in (0, 2, 4, 8, 16)
    ]
    assert all(math.isfinite(gap) for gap in gaps)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-6


def test_a_deadline_ends_between_iterations() -> None:
    """At once, and in the middle of a search that would take a second."""
    problem = random_problem(1, nodes=9, num_paths=4)
    at_once = teal.solve(problem, gap=1e-9, engine="interior", deadline=0)
    assert at_once.iterations == 0
    assert set(at_once.stopped_by) == {Stop.DEADLINE}
    assert bool(at_once.gap.isfinite().all())
    topology = teal.load_topology("topohub:gabriel/100/2")
    traffic = teal.load_traffic("gravity:seed=0,count=1,load=8", topology)
    paths = compute_paths(topology, traffic.pairs)
    large = Problem.create(topology, paths, Objective(), traffic.read([0]))
    whole = teal.solve(large, gap=1e-9, engine="interior")
    # Wherever the deadline falls, what there is then is feasible and proven.
    for share in (0.7, 0.3, 0.1, 0.03):
        some = teal.solve(large, gap=1e-9, engine="interior", deadline=share * whole.solve_s)
        assert some.iterations <= whole.iterations
        assert float(violations(large, some.splits).largest) <= TOLERANCE
        assert float(some.value) <= float(whole.bound) * (1 + 1e-9)
        assert float(some.bound) >= float(whole.value) * (1 - 1e-9)


@given(seed=st.integers(0, 100_000), objective=st.sampled_from(SINGLE_PROGRAMS))
@settings(max_examples=20, deadline=None)
def test_any_start_leads_to_the_optimum(seed: int, objective: ObjectiveName) -> None:
    """Starts that are wrong, useless, or the optimum itself."""
    problem = random_problem(seed, objective=objective, batch=1)
    optimum = _solve(problem, 1e-7)
    generator = torch.Generator().manual_seed(seed)
    wrong = (
        torch.rand(problem.path_mask.shape, generator=generator, dtype=torch.float64),
        torch.rand(problem.capacity.shape, generator=generator, dtype=torch.float64),
    )
    for start in (wrong, (0 * wrong[0], 0 * wrong[1]), (1e3 * wrong[0], 1e6 * wrong[1]), optimum):
        result = teal.solve(problem, gap=1e-6, engine="interior", warm_start=start)
        assert float(result.gap) <= 1e-6
        assert float(violations(problem, result.splits).largest.max()) <= TOLERANCE
        assert float(result.value) == pytest.approx(float(optimum.value), rel=1e-5)


@pytest.mark.parametrize("objective", ["total_flow", "max_link_utilisation"])
def test_a_start_is_kept_where_the_program_is_known(objective: str) -> None:
    """The optimum as a start certifies the target, and no iteration is needed."""
    problem = random_problem(4, objective=objective, nodes=9, num_paths=4, batch=1)
    optimum = _solve(problem, 1e-9)
    assert optimum.iterations > 3
    first = engine.FirstMatrixProgram(problem)
    limits = Limits(1e-4, Deadline(), 50)
    again = complete(engine.InteriorPoints(first).solve(problem, Start(optimum.state), limits))
    assert again.iterations == 0
    assert float(again.value) == pytest.approx(float(optimum.value), rel=1e-6)


def test_float32_matrices_are_solved_in_float64() -> None:
    problem = random_problem(5).to(torch.float32)
    result = teal.solve(problem, gap=1e-4, engine="interior")
    assert result.splits.dtype == torch.float32
    assert float(result.gap.max()) <= 1e-4


def test_other_programs_are_refused() -> None:
    problem = random_problem(2, objective=ObjectiveName.LATENCY_PENALISED_FLOW)
    with pytest.raises(InputError, match="interior points solve programs over paths"):
        _solve(with_random_steps(problem, 1))


def _one_link(objective: str) -> Problem:
    """Demands of 2 and 4 Gbit/s from two sources over one link of 3 Gbit/s."""
    topology = make_topology([(0, 2, 9.0), (1, 2, 9.0), (2, 3, 3.0)])
    pairs = np.array([[0, 3], [1, 3]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    return Problem.create(topology, paths, Objective.of(objective), np.array([[2.0, 4.0]]))


@pytest.mark.parametrize(
    ("objective", "shares"),
    [
        ("proportional_fair", [0.5, 0.5]),
        # d/ds log s = price x demand: both get 1.5 Gbit/s.
        ("proportional_fair:weight=1", [0.75, 0.375]),
        # s^-2 = price x demand: shares are in the ratio of the root of 2, flows of its inverse.
        (
            "alpha_fair:alpha=2,weight=1",
            [1.5 / (1 + math.sqrt(2)), 0.75 / (1 + 1 / math.sqrt(2))],
        ),
    ],
)
def test_fair_shares_by_hand(objective: str, shares: list[float]) -> None:
    result = _solve(_one_link(objective), 1e-9)
    np.testing.assert_allclose(result.splits[0, :, 0].numpy(), shares, rtol=1e-6)
    assert float(result.gap) <= 1e-9


def test_values_in_steps_by_hand() -> None:
    """A half of each demand is worth 1, the rest 0.2 and 0.5: the second demand's rest is last."""
    problem = _one_link("total_flow")
    level = torch.tensor([[1.0, 0.2], [1.0, 0.5]], dtype=torch.float64)
    end = torch.tensor([[[0.5, 1.0], [0.5, 1.0]]], dtype=torch.float64)
    stepped = dataclasses.replace(problem, steps=ValueSteps(level, end))
    result = _solve(stepped, 1e-8)
    # 1 and 2 Gbit/s of the first steps fill the link.
    assert float(result.value) == pytest.approx(3.0, rel=1e-7)
    wide = stepped.with_capacity(np.array([9.0, 9.0, 4.0]))
    result = _solve(wide, 1e-8)
    assert float(result.value) == pytest.approx(3.5, rel=1e-7)  # a Gbit/s of the second's rest
    np.testing.assert_allclose(result.splits[0, :, 0].numpy(), [0.5, 0.75], atol=1e-6)


def test_limits_of_columns_count_where_no_link_binds() -> None:
    problem = _two_paths("total_flow", 0.5)
    largest = torch.tensor([[[0.3, 0.9]]], dtype=torch.float64)
    limited = dataclasses.replace(problem, max_share=largest)
    result = _solve(limited, 1e-9)
    assert float(result.value) == pytest.approx(0.5)
    assert float(result.splits.max()) <= 0.9
    narrow = dataclasses.replace(problem, max_share=0.5 * largest)
    assert float(_solve(narrow, 1e-9).value) == pytest.approx(0.5 * 0.6)


@pytest.mark.parametrize("alpha", [2, 8, 24])
def test_fair_shares_of_a_small_part_of_the_demand(alpha: int) -> None:
    """A few per cent of every demand can be carried, where utilities bend most."""
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=0,count=1,load=100", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    objective = Objective.of(f"alpha_fair:alpha={alpha}")
    problem = Problem.create(topology, paths, objective, traffic.read([0]))
    result = _solve(problem, 1e-3)
    assert result.stopped_by == (Stop.GAP,)
    assert result.iterations < 60


def _chosen(problem: Problem, gap: float, seconds: float, start: Start | None = None) -> Choice:
    """The choice of engines for a program within a time limit."""
    limits = Limits(gap, Deadline.after(seconds), 10_000)
    return choose_engines(problem, start or Start(), limits, "auto", None, may_span_decades=False)


def test_several_matrices_under_promises_are_for_interior_points() -> None:
    """The compiled engines of PDHG take no bundles of paths."""
    problem = random_problem(3, batch=6, density=0.6).with_protection().over_columns
    assert _chosen(problem, 1e-2, 10.0).runs[0].engine.name == "interior"
    assert _chosen(problem, 1e-2, 1e-9).runs[0].engine.name == "pdhg"


def _is_feasible(problem: Problem, result: teal.SolveResult) -> bool:
    return float(violations(problem, result.splits).largest.max()) <= TOLERANCE


@given(
    seed=st.integers(0, 100_000),
    share=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    failed=st.sampled_from([0, 2]),
)
@settings(max_examples=30, deadline=None)
def test_limits_on_churn_have_the_optimum_of_highs(seed: int, share: float, failed: int) -> None:
    problem = random_problem(seed, batch=1, failed=failed, num_paths=4)
    problem = problem.with_churn_limit(problem.first_path_splits[0], share)
    _as_of_highs(problem)


@given(seed=st.integers(0, 100_000), failed=st.sampled_from([0, 2]))
@settings(max_examples=30, deadline=None)
def test_promises_have_the_optimum_of_highs(seed: int, failed: int) -> None:
    problem = random_problem(seed, batch=1, failed=failed, density=0.6)
    _as_of_highs(problem.with_protection())


def _as_of_highs(problem: Problem) -> None:
    result = _solve(problem, 1e-7)
    optimum = float(problem.value(teal.make_scheme("lp-all").solve(problem).splits))
    assert _is_feasible(problem, result)
    assert float(result.gap) <= 1e-7
    assert float(result.bound) >= optimum * (1 - 1e-7) - 1e-12
    assert float(result.value) <= optimum * (1 + 1e-6) + 1e-12


@pytest.mark.slow
@given(seed=st.integers(0, 100_000), failed=st.sampled_from([0, 2]))
@settings(max_examples=20, deadline=None)
def test_values_in_steps_agree_with_pdhg(seed: int, failed: int) -> None:
    problem = with_random_steps(random_problem(seed, failed=failed), seed)
    _as_of_pdhg(problem)
    near = _solve(problem, 1e-4)
    again = teal.solve(problem, gap=1.1e-4, engine="interior", warm_start=near)
    assert again.iterations == 0, "what is given certifies the target"


@pytest.mark.slow
@given(
    seed=st.integers(0, 100_000),
    objective=st.sampled_from(
        [
            "proportional_fair",
            "proportional_fair:weight=1",
            "alpha_fair:alpha=0.5",
            "alpha_fair:alpha=2",
            "alpha_fair:alpha=8,weight=1",
        ]
    ),
    is_limited=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_concave_utilities_agree_with_pdhg(seed: int, objective: str, is_limited: bool) -> None:
    calm = random_problem(seed, batch=1)
    problem = Problem.create(
        calm.topology, calm.paths, Objective.of(objective), calm.demand.numpy()
    )
    if is_limited:
        problem = problem.with_churn_limit(problem.even_splits[0], 0.3)
    # Where utilities bend that much, a search may end before its target, with what is proven.
    _as_of_pdhg(
        problem, math.inf if "alpha=8" in objective else 1e-7, "plain" if is_limited else "fused"
    )


def _as_of_pdhg(problem: Problem, gap: float = 1e-7, engine: str = "plain") -> None:
    """Certified, and neither engine's value exceeds the other's bound."""
    result = _solve(problem, 1e-7)
    other = teal.solve(problem, gap=1e-3, engine=engine)
    assert _is_feasible(problem, result)
    assert float(result.gap.max()) <= gap
    assert bool((result.value <= other.bound * (1 + 1e-9) + 1e-12).all())
    assert bool((other.value <= result.bound * (1 + 1e-9) + 1e-12).all())


def test_pdhg_takes_over_where_utilities_bend_beyond_the_range_of_float64() -> None:
    calm = random_problem(6, batch=1)
    problem = Problem.create(
        calm.topology, calm.paths, Objective.of("alpha_fair:alpha=16"), calm.demand.numpy()
    )
    alone = _solve(problem, 1e-3)
    assert math.isfinite(float(alone.gap))
    together = teal.solve(problem, gap=1e-3)
    assert together.stopped_by == (Stop.GAP,)


def test_interior_points_finish_what_pdhg_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the point that PDHG has reached, for the matrices that it has not solved."""
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=0,count=3,load=6", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read(slice(None)))
    prefer(monkeypatch, "pdhg")
    monkeypatch.setattr(cost_model, "pdhg_iterations_within", lambda *_: 8)
    result = teal.solve(problem, gap=1e-6)
    assert result.stopped_by == (Stop.GAP,) * 3
    assert 8 < result.iterations < 8 + 2 * 10
    alone = teal.solve(problem, gap=1e-6, engine="fused")
    assert alone.iterations > 50
    np.testing.assert_allclose(result.value.numpy(), alone.value.numpy(), rtol=2e-6)


def test_the_engine_with_the_shortest_predicted_time_has_the_first_turn() -> None:
    """One matrix of Germany50 to a fine gap is for interior points, many of B4 to 1% for PDHG."""
    topology = teal.load_topology("topohub:sndlib/germany50")
    traffic = teal.load_traffic("gravity:seed=0,count=1,load=6", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0]))
    choice = _chosen(problem, 1e-6, 60.0)
    assert [run.engine.name for run in choice.runs] == ["interior", "pdhg"]
    assert set(choice.predicted_s) == {"interior, cold", "pdhg"}
    assert choice.predicted_s["interior, cold"] < choice.predicted_s["pdhg"]
    # A time limit below twice the prediction leaves the program to PDHG.
    hurried = _chosen(problem, 1e-6, choice.predicted_s["interior, cold"])
    assert hurried.runs[0].engine.name == "pdhg"
    assert "half of the time limit" in hurried.reason
    many = problem.rows(torch.zeros(64, dtype=torch.int64))
    assert _chosen(many, 1e-2, 600.0).runs[0].engine.name == "pdhg"


def test_a_warm_start_is_compared_with_a_cold_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start with the shorter predicted time is used."""
    problem = random_problem(4, batch=3)
    start = Start(_solve(problem, 1e-6).state)
    for faster in ("cold", "warm"):

        def seconds(name: str, _: object, *, is_warm: bool, faster: str = faster) -> float:
            is_fast = name == "interior" and is_warm == (faster == "warm")
            return 1e-3 if is_fast else 1.0

        monkeypatch.setattr(cost_model, "seconds", seconds)
        # A smaller gap than the simplex method is used for.
        first, second, *_ = _chosen(problem, 1e-8, 60.0, start).runs
        assert first.engine.name == "warm start", "it may certify the target by itself"
        assert second.engine.name == "interior"
        assert second.start is not None
        assert (second.start.state is not None) == (faster == "warm")
