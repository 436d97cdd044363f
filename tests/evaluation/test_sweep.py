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
from teal.evaluation.record import ROWS
from teal.evaluation.settings import SweepConfig
from teal.evaluation.sweep import SweepRun, summarise

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
    runs = [
        SweepRun("a=1", seed, 1, value, value, value, value, value)
        for seed, value in enumerate(values)
    ]
    (found,) = [one for one in summarise(runs) if one.measure == "validation"]
    low, high = stats.t.interval(0.95, 2, loc=0.7, scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((0.7, low, high))
    assert np.isnan(summarise(runs[:1])[0].low)


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
