"""Compare the effect of reduced precision in the training of FlowGNN with the effect of its seed.

    python benchmarks/precision.py --out precision.csv

The linear maps of FlowGNN are computed in float32 (23 bits of mantissa) and as a GPU computes them
with TF32 (10 bits of inputs) and bfloat16 (7 bits of inputs and results), with their gradients. The
last two are emulated by rounding on a CPU, so the figures measure quality and not time.  A second
file, precision-summary.csv, compares the carried share: the change of its mean over the seeds by
each precision, and its range over the seeds in float32.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from torch import Tensor

import teal
from teal.runtime.progress import progress_bar
from teal_study.learning.settings import TrainConfig
from teal_study.learning.train import Trainer

NETWORK = "topohub:sndlib/geant"
LOAD = 6
MATRICES = 200
SEEDS = range(3)
# Start of the training: the option ``from_``.
STARTS = {"random weights": "none", "the model that comes with Teal": ""}
# Bits of the mantissa of the inputs of a linear map, and of its results.
PRECISIONS = {"float32": (23, 23), "tf32": (10, 23), "bfloat16": (7, 7)}
_FLOAT32_BITS = 23


def rounded(numbers: Tensor, bits: int) -> Tensor:
    """Return float32 numbers rounded to a mantissa of ``bits`` bits, halves away from 0."""
    # Add half of the last kept bit, then clear the lower bits.
    num_dropped_bits = _FLOAT32_BITS - bits
    if not num_dropped_bits:
        return numbers
    rounded_bits = numbers.contiguous().view(torch.int32) + (1 << (num_dropped_bits - 1))
    return ((rounded_bits >> num_dropped_bits) << num_dropped_bits).view(torch.float32)


class _Linear(torch.autograd.Function):
    """Linear map x w^T + b with rounded inputs and results, and its gradients in this precision."""

    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor, b: Tensor | None, bits: Any) -> Tensor:
        """Return x w^T + b, rounded; ``bits`` are the mantissa bits of inputs and of results."""
        input_bits, result_bits = bits
        x = rounded(x, input_bits)
        w = rounded(w, input_bits)
        context.save_for_backward(x, w)
        context.bits = bits
        product = x @ w.T
        return rounded(product if b is None else product + b, result_bits)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> Any:
        """Return the gradients with respect to x, w and b, and None for ``bits``."""
        x, w = context.saved_tensors
        input_bits, result_bits = context.bits
        slope = rounded(slopes[0], input_bits)
        flat = slope.flatten(0, -2)
        x_gradient = rounded(slope @ w, result_bits) if context.needs_input_grad[0] else None
        w_gradient = rounded(flat.T @ x.flatten(0, -2), result_bits)
        return x_gradient, w_gradient, flat.sum(0) if context.needs_input_grad[2] else None, None


@contextmanager
def computed_in(precision: str) -> Iterator[None]:
    """Compute all linear maps of torch in a precision of :data:`PRECISIONS` during the block."""
    bits = PRECISIONS[precision]

    def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return _Linear.apply(x, w, b, bits)

    with patch.object(torch.nn.functional, "linear", linear):
        yield


def train_and_score(start: str, precision: str, seed: int, steps: int) -> tuple[float, float]:
    """Train FlowGNN on GEANT in a precision; return the trained model's mean share of the demand
    carried and its mean certified gap, both computed in float32.

    Args:
        start: option ``from_`` of the training.
        precision: key of :data:`PRECISIONS`.
        seed: seed of the training.
        steps: number of optimiser steps.
    """
    topology = teal.load_topology(NETWORK)
    traffic = teal.load_traffic(f"gravity:seed=0,count={MATRICES},load={LOAD}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0]))
    config = TrainConfig(
        topology=NETWORK,
        traffic="-",
        out=Path("never-written"),
        seed=seed,
        from_=start,
        max_steps=steps,
    )
    trainer = Trainer(problem, traffic, traffic.split(), config)
    with computed_in(precision):
        for step in range(steps):
            # The learning rate rises over the first tenth, and falls to 0 over the second half.
            trainer.optimiser.rate = config.rate * min(
                1, 10 * (step + 1) / steps, 2 - 2 * step / steps
            )
            trainer.one_step()
            trainer.state.step += 1
    return tuple(trainer.score())  # type: ignore[return-value]


def summary(file: Path) -> pd.DataFrame:
    """Return the differences of the carried share: for each start, its range over the seeds in
    float32, and the change of its mean by each other precision.

    Args:
        file: precision.csv.
    """
    columns = ["start", "precision", "seed"]
    carried_shares = pd.read_csv(file).set_index(columns)["carried"].sort_index()
    differences = []
    for start in STARTS:
        full_precision = carried_shares[start, "float32"]
        differences.append(
            (f"{start}: range of seeds", full_precision.max() - full_precision.min())
        )
        for precision in ("tf32", "bfloat16"):
            change = abs(carried_shares[start, precision].mean() - full_precision.mean())
            differences.append((f"{start}: change by {precision}", change))
    return pd.DataFrame(differences, columns=["what", "value"])


def main() -> None:
    """Train with every start, precision and seed; write the scores and their summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("precision.csv"), help="file of the rows")
    parser.add_argument("--steps", type=int, default=200, help="optimiser steps of a training")
    options = parser.parse_args()
    runs = [
        (name, precision, seed) for name in STARTS for precision in PRECISIONS for seed in SEEDS
    ]
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("start", "precision", "seed", "carried", "gap"))
        for name, precision, seed in progress_bar(runs, desc="training"):
            carried, gap = train_and_score(STARTS[name], precision, seed, options.steps)
            writer.writerow((name, precision, seed, f"{carried:.6f}", f"{gap:.6f}"))
            file.flush()
    summary(options.out).to_csv(options.out.with_stem(f"{options.out.stem}-summary"), index=False)


if __name__ == "__main__":
    main()
