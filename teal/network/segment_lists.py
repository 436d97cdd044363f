"""Lists of segments by which demands are sent.

A list of a demand (s, t) leads from s to its first midpoint along the IGP's shortest paths, from
there to the next one, and at last to t.  A midpoint may be the end of an *adjacency*, a link that
is taken whatever the metrics say: then the shortest paths lead to the start of that link.  A demand
without a policy goes straight to t.
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
    """One list.

    Attributes:
        share: share of the demand that it takes.
        midpoints: nodes that are visited in this order, without source and target; the target too,
            if the last segment is an adjacency.
        links: link by which each midpoint is reached, -1 for the shortest paths; empty for shortest
            paths throughout.
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

    def steps(
        self, source: int, target: int, link_start: IntArray
    ) -> Iterator[tuple[int, int, int]]:
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
        is_transit: whether a policy steers all traffic that crosses its router on shortest paths to
            the endpoint, from wherever it comes (:mod:`teal_ip.routing.transit_policies`), and not
            just what enters there.
        algorithm: flexible algorithm whose shortest paths the segments take; None for those of the
            IGP itself.
    """

    lists: dict[tuple[int, int], tuple[SegmentList, ...]]
    is_transit: bool = False
    algorithm: FlexAlgo | None = None

    @property
    def algorithm_number(self) -> int:
        """Number of the algorithm, 0 for the IGP itself."""
        return 0 if self.algorithm is None else self.algorithm.number

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
            (
                one.num_segments(*pair, link_start)
                for pair, lists in self.lists.items()
                for one in lists
            ),
            default=1,
        )

    def steps(self, pairs: Sequence[tuple[int, int]], link_start: IntArray) -> Steps:
        """The segments of the lists of some pairs.

        Args:
            pairs: keys of ``lists``.
            link_start: (E,) node where each link starts.
        """
        rows = [
            (p, one.share, number == 0, *step)
            for p, pair in enumerate(pairs)
            for one in self.lists[pair]
            for number, step in enumerate(one.steps(*pair, link_start))
        ]
        columns = np.array(rows, dtype=np.float64).reshape(-1, 6).T
        policy, _, _, start, end, link = columns.astype(np.int64)
        return Steps(policy, columns[1], columns[2] > 0, start, end, link)


class Steps(NamedTuple):
    """The S segments of all lists of some policies, list by list.

    Attributes:
        policy: (S,) place of the policy's pair in the argument of :meth:`SegmentPolicies.steps`.
        share: (S,) of the list.
        is_first: (S,) whether it is the first one of its list.
        start: (S,) node where the segment starts.
        end: (S,) node where it ends.
        link: (S,) the adjacency; -1 for shortest paths.
    """

    policy: Int64Array
    share: FloatArray
    is_first: BoolArray
    start: Int64Array
    end: Int64Array
    link: Int64Array

    def works(self, dag: EcmpDag) -> BoolArray:
        """(S,) whether each can be followed."""
        reaches, is_live = dag.reaches[self.end, self.start], np.isfinite(dag.links.metric)
        return np.where(self.link < 0, reaches, is_live[self.link])

    def values(self, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """(L, S) the value of each: of its shortest paths (L, N, N), destination first, or of its
        adjacency (L, E).
        """
        return np.where(self.link < 0, value[:, self.end, self.start], link_value[:, self.link])

    def add_traffic(self, volume: FloatArray, adjacency: FloatArray, traffic: FloatArray) -> None:
        """Add what is sent on each (M, S), Gbit/s, to volumes (M, N, N) of shortest paths and (M,
        E) of adjacencies.
        """
        straight = self.link < 0
        for of_nodes, of_links, row in zip(volume, adjacency, traffic, strict=True):
            np.add.at(of_nodes, (self.end[straight], self.start[straight]), row[straight])
            np.add.at(of_links, self.link[~straight], row[~straight])
