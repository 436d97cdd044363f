"""Bounds from a library of dual prices: how close they are to the optima of later matrices.

    python benchmarks/price_library.py --data FOLDER --out OUT [--count 400]

OUT/price_library.csv has a row for each network, objective and size of the library.  Of a measured
series, `count` matrices with equal distances, all scaled by one factor, the first half is solved to
1e-6 and fills the library; the second half is bounded by it.  The `excess` of a bound is its
relative distance from the certified optimum (also to 1e-6), as median, 99% quantile and largest
value.  For total_flow the same is stated of the bound of the PriceGNN that comes with Teal, and of
the tighter one of both.  `batch_s` is the time of a bound if all matrices are bounded in one call,
`single_s` in a call of its own; one thread, medians of repeated calls after a warm-up.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bases import timed
from public_data import published

import teal
from teal.runtime.arrays import FloatArray

SNDLIB = "sndlib/directed-{}.tgz"
# Topology and traffic of each network, and the factor of all demands under total_flow.
NETWORKS = {
    "geant": ("sndlib/geant.xml", SNDLIB.format("geant-uhlig-15min-over-4months-ALL"), 20.0),
    "abilene": ("sndlib/abilene.xml", SNDLIB.format("abilene-zhang-5min-over-6months-ALL"), 40.0),
}
OBJECTIVES = ("total_flow", "max_link_utilisation")
SIZES = (10, 64, 200)
GAP = 1e-6
COLUMNS = (
    "network",
    "objective",
    "size",
    "vectors",
    "matrices",
    "carried",
    "median",
    "p99",
    "largest",
    "model_median",
    "model_p99",
    "both_median",
    "both_p99",
    "batch_s",
    "single_s",
)


def problems_of(data: Path, name: str, objective: str, count: int) -> list[teal.Problem]:
    """Return the problems of the first and of the second half of a measured series.

    Args:
        data: folder of the published files.
        name: name of the network.
        objective: name of the objective.
        count: number of matrices; those without traffic are left out.
    """
    topology_file, traffic_file, factor = NETWORKS[name]
    topology = teal.load_topology(str(published(data, topology_file)))
    traffic = teal.load_traffic(str(published(data, traffic_file)), topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    rows = np.linspace(0, traffic.num_matrices - 1, count).astype(int).tolist()
    demand = factor * traffic.read(rows)
    demand = demand[demand.sum(1) > 0]
    middle = len(demand) // 2
    return [
        teal.Problem.create(topology, paths, objective, half)
        for half in (demand[:middle], demand[middle:])
    ]


def excess_of(problem: teal.Problem, bound: torch.Tensor, optimum: torch.Tensor) -> FloatArray:
    """Return the relative distance (B,) of bounds from the optima, at least 0.

    Args:
        problem: B matrices.
        bound: (B,) bounds on the optima.
        optimum: (B,) certified optima.
    """
    sense = problem.objective.rules.sense
    excess = sense * (bound - optimum) / torch.maximum(bound.abs(), optimum.abs())
    if float(excess.min()) < -1e-9:
        raise SystemExit(
            f"a bound is on the wrong side of the optimum (relative: {-float(excess.min()):.3g}): "
            "the prices or the optimum are wrong"
        )
    return excess.clamp(min=0).numpy()


def measure(data: Path, name: str, objective: str, size: int, count: int) -> dict[str, Any]:
    """Return a row of the table.

    Args:
        data: folder of the published files.
        name: name of the network.
        objective: name of the objective.
        size: largest number of price vectors.
        count: number of matrices of the series.
    """
    # Fill the library from the first half; bound the second half, and compare with its optima.
    library_problem, test_problem = problems_of(data, name, objective, count)
    library = teal.PriceLibrary(size)
    solved = teal.solve(library_problem, gap=GAP)
    library.add(library_problem, solved.prices, solved.bound)
    optimum = teal.solve(test_problem, gap=GAP)
    bound = library.bound(test_problem)
    excess = excess_of(test_problem, bound, optimum.value)
    first_problem = test_problem.row(0)
    row: dict[str, Any] = {
        "network": name,
        "objective": objective,
        "size": size,
        "vectors": len(library),
        "matrices": test_problem.batch,
        "carried": float((optimum.value / test_problem.demand.sum(1)).mean()),
        "median": np.median(excess),
        "p99": np.quantile(excess, 0.99),
        "largest": excess.max(),
        "batch_s": timed(lambda: library.bound(test_problem), 50)[0] / test_problem.batch,
        "single_s": timed(lambda: library.bound(first_problem), 500)[0],
    }
    if objective != "total_flow":
        # Every demand is served.
        return row | {"carried": 1.0}
    # The model's prices, and the tighter bound of both.
    _, prices = teal.load_model("universal").start(test_problem)
    model_bound = teal.scaled_dual_bound(test_problem, prices)
    for key, compared_bound in (
        ("model", model_bound),
        ("both", torch.minimum(model_bound, bound)),
    ):
        other_excess = excess_of(test_problem, compared_bound, optimum.value)
        row |= {
            f"{key}_median": np.median(other_excess),
            f"{key}_p99": np.quantile(other_excess, 0.99),
        }
    return row


def main() -> None:
    """Write OUT/price_library.csv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the files that data/README.md names"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=400, help="matrices of a series")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with (options.out / "price_library.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for name in NETWORKS:
            for objective in OBJECTIVES:
                for size in SIZES:
                    row = measure(options.data, name, objective, size, options.count)
                    writer.writerow(row)
                    stream.flush()
                    print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
