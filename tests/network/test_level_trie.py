"""The trie by levels against the path set that it describes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from teal.network import compute_paths
from teal.testing import random_topology


@given(seed=st.integers(0, 10_000), nodes=st.integers(2, 9), num_paths=st.integers(1, 5))
def test_trie_by_levels_describes_the_same_paths(seed: int, nodes: int, num_paths: int) -> None:
    paths = compute_paths(random_topology(seed, nodes=nodes), num_paths=num_paths, cache=False)
    trie = paths.levels
    for s in range(len(trie.node_ptr) - 1):
        first, last = trie.node_ptr[s], trie.node_ptr[s + 1]
        parents = trie.parent[first:last].astype(int)
        depth = np.zeros(last - first + 1, int)
        for number, parent in enumerate(parents, start=1):
            assert parent < number
            depth[number] = depth[parent] + 1
        ends = trie.level_end[trie.level_ptr[s] : trie.level_ptr[s + 1]]
        assert [
            int((depth[1:] <= level).sum()) + 1 for level in range(1, depth.max() + 1)
        ] == ends.tolist()
        child_ends = [ends[0], *trie.child_end[first:last]] if len(ends) else []
        for number in range(1, last - first + 1):
            children = list(range(child_ends[number - 1], child_ends[number]))
            assert children == (np.flatnonzero(parents == number) + 1).tolist()
        closed = np.zeros(last - first + 1, bool)
        for d in range(trie.demand_ptr[s], trie.demand_ptr[s + 1]):
            for k in range(paths.num_paths):
                links, node = [], int(trie.end_node[d, k])
                closed[node] = True
                while node:
                    links.append(int(trie.link[first + node - 1]))
                    node = int(parents[node - 1])
                assert links[::-1] == paths.links_of(d, k)
        assert np.array_equal(trie.is_path_end[first:last], closed[1:])
    for link in range(paths.num_links):
        nodes_of = trie.link_node[trie.link_ptr[link] : trie.link_ptr[link + 1]]
        assert np.array_equal(nodes_of, np.flatnonzero(trie.link == link))
