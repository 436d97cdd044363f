"""Compilation of kernels ahead of their first use, in tasks.

A task calls some kernels on a network of three nodes; they are compiled and stored on disk
(:mod:`teal.runtime.kernel_cache`).  Numba compiles under a lock, so that tasks run in processes, as
many at a time as there are cores.  A single solve of a small network compiles nothing: its kernels
run in the Python interpreter.  Packages announce further tasks by an entry point in the group
``teal.warm_up``, a mapping from names to functions.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import torch

from teal.app.command import Notify, Outcome
from teal.app.settings import WarmUpConfig
from teal.app.table import Column, Table
from teal.app.text import digits, percent
from teal.network import PathMethod, PathWeight, all_pairs, compute_paths
from teal.objectives import ObjectiveName
from teal.problem import Allocation, all_paths_bound, assess
from teal.runtime import shipped_kernels
from teal.runtime.kernel_cache import folder, interpreting
from teal.runtime.kernel_fingerprint import Processor, machine_fingerprint
from teal.runtime.processes import call_all
from teal.runtime.progress import progress_bar
from teal.runtime.storage import content_key
from teal.solvers import columns
from teal.solvers.calibration import (
    NEAR,
    Calibration,
    calibrate,
    require_networks,
    share_near_fastest,
)
from teal.solvers.interior import engine as interior
from teal.solvers.pdhg import LANES, lanes_of
from teal.solvers.pdhg.fused.warm_up import three_nodes, warm_up_checks, warm_up_kernels
from teal.solvers.pdhg.scenarios.solver import solve_scenarios
from teal.solvers.short_paths import preferred
from teal.solvers.simplex import engine as simplex
from teal.spec import Registry

_TASKS: dict[str, Callable[[], None]] = {}
# Tables of further tasks, by the name of their package.
_TASKS_OF_PACKAGES: Registry[Mapping[str, Callable[[], None]]] = Registry(
    "warm-up tasks", "teal.warm_up"
)
# Tasks of the kernels that a first solve needs, for a small and for a large network.
_FIRST_TASKS = ("engine", "paths", "interior points")
_FIRST_TASKS_OF_LARGE = ("engine", "paths", "samples")
# Tasks of the schemes that have kernels.
_TASK_OF_SCHEME = {"teal": "flow gnn", "price-gnn": "price gnn"}
# Number of demands from which a first solve uses PDHG with sampled starts instead of interior
# points.
_LARGE_DEMANDS = 10_000
# Maximum number of demands for which interpreted kernels and HiGHS take less time than compilation
# (8 s on two cores): measured 0.5 s with 132 demands (B4), 1.1 s with 462 (GEANT), 12 s with 2,450
# (Germany50).
_INTERPRETED_DEMANDS = 1_000
# One of these texts is in every source file with kernels.
_KERNEL_IMPORTS = (b"from teal.runtime.parallel import", b"from teal.kernels import")


def _task(function: Callable[[], None]) -> Callable[[], None]:
    """Register a function as a task, named like the function with spaces for underscores; return
    the function.
    """
    _TASKS[function.__name__.strip("_").replace("_", " ")] = function
    return function


# The first two tasks take about the same time, and run at once.  They compile their common kernels
# in opposite orders, so that neither waits for the other.
@_task
def _engine() -> None:
    """Call the kernels of PDHG for one matrix, and of the bound over all paths."""
    warm_up_kernels(1, torch.float32)
    problem = three_nodes()
    all_paths_bound(problem, torch.ones_like(problem.capacity))


@_task
def _paths() -> None:
    """Call the kernels of path computation, column generation and checks of allocations."""
    problem = three_nodes()
    warm_up_checks(problem)
    columns.warm_up_kernels()
    preferred(problem, problem.even_splits, "latency")
    compute_paths(problem.topology, all_pairs(problem.topology), num_paths=2, cache=False)
    splits = problem.even_splits
    prices = torch.ones_like(problem.capacity)
    assess(problem, Allocation.of_batch(splits, prices, 0.0))


@_task
def _interior_points() -> None:
    """Call the kernels of the interior-point method for programs that run on one thread."""
    interior.warm_up_all(is_large=False)


@_task
def _interior_points_for_large_networks() -> None:
    """Call the kernels of the interior-point method for programs that run on all threads."""
    interior.warm_up_all(is_large=True)


@_task
def _simplex_method() -> None:
    """Call the kernels of the dual simplex method."""
    simplex.warm_up()


@_task
def _column_generation() -> None:
    """Call the kernels of the master program of column generation."""
    columns.warm_up_master()


@_task
def _engine_for_8_matrices() -> None:
    """Call the kernels of PDHG for 8 matrices side by side, in float32."""
    warm_up_kernels(LANES[1], torch.float32)


@_task
def _engine_for_16_matrices() -> None:
    """Call the kernels of PDHG for 16 matrices side by side, in float32."""
    warm_up_kernels(LANES[2], torch.float32)


@_task
def _engine_in_double_precision() -> None:
    """Call the kernels of PDHG in float64, for every number of matrices side by side."""
    for width in lanes_of(torch.float64):
        warm_up_kernels(width, torch.float64)


@_task
def _engine_for_fair_shares() -> None:
    """Call the kernels of PDHG for concave utilities, in float64."""
    for width in lanes_of(torch.float64):
        warm_up_kernels(width, torch.float64, ObjectiveName.PROPORTIONAL_FAIR)


@_task
def _scenarios() -> None:
    """Call the kernels that solve scenarios together, for the maximum link utilisation and for the
    CVaR of the total flow.
    """
    for count in lanes_of(torch.float64):
        problem = three_nodes(ObjectiveName.MAX_LINK_UTILISATION, batch=count)
        solve_scenarios(problem, gap=1e-9, max_iterations=8)
    solve_scenarios(three_nodes(ObjectiveName.TOTAL_FLOW, batch=2), tail=0.5, max_iterations=8)


@_task
def _samples() -> None:
    """Call the kernels of PDHG that start from a sample of the demands, for one matrix."""
    warm_up_kernels(1, torch.float32, is_sampled=True)


@_task
def _samples_for_many_matrices() -> None:
    """Call the kernels of PDHG that start from a sample of the demands, for several matrices side
    by side.
    """
    for width in LANES[1:]:
        warm_up_kernels(width, torch.float32, is_sampled=True)


@_task
def _samples_for_fair_shares() -> None:
    """Call the kernels of PDHG that start from a sample of the demands, for concave utilities."""
    for width in lanes_of(torch.float64):
        warm_up_kernels(width, torch.float64, ObjectiveName.PROPORTIONAL_FAIR, is_sampled=True)


@_task
def _paths_by_weight() -> None:
    """Call the kernels of path computation for every method and weight of shortest paths."""
    topology = three_nodes().topology
    for method, weight in itertools.product(PathMethod, PathWeight):
        compute_paths(topology, method=method, weight=weight, cache=False)


@_task
def _price_gnn() -> None:
    """Call the kernels of the scheme price-gnn."""
    _solve_by("price-gnn")


@_task
def _flow_gnn() -> None:
    """Call the kernels of the scheme teal, the flow GNN."""
    _solve_by("teal")


def _solve_by(scheme: str) -> None:
    """Solve a problem of three nodes by a scheme, which calls its kernels."""
    from teal.schemes import make_scheme

    make_scheme(scheme).solve(three_nodes())


def all_tasks() -> tuple[str, ...]:
    """Return the names of all tasks; together they compile all kernels of the CPU."""
    return tuple(_tasks())


@functools.cache
def _tasks() -> dict[str, Callable[[], None]]:
    """Return all tasks by name: those above, then those of packages that can be imported."""
    tasks = dict(_TASKS)
    for package in _TASKS_OF_PACKAGES.names():
        with contextlib.suppress(ImportError):
            tasks |= _TASKS_OF_PACKAGES[package]
    return tasks


def first_tasks(num_demands: int = 0, schemes: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of the tasks that a first solve needs.

    Args:
        num_demands: number of demands; 0 for a small network.
        schemes: specifications of the schemes that solve.
    """
    scheme_tasks = (
        _TASK_OF_SCHEME[name]
        for name in (scheme.partition(":")[0] for scheme in schemes)
        if name in _TASK_OF_SCHEME
    )
    # The longest tasks first, so that none of them starts last.
    return (
        *scheme_tasks,
        *(_FIRST_TASKS_OF_LARGE if num_demands >= _LARGE_DEMANDS else _FIRST_TASKS),
    )


