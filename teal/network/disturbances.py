"""Perturbations of matrices and networks for experiments: failures, flash crowds, noise, skew.

The caller passes the random generator, so that every perturbation is reproducible.
"""

from __future__ import annotations

import numpy as np

from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray

# Fraction of the demands, the largest ones, that `redistribute` scales as one part.
_LARGEST_SHARE = 0.1


def fail_cables(topology: Topology, count: int, rng: np.random.Generator) -> list[int]:
    """Draw random cables, and return the indices of all their links, ascending.

    A cable consists of all links between two neighbours, in both directions.

    Args:
        topology: the network.
        count: number of cables.
        rng: random generator.

    Raises:
        ValueError: the network has fewer cables.
    """
    cables = topology.cables()
    selected = rng.choice(len(cables), count, replace=False)
    return sorted(link for cable in selected.tolist() for link in cables[cable])


def flash_crowd(
    demand: FloatArray, rng: np.random.Generator, *, share: float = 0.1, factor: float = 10.0
) -> FloatArray:
    """Return the demands in a flash crowd: some random demands are multiplied by a factor.

    Args:
        demand: (..., D) Gbit/s.
        rng: random generator.
        share: probability that a demand is multiplied.
        factor: the factor.
    """
    return np.where(rng.random(demand.shape) < share, factor * demand, demand)


def temporal_noise(
    demand: FloatArray, variance: FloatArray, factor: float, rng: np.random.Generator
) -> FloatArray:
    """Return demands with normal noise: max(0, demand + N(0, factor * variance)) (Xu et al.,
    "Teal", SIGCOMM 2023, section 5.3).

    Args:
        demand: (D,) Gbit/s.
        variance: (D,) variance of the change from one matrix to the next, (Gbit/s)^2.
        factor: multiple of that variance; the paper uses 2, 5, 10 and 20.
        rng: random generator.
    """
    return np.maximum(demand + np.sqrt(factor * variance) * rng.standard_normal(demand.shape), 0.0)


def redistribute(demand: FloatArray, share: float) -> FloatArray:
    """Return demands scaled so that the largest tenth of them has a given share of the total
    volume.

    The other demands are scaled to the rest of the volume.  The total and the proportions within
    both parts are preserved (Xu et al., "Teal", SIGCOMM 2023, section 5.3).

    Args:
        demand: (D,) Gbit/s.
        share: share of the total volume; the paper uses 0.8, 0.6, 0.4 and 0.2, and its measured
            traffic has 0.88.
    """
    is_large = np.zeros(len(demand), bool)
    is_large[np.argsort(-demand, kind="stable")[: max(1, round(_LARGEST_SHARE * len(demand)))]] = (
        True
    )
    volume = demand.sum()
    large_volume = demand[is_large].sum()
    small_volume = volume - large_volume
    # If one of the two parts is 0, it cannot be scaled: return the demands unchanged.
    if not large_volume or not small_volume:
        return demand
    return np.where(
        is_large,
        demand * (share * volume / large_volume),
        demand * ((1 - share) * volume / small_volume),
    )
