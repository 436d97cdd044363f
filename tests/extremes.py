"""Random problems whose magnitudes span 15 decades, and independent checks of what a solver says of
them.

`benchmarks/extremes.py` runs them in large numbers.
"""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog
from torch import Tensor

import teal
from teal.network import compute_paths
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.feasibility import TOLERANCE, violations
from teal.runtime.arrays import AnyArray
from teal.testing import random_topology

DECADES = 15.0  # between the smallest and the largest magnitude
# What spans the decades: capacities, demands, both, the unit of both, demands against capacities,
# values of demands.
KINDS = ("capacity", "demand", "both", "unit", "load", "value")
ROUNDING = 1e-9  # relative difference between float64 sums and exact ones that counts as rounding


def extreme_problem(seed: int) -> tuple[Problem, str]:
    """The problem of ``seed``, B = 1, and its kind."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    objective = SINGLE_PROGRAMS[(seed // len(KINDS)) % len(SINGLE_PROGRAMS)]
    if kind == "value":
        objective = ObjectiveName.WEIGHTED_FLOW
    topology = random_topology(seed, int(rng.integers(3, 11)), float(rng.uniform(0.25, 0.7)))
    paths = compute_paths(topology, num_paths=int(rng.integers(1, 5)), cache=False)
    half = DECADES / 2

    def spread(count: int) -> np.ndarray:
        return 10.0 ** rng.uniform(-half, half, count)

    capacity = topology.capacity * (
        spread(len(topology.capacity)) if kind in ("capacity", "both") else 1.0
    )
    demand = rng.lognormal(0, 1, paths.num_demands) * (rng.random(paths.num_demands) > 0.2)
    if kind in ("demand", "both"):
        demand = demand * spread(len(demand))
    if kind == "unit":
        unit = spread(1)
        capacity, demand = capacity * unit, demand * unit
    if kind == "load":
        demand = demand * spread(1)
    weight = (
        spread(paths.num_demands) if kind == "value" else rng.uniform(0.5, 2.0, paths.num_demands)
    )
    if rng.random() < 0.3:
        capacity = np.where(rng.random(len(capacity)) < 0.1, 0.0, capacity)
    problem = teal.Problem.create(
        topology, paths, Objective(objective), demand[None], capacity=capacity[None], weight=weight
    )
    return problem, kind


def exact_bound(problem: Problem, prices: Tensor) -> Fraction:
    """The bound that ``prices`` (E,) prove, by exact fractions (see :mod:`teal.problem.bounds` for
    the equation)."""
    capacity, demand = problem.capacity[0].tolist(), problem.demand[0].tolist()
    mask, value, cost = (
        problem.path_mask[0].numpy(),
        problem.demand_value.tolist(),
        problem.link_cost.tolist(),
    )
    links_of: dict[int, list[int]] = {}
    for path, link in zip(*(a.tolist() for a in problem.paths.incidences()), strict=True):
        links_of.setdefault(path, []).append(link)
    exact = [Fraction(max(0.0, p)) for p in prices.tolist()]
    capacity_term = sum(
        (Fraction(c) * p for c, p in zip(capacity, exact, strict=True)), Fraction(0)
    )
    balanced, total = problem.demand_set.carries_all, Fraction(0)
    for d, rate in enumerate(demand):
        live = [d * mask.shape[1] + k for k in np.flatnonzero(mask[d])]
        if not live or not rate:
            continue
        if balanced:
            total += Fraction(rate) * min(
                sum((exact[e] for e in links_of[p]), Fraction(0)) for p in live
            )
        else:
            best = max(
                Fraction(value[d]) - sum(exact[e] + Fraction(cost[e]) for e in links_of[p])
                for p in live
            )
            total += Fraction(rate) * max(best, Fraction(0))
    if not balanced:
        return capacity_term + total
    theta = total / capacity_term if capacity_term else Fraction(0)
    return 1 / max(Fraction(1), theta) if problem.objective.may_shed else theta


def share_program(problem: Problem) -> float:
    """The optimum by HiGHS, with variables and rows scaled; NaN where HiGHS finds none.

    The variables are u[d, k] = flow / (the most that path (d, k) can carry), each row is divided by
    its largest coefficient, and the objective by the largest single term.  Under the balanced
    objectives flows are divided by theta_0, the largest utilisation if each demand is split in
    proportion to the bottlenecks of its paths.
    """
    capacity, demand = problem.capacity[0].numpy(), problem.demand[0].numpy()
    mask = problem.path_mask[0].numpy() & (demand > 0)[:, None]
    paths = np.flatnonzero(mask)
    if not len(paths):
        return 1.0 if problem.objective.may_shed and problem.demand_set.carries_all else 0.0
    rates = np.repeat(demand, mask.shape[1])[paths]
    path, link = (np.asarray(a) for a in problem.paths.incidences())
    kept = np.isin(path, paths)
    column, link = np.searchsorted(paths, path[kept]), link[kept]
    bottleneck = np.full(len(paths), np.inf)
    np.minimum.at(bottleneck, column, capacity[link])
    demands, row = np.unique(paths // mask.shape[1], return_inverse=True)
    balanced, theta_0 = problem.demand_set.carries_all, 1.0
    if balanced:
        split = bottleneck / np.bincount(row, bottleneck)[row]
        load = np.bincount(link, (split * rates)[column], minlength=len(capacity))
        theta_0 = float((load[capacity > 0] / capacity[capacity > 0]).max())
    most = np.minimum(rates, theta_0 * bottleneck)

    def scaled(matrix: sp.csr_array, right: AnyArray) -> tuple[sp.csr_array, AnyArray]:
        largest = np.maximum(abs(matrix).max(1).toarray().ravel(), 1e-300)
        return sp.csr_array(sp.diags_array(1 / largest) @ matrix), right / largest

    shape = (len(capacity), len(paths))
    factor = 1 / np.where(capacity > 0, capacity, 1) / theta_0
    loads = sp.csr_array((most[column] * factor[link], (link, column)), shape=shape)
    served = sp.csr_array(
        (most / rates, (row, np.arange(len(paths)))), shape=(len(demands), len(paths))
    )
    if balanced:
        upper = sp.hstack([loads, -np.ones((len(capacity), 1))], format="csr")
        upper, right = scaled(upper, np.zeros(len(capacity)))
        equal, ones = scaled(
            sp.hstack([served, sp.csr_array((len(demands), 1))], format="csr"),
            np.ones(len(demands)),
        )
        cost = np.append(np.zeros(len(paths)), 1.0)
        bounds = [(0, 1)] * len(paths) + [(0, None)]
        result = linprog(cost, upper, right, equal, ones, bounds, method="highs")
        if result.status != 0:
            return math.nan
        theta = float(result.fun) * theta_0
        return 1 / max(1.0, theta) if problem.objective.may_shed else theta
    value = problem.path_value.numpy().ravel()[paths] * most
    matrix, right = scaled(
        sp.vstack([loads, served], format="csr"), np.ones(len(capacity) + len(demands))
    )
    result = linprog(-value / value.max(), matrix, right, bounds=(0, 1), method="highs")
    return -float(result.fun) * float(value.max()) if result.status == 0 else math.nan


def check(
    seed: int, gap: float, with_oracle: bool, max_iterations: int = 10_000
) -> dict[str, object]:
    """Solve the problem of ``seed`` and check the result; one row of the table."""
    problem, kind = extreme_problem(seed)
    begin = time.perf_counter()
    result = teal.solve(problem, gap=gap, max_iterations=max_iterations)
    seconds = time.perf_counter() - begin
    value, bound, reached = float(result.value), float(result.bound), float(result.gap)
    has_nan = any(
        bool(t.isnan().any())
        for t in (result.splits, result.prices, result.value, result.bound, result.gap)
    )
    proven, maximises = float(exact_bound(problem, result.prices[0])), problem.objective.may_shed
    excess = (value - proven if maximises else proven - value) / max(
        abs(proven), abs(value), 1e-300
    )
    claimed = (proven - bound if maximises else bound - proven) / max(
        abs(proven), abs(bound), 1e-300
    )
    violation = float(violations(problem, result.splits).largest)
    row = {
        "seed": seed,
        "kind": kind,
        "objective": str(problem.objective.name),
        "value": value,
        "bound": bound,
        "gap": reached,
        "iterations": result.iterations,
        "seconds": round(seconds, 4),
        "false_certificate": max(excess, claimed) > ROUNDING,
        "nan": has_nan,
        "infeasible": violation > TOLERANCE,
        "above_gap": not reached <= gap,
        "optimum": math.nan,
    }
    if with_oracle:
        optimum = share_program(problem)
        row["optimum"] = optimum
        wrong = (value - optimum if maximises else optimum - value) / max(
            abs(optimum), abs(value), 1e-300
        )
        row["better_than_oracle"] = wrong > 1e-6
        wrong = (optimum - bound if maximises else bound - optimum) / max(
            abs(optimum), abs(bound), 1e-300
        )
        row["oracle_outside_bound"] = wrong > 1e-6
    return row
