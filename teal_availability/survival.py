"""Survival states of each demand (the set of its candidate paths that survive), with exact
probabilities for any number of simultaneous component failures.

All paths of a set T survive if no component of any of them is down,

    P(all of T survive) = product of (1 - q[c]) over the components c of the paths of T,

and inclusion-exclusion over the supersets (a Moebius transform over subsets) gives the probability
that exactly the paths of a set survive. Entry point: :func:`survival_probabilities`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from teal import InputError, PathSet, Problem
from teal.network.path_links import path_links_of
from teal.runtime.arrays import BoolArray, FloatArray
from teal_availability.components import Components
from teal_availability.matrix import path_link_incidence

# Largest K: the table has 2^K (256) path sets per demand.
MAX_PATHS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class SurvivalStates:
    """Survival states of D demands with K paths each.

    Survival state s, 0 <= s < 2^K, means that exactly the paths whose bits are 1 in s survive.

    Attributes:
        probability: (D, 2^K) probability of each survival state; 0 for states with paths that the
            demand does not have.
    """

    probability: FloatArray

    @property
    def num_paths(self) -> int:
        """The number K of paths per demand."""
        return int(self.probability.shape[1]).bit_length() - 1

    @property
    def survives(self) -> BoolArray:
        """Matrix (2^K, K) of booleans: whether path k survives in survival state s."""
        return path_subsets(self.num_paths)


def path_subsets(num_paths: int) -> BoolArray:
    """Return all subsets of K paths as a matrix (2^K, K): whether subset s contains path k, which
    is bit k of s.
    """
    subsets = np.arange(1 << num_paths)[:, None]
    contains: BoolArray = (subsets >> np.arange(num_paths)[None, :]) & 1 > 0
    return contains


def survival_probabilities(problem: Problem, components: Components) -> SurvivalStates:
    """Compute the probabilities of the survival states of all demands.

    With unavailability q[c] of component c, all paths of a set T survive with probability product
    of (1 - q[c]) over the components that any path of T uses.  A Moebius transform over subsets
    gives the probability that exactly the paths of T survive.

    Args:
        problem: candidate paths, at most ``MAX_PATHS`` per demand; paths over a link of capacity 0
            never survive.
        components: failing components of its network.

    Raises:
        InputError: more paths per demand.
    """
    paths = problem.paths
    if paths.num_paths > MAX_PATHS:
        raise InputError(
            "availability", "paths", f"at most {MAX_PATHS} per demand", paths.num_paths
        )
    subsets = path_subsets(paths.num_paths)
    log_availability = _log_availability_by_subset(paths, components)
    # All paths of a set T survive if no component used by any of them is down. Components are
    # grouped by the set of paths that use them; the groups whose set intersects T count.
    intersects = ((np.arange(len(subsets))[:, None] & np.arange(len(subsets))[None, :]) > 0).astype(
        float
    )
    joint_survival = np.exp(log_availability @ intersects)
    # Sets with a missing path never survive.
    has_missing_path = ~problem.path_mask[0].cpu().numpy()[:, None, :] & subsets[None, :, :]
    joint_survival[has_missing_path.any(-1)] = 0.0
    return SurvivalStates(_exact_survival(joint_survival, paths.num_paths))


def paths_by_component(paths: PathSet, components: Components) -> sp.csr_array:
    """Return which failing components each path uses.

    Args:
        paths: candidate paths; P of all demands, in the order of ``PathLinks.slot``.
        components: n failing components.

    Returns:
        (P, n) sparse matrix: 1 where a path uses a link that fails with the component.
    """
    component_use = path_link_incidence(paths).astype(np.int32) @ sp.csr_array(
        components.links.T.astype(np.int32)
    )
    component_use.data[:] = 1
    return component_use


def _log_availability_by_subset(paths: PathSet, components: Components) -> FloatArray:
    """Return the log-probability (D, 2^K) that all components of each subset of paths work.

    For each demand, a component belongs to the subset of exactly those paths that use it. The
    result is the sum of log(1 - q[c]) over the components c of the subset, with unavailability
    q[c].

    Args:
        paths: paths of D demands, K each.
        components: failing components with unavailability q.
    """
    path_links = path_links_of(paths)
    num_paths = paths.num_paths
    total_num_paths = len(path_links.slot)
    component_use = paths_by_component(paths, components)
    # Matrix (D, P) of the paths' bits: path k of demand d, at slot d K + k, has the bit 2^k. The
    # bits of the paths that use a component add up to their subset.
    demand_of_path, path_index = np.divmod(path_links.slot, num_paths)
    path_bits = sp.csr_array(
        ((1 << path_index).astype(np.int32), (demand_of_path, np.arange(total_num_paths))),
        shape=(paths.num_demands, total_num_paths),
    )
    # (D, n) subset of each demand's paths that use a component; no entry if no path does.
    subset_entries = (path_bits @ component_use).tocoo()
    # Sum log(1 - q) over the components, by demand and set.
    log_availability = np.bincount(
        subset_entries.row.astype(np.int64) * (1 << num_paths) + subset_entries.data,
        np.log1p(-components.unavailability)[subset_entries.col],
        minlength=paths.num_demands << num_paths,
    )
    return np.asarray(log_availability, dtype=np.float64).reshape(paths.num_demands, 1 << num_paths)


def _exact_survival(joint_survival: FloatArray, num_paths: int) -> FloatArray:
    """Return the probability (D, 2^K) that exactly the paths of each subset survive (Moebius
    transform).

    Args:
        joint_survival: (D, 2^K) probability that all paths of a subset survive, whether or not
            other paths do.
        num_paths: K.
    """
    exact_probability = joint_survival.copy()
    subsets = np.arange(1 << num_paths)
    # For each path in turn: subtract, in all subsets without the path, the probability that this
    # path survives, too.
    for path in range(num_paths):
        subsets_without_path = subsets[(subsets >> path) & 1 == 0]
        exact_probability[:, subsets_without_path] -= exact_probability[
            :, subsets_without_path | (1 << path)
        ]
    # Rounding can leave differences slightly below 0.
    return np.maximum(exact_probability, 0.0)
