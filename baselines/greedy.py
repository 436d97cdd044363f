"""Placing demands on paths one after the other; the loop is compiled by Numba."""

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
    """The loop of :func:`place`; changes ``residual`` (E,) and ``flow`` (D, K)."""
    paths = mask.shape[1]
    for d in order:
        for k in range(paths):
            if not mask[d, k]:
                continue
            begin = path_ptr[d * paths + k]
            end = path_ptr[d * paths + k + 1]
            available = np.inf
            for i in range(begin, end):
                available = min(available, residual[path_links[i]])
            placed = min(available, demand[d])
            if placed > 0 and (not unsplittable or placed >= demand[d]):
                flow[d, k] += placed
                for i in range(begin, end):
                    residual[path_links[i]] = max(0.0, residual[path_links[i]] - placed)
                break
            if first_only:
                break


def place_demands(
    matrix: Matrix, order: Array, residual: Array, *, unsplittable: bool, first_only: bool
) -> Array:
    """(D, K) flow: each demand of ``order`` in turn on its first live path with enough residual
    capacity.

    Args:
        matrix: demands and live paths.
        order: demand numbers; demands that are not in it get no flow.
        residual: (E,) capacity that may be used; the placed flow is subtracted in place.
        whole: a path is used only if it can carry the whole demand; otherwise if it can carry any
            part.
        first_only: only the first live path of each demand is tried.
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
    """(D, K) flow: every routable demand whole on its first live path, regardless of capacities."""
    flow = np.zeros(matrix.mask.shape)
    rows = np.flatnonzero(matrix.routable)
    flow[rows, matrix.mask[rows].argmax(1)] = matrix.demand[rows]
    return flow
