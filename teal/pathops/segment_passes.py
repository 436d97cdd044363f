"""Sums over the shortest paths of an IGP: what a Gbit/s from one node to another meets, and the
loads of volumes.

A *segment* (t, u) is all traffic from node u to node t, which ECMP divides over the links; g(t, u,
e) is the share of it that passes link e.  The passes go over the DAG of every destination
(:class:`teal.network.ecmp.EcmpDag`):

- segment_sum:   s[t, u] = sum_e g(t, u, e) x[e], from the destination outwards: the mean over the
  next hops (u, v) of
                 x[(u, v)] + s[t, v];
- segment_load:  l[e] = sum_{t, u} g(t, u, e) f[t, u], from the farthest node inwards: each node
  hands what it has to
                 its next hops.  The transpose of segment_sum;
- segment_max:   max x[e] over the links e with g(t, u, e) > 0, and the first link that attains it.

Arrays (N, N) have the destination first.  A node without a path to the destination has the sum and
maximum infinite; volumes from it are not carried.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.network.ecmp import Dags, EcmpDag
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.parallel import inner_kernel, partitioned_kernel, threads_for

MAX_BLOCKS = (
    16  # of destinations, each with loads of its own, so that sums do not depend on the threads
)
_OPERATIONS_PER_ARC = 4  # scalar operations, approximately


@inner_kernel
def sum_outwards(
    row: int, head: IntArray, dags: Dags, link_value: FloatArray, result: FloatArray
) -> None:
    """segment_sum of one destination: fills ``result`` (N,)."""
    order, arc_start, arc, share = (
        dags.order[row],
        dags.arc_start[row],
        dags.arc[row],
        dags.share[row],
    )
    if dags.reached[row] < len(result):
        result[:] = np.inf
    result[order[0]] = 0.0
    for i in range(1, dags.reached[row]):
        total = 0.0
        for a in range(arc_start[i], arc_start[i + 1]):
            link = arc[a]
            total += share[a] * (link_value[link] + result[head[link]])
        result[order[i]] = total


@inner_kernel
def load_inwards(
    row: int, head: IntArray, dags: Dags, volume: FloatArray, load: FloatArray
) -> None:
    """segment_load of one destination: adds to ``load`` (E,).

    Args:
        row: row of ``dags``.
        head: (E,) node where each link ends.
        dags: the DAGs.
        volume: (N,) Gbit/s from each node to the destination; changed into what passes each node.
        load: (E,) Gbit/s.
    """
    order, arc_start, arc, share = (
        dags.order[row],
        dags.arc_start[row],
        dags.arc[row],
        dags.share[row],
    )
    for j in range(dags.reached[row] - 1):
        i = dags.reached[row] - 1 - j
        passing = volume[order[i]]
        if passing == 0.0:
            continue
        for a in range(arc_start[i], arc_start[i + 1]):
            link = arc[a]
            part = passing * share[a]
            load[link] += part
            volume[head[link]] += part


@partitioned_kernel("dags", lambda dags: len(dags.reached))
def _segment_sum(
    begin: int, end: int, head: IntArray, dags: Dags, link_value: FloatArray, result: FloatArray
) -> None:
    for t in range(begin, end):
        for i in range(len(link_value)):
            sum_outwards(t, head, dags, link_value[i], result[i, t])


@partitioned_kernel("dags", lambda dags: len(dags.reached))
def _segment_max(
    begin: int,
    end: int,
    head: IntArray,
    dags: Dags,
    link_value: FloatArray,
    result: FloatArray,
    first: IntArray,
) -> None:
    for t in range(begin, end):
        order, arc_start, arc = dags.order[t], dags.arc_start[t], dags.arc[t]
        for i in range(len(link_value)):
            result[i, t, :] = np.inf
            first[i, t, :] = -1
            result[i, t, order[0]] = -np.inf
            for n in range(1, dags.reached[t]):
                largest, at = -np.inf, -1
                for a in range(arc_start[n], arc_start[n + 1]):
                    link = arc[a]
                    value, where = link_value[i, link], link
                    beyond = result[i, t, head[link]]
                    if beyond > value:
                        value, where = beyond, first[i, t, head[link]]
                    if value > largest:
                        largest, at = value, where
                result[i, t, order[n]] = largest
                first[i, t, order[n]] = at


@partitioned_kernel("load")
def _segment_load(
    begin: int, end: int, head: IntArray, dags: Dags, volume: FloatArray, load: FloatArray
) -> None:
    blocks, nodes = len(load), volume.shape[1]
    for block in range(begin, end):
        passing = np.empty(nodes)
        for t in range(nodes * block // blocks, nodes * (block + 1) // blocks):
            for i in range(len(volume)):
                for u in range(nodes):
                    passing[u] = volume[i, t, u]
                load_inwards(t, head, dags, passing, load[block, i])


class SteeredTraffic(NamedTuple):
    """The traffic of M matrices on segments.

    Attributes:
        volume: (M, N, N) Gbit/s of every segment along shortest paths, to the first node from the
            second one.
        adjacency: (M, E) Gbit/s that takes a link whatever the metrics say.
        looping: (M,) Gbit/s that is lost in forwarding loops.
    """

    volume: FloatArray
    adjacency: FloatArray
    looping: FloatArray


def volumes(pairs: IntArray, demand: FloatArray, nodes: int) -> FloatArray:
    """(M, N, N) Gbit/s to the first node from the second one, of demands (M, D) between pairs (D,
    2).
    """
    volume = np.zeros((len(demand), nodes, nodes))
    for m, row in enumerate(demand):
        np.add.at(volume[m], (pairs[:, 1], pairs[:, 0]), row)
    return volume


class SegmentPasses:
    """The passes over one set of DAGs.

    Args:
        dag: the DAGs of all destinations.
    """

    def __init__(self, dag: EcmpDag) -> None:
        self.dag = dag
        self._operations = _OPERATIONS_PER_ARC * dag.num_arcs

    def segment_sum(self, link_value: FloatArray) -> FloatArray:
        """(L, E) -> (L, N, N)."""
        nodes = self.dag.topology.num_nodes
        result = np.empty((len(link_value), nodes, nodes))
        with threads_for(self._operations * len(link_value)):
            _segment_sum(
                self.dag.links.head, self.dag.dags, np.ascontiguousarray(link_value), result
            )
        return result

    def segment_load(self, volume: FloatArray) -> FloatArray:
        """(L, N, N) Gbit/s -> (L, E) Gbit/s."""
        nodes = self.dag.topology.num_nodes
        load = np.zeros((min(nodes, MAX_BLOCKS), len(volume), self.dag.topology.num_links))
        with threads_for(self._operations * len(volume)):
            _segment_load(self.dag.links.head, self.dag.dags, np.ascontiguousarray(volume), load)
        return np.asarray(load.sum(0))

    def segment_max(self, link_value: FloatArray) -> tuple[FloatArray, IntArray]:
        """(L, E) -> largest value (L, N, N), minus infinity at the destination, and its link, -1
        for none.
        """
        nodes = self.dag.topology.num_nodes
        result = np.empty((len(link_value), nodes, nodes))
        first = np.empty(result.shape, dtype=np.int32)
        with threads_for(self._operations * len(link_value)):
            _segment_max(
                self.dag.links.head, self.dag.dags, np.ascontiguousarray(link_value), result, first
            )
        return result, first
