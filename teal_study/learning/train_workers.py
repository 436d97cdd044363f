"""`teal train` in several processes: one Ray actor per process, connected by torch.distributed.

:class:`teal_study.learning.train.Trainer` does the training and does not depend on Ray.  When a
process dies, all processes are restarted.  They continue from the state in the run's folder, which
rank 0 writes at each validation, and repeat the steps since then.  Entry point:
:func:`train_together`.

Ray Train is not used: its controller and five further processes took 25 of the 50 s before the
first step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from teal.app.run_files import TRAINER
from teal.cluster.cluster import connected, require_units, teal_error, units
from teal.errors import TealError
from teal.runtime.parallel import limit_threads
from teal.runtime.progress import progress_bar
from teal.runtime.storage import atomic_file, remove_files
from teal_study.learning.settings import TrainConfig
from teal_study.learning.train import TrainState

# Maximum number of restarts of all processes.
_MAX_RESTARTS = 3
# Seconds between two updates of the progress.
_PROGRESS_EVERY_S = 0.5
# Seconds to wait for further errors after the first one: one process has the cause, the others lose
# their connection.
_MAX_WAIT_FOR_CAUSE_S = 10.0
# File in OUT with the progress of rank 0, for the progress bar.
_PROGRESS = "progress.json"


def train_together(config: TrainConfig, progress: bool = True) -> TrainState:
    """Train in ``config.workers`` processes, from the state in the folder if there is one.

    The steps equal those of one process, to rounding: each process computes a part of every batch,
    and the random numbers of a matrix do not depend on the process.

    Args:
        config: settings.
        progress: whether to show a progress bar.

    Raises:
        InputError: invalid settings, or fewer CPUs or GPUs than workers.
        SolverError: workers died more than three times.
    """
    with connected() as ray:
        use_gpu = config.device == "cuda" or (
            config.device == "auto" and units(ray, "GPU") >= config.workers
        )
        for kind in ("GPU", "CPU") if use_gpu else ("CPU",):
            require_units(ray, kind, config.workers, "--workers")
        out = config.out.resolve()
        settings = dataclasses.replace(config, out=out, device="cuda" if use_gpu else "cpu")
        try:
            with _progress_bar(out, config.max_steps, progress) as bar:
                state = _train_with_restarts(ray, settings)
                bar.update(state.step - bar.n)
        finally:
            remove_files(out, (_PROGRESS,))
        return state


def _train_with_restarts(ray: Any, config: TrainConfig) -> TrainState:
    """Run the processes, and restart all of them when one has died, at most three times.

    Args:
        ray: the module Ray, connected to a cluster.
        config: settings, with an absolute path of the folder.

    Raises:
        TealError: an error in the user's input, which is not retried, or too many restarts.
    """
    num_restarts = 0
    while True:
        try:
            return _train_in_actors(ray, config)
        except ray.exceptions.RayError as error:
            num_restarts += 1
            failure = teal_error(error, f"training on Ray ended after {_MAX_RESTARTS} restarts")
            if num_restarts > _MAX_RESTARTS or _is_input_error(error):
                raise failure from None


def _is_input_error(error: Exception) -> bool:
    """Whether a process failed with an error of Teal, so that a restart would fail again."""
    return isinstance(getattr(error, "cause", None), TealError)


def _train_in_actors(ray: Any, config: TrainConfig) -> TrainState:
    """Start one actor per process, train, and return the final state.

    Args:
        ray: the module Ray, connected to a cluster.
        config: settings.

    Raises:
        RayError: a process has failed.
    """
    resources = {"num_cpus": 1, "num_gpus": 1 if config.device == "cuda" else 0}
    actors = [
        ray.remote(max_restarts=0, **resources)(_Process).remote() for _ in range(config.workers)
    ]
    try:
        # Machine of each process, and address of rank 0, to which the others connect.
        node_ids = ray.get([actor.node.remote() for actor in actors])
        address = ray.get(actors[0].address.remote())
        results = [
            actor.work.remote(
                config,
                str(Path.cwd()),
                rank,
                config.workers,
                address,
                node_ids.count(node_ids[rank]),
            )
            for rank, actor in enumerate(actors)
        ]
        # Wait for all processes, one more at a time; stop at the first error.
        ended_results, running_results = ray.wait(results)
        while running_results:
            if error := _first_error(ray, ended_results, running_results):
                raise error
            ended_results, running_results = ray.wait(results, num_returns=len(ended_results) + 1)
        state: TrainState = ray.get(results)[0]
        return state
    finally:
        for actor in actors:
            ray.kill(actor)


def _first_error(
    ray: Any, ended_results: Sequence[Any], running_results: Sequence[Any]
) -> Exception | None:
    """Return the error of a failed process, or None.

    An error of Teal is preferred to the lost connections of other processes, which follow from it.

    Args:
        ray: the module Ray.
        ended_results: results of the processes that have ended.
        running_results: results of the others; after an error they are awaited for a few seconds.
    """

    def errors_of(values: Sequence[Any]) -> list[Exception]:
        """Return the errors of results that are available."""
        exceptions: list[Exception] = []
        for result in values:
            try:
                ray.get(result)
            except ray.exceptions.RayError as error:
                exceptions.append(error)
        return exceptions

    # Errors of the processes that have ended, then of those that end within a few seconds; an error
    # of Teal comes first.
    exceptions = errors_of(ended_results)
    if exceptions:
        exceptions += errors_of(
            ray.wait(
                running_results, num_returns=len(running_results), timeout=_MAX_WAIT_FOR_CAUSE_S
            )[0]
        )
    input_errors = [error for error in exceptions if _is_input_error(error)]
    return next(iter(input_errors or exceptions), None)


class _Process:
    """One process of a training run, a Ray actor."""

    def node(self) -> str:
        """Return Ray's ID of the machine on which this process runs."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def address(self) -> str:
        """Return host:port with a free port, on which rank 0 listens for the other processes."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    def work(
        self,
        config: TrainConfig,
        working_folder: str,
        rank: int,
        num_workers: int,
        address: str,
        workers_on_machine: int,
    ) -> TrainState:
        """Join the process group and train; every process calls this method.

        Args:
            config: settings.
            working_folder: working folder of the command, the base of relative paths.
            rank: index of this process.
            num_workers: number of all processes.
            address: host:port on which rank 0 listens.
            workers_on_machine: number of processes on this machine.
        """
        from torch import distributed

        os.chdir(working_folder)
        limit_threads((os.cpu_count() or 1) // workers_on_machine)
        backend = "nccl" if config.device == "cuda" else "gloo"
        distributed.init_process_group(
            backend, init_method=f"tcp://{address}", rank=rank, world_size=num_workers
        )
        try:
            return _train(config)
        finally:
            # Otherwise the other processes would wait for a failed one.
            distributed.destroy_process_group()


def _train(config: TrainConfig) -> TrainState:
    """Train in this process, a member of torch's process group; rank 0 writes its progress."""
    from teal.app.instance import load_instance
    from teal_study.learning.peers import ProcessGroup
    from teal_study.learning.train import Trainer

    # Trainer of this process, from the state in the folder if there is one.
    instance = load_instance(config)
    first_problem = instance.problem(instance.traffic.read(instance.split.train[:1]))
    peers = ProcessGroup(instance.device)
    trainer = Trainer(first_problem, instance.traffic, instance.split, config, peers)
    if (config.out / TRAINER).exists():
        trainer.resume(config.out)
    last_progress = 0.0

    # Rank 0 writes the progress at most every half a second.
    def watch(state: TrainState) -> None:
        nonlocal last_progress
        if peers.rank == 0 and time.monotonic() > last_progress + _PROGRESS_EVERY_S:
            last_progress = time.monotonic()
            with atomic_file(config.out / _PROGRESS) as temporary:
                temporary.write_text(json.dumps(dataclasses.asdict(state)), encoding="utf-8")

    return trainer.train(config.out, progress=False, watch=watch)


@contextlib.contextmanager
def _progress_bar(out: Path, total: int, progress: bool) -> Iterator[Any]:
    """Show a progress bar that a thread updates from the progress file of rank 0.

    Args:
        out: folder of the run.
        total: number of steps; 0 for no limit.
        progress: whether to show the bar.
    """
    is_finished = threading.Event()

    # Update the bar from the progress file until the training ends.
    def update_bar(bar: Any) -> None:
        while not is_finished.wait(_PROGRESS_EVERY_S):
            # The file may not exist yet.
            with contextlib.suppress(OSError, ValueError):
                stored_state = json.loads((out / _PROGRESS).read_text(encoding="utf-8"))
                bar.update(stored_state["step"] - bar.n)
                bar.set_postfix(best=f"{stored_state['best']:.4f}")

    with progress_bar(
        total=total or None, desc="training", unit="step", disable=not progress
    ) as bar:
        thread = threading.Thread(target=update_bar, args=(bar,))
        thread.start()
        try:
            yield bar
        finally:
            is_finished.set()
            thread.join()
