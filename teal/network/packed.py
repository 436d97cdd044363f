"""Path sets in the memory layout of compiled CPU scans: no padding, minimal index widths.

:func:`pack` converts a path set into :class:`PackedPaths`, whose :class:`PathScan` holds paths,
demands and trie nodes in scan order.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from teal.network.trie import Trie
from teal.runtime.arrays import Int64Array, IntArray, UnsignedArray
from teal.runtime.parallel import kernel

# The number of paths of a demand is stored in one byte.
MAX_PATHS = 255


def num_ranges(offsets: Int64Array) -> int:
    """Return the number n of ranges that an array of offsets delimits.

    Args:
        offsets: (n + 1,) first entry of each range, such as a block of sources, and the end of the
            last one.
    """
    return len(offsets) - 1


class PathScan(NamedTuple):
    """P paths, D demands and T trie nodes in scan order, source by source.

    The nodes of a source are numbered from 1 within the source, and 0 is the source itself, so that
    a scan needs no test for the root.  Indices are unsigned, 16 bits where every value fits, else
    32: this halves the memory traffic of a scan and saves Numba's test for negative indices.

    Attributes:
        parent: (T,) number of each node's parent, within its source.
        link: (T,) link that leads into each node.
        end_node: (P,) number of the node where each path ends, within its source; distinct.
        path_count: (D,) number of paths of each demand; the paths of a demand are consecutive.
        node_ptr: (S + 1,) the nodes of source s are ``node_ptr[s]:node_ptr[s + 1]``.
        demand_ptr: (S + 1,) the demands of source s are ``demand_ptr[s]:demand_ptr[s + 1]``.
        path_ptr: (S + 1,) the paths of source s are ``path_ptr[s]:path_ptr[s + 1]``, demand by
            demand.
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
    """Path set in the memory layout of compiled scans.

    Attributes:
        scan: arrays in scan order.
        max_trie_nodes: maximum number of nodes of a source, including the source itself.
        num_links: E.
    """

    scan: PathScan
    max_trie_nodes: int
    num_links: int

    @property
    def num_paths(self) -> int:
        """The number P of paths."""
        return len(self.scan.end_node)

    @property
    def num_nodes(self) -> int:
        """The number T of trie nodes."""
        return len(self.scan.parent)

    def blocks(self, min_work: int, max_blocks: int) -> Int64Array:
        """Partition the sources into blocks of about equal work.

        Sums that are accumulated block by block do not depend on the number of threads.

        Args:
            min_work: minimum number of trie nodes and paths of a block.
            max_blocks: maximum number of blocks.

        Returns:
            (blocks + 1,) first source of each block, and the number of sources.
        """
        # (S + 1,) number of trie nodes and paths before each source, and in all.
        cumulative_work = self.scan.node_ptr + self.scan.path_ptr
        num_sources = len(cumulative_work) - 1
        num_blocks = int(
            np.clip(
                cumulative_work[-1] // max(1, min_work), 1, min(max_blocks, max(1, num_sources))
            )
        )
        block_starts = np.searchsorted(
            cumulative_work, np.linspace(0, cumulative_work[-1], num_blocks + 1)[1:-1]
        )
        return np.concatenate([[0], block_starts, [num_sources]]).astype(np.int64)


def pack(leaf: IntArray, trie: Trie, demand_ptr: IntArray, num_links: int) -> PackedPaths:
    """Convert the paths of D demands from S sources into the layout of compiled CPU scans.

    Args:
        leaf: (D, K) trie node where each path ends, -1 in the last columns where a demand has fewer
            than K paths.
        trie: path trie of all sources.
        demand_ptr: (S + 1,) the demands of source s are ``demand_ptr[s]:demand_ptr[s + 1]``.
        num_links: E.

    Raises:
        ValueError: K exceeds :data:`MAX_PATHS`.
    """
    if leaf.shape[1] > MAX_PATHS:
        raise ValueError(f"{leaf.shape[1]} paths per demand: at most {MAX_PATHS} are supported")
    # (D,) number of paths of each demand, and (D + 1,) index of its first path.
    path_count = (leaf >= 0).sum(1, dtype=np.uint8)
    first_path = np.concatenate([[0], np.cumsum(path_count, dtype=np.int64)])
    node_ptr = trie.source_ptr.astype(np.int64)
    max_trie_nodes = int(np.diff(node_ptr).max(initial=0)) + 1
    # The smallest type that holds all node numbers and link indices.
    index_dtype = (
        np.uint16 if max(max_trie_nodes, num_links) <= np.iinfo(np.uint16).max else np.uint32
    )
    parent = np.empty(trie.num_nodes, dtype=index_dtype)
    end_node = np.empty(first_path[-1], dtype=index_dtype)
    # The pointers in 64 bits.
    wide_demand_ptr = demand_ptr.astype(np.int64)
    scan = PathScan(
        parent,
        trie.link.astype(index_dtype),
        end_node,
        path_count,
        node_ptr,
        wide_demand_ptr,
        first_path[wide_demand_ptr],
    )
    # Write the parents and end nodes.
    _number_within_sources(trie.parent, leaf, scan)
    return PackedPaths(scan, max_trie_nodes, num_links)


@kernel
def _number_within_sources(parent: IntArray, leaf: IntArray, scan: PathScan) -> None:
    """Convert node indices of the whole trie to numbers within each source.

    Node i of the source whose nodes begin at ``first_node`` gets the number ``i - first_node + 1``;
    0 is the source itself.

    Args:
        parent: (T,) parent of each node, -1 for the source.
        leaf: (D, K) trie node where each path ends, -1 where there is no path.
        scan: packed paths; ``parent`` (T,) and ``end_node`` (P,) are written.
    """
    for s in range(len(scan.node_ptr) - 1):
        first_node = scan.node_ptr[s]
        for node in range(first_node, scan.node_ptr[s + 1]):
            scan.parent[node] = parent[node] - first_node + 1 if parent[node] >= 0 else 0
        path = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            for k in range(leaf.shape[1]):
                if leaf[d, k] >= 0:
                    scan.end_node[path] = leaf[d, k] - first_node + 1
                    path += 1
