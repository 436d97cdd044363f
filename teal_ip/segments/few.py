"""Integer solutions near the bounds of the linear programs: few policies, one list per demand.

A diving heuristic finds few policies: the demands that move the largest shares get a policy that
no longer counts, and the program is solved again for the others, until no other demand moves.  For
at most N policies, the heuristic also minimises the utilisation over the N demands that move most
in solutions of fewest policies at several utilisations.  Some transit policies exclude each other,
so a dive may end without a feasible point; then an integer program over the current columns is
solved (:func:`solve_integer_program`).  Entry points: :func:`fewest`, :func:`at_most`,
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
from teal.runtime.lp import RangeConstraint, solve_milp
from teal_ip.segments.problem import TARGET_ROUNDING, require_target
from teal_ip.segments.programs import Master, Point, Program, most_utilised, optimum

# Relative gap of the number of policies, or of the utilisation, at which further heuristics are
# skipped.
FEW_GAP = 0.02
# Target gap of the linear programs of a dive.
DIVE_GAP = 1e-3
# Number of utilisation limits at which the fewest policies are computed, for at most N policies.
_NUM_TARGETS = 10
# A step of a dive fixes at least one in this many of the demands that move.
_MOVING_PER_FIXED = 10
# Distance of a share from 0 or 1 that counts as rounding.
_INTEGRALITY_TOLERANCE = 1e-6
# Integer programs: largest number of rounds with new rows, and time limit of a round, seconds.
_MAX_INTEGER_ROUNDS = 20
_INTEGER_S = 20.0
# Largest number of policies for which at_most also solves an integer program.
_FEW_INTEGER = 5
# Time limit of a last linear program over the current columns after the deadline, seconds.
_LAST_S = 5.0
# Columns that are added to the master before an integer program.
_INTEGER_COLUMNS = 1_000


def _optimum_of_largest(master: Master, point: Point, max_policies: int) -> Point | None:
    """Return the point of least utilisation over the current columns in which only the N demands
    that move the most Gbit/s at ``point`` may have a policy; None if HiGHS finds none in _LAST_S
    seconds.

    Args:
        master: rows and columns so far.
        point: point that selects the demands.
        max_policies: number of these demands, N.
    """
    return master.solve(master.program_of_largest(point, max_policies), _LAST_S)


def best_installable(master: Master, *points: Point | None) -> Point:
    """Return the point of least utilisation whose policies can be installed together.

    Args:
        master: rows and columns of the points.
        points: candidates; None is skipped.  The first one is known to be installable.
    """
    return min(
        (
            point
            for point in points
            if point is not None and (point is points[0] or master.can_be_installed(point))
        ),
        key=lambda point: point.value,
    )


def _dive(master: Master, program: Program, start: Point, deadline: Deadline) -> Point | None:
    """Fix segment routing policies of demands one after the other (diving heuristic).

    A policy moves a share of a demand off its shortest paths.  A fixed policy no longer counts: its
    demand may move at no cost.  Each step fixes the demands whose whole share moves, at least one,
    and solves the program again for the others.

    Args:
        master: restricted master program with generated rows (links) and columns (demand,
            midpoint), extended in place.
        program: fewest policies within a utilisation, or least utilisation with at most N policies.
        start: optimum of the program.
        deadline: time limit.

    Returns:
        the point at the end of the dive.  If the deadline ends the dive: None if policies are
        minimised; if the utilisation is minimised, the optimum over the current columns for the
        demands that move most.
    """
    # (D,) 1 for demands without a fixed policy, 0 for the others; number of policies that may still
    # be fixed; and whether a demand (D,) must not have a policy.
    is_counted = program.counted.copy()
    remaining_policies = program.policy_limit
    point = start
    is_barred = np.zeros(master.num_demands, dtype=bool)
    while True:
        # Number of policies to fix in this step.
        moved_share = np.where(is_counted > 0, point.moved, 0.0)
        num_moving = int(np.count_nonzero(moved_share))
        min_fixed = max(
            int(np.count_nonzero(moved_share >= 1 - _INTEGRALITY_TOLERANCE)),
            1,
            num_moving // _MOVING_PER_FIXED,
        )
        num_fixed = min_fixed if min_fixed <= remaining_policies else int(remaining_policies)
        # No other demand moves, or N policies are fixed: finish, unless transit policies conflict;
        # then ban their columns and solve again.
        if not num_moving or not num_fixed:
            is_conflicting = master.conflicts(point)
            if not is_conflicting.any():
                return point
            master.ban(point.demand[is_conflicting], point.mid[is_conflicting])
        else:
            # Fix the demands with the largest shares, and bar policies that exclude them.
            fixed_demands = master.largest_policies(moved_share, num_fixed)
            is_counted[fixed_demands] = 0.0
            remaining_policies -= len(fixed_demands)
            is_barred |= master.scenarios.excluded(fixed_demands)
        # Optimum with these fixed policies; the deadline ends the dive.
        next_point, _, _ = optimum(
            master,
            dataclasses.replace(
                program, counted=is_counted, policy_limit=remaining_policies, barred=is_barred
            ),
            DIVE_GAP,
            deadline,
        )
        if next_point is None or deadline.is_over:
            return (
                None
                if program.utilisation_limit is not None
                else _optimum_of_largest(master, point, int(program.policy_limit))
            )
        point = next_point


def fewest(
    master: Master, utilisation: float, gap: float, deadline: Deadline
) -> tuple[list[Point], float, int]:
    """Return points with few policies within a utilisation, and a bound on their number.

    A policy moves a share of a demand off its shortest paths to lists over a midpoint.

    Args:
        master: restricted master program with generated rows (links) and columns (demand,
            midpoint), extended in place.
        utilisation: utilisation limit U.
        gap: relative gap between the sum of moved shares and its bound at which to stop.
        deadline: time limit, after which the incumbent is returned.

    Returns:
        installable points, possibly none; the lower bound on the number of policies; the number of
        rounds of row and column generation.
    """
    # The linear program gives the bound on the number, rounded up; a dive from its optimum gives a
    # point with few policies.
    program = Program(np.ones(master.num_demands), utilisation)
    relaxed_point, bound, rounds = optimum(master, program, gap, deadline)
    min_policies = float(max(0, math.ceil(bound - 1e-6)))
    is_near = relaxed_point is None or len(relaxed_point.steered) <= min_policies * (1 + FEW_GAP)
    few_policies_point = (
        None
        if relaxed_point is None or is_near
        else _dive(master, program, relaxed_point, deadline)
    )
    # Transit policies exclude each other, so the dive may fail: solve the integer program, too.
    if master.scenarios.is_transit and (
        few_policies_point is None or len(few_policies_point.steered) > min_policies * (1 + FEW_GAP)
    ):
        # At most half of _INTEGER_S seconds if the dive has found a point.
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
        for point in (relaxed_point, few_policies_point)
        if point is not None and master.can_be_installed(point)
    ]
    return installable, min_policies, rounds


def at_most(
    master: Master,
    max_policies: int,
    unrestricted_point: Point,
    gap: float,
    deadline: Deadline,
    report: Callable[[int, float, float], None] | None = None,
) -> tuple[Point, float, int]:
    """Minimise the largest link utilisation with at most N segment routing policies.

    A policy moves a share of a demand off its shortest paths to lists over a midpoint.  Candidates:
    no policy; a dive; the unrestricted point, or its N policies that move most; integer programs;
    and policies of solutions of fewest policies at several utilisations.

    Args:
        master: restricted master program with generated rows (links) and columns (demand,
            midpoint), extended in place.
        max_policies: largest number of policies, N.
        unrestricted_point: a point with any number of policies.
        gap: certified gap at which to stop.
        deadline: time limit, after which the incumbent is returned.
        report: called after each round with its index, the incumbent's utilisation and the bound.

    Returns:
        the incumbent, the lower bound on the utilisation, and the number of rounds.
    """
    # Linear program: the bound, and the start of a dive.
    program = Program(np.ones(master.num_demands), policy_limit=float(max_policies))
    relaxed_point, bound, rounds = optimum(master, program, gap, deadline, report)
    candidates = [
        None if relaxed_point is None else _dive(master, program, relaxed_point, deadline)
    ]
    # The unrestricted point if it has few enough policies, else its N policies that move most.
    unrestricted_fits = len(unrestricted_point.steered) <= max_policies and master.can_be_installed(
        unrestricted_point
    )
    candidates.append(
        unrestricted_point
        if unrestricted_fits
        else _optimum_of_largest(master, unrestricted_point, max_policies)
    )
    incumbent = best_installable(master, master.shortest_paths, *candidates)
    # Transit policies exclude each other, so the dive may fail: solve the integer program, too.
    if master.scenarios.is_transit and incumbent.value > bound * (1 + max(gap, FEW_GAP)):
        incumbent = best_installable(
            master, incumbent, solve_integer_program(master, program, FEW_GAP, deadline)
        )
    incumbent, target_rounds = _from_several_targets(
        master, max_policies, incumbent, bound, gap, deadline
    )
    rounds += target_rounds
    # Very few policies: integer program with one list per demand, then splits over its policies.
    tries_integer_program = max_policies <= _FEW_INTEGER and not master.scenarios.is_transit
    if (
        tries_integer_program
        and incumbent.value > bound * (1 + max(gap, FEW_GAP))
        and not deadline.is_over
    ):
        integer_deadline = Deadline(time.perf_counter() + _INTEGER_S / 4, deadline)
        unsplit_point = one_list_each(
            master, max_policies, master.shortest_paths, gap, integer_deadline
        )
        incumbent = best_installable(
            master,
            incumbent,
            unsplit_point,
            _optimum_of_largest(master, unsplit_point, max_policies),
        )
    return incumbent, min(bound, incumbent.value), rounds


def _from_several_targets(
    master: Master, max_policies: int, start: Point, bound: float, gap: float, deadline: Deadline
) -> tuple[Point, int]:
    """Search for a lower utilisation with at most N policies, which are taken from solutions of
    fewest policies at several utilisation limits (heuristic).

    For each of _NUM_TARGETS limits between the bound and the start, compute the fewest policies,
    retain the N that move most, and minimise the utilisation with them.

    Args:
        master: restricted master program with generated rows (links) and columns (demand,
            midpoint), extended in place.
        max_policies: largest number of policies, N.
        start: incumbent.
        bound: lower bound on the utilisation.
        gap: certified gap at which to stop.
        deadline: time limit, after which the incumbent is returned.

    Returns:
        the incumbent, and the number of rounds.
    """
    incumbent = start
    rounds = 0
    is_counted = np.ones(master.num_demands)
    for index in range(_NUM_TARGETS):
        # Utilisation limits, the lowest one (the bound) first; stop at limits above the incumbent.
        target = bound + (start.value - bound) * index / _NUM_TARGETS
        if incumbent.value <= max(target, bound * (1 + gap)) or deadline.is_over:
            break
        # Fewest policies within the limit.
        target_point, _, target_rounds = optimum(
            master, Program(is_counted, target), FEW_GAP, deadline
        )
        # Least utilisation with the N of these policies that move most.
        program_of_largest = master.program_of_largest(
            incumbent if target_point is None else target_point, max_policies
        )
        restricted_point, _, restricted_rounds = optimum(
            master, program_of_largest, DIVE_GAP, deadline
        )
        rounds += target_rounds + restricted_rounds
        incumbent = best_installable(master, incumbent, restricted_point)
    return incumbent, rounds


def one_list_each(
    master: Master, max_policies: float, start: Point, gap: float, deadline: Deadline
) -> Point:
    """Return the point of least utilisation with one list per demand and a limited number of
    policies.

    It is the optimum of an integer program over the current columns and those that save most at the
    dual prices of the program with splits.

    Args:
        master: restricted master program with generated rows (links) and columns (demand,
            midpoint), extended in place.
        max_policies: largest number of policies; infinite for any number.
        start: incumbent, returned if it splits no demand and no better point exists.
        gap: relative gap of the integer program at which HiGHS stops.
        deadline: time limit, after which the incumbent is returned.
    """
    is_split = bool(((start.share > 0) & (start.share < 1)).any())
    incumbent = master.shortest_paths if is_split else start
    program = Program(np.ones(master.num_demands), policy_limit=max_policies)
    return best_installable(
        master, incumbent, solve_integer_program(master, program, gap, deadline, one_list=True)
    )


def solve_integer_program(
    master: Master, program: Program, gap: float, deadline: Deadline, *, one_list: bool = False
) -> Point | None:
    """Solve an integer program: fewest policies within a utilisation, or least utilisation with at
    most N policies.

    Its columns are the current ones and those that save most at the dual prices of the program with
    splits.  A column is the list of a demand over a midpoint; a demand has a policy if a column of
    it is used.  Each round solves the program and adds violated constraints as rows: overloaded
    links, policies that exclude each other, and lists whose traffic another policy captures.

    Args:
        master: restricted master program with generated rows (links) and columns (demand,
            midpoint), extended in place.
        program: fewest policies within a utilisation, or least utilisation with at most N policies.
        gap: relative gap at which HiGHS stops.
        deadline: time limit.
        one_list: whether no demand is split.

    Returns:
        the best installable point; None if there is none in time.
    """
    _add_promising_columns(master, program, deadline)
    model = _IntegerModel(master, program, one_list=one_list)
    # Used only if there is a limit.
    max_utilisation = program.utilisation_limit or 0.0
    incumbent: Point | None = None
    for _ in range(_MAX_INTEGER_ROUNDS):
        shares = model.solve(gap, deadline)
        if shares is None:
            break
        # The point of this solution, and the constraints that it violates.
        point = model.point(shares)
        num_rows_before = model.num_generated_rows
        model.add_violated_rows(point)
        # Incumbent: least utilisation, then fewest policies, among installable points.
        is_better = incumbent is None or (point.value, len(point.steered)) < (
            incumbent.value,
            len(incumbent.steered),
        )
        is_within = program.utilisation_limit is None or point.value <= max_utilisation * (
            1 + TARGET_ROUNDING
        )
        incumbent = (
            point if is_better and is_within and master.can_be_installed(point) else incumbent
        )
        # No violated constraint: the point is optimal over the columns.
        if model.num_generated_rows == num_rows_before or deadline.is_over:
            break
    return incumbent


def _add_promising_columns(master: Master, program: Program, deadline: Deadline) -> None:
    """Add to the master the _INTEGER_COLUMNS columns that save most against the shortest paths, at
    the dual prices of the least utilisation with splits.

    Args:
        master: rows and columns so far; its columns are extended in place.
        program: supplies the limit on the number of policies, and the demands that count.
        deadline: time limit.
    """
    relaxed_point = master.solve(
        dataclasses.replace(program, utilisation_limit=None), deadline.remaining_s
    )
    if relaxed_point is not None:
        master.add_columns(
            *master.scenarios.most_saving_columns(
                master.link_prices(relaxed_point.prices), _INTEGER_COLUMNS, deadline
            )
        )


class _IntegerModel:
    """Integer program over the current columns of a master, with generated rows.

    The variables, V in number, are in this order: the share of each column (C), 0 or 1 for the
    existence of each policy (P), and theta, the largest utilisation divided by ``Master.unit`` (1).

    Args:
        master: rows and columns so far; its rows are extended in place.
        program: fewest policies within a utilisation, or least utilisation with at most N policies.
        one_list: whether no demand is split: shares are integers.
    """

    def __init__(self, master: Master, program: Program, *, one_list: bool) -> None:
        """Set up objective and fixed constraints over the current columns of the master.

        Variables: share of each column (C), existence of each policy (P), and theta.
        """
        self._master = master
        self._program = program
        self._one_list = one_list
        self._minimises_utilisation = program.utilisation_limit is None
        self._column_demand = master.column_demand
        self._column_mid = master.column_mid
        # Demands (P,) that have a column, and the index among them of each column (C,).
        self._policy_demands, policy_index = np.unique(self._column_demand, return_inverse=True)
        self._num_columns = len(self._column_demand)
        num_policies = len(self._policy_demands)
        self._num_variables = self._num_columns + num_policies + 1
        # Pairs of variable indices whose sum is at most 1.
        self._excluding_pairs: set[tuple[int, int]] = set()
        self._set_variables(num_policies)
        self._fixed_rows = self._policy_constraints(policy_index)

    def _set_variables(self, num_policies: int) -> None:
        """Set costs, integrality and upper bounds of the V variables: shares, policies and theta.

        The cost is theta, or the number of policies.
        """
        self._cost = np.concatenate(
            [
                np.zeros(self._num_columns),
                np.full(num_policies, 0.0 if self._minimises_utilisation else 1.0),
                [float(self._minimises_utilisation)],
            ]
        )
        # (V,) 1 for the variables of policies, else 0.
        self._is_policy = np.concatenate(
            [np.zeros(self._num_columns), np.ones(num_policies), [0.0]]
        )
        # (V,) 1 for integer variables: with one list per demand its shares, whose sum bounds the
        # policy from below; otherwise the policies.
        self._is_integer = (
            np.concatenate([np.ones(self._num_columns), np.zeros(num_policies + 1)])
            if self._one_list
            else self._is_policy
        )
        self._upper_bounds = np.append(np.ones(self._num_variables - 1), math.inf)

    def _policy_constraints(self, policy_index: Int64Array) -> list[RangeConstraint]:
        """Return the constraints on policies, whose variables exists[p] are 0 or 1:

            sum of the shares of policy p - exists[p] <= 0      for each policy p
            sum of exists[p] <= 1                               for each set of excluding policies
            sum of exists[p] <= N                               N: largest number of policies

        Args:
            policy_index: (C,) index of the policy of each column.
        """
        num_columns = self._num_columns
        num_policies = len(self._policy_demands)
        # Shares move only if their policy exists.
        shares_of_policies = sp.csr_array(
            (np.ones(num_columns), (policy_index, np.arange(num_columns))),
            shape=(num_policies, num_columns),
        )
        empty_column = sp.csr_array((num_policies, 1))
        policy_rows = sp.hstack([shares_of_policies, -sp.eye_array(num_policies), empty_column])
        # Sets of policies of which at most one can be installed.
        share_sums = self._master.scenarios.share_sum_rows(self._policy_demands)
        exclusion_rows = sp.hstack(
            [
                sp.csr_array((share_sums.shape[0], num_columns)),
                share_sums,
                sp.csr_array((share_sums.shape[0], 1)),
            ]
        )
        return [
            RangeConstraint(sp.csr_array(policy_rows), high=0.0),
            RangeConstraint(sp.csr_array(exclusion_rows), high=1.0),
            RangeConstraint(sp.csr_array(self._is_policy[None]), high=self._program.policy_limit),
        ]

    @property
    def num_generated_rows(self) -> tuple[int, int]:
        """Number of pairs of variables that exclude each other, and number of link rows, so far."""
        return len(self._excluding_pairs), len(self._master.rows)

    def solve(self, gap: float, deadline: Deadline) -> FloatArray | None:
        """Return the shares (C,) of the optimum over the current rows; None if there is none in
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

    def _utilisation_constraint(self) -> RangeConstraint:
        """Return the constraint of each generated link row, with all utilisations divided by
        ``Master.unit``:

            utilisation of the shortest paths + entries x <= theta, or <= U

        where x are the shares of the columns, and entries the utilisation that each column adds if
        it moves its whole demand.  theta is a variable if the utilisation is minimised; otherwise U
        is the utilisation limit.
        """
        master = self._master
        shortest_path_utilisation = (
            np.array([master.shortest_paths.utilisation[key] for key in master.rows]) / master.unit
        )
        rows = np.zeros((len(shortest_path_utilisation), self._num_variables))
        rows[:, : self._num_columns] = master.entries / master.unit
        rows[:, -1] = -float(self._minimises_utilisation)
        limit = self._program.utilisation_limit or 0.0
        return RangeConstraint(
            sp.csr_array(rows), high=limit / master.unit - shortest_path_utilisation
        )

    def _pair_constraint(self) -> RangeConstraint:
        """Return the rows x[i] + x[j] <= 1 of all pairs of variables that exclude each other."""
        pairs = self._excluding_pairs
        variables = np.array(sorted(pairs)).ravel()
        row = np.repeat(np.arange(len(pairs)), 2)
        return RangeConstraint(
            sp.csr_array(
                (np.ones(len(variables)), (row, variables)), (len(pairs), self._num_variables)
            ),
            high=1.0,
        )

    def point(self, shares: FloatArray) -> Point:
        """Return the point of a solution.

        Args:
            shares: (C,) shares; tiny ones are rounded to 0, all of them to integers without splits,
                and those of a demand are scaled down to a sum of 1.
        """
        demands = self._column_demand
        share = np.where(shares > _INTEGRALITY_TOLERANCE, shares, 0.0)
        share = np.round(share) if self._one_list else share
        total = np.bincount(demands, share, minlength=self._master.num_demands)
        return self._master.point(
            demands, self._column_mid, share / np.maximum(1.0, total)[demands]
        )

    def add_violated_rows(self, point: Point) -> None:
        """Add the constraints that a point violates: its most utilised links as rows of the master,
        and pairs of variables in use that exclude each other.
        """
        self._master.add_rows(most_utilised(point.utilisation, self._program.utilisation_limit))
        self._excluding_pairs |= _excluding_pairs(self._master, point, self._policy_demands)


