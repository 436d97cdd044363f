"""`teal train`: training of a model on one network, in this process or in several."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from teal.app.command import Notify, Outcome
from teal.app.instance import Instance, load_instance
from teal.app.run_files import RESUME_HINT, SETTINGS, TRAINER, save_settings
from teal.nn.checkpoint import MODEL_CARD, MODEL_WEIGHTS, note_in_card
from teal.problem import Problem
from teal.runtime.arrays import Int64Array
from teal.runtime.storage import atomic_file, check_out_folder, json_value, remove_files
from teal_study.learning.gain import Gain, measure_gain
from teal_study.learning.run_state import TENSORBOARD, TRAINING_LOG, load_run
from teal_study.learning.settings import TrainConfig, TrainOptions
from teal_study.learning.train import Trainer, TrainState, gain_rows
from teal_study.learning.train_tasks import check_names

# Report of the run: final state and gain.
RUN = "run.json"
FILES = (MODEL_CARD, MODEL_WEIGHTS, TRAINER, SETTINGS, TRAINING_LOG, RUN)


def run_train(config: TrainConfig, notify: Callable[[str], None]) -> TrainReport:
    """Run ``teal train``, from the start or from the state in OUT.

    Args:
        config: settings.
        notify: callback for messages.

    Raises:
        InputError: invalid settings, or OUT has an earlier run and ``overwrite`` is not set.
        SolverError: worker processes died more than three times.
    """
    check_start(config)
    instance = load_instance(config, notify)
    instance.objective.require_an_allocation("teal train")
    if config.workers == 0:
        return train(instance, config, notify)
    from teal_study.learning.train_workers import train_together

    _delete_earlier_run(config)
    save_settings(config)
    notify(f"starting {config.workers} workers on Ray")
    return _write_report(config, instance, train_together(config))


def check_start(options: TrainOptions) -> None:
    """Check names and the output folder before any slow work.

    Raises:
        InputError: unknown names; OUT has an earlier run and ``overwrite`` is not set; or OUT has
            no run to resume.
    """
    if options.resume:
        load_run(options.out)
    else:
        check_out_folder(options.out, FILES, overwrite=options.overwrite, hint=RESUME_HINT)
    check_names(options)


def train(
    instance: Instance, options: TrainOptions, notify: Callable[[str], None] = lambda _: None
) -> TrainReport:
    """Train on the matrices of an instance, in this process.

    Args:
        instance: network, paths, objective and traffic.
        options: settings.
        notify: callback for messages.

    Raises:
        InputError: invalid settings, or a run in OUT with other settings.
    """
    _delete_earlier_run(options)
    trainer = Trainer(_first_problem(instance), instance.traffic, instance.split, options)
    if options.resume:
        trainer.resume(options.out)
        notify(
            f"resuming at step {trainer.state.step}, after {trainer.state.elapsed_s:.0f} s of "
            "training"
        )
    save_settings(options)
    return _write_report(options, instance, trainer.train(options.out, watch=_warn_once(notify)))


def _warn_once(notify: Callable[[str], None]) -> Callable[[TrainState], None]:
    """Return a callback that passes the first warning of a training run to ``notify``."""
    has_warned = False

    def watch(state: TrainState) -> None:
        nonlocal has_warned
        if state.warning and not has_warned:
            notify(f"warning: {state.warning}")
            has_warned = True

    return watch


def _first_problem(instance: Instance) -> Problem:
    """Return the problem of the first training matrix of an instance, B = 1."""
    return instance.problem(instance.traffic.read(instance.split.train[:1]))


def _delete_earlier_run(options: TrainOptions) -> None:
    """Delete the files of an earlier run in OUT, unless it is resumed."""
    if not options.resume:
        remove_files(options.out, FILES)
        shutil.rmtree(options.out / TENSORBOARD, ignore_errors=True)


def _write_report(config: TrainOptions, instance: Instance, state: TrainState) -> TrainReport:
    """Measure the gain of a finished run; write it to the model card and to ``run.json``.

    Args:
        config: settings.
        instance: network, paths, objective and traffic.
        state: final state of the run.
    """
    problem = _first_problem(instance)

    def make_problem(rows: Int64Array) -> Problem:
        return problem.with_demand(torch.as_tensor(instance.traffic.read(rows)).to(problem.demand))

    gain = None
    # Without a card no validation had a finite score.
    if (config.out / MODEL_CARD).is_file():
        # The state omits the validation after the last step: take the step of the saved weights
        # from the model card; 0 stands for the initial weights.
        card = json.loads((config.out / MODEL_CARD).read_text(encoding="utf-8"))
        state = dataclasses.replace(state, best_step=card["step"])
        part, rows = gain_rows(config, problem, instance.split)
        gain = measure_gain(
            config.out,
            config.scheme,
            config.start,
            config.seed,
            part=part,
            rows=rows,
            make_problem=make_problem,
            kept_start=not state.best_step,
        )
        note_in_card(config.out, "gain", json_value(gain))
    report = TrainReport(config.out, state, gain)
    with atomic_file(config.out / RUN) as temporary:
        temporary.write_text(json.dumps(json_value(report.data), indent=2) + "\n", encoding="utf-8")
    return report


@dataclasses.dataclass(frozen=True)
class TrainReport:
    """Result of a training run.

    Attributes:
        folder: folder of the checkpoint, for ``teal.make_scheme`` and ``teal.load_model``.
        state: final state of the run.
        gain: comparison with the initial model and controls; None without a checkpoint.
    """

    folder: Path
    state: TrainState
    gain: Gain | None

    @property
    def data(self) -> dict[str, Any]:
        """Content of ``run.json`` and of the output of ``--json``."""
        verdict = self.gain.verdict if self.gain else ""
        return {
            "out": str(self.folder),
            **dataclasses.asdict(self.state),
            "gain": self.gain,
            "verdict": verdict,
        }

    @property
    def text(self) -> str:
        """Summary: steps and time, stopping reason, checkpoint, and warnings."""
        state = self.state
        if self.gain is None:
            outcome_text = (
                "\nno checkpoint was written, since no validation had a finite gap; try a lower "
                "--learning-rate"
            )
        else:
            kept_weights = f"step {state.best_step}" if state.best_step else "the start"
            outcome_text = f"; kept: the weights of {kept_weights}{_tensorboard_hint(self.folder)}"
        warning = f"\nwarning: {state.warning}" if state.warning else ""
        return (
            f"{self.folder}: {state.step} steps in {state.elapsed_s:.0f} s, stopped: "
            f"{state.reason}{outcome_text}{warning}"
        )

    def __repr__(self) -> str:
        """Return the summary, the table of the gain and its verdict, as lines of text."""
        if self.gain is None:
            return self.text
        lines = self.gain.table.texts()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        ]
        return "\n".join([self.text, *table, self.gain.verdict])


def train_outcome(config: TrainConfig, notify: Notify) -> Outcome:
    """Run ``teal train``; return its text, the table of the gain, and its data."""
    report = run_train(config, notify)
    return Outcome(
        text=report.text,
        tables=[report.gain.table] if report.gain else [],
        data=report.data,
    )


def _tensorboard_hint(out: Path) -> str:
    """Return a hint on how to see the log in TensorBoard, or how to install it."""
    if importlib.util.find_spec("tensorboard") is None:
        return "; for learning curves: pip install tensorboard"
    return f"; learning curves: tensorboard --logdir {out}"
