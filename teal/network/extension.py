"""Adding paths to a path set: what column generation does."""

from __future__ import annotations

import numpy as np

from teal.network.packed import MOST_PATHS, Pointers
from teal.network.path_set import PathSet
from teal.network.topology import IntArray
from teal.network.trie import Trie, insert_path, sort_by_depth
from teal.parallel import kernel
from teal.storage import content_key

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def"


def with_more_paths(paths: PathSet, ptr: Pointers, links: IntArray) -> PathSet:
    """``paths``, and for each demand one path more where one is given that it did not have.

    Args:
        paths: of D demands.
        ptr: (D + 1,) demand d's new path is ``links[ptr[d]:ptr[d + 1]]``, none if that is empty.
        links: link numbers from source to target.
    """
    trie, most = paths.trie, min(paths.num_paths + 1, MOST_PATHS)
    room = int(np.diff(trie.source_ptr).max(initial=0)) + int(
        np.diff(ptr[paths.demand_ptr]).max(initial=0)
    )  # nodes of the largest source, were no link shared
    leaf = np.full((paths.num_demands, most), -1, dtype=np.int32)
    sources = len(trie.source_ptr) - 1
    parents, owned, counts = [], [], np.zeros(sources + 1, dtype=np.int64)
    scratch = np.empty((4, room + 1), dtype=np.int32)
    for s in range(sources):
        first, last = trie.source_ptr[s], trie.source_ptr[s + 1]
        own = slice(paths.demand_ptr[s], paths.demand_ptr[s + 1])
        count = _insert(
            np.where(trie.parent[first:last] >= 0, trie.parent[first:last] - first, -1).astype(np.int32),
            trie.link[first:last], np.where(paths.leaf[own] >= 0, paths.leaf[own] - first, -1).astype(np.int32),
            ptr[own.start : own.stop + 1], links, leaf[own], scratch,
        )  # fmt: skip
        offset = counts[s]
        parents.append(np.where(scratch[0, :count] >= 0, scratch[0, :count] + offset, -1).astype(np.int32))
        owned.append(scratch[1, :count].copy())
        leaf[own] = np.where(leaf[own] >= 0, leaf[own] + offset, -1)
        counts[s + 1] = offset + count
    used = int((leaf >= 0).sum(1).max(initial=1))
    leaf = np.ascontiguousarray(leaf[:, : max(used, paths.num_paths)])
    grown = Trie(np.concatenate(parents), np.concatenate(owned), counts.astype(np.int32))
    key = content_key(paths.key, leaf, grown.parent, grown.link)
    return PathSet(paths.pairs, leaf, grown, paths.demand_ptr, paths.num_links, key, paths.topology_key)


@kernel
def _insert(old_parent, old_link, old_leaf, ptr, links, leaf, scratch):
    """Rebuild one source's trie with the new paths in it; its number of nodes."""
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
        fresh = links[ptr[d] : ptr[d + 1]]
        if len(fresh) and k < leaf.shape[1]:
            end, count = insert_path(fresh, len(fresh), parent[:-1], link, first_child, next_sibling, count)
            known = False
            for j in range(k):
                known = known or leaf[d, j] == end
            if not known:
                leaf[d, k] = end
    sort_by_depth(parent[:count], link[:count], leaf)
    return count