def _excluding_pairs(master: Master, point: Point, policies: Int64Array) -> set[tuple[int, int]]:
    """Return pairs of variables of the integer program that are both in use at a point and cannot
    be installed together: two policies, or a column and the policy that captures its traffic.

    Args:
        master: rows and columns of the point.
        point: solution of the integer program.
        policies: (P,) demands that have a column, ascending; the variable of policies[p] has the
            index C + p.
    """
    num_columns = len(point.demand)
    steered = point.steered
    pairs = set[tuple[int, int]]()
    # Index of the variable of each policy in use.
    policy_variable = {d: num_columns + int(np.searchsorted(policies, d)) for d in steered.tolist()}
    # Policies that exclude each other.
    for d in steered.tolist():
        excluded_policies = steered[master.scenarios.excluded(np.array([d]))[steered]].tolist()
        pairs |= {
            (
                min(policy_variable[d], policy_variable[other_demand]),
                max(policy_variable[d], policy_variable[other_demand]),
            )
            for other_demand in excluded_policies
        }
    # Columns whose traffic another policy captures.
    for column in np.flatnonzero(master.conflicts(point)).tolist():
        for other_demand in steered.tolist():
            # The second column only supplies its policy: its own midpoint does not matter.
            if master.scenarios.conflicting(
                np.array([point.demand[column], other_demand]), np.array([point.mid[column]] * 2)
            )[0]:
                pairs.add((column, policy_variable[other_demand]))
    return pairs


