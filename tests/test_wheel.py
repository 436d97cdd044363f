"""The built wheel against the list of its files, and its results on B4 in an empty environment
against LP-all."""

from __future__ import annotations

import csv
import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from teal.runtime import shipped_kernels

# Installs packages; and shares a folder of compiled kernels with the other tests of the group.
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("machine-code")]

ROOT = Path(__file__).parents[1]
LEVELS = shipped_kernels.levels()
# Of one task alone, for the best level, whose kernels CI has compiled before: all of them take minutes.
_MACHINE_CODE = f"--level {LEVELS[0]} --task paths" if LEVELS else "none"
# What was compiled by a process that calls the kernels of that task.
_CALL = """
from teal.app import warm_up
from teal.runtime import kernel_cache
print(warm_up.missing(["paths", "engine"]))
warm_up.run_task("paths")
print(kernel_cache.num_compiled())
"""


def _run(*command: object, cwd: Path, **settings: str) -> str:
    process = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder,
        ROOT,
        cwd=folder,
        TEAL_MACHINE_CODE=_MACHINE_CODE,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_contains_data_models_and_baselines(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "teal/cli/__init__.py",
        "teal/py.typed",
        "teal/__init__.pyi",
        "baselines/lp_all.py",
        "teal_serve/http/assets/page.html",
        "teal_serve/py.typed",
        "teal_study/__init__.pyi",
        "teal_study/py.typed",
        "teal/_shipped/data/b4.json",
        "teal/_shipped/models/b4/model.safetensors",
    ):
        assert needed in names
    assert ("teal/_shipped/kernels/manifest.json" in names) == bool(LEVELS)
    assert wheel.name.endswith("-any.whl") != bool(LEVELS), "machine code is of one platform"
    assert not [
        name for name in names if name.startswith(("tests", "benchmarks")) or "__pycache__" in name
    ]


def _link_torch(folder: Path) -> None:
    """Give an environment the torch of this one, whose build cannot be had everywhere; all else is
    installed anew."""
    (site,) = folder.glob("lib/*/site-packages")
    files = importlib.metadata.files("torch") or []
    for name in {file.parts[0] for file in files if ".." not in file.parts}:
        (site / name).symlink_to(
            Path(str(importlib.metadata.distribution("torch").locate_file(name)))
        )


def test_the_wheel_evaluates_b4_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    python, teal = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "teal"
    _link_torch(tmp_path / "venv")
    # uv does not see a linked package as installed, and would write another build through the
    # links.
    excluded = tmp_path / "excluded.txt"
    excluded.write_text("torch\n")
    uv = [
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--quiet",
        "--native-tls",
        "--python",
        python,
    ]
    options = ["--constraints", ROOT / "constraints.txt", "--excludes", excluded]
    wanted = importlib.metadata.requires("torch") or []
    of_torch = [
        one for one in wanted if ";" not in one and not one.startswith(("nvidia", "triton", "cuda"))
    ]
    _run(*uv, *options, f"teal-te[baselines] @ file://{wheel}", *of_torch, cwd=tmp_path)
    assert not list(tmp_path.glob("venv/lib/*/site-packages/nvidia*"))
    work_folder = tmp_path / "work"
    work_folder.mkdir()
    assert "evaluate" in _run(teal, "--help", cwd=work_folder)
    locations = _run(
        python,
        "-c",
        "import teal, baselines; print(teal.__file__, baselines.__file__)",
        cwd=work_folder,
    )
    assert str(ROOT) not in locations
    if LEVELS:
        empty = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "TEAL_SHIPPED_KERNELS": "1"}
        called = _run(python, "-c", _CALL, cwd=work_folder, **empty)
        assert called.splitlines() == ["['engine']", "0"]
    instance = [
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=1,count=10,load=4",
        "--calibrate",
        "0.9",
    ]
    _run(
        teal,
        "evaluate",
        *instance,
        "--model",
        "b4",
        "--scheme",
        "teal",
        "--scheme",
        "lp-all",
        "--out",
        "r",
        cwd=work_folder,
    )
    with (work_folder / "r" / "results.csv").open() as stream:
        value = {
            (row["scheme"], row["index"]): float(row["value"]) for row in csv.DictReader(stream)
        }
    assert sum(scheme == "teal" for scheme, _ in value) == 2
    for (scheme, index), reached in value.items():
        if scheme == "teal":
            assert 0.98 * value["lp-all", index] < reached <= value["lp-all", index] * (1 + 1e-6)
