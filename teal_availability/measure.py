"""Availability of a routing scheme: the share of the time in which demands are delivered, and the
delivered share of the traffic.

Each metric is a sum over the listed network states, weighted by probability. Unlisted states count
as lost in the lower bound and as delivered in the upper bound. Entry point: :func:`measure`.
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
# A delivered share reaches a level if it is at most this far below: splits have rounding errors.
_LEVEL_TOLERANCE = 1e-6


class Bounds(NamedTuple):
    """Lower and upper bound of a metric, as arrays of the same shape.

    Attributes:
        low: lower bound.
        high: upper bound.
    """

    low: FloatArray
    high: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Totals:
    """Availability of all demands together, or of a class.

    Attributes:
        class_name: name of the class; "" for all demands.
        all_demands_time: (3,) share of the time in which at least 100, 99 and 90% of every demand
            are delivered.
        total_traffic_time: (3,) share of the time in which at least 100, 99 and 90% of the total
            traffic are delivered.
        mean: () delivered share of the traffic.
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
        demand_time_at_levels: (D, 3) share of the time in which at least 100, 99 and 90% of a
            demand arrive.
        demand_mean_share: (D,) delivered share of the traffic of a demand.
        totals: availability of all demands together, then of each class, the highest first.
        lost_while_down: (n,) share of all traffic lost in listed states in which a component is
            down; a state with several failed components counts for each of them.
        gained_without_failures: (n,) share of all traffic that would be delivered in addition in
            these states if a component never failed.
    """

    routing: str
    demand_time_at_levels: Bounds
    demand_mean_share: Bounds
    totals: tuple[Totals, ...]
    lost_while_down: FloatArray
    gained_without_failures: FloatArray

    @property
    def all_demands_time(self) -> Bounds:
        """Bounds (3,) on the share of the time in which at least 100, 99 and 90% of every demand
        are delivered.
        """
        return self.totals[0].all_demands_time

    @property
    def total_traffic_time(self) -> Bounds:
        """Bounds (3,) on the share of the time in which at least 100, 99 and 90% of the total
        traffic are delivered.
        """
        return self.totals[0].total_traffic_time

    @property
    def mean(self) -> Bounds:
        """Bounds (scalars) on the delivered share of all traffic."""
        return self.totals[0].mean


def measure(
    name: str,
    routings: Sequence[Routing],
    problems: Sequence[Problem],
    components: Components,
    states: States,
    progress: Callable[[int], object] = lambda _: None,
) -> Availability:
    """Measure the availability of a routing scheme over M matrices and S network states.

    Each matrix is in force for the same share of the time. Shares of the time are averaged over the
    matrices with equal weights, shares of traffic with the traffic as weight.

    Args:
        name: name of the scheme.
        routings: the scheme for each of the M matrices.
        problems: the M matrices.
        components: the failing components.
        states: the listed network states.
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
        """Return the weighted mean of M arrays.

        Args:
            values: the arrays, all of one shape.
            weights: (M,) weight of each array, or (M, n) also along the first axis of the arrays.
        """
        stacked = np.array(values)
        # Append axes of length 1 to the weights, so that they broadcast to the arrays.
        broadcast_weights = weights.reshape(weights.shape + (1,) * (stacked.ndim - weights.ndim))
        return np.asarray((broadcast_weights * stacked).sum(0))

    def bounds(metrics: Sequence[Bounds], weights: FloatArray) -> Bounds:
        """Return the weighted means of M lower bounds and of M upper bounds.

        Args:
            metrics: the bounds for each matrix.
            weights: weights of the matrices, as in ``mean``.
        """
        return Bounds(
            mean([item.low for item in metrics], weights),
            mean([item.high for item in metrics], weights),
        )

    def totals(index: int, class_name: str, demand_slice: slice) -> Totals:
        """Average the availability of a group of demands over the matrices.

        Args:
            index: position of the group in the totals of each matrix.
            class_name: name of the class; "" for all demands.
            demand_slice: slice of the demands.
        """
        # Shares of the time have equal weights, shares of traffic the group's traffic as weight.
        group_totals = [item.totals[index] for item in by_matrix]
        return Totals(
            class_name,
            bounds([item.all_demands_time for item in group_totals], time_weights),
            bounds([item.total_traffic_time for item in group_totals], time_weights),
            bounds(
                [item.mean for item in group_totals],
                _traffic_weights(demand[:, demand_slice].sum(1)),
            ),
        )

    # Average each metric over the matrices.
    return Availability(
        name,
        bounds([item.demand_time_at_levels for item in by_matrix], time_weights),
        bounds([item.demand_mean_share for item in by_matrix], demand_weights),
        tuple(totals(index, *group) for index, group in enumerate(_demand_groups(problems[0]))),
        mean([item.lost_while_down for item in by_matrix], traffic_weights),
        mean([item.gained_without_failures for item in by_matrix], traffic_weights),
    )


