"""CSV and Parquet files of dataclasses with strings, integers and floats."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from teal.errors import InputError

# Parser for each field annotation.
_PARSERS = {"str": str, "int": int, "float": float}
_T = TypeVar("_T")


def column_names(kind: Any) -> list[str]:
    """Return the column names of a table of dataclasses: ``COLUMNS`` of the class, or else the
    names of its fields.

    Args:
        kind: the class, or an instance of it.
    """
    return list(
        getattr(kind, "COLUMNS", None) or (field.name for field in dataclasses.fields(kind))
    )


def write_csv(path: Path, rows: Sequence[Any]) -> None:
    """Write one or more dataclasses of one type as CSV, with numbers in full precision."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, column_names(rows[0]))
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)


def write_parquet(path: Path, rows: Sequence[Any]) -> None:
    """Write one or more dataclasses of one type as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = column_names(rows[0])
    pq.write_table(pa.table({name: [getattr(row, name) for row in rows] for name in names}), path)


def read_csv(path: Path, kind: type[_T]) -> list[_T]:
    """Read a file of :func:`write_csv` into dataclasses of type ``kind``.

    Raises:
        InputError: a missing file, or another table.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return [from_text(kind, line) for line in csv.DictReader(stream)]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InputError.invalid(
            str(path), "", f"not a readable table of {kind.__name__.lower()}s: {error}"
        ) from None


def from_text(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """Build a dataclass of strings, integers and floats, from texts or values of the right types.

    Fields with a default may be missing, as in files written before a column was added.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    present = [
        field for field in fields if field.name in values or field.default is dataclasses.MISSING
    ]
    return kind(**{field.name: _PARSERS[str(field.type)](values[field.name]) for field in present})
