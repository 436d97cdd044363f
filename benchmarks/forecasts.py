"""Compare a forecaster trained through the optimisation with one trained on its error, and with
the allocators of ``teal next-interval`` (hedges).

    python benchmarks/forecasts.py --data FOLDER --out FILE.csv [--carried 0.85] [--intervals 200] [--steps 400]

On Abilene and GEANT as SNDlib publishes them, scaled so that the optimum carries ``--carried`` of
the demand.  The forecast of demand d is (phi[d] newest + (1 - phi[d]) mean of the last 12)
factor[d], with phi and factor fitted by Adam on random matrices of the first 70%: on the squared
error of the rates, or on what arrives of the next matrix under ``teal.smooth_splits`` of the
forecast.  Both then allocate for the first matrices of the rest, by the smooth splits and by the
optimum of the forecast, beside the optimum of the last matrix, ``residual144`` and ``mixture``; the
measure is that of ``teal next-interval`` under total_flow: what an allocation carries of the
optimum of the interval.  FILE.csv has a row for each series and hedge: the mean over the seeds of
the fit, the lowest mean of a seed, and the worst interval of all.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from public_data import published
from torch import Tensor, nn

import teal
from teal.app.instance import Instance, calibration_factor
from teal_next.evaluation import NextInterval
from teal_study.learning.losses import reward

SERIES = {
    "Abilene": ("abilene.xml", "directed-abilene-zhang-5min-over-6months-ALL.tgz"),
    "GEANT": ("geant.xml", "directed-geant-uhlig-15min-over-4months-ALL.tgz"),
}
WINDOW = 12  # matrices from which the next one is forecast
WARM_UP = 100  # intervals before the first measured one, in which hedges learn
SEED = ", seed "  # between the name of a hedge and the seed of its fit
TEMPERATURE = 0.02  # temperature of the smooth splits, over the value of a Gbit/s
BATCH = 16  # matrices of a step of the fit
LEARNING_RATE = 0.02  # of Adam


class Forecaster(nn.Module):
    """Forecast of each demand: a mean of its newest and its average rate, times a factor.

    Args:
        demands: number of demands, D; each has a weight phi of the newest rate, and a factor.
    """

    def __init__(self, demands: int) -> None:
        super().__init__()
        self.logit_phi = nn.Parameter(torch.full((demands,), 2.0))
        self.log_factor = nn.Parameter(torch.zeros(demands))
        self.double()

    def forward(self, past_rates: Tensor) -> Tensor:
        """Return the forecast of the next matrix, (B, D) Gbit/s.

        Args:
            past_rates: last matrices, oldest first, (B, WINDOW, D) Gbit/s.
        """
        phi = torch.sigmoid(self.logit_phi)
        return (phi * past_rates[:, -1] + (1 - phi) * past_rates.mean(1)) * self.log_factor.exp()


Allocate = Callable[[teal.Problem], Tensor]


def smooth(forecast: teal.Problem) -> Tensor:
    """Return the smooth splits (B, D, K) of a problem: the optimum with an entropy term."""
    return teal.smooth_splits(forecast, forecast.demand, temperature=TEMPERATURE)


def optimum(forecast: teal.Problem) -> Tensor:
    """Return the optimal splits (B, D, K) of a problem, to a gap of 0.1%."""
    return teal.solve(forecast, gap=1e-3).splits


class ForecastHedge:
    """Allocator for the next interval: forecasts its matrix, and allocates for the forecast.

    Args:
        model: the forecaster.
        allocate: gives the splits of the problem with the forecast demand.
    """

    def __init__(self, model: Forecaster, allocate: Allocate) -> None:
        self.model = model
        self.allocate_for = allocate

    @torch.no_grad()
    def allocate(self, past: teal.Past) -> Tensor:
        """Return the splits (D, K) for the interval after the known matrices."""
        last_rates = torch.from_numpy(
            past.traffic.read(np.arange(past.num_known - WINDOW, past.num_known))
        )
        return self.allocate_for(past.network.with_demand(self.model(last_rates[None])))[0]


def fit_forecaster(
    network: teal.Problem, demand: Tensor, is_decision_focused: bool, steps: int, seed: int
) -> Forecaster:
    """Return a forecaster fitted to matrices by Adam.

    Args:
        network: problem of the network and its paths.
        demand: matrices of the training, (T, D) Gbit/s.
        is_decision_focused: whether to train through the optimisation, so that the most
            arrives of the next matrix under the forecast's smooth splits; otherwise the relative
            squared error of the forecast is minimised.
        steps: number of optimiser steps.
        seed: seed of the choice of matrices.
    """
    rng = np.random.default_rng(seed)
    model = Forecaster(demand.shape[1])
    adam = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    for _ in range(steps):
        rows = rng.choice(np.arange(WINDOW, len(demand)), BATCH, replace=False)
        forecast = model(torch.stack([demand[row - WINDOW : row] for row in rows]))
        next_demand = demand[rows]
        if is_decision_focused:
            splits = teal.smooth_splits(network, forecast, temperature=TEMPERATURE)
            loss = -reward(network.with_demand(next_demand), splits).mean()
        else:
            loss = ((forecast - next_demand).square().sum(1) / next_demand.square().sum(1)).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model


def main() -> None:
    """Measure all hedges (allocators for the next interval) on both traffic series, and write a
    row for each series and hedge.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--carried", type=float, default=0.85, help="share of the demand that the optimum carries"
    )
    parser.add_argument("--intervals", type=int, default=200)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for series, (network, matrices) in SERIES.items():
        rows += measure_hedges(
            series, published(options.data, network), published(options.data, matrices), options
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def measure_hedges(
    series: str, network: Path, matrices: Path, options: argparse.Namespace
) -> list[dict[str, object]]:
    """Measure all hedges on a series; return a row of the table for each.

    Args:
        series: name of the series.
        network: file of the topology.
        matrices: file of the traffic.
        options: options of the command line.
    """
    topology = teal.load_topology(network)
    traffic = teal.load_traffic(str(matrices), topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    split = traffic.split()
    traffic = traffic.scaled(
        calibration_factor(topology, paths, traffic, split.train, options.carried)
    )
    instance = Instance(
        topology, traffic, paths, teal.Objective(), None, split, torch.device("cpu")
    )
    training_rates = torch.from_numpy(traffic.read(split.train))
    training_rates = training_rates[training_rates.sum(1) > 0]
    base = instance.problem(training_rates[:1].numpy())
    hedges: dict[str, teal.Hedge] = {
        "optimum of the last matrix": teal.make_hedge("pdhg:gap=0.001"),
        "residual144": teal.make_hedge("residual144"),
        "mixture": teal.make_hedge("mixture"),
    }
    # Two forecasters for each seed, each with both allocations.
    for seed in range(options.seeds):
        for trained, is_decision_focused in (("squared error", False), ("what arrives", True)):
            model = fit_forecaster(base, training_rates, is_decision_focused, options.steps, seed)
            for name, allocate in (("smooth splits", smooth), ("optimum", optimum)):
                hedges[f"forecast fitted on {trained}, {name}{SEED}{seed}"] = ForecastHedge(
                    model, allocate
                )
    # Measure on the matrices after the training part.
    first = len(split.train)
    ratios: dict[str, list[float]] = {name: [] for name in hedges}
    stop = min(first + options.intervals, traffic.num_matrices)
    intervals = NextInterval(instance, hedges, lookback=1000).run(range(first, stop), WARM_UP)
    for row in (row for rows in intervals for row in rows):
        ratios[row.scheme].append(row.ratio)
    # Join the seeds of each hedge.
    ratios_of_hedge: dict[str, list[list[float]]] = {}
    for name, values in ratios.items():
        ratios_of_hedge.setdefault(name.partition(SEED)[0], []).append(values)
    return [row_of(series, name, values) for name, values in ratios_of_hedge.items()]


def row_of(series: str, hedge: str, seeds: list[list[float]]) -> dict[str, object]:
    """Return and print the row of a hedge on a series.

    Args:
        series: name of the series.
        hedge: name of the hedge.
        seeds: for each seed, the share of the optimum that arrived in each interval.
    """
    means = [float(np.mean(values)) for values in seeds]
    row: dict[str, object] = {
        "series": series,
        "hedge": hedge,
        "intervals": len(seeds[0]),
        "seeds": len(seeds),
        "mean": float(np.mean(means)),
        "lowest": min(means),
        "worst": float(np.min(seeds)),
    }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
