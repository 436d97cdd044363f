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
from teal.runtime.arrays import FloatArray
from teal_availability.components import Components
from teal_availability.matrix import demand_of
from teal_availability.routing import Routing, states_of
from teal_availability.states import States

LEVELS = 1.0, 0.99, 0.9  # shares of a demand, for which the share of the time is measured
MINUTES_A_YEAR = 365.25 * 24 * 60
_ROUNDING = 1e-6  # by which a share may be below a level


class Bounds(NamedTuple):
    """A figure from below and from above.

    Attributes:
        low: at least.
        high: at most.
    """

    low: FloatArray
    high: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Availability:
    """Measured availability under one way of routing, over all matrices.

    Attributes:
        routing: name of the way of routing.
        demand_time: (D, 3) share of the time in which at least 100, 99 and 90% of a demand arrive.
        demand_mean: (D,) share of the traffic of a demand that arrives.
        whole_time: (3,) share of the time in which all demands keep such shares.
        total_time: (3,) share of the time in which such shares of all traffic arrive.
        mean: () share of all traffic that arrives.
        lost_with: (n,) share of all traffic that is lost while a component is down, in the states
            that are listed; counted for each of several that are down.
        gained_by: (n,) share of all traffic that would arrive in addition in these states if a
            component never failed.
    """

    routing: str
    demand_time: Bounds
    demand_mean: Bounds
    whole_time: Bounds
    total_time: Bounds
    mean: Bounds
    lost_with: FloatArray
    gained_by: FloatArray


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

    def mean(field: str, weights: FloatArray) -> FloatArray:
        values = np.array([getattr(one, field) for one in found])
        weights = weights.reshape(weights.shape + (1,) * (values.ndim - weights.ndim))
        return np.asarray((weights * values).sum(0))

    def bounds(field: str, weights: FloatArray) -> Bounds:
        ends = [np.array([getattr(one, field)[end] for one in found]) for end in (0, 1)]
        extra = (1,) * (ends[0].ndim - weights.ndim)
        shaped = weights.reshape(weights.shape + extra)
        return Bounds(*(np.asarray((shaped * end).sum(0)) for end in ends))

    return Availability(
        name,
        bounds("demand_time", in_time),
        bounds("demand_mean", of_each),
        bounds("whole_time", in_time),
        bounds("total_time", in_time),
        bounds("mean", of_all),
        mean("lost_with", of_all),
        mean("gained_by", of_all),
    )


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
    demand, levels = demand_of(problem), np.array(LEVELS) - _ROUNDING
    demand_time, demand_mean = np.zeros((len(demand), len(levels))), np.zeros(len(demand))
    whole, total, most_total = (np.zeros(len(levels)) for _ in range(3))
    lost, is_exact, most_mean = np.zeros(len(states)), True, 0.0
    for part, works in states_of(components, states, routing.together):
        time = states.probability[part]
        share, most = routing.arrived(works)
        lost[part] = lost_share(demand, share)
        most = np.maximum(1 - lost[part], 0.0 if most is None else most)
        is_exact = is_exact and bool((most <= 1 - lost[part] + _ROUNDING).all())
        demand_mean += time @ share
        for number, level in enumerate(levels.tolist()):
            reached = share >= level
            demand_time[:, number] += time @ reached
            whole[number] += time @ reached.all(1)
        total += time @ (1 - lost[part, None] >= levels)
        most_total += time @ (most[:, None] >= levels)
        most_mean += float(time @ most)
        progress(part.stop - part.start)
    mean = float(states.probability @ (1 - lost))
    lost_with, gained_by = _by_component(len(components), states, lost)

    def up_to(low: FloatArray, most: FloatArray | float) -> Bounds:
        """Bounds where the listed states give at least and at most so much."""
        return Bounds(low, np.minimum(1.0, np.asarray(most) + states.rest))

    return Availability(
        name,
        up_to(demand_time, demand_time if is_exact else 1.0 + 0 * demand_time),
        up_to(demand_mean, demand_mean if is_exact else 1.0 + 0 * demand_mean),
        # Where every demand keeps a share, so does all traffic.
        up_to(whole, whole if is_exact else most_total),
        up_to(total, most_total),
        up_to(np.array(mean), most_mean),
        lost_with,
        gained_by,
    )


def _by_component(count: int, states: States, lost: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Traffic that is lost while a component is down, and what arrives more if it never fails.

    In the place of a state in which component c is down, among others, the network is then in the
    state in which the others are down alone, which is at least as probable.
    """
    with_down, gained = np.zeros(count), np.zeros(count)
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
