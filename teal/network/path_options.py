"""Options of the candidate path search, without the search itself."""

from __future__ import annotations

from enum import StrEnum

# Edge-disjoint paths of a demand with which column generation starts.
FIRST_PATHS = 4
# Default maximum number of paths of a demand after column generation: 16 paths gain nothing.
USUAL_MOST_PATHS = 8


class PathMethod(StrEnum):
    """Search method for the K candidate paths of a demand."""

    DISJOINT = "edge-disjoint"
    YEN = "yen"
    SURVIVABLE = "survivable"
    MAXIMALLY_DISJOINT = "maximally-disjoint"


class PathWeight(StrEnum):
    """Measure of the length of candidate paths: number of links, latency, or inverse capacity."""

    HOPS = "hops"
    LATENCY = "latency"
    INVERSE_CAPACITY = "inverse-capacity"
