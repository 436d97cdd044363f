"""PDHG under a limit on churn, against linear programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import teal
from teal.solvers.pdhg.churn import project_box


@pytest.mark.parametrize(("name", "load"), [("b4", 8.0), ("topohub:sndlib/geant", 8.0)])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 1.0])
def test_the_value_is_within_the_gap_of_the_lps_optimum(name: str, load: float, share: float) -> None:
    topology = teal.load_topology(name)
    traffic = teal.load_traffic(f"gravity:seed=0,count=3,load={load}", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0, 1, 2]))
    before = teal.solve(problem.rows(slice(0, 2)), gap=1e-3)
    limited = problem.rows(slice(1, 3)).with_churn_limit(before.splits, share)
    found = teal.solve(limited, gap=1e-3)
    optimum = limited.value(teal.make_scheme("lp-all").solve(limited).splits)
    assert bool((found.gap <= 1e-3).all())
    assert bool((found.value <= optimum * (1 + 1e-6)).all())
    assert bool((found.bound >= optimum * (1 - 1e-6)).all())
    assert bool((teal.violations(limited, found.splits).largest <= 1e-9).all())
    np.testing.assert_allclose(teal.dual_bound(limited, found.prices), found.bound, rtol=1e-3)
    warm = teal.solve(limited, gap=1e-3, warm_start=found)
    assert warm.iterations <= found.iterations


def test_the_projection_is_the_nearest_point() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        point, limit, slope = rng.normal(0.3, 0.6, 5), rng.random(5) * 0.7, rng.random(5) + 0.2
        (found,) = project_box(*(torch.from_numpy(one)[None, None] for one in (point, limit, slope)))[0].numpy()
        nearest = minimize(
            lambda w, x=point, s=slope: (((w - x) ** 2) / s).sum(), np.zeros(5), method="SLSQP",
            bounds=[(0, one) for one in limit], options={"ftol": 1e-14, "maxiter": 500},
            constraints=[{"type": "ineq", "fun": lambda w: 1 - w.sum()}],
        )  # fmt: skip
        np.testing.assert_allclose(found, nearest.x, atol=1e-5)
