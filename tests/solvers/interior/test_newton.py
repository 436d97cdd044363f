"""Newton steps against the linear system of the optimality conditions, written as dense matrices.

With costs c, loads A, limits b, multipliers l of blocks, and a price w of each column's limit u,

    A x + s = b (theta b where all demand is carried),   sum of a block's x + r = 1,   x + t = u,
    z = A' y - c - l + w,   z0 = (cost of r) - l,   b' y = 1 where all demand is carried,

and the products x z, r z0, s y and t w go to the central path.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from teal.solvers.interior import search
from teal.solvers.interior.newton import Work
from teal.solvers.interior.presolve import PresolvedProgram
from teal.solvers.interior.starts import COLD, WARM, Iterate, Start
from teal.testing import random_problem
from tests.extremes import share_program
from tests.solvers.interior.programs import KINDS, Dense, dense, problem_of, program_of

pytestmark = pytest.mark.slow


class _Search:
    """The steps of a search, one by one, through the kernels of large programs."""

    def __init__(self, kind: str, seed: int, start: Start = COLD) -> None:
        problem = problem_of(kind, seed)
        self.program, splits = program_of(problem)
        self.may_shed = not problem.price_set.on_simplex
        self.is_empty = not len(self.program.rate) or not len(self.program.capacity)
        if self.is_empty:
            return
        prices = np.zeros(int(self.program.link.max()) + 1)
        if start.is_warm:
            rng = np.random.default_rng(seed)
            given = rng.random((problem.demand.shape[1], len(splits) // problem.demand.shape[1]))
            given[rng.random(given.shape) < 0.5] = 0
            splits[:] = (given / np.maximum(given.sum(1, keepdims=True), 1)).reshape(-1)
            prices[:] = rng.exponential(1, len(prices)) * self.program.scale
        self.at, self.work, self.is_done = search._starting_point_kernel(
            self.program, self.may_shed, False, 0.0, start, splits, prices
        )

    def step(self) -> bool:
        """One iteration; whether the point has moved."""
        program, at, work = self.program, self.at, self.work
        search._update_utility_terms_kernel(program, at, work)
        count = len(program.rate)
        search._accumulate_schur_kernel(
            program, self.may_shed, at, work, work.schur, 0, count, True
        )
        search._regularise_kernel(program, self.may_shed, work)
        search._cholesky_kernel(work.schur)
        has_moved = search._predict_and_correct_kernel(program, self.may_shed, at, work)
        self.is_done = search._is_converged_kernel(program, self.may_shed, False, 0.0, at, work)
        return bool(has_moved)


def _copied(at: Iterate) -> Iterate:
    return Iterate(*(array.copy() for array in at))


def _check_inside(found: _Search) -> None:
    """Strictly inside, whole blocks, and reduced costs that are those of prices and multipliers."""
    program, at, of = found.program, found.at, dense(found.program)
    for name in ("share", "reduced_cost", "price", "slack", "bound_slack", "bound_dual"):
        assert (getattr(at, name) > 0).all(), name
    total = of.blocks @ at.share + (at.unserved if found.may_shed else 0)
    np.testing.assert_allclose(total, 1, atol=1e-7)
    np.testing.assert_allclose(
        at.share[program.bounded] + at.bound_slack, program.upper_bound, rtol=1e-9
    )
    cost = of.loads.T @ at.price - program.column_value
    of_limit = np.zeros(len(cost))
    of_limit[program.bounded] = at.bound_dual
    expected = cost - at.multiplier[of.block] + of_limit
    size = np.abs(of.loads.T @ at.price) + program.column_value + np.abs(at.multiplier[of.block])
    tolerance = 1e-9 * (size + of_limit) + 1e-14 * (size + of_limit).max()
    assert (np.abs(at.reduced_cost - expected) <= tolerance).all()
    if found.may_shed:
        assert (at.unserved > 0).all()
        assert (at.unserved_dual > 0).all()
        if not len(program.utility_weight):
            np.testing.assert_allclose(at.unserved_dual, -at.multiplier, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("start", [COLD, WARM], ids=["cold", "warm"])
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS))
@settings(max_examples=40, deadline=None)
def test_every_point_is_strictly_inside(start: Start, seed: int, kind: str) -> None:
    """Starts from nothing and from any splits and prices, and what iterations make of them."""
    found = _Search(kind, seed, start)
    if found.is_empty or found.is_done:  # also where the splits and prices given are optimal
        return
    _check_inside(found)
    for _ in range(6):
        if found.is_done or not found.step():
            break
        _check_inside(found)


def _residuals(
    program: PresolvedProgram, may_shed: bool, of: Dense, at: Iterate, work: Work
) -> None:
    """Assert that the step meets the linear equations of the optimality conditions."""
    step, scale = work.step, np.abs(work.step.share).max()
    theta = 0.0 if may_shed else float(step.theta[0])
    rows = of.loads @ step.share + step.slack - program.capacity * theta
    size = (
        np.abs(of.loads) @ np.abs(step.share) + np.abs(step.slack) + program.capacity * abs(theta)
    )
    assert (
        np.abs(rows - work.primal_residual) <= 1e-6 * (size + np.abs(work.primal_residual))
    ).all()
    total = of.blocks @ step.share + (step.unserved if may_shed else 0)
    np.testing.assert_allclose(total, 0, atol=1e-6 * max(1.0, scale))
    np.testing.assert_allclose(step.bound_slack, -step.share[program.bounded], rtol=1e-12)
    of_price = of.loads.T @ step.price
    expected = of_price - step.multiplier[of.block]
    expected[program.bounded] += step.bound_dual
    size = np.abs(of.loads).T @ np.abs(step.price) + np.abs(step.multiplier[of.block])
    size[program.bounded] += np.abs(step.bound_dual) + np.abs(at.bound_dual)
    assert (np.abs(step.reduced_cost - expected) <= 1e-6 * (size + np.abs(at.reduced_cost))).all()
    if not may_shed:
        assert float(program.capacity @ (at.price + step.price)) == pytest.approx(1, rel=1e-6)
        return
    curvature = work.curvature * step.unserved if len(program.utility_weight) else 0.0
    residual = work.dual_residual if len(program.utility_weight) else 0.0
    np.testing.assert_allclose(
        step.unserved_dual,
        curvature - step.multiplier + residual,
        rtol=1e-6,
        atol=1e-9 * np.abs(step.multiplier).max(),
    )


def _has_linearised_products(may_shed: bool, at: Iterate, work: Work) -> bool:
    """Whether the linearised products of the step are those that it was computed for: they are not
    where a centrality corrector was computed and dropped.
    """
    step, pairs = (
        work.step,
        [("share", "reduced_cost"), ("slack", "price"), ("bound_slack", "bound_dual")],
    )
    for value, price in [*pairs, *([("unserved", "unserved_dual")] if may_shed else [])]:
        x, z = getattr(at, value), getattr(at, price)
        dx, dz = getattr(step, value), getattr(step, price)
        size = np.abs(x * dz) + np.abs(z * dx) + np.abs(x * z)
        error = np.abs(x * dz + z * dx - getattr(work.complementarity_residual, value))
        if (error > 1e-6 * size).any():
            return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_solves_the_newton_system(kind: str) -> None:
    steps, wanted = 0, 0
    for seed in range(12):
        found = _Search(kind, seed)
        if found.is_empty:
            continue
        of = dense(found.program)
        for _ in range(4):
            if found.is_done:
                break
            before = _copied(found.at)
            if not found.step():
                break
            _residuals(found.program, found.may_shed, of, before, found.work)
            steps += 1
            wanted += _has_linearised_products(found.may_shed, before, found.work)
    assert steps >= 20
    assert wanted >= steps / 4  # the others are those after a dropped corrector


@pytest.mark.parametrize("seed", [0, 180, 304])
def test_prices_alone_make_no_system_singular_where_all_demand_is_carried(seed: int) -> None:
    """Iterations go on to the last digits: without rho c c' they end at 1e-7 in these programs."""
    for row in range(3):
        problem = random_problem(seed, objective="max_link_utilisation").row(row)
        result = teal.solve(problem, gap=1e-13, engine="interior")
        optimum = share_program(problem)
        assert float(result.gap) <= 1e-12
        assert float(result.value) == pytest.approx(optimum, rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_factor_of_dependent_rows_solves_what_has_a_solution(seed: int, missing: int) -> None:
    rng, size = np.random.default_rng(seed), 8
    half = rng.standard_normal((size, size - missing))
    system = half @ half.T
    factor = np.tril(system).copy()
    search._cholesky_kernel(factor)
    lower = np.tril(factor)
    dropped = np.flatnonzero(np.diag(lower) > 1e100)
    assert len(dropped) == missing
    right = system @ rng.standard_normal(size)
    solution = np.linalg.solve(lower.T, np.linalg.solve(lower, right))
    np.testing.assert_allclose(system @ solution, right, atol=1e-6 * np.abs(right).max())
    np.testing.assert_allclose(solution[dropped], 0, atol=1e-12)
