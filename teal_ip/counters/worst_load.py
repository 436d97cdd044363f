"""Worst-case link utilisation of fixed splits over all traffic matrices that the counters allow.

For each link e, with a_e (D,) the share of each demand on it under the splits,

    max  a_e' x / c_e
    s.t.  x >= 0,  |F x - y| <= eps y,  and optionally  sum_d |x_d - x0_d| <= g sum x0,

the latter an l1 ball around an estimate x0.  Each is a linear program (HiGHS): max cost' z over
z >= 0 with A z <= b.  By weak duality any u >= 0 with A' u >= cost proves the upper bound b' u.
The solver's dual solution is made feasible and serves as u, so the bound does not rely on the
solver's status.  Entry point: :func:`worst_load`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.runtime.arrays import FloatArray
from teal.runtime.lp import solve_lp

# Violation of a dual constraint, relative to the largest cost, above which the dual is repaired.
_DUAL_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False)
class WorstLoad:
    """Worst-case link utilisation of fixed splits.

    Attributes:
        utilisation: link utilisation of the worst matrix that was found.
        bound: certified upper bound on the utilisation.
        link: index of the most utilised link.
        matrix: (D,) the worst matrix that was found, Gbit/s.
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
    """Return the largest link utilisation over all matrices that the counters allow.

    For each link e with capacity c_e, a linear program maximises a_e' x / c_e, where a_e are the
    shares of the demands on the link, over matrices x >= 0 with |F x - y| <= eps y and, if a ball
    is given, sum_d |x_d - x0_d| <= g sum x0.

    Args:
        shares: (E, D) share a of each demand on each link under the splits.
        capacity: (E,) capacity c, Gbit/s; links with capacity 0 are ignored.
        measurements: (R, D) measurement matrix F under the routing of the counters.
        counters: (R,) counters y, Gbit/s; NaN for missing ones.
        tolerance: largest relative error eps of a counter.
        near: (D,) estimate x0, Gbit/s; given together with ``ball``.
        ball: radius g of the l1 ball around the estimate, as a share of its traffic.

    Raises:
        InputError: a ball without an estimate, or counters that no matrix explains within the
            tolerance.
        SolverError: HiGHS failed.
    """
    if (near is None) != (ball is None):
        raise InputError.invalid(
            "worst_load", "ball", "near and ball must be given together", "give both, or neither"
        )
    # Traffic is divided by the largest counter.
    num_demands = shares.shape[1]
    traffic_unit = max(float(counters[np.isfinite(counters)].max(initial=0.0)), 1e-300)
    constraint_matrix, rhs = _constraints(
        measurements, counters, tolerance, traffic_unit, near, ball
    )
    # Linear program for each link with capacity and traffic: its worst matrix and a dual bound.  As
    # ``solve_lp`` minimises, the cost is negated.
    worst_link_load = WorstLoad(-1.0, -1.0, -1, np.zeros(num_demands))
    certified_bound = 0.0
    for link in np.flatnonzero((capacity > 0) & (np.diff(shares.indptr) > 0)).tolist():
        # Shares of the demands on the link; 0 for the further variables of a ball.
        cost = np.zeros(constraint_matrix.shape[1])
        cost[:num_demands] = shares[[link]].toarray()[0]
        lp_result = solve_lp(-cost, (constraint_matrix, rhs))
        if lp_result.is_infeasible:
            raise InputError.invalid(
                "worst_load",
                "counters",
                f"no traffic matrix fits the counters within a relative error of {tolerance:.3g}",
                "raise the tolerance, or repair the counters",
            )
        # Utilisation of the matrix that was found, and its certified bound.
        worst_matrix = (
            np.maximum(lp_result.solution("worst_load")[:num_demands], 0.0) * traffic_unit
        )
        utilisation = float(cost[:num_demands] @ worst_matrix) / capacity[link]
        certified_bound = max(
            certified_bound,
            _certified_bound(cost, constraint_matrix, rhs, lp_result.duals)
            * traffic_unit
            / capacity[link],
        )
        if utilisation > worst_link_load.utilisation:
            worst_link_load = WorstLoad(utilisation, 0.0, link, worst_matrix)
    if worst_link_load.link < 0:
        raise InputError.invalid("worst_load", "shares", "no link with capacity carries a demand")
    return dataclasses.replace(
        worst_link_load, bound=max(certified_bound, worst_link_load.utilisation)
    )


def _constraints(
    measurements: sp.csr_array,
    counters: FloatArray,
    tolerance: float,
    traffic_unit: float,
    near: FloatArray | None,
    ball: float | None,
) -> tuple[sp.csr_array, FloatArray]:
    """Return A and b of the constraints A z <= b on matrices that the counters allow.

    Args:
        measurements: (R, D) measurement matrix F.
        counters: (R,) counters y, Gbit/s; NaN for missing ones.
        tolerance: largest relative error of a counter.
        traffic_unit: unit of traffic in the program, Gbit/s.
        near: (D,) estimate x0, Gbit/s; None for no ball.
        ball: radius of the l1 ball around the estimate, as a share of its traffic.

    Returns:
        A (rows, D) and b (rows,), z = x; with a ball A (rows, 2 D) and z = (x, t), where t bounds
        abs(x - x0).
    """
    # Counters: (1 - eps) y <= F x <= (1 + eps) y.
    counter_index = np.flatnonzero(np.isfinite(counters))
    counter_rows = sp.csr_array(measurements[counter_index])
    y = counters[counter_index]
    upper_counters = (1 + tolerance) * y / traffic_unit
    lower_counters = (1 - tolerance) * y / traffic_unit
    blocks: list[list[sp.csr_array | None]] = [[counter_rows], [-counter_rows]]
    rhs = [upper_counters, -lower_counters]
    # Ball: -t <= x - x0 <= t, sum t <= g sum x0, with D further variables t.
    if near is not None and ball is not None:
        num_demands = measurements.shape[1]
        eye = sp.eye_array(num_demands, format="csr")
        ones = sp.csr_array(np.ones((1, num_demands)))
        x0 = near / traffic_unit
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
    cost: FloatArray, constraint_matrix: sp.csr_array, rhs: FloatArray, dual: FloatArray
) -> float:
    """Return an upper bound on the maximum of cost' z over z >= 0 with A z <= rhs.

    It is the dual bound rhs' u, with u = max(dual, 0) made feasible, A' u >= cost: for each
    violated column, the element of u at the row with the largest entry of the column is increased.
    The bound is infinite if a violated column has no positive entry.

    Args:
        cost: (n,) objective.
        constraint_matrix: (rows, n) constraint matrix A.
        rhs: (rows,) right-hand sides.
        dual: (rows,) approximate dual solution.
    """
    # Clip the dual at 0; find the columns where it violates A' u >= cost.
    repaired_dual = np.maximum(dual, 0.0)
    violation = cost - constraint_matrix.T @ repaired_dual
    violated_columns = np.flatnonzero(
        violation > _DUAL_TOLERANCE * max(float(np.abs(cost).max()), 1e-300)
    )
    # Raise u at the largest entry of each such column, by the violation over this entry.
    columns = sp.csc_array(constraint_matrix)
    for column in violated_columns.tolist():
        entries = columns.data[columns.indptr[column] : columns.indptr[column + 1]]
        if not len(entries) or entries.max() <= 0:
            return float("inf")
        row = columns.indices[columns.indptr[column] + int(entries.argmax())]
        repaired_dual[row] += violation[column] / float(entries.max())
    return float(rhs @ repaired_dual)
