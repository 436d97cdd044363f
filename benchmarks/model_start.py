"""Interior points from a model, from nothing, and PDHG: CPU time to certified gaps, model and all.

    python benchmarks/model_start.py --out FOLDER [--networks NAME ...] [--objective NAME] [--repeats 2]
        [--seed 11]

For each network of topohub, a gravity matrix scaled so that the optimum carries each of 50, 70, 85
and 95 percent of the demand; each as it is (plain), with a fifth of the demands times 3 (shock),
and with 2 percent of the cables failed (failure); to 1, 0.01 and 0.0001 percent.  One thread; the
ways take turns, medians of the repeats.

``model`` is what `teal.solve` does with a model, which it asks where that saves time; ``at once``
asks it in every case.  The controls are a PriceGNN with random weights, the model's splits with the
optimum's prices off by 20 percent, an allocation of PDHG to 1 percent, and the exact point of the
central path with a duality gap of 3 percent, of which only the iterations are measured.

The models have seen none of the networks; the constants of the rule were chosen on others:
Germany50, Dfn, and gabriel/50/6, 65/5, 70/3 and 125/1 with seed 5.

FOLDER/cases.csv has a row a case, FOLDER/summary.csv the factors (time of the faster of interior
points and PDHG from nothing over time of the way) and the iterations over those from nothing, by
group, kind and network.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import scipy.linalg
import scipy.sparse
import torch
from torch import Tensor

import teal
from teal.runtime.arrays import FloatArray
from teal.schemes.models import load_model
from teal.schemes.price_gnn import PriceGnnScheme
from teal.solvers.interior import engine
from teal.solvers.interior.presolve import PresolvedProgram
from teal.solvers.result import Starter

NETWORKS = (
    "caida/2024-08/2152",
    "caida/2024-08/3352",
    "gabriel/55/8",
    "gabriel/60/8",
    "gabriel/70/6",
    "gabriel/75/9",
    "gabriel/90/7",
    "gabriel/100/9",
)
CARRIED = (0.95, 0.85, 0.7, 0.5)  # share of the demand that the optimum carries
TARGETS = (1e-2, 1e-4, 1e-6)
CENTRAL_GAP = 0.03  # duality gap of the central point, of the largest value
FROM_NOTHING = ("pdhg", "interior")
WAYS = (
    *FROM_NOTHING,
    "model",
    "model at once",
    "random weights at once",
    "prices off by 20% at once",
    "pdhg to 1% at once",
    "central point",
)
PDHG_S = 3.0  # seconds that PDHG may take
# Newton's method for a central point: largest number of steps, and the final decrement.
MOST_NEWTON_STEPS = 200
NEAR = 1e-3
BALANCED = ("max_link_utilisation", "max_concurrent_flow")
Row = dict[str, Any]
Search = Callable[[float], teal.PdhgResult]


@dataclasses.dataclass(frozen=True)
class OtherPrices:
    """The model's splits with other prices; it takes the model's time."""

    model: Starter
    prices: Tensor

    def start(self, problem: teal.Problem) -> tuple[Tensor, Tensor]:
        """Splits and prices."""
        return self.model.start(problem)[0], self.prices


class FirstByPdhg:
    """An allocation and prices of PDHG to 1 percent."""

    def start(self, problem: teal.Problem) -> tuple[Tensor, Tensor]:
        """Splits and prices."""
        solution = teal.solve(problem, gap=1e-2, engine="fused")
        return solution.splits, solution.prices


@dataclasses.dataclass(frozen=True)
class CentralPoint:
    """Splits and prices that are known."""

    splits: Tensor
    prices: Tensor

    def start(self, problem: teal.Problem) -> tuple[Tensor, Tensor]:
        """Splits and prices."""
        return self.splits, self.prices


def central_point(problem: teal.Problem) -> CentralPoint | None:
    """The point of the central path with a duality gap of CENTRAL_GAP times the value of all
    demand, by Newton's method from larger gaps on; None where no link can bind.
    """
    program = next(engine._programs(problem, np.zeros((1, problem.ops.mask.numel()))))
    if not len(program.capacity):
        return None
    price = np.full(len(program.capacity), 1 / program.capacity.sum())
    count = len(program.column_value) + len(program.capacity) + len(program.rate)
    for factor in (30.0, 10.0, 3.0, 1.0):
        share, price = centred(program, price, factor * CENTRAL_GAP / count)
    splits = np.zeros(problem.ops.mask.numel())
    prices = np.zeros(problem.capacity.shape[1])
    splits[program.slot] = share
    prices[program.link] = price * program.scale
    shape = (1, *problem.ops.mask.shape)
    return CentralPoint(torch.from_numpy(splits.reshape(shape)), torch.from_numpy(prices[None]))


def centred(
    program: PresolvedProgram, price: FloatArray, mu: float
) -> tuple[FloatArray, FloatArray]:
    """Shares x = mu / z and prices y that minimise the dual of the barrier,

        b y - mu sum log y - sum_g (l_g + mu log(-l_g) + mu sum_q log z_q),  z_q = cost_q - l_g,

    where l_g is such that the shares of block g and of its rest, mu / -l_g, sum to 1.
    """
    blocks = len(program.rate)
    columns = len(program.column_value)
    first = program.block_ptr[:-1]
    block = np.repeat(np.arange(blocks), np.diff(program.block_ptr))
    column = np.repeat(np.arange(columns), np.diff(program.row_ptr))
    shape = (len(program.capacity), columns)
    matrix = scipy.sparse.csr_matrix((program.rate[block[column]], (program.row, column)), shape)
    of_block = scipy.sparse.csr_matrix((np.ones(columns), (np.arange(columns), block)))
    for _ in range(MOST_NEWTON_STEPS):
        cost = matrix.T @ price - program.column_value
        min_cost = np.minimum(np.minimum.reduceat(cost, first), 0.0)
        low = min_cost - (np.diff(program.block_ptr) + 1) * mu
        high = min_cost - mu
        multiplier = low
        for _ in range(60):
            distance = cost - multiplier[block]
            total = np.add.reduceat(mu / distance, first) - mu / multiplier
            slope = np.add.reduceat(mu / distance**2, first) + mu / multiplier**2
            multiplier = np.clip(multiplier + total * (1 - total) / slope, low, high)
        share = mu / (cost - multiplier[block])
        unserved = -mu / multiplier
        gradient = program.capacity - mu / price - matrix @ share
        scaled = matrix.multiply(share**2 / mu).tocsr()
        union = scaled @ of_block
        unserved_multiplier = 1 / (np.add.reduceat(share**2, first) + unserved**2) * mu
        hessian = (scaled @ matrix.T - union.multiply(unserved_multiplier) @ union.T).toarray()
        hessian[np.diag_indices_from(hessian)] += mu / price**2
        step = -scipy.linalg.solve(hessian, gradient, assume_a="pos")
        decrement = np.sqrt(max(0.0, -(gradient @ step)) / mu)
        if decrement < NEAR:
            return share, price
        length = 1.0 if decrement < 0.25 else 1 / (1 + decrement)
        falls = step < 0
        if falls.any():
            length = min(length, 0.9 * float(np.min(-price[falls] / step[falls])))
        price = price + length * step
    raise RuntimeError("the central point has not been found")


def at_carried(problem: teal.Problem, share: float) -> teal.Problem:
    """The problem with its demands scaled so that the optimum carries ``share`` of them, to a
    hundredth.
    """
    low = 1e-3
    high = 1e3
    for _ in range(30):  # halvings of a range of logarithms
        scale = (low * high) ** 0.5
        scaled = problem.with_demand(problem.demand * scale)
        carried = float(teal.solve(scaled, gap=1e-3).value) / float(scaled.demand.sum())
        if abs(carried - share) < 0.01:
            break
        low, high = (scale, high) if carried > share else (low, scale)
    return scaled


def cases(network: str, objective: str, seed: int) -> Iterator[tuple[str, str, teal.Problem]]:
    """Share carried, kind, and problem of each case of a network."""
    topology = teal.load_topology(f"topohub:{network}")
    traffic = teal.load_traffic(f"gravity:seed={seed},count=1", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    rng = np.random.default_rng(seed)
    cables = list(topology.cables())
    flow = teal.Objective()
    objective_spec = teal.Objective(objective)

    def problem_of(demand: Tensor, capacity: FloatArray) -> teal.Problem:
        case_problem = teal.Problem.create(
            topology, paths, objective_spec, demand, capacity=capacity[None]
        )
        return case_problem.to(torch.float64)

    of_flow = teal.Problem.create(topology, paths, flow, traffic.read([0])).to(torch.float64)
    for share in CARRIED:
        demand = at_carried(of_flow, share).demand
        crowd = torch.from_numpy(np.where(rng.random(demand.shape) < 0.2, 3.0, 1.0))
        capacity = topology.capacity.copy()
        for cable in rng.choice(len(cables), max(1, len(cables) // 50), replace=False):
            capacity[list(cables[cable])] = 0
        yield f"{share:.0%}", "plain", problem_of(demand, topology.capacity)
        yield f"{share:.0%}", "shock", problem_of(demand * crowd, topology.capacity)
        if objective not in BALANCED:  # which must carry the pairs that the failure divides
            yield f"{share:.0%}", "failure", problem_of(demand, capacity)


def timed(search: Search, gap: float) -> tuple[float, int]:
    """CPU seconds and iterations of a search; infinite where it has not reached its target."""
    begin = time.process_time()
    result = search(gap)
    seconds = time.process_time() - begin
    return (seconds if float(result.gap) <= gap else math.inf), result.iterations


def ways_of(problem: teal.Problem, model: Starter, random: Starter) -> dict[str, Search]:
    """The search of each way, of a target gap."""

    def by_interior_points(starter: Starter | None) -> Search:
        return lambda gap: teal.solve(problem, gap=gap, engine="interior", starter=starter)

    optimum = teal.solve(problem, gap=1e-7)
    noise = np.random.default_rng(0).choice([0.8, 1.2], optimum.prices.shape)
    off = OtherPrices(model, optimum.prices * torch.from_numpy(noise))
    starts = {
        "pdhg": lambda gap: teal.solve(problem, gap=gap, engine="fused", deadline=PDHG_S),
        "interior": by_interior_points(None),
        "model": lambda gap: teal.solve(problem, gap=gap, starter=model),
        "model at once": by_interior_points(model),
        "random weights at once": by_interior_points(random),
        "prices off by 20% at once": by_interior_points(off),
        "pdhg to 1% at once": by_interior_points(FirstByPdhg()),
    }
    if problem.objective.name == "total_flow" and (centre := central_point(problem)):
        starts["central point"] = by_interior_points(centre)
    return starts


def measured(starts: dict[str, Search], gap: float, repeats: int) -> Row:
    """Seconds and iterations of every way."""
    times: dict[str, list[float]] = {start_name: [] for start_name in starts}
    iterations: dict[str, int] = {}
    for repeat in range(repeats + 1):
        for start_name, run in starts.items():
            seconds, iterations[start_name] = timed(run, gap)
            if repeat:  # the first is not counted: it may compile
                times[start_name].append(seconds)
    row: Row = {}
    for start_name in starts:
        row |= {
            f"{start_name} s": statistics.median(times[start_name]),
            f"{start_name} n": iterations[start_name],
        }
    return row


def summarised(rows: list[Row]) -> Iterator[Row]:
    """The factors and the parts of the iterations by group of cases, target and way."""

    def number(row: Row, start_name: str, unit: str) -> float:
        return float(row[f"{start_name} {unit}"])

    groups = {"all": rows}
    for kind in ("plain", "shock", "failure"):
        groups[kind] = [row for row in rows if row["kind"] == kind]
    for network in dict.fromkeys(str(row["network"]) for row in rows):
        groups[network] = [row for row in rows if row["network"] == network]
    for name, members in groups.items():
        for target, start_name in itertools.product(TARGETS, WAYS):
            selected_rows = [
                row for row in members if row["target"] == target and f"{start_name} s" in row
            ]
            if not selected_rows:
                continue
            factors = [
                min(number(row, start, "s") for start in FROM_NOTHING)
                / number(row, start_name, "s")
                for row in selected_rows
            ]
            parts = [
                number(row, start_name, "n") / number(row, "interior", "n")
                for row in selected_rows
                if number(row, "interior", "n")
            ]
            has_time = start_name != "central point"
            is_newton = "interior" in start_name or "at once" in start_name or not has_time
            yield {
                "cases": name,
                "target": target,
                "way": start_name,
                "count": len(selected_rows),
                "median": statistics.median(factors) if has_time else "",
                "worst": min(factors) if has_time else "",
                "not_slower": statistics.mean(start >= 0.97 for start in factors)
                if has_time
                else "",
                "iterations": statistics.median(parts) if is_newton and parts else "",
                "seconds": statistics.median(number(row, start_name, "s") for row in selected_rows),
            }


def main() -> None:
    """Measure, and write both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--objective", default="total_flow")
    parser.add_argument("--model", default="universal")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args()
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    model = load_model(options.model)
    scheme = teal.make_scheme("price-gnn:weights=random")
    assert isinstance(scheme, PriceGnnScheme)
    random = PriceGnnScheme(scheme.model)
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with (options.out / "cases.csv").open("w", newline="") as file:
        of_ways = [f"{start_name} {unit}" for start_name in WAYS for unit in ("s", "n")]
        writer = csv.DictWriter(file, ["network", "carried", "kind", "target", *of_ways])
        writer.writeheader()
        for network in options.networks:
            for carried, kind, problem in cases(network, options.objective, options.seed):
                starts = ways_of(problem, model, random)
                for target in TARGETS:
                    case = {"network": network, "carried": carried, "kind": kind, "target": target}
                    rows.append(case | measured(starts, target, options.repeats))
                    writer.writerow(rows[-1])
                    file.flush()
            print(network, flush=True)
    summary = list(summarised(rows))
    with (options.out / "summary.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(summary[0]))
        table.writeheader()
        table.writerows(summary)
    for line in summary:
        print(line)


if __name__ == "__main__":
    main()
