"""Exit codes and JSON of commands, against matrices and results made by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from teal.allocation.allocate import AllocatedMatrix
from teal.cli import main
from teal_study.evaluation.race import CROWD, RaceRun

NETWORK = ["--topology", "b4", "--traffic", "gravity:seed=0,count=2,load=3"]


def _matrix(gap: float, status: str) -> AllocatedMatrix:
    return AllocatedMatrix(
        index=0,
        timestamp="2026-01-01T00:00:00",
        status=status,
        solve_s=0.0,
        exact_value=1.0,
        value=1.0,
        bound=1.0,
        gap=gap,
        satisfied_demand=1.0,
        max_link_utilisation=1.0,
        max_violation=0.0,
    )


@pytest.mark.parametrize(
    ("gaps", "status", "expected"),
    [([0.0, 0.01], "feasible", 0), ([0.0, 0.011], "feasible", 3), ([0.0, 0.011], "infeasible", 1)],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_missed_gap_or_an_unusable_matrix_is_in_the_exit_code_of_allocate(
    gaps: list[float],
    status: str,
    expected: int,
    form: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrices = [_matrix(gaps[0], "feasible"), _matrix(gaps[1], status)]
    monkeypatch.setattr("teal.allocation.allocate_command.run_allocate", lambda *_: matrices)
    assert main(["allocate", *NETWORK, "--gap", "0.01", "--out", str(tmp_path), *form]) == expected


def test_a_scheme_that_never_reaches_the_gap_has_null_in_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    runs = [
        RaceRun("b4", "traffic", 0, CROWD, scheme, gap, 2.0, 1, gap, 1.0, "feasible")
        for scheme, gap in (("fast", 0.01), ("never", 0.05), ("broken", math.nan))
    ]
    monkeypatch.setattr("teal_study.evaluation.race.run_race", lambda *_: runs)
    assert main(["evaluate", *NETWORK, "--race", "--out", str(tmp_path), "--json"]) == 0
    times = json.loads(capsys.readouterr().out, parse_constant=refuse)["times_to_gap"]
    assert {one["scheme"]: one["seconds"] for one in times} == {
        "fast": 2.0,
        "never": None,
        "broken": None,
    }
