"""Path operations over segment lists: columns that put fractions of a Gbit/s on links.

With the passes of :mod:`teal.pathops.segment_passes` over the IGP's shortest paths, a list
(segments (t, u), and adjacencies) has

- path_sum: the sum of segment_sum over its segments, and of the values of its links;
- link_sum: segment_load of the flows on all segments, and the flows on its links;
- path_max: the maximum of segment_max over its segments, and of the values of its links.

A pass costs the arcs of all shortest paths, and a few additions per list, whatever the lengths of
the paths.  Entry point: :class:`SegmentOps`.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from teal.network import ProblemPaths
from teal.network.candidate_lists import CandidateLists
from teal.pathops.base import PathOps
from teal.pathops.segment_passes import SegmentPasses


class _SegmentBackend:
    """Path operations over segment lists on plain tensors, without gradients.

    Args:
        lists: candidate segment lists, the K columns of each of D demands.
    """

    name = "segments"

    def __init__(self, lists: CandidateLists) -> None:
        self._passes = SegmentPasses(lists.dag)
        self._num_nodes = lists.dag.topology.num_nodes
        self._num_links = lists.dag.topology.num_links
        # (D, K, M + 1) segments of each list of at most M stops, as t N + u for the traffic from
        # node u to node t; N^2 for none.
        self._segment = torch.from_numpy(lists.segments)
        # (D, K, M) links of adjacency segments; E for none.
        adjacency = np.where((lists.link >= 0) & lists.mask[..., None], lists.link, self._num_links)
        self._link = torch.from_numpy(adjacency.astype(np.int64))

    def path_sum(self, link_values: Tensor) -> Tensor:
        """Sum link values along each segment list: (B, E, F) -> (B, D, K, F)."""
        # One row of link values per matrix and feature.
        rows = _flatten_features(link_values)
        # (B F, N^2 + 1) segment sums and (B F, E + 1) link values; the last entry, for none, is 0.
        segment = self._by_segment(self._passes.segment_sum(rows.numpy()), 0.0)
        link = torch.cat([rows, rows.new_zeros(len(rows), 1)], 1)
        total = segment[:, self._segment].sum(-1) + link[:, self._link].sum(-1)
        return _unflatten_features(total, link_values)

    def link_sum(self, path_values: Tensor) -> Tensor:
        """Sum the flows of segment lists over each link: (B, D, K, F) -> (B, E, F)."""
        rows = _flatten_features(path_values)
        num_segments = self._num_nodes**2
        volume = rows.new_zeros(len(rows), num_segments + 1)
        load = rows.new_zeros(len(rows), self._num_links + 1)
        # Add the flow of each list to its segments and adjacency links; the last entries collect
        # those for none.
        for result, index in ((volume, self._segment), (load, self._link)):
            for position in range(index.shape[-1]):
                result.index_add_(1, index[..., position].reshape(-1), rows)
        # Loads of the segments under ECMP.
        shape = len(rows), self._num_nodes, self._num_nodes
        total = load[:, :-1] + torch.from_numpy(
            self._passes.segment_load(volume[:, :-1].reshape(shape).numpy())
        )
        return _unflatten_features(total, path_values)

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the largest link value along each list, and its link: (B, E) -> (B, D, K) each.

        They are 0 and -1 where a demand has no k-th list.  Of links with equal values, any is
        returned.
        """
        rows = link_values.detach().to("cpu", torch.float64)
        largest_value, largest_link = self._passes.segment_max(rows.numpy())
        # (B, D, K, 2 M + 1) maximum and link of each of the M + 1 segments and M adjacencies; minus
        # infinity and -1 for none.
        value = torch.cat(
            [
                self._by_segment(largest_value, -torch.inf)[:, self._segment],
                _with_column(rows, -torch.inf)[:, self._link],
            ],
            -1,
        )
        segment_link = torch.from_numpy(largest_link.astype(np.int64)).reshape(len(rows), -1)
        link = torch.cat(
            [
                _with_column(segment_link, -1)[:, self._segment],
                self._link.expand(len(rows), *self._link.shape),
            ],
            -1,
        )
        max_value, index = value.max(-1)
        max_link = link.gather(-1, index[..., None])[..., 0]
        exists = max_value > -torch.inf
        return (
            torch.where(exists, max_value, 0).to(link_values.dtype).to(link_values.device),
            torch.where(exists, max_link, -1).to(link_values.device),
        )

    def _by_segment(self, values: object, default: float) -> Tensor:
        """Flatten segment values (L, N, N), destination first, to (L, N^2 + 1).

        The last column is ``default``, the value for no segment.
        """
        return _with_column(torch.as_tensor(values).reshape(-1, self._num_nodes**2), default)


def _with_column(values: Tensor, last: float) -> Tensor:
    """Append a column of the value ``last``: (L, n) -> (L, n + 1)."""
    return torch.cat([values, values.new_full((len(values), 1), last)], 1)


def _flatten_features(values: Tensor) -> Tensor:
    """Flatten values (B, ..., F) to (B F, ...), in float64 on the CPU."""
    return (
        values.detach()
        .movedim(-1, 1)
        .flatten(0, 1)
        .flatten(1)
        .to("cpu", torch.float64)
        .contiguous()
    )


def _unflatten_features(rows: Tensor, like: Tensor) -> Tensor:
    """Unflatten rows (B F, ...) to (B, ..., F), with the type and device of ``like`` (B, ...,
    F).
    """
    return rows.unflatten(0, (like.shape[0], like.shape[-1])).movedim(1, -1).to(like)


class SegmentOps(PathOps):
    """Differentiable path operations over segment lists, which put fractions of a Gbit/s on links.

    Args:
        lists: candidate segment lists, the K columns of each of D demands.
        device: device of the tensors; the passes run on the CPU.
    """

    counts_once = is_over_paths = False

    def __init__(self, lists: CandidateLists, device: torch.device) -> None:
        # CandidateLists has the attributes of a path set that the base class reads.
        super().__init__(cast(ProblemPaths, lists), _SegmentBackend(lists), device)
        ones = torch.ones(1, lists.dag.topology.num_links, dtype=torch.float64, device=device)
        # Mean number of links of a list, weighted by the traffic on its ECMP paths.
        self.hops = torch.where(self.mask, self.path_sum(ones)[0], 0)

    @override
    def incidence(self, num_rows: int) -> sp.csr_array:
        # The sums of one unit on a single link are the coefficients of that link.
        units = torch.eye(num_rows, dtype=torch.float64, device=self.device)
        return sp.csr_array(self.path_sum(units).flatten(1).cpu().numpy())
