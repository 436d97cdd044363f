"""``teal sweep``: training runs over settings and seeds, each evaluated, in one table."""

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
from teal.formats.rows import read_csv, write_csv
from teal.runtime.storage import check_out_folder
from teal_study.evaluation.evaluate_command import run_evaluate
from teal_study.evaluation.record import ROWS
from teal_study.evaluation.rows import Row
from teal_study.evaluation.settings import EvaluateConfig, SweepConfig
from teal_study.learning.settings import TrainConfig
from teal_study.learning.train_command import RUN, run_train

RUNS = "runs.csv"
SUMMARY = "summary.csv"
MANIFEST = "manifest.json"
FILES = (RUNS, SUMMARY, MANIFEST, "summary.md", "summary.tex")
# Level of the confidence intervals.
_CONFIDENCE_LEVEL = 0.95
# Columns of runs that are summarised.
_METRICS = (
    "validation",
    "cut",
    "own_gap",
    "best_step",
    "satisfied_demand",
    "value",
    "gap_known",
    "solve_s",
)
# Settings of the table's row for the initial models, from which the runs start.
_INITIAL_MODELS = "start"


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """Result of one training run.

    Attributes:
        settings: varied settings, such as ``learning_rate=0.001``; ``default`` for none.
        seed: seed of the run.
        steps: number of training steps.
        best_step: step of the returned weights; 0 for the initial ones.
        validation: share of demand that the model alone serves on the validation matrices, with
            splits cut to fit.
        cut: share of demand that the model alone serves on the test matrices, with splits cut to
            fit.
        own_gap: certified gap of the cut splits by the model's own prices, on the test matrices.
        start_cut, start_own_gap: ``cut`` and ``own_gap`` of the initial model.
        satisfied_demand: mean served share of the demand, over the test matrices.
        value: mean value.
        gap_known: mean gap by the better bound of the trained scheme and PDHG.
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
    """Mean of one metric of a combination of settings over its seeds, or of the initial models.

    Attributes:
        settings: varied settings; ``start`` for the initial models.
        measure: name of the metric, a column of :class:`SweepRun`.
        runs: number of runs, n.
        kept_start: number of runs in which no step scored better than the initial model.
        mean: mean of the metric.
        low, high: ends of the 95% interval of the mean, by Student's t with n - 1 degrees of
            freedom; NaN for one run, and if all runs returned the same initial weights.
    """

    settings: str
    measure: str
    runs: int
    kept_start: int
    mean: float
    low: float
    high: float


def run_sweep(config: SweepConfig, notify: Callable[[str], None]) -> list[SweepRun]:
    """Train and evaluate the runs of a sweep, write the tables after every run, and return all
    runs; with --resume, results of an earlier sweep are reused.

    Args:
        config: the settings.
        notify: called with the progress.

    Raises:
        InputError: invalid settings, or an existing sweep in OUT without --overwrite.
    """
    if not config.resume:
        check_out_folder(
            config.out, (*FILES, SETTINGS), overwrite=config.overwrite, hint=RESUME_HINT
        )
    save_settings(config)
    # Train and evaluate run by run; the tables have the runs so far.
    runs: list[SweepRun] = []
    run_plans = list(_run_plans(config))
    for run_index, (name, settings, seed) in enumerate(run_plans):
        notify(f"run {run_index + 1} of {len(run_plans)}: {name}, seed {seed}")
        runs.append(_measure_run(config, name, settings, seed, notify))
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


def _run_plans(config: SweepConfig) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield the name of its combination of settings, the varied settings and the seed of each
    run.
    """
    for settings in config.combinations():
        name = (
            ",".join(f"{key.rstrip('_')}={value}" for key, value in settings.items()) or "default"
        )
        for seed in range(config.seed, config.seed + config.seeds):
            yield name, settings, seed


