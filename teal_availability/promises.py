"""Rates that are reserved on paths before anything fails, so that every demand keeps most of its
traffic for most of the time.

An ingress moves the traffic of paths that have failed to those that survive, up to the rates
reserved there.  With rates x[d, k] (Gbit/s) on the paths of a demand of d Gbit/s, what arrives
while exactly the paths of a set s survive is

    min(d, S[d, s]),  S[d, s] = sum of x[d, k] over the paths k in s,

and reserved rates never exceed capacities, so that no failure causes congestion.  With the exact
probabilities p[d, s] of :mod:`teal_availability.patterns` two programs are linear:

- *least expected loss*: max sum_d sum_s p[d, s] min(d, S[d, s]);
- *common share* at availability beta: max over x of the least share that any demand keeps on
  average in the worst 1 - beta of the time,

      min_d  max_{a <= 1}  a - sum_s p[d, s] max(0, a - S[d, s] / d) / (1 - beta),

  one minus the conditional value at risk (CVaR) of the lost share (Rockafellar and Uryasev, 2000;
  TEAVAR, Bogle et al., SIGCOMM 2019, of each demand by itself).  Every demand keeps this share in
  at least beta of the time.  Capacity that is left then lowers the expected loss.

Both are certified by prices: the bounds are sums over links, demands and patterns, which share no
code with the solver.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy.sparse as sp
import torch

from teal import InputError, Problem, project, solve
from teal.network.path_links import path_links_of
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.lp import Between, solve_lp, solve_milp
from teal_availability.patterns import Patterns

_LEAST_PROBABILITY = 1e-15  # of a pattern; rounding
_MOST_ROWS = 300_000  # patterns of a linear program; HiGHS takes 20 s for 73,000
_FLOW_GAP = 1e-3
_SPENT = 1e-6  # share of a common share that may be given up for less expected loss
_BY_INTERIOR = 3_000  # patterns from which on interior points end before HiGHS's simplex method
_MAX_WHOLE = 4_000  # patterns up to which a program with whole numbers is tried


@dataclasses.dataclass(frozen=True, eq=False)
class Promise:
    """Reserved rates and what is certain of them.

    Attributes:
        rates: (D, K) Gbit/s on each path; their loads are within capacities.
        value: share of all traffic that arrives on average, or the common share.
        bound: no other rates on these paths have a larger value.
        prices: (E,) of the links, which prove the bound together with ``weights``.
        weights: (D, 2^K) of the patterns.
        left_out: (D,) demands of which no share can be kept for so much of the time, however large
            capacities are; they have no part in a common share.
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
        return max(0.0, (self.bound - self.value) / self.bound) if self.bound > 0 else 0.0


def kept(patterns: Patterns, demand: FloatArray, rates: FloatArray) -> FloatArray:
    """(D, 2^K) share of each demand that arrives while exactly the paths of a set survive; 1 of a
    demand of 0.
    """
    arriving = rates @ patterns.survives.T.astype(np.float64)
    share = np.ones_like(arriving)
    np.divide(arriving, demand[:, None], out=share, where=demand[:, None] > 0)
    found: FloatArray = np.minimum(share, 1.0)
    return found


def expected_share(patterns: Patterns, demand: FloatArray, rates: FloatArray) -> float:
    """Share of all traffic that arrives on average over time; 1 without demand."""
    total = float(demand.sum())
    of_demand = (patterns.probability * kept(patterns, demand, rates)).sum(1)
    return float(demand @ of_demand) / total if total > 0 else 1.0


def tail_shares(
    patterns: Patterns, demand: FloatArray, rates: FloatArray, availability: float
) -> FloatArray:
    """(D,) share of each demand that arrives on average in the worst 1 - availability of the
    time.
    """
    share, tail = kept(patterns, demand, rates), 1 - availability
    order = np.argsort(share, axis=1, kind="stable")
    worst_first = np.take_along_axis(share, order, 1)
    time = np.take_along_axis(patterns.probability, order, 1)
    before = np.cumsum(time, axis=1) - time
    of_tail = np.clip(tail - before, 0.0, time)
    found: FloatArray = (of_tail * worst_first).sum(1) / np.maximum(of_tail.sum(1), 1e-300)
    return found


