"""Which demands the network itself still connects while links are down, and the candidate paths
that follow.

A set of candidate paths stands for the network only as far as it keeps every demand that the
network connects.  So whether a demand is cut off is asked of the graph (:func:`reaches`), and a
path set is given the paths that it lacks (:func:`with_surviving_paths`) before anything is solved
or certified over it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from teal.errors import InputError
from teal.network.packed import MAX_PATHS
from teal.network.path_changes import paths_in_trees, with_more_paths
from teal.network.path_set import PathSet
from teal.network.shortest import shortest_trees
from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray


def reaches(
    topology: Topology, pairs: IntArray, live: BoolArray, max_latency: FloatArray | None = None
) -> BoolArray:
    """(D,) whether the network has a path from each source to its target; one does not lead through
    a node without transit traffic.

    Args:
        topology: the network.
        pairs: (D, 2) nodes.
        live: (E,) links that work.
        max_latency: (D,) ms that a path may take, infinite for no limit; None for no limits.
    """
    if topology.no_transit is not None and topology.no_transit.any():
        # Parts of the graph do not tell: a path may end at such a node and not pass it.
        everyone = np.arange(len(pairs))
        weight = np.where(live, 1.0, np.inf)
        distance, _, row = _trees(topology, weight, pairs, everyone)
        found = np.isfinite(distance[row, pairs[:, 1]])
    else:
        part, reach = _parts(topology, live)
        found = reach[part[pairs[:, 0]], part[pairs[:, 1]]]
    if max_latency is not None and np.isfinite(max_latency).any():
        limited = np.flatnonzero(found & np.isfinite(max_latency))
        distance, _, row = _trees(
            topology, np.where(live, topology.latency, np.inf), pairs, limited
        )
        found[limited] = distance[row[limited], pairs[limited, 1]] <= max_latency[limited]
    return found


def _parts(topology: Topology, live: BoolArray) -> tuple[IntArray, BoolArray]:
    """(N,) strongly connected part of each node, and (parts, parts) whether one leads to another
    one or is it.
    """
    from scipy.sparse import csr_array

    part = topology.with_capacity(live.astype(np.float64)).component_of_node()
    count = int(part.max()) + 1
    reach = np.eye(count, dtype=bool)
    between = part[topology.link_source[live]], part[topology.link_target[live]]
    reach[between] = True
    while count > 1:  # paths of twice as many links in each round
        step = csr_array(reach.astype(np.float32))
        further = (step @ step).toarray() > 0
        if (further == reach).all():
            break
        reach = further
    return part, reach


def _trees(
    topology: Topology, weight: FloatArray, pairs: IntArray, demands: Int64Array
) -> tuple[FloatArray, IntArray, Int64Array]:
    """Distances and links of the shortest-path trees of the demands' sources, and (D,) the row of
    each; 0 for others.

    Args:
        topology: the network.
        weight: (E,) of a link; infinite for one that may not be used.
        pairs: (D, 2) nodes.
        demands: (n,) numbers of those that are asked for.
    """
    sources, own = np.unique(pairs[demands, 0], return_inverse=True)
    row = np.zeros(len(pairs), dtype=np.int64)
    row[demands] = own.reshape(-1)
    distance, into = shortest_trees(
        topology.num_nodes,
        topology.link_source,
        topology.link_target,
        weight,
        sources,
        topology.no_transit,
    )
    return distance, into, row


def has_live_path(paths: PathSet, live: BoolArray) -> BoolArray:
    """(D,) whether one of each demand's paths crosses links that work, (E,), alone."""
    if live.all():
        return np.asarray(paths.mask.any(1))
    works = np.zeros(
        paths.trie.num_nodes + 1, dtype=bool
    )  # the last entry is for missing paths, whose leaf is -1
    for level in paths.trie.levels:  # parents come before children
        parent = paths.trie.parent[level]
        works[level] = live[paths.trie.link[level]] & ((parent < 0) | works[parent])
    return np.asarray(works[paths.leaf].any(1))


def with_surviving_paths(
    paths: PathSet,
    topology: Topology,
    failures: Iterable[Iterable[int]] = ((),),
    *,
    max_latency: FloatArray | None = None,
) -> PathSet:
    """``paths`` with a path for each demand that the network connects during a failure and no path
    of it survives.

    The added path is one of fewest links that work (of least latency where the demand has a limit),
    behind those of the demand.  The same set comes back where it lacks nothing.

    Args:
        paths: paths of D demands.
        topology: the network; links of capacity 0 work under no failure.
        failures: numbers of the links of each; one without links asks for the network as it is.
        max_latency: (D,) ms that a path may take, infinite for no limit; None for no limits.

    Raises:
        InputError: a demand has as many paths as a path set can hold.
    """
    open_failures = [list(failure) for failure in failures]
    while open_failures:
        added: dict[int, IntArray] = {}  # one path a demand in each round
        left = []
        for failure in open_failures:
            live = topology.capacity > 0
            live[failure] = False
            missing = np.flatnonzero(~has_live_path(paths, live))
            missing = missing[
                reaches(
                    topology,
                    paths.pairs[missing],
                    live,
                    None if max_latency is None else max_latency[missing],
                )
            ]
            wanted = np.array([d for d in missing.tolist() if d not in added], dtype=np.int64)
            if any(not live[added[d]].all() for d in missing.tolist() if d in added):
                left.append(failure)
            if len(wanted):
                limited = (
                    np.zeros(len(wanted), bool)
                    if max_latency is None
                    else np.isfinite(max_latency[wanted])
                )
                for part, weight in (
                    (wanted[~limited], np.ones(len(live))),
                    (wanted[limited], topology.latency),
                ):
                    if len(part):
                        added.update(
                            _paths_of(topology, np.where(live, weight, np.inf), paths.pairs, part)
                        )
        paths = _with_paths(paths, topology, added)
        open_failures = left
    return paths


def _paths_of(
    topology: Topology, weight: FloatArray, pairs: IntArray, demands: Int64Array
) -> dict[int, IntArray]:
    """The links of a path of least weight of each demand."""
    _, into, row = _trees(topology, weight, pairs, demands)
    ptr, links = paths_in_trees(demands, pairs, row, into, topology.link_source)
    return {d: links[ptr[d] : ptr[d + 1]] for d in demands.tolist()}


def _with_paths(paths: PathSet, topology: Topology, added: dict[int, IntArray]) -> PathSet:
    """``paths`` with a further path, of these links, for each of some demands."""
    if not added:
        return paths
    for d in added:
        if paths.num_paths == MAX_PATHS and paths.mask[d].all():
            ends = "->".join(topology.node_names[node] for node in paths.pairs[d])
            raise InputError(
                "paths",
                ends,
                f"fewer than {MAX_PATHS} paths, so that one that survives fits",
                MAX_PATHS,
            )
    length = np.zeros(paths.num_demands, dtype=np.int64)
    order = sorted(added)
    length[order] = [len(added[d]) for d in order]
    ptr = np.concatenate([[0], np.cumsum(length)])
    return with_more_paths(paths, ptr, np.concatenate([added[d] for d in order]).astype(np.int32))
