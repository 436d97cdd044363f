"""Measure the peak memory of training on a year of 5-minute matrices of a large network.

    python benchmarks/year_in_memory.py path/to/UsCarrier.json [matrices] [steps]

Generates the matrices once (10 GB in the cache folder for a year of 158 nodes), trains for some
steps in the same process, and prints the peak resident memory after generating and after training.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from teal.app.instance import load_instance
from teal_study.learning.settings import TrainConfig
from teal_study.learning.train import Trainer

_YEAR = 365 * 24 * 12  # matrices, one every 5 minutes


def main(topology: str, matrices: int = _YEAR, steps: int = 20) -> None:
    """Generate the traffic, train on it, and print times and peak memory.

    Args:
        topology: file of the network.
        matrices: number of matrices, one every 5 minutes.
        steps: number of training steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            topology=topology,
            traffic=f"gravity:seed=0,count={matrices},load=4",
            out=Path(folder),
            max_steps=steps,
            num_paths=4,
            validate_every=steps,
            validation_matrices=4,
            time_budget="1h",
        )
        begin = time.perf_counter()
        instance = load_instance(config, print)
        print(f"loaded after {time.perf_counter() - begin:.0f} s, peak {_peak_gib():.2f} GiB")
        problem = instance.problem(instance.traffic.read([0]))
        begin = time.perf_counter()
        Trainer(problem, instance.traffic, instance.split, config).train(Path(folder))
        print(f"{steps} steps in {time.perf_counter() - begin:.0f} s, peak {_peak_gib():.2f} GiB")


def _peak_gib() -> float:
    """Peak resident memory of this process, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
