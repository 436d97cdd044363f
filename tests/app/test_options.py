"""The options of every public function of Python: a word, a type or a name that there is not is
refused, by the same definition as the command's."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import teal
import teal_study
from teal.app.typed_values import SettingTypeError, typed
from teal.errors import InputError

teal_ip = pytest.importorskip("teal_ip")
teal_availability = pytest.importorskip("teal_availability")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "plan": teal_study.plan,
    "evaluate": teal_study.evaluate,
    "allocate": teal.allocate,
    "train": teal_study.train,
    "upgrade": teal_ip.upgrade,
    "simulate": teal_ip.simulate,
    "survey": teal_ip.survey,
    "estimate": teal_ip.estimate,
    "availability": teal_availability.availability,
    "admit": teal_availability.admit,
    "expand": teal_availability.expand,
}


class _NotAValue:
    """An object of a type that no option has."""


def _kinds(hint: Any) -> Iterator[Any]:
    """The simple types that an annotation accepts."""
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _kinds(get_args(hint)[0])
    elif origin in (Union, types.UnionType, tuple):
        for part in get_args(hint):
            yield from _kinds(part)
    else:
        yield hint


def _options(words: bool) -> list[tuple[str, str]]:
    """Function and name of each option; with ``words``, of those that are one of several words."""
    found = []
    for name, function in FUNCTIONS.items():
        hints = get_type_hints(function.options, include_extras=True)  # type: ignore[attr-defined]
        for field in dataclasses.fields(function.options):  # type: ignore[attr-defined]
            kinds = list(_kinds(hints[field.name]))
            is_word = any(
                get_origin(kind) is Literal
                or (isinstance(kind, type) and issubclass(kind, enum.Enum))
                for kind in kinds
            )
            # Free texts have words of their own, which their readers check.
            if (is_word and words and str not in kinds) or not words:
                found.append((name, field.name))
    return found


@pytest.mark.parametrize(("function", "option"), _options(words=True))
def test_a_word_that_there_is_not_is_refused(function: str, option: str) -> None:
    expected = rf"--{option.replace('_', '-')}: expected .*one of: .*found 'no-such-word'"
    with pytest.raises(InputError, match=expected):
        FUNCTIONS[function](None, None, **{option: "no-such-word"})


@pytest.mark.parametrize(("function", "option"), _options(words=False))
def test_a_value_of_another_type_is_refused(function: str, option: str) -> None:
    with pytest.raises(InputError, match=f"--{option.replace('_', '-')}: expected"):
        FUNCTIONS[function](None, None, **{option: _NotAValue()})


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_name_that_there_is_not_is_refused_with_the_nearest_one(function: str) -> None:
    with pytest.raises(InputError, match="did you mean"):
        FUNCTIONS[function](None, None, default_capacty=3.0)


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, "4", 4),
        (int, 4.0, 4),
        (int, np.int64(4), 4),
        (float, "0.5", 0.5),
        (float, np.float32(0.5), 0.5),
        (bool, np.True_, True),
        (str, 10, "10"),
        (str, 0.3, "0.3"),
        (str, Path("a/b"), "a/b"),
        (Path, "a", Path("a")),
        (int | str, "auto", "auto"),
        (int | str, 4.0, 4),
        (float | None, None, None),
        (tuple[str, ...], "one", ("one",)),
        (tuple[str, ...], ["a", 2], ("a", "2")),
        (tuple[Literal["a", "b"], ...], ["b"], ("b",)),
    ],
)
def test_a_value_becomes_that_of_its_option(hint: Any, value: Any, expected: Any) -> None:
    found = typed(hint, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "words"),
    [
        (int, 4.5, "an integer"),
        (int, True, "an integer"),
        (int, "4x", "an integer"),
        (float, "much", "a number"),
        (float, float("nan"), "a number"),
        (float, 1j, "a number"),
        (bool, "yes", "True or False"),
        (bool, 1, "True or False"),
        (str, None, "a text"),
        (str, True, "a text"),
        (str, {"a": 1}, "a text"),
        (Path, 3, "the path"),
        (tuple[str, ...], None, "a value, or a list"),
        (tuple[str, ...], {"a": 1}, "a value, or a list"),
        (int | None, "x", "an integer or None"),
        (Literal["a", "b"], "c", "one of: a, b"),
        (Literal["a", "b"], 1, "one of: a, b"),
    ],
)
def test_another_value_is_refused_with_what_is_accepted(hint: Any, value: Any, words: str) -> None:
    with pytest.raises(SettingTypeError, match=words):
        typed(hint, value)
