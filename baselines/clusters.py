"""Partitions of a network into strongly connected clusters, by one of three methods."""

from __future__ import annotations

import heapq

import numpy as np
import scipy.sparse as sp
from scipy.cluster.vq import kmeans2
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh

from baselines.matrix import Array
from teal.network import Topology

METHODS = ("modularity", "spectral", "leaders")


def partition(
    topology: Topology, num_clusters: int, method: str = "modularity", seed: int = 0
) -> Array:
    """Return the cluster (N,) of each node; every cluster is strongly connected by its own links.

    If a method returns a cluster that is not connected, each of its components becomes a cluster,
    so that there may be more than ``num_clusters``.

    Args:
        topology: the network.
        num_clusters: approximate number of clusters.
        method: ``modularity`` (greedy agglomeration on capacities; Clauset, Newman and Moore,
            2004), ``spectral`` (normalised Laplacian, k-means on the rows of its eigenvectors; Ng,
            Jordan and Weiss, 2001) or ``leaders`` (random nodes; every other node joins the nearest
            in hops).
        seed: seed of ``spectral`` and ``leaders``.
    """
    num_clusters = max(1, min(num_clusters, topology.num_nodes))
    weight = _symmetric_capacity(topology)
    match method:
        case "modularity":
            cluster = _modularity(weight, num_clusters)
        case "spectral":
            cluster = _spectral(weight, num_clusters, seed)
        case _:
            cluster = _leaders(weight, num_clusters, seed)
    return _split_into_components(topology, cluster)


def _symmetric_capacity(topology: Topology) -> sp.csr_array:
    """Return the matrix (N, N) of the sums of the capacities of both directions, Gbit/s."""
    shape = (topology.num_nodes, topology.num_nodes)
    directed = sp.csr_array(
        (topology.capacity, (topology.link_source, topology.link_target)), shape=shape
    )
    return (directed + directed.T).tocsr()


def _modularity(weight: sp.csr_array, num_clusters: int) -> Array:
    """Return clusters (N,) by greedy agglomeration on modularity.

    Until ``num_clusters`` remain, the two neighbouring clusters with the largest gain in modularity
    are merged.  With w[i, j] the share of all capacity between clusters i and j, and a[i] the sum
    of these shares at cluster i, the gain of a merger is 2 (w[i, j] - a[i] a[j]).

    Args:
        weight: (N, N) symmetric capacity between nodes.
        num_clusters: number of clusters at which merging stops.
    """
    num_nodes = weight.shape[0]
    degree = np.asarray(weight.sum(1)).reshape(-1) / max(float(weight.sum()), 1e-300)
    neighbours = _capacity_shares(weight)
    cluster = np.arange(num_nodes)
    version = [0] * num_nodes
    num_remaining = num_nodes
    # Priority queue of (-gain, i, j, version of i, version of j); an entry is stale if a version
    # has changed.
    queue = [
        (-(2 * w - 2 * degree[i] * degree[j]), i, j, 0, 0)
        for i in range(num_nodes)
        for j, w in neighbours[i].items()
        if i < j
    ]
    heapq.heapify(queue)
    # Merge j into i, then queue the new gains of i.
    while num_remaining > num_clusters and queue:
        _, i, j, version_i, version_j = heapq.heappop(queue)
        if version[i] != version_i or version[j] != version_j:
            continue
        cluster[cluster == j] = i
        _merge_neighbours(neighbours, i, j)
        degree[i] += degree[j]
        version[i] += 1
        version[j] = -1
        num_remaining -= 1
        for k, w in neighbours[i].items():
            gain = 2 * w - 2 * degree[i] * degree[k]
            heapq.heappush(queue, (-gain, i, k, version[i], version[k]))
    return cluster


