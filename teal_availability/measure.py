"""Availability of what runs: for how long how much of each demand, and of all traffic, arrives.

Each figure is a sum over the states that are listed, times their probabilities.  In the rest of the
time anything may happen: it counts as lost in the lower bound and as carried in the upper one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from teal import Problem
from teal.runtime.arrays import FloatArray
from teal_availability.components import Components
from teal_availability.routing import Routing, states_of, total_share
from teal_availability.states import States

LEVELS = 1.0, 0.99, 0.9  # shares of a demand, for which the share of the time is measured
MINUTES_A_YEAR = 365.25 * 24 * 60
_ROUNDING = 1e-6  # by which a share may be below a level


@dataclasses.dataclass(frozen=True, eq=False)
class Availability:
    """Measured availability under one way of routing.

    Attributes:
        routing: name of the way of routing.
        rest: share of the time in states that are not listed; every figure below is a lower bound,
            and a larger one by ``rest`` an upper bound, but those named otherwise.
        demand_time: (D, 3) share of the time in which at least 100, 99 and 90% of a demand arrive.
        demand_mean: (D,) share of a demand that arrives on average.
        whole_time: (3,) share of the time in which all demands keep such shares.
        total_time: (3,) share of the time in which such shares of all traffic arrive.
        total_time_at_most: (3,) upper bounds, with what splits solved to a gap could add.
        mean: share of all traffic that arrives on average.
        mean_at_most: upper bound.
        lost_with: (n,) share of all traffic that is lost on average while a component is down,
            among others; counted once for each of several.
        gained_by: (n,) share of all traffic that would arrive in addition if a component never
            failed, of the states that are listed.
    """

    routing: str
    rest: float
    demand_time: FloatArray
    demand_mean: FloatArray
    whole_time: FloatArray
    total_time: FloatArray
    total_time_at_most: FloatArray
    mean: float
    mean_at_most: float
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
    means = {
        field.name: np.mean([getattr(one, field.name) for one in found], axis=0)
        for field in dataclasses.fields(Availability)
        if field.name not in ("routing", "rest")
    }
    return Availability(name, states.rest, **means)


def _of_matrix(
    name: str,
    routing: Routing,
    problem: Problem,
    components: Components,
    states: States,
    progress: Callable[[int], object],
) -> Availability:
    demand = problem.demand[0].to("cpu").double().numpy()
    levels = np.array(LEVELS) - _ROUNDING
    demand_time, demand_mean = np.zeros((len(demand), len(levels))), np.zeros(len(demand))
    whole_time, total_time, at_most = (np.zeros(len(levels)) for _ in range(3))
    share_of, most_of = np.zeros(len(states)), np.zeros(len(states))
    for part, works in states_of(components, states, routing.together):
        time = states.probability[part]
        share, most = routing.arrived(works)
        demand_mean += time @ share
        for number, level in enumerate(levels.tolist()):
            reached = share >= level
            demand_time[:, number] += time @ reached
            whole_time[number] += time @ reached.all(1)
        share_of[part], most_of[part] = total_share(demand, share), most
        total_time += time @ (share_of[part, None] >= levels)
        at_most += time @ (most[:, None] >= levels)
        progress(part.stop - part.start)
    mean = float(states.probability @ share_of)
    lost_with, gained_by = _by_component(len(components), states, share_of)
    return Availability(
        name,
        states.rest,
        demand_time,
        demand_mean,
        whole_time,
        total_time,
        at_most + states.rest,
        mean,
        float(states.probability @ most_of) + states.rest,
        lost_with,
        gained_by,
    )


def _by_component(count: int, states: States, share: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Traffic that is lost while a component is down, and what arrives more if it never fails.

    In the place of a state in which component c is down, among others, the network is then in the
    state in which the others are down alone, which is more probable and listed too.
    """
    lost, gained = np.zeros(count), np.zeros(count)
    place = {down: number for number, down in enumerate(states.down)}
    for time, down, arrives in zip(
        states.probability.tolist(), states.down, share.tolist(), strict=True
    ):
        for one in down:
            others = tuple(other for other in down if other != one)
            lost[one] += time * (1 - arrives)
            gained[one] += time * (share[place[others]] - arrives)
    return lost, gained


def minutes_a_year(share: float) -> float:
    """Minutes of a year that a share of the time takes."""
    return MINUTES_A_YEAR * share
