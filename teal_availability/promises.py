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
  at least beta of the time.  Capacity that is left then lowers their expected loss.

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
from teal_availability.matrix import (
    capacity_of,
    classes_of,
    crossings,
    demand_of,
    num_classes,
)
from teal_availability.patterns import Patterns
from teal_availability.tolerances import TIME_TOLERANCE, check_availability, missed_time

_LEAST_PROBABILITY = 1e-15  # of a pattern; rounding
_MOST_ROWS = 300_000  # patterns of a linear program; HiGHS takes 20 s for 73,000
# Patterns from which interior points end before the simplex method, where single rates have no
# costs.  Where they have, the simplex method is faster: least loss on Germany50 0.5, not 5.6 s.
_BY_INTERIOR_POINTS_FROM = 3_000
_MOST_WHOLE = 4_000  # patterns up to which a program with whole numbers is tried
_FLOW_GAP = 1e-3  # certified, of the flow that networks out of reach begin with
_SPENT = 1e-6  # part of a common share that is given up for lower classes, or less expected loss


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
    missed = (1 - availability) * (1 - TIME_TOLERANCE)
    found: BoolArray = (demand > 0) & (patterns.probability[:, 0] >= missed)
    return found


def promise_common_share(
    problem: Problem, patterns: Patterns, availability: float, seconds: float = math.inf
) -> Promise:
    """The rates with the largest common share at an availability, and of these those with the least
    expected loss.

    Args:
        problem: one matrix under total_flow, without classes.
        patterns: probabilities of its paths.
        availability: beta, in (0, 1).
        seconds: time limit of each program.

    Raises:
        InputError: another availability, classes, or too large a network.
        SolverError: the program was not solved in time.
    """
    if problem.classes is not None:
        expected = "demands without classes (promise_common_shares has one share for each class)"
        raise InputError("common-share", "classes", expected, ", ".join(problem.classes.names))
    return promise_common_shares(problem, patterns, availability, seconds)[0]


def promise_common_shares(
    problem: Problem, patterns: Patterns, availability: float, seconds: float = math.inf
) -> list[Promise]:
    """The rates with the largest common share of the highest class, of these those with the largest
    one of the next class, and so on; and of these those with the least expected loss.

    The rates of all promises are the same; a demand that is left out has none.  The bound of a
    class is that of all rates with which the upper classes keep the shares that are promised to
    them.

    Args:
        problem: one matrix; without classes all demands are one.
        patterns: probabilities of its paths.
        availability: beta, in (0, 1).
        seconds: time limit of each program.

    Raises:
        InputError: another availability, or too large a network.
        SolverError: a program was not solved in time.
    """
    check_availability(availability, "promise")
    if not is_within_reach(patterns):
        expected = (
            f"at most {_MOST_ROWS:,} patterns of surviving paths (fewer --num-paths, or "
            "--path-method disjoint, have fewer)"
        )
        raise InputError("common-share", "network", expected, "more")
    demand = demand_of(problem)
    class_of = classes_of(problem)
    left_out = without_path(patterns, demand, availability)
    takes = (demand > 0) & ~left_out
    served = [c for c in range(num_classes(problem)) if (takes & (class_of == c)).any()]
    kept = np.full(len(demand), np.nan)  # share that a demand of an upper class keeps
    rates = np.zeros((len(demand), patterns.num_paths))
    duals = {}
    for number in served:
        own = class_of == number
        among = takes & (class_of <= number)
        rows = _Rows(problem, patterns, among)
        program = _CommonShares(rows, patterns, among, kept, availability)
        found = program.largest(seconds)
        duals[number] = program.duals(found, patterns)
        # What is left after all classes lowers the expected loss.
        best = program.least_loss(found, seconds) if number == served[-1] else found
        rates = rows.rates(best.solution("common share")[: len(rows.slot)], problem)
        share = tail_shares(patterns, demand, rates, availability)[takes & own].min()
        kept[own] = share * (1 - _SPENT)
    # Values are those of the last rates, which serve all classes, and each bound is that beside the
    # values of the upper classes: what is printed fits together.
    shares = tail_shares(patterns, demand, rates, availability)
    promises = []
    kept[:] = np.nan
    for number in range(num_classes(problem)):
        own = class_of == number
        if number not in served:
            nobody = promise_to_nobody(problem, patterns, left_out & own)
            promises.append(dataclasses.replace(nobody, rates=rates))
            continue
        value = float(shares[takes & own].min())
        bound = common_share_bound(problem, patterns, availability, *duals[number], kept)
        prices, weights, _ = duals[number]
        promises.append(Promise(rates, value, bound, prices, weights, left_out & own))
        kept[own] = value
    return promises


