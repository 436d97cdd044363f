"""The path trie in breadth-first order: the layout for a device that scans all nodes of a level at once."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from teal.network.packed import PackedPaths, PathScan
from teal.runtime.arrays import Int64Array, IntArray, UnsignedArray
from teal.runtime.parallel import kernel


@dataclasses.dataclass(frozen=True, eq=False)
class LevelTrie:
    """T trie nodes; those of a source are numbered 1, 2, ... level by level with siblings adjacent, 0 is the source.

    The children of node i are then ``child_end[i - 1]`` to ``child_end[i] - 1`` (those of node 1 begin where level 1
    ends), so that a sum over the children of a node reads adjacent entries, in one fixed order.

    Attributes:
        parent: (T,) number of each node's parent, within its source.
        link: (T,) the link that leads into each node.
        child_end: (T,) number after the last child of each node.
        is_path_end: (T,) 1 where a path ends.
        end_node: (D, K) number of the node where each path ends, 0 where there is no path.
        path_count: (D,) number of paths of each demand.
        node_ptr: (S + 1,) the nodes of source s are ``node_ptr[s]:node_ptr[s + 1]``.
        demand_ptr: (S + 1,) the same for demands.
        level_ptr: (S + 1,) the same for ``level_end``.
        level_end: (levels of all sources,) number after the last node of each level.
        link_ptr: (E + 1,) the nodes into which link e leads are ``link_node[link_ptr[e]:link_ptr[e + 1]]``.
        link_node: (T,) node numbers from 0 to T - 1 over all sources, ascending for each link.
        max_slots: node numbers that the source with most nodes needs, 0 included.
    """

    parent: UnsignedArray
    link: UnsignedArray
    child_end: UnsignedArray
    is_path_end: npt.NDArray[np.uint8]
    end_node: UnsignedArray
    path_count: npt.NDArray[np.uint8]
    node_ptr: Int64Array
    demand_ptr: Int64Array
    level_ptr: Int64Array
    level_end: IntArray
    link_ptr: Int64Array
    link_node: IntArray
    max_slots: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))


def by_level(packed: PackedPaths, num_paths: int) -> LevelTrie:
    """Renumber the nodes of a packed path set level by level.

    Args:
        packed: its nodes must come after their parents.
        num_paths: K.
    """
    scan, nodes, demands = packed.scan, packed.num_nodes, len(packed.scan.path_count)
    unsigned = scan.parent.dtype
    parent, link, child_end = np.empty((3, nodes), unsigned)
    is_path_end = np.zeros(nodes, np.uint8)
    end_node = np.zeros((demands, num_paths), unsigned)
    level_ptr = np.zeros(len(scan.node_ptr), np.int64)
    level_end = np.empty(nodes, np.int32)  # no source has more levels than nodes
    levels = _renumber(
        scan, packed.max_slots, parent, link, child_end, is_path_end, end_node, level_ptr, level_end
    )  # fmt: skip
    link_ptr = np.concatenate([[0], np.cumsum(np.bincount(link, minlength=packed.num_links))]).astype(np.int64)
    link_node = np.argsort(link, kind="stable").astype(np.int32)
    return LevelTrie(
        parent, link, child_end, is_path_end, end_node, scan.path_count, scan.node_ptr, scan.demand_ptr, level_ptr,
        level_end[:levels].copy(), link_ptr, link_node, packed.max_slots,
    )  # fmt: skip


@kernel
def _renumber(
    scan: PathScan,
    max_slots: int,
    parent: UnsignedArray,
    link: UnsignedArray,
    child_end: UnsignedArray,
    is_path_end: npt.NDArray[np.uint8],
    end_node: UnsignedArray,
    level_ptr: Int64Array,
    level_end: IntArray,
) -> int:
    """Fill the arrays of a LevelTrie; the number of levels of all sources."""
    first_child, next_sibling = np.empty(max_slots, np.int64), np.empty(max_slots, np.int64)
    new_number, old_number = np.empty(max_slots, np.int64), np.empty(max_slots, np.int64)
    levels = 0
    for s in range(len(scan.node_ptr) - 1):
        base, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        first_child[: nodes + 1] = 0  # 0 stands for none: the source is no node's child
        for n in range(nodes, 0, -1):
            above = scan.parent[base + n - 1]
            next_sibling[n] = first_child[above]
            first_child[above] = n
        old_number[0], new_number[0] = 0, 0
        assigned, level_stop = 1, 1  # numbers given so far; the number after the last node of the current level
        for i in range(nodes + 1):
            if i == level_stop:
                level_end[levels] = assigned
                level_stop, levels = assigned, levels + 1
            child = first_child[old_number[i]]
            while child:
                old_number[assigned], new_number[child] = child, assigned
                parent[base + assigned - 1], link[base + assigned - 1] = i, scan.link[base + child - 1]
                assigned += 1
                child = next_sibling[child]
            if i:
                child_end[base + i - 1] = assigned
            elif nodes:
                level_end[levels] = assigned
                level_stop, levels = assigned, levels + 1
        level_ptr[s + 1] = levels
        p = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            for k in range(scan.path_count[d]):
                end_node[d, k] = new_number[scan.end_node[p]]
                is_path_end[base + end_node[d, k] - 1] = 1
                p += 1
    return levels
