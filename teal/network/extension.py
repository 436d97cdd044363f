"""Adding paths to a path set, as column generation does."""

from __future__ import annotations

import numpy as np

from teal.network.packed import MAX_PATHS
from teal.network.path_set import PathSet
from teal.network.trie import Trie, insert_path, sort_by_depth
from teal.runtime.arrays import Int64Array, IntArray
from teal.runtime.parallel import kernel
from teal.runtime.storage import content_key


def with_more_paths(paths: PathSet, ptr: Int64Array, links: IntArray) -> PathSet:
    """``paths`` with one more path for each demand that is given one which it does not have yet.

    Args:
        paths: of D demands.
        ptr: (D + 1,) the new path of demand d is ``links[ptr[d]:ptr[d + 1]]``; none if that is empty.
        links: link numbers from source to target.
    """
    trie, max_paths = paths.trie, min(paths.num_paths + 1, MAX_PATHS)
    # Nodes that the largest source needs if the new paths share no prefix.
    capacity = int(np.diff(trie.source_ptr).max(initial=0)) + int(np.diff(ptr[paths.demand_ptr]).max(initial=0))
    leaf = np.full((paths.num_demands, max_paths), -1, dtype=np.int32)
    sources = len(trie.source_ptr) - 1
    source_parents, source_links, source_ptr = [], [], np.zeros(sources + 1, dtype=np.int64)
    scratch = np.empty((4, capacity + 1), dtype=np.int32)
    for s in range(sources):
        first, last = trie.source_ptr[s], trie.source_ptr[s + 1]
        demands = slice(paths.demand_ptr[s], paths.demand_ptr[s + 1])
        count = _rebuild_source(
            np.where(trie.parent[first:last] >= 0, trie.parent[first:last] - first, -1).astype(np.int32),
            trie.link[first:last], np.where(paths.leaf[demands] >= 0, paths.leaf[demands] - first, -1).astype(np.int32),
            ptr[demands.start : demands.stop + 1], links, leaf[demands], scratch,
        )  # fmt: skip
        offset = source_ptr[s]
        source_parents.append(np.where(scratch[0, :count] >= 0, scratch[0, :count] + offset, -1).astype(np.int32))
        source_links.append(scratch[1, :count].copy())
        leaf[demands] = np.where(leaf[demands] >= 0, leaf[demands] + offset, -1)
        source_ptr[s + 1] = offset + count
    used_columns = int((leaf >= 0).sum(1).max(initial=1))
    leaf = np.ascontiguousarray(leaf[:, : max(used_columns, paths.num_paths)])
    new_trie = Trie(np.concatenate(source_parents), np.concatenate(source_links), source_ptr.astype(np.int32))
    key = content_key(paths.key, leaf, new_trie.parent, new_trie.link)
    return PathSet(paths.pairs, leaf, new_trie, paths.demand_ptr, paths.num_links, key, paths.topology_key)


@kernel
def _rebuild_source(
    old_parent: IntArray,
    old_link: IntArray,
    old_leaf: IntArray,
    ptr: Int64Array,
    links: IntArray,
    leaf: IntArray,
    scratch: IntArray,
) -> int:
    """Build one source's trie anew with its old and new paths in ``scratch``; the number of its nodes."""
    parent, link, first_child, next_sibling = scratch[0], scratch[1], scratch[2], scratch[3]
    first_child[0] = -1
    path = np.empty(len(old_parent) + 1, dtype=np.int32)
    count = 0
    for d in range(len(old_leaf)):
        k = 0
        while k < old_leaf.shape[1] and old_leaf[d, k] >= 0:
            length, node = 0, old_leaf[d, k]
            while node >= 0:
                path[length] = old_link[node]
                node = old_parent[node]
                length += 1
            for i in range(length // 2):
                path[i], path[length - 1 - i] = path[length - 1 - i], path[i]
            leaf[d, k], count = insert_path(path, length, parent[:-1], link, first_child, next_sibling, count)
            k += 1
        new_path = links[ptr[d] : ptr[d + 1]]
        if len(new_path) and k < leaf.shape[1]:
            end, count = insert_path(new_path, len(new_path), parent[:-1], link, first_child, next_sibling, count)
            is_known = False
            for j in range(k):
                is_known = is_known or leaf[d, j] == end
            if not is_known:
                leaf[d, k] = end
    sort_by_depth(parent[:count], link[:count], leaf)
    return count
