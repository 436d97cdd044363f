"""Benders decomposition for capacity expansion: the master program and tests of scenarios in turn.

Entry points: :func:`buy` (any amounts), :func:`buy_modules`, :func:`buy_for_loads` (fixed loads).
"""

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

# Smallest certified gap of the engine in a test.
_MIN_GAP = 3e-5
# The same for modules, where the limit is not approached from above.
_MIN_MODULE_GAP = 1e-6
# Number of the most violated scenarios that are tested alone until all of them fit.
_FOCUS = 64
# The same in the first test, without any cuts.
_FIRST_FOCUS = 256
# Maximum number of tests of these scenarios before all scenarios are tested again.
_FOCUS_ROUNDS = 12
# Enlargement of the master's expansion in a test of all scenarios, as a share of the target gap.
_INFLATION = 1.0 / 4.0
# Maximum number of tests.
_MAX_ROUNDS = 300
# Relative excess of modules over a cable's limit that counts as rounding.
_ROUNDING = 1e-9

ReportRound = Callable[[int, float, float], None]
"""Called after each round with its index, the incumbent's cost and the bound."""


@dataclasses.dataclass(frozen=True, eq=False)
class Upgrade:
    """A capacity expansion.

    Attributes:
        bought: (C,) Gbit/s, on each link of a cable.
        cost: cost of the expansion.
        bound: certified lower bound on the cost.
        utilisation: (S,) largest link utilisation in each scenario, with the expansion.
        rounds: rounds of tests.
        cuts: number of cuts.
        solve_s: solve time, seconds.
        reached: whether the target gap was reached.
        modules: (C, J) number of modules of each size; None for any amounts.
        dual: (n,) duals of the first n cuts, which prove the bound; for modules those of the
            expansion in any amounts.
        bound_all_paths: lower bound on the cost in any amounts, for any paths; NaN if unknown.
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
        """Relative gap, (cost - bound) / cost; 0 if nothing has to be bought."""
        return gap_between(self.cost, self.bound, -1.0) if self.cost > 0 else 0.0


def buy(
    scenarios: Scenarios,
    *,
    gap: float = 1e-2,
    deadline: Deadline | None = None,
    report: ReportRound | None = None,
    cuts: Cuts | None = None,
) -> tuple[Upgrade, Cuts]:
    """Find the cheapest expansion, in any amounts, to a certified gap; also return the cuts, for
    :func:`buy_modules`.

    A round tests all scenarios at the master's optimum, enlarged by a quarter of the target gap;
    the most violated ones are then tested alone, and cut, until they fit.

    Args:
        scenarios: scenarios that must fit.
        gap: target, (cost - bound) / cost.
        deadline: time limit, after which the incumbent is returned; the first test of all scenarios
            is always completed.
        report: see :data:`ReportRound`.
        cuts: valid cuts, extended in place.

    Raises:
        InputError: the limits of cables make every expansion infeasible.
        SolverError: no feasible expansion in time.
    """
    begin = time.perf_counter()
    time_limit = deadline or Deadline(math.inf)
    tester = Tester(scenarios)
    cuts = Cuts(scenarios.num_cables, len(scenarios.cable)) if cuts is None else cuts
    everything = np.arange(scenarios.num_scenarios)
    point, bound, dual = cheapest_purchase(scenarios, cuts)
    best_cost = math.inf
    best = np.zeros(scenarios.num_cables)
    utilisation = np.zeros(len(everything))
    num_rounds = 0
    finest = max(_MIN_GAP, gap / 300)
    focus = tester.worst(point, _FIRST_FOCUS, time_limit)
    while True:
        # Test the most violated scenarios alone.
        for _ in range(_FOCUS_ROUNDS if len(focus) else 0):
            focus_test = tester.test(point, focus, time_limit, until_cut=True)
            num_rounds += 1
            if not len(focus_test.cuts) or time_limit.is_over:
                break
            cuts.add(focus_test.cuts)
            point, bound, dual = _resolve_master(scenarios, cuts, bound, dual)
        # Test all scenarios; the loads give a feasible expansion.
        num_rounds += 1
        tested_at = np.minimum((1 + _INFLATION * gap) * point, scenarios.most)
        tested = tester.test(tested_at, everything, time_limit, finest=finest, until_cut=True)
        # A scenario that fits within the tolerance may need a little more than a cable's limit.
        purchase = np.clip(scenarios.needed(tested.load), 0.0, scenarios.most)
        cost = float(scenarios.cost @ purchase)
        new_utilisation = scenarios.utilisation(tested.load, purchase)
        if cost < best_cost and float(new_utilisation.max(initial=0.0)) <= scenarios.limit * (
            1 + FITS
        ):
            best_cost = cost
            best = purchase
            utilisation = new_utilisation
        # Cut, and solve the master program.
        cuts.add(tested.cuts)
        focus = tested.cuts.row[np.argsort(-tested.cuts.lacking(tested_at))[:_FOCUS]]
        if len(tested.cuts):
            point, bound, dual = _resolve_master(scenarios, cuts, bound, dual)
        if report is not None:
            report(num_rounds, best_cost, bound)
        is_done = math.isfinite(best_cost) and best_cost - bound <= gap * best_cost
        if is_done or time_limit.is_over or num_rounds >= _MAX_ROUNDS:
            break
        # All scenarios fit, or the test cannot decide.
        if not len(tested.cuts):
            if finest <= GAPS[-1]:
                break
            # The remaining expansion is smaller than this test's tolerance.
            finest /= 10
    seconds = time.perf_counter() - begin
    if not math.isfinite(best_cost):
        raise SolverError("upgrade: no expansion within the limits of the cables was found in time")
    reached = best_cost - bound <= gap * best_cost
    # Rounding of duals may exceed the cost in the last digit.
    bound = min(bound, best_cost)
    result = Upgrade(
        best, best_cost, bound, utilisation, num_rounds, len(cuts), seconds, reached, dual=dual
    )
    return result, cuts


def _resolve_master(
    scenarios: Scenarios, cuts: Cuts, bound: float, dual: FloatArray
) -> tuple[FloatArray, float, FloatArray]:
    """Solve the master program after cuts were added; keep the better of its bound and the previous
    one.
    """
    point, new_bound, new_dual = cheapest_purchase(scenarios, cuts)
    return (point, new_bound, new_dual) if new_bound >= bound else (point, bound, dual)


def buy_modules(
    scenarios: Scenarios,
    cuts: Cuts,
    sizes: Sequence[tuple[float, float]],
    *,
    gap: float = 0.0,
    deadline: Deadline | None = None,
    report: ReportRound | None = None,
) -> Upgrade:
    """Find the cheapest expansion in whole modules: an integer master program over the cuts of
    :func:`buy`, until every scenario fits.

    Args:
        scenarios: scenarios that must fit.
        cuts: cuts of :func:`buy`, extended in place.
        sizes: Gbit/s of each module size, and its price in units of a cable's cost.
        gap: target, (cost - bound) / cost; 0 for the proven optimum.
        deadline: time limit, after which the incumbent is returned.
        report: see :data:`ReportRound`.

    Raises:
        InputError: a size or price that is not above 0, or insufficient modules.
        SolverError: no feasible expansion in time.
    """
    begin = time.perf_counter()
    time_limit = deadline or Deadline(math.inf)
    if not sizes or any(
        not (math.isfinite(size) and size > 0 and price > 0) for size, price in sizes
    ):
        raise InputError("upgrade", "modules", "sizes and prices above 0", list(sizes))
    size, price = np.array(sizes).T
    tester = Tester(scenarios)
    everything = np.arange(scenarios.num_scenarios)
    cost = (scenarios.cost[:, None] * price[None]).reshape(-1)
    best: Int64Array | None = None
    best_cost = math.inf
    bound = 0.0
    utilisation = np.zeros(len(everything))
    num_rounds = 0
    while True:
        num_rounds += 1
        # Integer master program.
        remaining_s = max(1.0, min(time_limit.remaining_s, 1e6))
        chosen, new_bound = cheapest_modules(
            scenarios,
            cuts,
            size,
            price,
            remaining_s / 2 if math.isfinite(time_limit.remaining_s) else remaining_s,
        )
        bound = max(bound, new_bound)
        point = (chosen * size).sum(1)
        # Test, update the incumbent, and cut.
        tested = tester.test(point, everything, time_limit, finest=_MIN_MODULE_GAP, until_cut=True)
        new_cost = float(cost @ chosen.reshape(-1))
        if tested.fits.all() and new_cost < best_cost:
            best = chosen
            best_cost = new_cost
            utilisation = tested.utilisation
        # The test cannot decide: add a module wherever the load is above the expansion.
        elif not len(tested.cuts):
            enlarged = chosen + (scenarios.needed(tested.load) > point)[:, None] * (
                size == size.min()
            )
            new_cost = float(cost @ enlarged.reshape(-1))
            if new_cost < best_cost:
                best = enlarged
                best_cost = new_cost
                utilisation = scenarios.utilisation(tested.load, (enlarged * size).sum(1))
        cuts.add(tested.cuts)
        if report is not None:
            report(num_rounds, best_cost, bound)
        if (
            not len(tested.cuts)
            or best_cost - bound <= gap * best_cost
            or time_limit.is_over
            or num_rounds >= _MAX_ROUNDS
        ):
            break
    if best is None:
        best, best_cost, utilisation = _round_up(scenarios, tester, size, cost, point, time_limit)
    bound = min(bound, best_cost)
    return Upgrade(
        (best * size).sum(1),
        best_cost,
        bound,
        utilisation,
        num_rounds,
        len(cuts),
        time.perf_counter() - begin,
        best_cost - bound <= max(gap, 1e-6) * best_cost,
        modules=best,
    )


def needs(scenarios: Scenarios, needed: FloatArray) -> Cuts:
    """Return cuts that require these amounts (C,), Gbit/s, on each cable by itself."""
    cuts = Cuts(scenarios.num_cables, len(scenarios.cable))
    cables = np.flatnonzero(needed > 0)
    cuts.coefficient = np.eye(scenarios.num_cables)[cables]
    cuts.needed = needed[cables]
    cuts.existing = np.zeros(len(cables))
    cuts.prices = (scenarios.cable[None] == cables[:, None]).astype(np.float64)
    cuts.row = np.zeros(len(cables), dtype=np.int64)
    return cuts


def buy_for_loads(
    scenarios: Scenarios,
    load: FloatArray,
    sizes: Sequence[tuple[float, float]] = (),
    deadline: Deadline | None = None,
) -> Upgrade:
    """Find the cheapest expansion for loads (S, E) that do not depend on splits, such as those of
    the IGP; exact.

    Raises:
        InputError: the requirement exceeds a cable's limit.
    """
    begin = time.perf_counter()
    needed = scenarios.needed(load)
    bought = needed
    cost = float(scenarios.cost @ needed)
    modules = None
    bound = cost
    if (needed > scenarios.most).any() or sizes:
        cuts = needs(scenarios, needed)
        bought, cost, _ = cheapest_purchase(scenarios, cuts)
        if sizes:
            size, price = np.array(sizes).T
            remaining_s = 1e6 if deadline is None else max(1.0, min(deadline.remaining_s, 1e6))
            modules, bound = cheapest_modules(scenarios, cuts, size, price, remaining_s)
            bought = (modules * size).sum(1)
            cost = float((scenarios.cost[:, None] * price * modules).sum())
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


def _round_up(
    scenarios: Scenarios,
    tester: Tester,
    size: FloatArray,
    cost: FloatArray,
    point: FloatArray,
    end: Deadline,
) -> tuple[Int64Array, float, FloatArray]:
    """Round the requirement of the loads at an expansion up to modules: on each cable the cheapest
    size.
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
        raise SolverError("upgrade: no feasible expansion in modules was found in time")
    return modules, float(cost @ modules.reshape(-1)), scenarios.utilisation(load, bought)
