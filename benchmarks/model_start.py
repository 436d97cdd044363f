"""Compare interior points started from a model's allocation with cold interior points and PDHG: CPU
time to certified gaps, the time of the model included.

    python benchmarks/model_start.py --out FOLDER [--networks NAME ...] [--objective NAME] [--repeats 2]
        [--seed 11]

For each network of topohub, a gravity matrix scaled so that the optimum carries each of 50, 70, 85
and 95 percent of the demand; each as it is (plain), with a fifth of the demands times 3 (shock),
and with 2 percent of the cables failed (failure); to gaps of 1, 0.01 and 0.0001 percent.  One
thread; the methods take turns; times are medians of the repeats.

``default`` is `teal.solve` with nothing named and ``model`` the same with the model named, which
both run only where that is expected to save time; ``at once`` runs interior points from the model
in every case.  The start selects the columns of the search.  The controls are a PriceGNN with
random weights, the model's splits with the optimum's prices off by 20 percent, splits and prices of
the optimum, those of an earlier solve (demands changed by 15 percent at random; its time is not
counted), an allocation of PDHG to 1 percent, and the exact point of the central path with a duality
gap of 3 percent, of which only the iterations are measured.

The models have seen none of the networks; the constants of the rule were chosen on others:
Germany50, Dfn, and gabriel/50/6, 65/5, 70/3 and 125/1 with seed 5.

FOLDER/cases.csv has a row for each case.  FOLDER/summary.csv has, by kind of case and by network,
the speed-up of each method (time of the faster of cold interior points and PDHG, over the time of
the method) and its iterations over those of cold interior points.
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
CENTRAL_GAP = 0.03  # duality gap of the central point, over the value of serving all demand
COLD_METHODS = ("pdhg", "interior")
METHODS = (
    *COLD_METHODS,
    "default",
    "model",
    "model at once",
    "random weights at once",
    "prices off by 20% at once",
    "optimum at once",
    "earlier solve at once",
    "pdhg to 1% at once",
    "central point",
)
PDHG_S = 3.0  # seconds that PDHG may take
# Newton's method for a central point: limit of its steps, and the decrement at which it ends.
MAX_NEWTON_STEPS = 200
MAX_NEWTON_DECREMENT = 1e-3
# Objectives without a failure case: they must serve every demand, also of disconnected pairs.
BALANCED = ("max_link_utilisation", "max_concurrent_flow")
# A row of a table by heading; a solve to a given gap.
Row = dict[str, Any]
Search = Callable[[float], teal.SolveResult]


@dataclasses.dataclass(frozen=True)
class ModelWithPrices:
    """Starter with the splits of a model, computed at every start, and given prices.

    Attributes:
        model: computes the splits.
        prices: dual prices of the links, (1, E).
    """

    model: Starter
    prices: Tensor

    def start(self, problem: teal.Problem) -> tuple[Tensor, Tensor]:
        """Return the model's splits (1, D, K), and the given prices (1, E)."""
        return self.model.start(problem)[0], self.prices


class PdhgStart:
    """Starter that solves the problem by PDHG to a gap of 1 percent."""

    def start(self, problem: teal.Problem) -> tuple[Tensor, Tensor]:
        """Return PDHG's splits (1, D, K) and dual prices of the links (1, E)."""
        solution = teal.solve(problem, gap=1e-2, engine="fused", model=None)
        return solution.splits, solution.prices


@dataclasses.dataclass(frozen=True)
class GivenStart:
    """Starter with given splits and prices.

    Attributes:
        splits: split ratios, (1, D, K).
        prices: dual prices of the links, (1, E).
    """

    splits: Tensor
    prices: Tensor

    def start(self, problem: teal.Problem) -> tuple[Tensor, Tensor]:
        """Return the given splits (1, D, K) and prices (1, E)."""
        return self.splits, self.prices


def central_point(problem: teal.Problem) -> GivenStart | None:
    """Return the point of the central path whose duality gap is :data:`CENTRAL_GAP` times the value
    of serving all demand; None if no link can bind.

    Newton's method follows the path through points of 30, 10 and 3 times this gap.

    Args:
        problem: problem of one matrix under total_flow.
    """
    program = next(engine._programs(problem, np.zeros((1, problem.ops.mask.numel()))))
    if not len(program.capacity):
        return None
    # Start: equal prices, under which all capacity together is worth 1.
    price = np.full(len(program.capacity), 1 / program.capacity.sum())
    # Number of complementarity products: columns, link rows, and unserved demands.
    num_products = len(program.column_value) + len(program.capacity) + len(program.rate)
    for factor in (30.0, 10.0, 3.0, 1.0):
        share, price = minimise_barrier_dual(program, price, factor * CENTRAL_GAP / num_products)
    # From the presolved program back to all paths and links.
    splits = np.zeros(problem.ops.mask.numel())
    prices = np.zeros(problem.capacity.shape[1])
    splits[program.slot] = share
    prices[program.link] = price * program.scale
    shape = (1, *problem.ops.mask.shape)
    return GivenStart(torch.from_numpy(splits.reshape(shape)), torch.from_numpy(prices[None]))


