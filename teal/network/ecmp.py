"""Shortest paths of an interior gateway protocol (IGP) with equal-cost multipath (ECMP), to every
node.

A router forwards a packet for node t over any of its *next hops*: the links (u, v) out of u with

    distance(u, t) = metric(u, v) + distance(v, t).

It divides the traffic evenly over them, parallel links counted separately, or in proportion to
weights (unequal-cost multipath, UCMP).  The next hops of all nodes towards t form a directed
acyclic graph (DAG); an *arc* is a link of it.  With A arcs towards all N destinations, a pass over
all DAGs costs A additions, whatever the number of demands; on measured networks A is 1.1 to 1.4
times N^2.

Metrics are integers, and float64 holds their sums exactly, so that equal costs are recognised by
``==``.  Entry point: :meth:`EcmpDag.of` (Dijkstra's algorithm per destination); after metric
changes :meth:`EcmpDag.rebuilt` updates only affected nodes (Ramalingam and Reps 1996).
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
# Reference bandwidth: the capacity whose inverse-capacity metric is 1.
_REFERENCE_GBPS = 10_000.0
# Latency that corresponds to a metric of 1.
_MS_PER_METRIC = 0.01
# The largest wide metric of IS-IS has 24 bits, that of OSPF 16; some files have 32.
MAX_METRIC = 2**32 - 1
# Approximate scalar operations for each link and destination of a search.
_OPERATIONS_PER_VISIT = 20

# Approximate scalar operations for each link and destination of an incremental update, which
# searches only affected nodes.
_OPERATIONS_PER_CHANGE = 4


class IgpLinks(NamedTuple):
    """Link-state database in CSR form: E links between N nodes, with metrics.

    Attributes:
        out_ptr: (N + 1,) the links out of node n are ``out_link[out_ptr[n]:out_ptr[n + 1]]``.
        out_link: (E,) link indices.
        in_ptr: (N + 1,) the links into node n are ``in_link[in_ptr[n]:in_ptr[n + 1]]``.
        in_link: (E,) link indices.
        tail: (E,) node where each link starts.
        head: (E,) node where each link ends.
        metric: (E,) positive integers; infinite for a failed link.
        weight: (E,) positive load-balancing weights of next hops.
        has_transit: (N,) whether a router forwards transit traffic.
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
    """DAGs towards D destinations; entries beyond the used part of a row are undefined.

    Attributes:
        distance: (D, N) distance to each destination; infinite where there is no path.
        order: (D, N) nodes by distance, the destination first.
        reached: (D,) number of nodes with a path to the destination, including itself.
        arc_start: (D, N + 1) the arcs of the i-th node of ``order`` are
            ``arc[arc_start[i]:arc_start[i + 1]]``.
        arc: (D, E) link indices.
        share: (D, E) share of a node's traffic on each of its arcs.
    """

    distance: FloatArray
    order: IntArray
    reached: IntArray
    arc_start: IntArray
    arc: IntArray
    share: FloatArray


@kernel
def new_dags(destinations: int, nodes: int, links: int) -> Dags:
    """Allocate uninitialised shortest-path DAGs.

    Args:
        destinations: D, number of destinations.
        nodes: N, number of nodes.
        links: E, number of links.
    """
    return Dags(
        np.empty((destinations, nodes)),
        np.empty((destinations, nodes), dtype=np.int32),
        np.zeros(destinations, dtype=np.int32),
        np.empty((destinations, nodes + 1), dtype=np.int32),
        np.empty((destinations, links), dtype=np.int32),
        np.empty((destinations, links)),
    )


