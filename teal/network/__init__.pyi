"""What the room offers, loaded on first use: settings and ``--help`` need no compiler."""

from .any_paths import AnyPaths, ProblemPaths
from .candidate_lists import CandidateLists
from .classes import DemandClasses
from .path_options import PathMethod, PathWeight
from .path_set import PathSet
from .paths import all_pairs, compute_paths
from .topology import Topology
from .traffic import Gap, Split, TrafficMatrices
from .trie import Trie

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
