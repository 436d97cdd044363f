"""Max-min fair rates of B matrices by a sequence of programs, each level certified (see
:mod:`problem.fair_levels`).

Rates and routes come from water-filling (:class:`WaterFilling`).  In less time and without a
certificate, rates come from the iteration over levels of links (:mod:`fairness`); they are then the
demands of a max_concurrent_flow program, which routes them and scales all alike by what they are
too high.  Unused capacity is filled last.

Max-min fair rates of one matrix: water-filling under cuts, and cuts from the prices of routing its
rates.

The rates that are fair under the cuts so far (:mod:`teal.solvers.sequences.rate_cuts`) are routed
by a program of the largest link utilisation.  If they fit, they are fair: more would not be fair
under fewer limits.  If they do not, its prices are a cut that they exceed, which is added.  Cuts
are of few links, and few demands have no path around these: on UsCarrier at load 10 at most 9 links
and 2,000 of 24,806 demands, on Kdl 30 links and 17,000 of 567,762.  Programs are therefore of the
*confined* demands alone, those whose paths all cross a link of some cut or a nearly full one; all
demands are routed only to see whether others stand in the way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from teal.network.subset import of_demands
from teal.objectives import Objective, ObjectiveName
from teal.pathops import make_path_ops
from teal.problem import Problem, ProgramPrices
from teal.problem.bounds import finite_prices
from teal.problem.bounds import gap as certified_gap
from teal.problem.fair_levels import FairFigures, fair_figures
from teal.runtime.arrays import Int64Array
from teal.solvers.projection import project
from teal.solvers.result import PdhgResult, PdhgState, merged, stops_of_sequence
from teal.solvers.sequences.fairness import fair_flows, usual_iterations, weights_of
from teal.solvers.sequences.rate_cuts import CutFilling, cut_of
from teal.solvers.sequences.task import Compute, PartOfTasks, Progress, Solve, Tasks, TimeShare

# Gap of a program at first, which most violated cuts need no better; then so many times smaller,
# until rates fit or a cut is violated.
_FIRST_PROGRAM_GAP, _PROGRAM_SHRINKAGE = 0.05, 4.0
_FITS_SHARE = (
    0.8  # of the target gap, by which links may be overloaded where rates count as fitting
)
_VIOLATED_SHARE = (
    0.4  # of the target gap, by which rates must exceed a cut; also the finest gap of a program
)
# Utilisation from which a link counts as full.  The flows of the guess overload links by a few per
# cent: with 0.9 three times as many demands counted as confined, with 1.3 all demands had to be
# routed six times on Kdl, with 1.1 once.
_FULL_LINK = 1.1
_NO_PRICE_SHARE = (
    1e-3  # of the largest capacity value of a link, below which a price counts as rounding
)
_MAX_CONFINED = 0.5  # share of the demands above which a program of the confined ones saves nothing
_PROGRAM_ITERATIONS = 1000  # of a program, at most: its bound is then used as it is
_MIN_GAP = 1e-7  # target below which programs are no finer: sums of float64 prove no less
_MAX_PROGRAMS = 400  # of a matrix; tens are usual


class WaterFilling:
    """Water-filling of one matrix.

    Args:
        problem: B = 1, under total_flow, in float64.
        weight: (D,) w.
        flows: (D, K) Gbit/s, near those of fair rates.
        time: time in which cuts are looked for.

    Attributes:
        rate: (D,) Gbit/s, fair under the cuts.
        splits: (D, K) shares of the rates, as last routed.
        prices: (E,) of the last program of all demands.
        utilisation: largest of a link, of the rates on these splits; at most about 1 unless time
            was short.
        levels: levels that hold demands, ascending.
        is_late: whether time was short.
        is_stuck: whether the last :meth:`tasks` found no cut, though some program was not solved
            closely enough to say that its rates fit: closer ones would not help.
    """

    def __init__(self, problem: Problem, weight: Tensor, flows: Tensor, time: TimeShare) -> None:
        self._problem, self._weight, self._guess, self._time = problem, weight, flows, time
        self._filling = CutFilling(problem, weight.cpu().numpy())
        self.splits = flows / flows.sum(-1, keepdim=True).clamp(min=1e-300)
        self.prices, self.utilisation, self.is_late = (
            torch.zeros_like(problem.capacity[0]),
            math.inf,
            False,
        )
        self.is_stuck = False
        self._excess = (
            math.inf
        )  # utilisation beyond 1 of the last program, after which the next one need be no finer
        self._fill()
        self._matters = torch.zeros_like(
            self.prices, dtype=torch.bool
        )  # (E,) links of cuts and full ones
        matters = problem.utilisation_of(problem.ops.link_sum(flows[None]))[0] >= _FULL_LINK
        for cut in self._filling.cuts:
            matters |= torch.from_numpy(cut.prices > 0).to(matters.device)
        self._part = problem
        self._demands: Int64Array | None = None
        self._confine(matters)

    def know(self, prices: Sequence[Tensor]) -> None:
        """Take the cuts of prices (E,) from an earlier solution: they limit these rates too."""
        for of_level in prices:
            usable = finite_prices(of_level.to(self.prices))
            self._filling.add(cut_of(self._problem, usable))
            self._confine(usable > 0)
        self._fill()

    @property
    def flows(self) -> Tensor:
        """(D, K) Gbit/s of the rates, scaled alike by what they overload links.

        Where time was too short to route all demands, those of the guess, up to the rates under the
        cuts so far.
        """
        if math.isfinite(self.utilisation):
            return self.splits * (self.rate / max(1.0, self.utilisation))[:, None]
        guessed = self._guess.sum(-1, keepdim=True)
        return self._guess * (self.rate[:, None] / guessed.clamp(min=1e-300)).clamp(max=1)

    def _fill(self) -> None:
        """Set the rates that are fair under the cuts."""
        rate, self.levels = self._filling.rates()
        self.rate = torch.from_numpy(rate).to(self._problem.demand.device)

    def _confine(self, links: Tensor) -> None:
        """Let links (E,) matter too, and set the program of the demands whose paths all cross links
        that matter.
        """
        if not bool((links & ~self._matters).any()):
            return
        self._matters, problem = self._matters | links, self._problem
        if not problem.ops.counts_once:
            return
        crossed = problem.ops.path_max(self._matters.to(torch.float64)[None])[0]
        confined = (problem.cheapest_path_cost(crossed)[0] > 0).nonzero()[:, 0]
        if not 0 < len(confined) <= _MAX_CONFINED * len(self.rate):
            self._part, self._demands = problem, None
            return
        self._demands = confined.cpu().numpy()
        paths = of_demands(problem.paths, self._demands)
        self._part = dataclasses.replace(
            problem,
            paths=paths,
            ops=make_path_ops(paths, problem.ops.device),
            demand=problem.demand[:, confined],
            demand_value=problem.demand_value[confined],
        )

    def tasks(self, gap: float) -> PartOfTasks:
        """Add cuts until the rates fit, up to a share of ``gap``, or no time is left.

        Where rates of all levels exceed cuts, they are routed up to half as many levels; where
        these fit, of twice as many.  Few levels give the cuts of these alone, and many are
        confirmed by one program.  The gap of fair rates is not known before the end.
        """
        gap, cuts_before = max(gap, _MIN_GAP), len(self._filling.cuts)
        self.is_stuck = False
        is_whole, confirmed, ahead = (
            False,
            0.0,
            len(self.levels) + 1,
        )  # confirmed: level up to which rates fit
        for _ in range(_MAX_PROGRAMS):
            upcoming = [level.level for level in self.levels if level.level > confirmed]
            cap = math.inf if is_whole or ahead > len(upcoming) else upcoming[ahead - 1]
            part, demands = (self._problem, None) if is_whole else (self._part, self._demands)
            is_whole = is_whole or (demands is None and cap == math.inf)
            result = yield from self._routed(
                part, demands, torch.minimum(self.rate, cap * self._weight), gap
            )
            if result is None:
                self.is_late = True
                return
            yield Progress(math.inf)
            if is_whole:
                self._note_full_links(result)
            if self._takes_cut(result, gap):
                confirmed = 0.0 if is_whole else confirmed
                ahead, is_whole = max(1, min(ahead, len(upcoming)) // 2), False
                continue
            is_undecided = float(result.value) > 1 + _FITS_SHARE * gap
            self.is_stuck = (self.is_stuck or is_undecided) and len(
                self._filling.cuts
            ) == cuts_before
            if cap < math.inf:
                confirmed, ahead = cap, 2 * ahead
            elif is_whole:
                return
            else:
                is_whole = True  # what fits alone is routed with all other demands

    def _routed(
        self, part: Problem, demands: Int64Array | None, rate: Tensor, gap: float
    ) -> PartOfTasks:
        """Route rates until they fit or exceed a cut; the result of the program, or None for want
        of time.

        Args:
            part: problem of some demands, or of all.
            demands: their numbers; None for all.
            rate: (D,) Gbit/s of all demands.
            gap: target of the sequence.
        """
        rows = slice(None) if demands is None else torch.from_numpy(demands).to(rate.device)
        program = part.balanced(ObjectiveName.MAX_LINK_UTILISATION, rate[rows][None])
        program_gap, prices = min(_FIRST_PROGRAM_GAP, self._excess / 2), self.prices
        while True:
            program_gap = max(program_gap, _VIOLATED_SHARE * gap)
            state = PdhgState(self.splits[rows][None], prices[None])
            result: PdhgResult | None = yield Solve(
                program, program_gap, state, self._time, True, _PROGRAM_ITERATIONS
            )
            if result is None:
                return None
            self.splits[rows], prices = result.splits[0], result.prices[0]
            self._excess = float(result.value) - 1
            is_clear = (
                self._excess <= _FITS_SHARE * gap or float(result.bound) > 1 + _VIOLATED_SHARE * gap
            )
            if is_clear or program_gap <= _VIOLATED_SHARE * gap:
                return result
            program_gap /= _PROGRAM_SHRINKAGE

    def _note_full_links(self, result: PdhgResult) -> None:
        """Take the result of a program of all demands into account: others may stand in the way of
        confined ones.
        """
        self.prices, self.utilisation = result.prices[0], float(result.value)
        load = self._problem.ops.link_sum((self.rate[:, None] * self.splits)[None])
        self._confine(self._problem.utilisation_of(load)[0] >= _FULL_LINK)

    def _takes_cut(self, result: PdhgResult, gap: float) -> bool:
        """Whether the rates exceed a cut of a program's prices, which is then added."""
        if float(result.value) <= 1 + _FITS_SHARE * gap or float(result.bound) <= 1:
            return False
        value = result.prices[0] * self._problem.capacity[0]
        for least in (
            _NO_PRICE_SHARE,
            0.0,
        ):  # all prices where those that may be rounding prove the excess
            prices = torch.where(value > least * value.max(), result.prices[0], 0)
            self._confine(prices > 0)  # all demands that pay them are confined then
            cut = cut_of(self._part, prices, self._demands)
            if cut.excess(self.rate.cpu().numpy()) > 0:
                self._filling.add(cut)
                self._fill()
                return True
        return False


