"""PDHG against LP-all optima, its fused engine against the plain one, batches and warm starts
against single runs."""

from __future__ import annotations

import itertools
from functools import partial
from types import SimpleNamespace

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from baselines.lp_all import LpAll
from teal.errors import InputError
from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.problem.assessment import assess
from teal.problem.feasibility import violations
from teal.problem.prox import project_splits, project_steps, weighted_simplex
from teal.runtime.interruptible import Deadline, complete
from teal.solvers import pipeline
from teal.solvers.pdhg.fused.engine import FusedEngine, lanes_of
from teal.solvers.pdhg.fused.simplex import dual_simplex
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.pdhg.search import Search
from teal.solvers.result import SolveState, Stop
from teal.testing import assert_feasible, random_problem, with_random_steps


def _geant(objective: ObjectiveName = ObjectiveName.TOTAL_FLOW, matrices: int = 2) -> Problem:
    topology = load_topology("topohub:sndlib/geant")
    traffic = load_traffic(f"gravity:seed=1,count={matrices},load=3", topology)
    return Problem.create(
        topology,
        compute_paths(topology, traffic.pairs),
        Objective(objective),
        traffic.read(slice(None)),
        weight=torch.arange(traffic.num_demands).remainder(3).add(1).double().numpy(),
    )


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    num_paths=st.integers(1, 4),
    failed=st.sampled_from([0, 2, 99]),
    idle=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_pdhg_reaches_the_lp_optimum_on_random_networks(
    seed: int, objective: ObjectiveName, num_paths: int, failed: int, idle: float
) -> None:
    problem = random_problem(
        seed, objective=objective, num_paths=num_paths, failed=failed, idle=idle
    )
    optimum = assess(problem, LpAll().solve(problem)).value
    solution = pipeline.solve(problem, gap=1e-4, max_iterations=20_000)
    count = problem.batch
    allocation = Allocation(
        solution.splits, solution.prices, (Status.FEASIBLE,) * count, (0.0,) * count, (0.0,) * count
    )
    assert_feasible(problem, allocation)
    assert (solution.gap <= 1e-4).all(), "the gap is reached"
    torch.testing.assert_close(solution.value, optimum, rtol=1.01e-4, atol=1e-9)
    torch.testing.assert_close(assess(problem, allocation).bound, solution.bound)


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_pdhg_reaches_a_gap_of_a_hundredth_of_a_percent_on_geant(objective: ObjectiveName) -> None:
    problem = _geant(objective)
    solution = teal.solve(problem, gap=1e-4)
    assert (solution.gap <= 1e-4).all()
    assert solution.iterations < 5000
    optimum = assess(problem, LpAll().solve(problem)).value
    torch.testing.assert_close(solution.value, optimum, rtol=1.01e-4, atol=0)


