"""Compiles the kernels ahead of their first use: each task calls some of them on a network of three nodes.

Numba keeps what it compiles on disk, for this machine and this version of the sources.  Compilation holds a lock, so
that tasks run in processes, two at a time on two cores.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from teal.network import PathMethod, PathWeight, all_pairs, compute_paths
from teal.problem import Allocation, all_paths_bound, assess
from teal.runtime.parallel import on_all_threads
from teal.runtime.processes import call_all
from teal.runtime.storage import cache_dir, content_key
from teal.solvers.pdhg import LANES
from teal.solvers.pdhg.fused.rehearsal import rehearse, rehearse_checks, three_nodes
from teal.solvers.pdhg.scenarios.solver import solve_scenarios

_TASKS: dict[str, Callable[[], None]] = {}
_FIRST = ("paths", "engine")  # what a first solve needs


def _task(function: Callable[[], None]) -> Callable[[], None]:
    _TASKS[function.__name__.strip("_").replace("_", " ")] = function
    return function


# The first two take about as long as each other: each begins with what the other one comes to last.
@_task
def _engine() -> None:
    rehearse(1, torch.float32)
    problem = three_nodes(carries_all=False, batch=1)
    all_paths_bound(problem, torch.ones_like(problem.capacity))


@_task
def _paths() -> None:
    problem = three_nodes(carries_all=False, batch=1)
    rehearse_checks(problem)
    compute_paths(problem.topology, all_pairs(problem.topology), num_paths=2, cache=False)
    splits, prices = problem.even_splits, torch.ones_like(problem.capacity)
    assess(problem, Allocation.of_batch(splits, prices, 0.0))


@_task
def _engine_for_many_matrices() -> None:
    for width in LANES[1:]:
        for same_capacity in (True, False):
            rehearse(width, torch.float32, same_capacity=same_capacity)


@_task
def _engine_for_large_networks() -> None:
    rehearse(1, torch.float32, on_all=True, is_sampled=True)


@_task
def _engine_for_many_matrices_of_large_networks() -> None:
    for width in LANES[1:]:
        rehearse(width, torch.float32, on_all=True, is_sampled=True)


@_task
def _engine_in_double_precision() -> None:
    for width in LANES:
        rehearse(width, torch.float64)


@_task
def _engine_in_double_precision_for_large_networks() -> None:
    for width in LANES:
        rehearse(width, torch.float64, on_all=True)


@_task
def _paths_of_large_networks() -> None:
    with on_all_threads():
        _paths()


@_task
def _paths_by_weight() -> None:
    topology = three_nodes(carries_all=False, batch=1).topology
    for on_all in (False, True):
        with on_all_threads(on_all):
            compute_paths(topology, weight=PathWeight.LATENCY, cache=False)
            compute_paths(topology, method=PathMethod.YEN, cache=False)


@_task
def _scenarios() -> None:
    for on_all in (False, True):
        for count in LANES:
            with on_all_threads(on_all):
                solve_scenarios(three_nodes(carries_all=True, batch=count), gap=1e-9, max_iterations=8)


@_task
def _price_gnn() -> None:
    _solve_by("price-gnn")


@_task
def _flow_gnn() -> None:
    _solve_by("teal")


def _solve_by(scheme: str) -> None:
    from teal.schemes import make_scheme

    problem = three_nodes(carries_all=False, batch=1)
    for on_all in (False, True):
        with on_all_threads(on_all):
            make_scheme(scheme).solve(problem)


def num_tasks(*, everything: bool) -> int:
    """Number of tasks."""
    return len(_TASKS if everything else _FIRST)


def warm_up(*, everything: bool, workers: int = 0) -> Iterator[str]:
    """Compile what is missing; yields the name of each task that is done.

    Args:
        everything: all kernels of the CPU; otherwise those of a first solve.
        workers: processes; 0 for one per core.
    """
    names = list(_TASKS) if everything else list(_FIRST)
    yield from (names[done] for done in call_all(run_task, [(name,) for name in names], workers=workers))
    for done in {everything, False}:
        _stamp(everything=done).touch()


def is_warm(*, everything: bool = False) -> bool:
    """Whether a first solve of this version on this machine has compiled before, or all kernels."""
    return _stamp(everything=everything).exists()


def run_task(name: str) -> None:
    """Call the kernels of one task."""
    _TASKS[name]()


def _stamp(*, everything: bool) -> Path:
    """An empty file beside Numba's files, that says that these sources have been compiled on this machine."""
    import numba

    package = Path(__file__).parents[1]
    stamps = np.array([source.stat().st_mtime_ns for source in sorted(package.rglob("*.py"))])
    key = content_key(stamps, numba.__version__, platform.python_version(), platform.node())
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or package / "__pycache__")
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):  # an installation of another user: Numba too has a folder elsewhere then
        folder = cache_dir("kernels")
    return folder / f"compiled-{key[:32]}{'-all' if everything else ''}"
