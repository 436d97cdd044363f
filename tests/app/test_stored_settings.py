"""A run goes on without repeated options, with the settings that it began with."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import pytest

from teal.app.run_files import save_settings, stored_settings
from teal.cli import main
from teal_study.evaluation.settings import EvaluateConfig
from teal_study.learning.settings import TrainConfig
from teal_study.planning.settings import PlanConfig

COMMAND = [
    "train",
    "--topology",
    "b4",
    "--traffic",
    "gravity:seed=0,count=12,load=2",
    "--validate-every",
    "1",
]


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(
            topology="b4",
            traffic="gravity:seed=0",
            out=Path("x"),
            calibrate=0.9,
            learner="coma",
            num_paths=3,
        ),
        EvaluateConfig(
            topology=("b4",),
            traffic=("gravity:seed=0",),
            out=Path("x"),
            scheme=("pdhg",),
            failures="1,2",
        ),
        PlanConfig(
            topology="b4",
            traffic="gravity",
            out=Path("x"),
            groups=Path("g.csv"),
            failures=("nodes",),
        ),
    ],
)
def test_settings_come_back_with_their_types(
    tmp_path: Path, config: TrainConfig | EvaluateConfig | PlanConfig
) -> None:
    config = dataclasses.replace(config, out=tmp_path / "run")
    save_settings(config)
    assert stored_settings(type(config), tmp_path / "run") == config
    assert stored_settings(type(config), tmp_path) is None


@pytest.mark.slow
def test_training_goes_on_without_options_and_its_log_and_card_say_what_was_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main([*COMMAND, "--max-steps", "2", "--out", str(out)]) == 0
    assert main(["train", "--resume", "--out", str(out), "--max-steps", "3"]) == 0
    with (out / "training.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    steps = [int(row["step"]) for row in rows if row["name"] == "validation/carried"]
    assert steps == sorted(steps)
    assert steps[-1] == 3
    assert {row["name"] for row in rows} > {"validation/carried"}
    card = json.loads((out / "model.json").read_text())
    assert card["training"]["traffic"] == "gravity:seed=0,count=12,load=2"
    assert card["training"]["versions"]["torch"]
    capsys.readouterr()
    assert main(["train", "--resume", "--out", str(tmp_path / "nothing")]) == 2
    (out / "settings.json").write_text("{}")
    assert main(["train", "--resume", "--out", str(out)]) == 2
    assert "wrote these settings" in capsys.readouterr().err
