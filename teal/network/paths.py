"""Finding candidate paths; the result is cached on disk under a hash of the search's inputs."""

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

_FORMAT = 4  # part of every cache key: raise it when the search or the file changes
# D * K from which on the memory is estimated before the search; smaller searches fit into every
# machine.
_ESTIMATE_FROM_SLOTS = 20_000_000
# sources, evenly spaced, whose tries are built for that estimate; few, since each costs a search
_SAMPLE_SOURCES = 8
# Peak resident bytes of a process that finds the paths and solves one matrix, fitted to measured
# peaks.
_BYTES_PER_PAIR = 70
_BYTES_PER_PATH_SLOT = 48  # for each of the D * K slots
_BYTES_PER_TRIE_NODE = 32
_BYTES_FIXED = 1 << 29  # 512 MiB, of the interpreter and the libraries
# Sources in a call of the search kernel: enough for all threads, and so many more that a call takes
# about _CALL_S seconds, since progress is reported and a search can be ended between two calls.
_MIN_SOURCES, _MAX_SOURCES, _CALL_S = 8, 64, 0.5
# Demands x links from which on a search uses all threads, 0.1 s: their form of it takes seconds to
# compile.
_MIN_PARALLEL_VISITS = 20_000_000
_TIMED_S = 0.2  # seconds of a search that is long enough for an estimate of the time of all pairs
_POTENTIAL_RANGE = (
    1e-6  # least weight over the largest potential, from which on rounding cannot reorder nodes
)
_POTENTIAL_MARGIN = 1e-9  # relative; keeps A*'s potential a lower bound in spite of rounding


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
    """Find up to K paths for each pair.

    ``edge-disjoint`` takes a shortest path, removes its cables (all links between two nodes) and
    groups, and goes on; where no path is left, only the links of the paths found are removed, so
    that further members of their cables serve. ``yen`` takes the K shortest loopless paths (Yen,
    "Finding the K shortest loopless paths in a network", 1971); ``survivable`` takes paths of which
    some survive the failure of any one group of links, and which share as few groups as possible
    (see :mod:`teal.network.survivable`); ``maximally-disjoint`` takes the edge-disjoint paths and,
    where there are fewer than K, the survivable ones behind them: also behind a link that all paths
    share, different paths are found.

    Args:
        topology: the network.
        pairs: (D, 2) node index pairs, sorted by source and target; None for all N (N - 1).
        num_paths: K, 1 to MAX_PATHS.
        method: method of the search, or its name.
        weight: link weight whose sum a path minimises: 1, latency in ms, or 1 / capacity.  With 1 /
            capacity a failed link (capacity 0) is never used; the others ignore capacities, so that
            the same paths serve before and after a failure.
        groups: numbers of links that fail together: survivable paths survive them (None for cables,
            both directions), edge-disjoint ones do not share them (beside cables); Yen's take none.
            Of maximally disjoint paths both hold.
        cache: keep the result on disk and take it from there.  The key is a hash of the search's
            inputs, among which capacities are only with inverse capacity: other paths are reused
            when capacities change.
        progress: show a bar.
        report: called now and then with the share of the sources whose paths are found; what it
            raises ends the search.

    Raises:
        InputError: ``num_paths`` out of range, an unknown method or weight, pairs that are not
            sorted or not in the topology, or too little memory.
    """
    if str(num_paths) == "auto" or not 1 <= num_paths <= MAX_PATHS:
        expected = (
            f"at least 1 path a demand and at most {MAX_PATHS}; teal.choose_paths chooses paths "
            "for matrices"
        )
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
            file.unlink(missing_ok=True)  # a damaged cache entry is computed again
        except OSError:  # the entry may be read another time
            pass
    _check_memory(request, pairs)
    paths = _search(request, pairs, key, progress, report)
    if file is not None:
        save_paths(file, paths)
    return paths


def search_key(
    topology: Topology, pairs: IntArray, num_paths: int, method: PathMethod, weight: PathWeight
) -> str:
    """Content key of a search's inputs; arguments as in :func:`compute_paths`."""
    return _request(topology, num_paths, method, weight).key(pairs)


