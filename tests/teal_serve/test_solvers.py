"""The model alone, the model before PDHG, and PDHG alone, as requests ask for them, against linear
programs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from tests.solvers.engine_times import prefer

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import teal
from teal.problem import Problem
from teal.schemes import models
from teal.schemes.models import load_model
from teal.solvers.pdhg.model_start import ModelStart
from teal_serve.client import AsyncClient, InvalidRequest
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.requests import Options
from teal_serve.engine.responses import AllocationAnswer, RecentAllocations
from teal_serve.engine.solvers import OFFLOAD_SIZE, SOLVERS, offload_if_large
from tests.explicit import explicit_paths
from tests.teal_serve.service import b4_service, rates_of, run, service

_RATES = rates_of(2, size=30_000)
_ALLOCATIONS = "/v1/networks/b4/allocations"


def _problem(rates: np.ndarray) -> Problem:
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology, teal.network.all_pairs(topology), cache=False)
    return Problem.create(topology, paths, teal.Objective("total_flow"), rates)


def _most_flow(problem: Problem, rates: np.ndarray) -> float:
    """Gbit/s that all paths together can carry, by a linear program over the flow of each path."""
    over, of_demand = explicit_paths(problem)
    limits = np.concatenate([over, of_demand])
    most = np.concatenate([problem.topology.capacity, rates])
    return -float(linprog(-np.ones(limits.shape[1]), A_ub=limits, b_ub=most, method="highs").fun)


async def _put(client: AsyncClient) -> None:
    await client.put_network("b4", "b4", num_paths=4)
    await client.wait_ready("b4")


def test_requests_take_the_solvers_that_there_are() -> None:
    assert get_args(Options.model_fields["solver"].annotation) == SOLVERS


def test_the_model_alone_answers_with_its_own_splits_and_a_bound_that_holds(tmp_path: Path) -> None:
    problem = _problem(_RATES)
    best = np.array([_most_flow(problem, rates) for rates in _RATES])
    alone = teal.solve(
        problem, gap=1e-6, max_iterations=0, warm_start=load_model("universal").start(problem)
    )

    async def work() -> None:
        async with service(
            tmp_path, solver=AllocationEngine(tmp_path, model="universal")
        ) as client:
            await _put(client)
            found = await client.allocate("b4", _RATES, solver="model", gap=1e-6)
            assert (found.solver, set(found.status)) == ("model", {"model"})
            np.testing.assert_allclose(found.value, alone.value, rtol=1e-6)
            np.testing.assert_allclose(found.bound, alone.bound, rtol=1e-6)
            assert (found.value <= best * (1 + 1e-9)).all()
            assert (found.bound >= best * (1 - 1e-9)).all()
            assert (found.gap < 0.2).all()
            easy = await client.allocate("b4", _RATES, solver="model", gap=0.5)
            assert set(easy.status) == {"gap"}
            # Prices of a solve bound later answers of the model, too.
            await client.allocate("b4", _RATES, gap=1e-6)
            again = await client.allocate("b4", _RATES, solver="model", gap=1e-6)
            assert again.solver == "model"
            np.testing.assert_allclose(again.value, found.value, rtol=1e-6)
            np.testing.assert_allclose(again.bound, best, rtol=3e-4)
            assert (again.bound >= best * (1 - 1e-9)).all()
            assert (again.gap < found.gap).any()

    run(work)


def test_answers_say_which_solver_they_are_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "saves_time", lambda _: True)
    monkeypatch.setattr(ModelStart, "saves_time", lambda start, _: not start._is_warm)
    prefer(monkeypatch, "pdhg")

    async def work() -> None:
        async with service(
            tmp_path, solver=AllocationEngine(tmp_path, model="universal")
        ) as client:
            await _put(client)
            asked = "auto", "model-pdhg", "pdhg", "auto"
            answers = [
                await client.allocate("b4", _RATES, gap=1e-3, solver=solver) for solver in asked
            ]
            found = [answer.solver for answer in answers]
            assert found == ["model-pdhg", "model-pdhg", "pdhg", "pdhg"], (
                "there is no allocation before the first"
            )
            starts = [answer.trace[0].split(", ")[1:] for answer in answers]
            assert starts == [
                ["start from the model", "2 matrices"],
                ["start from the model", "2 matrices"],
                ["warm start", "2 matrices"],
                ["warm start", "2 matrices"],
            ]
            # A model saves no time under a min-max program.
            first, second = [
                await client.allocate("b4", _RATES, objective="max_link_utilisation")
                for _ in range(2)
            ]
            assert (first.solver, second.solver) == ("pdhg", "pdhg")
            body = {"rates": _RATES.tolist(), "solver": "model", "form": "dense"}
            answer = (await client._http.post(_ALLOCATIONS, json=body)).json()
            assert AllocationAnswer.model_validate(answer).solver == "model"
            assert answer["trace"] == ["pdhg: 0 iterations, start from the model, 2 matrices"]
            recent = RecentAllocations.model_validate((await client._http.get(_ALLOCATIONS)).json())
            assert [one.solver for one in recent.allocations][-3:] == [
                "pdhg",
                "pdhg",
                "model",
            ]

    run(work)


def test_pdhg_goes_on_from_its_last_allocation_after_the_model_alone(tmp_path: Path) -> None:
    """A request for the model in between does not make the next one start farther from the
    optimum."""

    async def work() -> None:
        solver = AllocationEngine(tmp_path, model="universal")
        async with service(tmp_path, solver=solver) as client:
            await _put(client)
            engines = solver._registry.ready_state("b4").shared.engines
            exact = await client.allocate("b4", _RATES[:1], gap=1e-4)
            states = [one._state for one in engines.values()]
            await client.allocate("b4", _RATES[:1], solver="model", gap=1e-4)
            for one, state in zip(engines.values(), states, strict=True):
                assert one._state is not None
                assert state is not None
                assert torch.equal(one._state.splits, state.splits)
            again = await client.allocate("b4", _RATES[:1], gap=1e-4)
            assert exact.gap[0] <= 1e-4
            assert again.gap[0] <= 1e-4

    run(work)


def test_a_model_that_is_not_there_or_does_not_know_the_program_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with b4_service(tmp_path / "none") as client:
            with pytest.raises(InvalidRequest, match="has no model"):
                await client.allocate("b4", _RATES, solver="model")
        async with service(
            tmp_path / "some", solver=AllocationEngine(tmp_path / "some", model="universal")
        ) as client:
            await _put(client)
            with pytest.raises(InvalidRequest, match="models do not support"):
                await client.allocate("b4", _RATES, solver="model", objective="max_min")
            with pytest.raises(InvalidRequest, match="models do not support"):
                await client.allocate("b4", {"gold": _RATES, "iron": _RATES}, solver="model-pdhg")
            with pytest.raises(InvalidRequest, match="survive failures"):
                await client.allocate("b4", _RATES, solver="model", protect="cables")
            with pytest.raises(InvalidRequest, match="solver"):
                await client.allocate("b4", _RATES, solver="simplex")
            assert (
                await client.allocate("b4", _RATES, solver="pdhg", objective="max_min")
            ).solver == "pdhg"

    run(work)


@pytest.mark.parametrize(
    ("size", "is_binary", "leaves"),
    [
        (OFFLOAD_SIZE, False, False),
        (OFFLOAD_SIZE + 1, False, True),
        (20 * OFFLOAD_SIZE, True, False),
        (20 * OFFLOAD_SIZE + 1, True, True),
    ],
)
def test_large_work_alone_leaves_the_event_loop(size: int, is_binary: bool, leaves: bool) -> None:
    async def thread() -> int:
        return int(await offload_if_large(size, threading.get_ident, is_binary=is_binary))

    assert (asyncio.run(thread()) != threading.get_ident()) is leaves
