"""Rates while they are read or generated: in memory if they are few, else in a file of float32 rows
in the cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from teal.network.rates import ArrayRates, FileRates, Rates
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import atomic_file, cache_dir

IN_MEMORY_BYTES = 256 << 20  # rates up to this size, as float64, are kept in memory


class RateFile:
    """An open file of T rows of D float32, of which whole rows are read and written."""

    def __init__(self, file: int, shape: tuple[int, int]) -> None:
        self._file, self.shape, self._stride = file, shape, 4 * shape[1]

    def write(self, row: int, values: FloatArray) -> None:
        """Write consecutive rows (n, D) from ``row`` on."""
        data, position = (
            memoryview(np.ascontiguousarray(values, "<f4").tobytes()),
            row * self._stride,
        )
        while data:
            done = os.pwrite(self._file, data, position)
            data, position = data[done:], position + done

    def read(self, row: int) -> FloatArray:
        """One row, (D,)."""
        return np.frombuffer(os.pread(self._file, self._stride, row * self._stride), "<f4").astype(
            np.float64
        )


class RateArray:
    """The interface of RateFile over an array in memory, float64."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape, self.values = shape, np.zeros(shape)

    def write(self, row: int, values: FloatArray) -> None:
        """Write consecutive rows (n, D) from ``row`` on."""
        self.values[row : row + len(values)] = values

    def read(self, row: int) -> FloatArray:
        """One row, (D,)."""
        return self.values[row]


def make_rates(
    shape: tuple[int, int], key: str, fill: Callable[[RateFile | RateArray], None]
) -> Rates:
    """Rates of ``shape`` that ``fill`` writes: in memory if they are few, else in the cache under
    ``key``.

    A complete file in the cache is used without calling ``fill``; an incomplete one is not kept.
    """
    if shape[0] * shape[1] * 8 <= IN_MEMORY_BYTES:
        array = RateArray(shape)
        fill(array)
        return ArrayRates(array.values)
    path = cache_dir("traffic") / f"{key}.f4"
    if not path.exists() or path.stat().st_size != shape[0] * shape[1] * 4:
        with atomic_file(path) as temporary:
            file = os.open(temporary, os.O_RDWR)
            try:
                os.ftruncate(file, shape[0] * shape[1] * 4)
                fill(RateFile(file, shape))
            finally:
                os.close(file)
    return FileRates(path, shape)
