"""`teal train`: a FlowGNN for one network, in this process or in several."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from teal.app.command import Notify, Outcome
from teal.app.instance import Instance, load_instance
from teal.app.run_files import RESUME_HINT, SETTINGS, TRAINER, save_settings
from teal.learning.run_state import TENSORBOARD, TRAINING_LOG, load_run
from teal.learning.settings import TrainConfig, TrainOptions
from teal.learning.train import Trainer, TrainState, validation_rows
from teal.learning.train_tasks import check_names
from teal.nn.checkpoint import MODEL_CARD, MODEL_WEIGHTS, note_in_card
from teal.problem import Problem, assess
from teal.runtime.arrays import Int64Array
from teal.runtime.storage import check_out_folder, json_value, remove_files
from teal.schemes import make_scheme
from teal.solvers.projection import cut_only
from teal.solvers.result import Starter


@dataclasses.dataclass(frozen=True)
class Reached:
    """Means over the validation matrices.

    Attributes:
        cut_demand: share of the demand that the model's splits carry when they are cut to fit,
            without any repair.
        cut_gap: certified gap of those, by the model's prices.
        repaired_demand: share of the demand that its scheme carries: ``teal`` by ADMM,
            ``price-gnn`` by the projection.
        repaired_gap: certified gap of that.
    """

    cut_demand: float
    cut_gap: float
    repaired_demand: float
    repaired_gap: float


def measure_reached(
    folder: Path, scheme_name: str, rows: Int64Array, problem_of: Callable[[Int64Array], Problem]
) -> Reached:
    """Measure the checkpoint in ``folder``, and note it under ``training`` in its card.

    Args:
        folder: folder of the checkpoint.
        scheme_name: name of the scheme that allocates by it, ``teal`` or ``price-gnn``.
        rows: numbers of the matrices.
        problem_of: the problem of such numbers.
    """
    scheme = make_scheme(scheme_name, folder)
    assert isinstance(scheme, Starter)
    sums = torch.zeros(4, dtype=torch.float64)
    for row in range(len(rows)):
        problem = problem_of(rows[row : row + 1])
        alone, repaired = (
            cut_only(problem, *scheme.start(problem)),
            assess(problem, scheme.solve(problem)),
        )
        sums += torch.stack(
            [alone.satisfied_demand, alone.gap, repaired.satisfied_demand, repaired.gap]
        )[:, 0].cpu()
    reached = Reached(*(sums / len(rows)).tolist())
    note_in_card(folder, "reached", json_value(reached))
    return reached


FILES = (MODEL_CARD, MODEL_WEIGHTS, TRAINER, SETTINGS, TRAINING_LOG)


def run_train(config: TrainConfig, notify: Callable[[str], None]) -> TrainState:
    """Train, from the start or from the state in OUT.

    Raises:
        InputError: a fault in the settings, or an earlier run in OUT that must not be replaced.
        SolverError: workers died again and again.
    """
    check_start(config)
    instance = load_instance(config, notify)
    instance.objective.require_an_allocation("teal train")
    if config.workers == 0:
        return train(instance, config, notify)
    from teal.learning.train_workers import train_together

    _clear(config)
    save_settings(config)
    notify(f"starting {config.workers} workers on Ray")
    return _measured(config, instance, train_together(config))


def check_start(options: TrainOptions) -> None:
    """Check what can be checked before anything slow.

    Raises:
        InputError: unknown names, an earlier run in OUT that must not be replaced, or none that
            could be resumed.
    """
    if options.resume:
        load_run(options.out)
    else:
        check_out_folder(options.out, FILES, overwrite=options.overwrite, hint=RESUME_HINT)
    check_names(options)


def train(
    instance: Instance, options: TrainOptions, notify: Callable[[str], None] = lambda _: None
) -> TrainState:
    """Train on the matrices of an instance in this process; arguments and errors as in
    :func:`run_train`.
    """
    _clear(options)
    trainer = Trainer(_first_problem(instance), instance.traffic, instance.split, options)
    if options.resume:
        trainer.resume(options.out)
        notify(
            f"resuming at step {trainer.state.step}, after {trainer.state.elapsed_s:.0f} s of "
            "training"
        )
    save_settings(options)
    return _measured(options, instance, trainer.train(options.out))


def _first_problem(instance: Instance) -> Problem:
    return instance.problem(instance.traffic.read(instance.split.train[:1]))


def _clear(options: TrainOptions) -> None:
    """Remove an earlier run from OUT, unless it goes on."""
    if not options.resume:
        remove_files(options.out, FILES)
        shutil.rmtree(options.out / TENSORBOARD, ignore_errors=True)


def _measured(config: TrainOptions, instance: Instance, state: TrainState) -> TrainState:
    """The state of a run that has ended, with what its checkpoint reached, which its card says
    too.
    """
    problem = _first_problem(instance)

    def problem_of(rows: Int64Array) -> Problem:
        return problem.with_demand(torch.as_tensor(instance.traffic.read(rows)).to(problem.demand))

    if not (config.out / MODEL_CARD).is_file():  # no validation had a finite score
        return state
    rows = validation_rows(config, problem, instance.split)
    state.reached = dataclasses.asdict(measure_reached(config.out, config.scheme, rows, problem_of))
    return state


@dataclasses.dataclass(frozen=True)
class TrainReport:
    """A model that was trained.

    Attributes:
        folder: folder of the checkpoint, which ``teal.make_scheme`` and ``teal.load_model`` take.
        state: how training went, and what the best weights reach.
    """

    folder: Path
    state: TrainState

    def __repr__(self) -> str:
        """How long it took, and what the model reaches on the validation matrices."""
        state = self.state
        found = f"at step {state.best_step}" if state.best_step else "no better than the start"
        percent = {name: f"{100 * share:.2f}%" for name, share in state.reached.items()}
        reached = (
            "validation matrices: the model alone, cut to fit and not repaired, carries "
            f"{percent['cut_demand']}, gap {percent['cut_gap']}; repaired "
            f"{percent['repaired_demand']}, gap {percent['repaired_gap']}"
            f"{_tensorboard_hint(self.folder)}"
            if percent
            else "no validation had a finite gap, so that no checkpoint was written; try a lower "
            "--learning-rate"
        )
        return (
            f"{self.folder}: {state.step} steps in {state.elapsed_s:.0f} s, stopped: "
            f"{state.reason}; best: {found}\n{reached}"
        )


def train_outcome(config: TrainConfig, notify: Notify) -> Outcome:
    """`teal train`."""
    state = run_train(config, notify)
    return Outcome(
        text=repr(TrainReport(config.out, state)),
        data={"out": str(config.out)} | dataclasses.asdict(state),
    )


def _tensorboard_hint(out: Path) -> str:
    if importlib.util.find_spec("tensorboard") is None:
        return "; with pip install tensorboard, its course is logged too"
    return f"; to see its course: tensorboard --logdir {out}"
