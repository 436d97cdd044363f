"""Max-min fair rates of B matrices by a sequence of programs, each level certified (see :mod:`problem.fair_levels`).

Rates and routes come from water-filling (:mod:`water_filling`).  In less time and without a certificate, rates come
from the iteration over levels of links (:mod:`fairness`); they are then the demands of a max_concurrent_flow program,
which routes them and scales all alike by what they are too high.  Unused capacity is filled last.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial

import torch
from torch import Tensor

from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem, ProgramPrices
from teal.problem.bounds import gap as certified_gap
from teal.problem.fair_levels import fair_figures
from teal.solvers.projection import project
from teal.solvers.result import PdhgResult, PdhgState, stops_of_sequence
from teal.solvers.sequences.fairness import fair_flows, usual_iterations, weights_of
from teal.solvers.sequences.task import Compute, Solve, Tasks, TimeShare
from teal.solvers.sequences.water_filling import WaterFilling

# Of the target gap: the accuracy of water-filling, at first and where the target was missed.
_ACCURACIES = (1.0, 0.3, 0.1)
_GUESS_TIME = 0.25  # share of the time left to the sequence after which the first guess stops
_FILLING_TIME = 0.7  # share of the time then left after which water-filling stops; the rest is for figures
_GUESS_ITERATIONS = 10  # over levels of links, whose flows are a first guess of those of water-filling
_REFILL_ROUNDS = 6  # rounds in which unused capacity is given to demands below their rates
_LEAST_DIVISOR = 1e-30  # instead of 0 as a divisor


def tasks(problem: Problem, gap: float, *, knows_value_steps: bool = False, weight: Tensor | None = None) -> Tasks:
    """The tasks of a max-min fair allocation by water-filling, certified to ``gap``.

    Args:
        problem: B matrices.
        gap: target.
        knows_value_steps: whether programs may have values that fall in steps, of which there are none.
        weight: (D,) or (B, D) w, above 0; None for those of max_min, 1 each under another objective.
    """
    problem = problem.to(torch.float64)
    weight, plain = weights_of(problem, weight), _of_flows(problem)
    usable = plain.usable  # demands of more than paths can carry would span too many decades
    flows = yield Compute(
        partial(fair_flows, usable.to(torch.float32), weight, _GUESS_ITERATIONS), TimeShare(_GUESS_TIME)
    )
    flows, filling_time = flows.double(), TimeShare(_FILLING_TIME)
    fillings = [
        WaterFilling(usable.row(row), weight[row], flows[row], TimeShare(1 / (usable.batch - row), filling_time))
        for row in range(usable.batch)
    ]
    results = list[PdhgResult]()
    for accuracy in _ACCURACIES:
        missed = [not results or float(results[-1].gap[row]) > gap for row in range(len(fillings))]
        for filling in itertools.compress(fillings, missed):
            yield from filling.tasks(accuracy * gap)
        results.append(_of_fillings(problem, plain, fillings, weight, gap))
        if float(results[-1].gap.max()) <= gap or any(filling.is_late for filling in fillings):
            break
    return min(results, key=lambda result: float(result.gap.max()))


def _of_fillings(
    problem: Problem, plain: Problem, fillings: list[WaterFilling], weight: Tensor, gap: float
) -> PdhgResult:
    """The result of the flows of water-filling; unused capacity is filled."""
    flows = torch.stack([filling.flows for filling in fillings])
    splits = project(plain, flows / plain.demand[..., None].clamp(min=_LEAST_DIVISOR), refill=_REFILL_ROUNDS)
    prices = torch.stack([filling.prices for filling in fillings])
    return _result(problem, splits, _level_prices(plain, splits, weight, fillings), weight, prices, gap)


def level_tasks(problem: Problem, gap: float, weight: Tensor | None = None, iterations: int = 0) -> Tasks:
    """The tasks of the allocation by the iteration over levels of links, in less time and without a certificate.

    Args:
        problem: as of :func:`tasks`.
        gap: of the program that routes the rates.
        weight: (D,) or (B, D) w, above 0; None for those of max_min, 1 each under another objective.
        iterations: over the levels of links; 0 for a number that suits the network.
    """
    problem = problem.to(torch.float64)
    weight, plain = weights_of(problem, weight), _of_flows(problem)
    flows = yield Compute(partial(fair_flows, plain, weight, iterations or usual_iterations(plain)))
    target = flows.sum(-1)
    start = PdhgState(flows / target[..., None].clamp(min=_LEAST_DIVISOR), torch.zeros_like(problem.capacity))
    routed = yield Solve(plain.balanced(ObjectiveName.MAX_CONCURRENT_FLOW, target), gap, start)
    demand = plain.demand[..., None]
    splits = torch.where(demand > 0, routed.splits * target[..., None] / demand.clamp(min=_LEAST_DIVISOR), 0)
    splits = project(plain, splits, refill=_REFILL_ROUNDS)
    return _result(problem, splits, None, weight, routed.prices, gap)


def _of_flows(problem: Problem) -> Problem:
    """The same matrices under total_flow, without values, costs, classes and conditions."""
    return dataclasses.replace(
        problem, objective=Objective(), demand_value=torch.ones_like(problem.demand_value),
        link_cost=torch.zeros_like(problem.link_cost), classes=None, steps=None, conditions=(),
    )  # fmt: skip


def _result(
    problem: Problem, splits: Tensor, level_prices: ProgramPrices | None, weight: Tensor, prices: Tensor, gap: float
) -> PdhgResult:  # fmt: skip
    """The result of splits (B, D, K), and of the prices of levels if there are any.

    Args:
        problem: B matrices, in float64.
        splits: (B, D, K).
        level_prices: of the levels of rates.
        weight: (B, D) w.
        prices: (B, E) of the program that routed the rates.
        gap: target.
    """
    figures = fair_figures(problem, splits, level_prices, weight)
    value, bound = problem.flows(splits).sum((1, 2)), figures.limit.sum(1)
    gaps = certified_gap(dataclasses.replace(problem, objective=Objective()), value, bound)
    return PdhgResult(
        splits=splits, prices=prices, value=value, bound=bound, gap=gaps, iterations=0, solve_s=0.0,
        state=PdhgState(splits, prices), stopped_by=stops_of_sequence(gaps, gap), program_prices=level_prices,
        fair=figures,
    )  # fmt: skip


def _level_prices(
    problem: Problem, splits: Tensor, weight: Tensor, fillings: list[WaterFilling]
) -> ProgramPrices:  # fmt: skip
    """The levels of the routed rates: of each, the least rate per weight of the demands that it holds."""
    level = problem.flows(splits).sum(-1) / weight
    of_rows = [
        [(float(of_row[one.held].min()), torch.from_numpy(one.prices).to(of_row.device)) for one in filling.levels]
        for of_row, filling in zip(level, fillings, strict=True)
    ]
    return ProgramPrices.of_levels(of_rows, problem.topology.num_links)
