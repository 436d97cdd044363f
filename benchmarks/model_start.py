"""CPU time to a certified gap: PDHG alone, from a model at once, and from a model where that saves
time.

    python benchmarks/model_start.py --out FOLDER [--networks NAME ...] [--matrices 1] [--repeats 2] [--seed 11]

For each network of topohub, gravity matrices scaled so that the optimum carries each of 50, 70, 85
and 95 percent of the demand; each as it is, from nothing (first), and after it with a fifth of the
demands times 3 (shock), and with 2 percent of the cables failed (failure), where PDHG may also
start from the matrix before (warm); to 1 and 0.1 percent. One thread; the ways take turns, medians
of the repeats.  The controls are a PriceGNN with random weights, and the model's splits with the
optimum's prices off by 20 percent.

The models have seen none of the networks, and the constants that decide when a model is asked were
chosen on others: Germany50, Dfn, and gabriel/40/9, 50/6, 65/5, 70/3 and 125/1 with seed 5.

FOLDER/cases.csv has a row a case, FOLDER/summary.csv the factors (time of the faster of cold and
warm PDHG over time of the way) of the cases with more than 30 iterations from nothing, by kind and
by network, and of the others.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np
import torch
from torch import Tensor

import teal
from teal.schemes.models import load_model
from teal.schemes.price_gnn import PriceGnnScheme
from teal.solvers.pdhg.model_start import ModelStart
from teal.solvers.result import Starter

NETWORKS = (
    "sndlib/geant",
    "topozoo/Geant2012",
    "gabriel/35/3",
    "gabriel/40/6",
    "gabriel/55/8",
    "gabriel/60/8",
    "gabriel/75/9",
    "gabriel/90/7",
)
CARRIED = (0.95, 0.85, 0.7, 0.5)  # share of the demand that the optimum carries
HARD = 30  # iterations from nothing, beyond which a case is counted as hard
WAYS = (
    "pdhg",
    "pdhg warm",
    "price-gnn",
    "price-gnn at once",
    "random weights at once",
    "prices off by 20% at once",
)


@dataclasses.dataclass(frozen=True)
class OtherPrices:
    """The model's splits with other prices; it takes the model's time."""

    model: Starter
    prices: Tensor

    def start(self, problem: teal.Problem) -> tuple[Tensor, Tensor]:
        """Splits and prices."""
        return self.model.start(problem)[0], self.prices


def at_carried(problem: teal.Problem, share: float) -> teal.Problem:
    """The problem with its demands scaled so that the optimum carries ``share`` of them, to a
    hundredth.
    """
    low, high = 1e-3, 1e3
    for _ in range(30):
        scale = (low * high) ** 0.5
        scaled = problem.with_demand(problem.demand * scale)
        carried = float(teal.solve(scaled, gap=1e-3).value) / float(scaled.demand.sum())
        if abs(carried - share) < 0.01:
            break
        low, high = (scale, high) if carried > share else (low, scale)
    return scaled


def cases(
    network: str, matrices: int, seed: int
) -> Iterator[tuple[str, teal.Problem, teal.Problem | None]]:
    """Name, problem, and problem of the matrix before, of each case of a network."""
    topology = teal.load_topology(f"topohub:{network}")
    traffic = teal.load_traffic(f"gravity:seed={seed},count={matrices}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    rng, cables = np.random.default_rng(seed), list(topology.cables())
    for row in range(matrices):
        plain = teal.Problem.create(topology, paths, teal.Objective(), traffic.read([row])).to(
            torch.float64
        )
        for share in CARRIED:
            usual = at_carried(plain, share)
            yield f"{share:.0%}, matrix {row}, first", usual, None
            crowd = torch.from_numpy(np.where(rng.random(usual.demand.shape) < 0.2, 3.0, 1.0))
            yield (
                f"{share:.0%}, matrix {row}, shock",
                usual.with_demand(usual.demand * crowd),
                usual,
            )
            capacity = topology.capacity.copy()
            for cable in rng.choice(len(cables), max(1, len(cables) // 50), replace=False):
                capacity[list(cables[cable])] = 0
            failed = teal.Problem.create(
                topology, paths, teal.Objective(), usual.demand, capacity=capacity[None]
            )
            yield f"{share:.0%}, matrix {row}, failure", failed.to(torch.float64), usual


def timed(call: Callable[[], teal.PdhgResult], gap: float) -> tuple[float, int]:
    """CPU seconds and iterations of a search, which must have reached its target."""
    begin = time.process_time()
    result = call()
    seconds = time.process_time() - begin
    assert float(result.gap) <= gap, "the search has not reached its target"
    return seconds, result.iterations


def main() -> None:
    """Measure, and write both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--matrices", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args()
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    model = load_model("universal")
    scheme = teal.make_scheme("price-gnn:weights=random")
    assert isinstance(scheme, PriceGnnScheme)
    random = PriceGnnScheme(scheme.model)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    with (options.out / "cases.csv").open("w", newline="") as file:
        fields = [
            "network",
            "case",
            "target",
            "iterations",
            *(f"{way} {unit}" for way in WAYS for unit in ("s", "n")),
        ]
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        for network in options.networks:
            for name, problem, before in cases(network, options.matrices, options.seed):
                for target in (1e-2, 1e-3):
                    row = measured(problem, before, target, model, random, options.repeats)
                    rows.append({"network": network, "case": name, "target": target, **row})
                    writer.writerow(rows[-1])
                    file.flush()
            print(network, flush=True)
    with (options.out / "summary.csv").open("w", newline="") as file:
        summary = list(summarised(rows))
        table = csv.DictWriter(file, list(summary[0]))
        table.writeheader()
        table.writerows(summary)
    for line in summary:
        print(line)


