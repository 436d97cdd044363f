"""What a hedge is given: the known matrices and no other."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("teal_next", reason="needs the package teal_next")

import teal
from teal.schemes.past import Past
from tests.teal_next.series import make_past


def test_the_last_matrices_are_those_of_the_series_without_gaps() -> None:
    demand = np.arange(1.0, 25.0).reshape(8, 3)
    demand[[2, 6]] = 0
    past = make_past(demand)
    assert past.last(1).demand.tolist() == [demand[7].tolist()]
    assert past.last(2).demand.tolist() == [demand[7].tolist()], "the matrix before is a gap"
    np.testing.assert_array_equal(past.last(100).demand, demand[[0, 1, 3, 4, 5, 7]])
    np.testing.assert_array_equal(past.last(8, 3).demand, demand[[0, 4, 7]])
    assert past.last(3).objective.name == "max_link_utilisation"
    all_gaps = make_past(0 * demand)
    assert all_gaps.last(5).demand.tolist() == [[0.0, 0.0, 0.0]]


def test_later_matrices_cannot_be_read() -> None:
    demand = np.arange(1.0, 25.0).reshape(8, 3)
    whole = make_past(demand)
    past = whole.before(5)
    assert (past.num_known, past.traffic_row) == (5, 5)
    np.testing.assert_array_equal(past.last(2).demand, demand[3:5])
    for row in (5, -1):
        with pytest.raises(IndexError):
            past.traffic.read([row])
    assert past.target == whole.traffic.timestamps[5]


def test_numbers_of_matrices_count_from_the_start_of_the_series() -> None:
    demand = np.arange(1.0, 25.0).reshape(8, 3)
    whole = make_past(demand)
    recent = Past(whole.network, whole.traffic.part(3, 8), lead=2, first_row=3)
    assert recent.traffic_row == 9
    matrix = recent.matrix(4)
    assert matrix is not None
    np.testing.assert_array_equal(matrix.demand, demand[4:5])
    assert recent.matrix(2) is None, "older than what is given"


def test_the_example_of_the_documentation() -> None:
    class Mean:
        def allocate(self, past: Past) -> object:
            recent = past.last(12)
            mean = recent.with_demand(recent.demand.mean(0, keepdim=True))
            return teal.solve(mean, gap=0.001).splits[0]

    teal.register_hedge("mean-of-test", lambda spec, model: Mean())  # type: ignore[arg-type,return-value]
    splits = teal.make_hedge("mean-of-test").allocate(make_past(np.ones((4, 3))))
    assert splits.shape == (3, 2)
