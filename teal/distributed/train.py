"""The training loop in several processes, kept going by Ray Train.

Ray starts the processes, connects them (torch.distributed), and starts them anew when one dies; everything else is
:class:`teal.learning.trainer.Trainer`, which knows no Ray.  They go on from the state in the run's folder, which rank 0
writes at each validation: steps since then are made again, the same ones.
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
from teal.learning.checkpoint import RUN
from teal.learning.trainer import TrainState
from teal.parallel import limit_threads
from teal.storage import atomic_file

_RESTARTS = 3
_SAY_EVERY_S = 0.5
_PROGRESS, _FAULT = "progress.json", "fault.json"


def train(config: TrainConfig, progress: bool = True) -> TrainState:
    """Train with ``config.workers`` processes; goes on with the state that is in the folder, if there is one.

    The same steps as of one process, to rounding: each process works on a part of every batch, and what is drawn for a
    matrix does not depend on where.

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
        scratch = out / ".ray"  # Ray's own notes; the state of the run is ours
        resources = {"CPU": 1.0, "GPU": 1.0} if use_gpu else {"CPU": 1.0}
        trainer = TorchTrainer(
            _work,
            train_loop_config={"config": settings, "folder": str(Path.cwd())},
            torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
            scaling_config=ScalingConfig(num_workers=config.workers, use_gpu=use_gpu, resources_per_worker=resources),
            run_config=RunConfig(
                name=uuid.uuid4().hex, storage_path=str(scratch), failure_config=FailureConfig(max_failures=_RESTARTS)
            ),
        )
        (out / _FAULT).unlink(missing_ok=True)
        try:
            with _watched(out, config.max_steps, progress) as bar:
                _beside(trainer.fit).result()
                if (out / _FAULT).exists():
                    raise InputError(*json.loads((out / _FAULT).read_text(encoding="utf-8")))
                state = TrainState(**json.loads((out / _PROGRESS).read_text(encoding="utf-8")))
                bar.update(state.step - bar.n)
        except Exception as error:
            raise cause(error, f"training on Ray ended after {_RESTARTS} restarts") from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            for name in (_PROGRESS, _FAULT):
                (out / name).unlink(missing_ok=True)
        return state


def _beside(function: Callable[[], Any]) -> Future[Any]:
    """Run in another thread: in the main one Ray Train makes of Ctrl-C an end of its own, without an exception."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _work(settings: dict[str, Any]) -> None:
    """What each process does.

    A fault of the user's ends the run, and is no reason to start processes anew: it is left in a file.
    """
    from torch import distributed

    config: TrainConfig = settings["config"]
    if (config.out / _FAULT).exists():
        return
    os.chdir(settings["folder"])  # of the command: Ray gives each process one of its own
    try:
        _train(config)
    except InputError as error:
        with atomic_file(config.out / _FAULT) as temporary:
            temporary.write_text(json.dumps([error.where, error.field, error.expected, error.found]), encoding="utf-8")
        distributed.destroy_process_group()  # those who wait for this one must not wait for ever


def _train(config: TrainConfig) -> None:
    import ray.train

    from teal.instance import load_instance
    from teal.learning.peers import Group
    from teal.learning.trainer import Trainer

    context = ray.train.get_context()
    limit_threads((os.cpu_count() or 1) // context.get_local_world_size())
    instance = load_instance(config)
    first = instance.problem(instance.traffic.read(instance.split.train[:1]))
    trainer = Trainer(first, instance.traffic, instance.split, config, Group(instance.device))
    if (config.out / RUN).exists():
        trainer.resume(config.out)
    said = 0.0

    def watch(state: TrainState, last: bool = False) -> None:
        nonlocal said
        if context.get_world_rank() == 0 and (last or time.monotonic() > said + _SAY_EVERY_S):
            said = time.monotonic()
            with atomic_file(config.out / _PROGRESS) as temporary:
                temporary.write_text(json.dumps(dataclasses.asdict(state)), encoding="utf-8")

    watch(trainer.train(config.out, progress=False, watch=watch), last=True)


@contextlib.contextmanager
def _watched(out: Path, total: int, progress: bool) -> Iterator[Any]:
    """A bar that follows what rank 0 writes."""
    done = threading.Event()

    def follow(bar: Any) -> None:
        while not done.wait(_SAY_EVERY_S):
            with contextlib.suppress(OSError, ValueError):  # not there yet
                found = json.loads((out / _PROGRESS).read_text(encoding="utf-8"))
                bar.update(found["step"] - bar.n)
                bar.set_postfix(best=f"{found['best']:.4f}")

    with tqdm(total=total or None, desc="training", unit="step", disable=not progress) as bar:
        thread = threading.Thread(target=follow, args=(bar,))
        thread.start()
        try:
            yield bar
        finally:
            done.set()
            thread.join()
