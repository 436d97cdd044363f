"""Compare the time of one PDHG iteration with a memory copy and with a sparse matrix product.

    python benchmarks/iteration.py --data FOLDER [--networks b4,geant,UsCarrier,Kdl,ASN] \
        --out runs/iteration.csv

- iteration, and iteration per matrix in a batch of 16, each also as a share of one product of
  torch's CSR matrix with the explicit incidence matrix (one feature);
- copy: a memory copy of the bytes that one iteration must move (tries, splits, anchor, demands);
- paths: all pairs, K = 4, without the cache; pack: conversion of the trie for the engine.

Times are medians after a warm-up; run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from engine import NETWORKS
from public_data import published
from timing import median_s

import teal
from teal.solvers.pdhg.fused.engine import FusedEngine

_BATCH = 16


def measure(name: str, data: Path) -> Iterator[tuple[str, float, str]]:
    """Yield the figures of one network, each as (measure, value, unit).

    Args:
        name: key of :data:`engine.NETWORKS`.
        data: folder of the published files.
    """
    source, load = NETWORKS[name]
    is_file = source.endswith(".json")
    topology = teal.load_topology(str(published(data, source)) if is_file else source)
    traffic = teal.load_traffic(f"gravity:seed=0,count={_BATCH},load={load}", topology)
    # The kernels are compiled before the timing.
    teal.compute_paths(teal.load_topology("b4"), cache=False)
    begin = time.perf_counter()
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    computed = time.perf_counter()
    packed = paths.packed
    packed_at = time.perf_counter()
    yield "paths", computed - begin, "s"
    yield "pack", packed_at - computed, "s"
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read(slice(None)))
    yield "demands", paths.num_demands, ""
    yield "trie nodes", paths.trie.num_nodes, ""
    # An iteration, and a copy of the bytes that it must move: trie indices, 12 bytes a path for
    # splits and anchor, 9 bytes a demand.
    single = FusedEngine(problem.row(0), None, torch.float32)
    iteration = median_s(lambda: single.advance(1), 20)
    yield "iteration", iteration, "s"
    trie_bytes = 2 * packed.scan.parent.nbytes + packed.scan.end_node.nbytes
    moved_bytes = trie_bytes + 12 * packed.num_paths + 9 * paths.num_demands
    block = torch.zeros(moved_bytes // 8)
    target = torch.empty_like(block)
    copy = median_s(lambda: target.copy_(block), 20)
    yield "bytes of an iteration", moved_bytes, ""
    yield "copy", copy, "s"
    yield "copy / iteration", copy / iteration, ""
    # The product of the explicit incidence matrix with one feature of the links.
    rows, columns = paths.incidences()
    index = torch.stack([torch.from_numpy(rows), torch.from_numpy(columns)])
    shape = paths.leaf.size, paths.num_links
    csr = torch.sparse_coo_tensor(index, torch.ones(len(rows)), shape).to_sparse_csr()
    del index, rows, columns
    links = torch.rand(paths.num_links, 1)
    product = median_s(lambda: csr @ links, 9)
    yield "CSR product", product, "s"
    yield "iteration / CSR product", iteration / product, ""
    batched = FusedEngine(problem, None, torch.float32)
    per_matrix = median_s(lambda: batched.advance(1), 9) / problem.batch
    yield "iteration per matrix of 16", per_matrix, "s"
    yield "iteration per matrix of 16 / CSR product", per_matrix / product, ""
    yield "peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), "GiB"


def main() -> None:
    """Measure each network in a new process, so that its peak memory is known; write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path(), help="folder of the files that data/README.md names"
    )
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("runs/iteration.csv"))
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # A process for one network prints its rows as JSON.
    if options.part:
        for row in measure(options.part, options.data):
            print(json.dumps(row), flush=True)
        return
    table: list[tuple[object, ...]] = [("network", "measure", "value", "unit")]
    for name in options.networks.split(","):
        command = [sys.executable, __file__, "--data", str(options.data), "--part", name]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
        print(
            name, *(f"{measure}: {value:.4g} {unit}" for measure, value, unit in rows), sep="\n  "
        )
        table += [(name, *row) for row in rows]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(table)


if __name__ == "__main__":
    main()
