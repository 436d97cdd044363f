"""ADMM: equal to the textbook form with explicit copies, and its limit equal to the LP optimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from baselines.lp_all import LpAll
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.problem.bounds import from_utilisation, scaled_dual_bound
from teal.solvers import admm
from teal.solvers.projection import project
from teal.testing import make_topology, random_problem

VALUE_OBJECTIVES = [o for o in ObjectiveName if Objective(o).maximises_value]


class _TextbookAdmm:
    """Copies, slacks and multipliers held one by one, for B = 1 and value maximisation.

    The augmented Lagrangian, scaled by rho, is minimised over (z, t, s) exactly, the multipliers move,
    then x is found by a general-purpose solver.
    """

    def __init__(self, problem: Problem, splits: torch.Tensor, scale: admm.AdmmScaling) -> None:
        self.demand, self.capacity = problem.demand[0].numpy(), problem.capacity[0].numpy()
        self.rho, self.eta = float(scale.penalty), scale.demand_penalty[0, :, 0].numpy()
        self.value = problem.path_value.numpy()
        self.paths = [
            (d, k, problem.paths.path_links(d, k))
            for d in range(problem.paths.num_demands)
            for k in range(problem.paths.num_paths)
            if problem.path_mask[0, d, k]
        ]
        self.x = splits[0].numpy().copy()
        self.u = {(d, k, e): 0.0 for d, k, links in self.paths for e in links}  # of the copies
        self.w = np.zeros(len(self.capacity))  # of the capacity rows
        self.q = np.zeros(len(self.demand))  # of the demand rows

    def step(self) -> None:
        z: dict[tuple[int, int, int], float] = {}
        for e in range(len(self.capacity)):
            own = [(d, k) for d, k, links in self.paths if e in links]
            if not own:
                continue
            share = np.array([self.demand[d] / self.capacity[e] for d, _ in own])
            a = np.array([self.x[d, k] + self.u[d, k, e] for d, k in own])
            # min 1/2 (share z + t - 1 + w)^2 + 1/2 sum share (a - z)^2 over z and t >= 0
            z_free, t = a, 1 - self.w[e] - share @ a
            if t < 0:
                # t = 0: the normal equations (share share' + diag(share)) z = share (1 - w) + share a
                matrix = np.outer(share, share) + np.diag(share)
                t, z_free = 0.0, np.linalg.lstsq(matrix, share * (1 - self.w[e] + a), rcond=None)[0]
            self.w[e] += share @ z_free + t - 1
            for (d, k), value in zip(own, z_free, strict=True):
                z[d, k, e] = value
                self.u[d, k, e] += self.x[d, k] - value
        total = self.x.sum(1)
        slack = np.maximum(0, 1 - total - self.q)
        self.q += total + slack - 1
        for d in range(len(self.demand)):
            own_paths = [(k, links) for dd, k, links in self.paths if dd == d]
            if not own_paths:
                continue

            def lagrangian(x: np.ndarray, d: int = d, own_paths: list = own_paths, s: float = slack[d]) -> float:  # type: ignore[type-arg]
                out = 0.5 * self.demand[d] * self.eta[d] * (x.sum() + s - 1 + self.q[d]) ** 2
                for i, (k, links) in enumerate(own_paths):
                    out -= self.value[d, k] * self.demand[d] * x[i] / self.rho
                    for e in links:
                        weight = self.demand[d] / self.capacity[e]
                        out += 0.5 * weight * (x[i] - z[d, k, e] + self.u[d, k, e]) ** 2
                return float(out / self.demand[d])

            guess = np.array([self.x[d, k] for k, _ in own_paths])
            found = minimize(lagrangian, guess, bounds=[(0, None)] * len(guess), options={"ftol": 1e-15, "gtol": 1e-10})
            for (k, _), value in zip(own_paths, found.x, strict=True):
                self.x[d, k] = value


@pytest.mark.parametrize("objective", VALUE_OBJECTIVES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_the_form_with_explicit_copies(objective: ObjectiveName, seed: int) -> None:
    problem = random_problem(seed, objective=objective, nodes=4, density=0.6, batch=1, idle=0.0, failed=seed)
    start = torch.where(problem.path_mask, 0.5, 0.0).to(torch.float64)
    scale = admm.scaling(problem)
    textbook, state = _TextbookAdmm(problem, start, scale), admm.start(problem, scale, start)
    for _ in range(4):
        textbook.step()
        state = admm.step(problem, scale, state)
        np.testing.assert_allclose(state.splits[0].numpy(), textbook.x, atol=2e-5)
        np.testing.assert_allclose(state.link_dual[0].numpy(), textbook.w, atol=2e-5)
        for (_, _, e), u in textbook.u.items():
            assert u == pytest.approx(textbook.w[e], abs=2e-5), "all copies on a link share its multiplier"


@pytest.mark.parametrize("objective", list(ObjectiveName))
@pytest.mark.parametrize("seed", range(2))
def test_the_limit_is_the_lp_optimum(objective: ObjectiveName, seed: int) -> None:
    problem = random_problem(seed, objective=objective, failed=2, batch=2)
    optimum = assess(problem, LpAll().solve(problem)).value
    splits, prices, found = admm.solve(problem, torch.zeros_like(problem.path_mask, dtype=torch.float64), 5000)
    assert max(float(worst.max()) for worst in vars(found).values()) < 1e-3
    # The raw splits, before any projection could help them.
    reached = problem.value(splits)
    if problem.objective.is_balanced:
        reached = from_utilisation(problem, problem.utilisation(splits).amax(1))
    torch.testing.assert_close(reached, optimum, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(problem.value(project(problem, splits)), optimum, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(scaled_dual_bound(problem, prices), optimum, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("objective", list(ObjectiveName))
def test_residuals_fall_with_iterations(objective: ObjectiveName) -> None:
    problem = random_problem(7, objective=objective, batch=1)
    scale = admm.scaling(problem)
    state = admm.start(problem, scale, torch.zeros_like(problem.path_mask, dtype=torch.float64))
    seen = []
    for iteration in range(1, 2001):
        new = admm.step(problem, scale, state)
        if iteration in (20, 200, 2000):
            r = admm.residuals(problem, scale, state, new)
            seen.append(float(torch.stack([r.capacity, r.demand, r.change]).max()))
        state = new
    assert seen[1] < 0.3 * seen[0]
    assert seen[2] < 0.3 * seen[1] + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_theta_and_the_prices_of_max_link_utilisation(seed: int) -> None:
    """min theta/rho + 1/2 sum (load/c - theta + y)+^2 / (1 + m): the y sum to 1/rho, and follow theta."""
    problem = random_problem(seed, objective=ObjectiveName.MAX_LINK_UTILISATION, failed=seed, batch=3)
    scale = admm.scaling(problem)
    generator = torch.Generator().manual_seed(seed)
    splits = torch.rand(problem.path_mask.shape, generator=generator, dtype=torch.float64)
    state = admm.start(problem, scale, splits, torch.rand(problem.capacity.shape, generator=generator))
    y = admm._link_dual(problem, scale, state)
    assert (y >= 0).all()
    assert (y[problem.capacity == 0] == 0).all()
    torch.testing.assert_close(y.sum(1, keepdim=True), 1 / scale.penalty)
    theta = problem.loads(state.splits) * problem.inverse_capacity + (state.link_dual - y) * (
        1 + scale.full_path_utilisation
    )
    for b in range(3):
        priced = (y[b] > 0) & (problem.capacity[b] > 0)
        reached = theta[b][priced]
        torch.testing.assert_close(reached, reached[:1].expand_as(reached), msg="one theta for all priced links")
        free = ~priced & (problem.capacity[b] > 0)
        assert (theta[b][free] <= reached[0] + 1e-9).all()


def test_a_hand_solved_network() -> None:
    """One demand of 10 over two disjoint links of 4 and 3: everything is full, both links bind at price 1."""
    topology = make_topology([(0, 1, 4.0), (0, 1, 3.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=2, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([10.0]))
    splits, prices, _ = admm.solve(problem, torch.zeros(1, 1, 2, dtype=torch.float64), 2000)
    torch.testing.assert_close(splits, torch.tensor([[[0.4, 0.3]]], dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(prices, torch.ones(1, 2, dtype=torch.float64), atol=1e-3, rtol=0)


@given(st.integers(0, 10_000))
def test_the_nonnegative_solve_meets_its_conditions(seed: int) -> None:
    """X >= 0, gradient >= 0, and one of the two 0: the KKT conditions of the K x K problem."""
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