def all_pairs(topology: Topology) -> IntArray:
    """Every ordered pair of distinct nodes: (N (N - 1), 2)."""
    count = topology.num_nodes
    source, target = np.divmod(np.arange(count * count, dtype=np.int64), count)
    return np.stack([source, target], 1)[source != target].astype(np.int32)


def memory_needed(num_pairs: int, num_paths: int, trie_nodes: float) -> int:
    """Estimated bytes to find candidate paths and to allocate one matrix over them.

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
    """How long :func:`compute_paths` would take for all pairs, extrapolated from searches for some
    of them.

    Twice as many pairs are searched until that takes a fifth of a second; two pairs are searched in
    any case.
    """
    request = _request(topology, num_paths, method, weight)
    pairs = all_pairs(topology)
    count, earlier_s, seconds = 1, 0.0, 0.0
    while seconds < _TIMED_S and count < len(pairs):
        count = min(2 * count, len(pairs))
        sampled = pairs[np.unique(np.linspace(0, len(pairs) - 1, count).astype(int))]
        earlier_s, begin = seconds, time.perf_counter()
        _search(request, sampled, "", progress=False)
        seconds = time.perf_counter() - begin
    return seconds + max(0.0, seconds - earlier_s) / max(1, count / 2) * (len(pairs) - count)


def forget(key: str) -> None:
    """Delete what :func:`compute_paths` or :func:`teal.choose_paths` has kept on disk of the paths
    of a key, if any.
    """
    for suffix in (".npz", ".json"):
        cache_file(key).with_suffix(suffix).unlink(missing_ok=True)


def cache_file(key: str) -> Path:
    """Where paths of a content key are kept on disk."""
    return cache_dir("paths") / f"{key}.npz"


class _Request(NamedTuple):
    """The settings of a search, for any pairs.

    Attributes:
        topology, num_paths, method, weight: as in :func:`compute_paths`.
        link_weights: (E,) what ``weight`` gives each link.
        groups: groups that paths survive, or that they do not share; None for Yen's paths.
        parts: searches whose paths are merged, in this order; () for a single search.
    """

    topology: Topology
    num_paths: int
    method: PathMethod
    weight: PathWeight
    link_weights: FloatArray
    groups: Groups | None
    parts: tuple[_Request, ...] = ()

    def key(self, pairs: IntArray) -> str:
        """Content key of the search for ``pairs``."""
        group_key: tuple[Any, ...] = () if self.groups is None else tuple(self.groups)
        group_key += tuple(part.key(pairs) for part in self.parts)
        return content_key(
            _FORMAT,
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
    """Arguments as in :func:`compute_paths`; names of methods and weights may be texts."""
    method, weight = _of_name(PathMethod, "method", method), _of_name(PathWeight, "weight", weight)
    made = None
    parts: tuple[_Request, ...] = ()
    if method is PathMethod.MAXIMALLY_DISJOINT:
        methods = (PathMethod.DISJOINT, PathMethod.SURVIVABLE)
        parts = tuple(_request(topology, num_paths, one, weight, groups) for one in methods)
    if method is PathMethod.SURVIVABLE:
        made = make_groups(topology.cables() if groups is None else groups, topology.num_links)
    elif method is PathMethod.DISJOINT:
        made = make_groups([*topology.cables(), *(groups or ())], topology.num_links)
    weights = link_weights(topology, weight)
    return _Request(topology, num_paths, method, weight, weights, made, parts)


def _of_name(kind: type[_Named], option: str, name: str) -> _Named:
    """The member of an enumeration that has a name.

    Raises:
        InputError: none has it.
    """
    try:
        return kind(name)
    except ValueError:
        raise InputError("paths", option, " or ".join(kind), repr(name)) from None


def _check_memory(request: _Request, pairs: IntArray) -> None:
    """Raise InputError if the search would need too much memory, estimated from the tries of a few
    sources.
    """
    num_paths = request.num_paths
    if len(pairs) * num_paths < _ESTIMATE_FROM_SLOTS:
        return
    sources = np.unique(pairs[:, 0])
    sampled = sources[np.unique(np.linspace(0, len(sources) - 1, _SAMPLE_SOURCES).astype(int))]
    sample_pairs = pairs[np.isin(pairs[:, 0], sampled)]
    sample = _search(request, sample_pairs, "", progress=False)
    trie_nodes_per_pair = sample.trie.num_nodes / len(sample_pairs)
    needed = memory_needed(len(pairs), num_paths, trie_nodes_per_pair * len(pairs))
    # With K = 1 and all pairs the tries are trees of shortest paths, which have one node for each
    # pair.
    least = memory_needed(len(pairs), 1, min(1.0, trie_nodes_per_pair) * len(pairs)) / (1 << 30)
    remedy = (
        "fewer pairs (those that carry traffic) or a smaller K would need less (K = 1: "
        f"{least:.1f} GiB)"
    )
    require(f"paths of {len(pairs):,} pairs, K = {num_paths}", needed, remedy)


def link_weights(topology: Topology, weight: PathWeight) -> FloatArray:
    """(E,) what shortest paths minimise; infinite for a failed link with inverse capacity."""
    if weight is PathWeight.HOPS:
        return np.ones(topology.num_links)
    if weight is PathWeight.LATENCY:
        return topology.latency
    with np.errstate(divide="ignore"):
        return 1.0 / topology.capacity  # infinite for a failed link, which no path uses then


def _search(
    request: _Request,
    pairs: IntArray,
    key: str,
    progress: bool,
    report: Callable[[float], None] | None = None,
) -> PathSet:
    """Search without cache.

    Args:
        request: what is searched.
        pairs: (D, 2) as in :func:`compute_paths`.
        key: key of the cache, stored in the result; "" for a sample that is thrown away.
        progress: show a bar.
        report: as in :func:`compute_paths`.
    """
    if not request.parts:
        return _search_by_method(request, pairs, key, progress, report)
    found: list[PathSet] = []
    for number, part in enumerate(request.parts):

        def report_part(share: float, number: int = number) -> None:
            if report is not None:
                report((number + share) / len(request.parts))

        found.append(_search_by_method(part, pairs, key, progress, report_part))
    merged = found[0]
    for more in found[1:]:
        merged = _filled_up(merged, more, request.num_paths)
    return dataclasses.replace(merged, key=key)


def _filled_up(paths: PathSet, more: PathSet, num_paths: int) -> PathSet:
    """``paths`` with those of ``more`` behind them, up to ``num_paths`` of each demand.

    Args:
        paths: paths of D demands.
        more: further paths of the same demands; those that a demand has already are left out.
        num_paths: K.
    """
    links = path_links_of(more)
    place = np.full(more.mask.shape, -1, dtype=np.int64)  # of each path in ``links``
    place.reshape(-1)[links.slot] = np.arange(len(links.slot))
    lengths = np.diff(links.link_ptr)
    for column in range(more.num_paths):
        has_room = paths.mask.sum(1) < num_paths
        added = np.flatnonzero(has_room & (place[:, column] >= 0))
        if not len(added):
            continue
        row = place[added, column]
        length = np.zeros(paths.num_demands, dtype=np.int64)
        length[added] = lengths[row]
        ptr = np.concatenate([[0], np.cumsum(length)])
        # Entries of the added paths, one path after another; their links are stored from the end.
        last = np.repeat(links.link_ptr[row + 1] - 1 + ptr[added], lengths[row])
        entries = last - np.arange(ptr[-1])
        paths = with_more_paths(paths, ptr, links.link[entries].astype(np.int32))
    return paths


def _search_by_method(
    request: _Request,
    pairs: IntArray,
    key: str,
    progress: bool,
    report: Callable[[float], None] | None = None,
) -> PathSet:
    """The paths of one search; arguments as for :func:`_search`."""
    topology, num_paths, method, weight, link_weights, groups, _ = request
    sources, starts = np.unique(pairs[:, 0], return_index=True)
    demand_ptr = np.append(starts, len(pairs)).astype(np.int32)
    tail, head = topology.link_source, topology.link_target
    graph = make_graph(topology.num_nodes, tail, head, topology.no_transit)
    by_hops = method is PathMethod.DISJOINT and weight is PathWeight.HOPS
    searches: dict[PathMethod, Callable[..., None]] = {
        PathMethod.DISJOINT: path_search.search_by_hops
        if by_hops
        else path_search.search_by_weight,
        PathMethod.YEN: path_search.search_yen,
        PathMethod.SURVIVABLE: search_survivable,
    }
    further: tuple[Any, ...] = ()
    if groups is not None:
        further = (groups,)
    if groups is not None and method is PathMethod.SURVIVABLE:
        further = groups, penalties(link_weights, topology.num_nodes, groups, num_paths)
    # potential[t, v]: a lower bound on the weight of the paths from v to t, found in the reversed
    # graph; not used by the search by hops.
    potential = np.zeros((1, 1))
    if not by_hops:
        every_node = np.arange(topology.num_nodes, dtype=np.int32)
        potential, _ = shortest_trees(
            topology.num_nodes, head, tail, link_weights, every_node, topology.no_transit
        )
        potential *= 1 - _POTENTIAL_MARGIN
        finite = np.isfinite(potential)
        least = link_weights[link_weights > 0].min(initial=np.inf)
        if least < _POTENTIAL_RANGE * potential[finite].max(initial=0.0):
            # A weight that rounding swallows in a sum with a potential gives keys that do not order
            # nodes: A* would expand nodes again and again.  Without potentials it is Dijkstra's
            # search, whose keys are distances.
            potential[finite] = 0.0
    leaf = np.empty((len(pairs), num_paths), dtype=np.int32)
    parents: list[IntArray] = []
    links: list[IntArray] = []
    counts_of_all: list[IntArray] = []
    room = (
        4 * topology.num_nodes
    )  # trie nodes that a source may have; doubled while a source reports -1, no room
    with progress_bar(total=len(sources), desc="paths", unit="source", disable=not progress) as bar:
        begin, count = 0, _MIN_SOURCES
        while begin < len(sources):
            chunk, call_begin = sources[begin : begin + count], time.perf_counter()
            first, last = demand_ptr[begin], demand_ptr[begin + len(chunk)]
            ptr = demand_ptr[begin : begin + len(chunk) + 1] - first
            counts = np.full(len(chunk), -1, dtype=np.int32)
            while (counts < 0).any():
                parent = np.empty((len(chunk), room), dtype=np.int32)
                link = np.empty((len(chunk), room), dtype=np.int32)
                targets = np.ascontiguousarray(pairs[first:last, 1])
                with threads_for(len(pairs) * topology.num_links, least=_MIN_PARALLEL_VISITS):
                    searches[method](
                        path_search.TargetChunk(
                            chunk, ptr, targets, num_paths, link_weights, potential
                        ),
                        graph,
                        *further,
                        parent,
                        link,
                        counts,
                        leaf[first:last],
                    )
                room = room if (counts >= 0).all() else 2 * room
            offset = sum(map(len, parents))
            for i, of_source in enumerate(counts):
                demands = slice(ptr[i] + first, ptr[i + 1] + first)
                leaf[demands] = np.where(leaf[demands] >= 0, leaf[demands] + offset, -1)
                parents.append(
                    np.where(parent[i, :of_source] >= 0, parent[i, :of_source] + offset, -1).astype(
                        np.int32
                    )
                )
                links.append(link[i, :of_source].copy())
                offset += int(of_source)
            counts_of_all.append(counts)
            bar.update(len(chunk))
            begin += len(chunk)
            if report is not None:
                report(begin / len(sources))
            is_short = time.perf_counter() - call_begin < _CALL_S
            count = min(2 * count, _MAX_SOURCES) if is_short else max(count // 2, _MIN_SOURCES)
    source_ptr = np.concatenate([[0], np.cumsum(np.concatenate(counts_of_all))]).astype(np.int32)
    trie = Trie(np.concatenate(parents), np.concatenate(links), source_ptr)
    return PathSet(pairs, leaf, trie, demand_ptr, topology.num_links, key, topology.graph_key())
