"""Commands on small inputs from public reports: each prints the right value, or an error that names
the cure.

``tests/cases/cases.toml`` says of each folder what is right and why, which commands a user types,
and what they have to show.  Patterns are searched in what the commands print and in the tables that
they write.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from teal.cli import main

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
    for command in case["commands"]:
        main(command)
    printed = "".join(capsys.readouterr())
    tables = [
        file.read_text(encoding="utf-8")
        for file in (Path("o/links.csv"), Path("x.csv"))
        if file.is_file()
    ]
    shown = "\n".join([printed, *tables])
    for pattern in case["shows"]:
        assert re.search(pattern, shown), f"{case['right']}: {pattern}\n{shown}"
    for pattern in ["Traceback", *case["never"]]:
        assert not re.search(pattern, shown), f"{case['right']}: {pattern}\n{shown}"
