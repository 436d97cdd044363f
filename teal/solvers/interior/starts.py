"""Strictly feasible starting points: cold, or warm from given splits and dual prices.

A starting point is interior on both sides and near the central path: for given link prices each
block is centred exactly, by Newton's method on its multiplier.  A warm start mixes given splits
with central ones.  Entry points: :func:`cold_start`, :func:`warm_start`.  The first kernels are the
vector operations of this package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import inner_kernel
from teal.solvers.interior.presolve import PresolvedProgram

# Cold start: mu over the mean value of a column, utilisation of the fullest row, share of a column
# over its upper bound.
_COLD_MU = 0.03
_COLD_LOAD = 0.9
_COLD_BOUND_FRACTION = 0.5
# Warm start: largest share of a column over its upper bound.
_MAX_BOUND_FRACTION = 0.95
# First theta, over the utilisation of even splits and of the splits of a warm start.
_COLD_THETA = 1.1
_WARM_THETA = 1.02
# Warm start: part of the capacity up to which a slack is raised, least price over the mean price.
_WARM_SLACK = 0.05
_MIN_WARM_PRICE = 0.01
# Initial mu of a warm start over the mean value of a column, and weight of the central shares, both
# over the certified gap of the given point; and their ranges.  Of factors from 0.5 to 4 and from 3
# to 12 these take the fewest iterations on seven networks of 50 to 125 nodes.
_MU_PER_GAP = 2.0
_MIX_PER_GAP = 12.0
_MIN_MU = 1e-3
_MAX_MU = 0.3
_MAX_MIX = 0.4


class Start(NamedTuple):
    """How a search starts.

    Attributes:
        is_warm: whether from given splits and dual prices.
        initial_mu: mu at the start, over the mean value of a column; 0 to derive it and the mix
            from the certified gap of the given splits and prices.
        mix: weight of the central shares in the first ones; the given ones have the rest.
    """

    is_warm: bool
    initial_mu: float
    mix: float


COLD = Start(False, 0.0, 0.0)
# Near the splits and prices of another matrix, or of a model.
WARM = Start(True, 0.0, 0.0)


class Iterate(NamedTuple):
    """A primal-dual point, or a direction.  Symbols: :mod:`teal.solvers.interior`.

    Attributes:
        share: (Q,) x.
        reduced_cost: (Q,) z.
        unserved: (G,) s; unused where all demand is served.
        unserved_dual: (G,) z_s.
        price: (n,) y, value per Gbit/s.
        slack: (n,) t, Gbit/s.
        theta: (1,) largest link utilisation; unused where demand may be shed.
        bound_slack: (C,) upper bound of a column less its share.
        bound_dual: (C,) dual price of that bound.
        multiplier: (G,) multiplier of the sum of a block's shares; a column's reduced cost is its
            cost less this.
    """

    share: FloatArray
    reduced_cost: FloatArray
    unserved: FloatArray
    unserved_dual: FloatArray
    price: FloatArray
    slack: FloatArray
    theta: FloatArray
    bound_slack: FloatArray
    bound_dual: FloatArray
    multiplier: FloatArray


# Loops instead of array expressions, each of which would take a second to compile.


@inner_kernel
def copy_into(value: FloatArray, out: FloatArray) -> None:
    """Copy an array."""
    for i in range(len(out)):
        out[i] = value[i]


@inner_kernel
def fill(value: float, out: FloatArray) -> None:
    """Set all entries to a value."""
    for i in range(len(out)):
        out[i] = value


@inner_kernel
def axpy(cholesky: float, value: FloatArray, out: FloatArray) -> None:
    """Add a multiple of an array to another one."""
    for i in range(len(out)):
        out[i] += cholesky * value[i]


@inner_kernel
def new_iterate(program: PresolvedProgram) -> Iterate:
    """Return a point of zeros."""
    columns = len(program.column_value)
    blocks = len(program.rate)
    rows = len(program.capacity)
    return Iterate(
        np.zeros(columns),
        np.zeros(columns),
        np.zeros(blocks),
        np.zeros(blocks),
        np.zeros(rows),
        np.zeros(rows),
        np.zeros(1),
        np.zeros(len(program.bounded)),
        np.zeros(len(program.bounded)),
        np.zeros(blocks),
    )


@inner_kernel
def power_of(base: float, exponent: float) -> float:
    """Return base ** exponent; -1 is computed without a logarithm."""
    if exponent == -1:
        return 1 / base
    return float(base**exponent)


@inner_kernel
def path_prices(program: PresolvedProgram, price: FloatArray, out: FloatArray) -> None:
    """Compute A' y (Q,): the demand times the sum of the prices of each column's rows."""
    coefficient = program.coefficient
    is_plain = len(program.coefficient) == 0
    for g in range(len(program.rate)):
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            total = 0.0
            if is_plain:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    total += price[program.row[i]]
            else:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    total += coefficient[i] * price[program.row[i]]
            out[q] = total * program.rate[g]


@inner_kernel
def add_link_loads(program: PresolvedProgram, share: FloatArray, out: FloatArray) -> None:
    """Add A x, Gbit/s, to an array (n,)."""
    coefficient = program.coefficient
    is_plain = len(program.coefficient) == 0
    for g in range(len(program.rate)):
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            flow = program.rate[g] * share[q]
            if is_plain:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    out[program.row[i]] += flow
            else:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    out[program.row[i]] += coefficient[i] * flow


@inner_kernel
def link_loads(program: PresolvedProgram, share: FloatArray, out: FloatArray) -> None:
    """Compute A x (n,), Gbit/s."""
    fill(0.0, out)
    add_link_loads(program, share, out)


@inner_kernel
def carried_shares(program: PresolvedProgram, share: FloatArray, out: FloatArray) -> None:
    """Compute the carried share (G,) of each demand; blocks must have no shedding columns."""
    for g in range(len(program.rate)):
        total = 0.0
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            total += share[q]
        out[g] = total


@inner_kernel
def _centred_share(distance: float, upper_bound: float, mu: float) -> float:
    """Return the x of a centred column with an upper bound u: mu / x - mu / (u - x) = distance.

    The negative distance gives u - x.
    """
    scaled = distance * upper_bound
    double_mu = 2 * mu
    root = np.hypot(scaled, double_mu)
    # The sum scaled + root would cancel for a negative distance.
    denominator = scaled + root if scaled > 0 else double_mu * double_mu / (root - scaled)
    return float(double_mu * upper_bound / (double_mu + denominator))


@inner_kernel
def _block_multiplier(
    program: PresolvedProgram,
    cost: FloatArray,
    g: int,
    has_unserved: bool,
    unserved_cost: float,
    mu: float,
) -> float:
    """Return the multiplier l of a centred block, whose shares sum to 1.

    A column without an upper bound has the share mu / (cost - l).  Newton's method on 1 / sum,
    which is nearly linear in l, with bisection as a safeguard.

    Args:
        program: program of the matrix.
        cost: (Q,) cost of each column.
        g: index of the block.
        has_unserved: whether demand may be shed.
        unserved_cost: cost of the unserved share.
        mu: complementarity of each column.
    """
    first = program.block_ptr[g]
    end = program.block_ptr[g + 1]
    has_limits = len(program.bound_index) > 0
    min_cost = unserved_cost if has_unserved else cost[first]
    for q in range(first, end):
        if not (has_limits and program.bound_index[q] >= 0):
            min_cost = min(min_cost, cost[q])
    count = end - first + has_unserved
    # Bracket: the sum of shares is below 1 at the lower end and above 1 at the upper one.
    lower = min_cost - count * mu
    upper = min_cost - mu
    if has_limits:
        for q in range(first, end):
            lower = min(lower, cost[q] - count * mu)
    multiplier = lower
    for _ in range(60):
        total = 0.0
        slope = 0.0
        for q in range(first - has_unserved, end):
            distance = (unserved_cost if q < first else cost[q]) - multiplier
            bound = program.bound_index[q] if has_limits and q >= first else -1
            if bound >= 0:
                upper_bound = program.upper_bound[bound]
                share = _centred_share(distance, upper_bound, mu)
                bound_slack = _centred_share(-distance, upper_bound, mu)
                total += share
                slope += 1 / (mu / (share * share) + mu / (bound_slack * bound_slack))
            else:
                total += mu / distance
                slope += mu / (distance * distance)
        if abs(total - 1) < 1e-10:
            break
        if total < 1:
            lower = multiplier
        else:
            upper = multiplier
        # Newton step on 1 / total, which is nearly linear.
        multiplier += total * (1 - total) / slope
        if not lower < multiplier < upper:
            multiplier = 0.5 * (lower + upper)
    return multiplier


@inner_kernel
def cold_start(program: PresolvedProgram, sheds: bool, at: Iterate) -> None:
    """Set a strictly feasible primal-dual point.

    Where demand may be shed, each path carries an equal share, scaled down by the largest
    utilisation along the path if all demand were split evenly.
    """
    blocks = len(program.rate)
    rows = len(program.capacity)
    has_limits = len(program.bound_index) > 0
    for g in range(blocks):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        for q in range(first, end):
            at.share[q] = 1.0 / (end - first)
            if has_limits and program.bound_index[q] >= 0:
                at.share[q] = min(
                    at.share[q], _COLD_BOUND_FRACTION * program.upper_bound[program.bound_index[q]]
                )
    load = np.empty(rows)
    link_loads(program, at.share, load)
    max_utilisation = 0.0
    for r in range(rows):
        max_utilisation = max(max_utilisation, load[r] / program.capacity[r])
    if sheds:
        for g in range(blocks):
            unserved = 1.0
            for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
                bottleneck_load = 1.0
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    r = program.row[i]
                    bottleneck_load = max(bottleneck_load, load[r] / program.capacity[r])
                at.share[q] *= _COLD_LOAD / bottleneck_load
                unserved -= at.share[q]
            at.unserved[g] = unserved
        link_loads(program, at.share, load)
        mu = 0.0
        for q in range(len(program.column_value)):
            mu += _COLD_MU * program.column_value[q] / len(program.column_value)
        if len(program.utility_weight) > 0:
            # With utilities mu is relative to the mean marginal utility.
            mu = 0.0
            carried = np.empty(blocks)
            carried_shares(program, at.share, carried)
            for g in range(blocks):
                marginal_utility = program.utility_weight[g] * power_of(carried[g], -program.alpha)
                mu += _COLD_MU * marginal_utility / blocks
        for r in range(rows):
            at.slack[r] = program.capacity[r] - load[r]
        _set_bound_slacks(program, at)
    else:
        at.theta[0] = _COLD_THETA * max_utilisation
        total = 0.0
        for r in range(rows):
            at.slack[r] = at.theta[0] * program.capacity[r] - load[r]
            total += program.capacity[r] / at.slack[r]
        mu = 1.0 / total
    for r in range(rows):
        at.price[r] = mu / at.slack[r]
    _centre_blocks(program, sheds, mu, at)


@inner_kernel
def _set_bound_slacks(program: PresolvedProgram, at: Iterate) -> None:
    """Set the slack of each column's upper bound."""
    for c in range(len(program.bounded)):
        at.bound_slack[c] = program.upper_bound[c] - at.share[program.bounded[c]]


