"""What can go wrong with a request, and that the service goes on."""

from __future__ import annotations

import asyncio
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import pyarrow as pa

from teal.client import (
    ARROW,
    InvalidRequest,
    NotReady,
    Overloaded,
    ServedAllocation,
    ServiceFault,
    Unauthorised,
    UnknownNetwork,
)
from teal.serving.app import LOG, log_to
from teal.serving.served import Served
from teal.serving.solver import Solver
from tests.serving.service import TOKEN, rates_of, run, service

GOOD = json.dumps({"demands": [{"source": "1", "target": "2", "rate": 1.0}]}).encode()
JSON_TYPE = {"Content-Type": "application/json"}


def _arrow(columns: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("status", "words", "body", "headers"),
    [
        (422, "Invalid JSON", b"{", JSON_TYPE),
        (422, "body", b"", JSON_TYPE),
        (422, "demands or rates", b"{}", JSON_TYPE),
        (422, "no node 'mars'", GOOD.replace(b'"2"', b'"mars"'), JSON_TYPE),
        (422, "to itself", GOOD.replace(b'"2"', b'"1"'), JSON_TYPE),
        (422, "greater than or equal to 0", GOOD.replace(b"1.0", b"-1"), JSON_TYPE),
        (422, "demands.0.rate", GOOD.replace(b"1.0", b"NaN"), JSON_TYPE),
        (422, "demands.0.rate", GOOD.replace(b"1.0", b"1e999"), JSON_TYPE),
        (422, "once a matrix", json.dumps({"demands": 2 * json.loads(GOOD)["demands"]}).encode(), JSON_TYPE),
        (422, "not 3", b'{"rates": [[1, 2, 3]]}', JSON_TYPE),
        (422, "of one length", b'{"rates": [[1], [1, 2]]}', JSON_TYPE),
        (422, "of one length", b'{"rates": []}', JSON_TYPE),
        (422, "gap", GOOD[:-1] + b', "gap": 2}', JSON_TYPE),
        (422, "deadline_ms", GOOD[:-1] + b', "deadline_ms": 0}', JSON_TYPE),
        (422, "objective", GOOD[:-1] + b', "objective": "fame"}', JSON_TYPE),
        (422, "extra", GOOD[:-1] + b', "extra": 1}', JSON_TYPE),
        (415, "unsupported_media_type", GOOD, {"Content-Type": "text/plain"}),
        (422, "Arrow IPC", b"rubbish", {"Content-Type": ARROW}),
        (422, "columns", _arrow({"x": [1]}), {"Content-Type": ARROW}),
        (422, "finite", _arrow({"rates": [[float("nan")] * 132]}), {"Content-Type": ARROW}),
        (422, "finite", _arrow({"rates": [[-1.0] * 132]}), {"Content-Type": ARROW}),
        (422, "not 5", _arrow({"rates": [[1.0] * 5]}), {"Content-Type": ARROW}),
        (422, "1 to 1024", _arrow({"rates": pa.array([], pa.list_(pa.float64()))}), {"Content-Type": ARROW}),
        (422, "Arrow IPC", _arrow({"rates": [["a"] * 132]}), {"Content-Type": ARROW}),
        (422, "null", _arrow({"source": ["1"], "target": ["2"], "rate": [None]}), {"Content-Type": ARROW}),
        (
            422,
            "matrix",
            _arrow({"source": ["1"], "target": ["2"], "rate": [1.0], "matrix": [10**9]}),
            {"Content-Type": ARROW},
        ),
        (413, "at most", b"x" * (1 << 20) + b"x", JSON_TYPE),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(
    tmp_path: Path, status: int, words: str, body: bytes, headers: dict[str, str]
) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4")
            await client.wait_ready("b4")
            answer = await client._http.post("/v1/networks/b4/allocations", content=body, headers=headers)
            assert answer.status_code == status, answer.text
            said = answer.json()
            assert set(said) == {"error", "message"}
            assert words in said["error"] + said["message"]
            good = await client._http.post("/v1/networks/b4/allocations", content=GOOD, headers=JSON_TYPE)
            assert good.status_code == 200, "and the service goes on"

    run(work)


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ("nowhere", "node-link data, b4 or topohub"),
        ("/etc/passwd", "node-link data, b4 or topohub"),
        ("topohub:sndlib/nowhere", "topohub"),
        ({"nodes": []}, "links"),
        ({"nodes": [{"id": "a"}, {"id": "b"}], "links": [{"source": "a", "target": "b", "capacity": -1}]}, "capacity"),
    ],
)
def test_wrong_networks(tmp_path: Path, topology: Any, words: str) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:
            with pytest.raises(InvalidRequest, match=words):
                await client.put_network("x", topology)
            assert await client.networks() == []
            for name in ("..", "a%2Fb", "x" * 65, ".hidden", "a.links"):
                with pytest.raises(ServiceFault) as fault:
                    await client.put_network(name, "b4")
                assert fault.value.status in (404, 405, 422)
            assert await client.networks() == []

    run(work)


