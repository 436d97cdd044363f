"""Benders cuts from the dual prices of scenarios, and the master program over them.

Axis letters: n cuts, C cables, E links, J module sizes.  Entry points: :class:`Cuts`,
:func:`make_cuts`, :func:`cheapest_expansion` (linear program), :func:`cheapest_modules` (integer
program).
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError, SolverError
from teal.problem import Problem
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.lp import RangeConstraint, solve_lp, solve_milp
from teal_ip.purchases.scenarios import Scenarios

# Number of cuts whose prices are summed along all paths in one array.
_CUTS_AT_A_TIME = 64
# Relative violation (over the right-hand side) above which a cut is added.
_MIN_VIOLATION = 1e-7


class Cuts:
    """Benders cuts, which every expansion a (C,) must satisfy: coefficient a >= needed - existing.

    With dual prices y of the live links of a scenario, the utilisation limit u, and the capacities
    c before the expansion:

        coefficient[k] = u sum of y_e over the links e of cable k,   existing = u sum_e c_e y_e,
        needed = sum_d demand_d min over live paths of sum_{e in path} y_e.

    Each row is divided by its largest coefficient.  ``needed`` is proportional to the demands, so a
    cut can be scaled to other growths.

    Attributes:
        coefficient: (n, C) coefficients.
        needed: (n,) cost of all demands under the prices.
        existing: (n,) value of the existing capacity under the prices.
        prices: (n, E) link prices y of each row.
        row: (n,) index of the scenario of each row.

    Args:
        num_cables: number of cables, C.
        num_links: number of links, E.
    """

    def __init__(self, num_cables: int, num_links: int) -> None:
        self.coefficient = np.zeros((0, num_cables))
        self.needed = np.zeros(0)
        self.existing = np.zeros(0)
        self.prices = np.zeros((0, num_links))
        self.row = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.needed)

    def rhs(self, growth: float = 1.0) -> FloatArray:
        """Return right-hand sides (n,), growth * needed - existing, for demands times growth."""
        return growth * self.needed - self.existing

    def add(self, more: Cuts) -> None:
        """Append the cuts of ``more`` to these, in place."""
        for name in ("coefficient", "needed", "existing", "prices", "row"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(more, name)]))

    def select(self, rows: FloatArray | Int64Array) -> Cuts:
        """Return the cuts with these indices, as a copy."""
        selected = Cuts(self.coefficient.shape[1], self.prices.shape[1])
        for name in ("coefficient", "needed", "existing", "prices", "row"):
            setattr(selected, name, getattr(self, name)[rows])
        return selected

    def scaled(self, factor: float) -> Cuts:
        """Return the cuts for demands that are all multiplied by a factor, as a copy."""
        scaled = self.select(np.arange(len(self)))
        scaled.needed = factor * scaled.needed
        return scaled

    def relative_violation(self, added_capacity: FloatArray) -> FloatArray:
        """Return the relative violation (n,) of each cut by an expansion (C,), Gbit/s; 0 if
        satisfied.
        """
        rhs = self.rhs()
        scale = np.maximum(np.abs(rhs), 1e-300)
        violation = (rhs - self.coefficient @ added_capacity) / scale
        return np.where(violation > _MIN_VIOLATION, violation, 0.0)

    def over_paths(self, scenarios: Scenarios) -> None:
        """Recompute ``needed`` over other candidate paths.

        After paths are added, a demand may have a cheaper path, and the old cuts may be invalid.

        Args:
            scenarios: the scenarios, over the other paths.
        """
        for first in range(0, len(self), _CUTS_AT_A_TIME):
            block = slice(first, first + _CUTS_AT_A_TIME)
            problem = scenarios.batch(self.row[block], np.zeros(scenarios.num_cables))
            self.needed[block] = cheapest_cost(problem, self.prices[block])


def cheapest_cost(problem: Problem, prices: FloatArray) -> FloatArray:
    """Return the total cost (B,) of all demands on their cheapest live paths.

    Args:
        problem: B matrices.
        prices: (B, E) link prices.
    """
    import torch

    cheapest = problem.cheapest_path_cost(
        problem.ops.path_sum(torch.from_numpy(np.ascontiguousarray(prices)))
    )
    return np.asarray((problem.demand * cheapest).sum(1).numpy())


def make_cuts(
    scenarios: Scenarios, scenario_indices: Int64Array, prices: FloatArray, needed: FloatArray
) -> Cuts:
    """Build the cuts of dual prices of some scenarios; rows that price no cable are dropped.

    Args:
        scenarios: all scenarios (matrices under failures).
        scenario_indices: (n,) indices of the scenarios.
        prices: (n, E) link prices, at least 0, 0 on failed links.
        needed: (n,) cost of all demands under the prices.
    """
    max_utilisation = scenarios.max_utilisation
    num_links = len(scenarios.cable)
    # Incidence (E, C): 1 for the cable of each link.
    cable_of_link = sp.csr_array((np.ones(num_links), (np.arange(num_links), scenarios.cable)))
    # Coefficients (n, C): sums of the prices of each cable's links.
    coefficient = max_utilisation * np.asarray(prices @ cable_of_link.toarray())
    largest_coefficient = coefficient.max(1)
    has_price = largest_coefficient > 0
    # Divide each row by its largest coefficient.
    scale = 1.0 / largest_coefficient[has_price]
    cuts = Cuts(scenarios.num_cables, num_links)
    cuts.coefficient = coefficient[has_price] * scale[:, None]
    cuts.prices = prices[has_price] * scale[:, None]
    cuts.needed = needed[has_price] * scale
    # Value of the existing capacity of the links that are up in the scenario.
    cuts.existing = max_utilisation * (
        prices[has_price]
        * np.where(scenarios.live[scenario_indices[has_price]], scenarios.existing_capacity, 0.0)
    ).sum(1)
    cuts.existing *= scale
    cuts.row = scenario_indices[has_price]
    return cuts


def cheapest_expansion(scenarios: Scenarios, cuts: Cuts) -> tuple[FloatArray, float, FloatArray]:
    """Solve the master program: the cheapest expansion in any amounts that satisfies the cuts.

        min cost' a   s.t.   coefficient a >= rhs,   0 <= a <= max_added

    With duals l >= 0 of the cuts and m = max(0, coefficient' l - cost) of the limits of cables, the
    cost of every feasible expansion is at least rhs' l - max_added' m.  The duals of HiGHS are
    scaled down if the cuts price an unlimited cable above its cost.

    Args:
        scenarios: supplies costs and limits of the cables.
        cuts: Benders cuts to satisfy.

    Returns:
        the expansion (C,), Gbit/s; the lower bound on its cost; and the duals (n,) that prove it.

    Raises:
        InputError: the limits of the cables make every expansion infeasible.
        SolverError: HiGHS failed.
    """
    rhs = cuts.rhs()
    if not len(cuts):
        return np.zeros(scenarios.num_cables), 0.0, np.zeros(0)
    result = solve_lp(scenarios.cost, (-cuts.coefficient, -rhs), high=scenarios.max_added)
    if result.is_infeasible:
        raise InputError.invalid(
            "upgrade",
            "candidates",
            f"no expansion within the limits of cables suffices: {_bottleneck(scenarios, cuts)}",
            "raise the column 'most' or offer more cables",
        )
    # Feasible duals: scaled down if the cuts price an unlimited cable above its cost, since no dual
    # of a limit can make up for the excess.
    added_capacity = result.solution("upgrade")
    dual = result.duals
    # Value (C,) of a Gbit/s on each cable under the duals.
    cable_price = dual @ cuts.coefficient
    is_unlimited = np.isinf(scenarios.max_added)
    dual_scale = min(
        1.0,
        float(
            (scenarios.cost[is_unlimited] / np.maximum(cable_price[is_unlimited], 1e-300)).min(
                initial=1.0
            )
        ),
    )
    dual *= dual_scale
    # Bound: rhs' l, less the excess over the cost of limited cables times their limits.
    excess = np.maximum(dual_scale * cable_price - scenarios.cost, 0.0)
    bound = float(dual @ rhs) - float(
        np.where(excess > 0, np.where(is_unlimited, 0.0, scenarios.max_added), 0.0) @ excess
    )
    return np.maximum(added_capacity, 0.0), bound, dual


def _bottleneck(scenarios: Scenarios, cuts: Cuts) -> str:
    """Return the clause of a message on the scenario whose cut the largest allowed expansion
    violates most: links with the highest prices, and failed links.

    Args:
        scenarios: scenarios of the cuts, with the limits of the cables.
        cuts: Benders cuts.
    """
    # A huge finite amount stands for no limit, since 0 times infinity is NaN.
    largest_expansion = np.where(np.isinf(scenarios.max_added), 1e15, scenarios.max_added)
    most_violated_cut = int(np.argmax(cuts.rhs() - cuts.coefficient @ largest_expansion))
    topology = scenarios.problem.topology
    scenario_index = int(cuts.row[most_violated_cut])
    failed = [
        topology.link_name(int(e))
        for e in np.flatnonzero(~scenarios.live[scenario_index] & (topology.capacity > 0))
    ]
    # The three links with the highest prices.
    names = [topology.link_name(int(e)) for e in np.argsort(-cuts.prices[most_violated_cut])[:3]]
    return f"too little capacity around {', '.join(names)}" + (
        f" when {', '.join(failed)} fail" if failed else ""
    )


def cheapest_modules(
    scenarios: Scenarios, cuts: Cuts, size: FloatArray, price: FloatArray, seconds: float
) -> tuple[Int64Array, float]:
    """Solve the integer master program: the cheapest modules that satisfy the cuts.

    Args:
        scenarios: supplies costs and limits of the cables.
        cuts: Benders cuts to satisfy.
        size: (J,) Gbit/s of each module size.
        price: (J,) price of each size, in units of a cable's cost.
        seconds: time limit of HiGHS.

    Returns:
        numbers of modules (C, J), and the lower bound on their cost.

    Raises:
        InputError: no numbers of modules satisfy the cuts.
        SolverError: HiGHS found no solution in time.
    """
    num_cables = scenarios.num_cables
    num_sizes = len(size)
    if not len(cuts):
        return np.zeros((num_cables, num_sizes), dtype=np.int64), 0.0
    # Variables: number of modules, cable by cable; a module adds its size to the cable.
    cost = (scenarios.cost[:, None] * price[None]).reshape(-1)
    rows = np.repeat(cuts.coefficient, num_sizes, axis=1) * np.tile(size, num_cables)[None]
    constraints = [RangeConstraint(rows, low=cuts.rhs())]
    # Rows of the limits: the sizes of a cable's modules sum to at most its limit.
    limited_cables = np.flatnonzero(np.isfinite(scenarios.max_added))
    if len(limited_cables):
        added_capacity_rows = sp.kron(sp.eye_array(num_cables), size[None]).tocsr()[limited_cables]
        constraints.append(
            RangeConstraint(added_capacity_rows, high=scenarios.max_added[limited_cables])
        )
    result = solve_milp(cost, constraints, np.ones(len(cost)), seconds=seconds, relative_gap=1e-6)
    if result.is_infeasible:
        raise InputError.invalid(
            "--modules",
            "",
            f"no modules within the limits of cables suffice: {_bottleneck(scenarios, cuts)}",
            "offer smaller modules or more cables",
        )
    if result.x is None:
        raise SolverError(f"upgrade: HiGHS found no modules in time: {result.message}")
    return np.round(result.x).astype(np.int64).reshape(num_cables, num_sizes), max(
        result.bound, 0.0
    )
