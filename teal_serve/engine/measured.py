"""Measured traffic matrices of a network: one file per matrix, in a bounded history.

:class:`MeasuredMatrices` keeps the newest matrices in memory and on disk, shared by all processes
of the service. :class:`MeasurementHistory` is their view in the API, from which the part for the
next interval derives.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.deprecated import with_old_attributes
from teal.network import TrafficMatrices
from teal.runtime.arrays import BoolArray, Float32Array, FloatArray, Int64Array, IntArray
from teal.runtime.storage import atomic_files
from teal_serve.engine.errors import ServiceError, invalid_request

# Maximum number of stored matrices: three weeks of 15-minute intervals.
MAX_KEPT_MATRICES = 2_016
# Memory limit of the float32 matrices of a network; of large networks fewer are stored.
_MAX_BYTES = 256 << 20
# Number of matrices that are stored even beyond the memory limit.
_MIN_KEPT_MATRICES = 16
# Tolerated clock difference. A matrix further in the future would block all earlier ones.
_MAX_FUTURE = np.timedelta64(600, "s")
# Matrices are files TIME.npy with (D,) float32.
_SUFFIX = ".npy"
_TIME_FORMAT = "%Y%m%dT%H%M%S"
# Coarsest resolution of modification times of file systems, ns.
_CLOCK_TICK_NS = 1_000_000_000


@with_old_attributes
class MeasuredMatrices:
    """Measured matrices of one registration of a network, oldest first, in memory and on disk.

    Thread-safe. Other processes may use the same folder.

    Args:
        folder: folder of this registration; its siblings, of earlier registrations, are deleted.
        num_demands: D, number of pairs of nodes.

    Attributes:
        max_matrices: maximum number of matrices; the oldest are dropped.
        dropped: number of matrices that this process has dropped so far.
        version: counter that increases with every change of the matrices.
    """

    def __init__(self, folder: Path, num_demands: int) -> None:
        """Create the folder if it is missing, and delete its siblings; no matrix is read yet."""
        self.folder = folder
        self._num_demands = num_demands
        # As many matrices of D float32 numbers (4 bytes each) as fit into memory, within bounds.
        self.max_matrices = min(
            MAX_KEPT_MATRICES, max(_MIN_KEPT_MATRICES, _MAX_BYTES // (4 * max(1, num_demands)))
        )
        # (D,) rates of each matrix, Gbit/s, by ascending time.
        self._rates_by_time: dict[np.datetime64, Float32Array] = {}
        self.dropped = 0
        self.version = 0
        # Modification times of the files that were read or written, ns.
        self._mtimes_ns: dict[np.datetime64, int] = {}
        # Modification time of the folder at the last refresh, ns; 0 to read the folder again.
        self._folder_mtime_ns = 0
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for sibling in folder.parent.iterdir():
            if sibling.is_dir() and sibling != folder:
                shutil.rmtree(sibling, ignore_errors=True)

    @property
    def times(self) -> list[np.datetime64]:
        """Times of the matrices, ascending."""
        return list(self._rates_by_time)

    @property
    def interval_s(self) -> int:
        """Median seconds between matrices; 0 for fewer than two."""
        return _interval_s(np.array(self.times, "datetime64[s]"))

    def refresh(self) -> None:
        """Read matrices that other processes have stored; drop those that they have deleted."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        """Read new and changed files, and drop matrices without a file; the lock is held."""
        folder_mtime_ns = self.folder.stat().st_mtime_ns if self.folder.is_dir() else 0
        if folder_mtime_ns == self._folder_mtime_ns:
            return
        # Shortly after a change, do not trust the time: a second change in the same tick of the
        # file system's clock would go unnoticed.
        self._folder_mtime_ns = (
            folder_mtime_ns if time.time_ns() - folder_mtime_ns > _CLOCK_TICK_NS else 0
        )
        # Read new and changed files.
        matrix_files = sorted(
            file for file in self.folder.glob(f"*{_SUFFIX}") if not file.name.startswith(".")
        )[-self.max_matrices :]
        for file in matrix_files:
            # Skip files that were deleted meanwhile, or are no matrices.
            with contextlib.suppress(OSError, ValueError, EOFError, RecursionError, OverflowError):
                matrix_time = _parse_time(file)
                mtime_ns = self._mtime_ns(matrix_time)
                if self._mtimes_ns.get(matrix_time) == mtime_ns:
                    continue
                # Skip pipes, which would block the reader.
                if not file.is_file():
                    continue
                # Memory-map first: a header may claim more numbers than the file has.
                row = np.lib.format.open_memmap(file, mode="r")
                if row.shape == (self._num_demands,) and row.dtype == np.float32:
                    self._rates_by_time[matrix_time] = np.array(row)
                    self._mtimes_ns[matrix_time] = mtime_ns
                    self.version += 1
        # Drop matrices whose files are gone.
        file_names = {file.name for file in matrix_files}
        for matrix_time in [
            matrix_time
            for matrix_time in self._rates_by_time
            if _file_name(matrix_time) not in file_names
        ]:
            self._drop_from_memory(matrix_time)
            self.version += 1
        self._rates_by_time = dict(sorted(self._rates_by_time.items()))
        self._delete_oldest()

    def clear(self) -> None:
        """Delete all matrices and all other files of the folder."""
        with self._lock:
            for file in self.folder.iterdir():
                if file.is_dir() and not file.is_symlink():
                    shutil.rmtree(file, ignore_errors=True)
                else:
                    file.unlink(missing_ok=True)
            self._refresh()

    def add(self, times: list[np.datetime64], rates: FloatArray) -> None:
        """Store matrices; a matrix of the newest time replaces the stored one.

        Args:
            times: times of the matrices, ascending.
            rates: (B, D) Gbit/s.

        Raises:
            ServiceError: a time before the newest stored one, or too far in the future.
        """
        with self._lock:
            self._add(times, rates)

    def _add(self, times: list[np.datetime64], rates: FloatArray) -> None:
        """Validate the times and store matrices; the lock is held.

        Args:
            times: (B,) times of the matrices, ascending.
            rates: (B, D) Gbit/s.

        Raises:
            ServiceError: a time before the newest stored one, or too far in the future; or a
                replaced network.
        """
        # The times must be later than the newest matrix, and not in the future.
        latest_allowed_time = np.datetime64("now", "s") + _MAX_FUTURE
        if times[-1] > latest_allowed_time:
            raise invalid_request(
                f"time: {times[-1]}Z is more than 10 minutes ahead of the clock of this "
                "service; check both clocks"
            )
        self._delete_later(latest_allowed_time)
        newest_time = next(reversed(self._rates_by_time), None)
        if newest_time is not None and (
            times[0] < newest_time or (times[0] == newest_time and len(times) > 1)
        ):
            raise ServiceError(
                409,
                "not_later",
                f"time: {times[0]}Z is not later than {newest_time}Z, the newest measured matrix",
            )
        # A replaced network may have other demands; the folder of a deleted one is gone.
        if rates.shape[1] != self._num_demands or not self.folder.is_dir():
            raise ServiceError(409, "replaced", "the network was deleted or replaced")
        # Write all files atomically, then add the matrices in memory.
        new_rates_by_time = dict(zip(times, rates.astype(np.float32), strict=True))
        with atomic_files(
            self.folder / _file_name(matrix_time) for matrix_time in new_rates_by_time
        ) as temporaries:
            for temporary, row in zip(temporaries, new_rates_by_time.values(), strict=True):
                with temporary.open("wb") as stream:
                    np.save(stream, row)
        self._rates_by_time |= new_rates_by_time
        self.version += 1
        self._mtimes_ns |= {
            matrix_time: self._mtime_ns(matrix_time) for matrix_time in new_rates_by_time
        }
        self._delete_oldest()

    def _mtime_ns(self, matrix_time: np.datetime64) -> int:
        """Return the modification time of the file of a matrix, ns; 0 if it is missing."""
        with contextlib.suppress(OSError):
            return (self.folder / _file_name(matrix_time)).stat().st_mtime_ns
        return 0

    def _delete_later(self, latest_time: np.datetime64) -> None:
        """Delete matrices later than a time: the clock was set back after their measurement."""
        for matrix_time in [
            matrix_time for matrix_time in self._rates_by_time if matrix_time > latest_time
        ]:
            self._drop_from_memory(matrix_time)
            self.version += 1
            (self.folder / _file_name(matrix_time)).unlink(missing_ok=True)

    def _delete_oldest(self) -> None:
        """Delete the oldest matrices beyond the maximum."""
        while len(self._rates_by_time) > self.max_matrices:
            oldest = next(iter(self._rates_by_time))
            self._drop_from_memory(oldest)
            (self.folder / _file_name(oldest)).unlink(missing_ok=True)

    def _drop_from_memory(self, matrix_time: np.datetime64) -> None:
        """Drop the matrix of a time from memory; its file stays."""
        del self._rates_by_time[matrix_time]
        self._mtimes_ns.pop(matrix_time, None)
        self.dropped += 1

    def traffic(self, name: str, pairs: IntArray) -> tuple[TrafficMatrices, int]:
        """Return all matrices as traffic, and the number of matrices dropped before the oldest.

        Args:
            name: name of the network.
            pairs: (D, 2) source and target node index of each demand.

        Raises:
            ServiceError: no matrix is stored.
        """
        with self._lock:
            if not self._rates_by_time:
                raise _nothing_measured()
            times: npt.NDArray[np.datetime64] = np.array(self.times, "datetime64[s]")
            rows = _MatrixRows(list(self._rates_by_time.values()), self._num_demands)
            num_dropped = self.dropped
        return TrafficMatrices(
            name, pairs, times, rows, _interval_s(times), key=f"{name}/{times[-1]}"
        ), num_dropped

    def rates(self) -> Float32Array:
        """Return the rates (T, D) of all T matrices, oldest first, Gbit/s."""
        with self._lock:
            rows = list(self._rates_by_time.values())
        return np.stack(rows) if rows else np.zeros((0, self._num_demands), np.float32)

    def had_traffic(self) -> BoolArray:
        """Return (D,) whether a demand has traffic in any matrix."""
        has_traffic = np.zeros(self._num_demands, dtype=bool)
        with self._lock:
            for row in self._rates_by_time.values():
                has_traffic |= row > 0
        return has_traffic

    def newest(self) -> FloatArray:
        """Return the newest matrix (1, D), Gbit/s.

        Raises:
            ServiceError: no matrix is stored.
        """
        with self._lock:
            if not self._rates_by_time:
                raise _nothing_measured()
            return next(reversed(self._rates_by_time.values())).astype(np.float64)[None]


class MeasurementHistory:
    """Measured matrices of a network, and their description in the API.

    Args:
        name: name of the network.
        pairs: (D, 2) source and target node index of each demand.
        folder: folder of the matrices, and of state learnt from them.

    Attributes:
        matrices: stored matrices.
    """

    def __init__(self, name: str, pairs: IntArray, folder: Path) -> None:
        self.name = name
        self.pairs = pairs
        self.matrices = MeasuredMatrices(folder, len(pairs))

    def info(self) -> dict[str, Any]:
        """Return the fields of ``responses.MeasuredInfo``: number and times of the matrices."""
        times = self.matrices.times
        return {
            "matrices": len(times),
            "first": f"{times[0]}Z" if times else None,
            "last": f"{times[-1]}Z" if times else None,
            "interval_s": self.matrices.interval_s,
            "most": self.matrices.max_matrices,
        }

    def clear(self) -> None:
        """Delete all matrices, and all state learnt from them."""
        self.matrices.clear()


class _MatrixRows:
    """Rates of measured matrices, for TrafficMatrices.

    Args:
        rows: (D,) rates of each matrix, Gbit/s.
        width: number D of demands.
    """

    def __init__(self, rows: list[Float32Array], width: int) -> None:
        self._rows = rows
        self._width = width

    @property
    def shape(self) -> tuple[int, int]:
        """Number of matrices, and number D of demands."""
        return len(self._rows), self._width

    def read(self, rows: Int64Array) -> FloatArray:
        """Return the rates (n, D) of n matrices in Gbit/s, by their indices."""
        return np.stack([self._rows[row] for row in rows.tolist()]).astype(np.float64)


def _nothing_measured() -> ServiceError:
    """Return error 409: the network has no measured matrix."""
    message = "no measured matrix is stored; send some to .../measurements first"
    return ServiceError(409, "nothing_measured", message)


def _interval_s(times: npt.NDArray[np.datetime64]) -> int:
    """Return the median seconds between consecutive times; 0 for fewer than two."""
    steps = np.diff(times).astype(np.int64)
    return int(np.median(steps)) if len(steps) else 0


def _file_name(time: np.datetime64) -> str:
    """Return the name of the file with the matrix of a UTC time, in whole seconds."""
    return f"{time.astype('datetime64[s]').item():{_TIME_FORMAT}}{_SUFFIX}"


def _parse_time(file: Path) -> np.datetime64:
    """Parse the time in the name of a matrix file.

    Raises:
        ValueError: the name is not a time.
    """
    # The name is YYYYMMDDTHHMMSS and the suffix.
    stem = file.name.removesuffix(_SUFFIX)
    return np.datetime64(
        f"{stem[:4]}-{stem[4:6]}-{stem[6:8]}T{stem[9:11]}:{stem[11:13]}:{stem[13:15]}", "s"
    )
