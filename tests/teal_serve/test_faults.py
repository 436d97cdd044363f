"""Faulty requests and failing resources: the service answers with errors and goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import threading
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import httpx

from teal_serve.client import (
    InvalidRequest,
    NotReady,
    Overloaded,
    ServedAllocation,
    ServiceFault,
    Unauthorised,
    UnknownNetwork,
)
from teal_serve.engine.allocation_task import single_program_task
from teal_serve.engine.backend import EncodedRequest
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.errors import ServiceError
from teal_serve.engine.log import LOG, log_to
from teal_serve.engine.network_state import NetworkState
from teal_serve.engine.solvers import offload_if_large
from teal_serve.http.app import make_app
from tests.gate import PATIENCE_S
from tests.teal_serve.service import (
    TOKEN,
    b4_service,
    held_engine,
    queued,
    rates_of,
    run,
    service,
    until,
)
from tests.teal_serve.test_requests import JSON_TYPE, VALID_BODY

_LATER_MS = 60_000  # a deadline that even a busy machine keeps


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ("nowhere", "unknown network 'nowhere'; use node-link data, b4 or topohub"),
        ("/etc/passwd", "node-link data, b4 or topohub"),
        ("topohub:sndlib/nowhere", "topohub"),
        ({"nodes": []}, "links"),
        (
            {
                "nodes": [{"id": "a"}, {"id": "b"}],
                "links": [{"source": "a", "target": "b", "capacity": -1}],
            },
            "capacity",
        ),
    ],
)
def test_wrong_networks(tmp_path: Path, topology: Any, words: str) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:
            with pytest.raises(InvalidRequest, match=words):
                await client.put_network("x", topology)
            assert await client.networks() == []
            many = [{"id": str(i)} for i in range(5000)]
            with pytest.raises(InvalidRequest, match="at most"):
                await client.put_network(
                    "x", {"nodes": many, "links": [{"source": "0", "target": "1", "capacity": 1}]}
                )
            for name in ("..", "a%2Fb", "x" * 65, ".hidden", "a.links"):
                with pytest.raises(ServiceFault) as fault:
                    await client.put_network(name, "b4")
                assert fault.value.status in (404, 405, 422)
            assert await client.networks() == []

    run(work)


@pytest.mark.slow
def test_unknown_networks_and_ones_that_are_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, go_on = NetworkState.prepare, threading.Event()

    def held(name: str, spec: Any, *more: Any) -> NetworkState:
        assert go_on.wait(PATIENCE_S)
        if name == "bad":
            raise MemoryError("too large")
        return prepare(name, spec, *more)

    monkeypatch.setattr(NetworkState, "prepare", held)

    async def work() -> None:
        async with service(tmp_path, patience_s=0.0) as client:
            for call in (client.network, client.delete_network, client.paths):
                with pytest.raises(UnknownNetwork):
                    await call("x")
            with pytest.raises(UnknownNetwork):
                await client.allocate("x", rates_of())
            await client.put_network("b4", "b4")
            assert (await client.network("b4")).state == "computing"
            with pytest.raises(NotReady) as fault:
                await client.allocate("b4", rates_of())
            assert fault.value.retry_after_s >= 1
            await client.change_link("b4", "1", "2", up=False)  # meanwhile
            go_on.set()
            ready = await client.wait_ready("b4")
            assert sum(link.in_force == 0 for link in ready.links) == 2
            await client.put_network("bad", "b4")
            with pytest.raises(ServiceFault, match="too large"):
                await client.wait_ready("bad")
            with pytest.raises(ServiceFault, match="cannot be used"):
                await client.allocate("bad", rates_of())
            await client.delete_network("bad")
            assert await client.networks() == ["b4"]
        async with service(
            tmp_path, patience_s=PATIENCE_S
        ) as later:  # as after a restart: the request waits
            assert (await later.allocate("b4", rates_of())).value[0] > 0

    run(work)


def test_a_service_is_not_ready_while_every_network_computes_or_the_engine_hangs_or_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, go_on, solver = NetworkState.prepare, threading.Event(), AllocationEngine(tmp_path)

    def held(*arguments: Any) -> NetworkState:
        assert go_on.wait(PATIENCE_S)
        return prepare(*arguments)

    monkeypatch.setattr(NetworkState, "prepare", held)

    async def work() -> None:
        async with service(tmp_path, solver=solver) as client:

            async def readiness() -> tuple[int, str]:
                response = await client._http.get("/readyz")
                return response.status_code, response.json().get("error", "")

            assert await readiness() == (200, "")
            await client.put_network("b4", "b4")
            assert await readiness() == (503, "not_ready")
            go_on.set()
            await client.wait_ready("b4")
            assert await readiness() == (200, "")
            with monkeypatch.context() as patch, held_engine(patch) as engine:
                asking = asyncio.create_task(client.allocate("b4", rates_of()))
                await until(lambda: engine.held == 1, "a batch in the engine")
                patch.setattr("teal_serve.engine.scheduler._PROBE_PATIENCE_S", 0.01)
                solver.scheduler._busy_until = 0.0
                assert await readiness() == (503, "unavailable")
                engine.allow()
                await asking
            assert await readiness() == (200, "")
            solver.scheduler._engine_thread.shutdown()
            assert await readiness() == (503, "unavailable")
            assert (await client._http.get("/healthz")).status_code == 200

    run(work)


def test_too_many_are_turned_away_and_the_others_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = AllocationEngine(tmp_path, max_queued=5)  # four of one client

    async def work() -> None:
        async with b4_service(tmp_path, solver=solver) as client:
            # Sixteen matrices fill a batch, so that each request is a batch of its own.
            with held_engine(monkeypatch) as engine:
                calls = [
                    asyncio.create_task(client.allocate("b4", rates_of(16))) for _ in range(20)
                ]
                # One is in the engine, unless all that were let in still wait.
                await until(
                    lambda: len(engine.batches) == 1 and len(queued(solver, "b4")) >= 3,
                    "a full queue",
                )
                await until(lambda: sum(call.done() for call in calls) >= 15, "the others refused")
                engine.allow()
                ends = await asyncio.gather(*calls, return_exceptions=True)
            turned_away = [end for end in ends if isinstance(end, Overloaded)]
            answered = [end for end in ends if isinstance(end, ServedAllocation)]
            assert len(turned_away) + len(answered) == 20
            assert 4 <= len(answered) <= 5
            assert all(end.retry_after_s >= 1 for end in turned_away)
            # Deleted while three wait: those are told, and the one in the engine is answered or
            # told.
            with held_engine(monkeypatch) as engine:
                waiting = [
                    asyncio.create_task(client.allocate("b4", rates_of(16))) for _ in range(4)
                ]
                await until(
                    lambda: len(engine.batches) == 1 and len(queued(solver, "b4")) == 3,
                    "three that wait",
                )
                await client.delete_network("b4")
                engine.allow()
                ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(end, ServedAllocation | UnknownNetwork) for end in ends)
            assert sum(isinstance(end, UnknownNetwork) for end in ends) >= 3

    run(work)


def test_a_network_that_is_replaced_under_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = {"directed": True, "nodes": [{"id": "a"}, {"id": "b"}]}
    links = [
        {"source": "a", "target": "b", "capacity": 1.0},
        {"source": "b", "target": "a", "capacity": 5.0},
    ]
    first, second = {**pair, "links": links}, {**pair, "nodes": pair["nodes"][::-1], "links": links}  # type: ignore[index]

    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        await solver.put("x", {"topology": first})
        await _until_ready(solver, "x")
        known = solver._registry.get("x").spec.to_json()
        original = offload_if_large
        swapped = False

        async def late(size: int, call: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal swapped
            found = await original(size, call, *arguments, **options)
            if call.__name__ == "read_rates" and not swapped:
                swapped = True
                await solver.put("x", {"topology": second})
                await _until_ready(solver, "x")
            return found

        monkeypatch.setattr("teal_serve.engine.engine.offload_if_large", late)
        body = (
            json.dumps({"demands": [{"source": "a", "target": "b", "rate": 3.0}]}) + " " * 200_000
        )
        with pytest.raises(ServiceError, match="another registration"):
            await solver.allocate("x", EncodedRequest(body.encode(), "application/json"))
        answer, *_ = await solver.allocate("x", EncodedRequest(body.encode(), "application/json"))
        assert json.loads(answer)["allocations"][0]["value"] == pytest.approx(1.0)
        # A change of links that was meant for the first one does not touch the second.
        with pytest.raises(ServiceError, match="another registration"):
            solver._store.change_links("x", {"0": {"up": False}}, known)
        # Nor do links of the first one, should they still lie there.
        stray = {"generation": "another", "links": {"7": {"up": False}}}
        (tmp_path / "x.links.json").write_text(json.dumps(stray))
        assert (await solver.info("x"))["links"][0]["in_force"] == 1.0

    run(work)


async def _until_ready(solver: AllocationEngine, name: str) -> None:
    while (await solver.info(name))["state"] != "ready":
        await asyncio.sleep(0.02)


def test_a_request_past_its_deadline_takes_no_time_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = AllocationEngine(tmp_path)

    async def work() -> None:
        async with b4_service(tmp_path, solver=solver) as client:
            # As measured on a fast machine: on a busy one the late requests would be refused, not
            # queued.
            solver._registry.ready_state("b4").service_times.calibrate(
                single_program_task("total_flow"), 1e-6, None
            )
            hard = rates_of(size=30_000)
            with held_engine(monkeypatch) as engine:
                blocker = asyncio.create_task(client.allocate("b4", hard))
                await until(lambda: engine.batches == [1], "a batch in the engine")
                late = [
                    asyncio.create_task(client.allocate("b4", hard, gap=1e-7, deadline_ms=1))
                    for _ in range(2)
                ]
                timely = [
                    asyncio.create_task(
                        client.allocate("b4", hard, gap=1e-4, deadline_ms=_LATER_MS)
                    )
                    for _ in range(3)
                ]
                await until(lambda: len(queued(solver, "b4")) == 5, "five that wait")
                arrived = time.monotonic()
                await until(
                    lambda: time.monotonic() > arrived + 0.001, "the deadline of the late ones"
                )
                engine.allow()
                await blocker
                assert all(answer.gap[0] <= 1e-4 + 1e-9 for answer in await asyncio.gather(*timely))
                assert all(
                    answer.utilisation.max() <= 1 + 1e-6 for answer in await asyncio.gather(*late)
                )
            assert engine.batches[:3] == [
                1,
                2,
                3,
            ]  # on a busy machine a chunk may take another slice

    run(work)


def test_metrics_have_the_queue_of_each_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = AllocationEngine(tmp_path)

    async def work() -> None:
        async with service(tmp_path, solver=solver) as client:
            for name in ("b4", "other"):
                await client.put_network(name, "b4")
                await client.wait_ready(name)
            with held_engine(monkeypatch) as engine:
                calls = [asyncio.create_task(client.allocate("b4", rates_of(16))) for _ in range(3)]
                await until(
                    lambda: engine.held == 16 and queued(solver, "b4") == [16, 16], "two that wait"
                )
                text = (await client._http.get("/metrics")).text
                assert 'teal_queued_requests{network="b4"} 2.0' in text
                assert 'teal_queued_requests{network="other"} 0.0' in text
                engine.allow()
                await asyncio.gather(*calls)
            await client.delete_network("other")
            text = (await client._http.get("/metrics")).text
            assert 'teal_queued_requests{network="b4"} 0.0' in text
            assert 'teal_queued_requests{network="other"}' not in text

    run(work)


def test_cancelled_requests_are_not_solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        await solver.put("b4", {"topology": "b4"})
        await _until_ready(solver, "b4")

        def ask() -> asyncio.Task[Any]:
            return asyncio.create_task(
                solver.allocate("b4", EncodedRequest(VALID_BODY, "application/json"))
            )

        with held_engine(monkeypatch) as engine:
            first = ask()
            await until(lambda: engine.batches == [1], "a batch in the engine")
            staying = [ask() for _ in range(5)]
            leaving = ask()
            await until(lambda: len(queued(solver, "b4")) == 6, "six that wait")
            leaving.cancel()
            await until(leaving.done, "the end of the request")
            engine.allow()
            await asyncio.gather(first, *staying)
        assert engine.batches[:2] == [1, 5]

    run(work)


def test_a_token_is_required_where_there_is_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path, TOKEN) as client:
            assert await client.networks() == []
        for sent in ("invalid_request", TOKEN + "x", "ünïcode"):
            async with service(tmp_path, TOKEN) as client:
                headers = {b"Authorization": f"Bearer {sent}".encode()}
                bad = await client._http.put(
                    "/v1/networks/x", content=b"{", headers={**headers, b"Content-Type": b"x"}
                )
                assert bad.status_code == 401, "before anything is read"
                for path in ("/v1/networks", "/metrics"):
                    answer = await client._http.get(path, headers=headers)
                    assert answer.status_code == 401
                    assert answer.headers["www-authenticate"] == "Bearer"
        async with service(tmp_path, TOKEN, sent="another-token-of-some-length") as client:
            with pytest.raises(Unauthorised):
                await client.networks()
            for path in ("/healthz", "/readyz"):
                assert (await client._http.get(path)).status_code == 200

    run(work)


def test_an_error_of_ours_is_a_500_with_a_trace_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log_to(log)

    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(AllocationEngine, "allocate", broken)

    async def work() -> None:
        async with service(tmp_path / "state") as client:
            answer = await client._http.post(
                "/v1/networks/b4/allocations", content=VALID_BODY, headers=JSON_TYPE
            )
            assert answer.status_code == 500
            assert "secret" not in answer.text
            entries = [json.loads(line) for line in log.read_text().splitlines()]
            failed, answered = entries
            assert "ZeroDivisionError" in failed["trace"]
            assert failed["request"] == answered["request"] == answer.headers["x-request-id"]
            assert failed["request"] in answer.text
            assert answered["status"] == 500

    try:
        run(work)
    finally:
        for handler in LOG.handlers[:]:
            LOG.removeHandler(handler)
            handler.close()
        LOG.setLevel(logging.NOTSET)


def test_the_log_names_who_asked_for_what(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log_to(log)

    async def work() -> None:
        async with b4_service(tmp_path / "state") as client:
            body = json.dumps({"rates": rates_of().tolist(), "deadline_ms": 54_321})
            await client._http.post("/v1/networks/b4/allocations", content=body, headers=JSON_TYPE)
            await client.allocate("b4", rates_of(), deadline_ms=54_322)

    try:
        run(work)
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        plain, arrow = [entry for entry in entries if entry["route"].endswith("/allocations")]
        assert [plain["deadline_ms"], arrow["deadline_ms"]] == [54_321.0, 54_322.0]
        assert plain["network"] == "b4"
        assert plain["client"]
        assert "deadline_ms=54322" in arrow["query"]
    finally:
        for handler in LOG.handlers[:]:
            LOG.removeHandler(handler)
            handler.close()
        LOG.setLevel(logging.NOTSET)


def test_the_log_says_nothing_that_a_refused_request_wrote(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log_to(log)

    async def work() -> None:
        async with service(tmp_path / "state", token="right", sent="wrong") as client:
            path = f"/v1/networks/{'x' * 5_000}/allocations"
            answer = await client._http.post(path, content=VALID_BODY, headers=JSON_TYPE)
            assert answer.status_code == 401

    try:
        run(work)
        (entry,) = [json.loads(line) for line in log.read_text().splitlines()]
        assert entry["route"] == "/v1/networks/{name}/allocations"
        assert entry["network"] == ""
    finally:
        for handler in LOG.handlers[:]:
            LOG.removeHandler(handler)
            handler.close()
        LOG.setLevel(logging.NOTSET)


def test_the_service_accepts_its_own_host_names_and_answers_errors_as_json(tmp_path: Path) -> None:
    async def work() -> None:
        app = make_app(AllocationEngine(tmp_path), hosts=("127.0.0.1", "[::1]"))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
            assert (await http.get("/v1/networks")).status_code == 200
            assert (
                await http.get("/v1/networks", headers={"Host": "[::1]:8000"})
            ).status_code == 200
            rebound = await http.get("/v1/networks", headers={"Host": "evil.example:8000"})
            assert (rebound.status_code, rebound.json()["error"]) == (400, "wrong_host")
            for answer in (await http.get("/nowhere"), await http.post("/healthz")):
                assert answer.status_code in (404, 405, 411, 415)
                assert set(answer.json()) == {"error", "message"}
            chunked = await http.post(
                "/v1/networks/x/allocations", content=_chunks(), headers=JSON_TYPE
            )
            assert chunked.status_code == 411
            odd = await http.put(
                "/v1/networks/x", content=b'{"topology": "\\ud800"}', headers=JSON_TYPE
            )
            assert odd.status_code == 422

    async def _chunks() -> AsyncIterator[bytes]:
        yield VALID_BODY

    run(work)


def test_metrics_and_the_description(tmp_path: Path) -> None:
    async def work() -> None:
        async with b4_service(tmp_path) as client:
            await client.allocate("b4", rates_of())
            await client.put_network("gone", "b4")
            await client.wait_ready("gone")
            await client.allocate("gone", rates_of())
            await client.delete_network("gone")
            with pytest.raises(UnknownNetwork):
                await client.network("no-such-network")
            text = (await client._http.get("/metrics")).text
            assert (
                'teal_requests_total{route="/v1/networks/{name}/allocations",status="200"} 2.0'
                in text
            )
            assert 'teal_requests_total{route="/v1/networks/{name}",status="404"} 1.0' in text
            assert "no-such-network" not in text
            assert 'network="gone"' not in text
            for name in (
                "teal_solve_seconds_count 2.0",
                "teal_gap_count 2.0",
                "teal_queue_seconds_count 2.0",
            ):
                assert name in text
            assert 'teal_satisfied_demand{network="b4"}' in text
            assert (
                f'teal_build_info{{python="{platform.python_version()}",version="{version("teal-te")}"}} 1.0'
                in text
            )
            assert "process_resident_memory_bytes" in text
            assert "_created" not in text
            described = (await client._http.get("/openapi.json")).json()
            assert "/v1/networks/{name}/allocations" in described["paths"]
            assert (await client._http.get("/docs")).status_code == 200

    run(work)


def test_a_request_waits_for_paths_until_its_deadline_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, go_on = NetworkState.prepare, threading.Event()

    def held(name: str, spec: Any, *more: Any) -> NetworkState:
        assert go_on.wait(PATIENCE_S)
        return prepare(name, spec, *more)

    monkeypatch.setattr(NetworkState, "prepare", held)

    async def work() -> None:
        async with service(tmp_path, patience_s=PATIENCE_S) as client:
            await client.put_network("b4", "b4")
            with pytest.raises(NotReady) as fault:
                await client.allocate("b4", rates_of(), deadline_ms=50)
            assert fault.value.retry_after_s >= 1
            assert not go_on.is_set(), "refused while the paths are still being computed"
            go_on.set()
            await client.wait_ready("b4")

    run(work)
