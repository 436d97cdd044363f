"""Recorded passes of models against passes without a recording, on a GPU, or on a stand-in for one
whose recorded graphs are replayed over the same memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from teal.nn.checkpoint import new_flow_model
from teal.nn.flow_gnn_config import UNIVERSAL, FlowGnnConfig
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig
from teal.problem import Allocation, Problem
from teal.runtime import cuda
from teal.schemes.flow_gnn import FlowGnnScheme
from teal.schemes.price_gnn import PriceGnnScheme
from teal.testing import assert_feasible, random_problem
from tests.stand_in_gpu import PLAIN, any_gpu, without_recordings

pytestmark = [
    pytest.mark.system,
    pytest.mark.usefixtures("quick_simulator"),
]

_MOST_LAUNCHES = 10  # outside of graphs: the program in, its extremes, the results out


def _made(problem: Problem, objective: str, device: str, backend: str = "cuda") -> Problem:
    return Problem.create(
        problem.topology,
        problem.paths,
        objective,
        problem.demand.numpy(),
        device=device,
        backend=backend,
    )


def _scheme(name: str, device: str) -> FlowGnnScheme | PriceGnnScheme:
    """A scheme with small random weights."""
    torch.manual_seed(0)
    if name == "teal":
        return FlowGnnScheme(new_flow_model(FlowGnnConfig(3, 1, 4, UNIVERSAL)).to(device))
    return PriceGnnScheme(PriceGNN(PriceGnnConfig(8, 2, 2)).to(device))


@pytest.mark.parametrize("name", ["teal", "price-gnn"])
@pytest.mark.parametrize("objective", ["total_flow", "max_link_utilisation"])
def test_a_recorded_pass_is_that_of_each_program(name: str, objective: str) -> None:
    problem = random_problem(0, num_paths=3, failed=0, idle=0.2, nodes=4, density=0.7, batch=1)
    rng = np.random.default_rng(1)
    demands = [problem.demand.numpy() * rng.uniform(0.3, 3, problem.demand.shape) for _ in range(3)]

    def started(device: str) -> list[list[torch.Tensor]]:
        program, scheme = _made(problem, objective, device), _scheme(name, device)
        found = []
        for demand in demands:
            counts.clear()
            found.append([one.cpu() for one in scheme.start(program.with_demand(demand))])
        return found

    counts: Counter[str] = Counter()
    with without_recordings():
        expected = started(PLAIN)
    with any_gpu() as counts:  # noqa: F811  # the one that is cleared
        found = started("cuda")
        if cuda.SIMULATED:
            assert counts["launched"] <= _MOST_LAUNCHES
            assert counts["replayed"] == 1
    for own, other in zip(expected, found, strict=True):
        for numbers, again in zip(own, other, strict=True):
            torch.testing.assert_close(again, numbers, rtol=1e-4, atol=1e-5)


def test_model_and_repair_are_one_graph_and_allocate_as_on_the_cpu() -> None:
    """Passes, ADMM, projection, bounds and the choice of the better results, with a failed link,
    beside compiled passes and the solver's own check."""
    problem = random_problem(3, num_paths=2, failed=1, nodes=4, density=0.7, batch=1)
    rng = np.random.default_rng(1)
    demands = [problem.demand.numpy() * rng.uniform(0.3, 3, problem.demand.shape) for _ in range(3)]
    counts: Counter[str] = Counter()

    def allocated(device: str) -> list[Allocation]:
        backend = "cuda" if device == "cuda" else "auto"
        program = _made(problem, "total_flow", device, backend).with_capacity(problem.capacity)
        scheme = _scheme("teal", device)
        found = [scheme.solve(program.with_demand(one)) for one in demands[:-1]]
        counts.clear()
        return [*found, scheme.solve(program.with_demand(demands[-1]))]

    expected = allocated("cpu")
    with any_gpu() as counts:  # noqa: F811  # the one that is cleared
        found = allocated("cuda")
        if cuda.SIMULATED:
            assert counts["launched"] <= _MOST_LAUNCHES
            assert counts["replayed"] == 1
            assert counts["read"] + counts["copied"] == 1, "the extremes of the program"
    for own, other, demand in zip(expected, found, demands, strict=True):
        assert own.prices is not None
        assert other.prices is not None
        on_cpu = Allocation.of_batch(other.splits.cpu(), other.prices.cpu(), 0.0)
        assert_feasible(problem.with_demand(demand), on_cpu)
        torch.testing.assert_close(on_cpu.splits, own.splits, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(on_cpu.prices, own.prices, rtol=1e-3, atol=1e-4)


def test_programs_that_the_solver_reduces_are_not_allocated_in_one_graph() -> None:
    """The reduction raises prices where a demand is beyond all that its paths can carry."""
    problem = _made(random_problem(3, num_paths=3, nodes=4, batch=3), "total_flow", PLAIN)
    scheme = _scheme("teal", PLAIN)
    assert isinstance(scheme, FlowGnnScheme)
    assert scheme._can_record_repair(problem)
    assert not scheme._can_record_repair(problem.with_demand(1e6 * problem.demand))
    assert not scheme._can_record_repair(_made(problem, "max_link_utilisation", PLAIN))
