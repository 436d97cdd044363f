"""PDHG against LP optima, the fused loop against the plain one, and lanes, threads and warm starts against none."""

from __future__ import annotations

import time

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
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.problem.assessment import assess
from teal.problem.feasibility import violations
from teal.solvers import pdhg
from teal.solvers.pdhg import PdhgState
from teal.solvers.pdhg.fused import FusedEngine
from teal.solvers.pdhg.kernels import _dual_simplex
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.prox import project_splits, weighted_simplex
from teal.testing import assert_feasible, random_problem


def _geant(objective: ObjectiveName = ObjectiveName.TOTAL_FLOW, matrices: int = 2) -> Problem:
    topology = load_topology("topohub:sndlib/geant")
    traffic = load_traffic(f"gravity:seed=1,count={matrices},load=3", topology)
    return Problem.create(
        topology, compute_paths(topology, traffic.pairs), Objective(objective), traffic.read(slice(None)),
        weight=torch.arange(traffic.num_demands).remainder(3).add(1).double().numpy(),
    )  # fmt: skip


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(ObjectiveName),
    num_paths=st.integers(1, 4),
    failed=st.sampled_from([0, 2, 99]),
    idle=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_the_optimum_on_any_network(
    seed: int, objective: ObjectiveName, num_paths: int, failed: int, idle: float
) -> None:
    problem = random_problem(seed, objective=objective, num_paths=num_paths, failed=failed, idle=idle)
    optimum = assess(problem, LpAll().solve(problem)).value
    found = pdhg.solve(problem, gap=1e-4, max_iterations=20_000)
    count = problem.batch
    allocation = Allocation(found.splits, found.prices, (Status.FEASIBLE,) * count, (0.0,) * count, (0.0,) * count)
    assert_feasible(problem, allocation)
    assert (found.gap <= 1e-4).all(), "reached"
    torch.testing.assert_close(found.value, optimum, rtol=1.01e-4, atol=1e-9)
    torch.testing.assert_close(assess(problem, allocation).bound, found.bound)


@pytest.mark.parametrize("objective", list(ObjectiveName))
def test_a_network_of_the_field_to_a_hundredth_of_a_percent(objective: ObjectiveName) -> None:
    problem = _geant(objective)
    found = teal.solve(problem, gap=1e-4)
    assert (found.gap <= 1e-4).all()
    assert found.iterations < 5000
    optimum = assess(problem, LpAll().solve(problem)).value
    torch.testing.assert_close(found.value, optimum, rtol=1.01e-4, atol=0)


