"""LP-all from the basis of the matrix before, against LP-all from nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from baselines.highs import HighsModel
from baselines.linear_program import LinearProgram, LpSettings
from baselines.lp_all import LpAll
from baselines.warm_lp import WarmLp
from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Status
from teal.problem.assessment import assess
from teal.schemes import Follower, make_scheme
from teal.testing import assert_feasible, random_problem

OBJECTIVES = (
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.WEIGHTED_FLOW,
    ObjectiveName.LATENCY_PENALISED_FLOW,
    ObjectiveName.MAX_LINK_UTILISATION,
    ObjectiveName.LEAST_COST,
    ObjectiveName.MAX_CONCURRENT_FLOW,
)


def _intervals(seed: int, objective: ObjectiveName) -> list[Problem]:
    """Three matrices; under failures; on other capacities; a third of the demand; ten times, with
    some demands of 0.
    """
    first = random_problem(seed, objective=objective, batch=3, nodes=7, idle=0.3)
    rng = np.random.default_rng(seed)
    failed = first.capacity.clone()
    failed[:, rng.choice(first.topology.num_links, 2, replace=False)] = 0
    factors = torch.from_numpy(rng.uniform(0.5, 2, first.topology.num_links))
    large = first.demand * 10
    large[:, ::4] = 0
    return [
        first,
        first.with_capacity(failed),
        first.with_capacity(first.capacity * factors),
        first.with_demand(first.demand / 3),
        first.with_demand(large),
    ]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(6))
def test_each_matrix_has_the_optimum_of_a_cold_start(seed: int, objective: ObjectiveName) -> None:
    warm = WarmLp(LpSettings())
    for problem in _intervals(seed, objective):
        allocation = warm.solve(problem)
        expected = LpAll().solve(problem)
        assert allocation.status == expected.status
        measured, cold = assess(problem, allocation), assess(problem, expected)
        usable = torch.tensor([status.usable for status in expected.status])
        torch.testing.assert_close(measured.value[usable], cold.value[usable], rtol=1e-7, atol=1e-9)
        assert bool((measured.gap[usable] <= 1e-6).all()), "its prices certify the optimum"
        if usable.all():
            assert_feasible(problem, allocation)


def test_the_next_matrix_takes_few_iterations_from_the_basis_of_the_one_before() -> None:
    problem = random_problem(2, batch=3, nodes=12)
    factors = torch.tensor([[1.0], [1.001], [0.999]], dtype=torch.float64)
    near = problem.with_demand(4 * problem.demand[:1] * factors)
    warm = WarmLp(LpSettings(method="primal-simplex", presolve=False))
    counts = []
    for row in range(3):
        warm.solve(near.row(row))
        counts.append(_iterations(warm))
    assert counts[0] >= 20, "the first starts from nothing"
    assert max(counts[1:]) <= counts[0] / 4


def _iterations(warm: WarmLp) -> int:
    """Simplex iterations of the last matrix."""
    program: Any = warm._program
    return int(program._highs._solver.getInfo().simplex_iteration_count)


def test_new_rows_are_basic_and_old_ones_keep_their_status() -> None:
    """From a matrix that fills no link to one that fills many, without starting anew."""
    problem = random_problem(5, batch=1, nodes=10)
    problem = problem.with_demand(4 * problem.demand)
    idle = problem.with_demand(problem.demand * 1e-3)
    half = problem.with_demand(problem.demand / 2)
    warm = WarmLp(LpSettings())
    started: list[int] = []
    start = HighsModel._start
    with pytest.MonkeyPatch.context() as patch:

        def count(self: HighsModel, program: LinearProgram) -> None:
            started.append(1)
            start(self, program)

        patch.setattr(HighsModel, "_start", count)
        for each in (idle, half, problem, idle):
            value = assess(each, warm.solve(each)).value
            torch.testing.assert_close(value, assess(each, LpAll().solve(each)).value)
    # LpAll starts anew each time.
    assert len(started) == 1 + 4


def test_follow_sets_the_matrix_before_and_none_forgets_it() -> None:
    problem = random_problem(1, batch=3)
    warm = make_scheme("lp-all:warm=true")
    assert isinstance(warm, Follower)
    warm.follow(problem.row(0))
    followed = warm.solve(problem.row(1))
    warm.follow(None)
    alone = warm.solve(problem.row(1))
    for allocation in (followed, alone):
        assert float(assess(problem.row(1), allocation).gap) <= 1e-7


def test_an_infeasible_matrix_is_said_to_be_and_the_next_is_solved() -> None:
    problem = random_problem(3, objective=ObjectiveName.LEAST_COST, batch=1)
    warm = WarmLp(LpSettings())
    possible = problem.with_demand(problem.demand * 1e-3)
    impossible = problem.with_demand(problem.demand * 1e3)
    statuses = [warm.solve(each).status[0] for each in (possible, impossible, possible)]
    assert statuses == [Status.OPTIMAL, Status.INFEASIBLE, Status.OPTIMAL]


def test_a_sequence_of_programs_is_refused() -> None:
    with pytest.raises(InputError, match="warm=true"):
        WarmLp(LpSettings()).solve(random_problem(0, objective=ObjectiveName.MAX_MIN))


def test_only_highs_keeps_a_basis() -> None:
    with pytest.raises(InputError, match="warm=true does not support"):
        make_scheme("lp-all:solver=gurobi,warm=true")
    with pytest.raises(InputError, match="crossover"):
        make_scheme("lp-all:crossover=false,warm=true")
