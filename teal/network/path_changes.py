"""Path sets derived from others: with more paths (column generation), fewer paths, or merged rows.

:func:`with_more_paths` and :func:`select_paths` add and select paths.  :func:`merged_rows` merges
demands with the same nodes and candidate paths, such as those of several classes, by a 64-bit hash
of nodes and paths.  :func:`with_moves` duplicates every path for programs that limit churn.
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


def with_more_paths(paths: PathSet, new_path_ptr: Int64Array, links: IntArray) -> PathSet:
    """Add at most one path to each demand; duplicates are skipped.

    A demand with :data:`MAX_PATHS` paths gets no further one.  Tries of sources without a new path
    are copied unchanged.

    Args:
        paths: paths of D demands.
        new_path_ptr: (D + 1,) the new path of demand d is ``links[new_path_ptr[d]:new_path_ptr[d +
            1]]``; none if empty.
        links: link indices of the new paths, one path after the other, each from source to target.
    """
    trie = paths.trie
    max_paths = min(paths.num_paths + 1, MAX_PATHS)
    demand_ptr = paths.demand_ptr.astype(np.int64)
    source_ptr = trie.source_ptr.astype(np.int64)
    # Offsets (S + 1,) of each source's new trie: space for its old nodes, and for one new node per
    # link of the new paths, since these may share no nodes.
    capacity_ptr = np.concatenate(
        [[0], np.cumsum(np.diff(source_ptr) + np.diff(new_path_ptr[demand_ptr]))]
    )
    # Copy each source's trie, and insert the new paths of its demands.
    leaves = np.full((paths.num_demands, max_paths), -1, dtype=np.int32)
    leaves[:, : paths.num_paths] = paths.leaf
    parent, link = np.empty((2, int(capacity_ptr[-1])), dtype=np.int32)
    num_nodes = np.zeros(len(source_ptr) - 1, dtype=np.int64)
    _insert_new_paths(
        trie.parent,
        trie.link,
        source_ptr,
        demand_ptr,
        new_path_ptr,
        links,
        capacity_ptr,
        parent,
        link,
        leaves,
        num_nodes,
    )
    # Remove the unused space between the tries, and unused columns of the leaves.
    new_source_ptr = np.concatenate([[0], np.cumsum(num_nodes)])
    _close_gaps(capacity_ptr, new_source_ptr, demand_ptr, parent, link, leaves)
    num_columns = int((leaves >= 0).sum(1).max(initial=1))
    leaves = np.ascontiguousarray(leaves[:, : max(num_columns, paths.num_paths)])
    new_trie = Trie(
        parent[: new_source_ptr[-1]].copy(),
        link[: new_source_ptr[-1]].copy(),
        new_source_ptr.astype(np.int32),
    )
    return _path_set(paths, leaves, new_trie)


def with_listed_paths(paths: PathSet, more: Mapping[int, Sequence[Sequence[int]]]) -> PathSet:
    """Add several paths to some demands; duplicates are skipped.

    Args:
        paths: paths of D demands.
        more: new paths by demand index, each as link indices from source to target.
    """
    # Add the k-th new path of all demands at once, for each k.
    for k in range(max(map(len, more.values()), default=0)):
        new_paths = [
            more[d][k] if k < len(more.get(d, ())) else () for d in range(paths.num_demands)
        ]
        ptr = np.concatenate([[0], np.cumsum([len(links) for links in new_paths])]).astype(np.int64)
        paths = with_more_paths(
            paths,
            ptr,
            np.fromiter(itertools.chain.from_iterable(new_paths), np.int32, int(ptr[-1])),
        )
    return paths


def select_paths(paths: PathSet, columns: IntArray) -> PathSet:
    """Return the selected paths of each demand, in another order.

    Trie nodes that are on no selected path are removed.

    Args:
        paths: paths of D demands, at most K each.
        columns: (D, J) index in 0..K - 1 of each selected path, -1 for none; in each row the -1
            come last.
    """
    # End nodes of the selected paths, and the trie nodes on these paths.
    selected_leaves = np.take_along_axis(paths.leaf, np.maximum(columns, 0).astype(np.int64), 1)
    leaves = np.where(columns >= 0, selected_leaves, -1).astype(np.int32)
    trie = paths.trie
    is_used = _used_nodes(trie.parent, leaves)
    # (T + 1,) new index of each used node: the number of used nodes before it.
    new_index = np.concatenate([[0], np.cumsum(is_used)])
    parent = trie.parent[is_used]
    new_trie = Trie(
        np.where(parent >= 0, new_index[parent], -1).astype(np.int32),
        trie.link[is_used],
        new_index[trie.source_ptr].astype(np.int32),
    )
    return _path_set(paths, np.where(leaves >= 0, new_index[leaves], -1).astype(np.int32), new_trie)


def first_paths_of_each(paths: PathSet, num_paths: int) -> PathSet:
    """Return the first paths of each demand; demands with fewer paths keep all.

    The result has exactly ``num_paths`` path slots per demand.

    Args:
        paths: paths of D demands.
        num_paths: number of paths to select.
    """
    # (D, num_paths) index of each selected path, -1 for an empty slot.
    columns = np.where(paths.mask, np.arange(paths.num_paths), -1)[:, :num_paths]
    return select_paths(
        paths, np.pad(columns, ((0, 0), (0, num_paths - columns.shape[1])), constant_values=-1)
    )


@kernel
def paths_in_trees(  # type: ignore[no-untyped-def]
    demands, pairs, source_row, pred_link, tail
) -> tuple[Int64Array, IntArray]:
    """Read the shortest paths of some demands from shortest-path trees.

    Args:
        demands: (n,) indices of the demands, ascending.
        pairs: (D, 2) source and target node of each demand.
        source_row: (D,) row of each demand's source in ``pred_link``.
        pred_link: (S, N) link into each node on a shortest path from each source.
        tail: (E,) node where each link starts.

    Returns:
        ptr (D + 1,) and links: the path of demand d is ``links[ptr[d]:ptr[d + 1]]``, from source to
        target; empty for demands that are not in ``demands``.
    """
    # First pass: lengths of the paths, which are walked back from target to source into scratch
    # memory.
    ptr = np.zeros(len(pairs) + 1, dtype=np.int64)
    path = np.empty(pred_link.shape[1], dtype=np.int32)
    for d in demands:
        ptr[d + 1] = walk_back(pairs[d, 0], pairs[d, 1], pred_link[source_row[d]], tail, path)
    ptr = np.cumsum(ptr)
    # Second pass: write the links.
    links = np.empty(ptr[-1], dtype=np.int32)
    for d in demands:
        walk_back(pairs[d, 0], pairs[d, 1], pred_link[source_row[d]], tail, links[ptr[d] :])
    return ptr, links


def _path_set(paths: PathSet, leaf: IntArray, trie: Trie) -> PathSet:
    """Return a path set of the same demands with other paths.

    Args:
        paths: path set of the demands.
        leaf: (D, K) trie node where each new path ends, -1 for none.
        trie: trie of the new paths.
    """
    key = content_key(paths.key, leaf, trie.parent, trie.link)
    return PathSet(
        paths.pairs, leaf, trie, paths.demand_ptr, paths.num_links, key, paths.topology_key
    )


@kernel
def _insert_new_paths(  # type: ignore[no-untyped-def]
    old_parent,
    old_link,
    source_ptr,
    demand_ptr,
    new_path_ptr,
    links,
    capacity_ptr,
    parent,
    link,
    leaves,
    num_nodes,
) -> None:
    """Add one path to each demand that has a new one, source by source.

    The old trie has T nodes from S sources.  The new trie of source s is written to the entries
    ``capacity_ptr[s]:capacity_ptr[s + 1]`` of ``parent`` and ``link``, which may be more than it
    needs; its nodes are numbered from 0.

    Args:
        old_parent: (T,) parent of each old trie node, -1 for the source.
        old_link: (T,) link that leads into each old trie node.
        source_ptr: (S + 1,) the old nodes of source s are ``source_ptr[s]:source_ptr[s + 1]``.
        demand_ptr: (S + 1,) the demands of source s are ``demand_ptr[s]:demand_ptr[s + 1]``.
        new_path_ptr: (D + 1,) the new path of demand d is ``links[new_path_ptr[d]:new_path_ptr[d +
            1]]``; none if empty.
        links: link indices of the new paths, one path after the other, each from source to target.
        capacity_ptr: (S + 1,) first entry of each source in ``parent`` and ``link``.
        parent: (capacity_ptr[-1],) parent of each node within its source, -1 for the source
            (written).
        link: (capacity_ptr[-1],) link that leads into each node (written).
        leaves: (D, K') node where each path ends, -1 for an unused slot: old node indices before,
            node numbers within the source afterwards (updated).
        num_nodes: (S,) number of trie nodes of each source (written).
    """
    for s in range(len(num_nodes)):
        first_old_node = source_ptr[s]
        num_old_nodes = source_ptr[s + 1] - source_ptr[s]
        first_entry = capacity_ptr[s]
        # Copy the source's old trie, with nodes numbered from 0.
        for i in range(num_old_nodes):
            parent_node = old_parent[first_old_node + i]
            parent[first_entry + i] = parent_node - first_old_node if parent_node >= 0 else -1
            link[first_entry + i] = old_link[first_old_node + i]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            for k in range(leaves.shape[1]):
                if leaves[d, k] >= 0:
                    leaves[d, k] -= first_old_node
        num_nodes[s] = num_old_nodes
        # Done if no demand of the source has a new path.
        if new_path_ptr[demand_ptr[s]] == new_path_ptr[demand_ptr[s + 1]]:
            continue
        source_parent = parent[first_entry : capacity_ptr[s + 1]]
        source_link = link[first_entry : capacity_ptr[s + 1]]
        # Build the child lists: the first child of node i is first_child[i + 1], that of the source
        # first_child[0].
        first_child = np.full(len(source_parent) + 1, -1, dtype=np.int32)
        next_sibling = np.full(len(source_parent), -1, dtype=np.int32)
        for i in range(num_old_nodes):
            next_sibling[i] = first_child[source_parent[i] + 1]
            first_child[source_parent[i] + 1] = i
        # Insert the new path of each demand.
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            new_path = links[new_path_ptr[d] : new_path_ptr[d + 1]]
            if len(new_path) == 0:
                continue
            # Find the first unused slot of the demand; skip the path if all slots are used.
            k = 0
            while k < leaves.shape[1] and leaves[d, k] >= 0:
                k += 1
            if k == leaves.shape[1]:
                continue
            end_node, num_nodes[s] = insert_path(
                new_path,
                len(new_path),
                source_parent,
                source_link,
                first_child,
                next_sibling,
                num_nodes[s],
            )
            # Paths with the same end node in the trie are equal.
            is_duplicate = False
            for j in range(k):
                is_duplicate = is_duplicate or leaves[d, j] == end_node
            if not is_duplicate:
                leaves[d, k] = end_node
        # Renumber the nodes by depth.
        sort_by_depth(
            source_parent[: num_nodes[s]],
            source_link[: num_nodes[s]],
            leaves[demand_ptr[s] : demand_ptr[s + 1]],
        )


@kernel
def _close_gaps(capacity_ptr, source_ptr, demand_ptr, parent, link, leaves) -> None:  # type: ignore[no-untyped-def]
    """Remove the unused space between the tries of all sources, in place.

    Node numbers within a source become indices of the whole trie: ``source_ptr[s]`` is added.

    Args:
        capacity_ptr: (S + 1,) first entry of each source in ``parent`` and ``link`` before.
        source_ptr: (S + 1,) first entry of each source afterwards.
        demand_ptr: (S + 1,) the demands of source s are ``demand_ptr[s]:demand_ptr[s + 1]``.
        parent: (capacity_ptr[-1],) parent of each node, -1 for the source (updated).
        link: (capacity_ptr[-1],) link that leads into each node (updated).
        leaves: (D, K) node where each path ends, -1 where there is no path (updated).
    """
    for s in range(len(source_ptr) - 1):
        # Move the nodes of the source to the front; they come after those of the earlier sources.
        first_node = source_ptr[s]
        for i in range(source_ptr[s + 1] - first_node):
            parent_node = parent[capacity_ptr[s] + i]
            parent[first_node + i] = parent_node + first_node if parent_node >= 0 else -1
            link[first_node + i] = link[capacity_ptr[s] + i]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            for k in range(leaves.shape[1]):
                if leaves[d, k] >= 0:
                    leaves[d, k] += first_node


@kernel
def _used_nodes(parent, leaves):  # type: ignore[no-untyped-def]
    """Return whether each trie node is on a path, (T,) booleans.

    Args:
        parent: (T,) parent of each node, -1 for the source.
        leaves: (D, J) node where each path ends, -1 where there is no path.
    """
    is_used = np.zeros(len(parent), dtype=np.bool_)
    for d in range(leaves.shape[0]):
        for k in range(leaves.shape[1]):
            # Mark the nodes from the end of the path back to the first one marked before.
            node = leaves[d, k]
            while node >= 0 and not is_used[node]:
                is_used[node] = True
                node = parent[node]
    return is_used


@dataclasses.dataclass(frozen=True, eq=False)
class MergedRows:
    """Demands merged into R rows: demands with the same nodes and paths share a row.

    Attributes:
        paths: paths of the R rows, in the order of their first demands.
        row: (D,) row of each demand.
        first: (R,) first demand of each row, ascending.
    """

    paths: PathSet
    row: Int64Array
    first: Int64Array


def merged_rows(paths: PathSet) -> MergedRows:
    """Return the rows into which demands with the same nodes and paths are merged.

    They are computed once per path set.
    """
    cached = paths.__dict__.get("merged_rows")
    if cached is None:
        cached = paths.__dict__["merged_rows"] = _merged_rows(paths)
    return cached


def _merged_rows(paths: PathSet) -> MergedRows:
    """Merge demands with equal 64-bit hashes of their nodes and paths into rows.

    Args:
        paths: paths of D demands.
    """
    # (D,) hash of each demand; equal hashes share a row.
    scan = paths.packed.scan
    demand_hash = np.empty(paths.num_demands, np.uint64)
    _hash_demands(scan, paths.pairs.astype(np.uint64), paths.packed.max_trie_nodes, demand_hash)
    _, first, row = np.unique(demand_hash, return_index=True, return_inverse=True)
    # Sort the rows by their first demands.
    order = np.argsort(first)
    first = first[order].astype(np.int64)
    if len(first) == paths.num_demands:
        return MergedRows(paths, np.arange(len(first)), first)
    # New index of each row.
    new_row = np.empty(len(order), np.int64)
    new_row[order] = np.arange(len(order))
    return MergedRows(of_demands(paths, first), new_row[row.reshape(-1)], first)


@inlined_kernel
def _mix(key, number):  # type: ignore[no-untyped-def]
    """Return a hash that combines a hash and a number (splitmix64, Steele et al. 2014).

    Args:
        key: the hash, uint64.
        number: the number, uint64.
    """
    # Constants and shifts of splitmix64.
    z = key * np.uint64(0x9E3779B97F4A7C15) + number + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def _hash_demands(
    begin: int,
    end: int,
    scan: PathScan,
    pairs: AnyArray,
    max_trie_nodes: int,
    demand_hash: AnyArray,
) -> None:
    """Compute a hash of source, target and paths of each demand.

    Args:
        begin, end: range of sources that this call hashes.
        scan: packed paths of all demands.
        pairs: (D, 2) uint64, source and target node of each demand.
        max_trie_nodes: maximum number of trie nodes of a source, including the source itself.
        demand_hash: (D,) uint64, hash of each demand (written).
    """
    for s in range(begin, end):
        # Hash of the links from the source to each of its trie nodes; node 0 is the source.
        node_hash = np.zeros(max_trie_nodes, np.uint64)
        first_node = scan.node_ptr[s]
        num_nodes = scan.node_ptr[s + 1] - scan.node_ptr[s]
        for i in range(num_nodes):
            node_hash[i + 1] = _mix(
                node_hash[scan.parent[first_node + i]], np.uint64(scan.link[first_node + i])
            )
        # Combine the pair with the hash of each path's end node.
        path = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            combined_hash = _mix(_mix(np.uint64(0), pairs[d, 0]), pairs[d, 1])
            for _ in range(scan.path_count[d]):
                combined_hash = _mix(combined_hash, node_hash[scan.end_node[path]])
                path += 1
            demand_hash[d] = combined_hash


def with_moves(paths: PathSet) -> PathSet:
    """Return the paths with each path k duplicated as paths 2 k and 2 k + 1; the second copy ends
    with a virtual link.

    A demand's traffic on path 2 k stays where it is installed; traffic on path 2 k + 1 is new on
    path k.  The load of the virtual link, which has the index E, is the new traffic of all demands,
    so that its capacity limits the churn.  The result is computed once per path set.

    Args:
        paths: paths over E links.
    """
    cached: PathSet | None = paths.__dict__.get("with_moves")
    if cached is None:
        cached = paths.__dict__["with_moves"] = _with_moves(paths)
    return cached


def _with_moves(paths: PathSet) -> PathSet:
    """Duplicate each path, and append a trie node with the virtual link E to the end of its second
    copy.

    The new nodes of a source follow its old ones, so that parents still come before their children.

    Args:
        paths: paths over E links.
    """
    trie = paths.trie
    # (D, K) whether each path exists.
    exists = paths.mask
    num_paths = exists.sum(1)
    # (D + 1,) index of each demand's first path.
    first_path = np.concatenate([[0], np.cumsum(num_paths)])
    # (S + 1,) number of paths of all previous sources: so many new nodes precede a source.
    num_previous_paths = first_path[paths.demand_ptr]
    num_source_nodes = np.diff(trie.source_ptr)
    # (T,) new index of each old node.
    new_index = np.arange(trie.num_nodes) + np.repeat(num_previous_paths[:-1], num_source_nodes)
    # (D, K) index of the node that is appended to each path.
    source_index = np.repeat(np.arange(len(num_source_nodes)), np.diff(paths.demand_ptr))
    first_new_node = trie.source_ptr[1:][source_index] + first_path[:-1]
    new_node = first_new_node[:, None] + np.cumsum(exists, 1) - 1
    # Parents and links of old and new nodes.
    num_nodes = trie.num_nodes + int(first_path[-1])
    parent = np.empty(num_nodes, np.int32)
    link = np.empty(num_nodes, np.int32)
    parent[new_index] = np.where(trie.parent >= 0, new_index[trie.parent], -1)
    link[new_index] = trie.link
    parent[new_node[exists]] = new_index[paths.leaf[exists]]
    link[new_node[exists]] = paths.num_links
    # Path 2 k ends at the old end node, path 2 k + 1 at the appended node.
    leaves = np.full((paths.num_demands, 2 * paths.num_paths), -1, np.int32)
    leaves[:, 0::2][exists] = new_index[paths.leaf[exists]]
    leaves[:, 1::2][exists] = new_node[exists]
    source_ptr = (trie.source_ptr + num_previous_paths).astype(trie.source_ptr.dtype)
    return dataclasses.replace(
        paths,
        leaf=leaves,
        trie=Trie(parent, link, source_ptr),
        num_links=paths.num_links + 1,
        key=f"{paths.key}-moves",
    )
