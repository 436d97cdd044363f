"""Rates with the smallest CVaR of the largest loss over all demands: TEAVAR's own objective (Bogle
et al., SIGCOMM 2019, equations 4 to 9).

With network states q of probability p[q], the survival state s(d, q) of a demand of d Gbit/s, and
the rates S[d, s] reserved on its surviving paths,

    L[q] = max_d max(0, 1 - S[d, s(d, q)] / d),
    CVaR = min_a  a + sum_q p[q] max(0, L[q] - a) / (1 - beta):

the mean of the largest loss over the worst 1 - beta of the time. The largest loss couples the
demands, so that network states are enumerated; states with the same surviving paths are merged.

Row generation: only the states of a growing *tail* may have L[q] above a. Outside of the tail, a
survival state of a demand has one row for all its network states. The duals W[d, s] of these rows
are dual feasible for the full program if they can be divided over the network states within the
limits below, which a maximum flow decides; otherwise the states of the minimum cut join the tail.
For any weights w[d, q] >= 0 with

    sum_d w[d, q] <= p[q] / (1 - beta),  sum of all w <= 1,
    sum of w[d, q] over the states in which path k survives  <=  d times the price of path k,

no rates have a smaller CVaR than sum of w - sum_e c[e] y[e]. The CVaR of the rates is measured over
all states; unlisted states count as a total loss. Entry point: :func:`guarantee_min_cvar`.
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
from teal_availability.certificates import arriving_shares, path_prices, scale_to_capacities
from teal_availability.components import Components
from teal_availability.guarantees import (
    Guarantee,
    demands_without_path,
    empty_promise,
)
from teal_availability.matrix import capacity_of, demand_of, path_link_incidence
from teal_availability.states import States
from teal_availability.survival import SurvivalStates, paths_by_component
from teal_availability.tolerances import check_availability

# Largest number of states times demands, about 50 bytes each.
_MAX_ENTRIES = 30_000_000
# Integer flow units of a weight of 1, for the maximum flow.
_FLOW_UNITS_PER_WEIGHT = 2**30


@dataclasses.dataclass(frozen=True, eq=False)
class MergedStates:
    """Listed network states, merged by the surviving paths of all demands.

    Attributes:
        probability: (Q,) share of the time, in descending order.
        pattern: (Q, D) surviving paths of each demand, as bits.
        rest: total probability of the states that are not listed.
    """

    probability: FloatArray
    pattern: np.ndarray
    rest: float


def merge_states(problem: Problem, components: Components, states: States) -> MergedStates:
    """Compute the surviving paths in each state, and merge states with the same surviving paths.

    Raises:
        InputError: too many states times demands.
    """
    paths = problem.paths
    if len(states) * paths.num_demands > _MAX_ENTRIES:
        expected = f"at most {_MAX_ENTRIES:,} states times demands (--most-states, --most-down)"
        num_entries = len(states) * paths.num_demands
        raise InputError("tail-loss", "states", expected, f"{num_entries:,}")
    links = path_links_of(paths)
    num_paths = paths.num_paths
    # Failed paths of each state, from its failed components.
    down_components = np.fromiter(
        (c for state_components in states.down for c in state_components), np.int64
    )
    ptr = np.concatenate(
        [[0], np.cumsum([len(state_components) for state_components in states.down])]
    )
    shape = (len(states), len(components))
    state_components = sp.csr_array(
        (np.ones(len(down_components), np.int32), down_components, ptr), shape=shape
    )
    failed_paths = sp.csr_array(state_components @ paths_by_component(paths, components).T)
    failed_paths.data[:] = 1
    # Surviving paths of each demand as bits.
    demand, path_index = np.divmod(links.slot, num_paths)
    path_bits = sp.csr_array(
        ((1 << path_index).astype(np.int32), (np.arange(len(path_index)), demand)),
        shape=(len(path_index), paths.num_demands),
    )
    live_sets = problem.path_mask[0].cpu().numpy() @ (1 << np.arange(num_paths))
    failed_sets = (failed_paths @ path_bits).toarray()
    pattern = (live_sets[None, :] & ~failed_sets).astype(np.uint8 if num_paths <= 8 else np.uint32)
    # Merge equal states, the most probable first.
    distinct, effect_index = np.unique(pattern, axis=0, return_inverse=True)
    probability = np.zeros(len(distinct))
    np.add.at(probability, effect_index.reshape(-1), states.probability)
    order = np.argsort(-probability, kind="stable")
    return MergedStates(probability[order], distinct[order], states.rest)


def demand_losses(
    patterns: SurvivalStates,
    effects: MergedStates,
    demand: FloatArray,
    rates: FloatArray,
    is_included: BoolArray,
    *,
    counts_cut: bool,
) -> FloatArray:
    """Return (Q, D) loss of each demand in each state; 0 for excluded demands, and without
    ``counts_cut`` where none of its paths survives.
    """
    loss = np.where(is_included[:, None], 1 - arriving_shares(patterns, demand, rates), 0.0)
    if not counts_cut:
        loss[:, 0] = 0.0
    return loss[np.arange(len(demand))[None, :], effects.pattern]


def cvar(losses: FloatArray, effects: MergedStates, availability: float) -> float:
    """Return the mean of losses (Q,) over the worst 1 - availability of the time; unlisted states
    have a loss of 1.
    """
    loss = np.append(losses, 1.0)
    probability = np.append(effects.probability, effects.rest)
    order = np.argsort(-loss, kind="stable")
    preceding_probability = np.cumsum(probability[order]) - probability[order]
    tail_probability = np.clip(1 - availability - preceding_probability, 0.0, probability[order])
    return float(tail_probability @ loss[order]) / (1 - availability)


def tail_loss_bound(
    problem: Problem,
    effects: MergedStates,
    availability: float,
    prices: FloatArray,
    weights: sp.csr_array,
) -> float:
    """Return a lower bound on the smallest CVaR of the largest loss (module docstring).

    Weights that violate the conditions are scaled down, so that any numbers give a bound.

    Args:
        problem: one matrix.
        effects: states.
        availability: beta.
        prices: (E,) any numbers.
        weights: (Q, D) any numbers, without entries for excluded demands.
    """
    demand = demand_of(problem)
    prices = np.maximum(prices, 0.0)
    entries = weights.tocoo()
    weight = np.maximum(entries.data, 0.0)
    # Limit of each state.
    state_weight = np.bincount(entries.row, weight, len(effects.probability))
    max_weight = effects.probability / (1 - availability)
    scale = np.minimum(1.0, max_weight / np.maximum(state_weight, 1e-300))
    weight = weight * scale[entries.row]
    # Limit of each path.
    pattern = effects.pattern[entries.row, entries.col]
    path_price = path_prices(problem, prices)
    scale = np.ones(len(demand))
    for path in range(problem.paths.num_paths):
        path_weight = np.bincount(entries.col, weight * ((pattern >> path) & 1), len(demand))
        is_path = np.isfinite(path_price[:, path])
        max_path_weight = np.where(
            is_path, np.where(is_path, path_price[:, path], 0.0) * demand, np.inf
        )
        exceeds = path_weight > max_path_weight
        scale[exceeds] = np.minimum(scale[exceeds], max_path_weight[exceeds] / path_weight[exceeds])
    weight = weight * scale[entries.col]
    # Limit of the sum of all weights.
    total = max(1.0, float(weight.sum()))
    return max(0.0, float(weight.sum()) / total - float(capacity_of(problem) @ prices) / total)


def guarantee_min_cvar(
    problem: Problem,
    patterns: SurvivalStates,
    effects: MergedStates,
    availability: float,
    gap: float = 1e-3,
    seconds: float = math.inf,
    *,
    counts_cut: bool = True,
) -> Guarantee:
    """Compute the rates with the smallest CVaR of the largest loss. Value and bound are one minus
    the CVaR: the share that every demand keeps at once, on average in the worst 1 - beta of the
    time.

    Args:
        problem: one matrix under total_flow.
        patterns: probabilities of its survival states.
        effects: the listed states.
        availability: beta, in (0, 1).
        gap: largest difference between value and optimum, a share of the demand; the bound ignores
            the unlisted states, at most rest / (1 - availability).
        seconds: time limit; the incumbent is returned after it.
        counts_cut: whether a demand without a surviving path has a loss of 1; otherwise it is
            ignored in such states, where no rates help it.

    Raises:
        InputError: another availability, or states for too little of the time.
        SolverError: the first program was not solved in time.
    """
    check_availability(availability, "promise")
    deadline = time.perf_counter() + seconds
    demand = demand_of(problem)
    excluded = demands_without_path(patterns, demand, availability)
    is_included = (demand > 0) & ~excluded
    if not is_included.any():
        return empty_promise(problem, patterns, excluded)
    if effects.rest >= 1 - availability:
        expected = "states for more than --availability of the time (--most-states, --rest)"
        raise InputError("tail-loss", "states", expected, f"{1 - effects.rest:.6g} of the time")
    # Grow the tail until the gap is closed.
    search = _TailProgram(problem, effects, is_included, availability, counts_cut=counts_cut)
    unlisted = effects.rest / (1 - availability)
    incumbent: Guarantee | None = None
    while True:
        try:
            solution = search.solve(deadline - time.perf_counter())
        except SolverError:
            if incumbent is None:
                raise
            return incumbent
        # Lower bound from the duals.
        weights, has_grown = search.divide_weights(solution)
        bound = tail_loss_bound(problem, effects, availability, solution.prices, weights)
        # Upper bound from the rates.
        rates = scale_to_capacities(problem, search.rates(solution.shares, demand))
        losses = demand_losses(patterns, effects, demand, rates, is_included, counts_cut=counts_cut)
        value = cvar(losses.max(1, initial=0.0), effects, availability)
        if incumbent is None:
            pattern_weights = search.weights_by_pattern(weights)
            incumbent = Guarantee(
                rates, 1 - value, 1 - bound, solution.prices, pattern_weights, excluded
            )
        if 1 - value > incumbent.value:
            incumbent = dataclasses.replace(incumbent, rates=rates, value=1 - value)
        if 1 - bound < incumbent.bound:
            pattern_weights = search.weights_by_pattern(weights)
            incumbent = dataclasses.replace(
                incumbent, bound=1 - bound, prices=solution.prices, weights=pattern_weights
            )
        is_converged = incumbent.bound - incumbent.value <= unlisted + gap
        if is_converged or not has_grown or time.perf_counter() >= deadline:
            return incumbent


class _Solution(NamedTuple):
    """Solution of the program with the present tail.

    Attributes:
        shares: (P,) shares of demands on their paths.
        prices: (E,) link prices.
        state: (R,) state of each row; for a survival state outside of the tail one of its states.
        demand: (R,) demand of each row.
        is_outside: (R,) whether the row is a survival state that occurs outside of the tail.
        weight: (R,) dual of each row.
    """

    shares: FloatArray
    prices: FloatArray
    state: Int64Array
    demand: Int64Array
    is_outside: BoolArray
    weight: FloatArray


class _TailProgram:
    """Linear program with a growing tail.

    Variables: the shares of demands on their paths, a, and u[q] for the states of the tail.

    Args:
        problem: one matrix.
        effects: states.
        is_included: (D,) demands in the program.
        availability: beta.
        counts_cut: as in :func:`guarantee_min_cvar`.
    """

    def __init__(
        self,
        problem: Problem,
        effects: MergedStates,
        is_included: BoolArray,
        availability: float,
        *,
        counts_cut: bool,
    ) -> None:
        self._effects = effects
        # Limits of the dual weights of each state, and of the unlisted states.
        tail = 1 - availability
        self._max_weight = effects.probability / tail
        self._unlisted_weight = effects.rest / tail
        # Columns: paths of the included demands, without links of capacity 0.
        links = path_links_of(problem.paths)
        self._num_paths = problem.paths.num_paths
        live = problem.path_mask[0].cpu().numpy().reshape(-1)
        candidates = np.flatnonzero(is_included[links.slot // self._num_paths] & live[links.slot])
        incidence = path_link_incidence(problem.paths)[candidates]
        self._slot = links.slot[candidates]
        self._capacity = capacity_of(problem)
        self._live_links = np.flatnonzero(self._capacity > 0)
        demand = demand_of(problem)
        # Link loads relative to capacity.
        loads = (
            sp.diags_array(demand[self._slot // self._num_paths]) @ incidence[:, self._live_links]
        )
        self._loads = (loads @ sp.diags_array(1 / self._capacity[self._live_links])).T.tocsr()
        # Column of each path by its slot.
        self._column = np.full(is_included.size * self._num_paths, -1, np.int64)
        self._column[self._slot] = np.arange(len(candidates))
        # Demands that count in each state, and keys of their survival states.
        self._is_included = is_included & (counts_cut | (effects.pattern > 0))
        self._pattern_key = (
            np.arange(is_included.size) << self._num_paths
        ) + effects.pattern.astype(np.int64)
        # In states in which a demand is cut off, no rates change the largest loss.
        is_cut = self._is_included & (effects.pattern == 0)
        self._cut_states = np.flatnonzero(is_cut.any(1))
        self._cut_demand = is_cut[self._cut_states].argmax(1)
        self._in_tail = is_cut.any(1)

    def weights_by_pattern(self, weights: sp.csr_array) -> FloatArray:
        """Return weights (Q, D) summed by survival state of each demand (D, 2^K)."""
        entries = weights.tocoo()
        table = np.zeros(self._is_included.shape[1] << self._num_paths)
        np.add.at(table, self._pattern_key[entries.row, entries.col], entries.data)
        return table.reshape(-1, 1 << self._num_paths)

    def rates(self, shares: FloatArray, demand: FloatArray) -> FloatArray:
        """Return the rates (D, K) in Gbit/s of shares (P,)."""
        path_rates = np.zeros(len(demand) * self._num_paths)
        path_rates[self._slot] = np.maximum(shares, 0.0) * demand[self._slot // self._num_paths]
        return path_rates.reshape(-1, self._num_paths)

    def solve(self, seconds: float) -> _Solution:
        """Solve the program with the present tail.

        Raises:
            SolverError: it was not solved in time.
        """
        # Rows and the tail variables u[q] that they contain.
        state, demand, is_outside = self._rows()
        num_paths = len(self._slot)
        states, tail_index = np.unique(state[~is_outside], return_inverse=True)
        state_incidence = sp.csr_array(
            (np.ones(len(tail_index)), (np.flatnonzero(~is_outside), tail_index)),
            shape=(len(state), len(states)),
        )
        unit_column = np.ones((len(state), 1))
        unit_entry = np.ones((1, 1))
        # Minimise the CVaR: path shares have no cost.
        weights = [[1.0], self._max_weight[states], [self._unlisted_weight]]
        blocks = [
            [self._loads, None, None, None],
            [-self._path_survival(state, demand), -unit_column, -state_incidence, None],
            [None, -unit_entry, None, -unit_entry],
        ]
        result = solve_lp(
            np.concatenate([np.zeros(num_paths), *weights]),
            (
                sp.block_array(blocks, format="csr"),
                np.concatenate([np.ones(len(self._live_links)), np.full(len(state) + 1, -1.0)]),
            ),
            seconds=max(1.0, seconds),
        )
        shares = result.solution("tail-loss")[:num_paths]
        # Duals of links, in Gbit/s, and of rows.
        prices = np.zeros(len(self._capacity))
        num_links = len(self._live_links)
        prices[self._live_links] = result.duals[:num_links] / self._capacity[self._live_links]
        weight = result.duals[num_links : num_links + len(state)]
        return _Solution(shares, prices, state, demand, is_outside, weight)

    def _rows(self) -> tuple[Int64Array, Int64Array, BoolArray]:
        """Return state and demand of each row, and whether the row is outside of the tail.

        A survival state that occurs outside of the tail has one row, in its most probable state
        there. A survival state that occurs only in the tail has one row for each state of the tail.
        """
        is_included = self._is_included
        pattern_key = self._pattern_key
        state, demand = np.nonzero(is_included & ~self._in_tail[:, None])
        _, first_index = np.unique(pattern_key[state, demand], return_index=True)
        state = state[first_index]
        demand = demand[first_index]
        is_outside = np.zeros(is_included.shape[1] << self._num_paths, bool)
        is_outside[pattern_key[state, demand]] = True
        inside, inside_demand = np.nonzero(is_included & self._in_tail[:, None])
        only_in_tail = ~is_outside[pattern_key[inside, inside_demand]]
        is_outside_flags = np.arange(len(state) + int(only_in_tail.sum())) < len(state)
        return (
            np.append(state, inside[only_in_tail]),
            np.append(demand, inside_demand[only_in_tail]),
            is_outside_flags,
        )

    def _path_survival(self, state: Int64Array, demand: Int64Array) -> sp.csr_array:
        """Return (R, P) incidence: 1 where a path of a row's demand survives."""
        pattern = self._effects.pattern[state, demand]
        row, path = np.nonzero((pattern[:, None] >> np.arange(self._num_paths)) & 1)
        columns = self._column[demand[row] * self._num_paths + path]
        shape = (len(state), len(self._slot))
        return sp.csr_array((np.ones(len(row)), (row, columns)), shape=shape)

    def divide_weights(self, solution: _Solution) -> tuple[sp.csr_array, bool]:
        """Divide the duals over network states; return weights (Q, D), and whether the tail has
        grown by the states that limit them.
        """
        pattern = self._effects.pattern
        # Rows of the tail keep their duals; the other rows divide theirs over their states.
        has_weight = solution.weight > 0
        inside = has_weight & ~solution.is_outside
        residual_weight = self._max_weight - np.bincount(
            solution.state[inside], solution.weight[inside], len(self._max_weight)
        )
        outside = np.flatnonzero(has_weight & solution.is_outside)
        members = [
            np.flatnonzero(pattern[:, demand] == pattern[state, demand])
            for state, demand in zip(solution.state[outside], solution.demand[outside], strict=True)
        ]
        division = divide(solution.weight[outside], members, residual_weight.clip(min=0))
        # States of the minimum cut join the tail.
        has_grown = bool((division.limiting & ~self._in_tail).any())
        self._in_tail = self._in_tail | division.limiting
        state = np.append(solution.state[inside], division.state)
        demand = np.append(solution.demand[inside], solution.demand[outside][division.row])
        weight = np.append(solution.weight[inside], division.weight)
        # Assign the weight of unlisted states to states in which a demand is cut off.
        spare_weight = (self._max_weight - np.bincount(state, weight, len(self._max_weight)))[
            self._cut_states
        ]
        spare_weight = spare_weight.clip(min=0)
        added_weight = np.clip(
            1 - weight.sum() - (np.cumsum(spare_weight) - spare_weight), 0, spare_weight
        )
        state = np.append(state, self._cut_states)
        demand = np.append(demand, self._cut_demand)
        weight = np.append(weight, added_weight)
        return sp.csr_array((weight, (state, demand)), shape=pattern.shape), has_grown


