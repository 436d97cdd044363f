"""Strictly feasible starting points: cold, or warm from given splits and dual prices.

A starting point is interior on both sides and near the central path: for given link prices each
block is centred exactly, by Newton's method on its multiplier.  A warm start mixes given splits
with central ones.  A point of a restricted program is carried over to one with more columns.

Entry points: :func:`cold_start`, :func:`warm_start`, :func:`carry_over`.  The first kernels are the
vector operations of this package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import inner_kernel
from teal.solvers.interior.presolve import PresolvedProgram, Restricted

# Cold start: mu over the mean value of a column; utilisation of the most loaded link; largest share
# of a column over its upper bound.
_COLD_MU = 0.03
_COLD_LOAD = 0.9
_COLD_BOUND_FRACTION = 0.5
# Warm start: largest share of a column over its upper bound.
_MAX_BOUND_FRACTION = 0.95
# First theta, over the utilisation of even splits and of the splits of a warm start.
_COLD_THETA = 1.1
_WARM_THETA = 1.02
# Warm start: a slack is raised to at most this part of the capacity; a price is raised to this part
# of the mean price.
_WARM_SLACK = 0.05
_MIN_WARM_PRICE = 0.01
# Warm start from a point with a certified gap: mu over the mean value of a column is this multiple
# of the gap, and so is the weight of the central shares; both are clamped to a range.  Of the
# factors from 0.5 to 4 and from 3 to 12, these take the fewest iterations on seven networks of 50
# to 125 nodes.
_MU_PER_GAP = 2.0
_MIX_PER_GAP = 12.0
_MIN_MU = 1e-3
_MAX_MU = 0.3
_MAX_MIX = 0.4
# Carrying over: smallest slack of a row that joins, over its capacity; largest share of a column
# that joins.
_MIN_NEW_SLACK = 0.01
_MAX_NEW_SHARE = 0.1


class Start(NamedTuple):
    """Start of a search: cold, or warm from given splits and dual prices.

    Attributes:
        is_warm: whether from given splits and dual prices.
        initial_mu: mu at the start, over the mean value of a column; 0 to derive it and the mix
            from the certified gap of the given splits and prices.
        mix: weight of the central shares in the first shares, between 0 and 1; the given splits
            have the weight 1 - mix.
    """

    is_warm: bool
    initial_mu: float
    mix: float


COLD = Start(False, 0.0, 0.0)
# Near the splits and prices of another matrix, or of a model.
WARM = Start(True, 0.0, 0.0)


class Iterate(NamedTuple):
    """A primal-dual point, or a direction.

    Q columns are paths, G blocks are demands, n rows are links that can bind, C columns have an
    upper bound u.

    Attributes:
        share: (Q,) x, share of its demand on each path.
        reduced_cost: (Q,) z, reduced cost of each path.
        unserved: (G,) s, unserved share of each demand; unused where all demand is served.
        unserved_dual: (G,) z_s, reduced cost of the unserved share.
        price: (n,) y, dual price of each link, value per Gbit/s.
        slack: (n,) t, slack of each link's capacity, Gbit/s.
        theta: (1,) largest link utilisation; unused where demand may be shed.
        bound_slack: (C,) u - x, upper bound of a column less its share.
        bound_dual: (C,) w, dual of that bound.
        multiplier: (G,) multiplier of the constraint that a block's shares sum to 1; the reduced
            cost of a column is its cost less the multiplier.
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
    """Copy ``value`` to ``out`` (written), of the same length."""
    for i in range(len(out)):
        out[i] = value[i]


@inner_kernel
def fill(value: float, out: FloatArray) -> None:
    """Set all entries of ``out`` (written) to a value."""
    for i in range(len(out)):
        out[i] = value


@inner_kernel
def axpy(multiple: float, value: FloatArray, out: FloatArray) -> None:
    """Compute out += multiple * value (``out`` is written)."""
    for i in range(len(out)):
        out[i] += multiple * value[i]


@inner_kernel
def new_iterate(program: PresolvedProgram) -> Iterate:
    """Return a primal-dual point whose entries are all 0."""
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
def real_power(base: float, exponent: float) -> float:
    """Return base ** exponent; 1 / base for the exponent -1, without a logarithm."""
    if exponent == -1:
        return 1 / base
    return float(base**exponent)


