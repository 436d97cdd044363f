r"""Expansion schedules: the expansion of a horizon, spread over periods, each as late as its
traffic allows.

In period q all demands are scaled by g_q.  First the cheapest expansion of the last period is
found (in modules, if given), so that no small modules are bought that a larger one replaces later.
Then backwards, for every earlier period,

    min k'a_q   over the cuts with the demands of period q,   0 <= a_q <= a_{q+1},

in modules of which none is bought before it is needed: each period's expansion is tested and cut,
and its cost is compared with the bound of an expansion for this period alone.  If demands fall, g_q
above is the largest factor so far, since capacity is never removed.  Entry points:
:func:`schedule`, :func:`schedule_of_loads`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from teal.errors import SolverError
from teal.runtime import rounding
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import Between, solve_milp
from teal_ip.purchases.benders import Upgrade, buy, buy_for_loads, buy_modules, needs
from teal_ip.purchases.cuts import Cuts, cheapest_modules, cheapest_purchase
from teal_ip.purchases.scenarios import Scenarios
from teal_ip.purchases.testing import Tester

# Smallest certified gap of the engine in a test.
_MIN_GAP = 1e-4
# Time limit of HiGHS for the bound of a period's modules, seconds.
_MODULE_SECONDS = 20.0
# Maximum number of rounds of a period.
_MAX_ROUNDS = 60


@dataclasses.dataclass(frozen=True, eq=False)
class Period:
    """One period of a schedule.

    Attributes:
        growth: factor of all demands.
        bought: (C,) cumulative Gbit/s on each link of a cable.
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
    """Return the periods in time order, the expansion for all of them, and its scenarios (with the
    largest demands) and cuts.

    Args:
        scenarios: scenarios with today's demands.
        growths: factor of all demands in each period.
        gap: certified gap of the expansion for all periods.
        sizes: module sizes and prices, as in :func:`buy_modules`; () for any amounts.
        deadline: time limit, after which periods get the capacity of the next one.
        notify: called with a line after each period.
        cuts: cuts that hold for the largest demands, extended in place.
    """
    # The last period.
    peaks = np.maximum.accumulate(growths).tolist()
    last = scenarios.scaled(peaks[-1])
    upgrade, cuts = buy(last, gap=gap, deadline=deadline, cuts=cuts)
    if sizes:
        upgrade = buy_modules(last, cuts, sizes, deadline=deadline)
    size = np.array([amount for amount, _ in sizes]) if sizes else None
    price = np.array([unit_price for _, unit_price in sizes]) if sizes else None
    limit = upgrade.bought if upgrade.modules is None else upgrade.modules
    at_peak = {
        peaks[-1]: Period(
            peaks[-1],
            upgrade.bought,
            upgrade.cost,
            upgrade.bound,
            upgrade.utilisation,
            upgrade.modules,
        )
    }
    # Backwards, by growth factor.
    for growth in sorted(set(peaks[:-1]) - {peaks[-1]}, reverse=True):
        grown_scenarios = scenarios.scaled(growth)
        scaled_cuts = cuts.at_growth(growth / peaks[-1])
        limit, period = _plan_period(
            grown_scenarios, scaled_cuts, limit, size, price, growth, deadline or Deadline()
        )
        # New cuts of this period hold for the largest demands, scaled.
        cuts.add(
            scaled_cuts.some(np.arange(len(cuts), len(scaled_cuts))).at_growth(peaks[-1] / growth)
        )
        at_peak[growth] = period
        if notify is not None:
            notify(
                f"demands x {growth:.4g}: cost {period.cost:.6g}, alone at least "
                f"{rounding.at_least(period.bound)}"
            )
    # In time order; periods of falling demands share the expansion of the peak before.
    periods = []
    for growth, peak in zip(growths, peaks, strict=True):
        period = at_peak[peak]
        if growth < peak:
            bound = _bound(scenarios, cuts.at_growth(growth / peaks[-1]), size, price)
            period = dataclasses.replace(
                period,
                growth=growth,
                bound=min(bound, period.cost),
                utilisation=growth / peak * period.utilisation,
            )
        periods.append(period)
    return periods, upgrade, last, cuts


