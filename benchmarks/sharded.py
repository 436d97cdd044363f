"""Time, memory and disk of `teal solve --shards` on a generated network whose paths do not fit into memory.

    python benchmarks/sharded.py --out OUT [--nodes 7200] [--shards 32] [--load 6] [--gap 0.01]

The network grows by preferential attachment, two links a node (Barabasi & Albert 1999); capacities are 100, 400 or
1,000 Gbit/s.  With 7,200 nodes there are 51.8 million demands.  Each step runs in a process of its own: the command prints its figures, and its largest resident memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import networkx as nx
import numpy as np

CAPACITIES = (100.0, 400.0, 1000.0)  # Gbit/s, drawn with equal probability
ATTACHED = 2  # links of a new node


def write_network(file: Path, nodes: int, seed: int = 0) -> None:
    """Write the network as node-link JSON."""
    edges = nx.barabasi_albert_graph(nodes, ATTACHED, seed=seed).edges
    capacity = np.random.default_rng(seed).choice(CAPACITIES, len(edges)).tolist()
    links = [{"source": a, "target": b, "capacity": c} for (a, b), c in zip(edges, capacity, strict=True)]
    graph = {"directed": False, "multigraph": False, "nodes": [{"id": i} for i in range(nodes)], "links": links}
    file.write_text(json.dumps(graph))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the network")
    parser.add_argument("--nodes", type=int, default=7200)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--load", default="6", help="of the generated traffic")
    parser.add_argument("--gap", default="0.01", help="certified gap at which to stop")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    network = arguments.out / f"nodes{arguments.nodes}.json"
    write_network(network, arguments.nodes)
    traffic = f"gravity:seed=0,count=1,load={arguments.load}"
    common = ["--topology", str(network), "--traffic", traffic]
    command = [
        sys.executable,
        "-m",
        "teal",
        "solve",
        *common,
        "--shards",
        str(arguments.shards),
        "--gap",
        arguments.gap,
    ]
    for step in ("first run, which finds the paths", "second run, paths on disk"):
        begin = time.perf_counter()
        subprocess.run(command, check=True)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (1 << 20)
        print(f"{step}: {time.perf_counter() - begin:.0f} s, largest resident memory so far {peak:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