def warm_up(names: Sequence[str], *, workers: int = 0) -> Iterator[str]:
    """Compile the kernels of some tasks in parallel processes; yield the name of each finished
    task.

    Args:
        names: names of the tasks.
        workers: number of processes; 0 for one per core.
    """
    for index in call_all(run_task, [(name,) for name in names], workers=workers):
        yield names[index]
        # Mark the task as done, for this machine and these sources.
        cache_folder = folder()
        if cache_folder is not None:
            (cache_folder / _marker(names[index])).touch()


def missing(names: Sequence[str] = _FIRST_TASKS) -> list[str]:
    """Return the names of the tasks whose kernels have yet to be compiled: they are neither in the
    cache folder nor in the package.  Without a cache folder, where compiled kernels would be lost,
    the result is [].
    """
    cache_folder = folder()
    return (
        [] if cache_folder is None else [name for name in names if not _is_done(name, cache_folder)]
    )


def is_warm(names: Sequence[str] = _FIRST_TASKS) -> bool:
    """Return whether the kernels of all these tasks are compiled, in the cache folder or in the
    package.
    """
    cache_folder = folder()
    return all(_is_done(name, cache_folder) for name in names)


def _is_done(task: str, cache_folder: Path | None) -> bool:
    """Return whether the package or the cache folder, if there is one, has the marker of a task."""
    shipped_markers = (_marker(task, target) for target in shipped_kernels.processors())
    return any(map(shipped_kernels.has, shipped_markers)) or (
        cache_folder is not None and (cache_folder / _marker(task)).exists()
    )


