"""The GPU's engine against the plain one; without a GPU in numba-cuda's simulator."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.pathops import make_path_ops
from teal.problem import Problem
from teal.problem.feasibility import violations
from teal.runtime import cuda, memory
from teal.solvers import pdhg
from teal.solvers.pdhg import PdhgState, cuda_engine
from teal.solvers.pdhg import cuda_kernels as kernels
from teal.solvers.pdhg.cuda_engine import CudaEngine
from teal.solvers.pdhg.dense import bytes_needed
from teal.solvers.pdhg.plain import PlainEngine
from teal.testing import random_problem

DEVICE = torch.device("cpu" if cuda.SIMULATED else "cuda")


def _on_gpu(problem: Problem) -> Problem:
    moved = {f: getattr(problem, f).to(DEVICE) for f in ("demand", "capacity", "demand_value", "link_cost")}
    return dataclasses.replace(problem, ops=make_path_ops(problem.paths, DEVICE, "cuda"), **moved)


def _small(objective: ObjectiveName, seed: int = 0, failed: int = 1, batch: int = 2) -> Problem:
    return random_problem(
        seed, objective=objective, num_paths=3, failed=failed, idle=0.3, nodes=4, density=0.7, batch=batch
    )


CASES = [
    (ObjectiveName.TOTAL_FLOW, True),
    (ObjectiveName.TOTAL_FLOW, False),
    (ObjectiveName.WEIGHTED_FLOW, True),
    (ObjectiveName.LATENCY_PENALISED_FLOW, True),
    (ObjectiveName.MAX_LINK_UTILISATION, True),
]


@pytest.mark.parametrize(("objective", "in_shared"), CASES)
def test_the_cuda_engine_computes_what_the_plain_engine_does(
    objective: ObjectiveName, in_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_shared:
        monkeypatch.setattr(cuda, "SHARED_BYTES", cuda.RESERVED_BYTES)
    problem = _small(objective)
    fast, plain = CudaEngine(_on_gpu(problem), None, torch.float64), PlainEngine(problem, None, torch.float64)
    for count in (1, 2):
        torch.testing.assert_close(fast.advance(count), plain.advance(count))
    carried = (problem.demand > 0)[..., None]  # the plain one also splits what is not there
    ours, theirs = fast.state(), plain.state()
    torch.testing.assert_close(ours.splits.cpu() * carried, theirs.splits * carried)
    torch.testing.assert_close(ours.prices.cpu(), theirs.prices)
    for found, expected in zip(fast.check(1), plain.check(1), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.system
def test_the_restarts_are_the_same() -> None:
    problem = _small(ObjectiveName.TOTAL_FLOW, seed=3, failed=0, batch=1)
    fast, plain = CudaEngine(_on_gpu(problem), None, torch.float64), PlainEngine(problem, None, torch.float64)
    torch.testing.assert_close(fast.advance(16), plain.advance(16))
    control = fast._buffers.control.cpu()
    assert control[kernels.TOTAL] == 16
    assert control[kernels.CYCLE] < 15, "restarted"
    torch.testing.assert_close(control[kernels.WEIGHT], plain._primal_weight)


@pytest.mark.system
def test_solve_on_the_gpu() -> None:
    problem = _small(ObjectiveName.TOTAL_FLOW, seed=1)
    found = pdhg.solve(_on_gpu(problem), gap=0.05, max_iterations=12)
    plain = pdhg.solve(problem, gap=0.05, max_iterations=12, engine="plain")
    assert found.iterations == pytest.approx(plain.iterations, abs=4)
    torch.testing.assert_close(found.value.cpu(), plain.value, rtol=0.05, atol=1e-6)
    assert float(violations(problem, found.splits.cpu()).largest.max()) < 1e-9


def test_buffers_and_graphs_serve_the_next_solve_of_the_same_shape() -> None:
    problem = _on_gpu(_small(ObjectiveName.TOTAL_FLOW, batch=1))
    first = CudaEngine(problem, None, torch.float32)
    beside = CudaEngine(problem, None, torch.float32)
    held = first._buffers
    assert beside._buffers is not held
    before = first.advance(1)
    del first
    again = CudaEngine(problem, None, torch.float32)
    assert again._buffers is held
    assert torch.equal(again.advance(1), before), "nothing of the first solve is left, and sums repeat bit by bit"


def test_a_warm_start() -> None:
    problem = _small(ObjectiveName.TOTAL_FLOW, seed=2, batch=1)
    plain = pdhg.solve(problem, gap=1e-6, engine="plain")
    engine = CudaEngine(_on_gpu(problem), PdhgState(plain.splits, plain.prices), torch.float64)
    assert engine.advance(1).item() == pytest.approx(plain.bound.item(), rel=1e-6)


def test_memory_is_known_beforehand() -> None:
    paths = _small(ObjectiveName.TOTAL_FLOW).paths
    assert bytes_needed(paths, torch.float64) > bytes_needed(paths, torch.float32) > 4 * 8 * paths.leaf.size


@pytest.mark.system
def test_a_batch_that_does_not_fit_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _small(ObjectiveName.TOTAL_FLOW)
    on_gpu = _on_gpu(problem)
    monkeypatch.setattr(cuda_engine, "max_batch", lambda *arguments, **options: 1)
    with torch.inference_mode():
        parts = pdhg.solve(on_gpu, gap=1e-9, max_iterations=1)
    assert len(on_gpu.ops.backend.spare_buffers) == 1, "the second part took the first one's buffers"  # type: ignore[attr-defined]
    for b in range(2):
        alone = pdhg.solve(problem.row(b), gap=1e-9, max_iterations=1)
        torch.testing.assert_close(parts.value[b].cpu(), alone.value[0])
    pdhg.solve(on_gpu.row(0), gap=1e-9, max_iterations=1)  # buffers made in inference mode serve outside it


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _on_gpu(_small(ObjectiveName.TOTAL_FLOW))
    monkeypatch.setattr(memory, "available_on", lambda device: 1000)
    with pytest.raises(InputError, match="num-paths"):
        pdhg.solve(problem)