def test_a_warm_start_of_pdhg_saves_iterations() -> None:
    problem = _geant(matrices=1)
    solve = partial(pipeline.solve, engine="fused")
    cold = solve(problem, gap=1e-3)
    noise = torch.randn(
        problem.demand.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    following = problem.with_demand(problem.demand * torch.exp(0.05 * noise))
    warm = solve(following, gap=1e-2, warm_start=cold.state)
    by_prices = solve(following, gap=1e-2, warm_start=(cold.splits, cold.prices))
    assert warm.iterations < 0.5 * solve(following, gap=1e-2).iterations
    assert by_prices.iterations < 0.5 * solve(following, gap=1e-2).iterations


def test_pdhg_can_stop_at_any_time() -> None:
    """Stopped by its iterations or deadline, PDHG is feasible and certified; more iterations never
    widen the gap."""
    problem = _geant(matrices=1)
    gaps = []
    for max_iterations in (1, 10, 50, 200):
        solution = pipeline.solve(problem, gap=0, max_iterations=max_iterations)
        assert solution.iterations == max_iterations
        gaps.append(float(solution.gap))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.1 * gaps[0]
    for unsolved in (
        pipeline.solve(problem, gap=0, deadline=0.0),
        pipeline.solve(problem, gap=0, max_iterations=0),
    ):
        assert unsolved.iterations == 0
        assert 0 < float(unsolved.gap) < 1
        assert float(violations(problem, unsolved.splits).largest) < 1e-9


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    num_paths=st.integers(1, 5),
    failed=st.sampled_from([0, 2, 99]),
    batch=st.sampled_from([1, 2, 9]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    warm=st.booleans(),
    has_steps=st.booleans(),
)
def test_the_fused_engine_equals_the_plain_engine(
    seed: int,
    objective: ObjectiveName,
    num_paths: int,
    failed: int,
    batch: int,
    dtype: torch.dtype,
    warm: bool,
    has_steps: bool,
) -> None:
    """Step by step, over restarts too; in float32 only a few steps, before rounding changes the
    restarts."""
    batch = min(batch, max(lanes_of(dtype)))
    problem = random_problem(
        seed, objective=objective, num_paths=num_paths, failed=failed, batch=batch
    )
    if has_steps and problem.objective.maximises_value:
        problem = with_random_steps(problem, seed)
    generator = torch.Generator().manual_seed(seed)
    state = None
    if warm:
        start_splits = torch.rand(
            problem.even_splits.shape, generator=generator, dtype=torch.float64
        )
        state = SolveState(
            start_splits,
            torch.rand(problem.capacity.shape, generator=generator, dtype=torch.float64),
        )
    plain = PlainEngine(problem, state, torch.float64)
    fused = FusedEngine(problem, state, dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    steps = (1, 1, 2, 5, 20) if dtype == torch.float64 else (1, 1, 2)
    for count in steps:
        torch.testing.assert_close(
            fused.advance(count), plain.advance(count), rtol=tolerance, atol=1e-9
        )
        fused_state = fused.state()
        plain_state = plain.state()
        torch.testing.assert_close(fused_state.splits, plain_state.splits, rtol=0, atol=tolerance)
        largest_price = plain_state.prices.amax(1, keepdim=True).clamp(min=1e-30)
        torch.testing.assert_close(
            fused_state.prices / largest_price,
            plain_state.prices / largest_price,
            rtol=0,
            atol=tolerance,
        )
        torch.testing.assert_close(fused.check(2), plain.check(2), rtol=tolerance, atol=1e-9)


def test_iterates_of_the_fused_engine_do_not_depend_on_batch_and_threads() -> None:
    """A matrix gets the same iterates alone and in a batch, on one thread and on two."""
    problem = _geant(matrices=3)
    batched = FusedEngine(problem, None, torch.float64)
    bounds = batched.advance(30)
    before = numba.get_num_threads()
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    try:
        for row in range(problem.batch):
            single = FusedEngine(problem.row(row), None, torch.float64)
            torch.testing.assert_close(
                single.advance(30), bounds[row : row + 1], rtol=1e-12, atol=0
            )
            torch.testing.assert_close(
                single.state().splits[0], batched.state().splits[row], rtol=0, atol=1e-11
            )
    finally:
        numba.set_num_threads(before)


def test_pdhg_solves_failures_and_new_capacities_on_the_same_paths() -> None:
    problem = _geant(matrices=2)
    solution = pipeline.solve(problem, gap=1e-3)
    capacity = problem.capacity.clone()
    capacity[0, 3] = 0
    capacity[1] = 0.7 * capacity[1]
    changed = problem.with_capacity(capacity)
    warm = pipeline.solve(changed, gap=1e-3, warm_start=solution)
    optimum = assess(changed, LpAll().solve(changed)).value
    torch.testing.assert_close(warm.value, optimum, rtol=1.01e-3, atol=0)
    assert float(violations(changed, warm.splits).largest.max()) < 1e-9


def test_pdhg_solves_more_matrices_than_lanes() -> None:
    problem = _geant(matrices=19)
    solution = pipeline.solve(problem, gap=5e-3, engine="fused")
    assert (solution.gap <= 5e-3).all()
    torch.testing.assert_close(problem.value(solution.splits), solution.value)
    again = pipeline.solve(problem, gap=5e-3, engine="fused", warm_start=solution)
    assert again.iterations == 0


def test_a_warm_start_of_another_network_is_refused() -> None:
    problem = _geant(matrices=1)
    with pytest.raises(InputError, match="warm_start"):
        pipeline.solve(problem, warm_start=(problem.even_splits[:, 1:], problem.capacity))


@given(seed=st.integers(0, 10_000), carries_all=st.booleans())
def test_the_projection_of_splits_is_the_nearest_point(seed: int, carries_all: bool) -> None:
    """Against its variational inequality: (x - p) . (q - p) <= 0 for every q of the set."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(1, 30, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(1, 30, 4, generator=generator) > 0.3
    p = project_splits(x, mask, carries_all=carries_all)
    exists = mask.any(-1)
    assert (p >= 0).all()
    assert (p[~mask] == 0).all()
    total = p.sum(-1)[exists]
    assert (total <= 1 + 1e-12).all()
    if carries_all:
        torch.testing.assert_close(total, torch.ones_like(total))
    corners = [torch.eye(4, dtype=torch.float64)[k] * mask for k in range(4)]
    corners = [torch.where(mask[..., k : k + 1], q, p) for k, q in enumerate(corners)]
    for q in [*corners, torch.zeros_like(p)] if not carries_all else corners:
        assert (((x - p) * (q - p)).sum(-1)[exists] <= 1e-9).all()


@given(seed=st.integers(0, 10_000), num_paths=st.integers(1, 6), count=st.integers(1, 4))
def test_the_projection_onto_steps_is_the_minimum_of_its_convex_program(
    seed: int, num_paths: int, count: int
) -> None:
    """No point of many is better, near the result or far from it."""
    rng = np.random.default_rng(seed)
    x = 1.5 * rng.normal(size=(1, 1, num_paths)) + 0.5
    mask = rng.random((1, 1, num_paths)) > 0.2
    end = np.sort(np.append(rng.random(count - 1) * (rng.random(count - 1) < 0.8), 1.0))[None, None]
    drop = np.append(0.0, np.sort(rng.exponential(1.0, count - 1)))[None, None]
    tensors = [torch.from_numpy(array) for array in (x, mask, end, drop)]
    result = project_steps(*tensors)[0, 0].numpy()

    def cost(points: np.ndarray) -> np.ndarray:
        start = np.concatenate([[0], end[0, 0, :-1]])
        total = points.sum(-1, keepdims=True)
        lost = (drop[0, 0] * (np.minimum(total, end[0, 0]) - np.minimum(total, start))).sum(-1)
        return ((points - x[0, 0]) ** 2).sum(-1) / 2 + lost

    assert (result >= 0).all()
    assert (result[~mask[0, 0]] == 0).all()
    assert result.sum() <= 1 + 1e-12
    size = rng.choice([1e-3, 0.05, 1.0], (4000, 1))
    others = np.maximum(0, result + size * rng.normal(size=(4000, num_paths))) * mask[0, 0]
    others /= np.maximum(1, others.sum(-1, keepdims=True))
    assert cost(result[None])[0] <= cost(others).min() + 1e-12


def test_weighted_simplex_equals_a_projection_computed_by_hand() -> None:
    point = torch.tensor([[1.0, 0.5, 9.0]])
    slope = torch.tensor([[1.0, 0.5, 1.0]])
    live = torch.tensor([[True, True, False]])
    # the shift is 1/3, and 2/3 + 1/3 = 1
    projection = weighted_simplex(point, slope, 1.0, live)
    torch.testing.assert_close(projection, torch.tensor([[2 / 3, 1 / 3, 0.0]]))


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_pdhg_is_feasible_and_certified_from_any_warm_start(objective: ObjectiveName) -> None:
    """Starts that are NaN, negative or too large: the result is feasible and its bound holds."""
    problem = _geant(objective, matrices=1)
    splits = 3.0 * torch.ones_like(problem.even_splits)
    prices = torch.full_like(problem.capacity, torch.nan)
    splits[:, ::2, 1] = -2.0
    splits[:, ::3] = torch.nan
    optimum = assess(problem, LpAll().solve(problem)).value
    for engine in ("plain", "fused"):
        solution = pipeline.solve(problem, gap=1e-2, warm_start=(splits, prices), engine=engine)
        assert (solution.gap <= 1e-2).all()
        assert float(violations(problem, solution.splits).largest.max()) < 1e-9
        torch.testing.assert_close(solution.value, optimum, rtol=1.01e-2, atol=0)


def test_the_dual_simplex_ends_despite_rounding_ties() -> None:
    """Numbers for which rounding makes an entry equal to the shift leave the support and return."""
    point = np.array(
        [
            0.12016669768050339,
            0.6417551012272885,
            0.4672962785648197,
            0.2759563740153075,
            1.4321446411774574,
        ]
    )
    slope = np.array(
        [
            0.13509650502241122,
            0.7214883401940817,
            0.5253543224757259,
            0.31024187555895566,
            0.4858353588317891,
        ]
    )
    expected = weighted_simplex(
        torch.from_numpy(point)[None],
        torch.from_numpy(slope)[None],
        1.0,
        torch.ones(1, 5, dtype=torch.bool),
    )
    dual_simplex(point, slope, np.ones(5), 0, 1)
    np.testing.assert_allclose(point, expected[0], atol=1e-12)


def test_pdhg_keeps_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock advances by 1 ms at each reading, so that the load of the machine has no part in
    the result."""
    readings = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(readings) / 1000)
    problem = _geant(matrices=4)
    pipeline.prepare(problem, gap=0)  # whose readings would count
    for module in ("solvers.pdhg.search", "solvers.pdhg.solver", "runtime.interruptible"):
        monkeypatch.setattr(f"teal.{module}.time", clock)
    solution = pipeline.solve(problem, gap=0, deadline=0.3, max_iterations=10**9)
    assert 0.25 < clock.perf_counter() < 0.3 + 0.02, "0.02: the readings of the last check"
    assert solution.iterations > 10
    torch.testing.assert_close(problem.value(solution.splits), solution.value)


def test_a_deadline_leaves_time_for_an_iteration_and_the_last_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock of its own: an iteration takes 1 s, a check 2 s, and no gap is ever reached."""
    clock = SimpleNamespace(now=0.0)
    clock.perf_counter = lambda: clock.now
    for module in ("teal.solvers.pdhg.search", "teal.runtime.interruptible"):
        monkeypatch.setattr(f"{module}.time", clock)
    bound = torch.tensor([100.0], dtype=torch.float64)

    class Slow:
        def advance(self, count: int) -> torch.Tensor:
            clock.now += count
            return bound

        def check(self, *_: object, **__: object) -> tuple[torch.Tensor, torch.Tensor]:
            clock.now += 2
            return torch.tensor([1.0], dtype=torch.float64), bound

        def keep(self, *_: object) -> None: ...

        trivial_bound = certify = lambda self: bound

    search = Search(
        random_problem(0, batch=1),
        Slow(),  # type: ignore[arg-type]
        1e-3,
        10**6,
        None,
        0.0,
        may_stall=False,
        is_large=True,
    )
    done, stop = complete(search.iterate(Deadline(50.0), warm=False))
    assert stop is Stop.DEADLINE
    assert done > 10
    assert clock.now <= 50
