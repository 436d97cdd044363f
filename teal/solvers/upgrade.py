r"""Which capacity to buy, so that every scenario fits: Benders' cuts from link prices.

A scenario s is a matrix and what has failed.  Buy a_c >= 0 Gbit/s on cable c (both directions) at cost k_c each, so
that splits exist in every scenario whose load is at most u (c_e + a_cable(e)) on every live link e.  Any prices y >= 0
of the live links of one scenario prove, since no split is cheaper than the cheapest live path,

    u sum_e y_e a_cable(e)  >=  sum_d demand_d min over live paths of sum_{e in path} y_e  -  u sum_e y_e c_e,   (cut)

for every purchase that serves the scenario, wherever the prices come from: approximate ones give a weaker cut, never a
wrong one.  The master program, min k'a over the cuts so far, has one column a cable; its bound is computed again from
its duals l >= 0, scaled so that no cable's column costs more than k_c.  In each round scenarios are tested at the
master's point by the engine (largest utilisation, in batches), and all cuts that it violates are added; scenarios that
never were violated are tested again at the end.  The purchase that the splits of all scenarios need at the last point
is feasible.

Modules: the same cuts with whole numbers of modules, solved by HiGHS, tested and cut until every scenario fits.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from teal.errors import InputError, SolverError
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal.solvers.pdhg import solve

_FIRST_GAP, _LEAST_GAP = 1e-2, 1e-5  # certified, of the engine in a test
_GAP_FACTOR = 3.0  # by which it falls where it decides nothing more
_MOST_SLOTS = 3_000_000  # path slots of all scenarios of a batch: some 100 MB for each array of the engine
_VIOLATED = 1e-7  # of a cut, relative to its right side, from which on it is added
_FITS = 1e-6  # relative, by which a utilisation may pass the limit, for rounding
_MOST_ROUNDS = 200


@dataclasses.dataclass(frozen=True, eq=False)
class Scenarios:
    """What has to fit.

    Attributes:
        problem: network and paths, under max_link_utilisation; B = 1, its demand means nothing.
        demand: (S, D) Gbit/s.
        live: (S, E) whether a link works.
        cable: (E,) number of the cable of each link.
        cost: (C,) of a Gbit/s on each cable, above 0.
        limit: u, largest utilisation.
    """

    problem: Problem
    demand: FloatArray
    live: BoolArray
    cable: Int64Array
    cost: FloatArray
    limit: float

    @property
    def num_cables(self) -> int:
        """C."""
        return len(self.cost)

    def needed(self, load: FloatArray) -> FloatArray:
        """(C,) the least purchase with which loads (S, E), Gbit/s, of all scenarios keep to the limit."""
        regular = self.problem.capacity[0].numpy()
        missing = np.where(self.live, load / self.limit - regular, 0.0).max(0, initial=0.0)
        bought = np.zeros(self.num_cables)
        np.maximum.at(bought, self.cable, missing)
        return bought

    def utilisation(self, load: FloatArray, bought: FloatArray) -> FloatArray:
        """(S,) largest of loads (S, E) over the capacities with a purchase (C,)."""
        capacity = self.capacity(bought, np.arange(len(load)))
        return np.asarray(np.where(capacity > 0, load / np.where(capacity > 0, capacity, 1.0), 0.0).max(1))

    def capacity(self, bought: FloatArray, rows: Int64Array) -> FloatArray:
        """(B, E) Gbit/s of some scenarios with a purchase (C,)."""
        regular = self.problem.capacity[0].numpy()
        return np.where(self.live[rows], (regular + bought[self.cable])[None], 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Upgrade:
    """A purchase.

    Attributes:
        bought: (C,) Gbit/s, on each link of a cable.
        cost: of it.
        bound: certified, that no purchase costs less.
        utilisation: (S,) largest of a link in each scenario, with the purchase.
        rounds: of cuts.
        cuts: number of them.
        solve_s: seconds.
        reached: whether the target gap was reached.
    """

    bought: FloatArray
    cost: float
    bound: float
    utilisation: FloatArray
    rounds: int
    cuts: int
    solve_s: float
    reached: bool

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; 0 where nothing has to be bought."""
        return max(0.0, self.cost - self.bound) / self.cost if self.cost > 0 else 0.0