@inner_kernel
def path_prices(program: PresolvedProgram, price: FloatArray, out: FloatArray) -> None:
    """Compute the price A' y of carrying each demand on each of its paths.

    Args:
        program: presolved program of Q columns (paths) over n rows (links).
        price: (n,) dual price y of each link, value per Gbit/s.
        out: (Q,) demand times the sum of coefficient times price over the path's links (written).
    """
    coefficient = program.coefficient
    # Without coefficients each link of a path carries its flow once.
    has_unit_coefficients = len(program.coefficient) == 0
    for g in range(len(program.rate)):
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            total = 0.0
            if has_unit_coefficients:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    total += price[program.row[i]]
            else:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    total += coefficient[i] * price[program.row[i]]
            out[q] = total * program.rate[g]


@inner_kernel
def add_link_loads(program: PresolvedProgram, share: FloatArray, out: FloatArray) -> None:
    """Add the link loads of the shares x to an array.

    Args:
        program: presolved program of Q columns (paths) over n rows (links).
        share: (Q,) share x of its demand on each path.
        out: (n,) Gbit/s, added to.
    """
    coefficient = program.coefficient
    # Without coefficients each link of a path carries its flow once.
    has_unit_coefficients = len(program.coefficient) == 0
    for g in range(len(program.rate)):
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            flow = program.rate[g] * share[q]
            if has_unit_coefficients:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    out[program.row[i]] += flow
            else:
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    out[program.row[i]] += coefficient[i] * flow


@inner_kernel
def link_loads(program: PresolvedProgram, share: FloatArray, out: FloatArray) -> None:
    """Compute the load (n,) of each link row in Gbit/s.

    Args:
        program: presolved program of Q columns (paths) over n rows (links).
        share: (Q,) share of its demand on each path.
        out: (n,) loads (written).
    """
    fill(0.0, out)
    add_link_loads(program, share, out)


@inner_kernel
def carried_shares(program: PresolvedProgram, share: FloatArray, out: FloatArray) -> None:
    """Compute the carried share of each demand: the sum of its paths' shares.

    Args:
        program: presolved program of G blocks without shedding columns.
        share: (Q,) share of its demand on each path.
        out: (G,) carried shares (written).
    """
    for g in range(len(program.rate)):
        total = 0.0
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            total += share[q]
        out[g] = total


