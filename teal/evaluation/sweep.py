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
from teal.app.text import percent, ratio_text
from teal.evaluation.evaluate_command import run_evaluate
from teal.evaluation.record import ROWS
from teal.evaluation.rows import Row
from teal.evaluation.settings import EvaluateConfig, SweepConfig
from teal.formats.rows import read_csv, write_csv
from teal.learning.settings import TrainConfig
from teal.learning.train_command import run_train
from teal.runtime.storage import check_out_folder

RUNS, SUMMARY, MANIFEST = "runs.csv", "summary.csv", "manifest.json"
FILES = (RUNS, SUMMARY, MANIFEST, "summary.md", "summary.tex")
_LEVEL = 0.95  # of the confidence intervals
_MEASURES = ("validation", "satisfied_demand", "value", "gap_known", "solve_s")


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """One training run.

    Attributes:
        settings: the varied ones, such as ``learning_rate=0.001``; ``default`` for none.
        seed: seed of the run.
        steps: steps of training.
        validation: best validation score.
        satisfied_demand: mean share of the demand that the model carries, over the test matrices.
        value: mean value.
        gap_known: mean gap by the best bound of the model and of the first-order engine beside it.
        solve_s: median seconds of an allocation.
    """

    settings: str
    seed: int
    steps: int
    validation: float
    satisfied_demand: float
    value: float
    gap_known: float
    solve_s: float


@dataclasses.dataclass(frozen=True)
class SweepSummary:
    """One combination of settings over its seeds.

    Attributes:
        settings: the varied ones.
        measure: name of a column of :class:`SweepRun`.
        runs: n, how many.
        mean: mean of the measure.
        low, high: ends of the 95% interval of the mean, by Student's t with n - 1 degrees; NaN for
            one run.
    """

    settings: str
    measure: str
    runs: int
    mean: float
    low: float
    high: float


def run_sweep(config: SweepConfig, notify: Callable[[str], None]) -> list[SweepRun]:
    """Carry out what is missing, and write the tables after every run.

    Raises:
        InputError: a fault in the settings, or an earlier sweep in OUT that must not be replaced.
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
    """A run, or what is left of it, and its evaluation."""
    folder = (
        config.out
        / "".join(c if c.isalnum() or c in "=,.-" else "-" for c in name)
        / f"seed-{seed}"
    )
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)}
    is_begun = config.resume and (folder / TRAINER).is_file()
    training = TrainConfig(
        **{
            **shared,
            **settings,
            "seed": seed,
            "out": folder,
            "resume": is_begun,
            "overwrite": not is_begun,
        }
    )
    results = folder / "results"
    if not (config.resume and (results / ROWS).is_file()):
        state = run_train(training, notify)
        (folder / "state.json").write_text(json.dumps(dataclasses.asdict(state)), encoding="utf-8")
        _evaluate(config, training, results, notify)
    state_of = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    rows = [row for row in read_csv(results / ROWS, Row) if row.scheme == training.scheme]
    return SweepRun(
        name,
        seed,
        state_of["step"],
        state_of["best"],
        _mean(rows, "satisfied_demand"),
        _mean(rows, "value"),
        _mean(rows, "gap_known"),
        float(np.median([row.solve_s for row in rows])),
    )


def _evaluate(
    config: SweepConfig, training: TrainConfig, out: Path, notify: Callable[[str], None]
) -> None:
    names = {field.name for field in dataclasses.fields(EvaluateConfig)}
    own = (
        "topology",
        "traffic",
        "model",
        "out",
        "resume",
        "overwrite",
    )  # of other meaning in an evaluation
    shared = {
        field.name: getattr(training, field.name)
        for field in dataclasses.fields(TrainConfig)
        if field.name in names and field.name not in own
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
    """A row for each combination and measure, in the order of the runs."""
    summaries = []
    for settings in dict.fromkeys(run.settings for run in runs):
        own = [run for run in runs if run.settings == settings]
        for measure in _MEASURES:
            values = np.array([getattr(run, measure) for run in own])
            mean, half = float(values.mean()), math.nan
            if len(values) > 1:
                half = float(
                    stats.t.ppf(0.5 + _LEVEL / 2, len(values) - 1)
                    * values.std(ddof=1)
                    / math.sqrt(len(values))
                )
            summaries.append(
                SweepSummary(settings, measure, len(own), mean, mean - half, mean + half)
            )
    return summaries


def sweep_outcome(config: SweepConfig, notify: Notify) -> Outcome:
    """`teal sweep`."""
    summaries = summarise(run_sweep(config, notify))
    return Outcome(
        tables=[_table(config, summaries)],
        written=", ".join(str(config.out / name) for name in FILES),
        data={"summary": summaries},
    )


def _table(config: SweepConfig, summaries: Sequence[SweepSummary]) -> Table:
    of = {(one.settings, one.measure): one for one in summaries}

    def interval(label: str, measure: str, show: Callable[[float], str]) -> Column:
        def text(one: SweepSummary) -> str:
            return f"{show(one.mean)} ({show(one.low)}, {show(one.high)})"

        return Column(label, lambda settings: of[settings, measure], text)

    columns = (
        Column("settings", str),
        interval("validation", "validation", ratio_text),
        interval("satisfied", "satisfied_demand", percent),
        interval("gap by the best bound", "gap_known", percent),
    )
    title = f"{config.seeds} seeds each: mean and 95% interval of the mean"
    return Table(title, columns, list(dict.fromkeys(one.settings for one in summaries)))
