"""Type aliases of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# The number type is chosen at run time.
AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
# Indices of nodes, links, demands, trie nodes.
IntArray = npt.NDArray[np.int32]
# Positions in long arrays, row indices.
Int64Array = npt.NDArray[np.int64]
# uint16 where every value fits, else uint32.
UnsignedArray = npt.NDArray[Any]
