"""Networks: topologies, traffic matrices, candidate paths.  Validated when they are made, trusted afterwards."""

from typing import TYPE_CHECKING

from teal.network.candidate_lists import CandidateLists
from teal.network.classes import DemandClasses
from teal.network.path_set import PathSet
from teal.network.paths import PathMethod, PathWeight, all_pairs, compute_paths
from teal.network.topology import Topology
from teal.network.traffic import Gap, Split, TrafficMatrices
from teal.network.trie import Trie

AnyPaths = PathSet | CandidateLists
"""The columns that a program's demands may use: explicit paths, or segment lists."""

if TYPE_CHECKING:
    # Most code walks explicit paths.  Where PathOps.is_over_paths is false it does not run; mypy cannot know that.
    ProblemPaths = PathSet
else:
    ProblemPaths = AnyPaths

__all__ = [
    "AnyPaths",
    "CandidateLists",
    "DemandClasses",
    "Gap",
    "PathMethod",
    "PathSet",
    "PathWeight",
    "ProblemPaths",
    "Split",
    "Topology",
    "TrafficMatrices",
    "Trie",
    "all_pairs",
    "compute_paths",
]
