r"""How bad the demands of a hose can be for a network, from both sides.

With x in the hose, w the splits, y the prices of links and pi_d the cheapest path of demand d under
y,

    utilisation   max over x of min over w of the largest one
                  = max over x, y of sum_d x_d pi_d,  c'y = 1;
    dropped       max over x of (all of x - the most that fits)  = max over x, y of sum_d x_d pi_d - c'y,  pi <= 1.

The product of x and pi is replaced by the dual of the hose, whose optimality conditions need a
binary number for each demand and each limit (as MetaOpt does for heuristics; Namyar et al., NSDI
2024): with a_i >= 0 of the limits l of sums (R x)_i, and z, v binary,

    max l'a (- c'y)
    s.t.  x <= X z,   R'a - pi <= P (1 - z),   R'a >= pi,   a <= A v,   l - R x <= l (1 - v).

HiGHS solves it, and its bound holds whenever it is stopped.
:func:`teal_ip.purchases.hose.static_limit` is another upper limit, which needs no binary number.
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
_MAX_DEMANDS = 1000  # of the integer program; above it only the other limit is computed
_CLOSED = 5e-3  # relative distance of both sides, at which the integer program has nothing to add


@dataclasses.dataclass(frozen=True, eq=False)
class WorstDemands:
    """The worst matrix that was found, and how bad any can be.

    Attributes:
        matrix: (D,) Gbit/s.
        value: certified lower limit: largest utilisation, or Gbit/s that do not fit.
        limit: value that no matrix of the hose passes.
    """

    matrix: FloatArray
    value: float
    limit: float


def worst_demands(
    network: Problem, hose: Hose, *, measure: Measure = "utilisation", seconds: float = 60.0
) -> WorstDemands:
    """The worst demands of a hose for one network: what was found, and a limit of what there can
    be.

    Args:
        network: B = 1, with the capacities in force; its demand and its objective mean nothing.
        hose: the matrices.
        measure: ``utilisation`` or ``dropped``.
        seconds: time that the integer program may take.

    Raises:
        InputError: a network too large for the program of static splits.
        SolverError: HiGHS failed.
    """
    balanced = dataclasses.replace(network, objective=Objective("max_link_utilisation"))
    found = worst_matrices(balanced, hose)
    matrix, value = found.matrix[0], float(found.utilisation[0])
    limit = static_limit(balanced, hose)[0]
    if measure == "dropped":
        # A matrix whose best largest utilisation is u fits when it is divided by u.
        most = float(hose.dearest(balanced.routable[0].numpy().astype(np.float64)).sum())
        limit = most * max(0.0, 1.0 - 1.0 / limit) if limit > 0 else 0.0
    is_closed = measure == "utilisation" and limit <= value * (1 + _CLOSED)
    if len(hose.pairs) <= _MAX_DEMANDS and not is_closed:
        best, bound = _integer_program(balanced, hose, measure, seconds)
        limit = min(limit, bound)
        if best is not None and measure == "dropped":
            matrix = best
        elif best is not None:
            again = solve(
                balanced.with_demand(best[None]).with_capacity(balanced.capacity), gap=1e-4
            )
            if float(again.bound[0]) > value:
                matrix, value = best, float(again.bound[0])
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
    """The matrix that HiGHS found, and its bound."""
    topology, paths = network.topology, network.paths
    capacity = network.capacity[0].numpy()
    live = network.path_mask[0].numpy()
    routable = live.any(1)
    demands = np.flatnonzero(routable)
    rows = hose.rows.tocsc()[:, demands].tocsr()
    limits, links, count = hose.limits, topology.num_links, len(demands)
    incidence = network.ops.incidence(links).tocsc()
    path = np.flatnonzero(live.reshape(-1))
    narrow = np.array([capacity[incidence[:, [p]].nonzero()[0]].min() for p in path])
    of_path = np.searchsorted(demands, path // paths.num_paths)
    widest = np.zeros(count)
    np.maximum.at(widest, of_path, narrow)
    is_dropped = measure == "dropped"
    most_price = np.ones(count) if is_dropped else 1 / np.maximum(widest, 1e-300)  # of pi
    most_flow = np.minimum(
        limits[hose.pairs[demands, 0]], limits[len(hose.out) + hose.pairs[demands, 1]]
    )
    most_dual = float(most_price.max(initial=0.0))
    # Columns: x, pi, y, a, z, v.
    sizes = (count, count, links, len(limits), count, len(limits))
    at = np.concatenate([[0], np.cumsum(sizes)])
    eye, zero = sp.eye_array(count, format="csr"), sp.csr_array

    def row(**blocks: sp.sparray) -> sp.csr_array:
        height = next(iter(blocks.values())).shape[0]
        names = ("x", "pi", "y", "a", "z", "v")
        return sp.csr_array(
            sp.hstack(
                [blocks.get(n, zero((height, size))) for n, size in zip(names, sizes, strict=True)]
            )
        )

    select = sp.csr_array(
        (np.ones(len(path)), (np.arange(len(path)), of_path)), shape=(len(path), count)
    )
    along = sp.csr_array(incidence[:, path].T)
    diagonal = sp.diags_array
    constraints = [
        Between(row(pi=select, y=-along), high=np.zeros(len(path))),
        Between(row(x=rows), high=limits),
        Between(row(a=sp.csr_array(rows.T), pi=-eye), low=np.zeros(count)),
        Between(row(x=eye, z=-diagonal(most_flow).tocsr()), high=np.zeros(count)),
        Between(
            row(a=sp.csr_array(rows.T), pi=-eye, z=diagonal(np.full(count, 2 * most_dual)).tocsr()),
            high=np.full(count, 2 * most_dual),
        ),
        Between(
            row(
                a=sp.eye_array(len(limits), format="csr"),
                v=-most_dual * sp.eye_array(len(limits), format="csr"),
            ),
            high=np.zeros(len(limits)),
        ),
        Between(row(x=-rows, v=diagonal(limits).tocsr()), high=np.zeros(len(limits))),
    ]
    cost = np.zeros(at[-1])
    cost[at[3] : at[4]] = -limits
    if is_dropped:
        cost[at[2] : at[3]] = capacity
    else:
        constraints.append(Between(row(y=zero(capacity[None])), low=1.0, high=1.0))
    upper = np.concatenate(
        [
            most_flow,
            most_price,
            np.where(capacity > 0, 1.0 if is_dropped else 1 / np.maximum(capacity, 1e-300), 0.0),
            np.full(len(limits), most_dual),
            np.ones(count),
            np.ones(len(limits)),
        ]
    )
    integrality = np.concatenate([np.zeros(at[4]), np.ones(at[6] - at[4])])
    result = solve_milp(
        cost, constraints, integrality, high=upper, seconds=max(1.0, seconds), relative_gap=1e-4
    )
    if not np.isfinite(result.bound):
        raise SolverError(f"worst demands: HiGHS: {result.message}")
    if result.x is None:
        return None, -result.bound
    matrix = np.zeros(len(hose.pairs))
    matrix[demands] = np.maximum(result.x[:count], 0.0)
    return matrix, -result.bound