def _demand_groups(problem: Problem) -> list[tuple[str, slice]]:
    """Return the name and the slice of each group: all demands (name ""), then each class."""
    groups = [("", slice(None))]
    if problem.classes is not None:
        groups += zip(problem.classes.names, problem.classes.blocks, strict=True)
    return groups


def _traffic_weights(traffic: FloatArray) -> FloatArray:
    """Return the share of each of M matrices in the traffic of all M matrices; 1 / M without
    traffic.

    Args:
        traffic: (M, ...) Gbit/s.
    """
    total = traffic.sum(0)
    equal = np.full_like(traffic, 1 / len(traffic))
    return np.divide(traffic, total, out=equal, where=np.broadcast_to(total > 0, traffic.shape))


def lost_share(demand: FloatArray, share: FloatArray) -> FloatArray:
    """Return the lost share (S,) of all traffic in each state; 0 without demand.

    Args:
        demand: (D,) Gbit/s.
        share: (S, D) delivered share of each demand.
    """
    # Never 0, so that the division is defined.
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
    """Measure the availability of a routing scheme for one matrix.

    Args:
        name: name of the scheme.
        routing: the scheme.
        problem: the matrix.
        components: the failing components.
        states: the listed network states.
        progress: called with the number of states computed since the last call.
    """
    demand = demand_of(problem)
    levels = np.array(LEVELS) - _LEVEL_TOLERANCE
    # Sums over the states: delivered share and time at the levels of each demand, and the totals of
    # each group of demands.
    demand_mean_share = _BoundedSum(len(demand))
    demand_time_at_levels = _BoundedSum(len(demand), len(levels))
    groups = [_GroupSums(*group) for group in _demand_groups(problem)]
    # (S,) lost share of all traffic in each state.
    lost_shares = np.zeros(len(states))
    # Add the states batch by batch.
    for batch, link_up in state_batches(components, states, routing.batch_size):
        probability = states.probability[batch]
        share, max_total_share = routing.delivery(link_up)
        # (states of the batch, D, 3) whether a demand reaches each level.
        reaches = share[:, :, None] >= levels
        # Totals of all demands and of each class.
        for group in groups:
            demand_slice = group.members
            group_loss = lost_share(demand[demand_slice], share[:, demand_slice])
            if not group.class_name:
                lost_shares[batch] = group_loss
            all_reach = np.asarray(reaches[:, demand_slice].all(1))
            group.add(probability, 1 - group_loss, all_reach, max_total_share)
        # Single demands: in inexact states, the only certain upper bound is 1.
        is_inexact = _is_inexact(max_total_share, len(share))
        demand_mean_share.add(probability, share, _upper_where_inexact(is_inexact, 1.0, share))
        demand_time_at_levels.add(
            probability, reaches, _upper_where_inexact(is_inexact, True, reaches)
        )
        progress(batch.stop - batch.start)
    lost_while_down, gained_without_failures = _component_losses(
        len(components), states, lost_shares
    )
    return Availability(
        name,
        demand_time_at_levels.bounds(states.unlisted_probability),
        demand_mean_share.bounds(states.unlisted_probability),
        tuple(group.totals(states.unlisted_probability) for group in groups),
        lost_while_down,
        gained_without_failures,
    )


