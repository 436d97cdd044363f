"""Survivable paths against the connectivity of the network without each group, and against networks
by hand."""

from __future__ import annotations

import itertools
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
from teal.errors import InputError
from teal.network import PathMethod, PathSet, PathWeight, Topology, compute_paths
from teal.testing import make_topology, random_topology


def _survivable(
    topology: Topology, groups: list[list[int]] | None = None, num_paths: int = 4
) -> PathSet:
    return compute_paths(
        topology, method=PathMethod.SURVIVABLE, groups=groups, num_paths=num_paths, cache=False
    )


def _avoidable(
    topology: Topology, paths: PathSet, groups: list[list[int]]
) -> list[tuple[int, int]]:
    """Demand and group where the group is on every path of the demand, and the network has another
    one without it."""
    found = []
    for number, group in enumerate(groups):
        graph = nx.DiGraph()
        graph.add_nodes_from(range(topology.num_nodes))
        ends = zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
        graph.add_edges_from(pair for link, pair in enumerate(ends) if link not in group)
        reached = {node: nx.descendants(graph, node) for node in graph}
        for d, (source, target) in enumerate(paths.pairs.tolist()):
            own = [paths.links_of(d, k) for k in np.flatnonzero(paths.mask[d]).tolist()]
            if own and all(set(group) & set(links) for links in own) and target in reached[source]:
                found.append((d, number))
    return found


def _groups_of(topology: Topology, seed: int, size: int) -> list[list[int]]:
    """Groups of some cables each; a cable may be in several, or in none."""
    rng, cables = np.random.default_rng(seed), topology.cables()
    chosen = [
        rng.choice(len(cables), min(size, len(cables)), replace=False) for _ in range(len(cables))
    ]
    return [sorted({link for cable in own.tolist() for link in cables[cable]}) for own in chosen]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000), nodes=st.integers(4, 12), density=st.sampled_from([0.1, 0.25, 0.5])
)
def test_no_single_cable_strands_a_demand_that_the_network_could_carry(
    seed: int, nodes: int, density: float
) -> None:
    topology = random_topology(seed, nodes, density)
    assert _avoidable(topology, _survivable(topology), topology.cables()) == []


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), nodes=st.integers(4, 10), size=st.sampled_from([1, 2, 3]))
def test_no_single_group_strands_a_demand_that_the_network_could_carry(
    seed: int, nodes: int, size: int
) -> None:
    topology = random_topology(seed, nodes, 0.4)
    groups = _groups_of(topology, seed, size)
    paths = _survivable(topology, groups, num_paths=12)
    assert _avoidable(topology, paths, groups) == []


def test_paths_are_simple_distinct_and_begin_with_a_shortest_one() -> None:
    topology = teal.load_topology("topohub:sndlib/geant")
    for weight in PathWeight:
        paths = compute_paths(topology, method=PathMethod.SURVIVABLE, weight=weight, cache=False)
        disjoint = compute_paths(topology, weight=weight, cache=False)
        measure = {
            PathWeight.HOPS: np.ones(topology.num_links),
            PathWeight.LATENCY: topology.latency,
        }.get(weight, 1 / topology.capacity)
        for d, (source, target) in enumerate(paths.pairs.tolist()):
            own = [paths.links_of(d, k) for k in np.flatnonzero(paths.mask[d]).tolist()]
            assert len({tuple(links) for links in own}) == len(own)
            for links in own:
                nodes = [source, *topology.link_target[links].tolist()]
                assert nodes[-1] == target
                assert len(set(nodes)) == len(nodes)
                assert topology.link_source[links].tolist() == nodes[:-1]
            shortest = measure[disjoint.links_of(d, 0)].sum()
            assert measure[own[0]].sum() == pytest.approx(shortest)
            assert len(own) >= disjoint.mask[d].sum()


