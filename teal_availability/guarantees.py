"""Bandwidth guarantees by rates reserved on paths before any failure (public name: promises).

An ingress moves the traffic of failed paths to surviving paths, up to the rates reserved there;
reserved rates never exceed capacities, so no failure causes congestion. Let p[d, s] be the exact
probability of survival state s of demand d (:mod:`teal_availability.survival`), and r[d, s] the sum
of the rates on the paths that survive in it, as a share of the demand. Two programs are linear:

- *least expected loss*: max sum_d rate[d] sum_s p[d, s] min(1, r[d, s]), with rate[d] of demand d;
- *common share* at availability beta: the least mean share of any demand in the worst 1 - beta of
  the time, maximised over the rates,

      max  min_d  max_{a <= 1}  a - sum_s p[d, s] max(0, a - r[d, s]) / (1 - beta),

  one minus the conditional value at risk (CVaR) of the lost share (Rockafellar and Uryasev, 2000;
  TEAVAR, Bogle et al., SIGCOMM 2019), separately for each demand. Every demand keeps this share in
  at least beta of the time. Residual capacity then lowers the expected loss.

Variables are shares of the demands; link prices (duals) certify both. Entry points:
:func:`guarantee_min_loss`, :func:`guarantee_common_fractions`, :func:`common_quantile`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from teal import InputError, Problem, project, solve
from teal.deprecated import with_old_attributes, with_old_keywords
from teal.network.path_links import path_links_of
from teal.problem.bounds import gap_between
from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.lp import LpResult, RangeConstraint, solve_lp, solve_milp
from teal_availability.certificates import (
    common_share_bound,
    expected_share,
    expected_share_bound,
    feasible_weights,
    quantile_shares,
    scale_to_capacities,
    tail_mean_shares,
)
from teal_availability.matrix import (
    capacity_of,
    classes_of,
    demand_of,
    num_classes,
    path_link_incidence,
)
from teal_availability.survival import SurvivalStates
from teal_availability.tolerances import TIME_TOLERANCE, check_availability, max_missed_time

# Smallest probability of a survival state, above rounding.
_MIN_PROBABILITY = 1e-15
# Largest number of survival states of a linear program; HiGHS takes 20 s for 73,000.
_MAX_ROWS = 300_000
# Survival states from which the interior-point method is faster than the simplex method, for
# programs without costs of single rates. With such costs the simplex method is faster: least loss
# on Germany50 takes 0.5 s instead of 5.6 s.
_MIN_ROWS_INTERIOR_POINT = 3_000
# Largest number of survival states of an integer program.
_MAX_ROWS_INTEGER = 4_000
# Certified gap of the total flow, for networks whose linear program is too large.
_FLOW_GAP = 1e-3
# Relative part of a common share given up for lower classes and a lower expected loss.
_LEXICOGRAPHIC_TOLERANCE = 1e-6


@with_old_attributes
@dataclasses.dataclass(frozen=True, eq=False)
class Guarantee:
    """Reserved rates with a certified value.

    Attributes:
        rates: (D, K) Gbit/s on each path; their loads are within capacities.
        value: expected delivered share of all traffic, or the common share.
        bound: upper bound on the value of any rates on these paths.
        prices: (E,) link prices, which prove the bound together with ``weights``.
        weights: (D, 2^K) dual weights of the survival states. For the CVaR of the largest loss they
            are sums over network states, while its bound uses the weight of each network state.
        is_excluded: (D,) whether a demand is excluded from the common share: it has no path for
            1 - availability of the time or longer.
    """

    rates: FloatArray
    value: float
    bound: float
    prices: FloatArray
    weights: FloatArray
    is_excluded: BoolArray

    @property
    def gap(self) -> float:
        """Relative gap (bound - value) / bound; 0 where both are 0."""
        return gap_between(self.value, self.bound, 1.0)


class _SurvivalRows:
    """Columns and rows shared by the linear programs of guarantees.

    A column is one of P paths of the included demands; its variable is the rate reserved on the
    path, as a share of the demand. A row is one of R survival states of the included demands, with
    positive probability; the states in which no path survives have no row.

    Attributes:
        slot: (P,) position d K + k of each path: path k of demand d, with K candidate paths per
            demand.
        loads: (E, P) Gbit/s that a share of 1 on a path puts on each link.
        capacity: (E,) Gbit/s.
        demand_index: (R,) demand of each row.
        path_set: (R,) survival state of each row: bit k is 1 if path k survives.
        probability: (R,) probability of each row's survival state.
        path_survives: (R, P) 1 where a path of the row's demand survives.
        demand_rate: (R,) Gbit/s of each row's demand.

    Args:
        problem: one matrix.
        survival_states: probabilities of its survival states.
        is_included: (D,) whether the program includes a demand.
    """

    def __init__(
        self, problem: Problem, survival_states: SurvivalStates, is_included: BoolArray
    ) -> None:
        """Select the P paths and R survival states of the included demands, and build their
        matrices.

        Args:
            problem: one matrix.
            survival_states: probabilities of its survival states.
            is_included: (D,) whether the programs include a demand.
        """
        demand = demand_of(problem)
        path_links = path_links_of(problem.paths)
        num_paths = problem.paths.num_paths
        is_live_path = problem.path_mask[0].cpu().numpy().reshape(-1)
        # Columns: paths of the included demands, without links of capacity 0, as indices into the
        # paths of all demands.
        included_paths = np.flatnonzero(
            is_included[path_links.slot // num_paths] & is_live_path[path_links.slot]
        )
        incidence = path_link_incidence(problem.paths)[included_paths]
        self.slot = path_links.slot[included_paths]
        self.capacity = capacity_of(problem)
        # (E, P) Gbit/s on each link if a path carries its whole demand.
        self.loads = (sp.diags_array(demand[self.slot // num_paths]) @ incidence).T.tocsr()
        # Rows: survival states that occur; nothing arrives while no path survives.
        has_row = (survival_states.probability > _MIN_PROBABILITY) & is_included[:, None]
        has_row[:, 0] = False
        self.demand_index, self.path_set = np.nonzero(has_row)
        self.probability = survival_states.probability[has_row]
        self.demand_rate = demand[self.demand_index]
        # (R, P) incidence of surviving paths, from the columns (R, K) of the paths of each row's
        # demand: -1 for paths that are not in the program.
        column_of_slot = np.full(is_included.size * num_paths, -1, dtype=np.int64)
        column_of_slot[self.slot] = np.arange(len(included_paths))
        path_columns = column_of_slot[self.demand_index[:, None] * num_paths + np.arange(num_paths)]
        row, path = np.nonzero(survival_states.survives[self.path_set] & (path_columns >= 0))
        self.path_survives = sp.csr_array(
            (np.ones(len(row)), (row, path_columns[row, path])),
            shape=(len(self.path_set), len(included_paths)),
        )

    def to_table(self, values: FloatArray, survival_states: SurvivalStates) -> FloatArray:
        """Scatter one value per row into a table by demand and survival state.

        Args:
            values: (R,) value of each row.
            survival_states: survival states of the demands, which give the shape of the table.

        Returns:
            (D, 2^K) the values; 0 where the program has no row.
        """
        table = np.zeros_like(survival_states.probability)
        table[self.demand_index, self.path_set] = values
        return table

    def rates(self, shares: FloatArray, problem: Problem) -> FloatArray:
        """Convert shares of the demands to rates on the candidate paths.

        Args:
            shares: (P,) reserved rate on each path of the program, as a share of its demand.
            problem: one matrix.

        Returns:
            (D, K) Gbit/s, scaled down where rounding errors exceed a link capacity.
        """
        path_shares = np.zeros(problem.paths.mask.size)
        path_shares[self.slot] = np.maximum(shares, 0.0)
        rates = path_shares.reshape(problem.paths.mask.shape) * demand_of(problem)[:, None]
        return scale_to_capacities(problem, rates)

    def solve(
        self, cost: FloatArray, blocks: Sequence[Sequence[Any]], rhs: FloatArray, **options: Any
    ) -> LpResult:
        """Minimise ``cost @ x`` over the variables x subject to ``A x <= rhs`` and their bounds.

        Args:
            cost: (n,) cost of each variable.
            blocks: A as rows of sparse blocks, None for zero blocks.
            rhs: right-hand side of all rows.
            options: bounds ``low`` (0 by default) and ``high`` of the variables, and other keywords
                of :func:`teal.runtime.lp.solve_lp`.
        """
        return solve_lp(cost, (sp.block_array(blocks, format="csr"), rhs), **options)


@with_old_keywords
def guarantee_min_loss(
    problem: Problem, survival_states: SurvivalStates, seconds: float = math.inf
) -> Guarantee:
    """Compute the rates with the least expected loss, by a linear program.

    The program maximises the expected delivered traffic

        sum_d sum_s p[d, s] min(rate[d], S[d, s])

    within the link capacities. p[d, s] is the probability of survival state s of demand d, rate[d]
    the rate of the demand, and S[d, s] the sum of the rates on the paths that survive in s. If the
    program is too large, the rates come from the largest total flow instead; their bound is valid,
    too.

    Args:
        problem: one matrix under total_flow.
        survival_states: probabilities of its survival states.
        seconds: time limit.

    Raises:
        SolverError: the program was not solved in time.
    """
    if not is_tractable(survival_states):
        return _guarantee_from_max_flow(problem, survival_states, seconds)
    # Variables: shares reserved on paths, and the delivered share b <= 1 of each survival state.
    rows = _SurvivalRows(problem, survival_states, demand_of(problem) > 0)
    num_paths = len(rows.slot)
    num_rows = len(rows.demand_rate)
    num_links = len(rows.capacity)
    if not num_rows:
        return _zero_guarantee(problem, survival_states)
    # (R,) Gbit/s of each row's demand, weighted by the probability of its survival state.
    expected_rate = rows.probability * rows.demand_rate
    # Minimise -sum of expected_rate * b subject to link loads <= capacity and b <= the shares on
    # surviving paths. Costs are divided by their mean, so that HiGHS's absolute tolerances are
    # small.
    cost_unit = float(expected_rate.mean())
    result = rows.solve(
        np.concatenate([np.zeros(num_paths), -expected_rate / cost_unit]),
        [[rows.loads, None], [-rows.path_survives, sp.eye_array(num_rows)]],
        np.concatenate([rows.capacity, np.zeros(num_rows)]),
        high=np.concatenate([np.full(num_paths, np.inf), np.ones(num_rows)]),
        seconds=seconds,
    )
    # Certify the rates by the dual solution: link prices, and weights of the survival states, which
    # are duals per Gbit/s of the demand.
    rates = rows.rates(result.solution("least expected loss")[:num_paths], problem)
    weights = result.duals[num_links:] * cost_unit / rows.demand_rate
    return _certified_guarantee(
        problem,
        survival_states,
        rates,
        result.duals[:num_links] * cost_unit,
        rows.to_table(weights, survival_states),
    )


def _zero_guarantee(problem: Problem, survival_states: SurvivalStates) -> Guarantee:
    """Return a guarantee in which all rates are 0, for a matrix without deliverable demand.

    Args:
        problem: one matrix.
        survival_states: probabilities of its survival states.
    """
    zero_weights = np.zeros_like(survival_states.probability)
    rates = np.zeros((len(zero_weights), survival_states.num_paths))
    return _certified_guarantee(
        problem, survival_states, rates, np.zeros(problem.topology.num_links), zero_weights
    )


def guarantee_without_demands(
    problem: Problem, survival_states: SurvivalStates, excluded: BoolArray
) -> Guarantee:
    """Return the guarantee of a common share where no demand is included: all rates are 0.

    The share is 0 if demands are excluded, because they have no path for too long, else 1.

    Args:
        problem: one matrix.
        survival_states: probabilities of its survival states.
        excluded: (D,) whether a demand is excluded.
    """
    share = 0.0 if excluded.any() else 1.0
    guarantee = _zero_guarantee(problem, survival_states)
    return dataclasses.replace(guarantee, value=share, bound=share, is_excluded=excluded)


def _certified_guarantee(
    problem: Problem,
    survival_states: SurvivalStates,
    rates: FloatArray,
    prices: FloatArray,
    weights: FloatArray,
) -> Guarantee:
    """Return the guarantee of given rates, with the expected delivered share as its value.

    Args:
        problem: one matrix.
        survival_states: probabilities of its survival states.
        rates: (D, K) Gbit/s on each path.
        prices: (E,) link prices for the bound.
        weights: (D, 2^K) weights of the survival states for the bound.
    """
    return Guarantee(
        rates,
        expected_share(survival_states, demand_of(problem), rates),
        expected_share_bound(problem, survival_states, prices, weights),
        prices,
        weights,
        np.zeros(len(rates), dtype=bool),
    )


def is_tractable(survival_states: SurvivalStates) -> bool:
    """Return whether the linear programs of guarantees can be solved in minutes.

    They can if the demands have at most ``_MAX_ROWS`` survival states with positive probability.

    Args:
        survival_states: probabilities of the survival states.
    """
    return int((survival_states.probability[:, 1:] > _MIN_PROBABILITY).sum()) <= _MAX_ROWS


def _guarantee_from_max_flow(
    problem: Problem, survival_states: SurvivalStates, seconds: float
) -> Guarantee:
    """Reserve the rates of the largest total flow, and the residual capacity for alternative paths.

    The link prices of the flow give the upper bound on the expected delivered share.

    Args:
        problem: one matrix under total_flow.
        survival_states: probabilities of its survival states.
        seconds: time limit of the flow.
    """
    # Rates of the largest total flow.
    flow_result = solve(problem, gap=_FLOW_GAP, deadline=seconds)
    demand = problem.demand[0][:, None]
    rates = flow_result.splits[0].to(problem.demand) * demand
    # Reserve the residual capacity for alternative paths: paths with less than half of the demand.
    # Start from even splits, and scale them down to the residual capacity (without refill rounds,
    # which would distribute the capacity that stays free).
    residual = (
        problem.capacity[0] - problem.loads(flow_result.splits.to(problem.demand))[0]
    ).clamp(min=0)
    is_alternative = problem.path_mask[0] & (2 * rates < demand)
    even_splits = is_alternative / is_alternative.sum(-1, keepdim=True).clamp(min=1)
    alternative_splits = project(
        problem.with_capacity(residual), even_splits[None].to(problem.demand), refill=0
    )[0]
    # Compute the bound from the link prices of the flow.
    prices = np.asarray(flow_result.prices[0].to("cpu", torch.float64), dtype=np.float64)
    scaled_rates = scale_to_capacities(problem, (rates + alternative_splits * demand).cpu().numpy())
    weights = feasible_weights(problem, survival_states, prices)
    return _certified_guarantee(problem, survival_states, scaled_rates, prices, weights)


def demands_without_path(
    survival_states: SurvivalStates, demand: FloatArray, availability: float
) -> BoolArray:
    """Return (D,) whether a demand above 0 has no surviving path for 1 - availability of the time
    or longer.

    Args:
        survival_states: survival states of the demands.
        demand: (D,) Gbit/s.
        availability: share of the time, in (0, 1).
    """
    # Slightly less than 1 - availability: a probability of 1 - availability with a rounding error
    # counts as reached.
    max_time_without_path = (1 - availability) * (1 - TIME_TOLERANCE)
    is_disconnected: BoolArray = (demand > 0) & (
        survival_states.probability[:, 0] >= max_time_without_path
    )
    return is_disconnected


@with_old_keywords
def guarantee_common_fraction(
    problem: Problem,
    survival_states: SurvivalStates,
    availability: float,
    seconds: float = math.inf,
) -> Guarantee:
    """Compute the rates with the largest common share at an availability, and among them those
    with the least expected loss.

    The common share is the smallest over all demands of the mean delivered share in the worst
    1 - availability of the time.

    Args:
        problem: one matrix under total_flow, without classes.
        survival_states: probabilities of its survival states.
        availability: share of the time, in (0, 1).
        seconds: time limit of each program.

    Raises:
        InputError: another availability, classes, or too large a network.
        SolverError: the program was not solved in time.
    """
    if problem.classes is not None:
        expected = "demands without classes (guarantee_common_fractions supports classes)"
        raise InputError("common-share", "classes", expected, ", ".join(problem.classes.names))
    return guarantee_common_fractions(problem, survival_states, availability, seconds)[0]


@with_old_keywords
def guarantee_common_fractions(
    problem: Problem,
    survival_states: SurvivalStates,
    availability: float,
    seconds: float = math.inf,
) -> list[Guarantee]:
    """Compute the rates with the largest common share of each class, the highest class first, and
    among them those with the least expected loss.

    The common share of a class is the smallest over its demands of the mean delivered share in the
    worst 1 - availability of the time. The classes are optimised in lexicographic order: while the
    share of a class is maximised, the classes above it keep theirs. The bound of a class holds for
    all rates that keep the shares of the classes above it.

    Args:
        problem: one matrix; without classes all demands are one class.
        survival_states: probabilities of its survival states.
        availability: share of the time, in (0, 1).
        seconds: time limit of each program.

    Returns:
        one guarantee per class, all with the same rates. Demands without a path for
        1 - availability of the time or longer are excluded and have no rates.

    Raises:
        InputError: another availability, or too large a network.
        SolverError: a program was not solved in time.
    """
    check_availability(availability, "promise")
    if not is_tractable(survival_states):
        raise InputError.invalid(
            "common-share",
            "network",
            f"the demands have more than {_MAX_ROWS:,} survival states",
            "use a smaller --num-paths, or --path-method edge-disjoint",
        )
    demand = demand_of(problem)
    class_of = classes_of(problem)
    is_excluded = demands_without_path(survival_states, demand, availability)
    is_included = (demand > 0) & ~is_excluded
    # Indices of the classes that have included demands.
    active_classes = [
        c for c in range(num_classes(problem)) if (is_included & (class_of == c)).any()
    ]
    # (D,) share that a demand of an upper class keeps; NaN for demands of other classes.
    guaranteed_share = np.full(len(demand), np.nan)
    rates = np.zeros((len(demand), survival_states.num_paths))
    duals_by_class = {}
    # Maximise the common share of each class in turn, the highest first.
    for class_index in active_classes:
        in_class = class_of == class_index
        is_active = is_included & (class_of <= class_index)
        rows = _SurvivalRows(problem, survival_states, is_active)
        program = _CommonShareProgram(
            rows, survival_states, is_active, guaranteed_share, availability
        )
        largest_share_result = program.solve_largest_share(seconds)
        duals_by_class[class_index] = program.duals(largest_share_result, survival_states)
        # After the last class, residual capacity lowers the expected loss.
        final_result = (
            program.solve_least_loss(largest_share_result, seconds)
            if class_index == active_classes[-1]
            else largest_share_result
        )
        rates = rows.rates(final_result.solution("common share")[: len(rows.slot)], problem)
        min_share = tail_mean_shares(survival_states, demand, rates, availability)[
            is_included & in_class
        ].min()
        guaranteed_share[in_class] = min_share * (1 - _LEXICOGRAPHIC_TOLERANCE)
    return _guarantees_of_classes(problem, survival_states, availability, rates, duals_by_class)


def _guarantees_of_classes(
    problem: Problem,
    survival_states: SurvivalStates,
    availability: float,
    rates: FloatArray,
    duals_by_class: Mapping[int, tuple[FloatArray, FloatArray, FloatArray]],
) -> list[Guarantee]:
    """Return the guarantee of each class, with value and bound.

    The values are common shares of the final rates, which serve all classes. The bound of a class
    assumes that the upper classes keep exactly these values, so that printed numbers agree.

    Args:
        problem: one matrix.
        survival_states: probabilities of its survival states.
        availability: share of the time, in (0, 1).
        rates: (D, K) Gbit/s on each path, of all classes.
        duals_by_class: by index of each class that has demand, from the program of the class:
            link prices (E,), weights of survival states (D, 2^K), and weights of demands (D,).
    """
    demand = demand_of(problem)
    class_of = classes_of(problem)
    is_excluded = demands_without_path(survival_states, demand, availability)
    is_included = (demand > 0) & ~is_excluded
    # (D,) mean share of each demand in the worst time, and the share that demands of upper classes
    # keep, NaN for demands of other classes.
    mean_shares = tail_mean_shares(survival_states, demand, rates, availability)
    guarantees = []
    guaranteed_share = np.full(len(demand), np.nan)
    for class_index in range(num_classes(problem)):
        # Without included demands, the common share of a class is 0 or 1.
        in_class = class_of == class_index
        if class_index not in duals_by_class:
            guarantee = guarantee_without_demands(problem, survival_states, is_excluded & in_class)
            guarantees.append(dataclasses.replace(guarantee, rates=rates))
            continue
        # Smallest share of the class, and its bound while upper classes keep their values.
        value = float(mean_shares[is_included & in_class].min())
        prices, weights, demand_weights = duals_by_class[class_index]
        bound = common_share_bound(
            problem,
            survival_states,
            availability,
            prices,
            weights,
            demand_weights,
            guaranteed_share,
        )
        guarantees.append(Guarantee(rates, value, bound, prices, weights, is_excluded & in_class))
        guaranteed_share[in_class] = value
    return guarantees


class _CommonShareProgram:
    """Linear program of the largest common share of some demands, while other demands keep
    guaranteed shares.

        max  t   subject to link loads <= capacity and, for each demand d and survival state s,
        u[d, s] >= a[d] - r[d, s],
        a[d] - sum_s p[d, s] u[d, s] / (1 - beta) >= t, or the guaranteed share of d.

    Variables: reserved rates as shares of the demands, shortfalls u[d, s] >= 0, levels a[d] <= 1
    (value at risk), and the common share t. r[d, s] is the sum of the shares reserved on the paths
    of demand d that survive in state s, p[d, s] the probability of the state, and beta the
    availability. The least expected loss adds delivered shares b[d, s]. In the state without a
    surviving path the shortfall is a[d].

    Args:
        rows: columns and rows of the included demands.
        survival_states: probabilities of their survival states.
        is_included: (D,) whether the program includes a demand.
        guaranteed_share: (D,) share that a demand keeps; NaN for demands of the common share.
        availability: beta, in (0, 1).
    """

    def __init__(
        self,
        rows: _SurvivalRows,
        survival_states: SurvivalStates,
        is_included: BoolArray,
        guaranteed_share: FloatArray,
        availability: float,
    ) -> None:
        """Build the constraint rows, right-hand sides and bounds of the program.

        Args:
            rows: columns (paths) and rows (survival states) of the included demands.
            survival_states: probabilities of their survival states.
            is_included: (D,) whether the program includes a demand.
            guaranteed_share: (D,) share that a demand keeps; NaN for demands of the common share.
            availability: share of the time, in (0, 1).
        """
        self._rows = rows
        self._is_included = is_included
        tail_time = 1 - availability
        # Variables in this order: shares reserved on paths, shortfall u of each row, level a of
        # each included demand (value at risk), and the common share t. First the (D,) coefficient
        # of a for the state without a surviving path, whose shortfall is a.
        self._no_path_weight = survival_states.probability[:, 0] / tail_time
        num_paths = len(rows.slot)
        num_rows = len(rows.demand_rate)
        num_demands = int(is_included.sum())
        # The common share is the last variable.
        self._num_before_share = num_paths + num_rows + num_demands
        # Position of each included demand among the included ones, -1 for other demands.
        demand_position = np.full(len(is_included), -1, dtype=np.int64)
        demand_position[is_included] = np.arange(num_demands)
        # Coefficients of the levels a in the shortfall rows (1 for the row's demand), and of the
        # shortfalls u in the CVaR rows: probability / (1 - availability).
        row_and_demand = np.arange(num_rows), demand_position[rows.demand_index]
        level_incidence = sp.csr_array(
            (np.ones(num_rows), row_and_demand), shape=(num_rows, num_demands)
        )
        shortfall_weights = sp.csr_array(
            (rows.probability / tail_time, row_and_demand[::-1]), shape=(num_demands, num_rows)
        )
        # Row blocks: link loads, shortfalls, CVaR of each demand. Columns: path shares, u, a, t.
        # The level a also counts with the weight of the state without a path.
        # A CVaR row of a demand keeps a guaranteed share, or the common share t (column of ones).
        level_coefficients = sp.diags_array(1 - self._no_path_weight[is_included])
        is_common = np.isnan(guaranteed_share[is_included])
        self._blocks = [
            [rows.loads, None, None, sp.csr_array((len(rows.capacity), 1))],
            [-rows.path_survives, -sp.eye_array(num_rows), level_incidence, None],
            [None, shortfall_weights, -level_coefficients, is_common.astype(np.float64)[:, None]],
        ]
        # Right-hand sides: capacities, 0, and guaranteed shares. Upper bounds: a and t are at most
        # 1.
        min_share = np.where(is_common, 0.0, guaranteed_share[is_included])
        self._rhs = np.concatenate([rows.capacity, np.zeros(num_rows), -min_share])
        self._upper_bounds = np.concatenate(
            [np.full(num_paths + num_rows, np.inf), np.ones(num_demands + 1)]
        )

    def solve_largest_share(self, seconds: float) -> LpResult:
        """Return the solution of the linear program that maximises the common share t.

        Args:
            seconds: time limit.
        """
        return self._rows.solve(
            np.concatenate([np.zeros(self._num_before_share), [-1.0]]),
            self._blocks,
            self._rhs,
            high=self._upper_bounds,
            seconds=seconds,
            by_interior_points=len(self._rows.demand_rate) > _MIN_ROWS_INTERIOR_POINT,
        )

    def solve_least_loss(self, result: LpResult, seconds: float) -> LpResult:
        """Minimise the expected loss at the largest common share.

        Maximises the expected delivered traffic, the sum over demands d and survival states s of
        p[d, s] demand[d] b[d, s], where p[d, s] is the probability of a state and the variable
        b[d, s] the delivered share. The common share may decrease by a relative tolerance.

        Args:
            result: solution of the largest common share; returned if this program is not solved.
            seconds: time limit.
        """
        rows = self._rows
        num_rows = len(rows.demand_rate)
        largest_share = result.solution("common share")[-1]
        expected_rate = rows.probability * rows.demand_rate
        # Add the variables b, at most the shares on surviving paths, and a lower bound on the
        # common share, the last variable of the first program. Costs are divided by their mean.
        least_loss_result = rows.solve(
            np.concatenate(
                [np.zeros(self._num_before_share + 1), -expected_rate / float(expected_rate.mean())]
            ),
            [
                *([*block, None] for block in self._blocks),
                [-rows.path_survives, None, None, None, sp.eye_array(num_rows)],
            ],
            np.concatenate([self._rhs, np.zeros(num_rows)]),
            low=np.concatenate(
                [
                    np.zeros(self._num_before_share),
                    [largest_share * (1 - _LEXICOGRAPHIC_TOLERANCE)],
                    np.zeros(num_rows),
                ]
            ),
            high=np.concatenate([self._upper_bounds, np.ones(num_rows)]),
            seconds=seconds,
        )
        # Keep the largest share if this program is not solved.
        return (
            least_loss_result
            if least_loss_result.is_solved and least_loss_result.x is not None
            else result
        )

    def duals(
        self, result: LpResult, survival_states: SurvivalStates
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the dual values from which the upper bound on the common share is computed.

        Args:
            result: solution of the largest common share.
            survival_states: probabilities of the survival states.

        Returns:
            link prices (E,), weights of survival states (D, 2^K), and weights of demands (D,).
        """
        rows = self._rows
        num_links = len(rows.capacity)
        num_rows = len(rows.demand_rate)
        # The duals are in the order of the row blocks: links, survival states, demands. The state
        # without a surviving path has no row; its weight follows from that of its demand.
        demand_weights = np.zeros(len(self._is_included))
        demand_weights[self._is_included] = result.duals[num_links + num_rows :]
        weights = rows.to_table(result.duals[num_links : num_links + num_rows], survival_states)
        weights[:, 0] = demand_weights * self._no_path_weight
        return result.duals[:num_links], weights, demand_weights


