"""What a network can carry over any paths, by arc-flow programs in HiGHS and by networkx: no code
of Teal decides.

Flows are aggregated by source: x[s, e] Gbit/s of the traffic of source s on link e.  Parallel
links, one-way links and networks in parts are as good as others.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from teal.network import Topology


def connected(topology: Topology, pairs: np.ndarray, down: Sequence[int] = ()) -> np.ndarray:
    """(D,) whether networkx finds a path without the links that are down or have no capacity."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_nodes))
    works = topology.capacity > 0
    works[list(down)] = False
    graph.add_edges_from(
        zip(topology.link_source[works].tolist(), topology.link_target[works].tolist(), strict=True)
    )
    return np.array([nx.has_path(graph, s, t) for s, t in pairs.tolist()])


class _Network:
    """The rows of flow conservation of a network: columns are x[s, e], source by source, then one
    for each demand.

    A row for each source and node other than it: what arrives less what leaves, less what is
    delivered, is 0.
    """

    def __init__(self, topology: Topology, pairs: np.ndarray, works: np.ndarray) -> None:
        nodes, links = topology.num_nodes, topology.num_links
        self.sources = np.unique(pairs[:, 0])
        self.links, self.demands = links, len(pairs)
        self.flows = len(self.sources) * links
        rows, columns, values = [], [], []
        for i, s in enumerate(self.sources.tolist()):
            for e in np.flatnonzero(works).tolist():
                for node, sign in (
                    (int(topology.link_target[e]), 1.0),
                    (int(topology.link_source[e]), -1.0),
                ):
                    if node != s:
                        rows.append(i * nodes + node)
                        columns.append(i * links + e)
                        values.append(sign)
        for d, (s, t) in enumerate(pairs.tolist()):
            rows.append(int(np.searchsorted(self.sources, s)) * nodes + t)
            columns.append(self.flows + d)
            values.append(-1.0)
        shape = len(self.sources) * nodes, self.flows + len(pairs)
        self.balance = sp.csr_array((values, (rows, columns)), shape=shape)
        self.loads = sp.hstack(
            [sp.eye_array(links)] * len(self.sources) + [sp.csr_array((links, len(pairs)))],
            format="csr",
        )
        self.upper = np.concatenate(
            [np.where(np.tile(works, len(self.sources)), np.inf, 0.0), np.zeros(len(pairs))]
        )


def most_flow(
    topology: Topology, pairs: np.ndarray, demand: np.ndarray, down: Sequence[int] = ()
) -> float:
    """The largest total flow, Gbit/s, of demands (D,)."""
    works = topology.capacity > 0
    works[list(down)] = False
    network = _Network(topology, pairs, works)
    cost = np.concatenate([np.zeros(network.flows), -np.ones(len(pairs))])
    upper = network.upper.copy()
    upper[network.flows :] = demand
    found = linprog(
        cost,
        A_ub=network.loads,
        b_ub=np.where(works, topology.capacity, 0),
        A_eq=network.balance,
        b_eq=np.zeros(network.balance.shape[0]),
        bounds=np.stack([np.zeros(len(cost)), upper], 1),
        method="highs",
    )
    assert found.status == 0, found.message
    return float(-found.fun)


def least_utilisation(
    topology: Topology, pairs: np.ndarray, demand: np.ndarray, down: Sequence[int] = ()
) -> float:
    """The least largest utilisation with which all demands (D,) are carried that the network
    connects."""
    works = topology.capacity > 0
    works[list(down)] = False
    demand = np.where(connected(topology, pairs, down), demand, 0.0)
    network = _Network(topology, pairs, works)
    count = network.balance.shape[1]
    lower, upper = np.zeros(count), network.upper.copy()
    lower[network.flows :] = upper[network.flows :] = demand
    capacity = np.where(works, topology.capacity, 0.0)
    found = linprog(
        np.append(np.zeros(count), 1.0),
        A_ub=sp.hstack([network.loads, -capacity[:, None]], format="csr"),
        b_ub=np.zeros(len(capacity)),
        A_eq=sp.hstack([network.balance, sp.csr_array((network.balance.shape[0], 1))]),
        b_eq=np.zeros(network.balance.shape[0]),
        bounds=np.stack([np.append(lower, 0.0), np.append(upper, np.inf)], 1),
        method="highs",
    )
    assert found.status == 0, found.message
    return float(found.fun)


def least_cost(
    topology: Topology,
    pairs: np.ndarray,
    demands: np.ndarray,
    failures: Sequence[Sequence[int]],
    cost: np.ndarray,
    limit: float,
) -> float:
    """The least cost of capacity with which demands (M, D) fit under no failure and under each.

    Demands that the network does not connect are left out.  A purchase of a cable, shared by its
    parallel links, may be divided among them; the capacity of its two directions grows alike.

    Args:
        topology: the network.
        pairs: (D, 2).
        demands: (M, D) Gbit/s.
        failures: links of each.
        cost: (C,) of a Gbit/s on each cable.
        limit: largest utilisation.
    """
    cables = topology.cables()
    members: list[
        tuple[int, int, list[int]]
    ] = []  # cable, direction's first link, links of one direction
    for c, links in enumerate(cables):
        starts = dict.fromkeys(int(topology.link_source[e]) for e in links)
        members += [
            (c, start, [e for e in links if int(topology.link_source[e]) == start])
            for start in starts
        ]
    parts, loads, right, lower, upper = [], [], [], [], []
    for demand in demands:
        for down in [(), *failures]:
            works = topology.capacity > 0
            works[list(down)] = False
            network = _Network(topology, pairs, works)
            wanted = np.where(connected(topology, pairs, down), demand, 0.0)
            parts.append(network.balance)
            lower.append(np.concatenate([np.zeros(network.flows), wanted]))
            upper.append(np.concatenate([network.upper[: network.flows], wanted]))
            rows, bought, existing = [], np.zeros((len(members), len(cables))), []
            for i, (c, _, links) in enumerate(members):
                alive = [e for e in links if works[e]]
                rows.append(np.asarray(network.loads[alive].sum(0)).reshape(-1))
                bought[i, c] = limit if alive else 0.0
                existing.append(limit * float(topology.capacity[alive].sum()))
            loads.append((sp.csr_array(np.array(rows)), bought))
            right.append(existing)
    balance = sp.block_diag(list(map(sp.csr_array, parts)), format="csr")
    total = balance.shape[1]
    above = sp.hstack(
        [
            sp.block_diag([load for load, _ in loads], format="csr"),
            -np.concatenate([bought for _, bought in loads]),
        ],
        format="csr",
    )
    bounds = np.stack(
        [
            np.concatenate([*lower, np.zeros(len(cables))]),
            np.concatenate([*upper, np.full(len(cables), np.inf)]),
        ],
        1,
    )
    found = linprog(
        np.concatenate([np.zeros(total), cost]),
        A_ub=above,
        b_ub=np.concatenate(right),
        A_eq=sp.hstack([balance, sp.csr_array((balance.shape[0], len(cables)))], format="csr"),
        b_eq=np.zeros(balance.shape[0]),
        bounds=bounds,
        method="highs",
    )
    assert found.status == 0, found.message
    return float(found.fun)
