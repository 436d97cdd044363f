"""Worst-case utilisation of fixed splits over all traffic matrices that the counters allow.

For each link e with shares a_e (D,) of the demands, under the new splits,

    max  a_e' x / c_e
    s.t.  x >= 0,  |F x - y| <= eps y,  and with a ball  sum_d |x_d - x0_d| <= g sum x0.

Each is a linear program (HiGHS), max cost' z over z >= 0 with A z <= b.  By weak duality any y >= 0
with A' y >= cost proves the bound b' y, which is recomputed from the solver's duals, independently
of the solver's status.  Entry point: :func:`worst_load`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.runtime.arrays import FloatArray
from teal.runtime.lp import solve_lp

# Violation of a dual row, relative to the largest cost, above which the dual is repaired.
_DUAL_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class WorstLoad:
    """Worst case of given splits.

    Attributes:
        utilisation: largest link utilisation of some allowed matrix.
        bound: certified upper bound on the utilisation.
        link: index of the link.
        matrix: (D,) worst-case matrix, Gbit/s.
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
    """Return the largest link utilisation over all matrices that the counters allow (module
    docstring).

    Args:
        shares: (E, D) share of each demand on the links under the splits.
        capacity: (E,) Gbit/s; links of 0 are ignored.
        measurements: (R, D) measurement matrix F under the routing of the counters.
        counters: (R,) y, Gbit/s; NaN for missing ones.
        tolerance: eps, relative error of a counter.
        near: (D,) x0, an estimate; with ``ball``.
        ball: g, calibrated error of the estimate, as a share of the traffic.

    Raises:
        InputError: a ball without an estimate, or counters that no matrix explains within the
            tolerance.
        SolverError: HiGHS failed.
    """
    if (near is None) != (ball is None):
        raise InputError("worst_load", "ball", "together with an estimate", ball)
    num_demands = shares.shape[1]
    scale = max(float(counters[np.isfinite(counters)].max(initial=0.0)), 1e-300)
    rows, limit = _constraints(measurements, counters, tolerance, scale, near, ball)
    # One linear program for each link.
    best = WorstLoad(-1.0, -1.0, -1, np.zeros(num_demands))
    bound = 0.0
    for link in np.flatnonzero((capacity > 0) & (np.diff(shares.indptr) > 0)).tolist():
        cost = np.zeros(rows.shape[1])
        cost[:num_demands] = shares[[link]].toarray()[0]
        result = solve_lp(-cost, (rows, limit))
        if result.is_infeasible:
            expected = (
                f"counters that some matrix explains within {tolerance:.3g} (raise the tolerance, "
                "or repair the counters)"
            )
            raise InputError("worst_load", "counters", expected, "none")
        matrix = np.maximum(result.solution("worst_load")[:num_demands], 0.0) * scale
        value = float(cost[:num_demands] @ matrix) / capacity[link]
        bound = max(
            bound, _certified_bound(cost, rows, limit, result.duals) * scale / capacity[link]
        )
        if value > best.utilisation:
            best = WorstLoad(value, 0.0, link, matrix)
    if best.link < 0:
        raise InputError("worst_load", "shares", "a link that carries some demand", "none")
    return dataclasses.replace(best, bound=max(bound, best.utilisation))


def _constraints(
    measurements: sp.csr_array,
    counters: FloatArray,
    tolerance: float,
    scale: float,
    near: FloatArray | None,
    ball: float | None,
) -> tuple[sp.csr_array, FloatArray]:
    """Return A and b of the allowed matrices A z <= b: counters within the tolerance, and the ball
    around the estimate.

    Args:
        measurements, counters, tolerance, near, ball: as in :func:`worst_load`.
        scale: Gbit/s that count as 1 in the program.

    Returns:
        A (rows, D), or (rows, 2 D) with a ball, whose further columns bound abs(x - x0); and b.
    """
    counter_index = np.flatnonzero(np.isfinite(counters))
    counter_rows = sp.csr_array(measurements[counter_index])
    y = counters[counter_index]
    upper = (1 + tolerance) * y / scale
    lower = (1 - tolerance) * y / scale
    blocks: list[list[sp.csr_array | None]] = [[counter_rows], [-counter_rows]]
    rhs = [upper, -lower]
    if near is not None and ball is not None:
        num_demands = measurements.shape[1]
        eye = sp.eye_array(num_demands, format="csr")
        ones = sp.csr_array(np.ones((1, num_demands)))
        x0 = near / scale
        blocks = [
            [counter_rows, None],
            [-counter_rows, None],
            [eye, -eye],
            [-eye, -eye],
            [None, ones],
        ]
        rhs += [x0, -x0, np.array([ball * float(x0.sum())])]
    return sp.csr_array(sp.block_array(blocks)), np.concatenate(rhs)


def _certified_bound(
    cost: FloatArray, rows: sp.csr_array, limit: FloatArray, dual: FloatArray
) -> float:
    """Dual bound limit' y in float64, for duals y >= 0 repaired to be feasible (rows' y >= cost).

    A violated dual row is covered by more of the primal row with that column's largest entry: for x
    >= 0 this proves a bound as long as every column has a positive entry in some row.
    """
    y = np.maximum(dual, 0.0)
    violation = cost - rows.T @ y
    violated_columns = np.flatnonzero(
        violation > _DUAL_TOLERANCE * max(float(np.abs(cost).max()), 1e-300)
    )
    columns = sp.csc_array(rows)
    for column in violated_columns.tolist():
        entries = columns.data[columns.indptr[column] : columns.indptr[column + 1]]
        if not len(entries) or entries.max() <= 0:
            return float("inf")
        row = columns.indices[columns.indptr[column] + int(entries.argmax())]
        y[row] += violation[column] / float(entries.max())
    return float(limit @ y)
