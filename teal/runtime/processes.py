"""Function calls in a pool of processes, which are spawned, since threads of torch and Numba do not
survive a fork.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from teal.runtime.interrupts import ignore_interrupts
from teal.runtime.parallel import limit_threads


def call_all(
    function: Callable[..., None],
    calls: Sequence[tuple[Any, ...]],
    *,
    workers: int = 0,
    threads: int = 0,
) -> Generator[int, None, None]:
    """Call ``function(*call)`` for each call in a pool of processes; yield the index of each
    completed call, in the order of completion.

    If the iteration ends early, as by Ctrl-C, running calls finish and no others start.

    Args:
        function: module-level function, so that processes can import it.
        calls: arguments of each call.
        workers: number of processes; 0 for one per core.
        threads: threads of each process; 0 for no limit.

    Raises:
        Exception: exception of a call.
    """
    if not calls:
        return
    pool = ProcessPoolExecutor(
        min(len(calls), workers or os.cpu_count() or 1),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_initialise_worker,
        initargs=(threads,),
    )
    try:
        call_index = {pool.submit(function, *call): index for index, call in enumerate(calls)}
        for future in as_completed(call_index):
            future.result()
            yield call_index[future]
    finally:
        pool.shutdown(cancel_futures=True)


def _initialise_worker(threads: int) -> None:
    """Initialise a process of the pool: ignore Ctrl-C, which the parent handles, and limit the
    number of threads, 0 for no limit.
    """
    ignore_interrupts()
    if threads:
        limit_threads(threads)
