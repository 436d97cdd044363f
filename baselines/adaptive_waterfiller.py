"""The adaptive water-filler (Namyar et al., NSDI 2024, section 3.1): water-filling of paths with
adapted weights.

Each path of a demand is a flow of its own with a weight, and the weights of a demand sum to 1.
Weighted water-filling gives these flows max-min fair rates; then every weight becomes its flow's
share of the demand's rate, and so on.  The demand is a link of its own, which all of its paths
cross.
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
from teal.solvers.sequences.fairness import require_shedding
from teal.spec import Spec

_CHANGED = 1e-12  # relative: a link's level that rose by more since it was queued is queued again
_MIN_WEIGHT = 1e-6  # of a path, so that none is given up for good


@dataclasses.dataclass(frozen=True)
class AdaptiveWaterfiller:
    """The scheme `adaptive-waterfiller`: water-fillings of paths, each with the weights that the
    last one leaves.

    Attributes:
        iterations: number of water-fillings.
    """

    iterations: int = 10

    def solve(self, problem: Problem) -> Allocation:
        """Nearly max-min fair rates of every matrix.

        Raises:
            InputError: a program that must carry all demand.
        """
        require_shedding("adaptive-waterfiller", problem.objective)
        return per_matrix(problem, self._solve)

    def _solve(self, matrix: Matrix) -> MatrixResult:
        variables = matrix.path_variables(matrix.routable)
        count = len(variables.path)
        links = len(matrix.capacity)
        flow = np.zeros(matrix.mask.shape)
        if not count:
            return MatrixResult(flow)
        # Links of each flow: those of its path, then the link of its demand.
        column = np.concatenate([variables.column, np.arange(count)])
        link = np.concatenate([variables.link, links + variables.demand_row])
        order = np.argsort(column, kind="stable")
        of_flow = (
            np.searchsorted(column[order], np.arange(count + 1)).astype(np.int64),
            link[order].astype(np.int64),
        )
        capacity = np.concatenate([matrix.capacity, matrix.demand[variables.demands]])
        order = np.argsort(link, kind="stable")
        of_link = (
            np.searchsorted(link[order], np.arange(len(capacity) + 1)).astype(np.int64),
            column[order].astype(np.int64),
        )
        weight = 1.0 / np.bincount(variables.demand_row)[variables.demand_row]
        rate = np.zeros(count)
        for _ in range(self.iterations):
            rate = waterfill(weight, capacity, *of_flow, *of_link)
            total = np.bincount(variables.demand_row, rate)[variables.demand_row]
            weight = np.maximum(
                np.divide(rate, total, out=weight.copy(), where=total > 0), _MIN_WEIGHT
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
    """(n,) weighted max-min fair rates of flows with one path each.

    The link with the least level, capacity left over weight left, fixes the rates of its flows;
    then the next one.

    Args:
        weight: (n,) of the flows, above 0.
        capacity: (m,) of the links.
        flow_ptr, flow_link: the links of flow i are ``flow_link[flow_ptr[i]:flow_ptr[i + 1]]``.
        link_ptr, link_flow: the flows of each link likewise.
    """
    links = len(capacity)
    flows = len(weight)
    # Residual capacity, and total weight of the flows that are not fixed, of each link.
    residual = capacity.copy()
    active = np.zeros(links)
    for i in range(flows):
        for j in range(flow_ptr[i], flow_ptr[i + 1]):
            active[flow_link[j]] += weight[i]
    # Queue the links by their level.
    rate = np.zeros(flows)
    is_fixed = np.zeros(flows, dtype=np.uint8)
    queue = [(0.0, 0)]
    queue.pop()
    for e in range(links):
        if active[e] > 0:
            heapq.heappush(queue, (residual[e] / active[e], e))
    # Fix the flows of the link with the lowest level; requeue a link whose level has risen.
    while len(queue):
        level, e = heapq.heappop(queue)
        if active[e] <= 0:
            continue
        current_level = max(0.0, residual[e]) / active[e]
        if current_level > level * (1 + _CHANGED):
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
                active[flow_link[k]] -= weight[i]
        active[e] = 0.0
    return rate


def make(spec: Spec, model: Path | None) -> AdaptiveWaterfiller:
    """``adaptive-waterfiller[:iterations=10]``."""
    options: Any = spec.parse_options(iterations=10)
    scheme = AdaptiveWaterfiller(**options)
    if scheme.iterations < 1:
        raise InputError(spec.text, "iterations", "an integer >= 1", scheme.iterations)
    return scheme
