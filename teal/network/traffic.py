"""Traffic matrices: time x demand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from teal.errors import InputError
from teal.network.rates import ArrayRates, Rates
from teal.network.topology import FloatArray, IntArray
from teal.storage import content_key

Rows = npt.NDArray[np.int64]


class Gap(NamedTuple):
    """Matrices that are missing between two that are there."""

    after: np.datetime64
    missing: int


class Split(NamedTuple):
    """Row numbers of the three parts, in time order."""

    train: Rows
    validation: Rows
    test: Rows


@dataclasses.dataclass(frozen=True, eq=False)
class TrafficMatrices:
    """T traffic matrices over D demands (ordered node pairs).  Rates in Gbit/s.

    Attributes:
        name: short name for tables.
        pairs: (D, 2) source and target node index, sorted, without repetition.
        timestamps: (T,) datetime64[s], strictly increasing.
        rates: the store, T x D, before ``scale``.
        interval_s: seconds from one matrix to the next when none is missing; 0 if unknown.
        scale: factor that :meth:`read` applies.
        skipped: one line for each matrix that its publisher left empty or that could not be used.
        key: content key of the matrices before ``scale``, for caches.
        source: the file or name it came from, for messages.
    """

    name: str
    pairs: IntArray
    timestamps: npt.NDArray[np.datetime64]
    rates: Rates
    interval_s: int
    scale: float = 1.0
    skipped: tuple[str, ...] = ()
    key: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        where = self.source or self.name
        if self.rates.shape != (len(self.timestamps), len(self.pairs)):
            expected = f"{len(self.timestamps)} x {len(self.pairs)} rates"
            raise InputError(where, "rates", expected, " x ".join(map(str, self.rates.shape)))
        if len(self.timestamps) == 0:
            raise InputError(where, "", "at least one traffic matrix with demands", "none")
        if len(self.pairs) == 0:
            raise InputError(where, "demands", "at least one demand", "none")
        if np.isnat(self.timestamps).any():
            raise InputError(where, "timestamp", "a time for every matrix", "none")
        late = np.flatnonzero(np.diff(self.timestamps) <= np.timedelta64(0, "s"))
        if len(late):
            raise InputError(where, "timestamp", "increasing timestamps", self.timestamps[late[0] + 1])
        if not self.scale > 0 or not np.isfinite(self.scale):
            raise InputError(where, "scale", "a positive factor", self.scale)
        order = self.pairs[:, 0].astype(np.int64) * (1 << 32) + self.pairs[:, 1]
        if (np.diff(order) <= 0).any():
            raise InputError(where, "demands", "pairs sorted by source and target, each once", "another order")
        if (self.pairs[:, 0] == self.pairs[:, 1]).any():
            raise InputError(where, "demands", "a target other than the source", "a node's demand to itself")

    @property
    def num_matrices(self) -> int:
        """T."""
        return len(self.timestamps)

    @property
    def num_demands(self) -> int:
        """D."""
        return len(self.pairs)

    @property
    def gaps(self) -> list[Gap]:
        """Where matrices are missing, by the timestamps and the interval."""
        if not self.interval_s:
            return []
        steps = np.diff(self.timestamps).astype(np.int64)
        missing = np.round(steps / self.interval_s).astype(int) - 1
        return [Gap(self.timestamps[i], int(missing[i])) for i in np.flatnonzero(missing > 0)]

    def read(self, rows: Rows | list[int] | slice) -> FloatArray:
        """Rates of the given matrices: (B, D) Gbit/s.

        Raises:
            InputError: a negative, infinite or NaN rate among those read.
        """
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.num_matrices))
        rows = np.asarray(rows, dtype=np.int64)
        values = self.rates.read(rows)
        bad = ~(np.isfinite(values) & (values >= 0))
        if bad.any():
            i, d = np.argwhere(bad)[0]
            raise InputError(
                self.source or self.name,
                f"matrix {rows[i]}, demand {self.pairs[d][0]}->{self.pairs[d][1]}",
                "a finite rate >= 0",
                values[i, d],
            )
        return values * self.scale

    def chunks(self, rows: Rows | None = None, size: int = 0) -> Iterator[FloatArray]:
        """Read ``rows`` (all of them if None) some at a time, about 32 MB each unless ``size`` says."""
        rows = np.arange(self.num_matrices) if rows is None else rows
        size = size or max(1, (1 << 22) // self.num_demands)
        for begin in range(0, len(rows), size):
            yield self.read(rows[begin : begin + size])

    def mean(self, rows: Rows | None = None) -> FloatArray:
        """Mean rate of each demand over ``rows``: (D,) Gbit/s."""
        total, count = np.zeros(self.num_demands), 0
        for chunk in self.chunks(rows):
            total, count = total + chunk.sum(0), count + len(chunk)
        return total / count

    def scaled(self, factor: float) -> TrafficMatrices:
        """The same matrices times ``factor``."""
        return dataclasses.replace(self, scale=self.scale * factor)

    def carrying(self, row: int) -> TrafficMatrices:
        """One matrix, with the demands that are not 0 in it and no others."""
        rates = self.read([row])
        return dataclasses.replace(
            self,
            pairs=self.pairs[rates[0] > 0],
            timestamps=self.timestamps[[row]],
            rates=ArrayRates(rates[:, rates[0] > 0]),
            scale=1.0,
            key=content_key(self.key, self.scale, row),
        )

    def split(self, train: float = 0.7, validation: float = 0.1) -> Split:
        """Row numbers of training, validation and test part, in time order.

        Every part has a row where there are at least three; with fewer, the parts share them.
        """
        count = self.num_matrices
        if count < 3:
            everything = np.arange(count)
            return Split(everything, everything, everything)
        first = min(max(1, round(train * count)), count - 2)
        second = min(max(first + 1, round((train + validation) * count)), count - 1)
        return Split(np.arange(first), np.arange(first, second), np.arange(second, count))

    def content_key(self) -> str:
        """Content key of the matrices as :meth:`read` gives them."""
        return content_key(self.key, self.pairs, self.timestamps, self.scale)


def spread(rows: Rows, limit: int) -> Rows:
    """At most ``limit`` of ``rows``, evenly spread; all of them if ``limit`` is 0."""
    if not limit or limit >= len(rows):
        return rows
    return rows[np.unique(np.linspace(0, len(rows) - 1, limit).round().astype(int))]


def usual_interval(timestamps: npt.NDArray[np.datetime64]) -> int:
    """Median step in seconds, 0 for a single matrix."""
    steps = np.diff(timestamps).astype("timedelta64[s]").astype(np.int64)
    return int(np.median(steps)) if len(steps) else 0
