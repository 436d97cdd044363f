"""Candidate paths of a large network in shards: memory-mapped files with the paths of some sources.

:func:`divide` partitions the demands by source; :func:`compute_shard` computes or loads the
:class:`PathShard` of each part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

from teal.errors import InputError
from teal.network import subset
from teal.network.packed import PackedPaths, PathScan
from teal.network.path_options import PathMethod, PathWeight
from teal.network.path_set import PathSet
from teal.network.paths import compute_paths, search_key
from teal.network.topology import Topology
from teal.runtime.arrays import IntArray
from teal.runtime.storage import cache_dir, require_disk

# Part of the folder's name: increment it when the file format changes.
_CACHE_VERSION = 1
# Written last, so that its presence marks a complete folder.
_MANIFEST = "about.json"


@dataclasses.dataclass(frozen=True)
class PathSearch:
    """Settings of a candidate path search.

    Attributes:
        num_paths: K, the maximum number of paths of a demand.
        method: edge-disjoint, Yen's, or survivable (of cables).
        weight: measure of path length.
    """

    num_paths: int = 4
    method: PathMethod = PathMethod.DISJOINT
    weight: PathWeight = PathWeight.HOPS


@dataclasses.dataclass(frozen=True, eq=False)
class PathShard:
    """Candidate paths of all demands of some sources, in memory-mapped files.

    Attributes:
        folder: folder with one .npy file for each array of :class:`PathScan`.
        pairs: (D, 2) node pairs of the demands.
        num_paths: K.
        num_links: E.
        topology_key: content hash of the network's nodes and links.
    """

    folder: Path
    pairs: IntArray
    num_paths: int
    num_links: int
    topology_key: str

    def packed(self) -> PackedPaths:
        """Return the paths as memory-mapped arrays, which the operating system reads and drops on
        demand.
        """
        # Copy on write instead of read only, because kernels are compiled for writable arrays.
        arrays = (
            np.asarray(np.load(self.folder / f"{name}.npy", mmap_mode="c"))
            for name in PathScan._fields
        )
        scan = PathScan(*arrays)
        return PackedPaths(scan, int(np.diff(scan.node_ptr).max(initial=0)) + 1, self.num_links)

    def path_set(self) -> PathSet:
        """Load all paths of the shard into memory, and return them."""
        return self.subset(np.arange(len(self.pairs)))

    def subset(self, demands: np.ndarray) -> PathSet:
        """Load the paths of some demands into memory, and return them.

        Args:
            demands: (n,) indices of the demands within the shard, ascending.
        """
        return subset.extract_demands(
            self.packed(), demands, self.pairs[demands], self.num_paths, self.topology_key
        )


def divide(pairs: IntArray, count: int) -> list[slice]:
    """Partition the demands into consecutive shards of about equal size.

    All demands of a source are in the same shard.

    Args:
        pairs: (D, 2) source and target node of each demand, sorted by source.
        count: maximum number of shards.

    Returns:
        the slice of the demands of each shard.
    """
    # A shard ends with the demands of a source: the first that reaches the end of an equal part.
    source_starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
    source_ends = np.append(source_starts[1:], len(pairs))
    ideal_ends = np.linspace(0, len(pairs), count + 1)[1:]
    shard_ends = np.unique(source_ends[np.searchsorted(source_ends, ideal_ends - 0.5)])
    return [
        slice(int(begin), int(end))
        for begin, end in zip([0, *shard_ends[:-1]], shard_ends, strict=True)
    ]


def compute_shard(topology: Topology, pairs: IntArray, search: PathSearch) -> PathShard:
    """Return the candidate paths of some demands as a shard; compute them unless the disk cache has
    them.

    Args:
        topology: the network.
        pairs: (D, 2) source and target node of each demand, sorted; all demands of each source.
        search: settings of the path search.

    Raises:
        InputError: an invalid setting, too little memory or disk, or a folder that is not writable.
    """
    key = search_key(topology, pairs, search.num_paths, search.method, search.weight)
    folder = cache_dir("shards") / f"{_CACHE_VERSION}-{key}"
    shard = PathShard(folder, pairs, search.num_paths, topology.num_links, topology.graph_key())
    if _is_complete(folder, len(pairs)):
        return shard
    paths = compute_paths(
        topology,
        pairs,
        num_paths=search.num_paths,
        method=search.method,
        weight=search.weight,
        cache=False,
    )
    # Write the arrays to a temporary folder, which then replaces the final one.
    scan = paths.packed.scan
    require_disk(folder.parent, sum(array.nbytes for array in scan), "a shard of paths")
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        for name, array in scan._asdict().items():
            np.save(temporary / f"{name}.npy", array)
        lengths = {name: len(array) for name, array in scan._asdict().items()}
        (temporary / _MANIFEST).write_text(json.dumps(lengths))
        # Replace a missing or damaged folder; another process may have written it meanwhile.
        if not _is_complete(folder, len(pairs)):
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if not _is_complete(folder, len(pairs)):
        raise InputError.invalid(
            str(folder), "", "the paths cannot be stored", "check the permissions of this folder"
        )
    return shard


def _is_complete(folder: Path, demands: int) -> bool:
    """Return whether a folder has all files of a shard, with their full lengths.

    Args:
        folder: folder of the shard.
        demands: number of demands of the shard.
    """
    try:
        lengths = json.loads((folder / _MANIFEST).read_text())
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in PathScan._fields}
    except (EOFError, OSError, ValueError):
        return False
    return {name: len(array) for name, array in arrays.items()} == lengths and lengths[
        "path_count"
    ] == demands
