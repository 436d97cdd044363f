"""Result rows of an availability study: by routing scheme, demand, component and promise."""

from __future__ import annotations

import dataclasses
import math

from teal.runtime import rounding


def number_text(number: float, *, up: bool) -> str:
    """Format a number of at least 0, rounded up or down.

    Numbers from 100 on are integers (``2,220``), smaller ones have three digits (``2.22``), and
    those below 0.001 are in scientific notation.

    Args:
        number: the number.
        up: whether to round up, as for an upper bound, instead of down.
    """
    if number <= 0:
        return "0"
    num_decimals = max(0, 2 - math.floor(math.log10(number)))
    step = 10.0**-num_decimals
    rounded = (math.ceil if up else math.floor)(number / step) * step
    return f"{rounded:,.{num_decimals}f}" if number >= 1e-3 else f"{rounded:.2e}"


def from_to(low: float, high: float) -> str:
    """Format the bounds of a number as ``low to high``, rounded outwards."""
    return f"{number_text(low, up=False)} to {number_text(high, up=True)}"


def share_text(share: float, *, up: bool) -> str:
    """Format a share of the time as a percentage, such as ``99.9542%``.

    Args:
        share: the share, in [0, 1].
        up: whether to round up, as for an upper bound, instead of down.
    """
    return rounding.percent_at_most(share) if up else rounding.percent_at_least(share)


def share_from_to(low: float, high: float) -> str:
    """Format the bounds of a share of the time as percentages, rounded outwards."""
    return f"{share_text(low, up=False)} to {share_text(high, up=True)}"


@dataclasses.dataclass(frozen=True)
class SummaryRow:
    """Availability of all traffic, or of a class, under one routing scheme.

    Attributes:
        routing: name of the routing scheme.
        of_class: name of the class; "" for all traffic.
        mean, mean_at_most: delivered share of the traffic, lower and upper bound.
        lost_minutes, lost_minutes_at_most: the lost share of the traffic as minutes a year of a
            total outage, lower and upper bound.
        whole_100, whole_99, whole_90: share of the time in which at least 100, 99 and 90% of every
            demand arrive, lower bounds.
        whole_100_at_most, whole_99_at_most, whole_90_at_most: upper bounds.
        total_100, total_99, total_90: share of the time in which at least 100, 99 and 90% of the
            total traffic arrive, lower bounds.
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
    """Availability of a demand under one routing scheme.

    Attributes:
        routing: name of the routing scheme.
        of_class: name of the class; "" without classes.
        source, target: names of the nodes.
        rate: mean rate over the matrices, Gbit/s.
        mean, mean_at_most: delivered share of the demand's traffic, lower and upper bound.
        time_100, time_99, time_90: share of the time in which at least 100, 99 and 90% of the
            demand arrive, lower bounds.
        time_100_at_most, time_99_at_most, time_90_at_most: upper bounds.
        lost_minutes, lost_minutes_at_most: lost share of the demand as minutes a year of a total
            outage, lower and upper bound.
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
    """Traffic lost by failures of one component under one routing scheme.

    Losses are in minutes a year: a loss of all traffic for one minute counts as 1.

    Attributes:
        routing: name of the routing scheme.
        kind: cable, node or group.
        component: name of the component.
        availability: share of the time in which the component works.
        lost_while_down: minutes lost in the listed states in which the component is down, alone or
            with others.
        gained: minutes gained in these states if the component never failed.
    """

    routing: str
    kind: str
    component: str
    availability: float
    lost_while_down: float
    gained: float


@dataclasses.dataclass(frozen=True)
class PromiseRow:
    """Certified value of a bandwidth guarantee (promise) for one class and matrix.

    Attributes:
        routing: least-loss, common-share or tail-loss.
        of_class: name of the class, while the upper classes keep their shares; "" without classes.
        matrix: index of the matrix.
        availability: availability target; NaN for least-loss.
        share: for least-loss the expected delivered share of all traffic. For common-share the
            smallest over the demands of the mean delivered share in the worst 1 - availability of
            the time. For tail-loss the mean over the worst 1 - availability of the time of the
            smallest delivered share of any demand.
        share_at_most: upper bound on the share of any reserved rates on the candidate paths with
            which upper classes keep their shares.
        gap: (share_at_most - share) / share_at_most.
        lost_minutes, lost_minutes_at_most: for least-loss the lost share of all traffic in minutes
            a year: lower bound for any reserved rates, and value of these rates; NaN for other
            schemes.
        left_out: number of excluded demands: no candidate path survives for 1 - availability of the
            time or longer.
        quantile, quantile_at_most: for common-share the largest share that every demand keeps in at
            least ``availability`` of the time, lower and upper bound by an integer program; NaN if
            the program is too large.
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
    """Measured availability of a network under all routing schemes.

    Attributes:
        topology, traffic: names.
        matrices: number of matrices.
        components: number of failing components.
        states: number of listed states.
        rest: total probability of the unlisted states.
        summary: a row for each routing scheme, and with classes for each of its classes.
        demands: a row for each demand and routing scheme.
        by_component: a row for each component and routing scheme.
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
        """The summary rows of all traffic together, one for each routing scheme."""
        return [row for row in self.summary if not row.of_class]

    @property
    def answer(self) -> str:
        """Sentence with the routing scheme that delivers the largest share of the traffic."""
        best_row = max(self.of_all, key=lambda row: row.mean)
        lost_minutes = from_to(best_row.lost_minutes, best_row.lost_minutes_at_most)
        fully_served = share_from_to(best_row.whole_100, best_row.whole_100_at_most)
        return (
            f"{best_row.routing} loses {lost_minutes} minutes of all traffic a year; every demand "
            f"is fully served in {fully_served} of the time"
        )