@inner_kernel
def _centre_blocks(program: PresolvedProgram, sheds: bool, mu: float, at: Iterate) -> None:
    """Set reduced costs and multipliers of all blocks, centred for the link prices and mu."""
    cost = np.empty(len(program.column_value))
    path_prices(program, at.price, cost)
    axpy(-1.0, program.column_value, cost)
    carried = np.empty(len(program.rate))
    carried_shares(program, at.share, carried)
    for g in range(len(program.rate)):
        unserved_cost = 0.0
        if len(program.utility_weight) > 0:
            unserved_cost = program.utility_weight[g] * (power_of(carried[g], -program.alpha) - 1)
        multiplier = _block_multiplier(program, cost, g, sheds, unserved_cost, mu)
        at.multiplier[g] = multiplier
        at.unserved_dual[g] = unserved_cost - multiplier
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            at.reduced_cost[q] = cost[q] - multiplier
    for c in range(len(program.bounded)):
        # With an upper bound, z - w is the distance of the centred share.
        q = program.bounded[c]
        distance = at.reduced_cost[q]
        upper_bound = program.upper_bound[c]
        if distance < 0:
            at.reduced_cost[q] = mu / _centred_share(distance, upper_bound, mu)
            at.bound_dual[c] = at.reduced_cost[q] - distance
        else:
            at.bound_dual[c] = mu / _centred_share(-distance, upper_bound, mu)
            at.reduced_cost[q] = distance + at.bound_dual[c]