# x the target gap: that of water-filling, at first and where the certificate missed the target.  A
# level that is a small part of its cut can grow by many times the share by which links were
# overloaded.
_ACCURACIES = (1.0, 0.3, 0.1, 0.03)
_GUESS_TIME = 0.25  # share of the time left to the sequence after which the first guess stops
_FILLING_TIME = (
    0.7  # share of the time then left after which water-filling stops; the rest is for figures
)
_GUESS_ITERATIONS = (
    10  # over levels of links, whose flows are a first guess of those of water-filling
)
_REFILL_ROUNDS = 6  # rounds in which unused capacity is given to demands below their rates
_MIN_DIVISOR = 1e-30  # instead of 0 as a divisor


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
        knows_value_steps: whether programs may have values that fall in steps, of which there are
            none.
        weight: (D,) or (B, D) w, above 0; None for those of max_min, 1 each under another
            objective.
        start: result whose splits are those of rates near the fair ones, and whose levels' prices
            are cuts; None for a guess by :mod:`fairness`.
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
        if (
            known is not None
            and known.level is not None
            and known.prices.shape[-1] == plain.topology.num_links
        ):
            fillings[-1].know([prices for _, prices in known.of_row(row)])
    best: list[PdhgResult] = []
    for row, filling in enumerate(fillings):
        results: list[PdhgResult] = []
        for accuracy in _ACCURACIES:
            yield from filling.tasks(accuracy * gap)
            results.append(
                _of_filling(problem.row(row), plain.row(row), filling, weight[row : row + 1], gap)
            )
            if float(results[-1].gap) <= gap or filling.is_late or filling.is_stuck:
                break
        best.append(min(results, key=lambda result: float(result.gap)))
    return _joined(best)