def minimise_barrier_dual(
    program: PresolvedProgram, price: FloatArray, mu: float
) -> tuple[FloatArray, FloatArray]:
    """Return the primal and dual point of the central path for a barrier parameter mu.

    A damped Newton method solves the dual barrier problem in the link prices y,

        minimise b y - mu sum log y - sum_g (l_g + mu log(-l_g) + mu sum_q log z_q).

    Here b are the capacities, g the demand blocks, q the columns (paths) of block g, cost_q the
    price of column q's links less its value, z_q = cost_q - l_g its reduced cost, and l_g < 0 the
    multiplier of the block, which is such that its shares mu / z_q and its unserved share mu / -l_g
    sum to 1.

    Args:
        program: presolved program of one matrix.
        price: prices to start from, one for each link row.
        mu: barrier parameter.

    Returns:
        the share of each column, mu / z_q, and the price of each link row, y.

    Raises:
        RuntimeError: if the Newton decrement stays too large for :data:`MAX_NEWTON_STEPS`.
    """
    num_blocks = len(program.rate)
    columns = len(program.column_value)
    block_start = program.block_ptr[:-1]
    # Block of each column, and column of each matrix entry.
    block = np.repeat(np.arange(num_blocks), np.diff(program.block_ptr))
    column = np.repeat(np.arange(columns), np.diff(program.row_ptr))
    shape = (len(program.capacity), columns)
    matrix = scipy.sparse.csr_matrix((program.rate[block[column]], (program.row, column)), shape)
    block_of_column = scipy.sparse.csr_matrix((np.ones(columns), (np.arange(columns), block)))
    for _ in range(MAX_NEWTON_STEPS):
        cost = matrix.T @ price - program.column_value
        min_cost = np.minimum(np.minimum.reduceat(cost, block_start), 0.0)
        # Multipliers l_g for which the shares of each block sum to 1: 60 steps of Newton's method
        # for 1 / sum = 1, kept between bounds.
        low = min_cost - (np.diff(program.block_ptr) + 1) * mu
        high = min_cost - mu
        multiplier = low
        for _ in range(60):
            reduced_cost = cost - multiplier[block]
            share_sum = np.add.reduceat(mu / reduced_cost, block_start) - mu / multiplier
            share_sum_slope = (
                np.add.reduceat(mu / reduced_cost**2, block_start) + mu / multiplier**2
            )
            multiplier = np.clip(
                multiplier + share_sum * (1 - share_sum) / share_sum_slope, low, high
            )
        # Gradient of the dual barrier problem: capacity less the loads, and the barrier's part.
        share = mu / (cost - multiplier[block])
        unserved = -mu / multiplier
        gradient = program.capacity - mu / price - matrix @ share
        # Its Hessian: a diagonal term per column, less one rank-one term per block.
        scaled_matrix = matrix.multiply(share**2 / mu).tocsr()
        block_rates = scaled_matrix @ block_of_column
        rank_one_weight = 1 / (np.add.reduceat(share**2, block_start) + unserved**2) * mu
        hessian = (
            scaled_matrix @ matrix.T - block_rates.multiply(rank_one_weight) @ block_rates.T
        ).toarray()
        hessian[np.diag_indices_from(hessian)] += mu / price**2
        step = -scipy.linalg.solve(hessian, gradient, assume_a="pos")
        # Newton decrement: norm of the step under the Hessian, for the objective over mu.
        decrement = np.sqrt(max(0.0, -(gradient @ step)) / mu)
        if decrement < MAX_NEWTON_DECREMENT:
            return share, price
        # Damped step of self-concordant functions, which keeps the prices positive.
        step_length = 1.0 if decrement < 0.25 else 1 / (1 + decrement)
        is_falling = step < 0
        if is_falling.any():
            step_length = min(
                step_length, 0.9 * float(np.min(-price[is_falling] / step[is_falling]))
            )
        price = price + step_length * step
    raise RuntimeError("Newton's method has not reached the central point: raise MAX_NEWTON_STEPS")


