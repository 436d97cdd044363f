"""Traffic matrices: T matrices of D demands."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from teal.errors import InputError
from teal.network.classes import DemandClasses
from teal.network.rates import ArrayRates, PartRates, Rates, SharedRates, WiderRates
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.storage import content_key

if TYPE_CHECKING:
    from teal.network.topology import Topology

_SHARE_TOLERANCE = 1e-9  # by which shares of classes may miss a sum of 1, for rounding


class Gap(NamedTuple):
    """A place in the series where matrices are missing.

    Attributes:
        after: time of the last matrix before the gap.
        missing: number of matrices.
    """

    after: np.datetime64
    missing: int


class Split(NamedTuple):
    """Row numbers of the three parts, in time order."""

    train: Int64Array
    validation: Int64Array
    test: Int64Array


@dataclasses.dataclass(frozen=True, eq=False)
class TrafficMatrices:
    """T traffic matrices over D demands (ordered node pairs).  Rates in Gbit/s.

    Attributes:
        name: short name for tables.
        pairs: (D, 2) source and target node index, sorted, without repetition (within each class).
        timestamps: (T,) datetime64[s], strictly increasing.
        rates: the stored rates (T, D) in Gbit/s, before ``scale``.
        interval_s: seconds from one matrix to the next when none is missing; 0 if unknown.
        scale: factor that :meth:`read` applies.
        skipped: one line for each matrix that its publisher left empty or that could not be used.
        key: content key of the matrices before ``scale``, for caches.
        origin: the file or name it came from, for messages.
        classes: priority classes of the demands, which then stand class by class (see
            :mod:`teal.network.classes`).
    """

    name: str
    pairs: IntArray
    timestamps: npt.NDArray[np.datetime64]
    rates: Rates
    interval_s: int
    scale: float = 1.0
    skipped: tuple[str, ...] = ()
    key: str = ""
    origin: str = ""
    classes: DemandClasses | None = None

    def __repr__(self) -> str:
        when = f"{self.timestamps[0]} to {self.timestamps[-1]}"
        return (
            f"TrafficMatrices({self.name!r}: {self.num_matrices} matrices of {self.num_demands} "
            f"demands, {when})"
        )

    def __post_init__(self) -> None:
        where = self.origin or self.name
        if self.rates.shape != (len(self.timestamps), len(self.pairs)):
            expected = f"{len(self.timestamps)} x {len(self.pairs)} rates"
            raise InputError(where, "rates", expected, " x ".join(map(str, self.rates.shape)))
        if len(self.timestamps) == 0:
            raise InputError(where, "", "at least one traffic matrix with demands", "none")
        if len(self.pairs) == 0:
            raise InputError(where, "demands", "at least one demand", "none")
        if np.isnat(self.timestamps).any():
            raise InputError(where, "timestamp", "a time for every matrix", "none")
        not_later = np.flatnonzero(np.diff(self.timestamps) <= np.timedelta64(0, "s"))
        if len(not_later):
            raise InputError(
                where, "timestamp", "increasing timestamps", self.timestamps[not_later[0] + 1]
            )
        if not self.scale > 0 or not np.isfinite(self.scale):
            raise InputError(where, "scale", "a positive factor", self.scale)
        order = self.pairs[:, 0].astype(np.int64) * (1 << 32) + self.pairs[:, 1]
        blocks = [slice(None)] if self.classes is None else self.classes.blocks
        if any((np.diff(order[rows]) <= 0).any() for rows in blocks):
            raise InputError(
                where, "demands", "pairs sorted by source and target, each once", "another order"
            )
        if (self.pairs[:, 0] == self.pairs[:, 1]).any():
            raise InputError(
                where, "demands", "a target other than the source", "a node's demand to itself"
            )

    def __len__(self) -> int:
        """T.  With :meth:`__getitem__`, the matrices are a dataset as torch's DataLoader takes
        them.
        """
        return self.num_matrices

    def __getitem__(self, number: int | slice) -> FloatArray:
        """Rates of a matrix, (D,) Gbit/s, or of several, (B, D); negative numbers count from the
        end.

        Raises:
            IndexError: no such matrix.
            InputError: a negative, infinite or NaN rate.
        """
        if isinstance(number, slice):
            return self.read(number)
        count, place = self.num_matrices, operator.index(number)
        if not -count <= place < count:
            raise IndexError(
                f"{self.origin or self.name}: matrix {place}: expected 0 to {count - 1}, or "
                f"-{count} to -1 from the end"
            )
        matrix: FloatArray = self.read([place % count])[0]
        return matrix

    def to_frame(self, topology: Topology) -> Any:
        """A pandas frame, a row for each time, a column for each pair of names (source, target), in
        Gbit/s.

        Args:
            topology: network whose nodes the pairs name.

        Raises:
            InputError: priority classes, of which several have the same pair.
        """
        import pandas as pd

        if self.classes is not None:
            raise InputError(
                self.origin or self.name, "classes", "traffic without classes", self.classes.names
            )
        names = np.array(topology.node_names, dtype=object)[self.pairs]
        columns = pd.MultiIndex.from_arrays([names[:, 0], names[:, 1]], names=["source", "target"])
        index = pd.DatetimeIndex(self.timestamps, name="timestamp")
        return pd.DataFrame(self.read(slice(None)), index=index, columns=columns)

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
        """The places where matrices are missing, judged by timestamps and interval."""
        if not self.interval_s:
            return []
        steps = np.diff(self.timestamps).astype(np.int64)
        missing = np.round(steps / self.interval_s).astype(int) - 1
        return [Gap(self.timestamps[i], int(missing[i])) for i in np.flatnonzero(missing > 0)]

    def read(self, rows: Int64Array | list[int] | slice) -> FloatArray:
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
                self.origin or self.name,
                f"matrix {rows[i]}, demand {self.pairs[d][0]}->{self.pairs[d][1]}",
                "a finite rate >= 0",
                values[i, d],
            )
        return values * self.scale

    def chunks(self, rows: Int64Array | None = None, size: int = 0) -> Iterator[FloatArray]:
        """Read ``rows`` (None: all) in chunks of ``size`` matrices, or of about 32 MB (4 Mi rates)
        if that is 0.
        """
        rows = np.arange(self.num_matrices) if rows is None else rows
        size = size or max(1, (1 << 22) // self.num_demands)
        for begin in range(0, len(rows), size):
            yield self.read(rows[begin : begin + size])

    def mean(self, rows: Int64Array | None = None) -> FloatArray:
        """Mean rate of each demand over ``rows``: (D,) Gbit/s."""
        total, count = np.zeros(self.num_demands), 0
        for chunk in self.chunks(rows):
            total, count = total + chunk.sum(0), count + len(chunk)
        return total / count

    def scaled(self, factor: float) -> TrafficMatrices:
        """The matrices times ``factor``."""
        return dataclasses.replace(self, scale=self.scale * factor)

    def carrying(self, row: int) -> TrafficMatrices:
        """One matrix alone, with only those demands that are not 0 in it."""
        rates = self.read([row])
        carrying = np.flatnonzero(rates[0] > 0)
        return dataclasses.replace(
            self,
            pairs=self.pairs[carrying],
            classes=None if self.classes is None else self.classes.kept(carrying),
            timestamps=self.timestamps[[row]],
            rates=ArrayRates(rates[:, carrying]),
            scale=1.0,
            key=content_key(self.key, self.scale, row),
        )

    def over(self, pairs: IntArray) -> TrafficMatrices:
        """The matrices over more pairs, without traffic on those that are new.

        Args:
            pairs: (n, 2) sorted, all of ours among them.

        Raises:
            InputError: demands of several classes, of which a pair has more than one.
        """
        if self.classes is not None:
            raise InputError(
                self.origin or self.name, "classes", "traffic without classes", self.classes.names
            )
        wide, ours = (one[:, 0].astype(np.int64) << 32 | one[:, 1] for one in (pairs, self.pairs))
        rates = WiderRates(self.rates, np.searchsorted(wide, ours), len(pairs))
        return dataclasses.replace(self, pairs=pairs, rates=rates, key=content_key(self.key, pairs))

    def part(self, first: int, stop: int) -> TrafficMatrices:
        """The matrices ``first`` to ``stop`` - 1; the others cannot be read from the result."""
        return dataclasses.replace(
            self,
            timestamps=self.timestamps[first:stop],
            rates=PartRates(self.rates, first, stop),
            key=content_key(self.key, first, stop),
        )

    def split(self, train: float = 0.7, validation: float = 0.1) -> Split:
        """Row numbers of training, validation and test part, in time order.

        Every part has at least one row if there are three or more; with fewer, all three parts are
        all rows.
        """
        count = self.num_matrices
        if count < 3:
            all_rows = np.arange(count)
            return Split(all_rows, all_rows, all_rows)
        first = min(max(1, round(train * count)), count - 2)
        second = min(max(first + 1, round((train + validation) * count)), count - 1)
        return Split(np.arange(first), np.arange(first, second), np.arange(second, count))

    def content_key(self) -> str:
        """Content key of the matrices that :meth:`read` returns."""
        classes = () if self.classes is None else (self.classes.names, self.classes.ptr)
        return content_key(self.key, self.pairs, self.timestamps, self.scale, *classes)

    def in_classes(self, shares: Mapping[str, float]) -> TrafficMatrices:
        """The demands, each divided among classes.

        Args:
            shares: share of every demand, by name of the class, the highest priority first; they
                sum to 1.

        Raises:
            InputError: shares that are negative or do not sum to 1; demands that have classes.
        """
        parts = np.array(list(shares.values()), dtype=np.float64)
        if self.classes is not None:
            raise InputError(
                self.origin or self.name,
                "classes",
                "demands without classes",
                "demands with classes",
            )
        if not (parts >= 0).all() or abs(parts.sum() - 1) > _SHARE_TOLERANCE:
            raise InputError(
                "classes", "shares", "numbers >= 0 that sum to 1", ", ".join(map(str, parts))
            )
        return dataclasses.replace(
            self,
            pairs=np.tile(self.pairs, (len(parts), 1)),
            rates=SharedRates(self.rates, parts),
            classes=DemandClasses.of_equal_size(shares, self.num_demands),
            key=content_key(self.key, tuple(shares), parts),
        )


def spread(rows: Int64Array, limit: int) -> Int64Array:
    """At most ``limit`` of ``rows``, evenly spread; all of them if ``limit`` is 0."""
    if not limit or limit >= len(rows):
        return rows
    return rows[np.unique(np.linspace(0, len(rows) - 1, limit).round().astype(int))]


def usual_interval(timestamps: npt.NDArray[np.datetime64]) -> int:
    """Median step in seconds, 0 for a single matrix."""
    steps = np.diff(timestamps).astype("timedelta64[s]").astype(np.int64)
    return int(np.median(steps)) if len(steps) else 0
