"""Parser of times: ISO 8601, or numbers since 1970 in seconds, milliseconds, microseconds or
nanoseconds.

A number has the unit in which it is a time from 1990 to 2100; at most one unit fits, since their
ranges do not overlap.  Other times are refused: they indicate a wrong unit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from teal.errors import InputError
from teal.runtime.arrays import AnyArray, FloatArray

# Range of plausible times, seconds since 1970.
_MIN_TIME = datetime(1990, 1, 1, tzinfo=UTC).timestamp()
_MAX_TIME = datetime(2101, 1, 1, tzinfo=UTC).timestamp()
_UNITS_PER_SECOND = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
_EXPECTED = (
    "a time from 1990 to 2100: ISO 8601, or seconds, milliseconds, microseconds or nanoseconds "
    "since 1970"
)


def seconds_of_numbers(values: AnyArray, where: str, field: str) -> FloatArray:
    """Convert numbers of one common unit to seconds since 1970.

    Args:
        values: (n,) numbers.
        where: name of the file, for messages.
        field: name of the column, for messages.

    Raises:
        InputError: no unit makes all numbers times from 1990 to 2100.
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers):
        return numbers
    for per_second in _UNITS_PER_SECOND.values():
        if (numbers.min() >= _MIN_TIME * per_second) and (numbers.max() < _MAX_TIME * per_second):
            return numbers / per_second
    out_of_range = [number for number in (numbers.min(), numbers.max()) if not _is_time(number)]
    actual = (
        f"{out_of_range[0]:.15g}"
        if out_of_range
        else f"{numbers.min():.15g} and {numbers.max():.15g}, which have different units"
    )
    raise InputError(where, field, _EXPECTED, actual)


def _is_time(number: float) -> bool:
    """Return whether a number is a time from 1990 to 2100 in any of the units."""
    return any(
        _MIN_TIME * per_second <= number < _MAX_TIME * per_second
        for per_second in _UNITS_PER_SECOND.values()
    )


def naive_times(column: Any) -> AnyArray:
    """Return the (n,) times of a pandas series as datetime64 in UTC; times without a zone are
    UTC.
    """
    in_utc = (
        column.dt.tz_convert("UTC").dt.tz_localize(None)
        if getattr(column.dtype, "tz", None)
        else column
    )
    return np.asarray(in_utc.to_numpy())


def seconds_of_texts(
    texts: Any, where: str, field: str, first_row: int | None = None
) -> FloatArray:
    """Convert texts, all numbers or all ISO 8601 (UTC without a zone), to seconds since 1970.

    Args:
        texts: pandas series of n texts.
        where: name of the file, for messages.
        field: name of the column, for messages.
        first_row: row of the first text in the file, for messages; None to omit it.

    Raises:
        InputError: a text that is not a time from 1990 to 2100.
    """
    import pandas as pd

    # All texts are numbers, or all are ISO 8601.
    numbers = pd.to_numeric(texts, errors="coerce")
    if numbers.notna().all():
        return seconds_of_numbers(numbers.to_numpy(dtype=np.float64), where, field)
    timestamps = pd.to_datetime(texts, errors="coerce", utc=True, format="ISO8601")
    seconds = naive_times(timestamps).astype("datetime64[ns]").astype(np.int64) / 1e9
    # Report the first text that is no time from 1990 to 2100.
    invalid_rows = np.flatnonzero(
        timestamps.isna() | ~((seconds >= _MIN_TIME) & (seconds < _MAX_TIME))
    )
    if len(invalid_rows):
        row = int(invalid_rows[0])
        location = field if first_row is None else f"row {first_row + row}: {field}"
        raise InputError(where, location, _EXPECTED, repr(texts.iloc[row]))
    return np.asarray(seconds)


def seconds_of(value: Any, where: str, field: str) -> float:
    """Convert one time to seconds since 1970.

    Args:
        value: number or its text, in seconds, milliseconds, microseconds or nanoseconds since 1970;
            or an ISO 8601 text, in UTC if it has no zone.
        where: name of the file, for messages.
        field: name of the value, for messages.

    Raises:
        InputError: not a time from 1990 to 2100.
    """
    # A number, in the unit in which it is a time from 1990 to 2100.
    try:
        number = float(value)
    except (TypeError, ValueError):
        pass
    else:
        for per_second in _UNITS_PER_SECOND.values():
            if _MIN_TIME * per_second <= number < _MAX_TIME * per_second:
                return number / per_second
        raise InputError(where, field, _EXPECTED, repr(value))
    # An ISO 8601 text.
    try:
        time = datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise InputError(where, field, _EXPECTED, repr(value)) from None
    seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if not _MIN_TIME <= seconds < _MAX_TIME:
        raise InputError(where, field, _EXPECTED, repr(value))
    return seconds