@inner_kernel
def shortest_path_dag(
    target: int, row: int, links: IgpLinks, dags: Dags, heap_keys: FloatArray, heap_nodes: IntArray
) -> None:
    """Compute the shortest-path DAG towards a node, by Dijkstra's algorithm against the links'
    directions.

    Args:
        target: destination node.
        row: row of ``dags`` for this destination.
        links: links of the network with their metrics.
        dags: DAGs; the row is written.
        heap_keys: (2 E + 2,) priorities of the heap (scratch).
        heap_nodes: (2 E + 2,) nodes of the heap (scratch).
    """
    distance = dags.distance[row]
    order = dags.order[row]
    distance[:] = np.inf
    distance[target] = 0.0
    heap_size = heap_push(heap_keys, heap_nodes, as_int64(0), 0.0, target)
    num_reached = 0
    # Settle the nearest node in the heap, with its shortest distance to the target.
    while heap_size:
        node_distance = heap_keys[0]
        node = heap_nodes[0]
        heap_size = heap_pop(heap_keys, heap_nodes, heap_size)
        if node_distance > distance[node]:
            # Stale heap entry: a shorter path has reached the node since it was pushed.
            continue
        order[num_reached] = node
        num_reached += 1
        if node != target and not links.has_transit[node]:
            # Traffic may start at this node, but not pass through it.
            continue
        # Relax the links into the node.
        for i in range(links.in_ptr[node], links.in_ptr[node + 1]):
            link = links.in_link[i]
            new_distance = node_distance + links.metric[link]
            neighbour = links.tail[link]
            if new_distance < distance[neighbour]:
                distance[neighbour] = new_distance
                heap_size = heap_push(heap_keys, heap_nodes, heap_size, new_distance, neighbour)
    dags.reached[row] = num_reached
    find_arcs(row, links, dags)


@inner_kernel
def is_on_dag(distance: FloatArray, links: IgpLinks, link: int) -> bool:
    """Return whether a link is a next hop towards a destination.

    Args:
        distance: (N,) distance of each node to the destination.
        links: links of the network with their metrics.
        link: index of the link.
    """
    head = links.head[link]
    distance_over_link = links.metric[link] + distance[head]
    # The link must end at a node that forwards transit traffic, or at the destination, which alone
    # has distance 0.
    head_forwards = links.has_transit[head] or distance[head] == 0.0
    return (
        distance_over_link < np.inf
        and distance[links.tail[link]] == distance_over_link
        and head_forwards
    )


@inner_kernel
def find_arcs(row: int, links: IgpLinks, dags: Dags) -> None:
    """Compute the arcs of a DAG and their traffic shares from distances.

    A link (u, v) is an arc if distance(u) = metric(u, v) + distance(v) and node v forwards transit
    traffic or is the destination.  The share of an arc is its weight over the sum of weights of the
    arcs out of u.

    The arrays of the tuples are bound to local names: reading them from the tuples for each link
    takes twice as long.

    Args:
        row: row of ``dags``.
        links: links of the network with their metrics.
        dags: DAGs; ``distance``, ``order`` and ``reached`` of the row are read, ``arc_start``,
            ``arc`` and ``share`` are written.
    """
    distance = dags.distance[row]
    order = dags.order[row]
    arc_start = dags.arc_start[row]
    arc = dags.arc[row]
    share = dags.share[row]
    out_ptr = links.out_ptr
    out_link = links.out_link
    head = links.head
    metric = links.metric
    weight = links.weight
    has_transit = links.has_transit
    # Number of arcs found so far, over all nodes.
    target = order[0]
    num_arcs = 0
    # The destination, first in the order, has no next hop.
    arc_start[0] = 0
    arc_start[1] = 0
    for i in range(1, dags.reached[row]):
        node = order[i]
        # List the links of the node on shortest paths, with their weights.
        first_arc = num_arcs
        total_weight = 0.0
        for j in range(out_ptr[node], out_ptr[node + 1]):
            link = out_link[j]
            next_node = head[link]
            if metric[link] + distance[next_node] == distance[node] and (
                has_transit[next_node] or next_node == target
            ):
                arc[num_arcs] = link
                share[num_arcs] = weight[link]
                total_weight += weight[link]
                num_arcs += 1
        # Normalise the weights to shares.
        for arc_index in range(first_arc, num_arcs):
            share[arc_index] /= total_weight
        arc_start[i + 1] = num_arcs


