"""Reachability of demands under link failures, and candidate paths that preserve it.

:func:`reaches` decides on the graph whether a demand is disconnected; :func:`with_surviving_paths`
adds the candidate paths that a path set lacks, so that it serves every demand that the network
connects, before anything is solved or certified over it.
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
    """Return whether the network has a path for each node pair, (D,) booleans.

    Paths do not pass through nodes without transit.

    Args:
        topology: the network.
        pairs: (D, 2) source and target nodes.
        live: (E,) whether each link is up.
        max_latency: (D,) maximum path latency, ms, infinite for no limit; None for no limits.
    """
    if topology.no_transit is not None and topology.no_transit.any():
        # Components are not sufficient: a path may end at such a node but not pass through it.
        all_demands = np.arange(len(pairs))
        weight = np.where(live, 1.0, np.inf)
        distance, _, source_row = _shortest_path_trees(topology, weight, pairs, all_demands)
        is_reachable = np.isfinite(distance[source_row, pairs[:, 1]])
    else:
        component, component_reaches = _component_reachability(topology, live)
        is_reachable = component_reaches[component[pairs[:, 0]], component[pairs[:, 1]]]
    # Demands with a latency limit need a path within it.
    if max_latency is not None and np.isfinite(max_latency).any():
        limited_demands = np.flatnonzero(is_reachable & np.isfinite(max_latency))
        distance, _, source_row = _shortest_path_trees(
            topology, np.where(live, topology.latency, np.inf), pairs, limited_demands
        )
        is_reachable[limited_demands] = (
            distance[source_row[limited_demands], pairs[limited_demands, 1]]
            <= max_latency[limited_demands]
        )
    return is_reachable


def _component_reachability(topology: Topology, live: BoolArray) -> tuple[IntArray, BoolArray]:
    """Return the strongly connected component (N,) of each node, and which components reach each
    other.

    Args:
        topology: the network.
        live: (E,) whether each link is up.

    Returns:
        component (N,) of each node, and (C, C) whether component i reaches component j; a component
        reaches itself.
    """
    from scipy.sparse import csr_array

    component = topology.with_capacity(live.astype(np.float64)).component_of_node()
    num_components = int(component.max()) + 1
    # A component reaches itself, and those to which its links lead.
    component_reaches = np.eye(num_components, dtype=bool)
    link_components = component[topology.link_source[live]], component[topology.link_target[live]]
    component_reaches[link_components] = True
    # Transitive closure by repeated squaring: each round doubles the length of the paths covered.
    while num_components > 1:
        reach_matrix = csr_array(component_reaches.astype(np.float32))
        two_step_reach = (reach_matrix @ reach_matrix).toarray() > 0
        if (two_step_reach == component_reaches).all():
            break
        component_reaches = two_step_reach
    return component, component_reaches


def _shortest_path_trees(
    topology: Topology, weight: FloatArray, pairs: IntArray, demands: Int64Array
) -> tuple[FloatArray, IntArray, Int64Array]:
    """Compute the shortest-path trees of the S sources of some demands.

    Args:
        topology: the network.
        weight: (E,) link weights, infinite for unusable links.
        pairs: (D, 2) source and target nodes.
        demands: (n,) indices of the requested demands.

    Returns:
        distance (S, N) from each source, link into each node (S, N), and the row of each demand's
        source (D,), 0 for demands that were not requested.
    """
    sources, source_row = np.unique(pairs[demands, 0], return_inverse=True)
    row_of_demand = np.zeros(len(pairs), dtype=np.int64)
    row_of_demand[demands] = source_row.reshape(-1)
    distance, pred_link = shortest_trees(
        topology.num_nodes,
        topology.link_source,
        topology.link_target,
        weight,
        sources,
        topology.no_transit,
    )
    return distance, pred_link, row_of_demand


def has_live_path(paths: PathSet, live: BoolArray) -> BoolArray:
    """Return whether each demand has a path whose links are all up, (D,) booleans.

    Args:
        paths: paths of D demands.
        live: (E,) whether each link is up.
    """
    if live.all():
        return np.asarray(paths.mask.any(1))
    # (T + 1,) whether all links up to a node are up; the last entry stands for missing paths, whose
    # leaf is -1.
    is_live = np.zeros(paths.trie.num_nodes + 1, dtype=bool)
    # Parents come before children.
    for level in paths.trie.levels:
        parent = paths.trie.parent[level]
        is_live[level] = live[paths.trie.link[level]] & ((parent < 0) | is_live[parent])
    return np.asarray(is_live[paths.leaf].any(1))


def with_surviving_paths(
    paths: PathSet,
    topology: Topology,
    failures: Iterable[Iterable[int]] = ((),),
    *,
    max_latency: FloatArray | None = None,
) -> PathSet:
    """Return the path set with added paths, so that failures disconnect a demand only where they
    disconnect it in the network.

    A demand gets a path if the network connects source and target under a failure, but none of
    its paths survives.  The added path has fewest links (minimum latency where the demand has a
    limit) and comes last.  If no path is missing, the set is returned unchanged.

    Args:
        paths: paths of D demands.
        topology: the network; links of capacity 0 are down under every failure.
        failures: link indices of each failure; an empty one stands for the nominal network.
        max_latency: (D,) maximum path latency, ms, infinite for no limit; None for no limits.

    Raises:
        InputError: a demand has the maximum number of paths already.
    """
    # Failures that have not been checked with the current paths.
    open_failures = [list(failure) for failure in failures]
    while open_failures:
        # Each round adds at most one path to a demand: links of the new path by demand index.
        added_links: dict[int, IntArray] = {}
        failures_to_recheck = []
        for failure in open_failures:
            live = topology.capacity > 0
            live[failure] = False
            # Demands without a surviving path that the network connects under the failure.
            demands_lacking_path = np.flatnonzero(~has_live_path(paths, live))
            demands_lacking_path = demands_lacking_path[
                reaches(
                    topology,
                    paths.pairs[demands_lacking_path],
                    live,
                    None if max_latency is None else max_latency[demands_lacking_path],
                )
            ]
            # Those without a path added in this round.
            demands_to_extend = np.array(
                [d for d in demands_lacking_path.tolist() if d not in added_links], dtype=np.int64
            )
            # If a path added in this round does not survive, check the failure in the next round.
            if any(
                not live[added_links[d]].all()
                for d in demands_lacking_path.tolist()
                if d in added_links
            ):
                failures_to_recheck.append(failure)
            # Find the paths of the other demands.
            if len(demands_to_extend):
                added_links |= _best_paths(topology, live, paths, demands_to_extend, max_latency)
        paths = _add_paths(paths, topology, added_links)
        open_failures = failures_to_recheck
    return paths


def _best_paths(
    topology: Topology,
    live: BoolArray,
    paths: PathSet,
    demands: Int64Array,
    max_latency: FloatArray | None,
) -> dict[int, IntArray]:
    """Find a path for each of some demands: minimum latency if the demand has a limit, else fewest
    links.

    Args:
        topology: the network.
        live: (E,) whether a link is up.
        paths: paths of D demands.
        demands: (n,) indices of the demands.
        max_latency: (D,) maximum path latency, ms, infinite for no limit; None for no limits.

    Returns:
        links of the path, from source to target, by demand index.
    """
    has_limit = (
        np.zeros(len(demands), bool) if max_latency is None else np.isfinite(max_latency[demands])
    )
    best_paths: dict[int, IntArray] = {}
    for selected_demands, weight in (
        (demands[~has_limit], np.ones(len(live))),
        (demands[has_limit], topology.latency),
    ):
        if len(selected_demands):
            best_paths.update(
                _shortest_paths(
                    topology, np.where(live, weight, np.inf), paths.pairs, selected_demands
                )
            )
    return best_paths


def _shortest_paths(
    topology: Topology, weight: FloatArray, pairs: IntArray, demands: Int64Array
) -> dict[int, IntArray]:
    """Return the links of a minimum-weight path of each demand, by demand index.

    Args:
        topology: the network.
        weight: (E,) link weights, infinite for unusable links.
        pairs: (D, 2) source and target nodes.
        demands: (n,) indices of the demands, which must be connected.
    """
    _, pred_link, row_of_demand = _shortest_path_trees(topology, weight, pairs, demands)
    ptr, links = paths_in_trees(demands, pairs, row_of_demand, pred_link, topology.link_source)
    return {d: links[ptr[d] : ptr[d + 1]] for d in demands.tolist()}


def _add_paths(paths: PathSet, topology: Topology, added: dict[int, IntArray]) -> PathSet:
    """Return the path set with one more path for some demands.

    Args:
        paths: paths of D demands.
        topology: the network, for node names in messages.
        added: links of the new path, from source to target, by demand index.

    Raises:
        InputError: a demand has the maximum number of paths already.
    """
    if not added:
        return paths
    for d in added:
        if paths.num_paths == MAX_PATHS and paths.mask[d].all():
            ends = "->".join(topology.node_names[node] for node in paths.pairs[d])
            raise InputError.invalid(
                "paths",
                ends,
                f"none of the {MAX_PATHS} paths survives a failure after which the network still "
                "connects the demand",
                f"use fewer than {MAX_PATHS} paths",
            )
    # CSR form of the added paths, by demand.
    length = np.zeros(paths.num_demands, dtype=np.int64)
    order = sorted(added)
    length[order] = [len(added[d]) for d in order]
    ptr = np.concatenate([[0], np.cumsum(length)])
    return with_more_paths(paths, ptr, np.concatenate([added[d] for d in order]).astype(np.int32))
