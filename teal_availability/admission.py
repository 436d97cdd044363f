"""Admission control of bandwidth guarantees: which requests a network can grant at once, and at
which price.

Each granted request uses one of its protection options
(:mod:`teal_availability.protection_options`). Reserved rates never exceed capacities, so that all
granted guarantees hold at once. The selection is a packing (integer) program: request j has value
v[j] and gets at most one of its options c, which reserves a[c, e] Gbit/s on link e. By Lagrangian
duality, for any link prices y >= 0, no set of requests has a larger value than

    sum_e capacity[e] y[e] + sum_j max(0, max_c v[j] - sum_e a[c, e] y[e]),

where a sold request counts even if its term is negative. The price of a request is the least sum_e
a[c, e] y[e] over its options: the cost of its reservation at the dual prices of the linear
relaxation. Entry point: :func:`select_guarantees`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from teal import InputError, Problem, SolverError
from teal.runtime.arrays import FloatArray, Int64Array
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

ACCEPTED = "accepted"
REFUSED = "refused"
SOLD = "sold"
IMPOSSIBLE = "impossible"
# Relative gap of the integer program, unless the smallest value needs a smaller gap.
_RELATIVE_GAP = 1e-6
# HiGHS's tolerance of a reduced cost, in mean values: the bound is raised by it for each request.
_DUAL_TOLERANCE = 1e-7


@dataclasses.dataclass(frozen=True, eq=False)
class Admission:
    """Requests that are granted at once, with a price for each request and an upper bound.

    Attributes:
        status: answer to each of J requests: accepted, refused, sold, or impossible (no protection
            option reaches its availability).
        option: protection option of each granted request; None for the others.
        price: (J,) price of each request: the smallest sum, over its options, of reserved Gbit/s
            times link prices; infinite without an option.
        value: sum of the values of the granted requests.
        bound: upper bound on the value of any selection of these options that keeps the sold
            requests.
        link_prices: (E,) dual prices of the links, value per Gbit/s.
    """

    status: tuple[str, ...]
    option: tuple[ProtectionOption | None, ...]
    price: FloatArray
    value: float
    bound: float
    link_prices: FloatArray


def select_guarantees(
    problem: Problem,
    survival_states: SurvivalStates,
    requests: Sequence[Request],
    seconds: float = 30.0,
) -> Admission:
    """Select the requests to grant, with the largest total value.

    Solves the linear relaxation, rounds it greedily, and solves the integer program if it is small
    enough.  Then further requests that fit are added, and reservations are reduced.

    Args:
        problem: the network; its demands include the node pairs of all requests.
        survival_states: probabilities of its survival states.
        requests: the requests.
        seconds: time limit of the integer program.

    Raises:
        InputError: the sold requests cannot all be kept on the candidate paths.
        SolverError: the program was not solved, or no selection with the sold requests was found.
    """
    # Include the tolerance in the capacity, so that value and bound belong to one program.
    capacity = capacity_of(problem) * (1 + CAPACITY_TOLERANCE)
    # The W protection options that fit into an empty network, their reservations (W, E) in Gbit/s,
    # and the request (W,) of each.
    options = all_feasible_options(problem, survival_states, requests)
    feasible_requests = {option.request_index for option in options}
    loads = option_loads(problem, requests, options)
    fitting_options = np.flatnonzero(_max_utilisation(loads, capacity) <= 1)
    options = [options[i] for i in fitting_options.tolist()]
    loads = loads[fitting_options]
    option_request = np.array([option.request_index for option in options], dtype=np.int64)
    _check_sold(requests, feasible_requests, option_request)
    if not options:
        return _admission(
            requests, feasible_requests, options, [], loads, capacity, np.zeros(len(capacity)), 0.0
        )
    # Linear relaxation: fractions of the options and link prices; an incumbent by rounding.
    program = _PackingProgram(requests, option_request, loads, capacity)
    fraction, link_prices = program.relax()
    chosen = _round_greedily(requests, options, loads, capacity, fraction, link_prices)
    # Integer program, where small.
    bound = math.inf
    if len(options) <= MAX_INTEGER_OPTIONS:
        chosen, bound = program.improve(chosen, seconds)
    if chosen is None:
        raise SolverError(
            "admission: the time limit passed before a selection with all sold promises was found"
        )
    # Improve the incumbent: grant further requests that fit, then cheaper options.
    chosen = _add_fitting_requests(requests, options, loads, capacity, chosen)
    chosen = _reduce_reservations(options, loads, capacity, chosen)
    return _admission(
        requests, feasible_requests, options, chosen, loads, capacity, link_prices, bound
    )


class _PackingProgram:
    """Packing (integer) program of J requests with W protection options over E links.

        max  sum_c value[j(c)] z[c]   subject to  sum_c a[c, e] z[c] <= capacity[e] for each link e,
        sum of z[c] over the options c of a request <= 1, or = 1 for sold requests,

    with z[c] = 1 if option c is chosen, else 0. j(c) is the request of option c, and a[c, e] the
    rate that option c reserves on link e.

    Args:
        requests: the requests.
        option_request: (W,) index of the request of each option, at least one.
        loads: (W, E) Gbit/s that each option reserves.
        capacity: (E,) Gbit/s.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        option_request: Int64Array,
        loads: sp.csr_array,
        capacity: FloatArray,
    ) -> None:
        """Build the constraint matrices, scaled for HiGHS.

        Args:
            requests: the J requests.
            option_request: (W,) index of the request of each option, at least one.
            loads: (W, E) Gbit/s that each option reserves.
            capacity: (E,) Gbit/s.
        """
        self._option_request = option_request
        self._loads = loads
        self._capacity = capacity
        # (J,) value of each request, and whether it is sold.
        self._values = np.array([request.value for request in requests])
        self._is_sold = np.array([request.is_sold for request in requests])
        num_options = len(option_request)
        # (J, W) 1 where an option belongs to a request.
        self._request_options = sp.csr_array(
            (np.ones(num_options), (option_request, np.arange(num_options))),
            shape=(len(requests), num_options),
        )
        # Divide loads by the capacities of the links that have any: HiGHS's tolerances are then
        # small in any unit.
        self._usable_links = np.flatnonzero(capacity > 0)
        self._scaled_loads = (
            loads[:, self._usable_links] @ sp.diags_array(1 / capacity[self._usable_links])
        ).T.tocsr()
        # Scale values by their geometric mean: 1e8 and 1 are then both far from HiGHS's tolerances.
        self._value_unit = float(np.exp(np.log(self._values).mean()))

    def relax(self) -> tuple[FloatArray, FloatArray]:
        """Solve the linear relaxation, in which z[c] may be any number from 0 to 1.

        Returns:
            fraction (W,) of each option, and dual prices (E,) of the links, value per Gbit/s.

        Raises:
            InputError: the sold requests cannot all be kept by these options.
            SolverError: HiGHS failed.
        """
        is_sold = self._is_sold
        usable_links = self._usable_links
        # Maximise the value of the fractions: relative link loads and the sum per request are at
        # most 1, and the fractions of a sold request sum to 1.
        relaxation = solve_lp(
            -self._values[self._option_request] / self._value_unit,
            (
                sp.vstack([self._scaled_loads, self._request_options[~is_sold]], format="csr"),
                np.ones(len(usable_links) + int((~is_sold).sum())),
            ),
            (self._request_options[is_sold], np.ones(int(is_sold.sum())))
            if is_sold.any()
            else None,
            by_interior_points=len(self._option_request) > MAX_INTEGER_OPTIONS,
        )
        if relaxation.is_infeasible:
            raise _infeasible_sold_error()
        fraction = relaxation.solution("admission")
        # Duals of the scaled rows, converted to value per Gbit/s.
        capacity = self._capacity
        link_prices = np.zeros(len(capacity))
        link_prices[usable_links] = (
            relaxation.duals[: len(usable_links)] * self._value_unit / capacity[usable_links]
        )
        return fraction, link_prices

    def improve(
        self, incumbent: list[int] | None, seconds: float
    ) -> tuple[list[int] | None, float]:
        """Solve the integer program, and keep the better one of its solution and the incumbent.

        Args:
            incumbent: indices of chosen options; None for none.
            seconds: time limit.

        Returns:
            indices of the chosen options, None if there are none, and an upper bound on the value.

        Raises:
            InputError: the sold requests cannot all be kept by these options.
        """
        values = self._values
        option_request = self._option_request
        num_options = len(option_request)
        # The relative gap must stay below the smallest value over the total, or the solver might
        # refuse the request of the smallest value although it fits.
        min_value_share = float(values.min() / values.sum())
        # Maximise the value; all variables are integers, 0 or 1: whether an option is chosen.
        result = solve_milp(
            -values[option_request] / self._value_unit,
            [
                RangeConstraint(self._scaled_loads, high=1.0),
                RangeConstraint(self._request_options, low=self._is_sold.astype(float), high=1.0),
            ],
            np.ones(num_options),
            high=1.0,
            seconds=seconds,
            relative_gap=min(_RELATIVE_GAP, 0.5 * min_value_share),
        )
        if result.is_infeasible and incumbent is None:
            raise _infeasible_sold_error()
        # Upper bound in the unit of the values, raised by HiGHS's tolerance.
        bound = (-result.bound + _DUAL_TOLERANCE * len(values)) * self._value_unit
        integer_choice = [] if result.x is None else np.flatnonzero(result.x > 0.5).tolist()
        # Accept the solution if it keeps all capacities exactly (HiGHS allows tolerances) and has a
        # larger value than the incumbent.
        fits_capacity = bool((self._loads[integer_choice].sum(0) <= self._capacity).all())
        is_better = (
            incumbent is None
            or values[option_request[integer_choice]].sum()
            > values[option_request[incumbent]].sum()
        )
        replaces_incumbent = result.x is not None and fits_capacity and is_better
        return integer_choice if replaces_incumbent else incumbent, bound


