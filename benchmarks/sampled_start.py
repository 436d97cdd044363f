"""Compare solves that start from a sample of the demands, solved by PDHG or by a PriceGNN, with
PDHG over all demands: time to a certified gap.

    python benchmarks/sampled_start.py --data FOLDER --out OUT [--networks Kdl,ASN,world] [--repeats 7]

FOLDER holds Kdl.json and ASN2k.json.  The variants are timed in turn, after one run of each that is
not timed; the table has medians, and OUT/sampled_start.csv a row for each case and
variant.  Traffic is `gravity:seed=0`; the objective is total_flow unless a case names another; K =
4. World needs about 7 GiB and ten minutes, most of them for paths.
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
from public_data import published

import teal
from teal.network.disturbances import flash_crowd
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.schemes.models import load_model
from teal.solvers import pipeline
from teal.solvers.result import SolveResult

SOURCES = {"Kdl": "Kdl.json", "ASN": "ASN2k.json", "world": "topohub:backbone/world"}
LOADS = {"Kdl": 6, "ASN": 6, "world": 4}


def cases(network: str, data: Path) -> Iterator[tuple[str, Problem, float, SolveResult | None]]:
    """Yield the cases of a network.

    Args:
        network: key of :data:`SOURCES`.
        data: folder of the published files.

    Yields:
        name of the case, problem of one matrix, target gap, and earlier result for a warm start
        (None for a cold start).
    """
    source = SOURCES[network]
    topology = teal.load_topology(
        str(published(data, source)) if source.endswith(".json") else source
    )
    traffic = teal.load_traffic(f"gravity:seed=0,count=2,load={LOADS[network]}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    first, second = (traffic.read([index]) for index in (0, 1))

    def problem(demand: object, objective: ObjectiveName = ObjectiveName.TOTAL_FLOW) -> Problem:
        return Problem.create(topology, paths, Objective(objective), np.asarray(demand))

    yield f"load {LOADS[network]}", problem(first), 1e-2, None
    if network == "world":
        yield "load 8", problem(2 * first), 1e-2, None
        return
    # Flash crowds, from nothing and, on Kdl, from the solution of the previous matrix.
    earlier = pipeline.solve(problem(first), gap=1e-3)
    for seed in range(6):
        crowd = problem(flash_crowd(second, np.random.default_rng(seed)))
        yield f"flash crowd {seed}", crowd, 1e-2, None
        if network == "Kdl":
            yield f"flash crowd {seed}, warm", crowd, 1e-2, earlier
    # Closer gaps, other objectives, and other loads on Kdl.
    if network != "Kdl":
        return
    yield "load 6", problem(first), 1e-3, None
    for objective in (ObjectiveName.LATENCY_PENALISED_FLOW, ObjectiveName.MAX_LINK_UTILISATION):
        yield f"load 6, {objective.value}", problem(first, objective), 1e-2, None
    yield "next interval, warm", problem(second), 5e-3, earlier
    for load in (12, 20, 40):
        yield f"load {load}", problem(first * (load / 6)), 1e-2, None


def timed_variants(
    problem: Problem, gap: float, warm_start: SolveResult | None, repeats: int
) -> dict[str, tuple[float, SolveResult]]:
    """Return the median time, s, and the last result of each variant, timed in turn.

    Args:
        problem: problem of one matrix.
        gap: target gap.
        warm_start: earlier result; None for a cold start.
        repeats: number of timed runs, after one that is not timed.
    """
    variants: dict[str, dict[str, Any]] = {
        "model": {"starter": load_model("universal")},
        "sample": {},
        "all": {"engine": "fused"},
    }
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    results: dict[str, SolveResult] = {}
    for repeat in range(repeats + 1):
        for variant, settings in variants.items():
            begin = time.perf_counter()
            results[variant] = pipeline.solve(problem, gap=gap, warm_start=warm_start, **settings)
            if repeat:
                times[variant].append(time.perf_counter() - begin)
    return {
        variant: (statistics.median(times[variant]), result) for variant, result in results.items()
    }


def main() -> None:
    """Print the table, and write sampled_start.csv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the files that data/README.md names"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the table")
    parser.add_argument("--networks", default="Kdl,ASN,world", help="of " + ", ".join(SOURCES))
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[object, ...]] = []
    print(
        "| network | case | target | samples, PriceGNN | samples, PDHG | all demands |\n"
        "|---|---|---|---|---|---|"
    )
    for network in options.networks.split(","):
        # A printed row for each case, and a stored row for each variant of it.
        for name, problem, gap, earlier in cases(network, options.data):
            measured = timed_variants(problem, gap, earlier, options.repeats)
            cells = [
                f"{1e3 * seconds:.0f} ms ({result.iterations})"
                for seconds, result in measured.values()
            ]
            print(f"| {network} | {name} | {100 * gap:g}% | {' | '.join(cells)} |", flush=True)
            rows += [
                (network, name, gap, variant, seconds, result.iterations, float(result.gap))
                for variant, (seconds, result) in measured.items()
            ]
    with (options.out / "sampled_start.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["network", "case", "target", "variant", "seconds", "iterations", "gap"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
