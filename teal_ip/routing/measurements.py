"""Measurement matrices: load of every counter per Gbit/s of each demand.

F (R, D) has R = E + 2 N rows: the E links, then the ingress of each of the N routers, then the
egress.  With the matrix x (D,) the counters read F x.
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

# Share of a demand on a link below which it is not stored.
_MIN_SHARE = 1e-12
# Number of links whose shares for all pairs of nodes are in memory at once.
_LINKS_AT_A_TIME = 64


def with_borders(shares: sp.csr_array, pairs: IntArray, nodes: int) -> sp.csr_array:
    """Append ingress and egress rows to the shares (E, D): return F (E + 2 N, D).

    Args:
        shares: (E, D) shares of demands on the links.
        pairs: (D, 2) source and target.
        nodes: number of nodes, N.
    """
    demands = np.arange(len(pairs))
    ones = np.ones(len(pairs))
    ends = [sp.csr_array((ones, (pairs[:, i], demands)), shape=(nodes, len(pairs))) for i in (0, 1)]
    return sp.csr_array(sp.vstack([shares, *ends]))


def ecmp_measurements(dag: EcmpDag, pairs: IntArray) -> sp.csr_array:
    """F (E + 2 N, D) under the IGP's shortest paths; a demand without a path has zeros on all
    links.
    """
    return policy_measurements(dag, pairs, SegmentPolicies.none())


def path_measurements(paths: PathSet, splits: FloatArray, nodes: int) -> sp.csr_array:
    """F (E + 2 N, D) under explicit paths.

    Args:
        paths: candidate paths.
        splits: (D, K) split ratios of each demand; a sum below 1 leaves the rest unserved.
        nodes: number of nodes, N.
    """
    path, link = paths.incidences()
    share = splits.reshape(-1)[path]
    entries = sp.csr_array(
        (share, (link, path // paths.num_paths)), shape=(paths.num_links, paths.num_demands)
    )
    return with_borders(entries, paths.pairs, nodes)


def policy_measurements(dag: EcmpDag, pairs: IntArray, policies: SegmentPolicies) -> sp.csr_array:
    """F (E + 2 N, D) with installed segment lists; demands without one follow the IGP's shortest
    paths.
    """
    num_links = dag.topology.num_links
    passes = SegmentPasses(dag)
    steering = steering_of(dag, policies)
    blocks = []
    for first in range(0, num_links, _LINKS_AT_A_TIME):
        units = np.eye(num_links)[first : first + _LINKS_AT_A_TIME]
        segment_value = passes.segment_sum(units)
        shares = steering.values(
            pairs, np.where(np.isfinite(segment_value), segment_value, 0.0), units
        )
        blocks.append(sp.csr_array(np.where(shares > _MIN_SHARE, shares, 0.0)))
    return with_borders(sp.csr_array(sp.vstack(blocks)), pairs, dag.topology.num_nodes)
