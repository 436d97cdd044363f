r"""Worst-case demands of a hose for a network: lower and upper bounds.

With x in the hose, w the splits, y the prices of links and pi_d the cheapest path of demand d under
y,

    utilisation   max over x of min over w of the largest one
                  = max over x, y of sum_d x_d pi_d,  c'y = 1;
    dropped       max over x of (all of x - the most that fits)  = max over x, y of sum_d x_d pi_d - c'y,  pi <= 1.

The product of x and pi is replaced by the dual of the hose, whose optimality conditions (KKT) need
a binary variable for each demand and each limit (as MetaOpt does for heuristics; Namyar et al.,
NSDI 2024): with a_i >= 0 of the limits l of sums (R x)_i, and z, v binary,

    max l'a (- c'y)
    s.t.  x <= X z,   R'a - pi <= P (1 - z),   R'a >= pi,   a <= A v,   l - R x <= l (1 - v).

HiGHS solves it, and its bound holds at any time limit.
:func:`teal_ip.purchases.hose.static_limit` is another upper bound, without binary variables.  Entry
point: :func:`worst_demands`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch

from teal.errors import SolverError
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.runtime.lp import Between, solve_milp
from teal.solvers.pdhg import solve
from teal_ip.purchases.hose import Hose, static_limit, worst_matrices

Measure = Literal["utilisation", "dropped"]
# Maximum number of demands of the integer program; above it only the other bound is computed.
_MAX_DEMANDS = 1000
# Relative gap of both bounds at which the integer program is skipped.
_CLOSED = 5e-3


@dataclasses.dataclass(frozen=True, eq=False)
class WorstDemands:
    """Worst matrix found, and a bound on any.

    Attributes:
        matrix: (D,) Gbit/s.
        value: certified lower bound: largest utilisation, or Gbit/s that do not fit.
        limit: certified upper bound for any matrix of the hose.
    """

    matrix: FloatArray
    value: float
    limit: float


def worst_demands(
    network: Problem, hose: Hose, *, measure: Measure = "utilisation", seconds: float = 60.0
) -> WorstDemands:
    """Search for the worst demands of a hose for one network; also bound the worst case.

    Args:
        network: B = 1, with the current capacities; its demand and its objective are ignored.
        hose: the matrices.
        measure: ``utilisation`` or ``dropped``.
        seconds: time limit of the integer program.

    Raises:
        InputError: a network too large for the program of static splits.
        SolverError: HiGHS failed.
    """
    # Alternation and fixed splits.
    balanced = dataclasses.replace(network, objective=Objective("max_link_utilisation"))
    alternation = worst_matrices(balanced, hose)
    matrix = alternation.matrix[0]
    value = float(alternation.utilisation[0])
    limit = static_limit(balanced, hose)[0]
    if measure == "dropped":
        # A matrix whose smallest largest utilisation is u fits when divided by u.
        largest_total = float(hose.dearest(balanced.routable[0].numpy().astype(np.float64)).sum())
        limit = largest_total * max(0.0, 1.0 - 1.0 / limit) if limit > 0 else 0.0
    # Integer program, if the gap is open.
    is_closed = measure == "utilisation" and limit <= value * (1 + _CLOSED)
    if len(hose.pairs) <= _MAX_DEMANDS and not is_closed:
        best, bound = _integer_program(balanced, hose, measure, seconds)
        limit = min(limit, bound)
        if best is not None and measure == "dropped":
            matrix = best
        elif best is not None:
            solution = solve(
                balanced.with_demand(best[None]).with_capacity(balanced.capacity), gap=1e-4
            )
            if float(solution.bound[0]) > value:
                matrix = best
                value = float(solution.bound[0])
    if measure == "dropped":
        flow = dataclasses.replace(
            balanced,
            objective=Objective("total_flow"),
            demand_value=torch.ones_like(balanced.demand_value),
            demand=torch.from_numpy(matrix[None]).to(balanced.demand),
        )
        value = max(0.0, float(matrix.sum()) - float(solve(flow, gap=1e-5).bound[0]))
    return WorstDemands(matrix, value, max(limit, value))


def _integer_program(
    network: Problem, hose: Hose, measure: Measure, seconds: float
) -> tuple[FloatArray | None, float]:
    """Return the matrix that HiGHS found, and its bound."""
    # Live links, demands and paths; big-M constants.
    topology = network.topology
    paths = network.paths
    capacity = network.capacity[0].numpy()
    live = network.path_mask[0].numpy()
    routable = live.any(1)
    demands = np.flatnonzero(routable)
    rows = hose.rows.tocsc()[:, demands].tocsr()
    limits = hose.limits
    num_links = topology.num_links
    num_demands = len(demands)
    incidence = network.ops.incidence(num_links).tocsc()
    live_path = np.flatnonzero(live.reshape(-1))
    path_capacity = np.array([capacity[incidence[:, [p]].nonzero()[0]].min() for p in live_path])
    path_demand = np.searchsorted(demands, live_path // paths.num_paths)
    demand_capacity = np.zeros(num_demands)
    np.maximum.at(demand_capacity, path_demand, path_capacity)
    is_dropped = measure == "dropped"
    # Largest value of pi.
    max_price = np.ones(num_demands) if is_dropped else 1 / np.maximum(demand_capacity, 1e-300)
    max_flow = np.minimum(
        limits[hose.pairs[demands, 0]], limits[len(hose.out) + hose.pairs[demands, 1]]
    )
    max_dual = float(max_price.max(initial=0.0))
    # Columns: x, pi, y, a, z, v.
    sizes = (num_demands, num_demands, num_links, len(limits), num_demands, len(limits))
    first_column = np.concatenate([[0], np.cumsum(sizes)])
    eye = sp.eye_array(num_demands, format="csr")
    zero = sp.csr_array

    def row(**blocks: sp.sparray) -> sp.csr_array:
        height = next(iter(blocks.values())).shape[0]
        names = ("x", "pi", "y", "a", "z", "v")
        return sp.csr_array(
            sp.hstack(
                [blocks.get(n, zero((height, size))) for n, size in zip(names, sizes, strict=True)]
            )
        )

    demand_of_path = sp.csr_array(
        (np.ones(len(live_path)), (np.arange(len(live_path)), path_demand)),
        shape=(len(live_path), num_demands),
    )
    links_of_path = sp.csr_array(incidence[:, live_path].T)
    diagonal = sp.diags_array
    constraints = [
        Between(row(pi=demand_of_path, y=-links_of_path), high=np.zeros(len(live_path))),
        Between(row(x=rows), high=limits),
        Between(row(a=sp.csr_array(rows.T), pi=-eye), low=np.zeros(num_demands)),
        Between(row(x=eye, z=-diagonal(max_flow).tocsr()), high=np.zeros(num_demands)),
        Between(
            row(
                a=sp.csr_array(rows.T),
                pi=-eye,
                z=diagonal(np.full(num_demands, 2 * max_dual)).tocsr(),
            ),
            high=np.full(num_demands, 2 * max_dual),
        ),
        Between(
            row(
                a=sp.eye_array(len(limits), format="csr"),
                v=-max_dual * sp.eye_array(len(limits), format="csr"),
            ),
            high=np.zeros(len(limits)),
        ),
        Between(row(x=-rows, v=diagonal(limits).tocsr()), high=np.zeros(len(limits))),
    ]
    # Objective and bounds of the variables.
    cost = np.zeros(first_column[-1])
    cost[first_column[3] : first_column[4]] = -limits
    if is_dropped:
        cost[first_column[2] : first_column[3]] = capacity
    else:
        constraints.append(Between(row(y=zero(capacity[None])), low=1.0, high=1.0))
    upper_bounds = np.concatenate(
        [
            max_flow,
            max_price,
            np.where(capacity > 0, 1.0 if is_dropped else 1 / np.maximum(capacity, 1e-300), 0.0),
            np.full(len(limits), max_dual),
            np.ones(num_demands),
            np.ones(len(limits)),
        ]
    )
    integrality = np.concatenate(
        [np.zeros(first_column[4]), np.ones(first_column[6] - first_column[4])]
    )
    result = solve_milp(
        cost,
        constraints,
        integrality,
        high=upper_bounds,
        seconds=max(1.0, seconds),
        relative_gap=1e-4,
    )
    if not np.isfinite(result.bound):
        raise SolverError(f"worst demands: HiGHS: {result.message}")
    if result.x is None:
        return None, -result.bound
    matrix = np.zeros(len(hose.pairs))
    matrix[demands] = np.maximum(result.x[:num_demands], 0.0)
    return matrix, -result.bound
