"""Parts of a JSON document, with errors that name the file and the field where a part is of another
kind.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from teal.errors import InputError

_P = ParamSpec("_P")
_T = TypeVar("_T")
_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    UnicodeError,
)


def object_of(part: Any, where: str, field: str) -> dict[str, Any]:
    """The part, an object; {} for none.

    Raises:
        InputError: anything else.
    """
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise InputError(where, field, "an object", _short(part))
    return part


def list_of(part: Any, where: str, field: str) -> list[Any]:
    """The part, a list; [] for none.

    Raises:
        InputError: anything else.
    """
    if part is None:
        return []
    if not isinstance(part, list):
        raise InputError(where, field, "a list", _short(part))
    return part


def objects_of(part: Any, where: str, field: str) -> list[dict[str, Any]]:
    """The part, a list of objects; [] for none.

    Raises:
        InputError: anything else.
    """
    return [
        object_of(one, where, f"{field}[{number}]")
        for number, one in enumerate(list_of(part, where, field))
    ]


def text_of(part: Any, where: str, field: str) -> str:
    """The part, a text or a number that is not empty, as a text.

    Raises:
        InputError: anything else.
    """
    if part is None or part == "" or isinstance(part, dict | list | bool):
        raise InputError(where, field, "a name", _short(part))
    return str(part)


def first_number(part: Any, where: str, field: str) -> float | None:
    """The part, a finite number or a text of one; None for none.

    Raises:
        InputError: anything else.
    """
    if part in (None, ""):
        return None
    try:
        number = math.nan if isinstance(part, bool) else float(part)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(where, field, "a number", _short(part))
    return number


def _short(part: Any) -> str:
    return repr(part)[:80]


def keys_of(objects: Iterable[dict[str, Any]], most: int = 5) -> str:
    """The first distinct keys of some objects, for messages."""
    keys = list(dict.fromkeys(key for one in objects for key in one))
    return ", ".join(keys[:most]) or "none"


def refuses_faults(expected: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Let a reader, whose first argument is the file, raise InputError where a file breaks it in a
    way not foreseen.

    Args:
        expected: what the file should be.
    """

    def wrapped(reader: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(reader)
        def read(*arguments: _P.args, **options: _P.kwargs) -> _T:
            try:
                return reader(*arguments, **options)
            except _FAULTS as error:
                found = f"{type(error).__name__}: {error}".splitlines()[0][:120]
                raise InputError(str(arguments[0]), "", expected, found) from error

        return read

    return wrapped
