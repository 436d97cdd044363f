"""After a warm-up, a solve compiles nothing: kernels are counted before and after."""

from __future__ import annotations

import subprocess
import sys

import numba
import numpy as np
import pytest
import torch

from teal.network import compute_paths
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime import parallel
from teal.solvers.pdhg.fused import certificates, curves, kernels, share_metric
from teal.solvers.pdhg.fused.warm_up import three_nodes
from teal.solvers.pdhg.samples import sample
from teal.solvers.pipeline import prepare, solve
from teal.testing import random_problem

MODULES = (kernels, certificates, curves, share_metric, sample)


def _compiled() -> dict[str, int]:
    """Number of compiled forms of each kernel."""
    result = {}
    for module in MODULES:
        for name, value in vars(module).items():
            for form in getattr(value, "dispatchers", (value,)):
                if hasattr(form, "signatures"):
                    result[f"{module.__name__}.{name}.{form.__name__}"] = len(form.signatures)
    return result


@pytest.mark.parametrize(
    "objective",
    [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION, ObjectiveName.PROPORTIONAL_FAIR],
)
@pytest.mark.parametrize("batch", [1, 3, 17])
@pytest.mark.parametrize("gap", [1e-2, 1e-6])
@pytest.mark.parametrize("failed", [0, 2])
@pytest.mark.parametrize("has_caps", [False, True])
def test_a_solve_compiles_nothing_that_was_not_warmed_up(
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
    result = compute_paths(problem.topology, num_paths=2, cache=False)
    np.testing.assert_array_equal(problem.paths.pairs, result.pairs)
    for demand in range(6):
        for k in range(2):
            assert problem.paths.links_of(demand, k) == result.links_of(demand, k)


def test_a_large_network_on_two_threads_needs_the_kernels_of_a_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("needs two cores")
    problem: Problem = random_problem(3, batch=1)
    prepare(problem)
    before = _compiled()
    reference = solve(problem, gap=1e-3, engine="fused")
    monkeypatch.setattr(parallel, "is_large", lambda operations, min_operations=1: True)
    monkeypatch.setattr(parallel, "_cores_are_taken", lambda: False)
    numba.set_num_threads(2)
    try:
        result = solve(problem, gap=1e-3, engine="fused")
    finally:
        numba.set_num_threads(1)
    assert _compiled() == before
    assert torch.equal(result.value, reference.value)
    assert torch.equal(result.splits, reference.splits)


# Solves a problem to a deadline of 10 s by a clock on which each compilation of a kernel takes 100
# s, and nothing else takes any time.  Kernels of the engines are compiled anew, whatever has been
# kept.
_BY_COMPILATIONS = """
import time
from numba.core import event

class Compilations(event.Listener):
    count = 0
    def on_start(self, _):
        pass
    def on_end(self, _):
        Compilations.count += 1

event.register("numba:compile", Compilations())
time.perf_counter = lambda: 100.0 * Compilations.count
from teal.runtime.kernel_cache import KernelCache
kept = KernelCache.load_overload
KernelCache.load_overload = lambda self, *of: (
    None if "interior.search.solve" in self.name else kept(self, *of))
KernelCache.save_overload = lambda *_: None
import teal
topology = teal.load_topology("b4")
traffic = teal.load_traffic("gravity:seed=0,load=8,count=1", topology)
paths = teal.compute_paths(topology, traffic.pairs)
problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0]))
before = Compilations.count
result = teal.solve(problem, gap=1e-3, deadline=10.0)
print(float(result.gap), result.solve_s, Compilations.count - before)
"""


@pytest.mark.system
def test_a_deadline_counts_iterations_and_not_compilation() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BY_COMPILATIONS], capture_output=True, text=True, check=True
    )
    gap, solve_s, compilations = map(float, done.stdout.split())
    assert compilations > 0
    assert gap <= 1e-3
    assert solve_s == 0
