"""Lists of segments by which demands are sent, and the segments' volumes.

A list of a demand (s, t) leads from s to its first midpoint along the IGP's shortest paths, from there to the next one,
and at last to t.  A midpoint may be an *adjacency*: the node where a link starts, then the link itself.  A demand
without a policy goes straight to t.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from teal.runtime.arrays import FloatArray, IntArray


@dataclasses.dataclass(frozen=True)
class SegmentList:
    """One list.

    Attributes:
        share: of the demand that it takes.
        midpoints: nodes that are visited in this order, without source and target.
    """

    share: float
    midpoints: tuple[int, ...]

    def segments(self, source: int, target: int) -> Iterator[tuple[int, int]]:
        """Start and end of each segment."""
        return itertools.pairwise((source, *self.midpoints, target))


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentPolicies:
    """The lists of the demands that have any.

    Attributes:
        lists: by source and target; the shares of a demand sum to 1.
    """

    lists: dict[tuple[int, int], tuple[SegmentList, ...]]

    @classmethod
    def none(cls) -> SegmentPolicies:
        """No policy at all: plain shortest-path routing."""
        return cls({})

    @property
    def depth(self) -> int:
        """Number of segments of the longest list; 1 without policies."""
        return 1 + max((len(one.midpoints) for lists in self.lists.values() for one in lists), default=0)

    def mean_over_lists(self, segment_value: FloatArray, pairs: IntArray) -> FloatArray:
        """(D,) sum of a value (N, N), destination first, along the lists of each pair (D, 2), weighted by shares."""
        result = segment_value[pairs[:, 1], pairs[:, 0]].copy()
        for d, (source, target) in enumerate(pairs.tolist()):
            if lists := self.lists.get((source, target)):
                result[d] = sum(
                    one.share * sum(segment_value[b, a] for a, b in one.segments(source, target)) for one in lists
                )
        return np.asarray(result)


def segment_volumes(pairs: IntArray, demand: FloatArray, policies: SegmentPolicies, nodes: int) -> FloatArray:
    """(M, N, N) Gbit/s of every segment to the first node from the second one.

    Args:
        pairs: (D, 2) source and target of each demand.
        demand: (M, D) Gbit/s.
        policies: lists of some of them.
        nodes: N.
    """
    volume = np.zeros((len(demand), nodes, nodes))
    steered = np.array([(s, t) in policies.lists for s, t in pairs.tolist()], dtype=bool)
    direct = np.flatnonzero(~steered)
    for m in range(len(demand)):
        np.add.at(volume[m], (pairs[direct, 1], pairs[direct, 0]), demand[m, direct])
    for d in np.flatnonzero(steered).tolist():
        source, target = pairs[d].tolist()
        for one in policies.lists[source, target]:
            for a, b in one.segments(source, target):
                volume[:, b, a] += one.share * demand[:, d]
    return volume
