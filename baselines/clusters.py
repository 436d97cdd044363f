"""Partitions of a network into clusters, each connected in itself: three ways."""

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


def partition(topology: Topology, clusters: int, method: str = "modularity", seed: int = 0) -> Array:
    """(N,) cluster of each node, numbered from 0; every cluster is connected over links in both directions.

    Where a method leaves a cluster in pieces, each piece becomes one of its own, so that there may be more than asked.

    Args:
        clusters: how many, about.
        method: ``modularity`` (greedy agglomeration on capacities; Clauset, Newman and Moore, 2004), ``spectral``
            (normalised Laplacian, k-means on the rows of its eigenvectors; Ng, Jordan and Weiss, 2001) or ``leaders``
            (random nodes, every other one joins the nearest).
        seed: of the last two.
    """
    clusters = max(1, min(clusters, topology.num_nodes))
    weight = _symmetric(topology)
    match method:
        case "modularity":
            found = _modularity(weight, clusters)
        case "spectral":
            found = _spectral(weight, clusters, seed)
        case _:
            found = _leaders(weight, clusters, seed)
    return _connected(topology, found)


def _symmetric(topology: Topology) -> sp.csr_array:
    """(N, N) capacities of both directions together."""
    shape = (topology.num_nodes, topology.num_nodes)
    one_way = sp.csr_array((topology.capacity, (topology.link_source, topology.link_target)), shape=shape)
    return (one_way + one_way.T).tocsr()


def _modularity(weight: sp.csr_array, clusters: int) -> Array:
    """Merge the two neighbours that gain most modularity until ``clusters`` are left."""
    nodes, total = weight.shape[0], float(weight.sum())
    degree = np.asarray(weight.sum(1)).reshape(-1) / max(total, 1e-300)
    near: list[dict[int, float]] = [{} for _ in range(nodes)]
    coo = weight.tocoo()
    for i, j, w in zip(coo.row.tolist(), coo.col.tolist(), coo.data.tolist(), strict=True):
        if i != j:
            near[i][j] = near[i].get(j, 0.0) + w / total
    owner, version, alive = np.arange(nodes), [0] * nodes, nodes
    queue = [
        (-(2 * w - 2 * degree[i] * degree[j]), i, j, 0, 0) for i in range(nodes) for j, w in near[i].items() if i < j
    ]
    heapq.heapify(queue)
    while alive > clusters and queue:
        _, i, j, seen_i, seen_j = heapq.heappop(queue)
        if version[i] != seen_i or version[j] != seen_j:
            continue
        owner[owner == j] = i
        for k, w in near[j].items():
            if k != i:
                near[i][k] = near[i].get(k, 0.0) + w
                near[k].pop(j)
                near[k][i] = near[i][k]
        near[i].pop(j)
        near[j].clear()
        degree[i] += degree[j]
        version[i] += 1
        version[j] = -1
        alive -= 1
        for k, w in near[i].items():
            gain = 2 * w - 2 * degree[i] * degree[k]
            heapq.heappush(queue, (-gain, i, k, version[i], version[k]))
    return owner


def _spectral(weight: sp.csr_array, clusters: int, seed: int) -> Array:
    nodes = weight.shape[0]
    if clusters >= nodes - 1:
        return np.arange(nodes)
    degree = np.asarray(weight.sum(1)).reshape(-1)
    scale = sp.diags_array(1 / np.sqrt(np.maximum(degree, 1e-300)))
    start = np.random.default_rng(seed).random(nodes)
    _, vectors = eigsh(sp.csr_array(scale @ weight @ scale), k=clusters, which="LA", v0=start)
    rows = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
    return np.asarray(kmeans2(rows, clusters, minit="++", seed=seed)[1])


def _leaders(weight: sp.csr_array, clusters: int, seed: int) -> Array:
    """Breadth first from all leaders at once."""
    nodes = weight.shape[0]
    owner = np.full(nodes, -1)
    queue = np.random.default_rng(seed).choice(nodes, clusters, replace=False).tolist()
    owner[queue] = np.arange(clusters)
    for node in queue:  # grows while it is read
        for other in weight.indices[weight.indptr[node] : weight.indptr[node + 1]].tolist():
            if owner[other] < 0:
                owner[other] = owner[node]
                queue.append(other)
    lost = owner < 0
    owner[lost] = clusters + np.arange(int(lost.sum()))
    return owner


def _connected(topology: Topology, owner: Array) -> Array:
    """Numbers from 0, one for each piece from every node of which all others of it can be reached inside it."""
    inside = owner[topology.link_source] == owner[topology.link_target]
    shape = (topology.num_nodes, topology.num_nodes)
    ends = topology.link_source[inside], topology.link_target[inside]
    graph = sp.csr_array((np.ones(int(inside.sum())), ends), shape=shape)
    return np.asarray(connected_components(graph, directed=True, connection="strong")[1])
