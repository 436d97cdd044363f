"""Commands on small inputs from public reports: each prints the right value, or an error that names
the cure.

``tests/cases/cases.toml`` says of each folder what is right and why, which commands a user types,
and what they have to show; or which programs of Python a user runs.  Patterns are searched in what they
print and in the tables that they write.
"""

from __future__ import annotations

import re
import runpy
import shutil
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest

from teal.cli import main
from teal.errors import InputError, InputWarning

FOLDER = Path(__file__).parent / "cases"
CASES: dict[str, dict[str, Any]] = tomllib.loads(
    (FOLDER / "cases.toml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", CASES)
def test_a_case(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    shutil.copytree(FOLDER / name, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for program in case.get("python", []):
        _run_program(program)
    for command in case["commands"]:
        main(command)
    printed = "".join(capsys.readouterr())
    written = sorted([*Path("o").glob("*.csv"), *Path().glob("[ox].csv")])
    shown = "\n".join([printed, *(file.read_text(encoding="utf-8") for file in written)])
    for pattern in case["shows"]:
        assert re.search(pattern, shown), f"{case['right']}: {pattern}\n{shown}"
    for pattern in ["Traceback", *case["never"]]:
        assert not re.search(pattern, shown), f"{case['right']}: {pattern}\n{shown}"


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    sys.stdout.write(f"{message}\n")


def _run_program(program: str) -> None:
    """Run a program of the case's folder; its warnings are printed, as Python prints them."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings("always", category=InputWarning)
        warnings.showwarning = _print_warning
        try:
            runpy.run_path(program, run_name="__main__")
        except InputError as error:
            sys.stdout.write(f"{error}\n")
