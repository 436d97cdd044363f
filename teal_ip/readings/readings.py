"""Interface byte counters as rates: the measurements of a network without traffic matrices.

Each link is counted twice, by the sending and by the receiving router.  External interfaces (to
customers and peers) are summed for each router: ingress and egress.
Entry point: :class:`Counters`.
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

# A router is balanced if the rates into and out of it over its links differ by at most this share.
_MAX_IMBALANCE = 0.1
# Maximum number of readings of a router that may be replaced: 2^10 subsets are tried.
_MAX_REPLACED = 10


def mean_of_ends(sent_rates: FloatArray, received_rates: FloatArray) -> FloatArray:
    """Return the mean (..., E) of the counters at both ends of each link; NaN counters are
    ignored.
    """
    # Mean over the counters that are not NaN; NaN if both are.
    both = np.stack([sent_rates, received_rates])
    count = np.isfinite(both).sum(0)
    return np.where(count > 0, np.nansum(both, 0) / np.maximum(count, 1), np.nan)


class Readings(NamedTuple):
    """Counters of one interval as rates, Gbit/s, NaN for missing ones; an axis of intervals may
    come first.

    Attributes:
        sent: (E,) counter of each link at its start.
        received: (E,) counter of each link at its end.
        ingress: (N,) traffic that enters the network at each router.
        egress: (N,) traffic that leaves the network at each router.
    """

    sent: FloatArray
    received: FloatArray
    ingress: FloatArray
    egress: FloatArray

    @property
    def values(self) -> FloatArray:
        """Rates (E + 2 N,) of links (mean of both counters), ingress and egress, Gbit/s: the rows
        of a measurement matrix.
        """
        return np.concatenate(
            [mean_of_ends(self.sent, self.received), self.ingress, self.egress], -1
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Counters:
    """Counters of T intervals, N routers and E links, as rates in Gbit/s, NaN for missing ones.

    Attributes:
        timestamps: (T,) datetime64[s], the end of each interval, strictly increasing.
        interval_s: length of an interval, seconds; 0 if unknown.
        sent: (T, E) counter of each link at its start.
        received: (T, E) counter of each link at its end.
        ingress: (T, N) traffic that enters the network at each router.
        egress: (T, N) traffic that leaves the network at each router.
        notes: assumptions and exclusions of the import.
    """

    timestamps: npt.NDArray[np.datetime64]
    interval_s: float
    sent: FloatArray
    received: FloatArray
    ingress: FloatArray
    egress: FloatArray
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise InputError for inconsistent shapes, times that do not increase, or rates that are
        negative or infinite.
        """
        # Shapes (T, E) and (T, N), and finite rates of at least 0; NaN is allowed.
        num_times = len(self.timestamps)
        num_links = self.sent.shape[-1]
        num_nodes = self.ingress.shape[-1]
        for name, width in (
            ("sent", num_links),
            ("received", num_links),
            ("ingress", num_nodes),
            ("egress", num_nodes),
        ):
            rates = getattr(self, name)
            if rates.shape != (num_times, width):
                raise InputError(
                    "counters",
                    name,
                    f"an array of {num_times} x {width} rates",
                    " x ".join(map(str, rates.shape)),
                )
            is_invalid = np.isinf(rates) | (rates < 0)
            if is_invalid.any():
                raise InputError(
                    "counters", name, "finite rates of at least 0", rates[is_invalid][0]
                )
        # Times increase strictly.
        is_later = np.diff(self.timestamps) > np.timedelta64(0, "s")
        if not is_later.all():
            raise InputError(
                "counters", "timestamp", "increasing times", self.timestamps[1:][~is_later][0]
            )

    @property
    def num_intervals(self) -> int:
        """Number of intervals, T."""
        return len(self.timestamps)

    def rows(self, rows: slice | Int64Array) -> Counters:
        """Return the counters of some intervals, given by a slice or by indices."""
        selected = {
            name: getattr(self, name)[rows]
            for name in ("timestamps", "sent", "received", "ingress", "egress")
        }
        return dataclasses.replace(self, **selected)

    def at(self, interval: int) -> Readings:
        """Return the counters of the interval with an index from 0 to T - 1."""
        return Readings(
            self.sent[interval],
            self.received[interval],
            self.ingress[interval],
            self.egress[interval],
        )

    def check(self, topology: Topology) -> None:
        """Raise InputError if the counters are of another network, or have no ingress and
        egress.
        """
        expected = f"{topology.num_links} links and {topology.num_nodes} routers of {topology.name}"
        if (self.sent.shape[1], self.ingress.shape[1]) != (topology.num_links, topology.num_nodes):
            raise InputError(
                "counters",
                "",
                expected,
                f"{self.sent.shape[1]} links and {self.ingress.shape[1]} routers",
            )
        if np.isnan(self.ingress).all() and np.isnan(self.egress).all():
            raise InputError.invalid(
                "counters",
                "external interfaces",
                "no router has ingress or egress",
                "add readings of interfaces to customers or peers",
            )

    @property
    def values(self) -> FloatArray:
        """Rates (T, E + 2 N) of links (mean of both counters), ingress and egress, Gbit/s: the
        columns are the rows of a measurement matrix.
        """
        return Readings(self.sent, self.received, self.ingress, self.egress).values


