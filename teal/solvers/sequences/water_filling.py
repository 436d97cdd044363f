"""Max-min fair rates of one matrix: water-filling under cuts, and cuts from the prices of routing its rates.

The rates that are fair under the cuts so far (:mod:`teal.solvers.sequences.rate_cuts`) are routed by a program of the
largest link utilisation.  If they fit, they are fair: more would not be fair under fewer limits.  If they do not, its
prices are a cut that they exceed, which is added.  Cuts are of few links, and few demands have no path around these: on
UsCarrier at load 10 at most 9 links and 2,000 of 24,806 demands, on Kdl 30 links and 17,000 of 567,762.  Programs are
therefore of the *confined* demands alone, those whose paths all cross a link of some cut or a nearly full one; all
demands are routed only to see whether others stand in the way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from teal.network.subset import of_demands
from teal.objectives import ObjectiveName
from teal.pathops import make_path_ops
from teal.problem import Problem
from teal.problem.bounds import finite_prices
from teal.runtime.arrays import Int64Array
from teal.solvers.result import PdhgResult, PdhgState
from teal.solvers.sequences.rate_cuts import CutFilling, cut_of
from teal.solvers.sequences.task import PartOfTasks, Progress, Solve, TimeShare

# Gap of a program at first, which most violated cuts need no better; then so many times smaller, until rates fit or a
# cut is violated.
_FIRST_PROGRAM_GAP, _PROGRAM_SHRINKAGE = 0.05, 4.0
_FITS_SHARE = 0.8  # of the target gap, by which links may be overloaded where rates count as fitting
_VIOLATED_SHARE = 0.4  # of the target gap, by which rates must exceed a cut; also the finest gap of a program
# Utilisation from which a link counts as full.  The flows of the guess overload links by a few per cent: with 0.9 three
# times as many demands counted as confined, with 1.3 all demands had to be routed six times on Kdl, with 1.1 once.
_FULL_LINK = 1.1
_NO_PRICE_SHARE = 1e-3  # of the largest capacity value of a link, below which a price counts as rounding
_MOST_CONFINED = 0.5  # share of the demands above which a program of the confined ones saves nothing
_PROGRAM_ITERATIONS = 1000  # of a program, at most: its bound is then used as it is
_LEAST_GAP = 1e-7  # target below which programs are no finer: sums of float64 prove no less
_MOST_PROGRAMS = 400  # of a matrix; tens are usual


class WaterFilling:
    """Water-filling of one matrix.

    Args:
        problem: B = 1, under total_flow, in float64.
        weight: (D,) w.
        flows: (D, K) Gbit/s, near those of fair rates.
        time: in which cuts are looked for.

    Attributes:
        rate: (D,) Gbit/s, fair under the cuts.
        splits: (D, K) shares of the rates, as last routed.
        prices: (E,) of the last program of all demands.
        utilisation: largest of a link, of the rates on these splits; at most about 1 unless time was short.
        levels: that hold demands, ascending.
        is_late: whether time was short.
        is_stuck: whether the last :meth:`tasks` found no cut, though some program was not solved closely enough to say
            that its rates fit: closer ones would not help.
    """

    def __init__(self, problem: Problem, weight: Tensor, flows: Tensor, time: TimeShare) -> None:
        self._problem, self._weight, self._guess, self._time = problem, weight, flows, time
        self._filling = CutFilling(problem, weight.cpu().numpy())
        self.splits = flows / flows.sum(-1, keepdim=True).clamp(min=1e-300)
        self.prices, self.utilisation, self.is_late = torch.zeros_like(problem.capacity[0]), math.inf, False
        self.is_stuck = False
        self._excess = math.inf  # utilisation beyond 1 of the last program, after which the next one need be no finer
        self._fill()
        self._matters = torch.zeros_like(self.prices, dtype=torch.bool)  # (E,) links of cuts and full ones
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

        Where time was too short to route all demands, those of the guess, up to the rates under the cuts so far.
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
        """Let links (E,) matter too, and set the program of the demands whose paths all cross links that matter."""
        if not bool((links & ~self._matters).any()):
            return
        self._matters, problem = self._matters | links, self._problem
        if not problem.ops.counts_once:
            return
        crossed = problem.ops.path_max(self._matters.to(torch.float64)[None])[0]
        confined = (problem.cheapest_path_cost(crossed)[0] > 0).nonzero()[:, 0]
        if not 0 < len(confined) <= _MOST_CONFINED * len(self.rate):
            self._part, self._demands = problem, None
            return
        self._demands = confined.cpu().numpy()
        paths = of_demands(problem.paths, self._demands)
        self._part = dataclasses.replace(
            problem, paths=paths, ops=make_path_ops(paths, problem.ops.device), demand=problem.demand[:, confined],
            demand_value=problem.demand_value[confined],
        )  # fmt: skip

    def tasks(self, gap: float) -> PartOfTasks:
        """Add cuts until the rates fit, up to a share of ``gap``, or no time is left.

        Where rates of all levels exceed cuts, they are routed up to half as many levels; where these fit, of twice as
        many.  Few levels give the cuts of these alone, and many are confirmed by one program.  The gap of fair rates is
        not known before the end.
        """
        gap, cuts_before = max(gap, _LEAST_GAP), len(self._filling.cuts)
        self.is_stuck = False
        is_whole, confirmed, ahead = False, 0.0, len(self.levels) + 1  # confirmed: level up to which rates fit
        for _ in range(_MOST_PROGRAMS):
            upcoming = [level.level for level in self.levels if level.level > confirmed]
            cap = math.inf if is_whole or ahead > len(upcoming) else upcoming[ahead - 1]
            part, demands = (self._problem, None) if is_whole else (self._part, self._demands)
            is_whole = is_whole or (demands is None and cap == math.inf)
            result = yield from self._routed(part, demands, torch.minimum(self.rate, cap * self._weight), gap)
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
            self.is_stuck = (self.is_stuck or is_undecided) and len(self._filling.cuts) == cuts_before
            if cap < math.inf:
                confirmed, ahead = cap, 2 * ahead
            elif is_whole:
                return
            else:
                is_whole = True  # what fits alone is routed with all other demands

    def _routed(self, part: Problem, demands: Int64Array | None, rate: Tensor, gap: float) -> PartOfTasks:
        """Route rates until they fit or exceed a cut; the result of the program, or None for want of time.

        Args:
            part: of some demands, or of all.
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
            result: PdhgResult | None = yield Solve(program, program_gap, state, self._time, True, _PROGRAM_ITERATIONS)
            if result is None:
                return None
            self.splits[rows], prices = result.splits[0], result.prices[0]
            self._excess = float(result.value) - 1
            is_clear = self._excess <= _FITS_SHARE * gap or float(result.bound) > 1 + _VIOLATED_SHARE * gap
            if is_clear or program_gap <= _VIOLATED_SHARE * gap:
                return result
            program_gap /= _PROGRAM_SHRINKAGE

    def _note_full_links(self, result: PdhgResult) -> None:
        """Take the result of a program of all demands into account: others may stand in the way of confined ones."""
        self.prices, self.utilisation = result.prices[0], float(result.value)
        load = self._problem.ops.link_sum((self.rate[:, None] * self.splits)[None])
        self._confine(self._problem.utilisation_of(load)[0] >= _FULL_LINK)

    def _takes_cut(self, result: PdhgResult, gap: float) -> bool:
        """Whether the rates exceed a cut of a program's prices, which is then added."""
        if float(result.value) <= 1 + _FITS_SHARE * gap or float(result.bound) <= 1:
            return False
        value = result.prices[0] * self._problem.capacity[0]
        for least in (_NO_PRICE_SHARE, 0.0):  # all prices where those that may be rounding prove the excess
            prices = torch.where(value > least * value.max(), result.prices[0], 0)
            self._confine(prices > 0)  # all demands that pay them are confined then
            cut = cut_of(self._part, prices, self._demands)
            if cut.excess(self.rate.cpu().numpy()) > 0:
                self._filling.add(cut)
                self._fill()
                return True
        return False
