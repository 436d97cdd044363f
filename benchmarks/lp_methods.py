"""Time the methods of HiGHS on path-form programs of several sizes, to decide which one `lp-all`
should choose.

    python benchmarks/lp_methods.py [--limit 10] --out runs/lp-methods.csv

OUT has a row for each network, objective and method: number of variables, seconds of the solver
alone (the median of three calls after a warm-up, or one call if the warm-up takes more than five
seconds; infinite if stopped after --limit seconds), and whether ``method=auto`` chooses the method.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import peers
from timing import State, time_series

import teal
from baselines.highs import Algorithm, select_algorithm
from baselines.linear_program import LpSettings
from baselines.matrix import matrices
from baselines.path_program import path_program

# Source of each topology, and load of its gravity traffic.
NETWORKS = {
    "b4": 6,
    "topohub:sndlib/geant": 4,
    "topohub:sndlib/cost266": 6,
    "topohub:sndlib/germany50": 6,
    "topohub:gabriel/60/8": 4,
    "topohub:gabriel/90/7": 6,
}
OBJECTIVES = ("total_flow", "latency_penalised_flow", "max_link_utilisation")
# Methods of HiGHS, each with or without presolve.
METHODS = (
    ("simplex", True),
    ("simplex", False),
    ("primal-simplex", True),
    ("primal-simplex", False),
    ("ipm", True),
)
_CALLS = 3  # timed calls of each method


def main() -> None:
    """Time all methods of HiGHS on all programs; write a row for each to the CSV file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=float, default=10.0, help="of each program, s")
    parser.add_argument("--out", type=Path, default=Path("runs/lp-methods.csv"))
    options = parser.parse_args()
    rows: list[tuple[object, ...]] = [
        ("network", "objective", "variables", "method", "presolve", "seconds", "chosen")
    ]
    for name, load in NETWORKS.items():
        topology = teal.load_topology(name)
        traffic = teal.load_traffic(f"gravity:seed=0,count={_CALLS + 1},load={load}", topology)
        paths = teal.compute_paths(topology, traffic.pairs)
        demand = traffic.read(slice(None))
        for objective in OBJECTIVES:
            problem = teal.Problem.create(topology, paths, teal.Objective(objective), demand)
            series = [problem.row(number) for number in range(problem.batch)]
            matrix = next(matrices(series[0]))
            program = path_program(matrix, matrix.routable, matrix.capacity).program
            # The algorithm of ``method=auto``.
            auto_algorithm = select_algorithm(program, LpSettings())
            for method, presolve in METHODS:
                setting = peers.setting(method, presolve, crossover=True)
                solve = peers.of_scheme(f"lp-all:time_limit={options.limit:g},{setting}")
                timing = time_series(solve, series)
                method_algorithm = select_algorithm(
                    program, LpSettings(method=method, presolve=presolve)
                )
                is_chosen = _is_same(method_algorithm, auto_algorithm)
                size = len(program.cost)
                row = (name, objective, size, method, presolve, timing.solver_s, is_chosen)
                print(*row, timing.state, flush=True)
                assert timing.state in (State.SOLVED, State.STOPPED)
                rows.append(row)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)


def _is_same(first: Algorithm, second: Algorithm) -> bool:
    """Return whether two algorithms of HiGHS are equal; the simplex strategy counts only where the
    simplex method is used.
    """
    if first.solver == second.solver == "ipm":
        return first.presolve == second.presolve
    return first == second


if __name__ == "__main__":
    main()
