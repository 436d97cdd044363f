"""Bodies that are not what they must be: told what is wrong, before they cost anything."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import pyarrow as pa

from teal.client import (
    ARROW,
)
from tests.serving.service import run, service

GOOD = json.dumps({"demands": [{"source": "1", "target": "2", "rate": 1.0}]}).encode()
JSON_TYPE = {"Content-Type": "application/json"}


def _nothing(size: int) -> pa.Array:
    """A list of nulls, which takes no bytes to send and many to read."""
    return pa.FixedSizeListArray.from_arrays(pa.nulls(size), size)


def _arrow(columns: dict[str, Any], compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    table = pa.table(columns)
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("status", "words", "body", "headers"),
    [
        (422, "Invalid JSON", b"{", JSON_TYPE),
        (422, "body", b"", JSON_TYPE),
        (422, "demands or rates", b"{}", JSON_TYPE),
        (422, "no node 'mars'", GOOD.replace(b'"2"', b'"mars"'), JSON_TYPE),
        (422, "to itself", GOOD.replace(b'"2"', b'"1"'), JSON_TYPE),
        (422, "greater than or equal to 0", GOOD.replace(b"1.0", b"-1"), JSON_TYPE),
        (422, "demands.0.rate", GOOD.replace(b"1.0", b"NaN"), JSON_TYPE),
        (422, "demands.0.rate", GOOD.replace(b"1.0", b"1e999"), JSON_TYPE),
        (422, "once a matrix", json.dumps({"demands": 2 * json.loads(GOOD)["demands"]}).encode(), JSON_TYPE),
        (422, "not 3", b'{"rates": [[1, 2, 3]]}', JSON_TYPE),
        (422, "of one length", b'{"rates": [[1], [1, 2]]}', JSON_TYPE),
        (422, "of one length", b'{"rates": []}', JSON_TYPE),
        (422, "gap", GOOD[:-1] + b', "gap": 2}', JSON_TYPE),
        (422, "deadline_ms", GOOD[:-1] + b', "deadline_ms": 0}', JSON_TYPE),
        (422, "objective", GOOD[:-1] + b', "objective": "fame"}', JSON_TYPE),
        (422, "extra", GOOD[:-1] + b', "extra": 1}', JSON_TYPE),
        (415, "unsupported_media_type", GOOD, {"Content-Type": "text/plain"}),
        (422, "Arrow IPC", b"rubbish", {"Content-Type": ARROW}),
        (422, "columns", _arrow({"x": [1]}), {"Content-Type": ARROW}),
        (422, "finite", _arrow({"rates": [[float("nan")] * 132]}), {"Content-Type": ARROW}),
        (422, "finite", _arrow({"rates": [[-1.0] * 132]}), {"Content-Type": ARROW}),
        (422, "not 5", _arrow({"rates": [[1.0] * 5]}), {"Content-Type": ARROW}),
        (422, "1 to 1024", _arrow({"rates": pa.array([], pa.list_(pa.float64()))}), {"Content-Type": ARROW}),
        (422, "'rates': numbers", _arrow({"rates": [["a"] * 132]}), {"Content-Type": ARROW}),
        (422, "'rate': numbers", _arrow({"source": ["1"], "target": ["2"], "rate": [None]}), {"Content-Type": ARROW}),
        (422, "null", _arrow({"source": ["1"], "target": [None], "rate": [1.0]}), {"Content-Type": ARROW}),
        (422, "one length", _arrow({"rates": [[1.0] * 100, [1.0] * 164]}), {"Content-Type": ARROW}),
        (422, "finite", _arrow({"rates": [[1e308] * 132]}), {"Content-Type": ARROW}),
        (422, "compression", _arrow({"rates": [[0.0] * 132] * 64}, compression="zstd"), {"Content-Type": ARROW}),
        (422, "'rates': numbers", _arrow({"rates": _nothing(1_000_000)}), {"Content-Type": ARROW}),
        (422, "dictionaries", _arrow({"source": pa.array(["1"]).dictionary_encode()}), {"Content-Type": ARROW}),
        (422, "dictionaries", _arrow({"x": pa.array(["1"]).dictionary_encode()}), {"Content-Type": ARROW}),
        (415, "unsupported_media_type", GOOD, {"Content-Type": ""}),
        (
            422,
            "matrix",
            _arrow({"source": ["1"], "target": ["2"], "rate": [1.0], "matrix": [10**9]}),
            {"Content-Type": ARROW},
        ),
        (406, "ask for", _arrow({"rates": [[1.0] * 132] * 950}), {"Content-Type": ARROW, "Accept": "text/html"}),
        (413, "at most", b"x" * (1 << 20) + b"x", JSON_TYPE),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(
    tmp_path: Path, status: int, words: str, body: bytes, headers: dict[str, str]
) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4")
            await client.wait_ready("b4")
            answer = await client._http.post("/v1/networks/b4/allocations", content=body, headers=headers)
            assert answer.status_code == status, answer.text
            said = answer.json()
            assert set(said) == {"error", "message"}
            assert words in said["error"] + said["message"]
            good = await client._http.post("/v1/networks/b4/allocations", content=GOOD, headers=JSON_TYPE)
            assert good.status_code == 200, "and the service goes on"

    run(work)
