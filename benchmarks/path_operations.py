"""Time of the path operations, compared with torch's CSR product with the explicit incidence
matrix.

    python benchmarks/path_operations.py b4 topohub:sndlib/germany50 path/to/UsCarrier.json

Medians of 20 calls after warm-up, float32, in one process.  Run it on an otherwise idle machine.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable

import torch

from teal.formats import load_topology
from teal.network import compute_paths
from teal.pathops import make_path_ops

_REPEATS = 20  # timed calls, of which the median is printed


def _milliseconds(call: Callable[[], object]) -> float:
    """Median time of a call after warm-up, ms."""
    for _ in range(3):
        call()
    times = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def main(names: list[str]) -> None:
    """Print one line for each topology, operation, batch size B and number of features F."""
    print(
        f"{'topology':>12} {'operation':>10} {'B':>3} {'F':>3} {'numba':>10} {'torch':>10} {'CSR':>10}  (ms)"
    )
    for name in names:
        topology = load_topology(name)
        paths = compute_paths(topology)
        numba, plain = (make_path_ops(paths, backend=backend) for backend in ("numba", "torch"))
        rows, columns = paths.incidences()
        index = torch.stack([torch.from_numpy(rows), torch.from_numpy(columns)])
        matrix = torch.sparse_coo_tensor(
            index, torch.ones(len(rows)), (paths.leaf.size, paths.num_links)
        )
        csr = matrix.to_sparse_csr()
        transposed = matrix.t().to_sparse_csr()
        for batch, features in ((1, 1), (1, 8), (16, 1)):
            links = torch.rand(batch, paths.num_links, features)
            flows = torch.rand(batch, *paths.leaf.shape, features)
            flat_links = links.permute(1, 0, 2).reshape(paths.num_links, -1)
            flat_flows = flows.permute(1, 2, 0, 3).reshape(paths.leaf.size, -1)
            for operation, argument, by_csr, flat in (
                ("path_sum", links, csr, flat_links),
                ("link_sum", flows, transposed, flat_flows),
            ):
                times = []
                for ops in (numba, plain):
                    method = getattr(ops, operation)
                    times.append(_milliseconds(functools.partial(method, argument)))
                times.append(_milliseconds(lambda: by_csr @ flat))  # noqa: B023
                figures = " ".join(f"{t:10.3f}" for t in times)
                print(f"{topology.name:>12} {operation:>10} {batch:>3} {features:>3} {figures}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["b4", "topohub:sndlib/germany50"])
