"""The path-form LP of some of the demands on given capacities, which several schemes solve.

With x[d, k] the flow on path k of demand d, v and cost the value and the cost of a unit of flow on
it, all in the unit of the matrix:

Value maximisation: max sum v x  s.t.  sum_k x[d, k] <= demand[d],  load[e] <= capacity[e],  x >= 0.
least_cost: min sum cost x  s.t.  sum_k x[d, k] = demand[d],  load[e] <= capacity[e],  x >= 0.
max_link_utilisation: min theta  s.t.  sum_k x[d, k] = demand[d],  load[e] + background[e] <= theta
capacity[e], x >= 0.
"""

from __future__ import annotations

import dataclasses
import time
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from baselines.linear_program import LinearProgram, LpSolution
from baselines.matrix import Array, Matrix, PathVariables
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation

# Relative rounding tolerance of sums of rates.
_ROUNDING = 1e-9
SUPPORTED_OBJECTIVES = (
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.WEIGHTED_FLOW,
    ObjectiveName.LATENCY_PENALISED_FLOW,
    ObjectiveName.MAX_LINK_UTILISATION,
)


@dataclasses.dataclass(frozen=True, eq=False)
class PathProgram:
    """A path-form LP, and the paths and links to which its variables and rows belong.

    Attributes:
        matrix: the matrix that the LP was built for.
        program: the LP.  Its variables are the n path flows, then theta under max_link_utilisation;
            the first m rows of its a_ub are the capacities of links.
        path: (n,) path index d K + k of each variable.
        links: (m,) link of each of the first rows: the links that could bind.
        build_s: time to build the LP, s.
    """

    matrix: Matrix
    program: LinearProgram
    path: Array
    links: Array
    build_s: float

    def flow(self, solution: LpSolution) -> Array:
        """Return the flow (D, K) on each path; 0 for demands that are not in the LP."""
        flow = np.zeros(self.matrix.mask.shape)
        flow.reshape(-1)[self.path] = solution.x[: len(self.path)]
        return flow

    def prices(self, solution: LpSolution) -> Array:
        """Return the value (E,) of one more unit of each link's capacity; 0 without a row."""
        prices = np.zeros(len(self.matrix.capacity))
        prices[self.links] = solution.dual[: len(self.links)]
        return prices


def path_program(
    matrix: Matrix, selected: Array, capacity: Array, background: Array | None = None
) -> PathProgram:
    """Build the path-form LP of the selected demands.

    Args:
        matrix: demands, live paths and objective.
        selected: (D,) true for the demands in the LP.
        capacity: (E,) capacity that these demands may use.
        background: (E,) load of all other demands, for max_link_utilisation only; None for 0.
    """
    begin = time.perf_counter()
    variables = matrix.path_variables(selected)
    links = np.unique(variables.link)
    loads = variables.link_incidence(len(capacity))[links]
    # (n,) rate of the demand of each path.
    rate = matrix.demand[variables.demands][variables.demand_row]
    background_load = np.zeros(len(capacity)) if background is None else background
    minimises_utilisation = matrix.network.objective.rules.minimises_utilisation
    # Links that cannot bind have no row: this takes a tenth of the time on UsCarrier.
    has_one_path = np.bincount(variables.demand_row)[variables.demand_row] == 1
    is_needed = may_bind(
        loads,
        rate,
        rate * has_one_path,
        capacity[links],
        background_load[links],
        minimises_utilisation,
    )
    rows = _LinkRows(links[is_needed], loads[np.flatnonzero(is_needed)], capacity, background_load)
    program = (
        _balanced_program(matrix, variables, rows)
        if minimises_utilisation
        else _value_program(matrix, variables, rows)
    )
    return PathProgram(matrix, program, variables.path, rows.links, time.perf_counter() - begin)


class _LinkRows(NamedTuple):
    """Capacity constraints of a path-form LP: the links with a row, and the load that is fixed.

    Attributes:
        links: (m,) link of each row.
        loads: (m, n) 1 where a path uses a link.
        capacity: (E,) capacity that the demands may use.
        fixed_load: (E,) load of other demands.
    """

    links: Array
    loads: sp.csr_array
    capacity: Array
    fixed_load: Array


def _bottleneck(variables: PathVariables, capacity: Array) -> Array:
    """Return the smallest capacity (n,) along each path; infinite without links."""
    bottleneck = np.full(len(variables.path), np.inf)
    np.minimum.at(bottleneck, variables.column, capacity[variables.link])
    return bottleneck


