"""Conversion of path values between padded slots, (B, D, K), and packed paths, (B, P)."""

from __future__ import annotations

from teal.network.packed import PathScan
from teal.runtime.arrays import AnyArray
from teal.runtime.parallel import partitioned_kernel


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def pack_paths(begin: int, end: int, padded: AnyArray, scan: PathScan, packed: AnyArray) -> None:
    """Copy path values from padded slots to packed paths, for the sources ``begin`` to ``end - 1``.

    Args:
        begin, end: range of sources.
        padded: (B, D, K) values; slots without a path are not read.
        scan: P paths of D demands; the paths of a demand are consecutive.
        packed: (B, P) values (written).
    """
    for s in range(begin, end):
        for b in range(len(packed)):
            path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                for k in range(scan.path_count[d]):
                    packed[b, path + k] = padded[b, d, k]
                path += scan.path_count[d]


@partitioned_kernel("scan", lambda scan: len(scan.node_ptr) - 1)
def pad_paths(begin: int, end: int, packed: AnyArray, scan: PathScan, padded: AnyArray) -> None:
    """Copy path values from packed paths to padded slots, for the sources ``begin`` to ``end - 1``.

    Args:
        begin, end: range of sources.
        packed: (B, P) values.
        scan: P paths of D demands; the paths of a demand are consecutive.
        padded: (B, D, K) values (written); slots without a path stay unchanged.
    """
    for s in range(begin, end):
        for b in range(len(packed)):
            path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                for k in range(scan.path_count[d]):
                    padded[b, d, k] = packed[b, path + k]
                path += scan.path_count[d]
