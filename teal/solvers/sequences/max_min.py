"""Max-min fair rates of B matrices by a sequence of programs, each level certified (see :mod:`problem.fair_levels`).

The target rates come from water-filling (:mod:`water_filling`), or, in less time and without a certificate, from the
iteration over levels of links (:mod:`fairness`). They are then the demands of a max_concurrent_flow program, which
routes them and scales all alike by what they are too high; unused capacity is filled last.
"""

from __future__ import annotations

import dataclasses
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
from teal.solvers.sequences.task import Compute, PartOfTasks, Solve, Tasks, TimeShare
from teal.solvers.sequences.water_filling import Filling, HeldLevel

# Of the target gap: that of each program, in a first and, where the target was missed, in a second pass, which starts
# from the rates of the first.  Errors add up from level to level: with 0.5 Germany50 at load 6 just reached its target
# of 1%, with 0.3 its gap was a seventh of it in the same time, and B4 missed a target of 0.1% three times over.
_PROGRAM_SHARES = (0.3, 0.05)
_GUESS_TIME = 0.25  # share of the time left to the sequence after which the first guess stops
_FILLING_TIME = 0.8  # share of the time then left after which water-filling stops; the rest is for routing
_GUESS_ITERATIONS = 20  # over levels of links, whose rates are a first guess of the levels of water-filling
_REFILL_ROUNDS = 6  # rounds in which unused capacity is given to demands below their rates
_LEAST_DIVISOR = 1e-30  # instead of 0 as a divisor


def tasks(problem: Problem, gap: float, *, knows_value_steps: bool = False, weight: Tensor | None = None) -> Tasks:
    """The tasks of a max-min fair allocation by water-filling, certified to ``gap``.

    Args:
        problem: B matrices.
        gap: target; of each program a share of it, see :data:`_PROGRAM_SHARES`.
        knows_value_steps: whether programs may have values that fall in steps, of which there are none.
        weight: (D,) or (B, D) w, above 0; None for those of max_min, 1 each under another objective.
    """
    problem = problem.to(torch.float64)
    weight, plain = weights_of(problem, weight), _of_flows(problem)
    usable = plain.usable  # demands of more than paths can carry would span too many decades
    flows = yield Compute(
        partial(fair_flows, usable.to(torch.float32), weight, _GUESS_ITERATIONS), TimeShare(_GUESS_TIME)
    )
    guess, results = flows.sum(-1).double(), list[PdhgResult]()
    for share in _PROGRAM_SHARES:
        fillings = yield from _filled(usable, weight, guess, share * gap)
        guess = torch.stack([filling.rate for filling in fillings])
        splits, routed = yield from _routed(plain, guess, None, share * gap)
        prices = _level_prices(plain, splits, weight, [filling.levels for filling in fillings])
        results.append(_result(problem, splits, prices, weight, routed, gap))
        if float(results[-1].gap.max()) <= gap or any(filling.is_late for filling in fillings):
            break
    return min(results, key=lambda result: float(result.gap.max()))


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
    splits, routed = yield from _routed(plain, target, start, gap)
    return _result(problem, splits, None, weight, routed, gap)


def _of_flows(problem: Problem) -> Problem:
    """The same matrices under total_flow, without values, costs, classes and conditions."""
    return dataclasses.replace(
        problem, objective=Objective(), demand_value=torch.ones_like(problem.demand_value),
        link_cost=torch.zeros_like(problem.link_cost), classes=None, steps=None, conditions=(),
    )  # fmt: skip


def _result(
    problem: Problem, splits: Tensor, prices: ProgramPrices | None, weight: Tensor, routed: PdhgResult, gap: float
) -> PdhgResult:  # fmt: skip
    """The result of splits (B, D, K), and of the prices of levels if there are any.

    Args:
        problem: B matrices, in float64.
        splits: (B, D, K).
        prices: of the levels of rates.
        weight: (B, D) w.
        routed: result of the program that routed the rates.
        gap: target.
    """
    figures = fair_figures(problem, splits, prices, weight)
    value, bound = problem.flows(splits).sum((1, 2)), figures.limit.sum(1)
    gaps = certified_gap(dataclasses.replace(problem, objective=Objective()), value, bound)
    return dataclasses.replace(
        routed, splits=splits, state=PdhgState(splits, routed.prices), value=value, bound=bound, gap=gaps,
        program_prices=prices, fair=figures,
        stopped_by=stops_of_sequence(gaps, gap),
    )  # fmt: skip


def _filled(usable: Problem, weight: Tensor, guess: Tensor, gap: float) -> PartOfTasks:
    """Water-filling of every matrix, each with its share of the time.

    Args:
        usable: B matrices under total_flow, in float64.
        weight: (B, D) w.
        guess: (B, D) Gbit/s, rates near the fair ones.
        gap: of each program.
    """
    filling_time, fillings = TimeShare(_FILLING_TIME), []
    for row in range(usable.batch):
        row_time = TimeShare(1 / (usable.batch - row), filling_time)
        fillings.append(Filling(usable.row(row), weight[row], guess[row], gap, row_time))
        yield from fillings[-1].tasks()
    return fillings


def _routed(problem: Problem, target: Tensor, start: PdhgState | None, gap: float) -> PartOfTasks:
    """(B, D, K) splits that come nearest to rates, all in the same proportion, and fill what is left.

    Args:
        problem: B matrices under total_flow, in float64.
        target: (B, D) Gbit/s.
        start: splits and prices to start from; None for nothing.
        gap: of the max_concurrent_flow program.
    """
    routed = yield Solve(problem.balanced(ObjectiveName.MAX_CONCURRENT_FLOW, target), gap, start)
    demand = problem.demand[..., None]
    splits = torch.where(demand > 0, routed.splits * target[..., None] / demand.clamp(min=_LEAST_DIVISOR), 0)
    return project(problem, splits, refill=_REFILL_ROUNDS), routed


def _level_prices(problem: Problem, splits: Tensor, weight: Tensor, levels: list[list[HeldLevel]]) -> ProgramPrices:
    """The levels of the routed rates: of each, the least rate per weight of the demands that it holds."""
    level = problem.flows(splits).sum(-1) / weight
    of_rows = [
        [(float(of_row[one.held].min()), one.prices) for one in row] for of_row, row in zip(level, levels, strict=True)
    ]
    return ProgramPrices.of_levels(of_rows, problem.topology.num_links)
