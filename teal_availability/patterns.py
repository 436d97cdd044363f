"""Which of a demand's paths survive, and in which share of the time: exactly, for failures of any
number of components.

All paths of a set T survive if no component of any of them is down,

    P(all of T survive) = product of (1 - q[c]) over the components c of the paths of T,

and the probability that exactly the paths of a set survive follows by inclusion and exclusion over
the sets that contain it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from teal import InputError, PathSet, Problem
from teal.network.path_links import path_links_of
from teal.runtime.arrays import BoolArray, FloatArray
from teal_availability.components import Components
from teal_availability.matrix import crossings

MAX_PATHS = 8  # K, of which all 256 sets are looked at


@dataclasses.dataclass(frozen=True, eq=False)
class Patterns:
    """Sets of surviving paths of D demands with K paths; 2^K sets as bits of a number.

    Attributes:
        probability: (D, 2^K) share of the time in which exactly the paths of a set survive; paths
            that a demand does not have are in none.
    """

    probability: FloatArray

    @property
    def num_paths(self) -> int:
        """K."""
        return int(self.probability.shape[1]).bit_length() - 1

    @property
    def survives(self) -> BoolArray:
        """(2^K, K) whether a path is in a set."""
        return members(self.num_paths)


def members(num_paths: int) -> BoolArray:
    """(2^K, K) whether each path is in each set of K paths."""
    sets = np.arange(1 << num_paths)[:, None]
    found: BoolArray = (sets >> np.arange(num_paths)[None, :]) & 1 > 0
    return found


def pattern_probabilities(problem: Problem, components: Components) -> Patterns:
    """The patterns of all demands.

    Args:
        problem: candidate paths, at most ``MAX_PATHS`` a demand, of which those over a link of
            capacity 0 never survive.
        components: components of its network.

    Raises:
        InputError: more paths a demand.
    """
    paths = problem.paths
    if paths.num_paths > MAX_PATHS:
        raise InputError("availability", "paths", f"at most {MAX_PATHS} a demand", paths.num_paths)
    sets = members(paths.num_paths)
    used_by = _used_by(paths, components)
    # Components that the same paths of a demand use count together.
    fails_any = ((np.arange(len(sets))[:, None] & np.arange(len(sets))[None, :]) > 0).astype(float)
    all_survive = np.exp(used_by @ fails_any)
    missing = ~problem.path_mask[0].cpu().numpy()[:, None, :] & sets[None, :, :]
    all_survive[missing.any(-1)] = 0.0
    return Patterns(_exactly(all_survive, paths.num_paths))


def paths_by_component(paths: PathSet, components: Components) -> sp.csr_array:
    """(P, n) 1 where a path uses a link of a component, in the order of ``PathLinks.slot``."""
    uses = crossings(paths).astype(np.int32) @ sp.csr_array(components.links.T.astype(np.int32))
    uses.data[:] = 1
    return uses


def _used_by(paths: PathSet, components: Components) -> FloatArray:
    """(D, 2^K) sum of log(1 - q[c]) over the components that exactly the paths of a set use."""
    links = path_links_of(paths)
    width = paths.num_paths
    count = len(links.slot)
    uses = paths_by_component(paths, components)
    demand, bit = np.divmod(links.slot, width)
    of_demand = sp.csr_array(
        ((1 << bit).astype(np.int32), (demand, np.arange(count))),
        shape=(paths.num_demands, count),
    )
    sets = (of_demand @ uses).tocoo()  # demands x components: which paths use a component
    found = np.bincount(
        sets.row.astype(np.int64) * (1 << width) + sets.data,
        np.log1p(-components.unavailability)[sets.col],
        minlength=paths.num_demands << width,
    )
    return np.asarray(found, dtype=np.float64).reshape(paths.num_demands, 1 << width)


def _exactly(all_survive: FloatArray, num_paths: int) -> FloatArray:
    """(d, 2^K) probabilities that exactly the paths of a set survive, from those that all of them
    do, by a Moebius transform.
    """
    exactly = all_survive.copy()
    sets = np.arange(1 << num_paths)
    for path in range(num_paths):
        without = sets[(sets >> path) & 1 == 0]
        exactly[:, without] -= exactly[:, without | (1 << path)]
    return np.maximum(exactly, 0.0)  # rounding
