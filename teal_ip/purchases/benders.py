"""Benders decomposition for capacity expansion: the master program and tests of scenarios in turn.

Axis letters: S scenarios, C cables, E links, J module sizes, n cuts.  Entry points:
:func:`expand_capacity` (any amounts), :func:`expand_in_modules`, :func:`expand_for_loads` (fixed
loads).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from teal.deprecated import with_old_names
from teal.errors import InputError, SolverError
from teal.problem.bounds import gap_between
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal_ip.purchases.cuts import Cuts, cheapest_expansion, cheapest_modules
from teal_ip.purchases.scenarios import Scenarios
from teal_ip.purchases.testing import FIT_TOLERANCE, GAPS, Tester

# Smallest certified gap of the solver in a test.
_MIN_GAP = 3e-5
# Smallest certified gap of the solver in a test of modules.
_MIN_MODULE_GAP = 1e-6
# Number of the most violated scenarios that are tested alone until all of them fit.
_MAX_VIOLATED = 64
# Number of the most violated scenarios in the first test, without any cuts.
_MAX_FIRST_VIOLATED = 256
# Maximum number of tests of the most violated scenarios before all scenarios are tested again.
_MAX_VIOLATED_TESTS = 12
# Enlargement of the master's expansion in a test of all scenarios, as a fraction of the target gap.
_ENLARGEMENT = 1.0 / 4.0
# Maximum number of rounds of tests.
_MAX_ROUNDS = 300
# Relative excess of modules over a cable's limit that counts as rounding.
_ROUNDING = 1e-9

ReportRound = Callable[[int, float, float], None]
"""Called after each round with its index, the incumbent's cost and the bound."""