@partitioned_kernel("blocks", int)
def _compute_dags(
    begin: int, end: int, targets: IntArray, links: IgpLinks, dags: Dags, blocks: int
) -> None:
    """Compute the shortest-path DAGs towards some destinations, in parallel blocks.

    Args:
        begin, end: range of blocks that this call computes.
        targets: (n,) destination nodes; block b has the entries b, b + blocks, b + 2 blocks, ...
        links: links of the network with their metrics.
        dags: DAGs towards all nodes; the rows of the targets are written.
        blocks: number of blocks.
    """
    for block in range(begin, end):
        # Scratch memory of a block: priorities and nodes of the heap.
        heap_capacity = 2 * len(links.tail) + 2
        heap_keys = np.empty(heap_capacity)
        heap_nodes = np.empty(heap_capacity, dtype=np.int32)
        for i in range(block, len(targets), blocks):
            shortest_path_dag(targets[i], targets[i], links, dags, heap_keys, heap_nodes)


@partitioned_kernel("blocks", int)
def _update_dags(
    begin: int,
    end: int,
    targets: IntArray,
    links: IgpLinks,
    has_higher_metric: BoolArray,
    dags: Dags,
    blocks: int,
) -> None:
    """Update the DAGs towards some destinations after metrics have increased, in parallel blocks.

    Args:
        begin, end: range of blocks that this call updates.
        targets: (n,) destination nodes; block b has the entries b, b + blocks, b + 2 blocks, ...
        links: links of the network with the new metrics.
        has_higher_metric: (E,) whether the metric of a link has increased.
        dags: DAGs towards all nodes; the rows of the targets are updated.
        blocks: number of blocks.
    """
    num_nodes = len(links.has_transit)
    heap_capacity = len(links.tail) + len(links.has_transit) + 1
    for block in range(begin, end):
        # Scratch memory of a block: marks and list of cut nodes, lists of settled and intact nodes,
        # and the heap.
        scratch = _UpdateScratch(
            np.zeros(num_nodes, dtype=np.bool_),
            np.empty(num_nodes, dtype=np.int32),
            np.empty(num_nodes, dtype=np.int32),
            np.empty(num_nodes, dtype=np.int32),
            np.empty(heap_capacity),
            np.empty(heap_capacity, dtype=np.int32),
        )
        for i in range(block, len(targets), blocks):
            _update_dag(targets[i], links, has_higher_metric, dags, scratch)


class _UpdateScratch(NamedTuple):
    """Scratch memory of :func:`_update_dag`.

    Attributes:
        is_cut: (N,) whether a node has lost all its next hops; all false before and after a call.
        cut_nodes: (N,) list of these cut nodes.
        settled_nodes: (N,) cut nodes that have a new path, by ascending distance.
        intact_nodes: (N,) nodes with a next hop left, by ascending distance.
        keys: (E + N + 1,) priorities of the heap.
        heap_nodes: (E + N + 1,) nodes of the heap.
    """

    is_cut: BoolArray
    cut_nodes: IntArray
    settled_nodes: IntArray
    intact_nodes: IntArray
    keys: FloatArray
    heap_nodes: IntArray


@inner_kernel
def _update_dag(
    row: int, links: IgpLinks, has_higher_metric: BoolArray, dags: Dags, scratch: _UpdateScratch
) -> None:
    """Update a row of ``dags`` after metrics have increased (Ramalingam and Reps, "An incremental
    algorithm for a generalization of the shortest-path problem", 1996).

    A node is *cut* if each of its next-hop links has an increased metric or leads to a cut node.
    The distances of the other nodes stay; only cut nodes are searched again.

    Args:
        row: destination node, which is also the row.
        links: links of the network with the new metrics.
        has_higher_metric: (E,) whether the metric of a link has increased.
        dags: DAGs under the previous metrics; the row is updated.
        scratch: lists of cut, settled and intact nodes, and the heap.
    """
    distance = dags.distance[row]
    order = dags.order[row]
    arc_start = dags.arc_start[row]
    arc = dags.arc[row]
    head = links.head
    is_cut = scratch.is_cut
    cut_nodes = scratch.cut_nodes
    intact_nodes = scratch.intact_nodes
    settled_nodes = scratch.settled_nodes
    num_cut = 0
    # The destination is never cut.
    intact_nodes[0] = order[0]
    num_intact = 1
    # Divide the other nodes into intact and cut ones, by ascending distance, so that the next hops
    # of a node are classified before it.
    # A node is intact if some next hop has no increased metric and leads to an intact node.
    for i in range(1, dags.reached[row]):
        has_intact_next_hop = False
        for position in range(arc_start[i], arc_start[i + 1]):
            has_intact_next_hop = has_intact_next_hop or not (
                has_higher_metric[arc[position]] or is_cut[head[arc[position]]]
            )
        if has_intact_next_hop:
            intact_nodes[num_intact] = order[i]
            num_intact += 1
        else:
            is_cut[order[i]] = True
            cut_nodes[num_cut] = order[i]
            num_cut += 1
    num_settled = _search_cut_nodes(row, links, dags, scratch, num_cut)
    # Merge the intact and settled nodes, both sorted by distance, into the new order; i of the
    # intact and j of the settled nodes are merged so far.
    i = 0
    j = 0
    while i + j < num_intact + num_settled:
        takes_intact = j == num_settled or (
            i < num_intact and distance[intact_nodes[i]] <= distance[settled_nodes[j]]
        )
        order[i + j] = intact_nodes[i] if takes_intact else settled_nodes[j]
        i += takes_intact
        j += not takes_intact
    dags.reached[row] = num_intact + num_settled
    # Reset the marks for the next call.
    for cut_index in range(num_cut):
        is_cut[cut_nodes[cut_index]] = False
    find_arcs(row, links, dags)


