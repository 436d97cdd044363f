"""Priority classes of demands, and their candidate paths.

Demands are ordered by class, the highest priority first, and within a class by source and target,
so that the demands of the first c classes are a prefix of every array over demands.  Each class has
its own paths, since a class may have a latency limit.  Entry points: :class:`DemandClasses`,
:func:`class_paths`.
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

# Imported for annotations only: the other functions need no compiler.
if TYPE_CHECKING:
    from teal.network.path_set import PathSet


@dataclasses.dataclass(frozen=True, eq=False)
class DemandClasses:
    """C priority classes of D demands.

    Attributes:
        names: names of the classes, the highest priority first.
        ptr: (C + 1,) the demands of class c are ``ptr[c]`` to ``ptr[c + 1]`` - 1.

    Raises:
        InputError: no class, or a repeated name.
    """

    names: tuple[str, ...]
    ptr: Int64Array

    def __post_init__(self) -> None:
        """Raise InputError without a class, or for a repeated name."""
        if not self.names or len(set(self.names)) < len(self.names):
            names = ", ".join(self.names)
            raise InputError.invalid(
                "classes", "names", f"a class name repeats: {names}" if names else "no class"
            )

    def __len__(self) -> int:
        """Return the number of classes."""
        return len(self.names)

    @classmethod
    def of_equal_size(cls, names: Iterable[str], demands: int) -> DemandClasses:
        """Return classes with equal numbers of demands.

        Args:
            names: names of the classes, the highest priority first.
            demands: number of demands of each class.
        """
        names = tuple(names)
        return cls(names, np.arange(len(names) + 1, dtype=np.int64) * demands)

    def rows(self, index: int) -> slice:
        """Return the slice of the demands of a class.

        Args:
            index: index of the class, 0 for the highest priority.
        """
        return slice(int(self.ptr[index]), int(self.ptr[index + 1]))

    @property
    def of_demand(self) -> IntArray:
        """The class index (D,) of each demand."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.ptr))

    @property
    def blocks(self) -> list[slice]:
        """The slices of the demands of all classes, in order."""
        return [self.rows(index) for index in range(len(self))]

    def select(self, demands: Int64Array) -> DemandClasses:
        """Return the classes of a subset of the demands; classes may become empty.

        Args:
            demands: (n,) indices of the demands, ascending.
        """
        return DemandClasses(self.names, np.searchsorted(demands, self.ptr).astype(np.int64))

    def upper(self, count: int) -> DemandClasses:
        """Return the classes of highest priority.

        Args:
            count: number of classes.
        """
        return DemandClasses(self.names[:count], self.ptr[: count + 1])


def latency_limits(names: Sequence[str], limits: Mapping[str, float]) -> list[float]:
    """Return the latency limit of each class in ms; infinite for none.

    Args:
        names: names of the classes.
        limits: limits by name of a class, ms.

    Raises:
        InputError: an unknown class, or a limit that is not positive.
    """
    for name, limit in limits.items():
        if name not in names:
            expected = "one of the classes " + ", ".join(names)
            raise InputError("latency limit", name, expected, repr(name))
        if not limit > 0:
            raise InputError("latency limit", name, "a limit > 0 ms", limit)
    return [float(limits.get(name, np.inf)) for name in names]


def class_paths(
    paths: PathSet,
    topology: Topology,
    pairs: IntArray,
    classes: DemandClasses,
    limits: Mapping[str, float] | None = None,
) -> PathSet:
    """Return the candidate paths of the demands of all classes.

    Args:
        paths: paths of all distinct pairs.
        topology: network with the latencies.
        pairs: (D, 2) node pairs of the demands, class by class.
        classes: classes of the demands.
        limits: maximum latency of a path by class name, ms; longer paths are excluded.

    Raises:
        InputError: an unknown class, a limit that is not positive, or a demand whose node pair has
            no row in ``paths``.
    """
    from teal.network.subset import joined, of_demands

    # Row of each demand's node pair in ``paths``, found by binary search of pairs as integers.
    num_nodes = topology.num_nodes
    path_codes = paths.pairs[:, 0].astype(np.int64) * num_nodes + paths.pairs[:, 1]
    pair_codes = pairs[:, 0].astype(np.int64) * num_nodes + pairs[:, 1]
    rows_in_paths = np.searchsorted(path_codes, pair_codes)
    if (path_codes[np.minimum(rows_in_paths, len(path_codes) - 1)] != pair_codes).any():
        raise InputError.invalid(
            "classes",
            "demands",
            "the candidate paths lack the node pair of a demand",
            "compute paths for the pairs of all demands",
        )
    # Select the paths of each class within its latency limit, and concatenate the classes.
    class_limits = latency_limits(classes.names, limits or {})
    parts = []
    for rows, limit in zip(classes.blocks, class_limits, strict=True):
        admissible_paths = paths if np.isinf(limit) else within_latency(paths, topology, limit)
        is_unchanged = rows.stop - rows.start == paths.num_demands and admissible_paths is paths
        parts.append(
            admissible_paths if is_unchanged else of_demands(admissible_paths, rows_in_paths[rows])
        )
    key = content_key(paths.key, classes.names, classes.ptr, pair_codes, class_limits)
    return dataclasses.replace(joined(parts), key=key)


def within_latency(paths: PathSet, topology: Topology, limit: float) -> PathSet:
    """Return the path set without paths whose latency exceeds a limit.

    Args:
        paths: paths of D demands.
        topology: network with the latencies.
        limit: maximum latency, ms.
    """
    is_admissible = within_limit(paths, topology, limit)
    # Move the admissible paths to the first columns, in their order.
    order = np.argsort(~is_admissible, axis=1, kind="stable")
    leaves = np.where(
        np.take_along_axis(is_admissible, order, 1), np.take_along_axis(paths.leaf, order, 1), -1
    )
    return dataclasses.replace(
        paths,
        leaf=np.ascontiguousarray(leaves, dtype=np.int32),
        key=content_key(paths.key, "latency", limit),
    )


def within_limit(paths: PathSet, topology: Topology, limit: float) -> BoolArray:
    """Return whether each path has a latency within a limit, (D, K) booleans.

    Args:
        paths: paths of D demands.
        topology: network with the latencies.
        limit: maximum latency, ms.
    """
    # (T + 1,) latency from the source to each trie node; the last entry stands for missing paths,
    # whose leaf is -1.
    node_latency = np.full(paths.trie.num_nodes + 1, np.inf)
    # Parents come before children.
    for level in paths.trie.levels:
        parent = paths.trie.parent[level]
        node_latency[level] = topology.latency[paths.trie.link[level]] + np.where(
            parent >= 0, node_latency[parent], 0.0
        )
    return np.asarray(paths.mask & (node_latency[paths.leaf] <= limit))