def quantile_shares(
    patterns: Patterns, demand: FloatArray, rates: FloatArray, availability: float
) -> FloatArray:
    """(D,) the largest share that each demand keeps in at least ``availability`` of the time."""
    share = kept(patterns, demand, rates)
    order = np.argsort(-share, axis=1, kind="stable")
    best_first = np.take_along_axis(share, order, 1)
    time = np.cumsum(np.take_along_axis(patterns.probability, order, 1), axis=1)
    reached = (time < availability * (1 - 1e-12)).sum(1).clip(max=share.shape[1] - 1)
    found: FloatArray = best_first[np.arange(len(share)), reached]
    return found


class _Rows:
    """The variables and rows that both programs share: rates of the paths of demands above 0, and
    a row for each pattern that occurs.
    """

    def __init__(self, problem: Problem, patterns: Patterns, takes: BoolArray) -> None:
        demand = problem.demand[0].numpy()
        links = path_links_of(problem.paths)
        self.width = problem.paths.num_paths
        of_path = links.slot // self.width
        self.paths: Int64Array = np.flatnonzero(takes[of_path])
        self.slot = links.slot[self.paths]
        self.capacity = problem.capacity[0].numpy()
        count = len(self.paths)
        ends = np.diff(links.link_ptr)[self.paths]
        rows = (
            np.concatenate(
                [links.link[links.link_ptr[p] : links.link_ptr[p + 1]] for p in self.paths.tolist()]
            )
            if count
            else np.zeros(0, np.int64)
        )
        columns = np.repeat(np.arange(count), ends)
        shape = (len(self.capacity), count)
        self.loads = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
        occurs = (patterns.probability > _LEAST_PROBABILITY) & takes[:, None]
        occurs[:, 0] = False  # no path survives: nothing arrives
        self.demand_of, self.set_of = np.nonzero(occurs)
        self.probability = patterns.probability[self.demand_of, self.set_of]
        self.rate = demand[self.demand_of]
        # Path k of demand d is in the row of (d, s) if k is in s.
        place = np.full(takes.size * self.width, -1, dtype=np.int64)
        place[self.slot] = np.arange(count)
        slots = self.demand_of[:, None] * self.width + np.arange(self.width)
        inside = patterns.survives[self.set_of] & (place[slots] >= 0)
        row, path = np.nonzero(inside)
        column = place[slots[row, path]]
        self.arrives = sp.csr_array(
            (np.ones(len(row)), (row, column)), shape=(len(self.set_of), count)
        )

    def table(self, values: FloatArray, patterns: Patterns) -> FloatArray:
        """(D, 2^K) numbers of the pattern rows."""
        found = np.zeros_like(patterns.probability)
        found[self.demand_of, self.set_of] = values
        return found

    def rates(self, x: FloatArray, demands: int) -> FloatArray:
        """(D, K) rates of the program, cut in proportion where rounding exceeds a capacity."""
        found = np.zeros(demands * self.width)
        found[self.slot] = np.maximum(x[: len(self.slot)], 0.0)
        load = self.loads @ found[self.slot]
        live = self.capacity > 0
        excess = float((load[live] / self.capacity[live]).max(initial=1.0))
        found[self.slot[np.asarray((self.loads[~live] > 0).sum(0)).reshape(-1) > 0]] = 0.0
        return (found / excess).reshape(demands, self.width)


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
    demand = _demand(problem)
    if not is_within_reach(patterns):
        return _from_flow(problem, patterns, seconds)
    rows = _Rows(problem, patterns, demand > 0)
    paths, count, links = len(rows.slot), len(rows.set_of), len(rows.capacity)
    found = solve_lp(
        np.concatenate([np.zeros(paths), -rows.probability]),
        (
            sp.block_array(
                [[rows.loads, None], [-rows.arrives, sp.eye_array(count)]], format="csr"
            ),
            np.concatenate([rows.capacity, np.zeros(count)]),
        ),
        high=np.concatenate([np.full(paths, np.inf), rows.rate]),
        seconds=seconds,
        by_interior_points=count > _BY_INTERIOR,
    )
    rates = rows.rates(found.solution("least expected loss"), len(demand))
    prices, weights = found.duals[:links], rows.table(found.duals[links:], patterns)
    return Promise(
        rates,
        expected_share(patterns, demand, rates),
        expected_share_bound(problem, patterns, prices, weights),
        prices,
        weights,
        np.zeros(len(demand), dtype=bool),
    )


def is_within_reach(patterns: Patterns) -> bool:
    """Whether the linear programs are solved within minutes, by the number of their rows."""
    return int((patterns.probability[:, 1:] > _LEAST_PROBABILITY).sum()) <= _MOST_ROWS


