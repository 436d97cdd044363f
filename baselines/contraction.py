"""The contraction of a network for NCFlow: its clusters, the paths inside them, and the links and
routes between them.
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
    """A cluster of n nodes and the m links between them, with up to K paths of each node pair.

    Attributes:
        nodes: (n,) node indices in the network, ascending.
        links: (m,) link indices in the network.
        paths: edge-disjoint paths of all pairs of positions in ``nodes``; None for a cluster of one
            node.
    """

    nodes: Array
    links: Array
    paths: PathSet | None

    @cached_property
    def pair_paths(self) -> dict[tuple[int, int], list[LinkPath]]:
        """Paths inside the cluster by pair (source, target); nodes and links are indices of the
        network.
        """
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
        """Return the paths between two nodes, indices in the network; [()] for the same node."""
        return [()] if source == target else self.pair_paths[source, target]


@dataclasses.dataclass(frozen=True, eq=False)
class Contraction:
    """A network contracted to clusters, with the links and routes between them.

    Attributes:
        node_cluster: (N,) cluster index of each node.
        clusters: the clusters, by index.
        links_between: by pair of clusters, the links from the first to the second, the largest
            capacity first.
        routes: by pair of clusters, up to MAX_ROUTES routes from the first to the second as cluster
            indices, the fewest hops first; no two routes of a pair cross one boundary between
            neighbouring clusters.
    """

    node_cluster: Array
    clusters: tuple[Cluster, ...]
    links_between: dict[tuple[int, int], list[int]]
    routes: dict[tuple[int, int], list[tuple[int, ...]]]


def contract(
    topology: Topology, live: Array, num_clusters: int, method: str, seed: int, num_paths: int
) -> Contraction:
    """Partition the network of the live links into clusters, and compute paths inside and routes
    between them.

    Args:
        topology: the network.
        live: (E,) true for links that have not failed.
        num_clusters: approximate number of clusters.
        method: method of partition: modularity, spectral or leaders.
        seed: seed of the partition.
        num_paths: largest number of paths for each pair of nodes of a cluster.
    """
    live_links = np.flatnonzero(live)
    if not len(live_links):
        nodes = np.arange(topology.num_nodes)
        return Contraction(
            nodes, tuple(Cluster(np.array([node]), live_links, None) for node in nodes), {}, {}
        )
    live_network = topology.with_links(live_links)
    node_cluster = partition(live_network, num_clusters, method, seed)
    clusters = []
    for index in range(int(node_cluster.max()) + 1):
        is_inside = (node_cluster[live_network.link_source] == index) & (
            node_cluster[live_network.link_target] == index
        )
        nodes = np.flatnonzero(node_cluster == index)
        paths = _paths_inside(live_network, nodes, is_inside, num_paths) if len(nodes) > 1 else None
        clusters.append(Cluster(nodes, live_links[is_inside], paths))
    links_between = _links_between(topology, live_links, node_cluster)
    return Contraction(
        node_cluster, tuple(clusters), links_between, _routes(len(clusters), links_between)
    )


def _paths_inside(network: Topology, nodes: Array, is_inside: Array, num_paths: int) -> PathSet:
    """Return paths between the nodes of a cluster over its inner links.

    Args:
        network: network of the live links.
        nodes: (n,) nodes of the cluster, ascending.
        is_inside: (E,) true for the links inside the cluster.
        num_paths: largest number of paths of a pair of nodes.
    """
    inner_network = network.with_links(is_inside)
    subnetwork = dataclasses.replace(
        inner_network,
        node_names=tuple(network.node_names[node] for node in nodes),
        coordinates=network.coordinates[nodes],
        link_source=np.searchsorted(nodes, inner_network.link_source).astype(np.int32),
        link_target=np.searchsorted(nodes, inner_network.link_target).astype(np.int32),
    )
    return compute_paths(subnetwork, num_paths=num_paths, cache=False)


def _links_between(
    topology: Topology, live_links: Array, node_cluster: Array
) -> dict[tuple[int, int], list[int]]:
    """Return the live links between clusters by pair (from, to), the largest capacity first.

    Args:
        topology: the network.
        live_links: (m,) link indices.
        node_cluster: (N,) cluster of each node.
    """
    links_between: dict[tuple[int, int], list[int]] = {}
    for link in sorted(live_links.tolist(), key=lambda e: -topology.capacity[e]):
        cluster_pair = (
            int(node_cluster[topology.link_source[link]]),
            int(node_cluster[topology.link_target[link]]),
        )
        if cluster_pair[0] != cluster_pair[1]:
            links_between.setdefault(cluster_pair, []).append(link)
    return links_between


def _routes(
    num_clusters: int, links_between: dict[tuple[int, int], list[int]]
) -> dict[tuple[int, int], list[tuple[int, ...]]]:
    """Return up to MAX_ROUTES edge-disjoint routes by pair of clusters, the shortest first.

    Args:
        num_clusters: number of clusters.
        links_between: links of each pair of neighbouring clusters.
    """
    if not links_between:
        return {}
    cluster_pairs = np.array(sorted(links_between), np.int32)
    network = Topology(
        name="clusters",
        node_names=tuple(str(cluster) for cluster in range(num_clusters)),
        link_source=cluster_pairs[:, 0],
        link_target=cluster_pairs[:, 1],
        capacity=np.ones(len(cluster_pairs)),
        latency=np.ones(len(cluster_pairs)),
        coordinates=np.full((num_clusters, 2), np.nan),
    )
    paths = compute_paths(network, num_paths=MAX_ROUTES, cache=False)
    routes: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for d, (source, target) in enumerate(paths.pairs.tolist()):
        path_links = [paths.links_of(d, k) for k in range(int(paths.mask[d].sum()))]
        if path_links:
            routes[source, target] = [
                (source, *cluster_pairs[path, 1].tolist()) for path in path_links
            ]
    return routes
