"""Few policies, and one list for each demand: whole numbers near the bounds of the linear programs.

Lists of so many policies are found by a dive: the demands that move most get a policy that counts
no more, and the program is solved again for the others, until no other demand moves.  For at most N
policies, the least utilisation over those N demands that move most at the fewest policies of
several utilisations is tried too.  Of transit policies some exclude each other, so that a dive may
end without any: then the columns so far are solved in whole numbers.
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
from teal_ip.segments.programs import Master, Point, Program, fullest, optimum

# of few policies, their number or utilisation, at which further ways to find them are not tried
FEW_GAP = 0.02
DIVE_GAP = 1e-3  # of the programs of a dive
_TARGETS = 10  # utilisations whose fewest policies are tried for at most N
_DIVES = 10  # a dive gives at least the n-th part of the demands that move a policy at a time
_WHOLE = 1e-6  # share of a demand, up to which it may not move and still counts as moved whole
_MAX_WHOLE_ROUNDS, _WHOLE_S = 20, 20.0  # rounds of new rows for one list each, and seconds of each
_FEW_WHOLE = 5  # policies, up to which at most N of them are also looked for in whole numbers
_LAST_S = 5.0  # seconds of a last linear program over the columns so far, where time is over
_WHOLE_COLUMNS = 1_000  # columns that are added for one list each


def _of_largest(master: Master, point: Point, most: int) -> Point | None:
    """The optimum of :meth:`Master.largest_free` over the columns so far."""
    return master.solve(master.largest_free(point, most), _LAST_S)


def best_of(master: Master, *points: Point | None) -> Point:
    """The point of least utilisation, of those that can be installed; the first one always can."""
    return min(
        (
            one
            for one in points
            if one is not None and (one is points[0] or master.can_be_installed(one))
        ),
        key=lambda one: one.value,
    )


def _dive(master: Master, program: Program, start: Point, deadline: Deadline) -> Point | None:
    """Give policies to the demands that move most, until no other demand moves (see the module).

    Where time is over, None for fewest policies, and else what the columns so far allow those that
    move most.

    Args:
        master: rows and columns so far.
        program: fewest policies, or at most so many.
        start: optimum of the program.
        deadline: after which to give up.
    """
    counts, left, point = program.counts.copy(), program.policies, start
    closed = np.zeros(master.demands, dtype=bool)
    while True:
        moved = np.where(counts > 0, point.moved, 0.0)
        others = int(np.count_nonzero(moved))
        enough = max(int(np.count_nonzero(moved >= 1 - _WHOLE)), 1, others // _DIVES)
        most = enough if enough <= left else int(left)
        if not others or not most:
            met = master.conflicts(point)
            if not met.any():
                return point
            master.ban(point.of[met], point.mid[met])
        else:
            freed = master.largest(moved, most)
            counts[freed] = 0.0
            left -= len(freed)
            closed |= master.scenarios.excluded(freed)
        found, _, _ = optimum(
            master,
            dataclasses.replace(program, counts=counts, policies=left, closed=closed),
            DIVE_GAP,
            deadline,
        )
        if found is None or deadline.is_over:
            return (
                None
                if program.utilisation is not None
                else _of_largest(master, point, int(program.policies))
            )
        point = found


def fewest(
    master: Master, utilisation: float, gap: float, deadline: Deadline
) -> tuple[list[Point], float, int]:
    """Points with few policies within a utilisation, the bound on their number, and the rounds.

    Args:
        master: rows and columns so far.
        utilisation: U.
        gap: between the sum of moved shares and its bound, as a share, at which to stop.
        deadline: after which to stop with the best so far.
    """
    program = Program(np.ones(master.demands), utilisation)
    start, bound, rounds = optimum(master, program, gap, deadline)
    least = float(max(0, math.ceil(bound - 1e-6)))
    is_near = start is None or len(start.steered) <= least * (1 + FEW_GAP)
    dived = None if start is None or is_near else _dive(master, program, start, deadline)
    if master.scenarios.is_transit and (
        dived is None or len(dived.steered) > least * (1 + FEW_GAP)
    ):
        in_time = (
            deadline if dived is None else Deadline(time.perf_counter() + _WHOLE_S / 2, deadline)
        )
        found = [
            one for one in (dived, whole(master, program, FEW_GAP, in_time)) if one is not None
        ]
        dived = min(found, key=lambda one: len(one.steered), default=None)
    return (
        [one for one in (start, dived) if one is not None and master.can_be_installed(one)],
        least,
        rounds,
    )


def at_most(
    master: Master,
    most: int,
    any_number: Point,
    gap: float,
    deadline: Deadline,
    report: Callable[[int, float, float], None] | None = None,
) -> tuple[Point, float, int]:
    """The point of least utilisation with at most so many policies, the bound on it, and the
    rounds.

    Args:
        master: rows and columns so far.
        most: N.
        any_number: a point of any number of policies.
        gap: certified gap at which to stop.
        deadline: after which to stop with the best so far.
        report: see :func:`optimum`.
    """
    program = Program(np.ones(master.demands), policies=float(most))
    start, bound, rounds = optimum(master, program, gap, deadline, report)
    tried = [None if start is None else _dive(master, program, start, deadline)]
    is_enough = len(any_number.steered) <= most and master.can_be_installed(any_number)
    tried.append(any_number if is_enough else _of_largest(master, any_number, most))
    best = best_of(master, master.straight, *tried)
    if master.scenarios.is_transit and best.value > bound * (1 + max(gap, FEW_GAP)):
        best = best_of(master, best, whole(master, program, FEW_GAP, deadline))
    highest = best.value
    for part in range(_TARGETS):
        target = bound + (highest - bound) * part / _TARGETS
        if best.value <= max(target, bound * (1 + gap)) or deadline.is_over:
            break
        of_target, _, more = optimum(master, Program(program.counts, target), FEW_GAP, deadline)
        freed = master.largest_free(best if of_target is None else of_target, most)
        found, _, further = optimum(master, freed, DIVE_GAP, deadline)
        rounds += more + further
        best = best_of(master, best, found)
    is_whole = most <= _FEW_WHOLE and not master.scenarios.is_transit
    if is_whole and best.value > bound * (1 + max(gap, FEW_GAP)) and not deadline.is_over:
        in_time = Deadline(time.perf_counter() + _WHOLE_S / 4, deadline)
        unsplit = one_list_each(master, most, master.straight, gap, in_time)
        best = best_of(master, best, unsplit, _of_largest(master, unsplit, most))
    return best, min(bound, best.value), rounds


def one_list_each(
    master: Master, most: float, start: Point, gap: float, deadline: Deadline
) -> Point:
    """One list for each demand, and at most so many policies: the least utilisation over the
    columns of :func:`whole`.

    Args:
        master: rows and columns so far, which grow.
        most: number of policies; infinite for any.
        start: point that is kept where it splits no demand and nothing better is found.
        gap: relative gap of the program in whole numbers, at which HiGHS stops.
        deadline: after which to stop with the best so far.
    """
    is_split = bool(((start.share > 0) & (start.share < 1)).any())
    best, program = (
        master.straight if is_split else start,
        Program(np.ones(master.demands), policies=most),
    )
    return best_of(master, best, whole(master, program, gap, deadline, one_list=True))


def whole(
    master: Master, program: Program, gap: float, deadline: Deadline, *, one_list: bool = False
) -> Point | None:
    """The fewest policies within a utilisation, or the least utilisation of at most so many, in
    whole numbers.

    Over the columns so far and those that save most at the prices of the program with splits; None
    if none is found in time.  What is violated becomes a row: links, policies that exclude each
    other, and lists that another policy takes.

    Args:
        master: rows and columns so far, which grow.
        program: fewest policies, or at most so many.
        gap: relative gap at which HiGHS stops.
        deadline: after which to give up.
        one_list: whether no policy is split.
    """
    relaxed = master.solve(dataclasses.replace(program, utilisation=None), deadline.left)
    if relaxed is not None:
        master.add_columns(
            *master.scenarios.promising(master.of_links(relaxed.prices), _WHOLE_COLUMNS, deadline)
        )
    of, mid, count = master.of, master.mid, len(master.of)
    policies, number = np.unique(of, return_inverse=True)
    is_least, most = (
        program.utilisation is None,
        len(policies),
    )  # variables: shares, policies, utilisation
    none, size = sp.csr_array((most, 1)), count + most + 1
    has = sp.csr_array((np.ones(count), (number, np.arange(count))), shape=(most, count))
    has = sp.hstack([has, -sp.eye_array(most), none])  # the shares of a policy are at most itself
    alone = master.scenarios.sums(policies)
    alone = sp.hstack(
        [sp.csr_array((alone.shape[0], count)), alone, sp.csr_array((alone.shape[0], 1))]
    )
    pairs: set[tuple[int, int]] = set()  # of variables whose sum is at most 1
    cost = np.concatenate(
        [np.zeros(count), np.full(most, 0.0 if is_least else 1.0), [float(is_least)]]
    )
    many = np.concatenate([np.zeros(count), np.ones(most), [0.0]])
    is_whole = np.concatenate([np.ones(count), np.zeros(most + 1)]) if one_list else many
    limit, high = program.utilisation or 0.0, np.append(np.ones(size - 1), math.inf)
    best: Point | None = None
    for _ in range(_MAX_WHOLE_ROUNDS):
        straight = np.array([master.straight.used[key] for key in master.rows]) / master.unit
        rows = np.zeros((len(straight), size))
        rows[:, :count], rows[:, -1] = master.entries / master.unit, -float(is_least)
        limits = [
            Between(sp.csr_array(rows), high=limit / master.unit - straight),
            Between(sp.csr_array(has), high=0.0),
            Between(sp.csr_array(alone), high=1.0),
            Between(sp.csr_array(many[None]), high=program.policies),
        ]
        if pairs:
            places, row = np.array(sorted(pairs)).ravel(), np.repeat(np.arange(len(pairs)), 2)
            limits.append(
                Between(
                    sp.csr_array((np.ones(len(places)), (row, places)), (len(pairs), size)),
                    high=1.0,
                )
            )
        found = solve_milp(
            cost,
            limits,
            is_whole,
            high=high,
            seconds=max(0.1, min(deadline.left, _WHOLE_S)),
            relative_gap=gap,
        )
        if found.x is None:
            break
        share = np.where(found.x[:count] > _WHOLE, found.x[:count], 0.0)
        share = np.round(share) if one_list else share
        point = master.point(
            of, mid, share / np.maximum(1.0, np.bincount(of, share, minlength=master.demands))[of]
        )
        before = len(pairs), len(master.rows)
        master.add_rows(fullest(point.used, program.utilisation))
        pairs |= _forbidden(master, point, policies)
        is_better = best is None or (point.value, len(point.steered)) < (
            best.value,
            len(best.steered),
        )
        is_kept = is_least or point.value <= limit * (1 + TARGET_ROUNDING)
        best = point if is_better and is_kept and master.can_be_installed(point) else best
        if (len(pairs), len(master.rows)) == before or deadline.is_over:
            break
    return best


def _forbidden(master: Master, point: Point, policies: Int64Array) -> set[tuple[int, int]]:
    """The pairs of variables of :func:`whole` that a point has together and that cannot be
    installed together.
    """
    count, steered, result = len(point.of), point.steered, set[tuple[int, int]]()
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
    """A limit on policies, one of three.

    Attributes:
        within: share of the least utilisation by which it may be exceeded for fewest policies; NaN
            for none.
        target: utilisation that fewest policies keep; NaN for none.
        at_most: number of policies; 0 for any.

    Raises:
        InputError: none of them, several, or a number below 0.
    """

    within: float = math.nan
    target: float = math.nan
    at_most: int = 0

    def __post_init__(self) -> None:
        given = [not math.isnan(self.within), not math.isnan(self.target), self.at_most != 0]
        if (
            sum(given) != 1
            or min(self.at_most, *(x for x in (self.within, self.target) if not math.isnan(x)), 0)
            < 0
        ):
            raise InputError("few", "", "one of within, target and at_most, at least 0", self)

    def limit(self, value: float, bound: float, lists: str) -> float:
        """The utilisation within which policies are to be few.

        Args:
            value: least utilisation that was found.
            bound: bound on it.
            lists: lists that the bound is of, for the message.

        Raises:
            InputError: no lists keep the target, or the search has found none that do.
        """
        if not math.isnan(self.within):
            return value * (1 + self.within)
        require_target(self.target, value, bound, lists)
        return max(self.target, value)