def _measure_run(
    config: SweepConfig,
    settings_name: str,
    settings: dict[str, Any],
    seed: int,
    notify: Callable[[str], None],
) -> SweepRun:
    """Return the metrics of a run, which is trained and evaluated unless an earlier sweep has done
    so.

    Args:
        config: settings of the sweep.
        settings_name: name of the combination of settings.
        settings: settings that differ from those of the sweep.
        seed: seed of the run.
        notify: called with the progress.
    """
    # Train, unless an earlier sweep has finished this run; the folder is named after the settings.
    folder_name = "".join(c if c.isalnum() or c in "=,.-" else "-" for c in settings_name)
    folder = config.out / folder_name / f"seed-{seed}"
    training_config = _training_settings(config, settings, seed, folder)
    if not (config.resume and (folder / RUN).is_file()):
        run_train(training_config, notify)
    run_state = json.loads((folder / RUN).read_text(encoding="utf-8"))
    # No validation had a finite score, so there is no model: all nine metrics are NaN.
    if run_state["gain"] is None:
        return SweepRun(settings_name, seed, run_state["step"], 0, *[math.nan] * 9)
    # Evaluate the trained model, unless an earlier sweep has done so.
    results_folder = folder / "results"
    if not (config.resume and (results_folder / ROWS).is_file()):
        _evaluate(config, training_config, results_folder, notify)
    # Metrics of the model alone, trained and initial, and of its allocations.
    trained_metrics, initial_metrics = run_state["gain"]["rows"][:2]
    rows = [
        row for row in read_csv(results_folder / ROWS, Row) if row.scheme == training_config.scheme
    ]
    return SweepRun(
        settings_name,
        seed,
        run_state["step"],
        run_state["best_step"],
        run_state["best"],
        trained_metrics["cut"],
        trained_metrics["gap"],
        initial_metrics["cut"],
        initial_metrics["gap"],
        _mean(rows, "satisfied_demand"),
        _mean(rows, "value"),
        _mean(rows, "gap_known"),
        float(np.median([row.solve_s for row in rows])),
    )


