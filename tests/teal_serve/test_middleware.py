"""What is refused before a request reaches the application: hosts, origins, media types, sizes, and
slow bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.errors import ARROW, JSON, ServiceError
from teal_serve.http import middleware
from teal_serve.http.app import make_app
from teal_serve.http.metrics import Metrics
from tests.teal_serve.service import run, service

HOSTS = ("127.0.0.1", "localhost", "[::1]")
TYPE = {"Content-Type": "application/json"}


def _answer(folder: Path, method: str, path: str, **options: Any) -> httpx.Response:
    """The answer of a service on loopback to one request."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(
            make_app(AllocationEngine(folder), hosts=HOSTS), raise_app_exceptions=False
        )
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost:8000"
        ) as client:
            return await client.request(method, path, **options)

    return asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:80", 200),
        ("[::1]", 200),
        ("[::1]:8000", 200),
        ("evil.com", 400),
        ("evil.com:8000", 400),
        ("evil.com:localhost", 400),
        ("localhost.evil.com", 400),
        ("[::1", 400),
        ("", 400),
        ("user@localhost.evil.com", 400),
        ("localhost:port", 400),
    ],
)
@pytest.mark.parametrize("path", ["/healthz", "/v1/networks", "/"])
def test_only_own_names_are_answered_on_every_route(
    host: str, status: int, path: str, tmp_path: Path
) -> None:
    assert _answer(tmp_path, "GET", path, headers={"Host": host}).status_code == status


def test_pages_of_other_sites_are_refused(tmp_path: Path) -> None:
    for origin, status in (
        ("http://localhost:8000", 200),
        ("http://evil.com", 403),
        ("http://localhost:9000", 403),
        ("null", 403),
        ("http://[", 403),
    ):
        headers = {"Origin": origin, **TYPE}
        answer = _answer(
            tmp_path, "PUT", "/v1/networks/b4", json={"topology": "b4"}, headers=headers
        )
        assert answer.status_code in (status, status + 1), origin  # 201: registered


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("https://localhost", "localhost", 201),
        ("https://localhost:443", "localhost", 201),
        ("https://localhost", "localhost:443", 201),
        ("https://localhost", "localhost:80", 403),
        ("http://localhost", "localhost", 201),
        ("http://localhost", "localhost:80", 201),
        ("http://localhost", "localhost:443", 403),
        ("https://localhost:8443", "localhost", 403),
    ],
)
def test_an_origin_without_a_port_has_the_one_of_its_scheme(
    origin: str, host: str, status: int, tmp_path: Path
) -> None:
    """A proxy that speaks https in front of the service passes the Host header on."""
    headers = {"Origin": origin, "Host": host, **TYPE}
    assert (
        _answer(
            tmp_path, "PUT", "/v1/networks/b4", json={"topology": "b4"}, headers=headers
        ).status_code
        == status
    )


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, {"Content-Type": ""}])
def test_a_body_without_its_media_type_is_refused(headers: dict[str, str], tmp_path: Path) -> None:
    for method, path in (("PUT", "/v1/networks/b4"), ("POST", "/v1/networks/b4/allocations")):
        answer = _answer(tmp_path, method, path, content=b'{"topology": "b4"}', headers=headers)
        assert (answer.status_code, answer.json()["error"]) == (415, "unsupported_media_type")


def test_json_is_small(tmp_path: Path) -> None:
    body = b"[" + b"0," * (middleware.MAX_JSON_BYTES // 2) + b"0]"
    assert (
        _answer(tmp_path, "PUT", "/v1/networks/b4", content=body, headers=TYPE).status_code == 413
    )


def test_matrices_in_arrow_may_be_larger_than_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "MAX_JSON_BYTES", 100)
    for kind, size, status in (
        (JSON, 100, 404),
        (JSON, 101, 413),
        (ARROW, 101, 404),
    ):  # 404: of a network, so accepted
        headers = {"Content-Type": kind}
        answer = _answer(
            tmp_path, "POST", "/v1/networks/none/allocations", content=b" " * size, headers=headers
        )
        assert answer.status_code == status, (kind, size)


def _status(folder: Path, receive: Callable[[], Awaitable[dict[str, Any]]]) -> int:
    """The status of the answer to a PUT whose body comes from ``receive``."""

    async def ask() -> int:
        app, status = make_app(AllocationEngine(folder), hosts=HOSTS), 0

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        headers = [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", b"100"),
        ]
        scope = {
            "type": "http",
            "method": "PUT",
            "path": "/v1/networks/b4",
            "headers": headers,
            "query_string": b"",
        }
        await app(scope, receive, send)
        return status

    return asyncio.run(ask())


def test_a_body_that_stalls_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_TIMEOUT_S", 0.05)
    first = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> dict[str, Any]:
        for message in first:
            return message
        return await asyncio.get_running_loop().create_future()  # nothing more comes

    assert _status(tmp_path, receive) == 408


