"""What the service knows of the time of answers, by arithmetic on given seconds."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal.objectives import ObjectiveName
from teal.serving.engine.least_time import LeastTimes
from teal.serving.engine.wanted import Wanted
from teal.solvers.pdhg import MAX_LANES

_WANTED = Wanted(ObjectiveName.TOTAL_FLOW)


def test_the_time_of_a_batch_is_what_was_measured_of_one_matrix_and_of_a_full_batch() -> None:
    times = LeastTimes()
    times.calibrate(
        _WANTED, 1.0, 1.0 + 0.5 * (MAX_LANES - 1)
    )  # half a second for each further matrix
    for count in (1, 2, MAX_LANES):
        assert times.usual_s(count, _WANTED) == pytest.approx(1.0 + 0.5 * (count - 1))
    assert times.usual_s(MAX_LANES + 1, _WANTED) == pytest.approx(1.0 + 0.5 * MAX_LANES + 0.5), (
        "a second batch begins"
    )


def test_the_shortest_time_is_that_of_the_fastest_answer() -> None:
    times = LeastTimes()
    for seconds in (4.0, 1.0, 4.0):
        times.note(1, _WANTED, seconds)
    assert times.shortest_s(1, _WANTED) == 1.0
