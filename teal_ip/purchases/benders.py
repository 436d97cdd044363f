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
    master = _Master(scenarios, cuts)
    incumbent = _Incumbent(np.zeros(scenarios.num_cables), np.zeros(len(everything)))
    num_rounds = 0
    finest = max(_MIN_GAP, gap / 300)
    focus = tester.worst(master.point, _FIRST_FOCUS, time_limit)
    while True:
        # Test the most violated scenarios alone.
        num_rounds += _cut_until_fit(master, tester, focus, time_limit)
        # Test all scenarios; the loads give a feasible expansion.
        num_rounds += 1
        tested_at = np.minimum((1 + _INFLATION * gap) * master.point, scenarios.most)
        tested = tester.test(tested_at, everything, time_limit, finest=finest, until_cut=True)
        # A scenario that fits within the tolerance may need a little more than a cable's limit.
        purchase = np.clip(scenarios.needed(tested.load), 0.0, scenarios.most)
        utilisation = scenarios.utilisation(tested.load, purchase)
        if float(utilisation.max(initial=0.0)) <= scenarios.limit * (1 + FITS):
            incumbent.update(purchase, float(scenarios.cost @ purchase), utilisation)
        # Cut, and solve the master program.
        focus = tested.cuts.row[np.argsort(-tested.cuts.lacking(tested_at))[:_FOCUS]]
        if len(tested.cuts):
            master.add(tested.cuts)
        if report is not None:
            report(num_rounds, incumbent.cost, master.bound)
        is_done = incumbent.is_within(gap, master.bound)
        if is_done or time_limit.is_over or num_rounds >= _MAX_ROUNDS:
            break
        # All scenarios fit, or the test cannot decide.
        if not len(tested.cuts):
            if finest <= GAPS[-1]:
                break
            # The remaining expansion is smaller than this test's tolerance.
            finest /= 10
    seconds = time.perf_counter() - begin
    if not math.isfinite(incumbent.cost):
        raise SolverError("upgrade: no expansion within the limits of the cables was found in time")
    result = Upgrade(
        np.asarray(incumbent.amounts, dtype=np.float64),
        incumbent.cost,
        # Rounding of duals may exceed the cost in the last digit.
        min(master.bound, incumbent.cost),
        incumbent.utilisation,
        num_rounds,
        len(cuts),
        seconds,
        incumbent.is_within(gap, master.bound),
        dual=master.dual,
    )
    return result, cuts


class _Master:
    """Master program in any amounts: its optimum, and the best bound so far.

    Attributes:
        point: (C,) optimum over the current cuts.
        bound: best lower bound on the cost.
        dual: (n,) duals of the first n cuts, which prove the bound.

    Args:
        scenarios: scenarios that must fit.
        cuts: valid cuts, extended in place.
    """

    def __init__(self, scenarios: Scenarios, cuts: Cuts) -> None:
        self._scenarios = scenarios
        self._cuts = cuts
        self.point, self.bound, self.dual = cheapest_purchase(scenarios, cuts)

    def add(self, more: Cuts) -> None:
        """Add cuts, and solve the master program; keep the better of its bound and the previous
        one.
        """
        self._cuts.add(more)
        self.point, new_bound, new_dual = cheapest_purchase(self._scenarios, self._cuts)
        if new_bound >= self.bound:
            self.bound = new_bound
            self.dual = new_dual


@dataclasses.dataclass(eq=False)
class _Incumbent:
    """Cheapest feasible expansion so far.

    Attributes:
        amounts: (C,) Gbit/s, or (C, J) number of modules.
        utilisation: (S,) largest link utilisation in each scenario.
        cost: its cost; infinite before the first one.
    """

    amounts: FloatArray | Int64Array
    utilisation: FloatArray
    cost: float = math.inf

    def update(
        self, amounts: FloatArray | Int64Array, cost: float, utilisation: FloatArray
    ) -> None:
        """Replace the incumbent by a feasible expansion that costs less."""
        if cost < self.cost:
            self.amounts = amounts
            self.cost = cost
            self.utilisation = utilisation

    def is_within(self, gap: float, bound: float) -> bool:
        """Whether there is an incumbent within a relative gap of a bound on the cost."""
        return math.isfinite(self.cost) and self.cost - bound <= gap * self.cost


def _cut_until_fit(master: _Master, tester: Tester, rows: Int64Array, deadline: Deadline) -> int:
    """Test some scenarios, and cut, until they fit the master's optimum or the number of tests is
    reached; return the number of tests.
    """
    num_tests = 0
    for _ in range(_FOCUS_ROUNDS if len(rows) else 0):
        tested = tester.test(master.point, rows, deadline, until_cut=True)
        num_tests += 1
        if not len(tested.cuts) or deadline.is_over:
            break
        master.add(tested.cuts)
    return num_tests


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
    unit_cost = (scenarios.cost[:, None] * price[None]).reshape(-1)
    no_modules = np.zeros((scenarios.num_cables, len(size)), dtype=np.int64)
    incumbent = _Incumbent(no_modules, np.zeros(len(everything)))
    bound = 0.0
    num_rounds = 0
    while True:
        num_rounds += 1
        # Integer master program.
        remaining_s = max(1.0, min(time_limit.remaining_s, 1e6))
        master_s = remaining_s / 2 if math.isfinite(time_limit.remaining_s) else remaining_s
        modules, new_bound = cheapest_modules(scenarios, cuts, size, price, master_s)
        bound = max(bound, new_bound)
        point = (modules * size).sum(1)
        # Test, update the incumbent, and cut.
        tested = tester.test(point, everything, time_limit, finest=_MIN_MODULE_GAP, until_cut=True)
        if tested.fits.all():
            incumbent.update(modules, float(unit_cost @ modules.reshape(-1)), tested.utilisation)
        # The test cannot decide: add a module wherever the load is above the expansion.
        elif not len(tested.cuts):
            is_short = (scenarios.needed(tested.load) > point)[:, None]
            enlarged = modules + is_short * (size == size.min())
            utilisation = scenarios.utilisation(tested.load, (enlarged * size).sum(1))
            incumbent.update(enlarged, float(unit_cost @ enlarged.reshape(-1)), utilisation)
        cuts.add(tested.cuts)
        if report is not None:
            report(num_rounds, incumbent.cost, bound)
        is_done = not len(tested.cuts) or incumbent.cost - bound <= gap * incumbent.cost
        if is_done or time_limit.is_over or num_rounds >= _MAX_ROUNDS:
            break
    # In time only infeasible modules: round the loads up.
    if math.isinf(incumbent.cost):
        incumbent.update(*_round_up(scenarios, tester, size, unit_cost, point, time_limit))
    modules = np.asarray(incumbent.amounts, dtype=np.int64)
    return Upgrade(
        (modules * size).sum(1),
        incumbent.cost,
        min(bound, incumbent.cost),
        incumbent.utilisation,
        num_rounds,
        len(cuts),
        time.perf_counter() - begin,
        incumbent.is_within(max(gap, 1e-6), min(bound, incumbent.cost)),
        modules=modules,
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
    # In any amounts within the limits of the cables, each cable by itself.
    needed = scenarios.needed(load)
    bought = needed
    cost = float(scenarios.cost @ needed)
    modules = None
    bound = cost
    # Beyond the limits, or in modules, a program.
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
