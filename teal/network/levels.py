"""The path trie in breadth-first order: what a device reads that scans a whole level at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.network.packed import PackedPaths
from teal.network.topology import IntArray
from teal.parallel import kernel

Unsigned = npt.NDArray[Any]  # uint16 or uint32
Pointers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class LevelTrie:
    """T nodes, those of a source numbered 1, 2, ... level by level, siblings side by side; 0 is the source.

    The nodes below node i are then ``below[i - 1]`` to ``below[i] - 1`` (those below node 1 begin where level 1
    ends), so that a sum over what hangs below a node reads a run of neighbours, in one fixed order.

    Attributes:
        above: (T,) number of the node above; link: (T,) the link that leads into the node.
        below: (T,) number after the last node below this one.
        ends: (T,) 1 where a path ends.
        end: (D, K) number of the node where each path ends, 0 where there is none; count: (D,) paths.
        node_ptr, demand_ptr, level_ptr: (S + 1,) where each source begins.
        level_end: number after the last node of each level, source by source.
        link_ptr: (E + 1,), link_node: (T,) the nodes into which each link leads, 0 to T - 1, ascending.
        widest: numbers needed for the largest source, 0 included.
    """

    above: Unsigned
    link: Unsigned
    below: Unsigned
    ends: npt.NDArray[np.uint8]
    end: Unsigned
    count: npt.NDArray[np.uint8]
    node_ptr: Pointers
    demand_ptr: Pointers
    level_ptr: Pointers
    level_end: IntArray
    link_ptr: Pointers
    link_node: IntArray
    widest: int

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))


def by_level(packed: PackedPaths, num_paths: int) -> LevelTrie:
    """Renumber.

    Args:
        packed: with parents before children.
        num_paths: K.
    """
    nodes, demands, unsigned = len(packed.above), len(packed.count), packed.above.dtype
    above, link, below = np.empty((3, nodes), unsigned)
    ends = np.zeros(nodes, np.uint8)
    end = np.zeros((demands, num_paths), unsigned)
    level_ptr = np.zeros(len(packed.node_ptr), np.int64)
    level_end = np.empty(nodes, np.int32)  # no source has more levels than nodes
    found = _renumber(*packed.arrays, packed.widest, above, link, below, ends, end, level_ptr, level_end)
    link_ptr = np.concatenate([[0], np.cumsum(np.bincount(link, minlength=packed.num_links))]).astype(np.int64)
    link_node = np.argsort(link, kind="stable").astype(np.int32)
    return LevelTrie(
        above, link, below, ends, end, packed.count, packed.node_ptr, packed.demand_ptr, level_ptr,
        level_end[:found].copy(), link_ptr, link_node, packed.widest,
    )  # fmt: skip


@kernel
def _renumber(  # type: ignore[no-untyped-def]
    old_above, old_link, old_end, count, node_ptr, demand_ptr, path_ptr, widest, above, link, below, ends, end,
    level_ptr, level_end,
) -> int:  # fmt: skip
    first_child, next_sibling = np.empty(widest, np.int64), np.empty(widest, np.int64)
    place, order = np.empty(widest, np.int64), np.empty(widest, np.int64)
    levels = 0
    for s in range(len(node_ptr) - 1):
        base, nodes = node_ptr[s], node_ptr[s + 1] - node_ptr[s]
        first_child[: nodes + 1] = 0  # 0 stands for none: the source is nobody's child
        for n in range(nodes, 0, -1):
            top = old_above[base + n - 1]
            next_sibling[n] = first_child[top]
            first_child[top] = n
        order[0], place[0] = 0, 0
        put, level_stop = 1, 1  # numbers given; after the last of the level that is read
        for i in range(nodes + 1):
            if i == level_stop:
                level_end[levels] = put
                level_stop, levels = put, levels + 1
            child = first_child[order[i]]
            while child:
                order[put], place[child] = child, put
                above[base + put - 1], link[base + put - 1] = i, old_link[base + child - 1]
                put += 1
                child = next_sibling[child]
            if i:
                below[base + i - 1] = put
            elif nodes:
                level_end[levels] = put
                level_stop, levels = put, levels + 1
        level_ptr[s + 1] = levels
        p = path_ptr[s]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            for k in range(count[d]):
                end[d, k] = place[old_end[p]]
                ends[base + end[d, k] - 1] = 1
                p += 1
    return levels
