"""NCFlow: solve between contracted clusters and within them at once, reconcile, go on with what is left.

Abuzaid et al., "Contracting Wide-area Network Topologies to Solve Flow Problems Quickly", NSDI 2021.  In each iteration

1. every pair of neighbouring clusters exposes one link, the next largest; the demands from one cluster to another are a
   bundle with one path over exposed links, and R1 is the largest flow of the bundles;
2. R2, for each cluster by itself: flows inside, from each source to the exit of its bundle, from the entry to each
   target, from entry to exit of bundles that pass; none larger than R1, gamma against piling onto one path;
3. a bundle carries no more than each of its clusters has taken;
4. per bundle: how much of each demand, within that and what R2 took from its source and to its target; path flows of
   R2 shrink in proportion.

With one exposed link a pair, step 3 is a minimum, and no program, and R1 again under these caps would change nothing:
what both sides of a link have taken fits it.  Its paths are its own: they join those of its
clusters, and the allocation comes with them.
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
from scipy.sparse.csgraph import dijkstra

from baselines.clusters import METHODS
from baselines.contraction import Contraction, LinkPath, contract
from baselines.linear_program import LinearProgram, LpSettings, LpSolution, solve_program
from baselines.matrix import Array, Matrix, matrices, ones, only
from baselines.ncflow_clusters import ENTERS, INSIDE, LEAVES, PASSES, Commodity, cluster_program
from baselines.own_paths import with_flows
from baselines.workers import solve_all
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.spec import Spec

_ENOUGH = 0.05  # share of the demand that is left, or of the flow that is won, at which it stops
_NOTHING = 1e-9  # of the largest demand
_CHUNK = 20_000  # demands in a program of step 4


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The demands from one cluster to another: their numbers, and the clusters on the way with the links between."""

    demands: Array
    clusters: tuple[int, ...]
    links: LinkPath