def measured(
    problem: teal.Problem,
    before: teal.Problem | None,
    target: float,
    model: Starter,
    random: PriceGnnScheme,
    repeats: int,
) -> dict[str, float]:
    """Times and iterations of every way, and the iterations from nothing."""
    optimum = teal.solve(problem, gap=1e-5)
    off = optimum.prices * torch.from_numpy(
        np.random.default_rng(0).choice([0.8, 1.2], optimum.prices.shape)
    )

    def at_once(starter: Starter) -> Callable[[], teal.PdhgResult]:
        def run() -> teal.PdhgResult:
            gate, ModelStart.saves_time = ModelStart.saves_time, lambda *_: True  # type: ignore[method-assign]
            try:
                return teal.solve(problem, gap=target, starter=starter)
            finally:
                ModelStart.saves_time = gate  # type: ignore[method-assign]

        return run

    ways: dict[str, Callable[[], teal.PdhgResult]] = {
        "pdhg": lambda: teal.solve(problem, gap=target),
        "price-gnn": lambda: teal.solve(problem, gap=target, starter=model),
        "price-gnn at once": at_once(model),
        "random weights at once": at_once(random),
        "prices off by 20% at once": at_once(OtherPrices(model, off)),
    }
    if before is not None:
        state = teal.solve(before, gap=target).state
        ways["pdhg warm"] = lambda: teal.solve(problem, gap=target, warm_start=state)
        ways["price-gnn"] = lambda: teal.solve(problem, gap=target, starter=model, warm_start=state)
    times: dict[str, list[float]] = {way: [] for way in ways}
    iterations: dict[str, int] = {}
    for repeat in range(repeats + 1):
        for way, run in ways.items():
            seconds, iterations[way] = timed(run, target)
            if repeat:  # the first is not counted: it may compile
                times[way].append(seconds)
    row: dict[str, float] = {"iterations": iterations["pdhg"]}
    for way in ways:
        row |= {f"{way} s": statistics.median(times[way]), f"{way} n": iterations[way]}
    return row


def best_without(row: dict[str, object]) -> float:
    """Seconds of the faster of cold and warm PDHG."""
    return min(float(str(row[f"{way} s"])) for way in ("pdhg", "pdhg warm") if f"{way} s" in row)


def summarised(rows: list[dict[str, object]]) -> Iterator[dict[str, object]]:
    """The factors by group of cases, target and way."""

    def is_hard(row: dict[str, object]) -> bool:
        return int(str(row["iterations"])) > HARD

    groups = {f"more than {HARD} iterations": [row for row in rows if is_hard(row)]}
    for kind in ("first", "shock", "failure"):
        groups[f"of them {kind}"] = [
            row for row in rows if is_hard(row) and str(row["case"]).endswith(kind)
        ]
    groups[f"up to {HARD} iterations"] = [row for row in rows if not is_hard(row)]
    for network in dict.fromkeys(str(row["network"]) for row in rows):
        groups[network] = [row for row in rows if row["network"] == network and is_hard(row)]
    for name, members in groups.items():
        for target in (1e-2, 1e-3):
            chosen = [row for row in members if float(str(row["target"])) == target]
            for way in WAYS[1:]:
                factors = [
                    best_without(row) / float(str(row[f"{way} s"]))
                    for row in chosen
                    if f"{way} s" in row
                ]
                if factors:
                    yield {
                        "cases": name,
                        "target": target,
                        "way": way,
                        "count": len(factors),
                        "median": statistics.median(factors),
                        "worst": min(factors),
                        "not_slower": sum(factor >= 0.97 for factor in factors) / len(factors),
                        "pdhg_s": statistics.median(best_without(row) for row in chosen),
                    }


if __name__ == "__main__":
    main()
