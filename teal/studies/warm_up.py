"""`teal warm-up`, and what other commands compile before they begin."""

from __future__ import annotations

from collections.abc import Callable

from tqdm import tqdm

from teal.config import WarmUpConfig
from teal.evaluation.warm_up import is_warm, num_tasks, warm_up


def run_warm_up(config: WarmUpConfig) -> None:
    """Compile everything, with progress."""
    _run(everything=True, workers=config.workers)


def compile_first(notify: Callable[[str], None]) -> None:
    """Compile what a first solve needs, unless that was done before; announced, since it takes a while."""
    if not is_warm():
        notify("compiling for this machine, about 12 s, once (teal warm-up compiles everything ahead)")
        _run(everything=False, workers=0)


def _run(*, everything: bool, workers: int) -> None:
    with tqdm(total=num_tasks(everything=everything), desc="compiling", unit="part") as bar:
        for _ in warm_up(everything=everything, workers=workers):
            bar.update()