@dataclasses.dataclass(frozen=True)
class NcFlow:
    """NCFlow.

    Attributes:
        clusters: about how many; 0 for 3 floor(sqrt(N)).
        method: of partition, see :mod:`baselines.clusters`.
        iterations: at most.
        num_paths: inside a cluster.
        seed: of the partition.
        workers: processes at a time; 0 for one a core.
        how: the solver.
    """

    clusters: int = 0
    method: str = "modularity"
    iterations: int = 6
    num_paths: int = 4
    seed: int = 0
    workers: int = 0
    how: LpSettings = dataclasses.field(default_factory=LpSettings)

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix, over paths of its own.

        Raises:
            InputError: another program than total_flow.
            SolverError: of the solver.
        """
        only("ncflow", problem.objective, ObjectiveName.TOTAL_FLOW)
        problem = problem.to(torch.float64)
        runs, build, spent = [], [], []
        for matrix in matrices(problem):
            begin = time.perf_counter()
            contraction = self.contraction(matrix)
            build.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            runs.append(_Run(self, matrix, contraction))
            runs[-1].go()
            spent.append(time.perf_counter() - begin)
        paths, splits = with_flows(problem, [run.won for run in runs])
        return Allocation(
            splits, None, (Status.FEASIBLE,) * problem.batch, tuple(build), tuple(spent),
            tuple(b + run.parallel_s for b, run in zip(build, runs, strict=True)), paths,
        )  # fmt: skip

    def contraction(self, matrix: Matrix) -> Contraction:
        """The clusters of a matrix."""
        topology = matrix.network.problem.topology
        count = self.clusters or 3 * math.isqrt(topology.num_nodes)
        return contract(topology, matrix.capacity > 0, count, self.method, self.seed, self.num_paths)


class _Run:
    """One matrix: what is left of links and demands, and what was won so far."""

    def __init__(self, scheme: NcFlow, matrix: Matrix, contraction: Contraction) -> None:
        self._scheme, self._matrix, self._contraction = scheme, matrix, contraction
        topology = matrix.network.problem.topology
        self._tail, self._head = topology.link_source, topology.link_target
        self._pairs = matrix.network.problem.paths.pairs
        self._owner = contraction.owner[self._pairs]  # (D, 2)
        self._want, self._left = matrix.demand.copy(), matrix.capacity.copy()
        self._least = _NOTHING * max(1e-300, float(matrix.demand.max(initial=0)))
        self._gamma = 0.01 / max(1.0, float(matrix.demand.max(initial=0)))
        self.won: list[dict[LinkPath, float]] = [{} for _ in range(len(matrix.demand))]  # Gbit/s by path
        self.parallel_s = 0.0

    def go(self) -> None:
        """Iterate until next to nothing is left or won."""
        total, flow = float(self._matrix.demand.sum()), 0.0
        for number in range(self._scheme.iterations):
            gain = self._iterate(number)
            flow += gain
            if self._want.sum() < _ENOUGH * total or gain < _ENOUGH * flow or not (self._left > self._least).any():
                break

    def _iterate(self, number: int) -> float:
        begin = time.perf_counter()
        bundles = self._bundles(number)
        between = self._between(bundles)
        programs, clusters = [], []
        for cluster, commodities in self._commodities(bundles, between).items():
            clusters.append(cluster)
            of = self._contraction.clusters[cluster]
            programs.append(cluster_program(of, commodities, self._left, between, self._gamma))
        own_s = time.perf_counter() - begin
        found = solve_all([p.program for p in programs], self._scheme.how, self._scheme.workers)
        begin = time.perf_counter()
        taken = {}
        for cluster, program, solution in zip(clusters, programs, found, strict=True):
            taken.update({(cluster, *key): value for key, value in program.taken(solution).items()})
        gain = self._merge(bundles, taken)
        self.parallel_s += own_s + max((s.seconds for s in found), default=0.0) + time.perf_counter() - begin
        return gain

    def _bundles(self, number: int) -> list[Bundle]:
        """The bundles that want anything and have a path over exposed links with room."""
        exposed: dict[tuple[int, int], int] = {}
        for ends, links in self._contraction.between.items():
            start = number % len(links)
            usable = [link for link in links[start:] + links[:start] if self._left[link] > self._least]
            if usable:
                exposed[ends] = usable[0]
        count = len(self._contraction.clusters)
        arcs = np.array(list(exposed), np.int64).reshape(-1, 2)
        graph = ones(arcs[:, 0], arcs[:, 1], (count, count))
        _, before = dijkstra(graph, unweighted=True, return_predecessors=True)
        wanting = np.flatnonzero((self._want > self._least) & (self._owner[:, 0] != self._owner[:, 1]))
        key = self._owner[wanting, 0] * count + self._owner[wanting, 1]
        order = np.argsort(key, kind="stable")
        cuts = np.flatnonzero(np.diff(key[order])) + 1
        bundles = []
        for demands in np.split(wanting[order], cuts) if len(wanting) else []:
            first, last = (int(c) for c in self._owner[demands[0]])
            way = [last]
            while way[-1] != first and before[first, way[-1]] >= 0:
                way.append(int(before[first, way[-1]]))
            if way[-1] == first:
                way.reverse()
                over = tuple(exposed[a, b] for a, b in itertools.pairwise(way))
                bundles.append(Bundle(demands, tuple(way), over))
        return bundles

    def _between(self, bundles: list[Bundle]) -> Array:
        """R1: (bundles,) the most that they carry over the exposed links."""
        on = np.array([(link, b) for b, bundle in enumerate(bundles) for link in bundle.links], np.int64).reshape(-1, 2)
        links, row = np.unique(on[:, 0], return_inverse=True)
        wanted = np.array([self._want[bundle.demands].sum() for bundle in bundles])
        loads = ones(row, on[:, 1], (len(links), len(bundles)))
        return self._solved(LinearProgram(-np.ones(len(bundles)), loads, self._left[links], upper=wanted)).x

    def _solved(self, program: LinearProgram) -> LpSolution:
        return solve_program(program, self._scheme.how)

    def _commodities(self, bundles: list[Bundle], between: Array) -> dict[int, list[Commodity]]:
        """What runs through each cluster."""
        found: dict[int, list[Commodity]] = {}
        inside = np.flatnonzero((self._owner[:, 0] == self._owner[:, 1]) & (self._want > self._least))
        for d in inside.tolist():
            source, target = self._pairs[d].tolist()
            own = Commodity(INSIDE, -1, d, source, target, (), float(self._want[d]))
            found.setdefault(int(self._owner[d, 0]), []).append(own)
        for b, bundle in enumerate(bundles):
            if between[b] <= self._least:
                continue
            want, links, way = self._want[bundle.demands], bundle.links, bundle.clusters
            ends = self._pairs[bundle.demands]
            for node in np.unique(ends[:, 0]).tolist():
                limit, out = float(want[ends[:, 0] == node].sum()), int(self._tail[links[0]])
                found.setdefault(way[0], []).append(Commodity(LEAVES, b, node, node, out, links[:1], limit))
            for node in np.unique(ends[:, 1]).tolist():
                limit, into = float(want[ends[:, 1] == node].sum()), int(self._head[links[-1]])
                found.setdefault(way[-1], []).append(Commodity(ENTERS, b, node, into, node, links[-1:], limit))
            for cluster, entry, leave in zip(way[1:-1], links[:-1], links[1:], strict=True):
                into, out = int(self._head[entry]), int(self._tail[leave])
                passing = Commodity(PASSES, b, -1, into, out, (entry, leave), float(between[b]))
                found.setdefault(cluster, []).append(passing)
        return found

    def _merge(self, bundles: list[Bundle], taken: _Taken) -> float:
        """Steps 3 and 4, and what follows for links and demands; the flow won."""
        gain = 0.0
        for (_, kind, _, key), (amount, parts) in taken.items():
            if kind == INSIDE:
                for links, flow in parts:
                    self._win(key, links, flow)
                gain += amount
        leaving = {b for _, kind, b, _ in taken if kind == LEAVES}
        active = [b for b in range(len(bundles)) if b in leaving]
        for chunk in _chunks(active, [len(bundle.demands) for bundle in bundles], _CHUNK):
            flows = self._within(chunk, bundles, taken)
            for b in chunk:
                for d, flow in zip(bundles[b].demands.tolist(), flows[b].tolist(), strict=True):
                    if flow > self._least:
                        source, target = self._pairs[d].tolist()
                        stretches = self._segments(bundles[b], b, source, target, taken)
                        if all(stretches):  # a solver's tolerance may let a demand through where nothing was taken
                            gain += flow
                            for links, part in _joined(stretches):
                                self._win(d, links, flow * part)
        return gain

    def _win(self, demand: int, links: LinkPath, flow: float) -> None:
        won = self.won[demand]
        won[links] = won.get(links, 0.0) + flow
        self._want[demand] = max(0.0, self._want[demand] - flow)
        for link in links:
            self._left[link] = max(0.0, self._left[link] - flow)

    def _within(self, chunk: list[int], bundles: list[Bundle], taken: _Taken) -> dict[int, Array]:
        """Step 4: the most of each bundle's demands within what its clusters took."""
        caps: list[float] = []
        rows, columns, upper, place = [], [], [], 0
        for b in chunk:
            bundle = bundles[b]
            ends, numbers = self._pairs[bundle.demands], place + np.arange(len(bundle.demands))
            sides = ((0, bundle.clusters[0], LEAVES), (1, bundle.clusters[-1], ENTERS))
            through = [taken[cluster, PASSES, b, -1][0] for cluster in bundle.clusters[1:-1]]
            for side, cluster, kind in sides:
                nodes, of = np.unique(ends[:, side], return_inverse=True)
                amounts = [taken[cluster, kind, b, node][0] for node in nodes.tolist()]
                rows.append(len(caps) + of)
                columns.append(numbers)
                caps += amounts
                through.append(sum(amounts))
            rows.append(np.full(len(numbers), len(caps)))
            columns.append(numbers)
            caps.append(min(through))
            upper.append(self._want[bundle.demands])
            place += len(numbers)
        a = ones(np.concatenate(rows), np.concatenate(columns), (len(caps), place))
        found = self._solved(LinearProgram(-np.ones(place), a, np.array(caps), upper=np.concatenate(upper)))
        cuts = np.cumsum([len(bundles[b].demands) for b in chunk])[:-1]
        return dict(zip(chunk, np.split(found.x, cuts), strict=True))

    def _segments(self, bundle: Bundle, b: int, source: int, target: int, taken: _Taken) -> list[_Shares]:
        """(links, share) of every stretch of the way; an exposed link belongs to the stretch before it."""
        way, found = bundle.clusters, []
        for place, cluster in enumerate(way):
            kind, key = PASSES, -1
            if place == 0:
                kind, key = LEAVES, source
            elif place == len(way) - 1:
                kind, key = ENTERS, target
            amount, parts = taken[cluster, kind, b, key]
            exit_by = bundle.links[place : place + 1]
            found.append([((*links, *exit_by), flow / amount) for links, flow in parts] if amount > 0 else [])
        return found


