"""Candidate paths against networkx, and the cache of paths against damaged files."""

from __future__ import annotations

import errno
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from teal.errors import InputError
from teal.formats import load_topology
from teal.network import PathMethod, PathSet, PathWeight, Topology, compute_paths, path_file
from teal.network.path_file import load_paths, save_paths
from teal.network.paths import estimated_seconds, forget
from teal.runtime.storage import cache_dir
from teal.testing import cabled_topology, make_topology, random_topology

METHODS = st.sampled_from(PathMethod)
WEIGHTS = st.sampled_from(PathWeight)


def _weights(topology: Topology, weight: PathWeight) -> np.ndarray:
    if weight is PathWeight.HOPS:
        return np.ones(topology.num_links)
    return topology.latency if weight is PathWeight.LATENCY else 1 / topology.capacity


def _check_paths(topology: Topology, paths: PathSet) -> None:
    """Every path leads from its source to its target without a node twice, in the order of the
    trie."""
    assert (paths.trie.parent < np.arange(paths.trie.num_nodes)).all()
    for d, (source, target) in enumerate(paths.pairs):
        for k in range(paths.num_paths):
            links = paths.links_of(d, k)
            assert len(links) == paths.hops[d, k]
            assert bool(links) == paths.mask[d, k]
            if links:
                nodes = [source, *topology.link_target[links]]
                assert nodes[-1] == target
                assert len(set(nodes)) == len(nodes)
                assert all(topology.link_source[e] == n for e, n in zip(links, nodes, strict=False))
        assert (np.diff(paths.mask[d].astype(int)) <= 0).all(), (
            "existing paths come before empty places"
        )


@given(st.integers(0, 10_000), METHODS, WEIGHTS, st.integers(1, 4))
def test_candidate_paths_are_simple_paths_from_source_to_target(
    seed: int, method: PathMethod, weight: PathWeight, num_paths: int
) -> None:
    topology = random_topology(seed)
    paths = compute_paths(topology, num_paths=num_paths, method=method, weight=weight, cache=False)
    _check_paths(topology, paths)


@given(st.integers(0, 10_000), WEIGHTS, st.integers(1, 6), st.booleans())
def test_disjoint_paths_are_greedy_shortest_paths(
    seed: int, weight: PathWeight, num_paths: int, with_groups: bool
) -> None:
    """The k-th path is a shortest path of networkx without the cables and groups of earlier paths.

    Where there is none, it is one without their links.
    """
    topology = cabled_topology(seed)
    weights = _weights(topology, weight)
    groups = [set(cable) for cable in topology.cables()]
    if with_groups:
        groups.append(set(np.random.default_rng(seed).integers(0, topology.num_links, 4).tolist()))
    given = [sorted(groups[-1])] if with_groups else None
    paths = compute_paths(topology, num_paths=num_paths, weight=weight, groups=given, cache=False)
    for d, (source, target) in enumerate(paths.pairs.tolist()):
        found: list[int] = []
        is_apart = True
        for k in range(num_paths):
            banned = set(found).union(
                *(group for group in groups if is_apart and group & set(found))
            )
            remaining = set(range(topology.num_links)) - banned
            if not nx.has_path(_graph(topology, weights, remaining), source, target):
                is_apart, remaining = False, set(range(topology.num_links)) - set(found)
            graph = _graph(topology, weights, remaining)
            links = paths.links_of(d, k)
            if not nx.has_path(graph, source, target):
                assert links == []
                break
            assert set(links) <= remaining
            assert weights[links].sum() == pytest.approx(
                nx.shortest_path_length(graph, source, target, "weight")
            )
            found += links


def _graph(topology: Topology, weights: np.ndarray, links: set[int]) -> Any:
    graph: Any = nx.MultiDiGraph()
    graph.add_nodes_from(range(topology.num_nodes))
    for e in links:
        graph.add_edge(
            int(topology.link_source[e]), int(topology.link_target[e]), weight=weights[e]
        )
    return graph