def _max_utilisation(loads: sp.csr_array, capacity: FloatArray) -> FloatArray:
    """Return the largest link utilisation (W,) of each option alone.

    Args:
        loads: (W, E) Gbit/s that each option reserves; over a link of capacity 0 the result is
            infinite.
        capacity: (E,) Gbit/s.
    """
    inverse_capacity = np.full_like(capacity, np.inf)
    np.divide(1.0, capacity, out=inverse_capacity, where=capacity > 0)
    utilisation = np.zeros(loads.shape[0])
    entries = loads.tocoo()
    np.maximum.at(utilisation, entries.row, entries.data * inverse_capacity[entries.col])
    return utilisation


def _check_sold(
    requests: Sequence[Request], feasible_requests: set[int], option_request: Int64Array
) -> None:
    """Raise InputError if a sold request cannot be kept even in an empty network.

    Args:
        requests: the requests.
        feasible_requests: indices of requests with an option that reaches their availability.
        option_request: (W,) request of each option that fits into an empty network.
    """
    is_sold = np.array([request.is_sold for request in requests])
    for index in np.flatnonzero(
        is_sold & ~np.isin(np.arange(len(requests)), option_request)
    ).tolist():
        request = requests[index]
        explanation = (
            "the promise is sold, but no protection option on the candidate paths reaches the "
            f"availability of {request.availability:.6g}"
        )
        if index in feasible_requests:
            explanation = (
                f"the promise is sold, but no protection option for {request.rate:.6g} Gbit/s fits "
                "into an empty network"
            )
        raise InputError.invalid("promises", f"{request.source} -> {request.target}", explanation)