@dataclasses.dataclass(frozen=True, eq=False)
class Upgrade:
    """A capacity expansion, with the certified bound on its cost.

    Attributes:
        bought: (C,) Gbit/s added to each link of a cable.
        cost: cost of the expansion.
        bound: certified lower bound on the cost.
        utilisation: (S,) largest link utilisation in each scenario, with the expansion.
        rounds: number of rounds of tests.
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
        """Relative gap, (cost - bound) / cost; 0 if no capacity is added."""
        return gap_between(self.cost, self.bound, -1.0) if self.cost > 0 else 0.0


def expand_capacity(
    scenarios: Scenarios,
    *,
    gap: float = 1e-2,
    deadline: Deadline | None = None,
    report: ReportRound | None = None,
    cuts: Cuts | None = None,
) -> tuple[Upgrade, Cuts]:
    """Find the cheapest expansion, in any amounts, to a certified gap, by Benders decomposition.

    The most violated scenarios are tested alone, and their cuts added to the master, until they
    fit.  Then all scenarios are tested at its optimum, enlarged by a quarter of the target gap; the
    smallest expansion that carries these loads within the limit is an incumbent.

    Args:
        scenarios: matrices under failures that must fit.
        gap: target gap, (cost - bound) / cost.
        deadline: time limit, after which the incumbent is returned; the first test of all scenarios
            is always completed.
        report: called after each round with its index, the incumbent's cost and the bound.
        cuts: valid Benders cuts, extended in place; None for none.

    Returns:
        the expansion, and the cuts.

    Raises:
        InputError: the limits of cables make every expansion infeasible.
        SolverError: no feasible expansion in time.
    """
    begin = time.perf_counter()
    time_limit = deadline or Deadline(math.inf)
    tester = Tester(scenarios)
    cuts = Cuts(scenarios.num_cables, len(scenarios.cable)) if cuts is None else cuts
    all_scenarios = np.arange(scenarios.num_scenarios)
    master = _Master(scenarios, cuts)
    incumbent = _Incumbent(np.zeros(scenarios.num_cables), np.zeros(len(all_scenarios)))
    num_rounds = 0
    # Smallest gap of the solver when all scenarios are tested: a small part of the target gap.
    min_solver_gap = max(_MIN_GAP, gap / 300)
    # The first cuts are of the most violated scenarios, by the splits without failure.
    most_violated = tester.most_violated_scenarios(
        master.optimal_expansion, _MAX_FIRST_VIOLATED, time_limit
    )
    while True:
        # Test the most violated scenarios alone, and cut.
        num_rounds += _cut_until_fit(master, tester, most_violated, time_limit)
        # Test all scenarios; the smallest expansion for their loads is an incumbent.
        num_rounds += 1
        tested_capacity = np.minimum(
            (1 + _ENLARGEMENT * gap) * master.optimal_expansion, scenarios.max_added
        )
        tested = tester.test(
            tested_capacity, all_scenarios, time_limit, min_gap=min_solver_gap, stop_at_cut=True
        )
        # Clip at the limits: a scenario that fits within the tolerance may need a little more.
        expansion = np.clip(scenarios.needed(tested.load), 0.0, scenarios.max_added)
        utilisation = scenarios.utilisation(tested.load, expansion)
        if float(utilisation.max(initial=0.0)) <= scenarios.max_utilisation * (1 + FIT_TOLERANCE):
            # All scenarios fit: the expansion is a feasible one.
            incumbent.update(expansion, float(scenarios.cost @ expansion), utilisation)
        # Add the violated cuts, and solve the master program.
        most_violated = tested.cuts.row[
            np.argsort(-tested.cuts.relative_violation(tested_capacity))[:_MAX_VIOLATED]
        ]
        if len(tested.cuts):
            master.add(tested.cuts)
        if report is not None:
            report(num_rounds, incumbent.cost, master.bound)
        is_done = incumbent.is_within(gap, master.bound)
        if is_done or time_limit.is_over or num_rounds >= _MAX_ROUNDS:
            break
        # No cut: all scenarios fit, or the test cannot decide.
        if not len(tested.cuts):
            if min_solver_gap <= GAPS[-1]:
                break
            # The scenarios lack less capacity than the gap of this test can show: test to a smaller
            # one, down to the smallest gap of the solver.
            min_solver_gap /= 10
    elapsed_s = time.perf_counter() - begin
    if not math.isfinite(incumbent.cost):
        raise SolverError(
            "upgrade: no expansion within the limits of the cables was found in time: raise the "
            "time limit (--deadline)"
        )
    result = Upgrade(
        np.asarray(incumbent.amounts, dtype=np.float64),
        incumbent.cost,
        # Rounding of duals may exceed the cost in the last digit.
        min(master.bound, incumbent.cost),
        incumbent.utilisation,
        num_rounds,
        len(cuts),
        elapsed_s,
        incumbent.is_within(gap, master.bound),
        dual=master.dual,
    )
    return result, cuts


class _Master:
    """Master program in any amounts: its optimum, and the best bound so far.

    Attributes:
        optimal_expansion: (C,) Gbit/s of the optimum over the current cuts.
        bound: best lower bound on the cost.
        dual: (n,) duals of the first n cuts, which prove the bound.

    Args:
        scenarios: matrices under failures that must fit.
        cuts: valid Benders cuts, extended in place.
    """

    def __init__(self, scenarios: Scenarios, cuts: Cuts) -> None:
        self._scenarios = scenarios
        self._cuts = cuts
        self.optimal_expansion, self.bound, self.dual = cheapest_expansion(scenarios, cuts)

    def add(self, more: Cuts) -> None:
        """Add cuts, solve the master program, and update the best bound and its duals."""
        self._cuts.add(more)
        self.optimal_expansion, new_bound, new_dual = cheapest_expansion(
            self._scenarios, self._cuts
        )
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
        """Replace the incumbent by a feasible expansion if that costs less.

        Args:
            amounts: (C,) Gbit/s, or (C, J) number of modules.
            cost: cost of the expansion.
            utilisation: (S,) largest link utilisation in each scenario.
        """
        if cost < self.cost:
            self.amounts = amounts
            self.cost = cost
            self.utilisation = utilisation

    def is_within(self, gap: float, bound: float) -> bool:
        """Whether there is an incumbent whose cost exceeds a lower bound by at most a fraction of
        the cost.

        Args:
            gap: largest (cost - bound) / cost.
            bound: lower bound on the cost.
        """
        return math.isfinite(self.cost) and self.cost - bound <= gap * self.cost


def _cut_until_fit(master: _Master, tester: Tester, rows: Int64Array, deadline: Deadline) -> int:
    """Test some scenarios at the master's optimum, and add their cuts, until they fit.

    Args:
        master: master program, extended in place.
        tester: tests scenarios at an expansion.
        rows: indices of the scenarios.
        deadline: time limit, after which no further test begins.

    Returns:
        the number of tests, at most _MAX_VIOLATED_TESTS.
    """
    num_tests = 0
    for _ in range(_MAX_VIOLATED_TESTS if len(rows) else 0):
        tested = tester.test(master.optimal_expansion, rows, deadline, stop_at_cut=True)
        num_tests += 1
        if not len(tested.cuts) or deadline.is_over:
            break
        master.add(tested.cuts)
    return num_tests


def expand_in_modules(
    scenarios: Scenarios,
    cuts: Cuts,
    sizes: Sequence[tuple[float, float]],
    *,
    gap: float = 0.0,
    deadline: Deadline | None = None,
    report: ReportRound | None = None,
) -> Upgrade:
    """Find the cheapest expansion in whole modules, by Benders decomposition.

    The master is an integer program over the cuts of the expansion in any amounts.

    Args:
        scenarios: matrices under failures that must fit.
        cuts: Benders cuts of the expansion in any amounts, extended in place.
        sizes: Gbit/s of each module size, and its price in units of a cable's cost.
        gap: target gap, (cost - bound) / cost; 0 for the proven optimum.
        deadline: time limit, after which the incumbent is returned.
        report: called after each round with its index, the incumbent's cost and the bound.

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
    # (J,) Gbit/s of each module size, and its price in units of a cable's cost.
    size, price = np.array(sizes).T
    tester = Tester(scenarios)
    all_scenarios = np.arange(scenarios.num_scenarios)
    # (C J,) cost of a module of each of J sizes on each of C cables.
    unit_cost = (scenarios.cost[:, None] * price[None]).reshape(-1)
    no_modules = np.zeros((scenarios.num_cables, len(size)), dtype=np.int64)
    incumbent = _Incumbent(no_modules, np.zeros(len(all_scenarios)))
    bound = 0.0
    num_rounds = 0
    while True:
        num_rounds += 1
        # Integer master program, in at most half of the remaining time; 1e6 s without a deadline.
        remaining_s = max(1.0, min(time_limit.remaining_s, 1e6))
        master_limit_s = remaining_s / 2 if math.isfinite(time_limit.remaining_s) else remaining_s
        num_modules, new_bound = cheapest_modules(scenarios, cuts, size, price, master_limit_s)
        bound = max(bound, new_bound)
        # Gbit/s of the modules on each cable (C,).
        added_capacity = (num_modules * size).sum(1)
        # Test all scenarios; the modules are an incumbent if all fit.
        tested = tester.test(
            added_capacity, all_scenarios, time_limit, min_gap=_MIN_MODULE_GAP, stop_at_cut=True
        )
        if tested.fits.all():
            incumbent.update(
                num_modules, float(unit_cost @ num_modules.reshape(-1)), tested.utilisation
            )
        # The test cannot decide: add the smallest module to each cable whose load needs more.
        elif not len(tested.cuts):
            lacks_capacity = (scenarios.needed(tested.load) > added_capacity)[:, None]
            enlarged_modules = num_modules + lacks_capacity * (size == size.min())
            utilisation = scenarios.utilisation(tested.load, (enlarged_modules * size).sum(1))
            incumbent.update(
                enlarged_modules, float(unit_cost @ enlarged_modules.reshape(-1)), utilisation
            )
        cuts.add(tested.cuts)
        if report is not None:
            report(num_rounds, incumbent.cost, bound)
        # Without an incumbent its cost is infinite, and no gap is closed.
        is_closed = math.isfinite(incumbent.cost) and incumbent.cost - bound <= gap * incumbent.cost
        is_done = is_closed or not len(tested.cuts)
        if is_done or time_limit.is_over or num_rounds >= _MAX_ROUNDS:
            break
    # No feasible modules in time: round the capacity that the loads need up to modules.
    if math.isinf(incumbent.cost):
        incumbent.update(*_round_up(scenarios, tester, size, unit_cost, added_capacity, time_limit))
    num_modules = np.asarray(incumbent.amounts, dtype=np.int64)
    return Upgrade(
        (num_modules * size).sum(1),
        incumbent.cost,
        min(bound, incumbent.cost),
        incumbent.utilisation,
        num_rounds,
        len(cuts),
        time.perf_counter() - begin,
        # Whether the target gap is reached, up to rounding.
        incumbent.is_within(max(gap, 1e-6), min(bound, incumbent.cost)),
        modules=num_modules,
    )


