"""Integer solutions near the bounds of the linear programs: few policies, one list per demand.

A diving heuristic finds few policies: the demands that move most get a policy that no longer
counts, and the program is solved again for the others, until no other demand moves.  For at most N
policies, the heuristic also minimises the utilisation over the N demands that move most in
solutions of fewest policies at several utilisations.  Some transit policies exclude each other, so
a dive may end without a feasible point; then an integer program over the current columns is solved
(:func:`whole`).  Entry points: :func:`fewest`, :func:`at_most`, :func:`one_list_each`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.runtime.arrays import Int64Array
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
            one
            for one in points
            if one is not None and (one is points[0] or master.can_be_installed(one))
        ),
        key=lambda one: one.value,
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
        in_time = (
            deadline
            if few_policies_point is None
            else Deadline(time.perf_counter() + _INTEGER_S / 2, deadline)
        )
        candidates = [
            one
            for one in (few_policies_point, whole(master, program, FEW_GAP, in_time))
            if one is not None
        ]
        few_policies_point = min(candidates, key=lambda one: len(one.steered), default=None)
    return (
        [
            one
            for one in (start, few_policies_point)
            if one is not None and master.can_be_installed(one)
        ],
        min_policies,
        rounds,
    )


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
        best = best_of(master, best, whole(master, program, FEW_GAP, deadline))
    # Demands of the fewest policies at several utilisations.
    highest = best.value
    for part in range(_TARGETS):
        target = bound + (highest - bound) * part / _TARGETS
        if best.value <= max(target, bound * (1 + gap)) or deadline.is_over:
            break
        target_point, _, target_rounds = optimum(
            master, Program(program.counts, target), FEW_GAP, deadline
        )
        freed = master.program_of_largest(
            best if target_point is None else target_point, max_policies
        )
        freed_point, _, freed_rounds = optimum(master, freed, DIVE_GAP, deadline)
        rounds += target_rounds + freed_rounds
        best = best_of(master, best, freed_point)
    # An integer program for very few policies.
    is_small = max_policies <= _FEW_INTEGER and not master.scenarios.is_transit
    if is_small and best.value > bound * (1 + max(gap, FEW_GAP)) and not deadline.is_over:
        in_time = Deadline(time.perf_counter() + _INTEGER_S / 4, deadline)
        unsplit = one_list_each(master, max_policies, master.straight, gap, in_time)
        best = best_of(master, best, unsplit, _of_largest(master, unsplit, max_policies))
    return best, min(bound, best.value), rounds


def one_list_each(
    master: Master, max_policies: float, start: Point, gap: float, deadline: Deadline
) -> Point:
    """Return the point of least utilisation with one list per demand and at most so many policies,
    over the columns of :func:`whole`.

    Args:
        master: rows and columns so far, extended in place.
        max_policies: largest number of policies; infinite for any.
        start: incumbent, returned if it splits no demand and nothing better is found.
        gap: relative gap of the integer program at which HiGHS stops.
        deadline: time limit, after which the incumbent is returned.
    """
    is_split = bool(((start.share > 0) & (start.share < 1)).any())
    best = master.straight if is_split else start
    program = Program(np.ones(master.demands), policies=max_policies)
    return best_of(master, best, whole(master, program, gap, deadline, one_list=True))


def whole(
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
    # Columns.
    relaxed = master.solve(dataclasses.replace(program, utilisation=None), deadline.remaining_s)
    if relaxed is not None:
        master.add_columns(
            *master.scenarios.promising(
                master.link_prices(relaxed.prices), _INTEGER_COLUMNS, deadline
            )
        )
    demands = master.of
    mid = master.mid
    num_columns = len(master.of)
    policies, policy_index = np.unique(demands, return_inverse=True)
    # Variables: shares, policies, utilisation.
    minimises_utilisation = program.utilisation is None
    num_policies = len(policies)
    empty_column = sp.csr_array((num_policies, 1))
    num_variables = num_columns + num_policies + 1
    policy_rows = sp.csr_array(
        (np.ones(num_columns), (policy_index, np.arange(num_columns))),
        shape=(num_policies, num_columns),
    )
    # The shares of a policy are at most the policy's variable.
    policy_rows = sp.hstack([policy_rows, -sp.eye_array(num_policies), empty_column])
    share_sums = master.scenarios.sums(policies)
    share_sums = sp.hstack(
        [
            sp.csr_array((share_sums.shape[0], num_columns)),
            share_sums,
            sp.csr_array((share_sums.shape[0], 1)),
        ]
    )
    # Pairs of variables whose sum is at most 1.
    pairs: set[tuple[int, int]] = set()
    cost = np.concatenate(
        [
            np.zeros(num_columns),
            np.full(num_policies, 0.0 if minimises_utilisation else 1.0),
            [float(minimises_utilisation)],
        ]
    )
    policy_counts = np.concatenate([np.zeros(num_columns), np.ones(num_policies), [0.0]])
    is_integer = (
        np.concatenate([np.ones(num_columns), np.zeros(num_policies + 1)])
        if one_list
        else policy_counts
    )
    limit = program.utilisation or 0.0
    upper_bounds = np.append(np.ones(num_variables - 1), math.inf)
    best: Point | None = None
    for _ in range(_MAX_INTEGER_ROUNDS):
        straight = np.array([master.straight.used[key] for key in master.rows]) / master.unit
        rows = np.zeros((len(straight), num_variables))
        rows[:, :num_columns] = master.entries / master.unit
        rows[:, -1] = -float(minimises_utilisation)
        limits = [
            Between(sp.csr_array(rows), high=limit / master.unit - straight),
            Between(sp.csr_array(policy_rows), high=0.0),
            Between(sp.csr_array(share_sums), high=1.0),
            Between(sp.csr_array(policy_counts[None]), high=program.policies),
        ]
        if pairs:
            variables = np.array(sorted(pairs)).ravel()
            row = np.repeat(np.arange(len(pairs)), 2)
            limits.append(
                Between(
                    sp.csr_array(
                        (np.ones(len(variables)), (row, variables)), (len(pairs), num_variables)
                    ),
                    high=1.0,
                )
            )
        solution = solve_milp(
            cost,
            limits,
            is_integer,
            high=upper_bounds,
            seconds=max(0.1, min(deadline.remaining_s, _INTEGER_S)),
            relative_gap=gap,
        )
        if solution.x is None:
            break
        # The point of this solution, and the constraints that it violates.
        share = np.where(
            solution.x[:num_columns] > _INTEGRALITY_TOLERANCE, solution.x[:num_columns], 0.0
        )
        share = np.round(share) if one_list else share
        point = master.point(
            demands,
            mid,
            share / np.maximum(1.0, np.bincount(demands, share, minlength=master.demands))[demands],
        )
        num_rows_before = (len(pairs), len(master.rows))
        master.add_rows(most_utilised(point.used, program.utilisation))
        pairs |= _forbidden(master, point, policies)
        is_better = best is None or (point.value, len(point.steered)) < (
            best.value,
            len(best.steered),
        )
        is_kept = minimises_utilisation or point.value <= limit * (1 + TARGET_ROUNDING)
        best = point if is_better and is_kept and master.can_be_installed(point) else best
        if (len(pairs), len(master.rows)) == num_rows_before or deadline.is_over:
            break
    return best


def _forbidden(master: Master, point: Point, policies: Int64Array) -> set[tuple[int, int]]:
    """Return the pairs of variables of :func:`whole` that are both in use at a point and cannot be
    installed together.
    """
    count = len(point.of)
    steered = point.steered
    result = set[tuple[int, int]]()
    variable = {d: count + int(np.searchsorted(policies, d)) for d in steered.tolist()}
    for d in steered.tolist():
        others = steered[master.scenarios.excluded(np.array([d]))[steered]].tolist()
        result |= {(min(variable[d], variable[e]), max(variable[d], variable[e])) for e in others}
    for c in np.flatnonzero(master.conflicts(point)).tolist():
        for e in steered.tolist():
            if master.scenarios.conflicting(
                np.array([point.of[c], e]), np.array([point.mid[c]] * 2)
            )[0]:
                result.add((c, variable[e]))
    return result


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