@given(st.integers(0, 10_000), WEIGHTS, st.integers(1, 5))
def test_yen_finds_the_shortest_loopless_paths(
    seed: int, weight: PathWeight, num_paths: int
) -> None:
    topology = random_topology(seed, nodes=6)
    weights = _weights(topology, weight)
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_nodes))
    for e, (s, t) in enumerate(
        zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    ):
        graph.add_edge(s, t, weight=weights[e], link=e)
    paths = compute_paths(
        topology, num_paths=num_paths, method=PathMethod.YEN, weight=weight, cache=False
    )
    for d, (source, target) in enumerate(paths.pairs.tolist()):
        paths_links = [paths.links_of(d, k) for k in range(num_paths) if paths.mask[d, k]]
        assert len({tuple(links) for links in paths_links}) == len(paths_links)
        expected = []
        if nx.has_path(graph, source, target):
            shortest = islice(nx.shortest_simple_paths(graph, source, target, "weight"), num_paths)
            expected = [
                sum(graph[a][b]["weight"] for a, b in pairwise(nodes)) for nodes in shortest
            ]
        np.testing.assert_allclose([weights[links].sum() for links in paths_links], expected)


def test_a_second_member_of_a_cable_is_a_path_behind_those_of_other_cables() -> None:
    topology = make_topology([(0, 1, 5.0), (0, 1, 3.0), (0, 2, 1.0), (2, 1, 1.0)])
    paths = compute_paths(topology, np.array([[0, 1]], np.int32), cache=False)
    assert [paths.links_of(0, k) for k in range(4)] == [[0], [2, 3], [1], []]


def test_incidences_list_every_link_of_every_path() -> None:
    topology = random_topology(3)
    paths = compute_paths(topology, cache=False)
    rows, columns = paths.incidences()
    assert len(rows) == paths.num_incidences
    for d in range(paths.num_demands):
        for k in range(paths.num_paths):
            assert sorted(columns[rows == d * paths.num_paths + k].tolist()) == sorted(
                paths.links_of(d, k)
            )


def test_a_file_that_cannot_be_read_now_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAL_CACHE_DIR", str(tmp_path))
    topology = random_topology(1)
    paths = compute_paths(topology)
    (entry,) = cache_dir("paths").iterdir()
    save_paths(tmp_path / "p.npz", paths)

    def too_many(_: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(path_file, "check_npz", too_many)
        with pytest.raises(OSError, match="Too many open files"):
            load_paths(tmp_path / "p.npz", topology)
        assert compute_paths(topology).key == paths.key, "computed again"
        assert entry.exists()
    assert load_paths(tmp_path / "p.npz", topology).key == paths.key


def test_cache_of_paths_is_keyed_by_content_and_survives_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAL_CACHE_DIR", str(tmp_path))
    topology = random_topology(1)
    first = compute_paths(topology)
    entries = list(cache_dir("paths").iterdir())
    assert len(entries) == 1
    other_capacities = topology.with_capacity(topology.capacity * 2)
    assert compute_paths(other_capacities).key == first.key, (
        "paths by hops do not depend on capacities"
    )
    by_capacity = compute_paths(other_capacities, weight=PathWeight.INVERSE_CAPACITY)
    assert by_capacity.key != first.key
    entries[0].write_bytes(entries[0].read_bytes()[:100])
    np.testing.assert_array_equal(compute_paths(topology).leaf, first.leaf)


def test_wrong_arguments_of_compute_paths_are_refused() -> None:
    topology = random_topology(1)
    with pytest.raises(InputError, match="K: expected a number from 1 to 255"):
        compute_paths(topology, num_paths=0)
    with pytest.raises(
        (InputError, TypeError), match=r"choose_paths|num_paths"
    ):  # of the check of annotations
        compute_paths(topology, num_paths="auto")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="sorted"):
        compute_paths(topology, np.array([[1, 0], [0, 1]], np.int32))


@pytest.mark.parametrize(
    ("name", "demands", "paths", "incidences", "nodes"),
    [("UsCarrier", 24_806, 36_242, 491_992, 45_803), ("B4", 132, 310, 944, 396)],
)
def test_path_counts_equal_those_of_an_independent_implementation(
    public_data: Path, name: str, demands: int, paths: int, incidences: int, nodes: int
) -> None:
    """Counts of an independent implementation (disjoint by cable, then by link; fewest hops, K =
    4).

    Tolerances, because implementations may choose different shortest paths, which leave other links
    for the next.
    """
    path_set = compute_paths(load_topology(str(public_data / "topologies" / f"{name}.json")))
    assert path_set.num_demands == demands
    assert int(path_set.mask.sum()) == pytest.approx(paths, rel=5e-4)
    assert path_set.num_incidences == pytest.approx(incidences, rel=5e-4)
    assert path_set.trie.num_nodes <= 1.04 * nodes