def run_task(name: str) -> None:
    """Call the kernels of the task with this name, which compiles the missing ones."""
    _tasks()[name]()


@contextlib.contextmanager
def kernels_for_one_solve(num_demands: int, compile_first: Callable[[int], None]) -> Iterator[None]:
    """Prepare the kernels for one solve in the block: compile them, or run them in the Python
    interpreter if the network is so small that this is faster.

    Args:
        num_demands: number of demands.
        compile_first: function that compiles the kernels of a first solve with so many demands.
    """
    is_interpreted = num_demands <= _INTERPRETED_DEMANDS and not is_warm()
    if not is_interpreted:
        compile_first(num_demands)
    with interpreting() if is_interpreted else contextlib.nullcontext():
        yield


def _marker(task: str, target: Processor | None = None) -> str:
    """Return the name of the empty file in the cache folder that marks a task as done.

    Args:
        task: name of the task.
        target: processor of its kernels; None for this machine's.
    """
    packages = ("teal",) if task in _TASKS else ("teal", *_packages_of_tasks())
    return f"{task.replace(' ', '-')}.{_sources_hash(packages, target)[:32]}.done"


@functools.cache
def _packages_of_tasks() -> tuple[str, ...]:
    """Return the packages whose kernels tasks of packages may call: those that announce tasks, and
    those with parts of the service.
    """
    points = (*entry_points(group="teal.warm_up"), *entry_points(group="teal.service"))
    return tuple(sorted({point.module.partition(".")[0] for point in points}))