@dataclasses.dataclass(frozen=True)
class Few:
    """Limit on the number of policies, in one of three forms.

    Attributes:
        within: if policies are minimised, the allowed relative excess over the least utilisation;
            NaN if unused.
        target: if policies are minimised, the limit on the utilisation; NaN if unused.
        at_most: if the utilisation is minimised, the largest number of policies; 0 if unused.

    Raises:
        InputError: not exactly one of the three is set, or a number is below 0.
    """

    within: float = math.nan
    target: float = math.nan
    at_most: int = 0

    def __post_init__(self) -> None:
        """Raise InputError unless exactly one of the three limits is set, to a number >= 0."""
        is_set = [not math.isnan(self.within), not math.isnan(self.target), self.at_most != 0]
        if (
            sum(is_set) != 1
            or min(self.at_most, *(x for x in (self.within, self.target) if not math.isnan(x)), 0)
            < 0
        ):
            raise InputError.invalid(
                "few",
                "",
                "exactly one of within, target and at_most must be set, to a number >= 0",
                f"set one of them instead of {self}",
            )

    def utilisation_limit(self, value: float, bound: float, lists: str) -> float:
        """Return the utilisation limit under which the number of policies is minimised.

        Args:
            value: utilisation of the incumbent.
            bound: lower bound on the utilisation.
            lists: kind of segment lists for which the bound holds, for the message.

        Raises:
            InputError: the target is infeasible, or the search did not reach it.
        """
        if not math.isnan(self.within):
            return value * (1 + self.within)
        require_target(self.target, value, bound, lists)
        return max(self.target, value)
