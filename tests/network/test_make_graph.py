"""Routers that carry no transit traffic: paths of every search and the bound over all paths,
against networkx.

ISO 10589 7.2.8.1 and RFC 3787 3: traffic from and to a router with the overload bit goes on, and
none through it. Loads and failures of shortest-path routing are compared in
:mod:`tests.teal_ip.routing.test_igp_failures`, whose networks have such routers.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch

from teal.network import Topology, all_pairs, compute_paths
from teal.network.path_options import PathMethod, PathWeight
from teal.problem import Problem
from teal.problem.bounds import all_paths_bound
from teal.testing import make_topology, random_topology
from tests.igp_reference import without_transit


def _shortest(topology: Topology, weight: np.ndarray, source: int, target: int) -> float:
    """Least weight of a path that enters no router without transit but its target; infinite if
    there is none."""
    assert topology.no_transit is not None
    graph = nx.MultiDiGraph()
    graph.add_nodes_from((source, target))
    for link in range(topology.num_links):
        a, b = int(topology.link_source[link]), int(topology.link_target[link])
        if not topology.no_transit[b] or b == target:
            graph.add_edge(a, b, weight=weight[link])
    try:
        return float(nx.dijkstra_path_length(graph, source, target))
    except nx.NetworkXNoPath:
        return np.inf


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight", list(PathWeight))
@pytest.mark.parametrize("method", list(PathMethod))
def test_no_search_leads_through_a_router_without_transit(
    method: PathMethod, weight: PathWeight, seed: int
) -> None:
    topology = without_transit(random_topology(seed, nodes=8), seed)
    paths = compute_paths(topology, all_pairs(topology), method=method, weight=weight, cache=False)
    lengths = {PathWeight.HOPS: np.ones(topology.num_links), PathWeight.LATENCY: topology.latency}
    for demand, (source, target) in enumerate(paths.pairs.tolist()):
        found = [paths.links_of(demand, int(k)) for k in np.flatnonzero(paths.mask[demand])]
        for path in found:
            inner = topology.link_target[path[:-1]]
            assert not topology.no_transit[inner].any()  # type: ignore[index]
        if weight in lengths:
            least = min((lengths[weight][path].sum() for path in found), default=np.inf)
            assert least == pytest.approx(_shortest(topology, lengths[weight], source, target))


def test_the_bound_over_all_paths_leaves_them_out() -> None:
    """From 0 to 3 by way of 1 (10 Gbit/s, no transit) or 2 (4 Gbit/s): 4 of 20, with prices 1 on
    the links of 2."""
    topology = without_transit(make_topology([(0, 1, 10), (1, 3, 10), (0, 2, 4), (2, 3, 4)]), 1)
    paths = compute_paths(topology, np.array([[0, 3]], dtype=np.int32), cache=False)
    problem = Problem.create(topology, paths, "total_flow", np.array([[20.0]]))
    prices = torch.tensor([[0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    assert float(all_paths_bound(problem, prices)[0]) == pytest.approx(4.0)