@inner_kernel
def _centred_share(net_cost: float, upper_bound: float, mu: float) -> float:
    """Return the centred share x of a column with an upper bound u.

    It solves ``mu / x - mu / (u - x) = net_cost``; for ``-net_cost`` the result is u - x.

    Args:
        net_cost: cost of the column less the multiplier of its block.
        upper_bound: u.
        mu: product of the share and its reduced cost, and of the bound's slack and its dual.
    """
    scaled = net_cost * upper_bound
    double_mu = 2 * mu
    root = np.hypot(scaled, double_mu)
    # With a = (cost - multiplier) u and h = sqrt(a^2 + (2 mu)^2), the quadratic equation has the
    # solution x = 2 mu u / (2 mu + a + h).  For a < 0, a + h = (2 mu)^2 / (h - a) does not cancel.
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

    The share of a column without an upper bound is mu / (cost - l); a column with an upper bound u
    has the share x with mu / x - mu / (u - x) = cost - l.  Newton's method solves 1 / sum(l) = 1,
    which is nearly linear in l, with bisection as a safeguard.

    Args:
        program: presolved program of Q columns (paths).
        cost: (Q,) cost of each column, price A' y less value.
        g: index of the block.
        has_unserved: whether demand may be shed: the unserved share is then one of the shares.
        unserved_cost: cost of the unserved share.
        mu: complementarity of each share and its reduced cost.
    """
    first = program.block_ptr[g]
    end = program.block_ptr[g + 1]
    has_bounds = len(program.bound_index) > 0
    # Smallest cost of a column without an upper bound.
    min_cost = unserved_cost if has_unserved else cost[first]
    for q in range(first, end):
        if not (has_bounds and program.bound_index[q] >= 0):
            min_cost = min(min_cost, cost[q])
    num_shares = end - first + has_unserved
    # Bracket of l: at the lower end each share is at most 1 over their number; at the upper end the
    # cheapest share without an upper bound alone is 1.
    lower = min_cost - num_shares * mu
    upper = min_cost - mu
    if has_bounds:
        for q in range(first, end):
            lower = min(lower, cost[q] - num_shares * mu)
    multiplier = lower
    # Newton's method needs a few iterations; 60 bisections are enough for float64.
    for _ in range(60):
        share_sum = 0.0
        slope = 0.0
        # Sum of the shares and its derivative in l; index first - 1 stands for the unserved share.
        for q in range(first - has_unserved, end):
            net_cost = (unserved_cost if q < first else cost[q]) - multiplier
            bound_index = program.bound_index[q] if has_bounds and q >= first else -1
            if bound_index >= 0:
                upper_bound = program.upper_bound[bound_index]
                share = _centred_share(net_cost, upper_bound, mu)
                bound_slack = _centred_share(-net_cost, upper_bound, mu)
                share_sum += share
                slope += 1 / (mu / (share * share) + mu / (bound_slack * bound_slack))
            else:
                share_sum += mu / net_cost
                slope += mu / (net_cost * net_cost)
        if abs(share_sum - 1) < 1e-10:
            break
        # The sum of shares grows with l: narrow the bracket.
        if share_sum < 1:
            lower = multiplier
        else:
            upper = multiplier
        # Newton step on 1 / (sum of shares), or bisection where it leaves the bracket.
        multiplier += share_sum * (1 - share_sum) / slope
        if not lower < multiplier < upper:
            multiplier = 0.5 * (lower + upper)
    return multiplier


@inner_kernel
def cold_start(program: PresolvedProgram, may_shed: bool, point: Iterate) -> None:
    """Set a strictly feasible primal-dual point from the program alone.

    Where demand may be shed, each path carries an equal share of its demand, scaled down by the
    largest utilisation along the path if all demand were split evenly.  Otherwise splits are even,
    and theta is slightly above their largest utilisation.  Prices are mu / slack.

    Args:
        program: presolved program of G blocks (demands), n rows (links).
        may_shed: whether demand may be shed.
        point: receives the point.
    """
    blocks = len(program.rate)
    rows = len(program.capacity)
    has_bounds = len(program.bound_index) > 0
    # Even splits, each at most half of its upper bound.
    for g in range(blocks):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        for q in range(first, end):
            point.share[q] = 1.0 / (end - first)
            if has_bounds and program.bound_index[q] >= 0:
                point.share[q] = min(
                    point.share[q],
                    _COLD_BOUND_FRACTION * program.upper_bound[program.bound_index[q]],
                )
    # (n,) link loads of even splits, Gbit/s, and their largest utilisation.
    load = np.empty(rows)
    link_loads(program, point.share, load)
    max_utilisation = 0.0
    for r in range(rows):
        max_utilisation = max(max_utilisation, load[r] / program.capacity[r])
    if may_shed:
        # Scale each path down by its bottleneck; the rest of the demand is unserved.
        for g in range(blocks):
            unserved = 1.0
            for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
                bottleneck_utilisation = 1.0
                for i in range(program.row_ptr[q], program.row_ptr[q + 1]):
                    r = program.row[i]
                    bottleneck_utilisation = max(
                        bottleneck_utilisation, load[r] / program.capacity[r]
                    )
                point.share[q] *= _COLD_LOAD / bottleneck_utilisation
                unserved -= point.share[q]
            point.unserved[g] = unserved
        link_loads(program, point.share, load)
        # mu is relative to the mean value of a column.
        mu = 0.0
        for q in range(len(program.column_value)):
            mu += _COLD_MU * program.column_value[q] / len(program.column_value)
        if len(program.utility_weight) > 0:
            # With utilities mu is relative to the mean marginal utility W r^-alpha at the carried
            # share r (G,).
            mu = 0.0
            carried = np.empty(blocks)
            carried_shares(program, point.share, carried)
            for g in range(blocks):
                marginal_utility = program.utility_weight[g] * real_power(
                    carried[g], -program.alpha
                )
                mu += _COLD_MU * marginal_utility / blocks
        for r in range(rows):
            point.slack[r] = program.capacity[r] - load[r]
        _set_bound_slacks(program, point)
    else:
        # mu normalises the prices mu / slack: the sum of capacity times price is 1.
        point.theta[0] = _COLD_THETA * max_utilisation
        unscaled_price_sum = 0.0
        for r in range(rows):
            point.slack[r] = point.theta[0] * program.capacity[r] - load[r]
            unscaled_price_sum += program.capacity[r] / point.slack[r]
        mu = 1.0 / unscaled_price_sum
    # Centred prices, reduced costs and multipliers.
    for r in range(rows):
        point.price[r] = mu / point.slack[r]
    _centre_blocks(program, may_shed, mu, point)


@inner_kernel
def _set_bound_slacks(program: PresolvedProgram, point: Iterate) -> None:
    """Set the slack (C,) of each column's upper bound: the bound less the share of the column."""
    for bound_index in range(len(program.bounded)):
        point.bound_slack[bound_index] = (
            program.upper_bound[bound_index] - point.share[program.bounded[bound_index]]
        )


