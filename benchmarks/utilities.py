"""Measure fair shares: iterations and CPU time of PDHG to a certified gap, compared with an
interior-point method on the same programs.

    python benchmarks/utilities.py --out DIR [--data FOLDER]

For each network and program: the iterations to 1% and 0.1% of the equivalent share, and to 0.1% of
it and 1% of the loss; the CPU seconds of each of these solves, without compilation; and those of
Clarabel (HiGHS for bandwidth functions) where the network has at most 500 demands.  A second table
has the total and the least share of each alpha, and the largest least share of any allocation.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from public_data import published

from baselines.lp_all import LpAll
from teal.formats import load_topology, load_traffic
from teal.network import PathSet, Topology, compute_paths
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.problem import Problem, assess
from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import limit_threads
from teal.solvers.pipeline import solve
from teal_study.evaluation.fairness_curve import fairness_curve

_PROGRAMS = (
    "proportional_fair",
    "proportional_fair:weight=1",
    "alpha_fair:alpha=0.5",
    "alpha_fair:alpha=2",
    "alpha_fair:alpha=4",
    "alpha_fair:alpha=2,weight=1",
    "bandwidth_functions",
)
# Bandwidth function of every demand: points (served share, value per Gbit/s of demand), with slopes
# of 8, 4 and 1.
_FUNCTION = [
    (0.25, 2.0),
    (0.5, 3.0),
    (1.0, 3.5),
]
_MAX_CLARABEL_DEMANDS = 500
_MAX_ITERATIONS = 5000
_LOSS_GAP = 0.01


def _timed_solve(problem: Problem, gap: float) -> tuple[Any, float]:
    """Solve a problem to a relative gap; return the result and the CPU time of the solve, s."""
    begin = time.process_time()
    result = solve(problem, gap=gap, max_iterations=_MAX_ITERATIONS)
    return result, time.process_time() - begin


def _to_loss_gap(problem: Problem) -> tuple[Any, float]:
    """Halve the target gap from 0.1% until the gap of the loss is at most 1%.

    Returns:
        the last result, and the CPU time of its solve, s.
    """
    gap = 1e-3
    while True:
        result, seconds = _timed_solve(problem, gap)
        loss = problem.objective.rules.loss_gap(float(result.value[0]), float(result.bound[0]))
        if loss is None or loss <= _LOSS_GAP or gap < 1e-9:
            return result, seconds
        gap /= 2


def utility_problem(
    topology: Topology, paths: PathSet, program: str, matrix: FloatArray
) -> Problem:
    """Return the problem of one of the programs, over one matrix (1, D)."""
    functions = None
    if program == "bandwidth_functions":
        functions = BandwidthFunctions.of_points(
            [_FUNCTION], np.zeros(matrix.shape[1], int), by_share=True
        )
    return Problem.create(topology, paths, program, matrix, functions=functions)


def compare_with_clarabel(problem: Problem) -> list[str]:
    """Return three cells: the CPU seconds of Clarabel, and the differences of PDHG's value and
    bound, at a gap of 1e-8, from Clarabel's optimum.
    """
    exact, _ = _timed_solve(problem, 1e-8)
    begin = time.process_time()
    reference = LpAll().solve(problem)
    clarabel_s = time.process_time() - begin
    optimum = float(problem.value(reference.splits)[0])
    assessment = assess(problem, exact)
    # Values of bandwidth functions are absolute; equivalent shares are at most 1.
    unit = max(1.0, optimum)
    value_error = (float(assessment.value[0]) - optimum) / unit
    bound_error = (float(assessment.bound[0]) - optimum) / unit
    return [f"{clarabel_s:.3f}", f"{value_error:.2e}", f"{bound_error:.2e}"]


def measure(name: str, load: float, table_writer: Any) -> None:
    """Write a row for each program of one network, and print it.

    Args:
        name: source of the topology.
        load: largest utilisation of its traffic on shortest paths.
        table_writer: CSV writer of programs.csv.
    """
    topology = load_topology(name)
    matrix = load_traffic(f"gravity:seed=0,load={load:g},count=1", topology).read([0])
    paths = compute_paths(topology)
    for program in _PROGRAMS:
        problem = utility_problem(topology, paths, program, matrix)
        # Compile the kernels of the program.
        _timed_solve(problem, 1e-2)
        row: list[object] = [topology.name, load, program, matrix.shape[1]]
        for result, seconds in (
            _timed_solve(problem, 1e-2),
            _timed_solve(problem, 1e-3),
            _to_loss_gap(problem),
        ):
            row += [result.iterations, f"{seconds:.4f}"]
        if matrix.shape[1] <= _MAX_CLARABEL_DEMANDS:
            row += compare_with_clarabel(problem)
        table_writer.writerow(row)
        print(*row, flush=True)


def price_of_fairness(name: str, load: float, table_writer: Any) -> None:
    """Write a row for each alpha: total and least share, and the least share of max-min fairness.

    Args:
        name: source of the topology.
        load: largest utilisation of its traffic on shortest paths.
        table_writer: CSV writer of fairness.csv.
    """
    topology = load_topology(name)
    matrix = load_traffic(f"gravity:seed=0,load={load:g},count=1", topology).read([0])
    problem = Problem.create(topology, compute_paths(topology), "total_flow", matrix)
    *points, max_min_point = fairness_curve(problem)
    for point in points:
        row = [
            topology.name,
            load,
            point.objective.rpartition("=")[2],
            f"{point.total_share:.5f}",
            f"{point.least_share:.5f}",
            f"{max_min_point.least_share:.5f}",
            f"{point.gap:.2e}",
        ]
        table_writer.writerow(row)
        print(*row, flush=True)


def _write_programs(file: Path, networks: list[tuple[str, float]]) -> None:
    """Write programs.csv for networks, each the source of a topology and the load
    of its traffic.

    Args:
        file: CSV file to write.
        networks: source of each topology, and load of its traffic.
    """
    with file.open("w", newline="") as stream:
        table_writer = csv.writer(stream)
        table_writer.writerow(
            [
                "network",
                "load",
                "program",
                "demands",
                "iterations_1",
                "cpu_s_1",
                "iterations_01",
                "cpu_s_01",
                "iterations_loss",
                "cpu_s_loss",
                "clarabel_cpu_s",
                "value_less_clarabel",
                "bound_less_clarabel",
            ]
        )
        for name, load in networks:
            measure(name, load, table_writer)


def draw(table: Path, picture: Path) -> None:
    """Plot the total share against the least share for all alphas, a panel for each network.

    Args:
        table: fairness.csv.
        picture: PNG file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure, axes = pyplot.subplots(
        1, len(networks), figsize=(4 * len(networks), 3.4), squeeze=False
    )
    for name, axis in zip(networks, axes[0], strict=True):
        network_rows = [row for row in rows if row["network"] == name]
        least_shares, total_shares = (
            [100 * float(row[key]) for row in network_rows]
            for key in ("least_share", "total_share")
        )
        # The curve over alpha, with labels at alpha 0, 0.5, 1 and 2.
        axis.plot(least_shares, total_shares, "o-", color="tab:blue", label="alpha-fair")
        for row, x, y in zip(network_rows, least_shares, total_shares, strict=True):
            if float(row["alpha"]) in (0, 0.5, 1, 2):
                axis.annotate(
                    f"alpha {row['alpha']}",
                    (x, y),
                    textcoords="offset points",
                    xytext=(6, 4),
                    fontsize=8,
                )
        # The least share under max-min fairness, which no allocation exceeds.
        largest = 100 * float(network_rows[0]["largest_least_share"])
        axis.axvline(largest, color="tab:grey", linestyle="--", label="largest least share")
        axis.set(
            title=f"{name}, load {float(network_rows[0]['load']):g}",
            xlabel="least share of a demand, %",
            xlim=(-1, 1.35 * largest),
        )
        axis.margins(y=0.15)
    axes[0][0].set_ylabel("share of all demand that is carried, %")
    axes[0][0].legend(loc="lower left", fontsize=8)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Write programs.csv, fairness.csv and the picture fairness.png."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder of the files that data/README.md names")
    parser.add_argument(
        "--fairness-only", action="store_true", help="write fairness.csv and the picture alone"
    )
    parser.add_argument("--networks", nargs="*", help="files or names, each NAME or NAME@LOAD")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # One thread, so that CPU seconds compare.
    limit_threads(1)
    torch.set_num_threads(1)
    networks = options.networks or ["b4@6", "topohub:sndlib/geant@4"]
    if options.data is not None and not options.networks:
        networks += [
            f"{published(options.data, name)}@6" for name in ("UsCarrier.json", "Kdl.json")
        ]
    # Source and load of each network, given as NAME or NAME@LOAD.
    parsed = [
        (name, float(np.float64(load or 6)))
        for name, _, load in (text.partition("@") for text in networks)
    ]
    if not options.fairness_only:
        _write_programs(options.out / "programs.csv", parsed)
    with (options.out / "fairness.csv").open("w", newline="") as stream:
        table_writer = csv.writer(stream)
        table_writer.writerow(
            ["network", "load", "alpha", "total_share", "least_share", "largest_least_share", "gap"]
        )
        for name, load in parsed:
            if "Kdl" not in name:
                price_of_fairness(name, load, table_writer)
    draw(options.out / "fairness.csv", options.out / "fairness.png")


if __name__ == "__main__":
    main()
