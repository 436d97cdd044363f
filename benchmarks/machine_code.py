"""Compare the package's machine code with native machine code: times of whole solves, in turn.

    python benchmarks/machine_code.py --data FOLDER [--rounds 5] [--native runs/native] [--out runs/machine-code.csv]

Each round runs a process with the package's machine code (`python -m teal.app.machine_code` makes
it in a checkout), one with kernels that Numba compiled for this processor, kept in the folder of
`--native`, and, where the processor has AVX-512, one with the package's code for AVX2, which
machines without AVX-512 run.  A process measures the median time of a solve; the table has the
median of the rounds, and the median ratio to native code of the same round.  Nothing else should
run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
from public_data import published

# Name: source of the topology, load of the gravity traffic, and number of timed solves.
NETWORKS = {
    "b4": ("b4", 6, 300),
    "geant": ("topohub:sndlib/geant", 4, 150),
    "UsCarrier": ("UsCarrier.json", 6, 60),
    "Kdl": ("Kdl.json", 6, 20),
}
# Program of each process: prints the median times, ms, as JSON.
_MEASURE = """
import json, statistics, sys, time
import teal
from teal.runtime import kernel_cache

found = {}
for name, (place, load, times) in json.loads(sys.argv[1]).items():
    topology = teal.load_topology(place)
    traffic = teal.load_traffic(f"gravity:seed=0,count=16,load={load}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    rates = traffic.read(slice(None))
    for count, gap in ((1, 0.01), (1, 0.001), (16, 0.01)):
        if count > 1 and name == "Kdl":
            continue
        problem = teal.Problem.create(topology, paths, teal.Objective(), rates[:count])
        seconds = []
        for _ in range(max(8, times // count) + 2):
            begin = time.perf_counter()
            teal.solve(problem, gap=gap)
            seconds.append(time.perf_counter() - begin)
        found[f"{name} {count} {gap}"] = 1e3 * statistics.median(seconds[2:])
found["compiled"] = kernel_cache.num_compiled()
print(json.dumps(found))
"""


def solve_times_ms(networks: str, **settings: str) -> dict[str, float]:
    """Return the median times of solves in a new process, ms, by "NETWORK MATRICES GAP".

    The result also has the number of kernels that the process compiled, as "compiled".

    Args:
        networks: source, load and number of solves of each network, as JSON.
        settings: environment variables of the process.
    """
    command = [sys.executable, "-c", _MEASURE, networks]
    environment = os.environ | settings
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    times_by_case: dict[str, float] = json.loads(completed.stdout.splitlines()[-1])
    return times_by_case


def measure_rounds(
    networks: str, native_folder: Path, num_rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Return the times of each round, in ms by case, of each variant of the machine code.

    Args:
        networks: source, load and number of solves of each network, as JSON.
        native_folder: folder of the kernels that Numba compiles for this processor.
        num_rounds: rounds, each with one process for each variant.
    """
    from teal.runtime.shipped_kernels import levels, settings_of

    native = {"NUMBA_CACHE_DIR": str(native_folder), "TEAL_SHIPPED_KERNELS": "0"}
    # The first process compiles the native kernels.
    solve_times_ms(networks, **native)
    rounds: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as empty:
        package = {"NUMBA_CACHE_DIR": empty, "TEAL_SHIPPED_KERNELS": "1"}
        variants = {"native": native, "package": package}
        if len(levels()) > 1:
            variants["AVX2"] = {**package, **settings_of(levels()[-1])}
        for number in range(num_rounds):
            for variant, settings in variants.items():
                times_by_case = solve_times_ms(networks, **settings)
                num_compiled = times_by_case.pop("compiled")
                rounds.setdefault(variant, []).append(times_by_case)
                print(
                    f"round {number + 1}: {variant}, {num_compiled:.0f} forms compiled", flush=True
                )
    return rounds


def table_row(case: str, rounds: dict[str, list[dict[str, float]]]) -> dict[str, str]:
    """Return the median time of each variant in a case, and its median ratio to native code of the
    same round.

    Args:
        case: "NETWORK MATRICES GAP".
        rounds: for each variant of the code, the times of each round in ms, by case.
    """
    network, count, gap = case.split()
    row = {"network": network, "matrices": count, "gap": f"{100 * float(gap):g}%"}
    for variant, variant_rounds in rounds.items():
        times = [times_by_case[case] for times_by_case in variant_rounds]
        native_times = [times_by_case[case] for times_by_case in rounds["native"]]
        ratios = [time / native for time, native in zip(times, native_times, strict=True)]
        row[f"{variant}_ms"] = f"{statistics.median(times):.4g}"
        row[f"{variant}_ratio"] = f"{statistics.median(ratios):.2f}"
    return row


def main() -> None:
    """Measure all variants of the machine code; print the table and write it to the CSV file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("."))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--native", type=Path, default=Path("runs/native"))
    parser.add_argument("--out", type=Path, default=Path("runs/machine-code.csv"))
    options = parser.parse_args()
    networks = {
        name: (
            str(published(options.data, source)) if source.endswith(".json") else source,
            load,
            count,
        )
        for name, (source, load, count) in NETWORKS.items()
    }
    rounds = measure_rounds(json.dumps(networks), options.native, options.rounds)
    rows = [table_row(case, rounds) for case in rounds["native"][0]]
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out, index=False)


if __name__ == "__main__":
    main()
