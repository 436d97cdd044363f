"""Measure the solve of UsCarrier to a certified 1% while busy processes run on the machine.

    python benchmarks/busy_machine.py --data FOLDER [--loops 0,2,4,8] [--repeats 25] [--rounds 2]

FOLDER holds UsCarrier.json.  The script prints median times in ms, measured in turn for three
settings of OpenMP: "usual" with libgomp's default (a waiting thread spins 300,000 times before it
sleeps), "brief" with Teal's spin count (teal/runtime/openmp.py), and "torch first" with Teal's
where torch was imported before Teal.  Each measurement is a process of its own, and so is each busy
loop.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from public_data import published

USUAL_SPIN_COUNT = "300000"  # libgomp's default of GOMP_SPINCOUNT


def measure(file: Path, repeats: int) -> float:
    """Return the median time of a solve to 1% in this process, ms.

    Args:
        file: topology.
        repeats: number of timed solves.
    """
    import teal

    topology = teal.load_topology(str(file))
    traffic = teal.load_traffic("gravity:seed=0,count=1,load=6", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0]))
    teal.solve(problem, gap=0.01)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        teal.solve(problem, gap=0.01)
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def measure_under_load(setting: str, file: Path, loops: int, repeats: int) -> float:
    """Return the median time of a solve in a new process, ms, while busy loops run.

    Args:
        setting: "usual", "brief" or "torch first", as in the module docstring.
        file: topology.
        loops: number of processes that run an endless loop.
        repeats: number of timed solves.
    """
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    if setting == "usual":
        environment["GOMP_SPINCOUNT"] = USUAL_SPIN_COUNT
    first = "import torch; " if setting == "torch first" else ""
    code = f"{first}import sys; sys.argv[0] = ''; import busy_machine; busy_machine.show({str(file)!r}, {repeats})"
    busy_loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)
    ]
    try:
        completed = subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parent,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        for busy_loop in busy_loops:
            busy_loop.kill()
            busy_loop.wait()
    return float(completed.stdout)


def show(file: str, repeats: int) -> None:
    """Print the median time of a solve to 1%, ms; the entry point of the measuring process."""
    print(measure(Path(file), repeats))


def main() -> None:
    """Print a table of the median times by round, OpenMP setting and number of busy loops."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the files that data/README.md names"
    )
    parser.add_argument("--loops", default="0,2,4,8")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    file = published(options.data, "UsCarrier.json").resolve()
    counts = [int(count) for count in options.loops.split(",")]
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'round':5} {'waits':12}" + "".join(f"{count:>4} loops" for count in counts))
    for number in range(options.rounds):
        for setting in ("usual", "brief", "torch first"):
            times = [measure_under_load(setting, file, count, options.repeats) for count in counts]
            print(f"{number:5} {setting:12}" + "".join(f"{ms:10.1f}" for ms in times), flush=True)


if __name__ == "__main__":
    main()
