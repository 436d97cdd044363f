"""The links of every path as plain arrays, which the kernels read."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np

from teal.network.path_set import PathSet
from teal.runtime.arrays import Int64Array, IntArray


class PathLinks(NamedTuple):
    """The paths of a path set, by demand, without the slots that have no path.

    Attributes:
        path_ptr: (D + 1,) the paths of demand d are ``path_ptr[d]:path_ptr[d + 1]``.
        slot: (P,) number d K + k of each path.
        link_ptr: (P + 1,) the links of path p are ``link[link_ptr[p]:link_ptr[p + 1]]``.
        link: links of all paths.
    """

    path_ptr: Int64Array
    slot: Int64Array
    link_ptr: Int64Array
    link: IntArray


_KEPT: weakref.WeakKeyDictionary[PathSet, PathLinks] = weakref.WeakKeyDictionary()


def path_links_of(paths: PathSet) -> PathLinks:
    """The links of a path set's paths, which are found once."""
    found = _KEPT.get(paths)
    if found is None:
        found = _KEPT[paths] = _path_links(paths)
    return found


def _path_links(paths: PathSet) -> PathLinks:
    slots, links = paths.incidences()
    order = np.argsort(slots, kind="stable")
    slots, links = slots[order], links[order]
    counts = paths.mask.sum(1)
    path_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    slot = np.flatnonzero(paths.mask.reshape(-1)).astype(np.int64)
    links_of = np.bincount(slots, minlength=paths.mask.size)[slot]
    link_ptr = np.concatenate([[0], np.cumsum(links_of)]).astype(np.int64)
    return PathLinks(path_ptr, slot, link_ptr, np.ascontiguousarray(links, np.int32))
