"""Worker processes of `teal allocate`, as Ray actors.

Each actor loads the network once, and then allocates one part after another.  An actor pool is used
in place of Ray Data, whose executor and extra processes took 10 of 39 CPU s for 150 matrices of B4.
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
from teal.cluster.cluster import connected, require_units, teal_error, units
from teal.errors import InputError
from teal.network import PathSet
from teal.runtime.parallel import limit_threads

# Maximum restarts of a process, and retries of a part; a part itself may kill its process, for
# example for lack of memory.
_MAX_RETRIES = 3


class _Worker:
    """Ray actor that loads the network once, then allocates one part after another.

    Args:
        config: settings of `teal allocate`.
        threads: number of threads of the process.
        folder: working folder of the command, to which relative paths refer.
    """

    def __init__(self, config: AllocateConfig, threads: int, folder: str) -> None:
        # Relative paths refer to the command's folder; Ray starts processes elsewhere.
        os.chdir(folder)
        limit_threads(threads)
        self._config = config

    @functools.cached_property
    def _files(self) -> PartFiles:
        """Loaded network, and allocator of the parts that writes their files."""
        # Loaded at the first call: of an error in the constructor, Ray keeps the text alone, not
        # the InputError.
        return PartFiles(self._config)

    def allocate(self, part: int) -> tuple[int, list[AllocatedMatrix]]:
        """Allocate a part and write its files; return its index and the figures of its matrices."""
        return part, self._files.write_part(part)


def _is_on_gpu(config: AllocateConfig, paths: PathSet, gpus: int, threads: int) -> bool:
    """Return whether each process uses a GPU, by ``--device`` and the size of the network.

    Args:
        config: settings of `teal allocate`.
        paths: candidate paths.
        gpus: number of GPUs of the cluster.
        threads: number of threads of a process that runs on the CPU.
    """
    if config.device == "auto":
        return gpus > 0 and suits_gpu(config, paths, threads)
    return config.device != "cpu"


def allocate(
    config: AllocateConfig, paths: PathSet, parts: Sequence[int]
) -> Iterator[tuple[int, list[AllocatedMatrix]]]:
    """Allocate parts in Ray processes; yield index and figures of each part as it finishes.

    Args:
        config: settings of `teal allocate`.
        paths: candidate paths.
        parts: indices of the parts to allocate.

    Raises:
        SolverError: a process died more than three times.
        InputError: raised by one of the processes.
    """
    with connected() as ray:
        from ray.util import ActorPool

        # Choose the device and the number of processes; other users may hold CPUs of the cluster.
        num_gpus = units(ray, "GPU")
        num_cpus = units(ray, "CPU")
        num_free_cpus = max(1, int(ray.available_resources().get("CPU", 0)))
        # Threads of each process if it runs on the CPU, for the choice of the device.
        threads = max(1, num_cpus // min(config.workers or num_free_cpus, len(parts)))
        on_gpu = _is_on_gpu(config, paths, num_gpus, threads)
        require_units(ray, "GPU" if on_gpu else "CPU", config.workers or 1, "--workers")
        num_workers = min(config.workers or (num_gpus if on_gpu else num_free_cpus), len(parts))
        # Start the actors.
        worker_config = dataclasses.replace(
            config, out=config.out.resolve(), device="cuda" if on_gpu else "cpu"
        )
        start_worker = ray.remote(
            num_cpus=0 if on_gpu else 1,
            num_gpus=int(on_gpu),
            max_restarts=_MAX_RETRIES,
            max_task_retries=_MAX_RETRIES,
        )(_Worker).remote
        pool = ActorPool(
            [
                start_worker(worker_config, max(1, num_cpus // num_workers), str(Path.cwd()))
                for _ in range(num_workers)
            ]
        )
        # Give each idle actor the next part.
        try:
            yield from pool.map_unordered(lambda worker, part: worker.allocate.remote(part), parts)
        except (ray.exceptions.RayError, InputError) as error:
            raise teal_error(
                error, f"allocating on Ray, after {_MAX_RETRIES} restarts of a process"
            ) from None
