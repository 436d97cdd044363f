"""Every path of a path set twice: to stay on it, and to move onto it over one link more, which counts what moves."""

from __future__ import annotations

import dataclasses

import numpy as np

from teal.network.path_set import PathSet
from teal.network.trie import Trie


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
        paths, leaf=leaf, trie=Trie(parent, link, source_ptr), num_links=paths.num_links + 1, key=f"{paths.key}-moves"
    )
