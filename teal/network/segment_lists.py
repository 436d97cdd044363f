"""Lists of segments by which demands are sent, and the segments' volumes.

A list of a demand (s, t) leads from s to its first midpoint along the IGP's shortest paths, from there to the next one,
and at last to t.  A midpoint may be the end of an *adjacency*, a link that is taken whatever the metrics say: then the
shortest paths lead to the start of that link.  A demand without a policy goes straight to t.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import BoolArray, FloatArray, IntArray


@dataclasses.dataclass(frozen=True)
class SegmentList:
    """One list.

    Attributes:
        share: share of the demand that it takes.
        midpoints: nodes that are visited in this order, without source and target; the target too, if the last segment
            is an adjacency.
        links: link by which each midpoint is reached, -1 for the shortest paths; empty for shortest paths throughout.
    """

    share: float
    midpoints: tuple[int, ...]
    links: tuple[int, ...] = ()

    @property
    def stops(self) -> tuple[tuple[int, int], ...]:
        """Midpoints and the link by which each is reached, -1 for the shortest paths."""
        return tuple(zip(self.midpoints, self.links or (-1,) * len(self.midpoints), strict=True))

    @property
    def adjacencies(self) -> tuple[int, ...]:
        """The links that are taken whatever the metrics say."""
        return tuple(link for link in self.links if link >= 0)

    def steps(self, source: int, target: int, link_start: IntArray) -> Iterator[tuple[int, int, int]]:
        """Start, end and link of each segment in order; the link is -1 for shortest paths.

        Args:
            source: source of the demand.
            target: target of the demand.
            link_start: (E,) node where each link starts.
        """
        here = source
        for stop, link in (*self.stops, (target, -1)):
            end = stop if link < 0 else int(link_start[link])
            if here != end:
                yield here, end, -1
            if link >= 0:
                yield end, stop, link
            here = stop

    def segments(self, source: int, target: int, link_start: IntArray) -> Iterator[tuple[int, int]]:
        """Start and end of each segment along shortest paths; arguments as in :meth:`steps`."""
        yield from ((a, b) for a, b, link in self.steps(source, target, link_start) if link < 0)

    def num_segments(self, source: int, target: int, link_start: IntArray) -> int:
        """Number of segment identifiers that the source pushes."""
        return sum(1 for _ in self.segments(source, target, link_start)) + len(self.adjacencies)


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentPolicies:
    """The lists of the demands that have any, or of all traffic that crosses a router.

    Attributes:
        lists: by source and target, or by router and endpoint; the shares of each sum to 1.
        is_transit: whether a policy steers all traffic that crosses its router on shortest paths to the endpoint, from
            wherever it comes (:mod:`teal.pathops.transit_policies`), and not just what enters there.
    """

    lists: dict[tuple[int, int], tuple[SegmentList, ...]]
    is_transit: bool = False

    @classmethod
    def none(cls) -> SegmentPolicies:
        """No policy at all: plain shortest-path routing."""
        return cls({})

    def depth(self, link_start: IntArray) -> int:
        """Number of segment identifiers of the longest list; 1 without policies.

        Args:
            link_start: (E,) node where each link starts.
        """
        return max(
            (one.num_segments(*pair, link_start) for pair, lists in self.lists.items() for one in lists), default=1
        )

    def mean_over_lists(
        self, segment_value: FloatArray, link_value: FloatArray, pairs: IntArray, link_start: IntArray
    ) -> FloatArray:
        """(D,) sum of values along the lists of each pair, weighted by shares.

        Args:
            segment_value: (N, N) of segments, destination first.
            link_value: (E,) of the links that are adjacencies.
            pairs: (D, 2) source and target.
            link_start: (E,) node where each link starts.
        """
        result = segment_value[pairs[:, 1], pairs[:, 0]].copy()
        for d, (source, target) in enumerate(pairs.tolist()):
            if lists := self.lists.get((source, target)):
                result[d] = sum(
                    one.share * sum(segment_value[b, a] for a, b in one.segments(source, target, link_start))
                    + one.share * sum(link_value[link] for link in one.adjacencies)
                    for one in lists
                )
        return np.asarray(result)


class SegmentTraffic(NamedTuple):
    """The volumes that M matrices put on segments.

    Attributes:
        volume: (M, N, N) Gbit/s of every segment along shortest paths, to the first node from the second one.
        adjacency: (M, E) Gbit/s that takes a link whatever the metrics say.
    """

    volume: FloatArray
    adjacency: FloatArray


def segment_traffic(
    pairs: IntArray,
    demand: FloatArray,
    policies: SegmentPolicies,
    nodes: int,
    link_start: IntArray,
    reaches: BoolArray | None = None,
    is_live: BoolArray | None = None,
) -> SegmentTraffic:
    """The traffic of demands, those with policies along their lists and all others straight.

    A list ends with the first segment that cannot be followed: what does not arrive there is not sent on.

    Args:
        pairs: (D, 2) source and target of each demand.
        demand: (M, D) Gbit/s.
        policies: lists of some of them.
        nodes: N.
        link_start: (E,) node where each link starts.
        reaches: (N, N) whether the second node has a path to the first one; None for all.
        is_live: (E,) whether a link works; None for all.
    """
    reaches = np.ones((nodes, nodes), dtype=bool) if reaches is None else reaches
    is_live = np.ones(len(link_start), dtype=bool) if is_live is None else is_live
    volume, adjacency = np.zeros((len(demand), nodes, nodes)), np.zeros((len(demand), len(link_start)))
    steered = np.array([(s, t) in policies.lists for s, t in pairs.tolist()], dtype=bool)
    direct = np.flatnonzero(~steered)
    for m in range(len(demand)):
        np.add.at(volume[m], (pairs[direct, 1], pairs[direct, 0]), demand[m, direct])
    for d in np.flatnonzero(steered).tolist():
        source, target = pairs[d].tolist()
        for one in policies.lists[source, target]:
            for a, b, link in one.steps(source, target, link_start):
                (volume[:, b, a] if link < 0 else adjacency[:, link])[:] += one.share * demand[:, d]
                if not (reaches[b, a] if link < 0 else is_live[link]):
                    break
    return SegmentTraffic(volume, adjacency)
