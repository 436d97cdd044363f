"""`teal train` in several processes, through Ray Train.

Ray starts the processes, connects them (torch.distributed), and starts all of them again when one dies; everything else
is :class:`teal.learning.train.Trainer`, which does not depend on Ray.  Restarted processes continue from the state in
the run's folder, which rank 0 writes at each validation, and repeat the steps made since then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tqdm import tqdm

from teal.config import TrainConfig
from teal.distributed.cluster import cause, connected, require_units, units
from teal.errors import InputError
from teal.learning.run_state import RUN
from teal.learning.train import TrainState
from teal.runtime.parallel import limit_threads
from teal.runtime.storage import atomic_file, remove_files

_MAX_RESTARTS = 3  # of the processes
_PROGRESS_EVERY_S = 0.5  # seconds between two updates of the progress
# Files in OUT by which the processes tell the command how far they are, and which fault of the user they met.
_PROGRESS, _FAULT = "progress.json", "fault.json"


def train(config: TrainConfig, progress: bool = True) -> TrainState:
    """Train in ``config.workers`` processes, from the state in the folder if there is one.

    The steps are those of one process, to rounding: each process takes a part of every batch, and the random numbers
    for a matrix do not depend on the process.

    Raises:
        InputError: a fault in the settings, or fewer CPUs or GPUs than workers.
        SolverError: workers died more than three times.
    """
    with connected() as ray:
        use_gpu = config.device == "cuda" or (config.device == "auto" and units(ray, "GPU") >= config.workers)
        for kind in ("GPU", "CPU") if use_gpu else ("CPU",):
            require_units(ray, kind, config.workers, "--workers")
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        out = config.out.resolve()
        settings = dataclasses.replace(config, out=out, device="cuda" if use_gpu else "cpu")
        scratch = out / ".ray"  # Ray's own files; the state of the run is not among them
        resources = {"CPU": 1.0, "GPU": 1.0} if use_gpu else {"CPU": 1.0}
        trainer = TorchTrainer(
            _work,
            train_loop_config={"config": settings, "folder": str(Path.cwd())},
            torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
            scaling_config=ScalingConfig(num_workers=config.workers, use_gpu=use_gpu, resources_per_worker=resources),
            run_config=RunConfig(
                name=uuid.uuid4().hex,
                storage_path=str(scratch),
                failure_config=FailureConfig(max_failures=_MAX_RESTARTS),
            ),
        )
        remove_files(out, (_FAULT,))
        try:
            with _progress_bar(out, config.max_steps, progress) as bar:
                _in_thread(trainer.fit).result()
                if (out / _FAULT).exists():
                    raise InputError(*json.loads((out / _FAULT).read_text(encoding="utf-8")))
                state = TrainState(**json.loads((out / _PROGRESS).read_text(encoding="utf-8")))
                bar.update(state.step - bar.n)
        except Exception as error:
            raise cause(error, f"training on Ray ended after {_MAX_RESTARTS} restarts") from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            remove_files(out, (_PROGRESS, _FAULT))
        return state


def _in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Run ``function`` in another thread: in the main thread Ray Train handles Ctrl-C itself and raises nothing."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _work(settings: dict[str, Any]) -> None:
    """The work of each process.

    A fault in the user's input is written to a file and ends the run, since a restart would not help.
    """
    from torch import distributed

    config: TrainConfig = settings["config"]
    if (config.out / _FAULT).exists():
        return
    os.chdir(settings["folder"])  # that of the command, because relative paths refer to it
    try:
        _train(config)
    except InputError as error:
        with atomic_file(config.out / _FAULT) as temporary:
            temporary.write_text(json.dumps([error.where, error.field, error.expected, error.actual]), encoding="utf-8")
        distributed.destroy_process_group()  # or the other processes would wait for this one without end


def _train(config: TrainConfig) -> None:
    import ray.train

    from teal.evaluation.instance import load_instance
    from teal.learning.peers import ProcessGroup
    from teal.learning.train import Trainer

    context = ray.train.get_context()
    limit_threads((os.cpu_count() or 1) // context.get_local_world_size())
    instance = load_instance(config)
    first = instance.problem(instance.traffic.read(instance.split.train[:1]))
    trainer = Trainer(first, instance.traffic, instance.split, config, ProcessGroup(instance.device))
    if (config.out / RUN).exists():
        trainer.resume(config.out)
    last_progress = 0.0

    def watch(state: TrainState, last: bool = False) -> None:
        nonlocal last_progress
        if context.get_world_rank() == 0 and (last or time.monotonic() > last_progress + _PROGRESS_EVERY_S):
            last_progress = time.monotonic()
            with atomic_file(config.out / _PROGRESS) as temporary:
                temporary.write_text(json.dumps(dataclasses.asdict(state)), encoding="utf-8")

    watch(trainer.train(config.out, progress=False, watch=watch), last=True)


@contextlib.contextmanager
def _progress_bar(out: Path, total: int, progress: bool) -> Iterator[Any]:
    """A progress bar that shows what rank 0 writes."""
    done = threading.Event()

    def follow(bar: Any) -> None:
        while not done.wait(_PROGRESS_EVERY_S):
            with contextlib.suppress(OSError, ValueError):  # not written yet
                state = json.loads((out / _PROGRESS).read_text(encoding="utf-8"))
                bar.update(state["step"] - bar.n)
                bar.set_postfix(best=f"{state['best']:.4f}")

    with tqdm(total=total or None, desc="training", unit="step", disable=not progress) as bar:
        thread = threading.Thread(target=follow, args=(bar,))
        thread.start()
        try:
            yield bar
        finally:
            done.set()
            thread.join()
