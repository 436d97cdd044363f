"""The parts of a history through Ray Data: streamed to processes that each hold the network once."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from teal.bulk import Allocated, Bulk
from teal.config import AllocateConfig
from teal.distributed.cluster import cause, connected, require_units, units
from teal.errors import InputError
from teal.parallel import limit_threads

_AGAIN = 3  # restarts of a process, and how often a part is tried again: one that kills it would do so for ever
_CPUS = 0.5  # of a process: with whole ones none would be left for what Ray Data does beside them


class _Worker:
    """One process: the network is loaded once, then part after part is worked on."""

    def __init__(self, config: AllocateConfig, threads: int, folder: str) -> None:
        os.chdir(folder)  # of the command: Ray gives each process one of its own
        limit_threads(threads)
        self._bulk = Bulk(config)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        part = int(row["part"])
        found = self._bulk.work(part)
        return {"part": part, "found": json.dumps([dataclasses.asdict(one) for one in found])}


def allocate(config: AllocateConfig, parts: Sequence[int]) -> Iterator[tuple[int, list[Allocated]]]:
    """Work on some parts, in as many processes as ``config.workers`` says; each as it is done, in any order.

    Raises:
        SolverError: a process died again and again; InputError: what one of them met.
    """
    # Else Ray warns of how Ray Data starts its processes.
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
        # One block a part: blocks are what Ray Data hands out, and makes again when a process dies.
        asked = data.from_items([{"part": part} for part in parts], override_num_blocks=len(parts))
        worked = asked.map(
            _Worker,
            fn_constructor_args=(settings, max(1, cpus // workers), str(Path.cwd())),
            compute=data.ActorPoolStrategy(size=workers),
            num_cpus=_CPUS,
            num_gpus=1 if on_gpu else 0,
            max_restarts=_AGAIN,
            max_task_retries=_AGAIN,
        )
        try:
            for row in worked.iter_rows():
                yield int(row["part"]), [Allocated(**one) for one in json.loads(row["found"])]
        except (ray.exceptions.RayError, InputError) as error:
            raise cause(error, f"allocating on Ray, after {_AGAIN} restarts of a process") from None
