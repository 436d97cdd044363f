"""Networks: topologies, traffic matrices, candidate paths.  Validated when they are made, trusted afterwards."""

from teal.network.classes import DemandClasses
from teal.network.path_set import PathSet
from teal.network.paths import PathMethod, PathWeight, all_pairs, compute_paths
from teal.network.topology import Topology
from teal.network.traffic import Gap, Split, TrafficMatrices
from teal.network.trie import Trie

__all__ = [
    "DemandClasses",
    "Gap",
    "PathMethod",
    "PathSet",
    "PathWeight",
    "Split",
    "Topology",
    "TrafficMatrices",
    "Trie",
    "all_pairs",
    "compute_paths",
]