class Division(NamedTuple):
    """Weights of R rows, divided over states.

    Attributes:
        row: (n,) row of each part.
        state: (n,) state of each part.
        weight: (n,) weight of each part.
        limiting: (Q,) whether a state is on the saturated side of the minimum cut, when not all
            weight can be divided.
    """

    row: Int64Array
    state: Int64Array
    weight: FloatArray
    limiting: BoolArray


def divide(weight: FloatArray, members: Sequence[Int64Array], limit: FloatArray) -> Division:
    """Divide weights over states within the limits of the states, by a maximum flow.

    Args:
        weight: (R,) weight of each row, with a sum of at most 1.
        members: states of each row.
        limit: (Q,) largest sum of weights of a state.
    """
    # Rows with a state of unlimited capacity need no flow.
    is_unlimited = limit >= 1
    has_unlimited = np.array([bool(is_unlimited[states].any()) for states in members], dtype=bool)
    unlimited_rows = np.flatnonzero(has_unlimited)
    unlimited_members = [members[index] for index in unlimited_rows.tolist()]
    first_state = np.array(
        [states[is_unlimited[states].argmax()] for states in unlimited_members], dtype=np.int64
    )
    limited_rows = np.flatnonzero(~has_unlimited)
    if not len(limited_rows):
        limiting = np.zeros(len(limit), dtype=bool)
        return Division(unlimited_rows, first_state, weight[unlimited_rows], limiting)
    # Maximum flow of the other rows.
    flow = _flow_over_states(
        weight[limited_rows], [members[index] for index in limited_rows.tolist()], limit
    )
    return Division(
        np.append(unlimited_rows, limited_rows[flow.row]),
        np.append(first_state, flow.state),
        np.append(weight[unlimited_rows], flow.weight),
        flow.limiting,
    )


