"""Rates that are reserved on paths before anything fails, so that every demand keeps most of its
traffic for most of the time.

An ingress moves the traffic of paths that have failed to those that survive, up to the rates
reserved there; reserved rates never exceed capacities, so that no failure causes congestion.  With
the exact probabilities p[d, s] of :mod:`teal_availability.patterns` and the sums S[d, s] of
:mod:`teal_availability.certificates` two programs are linear:

- *least expected loss*: max sum_d sum_s p[d, s] min(d, S[d, s]);
- *common share* at availability beta: max over x of the least share that any demand keeps on
  average in the worst 1 - beta of the time,

      min_d  max_{a <= 1}  a - sum_s p[d, s] max(0, a - S[d, s] / d) / (1 - beta),

  one minus the conditional value at risk (CVaR) of the lost share (Rockafellar and Uryasev, 2000;
  TEAVAR, Bogle et al., SIGCOMM 2019, of each demand by itself).  Every demand keeps this share in
  at least beta of the time.  Capacity that is left then lowers the expected loss.

The variables are shares of the demands, and prices of the links certify both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from teal import InputError, Problem, project, solve
from teal.network.path_links import path_links_of
from teal.problem.bounds import gap_between
from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.lp import Between, LpResult, solve_lp, solve_milp
from teal_availability.certificates import (
    common_share_bound,
    expected_share,
    expected_share_bound,
    quantile_shares,
    tail_shares,
    weights_that_fit,
    within_capacities,
)
from teal_availability.matrix import capacity_of, crossings, demand_of
from teal_availability.patterns import Patterns

_LEAST_PROBABILITY = 1e-15  # of a pattern; rounding
_ROUNDING = 1e-12  # of a share of the time
_MOST_ROWS = 300_000  # patterns of a linear program; HiGHS takes 20 s for 73,000
# Patterns from which interior points end before the simplex method, where single rates have no
# costs.  Where they have, the simplex method is faster: least loss on Germany50 0.5, not 5.6 s.
_BY_INTERIOR_POINTS_FROM = 3_000
_MOST_WHOLE = 4_000  # patterns up to which a program with whole numbers is tried
_FLOW_GAP = 1e-3  # certified, of the flow that networks out of reach begin with
_SPENT = 1e-6  # share of a common share that may be given up for less expected loss


@dataclasses.dataclass(frozen=True, eq=False)
class Promise:
    """Reserved rates and what is certain of them.

    Attributes:
        rates: (D, K) Gbit/s on each path; their loads are within capacities.
        value: share of all traffic that arrives on average, or the common share.
        bound: no other rates on these paths have a larger value.
        prices: (E,) of the links, which prove the bound together with ``weights``.
        weights: (D, 2^K) of the patterns; of a largest loss summed over the states of each pattern,
            which its bound has one by one.
        left_out: (D,) demands without a path for 1 - availability of the time or longer, which have
            no part in a common share.
    """

    rates: FloatArray
    value: float
    bound: float
    prices: FloatArray
    weights: FloatArray
    left_out: BoolArray

    @property
    def gap(self) -> float:
        """(bound - value) / bound; 0 where both are 0."""
        return gap_between(self.value, self.bound, 1.0)


class _Rows:
    """Parts of the programs: shares x of some demands on their paths, and a row for each of their
    patterns that occurs.

    Attributes:
        slot: (P,) numbers d K + k of the paths.
        loads: (E, P) Gbit/s that a share of 1 on a path puts on each link.
        capacity: (E,) Gbit/s.
        demand_number, set_number: (R,) demand and set of each pattern.
        probability: (R,) of each pattern.
        arrives: (R, P) 1 where a path survives.
        rate: (R,) Gbit/s of the demand of each pattern.
    """

    def __init__(self, problem: Problem, patterns: Patterns, takes: BoolArray) -> None:
        demand = demand_of(problem)
        links = path_links_of(problem.paths)
        width = problem.paths.num_paths
        live = problem.path_mask[0].cpu().numpy().reshape(-1)
        chosen = np.flatnonzero(takes[links.slot // width] & live[links.slot])
        crosses = crossings(problem.paths)[chosen]
        self.slot = links.slot[chosen]
        self.capacity = capacity_of(problem)
        self.loads = (sp.diags_array(demand[self.slot // width]) @ crosses).T.tocsr()
        occurs = (patterns.probability > _LEAST_PROBABILITY) & takes[:, None]
        occurs[:, 0] = False  # no path survives: nothing arrives
        self.demand_number, self.set_number = np.nonzero(occurs)
        self.probability = patterns.probability[occurs]
        self.rate = demand[self.demand_number]
        place = np.full(takes.size * width, -1, dtype=np.int64)  # of a path by its slot
        place[self.slot] = np.arange(len(chosen))
        places = place[self.demand_number[:, None] * width + np.arange(width)]
        row, path = np.nonzero(patterns.survives[self.set_number] & (places >= 0))
        self.arrives = sp.csr_array(
            (np.ones(len(row)), (row, places[row, path])),
            shape=(len(self.set_number), len(chosen)),
        )

    def table(self, values: FloatArray, patterns: Patterns) -> FloatArray:
        """(D, 2^K) numbers of the pattern rows."""
        found = np.zeros_like(patterns.probability)
        found[self.demand_number, self.set_number] = values
        return found

    def rates(self, shares: FloatArray, problem: Problem) -> FloatArray:
        """(D, K) Gbit/s of shares, cut where rounding exceeds a capacity."""
        found = np.zeros(problem.paths.mask.size)
        found[self.slot] = np.maximum(shares, 0.0)
        rates = found.reshape(problem.paths.mask.shape) * demand_of(problem)[:, None]
        return within_capacities(problem, rates)

    def solve(
        self, cost: FloatArray, blocks: Sequence[Sequence[Any]], right: FloatArray, **options: Any
    ) -> LpResult:
        """The least cost under blocks of rows that are at most ``right``."""
        return solve_lp(cost, (sp.block_array(blocks, format="csr"), right), **options)


def promise_least_loss(problem: Problem, patterns: Patterns, seconds: float = math.inf) -> Promise:
    """The rates with the least expected loss; on networks that are out of reach for the linear
    program rates near it, certified too.

    Args:
        problem: one matrix under total_flow.
        patterns: probabilities of its paths.
        seconds: time limit.

    Raises:
        SolverError: the program was not solved in time.
    """
    if not is_within_reach(patterns):
        return _from_flow(problem, patterns, seconds)
    rows = _Rows(problem, patterns, demand_of(problem) > 0)
    paths, count, links = len(rows.slot), len(rows.rate), len(rows.capacity)
    if not count:
        return _nothing(problem, patterns)
    worth = rows.probability * rows.rate
    unit = float(worth.mean())  # so that HiGHS's tolerances are small beside the costs
    found = rows.solve(
        np.concatenate([np.zeros(paths), -worth / unit]),
        [[rows.loads, None], [-rows.arrives, sp.eye_array(count)]],
        np.concatenate([rows.capacity, np.zeros(count)]),
        high=np.concatenate([np.full(paths, np.inf), np.ones(count)]),
        seconds=seconds,
    )
    rates = rows.rates(found.solution("least expected loss")[:paths], problem)
    weights = found.duals[links:] * unit / rows.rate
    return _certified(
        problem, patterns, rates, found.duals[:links] * unit, rows.table(weights, patterns)
    )


def _nothing(problem: Problem, patterns: Patterns) -> Promise:
    """The promise of a matrix of which nothing can arrive, or that has no demand."""
    none = np.zeros_like(patterns.probability)
    rates = np.zeros((len(none), patterns.num_paths))
    return _certified(problem, patterns, rates, np.zeros(problem.topology.num_links), none)


def promise_to_nobody(problem: Problem, patterns: Patterns, left_out: BoolArray) -> Promise:
    """The promise of a common share where no demand has a part in it: none of those that are left
    out, all where there is no demand.
    """
    share = 0.0 if left_out.any() else 1.0
    nothing = _nothing(problem, patterns)
    return dataclasses.replace(nothing, value=share, bound=share, left_out=left_out)


def _certified(
    problem: Problem,
    patterns: Patterns,
    rates: FloatArray,
    prices: FloatArray,
    weights: FloatArray,
) -> Promise:
    """The promise of rates with the least expected loss."""
    return Promise(
        rates,
        expected_share(patterns, demand_of(problem), rates),
        expected_share_bound(problem, patterns, prices, weights),
        prices,
        weights,
        np.zeros(len(rates), dtype=bool),
    )


def is_within_reach(patterns: Patterns) -> bool:
    """Whether the linear programs are solved within minutes, by the number of their rows."""
    return int((patterns.probability[:, 1:] > _LEAST_PROBABILITY).sum()) <= _MOST_ROWS


def _from_flow(problem: Problem, patterns: Patterns, seconds: float) -> Promise:
    """The rates of the largest total flow, and on the capacity that is left rates for its demands
    on other paths; prices are those of the flow.
    """
    flow = solve(problem, gap=_FLOW_GAP, deadline=seconds)
    demand = problem.demand[0][:, None]
    rates = flow.splits[0].to(problem.demand) * demand
    unused = (problem.capacity[0] - problem.loads(flow.splits.to(problem.demand))[0]).clamp(min=0)
    others = problem.path_mask[0] & (2 * rates < demand)
    even = others / others.sum(-1, keepdim=True).clamp(min=1)
    more = project(problem.with_capacity(unused), even[None].to(problem.demand), refill=0)[0]
    prices = np.asarray(flow.prices[0].to("cpu", torch.float64), dtype=np.float64)
    reserved = within_capacities(problem, (rates + more * demand).cpu().numpy())
    weights = weights_that_fit(problem, patterns, prices)
    return _certified(problem, patterns, reserved, prices, weights)


def without_path(patterns: Patterns, demand: FloatArray, availability: float) -> BoolArray:
    """(D,) demands above 0 without a path for 1 - availability of the time or longer."""
    found: BoolArray = (demand > 0) & (patterns.probability[:, 0] >= 1 - availability - _ROUNDING)
    return found


def promise_common_share(
    problem: Problem,
    patterns: Patterns,
    availability: float,
    seconds: float = math.inf,
    *,
    is_sparing: bool = False,
) -> Promise:
    """The rates with the largest common share at an availability, and of these those with the least
    expected loss, or those that take least of the links.

    Args:
        problem: one matrix under total_flow.
        patterns: probabilities of its paths.
        availability: beta, in (0, 1).
        seconds: time limit.
        is_sparing: whether the rates take least of the links.

    Raises:
        InputError: another availability, or too large a network.
        SolverError: the program was not solved in time.
    """
    check_availability(availability)
    if not is_within_reach(patterns):
        expected = f"at most {_MOST_ROWS:,} patterns of surviving paths"
        raise InputError("common-share", "network", expected, "more")
    demand = demand_of(problem)
    tail = 1 - availability  # of the time, in which a promise may be missed
    left_out = without_path(patterns, demand, availability)
    takes = (demand > 0) & ~left_out
    if not takes.any():
        return promise_to_nobody(problem, patterns, left_out)
    rows = _Rows(problem, patterns, takes)
    found, spent = _common_share(rows, patterns, takes, tail, seconds, is_sparing)
    paths, count, links = len(rows.slot), len(rows.rate), len(rows.capacity)
    best = spent if spent.is_solved and spent.x is not None else found
    rates = rows.rates(best.solution("common share")[:paths], problem)
    of_demand = np.zeros(len(demand))
    of_demand[takes] = found.duals[links + count :]
    weights = rows.table(found.duals[links : links + count], patterns)
    weights[:, 0] = of_demand * patterns.probability[:, 0] / tail
    prices = found.duals[:links]
    return Promise(
        rates,
        float(tail_shares(patterns, demand, rates, availability)[takes].min()),
        common_share_bound(problem, patterns, availability, prices, weights, of_demand),
        prices,
        weights,
        left_out,
    )


def _common_share(
    rows: _Rows,
    patterns: Patterns,
    takes: BoolArray,
    tail: float,
    seconds: float,
    is_sparing: bool,
) -> tuple[LpResult, LpResult]:
    """The program of the common share, and that of the least expected loss, or of the least load of
    all links together, with this share for all.

    The variables are the shares on paths, shortfalls u[d, s], levels a[d], the common share, and in
    the second program what arrives, b[d, s].  A level is also the shortfall while no path survives.
    """
    paths, count, demands = len(rows.slot), len(rows.rate), int(takes.sum())
    number = np.full(len(takes), -1, dtype=np.int64)
    number[takes] = np.arange(demands)
    places = np.arange(count), number[rows.demand_number]
    of_demand = sp.csr_array((np.ones(count), places), shape=(count, demands))
    shortfalls = sp.csr_array((rows.probability / tail, places[::-1]), shape=(demands, count))
    level = sp.diags_array(1 - patterns.probability[takes, 0] / tail)
    loads = [rows.loads, None, None, sp.csr_array((len(rows.capacity), 1))]
    falls_short = [-rows.arrives, -sp.eye_array(count), of_demand, None]
    shares = [None, shortfalls, -level, np.ones((demands, 1))]
    right = np.concatenate([rows.capacity, np.zeros(count + demands)])
    of_rates, of_shares = np.full(paths + count, np.inf), np.ones(demands + 1)
    found = rows.solve(
        np.concatenate([np.zeros(paths + count + demands), [-1.0]]),
        [loads, falls_short, shares],
        right,
        high=np.concatenate([of_rates, of_shares]),
        seconds=seconds,
        by_interior_points=count > _BY_INTERIOR_POINTS_FROM,
    )
    share = found.solution("common share")[-1]
    least = np.concatenate([np.zeros(paths + count + demands), [share * (1 - _SPENT)]])
    if is_sparing:
        taken = np.asarray(rows.loads.sum(0)).reshape(-1)
        spared = rows.solve(
            np.concatenate([taken / float(taken.mean()), np.zeros(count + demands + 1)]),
            [loads, falls_short, shares],
            right,
            low=least,
            high=np.concatenate([of_rates, of_shares]),
            seconds=seconds,
        )
        return found, spared
    worth = rows.probability * rows.rate
    spent = rows.solve(
        np.concatenate([np.zeros(paths + count + demands + 1), -worth / float(worth.mean())]),
        [
            [*loads, None],
            [*falls_short, None],
            [*shares, None],
            [-rows.arrives, None, None, None, sp.eye_array(count)],
        ],
        np.concatenate([right, np.zeros(count)]),
        low=np.concatenate([least, np.zeros(count)]),
        high=np.concatenate([of_rates, of_shares, np.ones(count)]),
        seconds=seconds,
    )
    return found, spent


@dataclasses.dataclass(frozen=True)
class Quantile:
    """The largest share that every demand keeps in at least an availability of the time.

    Attributes:
        value: share of rates that were found.
        bound: no rates have a larger one.
    """

    value: float
    bound: float


def common_quantile(
    problem: Problem,
    patterns: Patterns,
    availability: float,
    promise: Promise | None = None,
    seconds: float = 10.0,
) -> Quantile | None:
    """The true quantile, of which a common share by CVaR is a lower bound; None where the program
    is too large for whole numbers, or HiGHS found nothing in time.

    A whole number z[d, s] says whether pattern s counts for demand d:

        S[d, s] / d >= share - 1 + z[d, s],  sum_s p[d, s] (1 - z[d, s]) <= 1 - availability,

    over the demands that a common share has.  A pattern that takes more of the time counts.

    Args:
        problem: one matrix under total_flow.
        patterns: probabilities of its paths.
        availability: beta.
        promise: a common share, whose rates count too; None for none.
        seconds: time limit.
    """
    check_availability(availability)
    demand = demand_of(problem)
    tail = 1 - availability  # of the time, in which a promise may be missed
    takes = (demand > 0) & ~without_path(patterns, demand, availability)
    rows = _Rows(problem, patterns, takes)
    paths, count = len(rows.slot), len(rows.rate)
    if not takes.any() or count > _MOST_WHOLE:
        return None
    number = np.full(len(demand), -1, dtype=np.int64)
    number[takes] = np.arange(takes.sum())
    spare = tail - patterns.probability[:, 0]  # of the time, while paths survive
    can_miss = rows.probability <= spare[rows.demand_number] + _ROUNDING
    missed = sp.csr_array(
        (
            np.where(can_miss, rows.probability, 0.0) / tail,
            (number[rows.demand_number], np.arange(count)),
        ),
        shape=(int(takes.sum()), count),
    )
    at_least = (missed.sum(1) - spare[takes] / tail) - _ROUNDING / tail
    share = np.ones((count, 1))
    found = solve_milp(
        np.concatenate([np.zeros(paths + count), [-1.0]]),
        [
            Between(
                sp.hstack([rows.loads, sp.csr_array((len(rows.capacity), count + 1))]),
                high=rows.capacity,
            ),
            Between(
                sp.hstack([rows.arrives, -sp.diags_array(can_miss.astype(float)), -share]),
                low=np.where(can_miss, -1.0, 0.0),
            ),
            Between(
                sp.hstack([sp.csr_array((len(at_least), paths)), missed, 0 * at_least[:, None]]),
                low=at_least,
            ),
        ],
        np.concatenate([np.zeros(paths), np.ones(count), [0]]),
        high=np.concatenate([np.full(paths, np.inf), np.ones(count + 1)]),
        seconds=seconds,
        relative_gap=1e-4,
    )
    values = [] if promise is None else [promise.rates]
    if found.x is not None:
        values.append(rows.rates(found.x[:paths], problem))
    if not values or not math.isfinite(found.bound):
        return None
    value = max(
        float(quantile_shares(patterns, demand, rates, availability)[takes].min())
        for rates in values
    )
    return Quantile(value, max(value, min(1.0, max(0.0, -found.bound))))


def check_availability(availability: float) -> None:
    """Raise InputError for a number that is no share of the time below 1."""
    if not 0 < availability < 1:
        raise InputError("promise", "availability", "a share of the time in (0, 1)", availability)