def _infeasible_sold_error() -> InputError:
    """Return the error to raise if the sold requests cannot all be kept within the capacities."""
    return InputError.invalid(
        "promises",
        "sold",
        "the sold promises cannot all be kept within the capacities; raise --num-paths, or mark "
        "fewer promises as sold",
    )


def _round_greedily(
    requests: Sequence[Request],
    options: Sequence[ProtectionOption],
    loads: sp.csr_array,
    capacity: FloatArray,
    fraction: FloatArray,
    link_prices: FloatArray,
) -> list[int] | None:
    """Round the linear relaxation greedily to options that fit together, at most one per request.

    Requests are served in this order: sold ones first, then by descending fraction in the
    relaxation, then by ascending ratio of price to value. Each gets its first option that fits into
    the residual capacities.

    Args:
        requests: the requests.
        options: the W options.
        loads: (W, E) Gbit/s that each option reserves.
        capacity: (E,) Gbit/s.
        fraction: (W,) fraction of each option in the relaxation.
        link_prices: (E,) dual prices of the links, value per Gbit/s.

    Returns:
        indices of the chosen options; None if a sold request does not fit.
    """
    # Sum of the reservations of each option at the link prices.
    option_cost = loads @ link_prices
    residual = capacity.copy()
    options_of_request = options_by_request(options)

    def service_order(request_index: int) -> tuple[float, ...]:
        """Return the sort key of a request: the first one in ascending order is served first."""
        alternatives = options_of_request[request_index]
        return (
            -float(requests[request_index].is_sold),
            -round(float(fraction[alternatives].sum()), 6),
            float(option_cost[alternatives].min()) / requests[request_index].value,
        )

    # Choose the first option of each request that fits: by descending fraction, ascending price.
    chosen = []
    for request_index in sorted(options_of_request, key=service_order):
        for option_index in sorted(
            options_of_request[request_index],
            key=lambda option_index: (-fraction[option_index], option_cost[option_index]),
        ):
            option_load = loads[[option_index]].tocoo()
            if (option_load.data <= residual[option_load.col]).all():
                residual[option_load.col] -= option_load.data
                chosen.append(option_index)
                break
        else:
            if requests[request_index].is_sold:
                return None
    return chosen


