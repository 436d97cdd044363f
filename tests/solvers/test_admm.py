"""ADMM against its textbook form with explicit copies, its limit against the LP-all optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from baselines.lp_all import LpAll
from teal.network import compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.problem.bounds import from_score, scaled_dual_bound
from teal.solvers import admm, admm_fused
from teal.solvers.projection import project
from teal.testing import make_topology, random_problem

VALUE_OBJECTIVES = [o for o in SINGLE_PROGRAMS if Objective(o).maximises_value]


class _TextbookAdmm:
    """The textbook form with every copy, slack and multiplier stored separately, for B = 1 and
    value maximisation.

    The augmented Lagrangian, scaled by rho, is minimised over (z, t, s) exactly, the multipliers
    move, then x is found by a general-purpose solver.
    """

    def __init__(self, problem: Problem, splits: torch.Tensor, scale: admm.AdmmScaling) -> None:
        self.demand = problem.demand[0].numpy()
        self.capacity = problem.capacity[0].numpy()
        self.rho = float(scale.penalty)
        self.eta = scale.demand_penalty[0, :, 0].numpy()
        self.value = problem.path_value.numpy()
        self.paths = [
            (d, k, problem.paths.links_of(d, k))
            for d in range(problem.paths.num_demands)
            for k in range(problem.paths.num_paths)
            if problem.path_mask[0, d, k]
        ]
        self.x = splits[0].numpy().copy()
        # multipliers of the copies
        self.u = {(d, k, e): 0.0 for d, k, links in self.paths for e in links}
        self.w = np.zeros(len(self.capacity))  # multipliers of the capacity rows
        self.q = np.zeros(len(self.demand))  # multipliers of the demand rows

    def step(self) -> None:
        z: dict[tuple[int, int, int], float] = {}
        for e in range(len(self.capacity)):
            paths_on_link = [(d, k) for d, k, links in self.paths if e in links]
            if not paths_on_link:
                continue
            share = np.array([self.demand[d] / self.capacity[e] for d, _ in paths_on_link])
            a = np.array([self.x[d, k] + self.u[d, k, e] for d, k in paths_on_link])
            # min 1/2 (share z + t - 1 + w)^2 + 1/2 sum share (a - z)^2 over z and t >= 0
            z_free = a
            t = 1 - self.w[e] - share @ a
            if t < 0:
                # t = 0: the normal equations (share share' + diag(share)) z = share (1 - w) + share
                # a
                matrix = np.outer(share, share) + np.diag(share)
                t = 0.0
                z_free = np.linalg.lstsq(matrix, share * (1 - self.w[e] + a), rcond=None)[0]
            self.w[e] += share @ z_free + t - 1
            for (d, k), value in zip(paths_on_link, z_free, strict=True):
                z[d, k, e] = value
                self.u[d, k, e] += self.x[d, k] - value
        total = self.x.sum(1)
        slack = np.maximum(0, 1 - total - self.q)
        self.q += total + slack - 1
        for d in range(len(self.demand)):
            demand_paths = [(k, links) for dd, k, links in self.paths if dd == d]
            if not demand_paths:
                continue

            def lagrangian(
                x: np.ndarray,
                d: int = d,
                demand_paths: list[Any] = demand_paths,
                s: float = slack[d],
            ) -> float:
                lagrangian_value = (
                    0.5 * self.demand[d] * self.eta[d] * (x.sum() + s - 1 + self.q[d]) ** 2
                )
                for i, (k, links) in enumerate(demand_paths):
                    lagrangian_value -= self.value[d, k] * self.demand[d] * x[i] / self.rho
                    for e in links:
                        weight = self.demand[d] / self.capacity[e]
                        lagrangian_value += (
                            0.5 * weight * (x[i] - z[d, k, e] + self.u[d, k, e]) ** 2
                        )
                return float(lagrangian_value / self.demand[d])

            guess = np.array([self.x[d, k] for k, _ in demand_paths])
            result = minimize(
                lagrangian,
                guess,
                bounds=[(0, None)] * len(guess),
                options={"ftol": 1e-15, "gtol": 1e-10},
            )
            for (k, _), value in zip(demand_paths, result.x, strict=True):
                self.x[d, k] = value


@pytest.mark.slow
@pytest.mark.parametrize("objective", VALUE_OBJECTIVES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_admm_equals_the_textbook_form_with_explicit_copies(
    objective: ObjectiveName, seed: int
) -> None:
    problem = random_problem(
        seed, objective=objective, nodes=4, density=0.6, batch=1, idle=0.0, failed=seed
    )
    start = torch.where(problem.path_mask, 0.5, 0.0).to(torch.float64)
    scale = admm.scaling(problem)
    textbook = _TextbookAdmm(problem, start, scale)
    state = admm.start(problem, scale, start)
    for _ in range(4):
        textbook.step()
        state = admm.step(problem, scale, state)
        np.testing.assert_allclose(state.splits[0].numpy(), textbook.x, atol=2e-5)
        np.testing.assert_allclose(state.link_dual[0].numpy(), textbook.w, atol=2e-5)
        for (_, _, e), u in textbook.u.items():
            assert u == pytest.approx(textbook.w[e], abs=2e-5), (
                "all copies on a link share its multiplier"
            )


@pytest.mark.system
@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
@pytest.mark.parametrize("seed", [0, 1])
def test_admm_converges_to_the_lp_optimum(objective: ObjectiveName, seed: int) -> None:
    problem = random_problem(seed, objective=objective, failed=2, batch=3)
    optimum = assess(problem, LpAll().solve(problem)).value
    splits, prices, residuals = admm.solve(
        problem, torch.zeros_like(problem.path_mask, dtype=torch.float64), 5000
    )
    assert max(float(residual.max()) for residual in vars(residuals).values()) < 1e-3
    # The raw splits, before projection.
    value = problem.value(splits)
    if problem.demand_set.carries_all:
        value = from_score(problem, -problem.utilisation(splits).amax(1))
    torch.testing.assert_close(value, optimum, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(
        problem.value(project(problem, splits)), optimum, rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(scaled_dual_bound(problem, prices), optimum, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_residuals_of_admm_fall_with_iterations(objective: ObjectiveName) -> None:
    problem = random_problem(7, objective=objective, batch=1)
    scale = admm.scaling(problem)
    state = admm.start(problem, scale, torch.zeros_like(problem.path_mask, dtype=torch.float64))
    largest_residuals = []
    for iteration in range(1, 801):
        new = admm.step(problem, scale, state)
        if iteration in (8, 80, 800):
            residuals = admm.residuals(problem, scale, state, new)
            largest_residuals.append(
                float(torch.stack([residuals.capacity, residuals.demand, residuals.change]).max())
            )
        state = new
    assert largest_residuals[1] < 0.3 * largest_residuals[0]
    assert largest_residuals[2] < 0.3 * largest_residuals[1] + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_theta_and_prices_of_max_link_utilisation_meet_their_optimality_conditions(
    seed: int,
) -> None:
    """Optimum of min theta/rho + 1/2 sum (load/c - theta + y)+^2 / (1 + m): sum y = 1/rho, priced
    links share theta."""
    problem = random_problem(
        seed, objective=ObjectiveName.MAX_LINK_UTILISATION, failed=seed, batch=3
    )
    scale = admm.scaling(problem)
    generator = torch.Generator().manual_seed(seed)
    splits = torch.rand(problem.path_mask.shape, generator=generator, dtype=torch.float64)
    state = admm.start(
        problem, scale, splits, torch.rand(problem.capacity.shape, generator=generator)
    )
    utilisation = problem.loads(state.splits) * problem.inverse_capacity
    y = admm.next_link_dual(
        problem, scale.penalty, scale.full_path_utilisation, utilisation, state.link_dual
    )
    assert (y >= 0).all()
    assert (y[problem.capacity == 0] == 0).all()
    torch.testing.assert_close(y.sum(1, keepdim=True), 1 / scale.penalty)
    theta = problem.loads(state.splits) * problem.inverse_capacity + (state.link_dual - y) * (
        1 + scale.full_path_utilisation
    )
    for b in range(3):
        priced = (y[b] > 0) & (problem.capacity[b] > 0)
        priced_theta = theta[b][priced]
        torch.testing.assert_close(
            priced_theta,
            priced_theta[:1].expand_as(priced_theta),
            msg="theta is the same for all links with a price",
        )
        free = ~priced & (problem.capacity[b] > 0)
        assert (theta[b][free] <= priced_theta[0] + 1e-9).all()


def test_admm_fills_two_disjoint_links_at_price_one() -> None:
    """One demand of 10 over two disjoint links of 4 and 3: both links are full and have price 1."""
    topology = make_topology([(0, 1, 4.0), (0, 1, 3.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=2, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([10.0]))
    splits, prices, _ = admm.solve(problem, torch.zeros(1, 1, 2, dtype=torch.float64), 2000)
    torch.testing.assert_close(
        splits, torch.tensor([[[0.4, 0.3]]], dtype=torch.float64), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(prices, torch.ones(1, 2, dtype=torch.float64), atol=1e-3, rtol=0)


@given(st.integers(0, 10_000))
def test_the_nonnegative_solve_of_admm_meets_its_kkt_conditions(seed: int) -> None:
    """The KKT conditions of the K x K problem: x >= 0, gradient >= 0, and their product is 0."""
    generator = torch.Generator().manual_seed(seed)
    along = torch.rand(1, 20, 4, generator=generator, dtype=torch.float64) + 0.1
    eta = torch.rand(1, 20, 1, generator=generator, dtype=torch.float64) * 10
    linear = torch.randn(1, 20, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(1, 20, 4, generator=generator) > 0.2
    x = admm._nonnegative_solve(linear, along, eta, mask)
    gradient = along * x + eta * x.sum(-1, keepdim=True) - linear
    assert (x >= 0).all()
    assert (x[~mask] == 0).all()
    assert gradient[mask].min() >= -1e-9
    assert (gradient * x)[mask].abs().max() <= 1e-9


@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    failed=st.sampled_from([0, 2, 99]),
)
def test_compiled_admm_equals_the_one_in_torch(
    seed: int, objective: ObjectiveName, failed: int
) -> None:
    problem = random_problem(seed, objective=objective, failed=failed, idle=0.3)
    generator = torch.Generator().manual_seed(seed)
    splits = torch.rand(problem.path_mask.shape, generator=generator, dtype=torch.float64)
    prices = torch.rand(problem.capacity.shape, generator=generator, dtype=torch.float64)
    assert admm_fused.accepts(problem)
    for iterations in (0, 1, 6):
        expected = admm.solve(problem, splits, iterations, prices=prices)
        result = admm_fused.solve(problem, splits, iterations, prices=prices)
        torch.testing.assert_close(result[0], expected.splits, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(result[1], expected.prices, atol=1e-9, rtol=1e-9)
