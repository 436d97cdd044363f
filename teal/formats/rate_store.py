"""Where rates go that are too many to hold: a file of float32 rows in the cache, written once."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from teal.network.rates import ArrayRates, FileRates, Rates
from teal.network.topology import FloatArray
from teal.storage import atomic_file, cache_dir

IN_MEMORY_BYTES = 256 << 20


class RateFile:
    """A file of T rows of D float32, open for reading and writing of whole rows."""

    def __init__(self, file: int, shape: tuple[int, int]) -> None:
        self._file, self.shape, self._stride = file, shape, 4 * shape[1]

    def write(self, row: int, values: FloatArray) -> None:
        """Write consecutive rows (n, D) from ``row`` on."""
        data, position = memoryview(np.ascontiguousarray(values, "<f4").tobytes()), row * self._stride
        while data:
            done = os.pwrite(self._file, data, position)
            data, position = data[done:], position + done

    def read(self, row: int) -> FloatArray:
        """One row, (D,)."""
        return np.frombuffer(os.pread(self._file, self._stride, row * self._stride), "<f4").astype(np.float64)


class RateArray:
    """The same interface in memory, float64."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape, self.values = shape, np.zeros(shape)

    def write(self, row: int, values: FloatArray) -> None:
        """Write consecutive rows (n, D) from ``row`` on."""
        self.values[row : row + len(values)] = values

    def read(self, row: int) -> FloatArray:
        """One row, (D,)."""
        return self.values[row]


def make_rates(shape: tuple[int, int], key: str, fill: Callable[[RateFile | RateArray], None]) -> Rates:
    """Rates of ``shape`` as ``fill`` writes them: in memory if they fit, else in the cache under ``key``.

    A file that ``fill`` finished once is not filled again; one that it did not finish is not kept.
    """
    if shape[0] * shape[1] * 8 <= IN_MEMORY_BYTES:
        held = RateArray(shape)
        fill(held)
        return ArrayRates(held.values)
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
