"""The presolved program: its optimum is that of the whole one, and nothing in it is needless."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import teal
from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.solvers.interior.presolve import PresolvedProgram, num_schur_updates
from teal.testing import make_topology
from tests.extremes import share_program
from tests.solvers.interior.programs import KINDS, Dense, dense, problem_of, program_of

LINEAR = tuple(kind for kind in KINDS if "fair" not in kind)


def _largest_value(program: PresolvedProgram, of: Dense) -> float:
    """The optimum by HiGHS where demands may be shed, in the units of the objective."""
    value = 0.0
    if len(program.column_value):
        found = linprog(
            -program.column_value,
            np.vstack([of.loads, of.blocks]),
            np.concatenate([program.capacity, np.ones(len(of.blocks))]),
            bounds=np.column_stack([np.zeros(len(of.upper_bound)), of.upper_bound]),
        )
        assert found.status == 0, found.message
        value = -float(found.fun)
    return program.scale * (value + program.fixed_value + program.step_offset)


def _least_utilisation(program: PresolvedProgram, of: Dense) -> float:
    """The largest utilisation of the fullest row, 0 without rows."""
    columns = len(program.column_value)
    if not len(program.capacity):
        return 0.0
    found = linprog(
        np.append(np.zeros(columns), 1.0),
        np.column_stack([of.loads, -program.capacity]),
        np.zeros(len(program.capacity)),
        np.column_stack([of.blocks, np.zeros(len(of.blocks))]),
        np.ones(len(of.blocks)),
    )
    assert found.status == 0, found.message
    return float(found.fun)


@given(
    seed=st.integers(0, 100_000), kind=st.sampled_from(LINEAR), failed=st.sampled_from([0, 2, 99])
)
@settings(max_examples=150, deadline=None)
def test_the_optimum_is_that_of_the_whole_program(seed: int, kind: str, failed: int) -> None:
    problem = problem_of(kind, seed, failed=failed)
    program, splits = program_of(problem)
    of = dense(program)
    assert (splits >= 0).all()
    if kind == "max_link_utilisation":
        expected = share_program(problem)
        found = _least_utilisation(program, of)
        if len(program.capacity):
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)
        else:  # one path each: what presolve has fixed
            fixed = torch.from_numpy(splits).reshape(problem.path_mask.shape)
            assert float(problem.value(fixed)) == pytest.approx(expected, rel=1e-6, abs=1e-12)
        return
    if kind == "max_concurrent_flow":
        found = 1 / max(1.0, _least_utilisation(program, of))
        if len(program.capacity):
            assert found == pytest.approx(share_program(problem), rel=1e-6)
        return
    reference = teal.make_scheme("lp-all").solve(problem)
    expected = float(problem.value(reference.splits))
    assert _largest_value(program, of) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(seed=st.integers(0, 100_000), kind=st.sampled_from(LINEAR))
@settings(max_examples=50, deadline=None)
def test_the_layout_is_in_order(seed: int, kind: str) -> None:
    """Rows ascend, unions are those of the paths of a block, limits are below 1."""
    program, _ = program_of(problem_of(kind, seed))
    updates = 0
    for g in range(len(program.rate)):
        first, end = program.block_ptr[g], program.block_ptr[g + 1]
        assert end > first
        rows: set[int] = set()
        for q in range(first, end):
            of_column = program.row[program.row_ptr[q] : program.row_ptr[q + 1]].tolist()
            assert of_column == sorted(set(of_column))
            rows |= set(of_column)
            updates += len(of_column) * (len(of_column) + 1) // 2
        union = program.block_row[program.block_row_ptr[g] : program.block_row_ptr[g + 1]].tolist()
        assert union == sorted(rows)
        updates += len(union) * (len(union) + 1) // 2
    assert num_schur_updates(program) == updates
    assert (program.upper_bound < 1).all()
    assert len(program.bound_index) == (len(program.column_value) if len(program.bounded) else 0)
    for number, q in enumerate(program.bounded.tolist()):
        assert program.bound_index[q] == number
    assert program.link.tolist() == sorted(set(program.link.tolist()))


def test_links_that_cannot_bind_have_no_row() -> None:
    """Of three links of 2, 9 and 1 Gbit/s, demands of 3 and 1 can fill the first one alone."""
    topology = make_topology([(0, 1, 2.0), (0, 2, 9.0), (2, 1, 9.0), (3, 4, 1.0)])
    pairs = np.array([[0, 1], [3, 4]], np.int32)
    paths = compute_paths(topology, pairs, num_paths=2, cache=False)
    demand = np.array([[3.0, 1.0]])
    costly = Problem.create(topology, paths, Objective("latency_penalised_flow"), demand)
    program, splits = program_of(costly)
    assert program.link.tolist() == [0]
    assert program.capacity.tolist() == [2.0]
    assert program.rate.tolist() == [3.0]
    assert splits.reshape(paths.mask.shape)[1].tolist() == [1.0, 0.0]
    # Where all paths are alike, the demand that has a path without a row needs no block.
    program, splits = program_of(Problem.create(topology, paths, Objective(), demand))
    assert len(program.rate) == 0
    assert splits.reshape(paths.mask.shape)[0].tolist() == [0.0, 1.0]
    assert program.scale * program.fixed_value == pytest.approx(4.0)