class _Cuts:
    """Rows coefficient' a >= right, each divided by its largest coefficient."""

    def __init__(self, cables: int) -> None:
        self.coefficient, self.right = np.zeros((0, cables)), np.zeros(0)

    def add(self, coefficient: FloatArray, right: FloatArray) -> None:
        largest = coefficient.max(1)
        usable = largest > 0
        self.coefficient = np.concatenate([self.coefficient, coefficient[usable] / largest[usable, None]])
        self.right = np.concatenate([self.right, right[usable] / largest[usable]])


class _Tester:
    """Tests purchases, and remembers the last state of no scenario: batches change from round to round."""

    def __init__(self, scenarios: Scenarios) -> None:
        self.scenarios = scenarios
        slots = scenarios.problem.paths.mask.size
        self._batch = max(1, _MOST_SLOTS // slots)

    def test(
        self, bought: FloatArray, rows: Int64Array, gap: float, deadline: Deadline
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Utilisation (n,), right sides (n,) and coefficients (n, C) of cuts, and loads (n, E), of scenarios."""
        parts = [
            self._batch_of(bought, rows[i : i + self._batch], gap, deadline) for i in range(0, len(rows), self._batch)
        ]
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]

    def _batch_of(
        self, bought: FloatArray, rows: Int64Array, gap: float, deadline: Deadline
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        one = self.scenarios
        problem = dataclasses.replace(
            one.problem, demand=torch.from_numpy(one.demand[rows]),
            capacity=torch.from_numpy(one.capacity(bought, rows)).contiguous(),
        )  # fmt: skip
        result = solve(problem, gap=gap, deadline=deadline.left)
        prices = torch.where(problem.capacity > 0, result.prices.clamp(min=0).nan_to_num(), 0.0)
        cheapest = problem.cheapest_path_cost(problem.ops.path_sum(prices))
        y = prices.numpy()
        needed = (problem.demand * cheapest).sum(1).numpy()
        regular = one.problem.capacity[0].numpy()
        right = needed - one.limit * (y * np.where(one.live[rows], regular, 0.0)).sum(1)
        of_cable = sp.csr_array((np.ones(len(one.cable)), (np.arange(len(one.cable)), one.cable)))
        coefficient = one.limit * np.asarray(y @ of_cable.toarray())
        load = problem.loads(result.splits).numpy()
        return problem.utilisation_of(torch.from_numpy(load)).amax(1).numpy(), right, coefficient, load


def buy(
    scenarios: Scenarios,
    *,
    gap: float = 1e-2,
    deadline: Deadline | None = None,
    report: Callable[[int, float, float], None] | None = None,
) -> tuple[Upgrade, _Cuts]:
    """The cheapest purchase, in any amounts, to a certified gap; and the cuts, for :func:`buy_modules`.

    Args:
        scenarios: what has to fit.
        gap: target, (cost - bound) / cost.
        deadline: after which the best so far is returned; the first test of all scenarios is done in any case.
        report: called after each round with its number, the least cost found and the bound.

    Raises:
        InputError: a cost that is not above 0.
    """
    begin, end = time.perf_counter(), deadline or Deadline(math.inf)
    if not (np.isfinite(scenarios.cost) & (scenarios.cost > 0)).all():
        raise InputError("upgrade", "cost", "a finite cost above 0 of a Gbit/s on every cable", scenarios.cost)
    tester, cuts = _Tester(scenarios), _Cuts(scenarios.num_cables)
    everything = np.arange(len(scenarios.demand))
    active, engine_gap = everything, _FIRST_GAP
    bound, best_cost, best = 0.0, math.inf, np.zeros(scenarios.num_cables)
    was_violated = np.zeros(len(everything), dtype=bool)
    point, number, utilisation = np.zeros(scenarios.num_cables), 0, np.zeros(len(everything))
    while True:
        number += 1
        found, right, coefficient, load = tester.test(point, active, engine_gap, end if number > 1 else Deadline())
        lacking = right - coefficient @ point
        violated = lacking > _VIOLATED * np.maximum(np.abs(right), 1e-300)
        was_violated[active[violated]] = True
        if len(active) == len(everything):
            purchase = scenarios.needed(load)
            cost = float(scenarios.cost @ purchase)
            if cost < best_cost:
                best_cost, best, utilisation = cost, purchase, scenarios.utilisation(load, purchase)
        if violated.any():
            cuts.add(coefficient[violated], right[violated])
            point, proven = _master(scenarios, cuts)
            bound = max(bound, proven)
        is_done = math.isfinite(best_cost) and best_cost - bound <= gap * best_cost
        if report is not None:
            report(number, best_cost, bound)
        if is_done or end.is_over or number >= _MOST_ROUNDS:
            break
        fits = not violated.any() or float((found / scenarios.limit).max()) <= 1 + 2 * engine_gap
        if fits and len(active) == len(everything):
            if not violated.any() and engine_gap <= _LEAST_GAP:
                break
            engine_gap = max(_LEAST_GAP, engine_gap / _GAP_FACTOR)
        # All scenarios once those that matter fit; else those that were violated before.
        active = everything if fits or not was_violated.any() else np.flatnonzero(was_violated)
    seconds = time.perf_counter() - begin
    reached = best_cost - bound <= gap * best_cost
    bound = min(bound, best_cost)  # rounding of duals may pass it in the last digit
    return Upgrade(best, best_cost, bound, utilisation, number, len(cuts.right), seconds, reached), cuts


def buy_modules(
    scenarios: Scenarios,
    cuts: _Cuts,
    sizes: Sequence[tuple[float, float]],
    *,
    deadline: Deadline | None = None,
    report: Callable[[int, float, float], None] | None = None,
) -> Upgrade:
    """The cheapest purchase in whole modules, over the cuts of :func:`buy`, until every scenario fits.

    Args:
        scenarios: what has to fit.
        cuts: of :func:`buy`, to which more are added.
        sizes: Gbit/s of each kind of module, and what it costs for each unit of a cable's cost.
        deadline: after which the last purchase that fits is returned.
        report: called after each round with its number, the cost of the last purchase that fits, and the bound.

    Raises:
        InputError: a size or price that is not above 0.
        SolverError: no purchase covers the cuts, or HiGHS failed.
    """
    begin, end = time.perf_counter(), deadline or Deadline(math.inf)
    if not sizes or any(not (math.isfinite(size) and size > 0 and price > 0) for size, price in sizes):
        raise InputError("upgrade", "modules", "sizes and prices above 0", list(sizes))
    size = np.array([one for one, _ in sizes])
    price = np.array([one for _, one in sizes])
    tester, everything = _Tester(scenarios), np.arange(len(scenarios.demand))
    cost = (scenarios.cost[:, None] * price[None]).reshape(-1)
    best, best_cost, bound = np.full(scenarios.num_cables, np.nan), math.inf, 0.0
    utilisation, number, engine_gap = np.zeros(len(everything)), 0, 1e-3
    while True:
        number += 1
        left = max(1.0, min(end.left, 1e6))
        chosen, proven = _whole(cuts, size, cost, left)
        bound = max(bound, proven)
        point = (chosen.reshape(-1, len(size)) * size).sum(1)
        found, right, coefficient, _ = tester.test(point, everything, engine_gap, Deadline())
        lacking = right - coefficient @ point
        violated = lacking > _VIOLATED * np.maximum(np.abs(right), 1e-300)
        if float(found.max()) <= scenarios.limit * (1 + _FITS) and float(cost @ chosen) < best_cost:
            best, best_cost, utilisation = point, float(cost @ chosen), found
        if report is not None:
            report(number, best_cost, bound)
        if violated.any():
            cuts.add(coefficient[violated], right[violated])
        elif math.isfinite(best_cost) or engine_gap <= _LEAST_GAP:
            break
        else:
            engine_gap = max(_LEAST_GAP, engine_gap / _GAP_FACTOR)
        if end.is_over or number >= _MOST_ROUNDS:
            break
    if not math.isfinite(best_cost):
        raise SolverError("upgrade: no purchase of modules that fits was found in time")
    seconds = time.perf_counter() - begin
    return Upgrade(
        best,
        best_cost,
        min(bound, best_cost),
        utilisation,
        number,
        len(cuts.right),
        seconds,
        best_cost <= bound * (1 + 1e-9),
    )


def _master(scenarios: Scenarios, cuts: _Cuts) -> tuple[FloatArray, float]:
    """The cheapest purchase that keeps the cuts, and its bound, from duals that are made feasible."""
    result = linprog(scenarios.cost, -cuts.coefficient, -cuts.right, bounds=(0, None), method="highs")
    if result.status != 0:
        raise SolverError(f"upgrade: HiGHS: {result.message}")
    dual = np.maximum(-result.ineqlin.marginals, 0.0)
    used = dual @ cuts.coefficient
    scale = float((scenarios.cost / np.maximum(used, 1e-300)).min())
    return np.maximum(result.x, 0.0), float(dual @ cuts.right) * min(1.0, scale)


def _whole(cuts: _Cuts, size: FloatArray, cost: FloatArray, seconds: float) -> tuple[FloatArray, float]:
    """Whole numbers (C K,) of modules that keep the cuts, and the bound on their cost."""
    if not len(cuts.right):
        return np.zeros(len(cost)), 0.0
    rows = np.repeat(cuts.coefficient, len(size), axis=1) * np.tile(size, cuts.coefficient.shape[1])[None]
    result = milp(
        cost, constraints=LinearConstraint(sp.csr_array(rows), lb=cuts.right), integrality=np.ones(len(cost)),
        bounds=Bounds(0, np.inf), options={"time_limit": seconds, "mip_rel_gap": 1e-6},
    )  # fmt: skip
    if result.x is None:
        raise SolverError(f"upgrade: HiGHS: {result.message}")
    bound = result.mip_dual_bound if result.mip_dual_bound is not None else result.fun
    return np.round(result.x), float(bound)


def scenarios_of(
    problem: Problem,
    matrices: FloatArray,
    failures: Sequence[Sequence[int]],
    cost: FloatArray,
    limit: float,
    growth: float = 1.0,
) -> tuple[Scenarios, dict[int, list[int]]]:
    """Every matrix under no failure and under each; and for each failure the demands that it cuts off.

    Demands without a live path in a scenario are not in it: no purchase on the given cables could carry them.

    Args:
        problem: network and paths, B = 1.
        matrices: (M, D) Gbit/s.
        failures: links of each.
        cost: (C,) of a Gbit/s on each cable, in the order of ``problem.topology.cables()``.
        limit: largest utilisation, above 0.
        growth: factor of all demands.
    """
    topology = problem.topology
    cable = np.zeros(topology.num_links, dtype=np.int64)
    for number, links in enumerate(topology.cables()):
        cable[links] = number
    sets: list[Sequence[int]] = [[], *failures]
    live = np.ones((len(sets), topology.num_links), dtype=bool)
    for row, failed in enumerate(sets):
        live[row, list(failed)] = False
    live &= topology.capacity[None] > 0
    capacity = torch.from_numpy(np.where(live, topology.capacity[None], 0.0)).to(problem.demand)
    several = dataclasses.replace(problem, demand=problem.demand.expand(len(sets), -1), capacity=capacity)
    routable = several.routable.numpy()
    wanted = (matrices > 0).any(0)
    cut_off = {
        row - 1: np.flatnonzero(~routable[row] & wanted).tolist()
        for row in range(1, len(sets)) if (~routable[row] & wanted).any()
    }  # fmt: skip
    demand = growth * np.repeat(matrices, len(sets), axis=0) * np.tile(routable, (len(matrices), 1))
    balanced = dataclasses.replace(problem, objective=Objective("max_link_utilisation")).to(torch.float64)
    return Scenarios(balanced, demand, np.tile(live, (len(matrices), 1)), cable, cost, limit), cut_off
