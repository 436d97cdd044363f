"""Schemes by name, and by the module of a factory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import teal
from teal.errors import InputError

_MODULE = """
import teal


class Even:
    def __init__(self, power):
        self.power = power

    def solve(self, problem):
        return teal.Allocation.of_batch(teal.project(problem, problem.even_splits), None, 0.0)


def make(spec, model=None):
    return Even(spec.parse_options(power=1)["power"])


teal.register_scheme("scheme_under_test", make)
"""


def test_a_module_that_registers_its_own_name_is_still_one_with_a_factory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scheme_under_test.py").write_text(_MODULE)
    monkeypatch.chdir(tmp_path)
    try:
        for power in (2, 3):
            found = teal.make_scheme(f"scheme_under_test:make:power={power}")
            assert found.power == power  # type: ignore[attr-defined]
        assert teal.make_scheme("scheme_under_test:power=4").power == 4  # type: ignore[attr-defined]
        with pytest.raises(InputError, match="power"):
            teal.make_scheme("scheme_under_test:make:sower=2")
    finally:
        sys.modules.pop("scheme_under_test", None)