def _from_flow(problem: Problem, patterns: Patterns, seconds: float) -> Promise:
    """The rates of the largest total flow, and on the capacity that is left rates for its demands
    on other paths; prices are those of the flow.
    """
    demand = _demand(problem)
    flow = solve(problem, gap=_FLOW_GAP, deadline=seconds)
    rates = flow.splits[0].to("cpu", torch.float64) * problem.demand[0][:, None]
    unused = (problem.capacity[0] - problem.loads(flow.splits)[0]).clamp(min=0)
    others = problem.path_mask[0] & (2 * rates < problem.demand[0][:, None])
    even = others / others.sum(-1, keepdim=True).clamp(min=1)
    spare = problem.with_capacity(unused)
    rates = rates + project(spare, even[None], refill=0)[0] * problem.demand[0][:, None]
    prices = flow.prices[0].to("cpu", torch.float64).numpy()
    weights = _weights_of(problem, patterns, prices)
    found = rates.clamp(min=0).numpy()
    return Promise(
        found,
        expected_share(patterns, demand, found),
        expected_share_bound(problem, patterns, prices, weights),
        prices,
        weights,
        np.zeros(len(demand), dtype=bool),
    )


def _weights_of(problem: Problem, patterns: Patterns, prices: FloatArray) -> FloatArray:
    """(D, 2^K) weights that prices allow, the most probable patterns first."""
    left = _path_prices(problem, prices)
    order = np.argsort(-patterns.probability, axis=1, kind="stable")
    weights, demands = np.zeros_like(patterns.probability), np.arange(len(order))
    for sets in order.T:
        inside = patterns.survives[sets]
        room = np.where(inside, left, np.inf).min(1)
        weight = np.where(sets > 0, np.minimum(patterns.probability[demands, sets], room), 0.0)
        weights[demands, sets] = weight
        left = np.where(inside, left - weight[:, None], left)
    return weights


def promise_common_share(
    problem: Problem, patterns: Patterns, availability: float, seconds: float = math.inf
) -> Promise:
    """The rates with the largest common share at an availability.

    Args:
        problem: one matrix under total_flow.
        patterns: probabilities of its paths.
        availability: beta, in (0, 1).
        seconds: time limit.

    Raises:
        InputError: another availability, or too large a network.
        SolverError: the program was not solved in time.
    """
    _check(availability)
    if not is_within_reach(patterns):
        expected = f"at most {_MOST_ROWS:,} patterns of surviving paths"
        raise InputError("common-share", "network", expected, "more")
    demand = _demand(problem)
    tail = 1 - availability
    left_out = (demand > 0) & (patterns.probability[:, 0] >= tail * (1 - 1e-12))
    takes = (demand > 0) & ~left_out
    if not takes.any():
        none = np.zeros_like(patterns.probability)
        rates = np.zeros((len(demand), patterns.num_paths))
        share = 0.0 if left_out.any() else 1.0
        return Promise(rates, share, share, np.zeros(problem.topology.num_links), none, left_out)
    rows = _Rows(problem, patterns, takes)
    paths, count = len(rows.slot), len(rows.set_of)
    number = np.full(len(demand), -1, dtype=np.int64)
    number[takes] = np.arange(takes.sum())
    demands = int(takes.sum())
    # Variables: rates, shortfalls u, levels a, the common share.  A level is also the shortfall
    # while no path survives, where nothing arrives.
    none_survives = patterns.probability[takes, 0] / tail
    of_row = sp.csr_array(
        (np.ones(count), (np.arange(count), number[rows.demand_of])), shape=(count, demands)
    )
    shortfall = sp.csr_array(
        (rows.probability / tail, (number[rows.demand_of], np.arange(count))),
        shape=(demands, count),
    )
    loads = [rows.loads, None, None, sp.csr_array((len(rows.capacity), 1)), None]
    keeps = sp.diags_array(1 / rows.rate) @ rows.arrives
    levels = [-keeps, -sp.eye_array(count), of_row, None, None]
    shares = [None, shortfall, -sp.diags_array(1 - none_survives), np.ones((demands, 1)), None]
    arrives = [-keeps, None, None, None, sp.eye_array(count)]
    of_rates, of_share = np.full(paths + count, np.inf), np.ones(demands + 1)
    found = solve_lp(
        np.concatenate([np.zeros(paths + count + demands), [-1.0]]),
        (
            sp.block_array([row[:-1] for row in (loads, levels, shares)], format="csr"),
            np.concatenate([rows.capacity, np.zeros(count + demands)]),
        ),
        high=np.concatenate([of_rates, of_share]),
        seconds=seconds,
        by_interior_points=count > _BY_INTERIOR,
    )
    share = found.solution("common share")[-1]
    # With this share for all, the least expected loss: its last variables are what arrives.
    spent = solve_lp(
        np.concatenate(
            [np.zeros(paths + count + demands + 1), -rows.probability * rows.rate / demand.sum()]
        ),
        (
            sp.block_array([loads, levels, shares, arrives], format="csr"),
            np.concatenate([rows.capacity, np.zeros(2 * count + demands)]),
        ),
        low=np.concatenate(
            [np.zeros(paths + count + demands), [share * (1 - _SPENT)], np.zeros(count)]
        ),
        high=np.concatenate([of_rates, of_share, np.ones(count)]),
        seconds=seconds,
        by_interior_points=count > _BY_INTERIOR,
    )
    best = spent if spent.is_solved and spent.x is not None else found
    rates = rows.rates(best.solution("common share"), len(demand))
    prices = found.duals[: len(rows.capacity)]
    table = rows.table(found.duals[len(rows.capacity) : len(rows.capacity) + count], patterns)
    of_demand = np.zeros(len(demand))
    of_demand[takes] = found.duals[len(rows.capacity) + count :]
    table[:, 0] = of_demand * patterns.probability[:, 0] / tail
    value = float(tail_shares(patterns, demand, rates, availability)[takes].min())
    bound = common_share_bound(problem, patterns, availability, prices, table, of_demand)
    return Promise(rates, value, bound, prices, table, left_out)


