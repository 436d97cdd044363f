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

import numpy as np
import scipy.sparse as sp

from baselines.linear_program import LinearProgram, LpSolution
from baselines.matrix import Array, Matrix
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation

_ROUNDING = 1e-9  # relative, of sums of rates
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
    """The path-form LP of the selected demands.

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
    demand_rows = variables.demand_incidence()
    width = len(variables.path)
    demand = matrix.demand[variables.demands]
    rate = demand[variables.demand_row]
    bottleneck = np.full(width, np.inf)
    np.minimum.at(bottleneck, variables.column, capacity[variables.link])
    fixed = np.zeros(len(capacity)) if background is None else background
    rules = matrix.network.objective.rules
    # Links that all demands together do not fill have no row: a tenth of the time on UsCarrier.
    alone = np.bincount(variables.demand_row)[variables.demand_row] == 1
    may_fill = may_decide(loads, rate, rate * alone, capacity[links], fixed[links], rules.balances)
    links = links[may_fill]
    loads = loads[np.flatnonzero(may_fill)]
    if not rules.balances:
        costs = -matrix.network.value.reshape(-1)[variables.path]
        size = np.minimum(rate, bottleneck)
        if rules.carries_all:
            program = LinearProgram(costs, loads, capacity[links], demand_rows, demand, size=size)
        else:
            program = LinearProgram(
                costs,
                sp.vstack([loads, demand_rows], format="csr"),
                np.concatenate([capacity[links], demand]),
                size=size,
            )
        return PathProgram(matrix, program, variables.path, links, time.perf_counter() - begin)
    theta = sp.csr_array(-capacity[links][:, None])
    min_theta = np.divide(fixed, capacity, out=np.zeros_like(fixed), where=capacity > 0).max(
        initial=0.0
    )
    # theta of one feasible solution: each demand split in proportion to the bottlenecks of its
    # paths.
    split = (
        bottleneck / np.bincount(variables.demand_row, bottleneck)[variables.demand_row]
        if width
        else bottleneck
    )
    load = fixed + np.bincount(
        variables.link, (rate * split)[variables.column], minlength=len(capacity)
    )
    feasible_theta = np.divide(load, capacity, out=np.zeros_like(load), where=capacity > 0).max(
        initial=0.0
    )
    # theta is at least the utilisation by the background.
    floor = sp.csr_array(([-1.0], ([0], [width])), shape=(1, width + 1))
    program = LinearProgram(
        np.append(np.zeros(width), 1.0),
        sp.vstack([sp.hstack([loads, theta]), floor], format="csr"),
        np.append(-fixed[links], -min_theta),
        sp.hstack([demand_rows, sp.csr_array((len(demand), 1))], format="csr"),
        demand,
        size=np.append(np.minimum(rate, feasible_theta * bottleneck), feasible_theta),
    )
    return PathProgram(matrix, program, variables.path, links, time.perf_counter() - begin)


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
        lowest = np.divide(load, capacity, out=np.zeros_like(load), where=capacity > 0)
        min_utilisation = (1 - _ROUNDING) * float(lowest.max(initial=0.0))
    return np.asarray(fixed + loads @ rate >= min_utilisation * capacity)


def without_overload(problem: Problem, allocation: Allocation) -> Allocation:
    """Divide the splits of each overloaded matrix by its largest link utilisation theta.

    A solution of max_link_utilisation becomes one of max_concurrent_flow: alpha = min(1, 1 /
    theta).
    """
    utilisation = problem.utilisation(allocation.splits).amax(1).clamp(min=1)
    splits = allocation.splits / utilisation[:, None, None]
    return dataclasses.replace(allocation, splits=splits)