def _flow_over_states(
    weight: FloatArray, members: Sequence[Int64Array], limit: FloatArray
) -> Division:
    """Divide weights of at least one row by a maximum flow from the rows to their states.

    Args:
        weight: (R,) weight of each row.
        members: states of each row.
        limit: (Q,) largest sum of weights of a state.
    """
    # Imported here, since it loads slowly.
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    # Nodes: the source, the rows, the states, the sink.
    num_rows = len(weight)
    num_states = len(limit)
    row = np.repeat(np.arange(num_rows), [len(states) for states in members])
    state = np.concatenate(members)
    sink = 1 + num_rows + num_states
    row_supply = np.floor(weight * _FLOW_UNITS_PER_WEIGHT)
    state_capacity = np.ceil(np.minimum(limit, 1.0) * _FLOW_UNITS_PER_WEIGHT) + 1
    # Arcs with integer capacities; rounding up the states does not limit them.
    tail = np.concatenate(
        [np.zeros(num_rows, np.int64), 1 + row, 1 + num_rows + np.arange(num_states)]
    )
    head = np.concatenate(
        [1 + np.arange(num_rows), 1 + num_rows + state, np.full(num_states, sink)]
    )
    arc_capacity = np.concatenate([row_supply, row_supply[row], state_capacity]).astype(np.int32)
    graph = sp.csr_array((arc_capacity, (tail, head)), shape=(sink + 1, sink + 1))
    flow: Any = maximum_flow(graph, 0, sink)
    # Not all weight fits: states reachable in the residual graph limit it.
    limiting = np.zeros(num_states, dtype=bool)
    if flow.flow_value < row_supply.sum():
        residual = graph - flow.flow
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, 0, return_predecessors=False)
        is_state = (reached > num_rows) & (reached < sink)
        limiting[reached[is_state] - 1 - num_rows] = True
    # Parts of the rows by the flow.
    flows = flow.flow.tocoo()
    is_row_flow = (flows.row >= 1) & (flows.row <= num_rows) & (flows.data > 0)
    return Division(
        flows.row[is_row_flow] - 1,
        flows.col[is_row_flow] - 1 - num_rows,
        flows.data[is_row_flow] / _FLOW_UNITS_PER_WEIGHT,
        limiting,
    )