@dataclasses.dataclass(frozen=True)
class Quantile:
    """Largest share that every demand keeps for at least the required fraction of the time.

    Attributes:
        value: share of the best rates found.
        bound: upper bound on the share of any rates.
    """

    value: float
    bound: float


@with_old_keywords
def common_quantile(
    problem: Problem,
    survival_states: SurvivalStates,
    availability: float,
    promise: Guarantee | None = None,
    seconds: float = 10.0,
) -> Quantile | None:
    """Compute the largest share that every demand keeps in at least ``availability`` of the time.

    The common share, a mean over the worst states (CVaR), is a lower bound on this quantile. An
    integer program computes it, with binaries z[d, s], 1 if demand d keeps the share in survival
    state s:

        max share,  r[d, s] >= share - 1 + z[d, s],
        sum_s p[d, s] (1 - z[d, s]) <= 1 - availability,

    where r[d, s] is the sum of the shares of demand d reserved on the paths that survive in state
    s, and p[d, s] the probability of the state. The program has the same demands as a common share.
    States more probable than 1 - availability have z[d, s] = 1.

    Args:
        problem: one matrix under total_flow.
        survival_states: probabilities of its survival states.
        availability: share of the time, in (0, 1).
        promise: guarantee of a common share, whose rates are a candidate, too; None for none.
        seconds: time limit.

    Returns:
        the share and its upper bound; None if the integer program is too large, or HiGHS has no
        solution in time.
    """
    check_availability(availability, "promise")
    demand = demand_of(problem)
    is_included = (demand > 0) & ~demands_without_path(survival_states, demand, availability)
    # Integer programs are limited to small sizes.
    rows = _SurvivalRows(problem, survival_states, is_included)
    if not is_included.any() or len(rows.demand_rate) > _MAX_ROWS_INTEGER:
        return None
    result = _solve_quantile_program(rows, survival_states, is_included, availability, seconds)
    # Keep the better of the rates of the integer program and those of the guarantee.
    candidates = [] if promise is None else [promise.rates]
    if result.x is not None:
        candidates.append(rows.rates(result.x[: len(rows.slot)], problem))
    if not candidates or not math.isfinite(result.bound):
        return None
    value = max(
        float(quantile_shares(survival_states, demand, rates, availability)[is_included].min())
        for rates in candidates
    )
    # HiGHS minimises -share, so that minus its bound limits the share from above.
    return Quantile(value, max(value, min(1.0, max(0.0, -result.bound))))