@inner_kernel
def _set_warm_shares(
    program: PresolvedProgram,
    sheds: bool,
    at: Iterate,
    splits: FloatArray,
    g: int,
    mu: float,
    mix: float,
) -> None:
    """Set the shares of one block to a mix of given splits, cold ones and mu / z."""
    has_limits = len(program.bound_index) > 0
    given_sum = 0.0
    for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
        if program.slot[q] >= 0:
            given_sum += splits[program.slot[q]]
    normalisation = 1.0
    unserved = 1.0
    given_unserved = max(0.0, 1 - given_sum)
    if not sheds:
        # The shares of a demand sum to 1.
        normalisation = 1 / given_sum if given_sum > 0 else 0.0
        mix = mix if given_sum > 0 else 1.0
    for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
        bound = program.bound_index[q] if has_limits else -1
        upper_bound = program.upper_bound[bound] if bound >= 0 else 1.0
        if program.slot[q] >= 0:
            given_share = normalisation * splits[program.slot[q]]
        else:
            # Shedding columns take the unserved share, the last step first.
            given_share = min(upper_bound, given_unserved)
            given_unserved -= given_share
        central_share = 0.5 * (at.share[q] + mu / at.reduced_cost[q])
        at.share[q] = (1 - mix) * given_share + mix * central_share
        if bound >= 0:
            at.share[q] = min(at.share[q], _MAX_BOUND_FRACTION * upper_bound)
        unserved -= at.share[q]
    if sheds:
        central_share = 0.5 * (at.unserved[g] + mu / at.unserved_dual[g])
        at.unserved[g] = max(unserved, mix * central_share)


