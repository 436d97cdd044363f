"""Share metric: step sizes scaled by the served shares, under a utility
(:mod:`teal.problem.curves`).

Served shares differ by orders of magnitude under a concave utility, so that one step size per
demand is too long for small shares or too short for large ones.  At each restart of a matrix, with
s the current share of a demand,

    r <- sqrt(r s), at least r / 3 and at most 3 r,
    h <- h_1 / r,    m <- sum of demand r / c over paths,

where h_1 is h of the first iteration, with r = 1: the diagonal preconditioner of Pock and Chambolle
(2011, lemma 2) for variables in units of r, damped.  On UsCarrier, alpha = 2, it needs 48
iterations instead of 76.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from teal.network.packed import num_ranges
from teal.runtime.parallel import inner_kernel, partitioned_kernel
from teal.solvers.pdhg.engine import MAX_SHARE_CHANGE, MIN_SHARE
from teal.solvers.pdhg.fused.kernels import add_link_loads


@inner_kernel
def _update_block(
    block,
    scan,
    block_ptr,
    max_trie_nodes,
    splits,
    demand,
    initial_inverse_capacity_sum,
    is_restart,
    share_scale,
    h,
    loads,
    lanes,
):
    """Update the step sizes of the demands of one block of sources, in the lanes that restart.

    With the scale r of a demand's step size, the sum s of its splits, and h, to which the step size
    is inversely proportional: r <- sqrt(r s), at least r / 3 and at most 3 r; h <- h_1 / r.  Also
    add up the link loads if every path carried demand * r.

    Args:
        block: index of the block; its sources are ``block_ptr[block]:block_ptr[block + 1]``.
        scan: P paths of D demands, as one trie per source.
        block_ptr: (blocks + 1,) first source of each block.
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source.
        splits: (P, L) splits of the iterate.
        demand: (D, L) Gbit/s, 0 where no path is live.
        initial_inverse_capacity_sum: (D, L) h_1, largest sum of 1 / capacity along a path,
            1/(Gbit/s).
        is_restart: (L,) above 0 for the lanes that restart.
        share_scale: (D, L) r (written).
        h: (D, L) h (written); the primal step size is 1 / (primal weight h).
        loads: (E, L) Gbit/s (increased).
        lanes: tuple of length L.
    """
    num_lanes = len(lanes)
    # (max_trie_nodes, L) demand * r of the path that ends at each trie node of a source.
    flow = np.empty(max_trie_nodes * num_lanes)
    for source in range(block_ptr[block], block_ptr[block + 1]):
        first_node = scan.node_ptr[source]
        num_nodes = scan.node_ptr[source + 1] - scan.node_ptr[source]
        flow[: (num_nodes + 1) * num_lanes] = 0
        p = scan.path_ptr[source]
        for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
            num_paths = np.int64(scan.path_count[d])
            for lane in range(num_lanes):
                entry = d * num_lanes + lane
                # In a lane that restarts: served share of the demand, then its new r and h.
                if is_restart[lane] > 0:
                    served_share = 0.0
                    for k in range(num_paths):
                        served_share += splits[(p + k) * num_lanes + lane]
                    # Geometric mean of r and the share, with a limited change.
                    old_scale = share_scale[entry]
                    new_scale = np.sqrt(old_scale * min(max(served_share, MIN_SHARE), 1.0))
                    share_scale[entry] = min(
                        max(new_scale, old_scale / MAX_SHARE_CHANGE), old_scale * MAX_SHARE_CHANGE
                    )
                    h[entry] = initial_inverse_capacity_sum[entry] / share_scale[entry]
                # The load that determines m: demand * r on every path, in all lanes.
                for k in range(num_paths):
                    flow[scan.end_node[p + k] * num_lanes + lane] = (
                        demand[entry] * share_scale[entry]
                    )
            p += num_paths
        # Link loads of these flows.
        add_link_loads(first_node, num_nodes, scan.parent, scan.link, flow, loads, lanes)


@partitioned_kernel("block_ptr", num_ranges)
def update_share_scale(
    begin,
    end,
    scan,
    block_ptr,
    max_trie_nodes,
    splits,
    demand,
    initial_inverse_capacity_sum,
    is_restart,
    share_scale,
    h,
    block_load,
    lanes,
):
    """Scale the step sizes of the demands by their served shares, in the lanes that restart.

    With the scale r of a demand's step size, its served share s, and h, to which the step size is
    inversely proportional: r <- sqrt(r s), at least r / 3 and at most 3 r; h <- h_1 / r.

    Args:
        begin, end: range of blocks that this call processes.
        scan: P paths of D demands, as one trie per source.
        block_ptr: (blocks + 1,) block b has the sources ``block_ptr[b]:block_ptr[b + 1]``.
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source.
        splits: (P, L) splits of the iterate.
        demand: (D, L) Gbit/s, 0 where no path is live.
        initial_inverse_capacity_sum: (D, L) h_1, largest sum of 1 / capacity along a path,
            1/(Gbit/s).
        is_restart: (L,) above 0 for the lanes that restart.
        share_scale: (D, L) r (written).
        h: (D, L) h (written); the primal step size is 1 / (primal weight h).
        block_load: (blocks, E * L) load of each link if every path carried demand * r, Gbit/s
            (written).
        lanes: tuple of length L.
    """
    for b in range(begin, end):
        block_load[b] = 0
        _update_block(
            b,
            scan,
            block_ptr,
            max_trie_nodes,
            splits,
            demand,
            initial_inverse_capacity_sum,
            is_restart,
            share_scale,
            h,
            block_load[b],
            lanes,
        )
