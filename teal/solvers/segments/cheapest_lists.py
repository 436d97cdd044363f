"""The cheapest segment list of every demand, of all lists with at most L segments.

With the price S[t, u] of segment (t, u), and p[e] of link e, the least cost of leading from s to v by l segments is

    C_0[s, v] = 0 for v = s, infinite otherwise,
    C_l[s, v] = min( C_(l-1)[s, v],  min over u of C_(l-1)[s, u] + S[v, u],
                     min over links e = (u, v) of C_(l-1)[s, u] + p[e] ),          the last one with adjacencies alone.

All pairs take L N^3 additions.  Of equal costs the list with fewer segments is taken.
"""

from __future__ import annotations

import numpy as np

from teal.network.candidate_lists import CandidateLists
from teal.network.ecmp import EcmpDag
from teal.pathops.segment_passes import SegmentPasses
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.parallel import inner_kernel, parallel_kernel, prange, threads_for

_TIE = 1e-9  # share of a cost by which a longer list must be cheaper
_NO_STEP, _NODE = -2, -1  # in the place of a link: the list of one segment fewer; a node segment


@parallel_kernel
def _extend(  # type: ignore[no-untyped-def]
    segment, price, tail, head, wants_adjacency, before, after, from_node, by_link
):
    """One segment more, for every source.

    Args:
        segment: (N, N) price of the segment from the first node to the second one.
        price: (E,) of the links.
        tail: (E,) node where each link starts.
        head: (E,) node where it ends.
        wants_adjacency: whether links may be taken whatever the metrics say.
        before: (N, N) least cost with a segment less, source first.
        after: (N, N) to fill.
        from_node: (N, N) to fill: where the last segment starts.
        by_link: (N, N) to fill: the link that it takes, or one of the constants above.
    """
    nodes = len(before)
    for s in prange(nodes):
        after[s, :] = before[s, :]
        by_link[s, :] = _NO_STEP
        for u in range(nodes):
            reached = before[s, u]
            if reached == np.inf:
                continue
            for v in range(nodes):
                cost = reached + segment[u, v]
                if cost < after[s, v] - _TIE * cost:
                    after[s, v], from_node[s, v], by_link[s, v] = cost, u, _NODE
        if wants_adjacency:
            for e in range(len(tail)):
                cost = before[s, tail[e]] + price[e]
                if cost < after[s, head[e]] - _TIE * cost:
                    after[s, head[e]], from_node[s, head[e]], by_link[s, head[e]] = cost, tail[e], e


@inner_kernel
def _walk_back(source, target, from_node, by_link, stop, link) -> None:  # type: ignore[no-untyped-def]
    """Fill the stops (M,) of a list and their links; a node segment to the target itself is no stop."""
    level, node, count = len(from_node) - 1, target, 0
    while level >= 0 and node != source:
        taken = by_link[level, source, node]
        if taken != _NO_STEP:
            if not (taken == _NODE and node == target and count == 0):
                stop[count], link[count] = node, taken
                count += 1
            node = from_node[level, source, node]
        level -= 1
    stop[:count] = stop[:count][::-1].copy()
    link[:count] = link[:count][::-1].copy()


@parallel_kernel
def _all_lists(pairs, from_node, by_link, stop, link) -> None:  # type: ignore[no-untyped-def]
    for d in prange(len(pairs)):
        _walk_back(pairs[d, 0], pairs[d, 1], from_node, by_link, stop[d], link[d])


def cheapest_lists(
    dag: EcmpDag, pairs: IntArray, prices: FloatArray, segments: int, *, adjacencies: bool = False
) -> tuple[IntArray, IntArray, FloatArray]:
    """Stops (D, M), their links (D, M) as of :class:`CandidateLists`, and costs (D,), infinite without a path.

    Args:
        dag: shortest paths of the IGP.
        pairs: (D, 2) source and target.
        prices: (E,) of the links, at least 0.
        segments: L, the most of a list.
        adjacencies: whether a list may take links whatever the metrics say.
    """
    nodes, links = dag.topology.num_nodes, dag.links
    price = np.where(np.isfinite(links.metric), prices, np.inf)  # a failed link is no adjacency
    outward = np.ascontiguousarray(SegmentPasses(dag).segment_sum(prices[None])[0].T)
    cost = np.full((nodes, nodes), np.inf)
    np.fill_diagonal(cost, 0.0)
    from_node = np.zeros((segments, nodes, nodes), dtype=np.int32)
    by_link = np.empty((segments, nodes, nodes), dtype=np.int32)
    with threads_for(segments * nodes**3):
        for level in range(segments):
            after = np.empty_like(cost)
            _extend(outward, price, links.tail, links.head, adjacencies, cost, after, from_node[level], by_link[level])
            cost = after
    stop = np.full((len(pairs), max(1, segments)), -1, dtype=np.int32)
    link = np.full(stop.shape, -1, dtype=np.int32)
    with threads_for(len(pairs) * segments):
        _all_lists(np.ascontiguousarray(pairs), from_node, by_link, stop, link)
    return stop, link, cost[pairs[:, 0], pairs[:, 1]]


def with_cheapest(
    lists: CandidateLists, prices: FloatArray, segments: int, *, adjacencies: bool = False
) -> CandidateLists:
    """The lists and, for each demand, the cheapest one of all under each of the prices (L, E)."""
    for row in prices:
        stop, link, _ = cheapest_lists(lists.dag, lists.pairs, row, segments, adjacencies=adjacencies)
        lists = lists.with_lists(stop, link)
    return lists
