"""`teal warm-up`, and what other commands compile before they begin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from tqdm import tqdm

from teal.config import WarmUpConfig
from teal.evaluation.warm_up import is_warm, num_tasks, warm_up


def run_warm_up(config: WarmUpConfig) -> None:
    """Compile everything, with progress."""
    _run(everything=True, workers=config.workers)


def compile_first(notify: Callable[[str], None], *, everything: bool = False) -> None:
    """Compile what a first solve needs, unless that was done before; announced, since it takes a while.

    Args:
        notify: called with the announcement.
        everything: all kernels: of a service, which could not be asked anything while it compiles.
    """
    if is_warm(everything=everything):
        return
    takes = "two minutes" if everything else "12 s"
    notify(f"compiling for this machine, about {takes}, once (teal warm-up compiles everything ahead)")
    if everything:  # in a process that ends: its helpers would stay beside a service
        subprocess.run([sys.executable, "-m", "teal", "warm-up"], stdout=subprocess.DEVNULL, check=True)
    else:
        _run(everything=False, workers=0)


def _run(*, everything: bool, workers: int) -> None:
    with tqdm(total=num_tasks(everything=everything), desc="compiling", unit="part") as bar:
        for _ in warm_up(everything=everything, workers=workers):
            bar.update()
