"""Per-replica state of one network: candidate paths, current capacities, warm-start states.

:class:`NetworkState` holds topology and candidate paths; :class:`SharedNetworkState` holds the part
that all versions of its path set share. `NetworkState.prepare` loads the topology, computes the
paths and warms up the kernels. `NetworkState.begin` starts an interruptible solve of a
:class:`Job` (a batch of matrices), `NetworkState.answer` validates the result and converts it to an
:class:`Answer`.

Axes: B matrices, D demands (pairs of nodes), C demand classes, K candidate paths of a demand, E
links. With classes, arrays over demands have C * D rows, class by class.
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
from teal.runtime.lru_cache import LruCache
from teal.runtime.storage import is_transient
from teal.schemes.models import serves
from teal.schemes.successive import SuccessivePdhg
from teal.solvers import pdhg, pipeline
from teal.solvers.candidates import choose_paths, representative_matrices
from teal.solvers.result import SolveState, Starter, Stop
from teal.solvers.short_paths import shortened
from teal.solvers.split_table import table_weights
from teal.solvers.table_search import round_to_tables
from teal_serve.engine.allocation_task import (
    AllocationTask,
    DemandValues,
    link_groups,
    path_columns,
    prepare_conditions,
    records_with_class_names,
    resolve_demand_values,
    resolve_request,
    single_program_task,
    to_network_columns,
    zero_demand_problem,
)
from teal_serve.engine.answer import METRICS, Answer
from teal_serve.engine.errors import ServiceError, invalid_request
from teal_serve.engine.requests import NetworkSpec, NodeLink, Options
from teal_serve.engine.service_times import SearchKind, ServiceTimeEstimate, SolverTimes
from teal_serve.engine.solvers import MODEL, solve_steps

# Generated matrices for path selection before any traffic is known. At this load a third of the
# demand exceeds the capacities, so that many links are bottlenecks.
_GENERATED_TRAFFIC = "gravity:seed=0,load=4,count={count}"
# Time limit of path selection, seconds; afterwards the best set so far is used.
_MAX_PATH_CHOICE_S = 120.0
# Path methods that support shared-risk groups.
_METHODS_WITH_GROUPS = (PathMethod.SURVIVABLE, PathMethod.MAXIMALLY_DISJOINT)


class AddedPaths(NamedTuple):
    """Stored path set of a network, including paths added since its registration.

    Attributes:
        version: number of path additions so far.
        file: file with all paths, the registered and the added ones.
    """

    version: int
    file: Path


def candidate_paths(
    topology: Topology,
    spec: NetworkSpec,
    groups: Sequence[Sequence[int]],
    report: Callable[[float], None] | None = None,
    added_paths: AddedPaths | None = None,
) -> tuple[PathSet, frozenset[str]]:
    """Return the candidate paths of all pairs of nodes, and the keys of the cached path sets.

    Stored paths are loaded; others are computed. With ``num_paths`` auto, further paths are
    selected by column generation for generated traffic.

    Args:
        topology: topology of the network.
        spec: settings of the registration.
        groups: link indices of each shared-risk group; empty without groups.
        report: progress callback, called with the fraction of finished sources; an exception in it
            ends the search.
        added_paths: stored path set; None to compute the paths.

    Returns:
        path set, and content hashes of all path sets that this search has cached on disk.

    Raises:
        InputError: path settings that exclude each other, or a damaged path file.
        ServiceError: weights or bandwidth functions of unknown demands.
    """
    # Load the stored paths, if paths were added since the registration.
    if added_paths is not None:
        return load_paths(added_paths.file, topology), frozenset()
    paths = compute_paths(
        topology,
        all_pairs(topology),
        num_paths=spec.initial_num_paths,
        method=spec.path_method,
        weight=spec.path_weight,
        groups=groups if groups and spec.path_method in _METHODS_WITH_GROUPS else None,
        report=report,
    )
    # A fixed number of paths needs no selection.
    if spec.num_paths != "auto":
        return paths, frozenset([paths.key])
    # Select paths for generated matrices; large networks keep the initial paths.
    num_matrices = representative_matrices(paths)
    if not num_matrices:
        return paths, frozenset([paths.key])
    traffic = load_traffic(_GENERATED_TRAFFIC.format(count=num_matrices), topology)
    selected_paths = choose_paths(
        topology,
        traffic.read(slice(None)),
        paths=paths,
        objective=Objective(spec.objective),
        weight=resolve_demand_values(topology, paths, spec).weight,
        max_paths=spec.max_paths,
        deadline=_MAX_PATH_CHOICE_S,
        # All sources are finished; the callback may still end the selection by an exception.
        report=None if report is None else lambda *_: report(1.0),
    ).paths
    # Key of the shortest paths, which the traffic generator caches.
    shortest_paths_key = search_key(topology, paths.pairs, 1, PathMethod.DISJOINT, PathWeight.HOPS)
    return selected_paths, frozenset([selected_paths.key, paths.key, shortest_paths_key])


# Number of timed answers of a calibration, which uses the minimum: other work may delay some.
_NUM_TIMED_ANSWERS = 3
# A full batch is timed, too, if it is expected to take at most this many seconds.
_MAX_TIMED_BATCH_S = 0.5
# Size of the LRU caches of zero-demand problems and warm-start states.
_MAX_CACHED_PROGRAMS = 8
# Maximum number of paths whose node names are cached for answers by name.
_MAX_CACHED_ROUTES = 100_000
# Gap of the kernel variants that the warm-up loads.
_WARM_UP_GAP = 1e-2
# Gap to which warm starts on larger networks, too, may use the simplex method.
_FINE_GAP = 1e-5
# Weight 1 for every demand, without bandwidth functions.
_EQUAL_VALUES = DemandValues()


def load_network_topology(name: str, spec: NetworkSpec) -> Topology:
    """Load the topology of a registration: node-link data, built-in or topohub network.

    Args:
        name: name of the network, for topologies from node-link data.
        spec: settings of the registration.

    Raises:
        ServiceError: invalid data, or an unknown name; file names are not accepted.
    """
    try:
        if isinstance(spec.topology, NodeLink):
            return topology_from_node_link(spec.topology.node_link_data(), name, name)
        if is_named(spec.topology):
            return load_topology(spec.topology)
    except InputError as error:
        raise invalid_request(f"topology: {error}") from None
    # Invalid coordinates, or a name that is too long for a file system.
    except (ValueError, ArithmeticError, OSError) as error:
        if is_transient(error):
            raise
        raise invalid_request(f"topology: {str(error)[:200]}") from None
    raise invalid_request(
        f"topology: unknown network {spec.topology[:80]!r}; use node-link data, "
        f"{', '.join(BUILT_IN)} or {PREFIX}GROUP/NAME"
    )


def current_capacity(topology: Topology, link_changes: dict[str, Any]) -> FloatArray:
    """Return the current capacities (E,) in Gbit/s: registered capacities after link changes.

    Args:
        topology: topology as registered.
        link_changes: link index -> change {"capacity": Gbit/s or None, "up": bool}; either key may
            be missing. A capacity of None is the registered one; links that are down get 0.

    Raises:
        ServiceError: unknown link, or invalid capacity.
    """
    capacity = topology.capacity.copy()
    # Validate each stored change, then apply it; a link that is down gets 0 whatever its capacity.
    for link, change in link_changes.items():
        new_capacity = change.get("capacity")
        is_up = change.get("up")
        is_known_link = link.isdecimal() and int(link) < len(capacity)
        is_valid_capacity = new_capacity is None or (
            isinstance(new_capacity, int | float) and 0 <= new_capacity < math.inf
        )
        if not (is_known_link and is_valid_capacity and is_up in (None, True, False)):
            raise ServiceError(
                409,
                "failed",
                f"the stored change of link {link[:80]} is invalid: {str(change)[:80]}; change "
                "the link again",
            )
        if new_capacity is not None:
            capacity[int(link)] = new_capacity
        if is_up is False:
            capacity[int(link)] = 0.0
    return capacity


def _three_node_network() -> NetworkState:
    """Build a network of three nodes, all linked, for the warm-up and for checks of models.

    It has demand weights of 1 and bandwidth functions, so that every objective can be solved.
    """
    # Source and target node of the six links; capacities of 1 Gbit/s, latencies of 1 ms, and
    # unknown coordinates.
    link_ends = np.array([0, 1, 2, 1, 2, 0]), np.array([1, 2, 0, 0, 1, 2])
    topology = Topology(
        "warm-up", ("a", "b", "c"), *link_ends, np.ones(6), np.ones(6), np.full((3, 2), np.nan)
    )
    # The same bandwidth function for all six demands, through (0.5, 2) and (1, 3): fraction of the
    # demand, and value per Gbit/s of demand.
    functions = BandwidthFunctions.of_points([[(0.5, 2.0), (1.0, 3.0)]], [0] * 6, by_share=True)
    paths = compute_paths(topology, all_pairs(topology), cache=False)
    return NetworkState(topology, paths, DemandValues(np.ones(6), functions))


def check_model(model: Starter) -> None:
    """Check that a model's prediction is a usable warm start of PDHG, on a small network.

    Raises:
        InputError: the model supports no objective, or predicts NaN or infinite numbers.
    """
    # Test the model on the first objective that it supports.
    objective = next((name for name in SINGLE_PROGRAMS if serves(model, Objective(name))), None)
    if objective is None:
        raise InputError.invalid(
            "model",
            "objective",
            "the model supports no objective that is a single program",
            f"use a model for one of {', '.join(SINGLE_PROGRAMS)}",
        )
    # Predict splits and link prices for demands of 1 Gbit/s, and iterate from them.
    problem = _three_node_network().problem(AllocationTask(objective), np.ones((1, 6)))
    splits, prices = model.start(problem)
    if not (bool(torch.isfinite(splits).all()) and bool(torch.isfinite(prices).all())):
        raise InputError.invalid(
            "model", "", "the predicted splits or prices are NaN or infinite", "train it again"
        )
    pipeline.solve(problem, max_iterations=8, warm_start=(splits, prices))


@functools.cache
def warm_up_kernels(objective: str) -> None:
    """Compile the kernels of an objective, so that no request waits for a compilation.

    Solves a network of three nodes at every batch width, cold and warm: a kernel is compiled at its
    first call, which may take seconds.
    """
    network_state = _three_node_network()
    # Solve twice at each batch width: the second solve is warm-started from the first one.
    for num_matrices in (width for width in pdhg.LANES for _ in ("cold", "warm")):
        # Demands of 1 Gbit/s, a gap of 0.1%, and a long deadline, since compilation counts.
        job = Job(
            np.ones((num_matrices, 6)), AllocationTask(objective), 1e-3, time.perf_counter() + 600
        )
        # Answer all matrices: same gap, splits without tables (0 entries), no time in the queue.
        network_state.answer(network_state.solve(job), slice(0, num_matrices), 1e-3, 0, 0.0)


@dataclasses.dataclass(frozen=True)
class Job:
    """Batch of B matrices to solve together.

    Attributes:
        rates: (B, D) rates of D pairs of nodes, Gbit/s; (B, C * D) with C classes, class by class.
        task: requested program, the same for all matrices.
        gap: target of the certified gap, the same for all matrices.
        deadline: earliest deadline of the requests, by ``time.perf_counter()``.
    """

    rates: FloatArray
    task: AllocationTask
    gap: float
    deadline: float


class _BatchArrays(NamedTuple):
    """NumPy arrays of a solved batch of B matrices.

    Attributes:
        figures: name -> (B,) certified figures: value, bound, gap, satisfied demand, largest link
            utilisation.
        utilisation: (B, E) link utilisation.
        splits: (B, D, K) fraction of each demand on each path.
        prices: (B, E) link prices.
    """

    figures: dict[str, FloatArray]
    utilisation: FloatArray
    splits: npt.NDArray[np.float32]
    prices: FloatArray


# Rounding tolerance of a certified gap above the requested gap.
_GAP_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class BatchResult:
    """Result of the solve of a :class:`Job`.

    Attributes:
        task: requested program.
        problem: problem of the B matrices.
        splits: (B, D, K) fraction of each demand on each path.
        prices: (B, E) link prices that prove the bounds.
        stopped_by: (B,) reason why the search of each matrix ended.
        state: splits and prices at the end, from which the search can continue later.
        iterations: number of PDHG iterations.
        solver: name of the used solver: model, model-pdhg or pdhg.
        kind: key under which searches with and without a model are compared.
        program_prices: prices of each program of a sequence; None for a single program.
        largest_share: (B, 2) common served fraction of all demands and its certified bound, NaN
            where all demand can be carried; None if that holds for every matrix.
        trace: turns of the engines: name, iterations, start, and selected columns.
    """

    task: AllocationTask
    problem: Problem
    splits: torch.Tensor
    prices: torch.Tensor
    stopped_by: tuple[Stop, ...]
    state: SolveState
    iterations: int
    solver: str
    kind: SearchKind
    program_prices: ProgramPrices | None = None
    largest_share: torch.Tensor | None = None
    trace: tuple[str, ...] = ()

    @functools.cached_property
    def assessment(self) -> Assessment:
        """Validated status, value, bound and gap of each matrix; cached for all its requests."""
        return assess(
            self.problem, Allocation.of_batch(self.splits, self.prices, 0.0, self.program_prices)
        )

    @functools.cached_property
    def arrays(self) -> _BatchArrays:
        """NumPy arrays of the whole batch; the answers of its requests are slices of them."""
        assessment = self.assessment
        return _BatchArrays(
            {name: getattr(assessment, name).cpu().numpy() for name in METRICS},
            assessment.utilisation.cpu().numpy(),
            self.splits.to(torch.float32).cpu().numpy(),
            self.prices.to(torch.float64).cpu().numpy(),
        )


def _served_fraction_bounds(batch_result: BatchResult, rows: slice) -> FloatArray:
    """Return upper bounds on the fraction of every demand that can be carried; NaN if all can be.

    Args:
        batch_result: result of a job.
        rows: slice of n of its matrices.

    Returns:
        (n,) certified bounds.
    """
    if batch_result.largest_share is None:
        return np.full(rows.stop - rows.start, np.nan)
    # Column 1 has the certified bounds, column 0 the common served fractions.
    upper_bounds: FloatArray = batch_result.largest_share[rows, 1].to(torch.float64).cpu().numpy()
    return upper_bounds


def _round_to_split_tables(batch_result: BatchResult, rows: slice, entries: int) -> BatchResult:
    """Return the result of some matrices with their splits rounded to integer split tables.

    Args:
        batch_result: result of a job.
        rows: slice of its matrices.
        entries: number of entries of a demand's table.
    """
    problem = batch_result.problem.rows(rows)
    splits = round_to_tables(problem, batch_result.splits[rows], entries)
    program_prices = (
        None if batch_result.program_prices is None else batch_result.program_prices.rows(rows)
    )
    return dataclasses.replace(
        batch_result,
        problem=problem,
        splits=splits,
        prices=batch_result.prices[rows],
        program_prices=program_prices,
    )


def _status_words(
    result: BatchResult, rows: slice, stopped_by: Sequence[Stop], gap: float
) -> tuple[str, ...]:
    """Return the status of each matrix of an answer.

    The status is "gap" if the certified gap is at most the requested one, else the reason why the
    search ended; for unusable splits it is the validator's verdict.

    Args:
        result: result with its validation.
        rows: slice of its matrices.
        stopped_by: reason why the search of each of these matrices ended.
        gap: requested gap.
    """
    return tuple(
        ("gap" if certified <= gap + _GAP_TOLERANCE else stop_reason(stop, result.solver))
        if status.usable
        else status.value
        for certified, stop, status in zip(
            result.arrays.figures["gap"][rows].tolist(),
            stopped_by,
            result.assessment.status[rows],
            strict=True,
        )
    )


def _class_or_level_records(
    result: BatchResult, rows: slice, names: Sequence[str]
) -> dict[str, tuple[list[dict[str, Any]], ...]]:
    """Return the certified figures of each class or level of each matrix, as response fields.

    Args:
        result: result with its validation.
        rows: slice of its matrices.
        names: names of the demand classes; empty without classes.

    Returns:
        ``classes`` or ``levels`` -> for each matrix the list of its records; {} for an objective
        that is a single program.
    """
    part_certificates = result.assessment.part_certificates
    if part_certificates is None:
        return {}
    # `parts_key` is the name of the response field: classes or levels.
    return {
        part_certificates.parts_key: tuple(
            records_with_class_names(part_certificates, row, names)
            for row in range(rows.start, rows.stop)
        )
    }


def stop_reason(stop: Stop, solver: str) -> str:
    """Return the status of a search whose validated gap exceeds the requested one.

    It is the reason why the search ended; "rounding" if the search itself reached the gap, so that
    only rounding can have changed it; "model" if the model alone was used.

    Args:
        stop: reason why the search ended.
        solver: name of the used solver: model, model-pdhg or pdhg.
    """
    # The model alone does not iterate.
    if solver == MODEL:
        return MODEL
    return (Stop.ROUNDING if stop is Stop.GAP else stop).value


class SharedNetworkState:
    """State of a network that all versions of its path set share.

    Attributes:
        capacity: (E,) current capacities, Gbit/s; a change replaces the array.
        service_times: service-time estimates of answers.
        solver_times: solve times per matrix with and without a model.
        engines: LRU cache of solvers with warm-start state, by program; for the solver thread only.
    """

    def __init__(self, capacity: FloatArray) -> None:
        self.capacity = capacity
        self.service_times = ServiceTimeEstimate()
        self.solver_times = SolverTimes()
        self.engines = LruCache[AllocationTask, SuccessivePdhg](_MAX_CACHED_PROGRAMS)


class NetworkState:
    """Per-replica state of one network.

    The event loop, the solver thread and worker threads use it concurrently. After :meth:`prepare`
    only caches change: programs, routes, the drawing.

    Args:
        topology: topology as registered.
        paths: candidate paths of all pairs of nodes.
        demand_values: weights and bandwidth functions of the demands.
        shared: state shared with earlier versions of the path set; None for a new network.

    Attributes:
        shared: the same object for all versions of the path set.
        stored_paths: content hashes of its path sets cached on disk.
        paths_version: number of path additions.
    """

    def __init__(
        self,
        topology: Topology,
        paths: PathSet,
        demand_values: DemandValues = _EQUAL_VALUES,
        shared: SharedNetworkState | None = None,
    ) -> None:
        """Build the state without data of side conditions; :meth:`prepare_conditions` adds it."""
        self.topology = topology
        self.paths = paths
        self.demand_values = demand_values
        # Precomputed data of side conditions, by the name of their option.
        self._prepared_conditions: dict[str, Any] = {}
        self.stored_paths = frozenset[str]()
        self.paths_version = 0
        self.shared = shared or SharedNetworkState(topology.capacity)
        self._cached_drawing: dict[str, Any] | None = None
        # Node names and link indices of paths, by demand and path index.
        self._route_cache: dict[tuple[int, int], tuple[list[str], list[int]]] = {}
        # Problems without demand, and the path columns of classes, by objective and latency limits.
        self._problem_cache = LruCache[AllocationTask, tuple[Problem, IntArray | None]](
            _MAX_CACHED_PROGRAMS
        )

    @property
    def capacity(self) -> FloatArray:
        """(E,) current capacities, Gbit/s."""
        return self.shared.capacity

    @property
    def service_times(self) -> ServiceTimeEstimate:
        """Estimated seconds of answers, for admission control and scheduling."""
        return self.shared.service_times

    @property
    def solver_times(self) -> SolverTimes:
        """Measured seconds per matrix of searches with and without a model."""
        return self.shared.solver_times

    @classmethod
    def prepare(
        cls,
        name: str,
        spec: NetworkSpec,
        report: Callable[[float], None] | None = None,
        added_paths: AddedPaths | None = None,
    ) -> NetworkState:
        """Load the topology, compute the candidate paths, and warm up the solver.

        Takes seconds to minutes.

        Args:
            name: name of the network.
            spec: settings of the registration.
            report: progress callback, called with the fraction of finished sources; an exception in
                it ends the search.
            added_paths: stored path set; None if no paths were added since the registration.

        Raises:
            ServiceError: invalid topology or settings.
        """
        # Load the topology and find the candidate paths.
        topology = load_network_topology(name, spec)
        groups = link_groups(topology, spec)
        try:
            paths, path_set_keys = candidate_paths(topology, spec, groups, report, added_paths)
        except InputError as error:
            raise invalid_request(str(error)) from None
        network_state = cls(topology, paths, resolve_demand_values(topology, paths, spec))
        network_state.stored_paths = path_set_keys
        network_state.paths_version = 0 if added_paths is None else added_paths.version
        # Compile kernels, calibrate service times and prepare side conditions.
        warm_up_kernels(spec.objective)
        network_state.warm_up(spec.objective)
        network_state.prepare_conditions(groups)
        return network_state

    def with_more_paths(self, added_paths: AddedPaths, spec: NetworkSpec) -> NetworkState:
        """Return a new state of this network over an extended path set.

        Existing paths keep their columns, so splits of the old path set stay valid.

        Args:
            added_paths: stored path set with the added paths.
            spec: settings of the registration.
        """
        paths = load_paths(added_paths.file, self.topology)
        # The new state shares capacities, service times and warm-start states with this one.
        extended_state = NetworkState(self.topology, paths, self.demand_values, self.shared)
        extended_state.stored_paths = self.stored_paths
        extended_state.paths_version = added_paths.version
        extended_state._cached_drawing = self._cached_drawing
        # Pack the trie now, before a request needs it.
        _ = extended_state.paths.packed
        extended_state.prepare_conditions(link_groups(self.topology, spec))
        return extended_state

    def prepare_conditions(self, groups: Sequence[Sequence[int]]) -> None:
        """Precompute the data of all side conditions that a request may name.

        Args:
            groups: link indices of each shared-risk group.
        """
        self._prepared_conditions = prepare_conditions(
            self.network(AllocationTask(ObjectiveName.TOTAL_FLOW)), groups
        )

    def warm_up(self, objective: str) -> None:
        """Solve matrices with tiny demands: load the kernels and calibrate the service times.

        Args:
            objective: default objective of the network.
        """
        # Load the kernel variants for a network of this size at every batch width, the largest one
        # first: `problem` then has a single matrix, which is solved below.
        for num_matrices in reversed(pdhg.LANES):
            problem = self.problem(
                AllocationTask(objective), np.full((num_matrices, self.paths.num_demands), 1e-6)
            )
            pipeline.prepare(problem, gap=_WARM_UP_GAP)
        # Load also the simplex method, which warm starts to a small gap may use; then iterate.
        pipeline.prepare(problem, gap=_FINE_GAP, is_warm=True)
        pipeline.solve(problem, gap=0.1, max_iterations=8)
        # Calibrate the service-time estimate, after one untimed answer: seconds for one matrix, and
        # for a full batch if that is expected to be fast.
        task = single_program_task(objective)
        self._time_answer(task, 1)
        one_matrix_s = min(self._time_answer(task, 1) for _ in range(_NUM_TIMED_ANSWERS))
        batch_s = None
        if pdhg.MAX_LANES * one_matrix_s <= _MAX_TIMED_BATCH_S:
            batch_s = min(
                self._time_answer(task, pdhg.MAX_LANES) for _ in range(_NUM_TIMED_ANSWERS)
            )
        self.service_times.calibrate(task, one_matrix_s, batch_s)
        # Discard the warm-start state of the tiny matrices.
        self.shared.engines.clear()

    def _time_answer(self, task: AllocationTask, num_matrices: int) -> float:
        """Return the seconds to answer matrices with tiny demands, which need no iterations.

        Args:
            task: requested program.
            num_matrices: number of matrices of the batch.
        """
        # Demands of 1e-6 Gbit/s, a gap of 10%, and a deadline that passes at once.
        begin = time.perf_counter()
        job = Job(np.full((num_matrices, self.paths.num_demands), 1e-6), task, 0.1, begin)
        # All matrices, the same gap, splits without tables (0 entries), no time in the queue.
        self.answer(self.solve(job), slice(0, num_matrices), 0.1, 0, 0.0)
        return time.perf_counter() - begin

    def solve(
        self, job: Job, starter: Starter | None = None, start: SolveState | None = None
    ) -> BatchResult:
        """Solve a job without pauses, and return its result.

        Args:
            job: batch to solve.
            starter: model of the service; None for none.
            start: solver state to continue from; None for the last allocation of the network.
        """
        run = self.begin(job, starter, start)
        run.advance()
        return run.result

    def begin(
        self, job: Job, starter: Starter | None = None, start: SolveState | None = None
    ) -> Run[BatchResult]:
        """Return the interruptible solve of a job.

        Args:
            job: batch to solve.
            starter: model of the service; None for none.
            start: solver state to continue from; None to warm-start from the last allocation of the
                network.
        """
        deadline = Deadline(job.deadline)
        return Run(self._solve_steps(job, deadline, starter, start), deadline)

    def _solve_steps(
        self,
        job: Job,
        deadline: Deadline,
        starter: Starter | None,
        start: SolveState | None,
    ) -> Steps[BatchResult]:
        """Solve a job as a generator, which yields at points where the solve can pause.

        Args:
            job: batch to solve.
            deadline: deadline of the job, which the caller may expire earlier.
            starter: model of the service; None for none.
            start: solver state to continue from; None for the last allocation of the network.
        """
        # Get the solver with the warm-start state of this task, whatever its side conditions, from
        # the LRU cache; its arrays are padded if paths were added.
        problem = self.problem(job.task, job.rates)
        engine_key = job.task.network
        solver_cache = self.shared.engines
        pdhg_solver = (solver_cache.take(engine_key) or SuccessivePdhg()).resized(
            problem.paths.num_paths
        )
        solver_cache.keep(engine_key, pdhg_solver)
        # Solve, with the model if it has been faster for this kind of search.
        is_warm = start is not None or pdhg_solver.has_start(problem)
        search_kind = SearchKind.of(job.task, job.gap, is_warm=is_warm)
        result, solver = yield from solve_steps(
            problem,
            job.task.solver,
            starter,
            pdhg_solver,
            job.gap,
            deadline,
            start,
            prefer_model=self.solver_times.prefer_model(search_kind),
        )
        # Move flow to shorter paths at the same value, and collect the result.
        return BatchResult(
            job.task,
            problem,
            shortened(problem, result.splits),
            result.prices,
            result.stopped_by,
            result.state,
            result.iterations,
            solver,
            search_kind,
            result.program_prices,
            result.largest_share,
            result.engine_runs,
        )

    def answer(
        self,
        batch_result: BatchResult,
        rows: slice,
        gap: float,
        entries: int,
        queue_s: float,
        names: Sequence[str] = (),
        *,
        solve_s: float = 0.0,
    ) -> Answer:
        """Return the validated answer to some matrices of a job.

        Args:
            batch_result: result of the job.
            rows: slice of its matrices.
            gap: requested gap.
            entries: number of entries of integer split tables; 0 for splits without rounding.
            queue_s: seconds in the queue.
            names: names of the demand classes; empty without classes.
            solve_s: seconds in the solver.
        """
        # Round the splits to integer tables if requested; the figures are those of the rounded
        # splits. `result_rows` are the rows of this request in the result to answer.
        weights = None
        result_to_answer = batch_result
        result_rows = rows
        if entries:
            result_to_answer = _round_to_split_tables(batch_result, rows, entries)
            weights = table_weights(result_to_answer.splits, entries).to(torch.uint8)
            result_rows = slice(0, len(result_to_answer.splits))
        # Compute the figures of side conditions and, under an objective that may be infeasible, the
        # bound on the common served fraction of all demands.
        arrays = result_to_answer.arrays
        figures: dict[str, FloatArray] = {}
        if batch_result.task.conditions:
            figures = batch_result.task.metrics(
                result_to_answer.problem.rows(result_rows), result_to_answer.splits[result_rows]
            )
        if batch_result.problem.objective.rules.may_be_infeasible:
            figures["largest_share"] = _served_fraction_bounds(batch_result, rows)
        # With latency limits: (C * D, K) column in the network's path set of each path of a class.
        network_columns = self._cached_problem(batch_result.task)[1]
        # Slice the matrices of this request from the arrays of the batch, and scatter the splits to
        # the columns of the network's path set.
        return Answer(
            **{name: batch_values[result_rows] for name, batch_values in arrays.figures.items()},
            utilisation=arrays.utilisation[result_rows],
            splits=to_network_columns(
                torch.from_numpy(arrays.splits[result_rows]), network_columns
            ).numpy(),
            weights=None
            if weights is None
            else to_network_columns(weights.cpu(), network_columns).numpy(),
            status=_status_words(result_to_answer, result_rows, batch_result.stopped_by[rows], gap),
            queue_ms=1e3 * queue_s,
            solve_ms=1e3 * solve_s,
            batch=batch_result.problem.batch,
            trace=batch_result.trace,
            solver=batch_result.solver,
            lines=_class_or_level_records(result_to_answer, result_rows, names),
            condition_figures=figures,
            condition_words=dict(batch_result.task.condition_words),
            prices=arrays.prices[result_rows],
        )

    def route(self, demand_index: int, path_index: int) -> tuple[list[str], list[int]]:
        """Return the route of a path, from its source to its target; cached.

        Args:
            demand_index: index of the pair of nodes.
            path_index: index of the path among the candidate paths of the pair.

        Returns:
            names of the nodes, and indices of the links between them.
        """
        route = self._route_cache.get((demand_index, path_index))
        if route is None:
            links = self.paths.links_of(demand_index, path_index)
            names = self.topology.node_names
            # Nodes of the path: its source, then the target node of each link.
            nodes = [
                names[self.paths.pairs[demand_index][0]],
                *(names[self.topology.link_target[link]] for link in links),
            ]
            route = nodes, [int(link) for link in links]
            if len(self._route_cache) < _MAX_CACHED_ROUTES:
                self._route_cache[demand_index, path_index] = route
        return route

    def drawing(self) -> dict[str, Any]:
        """Return node positions, links and registered capacities (Gbit/s) for a drawing; cached.

        The fields are those of ``responses.Drawing``.
        """
        if self._cached_drawing is None:
            self._cached_drawing = drawing_of(self.topology)
        return self._cached_drawing

    def network(self, task: AllocationTask) -> Problem:
        """Return the problem of a task with current capacities and one matrix of zero demand."""
        return self._cached_problem(task)[0].with_capacity(torch.from_numpy(self.capacity))

    def _cached_problem(self, task: AllocationTask) -> tuple[Problem, IntArray | None]:
        """Return the problem of a task with zero demand, and its path columns, from the LRU cache.

        Returns:
            problem with the registered capacities, B = 1; and (C * D, K) column in the network's
            path set of each path of each class, None if the columns are the same.
        """
        key = task.network
        problem_and_columns = self._problem_cache.find(key)
        if problem_and_columns is None:
            problem = zero_demand_problem(self.topology, self.paths, key, self.demand_values)
            problem_and_columns = problem, path_columns(self.topology, self.paths, key)
            self._problem_cache.keep(key, problem_and_columns)
        return problem_and_columns

    def resolve_request(
        self, options: Options, spec: NetworkSpec, previous: FloatArray | None
    ) -> AllocationTask:
        """Return the program that a request asks for.

        Args:
            options: options of the request.
            spec: settings of the registration.
            previous: (D, K) installed splits, or (C * D, K) those of each class; None if the
                request names none.

        Raises:
            ServiceError: options that exclude each other.
        """
        return resolve_request(
            options, spec, self.topology, self.paths, self._prepared_conditions, previous
        )

    def problem(self, task: AllocationTask, rates: FloatArray) -> Problem:
        """Return the problem of a task with current capacities, for a batch of B matrices.

        Args:
            task: requested program.
            rates: (B, D) Gbit/s, or (B, C * D) with classes.
        """
        return task.problem(self.network(task), rates)
