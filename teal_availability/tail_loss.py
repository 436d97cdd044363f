"""The smallest CVaR of the largest loss over all demands, by reserved rates: TEAVAR's own objective
(Bogle et al., SIGCOMM 2019, equations 4 to 9).

With states q of the network of probability p[q], the pattern s(d, q) of surviving paths of a demand
of d Gbit/s, and what is reserved on these, S[d, s],

    L[q] = max_d max(0, 1 - S[d, s(d, q)] / d),
    CVaR = min_a  a + sum_q p[q] max(0, L[q] - a) / (1 - beta):

the mean of the largest loss over the worst 1 - beta of the time.  The largest loss couples the
demands of a state, so that states count as such; those in which the same paths survive count as
one.  The program has a row for each state and demand, of which few bind: rows join where rates that
suffice for the rows so far break them.  For any weights w[d, q] >= 0 with

    sum_d w[d, q] <= p[q] / (1 - beta),  sum of all w <= 1,
    sum of w[d, q] over the states in which path k survives  <=  d times the price of path k,

no rates have a smaller CVaR than sum of w - sum_e c[e] y[e].  What the rates reach is measured over
all states, those that are not listed with everything lost.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import scipy.sparse as sp

from teal import InputError, Problem, SolverError
from teal.network.path_links import path_links_of
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.lp import LpResult, solve_lp
from teal_availability.certificates import kept, path_prices, within_capacities
from teal_availability.components import Components
from teal_availability.matrix import capacity_of, crossings, demand_of
from teal_availability.patterns import Patterns, paths_by_component
from teal_availability.promises import (
    BY_INTERIOR_POINTS_FROM,
    Promise,
    check_availability,
    promise_to_nobody,
    without_path,
)
from teal_availability.states import States

_MOST_ENTRIES = 30_000_000  # states times demands, some 50 bytes each
_ROUNDING = 1e-9  # of a loss, by which a row may be broken
_NEAR = 0.1  # of a loss, by which a row may be from binding to stay
_RISE = 1e-3  # of the value, after which rows that do not bind may leave


@dataclasses.dataclass(frozen=True, eq=False)
class Effects:
    """The listed states by the paths that survive.

    Attributes:
        probability: (Q,) share of the time, falling.
        pattern: (Q, D) set of the surviving paths of each demand, as bits.
        rest: share of the time in states that are not listed.
    """

    probability: FloatArray
    pattern: np.ndarray
    rest: float


def effects_of(problem: Problem, components: Components, states: States) -> Effects:
    """The surviving paths in each state; states without a difference are one.

    Raises:
        InputError: too many states times demands.
    """
    paths = problem.paths
    if len(states) * paths.num_demands > _MOST_ENTRIES:
        expected = f"at most {_MOST_ENTRIES:,} states times demands (--most-states, --most-down)"
        found = len(states) * paths.num_demands
        raise InputError("tail-loss", "states", expected, f"{found:,}")
    links = path_links_of(paths)
    width = paths.num_paths
    members = np.fromiter((c for down in states.down for c in down), np.int64)
    ptr = np.concatenate([[0], np.cumsum([len(down) for down in states.down])])
    shape = (len(states), len(components))
    down = sp.csr_array((np.ones(len(members), np.int32), members, ptr), shape=shape)
    dead = sp.csr_array(down @ paths_by_component(paths, components).T)
    dead.data[:] = 1
    demand, bit = np.divmod(links.slot, width)
    bits = sp.csr_array(
        ((1 << bit).astype(np.int32), (np.arange(len(bit)), demand)),
        shape=(len(bit), paths.num_demands),
    )
    live = problem.path_mask[0].cpu().numpy() @ (1 << np.arange(width))
    failed = (dead @ bits).toarray()
    pattern = (live[None, :] & ~failed).astype(np.uint8 if width <= 8 else np.uint32)
    distinct, place = np.unique(pattern, axis=0, return_inverse=True)
    probability = np.zeros(len(distinct))
    np.add.at(probability, place.reshape(-1), states.probability)
    order = np.argsort(-probability, kind="stable")
    return Effects(probability[order], distinct[order], states.rest)


def losses_of(
    patterns: Patterns,
    effects: Effects,
    demand: FloatArray,
    rates: FloatArray,
    takes: BoolArray,
    *,
    counts_cut: bool,
) -> FloatArray:
    """(Q, D) loss of each demand in each state; 0 of demands that do not count, and without
    ``counts_cut`` where none of its paths survives.
    """
    lost = np.where(takes[:, None], 1 - kept(patterns, demand, rates), 0.0)
    if not counts_cut:
        lost[:, 0] = 0.0
    return lost[np.arange(len(demand))[None, :], effects.pattern]


def cvar(losses: FloatArray, effects: Effects, availability: float) -> float:
    """Mean of losses (Q,) over the worst 1 - availability of the time; 1 of what is not listed."""
    loss = np.append(losses, 1.0)
    probability = np.append(effects.probability, effects.rest)
    order = np.argsort(-loss, kind="stable")
    before = np.cumsum(probability[order]) - probability[order]
    part = np.clip(1 - availability - before, 0.0, probability[order])
    return float(part @ loss[order]) / (1 - availability)


def tail_loss_bound(
    problem: Problem,
    effects: Effects,
    availability: float,
    prices: FloatArray,
    weights: sp.csr_array,
) -> float:
    """The smallest CVaR of the largest loss, at least, by the inequality of the module.

    Weights that are too large are made smaller in proportion, so that any numbers give a bound.

    Args:
        problem: one matrix.
        effects: states.
        availability: beta.
        prices: (E,) any numbers.
        weights: (Q, D) any numbers, without an entry where a demand does not count.
    """
    demand = demand_of(problem)
    prices = np.maximum(prices, 0.0)
    entries = weights.tocoo()
    weight = np.maximum(entries.data, 0.0)
    of_state = np.bincount(entries.row, weight, len(effects.probability))
    most = effects.probability / (1 - availability)
    share = np.minimum(1.0, most / np.maximum(of_state, 1e-300))
    weight = weight * share[entries.row]
    pattern = effects.pattern[entries.row, entries.col]
    cost = path_prices(problem, prices)
    share = np.ones(len(demand))
    for path in range(problem.paths.num_paths):
        of_path = np.bincount(entries.col, weight * ((pattern >> path) & 1), len(demand))
        is_path = np.isfinite(cost[:, path])
        allowed = np.where(is_path, np.where(is_path, cost[:, path], 0.0) * demand, np.inf)
        is_used = of_path > allowed
        share[is_used] = np.minimum(share[is_used], allowed[is_used] / of_path[is_used])
    weight = weight * share[entries.col]
    total = max(1.0, float(weight.sum()))
    return max(0.0, float(weight.sum()) / total - float(capacity_of(problem) @ prices) / total)


def promise_tail_loss(
    problem: Problem,
    patterns: Patterns,
    effects: Effects,
    availability: float,
    gap: float = 1e-3,
    seconds: float = math.inf,
    *,
    counts_cut: bool = True,
) -> Promise:
    """The rates with the smallest CVaR of the largest loss, of which the value and the bound are
    one less: the share that every demand keeps at once, on average in the worst 1 - beta.

    Args:
        problem: one matrix under total_flow.
        patterns: probabilities of its paths.
        effects: the states that are listed.
        availability: beta, in (0, 1).
        gap: largest difference between value and optimum, a share of the demand; the bound leaves
            out the states that are not listed, rest / (1 - availability) at most.
        seconds: time limit; what has been found by then is given.
        counts_cut: true where a demand without a surviving path has lost everything; else it does
            not count in such states, in which no rates help it.

    Raises:
        InputError: another availability, or states for too little of the time.
        SolverError: the first program was not solved in time.
    """
    check_availability(availability)
    end = time.perf_counter() + seconds
    demand = demand_of(problem)
    left_out = without_path(patterns, demand, availability)
    takes = (demand > 0) & ~left_out
    if not takes.any():
        return promise_to_nobody(problem, patterns, left_out)
    if effects.rest >= 1 - availability:
        expected = "states for more than --availability of the time (--most-states, --rest)"
        raise InputError("tail-loss", "states", expected, f"{1 - effects.rest:.6g} of the time")
    search = _Search(problem, effects, takes, availability, counts_cut=counts_cut)
    best: Promise | None = None
    while True:
        try:
            shares, reached, at_least = search.solve(end - time.perf_counter())
        except SolverError:
            if best is None:
                raise
            return best
        try:
            within, has_grown = search.shares_within(end - time.perf_counter())
        except SolverError:  # the other program alone has shares too
            within, has_grown = shares, False
        prices, weights = search.prices_and_weights()
        bound = tail_loss_bound(problem, effects, availability, prices, weights)
        joined = int(has_grown)
        for found in (within, shares):
            rates = within_capacities(problem, search.rates(found, demand))
            losses = losses_of(patterns, effects, demand, rates, takes, counts_cut=counts_cut)
            value = cvar(losses.max(1, initial=0.0), effects, availability)
            if best is None:
                table = search.by_pattern(weights)
                best = Promise(rates, 1 - value, 1 - bound, prices, table, left_out)
            elif 1 - value > best.value:
                best = dataclasses.replace(best, rates=rates, value=1 - value)
            joined += search.join(losses, reached)
        assert best is not None
        if 1 - bound < best.bound:
            table = search.by_pattern(weights)
            best = dataclasses.replace(best, bound=1 - bound, prices=prices, weights=table)
        if 1 - best.value - at_least <= gap or not joined or time.perf_counter() >= end:
            return best


class _Search:
    """The program with the rows so far.

    The variables are the shares of demands on their paths, a, and u[q] of the states with rows.

    Args:
        problem: one matrix.
        effects: states.
        takes: (D,) demands that count.
        availability: beta.
        counts_cut: as in :func:`promise_tail_loss`.
    """

    def __init__(
        self,
        problem: Problem,
        effects: Effects,
        takes: BoolArray,
        availability: float,
        *,
        counts_cut: bool,
    ) -> None:
        self._problem = problem
        self._effects = effects
        self._tail = 1 - availability  # of the time, over which the mean is taken
        links = path_links_of(problem.paths)
        self._width = problem.paths.num_paths
        live = problem.path_mask[0].cpu().numpy().reshape(-1)
        chosen = np.flatnonzero(takes[links.slot // self._width] & live[links.slot])
        crosses = crossings(problem.paths)[chosen]
        self._slot = links.slot[chosen]
        capacity = capacity_of(problem)
        self._used = np.flatnonzero(capacity > 0)
        demand = demand_of(problem)
        loads = sp.diags_array(demand[self._slot // self._width]) @ crosses[:, self._used]
        self._loads = (loads @ sp.diags_array(1 / capacity[self._used])).T.tocsr()
        self._place = np.full(takes.size * self._width, -1, np.int64)  # of a path by its slot
        self._place[self._slot] = np.arange(len(chosen))
        self._value = 0.0
        self._state = np.zeros(0, np.int64)  # of each row
        self._demand = np.zeros(0, np.int64)
        self._known = np.zeros(effects.pattern.shape, bool)
        self._counts = takes & (counts_cut | (effects.pattern > 0))
        self._key = (np.arange(takes.size) << self._width) + effects.pattern.astype(np.int64)
        self._time = np.bincount(  # in which a demand has a pattern
            self._key.reshape(-1),
            np.repeat(effects.probability, takes.size),
            takes.size << self._width,
        )
        # Where a demand is cut, no rates change the largest loss.
        self._in_tail = (self._counts & (effects.pattern == 0)).any(1)
        self.join(self._counts.astype(float), np.zeros(len(effects.probability)))

    def by_pattern(self, weights: sp.csr_array) -> FloatArray:
        """(D, 2^K) weights (Q, D) of the patterns of each demand."""
        entries = weights.tocoo()
        found = np.zeros(self._counts.shape[1] << self._width)
        np.add.at(found, self._key[entries.row, entries.col], entries.data)
        return found.reshape(-1, 1 << self._width)

    def _first_of_each(
        self, state: Int64Array, demand: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The first row of each pattern, of rows with the most probable states first."""
        _, first = np.unique(self._key[state, demand], return_index=True)
        return state[first], demand[first]

    def solve(self, seconds: float) -> tuple[FloatArray, FloatArray, float]:
        """(P,) shares, (Q,) a + u[q], and the value with the rows so far."""
        found, reached = self._solved(self._state, self._demand, seconds)
        shares = found.solution("tail-loss")[: len(self._slot)]
        links = len(self._used)
        self._last = self._state, self._demand, found.duals[links : links + len(self._state)]
        if found.value > self._value + _RISE:  # else the same rows might come and go for ever
            spare = self._carries(self._state, self._demand) @ shares + reached[self._state] - 1
            stays = (spare < _NEAR) | (self._last[2] > 0)
            self._known[self._state[~stays], self._demand[~stays]] = False
            self._state, self._demand = self._state[stays], self._demand[stays]
            self._value = found.value
        self._prices = found.duals[:links]
        return shares, reached, found.value

    def shares_within(self, seconds: float) -> tuple[FloatArray, bool]:
        """(P,) shares of the program in which u[q] is 0 but in some states, the tail; and whether
        the tail has grown.

        A pattern that occurs outside of the tail then has one row, so that all of them fit.  The
        states of a pattern join the tail where the dual of its row exceeds their probability.
        """
        counts, key, tail = self._counts, self._key, self._in_tail
        state, demand = self._first_of_each(*np.nonzero(counts & ~tail[:, None]))
        is_outside = np.zeros(counts.shape[1] << self._width, bool)
        is_outside[key[state, demand]] = True
        inside, of_inside = np.nonzero(counts & tail[:, None])
        alone = ~is_outside[key[inside, of_inside]]
        rows = np.append(state, inside[alone]), np.append(demand, of_inside[alone])
        found, _ = self._solved(*rows, seconds, tail)
        dual = np.zeros(len(is_outside))
        links = len(self._used)
        dual[key[state, demand]] = found.duals[links : links + len(state)]
        gains = dual > self._time / self._tail + _ROUNDING
        grown = tail | (gains[key] & counts).any(1)
        has_grown = bool((grown & ~tail).any())
        self._in_tail = grown
        return found.solution("tail-loss")[: len(self._slot)], has_grown

    def _carries(self, state: Int64Array, demand: Int64Array) -> sp.csr_array:
        """(R, P) 1 where a path of a row's demand survives."""
        pattern = self._effects.pattern[state, demand]
        row, path = np.nonzero((pattern[:, None] >> np.arange(self._width)) & 1)
        columns = self._place[demand[row] * self._width + path]
        shape = (len(state), len(self._slot))
        return sp.csr_array((np.ones(len(row)), (row, columns)), shape=shape)

    def _solved(
        self,
        state: Int64Array,
        demand: Int64Array,
        seconds: float,
        tail: BoolArray | None = None,
    ) -> tuple[LpResult, FloatArray]:
        """The program with some rows, and (Q,) a + u[q]; u is 0 but in states of the tail."""
        paths, rows = len(self._slot), len(state)
        has_own = np.ones(rows, bool) if tail is None else tail[state]
        states, place = np.unique(state[has_own], return_inverse=True)
        of_state = sp.csr_array(
            (np.ones(len(place)), (np.flatnonzero(has_own), place)), shape=(rows, len(states))
        )
        one, rest = np.ones((rows, 1)), np.ones((1, 1))
        weights = [self._effects.probability[states], [self._effects.rest]]
        blocks = [
            [self._loads, None, None, None],
            [-self._carries(state, demand), -one, -of_state, None],
            [None, -rest, None, -rest],
        ]
        found = solve_lp(
            np.concatenate([np.zeros(paths), [1.0], np.concatenate(weights) / self._tail]),
            (
                sp.block_array(blocks, format="csr"),
                np.concatenate([np.ones(len(self._used)), np.full(rows + 1, -1.0)]),
            ),
            seconds=max(1.0, seconds),
            by_interior_points=rows > BY_INTERIOR_POINTS_FROM,
        )
        x = found.solution("tail-loss")
        reached = np.full(len(self._effects.probability), x[paths])
        reached[states] += x[paths + 1 : -1]
        return found, reached

    def rates(self, shares: FloatArray, demand: FloatArray) -> FloatArray:
        """(D, K) Gbit/s of shares (P,)."""
        found = np.zeros(len(demand) * self._width)
        found[self._slot] = np.maximum(shares, 0.0) * demand[self._slot // self._width]
        return found.reshape(-1, self._width)

    def prices_and_weights(self) -> tuple[FloatArray, sp.csr_array]:
        """(E,) prices and (Q, D) weights of the program that was solved last."""
        capacity = capacity_of(self._problem)
        prices = np.zeros(len(capacity))
        prices[self._used] = self._prices / capacity[self._used]
        state, demand, weights = self._last
        shape = self._effects.pattern.shape
        return prices, sp.csr_array((weights, (state, demand)), shape=shape)

    def join(self, losses: FloatArray, reached: FloatArray) -> int:
        """Add rows that losses (Q, D) break, of each pattern that of the most probable state, since
        it counts most; their number.
        """
        broken = np.where(self._known, 0.0, losses - reached[:, None]) > _ROUNDING
        state, demand = self._first_of_each(*np.nonzero(broken))
        self._known[state, demand] = True
        self._state = np.concatenate([self._state, state])
        self._demand = np.concatenate([self._demand, demand])
        return len(state)
