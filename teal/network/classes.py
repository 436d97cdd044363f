"""Priority classes of demands, and their candidate paths.

A demand of a class is a row of its own: all demands of the highest class come first, sorted by
source and target, then those of the next class.  So the demands of the first c classes are the
first rows of every array over demands.  Each class has paths of its own, since a class may have a
limit on latency.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from teal.errors import InputError
from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, Int64Array, IntArray
from teal.runtime.storage import content_key

if TYPE_CHECKING:  # the rest needs no compiler
    from teal.network.path_set import PathSet


@dataclasses.dataclass(frozen=True, eq=False)
class DemandClasses:
    """C classes of D demands.

    Attributes:
        names: names of the classes, the highest priority first.
        ptr: (C + 1,) the demands of class c are ``ptr[c]`` to ``ptr[c + 1]`` - 1.

    Raises:
        InputError: no class, or two of one name.
    """

    names: tuple[str, ...]
    ptr: Int64Array

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise InputError(
                "classes", "names", "at least one name, each once", ", ".join(self.names) or "none"
            )

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of_equal_size(cls, names: Iterable[str], demands: int) -> DemandClasses:
        """Classes of so many demands each.

        Args:
            names: names of the classes, the highest priority first.
            demands: demands of each class.
        """
        names = tuple(names)
        return cls(names, np.arange(len(names) + 1, dtype=np.int64) * demands)

    def rows(self, number: int) -> slice:
        """The demands of a class."""
        return slice(int(self.ptr[number]), int(self.ptr[number + 1]))

    @property
    def of_demand(self) -> IntArray:
        """(D,) number of each demand's class."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.ptr))

    @property
    def blocks(self) -> list[slice]:
        """The demands of each class, in order."""
        return [self.rows(number) for number in range(len(self))]

    def kept(self, demands: Int64Array) -> DemandClasses:
        """The classes of some of the demands, (n,) numbers, ascending; a class may be left without
        demands.
        """
        return DemandClasses(self.names, np.searchsorted(demands, self.ptr).astype(np.int64))

    def upper(self, count: int) -> DemandClasses:
        """The ``count`` highest classes."""
        return DemandClasses(self.names[:count], self.ptr[: count + 1])


def latency_limits(names: Sequence[str], limits: Mapping[str, float]) -> list[float]:
    """The limit of each class, ms; infinite where none is given.

    Raises:
        InputError: a limit of an unknown class, or one that is not positive.
    """
    for name, limit in limits.items():
        if name not in names:
            raise InputError("latency limit", name, "a class: " + ", ".join(names), repr(name))
        if not limit > 0:
            raise InputError("latency limit", name, "ms > 0", limit)
    return [float(limits.get(name, np.inf)) for name in names]


def class_paths(
    paths: PathSet,
    topology: Topology,
    pairs: IntArray,
    classes: DemandClasses,
    limits: Mapping[str, float] | None = None,
) -> PathSet:
    """The candidate paths of the demands of all classes.

    Args:
        paths: paths of all pairs that occur, each once.
        topology: for latencies.
        pairs: (D, 2) of the demands, class by class.
        classes: classes of the demands.
        limits: largest latency of a path by name of the class, ms; paths beyond it are left out.

    Raises:
        InputError: see :func:`latency_limits`; a demand whose pair has no row in ``paths``.
    """
    from teal.network.subset import joined, of_demands

    nodes = topology.num_nodes
    known = paths.pairs[:, 0].astype(np.int64) * nodes + paths.pairs[:, 1]
    number = pairs[:, 0].astype(np.int64) * nodes + pairs[:, 1]
    at = np.searchsorted(known, number)
    if (known[np.minimum(at, len(known) - 1)] != number).any():
        raise InputError("classes", "demands", "pairs that have paths", "another pair")
    limit_of = latency_limits(classes.names, limits or {})
    parts = []
    for rows, limit in zip(classes.blocks, limit_of, strict=True):
        within = paths if np.isinf(limit) else within_latency(paths, topology, limit)
        is_whole = rows.stop - rows.start == paths.num_demands and within is paths
        parts.append(within if is_whole else of_demands(within, at[rows]))
    key = content_key(paths.key, classes.names, classes.ptr, number, limit_of)
    return dataclasses.replace(joined(parts), key=key)


def within_latency(paths: PathSet, topology: Topology, limit: float) -> PathSet:
    """The demands without the paths whose latency is above ``limit``, ms."""
    is_kept = within_limit(paths, topology, limit)
    # The paths that are kept move to the first columns, in their order.
    order = np.argsort(~is_kept, axis=1, kind="stable")
    leaf = np.where(
        np.take_along_axis(is_kept, order, 1), np.take_along_axis(paths.leaf, order, 1), -1
    )
    return dataclasses.replace(
        paths,
        leaf=np.ascontiguousarray(leaf, dtype=np.int32),
        key=content_key(paths.key, "latency", limit),
    )


def within_limit(paths: PathSet, topology: Topology, limit: float) -> BoolArray:
    """(D, K) true for paths whose latency is at most ``limit``, ms."""
    along = np.full(
        paths.trie.num_nodes + 1, np.inf
    )  # the last entry is for missing paths, whose leaf is -1
    for level in paths.trie.levels:  # parents come before children
        parent = paths.trie.parent[level]
        along[level] = topology.latency[paths.trie.link[level]] + np.where(
            parent >= 0, along[parent], 0.0
        )
    return np.asarray(paths.mask & (along[paths.leaf] <= limit))
