"""Router configuration of SR policies: FRR, Cisco IOS-XR, Juniper Junos, and JSON in the terms of
RFC 9256.

A policy is identified by headend, colour and endpoint.  Its endpoint is the loopback of the target,
and its segment lists are stacks of MPLS labels.  The label of a node segment is the first label of
the global block (SRGB) of the router that reads it (the headend for the first label, the end of the
previous segment for the others) plus the SID of the node.  Adjacency labels are 15000 plus the
index of the link, and must be configured on the routers, which otherwise choose their own.  Weights
of lists are integers.

FRR's pathd uses one list at a time: split demands are rejected there, since further lists would be
backups only.  Transit policies are written for IOS-XR, whose ``autoroute`` steers the traffic
crossing a router.  The texts follow FRR's user guide (pathd), Cisco's *Segment Routing
Configuration Guide* and Juniper's reference of ``protocols source-packet-routing``; FRR's is loaded
by ``vtysh -C`` in tests, the others are compared with examples.  Entry points:
:func:`write_sr_policies`, :func:`to_json`, :func:`configuration`.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from teal.errors import InputError, listed
from teal.formats.routers import Router, Routers
from teal.network import Topology
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.runtime.storage import atomic_file

# Usual first label of a router's local block (SRLB), which ends below the global one.
SRLB_BASE = 15_000
# Colour of all policies.
COLOUR = 100
# Sum of the weights of a candidate path.
_WEIGHT_SUM = 1_000
# Preference of the candidate path, arbitrary since a policy has only one.
_PREFERENCE = 100


def default_routers(topology: Topology, algorithm: int = 0) -> Routers:
    """Return a default table of routers, without addresses.

    The SID of a router is the index of its node; in a flexible algorithm it is N plus the index.

    Args:
        topology: the network of N nodes.
        algorithm: number of the flexible algorithm; 0 for none.
    """
    nodes = topology.num_nodes
    return Routers(
        [
            Router(
                name, sid=index, algorithm_sids=((algorithm, nodes + index),) if algorithm else ()
            )
            for index, name in enumerate(topology.node_names)
        ],
        topology.name,
    )


def weights(lists: tuple[SegmentList, ...]) -> list[int]:
    """Return the integer weights of the segment lists of a policy, in proportion to their split
    ratios.

    Each is at least 1, and the sum is about 1,000.
    """
    return [max(1, round(segment_list.share * _WEIGHT_SUM)) for segment_list in lists]


def labels(
    topology: Topology,
    segment_list: SegmentList,
    source: int,
    target: int,
    routers: Routers,
    algorithm: int = 0,
) -> list[tuple[bool, int, int]]:
    """Return the segments of a list with their MPLS labels.

    Args:
        topology: the network.
        segment_list: the list.
        source: first node.
        target: last node.
        routers: table with SIDs.
        algorithm: number of the flexible algorithm of the node SIDs; 0 for the IGP itself.

    Returns:
        for each segment: whether it is a node segment, index of the node or link, and label.

    Raises:
        InputError: the label of an adjacency is in a global block.
    """
    # Walk over the stops of the list, then the target: a stop is a node and, for an adjacency
    # segment, the link into it (else -1).
    node_names = topology.node_names
    segments = list[tuple[bool, int, int]]()
    current_node = source
    for next_stop, link in (*segment_list.stops, (target, -1)):
        # A node segment to the stop, or to the start of the adjacency link.
        segment_end = next_stop if link < 0 else int(topology.link_source[link])
        if segment_end != current_node:
            segments.append(
                (
                    True,
                    segment_end,
                    routers[node_names[current_node]].srgb
                    + _required_sid(routers[node_names[segment_end]], algorithm),
                )
            )
        # The adjacency segment.
        if link >= 0:
            if SRLB_BASE + link >= min(router.srgb for router in routers.values()):
                raise InputError.invalid(
                    routers.where,
                    "srgb",
                    f"a global block contains the adjacency label {SRLB_BASE + link} "
                    f"({SRLB_BASE} + index of the link)",
                    "use global blocks above all adjacency labels",
                )
            segments.append((False, link, SRLB_BASE + link))
        current_node = next_stop
    return segments


def _required_sid(router: Router, algorithm: int) -> int:
    """Return the SID of a router in an algorithm; ``check_routers`` has made sure that it
    exists.
    """
    sid = router.sid_of(algorithm)
    assert sid is not None, "check_routers was not called"
    return sid


def to_json(
    topology: Topology, policies: SegmentPolicies, routers: Routers | None = None
) -> dict[str, Any]:
    """Return policies as JSON: headend, colour, endpoint, and weighted lists of labels.

    Args:
        topology: the network.
        policies: segment lists.
        routers: table with SIDs; None for default ones.
    """
    routers = routers or default_routers(topology, policies.algorithm_number)
    return {
        "sr-policies": [
            _policy_json(topology, pair, policies, routers) for pair in sorted(policies.lists)
        ]
    }


def _policy_json(
    topology: Topology, pair: tuple[int, int], policies: SegmentPolicies, routers: Routers
) -> dict[str, Any]:
    """Return the policy of a pair of nodes as JSON, with one candidate path.

    Args:
        topology: the network.
        pair: indices of headend and endpoint.
        policies: segment lists.
        routers: table with SIDs and loopbacks.
    """
    source, target = pair
    lists = policies.lists[pair]
    names = topology.node_names
    algorithm = policies.algorithm_number
    # Loopbacks of headend and endpoint, where the table has them.
    addresses = {
        f"{role}-address": routers[names[node]].loopback
        for role, node in (("headend", source), ("endpoint", target))
        if routers[names[node]].loopback
    }
    # Weighted segment lists, with a label for each segment.
    segment_lists = [
        {
            "weight": weight,
            "segments": [
                {"type": "node", "node": names[index], "label": label}
                if is_node
                else {"type": "adjacency", "link": index, "label": label}
                for is_node, index, label in labels(
                    topology, segment_list, source, target, routers, algorithm
                )
            ],
        }
        for weight, segment_list in zip(weights(lists), lists, strict=True)
    ]
    return {
        "headend": names[source],
        "endpoint": names[target],
        "colour": COLOUR,
        **({"steers": "all traffic to the endpoint"} if policies.is_transit else {}),
        **({"algorithm": algorithm} if algorithm else {}),
        **addresses,
        "candidate-paths": [{"preference": _PREFERENCE, "segment-lists": segment_lists}],
    }


class _HeadendPolicy:
    """Policy of a headend, in the form that the writers of configuration need.

    Args:
        topology: the network.
        pair: indices of headend and endpoint.
        policies: segment lists.
        routers: table with SIDs and loopbacks.
        endpoint_name: name of the endpoint, in characters that every router accepts.

    Attributes:
        name: name of the policy.
        endpoint_router: router of the endpoint.
        endpoint: loopback of the endpoint.
        is_transit: whether the policy steers all traffic that crosses the headend.
        lists: name, weight and MPLS labels of each segment list.
    """

    def __init__(
        self,
        topology: Topology,
        pair: tuple[int, int],
        policies: SegmentPolicies,
        routers: Routers,
        endpoint_name: str,
    ) -> None:
        self.name = f"to-{endpoint_name}"
        self.endpoint_router = routers[topology.node_names[pair[1]]]
        self.endpoint = self.endpoint_router.loopback
        self.is_transit = policies.is_transit
        lists = policies.lists[pair]
        algorithm = policies.algorithm_number
        self.lists = [
            (
                f"{self.name}-{number}",
                weight,
                [
                    label
                    for _, _, label in labels(topology, segment_list, *pair, routers, algorithm)
                ],
            )
            for number, (weight, segment_list) in enumerate(
                zip(weights(lists), lists, strict=True), 1
            )
        ]


def _router_safe_names(names: Sequence[str]) -> list[str]:
    """Return unique names that every router accepts.

    Invalid characters become ``_``, and a name that has any also gets the suffix ``_INDEX``.
    """
    # Invalid characters become "_"; the index, and further "_" if needed, make the name unique.
    safe_names = list[str]()
    used_names = set(names)
    for index, name in enumerate(names):
        safe_name = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        if safe_name != name:
            safe_name = f"{safe_name}_{index}"
            while safe_name in used_names:
                safe_name += "_"
            used_names.add(safe_name)
        safe_names.append(safe_name)
    return safe_names


def _frr_iosxr_segment_lists(policies: list[_HeadendPolicy], end_line: str) -> list[str]:
    """Return the configuration lines of segment lists in the common syntax of FRR and IOS-XR.

    Args:
        policies: policies of one headend.
        end_line: line that ends a list: ``exit`` or ``!``.
    """
    # Labels have the indices 10, 20, 30, ...
    lines = ["segment-routing", " traffic-eng"]
    for name, _, label_stack in (entry for policy in policies for entry in policy.lists):
        lines.append(f"  segment-list {name}")
        lines += [
            f"   index {10 * hop} mpls label {label}" for hop, label in enumerate(label_stack, 1)
        ]
        lines.append(f"  {end_line}")
    return lines


def _frr_lines(policies: list[_HeadendPolicy]) -> list[str]:
    """Return the configuration lines of a headend in the syntax of FRR (pathd)."""
    lines = _frr_iosxr_segment_lists(policies, "exit")
    for policy in policies:
        lines += [f"  policy color {COLOUR} endpoint {policy.endpoint}", f"   name {policy.name}"]
        lines.append(
            f"   candidate-path preference {_PREFERENCE} name {policy.name} explicit segment-list "
            f"{policy.lists[0][0]}"
        )
        lines.append("  exit")
    return [*lines, " exit", "exit"]


def _iosxr_lines(policies: list[_HeadendPolicy]) -> list[str]:
    """Return the configuration lines of a headend in the syntax of Cisco IOS-XR."""
    # Segment lists, then each policy with its endpoint, the steering of transit traffic, and the
    # weighted lists of its candidate path.
    lines = _frr_iosxr_segment_lists(policies, "!")
    for policy in policies:
        prefix, family = prefix_of(policy.endpoint_router)
        lines += [
            f"  policy {policy.name}",
            f"   color {COLOUR} end-point {family} {policy.endpoint}",
        ]
        if policy.is_transit:
            lines += [
                "   autoroute",
                "    force-sr-include",
                f"    include {family} {prefix}",
                "   !",
            ]
        lines += ["   candidate-paths", f"    preference {_PREFERENCE}"]
        for name, weight, _ in policy.lists:
            lines += [f"     explicit segment-list {name}", f"      weight {weight}", "     !"]
        lines += ["    !", "   !", "  !"]
    return [*lines, " !", "!"]


def _junos_lines(policies: list[_HeadendPolicy]) -> list[str]:
    """Return the configuration lines of a headend in the syntax of Junos."""
    statement = "set protocols source-packet-routing"
    lines = []
    for policy in policies:
        for name, _, label_stack in policy.lists:
            lines += [
                f"{statement} segment-list {name} hop-{hop} label {label}"
                for hop, label in enumerate(label_stack, 1)
            ]
        lines += [
            f"{statement} source-routing-path {policy.name} to {policy.endpoint}",
            f"{statement} source-routing-path {policy.name} color {COLOUR}",
            *(
                f"{statement} source-routing-path {policy.name} primary {name} weight {weight}"
                for name, weight, _ in policy.lists
            ),
        ]
    return lines


# Function that writes the lines of a headend, by vendor.
_WRITERS: dict[str, Callable[[list[_HeadendPolicy]], list[str]]] = {
    "frr": _frr_lines,
    "iosxr": _iosxr_lines,
    "junos": _junos_lines,
}
# Prefix of comments by vendor.
_COMMENT_PREFIXES = {"frr": "!", "iosxr": "!", "junos": "#"}


def vendor_of(router: Router) -> str:
    """Return the vendor of a router: ``frr``, ``iosxr`` or ``junos``; frr if the table has none."""
    return router.vendor or "frr"


def prefix_of(router: Router) -> tuple[str, str]:
    """Return the prefix of a router's loopback, such as 10.0.0.1/32, and its family: ipv4 or
    ipv6.
    """
    family, bits = ("ipv6", 128) if ":" in router.loopback else ("ipv4", 32)
    return f"{router.loopback}/{bits}", family


def check_routers(
    path: Path, topology: Topology, routers: Routers | None, algorithms: Sequence[int] = (0,)
) -> None:
    """Raise InputError if the table of routers lacks a field that the output needs.

    A .json file needs SIDs, or no table at all; a .conf file needs SIDs and loopbacks.

    Args:
        path: output file.
        topology: the network.
        routers: table of routers; None for none.
        algorithms: numbers of the flexible algorithms with SIDs; 0 for the IGP itself.
    """
    is_configuration = path.suffix.lower() == ".conf"
    if routers is None:
        if is_configuration:
            raise InputError.invalid(
                "--out",
                "",
                "a .conf file needs a table of routers",
                "add --routers with loopback and sid of each router, or write a .json file",
            )
        return
    # Function that reads each required field of a router.
    required: dict[str, Callable[[Router], Any]] = {
        f"sid_{algorithm}" if algorithm else "sid": functools.partial(
            Router.sid_of, algorithm=algorithm
        )
        for algorithm in algorithms
    }
    if is_configuration:
        required["loopback"] = operator.attrgetter("loopback")
    for field, read_field in required.items():
        missing = [
            name
            for name in topology.node_names
            if name not in routers or read_field(routers[name]) in (None, "")
        ]
        if missing:
            raise InputError.invalid(
                routers.where, field, f"no value for {listed(missing)}; add it to the table"
            )


def configuration(
    topology: Topology, policies: SegmentPolicies, routers: Routers
) -> dict[str, str]:
    """Return the configuration of every headend, by name, in its vendor's format (FRR by default).

    Args:
        topology: the network.
        policies: segment lists.
        routers: table with loopback and SID of every router.

    Raises:
        InputError: a split demand on a router of FRR, a transit policy on one that is not IOS-XR,
            or labels of adjacencies inside a global block.
    """
    # Names of routers, and those that every vendor accepts in names of policies.
    names = topology.node_names
    safe_names = _router_safe_names(topology.node_names)
    # Transit policies need IOS-XR.
    non_iosxr_headends = sorted(
        {names[source] for source, _ in policies.lists if routers[names[source]].vendor != "iosxr"}
    )
    if policies.is_transit and non_iosxr_headends:
        raise InputError.invalid(
            "--out",
            "",
            f"only IOS-XR supports transit policies, not the routers {listed(non_iosxr_headends)}",
            "write a .json file",
        )
    # FRR cannot split a demand.
    split_headends = sorted(
        {
            names[source]
            for (source, _), lists in policies.lists.items()
            if len(lists) > 1 and vendor_of(routers[names[source]]) == "frr"
        }
    )
    if split_headends:
        raise InputError.invalid(
            "--out",
            "",
            "FRR uses one segment list of a policy at a time, but there are splits on "
            f"{listed(split_headends)}",
            "compute one list for each demand (teal segments --one-list), or write a .json file",
        )
    # Configuration of each headend.
    text_by_headend = {}
    for headend in sorted({source for source, _ in policies.lists}):
        headend_pairs = sorted(pair for pair in policies.lists if pair[0] == headend)
        headend_policies = [
            _HeadendPolicy(topology, pair, policies, routers, safe_names[pair[1]])
            for pair in headend_pairs
        ]
        text_by_headend[names[headend]] = (
            "\n".join(_WRITERS[vendor_of(routers[names[headend]])](headend_policies)) + "\n"
        )
    return text_by_headend


def write_sr_policies(
    path: Path, topology: Topology, policies: SegmentPolicies, routers: Routers | None = None
) -> None:
    """Write policies as JSON, or as configuration of all headends for a .conf file.

    Args:
        path: a .json or .conf file.
        topology: the network.
        policies: segment lists.
        routers: table with SIDs and loopbacks; None for default SIDs, .json only.

    Raises:
        InputError: a missing loopback or SID, or policies that a vendor does not support.
    """
    check_routers(path, topology, routers, (policies.algorithm_number,))
    if path.suffix.lower() == ".conf":
        assert routers is not None
        write_texts(path, configuration(topology, policies, routers), routers)
        return
    with atomic_file(path) as temporary:
        temporary.write_text(
            json.dumps(to_json(topology, policies, routers), indent=1) + "\n", encoding="utf-8"
        )


def write_texts(path: Path, texts: Mapping[str, str], routers: Routers) -> None:
    """Write the configuration of routers to one file, each under a comment with the router's name.

    Args:
        path: a .conf file.
        texts: configuration of each router, by name.
        routers: table with the vendor of each router.
    """
    with atomic_file(path) as temporary:
        text = "".join(
            f"{_COMMENT_PREFIXES[vendor_of(routers[name])]} {name}\n{text_of_router}"
            for name, text_of_router in texts.items()
        )
        temporary.write_text(text, encoding="utf-8")