def _of_filling(
    problem: Problem, plain: Problem, filling: WaterFilling, weight: Tensor, gap: float
) -> PdhgResult:
    """The result of the flows of water-filling; unused capacity is filled."""
    share = filling.flows[None] / plain.demand[..., None].clamp(min=_MIN_DIVISOR)
    splits = project(plain, share, refill=_REFILL_ROUNDS)
    level = (plain.flows(splits).sum(-1) / weight)[0]
    levels = [
        (float(level[one.held].min()), torch.from_numpy(one.prices).to(level.device))
        for one in filling.levels
    ]  # of each the least rate per weight of the demands that it holds
    level_prices = ProgramPrices.of_levels([levels], problem.topology.num_links)
    return _result(problem, splits, level_prices, weight, filling.prices[None], gap)


def _joined(results: list[PdhgResult]) -> PdhgResult:
    """One result of those of single matrices, with the figures of all."""
    fair = [result.fair for result in results if result.fair is not None]
    of_rows = [
        result.program_prices.of_row(0) for result in results if result.program_prices is not None
    ]
    prices = ProgramPrices.of_levels(of_rows, results[0].prices.shape[1])
    whole = merged(results)
    state = dataclasses.replace(whole.state, program_prices=prices)
    return dataclasses.replace(
        whole, state=state, program_prices=prices, lines=FairFigures.joined(fair)
    )


