"""Times in files: ISO 8601, or numbers since 1970 in seconds, milliseconds, microseconds or
nanoseconds.

The unit of numbers is that in which they are years from 1990 to 2100; other times are refused,
since they are no times of measurements but faults of a unit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from teal.errors import InputError
from teal.runtime.arrays import AnyArray, FloatArray

_FIRST = datetime(1990, 1, 1, tzinfo=UTC).timestamp()  # seconds since 1970
_LAST = datetime(2101, 1, 1, tzinfo=UTC).timestamp()
_UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
_EXPECTED = (
    "a time from 1990 to 2100: ISO 8601, or seconds, milliseconds, microseconds or nanoseconds "
    "since 1970"
)


def seconds_of_numbers(values: AnyArray, where: str, field: str) -> FloatArray:
    """Seconds since 1970 of numbers that are all in one unit.

    Args:
        values: (n,) numbers.
        where: the file, for messages.
        field: the column, for messages.

    Raises:
        InputError: no unit makes all of them times from 1990 to 2100.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers):
        return numbers
    for per_second in _UNITS.values():
        if (numbers.min() >= _FIRST * per_second) and (numbers.max() < _LAST * per_second):
            return numbers / per_second
    outside = [one for one in (numbers.min(), numbers.max()) if not _is_time(one)]
    found = (
        f"{outside[0]:.15g}"
        if outside
        else f"{numbers.min():.15g} and {numbers.max():.15g}, of different units"
    )
    raise InputError(where, field, _EXPECTED, found)


def _is_time(number: float) -> bool:
    return any(_FIRST * unit <= number < _LAST * unit for unit in _UNITS.values())


def naive_times(column: Any) -> AnyArray:
    """(n,) times in UTC of a pandas series of times, with a zone or without one."""
    in_utc = (
        column.dt.tz_convert("UTC").dt.tz_localize(None)
        if getattr(column.dtype, "tz", None)
        else column
    )
    return np.asarray(in_utc.to_numpy())


def seconds_of_texts(
    texts: Any, where: str, field: str, first_row: int | None = None
) -> FloatArray:
    """Seconds since 1970 of texts: all of them numbers, or all of them ISO 8601; without a zone
    they are in UTC.

    Args:
        texts: pandas series of n texts.
        where: the file, for messages.
        field: the column, for messages.
        first_row: line of the first text in the file, for messages; None to leave it out.

    Raises:
        InputError: a text that is no time from 1990 to 2100.
    """
    import pandas as pd

    numbers = pd.to_numeric(texts, errors="coerce")
    if numbers.notna().all():
        return seconds_of_numbers(numbers.to_numpy(dtype=np.float64), where, field)
    stamps = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
    seconds = naive_times(stamps).astype("datetime64[ns]").astype(np.int64) / 1e9
    bad = np.flatnonzero(stamps.isna() | ~((seconds >= _FIRST) & (seconds < _LAST)))
    if len(bad):
        row = int(bad[0])
        place = field if first_row is None else f"row {first_row + row}: {field}"
        raise InputError(where, place, _EXPECTED, repr(texts.iloc[row]))
    return np.asarray(seconds)


def seconds_of(value: Any, where: str, field: str) -> float:
    """Seconds since 1970 of one time, a number or a text.

    Raises:
        InputError: no time from 1990 to 2100.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        pass
    else:
        for per_second in _UNITS.values():
            if _FIRST * per_second <= number < _LAST * per_second:
                return number / per_second
        raise InputError(where, field, _EXPECTED, repr(value))
    try:
        time = datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise InputError(where, field, _EXPECTED, repr(value)) from None
    seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not _FIRST <= seconds < _LAST:
        raise InputError(where, field, _EXPECTED, repr(value))
    return seconds
