"""Links of every path in compressed sparse row (CSR) form, for compiled kernels.

Entry point: :func:`path_links_of`, which caches the arrays of a path set.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np

from teal.network.path_set import PathSet
from teal.runtime.arrays import Int64Array, IntArray


class PathLinks(NamedTuple):
    """Paths of a path set in CSR form, demand by demand, without empty slots.

    Attributes:
        path_ptr: (D + 1,) the paths of demand d are ``path_ptr[d]:path_ptr[d + 1]``.
        slot: (P,) slot d K + k of each path.
        link_ptr: (P + 1,) the links of path p are ``link[link_ptr[p]:link_ptr[p + 1]]``.
        link: (incidences,) link indices of all paths, each from its last to its first link.
    """

    path_ptr: Int64Array
    slot: Int64Array
    link_ptr: Int64Array
    link: IntArray


_cache: weakref.WeakKeyDictionary[PathSet, PathLinks] = weakref.WeakKeyDictionary()


def path_links_of(paths: PathSet) -> PathLinks:
    """Return the paths of a path set in CSR form, which is computed once per path set."""
    path_links = _cache.get(paths)
    if path_links is None:
        path_links = _cache[paths] = _path_links(paths)
    return path_links


def _path_links(paths: PathSet) -> PathLinks:
    """Build the CSR arrays of a path set from the links of its paths.

    Args:
        paths: the path set.
    """
    # Links of all paths, sorted by path slot.
    slot_of_link, links = paths.incidences()
    order = np.argsort(slot_of_link, kind="stable")
    slot_of_link = slot_of_link[order]
    links = links[order]
    # Pointers to the paths of each demand, and to the links of each path.
    num_paths = paths.mask.sum(1)
    path_ptr = np.concatenate([[0], np.cumsum(num_paths)]).astype(np.int64)
    slot = np.flatnonzero(paths.mask.reshape(-1)).astype(np.int64)
    num_path_links = np.bincount(slot_of_link, minlength=paths.mask.size)[slot]
    link_ptr = np.concatenate([[0], np.cumsum(num_path_links)]).astype(np.int64)
    return PathLinks(path_ptr, slot, link_ptr, np.ascontiguousarray(links, np.int32))
