"""Programs solved side by side, in processes that stay for the next matrix."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial

from baselines.linear_program import LinearProgram, LpSettings, LpSolution, solve_program


def solve_all(programs: Sequence[LinearProgram], how: LpSettings, workers: int = 0) -> list[LpSolution]:
    """Solve ``programs``, at most ``workers`` at a time; 0 for one a core, 1 for this process alone.

    Raises:
        SolverError: of the solver.
    """
    workers = workers or os.cpu_count() or 1
    if min(workers, len(programs)) <= 1:
        return [solve_program(program, how) for program in programs]
    share = max(1, len(programs) // (4 * workers))
    return list(_pool(workers).map(partial(solve_program, how=how), programs, chunksize=share))


@lru_cache(maxsize=1)
def _pool(workers: int) -> ProcessPoolExecutor:
    # Not forked from here: threads of torch and Numba do not survive that.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["baselines.linear_program"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_leave_interrupts_to_the_parent)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
