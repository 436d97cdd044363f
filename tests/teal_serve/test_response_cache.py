"""Response cache: recent answers by network and registration, and idempotent requests."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal_serve.engine.backend import AllocationResponse, EncodedRequest
from teal_serve.engine.errors import ARROW, JSON, ServiceError
from teal_serve.http import response_cache as cache_module
from teal_serve.http.response_cache import MAX_ENTRIES, ResponseCache
from tests.teal_serve.service import run, until


def _response(number: int, generation: str = "g", body: bytes = b"{}") -> AllocationResponse:
    return AllocationResponse(
        body, "application/json", {"number": number}, np.array([float(number)]), generation
    )


def test_the_last_allocations_are_kept_and_none_is_skipped() -> None:
    cache = ResponseCache()
    for number in range(MAX_ENTRIES + 5):
        assert cache.add("a", str(number), _response(number)) == (number == 0)
    entries = cache.since("a", "g", 0.0)
    assert [allocation["number"] for allocation in entries["allocations"]] == list(
        range(5, MAX_ENTRIES + 5)
    )
    assert entries["utilisation"] == [MAX_ENTRIES + 4.0]
    time_of_400 = entries["allocations"][400]["time"]
    assert len(cache.since("a", "g", time_of_400)["allocations"]) == MAX_ENTRIES - 401
    empty: dict[str, list[Any]] = {"allocations": [], "utilisation": []}
    assert cache.since("a", "h", 0.0) == empty, "another network of the same name"
    assert not cache.add("a", "x", _response(-1, "h"))
    assert [allocation["number"] for allocation in cache.since("a", "h", 0.0)["allocations"]] == [
        -1
    ]
    assert cache.since("a", "g", 0.0) == empty
    cache.add("b", "y", _response(0))
    assert cache.last_used() == "b"
    assert cache.retain_only(["b", "c"]) == ["a"]
    assert cache.since("a", "h", 0.0) == empty


def test_whole_answers_are_kept_within_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "MAX_BODY_BYTES", 1000)
    cache = ResponseCache()
    for number in range(10):
        cache.add("a", str(number), _response(number, body=b"x" * 200))
    assert cache.answer("a", "g", "9").body == b"x" * 200
    assert [n for n in range(10) if _is_kept(cache, "a", "g", str(n))] == [5, 6, 7, 8, 9]
    cache.add("a", "large", _response(0, body=b"x" * 800))
    assert not _is_kept(cache, "a", "g", "large"), "an answer that would displace most others"
    assert not _is_kept(cache, "a", "h", "9"), "of another registration"
    cache.retain_only([])
    assert not _is_kept(cache, "a", "g", "9")


def _is_kept(cache: ResponseCache, *key: str) -> bool:
    try:
        cache.answer(*key)
    except ServiceError:
        return False
    return True


def test_a_request_with_a_key_is_done_once() -> None:
    cache, calls, goes_on = ResponseCache(), list[int](), asyncio.Event()

    async def answer() -> AllocationResponse:
        calls.append(len(calls))
        await goes_on.wait()
        return _response(len(calls))

    async def ask(
        key: str, body: bytes = b"1", client: str = ""
    ) -> tuple[AllocationResponse, bool]:
        return await cache.answer_once(
            "a", key, EncodedRequest(body, "application/json", client=client), answer
        )

    async def work() -> None:
        first, again = (asyncio.create_task(ask("k")) for _ in range(2))
        await until(lambda: calls == [0], "the first request")
        with pytest.raises(ServiceError, match="Idempotency-Key"):
            await ask("k", b"2")
        goes_on.set()
        response, is_new = await first
        assert is_new
        assert await again == await ask("k") == (response, False)
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
    cache, first = ResponseCache(), EncodedRequest(b"1", JSON, accept=JSON)

    async def answer() -> AllocationResponse:
        return _response(1)

    async def work() -> None:
        assert await cache.answer_once("a", "k", first, answer) == (_response(1), True)
        with pytest.raises(ServiceError, match="Idempotency-Key") as raised:
            await cache.answer_once("a", "k", dataclasses.replace(first, **other), answer)
        assert raised.value.status == 409

    run(work)


def test_a_request_that_failed_or_went_may_be_sent_again() -> None:
    cache, held = ResponseCache(), asyncio.Event()
    request = EncodedRequest(b"1", "application/json")

    async def fail() -> AllocationResponse:
        raise ServiceError(503, "overloaded", "")

    async def hang() -> AllocationResponse:
        held.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def succeed() -> AllocationResponse:
        return _response(1)

    async def work() -> None:
        with pytest.raises(ServiceError):
            await cache.answer_once("a", "k", request, fail)
        going = asyncio.create_task(cache.answer_once("a", "k", request, hang))
        await held.wait()
        waits = asyncio.create_task(cache.answer_once("a", "k", request, succeed))
        await asyncio.sleep(0)
        going.cancel()
        assert await waits == (_response(1), True)

    run(work)
