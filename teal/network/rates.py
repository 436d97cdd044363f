"""Row stores of traffic matrices: in memory, in a file, or derived from another store.

A year of 5-minute matrices over the 24,806 pairs of a 158-node network takes 10 GB.
:class:`FileRates` reads rows with ``pread`` instead of memory mapping, so that pages of the file do
not count towards the memory of this process.  All stores implement :class:`Rates`.
"""

from __future__ import annotations

import os
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from teal.runtime.arrays import FloatArray, Int64Array


class Rates(Protocol):
    """Protocol of a store with T rows of D rates each, from which single rows are read."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number T of rows, and the number D of rates of a row."""
        ...

    def read(self, rows: Int64Array) -> FloatArray:
        """Return some rows as an array (len(rows), D), in the unit of the store.

        Args:
            rows: indices of the rows, in the order of the result.
        """
        ...


class ArrayRates:
    """Rates held in memory.

    Args:
        values: (T, D) rates.
    """

    def __init__(self, values: npt.NDArray[np.floating]) -> None:
        self._values = values

    @property
    def shape(self) -> tuple[int, int]:
        """The number T of rows, and the number D of rates of a row."""
        return self._values.shape[0], self._values.shape[1]

    def read(self, rows: Int64Array) -> FloatArray:
        """Return some rows as an array (len(rows), D).

        Args:
            rows: indices of the rows, in the order of the result.
        """
        return self._values[rows].astype(np.float64)


class PartRates:
    """Some consecutive rows of another store, with indices from 0.

    Args:
        rates: the other store.
        first: index of the first row.
        stop: index after the last row.
    """

    def __init__(self, rates: Rates, first: int, stop: int) -> None:
        self._rates = rates
        self._first = first
        self._count = stop - first

    @property
    def shape(self) -> tuple[int, int]:
        """The number T of rows, and the number D of rates of a row."""
        return self._count, self._rates.shape[1]

    def read(self, rows: Int64Array) -> FloatArray:
        """Return some rows as an array (len(rows), D).

        Args:
            rows: indices of the rows within the part.

        Raises:
            IndexError: a row out of range.
        """
        if len(rows) and not (rows.min() >= 0 and rows.max() < self._count):
            raise IndexError(
                f"rows {rows.min()} to {rows.max()} requested; the part has rows 0 to "
                f"{self._count - 1}"
            )
        return self._rates.read(rows + self._first)


class SharedRates:
    """Rates divided among C classes: (T, C D), class by class.

    Column c D + d is the rate of demand d times the share of class c.

    Args:
        rates: (T, D) rates.
        shares: (C,) share of each class.
    """

    def __init__(self, rates: Rates, shares: FloatArray) -> None:
        self._rates = rates
        self._shares = shares

    @property
    def shape(self) -> tuple[int, int]:
        """The number T of rows, and the number C D of rates of a row: C classes of D demands."""
        return self._rates.shape[0], self._rates.shape[1] * len(self._shares)

    def read(self, rows: Int64Array) -> FloatArray:
        """Return some rows as an array (len(rows), C D).

        Args:
            rows: indices of the rows, in the order of the result.
        """
        values = self._rates.read(rows)
        return (self._shares[:, None] * values[:, None]).reshape(len(values), -1)


class WiderRates:
    """Rates of another store in a wider table, whose additional columns are 0.

    Args:
        rates: (T, D) rates.
        columns: (D,) column of each demand in the wider table.
        width: number of columns of the result.
    """

    def __init__(self, rates: Rates, columns: Int64Array, width: int) -> None:
        self._rates = rates
        self._columns = columns
        self._width = width

    @property
    def shape(self) -> tuple[int, int]:
        """The number T of rows, and the number of columns of the wider table."""
        return self._rates.shape[0], self._width

    def read(self, rows: Int64Array) -> FloatArray:
        """Return some rows as an array (len(rows), width).

        Args:
            rows: indices of the rows, in the order of the result.
        """
        values = np.zeros((len(rows), self._width))
        values[:, self._columns] = self._rates.read(rows)
        return values


class FileRates:
    """Rates in a binary file of consecutive rows, read with ``pread``.

    Args:
        path: the file.
        shape: (T, D).
        dtype: numpy type of a rate, with byte order.
        offset: bytes before the first row.
    """

    def __init__(
        self, path: Path, shape: tuple[int, int], dtype: str = "<f4", offset: int = 0
    ) -> None:
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self._offset = offset
        self._file = os.open(path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, self._file)

    @property
    def shape(self) -> tuple[int, int]:
        """The number T of rows, and the number D of rates of a row."""
        return self._shape

    def read(self, rows: Int64Array) -> FloatArray:
        """Return some rows as an array (len(rows), D); consecutive rows are read together.

        Args:
            rows: indices of the rows, in the order of the result.
        """
        width = self._shape[1]
        out = np.empty((len(rows), width), dtype=np.float64)
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        run_bounds = [0, *breaks.tolist(), len(rows)]
        # One read for each run of consecutive rows.
        for begin, end in pairwise(run_bounds):
            if begin == end:
                continue
            size = (end - begin) * width * self._dtype.itemsize
            position = self._offset + int(rows[begin]) * width * self._dtype.itemsize
            chunk = _pread_all(self._file, size, position)
            out[begin:end] = np.frombuffer(chunk, self._dtype).reshape(end - begin, width)
        return out


def _pread_all(file: int, size: int, position: int) -> bytes:
    """Read a number of bytes with ``pread``, by several calls if necessary.

    A call of ``pread`` returns at most 2 GiB on Linux.

    Args:
        file: file descriptor.
        size: number of bytes.
        position: position of the first byte.

    Raises:
        OSError: the file ends before the last byte.
    """
    parts = []
    while size:
        # At most 1 GiB in a call.
        part = os.pread(file, min(size, 1 << 30), position)
        if not part:
            raise OSError(
                f"the file of rates ends at byte {position}, {size} bytes before the end of the "
                "requested rows"
            )
        parts.append(part)
        size = size - len(part)
        position = position + len(part)
    return b"".join(parts)