@inner_kernel
def _search_cut_nodes(
    row: int, links: IgpLinks, dags: Dags, scratch: _UpdateScratch, num_cut: int
) -> int:
    """Compute the distances of cut nodes, by Dijkstra's algorithm from the intact nodes.

    A node is cut if it has lost all its next hops; the distances of the other (intact) nodes stay.

    Args:
        row: destination node, which is also the row of ``dags``.
        links: links of the network with the new metrics.
        dags: DAGs; the distances of cut nodes in the row are written.
        scratch: ``cut_nodes`` and ``is_cut`` give the cut nodes; ``settled_nodes`` receives those
            with a path, by ascending distance.
        num_cut: number of cut nodes.

    Returns:
        number of cut nodes that have a path.
    """
    distance = dags.distance[row]
    is_cut = scratch.is_cut
    cut_nodes = scratch.cut_nodes
    settled_nodes = scratch.settled_nodes
    heap_keys = scratch.keys
    heap_nodes = scratch.heap_nodes
    head = links.head
    tail = links.tail
    metric = links.metric
    has_transit = links.has_transit
    heap_size = as_int64(0)
    num_settled = 0
    # Reset the distances of cut nodes.
    for cut_index in range(num_cut):
        distance[cut_nodes[cut_index]] = np.inf
    # Push the cut nodes that have a link to an intact node.
    for cut_index in range(num_cut):
        node = cut_nodes[cut_index]
        min_distance = np.inf
        for j in range(links.out_ptr[node], links.out_ptr[node + 1]):
            link = links.out_link[j]
            next_node = head[link]
            if not is_cut[next_node] and (has_transit[next_node] or next_node == row):
                min_distance = min(min_distance, metric[link] + distance[next_node])
        if min_distance < np.inf:
            distance[node] = min_distance
            heap_size = heap_push(heap_keys, heap_nodes, heap_size, min_distance, node)
    # Settle the nearest node, and relax the links into it from other cut nodes.
    while heap_size:
        node_distance = heap_keys[0]
        node = heap_nodes[0]
        heap_size = heap_pop(heap_keys, heap_nodes, heap_size)
        if node_distance > distance[node]:
            # Stale heap entry: a shorter path has reached the node since it was pushed.
            continue
        settled_nodes[num_settled] = node
        num_settled += 1
        if not has_transit[node]:
            # Traffic may start at this node, but not pass through it.
            continue
        for j in range(links.in_ptr[node], links.in_ptr[node + 1]):
            link = links.in_link[j]
            new_distance = node_distance + metric[link]
            neighbour = tail[link]
            if is_cut[neighbour] and new_distance < distance[neighbour]:
                distance[neighbour] = new_distance
                heap_size = heap_push(heap_keys, heap_nodes, heap_size, new_distance, neighbour)
    return num_settled


