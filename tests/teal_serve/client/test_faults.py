"""Responses that are no success, of the service and of what may stand before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

pytest.importorskip("httpx", reason="needs the service's packages: pip install '.[serve]'")
pytest.importorskip("pyarrow", reason="needs the service's packages: pip install '.[serve]'")

import httpx

from teal_serve.client import (
    AsyncClient,
    Client,
    InvalidRequest,
    Overloaded,
    ServiceFault,
    Unauthorised,
)
from teal_serve.client.faults import checked


@pytest.mark.parametrize(
    "body",
    [
        {"text": "<html>bad gateway</html>"},
        {"json": ["bad gateway"]},
        {"json": "bad gateway"},
        {"json": None},
        {"json": 502},
        {"json": {"detail": "bad gateway"}},
        {"json": {"error": {"code": 502}, "message": "x"}},
        {"json": {"error": [], "message": "x"}},
    ],
)
def test_an_answer_of_a_proxy_is_a_fault_with_its_status_and_text(body: dict[str, Any]) -> None:
    response = httpx.Response(502, **body)
    with pytest.raises(ServiceFault) as raised:
        checked(response)
    assert type(raised.value) is ServiceFault
    assert (raised.value.status, raised.value.code, raised.value.retry_after_s) == (
        502,
        "http",
        0.0,
    )
    assert response.text in str(raised.value)


def test_a_fault_of_the_service_has_its_type_and_says_when_to_come_back() -> None:
    sent = {"error": "overloaded", "message": "too many"}
    with pytest.raises(Overloaded, match="too many") as raised:
        checked(httpx.Response(503, json=sent, headers={"Retry-After": "4"}))
    assert (raised.value.status, raised.value.code, raised.value.retry_after_s) == (
        503,
        "overloaded",
        4.0,
    )


@pytest.mark.parametrize(
    "token",
    ["a-secret-of-mine\n", "a-secret\r\nX: y", "a secret", "s\u00e9cret-of-mine", "a-secret\0"],
)
def test_a_token_that_no_header_can_have_is_refused_and_not_repeated(token: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(Unauthorised) as raised:
            kind("http://127.0.0.1:1", token)
        assert "secret" not in f"{raised.value}{raised.value!r}{raised.value.__cause__}"


_JSON = {"Content-Type": "application/json"}
# No answer to any question; and one to all but the question for the model, of which any object is one.
_NO_ANSWERS: tuple[dict[str, Any], ...] = (
    {"html": "<html>sign in</html>"},
    {"json": [1]},
    {"content": b"null", "headers": _JSON},
    {"content": b"\xff\xfe\xfa", "headers": _JSON},
    {"content": b"no gzip", "headers": {**_JSON, "Content-Encoding": "gzip"}},
)
_WRONG_FIELDS: dict[str, Any] = {"json": {"networks": 5}}
_QUESTIONS: dict[str, Callable[[Client], Any]] = {
    "networks": lambda client: client.networks(),
    "network": lambda client: client.network("x"),
    "paths": lambda client: client.paths("x"),
    "measured": lambda client: client.measured("x"),
    "proof": lambda client: client.proof("x", "1"),
    "model": lambda client: client.model(),
    "allocation": lambda client: client.allocation("x", "1"),
    "delete": lambda client: client.delete_network("x"),
}


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (question, answer)
        for question in _QUESTIONS
        for answer in (*_NO_ANSWERS, *(() if question == "model" else (_WRONG_FIELDS,)))
    ],
)
def test_a_success_that_is_none_of_this_service_is_a_fault(
    question: str, answer: dict[str, Any]
) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, **answer))
    with Client("http://test", transport=transport) as client, pytest.raises(ServiceFault):
        _QUESTIONS[question](client)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1:80", "htp://x", "http://127.0.0.1:abc", "http://\0", "http://["]
)
def test_an_address_that_is_none_is_a_fault(address: str) -> None:
    with pytest.raises(ServiceFault), Client(address) as client:
        client.networks()


def test_numbers_and_texts_that_json_cannot_say_are_faults() -> None:
    with Client("http://127.0.0.1:1") as client:
        for capacity, node in ((math.nan, "a"), (1.0, "\ud800")):
            with pytest.raises(InvalidRequest):
                client.change_link("x", node, "b", capacity=capacity)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("120", 120, 120),
        ("0", 0, 0),
        ("\u00b2", 0, 0),
        ("-1", 0, 0),
        ("soon", 0, 0),
        ("in an hour", 3000, 3600),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0, 0),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(
    header: str, least: float, most: float
) -> None:
    """RFC 9110, 10.2.3."""
    if header == "in an hour":
        header = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    sent = {"error": "overloaded", "message": "too many"}
    with pytest.raises(Overloaded) as raised:
        checked(
            httpx.Response(503, json=sent, headers=[(b"retry-after", header.encode("latin-1"))])
        )
    assert least <= raised.value.retry_after_s <= most


def test_names_are_one_part_of_an_address() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path.decode())
        return httpx.Response(204)

    with Client("http://test", transport=httpx.MockTransport(answer)) as client:
        for name in ("a/measurements", "a?x=1", "a#b", "%2e"):
            client.delete_network(name)
        for name in ("", ".", ".."):
            with pytest.raises(InvalidRequest):
                client.delete_network(name)
    assert asked == [
        f"/v1/networks/{part}" for part in ("a%2Fmeasurements", "a%3Fx%3D1", "a%23b", "%252e")
    ]


@pytest.mark.parametrize(
    ("address", "asks_proxy"),
    [
        ("http://127.0.0.1:1", False),
        ("http://[::1]:1", False),
        ("http://localhost:1", False),
        ("http://10.0.0.1:1", True),
    ],
)
def test_no_proxy_of_the_environment_is_asked_for_this_machine(
    address: str, asks_proxy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:2")
    with Client(address) as client:
        assert client._http.trust_env is asks_proxy
