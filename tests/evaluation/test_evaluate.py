"""The loop over schemes and cases, with schemes that misbehave."""

from __future__ import annotations

import dataclasses
import math
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tqdm import tqdm

from teal.errors import InputError, SolverError
from teal.evaluation import CaseResult, Evaluation, Row
from teal.evaluation.cases import Cases
from teal.evaluation.instance import Instance
from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.schemes.registry import make_scheme
from teal.solvers import pdhg


@pytest.fixture(scope="module")
def b4() -> Instance:
    topology = load_topology("b4")
    traffic = load_traffic("gravity:seed=0,count=6,load=3", topology)
    paths = compute_paths(topology, traffic.pairs, cache=False)
    return Instance(topology, traffic, paths, Objective(), None, traffic.split(), torch.device("cpu"))


class Sometimes:
    """Shortest paths, but for some calls."""

    def __init__(self, faults: dict[int, Exception], wrong_shape: int = -1, slow: float = 0.0) -> None:
        self.calls, self.faults, self.wrong_shape, self.slow = 0, faults, wrong_shape, slow
        self.before: list[Problem | None] = []

    def solve(self, problem: Problem) -> Allocation:
        self.calls += 1
        if self.calls in self.faults:
            raise self.faults[self.calls]
        answer = make_scheme("shortest-path").solve(problem)
        if self.calls == self.wrong_shape:
            return dataclasses.replace(answer, splits=answer.splits[:, :-1])
        return dataclasses.replace(answer, solve_s=(self.slow,)) if self.slow else answer


class Following(Sometimes):
    def follow(self, before: Problem | None) -> None:
        self.before.append(before)


def _run(b4: Instance, schemes: dict[str, Any], rows: list[int], **options: Any) -> tuple[list[Row], list[str]]:
    said: list[str] = []
    evaluation = Evaluation(b4, schemes, notify=said.append, **options)
    found = list(evaluation.run(Cases(b4.topology, b4.traffic, np.array(rows))))
    assert all(isinstance(measured, CaseResult) for measured in found)
    return [row for measured in found for row in measured.rows], said


def test_a_failure_fails_its_row_alone_and_says_why(b4: Instance) -> None:
    # The first call warms up; the third is the second matrix.
    schemes = {
        "a": Sometimes({3: SolverError("no\n licence")}),
        "b": Sometimes({2: ZeroDivisionError("oh")}),
        "c": Sometimes({}, wrong_shape=4),
        "d": Sometimes({4: InputError("d", "", "x", "y")}),
        "lp-all": make_scheme("lp-all"),
    }
    rows, said = _run(b4, schemes, [0, 1, 2])
    assert len(rows) == 15
    failed = {(row.scheme, row.index): row.note for row in rows if not row.usable}
    assert failed.pop(("a", 1)) == "no licence"
    assert failed.pop(("b", 0)) == "ZeroDivisionError: oh"
    assert failed.pop(("c", 2)) == "ValueError: splits must be (1, 132, 4), are (1, 131, 4)"
    assert failed.pop(("d", 2)) == "d: expected x, found y"
    assert not failed
    assert len(said) == 4
    assert all(math.isnan(row.value) and math.isnan(row.total_s) for row in rows if not row.usable)
    for row in rows:
        if row.scheme != "lp-all" and row.usable:
            best = next(r for r in rows if r.scheme == "lp-all" and r.index == row.index)
            assert row.gap_known == pytest.approx((best.bound - row.value) / best.bound)


def test_a_scheme_that_cannot_start_is_excluded(b4: Instance) -> None:
    scheme = Sometimes({1: SolverError("not installed")})
    rows, said = _run(b4, {"a": scheme, "sp": Sometimes({})}, [0, 1])
    assert [row.note for row in rows if row.scheme == "a"] == ["not installed"] * 2
    assert scheme.calls == 1
    assert len(said) == 1
    wrong = {"a": Sometimes({1: InputError("a", "K", "4", 3)})}
    with pytest.raises(InputError, match="a: K"):
        _run(b4, wrong, [0])
    rows, _ = _run(b4, {"a": Sometimes({1: InputError("a", "K", "4", 3)})}, [0], strict=False)
    assert rows[0].note == "a: K: expected 4, found 3"


