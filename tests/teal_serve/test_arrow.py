"""Arrow streams read and written by templates, against pyarrow."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from teal.network import Topology
from teal_serve.engine import arrow
from teal_serve.engine.answer import METRICS, Answer
from teal_serve.engine.arrow import TemplateCache
from teal_serve.engine.errors import ServiceError

TOPOLOGY = teal.load_topology("b4")
NODES = TOPOLOGY.num_nodes
PAIRS = NODES * (NODES - 1)


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_request_templates", TemplateCache())
    monkeypatch.setattr(arrow, "_response_templates", TemplateCache())


def _stream(columns: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    table = pa.table(columns)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.replace_schema_metadata(metadata).schema) as stream:
        stream.write_table(table.replace_schema_metadata(metadata))
    return sink.getvalue()


def _matrices(rates: np.ndarray, *, is_fixed: bool = True) -> pa.Array:
    flat = pa.array(rates.reshape(-1))
    if is_fixed:
        return pa.FixedSizeListArray.from_arrays(flat, rates.shape[1])
    offsets = pa.array(np.arange(len(rates) + 1, dtype=np.int32) * rates.shape[1])
    return pa.ListArray.from_arrays(offsets, flat)


def _answer(seed: int, matrices: int, *, has_weights: bool, is_moving: bool) -> Answer:
    random = np.random.default_rng(seed)
    splits = random.random((matrices, PAIRS, 4)).astype(np.float32)
    figures: dict[str, Any] = {name: random.random(matrices) for name in METRICS}
    figures["gap"][0] = random.choice([0.0, np.nan, np.inf])
    return Answer(
        **figures,
        utilisation=random.random((matrices, TOPOLOGY.num_links)),
        splits=splits,
        weights=random.integers(0, 9, splits.shape).astype(np.uint8) if has_weights else None,
        status=tuple(random.choice(["gap", "deadline"], matrices).tolist()),
        queue_ms=float(random.random()),
        solve_ms=float(10 ** random.uniform(-2, 5)),
        batch=matrices,
        solver="pdhg",
        condition_figures={"moved": random.random(matrices)} if is_moving else {},
    )


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    matrices=st.integers(1, 3),
    has_weights=st.booleans(),
    is_moving=st.booleans(),
)
def test_an_answer_is_what_pyarrow_reads(
    seed: int, matrices: int, has_weights: bool, is_moving: bool
) -> None:
    for number in (seed, seed + 1):  # the second one is made from the bytes of the first
        answer = _answer(number, matrices, has_weights=has_weights, is_moving=is_moving)
        stream = arrow.to_arrow(answer, {"id": f"{number:08d}"})
        with pa.ipc.open_stream(stream) as reading:
            table = reading.read_all()
        table.validate(full=True)
        metadata = json.loads(table.schema.metadata[b"teal"])
        assert metadata["id"] == f"{number:08d}"
        assert metadata["solve_ms"] == answer.solve_ms
        assert table["status"].to_pylist() == list(answer.status)
        for name in (*METRICS, *answer.condition_figures):
            expected = getattr(answer, name, None)
            expected = answer.condition_figures[name] if expected is None else expected
            np.testing.assert_array_equal(table[name].to_numpy(), expected)
        name, shares = answer.splits_or_weights
        flat = table[name].combine_chunks().flatten().to_numpy()
        np.testing.assert_array_equal(flat, shares.reshape(-1))
        used = table["utilisation"].combine_chunks().flatten().to_numpy()
        np.testing.assert_array_equal(used, answer.utilisation.astype(np.float32).reshape(-1))


def test_an_answer_of_a_known_shape_has_the_bytes_that_pyarrow_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = (_answer(seed, 1, has_weights=False, is_moving=True) for seed in (3, 3))
    plainly = arrow.to_arrow(first, {"id": "a"})
    monkeypatch.setattr(arrow, "_stream_of_table", None)  # which a second one does not need
    assert arrow.to_arrow(second, {"id": "a"}) == plainly


@pytest.mark.parametrize("is_fixed", [True, False])
@pytest.mark.parametrize("columns", [PAIRS, NODES * NODES])
def test_rates_of_a_known_shape_are_those_that_pyarrow_reads(
    is_fixed: bool, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    streams = [_stream({"rates": _matrices(random.random((2, columns)), is_fixed=is_fixed)})]
    streams.append(_stream({"rates": _matrices(random.random((2, columns)), is_fixed=is_fixed)}))
    expected = [arrow.from_arrow(stream, TOPOLOGY) for stream in streams]
    assert expected[0].shape == (2, PAIRS)
    monkeypatch.setattr(arrow, "_rates_of_table", None)
    for stream, rates in zip(streams, expected, strict=True):
        np.testing.assert_array_equal(arrow.from_arrow(stream, TOPOLOGY), rates)


@pytest.mark.parametrize("place", [8, 40, 120, -8])
def test_a_stream_that_differs_elsewhere_is_read_as_what_it_is(place: int) -> None:
    rates = np.random.default_rng(1).random((1, PAIRS))
    stream = _stream({"rates": _matrices(rates)})
    arrow.from_arrow(stream, TOPOLOGY)
    changed = bytearray(stream)
    changed[place] ^= 0xFF
    with pytest.raises(ServiceError) as of_known:
        arrow.from_arrow(bytes(changed), TOPOLOGY)
    arrow._request_templates._templates.clear()
    with pytest.raises(ServiceError) as of_new:
        arrow.from_arrow(bytes(changed), TOPOLOGY)
    assert str(of_known.value) == str(of_new.value)


@pytest.mark.parametrize("rate", [-1.0, np.nan, np.inf, 1e13])
def test_rates_of_a_known_shape_must_be_rates_too(rate: float) -> None:
    rates = np.ones((1, PAIRS))
    arrow.from_arrow(_stream({"rates": _matrices(rates)}), TOPOLOGY)
    rates[0, 7] = rate
    with pytest.raises(ServiceError, match=r"matrix 0, demand 7"):
        arrow.from_arrow(_stream({"rates": _matrices(rates)}), TOPOLOGY)


def test_a_known_shape_is_checked_against_the_network_that_is_asked() -> None:
    stream = _stream({"rates": _matrices(np.ones((1, PAIRS)))})
    arrow.from_arrow(stream, TOPOLOGY)
    with pytest.raises(ServiceError, match="all pairs"):
        arrow.from_arrow(stream, teal.load_topology("topohub:sndlib/geant"))


def test_what_is_kept_is_bounded() -> None:
    for columns in range(1, 200):
        with pytest.raises(ServiceError, match="all pairs"):
            arrow.from_arrow(_stream({"rates": _matrices(np.ones((1, 8 * columns + 5)))}), TOPOLOGY)
        assert len(arrow._request_templates._templates) <= 64
    large = {"x" * 20_000: "y"}
    before = dict(arrow._request_templates._templates)
    arrow.from_arrow(_stream({"rates": _matrices(np.ones((1, PAIRS)))}, large), TOPOLOGY)
    assert arrow._request_templates._templates == before


@pytest.mark.parametrize("offsets", [(3, 9), (0, 6)])
def test_lists_that_leave_out_numbers_are_read_alike_each_time(offsets: tuple[int, int]) -> None:
    """Of nine numbers, which are as many as three nodes' matrix has, the list has six."""
    ends = np.array([0, 0, 1, 1, 2, 2]), np.array([1, 2, 0, 2, 0, 1])
    three = Topology("three", ("a", "b", "c"), *ends, np.ones(6), np.ones(6), np.zeros((3, 2)))
    whole = _stream({"rates": _matrices(np.arange(1.0, 10.0)[None], is_fixed=False)})
    before, after = (np.array(two, dtype="<i4").tobytes() for two in ((0, 9), offsets))
    place = whole.rindex(before)
    stream = whole[:place] + after + whole[place + len(after) :]
    expected = np.arange(1.0, 10.0)[slice(*offsets)][None]
    for _ in range(2):
        np.testing.assert_array_equal(arrow.from_arrow(stream, three), expected)