_Shares = list[tuple[LinkPath, float]]
_Taken = dict[tuple[int, str, int, int], tuple[float, _Shares]]


def _joined(stretches: list[_Shares]) -> _Shares:
    """(links, share) of whole ways that use every stretch's paths in their shares: no more ways than paths."""
    ways, places, rest = [], [0] * len(stretches), [own[0][1] for own in stretches]
    while True:
        part = min(rest)
        ways.append((tuple(link for own, at in zip(stretches, places, strict=True) for link in own[at][0]), part))
        for i, own in enumerate(stretches):
            rest[i] -= part
            if rest[i] <= 1e-12:
                places[i] += 1
                if places[i] == len(own):
                    return ways
                rest[i] += own[places[i]][1]


def _chunks(numbers: list[int], sizes: list[int], most: int) -> list[list[int]]:
    chunks: list[list[int]] = []
    room = 0
    for number in numbers:
        if not chunks or sizes[number] > room:
            chunks.append([])
            room = most
        chunks[-1].append(number)
        room -= sizes[number]
    return chunks


def make(spec: Spec, model: Path | None) -> NcFlow:
    """``ncflow[:clusters=0,method=modularity|spectral|leaders,iterations=6,num_paths=4,seed=0,workers=0,solver=highs]``.

    ``solver`` and ``time_limit`` are of the linear programs; their method is the solver's own choice.
    """
    options: dict[str, Any] = spec.parse_options(
        clusters=0, method="modularity", iterations=6, num_paths=4, seed=0, workers=0, solver="highs", time_limit=0.0
    )
    how = LpSettings(solver=options.pop("solver"), time_limit=options.pop("time_limit"))
    if options["method"] not in METHODS:
        raise InputError(spec.text, "method", " or ".join(METHODS), repr(options["method"]))
    for option, least in (("clusters", 0), ("iterations", 1), ("num_paths", 1), ("seed", 0), ("workers", 0)):
        if not options[option] >= least:
            raise InputError(spec.text, option, f"a number of at least {least}", options[option])
    return NcFlow(**options, how=how)