def test_a_shortest_path_that_blocks_both_disjoint_ones() -> None:
    """From 0 to 5 the shortest path, 0-1-4-5, has a link of each of the disjoint 0-1-2-6-5 and
    0-3-7-4-5."""
    ends = [(0, 1), (1, 4), (4, 5), (1, 2), (2, 6), (6, 5), (0, 3), (3, 7), (7, 4)]
    topology, pairs = make_topology([(*pair, 1.0) for pair in ends]), np.array([[0, 5]], np.int32)
    assert compute_paths(topology, pairs, cache=False).mask.sum() == 1
    own = compute_paths(topology, pairs, method=PathMethod.SURVIVABLE, cache=False)
    assert _avoidable(topology, own, topology.cables()) == []


def test_two_paths_around_two_groups_that_no_path_avoids_together() -> None:
    """Two squares in a row; one group holds their upper sides crosswise, the other the lower
    ones."""
    topology = make_topology(
        [
            (0, 1, 1.0),
            (1, 3, 1.0),
            (0, 2, 1.0),
            (2, 3, 1.0),
            (3, 4, 1.0),
            (4, 6, 1.0),
            (3, 5, 1.0),
            (5, 6, 1.0),
        ]
    )
    ends = list(zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True))
    upper, lower = (
        [ends.index(pair) for pair in own] for own in (((0, 1), (3, 5)), ((0, 2), (3, 4)))
    )
    pairs = np.array([[0, 6]], np.int32)
    own = compute_paths(
        topology, pairs, method=PathMethod.SURVIVABLE, groups=[upper, lower], cache=False
    )
    assert _avoidable(topology, own, [upper, lower]) == []


def test_groups_are_part_of_the_cache_key_and_of_the_settings(tmp_path: Path) -> None:
    topology = teal.load_topology("b4")
    groups = _groups_of(topology, 0, 3)
    by_cable = compute_paths(topology, method=PathMethod.SURVIVABLE)
    by_group = compute_paths(topology, method=PathMethod.SURVIVABLE, groups=groups)
    assert by_cable.key != by_group.key
    again = compute_paths(topology, method=PathMethod.SURVIVABLE, groups=groups)
    assert again.key == by_group.key
    np.testing.assert_array_equal(again.leaf, by_group.leaf)
    from teal.allocation.paths import run_compute
    from teal.allocation.settings import PathsConfig

    file = tmp_path / "groups.csv"
    file.write_text("group,source,target\none,1,2\none,1,3\n")
    with pytest.raises(InputError, match="survivable"):
        run_compute(
            PathsConfig(topology="b4", num_paths=4, path_groups=file, path_method=PathMethod.YEN),
            print,
        )
    _, apart = run_compute(PathsConfig(topology="b4", num_paths=4, path_groups=file), print)
    from_1 = [
        d
        for d, (source, _) in enumerate(apart.pairs.tolist())
        if topology.node_names[source] == "1"
    ]
    assert (apart.mask[from_1].sum(1) == 2).all(), (
        "two cables leave node 1: the second way is one of links alone"
    )
    _, paths = run_compute(
        PathsConfig(
            topology="b4", num_paths=4, path_groups=file, path_method=PathMethod.SURVIVABLE
        ),
        print,
    )
    one = [*topology.find_links("1", "2"), *topology.find_links("1", "3")]
    expected = compute_paths(topology, method=PathMethod.SURVIVABLE, groups=[one], cache=False)
    np.testing.assert_array_equal(paths.leaf, expected.leaf)


def test_a_link_that_all_paths_cross_costs_more_than_any_number_of_others() -> None:
    """A way of nine links with four detours, one of which avoids the link that the first two paths
    share."""
    ends = [(node, node + 1) for node in range(9)]
    new = 10
    for begin, end, hops in ((1, 8, 8), (2, 9, 9), (0, 3, 4), (7, 9, 3)):
        nodes = [begin, *range(new, new + hops - 1), end]
        new += hops - 1
        ends += itertools.pairwise(nodes)
    topology = make_topology([(a, b, 1.0) for a, b in ends])
    paths = compute_paths(
        topology,
        np.array([[0, 9]], np.int32),
        num_paths=3,
        method=PathMethod.SURVIVABLE,
        cache=False,
    )
    assert _avoidable(topology, paths, topology.cables()) == []
