"""Malformed allocation requests against the status and the words of the error that each must
get."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import pyarrow as pa

from teal_serve.client import ARROW
from tests.teal_serve.service import b4_service, run

VALID_BODY = json.dumps({"demands": [{"source": "1", "target": "2", "rate": 1.0}]}).encode()
JSON_TYPE = {"Content-Type": "application/json"}


def _nulls(size: int) -> pa.Array:
    """Lists of nulls, which take few bytes to send and much memory to read."""
    return pa.FixedSizeListArray.from_arrays(pa.nulls(size), size)


def _empty(size: int) -> pa.Array:
    """Lists of no numbers: any number of them takes no bytes."""
    return pa.FixedSizeListArray.from_buffers(
        pa.list_(pa.int8(), 0), size, [None], children=[pa.array([], pa.int8())]
    )


def _arrow(columns: dict[str, Any], compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as stream:
        stream.write_table(table)
    return sink.getvalue()


# Status, words of the answer, body and headers of requests that are refused.
MALFORMED: list[tuple[int, str, bytes, dict[str, str]]] = [
    (422, "Invalid JSON", b"{", JSON_TYPE),
    (422, "body", b"", JSON_TYPE),
    (422, "demands or rates", b"{}", JSON_TYPE),
    (422, "unknown node 'mars'", VALID_BODY.replace(b'"2"', b'"mars"'), JSON_TYPE),
    (422, "to itself", VALID_BODY.replace(b'"2"', b'"1"'), JSON_TYPE),
    (422, "greater than or equal to 0", VALID_BODY.replace(b"1.0", b"-1"), JSON_TYPE),
    (422, "demands.0.rate", VALID_BODY.replace(b"1.0", b"NaN"), JSON_TYPE),
    (422, "demands.0.rate", VALID_BODY.replace(b"1.0", b"1e999"), JSON_TYPE),
    (
        422,
        "once a matrix",
        json.dumps({"demands": 2 * json.loads(VALID_BODY)["demands"]}).encode(),
        JSON_TYPE,
    ),
    (422, "not 3", b'{"rates": [[1, 2, 3]]}', JSON_TYPE),
    (422, "of one length", b'{"rates": [[1], [1, 2]]}', JSON_TYPE),
    (422, "of one length", b'{"rates": []}', JSON_TYPE),
    (422, "gap", VALID_BODY[:-1] + b', "gap": 2}', JSON_TYPE),
    (422, "deadline_ms", VALID_BODY[:-1] + b', "deadline_ms": 0}', JSON_TYPE),
    (422, "objective", VALID_BODY[:-1] + b', "objective": "fame"}', JSON_TYPE),
    (422, "extra", VALID_BODY[:-1] + b', "extra": 1}', JSON_TYPE),
    (415, "unsupported_media_type", VALID_BODY, {"Content-Type": "text/plain"}),
    (422, "Arrow IPC", b"rubbish", {"Content-Type": ARROW}),
    (
        422,
        "'source': unsupported type",
        _arrow({"source": _empty(10), "target": _empty(10), "rate": _empty(10)}),
        {"Content-Type": ARROW},
    ),
    (422, "'rates': unsupported type", _arrow({"rates": _empty(10)}), {"Content-Type": ARROW}),
    (422, "columns", _arrow({"x": [1]}), {"Content-Type": ARROW}),
    (422, "finite", _arrow({"rates": [[float("nan")] * 132]}), {"Content-Type": ARROW}),
    (422, "finite", _arrow({"rates": [[-1.0] * 132]}), {"Content-Type": ARROW}),
    (422, "not 5", _arrow({"rates": [[1.0] * 5]}), {"Content-Type": ARROW}),
    (
        422,
        "1 to 1024",
        _arrow({"rates": pa.array([], pa.list_(pa.float64()))}),
        {"Content-Type": ARROW},
    ),
    (422, "'rates': unsupported type", _arrow({"rates": [["a"] * 132]}), {"Content-Type": ARROW}),
    (
        422,
        "'rate': unsupported type",
        _arrow({"source": ["1"], "target": ["2"], "rate": [None]}),
        {"Content-Type": ARROW},
    ),
    (
        422,
        "null",
        _arrow({"source": ["1"], "target": [None], "rate": [1.0]}),
        {"Content-Type": ARROW},
    ),
    (
        422,
        "different lengths",
        _arrow({"rates": [[1.0] * 100, [1.0] * 164]}),
        {"Content-Type": ARROW},
    ),
    (422, "finite", _arrow({"rates": [[1e308] * 132]}), {"Content-Type": ARROW}),
    (
        422,
        "compression",
        _arrow({"rates": [[0.0] * 132] * 64}, compression="zstd"),
        {"Content-Type": ARROW},
    ),
    (
        422,
        "'rates': unsupported type",
        _arrow({"rates": _nulls(1_000_000)}),
        {"Content-Type": ARROW},
    ),
    (
        422,
        "dictionaries",
        _arrow({"source": pa.array(["1"]).dictionary_encode()}),
        {"Content-Type": ARROW},
    ),
    (
        422,
        "dictionaries",
        _arrow({"x": pa.array(["1"]).dictionary_encode()}),
        {"Content-Type": ARROW},
    ),
    (415, "unsupported_media_type", VALID_BODY, {"Content-Type": ""}),
    (
        422,
        "matrix",
        _arrow({"source": ["1"], "target": ["2"], "rate": [1.0], "matrix": [10**9]}),
        {"Content-Type": ARROW},
    ),
    (
        406,
        "too many for JSON",
        _arrow({"rates": [[1.0] * 132] * 950}),
        {"Content-Type": ARROW, "Accept": "text/html"},
    ),
    (413, "at most", b"x" * (1 << 20) + b"x", JSON_TYPE),
]


def test_malformed_allocation_requests_are_refused_with_the_reason(tmp_path: Path) -> None:
    """All of them at one service, which allocates after each."""

    async def work() -> None:
        async with b4_service(tmp_path) as client:
            address = "/v1/networks/b4/allocations"
            for status, words, body, headers in MALFORMED:
                response = await client._http.post(address, content=body, headers=headers)
                assert response.status_code == status, (words, response.text)
                error = response.json()
                assert set(error) == {"error", "message"}
                assert words in error["error"] + error["message"]
                after = await client._http.post(address, content=VALID_BODY, headers=JSON_TYPE)
                assert after.status_code == 200, f"the service still allocates after {words}"

    run(work)


@pytest.mark.parametrize("form", [{}, {"entries": 16}])
def test_a_demand_of_rate_0_stays_in_the_answer_and_can_be_in_force(
    form: dict[str, Any], tmp_path: Path
) -> None:
    rates = {("1", "2"): 1.0, ("1", "3"): 0.0, ("4", "5"): 2.5}
    demands = [
        {"source": source, "target": target, "rate": rate}
        for (source, target), rate in rates.items()
    ]

    async def work() -> None:
        async with b4_service(tmp_path) as client:
            path = "/v1/networks/b4/allocations"
            answer = (await client._http.post(path, json={"demands": demands, **form})).json()
            found = {
                (one["source"], one["target"]): one for one in answer["allocations"][0]["demands"]
            }
            assert {pair: one["demand"] for pair, one in found.items()} == rates
            assert found["1", "3"]["admitted"] == 0
            sent = {"demands": demands, "max_churn": 0.5}
            assert (
                await client._http.post(f"{path}?previous={answer['id']}", json=sent)
            ).status_code == 200

    run(work)


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    async def work() -> None:
        async with b4_service(tmp_path, max_bytes=4 << 20) as client:
            body = b'{"rates": [[' + b"0," * 600_000 + b"0]]}"
            answer = await client._http.post(
                "/v1/networks/b4/allocations", content=body, headers=JSON_TYPE
            )
            assert (answer.status_code, "500,000 values" in answer.json()["message"]) == (422, True)

    run(work)
