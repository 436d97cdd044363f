"""A path set in the memory layout that compiled scans read: nothing padded, no index wider than
necessary.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from teal.network.trie import Trie
from teal.runtime.arrays import Int64Array, IntArray, UnsignedArray
from teal.runtime.parallel import kernel

MAX_PATHS = 255  # paths a demand, at most: the number of paths of a demand is stored in one byte


class PathScan(NamedTuple):
    """P paths, D demands and T trie nodes in the order in which scans visit them, source by source.

    The nodes of a source are numbered from 1 within the source, and 0 stands for the source itself,
    so that a scan needs no test for the root.  Indices are unsigned, 16 bits where every value
    fits, else 32: that halves the bytes that a scan reads and saves Numba's test for negative
    indices.

    Attributes:
        parent: (T,) number of each node's parent, within its source.
        link: (T,) the link that leads into each node.
        end_node: (P,) number of the node where each path ends, within its source; no two paths
            share one.
        path_count: (D,) number of paths of each demand; the paths of a demand are consecutive.
        node_ptr: (S + 1,) the nodes of source s are ``node_ptr[s]:node_ptr[s + 1]``.
        demand_ptr: (S + 1,) the same for demands.
        path_ptr: (S + 1,) the same for paths.
    """

    parent: UnsignedArray
    link: UnsignedArray
    end_node: UnsignedArray
    path_count: npt.NDArray[np.uint8]
    node_ptr: Int64Array
    demand_ptr: Int64Array
    path_ptr: Int64Array


@dataclasses.dataclass(frozen=True, eq=False)
class PackedPaths:
    """A path set as scans read it.

    Attributes:
        scan: the arrays.
        max_slots: node numbers that the source with most nodes needs, 0 included.
        num_links: E.
    """

    scan: PathScan
    max_slots: int
    num_links: int

    @property
    def num_paths(self) -> int:
        """P."""
        return len(self.scan.end_node)

    @property
    def num_nodes(self) -> int:
        """T."""
        return len(self.scan.parent)

    def blocks(self, min_work: int, max_blocks: int) -> Int64Array:
        """(blocks + 1,) source numbers that cut the sources into blocks of about equal work.

        Sums that are added up block by block do not depend on the number of threads.

        Args:
            min_work: trie nodes and paths of a block, at least.
            max_blocks: number of blocks, at most.
        """
        work = self.scan.node_ptr + self.scan.path_ptr
        sources = len(work) - 1
        count = int(np.clip(work[-1] // max(1, min_work), 1, min(max_blocks, max(1, sources))))
        cuts = np.searchsorted(work, np.linspace(0, work[-1], count + 1)[1:-1])
        return np.concatenate([[0], cuts, [sources]]).astype(np.int64)


def pack(leaf: IntArray, trie: Trie, demand_ptr: IntArray, num_links: int) -> PackedPaths:
    """Pack the paths of a path set (see :class:`teal.network.path_set.PathSet`).

    Args:
        leaf: (D, K) trie node where each path ends, -1 in the last columns where a demand has fewer
            than K paths.
        trie: the paths.
        demand_ptr: (S + 1,) the demands of each source.
        num_links: E.

    Raises:
        ValueError: K above :data:`MAX_PATHS`.
    """
    if leaf.shape[1] > MAX_PATHS:
        raise ValueError(f"at most {MAX_PATHS} paths a demand, not {leaf.shape[1]}")
    path_count = (leaf >= 0).sum(1, dtype=np.uint8)
    first_path = np.concatenate([[0], np.cumsum(path_count, dtype=np.int64)])  # (D + 1,)
    node_ptr = trie.source_ptr.astype(np.int64)
    max_slots = int(np.diff(node_ptr).max(initial=0)) + 1
    unsigned = np.uint16 if max(max_slots, num_links) <= np.iinfo(np.uint16).max else np.uint32
    parent = np.empty(trie.num_nodes, dtype=unsigned)
    end_node = np.empty(first_path[-1], dtype=unsigned)
    demands = demand_ptr.astype(np.int64)
    scan = PathScan(
        parent,
        trie.link.astype(unsigned),
        end_node,
        path_count,
        node_ptr,
        demands,
        first_path[demands],
    )
    _number_within_sources(trie.parent, leaf, scan)
    return PackedPaths(scan, max_slots, num_links)


@kernel
def _number_within_sources(parent: IntArray, leaf: IntArray, scan: PathScan) -> None:
    """Fill ``scan.parent`` and ``scan.end_node`` from node numbers that count over all sources."""
    for s in range(len(scan.node_ptr) - 1):
        first = scan.node_ptr[s]
        for node in range(first, scan.node_ptr[s + 1]):
            scan.parent[node] = parent[node] - first + 1 if parent[node] >= 0 else 0
        path = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            for k in range(leaf.shape[1]):
                if leaf[d, k] >= 0:
                    scan.end_node[path] = leaf[d, k] - first + 1
                    path += 1
