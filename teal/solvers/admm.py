"""ADMM with Teal's variable splitting, in scaled rows, with the copies eliminated.

:func:`step` is one iteration, :func:`solve` a fixed number of them: the repair of a model's splits.

Teal (Xu et al., SIGCOMM 2023, section 3.4 and appendix C) copies each path flow once for each link
that the path uses, so that the capacity rows separate by link.  With splits x[d, k], copies
z[d, k, e], and rows divided by their capacity, the program is

    max  sum v demand x
    s.t.  sum_k x + s[d] = 1,   sum over paths through e of (demand/c) z + t[e] = 1,
                                 x[d, k] - z[d, k, e] = 0,   x, s, t >= 0,

with penalty rho (demand/c) on each copy, rho on a capacity row, and rho demand eta on a demand row.
One iteration minimises the augmented Lagrangian over (z, t, s), updates the multipliers, then
minimises over x.

The multipliers of all copies on a link come out equal to each other and to the multiplier y[e] of
the link's capacity row (z is free; x alone carries the sign constraint), so that the copies need
not be stored:

    y <- max(0, y + (load(x)/c - 1) / (1 + m));
    x <- argmin over x >= 0 of the demand's own K x K problem,
         h_k (x_k - x_old) + pathsum((2 y - y_old)/c) - v/rho + eta (sum x - q) = 0 where x_k > 0,
    q = 1 - s - u.

The state has one value per link and K + 1 values per demand; the textbook form stores several for
each of the (path, link) pairs (30 million on Kdl).  ``tests/solvers/test_admm.py`` holds the two
forms equal.

    symbol  meaning                                 unit            shape      name
    x       splits                                  share           (B, D, K)  splits
    v       value of a Gbit/s on a path             value/(Gbit/s)  (D, K)     path_value
    c       capacity                                Gbit/s          (B, E)     capacity
    rho     penalty                                 value * Gbit/s  (B, 1)     penalty
    y       multiplier of capacity rows and copies, 1               (B, E)     link_dual
            over rho
    u       multiplier of demand rows, scaled       1               (B, D)     demand_dual
    s       slack of the demand rows: the share     share           (B, D)     slack
            that is shed
    q       target of the sum of a demand's splits  share           (B, D, 1)  target
    h       sum of 1/c along a path                 1/(Gbit/s)      (B, D, K)  inverse_capacity_sum
    eta     mean of h over a demand's paths         1/(Gbit/s)      (B, D, 1)  demand_penalty
    m       utilisation if every path carried all   1               (B, E)     full_path_utilisation
            of its demand

Demands of rate 0 follow the same recursion without flow.

For max_link_utilisation the right-hand side 1 of the capacity rows is theta, minimised with (z, t),
which makes the y sum to 1/rho; demand rows are equalities.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from teal.problem import Problem
from teal.problem.problem import mean_capacity, mean_value
from teal.problem.prox import weighted_simplex

# Number of nodes from which Teal runs 5 iterations instead of 2.
_LARGE_NETWORK_NODES = 100
DEFAULT_RHO = 0.3  # penalty as a multiple of mean capacity * mean value


@dataclasses.dataclass(frozen=True, eq=False)
class AdmmState:
    """State of ADMM between two iterations.

    Attributes:
        splits: (B, D, K) x, possibly over capacity.
        link_dual: (B, E) y, multipliers of the capacity rows over the penalty.
        demand_dual: (B, D) u, scaled multipliers of the demand rows.
    """

    splits: Tensor
    link_dual: Tensor
    demand_dual: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class AdmmScaling:
    """Constants of the ADMM iteration for one problem.

    Attributes:
        penalty: (B, 1) rho, value * Gbit/s.
        inverse_capacity_sum: (B, D, K) h, sum of 1 / c along each path, 1/(Gbit/s).
        demand_penalty: (B, D, 1) eta, mean of h over a demand's paths, 1/(Gbit/s).
        full_path_utilisation: (B, E) m, utilisation if every path carried all of its demand.
    """

    penalty: Tensor
    inverse_capacity_sum: Tensor
    demand_penalty: Tensor
    full_path_utilisation: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class AdmmResiduals:
    """Residuals (B,) of an ADMM state, which are 0 at an optimum.

    Attributes:
        capacity: largest over-utilisation, load/c - 1 (0 for max_link_utilisation, which has no
            capacity rows).
        demand: largest violation of a demand row, as a share.
        change: largest change of a split or multiplier in the last iteration; link multipliers are
            scaled by 1 + m, like their rows.
    """

    capacity: Tensor
    demand: Tensor
    change: Tensor


class AdmmResult(NamedTuple):
    """Result of a fixed number of ADMM iterations.

    Attributes:
        splits: (B, D, K) splits, possibly over capacity.
        prices: (B, E) link prices, value per Gbit/s.
        residuals: residuals of the last state.
    """

    splits: Tensor
    prices: Tensor
    residuals: AdmmResiduals


def scaling(problem: Problem, rho: float = DEFAULT_RHO) -> AdmmScaling:
    """Compute the constants of the iteration: penalty rho, h, eta and m.

    h is the sum of 1 / c along a path with the capacities c, eta the mean of h over a demand's
    paths, and m the utilisation of a link if every path carried all of its demand.

    Args:
        problem: B matrices.
        rho: penalty as a multiple of mean capacity * mean value (of 1 for the min-max programs).
    """
    # h of live paths, and a harmless 1 for the others.
    inverse_capacity = problem.inverse_capacity
    is_live = problem.path_mask
    inverse_capacity_sum = problem.ops.path_sum(inverse_capacity)
    inverse_capacity_sum = torch.where(is_live, inverse_capacity_sum, 1).clamp(min=1e-30)
    # eta is the mean over the live paths.
    num_live_paths = is_live.sum(-1, keepdim=True).clamp(min=1)
    demand_penalty = (
        torch.where(is_live, inverse_capacity_sum, 0).sum(-1, keepdim=True) / num_live_paths
    )
    return AdmmScaling(
        penalty_of(problem, rho),
        inverse_capacity_sum,
        demand_penalty.clamp(min=1e-30),
        problem.full_path_utilisation,
    )


def penalty_of(problem: Problem, rho: float) -> Tensor:
    """Return (B, 1) the penalty of the augmented Lagrangian, value * Gbit/s.

    It is ``rho`` times the mean capacity times the mean value of a Gbit/s; ``rho`` alone in a
    min-max program, which has no values.
    """
    penalty_unit = mean_capacity(problem) * mean_value(problem)
    # Min-max programs have zero values.
    if problem.price_set.on_simplex:
        penalty_unit = torch.ones_like(problem.capacity[:, :1])
    return rho * penalty_unit.clamp(min=1e-30)


def start(
    problem: Problem, constants: AdmmScaling, splits: Tensor, prices: Tensor | None = None
) -> AdmmState:
    """Return the first ADMM state from splits and prices.

    The multipliers of the demand rows are 0.

    Args:
        problem: B matrices.
        constants: constants of the iteration.
        splits: (B, D, K) first splits.
        prices: (B, E) first link prices, of which only the ratios count in a min-max program; None
            for zero prices.
    """
    dual = first_link_dual(problem, constants.penalty, prices)
    return AdmmState(
        torch.where(problem.path_mask, splits, 0), dual, torch.zeros_like(problem.demand)
    )


def first_link_dual(problem: Problem, penalty: Tensor, prices: Tensor | None) -> Tensor:
    """Return (B, E) the first multipliers y = price c / rho of the capacity rows; 0 without prices.

    In a min-max program they are scaled to the sum 1 / rho.

    Args:
        problem: B matrices.
        penalty: (B, 1) rho.
        prices: (B, E) value per Gbit/s; None for zero prices.
    """
    if prices is None:
        return torch.zeros_like(problem.capacity)
    capacity_values = prices.to(problem.capacity) * problem.capacity
    return capacity_values * problem.price_set.scale(capacity_values.sum(1))[:, None] / penalty


def step(problem: Problem, constants: AdmmScaling, state: AdmmState) -> AdmmState:
    """Return the state after one ADMM iteration: multipliers of links and demands, then splits.

        y <- max(0, y + (load(x) / c - 1) / (1 + m)),   u <- max(0, u + sum x - 1),
        s = max(0, 1 - sum x - u_old),
        h_k (x_k - x_old) + pathsum((2 y - y_old) / c) - v / rho + eta (sum x - (1 - s - u)) = 0
        where x_k > 0.

    Here x are the splits, c the capacities, v the value of a Gbit/s on a path, y and u the
    multipliers of the capacity and the demand rows, s the share of a demand that is shed, and rho,
    h, eta and m constants of the iteration.  If all demand must be carried, s is 0 and u may be
    negative.

    Args:
        problem: B matrices.
        constants: rho, h, eta and m.
        state: splits (B, D, K), y (B, E) and u (B, D).
    """
    # Multipliers y and u, and the shed share s (from the old u).
    utilisation = problem.loads(state.splits) * problem.inverse_capacity
    link_dual = next_link_dual(
        problem, constants.penalty, constants.full_path_utilisation, utilisation, state.link_dual
    )
    split_sum = state.splits.sum(-1)
    demand_dual = state.demand_dual + split_sum - 1
    slack = torch.zeros_like(split_sum)
    if not problem.demand_set.carries_all:
        demand_dual = demand_dual.clamp(min=0)
        slack = (1 - split_sum - state.demand_dual).clamp(min=0)
    # Splits: the K x K system (diag(h) + eta 1 1') x = rhs of each demand, with x >= 0.
    scaled_value = problem.path_value / constants.penalty[..., None]
    path_price = problem.ops.path_sum((2 * link_dual - state.link_dual) * problem.inverse_capacity)
    split_target = (1 - slack - demand_dual)[..., None]
    rhs = (
        constants.inverse_capacity_sum * state.splits
        - path_price
        + scaled_value
        + constants.demand_penalty * split_target
    )
    splits = _nonnegative_solve(
        rhs, constants.inverse_capacity_sum, constants.demand_penalty, problem.path_mask
    )
    return AdmmState(splits, link_dual, demand_dual)


def residuals(
    problem: Problem, constants: AdmmScaling, previous_state: AdmmState, state: AdmmState
) -> AdmmResiduals:
    """Return the residuals of a state: largest row violations, and largest change in a step.

    Args:
        problem: B matrices.
        constants: constants of the iteration.
        previous_state: state before the last iteration.
        state: state after it.
    """
    # Violations of the demand rows (B, D) and of the capacity rows (B, E).
    split_sum = state.splits.sum(-1)
    carries_all = problem.demand_set.carries_all
    demand_violation = split_sum - 1
    over_utilisation = problem.utilisation(state.splits) - 1
    if carries_all:
        demand_violation = torch.where(problem.routable, demand_violation.abs(), 0)
        over_utilisation = torch.zeros_like(over_utilisation)
    demand_violation = torch.where(problem.demand > 0, demand_violation, 0)
    # Changes of splits and multipliers in the last iteration.
    changes = [
        (state.splits - previous_state.splits).flatten(1),
        (state.link_dual - previous_state.link_dual) * (1 + constants.full_path_utilisation),
        torch.where(problem.routable, state.demand_dual - previous_state.demand_dual, 0),
    ]
    return AdmmResiduals(
        over_utilisation.amax(1).clamp(min=0),
        demand_violation.amax(1).clamp(min=0),
        torch.cat(changes, 1).abs().amax(1),
    )


def link_prices(problem: Problem, constants: AdmmScaling, state: AdmmState) -> Tensor:
    """Return the link prices (B, E) of a state, value per Gbit/s.

    They are the multipliers of the capacity rows, times the penalty, over the capacities.
    """
    return constants.penalty * state.link_dual * problem.inverse_capacity


def solve(
    problem: Problem,
    splits: Tensor,
    iterations: int,
    rho: float = DEFAULT_RHO,
    prices: Tensor | None = None,
) -> AdmmResult:
    """Run ADMM iterations; return splits, link prices and residuals.

    Args:
        problem: B matrices.
        splits: (B, D, K) first splits.
        iterations: number of iterations.
        rho: penalty as a multiple of mean capacity * mean value.
        prices: (B, E) first link prices; None for zero prices.
    """
    constants = scaling(problem, rho)
    previous_state, state = _last_two_states(problem, constants, splits, iterations, prices)
    return AdmmResult(
        state.splits,
        link_prices(problem, constants, state),
        residuals(problem, constants, previous_state, state),
    )


def repaired(
    problem: Problem, splits: Tensor, iterations: int, rho: float, prices: Tensor
) -> tuple[Tensor, Tensor]:
    """Run ADMM iterations; return splits (B, D, K), possibly over capacity, and prices (B, E).

    Args:
        problem: B matrices.
        splits: (B, D, K) first splits.
        iterations: number of iterations.
        rho: penalty as a multiple of mean capacity * mean value.
        prices: (B, E) first link prices.
    """
    constants = scaling(problem, rho)
    _, state = _last_two_states(problem, constants, splits, iterations, prices)
    return state.splits, link_prices(problem, constants, state)


def _last_two_states(
    problem: Problem, constants: AdmmScaling, splits: Tensor, iterations: int, prices: Tensor | None
) -> tuple[AdmmState, AdmmState]:
    """Run ADMM iterations, and return the states before and after the last one.

    Args:
        problem: B matrices.
        constants: constants of the iteration.
        splits: (B, D, K) first splits.
        iterations: number of iterations; with 0 both states are the first one.
        prices: (B, E) first link prices; None for zero prices.
    """
    previous_state = state = start(problem, constants, splits, prices)
    for _ in range(iterations):
        previous_state = state
        state = step(problem, constants, state)
    return previous_state, state


def default_iterations(problem: Problem) -> int:
    """Return the number of ADMM iterations of the Teal paper: 2 below 100 nodes, else 5."""
    return 2 if problem.topology.num_nodes < _LARGE_NETWORK_NODES else 5


def next_link_dual(
    problem: Problem,
    penalty: Tensor,
    full_path_utilisation: Tensor,
    utilisation: Tensor,
    link_dual: Tensor,
) -> Tensor:
    """Return (B, E) the next multipliers y = max(0, y + (load(x) / c - 1) / (1 + m)).

    In a min-max program y = max(0, y + (load(x) / c - theta) / (1 + m)), with the theta for which
    the y sum to 1 / rho.  Failed links have y = 0.

    Args:
        problem: B matrices.
        penalty: (B, 1) penalty rho.
        full_path_utilisation: (B, E) m, utilisation if every path carried all of its demand.
        utilisation: (B, E) load(x) / c, utilisation under the present splits x.
        link_dual: (B, E) present multipliers y of the capacity rows.
    """
    step_size = 1 / (1 + full_path_utilisation)
    is_live = problem.capacity > 0
    if not problem.price_set.on_simplex:
        return torch.where(is_live, link_dual + (utilisation - 1) * step_size, 0).clamp(min=0)
    # y = max(0, y_old + (load(x) / c - theta) / (1 + m)), with the theta for which the y sum to
    # 1 / rho.
    return weighted_simplex(link_dual + utilisation * step_size, step_size, 1 / penalty, is_live)


def _nonnegative_solve(rhs: Tensor, diagonal: Tensor, coupling: Tensor, is_live: Tensor) -> Tensor:
    """Return the solution x >= 0 (B, D, K) of a K x K problem of each demand, exactly.

        h_k x_k + eta sum(x) = b_k where x_k > 0.

    Hence x_k = max(0, b_k - eta total) / h_k with the total sum(x).  The positive x_k have the
    largest b_k: of all prefixes of the descending order of b, the active set has the largest total,
    sum(b / h) / (1 + eta sum(1 / h)).

    Args:
        rhs: (B, D, K) right-hand sides b.
        diagonal: (B, D, K) diagonals h > 0.
        coupling: (B, D, 1) factors eta > 0 of sum(x).
        is_live: (B, D, K) live paths; others get 0.
    """
    rhs = torch.where(is_live, rhs, -torch.inf)
    # Total for every prefix of the sorted order; the active set gives the largest one.
    sorted_rhs, order = rhs.sort(-1, descending=True)
    sorted_reciprocals = torch.where(is_live, 1 / diagonal, 0).gather(-1, order)
    weighted_sum = (torch.where(sorted_reciprocals > 0, sorted_rhs, 0) * sorted_reciprocals).cumsum(
        -1
    )
    total = (
        (weighted_sum / (1 + coupling * sorted_reciprocals.cumsum(-1)))
        .amax(-1, keepdim=True)
        .clamp(min=0)
    )
    return torch.where(is_live, (rhs - coupling * total).clamp(min=0) / diagonal, 0)
