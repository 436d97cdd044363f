"""Interior-point search to a certified gap.

Iterates :func:`teal.solvers.interior.newton.iterate` from a cold or warm start.  After each
iteration the shares, scaled to fit the capacities, give a primal value, and the prices a dual
bound; the best of each are the incumbents, and their relative difference is the gap.  Entry points:
:func:`solve` on one thread, :func:`solve_on_threads` with S assembled on all threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from scipy.linalg.lapack import dpotrf

from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.parallel import inner_kernel, kernel
from teal.solvers.interior.newton import (
    Work,
    accumulate_schur,
    cholesky,
    complementarity_sum,
    copy_iterate,
    init_schur,
    iterate,
    predict_and_correct,
    regularise,
    update_utility_terms,
)
from teal.solvers.interior.presolve import PresolvedProgram
from teal.solvers.interior.starts import (
    COLD,
    Iterate,
    Start,
    carried_shares,
    cold_start,
    copy_into,
    fill,
    link_loads,
    new_iterate,
    path_prices,
    real_power,
    start_for_gap,
    warm_start,
)

# Optimum of the program with shedding: largest sum of complementarity products, over the value, and
# smallest unserved share that counts as shed demand.
_CONVERGED_COMPLEMENTARITY = 1e-9
_MAX_UNSERVED = 1e-6
# The gap of a cost is relative to the cost, but at least to this part of the cost of shedding all
# demand.
_MIN_RELATIVE_COST = 1e-9
# Relative overload of a row that counts as rounding, where all demand must be served.
_ROUNDING = 1e-10
# Smallest carried share in a utility, whose logarithm is finite.
_MIN_CARRIED_SHARE = 1e-300
# Recentring may raise a load: the slack of its link then shrinks to at least this part.
_MIN_SLACK_FACTOR = 0.5


@inner_kernel
def largest_utilisation(program: PresolvedProgram, lower: float, load: FloatArray) -> float:
    """Return the largest utilisation of the n link rows, but at least ``lower``.

    Args:
        program: presolved program of n link rows.
        lower: smallest result.
        load: (n,) load of each link row, Gbit/s.
    """
    max_utilisation = lower
    for r in range(len(load)):
        max_utilisation = max(max_utilisation, load[r] / program.capacity[r])
    return max_utilisation


@inner_kernel
def _utility(alpha: float, share: float) -> float:
    """Return u(s) = (s^(1 - alpha) - 1) / (1 - alpha) of a carried share s; log s for alpha = 1."""
    exponent = 1 - alpha
    if exponent == 0:
        return float(np.log(share))
    # s^(1 - alpha) - 1 by expm1, which keeps the digits of utilities near 0.
    return float(np.expm1(exponent * np.log(share)) / exponent)


@inner_kernel
def _utility_inverse(alpha: float, utility: float) -> float:
    """Return the share s <= 1 with u(s) = utility.

    u(s) = (s^(1 - alpha) - 1) / (1 - alpha), and log s for alpha = 1.
    """
    # The utility of a share up to 1 is at most 0; rounding may exceed it.
    utility = min(0.0, utility)
    exponent = 1 - alpha
    if exponent == 0:
        return float(np.exp(utility))
    # Below the utility of the share 0, which is finite for alpha < 1, the share is 0.
    return float(np.exp(np.log1p(max(-1.0, exponent * utility)) / exponent))


@inner_kernel
def primal_value(
    program: PresolvedProgram, share: FloatArray, overload_factor: float, work: Work
) -> float:
    """Return the value of shares divided by ``overload_factor`` >= 1, in units of the program.

    Linear: the sum of column value times share.  Concave utilities: the sum of W (u(s) + 1) over
    the demands, with the utility u of the carried share s and the value W of all of a demand.
    Stepped values: a lower bound on the value.  Demands outside the blocks are not included.

    Args:
        program: presolved program of Q columns (paths).
        share: (Q,) share of its demand on each path.
        overload_factor: factor by which loads exceed the capacities.
        work: workspace; carried (G,) is overwritten.
    """
    # Concave utilities of the carried shares; otherwise values of the columns, scaled down.
    total = program.step_offset
    if len(program.utility_weight) > 0:
        carried_shares(program, share, work.carried)
        for g in range(len(program.rate)):
            carried = min(1.0, work.carried[g] / overload_factor)
            total += program.utility_weight[g] * (_utility(program.alpha, carried) + 1)
        return total
    for q in range(len(share)):
        total += program.column_value[q] * share[q]
    # Stepped values are concave in the carried share, so that scaling the whole sum, with its
    # constant, gives a lower bound.
    return total / overload_factor


@inner_kernel
def _fully_served_value(
    program: PresolvedProgram, share: FloatArray, scaled_share: FloatArray, load: FloatArray
) -> float:
    """Return the value if the shares of each block are scaled to a sum of 1; -inf on overload.

    Args:
        program: presolved program of Q columns (paths), n rows (links).
        share: (Q,) share of its demand on each path.
        scaled_share: (Q,) scaled shares (written).
        load: (n,) link loads of the scaled shares, Gbit/s (written).
    """
    total = 0.0
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        # Scale the shares of the block to a sum of 1, and add their value.
        share_sum = 0.0
        for q in range(first, end):
            share_sum += share[q]
        for q in range(first, end):
            scaled_share[q] = share[q] / share_sum
            total += program.column_value[q] * scaled_share[q]
    link_loads(program, scaled_share, load)
    # An overloaded row makes the allocation infeasible.
    for r in range(len(load)):
        if not load[r] <= program.capacity[r] * (1 + _ROUNDING):
            return -np.inf
    return total + program.fixed_value


@inner_kernel
def _sort_columns(
    program: PresolvedProgram,
    path_price: FloatArray,
    g: int,
    profit: FloatArray,
    upper_bound: FloatArray,
) -> int:
    """Sort the columns of a block by falling profit c - A' y (value less price), by insertion.

    Args:
        program: presolved program of Q columns (paths).
        path_price: (Q,) A' y, price of carrying all of the demand on each path.
        g: index of the block.
        profit: (Q,) scratch; its first entries receive the profits of the block's columns.
        upper_bound: (Q,) scratch; receives their largest shares, in the order of the profits.

    Returns:
        number of columns of the block.
    """
    first = program.block_ptr[g]
    has_bounds = len(program.bound_index) > 0
    count = program.block_ptr[g + 1] - first
    # Insert the columns one by one into the sorted front of both arrays.
    for i in range(count):
        q = first + i
        column_bound = 1.0
        if has_bounds and program.bound_index[q] >= 0:
            column_bound = program.upper_bound[program.bound_index[q]]
        column_profit = program.column_value[q] - path_price[q]
        position = i
        while position > 0 and profit[position - 1] < column_profit:
            profit[position] = profit[position - 1]
            upper_bound[position] = upper_bound[position - 1]
            position -= 1
        profit[position] = column_profit
        upper_bound[position] = column_bound
    return int(count)


@inner_kernel
def _write_unconstrained_shares(program: PresolvedProgram, splits: FloatArray) -> None:
    """Write the optimal splits of a program without link rows.

    Each demand fills its columns by falling value, each up to its upper bound.

    Args:
        program: presolved program of G blocks (demands).
        splits: (D K,) share of its demand on each path k of demand d, at index d K + k (written).
    """
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        unserved = 1.0
        # Columns without a slot are shedding columns and carry no traffic.
        for q in range(first, end):
            if program.slot[q] >= 0:
                splits[program.slot[q]] = 0.0
        # Fill the demand with its columns, the most valuable one first.
        for _ in range(end - first):
            # Column of the largest value among the empty ones.
            best = -1
            for q in range(first, end):
                is_empty = program.slot[q] >= 0 and splits[program.slot[q]] == 0
                if is_empty and (best < 0 or program.column_value[q] > program.column_value[best]):
                    best = q
            if best < 0 or unserved <= 0:
                break
            share = unserved
            if len(program.bound_index) > 0 and program.bound_index[best] >= 0:
                share = min(unserved, program.upper_bound[program.bound_index[best]])
            splits[program.slot[best]] = share
            unserved -= share


@inner_kernel
def _bounded_profits(program: PresolvedProgram, path_price: FloatArray) -> float:
    """Return the sum over blocks of the largest profit (c - A' y) x within upper bounds on x.

    c is the value of a column and x its share.  Each block fills its columns by falling profit, up
    to a total share of 1 (fractional knapsack).

    Args:
        program: presolved program of Q columns (paths) in G blocks (demands).
        path_price: (Q,) A' y, price of carrying all of the demand on each path.
    """
    total = 0.0
    num_columns = len(program.column_value)
    # (Q,) profits and upper bounds of the columns of one block, packed at the front.
    profit = np.empty(num_columns)
    upper_bound = np.empty(num_columns)
    for g in range(len(program.rate)):
        count = _sort_columns(program, path_price, g, profit, upper_bound)
        unserved = 1.0
        # Fill the demand with its most profitable columns.
        for i in range(count):
            if profit[i] <= 0 or unserved <= 0:
                break
            total += profit[i] * min(unserved, upper_bound[i])
            unserved -= upper_bound[i]
    return total


@inner_kernel
def _utility_profits(program: PresolvedProgram, path_price: FloatArray) -> float:
    """Return the sum over blocks of the largest profit: utility less the price of the paths used.

    The carried share s of a demand with the weight W has the utility W (u(s) + 1), where u(s) =
    (s^(1 - alpha) - 1) / (1 - alpha).  The cheapest column is filled first, up to the share whose
    marginal utility W s^-alpha equals its price.

    Args:
        program: presolved program of Q columns (paths) in G blocks (demands).
        path_price: (Q,) A' y, price of carrying all of the demand on each path.
    """
    total = 0.0
    num_columns = len(program.column_value)
    alpha = program.alpha
    # (Q,) profits and upper bounds of the columns of one block, packed at the front.
    profit = np.empty(num_columns)
    upper_bound = np.empty(num_columns)
    for g in range(len(program.rate)):
        count = _sort_columns(program, path_price, g, profit, upper_bound)
        weight = program.utility_weight[g]
        carried = 0.0
        path_cost = 0.0
        for i in range(count):
            # Price of the column: its value W less its profit W - A' y.
            price = max(weight - profit[i], 0.0)
            # Share at which W s^-alpha = price, at most 1.
            optimal_share = 1.0
            if price > weight:
                optimal_share = real_power(price / weight, -1 / alpha) if alpha > 0 else 0.0
            # Fill the column up to its upper bound and this share.
            added = min(1.0, carried + upper_bound[i], optimal_share) - carried
            if added <= 0:
                break
            path_cost += price * added
            carried += added
        total += weight * (_utility(alpha, max(carried, _MIN_CARRIED_SHARE)) + 1) - path_cost
    return total


@inner_kernel
def _dual_bound(
    program: PresolvedProgram,
    may_shed: bool,
    must_serve_all: bool,
    price: FloatArray,
    path_price: FloatArray,
) -> float:
    """Return the Lagrangian dual bound of link prices.

    With shedding it is an upper bound on the value: c' y plus the sum over blocks of the largest
    profit max(0, value - A' y), with the capacities c and the loads A of the columns.  Without
    shedding it is a lower bound on the largest utilisation: the sum over blocks of the smallest
    A' y, divided by c' y.

    Args:
        program: presolved program of Q columns (paths), n rows (links).
        may_shed: whether demand may be shed.
        must_serve_all: whether the bound may rely on all demand being served: then a largest
            profit below 0 counts as it is, instead of as 0.
        price: (n,) dual price y of each link row, value per Gbit/s.
        path_price: (Q,) A' y, price of carrying all of the demand on each path.
    """
    # c' y, with the capacities c.
    capacity_term = 0.0
    for r in range(len(price)):
        capacity_term += program.capacity[r] * price[r]
    # Sum of the largest profits of the blocks: under utilities, with upper bounds on columns,
    # or of the most profitable column of each block.
    total_profit = 0.0
    if len(program.utility_weight) > 0:
        total_profit = _utility_profits(program, path_price)
    elif len(program.bound_index) > 0:
        total_profit = _bounded_profits(program, path_price)
    else:
        for g in range(len(program.rate)):
            first = program.block_ptr[g]
            end = program.block_ptr[g + 1]
            # The unserved share has the profit 0, unless all demand must be served.
            best_profit = (
                0.0
                if may_shed and not must_serve_all
                else program.column_value[first] - path_price[first]
            )
            for q in range(first, end):
                best_profit = max(best_profit, program.column_value[q] - path_price[q])
            total_profit += best_profit
    if may_shed:
        # Demands outside the blocks, and the constant of stepped values, add to the bound.
        return capacity_term + total_profit + program.fixed_value + program.step_offset
    # Without shedding column values are 0: minus the profit is the sum of the lowest path prices.
    return -total_profit / capacity_term


@inner_kernel
def new_work(program: PresolvedProgram, may_shed: bool) -> Work:
    """Return the workspace of a search, whose incumbent value and bound are still infinite.

    Args:
        program: presolved program; its sizes are those of the arrays.
        may_shed: whether a value is maximised: the value starts at -inf and the bound at inf.
            Otherwise a utilisation is minimised, and they start at inf and -inf.
    """
    blocks = len(program.rate)
    num_columns = len(program.column_value)
    rows = len(program.capacity)
    # Incumbent value and bound before the first point.
    best_value_and_bound = np.empty(2)
    best_value_and_bound[0], best_value_and_bound[1] = (
        (-np.inf, np.inf) if may_shed else (np.inf, -np.inf)
    )
    return Work(
        # step, complementarity_residual, previous_step
        new_iterate(program),
        new_iterate(program),
        new_iterate(program),
        # scaling, delta
        np.empty(num_columns),
        np.empty(blocks),
        # carried, dual_residual, curvature: 0 unless utilities are concave
        np.zeros(blocks),
        np.zeros(blocks),
        np.zeros(blocks),
        # column_scratch, path_price
        np.empty(num_columns),
        np.empty(num_columns),
        # load, primal_residual, schur_inv_capacity
        np.empty(rows),
        np.empty(rows),
        np.empty(rows),
        # schur, penalty
        np.empty((rows, rows)),
        np.zeros(1),
        # incumbent_share, incumbent_price, best_value_and_bound
        np.zeros(num_columns),
        np.zeros(rows),
        best_value_and_bound,
    )


@inner_kernel
def _update_incumbent(
    program: PresolvedProgram, may_shed: bool, must_serve_all: bool, point: Iterate, work: Work
) -> float:
    """Update the incumbents from the present point, and return the relative gap between them.

    Primal value: the shares scaled down to fit the capacities, or scaled to sums of 1 if all demand
    must be served; the largest utilisation without shedding.  Bound: the Lagrangian bound of the
    prices.  The gap is relative to the bound, to the utilisation, or to the cost of serving all.

    Args:
        program: presolved program of Q columns (paths), n rows (links).
        may_shed: whether demand may be shed; otherwise the largest utilisation is minimised.
        must_serve_all: whether only points that serve all demand count.
        point: present point; slacks that exceed capacity less load are reduced.
        work: workspace; load, path_price and the incumbents are written, scratch is overwritten.
    """
    update_loads(program, may_shed, point, work)
    path_prices(program, point.price, work.path_price)
    # Lagrangian bound; sense is 1 where the value is maximised, -1 where it is minimised.
    bound = _dual_bound(program, may_shed, must_serve_all, point.price, work.path_price)
    sense = 1.0 if may_shed else -1.0
    # Primal value.
    if must_serve_all:
        # column_scratch receives the scaled shares; primal_residual is scratch for their loads.
        # The first shares become incumbents even if they overload a link.
        value = _fully_served_value(program, point.share, work.column_scratch, work.primal_residual)
        if work.best_value_and_bound[0] == -np.inf or value > work.best_value_and_bound[0]:
            work.best_value_and_bound[0] = value
            copy_into(work.column_scratch, work.incumbent_share)
    else:
        # Shares are scaled down to fit the most overloaded row.
        max_utilisation = largest_utilisation(program, 1.0 if may_shed else 0.0, work.load)
        value = (
            primal_value(program, point.share, max_utilisation, work) + program.fixed_value
            if may_shed
            else max_utilisation
        )
        if sense * value > sense * work.best_value_and_bound[0]:
            work.best_value_and_bound[0] = value
            factor = 1.0 / max_utilisation if may_shed else 1.0
            for q in range(len(point.share)):
                work.incumbent_share[q] = factor * point.share[q]
    # Keep the better bound and its prices.
    if sense * bound < sense * work.best_value_and_bound[1]:
        work.best_value_and_bound[1] = bound
        copy_into(point.price, work.incumbent_price)
    return relative_gap(
        program, may_shed, work.best_value_and_bound[0], work.best_value_and_bound[1]
    )


@inner_kernel
def update_loads(program: PresolvedProgram, may_shed: bool, point: Iterate, work: Work) -> None:
    """Compute the link loads of the present point, and reduce slacks that they exceed.

    Args:
        program: presolved program of n rows (links).
        may_shed: whether demand may be shed; otherwise the capacities count times theta.
        point: present point; slacks that recentring has made too large are reduced.
        work: workspace; load (n,) is written.
    """
    link_loads(program, point.share, work.load)
    for r in range(len(program.capacity)):
        capacity = program.capacity[r] if may_shed else program.capacity[r] * point.theta[0]
        slack = capacity - work.load[r]
        # Reduce a slack to what the loads leave, unless that is less than half of it.
        if _MIN_SLACK_FACTOR * point.slack[r] < slack < point.slack[r]:
            point.slack[r] = slack


@inner_kernel
def relative_gap(program: PresolvedProgram, may_shed: bool, value: float, bound: float) -> float:
    """Return the gap between a value and a bound, relative to the bound, to the utilisation, or to
    the cost of serving all.

    Args:
        program: presolved program.
        may_shed: whether the value is maximised; otherwise a utilisation is minimised.
        value: value of an allocation.
        bound: bound on the optimum.
    """
    sense = 1.0 if may_shed else -1.0
    if len(program.utility_weight) > 0:
        # The weights W sum to 1, so that u(s) + 1 is the value of a common share s of all demands:
        # the gap is measured between the common shares of the value and of the bound.
        value = _utility_inverse(program.alpha, value - 1)
        bound = _utility_inverse(program.alpha, bound - 1)
    reference = bound if may_shed else value
    if program.cost_base > 0:
        reference = max(program.cost_base - value, _MIN_RELATIVE_COST * program.cost_base)
    absolute_gap = sense * (bound - value)
    if absolute_gap == np.inf:
        return np.inf
    return absolute_gap / reference if reference > 0 else 0.0


@inner_kernel
def _starting_point(
    program: PresolvedProgram,
    may_shed: bool,
    must_serve_all: bool,
    gap: float,
    start: Start,
    splits: FloatArray,
    prices: FloatArray,
) -> tuple[Iterate, Work, bool]:
    """Return the starting point, the workspace, and whether the gap is reached already.

    Args:
        program: presolved program.
        may_shed: whether demand may be shed: the value is maximised; else all demand is served and
            the largest link utilisation is minimised.
        must_serve_all: whether only points that serve all demand count.
        gap: target of the certified gap.
        start: cold or warm start.
        splits: (D K,) initial share of its demand on each path k of demand d, for a warm start.
        prices: (E,) initial dual price of each link, value per Gbit/s, for a warm start.
    """
    point = new_iterate(program)
    work = new_work(program, may_shed)
    if start.is_warm and start.initial_mu == 0:
        # The certified gap of the initial splits and prices determines mu and the weight of the
        # central shares (mix).
        initial_gap = _initial_gap(program, may_shed, must_serve_all, splits, prices, work)
        if initial_gap <= gap:
            return point, work, True
        start = start_for_gap(initial_gap)
    # Cold start, moved near the initial splits and prices if the start is warm.
    cold_start(program, may_shed, point)
    if start.is_warm:
        warm_start(program, may_shed, point, splits, prices, start)
    return point, work, _is_converged(program, may_shed, must_serve_all, gap, point, work)


@inner_kernel
def _initial_gap(
    program: PresolvedProgram,
    may_shed: bool,
    must_serve_all: bool,
    splits: FloatArray,
    prices: FloatArray,
    work: Work,
) -> float:
    """Return the certified gap of initial splits and prices, which become the first incumbents.

    Args:
        program: presolved program of Q columns (paths), n rows (links).
        may_shed: whether demand may be shed; otherwise the splits are scaled to a sum of 1.
        must_serve_all: whether only points that serve all demand count.
        splits: (D K,) share of its demand on each path k of demand d, at index d K + k.
        prices: (E,) dual price of each link of the network, value per Gbit/s.
        work: workspace; the incumbents are updated, previous_step is used as scratch.
    """
    # Only the shares and prices of the scratch point are used.
    point = work.previous_step
    set_point(program, may_shed, splits, prices, point)
    return _update_incumbent(program, may_shed, must_serve_all, point, work)


@inner_kernel
def set_point(
    program: PresolvedProgram,
    may_shed: bool,
    splits: FloatArray,
    prices: FloatArray,
    point: Iterate,
) -> None:
    """Set the shares and prices of a point to splits and prices, which need not be interior.

    Args:
        program: presolved program of Q columns (paths), n rows (links).
        may_shed: whether demand may be shed; otherwise the splits are scaled to a sum of 1.
        splits: (D K,) share of its demand on each path k of demand d, at index d K + k.
        prices: (E,) dual price of each link of the network, value per Gbit/s.
        point: share (Q,) and price (n,) are written.
    """
    has_bounds = len(program.bound_index) > 0
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        carried = 0.0
        # Paths take the given splits.
        for q in range(first, end):
            point.share[q] = splits[program.slot[q]] if program.slot[q] >= 0 else 0.0
            carried += point.share[q]
        unserved = max(0.0, 1 - carried)
        # Shedding columns take the unserved share, the last step first.
        for q in range(first, end):
            if program.slot[q] < 0:
                bound_index = program.bound_index[q] if has_bounds else -1
                upper_bound = program.upper_bound[bound_index] if bound_index >= 0 else 1.0
                point.share[q] = min(upper_bound, unserved)
                unserved -= point.share[q]
        # Where all demand is served, the shares of a demand sum to 1.
        for q in range(first, end):
            if not may_shed:
                point.share[q] = point.share[q] / carried if carried > 0 else 1.0 / (end - first)
    for r in range(len(program.capacity)):
        point.price[r] = prices[program.link[r]] / program.scale


@inner_kernel
def _is_converged(
    program: PresolvedProgram,
    may_shed: bool,
    must_serve_all: bool,
    gap: float,
    point: Iterate,
    work: Work,
) -> bool:
    """Update the incumbents, and return whether the search may end.

    It ends at the target gap.  Where all demand must be served but no such point was found, it also
    ends at the optimum with shedding: the value of unserved demand is then below the value of the
    traffic that it would displace.

    Args:
        program: presolved program.
        may_shed: whether demand may be shed.
        must_serve_all: whether only points that serve all demand count.
        gap: target of the certified gap.
        point: present point.
        work: workspace; the incumbents are updated.
    """
    if _update_incumbent(program, may_shed, must_serve_all, point, work) <= gap:
        return True
    # Continue if some point serves all demand, or no bound is known yet.
    if work.best_value_and_bound[0] != -np.inf or not np.isfinite(work.best_value_and_bound[1]):
        return False
    # At the optimum with shedding some demand is unserved, and all products are close to 0.
    max_unserved = 0.0
    for unserved in point.unserved:
        max_unserved = max(max_unserved, unserved)
    return max_unserved > _MAX_UNSERVED and bool(
        complementarity_sum(point, work.step, may_shed, 0.0, 0.0) < _CONVERGED_COMPLEMENTARITY
    )


@inner_kernel
def _restart_cold(program: PresolvedProgram, may_shed: bool, point: Iterate, work: Work) -> None:
    """Reset a point to the cold start, after a warm start has failed; the incumbents stay.

    Args:
        program: presolved program.
        may_shed: whether demand may be shed.
        point: receives the cold start.
        work: workspace; the last direction is cleared.
    """
    copy_iterate(new_iterate(program), work.step)
    cold_start(program, may_shed, point)


@inner_kernel
def _write_solution(
    program: PresolvedProgram, work: Work, splits: FloatArray, prices: FloatArray
) -> None:
    """Write the incumbent shares and prices in the layout of the network.

    Args:
        program: presolved program of Q columns (paths), n rows (links).
        work: workspace with the incumbents.
        splits: (D K,) share of its demand on each path k of demand d; entries outside the program
            stay (written).
        prices: (E,) dual price of each link, value per Gbit/s; 0 for links without a row (written).
    """
    for q in range(len(program.column_value)):
        if program.slot[q] >= 0:
            splits[program.slot[q]] = work.incumbent_share[q]
    fill(0.0, prices)
    for r in range(len(program.capacity)):
        prices[program.link[r]] = work.incumbent_price[r] * program.scale


@kernel
def solve(
    program: PresolvedProgram,
    may_shed: bool,
    must_serve_all: bool,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
    stop: BoolArray,
) -> int:
    """Solve one program on one thread, by interior-point iterations to a certified gap.

    Args:
        program: presolved program of one matrix.
        may_shed: whether demand may be shed: the value is maximised; else all demand is served and
            the largest link utilisation is minimised.
        must_serve_all: with ``may_shed``, whether incumbents must serve all demand all the same:
            only iterates scaled to serve all count, and bounds may rely on it.
        gap: target of the certified gap.
        max_iterations: largest number of iterations.
        splits: (D K,) share of its demand on each path k of demand d: feasible splits of a warm
            start; receives the solution.
        prices: (E,) dual price of each link, value per Gbit/s: those of a warm start; receives the
            prices of the best bound.
        start: cold or warm start.
        stop: (1,) flag that is read before each iteration: another thread may set it.

    Returns:
        number of iterations.
    """
    # Without demand, or without a link that can bind, the solution has a closed form.
    if len(program.rate) == 0 or len(program.capacity) == 0:
        fill(0.0, prices)
        _write_unconstrained_shares(program, splits)
        return 0
    point, work, is_done = _starting_point(
        program, may_shed, must_serve_all, gap, start, splits, prices
    )
    is_warm = start.is_warm
    iterations = 0
    while not is_done:
        if iterations >= max_iterations or stop[0]:
            break
        # iterate returns whether the Newton step made progress.
        if iterate(program, may_shed, point, work):
            iterations += 1
        elif is_warm:
            # No progress from a warm start: begin again from a cold one.
            is_warm = False
            _restart_cold(program, may_shed, point, work)
        else:
            break
        is_done = _is_converged(program, may_shed, must_serve_all, gap, point, work)
    _write_solution(program, work, splits, prices)
    return iterations


# Large programs assemble the Schur complement S on several threads and factor it by LAPACK, with
# separate kernels for the parts of an iteration.  A program is large from this many updated entries
# of S, which take about 5 ms; programs with fewer columns than the first threshold are never large.
_MIN_LARGE_COLUMNS = 10_000
_MIN_LARGE_UPDATES = 3_000_000


# Each kernel named *_kernel makes the function of the same name callable from Python.


@kernel
def _starting_point_kernel(
    program: PresolvedProgram,
    may_shed: bool,
    must_serve_all: bool,
    gap: float,
    start: Start,
    splits: FloatArray,
    prices: FloatArray,
) -> tuple[Iterate, Work, bool]:
    """Return the starting point, the workspace, and whether the gap is reached already."""
    return _starting_point(program, may_shed, must_serve_all, gap, start, splits, prices)


@kernel
def _is_converged_kernel(
    program: PresolvedProgram,
    may_shed: bool,
    must_serve_all: bool,
    gap: float,
    point: Iterate,
    work: Work,
) -> bool:
    """Update the incumbents, and return whether the search may end."""
    return _is_converged(program, may_shed, must_serve_all, gap, point, work)


@kernel
def _restart_cold_kernel(
    program: PresolvedProgram, may_shed: bool, point: Iterate, work: Work
) -> None:
    _restart_cold(program, may_shed, point, work)


@kernel
def _write_solution_kernel(
    program: PresolvedProgram, work: Work, splits: FloatArray, prices: FloatArray
) -> None:
    _write_solution(program, work, splits, prices)


@kernel
def _update_utility_terms_kernel(program: PresolvedProgram, point: Iterate, work: Work) -> None:
    update_utility_terms(program, point, work)


@kernel
def _accumulate_schur_kernel(
    program: PresolvedProgram,
    may_shed: bool,
    point: Iterate,
    work: Work,
    schur: FloatArray,
    first: int,
    end: int,
    includes_diagonal: bool,
) -> None:
    """Compute one thread's part of the Schur complement S: the terms of some blocks.

    Args:
        program: presolved program of n rows (links).
        may_shed: whether demand may be shed.
        point: present point.
        work: workspace; scaling and delta of these blocks are written.
        schur: (n, n) lower triangle of this thread's part of S (written).
        first: index of the first block.
        end: index of the last block plus 1.
        includes_diagonal: whether this part includes the diagonal term slack / price of S.
    """
    if includes_diagonal:
        init_schur(point, schur)
    else:
        for row in schur:
            fill(0.0, row)
    accumulate_schur(program, may_shed, point, work, schur, first, end)


@kernel
def _add_lower_triangle(addend: FloatArray, out: FloatArray) -> None:
    """Add the lower triangle of ``addend`` (n, n) to that of ``out`` (n, n, written)."""
    for i in range(len(addend)):
        for j in range(i + 1):
            out[i, j] += addend[i, j]


@kernel
def _regularise_kernel(program: PresolvedProgram, may_shed: bool, work: Work) -> None:
    regularise(program, may_shed, work)


@kernel
def _cholesky_kernel(schur: FloatArray) -> None:
    cholesky(schur)


@kernel
def _predict_and_correct_kernel(
    program: PresolvedProgram, may_shed: bool, point: Iterate, work: Work
) -> bool:
    return predict_and_correct(program, may_shed, point, work)


def solve_on_threads(
    program: PresolvedProgram,
    may_shed: bool,
    must_serve_all: bool,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
    stop: BoolArray,
) -> int:
    """Solve one program by interior-point iterations, on all threads where that is faster.

    The threads assemble the Schur complement, and LAPACK factors it.

    Args:
        program: presolved program of one matrix.
        may_shed: whether demand may be shed.
        must_serve_all: whether only points that serve all demand count, and bounds may rely on it.
        gap: target of the certified gap.
        max_iterations: largest number of iterations.
        splits: (D K,) share of its demand on each path k of demand d: feasible splits of a warm
            start; receives the solution.
        prices: (E,) dual price of each link, value per Gbit/s: those of a warm start; receives the
            prices of the best bound.
        start: cold or warm start.
        stop: (1,) flag that is read before each iteration: another thread may set it.

    Returns:
        number of iterations.
    """
    num_updates = updates_for_threads(program)
    if num_updates is None:
        return solve(
            program, may_shed, must_serve_all, gap, max_iterations, splits, prices, start, stop
        )
    return _solve_on_several_threads(
        program,
        may_shed,
        must_serve_all,
        gap,
        max_iterations,
        splits,
        prices,
        start,
        stop,
        num_updates=num_updates,
        threads=numba.get_num_threads(),
    )


def updates_for_threads(program: PresolvedProgram) -> FloatArray | None:
    """Return the number (G,) of entries of the Schur complement that each block updates.

    None stands for a program that is faster on one thread.

    Args:
        program: presolved program of one matrix.
    """
    if not may_be_large(len(program.column_value)) or not len(program.capacity):
        return None
    num_updates = block_schur_updates(program)
    return num_updates if num_updates.sum() >= _MIN_LARGE_UPDATES else None


def _solve_on_several_threads(
    program: PresolvedProgram,
    may_shed: bool,
    must_serve_all: bool,
    gap: float,
    max_iterations: int,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
    stop: BoolArray,
    *,
    num_updates: FloatArray,
    threads: int,
) -> int:
    """Solve one program with the Schur complement S assembled on ``threads`` threads.

    Args:
        program: presolved program of one matrix with G blocks (demands), n rows (links).
        may_shed: whether demand may be shed.
        must_serve_all: whether only points that serve all demand count, and bounds may rely on it.
        gap: target of the certified gap.
        max_iterations: largest number of iterations.
        splits: (D K,) share of its demand on each path k of demand d: feasible splits of a warm
            start; receives the solution.
        prices: (E,) dual price of each link, value per Gbit/s: those of a warm start; receives the
            prices of the best bound.
        start: cold or warm start.
        stop: (1,) flag that is read before each iteration: another thread may set it.
        num_updates: (G,) number of entries of S that each block updates.
        threads: number of threads.

    Returns:
        number of iterations.
    """
    point, work, is_done = _starting_point_kernel(
        program, may_shed, must_serve_all, gap, start, splits, prices
    )
    is_warm = start.is_warm
    iterations = 0
    with ThreadPoolExecutor(threads) as pool:
        newton = ThreadedNewton(program, may_shed, num_updates, threads, pool)
        while not is_done:
            if iterations >= max_iterations or stop[0]:
                break
            if newton.step(point, work):
                iterations += 1
            elif is_warm:
                # No progress from a warm start: begin again from a cold one.
                is_warm = False
                _restart_cold_kernel(program, may_shed, point, work)
            else:
                break
            is_done = _is_converged_kernel(program, may_shed, must_serve_all, gap, point, work)
    _write_solution_kernel(program, work, splits, prices)
    return iterations


class ThreadedNewton:
    """Interior-point iterations of one program on several threads.

    Each thread assembles a part of the Schur complement S, and LAPACK factors their sum.

    Args:
        program: presolved program with G blocks (demands), n rows (links).
        may_shed: whether demand may be shed.
        num_updates: (G,) number of entries of S that each block updates.
        threads: number of threads.
        pool: threads that assemble S.
    """

    def __init__(
        self,
        program: PresolvedProgram,
        may_shed: bool,
        num_updates: FloatArray,
        threads: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._program = program
        self._may_shed = may_shed
        self._pool = pool
        # Thread i assembles the blocks _part_ptr[i]:_part_ptr[i + 1], with equal sums of updates,
        # in a matrix (n, n) of its own; the first thread writes to work.schur.
        last_blocks = np.searchsorted(
            np.cumsum(num_updates), num_updates.sum() * np.arange(1, threads) / threads
        )
        self._part_ptr = [0, *(int(end) + 1 for end in last_blocks), len(program.rate)]
        rows = len(program.capacity)
        self._extra_schurs = [np.empty((rows, rows)) for _ in range(threads - 1)]

    def step(self, point: Iterate, work: Work) -> bool:
        """Move a point by one predictor-corrector iteration; return whether it made progress.

        Args:
            point: present point (updated).
            work: workspace of the program; load (n,) has the link loads of the point.
        """
        self._assemble_schur(point, work)
        # The lower triangle of S in row order is the upper one of LAPACK's column order.
        _, info = dpotrf(work.schur.T, lower=0, overwrite_a=1, clean=0)
        if info:
            # S is numerically singular, and LAPACK has overwritten it: assemble it again for a
            # factorisation that drops dependent rows.
            self._assemble_schur(point, work)
            _cholesky_kernel(work.schur)
        return bool(_predict_and_correct_kernel(self._program, self._may_shed, point, work))

    def _assemble_schur(self, point: Iterate, work: Work) -> None:
        """Assemble S in ``work.schur``: the parts of all threads, their sum, the regularisation."""
        program = self._program
        may_shed = self._may_shed
        part_ptr = self._part_ptr
        schur_of_part = [work.schur, *self._extra_schurs]

        def accumulate_part(part: int) -> None:
            # Terms of the blocks of one thread; the first part includes the diagonal of slacks.
            begin, end = part_ptr[part], part_ptr[part + 1]
            _accumulate_schur_kernel(
                program, may_shed, point, work, schur_of_part[part], begin, end, part == 0
            )

        _update_utility_terms_kernel(program, point, work)
        list(self._pool.map(accumulate_part, range(len(schur_of_part))))
        for schur_of_thread in self._extra_schurs:
            _add_lower_triangle(schur_of_thread, work.schur)
        _regularise_kernel(program, may_shed, work)


# The warm-up uses two threads even on one core, so that the sum of two parts of S is compiled, too.
_WARM_UP_THREADS = 2


def may_be_large(num_columns: int) -> bool:
    """Return whether a program of ``num_columns`` columns may be solved on several threads."""
    return numba.get_num_threads() > 1 and num_columns >= _MIN_LARGE_COLUMNS


def warm_up_steps(program: PresolvedProgram, splits: FloatArray, prices: FloatArray) -> None:
    """Compile or load the kernels of a search on threads, by calling each of them once.

    Args:
        program: any program that may shed demand and has rows.
        splits: (D K,) scratch for the solution.
        prices: (E,) scratch for the dual prices.
    """
    # With shedding, not all demand need be served, target gap 0: then one iteration.
    options = program, True, False, 0.0
    _solve_on_several_threads(
        *options,
        1,
        splits,
        prices,
        COLD,
        np.zeros(1, np.bool_),
        num_updates=np.ones(len(program.rate)),
        threads=_WARM_UP_THREADS,
    )
    # Kernels that run only where LAPACK or a warm start fails.
    point, work, _ = _starting_point_kernel(*options, COLD, splits, prices)
    _cholesky_kernel(np.eye(len(program.capacity)))
    _restart_cold_kernel(program, True, point, work)


def block_schur_updates(program: PresolvedProgram) -> FloatArray:
    """Return the number (G,) of entries of the Schur complement that each block (demand) updates.

    The rank-one term of a path over m link rows updates m (m + 1) / 2 entries of the lower
    triangle, and so does the term of a block whose paths use m rows.
    """
    # Number of rows of each path (Q,) and of each block (G,).
    path_lengths = np.diff(program.row_ptr)
    block_row_counts = np.diff(program.block_row_ptr)
    # Sum of the updates of the paths of each block, from cumulative sums over all paths.
    cumulative = np.append(0, np.cumsum(path_lengths * (path_lengths + 1) // 2))
    path_updates = np.diff(cumulative[program.block_ptr])
    return np.asarray(path_updates + block_row_counts * (block_row_counts + 1) // 2, np.float64)
