"""`teal allocate` through Ray Data: parts are handed to processes, each of which has loaded the network once."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from teal.allocation.allocate import AllocatedMatrix, HistoryAllocator
from teal.allocation.settings import AllocateConfig
from teal.cluster.cluster import cause, connected, require_units, units
from teal.errors import InputError
from teal.runtime.parallel import limit_threads

_MAX_RETRIES = 3  # restarts of a process, and retries of a part, which may be what kills the process
_CPUS_PER_WORKER = 0.5  # that a process reserves; if all CPUs were reserved, Ray Data itself could not run


class _Worker:
    """One process: it loads the network once, then allocates one part after another."""

    def __init__(self, config: AllocateConfig, threads: int, folder: str) -> None:
        os.chdir(folder)  # that of the command, because relative paths refer to it; Ray starts processes elsewhere
        limit_threads(threads)
        self._allocator = HistoryAllocator(config)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        part = int(row["part"])
        matrices = self._allocator.allocate_part(part)
        return {"part": part, "matrices": json.dumps([dataclasses.asdict(matrix) for matrix in matrices])}


def allocate(config: AllocateConfig, parts: Sequence[int]) -> Iterator[tuple[int, list[AllocatedMatrix]]]:
    """Allocate ``parts`` in ``config.workers`` processes; yields each part when it is done, in any order.

    Raises:
        SolverError: a process died more than three times.
        InputError: raised by one of the processes.
    """
    # Without it, Ray prints warnings about the way in which Ray Data starts its processes.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with connected() as ray:
        import ray.data as data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.raise_original_map_exception = True
        cpus, gpus = units(ray, "CPU"), units(ray, "GPU")
        on_gpu = config.device == "cuda" or (config.device == "auto" and gpus > 0)
        if on_gpu:
            require_units(ray, "GPU", config.workers or 1, "--workers")
        workers = min(config.workers or (gpus if on_gpu else cpus), len(parts))
        settings = dataclasses.replace(config, out=config.out.resolve(), device="cuda" if on_gpu else "cpu")
        # One block a part: Ray Data hands out blocks, and repeats those of a process that died.
        dataset = data.from_items([{"part": part} for part in parts], override_num_blocks=len(parts))
        with warnings.catch_warnings():
            # Ray warns of arguments without a name of their own; for restarts it has no other.
            warnings.filterwarnings("ignore", message=".*ray_remote_args")
            allocated = dataset.map(
                _Worker,
                fn_constructor_args=(settings, max(1, cpus // workers), str(Path.cwd())),
                compute=data.ActorPoolStrategy(size=workers),
                num_cpus=_CPUS_PER_WORKER,
                num_gpus=1 if on_gpu else 0,
                max_restarts=_MAX_RETRIES,
                max_task_retries=_MAX_RETRIES,
            )
        try:
            for row in allocated.iter_rows():
                yield int(row["part"]), [AllocatedMatrix(**matrix) for matrix in json.loads(row["matrices"])]
        except (ray.exceptions.RayError, InputError) as error:
            raise cause(error, f"allocating on Ray, after {_MAX_RETRIES} restarts of a process") from None
