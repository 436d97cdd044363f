"""Byte counters of interfaces as rates: what is measured where no traffic matrix is.

Each link is counted twice, by the router that sends and by the one that receives.  The interfaces
towards everything outside the network (customers, peers) are summed for each router: what enters
there (ingress) and what leaves (egress).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from teal.errors import InputError
from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array

# share of a router's links by which in and out may differ where nothing external is to be assumed
_MAX_OWN = 0.1
# readings of a router that disagree with its neighbours', of which 2^10 combinations are tried
_MAX_REPLACED = 10


def mean_of_ends(sent: FloatArray, received: FloatArray) -> FloatArray:
    """(..., E) mean of the counters at both ends of each link, or the one that was read; NaN where
    neither was.
    """
    both = np.stack([sent, received])
    count = np.isfinite(both).sum(0)
    return np.where(count > 0, np.nansum(both, 0) / np.maximum(count, 1), np.nan)


class Readings(NamedTuple):
    """The counters of one interval, Gbit/s, NaN where nothing was read; an axis of intervals may
    come first.

    Attributes:
        sent: (E,) of each link, by the router where it starts.
        received: (E,) by the router where it ends.
        ingress: (N,) that enters the network at each router.
        egress: (N,) that leaves it there.
    """

    sent: FloatArray
    received: FloatArray
    ingress: FloatArray
    egress: FloatArray

    @property
    def values(self) -> FloatArray:
        """(E + 2 N,) loads of links, ingress, egress: the rows of a measurement matrix."""
        return np.concatenate(
            [mean_of_ends(self.sent, self.received), self.ingress, self.egress], -1
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Counters:
    """T intervals of N routers and E links; rates in Gbit/s, NaN where nothing was measured.

    Attributes:
        timestamps: (T,) datetime64[s], the end of each interval, strictly increasing.
        interval_s: seconds of an interval; 0 if unknown.
        sent: (T, E) of each link, by the router where it starts.
        received: (T, E) by the router where it ends.
        ingress: (T, N) that enters the network at each router.
        egress: (T, N) that leaves it there.
        notes: what was assumed and left out when they were read.
    """

    timestamps: npt.NDArray[np.datetime64]
    interval_s: float
    sent: FloatArray
    received: FloatArray
    ingress: FloatArray
    egress: FloatArray
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise InputError for shapes that do not fit, times that do not increase, or an invalid
        rate.
        """
        times, links, nodes = len(self.timestamps), self.sent.shape[-1], self.ingress.shape[-1]
        for name, width in (
            ("sent", links),
            ("received", links),
            ("ingress", nodes),
            ("egress", nodes),
        ):
            rates = getattr(self, name)
            if rates.shape != (times, width):
                raise InputError(
                    "counters", name, f"{times} x {width} rates", " x ".join(map(str, rates.shape))
                )
            if np.isinf(rates).any() or (rates < 0).any():
                raise InputError(
                    "counters", name, "finite rates of at least 0", rates[~(rates >= 0)][0]
                )
        later = np.diff(self.timestamps) > np.timedelta64(0, "s")
        if not later.all():
            raise InputError(
                "counters", "timestamp", "increasing times", self.timestamps[1:][~later][0]
            )

    @property
    def num_intervals(self) -> int:
        """T."""
        return len(self.timestamps)

    def rows(self, rows: slice | Int64Array) -> Counters:
        """Some of the intervals."""
        parts = {
            name: getattr(self, name)[rows]
            for name in ("timestamps", "sent", "received", "ingress", "egress")
        }
        return dataclasses.replace(self, **parts)

    def at(self, interval: int) -> Readings:
        """The readings of one interval, by its number."""
        return Readings(
            self.sent[interval],
            self.received[interval],
            self.ingress[interval],
            self.egress[interval],
        )

    def check(self, topology: Topology) -> None:
        """Raise InputError for counters of another network, or without any external interface."""
        expected = f"{topology.num_links} links and {topology.num_nodes} routers of {topology.name}"
        if (self.sent.shape[1], self.ingress.shape[1]) != (topology.num_links, topology.num_nodes):
            raise InputError(
                "counters", "", expected, f"{self.sent.shape[1]} and {self.ingress.shape[1]}"
            )
        if np.isnan(self.ingress).all() and np.isnan(self.egress).all():
            raise InputError(
                "counters", "external interfaces", "what enters and leaves at some router", "none"
            )

    @property
    def values(self) -> FloatArray:
        """(T, E + 2 N) :attr:`Readings.values` of all intervals."""
        return Readings(self.sent, self.received, self.ingress, self.egress).values


def without_own_traffic(
    topology: Topology, asked: BoolArray, sent: FloatArray, received: FloatArray
) -> list[int]:
    """The routers that send and receive nothing of their own: every link was read, and as much
    leaves as enters.

    A wrong counter must not make a source of a router.  Where what a router reads is not balanced,
    the fewest of its readings are replaced by those of its neighbours, if that balances it.  Two
    routers that would each take the other's reading of one link contradict each other, and neither
    is taken for one without traffic of its own.  Nor is a router with a single neighbour unless its
    own readings say so: nothing else could tell a source from a wrong counter there.

    Args:
        topology: the network.
        asked: (N,) which routers have no external interface that is known.
        sent: (T, E) as in :class:`Counters`.
        received: (T, E) likewise.
    """
    unread, mean = np.where(topology.capacity > 0, np.nan, 0.0), []  # with NaN nothing is balanced
    for rates in (sent, received):
        count = np.isfinite(rates).sum(0)
        mean.append(np.where(count > 0, np.nansum(rates, 0) / np.maximum(count, 1), unread))
    found = {node: _balanced(topology, node, *mean) for node in np.flatnonzero(asked).tolist()}
    taken = {node: links for node, links in found.items() if links is not None}
    by_link = Counter(link for links in taken.values() for link in links)
    start, end = topology.link_source, topology.link_target
    is_stub = [
        len({*end[start == node].tolist(), *start[end == node].tolist()}) < 2
        for node in range(topology.num_nodes)
    ]
    return [
        node
        for node, links in taken.items()
        if not links or (not is_stub[node] and all(by_link[link] == 1 for link in links))
    ]


def _balanced(
    topology: Topology, node: int, sent: FloatArray, received: FloatArray
) -> tuple[int, ...] | None:
    """The fewest links whose reading at the other end balances a router, (E,) readings of each end;
    None if none do.
    """
    leaving, entering = (
        np.flatnonzero(ends == node) for ends in (topology.link_source, topology.link_target)
    )
    out, into = sent[leaving], received[entering]
    links, own = np.concatenate([leaving, entering]), np.concatenate([out, into])
    other = np.concatenate([received[leaving], sent[entering]])
    differ = np.flatnonzero(np.abs(other - own) > _MAX_OWN * np.maximum(own, other))  # NaN does not
    differ = differ[np.argsort(-np.abs(other - own)[differ])][:_MAX_REPLACED]
    sign = np.where(np.arange(len(links)) < len(out), -1.0, 1.0)
    for count in range(len(differ) + 1):
        for chosen in itertools.combinations(differ.tolist(), count):
            rates = own.copy()
            rates[list(chosen)] = other[list(chosen)]
            if abs(float(sign @ rates)) <= _MAX_OWN * max(
                rates[: len(out)].sum(), rates[len(out) :].sum()
            ):
                return tuple(links[list(chosen)].tolist())
    return None
