"""Conversion of path values between padded slots, (B, D, K), and packed paths, (B, P)."""

from __future__ import annotations

from teal.network.packed import PathScan
from teal.runtime.arrays import AnyArray
from teal.runtime.parallel import partitioned_kernel


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def pack_paths(begin: int, end: int, padded: AnyArray, scan: PathScan, packed: AnyArray) -> None:
    """Fill ``packed`` (B, P) from ``padded`` (B, D, K)."""
    for s in range(begin, end):
        for b in range(len(packed)):
            path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                for k in range(scan.path_count[d]):
                    packed[b, path + k] = padded[b, d, k]
                path += scan.path_count[d]


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def pad_paths(begin: int, end: int, packed: AnyArray, scan: PathScan, padded: AnyArray) -> None:
    """Fill ``padded`` (B, D, K) from ``packed`` (B, P); slots without a path stay unchanged."""
    for s in range(begin, end):
        for b in range(len(packed)):
            path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                for k in range(scan.path_count[d]):
                    padded[b, d, k] = packed[b, path + k]
                path += scan.path_count[d]
