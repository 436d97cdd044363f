"""Typed access to members of a JSON document, with errors that name file and field."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from teal.errors import InputError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_READER_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    UnicodeError,
)


def object_of(part: Any, where: str, field: str) -> dict[str, Any]:
    """Return a part of a JSON document that must be an object; {} for None.

    Raises:
        InputError: another type.
    """
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise InputError(where, field, "an object", _excerpt(part))
    return part


def list_of(part: Any, where: str, field: str) -> list[Any]:
    """Return a part of a JSON document that must be a list; [] for None.

    Raises:
        InputError: another type.
    """
    if part is None:
        return []
    if not isinstance(part, list):
        raise InputError(where, field, "a list", _excerpt(part))
    return part


def objects_of(part: Any, where: str, field: str) -> list[dict[str, Any]]:
    """Return a part of a JSON document that must be a list of objects; [] for None.

    Raises:
        InputError: another type.
    """
    return [
        object_of(entry, where, f"{field}[{index}]")
        for index, entry in enumerate(list_of(part, where, field))
    ]


def text_of(part: Any, where: str, field: str) -> str:
    """Return a part of a JSON document that must be a non-empty text or a number, as text.

    Raises:
        InputError: another type.
    """
    if part is None or part == "" or isinstance(part, dict | list | bool):
        raise InputError(where, field, "a name", _excerpt(part))
    return str(part)


def optional_number(part: Any, where: str, field: str) -> float | None:
    """Return a part of a JSON document that must be a finite number, or a text of one, as float;
    None for None or "".

    Raises:
        InputError: another value.
    """
    if part in (None, ""):
        return None
    try:
        number = math.nan if isinstance(part, bool) else float(part)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(where, field, "a number", _excerpt(part))
    return number


def _excerpt(part: Any) -> str:
    """Return the first 80 characters of a part's ``repr``, for messages."""
    return repr(part)[:80]


def keys_of(objects: Iterable[dict[str, Any]], max_keys: int = 5) -> str:
    """Return the first distinct keys of some objects, for messages."""
    keys = list(dict.fromkeys(key for entry in objects for key in entry))
    return ", ".join(keys[:max_keys]) or "none"


def convert_reader_errors(expected: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Return a decorator of readers that turns Python errors, such as KeyError, into InputError.

    The first argument of a reader is the path of its file.

    Args:
        expected: description of a valid file, for the message.
    """

    def decorate(reader: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(reader)
        def read(*arguments: _P.args, **options: _P.kwargs) -> _T:
            try:
                return reader(*arguments, **options)
            except _READER_ERRORS as error:
                fault = f"{type(error).__name__}: {error}".splitlines()[0][:120]
                raise InputError.invalid(
                    str(arguments[0]), "", f"the file is not {expected}: {fault}"
                ) from error

        return read

    return decorate
