"""Max-min fair rates: progressive filling under cuts, which a cutting-plane loop generates.

Each level is certified (:mod:`problem.fair_levels`).  :func:`tasks` is exact: water-filling
(progressive filling, :class:`WaterFilling`) gives rates and routes.  :func:`level_tasks` is faster
and uncertified: rates come from the iteration over link levels (:mod:`fairness`), and a
max_concurrent_flow program routes them and scales all by one factor.  Both refill unused capacity.

Cutting planes: a program of the largest link utilisation routes the rates that are fair under the
cuts so far (:mod:`teal.solvers.sequences.rate_cuts`).  If they fit, they are fair; otherwise the
dual prices of the program give a violated cut, which is added.  Cuts have few links, and few
demands have no path around these: on UsCarrier at load 10 at most 9 links and 2,000 of 24,806
demands, on Kdl 30 links and 17,000 of 567,762.  Programs therefore contain only the *confined*
demands, whose paths all cross a link of some cut or a nearly full link; all demands are routed only
to confirm.
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
from teal.problem.fair_levels import FairCertificates, fair_certificates
from teal.runtime.arrays import Int64Array
from teal.solvers.projection import project
from teal.solvers.result import SolveResult, SolveState, merged, stops_of_sequence
from teal.solvers.sequences.fairness import fair_flows, usual_iterations, weights_of
from teal.solvers.sequences.rate_cuts import CutFilling, cut_of
from teal.solvers.sequences.task import Compute, Progress, Solve, SubTasks, Tasks, TimeShare

# First target gap of a program, sufficient for most violated cuts; then divided by the shrinkage
# until rates fit or a cut is violated.
_FIRST_PROGRAM_GAP = 0.05
_PROGRAM_SHRINKAGE = 4.0
# Overload of links at which rates still fit, as a share of the target gap.
_MAX_OVERLOAD_SHARE = 0.8
# Smallest violation of a cut, and smallest gap of a program, as a share of the target gap.
_MIN_VIOLATION_SHARE = 0.4
# Utilisation from which a link counts as full.  The flows of the initial guess overload links by a
# few per cent: with 0.9 three times as many demands counted as confined, with 1.3 all demands had
# to be routed six times on Kdl, with 1.1 once.
_FULL_UTILISATION = 1.1
# Share of the largest capacity value of a link below which a price counts as rounding.
_MIN_PRICE_SHARE = 1e-3
_MAX_CONFINED_SHARE = 0.5  # share of the demands above which confined programs save nothing
_PROGRAM_ITERATIONS = 1000  # iteration limit of a program; its bound is then used as it is
_MIN_GAP = 1e-7  # smallest target gap of programs: float64 sums certify no smaller one
_MAX_PROGRAMS = 400  # limit per matrix; tens are usual


class WaterFilling:
    """Water-filling of one matrix under cuts, which max_link_utilisation programs generate.

    A cut is a linear limit on the rates, from link prices (:class:`RateCut`); links with a price in
    a cut, and nearly full links, are cut links.  A demand is confined if all its paths cross cut
    links: programs of the confined demands are smaller, and find the same cuts.

    Args:
        problem: B = 1, under total_flow, in float64.
        weight: (D,) weights w.
        flows: (D, K) initial guess of fair flows, Gbit/s.
        time: time budget of the generation of cuts.

    Attributes:
        rate: (D,) fair rates under the cuts, Gbit/s.
        splits: (D, K) shares of the rates, as last routed.
        prices: (E,) prices of the last program of all demands.
        utilisation: largest link utilisation of the rates on these splits; about 1 at most unless
            the time ran out.
        levels: levels at which demands are held, ascending.
        is_timed_out: whether the time ran out.
        is_stuck: whether the last :meth:`tasks` found no violated cut although the result of some
            program did not confirm its rates; smaller gaps would not help.
    """

    def __init__(self, problem: Problem, weight: Tensor, flows: Tensor, time: TimeShare) -> None:
        self._problem = problem
        self._weight = weight
        self._guessed_flows = flows
        self._time = time
        self._filling = CutFilling(problem, weight.cpu().numpy())
        self.splits = flows / flows.sum(-1, keepdim=True).clamp(min=1e-300)
        self.prices = torch.zeros_like(problem.capacity[0])
        self.utilisation = math.inf
        self.is_timed_out = False
        self.is_stuck = False
        # Overload of the last program, which sets the gap of the next one.
        self._overload = math.inf
        self._update_rates()
        # (E,) links with a price in some cut, and full links.
        self._cut_links = torch.zeros_like(self.prices, dtype=torch.bool)
        cut_links = (
            problem.utilisation_of(problem.ops.link_sum(flows[None]))[0] >= _FULL_UTILISATION
        )
        for cut in self._filling.cuts:
            cut_links |= torch.from_numpy(cut.prices > 0).to(cut_links.device)
        # Program of the confined demands, and their indices; None for all demands.
        self._confined_problem = problem
        self._confined_demands: Int64Array | None = None
        self._add_cut_links(cut_links)

    def add_level_cuts(self, prices: Sequence[Tensor]) -> None:
        """Add a cut for each level of an earlier solution, and update the rates.

        Args:
            prices: link prices (E,) of each level.
        """
        for level_prices in prices:
            usable = finite_prices(level_prices.to(self.prices))
            self._filling.add(cut_of(self._problem, usable))
            self._add_cut_links(usable > 0)
        self._update_rates()

    @property
    def flows(self) -> Tensor:
        """Flows (D, K) in Gbit/s that carry the rates, scaled by one factor to fit the capacities.

        If the time did not suffice to route all demands, these are the flows of the initial guess,
        limited to the rates under the cuts.
        """
        if math.isfinite(self.utilisation):
            return self.splits * (self.rate / max(1.0, self.utilisation))[:, None]
        guessed = self._guessed_flows.sum(-1, keepdim=True)
        return self._guessed_flows * (self.rate[:, None] / guessed.clamp(min=1e-300)).clamp(max=1)

    def _update_rates(self) -> None:
        """Recompute rates and levels by progressive filling under the cuts."""
        rate, self.levels = self._filling.rates()
        self.rate = torch.from_numpy(rate).to(self._problem.demand.device)

    def _add_cut_links(self, links: Tensor) -> None:
        """Add links to the cut links, and rebuild the program of the confined demands.

        A demand is confined if all its paths cross a cut link.

        Args:
            links: (E,) bool, links to add.
        """
        if not bool((links & ~self._cut_links).any()):
            return
        self._cut_links = self._cut_links | links
        problem = self._problem
        # Columns that load a link by a part or several times (segment lists) have no such program.
        if not problem.ops.counts_once:
            return
        # Demands whose cheapest path is above 0 if cut links cost 1 and others 0.
        crosses_cut_link = problem.ops.path_max(self._cut_links.to(torch.float64)[None])[0]
        confined_index = (problem.cheapest_path_cost(crosses_cut_link)[0] > 0).nonzero()[:, 0]
        # A program of no demand, or of most of them, saves nothing: use all demands.
        if not 0 < len(confined_index) <= _MAX_CONFINED_SHARE * len(self.rate):
            self._confined_problem = problem
            self._confined_demands = None
            return
        self._confined_demands = confined_index.cpu().numpy()
        paths = of_demands(problem.paths, self._confined_demands)
        self._confined_problem = dataclasses.replace(
            problem,
            paths=paths,
            ops=make_path_ops(paths, problem.ops.device),
            demand=problem.demand[:, confined_index],
            demand_value=problem.demand_value[confined_index],
        )

    def tasks(self, gap: float) -> SubTasks:
        """Yield tasks that add violated cuts until the rates fit, or the time runs out.

        Each program routes the rates up to a level cap.  The number of levels below the cap adapts:
        half as many after a violated cut, twice as many after a fit.  Few levels give cuts of these
        levels only; many are confirmed by one program.  The gap of the fair rates is known at the
        end only.

        Args:
            gap: target gap of the sequence; a share of it is the accepted overload of links.
        """
        gap = max(gap, _MIN_GAP)
        num_cuts_before = len(self._filling.cuts)
        self.is_stuck = False
        # is_complete: whether the next program contains all demands at all levels.
        # confirmed_level: highest level whose rates fit.
        # num_levels: number of further levels that the next program has to confirm.
        is_complete = False
        confirmed_level = 0.0
        num_levels = len(self.levels) + 1
        for _ in range(_MAX_PROGRAMS):
            # Cap on the levels, and program of the confined or of all demands.
            unconfirmed_levels = [
                level.level for level in self.levels if level.level > confirmed_level
            ]
            level_cap = (
                math.inf
                if is_complete or num_levels > len(unconfirmed_levels)
                else unconfirmed_levels[num_levels - 1]
            )
            routed_problem, routed_demands = (
                (self._problem, None)
                if is_complete
                else (self._confined_problem, self._confined_demands)
            )
            # Route the rates, limited to the cap.
            is_complete = is_complete or (routed_demands is None and level_cap == math.inf)
            result = yield from self._route(
                routed_problem,
                routed_demands,
                torch.minimum(self.rate, level_cap * self._weight),
                gap,
            )
            if result is None:
                self.is_timed_out = True
                return
            yield Progress(math.inf)
            # Violated: add the cut, and continue with fewer levels.
            if is_complete:
                self._update_full_links(result)
            if self._add_violated_cut(result, gap):
                confirmed_level = 0.0 if is_complete else confirmed_level
                num_levels = max(1, min(num_levels, len(unconfirmed_levels)) // 2)
                is_complete = False
                continue
            # Rates fit, or the result is undecided: confirm more levels, then all demands.
            is_undecided = float(result.value) > 1 + _MAX_OVERLOAD_SHARE * gap
            # Stuck: some result of this call was undecided, and no cut has been added.
            self.is_stuck = (self.is_stuck or is_undecided) and len(
                self._filling.cuts
            ) == num_cuts_before
            if level_cap < math.inf:
                confirmed_level = level_cap
                num_levels = 2 * num_levels
            elif is_complete:
                return
            else:
                is_complete = True

    def _route(
        self, routed_problem: Problem, routed_demands: Int64Array | None, rate: Tensor, gap: float
    ) -> SubTasks:
        """Yield programs that route rates at decreasing gaps, until they fit or violate a cut.

        The programs minimise the largest link utilisation of the rates.

        Args:
            routed_problem: problem of some demands, or of all.
            routed_demands: indices of these demands; None for all.
            rate: (D,) rates of all demands, Gbit/s.
            gap: target gap of the sequence.

        Returns:
            result of the last program; None after the deadline.
        """
        demand_index = (
            slice(None)
            if routed_demands is None
            else torch.from_numpy(routed_demands).to(rate.device)
        )
        program = routed_problem.as_min_max_program(
            ObjectiveName.MAX_LINK_UTILISATION, rate[demand_index][None]
        )
        # Begin at half the overload of the last program; later programs start from the last result.
        program_gap = min(_FIRST_PROGRAM_GAP, self._overload / 2)
        # The first program starts from the prices of the last program of all demands.
        prices = self.prices
        while True:
            program_gap = max(program_gap, _MIN_VIOLATION_SHARE * gap)
            state = SolveState(self.splits[demand_index][None], prices[None])
            # True: the program may be skipped after the deadline.
            result: SolveResult | None = yield Solve(
                program, program_gap, state, self._time, True, _PROGRAM_ITERATIONS
            )
            if result is None:
                return None
            self.splits[demand_index] = result.splits[0]
            prices = result.prices[0]
            # Stop when the overload is small, the bound proves a violation, or the gap is minimal.
            self._overload = float(result.value) - 1
            is_decided = (
                self._overload <= _MAX_OVERLOAD_SHARE * gap
                or float(result.bound) > 1 + _MIN_VIOLATION_SHARE * gap
            )
            if is_decided or program_gap <= _MIN_VIOLATION_SHARE * gap:
                return result
            program_gap /= _PROGRAM_SHRINKAGE

    def _update_full_links(self, result: SolveResult) -> None:
        """Update prices, largest utilisation and cut links from a program of all demands.

        Links that are full under the rates become cut links.

        Args:
            result: result of the max_link_utilisation program of all demands at the rates.
        """
        self.prices = result.prices[0]
        self.utilisation = float(result.value)
        load = self._problem.ops.link_sum((self.rate[:, None] * self.splits)[None])
        self._add_cut_links(self._problem.utilisation_of(load)[0] >= _FULL_UTILISATION)

    def _add_violated_cut(self, result: SolveResult, gap: float) -> bool:
        """Add the cut of a program's prices if the rates violate it; return whether they do.

        Args:
            result: result of a max_link_utilisation program at the rates.
            gap: target gap of the sequence.
        """
        if float(result.value) <= 1 + _MAX_OVERLOAD_SHARE * gap or float(result.bound) <= 1:
            return False
        capacity_value = result.prices[0] * self._problem.capacity[0]
        # First set prices within rounding to 0; then use all prices, if the violation depends on
        # the small ones.
        for min_value_share in (
            _MIN_PRICE_SHARE,
            0.0,
        ):
            prices = torch.where(
                capacity_value > min_value_share * capacity_value.max(), result.prices[0], 0
            )
            # Confine all demands whose paths have a price, so that the cut contains them.
            self._add_cut_links(prices > 0)
            cut = cut_of(self._confined_problem, prices, self._confined_demands)
            if cut.excess(self.rate.cpu().numpy()) > 0:
                self._filling.add(cut)
                self._update_rates()
                return True
        return False


# Gaps of water-filling as multiples of the target, smaller ones where the certificate missed the
# target: a level that is a small part of its cut can grow by many times the overload of the links.
_GAP_FACTORS = (1.0, 0.3, 0.1, 0.03)
_GUESS_TIME = 0.25  # time budget of the initial guess, as a share of the remaining time
# Time budget of water-filling, as a share of the time after the guess; the figures use the other
# part.
_FILLING_TIME = 0.7
# Iterations over link levels for the initial guess of water-filling.
_GUESS_ITERATIONS = 10
_REFILL_ROUNDS = 6  # rounds that allocate unused capacity to unserved demand
_MIN_DIVISOR = 1e-30  # replaces 0 as a divisor


def tasks(
    problem: Problem,
    gap: float,
    *,
    supports_piecewise_linear_values: bool = False,
    weight: Tensor | None = None,
    start: SolveState | None = None,
) -> Tasks:
    """Yield the tasks of a max-min fair allocation by water-filling, certified to ``gap``.

    Args:
        problem: B matrices.
        gap: target gap.
        supports_piecewise_linear_values: not used; all sequences have this argument.
        weight: (D,) or (B, D) positive weights w; None for the weights of max_min, or 1 each under
            another objective.
        start: warm start, whose splits replace the guess of the fair flows and whose level prices
            are cuts; None for a guess by link levels.
    """
    problem = problem.to(torch.float64)
    weight = weights_of(problem, weight)
    total_flow_problem = _total_flow_problem(problem)
    # Demands above the capacity of their paths would span too many decades.
    usable_problem = total_flow_problem.usable
    level_prices = None
    # Initial flows: by link levels, or from the warm start.
    if start is None:
        guess = partial(fair_flows, usable_problem.to(torch.float32), weight, _GUESS_ITERATIONS)
        flows = yield Compute(guess, TimeShare(_GUESS_TIME))
    else:
        flows = total_flow_problem.flows(start.splits.clamp(min=0))
        level_prices = start.program_prices
    flows = flows.double()
    # Water-filling of each matrix, with the cuts of the warm start.
    filling_time = TimeShare(_FILLING_TIME)
    fillings = []
    for row in range(usable_problem.batch):
        time = TimeShare(1 / (usable_problem.batch - row), filling_time)
        fillings.append(WaterFilling(usable_problem.row(row), weight[row], flows[row], time))
        if (
            level_prices is not None
            and level_prices.level is not None
            and level_prices.prices.shape[-1] == total_flow_problem.topology.num_links
        ):
            fillings[-1].add_level_cuts([prices for _, prices in level_prices.of_row(row)])
    # Fill ever more accurately until the certificate reaches the target.
    best_results: list[SolveResult] = []
    for row, filling in enumerate(fillings):
        results: list[SolveResult] = []
        for gap_factor in _GAP_FACTORS:
            yield from filling.tasks(gap_factor * gap)
            results.append(
                _filling_result(
                    problem.row(row),
                    total_flow_problem.row(row),
                    filling,
                    weight[row : row + 1],
                    gap,
                )
            )
            if float(results[-1].gap) <= gap or filling.is_timed_out or filling.is_stuck:
                break
        best_results.append(min(results, key=lambda result: float(result.gap)))
    return _join_results(best_results)


def _filling_result(
    problem: Problem, total_flow_problem: Problem, filling: WaterFilling, weight: Tensor, gap: float
) -> SolveResult:
    """Create the result of water-filling, with unused capacity refilled.

    Args:
        problem: one matrix under its objective.
        total_flow_problem: the matrix under total_flow.
        filling: its water-filling.
        weight: (1, D) weights w.
        gap: target gap.
    """
    # Splits as shares of the demand; then fill unused capacity.
    splits_of_demand = filling.flows[None] / total_flow_problem.demand[..., None].clamp(
        min=_MIN_DIVISOR
    )
    splits = project(total_flow_problem, splits_of_demand, refill=_REFILL_ROUNDS)
    rate_per_weight = (total_flow_problem.flows(splits).sum(-1) / weight)[0]
    # Smallest rate per weight of the demands held at each level.
    levels = [
        (
            float(rate_per_weight[held_level.fixed_demands].min()),
            torch.from_numpy(held_level.prices).to(rate_per_weight.device),
        )
        for held_level in filling.levels
    ]
    level_prices = ProgramPrices.of_levels([levels], problem.topology.num_links)
    return _make_result(problem, splits, level_prices, weight, filling.prices[None], gap)


def _join_results(results: list[SolveResult]) -> SolveResult:
    """Join the results of single matrices, with their level prices and fairness metrics."""
    certificates = [result.fair for result in results if result.fair is not None]
    row_prices = [
        result.program_prices.of_row(0) for result in results if result.program_prices is not None
    ]
    prices = ProgramPrices.of_levels(row_prices, results[0].prices.shape[1])
    joined = merged(results)
    state = dataclasses.replace(joined.state, program_prices=prices)
    return dataclasses.replace(
        joined,
        state=state,
        program_prices=prices,
        part_certificates=FairCertificates.joined(certificates),
    )


def level_tasks(
    problem: Problem, gap: float, weight: Tensor | None = None, iterations: int = 0
) -> Tasks:
    """Yield the tasks of a faster max-min fair allocation, whose levels have no certificate.

    Rates come from an iteration over link levels; a max_concurrent_flow program routes them.

    Args:
        problem: B matrices.
        gap: target gap of the program that routes the rates.
        weight: (D,) or (B, D) positive weights w; None for the weights of max_min, or 1 each under
            another objective.
        iterations: iterations over link levels; 0 for the default of the network.
    """
    problem = problem.to(torch.float64)
    weight = weights_of(problem, weight)
    total_flow_problem = _total_flow_problem(problem)
    flows = yield Compute(
        partial(
            fair_flows,
            total_flow_problem,
            weight,
            iterations or usual_iterations(total_flow_problem),
        )
    )
    # Route the rates, all scaled by one factor; then allocate unused capacity.
    fair_rate = flows.sum(-1)
    start = SolveState(
        flows / fair_rate[..., None].clamp(min=_MIN_DIVISOR), torch.zeros_like(problem.capacity)
    )
    routed = yield Solve(
        total_flow_problem.as_min_max_program(ObjectiveName.MAX_CONCURRENT_FLOW, fair_rate),
        gap,
        start,
    )
    demand = total_flow_problem.demand[..., None]
    splits = torch.where(
        demand > 0, routed.splits * fair_rate[..., None] / demand.clamp(min=_MIN_DIVISOR), 0
    )
    splits = project(total_flow_problem, splits, refill=_REFILL_ROUNDS)
    return _make_result(problem, splits, None, weight, routed.prices, gap)


def _total_flow_problem(problem: Problem) -> Problem:
    """Return a problem of the same matrices under total_flow.

    All demands have the value 1; it has no link costs, classes, value steps and side conditions.
    """
    return dataclasses.replace(
        problem,
        objective=Objective(),
        demand_value=torch.ones_like(problem.demand_value),
        link_cost=torch.zeros_like(problem.link_cost),
        classes=None,
        steps=None,
        conditions=(),
    )


def _make_result(
    problem: Problem,
    splits: Tensor,
    level_prices: ProgramPrices | None,
    weight: Tensor,
    prices: Tensor,
    gap: float,
) -> SolveResult:
    """Create the result of a fair allocation; the value is the total flow.

    Args:
        problem: B matrices, in float64.
        splits: (B, D, K) splits.
        level_prices: prices of the rate levels; None without certificates.
        weight: (B, D) weights w.
        prices: (B, E) prices of the program that routed the rates.
        gap: target gap.
    """
    # The bound is the sum of the rate limits (B, D) that levels and demands impose.
    certificates = fair_certificates(problem, splits, level_prices, weight)
    value = problem.flows(splits).sum((1, 2))
    bound = certificates.limit.sum(1)
    gaps = certified_gap(dataclasses.replace(problem, objective=Objective()), value, bound)
    return SolveResult(
        splits=splits,
        prices=prices,
        value=value,
        bound=bound,
        gap=gaps,
        iterations=0,
        solve_s=0.0,
        state=SolveState(splits, prices, level_prices),
        stopped_by=stops_of_sequence(gaps, gap),
        program_prices=level_prices,
        part_certificates=certificates,
    )
