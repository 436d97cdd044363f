"""Warm-up of the service: compiles and loads every kernel that a request may call.

No client then waits for a compilation. A request of every kind
(:mod:`teal_serve.engine.request_kinds`) is solved on a network of three nodes, since kernels
depend on types, not on sizes. If the size of a problem selects the kernel, each variant is called:
every engine, both interior-point searches.
"""

from __future__ import annotations

import contextlib
import itertools
import time

import numpy as np
import torch
from pydantic import ValidationError

from teal.errors import InputError
from teal.network import PathMethod, all_pairs, compute_paths
from teal.network.reachability import with_surviving_paths
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.schemes.models import load_model
from teal.schemes.price_gnn import DEFAULT_CHECKPOINT
from teal.solvers import columns, pdhg, pipeline
from teal.solvers.engine_choice import ENGINES
from teal.solvers.interior import engine as interior
from teal.solvers.pdhg.fused.warm_up import warm_up_kernels as warm_up_engine
from teal.solvers.result import Starter
from teal.solvers.sequences import class_rows, rate_cuts
from teal_serve.engine.allocation_task import AllocationTask, link_groups, resolve_demand_values
from teal_serve.engine.errors import ServiceError
from teal_serve.engine.network_state import Job, NetworkState, load_network_topology
from teal_serve.engine.parts import warm_up_parts
from teal_serve.engine.proof import build_proof, check_provable
from teal_serve.engine.request_kinds import AllocationKind, allocation_kinds
from teal_serve.engine.requests import AllocationRequest, NetworkSpec

_NODES = "a", "b", "c"
# Capacity of a link, Gbit/s.
_CAPACITY = 2.0
# Deadline of a solve, seconds; long, since compilation counts against it.
_SOLVE_DEADLINE_S = 600.0
# Iterations of each engine: enough for a gap check, a restart and a projection.
_ITERATIONS = 8
# Gap of requests that name none.
_DEFAULT_GAP = 1e-2
# Errors of requests with options that exclude each other.
_REFUSAL_ERRORS = ServiceError, InputError, ValidationError
# Objectives with separate kernels in the fused engine, by precision.
_OBJECTIVES_BY_DTYPE = {
    torch.float32: (ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION),
    torch.float64: (
        ObjectiveName.TOTAL_FLOW,
        ObjectiveName.MAX_LINK_UTILISATION,
        ObjectiveName.PROPORTIONAL_FAIR,
    ),
}


def warm_up_requests() -> None:
    """Call every kernel that an allocation request may call.

    Takes a few seconds if all kernels are compiled.
    """
    # Kernels that are selected by the size of a problem: the fused engine at each batch width, both
    # interior-point searches, and the searches of class and fair-rate programs.
    for dtype, objectives in _OBJECTIVES_BY_DTYPE.items():
        widths = pdhg.lanes_of(dtype)
        for objective, width in itertools.product(objectives, widths):
            warm_up_engine(width, dtype, objective)
    for is_large in (False, True):
        interior.warm_up_all(is_large=is_large)
    class_rows.warm_up_kernels()
    rate_cuts.warm_up_kernels()
    # Kernels that are selected by the options of a request.
    triangle = _ThreeNodeNetwork()
    for kind in allocation_kinds():
        if kind.has_distinct_kernels:
            triangle.solve(kind)


def warm_up_service() -> None:
    """Call every kernel that a service may call.

    These are the kernels of requests, network preparation, path generation and optional parts.
    """
    # Every kind of request, and every engine on every problem.
    warm_up_requests()
    triangle = _ThreeNodeNetwork()
    for kind in allocation_kinds():
        triangle.solve(kind)
        if kind.has_distinct_problem:
            triangle.solve_by_every_engine(kind)
    # Column generation, path searches, and network preparation.
    columns.warm_up_master()
    columns.warm_up_kernels()
    for method in PathMethod:
        NetworkState.prepare("warm-up", NetworkSpec(topology="b4", num_paths=2, path_method=method))
    network_state = NetworkState.prepare("warm-up", NetworkSpec(topology="b4"))
    with_surviving_paths(network_state.paths, network_state.topology, [[0]])
    warm_up_parts()