def expected_share_bound(
    problem: Problem, patterns: Patterns, prices: FloatArray, weights: FloatArray
) -> float:
    """The largest share of all traffic that can arrive on average over time, at most.

    For any prices y >= 0 of the links and weights w >= 0 of the patterns with

        sum of w[d, s] over the patterns with path k  <=  sum of y over the links of path k,

    no rates bring more than sum_e c[e] y[e] + sum_d d sum_s max(0, p[d, s] - w[d, s]) Gbit/s.
    Weights that are too large are made smaller in proportion.

    Args:
        problem: one matrix.
        patterns: probabilities of its paths.
        prices: (E,) any numbers.
        weights: (D, 2^K) any numbers.
    """
    demand, prices = _demand(problem), np.maximum(prices, 0.0)
    total = float(demand.sum())
    if total <= 0:
        return 1.0
    fitting = _fitting(problem, patterns, prices, np.maximum(weights, 0.0))
    fitting[:, 0] = 0.0
    missed = np.maximum(0.0, patterns.probability - fitting)
    missed[:, 0] = 0.0  # nothing can arrive
    bound = float(problem.capacity[0].numpy() @ prices) + float(demand @ missed.sum(1))
    return min(bound / total, float(demand @ (1 - patterns.probability[:, 0])) / total)


def common_share_bound(
    problem: Problem,
    patterns: Patterns,
    availability: float,
    prices: FloatArray,
    weights: FloatArray,
    of_demand: FloatArray,
) -> float:
    """The largest common share at an availability, at most.

    For any prices y >= 0, weights of demands r >= 0 that sum to 1, and weights w >= 0 of patterns
    with w[d, s] <= r[d] p[d, s] / (1 - beta) and

        sum of w[d, s] over the patterns with path k  <=  d times the price of path k,

    no rates have a larger common share than sum_e c[e] y[e] + sum_d (r[d] - sum_s w[d, s]).
    Weights that are too large are made smaller.

    Args:
        problem: one matrix.
        patterns: probabilities of its paths.
        availability: beta.
        prices: (E,) any numbers.
        weights: (D, 2^K) any numbers.
        of_demand: (D,) any numbers, 0 for demands that have no part in the share.
    """
    demand, of_demand = _demand(problem), np.maximum(of_demand, 0.0)
    total = float(of_demand.sum())
    if total <= 0:
        return 1.0
    prices, of_demand = np.maximum(prices, 0.0) / total, of_demand / total
    weights = np.maximum(weights, 0.0) / total
    most = of_demand[:, None] * patterns.probability / (1 - availability)
    fitting = _fitting(problem, patterns, prices, weights, demand)
    fitting = np.minimum(fitting, most)
    too_many = np.maximum(1.0, fitting.sum(1) / np.maximum(of_demand, 1e-300))
    fitting /= too_many[:, None]
    spare = np.maximum(0.0, of_demand - fitting.sum(1))
    return min(1.0, float(problem.capacity[0].numpy() @ prices) + float(spare.sum()))