def test_a_warm_start_saves_iterations() -> None:
    problem = _geant(matrices=1)
    cold = pdhg.solve(problem, gap=1e-3)
    noise = torch.randn(problem.demand.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    following = problem.with_demand(problem.demand * torch.exp(0.05 * noise))
    again = pdhg.solve(following, gap=1e-2, warm_start=cold.state)
    by_prices = pdhg.solve(following, gap=1e-2, warm_start=(cold.splits, cold.prices))
    assert again.iterations < 0.5 * pdhg.solve(following, gap=1e-2).iterations
    assert by_prices.iterations < 0.5 * pdhg.solve(following, gap=1e-2).iterations


def test_pdhg_can_stop_at_any_time() -> None:
    """Whatever stops it, what comes back is feasible and certified; more iterations never make it worse."""
    problem = _geant(matrices=1)
    gaps = []
    for most in (1, 10, 50, 200):
        found = pdhg.solve(problem, gap=0, max_iterations=most)
        assert found.iterations == most
        gaps.append(float(found.gap))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.1 * gaps[0]
    for nothing in (pdhg.solve(problem, gap=0, deadline=0.0), pdhg.solve(problem, gap=0, max_iterations=0)):
        assert nothing.iterations == 0
        assert 0 < float(nothing.gap) < 1
        assert float(violations(problem, nothing.splits).largest) < 1e-9


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(ObjectiveName),
    num_paths=st.integers(1, 5),
    failed=st.sampled_from([0, 2, 99]),
    batch=st.sampled_from([1, 2, 9]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    warm=st.booleans(),
)
def test_the_fused_engine_computes_what_the_plain_one_does(
    seed: int, objective: ObjectiveName, num_paths: int, failed: int, batch: int, dtype: torch.dtype, warm: bool
) -> None:
    """Step by step, over restarts too; in float32 only while rounding has not changed what happens."""
    problem = random_problem(seed, objective=objective, num_paths=num_paths, failed=failed, batch=batch)
    generator = torch.Generator().manual_seed(seed)
    state = None
    if warm:
        noise = torch.rand(problem.even_splits.shape, generator=generator, dtype=torch.float64)
        state = PdhgState(noise, torch.rand(problem.capacity.shape, generator=generator, dtype=torch.float64))
    plain, fused = PlainEngine(problem, state, torch.float64), FusedEngine(problem, state, dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    steps = (1, 1, 2, 5, 20) if dtype == torch.float64 else (1, 1, 2)
    for count in steps:
        torch.testing.assert_close(fused.advance(count), plain.advance(count), rtol=tolerance, atol=1e-9)
        here, there = fused.state(), plain.state()
        torch.testing.assert_close(here.splits, there.splits, rtol=0, atol=tolerance)
        unit = there.prices.amax(1, keepdim=True).clamp(min=1e-30)
        torch.testing.assert_close(here.prices / unit, there.prices / unit, rtol=0, atol=tolerance)
        torch.testing.assert_close(fused.check(2), plain.check(2), rtol=tolerance, atol=1e-9)


def test_lanes_and_threads_change_nothing() -> None:
    """A matrix gets the same iterates alone and among others, on one thread and on two."""
    problem = _geant(matrices=3)
    together = FusedEngine(problem, None, torch.float64)
    bounds = together.advance(30)
    before = numba.get_num_threads()
    numba.set_num_threads(min(2, numba.config.NUMBA_NUM_THREADS))
    try:
        for row in range(problem.batch):
            alone = FusedEngine(problem.row(row), None, torch.float64)
            torch.testing.assert_close(alone.advance(30), bounds[row : row + 1], rtol=1e-12, atol=0)
            torch.testing.assert_close(alone.state().splits[0], together.state().splits[row], rtol=0, atol=1e-11)
    finally:
        numba.set_num_threads(before)


def test_failures_and_new_capacities_need_no_new_paths() -> None:
    problem = _geant(matrices=2)
    found = pdhg.solve(problem, gap=1e-3)
    capacity = problem.capacity.clone()
    capacity[0, 3], capacity[1] = 0, 0.7 * capacity[1]
    changed = problem.with_capacity(capacity)
    again = pdhg.solve(changed, gap=1e-3, warm_start=found)
    optimum = assess(changed, LpAll().solve(changed)).value
    torch.testing.assert_close(again.value, optimum, rtol=1.01e-3, atol=0)
    assert float(violations(changed, again.splits).largest.max()) < 1e-9


def test_more_matrices_than_lanes() -> None:
    problem = _geant(matrices=19)
    found = pdhg.solve(problem, gap=5e-3)
    assert (found.gap <= 5e-3).all()
    torch.testing.assert_close(problem.value(found.splits), found.value)
    assert pdhg.solve(problem, gap=5e-3, warm_start=found).iterations == 0


def test_a_warm_start_of_another_network_is_refused() -> None:
    problem = _geant(matrices=1)
    with pytest.raises(InputError, match="warm_start"):
        pdhg.solve(problem, warm_start=(problem.even_splits[:, 1:], problem.capacity))


@given(seed=st.integers(0, 10_000), maximises_value=st.booleans())
def test_the_projection_of_splits_is_the_nearest_point(seed: int, maximises_value: bool) -> None:
    """Against its variational inequality: (x - p) . (q - p) <= 0 for every q of the set."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(1, 30, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(1, 30, 4, generator=generator) > 0.3
    p = project_splits(x, mask, maximises_value=maximises_value)
    exists = mask.any(-1)
    assert (p >= 0).all()
    assert (p[~mask] == 0).all()
    total = p.sum(-1)[exists]
    assert (total <= 1 + 1e-12).all()
    if not maximises_value:
        torch.testing.assert_close(total, torch.ones_like(total))
    corners = [torch.eye(4, dtype=torch.float64)[k] * mask for k in range(4)]
    corners = [torch.where(mask[..., k : k + 1], q, p) for k, q in enumerate(corners)]
    for q in [*corners, torch.zeros_like(p)] if maximises_value else corners:
        assert (((x - p) * (q - p)).sum(-1)[exists] <= 1e-9).all()


def test_the_weighted_simplex_by_hand() -> None:
    point, slope = torch.tensor([[1.0, 0.5, 9.0]]), torch.tensor([[1.0, 0.5, 1.0]])
    live = torch.tensor([[True, True, False]])
    # t = 1/3: 2/3 + 1/3 = 1
    found = weighted_simplex(point, slope, 1.0, live)
    torch.testing.assert_close(found, torch.tensor([[2 / 3, 1 / 3, 0.0]]))


@pytest.mark.parametrize("objective", list(ObjectiveName))
def test_a_warm_start_may_be_anything(objective: ObjectiveName) -> None:
    """Not a number, negative, too large: what comes back is feasible, and its bound holds."""
    problem = _geant(objective, matrices=1)
    splits, prices = 3.0 * torch.ones_like(problem.even_splits), torch.full_like(problem.capacity, torch.nan)
    splits[:, ::2, 1], splits[:, ::3] = -2.0, torch.nan
    optimum = assess(problem, LpAll().solve(problem)).value
    for engine in ("plain", "fused"):
        found = pdhg.solve(problem, gap=1e-2, warm_start=(splits, prices), engine=engine)
        assert (found.gap <= 1e-2).all()
        assert float(violations(problem, found.splits).largest.max()) < 1e-9
        torch.testing.assert_close(found.value, optimum, rtol=1.01e-2, atol=0)


def test_ties_do_not_stop_the_simplex() -> None:
    """Numbers for which rounding lets an entry at the shift leave and come back."""
    point = np.array(
        [0.12016669768050339, 0.6417551012272885, 0.4672962785648197, 0.2759563740153075, 1.4321446411774574]
    )
    slope = np.array(
        [0.13509650502241122, 0.7214883401940817, 0.5253543224757259, 0.31024187555895566, 0.4858353588317891]
    )
    expected = weighted_simplex(
        torch.from_numpy(point)[None], torch.from_numpy(slope)[None], 1.0, torch.ones(1, 5, dtype=torch.bool)
    )
    _dual_simplex(point, slope, np.ones(5), 0, 1)
    np.testing.assert_allclose(point, expected[0], atol=1e-12)


def test_a_deadline_is_kept() -> None:
    problem = _geant(matrices=4)
    pdhg.solve(problem, gap=0.5)
    begin = time.perf_counter()
    found = pdhg.solve(problem, gap=0, deadline=0.3, max_iterations=10**9)
    assert time.perf_counter() - begin < 2, "generous: other tests run beside"
    assert found.iterations > 10
    torch.testing.assert_close(problem.value(found.splits), found.value)
