"""How long clients wait, against the deadlines that they send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the service's packages: pip install '.[serve]'")
pytest.importorskip("httpx", reason="needs the service's packages: pip install '.[serve]'")

import httpx

from teal_serve.client import AsyncClient, Client, ServiceFault

RATES = np.ones((1, 2))


@pytest.mark.parametrize(
    ("ask", "expected_s"),
    [
        (lambda client: client.allocate("x", RATES, deadline_ms=90_000.0), 95.0),
        (lambda client: client.allocate("x", RATES), 15.0),
        (lambda client: client.allocate_next("x", deadline_ms=2_000.0), 7.0),
        (lambda client: client.networks(), 5.0),
    ],
)
def test_clients_wait_longer_than_the_service_may_take(
    ask: Callable[[Any], Any], expected_s: float
) -> None:
    waits: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        waits.append(request.extensions["timeout"]["read"])
        return httpx.Response(503, json={"error": "overloaded", "message": "later"})

    transport = httpx.MockTransport(answer)

    async def work() -> None:
        async with AsyncClient("http://test", timeout_s=5.0, transport=transport) as client:
            with pytest.raises(ServiceFault):
                await ask(client)

    asyncio.run(work())
    with Client("http://test", timeout_s=5.0) as client:
        client._http = httpx.Client(base_url="http://test", transport=transport)
        with pytest.raises(ServiceFault):
            ask(client)
    assert waits == pytest.approx([expected_s, expected_s])