def _fitting(
    problem: Problem,
    patterns: Patterns,
    prices: FloatArray,
    weights: FloatArray,
    scale: FloatArray | None = None,
) -> FloatArray:
    """Weights of each demand made smaller in proportion, so that those of a path's patterns add up
    to its price at most, times ``scale`` (D,).  The weight of no path surviving stays.
    """
    price = _path_prices(problem, prices)
    if scale is not None:
        is_path = np.isfinite(price)
        price = np.where(is_path, np.where(is_path, price, 0.0) * scale[:, None], np.inf)
    used = weights @ patterns.survives.astype(np.float64)
    share = np.full_like(price, np.inf)
    np.divide(price, used, out=share, where=used > 0)
    factor = np.minimum(1.0, share.min(1))
    found: FloatArray = weights * factor[:, None]
    found[:, 0] = weights[:, 0]
    return found


def _path_prices(problem: Problem, prices: FloatArray) -> FloatArray:
    """(D, K) sum of the prices along each path; infinite where there is none, or a link is dead, so
    that nothing can be reserved.
    """
    links, found = path_links_of(problem.paths), np.full(problem.paths.mask.size, np.inf)
    if len(links.slot):
        is_dead = problem.capacity[0].numpy()[links.link] <= 0
        dead = np.add.reduceat(is_dead.astype(np.int64), links.link_ptr[:-1]) > 0
        sums = np.add.reduceat(prices[links.link], links.link_ptr[:-1])
        found[links.slot] = np.where(dead, np.inf, sums)
    return found.reshape(problem.paths.mask.shape)


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
    problem: Problem, patterns: Patterns, availability: float, seconds: float = 10.0
) -> Quantile | None:
    """The true quantile, of which a common share by CVaR is a lower bound; None where the program
    is too large for whole numbers, or HiGHS found nothing in time.

    A whole number z[d, s] says whether pattern s counts for demand d:

        S[d, s] >= d (share - 1 + z[d, s]),  sum_s p[d, s] z[d, s] >= availability.

    Args:
        problem: one matrix under total_flow.
        patterns: probabilities of its paths.
        availability: beta.
        seconds: time limit.
    """
    _check(availability)
    demand = _demand(problem)
    can = 1 - patterns.probability[:, 0] >= availability
    takes = (demand > 0) & can
    rows = _Rows(problem, patterns, takes)
    paths, count = len(rows.slot), len(rows.set_of)
    if not takes.any() or count > _MAX_WHOLE:
        return None
    number = np.full(len(demand), -1, dtype=np.int64)
    number[takes] = np.arange(takes.sum())
    chosen = sp.csr_array(
        (rows.probability, (number[rows.demand_of], np.arange(count))),
        shape=(int(takes.sum()), count),
    )
    keeps = sp.diags_array(1 / rows.rate) @ rows.arrives
    one = sp.csr_array(np.ones((count, 1)))
    cost = np.concatenate([np.zeros(paths + count), [-1.0]])
    found = solve_milp(
        cost,
        [
            Between(
                sp.hstack([rows.loads, sp.csr_array((len(rows.capacity), count + 1))]),
                high=rows.capacity,
            ),
            Between(sp.hstack([keeps, -sp.eye_array(count), -one]), low=-1.0),
            Between(
                sp.hstack(
                    [
                        sp.csr_array((int(takes.sum()), paths)),
                        chosen,
                        sp.csr_array((int(takes.sum()), 1)),
                    ]
                ),
                low=availability * (1 - 1e-12),
            ),
        ],
        np.concatenate([np.zeros(paths), np.ones(count), [0]]),
        high=np.concatenate([np.full(paths, np.inf), np.ones(count + 1)]),
        seconds=seconds,
        relative_gap=1e-4,
    )
    if found.x is None:
        return None
    rates = rows.rates(found.x, len(demand))
    value = float(quantile_shares(patterns, demand, rates, availability)[takes].min())
    return Quantile(value, min(1.0, -found.bound))


def _demand(problem: Problem) -> FloatArray:
    if problem.batch != 1:
        raise InputError("promise", "problem", "one matrix", problem.batch)
    found: FloatArray = problem.demand[0].numpy()
    return found


def _check(availability: float) -> None:
    if not 0 < availability < 1:
        raise InputError("promise", "availability", "a share of the time in (0, 1)", availability)
