"""Candidate path search with a cache on disk.

:func:`compute_paths` finds up to K paths per node pair: edge-disjoint paths, Yen's K shortest
loopless paths (Yen 1971), or paths that survive failures.  Compiled kernels
(:mod:`teal.network.path_search`) search source by source and build a path trie
(:mod:`teal.network.trie`).  The cache key is a hash of the search's inputs.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from teal.errors import InputError
from teal.network import path_search
from teal.network.failures import Groups, make_groups
from teal.network.packed import MAX_PATHS
from teal.network.path_changes import with_more_paths
from teal.network.path_file import check_pairs, load_paths, save_paths
from teal.network.path_links import path_links_of
from teal.network.path_options import FIRST_PATHS, PathMethod, PathWeight
from teal.network.path_set import PathSet
from teal.network.shortest import make_graph, shortest_trees
from teal.network.survivable import penalties, search_survivable
from teal.network.topology import Topology
from teal.network.trie import Trie
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.memory import require
from teal.runtime.parallel import threads_for
from teal.runtime.progress import progress_bar
from teal.runtime.storage import cache_dir, content_key

# Part of every cache key: increment it when the search or the file format changes.
_CACHE_VERSION = 4
# Minimum D * K for which memory is estimated before the search; smaller searches fit into every
# machine.
_MIN_SLOTS_OF_ESTIMATE = 20_000_000
# Evenly spaced sources whose tries are built for that estimate; few, since each costs a search.
_NUM_SAMPLE_SOURCES = 8
# Peak resident bytes of a process that finds the paths and solves one matrix, fitted to measured
# peaks.
_BYTES_PER_PAIR = 70
# Bytes for each of the D * K path slots.
_BYTES_PER_PATH_SLOT = 48
_BYTES_PER_TRIE_NODE = 32
# Interpreter and libraries: 512 MiB.
_BYTES_FIXED = 1 << 29
# Sources in a call of the search kernel: enough for all threads, and adapted so that a call takes
# about _TARGET_CALL_S seconds, since progress is reported and a search can end between two calls.
_MIN_SOURCES = 8
_MAX_SOURCES = 64
_TARGET_CALL_S = 0.5
# Minimum demands x links (0.1 s) for which a search uses all threads.
_MIN_PARALLEL_VISITS = 20_000_000
# A search of this many seconds is long enough to extrapolate to all pairs.
_MIN_TIMED_S = 0.2
# Minimum weight over the maximum potential, below which rounding could reorder nodes.
_MIN_WEIGHT_TO_POTENTIAL = 1e-6
# Relative margin that keeps A*'s potential a lower bound in spite of rounding.
_RELATIVE_POTENTIAL_MARGIN = 1e-9


_Named = TypeVar("_Named", bound=StrEnum)


def compute_paths(
    topology: Topology,
    pairs: IntArray | None = None,
    *,
    num_paths: int = FIRST_PATHS,
    method: PathMethod | str = PathMethod.DISJOINT,
    weight: PathWeight | str = PathWeight.HOPS,
    groups: Sequence[Sequence[int]] | None = None,
    cache: bool = True,
    progress: bool = False,
    report: Callable[[float], None] | None = None,
) -> PathSet:
    """Find up to K candidate paths for each pair of nodes.

    The methods are:

    - ``edge-disjoint``: take a shortest path, remove its cables (all links between two nodes) and
      groups, and repeat.  Where no path is left, remove only the links of the paths found, so that
      parallel links of their cables can be used;
    - ``yen``: the K shortest loopless paths (Yen, "Finding the K shortest loopless paths in a
      network", 1971);
    - ``survivable``: paths that do not all fail with any one group of links, where the network has
      such paths, with as few shared groups as possible (see :mod:`teal.network.survivable`);
    - ``maximally-disjoint``: the edge-disjoint paths, filled up to K with survivable paths, which
      may share links that no path can avoid.

    Args:
        topology: the network.
        pairs: (D, 2) node index pairs, sorted by source and target; None for all N (N - 1).
        num_paths: K, 1 to MAX_PATHS.
        method: search method, or its name.
        weight: link weight: 1, latency in ms, or 1 / capacity.  With 1 / capacity a failed link
            (capacity 0) is never used; the others ignore capacities, so that the paths stay valid
            after a failure.
        groups: indices of links that fail together. Survivable paths survive the failure of each
            group; None: of each cable, in both directions. Edge-disjoint paths share no group and
            no cable. Maximally disjoint paths use the groups in both ways, and Yen's paths ignore
            them.
        cache: read and write the cache on disk.  The key is a hash of the search's inputs, which
            include capacities only for inverse capacity: other paths are reused when capacities
            change.
        progress: show a progress bar.
        report: callback with the completed fraction of the sources; an exception that it raises
            ends the search.

    Raises:
        InputError: ``num_paths`` out of range, an unknown method or weight, unsorted pairs or
            unknown nodes, or too little memory.
    """
    if str(num_paths) == "auto" or not 1 <= num_paths <= MAX_PATHS:
        expected = f"a number from 1 to {MAX_PATHS}; teal.choose_paths chooses paths for matrices"
        raise InputError("paths", "K", expected, num_paths)
    pairs = all_pairs(topology) if pairs is None else np.ascontiguousarray(pairs, dtype=np.int32)
    check_pairs(topology, pairs)
    request = _request(topology, num_paths, method, weight, groups)
    key = request.key(pairs)
    file = cache_file(key) if cache else None
    if file is not None and file.exists():
        try:
            return load_paths(file, topology)
        except InputError:
            # A damaged cache entry is computed again.
            file.unlink(missing_ok=True)
        except OSError:
            # Transient failure: keep the entry, since it may be readable later.
            pass
    # Search, and store the result for later calls.
    _check_memory(request, pairs)
    paths = _search(request, pairs, key, progress, report)
    if file is not None:
        save_paths(file, paths)
    return paths


def search_key(
    topology: Topology, pairs: IntArray, num_paths: int, method: PathMethod, weight: PathWeight
) -> str:
    """Return the content hash of the inputs of a path search, the key of its cache entry.

    Args:
        topology: the network.
        pairs: (D, 2) node index pairs, sorted by source and target.
        num_paths: K, 1 to MAX_PATHS.
        method: search method.
        weight: link weight of the search.
    """
    return _request(topology, num_paths, method, weight).key(pairs)


def all_pairs(topology: Topology) -> IntArray:
    """Return all ordered pairs of distinct nodes as an array (N (N - 1), 2), sorted by source and
    target.
    """
    num_nodes = topology.num_nodes
    source, target = np.divmod(np.arange(num_nodes * num_nodes, dtype=np.int64), num_nodes)
    return np.stack([source, target], 1)[source != target].astype(np.int32)


def memory_needed(num_pairs: int, num_paths: int, trie_nodes: float) -> int:
    """Estimate the bytes needed to find candidate paths and to allocate one matrix over them.

    Args:
        num_pairs: D.
        num_paths: K.
        trie_nodes: expected number of trie nodes of all sources together.
    """
    return int(
        _BYTES_FIXED
        + _BYTES_PER_PAIR * num_pairs
        + _BYTES_PER_PATH_SLOT * num_pairs * num_paths
        + _BYTES_PER_TRIE_NODE * trie_nodes
    )


def estimated_seconds(
    topology: Topology,
    *,
    num_paths: int = 4,
    method: PathMethod = PathMethod.DISJOINT,
    weight: PathWeight = PathWeight.HOPS,
) -> float:
    """Estimate the seconds that :func:`compute_paths` takes for all pairs, by extrapolation from
    samples.

    The number of sampled pairs doubles until a search takes a fifth of a second; at least two pairs
    are searched.  The time that the last doubling adds gives the time per further pair.

    Args:
        topology: the network.
        num_paths: K, 1 to MAX_PATHS.
        method: search method.
        weight: link weight of the search.
    """
    request = _request(topology, num_paths, method, weight)
    pairs = all_pairs(topology)
    num_sampled = 1
    previous_s = 0.0
    elapsed_s = 0.0
    # Double the number of sampled pairs until their search takes long enough.
    while elapsed_s < _MIN_TIMED_S and num_sampled < len(pairs):
        num_sampled = min(2 * num_sampled, len(pairs))
        sampled_pairs = pairs[np.unique(np.linspace(0, len(pairs) - 1, num_sampled).astype(int))]
        previous_s = elapsed_s
        begin = time.perf_counter()
        _search(request, sampled_pairs, "", progress=False)
        elapsed_s = time.perf_counter() - begin
    # The last doubling added half of the sampled pairs.
    seconds_per_pair = max(0.0, elapsed_s - previous_s) / max(1, num_sampled / 2)
    return elapsed_s + seconds_per_pair * (len(pairs) - num_sampled)


def forget(key: str) -> None:
    """Delete the cached results of :func:`compute_paths` and :func:`teal.choose_paths` under a key.

    Args:
        key: content hash of the search's inputs.
    """
    for suffix in (".npz", ".json"):
        cache_file(key).with_suffix(suffix).unlink(missing_ok=True)


def cache_file(key: str) -> Path:
    """Return the path of the cache file for the content hash of a search's inputs."""
    return cache_dir("paths") / f"{key}.npz"


class _Request(NamedTuple):
    """Settings of a path search, for any pairs.

    Attributes:
        topology: the network.
        num_paths: K, 1 to MAX_PATHS.
        method: search method.
        weight: kind of the link weight.
        link_weights: (E,) the link weights.
        groups: groups of links that fail together; None for methods that ignore them.
        merged_requests: searches whose paths are merged, in this order; () for a single search.
    """

    topology: Topology
    num_paths: int
    method: PathMethod
    weight: PathWeight
    link_weights: FloatArray
    groups: Groups | None
    merged_requests: tuple[_Request, ...] = ()

    def key(self, pairs: IntArray) -> str:
        """Return the content hash of the search's inputs, the key of its cache entry.

        Args:
            pairs: (D, 2) node index pairs.
        """
        group_key: tuple[Any, ...] = () if self.groups is None else tuple(self.groups)
        group_key += tuple(part.key(pairs) for part in self.merged_requests)
        return content_key(
            _CACHE_VERSION,
            self.topology.graph_key(),
            pairs,
            self.num_paths,
            self.method.value,
            self.weight.value,
            self.link_weights,
            *group_key,
        )


def _request(
    topology: Topology,
    num_paths: int,
    method: PathMethod | str,
    weight: PathWeight | str,
    groups: Sequence[Sequence[int]] | None = None,
) -> _Request:
    """Build the settings of a path search.

    Args:
        topology: the network.
        num_paths: K, 1 to MAX_PATHS.
        method: search method, or its name.
        weight: kind of the link weight, or its name.
        groups: indices of links that fail together; None for the cables only.

    Raises:
        InputError: an unknown method or weight.
    """
    method = _parse_member(PathMethod, "method", method)
    weight = _parse_member(PathWeight, "weight", weight)
    failure_groups = None
    merged_requests: tuple[_Request, ...] = ()
    if method is PathMethod.MAXIMALLY_DISJOINT:
        # Disjoint paths, filled up with survivable ones.
        methods = (PathMethod.DISJOINT, PathMethod.SURVIVABLE)
        merged_requests = tuple(
            _request(topology, num_paths, part_method, weight, groups) for part_method in methods
        )
    # Survive the failure of each given group, by default of each cable.
    if method is PathMethod.SURVIVABLE:
        failure_groups = make_groups(
            topology.cables() if groups is None else groups, topology.num_links
        )
    # Share no cable and none of the given groups.  Yen's paths ignore both.
    elif method is PathMethod.DISJOINT:
        failure_groups = make_groups([*topology.cables(), *(groups or ())], topology.num_links)
    weights = link_weights(topology, weight)
    return _Request(topology, num_paths, method, weight, weights, failure_groups, merged_requests)


def _parse_member(enumeration: type[_Named], option: str, name: str) -> _Named:
    """Return the member of an enumeration with a given name.

    Args:
        enumeration: the enumeration.
        option: name of the option, for messages.
        name: name of the member.

    Raises:
        InputError: the name is unknown.
    """
    try:
        return enumeration(name)
    except ValueError:
        raise InputError("paths", option, " or ".join(enumeration), repr(name)) from None


def _check_memory(request: _Request, pairs: IntArray) -> None:
    """Raise InputError if the search needs too much memory, by an estimate from the tries of a few
    sources.

    Args:
        request: settings of the search.
        pairs: (D, 2) node index pairs, sorted by source and target.
    """
    num_paths = request.num_paths
    if len(pairs) * num_paths < _MIN_SLOTS_OF_ESTIMATE:
        return
    # Search the pairs of evenly spread sources, and extrapolate their number of trie nodes.
    sources = np.unique(pairs[:, 0])
    sampled_sources = sources[
        np.unique(np.linspace(0, len(sources) - 1, _NUM_SAMPLE_SOURCES).astype(int))
    ]
    sample_pairs = pairs[np.isin(pairs[:, 0], sampled_sources)]
    sample_paths = _search(request, sample_pairs, "", progress=False)
    trie_nodes_per_pair = sample_paths.trie.num_nodes / len(sample_pairs)
    needed_bytes = memory_needed(len(pairs), num_paths, trie_nodes_per_pair * len(pairs))
    # Memory with K = 1, for the message: with all pairs, a trie is then a shortest-path tree, with
    # one node for each pair.
    minimum_gib = memory_needed(len(pairs), 1, min(1.0, trie_nodes_per_pair) * len(pairs)) / (
        1 << 30
    )
    remedy = (
        "use fewer pairs (those that carry traffic) or a smaller K (K = 1 needs "
        f"{minimum_gib:.1f} GiB)"
    )
    require(f"paths of {len(pairs):,} pairs, K = {num_paths}", needed_bytes, remedy)


def link_weights(topology: Topology, weight: PathWeight) -> FloatArray:
    """Return the weight (E,) of each link in a path search: 1, latency in ms, or 1 / capacity.

    With 1 / capacity, the weight of a failed link (capacity 0) is infinite.

    Args:
        topology: the network.
        weight: kind of the link weight.
    """
    if weight is PathWeight.HOPS:
        return np.ones(topology.num_links)
    if weight is PathWeight.LATENCY:
        return topology.latency
    with np.errstate(divide="ignore"):
        # Infinite for a failed link, which no path uses then.
        return 1.0 / topology.capacity


def _search(
    request: _Request,
    pairs: IntArray,
    key: str,
    progress: bool,
    report: Callable[[float], None] | None = None,
) -> PathSet:
    """Find paths without the cache: by one search, or by several whose paths are merged.

    Args:
        request: settings of the search.
        pairs: (D, 2) node index pairs, sorted by source and target.
        key: cache key, stored in the result; "" for a temporary sample.
        progress: show a progress bar.
        report: callback with the completed fraction of the search.
    """
    if not request.merged_requests:
        return _search_by_method(request, pairs, key, progress, report)
    # Search by one method after the other, then fill up the paths of the first with the others.
    path_sets: list[PathSet] = []
    for index, part in enumerate(request.merged_requests):

        def report_part(fraction: float, index: int = index) -> None:
            """Report the completed fraction of the whole search, from that of the current part."""
            if report is not None:
                report((index + fraction) / len(request.merged_requests))

        path_sets.append(_search_by_method(part, pairs, key, progress, report_part))
    merged = path_sets[0]
    for other_paths in path_sets[1:]:
        merged = _fill_up(merged, other_paths, request.num_paths)
    return dataclasses.replace(merged, key=key)


def _fill_up(paths: PathSet, more: PathSet, num_paths: int) -> PathSet:
    """Append the paths of ``more``, in order, to those of each demand until it has K paths.

    Args:
        paths: paths of D demands.
        more: further paths of the same demands; duplicates are skipped.
        num_paths: K.
    """
    more_path_links = path_links_of(more)
    # (D, K') position of each further path in the CSR arrays, -1 where there is none.
    path_index = np.full(more.mask.shape, -1, dtype=np.int64)
    path_index.reshape(-1)[more_path_links.slot] = np.arange(len(more_path_links.slot))
    hops = np.diff(more_path_links.link_ptr)
    # Append the k-th further path of all demands with fewer than K paths, for each k.
    for k in range(more.num_paths):
        is_incomplete = paths.mask.sum(1) < num_paths
        extended_demands = np.flatnonzero(is_incomplete & (path_index[:, k] >= 0))
        if not len(extended_demands):
            continue
        # CSR pointer (D + 1,) of the added paths: demand d adds a path of added_hops[d] links.
        added_paths = path_index[extended_demands, k]
        added_hops = np.zeros(paths.num_demands, dtype=np.int64)
        added_hops[extended_demands] = hops[added_paths]
        added_ptr = np.concatenate([[0], np.cumsum(added_hops)])
        # Positions of the added paths' links in the CSR arrays, path by path.  The arrays list the
        # links of a path from the last to the first; here they are from source to target.
        last_entry = np.repeat(
            more_path_links.link_ptr[added_paths + 1] - 1 + added_ptr[extended_demands],
            hops[added_paths],
        )
        link_entries = last_entry - np.arange(added_ptr[-1])
        paths = with_more_paths(
            paths, added_ptr, more_path_links.link[link_entries].astype(np.int32)
        )
    return paths


def _search_by_method(
    request: _Request,
    pairs: IntArray,
    key: str,
    progress: bool,
    report: Callable[[float], None] | None = None,
) -> PathSet:
    """Find the paths of all pairs with one method, in chunks of sources.

    Args:
        request: settings of a search by a single method.
        pairs: (D, 2) node index pairs, sorted by source and target.
        key: cache key, stored in the result; "" for a temporary sample.
        progress: show a progress bar.
        report: callback with the completed fraction of the sources.
    """
    # The demands of source s are demand_ptr[s]:demand_ptr[s + 1].
    sources, first_demands = np.unique(pairs[:, 0], return_index=True)
    demand_ptr = np.append(first_demands, len(pairs)).astype(np.int32)
    kernel = _Kernel(request)
    tries = _TrieList(len(pairs), request.num_paths)
    with progress_bar(total=len(sources), desc="paths", unit="source", disable=not progress) as bar:
        num_searched = 0
        chunk_size = _MIN_SOURCES
        while num_searched < len(sources):
            # Search from a chunk of sources, and append their tries.
            chunk = sources[num_searched : num_searched + chunk_size]
            call_begin = time.perf_counter()
            kernel.search(
                chunk, demand_ptr[num_searched : num_searched + len(chunk) + 1], pairs, tries
            )
            # Report progress.
            bar.update(len(chunk))
            num_searched += len(chunk)
            if report is not None:
                report(num_searched / len(sources))
            # Adapt the chunk size to the time of a call.
            is_short_call = time.perf_counter() - call_begin < _TARGET_CALL_S
            chunk_size = (
                min(2 * chunk_size, _MAX_SOURCES)
                if is_short_call
                else max(chunk_size // 2, _MIN_SOURCES)
            )
    topology = request.topology
    return PathSet(
        pairs,
        tries.leaves,
        tries.trie(),
        demand_ptr,
        topology.num_links,
        key,
        topology.graph_key(),
    )


class _TrieList:
    """Path tries of the sources searched so far, with node indices of the whole path set.

    Args:
        num_demands: D.
        num_paths: K.

    Attributes:
        leaves: (D, K) last trie node of each path, -1 for none; written source by source.
    """

    def __init__(self, num_demands: int, num_paths: int) -> None:
        self.leaves = np.empty((num_demands, num_paths), dtype=np.int32)
        self._parents: list[IntArray] = []
        self._links: list[IntArray] = []
        self._node_counts: list[IntArray] = []

    def append(
        self, demand_ptr: IntArray, node_counts: IntArray, parent: IntArray, link: IntArray
    ) -> None:
        """Append the tries of n sources, whose nodes are numbered from 0 within each source.

        Args:
            demand_ptr: (n + 1,) the demands of source i are ``demand_ptr[i]:demand_ptr[i + 1]``;
                their rows of ``leaves`` hold node numbers within the source.
            node_counts: (n,) number of nodes of each trie.
            parent: (n, capacity) parent of each node, -1 for the source.
            link: (n, capacity) link that leads into each node.
        """
        leaves = self.leaves
        # Index of the first node of the next source in the whole trie.
        offset = sum(map(len, self._parents))
        # Convert node numbers within each source to indices of the whole trie.
        for i, num_source_nodes in enumerate(node_counts):
            demand_slice = slice(demand_ptr[i], demand_ptr[i + 1])
            leaves[demand_slice] = np.where(
                leaves[demand_slice] >= 0, leaves[demand_slice] + offset, -1
            )
            source_parent = parent[i, :num_source_nodes]
            self._parents.append(
                np.where(source_parent >= 0, source_parent + offset, -1).astype(np.int32)
            )
            self._links.append(link[i, :num_source_nodes].copy())
            offset += int(num_source_nodes)
        self._node_counts.append(node_counts)

    def trie(self) -> Trie:
        """Return the trie of all sources appended so far, with node indices of the whole trie."""
        # Index after the last node of each source.
        node_ends = np.cumsum(np.concatenate(self._node_counts))
        source_ptr = np.concatenate([[0], node_ends]).astype(np.int32)
        return Trie(np.concatenate(self._parents), np.concatenate(self._links), source_ptr)


class _Kernel:
    """Compiled kernel of a search method, and the arrays that all its calls share.

    Args:
        request: settings of a search by a single method.
    """

    def __init__(self, request: _Request) -> None:
        """Select the compiled kernel, and prepare the graph, groups and potentials that all calls
        share.

        Args:
            request: settings of a search by a single method.
        """
        # The network in CSR form.
        topology, num_paths, method, weight, link_weights, groups, _ = request
        self._request = request
        self._graph = make_graph(
            topology.num_nodes, topology.link_source, topology.link_target, topology.no_transit
        )
        by_hops = method is PathMethod.DISJOINT and weight is PathWeight.HOPS
        # Select the kernel of the method, and its groups and penalties.
        searches: dict[PathMethod, Callable[..., None]] = {
            PathMethod.DISJOINT: path_search.search_by_hops
            if by_hops
            else path_search.search_by_weight,
            PathMethod.YEN: path_search.search_yen,
            PathMethod.SURVIVABLE: search_survivable,
        }
        self._search = searches[method]
        self._group_arguments: tuple[Any, ...] = ()
        if groups is not None:
            self._group_arguments = (groups,)
        if groups is not None and method is PathMethod.SURVIVABLE:
            self._group_arguments = (
                groups,
                penalties(link_weights, topology.num_nodes, groups, num_paths),
            )
        # (N, N) potentials of A*; the search by hops does not use them.
        self._potential = np.zeros((1, 1)) if by_hops else _potentials(topology, link_weights)
        # Trie nodes allocated for a source; doubled while a source reports -1 (too small).
        self._capacity = 4 * topology.num_nodes

    def search(
        self, sources: IntArray, demand_ptr: IntArray, pairs: IntArray, tries: _TrieList
    ) -> None:
        """Find the paths of a chunk of n sources, and append their tries.

        Args:
            sources: (n,) node index of each source.
            demand_ptr: (n + 1,) the demands of source i are ``demand_ptr[i]:demand_ptr[i + 1]``.
            pairs: (D, 2) source and target node of all demands.
            tries: receives the tries and leaves of the sources.
        """
        request = self._request
        # Demands of the chunk.
        first_demand = demand_ptr[0]
        end_demand = demand_ptr[-1]
        # Number of trie nodes of each source; -1 where its trie did not fit.
        node_counts = np.full(len(sources), -1, dtype=np.int32)
        # Repeat the search with doubled capacity until the tries of all sources fit.
        while (node_counts < 0).any():
            parent = np.empty((len(sources), self._capacity), dtype=np.int32)
            link = np.empty((len(sources), self._capacity), dtype=np.int32)
            targets = np.ascontiguousarray(pairs[first_demand:end_demand, 1])
            num_visits = len(pairs) * request.topology.num_links
            with threads_for(num_visits, min_operations=_MIN_PARALLEL_VISITS):
                # Demands of the chunk relative to its first one; the result arrays are written.
                self._search(
                    path_search.TargetChunk(
                        sources,
                        demand_ptr - first_demand,
                        targets,
                        request.num_paths,
                        request.link_weights,
                        self._potential,
                    ),
                    self._graph,
                    *self._group_arguments,
                    parent,
                    link,
                    node_counts,
                    tries.leaves[first_demand:end_demand],
                )
            self._capacity = self._capacity if (node_counts >= 0).all() else 2 * self._capacity
        tries.append(demand_ptr, node_counts, parent, link)


def _potentials(topology: Topology, link_weights: FloatArray) -> FloatArray:
    """Return the potentials of A* (N, N): element [t, v] is a lower bound on the weight of a path
    from node v to node t.

    Computes the shortest-path tree of every node in the reversed graph.  The distances are scaled
    down by a relative margin for rounding.

    Args:
        topology: the network.
        link_weights: (E,) link weights.
    """
    every_node = np.arange(topology.num_nodes, dtype=np.int32)
    potential, _ = shortest_trees(
        topology.num_nodes,
        topology.link_target,
        topology.link_source,
        link_weights,
        every_node,
        topology.no_transit,
    )
    potential *= 1 - _RELATIVE_POTENTIAL_MARGIN
    is_finite = np.isfinite(potential)
    min_weight = link_weights[link_weights > 0].min(initial=np.inf)
    if min_weight < _MIN_WEIGHT_TO_POTENTIAL * potential[is_finite].max(initial=0.0):
        # Weights below the rounding of potentials give keys that do not order nodes, and A* would
        # expand nodes repeatedly.  Without potentials it is Dijkstra's algorithm, whose keys are
        # distances.
        potential[is_finite] = 0.0
    return potential
