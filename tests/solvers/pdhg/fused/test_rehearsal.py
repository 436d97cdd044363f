"""After a rehearsal, a solve compiles nothing: kernels are counted before and after."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from teal.network import compute_paths
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime import parallel
from teal.solvers.pdhg import prepare, solve
from teal.solvers.pdhg.fused import certificates, curves, kernels, share_metric
from teal.solvers.pdhg.fused.rehearsal import three_nodes
from teal.solvers.pdhg.samples import sample
from teal.testing import random_problem

MODULES = (kernels, certificates, curves, share_metric, sample)


def _compiled() -> dict[str, int]:
    """Number of compiled forms of each kernel."""
    found = {}
    for module in MODULES:
        for name, value in vars(module).items():
            for form in getattr(value, "dispatchers", (value,)):
                if hasattr(form, "signatures"):
                    found[f"{module.__name__}.{name}.{form.__name__}"] = len(form.signatures)
    return found


@pytest.mark.parametrize(
    "objective",
    [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION, ObjectiveName.PROPORTIONAL_FAIR],
)
@pytest.mark.parametrize("batch", [1, 3, 17])
@pytest.mark.parametrize("gap", [1e-2, 1e-6])
@pytest.mark.parametrize("failed", [0, 2])
@pytest.mark.parametrize("has_caps", [False, True])
def test_a_solve_compiles_nothing_that_was_not_rehearsed(
    objective: ObjectiveName, batch: int, gap: float, failed: int, has_caps: bool
) -> None:
    problem = random_problem(3, objective=objective, batch=batch, failed=failed)
    if has_caps and objective is ObjectiveName.TOTAL_FLOW:
        problem = problem.with_churn_limit(problem.even_splits, 0.1)
    prepare(problem, gap=gap)
    before = _compiled()
    assert len(before) > 10
    result = solve(problem, gap=gap, max_iterations=60)
    solve(problem, gap=gap, max_iterations=60, warm_start=result)
    assert _compiled() == before


def test_the_paths_of_the_triangle_are_those_that_a_search_finds() -> None:
    problem = three_nodes()
    found = compute_paths(problem.topology, num_paths=2, cache=False)
    np.testing.assert_array_equal(problem.paths.pairs, found.pairs)
    for demand in range(6):
        for k in range(2):
            assert problem.paths.links_of(demand, k) == found.links_of(demand, k)


def test_large_networks_rehearse_the_form_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    problem: Problem = random_problem(3, batch=1)
    monkeypatch.setattr(parallel, "_MIN_PARALLEL_OPERATIONS", 1)
    monkeypatch.setattr(parallel, "is_large", lambda operations, least=1: operations >= 1)
    monkeypatch.setattr("teal.solvers.pdhg.fused.rehearsal.is_large", lambda operations: True)
    prepare(problem)
    before = _compiled()
    alone = solve(problem, gap=1e-3)
    assert _compiled() == before
    monkeypatch.undo()
    torch.testing.assert_close(alone.value, solve(problem, gap=1e-3).value, rtol=2e-3, atol=0)


@pytest.mark.system
def test_with_nothing_compiled_a_deadline_counts_iterations_and_not_compilation(
    tmp_path: Path,
) -> None:
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),
        "TEAL_CACHE_DIR": str(tmp_path / "cache"),
        "TEAL_SHIPPED_KERNELS": "0",
    }
    program = (
        "import teal\n"
        "topology = teal.load_topology('b4')\n"
        "traffic = teal.load_traffic('gravity:seed=0,load=8,count=1', topology)\n"
        "paths = teal.compute_paths(topology, traffic.pairs)\n"
        "problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0]))\n"
        "result = teal.solve(problem, gap=1e-3, deadline=0.5)\n"
        "print(float(result.gap), result.solve_s)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    gap, solve_s = map(float, done.stdout.split())
    assert gap <= 1e-3
    assert solve_s < 0.5
    assert np.isfinite(gap)