def without_own_traffic(
    topology: Topology, is_candidate: BoolArray, sent_rates: FloatArray, received_rates: FloatArray
) -> list[int]:
    """Return the indices of the transit-only routers: all their links are read, and the rates in
    and out are balanced.

    A wrong counter must not turn a router into a source.  Hence, if the readings of a router are
    not balanced, the smallest number of them that restores the balance is replaced by the readings
    of its neighbours.  A router is not transit-only if another router would replace its reading of
    the same link, or if it needs a replacement and has a single neighbour: a source there looks
    like a wrong counter.

    Args:
        topology: the network.
        is_candidate: (N,) whether a router has no known external interface.
        sent_rates: (T, E) counter of each link at its start, Gbit/s; NaN for missing ones.
        received_rates: (T, E) counter of each link at its end, Gbit/s; NaN for missing ones.
    """
    # Mean rates (E,) at both ends; NaN on unread links, so that their routers are never balanced.
    unread_rate = np.where(topology.capacity > 0, np.nan, 0.0)
    mean_rates = []
    for rates in (sent_rates, received_rates):
        num_readings = np.isfinite(rates).sum(0)
        mean_rates.append(
            np.where(
                num_readings > 0, np.nansum(rates, 0) / np.maximum(num_readings, 1), unread_rate
            )
        )
    # Links whose readings are replaced, by candidate that can be balanced; and number of routers
    # that replace the reading of each link.
    replaced_links = {
        node: _links_to_balance(topology, node, *mean_rates)
        for node in np.flatnonzero(is_candidate).tolist()
    }
    links_by_node = {node: links for node, links in replaced_links.items() if links is not None}
    num_replacing_nodes = Counter(link for links in links_by_node.values() for link in links)
    link_start = topology.link_source
    link_end = topology.link_target
    # Stub: a router with a single neighbour.
    is_stub = [
        len({*link_end[link_start == node].tolist(), *link_start[link_end == node].tolist()}) < 2
        for node in range(topology.num_nodes)
    ]
    # Transit-only: balanced by its own readings, or by replacements that no other router makes.
    return [
        node
        for node, links in links_by_node.items()
        if not links
        or (not is_stub[node] and all(num_replacing_nodes[link] == 1 for link in links))
    ]


def _links_to_balance(
    topology: Topology, node: int, sent_rates: FloatArray, received_rates: FloatArray
) -> tuple[int, ...] | None:
    """Return the smallest set of links of a router whose replaced readings balance it.

    On these links, the reading of the router is replaced by the reading of the neighbour.

    Args:
        topology: the network.
        node: index of the router.
        sent_rates: (E,) mean rate of each link at its start, Gbit/s.
        received_rates: (E,) mean rate of each link at its end, Gbit/s.

    Returns:
        indices of the links; () if the router is balanced, None if no set balances it.
    """
    # Readings of the router and of its neighbours, for links that leave it, then links that enter.
    leaving, entering = (
        np.flatnonzero(ends == node) for ends in (topology.link_source, topology.link_target)
    )
    leaving_rates = sent_rates[leaving]
    entering_rates = received_rates[entering]
    links = np.concatenate([leaving, entering])
    router_rates = np.concatenate([leaving_rates, entering_rates])
    neighbour_rates = np.concatenate([received_rates[leaving], sent_rates[entering]])
    # Links whose two readings differ by more than 10%, the largest difference first, at most ten;
    # missing readings (NaN) do not differ.
    differing_positions = np.flatnonzero(
        np.abs(neighbour_rates - router_rates)
        > _MAX_IMBALANCE * np.maximum(router_rates, neighbour_rates)
    )
    differing_positions = differing_positions[
        np.argsort(-np.abs(neighbour_rates - router_rates)[differing_positions])
    ][:_MAX_REPLACED]
    # Try subsets of increasing size; the balance is inflow minus outflow.
    sign = np.where(np.arange(len(links)) < len(leaving_rates), -1.0, 1.0)
    for subset_size in range(len(differing_positions) + 1):
        for replaced_positions in itertools.combinations(differing_positions.tolist(), subset_size):
            # Balanced: inflow and outflow differ by at most 10% of the larger one.
            trial_rates = router_rates.copy()
            trial_rates[list(replaced_positions)] = neighbour_rates[list(replaced_positions)]
            if abs(float(sign @ trial_rates)) <= _MAX_IMBALANCE * max(
                trial_rates[: len(leaving_rates)].sum(), trial_rates[len(leaving_rates) :].sum()
            ):
                return tuple(links[list(replaced_positions)].tolist())
    return None
