"""Responses that are no success, of the service and of what may stand before it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("httpx", reason="needs the service's packages: pip install '.[serve]'")
pytest.importorskip("pyarrow", reason="needs the service's packages: pip install '.[serve]'")

import httpx

from teal.client import Overloaded, ServiceFault
from teal.client.faults import checked


@pytest.mark.parametrize(
    "body",
    [
        {"text": "<html>bad gateway</html>"}, {"json": ["bad gateway"]}, {"json": "bad gateway"}, {"json": None},
        {"json": 502}, {"json": {"detail": "bad gateway"}}, {"json": {"error": {"code": 502}, "message": "x"}},
        {"json": {"error": [], "message": "x"}},
    ],
)  # fmt: skip
def test_an_answer_of_a_proxy_is_a_fault_with_its_status_and_text(body: dict[str, Any]) -> None:
    response = httpx.Response(502, **body)
    with pytest.raises(ServiceFault) as raised:
        checked(response)
    assert type(raised.value) is ServiceFault
    assert (raised.value.status, raised.value.code, raised.value.retry_after_s) == (502, "http", 0.0)
    assert response.text in str(raised.value)


def test_a_fault_of_the_service_has_its_type_and_says_when_to_come_back() -> None:
    sent = {"error": "overloaded", "message": "too many"}
    with pytest.raises(Overloaded, match="too many") as raised:
        checked(httpx.Response(503, json=sent, headers={"Retry-After": "4"}))
    assert (raised.value.status, raised.value.code, raised.value.retry_after_s) == (503, "overloaded", 4.0)
