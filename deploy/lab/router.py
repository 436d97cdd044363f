"""What a controller needs of routers: the topology that they see, their counters, and a way to
install splits.

These three functions are all that has to be replaced for other routers (docs/lab.md says by what).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from deploy.lab.network import POLICY_TABLE, Lab, ip_batch, run

# ("node", its number) or ("adjacency", number of the link), in order.
Segments = tuple[tuple[str, int], ...]
_MAX_WEIGHT = 255  # of a next hop


class Counts(NamedTuple):
    """Byte counters of all interfaces at one moment.

    Attributes:
        time: seconds since 1970.
        sent: (E,) bytes that each link's interface sent.
        received: (E,) bytes that the interface at the other end received.
        ingress: (N,) bytes that each router received from its hosts.
        egress: (N,) bytes that it sent to them.
        dropped: packets that all interfaces and their queues dropped.
    """

    time: float
    sent: np.ndarray
    received: np.ndarray
    ingress: np.ndarray
    egress: np.ndarray
    dropped: int


def database(lab: Lab, node: int = 0) -> object:
    """The link-state database, as one router holds it: JSON of
    ``show ipv6 ospf6 database router detail``.
    """
    return lab.show(node, "show ipv6 ospf6 database router detail")


def counters(lab: Lab) -> Counts:
    """Read the interfaces of all routers."""
    topology = lab.topology
    bytes_of: dict[tuple[int, str], tuple[int, int]] = {}
    dropped = 0
    for node in range(topology.num_nodes):
        for one in json.loads(run(["ip", "-n", lab.namespace(node), "-s", "-j", "link"])):
            stats = one["stats64"]
            bytes_of[node, one["ifname"]] = stats["tx"]["bytes"], stats["rx"]["bytes"]
            dropped += stats["tx"]["dropped"] + stats["rx"]["dropped"]
        for one in json.loads(run(["tc", "-n", lab.namespace(node), "-s", "-j", "qdisc"]) or "[]"):
            dropped += int(one.get("drops", 0))
    ends = list(zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True))
    waiting: dict[tuple[int, int], list[int]] = {}
    for link, end in enumerate(ends):
        waiting.setdefault(end, []).append(link)
    seen: dict[tuple[int, int], int] = {}
    received = np.zeros(topology.num_links)
    for link, (s, t) in enumerate(ends):
        number = seen[s, t] = seen.get((s, t), -1) + 1
        back = lab.interfaces[waiting[t, s][number]]
        received[link] = bytes_of[t, back][1]
    sent = np.array(
        [bytes_of[s, lab.interfaces[link]][0] for link, (s, _) in enumerate(ends)], dtype=np.float64
    )
    ingress = np.array(
        [bytes_of[node, "ext"][1] for node in range(topology.num_nodes)], dtype=np.float64
    )
    egress = np.array(
        [bytes_of[node, "ext"][0] for node in range(topology.num_nodes)], dtype=np.float64
    )
    return Counts(time.time(), sent, received, ingress, egress, dropped)


def install(lab: Lab, splits: Mapping[tuple[int, int], Sequence[tuple[float, Segments]]]) -> None:
    """Install segment lists with weights, each demand in one step: no packet is lost while a route
    is replaced.

    Args:
        lab: the routers.
        splits: for each source and target the lists and their shares; an empty sequence leaves it
            to the IGP.
    """
    lines: dict[int, list[str]] = {}
    for (source, target), lists in splits.items():
        commands = lines.setdefault(source, [])
        if not lists:
            commands.append(f"route flush table {POLICY_TABLE} {lab.hosts(target)}")
            continue
        largest = max(share for share, _ in lists)
        hops = []
        for share, segments in lists:
            weight = max(1, min(_MAX_WEIGHT, round(_MAX_WEIGHT * share / largest)))
            sids = [
                lab.node_segment(n) if kind == "node" else lab.adjacency_segment(n)
                for kind, n in segments
            ]
            last = lab.last_segment(target)
            if segments and segments[-1] == ("node", target):
                sids.pop()
            # The kernel wants a gateway; after encapsulation it looks the first segment up,
            # whatever the gateway is.
            hops.append(
                f"nexthop encap seg6 mode encap.red segs {','.join([*sids, last])} via fe80::1 dev "
                f"ext weight {weight}"
            )
        commands.append(f"route replace table {POLICY_TABLE} {lab.hosts(target)} {' '.join(hops)}")
    for source, commands in lines.items():
        ip_batch(lab.namespace(source), commands)
