"""Whether a model that is trained with fewer digits in its products is another one than another
seed gives.

    python benchmarks/precision.py --out precision.csv

The linear maps of FlowGNN are computed in float32 (23 bits of mantissa) and as a GPU computes them
with TF32 (10 bits of inputs) and bfloat16 (7 bits of inputs and results), with their gradients.
The last two are emulated by rounding on a CPU, so that the figures are of quality and not of time.
A summary of the share that is carried stands beside: the change of the mean over the seeds, and the
range of the seeds in float32.
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
from teal.learning.settings import TrainConfig
from teal.learning.train import Trainer
from teal.runtime.progress import progress_bar

NETWORK = "topohub:sndlib/geant"
LOAD = 6
MATRICES = 200
SEEDS = range(3)
STARTS = {"random weights": "none", "the model that comes with Teal": ""}
# Bits of the mantissa of inputs, and of results.
PRECISIONS = {"float32": (23, 23), "tf32": (10, 23), "bfloat16": (7, 7)}
_FLOAT32_BITS = 23


def rounded(numbers: Tensor, bits: int) -> Tensor:
    """Numbers to a mantissa of ``bits`` bits, halves away from 0."""
    cut = _FLOAT32_BITS - bits
    if not cut:
        return numbers
    rounded_bits = numbers.contiguous().view(torch.int32) + (1 << (cut - 1))
    return ((rounded_bits >> cut) << cut).view(torch.float32)


class _Linear(torch.autograd.Function):
    """x w^T + b with rounded factors and results."""

    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor, b: Tensor | None, bits: Any) -> Tensor:
        factors, results = bits
        x = rounded(x, factors)
        w = rounded(w, factors)
        context.save_for_backward(x, w)
        context.bits = bits
        product = x @ w.T
        return rounded(product if b is None else product + b, results)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> Any:
        x, w = context.saved_tensors
        factors, results = context.bits
        slope = rounded(slopes[0], factors)
        flat = slope.flatten(0, -2)
        of_x = rounded(slope @ w, results) if context.needs_input_grad[0] else None
        of_w = rounded(flat.T @ x.flatten(0, -2), results)
        return of_x, of_w, flat.sum(0) if context.needs_input_grad[2] else None, None


@contextmanager
def computed_in(precision: str) -> Iterator[None]:
    """Linear maps in a precision."""
    bits = PRECISIONS[precision]

    def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return _Linear.apply(x, w, b, bits)

    with patch.object(torch.nn.functional, "linear", linear):
        yield


def scores(start: str, precision: str, seed: int, steps: int) -> tuple[float, float]:
    """The share that the trained model carries and its certified gap, in float32."""
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
            trainer.optimiser.rate = config.rate * min(
                1, 10 * (step + 1) / steps, 2 - 2 * step / steps
            )
            trainer.one_step()
            trainer.state.step += 1
    return tuple(trainer.score())  # type: ignore[return-value]


def summary(file: Path) -> pd.DataFrame:
    """The changes by precision and by seed, of the share that is carried."""
    columns = ["start", "precision", "seed"]
    scores = pd.read_csv(file).set_index(columns)["carried"].sort_index()
    differences = []
    for start in STARTS:
        full_precision = scores[start, "float32"]
        differences.append(
            (f"{start}: range of seeds", full_precision.max() - full_precision.min())
        )
        for precision in ("tf32", "bfloat16"):
            change = abs(scores[start, precision].mean() - full_precision.mean())
            differences.append((f"{start}: change by {precision}", change))
    return pd.DataFrame(differences, columns=["what", "value"])


def main() -> None:
    """Train, and write the scores."""
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
            carried, gap = scores(STARTS[name], precision, seed, options.steps)
            writer.writerow((name, precision, seed, f"{carried:.6f}", f"{gap:.6f}"))
            file.flush()
    summary(options.out).to_csv(options.out.with_stem(f"{options.out.stem}-summary"), index=False)


if __name__ == "__main__":
    main()
