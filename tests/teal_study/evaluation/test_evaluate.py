"""The evaluation loop against schemes that fail or misbehave, and resumed evaluations against
uninterrupted ones."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from teal.app.instance import Instance
from teal.errors import InputError, SolverError
from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.runtime.progress import progress_bar
from teal.schemes.registry import make_scheme
from teal.solvers import pipeline
from teal.solvers.result import SolveResult
from teal_study.evaluation.cases import Cases
from teal_study.evaluation.evaluate import Evaluation
from teal_study.evaluation.rows import CaseResult, Row
from teal_study.evaluation.table import summarise


@pytest.fixture(scope="module")
def b4() -> Instance:
    topology = load_topology("b4")
    traffic = load_traffic("gravity:seed=0,count=6,load=3", topology)
    paths = compute_paths(topology, traffic.pairs, cache=False)
    return Instance(
        topology, traffic, paths, Objective(), None, traffic.split(), torch.device("cpu")
    )


class _Clock:
    """Seconds that schemes here have taken, in place of those that pass."""

    now = 0.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock by which the evaluation measures."""
    monkeypatch.setattr(
        "teal_study.evaluation.evaluate.time",
        SimpleNamespace(perf_counter=lambda: _Clock.now, time=time.time),
    )


class FaultyShortestPath:
    """Shortest-path routing that fails or misbehaves on given calls.

    Args:
        faults: exception to raise, by number of the call, from 1.
        wrong_shape: number of the call whose splits have a wrong shape; -1 for none.
        slow: seconds that it takes, on the clock of :func:`clock`; what it reports is another
            number.
    """

    def __init__(
        self, faults: dict[int, Exception], wrong_shape: int = -1, slow: float = 0.0
    ) -> None:
        self.calls, self.faults, self.wrong_shape, self.slow = 0, faults, wrong_shape, slow
        self.before: list[Problem | None] = []

    def solve(self, problem: Problem) -> Allocation:
        self.calls += 1
        _Clock.now += self.slow
        if self.calls in self.faults:
            raise self.faults[self.calls]
        allocation = make_scheme("shortest-path").solve(problem)
        if self.calls == self.wrong_shape:
            return dataclasses.replace(allocation, splits=allocation.splits[:, :-1])
        return (
            dataclasses.replace(allocation, build_s=(0.0,), solve_s=(1e-6,))
            if self.slow
            else allocation
        )


class FollowingScheme(FaultyShortestPath):
    def follow(self, before: Problem | None) -> None:
        self.before.append(before)


def _run(
    b4: Instance, schemes: dict[str, Any], rows: list[int], **options: Any
) -> tuple[list[Row], list[str]]:
    notices: list[str] = []
    evaluation = Evaluation(b4, schemes, notify=notices.append, **options)
    results = list(evaluation.run(Cases(b4.topology, b4.traffic, np.array(rows))))
    assert all(isinstance(result, CaseResult) for result in results)
    return [row for result in results for row in result.rows], notices


def test_a_failing_scheme_fails_only_its_row_and_the_note_gives_the_reason(b4: Instance) -> None:
    # The first call warms up; the third is the second matrix.
    schemes = {
        "a": FaultyShortestPath({3: SolverError("no\n licence")}),
        "b": FaultyShortestPath({2: ZeroDivisionError("oh")}),
        "c": FaultyShortestPath({}, wrong_shape=4),
        "d": FaultyShortestPath({4: InputError("d", "", "x", "y")}),
        "lp-all": make_scheme("lp-all"),
    }
    rows, notices = _run(b4, schemes, [0, 1, 2])
    assert len(rows) == 15
    failed = {(row.scheme, row.index): row.note for row in rows if not row.usable}
    assert failed.pop(("a", 1)) == "no licence"
    assert failed.pop(("b", 0)) == "ZeroDivisionError: oh"
    assert failed.pop(("c", 2)) == (
        "ValueError: splits must be an array of shape (1, 132, 4) (matrices, demands, paths), "
        "not (1, 131, 4)"
    )
    assert failed.pop(("d", 2)) == "d: expected x, found y"
    assert not failed
    assert len(notices) == 4
    assert all(math.isnan(row.value) and math.isnan(row.total_s) for row in rows if not row.usable)
    for row in rows:
        if row.scheme != "lp-all" and row.usable:
            exact = next(r for r in rows if r.scheme == "lp-all" and r.index == row.index)
            assert row.gap_known == pytest.approx((exact.bound - row.value) / exact.bound)


