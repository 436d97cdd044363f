"""Compilation ahead: what is compiled is announced once, and not again; a small network needs
none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from teal.app import warm_up
from teal.app import warm_up as study
from teal.cli import main
from teal.cli.commands import COMMANDS

LARGE = [
    "solve",
    "--topology",
    "topohub:sndlib/germany50",
    "--traffic",
    "gravity:seed=0,load=2",
    "--num-paths",
    "1",
]


@pytest.mark.parametrize("name", ["paths", "engine", "engine in double precision"])
def test_tasks_run_in_any_process(name: str) -> None:
    warm_up.run_task(name)


def test_every_task_of_a_first_solve_exists() -> None:
    assert set(warm_up.first_tasks()) < set(warm_up.all_tasks())
    assert set(warm_up.first_tasks(1_000_000)) < set(warm_up.all_tasks())
    assert not set(warm_up.first_tasks()) & set(warm_up.first_tasks(1_000_000))
    assert len(warm_up.all_tasks()) > 5
    for command in COMMANDS.values():
        assert set(command.further_kernels) < set(warm_up.all_tasks())
    for num_demands in (0, 1_000_000):
        of_models = warm_up.first_tasks(
            num_demands, ["teal:repair=none", "price-gnn", "lp-all:solver=highs"]
        )
        assert set(of_models) < set(warm_up.all_tasks())
        assert len(of_models) == (4 if num_demands else 5), "interior points are for small networks"


def test_the_first_command_announces_the_compilation_and_the_second_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def compiled(names: Sequence[str], *, workers: int) -> Iterator[str]:
        calls.append(tuple(names))
        for name in names:
            (tmp_path / name).touch()
            yield name

    monkeypatch.setattr(warm_up, "_marker", lambda task: tmp_path / task)
    monkeypatch.setattr(study, "warm_up", compiled)
    assert main(LARGE) == 0
    assert "compiling for this machine" in capsys.readouterr().err
    assert main(LARGE) == 0
    assert "compiling" not in capsys.readouterr().err
    assert calls == [warm_up.first_tasks()], "only what a first solve needs"
    assert main(["warm-up"]) == 0
    assert calls[1:] == [warm_up.all_tasks()]


@pytest.mark.system
def test_the_first_solve_of_a_small_network_compiles_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "TEAL_CACHE_DIR": str(tmp_path)}
    for objective in ("total_flow", "max_link_utilisation"):
        words = [
            "solve",
            "--topology",
            "b4",
            "--traffic",
            "gravity:seed=0,load=8",
            "--objective",
            objective,
        ]
        done = subprocess.run(
            [sys.executable, "-m", "teal", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert "gap 0.000%" in done.stdout
        assert "HiGHS solves a network of this size" in done.stderr
        assert "compiling" not in done.stderr
    assert not list((tmp_path / "kernels").glob("*.nbc"))


@pytest.mark.system
def test_processes_compile_and_leave_a_marker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    names = warm_up.first_tasks()
    assert not warm_up.is_warm(names)
    assert set(warm_up.warm_up(names)) == set(names)
    assert warm_up.is_warm(names)
    assert len(list((tmp_path / "kernels").glob("*.nbc"))) > 30


def test_nothing_is_compiled_ahead_where_nothing_can_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "folder", lambda: None)
    assert warm_up.missing(warm_up.all_tasks()) == []
    assert not warm_up.is_warm()
    study.compile_first(lambda text: pytest.fail(text))
