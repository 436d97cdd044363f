"""Linear programs solved in parallel, by worker processes that persist between matrices."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial

from baselines.linear_program import LinearProgram, LpSettings, LpSolution
from baselines.lp_solver import solve_program
from teal.runtime.interrupts import ignore_interrupts


def solve_all(
    programs: Sequence[LinearProgram], settings: LpSettings, workers: int = 0
) -> list[LpSolution]:
    """Solve independent linear programs in parallel; return the solutions in their order.

    Args:
        programs: programs to solve.
        settings: settings of the LP solver.
        workers: number of processes that solve at the same time; 0 for one per core, 1 for the
            calling process only.

    Raises:
        SolverError: the LP solver cannot run.
    """
    workers = workers or os.cpu_count() or 1
    if min(workers, len(programs)) <= 1:
        return [solve_program(program, settings) for program in programs]
    # Four chunks for each worker: few transfers, and an even load.
    chunk_size = max(1, len(programs) // (4 * workers))
    return list(
        _pool(workers).map(
            partial(solve_program, settings=settings), programs, chunksize=chunk_size
        )
    )


@lru_cache(maxsize=1)
def _pool(workers: int) -> ProcessPoolExecutor:
    """Return the pool of worker processes; it is restarted if the number of workers changes."""
    # A forkserver, as the threads of torch and Numba do not survive a fork of this process.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["baselines.linear_program"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=ignore_interrupts)
