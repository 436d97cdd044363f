"""Schemes that place one demand after the other: the loops, compiled."""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from baselines.matrix import Array, Matrix
from teal.runtime.parallel import kernel


@kernel
def _place(order, demand, mask, path_ptr, path_links, residual, whole, first_only, flow):
    """Demands in order: each on the first of its paths with room for it all or, unless ``whole``, for a part."""
    paths = mask.shape[1]
    for d in order:
        for k in range(paths):
            if not mask[d, k]:
                continue
            begin, end = path_ptr[d * paths + k], path_ptr[d * paths + k + 1]
            room = np.inf
            for i in range(begin, end):
                room = min(room, residual[path_links[i]])
            sent = min(room, demand[d])
            if sent > 0 and (not whole or sent >= demand[d]):
                flow[d, k] += sent
                for i in range(begin, end):
                    residual[path_links[i]] = max(0.0, residual[path_links[i]] - sent)
                break
            if first_only:
                break


def place(matrix: Matrix, order: Array, residual: Array, *, whole: bool, first_only: bool) -> Array:
    """(D, K) flows of the demands in ``order``; ``residual`` (E,) is used up.

    Args:
        whole: a demand goes over one path entirely or not at all.
        first_only: look at no path but the first that works.
    """
    flow = np.zeros(matrix.mask.shape)
    network = matrix.network
    _place(order, matrix.demand, matrix.mask, network.path_ptr, network.path_links, residual, whole, first_only, flow)
    return flow


def all_on_first(matrix: Matrix) -> Array:
    """(D, K) flows with every routable demand on its first path that works, capacities unasked."""
    flow = np.zeros(matrix.mask.shape)
    rows = np.flatnonzero(matrix.routable)
    flow[rows, matrix.mask[rows].argmax(1)] = matrix.demand[rows]
    return flow
