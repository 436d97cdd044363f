"""A new model in the folder of a running service: usable ones are loaded, others refused, and no
request fails."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import httpx

from teal.nn.checkpoint import MODEL_CARD, MODEL_WEIGHTS, PriceGnnCard, save_price_gnn
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig
from teal.schemes import models
from teal.schemes.successive import SuccessivePdhg
from teal_serve.client import AsyncClient, UnknownNetwork
from teal_serve.engine import model as model_module
from teal_serve.engine.engine import AllocationEngine
from teal_serve.http.app import make_app
from tests.teal_serve.service import rates_of, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        models, "saves_time", lambda _: True
    )  # so that solves of B4 start from the model
    monkeypatch.setattr(model_module, "_CHECK_INTERVAL_S", 0.0)
    save(tmp_path / "model", 0)
    return tmp_path / "model"


def save(folder: Path, seed: int, factor: float = 1.0) -> None:
    torch.manual_seed(seed)
    model = PriceGNN(PriceGnnConfig())
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(factor)
    folder.mkdir(exist_ok=True)
    save_price_gnn(folder, model, PriceGnnCard(PriceGnnConfig(), 4, 1, (), seed, 0, 0.0))


def test_models_are_replaced_under_load_without_a_failed_request(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starters: list[Any] = []

    solving = SuccessivePdhg.solving

    def solve_without_state(self: SuccessivePdhg, *arguments: Any, **options: Any) -> Any:
        starters.append(options["starter"])
        return solving(
            SuccessivePdhg(), *arguments, **options
        )  # without an earlier state, so that the solve starts from the model

    monkeypatch.setattr(SuccessivePdhg, "solving", solve_without_state)
    solver = AllocationEngine(tmp_path / "networks", model=str(folder))
    transport = httpx.ASGITransport(make_app(solver))

    async def work() -> None:
        async with AsyncClient("http://test", transport=transport) as client:

            async def model() -> dict[str, Any]:
                return dict((await client._http.get("/v1/model")).json())

            async def until(condition: Any) -> dict[str, Any]:
                for _ in range(500):
                    if condition(status := await model()):
                        return status
                    await asyncio.sleep(0.02)
                raise AssertionError(status)

            await client.put_network("b4", "b4")
            await client.wait_ready("b4")
            first = await model()
            assert len(first["loaded_version"]) == 12
            assert first["last_error"] == ""
            num_responses, stopped = [0], asyncio.Event()

            async def load(seed: int) -> None:
                while not stopped.is_set():
                    allocation = await client.allocate("b4", rates_of(1, seed))
                    assert allocation.gap[0] <= 0.01
                    num_responses[0] += 1

            clients = [asyncio.create_task(load(seed)) for seed in range(4)]
            save(folder, 1)
            second = await until(lambda status: status["loaded_version"] != first["loaded_version"])
            assert second["last_error"] == ""

            weights = (folder / MODEL_WEIGHTS).read_bytes()
            (folder / MODEL_WEIGHTS).write_bytes(weights[:1000])  # an incomplete copy
            refused = await until(lambda status: status["last_error"])
            assert refused["loaded_version"] == second["loaded_version"]
            (folder / MODEL_WEIGHTS).unlink()
            (folder / MODEL_WEIGHTS).write_bytes(weights)
            await until(lambda status: not status["last_error"])

            save(folder, 2, factor=1e30)  # finite weights whose results are not finite
            refused = await until(lambda status: status["last_error"])
            assert refused["loaded_version"] == second["loaded_version"]
            save(folder, 3)
            third = await until(lambda status: not status["last_error"])
            assert third["loaded_version"] not in (
                first["loaded_version"],
                second["loaded_version"],
            )
            before = num_responses[0]
            while num_responses[0] < before + 8:
                await asyncio.sleep(0.01)
            stopped.set()
            await asyncio.gather(*clients)  # raises the error of any client
            models = [starter.model for starter in starters if starter is not None]
            assert len({id(model) for model in models}) >= 3, (
                "solves have started from all three models"
            )
            assert models[-1] is solver._model.starter

    run(work)


def test_a_service_starts_despite_a_damaged_model_and_loads_its_replacement(
    folder: Path, tmp_path: Path
) -> None:
    (folder / MODEL_CARD).write_text("{}")
    solver = AllocationEngine(tmp_path / "networks", model=str(folder))

    async def work() -> None:
        assert (await solver.model())["last_error"]
        save(folder, 0)
        os.utime(folder / MODEL_CARD)
        for _ in range(500):
            if (await solver.model())["loaded_version"]:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(await solver.model())

    run(work)


def test_model_files_are_checked_once_a_second_at_most(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "_CHECK_INTERVAL_S", 60.0)
    solver = AllocationEngine(folder.parent / "networks", model=str(folder))
    save(folder, 1)
    checks: list[float] = []

    def stamp(_: model_module.ReloadableModel) -> list[tuple[int, int, int]]:
        checks.append(time.monotonic())
        return []

    monkeypatch.setattr(model_module.ReloadableModel, "_fingerprint", stamp)
    for _ in range(100):
        solver._model.current()
    assert checks == []


def test_requests_that_name_no_solver_are_answered_by_the_solver_of_the_service(
    folder: Path, tmp_path: Path
) -> None:
    """What the model does not know, classes of demands, is solved without it."""
    solver = AllocationEngine(tmp_path / "networks", model=str(folder), default_solver="model-pdhg")

    async def work() -> None:
        transport = httpx.ASGITransport(make_app(solver))
        async with AsyncClient("http://test", transport=transport) as client:
            await client.put_network("b4", "b4")
            await client.wait_ready("b4")

            async def answered_by(**options: Any) -> str:
                matrices = 2 if "classes" in options else 1
                return (await client.allocate("b4", rates_of(matrices, 0), **options)).solver

            assert await answered_by() == "model-pdhg"
            assert await answered_by(solver="pdhg") == "pdhg"
            assert await answered_by(solver="model") == "model"
            assert await answered_by(classes=["gold", "silver"]) == "pdhg"
            assert (await client._http.get("/v1/model")).json()["solver"] == "model-pdhg"
            with pytest.raises(UnknownNetwork, match="registered are b4"):
                await client.allocate("b5", rates_of(1, 0))

    run(work)


def test_model_files_that_cannot_be_looked_at_for_a_while_cost_no_request(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AllocationEngine(tmp_path / "networks", model=str(folder))._model
    starter = model.current()
    assert starter is not None

    def refused(path: Path, **options: Any) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refused)
    assert model.current() is starter
