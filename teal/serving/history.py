"""The last allocations of each network, for whoever looks on."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Collection
from typing import Any

MOST = 1_000  # allocations a network


@dataclasses.dataclass
class _Recent:
    generation: str
    allocations: deque[dict[str, Any]] = dataclasses.field(default_factory=lambda: deque(maxlen=MOST))
    utilisation: list[float] = dataclasses.field(default_factory=list)


class History:
    """What was answered, by network; the loads of links only of the last one."""

    def __init__(self) -> None:
        self._recent: dict[str, _Recent] = {}

    def add(self, network: str, generation: str, figures: dict[str, Any], utilisation: list[float]) -> bool:
        """Keep the figures of an allocation, and (E,) utilisation; the oldest one goes.

        Args:
            network: its name.
            generation: which registration of the name; what is known of another one is forgotten.

        Returns:
            whether the network was not known.
        """
        recent = self._recent.get(network)
        new = recent is None
        if recent is None or recent.generation != generation:
            recent = self._recent[network] = _Recent(generation)
        last = recent.allocations[-1]["time"] if recent.allocations else 0.0
        # Distinct times, so that nobody who asks for later ones misses any.
        recent.allocations.append({"time": max(time.time(), last + 1e-4), **figures})
        recent.utilisation = utilisation
        return new

    def since(self, network: str, generation: str, after: float) -> dict[str, Any]:
        """Allocations answered after a moment, seconds since 1970, and the utilisation of links in the last of all."""
        recent = self._recent.get(network)
        if recent is None or recent.generation != generation:
            return {"allocations": [], "utilisation": []}
        found = [one for one in recent.allocations if one["time"] > after]
        return {"allocations": found, "utilisation": recent.utilisation}

    def forget_all_but(self, networks: Collection[str]) -> list[str]:
        """Forget the others; their names."""
        gone = [name for name in self._recent if name not in networks]
        for name in gone:
            del self._recent[name]
        return gone
