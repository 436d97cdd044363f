"""Projections against a general solver of quadratic programs."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize

from teal.problem.prox import project_box


def test_the_projection_onto_a_box_is_the_nearest_point() -> None:
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
