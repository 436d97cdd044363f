"""Recorded passes of models against passes without a recording, on a stand-in for a GPU whose
recorded graphs are replayed over the same memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from teal.problem import Problem
from teal.runtime import cuda
from teal.schemes import make_scheme
from teal.testing import random_problem
from tests.stand_in_gpu import stand_in_gpu

pytestmark = [
    pytest.mark.skipif(not cuda.SIMULATED, reason="counts by the simulator of numba-cuda"),
    pytest.mark.system,
    pytest.mark.usefixtures("quick_simulator"),
]

_MOST_LAUNCHES = 10  # outside of graphs: the program in, its extremes, the results out


def _made(problem: Problem, objective: str, device: str) -> Problem:
    return Problem.create(
        problem.topology,
        problem.paths,
        objective,
        problem.demand.numpy(),
        device=device,
        backend="cuda",
    )


@pytest.mark.parametrize("name", ["teal", "price-gnn:rounds=2,bound_rounds=2"])
@pytest.mark.parametrize("objective", ["total_flow", "max_link_utilisation"])
def test_a_recorded_pass_is_that_of_each_program(name: str, objective: str) -> None:
    problem = random_problem(0, num_paths=4, failed=0, idle=0.2, nodes=4, density=0.7, batch=1)
    rng = np.random.default_rng(1)
    demands = [problem.demand.numpy() * rng.uniform(0.3, 3, problem.demand.shape) for _ in range(3)]

    def started(program: Problem) -> list[list[torch.Tensor]]:
        scheme = make_scheme(name)
        found = [scheme.start(program.with_demand(one)) for one in demands]  # type: ignore[attr-defined]
        return [[numbers.cpu() for numbers in one] for one in found]

    expected = started(_made(problem, objective, "cpu").with_demand(demands[0]))
    with stand_in_gpu(has_kernels=True) as counts:
        on_gpu = _made(problem, objective, "cuda")
        found = started(on_gpu)
        scheme = make_scheme(name)
        for _ in range(2):  # the second pass is recorded
            scheme.start(on_gpu)  # type: ignore[attr-defined]
        counts.clear()
        scheme.start(on_gpu.with_demand(demands[1]))  # type: ignore[attr-defined]
        assert counts["launched"] <= _MOST_LAUNCHES
        assert counts["replayed"] == 1
    for own, other in zip(expected, found, strict=True):
        for numbers, again in zip(own, other, strict=True):
            torch.testing.assert_close(again, numbers, rtol=1e-4, atol=1e-5)
