"""Objectives that only this file knows, one program and a sequence of two, against linear programs
over flows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import teal
from teal.errors import InputError
from teal.objectives import Rules, register_objective
from teal.problem import Problem, ProgramPrices
from teal.problem.assessment import Certificate, register_certificate
from teal.problem.bounds import gap as certified_gap
from teal.problem.bounds import scaled_dual_bound
from teal.runtime.arrays import FloatArray
from teal.solvers.pipeline import register_sequence
from teal.solvers.result import SolveState
from teal.solvers.sequences.task import Solve, Tasks
from teal.testing import random_problem

_HOP_COST = 0.07


class HopPenalised(Rules):
    """A Gbit/s is worth 1 less 0.07 for each hop of its path."""

    def link_cost(
        self, topology: teal.Topology, max_latency: Callable[[], float], epsilon: float
    ) -> FloatArray:
        return np.full(topology.num_links, _HOP_COST)


def calm_tasks(
    problem: Problem,
    gap: float,
    *,
    supports_piecewise_linear_values: bool,
    start: SolveState | None = None,
) -> Tasks:
    """The largest flow; then its rates at the least utilisation of the fullest link."""
    flow = dataclasses.replace(problem, objective=teal.Objective())
    largest = yield Solve(flow, gap / 2)
    rates = flow.flows(largest.splits.to(flow.demand)).sum(-1)
    routed = yield Solve(
        flow.as_min_max_program(teal.ObjectiveName.MAX_LINK_UTILISATION, rates), gap
    )
    share = torch.where(problem.demand > 0, rates / problem.demand.clamp(min=1e-30), 0)
    splits = (
        routed.splits.to(share)
        * share[..., None]
        / routed.value.clamp(min=1).to(share)[:, None, None]
    )
    prices = ProgramPrices(torch.stack([largest.prices, routed.prices], 1))
    return dataclasses.replace(largest, splits=splits, program_prices=prices)


def certify_calm(
    problem: Problem, splits: Tensor, prices: Tensor, program_prices: ProgramPrices | None
) -> Certificate:
    """The flow is certified; how calm it is, is not."""
    value = problem.value(splits)
    bound = scaled_dual_bound(
        problem, prices if program_prices is None else program_prices.prices[:, 0]
    )
    return Certificate(value, bound, certified_gap(problem, value, bound))


register_objective("hop_penalised", HopPenalised())
register_objective("calm_flow", Rules(is_sequence=True))
register_sequence("calm_flow", calm_tasks)
register_certificate("calm_flow", certify_calm)


class EvenStarter:
    """Even splits."""

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        return problem.even_splits, torch.zeros_like(problem.capacity)


def _largest(problem: Problem, value: FloatArray) -> float:
    """max sum of value times flow, by a linear program over the flows of paths."""
    shape, demand = problem.paths.leaf.shape, problem.demand[0].numpy()
    loads = np.zeros((problem.topology.num_links, shape[0] * shape[1]))
    path, link = problem.paths.incidences()
    loads[link, path] = 1
    served = np.repeat(np.eye(shape[0]), shape[1], axis=1)
    bounds = [(0, None) if live else (0, 0) for live in problem.path_mask[0].flatten().tolist()]
    solution = linprog(
        -value.reshape(-1),
        np.vstack([loads, served]),
        np.concatenate([problem.capacity[0].numpy(), demand]),
        bounds=bounds,
    )
    return -float(solution.fun)


def _hops(problem: Problem) -> FloatArray:
    path, _ = problem.paths.incidences()
    return (
        np.bincount(path, minlength=problem.paths.leaf.size)
        .reshape(problem.paths.leaf.shape)
        .astype(float)
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_program_with_values_of_its_own(seed: int) -> None:
    problem = random_problem(seed, objective="hop_penalised", batch=1, failed=seed % 2)
    problem = problem.with_demand(problem.demand * 3)
    optimum = _largest(problem, 1 - _HOP_COST * _hops(problem))
    result = teal.solve(problem, gap=1e-4)
    assert float(result.gap) <= 1e-4
    assert (
        optimum * (1 - 1e-4) - 1e-9
        <= float(result.value)
        <= optimum * (1 + 1e-7)
        <= float(result.bound) * (1 + 1e-7)
    )
    for scheme, slack in (("lp-all", 1e-6), ("pdhg", 1e-3)):
        allocation = teal.make_scheme(scheme).solve(problem)
        measured = teal.assess(problem, allocation)
        assert float(measured.max_violation) <= 1e-6
        assert float(measured.value) >= optimum * (1 - slack) - 1e-9
        assert optimum * (1 - 1e-6) <= float(measured.bound) <= optimum * (1 + 2 * slack) + 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_a_sequence_of_programs(seed: int) -> None:
    problem = random_problem(seed, objective="calm_flow", batch=2)
    problem = problem.with_demand(problem.demand * 2)
    for scheme in ("pdhg:gap=0.001", "lp-all"):
        allocation = teal.make_scheme(scheme).solve(problem)
        measured = teal.assess(problem, allocation)
        assert float(measured.max_violation.max()) <= 1e-6
        for row in range(2):
            one = problem.row(row)
            optimum = _largest(one, np.ones(one.paths.leaf.shape))
            assert optimum * (1 - 2e-3) <= float(measured.value[row]) <= optimum * (1 + 1e-6)
            assert float(measured.gap[row]) <= 2e-3
            rates = one.flows(allocation.splits[row : row + 1]).sum(-1)
            calmest = teal.solve(
                one.as_min_max_program(teal.ObjectiveName.MAX_LINK_UTILISATION, rates), gap=1e-5
            )
            assert (
                float(measured.max_link_utilisation[row])
                <= float(calmest.value) * (1 + 3e-3) + 1e-9
            )


def test_reports_and_errors_know_them() -> None:
    problem = random_problem(0, objective="calm_flow", batch=1)
    with pytest.raises(InputError, match="not solved as one program"):
        teal.solve(problem, model=EvenStarter())
    with pytest.raises(InputError, match="another entry has the name"):
        register_objective("total_flow", HopPenalised())
    with pytest.raises(InputError, match="total_flow"):
        teal.Objective("best_flow")
