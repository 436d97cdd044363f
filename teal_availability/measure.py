"""Availability of what runs: for how long how much of each demand, and of all traffic, arrives.

Each figure is a sum over the states that are listed, times their probabilities.  In the rest of the
time anything may happen: it counts as lost in the lower bound and as carried in the upper one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from teal import Problem
from teal.runtime.arrays import AnyArray, BoolArray, FloatArray
from teal_availability.components import Components
from teal_availability.matrix import demand_of
from teal_availability.routing import Routing, states_of
from teal_availability.states import States

LEVELS = 1.0, 0.99, 0.9  # shares of a demand, for which the share of the time is measured
MINUTES_A_YEAR = 365.25 * 24 * 60
_BELOW = 1e-6  # of a demand, by which a share may be below a level: splits have rounding errors


class Bounds(NamedTuple):
    """A figure from below and from above.

    Attributes:
        low: at least.
        high: at most.
    """

    low: FloatArray
    high: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Totals:
    """Measured availability of several demands together.

    Attributes:
        of_class: name of their class; "" for all demands.
        whole_time: (3,) share of the time in which all of them keep such shares.
        total_time: (3,) share of the time in which such shares of their traffic arrive.
        mean: () share of their traffic that arrives.
    """

    of_class: str
    whole_time: Bounds
    total_time: Bounds
    mean: Bounds


@dataclasses.dataclass(frozen=True, eq=False)
class Availability:
    """Measured availability under one way of routing, over all matrices.

    Attributes:
        routing: name of the way of routing.
        demand_time: (D, 3) share of the time in which at least 100, 99 and 90% of a demand arrive.
        demand_mean: (D,) share of the traffic of a demand that arrives.
        totals: figures of all demands together, then of those of each class, the highest first.
        lost_with: (n,) share of all traffic that is lost while a component is down, in the states
            that are listed; counted for each of several that are down.
        gained_by: (n,) share of all traffic that would arrive in addition in these states if a
            component never failed.
    """

    routing: str
    demand_time: Bounds
    demand_mean: Bounds
    totals: tuple[Totals, ...]
    lost_with: FloatArray
    gained_by: FloatArray

    @property
    def whole_time(self) -> Bounds:
        """(3,) share of the time in which all demands keep such shares."""
        return self.totals[0].whole_time

    @property
    def total_time(self) -> Bounds:
        """(3,) share of the time in which such shares of all traffic arrive."""
        return self.totals[0].total_time

    @property
    def mean(self) -> Bounds:
        """() share of all traffic that arrives."""
        return self.totals[0].mean


def measure(
    name: str,
    routings: Sequence[Routing],
    problems: Sequence[Problem],
    components: Components,
    states: States,
    progress: Callable[[int], object] = lambda _: None,
) -> Availability:
    """Measure a way of routing.

    Args:
        name: name of the way of routing.
        routings: the way of routing, for each of M matrices, which take equal shares of the time.
        problems: the matrices.
        components: components that fail.
        states: states of the network.
        progress: called with the number of states that were computed.
    """
    found = [
        _of_matrix(name, routing, problem, components, states, progress)
        for routing, problem in zip(routings, problems, strict=True)
    ]
    demand = np.array([demand_of(problem) for problem in problems])
    of_all = _weights(demand.sum(1, keepdims=True))[:, 0]  # traffic of a matrix
    of_each = _weights(demand)  # traffic of a demand in each matrix
    in_time = np.full(len(found), 1 / len(found))

    def mean(values: Sequence[FloatArray], weights: FloatArray) -> FloatArray:
        stacked = np.array(values)
        shaped = weights.reshape(weights.shape + (1,) * (stacked.ndim - weights.ndim))
        return np.asarray((shaped * stacked).sum(0))

    def bounds(both: Sequence[Bounds], weights: FloatArray) -> Bounds:
        return Bounds(
            mean([one.low for one in both], weights), mean([one.high for one in both], weights)
        )

    def totals(number: int, of_class: str, members: slice) -> Totals:
        of_group = [one.totals[number] for one in found]
        return Totals(
            of_class,
            bounds([one.whole_time for one in of_group], in_time),
            bounds([one.total_time for one in of_group], in_time),
            bounds([one.mean for one in of_group], _weights(demand[:, members].sum(1))),
        )

    return Availability(
        name,
        bounds([one.demand_time for one in found], in_time),
        bounds([one.demand_mean for one in found], of_each),
        tuple(totals(number, *group) for number, group in enumerate(_groups(problems[0]))),
        mean([one.lost_with for one in found], of_all),
        mean([one.gained_by for one in found], of_all),
    )


def _groups(problem: Problem) -> list[tuple[str, slice]]:
    """All demands, under the name "", and those of each class."""
    groups = [("", slice(None))]
    if problem.classes is not None:
        groups += zip(problem.classes.names, problem.classes.blocks, strict=True)
    return groups


def _weights(traffic: FloatArray) -> FloatArray:
    """Traffic (M, ...) as shares of its sum over the matrices; equal ones without any."""
    total = traffic.sum(0)
    equal = np.full_like(traffic, 1 / len(traffic))
    return np.divide(traffic, total, out=equal, where=np.broadcast_to(total > 0, traffic.shape))


def lost_share(demand: FloatArray, share: FloatArray) -> FloatArray:
    """(S,) share of all traffic that is lost, of shares (S, D) of the demands that arrive; 0
    without demand.
    """
    total = max(float(demand.sum()), 1e-300)
    found: FloatArray = ((1 - share) @ demand / total).clip(0.0, 1.0)
    return found


def _of_matrix(
    name: str,
    routing: Routing,
    problem: Problem,
    components: Components,
    states: States,
    progress: Callable[[int], object],
) -> Availability:
    demand = demand_of(problem)
    levels = np.array(LEVELS) - _BELOW
    demand_mean = _Sum(len(demand))
    demand_time = _Sum(len(demand), len(levels))
    groups = [
        (name_of_class, members, _Sum(len(levels)), _Sum(len(levels)), _Sum())
        for name_of_class, members in _groups(problem)
    ]
    lost = np.zeros(len(states))
    for part, works in states_of(components, states, routing.together):
        time = states.probability[part]
        share, most = routing.arrived(works)
        reached = share[:, :, None] >= levels
        # Of a search that ended near the optimum nothing is known but the bound on all traffic.
        # Where every demand keeps a share, so does all traffic.
        is_open = np.zeros(len(share), bool) if most is None else ~np.isnan(most)
        for name_of_class, members, whole_time, total_time, mean in groups:
            lost_of_group = lost_share(demand[members], share[:, members])
            if not name_of_class:
                lost[part] = lost_of_group
            carried = 1 - lost_of_group
            has_reached = carried[:, None] >= levels
            is_whole = np.asarray(reached[:, members].all(1))
            at_most = carried
            if most is not None:
                known = np.ones_like(most) if name_of_class else np.fmax(most, carried)
                at_most = np.asarray(_where(is_open, known, carried))
            could_reach = _where(is_open, at_most[:, None] >= levels, has_reached)
            mean.add(time, carried, at_most)
            total_time.add(time, has_reached, could_reach)
            whole_time.add(time, is_whole, _where(is_open, could_reach, is_whole))
        demand_mean.add(time, share, _where(is_open, 1.0, share))
        demand_time.add(time, reached, _where(is_open, True, reached))
        progress(part.stop - part.start)
    lost_with, gained_by = _by_component(len(components), states, lost)
    return Availability(
        name,
        demand_time.bounds(states.rest),
        demand_mean.bounds(states.rest),
        tuple(
            Totals(one, *(figure.bounds(states.rest) for figure in figures))
            for one, _, *figures in groups
        ),
        lost_with,
        gained_by,
    )


def _where(is_open: BoolArray, most: AnyArray | float, exact: AnyArray) -> AnyArray:
    """The most that is possible in states (S,) that are open, else what is exact, (S, ...)."""
    if not is_open.any():
        return exact
    found: AnyArray = np.where(is_open.reshape(-1, *[1] * (exact.ndim - 1)), most, exact)
    return found


class _Sum:
    """A figure, summed over states from below and from above.

    Args:
        shape: shape of the figure.
    """

    def __init__(self, *shape: int) -> None:
        self._low = np.zeros(shape)
        self._high = np.zeros(shape)

    def add(self, time: FloatArray, low: AnyArray, high: AnyArray) -> None:
        """Add states that take so much of the time (S,), in which the figure is at least and at
        most so much, (S, ...).
        """
        below = np.tensordot(time, low, 1)
        above = below if high is low else np.tensordot(time, high, 1)
        self._low = self._low + below
        self._high = self._high + above

    def bounds(self, rest: float) -> Bounds:
        """Bounds, where nothing is known of the rest of the time."""
        return Bounds(self._low, np.minimum(1.0, self._high + rest))


def _by_component(count: int, states: States, lost: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Traffic that is lost while a component is down, and what arrives more if it never fails.

    In the place of a state in which component c is down, among others, the network is then in the
    state in which the others are down alone, which is at least as probable.
    """
    with_down = np.zeros(count)
    gained = np.zeros(count)
    place = {down: number for number, down in enumerate(states.down)}
    for time, down, share in zip(
        states.probability.tolist(), states.down, lost.tolist(), strict=True
    ):
        for one in down:
            others = place.get(tuple(other for other in down if other != one))
            with_down[one] += time * share
            if others is not None:  # of equal probability, and not listed any more
                gained[one] += time * (share - lost[others])
    return with_down, gained


def minutes_a_year(share: float) -> float:
    """Minutes of a year that a share of the time takes."""
    return MINUTES_A_YEAR * share