def test_a_body_that_drips_is_given_up_in_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a third of the time limit for each part of a body of many."""
    now, sent = 0.0, 0
    monkeypatch.setattr(middleware, "time", SimpleNamespace(perf_counter=lambda: now))

    async def receive() -> dict[str, Any]:
        nonlocal now, sent
        now, sent = now + middleware.BODY_TIMEOUT_S / 3, sent + 1
        return {"type": "http.request", "body": b" ", "more_body": sent < 100}

    assert _status(tmp_path, receive) == 408
    assert 2 <= sent <= 4


def test_a_client_that_goes_while_it_sends_costs_no_error(tmp_path: Path) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    assert _status(tmp_path, receive) == 400


def test_clients_are_told_apart_by_tokens_where_there_are_several(tmp_path: Path) -> None:
    tokens = "first-token-of-two", "second-token-of-two"

    async def ask(known: tuple[str, ...]) -> list[str]:
        clients: list[str] = []
        app = make_app(AllocationEngine(tmp_path), known)

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            clients.append(scope["teal"]["client"])

        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(noting), base_url="http://x"
        ) as client:
            for token, scheme in zip(
                known, ("Bearer", "bearer"), strict=False
            ):  # its case does not matter
                headers = {"Authorization": f"{scheme} {token}"}
                assert (await client.get("/v1/networks", headers=headers)).status_code == 200
        return clients

    assert asyncio.run(ask(tokens)) == ["token 0", "token 1"]
    assert asyncio.run(ask(tokens[:1])) == ["127.0.0.1"]


def test_one_client_leaves_room_for_the_bodies_of_others(tmp_path: Path) -> None:
    most = 1 << 10
    watched = middleware.RequestGuard(Metrics(), most, (), ())
    room = middleware._MAX_OPEN_BODIES * most
    for _ in range(middleware._MAX_OPEN_BODIES // 2):
        watched._reserve_memory("hog", most)
    with pytest.raises(ServiceError, match="too many"):
        watched._reserve_memory("hog", 1)
    watched._reserve_memory("other", room // 2)
    with pytest.raises(ServiceError, match="too many"):
        watched._reserve_memory("third", 1)
    watched._release_memory("hog", most)
    watched._reserve_memory("third", most)
    watched._release_memory("third", most)
    for _ in range(middleware._MAX_OPEN_BODIES // 2 - 1):
        watched._release_memory("hog", most)
    watched._release_memory("other", room // 2)
    assert not watched._body_bytes_by_client


@pytest.mark.parametrize(
    ("coding", "status"), [("gzip", 415), ("br", 415), ("x", 415), ("Identity", 201)]
)
def test_bodies_in_a_content_coding_are_refused_before_they_are_read(
    tmp_path: Path, coding: str, status: int
) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:
            headers = {"Content-Type": "application/json", "Content-Encoding": coding}
            response = await client._http.put(
                "/v1/networks/b4", content=b'{"topology": "b4"}', headers=headers
            )
            assert response.status_code == status

    run(work)


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "Content-Type",
        "Content-Length",
        "Content-Encoding",
        "Authorization",
        "Origin",
        "Idempotency-Key",
    ],
)
@pytest.mark.parametrize("value", ["same", "other"])
def test_a_header_of_one_value_that_is_there_twice_is_refused(
    name: str, value: str, tmp_path: Path
) -> None:
    headers = {**TYPE, "Host": "localhost", "Content-Length": "2"}
    first = headers.get(name, "x")
    twice = [
        *headers.items(),
        *([] if name in headers else [(name, first)]),
        (name, first if value == "same" else "7"),
    ]
    answer = _answer(tmp_path, "POST", "/v1/networks/b4/allocations", content=b"{}", headers=twice)
    assert answer.status_code == 400


def test_a_second_media_type_does_not_lift_the_limit_of_json(tmp_path: Path) -> None:
    body = b" " * (middleware.MAX_JSON_BYTES + 1)
    for types in ((JSON, ARROW), (ARROW, JSON)):
        headers = [("Content-Type", one) for one in types]
        assert (
            _answer(
                tmp_path, "POST", "/v1/networks/x/allocations", content=body, headers=headers
            ).status_code
            == 400
        )


def test_a_slash_in_a_name_divides_no_path(tmp_path: Path) -> None:
    for slash in ("%2F", "%2f"):
        assert _answer(tmp_path, "DELETE", f"/v1/networks/a{slash}measurements").status_code == 404


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/metrics", "/v1/networks", "/", "/assets/page.css"]
)
def test_head_is_answered_as_get_without_a_body(path: str, tmp_path: Path) -> None:
    """RFC 9110, 9.3.2."""
    head, get = (_answer(tmp_path, method, path) for method in ("HEAD", "GET"))
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Type"] == get.headers["Content-Type"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/healthz", "GET, HEAD"),
        ("/v1/networks/x", "DELETE, GET, HEAD, PUT"),
        ("/v1/networks/x/links", "PATCH"),
    ],
)
def test_a_method_that_a_path_has_not_is_told_those_that_it_has(
    path: str, allowed: str, tmp_path: Path
) -> None:
    """RFC 9110, 15.5.6."""
    answer = _answer(tmp_path, "OPTIONS", path)
    assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)


def test_the_log_has_the_client_of_refused_requests_and_no_token_of_an_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        app = make_app(AllocationEngine(tmp_path), ["a-token-of-some-length"])
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://x"
        ) as client:
            assert (await client.get("/v1/networks?token=SECRET&SECRET&after=3")).status_code == 401

    with caplog.at_level("INFO", logger="teal_serve"):
        asyncio.run(ask())
    entry = next(record.teal for record in caplog.records if record.getMessage() == "answered")  # type: ignore[attr-defined]
    assert (entry["client"], entry["query"]) == ("127.0.0.1", "after=3")