def earlier_solve(problem: teal.Problem) -> GivenStart:
    """Return the optimum of the problem with its demands changed at random, by 15% on average.

    Args:
        problem: problem of one matrix.
    """
    factor = np.random.default_rng(1).lognormal(0, 0.15, problem.demand.shape)
    earlier = problem.with_demand(problem.demand * torch.from_numpy(factor))
    solution = teal.solve(earlier, gap=1e-6, model=None)
    return GivenStart(solution.splits, solution.prices)


def scaled_to_carried_share(problem: teal.Problem, share: float) -> teal.Problem:
    """Return the problem with its demands scaled so that the optimum carries a share of them, to
    within 0.01.

    Args:
        problem: problem of one matrix under total_flow.
        share: share of the demand to carry, in (0, 1).
    """
    low = 1e-3
    high = 1e3
    # Bisection of the scale's logarithm.
    for _ in range(30):
        scale = (low * high) ** 0.5
        scaled = problem.with_demand(problem.demand * scale)
        carried = float(teal.solve(scaled, gap=1e-3, model=None).value) / float(scaled.demand.sum())
        if abs(carried - share) < 0.01:
            break
        low, high = (scale, high) if carried > share else (low, scale)
    return scaled


def cases(network: str, objective: str, seed: int) -> Iterator[tuple[str, str, teal.Problem]]:
    """Yield the share carried (text), the kind and the problem of each case of a network.

    Args:
        network: name in topohub.
        objective: objective of the problems.
        seed: seed of the traffic, the shocks and the failures.
    """
    topology = teal.load_topology(f"topohub:{network}")
    traffic = teal.load_traffic(f"gravity:seed={seed},count=1", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    rng = np.random.default_rng(seed)
    cables = list(topology.cables())
    total_flow = teal.Objective()
    objective_spec = teal.Objective(objective)

    def problem_of(demand: Tensor, capacity: FloatArray) -> teal.Problem:
        case_problem = teal.Problem.create(
            topology, paths, objective_spec, demand, capacity=capacity[None]
        )
        return case_problem.to(torch.float64)

    base_problem = teal.Problem.create(topology, paths, total_flow, traffic.read([0])).to(
        torch.float64
    )
    for share in CARRIED:
        demand = scaled_to_carried_share(base_problem, share).demand
        # A fifth of the demands times 3; 2% of the cables fail.
        shock_factor = torch.from_numpy(np.where(rng.random(demand.shape) < 0.2, 3.0, 1.0))
        capacity = topology.capacity.copy()
        for cable in rng.choice(len(cables), max(1, len(cables) // 50), replace=False):
            capacity[list(cables[cable])] = 0
        yield f"{share:.0%}", "plain", problem_of(demand, topology.capacity)
        yield f"{share:.0%}", "shock", problem_of(demand * shock_factor, topology.capacity)
        if objective not in BALANCED:
            yield f"{share:.0%}", "failure", problem_of(demand, capacity)


def time_search(search: Search, gap: float) -> tuple[float, int]:
    """Run a search; return its CPU time, s (infinite if it has not reached the gap), and its
    iterations.
    """
    begin = time.process_time()
    result = search(gap)
    seconds = time.process_time() - begin
    return (seconds if float(result.gap) <= gap else math.inf), result.iterations


def searches_by_method(
    problem: teal.Problem, model: Starter, untrained: Starter
) -> dict[str, Search]:
    """Return the function of each method that solves the problem to a given gap.

    Args:
        problem: problem of one matrix.
        model: starter of the method "model" and of those derived from it.
        untrained: starter with random weights, a control.
    """

    def by_interior_points(starter: Starter | None) -> Search:
        return lambda gap: teal.solve(problem, gap=gap, engine="interior", model=starter)

    optimum = teal.solve(problem, gap=1e-7, model=None)
    # The control whose prices are 20% too low or too high, at random.
    noise = np.random.default_rng(0).choice([0.8, 1.2], optimum.prices.shape)
    wrong_prices = ModelWithPrices(model, optimum.prices * torch.from_numpy(noise))
    searches = {
        "pdhg": lambda gap: teal.solve(
            problem, gap=gap, engine="fused", deadline=PDHG_S, model=None
        ),
        "default": lambda gap: teal.solve(problem, gap=gap),
        "interior": by_interior_points(None),
        "model": lambda gap: teal.solve(problem, gap=gap, model=model),
        "model at once": by_interior_points(model),
        "random weights at once": by_interior_points(untrained),
        "prices off by 20% at once": by_interior_points(wrong_prices),
        "optimum at once": by_interior_points(GivenStart(optimum.splits, optimum.prices)),
        "earlier solve at once": by_interior_points(earlier_solve(problem)),
        "pdhg to 1% at once": by_interior_points(PdhgStart()),
    }
    # Only total_flow has a central point here, and only where a link can bind.
    if problem.objective.name == "total_flow" and (centre := central_point(problem)):
        searches["central point"] = by_interior_points(centre)
    return searches


def measure_methods(searches: dict[str, Search], gap: float, repeats: int) -> Row:
    """Return the columns of cases.csv for every method: median CPU time ("METHOD s") and
    iterations ("METHOD n").

    Args:
        searches: solve of each method to a given gap.
        gap: gap to reach.
        repeats: number of timed solves of each method.
    """
    times: dict[str, list[float]] = {method: [] for method in searches}
    iterations: dict[str, int] = {}
    for repeat in range(repeats + 1):
        for method, search in searches.items():
            seconds, iterations[method] = time_search(search, gap)
            # The first round is not counted, since it may compile kernels.
            if repeat:
                times[method].append(seconds)
    figures: Row = {}
    for method in searches:
        figures |= {
            f"{method} s": statistics.median(times[method]),
            f"{method} n": iterations[method],
        }
    return figures


def summary_rows(rows: list[Row]) -> Iterator[Row]:
    """Yield the rows of summary.csv: speed-up and relative iterations of each method to each gap,
    for all cases, each kind of case and each network.

    Args:
        rows: rows of cases.csv.
    """

    # A figure of a case: CPU seconds ("s") or iterations ("n") of a method.
    def method_figure(row: Row, method: str, unit: str) -> float:
        return float(row[f"{method} {unit}"])

    # Groups of cases: all, by kind, and by network.
    groups = {"all": rows}
    for kind in ("plain", "shock", "failure"):
        groups[kind] = [row for row in rows if row["kind"] == kind]
    for network in dict.fromkeys(str(row["network"]) for row in rows):
        groups[network] = [row for row in rows if row["network"] == network]
    for name, group_rows in groups.items():
        for target, method in itertools.product(TARGETS, METHODS):
            # Cases in which the method was measured to this gap.
            measured_rows = [
                row for row in group_rows if row["target"] == target and f"{method} s" in row
            ]
            if not measured_rows:
                continue
            speedups = [
                min(method_figure(row, value, "s") for value in COLD_METHODS)
                / method_figure(row, method, "s")
                for row in measured_rows
            ]
            relative_iterations = [
                method_figure(row, method, "n") / method_figure(row, "interior", "n")
                for row in measured_rows
                if method_figure(row, "interior", "n")
            ]
            # The central point was computed in advance, so only its iterations count; iterations of
            # PDHG are not compared.
            has_time = method != "central point"
            # Methods named "... at once" run interior points from another start in every case.
            is_interior_point = "interior" in method or "at once" in method or not has_time
            # Speed-ups over the faster cold method; 0.97 allows for noise of the clock.
            yield {
                "cases": name,
                "target": target,
                "way": method,
                "count": len(measured_rows),
                "median": statistics.median(speedups) if has_time else "",
                "worst": min(speedups) if has_time else "",
                "not_slower": statistics.mean(value >= 0.97 for value in speedups)
                if has_time
                else "",
                "iterations": statistics.median(relative_iterations)
                if is_interior_point and relative_iterations
                else "",
                "seconds": statistics.median(
                    method_figure(row, method, "s") for row in measured_rows
                ),
            }


def main() -> None:
    """Measure every case of the networks; write cases.csv and summary.csv."""
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
    # One thread; the packaged model, and one with random weights as a control.
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    model = load_model(options.model)
    scheme = teal.make_scheme("price-gnn:weights=random")
    assert isinstance(scheme, PriceGnnScheme)
    untrained = PriceGnnScheme(scheme.model)
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with (options.out / "cases.csv").open("w", newline="") as file:
        method_columns = [f"{method} {unit}" for method in METHODS for unit in ("s", "n")]
        writer = csv.DictWriter(file, ["network", "carried", "kind", "target", *method_columns])
        writer.writeheader()
        for network in options.networks:
            for carried, kind, problem in cases(network, options.objective, options.seed):
                searches = searches_by_method(problem, model, untrained)
                for target in TARGETS:
                    case = {"network": network, "carried": carried, "kind": kind, "target": target}
                    rows.append(case | measure_methods(searches, target, options.repeats))
                    writer.writerow(rows[-1])
                    file.flush()
            print(network, flush=True)
    # Summary of all cases.
    summary = list(summary_rows(rows))
    with (options.out / "summary.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(summary[0]))
        table.writeheader()
        table.writerows(summary)
    for line in summary:
        print(line)


if __name__ == "__main__":
    main()
