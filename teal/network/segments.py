"""Segment lists: the shortest list of segment identifiers (SIDs) that makes a packet take exactly one path.

In segment routing (RFC 8402) a *node segment* sends a packet to a node along the shortest paths of the interior gateway
protocol (IGP), all of equal cost at once, and an *adjacency segment* over one link of the node where it is.  A node
segment from u to v stands for a part of a path only if that part is the one shortest path from u to v.  The shortest
list takes O(n) steps for n links.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from teal.network.shortest import shortest_trees
from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray, IntArray

_EQUAL_COST_TOLERANCE = 1e-9  # relative: paths whose costs differ by less are of equal cost


class Segment(NamedTuple):
    """One segment.

    Attributes:
        kind: ``node`` or ``adjacency``.
        number: of the node it leads to, or of the link.
    """

    kind: str
    number: int


class Igp:
    """The shortest paths of an IGP.

    Args:
        topology: the network; links without capacity have failed and are not used.
        metric: (E,) of each link, above 0.
    """

    def __init__(self, topology: Topology, metric: FloatArray) -> None:
        self._tail, self._head = topology.link_source, topology.link_target
        self._metric = np.where(topology.capacity > 0, metric, np.inf)
        nodes = np.arange(topology.num_nodes, dtype=np.int32)
        self._distance, into = shortest_trees(topology.num_nodes, self._tail, self._head, self._metric, nodes)
        self._has_one = self._single_paths(into)

    def _single_paths(self, into: IntArray) -> BoolArray:
        """(N, N) whether exactly one path from node s to node v is shortest.

        That is so if each node of the shortest-path tree between them has one link into it that lies on a shortest
        path from s.
        """
        nodes = len(into)
        has_one = np.empty((nodes, nodes), dtype=bool)
        for s in range(nodes):
            distance = self._distance[s]
            is_tight = distance[self._tail] + self._metric <= distance[self._head] * (1 + _EQUAL_COST_TOLERANCE)
            is_tight &= np.isfinite(distance[self._head])
            has_one[s] = np.bincount(self._head[is_tight], minlength=nodes) <= 1
        parent = np.where(into >= 0, self._tail[into], np.arange(nodes))  # of a root: itself
        for _ in range(nodes.bit_length()):  # each step doubles the part of the path that is covered
            has_one &= np.take_along_axis(has_one, parent, axis=1)
            parent = np.take_along_axis(parent, parent, axis=1)
        return has_one & np.isfinite(self._distance)

    def parts(self, path: list[int]) -> Iterator[tuple[int, int]]:
        """Divide a path into the fewest parts that are only shortest paths, or one link that is none.

        Args:
            path: numbers of its links, from the source.

        Yields:
            first link of a part, and the first one after it; equal where the link is no only shortest path.
        """
        nodes = [int(self._tail[path[0]]), *self._head[path].tolist()]
        along = [0.0, *np.cumsum(self._metric[path]).tolist()]
        first = 0
        while first < len(path):
            has_one, distance = self._has_one[nodes[first]], self._distance[nodes[first]]
            end = first
            while (
                end < len(path)
                and has_one[nodes[end + 1]]
                and along[end + 1] - along[first] <= distance[nodes[end + 1]] * (1 + _EQUAL_COST_TOLERANCE)
            ):
                end += 1
            yield first, end
            first = max(end, first + 1)


def segment_list(igp: Igp, topology: Topology, path: list[int]) -> list[Segment]:
    """The shortest list of segments that leads along a path, and along no other link.

    Of lists of equal length, the one with more node segments, which outlive failures better.  Taking the longest part
    that one segment stands for is optimal, since every part of an only shortest path is one: no list has fewer
    segments, and a link needs an adjacency segment in every list or in none.

    Args:
        igp: shortest paths.
        topology: of the path.
        path: numbers of its links, from the source.
    """
    return [
        Segment("node", int(topology.link_target[path[end - 1]])) if end > first else Segment("adjacency", path[first])
        for first, end in igp.parts(path)
    ]
