"""What is kept of answers: the last ones, by network and registration, each request once."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal.serving.engine.backend import Found, Sent
from teal.serving.engine.errors import ARROW, JSON, ServiceError
from teal.serving.http import recent as recent_module
from teal.serving.http.recent import MAX_KEPT, Recent
from tests.serving.service import run, until


def _found(number: int, generation: str = "g", body: bytes = b"{}") -> Found:
    return Found(
        body, "application/json", {"number": number}, np.array([float(number)]), generation
    )


def test_the_last_allocations_are_kept_and_none_is_skipped() -> None:
    recent = Recent()
    for number in range(MAX_KEPT + 5):
        assert recent.add("a", str(number), _found(number)) == (number == 0)
    entries = recent.since("a", "g", 0.0)
    assert [allocation["number"] for allocation in entries["allocations"]] == list(
        range(5, MAX_KEPT + 5)
    )
    assert entries["utilisation"] == [MAX_KEPT + 4.0]
    time_of_400 = entries["allocations"][400]["time"]
    assert len(recent.since("a", "g", time_of_400)["allocations"]) == MAX_KEPT - 401
    empty: dict[str, list[Any]] = {"allocations": [], "utilisation": []}
    assert recent.since("a", "h", 0.0) == empty, "another network of the same name"
    assert not recent.add("a", "x", _found(-1, "h"))
    assert [allocation["number"] for allocation in recent.since("a", "h", 0.0)["allocations"]] == [
        -1
    ]
    assert recent.since("a", "g", 0.0) == empty
    recent.add("b", "y", _found(0))
    assert recent.last_used() == "b"
    assert recent.forget_all_but(["b", "c"]) == ["a"]
    assert recent.since("a", "h", 0.0) == empty


def test_whole_answers_are_kept_within_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "MAX_BODY_BYTES", 1000)
    recent = Recent()
    for number in range(10):
        recent.add("a", str(number), _found(number, body=b"x" * 200))
    assert recent.answer("a", "g", "9").body == b"x" * 200
    assert [n for n in range(10) if _is_kept(recent, "a", "g", str(n))] == [5, 6, 7, 8, 9]
    recent.add("a", "large", _found(0, body=b"x" * 800))
    assert not _is_kept(recent, "a", "g", "large"), "an answer that would displace most others"
    assert not _is_kept(recent, "a", "h", "9"), "of another registration"
    recent.forget_all_but([])
    assert not _is_kept(recent, "a", "g", "9")


def _is_kept(recent: Recent, *place: str) -> bool:
    try:
        recent.answer(*place)
    except ServiceError:
        return False
    return True


def test_a_request_with_a_key_is_done_once() -> None:
    recent, calls, goes_on = Recent(), list[int](), asyncio.Event()

    async def answer() -> Found:
        calls.append(len(calls))
        await goes_on.wait()
        return _found(len(calls))

    async def ask(key: str, body: bytes = b"1", client: str = "") -> tuple[Found, bool]:
        return await recent.once("a", key, Sent(body, "application/json", client=client), answer)

    async def work() -> None:
        first, again = (asyncio.create_task(ask("k")) for _ in range(2))
        await until(lambda: calls == [0], "the first request")
        with pytest.raises(ServiceError, match="Idempotency-Key"):
            await ask("k", b"2")
        goes_on.set()
        found, is_new = await first
        assert is_new
        assert await again == await ask("k") == (found, False)
        assert calls == [0]
        assert (await ask("k", client="another"))[1], "keys of two clients are two"
        assert (await ask(""))[1]
        assert (await ask(""))[1]
        assert len(calls) == 4

    run(work)


@pytest.mark.parametrize(
    "other",
    [
        {"media_type": ARROW},
        {"accept": ARROW},
        {"previous_id": "7"},
        {"query": {"gap": "0.5"}},
        {"body": b"2"},
    ],
)
def test_a_key_belongs_to_all_that_shapes_the_answer(other: dict[str, Any]) -> None:
    recent, first = Recent(), Sent(b"1", JSON, accept=JSON)

    async def answer() -> Found:
        return _found(1)

    async def work() -> None:
        assert await recent.once("a", "k", first, answer) == (_found(1), True)
        with pytest.raises(ServiceError, match="Idempotency-Key") as raised:
            await recent.once("a", "k", dataclasses.replace(first, **other), answer)
        assert raised.value.status == 409

    run(work)


def test_a_request_that_failed_or_went_may_be_sent_again() -> None:
    recent, held = Recent(), asyncio.Event()
    sent = Sent(b"1", "application/json")

    async def fail() -> Found:
        raise ServiceError(503, "overloaded", "")

    async def hang() -> Found:
        held.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def succeed() -> Found:
        return _found(1)

    async def work() -> None:
        with pytest.raises(ServiceError):
            await recent.once("a", "k", sent, fail)
        going = asyncio.create_task(recent.once("a", "k", sent, hang))
        await held.wait()
        waits = asyncio.create_task(recent.once("a", "k", sent, succeed))
        await asyncio.sleep(0)
        going.cancel()
        assert await waits == (_found(1), True)

    run(work)