class _CommonShares:
    """The program of the largest common share of some demands, beside which others keep theirs.

    The variables are the shares on paths, shortfalls u[d, s], levels a[d], the common share, and of
    the least expected loss what arrives, b[d, s].  A level is also the shortfall while no path
    survives.

    Args:
        rows: demands that count, and their patterns.
        patterns: probabilities of their paths.
        takes: (D,) demands that count.
        kept: (D,) share that a demand keeps; NaN of those of the common share.
        availability: beta.
    """

    def __init__(
        self,
        rows: _Rows,
        patterns: Patterns,
        takes: BoolArray,
        kept: FloatArray,
        availability: float,
    ) -> None:
        self._rows = rows
        self._takes = takes
        tail = 1 - availability  # of the time, in which a promise may be missed
        self._cut = patterns.probability[:, 0] / tail
        paths, count, demands = len(rows.slot), len(rows.rate), int(takes.sum())
        self._before_share = paths + count + demands  # variables
        number = np.full(len(takes), -1, dtype=np.int64)
        number[takes] = np.arange(demands)
        places = np.arange(count), number[rows.demand_number]
        of_demand = sp.csr_array((np.ones(count), places), shape=(count, demands))
        shortfalls = sp.csr_array((rows.probability / tail, places[::-1]), shape=(demands, count))
        level = sp.diags_array(1 - self._cut[takes])
        is_common = np.isnan(kept[takes])
        self._blocks = [
            [rows.loads, None, None, sp.csr_array((len(rows.capacity), 1))],
            [-rows.arrives, -sp.eye_array(count), of_demand, None],
            [None, shortfalls, -level, is_common.astype(np.float64)[:, None]],
        ]
        at_least = np.where(is_common, 0.0, kept[takes])
        self._right = np.concatenate([rows.capacity, np.zeros(count), -at_least])
        self._high = np.concatenate([np.full(paths + count, np.inf), np.ones(demands + 1)])

    def largest(self, seconds: float) -> LpResult:
        """The largest common share, the last of the variables."""
        return self._rows.solve(
            np.concatenate([np.zeros(self._before_share), [-1.0]]),
            self._blocks,
            self._right,
            high=self._high,
            seconds=seconds,
            by_interior_points=len(self._rows.rate) > _BY_INTERIOR_POINTS_FROM,
        )

    def least_loss(self, found: LpResult, seconds: float) -> LpResult:
        """The least expected loss with this share; what was found before where it is not solved."""
        rows = self._rows
        count = len(rows.rate)
        share = found.solution("common share")[-1]
        worth = rows.probability * rows.rate
        spent = rows.solve(
            np.concatenate([np.zeros(self._before_share + 1), -worth / float(worth.mean())]),
            [
                *([*block, None] for block in self._blocks),
                [-rows.arrives, None, None, None, sp.eye_array(count)],
            ],
            np.concatenate([self._right, np.zeros(count)]),
            low=np.concatenate(
                [np.zeros(self._before_share), [share * (1 - _SPENT)], np.zeros(count)]
            ),
            high=np.concatenate([self._high, np.ones(count)]),
            seconds=seconds,
        )
        return spent if spent.is_solved and spent.x is not None else found

    def duals(
        self, found: LpResult, patterns: Patterns
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Prices (E,), weights (D, 2^K) of patterns, and of demands (D,)."""
        rows = self._rows
        links = len(rows.capacity)
        count = len(rows.rate)
        of_demand = np.zeros(len(self._takes))
        of_demand[self._takes] = found.duals[links + count :]
        weights = rows.table(found.duals[links : links + count], patterns)
        weights[:, 0] = of_demand * self._cut
        return found.duals[:links], weights, of_demand


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
    check_availability(availability, "promise")
    demand = demand_of(problem)
    tail = 1 - availability  # of the time, in which a promise may be missed
    takes = (demand > 0) & ~without_path(patterns, demand, availability)
    rows = _Rows(problem, patterns, takes)
    paths, count = len(rows.slot), len(rows.rate)
    if not takes.any() or count > _MOST_WHOLE:
        return None
    number = np.full(len(demand), -1, dtype=np.int64)
    number[takes] = np.arange(takes.sum())
    # Of the time, while paths survive.
    spare = missed_time(availability) - patterns.probability[:, 0]
    can_miss = rows.probability <= spare[rows.demand_number]
    missed = sp.csr_array(
        (
            np.where(can_miss, rows.probability, 0.0) / tail,
            (number[rows.demand_number], np.arange(count)),
        ),
        shape=(int(takes.sum()), count),
    )
    at_least = missed.sum(1) - spare[takes] / tail
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
