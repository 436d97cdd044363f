"""NCFlow, step by step, against LPs that are written down afresh from the description of the
method.

The LPs of NCFlow have several optima, and a later step depends on which of them the solver returns.
So the oracle takes the clusters, and the flows that each step returned, from the run.  It computes
the input of the step itself, from the flows of all steps before it; checks that the flows keep the
limits of the step; and that no other flows have a larger objective.  The path flows must then
follow from the steps.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.optimize import linprog

from baselines import ncflow
from baselines.contraction import Cluster, Contraction, LinkPath
from baselines.linear_program import LpSolution
from baselines.matrix import Array, Matrix, matrices
from baselines.ncflow import NcFlow, _Run
from baselines.ncflow_clusters import ClusterFlows, Commodity, WeightedPaths, cluster_program
from teal.problem import Problem
from teal.testing import assert_feasible, random_problem

Key = tuple[int, str, int, int]  # cluster, kind, bundle, and demand, source or target; -1 for none
CLOSE = 1e-6  # absolute; capacities are near 1


@dataclasses.dataclass
class Recorded:
    """What the LPs of one iteration returned; None where R2 was not reached.

    Attributes:
        residual: (E,) as R2 was given it.
        bundle_flow: of R1, by bundle, in the order of (first cluster, last cluster).
        gamma: of R2.
        granted: paths inside a cluster with their flows, of R2.
        added: for each demand, path -> flow added.
    """

    residual: Array | None = None
    bundle_flow: Array | None = None
    gamma: float = 0.0
    granted: dict[Key, WeightedPaths] = dataclasses.field(default_factory=dict)
    added: list[dict[LinkPath, float]] = dataclasses.field(default_factory=list)


def record(
    scheme: NcFlow, matrix: Matrix, contraction: Contraction, patch: pytest.MonkeyPatch
) -> list[Recorded]:
    """The iterations of a run."""
    iterations: list[Recorded] = []
    original = _Run._iteration

    def iteration(run: _Run, number: int) -> float:
        iterations.append(Recorded())
        before = [dict(flows) for flows in run.path_flows]
        gain = original(run, number)
        iterations[-1].added = [
            {
                path: flow - old.get(path, 0.0)
                for path, flow in new.items()
                if flow > old.get(path, 0.0)
            }
            for old, new in zip(before, run.path_flows, strict=True)
        ]
        assert gain == pytest.approx(
            sum(sum(flows.values()) for flows in iterations[-1].added), abs=CLOSE
        )
        return gain

    @dataclasses.dataclass(frozen=True, eq=False)
    class Flows(ClusterFlows):
        number: int = -1

        def commodity_flows(
            self, solution: LpSolution
        ) -> dict[tuple[str, int, int], tuple[float, WeightedPaths]]:
            flows = super().commodity_flows(solution)
            for key, (amount, paths) in flows.items():
                assert amount == pytest.approx(sum(flow for _, flow in paths))
                iterations[-1].granted[self.number, *key] = paths
            return flows

    def program(
        cluster: Cluster,
        commodities: Sequence[Commodity],
        residual: Array,
        flow: Array,
        gamma: float,
    ) -> Flows:
        of = iterations[-1]
        of.residual, of.bundle_flow, of.gamma = residual.copy(), flow.copy(), gamma
        made = cluster_program(cluster, commodities, residual, flow, gamma)
        number = int(contraction.node_cluster[cluster.nodes[0]])
        return Flows(made.program, made.commodities, made.paths, number)

    with patch.context() as patched:
        patched.setattr(_Run, "_iteration", iteration)
        patched.setattr(ncflow, "cluster_program", program)
        _Run(scheme, matrix, contraction).iterate()
    return iterations


def largest(cost: Array, rows: Array, limits: Array) -> float:
    """The maximum of cost x with rows x <= limits and x >= 0."""
    return (
        -float(linprog(-cost, rows, np.maximum(limits, 0), method="highs").fun)
        if len(cost)
        else 0.0
    )


@dataclasses.dataclass
class Bundle:
    """The demands from one cluster to another; the clusters of its path and the exposed links
    between them."""

    demands: list[int]
    clusters: tuple[int, ...]
    links: LinkPath


class Oracle:
    """Follows a run.

    Args:
        matrix: demands and capacities.
        contraction: the clusters and the paths in and between them.
    """

    def __init__(self, matrix: Matrix, contraction: Contraction) -> None:
        problem = matrix.network.problem
        self._topology, self._contraction = problem.topology, contraction
        self._unserved, self._residual = matrix.demand.copy(), matrix.capacity.copy()
        self._tiny = 1e-9 * float(matrix.demand.max(initial=0.0))
        self._gamma = 0.01 / max(1.0, matrix.unit * float(matrix.demand.max(initial=0.0)))
        self.pairs = [(source, target) for source, target in problem.paths.pairs.tolist()]
        self._between: dict[tuple[int, int], list[int]] = defaultdict(list)
        for link in sorted(
            np.flatnonzero(matrix.capacity > 0).tolist(),
            key=lambda e: -problem.topology.capacity[e],
        ):
            ends = self._cluster(self._ends(link)[0]), self._cluster(self._ends(link)[1])
            if ends[0] != ends[1]:
                self._between[ends].append(link)
        self.total, self.flow, self.kinds = float(matrix.demand.sum()), 0.0, set[str]()

    def _ends(self, link: int) -> tuple[int, int]:
        return int(self._topology.link_source[link]), int(self._topology.link_target[link])

    def _cluster(self, node: int) -> int:
        return int(self._contraction.node_cluster[node])

    def _bundles(self, number: int) -> list[Bundle]:
        """Demands by pair of clusters, each on the next route, from ``number`` on, whose links have
        room."""
        exposed = {}
        for ends, links in self._between.items():
            ordered = [links[(number + i) % len(links)] for i in range(len(links))]
            with_room = [link for link in ordered if self._residual[link] > self._tiny]
            exposed.update({ends: with_room[0]} if with_room else {})
        by_ends: dict[tuple[int, int], list[int]] = defaultdict(list)
        for d, (source, target) in enumerate(self.pairs):
            if self._cluster(source) != self._cluster(target) and self._unserved[d] > self._tiny:
                by_ends[self._cluster(source), self._cluster(target)].append(d)
        bundles = []
        for between, demands in sorted(by_ends.items()):
            routes = self._contraction.routes.get(between, [])
            for i in range(len(routes)):
                steps = list(itertools.pairwise(routes[(number + i) % len(routes)]))
                if all(step in exposed for step in steps):
                    clusters = (between[0], *(step[1] for step in steps))
                    bundles.append(
                        Bundle(demands, clusters, tuple(exposed[step] for step in steps))
                    )
                    break
        return bundles

    def _check_r1(self, bundles: list[Bundle], flow: Array) -> None:
        """All bundles together within the residual capacities, and at most what is unserved."""
        uses = np.array(
            [[link in bundle.links for bundle in bundles] for link in range(len(self._residual))],
            float,
        )
        rows = np.vstack([uses.reshape(len(self._residual), len(bundles)), np.eye(len(bundles))])
        limits = np.append(
            self._residual, [self._unserved[bundle.demands].sum() for bundle in bundles]
        )
        assert (rows @ flow <= limits + CLOSE).all()
        assert flow.sum() == pytest.approx(largest(np.ones(len(bundles)), rows, limits), abs=CLOSE)

    def _commodities(
        self, bundles: list[Bundle], flow: Array
    ) -> dict[Key, tuple[int, int, LinkPath, float]]:
        """The first and last node in the cluster, the exposed links at both ends, and the limit of
        each commodity."""
        commodities: dict[Key, tuple[int, int, LinkPath, float]] = {}
        for d, (source, target) in enumerate(self.pairs):
            if self._cluster(source) == self._cluster(target) and self._unserved[d] > self._tiny:
                commodities[self._cluster(source), "inside", -1, d] = (
                    source,
                    target,
                    (),
                    float(self._unserved[d]),
                )
        for b, bundle in enumerate(bundles):
            if flow[b] > self._tiny:
                first, last = bundle.links[0], bundle.links[-1]
                for d in bundle.demands:
                    source, target = self.pairs[d]
                    of_source = sum(
                        self._unserved[e] for e in bundle.demands if self.pairs[e][0] == source
                    )
                    of_target = sum(
                        self._unserved[e] for e in bundle.demands if self.pairs[e][1] == target
                    )
                    leaves, enters = (
                        (bundle.clusters[0], "leaves", b, source),
                        (bundle.clusters[-1], "enters", b, target),
                    )
                    commodities[leaves] = source, self._ends(first)[0], (first,), float(of_source)
                    commodities[enters] = self._ends(last)[1], target, (last,), float(of_target)
                for cluster, (entry, leave) in zip(
                    bundle.clusters[1:-1], itertools.pairwise(bundle.links), strict=True
                ):
                    ends = self._ends(entry)[1], self._ends(leave)[0]
                    commodities[cluster, "passes", b, -1] = *ends, (entry, leave), float(flow[b])
        return commodities

    def _check_r2(
        self, cluster: int, commodities: dict[Key, tuple[int, int, LinkPath, float]], of: Recorded
    ) -> None:
        """The flows inside a cluster: sum of f - gamma times the largest path flow, of commodities
        with a choice."""
        assert of.bundle_flow is not None
        keys = [key for key in commodities if key[0] == cluster]
        paths = [
            self._contraction.clusters[cluster].paths_between(*commodities[key][:2]) for key in keys
        ]
        columns = [(i, path) for i, of_key in enumerate(paths) for path in of_key]
        choices = [i for i, of_key in enumerate(paths) if len(of_key) > 1]
        width = len(columns) + len(choices)
        cost = np.append(np.ones(len(columns)), np.full(len(choices), -of.gamma))
        rows, limits = [], []

        def add(chosen: Sequence[bool], limit: float, below: int = -1) -> None:
            row = np.append(np.array(chosen, float), np.zeros(len(choices)))
            row[below] -= float(below >= 0)
            rows.append(row)
            limits.append(limit)

        for link, limit in enumerate(self._residual.tolist()):
            add([link in path or link in commodities[keys[i]][2] for i, path in columns], limit)
        for i, key in enumerate(keys):
            add([j == i for j, _ in columns], commodities[key][3])
        for b, limit in enumerate(of.bundle_flow.tolist()):
            for kind in ("leaves", "enters"):
                add([keys[i][1:3] == (kind, b) for i, _ in columns], limit)
        for column, (i, _) in enumerate(columns):
            if i in choices:
                add(
                    [c == column for c in range(len(columns))], 0.0, len(columns) + choices.index(i)
                )
        x = np.zeros(width)
        for i, key in enumerate(keys):
            for path, flow in of.granted[key]:
                x[columns.index((i, path))] = flow
        for position, i in enumerate(choices):
            x[len(columns) + position] = max((flow for _, flow in of.granted[keys[i]]), default=0.0)
        assert (np.array(rows) @ x <= np.array(limits) + CLOSE).all()
        assert cost @ x == pytest.approx(largest(cost, np.array(rows), np.array(limits)), abs=CLOSE)

    def _check_bundle(self, b: int, bundle: Bundle, of: Recorded) -> None:
        """The flow of a bundle, divided among its demands: the most within what every cluster has
        granted."""
        sources, targets = (
            sorted({self.pairs[d][side] for d in bundle.demands}) for side in (0, 1)
        )
        first, last = bundle.clusters[0], bundle.clusters[-1]
        amount = {
            key: sum(flow for _, flow in paths) for key, paths in of.granted.items() if key[2] == b
        }
        rows = [*np.eye(len(bundle.demands)), np.ones(len(bundle.demands))]
        rows += [
            np.array([self.pairs[d][0] == node for d in bundle.demands], float) for node in sources
        ]
        rows += [
            np.array([self.pairs[d][1] == node for d in bundle.demands], float) for node in targets
        ]
        leaves = [amount[first, "leaves", b, node] for node in sources]
        enters = [amount[last, "enters", b, node] for node in targets]
        passes = [amount[cluster, "passes", b, -1] for cluster in bundle.clusters[1:-1]]
        least = min(sum(leaves), sum(enters), *passes)
        limits = np.array([*self._unserved[bundle.demands].tolist(), least, *leaves, *enters])
        flow = np.array([sum(of.added[d].values()) for d in bundle.demands])
        assert (np.array(rows) @ flow <= limits + CLOSE).all()
        assert flow.sum() <= of.bundle_flow[b] + CLOSE if of.bundle_flow is not None else False
        assert flow.sum() == pytest.approx(
            largest(np.ones(len(flow)), np.array(rows), limits), abs=CLOSE
        )
        # Every path inside a cluster carries its share of the commodity, for each demand.
        for d in bundle.demands:
            source, target = self.pairs[d]
            parts = [self._parts(path, bundle.links) for path in of.added[d]]
            keys: list[Key] = [(cluster, "passes", b, -1) for cluster in bundle.clusters]
            keys[0], keys[-1] = (first, "leaves", b, source), (last, "enters", b, target)
            for position, key in enumerate(keys):
                carried: dict[LinkPath, float] = defaultdict(float)
                for part, flow_of_path in zip(parts, of.added[d].values(), strict=True):
                    carried[part[position]] += flow_of_path
                total = sum(of.added[d].values())
                shares = (
                    {path: flow * total / amount[key] for path, flow in of.granted[key]}
                    if total
                    else {}
                )
                assert all(
                    carried[path] == pytest.approx(shares.get(path, 0.0), abs=CLOSE)
                    for path in {*carried, *shares}
                )

    @staticmethod
    def _parts(path: LinkPath, exposed: LinkPath) -> list[LinkPath]:
        """The parts of a path between exposed links."""
        cuts = [-1, *(path.index(link) for link in exposed), len(path)]
        assert cuts == sorted(cuts)
        return [path[start + 1 : end] for start, end in itertools.pairwise(cuts)]

    def follow(self, number: int, of: Recorded) -> bool:
        """Check an iteration; whether the run should end after it."""
        bundles = self._bundles(number)
        flow = np.zeros(len(bundles)) if of.bundle_flow is None else of.bundle_flow
        self._check_r1(bundles, flow)
        commodities = self._commodities(bundles, flow)
        assert set(commodities) == set(of.granted)
        if of.residual is not None:
            np.testing.assert_allclose(of.residual, self._residual, atol=CLOSE)
            assert of.gamma == pytest.approx(self._gamma)
        for cluster in {key[0] for key in commodities}:
            self._check_r2(cluster, commodities, of)
        carrying = [bool(flows) for flows in of.added]
        for d in {key[3] for key in commodities if key[1] == "inside"}:
            granted = dict(of.granted[self._cluster(self.pairs[d][0]), "inside", -1, d])
            assert of.added[d] == pytest.approx(granted, abs=CLOSE)
            carrying[d] = False
        for b, bundle in enumerate(bundles):
            if flow[b] > self._tiny:
                self._check_bundle(b, bundle, of)
                for d in bundle.demands:
                    carrying[d] = False
        assert not any(carrying), "no other demand has flow"
        self.kinds |= {key[1] for key in commodities}
        return self._add(of.added)

    def _add(self, added: list[dict[LinkPath, float]]) -> bool:
        gain = 0.0
        for d, flows in enumerate(added):
            for path, flow in flows.items():
                nodes = [self._ends(link) for link in path]
                assert (nodes[0][0], nodes[-1][1]) == self.pairs[d]
                assert all(left[1] == right[0] for left, right in itertools.pairwise(nodes)), (
                    "links follow each other"
                )
                self._residual[list(path)] -= flow
                self._unserved[d], gain = self._unserved[d] - flow, gain + flow
        assert min(self._residual.min(), self._unserved.min()) >= -CLOSE
        self._residual, self._unserved = (
            np.maximum(self._residual, 0),
            np.maximum(self._unserved, 0),
        )
        self.flow += gain
        little = self._unserved.sum() < 0.05 * self.total or gain < 0.05 * self.flow
        return bool(little or (self._residual <= self._tiny).all())


def optimum(problem: Problem) -> float:
    """The largest flow over all paths of the network: what each source sends over each link, and
    what arrives."""
    topology, demand = problem.topology, problem.demand[0].numpy()
    nodes, links, pairs = topology.num_nodes, topology.num_links, problem.paths.pairs.tolist()
    width = nodes * links + len(pairs)
    balance = np.zeros(
        (nodes * nodes, width)
    )  # of each (source, node other than it): out - in + delivered = 0
    for source in range(nodes):
        for link in range(links):
            balance[source * nodes + topology.link_source[link], source * links + link] += 1
            balance[source * nodes + topology.link_target[link], source * links + link] -= 1
    for d, (source, target) in enumerate(pairs):
        balance[source * nodes + target, nodes * links + d] += 1
    balance = np.delete(balance, np.arange(nodes) * (nodes + 1), axis=0)
    loads = np.hstack([np.tile(np.eye(links), nodes), np.zeros((links, len(pairs)))])
    cost, bounds = (
        np.zeros(width),
        [(0.0, None)] * (nodes * links) + [(0.0, rate) for rate in demand.tolist()],
    )
    cost[nodes * links :] = -1
    capacity = problem.capacity[0].numpy()
    result = linprog(cost, loads, capacity, balance, np.zeros(len(balance)), bounds, method="highs")
    return -float(result.fun)


def check(problem: Problem, scheme: NcFlow, patch: pytest.MonkeyPatch) -> tuple[set[str], int]:
    """Follow a run on one matrix, and check its allocation; the kinds of commodities, and the
    iterations."""
    matrix = next(iter(matrices(problem)))
    contraction = scheme.contraction(matrix)
    iterations, oracle = record(scheme, matrix, contraction, patch), Oracle(matrix, contraction)
    ends = [oracle.follow(number, recorded) for number, recorded in enumerate(iterations)]
    assert not any(ends[:-1])
    assert ends[-1] or len(iterations) == scheme.iterations
    allocation = scheme.solve(problem)
    assert_feasible(problem, allocation)
    value = float((allocation.splits.sum(-1) * problem.demand).sum())
    assert value == pytest.approx(oracle.flow * matrix.unit, rel=1e-5, abs=CLOSE)
    assert value <= optimum(problem) * (1 + 1e-6) + CLOSE
    return oracle.kinds, len(iterations)


@pytest.mark.slow
@pytest.mark.parametrize("failed", [0, 4])
@pytest.mark.parametrize("method", ["modularity", "leaders"])
def test_every_step_of_every_iteration_is_that_of_the_oracle(
    method: str, failed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds, iterations = set[str](), list[int]()
    for seed in range(3):
        problem = random_problem(seed, nodes=9, density=0.3, batch=1, failed=failed)
        found, count = check(
            problem, NcFlow(clusters=4, method=method, seed=seed, workers=1), monkeypatch
        )
        kinds, iterations = kinds | found, [*iterations, count]
    assert kinds == {"inside", "leaves", "enters", "passes"}
    assert max(iterations) >= 3


@pytest.mark.parametrize("clusters", [1, 2, 6, 12])
def test_few_and_many_clusters_follow_the_same_steps(
    clusters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(21, nodes=8, density=0.35, batch=1)
    check(problem, NcFlow(clusters=clusters, iterations=3, workers=1), monkeypatch)


def test_a_network_of_failed_links_has_no_bundles_and_no_flow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds, _ = check(random_problem(1, nodes=6, batch=1, failed=99), NcFlow(workers=1), monkeypatch)
    assert not kinds
