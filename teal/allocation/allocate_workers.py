"""`teal allocate` through Ray: parts are handed to processes, each of which has loaded the network
once.

Ray Data would do the same; its executor and further processes took 10 of 39 CPU s for 150 matrices
of B4.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from teal.allocation.allocate import AllocatedMatrix
from teal.allocation.allocate_files import PartFiles
from teal.allocation.settings import AllocateConfig
from teal.app.instance import suits_gpu
from teal.cluster.cluster import cause, connected, require_units, units
from teal.errors import InputError
from teal.network import PathSet
from teal.runtime.parallel import limit_threads

# Maximum restarts of a process, and retries of a part, which may be what kills the process.
_MAX_RETRIES = 3


class _Worker:
    """One process: it loads the network once, then allocates one part after another."""

    def __init__(self, config: AllocateConfig, threads: int, folder: str) -> None:
        # Relative paths refer to the command's folder; Ray starts processes elsewhere.
        os.chdir(folder)
        limit_threads(threads)
        self._config = config

    @functools.cached_property
    def _files(self) -> PartFiles:
        # Not in the constructor, of whose errors Ray keeps the text alone.
        return PartFiles(self._config)

    def allocate(self, part: int) -> tuple[int, list[AllocatedMatrix]]:
        """The part's number, and figures of its matrices."""
        return part, self._files.write_part(part)


def _is_on_gpu(config: AllocateConfig, paths: PathSet, gpus: int, threads: int) -> bool:
    """Whether the processes have a GPU each.

    Args:
        config: the settings.
        paths: the candidate paths.
        gpus: number of GPUs of the cluster.
        threads: threads that a process has on the CPU.
    """
    if config.device == "auto":
        return gpus > 0 and suits_gpu(config, paths, threads)
    return config.device != "cpu"


def allocate(
    config: AllocateConfig, paths: PathSet, parts: Sequence[int]
) -> Iterator[tuple[int, list[AllocatedMatrix]]]:
    """Allocate ``parts`` in ``config.workers`` processes; yields each part when it is done, in any
    order.

    Args:
        config: the settings.
        paths: the candidate paths.
        parts: numbers of the parts.

    Raises:
        SolverError: a process died more than three times.
        InputError: raised by one of the processes.
    """
    with connected() as ray:
        from ray.util import ActorPool

        gpus = units(ray, "GPU")
        cpus = units(ray, "CPU")
        # Others may use the cluster too.
        free = max(1, int(ray.available_resources().get("CPU", 0)))
        threads = max(1, cpus // min(config.workers or free, len(parts)))
        on_gpu = _is_on_gpu(config, paths, gpus, threads)
        require_units(ray, "GPU" if on_gpu else "CPU", config.workers or 1, "--workers")
        workers = min(config.workers or (gpus if on_gpu else free), len(parts))
        settings = dataclasses.replace(
            config, out=config.out.resolve(), device="cuda" if on_gpu else "cpu"
        )
        start = ray.remote(
            num_cpus=0 if on_gpu else 1,
            num_gpus=int(on_gpu),
            max_restarts=_MAX_RETRIES,
            max_task_retries=_MAX_RETRIES,
        )(_Worker).remote
        pool = ActorPool(
            [start(settings, max(1, cpus // workers), str(Path.cwd())) for _ in range(workers)]
        )
        try:
            yield from pool.map_unordered(lambda worker, part: worker.allocate.remote(part), parts)
        except (ray.exceptions.RayError, InputError) as error:
            raise cause(
                error, f"allocating on Ray, after {_MAX_RETRIES} restarts of a process"
            ) from None
