"""R2 of NCFlow: what one cluster can take of everything that starts, ends, passes or stays in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from baselines.contraction import Cluster, LinkPath
from baselines.linear_program import LinearProgram, LpSolution
from baselines.matrix import Array, ones

INSIDE, LEAVES, ENTERS, PASSES = "inside", "leaves", "enters", "passes"


@dataclasses.dataclass(frozen=True)
class Commodity:
    """One flow through a cluster.

    Attributes:
        kind: one of the four above.
        bundle: number, -1 inside.
        key: the demand inside, the source that leaves, the target that is entered, -1 of a bundle that passes.
        source, target: nodes of the cluster between which it runs.
        crossing: the exposed links that it enters and leaves by, of those it has.
        limit: Gbit/s.
    """

    kind: str
    bundle: int
    key: int
    source: int
    target: int
    crossing: tuple[int, ...]
    limit: float


@dataclasses.dataclass(frozen=True, eq=False)
class ClusterFlows:
    """A program, what its variables are, and, once it is solved, the path flows of each commodity."""

    program: LinearProgram
    commodities: Sequence[Commodity]
    routes: Sequence[list[LinkPath]]

    def taken(self, found: LpSolution) -> dict[tuple[str, int, int], tuple[float, list[tuple[LinkPath, float]]]]:
        """(kind, bundle, key) -> Gbit/s, and (links inside the cluster, Gbit/s) path by path."""
        place, taken = 0, {}
        for commodity, routes in zip(self.commodities, self.routes, strict=True):
            flows = found.x[place : place + len(routes)].tolist()
            place += len(routes)
            parts = [(route, flow) for route, flow in zip(routes, flows, strict=True) if flow > 0]
            taken[commodity.kind, commodity.bundle, commodity.key] = (sum(flow for _, flow in parts), parts)
        return taken


def cluster_program(
    cluster: Cluster, commodities: Sequence[Commodity], left: Array, bundles: Array, gamma: float
) -> ClusterFlows:
    """Max sum of flows - gamma sum_k max_p f[k, p], within what is left of links and within R1.

    Args:
        left: (E,) residual capacities.
        bundles: (bundles,) flow of each in R1.
        gamma: what piling a commodity onto one path costs.
    """
    routes = [cluster.between(c.source, c.target) for c in commodities]
    counts = np.array([len(own) for own in routes], np.int64)
    width, owner = int(counts.sum()), np.repeat(np.arange(len(commodities)), counts)
    spread = np.flatnonzero(counts > 1)  # those whose largest path flow is a variable
    most = np.full(len(commodities), -1)
    most[spread] = width + np.arange(len(spread))
    total = width + len(spread)
    pairs = [
        (link, column)
        for column, (own, route) in enumerate(zip(owner.tolist(), (r for own in routes for r in own), strict=True))
        for link in (*route, *commodities[own].crossing)
    ]
    on_link = np.array(pairs, np.int64).reshape(-1, 2)
    links, link_row = np.unique(on_link[:, 0], return_inverse=True)
    groups: dict[tuple[str, int], list[int]] = {}
    for column, own in enumerate(owner.tolist()):
        if commodities[own].kind in (LEAVES, ENTERS):
            groups.setdefault((commodities[own].kind, commodities[own].bundle), []).append(column)
    group_row = np.repeat(np.arange(len(groups)), [len(columns) for columns in groups.values()])
    group_column = np.array([column for columns in groups.values() for column in columns], np.int64)
    wide = np.flatnonzero(most[owner] >= 0)
    above = ones(np.arange(len(wide)), wide, (len(wide), total)) - ones(
        np.arange(len(wide)), most[owner[wide]], (len(wide), total)
    )
    program = LinearProgram(
        np.append(-np.ones(width), np.full(len(spread), gamma)),
        sp.vstack(
            [
                ones(link_row, on_link[:, 1], (len(links), total)),
                ones(owner, np.arange(width), (len(commodities), total)),
                ones(group_row, group_column, (len(groups), total)),
                above,
            ],
            format="csr",
        ),
        np.concatenate(
            [
                left[links],
                [commodity.limit for commodity in commodities],
                [bundles[bundle] for _, bundle in groups],
                np.zeros(len(wide)),
            ]
        ),
    )
    return ClusterFlows(program, commodities, routes)
