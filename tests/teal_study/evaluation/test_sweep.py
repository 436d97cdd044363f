"""Sweeps: every combination and seed once, intervals by Student's t, and nothing lost by an
interruption."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from teal.cli import main
from teal.errors import InputError
from teal_study.evaluation.record import ROWS
from teal_study.evaluation.settings import SweepConfig
from teal_study.evaluation.sweep import SweepRun, SweepSummary, summarise

COMMAND = [
    "sweep",
    "--topology",
    "b4",
    "--traffic",
    "gravity:seed=0,count=12,load=3",
    "--max-steps",
    "1",
]


def test_intervals_are_those_of_students_t() -> None:
    values = [0.5, 0.7, 0.9]
    runs = [_run(seed, 1, value) for seed, value in enumerate(values)]
    found = _of(summarise(runs), "a=1", "validation")
    low, high = stats.t.interval(0.95, 2, loc=0.7, scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((0.7, low, high))
    assert np.isnan(_of(summarise(runs[:1]), "a=1", "validation").low)


def test_runs_that_kept_the_start_say_so_and_have_no_interval() -> None:
    """Three runs from one model: in all of them, or in two, no step was better than the start."""
    of_all = summarise([_run(seed, 0, 0.7) for seed in range(3)])
    kept = _of(of_all, "a=1", "cut")
    assert (kept.kept_start, kept.runs) == (3, 3)
    assert kept.mean == pytest.approx(0.7)
    assert np.isnan(kept.low)
    start = _of(of_all, "start", "cut")
    assert start.mean == pytest.approx(0.6)
    assert np.isnan(start.low)
    some = _of(summarise([_run(0, 0, 0.6), _run(1, 0, 0.6), _run(2, 9, 0.9)]), "a=1", "cut")
    assert some.kept_start == 2
    assert some.low < 0.7 < some.high


def _run(seed: int, best_step: int, value: float) -> SweepRun:
    return SweepRun(
        settings="a=1",
        seed=seed,
        steps=10,
        best_step=best_step,
        validation=value,
        cut=value,
        own_gap=value,
        start_cut=0.6,
        start_own_gap=0.1,
        satisfied_demand=value,
        value=value,
        gap_known=value,
        solve_s=value,
    )


def _of(summaries: list[SweepSummary], settings: str, measure: str) -> SweepSummary:
    (found,) = [one for one in summaries if (one.settings, one.measure) == (settings, measure)]
    return found


@pytest.mark.slow
def test_combinations_and_seeds_are_run_and_a_resumed_sweep_gives_the_same(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    options = [
        "--vary",
        "learning_rate=1e-3,1e-2",
        "--from",
        "none",
        "--seeds",
        "2",
        "--limit",
        "1",
        "--quiet",
    ]
    assert main([*COMMAND, *options, "--out", str(out)]) == 0

    def table() -> list[dict[str, str]]:
        with (out / "runs.csv").open(newline="") as stream:
            return [
                {k: v for k, v in row.items() if k != "solve_s"} for row in csv.DictReader(stream)
            ]

    rows = table()
    assert [(row["settings"], row["seed"]) for row in rows] == [
        (f"learning_rate={rate}", str(seed)) for rate in (0.001, 0.01) for seed in (0, 1)
    ]
    first, second = (
        load_file(out / "learning-rate=0.001" / f"seed-{seed}" / "model.safetensors")
        for seed in (0, 1)
    )
    assert any(not torch.equal(weight, second[name]) for name, weight in first.items()), (
        "seeds matter"
    )
    shutil.rmtree(out / "learning-rate=0.01" / "seed-1")
    assert main(["sweep", "--resume", "--out", str(out), "--quiet"]) == 0
    assert table() == rows


@pytest.mark.slow
def test_price_models_are_evaluated_by_their_own_scheme(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    options = [
        "--model",
        "price",
        "--vary",
        "batch_size=1",
        "--seeds",
        "1",
        "--limit",
        "1",
        "--quiet",
    ]
    assert main([*COMMAND, *options, "--out", str(out)]) == 0
    (folder,) = out.glob("*/seed-0/results")
    with (folder / ROWS).open(newline="") as stream:
        assert {row["scheme"] for row in csv.DictReader(stream)} == {"price-gnn", "pdhg"}
    with (out / "runs.csv").open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert 0 < float(row["satisfied_demand"]) <= 1


@pytest.mark.parametrize("vary", ["speed=1", "learning_rate", "batch_size=many", "seed=1,2"])
def test_what_train_does_not_have_is_refused(vary: str) -> None:
    with pytest.raises(InputError, match="--vary"):
        SweepConfig(topology="b4", traffic="gravity", out=Path("x"), vary=(vary,))
