"""Segment routing policies: weighted lists of segments over which demands are sent.

A list of a demand (s, t) leads from s to its first midpoint along the IGP's shortest paths, from
there to the next one, and finally to t.  A midpoint may be the end of an *adjacency*, a link that
is used regardless of the metrics: the shortest paths then lead to the start of that link.  A demand
without a policy is routed directly to t.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from teal.network.ecmp import EcmpDag
from teal.network.flex_algo import FlexAlgo
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray


@dataclasses.dataclass(frozen=True)
class SegmentList:
    """Segment list of a demand, with the share of the demand that follows it.

    Attributes:
        share: share of the demand.
        midpoints: nodes visited in this order, without source and target; the target is included if
            the last segment is an adjacency.
        links: link by which each midpoint is reached, -1 for the shortest paths; empty for shortest
            paths throughout.
    """

    share: float
    midpoints: tuple[int, ...]
    links: tuple[int, ...] = ()

    @property
    def stops(self) -> tuple[tuple[int, int], ...]:
        """Pairs of each midpoint and the link by which it is reached, -1 for the shortest paths."""
        return tuple(zip(self.midpoints, self.links or (-1,) * len(self.midpoints), strict=True))

    @property
    def adjacencies(self) -> tuple[int, ...]:
        """The links of the list that are used regardless of the metrics."""
        return tuple(link for link in self.links if link >= 0)

    def steps(
        self, source: int, target: int, link_start: IntArray
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (start node, end node, link) of each segment in order; link -1 for shortest paths.

        An adjacency to a midpoint adds a segment along shortest paths to the start of its link.
        Segments from a node to itself are omitted.

        Args:
            source: source of the demand.
            target: target of the demand.
            link_start: (E,) node where each link starts.
        """
        # Node that the list has reached so far.
        position = source
        for stop, link in (*self.stops, (target, -1)):
            end = stop if link < 0 else int(link_start[link])
            if position != end:
                yield position, end, -1
            if link >= 0:
                yield end, stop, link
            position = stop

    def segments(self, source: int, target: int, link_start: IntArray) -> Iterator[tuple[int, int]]:
        """Yield start and end node of each segment along shortest paths; adjacencies are omitted.

        Args:
            source: source of the demand.
            target: target of the demand.
            link_start: (E,) node where each link starts.
        """
        yield from (
            (start, end) for start, end, link in self.steps(source, target, link_start) if link < 0
        )

    def num_segments(self, source: int, target: int, link_start: IntArray) -> int:
        """Return the number of segment identifiers (labels) that the source pushes.

        Args:
            source: source of the demand.
            target: target of the demand.
            link_start: (E,) node where each link starts.
        """
        return sum(1 for _ in self.segments(source, target, link_start)) + len(self.adjacencies)


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentPolicies:
    """Segment lists of demands, or of all traffic that crosses a router.

    Attributes:
        lists: lists by (source, target) or (router, endpoint); the shares of each sum to 1.
        is_transit: whether a policy steers all traffic that crosses its router on shortest paths to
            the endpoint (:mod:`teal_ip.routing.transit_policies`), not only traffic that enters
            there.
        algorithm: flexible algorithm of the segments' shortest paths; None for the IGP's own.
    """

    lists: dict[tuple[int, int], tuple[SegmentList, ...]]
    is_transit: bool = False
    algorithm: FlexAlgo | None = None

    @property
    def algorithm_number(self) -> int:
        """The number of the flexible algorithm; 0 for the IGP itself."""
        return 0 if self.algorithm is None else self.algorithm.number

    @classmethod
    def none(cls) -> SegmentPolicies:
        """Return empty policies: plain shortest-path routing."""
        return cls({})

    def depth(self, link_start: IntArray) -> int:
        """Return the number of segment identifiers of the longest list; 1 without policies.

        Args:
            link_start: (E,) node where each link starts.
        """
        return max(
            (
                segment_list.num_segments(*pair, link_start)
                for pair, lists in self.lists.items()
                for segment_list in lists
            ),
            default=1,
        )

    def steps(self, pairs: Sequence[tuple[int, int]], link_start: IntArray) -> Steps:
        """Return the segments of all lists of some node pairs, in arrays.

        Args:
            pairs: keys of ``lists``: (source, target), or (router, endpoint).
            link_start: (E,) node where each link starts.
        """
        # One row per segment: index of the pair, share of the list, whether it is the first segment
        # of its list, start node, end node, and link.
        rows = [
            (pair_index, segment_list.share, index == 0, *step)
            for pair_index, pair in enumerate(pairs)
            for segment_list in self.lists[pair]
            for index, step in enumerate(segment_list.steps(*pair, link_start))
        ]
        columns = np.array(rows, dtype=np.float64).reshape(-1, 6).T
        policy, _, _, start, end, link = columns.astype(np.int64)
        return Steps(policy, columns[1], columns[2] > 0, start, end, link)


class Steps(NamedTuple):
    """S segments of the lists of some policies, list by list, in arrays.

    Attributes:
        policy: (S,) index of the policy's node pair among those requested.
        share: (S,) share of the list.
        is_first: (S,) whether the segment is the first of its list.
        start: (S,) node where the segment starts.
        end: (S,) node where the segment ends.
        link: (S,) link of an adjacency; -1 for shortest paths.
    """

    policy: Int64Array
    share: FloatArray
    is_first: BoolArray
    start: Int64Array
    end: Int64Array
    link: Int64Array

    def works(self, dag: EcmpDag) -> BoolArray:
        """Return whether each segment has a live path, (S,) booleans.

        Args:
            dag: shortest paths over the working links.
        """
        reaches = dag.reaches[self.end, self.start]
        is_live = np.isfinite(dag.links.metric)
        return np.where(self.link < 0, reaches, is_live[self.link])

    def values(self, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """Look up a value of each segment in L tables: of its shortest paths, or of its adjacency.

        Args:
            value: (L, N, N) value of the shortest paths from node u to node t, at [l, t, u].
            link_value: (L, E) value of each link, for adjacencies.

        Returns:
            (L, S) value of each segment.
        """
        return np.where(self.link < 0, value[:, self.end, self.start], link_value[:, self.link])

    def add_traffic(self, volume: FloatArray, adjacency: FloatArray, traffic: FloatArray) -> None:
        """Add the traffic of each segment to the volumes of shortest paths and adjacencies.

        Args:
            volume: (M, N, N) Gbit/s from node u to node t over shortest paths, at [m, t, u], in
                each of M tables (increased).
            adjacency: (M, E) Gbit/s sent over each link as an adjacency (increased).
            traffic: (M, S) Gbit/s of each segment.
        """
        is_shortest = self.link < 0
        # Add up the segments of each table; several may have the same ends or link.
        for node_volume, link_volume, segment_traffic in zip(
            volume, adjacency, traffic, strict=True
        ):
            np.add.at(
                node_volume,
                (self.end[is_shortest], self.start[is_shortest]),
                segment_traffic[is_shortest],
            )
            np.add.at(link_volume, self.link[~is_shortest], segment_traffic[~is_shortest])
