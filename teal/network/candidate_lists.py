"""Candidate segment lists of demands: columns of a program, in place of explicit paths.

A list leads from the source over up to M *stops* to the target.  A stop is a node that is reached
along the IGP's shortest paths (node segment), or the end of a link that is used regardless of the
metrics (*adjacency* segment), to whose start the IGP's shortest paths lead.  Between stops ECMP
divides the traffic, so that a Gbit/s on a list puts fractions of it on links.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.runtime.arrays import BoolArray, FloatArray, IntArray

# Split ratio below which a segment list is not installed.
_MIN_SHARE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class CandidateLists:
    """Up to K segment lists for each of D demands, with at most M stops each.

    Has the same interface as :class:`teal.network.PathSet`.

    Attributes:
        dag: shortest paths of the IGP.
        pairs: (D, 2) source and target of each demand.
        stop: (D, K, M) node of each stop; -1 after the last one.
        link: (D, K, M) link by which the stop is reached; -1 for the IGP's shortest paths.
        mask: (D, K) whether the k-th list exists and all its segments have a path.
    """

    dag: EcmpDag
    pairs: IntArray
    stop: IntArray
    link: IntArray
    mask: BoolArray

    @classmethod
    def straight(cls, dag: EcmpDag, pairs: IntArray, stops: int = 1) -> CandidateLists:
        """Return one list without stops for each demand: plain shortest-path routing.

        Args:
            dag: shortest paths of the IGP.
            pairs: (D, 2) source and target of each demand.
            stops: M, the number of (empty) stops of the result.
        """
        no_stops = np.full((len(pairs), 1, stops), -1, dtype=np.int32)
        return cls(
            dag,
            np.asarray(pairs),
            no_stops,
            no_stops.copy(),
            dag.reaches[pairs[:, 1], pairs[:, 0]][:, None],
        )

    def nodes_of(self, demand: int, k: int, link_target: IntArray) -> list[int]:
        """Return the node indices of source, stops and target of a list.

        Args:
            demand: index of the demand.
            k: index of the list.
            link_target: unused; :meth:`teal.network.PathSet.nodes_of` needs it.
        """
        stops = [int(node) for node in self.stop[demand, k] if node >= 0]
        source, target = (int(node) for node in self.pairs[demand])
        return [source, *stops, *([] if stops[-1:] == [target] else [target])]

    @property
    def columns(self) -> tuple[IntArray, IntArray]:
        """The stops (D, K, M), and the links (D, K, M) by which they are reached."""
        return self.stop, self.link

    @property
    def num_demands(self) -> int:
        """The number D of demands."""
        return len(self.pairs)

    @property
    def num_paths(self) -> int:
        """The maximum number K of lists of a demand."""
        return self.mask.shape[1]

    def first_demands(self, count: int) -> CandidateLists:
        """Return the segment lists of the first demands, as views of the same arrays.

        Args:
            count: number of demands.
        """
        parts = {name: getattr(self, name)[:count] for name in ("pairs", "stop", "link", "mask")}
        return dataclasses.replace(self, **parts)

    @property
    def scan_size(self) -> int:
        """Number of entries that one pass over all lists reads: arcs of the shortest paths and
        segments of the lists.
        """
        return self.dag.num_arcs + self.mask.size * (self.stop.shape[2] + 1)

    @property
    def topology_key(self) -> str:
        """The hash of the network's nodes and links (``Topology.graph_key``)."""
        return self.dag.topology.graph_key()

    @property
    def num_links(self) -> int:
        """The number E of links."""
        return self.dag.topology.num_links

    @cached_property
    def hops(self) -> FloatArray:
        """Array (D, K): 1 where a list exists, else 0; ``SegmentOps.hops`` has the mean number of
        links.
        """
        return self.mask.astype(np.float64)

    @cached_property
    def segments(self) -> IntArray:
        """Segments (D, K, M + 1) of each list along shortest paths, as codes.

        A segment from node u to node t has the code t N + u (index of an N x N array).  N^2 stands
        for no segment: u = t, an unused stop, or a list that does not exist.  The last entry is the
        segment to the target.
        """
        num_nodes = self.dag.topology.num_nodes
        tail = self.dag.links.tail
        # (D, K) node where each list has arrived so far.
        current_node = np.broadcast_to(self.pairs[:, :1], self.mask.shape)
        segments = np.full(
            (*self.mask.shape, self.stop.shape[2] + 1), num_nodes * num_nodes, dtype=np.int64
        )

        def add_segment(index: int, start: IntArray, end: IntArray, is_used: BoolArray) -> None:
            """Write the code of one segment of all lists.

            Args:
                index: position of the segment in the lists.
                start: (D, K) node where the segment starts.
                end: (D, K) node where it ends.
                is_used: (D, K) whether the list has this segment.
            """
            has_segment = is_used & self.mask & (start != end)
            segments[..., index][has_segment] = (end.astype(np.int64) * num_nodes + start)[
                has_segment
            ]

        # Segments to the stops, in order: each starts at the node where the list has arrived.
        for stop_index in range(self.stop.shape[2]):
            stop = self.stop[..., stop_index]
            link = self.link[..., stop_index]
            # Shortest paths lead to the stop or, before an adjacency segment (link >= 0), to the
            # start of its link.
            add_segment(stop_index, current_node, np.where(link >= 0, tail[link], stop), stop >= 0)
            current_node = np.where(stop >= 0, stop, current_node)
        # Segment from the last stop to the target.
        add_segment(
            -1,
            current_node,
            np.broadcast_to(self.pairs[:, 1:], self.mask.shape),
            np.ones(self.mask.shape, dtype=bool),
        )
        return segments

    def with_lists(self, stop: IntArray, link: IntArray) -> CandidateLists:
        """Return the lists with one more list for each demand.

        The added list is masked if it is a duplicate, or has a segment without a path.

        Args:
            stop: (D, M) node of each stop; -1 after the last one.
            link: (D, M) link by which the stop is reached; -1 for the IGP's shortest paths.
        """
        # (D, K) whether a list equals the added one.
        is_duplicate = ((self.stop == stop[:, None]) & (self.link == link[:, None])).all(
            -1
        ) & self.mask
        extended_lists = dataclasses.replace(
            self,
            stop=np.concatenate([self.stop, stop[:, None]], 1),
            link=np.concatenate([self.link, link[:, None]], 1),
            mask=np.concatenate([self.mask, ~is_duplicate.any(1, keepdims=True)], 1),
        )
        # Mask added lists that have a segment without a path. ``reaches`` is indexed by the code of
        # a segment; the last entry is for the code N^2, no segment.
        num_nodes = self.dag.topology.num_nodes
        reaches = np.append(self.dag.reaches.reshape(-1), True)
        added_segments = extended_lists.segments[:, -1]
        assert added_segments.max(initial=0) <= num_nodes * num_nodes
        mask = extended_lists.mask.copy()
        mask[:, -1] &= reaches[added_segments].all(-1)
        return dataclasses.replace(extended_lists, mask=mask)

    def select(self, keep: BoolArray) -> CandidateLists:
        """Return some of the lists of each demand, moved to the first columns.

        Args:
            keep: (D, K) whether a list is selected.
        """
        # Move the selected lists to the front; keep as many columns as a demand has lists at most.
        keep = keep & self.mask
        order = np.argsort(~keep, axis=1, kind="stable")[
            :, : max(1, int(keep.sum(1).max(initial=0)))
        ]
        stop, link = (np.take_along_axis(part, order[..., None], 1) for part in self.columns)
        return dataclasses.replace(
            self, stop=stop, link=link, mask=np.take_along_axis(keep, order, 1)
        )

    def moved(
        self,
        share: FloatArray,
        other_lists: CandidateLists,
        other_share: FloatArray,
        demand: FloatArray,
    ) -> float:
        """Return the traffic in Gbit/s that changes its list between two allocations.

        It is half the sum of |share - other_share| * demand over all lists; a list that is in both
        sets counts once.

        Args:
            share: (D, K) share of each demand on these lists.
            other_lists: other lists of the same demands.
            other_share: (D, K') share of each demand on the other lists.
            demand: (D,) Gbit/s.
        """
        num_stops = max(self.stop.shape[2], other_lists.stop.shape[2])
        # Demand, stops and links identify a list; its change is the difference of shares, halved
        # since traffic that moves leaves one list and joins another.
        list_keys = []
        signed_changes = []
        for lists, shares, signed_half in ((self, share, 0.5), (other_lists, other_share, -0.5)):
            demand_index, k = np.nonzero(lists.mask & (shares > 0))
            padded_columns = (
                np.pad(part[demand_index, k], ((0, 0), (0, num_stops)), constant_values=-1)[
                    :, :num_stops
                ]
                for part in lists.columns
            )
            list_keys.append(np.concatenate([demand_index[:, None], *padded_columns], 1))
            signed_changes.append(signed_half * shares[demand_index, k] * demand[demand_index])
        _, list_index = np.unique(np.concatenate(list_keys), axis=0, return_inverse=True)
        return float(
            np.abs(np.bincount(list_index.reshape(-1), np.concatenate(signed_changes))).sum()
        )

    def policies(self, share: FloatArray) -> SegmentPolicies:
        """Return the segment routing policies of all demands that use a list with stops.

        Lists with a share of at most ``_MIN_SHARE`` are omitted, and the other shares of the demand
        are scaled to a sum of 1.

        Args:
            share: (D, K) share of each demand on its lists.
        """
        lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
        is_used = (share > _MIN_SHARE) & self.mask
        for demand in np.flatnonzero((is_used & (self.stop >= 0).any(-1)).any(1)).tolist():
            # Scale the shares of the used lists, and omit the unused stops of each.
            total = float(share[demand][is_used[demand]].sum())
            lists[int(self.pairs[demand, 0]), int(self.pairs[demand, 1])] = tuple(
                SegmentList(
                    float(share[demand, k]) / total,
                    tuple(int(node) for node in self.stop[demand, k] if node >= 0),
                    tuple(
                        int(link)
                        for node, link in zip(
                            self.stop[demand, k], self.link[demand, k], strict=True
                        )
                        if node >= 0
                    ),
                )
                for k in np.flatnonzero(is_used[demand]).tolist()
            )
        return SegmentPolicies(lists)
