"""The CUDA engine against the plain engine; without a GPU, in numba-cuda's simulator."""

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
from teal.solvers import pipeline
from teal.solvers.pdhg.cuda import engine as cuda_engine
from teal.solvers.pdhg.cuda import kernels
from teal.solvers.pdhg.cuda.engine import CudaEngine
from teal.solvers.pdhg.dense import bytes_needed
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.result import SolveState
from teal.testing import random_problem

# The simulator takes a second for each iteration.
pytestmark = [pytest.mark.system, pytest.mark.usefixtures("quick_simulator")]

DEVICE = torch.device("cpu" if cuda.SIMULATED else "cuda")


def _on_gpu(problem: Problem) -> Problem:
    moved = {
        f: getattr(problem, f).to(DEVICE)
        for f in ("demand", "capacity", "demand_value", "link_cost")
    }
    return dataclasses.replace(problem, ops=make_path_ops(problem.paths, DEVICE, "cuda"), **moved)


def _small(objective: ObjectiveName, seed: int = 0, failed: int = 1, batch: int = 2) -> Problem:
    return random_problem(
        seed,
        objective=objective,
        num_paths=3,
        failed=failed,
        idle=0.3,
        nodes=4,
        density=0.7,
        batch=batch,
    )


CASES = [
    (ObjectiveName.TOTAL_FLOW, True),
    (ObjectiveName.TOTAL_FLOW, False),
    (ObjectiveName.WEIGHTED_FLOW, True),
    (ObjectiveName.LATENCY_PENALISED_FLOW, True),
    (ObjectiveName.MAX_LINK_UTILISATION, True),
]


@pytest.mark.parametrize(("objective", "in_shared"), CASES)
def test_the_cuda_engine_equals_the_plain_engine(
    objective: ObjectiveName, in_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_shared:
        monkeypatch.setattr(cuda, "SHARED_BYTES", cuda.RESERVED_BYTES)
    problem = _small(objective)
    engine = CudaEngine(_on_gpu(problem), None, torch.float64)
    plain = PlainEngine(problem, None, torch.float64)
    for count in (1, 2):
        torch.testing.assert_close(engine.advance(count), plain.advance(count))
    carried = (problem.demand > 0)[..., None]  # the plain engine also splits demands of 0
    cuda_state = engine.state()
    plain_state = plain.state()
    torch.testing.assert_close(cuda_state.splits.cpu() * carried, plain_state.splits * carried)
    torch.testing.assert_close(cuda_state.prices.cpu(), plain_state.prices)
    for actual, expected in zip(engine.check(1), plain.check(1), strict=True):
        torch.testing.assert_close(actual, expected)


def test_the_cuda_engine_steps_every_matrix_by_its_own_capacities() -> None:
    problem = _small(ObjectiveName.TOTAL_FLOW, failed=0)
    factors = torch.linspace(0.2, 5, problem.topology.num_links, dtype=torch.float64)
    problem = problem.with_capacity(
        torch.stack([problem.capacity[0], factors * problem.capacity[0]])
    )
    engine = CudaEngine(_on_gpu(problem), None, torch.float64)
    plain = PlainEngine(problem, None, torch.float64)
    torch.testing.assert_close(engine.advance(2), plain.advance(2))
    carried = (problem.demand > 0)[..., None]
    torch.testing.assert_close(
        engine.state().splits.cpu() * carried, plain.state().splits * carried
    )


@pytest.mark.parametrize(
    "objective", [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION]
)
def test_restarts_of_the_cuda_engine_equal_those_of_the_plain_engine(
    objective: ObjectiveName,
) -> None:
    problem = _small(objective, seed=3, failed=0, batch=1)
    engine = CudaEngine(_on_gpu(problem), None, torch.float64)
    plain = PlainEngine(problem, None, torch.float64)
    torch.testing.assert_close(engine.advance(16), plain.advance(16))
    control = engine._recorded.buffers.control.cpu()
    assert control[kernels.TOTAL] == 16
    assert control[kernels.CYCLE_ITERATIONS] < 15, "the engine has restarted"
    torch.testing.assert_close(control[kernels.WEIGHT], plain._primal_weight)


def test_pdhg_on_the_gpu_agrees_with_the_plain_engine() -> None:
    problem = _small(ObjectiveName.TOTAL_FLOW, seed=1)
    solution = pipeline.solve(_on_gpu(problem), gap=0.05, max_iterations=12)
    plain = pipeline.solve(problem, gap=0.05, max_iterations=12, engine="plain")
    assert solution.iterations == pytest.approx(plain.iterations, abs=4)
    torch.testing.assert_close(solution.value.cpu(), plain.value, rtol=0.05, atol=1e-6)
    assert float(violations(problem, solution.splits.cpu()).largest.max()) < 1e-9


def test_cuda_buffers_are_reused_by_the_next_solve_of_the_same_shape() -> None:
    problem = _on_gpu(_small(ObjectiveName.TOTAL_FLOW, batch=1))
    first = CudaEngine(problem, None, torch.float32)
    second = CudaEngine(problem, None, torch.float32)
    buffers = first._recorded
    assert second._recorded is not buffers
    bound = first.advance(1)
    del first
    third = CudaEngine(problem, None, torch.float32)
    assert third._recorded is buffers
    assert CudaEngine(problem, None, torch.float32)._recorded is not buffers, (
        "they are in use again"
    )
    assert torch.equal(third.advance(1), bound), (
        "reused buffers keep nothing of the first solve, and sums repeat bit by bit"
    )


def test_a_warm_start_of_the_cuda_engine_keeps_the_bound_of_its_prices() -> None:
    problem = _small(ObjectiveName.TOTAL_FLOW, seed=2, batch=1)
    plain = pipeline.solve(problem, gap=1e-6, engine="plain")
    engine = CudaEngine(_on_gpu(problem), SolveState(plain.splits, plain.prices), torch.float64)
    assert engine.advance(1).item() == pytest.approx(plain.bound.item(), rel=1e-6)


def test_the_estimate_of_gpu_memory_grows_with_the_precision() -> None:
    paths = _small(ObjectiveName.TOTAL_FLOW).paths
    assert (
        bytes_needed(paths, torch.float64)
        > bytes_needed(paths, torch.float32)
        > 4 * 8 * paths.leaf.size
    )


def test_a_batch_that_does_not_fit_on_the_gpu_is_solved_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = _small(ObjectiveName.TOTAL_FLOW)
    on_gpu = _on_gpu(problem)
    monkeypatch.setattr(cuda_engine, "max_batch", lambda *arguments, **options: 1)
    with torch.inference_mode():
        parts = pipeline.solve(on_gpu, gap=1e-9, max_iterations=1)
    spare_buffers = on_gpu.ops.backend.spare_buffers  # type: ignore[attr-defined]
    assert len(spare_buffers) == 1, "the second part reused the buffers of the first"
    for b in range(2):
        single = pipeline.solve(problem.row(b), gap=1e-9, max_iterations=1)
        torch.testing.assert_close(parts.value[b].cpu(), single.value[0])
    # buffers made in inference mode are usable outside it
    pipeline.solve(on_gpu.row(0), gap=1e-9, max_iterations=1)


def test_too_little_gpu_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _on_gpu(_small(ObjectiveName.TOTAL_FLOW))
    monkeypatch.setattr(memory, "available_on", lambda device: 1000)
    with pytest.raises(InputError, match="num-paths"):
        pipeline.solve(problem)
