"""Measurement matrices: what a Gbit/s of each demand puts on every counter.

F (R, D) has R = E + 2 N rows: the E links, then what enters at each of the N routers, then what
leaves there.  With the matrix x (D,) the counters read F x.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from teal.network.ecmp import EcmpDag
from teal.network.path_set import PathSet
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.segment_passes import SegmentPasses
from teal.runtime.arrays import FloatArray, IntArray
from teal_ip.routing.steering import steering_of

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
    """(E + 2 N, D) F under the IGP's shortest paths; a demand without a path has zeros on all
    links.
    """
    return policy_measurements(dag, pairs, SegmentPolicies.none())


def path_measurements(paths: PathSet, splits: FloatArray, nodes: int) -> sp.csr_array:
    """(E + 2 N, D) F under explicit paths.

    Args:
        paths: candidate paths.
        splits: (D, K) shares of each demand; they need not sum to 1, the rest is not carried.
        nodes: N.
    """
    path, link = paths.incidences()
    share = splits.reshape(-1)[path]
    entries = sp.csr_array(
        (share, (link, path // paths.num_paths)), shape=(paths.num_links, paths.num_demands)
    )
    return with_borders(entries, paths.pairs, nodes)


def policy_measurements(dag: EcmpDag, pairs: IntArray, policies: SegmentPolicies) -> sp.csr_array:
    """(E + 2 N, D) F with installed segment lists; demands without one take the IGP's shortest
    paths.
    """
    links, passes, steering, parts = (
        dag.topology.num_links,
        SegmentPasses(dag),
        steering_of(dag, policies),
        [],
    )
    for first in range(0, links, _LINKS_AT_A_TIME):
        units = np.eye(links)[first : first + _LINKS_AT_A_TIME]
        value = passes.segment_sum(units)
        shares = steering.values(pairs, np.where(np.isfinite(value), value, 0.0), units)
        parts.append(sp.csr_array(np.where(shares > _MIN_SHARE, shares, 0.0)))
    return with_borders(sp.csr_array(sp.vstack(parts)), pairs, dag.topology.num_nodes)
