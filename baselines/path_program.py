"""The path-form LP of some of the demands on given capacities, which several schemes solve.

With x[d, k] the flow on path k of demand d, in the unit of the matrix:

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
        matrix: that the LP was built for.
        program: its variables are the n paths, then theta under max_link_utilisation; the first m
            rows of its a_ub are the capacities of links.
        path: (n,) path number d * K + k of each variable.
        links: (m,) link of each of the first rows: those that the paths use, and that may decide.
        build_s: s to build the LP.
    """

    matrix: Matrix
    program: LinearProgram
    path: Array
    links: Array
    build_s: float

    def flow(self, solution: LpSolution) -> Array:
        """(D, K) flow on each path; 0 for demands that are not in the LP."""
        flow = np.zeros(self.matrix.mask.shape)
        flow.reshape(-1)[self.path] = solution.x[: len(self.path)]
        return flow

    def prices(self, solution: LpSolution) -> Array:
        """(E,) value of one more unit of capacity on each link; 0 for links that no path uses."""
        prices = np.zeros(len(self.matrix.capacity))
        prices[self.links] = solution.dual[: len(self.links)]
        return prices


def path_program(
    matrix: Matrix, selected: Array, capacity: Array, background: Array | None = None
) -> PathProgram:
    """Path-form LP of the selected demands.

    Args:
        matrix: demands, live paths and objective.
        selected: (D,) true for the demands in the LP.
        capacity: (E,) that these demands may use.
        background: (E,) flow that all other demands already put on each link, for
            max_link_utilisation only; None for 0.
    """
    begin = time.perf_counter()
    variables = matrix.path_variables(selected)
    links = np.unique(variables.link)
    loads = variables.link_incidence(len(capacity))[links]
    rate = matrix.demand[variables.demands][variables.demand_row]
    fixed = np.zeros(len(capacity)) if background is None else background
    balances = matrix.network.objective.rules.balances
    # Links that all demands together do not fill have no row: a tenth of the time on UsCarrier.
    alone = np.bincount(variables.demand_row)[variables.demand_row] == 1
    may_fill = may_decide(loads, rate, rate * alone, capacity[links], fixed[links], balances)
    rows = _LinkRows(links[may_fill], loads[np.flatnonzero(may_fill)], capacity, fixed)
    program = (
        _balanced_program(matrix, variables, rows)
        if balances
        else _value_program(matrix, variables, rows)
    )
    return PathProgram(matrix, program, variables.path, rows.links, time.perf_counter() - begin)


class _LinkRows(NamedTuple):
    """Capacity constraints of an LP.

    Attributes:
        links: (m,) link of each row.
        loads: (m, n) 1 where a path uses a link.
        capacity: (E,) that the demands may use.
        fixed: (E,) flow of other demands.
    """

    links: Array
    loads: sp.csr_array
    capacity: Array
    fixed: Array


def _bottleneck(variables: PathVariables, capacity: Array) -> Array:
    """(n,) smallest capacity along each path; infinite without links."""
    bottleneck = np.full(len(variables.path), np.inf)
    np.minimum.at(bottleneck, variables.column, capacity[variables.link])
    return bottleneck


def _value_program(matrix: Matrix, variables: PathVariables, rows: _LinkRows) -> LinearProgram:
    """LP of value maximisation, or of least_cost."""
    demand_rows = variables.demand_incidence()
    demand = matrix.demand[variables.demands]
    limits = rows.capacity[rows.links]
    costs = -matrix.network.value.reshape(-1)[variables.path]
    size = np.minimum(demand[variables.demand_row], _bottleneck(variables, rows.capacity))
    if matrix.network.objective.rules.carries_all:
        return LinearProgram(costs, rows.loads, limits, demand_rows, demand, size=size)
    return LinearProgram(
        costs,
        sp.vstack([rows.loads, demand_rows], format="csr"),
        np.concatenate([limits, demand]),
        size=size,
    )


def _balanced_program(matrix: Matrix, variables: PathVariables, rows: _LinkRows) -> LinearProgram:
    """LP of max_link_utilisation, with theta as the last variable."""
    width = len(variables.path)
    demand = matrix.demand[variables.demands]
    rate = demand[variables.demand_row]
    bottleneck = _bottleneck(variables, rows.capacity)
    feasible_theta = _feasible_theta(variables, rows, rate, bottleneck)
    theta = sp.csr_array(-rows.capacity[rows.links][:, None])
    # theta is at least the utilisation by the background.
    min_theta = _max_utilisation(rows.fixed, rows.capacity)
    floor = sp.csr_array(([-1.0], ([0], [width])), shape=(1, width + 1))
    return LinearProgram(
        np.append(np.zeros(width), 1.0),
        sp.vstack([sp.hstack([rows.loads, theta]), floor], format="csr"),
        np.append(-rows.fixed[rows.links], -min_theta),
        sp.hstack([variables.demand_incidence(), sp.csr_array((len(demand), 1))], format="csr"),
        demand,
        size=np.append(np.minimum(rate, feasible_theta * bottleneck), feasible_theta),
    )


def _feasible_theta(
    variables: PathVariables, rows: _LinkRows, rate: Array, bottleneck: Array
) -> float:
    """Utilisation of a feasible solution: each demand split in proportion to the bottlenecks of its
    paths.

    Args:
        variables: paths of the demands.
        rows: capacities and flow of other demands.
        rate: (n,) rate of the demand of each path.
        bottleneck: (n,) smallest capacity along each path.
    """
    split = (
        bottleneck / np.bincount(variables.demand_row, bottleneck)[variables.demand_row]
        if len(bottleneck)
        else bottleneck
    )
    load = rows.fixed + np.bincount(
        variables.link, (rate * split)[variables.column], minlength=len(rows.capacity)
    )
    return _max_utilisation(load, rows.capacity)


def _max_utilisation(load: Array, capacity: Array) -> float:
    """Largest utilisation of the links with capacity."""
    utilisation = np.divide(load, capacity, out=np.zeros_like(load), where=capacity > 0)
    return float(utilisation.max(initial=0.0))


def may_decide(
    loads: sp.csr_array, rate: Array, forced: Array, capacity: Array, fixed: Array, balances: bool
) -> Array:
    """Whether each of m links may decide the optimum: the others need no row.

    A link is never full where even all demands together do not fill it, and never the fullest one
    where they do not load it to a utilisation that no allocation is below.

    Args:
        loads: (m, n) 1 where a path uses a link.
        rate: (n,) rate of the demand of each path.
        forced: (n,) the same where the demand has no other path, else 0.
        capacity: (m,) of the links.
        fixed: (m,) flow of other demands on the links.
        balances: whether the objective minimises the largest utilisation.
    """
    min_utilisation = 1.0
    if balances:
        # Failed links have no capacity, and nobody's flow.
        load = fixed + loads @ forced
        min_utilisation = (1 - _ROUNDING) * _max_utilisation(load, capacity)
    return np.asarray(fixed + loads @ rate >= min_utilisation * capacity)


def without_overload(problem: Problem, allocation: Allocation) -> Allocation:
    """Divide the splits of each overloaded matrix by its largest link utilisation theta.

    A solution of max_link_utilisation becomes one of max_concurrent_flow: alpha = min(1, 1 /
    theta).
    """
    utilisation = problem.utilisation(allocation.splits).amax(1).clamp(min=1)
    splits = allocation.splits / utilisation[:, None, None]
    return dataclasses.replace(allocation, splits=splits)
