"""Flows at given link prices, fused, against the softmax over explicit paths in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teal.network import compute_paths
from teal.pathops.response import FAILED_WEIGHT, Responses
from teal.problem import Problem
from teal.testing import make_topology, random_problem


def _explicit(
    problem: Problem, row: int, weight: np.ndarray, sharpness: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Splits (D, K), loads (E,) and elasticities (E,) of one matrix, path by path."""
    demand, value = problem.demand[row].numpy(), problem.demand_value.numpy()
    splits = np.zeros(problem.paths.mask.shape)
    load, elasticity = np.zeros(len(weight)), np.zeros(len(weight))
    for d, has in enumerate(problem.paths.mask):
        paths = [list(problem.paths.links_of(d, k)) for k in np.flatnonzero(has).tolist()]
        profit = np.array([sharpness * (value[d] - weight[links].sum()) for links in paths])
        largest = max(0.0, profit.max(initial=0.0))
        of_path = np.exp(np.maximum(profit - largest, -700))
        share = of_path / (np.exp(-largest) + of_path.sum())
        splits[d, : len(share)] = share
        for links, part in zip(paths, share, strict=True):
            load[links] += demand[d] * part
            elasticity[links] += sharpness * demand[d] * part * (1 - part)
    return splits, load, elasticity


@pytest.mark.parametrize("num_paths", [1, 2, 4])
@given(seed=st.integers(0, 10_000), sharpness=st.sampled_from([0.5, 4.0, 40.0]))
@settings(max_examples=15, deadline=None)
def test_loads_and_elasticities_are_those_of_a_softmax(
    num_paths: int, seed: int, sharpness: float
) -> None:
    """Three different matrices with prices of their own, some links of which have failed."""
    problem = random_problem(seed, objective="weighted_flow", batch=3, num_paths=num_paths)
    rng = np.random.default_rng(seed)
    weight = rng.exponential(0.3, problem.capacity.shape).astype(np.float32)
    weight[rng.random(weight.shape) < 0.1] = FAILED_WEIGHT
    splits = np.zeros((3, *problem.paths.mask.shape), np.float32)
    responses = Responses(problem.paths, problem.demand, problem.demand_value)
    sums = responses.at(weight, sharpness, splits).sum(0)
    again = responses.at(weight, sharpness).sum(0)
    np.testing.assert_array_equal(sums, again)
    assert (splits[:, ~problem.paths.mask] == 0).all()
    for row in range(3):
        expected = _explicit(problem, row, weight[row].astype(np.float64), sharpness)
        np.testing.assert_allclose(splits[row], expected[0], rtol=1e-4, atol=1e-6)
        scale = float(problem.demand[row].sum())
        np.testing.assert_allclose(sums[row, 0::2], expected[1], rtol=1e-4, atol=1e-6 * scale)
        largest = sharpness * scale
        np.testing.assert_allclose(sums[row, 1::2], expected[2], rtol=1e-4, atol=1e-6 * largest)


def test_one_path_by_hand() -> None:
    """A demand of 8 whose path costs ln 3 less than it is worth: three quarters are sent."""
    topology = make_topology([(0, 1, 9.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=1, cache=False)
    responses = Responses(paths, torch.tensor([[8.0]]), torch.tensor([1.0 + np.log(3.0)]))
    sums = responses.at(np.array([[1.0]], np.float32), 1.0).sum(0)
    np.testing.assert_allclose(sums, [[6.0, 8 * 0.75 * 0.25]], rtol=1e-5)