def _add_fitting_requests(
    requests: Sequence[Request],
    options: Sequence[ProtectionOption],
    loads: sp.csr_array,
    capacity: FloatArray,
    chosen: Sequence[int],
) -> list[int]:
    """Grant further requests that fit beside the chosen options, the largest value first.

    They exist because an integer program may omit a request whose value is below the solver's
    tolerances.

    Args:
        requests: the requests.
        options: the W options.
        loads: (W, E) Gbit/s that each option reserves.
        capacity: (E,) Gbit/s.
        chosen: indices of the chosen options.

    Returns:
        indices of the chosen options and of the added ones.
    """
    # Residual capacity (E,), and the requests without a chosen option.
    residual = capacity - np.asarray(loads[list(chosen)].sum(0)).reshape(-1)
    options_of_request = options_by_request(options)
    granted_requests = {options[option_index].request_index for option_index in chosen}
    open_requests = [
        request_index
        for request_index in options_of_request
        if request_index not in granted_requests
    ]
    extended_choice = list(chosen)
    # Add the first option of each request that fits.
    for request_index in sorted(
        open_requests, key=lambda request_index: -requests[request_index].value
    ):
        for option_index in options_of_request[request_index]:
            option_load = loads[[option_index]].tocoo()
            if (option_load.data <= residual[option_load.col]).all():
                residual[option_load.col] -= option_load.data
                extended_choice.append(option_index)
                break
    return extended_choice


def _reduce_reservations(
    options: Sequence[ProtectionOption],
    loads: sp.csr_array,
    capacity: FloatArray,
    chosen: Sequence[int],
) -> list[int]:
    """Replace each chosen option by the smallest option of its request that fits beside the others.

    The size of an option is the sum of its reserved rates over all links.

    Args:
        options: the W options.
        loads: (W, E) Gbit/s that each option reserves.
        capacity: (E,) Gbit/s.
        chosen: indices of the chosen options.

    Returns:
        indices of the new options, one for each chosen option.
    """
    # Size (W,) of each option, and residual capacity (E,), in Gbit/s.
    option_size = np.asarray(loads.sum(1)).reshape(-1)
    residual = capacity - np.asarray(loads[list(chosen)].sum(0)).reshape(-1)
    reduced_choice = []
    options_of_request = options_by_request(options)
    # Each request in turn: release its reservation, then choose the smallest option that fits.
    for option_index in chosen:
        residual = residual + loads[[option_index]].toarray()[0]
        alternatives = options_of_request[options[option_index].request_index]
        for candidate_index in sorted(
            alternatives, key=lambda option_index: option_size[option_index]
        ):
            load = loads[[candidate_index]].toarray()[0]
            if candidate_index == option_index or (load <= np.maximum(residual, 0.0)).all():
                break
        residual = residual - load
        reduced_choice.append(candidate_index)
    return reduced_choice


def _admission(
    requests: Sequence[Request],
    feasible_requests: set[int],
    options: Sequence[ProtectionOption],
    chosen: Sequence[int],
    loads: sp.csr_array,
    capacity: FloatArray,
    link_prices: FloatArray,
    bound: float,
) -> Admission:
    """Build the result of an admission from the chosen options.

    The upper bound is the smaller one of two: that of the integer program, and the dual bound by
    the link prices.

    Args:
        requests: the J requests.
        feasible_requests: indices of requests with an option that reaches their availability.
        options: the W options that fit into an empty network.
        chosen: indices of the chosen options.
        loads: (W, E) Gbit/s that each option reserves.
        capacity: (E,) Gbit/s.
        link_prices: (E,) dual prices of the links, value per Gbit/s.
        bound: upper bound of the integer program; infinite without one.
    """
    # Price of each request: its cheapest option.
    option_cost = loads @ np.maximum(link_prices, 0.0)
    price = np.full(len(requests), np.inf)
    np.minimum.at(
        price, np.array([option.request_index for option in options], dtype=np.int64), option_cost
    )
    # Status of each request: sold, or accepted with a chosen option, else refused; impossible if no
    # option reaches its availability.
    granted_options: list[ProtectionOption | None] = [None] * len(requests)
    for index in chosen:
        granted_options[options[index].request_index] = options[index]
    status = tuple(
        SOLD
        if request.is_sold
        else ACCEPTED
        if option is not None
        else REFUSED
        if index in feasible_requests
        else IMPOSSIBLE
        for index, (request, option) in enumerate(zip(requests, granted_options, strict=True))
    )
    # Total value of the granted requests.
    value = sum(
        request.value
        for request, option in zip(requests, granted_options, strict=True)
        if option is not None
    )
    # Dual bound by the link prices y: sum_e capacity[e] y[e] + sum_j max(0, value[j] - price[j]).
    # The terms of sold requests count even if they are negative.
    surplus = np.array([request.value for request in requests]) - price
    is_sold = np.array([request.is_sold for request in requests])
    price_bound = float(capacity @ np.maximum(link_prices, 0.0))
    price_bound += float(np.where(is_sold, surplus, np.maximum(surplus, 0.0)).sum())
    return Admission(
        status,
        tuple(granted_options),
        price,
        value,
        max(value, min(bound, price_bound)),
        link_prices,
    )
