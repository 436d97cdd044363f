"""Old public names against the new ones, and against the names that packages export."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import teal
from teal.app.command import EXIT_INPUT
from teal.app.options import options_of
from teal.cli import main
from teal.cli.commands import COMMANDS
from teal.deprecated import ATTRIBUTES, KEYWORDS, MOVED, NAMES, OPTIONS, PACKAGES, new_option
from teal.errors import InputError
from teal.network import PathSet
from teal.objectives import Objective
from teal.problem.assessment import Assessment, WithPartCertificates
from teal.problem.condition import Condition, with_condition
from teal.runtime.interruptible import Deadline
from teal.runtime.parallel import threads_for
from teal.schemes.past import Past
from teal.schemes.solve import solve
from teal.solvers import pipeline
from teal.testing import random_problem
from teal_availability import (
    Guarantee,
    common_quantile,
    guarantee_common_fraction,
    guarantee_common_fractions,
    guarantee_min_cvar,
    guarantee_min_loss,
    most_probable_states,
)
from teal_availability.states import States
from teal_availability.tail_loss import MergedStates
from teal_ip.metrics.settings import MetricsOptions
from teal_ip.purchases.hose import Hose
from teal_ip.purchases.scenarios import Scenarios, scenarios_of
from teal_ip.surveys.survey import SurveyReport
from teal_serve.engine.measured import MeasuredMatrices


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [(package, old, new) for package, names in NAMES.items() for old, new in names.items()],
)
def test_an_old_name_warns_and_is_the_new_one(package: str, old: str, new: str) -> None:
    module = importlib.import_module(package)
    with pytest.warns(DeprecationWarning, match=rf"{old} is deprecated: use {package}\.{new}"):
        value = getattr(module, old)
    assert value is getattr(module, new)
    exported = getattr(module, "__all__", None)
    assert exported is None or (new in exported and old not in exported)


def test_a_name_that_moved_warns_and_is_the_same_object() -> None:
    for package, names in MOVED.items():
        for name, target in names.items():
            module, _, new_name = target.partition(":")
            new_name = new_name or name
            with pytest.warns(DeprecationWarning, match=rf"use {module}\.{new_name}$"):
                value = getattr(importlib.import_module(package), name)
            assert value is getattr(importlib.import_module(module), new_name)


_MODULE_OF = {
    "teal.client": "faults",
    "teal.evaluation": "settings",
    "teal.learning": "settings",
    "teal.planning": "settings",
    "teal.serving": "engine.errors",
}


@pytest.mark.parametrize(("old", "new"), PACKAGES.items())
def test_a_module_of_a_package_that_moved_warns_and_is_the_same_module(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of a module would have two classes of the same name, which no except clause of the
    other one catches."""
    for name in [name for name in sys.modules if name.startswith(old)]:
        monkeypatch.delitem(sys.modules, name)
    inner = _MODULE_OF[old]
    with pytest.warns(DeprecationWarning, match=rf"module {old}(\.\w+)* is deprecated: use {new}"):
        moved = importlib.import_module(f"{old}.{inner}")
    present = importlib.import_module(f"{new}.{inner}")
    assert moved is present
    assert moved.__name__ == f"{new}.{inner}"
    assert moved.__spec__ is not None
    assert moved.__spec__.name == f"{new}.{inner}"
    assert getattr(importlib.import_module(new), inner.split(".")[0]).__name__.startswith(new)
    assert importlib.util.find_spec(f"{old}.no_such_module") is None


def test_an_old_name_works_through_teal_too() -> None:
    """``import teal`` has the names of all packages."""
    with pytest.warns(DeprecationWarning, match="Promise is deprecated"):
        value = getattr(teal, "Promise")  # noqa: B009
    assert value is getattr(teal, "Guarantee")  # noqa: B009


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    for package in NAMES:
        with pytest.raises(AttributeError):
            _ = importlib.import_module(package).no_such_name


def test_an_old_attribute_warns_and_is_the_new_one() -> None:
    matrices = MeasuredMatrices.__new__(MeasuredMatrices)
    matrices.max_matrices = 3
    past = Past.__new__(Past)
    object.__setattr__(past, "traffic", SimpleNamespace(num_matrices=4, num_demands=6))
    cases: dict[str, Any] = {
        "Assessment": Assessment,
        "Guarantee": Guarantee,
        "Hose": Hose,
        "MergedStates": MergedStates,
        "Problem": teal.Problem,
        "Scenarios": Scenarios,
        "States": States,
        "SurveyReport": SurveyReport,
        "WithPartCertificates": WithPartCertificates,
    }
    instances: dict[str, Any] = {
        "Deadline": Deadline(),
        "MeasuredMatrices": matrices,
        "Past": past,
    }
    for name, cls in cases.items():
        instances[name] = cls.__new__(cls)
        for new in ATTRIBUTES[name].values():
            if not hasattr(cls, new):
                object.__setattr__(instances[name], new, object())
    assert ATTRIBUTES.keys() == instances.keys()
    for name, attributes in ATTRIBUTES.items():
        for old, new in attributes.items():
            with pytest.warns(DeprecationWarning, match=rf"{name}\.{old} is deprecated: use {new}"):
                value = getattr(instances[name], old)
            assert value == getattr(instances[name], new)


