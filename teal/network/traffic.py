"""Traffic matrices: T timestamped matrices over D demands (node pairs), in Gbit/s.

:class:`TrafficMatrices` holds pairs, timestamps and a row store (:mod:`teal.network.rates`), which
reads rates on demand; :class:`Split` divides its rows for training, validation and test.
"""

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

# Maximum difference between 1 and the sum of class shares, for rounding.
_SHARE_TOLERANCE = 1e-9


class Gap(NamedTuple):
    """Gap in the time series where matrices are missing.

    Attributes:
        after: time of the last matrix before the gap.
        missing: number of missing matrices.
    """

    after: np.datetime64
    missing: int


class Split(NamedTuple):
    """Indices of the matrices for training, validation and test, in time order.

    Attributes:
        train: indices of the training matrices.
        validation: indices of the validation matrices.
        test: indices of the test matrices.
    """

    train: Int64Array
    validation: Int64Array
    test: Int64Array


@dataclasses.dataclass(frozen=True, eq=False)
class TrafficMatrices:
    """T traffic matrices over D demands (ordered node pairs), in Gbit/s.

    Attributes:
        name: short name for tables.
        pairs: (D, 2) source and target node index, sorted and distinct (within each class).
        timestamps: (T,) datetime64[s], strictly increasing.
        rates: stored rates (T, D), in Gbit/s before multiplication by ``scale``.
        interval_s: nominal seconds between two matrices; 0 if unknown.
        scale: factor by which :meth:`read` multiplies the stored rates.
        skipped: one line for each matrix that is empty or unusable.
        key: content hash of the matrices before ``scale``, for caches.
        origin: file or name of the source, for messages.
        classes: priority classes of the demands, which are then ordered by class (see
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
        period = f"{self.timestamps[0]} to {self.timestamps[-1]}"
        return (
            f"TrafficMatrices({self.name!r}: {self.num_matrices} matrices of {self.num_demands} "
            f"demands, {period})"
        )

    def __post_init__(self) -> None:
        """Raise InputError for wrong shapes, and invalid times, scale or node pairs."""
        where = self.origin or self.name
        # Check the shapes.
        if self.rates.shape != (len(self.timestamps), len(self.pairs)):
            expected = f"{len(self.timestamps)} x {len(self.pairs)} rates"
            raise InputError(where, "rates", expected, " x ".join(map(str, self.rates.shape)))
        if len(self.timestamps) == 0:
            raise InputError.invalid(where, "", "no traffic matrix with a demand")
        if len(self.pairs) == 0:
            raise InputError.invalid(where, "demands", "no demand")
        # Check times and scale.
        if np.isnat(self.timestamps).any():
            raise InputError.invalid(where, "timestamp", "a matrix has no time")
        not_increasing = np.flatnonzero(np.diff(self.timestamps) <= np.timedelta64(0, "s"))
        if len(not_increasing):
            raise InputError.invalid(
                where,
                "timestamp",
                f"{self.timestamps[not_increasing[0] + 1]} is not later than the matrix before",
                "sort the matrices by time, each time once",
            )
        if not self.scale > 0 or not np.isfinite(self.scale):
            raise InputError(where, "scale", "a positive factor", self.scale)
        # Check the pairs: sorted and distinct within each class.
        sort_key = self.pairs[:, 0].astype(np.int64) * (1 << 32) + self.pairs[:, 1]
        blocks = [slice(None)] if self.classes is None else self.classes.blocks
        if any((np.diff(sort_key[rows]) <= 0).any() for rows in blocks):
            raise InputError.invalid(
                where,
                "demands",
                "node pairs are not sorted by source and target, or repeat",
                "sort them, each pair once in a class",
            )
        if (self.pairs[:, 0] == self.pairs[:, 1]).any():
            index = int((self.pairs[:, 0] == self.pairs[:, 1]).argmax())
            problem = f"demand {index} has the node {self.pairs[index, 0]} as source and as target"
            raise InputError.invalid(where, "demands", problem)

    def __len__(self) -> int:
        """Return the number of matrices.

        With :meth:`__getitem__`, the matrices are a map-style dataset for torch's DataLoader.
        """
        return self.num_matrices

    def __getitem__(self, index: int | slice) -> FloatArray:
        """Return the rates (D,) of one matrix, or (B, D) of a slice of matrices, in Gbit/s.

        Args:
            index: index of the matrix, negative from the end, or a slice.

        Raises:
            IndexError: the index is out of range.
            InputError: a negative, infinite or NaN rate.
        """
        if isinstance(index, slice):
            return self.read(index)
        num_matrices = self.num_matrices
        row = operator.index(index)
        if not -num_matrices <= row < num_matrices:
            raise IndexError(
                f"{self.origin or self.name}: matrix {row}: expected 0 to {num_matrices - 1}, or "
                f"-{num_matrices} to -1 from the end"
            )
        matrix: FloatArray = self.read([row % num_matrices])[0]
        return matrix

    def to_frame(self, topology: Topology) -> Any:
        """Return the rates in Gbit/s as a pandas frame.

        It has a row for each time, and a column for each pair of node names (source, target).

        Args:
            topology: network of the node indices.

        Raises:
            InputError: the demands have priority classes, so that pairs repeat.
        """
        import pandas as pd

        if self.classes is not None:
            raise InputError(
                self.origin or self.name,
                "classes",
                "traffic without classes",
                ", ".join(self.classes.names),
            )
        names = np.array(topology.node_names, dtype=object)[self.pairs]
        columns = pd.MultiIndex.from_arrays([names[:, 0], names[:, 1]], names=["source", "target"])
        index = pd.DatetimeIndex(self.timestamps, name="timestamp")
        return pd.DataFrame(self.read(slice(None)), index=index, columns=columns)

    @property
    def num_matrices(self) -> int:
        """The number T of matrices."""
        return len(self.timestamps)

    @property
    def num_demands(self) -> int:
        """The number D of demands."""
        return len(self.pairs)

    @property
    def gaps(self) -> list[Gap]:
        """Gaps in the time series, computed from timestamps and nominal interval; empty if it is
        unknown.
        """
        if not self.interval_s:
            return []
        step_seconds = np.diff(self.timestamps).astype(np.int64)
        num_missing = np.round(step_seconds / self.interval_s).astype(int) - 1
        return [
            Gap(self.timestamps[i], int(num_missing[i])) for i in np.flatnonzero(num_missing > 0)
        ]

    def read(self, rows: Int64Array | list[int] | slice) -> FloatArray:
        """Return the rates (B, D) of B matrices in Gbit/s.

        Args:
            rows: indices of the matrices, or a slice.

        Raises:
            InputError: a negative, infinite or NaN rate in these matrices.
        """
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(self.num_matrices))
        rows = np.asarray(rows, dtype=np.int64)
        values = self.rates.read(rows)
        is_invalid = ~(np.isfinite(values) & (values >= 0))
        if is_invalid.any():
            row, demand = np.argwhere(is_invalid)[0]
            raise InputError(
                self.origin or self.name,
                f"matrix {rows[row]}, demand {self.pairs[demand][0]}->{self.pairs[demand][1]}",
                "a finite rate >= 0",
                values[row, demand],
            )
        return values * self.scale

    def chunks(self, rows: Int64Array | None = None, size: int = 0) -> Iterator[FloatArray]:
        """Yield the rates (B, D) of chunks of matrices, in Gbit/s.

        Args:
            rows: indices of the matrices; None for all.
            size: number of matrices of a chunk; 0 for about 32 MB (4 Mi rates).
        """
        rows = np.arange(self.num_matrices) if rows is None else rows
        size = size or max(1, (1 << 22) // self.num_demands)
        for begin in range(0, len(rows), size):
            yield self.read(rows[begin : begin + size])

    def mean(self, rows: Int64Array | None = None) -> FloatArray:
        """Return the mean rate (D,) of each demand over some matrices, in Gbit/s.

        Args:
            rows: indices of the matrices; None for all.
        """
        total = np.zeros(self.num_demands)
        num_rows = 0
        for chunk in self.chunks(rows):
            total = total + chunk.sum(0)
            num_rows = num_rows + len(chunk)
        return total / num_rows

    def scaled(self, factor: float) -> TrafficMatrices:
        """Return the matrices with all rates multiplied by a factor."""
        return dataclasses.replace(self, scale=self.scale * factor)

    def carrying(self, row: int) -> TrafficMatrices:
        """Return one of the matrices, restricted to its positive demands.

        Args:
            row: index of the matrix.
        """
        rates = self.read([row])
        positive_demands = np.flatnonzero(rates[0] > 0)
        return dataclasses.replace(
            self,
            pairs=self.pairs[positive_demands],
            classes=None if self.classes is None else self.classes.select(positive_demands),
            timestamps=self.timestamps[[row]],
            rates=ArrayRates(rates[:, positive_demands]),
            scale=1.0,
            key=content_key(self.key, self.scale, row),
        )

    def over(self, pairs: IntArray) -> TrafficMatrices:
        """Return the matrices over more node pairs; the rates of the new pairs are 0.

        Args:
            pairs: (n, 2) sorted pairs that contain all present ones.

        Raises:
            InputError: the demands have priority classes, so that pairs repeat.
        """
        if self.classes is not None:
            raise InputError(
                self.origin or self.name,
                "classes",
                "traffic without classes",
                ", ".join(self.classes.names),
            )
        # Pairs as integers, to find the column of each present pair among the new ones.
        new_pair_codes, pair_codes = (
            pair_array[:, 0].astype(np.int64) << 32 | pair_array[:, 1]
            for pair_array in (pairs, self.pairs)
        )
        rates = WiderRates(self.rates, np.searchsorted(new_pair_codes, pair_codes), len(pairs))
        return dataclasses.replace(self, pairs=pairs, rates=rates, key=content_key(self.key, pairs))

    def part(self, first: int, stop: int) -> TrafficMatrices:
        """Return some consecutive matrices, without access to the others.

        Args:
            first: index of the first matrix.
            stop: index after the last matrix.
        """
        return dataclasses.replace(
            self,
            timestamps=self.timestamps[first:stop],
            rates=PartRates(self.rates, first, stop),
            key=content_key(self.key, first, stop),
        )

    def split(self, train: float = 0.7, validation: float = 0.1) -> Split:
        """Divide the matrices into training, validation and test parts, in time order.

        Every part has at least one matrix if there are three or more; with fewer, every part has
        all matrices.

        Args:
            train: fraction of the matrices for training.
            validation: fraction for validation; the test part has the remaining ones.
        """
        num_matrices = self.num_matrices
        if num_matrices < 3:
            all_rows = np.arange(num_matrices)
            return Split(all_rows, all_rows, all_rows)
        train_end = min(max(1, round(train * num_matrices)), num_matrices - 2)
        validation_end = min(
            max(train_end + 1, round((train + validation) * num_matrices)), num_matrices - 1
        )
        return Split(
            np.arange(train_end),
            np.arange(train_end, validation_end),
            np.arange(validation_end, num_matrices),
        )

    def content_key(self) -> str:
        """Return a content hash of the rates in Gbit/s, the pairs, the times and the classes."""
        classes = () if self.classes is None else (self.classes.names, self.classes.ptr)
        return content_key(self.key, self.pairs, self.timestamps, self.scale, *classes)

    def in_classes(self, shares: Mapping[str, float]) -> TrafficMatrices:
        """Divide each demand among C priority classes; the result has C D demands, class by class.

        Args:
            shares: share of every demand by class name, the highest priority first; the sum is 1.

        Raises:
            InputError: negative shares, or a sum other than 1; demands that already have classes.
        """
        # Check the classes and their shares.
        class_shares = np.array(list(shares.values()), dtype=np.float64)
        if self.classes is not None:
            raise InputError.invalid(
                self.origin or self.name,
                "classes",
                "the demands already have the classes " + ", ".join(self.classes.names),
            )
        if not (class_shares >= 0).all() or abs(class_shares.sum() - 1) > _SHARE_TOLERANCE:
            raise InputError(
                "classes", "shares", "numbers >= 0 that sum to 1", ", ".join(map(str, class_shares))
            )
        # Repeat the pairs for each class; the rates are multiplied by the share when they are read.
        return dataclasses.replace(
            self,
            pairs=np.tile(self.pairs, (len(class_shares), 1)),
            rates=SharedRates(self.rates, class_shares),
            classes=DemandClasses.of_equal_size(shares, self.num_demands),
            key=content_key(self.key, tuple(shares), class_shares),
        )


def spread(rows: Int64Array, limit: int) -> Int64Array:
    """Return at most ``limit`` of some row indices, evenly spaced; all of them if ``limit`` is 0.

    Args:
        rows: the row indices.
        limit: maximum number; 0 for no limit.
    """
    if not limit or limit >= len(rows):
        return rows
    return rows[np.unique(np.linspace(0, len(rows) - 1, limit).round().astype(int))]


def usual_interval(timestamps: npt.NDArray[np.datetime64]) -> int:
    """Return the median time between two matrices in seconds; 0 for a single matrix."""
    step_seconds = np.diff(timestamps).astype("timedelta64[s]").astype(np.int64)
    return int(np.median(step_seconds)) if len(step_seconds) else 0
