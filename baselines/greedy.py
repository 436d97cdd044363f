"""Greedy placement of demands on paths, one after the other, by a compiled kernel."""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from baselines.matrix import Array, Matrix
from teal.runtime.parallel import kernel


@kernel
def _place_demands(
    order, demand, mask, path_ptr, path_links, residual, unsplittable, first_only, flow
):
    """Place each demand in turn on its first live path with enough residual capacity.

    Args:
        order: demand indices, in the order of placement.
        demand: (D,) rate of each demand.
        mask: (D, K) true for live paths.
        path_ptr: (D K + 1,) the links of path k of demand d, with p = d K + k, are
            ``path_links[path_ptr[p]:path_ptr[p + 1]]``.
        path_links: links of all paths.
        residual: (E,) residual capacity of each link (updated).
        unsplittable: whether a path must have room for all of the demand.
        first_only: whether only the first live path of a demand is tried.
        flow: (D, K) flow on each path (updated).
    """
    num_paths = mask.shape[1]
    for d in order:
        for k in range(num_paths):
            if not mask[d, k]:
                continue
            begin = path_ptr[d * num_paths + k]
            end = path_ptr[d * num_paths + k + 1]
            # Bottleneck of the path.
            available = np.inf
            for i in range(begin, end):
                available = min(available, residual[path_links[i]])
            flow_on_path = min(available, demand[d])
            if flow_on_path > 0 and (not unsplittable or flow_on_path >= demand[d]):
                flow[d, k] += flow_on_path
                for i in range(begin, end):
                    residual[path_links[i]] = max(0.0, residual[path_links[i]] - flow_on_path)
                break
            if first_only:
                break


def place_demands(
    matrix: Matrix, order: Array, residual: Array, *, unsplittable: bool, first_only: bool
) -> Array:
    """Place demands in order, each on its first live path with enough residual capacity.

    Args:
        matrix: demands and live paths.
        order: demand indices; other demands get no flow.
        residual: (E,) capacity that may be used; the placed flow is subtracted in place.
        unsplittable: whether a path must have room for all of the demand; otherwise any residual
            capacity suffices, and a part of the demand is placed.
        first_only: whether only the first live path of each demand is tried.

    Returns:
        flow (D, K) on each path.
    """
    flow = np.zeros(matrix.mask.shape)
    network = matrix.network
    _place_demands(
        order,
        matrix.demand,
        matrix.mask,
        network.path_ptr,
        network.path_links,
        residual,
        unsplittable,
        first_only,
        flow,
    )
    return flow


def first_path_flow(matrix: Matrix) -> Array:
    """Return the flow (D, K) with each demand on its first live path, whatever the capacities."""
    flow = np.zeros(matrix.mask.shape)
    rows = np.flatnonzero(matrix.routable)
    flow[rows, matrix.mask[rows].argmax(1)] = matrix.demand[rows]
    return flow