@inner_kernel
def _centre_blocks(program: PresolvedProgram, may_shed: bool, mu: float, point: Iterate) -> None:
    """Set reduced costs and multipliers of all blocks, centred for the link prices and mu.

    The multiplier l of a block makes its shares mu / (cost - l) sum to 1; then z = cost - l.

    Args:
        program: presolved program of Q columns (paths) in G blocks (demands), C upper bounds.
        may_shed: whether demand may be shed.
        mu: complementarity of each pair.
        point: price and share are read; multiplier, unserved_dual, reduced_cost and bound_dual are
            written.
    """
    # (Q,) cost of each column: A' y less its value.
    cost = np.empty(len(program.column_value))
    path_prices(program, point.price, cost)
    axpy(-1.0, program.column_value, cost)
    # (G,) carried share of each demand.
    carried = np.empty(len(program.rate))
    carried_shares(program, point.share, carried)
    for g in range(len(program.rate)):
        unserved_cost = 0.0
        # Marginal utility W (r^-alpha - 1) of the unserved share, at the carried share r.
        if len(program.utility_weight) > 0:
            unserved_cost = program.utility_weight[g] * (real_power(carried[g], -program.alpha) - 1)
        multiplier = _block_multiplier(program, cost, g, may_shed, unserved_cost, mu)
        point.multiplier[g] = multiplier
        point.unserved_dual[g] = unserved_cost - multiplier
        for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
            point.reduced_cost[q] = cost[q] - multiplier
    for bound_index in range(len(program.bounded)):
        # With an upper bound z - w = cost - l, z = mu / x and w = mu / (u - x).
        q = program.bounded[bound_index]
        net_cost = point.reduced_cost[q]
        # The smaller one of z and w follows from its product mu, the other one from z - w.
        upper_bound = program.upper_bound[bound_index]
        if net_cost < 0:
            point.reduced_cost[q] = mu / _centred_share(net_cost, upper_bound, mu)
            point.bound_dual[bound_index] = point.reduced_cost[q] - net_cost
        else:
            point.bound_dual[bound_index] = mu / _centred_share(-net_cost, upper_bound, mu)
            point.reduced_cost[q] = net_cost + point.bound_dual[bound_index]


@inner_kernel
def _set_warm_shares(
    program: PresolvedProgram,
    may_shed: bool,
    point: Iterate,
    splits: FloatArray,
    g: int,
    mu: float,
    mix: float,
) -> None:
    """Set the shares of one block to (1 - mix) * initial splits + mix * central shares.

    The central share of a column is the mean of its cold-start share and mu / z, with its reduced
    cost z.

    Args:
        program: presolved program.
        may_shed: whether demand may be shed; otherwise the splits are normalised to a sum of 1.
        point: cold start with centred reduced costs; share and unserved of the block are written.
        splits: (D K,) initial share of its demand on each path k of demand d, at index d K + k.
        g: index of the block.
        mu: complementarity of each share and its reduced cost.
        mix: weight of the central shares, 0 to 1.
    """
    has_bounds = len(program.bound_index) > 0
    # Sum of the initial splits of the demand.
    split_sum = 0.0
    for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
        if program.slot[q] >= 0:
            split_sum += splits[program.slot[q]]
    # Factor on the splits; unserved share under the new shares; unserved share of the given splits
    # that no shedding column has taken yet.
    normalisation = 1.0
    unserved = 1.0
    remaining_unserved = max(0.0, 1 - split_sum)
    if not may_shed:
        # Normalise the splits to a sum of 1; without any traffic, use central shares only.
        normalisation = 1 / split_sum if split_sum > 0 else 0.0
        mix = mix if split_sum > 0 else 1.0
    for q in range(program.block_ptr[g], program.block_ptr[g + 1]):
        bound_index = program.bound_index[q] if has_bounds else -1
        upper_bound = program.upper_bound[bound_index] if bound_index >= 0 else 1.0
        if program.slot[q] >= 0:
            initial_share = normalisation * splits[program.slot[q]]
        else:
            # Shedding columns take the unserved share, the last step first.
            initial_share = min(upper_bound, remaining_unserved)
            remaining_unserved -= initial_share
        # Mean of the cold-start share and of mu / z.
        central_share = 0.5 * (point.share[q] + mu / point.reduced_cost[q])
        point.share[q] = (1 - mix) * initial_share + mix * central_share
        if bound_index >= 0:
            point.share[q] = min(point.share[q], _MAX_BOUND_FRACTION * upper_bound)
        unserved -= point.share[q]
    if may_shed:
        central_share = 0.5 * (point.unserved[g] + mu / point.unserved_dual[g])
        point.unserved[g] = max(unserved, mix * central_share)


