"""NCFlow: LPs on the contracted network and inside each cluster, repeated on residual capacities.

Abuzaid et al., "Contracting Wide-area Network Topologies to Solve Flow Problems Quickly", NSDI
2021.  In each iteration

1. every pair of neighbouring clusters exposes one link, in each iteration the one with the next
   smaller capacity.  The demands from one cluster to another form a bundle with one path over
   exposed links.  There are up to n = 4 paths that share no pair of neighbouring clusters;
   iteration i uses path i mod n, or the next one whose links have residual capacity, as the
   authors' code does.  The LP R1 maximises the flow of all bundles;
2. the LP R2 of each cluster maximises the flow inside it: of its own demands, from each source to
   the exit of its bundle, from the entry of a bundle to each target, and from entry to exit of
   transit bundles.  No flow exceeds R1, and gamma penalises the use of a single path;
3. the flow of a bundle is limited to the smallest flow that R2 grants it in any of its clusters;
4. an LP for each bundle divides that flow among its demands, within the flow that R2 grants to each
   source and target; the path flows of R2 are scaled down in proportion.

As every pair of clusters exposes one link, step 3 is a minimum rather than an LP, and solving R1
again under these limits would change nothing: any flow that R2 grants on both sides of a link fits
the link.

NCFlow computes its own paths: they are added to the candidate paths, and the allocation contains
the extended path set.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from baselines.clusters import METHODS
from baselines.contraction import Contraction, LinkPath, contract
from baselines.linear_program import LinearProgram, LpSettings, LpSolution
from baselines.lp_solver import solve_program
from baselines.matrix import Array, Matrix, matrices, require_objective, sparse_ones
from baselines.ncflow_clusters import (
    ENTERS,
    INSIDE,
    LEAVES,
    PASSES,
    Commodity,
    WeightedPaths,
    cluster_program,
)
from baselines.own_paths import with_flows
from baselines.workers import solve_all
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.solvers.projection import project
from teal.spec import Spec

# Iterations stop when a smaller share of the demand is unserved, or when the last iteration has
# added a smaller share of the flow.
_STOP_SHARE = 0.05
# Demands, flows and residual capacities below this share of the largest demand count as 0.
_MIN_FLOW_SHARE = 1e-9
# gamma of R2 times the largest demand (at least 1 Gbit/s): small, so that it never outweighs flow.
_PENALTY = 0.01
# Largest number of demands in one LP of step 4, which covers several bundles.
_MAX_CHUNK_DEMANDS = 20_000

# By (cluster, kind, bundle, key): the flow that the LP R2 of the cluster grants to a commodity, and
# its paths in the cluster with the flow on each.  See Commodity for kind, bundle and key.
_Granted = dict[tuple[int, str, int, int], tuple[float, WeightedPaths]]


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The demands from one cluster to another.

    Attributes:
        demands: (n,) demand indices.
        clusters: clusters on the path of the bundle, from first to last.
        links: exposed links between consecutive clusters.
    """

    demands: Array
    clusters: tuple[int, ...]
    links: LinkPath


@dataclasses.dataclass(frozen=True)
class NcFlow:
    """NCFlow: LPs on the contracted network and in each cluster, repeated on residual capacities.

    Attributes:
        clusters: approximate number of clusters; 0 for 3 floor(sqrt(N)).
        method: method of partition: modularity, spectral or leaders.
        iterations: largest number of iterations.
        num_paths: paths for each pair of nodes of a cluster.
        seed: seed of the partition.
        workers: processes that solve LPs at the same time; 0 for one per core.
        settings: settings of the LP solver.
    """

    clusters: int = 0
    method: str = "modularity"
    iterations: int = 6
    num_paths: int = 4
    seed: int = 0
    workers: int = 0
    settings: LpSettings = dataclasses.field(default_factory=LpSettings)

    def solve(self, problem: Problem) -> Allocation:
        """Return the splits of every matrix over the candidate paths and NCFlow's own paths.

        Raises:
            InputError: the objective is not total_flow.
            SolverError: the LP solver cannot run.
        """
        require_objective("ncflow", problem.objective, ObjectiveName.TOTAL_FLOW)
        problem = problem.to(torch.float64)
        # Contract the network, then iterate, matrix by matrix.
        runs = []
        build_s = []
        solve_s = []
        for matrix in matrices(problem):
            begin = time.perf_counter()
            contraction = self.contraction(matrix)
            build_s.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            runs.append(_Run(self, matrix, contraction))
            runs[-1].iterate()
            solve_s.append(time.perf_counter() - begin)
        # Splits over the candidate paths and all paths of NCFlow that carry flow.
        paths, splits = with_flows(problem, [run.path_flows_gbps() for run in runs])
        # Flows of many linear programs, each within a tolerance of its limits, can exceed a narrow
        # link by more.
        splits = project(problem.with_paths(paths), splits, refill=0)
        return Allocation(
            splits,
            None,
            (Status.FEASIBLE,) * problem.batch,
            tuple(build_s),
            tuple(solve_s),
            tuple(seconds + run.parallel_s for seconds, run in zip(build_s, runs, strict=True)),
            paths,
        )

    def contraction(self, matrix: Matrix) -> Contraction:
        """Return the contraction of the network of a matrix, over its live links."""
        topology = matrix.network.problem.topology
        count = self.clusters or 3 * math.isqrt(topology.num_nodes)
        return contract(
            topology, matrix.capacity > 0, count, self.method, self.seed, self.num_paths
        )


