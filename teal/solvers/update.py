r"""Hitless updates: from one allocation to another in steps, with no link above its capacity at any time.

Within a step routers change at times of their own, so that each path may carry its old or its new flow, in any
combination.  With f_a[p] the flow of path p after step a, no combination overloads a link if

    load[e](max(f_{a-1}, f_a)) <= c[e]      for every link e and step a,

as in SWAN (Hong et al., SIGCOMM 2013, section 4.3).  For s steps the flows between the first and the last allocation
are found by a linear program, which keeps as much of every demand as it can while the update lasts:

    max rho <= 1  s.t.  sum of f_a over the paths of d >= rho min(carried before, carried after)  for every d and a < s,
    m_a >= f_{a-1}, m_a >= f_a, load(m_a) <= c.

Where both allocations fill a link there may be no way with rho = 1: something must be shed for a moment, the less the
more steps there are.  The fewest steps with rho = 1 are found by trying s = 1, 2, ...; if there are none, the s with
the best rho.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from teal.errors import SolverError
from teal.runtime.arrays import FloatArray, Int64Array

MAX_STEPS = 6
_WHOLE = 1 - 1e-6  # rho from which nothing counts as shed
_ROUNDING = 1e-9  # share of a capacity by which a link may be over it in a given allocation


@dataclasses.dataclass(frozen=True, eq=False)
class Paths:
    """P paths of D demands over E links.

    Attributes:
        through: (E, P) 1 where a path uses a link.
        demand: (P,) number of each path's demand.
        capacity: (E,) Gbit/s.
    """

    through: sp.csr_array
    demand: Int64Array
    capacity: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """The steps of an update.

    Attributes:
        flows: (s + 1, P) Gbit/s: before, after each step, and at the end.
        kept: rho, the share of what both allocations carry that every demand keeps all the time.
    """

    flows: FloatArray
    kept: float

    @property
    def steps(self) -> int:
        """S."""
        return len(self.flows) - 1


def worst_utilisation(paths: Paths, before: FloatArray, after: FloatArray) -> float:
    """Largest load over capacity of a link in any combination of old and new flows; infinite over a failed link."""
    load = paths.through @ np.maximum(before, after)
    live = paths.capacity > 0
    if (load[~live] > 0).any():
        return float("inf")
    return float((load[live] / paths.capacity[live]).max(initial=0.0))


def plan_update(paths: Paths, before: FloatArray, after: FloatArray, max_steps: int = MAX_STEPS) -> Update:
    """The fewest steps of a hitless update, or those that keep most.

    Args:
        paths: of both allocations.
        before: (P,) flows in force, Gbit/s, within the capacities.
        after: (P,) flows at the end, likewise.
        max_steps: most steps that are tried.

    Raises:
        SolverError: one of the two allocations overloads a link.
    """
    for name, flows in (("before", before), ("after", after)):
        if worst_utilisation(paths, flows, flows) > 1 + _ROUNDING:
            raise SolverError(f"update: the allocation {name} the update overloads a link")
    if worst_utilisation(paths, before, after) <= 1 + _ROUNDING:
        return Update(np.stack([before, after]), 1.0)
    best: Update | None = None
    for steps in range(2, max_steps + 1):
        found = _in_steps(paths, before, after, steps)
        if best is None or found.kept > best.kept * (1 + 1e-6):
            best = found
        if found.kept >= _WHOLE:
            break
    if best is None:
        raise SolverError(f"update: not possible in {max_steps} step")
    return best


def _in_steps(paths: Paths, before: FloatArray, after: FloatArray, steps: int) -> Update:
    """The program of the module for s steps; variables are f_1 .. f_{s-1}, m_1 .. m_s, rho."""
    count, inner = len(before), steps - 1
    demands = int(paths.demand.max(initial=-1)) + 1
    of_demand = sp.csr_array((np.ones(count), (paths.demand, np.arange(count))), shape=(demands, count))
    least = np.minimum(of_demand @ before, of_demand @ after)
    width = count * (inner + steps) + 1
    eye = sp.eye_array(count, format="csr")

    def block(rows: sp.csr_array, number: int) -> sp.csr_array:
        """``rows`` on the variables of one f (0 .. inner - 1) or m (inner ..)."""
        place = sp.csr_array(([1.0], ([0], [number])), shape=(1, inner + steps))
        return sp.csr_array(sp.hstack([sp.kron(place, rows), sp.csr_array((rows.shape[0], 1))]))

    a_ub, b_ub = [], []
    for a in range(steps):
        a_ub.append(block(paths.through, inner + a))
        b_ub.append(np.maximum(paths.capacity, paths.through @ before))  # before may be over by rounding
        for flow, known in ((a - 1, before), (a, after)):
            if 0 <= flow < inner:
                a_ub.append(block(eye, flow) - block(eye, inner + a))
                b_ub.append(np.zeros(count))
            else:
                a_ub.append(-block(eye, inner + a))
                b_ub.append(-known)
    for a in range(inner):
        rows = -block(of_demand, a)
        share = sp.csr_array((least, (np.arange(demands), np.full(demands, width - 1))), shape=(demands, width))
        a_ub.append(sp.csr_array(rows + share))
        b_ub.append(np.zeros(demands))
    cost = np.zeros(width)
    cost[-1] = -1.0
    upper = np.append(np.full(width - 1, np.inf), 1.0)
    result = linprog(
        cost, sp.vstack(a_ub, format="csr"), np.concatenate(b_ub), bounds=np.column_stack([np.zeros(width), upper]),
        method="highs",
    )  # fmt: skip
    if result.status != 0:
        return Update(np.stack([before, *[np.minimum(before, after)] * inner, after]), 0.0)
    middle = np.maximum(result.x[: count * inner].reshape(inner, count), 0)
    return Update(np.vstack([before, middle, after]), float(result.x[-1]))
