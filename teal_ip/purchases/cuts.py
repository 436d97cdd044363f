"""Cuts: what the prices of one scenario prove about every purchase that serves it; and the cheapest
purchase that keeps them.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError, SolverError
from teal.problem import Problem
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.lp import Between, solve_lp, solve_milp
from teal_ip.purchases.scenarios import Scenarios

_CUTS_AT_A_TIME = 64  # cuts whose prices are summed along all paths in one array
_VIOLATED = 1e-7  # of a cut, relative to its right side, from which on it is added


class Cuts:
    """Rows coefficient' a >= needed - existing.

    With prices y of the live links of a scenario, u the limit, c the capacities before the
    purchase:

        coefficient_c = u sum of y over the links of cable c,   existing = u sum_e c_e y_e,
        needed = sum_d demand_d min over live paths of sum_{e in path} y_e.

    Each row is divided by its largest coefficient.  ``needed`` is in proportion to the demands, so
    that a cut holds for other growths too.

    Attributes:
        coefficient: (n, C).
        needed: (n,).
        existing: (n,).
        prices: (n, E), y of each row.
        row: (n,) number of the scenario of each row.
    """

    def __init__(self, cables: int, links: int) -> None:
        self.coefficient, self.needed, self.existing = (
            np.zeros((0, cables)),
            np.zeros(0),
            np.zeros(0),
        )
        self.prices, self.row = np.zeros((0, links)), np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.needed)

    def right(self, growth: float = 1.0) -> FloatArray:
        """(n,) right sides, with all demands times ``growth``."""
        return growth * self.needed - self.existing

    def add(self, more: Cuts) -> None:
        """Add rows."""
        for name in ("coefficient", "needed", "existing", "prices", "row"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(more, name)]))

    def some(self, rows: FloatArray | Int64Array) -> Cuts:
        """Some of the rows."""
        part = Cuts(self.coefficient.shape[1], self.prices.shape[1])
        for name in ("coefficient", "needed", "existing", "prices", "row"):
            setattr(part, name, getattr(self, name)[rows])
        return part

    def at_growth(self, factor: float) -> Cuts:
        """The cuts with all demands times a factor."""
        scaled = self.some(np.arange(len(self)))
        scaled.needed = factor * scaled.needed
        return scaled

    def lacking(self, bought: FloatArray) -> FloatArray:
        """(n,) by how much a purchase (C,) misses each row, relative to its terms; above 0 where it
        is missed.
        """
        right = self.right()
        size = np.maximum(np.abs(right), 1e-300)
        lacking = (right - self.coefficient @ bought) / size
        return np.where(lacking > _VIOLATED, lacking, 0.0)

    def over_paths(self, scenarios: Scenarios) -> None:
        """Compute ``needed`` again over other candidate paths, since a cut over fewer paths may
        demand too much.
        """
        for first in range(0, len(self), _CUTS_AT_A_TIME):
            part = slice(first, first + _CUTS_AT_A_TIME)
            problem = scenarios.batch(self.row[part], np.zeros(scenarios.num_cables))
            self.needed[part] = cheapest_cost(problem, self.prices[part])


def cheapest_cost(problem: Problem, prices: FloatArray) -> FloatArray:
    """(B,) sum over the demands of demand times its cheapest live path under prices (B, E)."""
    import torch

    cheapest = problem.cheapest_path_cost(
        problem.ops.path_sum(torch.from_numpy(np.ascontiguousarray(prices)))
    )
    return np.asarray((problem.demand * cheapest).sum(1).numpy())


def cuts_of(scenarios: Scenarios, rows: Int64Array, prices: FloatArray, needed: FloatArray) -> Cuts:
    """The cuts that prices (n, E) of some scenarios prove; rows without a price on any cable are
    left out.

    Args:
        scenarios: scenarios whose numbers the rows are.
        rows: (n,).
        prices: (n, E) at least 0, 0 on failed links.
        needed: (n,) of each.
    """
    limit, links = scenarios.limit, len(scenarios.cable)
    of_cable = sp.csr_array((np.ones(links), (np.arange(links), scenarios.cable)))
    coefficient = limit * np.asarray(prices @ of_cable.toarray())
    largest = coefficient.max(1)
    usable = largest > 0
    scale = 1.0 / largest[usable]
    cuts = Cuts(scenarios.num_cables, links)
    cuts.coefficient = coefficient[usable] * scale[:, None]
    cuts.prices = prices[usable] * scale[:, None]
    cuts.needed = needed[usable] * scale
    cuts.existing = limit * (
        prices[usable] * np.where(scenarios.live[rows[usable]], scenarios.regular, 0.0)
    ).sum(1)
    cuts.existing *= scale
    cuts.row = rows[usable]
    return cuts


def cheapest_purchase(scenarios: Scenarios, cuts: Cuts) -> tuple[FloatArray, float, FloatArray]:
    """The cheapest purchase (C,) that keeps the cuts, its bound, and the duals (n,) that prove it.

    With l >= 0 of the cuts and m = max(0, coefficient' l - cost) of the limits of cables, every
    purchase that keeps both costs at least right' l - most' m.  HiGHS's duals are clipped at 0, and
    scaled where a cable without a limit would cost more than its price.

    Raises:
        InputError: the limits of the cables forbid every purchase.
        SolverError: HiGHS failed.
    """
    right = cuts.right()
    if not len(cuts):
        return np.zeros(scenarios.num_cables), 0.0, np.zeros(0)
    result = solve_lp(scenarios.cost, (-cuts.coefficient, -right), high=scenarios.most)
    if result.is_infeasible:
        raise InputError(
            "upgrade",
            "purchase",
            "cables that may be bought in sufficient amounts",
            _bottleneck(scenarios, cuts),
        )
    amounts, dual = result.solution("upgrade"), result.duals
    used = dual @ cuts.coefficient
    free = np.isinf(scenarios.most)
    scale = min(
        1.0, float((scenarios.cost[free] / np.maximum(used[free], 1e-300)).min(initial=1.0))
    )
    dual *= scale
    excess = np.maximum(scale * used - scenarios.cost, 0.0)
    bound = float(dual @ right) - float(
        np.where(excess > 0, np.where(free, 0.0, scenarios.most), 0.0) @ excess
    )
    return np.maximum(amounts, 0.0), bound, dual


def _bottleneck(scenarios: Scenarios, cuts: Cuts) -> str:
    """The scenario of the cut that the most that can be bought misses by most, for a message."""
    most = np.where(np.isinf(scenarios.most), 1e15, scenarios.most)
    worst = int(np.argmax(cuts.right() - cuts.coefficient @ most))
    topology, row = scenarios.problem.topology, int(cuts.row[worst])
    failed = [
        topology.link_name(int(e))
        for e in np.flatnonzero(~scenarios.live[row] & (topology.capacity > 0))
    ]
    names = [topology.link_name(int(e)) for e in np.argsort(-cuts.prices[worst])[:3]]
    return f"too little can be bought around {', '.join(names)}" + (
        f" when {', '.join(failed)} fail" if failed else ""
    )


def cheapest_modules(
    scenarios: Scenarios, cuts: Cuts, size: FloatArray, price: FloatArray, seconds: float
) -> tuple[Int64Array, float]:
    """Whole numbers (C, J) of modules that keep the cuts at the least cost, and the bound on it.

    Args:
        scenarios: for costs and limits.
        cuts: to keep.
        size: (J,) Gbit/s of each kind of module.
        price: (J,) of each, in units of a cable's cost.
        seconds: time that HiGHS may take.

    Raises:
        InputError: no numbers of modules keep the cuts.
        SolverError: HiGHS found none in time.
    """
    cables, kinds = scenarios.num_cables, len(size)
    if not len(cuts):
        return np.zeros((cables, kinds), dtype=np.int64), 0.0
    cost = (scenarios.cost[:, None] * price[None]).reshape(-1)
    rows = np.repeat(cuts.coefficient, kinds, axis=1) * np.tile(size, cables)[None]
    constraints = [Between(rows, low=cuts.right())]
    limited = np.flatnonzero(np.isfinite(scenarios.most))
    if len(limited):
        per_cable = sp.kron(sp.eye_array(cables), size[None]).tocsr()[limited]
        constraints.append(Between(per_cable, high=scenarios.most[limited]))
    result = solve_milp(cost, constraints, np.ones(len(cost)), seconds=seconds, relative_gap=1e-6)
    if result.is_infeasible:
        raise InputError(
            "--modules", "sizes", "modules that cover what is needed", _bottleneck(scenarios, cuts)
        )
    if result.x is None:
        raise SolverError(f"upgrade: HiGHS: {result.message}")
    return np.round(result.x).astype(np.int64).reshape(cables, kinds), max(result.bound, 0.0)