def test_a_scheme_that_cannot_start_is_excluded(b4: Instance) -> None:
    scheme = FaultyShortestPath({1: SolverError("not installed")})
    rows, notices = _run(b4, {"a": scheme, "sp": FaultyShortestPath({})}, [0, 1])
    assert [row.note for row in rows if row.scheme == "a"] == ["not installed"] * 2
    assert scheme.calls == 1
    assert len(notices) == 1
    schemes = {"a": FaultyShortestPath({1: InputError("a", "K", "4", 3)})}
    with pytest.raises(InputError, match="a: K"):
        _run(b4, schemes, [0])
    rows, _ = _run(
        b4, {"a": FaultyShortestPath({1: InputError("a", "K", "4", 3)})}, [0], strict=False
    )
    assert rows[0].note == "a: K: expected 4, found 3"


@pytest.mark.parametrize("compiles", [False, True])
def test_a_scheme_that_is_too_slow_is_excluded_and_not_warmed_up_twice(
    b4: Instance, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = itertools.count()  # another kernel whenever it is asked, or always none
    monkeypatch.setattr(
        "teal_study.evaluation.evaluate.num_compiled", lambda: next(forms) if compiles else 0
    )
    slow, patient = FaultyShortestPath({}, slow=100.0), FaultyShortestPath({}, slow=50.0)
    rows, notices = _run(b4, {"slow": slow, "patient": patient}, [0, 1, 2], time_limit=60.0)
    assert [row.usable for row in rows if row.scheme == "slow"] == [True, False, False]
    assert "100 s" in rows[2].note
    assert slow.calls == 1, (
        "the allocation of the warm-up, after 100 s, is used for the first matrix"
    )
    assert all(row.usable for row in rows if row.scheme == "patient")
    assert patient.calls == (4 if compiles else 3), (
        "50 s are spent again only if kernels were compiled in them"
    )
    # A resumed evaluation is given the schemes that were excluded.
    evaluation = Evaluation(
        b4, {"slow": slow}, time_limit=60.0, already_excluded={"slow": rows[2].note}
    )
    cases = Cases(b4.topology, b4.traffic, np.array([0, 1]))
    (result,) = evaluation.run(cases, {"offline//0/0": [rows[0]]})
    assert not result.rows[0].usable
    assert result.rows[0].note == rows[2].note
    assert slow.calls == 1
    assert len(notices) == 1


def test_the_time_of_a_scheme_is_measured_and_what_it_reports_stands_beside_it(
    b4: Instance,
) -> None:
    rows, _ = _run(b4, {"slept": FaultyShortestPath({}, slow=0.5)}, [0, 1])
    for row in rows:
        assert (row.build_s, row.solve_s) == (0.0, 1e-6)
        assert row.total_s == row.wall_s == pytest.approx(0.5)
    (summary,) = summarise(rows)
    assert summary.total_s == pytest.approx(0.5)
    assert summary.solve_s == 1e-6


def test_the_time_limit_applies_to_measured_time_and_to_failures(b4: Instance) -> None:
    schemes = {
        "underreports": FaultyShortestPath({}, slow=0.6),
        "crash": FaultyShortestPath({2: ValueError("late")}, slow=0.6),
        "sp": FaultyShortestPath({}, slow=0.1),
    }
    rows, _ = _run(b4, schemes, [0, 1], time_limit=0.5)
    row_of = {(row.scheme, row.index): row for row in rows}
    assert row_of["underreports", 0].usable
    assert row_of["crash", 0].note == "ValueError: late"
    for name in ("underreports", "crash"):
        assert row_of[name, 1].note.startswith("left out")
    assert row_of["sp", 1].usable


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_resumed_evaluation_records_the_same_failures(b4: Instance, stop: int) -> None:
    class FailsOnMatrices:
        """Fails on given matrices, at whichever call they come."""

        def __init__(self, hard: list[int], error: Exception) -> None:
            self.hard, self.error = [b4.traffic.read([i])[0] for i in hard], error

        def solve(self, problem: Problem) -> Allocation:
            if any(np.array_equal(problem.demand[0].numpy(), demand) for demand in self.hard):
                raise self.error
            return make_scheme("shortest-path").solve(problem)

    def schemes() -> dict[str, Any]:
        return {
            "a": FailsOnMatrices([2], SolverError("no")),
            "b": FailsOnMatrices([1, 3], InputError("b", "", "x", "y")),
            "c": FailsOnMatrices([0], SolverError("never")),
        }

    cases = Cases(b4.topology, b4.traffic, np.arange(5))
    first = Evaluation(b4, schemes())
    whole = list(first.run(cases))
    failed = {(row.scheme, row.index) for result in whole for row in result.rows if not row.usable}
    assert failed == {("a", 2), ("b", 1), ("b", 3), *(("c", i) for i in range(5))}
    rest = Evaluation(b4, schemes(), already_excluded=dict(first.excluded)).run(
        cases, {result.key: result.rows for result in whole[:stop]}
    )
    for resumed, uninterrupted in zip(rest, whole[stop:], strict=True):
        assert [(row.status, row.note) for row in resumed.rows] == [
            (row.status, row.note) for row in uninterrupted.rows
        ]
    (remaining,) = [
        Evaluation(b4, {"b": schemes()["b"]}).run(
            cases, {result.key: result.rows[1:2] for result in whole[:3]}
        )
    ]
    assert [result.rows[0].usable for result in remaining] == [False, True], (
        "the scheme has worked before, so an InputError fails its row and does not end the run"
    )


def test_an_allocation_without_times_is_a_failure(b4: Instance) -> None:
    class SchemeWithoutTimes(FaultyShortestPath):
        def solve(self, problem: Problem) -> Allocation:
            return dataclasses.replace(super().solve(problem), solve_s=())

    rows, _ = _run(b4, {"a": SchemeWithoutTimes({}), "sp": FaultyShortestPath({})}, [0])
    assert not rows[0].usable
    assert "IndexError" in rows[0].note


def test_evaluation_runs_without_a_progress_bar(
    b4: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "teal_study.evaluation.evaluate.progress_bar", partial(progress_bar, disable=True)
    )
    assert len(_run(b4, {"sp": FaultyShortestPath({})}, [0, 1])[0]) == 2


def test_a_following_scheme_gets_the_problem_of_the_previous_interval(b4: Instance) -> None:
    scheme = FollowingScheme({})
    _run(b4, {"a": scheme}, [0, 4])
    assert scheme.before[:2] == [None, None], (
        "neither the warm-up nor the first matrix has a previous interval"
    )
    (last,) = scheme.before[2:]
    assert last is not None
    np.testing.assert_array_equal(last.demand[0].numpy(), b4.traffic.read([3])[0])


def test_warm_pdhg_starts_from_the_solution_of_the_previous_interval(
    b4: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[Any] = []
    solve = pipeline.solve

    def recording_solve(problem: Problem, **options: Any) -> SolveResult:
        starts.append(options["warm_start"])
        return solve(problem, **options)

    monkeypatch.setattr("teal.schemes.pdhg.pipeline.solve", recording_solve)
    rows, _ = _run(b4, {"pdhg:gap=0.01,warm=true": make_scheme("pdhg:gap=0.01,warm=true")}, [0, 2])
    assert all(row.gap <= 0.01 + 1e-9 for row in rows)
    assert starts[:2] == [None, None], "the first matrix has no previous interval"
    before, warm = starts[2:]
    assert before is None
    problem = b4.problem(b4.traffic.read([1]))
    torch.testing.assert_close(warm.value, solve(problem, gap=0.01).value)
    with pytest.raises(InputError, match="warm"):
        make_scheme("pdhg:warm=lukewarm")


def test_online_results_of_a_fast_scheme_equal_its_offline_results(b4: Instance) -> None:
    schemes = {"lp-all": make_scheme("lp-all"), "slow": FaultyShortestPath({}, slow=450.0)}
    rows, _ = _run(b4, schemes, [0, 1, 2, 3], interval_s=300.0)
    row_of = {(row.scheme, row.protocol, row.index): row for row in rows}
    assert len(row_of) == 4 * 2 * 2
    for index in range(4):
        offline, online = (row_of["lp-all", protocol, index] for protocol in ("offline", "online"))
        assert online.level == "300s"
        assert online.satisfied_demand == pytest.approx(offline.satisfied_demand, rel=1e-3)
        assert online.satisfied_demand <= offline.satisfied_demand + 1e-9
        assert online.gap_known == pytest.approx(
            (offline.bound - online.value) / offline.bound, abs=1e-9
        )
    # The slow scheme: allocation 0 is in force at once, allocation 1 from the middle of interval 2
    # on.
    stale = row_of["slow", "online", 1]
    assert stale.satisfied_demand < row_of["slow", "offline", 1].satisfied_demand
    for row in rows:
        assert row.max_violation < 1e-9
    mlu = dataclasses.replace(b4, objective=Objective(ObjectiveName.MAX_LINK_UTILISATION))
    with pytest.raises(InputError, match="--online"):
        Evaluation(mlu, schemes, interval_s=300.0)


def test_a_resumed_online_evaluation_equals_an_uninterrupted_one(b4: Instance) -> None:
    cases = Cases(b4.topology, b4.traffic, np.arange(5))
    schemes = {
        "slow": FaultyShortestPath({}, slow=450.0),
        "fast": FaultyShortestPath({}, slow=30.0),
    }
    whole = list(Evaluation(b4, schemes, interval_s=300.0).run(cases))
    for stop in range(1, 5):
        finished = {result.key: list(result.rows) for result in whole[:stop]}
        rest = list(Evaluation(b4, schemes, interval_s=300.0).run(cases, finished))
        assert [result.key for result in rest] == [result.key for result in whole[stop:]]
        for resumed, uninterrupted in zip(rest, whole[stop:], strict=True):
            assert [row.value for row in resumed.rows] == [row.value for row in uninterrupted.rows]
