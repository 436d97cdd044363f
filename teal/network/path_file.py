"""Files of candidate paths (.npz): :func:`save_paths`, :func:`load_paths`.

A file is validated when it is read, because kernels do not check the indices of a path set.
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Protocol

import numpy as np

from teal.errors import InputError
from teal.network.packed import MAX_PATHS
from teal.network.path_set import PathSet
from teal.network.topology import Topology
from teal.network.trie import Trie
from teal.runtime.archives import check_npz
from teal.runtime.arrays import Int64Array, IntArray
from teal.runtime.storage import atomic_file, is_transient

_EXPECTED_FILE = "a path file, as written by `teal paths improve`"


def save_paths(file: Path | str, paths: PathSet) -> None:
    """Write a path set to a .npz file.

    Args:
        file: the file.
        paths: the path set.
    """
    with atomic_file(Path(file)) as temporary:
        np.savez(
            temporary,
            pairs=paths.pairs,
            leaf=paths.leaf,
            demand_ptr=paths.demand_ptr,
            parent=paths.trie.parent,
            link=paths.trie.link,
            source_ptr=paths.trie.source_ptr,
            keys=np.array([paths.key, paths.topology_key]),
        )


def load_paths(file: Path | str, topology: Topology) -> PathSet:
    """Read and validate a path set that :func:`save_paths` has written.

    Args:
        file: the .npz file.
        topology: network of the paths.

    Raises:
        InputError: a missing or damaged file, or paths over another network.
        OSError: a transient failure, such as too many open files.
    """
    file = Path(file)
    # Read the arrays; a damaged file raises any of these exceptions.
    try:
        paths = _read(file, topology)
    except OSError as error:
        if is_transient(error):
            raise
        raise InputError.invalid(
            str(file), "", str(error.strerror or error), f"pass {_EXPECTED_FILE}"
        ) from None
    except (
        EOFError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        SyntaxError,
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ):
        raise InputError(str(file), "", _EXPECTED_FILE, "another file") from None
    # Validate network and indices.
    if paths.topology_key != topology.graph_key():
        raise InputError.invalid(
            str(file),
            "paths",
            f"the paths belong to another network than {topology.name}",
            "compute the paths again, or pass the network of the file",
        )
    _check_paths(str(file), paths, topology)
    return paths


def _read(file: Path, topology: Topology) -> PathSet:
    """Read the path set of a file, without validating its arrays.

    Args:
        file: the .npz file.
        topology: network of the paths, which gives the number of links.
    """
    check_npz(file)
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        trie = Trie(stored["parent"], stored["link"], stored["source_ptr"])
        key, topology_key = (str(text) for text in stored["keys"])
        return PathSet(
            stored["pairs"],
            stored["leaf"],
            trie,
            stored["demand_ptr"],
            topology.num_links,
            key,
            topology_key,
        )


def check_pairs(topology: Topology, pairs: IntArray) -> None:
    """Raise InputError unless node pairs are distinct, and sorted by source and target.

    Args:
        topology: the network.
        pairs: (D, 2) source and target node of each pair.
    """
    if pairs.ndim != 2 or pairs.shape[1] != 2 or len(pairs) == 0:
        raise InputError("paths", "pairs", "(D, 2) node pairs, D >= 1", pairs.shape)
    if pairs.min() < 0 or pairs.max() >= topology.num_nodes:
        raise InputError(
            "paths",
            "pairs",
            f"node indices in 0..{topology.num_nodes - 1}",
            f"indices in {pairs.min()}..{pairs.max()}",
        )
    sort_key = pairs[:, 0].astype(np.int64) * topology.num_nodes + pairs[:, 1]
    if (np.diff(sort_key) <= 0).any():
        raise InputError.invalid(
            "paths",
            "pairs",
            "node pairs are not sorted by source and target, or repeat",
            "sort them, each pair once",
        )


def _check_paths(where: str, paths: PathSet, topology: Topology) -> None:
    """Raise InputError unless the arrays describe paths from each demand's source to its target.

    Args:
        where: the file, for messages.
        paths: the path set.
        topology: its network.
    """

    def require(is_valid: bool, field: str, rule: str) -> None:
        """Raise InputError with a field and the violated rule unless ``is_valid``."""
        if not is_valid:
            raise InputError.invalid(where, field, rule, "compute the paths again")

    _check_arrays(paths, topology, require)
    _check_pointers(paths, require)
    sources = np.unique(paths.pairs[:, 0])
    # (T,) index of each trie node's source.
    source_of_node = np.repeat(np.arange(len(sources)), np.diff(paths.trie.source_ptr))
    _check_trie(paths, topology, sources, source_of_node, require)
    _check_leaves(paths, topology, sources[source_of_node], require)


class _Require(Protocol):
    """Type of a function that raises InputError with a field and a violated rule unless
    ``is_valid``.
    """

    def __call__(self, is_valid: bool, field: str, rule: str) -> None: ...


def _check_arrays(paths: PathSet, topology: Topology, require: _Require) -> None:
    """Raise an error for a wrong type or shape of an array, or invalid node pairs.

    Args:
        paths: the path set.
        topology: its network.
        require: raises the error.
    """
    trie = paths.trie
    leaves = paths.leaf
    # Types and numbers of axes.
    for field, array, axes in (
        ("pairs", paths.pairs, 2),
        ("leaf", leaves, 2),
        ("parent", trie.parent, 1),
        ("link", trie.link, 1),
        ("source_ptr", trie.source_ptr, 1),
        ("demand_ptr", paths.demand_ptr, 1),
    ):
        require(
            array.dtype == np.int32 and array.ndim == axes,
            field,
            f"the array must be of type int32 and have {axes} axes",
        )
    # Node pairs, and the lengths of the arrays.
    check_pairs(topology, paths.pairs)
    require(
        len(leaves) == len(paths.pairs) and 1 <= leaves.shape[1] <= MAX_PATHS,
        "leaf",
        f"the array must have a row for each pair and 1 to {MAX_PATHS} columns",
    )
    require(
        len(trie.link) == len(trie.parent), "link", "the array must be as long as the array parent"
    )
    require(
        len(paths.demand_ptr) == len(trie.source_ptr) > 1,
        "demand_ptr",
        "the array must be as long as source_ptr",
    )


def _check_pointers(paths: PathSet, require: _Require) -> None:
    """Raise an error for invalid CSR pointers to the trie nodes or demands of each source.

    Args:
        paths: the path set.
        require: raises the error.
    """
    # Each pointer array rises from 0 to the number of entries.
    trie = paths.trie
    for field, ptr, num_entries in (
        ("source_ptr", trie.source_ptr, trie.num_nodes),
        ("demand_ptr", paths.demand_ptr, len(paths.leaf)),
    ):
        is_rising = ptr[0] == 0 and ptr[-1] == num_entries and (np.diff(ptr) >= 0).all()
        require(bool(is_rising), field, f"the pointers must rise from 0 to {num_entries}")
    # The demands of a source are those between its two pointers.
    sources = np.unique(paths.pairs[:, 0])
    grouping_rule = "the pointers must group the demands by source"
    require(len(sources) == len(paths.demand_ptr) - 1, "demand_ptr", grouping_rule)
    source_of_demand = np.repeat(sources, np.diff(paths.demand_ptr))
    require(np.array_equal(source_of_demand, paths.pairs[:, 0]), "demand_ptr", grouping_rule)


def _check_trie(
    paths: PathSet,
    topology: Topology,
    sources: IntArray,
    source_of_node: Int64Array,
    require: _Require,
) -> None:
    """Raise an error for an invalid trie.

    Each node must have an earlier parent of the same source, and a link that starts where the
    parent's link ends (without parent: at the source).

    Args:
        paths: the path set.
        topology: its network.
        sources: (S,) node of each source.
        source_of_node: (T,) index of each trie node's source.
        require: raises the error.
    """
    # Parents come first, and link indices are in range.
    trie = paths.trie
    node_index = np.arange(trie.num_nodes)
    is_earlier = (trie.parent >= -1) & (trie.parent < node_index)
    require(bool(is_earlier.all()), "parent", "a parent must come before its children")
    require(
        bool(((trie.link >= 0) & (trie.link < topology.num_links)).all()),
        "link",
        f"link indices must be in 0..{topology.num_links - 1}",
    )
    has_parent = trie.parent >= 0
    require(
        np.array_equal(source_of_node[trie.parent[has_parent]], source_of_node[has_parent]),
        "parent",
        "a node and its parent must belong to the same source",
    )
    # A link starts at the source, or where the parent's link ends.
    expected_start = sources[source_of_node]
    expected_start[has_parent] = topology.link_target[trie.link[trie.parent[has_parent]]]
    require(
        np.array_equal(topology.link_source[trie.link], expected_start),
        "link",
        "a link must start where the link of the parent node ends",
    )


def _check_leaves(
    paths: PathSet, topology: Topology, node_source: IntArray, require: _Require
) -> None:
    """Raise an error unless each path ends at a trie node of its own, and leads from the source to
    the target of its demand.

    Args:
        paths: the path set.
        topology: its network.
        node_source: (T,) node of each trie node's source.
        require: raises the error.
    """
    trie = paths.trie
    has_path = paths.leaf >= 0
    require(
        bool((np.diff(has_path.astype(np.int8), axis=1) <= 0).all()),
        "leaf",
        "the paths of a demand must come before its empty slots",
    )
    # (P,) end node and demand of each path.
    end_nodes = paths.leaf[has_path]
    demand_of_path = np.nonzero(has_path)[0]
    require(
        bool((end_nodes < trie.num_nodes).all()),
        "leaf",
        f"node indices must be below {trie.num_nodes}",
    )
    require(
        int(np.bincount(end_nodes).max(initial=0)) <= 1,
        "leaf",
        "two paths must not end at the same trie node",
    )
    # Source and target of each path.
    require(
        np.array_equal(node_source[end_nodes], paths.pairs[demand_of_path, 0]),
        "leaf",
        "a path must start at the source of its demand",
    )
    require(
        np.array_equal(topology.link_target[trie.link[end_nodes]], paths.pairs[demand_of_path, 1]),
        "leaf",
        "a path must end at the target of its demand",
    )
