"""What the service knows of the time of answers, by arithmetic on given seconds."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal.objectives import ObjectiveName
from teal.serving.engine.least_time import LeastTimes, SolverTimes
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


def test_the_solver_that_has_been_faster_is_taken_and_the_other_one_is_tried_now_and_then() -> None:
    """The model takes 3 s a matrix and PDHG 1; after a while the model takes 0.1 s."""
    times, wanted, taken = SolverTimes(), Wanted("total_flow"), []
    for number in range(200):
        has_model = times.prefer_model(wanted, 0.01)
        taken.append(has_model)
        times.note(wanted, 0.01, has_model, (3.0 if number < 100 else 0.1) if has_model else 1.0)
    assert taken[:2] == [True, False], "each is measured once"
    assert sum(taken[:100]) == 1 + 3, "the slower one is tried once in 32 requests"
    assert taken[-1], "what has become faster is found"
    assert SolverTimes().prefer_model(Wanted("max_link_utilisation"), 0.01)
