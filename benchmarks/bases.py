"""Solve series of matrices on small networks: each alone, from the one before, and all in one call.

    python benchmarks/bases.py --out OUT [--count 32] [--repeats 3]

OUT/bases.csv has a row for each network and load, all to a certified gap of 1e-6 on one thread, after
a warm-up.  Times are for one matrix: medians over the matrices of medians of repeated calls.

- `cold_interior_s`, `cold_pdhg_s`: one matrix a call, from nothing, by that engine;
- `warm_s`: one matrix a call, from the result for the matrix before, by the default engine, with the
  median number of pivots; `not_slower` is the share of matrices that take at most 1 / 0.97 times as
  long as the faster cold engine, `worst` the least of cold time over warm time;
- `warm_highs_s`: the dual simplex method of HiGHS from its basis for the matrix before
  (`lp-all:warm=true`);
- `batch_cpu_s`, `batch_interior_cpu_s`: CPU time of a matrix if all are solved in one call, by the
  default engine and by interior points.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import torch
from timing import time_series

import teal
from baselines.linear_program import LpSettings
from baselines.warm_lp import WarmLp

NETWORKS = (
    ("b4", 2),
    ("b4", 6),
    ("topohub:sndlib/abilene", 4),
    ("topohub:sndlib/geant", 2),
    ("topohub:sndlib/geant", 4),
    ("topohub:sndlib/nobel-eu", 4),
    ("topohub:topozoo/Darkstrand", 4),
    ("topohub:topozoo/Sunet", 4),
    ("topohub:gabriel/25/1", 4),
    ("topohub:sndlib/cost266", 4),
    ("topohub:sndlib/germany50", 2),
    ("topohub:sndlib/germany50", 6),
    ("topohub:gabriel/60/8", 6),
)
GAP = 1e-6
NOT_SLOWER = 0.97
COLUMNS = (
    "network",
    "load",
    "links",
    "paths",
    "cold_interior_s",
    "cold_pdhg_s",
    "warm_s",
    "pivots",
    "not_slower",
    "worst",
    "warm_highs_s",
    "batch_cpu_s",
    "batch_interior_cpu_s",
    "gap",
)


def timed(
    call: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Any]:
    """Return the median seconds of repeated calls, and the last result.

    Args:
        call: the call, warmed up.
        repeats: number of calls.
        clock: returns the present time, s.
    """
    seconds = []
    for _ in range(repeats):
        begin = clock()
        result = call()
        seconds.append(clock() - begin)
    return statistics.median(seconds), result


def solve(problem: teal.Problem, **options: Any) -> Any:
    """Solve a problem to the target gap without a model."""
    return teal.solve(problem, gap=GAP, model=None, **options)


def one_by_one(problems: list[teal.Problem], repeats: int) -> dict[str, float]:
    """Return the columns of the ways that solve one matrix a call; the first matrix is the warm-up.

    Args:
        problems: problems of one matrix each, in time order.
        repeats: number of calls for each matrix.
    """
    engine_by_column = {"cold_interior_s": "interior", "cold_pdhg_s": "fused", "warm_s": "auto"}
    seconds: dict[str, list[float]] = {column: [] for column in engine_by_column}
    pivots = []
    gap = 0.0
    # Compile cold and warm solves; the result starts the first warm solve.
    result = solve(problems[0], warm_start=solve(problems[0]))
    for index, problem in enumerate(problems):
        previous = result
        # The warm start comes last, so that its result is the next warm start.
        for column, engine in engine_by_column.items():
            start = previous if column == "warm_s" else None

            def call(problem: Any = problem, engine: str = engine, start: Any = start) -> Any:
                return solve(problem, engine=engine, warm_start=start)

            wall_s, result = timed(call, repeats)
            if index > 0:
                seconds[column].append(wall_s)
                gap = max(gap, float(result.gap.max()))
        pivots.append(result.iterations)
    # Time of the faster cold engine over that of the warm start, for each matrix.
    cold = map(min, seconds["cold_interior_s"], seconds["cold_pdhg_s"])
    ratios = [cold_s / warm_s for cold_s, warm_s in zip(cold, seconds["warm_s"], strict=True)]
    return {
        **{column: statistics.median(seconds[column]) for column in engine_by_column},
        "pivots": statistics.median(pivots[1:]),
        "not_slower": sum(ratio >= NOT_SLOWER for ratio in ratios) / len(ratios),
        "worst": min(ratios),
        "gap": gap,
    }


def all_at_once(problem: teal.Problem, engine: str, repeats: int) -> float:
    """Return the CPU seconds of a matrix if all are solved in one call.

    Args:
        problem: all matrices.
        engine: name of the engine.
        repeats: number of calls.
    """
    solve(problem, engine=engine)
    cpu_s, _ = timed(lambda: solve(problem, engine=engine), repeats, time.process_time)
    return cpu_s / problem.batch


def main() -> None:
    """Write OUT/bases.csv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=32, help="matrices of a series")
    parser.add_argument("--repeats", type=int, default=3, help="calls for each matrix")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    with (arguments.out / "bases.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for name, load in NETWORKS:
            topology = teal.load_topology(name)
            source = f"gravity:seed=1,count={arguments.count},load={load}"
            traffic = teal.load_traffic(source, topology)
            paths = teal.compute_paths(topology, traffic.pairs)
            matrices = traffic.read(list(range(arguments.count)))
            problem = teal.Problem.create(topology, paths, "total_flow", matrices)
            problems = [problem.row(row) for row in range(problem.batch)]
            highs = WarmLp(LpSettings(threads=1))
            row = {
                "network": topology.name,
                "load": load,
                "links": topology.num_links,
                "paths": int(paths.mask.sum()),
                **one_by_one(problems, arguments.repeats),
                "warm_highs_s": time_series(highs.solve, problems).seconds,
                "batch_cpu_s": all_at_once(problem, "auto", arguments.repeats),
                "batch_interior_cpu_s": all_at_once(problem, "interior", arguments.repeats),
            }
            writer.writerow(row)
            stream.flush()
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
