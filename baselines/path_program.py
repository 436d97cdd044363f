"""The path-form program over some of the demands and what capacity is left to them: a part of many schemes.

Value maximisation: max sum v x  s.t.  sum_k x[d, k] <= demand[d], load[e] <= c[e].
max_link_utilisation: min theta  s.t.  sum_k x[d, k] = demand[d], load[e] + background[e] <= theta C[e].
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import scipy.sparse as sp

from baselines.linear_program import LinearProgram, LpSolution
from baselines.matrix import Array, Matrix
from teal.objectives import ObjectiveName

KNOWN = (
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.WEIGHTED_FLOW,
    ObjectiveName.LATENCY_PENALISED_FLOW,
    ObjectiveName.MAX_LINK_UTILISATION,
)


@dataclasses.dataclass(frozen=True, eq=False)
class PathProgram:
    """The program, and where its variables and rows belong.

    Attributes:
        matrix: of which.
        program: with one variable a path, and theta last under max_link_utilisation; the first rows of a_ub are links.
        columns: (n,) path places d * K + k; links: (m,) links.
        build_s: seconds it took.
    """

    matrix: Matrix
    program: LinearProgram
    columns: Array
    links: Array
    build_s: float

    def flow(self, found: LpSolution) -> Array:
        """(D, K), 0 for demands that took no part."""
        flow = np.zeros(self.matrix.mask.shape)
        flow.reshape(-1)[self.columns] = found.x[: len(self.columns)]
        return flow

    def prices(self, found: LpSolution) -> Array:
        """(E,) value of one more Gbit/s."""
        prices = np.zeros(len(self.matrix.capacity))
        prices[self.links] = found.dual[: len(self.links)]
        return prices


def path_program(matrix: Matrix, chosen: Array, capacity: Array, background: Array | None = None) -> PathProgram:
    """The program of the ``chosen`` demands (D,).

    Args:
        capacity: (E,) to be shared among them.
        background: (E,) load that is there already; of max_link_utilisation alone.
    """
    begin = time.perf_counter()
    paths = matrix.columns(chosen)
    links = np.unique(paths.link)
    loads, served = paths.loads(len(capacity))[links], paths.served()
    width, demand = len(paths.place), matrix.demand[paths.demands]
    if matrix.network.objective.maximises_value:
        program = LinearProgram(
            -matrix.network.value.reshape(-1)[paths.place],
            sp.vstack([loads, served], format="csr"),
            np.concatenate([capacity[links], demand]),
        )
        return PathProgram(matrix, program, paths.place, links, time.perf_counter() - begin)
    theta = sp.csr_array(-capacity[links][:, None])
    there = np.zeros(len(capacity)) if background is None else background
    least = np.divide(there, capacity, out=np.zeros_like(there), where=capacity > 0).max(initial=0.0)
    floor = sp.csr_array(([-1.0], ([0], [width])), shape=(1, width + 1))  # theta is no less than what is there
    program = LinearProgram(
        np.append(np.zeros(width), 1.0),
        sp.vstack([sp.hstack([loads, theta]), floor], format="csr"),
        np.append(-there[links], -least),
        sp.hstack([served, sp.csr_array((len(demand), 1))], format="csr"),
        demand,
    )
    return PathProgram(matrix, program, paths.place, links, time.perf_counter() - begin)
