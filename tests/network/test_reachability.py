"""Who is connected while links are down, and paths that survive, against networkx."""

from __future__ import annotations

import dataclasses
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from teal.network import PathSet, Topology, compute_paths
from teal.network.reachability import has_live_path, reaches, with_surviving_paths
from teal.testing import cabled_topology, make_topology

SEEDS = st.integers(0, 10_000)


def _connected(
    topology: Topology, pairs: np.ndarray, live: np.ndarray, limit: np.ndarray
) -> list[bool]:
    """By Dijkstra's algorithm of networkx."""
    graph: Any = nx.MultiDiGraph()
    graph.add_nodes_from(range(topology.num_nodes))
    for e in np.flatnonzero(live):
        graph.add_edge(
            int(topology.link_source[e]),
            int(topology.link_target[e]),
            ms=float(topology.latency[e]),
        )
    distance = dict(nx.all_pairs_dijkstra_path_length(graph, weight="ms"))
    return [
        distance[s].get(t, np.inf) <= most < np.inf or (most == np.inf and t in distance[s])
        for (s, t), most in zip(pairs.tolist(), limit.tolist(), strict=True)
    ]


def _case(seed: int) -> tuple[Topology, PathSet, list[list[int]], np.ndarray]:
    """A network with latencies, few paths, failures of one to three cables and of one member, and
    limits."""
    rng = np.random.default_rng(seed)
    topology = cabled_topology(seed)
    topology = topology.with_capacity(topology.capacity * (rng.random(topology.num_links) > 0.05))
    latency = rng.uniform(1, 5, topology.num_links)
    topology = Topology(
        topology.name,
        topology.node_names,
        topology.link_source,
        topology.link_target,
        topology.capacity,
        latency,
        topology.coordinates,
    )
    paths = compute_paths(topology, num_paths=int(rng.integers(1, 4)), cache=False)
    cables = topology.cables()
    failures: list[list[int]] = [[], [0], *cables]
    for _ in range(6):
        chosen = rng.choice(len(cables), min(len(cables), int(rng.integers(2, 4))), replace=False)
        failures.append([link for c in chosen.tolist() for link in cables[c]])
    limit = np.where(
        rng.random(paths.num_demands) < 0.3, rng.uniform(2, 12, paths.num_demands), np.inf
    )
    return topology, paths, failures, limit


def _live(topology: Topology, failure: list[int]) -> np.ndarray:
    live = topology.capacity > 0
    live[failure] = False
    return live


@given(SEEDS)
def test_reachability_is_that_of_the_graph(seed: int) -> None:
    topology, paths, failures, limit = _case(seed)
    unlimited = np.full(len(limit), np.inf)
    for failure in failures:
        live = _live(topology, failure)
        assert reaches(topology, paths.pairs, live).tolist() == _connected(
            topology, paths.pairs, live, unlimited
        )
        assert reaches(topology, paths.pairs, live, limit).tolist() == _connected(
            topology, paths.pairs, live, limit
        )


@given(SEEDS)
def test_a_path_survives_each_failure_that_the_network_survives(seed: int) -> None:
    topology, paths, failures, _ = _case(seed)
    more = with_surviving_paths(paths, topology, failures)
    for failure in failures:
        live = _live(topology, failure)
        expected = _connected(topology, paths.pairs, live, np.full(paths.num_demands, np.inf))
        assert has_live_path(more, live).tolist() == expected
        alive = [
            any(live[more.links_of(d, k)].all() for k in range(more.num_paths) if more.mask[d, k])
            for d in range(more.num_demands)
        ]
        assert alive == expected
    for d in range(paths.num_demands):
        before = [paths.links_of(d, k) for k in range(paths.num_paths) if paths.mask[d, k]]
        after = [more.links_of(d, k) for k in range(more.num_paths) if more.mask[d, k]]
        assert after[: len(before)] == before, "what was there stays where it was"
        for links in after[len(before) :]:
            assert topology.link_source[links[0]] == paths.pairs[d, 0]
            assert topology.link_target[links[-1]] == paths.pairs[d, 1]
            assert (topology.link_target[links[:-1]] == topology.link_source[links[1:]]).all()


@given(SEEDS)
def test_added_paths_keep_to_limits_of_latency(seed: int) -> None:
    topology, paths, failures, limit = _case(seed)
    more = with_surviving_paths(paths, topology, failures, max_latency=limit)
    for d in range(more.num_demands):
        for k in range(int(paths.mask[d].sum()), int(more.mask[d].sum())):
            assert topology.latency[more.links_of(d, k)].sum() <= limit[d]


def test_a_set_that_lacks_nothing_is_the_same_object() -> None:
    topology = make_topology([(0, 1, 1.0), (1, 2, 1.0), (0, 2, 1.0)], both=True)
    paths = compute_paths(topology, cache=False)
    assert with_surviving_paths(paths, topology, [[], *topology.cables()]) is paths


def test_the_second_route_is_found_past_a_cable_of_two_links() -> None:
    """From a to e over a cable of two links, or over c and d: the cable's two members are one
    way."""
    a, b, c, d, b2, e = range(6)
    cables = [(a, b), (a, b), (a, c), (c, d), (d, b2), (b2, b), (b, e), (b2, e)]
    topology = make_topology([(s, t, 100.0) for s, t in cables], both=True)
    paths = compute_paths(topology, np.array([[a, e]], np.int32), cache=False)
    live = _live(topology, topology.find_links("n0", "n1"))
    assert has_live_path(paths, live).all()


@given(SEEDS)
def test_a_path_may_end_at_a_node_without_transit_and_not_pass_it(seed: int) -> None:
    """Against networkx without the other such nodes, and so a surviving path that is added is one
    of the network."""
    topology, paths, failures, _ = _case(seed)
    rng = np.random.default_rng([seed, 8])
    stubs = rng.random(topology.num_nodes) < 0.4
    topology = dataclasses.replace(topology, no_transit=stubs)
    paths = compute_paths(topology, paths.pairs, num_paths=1, cache=False)
    more = with_surviving_paths(paths, topology, failures)
    for failure in failures:
        live = topology.capacity > 0
        live[list(failure)] = False
        expected = []
        for s, t in paths.pairs.tolist():
            graph: Any = nx.DiGraph()
            graph.add_nodes_from(range(topology.num_nodes))
            for e in np.flatnonzero(live):
                a, b = int(topology.link_source[e]), int(topology.link_target[e])
                if not any(stubs[node] and node not in (s, t) for node in (a, b)):
                    graph.add_edge(a, b)
            expected.append(nx.has_path(graph, s, t))
        assert reaches(topology, paths.pairs, live).tolist() == expected
        assert has_live_path(more, live).tolist() == expected
