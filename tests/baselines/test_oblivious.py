"""Oblivious routing against the worst matrix of an adversary, found by linear programs of another
form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from baselines import oblivious
from baselines.linear_program import LpSettings
from baselines.oblivious import RatioProgram
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.schemes.hedges import make_hedge
from teal.testing import random_problem
from tests.teal_next.series import make_past

MLU = ObjectiveName.MAX_LINK_UTILISATION


def worst_ratio(problem: Problem, splits: torch.Tensor) -> float:
    """The largest ratio over all matrices: for each link, the largest load of a matrix that fits
    the capacities."""
    slots, links = problem.paths.num_paths, problem.topology.num_links
    capacity, live = problem.capacity[0].numpy(), problem.path_mask[0].numpy().reshape(-1)
    path, link = problem.paths.incidences()
    carries = np.zeros((links, live.size))
    carries[link, path] = 1
    of_demand = np.repeat(np.eye(live.size // slots), slots, 1)
    ratios = []
    for e in np.flatnonzero(capacity > 0):
        share = of_demand @ (carries[e] * splits.numpy().reshape(-1))  # of each demand on this link
        result = linprog(
            -(share @ of_demand) / capacity[e],
            carries[capacity > 0],
            capacity[capacity > 0],
            bounds=[(0, None if one else 0) for one in live],
        )
        ratios.append(-result.fun)
    return max(ratios)


@pytest.mark.parametrize(("seed", "failed"), [(0, 0), (1, 2), (2, 0)])
def test_the_ratio_is_that_of_the_worst_matrix_and_no_splits_are_better(
    seed: int, failed: int
) -> None:
    problem = random_problem(seed, objective=MLU, batch=1, failed=failed)
    program = RatioProgram.of(problem)
    variables = program.solve_min_ratio(LpSettings())
    splits = program.splits(variables, problem)
    assert variables[-1] == pytest.approx(worst_ratio(problem, splits), rel=1e-6)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        other = torch.from_numpy(rng.random(splits.shape)) * problem.path_mask[0]
        mixed = 0.8 * splits + 0.2 * other / other.sum(-1, keepdim=True).clamp(min=1e-9)
        assert worst_ratio(problem, mixed) >= variables[-1] * (1 - 1e-7)


def test_the_hedge_splits_between_two_equal_paths() -> None:
    past = make_past(np.random.default_rng(0).lognormal(0, 1, (20, 3)))
    hedge = make_hedge("oblivious")
    splits = hedge.allocate(past)
    torch.testing.assert_close(splits.sum(-1), torch.ones(3, dtype=torch.float64))
    assert hedge.allocate(past) is splits, "the program is solved once"


def test_a_network_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oblivious, "_MAX_ROWS", 10)
    with pytest.raises(InputError, match="at most 10 rows"):
        RatioProgram.of(random_problem(0, objective=MLU, batch=1))
