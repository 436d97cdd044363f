"""The search for the cheapest purchase: tests and cuts in turn."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from teal.errors import InputError, SolverError
from teal.problem.bounds import gap_between
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal_ip.purchases.cuts import Cuts, cheapest_modules, cheapest_purchase
from teal_ip.purchases.scenarios import Scenarios
from teal_ip.purchases.testing import FITS, GAPS, Tester

_MIN_GAP = 3e-5  # certified, of the engine in a test
_MIN_MODULE_GAP = (
    1e-6  # the same where modules decide: the most that fits is not approached from above there
)
# scenarios, those that a purchase misses by most, that are tested alone until all of them fit
_FOCUS = 64
_FIRST_FOCUS = 256  # scenarios, of the first test of this kind, when nothing is known yet
_FOCUS_ROUNDS = 12  # tests of these alone, at most, before all scenarios are tested again
# Of the target gap, by which the master's purchase is enlarged in a test of all scenarios.
_INFLATION = 1.0 / 4.0
_MAX_ROUNDS = 300  # tests
_ROUNDING = 1e-9  # relative, by which modules may pass what can be bought at most

ReportRound = Callable[[int, float, float], None]
"""Called after each round with its number, the least cost found and the bound."""


@dataclasses.dataclass(frozen=True, eq=False)
class Upgrade:
    """A purchase.

    Attributes:
        bought: (C,) Gbit/s, on each link of a cable.
        cost: cost of the purchase.
        bound: certified, that no purchase costs less.
        utilisation: (S,) largest of a link in each scenario, with the purchase.
        rounds: rounds of tests.
        cuts: number of them.
        solve_s: seconds.
        reached: whether the target gap was reached.
        modules: (C, J) number of modules of each kind; None where any amounts can be bought.
        dual: (n,) of the first n cuts, which prove the bound; of modules those of the purchase in
            any amounts.
        bound_all_paths: what every purchase in any amounts costs at least, whichever paths are
            used; NaN if unknown.
    """

    bought: FloatArray
    cost: float
    bound: float
    utilisation: FloatArray
    rounds: int
    cuts: int
    solve_s: float
    reached: bool
    modules: Int64Array | None = None
    dual: FloatArray | None = None
    bound_all_paths: float = math.nan

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; 0 where nothing has to be bought."""
        return gap_between(self.cost, self.bound, -1.0) if self.cost > 0 else 0.0


def buy(
    scenarios: Scenarios,
    *,
    gap: float = 1e-2,
    deadline: Deadline | None = None,
    report: ReportRound | None = None,
    cuts: Cuts | None = None,
) -> tuple[Upgrade, Cuts]:
    """The cheapest purchase, in any amounts, to a certified gap; and the cuts, for
    :func:`buy_modules`.

    A round tests all scenarios at the cheapest purchase that keeps the cuts so far, enlarged by a
    quarter of the target gap; those that it misses by most are then tested alone, and cut, until
    they fit.

    Args:
        scenarios: what has to fit.
        gap: target, (cost - bound) / cost.
        deadline: after which the best so far is returned; the first test of all scenarios is done
            in any case.
        report: see :data:`ReportRound`.
        cuts: cuts that are known to hold; more are added to them.

    Raises:
        InputError: the limits of cables forbid every purchase.
    """
    begin, end = time.perf_counter(), deadline or Deadline(math.inf)
    tester = Tester(scenarios)
    cuts = Cuts(scenarios.num_cables, len(scenarios.cable)) if cuts is None else cuts
    everything = np.arange(scenarios.num_scenarios)
    point, bound, dual = cheapest_purchase(scenarios, cuts)
    best_cost, best, utilisation = (
        math.inf,
        np.zeros(scenarios.num_cables),
        np.zeros(len(everything)),
    )
    number, finest = 0, max(_MIN_GAP, gap / 300)
    focus = tester.worst(point, _FIRST_FOCUS, end)
    while True:
        for _ in range(_FOCUS_ROUNDS if len(focus) else 0):
            again = tester.test(point, focus, end, until_cut=True)
            number += 1
            if not len(again.cuts) or end.is_over:
                break
            cuts.add(again.cuts)
            point, bound, dual = _after(scenarios, cuts, bound, dual)
        number += 1
        tested_at = np.minimum((1 + _INFLATION * gap) * point, scenarios.most)
        tested = tester.test(tested_at, everything, end, finest=finest, until_cut=True)
        # What fits within a test's tolerance may need that much more of a cable than there is.
        purchase = np.clip(scenarios.needed(tested.load), 0.0, scenarios.most)
        cost, used = float(scenarios.cost @ purchase), scenarios.utilisation(tested.load, purchase)
        if cost < best_cost and float(used.max(initial=0.0)) <= scenarios.limit * (1 + FITS):
            best_cost, best, utilisation = cost, purchase, used
        cuts.add(tested.cuts)
        focus = tested.cuts.row[np.argsort(-tested.cuts.lacking(tested_at))[:_FOCUS]]
        if len(tested.cuts):
            point, bound, dual = _after(scenarios, cuts, bound, dual)
        if report is not None:
            report(number, best_cost, bound)
        is_done = math.isfinite(best_cost) and best_cost - bound <= gap * best_cost
        if is_done or end.is_over or number >= _MAX_ROUNDS:
            break
        if not len(tested.cuts):  # all fit, or cannot be told apart from what fits
            if finest <= GAPS[-1]:
                break
            # the purchase, or what a cable's limit is passed by, is less than this test told
            finest /= 10
    seconds = time.perf_counter() - begin
    if not math.isfinite(best_cost):
        raise SolverError("upgrade: no purchase within the limits of the cables was found in time")
    reached = best_cost - bound <= gap * best_cost
    bound = min(bound, best_cost)  # rounding of duals may pass it in the last digit
    result = Upgrade(
        best, best_cost, bound, utilisation, number, len(cuts), seconds, reached, dual=dual
    )
    return result, cuts


