"""Functions called in processes of their own, started afresh: threads of torch and Numba do not
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
    """Call ``function(*call)`` for each call; yields the number of each one that is done, in any
    order.

    Where the iteration ends early, by Ctrl-C for instance, the calls that have begun finish and no
    others begin.

    Args:
        function: function of a module, so that a process can import it.
        calls: the arguments of each call.
        workers: processes; 0 for one per core.
        threads: threads of each process; 0 for no limit.

    Raises:
        Exception: what a call has raised.
    """
    if not calls:
        return
    pool = ProcessPoolExecutor(
        min(len(calls), workers or os.cpu_count() or 1),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(threads,),
    )
    try:
        numbers = {pool.submit(function, *call): number for number, call in enumerate(calls)}
        for done in as_completed(numbers):
            done.result()
            yield numbers[done]
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(threads: int) -> None:
    ignore_interrupts()
    if threads:
        limit_threads(threads)