@functools.cache
def _sources_hash(packages: tuple[str, ...], target: Processor | None) -> str:
    """Return the hexadecimal SHA-256 of all source files with kernels and of a processor.

    Args:
        packages: names of the packages with the files; those that are not installed have none.
        target: processor of the kernels; None for this machine's.
    """
    specs = filter(None, map(importlib.util.find_spec, packages))
    folders = [folder for spec in specs for folder in spec.submodule_search_locations or ()]
    files = (file for folder in folders for file in sorted(Path(folder).rglob("*.py")))
    file_contents = (file.read_bytes() for file in files)
    kernel_sources = [
        source for source in file_contents if any(text in source for text in _KERNEL_IMPORTS)
    ]
    return content_key(kernel_sources, machine_fingerprint(target))


def run_warm_up(config: WarmUpConfig) -> None:
    """Compile all kernels of the CPU, in as many processes as the settings say, with a progress
    bar.
    """
    _run_with_bar(all_tasks(), config.workers)


def compile_first(
    notify: Callable[[str], None],
    num_demands: int = 0,
    schemes: Collection[str] = (),
    extra_tasks: Collection[str] = (),
) -> None:
    """Compile the kernels of a first solve, unless they are compiled already, with a message and a
    progress bar.

    Args:
        notify: prints a message.
        num_demands: maximum number of demands; 0 for a small network.
        schemes: specifications of the schemes that solve.
        extra_tasks: names of further tasks to run.
    """
    names = missing((*extra_tasks, *first_tasks(num_demands, schemes)))
    if names:
        notify(
            f"compiling for this machine, once: {len(names)} groups of kernels (teal warm-up "
            "compiles all of them in advance)"
        )
        _run_with_bar(names, 0)


def compile_all_first(notify: Callable[[str], None]) -> None:
    """Compile all kernels that have yet to be compiled, before a service starts, so that no request
    waits for compilation.

    Args:
        notify: prints a message if there are any.
    """
    names = missing(all_tasks())
    if names:
        notify(f"compiling all kernels for this machine, once: {len(names)} groups of kernels")
        # In a separate process, so that its helper processes end with it.
        subprocess.run(
            [sys.executable, "-m", "teal", "warm-up"], stdout=subprocess.DEVNULL, check=True
        )


def _run_with_bar(names: Sequence[str], workers: int) -> None:
    """Run the tasks ``names`` in ``workers`` processes (0: one per core), with a progress bar."""
    with progress_bar(total=len(names), desc="compiling", unit="part") as bar:
        for name in warm_up(names, workers=workers):
            bar.set_postfix_str(name, refresh=False)
            bar.update()


def warm_up_outcome(config: WarmUpConfig, _: Notify) -> Outcome:
    """Run `teal warm-up`: compile all kernels, calibrate the cost model if asked; return lines that
    say so.
    """
    if config.calibrate:
        require_networks()
    run_warm_up(config)
    text = "all kernels are compiled for this machine"
    if not config.calibrate:
        return Outcome(text=text, data={"compiled": True})
    calibration = calibrate()
    return Outcome(
        text=f"{text}\n{_describe(calibration)}",
        tables=[_factor_table(calibration)] if calibration.factors else [],
        data={"compiled": True, "calibration": calibration.to_json()},
    )


def _describe(calibration: Calibration) -> str:
    """Return lines of text: how near the choices are to the fastest engine, and the file."""
    num_networks = len({case.network for case in calibration.cases})
    share_before, share_after = (
        percent(share_near_fastest(ratios)) for ratios in (calibration.before, calibration.after)
    )
    measured = (
        f"{len(calibration.cases)} programs on {num_networks} networks: the chosen engine is "
        f"within {NEAR:g} times\nof the fastest in {share_before} of them without "
        f"factors, in {share_after} "
        "with factors fitted on other networks"
    )
    if calibration.path is None:
        return f"{measured}\nfactors would not improve the choice on this machine: none are stored"
    return f"{measured}\nfactors for this machine: {calibration.path}"


def _factor_table(calibration: Calibration) -> Table:
    """Return the table of the factors."""
    columns = [
        Column("engine, program, start", lambda row: row[0], is_name=True),
        Column("measured / predicted", lambda row: row[1], digits(3)),
    ]
    return Table("Factors on predicted seconds", columns, list(calibration.factors.items()))