def level_tasks(
    problem: Problem, gap: float, weight: Tensor | None = None, iterations: int = 0
) -> Tasks:
    """The tasks of the allocation by the iteration over levels of links, in less time and without a
    certificate.

    Args:
        problem: as in :func:`tasks`.
        gap: gap of the program that routes the rates.
        weight: (D,) or (B, D) w, above 0; None for those of max_min, 1 each under another
            objective.
        iterations: over the levels of links; 0 for a number that suits the network.
    """
    problem = problem.to(torch.float64)
    weight, plain = weights_of(problem, weight), _of_flows(problem)
    flows = yield Compute(partial(fair_flows, plain, weight, iterations or usual_iterations(plain)))
    target = flows.sum(-1)
    start = PdhgState(
        flows / target[..., None].clamp(min=_MIN_DIVISOR), torch.zeros_like(problem.capacity)
    )
    routed = yield Solve(plain.balanced(ObjectiveName.MAX_CONCURRENT_FLOW, target), gap, start)
    demand = plain.demand[..., None]
    splits = torch.where(
        demand > 0, routed.splits * target[..., None] / demand.clamp(min=_MIN_DIVISOR), 0
    )
    splits = project(plain, splits, refill=_REFILL_ROUNDS)
    return _result(problem, splits, None, weight, routed.prices, gap)


def _of_flows(problem: Problem) -> Problem:
    """The matrices under total_flow, without values, costs, classes and conditions."""
    return dataclasses.replace(
        problem,
        objective=Objective(),
        demand_value=torch.ones_like(problem.demand_value),
        link_cost=torch.zeros_like(problem.link_cost),
        classes=None,
        steps=None,
        conditions=(),
    )


def _result(
    problem: Problem,
    splits: Tensor,
    level_prices: ProgramPrices | None,
    weight: Tensor,
    prices: Tensor,
    gap: float,
) -> PdhgResult:
    """The result of splits (B, D, K), and of the prices of levels if there are any.

    Args:
        problem: B matrices, in float64.
        splits: (B, D, K).
        level_prices: prices of the levels of rates.
        weight: (B, D) w.
        prices: (B, E) of the program that routed the rates.
        gap: target.
    """
    figures = fair_figures(problem, splits, level_prices, weight)
    value, bound = problem.flows(splits).sum((1, 2)), figures.limit.sum(1)
    gaps = certified_gap(dataclasses.replace(problem, objective=Objective()), value, bound)
    return PdhgResult(
        splits=splits,
        prices=prices,
        value=value,
        bound=bound,
        gap=gaps,
        iterations=0,
        solve_s=0.0,
        state=PdhgState(splits, prices, level_prices),
        stopped_by=stops_of_sequence(gaps, gap),
        program_prices=level_prices,
        lines=figures,
    )