def _capacity_shares(weight: sp.csr_array) -> list[dict[int, float]]:
    """Return for each node a dictionary from its neighbours to their matrix entry, as a fraction
    of the sum of all entries.

    Args:
        weight: (N, N) symmetric capacity between nodes.
    """
    total = float(weight.sum())
    neighbours: list[dict[int, float]] = [{} for _ in range(weight.shape[0])]
    coo = weight.tocoo()
    for i, j, w in zip(coo.row.tolist(), coo.col.tolist(), coo.data.tolist(), strict=True):
        if i != j:
            neighbours[i][j] = neighbours[i].get(j, 0.0) + w / total
    return neighbours


def _merge_neighbours(neighbours: list[dict[int, float]], i: int, j: int) -> None:
    """Merge cluster j into cluster i, in place: add the weights of its edges to those of i.

    Args:
        neighbours: for each cluster, neighbour -> share of all capacity between the two (written).
        i: cluster that stays.
        j: cluster that is merged, and has no neighbours afterwards.
    """
    for k, w in neighbours[j].items():
        if k != i:
            neighbours[i][k] = neighbours[i].get(k, 0.0) + w
            neighbours[k].pop(j)
            neighbours[k][i] = neighbours[i][k]
    neighbours[i].pop(j)
    neighbours[j].clear()


def _spectral(weight: sp.csr_array, num_clusters: int, seed: int) -> Array:
    """Return clusters (N,) by k-means on the normalised rows of leading eigenvectors.

    The matrix is D^-1/2 W D^-1/2, with the capacities W (N, N) and their row sums D.

    Args:
        weight: (N, N) symmetric capacity between nodes.
        num_clusters: number of clusters.
        seed: seed of the start of the eigenvectors and of k-means.
    """
    num_nodes = weight.shape[0]
    # eigsh computes fewer than N eigenvectors: for so many clusters every node is one.
    if num_clusters >= num_nodes - 1:
        return np.arange(num_nodes)
    degree = np.asarray(weight.sum(1)).reshape(-1)
    scale = sp.diags_array(1 / np.sqrt(np.maximum(degree, 1e-300)))
    start = np.random.default_rng(seed).random(num_nodes)
    _, vectors = eigsh(sp.csr_array(scale @ weight @ scale), k=num_clusters, which="LA", v0=start)
    # Entries of each node in the leading eigenvectors, normalised to length 1.
    rows = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
    return np.asarray(kmeans2(rows, num_clusters, minit="++", seed=seed)[1])


def _leaders(weight: sp.csr_array, num_clusters: int, seed: int) -> Array:
    """Return clusters (N,) by one breadth-first search from all of ``num_clusters`` random leaders.

    A node that no leader reaches is a cluster by itself.

    Args:
        weight: (N, N) symmetric matrix, nonzero between neighbours.
        num_clusters: number of leaders.
        seed: seed of the choice of leaders.
    """
    num_nodes = weight.shape[0]
    cluster = np.full(num_nodes, -1)
    queue = np.random.default_rng(seed).choice(num_nodes, num_clusters, replace=False).tolist()
    cluster[queue] = np.arange(num_clusters)
    # The loop appends to the queue.
    for node in queue:
        for neighbour in weight.indices[weight.indptr[node] : weight.indptr[node + 1]].tolist():
            if cluster[neighbour] < 0:
                cluster[neighbour] = cluster[node]
                queue.append(neighbour)
    unreached = cluster < 0
    cluster[unreached] = num_clusters + np.arange(int(unreached.sum()))
    return cluster


def _split_into_components(topology: Topology, cluster: Array) -> Array:
    """Return the strongly connected component (N,) of each node within its cluster."""
    inside = cluster[topology.link_source] == cluster[topology.link_target]
    shape = (topology.num_nodes, topology.num_nodes)
    links = topology.link_source[inside], topology.link_target[inside]
    graph = sp.csr_array((np.ones(int(inside.sum())), links), shape=shape)
    return np.asarray(connected_components(graph, directed=True, connection="strong")[1])
