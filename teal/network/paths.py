"""Finding candidate paths, once: the result is cached on disk by content."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from tqdm import tqdm

from teal.errors import InputError
from teal.memory import require
from teal.network import path_search
from teal.network.packed import MOST_PATHS
from teal.network.path_file import check_pairs, load_paths, save_paths
from teal.network.path_set import PathSet
from teal.network.shortest import csr, shortest_trees
from teal.network.topology import FloatArray, IntArray, Topology
from teal.network.trie import Trie
from teal.storage import cache_dir, content_key

_FORMAT = 3  # part of every cache key: raise it when the search or the file changes
_SAMPLE, _LARGE = 8, 20_000_000  # sources; places of paths above which it is worth sampling
_PER_PAIR, _PER_PLACE, _PER_NODE, _BASE = 70, 48, 32, 1 << 29  # bytes, fitted to peaks that were measured
_CHUNK = 64  # sources per call of the search kernel: one step of the progress bar


class PathMethod(StrEnum):
    """How the K paths of a demand are chosen."""

    DISJOINT = "edge-disjoint"
    YEN = "yen"


class PathWeight(StrEnum):
    """What makes a path short."""

    HOPS = "hops"
    LATENCY = "latency"
    INVERSE_CAPACITY = "inverse-capacity"


def compute_paths(
    topology: Topology,
    pairs: IntArray | None = None,
    *,
    num_paths: int = 4,
    method: PathMethod = PathMethod.DISJOINT,
    weight: PathWeight = PathWeight.HOPS,
    cache: bool = True,
    progress: bool = False,
) -> PathSet:
    """Find up to K paths for each pair.

    ``edge-disjoint`` takes a shortest path, removes its links, and goes on; ``yen`` takes the K
    shortest loopless paths (Yen, "Finding the K shortest loopless paths in a network", 1971).

    Args:
        topology: where.
        pairs: (D, 2) node index pairs, sorted by source and target; None for all N (N - 1).
        num_paths: K.
        method: edge-disjoint or Yen's.
        weight: what the shortest path minimises.  Inverse capacity leaves failed links out.
        cache: keep the result on disk and take it from there.  The key is the content of whatever
            the search reads, so that a change of capacities costs nothing under hops or latency.
        progress: show a bar.

    Raises:
        InputError: ``num_paths`` below 1, or pairs that are not sorted or not in the topology.
    """
    if not 1 <= num_paths <= MOST_PATHS:
        raise InputError("paths", "K", f"at least 1 path a demand and at most {MOST_PATHS}", num_paths)
    pairs = all_pairs(topology) if pairs is None else np.ascontiguousarray(pairs, dtype=np.int32)
    check_pairs(topology, pairs)
    weights = _link_weights(topology, weight)
    key = content_key(_FORMAT, topology.shape_key(), pairs, num_paths, method.value, weight.value, weights)
    file = cache_dir("paths") / f"{key}.npz" if cache else None
    if file is not None and file.exists():
        try:
            return load_paths(file, topology)
        except InputError:
            file.unlink(missing_ok=True)  # a damaged cache entry is made again
    _check_memory(topology, pairs, num_paths, method, weight, weights)
    paths = _search(topology, pairs, num_paths, method, weight, weights, key, progress)
    if file is not None:
        save_paths(file, paths)
    return paths


def all_pairs(topology: Topology) -> IntArray:
    """Every ordered pair of distinct nodes: (N (N - 1), 2)."""
    count = topology.num_nodes
    source, target = np.divmod(np.arange(count * count, dtype=np.int64), count)
    return np.stack([source, target], 1)[source != target].astype(np.int32)


def memory_needed(pairs: int, num_paths: int, trie_nodes: float) -> int:
    """Bytes, about, to find the paths of so many pairs and allocate one matrix over them."""
    return int(_BASE + _PER_PAIR * pairs + _PER_PLACE * pairs * num_paths + _PER_NODE * trie_nodes)


def _check_memory(
    topology: Topology, pairs: IntArray, num_paths: int, method: PathMethod, weight: PathWeight, weights: FloatArray
) -> None:
    """Refuse what would not fit, judged by the tries of a few sources."""
    if len(pairs) * num_paths < _LARGE:
        return
    sources = np.unique(pairs[:, 0])
    few = sources[np.unique(np.linspace(0, len(sources) - 1, _SAMPLE).astype(int))]
    own = pairs[np.isin(pairs[:, 0], few)]
    sample = _search(topology, own, num_paths, method, weight, weights, "", progress=False)
    nodes = sample.trie.num_nodes / len(own)
    needed = memory_needed(len(pairs), num_paths, nodes * len(pairs))
    least = memory_needed(len(pairs), 1, min(1.0, nodes) * len(pairs)) / (1 << 30)
    remedy = f"fewer pairs (those that carry traffic) or a smaller K would need less (K = 1: {least:.1f} GiB)"
    require(f"paths of {len(pairs):,} pairs, K = {num_paths}", needed, remedy)


def _link_weights(topology: Topology, weight: PathWeight) -> FloatArray:
    if weight is PathWeight.HOPS:
        return np.ones(topology.num_links)
    if weight is PathWeight.LATENCY:
        return topology.latency
    with np.errstate(divide="ignore"):
        return 1.0 / topology.capacity  # infinite for a failed link: never taken


def _search(
    topology: Topology,
    pairs: IntArray,
    num_paths: int,
    method: PathMethod,
    weight: PathWeight,
    weights: FloatArray,
    key: str,
    progress: bool,
) -> PathSet:
    sources, starts = np.unique(pairs[:, 0], return_index=True)
    demand_ptr = np.append(starts, len(pairs)).astype(np.int32)
    out_ptr, out_link = csr(topology.link_source, topology.num_nodes)
    tail, head = topology.link_source, topology.link_target
    if method is PathMethod.YEN:
        code = path_search.YEN
    elif weight is PathWeight.HOPS:
        code = path_search.HOPS_DISJOINT
    else:
        code = path_search.WEIGHTED_DISJOINT
    potential = np.zeros((1, 1))
    in_ptr, in_link = csr(topology.link_target, topology.num_nodes)
    if code != path_search.HOPS_DISJOINT:
        everyone = np.arange(topology.num_nodes, dtype=np.int32)
        potential, _ = shortest_trees(topology.num_nodes, head, tail, weights, everyone)  # to everyone
        potential *= 1 - 1e-9  # still a lower bound, and consistent in spite of rounding
    leaf = np.empty((len(pairs), num_paths), dtype=np.int32)
    parents: list[IntArray] = []
    links: list[IntArray] = []
    counts_of_all: list[IntArray] = []
    room = 4 * topology.num_nodes
    with tqdm(total=len(sources), desc="paths", unit="source", disable=not progress) as bar:
        for begin in range(0, len(sources), _CHUNK):
            chunk = sources[begin : begin + _CHUNK]
            first, last = demand_ptr[begin], demand_ptr[begin + len(chunk)]
            ptr = demand_ptr[begin : begin + len(chunk) + 1] - first
            counts = np.full(len(chunk), -1, dtype=np.int32)
            while (counts < 0).any():
                parent = np.empty((len(chunk), room), dtype=np.int32)
                link = np.empty((len(chunk), room), dtype=np.int32)
                path_search.search_sources(
                    code, chunk, ptr, np.ascontiguousarray(pairs[first:last, 1]), num_paths, out_ptr, out_link,
                    in_ptr, in_link, tail, head, weights, potential, parent, link, counts, leaf[first:last],
                )  # fmt: skip
                room = room if (counts >= 0).all() else 2 * room
            offset = sum(map(len, parents))
            for i, count in enumerate(counts):
                below = slice(ptr[i] + first, ptr[i + 1] + first)
                leaf[below] = np.where(leaf[below] >= 0, leaf[below] + offset, -1)
                parents.append(np.where(parent[i, :count] >= 0, parent[i, :count] + offset, -1).astype(np.int32))
                links.append(link[i, :count].copy())
                offset += int(count)
            counts_of_all.append(counts)
            bar.update(len(chunk))
    source_ptr = np.concatenate([[0], np.cumsum(np.concatenate(counts_of_all))]).astype(np.int32)
    trie = Trie(np.concatenate(parents), np.concatenate(links), source_ptr)
    return PathSet(pairs, leaf, trie, demand_ptr, topology.num_links, key, topology.shape_key())
