"""Compiled kernels, against what is left of an earlier version."""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path

import numba
import pytest

from teal.runtime.parallel import kernel

_SOURCE = """
def doubled(x):
    return 2 * x
"""


def _imported(path: Path, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("left_over", ["a class that is gone", "half a file"])
def test_a_cache_of_an_earlier_version_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_over: str
) -> None:
    path = tmp_path / "kernels_of_test.py"
    path.write_text(_SOURCE)
    module = _imported(path, "kernels_of_test")
    monkeypatch.setitem(sys.modules, "kernels_of_test", module)
    assert kernel(module.doubled)(3) == 6
    (index,) = tmp_path.rglob("*.nbi")
    gone = type("Gone", (), {"__module__": "kernels_of_test"})
    module.Gone = gone  # type: ignore[attr-defined]
    content = pickle.dumps(numba.__version__) + pickle.dumps(((0, 0), {gone: "x"}))
    index.write_bytes(content if left_over == "a class that is gone" else content[: len(content) // 2])
    del module.Gone
    assert kernel(_imported(path, "kernels_of_test").doubled)(4) == 8
