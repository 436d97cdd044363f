"""Plain references for shortest paths with equal-cost multipath, over networkx; slow and simple."""

from __future__ import annotations

import dataclasses

import networkx as nx
import numpy as np

from teal.network import Topology
from teal.runtime.arrays import FloatArray
from teal.testing import random_topology


def random_metrics(topology: Topology, seed: int, most: int = 4) -> FloatArray:
    """(E,) integers from 1 to ``most``, few of them, so that many paths have equal cost."""
    return np.random.default_rng(seed).integers(1, most + 1, topology.num_links).astype(np.float64)


def network_with_parallels(seed: int, nodes: int = 8) -> Topology:
    """A random network in which two links have a parallel one; of odd seeds, one router carries no
    transit traffic."""
    topology = random_topology(seed, nodes)
    chosen = np.random.default_rng(seed).integers(0, topology.num_links, 2)
    topology = topology.with_links(np.concatenate([np.arange(topology.num_links), chosen]))
    return without_transit(topology, seed % nodes) if seed % 2 else topology


def without_transit(topology: Topology, node: int) -> Topology:
    """The network in which this node carries nothing but traffic from and to itself."""
    return dataclasses.replace(topology, no_transit=np.arange(topology.num_nodes) == node)


def segment_shares(
    topology: Topology, metric: FloatArray, weight: FloatArray | None = None
) -> FloatArray:
    """(N, N, E) g(t, u, e): share of what goes from u to t that passes link e; NaN without a
    path."""
    nodes, links = topology.num_nodes, topology.num_links
    weight = np.ones(links) if weight is None else weight
    stubs = np.zeros(nodes, dtype=bool) if topology.no_transit is None else topology.no_transit
    shares = np.full((nodes, nodes, links), np.nan)
    for t in range(nodes):
        # Whoever sends to t enters no other router that carries no transit traffic.
        entered = stubs[topology.link_target] & (topology.link_target != t)
        live = [
            e
            for e in range(links)
            if topology.capacity[e] > 0 and np.isfinite(metric[e]) and not entered[e]
        ]
        graph = nx.DiGraph()
        graph.add_nodes_from(range(nodes))
        for e in live:
            ends = int(topology.link_source[e]), int(topology.link_target[e])
            before = graph.edges[ends]["metric"] if graph.has_edge(*ends) else np.inf
            graph.add_edge(*ends, metric=min(metric[e], before))
        distance = dict(nx.all_pairs_dijkstra_path_length(graph, weight="metric"))
        for u in sorted(
            (u for u in range(nodes) if t in distance[u]), key=lambda u: distance[u][t]
        ):
            shares[t, u] = 0
            if u == t:
                continue
            hops = [
                e
                for e in live
                if topology.link_source[e] == u
                and t in distance[int(topology.link_target[e])]
                and distance[u][t] == metric[e] + distance[int(topology.link_target[e])][t]
            ]
            for e in hops:
                part = weight[e] / sum(weight[hop] for hop in hops)
                shares[t, u] += part * shares[t, int(topology.link_target[e])]
                shares[t, u, e] += part
    return shares


def links_of(topology: Topology) -> dict[tuple[str, str], tuple[float, int | None]]:
    """Capacity and metric of each link, by the names of its ends."""
    names, metric = topology.node_names, topology.metric
    return {
        (names[s], names[t]): (
            float(topology.capacity[e]),
            None if metric is None else int(metric[e]),
        )
        for e, (s, t) in enumerate(zip(topology.link_source, topology.link_target, strict=True))
    }
