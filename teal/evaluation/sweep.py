"""`teal sweep`: training runs over settings and seeds, each evaluated, and one table of them
all.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from teal.app.command import Notify, Outcome
from teal.app.run_files import (
    RESUME_HINT,
    SETTINGS,
    TRAINER,
    save_settings,
    write_files,
    write_manifest,
)
from teal.app.table import Column, Table, writers
from teal.app.text import digits, percent
from teal.evaluation.evaluate_command import run_evaluate
from teal.evaluation.record import ROWS
from teal.evaluation.rows import Row
from teal.evaluation.settings import EvaluateConfig, SweepConfig
from teal.formats.rows import read_csv, write_csv
from teal.learning.settings import TrainConfig
from teal.learning.train_command import RUN, run_train
from teal.runtime.storage import check_out_folder

RUNS = "runs.csv"
SUMMARY = "summary.csv"
MANIFEST = "manifest.json"
FILES = (RUNS, SUMMARY, MANIFEST, "summary.md", "summary.tex")
# Level of the confidence intervals.
_LEVEL = 0.95
_MEASURES = (
    "validation",
    "cut",
    "own_gap",
    "best_step",
    "satisfied_demand",
    "value",
    "gap_known",
    "solve_s",
)
# Row of the model that the runs began from.
_START = "start"


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """One training run.

    Attributes:
        settings: the varied ones, such as ``learning_rate=0.001``; ``default`` for none.
        seed: seed of the run.
        steps: steps of training.
        best_step: step of the weights that were kept; 0 for those of the start.
        validation: share that they carry on the validation matrices alone, cut to fit.
        cut: the same on the test matrices.
        own_gap: certified gap of that, by the model's own prices.
        start_cut, start_own_gap: the same of the model that the run began from.
        satisfied_demand: mean share of the demand that the model carries, over the test matrices.
        value: mean value.
        gap_known: mean gap by the best bound of the model and of the first-order engine beside it.
        solve_s: median seconds of an allocation.
    """

    settings: str
    seed: int
    steps: int
    best_step: int
    validation: float
    cut: float
    own_gap: float
    start_cut: float
    start_own_gap: float
    satisfied_demand: float
    value: float
    gap_known: float
    solve_s: float


@dataclasses.dataclass(frozen=True)
class SweepSummary:
    """One combination of settings over its seeds, or the start of all runs.

    Attributes:
        settings: the varied ones; ``start`` for the model that the runs began from.
        measure: name of a column of :class:`SweepRun`.
        runs: n, how many.
        kept_start: number of runs in which no step scored better than the start.
        mean: mean of the measure.
        low, high: ends of the 95% interval of the mean, by Student's t with n - 1 degrees; NaN for
            one run, and where all runs kept the weights of one start.
    """

    settings: str
    measure: str
    runs: int
    kept_start: int
    mean: float
    low: float
    high: float


def run_sweep(config: SweepConfig, notify: Callable[[str], None]) -> list[SweepRun]:
    """Carry out what is missing, and write the tables after every run.

    Raises:
        InputError: invalid settings, or an earlier sweep in OUT that must not be replaced.
    """
    if not config.resume:
        check_out_folder(
            config.out, (*FILES, SETTINGS), overwrite=config.overwrite, hint=RESUME_HINT
        )
    save_settings(config)
    runs: list[SweepRun] = []
    planned = list(_planned(config))
    for number, (name, settings, seed) in enumerate(planned):
        notify(f"run {number + 1} of {len(planned)}: {name}, seed {seed}")
        runs.append(_run(config, name, settings, seed, notify))
        write_files(
            config.out,
            {
                RUNS: partial(write_csv, rows=runs),
                SUMMARY: partial(write_csv, rows=summarise(runs)),
                MANIFEST: partial(write_manifest, settings=config),
                **writers([_table(config, summarise(runs))], "summary"),
            },
        )
    return runs


def _planned(config: SweepConfig) -> Iterator[tuple[str, dict[str, Any], int]]:
    for settings in config.combinations():
        name = (
            ",".join(f"{key.rstrip('_')}={value}" for key, value in settings.items()) or "default"
        )
        for seed in range(config.seed, config.seed + config.seeds):
            yield name, settings, seed


def _run(
    config: SweepConfig,
    name: str,
    settings: dict[str, Any],
    seed: int,
    notify: Callable[[str], None],
) -> SweepRun:
    """Train and evaluate, or continue where an earlier run ended; return the figures of the run."""
    # Train.
    folder_name = "".join(c if c.isalnum() or c in "=,.-" else "-" for c in name)
    folder = config.out / folder_name / f"seed-{seed}"
    training = _training_settings(config, settings, seed, folder)
    if not (config.resume and (folder / RUN).is_file()):
        run_train(training, notify)
    stored = json.loads((folder / RUN).read_text(encoding="utf-8"))
    # Without a finite score in any validation there is no model.
    if stored["gain"] is None:
        return SweepRun(name, seed, stored["step"], 0, *[math.nan] * 9)
    # Evaluate.
    results = folder / "results"
    if not (config.resume and (results / ROWS).is_file()):
        _evaluate(config, training, results, notify)
    trained, start = stored["gain"]["rows"][:2]
    rows = [row for row in read_csv(results / ROWS, Row) if row.scheme == training.scheme]
    return SweepRun(
        name,
        seed,
        stored["step"],
        stored["best_step"],
        stored["best"],
        trained["cut"],
        trained["gap"],
        start["cut"],
        start["gap"],
        _mean(rows, "satisfied_demand"),
        _mean(rows, "value"),
        _mean(rows, "gap_known"),
        float(np.median([row.solve_s for row in rows])),
    )


def _training_settings(
    config: SweepConfig, settings: dict[str, Any], seed: int, folder: Path
) -> TrainConfig:
    """Return the settings of a training run, which continues the one in ``folder`` with --resume.

    Args:
        config: settings of the sweep.
        settings: settings that differ in this run.
        seed: seed of the run.
        folder: output folder of the run.
    """
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)}
    resumes = config.resume and (folder / TRAINER).is_file()
    return TrainConfig(
        **{
            **shared,
            **settings,
            "seed": seed,
            "out": folder,
            "resume": resumes,
            "overwrite": not resumes,
        }
    )


def _evaluate(
    config: SweepConfig, training: TrainConfig, out: Path, notify: Callable[[str], None]
) -> None:
    names = {field.name for field in dataclasses.fields(EvaluateConfig)}
    # Options that have another meaning in an evaluation.
    checkpoint = (
        "topology",
        "traffic",
        "model",
        "out",
        "resume",
        "overwrite",
    )
    shared = {
        field.name: getattr(training, field.name)
        for field in dataclasses.fields(TrainConfig)
        if field.name in names and field.name not in checkpoint
    }
    study = EvaluateConfig(
        topology=(training.topology,),
        traffic=(training.traffic,),
        model=(training.out,),
        scheme=(training.scheme, "pdhg"),
        limit=config.limit,
        out=out,
        overwrite=True,
        **shared,
    )
    run_evaluate(study, notify)


def _mean(rows: Sequence[Row], column: str) -> float:
    return float(np.mean([row.counted(column) for row in rows]))


def summarise(runs: Sequence[SweepRun]) -> list[SweepSummary]:
    """A row for each combination and measure, in the order of the runs, behind those of the
    start.
    """
    summaries = []
    for measure in ("cut", "own_gap"):
        values = [getattr(run, f"start_{measure}") for run in runs]
        # One model, measured once for each run; of random weights one for each seed.
        summaries.append(_summary(_START, measure, values, is_one_model=len(set(values)) == 1))
    for settings in dict.fromkeys(run.settings for run in runs):
        setting_runs = [run for run in runs if run.settings == settings]
        num_unfinished = sum(not run.best_step for run in setting_runs)
        for measure in _MEASURES:
            values = [getattr(run, measure) for run in setting_runs]
            is_one_model = (
                num_unfinished == len(setting_runs)
                and len({run.start_cut for run in setting_runs}) == 1
            )
            summaries.append(
                dataclasses.replace(
                    _summary(settings, measure, values, is_one_model=is_one_model),
                    kept_start=num_unfinished,
                )
            )
    return summaries


def _summary(
    name: str, measure: str, values: Sequence[float], *, is_one_model: bool
) -> SweepSummary:
    """Return mean and interval of some values; those of one model have no interval."""
    mean = float(np.mean(values))
    half = math.nan
    count = len(values)
    if count > 1 and not is_one_model:
        spread = float(np.std(values, ddof=1)) / math.sqrt(count)
        half = float(stats.t.ppf(0.5 + _LEVEL / 2, count - 1)) * spread
    return SweepSummary(
        name, measure, count, count if is_one_model else 0, mean, mean - half, mean + half
    )


def sweep_outcome(config: SweepConfig, notify: Notify) -> Outcome:
    """`teal sweep`."""
    summaries = summarise(run_sweep(config, notify))
    return Outcome(
        tables=[_table(config, summaries)],
        written=", ".join(str(config.out / name) for name in FILES),
        data={"summary": summaries},
    )


def _table(config: SweepConfig, summaries: Sequence[SweepSummary]) -> Table:
    summary_of = {(summary.settings, summary.measure): summary for summary in summaries}

    def interval(label: str, measure: str, show: Callable[[float], str]) -> Column:
        def text(settings: str) -> str:
            summary = summary_of.get((settings, measure))
            if summary is None:
                return "-"
            if math.isnan(summary.low):
                return show(summary.mean)
            return f"{show(summary.mean)} ({show(summary.low)}, {show(summary.high)})"

        return Column(
            label, lambda settings: _mean_of(summary_of.get((settings, measure))), text=text
        )

    def kept_text(settings: str) -> str:
        summary = summary_of[settings, "cut"]
        return "-" if settings == _START else f"{summary.kept_start} of {summary.runs}"

    # One row for each settings, one column for each measure.
    columns = (
        Column("settings", str),
        Column("kept the start", kept_text),
        interval("best step", "best_step", digits(3)),
        interval("cut only", "cut", percent),
        interval("own gap", "own_gap", percent),
        interval("satisfied", "satisfied_demand", percent),
        interval("gap by the best bound", "gap_known", percent),
    )
    title = f"{config.seeds} seeds each: mean and 95% interval of the mean"
    return Table(title, columns, list(dict.fromkeys(summary.settings for summary in summaries)))


def _mean_of(summary: SweepSummary | None) -> float:
    return math.nan if summary is None else summary.mean
