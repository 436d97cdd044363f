"""A path set as compiled scans read it: nothing padded, no index wider than it must be."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from teal.network.trie import Trie
from teal.parallel import kernel

MOST_PATHS = 255  # a demand: its count is one byte
Unsigned = npt.NDArray[Any]  # uint16 or uint32
Pointers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class PackedPaths:
    """P paths and T trie nodes in the order in which scans pass over them, source by source.

    The nodes of a source are numbered from 1 within it, and 0 stands for the source itself, so that a
    scan needs no test for the top.  Indices are unsigned: 16 bits where everything fits, else 32; that
    halves what a scan reads and spares it the test for negative ones.

    Attributes:
        above: (T,) number of the node above, within its source.
        link: (T,) the link that leads into the node.
        end: (P,) number of the node where each path ends, within its source; no two share one.
        count: (D,) paths of each demand; its paths are consecutive.
        node_ptr, demand_ptr, path_ptr: (S + 1,) where each source begins.
        widest: numbers needed for the largest source, 0 included.
        num_links: E.
    """

    above: Unsigned
    link: Unsigned
    end: Unsigned
    count: npt.NDArray[np.uint8]
    node_ptr: Pointers
    demand_ptr: Pointers
    path_ptr: Pointers
    widest: int
    num_links: int

    @property
    def num_paths(self) -> int:
        """P."""
        return len(self.end)

    @property
    def arrays(self) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
        """What kernels take: above, link, end, count, node_ptr, demand_ptr, path_ptr."""
        return self.above, self.link, self.end, self.count, self.node_ptr, self.demand_ptr, self.path_ptr

    def blocks(self, work_per_block: int, most: int) -> Pointers:
        """(blocks + 1,) cuts of the sources into up to ``most`` runs of about equal work.

        Sums that go over the blocks in order do not depend on how many threads took part.
        """
        work = self.node_ptr + self.path_ptr
        sources = len(work) - 1
        blocks = int(np.clip(work[-1] // max(1, work_per_block), 1, min(most, max(1, sources))))
        cuts = np.searchsorted(work, np.linspace(0, work[-1], blocks + 1)[1:-1])
        return np.concatenate([[0], cuts, [sources]]).astype(np.int64)


def pack(leaf: npt.NDArray[np.int32], trie: Trie, demand_ptr: npt.NDArray[np.int32], num_links: int) -> PackedPaths:
    """Pack paths that fill the K places of each demand from the first on."""
    if leaf.shape[1] > MOST_PATHS:
        raise ValueError(f"at most {MOST_PATHS} paths a demand, not {leaf.shape[1]}")
    count = (leaf >= 0).sum(1, dtype=np.uint8)
    paths_before = np.concatenate([[0], np.cumsum(count, dtype=np.int64)])
    node_ptr = trie.source_ptr.astype(np.int64)
    widest = int(np.diff(node_ptr).max(initial=0)) + 1
    unsigned = np.uint16 if max(widest, num_links) <= np.iinfo(np.uint16).max else np.uint32
    above = np.empty(trie.num_nodes, dtype=unsigned)
    end = np.empty(paths_before[-1], dtype=unsigned)
    demands = demand_ptr.astype(np.int64)
    path_ptr = paths_before[demands]
    _number_within_sources(trie.parent, leaf, node_ptr, demands, path_ptr, above, end)
    return PackedPaths(above, trie.link.astype(unsigned), end, count, node_ptr, demands, path_ptr, widest, num_links)


@kernel
def _number_within_sources(  # type: ignore[no-untyped-def]
    parent, leaf, node_ptr, demand_ptr, path_ptr, above, end
) -> None:
    for s in range(len(node_ptr) - 1):
        first = node_ptr[s]
        for node in range(first, node_ptr[s + 1]):
            above[node] = parent[node] - first + 1 if parent[node] >= 0 else 0
        path = path_ptr[s]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            for k in range(leaf.shape[1]):
                if leaf[d, k] >= 0:
                    end[path] = leaf[d, k] - first + 1
                    path += 1
