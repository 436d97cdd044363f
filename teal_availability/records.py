"""Records of availability: a row for each way of routing, demand, component and promise."""

from __future__ import annotations

import dataclasses
import math

from teal.runtime import rounding


def number_text(number: float, *, up: bool) -> str:
    """A number at least 0 as text, with three digits, and no decimals from 100 on: ``2,220``.

    Args:
        number: the number.
        up: whether it is rounded up, as an upper bound, or else down.
    """
    if number <= 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(number)))
    unit = 10.0**-places
    rounded = (math.ceil if up else math.floor)(number / unit) * unit
    return f"{rounded:,.{places}f}" if number >= 1e-3 else f"{rounded:.2e}"


def from_to(low: float, high: float) -> str:
    """Both bounds of a number as text."""
    return f"{number_text(low, up=False)} to {number_text(high, up=True)}"


def share_text(share: float, *, up: bool) -> str:
    """A share of the time as text, ``99.9542%``, rounded up or down."""
    return rounding.percent_at_most(share) if up else rounding.percent_at_least(share)


def share_from_to(low: float, high: float) -> str:
    """Both bounds of a share of the time as text."""
    return f"{share_text(low, up=False)} to {share_text(high, up=True)}"


@dataclasses.dataclass(frozen=True)
class SummaryRow:
    """Availability of all traffic or of a class, under one way of routing; shares of the time and
    of its traffic.

    Attributes:
        routing: name of the way of routing.
        of_class: name of the class; "" for all traffic.
        mean, mean_at_most: share of the traffic that arrives, from below and above.
        lost_minutes, lost_minutes_at_most: minutes a year in which all traffic would have to be
            lost, to lose as much; from below and above.
        whole_100, whole_99, whole_90: share of the time in which every demand keeps so much, at
            least.
        whole_100_at_most, whole_99_at_most, whole_90_at_most: upper bounds.
        total_100, total_99, total_90: share of the time in which so much of all traffic arrives, at
            least.
        total_100_at_most, total_99_at_most, total_90_at_most: upper bounds.
    """

    routing: str
    of_class: str
    mean: float
    mean_at_most: float
    lost_minutes: float
    lost_minutes_at_most: float
    whole_100: float
    whole_99: float
    whole_90: float
    whole_100_at_most: float
    whole_99_at_most: float
    whole_90_at_most: float
    total_100: float
    total_99: float
    total_90: float
    total_100_at_most: float
    total_99_at_most: float
    total_90_at_most: float


@dataclasses.dataclass(frozen=True)
class DemandRow:
    """Availability of a demand under one way of routing.

    Attributes:
        routing: name of the way of routing.
        of_class: name of its class; "" without classes.
        source, target: nodes.
        rate: mean rate over the matrices, Gbit/s.
        mean, mean_at_most: share of its traffic that arrives, from below and above.
        time_100, time_99, time_90: share of the time in which so much of the demand arrives, at
            least.
        time_100_at_most, time_99_at_most, time_90_at_most: upper bounds.
        lost_minutes, lost_minutes_at_most: minutes a year in which all of it would have to be
            lost, to lose as much; from below and above.
    """

    routing: str
    of_class: str
    source: str
    target: str
    rate: float
    mean: float
    mean_at_most: float
    time_100: float
    time_99: float
    time_90: float
    time_100_at_most: float
    time_99_at_most: float
    time_90_at_most: float
    lost_minutes: float
    lost_minutes_at_most: float


@dataclasses.dataclass(frozen=True)
class ComponentRow:
    """Cost of a component's failures under one way of routing, in minutes a year of all traffic.

    Attributes:
        routing: name of the way of routing.
        kind: cable, node or group.
        component: its name.
        availability: share of the time in which it works.
        lost_while_down: minutes lost while it is down, whatever else is down, in the states that
            were looked at.
        gained: minutes gained in these states if it never failed.
    """

    routing: str
    kind: str
    component: str
    availability: float
    lost_while_down: float
    gained: float


@dataclasses.dataclass(frozen=True)
class PromiseRow:
    """Value of a promise for one matrix.

    Attributes:
        routing: least-loss, common-share or tail-loss.
        of_class: name of the class, beside which the upper classes are kept; "" without classes.
        matrix: number of the matrix.
        availability: share of the time for which the share is promised; NaN for least-loss.
        share: share of all traffic that arrives on average, or of every demand; of tail-loss what
            every demand keeps at once, on average in the worst 1 - availability of the time.
        share_at_most: no reserved rates on these paths reach more, with which upper classes keep
            what is promised to them.
        gap: (share_at_most - share) / share_at_most.
        lost_minutes, lost_minutes_at_most: for least-loss minutes a year of all traffic that any
            reserved rates lose, and that these lose; NaN for the others.
        left_out: demands without any of these paths for 1 - availability of the time or longer.
        quantile, quantile_at_most: for common-share the largest share that can be kept in so much
            of the time, by whole numbers; NaN where the program is too large.
    """

    routing: str
    of_class: str
    matrix: int
    availability: float
    share: float
    share_at_most: float
    gap: float
    lost_minutes: float
    lost_minutes_at_most: float
    left_out: int
    quantile: float
    quantile_at_most: float


@dataclasses.dataclass(frozen=True, eq=False)
class AvailabilityFigures:
    """Availability of a network.

    Attributes:
        topology, traffic: names.
        matrices: number of matrices.
        components: number of components that fail.
        states: number of states that were looked at.
        rest: share of the time in others.
        summary: a row for each way of routing, and with classes for each class in it.
        demands: a row for each demand and way of routing.
        by_component: a row for each component and way of routing.
        promises: a row for each promise and matrix.
    """

    topology: str
    traffic: str
    matrices: int
    components: int
    states: int
    rest: float
    summary: list[SummaryRow]
    demands: list[DemandRow]
    by_component: list[ComponentRow]
    promises: list[PromiseRow]

    @property
    def of_all(self) -> list[SummaryRow]:
        """The rows of all traffic."""
        return [row for row in self.summary if not row.of_class]

    @property
    def answer(self) -> str:
        """The most available way of routing, in a sentence."""
        best = max(self.of_all, key=lambda row: row.mean)
        return (
            f"{best.routing} loses {from_to(best.lost_minutes, best.lost_minutes_at_most)} minutes "
            "of all traffic a year; every demand is whole in "
            f"{share_from_to(best.whole_100, best.whole_100_at_most)} of the time"
        )
