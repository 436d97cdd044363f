"""Parsers of specifications and durations against valid and malformed strings."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any, cast

import pytest

import teal
import teal_study
from teal import objectives
from teal.app.settings import seconds
from teal.errors import InputError
from teal.nn.flow_gnn_config import OTHER_FORMS, register_model
from teal.objectives import register_objective
from teal.problem import assessment
from teal.problem.assessment import register_certificate
from teal.schemes import hedges
from teal.schemes import registry as schemes
from teal.solvers import pipeline
from teal.solvers.pipeline import register_sequence
from teal.spec import Registry, parse_spec
from teal_study.learning.learners import LEARNERS, register_learner


def test_specification_gives_its_name_and_typed_options() -> None:
    spec = parse_spec("teal:repair=admm,iterations=5,quick-start=true")
    assert spec.name == "teal"
    assert spec.parse_options(repair="none", iterations=2, rho=0.5, quick_start=False) == {
        "repair": "admm",
        "iterations": 5,
        "rho": 0.5,
        "quick_start": True,
    }
    assert parse_spec("topohub:a/b,capacity=4", prefix="topohub:").options == {"capacity": "4"}
    assert parse_spec("b4").options == {}


@pytest.mark.parametrize("text", ["x:a", "x:=1", "x:a=", "x:a=1,b"])
def test_malformed_options_of_a_specification_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="key=value"):
        parse_spec(text)


@pytest.mark.parametrize("text", ["x:a=1,a=2", "x:a-b=1,a_b=1"])
def test_an_option_that_stands_twice_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="given twice"):
        parse_spec(text)


def _one(*_: Any) -> Any:
    return None


def _other(*_: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("register", "registry", "built_in"),
    [
        (teal.register_scheme, schemes._SCHEMES._registered, "pdhg"),
        (teal.register_hedge, hedges._HEDGES._registered, "saa"),
        (register_objective, objectives._RULES._registered, "total_flow"),
        (register_model, OTHER_FORMS._registered, "universal"),
        (register_learner, LEARNERS._registered, "coma"),
        (register_sequence, pipeline._SEQUENCES, "priority"),
        (register_certificate, assessment._CERTIFICATES, "max_min"),
    ],
)
def test_a_name_that_is_taken_is_replaced_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, register: Any, registry: dict[str, Any], built_in: str
) -> None:
    monkeypatch.setitem(registry, "mine", _one)
    register("mine", _one)
    for taken in ("mine", built_in):
        with pytest.raises(InputError, match="another entry has the name"):
            register(taken, _other)
    assert registry["mine"] is _one
    register("mine", _other, replace=True)
    assert registry["mine"] is _other


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("0.5s", 0.5)]
)
def test_durations_are_parsed_as_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "10x", "m", "-5s"])
def test_malformed_durations_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="a duration"):
        seconds(text)


def _entry_points_scheme() -> None:
    """A scheme that a package announces."""


def test_what_a_package_announces_may_be_registered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same object is one registration; another one of that name is refused."""
    point = EntryPoint("mine", f"{__name__}:_entry_points_scheme", "group")
    monkeypatch.setattr("teal.spec._entry_points", lambda group: {"mine": point})
    registry = Registry[Any]("scheme", "group")
    registry.add("mine", _entry_points_scheme)
    assert registry["mine"] is _entry_points_scheme
    with pytest.raises(InputError, match="another entry has the name"):
        Registry[Any]("scheme", "group").add("mine", print)


@pytest.mark.parametrize(
    ("make", "nearest"),
    [
        (lambda: teal.make_scheme("lp-al"), "lp-all"),
        (lambda: teal.make_scheme("teal:repiar=admm"), "repair"),
        (lambda: cast(Any, teal_study.train)("b4", "gravity", otu="x"), "out"),
    ],
)
def test_the_nearest_name_is_suggested(make: Callable[[], object], nearest: str) -> None:
    with pytest.raises(InputError, match=f"did you mean {nearest}"):
        make()
