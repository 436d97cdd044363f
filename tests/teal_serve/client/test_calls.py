"""What the calls send and read, against requests and responses written by hand."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the service's packages: pip install '.[serve]'")
pytest.importorskip("httpx", reason="needs the service's packages: pip install '.[serve]'")

import httpx
import pyarrow as pa

from teal_serve.client import calls

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "time",
    [
        NOON,
        datetime(2026, 1, 1, 12),
        datetime(2026, 1, 1, 7, tzinfo=timezone(timedelta(hours=-5))),
        datetime(2026, 1, 1, 17, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        np.datetime64("2026-01-01T12:00"),
    ],
)
def test_a_time_in_any_zone_is_sent_as_the_same_moment(time: datetime | np.datetime64) -> None:
    measured = calls.measure("x", np.ones((1, 2)), time).content["params"]["time"]
    counted = calls.measure_counters("x", time, [], []).content["json"]["time"]
    assert [datetime.fromisoformat(text) for text in (measured, counted)] == [NOON, NOON]


def _answer(**metadata: Any) -> httpx.Response:
    """A response with one matrix of two demands with one path each, over three links."""
    columns = {
        name: [number]
        for name, number in zip(calls._NUMBER_COLUMNS, (9.0, 10.0, 0.1, 0.75, 0.5), strict=True)
    }
    lists = {"splits": [[1.0, 0.5]], "utilisation": [[0.5, 0.25, 0.0]]}
    shared = {"demands": 2, "paths": 1, "queue_ms": 1.0, "solve_ms": 2.0, "batch": 1}
    table = pa.table({**columns, **lists, "status": ["gap"]}).replace_schema_metadata(
        {"teal": json.dumps({**shared, **metadata})}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return httpx.Response(200, content=sink.getvalue().to_pybytes())


def test_an_answer_for_the_next_interval_is_read_with_its_limit() -> None:
    limit = {"ratio": 1.07, "level": 0.95, "realised": 1.02}
    found = calls.allocate_next("x").decode(_answer(limit=limit, time="2026-01-01T12:00:00Z"))
    assert (found.limit, found.level, found.realised) == (1.07, 0.95, 1.02)
    assert found.time == np.datetime64("2026-01-01T12:00:00")
    np.testing.assert_array_equal(found.splits, [[[1.0], [0.5]]])
    np.testing.assert_array_equal(found.utilisation, [[0.5, 0.25, 0.0]])
    assert [float(column[0]) for column in (found.value, found.bound, found.gap)] == [
        9.0,
        10.0,
        0.1,
    ]
    unknown = calls.allocate_next("x").decode(_answer(limit=None))
    assert (unknown.limit, unknown.level, unknown.realised, unknown.time) == (
        None,
        None,
        None,
        None,
    )


def test_options_of_an_allocation_are_sent_unless_they_are_empty() -> None:
    """And classes matrix by matrix, the first class of each first."""
    rates = {"gold": np.array([[1.0], [2.0]]), "lead": np.array([[3.0], [4.0]])}
    call = calls.allocate("x", rates, max_churn=0.0, previous="7", gap=None, protect="", key="k")
    assert call.content["params"] == {"classes": "gold,lead", "max_churn": 0.0, "previous": "7"}
    assert call.content["headers"]["Idempotency-Key"] == "k"
    with pa.ipc.open_stream(call.content["content"]) as stream:
        assert stream.read_all().column("rates").to_pylist() == [[1.0], [3.0], [2.0], [4.0]]
