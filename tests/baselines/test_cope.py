"""COPE against its two limits: oblivious routing, and the best splits for the measured matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baselines.cope import Cope
from baselines.linear_program import LpSettings
from baselines.oblivious import RatioProgram
from teal.cli import main
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.schemes.past import Past
from teal.solvers import pipeline
from teal.solvers.pdhg.scenarios.solver import solve_scenarios
from teal.testing import random_problem
from tests.baselines.test_oblivious import worst_ratio
from tests.teal_next.series import past_of

MLU = ObjectiveName.MAX_LINK_UTILISATION


@pytest.fixture(scope="module")
def past() -> Past:
    problem = random_problem(3, objective=MLU, batch=1)
    demand = problem.demand.numpy() * np.random.default_rng(0).lognormal(
        0, 0.5, (6, problem.paths.num_demands)
    )
    return past_of(problem, demand)


def _measured(problem: Problem, splits: torch.Tensor) -> float:
    """The largest ratio over the measured matrices."""
    optimum = pipeline.solve(problem, gap=1e-5).value
    several = splits.expand(problem.batch, -1, -1)
    return float((problem.utilisation(several).amax(1) / optimum).max())


def test_the_penalty_is_kept_and_buys_a_better_ratio_for_what_was_measured(past: Past) -> None:
    problem = past.last(6)
    least = float(RatioProgram.of(past.network).solve_min_ratio(LpSettings())[-1])
    ratios = []
    for penalty in (1.0, 1.2, 2.0, 100.0):
        splits = Cope(6, penalty, 1, LpSettings()).allocate(past)
        assert worst_ratio(past.network, splits) <= penalty * least * (1 + 1e-6)
        ratios.append(_measured(problem, splits))
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > ratios[-1] + 1e-3
    # Without a penalty that binds: no splits have a smaller largest ratio, found here as a scenario
    # program.
    optimum = pipeline.solve(problem, gap=1e-5).value
    scaled = problem.with_demand(problem.demand / optimum[:, None])
    assert ratios[-1] == pytest.approx(solve_scenarios(scaled, tail=1.0, gap=1e-4).value, rel=2e-3)


def test_the_program_is_solved_again_after_so_many_intervals(past: Past) -> None:
    hedge = Cope(3, 2.0, 2, LpSettings())
    first = hedge.allocate(past.before(4))
    assert hedge.allocate(past.before(5)) is first
    assert hedge.allocate(past) is not first


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    common = [
        "next-interval",
        "--topology",
        "b4",
        "--traffic",
        "gravity:count=9",
        "--out",
        f"{tmp_path}/x",
    ]
    assert (
        main([*common, "--objective", "max_link_utilisation", "--scheme", "cope:penalty=0.5"]) == 2
    )
    assert "penalty" in capsys.readouterr().err
