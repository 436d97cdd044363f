"""The adaptive water-filler (Namyar et al., NSDI 2024, section 3.1): water-filling of paths with
adapted weights.

Each path of a demand is a flow of its own with a weight, and the weights of a demand sum to 1.
Weighted water-filling gives these flows max-min fair rates; then every weight is set to its flow's
share of the demand's rate, and water-filling is repeated.  The demand is a virtual link that all of
its paths cross.
"""

from __future__ import annotations

import dataclasses
import heapq
from pathlib import Path
from typing import Any

import numpy as np

from baselines.matrix import Array, Matrix, MatrixResult, per_matrix
from teal.errors import InputError
from teal.problem import Allocation, Problem
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.parallel import kernel
from teal.solvers.sequences.fairness import require_may_shed
from teal.spec import Spec

# A link is queued again if its level has risen by more than this relative amount since it was
# queued.
_LEVEL_TOLERANCE = 1e-12
# Smallest weight of a path: its flow may grow again in a later water-filling.
_MIN_WEIGHT = 1e-6


@dataclasses.dataclass(frozen=True)
class AdaptiveWaterfiller:
    """The adaptive water-filler: repeated weighted water-filling of paths, whose weights follow the
    rates.

    Attributes:
        iterations: number of water-fillings.
    """

    iterations: int = 10

    def solve(self, problem: Problem) -> Allocation:
        """Allocate nearly max-min fair rates for every matrix.

        Raises:
            InputError: the objective requires that all demand is carried.
        """
        require_may_shed("adaptive-waterfiller", problem.objective)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        """Solve one matrix by repeated weighted water-filling.

        The next weight of a path is its flow over the rate of its demand.
        """
        variables = matrix.path_variables(matrix.routable)
        num_flows = len(variables.path)
        num_links = len(matrix.capacity)
        flow = np.zeros(matrix.mask.shape)
        if not num_flows:
            return MatrixResult(flow)
        # Each path is a flow.  Its links are those of the path, then a virtual link of the demand,
        # whose capacity is the demand.  CSR: pointers and link indices of each flow.
        incidence_flow = np.concatenate([variables.column, np.arange(num_flows)])
        incidence_link = np.concatenate([variables.link, num_links + variables.demand_row])
        order = np.argsort(incidence_flow, kind="stable")
        flow_links_csr = (
            np.searchsorted(incidence_flow[order], np.arange(num_flows + 1)).astype(np.int64),
            incidence_link[order].astype(np.int64),
        )
        # CSR: pointers and flow indices of each link.
        capacity = np.concatenate([matrix.capacity, matrix.demand[variables.demands]])
        order = np.argsort(incidence_link, kind="stable")
        link_flows_csr = (
            np.searchsorted(incidence_link[order], np.arange(len(capacity) + 1)).astype(np.int64),
            incidence_flow[order].astype(np.int64),
        )
        weight = 1.0 / np.bincount(variables.demand_row)[variables.demand_row]
        rate = np.zeros(num_flows)
        for _ in range(self.iterations):
            rate = waterfill(weight, capacity, *flow_links_csr, *link_flows_csr)
            demand_rate = np.bincount(variables.demand_row, rate)[variables.demand_row]
            weight = np.maximum(
                np.divide(rate, demand_rate, out=weight.copy(), where=demand_rate > 0), _MIN_WEIGHT
            )
        flow.reshape(-1)[variables.path] = rate
        return MatrixResult(flow)


@kernel
def waterfill(
    weight: FloatArray,
    capacity: FloatArray,
    flow_ptr: Int64Array,
    flow_link: Int64Array,
    link_ptr: Int64Array,
    link_flow: Int64Array,
) -> Array:
    """Return weighted max-min fair rates (n,) of flows with one path each.

    The link with the lowest level (residual capacity over the total weight of its flows) fixes the
    rates of its flows at weight times level; then the next link.

    Args:
        weight: (n,) weight of each flow, above 0.
        capacity: (m,) capacity of each link.
        flow_ptr: (n + 1,) the links of flow i are ``flow_link[flow_ptr[i]:flow_ptr[i + 1]]``.
        flow_link: links of all flows.
        link_ptr: (m + 1,) the flows of link e are ``link_flow[link_ptr[e]:link_ptr[e + 1]]``.
        link_flow: flows of all links.
    """
    num_links = len(capacity)
    num_flows = len(weight)
    # (m,) residual capacity of each link, and total weight of its flows that are not fixed.
    residual = capacity.copy()
    active_weight = np.zeros(num_links)
    for i in range(num_flows):
        for j in range(flow_ptr[i], flow_ptr[i + 1]):
            active_weight[flow_link[j]] += weight[i]
    # Priority queue of (level, link); the first entry tells Numba its type.
    rate = np.zeros(num_flows)
    is_fixed = np.zeros(num_flows, dtype=np.uint8)
    queue = [(0.0, 0)]
    queue.pop()
    for e in range(num_links):
        if active_weight[e] > 0:
            heapq.heappush(queue, (residual[e] / active_weight[e], e))
    # Fix the flows of the link with the lowest level; requeue a link whose level has risen.
    while len(queue):
        level, e = heapq.heappop(queue)
        if active_weight[e] <= 0:
            continue
        current_level = max(0.0, residual[e]) / active_weight[e]
        if current_level > level * (1 + _LEVEL_TOLERANCE):
            heapq.heappush(queue, (current_level, e))
            continue
        for j in range(link_ptr[e], link_ptr[e + 1]):
            i = link_flow[j]
            if is_fixed[i]:
                continue
            is_fixed[i] = 1
            rate[i] = weight[i] * current_level
            for k in range(flow_ptr[i], flow_ptr[i + 1]):
                residual[flow_link[k]] -= rate[i]
                active_weight[flow_link[k]] -= weight[i]
        active_weight[e] = 0.0
    return rate


def make(spec: Spec, model: Path | None) -> AdaptiveWaterfiller:
    """Build the scheme from its specification; the options and their defaults are
    ``adaptive-waterfiller[:iterations=10]``.
    """
    options: Any = spec.parse_options(iterations=10)
    scheme = AdaptiveWaterfiller(**options)
    if scheme.iterations < 1:
        raise InputError(spec.text, "iterations", "an integer >= 1", scheme.iterations)
    return scheme
