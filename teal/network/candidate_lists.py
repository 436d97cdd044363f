"""Candidate segment lists of demands: columns of a program where others have explicit paths.

A list leads from the source over up to M *stops* to the target.  A stop is a node that is reached
along the IGP's shortest paths (a node segment), or the end of a link that is taken whatever the
metrics say (an *adjacency* segment), to whose start the IGP's shortest paths lead.  Between stops
ECMP divides the traffic, so that a Gbit/s on a list puts fractions of itself on links.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.runtime.arrays import BoolArray, FloatArray, IntArray

_MIN_SHARE = 1e-9  # of a demand, below which a list is not installed


@dataclasses.dataclass(frozen=True, eq=False)
class CandidateLists:
    """Up to K lists of each of D demands, in the place of a :class:`teal.network.PathSet`.

    Attributes:
        dag: the IGP's shortest paths.
        pairs: (D, 2) source and target of each demand.
        stop: (D, K, M) node of each stop; -1 behind the last one.
        link: (D, K, M) link by which the stop is reached; -1 for the IGP's shortest paths.
        mask: (D, K) whether the demand has a k-th list, all of whose segments have a path.
    """

    dag: EcmpDag
    pairs: IntArray
    stop: IntArray
    link: IntArray
    mask: BoolArray

    @classmethod
    def straight(cls, dag: EcmpDag, pairs: IntArray, stops: int = 1) -> CandidateLists:
        """The list without a stop for every demand: plain shortest-path routing.

        Args:
            dag: shortest paths.
            pairs: (D, 2) source and target.
            stops: M of the result.
        """
        nothing = np.full((len(pairs), 1, stops), -1, dtype=np.int32)
        return cls(
            dag,
            np.asarray(pairs),
            nothing,
            nothing.copy(),
            dag.reaches[pairs[:, 1], pairs[:, 0]][:, None],
        )

    def nodes_of(self, demand: int, k: int, link_target: IntArray) -> list[int]:
        """Numbers of the source, the stops and the target of a list; see PathSet.nodes_of."""
        stops = [int(node) for node in self.stop[demand, k] if node >= 0]
        source, target = (int(node) for node in self.pairs[demand])
        return [source, *stops, *([] if stops[-1:] == [target] else [target])]

    @property
    def columns(self) -> tuple[IntArray, IntArray]:
        """(D, K, M) stops, and links by which they are reached."""
        return self.stop, self.link

    @property
    def num_demands(self) -> int:
        """D."""
        return len(self.pairs)

    @property
    def num_paths(self) -> int:
        """K."""
        return self.mask.shape[1]

    def first_demands(self, count: int) -> CandidateLists:
        """The lists of the first demands alone."""
        parts = {name: getattr(self, name)[:count] for name in ("pairs", "stop", "link", "mask")}
        return dataclasses.replace(self, **parts)

    @property
    def scan_size(self) -> int:
        """Entries that one pass over all lists touches: arcs of the shortest paths, and segments of
        the lists.
        """
        return self.dag.num_arcs + self.mask.size * (self.stop.shape[2] + 1)

    @property
    def topology_key(self) -> str:
        """Identifies nodes and links of the network (Topology.graph_key)."""
        return self.dag.topology.graph_key()

    @property
    def num_links(self) -> int:
        """E."""
        return self.dag.topology.num_links

    @cached_property
    def hops(self) -> FloatArray:
        """(D, K) 1 where there is a list: only the segments' passes know the number of links
        (SegmentOps.hops).
        """
        return self.mask.astype(np.float64)

    @cached_property
    def segments(self) -> IntArray:
        """(D, K, M + 1) segments (t, u) of each list as numbers t N + u; N^2 where there is
        none.
        """
        nodes, tail = self.dag.topology.num_nodes, self.dag.links.tail
        at = np.broadcast_to(self.pairs[:, :1], self.mask.shape)
        result = np.full((*self.mask.shape, self.stop.shape[2] + 1), nodes * nodes, dtype=np.int64)

        def go(place: int, here: IntArray, to: IntArray, is_used: BoolArray) -> None:
            used = is_used & self.mask & (here != to)
            result[..., place][used] = (to.astype(np.int64) * nodes + here)[used]

        for m in range(self.stop.shape[2]):
            stop, link = self.stop[..., m], self.link[..., m]
            go(m, at, np.where(link >= 0, tail[link], stop), stop >= 0)
            at = np.where(stop >= 0, stop, at)
        go(
            -1,
            at,
            np.broadcast_to(self.pairs[:, 1:], self.mask.shape),
            np.ones(self.mask.shape, dtype=bool),
        )
        return result

    def with_lists(self, stop: IntArray, link: IntArray) -> CandidateLists:
        """These lists and one more for each demand, unless it has that list already or the list has
        no path.

        Args:
            stop: (D, M) as in the class.
            link: (D, M).
        """
        same = ((self.stop == stop[:, None]) & (self.link == link[:, None])).all(-1) & self.mask
        lists = dataclasses.replace(
            self,
            stop=np.concatenate([self.stop, stop[:, None]], 1),
            link=np.concatenate([self.link, link[:, None]], 1),
            mask=np.concatenate([self.mask, ~same.any(1, keepdims=True)], 1),
        )
        nodes = self.dag.topology.num_nodes
        reaches = np.append(self.dag.reaches.reshape(-1), True)
        added = lists.segments[:, -1]
        assert added.max(initial=0) <= nodes * nodes
        mask = lists.mask.copy()
        mask[:, -1] &= reaches[added].all(-1)
        return dataclasses.replace(lists, mask=mask)

    def kept(self, keep: BoolArray) -> CandidateLists:
        """The lists of a mask (D, K) alone, moved to the front."""
        keep = keep & self.mask
        place = np.argsort(~keep, axis=1, kind="stable")[
            :, : max(1, int(keep.sum(1).max(initial=0)))
        ]
        stop, link = (np.take_along_axis(part, place[..., None], 1) for part in self.columns)
        return dataclasses.replace(
            self, stop=stop, link=link, mask=np.take_along_axis(keep, place, 1)
        )

    def moved(
        self, share: FloatArray, other: CandidateLists, other_share: FloatArray, demand: FloatArray
    ) -> float:
        """Gbit/s on other lists with shares (D, K) than with the shares (D, K') of other candidate
        lists.

        Args:
            share: over these lists.
            other: lists of the same demands.
            other_share: over the others.
            demand: (D,) Gbit/s.
        """
        stops = max(self.stop.shape[2], other.stop.shape[2])
        keys, change = [], []
        for lists, shares, sign in ((self, share, 0.5), (other, other_share, -0.5)):
            d, k = np.nonzero(lists.mask & (shares > 0))
            parts = (
                np.pad(part[d, k], ((0, 0), (0, stops)), constant_values=-1)[:, :stops]
                for part in lists.columns
            )
            keys.append(np.concatenate([d[:, None], *parts], 1))
            change.append(sign * shares[d, k] * demand[d])
        _, number = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
        return float(np.abs(np.bincount(number.reshape(-1), np.concatenate(change))).sum())

    def policies(self, share: FloatArray) -> SegmentPolicies:
        """The lists of the demands that do not go straight to their targets, for shares (D, K) of
        the demands.
        """
        lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
        used = (share > _MIN_SHARE) & self.mask
        for d in np.flatnonzero((used & (self.stop >= 0).any(-1)).any(1)).tolist():
            total = float(share[d][used[d]].sum())
            lists[int(self.pairs[d, 0]), int(self.pairs[d, 1])] = tuple(
                SegmentList(
                    float(share[d, k]) / total,
                    tuple(int(n) for n in self.stop[d, k] if n >= 0),
                    tuple(
                        int(e)
                        for n, e in zip(self.stop[d, k], self.link[d, k], strict=True)
                        if n >= 0
                    ),
                )
                for k in np.flatnonzero(used[d]).tolist()
            )
        return SegmentPolicies(lists)
