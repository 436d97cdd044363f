"""What happens to matrices and networks: failures, crowds, noise, demand that moves.  Seeded by the caller."""

from __future__ import annotations

import numpy as np

from teal.network.topology import FloatArray, Topology

_MOVED = 0.1  # share of the demands whose volume moves


def fail_cables(topology: Topology, count: int, rng: np.random.Generator) -> list[int]:
    """The links of ``count`` random cables, both directions of each (see :meth:`Topology.cables`).

    Raises:
        ValueError: the network has no so many.
    """
    cables = topology.cables()
    chosen = rng.choice(len(cables), count, replace=False)
    return sorted(link for cable in chosen.tolist() for link in cables[cable])


def flash_crowd(
    demand: FloatArray, rng: np.random.Generator, *, share: float = 0.1, factor: float = 10.0
) -> FloatArray:
    """Each demand, (..., D) Gbit/s, times ``factor`` with probability ``share``."""
    return np.where(rng.random(demand.shape) < share, factor * demand, demand)


def temporal_noise(demand: FloatArray, variance: FloatArray, factor: float, rng: np.random.Generator) -> FloatArray:
    """max(0, demand + N(0, factor * variance)): changes ``factor`` times as large, in variance, as the usual ones.

    Args:
        demand: (D,) Gbit/s.
        variance: (D,) of the change from one matrix to the next, (Gbit/s)^2.
        factor: 2, 5, 10 and 20 in Teal's paper (section 5.3).
    """
    return np.maximum(demand + np.sqrt(factor * variance) * rng.standard_normal(demand.shape), 0.0)


def redistribute(demand: FloatArray, share: float) -> FloatArray:
    """The same total, of which the largest tenth of the demands have ``share``; proportions inside both parts stay.

    Args:
        demand: (D,) Gbit/s.
        share: 0.8, 0.6, 0.4 and 0.2 in Teal's paper (section 5.3), against 0.88 of the original.
    """
    top = np.zeros(len(demand), bool)
    top[np.argsort(-demand, kind="stable")[: max(1, round(_MOVED * len(demand)))]] = True
    total, above = demand.sum(), demand[top].sum()
    below = total - above
    if not above or not below:  # one part has nothing that could be scaled
        return demand
    return np.where(top, demand * (share * total / above), demand * ((1 - share) * total / below))