class _Run:
    """NCFlow on one matrix: unserved demands, residual capacities, and the flow allocated so far.

    Args:
        scheme: settings of NCFlow.
        matrix: demands and capacities.
        contraction: clusters of the network, their paths, and the links between them.

    Attributes:
        path_flows: for each demand, the flow on each path in the unit of the matrix, by path.
        parallel_s: time if every cluster had a processor to itself, without the contraction, s.
    """

    def __init__(self, scheme: NcFlow, matrix: Matrix, contraction: Contraction) -> None:
        self._scheme = scheme
        self._matrix = matrix
        self._contraction = contraction
        topology = matrix.network.problem.topology
        self._link_source = topology.link_source
        self._link_target = topology.link_target
        self._pairs = matrix.network.problem.paths.pairs
        self._pair_clusters = contraction.node_cluster[self._pairs]  # (D, 2)
        self._unserved = matrix.demand.copy()
        self._residual = matrix.capacity.copy()
        # Flow that counts as 0, and the penalty gamma of R2 on the largest path flow.
        self._min_flow = _MIN_FLOW_SHARE * max(1e-300, float(matrix.demand.max(initial=0)))
        self._gamma = _PENALTY / max(1.0, matrix.unit * float(matrix.demand.max(initial=0)))
        self.path_flows: list[dict[LinkPath, float]] = [{} for _ in range(len(matrix.demand))]
        self.parallel_s = 0.0

    def path_flows_gbps(self) -> list[dict[LinkPath, float]]:
        """Return for each demand the flow on each path, Gbit/s."""
        return [
            {path: flow * self._matrix.unit for path, flow in flows.items()}
            for flows in self.path_flows
        ]

    def iterate(self) -> None:
        """Repeat the four steps until less than 5% of the demand is unserved, an iteration adds
        less than 5% of the flow, no capacity is left, or the limit of iterations is reached.
        """
        total_demand = float(self._matrix.demand.sum())
        total_flow = 0.0
        for iteration in range(self._scheme.iterations):
            added_flow = self._iteration(iteration)
            total_flow += added_flow
            if (
                self._unserved.sum() < _STOP_SHARE * total_demand
                or added_flow < _STOP_SHARE * total_flow
                or not (self._residual > self._min_flow).any()
            ):
                break

    def _iteration(self, iteration: int) -> float:
        """Run steps 1 to 4 once, and return the added flow in the unit of the matrix.

        Args:
            iteration: number of the iteration, from 0.
        """
        begin = time.perf_counter()
        # Steps 1 and 2: bundle flows over exposed links (R1), and the LP of each cluster (R2).
        bundles = self._bundles(iteration)
        bundle_flow = self._bundle_flow(bundles)
        programs = []
        clusters = []
        for cluster_number, commodities in self._commodities(bundles, bundle_flow).items():
            clusters.append(cluster_number)
            cluster = self._contraction.clusters[cluster_number]
            programs.append(
                cluster_program(cluster, commodities, self._residual, bundle_flow, self._gamma)
            )
        serial_s = time.perf_counter() - begin
        solutions = solve_all(
            [p.program for p in programs], self._scheme.settings, self._scheme.workers
        )
        begin = time.perf_counter()
        # Steps 3 and 4: merge the flows that all clusters of a bundle grant.
        granted: _Granted = {}
        for cluster_number, program, solution in zip(clusters, programs, solutions, strict=True):
            for key, value in program.commodity_flows(solution).items():
                granted[cluster_number, *key] = value
        gain = self._merge(bundles, granted)
        # Time with a processor for each cluster: the serial steps, and the slowest LP of R2.
        self.parallel_s += (
            serial_s
            + max((s.seconds for s in solutions), default=0.0)
            + time.perf_counter()
            - begin
        )
        return gain

    def _bundles(self, iteration: int) -> list[Bundle]:
        """Return the bundles with unserved demand and a path over exposed links.

        Exposed links have residual capacity; both the links and the paths rotate with the
        iterations.

        Args:
            iteration: number of the iteration, from 0.
        """
        # Expose one link with residual capacity between each two neighbouring clusters.
        exposed: dict[tuple[int, int], int] = {}
        for cluster_pair, links in self._contraction.links_between.items():
            # Rotate the links, which are in descending order of capacity, by the iteration.
            first_choice = iteration % len(links)
            usable_links = [
                link
                for link in links[first_choice:] + links[:first_choice]
                if self._residual[link] > self._min_flow
            ]
            if usable_links:
                exposed[cluster_pair] = usable_links[0]
        # Group the demands that are not fully served by their clusters.
        num_clusters = len(self._contraction.clusters)
        source_cluster, target_cluster = self._pair_clusters.T
        unserved_demands = np.flatnonzero(
            (self._unserved > self._min_flow) & (source_cluster != target_cluster)
        )
        cluster_pair_key = (
            source_cluster[unserved_demands] * num_clusters + target_cluster[unserved_demands]
        )
        order = np.argsort(cluster_pair_key, kind="stable")
        group_starts = np.flatnonzero(np.diff(cluster_pair_key[order])) + 1
        # Choose for each group the first route whose cluster pairs all have an exposed link.
        bundles = []
        for demands in (
            np.split(unserved_demands[order], group_starts) if len(unserved_demands) else []
        ):
            first_cluster, last_cluster = (int(c) for c in self._pair_clusters[demands[0]])
            routes = self._contraction.routes.get((first_cluster, last_cluster), [])
            first_choice = iteration % len(routes) if routes else 0
            for clusters in routes[first_choice:] + routes[:first_choice]:
                crossed_boundaries = list(itertools.pairwise(clusters))
                if all(cluster_pair in exposed for cluster_pair in crossed_boundaries):
                    bundles.append(
                        Bundle(
                            demands,
                            clusters,
                            tuple(exposed[cluster_pair] for cluster_pair in crossed_boundaries),
                        )
                    )
                    break
        return bundles

    def _bundle_flow(self, bundles: list[Bundle]) -> Array:
        """Solve R1: maximise the total flow of the bundles over the exposed links.

        Args:
            bundles: bundles of the iteration.

        Returns:
            (bundles,) flow of each bundle.
        """
        # Rows: exposed links that bundles use.  Columns: bundles.
        incidences = [(link, b) for b, bundle in enumerate(bundles) for link in bundle.links]
        incidence = np.array(incidences, np.int64).reshape(-1, 2)
        links, row = np.unique(incidence[:, 0], return_inverse=True)
        unserved = np.array([self._unserved[bundle.demands].sum() for bundle in bundles])
        loads = sparse_ones(row, incidence[:, 1], (len(links), len(bundles)))
        return self._solve(
            LinearProgram(-np.ones(len(bundles)), loads, self._residual[links], upper=unserved)
        ).x

    def _solve(self, program: LinearProgram) -> LpSolution:
        """Solve an LP with the settings of the scheme."""
        return solve_program(program, self._scheme.settings)

    def _commodities(self, bundles: list[Bundle], bundle_flow: Array) -> dict[int, list[Commodity]]:
        """Return the commodities of the LP R2 of each cluster, by cluster index.

        Args:
            bundles: bundles of the iteration.
            bundle_flow: (bundles,) flow of each bundle in R1.
        """
        commodities: dict[int, list[Commodity]] = {}
        # Demands inside a cluster.
        same_cluster = self._pair_clusters[:, 0] == self._pair_clusters[:, 1]
        for d in np.flatnonzero(same_cluster & (self._unserved > self._min_flow)).tolist():
            source, target = self._pairs[d].tolist()
            internal = Commodity(INSIDE, -1, d, source, target, (), float(self._unserved[d]))
            commodities.setdefault(int(self._pair_clusters[d, 0]), []).append(internal)
        # Parts of each bundle with flow in R1: from sources, to targets, and through clusters.
        for b, bundle in enumerate(bundles):
            if bundle_flow[b] <= self._min_flow:
                continue
            unserved = self._unserved[bundle.demands]
            links = bundle.links
            clusters = bundle.clusters
            pairs = self._pairs[bundle.demands]
            exit_node = int(self._link_source[links[0]])
            entry_node = int(self._link_target[links[-1]])
            # Flow from each source to the exit, from the entry to each target, and in transit.
            for node in np.unique(pairs[:, 0]).tolist():
                max_flow = float(unserved[pairs[:, 0] == node].sum())
                leaving = Commodity(LEAVES, b, node, node, exit_node, links[:1], max_flow)
                commodities.setdefault(clusters[0], []).append(leaving)
            for node in np.unique(pairs[:, 1]).tolist():
                max_flow = float(unserved[pairs[:, 1] == node].sum())
                entering = Commodity(ENTERS, b, node, entry_node, node, links[-1:], max_flow)
                commodities.setdefault(clusters[-1], []).append(entering)
            for cluster, entry_link, exit_link in zip(
                clusters[1:-1], links[:-1], links[1:], strict=True
            ):
                source = int(self._link_target[entry_link])
                target = int(self._link_source[exit_link])
                transit = Commodity(
                    PASSES, b, -1, source, target, (entry_link, exit_link), float(bundle_flow[b])
                )
                commodities.setdefault(cluster, []).append(transit)
        return commodities

    def _merge(self, bundles: list[Bundle], granted: _Granted) -> float:
        """Run steps 3 and 4: allocate the flows that all clusters of a bundle grant.

        Args:
            bundles: bundles of the iteration.
            granted: flow and paths of each commodity in R2.

        Returns:
            added flow, in the unit of the matrix.
        """
        added_flow = 0.0
        # Demands inside a cluster get the flow of R2; the key is the index of the demand.
        for (_, kind, _, key), (granted_flow, paths) in granted.items():
            if kind == INSIDE:
                for links, flow in paths:
                    self._add_flow(key, links, flow)
                added_flow += granted_flow
        # Bundles that R2 has considered, in chunks for the LP of step 4.
        bundles_in_r2 = {b for _, kind, b, _ in granted if kind == LEAVES}
        considered_bundles = [b for b in range(len(bundles)) if b in bundles_in_r2]
        for chunk in _chunks(
            considered_bundles, [len(bundle.demands) for bundle in bundles], _MAX_CHUNK_DEMANDS
        ):
            demand_flows = self._demand_flows(chunk, bundles, granted)
            for b in chunk:
                for d, flow in zip(
                    bundles[b].demands.tolist(), demand_flows[b].tolist(), strict=True
                ):
                    if flow > self._min_flow:
                        source, target = self._pairs[d].tolist()
                        segments = self._segments(bundles[b], b, source, target, granted)
                        # A segment is empty if R2 granted nothing and the flow is the solver's
                        # rounding error.
                        if all(segments):
                            added_flow += flow
                            for links, share in _join_segments(segments):
                                self._add_flow(d, links, flow * share)
        return added_flow

    def _add_flow(self, demand: int, links: LinkPath, flow: float) -> None:
        """Add flow to a path of a demand; update unserved demand and residual capacities."""
        path_flows = self.path_flows[demand]
        path_flows[links] = path_flows.get(links, 0.0) + flow
        self._unserved[demand] = max(0.0, self._unserved[demand] - flow)
        for link in links:
            self._residual[link] = max(0.0, self._residual[link] - flow)

    def _demand_flows(
        self, chunk: list[int], bundles: list[Bundle], granted: _Granted
    ) -> dict[int, Array]:
        """Solve step 4: maximise the flow of the demands of some bundles, within the grants of R2.

        Args:
            chunk: indices of the bundles.
            bundles: all bundles.
            granted: flow and paths of each commodity in R2.

        Returns:
            flow (n,) of the demands of each bundle.
        """
        # Rows of each bundle: grant of each source, of each target, then of the bundle, which is
        # the smallest grant of its clusters.
        limits: list[float] = []
        rows = []
        columns = []
        upper = []
        num_variables = 0
        for b in chunk:
            bundle = bundles[b]
            pairs = self._pairs[bundle.demands]
            variables = num_variables + np.arange(len(bundle.demands))
            end_clusters = ((0, bundle.clusters[0], LEAVES), (1, bundle.clusters[-1], ENTERS))
            cluster_grants = [
                granted[cluster, PASSES, b, -1][0] for cluster in bundle.clusters[1:-1]
            ]
            for pair_column, cluster, kind in end_clusters:
                nodes, node_row = np.unique(pairs[:, pair_column], return_inverse=True)
                granted_flows = [granted[cluster, kind, b, node][0] for node in nodes.tolist()]
                rows.append(len(limits) + node_row)
                columns.append(variables)
                limits += granted_flows
                cluster_grants.append(sum(granted_flows))
            rows.append(np.full(len(variables), len(limits)))
            columns.append(variables)
            # Step 3: the bundle's flow is limited by each of its clusters.
            limits.append(min(cluster_grants))
            upper.append(self._unserved[bundle.demands])
            num_variables += len(variables)
        # Maximise the flow of all demands of the chunk.
        a_ub = sparse_ones(
            np.concatenate(rows), np.concatenate(columns), (len(limits), num_variables)
        )
        program = LinearProgram(
            -np.ones(num_variables), a_ub, np.array(limits), upper=np.concatenate(upper)
        )
        chunk_ends = np.cumsum([len(bundles[b].demands) for b in chunk])[:-1]
        return dict(zip(chunk, np.split(self._solve(program).x, chunk_ends), strict=True))

    def _segments(
        self, bundle: Bundle, bundle_index: int, source: int, target: int, granted: _Granted
    ) -> list[WeightedPaths]:
        """Return for each cluster of a bundle the paths of a demand in it, with the share of the
        demand on each.

        In all clusters but the last a path ends with the exposed link to the next cluster.

        Args:
            bundle: bundle of the demand.
            bundle_index: index of the bundle.
            source: source node of the demand.
            target: target node of the demand.
            granted: flow and paths of each commodity in R2.
        """
        segments = []
        for position, cluster in enumerate(bundle.clusters):
            kind = PASSES
            key = -1
            if position == 0:
                kind = LEAVES
                key = source
            elif position == len(bundle.clusters) - 1:
                kind = ENTERS
                key = target
            granted_flow, paths = granted[cluster, kind, bundle_index, key]
            exit_link = bundle.links[position : position + 1]
            segments.append(
                [((*links, *exit_link), flow / granted_flow) for links, flow in paths]
                if granted_flow > 0
                else []
            )
        return segments