@dataclasses.dataclass(frozen=True, eq=False)
class EcmpDag:
    """Shortest-path DAGs towards all N nodes of a network under one set of metrics.

    Attributes:
        topology: the network.
        links: its links in CSR form; a link of capacity 0 has failed.
        dags: the DAGs, a row per destination.
    """

    topology: Topology
    links: IgpLinks
    dags: Dags

    @classmethod
    def of(
        cls, topology: Topology, metric: FloatArray | Int64Array, weight: FloatArray | None = None
    ) -> EcmpDag:
        """Compute the shortest-path DAGs towards all nodes (Dijkstra's algorithm per destination).

        Args:
            topology: the network; links of capacity 0 have failed.
            metric: (E,) positive integers.
            weight: (E,) positive load-balancing weights of next hops; None for equal shares.

        Raises:
            InputError: a metric that is not a positive integer, or a weight that is not positive.
        """
        links = igp_links(topology, check_metric(topology, metric), weight)
        dag = cls(
            topology, links, new_dags(topology.num_nodes, topology.num_nodes, topology.num_links)
        )
        dag._compute_towards(np.arange(topology.num_nodes, dtype=np.int32))
        return dag

    def _compute_towards(self, targets: IntArray) -> None:
        """Compute the DAGs towards some nodes.

        Args:
            targets: (n,) destination nodes.
        """
        operations = _OPERATIONS_PER_VISIT * len(targets) * self.topology.num_links
        with threads_for(operations):
            # At most 16 parallel blocks.
            _compute_dags(targets, self.links, self.dags, max(1, min(len(targets), 16)))

    def rebuilt(self, metric: FloatArray) -> EcmpDag:
        """Return the DAGs under other metrics; only affected parts are searched again.

        A destination is affected if a link whose metric increases is on its DAG, or if a link whose
        metric decreases gives paths at least as short.  Where distances only increase, only nodes
        that lose all their next hops are searched.

        Args:
            metric: (E,) new metrics; infinite for failed links.
        """
        # Changed links, and the distances of their ends to each destination: (N, changed links).
        changed_links = np.flatnonzero(metric != self.links.metric)
        is_raised = metric[changed_links] > self.links.metric[changed_links]
        distance = self.dags.distance
        tail_distance = distance[:, self.links.tail[changed_links]]
        head_distance = distance[:, self.links.head[changed_links]]
        head_has_path = np.isfinite(head_distance)
        # (N, changed links): a link with a higher metric was on a shortest path to the destination;
        # a link with a lower metric gives a path that is at least as short.
        may_raise_distance = (
            is_raised
            & head_has_path
            & (tail_distance == self.links.metric[changed_links] + head_distance)
        )
        may_lower_distance = (
            ~is_raised & head_has_path & (metric[changed_links] + head_distance <= tail_distance)
        )
        needs_search = may_lower_distance.any(1)
        targets_to_update = np.flatnonzero(may_raise_distance.any(1) & ~needs_search).astype(
            np.int32
        )
        # Dijkstra's algorithm for destinations with shorter paths, incremental updates for those
        # with longer paths only.
        links = self.links._replace(metric=np.ascontiguousarray(metric, dtype=np.float64))
        dag = EcmpDag(self.topology, links, Dags._make(array.copy() for array in self.dags))
        dag._compute_towards(np.flatnonzero(needs_search).astype(np.int32))
        dag._update_dag(targets_to_update, metric > self.links.metric)
        return dag

    def _update_dag(self, targets: IntArray, has_higher_metric: BoolArray) -> None:
        """Update the DAGs towards some nodes after metrics have increased.

        Args:
            targets: (n,) destination nodes.
            has_higher_metric: (E,) whether the metric of a link has increased.
        """
        operations = _OPERATIONS_PER_CHANGE * len(targets) * self.topology.num_links
        with threads_for(operations):
            # At most 16 parallel blocks.
            blocks = max(1, min(len(targets), 16))
            _update_dags(targets, self.links, has_higher_metric, self.dags, blocks)

    def without(self, failed: IntArray | Int64Array | list[int]) -> EcmpDag:
        """Return the DAGs after the failure of links.

        Args:
            failed: indices of the failed links.
        """
        metric = self.links.metric.copy()
        metric[failed] = np.inf
        return self.rebuilt(metric)

    @property
    def reaches(self) -> BoolArray:
        """Matrix (N, N) of booleans: whether node u has a path to the destination t, at [t, u]."""
        return np.isfinite(self.dags.distance)

    @property
    def num_arcs(self) -> int:
        """The number of arcs of the DAGs towards all nodes together."""
        return int(
            sum(
                self.dags.arc_start[target, num_reached]
                for target, num_reached in enumerate(self.dags.reached.tolist())
            )
        )

    def next_hops(self, node: int, target: int) -> dict[int, float]:
        """Return the share of a node's traffic towards a target on each of its next-hop links, by
        link.

        The result is empty at the target, and if there is no path.

        Args:
            node: the node.
            target: destination of the traffic.
        """
        dags = self.dags
        order_positions = np.flatnonzero(
            self.dags.order[target, : self.dags.reached[target]] == node
        )
        if not len(order_positions) or node == target:
            return {}
        first_arc = dags.arc_start[target, order_positions[0]]
        end_arc = dags.arc_start[target, order_positions[0] + 1]
        return dict(
            zip(
                dags.arc[target, first_arc:end_arc].tolist(),
                dags.share[target, first_arc:end_arc].tolist(),
                strict=True,
            )
        )


