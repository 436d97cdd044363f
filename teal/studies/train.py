"""`teal train`: a FlowGNN for one network, in this process or in several."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable

import torch

from teal.config import TrainConfig
from teal.evaluation.instance import Instance, load_instance
from teal.learning.reached import measure_reached
from teal.learning.run_state import RUN, load_run
from teal.learning.train import Trainer, TrainState, validation_rows
from teal.learning.train_tasks import check_names
from teal.learning.training_log import TENSORBOARD, TRAINING_LOG
from teal.nn.checkpoint import MODEL_CARD, MODEL_WEIGHTS
from teal.problem import Problem
from teal.runtime.arrays import Int64Array
from teal.runtime.storage import check_out_folder, remove_files
from teal.studies.files import RESUME_HINT
from teal.studies.stored_settings import SETTINGS, save_settings

FILES = (MODEL_CARD, MODEL_WEIGHTS, RUN, SETTINGS, TRAINING_LOG)


def run_train(config: TrainConfig, notify: Callable[[str], None]) -> TrainState:
    """Train, from the start or from the state in OUT.

    Raises:
        InputError: a fault in the settings, or an earlier run in OUT that must not be replaced.
        SolverError: workers died again and again.
    """
    if config.resume:
        load_run(config.out)  # a missing or damaged state is reported before anything slow
    else:
        check_out_folder(config.out, FILES, overwrite=config.overwrite, hint=RESUME_HINT)
    check_names(config)
    instance = load_instance(config, notify)
    if not config.resume:
        remove_files(config.out, FILES)
        shutil.rmtree(config.out / TENSORBOARD, ignore_errors=True)
    first = instance.problem(instance.traffic.read(instance.split.train[:1]))
    if config.workers:
        from teal.distributed.train import train

        save_settings(config)
        notify(f"starting {config.workers} workers on Ray")
        return _measured(config, instance, first, train(config))
    trainer = Trainer(first, instance.traffic, instance.split, config)
    if config.resume:
        trainer.resume(config.out)
        notify(f"resuming at step {trainer.state.step}, after {trainer.state.elapsed_s:.0f} s of training")
    save_settings(config)
    return _measured(config, instance, first, trainer.train(config.out))


def _measured(config: TrainConfig, instance: Instance, problem: Problem, state: TrainState) -> TrainState:
    """The state of a run that has ended, with what its checkpoint reached, which its card says too."""

    def problem_of(rows: Int64Array) -> Problem:
        return problem.with_demand(torch.as_tensor(instance.traffic.read(rows)).to(problem.demand))

    if not (config.out / MODEL_CARD).is_file():  # no validation had a finite score
        return state
    rows = validation_rows(config, problem, instance.split)
    state.reached = dataclasses.asdict(measure_reached(config.out, config.scheme, rows, problem_of))
    return state