def _training_settings(
    config: SweepConfig, settings: dict[str, Any], seed: int, folder: Path
) -> TrainConfig:
    """Return the settings of a training run in ``folder``; with --resume it continues there.

    Args:
        config: settings of the sweep.
        settings: settings that differ in this run.
        seed: seed of the run.
        folder: output folder of the run.
    """
    shared_options = {
        field.name: getattr(config, field.name) for field in dataclasses.fields(TrainConfig)
    }
    resumes = config.resume and (folder / TRAINER).is_file()
    return TrainConfig(
        **{
            **shared_options,
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
    """Evaluate a trained model, with PDHG beside it for the best bound.

    Args:
        config: settings of the sweep.
        training: settings of the training run.
        out: folder for the results.
        notify: called with the progress.
    """
    evaluate_fields = {field.name for field in dataclasses.fields(EvaluateConfig)}
    # Options that have another meaning in an evaluation, and are set below.
    replaced_fields = (
        "topology",
        "traffic",
        "model",
        "out",
        "resume",
        "overwrite",
    )
    shared_options = {
        field.name: getattr(training, field.name)
        for field in dataclasses.fields(TrainConfig)
        if field.name in evaluate_fields and field.name not in replaced_fields
    }
    # The trained scheme and PDHG on the network of the run.
    evaluate_config = EvaluateConfig(
        topology=(training.topology,),
        traffic=(training.traffic,),
        model=(training.out,),
        scheme=(training.scheme, "pdhg"),
        limit=config.limit,
        out=out,
        overwrite=True,
        **shared_options,
    )
    run_evaluate(evaluate_config, notify)


def _mean(rows: Sequence[Row], column: str) -> float:
    """Return the mean of a column over rows; a failed case counts as if nothing were carried.

    Args:
        rows: rows of one scheme.
        column: name of a numeric column.
    """
    return float(np.mean([row.counted(column) for row in rows]))


def summarise(runs: Sequence[SweepRun]) -> list[SweepSummary]:
    """Return the mean of each metric: first of the initial models, then of each combination of
    settings in the order of the runs.

    Args:
        runs: all runs so far.
    """
    summaries = []
    for metric in ("cut", "own_gap"):
        values = [getattr(run, f"start_{metric}") for run in runs]
        # If all runs start from one model, their initial values are equal; random initial weights
        # differ by seed.
        summaries.append(
            _summary(_INITIAL_MODELS, metric, values, is_one_model=len(set(values)) == 1)
        )
    # Each combination of settings; its runs have one model if all of them returned their initial
    # weights, and these are equal.
    for settings in dict.fromkeys(run.settings for run in runs):
        setting_runs = [run for run in runs if run.settings == settings]
        num_kept_start = sum(not run.best_step for run in setting_runs)
        for metric in _METRICS:
            values = [getattr(run, metric) for run in setting_runs]
            is_one_model = (
                num_kept_start == len(setting_runs)
                and len({run.start_cut for run in setting_runs}) == 1
            )
            summaries.append(
                dataclasses.replace(
                    _summary(settings, metric, values, is_one_model=is_one_model),
                    kept_start=num_kept_start,
                )
            )
    return summaries


def _summary(
    settings_name: str, metric: str, values: Sequence[float], *, is_one_model: bool
) -> SweepSummary:
    """Return mean and 95% interval of the values of a metric.

    Args:
        settings_name: name of the combination of settings.
        metric: name of the metric.
        values: value of each run.
        is_one_model: whether all values are of the same model: then there is no interval.
    """
    mean = float(np.mean(values))
    half_width = math.nan
    count = len(values)
    if count > 1 and not is_one_model:
        standard_error = float(np.std(values, ddof=1)) / math.sqrt(count)
        half_width = float(stats.t.ppf(0.5 + _CONFIDENCE_LEVEL / 2, count - 1)) * standard_error
    return SweepSummary(
        settings_name,
        metric,
        count,
        count if is_one_model else 0,
        mean,
        mean - half_width,
        mean + half_width,
    )


def sweep_outcome(config: SweepConfig, notify: Notify) -> Outcome:
    """Run ``teal sweep``; return the table of means by settings, and the files.

    Args:
        config: the settings.
        notify: called with the progress.
    """
    summaries = summarise(run_sweep(config, notify))
    return Outcome(
        tables=[_table(config, summaries)],
        written=", ".join(str(config.out / name) for name in FILES),
        data={"summary": summaries},
    )


def _table(config: SweepConfig, summaries: Sequence[SweepSummary]) -> Table:
    """Return the table of a sweep: settings as rows, metrics with their intervals as columns.

    Args:
        config: settings of the sweep.
        summaries: means by settings and metric.
    """
    summary_of = {(summary.settings, summary.measure): summary for summary in summaries}

    def metric_column(label: str, metric: str, show: Callable[[float], str]) -> Column:
        """Return the column of a metric, with its interval in brackets.

        Args:
            label: heading.
            metric: name of the metric.
            show: formats a value.
        """

        def cell_text(settings: str) -> str:
            """Return the mean of the metric and its interval; "-" without a summary."""
            summary = summary_of.get((settings, metric))
            if summary is None:
                return "-"
            if math.isnan(summary.low):
                return show(summary.mean)
            return f"{show(summary.mean)} ({show(summary.low)}, {show(summary.high)})"

        return Column(
            label, lambda settings: _mean_of(summary_of.get((settings, metric))), text=cell_text
        )

    def kept_text(settings: str) -> str:
        """Return the number of runs that returned their initial weights, of all runs."""
        summary = summary_of[settings, "cut"]
        return "-" if settings == _INITIAL_MODELS else f"{summary.kept_start} of {summary.runs}"

    # One row for each combination of settings, one column for each metric.  Cut only: the
    # model's splits, cut to fit the capacities without repair.  Own gap: by the model's own prices.
    columns = (
        Column("settings", str),
        Column("kept the start", kept_text),
        metric_column("best step", "best_step", digits(3)),
        metric_column("cut only", "cut", percent),
        metric_column("own gap", "own_gap", percent),
        metric_column("satisfied", "satisfied_demand", percent),
        metric_column("gap by the best bound", "gap_known", percent),
    )
    title = f"{config.seeds} seeds each: mean and 95% interval of the mean"
    return Table(title, columns, list(dict.fromkeys(summary.settings for summary in summaries)))


def _mean_of(summary: SweepSummary | None) -> float:
    """Return the mean of a summary; NaN for None."""
    return math.nan if summary is None else summary.mean
