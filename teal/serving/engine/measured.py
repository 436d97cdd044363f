"""Measured traffic matrices of a network, on disk: a file each, the oldest go."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.network import TrafficMatrices
from teal.runtime.arrays import BoolArray, Float32Array, FloatArray, Int64Array, IntArray
from teal.runtime.storage import atomic_files
from teal.serving.engine.errors import ServiceError, wrong

MAX_KEPT_MATRICES = 2_016  # three weeks of quarters of an hour
# Of the matrices of a network, as float32; at least _MIN_KEPT_MATRICES are kept.
_MAX_BYTES = 256 << 20
_MIN_KEPT_MATRICES = 16
# That a time may be ahead of this machine's clock, for clocks that differ.  A matrix of the future
# would refuse all that are measured until then.
_MAX_FUTURE = np.timedelta64(600, "s")
_SUFFIX = ".npy"
_CLOCK_TICK_NS = 1_000_000_000
_TIME_FORMAT = "%Y%m%dT%H%M%S"


class MeasuredMatrices:
    """The matrices of one registration of a network, oldest first, in memory and on disk.  For
    several threads.

    Args:
        folder: folder of this registration; folders beside it belong to earlier ones and are
            deleted.
        num_demands: D.

    Attributes:
        dropped: number of matrices that were kept once and are not any more, as far as this process
            knows.
        version: changes with the matrices.
    """

    def __init__(self, folder: Path, num_demands: int) -> None:
        self.folder, self._num_demands = folder, num_demands
        self.most = min(
            MAX_KEPT_MATRICES, max(_MIN_KEPT_MATRICES, _MAX_BYTES // (4 * max(1, num_demands)))
        )
        self._rows: dict[np.datetime64, Float32Array] = {}
        self.dropped = 0
        self.version = 0
        self._stamps: dict[np.datetime64, int] = {}  # of the files that were read or written
        # time of the last change of the folder when its files were looked at; 0 to look again
        self._read_at = 0
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in folder.parent.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other, ignore_errors=True)

    @property
    def times(self) -> list[np.datetime64]:
        """The times of the matrices, ascending."""
        return list(self._rows)

    @property
    def interval_s(self) -> int:
        """Seconds from one matrix to the next: the median; 0 for fewer than two."""
        return _interval_s(np.array(self.times, "datetime64[s]"))

    def refresh(self) -> None:
        """Read what other processes, or this one before a restart, have stored; forget what they
        have deleted.
        """
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        changed_at = self.folder.stat().st_mtime_ns if self.folder.is_dir() else 0
        if changed_at == self._read_at:
            return
        # A change in the same tick of the file system's clock would not show.
        self._read_at = changed_at if time.time_ns() - changed_at > _CLOCK_TICK_NS else 0
        stored = sorted(
            file for file in self.folder.glob(f"*{_SUFFIX}") if not file.name.startswith(".")
        )[-self.most :]
        for file in stored:
            with contextlib.suppress(
                OSError, ValueError, EOFError, RecursionError, OverflowError
            ):  # deleted, or not ours
                when = _time(file)
                stamp = self._stamp(when)
                if self._stamps.get(when) == stamp:
                    continue
                if not file.is_file():  # a pipe would keep its reader waiting
                    continue
                # Mapped first: a header may claim more numbers than the file has, or than memory.
                row = np.lib.format.open_memmap(file, mode="r")
                if row.shape == (self._num_demands,) and row.dtype == np.float32:
                    self._rows[when], self._stamps[when] = np.array(row), stamp
                    self.version += 1
        names = {file.name for file in stored}
        for when in [when for when in self._rows if _file_name(when) not in names]:
            self._forget(when)
            self.version += 1
        self._rows = dict(sorted(self._rows.items()))
        self._drop_oldest()

    def clear(self) -> None:
        """Delete all matrices, and whatever else is in the folder."""
        with self._lock:
            for file in self.folder.iterdir():
                if file.is_dir() and not file.is_symlink():
                    shutil.rmtree(file, ignore_errors=True)
                else:
                    file.unlink(missing_ok=True)
            self._refresh()

    def add(self, times: list[np.datetime64], rates: FloatArray) -> None:
        """Store matrices; one that is sent again replaces the first.

        Args:
            times: times of the matrices, ascending, seconds.
            rates: (B, D) Gbit/s.

        Raises:
            ServiceError: they are older than the newest one that is stored.
        """
        with self._lock:
            self._add(times, rates)

    def _add(self, times: list[np.datetime64], rates: FloatArray) -> None:
        latest = np.datetime64("now", "s") + _MAX_FUTURE
        if times[-1] > latest:
            raise wrong(f"time: at most 10 minutes ahead of this service's clock, not {times[-1]}Z")
        self._drop_later(latest)
        newest = next(reversed(self._rows), None)
        if newest is not None and (times[0] < newest or (times[0] == newest and len(times) > 1)):
            raise ServiceError(
                409, "not_later", f"time: later than {newest}, the newest measured matrix"
            )
        if rates.shape[1] != self._num_demands or not self.folder.is_dir():
            raise ServiceError(409, "replaced", "the network was deleted or replaced")
        rows = dict(zip(times, rates.astype(np.float32), strict=True))
        with atomic_files(self.folder / _file_name(time) for time in rows) as temporaries:
            for temporary, row in zip(temporaries, rows.values(), strict=True):
                with temporary.open("wb") as stream:
                    np.save(stream, row)
        self._rows |= rows
        self.version += 1
        self._stamps |= {time: self._stamp(time) for time in rows}
        self._drop_oldest()

    def _stamp(self, time: np.datetime64) -> int:
        with contextlib.suppress(OSError):
            return (self.folder / _file_name(time)).stat().st_mtime_ns
        return 0

    def _drop_later(self, latest: np.datetime64) -> None:
        """Delete matrices of the future: they were measured by a clock that has been set back
        since.
        """
        for when in [when for when in self._rows if when > latest]:
            self._forget(when)
            self.version += 1
            (self.folder / _file_name(when)).unlink(missing_ok=True)

    def _drop_oldest(self) -> None:
        while len(self._rows) > self.most:
            oldest = next(iter(self._rows))
            self._forget(oldest)
            (self.folder / _file_name(oldest)).unlink(missing_ok=True)

    def _forget(self, time: np.datetime64) -> None:
        del self._rows[time]
        self._stamps.pop(time, None)
        self.dropped += 1

    def traffic(self, name: str, pairs: IntArray) -> tuple[TrafficMatrices, int]:
        """As hedges read them, and the number of the oldest one in the whole series.

        Args:
            name: name of the network.
            pairs: (D, 2) as of its paths.

        Raises:
            ServiceError: there is no matrix.
        """
        with self._lock:
            if not self._rows:
                raise _nothing_measured()
            times: npt.NDArray[np.datetime64] = np.array(self.times, "datetime64[s]")
            rows, first = _Rows(list(self._rows.values()), self._num_demands), self.dropped
        return TrafficMatrices(
            name, pairs, times, rows, _interval_s(times), key=f"{name}/{times[-1]}"
        ), first

    def rates(self) -> Float32Array:
        """(T, D) Gbit/s of all matrices."""
        with self._lock:
            rows = list(self._rows.values())
        return np.stack(rows) if rows else np.zeros((0, self._num_demands), np.float32)

    def had_traffic(self) -> BoolArray:
        """(D,) true for demands that some matrix has traffic of."""
        seen = np.zeros(self._num_demands, dtype=bool)
        with self._lock:
            for row in self._rows.values():
                seen |= row > 0
        return seen

    def newest(self) -> FloatArray:
        """(1, D) Gbit/s of the newest matrix.

        Raises:
            ServiceError: there is none.
        """
        with self._lock:
            if not self._rows:
                raise _nothing_measured()
            return next(reversed(self._rows.values())).astype(np.float64)[None]


class Measured:
    """The measured matrices of a network, as the service shows them.

    Args:
        name: name of the network.
        pairs: (D, 2) of its paths.
        folder: folder of the matrices, and of what is learnt from them.

    Attributes:
        matrices: the matrices.
    """

    def __init__(self, name: str, pairs: IntArray, folder: Path) -> None:
        self.name, self.pairs = name, pairs
        self.matrices = MeasuredMatrices(folder, len(pairs))

    def info(self) -> dict[str, Any]:
        """:class:`teal.serving.engine.responses.MeasuredInfo`."""
        times = self.matrices.times
        return {
            "matrices": len(times),
            "first": f"{times[0]}Z" if times else None,
            "last": f"{times[-1]}Z" if times else None,
            "interval_s": self.matrices.interval_s,
            "most": self.matrices.most,
        }

    def clear(self) -> None:
        """Forget all matrices and what was learnt from them."""
        self.matrices.clear()


class _Rows:
    """Rates of the measured matrices: :class:`teal.network.rates.Rates`."""

    def __init__(self, rows: list[Float32Array], width: int) -> None:
        self._rows, self._width = rows, width

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._rows), self._width

    def read(self, rows: Int64Array) -> FloatArray:
        return np.stack([self._rows[row] for row in rows.tolist()]).astype(np.float64)


def _nothing_measured() -> ServiceError:
    """The fault that no matrix has been measured, or all were deleted."""
    message = "send measured matrices to .../measurements first"
    return ServiceError(409, "nothing_measured", message)


def _interval_s(times: npt.NDArray[np.datetime64]) -> int:
    steps = np.diff(times).astype(np.int64)
    return int(np.median(steps)) if len(steps) else 0


def _file_name(time: np.datetime64) -> str:
    return f"{time.astype('datetime64[s]').item():{_TIME_FORMAT}}{_SUFFIX}"


def _time(file: Path) -> np.datetime64:
    stem = file.name.removesuffix(_SUFFIX)
    return np.datetime64(
        f"{stem[:4]}-{stem[4:6]}-{stem[6:8]}T{stem[9:11]}:{stem[11:13]}:{stem[13:15]}", "s"
    )