@inner_kernel
def start_for_gap(gap: float) -> Start:
    """Return the warm start for a point with a certified gap: initial mu and mix grow with the gap.

    A gap that is not a number gives the largest mu and mix.
    """
    if not gap >= 0:
        return Start(True, _MAX_MU, _MAX_MIX)
    initial_mu = min(max(_MU_PER_GAP * gap, _MIN_MU), _MAX_MU)
    return Start(True, initial_mu, min(_MIX_PER_GAP * gap, _MAX_MIX))


@inner_kernel
def warm_start(
    program: PresolvedProgram,
    may_shed: bool,
    point: Iterate,
    splits: FloatArray,
    prices: FloatArray,
    start: Start,
) -> None:
    """Move a cold start near initial splits and prices; the result is strictly feasible.

    Shares mix the initial splits with central shares (the mean of the cold start and mu / z, with
    reduced costs z), so that none is close to 0.  Prices are the initial ones, the smallest raised;
    each block is centred for them.  Prices without information (all 0, or infinite) leave the cold
    start as it is.

    Args:
        program: presolved program of Q columns (paths), G blocks (demands), n rows (links).
        may_shed: whether demand may be shed.
        point: the cold start; receives the warm one.
        splits: (D K,) feasible share of its demand on each path k of demand d, at index d K + k.
        prices: (E,) dual price of each link of the network, value per Gbit/s.
        start: initial mu and mix.
    """
    rows = len(program.capacity)
    blocks = len(program.rate)
    num_columns = len(program.column_value)
    price_sum = 0.0
    for r in range(rows):
        price_sum += prices[program.link[r]] / program.scale
    # Prices of 0 or infinity contain no information.
    if not 0 < price_sum < np.inf:
        return
    # Prices of the rows in units of the program, the smallest raised; sum of capacity times price.
    capacity_price = 0.0
    for r in range(rows):
        price = prices[program.link[r]] / program.scale
        point.price[r] = max(price, _MIN_WARM_PRICE * price_sum / rows)
        capacity_price += program.capacity[r] * point.price[r]
    value_scale = 1.0
    if not may_shed:
        # Normalise the prices: the sum of capacity times price is 1.
        for r in range(rows):
            point.price[r] /= capacity_price
        value_scale = point.theta[0]
    # mu of each complementarity pair: initial_mu times the scale of the optimal value (1 or theta),
    # over the number of pairs.
    mu = start.initial_mu * value_scale / (num_columns + rows + (blocks if may_shed else 0))
    _centre_blocks(program, may_shed, mu, point)
    for g in range(blocks):
        _set_warm_shares(program, may_shed, point, splits, g, mu, start.mix)
    _set_bound_slacks(program, point)
    # (n,) link loads, Gbit/s; slacks at least mu / price, within a part of the capacity.
    load = np.empty(rows)
    link_loads(program, point.share, load)
    if not may_shed:
        max_utilisation = 0.0
        for r in range(rows):
            max_utilisation = max(max_utilisation, load[r] / program.capacity[r])
        point.theta[0] = _WARM_THETA * max_utilisation
    for r in range(rows):
        capacity = program.capacity[r] if may_shed else program.capacity[r] * point.theta[0]
        point.slack[r] = max(capacity - load[r], min(mu / point.price[r], _WARM_SLACK * capacity))


