"""The counters that contradict the others, over all intervals: a row a router and interface."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from teal.network.topology import Topology
from teal_ip.counters.repair import Repaired
from teal_ip.readings.readings import Readings

EXTERNAL = "external"  # interface of what enters and leaves, where no table says its names


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedCounter:
    """An interface of which a counter was named.

    Attributes:
        router: name.
        interface: its names in the table of interfaces, else the neighbour, or external.
        kind: sent, received, or both, of a link; ingress, egress, or both, of what enters and
            leaves.
        share: share of the intervals in which one of them was named.
        ratio: what they counted in these intervals over what the others say; NaN where that is
            nothing.
    """

    router: str
    interface: str
    kind: str
    share: float
    ratio: float


class NamedCounters:
    """A collection of them, interval by interval.

    Args:
        topology: the network.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        nodes, back = list(range(topology.num_nodes)), np.full(topology.num_links, -1)
        for pair in topology.link_pairs():
            if len(pair) == 2:
                back[list(pair)] = pair[::-1]
        # A counter is at a router: of the link that leaves it (-1 for none), of the one that
        # enters, or external.
        source, target = topology.link_source.tolist(), topology.link_target.tolist()
        links = [
            *zip(source, range(len(source)), back.tolist(), strict=True),
            *zip(target, back.tolist(), range(len(target)), strict=True),
        ]
        self._of = [*links, *((node, -1, -1) for node in nodes * 2)]
        self._kind = ["sent"] * len(source) + ["received"] * len(target) + ["ingress"] * len(nodes)
        self._kind += ["egress"] * len(nodes)
        self._interfaces = list(dict.fromkeys(self._of))
        number = {one: place for place, one in enumerate(self._interfaces)}
        self._place = np.array([number[one] for one in self._of])
        self._named = np.zeros(len(self._of), dtype=np.int64)
        self._intervals = np.zeros(len(self._interfaces), dtype=np.int64)
        self._counted, self._right = (
            np.zeros(len(self._interfaces)),
            np.zeros(len(self._interfaces)),
        )
        self._total = 0

    def add(self, readings: Readings, repaired: Repaired) -> None:
        """Note those of an interval."""
        links = self._topology.num_links
        counted = np.concatenate(
            [readings.sent, readings.received, readings.ingress, readings.egress]
        )
        is_named = np.concatenate(
            [repaired.blamed_sent, repaired.blamed_received, repaired.blamed_external]
        )
        right = np.concatenate([repaired.values[:links], repaired.values])
        self._total += 1
        self._named += is_named
        self._intervals[np.unique(self._place[is_named])] += 1
        np.add.at(self._counted, self._place[is_named], counted[is_named])
        np.add.at(self._right, self._place[is_named], right[is_named])

    def rows(
        self,
        of_link: Mapping[str, Sequence[str]] | None = None,
        external: Mapping[str, Sequence[str]] | None = None,
    ) -> list[NamedCounter]:
        """All of them, those of most intervals first.

        Args:
            of_link: names of the interfaces of each link, by the name of the link that leaves the
                router.
            external: names of the external interfaces of each router.
        """
        topology, names, result = self._topology, self._topology.link_names(), list[NamedCounter]()
        for place in np.argsort(-self._intervals, kind="stable").tolist():
            if not self._intervals[place]:
                break
            router, out, into = self._interfaces[place]
            name = topology.node_names[router]
            if out < 0 and into < 0:
                known, usual = (external or {}).get(name, ()), EXTERNAL
            else:
                known = (of_link or {}).get(names[out], ()) if out >= 0 else ()
                usual = names[out].partition("->")[2] if out >= 0 else f"from {names[into]}"
            own = np.flatnonzero((self._place == place) & (self._named > 0)).tolist()
            right = self._right[place]
            result.append(
                NamedCounter(
                    router=name,
                    interface=" + ".join(known) or usual,
                    kind=" and ".join(self._kind[one] for one in own),
                    share=float(self._intervals[place]) / self._total,
                    ratio=float(self._counted[place] / right) if right > 0 else np.nan,
                )
            )
        return result
