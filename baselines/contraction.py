"""The contraction of a network for NCFlow: clusters, the paths inside each cluster, the links
between clusters.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from baselines.clusters import partition
from baselines.matrix import Array
from teal.network import PathSet, Topology, compute_paths

# Links of a path, in order from source to target.
LinkPath = tuple[int, ...]
# Maximum number of paths between two clusters; the authors' code computes as many.
MAX_ROUTES = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Cluster:
    """A cluster of n nodes and the m links between them, with up to K edge-disjoint paths inside
    for each node pair.

    Attributes:
        nodes: (n,) node indices in the network, ascending.
        links: (m,) link indices in the network.
        paths: for all pairs of positions in ``nodes``; None for a cluster of one node.
    """

    nodes: Array
    links: Array
    paths: PathSet | None

    @cached_property
    def pair_paths(self) -> dict[tuple[int, int], list[LinkPath]]:
        """(source, target) -> paths, with the node and link numbers of the network."""
        pair_paths: dict[tuple[int, int], list[LinkPath]] = {}
        if self.paths is None:
            return pair_paths
        for d, (source, target) in enumerate(self.paths.pairs.tolist()):
            pair = int(self.nodes[source]), int(self.nodes[target])
            count = int(self.paths.mask[d].sum())
            pair_paths[pair] = [
                tuple(self.links[self.paths.links_of(d, k)].tolist()) for k in range(count)
            ]
        return pair_paths

    def paths_between(self, source: int, target: int) -> list[LinkPath]:
        """The paths between two nodes (numbers in the network); one path without links if they are
        the same node.
        """
        return [()] if source == target else self.pair_paths[source, target]


@dataclasses.dataclass(frozen=True, eq=False)
class Contraction:
    """A partition of a network into clusters.

    Attributes:
        node_cluster: (N,) cluster number of each node.
        clusters: by cluster number.
        links_between: (cluster, cluster) -> links from the first to the second, largest capacity
            first.
        routes: (cluster, cluster) -> up to MAX_ROUTES paths from the first to the second, as
            cluster numbers, fewest hops first; no two of them cross the same pair of neighbouring
            clusters.
    """

    node_cluster: Array
    clusters: tuple[Cluster, ...]
    links_between: dict[tuple[int, int], list[int]]
    routes: dict[tuple[int, int], list[tuple[int, ...]]]


def contract(
    topology: Topology, live: Array, count: int, method: str, seed: int, num_paths: int
) -> Contraction:
    """Partition the network of the live links into approximately ``count`` clusters.

    Args:
        topology: the network.
        live: (E,) true for links that have not failed.
        count: approximate number of clusters.
        method: of partition, see :func:`baselines.clusters.partition`.
        seed: of partition.
        num_paths: K, paths for each pair of nodes of a cluster.
    """
    live_links = np.flatnonzero(live)
    if not len(live_links):
        nodes = np.arange(topology.num_nodes)
        return Contraction(
            nodes, tuple(Cluster(np.array([node]), live_links, None) for node in nodes), {}, {}
        )
    network = topology.with_links(live_links)
    node_cluster = partition(network, count, method, seed)
    clusters = []
    for index in range(int(node_cluster.max()) + 1):
        inside = (node_cluster[network.link_source] == index) & (
            node_cluster[network.link_target] == index
        )
        nodes = np.flatnonzero(node_cluster == index)
        paths = _paths_inside(network, nodes, inside, num_paths) if len(nodes) > 1 else None
        clusters.append(Cluster(nodes, live_links[inside], paths))
    links_between = _links_between(topology, live_links, node_cluster)
    return Contraction(
        node_cluster, tuple(clusters), links_between, _routes(len(clusters), links_between)
    )


def _paths_inside(network: Topology, nodes: Array, inside: Array, num_paths: int) -> PathSet:
    """Paths between the nodes of a cluster over its own links.

    Args:
        network: network of the live links.
        nodes: (n,) nodes of the cluster, ascending.
        inside: (E,) true for the links inside the cluster.
        num_paths: maximum number of paths of a pair of nodes.
    """
    inner = network.with_links(inside)
    subnetwork = dataclasses.replace(
        inner,
        node_names=tuple(network.node_names[node] for node in nodes),
        coordinates=network.coordinates[nodes],
        link_source=np.searchsorted(nodes, inner.link_source).astype(np.int32),
        link_target=np.searchsorted(nodes, inner.link_target).astype(np.int32),
    )
    return compute_paths(subnetwork, num_paths=num_paths, cache=False)


def _links_between(
    topology: Topology, live_links: Array, node_cluster: Array
) -> dict[tuple[int, int], list[int]]:
    """Live links between each two clusters, as in :attr:`Contraction.links_between`."""
    links_between: dict[tuple[int, int], list[int]] = {}
    for link in sorted(live_links.tolist(), key=lambda e: -topology.capacity[e]):
        ends = (
            int(node_cluster[topology.link_source[link]]),
            int(node_cluster[topology.link_target[link]]),
        )
        if ends[0] != ends[1]:
            links_between.setdefault(ends, []).append(link)
    return links_between


def _routes(
    count: int, links_between: dict[tuple[int, int], list[int]]
) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """Paths between ``count`` clusters, as in :attr:`Contraction.routes`."""
    if not links_between:
        return {}
    ends = np.array(sorted(links_between), np.int32)
    network = Topology(
        name="clusters",
        node_names=tuple(str(cluster) for cluster in range(count)),
        link_source=ends[:, 0],
        link_target=ends[:, 1],
        capacity=np.ones(len(ends)),
        latency=np.ones(len(ends)),
        coordinates=np.full((count, 2), np.nan),
    )
    paths = compute_paths(network, num_paths=MAX_ROUTES, cache=False)
    routes: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for d, (source, target) in enumerate(paths.pairs.tolist()):
        links = [paths.links_of(d, k) for k in range(int(paths.mask[d].sum()))]
        if links:
            routes[source, target] = [(source, *ends[path, 1].tolist()) for path in links]
    return routes
