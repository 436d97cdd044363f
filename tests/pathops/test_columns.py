"""Columns and rows that side conditions add, against their incidence matrices and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from teal.pathops import PathOps
from teal.pathops.columns import AddedRowOps, BundleOps, MoveOps
from teal.problem import Problem
from teal.testing import random_problem

KINDS = ("moves", "added row", "bundles", "row over moves")


def _ops(kind: str, problem: Problem, seed: int) -> tuple[PathOps, int]:
    """Operations of a kind, and their number of rows."""
    rng, links = np.random.default_rng(seed), problem.topology.num_links
    if kind == "moves":
        return MoveOps(problem.ops), links + 1
    if kind == "bundles":
        shape = problem.paths.num_demands, 5, problem.paths.num_paths
        weight = rng.random(shape) * rng.integers(0, 2, shape) * problem.paths.mask[:, None]
        return BundleOps(problem.ops, torch.from_numpy(weight)), links
    below, rows = (problem.ops, links) if kind == "added row" else (MoveOps(problem.ops), links + 1)
    coefficient = rng.random(below.mask.shape) * (rng.random(below.mask.shape) < 0.5)
    return AddedRowOps(below, torch.from_numpy(coefficient)), rows + 1


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_sums_and_loads_are_products_with_the_incidence_matrix(kind: str, seed: int) -> None:
    problem = random_problem(seed, batch=3)
    ops, rows = _ops(kind, problem, seed)
    matrix = ops.incidence(rows).toarray()
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.random((3, rows)))
    columns = torch.from_numpy(rng.random((3, *ops.mask.shape))) * ops.mask
    sums = ops.path_sum(values).flatten(1).numpy()
    np.testing.assert_allclose(sums, values.numpy() @ matrix, rtol=1e-9, atol=1e-12)
    loads = ops.link_sum(columns).numpy()
    np.testing.assert_allclose(loads, columns.flatten(1).numpy() @ matrix.T, rtol=1e-9, atol=1e-12)
    assert (matrix[:, ~ops.mask.flatten().numpy()] == 0).all(), "columns that do not exist"


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_largest_value_is_that_of_a_row_of_the_column(kind: str, seed: int) -> None:
    problem = random_problem(seed, batch=3)
    ops, rows = _ops(kind, problem, seed)
    matrix = ops.incidence(rows).toarray()
    values = torch.from_numpy(np.random.default_rng(seed).random((3, rows)))
    largest, at = ops.path_max(values)
    for row in range(3):
        on_row = np.where(matrix > 0, values[row].numpy()[:, None], -np.inf)
        exists = ops.mask.flatten().numpy() & (matrix > 0).any(0)
        np.testing.assert_allclose(largest[row].flatten().numpy()[exists], on_row.max(0)[exists])
        np.testing.assert_array_equal(at[row].flatten().numpy()[exists], on_row.argmax(0)[exists])


def test_what_moves_is_on_the_last_row_by_hand() -> None:
    problem = random_problem(1, batch=1)
    ops = MoveOps(problem.ops)
    demand = int(np.flatnonzero(problem.paths.mask[:, 0])[0])
    flow = torch.zeros(1, *ops.mask.shape, dtype=torch.float64)
    flow[0, demand, 0], flow[0, demand, 1] = 2.0, 3.0  # stays on its first path, moves onto it
    load = ops.link_sum(flow)[0]
    links = list(problem.paths.links_of(demand, 0))
    assert load[links].tolist() == [5.0] * len(links)
    assert float(load[-1]) == 3.0
    value = torch.arange(2.0, 2.0 + problem.paths.num_paths).expand(ops.mask.shape[0], -1)
    assert ops.of_paths(value)[demand, :4].tolist() == [2.0, 2.0, 3.0, 3.0]
