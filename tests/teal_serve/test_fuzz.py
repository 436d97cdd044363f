"""Generated, mutated and slow requests: no response is a 500, and the service still allocates
afterwards."""

from __future__ import annotations

import asyncio
import collections
import errno
import io
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("schemathesis", reason="needs schemathesis: pip install '.[dev]'")
pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error

from teal.runtime import storage
from teal_serve.client import ARROW, Client
from tests.teal_serve.service import b4_service, listening, run

LINE = {
    "directed": True,
    "nodes": [{"id": "a"}, {"id": "b"}],
    "links": [
        {"source": "a", "target": "b", "capacity": 2.0},
        {"source": "b", "target": "a", "capacity": 2.0},
    ],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with listening(tmp_path_factory.mktemp("networks"), max_bytes=1 << 16) as url:
        yield url


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # schemathesis does
@pytest.mark.system
def test_no_request_causes_a_server_error(address: str) -> None:
    schemathesis.serializer.alias(ARROW, "application/octet-stream")
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations: list[Any] = [operation.ok() for operation in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) >= 10
    statuses: dict[str, set[int]] = {}
    numbers = (
        itertools.count()
    )  # of the requests: what is changed in one goes by its number, whatever was generated
    with Client(address) as client:
        for operation in operations:

            @given(case=operation.as_strategy())
            @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
            def check(case: Any) -> None:
                number = next(numbers)
                if (
                    "{name}" in case.path and number % 2
                ):  # half of the requests name an existing network
                    client.put_network("line", LINE)
                    client.wait_ready("line")
                    case.path_parameters = {**case.path_parameters, "name": "line"}
                    if isinstance(case.body, dict) and case.method == "POST" and number % 8 != 1:
                        # The description cannot state the number of rates, which is 2 here.
                        case.body = {k: v for k, v in case.body.items() if k != "demands"} | {
                            "rates": [[1.0, 2.0]]
                        }
                response = case.call_and_validate(checks=[not_a_server_error])
                statuses.setdefault(case.operation.label, set()).add(response.status_code)
                if isinstance(case.body, dict) and case.body.get("rates") == [[1.0, 2.0]]:
                    # Again, with what fits together.
                    kept = ("gap", "form", "objective", "entries", "rates")
                    case.body, case.query = {k: v for k, v in case.body.items() if k in kept}, {}
                    if not case.body.get("objective") and number % 4 == 3:
                        case.body |= {"classes": ["gold", "lead"], "rates": 2 * case.body["rates"]}
                    elif case.body.get("objective") in (None, "total_flow") and not case.body.get(
                        "entries"
                    ):
                        case.body |= {"protect": "cables"}
                    response = case.call_and_validate(checks=[not_a_server_error])
                    statuses[case.operation.label].add(response.status_code)

            check()
        client.put_network("after", LINE)
        client.wait_ready("after")
        assert client.allocate("after", np.array([[1.0, 1.0]])).satisfied_demand[
            0
        ] == pytest.approx(1.0)
    assert 200 in statuses["POST /v1/networks/{name}/allocations"], (
        "at least one allocation request must succeed"
    )
    assert 422 in statuses["POST /v1/networks/{name}/allocations"]


def _stream(columns: dict[str, Any]) -> bytes:
    sink, table = io.BytesIO(), pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


ARROW_BODIES = [
    _stream({"rates": [[1.0] * 132]}),
    _stream({"rates": pa.array([[1.0] * 144] * 3, pa.list_(pa.float32(), 144))}),
    _stream({"source": ["1", "2"], "target": ["2", "3"], "rate": [1.0, 2.0], "matrix": [0, 1]}),
]
MUTATIONS = 250  # of each body


@pytest.mark.system
def test_mutated_arrow_streams_cause_no_server_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    statuses: collections.Counter[int] = collections.Counter()

    async def work() -> None:
        async with b4_service(tmp_path) as client:
            for body in ARROW_BODIES:
                for trial in range(MUTATIONS):
                    mutated = bytearray(body)
                    if trial % 4 == 0:
                        mutated = mutated[: int(rng.integers(0, len(body)))]
                    elif trial % 4 == 1:
                        place = int(rng.integers(0, len(body) - 8))
                        mutated[place : place + 4] = (
                            rng.choice([0, 1, 255, 127], 4).astype(np.uint8).tobytes()
                        )
                    else:
                        for place in rng.integers(0, len(body), 1 + trial % 3):
                            mutated[place] ^= 1 << int(rng.integers(0, 8))
                    response = await client._http.post(
                        "/v1/networks/b4/allocations?gap=0.5",
                        content=bytes(mutated),
                        headers={"Content-Type": ARROW},
                    )
                    statuses[response.status_code] += 1
                    assert response.status_code < 500, bytes(mutated)

    run(work)
    assert statuses.total() == MUTATIONS * len(ARROW_BODIES)
    assert statuses[422] > MUTATIONS
    assert statuses[200] > MUTATIONS / 10


def _nested(depth: int, inner: str = "1") -> str:
    return '{"a":' * depth + inner + "}" * depth


def _pair(fields: str) -> str:
    """Two nodes, one of them with further fields."""
    link = '{"source": "a", "target": "b", "capacity": 1}'
    return (
        '{"topology": {"nodes": [{"id": "a", '
        + fields
        + '}, {"id": "b", "pos": [0, 0]}], "links": ['
        + link
        + "]}}"
    )


ODD_BODIES = [
    ("PUT", "/v1/networks/x", '{"topology": {"nodes": [{"id": "\\ud800"}], "links": []}}'),
    ("PUT", "/v1/networks/x", '{"topology": {"nodes": [{"id": [1]}], "links": []}}'),
    ("PUT", "/v1/networks/x", '{"topology": {"nodes": [{"id": NaN}], "links": []}}'),
    ("PUT", "/v1/networks/x", '{"topology": {"nodes": [], "links": []}}'),
    (
        "PUT",
        "/v1/networks/x",
        '{"topology": {"nodes": [], "links": [], "graph": ' + _nested(300) + "}}",
    ),
    ("PUT", "/v1/networks/x", '{"topology": ' + _nested(100_000) + "}"),
    ("PUT", "/v1/networks/x", "[" * 500_000),
    ("PUT", "/v1/networks/x", '{"topology": "\\u0000"}'),
    ("PUT", "/v1/networks/x", '{"topology": "topohub:../../etc/passwd"}'),
    ("PUT", "/v1/networks/x", '{"topology": "/etc/passwd"}'),
    ("PUT", "/v1/networks/x", '{"topology": "topohub:' + "a" * 300 + '/b"}'),
    ("PUT", "/v1/networks/x", _pair('"pos": [NaN, 0]')),
    ("PUT", "/v1/networks/x", _pair('"x": 1').replace('"a"', '"' + "a" * 300 + '"')),
    ("POST", "/v1/networks/b4/measurements", '{"time": "2099-01-01T00:00:00Z", "demands": []}'),
    (
        "PATCH",
        "/v1/networks/b4/links",
        '{"links": [{"source": "\\udfff", "target": "1", "up": true}]}',
    ),
    (
        "PATCH",
        "/v1/networks/b4/links",
        '{"links": [{"source": "\\u0000", "target": "1", "up": true}]}',
    ),
    ("POST", "/v1/networks/b4/allocations", _nested(200_000)),
    ("POST", "/v1/networks/b4/allocations", '{"rates": ' + "[" * 1000 + "]" * 1000 + "}"),
    (
        "POST",
        "/v1/networks/b4/allocations",
        '{"demands": [{"source": "1", "target": "2", "rate": 1e400}]}',
    ),
    (
        "POST",
        "/v1/networks/b4/allocations",
        '{"demands": [{"source": "1", "target": "2", "rate": ' + "9" * 5000 + "}]}",
    ),
    ("POST", "/v1/networks/b4/measurements", '{"time": "9999-12-31T23:59:59Z", "rates": [[1]]}'),
    ("POST", "/v1/networks/b4/measurements", '{"time": 1e300, "rates": [[1]]}'),
    ("POST", "/v1/networks/b4/measurements", '{"time": "2026-01-01", "rates": [[1]]}'),
    ("POST", "/v1/networks/%ED%A0%80/allocations", '{"demands": []}'),
    ("PUT", "/v1/networks/..%2F..%2Fx", '{"topology": "b4"}'),
    ("PUT", "/v1/networks/x.measured", '{"topology": "b4"}'),
]


def test_odd_bodies_are_faults_of_the_caller(tmp_path: Path) -> None:
    async def work() -> None:
        async with b4_service(tmp_path, max_bytes=8 << 20) as client:
            for method, address, body in ODD_BODIES:
                response = await client._http.request(
                    method,
                    address,
                    content=body.encode(),
                    headers={"Content-Type": "application/json"},
                )
                assert 400 <= response.status_code < 500, (address, body[:80], response.text[:200])
                assert set(response.json()) == {"error", "message"}
            scalar = _stream({"rates": [1.0, 2.0]})
            response = await client._http.post(
                "/v1/networks/b4/allocations", content=scalar, headers={"Content-Type": ARROW}
            )
            assert response.status_code == 422
            assert await client.networks() == ["b4"]
            assert (await client.allocate("b4", np.ones((1, 132)))).status == ("gap",)

    run(work)


def test_a_full_disk_is_said_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def full(file: Path, mode: int = 0) -> Iterator[Path]:
        yield tmp_path / "discarded"
        raise OSError(errno.ENOSPC, "No space left on device")

    async def work() -> None:
        async with b4_service(tmp_path / "networks") as client:
            with monkeypatch.context() as patch:
                patch.setattr(storage, "atomic_file", full)
                for address, topology in (
                    ("/v1/networks/c", "b4"),
                    ("/v1/networks/b4", "topohub:sndlib/abilene"),
                ):
                    response = await client._http.put(address, json={"topology": topology})
                    assert (response.status_code, response.json()["error"]) == (507, "disk_full")
            assert await client.networks() == ["b4"]
            info = await client.wait_ready("b4")
            assert (
                len(info.nodes),
                all(link.in_force == link.capacity for link in info.links),
            ) == (12, True)
            assert (await client.allocate("b4", np.ones((1, 132)))).status == ("gap",)

    run(work)


@pytest.mark.system
def test_hogs_and_slow_clients_do_not_keep_others_waiting(tmp_path: Path) -> None:
    """Requests with deadlines of 30 s, beside ones of 1,024 matrices that take their 120 s and
    connections that send nothing."""

    async def work() -> None:
        with listening(tmp_path, max_bytes=16 << 20) as url:
            host, port = url.removeprefix("http://").split(":")
            with Client(url) as client:
                client.put_network("b4", "b4")
                client.wait_ready("b4")
            head = "POST /v1/networks/b4/allocations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            slow = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
            for number, (_, writer) in enumerate(slow):
                writer.write(
                    (head + "Content-Length: 1000\r\n\r\n{" if number % 2 else head).encode()
                )
            rates = np.random.default_rng(0).lognormal(0, 1, (1024, 132)) * 3000
            body = _stream({"rates": pa.array(list(rates))})
            async with httpx.AsyncClient(base_url=url, timeout=300) as http:

                async def ask(content: bytes, deadline_ms: int) -> httpx.Response:
                    return await http.post(
                        f"/v1/networks/b4/allocations?gap=1e-9&deadline_ms={deadline_ms}",
                        content=content,
                        headers={"Content-Type": ARROW, "Accept": ARROW},
                    )

                hogs = [asyncio.create_task(ask(body, 120_000)) for _ in range(4)]
                await asyncio.sleep(0.5)
                answers = [await ask(ARROW_BODIES[0], 30_000) for _ in range(20)]
                assert {answer.status_code for answer in answers} <= {200, 503}
                assert sum(answer.status_code == 200 for answer in answers) >= 10
                waited = [
                    json.loads(pa.ipc.open_stream(answer.content).schema.metadata[b"teal"])[
                        "queue_ms"
                    ]
                    for answer in answers
                    if answer.status_code == 200
                ]
                assert max(waited) < 60_000, "an answer to a hog takes its 120 s"
                assert (await http.get("/healthz")).status_code == 200
                for hog in hogs:
                    hog.cancel()
            # Before the service ends, which would wait for their bodies.
            for _, writer in slow:
                writer.close()
                await writer.wait_closed()

    asyncio.run(work())
