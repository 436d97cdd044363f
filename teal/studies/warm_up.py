"""`teal warm-up`, and what other commands compile before they begin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Sequence

from tqdm import tqdm

from teal.config import WarmUpConfig
from teal.evaluation.warm_up import all_tasks, first_tasks, missing, uses_all_threads, warm_up

# As measured on two cores: seconds that a task adds, two at a time; one of the form for all threads; and all tasks.
_TASK_S, _LARGE_TASK_S, _ALL_TAKE = 4, 9, "a minute or two"


def run_warm_up(config: WarmUpConfig) -> None:
    """Compile everything, with progress."""
    _run(all_tasks(), config.workers)


def compile_first(
    notify: Callable[[str], None],
    num_demands: int = 0,
    schemes: Collection[str] = (),
    further: Collection[str] = (),
) -> None:
    """Compile what a first solve needs, unless that was done before; announced, since it takes a while.

    Args:
        notify: called with the announcement.
        num_demands: D, at most; 0 for a small network.
        schemes: specifications of the schemes that solve.
        further: names of tasks beside those of a first solve.
    """
    names = missing((*further, *first_tasks(num_demands, schemes)))
    if names:
        takes = sum(_LARGE_TASK_S if uses_all_threads(name) else _TASK_S for name in names)
        notify(f"compiling for this machine, once, about {takes} s on two cores (teal warm-up compiles all ahead)")
        _run(names, 0)


def compile_all_first(notify: Callable[[str], None]) -> None:
    """Compile all kernels: for a service, which could not be asked anything while it compiles."""
    if missing(all_tasks()):
        notify(f"compiling all kernels for this machine, {_ALL_TAKE}, once")
        # In a process that ends: its helpers would stay beside a service.
        subprocess.run([sys.executable, "-m", "teal", "warm-up"], stdout=subprocess.DEVNULL, check=True)


def _run(names: Sequence[str], workers: int) -> None:
    with tqdm(total=len(names), desc="compiling", unit="part") as bar:
        for name in warm_up(names, workers=workers):
            bar.set_postfix_str(name, refresh=False)
            bar.update()
