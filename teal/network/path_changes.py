"""Path sets made from another one: with more paths, as column generation adds them, or with some of
its paths only.

Demands between the same nodes that may use the same paths, as one row: the demands of several
classes.

Rows are found by a 64-bit hash of a demand's nodes and of the links of its paths, in their order.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from teal.network.packed import MAX_PATHS, PathScan
from teal.network.path_set import PathSet
from teal.network.shortest import walk_back
from teal.network.subset import of_demands
from teal.network.trie import Trie, insert_path, sort_by_depth
from teal.runtime.arrays import AnyArray, Int64Array, IntArray
from teal.runtime.parallel import inlined_kernel, kernel, partitioned_kernel
from teal.runtime.storage import content_key


def with_more_paths(paths: PathSet, ptr: Int64Array, links: IntArray) -> PathSet:
    """``paths`` with one more path for each demand that is given one which it does not have yet.

    Tries of sources without a new path are copied as they are.

    Args:
        paths: paths of D demands.
        ptr: (D + 1,) the new path of demand d is ``links[ptr[d]:ptr[d + 1]]``; none if that is
            empty.
        links: link numbers from source to target.
    """
    trie, max_paths = paths.trie, min(paths.num_paths + 1, MAX_PATHS)
    demand_ptr, source_ptr = paths.demand_ptr.astype(np.int64), trie.source_ptr.astype(np.int64)
    # Room for each source's nodes if its new paths share no prefix.
    room = np.concatenate([[0], np.cumsum(np.diff(source_ptr) + np.diff(ptr[demand_ptr]))])
    leaf = np.full((paths.num_demands, max_paths), -1, dtype=np.int32)
    leaf[:, : paths.num_paths] = paths.leaf
    parent, link = np.empty((2, int(room[-1])), dtype=np.int32)
    count = np.zeros(len(source_ptr) - 1, dtype=np.int64)
    _extend(
        trie.parent, trie.link, source_ptr, demand_ptr, ptr, links, room, parent, link, leaf, count
    )
    new_ptr = np.concatenate([[0], np.cumsum(count)])
    _close_gaps(room, new_ptr, demand_ptr, parent, link, leaf)
    used_columns = int((leaf >= 0).sum(1).max(initial=1))
    leaf = np.ascontiguousarray(leaf[:, : max(used_columns, paths.num_paths)])
    new_trie = Trie(
        parent[: new_ptr[-1]].copy(), link[: new_ptr[-1]].copy(), new_ptr.astype(np.int32)
    )
    return _path_set(paths, leaf, new_trie)


def with_listed_paths(paths: PathSet, more: Mapping[int, Sequence[Sequence[int]]]) -> PathSet:
    """``paths`` with several more paths of some demands; those that a demand has already are left
    out.

    Args:
        paths: paths of D demands.
        more: links of the paths, from source to target, by the number of their demand.
    """
    for place in range(max(map(len, more.values()), default=0)):
        new = [
            more[d][place] if place < len(more.get(d, ())) else () for d in range(paths.num_demands)
        ]
        ptr = np.concatenate([[0], np.cumsum([len(links) for links in new])]).astype(np.int64)
        paths = with_more_paths(
            paths, ptr, np.fromiter(itertools.chain.from_iterable(new), np.int32, int(ptr[-1]))
        )
    return paths


def with_columns(paths: PathSet, columns: IntArray) -> PathSet:
    """``paths`` with some of its paths, in another order.

    Args:
        paths: paths of D demands, K paths each.
        columns: (D, J) number in 0..K - 1 of each path that is kept, -1 for none; none stands
            before a number.
    """
    chosen = np.take_along_axis(paths.leaf, np.maximum(columns, 0).astype(np.int64), 1)
    leaf = np.where(columns >= 0, chosen, -1).astype(np.int32)
    trie = paths.trie
    is_used = _nodes_of(trie.parent, leaf)
    before = np.concatenate([[0], np.cumsum(is_used)])  # used nodes before each node
    parent = trie.parent[is_used]
    new_trie = Trie(
        np.where(parent >= 0, before[parent], -1).astype(np.int32),
        trie.link[is_used],
        before[trie.source_ptr].astype(np.int32),
    )
    return _path_set(paths, np.where(leaf >= 0, before[leaf], -1).astype(np.int32), new_trie)


def first_columns(paths: PathSet, count: int) -> PathSet:
    """The first ``count`` paths of each demand; K is ``count``, also where no demand has so
    many.
    """
    columns = np.where(paths.mask, np.arange(paths.num_paths), -1)[:, :count]
    return with_columns(
        paths, np.pad(columns, ((0, 0), (0, count - columns.shape[1])), constant_values=-1)
    )


@kernel
def paths_in_trees(  # type: ignore[no-untyped-def]
    chosen, pairs, source_row, into, tail
) -> tuple[Int64Array, IntArray]:
    """The shortest paths of some demands: pointers (D + 1,) into an array of links, and that array.

    Args:
        chosen: (n,) numbers of the demands, ascending.
        pairs: (D, 2) source and target of each demand.
        source_row: (D,) row of each demand's source in ``into``.
        into: (S, N) link into each node on a shortest path from each source.
        tail: (E,) node where each link starts.
    """
    ptr = np.zeros(len(pairs) + 1, dtype=np.int64)
    path = np.empty(into.shape[1], dtype=np.int32)
    for d in chosen:
        ptr[d + 1] = walk_back(pairs[d, 0], pairs[d, 1], into[source_row[d]], tail, path)
    ptr = np.cumsum(ptr)
    links = np.empty(ptr[-1], dtype=np.int32)
    for d in chosen:
        walk_back(pairs[d, 0], pairs[d, 1], into[source_row[d]], tail, links[ptr[d] :])
    return ptr, links


def _path_set(paths: PathSet, leaf: IntArray, trie: Trie) -> PathSet:
    key = content_key(paths.key, leaf, trie.parent, trie.link)
    return PathSet(
        paths.pairs, leaf, trie, paths.demand_ptr, paths.num_links, key, paths.topology_key
    )


@kernel
def _extend(  # type: ignore[no-untyped-def]
    old_parent, old_link, source_ptr, demand_ptr, ptr, links, room, parent, link, leaf, count
) -> None:
    """Write each source's trie with its new paths to ``parent`` and ``link`` from ``room[source]``
    on.

    Args:
        old_parent: (T,) of the trie.
        old_link: (T,) of the trie.
        source_ptr: (S + 1,) of the trie.
        demand_ptr: (S + 1,) of the path set.
        ptr: (D + 1,) of :func:`with_more_paths`.
        links: links of :func:`with_more_paths`.
        room: (S + 1,) places of each source's nodes.
        parent: (room[-1],) receives local node numbers.
        link: (room[-1],) receives link numbers.
        leaf: (D, K') node numbers of the old trie; receives local ones.
        count: (S,) receives the number of nodes of each source.
    """
    for s in range(len(count)):
        first, nodes, begin = source_ptr[s], source_ptr[s + 1] - source_ptr[s], room[s]
        for i in range(nodes):
            above = old_parent[first + i]
            parent[begin + i] = above - first if above >= 0 else -1
            link[begin + i] = old_link[first + i]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            for k in range(leaf.shape[1]):
                if leaf[d, k] >= 0:
                    leaf[d, k] -= first
        count[s] = nodes
        if ptr[demand_ptr[s]] == ptr[demand_ptr[s + 1]]:
            continue
        its_parent, its_link = parent[begin : room[s + 1]], link[begin : room[s + 1]]
        first_child = np.full(len(its_parent) + 1, -1, dtype=np.int32)
        next_sibling = np.full(len(its_parent), -1, dtype=np.int32)
        for i in range(nodes):
            next_sibling[i] = first_child[its_parent[i] + 1]
            first_child[its_parent[i] + 1] = i
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            new_path = links[ptr[d] : ptr[d + 1]]
            if len(new_path) == 0:
                continue
            k = 0
            while k < leaf.shape[1] and leaf[d, k] >= 0:
                k += 1
            if k == leaf.shape[1]:
                continue
            end, count[s] = insert_path(
                new_path, len(new_path), its_parent, its_link, first_child, next_sibling, count[s]
            )
            is_known = False
            for j in range(k):
                is_known = is_known or leaf[d, j] == end
            if not is_known:
                leaf[d, k] = end
        sort_by_depth(
            its_parent[: count[s]], its_link[: count[s]], leaf[demand_ptr[s] : demand_ptr[s + 1]]
        )


@kernel
def _close_gaps(room, source_ptr, demand_ptr, parent, link, leaf) -> None:  # type: ignore[no-untyped-def]
    """Move the tries of all sources together and turn local node numbers into those of the whole;
    in place.
    """
    for s in range(len(source_ptr) - 1):
        first = source_ptr[s]
        for i in range(source_ptr[s + 1] - first):
            above = parent[room[s] + i]
            parent[first + i] = above + first if above >= 0 else -1
            link[first + i] = link[room[s] + i]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            for k in range(leaf.shape[1]):
                if leaf[d, k] >= 0:
                    leaf[d, k] += first


@kernel
def _nodes_of(parent, leaf):  # type: ignore[no-untyped-def]
    """(T,) whether a node is on one of the paths that end in ``leaf`` (D, J)."""
    is_used = np.zeros(len(parent), dtype=np.bool_)
    for d in range(leaf.shape[0]):
        for k in range(leaf.shape[1]):
            node = leaf[d, k]
            while node >= 0 and not is_used[node]:
                is_used[node] = True
                node = parent[node]
    return is_used


@dataclasses.dataclass(frozen=True, eq=False)
class MergedRows:
    """R rows for D demands.

    Attributes:
        paths: paths of the rows, in the order of the first demand of each.
        row: (D,) number of each demand's row.
        first: (R,) number of the first demand of each row, ascending.
    """

    paths: PathSet
    row: Int64Array
    first: Int64Array


def merged_rows(paths: PathSet) -> MergedRows:
    """The rows of all demands; computed once for a path set, and kept with it."""
    known = paths.__dict__.get("merged_rows")
    if known is None:
        known = paths.__dict__["merged_rows"] = _merged_rows(paths)
    return known


def _merged_rows(paths: PathSet) -> MergedRows:
    scan = paths.packed.scan
    key = np.empty(paths.num_demands, np.uint64)
    _hash_demands(scan, paths.pairs.astype(np.uint64), paths.packed.max_slots, key)
    _, first, row = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)  # of the rows, by their first demands
    first = first[order].astype(np.int64)
    if len(first) == paths.num_demands:
        return MergedRows(paths, np.arange(len(first)), first)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return MergedRows(of_demands(paths, first), place[row.reshape(-1)], first)


@inlined_kernel
def _mixed(key, number):  # type: ignore[no-untyped-def]
    """``key`` with ``number`` mixed in (splitmix64, Steele et al. 2014); all uint64."""
    z = key * np.uint64(0x9E3779B97F4A7C15) + number + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def _hash_demands(
    begin: int, end: int, scan: PathScan, pairs: AnyArray, max_slots: int, out: AnyArray
) -> None:
    """Hash each demand's pair and paths.

    Args:
        scan: scan of all demands.
        pairs: (D, 2) uint64.
        max_slots: the largest number of trie nodes of a source, and one for the source itself.
        out: (D,) uint64, receives the hashes.
    """
    for s in range(begin, end):
        node_key = np.zeros(max_slots, np.uint64)
        first, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        for i in range(nodes):
            node_key[i + 1] = _mixed(
                node_key[scan.parent[first + i]], np.uint64(scan.link[first + i])
            )
        p = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            key = _mixed(_mixed(np.uint64(0), pairs[d, 0]), pairs[d, 1])
            for _ in range(scan.path_count[d]):
                key = _mixed(key, node_key[scan.end_node[p]])
                p += 1
            out[d] = key


def with_moves(paths: PathSet) -> PathSet:
    """The paths k of each demand as paths 2 k, and as paths 2 k + 1 with link E at their end.

    Computed once for a path set, and kept with it.

    Args:
        paths: over E links.
    """
    known: PathSet | None = paths.__dict__.get("with_moves")
    if known is None:
        known = paths.__dict__["with_moves"] = _with_moves(paths)
    return known


def _with_moves(paths: PathSet) -> PathSet:
    trie, exists = paths.trie, paths.mask
    count = exists.sum(1)
    first_path = np.concatenate([[0], np.cumsum(count)])  # (D + 1,)
    before = first_path[paths.demand_ptr]  # (S + 1,) paths of all sources before
    sizes = np.diff(trie.source_ptr)
    renumbered = np.arange(trie.num_nodes) + np.repeat(before[:-1], sizes)
    # The new nodes of a source follow its old ones: parents still come before their children.
    source_of = np.repeat(np.arange(len(sizes)), np.diff(paths.demand_ptr))  # (D,)
    first_new = trie.source_ptr[1:][source_of] + first_path[:-1]
    new = first_new[:, None] + np.cumsum(exists, 1) - 1
    total = trie.num_nodes + int(first_path[-1])
    parent, link = np.empty(total, np.int32), np.empty(total, np.int32)
    parent[renumbered] = np.where(trie.parent >= 0, renumbered[trie.parent], -1)
    link[renumbered] = trie.link
    parent[new[exists]], link[new[exists]] = renumbered[paths.leaf[exists]], paths.num_links
    leaf = np.full((paths.num_demands, 2 * paths.num_paths), -1, np.int32)
    leaf[:, 0::2][exists], leaf[:, 1::2][exists] = renumbered[paths.leaf[exists]], new[exists]
    source_ptr = (trie.source_ptr + before).astype(trie.source_ptr.dtype)
    return dataclasses.replace(
        paths,
        leaf=leaf,
        trie=Trie(parent, link, source_ptr),
        num_links=paths.num_links + 1,
        key=f"{paths.key}-moves",
    )
