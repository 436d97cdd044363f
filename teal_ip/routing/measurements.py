"""Measurement matrices: rate at every counter per Gbit/s of each demand.

F (R, D) has R = E + 2 N rows: the E links, then the ingress of each of the N routers, then the
egress.  With the demands x (D,) the counters read F x.
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

# Smaller shares of a demand on a link are dropped from the sparse matrix.
_MIN_SHARE = 1e-12
# Number of links whose dense shares of the traffic between all nodes are in memory at a time.
_LINKS_PER_BLOCK = 64


def with_node_rows(link_shares: sp.csr_array, pairs: IntArray, nodes: int) -> sp.csr_array:
    """Return F (E + 2 N, D): link rows, then an ingress and an egress row for each node.

    Args:
        link_shares: (E, D) shares of demands on the links.
        pairs: (D, 2) source and target of each demand.
        nodes: number of nodes, N.
    """
    demands = np.arange(len(pairs))
    ones = np.ones(len(pairs))
    border_rows = [
        sp.csr_array((ones, (pairs[:, i], demands)), shape=(nodes, len(pairs))) for i in (0, 1)
    ]
    return sp.csr_array(sp.vstack([link_shares, *border_rows]))


def ecmp_measurements(dag: EcmpDag, pairs: IntArray) -> sp.csr_array:
    """Return the measurement matrix F (E + 2 N, D) of shortest-path routing with ECMP.

    Row e is the share of each demand on link e, 0 for demands without a path; rows E + n and
    E + N + n are 1 for demands from and to node n.

    Args:
        dag: shortest paths.
        pairs: (D, 2) source and target of each demand.
    """
    return policy_measurements(dag, pairs, SegmentPolicies.none())


def path_measurements(paths: PathSet, splits: FloatArray, nodes: int) -> sp.csr_array:
    """Return the measurement matrix F (E + 2 N, D) of explicit paths with split ratios.

    Row e is the share of each demand on link e; rows E + n and E + N + n are 1 for demands from and
    to node n.

    Args:
        paths: candidate paths.
        splits: (D, K) split ratios of each demand; with a sum below 1 it is not fully served.
        nodes: number of nodes, N.
    """
    # Link shares: sum of the split ratios of the demand's paths over each link.
    path, link = paths.incidences()
    path_split = splits.reshape(-1)[path]
    link_shares = sp.csr_array(
        (path_split, (link, path // paths.num_paths)), shape=(paths.num_links, paths.num_demands)
    )
    return with_node_rows(link_shares, paths.pairs, nodes)


def policy_measurements(dag: EcmpDag, pairs: IntArray, policies: SegmentPolicies) -> sp.csr_array:
    """Return the measurement matrix F (E + 2 N, D) of routing with segment lists.

    Row e is the share of each demand on link e; rows E + n and E + N + n are 1 for demands from and
    to node n.

    Args:
        dag: shortest paths.
        pairs: (D, 2) source and target of each demand.
        policies: segment lists; demands without a list follow shortest paths.
    """
    # Compute the shares in blocks of links: a link's share is a sum along paths of 1 on the link.
    num_links = dag.topology.num_links
    passes = SegmentPasses(dag)
    steering = steering_of(dag, policies)
    share_blocks = []
    for first in range(0, num_links, _LINKS_PER_BLOCK):
        unit_vectors = np.eye(num_links)[first : first + _LINKS_PER_BLOCK]
        # (links of the block, N, N) share of the traffic from node u to node t on each link.
        segment_share = passes.segment_sum(unit_vectors)
        shares = steering.values(
            pairs, np.where(np.isfinite(segment_share), segment_share, 0.0), unit_vectors
        )
        share_blocks.append(sp.csr_array(np.where(shares > _MIN_SHARE, shares, 0.0)))
    return with_node_rows(sp.csr_array(sp.vstack(share_blocks)), pairs, dag.topology.num_nodes)
