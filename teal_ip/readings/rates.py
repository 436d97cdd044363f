"""Rates of links and routers over equal intervals, from the readings of their interfaces.

A cumulative counter becomes rates between consecutive readings, with correction of wraps and
detection of resets; these become means over the intervals.  Readings that are rates go to the
nearest interval.  Rates of the interfaces of a link, and of the external interfaces of a router,
are summed.

Entry points: :class:`IntervalRates`, :func:`median_interval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from teal.errors import WARNING, InputError, listed
from teal.network import Topology
from teal.runtime.arrays import FloatArray
from teal_ip.readings.readings import Counters

# Number of distinct values of a 32-bit and of a 64-bit counter: it wraps there.
_COUNTER_RANGES = (2.0**32, 2.0**64)
# Share of the range above which a decreasing counter may have wrapped.
_WRAP_SHARE = 0.75
# A counter with at most this number of readings may have 32 bits even if it always increases.
_MAX_FEW_READINGS = 3
# A counter below 2^32 with at least this number of decreases has 32 bits: they are wraps, not
# resets.
_MIN_FALLS_OF_32_BITS = 2
# Largest plausible rate, as a multiple of the interface's capacity.
_MAX_RATE_OVER_CAPACITY = 1.5
_BITS_PER_BYTE = 8.0
_BITS_PER_GBIT = 1e9
GBIT_PER_BYTE = _BITS_PER_BYTE / _BITS_PER_GBIT
# Minimum share of an interval with known rates; else the mean rate of the interval is unknown.
_MIN_SHARE = 0.5


class IntervalRates:
    """Accumulator of rates over T intervals of equal length, summed over interfaces; NaN if
    unknown.

    Attributes:
        sent: (T, E) Gbit/s at the starts of links.
        received: (T, E) Gbit/s at the ends of links.
        ingress: (T, N) Gbit/s into the network at routers.
        egress: (T, N) Gbit/s out of the network at routers.
    """

    def __init__(
        self,
        topology: Topology,
        interval_ends: FloatArray,
        interval_length_s: float,
        *,
        gbit_per_unit: float,
        is_cumulative: bool,
        location: str,
    ) -> None:
        """Create the accumulator with all rates unknown.

        Args:
            topology: the network.
            interval_ends: (T,) ends of the intervals, seconds since 1970.
            interval_length_s: length of an interval, seconds.
            gbit_per_unit: Gbit (counters) or Gbit/s (rates) of one unit of the readings.
            is_cumulative: whether the readings are counters, not rates.
            location: the file, for messages.
        """
        self.sent = np.full((len(interval_ends), topology.num_links), np.nan)
        self.received = np.full((len(interval_ends), topology.num_links), np.nan)
        self.ingress = np.full((len(interval_ends), topology.num_nodes), np.nan)
        self.egress = np.full((len(interval_ends), topology.num_nodes), np.nan)
        self._topology = topology
        self._interval_ends = interval_ends
        self._interval_length_s = interval_length_s
        self._gbit_per_unit = gbit_per_unit
        self._is_cumulative = is_cumulative
        self._location = location
        self._num_wraps = 0
        self._num_resets = 0
        # Names of interfaces whose counters may have 32 bits and wrap unnoticed.
        self._possible_32_bits: list[str] = []
        # Names of the summed interfaces by (direction, link).
        self._interfaces_of_link: dict[tuple[str, int], list[str]] = {}

    def mean_rates(
        self, read_times: FloatArray, reading_values: FloatArray, capacity: float, name: str
    ) -> FloatArray:
        """Return the mean rate (T,) of an interface over each interval, Gbit/s; NaN where unknown.

        Args:
            read_times: (n,) seconds since 1970, ascending.
            reading_values: (n,) bytes or rates.
            capacity: capacity of the interface, Gbit/s.
            name: interface, router and direction, for messages.

        Raises:
            InputError: a 32-bit counter could wrap more than once between two readings.
        """
        # Rates belong to the nearest interval; counters become rates between readings, then means.
        if not self._is_cumulative:
            return _nearest_rates(
                read_times,
                reading_values * self._gbit_per_unit,
                self._interval_ends,
                self._interval_length_s,
            )
        if _may_have_32_bits(read_times, reading_values, capacity, self._location, name):
            self._possible_32_bits.append(name)
        rate, starts, (num_wraps, num_resets) = _rates_between_readings(
            read_times, reading_values * self._gbit_per_unit, capacity, self._gbit_per_unit
        )
        self._num_wraps += num_wraps
        self._num_resets += num_resets
        return _interval_means(
            starts, read_times[1:], rate, self._interval_ends, self._interval_length_s
        )

    def add_to_link(
        self, link: int, direction: str, interface: str, interface_rates: FloatArray
    ) -> None:
        """Add the rates of an interface to a link.

        Args:
            link: index of the link.
            direction: out adds to ``sent``, in adds to ``received``.
            interface: name of the interface, for notes.
            interface_rates: (T,) Gbit/s; NaN where unknown: the sum of the link is then unknown.
        """
        # The first interface of a link replaces NaN, further ones are added.
        link_rates = (self.sent if direction == "out" else self.received)[:, link]
        names_of_link = self._interfaces_of_link.setdefault((direction, link), [])
        link_rates[:] = link_rates + interface_rates if names_of_link else interface_rates
        names_of_link.append(interface)

    def add_to_router(self, node: int, direction: str, interface_rates: FloatArray) -> None:
        """Add the rates of an external interface to its router.

        Args:
            node: index of the router.
            direction: out adds to ``egress``, in adds to ``ingress``.
            interface_rates: (T,) Gbit/s; NaN where unknown, which counts as 0 in a sum.
        """
        # A known rate is added to the sum, or replaces NaN; an unknown one leaves the sum as it is.
        border_rates = self.egress if direction == "out" else self.ingress
        border_rates[:, node] = np.where(
            np.isnan(border_rates[:, node]),
            interface_rates,
            border_rates[:, node] + np.nan_to_num(interface_rates),
        )

    def notes(self) -> list[str]:
        """Return notes on summed interfaces, wraps, resets, and counters that may have 32 bits."""
        notes = []
        for (direction, link), names in self._interfaces_of_link.items():
            if len(names) > 1:
                notes.append(
                    f"{self._topology.link_names()[link]}, {direction}: the sum of the interfaces "
                    f"{', '.join(names)}"
                )
        if self._num_wraps or self._num_resets:
            notes.append(f"{self._num_wraps:,} counter wraps, {self._num_resets:,} resets")
        if self._possible_32_bits:
            notes.append(
                f"{WARNING}counters below 2^32 that may have 32 bits and wrap more than once "
                "between two readings, so that their rates are too low: "
                f"{listed(self._possible_32_bits)}"
            )
        return notes

    def plausibility_notes(self) -> list[str]:
        """Return notes on links with rates above 1.5 times their capacity, and on links without any
        counter.
        """
        # (E,) largest rate of each link, at either end and in any interval.
        notes = []
        topology = self._topology
        capacity = np.where(topology.capacity > 0, topology.capacity, np.inf)
        largest_rate = np.fmax(
            *(
                np.where(np.isnan(rates), 0.0, rates).max(0, initial=0.0)
                for rates in (self.sent, self.received)
            )
        )
        # Links with implausible rates: probably a mistaken unit.
        names = topology.link_names()
        link_texts = [
            f"{names[link]} ({largest_rate[link]:g} of {capacity[link]:g} Gbit/s)"
            for link in np.flatnonzero(largest_rate > _MAX_RATE_OVER_CAPACITY * capacity)
        ]
        if link_texts:
            advice = (
                "the counters may be in bits, not bytes"
                if self._is_cumulative
                else "check the unit of rates, --counter-unit"
            )
            notes.append(
                f"{WARNING}more was counted than the links can carry ({advice}): "
                f"{listed(link_texts)}"
            )
        # Links that neither end has read.
        num_unread = int((np.isnan(self.sent) & np.isnan(self.received)).all(0).sum())
        if num_unread:
            notes.append(f"{num_unread} of {topology.num_links} links have no counter")
        return notes

    def to_counters(self, notes: Sequence[str]) -> Counters:
        """Return the rates as :class:`Counters`, with these notes; ends of intervals are rounded to
        seconds.
        """
        timestamps = np.round(self._interval_ends).astype("int64").astype("datetime64[s]")
        return Counters(
            timestamps,
            float(self._interval_length_s),
            self.sent,
            self.received,
            self.ingress,
            self.egress,
            tuple(notes),
        )


def median_interval(times: FloatArray, *keys: Any) -> float:
    """Return the median time between consecutive readings of an interface, seconds.

    It is 0 if no interface has two readings.

    Args:
        times: (n,) seconds since 1970.
        keys: columns (n,) that identify an interface and direction.
    """
    import pandas as pd

    # Rows of each interface and direction; times between its consecutive readings.
    groups = pd.DataFrame(dict(enumerate(keys))).groupby(list(range(len(keys)))).indices
    reading_gaps_s = [np.diff(np.sort(times[rows])) for rows in groups.values() if len(rows) > 1]
    return float(np.median(np.concatenate(reading_gaps_s))) if reading_gaps_s else 0.0


def _may_have_32_bits(
    read_times: FloatArray, reading_values: FloatArray, capacity: float, location: str, name: str
) -> bool:
    """Return whether a counter may have 32 bits and wrap more than once between two readings.

    Its rate is then unknown: for this reason RFC 2863, section 3.1.6, requires 64-bit counters
    (ifHCInOctets) above 20 Mbit/s.

    Args:
        read_times: (n,) seconds since 1970.
        reading_values: (n,) bytes.
        capacity: capacity of the interface, Gbit/s.
        location: the file, for messages.
        name: the interface, for messages.

    Raises:
        InputError: the counter certainly has 32 bits (it decreases repeatedly, and never exceeds
            2^32), and could wrap twice between two readings.
    """
    if len(reading_values) < 2 or reading_values.max() >= _COUNTER_RANGES[0] or capacity <= 0:
        return False
    # Decreases, median time between readings, and time in which the counter wraps at full load.
    num_falls = int((np.diff(reading_values) < 0).sum())
    reading_interval_s = float(np.median(np.diff(read_times)))
    wrap_time_s = _COUNTER_RANGES[0] * _BITS_PER_BYTE / (capacity * _BITS_PER_GBIT)
    if reading_interval_s <= wrap_time_s:
        return False
    if num_falls >= _MIN_FALLS_OF_32_BITS:
        raise InputError.invalid(
            location,
            name,
            f"this 32-bit counter can wrap more than once between readings at {capacity:g} Gbit/s",
            f"use 64-bit counters (ifHCInOctets, ifHCOutOctets), or read every {wrap_time_s:.3g} s "
            f"instead of every {reading_interval_s:g} s",
        )
    # A counter below 2^32 that increases in all of many readings has 64 bits; one with few readings
    # may have 32 bits if it is in the upper half of their range.
    has_few_readings = len(reading_values) <= _MAX_FEW_READINGS
    return num_falls > 0 or (has_few_readings and reading_values.max() >= _COUNTER_RANGES[0] / 2)


def _rates_between_readings(
    read_times: FloatArray, reading_gbit: FloatArray, capacity: float, gbit_per_unit: float
) -> tuple[FloatArray, FloatArray, tuple[int, int]]:
    """Return the rates between consecutive readings of a counter.

    A decrease is a wrap if the counter was in the last quarter of its range, or certainly has 32
    bits, and the rate with the wrap is plausible for the capacity; else it is a reset.

    Args:
        read_times: (n,) seconds since 1970, ascending.
        reading_gbit: (n,) readings of the counter, Gbit.
        capacity: capacity of the interface, Gbit/s.
        gbit_per_unit: Gbit of one unit of the counter, a byte.

    Returns:
        (n - 1,) Gbit/s, NaN after a reset; (n - 1,) times at which each rate begins, seconds since
        1970; and numbers of wraps and resets.
    """
    # A counter that decreases repeatedly and stays below 2^32 has 32 bits.
    elapsed_s = np.diff(read_times)
    increase = np.diff(reading_gbit)
    fall_indices = np.flatnonzero(increase < 0)
    has_32_bits = len(fall_indices) >= _MIN_FALLS_OF_32_BITS and bool(
        (reading_gbit < _COUNTER_RANGES[0] * gbit_per_unit).all()
    )
    # Correct wraps: try the range of 32 bits first, then that of 64 bits.
    num_wraps = 0
    for i in fall_indices.tolist():
        for range_bytes in _COUNTER_RANGES:
            range_gbit = range_bytes * gbit_per_unit
            # Increase if the counter reached the end of its range and began again at 0.
            increase_with_wrap = increase[i] + range_gbit
            was_near_range_end = (
                reading_gbit[i] >= _WRAP_SHARE * range_gbit and reading_gbit[i] <= range_gbit
            )
            may_wrap = was_near_range_end or (has_32_bits and range_bytes == _COUNTER_RANGES[0])
            if (
                may_wrap
                and elapsed_s[i] > 0
                and increase_with_wrap <= _MAX_RATE_OVER_CAPACITY * capacity * elapsed_s[i]
            ):
                increase[i] = increase_with_wrap
                num_wraps = num_wraps + 1
                break
    # The remaining decreases are resets, after which the rate is unknown.
    num_resets = int((increase < 0).sum())
    rate = np.where(
        (increase >= 0) & (elapsed_s > 0), increase / np.where(elapsed_s > 0, elapsed_s, 1), np.nan
    )
    return rate, read_times[:-1], (num_wraps, num_resets)


def _interval_means(
    piece_start: FloatArray,
    piece_end: FloatArray,
    rate: FloatArray,
    interval_ends: FloatArray,
    interval_length_s: float,
) -> FloatArray:
    """Return the mean of a piecewise constant rate over the known part of each interval.

    Args:
        piece_start: (n,) start of each piece, seconds since 1970, ascending.
        piece_end: (n,) end of each piece; pieces do not overlap.
        rate: (n,) Gbit/s; NaN where unknown.
        interval_ends: (T,) ends of the intervals, seconds since 1970.
        interval_length_s: length of an interval, seconds.

    Returns:
        (T,) Gbit/s; NaN where more than half of an interval is unknown.
    """
    is_known = np.isfinite(rate)
    piece_start = piece_start[is_known]
    piece_end = piece_end[is_known]
    rate = rate[is_known]
    if not len(rate):
        return np.full(len(interval_ends), np.nan)
    # Cumulative volume, Gbit, and known time, seconds, up to the start of each piece.
    cumulative_volume = np.concatenate([[0.0], np.cumsum(rate * (piece_end - piece_start))])
    cumulative_known_s = np.concatenate([[0.0], np.cumsum(piece_end - piece_start)])

    def cumulative(time: FloatArray, piece_total: FloatArray, slope: FloatArray) -> FloatArray:
        """Return a cumulative total at each time, by interpolation within a piece.

        Args:
            time: times, seconds since 1970.
            piece_total: (n + 1,) total at the start of each piece, then at the end of the last one.
            slope: (n,) increase of the total per second within each piece.
        """
        piece = np.clip(
            np.searchsorted(piece_start, time, side="right") - 1, 0, len(piece_start) - 1
        )
        elapsed = np.clip(time - piece_start[piece], 0.0, piece_end[piece] - piece_start[piece])
        return np.asarray(piece_total[piece] + slope[piece] * elapsed)

    # Volume and known time of each interval: differences between its end and its start.
    interval_volume = cumulative(interval_ends, cumulative_volume, rate) - cumulative(
        interval_ends - interval_length_s, cumulative_volume, rate
    )
    known_s = cumulative(interval_ends, cumulative_known_s, np.ones_like(rate)) - cumulative(
        interval_ends - interval_length_s, cumulative_known_s, np.ones_like(rate)
    )
    return np.where(
        known_s >= _MIN_SHARE * interval_length_s,
        interval_volume / np.maximum(known_s, 1e-300),
        np.nan,
    )


def _nearest_rates(
    read_times: FloatArray, rate: FloatArray, interval_ends: FloatArray, interval_length_s: float
) -> FloatArray:
    """Return the mean of the rates read near the end of each interval.

    A rate belongs to the interval with the nearest end.

    Args:
        read_times: (n,) seconds since 1970.
        rate: (n,) Gbit/s.
        interval_ends: (T,) ends of the intervals, seconds since 1970.
        interval_length_s: length of an interval, seconds.

    Returns:
        (T,) Gbit/s; NaN for intervals without a rate within half their length.
    """
    # Index of the interval whose end is nearest to each reading; mean rate of each interval.
    interval_index = np.round((read_times - interval_ends[0]) / interval_length_s).astype(int)
    is_inside = (interval_index >= 0) & (interval_index < len(interval_ends))
    rate_sum = np.bincount(interval_index[is_inside], rate[is_inside], len(interval_ends))
    num_rates = np.bincount(interval_index[is_inside], minlength=len(interval_ends))
    return np.where(num_rates > 0, rate_sum / np.maximum(num_rates, 1), np.nan)
