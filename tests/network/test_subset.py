"""The path set of some demands against the paths of all demands, link by link, and scans over
both."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from teal.network import all_pairs, compute_paths
from teal.network.packed import pack
from teal.network.subset import of_demands
from teal.pathops import make_path_ops
from teal.testing import random_topology


@given(
    seed=st.integers(0, 10_000),
    num_paths=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    density=st.sampled_from([0.1, 0.4]),
)
def test_a_subset_has_the_paths_of_its_demands_and_no_other_node(
    seed: int, num_paths: int, share: float, density: float
) -> None:
    topology = random_topology(seed, nodes=8, density=density)
    paths = compute_paths(topology, all_pairs(topology), num_paths=num_paths, cache=False)
    rng = np.random.default_rng(seed)
    demands = np.flatnonzero(rng.random(paths.num_demands) < share)
    subset = of_demands(paths, demands)
    assert subset.num_demands == len(demands)
    np.testing.assert_array_equal(subset.pairs, paths.pairs[demands])
    nodes = set()
    for i, d in enumerate(demands.tolist()):
        for k in range(num_paths):
            links = subset.links_of(i, k)
            assert links == paths.links_of(d, k)
            nodes |= {
                (int(paths.pairs[d, 0]), tuple(links[:end])) for end in range(1, len(links) + 1)
            }
    assert subset.trie.num_nodes == len(nodes), (
        "a node for each prefix of a path, once for each source"
    )
    packed, known = (
        pack(subset.leaf, subset.trie, subset.demand_ptr, subset.num_links),
        subset.packed,
    )
    assert packed.max_trie_nodes == known.max_trie_nodes
    for name in packed.scan._fields:
        np.testing.assert_array_equal(
            getattr(packed.scan, name), getattr(known.scan, name), err_msg=name
        )
    values = torch.from_numpy(rng.random((1, topology.num_links)))
    sums = make_path_ops(paths, "cpu").path_sum(values)[:, demands]
    torch.testing.assert_close(make_path_ops(subset, "cpu").path_sum(values), sums)
