"""Compilation ahead: what is compiled is announced once, and not again; a small network needs
none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from teal.app import machine_code, warm_up
from teal.app import warm_up as study
from teal.cli import main
from teal.cli.commands import COMMANDS
from teal.runtime import shipped_kernels

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
    assert len(warm_up.all_tasks()) > 5
    for command in COMMANDS.values():
        assert set(command.further_kernels) < set(warm_up.all_tasks())
    for num_demands in (0, 1_000_000):
        of_models = warm_up.first_tasks(
            num_demands, ["teal:repair=none", "price-gnn", "lp-all:solver=highs"]
        )
        assert set(of_models) < set(warm_up.all_tasks())
        assert len(of_models) == 5
        assert ("interior points" in of_models) == (not num_demands)


def test_the_first_command_announces_the_compilation_and_the_second_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def compiled(names: Sequence[str], *, workers: int) -> Iterator[str]:
        calls.append(tuple(names))
        for name in names:
            (tmp_path / name).touch()
            yield name

    monkeypatch.setattr(warm_up, "_is_done", lambda task, where: (tmp_path / task).exists())
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
    environment["TEAL_SHIPPED_KERNELS"] = "0"
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
        assert "HiGHS solves this small network" in done.stderr
        assert "compiling" not in done.stderr
    assert not list((tmp_path / "kernels").glob("*.nbc"))


@pytest.mark.system
def test_processes_compile_and_leave_a_marker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TEAL_SHIPPED_KERNELS", "0")
    monkeypatch.setattr("teal.runtime.shipped_kernels.processors", lambda: ())
    names = ("scenarios",)
    assert not warm_up.is_warm(names)
    assert set(warm_up.warm_up(names)) == set(names)
    assert warm_up.is_warm(names)
    assert len(list((tmp_path / "kernels").glob("*.nbc"))) > 10


@pytest.mark.slow
@pytest.mark.xdist_group("machine-code")
def test_the_package_gets_what_the_tasks_load_and_needs_no_task_then(tmp_path: Path) -> None:
    """Machine code of one task, for this machine's best level, in a process that has no other.

    Kernels that the package's own machine code was made of are not compiled again.
    """
    levels = shipped_kernels.levels()
    if not levels:
        pytest.skip("this processor has no level of the package")
    if machine_code.WORK.is_dir():
        shutil.copytree(machine_code.WORK, tmp_path / "work")
    made = machine_code.make(levels[:1], ["paths"], tmp_path / "work", tmp_path / "shipped")
    compiled = list((tmp_path / "work" / levels[0] / "kernels").glob("*.nbc"))
    assert 5 < made < len(compiled), "kernels that other kernels alone call are part of those"
    program = """
        import sys
        from pathlib import Path
        from teal.runtime import kernel_cache, shipped_kernels
        shipped_kernels.FOLDER = Path(sys.argv[1])
        from teal.app import warm_up
        print(warm_up.missing(("paths", "engine")))
        warm_up.run_task("paths")
        print(kernel_cache.num_compiled())
    """
    settings = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "TEAL_SHIPPED_KERNELS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), tmp_path / "shipped"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["['engine']", "0"]


def test_nothing_is_compiled_ahead_where_nothing_can_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "folder", lambda: None)
    monkeypatch.setattr("teal.runtime.shipped_kernels.processors", lambda: ())
    assert warm_up.missing(warm_up.all_tasks()) == []
    assert not warm_up.is_warm()
    study.compile_first(lambda text: pytest.fail(text))


def test_where_the_processor_has_no_level_nothing_is_made_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shipped_kernels, "levels", list)
    out = tmp_path / "shipped"
    out.mkdir()
    monkeypatch.setattr(sys, "argv", ["machine_code", "--best", "--out", str(out)])
    machine_code.main()
    assert "no processor level" in capsys.readouterr().out
    assert not out.exists()
    monkeypatch.setattr(shipped_kernels, "levels", lambda: ["x86-64-v3"])
    monkeypatch.setattr(sys, "argv", ["machine_code", "--level", "x86-64-v4", "--out", str(out)])
    with pytest.raises(SystemExit):
        machine_code.main()
    assert "x86-64-v3, not x86-64-v4" in capsys.readouterr().err
