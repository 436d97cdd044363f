r"""Schedules: the purchase of a horizon, spread over periods, each as late as its traffic allows.

Period q has all demands times g_q.  First the cheapest purchase for the last period is found (in
modules, if they are sold so): nothing is bought twice that one larger module would have covered.
Then backwards, for every period before,

    min k'a_q   over the cuts with the demands of period q,   0 <= a_q <= a_{q+1},

in modules of which none is bought before it is needed: each period's purchase is tested, cut, and
its cost is compared with the bound of a purchase for this period alone.  Where demands fall, g_q
above is the largest factor so far, since what was bought stays.
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

_MIN_GAP = 1e-4  # certified, of the engine in a test
_MODULE_SECONDS = 20.0  # that HiGHS may take for the bound of a period's modules
_MAX_ROUNDS = 60  # of a period


@dataclasses.dataclass(frozen=True, eq=False)
class Period:
    """One period of a schedule.

    Attributes:
        growth: factor of all demands.
        bought: (C,) Gbit/s that must be there by then, on each link of a cable.
        cost: cost of all that is bought by then.
        bound: certified, that no purchase for this period alone costs less.
        utilisation: (S,) largest of a link in each scenario.
        modules: (C, J) number of modules of each kind by then; None where any amounts can be
            bought.
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
    """Periods in time order, the purchase for all of them, and its scenarios (of the largest
    demands) and cuts.

    Args:
        scenarios: with the demands of today.
        growths: factor of all demands in each period.
        gap: certified gap of the purchase for all periods.
        sizes: sizes of modules and their prices, as :func:`buy_modules` takes them; () for any
            amounts.
        deadline: after which periods get what the last one has.
        notify: called with a line after each period.
        cuts: cuts that are known to hold for the largest demands; more are added to them.
    """
    peaks = np.maximum.accumulate(growths).tolist()
    last = scenarios.scaled(peaks[-1])
    upgrade, cuts = buy(last, gap=gap, deadline=deadline, cuts=cuts)
    if sizes:
        upgrade = buy_modules(last, cuts, sizes, deadline=deadline)
    size = np.array([one for one, _ in sizes]) if sizes else None
    price = np.array([one for _, one in sizes]) if sizes else None
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
    for growth in sorted(set(peaks[:-1]) - {peaks[-1]}, reverse=True):
        now = scenarios.scaled(growth)
        relative = cuts.at_growth(growth / peaks[-1])
        limit, period = _period(now, relative, limit, size, price, growth, deadline or Deadline())
        cuts.add(relative.some(np.arange(len(cuts), len(relative))).at_growth(peaks[-1] / growth))
        at_peak[growth] = period
        if notify is not None:
            notify(
                f"demands x {growth:.4g}: cost {period.cost:.6g}, alone at least "
                f"{rounding.at_least(period.bound)}"
            )
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
    """Periods in time order, and the purchase for all of them, under loads that no choice of splits
    changes.

    Args:
        scenarios: with the demands of today.
        load: (S, E) Gbit/s today, to which those of other growths are in proportion.
        growths: factor of all demands in each period.
        sizes: sizes of modules and their prices; () for any amounts.
        deadline: time after which the search for modules ends.
    """
    peaks = np.maximum.accumulate(growths).tolist()
    upgrade = buy_for_loads(scenarios, peaks[-1] * load, sizes, deadline)
    later, at_peak = upgrade, dict[float, Upgrade]()
    for peak in sorted(set(peaks), reverse=True):
        if peak < peaks[-1]:
            later = _before(scenarios, peak * load, sizes, deadline, later)
        at_peak[peak] = later
    periods = []
    for growth, peak in zip(growths, peaks, strict=True):
        there, alone = at_peak[peak], at_peak[peak].bound
        if growth < peak:
            alone = buy_for_loads(scenarios, growth * load, sizes, deadline).bound
        used = scenarios.utilisation(growth * load, there.bought)
        periods.append(
            Period(growth, there.bought, there.cost, min(alone, there.cost), used, there.modules)
        )
    return periods, upgrade


def _before(
    scenarios: Scenarios,
    load: FloatArray,
    sizes: Sequence[tuple[float, float]],
    deadline: Deadline | None,
    later: Upgrade,
) -> Upgrade:
    """The purchase of a period, of modules that are there later too."""
    alone = buy_for_loads(scenarios, load, sizes, deadline)
    if later.modules is None:
        return alone
    size, price = np.array(sizes).T
    unit_cost, cuts = scenarios.cost[:, None] * price, needs(scenarios, scenarios.needed(load))
    modules = np.asarray(
        _cheapest_below(cuts, later.modules, size, unit_cost, True), dtype=np.int64
    )
    cost = float((unit_cost * modules).sum())
    return dataclasses.replace(alone, modules=modules, bought=(modules * size).sum(1), cost=cost)


def _period(
    scenarios: Scenarios,
    cuts: Cuts,
    limit: FloatArray | Int64Array,
    size: FloatArray | None,
    price: FloatArray | None,
    growth: float,
    deadline: Deadline,
) -> tuple[FloatArray | Int64Array, Period]:
    """The latest purchase of a period: the amounts or modules of it, and the figures."""
    tester, everything = Tester(scenarios), np.arange(scenarios.num_scenarios)
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
    if size is None:  # what the engine's splits need beyond the cuts, within its gap
        point, chosen = needed, needed[:, None]
    elif not tested.fits.all():
        short = (needed > point * (1 + 1e-9))[:, None]
        chosen = np.where(short, upper, chosen)
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
    """Lower bound on the cost of every purchase that keeps the cuts, in any amounts or in
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
    whole: bool,
) -> FloatArray | Int64Array:
    """(C, J) the cheapest numbers of modules, or amounts, that keep the cuts and are at most
    ``upper``.
    """
    if not len(cuts):
        return np.zeros_like(upper)
    rows = np.repeat(cuts.coefficient, len(amounts), axis=1) * np.tile(amounts, len(upper))[None]
    most = upper.reshape(-1).astype(np.float64)
    right = np.minimum(
        cuts.right(), rows @ most
    )  # what the next period has fits this one, rounding aside
    is_whole = np.full(most.size, int(whole))
    result = solve_milp(
        unit_cost.reshape(-1), [Between(rows, low=right)], is_whole, high=most, relative_gap=1e-6
    )
    if result.x is None:
        raise SolverError(f"upgrade: HiGHS: {result.message}")
    if whole:
        return np.round(result.x).astype(np.int64).reshape(upper.shape)
    return np.asarray(
        np.minimum(np.maximum(result.x, 0.0), most).reshape(upper.shape), dtype=np.float64
    )
