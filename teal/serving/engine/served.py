"""A network as a replica holds it: paths, capacities in force, and where the last allocation
ended.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from teal.app.web.layout import drawing_of
from teal.errors import InputError
from teal.formats import BUILT_IN, is_named, load_topology, load_traffic
from teal.formats.node_link import topology_from_node_link
from teal.formats.topohub_names import PREFIX
from teal.network import PathMethod, PathSet, PathWeight, Topology, all_pairs, compute_paths
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.network.path_file import load_paths
from teal.network.paths import search_key
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem, ProgramPrices
from teal.problem.allocation import Allocation
from teal.problem.assessment import Assessment, assess
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interruptible import Deadline, Run, Steps
from teal.runtime.latest import Latest
from teal.runtime.storage import is_passing
from teal.schemes.models import serves
from teal.schemes.successive import SuccessivePdhg
from teal.serving.engine.answer import FIGURES, Answer
from teal.serving.engine.errors import ServiceError, wrong
from teal.serving.engine.least_time import LeastTimes, SearchKind, SolverTimes
from teal.serving.engine.requests import NetworkSpec, NodeLink, Options
from teal.serving.engine.solvers import MODEL, solving
from teal.serving.engine.wanted import (
    Wanted,
    Worth,
    columns,
    groups_of,
    in_columns,
    named_records,
    prepare_conditions,
    single_program,
    wanted_by,
    without_demand,
    worth_of,
)
from teal.solvers import pdhg
from teal.solvers.candidates import choose_paths, representative_matrices
from teal.solvers.pdhg import Starter
from teal.solvers.short_paths import shortened
from teal.solvers.split_table import table_weights
from teal.solvers.table_search import in_tables

# Matrices for which paths are chosen, as no traffic is known yet; at this load a third of the
# demand finds no capacity, so that many links are bottlenecks.
_GENERATED = "gravity:seed=0,load=4,count={count}"
_LONGEST_S = 120.0  # seconds for a choice, after which the best set so far is taken
_METHODS_WITH_GROUPS = (PathMethod.SURVIVABLE, PathMethod.MAXIMALLY_DISJOINT)


class AddedPaths(NamedTuple):
    """Paths of a network with those that were added since it was registered.

    Attributes:
        number: number of additions.
        file: file of all its paths.
    """

    number: int
    file: Path


def candidate_paths(
    topology: Topology,
    spec: NetworkSpec,
    groups: Sequence[Sequence[int]],
    report: Callable[[float], None] | None = None,
    added: AddedPaths | None = None,
) -> tuple[PathSet, frozenset[str]]:
    """Paths of all pairs of nodes, and the keys of all path sets that were kept on disk on the way.

    Args:
        topology: the network.
        spec: what it was registered with.
        groups: numbers of the links of each group of cables; empty for none.
        report: called now and then with the share of the first paths that are found; what it raises
            ends the work.
        added: paths with those that were added later; None for none.

    Raises:
        InputError: paths that the settings forbid, or a damaged file of paths.
        ServiceError: weights or functions of demands that the network does not have.
    """
    if added is not None:
        return load_paths(added.file, topology), frozenset()
    paths = compute_paths(
        topology,
        all_pairs(topology),
        num_paths=spec.first_paths,
        method=spec.path_method,
        weight=spec.path_weight,
        groups=groups if groups and spec.path_method in _METHODS_WITH_GROUPS else None,
        report=report,
    )
    if spec.num_paths != "auto":
        return paths, frozenset([paths.key])
    count = representative_matrices(paths)
    if not count:
        return paths, frozenset([paths.key])
    traffic = load_traffic(_GENERATED.format(count=count), topology)
    chosen = choose_paths(
        topology,
        traffic.read(slice(None)),
        paths=paths,
        objective=Objective(spec.objective),
        weight=worth_of(topology, paths, spec).weight,
        max_paths=spec.max_paths,
        deadline=_LONGEST_S,
        report=None if report is None else lambda *_: report(1.0),
    ).paths
    shortest = search_key(
        topology, paths.pairs, 1, PathMethod.DISJOINT, PathWeight.HOPS
    )  # of the generator
    return chosen, frozenset([chosen.key, paths.key, shortest])


_TIMED_ANSWERS = 3  # whose shortest time counts: the others may have waited for something else
_MAX_BATCH_TIMED_S = (
    0.5  # seconds that a full batch may take, by the time of one matrix, to be timed too
)
_MAX_PROGRAMS = 8  # whose rows, paths and last allocations are kept
_MAX_ROUTES = 100_000  # paths whose names are kept for answers by name
_REHEARSED_GAP = 1e-2  # target of the calls that compile kernels
_ALIKE = Worth()  # all demands are worth the same


def topology_of(name: str, spec: NetworkSpec) -> Topology:
    """The topology that a network was registered with.

    Raises:
        ServiceError: a fault in it; a name that is neither built in nor topohub's, since files are
            not read.
    """
    try:
        if isinstance(spec.topology, NodeLink):
            return topology_from_node_link(spec.topology.plain(), name, name)
        if is_named(spec.topology):
            return load_topology(spec.topology)
    except InputError as error:
        raise wrong(f"topology: {error}") from None
    except (
        ValueError,
        ArithmeticError,
        OSError,
    ) as error:  # coordinates that are none; a name as long as no file may have
        if is_passing(error):
            raise
        raise wrong(f"topology: {str(error)[:200]}") from None
    raise wrong(
        f"topology: node-link data, {', '.join(BUILT_IN)} or {PREFIX}GROUP/NAME, not "
        f"{spec.topology[:80]!r}"
    )


def capacity_in_force(topology: Topology, links: dict[str, Any]) -> FloatArray:
    """(E,) Gbit/s after what happened: ``links`` has number of link -> {"capacity": Gbit/s, "up":
    bool}.

    Raises:
        ServiceError: an unknown link, or an invalid capacity.
    """
    capacity = topology.capacity.copy()
    for link, changed in links.items():
        value, is_up = changed.get("capacity"), changed.get("up")
        is_link = link.isdecimal() and int(link) < len(capacity)
        is_rate = value is None or (isinstance(value, int | float) and 0 <= value < math.inf)
        if not (is_link and is_rate and is_up in (None, True, False)):
            raise ServiceError(
                409, "failed", f"the stored change of link {link[:80]} is none: {str(changed)[:80]}"
            )
        if value is not None:
            capacity[int(link)] = value
        if is_up is False:
            capacity[int(link)] = 0.0
    return capacity


def _rehearsal() -> Served:
    """Three nodes."""
    ends = np.array([0, 1, 2, 1, 2, 0]), np.array([1, 2, 0, 0, 1, 2])
    topology = Topology(
        "rehearsal", ("a", "b", "c"), *ends, np.ones(6), np.ones(6), np.full((3, 2), np.nan)
    )
    functions = BandwidthFunctions.of_points([[(0.5, 2.0), (1.0, 3.0)]], [0] * 6, by_share=True)
    paths = compute_paths(topology, all_pairs(topology), cache=False)
    return Served(topology, paths, Worth(np.ones(6), functions))


def prove(model: Starter) -> None:
    """Raise InputError for a model whose answer PDHG could not start from."""
    objective = next((name for name in SINGLE_PROGRAMS if serves(model, Objective(name))), None)
    if objective is None:
        raise InputError("model", "objective", ", ".join(SINGLE_PROGRAMS), "another one")
    problem = _rehearsal().problem(Wanted(objective), np.ones((1, 6)))
    splits, prices = model.start(problem)
    if not (bool(torch.isfinite(splits).all()) and bool(torch.isfinite(prices).all())):
        raise InputError("model", "", "finite splits and prices", "NaN or infinite ones")
    pdhg.solve(problem, max_iterations=8, warm_start=(splits, prices))


@functools.cache
def rehearse(objective: str) -> None:
    """Solve three nodes with as many matrices as each of the engine's kernels takes, cold and warm.

    A kernel is compiled when it is first called, which takes seconds on a machine that never did:
    better before a request waits for it.
    """
    served = _rehearsal()
    for count in (width for width in pdhg.LANES for _ in ("cold", "warm")):
        job = Job(np.ones((count, 6)), Wanted(objective), 1e-3, time.perf_counter() + 600)
        served.answer(served.solve(job), slice(0, count), 1e-3, 0, 0.0)


@dataclasses.dataclass(frozen=True)
class Job:
    """Matrices that are to be solved together; gap and deadline are the strictest of their
    requests'.

    Attributes:
        rates: (B, D) Gbit/s.
        wanted: by all of them.
        gap: certified, to stop at.
        deadline: by time.perf_counter().
    """

    rates: FloatArray
    wanted: Wanted
    gap: float
    deadline: float


class _Arrays(NamedTuple):
    """The allocations of a job and what was measured of them.

    Attributes:
        figures: (B,) each, by name.
        utilisation: (B, E).
        splits: (B, D, K) float32.
        prices: (B, E).
    """

    figures: dict[str, FloatArray]
    utilisation: FloatArray
    splits: npt.NDArray[np.float32]
    prices: FloatArray


_GAP_TOLERANCE = 1e-9  # by which a certified gap may exceed the one that was asked for: rounding


@dataclasses.dataclass(frozen=True, eq=False)
class Solved:
    """The engine's result for a job, which solver it is from
    (:mod:`teal.serving.engine.solvers`), and the kind of its search.
    """

    wanted: Wanted
    problem: Problem
    splits: torch.Tensor
    prices: torch.Tensor
    stopped_by: tuple[pdhg.Stop, ...]
    state: pdhg.PdhgState
    iterations: int
    solver: str
    kind: SearchKind
    program_prices: ProgramPrices | None = None
    largest_share: torch.Tensor | None = None

    @functools.cached_property
    def measured(self) -> Assessment:
        """All matrices of the job, measured independently: once for all its requests."""
        return assess(
            self.problem, Allocation.of_batch(self.splits, self.prices, 0.0, self.program_prices)
        )

    @functools.cached_property
    def arrays(self) -> _Arrays:
        """The arrays that the answers of all its requests take from it."""
        measured = self.measured
        return _Arrays(
            {name: getattr(measured, name).cpu().numpy() for name in FIGURES},
            measured.utilisation.cpu().numpy(),
            self.splits.to(torch.float32).cpu().numpy(),
            self.prices.to(torch.float64).cpu().numpy(),
        )


def _largest_shares(solved: Solved, rows: slice) -> FloatArray:
    """(B,) share of every demand that no allocation exceeds, NaN where all can be carried."""
    if solved.largest_share is None:
        return np.full(rows.stop - rows.start, np.nan)
    found: FloatArray = solved.largest_share[rows, 1].to(torch.float64).cpu().numpy()
    return found


def ended_by(stop: pdhg.Stop, solver: str) -> str:
    """The reason why a search ended without the requested gap; rounding if the search has it and
    its measurement does not.
    """
    if solver == MODEL:  # which does not search
        return MODEL
    return (pdhg.Stop.ROUNDING if stop is pdhg.Stop.GAP else stop).value


class Lineage:
    """The state of a network, whatever paths are added to it.

    Attributes:
        capacity: (E,) Gbit/s in force; replaced whole.
        times: least seconds of answers.
        solver_times: seconds of answers with a model and without one.
        engines: state after the last allocation of each program; for the engine's thread alone.
    """

    def __init__(self, capacity: FloatArray) -> None:
        self.capacity = capacity
        self.times = LeastTimes()
        self.solver_times = SolverTimes()
        self.engines = Latest[Wanted, SuccessivePdhg](_MAX_PROGRAMS)


class Served:
    """One network.

    The event loop, the engine's thread and threads that prepare or write use it at the same time.
    After :meth:`prepare` nothing of it changes but what is computed once and kept: programs,
    routes, the drawing.

    Args:
        topology: as registered.
        paths: over all pairs of nodes.
        worth: values of the demands.
        lineage: lineage of the network with fewer paths; None for a new one.

    Attributes:
        lineage: the same object for networks that differ in added paths only.
        stored_paths: keys of the path sets that are kept on disk for it.
        additions: number of additions of paths that it has.
    """

    def __init__(
        self,
        topology: Topology,
        paths: PathSet,
        worth: Worth = _ALIKE,
        lineage: Lineage | None = None,
    ) -> None:
        self.topology, self.paths, self.worth = topology, paths, worth
        self._ready: dict[str, Any] = {}  # for conditions, by their options
        self.stored_paths = frozenset[str]()
        self.additions = 0
        self.lineage = lineage or Lineage(topology.capacity)
        self._drawing: dict[str, Any] | None = None
        self._routes: dict[tuple[int, int], tuple[list[str], list[int]]] = {}
        # By objective and limits of classes; with the columns of splits.
        self._networks = Latest[Wanted, tuple[Problem, IntArray | None]](_MAX_PROGRAMS)

    @property
    def capacity(self) -> FloatArray:
        """(E,) Gbit/s in force."""
        return self.lineage.capacity

    @property
    def times(self) -> LeastTimes:
        """Least seconds of answers."""
        return self.lineage.times

    @property
    def solver_times(self) -> SolverTimes:
        """Seconds of answers with a model and without one."""
        return self.lineage.solver_times

    @classmethod
    def prepare(
        cls,
        name: str,
        spec: NetworkSpec,
        report: Callable[[float], None] | None = None,
        added: AddedPaths | None = None,
    ) -> Served:
        """Load the topology and compute the paths: what takes time.

        Args:
            name: name of the network.
            spec: what it was registered with.
            report: called now and then with the share of the paths that are found; what it raises
                ends the work.
            added: paths with those that were added since; None for none.

        Raises:
            ServiceError: a fault in the topology.
        """
        topology = topology_of(name, spec)
        groups = groups_of(topology, spec)
        try:
            paths, stored = candidate_paths(topology, spec, groups, report, added)
        except InputError as error:
            raise wrong(str(error)) from None
        served = cls(topology, paths, worth_of(topology, paths, spec))
        served.stored_paths = stored
        served.additions = 0 if added is None else added.number
        rehearse(spec.objective)
        served.warm_up(spec.objective)
        served.prepare_conditions(groups)
        return served

    def with_more_paths(self, added: AddedPaths, spec: NetworkSpec) -> Served:
        """The network over a set that has these paths and, behind them, further ones.

        Args:
            added: paths with the further ones.
            spec: settings that the network was registered with.
        """
        paths = load_paths(added.file, self.topology)
        more = Served(self.topology, paths, self.worth, self.lineage)
        more.stored_paths = self.stored_paths
        more.additions = added.number
        more._drawing = self._drawing
        _ = more.paths.packed  # so that no request waits for it
        more.prepare_conditions(groups_of(self.topology, spec))
        return more

    def prepare_conditions(self, groups: Sequence[Sequence[int]]) -> None:
        """Compute what side conditions need of the network, so that no request waits for it.

        Args:
            groups: numbers of the links of each group that fails together.
        """
        self._ready = prepare_conditions(self.network(Wanted(ObjectiveName.TOTAL_FLOW)), groups)

    def warm_up(self, objective: str) -> None:
        """Solve a matrix that nobody asked for: packs the trie, and measures the least work of an
        answer.
        """
        for count in reversed(
            pdhg.LANES
        ):  # the forms of the kernels for a network of this size; at last one matrix
            problem = self.problem(
                Wanted(objective), np.full((count, self.paths.num_demands), 1e-6)
            )
            pdhg.prepare(problem, gap=_REHEARSED_GAP)
        pdhg.solve(problem, gap=0.1, max_iterations=8)
        wanted = single_program(objective)
        self._timed_answer(wanted, 1)
        one = min(self._timed_answer(wanted, 1) for _ in range(_TIMED_ANSWERS))
        batch = None
        if pdhg.MAX_LANES * one <= _MAX_BATCH_TIMED_S:
            batch = min(self._timed_answer(wanted, pdhg.MAX_LANES) for _ in range(_TIMED_ANSWERS))
        self.times.calibrate(wanted, one, batch)
        self.lineage.engines.clear()  # an allocation of matrices that nobody asked for is no start

    def _timed_answer(self, wanted: Wanted, matrices: int) -> float:
        """Seconds of an answer to matrices that nobody asked for, without iterations."""
        begin = time.perf_counter()
        job = Job(np.full((matrices, self.paths.num_demands), 1e-6), wanted, 0.1, begin)
        self.answer(self.solve(job), slice(0, matrices), 0.1, 0, 0.0)
        return time.perf_counter() - begin

    def solve(
        self, job: Job, starter: Starter | None = None, start: pdhg.PdhgState | None = None
    ) -> Solved:
        """Allocate the matrices of a job without a pause; arguments as in :meth:`begin`."""
        run = self.begin(job, starter, start)
        run.advance()
        return run.result

    def begin(
        self, job: Job, starter: Starter | None = None, start: pdhg.PdhgState | None = None
    ) -> Run[Solved]:
        """Begin to allocate the matrices of a job, from where the last allocation ended.

        Args:
            job: what to solve.
            starter: the model of the service.
            start: start of each matrix, in place of the last allocation's.
        """
        deadline = Deadline(job.deadline)
        return Run(self._solving(job, deadline, starter, start), deadline)

    def _solving(
        self, job: Job, deadline: Deadline, starter: Starter | None, start: pdhg.PdhgState | None
    ) -> Steps[Solved]:
        problem = self.problem(job.wanted, job.rates)
        key = job.wanted.network
        engines = self.lineage.engines
        engine = (engines.take(key) or SuccessivePdhg()).resized(problem.paths.num_paths)
        engines.keep(key, engine)
        is_warm = start is not None or engine.has_start(problem)
        kind = SearchKind.of(job.wanted, job.gap, is_warm=is_warm)
        result, solver = yield from solving(
            problem,
            job.wanted.solver,
            starter,
            engine,
            job.gap,
            deadline,
            start,
            prefer_model=self.solver_times.prefer_model(kind),
        )
        return Solved(
            job.wanted,
            problem,
            shortened(problem, result.splits),
            result.prices,
            result.stopped_by,
            result.state,
            result.iterations,
            solver,
            kind,
            result.program_prices,
            result.largest_share,
        )

    def answer(
        self,
        solved: Solved,
        rows: slice,
        gap: float,
        entries: int,
        queue_s: float,
        names: Sequence[str] = (),
        *,
        solve_s: float = 0.0,
    ) -> Answer:
        """Some matrices of a job, measured independently; as whole-number weights if ``entries``
        are asked for.

        Args:
            solved: the job's.
            rows: numbers of its matrices.
            gap: gap that was asked for.
            entries: entries of a split table; 0 for splits.
            queue_s: seconds that the request waited.
            names: names of the classes, where there are any.
            solve_s: seconds that the engine computed.
        """
        weights = None
        if entries:
            problem = solved.problem.rows(rows)
            splits = in_tables(problem, solved.splits[rows], entries)
            weights = table_weights(splits, entries).to(torch.uint8)
            program_prices = (
                None if solved.program_prices is None else solved.program_prices.rows(rows)
            )
            measured = dataclasses.replace(
                solved,
                problem=problem,
                splits=splits,
                prices=solved.prices[rows],
                program_prices=program_prices,
            )
            rows_of = slice(0, len(splits))
        else:
            measured, rows_of = solved, rows
        arrays = measured.arrays
        figures: dict[str, FloatArray] = {}
        if solved.wanted.conditions:
            figures = solved.wanted.figures(
                measured.problem.rows(rows_of), measured.splits[rows_of]
            )
        if solved.problem.objective.rules.may_have_no_allocation:
            figures["largest_share"] = _largest_shares(solved, rows)
        order, lines = self._network(solved.wanted)[1], measured.measured.lines
        numbers = range(rows_of.start, rows_of.stop)
        return Answer(
            **{name: of_all[rows_of] for name, of_all in arrays.figures.items()},
            utilisation=arrays.utilisation[rows_of],
            splits=in_columns(torch.from_numpy(arrays.splits[rows_of]), order).numpy(),
            weights=None if weights is None else in_columns(weights.cpu(), order).numpy(),
            status=tuple(
                ("gap" if certified <= gap + _GAP_TOLERANCE else ended_by(stop, solved.solver))
                if status.usable
                else status.value
                for certified, stop, status in zip(
                    arrays.figures["gap"][rows_of].tolist(),
                    solved.stopped_by[rows],
                    measured.measured.status[rows_of],
                    strict=True,
                )
            ),
            queue_ms=1e3 * queue_s,
            solve_ms=1e3 * solve_s,
            batch=solved.problem.batch,
            solver=solved.solver,
            lines={}
            if lines is None
            else {lines.parts: tuple(named_records(lines, row, names) for row in numbers)},
            of_conditions=figures,
            words=dict(solved.wanted.words),
            prices=arrays.prices[rows_of],
        )

    def route(self, demand: int, path: int) -> tuple[list[str], list[int]]:
        """Nodes and numbers of links of a path."""
        known = self._routes.get((demand, path))
        if known is None:
            links, names = self.paths.links_of(demand, path), self.topology.node_names
            nodes = [
                names[self.paths.pairs[demand][0]],
                *(names[self.topology.link_target[link]] for link in links),
            ]
            known = nodes, [int(link) for link in links]
            if len(self._routes) < _MAX_ROUTES:
                self._routes[demand, path] = known
        return known

    def drawing(self) -> dict[str, Any]:
        """The drawing of the network (:func:`teal.app.web.layout.drawing`); capacities as
        registered.
        """
        if self._drawing is None:
            self._drawing = drawing_of(self.topology)
        return self._drawing

    def network(self, wanted: Wanted) -> Problem:
        """The network of a request with the capacities in force, without demand; B = 1."""
        return self._network(wanted)[0].with_capacity(torch.from_numpy(self.capacity))

    def _network(self, wanted: Wanted) -> tuple[Problem, IntArray | None]:
        """The network as registered, without demand, B = 1; and
        :func:`teal.serving.engine.wanted.columns`.
        """
        key = wanted.network
        known = self._networks.find(key)
        if known is None:
            problem = without_demand(self.topology, self.paths, key, self.worth)
            known = problem, columns(self.topology, self.paths, key)
            self._networks.keep(key, known)
        return known

    def wanted_by(self, options: Options, spec: NetworkSpec, previous: FloatArray | None) -> Wanted:
        """The program that a request asks for (:func:`teal.serving.engine.wanted.wanted_by`)."""
        return wanted_by(options, spec, self.topology, self.paths, self._ready, previous)

    def problem(self, wanted: Wanted, rates: FloatArray) -> Problem:
        """The problem of (B, D) Gbit/s, with the capacities in force."""
        return wanted.problem(self.network(wanted), rates)
