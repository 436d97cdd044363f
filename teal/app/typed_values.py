"""Values of settings, checked and converted by the type of their field.

The command line parses texts; callers of Python and files of JSON give values.  Both follow from
one definition: the annotation of the field in its dataclass of settings.
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
_SHOWN = 80


class SettingTypeError(ValueError):
    """A value that a setting does not accept.

    Args:
        expected: what it accepts.
        value: the value.
    """

    def __init__(self, expected: str, value: object) -> None:
        text = " ".join(repr(value).split())
        is_short = len(text) <= _SHOWN
        self.expected = expected
        self.actual = text if is_short else f"{type(value).__name__} {text[: _SHOWN - 20]}..."
        super().__init__(f"expected {self.expected}, found {self.actual}")


def typed(hint: Any, value: Any) -> Any:
    """A value as the type of a setting.

    Numbers may be NumPy's or texts, paths may be texts, members of an enumeration their values, and
    one value may stand where several are taken.  An array, a frame or a mapping is never a text.

    Args:
        hint: annotation of the field.
        value: the value.

    Raises:
        SettingTypeError: a value of another type, or a word that the setting does not have.
    """
    origin = get_origin(hint)
    if origin is Annotated:
        return typed(get_args(hint)[0], value)
    if origin in (Union, types.UnionType):
        return _of_union(get_args(hint), value)
    if origin is Literal:
        return _of_words(get_args(hint), value)
    if origin is tuple:
        return _of_several(get_args(hint), value)
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return hint(_of_words([member.value for member in hint], value))
        convert = _CONVERTERS.get(hint)
        if convert is not None:
            return convert(value)
        if not isinstance(value, hint):
            raise SettingTypeError(f"a {hint.__name__}", value)
    return value


def _of_union(kinds: Iterable[Any], value: Any) -> Any:
    """The value as the first type of a union that accepts it."""
    if value is None and type(None) in kinds:
        return None
    expected: list[str] = []
    for kind in kinds:
        if kind is type(None):
            expected.append("None")
            continue
        try:
            return typed(kind, value)
        except SettingTypeError as error:
            expected.append(error.expected)
    raise SettingTypeError(" or ".join(dict.fromkeys(expected)), value)


def _of_words(words: Iterable[Any], value: Any) -> Any:
    """The word of a choice that equals the value."""
    choices = list(words)
    if isinstance(value, enum.Enum):
        value = value.value
    for word in choices:
        if type(word) is type(value) and word == value:
            return word
    raise SettingTypeError("one of: " + ", ".join(map(str, choices)), value)


def _of_several(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """The values of a tuple; one value stands for a tuple of one."""
    if value is None or isinstance(value, Mapping) or hasattr(value, "columns"):
        raise SettingTypeError("a value, or a list of them", value)
    is_single = isinstance(value, str | os.PathLike) or not isinstance(value, Iterable)
    several = [value] if is_single else list(value)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(typed(kinds[0], text) for text in several)
    if len(several) != len(kinds):
        raise SettingTypeError(f"{len(kinds)} values", value)
    return tuple(typed(kind, text) for kind, text in zip(kinds, several, strict=True))


def _bool(value: Any) -> bool:
    # NumPy's truth values are of the type bool_, which is no bool.
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return bool(value)
    raise SettingTypeError("True or False", value)


def _is_truth_value(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ == "bool_"


def _int(value: Any) -> int:
    if not _is_truth_value(value):
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real) and float(value).is_integer():
            return int(float(value))
        if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
            return int(value)
    raise SettingTypeError("an integer", value)


def _float(value: Any) -> float:
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
