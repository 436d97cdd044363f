"""The names that every room gives to NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]  # of a number type that is chosen when the program runs
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]  # numbers of nodes, links, demands, trie nodes
Int64Array = npt.NDArray[np.int64]  # positions in long arrays, row numbers
UnsignedArray = npt.NDArray[Any]  # uint16 where every value fits, else uint32
