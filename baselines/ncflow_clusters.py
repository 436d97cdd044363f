"""R2 of NCFlow: the LP of one cluster, with internal, leaving, entering and transit flow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from baselines.contraction import Cluster, LinkPath
from baselines.linear_program import LinearProgram, LpSolution
from baselines.matrix import Array, sparse_ones

# Paths, each with its flow or its share of a flow.
WeightedPaths = list[tuple[LinkPath, float]]

# Kinds of commodities: a demand inside a cluster; and, of a bundle (the demands from one cluster to
# another), the flow from a source, the flow to a target, or the transit flow through a cluster.
INSIDE = "inside"
LEAVES = "leaves"
ENTERS = "enters"
PASSES = "passes"


@dataclasses.dataclass(frozen=True)
class Commodity:
    """One flow through a cluster.

    Attributes:
        kind: INSIDE, LEAVES, ENTERS or PASSES.
        bundle: index of the bundle; -1 for INSIDE.
        key: demand index for INSIDE, source node for LEAVES, target node for ENTERS, -1 for
            PASSES.
        source: node of the cluster where the flow starts.
        target: node of the cluster where the flow ends.
        crossing: exposed links by which the flow enters and leaves the cluster; empty for INSIDE.
        limit: largest flow, in the unit of the matrix.
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
        commodities: commodities, in the order of their variables.
        paths: for each commodity, the paths inside the cluster.
    """

    program: LinearProgram
    commodities: Sequence[Commodity]
    paths: Sequence[list[LinkPath]]

    def commodity_flows(
        self, solution: LpSolution
    ) -> dict[tuple[str, int, int], tuple[float, WeightedPaths]]:
        """Return the flow of each commodity, and its paths inside the cluster with their flows.

        The key is (kind, bundle, key) of the commodity.
        """
        start = 0
        commodity_flows = {}
        for commodity, paths in zip(self.commodities, self.paths, strict=True):
            flows = solution.x[start : start + len(paths)].tolist()
            start += len(paths)
            # Paths with flow; the flow of the commodity is their sum.
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
    """Build the LP R2 of a cluster: max sum of f[k, p] - gamma sum over k of max_p f[k, p].

    f[k, p] is the flow of commodity k on path p.  The second sum is over the commodities with more
    than one path, whose flow can be spread.  Constraints are the residual capacities of all links
    inside and exposed, the limit of each commodity, and for each bundle its flow in R1: it limits
    the sum of the flows that leave the cluster, and the sum of those that enter it.

    Args:
        cluster: the cluster, with its paths.
        commodities: commodities of the cluster.
        residual: (E,) residual capacities.
        bundle_flow: (bundles,) flow of each bundle in R1.
        gamma: penalty on the largest path flow of each commodity.
    """
    # Variables: path flows, then the largest path flow of each commodity with more than one path.
    paths = [cluster.paths_between(c.source, c.target) for c in commodities]
    path_counts = np.array([len(commodity_paths) for commodity_paths in paths], np.int64)
    num_flows = int(path_counts.sum())
    column_commodity = np.repeat(np.arange(len(commodities)), path_counts)
    num_max_flows = int((path_counts > 1).sum())
    num_variables = num_flows + num_max_flows
    # Rows: capacities, limits of commodities, flows of bundles, largest path flows.
    links, load_rows = _load_rows(commodities, paths, column_commodity, num_variables)
    bundles, bundle_rows = _bundle_rows(commodities, column_commodity, num_variables)
    max_flow_rows = _max_flow_rows(path_counts, column_commodity, num_variables)
    # Minimise minus the total flow plus the penalty.
    program = LinearProgram(
        np.append(-np.ones(num_flows), np.full(num_max_flows, gamma)),
        sp.vstack(
            [
                load_rows,
                sparse_ones(
                    column_commodity, np.arange(num_flows), (len(commodities), num_variables)
                ),
                bundle_rows,
                max_flow_rows,
            ],
            format="csr",
        ),
        np.concatenate(
            [
                residual[links],
                [commodity.limit for commodity in commodities],
                [bundle_flow[bundle] for bundle in bundles],
                np.zeros(max_flow_rows.shape[0]),
            ]
        ),
    )
    return ClusterFlows(program, commodities, paths)


def _load_rows(
    commodities: Sequence[Commodity],
    paths: Sequence[list[LinkPath]],
    column_commodity: Array,
    num_variables: int,
) -> tuple[Array, sp.csr_array]:
    """Return the links that the path flows use, inside the cluster or exposed, and their load rows.

    Args:
        commodities: commodities of the cluster.
        paths: paths of each commodity.
        column_commodity: (n,) commodity of each path flow.
        num_variables: number of variables.

    Returns:
        links (m,), and the matrix (m, num_variables) of their loads.
    """
    all_paths = [path for commodity_paths in paths for path in commodity_paths]
    # (link, column) for the links of each path, and the exposed links of its commodity.
    incidences = [
        (link, column)
        for column, (commodity, path) in enumerate(
            zip(column_commodity.tolist(), all_paths, strict=True)
        )
        for link in (*path, *commodities[commodity].crossing)
    ]
    incidence = np.array(incidences, np.int64).reshape(-1, 2)
    links, row = np.unique(incidence[:, 0], return_inverse=True)
    return links, sparse_ones(row, incidence[:, 1], (len(links), num_variables))


def _bundle_rows(
    commodities: Sequence[Commodity], column_commodity: Array, num_variables: int
) -> tuple[list[int], sp.csr_array]:
    """Return the rows that sum the flow of each bundle that leaves or enters the cluster.

    Args:
        commodities: commodities of the cluster.
        column_commodity: (n,) commodity of each path flow.
        num_variables: number of variables.

    Returns:
        bundle of each row, and the rows (m, num_variables).
    """
    columns_by_bundle: dict[tuple[str, int], list[int]] = {}  # (kind, bundle) -> columns
    for column, commodity in enumerate(column_commodity.tolist()):
        if commodities[commodity].kind in (LEAVES, ENTERS):
            columns_by_bundle.setdefault(
                (commodities[commodity].kind, commodities[commodity].bundle), []
            ).append(column)
    row = np.repeat(
        np.arange(len(columns_by_bundle)), [len(columns) for columns in columns_by_bundle.values()]
    )
    group_column = np.array(
        [column for columns in columns_by_bundle.values() for column in columns], np.int64
    )
    return [bundle for _, bundle in columns_by_bundle], sparse_ones(
        row, group_column, (len(columns_by_bundle), num_variables)
    )


def _max_flow_rows(path_counts: Array, column_commodity: Array, num_variables: int) -> sp.csr_array:
    """Return the rows f[k, p] - max_p f[k, p] of the commodities with more than one path.

    Args:
        path_counts: (commodities,) number of paths of each.
        column_commodity: (n,) commodity of each path flow.
        num_variables: number of variables.
    """
    multipath_commodities = np.flatnonzero(path_counts > 1)
    # Column of the largest path flow of each commodity; -1 for a single path.
    max_column = np.full(len(path_counts), -1)
    max_column[multipath_commodities] = len(column_commodity) + np.arange(
        len(multipath_commodities)
    )
    columns = np.flatnonzero(max_column[column_commodity] >= 0)
    row = np.arange(len(columns))
    shape = (len(columns), num_variables)
    return sp.csr_array(
        sparse_ones(row, columns, shape)
        - sparse_ones(row, max_column[column_commodity[columns]], shape)
    )
