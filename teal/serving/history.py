"""The last allocations of each network, for whoever looks on."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

MOST = 1_000  # allocations a network


class History:
    """What was answered, by network; the loads of links only of the last one."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[dict[str, Any]]] = {}
        self._utilisation: dict[str, list[float]] = {}

    def add(self, network: str, figures: dict[str, Any], utilisation: list[float]) -> None:
        """Keep the figures of an allocation, and (E,) utilisation; the oldest one goes."""
        recent = self._recent.setdefault(network, deque(maxlen=MOST))
        last = recent[-1]["time"] if recent else 0.0
        recent.append({"time": max(time.time(), last + 1e-4), **figures})  # distinct, so that none is missed
        self._utilisation[network] = utilisation

    def since(self, network: str, after: float) -> dict[str, Any]:
        """Allocations answered after a moment, seconds since 1970, and the utilisation of links in the last of all."""
        found = [one for one in self._recent.get(network, ()) if one["time"] > after]
        return {"allocations": found, "utilisation": self._utilisation.get(network, [])}

    def forget(self, network: str) -> None:
        """It was deleted or replaced."""
        self._recent.pop(network, None)
        self._utilisation.pop(network, None)