def _functions_with_old_keywords() -> dict[str, Any]:
    functions: list[Any] = [
        threads_for,
        most_probable_states,
        Past.before,
        common_quantile,
        guarantee_common_fraction,
        guarantee_common_fractions,
        guarantee_min_cvar,
        guarantee_min_loss,
        PathSet.incidences,
        scenarios_of,
        solve,
    ]
    return {function.__qualname__: function for function in functions}


def test_every_old_keyword_belongs_to_a_function_that_has_the_new_one() -> None:
    functions = _functions_with_old_keywords()
    assert functions.keys() == KEYWORDS.keys()
    for name, keywords in KEYWORDS.items():
        parameters = inspect.signature(functions[name]).parameters
        assert set(keywords.values()) <= set(parameters), name
        assert not set(keywords) & set(parameters), name


def test_an_old_keyword_warns_and_is_the_new_one() -> None:
    options: dict[str, Any] = {"least": 1}
    with pytest.warns(DeprecationWarning, match=r"threads_for\(least=\) is deprecated"):
        context = threads_for(1, **options)
    with context, threads_for(1, min_operations=1):
        pass
    with pytest.raises(TypeError):
        threads_for(1, never=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", sorted(KEYWORDS))
def test_a_function_with_old_keywords_warns_for_each(name: str) -> None:
    """The call fails, since other arguments are missing or wrong; the warning comes before."""
    for old, new in KEYWORDS[name].items():
        message = rf"{name}\({old}=\) is deprecated: use {new}"
        with (
            pytest.warns(DeprecationWarning, match=message),
            contextlib.suppress(Exception),
        ):
            _functions_with_old_keywords()[name](**{old: None})


@pytest.mark.parametrize(("old", "new"), KEYWORDS["most_probable_states"].items())
def test_old_keywords_of_network_states_limit_them_as_the_new_ones(old: str, new: str) -> None:
    unavailability = np.array([0.1, 0.2, 0.3])
    limit = {"rest": 0.05, "most_down": 1, "most_states": 3}[old]
    old_options: dict[str, Any] = {old: limit}
    new_options: dict[str, Any] = {new: limit}
    with pytest.warns(DeprecationWarning, match=old):
        states = most_probable_states(unavailability, **old_options)
    assert states.down == most_probable_states(unavailability, **new_options).down
    assert len(states) < 8


def _settings() -> dict[str, type]:
    """Every class of settings of a command and its base classes, by name."""
    classes = (cls for command in COMMANDS.values() for cls in command.settings.__mro__)
    return {cls.__name__: cls for cls in classes}


@pytest.mark.parametrize(
    ("settings", "old", "new"),
    [(settings, old, new) for settings, names in OPTIONS.items() for old, new in names.items()],
)
def test_an_old_option_stands_for_a_present_one(settings: str, old: str, new: str) -> None:
    cls = _settings()[settings]
    fields = {field.name for field in dataclasses.fields(cls)}
    assert new in fields
    assert old not in fields
    assert new_option(cls, old) == new
    assert new_option(cls, new) is None


def test_an_old_option_of_a_command_warns_and_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = [
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,load=2",
        "--cable-availability",
        "0.99",
    ]
    limits = ["--most-down", "1", "--rest=2", "--out", str(tmp_path)]
    assert main(["availability", *network, *limits]) == EXIT_INPUT
    error = capsys.readouterr().err
    assert "Warning: --most-down is deprecated: use --max-failed-components" in error
    assert "Warning: --rest is deprecated: use --max-unlisted-probability" in error
    # The value of the old option is checked as that of the new one.
    assert "--max-unlisted-probability: expected a share of the time" in error


def test_an_old_option_in_python_warns_and_is_read() -> None:
    with pytest.warns(DeprecationWarning, match="option most is deprecated: use max_metric"):
        options = options_of(MetricsOptions, {"most": 7})
    assert options.max_metric == 7
    with (
        pytest.warns(DeprecationWarning, match="option most is deprecated"),
        pytest.raises(InputError, match="max_metric: given by its old and its new name"),
    ):
        options_of(MetricsOptions, {"max_metric": 7, "most": 8})


def test_a_condition_with_the_old_name_of_its_factory_is_built_by_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match="asked is deprecated: name it from_request"):

        class Old(Condition):
            @classmethod
            def asked(cls, request: Any) -> Any:
                return cls, request

    build: Any = Old.from_request
    assert build("request") == (Old, "request")


def test_a_condition_with_the_old_name_of_its_requirement_still_excludes_others() -> None:
    with pytest.warns(DeprecationWarning, match="refuses is deprecated: name it unmet_requirement"):

        class Alone(Condition):
            name = "alone"

            def refuses(self, objective: Any, other_conditions: Any) -> str:
                return "no objective at all"

    assert Alone().unmet_requirement(Objective(), ()) == "no objective at all"
    with pytest.raises(InputError, match="no objective at all"):
        with_condition(Objective(), (), Alone())


def test_a_starter_with_the_old_name_of_its_warm_up_is_warmed_up() -> None:
    problem = random_problem(1)
    warmed = []

    class Old:
        def start(self, problem: Any) -> Any:
            return problem.even_splits, torch.zeros_like(problem.capacity)

        def rehearse(self, problem: Any) -> None:
            warmed.append(problem)

    with pytest.warns(DeprecationWarning, match="Old.rehearse is deprecated: name it warm_up"):
        pipeline.prepare(problem, starter=Old(), engine="fused")
    assert warmed == [problem]
