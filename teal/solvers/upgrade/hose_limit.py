r"""Whether any matrix of a hose fills a link beyond a limit: an integer program that is exact when it is solved.

With prices y of the links, q_e = c_e y_e, sum of q_e = 1, the largest utilisation over all matrices x of the hose is

    max sum_d w_d,   w_d <= sum over e in p of x_d q_e / c_e  for every live path p of demand d.

U_{d,e} stands for the product x_d q_e.  Multiplied by q_e, the limits of sums (R x)_i <= l_i read

    sum over d in i of U_{d,e} <= l_i q_e,

and these alone give the limit of splits fixed beforehand (:func:`teal.solvers.upgrade.hose.static_limit`).  Some worst
x is a vertex: with binary z_d (demand d may be above 0) and v_i (limit i is kept with equality),

    U_{d,e} <= X_d z_d,   sum over d in i of U_{d,e} >= l_i q_e - l_i (1 - v_i),   sum z <= sum v,

where X_d is the most that demand d can be.  A choice of z and v that determines x makes U the product; one that does
not can only raise the value, so that what HiGHS proves holds in any case (reformulation-linearisation; Sherali and
Adams 1990).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scipy.optimize import Bounds, LinearConstraint, milp

from teal.problem import Problem
from teal.runtime.arrays import FloatArray

if TYPE_CHECKING:
    from teal.solvers.upgrade.hose import Hose

_INFEASIBLE = 2  # status of SciPy's HiGHS
MOST_PRODUCTS = 2000  # demands times links: of larger programs HiGHS seldom proves anything within a minute


def matrix_above(network: Problem, hose: Hose, least: float, seconds: float) -> tuple[FloatArray | None, float]:
    """A matrix (D,) that may fill a link to ``least`` or more, or None, and what no matrix passes; infinite if unknown.

    Args:
        network: B = 1, with the capacities in force; its demand means nothing.
        hose: the matrices.
        least: utilisation below which no matrix is sought.
        seconds: that HiGHS may take.
    """
    capacity, live = network.capacity[0].numpy(), network.path_mask[0].numpy()
    links, demands = np.flatnonzero(capacity > 0), np.flatnonzero(live.any(1))
    path = np.flatnonzero(live.reshape(-1))
    of_path = np.searchsorted(demands, path // network.paths.num_paths)
    incidence = network.ops.incidence(network.topology.num_links).tocsr()[links][:, path].tocoo()
    rows, limits = hose.rows.tocsc()[:, demands].tocsr(), hose.limits
    ends = hose.pairs[demands]
    most = np.minimum(limits[ends[:, 0]], limits[len(hose.out) + ends[:, 1]])
    width, count, each = len(links), len(demands), sp.eye_array(len(links))
    sizes = {"U": count * width, "q": width, "w": count, "z": count, "v": len(limits)}
    at = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))

    def block(**parts: sp.sparray) -> sp.csr_array:
        height = next(iter(parts.values())).shape[0]
        return sp.csr_array(sp.hstack([parts.get(name, sp.csr_array((height, size))) for name, size in sizes.items()]))

    per_path = sp.csr_array(
        (-1 / capacity[links][incidence.row], (incidence.col, of_path[incidence.col] * width + incidence.row)),
        shape=(len(path), count * width),
    )
    select = sp.csr_array((np.ones(len(path)), (np.arange(len(path)), of_path)), shape=(len(path), count))
    sums, product = sp.kron(rows, each), sp.eye_array(count * width)
    by_link = {
        name: sp.kron(sp.csr_array(-values[:, None]), each) for name, values in (("limits", limits), ("most", most))
    }
    ones = np.ones((width, 1))
    constraints = [
        LinearConstraint(block(U=per_path, w=select), ub=0),
        LinearConstraint(block(U=sums, q=by_link["limits"]), ub=0),
        LinearConstraint(
            block(U=sums, q=by_link["limits"], v=sp.kron(sp.diags_array(-limits), ones)), lb=-np.repeat(limits, width)
        ),
        LinearConstraint(block(U=product, q=by_link["most"]), ub=0),
        LinearConstraint(block(U=product, z=sp.kron(sp.diags_array(-most), ones)), ub=0),
        LinearConstraint(block(U=sp.kron(sp.eye_array(count), ones.T), z=sp.diags_array(-most)), ub=0),
        LinearConstraint(block(q=sp.csr_array(ones.T)), lb=1, ub=1),
        LinearConstraint(block(z=sp.csr_array(np.ones((1, count))), v=sp.csr_array(-np.ones((1, len(limits))))), ub=0),
        LinearConstraint(block(w=sp.csr_array(np.ones((1, count)))), lb=least),
    ]
    total = sum(sizes.values())
    cost, upper, integrality = np.zeros(total), np.full(total, np.inf), np.zeros(total)
    cost[at["w"] : at["z"]] = -1
    upper[at["q"] : at["w"]] = 1
    upper[at["z"] :] = integrality[at["z"] :] = 1
    result = milp(
        cost, constraints=constraints, integrality=integrality, bounds=Bounds(0, upper),
        options={"time_limit": max(0.1, seconds), "mip_rel_gap": 1e-4},
    )  # fmt: skip
    if result.status == _INFEASIBLE:
        return None, least
    bound = np.inf if result.mip_dual_bound is None else max(least, -float(result.mip_dual_bound))
    if result.x is None:
        return None, bound
    matrix = np.zeros(len(hose.pairs))
    matrix[demands] = np.maximum(result.x[: count * width].reshape(count, width).sum(1), 0.0)
    return matrix, bound
