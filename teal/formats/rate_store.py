"""Writable row stores of rates: in memory if small, else in a float32 file in the cache."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from teal.network.rates import ArrayRates, FileRates, Rates
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import atomic_file, cache_dir

# Rates up to this size (as float64) are kept in memory.
IN_MEMORY_BYTES = 256 << 20


class RateFile:
    """Open file of T rows of D float32 rates, read and written by rows.

    Args:
        descriptor: descriptor of the file, which has 4 T D bytes.
        shape: numbers of matrices and demands, (T, D).
    """

    def __init__(self, descriptor: int, shape: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self.shape = shape
        # Bytes of a row.
        self._row_bytes = 4 * shape[1]

    def write(self, row: int, values: FloatArray) -> None:
        """Write consecutive rows (n, D), starting at ``row``."""
        # One call may write a part of the bytes only.
        data = memoryview(np.ascontiguousarray(values, "<f4").tobytes())
        position = row * self._row_bytes
        while data:
            num_written = os.pwrite(self._descriptor, data, position)
            data = data[num_written:]
            position = position + num_written

    def read(self, row: int) -> FloatArray:
        """Return the rates of one matrix, (D,), as float64."""
        return np.frombuffer(
            os.pread(self._descriptor, self._row_bytes, row * self._row_bytes), "<f4"
        ).astype(np.float64)


class RateArray:
    """Array of T rows of D float64 rates in memory, read and written by rows.

    Args:
        shape: numbers of matrices and demands, (T, D).
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        self.values = np.zeros(shape)

    def write(self, row: int, values: FloatArray) -> None:
        """Write consecutive rows (n, D), starting at ``row``."""
        self.values[row : row + len(values)] = values

    def read(self, row: int) -> FloatArray:
        """Return the rates of one matrix, (D,), as a view of the array."""
        return self.values[row]


def make_rates(
    shape: tuple[int, int], key: str, fill: Callable[[RateFile | RateArray], None]
) -> Rates:
    """Create a store of rates: in memory if small, else in a file of the disk cache.

    A complete cached file is used without calling ``fill``; an incomplete one is discarded.

    Args:
        shape: numbers of matrices and demands, (T, D).
        key: content hash, name of the cached file.
        fill: function that writes all rows of the store.
    """
    # A small store is an array of float64: 8 bytes for each rate.
    if shape[0] * shape[1] * 8 <= IN_MEMORY_BYTES:
        array = RateArray(shape)
        fill(array)
        return ArrayRates(array.values)
    # A large store is a file of float32, 4 bytes for each rate; only a complete file gets its
    # name in the cache.
    path = cache_dir("traffic") / f"{key}.f4"
    if not path.exists() or path.stat().st_size != shape[0] * shape[1] * 4:
        with atomic_file(path) as temporary:
            descriptor = os.open(temporary, os.O_RDWR)
            try:
                os.ftruncate(descriptor, shape[0] * shape[1] * 4)
                fill(RateFile(descriptor, shape))
            finally:
                os.close(descriptor)
    return FileRates(path, shape)
