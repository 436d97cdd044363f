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
from teal.solvers.pdhg.fused.kernels import flows_up


@inner_kernel
def _update_block(
    block,
    scan,
    block_ptr,
    max_slots,
    splits,
    demand,
    initial_inverse_capacity_sum,
    is_restart,
    scale,
    h,
    loads,
    lanes,
):
    """Update one block of sources; arguments as in :func:`update_share_scale`."""
    width = len(lanes)
    flow = np.empty(max_slots * width)
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first = scan.node_ptr[s]
        nodes = scan.node_ptr[s + 1] - scan.node_ptr[s]
        flow[: (nodes + 1) * width] = 0
        p = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            n = np.int64(scan.path_count[d])
            for lane in range(width):
                i = d * width + lane
                if is_restart[lane] > 0:
                    share = 0.0
                    for k in range(n):
                        share += splits[(p + k) * width + lane]
                    old_scale = scale[i]
                    new_scale = np.sqrt(old_scale * min(max(share, MIN_SHARE), 1.0))
                    scale[i] = min(
                        max(new_scale, old_scale / MAX_SHARE_CHANGE), old_scale * MAX_SHARE_CHANGE
                    )
                    h[i] = initial_inverse_capacity_sum[i] / scale[i]
                for k in range(n):
                    flow[scan.end_node[p + k] * width + lane] = demand[i] * scale[i]
            p += n
        flows_up(first, nodes, scan.parent, scan.link, flow, loads, lanes)


@partitioned_kernel("block_ptr", num_ranges)
def update_share_scale(
    begin,
    end,
    scan,
    block_ptr,
    max_slots,
    splits,
    demand,
    initial_inverse_capacity_sum,
    is_restart,
    scale,
    h,
    block_load,
    lanes,
):
    """Update the step sizes of the demands in the lanes that restart.

    Args:
        scan: P paths of D demands.
        block_ptr: (blocks + 1,) sources of each block.
        max_slots: largest number of trie nodes of a source, plus one.
        splits: (P, L) splits of z.
        demand: (D, L) Gbit/s, 0 where no path is live.
        initial_inverse_capacity_sum: (D, L) h of the first iteration.
        is_restart: (L,) above 0 for the lanes that restart.
        scale: (D, L) r; in place.
        h: (D, L) receives h.
        block_load: (blocks, E * L) receives the sums of demand r over paths, Gbit/s.
        lanes: array of length L.
    """
    for b in range(begin, end):
        block_load[b] = 0
        _update_block(
            b,
            scan,
            block_ptr,
            max_slots,
            splits,
            demand,
            initial_inverse_capacity_sum,
            is_restart,
            scale,
            h,
            block_load[b],
            lanes,
        )
