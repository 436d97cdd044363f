"""The largest utilisation that fixed splits can see, over all matrices that the counters allow.

For each link e with shares a_e (D,) of the demands, under the new splits,

    max  a_e' x / c_e
    s.t.  x >= 0,  |F x - y| <= eps y,  and with a ball  sum_d |x_d - x0_d| <= g sum x0.

Each is a linear program (HiGHS), max cost' z over z >= 0 with A z <= b.  Any y >= 0 with A' y >=
cost proves the bound b' y, which is computed again from the solver's duals, whatever the solver
says.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.runtime.arrays import FloatArray
from teal.runtime.lp import solve_lp

_DUAL_TOLERANCE = 1e-9  # of a demand's violated dual row, that is moved onto the largest column


@dataclasses.dataclass(frozen=True, eq=False)
class WorstLoad:
    """The worst case of given splits.

    Attributes:
        utilisation: largest load over capacity that some allowed matrix makes.
        bound: certified from above.
        link: number of the link.
        matrix: (D,) Gbit/s, that makes it.
    """

    utilisation: float
    bound: float
    link: int
    matrix: FloatArray


def worst_load(
    shares: sp.csr_array,
    capacity: FloatArray,
    measurements: sp.csr_array,
    counters: FloatArray,
    *,
    tolerance: float = 0.01,
    near: FloatArray | None = None,
    ball: float | None = None,
) -> WorstLoad:
    """The largest utilisation of a link over all matrices that the counters allow (equations in the
    module).

    Args:
        shares: (E, D) of each demand on the links under the splits in question.
        capacity: (E,) Gbit/s; links of 0 are left out.
        measurements: (R, D) F under the routing that the counters saw.
        counters: (R,) y, Gbit/s; NaN for missing ones.
        tolerance: eps, relative error of a counter.
        near: (D,) x0, an estimate; with ``ball``.
        ball: g, calibrated share of the traffic by which the truth may be off the estimate.

    Raises:
        InputError: a ball without an estimate, or counters that no matrix explains within the
            tolerance.
        SolverError: HiGHS failed.
    """
    if (near is None) != (ball is None):
        raise InputError("worst_load", "ball", "together with an estimate", ball)
    known = np.flatnonzero(np.isfinite(counters))
    seen, y = sp.csr_array(measurements[known]), counters[known]
    demands, scale = shares.shape[1], max(float(y.max(initial=0.0)), 1e-300)
    upper, lower = (1 + tolerance) * y / scale, (1 - tolerance) * y / scale
    blocks: list[list[sp.csr_array | None]] = [[seen], [-seen]]
    right = [upper, -lower]
    columns = demands
    if near is not None and ball is not None:
        eye, ones = sp.eye_array(demands, format="csr"), sp.csr_array(np.ones((1, demands)))
        x0 = near / scale
        blocks = [[seen, None], [-seen, None], [eye, -eye], [-eye, -eye], [None, ones]]
        right += [x0, -x0, np.array([ball * float(x0.sum())])]
        columns = 2 * demands
    rows, limit = sp.csr_array(sp.block_array(blocks)), np.concatenate(right)
    best = WorstLoad(-1.0, -1.0, -1, np.zeros(demands))
    bound = 0.0
    for link in np.flatnonzero((capacity > 0) & (np.diff(shares.indptr) > 0)).tolist():
        cost = np.zeros(columns)
        cost[:demands] = shares[[link]].toarray()[0]
        result = solve_lp(-cost, (rows, limit))
        if result.is_infeasible:
            expected = f"counters that some matrix explains within {tolerance:.3g}"
            raise InputError(
                "worst_load", "counters", expected, "none: a larger tolerance, or repaired counters"
            )
        matrix = np.maximum(result.solution("worst_load")[:demands], 0.0) * scale
        value = float(cost[:demands] @ matrix) / capacity[link]
        bound = max(bound, _certified(cost, rows, limit, result.duals) * scale / capacity[link])
        if value > best.utilisation:
            best = WorstLoad(value, 0.0, link, matrix)
    if best.link < 0:
        raise InputError("worst_load", "shares", "a link that carries some demand", "none")
    return dataclasses.replace(best, bound=max(bound, best.utilisation))


def _certified(cost: FloatArray, rows: sp.csr_array, limit: FloatArray, dual: FloatArray) -> float:
    """The bound limit' y for duals y >= 0 made feasible (rows' y >= cost), in float64.

    What rounding leaves violated is covered by more of the row that covers the most of that column:
    for x >= 0 this proves a bound as long as every column has a positive entry in some row.
    """
    y = np.maximum(dual, 0.0)
    missing = cost - rows.T @ y
    violated = np.flatnonzero(missing > _DUAL_TOLERANCE * max(float(np.abs(cost).max()), 1e-300))
    columns = sp.csc_array(rows)
    for column in violated.tolist():
        entries = columns.data[columns.indptr[column] : columns.indptr[column + 1]]
        if not len(entries) or entries.max() <= 0:
            return float("inf")
        row = columns.indices[columns.indptr[column] + int(entries.argmax())]
        y[row] += missing[column] / float(entries.max())
    return float(limit @ y)
