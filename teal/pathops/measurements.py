"""Measurement matrices: what a Gbit/s of each demand puts on every counter.

F (R, D) has R = E + 2 N rows: the E links, then what enters at each of the N routers, then what leaves there.  With the
matrix x (D,) the counters read F x.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from teal.network.ecmp import EcmpDag
from teal.network.path_set import PathSet
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.segment_passes import SegmentPasses
from teal.pathops.transit_policies import TransitSteering
from teal.runtime.arrays import FloatArray, IntArray

_MIN_SHARE = 1e-12  # of a demand on a link, below which it is not stored
_LINKS_AT_A_TIME = 64  # whose shares for all pairs of nodes are in memory at once


def with_borders(shares: sp.csr_array, pairs: IntArray, nodes: int) -> sp.csr_array:
    """(E + 2 N, D) F, of the shares (E, D) of each demand on the links.

    Args:
        shares: shares of demands on the links, (E, D).
        pairs: (D, 2) source and target.
        nodes: N.
    """
    demands, ones = np.arange(len(pairs)), np.ones(len(pairs))
    ends = [sp.csr_array((ones, (pairs[:, i], demands)), shape=(nodes, len(pairs))) for i in (0, 1)]
    return sp.csr_array(sp.vstack([shares, *ends]))


def ecmp_measurements(dag: EcmpDag, pairs: IntArray) -> sp.csr_array:
    """(E + 2 N, D) F under the IGP's shortest paths; a demand without a path has zeros on all links."""
    links, passes, parts = dag.topology.num_links, SegmentPasses(dag), []
    for begin in range(0, links, _LINKS_AT_A_TIME):
        units = np.eye(links)[begin : begin + _LINKS_AT_A_TIME]
        share = passes.segment_sum(units)[:, pairs[:, 1], pairs[:, 0]]
        parts.append(sp.csr_array(np.where(np.isfinite(share) & (share > _MIN_SHARE), share, 0.0)))
    return with_borders(sp.csr_array(sp.vstack(parts)), pairs, dag.topology.num_nodes)


def path_measurements(paths: PathSet, splits: FloatArray, nodes: int) -> sp.csr_array:
    """(E + 2 N, D) F under explicit paths.

    Args:
        paths: candidate paths.
        splits: (D, K) shares of each demand; they need not sum to 1, the rest is not carried.
        nodes: N.
    """
    path, link = paths.incidences()
    share = splits.reshape(-1)[path]
    entries = sp.csr_array((share, (link, path // paths.num_paths)), shape=(paths.num_links, paths.num_demands))
    return with_borders(entries, paths.pairs, nodes)


def policy_measurements(dag: EcmpDag, pairs: IntArray, policies: SegmentPolicies) -> sp.csr_array:
    """(E + 2 N, D) F with installed segment lists; demands without one take the IGP's shortest paths."""
    links, start, passes, parts = dag.topology.num_links, dag.topology.link_source, SegmentPasses(dag), []
    steering = TransitSteering(dag, policies) if policies.is_transit else None
    steered = [] if steering else [d for d, (s, t) in enumerate(pairs.tolist()) if (s, t) in policies.lists]
    entries: list[tuple[int, int, int, float]] = []  # demand, end and start of a segment, share
    adjacent: list[tuple[int, int, float]] = []  # link, demand, share
    for d in steered:
        source, target = pairs[d].tolist()
        for one in policies.lists[source, target]:
            entries += [(d, b, a, one.share) for a, b in one.segments(source, target, start)]
            adjacent += [(link, d, one.share) for link in one.adjacencies]
    parts_of = np.array(entries).reshape(-1, 4)
    demand, end, begin = (parts_of[:, i].astype(int) for i in range(3))
    straight = np.ones(len(pairs), dtype=bool)
    straight[steered] = False
    for first in range(0, links, _LINKS_AT_A_TIME):
        units = np.eye(links)[first : first + _LINKS_AT_A_TIME]
        value = passes.segment_sum(units)
        value = value if steering is None else steering.segment_values(value, units)
        value = np.where(np.isfinite(value), value, 0.0)
        rows = np.where(straight, value[:, pairs[:, 1], pairs[:, 0]], 0.0)
        if entries:
            for row, of_link in zip(rows, value, strict=True):
                np.add.at(row, demand, parts_of[:, 3] * of_link[end, begin])
        parts.append(sp.csr_array(np.where(rows > _MIN_SHARE, rows, 0.0)))
    shares = sp.csr_array(sp.vstack(parts))
    if adjacent:
        link, of, part = (np.array(column) for column in zip(*adjacent, strict=True))
        shares = sp.csr_array(shares + sp.csr_array((part, (link, of)), shape=shares.shape))
    return with_borders(shares, pairs, dag.topology.num_nodes)
