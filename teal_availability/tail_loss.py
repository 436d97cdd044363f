"""The smallest CVaR of the largest loss over all demands, by reserved rates: TEAVAR's own objective
(Bogle et al., SIGCOMM 2019, equations 4 to 9).

With states q of the network of probability p[q], the pattern s(d, q) of surviving paths of a demand
of d Gbit/s, and what is reserved on these, S[d, s],

    L[q] = max_d max(0, 1 - S[d, s(d, q)] / d),
    CVaR = min_a  a + sum_q p[q] max(0, L[q] - a) / (1 - beta):

the mean of the largest loss over the worst 1 - beta of the time.  The largest loss couples the
demands of a state, so that states count as such; those in which the same paths survive count as
one.  The program has L[q] above a in some states alone, the tail: outside of it a pattern of a
demand has one row for all its states, so that few rows are left.  Its prices and the weights
W[d, s] of these rows are those of the whole program if the weights can be divided over the states
of their patterns within the limits below, which a maximum flow decides; where it fails, the states
of the minimum cut join the tail.  For any weights w[d, q] >= 0 with

    sum_d w[d, q] <= p[q] / (1 - beta),  sum of all w <= 1,
    sum of w[d, q] over the states in which path k survives  <=  d times the price of path k,

no rates have a smaller CVaR than sum of w - sum_e c[e] y[e].  What the rates reach is measured over
all states, those that are not listed with everything lost.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from teal import InputError, Problem, SolverError
from teal.network.path_links import path_links_of
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.lp import solve_lp
from teal_availability.certificates import kept, path_prices, within_capacities
from teal_availability.components import Components
from teal_availability.matrix import capacity_of, crossings, demand_of
from teal_availability.patterns import Patterns, paths_by_component
from teal_availability.promises import (
    Promise,
    promise_to_nobody,
    without_path,
)
from teal_availability.states import States
from teal_availability.tolerances import check_availability

_MOST_ENTRIES = 30_000_000  # states times demands, some 50 bytes each
_WHOLE = 2**30  # a weight of 1 in the whole numbers of a maximum flow


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
    check_availability(availability, "promise")
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
    not_listed = effects.rest / (1 - availability)
    best: Promise | None = None
    while True:
        try:
            solution = search.solve(end - time.perf_counter())
        except SolverError:
            if best is None:
                raise
            return best
        weights, has_grown = search.divided(solution)
        bound = tail_loss_bound(problem, effects, availability, solution.prices, weights)
        rates = within_capacities(problem, search.rates(solution.shares, demand))
        losses = losses_of(patterns, effects, demand, rates, takes, counts_cut=counts_cut)
        value = cvar(losses.max(1, initial=0.0), effects, availability)
        if best is None:
            table = search.by_pattern(weights)
            best = Promise(rates, 1 - value, 1 - bound, solution.prices, table, left_out)
        if 1 - value > best.value:
            best = dataclasses.replace(best, rates=rates, value=1 - value)
        if 1 - bound < best.bound:
            table = search.by_pattern(weights)
            best = dataclasses.replace(best, bound=1 - bound, prices=solution.prices, weights=table)
        is_near = best.bound - best.value <= not_listed + gap
        if is_near or not has_grown or time.perf_counter() >= end:
            return best


class _Solution(NamedTuple):
    """A solution of the program with a tail.

    Attributes:
        shares: (P,) of demands on their paths.
        prices: (E,) of the links.
        state: (R,) of each row; of a pattern outside of the tail one of its states.
        demand: (R,) of each row.
        is_outside: (R,) whether the row is that of a pattern that occurs outside of the tail.
        weight: (R,) dual of each row.
    """

    shares: FloatArray
    prices: FloatArray
    state: Int64Array
    demand: Int64Array
    is_outside: BoolArray
    weight: FloatArray


class _Search:
    """The program, whose tail grows.

    The variables are the shares of demands on their paths, a, and u[q] of the states of the tail.

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
        self._effects = effects
        tail = 1 - availability  # of the time, over which the mean is taken
        self._most = effects.probability / tail  # sum of the weights of a state
        self._not_listed = effects.rest / tail
        links = path_links_of(problem.paths)
        self._width = problem.paths.num_paths
        live = problem.path_mask[0].cpu().numpy().reshape(-1)
        chosen = np.flatnonzero(takes[links.slot // self._width] & live[links.slot])
        crosses = crossings(problem.paths)[chosen]
        self._slot = links.slot[chosen]
        self._capacity = capacity_of(problem)
        self._used = np.flatnonzero(self._capacity > 0)
        demand = demand_of(problem)
        loads = sp.diags_array(demand[self._slot // self._width]) @ crosses[:, self._used]
        self._loads = (loads @ sp.diags_array(1 / self._capacity[self._used])).T.tocsr()
        self._place = np.full(takes.size * self._width, -1, np.int64)  # of a path by its slot
        self._place[self._slot] = np.arange(len(chosen))
        self._counts = takes & (counts_cut | (effects.pattern > 0))
        self._key = (np.arange(takes.size) << self._width) + effects.pattern.astype(np.int64)
        # Where a demand is cut, no rates change the largest loss.
        is_cut = self._counts & (effects.pattern == 0)
        self._cut_states = np.flatnonzero(is_cut.any(1))
        self._cut_demand = is_cut[self._cut_states].argmax(1)
        self._in_tail = is_cut.any(1)

    def by_pattern(self, weights: sp.csr_array) -> FloatArray:
        """(D, 2^K) weights (Q, D) of the patterns of each demand."""
        entries = weights.tocoo()
        found = np.zeros(self._counts.shape[1] << self._width)
        np.add.at(found, self._key[entries.row, entries.col], entries.data)
        return found.reshape(-1, 1 << self._width)

    def rates(self, shares: FloatArray, demand: FloatArray) -> FloatArray:
        """(D, K) Gbit/s of shares (P,)."""
        found = np.zeros(len(demand) * self._width)
        found[self._slot] = np.maximum(shares, 0.0) * demand[self._slot // self._width]
        return found.reshape(-1, self._width)

    def solve(self, seconds: float) -> _Solution:
        """The program with the tail so far.

        Raises:
            SolverError: it was not solved in time.
        """
        state, demand, is_outside = self._rows()
        paths = len(self._slot)
        states, place = np.unique(state[~is_outside], return_inverse=True)
        of_state = sp.csr_array(
            (np.ones(len(place)), (np.flatnonzero(~is_outside), place)),
            shape=(len(state), len(states)),
        )
        one, rest = np.ones((len(state), 1)), np.ones((1, 1))
        weights = [[1.0], self._most[states], [self._not_listed]]
        blocks = [
            [self._loads, None, None, None],
            [-self._carries(state, demand), -one, -of_state, None],
            [None, -rest, None, -rest],
        ]
        found = solve_lp(
            np.concatenate([np.zeros(paths), *weights]),
            (
                sp.block_array(blocks, format="csr"),
                np.concatenate([np.ones(len(self._used)), np.full(len(state) + 1, -1.0)]),
            ),
            seconds=max(1.0, seconds),
        )
        shares = found.solution("tail-loss")[:paths]
        prices = np.zeros(len(self._capacity))
        links = len(self._used)
        prices[self._used] = found.duals[:links] / self._capacity[self._used]
        weight = found.duals[links : links + len(state)]
        return _Solution(shares, prices, state, demand, is_outside, weight)

    def _rows(self) -> tuple[Int64Array, Int64Array, BoolArray]:
        """State and demand of each row: one for each pattern that occurs outside of the tail, in
        the most probable of its states there, and one for each state of the tail and demand whose
        pattern occurs in the tail alone; and whether it is one of the former.
        """
        counts, key = self._counts, self._key
        state, demand = np.nonzero(counts & ~self._in_tail[:, None])
        _, first = np.unique(key[state, demand], return_index=True)
        state, demand = state[first], demand[first]
        is_outside = np.zeros(counts.shape[1] << self._width, bool)
        is_outside[key[state, demand]] = True
        inside, of_inside = np.nonzero(counts & self._in_tail[:, None])
        alone = ~is_outside[key[inside, of_inside]]
        flags = np.arange(len(state) + int(alone.sum())) < len(state)
        return np.append(state, inside[alone]), np.append(demand, of_inside[alone]), flags

    def _carries(self, state: Int64Array, demand: Int64Array) -> sp.csr_array:
        """(R, P) 1 where a path of a row's demand survives."""
        pattern = self._effects.pattern[state, demand]
        row, path = np.nonzero((pattern[:, None] >> np.arange(self._width)) & 1)
        columns = self._place[demand[row] * self._width + path]
        shape = (len(state), len(self._slot))
        return sp.csr_array((np.ones(len(row)), (row, columns)), shape=shape)

    def divided(self, solution: _Solution) -> tuple[sp.csr_array, bool]:
        """(Q, D) weights of the states, and whether the tail has grown: by the states that limit
        them, where not all weights of the patterns can be divided.
        """
        pattern = self._effects.pattern
        has_weight = solution.weight > 0
        inside = has_weight & ~solution.is_outside
        left = self._most - np.bincount(
            solution.state[inside], solution.weight[inside], len(self._most)
        )
        outside = np.flatnonzero(has_weight & solution.is_outside)
        members = [
            np.flatnonzero(pattern[:, demand] == pattern[state, demand])
            for state, demand in zip(solution.state[outside], solution.demand[outside], strict=True)
        ]
        division = divide(solution.weight[outside], members, left.clip(min=0))
        has_grown = bool((division.limiting & ~self._in_tail).any())
        self._in_tail = self._in_tail | division.limiting
        state = np.append(solution.state[inside], division.state)
        demand = np.append(solution.demand[inside], solution.demand[outside][division.row])
        weight = np.append(solution.weight[inside], division.weight)
        # States in which a demand is cut take what the states that are not listed had.
        spare = (self._most - np.bincount(state, weight, len(self._most)))[self._cut_states]
        spare = spare.clip(min=0)
        more = np.clip(1 - weight.sum() - (np.cumsum(spare) - spare), 0, spare)
        state = np.append(state, self._cut_states)
        demand = np.append(demand, self._cut_demand)
        weight = np.append(weight, more)
        return sp.csr_array((weight, (state, demand)), shape=pattern.shape), has_grown


class Division(NamedTuple):
    """Weights of R rows, divided over states.

    Attributes:
        row: (n,) number of the row of each part.
        state: (n,) of each part.
        weight: (n,) of each part.
        limiting: (Q,) the states that carry no more, where rows have weight that no state takes.
    """

    row: Int64Array
    state: Int64Array
    weight: FloatArray
    limiting: BoolArray


def divide(weight: FloatArray, members: Sequence[Int64Array], limit: FloatArray) -> Division:
    """Divide weights over states as far as their limits allow, by a maximum flow.

    Args:
        weight: (R,) of the rows, 1 in sum at most.
        members: states of each row.
        limit: (Q,) sum of the weights that a state takes.
    """
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # takes a while to load

    # A state that takes all of them limits none.
    ample = limit >= 1
    has_ample = np.array([bool(ample[states].any()) for states in members], dtype=bool)
    alone = np.flatnonzero(has_ample)
    taken = [members[number] for number in alone.tolist()]
    first = np.array([states[ample[states].argmax()] for states in taken], dtype=np.int64)
    limiting = np.zeros(len(limit), dtype=bool)
    others = np.flatnonzero(~has_ample)
    if not len(others):
        return Division(alone, first, weight[alone], limiting)
    # Nodes: the source, the rows, the states, the sink.
    rows, states = len(others), len(limit)
    of_others = [members[number] for number in others.tolist()]
    row = np.repeat(np.arange(rows), [len(one) for one in of_others])
    state = np.concatenate(of_others)
    sink = 1 + rows + states
    of_rows = np.floor(weight[others] * _WHOLE)
    of_states = np.ceil(np.minimum(limit, 1.0) * _WHOLE) + 1  # rounding does not limit
    tail = np.concatenate([np.zeros(rows, np.int64), 1 + row, 1 + rows + np.arange(states)])
    head = np.concatenate([1 + np.arange(rows), 1 + rows + state, np.full(states, sink)])
    size = np.concatenate([of_rows, of_rows[row], of_states]).astype(np.int32)
    graph = sp.csr_array((size, (tail, head)), shape=(sink + 1, sink + 1))
    flow: Any = maximum_flow(graph, 0, sink)
    if flow.flow_value < of_rows.sum():
        left = graph - flow.flow
        left.data[left.data < 0] = 0
        left.eliminate_zeros()
        reached = breadth_first_order(left, 0, return_predecessors=False)
        is_state = (reached > rows) & (reached < sink)
        limiting[reached[is_state] - 1 - rows] = True
    parts = flow.flow.tocoo()
    is_part = (parts.row >= 1) & (parts.row <= rows) & (parts.data > 0)
    return Division(
        np.append(alone, others[parts.row[is_part] - 1]),
        np.append(first, parts.col[is_part] - 1 - rows),
        np.append(weight[alone], parts.data[is_part] / _WHOLE),
        limiting,
    )
