"""Calls every kernel that a solve runs on three nodes first, so that none is compiled while a clock
runs.

A kernel is compiled when it is first called with arguments of new types, which takes seconds on a
machine that never did, and loaded from disk in a tenth of a second after that.
"""

from __future__ import annotations

import functools
import math
import time

import numpy as np
import torch

from teal.network import PathSet, Topology, Trie, all_pairs
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.runtime.interruptible import Deadline, complete
from teal.runtime.parallel import is_large, on_all_threads
from teal.solvers.pdhg.fused.demand_value import one_step
from teal.solvers.pdhg.fused.engine import FusedEngine, lanes_of
from teal.solvers.pdhg.fused.passes import InMemory, PathPasses, operations
from teal.solvers.pdhg.samples.start import SampledStart, is_faster
from teal.solvers.pdhg.search import Search

_REHEARSED_ITERATIONS = 8  # enough for a gap check, a restart and a refill
_ANY_SIZE = 1_000_000_000  # demands that a sample may be drawn from


def rehearse_for(problem: Problem, gap: float, dtype: torch.dtype) -> None:
    """Call what the CPU engine calls for a problem, unless this process has done so before.

    Args:
        problem: B matrices.
        gap: target.
        dtype: type of the splits in the iteration.
    """
    paths, batch = problem.paths, problem.batch
    widths = lanes_of(dtype)
    sizes = {min(batch, widths[-1]), batch % widths[-1]} - {0}
    for width in sorted({next(lanes for lanes in widths if lanes >= size) for size in sizes}):
        on_all = is_large(operations(paths.packed, width))
        rehearse(
            width,
            dtype,
            _of_same_kernels(problem),
            on_all=on_all,
            is_sampled=is_faster(paths, gap),
        )


def _of_same_kernels(problem: Problem) -> ObjectiveName:
    """The objective of :func:`rehearse` that runs the kernels which a problem runs."""
    if problem.utility is not None:
        return ObjectiveName.PROPORTIONAL_FAIR
    carries_all = (
        problem.objective.rules.carries_all or problem.objective.name == ObjectiveName.MAX_MIN
    )
    return ObjectiveName.MAX_LINK_UTILISATION if carries_all else ObjectiveName.TOTAL_FLOW


@functools.cache
def rehearse(
    width: int,
    dtype: torch.dtype,
    objective: ObjectiveName = ObjectiveName.TOTAL_FLOW,
    *,
    on_all: bool = False,
    is_sampled: bool = False,
) -> None:
    """Call every kernel of one kind of program.

    Args:
        width: lanes.
        dtype: type of the splits in the iteration.
        objective: total_flow, max_link_utilisation or proportional_fair.
        on_all: whether kernels run on all threads.
        is_sampled: whether the engine starts from samples.
    """
    problem = three_nodes(objective, batch=width)
    with on_all_threads(on_all):
        state = None
        for _ in ("cold", "warm"):
            engine = FusedEngine(problem, state, dtype)
            search = Search(
                problem,
                engine,
                0.0,
                _REHEARSED_ITERATIONS,
                None,
                time.perf_counter(),
                may_stall=False,
            )
            state = search.run(math.inf, warm=state is not None).state
        if is_sampled:
            sampled = SampledStart(problem, engine, 1e-2, num_demands=_ANY_SIZE)
            complete(sampled.respond(torch.ones(problem.batch, dtype=torch.bool), Deadline()))
            sampled.correct()


def rehearse_checks(problem: Problem) -> None:
    """Call what gap checks call, and no iteration.

    Args:
        problem: B = 1, to maximise a value.
    """
    passes = PathPasses(
        problem.paths.packed,
        problem.paths.num_paths,
        1,
        (0,),
        one_step(np.ones(1)),
        False,
        np.float32,
        InMemory(),
    )
    passes.put_demand(problem.demand.numpy())
    capacity = problem.capacity[0].numpy()
    passes.measure(1 / capacity, np.zeros_like(capacity))
    passes.put_splits(problem.even_splits.numpy())
    passes.certify(np.zeros_like(capacity), is_repairing=True)
    passes.project_round(np.zeros_like(capacity), capacity, is_first=True, is_last=False)
    passes.keep([0])
    passes.best_splits()


def _paths_of_triangle(topology: Topology) -> PathSet:
    """The direct path and the one over the third node, of every pair: without the kernels of the
    path search.
    """
    number = {
        ends: link
        for link, ends in enumerate(zip(topology.link_source, topology.link_target, strict=True))
    }
    parent: list[int] = []
    link: list[int] = []
    leaf: list[list[int]] = []
    for source in range(3):
        x, y = (node for node in range(3) if node != source)
        first = len(parent)  # trie nodes of a source: to x, to y, over x to y, over y to x
        parent += [-1, -1, first, first + 1]
        link += [number[source, x], number[source, y], number[x, y], number[y, x]]
        leaf += [[first, first + 3], [first + 1, first + 2]]
    trie = Trie(
        np.array(parent, np.int32), np.array(link, np.int32), np.array([0, 4, 8, 12], np.int32)
    )
    demand_ptr = np.array([0, 2, 4, 6], np.int32)
    key = topology.graph_key()
    return PathSet(
        all_pairs(topology),
        np.array(leaf, np.int32),
        trie,
        demand_ptr,
        topology.num_links,
        key,
        key,
    )


def three_nodes(
    objective: ObjectiveName = ObjectiveName.TOTAL_FLOW,
    *,
    batch: int = 1,
) -> Problem:
    """A triangle with more demand than it can carry; see :func:`rehearse`."""
    source, target = np.array([0, 1, 2, 1, 2, 0], np.int32), np.array([1, 2, 0, 0, 1, 2], np.int32)
    topology = Topology(
        "rehearsal",
        ("a", "b", "c"),
        source,
        target,
        np.full(6, 2.0),
        np.ones(6),
        np.full((3, 2), np.nan),
    )
    paths = _paths_of_triangle(topology)
    demand = np.random.default_rng(0).uniform(0.5, 3, (batch, len(paths.pairs)))
    return Problem.create(topology, paths, objective, demand)
