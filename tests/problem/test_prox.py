"""Projections against a general solver of quadratic programs."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from teal.problem.prox import project_box, project_box_in_torch


def test_the_projection_onto_a_box_is_the_nearest_point() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        point, limit, slope = rng.normal(0.3, 0.6, 5), rng.random(5) * 0.7, rng.random(5) + 0.2
        (found,) = project_box(
            *(torch.from_numpy(one)[None, None] for one in (point, limit, slope))
        )[0].numpy()
        nearest = minimize(
            lambda w, x=point, s=slope: (((w - x) ** 2) / s).sum(),
            np.zeros(5),
            method="SLSQP",
            bounds=[(0, one) for one in limit],
            options={"ftol": 1e-14, "maxiter": 500},
            constraints=[{"type": "ineq", "fun": lambda w: 1 - w.sum()}],
        )
        np.testing.assert_allclose(found, nearest.x, atol=1e-5)


@given(seed=st.integers(0, 10_000), width=st.integers(1, 9))
def test_the_kernel_projects_as_the_plain_form_does(seed: int, width: int) -> None:
    """Also where entries have a bound of 0, or the point lies inside."""
    rng = np.random.default_rng(seed)
    shape = 2, 7, width
    point, limit = rng.normal(0.3, 0.6, shape), rng.random(shape) * rng.integers(0, 2, shape)
    parts = [torch.from_numpy(one) for one in (point, limit, np.exp(rng.normal(0, 3, shape)))]
    torch.testing.assert_close(
        project_box(*parts), project_box_in_torch(*parts), rtol=1e-9, atol=1e-12
    )