def test_unknown_networks_and_ones_that_are_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Served.prepare

    def slowly(name: str, spec: Any) -> Served:
        time.sleep(0.3)
        if name == "bad":
            raise MemoryError("too large")
        return prepare(name, spec)

    monkeypatch.setattr(Served, "prepare", slowly)

    async def work() -> None:
        async with service(tmp_path, patience_s=0.0) as client:
            for call in (client.network, client.delete_network, client.paths):
                with pytest.raises(UnknownNetwork):
                    await call("x")
            with pytest.raises(UnknownNetwork):
                await client.allocate("x", rates_of())
            await client.put_network("b4", "b4")
            assert (await client.network("b4"))["state"] == "computing"
            with pytest.raises(NotReady) as fault:
                await client.allocate("b4", rates_of())
            assert fault.value.retry_after_s >= 1
            await client.change_link("b4", "1", "2", up=False)  # meanwhile
            ready = await client.wait_ready("b4")
            assert sum(link["in_force"] == 0 for link in ready["links"]) == 2
            await client.put_network("bad", "b4")
            with pytest.raises(ServiceFault, match="too large"):
                await client.wait_ready("bad")
            with pytest.raises(ServiceFault, match="cannot be used"):
                await client.allocate("bad", rates_of())
            await client.delete_network("bad")
            assert await client.networks() == ["b4"]
        async with service(tmp_path, patience_s=20.0) as later:  # as after a restart: the request waits
            assert (await later.allocate("b4", rates_of())).value[0] > 0

    run(work)


def test_too_many_are_turned_away_and_the_others_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = Served.solve

    def slowly(self: Served, job: Any) -> Any:
        time.sleep(0.2)
        return solve(self, job)

    monkeypatch.setattr(Served, "solve", slowly)

    async def work() -> None:
        async with service(tmp_path, most_waiting=4) as client:
            await client.put_network("b4", "b4")
            await client.wait_ready("b4")
            calls = [client.allocate("b4", rates_of(16)) for _ in range(20)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            turned_away = [f for f in found if isinstance(f, Overloaded)]
            answered = [f for f in found if isinstance(f, ServedAllocation)]
            assert len(turned_away) + len(answered) == 20
            assert 4 <= len(answered) <= 6
            assert all(f.retry_after_s >= 1 for f in turned_away)
            # Deleted while they wait: told so, and the one in the engine is answered or told.
            waiting = [asyncio.create_task(client.allocate("b4", rates_of(16))) for _ in range(4)]
            await asyncio.sleep(0.05)
            await client.delete_network("b4")
            ends = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(end, ServedAllocation | UnknownNetwork) for end in ends)
            assert any(isinstance(end, UnknownNetwork) for end in ends)

    run(work)


def test_those_who_left_are_not_computed_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solved: list[int] = []
    solve = Served.solve

    def slowly(self: Served, job: Any) -> Any:
        time.sleep(0.2)
        solved.append(len(job.rates))
        return solve(self, job)

    monkeypatch.setattr(Served, "solve", slowly)

    async def work() -> None:
        solver = Solver(tmp_path)
        await solver.put("b4", {"topology": "b4"})
        while (await solver.info("b4"))["state"] != "ready":
            await asyncio.sleep(0.05)
        calls = [asyncio.create_task(solver.allocate("b4", GOOD, "application/json", "", {})) for _ in range(6)]
        await asyncio.sleep(0.05)
        later = asyncio.create_task(solver.allocate("b4", GOOD, "application/json", "", {}))
        await asyncio.sleep(0.05)
        later.cancel()
        await asyncio.gather(*calls)
        await asyncio.sleep(0.3)
        assert sum(solved) == 6

    run(work)


def test_a_token_is_required_where_there_is_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path, TOKEN) as client:
            assert await client.networks() == []
        for sent in ("wrong", TOKEN + "x", "ünïcode"):
            async with service(tmp_path, TOKEN) as client:
                headers = {b"Authorization": f"Bearer {sent}".encode()}
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


def test_an_error_of_ours_is_a_500_with_a_trace_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log_to(log)

    async def broken(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(Solver, "allocate", broken)

    async def work() -> None:
        async with service(tmp_path / "state") as client:
            answer = await client._http.post("/v1/networks/b4/allocations", content=GOOD, headers=JSON_TYPE)
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


def test_metrics_and_the_description(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4")
            await client.wait_ready("b4")
            await client.allocate("b4", rates_of())
            with pytest.raises(UnknownNetwork):
                await client.network("no-such-network")
            text = (await client._http.get("/metrics")).text
            assert 'teal_requests_total{route="/v1/networks/{name}/allocations",status="200"} 1.0' in text
            assert 'teal_requests_total{route="/v1/networks/{name}",status="404"} 1.0' in text
            assert "no-such-network" not in text
            for name in ("teal_solve_seconds_count 1.0", "teal_gap_count 1.0", "teal_queue_seconds_count 1.0"):
                assert name in text
            assert 'teal_satisfied_demand{network="b4"}' in text
            described = (await client._http.get("/openapi.json")).json()
            assert "/v1/networks/{name}/allocations" in described["paths"]
            assert (await client._http.get("/docs")).status_code == 200

    run(work)
