"""Compare the matrices and the worst failure that Teal estimates from an ISP's counters with the
true traffic, over several seeds.

    python -m benchmarks.first_afternoon --out docs/figures/first-afternoon.csv

The files are those of `tests/isp.py`: 58 routers, 1,980 demands, twelve hours of counters of which
one interface in ten is wrong and one reading in fifty is missing; no history.  Columns: seed; nmae
(the sum of |estimate - rate| over that of the rates); utilisations of the fullest link without
failure, and under the worst failure of a cable, by the estimated matrices and by the true ones.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
from pathlib import Path
from typing import Any

import teal
from teal_ip.counters.commands import run_estimate
from teal_ip.counters.settings import EstimateConfig
from teal_ip.routing.settings import SimulateConfig
from teal_ip.routing.simulate_command import run_simulate
from tests import isp

# Relative error of the counters: where polls are missing, counters of intervals of different
# lengths are compared.
COUNTER_ERROR = 0.02


def measure(seed: int) -> dict[str, Any]:
    """Estimate and simulate one network; return its row of the table, by column.

    Args:
        seed: seed of the network, the traffic and the faults of the counters.
    """
    with tempfile.TemporaryDirectory() as folder:
        # The commands read and write files of the present folder.
        os.chdir(folder)
        inputs = isp.write(Path(folder), seed)
        files: dict[str, Any] = {"topology": "links.csv", "routers": Path("routers.csv")}
        run_estimate(
            EstimateConfig(
                **files,
                counters=Path("counters.csv"),
                interfaces=Path("interfaces.csv"),
                out=Path("est"),
                ignore_interfaces=r"lo\d+|Loopback\d+",
                counter_error=COUNTER_ERROR,
            ),
            lambda _: None,
        )
        topology = teal.load_topology("links.csv", routers="routers.csv")
        estimated_traffic = teal.load_traffic("est/matrices.npz", topology)
        row: dict[str, Any] = {"seed": seed, "nmae": isp.error(inputs, topology, estimated_traffic)}
        # The worst failure of a cable under the estimated and under the true matrices.
        for name, traffic in (("estimated", "est/matrices.npz"), ("true", "truth.csv")):
            config = SimulateConfig(**files, traffic=traffic, failures=("cables",))
            result = run_simulate(config, lambda _: None)
            row[f"{name}_utilisation"] = result.worst_matrix.utilisation
            row[f"{name}_worst_failure"] = result.failures[0].utilisation
    return row


def main() -> None:
    """Measure the networks of all seeds, and write a row for each to the CSV file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    rows = []
    for seed in range(arguments.seeds):
        rows.append(measure(seed))
        print(rows[-1])
    with out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
