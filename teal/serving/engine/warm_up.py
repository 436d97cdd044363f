"""Calls the kernels that requests reach before any request comes, so that none of them is compiled
or loaded while a client waits.

Requests of every kind (:mod:`teal.serving.engine.request_kinds`) are solved on three nodes: kernels
depend on types, not on sizes.  Where size chooses between kernels, each of them is called: both
forms of parallel kernels, every engine, and both searches by interior points.
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
from teal.serving.engine.errors import ServiceError
from teal.serving.engine.parts import warm_up_parts
from teal.serving.engine.proof import check_provable, proof_of
from teal.serving.engine.request_kinds import AllocationKind, allocation_kinds
from teal.serving.engine.requests import AllocationRequest, NetworkSpec
from teal.serving.engine.served import Job, Served, topology_of
from teal.serving.engine.wanted import Wanted, groups_of, worth_of
from teal.solvers import columns, pdhg
from teal.solvers.interior import engine as interior
from teal.solvers.pdhg import Starter
from teal.solvers.pdhg.fused.rehearsal import rehearse as rehearse_engine
from teal.solvers.pdhg.solver import ENGINES
from teal.solvers.sequences import class_rows, rate_cuts

_NODES = "a", "b", "c"
_CAPACITY = 2.0  # Gbit/s of a link
_LONGEST_S = 600.0  # deadline of a solve: compilation counts against it
_ITERATIONS = 8  # enough for a gap check, a restart and a refill
_USUAL_GAP = 1e-2
# What the service says of options that do not go together.
_REFUSALS = ServiceError, InputError, ValidationError
# Kinds of programs that the fused engine has kernels for, by precision.
_OBJECTIVES = {
    torch.float32: (ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION),
    torch.float64: (
        ObjectiveName.TOTAL_FLOW,
        ObjectiveName.MAX_LINK_UTILISATION,
        ObjectiveName.PROPORTIONAL_FAIR,
    ),
}


def warm_up_requests() -> None:
    """Call every kernel that an allocation request reaches, for a process that is to answer some: a
    few seconds where all are compiled.
    """
    # Kernels between which size chooses.
    for dtype, objectives in _OBJECTIVES.items():
        widths = pdhg.lanes_of(dtype)
        for objective, on_all, width in itertools.product(objectives, (False, True), widths):
            rehearse_engine(width, dtype, objective, on_all=on_all)
    for is_large in (False, True):
        interior.warm_up(is_large=is_large)
        class_rows.rehearse(on_all=is_large)
    rate_cuts.rehearse()
    # Kernels between which the options of a request choose.
    triangle = _Triangle()
    for kind in allocation_kinds():
        if kind.has_own_kernels:
            triangle.solve(kind)


def warm_up_service() -> None:
    """Call every kernel that a service may reach: those of requests, and those that prepare a
    network, add paths to it, and belong to the parts that other packages bring.
    """
    warm_up_requests()
    triangle = _Triangle()
    for kind in allocation_kinds():
        triangle.solve(kind)
        if kind.has_own_problem:
            triangle.solve_by_every_engine(kind)
    columns.rehearse_master()
    columns.rehearse()
    for method in PathMethod:
        Served.prepare("warm-up", NetworkSpec(topology="b4", num_paths=2, path_method=method))
    served = Served.prepare("warm-up", NetworkSpec(topology="b4"))
    with_surviving_paths(served.paths, served.topology, [[0]])
    warm_up_parts()


class _Triangle:
    """A network of three nodes that has what any option of a request needs."""

    def __init__(self) -> None:
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
        topology = topology_of("warm-up", self._spec)
        paths = compute_paths(topology, all_pairs(topology), cache=False)
        self._served = Served(topology, paths, worth_of(topology, paths, self._spec))
        self._served.prepare_conditions(groups_of(topology, self._spec))
        # More than the network can carry, so that searches iterate.
        self._rates: FloatArray = np.linspace(0.5, 3.0, paths.num_demands)[None]
        first_paths = paths.mask & (np.arange(paths.num_paths) == 0)
        self._previous = first_paths.astype(np.float64)
        self._starter: Starter | None = None
        with contextlib.suppress(InputError):  # a service needs no model
            self._starter = load_model(DEFAULT_CHECKPOINT)

    def solve(self, kind: AllocationKind) -> bool:
        """Answer a request as the service does: from nothing, and from the last state; whether the
        service accepts it.
        """
        try:
            options, wanted, rates = self._request(kind)
            gap = options.gap or _USUAL_GAP
            job = Job(rates, wanted, gap, time.perf_counter() + _LONGEST_S)
            rows = slice(0, kind.matrices)
            for _ in ("cold", "warm"):
                solved = self._served.solve(job, self._starter)
                answer = self._served.answer(
                    solved, rows, gap, options.entries, 0.0, options.classes
                )
                if options.prove:
                    check_provable(wanted, kind.matrices)
                    proof_of(answer, self._served, wanted, rates)
        except _REFUSALS:
            return False
        return True

    def solve_by_every_engine(self, kind: AllocationKind) -> None:
        """Solve the problem of a request for a few iterations by each engine that takes it."""
        with contextlib.suppress(*_REFUSALS):
            options, wanted, rates = self._request(kind)
            problem = self._served.problem(wanted, rates)
            for engine in ENGINES:
                _solve_twice(problem, options.gap or _USUAL_GAP, engine)

    def _request(self, kind: AllocationKind) -> tuple[AllocationRequest, Wanted, FloatArray]:
        """The options, the program and the matrices of a request."""
        rates = np.tile(self._rates, (kind.matrices, kind.num_classes))
        options = AllocationRequest.model_validate({**kind.options, "rates": rates.tolist()})
        previous = np.tile(self._previous, (kind.num_classes, 1)) if kind.needs_previous else None
        return options, self._served.wanted_by(options, self._spec, previous), rates


def _solve_twice(problem: Problem, gap: float, engine: str) -> None:
    """Solve a problem from nothing and from there, by an engine that may not take it."""
    start = None
    with contextlib.suppress(InputError):
        for _ in ("cold", "warm"):
            start = pdhg.solve(
                problem, gap=gap, engine=engine, max_iterations=_ITERATIONS, warm_start=start
            )
