"""Requests generated from the OpenAPI description: no response is a 500, and the service still allocates afterwards."""

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
    with listening(tmp_path_factory.mktemp("networks"), most_bytes=1 << 16) as url:
        yield url


@pytest.mark.system
def test_no_request_causes_a_server_error(address: str) -> None:
    schemathesis.serializer.alias(ARROW, "application/octet-stream")
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations: list[Any] = [operation.ok() for operation in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) >= 10
    statuses: dict[str, set[int]] = {}
    with Client(address) as client:
        for operation in operations:

            @given(case=operation.as_strategy())
            @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
            def check(case: Any) -> None:
                if "{name}" in case.path and len(repr(case.body)) % 2:  # half of the requests name an existing network
                    client.put_network("line", LINE)
                    client.wait_ready("line")
                    case.path_parameters = {"name": "line"}
                    if isinstance(case.body, dict) and "allocations" in case.path and len(repr(case.body)) % 3:
                        # The description cannot state the number of rates, which is 2 here.
                        case.body = {k: v for k, v in case.body.items() if k != "demands"} | {"rates": [[1.0, 2.0]]}
                response = case.call_and_validate(checks=[not_a_server_error])
                statuses.setdefault(case.operation.label, set()).add(response.status_code)

            check()
        client.put_network("after", LINE)
        client.wait_ready("after")
        assert client.allocate("after", np.array([[1.0, 1.0]])).satisfied_demand[0] == pytest.approx(1.0)
    assert 200 in statuses["POST /v1/networks/{name}/allocations"], "at least one allocation request must succeed"
    assert 422 in statuses["POST /v1/networks/{name}/allocations"]
