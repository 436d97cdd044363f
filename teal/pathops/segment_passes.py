"""Passes over the shortest-path DAGs of an IGP: sums and maxima of segments, and link loads.

A *segment* (t, u) is the traffic from node u to node t, which ECMP divides over the links; g(t, u,
e) is its share on link e.  The passes traverse the DAG of every destination
(:class:`teal.network.ecmp.EcmpDag`):

- segment_sum of link values x:  s[t, u] = sum_e g(t, u, e) x[e], from the destination outwards: the
  mean over the next hops (u, v) of x[(u, v)] + s[t, v];
- segment_load of traffic f:  l[e] = sum_{t, u} g(t, u, e) f[t, u], from the farthest node inwards:
  each node forwards its traffic to its next hops.  The transpose of segment_sum;
- segment_max:  max x[e] over the links e with g(t, u, e) > 0, and the first link that attains it.

Arrays (N, N) over the N nodes have the destination first; L is the number of rows of link values or
of traffic that a call processes.  A node without a path to the destination has infinite sum
and maximum; its traffic is dropped.  Entry point: :class:`SegmentPasses`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.ecmp import Dags, EcmpDag
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.parallel import inner_kernel, partitioned_kernel, threads_for

# Maximum number of blocks of destinations; each has separate loads, so that sums do not depend on
# the number of threads.
MAX_BLOCKS = 16
# Approximate scalar operations for each arc.
_OPERATIONS_PER_ARC = 4


@inner_kernel
def ecmp_path_sums(
    row: int, head: IntArray, dags: Dags, link_value: FloatArray, result: FloatArray
) -> None:
    """Sum link values along the ECMP paths from every node to one destination.

    result[u] = sum over the next hops (u, v) of share (x[(u, v)] + result[v]), nearest nodes first.

    Args:
        row: row of ``dags``, the destination.
        head: (E,) node where each link ends.
        dags: DAGs towards all destinations: the reachable nodes ``order[row]``, nearest first; arcs
            of the i-th of them are links ``arc[row, arc_start[row, i]:arc_start[row, i + 1]]`` with
            the traffic splits ``share``.
        link_value: (E,) x, value of each link.
        result: (N,) sums (written); 0 at the destination, infinite without a path.
    """
    order = dags.order[row]
    arc_start = dags.arc_start[row]
    arc = dags.arc[row]
    share = dags.share[row]
    if dags.reached[row] < len(result):
        result[:] = np.inf
    result[order[0]] = 0.0
    for i in range(1, dags.reached[row]):
        mean = 0.0
        for arc_index in range(arc_start[i], arc_start[i + 1]):
            link = arc[arc_index]
            mean += share[arc_index] * (link_value[link] + result[head[link]])
        result[order[i]] = mean


@inner_kernel
def add_ecmp_loads(
    row: int, head: IntArray, dags: Dags, volume: FloatArray, load: FloatArray
) -> None:
    """Add the loads of all traffic to one destination, routed by ECMP, farthest nodes first.

    Args:
        row: row of ``dags``, the destination.
        head: (E,) node where each link ends.
        dags: DAGs towards all destinations: the reachable nodes ``order[row]``, nearest first; arcs
            of the i-th of them are links ``arc[row, arc_start[row, i]:arc_start[row, i + 1]]`` with
            the traffic splits ``share``.
        volume: (N,) Gbit/s from each node to the destination (overwritten by the traffic through
            each node).
        load: (E,) Gbit/s (increased).
    """
    order = dags.order[row]
    arc_start = dags.arc_start[row]
    arc = dags.arc[row]
    share = dags.share[row]
    # Split the traffic of each node over its arcs, and add it to the traffic at their ends.
    for j in range(dags.reached[row] - 1):
        i = dags.reached[row] - 1 - j
        node_traffic = volume[order[i]]
        if node_traffic == 0.0:
            continue
        for arc_index in range(arc_start[i], arc_start[i + 1]):
            link = arc[arc_index]
            link_traffic = node_traffic * share[arc_index]
            load[link] += link_traffic
            volume[head[link]] += link_traffic


@partitioned_kernel("dags", lambda dags: len(dags.reached))
def _segment_sum(
    begin: int, end: int, head: IntArray, dags: Dags, link_value: FloatArray, result: FloatArray
) -> None:
    """Sum link values along ECMP paths to the destinations ``begin`` to ``end - 1``.

    Args:
        begin, end: range of destinations.
        head: (E,) node where each link ends.
        dags: DAGs towards all destinations.
        link_value: (L, E) values of the links.
        result: (L, N, N) sums, destination first (written).
    """
    for target in range(begin, end):
        for i in range(len(link_value)):
            ecmp_path_sums(target, head, dags, link_value[i], result[i, target])


@partitioned_kernel("dags", lambda dags: len(dags.reached))
def _segment_max(
    begin: int,
    end: int,
    head: IntArray,
    dags: Dags,
    link_value: FloatArray,
    max_value: FloatArray,
    max_link: IntArray,
) -> None:
    """Compute the largest link value on ECMP paths to the destinations ``begin`` to ``end - 1``.

    Nearest nodes first: the maximum over a node's next hops of link value and downstream maximum.

    Args:
        begin, end: range of destinations.
        head: (E,) node where each link ends.
        dags: DAGs towards all destinations: the reachable nodes ``order[target]``, nearest first;
            arcs of the one at a position are links
            ``arc[target, arc_start[target, position]:arc_start[target, position + 1]]``.
        link_value: (L, E) L rows of link values.
        max_value: (L, N, N) maximum, destination first (written); minus infinity at the
            destination, infinite without a path.
        max_link: (L, N, N) first link with that value (written); -1 for none.
    """
    for target in range(begin, end):
        order = dags.order[target]
        arc_start = dags.arc_start[target]
        arc = dags.arc[target]
        for row in range(len(link_value)):
            # Infinite without a path; minus infinity, the maximum of no links, at the destination.
            max_value[row, target, :] = np.inf
            max_link[row, target, :] = -1
            max_value[row, target, order[0]] = -np.inf
            for position in range(1, dags.reached[target]):
                # Largest, over the arcs of the node, of the arc's value and the maximum at its end.
                largest_value = -np.inf
                largest_link = -1
                for arc_index in range(arc_start[position], arc_start[position + 1]):
                    link = arc[arc_index]
                    arc_value = link_value[row, link]
                    arc_link = link
                    downstream = max_value[row, target, head[link]]
                    if downstream > arc_value:
                        arc_value = downstream
                        arc_link = max_link[row, target, head[link]]
                    if arc_value > largest_value:
                        largest_value = arc_value
                        largest_link = arc_link
                max_value[row, target, order[position]] = largest_value
                max_link[row, target, order[position]] = largest_link


@partitioned_kernel("load")
def _segment_load(
    begin: int, end: int, head: IntArray, dags: Dags, volume: FloatArray, load: FloatArray
) -> None:
    """Route the traffic of the blocks ``begin`` to ``end - 1`` of destinations by ECMP.

    Args:
        begin, end: range of blocks; N destinations are divided evenly over all blocks.
        head: (E,) node where each link ends.
        dags: DAGs towards all destinations.
        volume: (L, N, N) Gbit/s of L matrices, destination first.
        load: (num_blocks, L, E) Gbit/s of each block (increased).
    """
    num_blocks = len(load)
    num_nodes = volume.shape[1]
    for block in range(begin, end):
        # (N,) traffic of each node to one destination, Gbit/s.
        node_traffic = np.empty(num_nodes)
        for target in range(num_nodes * block // num_blocks, num_nodes * (block + 1) // num_blocks):
            for i in range(len(volume)):
                for node in range(num_nodes):
                    node_traffic[node] = volume[i, target, node]
                add_ecmp_loads(target, head, dags, node_traffic, load[block, i])


class SteeredTraffic(NamedTuple):
    """Traffic of M matrices on the segments of their segment lists.

    Attributes:
        volume: (M, N, N) Gbit/s of every segment along shortest paths, destination first.
        adjacency: (M, E) Gbit/s on adjacency segments.
        looping: (M,) Gbit/s lost in forwarding loops.
    """

    volume: FloatArray
    adjacency: FloatArray
    looping: FloatArray


def volumes(pairs: IntArray, demand: FloatArray, nodes: int) -> FloatArray:
    """Return traffic between all nodes, (M, N, N) in Gbit/s, destination first.

    Args:
        pairs: (D, 2) source and destination of each demand; demands of equal pairs are added up.
        demand: (M, D) Gbit/s.
        nodes: N.
    """
    volume = np.zeros((len(demand), nodes, nodes))
    for m, row in enumerate(demand):
        np.add.at(volume[m], (pairs[:, 1], pairs[:, 0]), row)
    return volume


class SegmentPasses:
    """Sums, maxima and loads of shortest-path segments, under ECMP.

    A segment is the traffic between two nodes along shortest paths.

    Args:
        dag: shortest-path DAGs towards all destinations.
    """

    def __init__(self, dag: EcmpDag) -> None:
        self.dag = dag
        self._operations = _OPERATIONS_PER_ARC * dag.num_arcs

    def segment_sum(self, link_value: FloatArray) -> FloatArray:
        """Sum link values along the ECMP paths of each segment: (L, E) -> (L, N, N).

        A segment's sum is the mean over its paths, weighted by their traffic, and infinite without
        a path.  The axes of the result are row, destination, source.
        """
        num_nodes = self.dag.topology.num_nodes
        result = np.empty((len(link_value), num_nodes, num_nodes))
        with threads_for(self._operations * len(link_value)):
            _segment_sum(
                self.dag.links.head, self.dag.dags, np.ascontiguousarray(link_value), result
            )
        return result

    def segment_load(self, volume: FloatArray) -> FloatArray:
        """Sum the traffic of all segments over each link: (L, N, N) -> (L, E), in Gbit/s.

        Volumes have the destination first; traffic without a path is dropped.
        """
        num_nodes = self.dag.topology.num_nodes
        # Loads by block of destinations, which are added up in a fixed order.
        load = np.zeros((min(num_nodes, MAX_BLOCKS), len(volume), self.dag.topology.num_links))
        with threads_for(self._operations * len(volume)):
            _segment_load(self.dag.links.head, self.dag.dags, np.ascontiguousarray(volume), load)
        return np.asarray(load.sum(0))

    def segment_max(self, link_value: FloatArray) -> tuple[FloatArray, IntArray]:
        """Compute the largest link value on the ECMP paths of each segment, and its link.

        Link values (L, E) give two arrays (L, N, N), destination first.  Where source and
        destination are equal, the value is minus infinity; without a path it is infinite; the link
        is then -1.
        """
        num_nodes = self.dag.topology.num_nodes
        max_value = np.empty((len(link_value), num_nodes, num_nodes))
        max_link = np.empty(max_value.shape, dtype=np.int32)
        with threads_for(self._operations * len(link_value)):
            _segment_max(
                self.dag.links.head,
                self.dag.dags,
                np.ascontiguousarray(link_value),
                max_value,
                max_link,
            )
        return max_value, max_link
