"""Integer solutions near the bounds of the linear programs: few policies, one list per demand.

A diving heuristic finds few policies: the demands that move most get a policy that no longer
counts, and the program is solved again for the others, until no other demand moves.  For at most N
policies, the heuristic also minimises the utilisation over the N demands that move most in
solutions of fewest policies at several utilisations.  Some transit policies exclude each other, so
a dive may end without a feasible point; then an integer program over the current columns is solved
(:func:`solve_integer_program`).  Entry points: :func:`fewest`, :func:`at_most`,
:func:`one_list_each`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import Between, solve_milp
from teal_ip.segments.problem import TARGET_ROUNDING, require_target
from teal_ip.segments.programs import Master, Point, Program, most_utilised, optimum

# Gap, of the number of policies or their utilisation, at which further heuristics are skipped.
FEW_GAP = 0.02
# Target gap of the linear programs of a dive.
DIVE_GAP = 1e-3
# Utilisations whose fewest policies are tried for at most N.
_TARGETS = 10
# A dive frees at least the n-th part of the demands that move, at a time.
_DIVES = 10
# Distance of a share from 0 or 1 that counts as rounding.
_INTEGRALITY_TOLERANCE = 1e-6
# Integer programs: rounds of new rows, and time limit of each, seconds.
_MAX_INTEGER_ROUNDS = 20
_INTEGER_S = 20.0
# Largest number of policies for which at_most also solves an integer program.
_FEW_INTEGER = 5
# Time limit of a last linear program over the current columns after the deadline, seconds.
_LAST_S = 5.0
# Columns that are added for an integer program.
_INTEGER_COLUMNS = 1_000


def _of_largest(master: Master, point: Point, max_policies: int) -> Point | None:
    """Return the optimum of :meth:`Master.program_of_largest` over the current columns."""
    return master.solve(master.program_of_largest(point, max_policies), _LAST_S)


def best_of(master: Master, *points: Point | None) -> Point:
    """Return the point of least utilisation that can be installed; the first one always can."""
    return min(
        (
            point
            for point in points
            if point is not None and (point is points[0] or master.can_be_installed(point))
        ),
        key=lambda point: point.value,
    )


def _dive(master: Master, program: Program, start: Point, deadline: Deadline) -> Point | None:
    """Fix policies of the demands that move most, until no other demand moves (diving heuristic).

    After the deadline, return None when policies are minimised, else the optimum over the current
    columns of the demands that move most.

    Args:
        master: rows and columns so far.
        program: fewest policies, or at most N.
        start: optimum of the program.
        deadline: time limit.
    """
    counts = program.counts.copy()
    remaining_policies = program.policies
    point = start
    closed = np.zeros(master.demands, dtype=bool)
    while True:
        moved = np.where(counts > 0, point.moved, 0.0)
        num_moving = int(np.count_nonzero(moved))
        min_freed = max(
            int(np.count_nonzero(moved >= 1 - _INTEGRALITY_TOLERANCE)), 1, num_moving // _DIVES
        )
        num_freed = min_freed if min_freed <= remaining_policies else int(remaining_policies)
        # Without further demands, or without further policies: finish, or ban conflicting columns.
        if not num_moving or not num_freed:
            conflicting = master.conflicts(point)
            if not conflicting.any():
                return point
            master.ban(point.of[conflicting], point.mid[conflicting])
        else:
            # Free the demands that move most.
            freed = master.largest(moved, num_freed)
            counts[freed] = 0.0
            remaining_policies -= len(freed)
            closed |= master.scenarios.excluded(freed)
        next_point, _, _ = optimum(
            master,
            dataclasses.replace(program, counts=counts, policies=remaining_policies, closed=closed),
            DIVE_GAP,
            deadline,
        )
        if next_point is None or deadline.is_over:
            return (
                None
                if program.utilisation is not None
                else _of_largest(master, point, int(program.policies))
            )
        point = next_point


def fewest(
    master: Master, utilisation: float, gap: float, deadline: Deadline
) -> tuple[list[Point], float, int]:
    """Return points with few policies within a utilisation, the bound on their number, and the
    number of rounds.

    Args:
        master: rows and columns so far.
        utilisation: limit U.
        gap: relative gap between the sum of moved shares and its bound at which to stop.
        deadline: time limit, after which the incumbent is returned.
    """
    # The linear program gives the bound; a dive from its optimum, few policies.
    program = Program(np.ones(master.demands), utilisation)
    start, bound, rounds = optimum(master, program, gap, deadline)
    min_policies = float(max(0, math.ceil(bound - 1e-6)))
    is_near = start is None or len(start.steered) <= min_policies * (1 + FEW_GAP)
    few_policies_point = (
        None if start is None or is_near else _dive(master, program, start, deadline)
    )
    # Transit policies: the dive may fail, so try the integer program, too.
    if master.scenarios.is_transit and (
        few_policies_point is None or len(few_policies_point.steered) > min_policies * (1 + FEW_GAP)
    ):
        integer_deadline = (
            deadline
            if few_policies_point is None
            else Deadline(time.perf_counter() + _INTEGER_S / 2, deadline)
        )
        integer_point = solve_integer_program(master, program, FEW_GAP, integer_deadline)
        few_policies_point = min(
            [point for point in (few_policies_point, integer_point) if point is not None],
            key=lambda point: len(point.steered),
            default=None,
        )
    installable = [
        point
        for point in (start, few_policies_point)
        if point is not None and master.can_be_installed(point)
    ]
    return installable, min_policies, rounds


def at_most(
    master: Master,
    max_policies: int,
    any_number: Point,
    gap: float,
    deadline: Deadline,
    report: Callable[[int, float, float], None] | None = None,
) -> tuple[Point, float, int]:
    """Return the point of least utilisation with at most N policies, its bound, and the number of
    rounds.

    Args:
        master: rows and columns so far.
        max_policies: largest number of policies, N.
        any_number: a point with any number of policies.
        gap: certified gap at which to stop.
        deadline: time limit, after which the incumbent is returned.
        report: see :func:`optimum`.
    """
    # A dive, and the unrestricted point if it has few enough policies.
    program = Program(np.ones(master.demands), policies=float(max_policies))
    start, bound, rounds = optimum(master, program, gap, deadline, report)
    candidates = [None if start is None else _dive(master, program, start, deadline)]
    is_enough = len(any_number.steered) <= max_policies and master.can_be_installed(any_number)
    candidates.append(any_number if is_enough else _of_largest(master, any_number, max_policies))
    best = best_of(master, master.straight, *candidates)
    if master.scenarios.is_transit and best.value > bound * (1 + max(gap, FEW_GAP)):
        best = best_of(master, best, solve_integer_program(master, program, FEW_GAP, deadline))
    best, target_rounds = _from_several_targets(master, max_policies, best, bound, gap, deadline)
    rounds += target_rounds
    # An integer program for very few policies.
    is_small = max_policies <= _FEW_INTEGER and not master.scenarios.is_transit
    if is_small and best.value > bound * (1 + max(gap, FEW_GAP)) and not deadline.is_over:
        integer_deadline = Deadline(time.perf_counter() + _INTEGER_S / 4, deadline)
        unsplit = one_list_each(master, max_policies, master.straight, gap, integer_deadline)
        best = best_of(master, best, unsplit, _of_largest(master, unsplit, max_policies))
    return best, min(bound, best.value), rounds


def _from_several_targets(
    master: Master, max_policies: int, start: Point, bound: float, gap: float, deadline: Deadline
) -> tuple[Point, int]:
    """Free the demands that move most in solutions of fewest policies at several utilisations;
    return the incumbent and the number of rounds.

    Args:
        master: rows and columns so far.
        max_policies: largest number of policies, N.
        start: incumbent.
        bound: lower bound on the utilisation.
        gap: certified gap at which to stop.
        deadline: time limit, after which the incumbent is returned.
    """
    best = start
    rounds = 0
    counts = np.ones(master.demands)
    for part in range(_TARGETS):
        target = bound + (start.value - bound) * part / _TARGETS
        if best.value <= max(target, bound * (1 + gap)) or deadline.is_over:
            break
        target_point, _, target_rounds = optimum(master, Program(counts, target), FEW_GAP, deadline)
        freed = master.program_of_largest(
            best if target_point is None else target_point, max_policies
        )
        freed_point, _, freed_rounds = optimum(master, freed, DIVE_GAP, deadline)
        rounds += target_rounds + freed_rounds
        best = best_of(master, best, freed_point)
    return best, rounds


def one_list_each(
    master: Master, max_policies: float, start: Point, gap: float, deadline: Deadline
) -> Point:
    """Return the point of least utilisation with one list per demand and at most so many policies,
    over the columns of :func:`solve_integer_program`.

    Args:
        master: rows and columns so far, extended in place.
        max_policies: largest number of policies; infinite for any.
        start: incumbent, returned if it splits no demand and no better point exists.
        gap: relative gap of the integer program at which HiGHS stops.
        deadline: time limit, after which the incumbent is returned.
    """
    is_split = bool(((start.share > 0) & (start.share < 1)).any())
    best = master.straight if is_split else start
    program = Program(np.ones(master.demands), policies=max_policies)
    return best_of(
        master, best, solve_integer_program(master, program, gap, deadline, one_list=True)
    )


def solve_integer_program(
    master: Master, program: Program, gap: float, deadline: Deadline, *, one_list: bool = False
) -> Point | None:
    """Integer program: fewest policies within a utilisation, or least utilisation with at most so
    many.

    Its columns are the current ones and those that save most at the dual prices of the program with
    splits.  Violated constraints become rows: links, policies that exclude each other, and lists
    that another policy captures.  None if HiGHS finds no solution in time.

    Args:
        master: rows and columns so far, extended in place.
        program: fewest policies, or at most N.
        gap: relative gap at which HiGHS stops.
        deadline: time limit.
        one_list: whether no demand is split.
    """
    _add_promising_columns(master, program, deadline)
    model = _IntegerModel(master, program, one_list=one_list)
    limit = program.utilisation or 0.0
    best: Point | None = None
    for _ in range(_MAX_INTEGER_ROUNDS):
        shares = model.solve(gap, deadline)
        if shares is None:
            break
        # The point of this solution, and the constraints that it violates.
        point = model.point(shares)
        num_rows_before = model.num_generated_rows
        model.add_violated_rows(point)
        # Incumbent.
        is_better = best is None or (point.value, len(point.steered)) < (
            best.value,
            len(best.steered),
        )
        is_within = program.utilisation is None or point.value <= limit * (1 + TARGET_ROUNDING)
        best = point if is_better and is_within and master.can_be_installed(point) else best
        if model.num_generated_rows == num_rows_before or deadline.is_over:
            break
    return best


def _add_promising_columns(master: Master, program: Program, deadline: Deadline) -> None:
    """Add the columns that save most at the dual prices of the least utilisation with splits."""
    relaxed = master.solve(dataclasses.replace(program, utilisation=None), deadline.remaining_s)
    if relaxed is not None:
        master.add_columns(
            *master.scenarios.promising(
                master.link_prices(relaxed.prices), _INTEGER_COLUMNS, deadline
            )
        )


class _IntegerModel:
    """Integer program over the current columns of a master, with generated rows.

    The variables are the share of each column (C), whether each policy exists (P), and the
    utilisation in ``Master.unit``, in this order.

    Args:
        master: rows and columns so far; its rows are extended in place.
        program: fewest policies, or at most N.
        one_list: whether no demand is split.
    """

    def __init__(self, master: Master, program: Program, *, one_list: bool) -> None:
        self._master = master
        self._program = program
        self._one_list = one_list
        self._minimises_utilisation = program.utilisation is None
        self._demands = master.of
        self._mid = master.mid
        self._policies, policy_index = np.unique(self._demands, return_inverse=True)
        self._num_columns = len(self._demands)
        num_policies = len(self._policies)
        self._num_variables = self._num_columns + num_policies + 1
        # Pairs of variables whose sum is at most 1.
        self._excluding_pairs: set[tuple[int, int]] = set()
        self._set_objective(num_policies)
        self._fixed_rows = self._policy_constraints(policy_index)

    def _set_objective(self, num_policies: int) -> None:
        """Set costs, integrality and upper bounds of the variables."""
        self._cost = np.concatenate(
            [
                np.zeros(self._num_columns),
                np.full(num_policies, 0.0 if self._minimises_utilisation else 1.0),
                [float(self._minimises_utilisation)],
            ]
        )
        # 1 for the variables of policies.
        self._policy_counts = np.concatenate(
            [np.zeros(self._num_columns), np.ones(num_policies), [0.0]]
        )
        self._is_integer = (
            np.concatenate([np.ones(self._num_columns), np.zeros(num_policies + 1)])
            if self._one_list
            else self._policy_counts
        )
        self._upper_bounds = np.append(np.ones(self._num_variables - 1), math.inf)

    def _policy_constraints(self, policy_index: Int64Array) -> list[Between]:
        """Return the constraints on policies: links to their columns, exclusion, and number.

        Args:
            policy_index: (C,) index of the policy of each column.
        """
        num_columns = self._num_columns
        num_policies = len(self._policies)
        # The shares of a policy are at most the policy's variable.
        shares_of_policies = sp.csr_array(
            (np.ones(num_columns), (policy_index, np.arange(num_columns))),
            shape=(num_policies, num_columns),
        )
        empty_column = sp.csr_array((num_policies, 1))
        policy_rows = sp.hstack([shares_of_policies, -sp.eye_array(num_policies), empty_column])
        # The policies of a set of which one can be installed.
        share_sums = self._master.scenarios.sums(self._policies)
        exclusion_rows = sp.hstack(
            [
                sp.csr_array((share_sums.shape[0], num_columns)),
                share_sums,
                sp.csr_array((share_sums.shape[0], 1)),
            ]
        )
        return [
            Between(sp.csr_array(policy_rows), high=0.0),
            Between(sp.csr_array(exclusion_rows), high=1.0),
            Between(sp.csr_array(self._policy_counts[None]), high=self._program.policies),
        ]

    @property
    def num_generated_rows(self) -> tuple[int, int]:
        """Number of pairs of excluding variables, and of link rows."""
        return len(self._excluding_pairs), len(self._master.rows)

    def solve(self, gap: float, deadline: Deadline) -> FloatArray | None:
        """Return the shares (C,) of the optimum over the current rows; None if HiGHS finds none in
        time.

        Args:
            gap: relative gap at which HiGHS stops.
            deadline: time limit.
        """
        constraints = [self._utilisation_constraint(), *self._fixed_rows]
        if self._excluding_pairs:
            constraints.append(self._pair_constraint())
        solution = solve_milp(
            self._cost,
            constraints,
            self._is_integer,
            high=self._upper_bounds,
            seconds=max(0.1, min(deadline.remaining_s, _INTEGER_S)),
            relative_gap=gap,
        )
        return None if solution.x is None else solution.x[: self._num_columns]

    def _utilisation_constraint(self) -> Between:
        """Return the link rows: utilisation at most the limit, or the variable."""
        master = self._master
        straight = np.array([master.straight.used[key] for key in master.rows]) / master.unit
        rows = np.zeros((len(straight), self._num_variables))
        rows[:, : self._num_columns] = master.entries / master.unit
        rows[:, -1] = -float(self._minimises_utilisation)
        limit = self._program.utilisation or 0.0
        return Between(sp.csr_array(rows), high=limit / master.unit - straight)

    def _pair_constraint(self) -> Between:
        """Return a row for each pair of variables that exclude each other."""
        pairs = self._excluding_pairs
        variables = np.array(sorted(pairs)).ravel()
        row = np.repeat(np.arange(len(pairs)), 2)
        return Between(
            sp.csr_array(
                (np.ones(len(variables)), (row, variables)), (len(pairs), self._num_variables)
            ),
            high=1.0,
        )

    def point(self, shares: FloatArray) -> Point:
        """Return the point of shares (C,) after rounding tiny ones to 0, or all to integers."""
        demands = self._demands
        share = np.where(shares > _INTEGRALITY_TOLERANCE, shares, 0.0)
        share = np.round(share) if self._one_list else share
        total = np.bincount(demands, share, minlength=self._master.demands)
        return self._master.point(demands, self._mid, share / np.maximum(1.0, total)[demands])

    def add_violated_rows(self, point: Point) -> None:
        """Add the most utilised links of a point, and its variables that exclude each other."""
        self._master.add_rows(most_utilised(point.used, self._program.utilisation))
        self._excluding_pairs |= _excluding_pairs(self._master, point, self._policies)


def _excluding_pairs(master: Master, point: Point, policies: Int64Array) -> set[tuple[int, int]]:
    """Return the pairs of variables of :class:`_IntegerModel` that are both in use at a point and
    cannot be installed together.
    """
    num_columns = len(point.of)
    steered = point.steered
    pairs = set[tuple[int, int]]()
    variable = {d: num_columns + int(np.searchsorted(policies, d)) for d in steered.tolist()}
    # Policies that exclude each other.
    for d in steered.tolist():
        excluded = steered[master.scenarios.excluded(np.array([d]))[steered]].tolist()
        pairs |= {(min(variable[d], variable[e]), max(variable[d], variable[e])) for e in excluded}
    # Lists that another policy captures.
    for c in np.flatnonzero(master.conflicts(point)).tolist():
        for e in steered.tolist():
            if master.scenarios.conflicting(
                np.array([point.of[c], e]), np.array([point.mid[c]] * 2)
            )[0]:
                pairs.add((c, variable[e]))
    return pairs


@dataclasses.dataclass(frozen=True)
class Few:
    """Limit on the number of policies, in one of three forms.

    Attributes:
        within: minimise policies; relative excess over the least utilisation; NaN for none.
        target: minimise policies; limit on the utilisation; NaN for none.
        at_most: largest number of policies; 0 for any.

    Raises:
        InputError: not exactly one of them, or a number below 0.
    """

    within: float = math.nan
    target: float = math.nan
    at_most: int = 0

    def __post_init__(self) -> None:
        is_set = [not math.isnan(self.within), not math.isnan(self.target), self.at_most != 0]
        if (
            sum(is_set) != 1
            or min(self.at_most, *(x for x in (self.within, self.target) if not math.isnan(x)), 0)
            < 0
        ):
            raise InputError(
                "few", "", "exactly one of within, target and at_most, at least 0", self
            )

    def limit(self, value: float, bound: float, lists: str) -> float:
        """Return the utilisation limit under which the number of policies is minimised.

        Args:
            value: utilisation of the incumbent.
            bound: lower bound on the utilisation.
            lists: set of segment lists for which the bound holds, for the message.

        Raises:
            InputError: an infeasible target, or a target that the search did not reach.
        """
        if not math.isnan(self.within):
            return value * (1 + self.within)
        require_target(self.target, value, bound, lists)
        return max(self.target, value)
