"""Conversion of values from Python callers and JSON files to the annotated types of settings.

Entry point: :func:`typed`.
"""

from __future__ import annotations

import enum
import math
import numbers
import os
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

# Maximum characters of a value in a message.
_MAX_SHOWN = 80


class SettingTypeError(ValueError):
    """Error about a value that a setting does not accept.

    Args:
        expected: description of the accepted values.
        value: the rejected value.
    """

    def __init__(self, expected: str, value: object) -> None:
        text = " ".join(repr(value).split())
        is_short = len(text) <= _MAX_SHOWN
        self.expected = expected
        self.actual = text if is_short else f"{type(value).__name__} {text[: _MAX_SHOWN - 20]}..."
        super().__init__(f"expected {self.expected}, found {self.actual}")


def typed(hint: Any, value: Any) -> Any:
    """Convert a value to the type of a setting.

    Accepted are also: NumPy numbers and texts as numbers, texts as paths, the value of a member as
    an enumeration, and a single value as a tuple.

    Args:
        hint: type annotation of the setting.
        value: the value from the caller or the file.

    Raises:
        SettingTypeError: a value of another type, or not one of the setting's choices.
    """
    # Composed annotations.
    origin = get_origin(hint)
    if origin is Annotated:
        return typed(get_args(hint)[0], value)
    if origin in (Union, types.UnionType):
        return _parse_union(get_args(hint), value)
    if origin is Literal:
        return _parse_choice(get_args(hint), value)
    if origin is tuple:
        return _parse_tuple(get_args(hint), value)
    # Enumerations, numbers, texts and paths; other classes accept their instances only.
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return hint(_parse_choice([member.value for member in hint], value))
        convert = _CONVERTERS.get(hint)
        if convert is not None:
            return convert(value)
        if not isinstance(value, hint):
            raise SettingTypeError(f"a {hint.__name__}", value)
    return value


def _parse_union(hints: Iterable[Any], value: Any) -> Any:
    """Convert a value to the first type of a union that accepts it; raise SettingTypeError if none
    does.
    """
    if value is None and type(None) in hints:
        return None
    # Descriptions of the values that the types accept, for the message.
    expected: list[str] = []
    for hint in hints:
        if hint is type(None):
            expected.append("None")
            continue
        try:
            return typed(hint, value)
        except SettingTypeError as error:
            expected.append(error.expected)
    raise SettingTypeError(" or ".join(dict.fromkeys(expected)), value)


def _parse_choice(accepted_values: Iterable[Any], value: Any) -> Any:
    """Return the choice that equals the value; raise SettingTypeError if there is none."""
    choices = list(accepted_values)
    if isinstance(value, enum.Enum):
        value = value.value
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    raise SettingTypeError("one of: " + ", ".join(map(str, choices)), value)


def _parse_tuple(hints: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """Convert a sequence, or a single value, to a tuple.

    Args:
        hints: types of the entries; (type, Ellipsis) for a tuple of any length.
        value: the sequence or value.

    Raises:
        SettingTypeError: None, a mapping, a data frame, or an entry of the wrong type.
    """
    if value is None or isinstance(value, Mapping) or hasattr(value, "columns"):
        raise SettingTypeError("a value, or a list of them", value)
    is_single = isinstance(value, str | os.PathLike) or not isinstance(value, Iterable)
    entries = [value] if is_single else list(value)
    if len(hints) == 2 and hints[1] is Ellipsis:
        return tuple(typed(hints[0], entry) for entry in entries)
    if len(entries) != len(hints):
        raise SettingTypeError(f"{len(hints)} values", value)
    return tuple(typed(hint, entry) for hint, entry in zip(hints, entries, strict=True))


def _bool(value: Any) -> bool:
    """Convert a truth value of Python or NumPy; numbers and texts are refused."""
    # NumPy's type bool_ is not a subclass of bool.
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise SettingTypeError("True or False", value)


def _is_truth_value(value: Any) -> bool:
    """Return whether a value is a truth value of Python or NumPy, which is no number here."""
    return isinstance(value, bool) or type(value).__name__ == "bool_"


def _int(value: Any) -> int:
    """Convert an integer, an integral float, or a decimal text to int; truth values are refused."""
    if not _is_truth_value(value):
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real) and float(value).is_integer():
            return int(float(value))
        if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
            return int(value)
    raise SettingTypeError("an integer", value)


def _float(value: Any) -> float:
    """Convert a number, or the text of one, to float; truth values and NaN are refused."""
    is_number = isinstance(value, numbers.Real) and not _is_truth_value(value)
    if is_number or isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            raise SettingTypeError("a number", value) from None
        if not math.isnan(number):
            return number
    raise SettingTypeError("a number", value)


def _str(value: Any) -> str:
    """Convert a text, a path or a finite number to str; truth values are refused."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, numbers.Integral) and not _is_truth_value(value):
        return str(int(value))
    is_number = isinstance(value, numbers.Real) and not _is_truth_value(value)
    if is_number and math.isfinite(value):
        return repr(float(value))
    raise SettingTypeError("a text", value)


def _path(value: Any) -> Path:
    """Convert a text or a path to Path."""
    if isinstance(value, str | os.PathLike):
        return Path(value)
    raise SettingTypeError("the path of a file or folder", value)


_CONVERTERS: dict[type, Callable[[Any], Any]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    Path: _path,
}
