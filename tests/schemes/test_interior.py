"""The scheme of interior points: exact, with and without a model, and where it must give way."""

from __future__ import annotations

import pytest
import torch

import teal
from teal.errors import InputError
from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.schemes.interior import saves_time_from_model


def _problem(objective: str = "total_flow", load: float = 4.0) -> Problem:
    topology = teal.load_topology("topohub:sndlib/geant")
    traffic = teal.load_traffic(f"gravity:seed=0,count=1,load={load}", topology)
    paths = compute_paths(topology, traffic.pairs)
    return Problem.create(topology, paths, Objective(objective), traffic.read([0]))


@pytest.mark.parametrize("start", ["auto", "model", "none"])
def test_it_is_exact_whatever_it_starts_from(start: str) -> None:
    problem = _problem()
    found = teal.assess(problem, teal.make_scheme(f"interior:start={start}").solve(problem))
    optimum = teal.assess(problem, teal.make_scheme("lp-all:solver=highs").solve(problem))
    assert float(found.gap) <= 1e-6
    torch.testing.assert_close(found.value, optimum.value, rtol=2e-6, atol=0)


def test_the_start_of_a_model_saves_iterations() -> None:
    problem, model = _problem(), teal.load_model("universal")
    cold = teal.solve(problem, gap=1e-6, engine="interior")
    warm = teal.solve(problem, gap=1e-6, engine="interior", model=model)
    assert warm.iterations < cold.iterations
    assert float(warm.gap) <= 1e-6
    assert not saves_time_from_model(problem, 1e-6), "a model takes longer than all iterations here"


@pytest.mark.parametrize("objective", ["max_min", "proportional_fair"])
def test_other_programs_go_to_another_engine(objective: str) -> None:
    problem = _problem(objective, 2.0)
    found = teal.assess(problem, teal.make_scheme("interior:gap=0.01").solve(problem))
    assert bool((found.gap <= 0.02).all())


def test_wrong_options_are_refused() -> None:
    for option in ("start=warm", "gap=2", "rounds=3"):
        with pytest.raises(InputError):
            teal.make_scheme(f"interior:{option}")