@pytest.mark.system
@pytest.mark.parametrize("method", list(PathMethod))
def test_weights_over_many_decades_are_searched_like_others(method: PathMethod) -> None:
    """Sums in which rounding swallows a weight must not make A* expand nodes again and again."""
    gadgets, links, latency = 40, list[tuple[int, int]](), list[float]()
    for g in range(gadgets):  # a long way of tiny weights beside a short one, one after another
        a, b, c = 2 * g, 2 * g + 1, 2 * g + 2
        links += [(a, c), (a, b), (b, c)]
        latency += [1e-200 * 2.0 ** -(2 * g), 1e-250, 1e-250]
    links.append((2 * gadgets, 2 * gadgets + 1))
    latency.append(1.0)
    ends = np.array(links)
    names = tuple(map(str, range(2 * gadgets + 2)))
    topology = Topology(
        "chain",
        names,
        ends[:, 0],
        ends[:, 1],
        np.ones(len(links)),
        np.array(latency),
        np.full((len(names), 2), np.nan),
    )
    pairs = np.array([[0, 2 * gadgets + 1]], np.int32)
    paths = compute_paths(
        topology, pairs, num_paths=2, method=method, weight=PathWeight.LATENCY, cache=False
    )
    assert paths.mask[0, 0]


def test_progress_of_a_search_rises_to_one_and_may_end_it() -> None:
    topology, shares = load_topology("topohub:sndlib/germany50"), list[float]()
    reported = compute_paths(topology, cache=False, report=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 1
    np.testing.assert_array_equal(reported.leaf, compute_paths(topology, cache=False).leaf)

    class EndedError(Exception):
        pass

    def end(_: float) -> None:
        raise EndedError

    with pytest.raises(EndedError):
        compute_paths(topology, cache=False, report=end)


@pytest.mark.slow
def test_the_estimate_of_a_search_grows_with_the_work() -> None:
    topology = load_topology("topohub:sndlib/germany50")
    estimated_seconds(topology)  # kernels are compiled
    estimated_seconds(topology, method=PathMethod.YEN)
    short = min(estimated_seconds(topology, num_paths=2) for _ in range(5))
    long = min(estimated_seconds(topology, num_paths=32, method=PathMethod.YEN) for _ in range(5))
    assert 0 < short < long


def test_forgotten_paths_leave_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEAL_CACHE_DIR", str(tmp_path))
    paths = compute_paths(load_topology("b4"))
    assert len(list(tmp_path.rglob("*.npz"))) == 1
    forget(paths.key)
    assert not list(tmp_path.rglob("*.npz"))
    forget(paths.key)


def test_maximally_disjoint_paths_are_the_disjoint_ones_and_then_survivable_ones() -> None:
    """On random networks: the edge-disjoint paths first, then survivable ones, up to K; so a stub
    that all paths share hides no other path."""
    for seed in range(30):
        topology = cabled_topology(seed)
        found, disjoint, survivable = (
            compute_paths(topology, num_paths=4, method=method, cache=False)
            for method in ("maximally-disjoint", "edge-disjoint", "survivable")
        )
        for d in range(found.num_demands):
            paths, first, more = (
                [one.links_of(d, k) for k in range(one.num_paths) if one.mask[d, k]]
                for one in (found, disjoint, survivable)
            )
            expected = first + [path for path in more if path not in first]
            assert paths == expected[:4]
    ring = [(0, 1, 1.0), (1, 3, 1.0), (0, 2, 1.0), (2, 3, 1.0), (3, 4, 1.0)]
    pairs = np.array([[0, 4]], dtype=np.int32)
    stub = make_topology(ring, both=True)
    found = compute_paths(stub, pairs, method="maximally-disjoint", cache=False)
    assert [found.nodes_of(0, k, stub.link_target) for k in (0, 1)] == [[0, 1, 3, 4], [0, 2, 3, 4]]