def _join_segments(segments: list[WeightedPaths]) -> WeightedPaths:
    """Return end-to-end paths with their shares, in which every path of every segment has its
    share.

    The paths of each segment are laid side by side on [0, 1] by their shares; wherever a path ends
    in any segment, a new end-to-end path begins.  There are at most as many end-to-end paths as
    paths in all segments.

    Args:
        segments: for each cluster, paths and their shares, which sum to 1.
    """
    end_to_end = []
    # Current path of each segment, and its share that is not used yet.
    positions = [0] * len(segments)
    remaining = [segment[0][1] for segment in segments]
    while True:
        # Join the current paths, up to the point where the first of them ends.
        share = min(remaining)
        current_paths = (
            segment[position][0] for segment, position in zip(segments, positions, strict=True)
        )
        end_to_end.append((tuple(itertools.chain.from_iterable(current_paths)), share))
        for i, segment in enumerate(segments):
            remaining[i] -= share
            # Up to rounding, all of the current path is used: go to the next path of the segment.
            if remaining[i] <= 1e-12:
                positions[i] += 1
                if positions[i] == len(segment):
                    return end_to_end
                remaining[i] += segment[positions[i]][1]


def _chunks(indices: list[int], sizes: list[int], max_size: int) -> list[list[int]]:
    """Divide ``indices`` into consecutive groups with a sum of sizes of at most ``max_size``.

    A single index with a larger size is a group.

    Args:
        indices: indices to divide, in order.
        sizes: size of each index.
        max_size: largest sum of the sizes of a group.
    """
    chunks: list[list[int]] = []
    remaining_size = 0
    for index in indices:
        if not chunks or sizes[index] > remaining_size:
            chunks.append([])
            remaining_size = max_size
        chunks[-1].append(index)
        remaining_size -= sizes[index]
    return chunks


def make(spec: Spec, model: Path | None) -> NcFlow:
    """Build the scheme from its specification; the options and their defaults are
    ``ncflow[:clusters=0,method=modularity|spectral|leaders,iterations=6,num_paths=4,seed=0,
    workers=0,solver=highs,time_limit=0]``.

    ``solver`` and ``time_limit`` apply to the LPs; ``method`` is the method of partition.  The
    method of the LPs is ``auto``.
    """
    options: dict[str, Any] = spec.parse_options(
        clusters=0,
        method="modularity",
        iterations=6,
        num_paths=4,
        seed=0,
        workers=0,
        solver="highs",
        time_limit=0.0,
    )
    settings = LpSettings(solver=options.pop("solver"), time_limit=options.pop("time_limit"))
    if options["method"] not in METHODS:
        raise InputError(spec.text, "method", " or ".join(METHODS), repr(options["method"]))
    for option, minimum in (
        ("clusters", 0),
        ("iterations", 1),
        ("num_paths", 1),
        ("seed", 0),
        ("workers", 0),
    ):
        if not options[option] >= minimum:
            raise InputError(spec.text, option, f"a number >= {minimum}", options[option])
    return NcFlow(**options, settings=settings)
