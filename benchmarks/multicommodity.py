"""Solve the public minimum-cost multicommodity flow problems over all paths of their networks.

    python benchmarks/multicommodity.py --data FOLDER [--out OUT] [--gap 1e-4] [NAME ...]

FOLDER holds the files of CommaLab (planar*, grid*), perhaps *_net.tntp.gz and *_trips.tntp.gz of
Transportation Networks for Research, and optimal.csv (instance, optimal) with published optima.
OUT/multicommodity.csv has a row for each problem: its size, seconds from the first path to the
certified solution (the median of three runs, of one where it takes more than 60 s), the certified
gap to the optimum over all paths, the cost, and the cost over the published optimum less 1.
Then all demands are multiplied by random factors from 0.8 to 1.2: seconds from nothing, and from
the first solution (`start`).  Reading the files is not timed.  Kernels are compiled on the first
problem before any is timed.

As in the publication of the optima, trips are divided by 2,000 (Winnipeg) and 2.4 (ChicagoSketch),
and all nodes carry transit traffic.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

_TRIP_DIVISORS = {"Winnipeg": 2000.0, "ChicagoSketch": 2.4}  # road network: divisor of its trips
_LONG_S = 60.0  # a run that takes longer is not repeated
COLUMNS = (
    "problem",
    "nodes",
    "links",
    "demands",
    "seconds",
    "iterations",
    "gap",
    "cost",
    "above optimum",
    "changed seconds",
    "changed warm seconds",
)


def read(folder: Path, name: str) -> tuple[Any, Any]:
    """Return the network and the traffic of a problem.

    Args:
        folder: folder of the files.
        name: file of CommaLab, or key of :data:`_TRIP_DIVISORS`.
    """
    import teal

    if name in _TRIP_DIVISORS:
        topology = teal.load_topology(str(folder / f"{name}_net.tntp.gz"))
        topology = dataclasses.replace(topology, no_transit=None)
        traffic = teal.load_traffic(str(folder / f"{name}_trips.tntp.gz"), topology)
        return topology, traffic.scaled(1 / _TRIP_DIVISORS[name])
    topology = teal.load_topology(str(folder / name))
    return topology, teal.load_traffic(str(folder / name), topology)


def solve_all_paths(
    topology: Any, traffic: Any, gap: float, factor: Any = 1.0, start: Any = None
) -> tuple[float, Any]:
    """Solve a problem over all paths by column generation from one path a demand.

    Args:
        topology: network.
        traffic: traffic, of which the first matrix is solved.
        gap: certified gap to reach over all paths.
        factor: factor of all demands, a number or (D,).
        start: solution for similar demands; None for a cold start.

    Returns:
        the time with the first paths included, s, and the solution.
    """
    import teal
    from teal.solvers.columns import generate_columns

    begin = time.perf_counter()
    paths = teal.compute_paths(topology, traffic.pairs, num_paths=1, cache=False)
    problem = teal.Problem.create(topology, paths, "least_cost", factor * traffic.read([0]))
    all_paths_solution = generate_columns(problem, target=gap, start=start)
    return time.perf_counter() - begin, all_paths_solution


def median_of_runs(*arguments: Any) -> tuple[float, Any]:
    """Solve a problem three times, or once if it takes long; return the median time, s, and the
    first solution.

    Args:
        arguments: network, traffic, gap, factor of the demands and start of the solve.
    """
    seconds, solution = solve_all_paths(*arguments)
    if seconds >= _LONG_S:
        return seconds, solution
    runs = [seconds, *(solve_all_paths(*arguments)[0] for _ in range(2))]
    return statistics.median(runs), solution


def names_in(folder: Path) -> list[str]:
    """Return the names of the problems in a folder, the smallest files first, road
    networks last.
    """
    files = [file for file in folder.iterdir() if file.is_file() and not file.suffix]
    roads = [name for name in _TRIP_DIVISORS if (folder / f"{name}_net.tntp.gz").exists()]
    return [*(file.name for file in sorted(files, key=lambda file: file.stat().st_size)), *roads]


def published_optima(folder: Path) -> dict[str, float]:
    """Return the published optimum of each problem in optimal.csv; none without the file."""
    file = folder / "optimal.csv"
    if not file.exists():
        return {}
    with file.open(encoding="utf-8") as stream:
        return {row["instance"]: float(row["optimal"]) for row in csv.DictReader(stream)}


def measure(folder: Path, name: str, gap: float, optimum: float) -> tuple[object, ...]:
    """Solve one problem, three times if it is short; return a row of :data:`COLUMNS`.

    Args:
        folder: folder of the files.
        name: problem.
        gap: certified gap to the optimum over all paths.
        optimum: published optimum, a cost; NaN if unknown.
    """
    topology, traffic = read(folder, name)
    # The demands as they are; then changed at random, from nothing and from the first solution.
    seconds, all_paths_solution = median_of_runs(topology, traffic, gap)
    factor = np.random.default_rng(0).uniform(0.8, 1.2, traffic.num_demands)
    changed_s, _ = median_of_runs(topology, traffic, gap, factor)
    warm_s, _ = median_of_runs(topology, traffic, gap, factor, all_paths_solution)
    cost = float(all_paths_solution.result.value[0])
    return (
        name,
        topology.num_nodes,
        topology.num_links,
        traffic.num_demands,
        seconds,
        all_paths_solution.result.iterations,
        float(all_paths_solution.gap_all_paths[0]),
        cost,
        cost / optimum - 1,
        changed_s,
        warm_s,
    )


def main() -> None:
    """Solve the problems one by one, and write a row for each to multicommodity.csv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the files")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/multicommodity"), help="folder of the table"
    )
    parser.add_argument("--gap", type=float, default=1e-4, help="certified gap")
    parser.add_argument("names", nargs="*", help="problems; without, all of the folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    published = published_optima(options.data)
    names = options.names or names_in(options.data)
    # Compile the kernels.
    solve_all_paths(*read(options.data, names[0]), options.gap)
    with (options.out / "multicommodity.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for name in names:
            row = measure(options.data, name, options.gap, published.get(name, math.nan))
            writer.writerow(row)
            stream.flush()
            print(*row, flush=True)


if __name__ == "__main__":
    main()
