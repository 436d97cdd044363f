"""Machine code of the package: loaded where the sources, the processor and the content fit, and
compiled anew everywhere else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from teal.runtime import kernel_cache, shipped_kernels

SOURCE = """
import sys
from pathlib import Path
from teal.runtime import kernel_cache, shipped_kernels
from teal.runtime.parallel import inner_kernel, kernel

shipped_kernels.FOLDER = Path(sys.argv[1])
STEP = 3.0

@inner_kernel
def stepped(x):
    return x + STEP

@kernel
def twice(x):
    return stepped(stepped(x))

print(twice(1.0), kernel_cache.num_compiled())
"""
LEVELS = shipped_kernels.levels()

pytestmark = pytest.mark.skipif(not LEVELS, reason="this processor has no level of the package")


def _run(folder: Path, shipped: Path, **settings: str) -> tuple[float, int]:
    """The result in a new process without other kernels, and the number of forms it compiled."""
    settings = {"NUMBA_CACHE_DIR": str(folder / "cache"), "TEAL_SHIPPED_KERNELS": "1", **settings}
    done = subprocess.run(
        [sys.executable, folder / "of_test.py", shipped],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    shutil.rmtree(folder / "cache" / "kernels", ignore_errors=True)
    result, compiled = done.stdout.split()
    return float(result), int(compiled)


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A folder with the forms of two kernels for the first level of this machine."""
    (tmp_path / "of_test.py").write_text(SOURCE)
    made, kept = tmp_path / "made", tmp_path / "shipped"
    settings = {"NUMBA_CACHE_DIR": str(made), **shipped_kernels.settings_of(LEVELS[-1])}
    command = [sys.executable, str(tmp_path / "of_test.py"), str(kept)]
    subprocess.run(command, env=os.environ | settings, capture_output=True, check=True)
    kept.mkdir()
    for form in (made / "kernels").glob("*.nbc"):
        shutil.copyfile(form, kept / form.name)
    shipped_kernels.write_manifest(kept)
    return kept


@pytest.mark.slow
def test_kernels_of_the_package_are_loaded_where_all_fits(tmp_path: Path, shipped: Path) -> None:
    assert _run(tmp_path, shipped) == (7.0, 0)
    assert _run(tmp_path, shipped, TEAL_SHIPPED_KERNELS="0") == (7.0, 2)
    assert _run(tmp_path, shipped, NUMBA_CPU_NAME="nehalem", NUMBA_CPU_FEATURES="")[1] == 2
    at_level = shipped_kernels.settings_of(LEVELS[-1])
    assert _run(tmp_path, shipped, **at_level) == (7.0, 0)
    (tmp_path / "of_test.py").write_text(SOURCE.replace("STEP = 3.0", "STEP = 4.0"))
    assert _run(tmp_path, shipped) == (9.0, 2), "the sources have changed"


@pytest.mark.slow
def test_a_file_whose_content_the_manifest_does_not_name_is_not_loaded(
    tmp_path: Path, shipped: Path
) -> None:
    (form,) = shipped.glob("*twice*.nbc")
    other = next(file for file in shipped.glob("*.nbc") if file != form)
    whole = form.read_bytes()
    for content in (b"", whole[:-1], whole + b"\0", other.read_bytes()):
        form.write_bytes(content)
        assert _run(tmp_path, shipped) == (7.0, 1)
    form.write_bytes(whole)
    assert _run(tmp_path, shipped) == (7.0, 0)
    manifest = json.loads((shipped / shipped_kernels.MANIFEST).read_text())
    del manifest[form.name]
    (shipped / shipped_kernels.MANIFEST).write_text(json.dumps(manifest))
    assert _run(tmp_path, shipped) == (7.0, 1), "no line of the manifest"
    (shipped / shipped_kernels.MANIFEST).write_text("[")
    assert _run(tmp_path, shipped) == (7.0, 2), "no manifest"


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        ((), ["x86-64-v4", "x86-64-v3"]),
        (("avx512bw",), ["x86-64-v3"]),
        (("movbe",), []),
    ],
)
def test_a_level_needs_all_of_its_features(
    monkeypatch: pytest.MonkeyPatch, lacks: tuple[str, ...], expected: list[str]
) -> None:
    features = dict.fromkeys(shipped_kernels._V4, True) | dict.fromkeys(lacks, False)
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: features)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert shipped_kernels.levels() == expected
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert shipped_kernels.levels() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user, as root alone may")
def test_neither_folder_nor_file_of_another_user_is_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    found = kernel_cache.folder()
    assert found == tmp_path / "kernels"
    form = found / "a.nbc"
    form.write_bytes(b"")
    assert kernel_cache._is_trusted(form.stat())
    os.chown(form, 12_345, -1)
    assert not kernel_cache._is_trusted(form.stat())
    os.chown(found, 12_345, -1)
    assert kernel_cache.folder() is None
