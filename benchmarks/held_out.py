"""Models for any network on networks that they have not seen: share of the optimum, and relative
error of the bound.

    python benchmarks/held_out.py --scheme teal|price-gnn [--model FOLDER] [--seeds 1] [--first-seed 0] [--data FOLDER] [--large]
        [--networks NAME ...] [--objective NAME] [--out FILE.csv]

For every held-out network of topohub (at least 12 nodes) and seed one gravity matrix, scaled so
that the optimum satisfies a random share of the demand between 0.6 and 0.95; the same matrix with a
flash crowd (a tenth of the demands times 10), with failures of 1 to 5% of the links, and with a
burst (one demand of the largest tenth times 10). *cut* is the share of the optimum that the model's
splits carry alone, cut to fit and not refilled. With --data also UsCarrier and Kdl, with one seed,
from the files that data/README.md names. The optimum is that of PDHG, certified to 1e-4 or closer.
--large measures ASN (with --data) and topohub:backbone/world instead, not scaled (load 4), against
an optimum that is certified to 1e-3; world needs 16 GiB.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from public_data import published
from tqdm import tqdm

import teal
from teal.app.instance import calibration_factor
from teal.learning.network_pool import group_of, network_sizes, topohub_pool
from teal.network.disturbances import flash_crowd
from teal.runtime.storage import model_folder

FILES = {"UsCarrier": "UsCarrier.json", "Kdl": "Kdl.json", "ASN": "ASN2k.json"}
BROUGHT = {"teal": "flow", "price-gnn": "universal"}  # model of a scheme that Teal brings
ZOO = ("topozoo", "sndlib")
LARGE = 1000  # nodes; from this size on, traffic is not scaled and the optimum is certified to 1e-3
MIDDLE = 100  # nodes; larger networks of caida and gabriel are excluded
SHARES = (0.6, 0.95)  # range of the share of demand that the optimum satisfies
KINDS = ("plain", "flash crowd", "failures", "burst")
Row = tuple[str, int, str, float, float, float, float, float]


def cases(
    topology: Any, paths: Any, traffic: Any, rng: np.random.Generator, objective: str = "total_flow"
) -> Iterator[tuple[str, Any]]:
    """Yield (kind of matrix, problem) of one network; see the module."""
    weight = np.random.default_rng(0).choice([1.0, 2.0, 4.0], paths.num_demands)
    share = float(rng.uniform(*SHARES))
    factor = 1.0
    if topology.num_nodes < LARGE:
        factor = calibration_factor(topology, paths, traffic, np.arange(3), share)
    demand = traffic.read([1]) * factor
    crowd = flash_crowd(demand, rng)
    failed = topology.capacity.copy()
    links = topology.num_links
    failed[rng.choice(links, max(1, round(rng.uniform(0.01, 0.05) * links)), replace=False)] = 0
    burst = demand.copy()
    burst[0, rng.choice(np.argsort(demand[0])[-max(1, paths.num_demands // 10) :])] *= 10
    rates_of = {"flash crowd": crowd, "burst": burst}
    for kind in KINDS:
        rates = rates_of.get(kind, demand)
        capacity = failed if kind == "failures" else topology.capacity
        program = teal.Objective(teal.ObjectiveName(objective))
        yield (
            kind,
            teal.Problem.create(topology, paths, program, rates, capacity=capacity, weight=weight),
        )


def measure(scheme: Any, name: str, seed: int, objective: str) -> Iterator[Row]:
    """Yield a row per matrix: name, nodes, kind, share of the optimum, of it cut only, error of the
    bound, certified gap, time in s.
    """
    topology = teal.load_topology(name)
    large = topology.num_nodes >= LARGE
    traffic = teal.load_traffic(f"gravity:seed={seed},count=3,load={4 if large else 1}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    # Compile the kernels before the timing.
    scheme.solve(teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0])))
    for kind, problem in cases(topology, paths, traffic, np.random.default_rng(seed), objective):
        exact = teal.solve(problem, gap=1e-3 if large else 1e-4, max_iterations=5000)
        optimum = float((exact.value + exact.bound)[0]) / 2
        del exact
        begin = time.perf_counter()
        allocation = scheme.solve(problem)
        seconds = time.perf_counter() - begin
        assessment = teal.assess(problem, allocation)
        share = float(assessment.value[0]) / optimum
        bound_error = float(assessment.bound[0]) / optimum - 1
        cut = float("nan")
        if problem.objective.rules.sense < 0:
            share = 1 / share
            bound_error = -bound_error
        else:
            cut = (
                float(problem.value(teal.project(problem, scheme.start(problem)[0], refill=0))[0])
                / optimum
            )
        yield (
            topology.name,
            topology.num_nodes,
            kind,
            share,
            cut,
            bound_error,
            float(assessment.gap[0]),
            seconds,
        )


def main() -> None:
    """Measure all networks, print a table, write a row per matrix."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scheme", default="teal", help="teal or price-gnn, with options")
    parser.add_argument(
        "--model", type=Path, help="folder of the model, in place of the one that Teal brings"
    )
    parser.add_argument("--data", type=Path, help="folder of the files that data/README.md names")
    parser.add_argument("--large", action="store_true", help="measure ASN and world instead")
    parser.add_argument("--objective", default="total_flow", help="objective of all problems")
    parser.add_argument(
        "--seeds", type=int, default=1, help="number of seeds of the traffic and its changes"
    )
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--networks",
        nargs="+",
        default=[],
        help="names of held-out networks of topohub; none for all",
    )
    parser.add_argument("--out", type=Path, default=Path("held_out.csv"), help="file of the rows")
    options = parser.parse_args()
    scheme = teal.make_scheme(options.scheme, options.model)
    held_out = topohub_pool().held_out
    folder = model_folder(options.model or Path(BROUGHT[options.scheme.partition(":")[0]]))
    card = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    assert set(card["held_out"]) >= set(held_out), "the model has seen some of these networks"
    groups = {"zoo, sndlib": [f"topohub:{name}" for name in held_out if group_of(name) in ZOO]}
    small = [name for name in held_out if network_sizes()[name] <= MIDDLE]
    groups |= {
        group: [f"topohub:{name}" for name in small if group_of(name) == group]
        for group in ("caida", "gabriel")
    }
    groups["gabriel"] = groups["gabriel"][::4]
    published_files = FILES if options.data else {}
    groups |= {
        name: [str(published(options.data, file))]
        for name, file in published_files.items()
        if name != "ASN"
    }
    if options.large:
        groups = {
            name: [str(published(options.data, file))]
            for name, file in published_files.items()
            if name == "ASN"
        }
        groups["world"] = ["topohub:backbone/world"]
    if options.networks:
        if unknown := set(options.networks) - set(held_out):
            parser.error(f"--networks: not held out: {', '.join(sorted(unknown))}")
        groups = {name: [f"topohub:{name}"] for name in options.networks}
    with tqdm(total=sum(map(len, groups.values())), unit="network") as bar:
        named: dict[str, list[Row]] = {}
        for group, names in groups.items():
            for name in names:
                seeds = options.seeds if name.startswith("topohub:") else 1
                for seed in range(options.first_seed, options.first_seed + seeds):
                    named.setdefault(group, []).extend(
                        measure(scheme, name, seed, options.objective)
                    )
                bar.update()
    summary: list[tuple[object, ...]] = [
        (
            "scheme",
            "networks",
            "matrix",
            "cases",
            "mean",
            "worst",
            "cut",
            "worst_cut",
            "bound_off",
            "certified_gap",
            "seconds",
        )
    ]
    for group, rows in named.items():
        for kind in KINDS:
            chosen = [row for row in rows if row[2] == kind]
            shares, cuts, bounds, gaps, seconds = (
                list(column) for column in list(zip(*chosen, strict=True))[3:]
            )
            means = (
                statistics.mean(shares),
                min(shares),
                statistics.mean(cuts),
                min(cuts),
                statistics.mean(bounds),
                statistics.mean(gaps),
            )
            summary.append(
                (options.scheme, group, kind, len(chosen), *means, statistics.median(seconds))
            )
            print(
                *(f"{value:.4g}" if isinstance(value, float) else value for value in summary[-1]),
                sep="  ",
            )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            (
                "network",
                "nodes",
                "matrix",
                "of_optimum",
                "cut",
                "bound_off",
                "certified_gap",
                "seconds",
            )
        )
        writer.writerows(row for rows in named.values() for row in rows)
    file = options.out.with_name(f"{options.out.stem}-summary.csv")
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows(summary)
    print(options.out, file)


if __name__ == "__main__":
    main()
