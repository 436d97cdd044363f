"""Whatever is sent, described or not: no answer is a 500, and the service goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("schemathesis", reason="needs schemathesis: pip install '.[dev]'")
pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error

from teal.client import ARROW, Client
from tests.serving.service import listening

LINE = {
    "directed": True,
    "nodes": [{"id": "a"}, {"id": "b"}],
    "links": [{"source": "a", "target": "b", "capacity": 2.0}, {"source": "b", "target": "a", "capacity": 2.0}],
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with listening(tmp_path_factory.mktemp("networks"), most_bytes=1 << 16) as found:
        yield found


@pytest.mark.system
def test_no_request_causes_a_server_error(address: str) -> None:
    schemathesis.serializer.alias(ARROW, "application/octet-stream")
    described = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations: list[Any] = [found.ok() for found in described.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) >= 10
    sent: dict[str, set[int]] = {}
    with Client(address) as client:
        for operation in operations:

            @given(case=operation.as_strategy())
            @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
            def check(case: Any) -> None:
                if "{name}" in case.path and len(repr(case.body)) % 2:  # half of them meet a network that is there
                    client.put_network("line", LINE)
                    client.wait_ready("line")
                    case.path_parameters = {"name": "line"}
                    if isinstance(case.body, dict) and "allocations" in case.path and len(repr(case.body)) % 3:
                        # The description cannot say how many rates there must be: these are.
                        case.body = {k: v for k, v in case.body.items() if k != "demands"} | {"rates": [[1.0, 2.0]]}
                answer = case.call_and_validate(checks=[not_a_server_error])
                sent.setdefault(case.operation.label, set()).add(answer.status_code)

            check()
        client.put_network("after", LINE)
        client.wait_ready("after")
        assert client.allocate("after", np.array([[1.0, 1.0]])).satisfied_demand[0] == pytest.approx(1.0)
    assert 200 in sent["POST /v1/networks/{name}/allocations"], "some of it was worth an answer"
    assert 422 in sent["POST /v1/networks/{name}/allocations"]