def _solve_quantile_program(
    rows: _SurvivalRows,
    survival_states: SurvivalStates,
    is_included: BoolArray,
    availability: float,
    seconds: float,
) -> LpResult:
    """Solve the integer program of the largest share kept in at least ``availability`` of the time.

    Variables: reserved rates as shares of the demands (P,), binaries z (R,), 1 if the share is kept
    in the row's survival state, and the share. Probabilities are divided by 1 - availability.

    Args:
        rows: columns (P paths) and rows (R survival states) of the included demands.
        survival_states: probabilities of the survival states.
        is_included: (D,) whether the program includes a demand.
        availability: share of the time, in (0, 1).
        seconds: time limit.
    """
    num_paths = len(rows.slot)
    num_rows = len(rows.demand_rate)
    can_miss, missable_probability, min_kept_probability = _missed_time_coefficients(
        rows, survival_states, is_included, availability
    )
    # Constraint rows over the variables: link loads, kept shares, and kept time.
    load_rows = sp.hstack([rows.loads, sp.csr_array((len(rows.capacity), num_rows + 1))])
    # With r, the sum of the shares on surviving paths: r - z - share >= -1 where the share may be
    # missed, else r - share >= 0.
    share_column = np.ones((num_rows, 1))
    share_rows = sp.hstack(
        [rows.path_survives, -sp.diags_array(can_miss.astype(float)), -share_column]
    )
    # Probability of the states in which each demand keeps the share, at least its minimum; the
    # column of the share is 0.
    time_rows = sp.hstack(
        [
            sp.csr_array((len(min_kept_probability), num_paths)),
            missable_probability,
            0 * min_kept_probability[:, None],
        ]
    )
    # Maximise the share to a gap of 0.01%: costs, constraints, and a vector that is 1 for integer
    # variables, the binaries z.
    return solve_milp(
        np.concatenate([np.zeros(num_paths + num_rows), [-1.0]]),
        [
            RangeConstraint(load_rows, high=rows.capacity),
            RangeConstraint(share_rows, low=np.where(can_miss, -1.0, 0.0)),
            RangeConstraint(time_rows, low=min_kept_probability),
        ],
        np.concatenate([np.zeros(num_paths), np.ones(num_rows), [0]]),
        high=np.concatenate([np.full(num_paths, np.inf), np.ones(num_rows + 1)]),
        seconds=seconds,
        relative_gap=1e-4,
    )


