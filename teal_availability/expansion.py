"""Capacity expansion: the least capacity to buy so that a network meets all bandwidth guarantees.

Each request j uses one of its protection options w (:mod:`teal_availability.protection_options`),
which loads links by a[w, e] Gbit/s. A link and its opposite one are a pair, expanded together: a
Gbit/s of pair p costs k[p] and adds a Gbit/s to both. The mixed-integer program is

    min  sum_p k[p] u[p]   over u >= 0 and one option w(j) of each request,
    sum_j a[w(j), e] <= capacity[e] + u[p(e)]  for each link e.

By duality, for any link prices y >= 0 with  sum of y over the links of p <= k[p],  no expansion
costs less than

    sum_j min_w sum_e a[w, e] y[e] - sum_e capacity[e] y[e].

The prices are the duals of the linear relaxation. Its solution is rounded and improved by local
search (each request in turn moves to its cheapest option beside the others); small programs are
solved as integer programs. Entry point: :func:`expansion`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from teal import Problem
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.lp import RangeConstraint, solve_lp, solve_milp
from teal_availability.matrix import capacity_of
from teal_availability.protection_options import (
    MAX_INTEGER_OPTIONS,
    ProtectionOption,
    Request,
    all_feasible_options,
    option_loads,
    options_by_request,
)
from teal_availability.survival import SurvivalStates
from teal_availability.tolerances import CAPACITY_TOLERANCE

# Rounds of the local search, in each of which every request may move once; seldom more than ten
# are needed.
_MAX_ROUNDS = 50
# Minimum relative saving of a change of options, above rounding.
_MIN_RELATIVE_SAVING = 1e-9
# Relative gap of the integer program.
_RELATIVE_GAP = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """Capacity expansion that meets all feasible requests at once.

    Attributes:
        option: protection option of each request; None where no option reaches its availability.
        load: (E,) Gbit/s reserved on each link.
        added_capacity: (C,) Gbit/s to add to each pair of links.
        cost: total cost.
        bound: lower bound on the cost of any expansion with these options.
        link_prices: (E,) dual prices of the links, which prove a part of the bound.
    """

    option: tuple[ProtectionOption | None, ...]
    load: FloatArray
    added_capacity: FloatArray
    cost: float
    bound: float
    link_prices: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class LinkPairs:
    """C pairs of opposite links, which are expanded together.

    Attributes:
        order: (E,) link indices, pair by pair.
        start: (C,) position of each pair's first link in ``order``.
        pair_of_link: (E,) pair of each link.
        cost: (C,) cost of a Gbit/s on both links of each pair.
    """

    order: Int64Array
    start: Int64Array
    pair_of_link: Int64Array
    cost: FloatArray

    @classmethod
    def from_links(cls, pairs: Sequence[Sequence[int]], cost: FloatArray) -> LinkPairs:
        """Build the pairs.

        Args:
            pairs: link indices of each of C pairs; every link is in one pair.
            cost: (C,) cost above 0 of a Gbit/s on both links of each pair.
        """
        # Number of links of each pair.
        pair_size = np.array([len(links) for links in pairs])
        order = np.concatenate([np.asarray(links, dtype=np.int64) for links in pairs])
        pair_of_link = np.empty(len(order), dtype=np.int64)
        pair_of_link[order] = np.repeat(np.arange(len(pairs)), pair_size)
        return cls(order, np.cumsum(pair_size) - pair_size, pair_of_link, cost)

    def required_expansion(self, shortfall: FloatArray) -> FloatArray:
        """Return the expansion (..., C) in Gbit/s of each pair that covers a shortfall of its
        links.

        It is the largest shortfall on the links of the pair, at least 0.

        Args:
            shortfall: (..., E) Gbit/s that each link lacks; negative for spare capacity.
        """
        max_shortfall = np.maximum.reduceat(shortfall[..., self.order], self.start, axis=-1)
        return np.maximum(max_shortfall, 0.0)

    def expansion_for_load(self, load: FloatArray, capacity: FloatArray) -> FloatArray:
        """Return the expansion (C,) in Gbit/s of each pair that link loads need.

        An excess over the capacity within the capacity tolerance needs no expansion.

        Args:
            load: (E,) Gbit/s.
            capacity: (E,) Gbit/s.
        """
        exceeds = load > capacity * (1 + CAPACITY_TOLERANCE)
        return self.required_expansion(np.where(exceeds, load - capacity, 0.0))


def bound_by_prices(
    option_request: Int64Array,
    loads: sp.csr_array,
    capacity: FloatArray,
    pairs: LinkPairs,
    prices: FloatArray,
) -> float:
    """Return a lower bound on the cost of any expansion, by weak duality.

    For link prices y[e] >= 0 that sum to at most the cost of each pair, the bound is

        sum_j min_w sum_e a[w, e] y[e] - sum_e capacity[e] y[e]

    over requests j, options w of request j, and links e. a[w, e] is the rate that option w reserves
    on link e. Prices that are too high are scaled down.

    Args:
        option_request: (W,) request of each option.
        loads: (W, E) Gbit/s that each option reserves on each link.
        capacity: (E,) Gbit/s.
        pairs: pairs of links that are expanded together.
        prices: (E,) link prices, any numbers; negative ones count as 0.
    """
    prices = np.maximum(prices, 0.0)
    # Scale the prices of each pair down to its cost, so that they are dual feasible.
    pair_price = np.bincount(pairs.pair_of_link, prices, minlength=len(pairs.cost))
    price_scale = np.divide(
        pairs.cost, pair_price, out=np.ones_like(pair_price), where=pair_price > pairs.cost
    )
    prices = prices * price_scale[pairs.pair_of_link]
    # Cost (J,) of the cheapest option of each request; infinite for requests without options.
    option_cost = loads @ prices
    min_request_cost = np.full(int(option_request.max(initial=-1)) + 1, np.inf)
    np.minimum.at(min_request_cost, option_request, option_cost)
    return max(
        0.0, float(min_request_cost[np.isfinite(min_request_cost)].sum() - capacity @ prices)
    )


def expansion(
    problem: Problem,
    survival_states: SurvivalStates,
    requests: Sequence[Request],
    pairs: LinkPairs,
    seconds: float = 30.0,
) -> Expansion:
    """Find a low-cost expansion that meets all requests, and a lower bound on its cost.

    Args:
        problem: the network; its demands include the node pairs of all requests.
        survival_states: probabilities of its survival states.
        requests: the requests; ``is_sold`` and ``value`` are ignored.
        pairs: pairs of links that are expanded together, with the cost of a Gbit/s.
        seconds: approximate time limit of the local search and the integer program, after the
            relaxation.

    Raises:
        SolverError: the relaxation was not solved.
    """
    capacity = capacity_of(problem)
    options = all_feasible_options(problem, survival_states, requests)
    # No request has an option: no expansion is needed, and cost and bound are 0.
    if not options:
        no_expansion = np.zeros(len(pairs.cost))
        no_load = np.zeros(len(capacity))
        return Expansion((None,) * len(requests), no_load, no_expansion, 0.0, 0.0, no_load)
    # (W, E) Gbit/s that each option reserves on each link, and (W,) its request.
    loads = option_loads(problem, requests, options)
    option_request = np.array([selected.request_index for selected in options], dtype=np.int64)
    # Linear relaxation, with a dual bound.
    fraction, link_prices = _solve_relaxation(option_request, loads, capacity, pairs)
    bound = bound_by_prices(option_request, loads, capacity, pairs, link_prices)
    deadline = time.perf_counter() + seconds
    # Round to the largest fraction of each request, then improve by local search.
    request_options = [np.array(indices) for indices in options_by_request(options).values()]
    chosen = np.array([indices[fraction[indices].argmax()] for indices in request_options])
    chosen = _improve_by_moves(
        request_options, chosen, loads, capacity, pairs, loads @ link_prices, deadline
    )
    cost = _expansion_cost(loads, chosen, capacity, pairs)
    # Integer program, if it is small and the gap is still open.
    if len(options) <= MAX_INTEGER_OPTIONS and cost > bound * (1 + _RELATIVE_GAP):
        remaining_s = max(0.1, deadline - time.perf_counter())
        integer_choice, integer_bound = _solve_integer(
            option_request, loads, capacity, pairs, remaining_s
        )
        bound = max(bound, integer_bound)
        if (
            integer_choice is not None
            and _expansion_cost(loads, integer_choice, capacity, pairs) < cost
        ):
            chosen = integer_choice
    # Expansion for the selected options.
    load = np.asarray(loads[chosen].sum(0)).reshape(-1)
    added_capacity = pairs.expansion_for_load(load, capacity)
    cost = float(added_capacity @ pairs.cost)
    selected: list[ProtectionOption | None] = [None] * len(requests)
    for option_index in chosen.tolist():
        selected[options[option_index].request_index] = options[option_index]
    return Expansion(tuple(selected), load, added_capacity, cost, min(bound, cost), link_prices)


def _expansion_cost(
    loads: sp.csr_array, chosen: Int64Array, capacity: FloatArray, pairs: LinkPairs
) -> float:
    """Return the cost of the expansion that the loads of the chosen options need.

    Args:
        loads: (W, E) Gbit/s that each option reserves on each link.
        chosen: indices of the chosen options.
        capacity: (E,) Gbit/s.
        pairs: pairs of links that are expanded together.
    """
    load = np.asarray(loads[chosen].sum(0)).reshape(-1)
    return float(pairs.expansion_for_load(load, capacity) @ pairs.cost)


def _constraint_rows(
    option_request: Int64Array, loads: sp.csr_array, pairs: LinkPairs
) -> tuple[sp.csr_array, sp.csr_array]:
    """Return the constraint rows of the programs over W options and the expansion of C pairs.

    Args:
        option_request: (W,) request of each option.
        loads: (W, E) reserved rates of the options.
        pairs: pairs of links that are expanded together.

    Returns:
        rows (E, W + C) with the load less the expansion of each link, and rows (J, W + C) with the
        number of chosen options of each of J requests.
    """
    # A Gbit/s of expansion of a pair relieves its links by a Gbit/s; each option counts once in the
    # row of its request.
    num_options, num_links = loads.shape
    expansion_columns = sp.csr_array(
        (-np.ones(num_links), (np.arange(num_links), pairs.pair_of_link)),
        shape=(num_links, len(pairs.cost)),
    )
    requests, request_row = np.unique(option_request, return_inverse=True)
    request_rows = sp.csr_array(
        (np.ones(num_options), (request_row, np.arange(num_options))),
        shape=(len(requests), num_options + len(pairs.cost)),
    )
    return sp.hstack([loads.T, expansion_columns], format="csr"), request_rows


def _solve_relaxation(
    option_request: Int64Array, loads: sp.csr_array, capacity: FloatArray, pairs: LinkPairs
) -> tuple[FloatArray, FloatArray]:
    """Solve the linear relaxation: fractions of options instead of one option per request.

    Args:
        option_request: (W,) request of each option.
        loads: (W, E) Gbit/s that each option reserves on each link.
        capacity: (E,) Gbit/s.
        pairs: pairs of links that are expanded together.

    Returns:
        fraction (W,) of each option, and dual prices (E,) of the links, cost per Gbit/s.
    """
    num_options = len(option_request)
    # Scale rates and costs by their means, so that HiGHS's absolute tolerances are small.
    rate_unit = float(loads.data.mean())
    capacity_rows, request_rows = _constraint_rows(option_request, loads / rate_unit, pairs)
    cost_unit = float(pairs.cost.mean())
    cost = np.concatenate([np.zeros(num_options), pairs.cost / cost_unit])
    # Minimise the cost of the expansion; the fractions of each request's options sum to 1.
    result = solve_lp(
        cost,
        (capacity_rows, capacity / rate_unit),
        (request_rows, np.ones(request_rows.shape[0])),
    )
    return result.solution("expansion")[:num_options], result.duals * cost_unit


def _solve_integer(
    option_request: Int64Array,
    loads: sp.csr_array,
    capacity: FloatArray,
    pairs: LinkPairs,
    seconds: float,
) -> tuple[Int64Array | None, float]:
    """Solve the mixed-integer program with one option per request.

    Args:
        option_request: (W,) request of each option.
        loads: (W, E) Gbit/s that each option reserves on each link.
        capacity: (E,) Gbit/s.
        pairs: pairs of links that are expanded together.
        seconds: time limit.

    Returns:
        indices of the chosen options, None without a solution, and a lower bound on the cost.
    """
    num_options = len(option_request)
    # Scale rates and costs by their means, so that HiGHS's absolute tolerances are small.
    rate_unit = float(loads.data.mean())
    capacity_rows, request_rows = _constraint_rows(option_request, loads / rate_unit, pairs)
    cost_unit = float(pairs.cost.mean())
    cost = np.concatenate([np.zeros(num_options), pairs.cost / cost_unit])
    # Options are binary; the expansion is continuous.
    is_integer: BoolArray = np.arange(len(cost)) < num_options
    result = solve_milp(
        cost,
        [
            RangeConstraint(capacity_rows, high=capacity / rate_unit),
            RangeConstraint(request_rows, low=1.0, high=1.0),
        ],
        is_integer.astype(float),
        high=np.where(is_integer, 1.0, np.inf),
        seconds=seconds,
        relative_gap=_RELATIVE_GAP,
    )
    # Reject a choice without exactly one option per request.
    chosen = None if result.x is None else np.flatnonzero(result.x[:num_options] > 0.5)
    if chosen is not None and len(chosen) != request_rows.shape[0]:
        chosen = None
    # The bound of the scaled program is in its units of rate and cost.
    return chosen, max(0.0, float(result.bound) * rate_unit * cost_unit)


def _improve_by_moves(
    request_options: Sequence[Int64Array],
    chosen: Int64Array,
    loads: sp.csr_array,
    capacity: FloatArray,
    pairs: LinkPairs,
    option_price: FloatArray,
    deadline: float,
) -> Int64Array:
    """Improve a choice of options by local search.

    Each request in turn changes to the option with the smallest total cost while the other requests
    keep theirs; among options of equal cost, to the one with the lowest price. The search ends when
    no request changes, or after ``_MAX_ROUNDS`` rounds.

    Args:
        request_options: option indices of each of J requests.
        chosen: (J,) option of each request.
        loads: (W, E) Gbit/s that each option reserves on each link.
        capacity: (E,) Gbit/s.
        pairs: pairs of links that are expanded together.
        option_price: (W,) price of each option: sum of reserved rates times dual prices of the
            links.
        deadline: time (``time.perf_counter``) after which no round begins.

    Returns:
        (J,) option of each request.
    """
    chosen = chosen.copy()
    # (E,) load less capacity of each link.
    shortfall = np.asarray(loads[chosen].sum(0)).reshape(-1) - capacity
    for _ in range(_MAX_ROUNDS):
        has_moved = False
        for request_index, alternatives in enumerate(request_options):
            if len(alternatives) == 1:
                continue
            # Expansion cost with each alternative, while the other requests keep their options.
            alternative_loads = loads[alternatives].toarray()
            current_position = int(np.flatnonzero(alternatives == chosen[request_index])[0])
            shortfall_without = shortfall - alternative_loads[current_position]
            alternative_costs = (
                pairs.required_expansion(shortfall_without + alternative_loads) @ pairs.cost
            )
            # A move must save cost beyond rounding, or lower the price at equal cost.
            is_improvement = alternative_costs < alternative_costs[
                current_position
            ] - _MIN_RELATIVE_SAVING * (1 + alternative_costs[current_position])
            is_improvement |= (alternative_costs <= alternative_costs[current_position]) & (
                option_price[alternatives] < option_price[alternatives[current_position]]
            )
            if not is_improvement.any():
                continue
            best_position = min(
                np.flatnonzero(is_improvement).tolist(),
                key=lambda i: (alternative_costs[i], option_price[alternatives[i]]),
            )
            shortfall = shortfall_without + alternative_loads[best_position]
            chosen[request_index] = alternatives[best_position]
            has_moved = True
        if not has_moved or time.perf_counter() > deadline:
            break
    return chosen
