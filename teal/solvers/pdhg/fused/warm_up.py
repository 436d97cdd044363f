"""Warm-up of the CPU engine: call every kernel of a solve on three nodes before a clock starts.

Numba compiles a kernel at the first call with new argument types, which takes seconds; later
processes load it from disk in a tenth of a second.  Entry points:
:func:`warm_up_kernels_for` (kernels of a problem) and :func:`warm_up_kernels` (kernels of one kind
of program).
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
from teal.solvers.pdhg.fused.demand_value import one_step
from teal.solvers.pdhg.fused.engine import FusedEngine, lanes_of
from teal.solvers.pdhg.fused.passes import InMemory, PathPasses
from teal.solvers.pdhg.samples.start import SampledStart, is_faster
from teal.solvers.pdhg.search import Search

# Enough for a gap check, a restart, and rounds that allocate unused capacity.
_WARM_UP_ITERATIONS = 8
# Number of demands that permits every sample size.
_UNLIMITED_DEMANDS = 1_000_000_000


def warm_up_kernels_for(problem: Problem, gap: float, dtype: torch.dtype) -> None:
    """Compile or load the kernels of the CPU engine for a problem, once per process.

    Args:
        problem: B matrices.
        gap: target of the relative gap between value and dual bound; with the size of the network
            it decides whether the engine starts from sampled demands.
        dtype: type of the splits in the iteration.
    """
    objective = _objective_with_same_kernels(problem)
    is_sampled = is_faster(problem.paths, gap)
    for width in _lane_counts_of(problem.batch, dtype):
        warm_up_kernels(width, dtype, objective, is_sampled=is_sampled)


@functools.lru_cache(maxsize=64)
def _lane_counts_of(batch: int, dtype: torch.dtype) -> tuple[int, ...]:
    """Return the numbers of lanes of the parts into which a batch is split, ascending.

    Args:
        batch: number of matrices.
        dtype: type of the splits in the iteration.
    """
    lane_counts = lanes_of(dtype)
    part_sizes = {min(batch, lane_counts[-1]), batch % lane_counts[-1]} - {0}
    return tuple(
        sorted(
            {
                next(num_lanes for num_lanes in lane_counts if num_lanes >= part_size)
                for part_size in part_sizes
            }
        )
    )


def _objective_with_same_kernels(problem: Problem) -> ObjectiveName:
    """Return total_flow, max_link_utilisation or proportional_fair, whichever uses the same kernels
    as the problem.
    """
    if problem.utility is not None:
        return ObjectiveName.PROPORTIONAL_FAIR
    carries_all = (
        problem.objective.rules.carries_all or problem.objective.name == ObjectiveName.MAX_MIN
    )
    return ObjectiveName.MAX_LINK_UTILISATION if carries_all else ObjectiveName.TOTAL_FLOW


@functools.cache
def warm_up_kernels(
    width: int,
    dtype: torch.dtype,
    objective: ObjectiveName = ObjectiveName.TOTAL_FLOW,
    *,
    is_sampled: bool = False,
) -> None:
    """Compile or load every kernel of one kind of program: solve a triangle cold, then warm.

    Args:
        width: number of lanes, the matrices solved side by side.
        dtype: type of the splits in the iteration.
        objective: total_flow, max_link_utilisation or proportional_fair.
        is_sampled: whether the engine starts from samples.
    """
    problem = three_nodes(objective, batch=width)
    state = None
    for _ in ("cold", "warm"):
        engine = FusedEngine(problem, state, dtype)
        # A target gap of 0, which no iteration reaches; no progress reports.
        search = Search(
            problem,
            engine,
            0.0,
            _WARM_UP_ITERATIONS,
            None,
            time.perf_counter(),
            may_stall=False,
        )
        state = search.run(math.inf, warm=state is not None).state
    if is_sampled:
        sampled = SampledStart(problem, engine, 1e-2, num_demands=_UNLIMITED_DEMANDS)
        complete(sampled.respond(torch.ones(problem.batch, dtype=torch.bool), Deadline()))
        sampled.correct()


def warm_up_checks(problem: Problem) -> None:
    """Compile or load the kernels of gap checks, but not those of iterations.

    Args:
        problem: one matrix (B = 1) of value maximisation.
    """
    # One matrix in one lane, with the value 1 of a Gbit/s, in which demand may be rejected.
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
    # Each pass of a gap check once: constants, certificate, projection, incumbent.
    passes.set_demand(problem.demand.numpy())
    capacity = problem.capacity[0].numpy()
    passes.measure(1 / capacity, np.zeros_like(capacity))
    passes.set_splits(problem.even_splits.numpy())
    passes.certify(np.zeros_like(capacity), is_repairing=True)
    passes.project_round(np.zeros_like(capacity), capacity, is_first=True, is_last=False)
    passes.keep([0])
    passes.best_splits()


def _paths_of_triangle(topology: Topology) -> PathSet:
    """Return two paths for every node pair of a triangle: the direct link, and over the third node.

    It does not call path search, which would compile further kernels.

    Args:
        topology: three nodes, with a link in each direction between every two of them.
    """
    link_index = {
        ends: link
        for link, ends in enumerate(zip(topology.link_source, topology.link_target, strict=True))
    }
    parent: list[int] = []
    link: list[int] = []
    leaf: list[list[int]] = []
    for source in range(3):
        x, y = (node for node in range(3) if node != source)
        # Trie nodes of a source: to x, to y, over x to y, over y to x.
        first_node = len(parent)
        parent += [-1, -1, first_node, first_node + 1]
        link += [link_index[source, x], link_index[source, y], link_index[x, y], link_index[y, x]]
        leaf += [[first_node, first_node + 3], [first_node + 1, first_node + 2]]
    # Four nodes per source.
    trie = Trie(
        np.array(parent, np.int32), np.array(link, np.int32), np.array([0, 4, 8, 12], np.int32)
    )
    # Two demands per source.
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
    """Create a program of a triangle with more demand than capacity, for warm-up solves.

    Args:
        objective: objective of the program.
        batch: number of random matrices.
    """
    source = np.array([0, 1, 2, 1, 2, 0], np.int32)
    target = np.array([1, 2, 0, 0, 1, 2], np.int32)
    # Capacities of 2 Gbit/s, latencies of 1 ms, no coordinates.
    topology = Topology(
        "warm-up",
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
