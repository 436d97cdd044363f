"""What the steps hang on, and what an iterate is worth: certified bound, nearest feasible allocation.

The same scans as in :mod:`teal.solvers.pdhg.kernels`, in float64 throughout, since a bound and a validator
hang on them.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from teal.lanes import fill, larger, load, narrow, store, where_above, widen
from teal.parallel import kernel, parallel_kernel, prange
from teal.solvers.pdhg.kernels import DEAD, flows_up, prices_down

_ALIVE = -DEAD / 10  # a path of profit above this has no failed link


@kernel
def _measure_block(
    begin, stop, above, link, end, count, node_ptr, demand_ptr, path_ptr, demand, inverse, cost, worth, even, reach,
    rate, through, trial, sums, widest, lanes, reach_lanes,
):  # fmt: skip
    width, own_reach, several = len(lanes), len(reach_lanes) > 1, len(worth) > 1
    hops, price = np.zeros(widest * width), np.zeros(widest * width)
    flow, probe = np.empty(widest * width), np.empty(widest * width)
    one = fill(1.0, lanes)
    zero, dead = one - one, fill(_ALIVE, lanes)
    total = zero
    for s in range(begin, stop):
        first, nodes = node_ptr[s], node_ptr[s + 1] - node_ptr[s]
        prices_down(first, nodes, above, link, inverse, hops, lanes)
        prices_down(first, nodes, above, link, cost, price, lanes)
        flow[: (nodes + 1) * width] = 0
        probe[: (nodes + 1) * width] = 0
        p = path_ptr[s]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            far, alive, top, longest = zero, zero, zero, 0.0
            w = fill(worth[d if several else 0], lanes)
            for k in range(p, p + count[d]):
                profit = w - load(price, end[k], lanes)
                top, alive = larger(top, profit), alive + where_above(profit, dead, one, zero)
                far = larger(far, load(hops, end[k], lanes))
                longest = max(longest, hops[end[k] * width])
            if own_reach:
                store(reach, d, where_above(far, zero, far, one))
            else:
                reach[d] = longest if longest > 0 else 1.0
            carried = where_above(alive, zero, load(demand, d, lanes), zero)
            store(rate, d, carried)
            total = total + carried * top
            part = carried / larger(alive, one)
            for k in range(p, p + count[d]):
                on = where_above(w - load(price, end[k], lanes), dead, one, zero)
                store(flow, end[k], on * carried)
                if even:
                    store(probe, end[k], on * part)
                elif k == p:
                    store(probe, end[k], on * carried)
            p += count[d]
        flows_up(first, nodes, above, link, flow, through, lanes)
        flows_up(first, nodes, above, link, probe, trial, lanes)
    store(sums, 0, total)


@parallel_kernel
def measure(scans, demand, inverse, cost, worth, even, reach, rate, through, trial, sums, lanes, reach_lanes):
    """Once a program.

    Args:
        demand: (D, L); inverse: (E, L) 1 / c, 0 for a failed link; cost: (E, L), ``DEAD`` for one.
        even: whether ``trial`` spreads a demand over its paths or sends it along the first.
        reach: receives (D, 1 or L), the largest sum of ``inverse`` along a path of each demand.
        rate: receives (D, L) the demand, 0 where no path is left.
        through: receives (blocks, E, L) the load if every path carried all of its demand; trial: that of one routing.
        sums: receives (blocks, 1, L), demand times value of its best path.
    """
    above, link, end, count, node_ptr, demand_ptr, path_ptr, blocks, widest = scans
    for b in prange(len(blocks) - 1):
        _measure_block(
            blocks[b], blocks[b + 1], above, link, end, count, node_ptr, demand_ptr, path_ptr, demand, inverse, cost,
            worth, even, reach, rate, through[b], trial[b], sums[b], widest, lanes, reach_lanes,
        )  # fmt: skip


@kernel
def _certify_block(
    begin, stop, above, link, end, count, node_ptr, demand_ptr, path_ptr, demand, worth, price, balanced, settle, offer,
    flows, loads, sums, widest, lanes,
):  # fmt: skip
    width, several = len(lanes), len(worth) > 1
    value, flow = np.zeros(widest * width), np.empty(widest * width)
    one = fill(1.0, lanes)
    zero, dead, tiny = one - one, fill(_ALIVE, lanes), fill(1e-12, lanes)
    floor = fill(2 * _ALIVE if balanced else 0.0, lanes)
    bound = zero
    for s in range(begin, stop):
        first, nodes = node_ptr[s], node_ptr[s + 1] - node_ptr[s]
        prices_down(first, nodes, above, link, price, value, lanes)
        flow[: (nodes + 1) * width] = 0
        p = path_ptr[s]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            rate, w = load(demand, d, lanes), fill(worth[d if several else 0], lanes)
            top, total, alive = floor, zero, zero
            for k in range(p, p + count[d]):
                profit = w - load(value, end[k], lanes)
                on = where_above(profit, dead, one, zero)
                top, alive = larger(top, profit), alive + on
                total = total + on * widen(load(offer, k, lanes))
            bound = bound + where_above(top, dead, rate * top, zero)
            # In parts: never more than the demand; where all of it must go and none is split, evenly.
            scale = one / larger(total, one)
            spread = zero
            if balanced:
                scale = where_above(total, tiny, one / larger(total, tiny), zero)
                spread = where_above(total, tiny, zero, one / larger(alive, one))
            for k in range(p, p + count[d]):
                on = where_above(w - load(value, end[k], lanes), dead, one, zero)
                split = on * (widen(load(offer, k, lanes)) * scale + spread)
                sent = rate * split
                if settle:
                    store(offer, k, narrow(where_above(rate, zero, split, zero), offer))
                store(flows, k, sent)
                store(flow, end[k], sent)
            p += count[d]
        flows_up(first, nodes, above, link, flow, loads, lanes)
    store(sums, 0, bound)


@parallel_kernel
def certify(scans, demand, worth, price, balanced, settle, offer, flows, loads, sums, lanes):
    """Bound of ``price``, and flows and loads of the splits ``offer``.

    Args:
        demand: (D, L), 0 where no path is left; worth: (D,) or (1,).
        price: (E, L) value per Gbit/s with the link's cost, ``DEAD`` where it has failed.
        settle: whether to write the splits behind the flows back into ``offer``.
        flows: receives (P, L) Gbit/s: splits in parts of at most 1, of exactly 1 if ``balanced``.
        loads: receives (blocks, E, L).
        sums: receives (blocks, 1, L): demand times best profit (above 0, unless ``balanced``).
    """
    above, link, end, count, node_ptr, demand_ptr, path_ptr, blocks, widest = scans
    for b in prange(len(blocks) - 1):
        loads[b] = 0
        _certify_block(
            blocks[b], blocks[b + 1], above, link, end, count, node_ptr, demand_ptr, path_ptr, demand, worth, price,
            balanced, settle, offer, flows, loads[b], sums[b], widest, lanes,
        )  # fmt: skip


@kernel
def _share_block(
    begin, stop, above, link, end, count, node_ptr, demand_ptr, path_ptr, demand, worth, crowding, left, first_round,
    last_round, flows, asks, loads, asked, sums, widest, lanes,
):  # fmt: skip
    width, several = len(lanes), len(worth) > 1
    most, least = np.zeros(widest * width), np.empty(widest * width)
    flow, more = np.empty(widest * width), np.empty(widest * width)
    one = fill(1.0, lanes)
    zero, tiny, plenty = one - one, fill(1e-30, lanes), fill(DEAD, lanes)
    value = zero
    store(least, 0, plenty)
    for s in range(begin, stop):
        base, nodes = node_ptr[s], node_ptr[s + 1] - node_ptr[s]
        for i in range(nodes):
            top, e = above[base + i], link[base + i]
            store(most, i + 1, larger(load(most, top, lanes), load(crowding, e, lanes)))
            room, here = load(least, top, lanes), load(left, e, lanes)
            store(least, i + 1, where_above(room, here, here, room))
        flow[: (nodes + 1) * width] = 0
        more[: (nodes + 1) * width] = 0
        p = path_ptr[s]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            total, room = zero, zero
            for k in range(p, p + count[d]):
                granted = larger(load(most, end[k], lanes), one)
                sent = (
                    load(flows, k, lanes) / granted
                    if first_round
                    else load(flows, k, lanes) + load(asks, k, lanes) / granted
                )
                store(flows, k, sent)
                store(flow, end[k], sent)
                total = total + sent
                room = room + load(least, end[k], lanes)
            value = value + total * fill(worth[d if several else 0], lanes)
            if not last_round:
                unserved = larger(load(demand, d, lanes) - total, zero)
                share = unserved / larger(room, tiny)
                for k in range(p, p + count[d]):
                    fits = load(least, end[k], lanes)
                    ask = fits * where_above(share, one, one, share)
                    store(asks, k, ask)
                    store(more, end[k], ask)
            p += count[d]
        flows_up(base, nodes, above, link, flow, loads, lanes)
        if not last_round:
            flows_up(base, nodes, above, link, more, asked, lanes)
    store(sums, 0, value)


@parallel_kernel
def share(scans, demand, worth, crowding, left, first_round, last_round, flows, asks, loads, asked, sums, lanes):
    """One pass of the projection: cut what was asked for to what fits, and ask for more.

    Args:
        crowding: (E, L) what was asked of a link over what it had: flows over capacity in the first
            round, ``asks`` over the residual capacity after it.
        left: (E, L) capacity that is still to be had.
        flows, asks: (P, L) Gbit/s, in place.
        loads, asked: receive (blocks, E, L) of both.
        sums: receives (blocks, 1, L) sum of flows times worth.
    """
    above, link, end, count, node_ptr, demand_ptr, path_ptr, blocks, widest = scans
    for b in prange(len(blocks) - 1):
        loads[b] = 0
        asked[b] = 0
        _share_block(
            blocks[b], blocks[b + 1], above, link, end, count, node_ptr, demand_ptr, path_ptr, demand, worth, crowding,
            left, first_round, last_round, flows, asks, loads[b], asked[b], sums[b], widest, lanes,
        )  # fmt: skip


@parallel_kernel
def pack_splits(scans, splits, out, lanes):
    """(B, D, K) splits into rows of paths, (P, L), 0 where they are negative or no number; lanes past B get 0."""
    count, demand_ptr, path_ptr = scans.count, scans.demand_ptr, scans.path_ptr
    width, batch = len(lanes), len(splits)
    for s in prange(len(demand_ptr) - 1):
        p = path_ptr[s]
        for d in range(demand_ptr[s], demand_ptr[s + 1]):
            for k in range(count[d]):
                for l in range(width):
                    share = splits[l, d, k] if l < batch else 0
                    out[p * width + l] = share if 0 < share < np.inf else 0  # nor NaN
                p += 1


@parallel_kernel
def unpack_splits(scans, flows, demand, out, lanes):
    """(P, L) flows over (B, D) demands as splits (B, D, K); without demands (D = 0) the rows are splits already."""
    count, demand_ptr, path_ptr = scans.count, scans.demand_ptr, scans.path_ptr
    width, divide = len(lanes), demand.shape[1] > 0
    for s in prange(len(demand_ptr) - 1):
        for l in range(len(out)):
            p = path_ptr[s]
            for d in range(demand_ptr[s], demand_ptr[s + 1]):
                scale = 1.0
                if divide:
                    scale = 1 / demand[l, d] if demand[l, d] > 1e-300 else 0.0
                for k in range(count[d]):
                    out[l, d, k] = flows[p * width + l] * scale
                    p += 1
                for k in range(count[d], out.shape[2]):
                    out[l, d, k] = 0
