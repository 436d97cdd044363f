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
    """An interface with counters that contradict the others.

    Attributes:
        router: name of the router.
        interface: its names in the table of interfaces, else the neighbour, or external.
        kind: sent, received, or both, of a link; ingress, egress, or both, of external interfaces.
        share: share of the intervals in which one of its counters was named.
        ratio: counted traffic in these intervals over the repaired one; NaN if the latter is 0.
    """

    router: str
    interface: str
    kind: str
    share: float
    ratio: float


class NamedCounters:
    """Accumulator of contradicting counters over intervals.

    Args:
        topology: the network.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        nodes = list(range(topology.num_nodes))
        reverse_link = np.full(topology.num_links, -1)
        for pair in topology.link_pairs():
            if len(pair) == 2:
                reverse_link[list(pair)] = pair[::-1]
        # A counter belongs to a router and a link that leaves it (-1 for none), one that enters it
        # (-1 for none), or neither (external).
        source = topology.link_source.tolist()
        target = topology.link_target.tolist()
        links = [
            *zip(source, range(len(source)), reverse_link.tolist(), strict=True),
            *zip(target, reverse_link.tolist(), range(len(target)), strict=True),
        ]
        self._interface_of_counter = [*links, *((node, -1, -1) for node in nodes * 2)]
        self._kind = ["sent"] * len(source) + ["received"] * len(target) + ["ingress"] * len(nodes)
        self._kind += ["egress"] * len(nodes)
        self._interfaces = list(dict.fromkeys(self._interface_of_counter))
        index_by_interface = {key: index for index, key in enumerate(self._interfaces)}
        self._interface_index = np.array(
            [index_by_interface[key] for key in self._interface_of_counter]
        )
        self._num_blamed = np.zeros(len(self._interface_of_counter), dtype=np.int64)
        self._intervals = np.zeros(len(self._interfaces), dtype=np.int64)
        self._counted = np.zeros(len(self._interfaces))
        self._repaired = np.zeros(len(self._interfaces))
        self._total = 0

    def add(self, readings: Readings, repaired: Repaired) -> None:
        """Add the blamed counters of an interval."""
        links = self._topology.num_links
        counted = np.concatenate(
            [readings.sent, readings.received, readings.ingress, readings.egress]
        )
        is_blamed = np.concatenate(
            [repaired.blamed_sent, repaired.blamed_received, repaired.blamed_external]
        )
        # ``values`` has one entry a link, for both of its counters, then ingress and egress.
        repaired_values = np.concatenate([repaired.values[:links], repaired.values])
        self._total += 1
        self._num_blamed += is_blamed
        self._intervals[np.unique(self._interface_index[is_blamed])] += 1
        np.add.at(self._counted, self._interface_index[is_blamed], counted[is_blamed])
        np.add.at(self._repaired, self._interface_index[is_blamed], repaired_values[is_blamed])

    def rows(
        self,
        link_interfaces: Mapping[str, Sequence[str]] | None = None,
        external: Mapping[str, Sequence[str]] | None = None,
    ) -> list[NamedCounter]:
        """Return all named counters, those of most intervals first.

        Args:
            link_interfaces: names of the interfaces of each link, by the name of the link that
                leaves the router.
            external: names of the external interfaces of each router.
        """
        topology = self._topology
        names = self._topology.link_names()
        result = list[NamedCounter]()
        for index in np.argsort(-self._intervals, kind="stable").tolist():
            if not self._intervals[index]:
                break
            # Names of the interface in the table, or the neighbour's.
            router, link_out, link_in = self._interfaces[index]
            name = topology.node_names[router]
            if link_out < 0 and link_in < 0:
                table_names = (external or {}).get(name, ())
                default_name = EXTERNAL
            else:
                table_names = (
                    (link_interfaces or {}).get(names[link_out], ()) if link_out >= 0 else ()
                )
                default_name = (
                    names[link_out].partition("->")[2]
                    if link_out >= 0
                    else f"from {names[link_in]}"
                )
            # Named counters of the interface.
            kinds = np.flatnonzero(
                (self._interface_index == index) & (self._num_blamed > 0)
            ).tolist()
            repaired = self._repaired[index]
            result.append(
                NamedCounter(
                    router=name,
                    interface=" + ".join(table_names) or default_name,
                    kind=" and ".join(self._kind[row] for row in kinds),
                    share=float(self._intervals[index]) / self._total,
                    ratio=float(self._counted[index] / repaired) if repaired > 0 else np.nan,
                )
            )
        return result
