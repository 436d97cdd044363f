"""Availability of a routing scheme: the share of the time in which demands are delivered, and the
delivered share of the traffic.

Each figure is a sum over the listed states, weighted by probability. The unlisted probability
counts as lost in the lower bound and as delivered in the upper bound. Entry point: :func:`measure`.
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
from teal_availability.routing import Routing, state_batches
from teal_availability.states import States

# Delivered shares of a demand for which the share of the time is measured.
LEVELS = 1.0, 0.99, 0.9
MINUTES_A_YEAR = 365.25 * 24 * 60
# Shortfall of a delivered share below a level that still counts: splits have rounding errors.
_LEVEL_TOLERANCE = 1e-6


class Bounds(NamedTuple):
    """Lower and upper bound of a figure.

    Attributes:
        low: lower bound.
        high: upper bound.
    """

    low: FloatArray
    high: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Totals:
    """Measured availability of several demands together.

    Attributes:
        class_name: name of their class; "" for all demands.
        all_demands_time: (3,) share of the time in which each of them reaches the levels.
        total_traffic_time: (3,) share of the time in which their total traffic reaches the levels.
        mean: () delivered share of their traffic.
    """

    class_name: str
    all_demands_time: Bounds
    total_traffic_time: Bounds
    mean: Bounds


@dataclasses.dataclass(frozen=True, eq=False)
class Availability:
    """Measured availability of one routing scheme, over all matrices.

    Attributes:
        routing: name of the routing scheme.
        demand_time: (D, 3) share of the time in which at least 100, 99 and 90% of a demand arrive.
        demand_mean: (D,) delivered share of the traffic of a demand.
        totals: figures of all demands together, then of each class, the highest first.
        lost_while_down: (n,) share of all traffic lost while a component is down, in the listed
            states; counted for each of several components that are down.
        gained_without_failures: (n,) share of all traffic that would be gained in these states if a
            component never failed.
    """

    routing: str
    demand_time: Bounds
    demand_mean: Bounds
    totals: tuple[Totals, ...]
    lost_while_down: FloatArray
    gained_without_failures: FloatArray

    @property
    def all_demands_time(self) -> Bounds:
        """(3,) share of the time in which every demand reaches the levels."""
        return self.totals[0].all_demands_time

    @property
    def total_traffic_time(self) -> Bounds:
        """(3,) share of the time in which the total traffic reaches the levels."""
        return self.totals[0].total_traffic_time

    @property
    def mean(self) -> Bounds:
        """() delivered share of all traffic."""
        return self.totals[0].mean


def measure(
    name: str,
    routings: Sequence[Routing],
    problems: Sequence[Problem],
    components: Components,
    states: States,
    progress: Callable[[int], object] = lambda _: None,
) -> Availability:
    """Measure the availability of a routing scheme.

    Args:
        name: name of the scheme.
        routings: the scheme for each of M matrices, which have equal shares of the time.
        problems: the matrices.
        components: the failing components.
        states: states of the network.
        progress: called with the number of states computed since the last call.
    """
    by_matrix = [
        _measure_matrix(name, routing, problem, components, states, progress)
        for routing, problem in zip(routings, problems, strict=True)
    ]
    # Weights of the matrices: by total traffic, by the traffic of each demand, by time.
    demand = np.array([demand_of(problem) for problem in problems])
    traffic_weights = _traffic_weights(demand.sum(1, keepdims=True))[:, 0]
    demand_weights = _traffic_weights(demand)
    time_weights = np.full(len(by_matrix), 1 / len(by_matrix))

    def mean(values: Sequence[FloatArray], weights: FloatArray) -> FloatArray:
        stacked = np.array(values)
        shaped = weights.reshape(weights.shape + (1,) * (stacked.ndim - weights.ndim))
        return np.asarray((shaped * stacked).sum(0))

    def bounds(figures: Sequence[Bounds], weights: FloatArray) -> Bounds:
        return Bounds(
            mean([item.low for item in figures], weights),
            mean([item.high for item in figures], weights),
        )

    def totals(index: int, class_name: str, members: slice) -> Totals:
        group_totals = [item.totals[index] for item in by_matrix]
        return Totals(
            class_name,
            bounds([item.all_demands_time for item in group_totals], time_weights),
            bounds([item.total_traffic_time for item in group_totals], time_weights),
            bounds(
                [item.mean for item in group_totals], _traffic_weights(demand[:, members].sum(1))
            ),
        )

    return Availability(
        name,
        bounds([item.demand_time for item in by_matrix], time_weights),
        bounds([item.demand_mean for item in by_matrix], demand_weights),
        tuple(totals(index, *group) for index, group in enumerate(_demand_groups(problems[0]))),
        mean([item.lost_while_down for item in by_matrix], traffic_weights),
        mean([item.gained_without_failures for item in by_matrix], traffic_weights),
    )


def _demand_groups(problem: Problem) -> list[tuple[str, slice]]:
    """Return all demands, under the name "", and the demands of each class."""
    groups = [("", slice(None))]
    if problem.classes is not None:
        groups += zip(problem.classes.names, problem.classes.blocks, strict=True)
    return groups


def _traffic_weights(traffic: FloatArray) -> FloatArray:
    """Return the traffic (M, ...) as shares of its sum over the matrices; equal shares without
    traffic.
    """
    total = traffic.sum(0)
    equal = np.full_like(traffic, 1 / len(traffic))
    return np.divide(traffic, total, out=equal, where=np.broadcast_to(total > 0, traffic.shape))


def lost_share(demand: FloatArray, share: FloatArray) -> FloatArray:
    """Return the lost share (S,) of all traffic, from the delivered shares (S, D) of the demands; 0
    without demand.
    """
    total = max(float(demand.sum()), 1e-300)
    lost: FloatArray = ((1 - share) @ demand / total).clip(0.0, 1.0)
    return lost


def _measure_matrix(
    name: str,
    routing: Routing,
    problem: Problem,
    components: Components,
    states: States,
    progress: Callable[[int], object],
) -> Availability:
    """Measure the availability of one matrix."""
    demand = demand_of(problem)
    levels = np.array(LEVELS) - _LEVEL_TOLERANCE
    # Sums over the states, for each demand and each group of demands.
    demand_mean = _BoundedSum(len(demand))
    demand_time = _BoundedSum(len(demand), len(levels))
    groups = [_GroupSums(*group) for group in _demand_groups(problem)]
    lost = np.zeros(len(states))
    for batch, link_up in state_batches(components, states, routing.batch_size):
        probability = states.probability[batch]
        share, max_total_share = routing.delivery(link_up)
        reaches = share[:, :, None] >= levels
        # Groups of demands.
        for group in groups:
            members = group.members
            group_loss = lost_share(demand[members], share[:, members])
            if not group.class_name:
                lost[batch] = group_loss
            all_reach = np.asarray(reaches[:, members].all(1))
            group.add(probability, 1 - group_loss, all_reach, max_total_share)
        # Demands.
        is_inexact = _is_inexact(max_total_share, len(share))
        demand_mean.add(probability, share, _upper_where_inexact(is_inexact, 1.0, share))
        demand_time.add(probability, reaches, _upper_where_inexact(is_inexact, True, reaches))
        progress(batch.stop - batch.start)
    lost_while_down, gained_without_failures = _component_losses(len(components), states, lost)
    return Availability(
        name,
        demand_time.bounds(states.rest),
        demand_mean.bounds(states.rest),
        tuple(group.totals(states.rest) for group in groups),
        lost_while_down,
        gained_without_failures,
    )


class _GroupSums:
    """Figures of several demands together, summed over states.

    Args:
        class_name: name of their class; "" for all demands.
        members: the demands.
    """

    def __init__(self, class_name: str, members: slice) -> None:
        self.class_name = class_name
        self.members = members
        self._levels = np.array(LEVELS) - _LEVEL_TOLERANCE
        self._all_demands_time = _BoundedSum(len(LEVELS))
        self._total_traffic_time = _BoundedSum(len(LEVELS))
        self._mean = _BoundedSum()

    def add(
        self,
        probability: FloatArray,
        carried: FloatArray,
        all_reach: BoolArray,
        max_total_share: FloatArray | None,
    ) -> None:
        """Add states.

        Args:
            probability: (S,) probabilities of the states.
            carried: (S,) delivered share of the group's traffic.
            all_reach: (S, 3) whether every demand of the group reaches the levels.
            max_total_share: (S,) bound on the delivered share of all traffic, NaN in exact states;
                None if all states are exact.
        """
        is_inexact = _is_inexact(max_total_share, len(carried))
        # Delivered share.
        max_carried = carried
        if max_total_share is not None:
            upper = (
                np.ones_like(max_total_share)
                if self.class_name
                else np.fmax(max_total_share, carried)
            )
            max_carried = np.asarray(_upper_where_inexact(is_inexact, upper, carried))
        self._mean.add(probability, carried, max_carried)
        # Where every demand reaches a level, so does the total traffic.
        total_reaches = carried[:, None] >= self._levels
        may_reach = _upper_where_inexact(
            is_inexact, max_carried[:, None] >= self._levels, total_reaches
        )
        self._total_traffic_time.add(probability, total_reaches, may_reach)
        self._all_demands_time.add(
            probability, all_reach, _upper_where_inexact(is_inexact, may_reach, all_reach)
        )

    def totals(self, unlisted: float) -> Totals:
        """Return the figures; ``unlisted`` is the probability of the other states."""
        return Totals(
            self.class_name,
            self._all_demands_time.bounds(unlisted),
            self._total_traffic_time.bounds(unlisted),
            self._mean.bounds(unlisted),
        )


def _is_inexact(max_total_share: FloatArray | None, num_states: int) -> BoolArray:
    """Return whether the delivered shares of each state (S,) are inexact: they come from a search
    that ended near the optimum, and only the bound on all traffic is certain.
    """
    return np.zeros(num_states, bool) if max_total_share is None else ~np.isnan(max_total_share)


def _upper_where_inexact(
    is_inexact: BoolArray, upper: AnyArray | float, exact: AnyArray
) -> AnyArray:
    """Return the upper bound in inexact states (S,), and the exact value (S, ...) in the others."""
    if not is_inexact.any():
        return exact
    merged: AnyArray = np.where(is_inexact.reshape(-1, *[1] * (exact.ndim - 1)), upper, exact)
    return merged


class _BoundedSum:
    """Lower and upper bound of a figure, summed over states.

    Args:
        shape: shape of the figure.
    """

    def __init__(self, *shape: int) -> None:
        self._low = np.zeros(shape)
        self._high = np.zeros(shape)

    def add(self, probability: FloatArray, low: AnyArray, high: AnyArray) -> None:
        """Add states of these probabilities (S,), with a lower and an upper bound (S, ...) of the
        figure.
        """
        low_sum = np.tensordot(probability, low, 1)
        high_sum = low_sum if high is low else np.tensordot(probability, high, 1)
        self._low = self._low + low_sum
        self._high = self._high + high_sum

    def bounds(self, unlisted: float) -> Bounds:
        """Return the bounds; the figure is between 0 and 1 in the unlisted share of the time."""
        return Bounds(self._low, np.minimum(1.0, self._high + unlisted))


def _component_losses(
    num_components: int, states: States, lost: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return, for each component, the traffic lost while it is down, and the gain if it never
    fails.

    If component c never failed, a state in which c and others are down would be the state in which
    only the others are down, which is at least as probable.
    """
    lost_while_down = np.zeros(num_components)
    gained = np.zeros(num_components)
    state_index = {down: index for index, down in enumerate(states.down)}
    for probability, down, state_loss in zip(
        states.probability.tolist(), states.down, lost.tolist(), strict=True
    ):
        for component in down:
            without_component = state_index.get(
                tuple(failed for failed in down if failed != component)
            )
            lost_while_down[component] += probability * state_loss
            # A state of equal probability may not be listed.
            if without_component is not None:
                gained[component] += probability * (state_loss - lost[without_component])
    return lost_while_down, gained


def minutes_a_year(share: float) -> float:
    """Return a share of the time in minutes per year."""
    return MINUTES_A_YEAR * share