def test_a_scheme_that_is_too_slow_is_excluded_and_not_warmed_up_twice(b4: Instance) -> None:
    slow, patient = Sometimes({}, slow=100.0), Sometimes({}, slow=50.0)
    rows, said = _run(b4, {"slow": slow, "patient": patient}, [0, 1, 2], time_limit=60.0)
    assert [row.usable for row in rows if row.scheme == "slow"] == [True, False, False]
    assert "100 s" in rows[2].note
    assert slow.calls == 1, "what warming up made, after 100 s, is the answer of the first matrix"
    assert all(row.usable for row in rows if row.scheme == "patient")
    assert patient.calls == 4
    # A run that continues is told.
    evaluation = Evaluation(b4, {"slow": slow}, time_limit=60.0, left_out={"slow": rows[2].note})
    cases = Cases(b4.topology, b4.traffic, np.array([0, 1]))
    (measured,) = evaluation.run(cases, {"offline//0/0": [rows[0]]})
    assert not measured.rows[0].usable
    assert measured.rows[0].note == rows[2].note
    assert slow.calls == 1
    assert len(said) == 1


class Dawdling(Sometimes):
    def solve(self, problem: Problem) -> Allocation:
        time.sleep(0.6)
        return super().solve(problem)


def test_the_limit_goes_by_our_clock_and_for_failures_too(b4: Instance) -> None:
    schemes = {"liar": Dawdling({}, slow=1e-6), "crash": Dawdling({2: ValueError("late")}), "sp": Sometimes({})}
    rows, _ = _run(b4, schemes, [0, 1], time_limit=0.5)
    by = {(row.scheme, row.index): row for row in rows}
    assert by["liar", 0].usable
    assert by["crash", 0].note == "ValueError: late"
    for name in ("liar", "crash"):
        assert by[name, 1].note.startswith("left out")
    assert by["sp", 1].usable


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_broken_off_run_meets_the_same_failures(b4: Instance, stop: int) -> None:
    class Hard:
        """Fails on some matrices, by what they are, not by when it is asked."""

        def __init__(self, hard: list[int], error: Exception) -> None:
            self.hard, self.error = [b4.traffic.read([i])[0] for i in hard], error

        def solve(self, problem: Problem) -> Allocation:
            if any(np.array_equal(problem.demand[0].numpy(), demand) for demand in self.hard):
                raise self.error
            return make_scheme("shortest-path").solve(problem)

    def schemes() -> dict[str, Any]:
        return {
            "a": Hard([2], SolverError("no")),
            "b": Hard([1, 3], InputError("b", "", "x", "y")),
            "c": Hard([0], SolverError("never")),
        }

    cases = Cases(b4.topology, b4.traffic, np.arange(5))
    first = Evaluation(b4, schemes())
    whole = list(first.run(cases))
    failed = {(row.scheme, row.index) for m in whole for row in m.rows if not row.usable}
    assert failed == {("a", 2), ("b", 1), ("b", 3), *(("c", i) for i in range(5))}
    rest = Evaluation(b4, schemes(), left_out=dict(first.excluded)).run(cases, {m.key: m.rows for m in whole[:stop]})
    for again, once in zip(rest, whole[stop:], strict=True):
        assert [(r.status, r.note) for r in again.rows] == [(r.status, r.note) for r in once.rows]
    (alone,) = [Evaluation(b4, {"b": schemes()["b"]}).run(cases, {m.key: m.rows[1:2] for m in whole[:3]})]
    assert [m.rows[0].usable for m in alone] == [False, True], "known to work, so no fault of the user's"


