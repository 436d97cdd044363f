"""Calibration of the cost model: factors of a machine that is known to be slower, and what is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from teal.runtime.interruptible import Deadline
from teal.solvers import calibration, cost_model
from teal.solvers.calibration import Case, factors_of, held_out_slowdowns, slowdowns
from teal.solvers.contract import Limits, Start
from teal.solvers.cost_model import Features, features
from teal.solvers.engine_choice import choose_engines
from teal.testing import random_problem


@pytest.fixture(autouse=True)
def _own_factors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache folder, and no factors of it after the test."""
    monkeypatch.setenv("TEAL_CACHE_DIR", str(tmp_path))
    cost_model._stored_factors.cache_clear()
    yield
    cost_model._stored_factors.cache_clear()


def _program(kind: str = "shed") -> Features:
    return Features(kind, features(20, 400, 5_000, 2_000, 1, 1e-4), 2_000, 1, False, True)


def _case(
    network: str, interior: tuple[float, float], pdhg: tuple[float, float], kind: str = "shed"
) -> Case:
    """A case with (measured, predicted) seconds of each engine."""
    measured = {"interior": interior[0], "pdhg": pdhg[0]}
    predicted = {"interior": interior[1], "pdhg": pdhg[1]}
    return Case(network, _program(kind), False, measured, predicted)


def test_factors_are_geometric_means_by_engine_kind_and_start() -> None:
    cases = [
        _case("a", (2.0, 1.0), (1.0, 1.0)),
        _case("b", (8.0, 1.0), (3.0, 6.0)),
        _case("b", (1.0, 4.0), (1.0, 1.0), kind="carry"),
    ]
    factors = factors_of(cases)
    assert factors["interior, shed, cold"] == pytest.approx(4.0)  # sqrt(2 * 8)
    assert factors["pdhg, shed, cold"] == pytest.approx(math.sqrt(0.5))
    assert factors["interior, carry, cold"] == pytest.approx(0.25)
    assert not any("warm" in key for key in factors)


def test_a_slowdown_is_the_time_of_the_choice_over_the_best() -> None:
    cases = [_case("a", (4.0, 1.0), (2.0, 3.0)), _case("b", (1.0, 1.0), (5.0, 3.0))]
    assert slowdowns(cases, {}) == [2.0, 1.0]
    # Interior points take four times as long here: the other engine is chosen in both cases.
    assert slowdowns(cases, {"interior, shed, cold": 4.0}) == [1.0, 5.0]


def test_held_out_networks_do_not_fit_their_own_factors() -> None:
    """Two networks that contradict each other: each is chosen for by the factors of the other."""
    cases = [_case("a", (4.0, 1.0), (2.0, 2.0)), _case("b", (1.0, 1.0), (8.0, 2.0))]
    assert sorted(held_out_slowdowns(cases)) == [2.0, 8.0]


def test_stored_factors_multiply_predictions() -> None:
    program = _program()
    before = cost_model.seconds("pdhg", program, is_warm=True)
    assert before == cost_model.uncorrected_seconds("pdhg", program, is_warm=True)
    cost_model.store_factors({cost_model.factor_key("pdhg", "shed", is_warm=True): 3.0})
    assert cost_model.seconds("pdhg", program, is_warm=True) == pytest.approx(3 * before)
    for engine, kind, is_warm in (
        ("pdhg", "shed", False),
        ("interior", "shed", True),
        ("pdhg", "carry", True),
    ):
        other = _program(kind)
        expected = cost_model.uncorrected_seconds(engine, other, is_warm=is_warm)
        assert cost_model.seconds(engine, other, is_warm=is_warm) == expected


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1, 2]", "7", json.dumps({"pdhg, shed, cold": None})],
)
def test_an_unreadable_file_of_factors_is_none(text: str) -> None:
    path = cost_model.store_factors({"pdhg, shed, cold": 2.0})
    path.write_text(text)
    cost_model._stored_factors.cache_clear()
    program = _program()
    expected = cost_model.uncorrected_seconds("pdhg", program, is_warm=False)
    assert cost_model.seconds("pdhg", program, is_warm=False) == expected


