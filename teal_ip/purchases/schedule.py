"""Expansion schedules: the expansion of a horizon, spread over periods, each as late as its
traffic allows.

In period q all demands are scaled by g_q.  First the cheapest expansion of the last period is
found (in modules, if given), so that no small modules are bought that a larger one replaces later.
Then backwards, for every earlier period,

    min k'a_q   over the cuts with the demands of period q,   0 <= a_q <= a_{q+1},

where a_q is the expansion until period q and k the cost per cable.  With modules a_q counts them,
so each module of period q is one of period q + 1, too.  Each period's expansion is tested and cut,
and its cost is compared with the bound of an expansion for this period alone.  If demands fall, g_q
above is the largest factor so far, since capacity is never removed.

Axis letters: S scenarios, C cables, E links, J module sizes.  Entry points: :func:`schedule`,
:func:`schedule_of_loads`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from teal.errors import SolverError
from teal.runtime import rounding
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import RangeConstraint, solve_milp
from teal_ip.purchases.benders import (
    Upgrade,
    expand_capacity,
    expand_for_loads,
    expand_in_modules,
    needs,
)
from teal_ip.purchases.cuts import Cuts, cheapest_expansion, cheapest_modules
from teal_ip.purchases.scenarios import Scenarios
from teal_ip.purchases.testing import Tester

# Smallest certified gap of the solver in a test.
_MIN_GAP = 1e-4
# Time limit of HiGHS for the bound on the cost of a period's modules, seconds.
_MODULE_SECONDS = 20.0
# Maximum number of rounds of cutting and testing of a period.
_MAX_ROUNDS = 60


@dataclasses.dataclass(frozen=True, eq=False)
class Period:
    """Expansion until the end of one period of a schedule.

    Attributes:
        growth: factor of all demands.
        bought: (C,) cumulative Gbit/s added to each link of a cable.
        cost: cumulative cost.
        bound: certified lower bound on the cost of an expansion for this period alone.
        utilisation: (S,) largest link utilisation in each scenario.
        modules: (C, J) cumulative number of modules of each size; None for any amounts.
    """

    growth: float
    bought: FloatArray
    cost: float
    bound: float
    utilisation: FloatArray
    modules: Int64Array | None = None


def schedule(
    scenarios: Scenarios,
    growths: Sequence[float],
    *,
    gap: float = 1e-2,
    sizes: Sequence[tuple[float, float]] = (),
    deadline: Deadline | None = None,
    notify: Callable[[str], None] | None = None,
    cuts: Cuts | None = None,
) -> tuple[list[Period], Upgrade, Scenarios, Cuts]:
    """Plan the expansion of each period, with the best splits in each scenario.

    Args:
        scenarios: matrices under failures, with today's demands.
        growths: factor of all demands in each period.
        gap: certified gap of the expansion for all periods.
        sizes: Gbit/s of each module size, and its price in units of a cable's cost; () for any
            amounts.
        deadline: time limit, after which the remaining earlier periods get the expansion of the
            period that follows them.
        notify: called with a message after each period.
        cuts: Benders cuts that hold for the largest demands, extended in place; None for none.

    Returns:
        the periods in time order, the expansion for all of them, its scenarios (with the largest
        demands) and its cuts.
    """
    # Largest factor until each period, and the expansion for the largest one.
    largest_growths = np.maximum.accumulate(growths).tolist()
    last_scenarios = scenarios.scaled(largest_growths[-1])
    upgrade, cuts = expand_capacity(last_scenarios, gap=gap, deadline=deadline, cuts=cuts)
    if sizes:
        upgrade = expand_in_modules(last_scenarios, cuts, sizes, deadline=deadline)
    module_size = np.array([amount for amount, _ in sizes]) if sizes else None
    module_price = np.array([unit_price for _, unit_price in sizes]) if sizes else None
    # Expansion of the following period, an upper bound on that of each earlier one.
    next_expansion = upgrade.bought if upgrade.modules is None else upgrade.modules
    # The last period has the whole expansion.
    period_by_growth = {
        largest_growths[-1]: Period(
            largest_growths[-1],
            upgrade.bought,
            upgrade.cost,
            upgrade.bound,
            upgrade.utilisation,
            upgrade.modules,
        )
    }
    # From the largest growth factor to the smallest: each expansion is at most the previous one.
    for growth in sorted(set(largest_growths[:-1]) - {largest_growths[-1]}, reverse=True):
        grown_scenarios = scenarios.scaled(growth)
        scaled_cuts = cuts.scaled(growth / largest_growths[-1])
        next_expansion, period = _plan_period(
            grown_scenarios,
            scaled_cuts,
            next_expansion,
            module_size,
            module_price,
            growth,
            deadline or Deadline(),
        )
        # The new cuts of this period, scaled to the largest demands, are valid for them.
        cuts.add(
            scaled_cuts.select(np.arange(len(cuts), len(scaled_cuts))).scaled(
                largest_growths[-1] / growth
            )
        )
        period_by_growth[growth] = period
        if notify is not None:
            notify(
                f"demands times {growth:.4g}: cost {period.cost:.6g}, lower bound for this period "
                f"alone {rounding.at_least(period.bound)}"
            )
    # In time order; a period of falling demands has the expansion of the earlier peak.
    periods = []
    for growth, largest_growth in zip(growths, largest_growths, strict=True):
        period = period_by_growth[largest_growth]
        if growth < largest_growth:
            bound = _bound(
                scenarios, cuts.scaled(growth / largest_growths[-1]), module_size, module_price
            )
            period = dataclasses.replace(
                period,
                growth=growth,
                bound=min(bound, period.cost),
                utilisation=growth / largest_growth * period.utilisation,
            )
        periods.append(period)
    return periods, upgrade, last_scenarios, cuts


def schedule_of_loads(
    scenarios: Scenarios,
    load: FloatArray,
    growths: Sequence[float],
    *,
    sizes: Sequence[tuple[float, float]] = (),
    deadline: Deadline | None = None,
) -> tuple[list[Period], Upgrade]:
    """Plan the expansion of each period under loads that do not depend on splits.

    Args:
        scenarios: matrices under failures, with today's demands.
        load: (S, E) Gbit/s today; growths scale it.
        growths: factor of all demands in each period.
        sizes: Gbit/s and price of each module size; () for any amounts.
        deadline: time limit of the search for modules; None for none.

    Returns:
        the periods in time order, and the expansion for all of them.
    """
    # Largest factor until each period, and the expansion for the largest one.
    largest_growths = np.maximum.accumulate(growths).tolist()
    upgrade = expand_for_loads(scenarios, largest_growths[-1] * load, sizes, deadline)
    # From the largest growth factor to the smallest; modules are among those of the later period.
    later_expansion = upgrade
    expansion_by_growth = dict[float, Upgrade]()
    for largest_growth in sorted(set(largest_growths), reverse=True):
        if largest_growth < largest_growths[-1]:
            later_expansion = _earlier_expansion(
                scenarios, largest_growth * load, sizes, deadline, later_expansion
            )
        expansion_by_growth[largest_growth] = later_expansion
    # In time order; a period of falling demands has the expansion of the earlier peak.
    periods = []
    for growth, largest_growth in zip(growths, largest_growths, strict=True):
        expansion = expansion_by_growth[largest_growth]
        period_bound = expansion_by_growth[largest_growth].bound
        if growth < largest_growth:
            period_bound = expand_for_loads(scenarios, growth * load, sizes, deadline).bound
        utilisation = scenarios.utilisation(growth * load, expansion.bought)
        periods.append(
            Period(
                growth,
                expansion.bought,
                expansion.cost,
                min(period_bound, expansion.cost),
                utilisation,
                expansion.modules,
            )
        )
    return periods, upgrade


def _earlier_expansion(
    scenarios: Scenarios,
    load: FloatArray,
    sizes: Sequence[tuple[float, float]],
    deadline: Deadline | None,
    later_expansion: Upgrade,
) -> Upgrade:
    """Return the expansion of a period whose modules are among those of the later period.

    Args:
        scenarios: supplies the cables, their costs and limits, and the utilisation limit.
        load: (S, E) Gbit/s in the period.
        sizes: Gbit/s and price of each module size; () for any amounts.
        deadline: time limit of the search for modules; None for none.
        later_expansion: expansion of the next period.
    """
    # Expansion for this period alone; in any amounts it never exceeds that of the later period.
    alone_expansion = expand_for_loads(scenarios, load, sizes, deadline)
    if later_expansion.modules is None:
        return alone_expansion
    # Cheapest modules (C, J), as integers, that give every cable what it needs.
    module_size, module_price = np.array(sizes).T
    unit_cost = scenarios.cost[:, None] * module_price
    cuts = needs(scenarios, scenarios.needed(load))
    num_modules = np.asarray(
        _cheapest_below(cuts, later_expansion.modules, module_size, unit_cost, True), dtype=np.int64
    )
    cost = float((unit_cost * num_modules).sum())
    return dataclasses.replace(
        alone_expansion, modules=num_modules, bought=(num_modules * module_size).sum(1), cost=cost
    )


def _plan_period(
    scenarios: Scenarios,
    cuts: Cuts,
    next_expansion: FloatArray | Int64Array,
    module_size: FloatArray | None,
    module_price: FloatArray | None,
    growth: float,
    deadline: Deadline,
) -> tuple[FloatArray | Int64Array, Period]:
    """Return the cheapest expansion of a period that on every cable is at most the next period's.

    Args:
        scenarios: scenarios with the demands of the period.
        cuts: Benders cuts with the demands of the period, extended in place.
        next_expansion: (C,) Gbit/s, or (C, J) modules, of the next period.
        module_size: (J,) Gbit/s of each module size; None for any amounts.
        module_price: (J,) price of each size, in units of a cable's cost; None for any amounts.
        growth: factor of all demands.
        deadline: time limit, after which the expansion of the next period is used.

    Returns:
        the expansion, in the form of ``next_expansion``, and the period.
    """
    tester = Tester(scenarios)
    all_scenarios = np.arange(scenarios.num_scenarios)
    # Units are modules of J sizes, or Gbit/s (J = 1) in any amounts: Gbit/s of a unit (J,), cost of
    # a unit on each cable (C, J), and largest number of units (C, J).
    unit_size = np.ones(1) if module_size is None else module_size
    unit_cost = (
        scenarios.cost[:, None] * (np.ones(1) if module_price is None else module_price)[None]
    )
    max_units = next_expansion.reshape(scenarios.num_cables, -1)
    # Cutting planes: add the violated Benders cuts and solve again, until no cut is violated.
    for _ in range(_MAX_ROUNDS):
        num_units = (
            max_units
            if deadline.is_over
            else _cheapest_below(cuts, max_units, unit_size, unit_cost, module_size is not None)
        )
        bought = (num_units * unit_size).sum(1)
        tested = tester.test(bought, all_scenarios, deadline, min_gap=_MIN_GAP, stop_at_cut=True)
        if not len(tested.cuts):
            break
        cuts.add(tested.cuts)
    # Gbit/s (C,) that the loads of the test need, at most those of the next period.
    needed = np.minimum(
        np.maximum(scenarios.needed(tested.load), bought), (max_units * unit_size).sum(1)
    )
    # The splits of the test are optimal within the solver's gap only, and may need more than the
    # cuts require: enlarge, up to the expansion of the next period.
    if module_size is None:
        bought = needed
        num_units = needed[:, None]
    elif not tested.fits.all():
        lacks_capacity = (needed > bought * (1 + 1e-9))[:, None]
        num_units = np.where(lacks_capacity, max_units, num_units)
        bought = (num_units * unit_size).sum(1)
    bound = _bound(scenarios, cuts, module_size, module_price)
    cost = float((unit_cost * num_units).sum())
    utilisation = scenarios.utilisation(tested.load, bought)
    modules = None if module_size is None else np.asarray(num_units, dtype=np.int64)
    return num_units.reshape(next_expansion.shape), Period(
        growth, bought, cost, min(bound, cost), utilisation, modules
    )


def _bound(
    scenarios: Scenarios,
    cuts: Cuts,
    module_size: FloatArray | None,
    module_price: FloatArray | None,
) -> float:
    """Return a lower bound on the cost of every expansion that satisfies the cuts.

    Args:
        scenarios: supplies costs and limits of the cables.
        cuts: the Benders cuts.
        module_size: (J,) Gbit/s of each module size; None for any amounts.
        module_price: (J,) price of each size, in units of a cable's cost; None for any amounts.
    """
    if module_size is None or module_price is None:
        return cheapest_expansion(scenarios, cuts)[1]
    return cheapest_modules(scenarios, cuts, module_size, module_price, _MODULE_SECONDS)[1]


def _cheapest_below(
    cuts: Cuts,
    max_units: FloatArray | Int64Array,
    unit_size: FloatArray,
    unit_cost: FloatArray,
    in_modules: bool,
) -> FloatArray | Int64Array:
    """Return the cheapest units (C, J) that satisfy the cuts and are at most ``max_units``.

    Args:
        cuts: the Benders cuts, on the Gbit/s of each cable.
        max_units: (C, J) largest number of units.
        unit_size: (J,) Gbit/s of a unit: each module size, or 1 for any amounts.
        unit_cost: (C, J) cost of a unit.
        in_modules: whether units are integers.

    Raises:
        SolverError: HiGHS found no solution.
    """
    if not len(cuts):
        return np.zeros_like(max_units)
    # Variables: number of units, cable by cable; a unit adds its size to the cable.
    rows = (
        np.repeat(cuts.coefficient, len(unit_size), axis=1)
        * np.tile(unit_size, len(max_units))[None]
    )
    upper_bounds = max_units.reshape(-1).astype(np.float64)
    # The next period's expansion satisfies the cuts except for rounding: right-hand sides are
    # lowered to its value.
    rhs = np.minimum(cuts.rhs(), rows @ upper_bounds)
    is_integer = np.full(upper_bounds.size, int(in_modules))
    result = solve_milp(
        unit_cost.reshape(-1),
        [RangeConstraint(rows, low=rhs)],
        is_integer,
        high=upper_bounds,
        relative_gap=1e-6,
    )
    if result.x is None:
        raise SolverError(f"upgrade: HiGHS found no expansion of a period: {result.message}")
    if in_modules:
        return np.round(result.x).astype(np.int64).reshape(max_units.shape)
    return np.asarray(
        np.minimum(np.maximum(result.x, 0.0), upper_bounds).reshape(max_units.shape),
        dtype=np.float64,
    )