def igp_links(
    topology: Topology, metric: FloatArray | Int64Array, weight: FloatArray | None = None
) -> IgpLinks:
    """Return the links of a network in CSR form, with infinite metrics on links of capacity 0.

    Args:
        topology: the network.
        metric: (E,) positive integers.
        weight: (E,) positive load-balancing weights of next hops; None for equal shares.

    Raises:
        InputError: a weight that is not positive.
    """
    weight = np.ones(topology.num_links) if weight is None else np.asarray(weight, dtype=np.float64)
    where = topology.origin or topology.name
    if weight.shape != (topology.num_links,):
        expected = f"{topology.num_links} weights, one for each link"
        raise InputError(where, "weight", expected, f"the shape {weight.shape}")
    is_invalid = ~(np.isfinite(weight) & (weight > 0))
    if is_invalid.any():
        link = int(is_invalid.argmax())
        raise InputError(where, f"weight of link {link}", "a finite weight > 0", weight[link])
    # Links grouped by their nodes; the metric of a failed link is infinite.
    graph = make_graph(
        topology.num_nodes, topology.link_source, topology.link_target, topology.no_transit
    )
    live_metric = np.where(topology.capacity > 0, np.asarray(metric, dtype=np.float64), np.inf)
    return IgpLinks(
        graph.out_ptr,
        graph.out_link,
        graph.in_ptr,
        graph.in_link,
        np.ascontiguousarray(graph.tail, dtype=np.int32),
        np.ascontiguousarray(graph.head, dtype=np.int32),
        np.ascontiguousarray(live_metric),
        np.ascontiguousarray(weight),
        graph.has_transit,
    )


def igp_metric(topology: Topology, kind: str) -> FloatArray:
    """Return the IGP metrics (E,) of the links: integers of at least 1, in float64.

    Args:
        topology: the network.
        kind: ``file`` (metrics of the topology; 1 where it has none), ``hops`` (1), ``latency``
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
    # Hops, or metrics of a file that has none.
    return np.ones(topology.num_links)


def check_metric(topology: Topology, metric: FloatArray | Int64Array) -> FloatArray:
    """Return validated metrics (E,) in float64.

    Args:
        topology: the network.
        metric: (E,) metrics to check.

    Raises:
        InputError: a metric that is not an integer from 1 to 2^32 - 1.
    """
    values = np.asarray(metric, dtype=np.float64)
    where = topology.origin or topology.name
    if values.shape != (topology.num_links,):
        raise InputError(where, "metric", f"shape {(topology.num_links,)}", values.shape)
    invalid_links = np.flatnonzero(
        ~((values >= 1) & (values <= MAX_METRIC) & (values == np.floor(values)))
    )
    if len(invalid_links):
        link = topology.link_name(int(invalid_links[0]))
        raise InputError(
            where,
            f"link {link}: metric",
            f"an integer from 1 to {MAX_METRIC}",
            values[invalid_links[0]],
        )
    return values
