"""Count the host's GPU launches and waits in solves, allocations and training steps.

    python benchmarks/launches.py --out launches.csv

Counted without a GPU, on a stand-in for torch's (``tests/stand_in_gpu.py``) and in numba-cuda's
simulator, with CUDA graphs and without; on a network of four nodes, since the simulator takes a
tenth of a second for an iteration.  The first runs compile kernels and record graphs; a later run
is counted.
"""

from __future__ import annotations

import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # before Numba is imported

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates
from teal.nn.checkpoint import new_flow_model
from teal.nn.flow_gnn_config import UNIVERSAL, FlowGnnConfig
from teal.nn.price_gnn import PriceGNN, PriceGnnConfig
from teal.problem import Problem
from teal.runtime.progress import progress_bar
from teal.schemes.flow_gnn import FlowGnnScheme
from teal.schemes.price_gnn import PriceGnnScheme
from teal.solvers import pipeline
from teal.testing import random_problem
from teal_study.learning.settings import TrainConfig
from teal_study.learning.train import Trainer
from tests.stand_in_gpu import RecordedGraph, stand_in_gpu

GAP = 0.01  # certified gap of a solve
_MATRICES = 20  # number of matrices of a training
_SWITCH_S = 1e-4  # switch interval of Python's threads: the simulator's wait for each other
# Factors of the demand in the runs that record all graphs, and in the run that is counted.
_WARM_UP_FACTORS = (1.0, 1.1, 1.2, 1.3)
_COUNTED_FACTOR = 1.25
Workload = Callable[[float], object]  # takes a factor of the demand


class Counts(NamedTuple):
    """Numbers of the host's launches, graph replays and waits in one run.

    Attributes:
        launches: number of kernels and copies that the host starts one by one.
        replays: number of recorded graphs that it starts.
        waits: number of values that it reads from the GPU, and of tensors that it copies.
    """

    launches: int
    replays: int
    waits: int


def network(failed: int = 0) -> Problem:
    """Return the problem of one matrix on four nodes, on the stand-in for a GPU.

    Args:
        failed: number of failed links.
    """
    base = random_problem(1, num_paths=3, failed=failed, idle=0.0, nodes=4, density=0.7, batch=1)
    return Problem.create(
        base.topology,
        base.paths,
        base.objective,
        1.5 * base.demand.numpy(),
        capacity=base.capacity.numpy(),
        device="cuda",
        backend="cuda",
    )


def cold_solve(failed: int = 0) -> Workload:
    """Return a function that scales all demands by its argument, and solves cold to a gap of 1%.

    Args:
        failed: number of failed links.
    """
    problem = network(failed)
    return lambda factor: pipeline.solve(problem.with_demand(factor * problem.demand), gap=GAP)


def warm_solve() -> Workload:
    """Return a function that scales all demands by its argument, and solves from the result for
    other demands.
    """
    problem = network()
    start = pipeline.solve(problem, gap=GAP)
    return lambda factor: pipeline.solve(
        problem.with_demand(factor * problem.demand), gap=GAP, warm_start=start
    )


def scheme_teal() -> Workload:
    """Return a solve by the scheme teal (FlowGNN, ADMM, projection, bounds), as a function of the
    factor of the demand.
    """
    problem = network()
    model = new_flow_model(FlowGnnConfig(6, 1, 4, UNIVERSAL)).to("cuda")
    scheme = FlowGnnScheme(model)
    return lambda factor: scheme.solve(problem.with_demand(factor * problem.demand))


def pass_of_price_gnn() -> Workload:
    """Return PriceGNN's computation of starting splits and prices, as a function of the factor of
    the demand.
    """
    problem = network()
    scheme = PriceGnnScheme(PriceGNN(PriceGnnConfig(8, 2, 2)).to("cuda"))
    return lambda factor: scheme.start(problem.with_demand(factor * problem.demand))


def training_step(learner: str) -> Workload:
    """Return an optimiser step of the training of a small FlowGNN: gradients, clipping, and Adam.

    Args:
        learner: learner of the training, such as "direct".
    """
    problem = network()
    rng = np.random.default_rng(1)
    rates = problem.demand.cpu().numpy() * rng.uniform(
        0.3, 3, (_MATRICES, problem.paths.num_demands)
    )
    times = np.arange(_MATRICES).astype("datetime64[s]")
    traffic = TrafficMatrices("made", problem.paths.pairs, times, ArrayRates(rates), 1)
    config = TrainConfig(
        topology="-",
        traffic="-",
        out=Path("never-written"),
        from_="none:layers=2,width=4",
        learner=learner,
        batch_size=2,
    )
    trainer = Trainer(problem, traffic, traffic.split(), config)

    def step(_: float) -> None:
        trainer.one_step()
        trainer.state.step += 1

    return step


# Each work to count: its name, and the function that prepares it.
WORKLOADS: dict[str, Callable[[], Workload]] = {
    "solve from nothing": cold_solve,
    "solve from an earlier result": warm_solve,
    "solve with a failed link": lambda: cold_solve(failed=1),
    "scheme teal": scheme_teal,
    "pass of PriceGNN": pass_of_price_gnn,
    "training step": lambda: training_step("direct"),
    "training step of COMA*": lambda: training_step("coma:samples=1,episodes=1"),
}


def count_run(make: Callable[[], Workload], *, with_graphs: bool) -> Counts:
    """Prepare a workload, run it until all graphs are recorded, and count one more run.

    Args:
        make: prepares the work on the stand-in for a GPU.
        with_graphs: whether graphs are replayed; otherwise their kernels are launched one by one.
    """
    torch.manual_seed(0)
    launch_one_by_one = patch.object(RecordedGraph, "run", lambda _, workload: workload())
    # Adam uses torch's foreach kernels, as on a GPU.
    foreach_adam = patch.object(
        sys.modules["torch.optim.adam"],
        "_default_to_fused_or_foreach",
        lambda *_, **__: (False, True),
    )
    with (
        stand_in_gpu(has_kernels=True) as counts,
        foreach_adam,
        nullcontext() if with_graphs else launch_one_by_one,
    ):
        workload = make()
        # Each run multiplies the demands by a factor.
        for factor in _WARM_UP_FACTORS:
            workload(factor)
        counts.clear()
        workload(_COUNTED_FACTOR)
        return _counts(counts)


def _counts(counts: Counter[str]) -> Counts:
    """Return launches, replays and waits from the stand-in's counts of events."""
    waits = counts["read"] + counts["copied"] + counts["uploaded"]
    return Counts(counts["launched"], counts["replayed"], waits)


def main() -> None:
    """Count every work without and with graphs, and write a row for each to the CSV file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("launches.csv"), help="file of the rows")
    options = parser.parse_args()
    sys.setswitchinterval(_SWITCH_S)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("work", "launches without graphs", *Counts._fields))
        for name, make in progress_bar(list(WORKLOADS.items()), desc="works"):
            alone = count_run(make, with_graphs=False)
            writer.writerow((name, alone.launches, *count_run(make, with_graphs=True)))
            file.flush()


if __name__ == "__main__":
    main()
