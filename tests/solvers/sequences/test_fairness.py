"""The iteration over levels of links and the measures of fairness, against networks solved by
hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import teal
from teal.runtime.interruptible import complete
from teal.solvers.sequences.fairness import fair_flows, fairness, is_bottlenecked
from teal.testing import make_topology, random_problem


def _line(demand: list[float]) -> teal.Problem:
    """n0 -> n1 (9 Gbit/s) -> n2 (4 Gbit/s): demands 0 to 1, 0 to 2, 1 to 2, each with its one
    path."""
    topology = make_topology([(0, 1, 9.0), (1, 2, 4.0)])
    paths = teal.compute_paths(
        topology, np.array([[0, 1], [0, 2], [1, 2]], np.int32), num_paths=1, cache=False
    )
    return teal.Problem.create(topology, paths, teal.Objective(), np.array(demand))


def test_bottlenecks_are_told_from_room() -> None:
    problem = _line([10.0, 10.0, 10.0])
    fair = torch.tensor([[[0.7], [0.2], [0.2]]], dtype=torch.float64)
    assert is_bottlenecked(problem, fair).tolist() == [[True, True, True]]
    # Of the second link the long demand has more than the short one, which thus has no bottleneck,
    # and the first link has room, so that the demand on it alone has none either.
    unfair = torch.tensor([[[0.5], [0.3], [0.1]]], dtype=torch.float64)
    assert is_bottlenecked(problem, unfair).tolist() == [[False, True, False]]


def test_batches_are_solved_like_single_matrices() -> None:
    problem = random_problem(2, batch=3)
    together = complete(fair_flows(problem, None, 50))
    for row in range(3):
        np.testing.assert_allclose(
            together[row : row + 1],
            complete(fair_flows(problem.row(row), None, 50)),
            rtol=1e-9,
            atol=1e-12,
        )


def test_the_measure_of_fairness() -> None:
    rates = torch.tensor([[1.0, 2.0, 0.0]])
    assert float(fairness(rates, rates, 1e-3)) == pytest.approx(1.0)
    other = torch.tensor([[2.0, 1.0, 0.0]])
    assert float(fairness(rates, other, 1e-3)) == pytest.approx(0.25 ** (1 / 3))


def test_wrong_options_are_refused() -> None:
    for text in (
        "max-min:by=x",
        "max-min:iterations=-1",
        "max-min:gap=0",
        "adaptive-waterfiller:iterations=0",
    ):
        with pytest.raises(teal.InputError):
            teal.make_scheme(text)
    for text in ("geometric-binner:ratio=1", "geometric-binner:decay=1"):
        with pytest.raises(teal.InputError):
            teal.make_scheme(text)
    balanced = random_problem(1, objective=teal.ObjectiveName.MAX_LINK_UTILISATION)
    for name in ("max-min", "max-min-lp", "geometric-binner", "adaptive-waterfiller"):
        with pytest.raises(teal.InputError, match="shed"):
            teal.make_scheme(name).solve(balanced)
    assert teal.make_scheme("max-min:by=demand").solve(random_problem(1)).status[0].usable