def test_a_malformed_answer_is_a_failure(b4: Instance) -> None:
    class Timeless(Sometimes):
        def solve(self, problem: Problem) -> Allocation:
            return dataclasses.replace(super().solve(problem), solve_s=())

    rows, _ = _run(b4, {"a": Timeless({}), "sp": Sometimes({})}, [0])
    assert not rows[0].usable
    assert "IndexError" in rows[0].note


def test_without_a_progress_bar(b4: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teal.evaluation.evaluate.tqdm", partial(tqdm, disable=True))
    assert len(_run(b4, {"sp": Sometimes({})}, [0, 1])[0]) == 2


def test_a_follower_is_told_the_interval_before(b4: Instance) -> None:
    scheme = Following({})
    _run(b4, {"a": scheme}, [0, 4])
    assert scheme.before[:2] == [None, None], "warming up, and the first matrix of all"
    (last,) = scheme.before[2:]
    assert last is not None
    np.testing.assert_array_equal(last.demand[0].numpy(), b4.traffic.read([3])[0])


def test_warm_pdhg_starts_where_the_interval_before_ended(b4: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[Any] = []
    solve = pdhg.solve

    def spied(problem: Problem, **options: Any) -> pdhg.PdhgResult:
        starts.append(options["warm_start"])
        return solve(problem, **options)

    monkeypatch.setattr("teal.schemes.pdhg.pdhg.solve", spied)
    rows, _ = _run(b4, {"pdhg:gap=0.01,warm=true": make_scheme("pdhg:gap=0.01,warm=true")}, [0, 2])
    assert all(row.gap <= 0.01 + 1e-9 for row in rows)
    assert starts[:2] == [None, None], "there is nothing before the first matrix"
    before, warm = starts[2:]
    assert before is None
    problem = b4.problem(b4.traffic.read([1]))
    torch.testing.assert_close(warm.value, solve(problem, gap=0.01).value)
    with pytest.raises(InputError, match="warm"):
        make_scheme("pdhg:warm=lukewarm")


def test_online_is_offline_for_one_that_takes_no_time(b4: Instance) -> None:
    schemes = {"lp-all": make_scheme("lp-all"), "slow": Sometimes({}, slow=450.0)}
    rows, _ = _run(b4, schemes, [0, 1, 2, 3], interval_s=300.0)
    by = {(row.scheme, row.protocol, row.index): row for row in rows}
    assert len(by) == 4 * 2 * 2
    for index in range(4):
        offline, online = (by["lp-all", protocol, index] for protocol in ("offline", "online"))
        assert online.level == "300s"
        assert online.satisfied_demand == pytest.approx(offline.satisfied_demand, rel=1e-3)
        assert online.satisfied_demand <= offline.satisfied_demand + 1e-9
        assert online.gap_known == pytest.approx((offline.bound - online.value) / offline.bound, abs=1e-9)
    # Slow: answer 0 is there at once; 1 is in force from the middle of interval 2 on.
    stale = by["slow", "online", 1]
    assert stale.satisfied_demand < by["slow", "offline", 1].satisfied_demand
    for row in rows:
        assert row.max_violation < 1e-9
    mlu = dataclasses.replace(b4, objective=Objective(ObjectiveName.MAX_LINK_UTILISATION))
    with pytest.raises(InputError, match="--online"):
        Evaluation(mlu, schemes, interval_s=300.0)


def test_online_goes_on_as_if_it_had_never_stopped(b4: Instance) -> None:
    cases = Cases(b4.topology, b4.traffic, np.arange(5))
    schemes = {"slow": Sometimes({}, slow=450.0), "fast": Sometimes({}, slow=30.0)}
    whole = list(Evaluation(b4, schemes, interval_s=300.0).run(cases))
    for stop in range(1, 5):
        done = {measured.key: list(measured.rows) for measured in whole[:stop]}
        rest = list(Evaluation(b4, schemes, interval_s=300.0).run(cases, done))
        assert [m.key for m in rest] == [m.key for m in whole[stop:]]
        for a, b in zip(rest, whole[stop:], strict=True):
            assert [r.value for r in a.rows] == [r.value for r in b.rows]
