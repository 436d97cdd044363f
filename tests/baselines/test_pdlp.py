"""PDLP against the LP-all optimum of HiGHS."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from baselines.lp_all import LpAll
from baselines.pdlp import Pdlp, default_threads
from teal.errors import InputError
from teal.objectives import SINGLE_PROGRAMS, ObjectiveName
from teal.problem.assessment import assess
from teal.testing import assert_feasible, random_problem

needs_ortools = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="OR-Tools is not installed"
)


@needs_ortools
@pytest.mark.parametrize(
    "objective", [n for n in SINGLE_PROGRAMS if n is not ObjectiveName.MAX_CONCURRENT_FLOW]
)
@pytest.mark.parametrize("failed", [0, 2, 99])
def test_pdlp_finds_the_optimum(objective: ObjectiveName, failed: int) -> None:
    problem = random_problem(3, objective=objective, failed=failed)
    allocation = Pdlp(accuracy=1e-6, threads=1).solve(problem)
    assert_feasible(problem, allocation)
    measured, optimum = assess(problem, allocation), assess(problem, LpAll().solve(problem))
    torch.testing.assert_close(measured.value, optimum.value, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(measured.bound, optimum.value, rtol=1e-3, atol=1e-4)


def test_pdlp_refuses_max_concurrent_flow() -> None:
    with pytest.raises(InputError, match="max_concurrent_flow"):
        Pdlp().solve(random_problem(0, objective=ObjectiveName.MAX_CONCURRENT_FLOW))


def test_small_programs_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert default_threads(200_000) == 1
    assert default_threads(200_001) == 8