@inner_kernel
def carry_over(
    full_program: PresolvedProgram,
    old_restricted: Restricted,
    old_point: Iterate,
    mu: float,
    new_restricted: Restricted,
    new_point: Iterate,
) -> None:
    """Move an interior point of one restricted program to another one with more columns.

    A new column gets the share mu / z, with its reduced cost z = A' y - c - l; the multiplier l of
    its demand falls where this share would exceed a limit, and the other shares make room.  A new
    row has the price mu / slack.  The point stays dual feasible; loads differ from capacity less
    slack by the new shares, a primal residual that the next Newton steps remove.

    Args:
        full_program: the full program of Q columns, G blocks, n rows.
        old_restricted: restricted program of the point.
        old_point: interior point of ``old_restricted``.
        mu: mean complementarity of the point.
        new_restricted: restricted program that contains all columns of ``old_restricted``.
        new_point: receives the point.
    """
    program = new_restricted.program
    # (Q,) and (G,) index of each column and block in the old program, -1 for a new one.
    old_column = np.full(len(full_program.column_value), -1)
    for i in range(len(old_restricted.column)):
        old_column[old_restricted.column[i]] = i
    old_block = np.full(len(full_program.rate), -1)
    for i in range(len(old_restricted.block)):
        old_block[old_restricted.block[i]] = i
    # Present shares, and the loads (n',) that they cause.
    for q in range(len(new_restricted.column)):
        i = old_column[new_restricted.column[q]]
        new_point.share[q] = old_point.share[i] if i >= 0 else 0.0
    load = np.empty(len(program.capacity))
    link_loads(program, new_point.share, load)
    # Rows: present ones stay; a new one has the slack that the loads leave.
    for r in range(len(new_restricted.row)):
        i = new_restricted.row[r]
        if i < 0:
            continue
        if old_restricted.row[r] >= 0:
            new_point.price[i] = old_point.price[old_restricted.row[r]]
            new_point.slack[i] = old_point.slack[old_restricted.row[r]]
        else:
            capacity = program.capacity[i]
            new_point.slack[i] = max(capacity - load[i], _MIN_NEW_SLACK * capacity)
            new_point.price[i] = mu / new_point.slack[i]
    # (Q',) cost of each column: A' y less its value.
    cost = np.empty(len(program.column_value))
    path_prices(program, new_point.price, cost)
    axpy(-1.0, program.column_value, cost)
    for g in range(len(program.rate)):
        first = program.block_ptr[g]
        end = program.block_ptr[g + 1]
        # Index of the block in the old program, -1 for a new one.
        old_block_index = old_block[new_restricted.block[g]]
        # A demand without columns so far is unserved.
        new_point.multiplier[g] = (
            old_point.multiplier[old_block_index] if old_block_index >= 0 else -mu
        )
        new_point.unserved[g] = old_point.unserved[old_block_index] if old_block_index >= 0 else 1.0
        # The multiplier falls so far that the reduced costs z of new columns are large enough.
        new_multiplier = new_point.multiplier[g]
        for q in range(first, end):
            if old_column[new_restricted.column[q]] < 0:
                new_multiplier = min(new_multiplier, cost[q] - mu / _MAX_NEW_SHARE)
        # Unserved share, and reduced costs: falling multipliers and new rows only raise them.
        multiplier_decrease = new_point.multiplier[g] - new_multiplier
        new_point.multiplier[g] = new_multiplier
        new_point.unserved_dual[g] = multiplier_decrease
        new_point.unserved_dual[g] += (
            old_point.unserved_dual[old_block_index] if old_block_index >= 0 else mu
        )
        # Sum of all shares: 1 at the present point, plus the shares mu / z of new columns.
        share_sum = 1.0
        for q in range(first, end):
            i = old_column[new_restricted.column[q]]
            if i >= 0:
                min_reduced_cost = old_point.reduced_cost[i] + multiplier_decrease
                new_point.reduced_cost[q] = max(min_reduced_cost, cost[q] - new_multiplier)
            else:
                new_point.reduced_cost[q] = cost[q] - new_multiplier
                new_point.share[q] = mu / new_point.reduced_cost[q]
                share_sum += new_point.share[q]
        # The shares of the demand sum to 1.
        if share_sum > 1:
            new_point.unserved[g] /= share_sum
            for q in range(first, end):
                new_point.share[q] /= share_sum
