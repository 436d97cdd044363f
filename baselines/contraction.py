"""What NCFlow makes of a network once: clusters, paths inside each, links between them."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from baselines.clusters import partition
from baselines.matrix import Array
from teal.network import PathSet, Topology, compute_paths

LinkPath = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Cluster:
    """Nodes, the links between them, and up to K edge-disjoint paths between any two, all of them inside.

    Attributes:
        nodes: (n,) of the network; links: (m,) of the network.
        paths: between all pairs of the cluster's own node numbers; None of a single node.
    """

    nodes: Array
    links: Array
    paths: PathSet | None

    @cached_property
    def routes(self) -> dict[tuple[int, int], list[LinkPath]]:
        """The paths from one node of the network to another, as its links."""
        found: dict[tuple[int, int], list[LinkPath]] = {}
        if self.paths is None:
            return found
        for d, (source, target) in enumerate(self.paths.pairs.tolist()):
            ends = int(self.nodes[source]), int(self.nodes[target])
            count = int(self.paths.mask[d].sum())
            found[ends] = [tuple(self.links[self.paths.path_links(d, k)].tolist()) for k in range(count)]
        return found

    def between(self, source: int, target: int) -> list[LinkPath]:
        """Paths between two nodes of the network; from a node to itself one without links."""
        return [()] if source == target else self.routes[source, target]


@dataclasses.dataclass(frozen=True, eq=False)
class Contraction:
    """A partition of a network.

    Attributes:
        owner: (N,) cluster of each node.
        clusters: by number.
        between: links from one cluster to another, the largest first.
    """

    owner: Array
    clusters: tuple[Cluster, ...]
    between: dict[tuple[int, int], list[int]]


def contract(topology: Topology, works: Array, count: int, method: str, seed: int, num_paths: int) -> Contraction:
    """Partition the links that work, (E,) true, into about ``count`` clusters."""
    alive = np.flatnonzero(works)
    if not len(alive):
        alone = np.arange(topology.num_nodes)
        return Contraction(alone, tuple(Cluster(np.array([node]), alive, None) for node in alone), {})
    network = dataclasses.replace(
        topology, link_source=topology.link_source[alive], link_target=topology.link_target[alive],
        capacity=topology.capacity[alive], latency=topology.latency[alive],
    )  # fmt: skip
    owner = partition(network, count, method, seed)
    clusters = []
    for number in range(int(owner.max()) + 1):
        nodes = np.flatnonzero(owner == number)
        own = (owner[network.link_source] == number) & (owner[network.link_target] == number)
        if len(nodes) == 1:
            clusters.append(Cluster(nodes, alive[own], None))
            continue
        names = tuple(topology.node_names[node] for node in nodes)
        inside = dataclasses.replace(
            network, node_names=names, coordinates=topology.coordinates[nodes],
            link_source=np.searchsorted(nodes, network.link_source[own]).astype(np.int32),
            link_target=np.searchsorted(nodes, network.link_target[own]).astype(np.int32),
            capacity=network.capacity[own], latency=network.latency[own],
        )  # fmt: skip
        clusters.append(Cluster(nodes, alive[own], compute_paths(inside, num_paths=num_paths, cache=False)))
    between: dict[tuple[int, int], list[int]] = {}
    for link in sorted(alive.tolist(), key=lambda e: -topology.capacity[e]):
        ends = int(owner[topology.link_source[link]]), int(owner[topology.link_target[link]])
        if ends[0] != ends[1]:
            between.setdefault(ends, []).append(link)
    return Contraction(owner, tuple(clusters), between)