def _missed_time_coefficients(
    rows: _SurvivalRows,
    survival_states: SurvivalStates,
    is_included: BoolArray,
    availability: float,
) -> tuple[BoolArray, sp.csr_array, FloatArray]:
    """Return the coefficients of the probability constraints of the quantile program.

    A demand may miss the share in survival states with a total probability of 1 - availability.
    Without the probability that no path survives, this is the allowance for its R rows.

    Args:
        rows: columns (P paths) and rows (R survival states) of the included demands.
        survival_states: probabilities of the survival states.
        is_included: (D,) whether the program includes a demand.
        availability: share of the time, in (0, 1).

    Returns:
        (R,) whether the share may be missed in a row's survival state: its probability is at most
        the allowance; (demands, R) probabilities of these states; (demands,) minimum total
        probability of those in which the demand keeps the share. The latter two are divided by
        1 - availability and have one entry or row for each included demand.
    """
    tail_time = 1 - availability
    num_rows = len(rows.demand_rate)
    demand_position = np.full(len(is_included), -1, dtype=np.int64)
    demand_position[is_included] = np.arange(is_included.sum())
    # (D,) allowance: probability of missed states beyond the one without a surviving path.
    max_missed_probability = max_missed_time(availability) - survival_states.probability[:, 0]
    can_miss = rows.probability <= max_missed_probability[rows.demand_index]
    # Probabilities of the states that may be missed, by included demand.
    missable_probability = sp.csr_array(
        (
            np.where(can_miss, rows.probability, 0.0) / tail_time,
            (demand_position[rows.demand_index], np.arange(num_rows)),
        ),
        shape=(int(is_included.sum()), num_rows),
    )
    # A demand keeps the share in all other states; at most the allowance may be missed.
    min_kept_probability = (
        missable_probability.sum(1) - max_missed_probability[is_included] / tail_time
    )
    return can_miss, missable_probability, min_kept_probability
