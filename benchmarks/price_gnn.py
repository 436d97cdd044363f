"""The universal model on networks that it never saw: share of the optimum, and how far its own bound is off.

    python benchmarks/price_gnn.py --model universal --out runs/price_gnn.csv [--data FOLDER] [--large] [--rounds 8 8]

For every held-out network of topohub (at least 12 nodes) one gravity matrix, scaled so that the optimum satisfies a
share between 0.6 and 0.95 drawn at random; the same matrix with a flash crowd (a tenth of the demands times 10); and
under failures of 1 to 5% of the links.  With --data also UsCarrier and Kdl from the files that data/README.md names.
The optimum is PDHG's, certified to 1e-4 or closer.  --large measures ASN (with --data) and topohub:backbone/world
instead, not scaled (load 4), against an optimum that is certified to 1e-3; world needs 16 GiB.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import teal
from teal.evaluation.calibration import calibration_factor
from teal.learning.network_pool import group_of, network_sizes, topohub_pool
from teal.network.disturbances import flash_crowd
from teal.nn.checkpoint import load_price_gnn
from teal.runtime.storage import model_folder
from teal.schemes.price_gnn import PriceGnnScheme, PriceGnnSchemeConfig

FILES = {"UsCarrier": "UsCarrier.json", "Kdl": "Kdl.json", "ASN": "ASN2k.json"}
ZOO = ("topozoo", "sndlib")
LARGE, MIDDLE = 1000, 100  # nodes; of caida and gabriel those up to the latter
SHARES = (0.6, 0.95)
Row = tuple[str, int, str, float, float, float, float]


def cases(
    topology: Any, paths: Any, traffic: Any, rng: np.random.Generator, objective: str = "total_flow"
) -> Iterator[tuple[str, Any]]:
    """(kind, problem) of one network."""
    weight = np.random.default_rng(0).choice([1.0, 2.0, 4.0], paths.num_demands)
    share = float(rng.uniform(*SHARES))
    factor = 1.0
    if topology.num_nodes < LARGE:
        factor = calibration_factor(topology, paths, traffic, np.arange(3), share)
    demand = traffic.read([1]) * factor
    crowd = flash_crowd(demand, rng)
    failed, links = topology.capacity.copy(), topology.num_links
    failed[rng.choice(links, max(1, round(rng.uniform(0.01, 0.05) * links)), replace=False)] = 0
    for kind, rates, capacity in (
        ("plain", demand, topology.capacity),
        ("flash crowd", crowd, topology.capacity),
        ("failures", demand, failed),
    ):
        program = teal.Objective(teal.ObjectiveName(objective))
        yield kind, teal.Problem.create(topology, paths, program, rates, capacity=capacity, weight=weight)


def measure(scheme: PriceGnnScheme, name: str, seed: int, objective: str) -> Iterator[Row]:
    """Rows of one network: share of the optimum, bound over it, certified gap, seconds."""
    topology = teal.load_topology(name)
    large = topology.num_nodes >= LARGE
    traffic = teal.load_traffic(f"gravity:seed={seed},count=3,load={4 if large else 1}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    scheme.solve(teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0])))  # compiles
    for kind, problem in cases(topology, paths, traffic, np.random.default_rng(seed), objective):
        best = teal.solve(problem, gap=1e-3 if large else 1e-4, max_iterations=5000)
        optimum = float((best.value + best.bound)[0]) / 2
        del best
        begin = time.perf_counter()
        allocation = scheme.solve(problem)
        seconds = time.perf_counter() - begin
        found = teal.assess(problem, allocation)
        value, bound = float(found.value[0]) / optimum, float(found.bound[0]) / optimum - 1
        if not problem.objective.higher_is_better:
            value, bound = 1 / value, -bound
        yield topology.name, topology.num_nodes, kind, value, bound, float(found.gap[0]), seconds


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("universal"))
    parser.add_argument("--data", type=Path, help="folder of UsCarrier.json, Kdl.json, ASN2k.json")
    parser.add_argument("--large", action="store_true", help="ASN and world")
    parser.add_argument("--rounds", type=int, nargs=2, default=(0, 0), help="of allocation and bound; 0 for the usual")
    parser.add_argument("--objective", default="total_flow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("price_gnn.csv"))
    options = parser.parse_args()
    model, card = load_price_gnn(model_folder(options.model))
    scheme = PriceGnnScheme(model, PriceGnnSchemeConfig(*options.rounds))
    held_out = topohub_pool().held_out
    assert set(card.held_out) >= set(held_out), "the model has seen some of these networks"
    groups = {"zoo, sndlib": [f"topohub:{n}" for n in held_out if group_of(n) in ZOO]}
    small = [n for n in held_out if network_sizes()[n] <= MIDDLE]
    groups |= {g: [f"topohub:{n}" for n in small if group_of(n) == g] for g in ("caida", "gabriel")}
    groups["gabriel"] = groups["gabriel"][::4]
    wanted = FILES if options.data else {}
    groups |= {name: [str(options.data / file)] for name, file in wanted.items() if name != "ASN"}
    if options.large:
        groups = {name: [str(options.data / file)] for name, file in wanted.items() if name == "ASN"}
        groups["world"] = ["topohub:backbone/world"]
    with tqdm(total=sum(map(len, groups.values())), unit="network") as bar:
        named: dict[str, list[Row]] = {}
        for group, names in groups.items():
            for name in names:
                named.setdefault(group, []).extend(measure(scheme, name, options.seed, options.objective))
                bar.update()
    heads = (
        ("cases", 5),
        ("of optimum: mean", 17),
        ("worst", 8),
        ("bound off, mean", 16),
        ("gap, mean", 10),
        ("time", 9),
    )
    print(f"{'networks':12s} {'matrix':12s} " + " ".join(f"{head:>{width}s}" for head, width in heads))
    for group, own in named.items():
        for kind in ("plain", "flash crowd", "failures"):
            chosen = [row for row in own if row[2] == kind]
            share, off = [row[3] for row in chosen], [row[4] for row in chosen]
            gap = 100 * statistics.mean(row[5] for row in chosen)
            milliseconds = 1e3 * statistics.median(row[6] for row in chosen)
            print(
                f"{group:12s} {kind:12s} {len(chosen):5d} {100 * statistics.mean(share):16.3f}% "
                f"{100 * min(share):7.2f}% {100 * statistics.mean(off):15.2f}% {gap:9.2f}% {milliseconds:6.1f} ms"
            )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("network", "nodes", "matrix", "of_optimum", "bound_off", "certified_gap", "seconds"))
        writer.writerows(row for own in named.values() for row in own)
    print(options.out)


if __name__ == "__main__":
    main()
