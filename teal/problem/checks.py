"""Checks of the arrays that a problem is made of."""

from __future__ import annotations

import numpy as np

from teal.errors import InputError
from teal.runtime.arrays import AnyArray


def checked(field: str, values: AnyArray, width: int) -> AnyArray:
    """``values`` (n, width), or InputError for another shape, no matrix, or an entry that is no finite number >= 0."""
    if values.ndim != 2 or values.shape[1] != width:
        raise InputError("problem", field, f"{width} entries for each matrix", values.shape)
    if not len(values):
        raise InputError("problem", field, "at least one matrix", "none")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InputError("problem", f"{field}[{row}, {column}]", "a finite number >= 0", values[row, column])
    return values