def schedule_of_loads(
    scenarios: Scenarios,
    load: FloatArray,
    growths: Sequence[float],
    *,
    sizes: Sequence[tuple[float, float]] = (),
    deadline: Deadline | None = None,
) -> tuple[list[Period], Upgrade]:
    """Return the periods in time order, and the expansion for all of them, under loads that do not
    depend on splits.

    Args:
        scenarios: scenarios with today's demands.
        load: (S, E) Gbit/s today; other growths scale it.
        growths: factor of all demands in each period.
        sizes: module sizes and prices; () for any amounts.
        deadline: time limit of the search for modules.
    """
    peaks = np.maximum.accumulate(growths).tolist()
    upgrade = buy_for_loads(scenarios, peaks[-1] * load, sizes, deadline)
    # Backwards, by growth factor.
    later = upgrade
    at_peak = dict[float, Upgrade]()
    for peak in sorted(set(peaks), reverse=True):
        if peak < peaks[-1]:
            later = _earlier_expansion(scenarios, peak * load, sizes, deadline, later)
        at_peak[peak] = later
    # In time order; periods of falling demands share the expansion of the peak before.
    periods = []
    for growth, peak in zip(growths, peaks, strict=True):
        expansion = at_peak[peak]
        alone_bound = at_peak[peak].bound
        if growth < peak:
            alone_bound = buy_for_loads(scenarios, growth * load, sizes, deadline).bound
        utilisation = scenarios.utilisation(growth * load, expansion.bought)
        periods.append(
            Period(
                growth,
                expansion.bought,
                expansion.cost,
                min(alone_bound, expansion.cost),
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
    later: Upgrade,
) -> Upgrade:
    """Return the expansion of a period, with modules that the later one has, too."""
    alone_expansion = buy_for_loads(scenarios, load, sizes, deadline)
    if later.modules is None:
        return alone_expansion
    size, price = np.array(sizes).T
    unit_cost = scenarios.cost[:, None] * price
    cuts = needs(scenarios, scenarios.needed(load))
    modules = np.asarray(
        _cheapest_below(cuts, later.modules, size, unit_cost, True), dtype=np.int64
    )
    cost = float((unit_cost * modules).sum())
    return dataclasses.replace(
        alone_expansion, modules=modules, bought=(modules * size).sum(1), cost=cost
    )


def _plan_period(
    scenarios: Scenarios,
    cuts: Cuts,
    limit: FloatArray | Int64Array,
    size: FloatArray | None,
    price: FloatArray | None,
    growth: float,
    deadline: Deadline,
) -> tuple[FloatArray | Int64Array, Period]:
    """Return the latest expansion of a period: its amounts or modules, and its figures."""
    tester = Tester(scenarios)
    everything = np.arange(scenarios.num_scenarios)
    amounts = np.ones(1) if size is None else size
    unit_cost = scenarios.cost[:, None] * (np.ones(1) if price is None else price)[None]
    upper = limit.reshape(scenarios.num_cables, -1)
    for _ in range(_MAX_ROUNDS):
        chosen = (
            upper
            if deadline.is_over
            else _cheapest_below(cuts, upper, amounts, unit_cost, size is not None)
        )
        point = (chosen * amounts).sum(1)
        tested = tester.test(point, everything, deadline, finest=_MIN_GAP, until_cut=True)
        if not len(tested.cuts):
            break
        cuts.add(tested.cuts)
    needed = np.minimum(np.maximum(scenarios.needed(tested.load), point), (upper * amounts).sum(1))
    # Amounts that the engine's splits need beyond the cuts, within its gap.
    if size is None:
        point = needed
        chosen = needed[:, None]
    elif not tested.fits.all():
        is_short = (needed > point * (1 + 1e-9))[:, None]
        chosen = np.where(is_short, upper, chosen)
        point = (chosen * amounts).sum(1)
    bound = _bound(scenarios, cuts, size, price)
    cost = float((unit_cost * chosen).sum())
    utilisation = scenarios.utilisation(tested.load, point)
    modules = None if size is None else np.asarray(chosen, dtype=np.int64)
    return chosen.reshape(limit.shape), Period(
        growth, point, cost, min(bound, cost), utilisation, modules
    )


def _bound(
    scenarios: Scenarios, cuts: Cuts, size: FloatArray | None, price: FloatArray | None
) -> float:
    """Lower bound on the cost of every expansion that satisfies the cuts, in any amounts or in
    modules.
    """
    if size is None or price is None:
        return cheapest_purchase(scenarios, cuts)[1]
    return cheapest_modules(scenarios, cuts, size, price, _MODULE_SECONDS)[1]


def _cheapest_below(
    cuts: Cuts,
    upper: FloatArray | Int64Array,
    amounts: FloatArray,
    unit_cost: FloatArray,
    in_modules: bool,
) -> FloatArray | Int64Array:
    """Return the cheapest numbers of modules (C, J), or amounts, that satisfy the cuts and are at
    most ``upper``.
    """
    if not len(cuts):
        return np.zeros_like(upper)
    rows = np.repeat(cuts.coefficient, len(amounts), axis=1) * np.tile(amounts, len(upper))[None]
    upper_bounds = upper.reshape(-1).astype(np.float64)
    # The next period's expansion fits this one, except for rounding.
    rhs = np.minimum(cuts.rhs(), rows @ upper_bounds)
    is_integer = np.full(upper_bounds.size, int(in_modules))
    result = solve_milp(
        unit_cost.reshape(-1),
        [Between(rows, low=rhs)],
        is_integer,
        high=upper_bounds,
        relative_gap=1e-6,
    )
    if result.x is None:
        raise SolverError(f"upgrade: HiGHS: {result.message}")
    if in_modules:
        return np.round(result.x).astype(np.int64).reshape(upper.shape)
    return np.asarray(
        np.minimum(np.maximum(result.x, 0.0), upper_bounds).reshape(upper.shape), dtype=np.float64
    )
