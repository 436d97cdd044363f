"""Compilation ahead: what is compiled is announced once, and not again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from teal.cli import main
from teal.evaluation import warm_up
from teal.studies import warm_up as study

SOLVE = ["solve", "--topology", "b4", "--traffic", "gravity:seed=0,load=2"]


@pytest.mark.parametrize("name", ["paths", "engine", "engine in double precision"])
def test_tasks_run_in_any_process(name: str) -> None:
    warm_up.run_task(name)


def test_every_task_of_a_first_solve_exists() -> None:
    assert warm_up.num_tasks(everything=False) == 2
    assert warm_up.num_tasks(everything=True) > 5


def test_the_first_command_announces_the_compilation_and_the_second_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stamp, calls = tmp_path / "stamp", []

    def compiled(*, everything: bool, workers: int) -> Iterator[str]:
        calls.append(everything)
        stamp.touch()
        yield "engine"

    monkeypatch.setattr(warm_up, "_stamp", lambda *, everything: stamp)
    monkeypatch.setattr(study, "warm_up", compiled)
    assert main(SOLVE) == 0
    assert "compiling for this machine" in capsys.readouterr().err
    assert main(SOLVE) == 0
    assert "compiling" not in capsys.readouterr().err
    assert calls == [False], "only what a first solve needs"
    assert main(["warm-up"]) == 0
    assert calls == [False, True]


@pytest.mark.system
def test_processes_compile_and_leave_a_stamp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not warm_up.is_warm()
    assert set(warm_up.warm_up(everything=False)) == {"paths", "engine"}
    assert warm_up.is_warm()