@inner_kernel
def start_for_gap(gap: float) -> Start:
    """Return the warm start for a point of a certified gap; the widest if it is not a number."""
    if not gap >= 0:
        return Start(True, _MAX_MU, _MAX_MIX)
    initial_mu = min(max(_MU_PER_GAP * gap, _MIN_MU), _MAX_MU)
    return Start(True, initial_mu, min(_MIX_PER_GAP * gap, _MAX_MIX))


@inner_kernel
def warm_start(
    program: PresolvedProgram,
    sheds: bool,
    at: Iterate,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
) -> None:
    """Move a cold start near given splits and prices; the result is strictly feasible.

    Shares mix the given splits with central ones (the mean of the cold start and mu / z), so that
    none is close to 0; prices are the given ones, the smallest raised; each block is centred for
    them.

    Args:
        program: program of the matrix.
        sheds: whether demand may be shed.
        at: the cold start; receives the warm one.
        splits: (D K,) feasible splits.
        prices: (E,) dual prices, value per Gbit/s.
        start: initial mu and mix.
    """
    rows = len(program.capacity)
    blocks = len(program.rate)
    paths = len(program.column_value)
    total_price = 0.0
    for r in range(rows):
        total_price += prices[program.link[r]] / program.scale
    # Prices of 0 or infinity contain no information.
    if not 0 < total_price < np.inf:
        return
    price_sum = 0.0
    for r in range(rows):
        price = prices[program.link[r]] / program.scale
        at.price[r] = max(price, _MIN_WARM_PRICE * total_price / rows)
        price_sum += program.capacity[r] * at.price[r]
    optimum_scale = 1.0
    if not sheds:
        # Prices are scaled onto the simplex.
        for r in range(rows):
            at.price[r] /= price_sum
        optimum_scale = at.theta[0]
    mu = start.initial_mu * optimum_scale / (paths + rows + (blocks if sheds else 0))
    _centre_blocks(program, sheds, mu, at)
    for g in range(blocks):
        _set_warm_shares(program, sheds, at, splits, g, mu, start.mix)
    _set_bound_slacks(program, at)
    load = np.empty(rows)
    link_loads(program, at.share, load)
    if not sheds:
        max_utilisation = 0.0
        for r in range(rows):
            max_utilisation = max(max_utilisation, load[r] / program.capacity[r])
        at.theta[0] = _WARM_THETA * max_utilisation
    for r in range(rows):
        capacity = program.capacity[r] if sheds else program.capacity[r] * at.theta[0]
        at.slack[r] = max(capacity - load[r], min(mu / at.price[r], _WARM_SLACK * capacity))