def _after(
    scenarios: Scenarios, cuts: Cuts, bound: float, dual: FloatArray
) -> tuple[FloatArray, float, FloatArray]:
    """The cheapest purchase after cuts were added, and the better of its bound and an earlier
    one.
    """
    point, proven, new = cheapest_purchase(scenarios, cuts)
    return (point, proven, new) if proven >= bound else (point, bound, dual)


def buy_modules(
    scenarios: Scenarios,
    cuts: Cuts,
    sizes: Sequence[tuple[float, float]],
    *,
    gap: float = 0.0,
    deadline: Deadline | None = None,
    report: ReportRound | None = None,
) -> Upgrade:
    """The cheapest purchase in whole modules, over the cuts of :func:`buy`, until every scenario
    fits.

    Args:
        scenarios: what has to fit.
        cuts: cuts of :func:`buy`, to which more are added.
        sizes: Gbit/s of each kind of module, and what it costs for each unit of a cable's cost.
        gap: target, (cost - bound) / cost; 0 for the proven optimum.
        deadline: after which the last purchase that fits is returned.
        report: see :data:`ReportRound`.

    Raises:
        InputError: a size or price that is not above 0, or modules that cannot cover.
        SolverError: no purchase that fits was found in time.
    """
    begin, end = time.perf_counter(), deadline or Deadline(math.inf)
    if not sizes or any(
        not (math.isfinite(size) and size > 0 and price > 0) for size, price in sizes
    ):
        raise InputError("upgrade", "modules", "sizes and prices above 0", list(sizes))
    size, price = np.array(sizes).T
    tester, everything = Tester(scenarios), np.arange(scenarios.num_scenarios)
    cost = (scenarios.cost[:, None] * price[None]).reshape(-1)
    best: Int64Array | None = None
    best_cost, bound, utilisation, number = math.inf, 0.0, np.zeros(len(everything)), 0
    while True:
        number += 1
        left = max(1.0, min(end.left, 1e6))
        chosen, proven = cheapest_modules(
            scenarios, cuts, size, price, left / 2 if math.isfinite(end.left) else left
        )
        bound = max(bound, proven)
        point = (chosen * size).sum(1)
        tested = tester.test(point, everything, end, finest=_MIN_MODULE_GAP, until_cut=True)
        new_cost = float(cost @ chosen.reshape(-1))
        if tested.fits.all() and new_cost < best_cost:
            best, best_cost, utilisation = chosen, new_cost, tested.utilisation
        elif not len(
            tested.cuts
        ):  # cannot be told apart from what fits: a module more where the load is above
            more = chosen + (scenarios.needed(tested.load) > point)[:, None] * (size == size.min())
            new_cost = float(cost @ more.reshape(-1))
            if new_cost < best_cost:
                best, best_cost = more, new_cost
                utilisation = scenarios.utilisation(tested.load, (more * size).sum(1))
        cuts.add(tested.cuts)
        if report is not None:
            report(number, best_cost, bound)
        if (
            not len(tested.cuts)
            or best_cost - bound <= gap * best_cost
            or end.is_over
            or number >= _MAX_ROUNDS
        ):
            break
    if best is None:
        best, best_cost, utilisation = _rounded_up(scenarios, tester, size, cost, point, end)
    bound = min(bound, best_cost)
    return Upgrade(
        (best * size).sum(1),
        best_cost,
        bound,
        utilisation,
        number,
        len(cuts),
        time.perf_counter() - begin,
        best_cost - bound <= max(gap, 1e-6) * best_cost,
        modules=best,
    )


