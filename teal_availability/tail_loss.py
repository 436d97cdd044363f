"""Rates with the smallest CVaR of the largest loss over all demands: TEAVAR's own objective (Bogle
et al., SIGCOMM 2019, equations 4 to 9).

Network state q has probability p[q]. Survival state s(d, q) is the set of paths of demand d that
survive in it, and r[d, s] is the sum of the rates reserved on these paths, as a share of the
demand. The largest loss L[q] of a state and its CVaR are

    L[q] = max_d max(0, 1 - r[d, s(d, q)]),
    CVaR = min_a  a + sum_q p[q] max(0, L[q] - a) / (1 - beta):

the mean of the largest loss over the worst 1 - beta of the time. The largest loss couples the
demands, so that network states are enumerated; states with the same surviving paths are merged.

Row generation: only the states of a growing *tail* may have L[q] above a. Outside of the tail, a
survival state of a demand has one row for all its network states. The duals W[d, s] of these rows
are dual feasible for the full program if they can be divided over the network states within the
limits below, which a maximum flow decides; otherwise the states of the minimum cut join the tail.
For any weights w[d, q] >= 0 with

    sum_d w[d, q] <= p[q] / (1 - beta),  sum of all w <= 1,
    sum of w[d, q] over the states in which path k survives  <=  rate of d * price of path k,

no rates have a smaller CVaR than sum of w - sum_e c[e] y[e], with capacities c[e] and link prices
y[e]. The CVaR of the rates is measured over all states; unlisted states count as a total loss.
Entry point: :func:`guarantee_min_cvar`.
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
from teal.deprecated import with_old_attributes, with_old_keywords
from teal.network.path_links import path_links_of
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.lp import solve_lp
from teal_availability.certificates import arriving_shares, path_prices, scale_to_capacities
from teal_availability.components import Components
from teal_availability.guarantees import (
    Guarantee,
    demands_without_path,
    guarantee_without_demands,
)
from teal_availability.matrix import capacity_of, demand_of, path_link_incidence
from teal_availability.states import States
from teal_availability.survival import SurvivalStates, paths_by_component
from teal_availability.tolerances import check_availability

# Largest number of states times demands, about 50 bytes each.
_MAX_ENTRIES = 30_000_000
# Integer flow units of a weight of 1, for the maximum flow.
_FLOW_UNITS_PER_WEIGHT = 2**30


@with_old_attributes
@dataclasses.dataclass(frozen=True, eq=False)
class MergedStates:
    """Listed network states, merged by the surviving paths of all demands.

    Attributes:
        probability: (Q,) probability of each merged state, in descending order.
        path_set: (Q, D) surviving paths of each demand: bit k is 1 if path k survives.
        unlisted_probability: total probability of the states that are not listed.
    """

    probability: FloatArray
    path_set: np.ndarray
    unlisted_probability: float


def merge_states(problem: Problem, components: Components, states: States) -> MergedStates:
    """Compute the surviving paths of all demands in each network state, and merge states with the
    same surviving paths.

    Args:
        problem: one matrix with its candidate paths.
        components: failing components of its network.
        states: the most probable network states.

    Raises:
        InputError: too many states times demands.
    """
    paths = problem.paths
    if len(states) * paths.num_demands > _MAX_ENTRIES:
        expected = (
            f"at most {_MAX_ENTRIES:,} states times demands (--max-states, --max-failed-components)"
        )
        num_entries = len(states) * paths.num_demands
        raise InputError("tail-loss", "states", expected, f"{num_entries:,}")
    path_links = path_links_of(paths)
    num_paths = paths.num_paths
    # Incidence (states, components) of failed components, then (states, P) of failed paths.
    down_components = np.fromiter(
        (c for state_components in states.down for c in state_components), np.int64
    )
    state_ptr = np.concatenate(
        [[0], np.cumsum([len(state_components) for state_components in states.down])]
    )
    shape = (len(states), len(components))
    state_components = sp.csr_array(
        (np.ones(len(down_components), np.int32), down_components, state_ptr), shape=shape
    )
    failed_paths = sp.csr_array(state_components @ paths_by_component(paths, components).T)
    # A path fails once, however many of its components are down.
    failed_paths.data[:] = 1
    # (states, D) surviving paths of each demand: the bits of all live paths without failed ones.
    demand_of_path, path_index = np.divmod(path_links.slot, num_paths)
    path_bits = sp.csr_array(
        ((1 << path_index).astype(np.int32), (np.arange(len(path_index)), demand_of_path)),
        shape=(len(path_index), paths.num_demands),
    )
    live_sets = problem.path_mask[0].cpu().numpy() @ (1 << np.arange(num_paths))
    failed_sets = (failed_paths @ path_bits).toarray()
    path_set = (live_sets[None, :] & ~failed_sets).astype(np.uint8 if num_paths <= 8 else np.uint32)
    # Merge equal rows, and sort them by descending probability.
    distinct_sets, merged_index = np.unique(path_set, axis=0, return_inverse=True)
    probability = np.zeros(len(distinct_sets))
    np.add.at(probability, merged_index.reshape(-1), states.probability)
    order = np.argsort(-probability, kind="stable")
    return MergedStates(probability[order], distinct_sets[order], states.unlisted_probability)


def demand_losses(
    survival_states: SurvivalStates,
    merged_states: MergedStates,
    demand: FloatArray,
    rates: FloatArray,
    is_included: BoolArray,
    *,
    counts_disconnected: bool,
) -> FloatArray:
    """Return the loss (Q, D) of each demand in each network state: the share of the demand that
    exceeds the rates reserved on its surviving paths, 0 if they suffice.

    Args:
        survival_states: survival states of the demands.
        merged_states: the Q network states.
        demand: (D,) Gbit/s.
        rates: (D, K) reserved Gbit/s on each path.
        is_included: (D,) whether a demand counts; the loss of other demands is 0.
        counts_disconnected: whether a demand without a surviving path has a loss of 1, else 0.
    """
    # Loss (D, 2^K) by survival state; state 0 has no surviving path.
    loss = np.where(is_included[:, None], 1 - arriving_shares(survival_states, demand, rates), 0.0)
    if not counts_disconnected:
        loss[:, 0] = 0.0
    return loss[np.arange(len(demand))[None, :], merged_states.path_set]


def cvar(losses: FloatArray, merged_states: MergedStates, availability: float) -> float:
    """Return the conditional value at risk of a loss: its mean over the worst 1 - availability of
    the time.

    Args:
        losses: (Q,) loss in each network state; unlisted states have a loss of 1.
        merged_states: probabilities of the Q network states.
        availability: share of the time, in (0, 1).
    """
    loss = np.append(losses, 1.0)
    probability = np.append(merged_states.probability, merged_states.unlisted_probability)
    order = np.argsort(-loss, kind="stable")
    # Fill the tail, 1 - availability of the time, with the states of the largest losses.
    preceding_probability = np.cumsum(probability[order]) - probability[order]
    tail_probability = np.clip(1 - availability - preceding_probability, 0.0, probability[order])
    return float(tail_probability @ loss[order]) / (1 - availability)


def tail_loss_bound(
    problem: Problem,
    merged_states: MergedStates,
    availability: float,
    prices: FloatArray,
    weights: sp.csr_array,
) -> float:
    """Return a lower bound on the smallest CVaR of the largest loss, by weak duality.

    With probability p[q] and path set of each network state q, and capacity c[e] of each link e,
    take prices y[e] >= 0 of links and weights w[d, q] >= 0 of demands and states with

        sum_d w[d, q] <= p[q] / (1 - availability) for each state q,  sum of all w <= 1,
        sum of w[d, q] over the states in which path k of demand d survives
            <=  rate of demand d * price of path k, the sum of the prices of its links.

    The bound is sum of w - sum_e c[e] y[e].  Weights that violate a condition are scaled down, so
    that any numbers give a bound.

    Args:
        problem: one matrix.
        merged_states: the Q network states.
        availability: share of the time, in (0, 1).
        prices: (E,) link prices, any numbers.
        weights: (Q, D) weights, any numbers, without entries for excluded demands.
    """
    demand = demand_of(problem)
    prices = np.maximum(prices, 0.0)
    entries = weights.tocoo()
    weight = np.maximum(entries.data, 0.0)
    # Scale the weights of each state to its limit, the probability / (1 - availability).
    state_weight = np.bincount(entries.row, weight, len(merged_states.probability))
    max_weight = merged_states.probability / (1 - availability)
    scale = np.minimum(1.0, max_weight / np.maximum(state_weight, 1e-300))
    weight = weight * scale[entries.row]
    # Scale the weights of each demand down to the limits of its paths: over the states in which a
    # path survives, they sum to at most demand * price of the path (no limit for missing paths).
    path_set = merged_states.path_set[entries.row, entries.col]
    path_price = path_prices(problem, prices)
    scale = np.ones(len(demand))
    for path in range(problem.paths.num_paths):
        path_weight = np.bincount(entries.col, weight * ((path_set >> path) & 1), len(demand))
        is_path = np.isfinite(path_price[:, path])
        max_path_weight = np.where(
            is_path, np.where(is_path, path_price[:, path], 0.0) * demand, np.inf
        )
        exceeds = path_weight > max_path_weight
        scale[exceeds] = np.minimum(scale[exceeds], max_path_weight[exceeds] / path_weight[exceeds])
    weight = weight * scale[entries.col]
    # Scale weights and prices so that all weights sum to at most 1.
    total = max(1.0, float(weight.sum()))
    return max(0.0, float(weight.sum()) / total - float(capacity_of(problem) @ prices) / total)


@with_old_keywords
def guarantee_min_cvar(
    problem: Problem,
    survival_states: SurvivalStates,
    merged_states: MergedStates,
    availability: float,
    gap: float = 1e-3,
    seconds: float = math.inf,
    *,
    counts_disconnected: bool = True,
) -> Guarantee:
    """Compute the rates with the smallest CVaR of the largest loss over all demands, by row
    generation.

    Value and bound of the guarantee are one minus the CVaR: the smallest delivered share of any
    demand, averaged over the worst 1 - availability of the time.

    Args:
        problem: one matrix under total_flow.
        survival_states: probabilities of its survival states.
        merged_states: the listed network states, merged by surviving paths.
        availability: share of the time, in (0, 1).
        gap: largest difference between value and optimum, as a share of the demand. The bound
            ignores the unlisted states, which add at most unlisted_probability /
            (1 - availability).
        seconds: time limit; the incumbent is returned after it.
        counts_disconnected: whether a demand without a surviving path has a loss of 1; otherwise it
            is ignored in such states, in which no rates help it.

    Raises:
        InputError: an availability outside (0, 1), or listed states that cover too little of the
            time.
        SolverError: the first program was not solved in time.
    """
    check_availability(availability, "promise")
    deadline = time.perf_counter() + seconds
    demand = demand_of(problem)
    is_excluded = demands_without_path(survival_states, demand, availability)
    is_included = (demand > 0) & ~is_excluded
    if not is_included.any():
        return guarantee_without_demands(problem, survival_states, is_excluded)
    if merged_states.unlisted_probability >= 1 - availability:
        raise InputError.invalid(
            "tail-loss",
            "states",
            f"the listed states cover only {1 - merged_states.unlisted_probability:.6g} of the "
            f"time, not more than the availability of {availability:.6g}",
            "raise --max-states, or lower --max-unlisted-probability",
        )
    # Solve with a growing tail until the gap is closed.
    program = _TailProgram(
        problem, merged_states, is_included, availability, counts_disconnected=counts_disconnected
    )
    # The bound ignores unlisted states, which add at most this much to the CVaR.
    unlisted_gap = merged_states.unlisted_probability / (1 - availability)
    incumbent: Guarantee | None = None
    while True:
        try:
            solution = program.solve(deadline - time.perf_counter())
        except SolverError:
            if incumbent is None:
                raise
            return incumbent
        # Lower bound on the CVaR from the duals; the tail grows by the states that limit them.
        weights, has_grown = program.divide_weights(solution)
        cvar_bound = tail_loss_bound(problem, merged_states, availability, solution.prices, weights)
        # CVaR of the rates: an upper bound on the smallest CVaR.
        rates = scale_to_capacities(problem, program.rates(solution.shares, demand))
        losses = demand_losses(
            survival_states,
            merged_states,
            demand,
            rates,
            is_included,
            counts_disconnected=counts_disconnected,
        )
        cvar_of_rates = cvar(losses.max(1, initial=0.0), merged_states, availability)
        if incumbent is None:
            survival_weights = program.weights_by_survival_state(weights)
            incumbent = Guarantee(
                rates,
                1 - cvar_of_rates,
                1 - cvar_bound,
                solution.prices,
                survival_weights,
                is_excluded,
            )
        # Keep the best rates and the best bound so far.
        if 1 - cvar_of_rates > incumbent.value:
            incumbent = dataclasses.replace(incumbent, rates=rates, value=1 - cvar_of_rates)
        if 1 - cvar_bound < incumbent.bound:
            survival_weights = program.weights_by_survival_state(weights)
            incumbent = dataclasses.replace(
                incumbent, bound=1 - cvar_bound, prices=solution.prices, weights=survival_weights
            )
        is_converged = incumbent.bound - incumbent.value <= unlisted_gap + gap
        if is_converged or not has_grown or time.perf_counter() >= deadline:
            return incumbent


class _Solution(NamedTuple):
    """Solution of the linear program with the current tail, over P paths and R loss rows.

    Attributes:
        shares: (P,) reserved rate of each path, as a share of its demand.
        prices: (E,) dual prices of the links, per Gbit/s.
        state: (R,) network state of each row; for a row that stands for all states outside of the
            tail with the same survival state, one of them.
        demand: (R,) demand of each row.
        is_outside: (R,) whether the row stands for states outside of the tail.
        weight: (R,) dual of each row.
    """

    shares: FloatArray
    prices: FloatArray
    state: Int64Array
    demand: Int64Array
    is_outside: BoolArray
    weight: FloatArray


class _TailProgram:
    """Linear program of the smallest CVaR, restricted to a growing tail of network states.

        min  a + sum_q p[q] u[q] / (1 - beta),
        u[q] >= 1 - r[d, s(d, q)] - a for each state q of the tail and demand d,
        0 >= 1 - r[d, s] - a for each survival state s of d that occurs outside of the tail,

    with link loads within capacities. p[q] is the probability of network state q, s(d, q) the
    survival state of demand d in it, r[d, s] the sum of the shares of demand d reserved on the
    paths that survive in s, and beta the availability. Variables: the reserved rates as shares of
    the demands, the level a, the excess losses u[q] of the states of the tail, and one more u for
    all unlisted states, whose loss is 1.

    Args:
        problem: one matrix.
        merged_states: the Q network states.
        is_included: (D,) whether the program includes a demand.
        availability: beta, in (0, 1).
        counts_disconnected: whether a demand without a surviving path has a loss of 1; otherwise
            it is ignored in such states.
    """

    def __init__(
        self,
        problem: Problem,
        merged_states: MergedStates,
        is_included: BoolArray,
        availability: float,
        *,
        counts_disconnected: bool,
    ) -> None:
        """Select the paths and demands of the program, and the states that are in the tail from the
        start.

        Args:
            problem: one matrix.
            merged_states: the Q network states.
            is_included: (D,) whether the program includes a demand.
            availability: share of the time, in (0, 1).
            counts_disconnected: whether a demand without a surviving path has a loss of 1;
                otherwise it is ignored in such states.
        """
        self._merged_states = merged_states
        # Largest dual weight (Q,) of each state, and of all unlisted states together.
        tail_time = 1 - availability
        self._max_weight = merged_states.probability / tail_time
        self._unlisted_weight = merged_states.unlisted_probability / tail_time
        # Columns: paths of the included demands, without links of capacity 0.
        path_links = path_links_of(problem.paths)
        self._num_paths = problem.paths.num_paths
        is_live_path = problem.path_mask[0].cpu().numpy().reshape(-1)
        included_paths = np.flatnonzero(
            is_included[path_links.slot // self._num_paths] & is_live_path[path_links.slot]
        )
        incidence = path_link_incidence(problem.paths)[included_paths]
        self._slot = path_links.slot[included_paths]
        self._capacity = capacity_of(problem)
        self._live_links = np.flatnonzero(self._capacity > 0)
        demand = demand_of(problem)
        # Link loads relative to capacity, so that all capacities are 1.
        loads = (
            sp.diags_array(demand[self._slot // self._num_paths]) @ incidence[:, self._live_links]
        )
        self._loads = (loads @ sp.diags_array(1 / self._capacity[self._live_links])).T.tocsr()
        # (D K,) column of each path slot, -1 for paths that are not in the program.
        self._column_of_slot = np.full(is_included.size * self._num_paths, -1, np.int64)
        self._column_of_slot[self._slot] = np.arange(len(included_paths))
        # (Q, D) whether a demand counts in a network state, and the key d 2^K + path set of the
        # survival state of demand d.
        self._counts_in_state = is_included & (counts_disconnected | (merged_states.path_set > 0))
        self._path_set_key = (
            np.arange(is_included.size) << self._num_paths
        ) + merged_states.path_set.astype(np.int64)
        # States in which a demand has no surviving path: no rates change the largest loss of 1.
        # They are in the tail from the beginning.
        is_disconnected = self._counts_in_state & (merged_states.path_set == 0)
        self._disconnected_states = np.flatnonzero(is_disconnected.any(1))
        self._disconnected_demand = is_disconnected[self._disconnected_states].argmax(1)
        self._in_tail = is_disconnected.any(1)

    def weights_by_survival_state(self, weights: sp.csr_array) -> FloatArray:
        """Sum weights of network states by the survival state of each demand.

        Args:
            weights: (Q, D) weight of each network state and demand.

        Returns:
            (D, 2^K) weight of each survival state.
        """
        entries = weights.tocoo()
        table = np.zeros(self._counts_in_state.shape[1] << self._num_paths)
        np.add.at(table, self._path_set_key[entries.row, entries.col], entries.data)
        return table.reshape(-1, 1 << self._num_paths)

    def rates(self, shares: FloatArray, demand: FloatArray) -> FloatArray:
        """Convert shares of the demands on the program's paths to rates on all candidate paths.

        Args:
            shares: (P,) reserved rate on each path of the program, as a share of its demand.
            demand: (D,) Gbit/s.

        Returns:
            (D, K) Gbit/s on each path.
        """
        path_rates = np.zeros(len(demand) * self._num_paths)
        path_rates[self._slot] = np.maximum(shares, 0.0) * demand[self._slot // self._num_paths]
        return path_rates.reshape(-1, self._num_paths)

    def solve(self, seconds: float) -> _Solution:
        """Solve the linear program with the current tail.

        Its variables are the reserved shares on P paths, the level a (value at risk), the excess
        loss u of each state of the tail, and that of all unlisted states together.

        Args:
            seconds: time limit.

        Raises:
            SolverError: the program was not solved in time.
        """
        # Loss rows, and the incidence (R, tail states) of the excess losses u: 1 where a row of the
        # tail belongs to a state.
        state, demand, is_outside = self._loss_rows()
        num_paths = len(self._slot)
        tail_states, tail_index = np.unique(state[~is_outside], return_inverse=True)
        state_incidence = sp.csr_array(
            (np.ones(len(tail_index)), (np.flatnonzero(~is_outside), tail_index)),
            shape=(len(state), len(tail_states)),
        )
        unit_column = np.ones((len(state), 1))
        unit_entry = np.ones((1, 1))
        # Minimise the CVaR: path shares cost 0, a costs 1, and the excess loss of a state its
        # probability / (1 - availability).
        costs = [[1.0], self._max_weight[tail_states], [self._unlisted_weight]]
        # Row blocks: link loads <= capacity, loss rows, and the loss of 1 in unlisted states.
        blocks = [
            [self._loads, None, None, None],
            [-self._path_survival(state, demand), -unit_column, -state_incidence, None],
            [None, -unit_entry, None, -unit_entry],
        ]
        result = solve_lp(
            np.concatenate([np.zeros(num_paths), *costs]),
            (
                sp.block_array(blocks, format="csr"),
                np.concatenate([np.ones(len(self._live_links)), np.full(len(state) + 1, -1.0)]),
            ),
            seconds=max(1.0, seconds),
        )
        shares = result.solution("tail-loss")[:num_paths]
        # Duals of the links, converted from relative loads to Gbit/s, and of the loss rows.
        prices = np.zeros(len(self._capacity))
        num_links = len(self._live_links)
        prices[self._live_links] = result.duals[:num_links] / self._capacity[self._live_links]
        weight = result.duals[num_links : num_links + len(state)]
        return _Solution(shares, prices, state, demand, is_outside, weight)

    def _loss_rows(self) -> tuple[Int64Array, Int64Array, BoolArray]:
        """Return the loss rows of the linear program.

        A survival state that occurs outside of the tail has one row, with its most probable network
        state there. A survival state that occurs only in the tail has one row for each of its
        network states.

        Returns:
            network state (R,) and demand (R,) of each row, and whether the row stands for states
            outside of the tail (R,).
        """
        counts_in_state = self._counts_in_state
        path_set_key = self._path_set_key
        # One row for each survival state outside of the tail; states are sorted by probability.
        state, demand = np.nonzero(counts_in_state & ~self._in_tail[:, None])
        _, first_index = np.unique(path_set_key[state, demand], return_index=True)
        state = state[first_index]
        demand = demand[first_index]
        occurs_outside = np.zeros(counts_in_state.shape[1] << self._num_paths, bool)
        occurs_outside[path_set_key[state, demand]] = True
        # One row for each demand and network state of the tail, unless its survival state also
        # occurs outside of the tail.
        tail_state, tail_demand = np.nonzero(counts_in_state & self._in_tail[:, None])
        only_in_tail = ~occurs_outside[path_set_key[tail_state, tail_demand]]
        row_is_outside = np.arange(len(state) + int(only_in_tail.sum())) < len(state)
        return (
            np.append(state, tail_state[only_in_tail]),
            np.append(demand, tail_demand[only_in_tail]),
            row_is_outside,
        )

    def _path_survival(self, state: Int64Array, demand: Int64Array) -> sp.csr_array:
        """Return the matrix (R, P) of surviving paths: 1 where a path of a row's demand survives in
        the row's network state.

        Args:
            state: (R,) network state of each row.
            demand: (R,) demand of each row.
        """
        path_set = self._merged_states.path_set[state, demand]
        row, path = np.nonzero((path_set[:, None] >> np.arange(self._num_paths)) & 1)
        columns = self._column_of_slot[demand[row] * self._num_paths + path]
        shape = (len(state), len(self._slot))
        return sp.csr_array((np.ones(len(row)), (row, columns)), shape=shape)

    def divide_weights(self, solution: _Solution) -> tuple[sp.csr_array, bool]:
        """Divide the duals of the loss rows over network states, by a maximum flow.

        The weights of a state may sum to at most its probability / (1 - availability). If these
        limits do not admit all weight, the states of the minimum cut join the tail.

        Args:
            solution: solution of the program with the current tail.

        Returns:
            weights (Q, D) for :func:`tail_loss_bound`, and whether the tail has grown.
        """
        path_set = self._merged_states.path_set
        # Rows of the tail assign their duals to their own states, which have less weight left.
        has_weight = solution.weight > 0
        is_tail_row = has_weight & ~solution.is_outside
        residual_weight = self._max_weight - np.bincount(
            solution.state[is_tail_row], solution.weight[is_tail_row], len(self._max_weight)
        )
        # The other rows divide their duals over all states with the same survival state.
        outside_rows = np.flatnonzero(has_weight & solution.is_outside)
        states_of_row = [
            np.flatnonzero(path_set[:, demand] == path_set[state, demand])
            for state, demand in zip(
                solution.state[outside_rows], solution.demand[outside_rows], strict=True
            )
        ]
        division = divide(solution.weight[outside_rows], states_of_row, residual_weight.clip(min=0))
        # States of the minimum cut join the tail.
        has_grown = bool((division.limiting & ~self._in_tail).any())
        self._in_tail = self._in_tail | division.limiting
        state = np.append(solution.state[is_tail_row], division.state)
        demand = np.append(
            solution.demand[is_tail_row], solution.demand[outside_rows][division.row]
        )
        weight = np.append(solution.weight[is_tail_row], division.weight)
        # All weights may sum to 1: assign the rest to states in which a demand has no path, in
        # their order, up to the limit of each state.
        spare_weight = (self._max_weight - np.bincount(state, weight, len(self._max_weight)))[
            self._disconnected_states
        ]
        spare_weight = spare_weight.clip(min=0)
        added_weight = np.clip(
            1 - weight.sum() - (np.cumsum(spare_weight) - spare_weight), 0, spare_weight
        )
        state = np.append(state, self._disconnected_states)
        demand = np.append(demand, self._disconnected_demand)
        weight = np.append(weight, added_weight)
        return sp.csr_array((weight, (state, demand)), shape=path_set.shape), has_grown


class Division(NamedTuple):
    """Weights of R rows, divided over network states in n parts.

    Attributes:
        row: (n,) row of each part.
        state: (n,) network state of each part.
        weight: (n,) weight of each part.
        limiting: (Q,) whether a state is on the source side of the minimum cut, so that its limit
            prevents the division of all weight; all false if all weight is divided.
    """

    row: Int64Array
    state: Int64Array
    weight: FloatArray
    limiting: BoolArray


def divide(
    weight: FloatArray, states_of_row: Sequence[Int64Array], state_limit: FloatArray
) -> Division:
    """Divide weights over network states within the limits of the states, by a maximum flow.

    Args:
        weight: (R,) weight of each row, with a sum of at most 1.
        states_of_row: for each row, the network states over which its weight may be divided.
        state_limit: (Q,) largest sum of weights of a state.
    """
    # A limit of 1 admits all weight: a row with such a state needs no flow, and its weight is
    # assigned to the first such state.
    is_unlimited = state_limit >= 1
    has_unlimited = np.array(
        [bool(is_unlimited[states].any()) for states in states_of_row], dtype=bool
    )
    unlimited_rows = np.flatnonzero(has_unlimited)
    unlimited_row_states = [states_of_row[index] for index in unlimited_rows.tolist()]
    first_state = np.array(
        [states[is_unlimited[states].argmax()] for states in unlimited_row_states], dtype=np.int64
    )
    limited_rows = np.flatnonzero(~has_unlimited)
    if not len(limited_rows):
        limiting = np.zeros(len(state_limit), dtype=bool)
        return Division(unlimited_rows, first_state, weight[unlimited_rows], limiting)
    # Maximum flow of the other rows.
    flow = _flow_over_states(
        weight[limited_rows], [states_of_row[index] for index in limited_rows.tolist()], state_limit
    )
    return Division(
        np.append(unlimited_rows, limited_rows[flow.row]),
        np.append(first_state, flow.state),
        np.append(weight[unlimited_rows], flow.weight),
        flow.limiting,
    )


def _flow_over_states(
    weight: FloatArray, states_of_row: Sequence[Int64Array], state_limit: FloatArray
) -> Division:
    """Divide weights of at least one row by a maximum flow from the rows to their states.

    Args:
        weight: (R,) weight of each row.
        states_of_row: for each row, the network states over which its weight may be divided.
        state_limit: (Q,) largest sum of weights of a state.
    """
    # Imported here, since it loads slowly.
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    # Nodes of the flow network: source 0, rows 1..R, states R + 1..R + Q, sink.
    num_rows = len(weight)
    num_states = len(state_limit)
    row = np.repeat(np.arange(num_rows), [len(states) for states in states_of_row])
    state = np.concatenate(states_of_row)
    sink = 1 + num_rows + num_states
    row_supply = np.floor(weight * _FLOW_UNITS_PER_WEIGHT)
    state_capacity = np.ceil(np.minimum(state_limit, 1.0) * _FLOW_UNITS_PER_WEIGHT) + 1
    # Arcs source -> row -> state -> sink with integer capacities; capacities of states are rounded
    # up, so that rounding limits no weight.
    tail = np.concatenate(
        [np.zeros(num_rows, np.int64), 1 + row, 1 + num_rows + np.arange(num_states)]
    )
    head = np.concatenate(
        [1 + np.arange(num_rows), 1 + num_rows + state, np.full(num_states, sink)]
    )
    arc_capacity = np.concatenate([row_supply, row_supply[row], state_capacity]).astype(np.int32)
    graph = sp.csr_array((arc_capacity, (tail, head)), shape=(sink + 1, sink + 1))
    flow: Any = maximum_flow(graph, 0, sink)
    # Minimum cut: unless all weight flows, the states that the source reaches in the residual graph
    # limit it.
    limiting = np.zeros(num_states, dtype=bool)
    if flow.flow_value < row_supply.sum():
        residual = graph - flow.flow
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, 0, return_predecessors=False)
        is_state = (reached > num_rows) & (reached < sink)
        limiting[reached[is_state] - 1 - num_rows] = True
    # Flows from rows to states are the parts.
    flows = flow.flow.tocoo()
    is_row_flow = (flows.row >= 1) & (flows.row <= num_rows) & (flows.data > 0)
    return Division(
        flows.row[is_row_flow] - 1,
        flows.col[is_row_flow] - 1 - num_rows,
        flows.data[is_row_flow] / _FLOW_UNITS_PER_WEIGHT,
        limiting,
    )
