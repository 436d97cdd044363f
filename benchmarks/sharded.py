"""Time and memory of `teal solve --shards` on a network whose paths do not fit, and of Ray workers
beside one process.

    python benchmarks/sharded.py --out OUT [--nodes 7200] [--shards 32] [--load 6] [--gap 0.01]
    python benchmarks/sharded.py --workers 2 --topology ASN2k.json [--load 6] [--gap 0.01] [--repeats 7]

The first command generates a network: it grows by preferential attachment, two links a node
(Barabasi & Albert 1999), with capacities of 100, 400 or 1,000 Gbit/s; 7,200 nodes have 51.8 million
demands.  The command `teal solve` runs twice in processes of its own, without and with paths on
disk, and the largest resident memory of both is printed.

The second command solves one matrix in turn by `teal.solve` and by actors that hold a shard each.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
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
    links = [
        {"source": a, "target": b, "capacity": c} for (a, b), c in zip(edges, capacity, strict=True)
    ]
    graph = {
        "directed": False,
        "multigraph": False,
        "nodes": [{"id": i} for i in range(nodes)],
        "links": links,
    }
    file.write_text(json.dumps(graph))


def compare_workers(topology_file: str, load: str, gap: float, workers: int, repeats: int) -> None:
    """Print the times of one process and of Ray actors, in turn, and the bytes of a round."""
    import teal
    from teal.allocation.shard_workers import actors

    topology = teal.load_topology(topology_file)
    traffic = teal.load_traffic(f"gravity:seed=0,count=1,load={load}", topology)
    demand = traffic.read([0])[0]
    problem = teal.Problem.create(
        topology, teal.compute_paths(topology, traffic.pairs), teal.Objective(), demand
    )
    times: dict[str, list[float]] = {"one process": [], "workers": []}
    with (
        actors(workers, print) as make,
        teal.ShardedProblem(
            topology, traffic.pairs, demand, num_shards=workers, backend=make
        ) as shards,
    ):
        for repeat in range(repeats + 1):
            alone = teal.solve(problem, gap=gap)
            together = shards.solve(gap=gap)
            if repeat:  # the first solves compile kernels
                times["one process"].append(alone.solve_s)
                times["workers"].append(together.solve_s)
    print(f"one process: value {float(alone.value):.10g}, bound {float(alone.bound):.10g}")
    print(f"{workers} workers:   value {together.value:.10g}, bound {together.bound:.10g}")
    print(f"{together.rounds} rounds, {together.sent_bytes / together.rounds / 1e6:.2f} MB a round")
    for name, seconds in times.items():
        print(f"{name}: median {statistics.median(seconds):.3f} s, least {min(seconds):.3f} s")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder of the generated network")
    parser.add_argument("--nodes", type=int, default=7200)
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--load", default="6", help="of the generated traffic")
    parser.add_argument("--gap", default="0.01", help="certified gap at which to stop")
    parser.add_argument("--topology", help="of the comparison with workers")
    parser.add_argument(
        "--workers", type=int, default=0, help="Ray actors; 0 for the first command"
    )
    parser.add_argument("--repeats", type=int, default=7, help="timed solves of the comparison")
    arguments = parser.parse_args()
    if arguments.workers:
        compare_workers(
            arguments.topology,
            arguments.load,
            float(arguments.gap),
            arguments.workers,
            arguments.repeats,
        )
        return
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
        print(
            f"{step}: {time.perf_counter() - begin:.0f} s, largest resident memory so far {peak:.2f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