def needs(scenarios: Scenarios, needed_capacity: FloatArray) -> Cuts:
    """Return a Benders cut for each cable c that needs capacity: an expansion must add a_c >= n_c,
    with n_c the Gbit/s that it needs.

    Args:
        scenarios: supplies the cables.
        needed_capacity: (C,) Gbit/s that each cable needs.
    """
    cuts = Cuts(scenarios.num_cables, len(scenarios.cable))
    # A coefficient of 1 for the cable, no existing capacity, and a price of 1 on the cable's links.
    cables = np.flatnonzero(needed_capacity > 0)
    cuts.coefficient = np.eye(scenarios.num_cables)[cables]
    cuts.needed = needed_capacity[cables]
    cuts.existing = np.zeros(len(cables))
    cuts.prices = (scenarios.cable[None] == cables[:, None]).astype(np.float64)
    cuts.row = np.zeros(len(cables), dtype=np.int64)
    return cuts


def expand_for_loads(
    scenarios: Scenarios,
    load: FloatArray,
    sizes: Sequence[tuple[float, float]] = (),
    deadline: Deadline | None = None,
) -> Upgrade:
    """Find the cheapest expansion for loads that do not depend on splits, such as those of the IGP;
    exact.

    Args:
        scenarios: supplies the cables, their costs and limits, and the utilisation limit.
        load: (S, E) Gbit/s.
        sizes: Gbit/s and price of each module size; () for any amounts.
        deadline: time limit of the integer program; None for none.

    Raises:
        InputError: the requirement exceeds a cable's limit.
    """
    begin = time.perf_counter()
    # In any amounts within the limits, the expansion is the need of each cable.
    needed_capacity = scenarios.needed(load)
    added_capacity = needed_capacity
    cost = float(scenarios.cost @ needed_capacity)
    num_modules = None
    bound = cost
    # Modules need an integer program.  The master program raises InputError if a need exceeds a
    # limit.
    if (needed_capacity > scenarios.max_added).any() or sizes:
        # One cut per cable: its added capacity is at least what its loads need.
        cuts = needs(scenarios, needed_capacity)
        added_capacity, cost, _ = cheapest_expansion(scenarios, cuts)
        if sizes:
            size, price = np.array(sizes).T
            # Time limit of HiGHS; 1e6 s stands for none.
            remaining_s = 1e6 if deadline is None else max(1.0, min(deadline.remaining_s, 1e6))
            num_modules, bound = cheapest_modules(scenarios, cuts, size, price, remaining_s)
            added_capacity = (num_modules * size).sum(1)
            cost = float((scenarios.cost[:, None] * price * num_modules).sum())
    # One round and no cuts.  The gap is closed if the cost equals the bound up to rounding.
    return Upgrade(
        added_capacity,
        cost,
        min(bound, cost),
        scenarios.utilisation(load, added_capacity),
        1,
        0,
        time.perf_counter() - begin,
        cost <= bound * (1 + 1e-6),
        modules=num_modules,
    )


