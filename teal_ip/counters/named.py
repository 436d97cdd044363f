"""Counters that contradict the others, aggregated over all intervals by router and interface.

Entry point: :class:`NamedCounters`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from teal.network.topology import Topology
from teal_ip.counters.repair import Repaired
from teal_ip.readings.readings import Readings

# Interface of ingress and egress if no table names the external interfaces.
EXTERNAL = "external"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedCounter:
    """Interface with counters that contradict the others.

    Attributes:
        router: name of the router.
        interface: names in the table of interfaces, else the neighbour, or ``external``.
        kind: its counters that were found wrong (blamed): sent, received or both for a link;
            ingress, egress or both for external interfaces.
        share: share of the intervals in which one of its counters was blamed.
        ratio: counted over repaired traffic of the blamed counters; NaN if the latter is 0.
    """

    router: str
    interface: str
    kind: str
    share: float
    ratio: float


class NamedCounters:
    """Accumulator of blamed counters over intervals, by interface.

    A counter is blamed if the repair finds it wrong.  Arrays over the 2 E + 2 N counters (sent and
    received of each link, ingress and egress of each node) and the I interfaces:

    - ``_counter_interface``: interface of each counter: (router, link out, link in), with -1 for no
      link;
    - ``_interface_index`` (2 E + 2 N,): index of the interface of each counter;
    - ``_times_blamed`` (2 E + 2 N,): number of intervals in which each counter was blamed;
    - ``_num_blamed_intervals`` (I,): number of intervals with a blamed counter of each interface;
    - ``_counted_sum``, ``_repaired_sum`` (I,): counted and repaired rates, summed over blamed
      counters, Gbit/s;
    - ``_num_intervals_added``: number of intervals that were added.

    Args:
        topology: the network.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        # The other direction of each link; -1 without one.
        nodes = list(range(topology.num_nodes))
        reverse_link = np.full(topology.num_links, -1)
        for pair in topology.link_pairs():
            if len(pair) == 2:
                reverse_link[list(pair)] = pair[::-1]
        # An interface is a router with the link that leaves it and the link that enters it there;
        # external interfaces have neither.
        source = topology.link_source.tolist()
        target = topology.link_target.tolist()
        interface_keys = [
            *zip(source, range(len(source)), reverse_link.tolist(), strict=True),
            *zip(target, reverse_link.tolist(), range(len(target)), strict=True),
        ]
        self._counter_interface = [*interface_keys, *((node, -1, -1) for node in nodes * 2)]
        self._counter_kind = (
            ["sent"] * len(source) + ["received"] * len(target) + ["ingress"] * len(nodes)
        )
        self._counter_kind += ["egress"] * len(nodes)
        # Distinct interfaces; the sent counter of one direction and the received counter of the
        # other belong to the same one.
        self._interfaces = list(dict.fromkeys(self._counter_interface))
        index_by_interface = {key: index for index, key in enumerate(self._interfaces)}
        self._interface_index = np.array(
            [index_by_interface[key] for key in self._counter_interface]
        )
        self._times_blamed = np.zeros(len(self._counter_interface), dtype=np.int64)
        self._num_blamed_intervals = np.zeros(len(self._interfaces), dtype=np.int64)
        self._counted_sum = np.zeros(len(self._interfaces))
        self._repaired_sum = np.zeros(len(self._interfaces))
        self._num_intervals_added = 0

    def add(self, readings: Readings, repaired: Repaired) -> None:
        """Add the blamed counters of an interval.

        Args:
            readings: the counters.
            repaired: the repaired counters of the same interval.
        """
        num_links = self._topology.num_links
        counters = np.concatenate(
            [readings.sent, readings.received, readings.ingress, readings.egress]
        )
        is_blamed = np.concatenate(
            [repaired.blamed_sent, repaired.blamed_received, repaired.blamed_external]
        )
        # Both counters of a link have the same repaired value.
        repaired_values = np.concatenate([repaired.values[:num_links], repaired.values])
        # Count intervals by counter and by interface, and sum the blamed rates by interface.
        self._num_intervals_added += 1
        self._times_blamed += is_blamed
        self._num_blamed_intervals[np.unique(self._interface_index[is_blamed])] += 1
        np.add.at(self._counted_sum, self._interface_index[is_blamed], counters[is_blamed])
        np.add.at(self._repaired_sum, self._interface_index[is_blamed], repaired_values[is_blamed])

    def rows(
        self,
        link_interfaces: Mapping[str, Sequence[str]] | None = None,
        external: Mapping[str, Sequence[str]] | None = None,
    ) -> list[NamedCounter]:
        """Return the interfaces with blamed counters, those of most intervals first.

        Args:
            link_interfaces: names of the interfaces of each link, by the name of the link that
                leaves the router.
            external: names of the external interfaces of each router, by name of the router.
        """
        topology = self._topology
        link_names = self._topology.link_names()
        result = list[NamedCounter]()
        # Interfaces in order of blamed intervals, up to the first one without any.
        for index in np.argsort(-self._num_blamed_intervals, kind="stable").tolist():
            if not self._num_blamed_intervals[index]:
                break
            # Names of the interface in the table, else of the neighbour.
            router, link_out, link_in = self._interfaces[index]
            router_name = topology.node_names[router]
            if link_out < 0 and link_in < 0:
                table_names = (external or {}).get(router_name, ())
                default_name = EXTERNAL
            else:
                table_names = (
                    (link_interfaces or {}).get(link_names[link_out], ()) if link_out >= 0 else ()
                )
                default_name = (
                    link_names[link_out].partition("->")[2]
                    if link_out >= 0
                    else f"from {link_names[link_in]}"
                )
            # Blamed counters of the interface.
            blamed_counters = np.flatnonzero(
                (self._interface_index == index) & (self._times_blamed > 0)
            ).tolist()
            repaired_sum = self._repaired_sum[index]
            result.append(
                NamedCounter(
                    router=router_name,
                    interface=" + ".join(table_names) or default_name,
                    kind=" and ".join(self._counter_kind[row] for row in blamed_counters),
                    share=float(self._num_blamed_intervals[index]) / self._num_intervals_added,
                    ratio=float(self._counted_sum[index] / repaired_sum)
                    if repaired_sum > 0
                    else np.nan,
                )
            )
        return result
