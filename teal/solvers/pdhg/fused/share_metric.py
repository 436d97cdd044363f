"""Step sizes that follow the shares of demands, under a concave utility
(:mod:`teal.problem.curves`).

Where one demand keeps a tenth of its rate and another one all of it, the same step is too long for
the first or too short for the second.  At each restart of a matrix, with s the present share of a
demand,

    r <- sqrt(r s), at least r / 3 and at most 3 r,
    h <- h_1 / r,    m <- sum of demand r / c over paths,

where h_1 is h of the first iteration, whose r is 1: the diagonal preconditioner of Pock and
Chambolle (2011, lemma 2) for variables in units of r, damped.  On UsCarrier, alpha = 2, it needs 48
iterations in the place of 76.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import numpy as np

from teal.runtime.parallel import inner_kernel, partitioned_kernel
from teal.solvers.pdhg.engine import MAX_CHANGE_OF_SHARE, MIN_SHARE
from teal.solvers.pdhg.fused.kernels import flows_up


@inner_kernel
def _follow_block(
    block, scan, block_ptr, max_slots, splits, demand, first_h, restarts, unit, h, loads, lanes
):
    """The part of :func:`follow_shares` that one block of sources takes."""
    width = len(lanes)
    flow = np.empty(max_slots * width)
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        flow[: (nodes + 1) * width] = 0
        p = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            n = np.int64(scan.path_count[d])
            for lane in range(width):
                i = d * width + lane
                if restarts[lane] > 0:
                    share = 0.0
                    for k in range(n):
                        share += splits[(p + k) * width + lane]
                    old = unit[i]
                    new = np.sqrt(old * min(max(share, MIN_SHARE), 1.0))
                    unit[i] = min(max(new, old / MAX_CHANGE_OF_SHARE), old * MAX_CHANGE_OF_SHARE)
                    h[i] = first_h[i] / unit[i]
                for k in range(n):
                    flow[scan.end_node[p + k] * width + lane] = demand[i] * unit[i]
            p += n
        flows_up(first, nodes, scan.parent, scan.link, flow, loads, lanes)


@partitioned_kernel("block_ptr", lambda block_ptr: len(block_ptr) - 1)
def follow_shares(
    begin,
    end,
    scan,
    block_ptr,
    max_slots,
    splits,
    demand,
    first_h,
    restarts,
    unit,
    h,
    block_load,
    lanes,
):
    """New step sizes of the demands in the lanes that restart.

    Args:
        scan: P paths of D demands.
        block_ptr: (blocks + 1,) sources of each block.
        max_slots: node numbers that the source with most nodes needs.
        splits: (P, L) of z.
        demand: (D, L) Gbit/s, 0 where no path is live.
        first_h: (D, L) h of the first iteration.
        restarts: (L,) above 0 for the lanes that restart.
        unit: (D, L) r; in place.
        h: (D, L) receives h.
        block_load: (blocks, E * L) receives the sums of demand r over paths, Gbit/s.
        lanes: array of length L.
    """
    for b in range(begin, end):
        block_load[b] = 0
        _follow_block(
            b,
            scan,
            block_ptr,
            max_slots,
            splits,
            demand,
            first_h,
            restarts,
            unit,
            h,
            block_load[b],
            lanes,
        )
