"""R2 of NCFlow: the LP of one cluster, with all flow that starts, ends, passes or stays in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from baselines.contraction import Cluster, LinkPath
from baselines.linear_program import LinearProgram, LpSolution
from baselines.matrix import Array, sparse_ones

WeightedPaths = list[tuple[LinkPath, float]]  # paths, each with its flow or its share of a flow

# Kinds of commodities: a demand inside a cluster; the part of a bundle (the demands from one
# cluster to another) that leaves a source, that reaches a target, or that passes through a cluster
# from its entry to its exit.
INSIDE = "inside"
LEAVES = "leaves"
ENTERS = "enters"
PASSES = "passes"


@dataclasses.dataclass(frozen=True)
class Commodity:
    """One flow through a cluster.

    Attributes:
        kind: INSIDE, LEAVES, ENTERS or PASSES.
        bundle: number of the bundle; -1 for INSIDE.
        key: demand number for INSIDE, source node for LEAVES, target node for ENTERS, -1 for
            PASSES.
        source: node of the cluster where the flow starts.
        target: node of the cluster where the flow ends.
        crossing: the exposed links by which the flow enters and leaves the cluster; empty for
            INSIDE.
        limit: largest flow.
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
    """The LP of a cluster; its first variables are the path flows of one commodity after the other.

    Attributes:
        program: the LP.
        commodities: in the order of the variables.
        paths: for each commodity, the paths inside the cluster.
    """

    program: LinearProgram
    commodities: Sequence[Commodity]
    paths: Sequence[list[LinkPath]]

    def commodity_flows(
        self, solution: LpSolution
    ) -> dict[tuple[str, int, int], tuple[float, WeightedPaths]]:
        """(kind, bundle, key) -> flow, and the paths inside the cluster that carry it with their
        flows.
        """
        start = 0
        commodity_flows = {}
        for commodity, paths in zip(self.commodities, self.paths, strict=True):
            flows = solution.x[start : start + len(paths)].tolist()
            start += len(paths)
            used = [(path, flow) for path, flow in zip(paths, flows, strict=True) if flow > 0]
            key = commodity.kind, commodity.bundle, commodity.key
            commodity_flows[key] = (sum(flow for _, flow in used), used)
        return commodity_flows


def cluster_program(
    cluster: Cluster,
    commodities: Sequence[Commodity],
    residual: Array,
    bundle_flow: Array,
    gamma: float,
) -> ClusterFlows:
    """Maximise sum of f[k, p] - gamma sum_k max_p f[k, p], with f[k, p] the flow of commodity k on
    path p.

    The second sum is over the commodities with more than one path: only these can be spread.

    Subject to the residual capacities of all links inside and exposed, the limit of each commodity,
    and, for each bundle, its flow in R1 for the sum of what leaves the cluster and for the sum of
    what enters it.

    Args:
        cluster: with its paths.
        commodities: of the cluster.
        residual: (E,) residual capacities.
        bundle_flow: (bundles,) flow of each bundle in R1.
        gamma: penalty on the largest path flow of each commodity, so that flow is spread over
            several paths.
    """
    # Variables: path flows, then the largest path flow of each commodity with more than one path.
    paths = [cluster.paths_between(c.source, c.target) for c in commodities]
    counts = np.array([len(commodity_paths) for commodity_paths in paths], np.int64)
    width = int(counts.sum())
    commodity_of = np.repeat(np.arange(len(commodities)), counts)
    num_max = int((counts > 1).sum())
    total = width + num_max
    # Rows: capacities, limits of commodities, flows of bundles, largest path flows.
    links, load_rows = _load_rows(commodities, paths, commodity_of, total)
    bundles, bundle_rows = _bundle_rows(commodities, commodity_of, total)
    below_max = _max_flow_rows(counts, commodity_of, total)
    program = LinearProgram(
        np.append(-np.ones(width), np.full(num_max, gamma)),
        sp.vstack(
            [
                load_rows,
                sparse_ones(commodity_of, np.arange(width), (len(commodities), total)),
                bundle_rows,
                below_max,
            ],
            format="csr",
        ),
        np.concatenate(
            [
                residual[links],
                [commodity.limit for commodity in commodities],
                [bundle_flow[bundle] for bundle in bundles],
                np.zeros(below_max.shape[0]),
            ]
        ),
    )
    return ClusterFlows(program, commodities, paths)


def _load_rows(
    commodities: Sequence[Commodity],
    paths: Sequence[list[LinkPath]],
    commodity_of: Array,
    total: int,
) -> tuple[Array, sp.csr_array]:
    """Links that the path flows use, inside the cluster or exposed, and the load of each.

    Args:
        commodities: commodities of the cluster.
        paths: paths of each commodity.
        commodity_of: (n,) commodity of each path flow.
        total: number of variables.
    """
    all_paths = [path for commodity_paths in paths for path in commodity_paths]
    incidences = [
        (link, column)
        for column, (k, path) in enumerate(zip(commodity_of.tolist(), all_paths, strict=True))
        for link in (*path, *commodities[k].crossing)
    ]
    incidence = np.array(incidences, np.int64).reshape(-1, 2)
    links, row = np.unique(incidence[:, 0], return_inverse=True)
    return links, sparse_ones(row, incidence[:, 1], (len(links), total))


def _bundle_rows(
    commodities: Sequence[Commodity], commodity_of: Array, total: int
) -> tuple[list[int], sp.csr_array]:
    """Bundle of each row, and rows that sum the flow of a bundle that leaves or enters the cluster.

    Args:
        commodities: commodities of the cluster.
        commodity_of: (n,) commodity of each path flow.
        total: number of variables.
    """
    groups: dict[tuple[str, int], list[int]] = {}  # (kind, bundle) -> columns
    for column, k in enumerate(commodity_of.tolist()):
        if commodities[k].kind in (LEAVES, ENTERS):
            groups.setdefault((commodities[k].kind, commodities[k].bundle), []).append(column)
    row = np.repeat(np.arange(len(groups)), [len(columns) for columns in groups.values()])
    group_column = np.array([column for columns in groups.values() for column in columns], np.int64)
    return [bundle for _, bundle in groups], sparse_ones(row, group_column, (len(groups), total))


def _max_flow_rows(counts: Array, commodity_of: Array, total: int) -> sp.csr_array:
    """Rows f[k, p] - max_p f[k, p] of the commodities with more than one path.

    Args:
        counts: (commodities,) number of paths of each.
        commodity_of: (n,) commodity of each path flow.
        total: number of variables.
    """
    with_choice = np.flatnonzero(counts > 1)
    max_column = np.full(len(counts), -1)
    max_column[with_choice] = len(commodity_of) + np.arange(len(with_choice))
    bounded = np.flatnonzero(max_column[commodity_of] >= 0)
    row = np.arange(len(bounded))
    shape = (len(bounded), total)
    return sp.csr_array(
        sparse_ones(row, bounded, shape)
        - sparse_ones(row, max_column[commodity_of[bounded]], shape)
    )
