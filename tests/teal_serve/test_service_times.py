"""Service-time estimates by arithmetic on given seconds."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal.objectives import ObjectiveName
from teal.solvers.pdhg import MAX_LANES
from teal_serve.engine.allocation_task import AllocationTask
from teal_serve.engine.service_times import SearchKind, ServiceTimeEstimate, SolverTimes

_TASK = AllocationTask(ObjectiveName.TOTAL_FLOW)


def test_the_time_of_a_batch_is_what_was_measured_of_one_matrix_and_of_a_full_batch() -> None:
    times = ServiceTimeEstimate()
    times.calibrate(
        _TASK, 1.0, 1.0 + 0.5 * (MAX_LANES - 1)
    )  # half a second for each further matrix
    for count in (1, 2, MAX_LANES):
        assert times.expected_s(count, _TASK) == pytest.approx(1.0 + 0.5 * (count - 1))
    assert times.expected_s(MAX_LANES + 1, _TASK) == pytest.approx(1.0 + 0.5 * MAX_LANES + 0.5), (
        "a second batch begins"
    )


def test_the_shortest_time_is_that_of_the_fastest_answer() -> None:
    times = ServiceTimeEstimate()
    for seconds in (4.0, 1.0, 4.0):
        times.record(1, _TASK, seconds)
    assert times.min_s(1, _TASK) == 1.0


def test_the_solver_that_has_been_faster_is_taken_and_the_other_one_is_tried_now_and_then() -> None:
    """The model takes 3 s a matrix and PDHG 1; after a while the model takes 0.1 s."""
    times, taken = SolverTimes(), list[bool]()
    kind = SearchKind.of(_TASK, 0.01, is_warm=True)
    for number in range(200):
        has_model = times.prefer_model(kind)
        taken.append(has_model)
        times.record(kind, has_model, (3.0 if number < 100 else 0.1) if has_model else 1.0)
    assert taken[:2] == [True, False], "each is measured once"
    assert sum(taken[:100]) == 1 + 3, "the slower one is tried once in 32 requests"
    assert taken[-1], "what has become faster is found"


def test_searches_from_nothing_say_nothing_of_those_from_the_allocation_before() -> None:
    times = SolverTimes()
    cold, warm = (SearchKind.of(_TASK, 0.01, is_warm=is_warm) for is_warm in (False, True))
    for has_model, seconds in ((True, 1.0), (False, 5.0)):
        times.record(cold, has_model, seconds)
    for has_model, seconds in ((True, 1.0), (False, 0.2)):
        times.record(warm, has_model, seconds)
    assert times.prefer_model(cold)
    assert not times.prefer_model(warm)
    others = [
        SearchKind.of(AllocationTask("max_link_utilisation"), 0.01, is_warm=True),
        SearchKind.of(_TASK, 1e-4, is_warm=True),
    ]
    assert all(times.prefer_model(kind) for kind in others), "nothing is known of these"