def needs(scenarios: Scenarios, needed: FloatArray) -> Cuts:
    """The cuts that say what is needed on each cable, (C,) Gbit/s, by itself."""
    cuts, cables = Cuts(scenarios.num_cables, len(scenarios.cable)), np.flatnonzero(needed > 0)
    cuts.coefficient = np.eye(scenarios.num_cables)[cables]
    cuts.needed, cuts.existing = needed[cables], np.zeros(len(cables))
    cuts.prices = (scenarios.cable[None] == cables[:, None]).astype(np.float64)
    cuts.row = np.zeros(len(cables), dtype=np.int64)
    return cuts


def buy_for_loads(
    scenarios: Scenarios,
    load: FloatArray,
    sizes: Sequence[tuple[float, float]] = (),
    deadline: Deadline | None = None,
) -> Upgrade:
    """The cheapest purchase for loads (S, E) that no choice of splits changes, such as those of the
    IGP: exact.

    Raises:
        InputError: more is needed than can be bought.
    """
    begin = time.perf_counter()
    needed = scenarios.needed(load)
    bought, cost, modules = needed, float(scenarios.cost @ needed), None
    bound = cost
    if (needed > scenarios.most).any() or sizes:
        cuts = needs(scenarios, needed)
        bought, cost, _ = cheapest_purchase(scenarios, cuts)
        if sizes:
            size, price = np.array(sizes).T
            left = 1e6 if deadline is None else max(1.0, min(deadline.left, 1e6))
            modules, bound = cheapest_modules(scenarios, cuts, size, price, left)
            bought, cost = (
                (modules * size).sum(1),
                float((scenarios.cost[:, None] * price * modules).sum()),
            )
    return Upgrade(
        bought,
        cost,
        min(bound, cost),
        scenarios.utilisation(load, bought),
        1,
        0,
        time.perf_counter() - begin,
        cost <= bound * (1 + 1e-6),
        modules=modules,
    )


def _rounded_up(
    scenarios: Scenarios,
    tester: Tester,
    size: FloatArray,
    cost: FloatArray,
    point: FloatArray,
    end: Deadline,
) -> tuple[Int64Array, float, FloatArray]:
    """Modules that hold what the loads at a purchase need: of each cable the cheapest kind, rounded
    up.
    """
    rows = np.arange(scenarios.num_scenarios)
    load = tester.test(point, rows, end, finest=1e-3, until_cut=False).load
    needed = scenarios.needed(load)
    per_kind = np.ceil(needed[:, None] / size - 1e-9)
    kind = np.argmin(per_kind * cost.reshape(-1, len(size)), axis=1)
    modules = np.zeros(per_kind.shape, dtype=np.int64)
    modules[np.arange(len(kind)), kind] = per_kind[np.arange(len(kind)), kind].astype(np.int64)
    bought = (modules * size).sum(1)
    if (bought > scenarios.most * (1 + _ROUNDING)).any():
        raise SolverError("upgrade: no purchase of modules that fits was found in time")
    return modules, float(cost @ modules.reshape(-1)), scenarios.utilisation(load, bought)
