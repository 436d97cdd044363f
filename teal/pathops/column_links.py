"""The links of every column as plain arrays, which the kernels read."""

from __future__ import annotations

import weakref

import numpy as np
import scipy.sparse as sp

from teal.network.path_links import PathLinks, path_links_of
from teal.network.path_set import PathSet
from teal.pathops.base import PathOps
from teal.runtime.arrays import FloatArray

ColumnLinks = tuple[PathLinks, FloatArray]

_KEPT: weakref.WeakKeyDictionary[PathOps, ColumnLinks] = weakref.WeakKeyDictionary()


def columns_of_ops(ops: PathOps, num_rows: int) -> ColumnLinks:
    """The rows of all columns, and what a Gbit/s of a column puts on each; these are without
    entries where it is a Gbit/s.

    Args:
        ops: over paths, or over the columns and rows that side conditions make of them.
        num_rows: number of the rows.
    """
    if ops.is_over_paths and isinstance(ops.column_paths, PathSet):
        return path_links_of(ops.column_paths), np.zeros(0)
    found = _KEPT.get(ops)
    if found is None:
        found = _KEPT[ops] = _column_links(ops, num_rows)
    return found


def _column_links(ops: PathOps, num_rows: int) -> ColumnLinks:
    mask = ops.mask.cpu().numpy()
    slot = np.flatnonzero(mask.reshape(-1)).astype(np.int64)
    rows = sp.csc_array(ops.incidence(num_rows))[:, slot]
    rows.eliminate_zeros()
    rows.sort_indices()
    path_ptr = np.concatenate([[0], np.cumsum(mask.sum(1))]).astype(np.int64)
    links = PathLinks(
        path_ptr, slot, rows.indptr.astype(np.int64), np.ascontiguousarray(rows.indices, np.int32)
    )
    return links, np.ascontiguousarray(rows.data, np.float64)
