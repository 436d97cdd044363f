"""How candidate paths are chosen: the names and usual numbers of it, which settings need without
any search.
"""

from __future__ import annotations

from enum import StrEnum

FIRST_PATHS = 4  # edge-disjoint paths of a demand, from which a choice for some matrices begins
USUAL_MOST_PATHS = (
    8  # paths of a demand after a choice, at most, unless somebody says otherwise: 16 gain nothing
)


class PathMethod(StrEnum):
    """How the K paths of a demand are chosen."""

    DISJOINT = "edge-disjoint"
    YEN = "yen"
    SURVIVABLE = "survivable"
    MAXIMALLY_DISJOINT = "maximally-disjoint"


class PathWeight(StrEnum):
    """Measures of the length of a path."""

    HOPS = "hops"
    LATENCY = "latency"
    INVERSE_CAPACITY = "inverse-capacity"
