"""Merged rows, against the links of every path."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import teal
from teal.network.classes import DemandClasses, class_paths
from teal.network.path_changes import merged_rows
from teal.testing import random_topology


@given(seed=st.integers(0, 1000), limit=st.sampled_from([0.0, 0.4, 1.0]))
def test_demands_share_a_row_if_and_only_if_pair_and_paths_are_equal(
    seed: int, limit: float
) -> None:
    topology, rng = random_topology(seed, 7, 0.5), np.random.default_rng(seed)
    paths = teal.compute_paths(topology, num_paths=3, cache=False)
    some = paths.pairs[np.sort(rng.choice(len(paths.pairs), len(paths.pairs) // 2, replace=False))]
    pairs = [paths.pairs, some, paths.pairs]
    classes = DemandClasses(("a", "b", "c"), np.cumsum([0, *map(len, pairs)]).astype(np.int64))
    limits = {"c": limit * 3 * float(np.median(topology.latency))} if limit else {}
    own = class_paths(paths, topology, np.concatenate(pairs), classes, limits)
    rows = merged_rows(own)
    assert merged_rows(own) is rows

    def key(of: teal.PathSet, demand: int) -> tuple[object, ...]:
        return tuple(of.pairs[demand]), *(tuple(of.links_of(demand, k)) for k in range(3))

    keys = [key(own, demand) for demand in range(own.num_demands)]
    number = {
        one: rank for rank, one in enumerate(dict.fromkeys(keys))
    }  # in the order of first appearance
    assert rows.row.tolist() == [number[one] for one in keys]
    assert rows.first.tolist() == [keys.index(one) for one in number]
    assert [key(rows.paths, row) for row in range(len(number))] == list(number)
