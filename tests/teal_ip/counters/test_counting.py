"""Estimates that never end, against what else a service must answer meanwhile, and which others it
takes in."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal_ip.counters.service import Counting, Interval, interval_of
from teal_serve.client import AsyncClient, Overloaded, ServiceFault
from teal_serve.client.results import Measured
from teal_serve.engine.engine import AllocationEngine
from tests.teal_ip.counters.test_service import BEGIN, IGP, _readings, _series, _time
from tests.teal_serve.service import rates_of, run, service, until

_TOKENS = "the-first-token-of-two", "the-second-token-of-two"


class _Endless:
    """Capacities that the process for counters never has done with."""

    def __gt__(self, other: object) -> bool:
        while True:
            time.sleep(0.005)


def _never_ends(*arguments: Any) -> Interval:
    return interval_of(*arguments)._replace(capacity=_Endless())  # type: ignore[arg-type]


async def _count(client: AsyncClient, row: int = 1, **options: Any) -> Measured:
    return await client.measure_counters(
        "b4", _time(row), *_readings(IGP @ _series(2)[1]), **options
    )


def _counting(solver: AllocationEngine) -> Counting:
    counting = solver._counting_part
    assert isinstance(counting, Counting)
    return counting


def _estimating(solver: AllocationEngine) -> bool:
    process = _counting(solver)._process
    return bool(process and process.paths_by_network)


@pytest.mark.system
def test_nothing_waits_for_estimates_and_none_is_made_for_clients_that_have_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = AllocationEngine(tmp_path, max_queued=40)

    async def work() -> None:
        async with service(tmp_path, solver=solver, tokens=_TOKENS, sent=_TOKENS[0]) as client:
            await client.put_network("b4", "b4", objective="max_link_utilisation", num_paths=4)
            await client.wait_ready("b4")
            await client.measure("b4", _series(1), BEGIN)
            with monkeypatch.context() as patch:
                patch.setattr(Counting, "interval_of", staticmethod(_never_ends))
                counting = [asyncio.create_task(_count(client)) for _ in range(40)]
                await until(
                    lambda: _estimating(solver) and sum(task.done() for task in counting) == 10,
                    "an estimate",
                )
            refused = [task for task in counting if task.done()]
            assert all(isinstance(task.exception(), Overloaded) for task in refused), (
                "three quarters are one client's"
            )
            await client.change_link("b4", "1", "2", up=False)
            assert (await client.allocate_next("b4")).status == ("next",)
            assert (await client.allocate("b4", rates_of())).status == ("gap",)
            assert (await client._http.get("/healthz")).status_code == 200
            assert sum(task.done() for task in counting) == 10, (
                "the others wait for the first estimate"
            )
            for task in counting:
                task.cancel()
            await asyncio.wait(counting)
            assert (await _count(client)).matrices == 2

    run(work)


@pytest.mark.slow
def test_an_estimate_that_is_not_there_by_the_deadline_is_refused_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = AllocationEngine(tmp_path)

    async def work() -> None:
        async with service(tmp_path, solver=solver) as client:
            await client.put_network("b4", "b4", num_paths=4)
            await client.wait_ready("b4")
            with monkeypatch.context() as patch:
                patch.setattr(Counting, "interval_of", staticmethod(_never_ends))
                with pytest.raises(Overloaded) as refused:
                    await _count(client, deadline_ms=20)
            assert refused.value.retry_after_s >= 1
            assert (await _count(client)).matrices == 1

    run(work)


@pytest.mark.system
def test_counters_go_on_after_the_end_of_their_process(tmp_path: Path) -> None:
    solver = AllocationEngine(tmp_path)

    async def work() -> None:
        async with service(tmp_path, solver=solver) as client:
            await client.put_network("b4", "b4", num_paths=4)
            await client.wait_ready("b4")
            assert (await _count(client, 1)).matrices == 1
            process = _counting(solver)._process
            assert process is not None
            os.kill(process._process.pid or 0, 9)
            with pytest.raises(ServiceFault, match="has ended; try again") as fault:
                await _count(client, 2)
            assert fault.value.status == 503
            assert (await _count(client, 2)).matrices == 2

    run(work)


@pytest.mark.slow
def test_an_estimate_that_would_be_late_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = AllocationEngine(tmp_path)

    async def work() -> None:
        async with service(tmp_path, solver=solver) as client:
            await client.put_network("b4", "b4", num_paths=4)
            await client.wait_ready("b4")
            _counting(solver)._service_times[solver._registry.get("b4").generation] = 400.0
            with monkeypatch.context() as patch:
                patch.setattr(Counting, "interval_of", staticmethod(_never_ends))
                first = asyncio.create_task(_count(client, deadline_ms=600_000))
                await until(lambda: _estimating(solver), "an estimate")
                with pytest.raises(Overloaded) as refused:
                    await _count(client, deadline_ms=600_000)
            assert refused.value.retry_after_s >= 350, (
                "both are one client's: 800 s of three quarters of 600"
            )
            first.cancel()
            await asyncio.wait({first})

    run(work)