def _round_up(
    scenarios: Scenarios,
    tester: Tester,
    size: FloatArray,
    unit_cost: FloatArray,
    tested_capacity: FloatArray,
    deadline: Deadline,
) -> tuple[Int64Array, float, FloatArray]:
    """Round the capacity that the loads at an expansion need up to modules, all of one size on each
    cable: the size with which they cost least.

    Args:
        scenarios: matrices under failures that must fit.
        tester: solves scenarios at an expansion for their loads.
        size: (J,) Gbit/s of each module size.
        unit_cost: (C J,) cost of a module of each size on each cable.
        tested_capacity: (C,) Gbit/s of the expansion.
        deadline: time limit.

    Returns:
        numbers of modules (C, J), their cost, and the largest link utilisation (S,).

    Raises:
        SolverError: the modules exceed a cable's limit.
    """
    # Loads (S, E) of all scenarios, solved to a gap of 0.1%.
    all_scenarios = np.arange(scenarios.num_scenarios)
    load = tester.test(
        tested_capacity, all_scenarios, deadline, min_gap=1e-3, stop_at_cut=False
    ).load
    needed_capacity = scenarios.needed(load)
    # Number of modules (C, J) if a cable has modules of one size alone, and its cheapest size (C,).
    num_by_size = np.ceil(needed_capacity[:, None] / size - 1e-9)
    cheapest_size = np.argmin(num_by_size * unit_cost.reshape(-1, len(size)), axis=1)
    num_modules = np.zeros(num_by_size.shape, dtype=np.int64)
    num_modules[np.arange(len(cheapest_size)), cheapest_size] = num_by_size[
        np.arange(len(cheapest_size)), cheapest_size
    ].astype(np.int64)
    added_capacity = (num_modules * size).sum(1)
    if (added_capacity > scenarios.max_added * (1 + _ROUNDING)).any():
        raise SolverError(
            "upgrade: no feasible expansion in modules was found in time: raise the time limit "
            "(--deadline)"
        )
    return (
        num_modules,
        float(unit_cost @ num_modules.reshape(-1)),
        scenarios.utilisation(load, added_capacity),
    )


__getattr__ = with_old_names(__name__, globals())
