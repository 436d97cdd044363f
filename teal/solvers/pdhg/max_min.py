"""Max-min fair rates of B matrices by a sequence of programs, each level certified (see :mod:`problem.fair_levels`).

The target rates come from water-filling (:mod:`water_filling`), or, in less time and without a certificate, from the
iteration over levels of links (:mod:`teal.solvers.fairness`).  They are then the demands of a max_concurrent_flow
program, which routes them and scales all alike by what they are too high; unused capacity is filled last.
"""

from __future__ import annotations

import dataclasses
import time
from enum import StrEnum

import torch
from torch import Tensor

from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem, ProgramPrices
from teal.problem.bounds import gap as certified_gap
from teal.problem.fair_levels import fair_figures
from teal.runtime.interruptible import Deadline, Steps
from teal.solvers.fairness import fair_flows, usual_iterations, weights_of
from teal.solvers.pdhg.engine import PdhgState
from teal.solvers.pdhg.priority import SolveProgram
from teal.solvers.pdhg.result import PdhgResult, ProgressCallback, Stop
from teal.solvers.pdhg.water_filling import Filling, Level
from teal.solvers.projection import project

_PROGRAM_SHARE = 0.2  # of the target gap: that of each program; errors add up from level to level
_GUESS_TIME = 0.25  # share of the deadline after which the first guess stops
_FILLING_TIME = 0.8  # share of the deadline after which water-filling stops; the rest is for routing
_GUESS_ITERATIONS = 50  # over levels of links, whose rates are a first guess of the levels of water-filling
_REFILL = 6  # rounds in which unused capacity is given to demands below their rates
_TINY = 1e-30  # instead of 0 as a divisor


class Form(StrEnum):
    """Where the target rates come from."""

    FILLING = "filling"
    LEVELS = "levels"


def solving_max_min(
    problem: Problem,
    solve: SolveProgram,
    *,
    weight: Tensor | None = None,
    form: Form = Form.FILLING,
    gap: float = 1e-2,
    deadline: Deadline | None = None,
    max_iterations: int = 10_000,
    iterations: int = 0,
    report: ProgressCallback | None = None,
) -> Steps[PdhgResult]:
    """A max-min fair allocation of every matrix; pauses where ``solve`` does.

    Args:
        problem: B matrices; under another objective than max_min its weights do not count.
        solve: for one program.
        weight: (D,) or (B, D) w, above 0; None for those of max_min, 1 each under another objective.
        form: of the target rates.
        gap: target; of each program a fifth of it, for ``levels`` all of it.
        deadline: what has no level by then gets the rates of the iteration over levels of links; None for none.
        max_iterations: of each program.
        iterations: over the levels of links, for ``levels``; 0 for a number that suits the network.
        report: as of :meth:`Filling.filling`.
    """
    begin, deadline = time.perf_counter(), deadline or Deadline()
    problem = problem.to(torch.float64)
    weight = weights_of(problem, weight)
    plain = dataclasses.replace(
        problem, objective=Objective(), demand_value=torch.ones_like(problem.demand_value),
        link_cost=torch.zeros_like(problem.link_cost), classes=None, steps=None, conditions=(),
    )  # fmt: skip
    start, levels, used = None, None, 0
    filling_deadline = deadline.share(_FILLING_TIME)
    if form is Form.LEVELS:
        flows = yield from fair_flows(plain, weight, iterations or usual_iterations(plain), deadline)
        target, program_gap = flows.sum(-1), gap
        start = PdhgState(flows / target[..., None].clamp(min=_TINY), torch.zeros_like(problem.capacity))
    else:
        program_gap = _PROGRAM_SHARE * gap
        fillings = yield from _filled(
            plain, weight, solve, program_gap, deadline, filling_deadline, max_iterations, report
        )
        target = torch.stack([filling.rate for filling in fillings])
        levels, used = [filling.levels for filling in fillings], max(filling.iterations for filling in fillings)
    splits, found = yield from _routed(plain, target, solve, start, program_gap, deadline, max_iterations)
    prices = None if levels is None else _level_prices(plain, splits, weight, levels)
    figures = fair_figures(problem, splits, prices, weight)
    value, bound = problem.flows(splits).sum((1, 2)), figures.limit.sum(1)
    gaps = certified_gap(dataclasses.replace(problem, objective=Objective()), value, bound)
    missed = Stop.DEADLINE if filling_deadline.is_over else Stop.ITERATIONS
    return dataclasses.replace(
        found, splits=splits, state=PdhgState(splits, found.prices), value=value, bound=bound, gap=gaps,
        iterations=found.iterations + used, solve_s=time.perf_counter() - begin, program_prices=prices, fair=figures,
        stopped_by=tuple(Stop.GAP if own <= gap else missed for own in gaps.tolist()),
    )  # fmt: skip


def _filled(
    problem: Problem,
    weight: Tensor,
    solve: SolveProgram,
    gap: float,
    deadline: Deadline,
    filling_deadline: Deadline,
    max_iterations: int,
    report: ProgressCallback | None,
) -> Steps[list[Filling]]:
    """Water-filling of every matrix, each with its share of the time.

    Args:
        problem: B matrices under total_flow, in float64.
        weight: (B, D) w.
        solve: for one program.
        gap: of each program.
        deadline: of the allocation.
        filling_deadline: of water-filling.
        max_iterations: of each program.
        report: as of :func:`solve_max_min`.
    """
    usable = problem.usable  # demands of more than paths can carry would span too many decades
    flows = yield from fair_flows(usable.to(torch.float32), weight, _GUESS_ITERATIONS, deadline.share(_GUESS_TIME))
    guess = flows.sum(-1).double()
    fillings = []
    for row in range(problem.batch):
        row_deadline = filling_deadline.share(1 / (problem.batch - row))
        fillings.append(Filling(usable.row(row), weight[row], guess[row], solve, gap, max_iterations, row_deadline))
        yield from fillings[-1].filling(report)
    return fillings


def _routed(
    problem: Problem,
    target: Tensor,
    solve: SolveProgram,
    start: PdhgState | None,
    gap: float,
    deadline: Deadline,
    max_iterations: int,
) -> Steps[tuple[Tensor, PdhgResult]]:
    """(B, D, K) splits that come nearest to rates, all in the same proportion, and fill what is left.

    Args:
        problem: B matrices under total_flow, in float64.
        target: (B, D) Gbit/s.
        solve: for one program.
        start: splits and prices to start from; None for nothing.
        gap: of the max_concurrent_flow program.
        deadline: of the program.
        max_iterations: of the program.
    """
    concurrent = problem.balanced(ObjectiveName.MAX_CONCURRENT_FLOW, target)
    found = yield from solve(
        concurrent, gap=gap, deadline=deadline, max_iterations=max_iterations, warm_start=start,
    )  # fmt: skip
    demand = problem.demand[..., None]
    splits = torch.where(demand > 0, found.splits * target[..., None] / demand.clamp(min=_TINY), 0)
    return project(problem, splits, refill=_REFILL), found


def _level_prices(problem: Problem, splits: Tensor, weight: Tensor, levels: list[list[Level]]) -> ProgramPrices:
    """The levels of the routed rates: of each, the least rate per weight of the demands that it holds."""
    level = problem.flows(splits).sum(-1) / weight
    found = [[(float(own[one.held].min()), one.prices) for one in row] for own, row in zip(level, levels, strict=True)]
    return ProgramPrices.of_levels(found, problem.topology.num_links)
