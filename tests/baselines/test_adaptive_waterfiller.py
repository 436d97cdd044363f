"""Single-path water-filling against the definition, and the schemes for fairness against exact
rates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import teal
from baselines.adaptive_waterfiller import waterfill
from teal.solvers.sequences.fairness import fairness
from teal.testing import random_problem


@pytest.mark.parametrize("seed", range(8))
def test_every_flow_has_a_bottleneck(seed: int) -> None:
    """A full link on which no flow has a higher rate per weight: the definition of max-min
    fairness."""
    rng = np.random.default_rng(seed)
    flows, links = 30, 12
    crosses = rng.random((flows, links)) < 0.25
    crosses[np.arange(flows), rng.integers(links, size=flows)] = True
    weight, capacity = rng.random(flows) + 0.1, rng.random(links) * 5 + 0.5

    def csr(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.concatenate([[0], np.cumsum(matrix.sum(1))]).astype(np.int64), np.nonzero(matrix)[
            1
        ].astype(np.int64)

    rate = waterfill(weight, capacity, *csr(crosses), *csr(crosses.T))
    load, level = rate @ crosses, rate / weight
    assert (load <= capacity * (1 + 1e-9)).all()
    for i in range(flows):
        full = np.flatnonzero(crosses[i] & (load >= capacity * (1 - 1e-9)))
        assert any(level[i] >= level[crosses[:, e]].max() * (1 - 1e-9) for e in full)


@pytest.mark.parametrize("scheme", ["adaptive-waterfiller", "geometric-binner"])
@pytest.mark.parametrize("seed", [0, 3, 5])
def test_schemes_come_near_the_exact_rates(scheme: str, seed: int) -> None:
    problem = random_problem(seed, nodes=8, density=0.5, batch=1)
    problem = problem.with_demand(problem.demand * 4)
    fair = problem.flows(teal.make_scheme("max-min-lp").solve(problem).splits).sum(-1)
    allocation = teal.make_scheme(scheme).solve(problem)
    rates = problem.flows(allocation.splits).sum(-1)
    assert float(fairness(rates, fair, 1e-3 * float(problem.capacity.max()))) > 0.8
    assert float(fairness(torch.rand_like(fair), fair, 1e-3 * float(problem.capacity.max()))) < 0.8
    assert bool((teal.violations(problem, allocation.splits).largest <= 1e-6).all())
