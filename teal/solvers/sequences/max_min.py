"""Max-min fair rates of B matrices by a sequence of programs, each level certified (see :mod:`problem.fair_levels`).

Rates and routes come from water-filling (:mod:`water_filling`).  In less time and without a certificate, rates come
from the iteration over levels of links (:mod:`fairness`); they are then the demands of a max_concurrent_flow program,
which routes them and scales all alike by what they are too high.  Unused capacity is filled last.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from torch import Tensor

from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem, ProgramPrices
from teal.problem.bounds import gap as certified_gap
from teal.problem.fair_levels import FairFigures, fair_figures
from teal.solvers.projection import project
from teal.solvers.result import PdhgResult, PdhgState, merged, stops_of_sequence
from teal.solvers.sequences.fairness import fair_flows, usual_iterations, weights_of
from teal.solvers.sequences.task import Compute, Solve, Tasks, TimeShare
from teal.solvers.sequences.water_filling import WaterFilling

# x the target gap: that of water-filling, at first and where the certificate missed the target.  A level that is a
# small part of its cut can grow by many times the share by which links were overloaded.
_ACCURACIES = (1.0, 0.3, 0.1, 0.03)
_GUESS_TIME = 0.25  # share of the time left to the sequence after which the first guess stops
_FILLING_TIME = 0.7  # share of the time then left after which water-filling stops; the rest is for figures
_GUESS_ITERATIONS = 10  # over levels of links, whose flows are a first guess of those of water-filling
_REFILL_ROUNDS = 6  # rounds in which unused capacity is given to demands below their rates
_LEAST_DIVISOR = 1e-30  # instead of 0 as a divisor


def tasks(
    problem: Problem,
    gap: float,
    *,
    knows_value_steps: bool = False,
    weight: Tensor | None = None,
    start: PdhgState | None = None,
) -> Tasks:
    """The tasks of a max-min fair allocation by water-filling, certified to ``gap``.

    Args:
        problem: B matrices.
        gap: target.
        knows_value_steps: whether programs may have values that fall in steps, of which there are none.
        weight: (D,) or (B, D) w, above 0; None for those of max_min, 1 each under another objective.
        start: whose splits are those of rates near the fair ones, and whose levels' prices are cuts; None for a guess
            by :mod:`fairness`.
    """
    problem = problem.to(torch.float64)
    weight, plain = weights_of(problem, weight), _of_flows(problem)
    usable = plain.usable  # demands of more than paths can carry would span too many decades
    known = None
    if start is None:
        guess = partial(fair_flows, usable.to(torch.float32), weight, _GUESS_ITERATIONS)
        flows = yield Compute(guess, TimeShare(_GUESS_TIME))
    else:
        flows, known = plain.flows(start.splits.clamp(min=0)), start.program_prices
    flows, filling_time = flows.double(), TimeShare(_FILLING_TIME)
    fillings = []
    for row in range(usable.batch):
        time = TimeShare(1 / (usable.batch - row), filling_time)
        fillings.append(WaterFilling(usable.row(row), weight[row], flows[row], time))
        if known is not None and known.level is not None and known.prices.shape[-1] == plain.topology.num_links:
            fillings[-1].know([prices for _, prices in known.of_row(row)])
    best: list[PdhgResult] = []
    for row, filling in enumerate(fillings):
        results: list[PdhgResult] = []
        for accuracy in _ACCURACIES:
            yield from filling.tasks(accuracy * gap)
            results.append(_of_filling(problem.row(row), plain.row(row), filling, weight[row : row + 1], gap))
            if float(results[-1].gap) <= gap or filling.is_late or filling.is_stuck:
                break
        best.append(min(results, key=lambda result: float(result.gap)))
    return _joined(best)


def _of_filling(problem: Problem, plain: Problem, filling: WaterFilling, weight: Tensor, gap: float) -> PdhgResult:
    """The result of the flows of water-filling; unused capacity is filled."""
    share = filling.flows[None] / plain.demand[..., None].clamp(min=_LEAST_DIVISOR)
    splits = project(plain, share, refill=_REFILL_ROUNDS)
    level = (plain.flows(splits).sum(-1) / weight)[0]
    levels = [
        (float(level[one.held].min()), torch.from_numpy(one.prices).to(level.device)) for one in filling.levels
    ]  # of each the least rate per weight of the demands that it holds
    level_prices = ProgramPrices.of_levels([levels], problem.topology.num_links)
    return _result(problem, splits, level_prices, weight, filling.prices[None], gap)


def _joined(results: list[PdhgResult]) -> PdhgResult:
    """One result of those of single matrices, with the figures of all."""
    fair = [result.fair for result in results if result.fair is not None]
    of_rows = [result.program_prices.of_row(0) for result in results if result.program_prices is not None]
    prices = ProgramPrices.of_levels(of_rows, results[0].prices.shape[1])
    whole = merged(results)
    state = dataclasses.replace(whole.state, program_prices=prices)
    return dataclasses.replace(whole, state=state, program_prices=prices, lines=FairFigures.joined(fair))


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
        state=PdhgState(splits, prices, level_prices), stopped_by=stops_of_sequence(gaps, gap),
        program_prices=level_prices,
        lines=figures,
    )  # fmt: skip