class _GroupSums:
    """Availability of all demands or of a class, summed over states.

    Args:
        class_name: name of the class; "" for all demands.
        members: slice of the demands.
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
        delivered_share: FloatArray,
        all_reach: BoolArray,
        max_total_share: FloatArray | None,
    ) -> None:
        """Add S states, weighted by their probabilities.

        In a state with exact shares, lower and upper bound are equal. Otherwise the upper bound of
        all demands together is ``max_total_share``, and that of a class is 1.

        Args:
            probability: (S,) probability of each state.
            delivered_share: (S,) delivered share of the group's traffic.
            all_reach: (S, 3) whether every demand of the group reaches each level.
            max_total_share: (S,) upper bound on the delivered share of all traffic, NaN in states
                with exact shares; None if all are exact.
        """
        is_inexact = _is_inexact(max_total_share, len(delivered_share))
        # Upper bound (S,) on the delivered share of the group.
        max_delivered_share = delivered_share
        if max_total_share is not None:
            upper_bound = (
                np.ones_like(max_total_share)
                if self.class_name
                else np.fmax(max_total_share, delivered_share)
            )
            max_delivered_share = np.asarray(
                _upper_where_inexact(is_inexact, upper_bound, delivered_share)
            )
        self._mean.add(probability, delivered_share, max_delivered_share)
        # Time at the levels. If every demand reaches a level, so does the total traffic: hence the
        # upper bound for the total traffic is valid for all demands, too.
        total_reaches_level = delivered_share[:, None] >= self._levels
        may_reach_level = _upper_where_inexact(
            is_inexact, max_delivered_share[:, None] >= self._levels, total_reaches_level
        )
        self._total_traffic_time.add(probability, total_reaches_level, may_reach_level)
        self._all_demands_time.add(
            probability, all_reach, _upper_where_inexact(is_inexact, may_reach_level, all_reach)
        )

    def totals(self, unlisted_probability: float) -> Totals:
        """Return the bounds of all metrics of the group.

        Args:
            unlisted_probability: total probability of the unlisted states.
        """
        return Totals(
            self.class_name,
            self._all_demands_time.bounds(unlisted_probability),
            self._total_traffic_time.bounds(unlisted_probability),
            self._mean.bounds(unlisted_probability),
        )


def _is_inexact(max_total_share: FloatArray | None, num_states: int) -> BoolArray:
    """Return (S,) whether the delivered shares of each state are inexact.

    Inexact shares come from a solve with a gap, so that only the bound on all traffic is certain.

    Args:
        max_total_share: (S,) upper bound on the delivered share of all traffic, NaN in states with
            exact shares; None if all are exact.
        num_states: S.
    """
    return np.zeros(num_states, bool) if max_total_share is None else ~np.isnan(max_total_share)


def _upper_where_inexact(
    is_inexact: BoolArray, upper: AnyArray | float, exact: AnyArray
) -> AnyArray:
    """Return values of S states: the upper bound in states with inexact shares, else the exact
    values.

    Args:
        is_inexact: (S,) whether the shares of a state are inexact.
        upper: upper bound, (S, ...) or one number.
        exact: (S, ...) exact values.
    """
    if not is_inexact.any():
        return exact
    merged: AnyArray = np.where(is_inexact.reshape(-1, *[1] * (exact.ndim - 1)), upper, exact)
    return merged


class _BoundedSum:
    """Probability-weighted sums of a lower and an upper bound over states.

    Args:
        shape: shape of the metric.
    """

    def __init__(self, *shape: int) -> None:
        self._low = np.zeros(shape)
        self._high = np.zeros(shape)

    def add(self, probability: FloatArray, low: AnyArray, high: AnyArray) -> None:
        """Add the metric of S states, weighted by their probabilities.

        Args:
            probability: (S,) probability of each state.
            low: (S, ...) lower bound of the metric in each state.
            high: (S, ...) upper bound.
        """
        low_sum = np.tensordot(probability, low, 1)
        high_sum = low_sum if high is low else np.tensordot(probability, high, 1)
        self._low = self._low + low_sum
        self._high = self._high + high_sum

    def bounds(self, unlisted_probability: float) -> Bounds:
        """Return the bounds of the metric, which is between 0 and 1 in unlisted states.

        Args:
            unlisted_probability: total probability of the unlisted states.
        """
        return Bounds(self._low, np.minimum(1.0, self._high + unlisted_probability))


def _component_losses(
    num_components: int, states: States, state_losses: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the lost share of all traffic while each component is down (n,), and the share gained
    if it never failed (n,).

    A state is the set of failed components. If component c never failed, the network would be in
    the state without c instead of each state in which c is down. The state without c is at least as
    probable, so that it is usually listed.

    Args:
        num_components: n.
        states: S listed states with the indices of failed components.
        state_losses: (S,) lost share of all traffic in each state.
    """
    lost_while_down = np.zeros(num_components)
    gained_share = np.zeros(num_components)
    state_index = {down: index for index, down in enumerate(states.down)}
    for probability, down, state_loss in zip(
        states.probability.tolist(), states.down, state_losses.tolist(), strict=True
    ):
        for component in down:
            state_without_component = state_index.get(
                tuple(failed for failed in down if failed != component)
            )
            lost_while_down[component] += probability * state_loss
            # A state without this failure that has the same probability may be unlisted.
            if state_without_component is not None:
                gained_share[component] += probability * (
                    state_loss - state_losses[state_without_component]
                )
    return lost_while_down, gained_share


def minutes_a_year(share: float) -> float:
    """Convert a share of the time to minutes per year."""
    return MINUTES_A_YEAR * share
