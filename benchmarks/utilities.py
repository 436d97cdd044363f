"""Fair shares: iterations and CPU time to a certified gap, beside an interior-point method on the same programs.

    python -m benchmarks.utilities --out DIR [--data FOLDER_OF_TOPOLOGIES]

For each network and program: the iterations to 1% and 0.1% of the equivalent share, and to 0.1% of it and 1% of what
is lost; CPU seconds of the last solve (a second one, in which nothing is compiled), and of Clarabel where the network
has at most 500 demands.  A second table has, for each alpha, total and least share and what alpha costs.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from baselines.lp_all import LpAll
from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.problem import Problem, assess
from teal.runtime.parallel import limit_threads
from teal.solvers.pdhg.solver import solve

_PROGRAMS = (
    "proportional_fair", "proportional_fair:weight=1", "alpha_fair:alpha=0.5", "alpha_fair:alpha=2",
    "alpha_fair:alpha=4", "alpha_fair:alpha=2,weight=1",
)  # fmt: skip
_ALPHAS = (0, 0.5, 1, 2, 4, 8, 16)
_MAX_CLARABEL_DEMANDS = 500
_MAX_ITERATIONS = 5000
_LOSS_GAP = 0.01


def _solved(problem: Problem, gap: float) -> tuple[Any, float]:
    """A result, and the CPU seconds that it took."""
    begin = time.process_time()
    result = solve(problem, gap=gap, max_iterations=_MAX_ITERATIONS)
    return result, time.process_time() - begin


def _to_loss_gap(problem: Problem) -> tuple[Any, float]:
    """The first result of a falling target gap whose gap of the loss is at most 1%."""
    gap = 1e-3
    while True:
        result, seconds = _solved(problem, gap)
        loss = problem.objective.rules.loss_gap(float(result.value[0]), float(result.bound[0]))
        if (loss is not None and loss <= _LOSS_GAP) or gap < 1e-9:
            return result, seconds
        gap /= 2


def measure(name: str, load: float, out: Any) -> None:
    """All programs of one network."""
    topology = load_topology(name)
    matrix = load_traffic(f"gravity:seed=0,load={load:g},count=1", topology).read([0])
    paths = compute_paths(topology)
    for program in _PROGRAMS:
        problem = Problem.create(topology, paths, program, matrix)
        _solved(problem, 1e-2)  # compiles
        coarse, coarse_s = _solved(problem, 1e-2)
        fine, fine_s = _solved(problem, 1e-3)
        lossless, lossless_s = _to_loss_gap(problem)
        row = [topology.name, load, program, matrix.shape[1], coarse.iterations, f"{coarse_s:.4f}", fine.iterations,
               f"{fine_s:.4f}", lossless.iterations, f"{lossless_s:.4f}"]  # fmt: skip
        if matrix.shape[1] <= _MAX_CLARABEL_DEMANDS:
            exact, _ = _solved(problem, 1e-8)
            begin = time.process_time()
            reference = LpAll().solve(problem)
            clarabel_s = time.process_time() - begin
            optimum = float(problem.value(reference.splits)[0])
            own = assess(problem, exact)
            row += [f"{clarabel_s:.3f}", f"{float(own.value[0]) - optimum:.2e}", f"{float(own.bound[0]) - optimum:.2e}"]
        out.writerow(row)
        print(*row, flush=True)


def price_of_fairness(name: str, load: float, out: Any) -> None:
    """Total and least share for each alpha, and of max-min fairness's first level (the largest least share)."""
    topology = load_topology(name)
    matrix = load_traffic(f"gravity:seed=0,load={load:g},count=1", topology).read([0])
    paths = compute_paths(topology)
    most = Problem.create(topology, paths, "max_concurrent_flow", matrix)
    largest_least = float(solve(most, gap=1e-4).value[0])
    for alpha in _ALPHAS:
        problem = Problem.create(topology, paths, f"alpha_fair:alpha={alpha:g}", matrix)
        result = solve(problem, gap=1e-4, max_iterations=_MAX_ITERATIONS)
        share = result.splits.sum(-1)
        routable = problem.routable & (problem.demand > 0)
        total = float((share * problem.demand).sum() / problem.demand.sum())
        least = float(share[routable].min())
        row = [topology.name, load, alpha, f"{total:.5f}", f"{least:.5f}", f"{largest_least:.5f}",
               f"{float(result.gap[0]):.2e}"]  # fmt: skip
        out.writerow(row)
        print(*row, flush=True)


def main() -> None:
    """Write programs.csv and fairness.csv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="folder with UsCarrier.json and Kdl.json")
    parser.add_argument("--networks", nargs="*", help="files or names, each NAME or NAME@LOAD")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    limit_threads(1)
    torch.set_num_threads(1)
    networks = options.networks or ["b4@6", "topohub:sndlib/geant@4"]
    if options.data is not None and not options.networks:
        networks += [f"{options.data / name}@6" for name in ("UsCarrier.json", "Kdl.json")]
    parsed = [(name, float(np.float64(load or 6))) for name, _, load in (text.partition("@") for text in networks)]
    with (options.out / "programs.csv").open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["network", "load", "program", "demands", "iterations_1", "cpu_s_1", "iterations_01", "cpu_s_01",
                      "iterations_loss", "cpu_s_loss", "clarabel_cpu_s", "value_less_clarabel",
                      "bound_less_clarabel"])  # fmt: skip
        for name, load in parsed:
            measure(name, load, out)
    with (options.out / "fairness.csv").open("w", newline="") as stream:
        out = csv.writer(stream)
        out.writerow(["network", "load", "alpha", "total_share", "least_share", "largest_least_share", "gap"])
        for name, load in parsed:
            if "Kdl" not in name:
                price_of_fairness(name, load, out)


if __name__ == "__main__":
    main()
