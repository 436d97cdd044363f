"""The fitted perceptron on series whose best splits are known."""

from __future__ import annotations

import numpy as np
import torch

import teal
from teal_next.dote import Dote
from tests.teal_next.series import make_past


def _alternating(count: int) -> np.ndarray:
    """Two matrices in turn, whose best splits differ: the next one is known from the last one."""
    return np.array([[[8.0, 1.0, 1.0], [1.0, 1.0, 8.0]][t % 2] for t in range(count)])


def test_it_learns_which_matrix_follows_which() -> None:
    demand = _alternating(80)
    hedge = Dote(window=2, steps=400)
    for known in (60, 61, 62):
        past = make_past(demand[:known])
        following = past.last(1).with_demand(torch.from_numpy(demand[known : known + 1]))
        realised = float(following.value(hedge.allocate(past)[None]))
        optimum = float(teal.solve(following, gap=1e-4).value)
        assert realised < 1.05 * optimum, "a hedge that ignores the last matrix is at 1.3"


def test_the_weights_stay_after_the_fit_and_do_not_depend_on_chance() -> None:
    demand = np.random.default_rng(0).lognormal(1, 0.5, (40, 3))
    unfitted, fitted = (
        Dote(window=3, steps=steps).allocate(make_past(_alternating(40))) for steps in (1, 60)
    )
    assert float((unfitted - fitted).abs().max()) > 0.01, "the last steps count too"
    first, second = Dote(window=3, steps=50), Dote(window=3, steps=50)
    torch.testing.assert_close(
        first.allocate(make_past(demand[:30])), second.allocate(make_past(demand[:30]))
    )
    weights = [parameter.clone() for parameter in first._perceptron.parameters()]  # type: ignore[union-attr]
    first.allocate(make_past(demand))
    for before, after in zip(weights, first._perceptron.parameters(), strict=True):  # type: ignore[union-attr]
        torch.testing.assert_close(before, after)
