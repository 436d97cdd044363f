"""Shards of candidate paths against the paths of all pairs, and what is left of damaged files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from teal.network import Topology, all_pairs, compute_paths
from teal.network.path_set import PathSet
from teal.network.shards import PathSearch, PathShard, compute_shard, divide
from teal.network.subset import joined
from teal.testing import random_topology

_SEARCH = PathSearch(num_paths=3)


def _assert_same(actual: PathSet, expected: PathSet) -> None:
    for name in ("pairs", "leaf", "demand_ptr"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), err_msg=name)
    for name in ("parent", "link", "source_ptr"):
        np.testing.assert_array_equal(
            getattr(actual.trie, name), getattr(expected.trie, name), err_msg=name
        )
    for name in actual.packed.scan._fields:
        known = getattr(expected.packed.scan, name)
        np.testing.assert_array_equal(getattr(actual.packed.scan, name), known, err_msg=name)


def _shards(topology: Topology, count: int) -> list[PathShard]:
    pairs = all_pairs(topology)
    return [compute_shard(topology, pairs[part], _SEARCH) for part in divide(pairs, count)]


@given(seed=st.integers(0, 10_000), count=st.integers(1, 12), missing=st.sampled_from([0.0, 0.7]))
def test_shards_have_whole_sources_and_all_demands(seed: int, count: int, missing: float) -> None:
    pairs = all_pairs(random_topology(seed, nodes=9))
    pairs = pairs[np.random.default_rng(seed).random(len(pairs)) >= missing][:, :]
    if not len(pairs):
        return
    parts = divide(pairs, count)
    assert 1 <= len(parts) <= count
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == len(pairs)
    sources = [set(pairs[part, 0].tolist()) for part in parts]
    assert sum(map(len, sources)) == len(set(pairs[:, 0].tolist())), "no source is in two shards"
    largest_source = np.bincount(pairs[:, 0]).max()
    assert max(part.stop - part.start for part in parts) <= len(pairs) / count + largest_source


@pytest.mark.parametrize("count", [1, 3])
def test_shards_together_have_the_paths_of_all_pairs(count: int) -> None:
    topology = random_topology(5, nodes=9)
    shards = _shards(topology, count)
    assert len(shards) == count
    _assert_same(
        joined([shard.path_set() for shard in shards]),
        compute_paths(topology, num_paths=3, cache=False),
    )


def test_the_paths_of_some_demands_of_shards_are_those_of_some_of_all() -> None:
    topology = random_topology(5, nodes=9)
    paths, chosen = compute_paths(topology, num_paths=3, cache=False), np.array([0, 3, 30, 31, 60])
    parts = []
    for shard, part in zip(_shards(topology, 3), divide(paths.pairs, 3), strict=True):
        parts.append(
            shard.subset(chosen[(chosen >= part.start) & (chosen < part.stop)] - part.start)
        )
    together = joined(parts)
    for i, demand in enumerate(chosen.tolist()):
        assert [together.links_of(i, k) for k in range(3)] == [
            paths.links_of(demand, k) for k in range(3)
        ]


def test_shards_are_found_once_and_damaged_ones_again(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = random_topology(5, nodes=9)
    (first,) = _shards(topology, 1)
    expected = first.path_set()
    with monkeypatch.context() as patch:
        patch.setattr("teal.network.shards.compute_paths", None)  # a search would fail
        _assert_same(_shards(topology, 1)[0].path_set(), expected)
    for damage in (b"", b"another file"):
        (first.folder / "link.npy").write_bytes(damage)
        _assert_same(_shards(topology, 1)[0].path_set(), expected)
    assert [folder.name for folder in first.folder.parent.iterdir()] == [first.folder.name], (
        "nothing else is left"
    )