class _ThreeNodeNetwork:
    """Network of three nodes with the data that any option of a request needs."""

    def __init__(self) -> None:
        # Registration with all links, a weight, a default bandwidth function and a risk group.
        links = [
            {"source": a, "target": b, "capacity": _CAPACITY}
            for a, b in itertools.combinations(_NODES, 2)
        ]
        self._spec = NetworkSpec.model_validate(
            {
                "topology": {"nodes": [{"id": name} for name in _NODES], "links": links},
                "weights": [{"source": "a", "target": "b", "weight": 2.0}],
                "functions": [{"shares": [(0.5, 2.0), (1.0, 3.0)]}],
                "groups": {"group": [("a", "b")]},
            }
        )
        # State of the network with its candidate paths.
        topology = load_network_topology("warm-up", self._spec)
        paths = compute_paths(topology, all_pairs(topology), cache=False)
        self._network_state = NetworkState(
            topology, paths, resolve_demand_values(topology, paths, self._spec)
        )
        self._network_state.prepare_conditions(link_groups(topology, self._spec))
        # (1, D) rates, Gbit/s; some exceed the capacities, so that searches iterate.
        self._rates: FloatArray = np.linspace(0.5, 3.0, paths.num_demands)[None]
        first_paths = paths.mask & (np.arange(paths.num_paths) == 0)
        # (D, K) installed splits: all demand on the first path.
        self._installed_splits = first_paths.astype(np.float64)
        # Built-in model for warm starts, if it is installed.
        self._starter: Starter | None = None
        with contextlib.suppress(InputError):
            self._starter = load_model(DEFAULT_CHECKPOINT)

    def solve(self, kind: AllocationKind) -> bool:
        """Answer a kind of request as the service does, cold and warm-started.

        Returns:
            whether the service accepts the request.
        """
        try:
            options, task, rates = self._request(kind)
            gap = options.gap or _DEFAULT_GAP
            job = Job(rates, task, gap, time.perf_counter() + _SOLVE_DEADLINE_S)
            rows = slice(0, kind.num_matrices)
            for _ in ("cold", "warm"):
                batch_result = self._network_state.solve(job, self._starter)
                answer = self._network_state.answer(
                    batch_result, rows, gap, options.entries, 0.0, options.classes
                )
                if options.prove:
                    check_provable(task, kind.num_matrices)
                    build_proof(answer, self._network_state, task, rates)
        except _REFUSAL_ERRORS:
            return False
        return True

    def solve_by_every_engine(self, kind: AllocationKind) -> None:
        """Run a few iterations of every engine on the problem of a kind of request.

        Nothing is run if the service refuses such requests.
        """
        with contextlib.suppress(*_REFUSAL_ERRORS):
            options, task, rates = self._request(kind)
            problem = self._network_state.problem(task, rates)
            for engine in ENGINES:
                _solve_twice(problem, options.gap or _DEFAULT_GAP, engine)

    def _request(
        self, kind: AllocationKind
    ) -> tuple[AllocationRequest, AllocationTask, FloatArray]:
        """Return options, requested program, and rates of a kind of request.

        The rates are (B, C * D) Gbit/s, for B matrices of C classes over D pairs of nodes.
        """
        rates = np.tile(self._rates, (kind.num_matrices, kind.num_classes))
        options = AllocationRequest.model_validate({**kind.options, "rates": rates.tolist()})
        previous = (
            np.tile(self._installed_splits, (kind.num_classes, 1)) if kind.needs_previous else None
        )
        return options, self._network_state.resolve_request(options, self._spec, previous), rates


def _solve_twice(problem: Problem, gap: float, engine: str) -> None:
    """Run a few iterations of an engine, cold and warm-started, unless it refuses the problem."""
    start = None
    with contextlib.suppress(InputError):
        for _ in ("cold", "warm"):
            start = pipeline.solve(
                problem, gap=gap, engine=engine, max_iterations=_ITERATIONS, warm_start=start
            )
