"""The reference backend: torch operations on one trie level after another, on any device of torch."""

from __future__ import annotations

import torch
from torch import Tensor

from teal.network import PathSet


class TorchBackend:
    """All nodes of one depth are processed at once, because a node's value needs its parent's."""

    name = "torch"

    def __init__(self, paths: PathSet, device: torch.device) -> None:
        trie = paths.trie
        self._num_nodes, self._num_links = trie.num_nodes, paths.num_links
        self._leaf = torch.from_numpy(paths.leaf.astype("int64")).to(device)  # (D, K)
        self._mask = self._leaf >= 0
        self._levels = []
        for nodes in trie.levels:
            node, link, parent = nodes.astype("int64"), trie.link[nodes].astype("int64"), trie.parent[nodes]
            self._levels.append(tuple(torch.from_numpy(a).to(device) for a in (node, link, parent.astype("int64"))))

    def path_sum(self, link_values: Tensor) -> Tensor:
        """(B, E, F) -> (B, D, K, F)."""
        batch, _, features = link_values.shape
        sums = link_values.new_zeros(batch, self._num_nodes, features)  # (B, T, F)
        for depth, (node, link, parent) in enumerate(self._levels):
            value = link_values[:, link]
            sums[:, node] = value if depth == 0 else value + sums[:, parent]
        return self._at_leaves(sums)

    def link_sum(self, path_values: Tensor) -> Tensor:
        """(B, D, K, F) -> (B, E, F)."""
        batch, features = path_values.shape[0], path_values.shape[-1]
        flow = path_values.new_zeros(batch, self._num_nodes, features)  # (B, T, F)
        flow.index_add_(1, self._leaf[self._mask], path_values[:, self._mask])
        out = path_values.new_zeros(batch, self._num_links, features)
        for depth in reversed(range(len(self._levels))):
            node, link, parent = self._levels[depth]
            out.index_add_(1, link, flow[:, node])
            if depth:
                flow.index_add_(1, parent, flow[:, node])
        return out

    def path_max(self, link_values: Tensor) -> tuple[Tensor, Tensor]:
        """(B, E) -> values (B, D, K) and links (B, D, K)."""
        largest = link_values.new_zeros(len(link_values), self._num_nodes)  # (B, T)
        at_link = torch.full(largest.shape, -1, dtype=torch.int64, device=largest.device)
        for depth, (node, link, parent) in enumerate(self._levels):
            value, at = link_values[:, link], link.expand(len(link_values), -1)
            if depth:
                is_above = largest[:, parent] >= value
                value = torch.where(is_above, largest[:, parent], value)
                at = torch.where(is_above, at_link[:, parent], at)
            largest[:, node], at_link[:, node] = value, at
        links = torch.where(self._mask, self._take(at_link), -1)
        return self._at_leaves(largest.unsqueeze(-1)).squeeze(-1), links

    def _take(self, node_values: Tensor) -> Tensor:
        if not self._num_nodes:
            return node_values.new_zeros(len(node_values), *self._leaf.shape, *node_values.shape[2:])
        return node_values[:, self._leaf.clamp(min=0)]

    def _at_leaves(self, node_values: Tensor) -> Tensor:
        """(B, T, F) -> (B, D, K, F), 0 where there is no path."""
        return torch.where(self._mask[..., None], self._take(node_values), 0)
