"""Demands without a path, which no allocation can serve: number, traffic, and node pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from teal.errors import listed
from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray, IntArray

# Maximum number of demands in a sentence, the largest first.
_MAX_LISTED_NAMES = 10
# Maximum number of demands in JSON.
_MAX_JSON_PAIRS = 1000


class WithoutPath(NamedTuple):
    """Demands of a matrix that are above 0 and have no path.

    Attributes:
        rate: total rate, Gbit/s.
        pairs: ``source->target`` of each, by decreasing rate.
    """

    rate: float
    pairs: tuple[str, ...]

    @classmethod
    def of(
        cls, topology: Topology, pairs: IntArray, demand: FloatArray, has_path: BoolArray
    ) -> WithoutPath:
        """Collect the demands without a path.

        Args:
            topology: network with the node names.
            pairs: (D, 2) source and target of each demand.
            demand: (D,) Gbit/s.
            has_path: (D,) whether a live path leads from source to target.
        """
        demands_without_path = np.flatnonzero((demand > 0) & ~has_path)
        demands_without_path = demands_without_path[
            np.argsort(-demand[demands_without_path], kind="stable")
        ]
        names = topology.node_names
        return cls(
            float(demand[demands_without_path].sum()),
            tuple(f"{names[s]}->{names[t]}" for s, t in pairs[demands_without_path].tolist()),
        )

    def sentence(self) -> str:
        """Return number, rate and pairs in a text such as ``1 demand without a path, 4 Gbit/s:
        a->c``.
        """
        num_demands = len(self.pairs)
        subject = f"{num_demands:,} demand{'' if num_demands == 1 else 's'} without a path"
        return f"{subject}, {self.rate:.6g} Gbit/s: {listed(self.pairs, _MAX_LISTED_NAMES)}"

    def to_json(self) -> dict[str, Any]:
        """Return the number of demands, their total rate in Gbit/s, and the 1,000 largest pairs."""
        return {
            "demands": len(self.pairs),
            "rate": self.rate,
            "pairs": self.pairs[:_MAX_JSON_PAIRS],
        }
