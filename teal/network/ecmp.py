"""Shortest paths of an interior gateway protocol (IGP) with equal-cost multipath (ECMP), towards
every node.

A router sends a packet for node t to any of its *next hops*: the links (u, v) out of u with

    distance(u, t) = metric(u, v) + distance(v, t).

It divides the traffic evenly over them, parallel links counted one by one, or in proportion to
weights (unequal-cost sharing by bandwidth, UCMP).  The next hops of all nodes towards t form a
directed acyclic graph (DAG); an *arc* is a link of it.  With A arcs towards all N destinations,
every pass over all DAGs costs A additions, whatever the number of demands; on measured networks A
is 1.1 to 1.4 times N^2.

Metrics are whole numbers, and float64 holds their sums exactly, so that equal costs are recognised
by ``==``.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from teal.errors import InputError
from teal.network.shortest import heap_pop, heap_push, make_graph
from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import as_int64, inner_kernel, kernel, partitioned_kernel, threads_for

METRICS = "file", "hops", "latency", "inverse-capacity"
_REFERENCE_GBPS = 10_000.0  # capacity whose inverse-capacity metric is 1
_MS_PER_METRIC = 0.01  # latency of a metric of 1
# The largest wide metric of IS-IS has 24 bits, that of OSPF 16; some files have 32.
MAX_METRIC = 2**32 - 1
_OPERATIONS_PER_VISIT = (
    20  # scalar operations for each link and destination of a search, approximately
)

# The same where only the nodes behind a change are searched anew.
_OPERATIONS_PER_CHANGE = 4


class IgpLinks(NamedTuple):
    """The links and metrics that routers know: E links between N nodes.

    Attributes:
        out_ptr: (N + 1,) the links out of node n are ``out_link[out_ptr[n]:out_ptr[n + 1]]``.
        out_link: (E,) link numbers.
        in_ptr: (N + 1,) the links into node n are ``in_link[in_ptr[n]:in_ptr[n + 1]]``.
        in_link: (E,) link numbers.
        tail: (E,) node where each link starts.
        head: (E,) node where it ends.
        metric: (E,) whole numbers above 0; infinite for a link that has failed.
        weight: (E,) > 0, in proportion to which next hops share traffic.
        has_transit: (N,) whether a router sends on what it receives from others.
    """

    out_ptr: IntArray
    out_link: IntArray
    in_ptr: IntArray
    in_link: IntArray
    tail: IntArray
    head: IntArray
    metric: FloatArray
    weight: FloatArray
    has_transit: BoolArray


class Dags(NamedTuple):
    """The DAGs towards D destinations; rows of entries behind the last one in use are undefined.

    Attributes:
        distance: (D, N) to each destination; infinite where there is no path.
        order: (D, N) nodes by distance, the destination first.
        reached: (D,) number of nodes with a path to the destination, itself included.
        arc_start: (D, N + 1) the arcs of the i-th node of ``order`` are
            ``arc[arc_start[i]:arc_start[i + 1]]``.
        arc: (D, E) link numbers.
        share: (D, E) of the traffic at a node that each of its arcs takes.
    """

    distance: FloatArray
    order: IntArray
    reached: IntArray
    arc_start: IntArray
    arc: IntArray
    share: FloatArray


@kernel
def new_dags(destinations: int, nodes: int, links: int) -> Dags:
    """Memory for DAGs."""
    return Dags(
        np.empty((destinations, nodes)),
        np.empty((destinations, nodes), dtype=np.int32),
        np.zeros(destinations, dtype=np.int32),
        np.empty((destinations, nodes + 1), dtype=np.int32),
        np.empty((destinations, links), dtype=np.int32),
        np.empty((destinations, links)),
    )


@inner_kernel
def grow_dag(
    target: int, row: int, links: IgpLinks, dags: Dags, keys: FloatArray, nodes: IntArray
) -> None:
    """Fill a row of ``dags`` with the DAG towards a node, by Dijkstra's algorithm against the
    links' directions.

    Args:
        target: the destination.
        row: row of ``dags``.
        links: links of the network.
        dags: to fill.
        keys: (2 E + 2,) scratch of the heap.
        nodes: (2 E + 2,) scratch.
    """
    distance, order = dags.distance[row], dags.order[row]
    distance[:] = np.inf
    distance[target] = 0.0
    size, reached = heap_push(keys, nodes, as_int64(0), 0.0, target), 0
    while size:
        key, node = keys[0], nodes[0]
        size = heap_pop(keys, nodes, size)
        if key > distance[node]:
            continue  # the node was reached by a shorter path since this entry was pushed
        order[reached] = node
        reached += 1
        if node != target and not links.has_transit[node]:
            continue  # the node has a path, and no other node has one through it
        for i in range(links.in_ptr[node], links.in_ptr[node + 1]):
            link = links.in_link[i]
            length, other = key + links.metric[link], links.tail[link]
            if length < distance[other]:
                distance[other] = length
                size = heap_push(keys, nodes, size, length, other)
    dags.reached[row] = reached
    find_arcs(row, links, dags)


@inner_kernel
def is_on_dag(distance: FloatArray, links: IgpLinks, link: int) -> bool:
    """Whether a link is a next hop towards the destination of these distances (N,)."""
    head = links.head[link]
    length = links.metric[link] + distance[head]
    is_allowed = (
        links.has_transit[head] or distance[head] == 0.0
    )  # that of the destination alone is 0
    return length < np.inf and distance[links.tail[link]] == length and is_allowed


@inner_kernel
def find_arcs(row: int, links: IgpLinks, dags: Dags) -> None:
    """The next hops of a row of ``dags``, from its distances and order.

    The rule is that of :func:`is_on_dag`, written out over arrays that are bound once: to read them
    from the tuple for each link takes twice as long.
    """
    distance, order, arc_start = dags.distance[row], dags.order[row], dags.arc_start[row]
    arc, share = dags.arc[row], dags.share[row]
    out_ptr = links.out_ptr
    out_link = links.out_link
    head = links.head
    metric = links.metric
    weight = links.weight
    has_transit = links.has_transit
    target = order[0]
    count = 0
    arc_start[0] = 0
    arc_start[1] = 0  # the destination has no next hop
    for i in range(1, dags.reached[row]):
        node, first, total = order[i], count, 0.0
        for j in range(out_ptr[node], out_ptr[node + 1]):
            link = out_link[j]
            end = head[link]
            if metric[link] + distance[end] == distance[node] and (
                has_transit[end] or end == target
            ):
                arc[count], share[count] = link, weight[link]
                total += weight[link]
                count += 1
        for a in range(first, count):
            share[a] /= total
        arc_start[i + 1] = count


@partitioned_kernel("blocks", int)
def _grow_all(
    begin: int, end: int, targets: IntArray, links: IgpLinks, dags: Dags, blocks: int
) -> None:
    for block in range(begin, end):
        size = 2 * len(links.tail) + 2
        keys, nodes = np.empty(size), np.empty(size, dtype=np.int32)
        for i in range(block, len(targets), blocks):
            grow_dag(targets[i], targets[i], links, dags, keys, nodes)


@partitioned_kernel("blocks", int)
def _lengthen_all(
    begin: int,
    end: int,
    targets: IntArray,
    links: IgpLinks,
    has_risen: BoolArray,
    dags: Dags,
    blocks: int,
) -> None:
    nodes, size = len(links.has_transit), len(links.tail) + len(links.has_transit) + 1
    for block in range(begin, end):
        scratch = _Scratch(
            np.zeros(nodes, dtype=np.bool_),
            np.empty(nodes, dtype=np.int32),
            np.empty(nodes, dtype=np.int32),
            np.empty(nodes, dtype=np.int32),
            np.empty(size),
            np.empty(size, dtype=np.int32),
        )
        for i in range(block, len(targets), blocks):
            _lengthen(targets[i], links, has_risen, dags, scratch)


class _Scratch(NamedTuple):
    """Memory of :func:`_lengthen`.

    Attributes:
        is_cut: (N,) false of all nodes before and after a call.
        cut: (N,) cut nodes.
        settled: (N,) cut nodes that have a path, by distance.
        kept: (N,) the other nodes, by distance.
        keys: (E + N + 1,) of the heap.
        heap_nodes: (E + N + 1,) of the heap.
    """

    is_cut: BoolArray
    cut: IntArray
    settled: IntArray
    kept: IntArray
    keys: FloatArray
    heap_nodes: IntArray


@inner_kernel
def _lengthen(
    row: int, links: IgpLinks, has_risen: BoolArray, dags: Dags, scratch: _Scratch
) -> None:
    """Change a row of ``dags`` after metrics have risen: a node whose next hops are all on risen
    links, or lead over such nodes, is cut, and cut nodes alone are searched anew (Ramalingam and
    Reps, "An incremental algorithm for a generalization of the shortest-path problem", 1996).

    Args:
        row: the destination.
        links: links of the network under the new metrics.
        has_risen: (E,) whether the metric of a link has risen.
        dags: under the metrics before; the row is changed.
        scratch: memory.
    """
    distance = dags.distance[row]
    order = dags.order[row]
    arc_start = dags.arc_start[row]
    arc = dags.arc[row]
    head = links.head
    is_cut = scratch.is_cut
    cut = scratch.cut
    kept = scratch.kept
    settled = scratch.settled
    cuts = 0
    kept[0] = order[0]  # the destination is never cut
    count = 1
    for i in range(1, dags.reached[row]):
        has_hop = False
        for a in range(arc_start[i], arc_start[i + 1]):
            has_hop = has_hop or not (has_risen[arc[a]] or is_cut[head[arc[a]]])
        if has_hop:
            kept[count] = order[i]
            count += 1
        else:
            is_cut[order[i]] = True
            cut[cuts] = order[i]
            cuts += 1
    paths = _settle(row, links, dags, scratch, cuts)
    i = 0
    j = 0
    while i + j < count + paths:  # both by distance
        is_next = j == paths or (i < count and distance[kept[i]] <= distance[settled[j]])
        order[i + j] = kept[i] if is_next else settled[j]
        i += is_next
        j += not is_next
    dags.reached[row] = count + paths
    for c in range(cuts):
        is_cut[cut[c]] = False
    find_arcs(row, links, dags)


@inner_kernel
def _settle(row: int, links: IgpLinks, dags: Dags, scratch: _Scratch, cuts: int) -> int:
    """Find the distances of so many cut nodes, by Dijkstra's algorithm from the nodes that are not
    cut; the number of those that have a path, which ``scratch.settled`` lists.
    """
    distance = dags.distance[row]
    is_cut = scratch.is_cut
    cut = scratch.cut
    settled = scratch.settled
    keys = scratch.keys
    nodes = scratch.heap_nodes
    head = links.head
    tail = links.tail
    metric = links.metric
    has_transit = links.has_transit
    size = as_int64(0)
    count = 0
    for c in range(cuts):
        distance[cut[c]] = np.inf
    for c in range(cuts):
        node, best = cut[c], np.inf
        for j in range(links.out_ptr[node], links.out_ptr[node + 1]):
            link = links.out_link[j]
            end = head[link]
            if not is_cut[end] and (has_transit[end] or end == row):
                best = min(best, metric[link] + distance[end])
        if best < np.inf:
            distance[node] = best
            size = heap_push(keys, nodes, size, best, node)
    while size:
        key, node = keys[0], nodes[0]
        size = heap_pop(keys, nodes, size)
        if key > distance[node]:
            continue  # the node was reached by a shorter path since this entry was pushed
        settled[count] = node
        count += 1
        if not has_transit[node]:
            continue
        for j in range(links.in_ptr[node], links.in_ptr[node + 1]):
            link = links.in_link[j]
            length, other = key + metric[link], tail[link]
            if is_cut[other] and length < distance[other]:
                distance[other] = length
                size = heap_push(keys, nodes, size, length, other)
    return count


@dataclasses.dataclass(frozen=True, eq=False)
class EcmpDag:
    """The DAGs towards all N nodes of a network under one set of metrics.

    Attributes:
        topology: the network.
        links: its links as kernels take them; a link of capacity 0 has failed.
        dags: a row for each destination.
    """

    topology: Topology
    links: IgpLinks
    dags: Dags

    @classmethod
    def of(
        cls, topology: Topology, metric: FloatArray | Int64Array, weight: FloatArray | None = None
    ) -> EcmpDag:
        """Find all shortest paths.

        Args:
            topology: the network; links of capacity 0 have failed.
            metric: (E,) whole numbers above 0.
            weight: (E,) > 0, in proportion to which next hops share traffic; None for equal parts.

        Raises:
            InputError: a metric that is no whole number above 0, or a weight that is not above 0.
        """
        links = igp_links(topology, check_metric(topology, metric), weight)
        dag = cls(
            topology, links, new_dags(topology.num_nodes, topology.num_nodes, topology.num_links)
        )
        dag._grow(np.arange(topology.num_nodes, dtype=np.int32))
        return dag

    def _grow(self, targets: IntArray) -> None:
        operations = _OPERATIONS_PER_VISIT * len(targets) * self.topology.num_links
        with threads_for(operations):
            _grow_all(targets, self.links, self.dags, max(1, min(len(targets), 16)))

    def rebuilt(self, metric: FloatArray) -> EcmpDag:
        """The DAGs under other metrics, infinite for failed links; only destinations that change
        are searched anew, and of those that only become farther the nodes behind the change.

        A destination changes if a link whose metric rises is on its DAG, or one whose metric falls
        leads to paths at least as short as the present ones.

        Args:
            metric: (E,) of all links.
        """
        changed = np.flatnonzero(metric != self.links.metric)
        rises = metric[changed] > self.links.metric[changed]
        distance = self.dags.distance
        to_start, to_end = (
            distance[:, self.links.tail[changed]],
            distance[:, self.links.head[changed]],
        )
        reaches = np.isfinite(to_end)
        is_worse = rises & reaches & (to_start == self.links.metric[changed] + to_end)
        is_better = ~rises & reaches & (metric[changed] + to_end <= to_start)
        comes_nearer = is_better.any(1)
        farther = np.flatnonzero(is_worse.any(1) & ~comes_nearer).astype(np.int32)
        links = self.links._replace(metric=np.ascontiguousarray(metric, dtype=np.float64))
        dag = EcmpDag(self.topology, links, Dags._make(array.copy() for array in self.dags))
        dag._grow(np.flatnonzero(comes_nearer).astype(np.int32))
        dag._lengthen(farther, metric > self.links.metric)
        return dag

    def _lengthen(self, targets: IntArray, has_risen: BoolArray) -> None:
        operations = _OPERATIONS_PER_CHANGE * len(targets) * self.topology.num_links
        with threads_for(operations):
            blocks = max(1, min(len(targets), 16))
            _lengthen_all(targets, self.links, has_risen, self.dags, blocks)

    def without(self, failed: IntArray | Int64Array | list[int]) -> EcmpDag:
        """The DAGs after the failure of some links, by their numbers."""
        metric = self.links.metric.copy()
        metric[failed] = np.inf
        return self.rebuilt(metric)

    @property
    def reaches(self) -> BoolArray:
        """(N, N) whether the second node has a path to the first one, the destination."""
        return np.isfinite(self.dags.distance)

    @property
    def num_arcs(self) -> int:
        """A, arcs of all DAGs."""
        return int(sum(self.dags.arc_start[t, n] for t, n in enumerate(self.dags.reached.tolist())))

    def next_hops(self, node: int, target: int) -> dict[int, float]:
        """The share of each link of a node that leads towards a target; {} at the target and
        without a path.
        """
        dags, place = (
            self.dags,
            np.flatnonzero(self.dags.order[target, : self.dags.reached[target]] == node),
        )
        if not len(place) or node == target:
            return {}
        first, end = dags.arc_start[target, place[0]], dags.arc_start[target, place[0] + 1]
        return dict(
            zip(
                dags.arc[target, first:end].tolist(),
                dags.share[target, first:end].tolist(),
                strict=True,
            )
        )


def igp_links(
    topology: Topology, metric: FloatArray | Int64Array, weight: FloatArray | None = None
) -> IgpLinks:
    """The links as kernels take them; those of capacity 0 have failed.

    Raises:
        InputError: a weight that is not above 0.
    """
    weight = np.ones(topology.num_links) if weight is None else np.asarray(weight, dtype=np.float64)
    if weight.shape != (topology.num_links,) or not (np.isfinite(weight) & (weight > 0)).all():
        raise InputError(
            topology.origin or topology.name, "weight", "a finite weight > 0 of each link", weight
        )
    graph = make_graph(
        topology.num_nodes, topology.link_source, topology.link_target, topology.no_transit
    )
    live = np.where(topology.capacity > 0, np.asarray(metric, dtype=np.float64), np.inf)
    return IgpLinks(
        graph.out_ptr,
        graph.out_link,
        graph.in_ptr,
        graph.in_link,
        np.ascontiguousarray(graph.tail, dtype=np.int32),
        np.ascontiguousarray(graph.head, dtype=np.int32),
        np.ascontiguousarray(live),
        np.ascontiguousarray(weight),
        graph.has_transit,
    )


def igp_metric(topology: Topology, kind: str) -> FloatArray:
    """(E,) metrics: whole numbers of at least 1, in float64.

    Args:
        topology: the network.
        kind: ``file`` (those of the topology; 1 where it has none), ``hops`` (1), ``latency``
            (units of 0.01 ms), or ``inverse-capacity`` (10,000 Gbit/s over the capacity).
    """
    match kind:
        case "file" if topology.metric is not None:
            return topology.metric.astype(np.float64)
        case "latency":
            return np.maximum(1, np.round(topology.latency / _MS_PER_METRIC))
        case "inverse-capacity":
            return np.maximum(
                1,
                np.round(_REFERENCE_GBPS / np.where(topology.capacity > 0, topology.capacity, 1.0)),
            )
    return np.ones(topology.num_links)


def check_metric(topology: Topology, metric: FloatArray | Int64Array) -> FloatArray:
    """(E,) the metrics in float64.

    Raises:
        InputError: one that is no whole number from 1 to 2^32 - 1.
    """
    values = np.asarray(metric, dtype=np.float64)
    where = topology.origin or topology.name
    if values.shape != (topology.num_links,):
        raise InputError(where, "metric", f"shape {(topology.num_links,)}", values.shape)
    wrong = np.flatnonzero(~((values >= 1) & (values <= MAX_METRIC) & (values == np.floor(values))))
    if len(wrong):
        link = topology.link_name(int(wrong[0]))
        raise InputError(
            where,
            f"link {link}: metric",
            f"a whole number from 1 to {MAX_METRIC}",
            values[wrong[0]],
        )
    return values
