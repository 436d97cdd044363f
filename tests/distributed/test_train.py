"""Training in several processes through Ray Train."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("ray.train", reason="needs Ray: pip install '.[ray]'")

from teal.cli import main
from teal.learning.run_state import RUN, load_run
from tests.distributed.slow import slowed

pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time

SETTINGS = ["--topology", "b4", "--traffic", "gravity:seed=0,count=40,load=3", "--learner", "coma"]
SETTINGS += ["--batch-size", "27", "--layers", "2", "--max-steps", "40"]
SETTINGS += ["--validation-matrices", "4", "--validate-every", "5"]
TOLERANCE = 1e-5  # of weights up to 3: the same sums in another order.  Later kinks of the loss blow that up


def _command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "teal", "train", *SETTINGS, "--out", str(out), *more]


def _until_step(out: Path, step: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        try:
            if json.loads((out / "progress.json").read_text())["step"] >= step:
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.05)
    raise AssertionError("it does not get on")


def test_a_killed_worker_and_an_interruption_change_nothing(tmp_path: Path) -> None:
    """Two workers, one killed on the way, then Ctrl-C, then --resume: the weights are those of one process."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert main(_command(alone)[3:]) == 0

    slow = slowed(tmp_path, "teal.learning.train", "Trainer", "_step", 0.3)
    process = subprocess.Popen(
        _command(together, "--workers", "2"), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=slow
    )
    _until_step(together, 8, process)
    (victim, *_) = [
        member
        for member in psutil.Process(process.pid).children(recursive=True)
        if "RayTrainWorker" in "".join(member.cmdline()[:1])
    ]
    victim.kill()
    (together / "progress.json").unlink()
    _until_step(together, 20, process)
    before = load_run(together)[1]["state"]["step"]
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=60)
    assert process.returncode == 130, (said, complaint)
    assert "--resume" in complaint
    assert not psutil.pid_exists(victim.pid)

    ended = subprocess.run(
        _command(together, "--workers", "2", "--resume"), text=True, capture_output=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    assert load_run(together)[1]["state"]["step"] == 40 > before
    own, other = (load_file(folder / RUN) for folder in (together, alone))
    assert own.keys() == other.keys()
    for name, value in own.items():
        if name.startswith("model."):
            torch.testing.assert_close(value, other[name], atol=TOLERANCE, rtol=TOLERANCE)
    assert sorted(path.name for path in together.iterdir()) == sorted(path.name for path in alone.iterdir())


def test_a_fault_of_the_user_is_said_once_and_files_may_be_relative(tmp_path: Path) -> None:
    """A learning rate that no weight survives, and traffic from a file: one line, and no process is started anew."""
    generate = ["teal", "traffic", "generate", "--topology", "b4", "--traffic", "gravity:seed=0,count=40,load=3"]
    subprocess.run([sys.executable, "-m", *generate, "--out", "t.parquet"], check=True, cwd=tmp_path, env=_here())
    command = [sys.executable, "-m", "teal", "train", "--topology", "b4", "--traffic", "t.parquet", "--out", "run"]
    command += ["--workers", "2", "--layers", "2", "--learning-rate", "1e30", "--max-steps", "50"]
    ended = subprocess.run(command, text=True, capture_output=True, timeout=200, cwd=tmp_path, env=_here(), check=False)
    assert ended.returncode == 2, ended.stderr
    assert "a finite loss; try a lower --learning-rate" in ended.stderr
    assert not (tmp_path / "run" / "fault.json").exists()


def _here() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def test_more_workers_than_cpus_are_refused(tmp_path: Path) -> None:
    ended = subprocess.run(_command(tmp_path / "run", "--workers", "5000"), text=True, capture_output=True, timeout=200)
    assert ended.returncode == 2
    assert "--workers" in ended.stderr
    assert "the CPUs of the cluster" in ended.stderr