@pytest.mark.parametrize("factor", ["0", "-1", "NaN", "Infinity"])
def test_a_factor_that_is_no_positive_number_is_ignored(factor: str) -> None:
    path = cost_model.store_factors({})
    path.write_text(f'{{"pdhg, shed, cold": {factor}, "interior, shed, cold": 2.0}}')
    cost_model._stored_factors.cache_clear()
    program = _program()
    for engine, expected in (("pdhg", 1.0), ("interior", 2.0)):
        uncorrected = cost_model.uncorrected_seconds(engine, program, is_warm=False)
        assert cost_model.seconds(engine, program, is_warm=False) == pytest.approx(
            expected * uncorrected
        )


def test_factors_are_stored_where_they_help_and_removed_where_they_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interior points are four times slower here than predicted, on both networks; then on one."""
    measured = [_case(name, (4.0, 1.0), (2.0, 2.0)) for name in "ab"]
    monkeypatch.setattr(calibration, "_measured_cases", lambda: iter(measured))
    found = calibration.calibrate()
    assert found.before == [2.0, 2.0]
    assert found.after == [1.0, 1.0]
    assert found.path is not None
    assert found.factors["interior, shed, cold"] == pytest.approx(4.0)
    assert cost_model.calibration_factor("interior", _program(), is_warm=False) == pytest.approx(
        4.0
    )
    measured[1] = _case("b", (1.0, 1.0), (8.0, 2.0))
    found = calibration.calibrate()
    assert found.path is None
    assert found.factors == {}
    assert cost_model.calibration_factor("interior", _program(), is_warm=False) == 1.0


def test_equal_factors_change_no_choice() -> None:
    """On a machine that is three times slower in everything, the same engines and iterations."""
    # PDHG begins.
    problem = random_problem(5, nodes=25, density=0.15, batch=16, num_paths=6)
    size = cost_model.features_of(problem, (20, 400, 5_000), 1e-2)

    def chosen() -> tuple[list[int | None], bool]:
        choice = choose_engines(
            problem, Start(), Limits(1e-2, Deadline(), 10_000), "auto", None, may_span_decades=False
        )
        return [turn.max_iterations for turn in choice.runs], cost_model.saves_time_from_model(size)

    before = chosen()
    assert before[0][0] is not None
    cost_model.store_factors(
        {
            cost_model.factor_key(engine, kind, is_warm=is_warm): 3.0
            for engine in ("interior", "pdhg")
            for kind in ("shed", "carry", "utility")
            for is_warm in (False, True)
        }
    )
    assert chosen() == before


def _solved(gap: float) -> Any:
    return SimpleNamespace(gap=torch.tensor([gap]))


@pytest.mark.parametrize(("gap", "expected"), [(1e-3, 0.5), (0.1, 1.5)])
def test_the_first_call_and_the_target_decide_what_a_time_counts(
    monkeypatch: pytest.MonkeyPatch, gap: float, expected: float
) -> None:
    """A clock of its own: the first call of each engine loads kernels and takes 8 s, further ones
    0.5 s; an engine that misses the target counts three times."""
    clock = [0.0]
    calls: list[str] = []
    monkeypatch.setattr(calibration, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def solve(engine: str, deadline: float) -> Any:
        clock[0] += 0.5 if engine in calls else 8.0
        calls.append(engine)
        return _solved(1e-3 if engine == "interior" else gap)

    measured = calibration._measured_in_turn(solve, 1e-2, 5.0)
    assert measured == pytest.approx({"interior": 0.5, "pdhg": expected})
    assert calls == ["interior", "fused"] * 2


def test_a_program_that_no_engine_solves_is_left_out() -> None:
    assert calibration._measured_in_turn(lambda engine, deadline: _solved(0.1), 1e-2, 5.0) == {}


def test_a_network_is_measured_cold_warm_and_in_a_batch() -> None:
    cases = list(calibration.measure("net", random_problem(3, batch=4), 5.0))
    assert [(case.is_warm, case.program.batch) for case in cases] == [
        (False, 1),
        (True, 1),
        (False, 3),
    ] * 3
    for case in cases:
        assert set(case.measured_s) == set(case.predicted_s) == {"interior", "pdhg"}
        assert all(seconds > 0 for seconds in case.measured_s.values())
