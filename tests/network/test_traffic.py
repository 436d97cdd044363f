"""Traffic matrices: rates on disk against rates in memory, gaps and splits against their
definitions, faulty input."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from torch.utils.data import DataLoader

from teal.errors import InputError
from teal.network import Gap, TrafficMatrices
from teal.network.rates import ArrayRates, FileRates
from teal.network.traffic import spread


def _traffic(values: np.ndarray, minutes: list[int], interval_s: int = 300) -> TrafficMatrices:
    stamps = np.datetime64("2024-01-01T00:00:00") + np.array(minutes, "timedelta64[m]").astype(
        "timedelta64[s]"
    )
    pairs = np.array([[0, i + 1] for i in range(values.shape[1])], np.int32)
    return TrafficMatrices(
        "t", pairs, stamps.astype("datetime64[s]"), ArrayRates(values), interval_s
    )


def test_gaps_of_traffic_are_listed_with_their_length() -> None:
    traffic = _traffic(np.ones((4, 2)), [0, 5, 20, 25])
    assert traffic.gaps == [Gap(np.datetime64("2024-01-01T00:05:00"), 2)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10, 226, 3456])
def test_split_of_traffic_is_in_time_order_and_no_part_is_empty(count: int) -> None:
    split = _traffic(np.ones((count, 1)), [5 * i for i in range(count)]).split()
    assert all(len(part) for part in split)
    if count >= 3:
        np.testing.assert_array_equal(np.concatenate(split), np.arange(count))
        assert len(split.train) == max(1, min(round(0.7 * count), count - 2))


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_a_bad_rate_is_named_when_it_is_read(bad: float) -> None:
    values = np.ones((3, 2))
    values[1, 1] = bad
    with pytest.raises(InputError, match=r"matrix 1, demand 0->2: expected a finite rate >= 0"):
        _traffic(values, [0, 5, 10]).read(slice(None))


def test_timestamps_that_do_not_increase_are_refused() -> None:
    with pytest.raises(InputError, match="is not later than the matrix before"):
        _traffic(np.ones((2, 1)), [5, 5])


def test_rates_on_disk_read_like_rates_in_memory(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((50, 7)).astype("<f4")
    (tmp_path / "rates").write_bytes(b"head" + values.tobytes())
    stored = FileRates(tmp_path / "rates", (50, 7), offset=4)
    for rows in ([0], [49, 0, 1, 2, 7], list(range(50)), []):
        np.testing.assert_array_equal(
            stored.read(np.array(rows, np.int64)), values[rows].astype(np.float64)
        )


def test_mean_of_scaled_traffic() -> None:
    traffic = _traffic(np.arange(6.0).reshape(3, 2), [0, 5, 10]).scaled(2).scaled(5)
    np.testing.assert_allclose(traffic.mean(), [20, 30])
    np.testing.assert_allclose(traffic.mean(np.array([0])), [0, 10])


def test_some_of_many_rows_are_evenly_spread() -> None:
    rows = np.arange(100, 110)
    assert spread(rows, 4).tolist() == [100, 103, 106, 109]
    for limit in (0, 10, 11):
        assert spread(rows, limit).tolist() == rows.tolist()


def test_matrices_are_a_dataset_of_torch() -> None:
    """Three matrices of one demand, 1, 2 and 3 Gbit/s, doubled."""
    traffic = _traffic(np.array([[1.0], [2], [3]]), [0, 5, 10])
    traffic = dataclasses.replace(traffic, scale=2.0)
    assert (len(traffic), traffic[-1].tolist(), traffic[1:].tolist()) == (3, [6], [[4], [6]])
    batches = [batch.tolist() for batch in DataLoader(cast(Any, traffic), batch_size=2)]
    assert batches == [[[2], [4]], [[6]]]
    for number in (3, -4):
        with pytest.raises(IndexError, match="expected 0 to 2"):
            traffic[number]
