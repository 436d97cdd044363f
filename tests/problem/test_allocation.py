"""An allocation as a frame and as a file, against its splits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from teal.errors import InputError
from teal.problem import Allocation
from teal.solvers import pipeline
from teal.testing import random_problem


def test_the_frame_has_the_flows_of_the_splits() -> None:
    problem = random_problem(3, batch=3)
    result = pipeline.solve(problem)
    allocation = Allocation.of_batch(result.splits, result.prices, 0.1)
    frame = allocation.to_frame(problem)
    flows = problem.flows(result.splits)
    for row in range(3):
        assert frame.query("matrix == @row")["flow"].sum() == pytest.approx(float(flows[row].sum()))
    for one in frame.itertuples():
        assert (one.nodes[0], one.nodes[-1]) == (one.source, one.target)
    loads = torch.zeros_like(problem.capacity)
    number = {pair: i for i, pair in enumerate(map(tuple, problem.paths.pairs.tolist()))}
    index = problem.topology.node_index()
    for one in frame.itertuples():
        demand = number[index[one.source], index[one.target]]
        for link in problem.paths.links_of(demand, one.k):
            loads[one.matrix, link] += one.flow
    torch.testing.assert_close(loads, problem.loads(result.splits))
    assert (
        repr(allocation)
        == f"Allocation(3 feasible; splits {tuple(result.splits.shape)}, with prices)"
    )
    assert "3 matrices" in repr(problem)
    assert "iterations" in repr(result)
    assert len(repr(problem.paths)) < 80


def test_a_saved_allocation_is_loaded_unchanged(tmp_path: Path) -> None:
    problem = random_problem(3, batch=3)
    result = pipeline.solve(problem)
    for prices in (result.prices, None):
        allocation = Allocation.of_batch(result.splits, prices, 0.1)
        allocation.save(tmp_path / "a.npz")
        loaded = Allocation.load(tmp_path / "a.npz")
        assert torch.equal(loaded.splits, allocation.splits)
        assert loaded.status == allocation.status
        assert (loaded.prices is None) == (prices is None)
    (tmp_path / "b.npz").write_bytes(b"not a zip file")
    with pytest.raises(InputError, match="a saved allocation"):
        Allocation.load(tmp_path / "b.npz")


def test_matrices_solved_together_have_equal_parts_of_the_time() -> None:
    assert Allocation.of_batch(torch.zeros(4, 1, 1), None, 2.0).solve_s == (0.5,) * 4
