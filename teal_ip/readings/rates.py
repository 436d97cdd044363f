"""Rates of links and routers over equal intervals, from the readings of their interfaces.

A cumulative counter becomes rates between two readings (:func:`_rates`, which follows wraps and
detects resets), and these become means over intervals; given rates go to the nearest interval.  The
rates of the interfaces of a link, and of the external interfaces of a router, are summed.

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

# Widths of counters.
_WIDTHS = (2.0**32, 2.0**64)
# Share of the width above which a decreasing counter may have wrapped.
_LAST_PART = 0.75
# Number of readings up to which a counter's rises say nothing about its width.
_FEW_READINGS = 3
# Decreases below 2^32 that indicate a 32-bit counter: a router does not restart repeatedly.
_FALLS_OF_A_NARROW_COUNTER = 2
# Largest plausible rate, as a multiple of the interface's capacity.
_MAX_RATE_OVER_CAPACITY = 1.5
_BITS_PER_BYTE = 8.0
_BITS_PER_GBIT = 1e9
# Gbit of a byte.
GBIT_PER_BYTE = _BITS_PER_BYTE / _BITS_PER_GBIT
# Share of an interval that readings must cover.
_MIN_SHARE = 0.5


class IntervalRates:
    """Rates over equal intervals, summed interface by interface; NaN where unknown.

    Attributes:
        sent: (T, E) Gbit/s at the starts of links.
        received: (T, E) Gbit/s at the ends of links.
        ingress: (T, N) Gbit/s into the network at routers.
        egress: (T, N) Gbit/s out of the network at routers.
    """

    def __init__(
        self,
        topology: Topology,
        ends: FloatArray,
        step: float,
        *,
        factor: float,
        is_cumulative: bool,
        location: str,
    ) -> None:
        """Begin without interfaces.

        Args:
            topology: the network.
            ends: (T,) ends of the intervals, seconds.
            step: length of an interval, seconds.
            factor: Gbit, or Gbit/s, of a unit of the readings.
            is_cumulative: whether the readings are counters, not rates.
            location: the file, for messages.
        """
        self.sent = np.full((len(ends), topology.num_links), np.nan)
        self.received = np.full((len(ends), topology.num_links), np.nan)
        self.ingress = np.full((len(ends), topology.num_nodes), np.nan)
        self.egress = np.full((len(ends), topology.num_nodes), np.nan)
        self._topology = topology
        self._ends = ends
        self._step = step
        self._factor = factor
        self._is_cumulative = is_cumulative
        self._location = location
        self._num_wraps = 0
        self._num_resets = 0
        # Interfaces whose counters may have 32 bits.
        self._narrow: list[str] = []
        # Summed interfaces by direction and link.
        self._interfaces_of_link: dict[tuple[str, int], list[str]] = {}

    def means(
        self, read_times: FloatArray, reading: FloatArray, capacity: float, name: str
    ) -> FloatArray:
        """Return the mean rate (T,) of an interface over each interval, Gbit/s; NaN where unknown.

        Args:
            read_times: (n,) seconds, ascending.
            reading: (n,) bytes or rates.
            capacity: capacity of the interface, Gbit/s.
            name: interface, router and direction, for messages.

        Raises:
            InputError: a 32-bit counter could wrap more than once between two readings.
        """
        if not self._is_cumulative:
            return _nearest_rates(read_times, reading * self._factor, self._ends, self._step)
        if _may_be_narrow(read_times, reading, capacity, self._location, name):
            self._narrow.append(name)
        rate, starts, (num_wraps, num_resets) = _rates(
            read_times, reading * self._factor, capacity, self._factor
        )
        self._num_wraps += num_wraps
        self._num_resets += num_resets
        return _interval_means(starts, read_times[1:], rate, self._ends, self._step)

    def add_to_link(self, link: int, direction: str, interface: str, series: FloatArray) -> None:
        """Add the rates (T,) of an interface to a link: sent for direction out, received for in."""
        link_rates = (self.sent if direction == "out" else self.received)[:, link]
        names_of_link = self._interfaces_of_link.setdefault((direction, link), [])
        link_rates[:] = link_rates + series if names_of_link else series
        names_of_link.append(interface)

    def add_to_router(self, node: int, direction: str, series: FloatArray) -> None:
        """Add the rates (T,) of an external interface to its router."""
        side = self.egress if direction == "out" else self.ingress
        side[:, node] = np.where(
            np.isnan(side[:, node]), series, side[:, node] + np.nan_to_num(series)
        )

    def notes(self) -> list[str]:
        """Notes on summed interfaces, wraps and resets, and counters that may have 32 bits."""
        notes = []
        for (direction, link), names in self._interfaces_of_link.items():
            if len(names) > 1:
                notes.append(
                    f"{self._topology.link_names()[link]}, {direction}: the sum of the interfaces "
                    f"{', '.join(names)}"
                )
        if self._num_wraps or self._num_resets:
            notes.append(f"{self._num_wraps:,} counter wraps, {self._num_resets:,} resets")
        if self._narrow:
            notes.append(
                f"{WARNING}counters that stay below 2^32 and may be of 32 bits, which then wrap "
                "more than once between two readings, so that rates are too low: "
                f"{listed(self._narrow)}"
            )
        return notes

    def plausibility_notes(self) -> list[str]:
        """Notes on links with a larger rate than their capacity, and on links without a counter."""
        notes = []
        topology = self._topology
        capacity = np.where(topology.capacity > 0, topology.capacity, np.inf)
        largest = np.fmax(
            *(
                np.where(np.isnan(rates), 0.0, rates).max(0, initial=0.0)
                for rates in (self.sent, self.received)
            )
        )
        names = topology.link_names()
        link_texts = [
            f"{names[link]} ({largest[link]:g} of {capacity[link]:g} Gbit/s)"
            for link in np.flatnonzero(largest > _MAX_RATE_OVER_CAPACITY * capacity)
        ]
        if link_texts:
            advice = (
                "the counters may be of bits, not bytes"
                if self._is_cumulative
                else "--counter-unit names the unit of rates"
            )
            notes.append(
                f"{WARNING}more was counted than the links can carry ({advice}): "
                f"{listed(link_texts)}"
            )
        num_silent = int((np.isnan(self.sent) & np.isnan(self.received)).all(0).sum())
        if num_silent:
            notes.append(f"{num_silent} of {topology.num_links} links have no counter")
        return notes

    def to_counters(self, notes: Sequence[str]) -> Counters:
        """Return the rates as counters, with the ends of intervals rounded to seconds."""
        timestamps = np.round(self._ends).astype("int64").astype("datetime64[s]")
        return Counters(
            timestamps,
            float(self._step),
            self.sent,
            self.received,
            self.ingress,
            self.egress,
            tuple(notes),
        )


def median_interval(times: FloatArray, *keys: Any) -> float:
    """Median time between two readings of the same interface, seconds."""
    import pandas as pd

    groups = pd.DataFrame(dict(enumerate(keys))).groupby(list(range(len(keys)))).indices
    steps = [np.diff(np.sort(times[rows])) for rows in groups.values() if len(rows) > 1]
    return float(np.median(np.concatenate(steps))) if steps else 0.0


def _may_be_narrow(
    read_times: FloatArray, reading: FloatArray, capacity: float, location: str, name: str
) -> bool:
    """Whether a counter may have 32 bits and wrap more than once between two readings, so that its
    rate is unknown; a counter that certainly does is an error.

    A 64-bit counter that stays below 2^32 rises in all of many readings.  RFC 2863 3.1.6 requires
    64-bit counters (ifHCInOctets) above 20 Mbit/s for this reason.

    Args:
        read_times: (n,) seconds.
        reading: (n,) bytes.
        capacity: capacity of the interface, Gbit/s.
        location: the file, for messages.
        name: the interface, for messages.

    Raises:
        InputError: the counter decreases repeatedly, never exceeds 2^32, and could wrap twice.
    """
    if len(reading) < 2 or reading.max() >= _WIDTHS[0] or capacity <= 0:
        return False
    falls = int((np.diff(reading) < 0).sum())
    seconds = float(np.median(np.diff(read_times)))
    wrap_s = _WIDTHS[0] * _BITS_PER_BYTE / (capacity * _BITS_PER_GBIT)
    if seconds <= wrap_s:
        return False
    if falls >= _FALLS_OF_A_NARROW_COUNTER:
        raise InputError(
            location,
            name,
            f"64-bit counters (ifHCInOctets, ifHCOutOctets), or readings every {wrap_s:.3g} s: "
            f"at {capacity:g} Gbit/s a 32-bit counter wraps more than once between two readings",
            f"32 bits, read every {seconds:g} s",
        )
    is_short = len(reading) <= _FEW_READINGS
    return falls > 0 or (is_short and reading.max() >= _WIDTHS[0] / 2)


def _rates(
    read_times: FloatArray, amount: FloatArray, capacity: float, factor: float
) -> tuple[FloatArray, FloatArray, tuple[int, int]]:
    """Return Gbit/s between readings, NaN after a reset; start times; numbers of wraps and resets.

    Args:
        read_times: (n,) seconds.
        amount: (n,) readings in Gbit.
        capacity: capacity of the interface, Gbit/s.
        factor: Gbit of a unit of the counter.
    """
    seconds = np.diff(read_times)
    change = np.diff(amount)
    falls = np.flatnonzero(change < 0)
    is_narrow = len(falls) >= _FALLS_OF_A_NARROW_COUNTER and bool(
        (amount < _WIDTHS[0] * factor).all()
    )
    wraps = 0
    for i in falls.tolist():
        for width in _WIDTHS:
            full = width * factor
            wrapped = change[i] + full
            is_late = amount[i] >= _LAST_PART * full and amount[i] <= full
            may_wrap = is_late or (is_narrow and width == _WIDTHS[0])
            if (
                may_wrap
                and seconds[i] > 0
                and wrapped <= _MAX_RATE_OVER_CAPACITY * capacity * seconds[i]
            ):
                change[i] = wrapped
                wraps = wraps + 1
                break
    resets = int((change < 0).sum())
    rate = np.where(
        (change >= 0) & (seconds > 0), change / np.where(seconds > 0, seconds, 1), np.nan
    )
    return rate, read_times[:-1], (wraps, resets)


def _interval_means(
    starts: FloatArray, stops: FloatArray, rate: FloatArray, ends: FloatArray, step: float
) -> FloatArray:
    """Mean (T,) of piecewise constant rates over the intervals that end at ``ends``; NaN where more
    than half of an interval is unknown.
    """
    is_known = np.isfinite(rate)
    starts = starts[is_known]
    stops = stops[is_known]
    rate = rate[is_known]
    if not len(rate):
        return np.full(len(ends), np.nan)
    volume = np.concatenate([[0.0], np.cumsum(rate * (stops - starts))])
    covered = np.concatenate([[0.0], np.cumsum(stops - starts)])

    def until(time: FloatArray, total: FloatArray, slope: FloatArray) -> FloatArray:
        """Cumulative total at each time; the pieces are sorted and do not overlap."""
        i = np.clip(np.searchsorted(starts, time, side="right") - 1, 0, len(starts) - 1)
        inside = np.clip(time - starts[i], 0.0, stops[i] - starts[i])
        return np.asarray(total[i] + slope[i] * inside)

    amount = until(ends, volume, rate) - until(ends - step, volume, rate)
    seconds = until(ends, covered, np.ones_like(rate)) - until(
        ends - step, covered, np.ones_like(rate)
    )
    return np.where(seconds >= _MIN_SHARE * step, amount / np.maximum(seconds, 1e-300), np.nan)


def _nearest_rates(
    read_times: FloatArray, rate: FloatArray, ends: FloatArray, step: float
) -> FloatArray:
    """Mean (T,) of the rates nearest to each end; NaN without any within half a step."""
    index = np.round((read_times - ends[0]) / step).astype(int)
    inside = (index >= 0) & (index < len(ends))
    total = np.bincount(index[inside], rate[inside], len(ends))
    count = np.bincount(index[inside], minlength=len(ends))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
