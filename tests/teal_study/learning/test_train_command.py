"""Training in several processes through Ray, against training in one."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from teal.app.run_files import TRAINER
from teal.cli import main
from teal_study.learning.run_state import load_run
from tests.gate import PATIENCE_S, Gate
from tests.processes import running

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("ray-b"),
]  # two of the groups at a time are enough for two cores

SETTINGS = ["--topology", "b4", "--traffic", "gravity:seed=0,count=40,load=3", "--learner", "coma"]
SETTINGS += ["--batch-size", "9", "--from", "none:layers=2"]
SETTINGS += ["--validation-matrices", "4", "--validate-every", "2"]
# Of weights up to 3, for sums in another order.  More steps would enlarge the difference at kinks
# of the loss, by how much depends on the processor.
TOLERANCE = 1e-5
STEPS = 6


def _command(out: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "teal",
        "train",
        *SETTINGS,
        "--max-steps",
        str(STEPS),
        "--out",
        str(out),
        *more,
    ]


def _assert_same_weights(one: Path, other: Path, tolerance: float) -> None:
    state, expected = (load_file(folder / TRAINER) for folder in (one, other))
    assert state.keys() == expected.keys()
    apart = weights = 0
    for name, value in state.items():
        if name.endswith(".exp_avg"):  # Adam's mean gradient
            torch.testing.assert_close(value, expected[name], atol=tolerance, rtol=tolerance)
        elif name.startswith("model."):
            apart += int(
                ((value - expected[name]).abs() > tolerance * (1 + expected[name].abs())).sum()
            )
            weights += value.numel()
    # Adam divides a gradient by its own size, so that the rounding error of one of nearly 0 moves
    # its weight.
    assert apart <= (1e-3 * weights if tolerance else 0)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, local_ray: Any) -> Path:
    """The folder of a run of two workers that nothing disturbed."""
    folder = tmp_path_factory.mktemp("training") / "together"
    assert main(_command(folder, "--workers", "2")[3:]) == 0
    return folder


def test_two_workers_take_the_steps_of_one_process(tmp_path: Path, together: Path) -> None:
    alone = tmp_path / "alone"
    assert main(_command(alone)[3:]) == 0
    _assert_same_weights(together, alone, TOLERANCE)
    assert sorted(path.name for path in together.iterdir()) == sorted(
        path.name for path in alone.iterdir()
    )


def test_a_killed_worker_and_an_interruption_change_no_weight(
    tmp_path: Path, together: Path
) -> None:
    """Two workers, one killed on the way, then Ctrl-C, then --resume: exactly the weights of two
    left alone."""
    disturbed = tmp_path / "disturbed"
    # Each process stops before its third step: step 3, and after the restart from the validation
    # at step 2, step 5.
    gate = Gate(tmp_path / "gate", "teal_study.learning.train", "Trainer", "one_step", 2)
    with running(_command(disturbed, "--workers", "2"), gate.environment) as process:
        first = gate.wait_for(2, process)
        psutil.Process(min(first)).kill()
        gate.wait_for(2, process, earlier=first)
        assert load_run(disturbed)[1]["state"]["step"] == 4
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130, (printed, errors)
        assert "--resume" in errors
        assert not psutil.pid_exists(min(first))

    assert main(_command(disturbed, "--workers", "2", "--resume")[3:]) == 0
    assert load_run(disturbed)[1]["state"]["step"] == STEPS
    _assert_same_weights(disturbed, together, 0.0)


def test_a_fault_of_the_user_is_said_once_and_files_may_be_relative(
    tmp_path: Path,
    local_ray: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A learning rate that no weight survives, and traffic from a file: one line, and no process is
    started anew."""
    monkeypatch.chdir(tmp_path)
    assert main(["traffic", "generate", *SETTINGS[:4], "--out", "t.parquet"]) == 0
    command = [
        "train",
        "--topology",
        "b4",
        "--traffic",
        "t.parquet",
        "--out",
        "run",
        "--workers",
        "2",
    ]
    command += ["--from", "none:layers=2", "--learning-rate", "1e30", "--max-steps", "10"]
    assert main(command) == 2
    errors = capsys.readouterr().err
    assert "the loss is not finite" in errors
    assert "try a lower --learning-rate" in errors
    assert errors.count("the loss is not finite") == 1


def test_more_workers_than_cpus_are_refused(
    tmp_path: Path, local_ray: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_command(tmp_path / "run", "--workers", "5000")[3:]) == 2
    errors = capsys.readouterr().err
    assert "--workers" in errors
    assert "CPUs of the cluster" in errors