def _value_program(matrix: Matrix, variables: PathVariables, rows: _LinkRows) -> LinearProgram:
    """Build the LP of value maximisation, or of least_cost.

    Args:
        matrix: demands and values.
        variables: n paths of the demands, the variables of the LP.
        rows: links with a row, and capacities.
    """
    demand_rows = variables.demand_incidence()
    demand = matrix.demand[variables.demands]
    limits = rows.capacity[rows.links]
    costs = -matrix.network.value.reshape(-1)[variables.path]
    # Expected magnitude of each path flow: the demand, or the bottleneck of the path.
    max_flow = np.minimum(demand[variables.demand_row], _bottleneck(variables, rows.capacity))
    if matrix.network.objective.rules.carries_all:
        return LinearProgram(costs, rows.loads, limits, demand_rows, demand, size=max_flow)
    return LinearProgram(
        costs,
        sp.vstack([rows.loads, demand_rows], format="csr"),
        np.concatenate([limits, demand]),
        size=max_flow,
    )


def _balanced_program(matrix: Matrix, variables: PathVariables, rows: _LinkRows) -> LinearProgram:
    """Build the LP of max_link_utilisation, with theta as the last variable.

    min theta  s.t.  load - theta capacity <= -background,  sum of a demand's flows = demand.

    Args:
        matrix: demands.
        variables: n paths of the demands, the first variables of the LP.
        rows: links with a row, capacities, and load of other demands.
    """
    num_paths = len(variables.path)
    demand = matrix.demand[variables.demands]
    rate = demand[variables.demand_row]
    bottleneck = _bottleneck(variables, rows.capacity)
    feasible_theta = _feasible_theta(variables, rows, rate, bottleneck)
    theta_column = sp.csr_array(-rows.capacity[rows.links][:, None])
    # theta is at least the utilisation by the background.
    min_theta = _max_utilisation(rows.fixed_load, rows.capacity)
    min_theta_row = sp.csr_array(([-1.0], ([0], [num_paths])), shape=(1, num_paths + 1))
    # Expected magnitudes: path flows at the feasible theta, and this theta.
    return LinearProgram(
        np.append(np.zeros(num_paths), 1.0),
        sp.vstack([sp.hstack([rows.loads, theta_column]), min_theta_row], format="csr"),
        np.append(-rows.fixed_load[rows.links], -min_theta),
        sp.hstack([variables.demand_incidence(), sp.csr_array((len(demand), 1))], format="csr"),
        demand,
        size=np.append(np.minimum(rate, feasible_theta * bottleneck), feasible_theta),
    )


def _feasible_theta(
    variables: PathVariables, rows: _LinkRows, rate: Array, bottleneck: Array
) -> float:
    """Return the largest utilisation of a feasible solution, an upper bound on the optimum.

    Each demand is split in proportion to the bottlenecks of its paths.

    Args:
        variables: n paths of the demands.
        rows: capacities and load of other demands.
        rate: (n,) rate of the demand of each path.
        bottleneck: (n,) smallest capacity along each path.
    """
    split = (
        bottleneck / np.bincount(variables.demand_row, bottleneck)[variables.demand_row]
        if len(bottleneck)
        else bottleneck
    )
    load = rows.fixed_load + np.bincount(
        variables.link, (rate * split)[variables.column], minlength=len(rows.capacity)
    )
    return _max_utilisation(load, rows.capacity)


def _max_utilisation(load: Array, capacity: Array) -> float:
    """Return the largest load / capacity over the links with a capacity above 0.

    Args:
        load: (E,) load of each link.
        capacity: (E,) capacity of each link.
    """
    utilisation = np.divide(load, capacity, out=np.zeros_like(load), where=capacity > 0)
    return float(utilisation.max(initial=0.0))


def may_bind(
    loads: sp.csr_array,
    rate: Array,
    forced_rate: Array,
    capacity: Array,
    background_load: Array,
    minimises_utilisation: bool,
) -> Array:
    """Return for each link (m,) whether its capacity could bind in an optimum; the other links need
    no row.

    A link cannot bind if even all demands that can use it together do not fill it.  If the largest
    utilisation is minimised, it cannot bind if they load it to less than a lower bound on the
    optimum: the largest utilisation by the demands that have one path only.

    Args:
        loads: (m, n) 1 where a path uses a link.
        rate: (n,) rate of the demand of each path.
        forced_rate: (n,) this rate where the demand has no other path, else 0.
        capacity: (m,) capacity of each link.
        background_load: (m,) load of other demands.
        minimises_utilisation: whether the objective minimises the largest utilisation.
    """
    min_utilisation = 1.0
    if minimises_utilisation:
        # The lower bound; failed links, without capacity, carry no flow.
        load = background_load + loads @ forced_rate
        min_utilisation = (1 - _ROUNDING) * _max_utilisation(load, capacity)
    return np.asarray(background_load + loads @ rate >= min_utilisation * capacity)


def without_overload(problem: Problem, allocation: Allocation) -> Allocation:
    """Convert solutions of max_link_utilisation to solutions of max_concurrent_flow.

    The splits of each matrix with a largest utilisation theta above 1 are divided by theta, so that
    the smallest served fraction is min(1, 1 / theta).
    """
    utilisation = problem.utilisation(allocation.splits).amax(1).clamp(min=1)
    splits = allocation.splits / utilisation[:, None, None]
    return dataclasses.replace(allocation, splits=splits)
