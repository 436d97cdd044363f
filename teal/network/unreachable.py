"""Demands without a path, which no allocation carries: how many, of how much traffic, and between
which nodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from teal.errors import listed
from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray, IntArray

_MAX_NAMES = 10  # demands in a sentence, the largest first
_MAX_LISTED = 1000  # in JSON


class WithoutPath(NamedTuple):
    """The demands above 0 of a matrix that have no path.

    Attributes:
        rate: Gbit/s.
        pairs: ``source->target`` of each, the largest first.
    """

    rate: float
    pairs: tuple[str, ...]

    @classmethod
    def of(
        cls, topology: Topology, pairs: IntArray, demand: FloatArray, has_path: BoolArray
    ) -> WithoutPath:
        """Find them.

        Args:
            topology: gives the names of the nodes.
            pairs: (D, 2) source and target of each demand.
            demand: (D,) Gbit/s.
            has_path: (D,) whether a path that works leads from source to target.
        """
        lost = np.flatnonzero((demand > 0) & ~has_path)
        lost = lost[np.argsort(-demand[lost], kind="stable")]
        names = topology.node_names
        return cls(
            float(demand[lost].sum()),
            tuple(f"{names[s]}->{names[t]}" for s, t in pairs[lost].tolist()),
        )

    def sentence(self) -> str:
        """``1 demand without a path, 4 Gbit/s: a->c``."""
        count = len(self.pairs)
        demands = f"{count:,} demand{'' if count == 1 else 's'} without a path"
        return f"{demands}, {self.rate:.6g} Gbit/s: {listed(self.pairs, _MAX_NAMES)}"

    def to_json(self) -> dict[str, Any]:
        """Number of demands, Gbit/s, and the largest 1,000 of them."""
        return {"demands": len(self.pairs), "rate": self.rate, "pairs": self.pairs[:_MAX_LISTED]}
