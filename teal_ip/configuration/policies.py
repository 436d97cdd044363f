"""Router configuration of SR policies: FRR, Cisco IOS-XR and Juniper Junos, and JSON in RFC 9256's
terms.

A policy is identified by headend, colour and endpoint.  Its endpoint is the loopback of the target,
and its segment lists are stacks of MPLS labels.  The label of a node segment is the first label of
the global block (SRGB) of the router that reads it (the headend for the first label, the end of the
previous segment for the others) plus the index (SID) of the node.  Adjacency SIDs are 15000 plus
the index of the link, and must be configured accordingly: routers otherwise choose their own
labels.  Weights of lists are integers.

FRR's pathd uses one list at a time: split demands are rejected there, not silently turned into
backups.  Transit policies are written for IOS-XR, whose ``autoroute`` steers the traffic crossing a
router.  The texts follow FRR's user guide (pathd), Cisco's *Segment Routing Configuration Guide*
and Juniper's reference of ``protocols source-packet-routing``; FRR's is loaded by ``vtysh -C`` in
tests, the others are compared with examples.  Entry points: :func:`write_sr_policies`,
:func:`to_json`, :func:`configuration`.
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
    """Routers whose SID is the index of their node, in the usual block, without addresses.

    In a flexible algorithm it is N plus the index.
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
    """Integer weights, at least 1, proportional to the shares; they sum to 1,000 if possible."""
    return [max(1, round(segment_list.share * _WEIGHT_SUM)) for segment_list in lists]


def labels(
    topology: Topology,
    segment_list: SegmentList,
    source: int,
    target: int,
    routers: Routers,
    algorithm: int = 0,
) -> list[tuple[bool, int, int]]:
    """Return the segments of a list: whether it is a node segment, the index of node or link, and
    the label.

    Args:
        topology: the network.
        segment_list: the list.
        source: first node.
        target: last node.
        routers: table with SIDs.
        algorithm: number of the flexible algorithm of the node SIDs; 0 for the IGP itself.
    """
    names = topology.node_names
    result = list[tuple[bool, int, int]]()
    node = source
    for stop, link in (*segment_list.stops, (target, -1)):
        end = stop if link < 0 else int(topology.link_source[link])
        if end != node:
            result.append(
                (True, end, routers[names[node]].srgb + _sid(routers[names[end]], algorithm))
            )
        if link >= 0:
            if SRLB_BASE + link >= min(router.srgb for router in routers.values()):
                expected = (
                    f"a global block above the labels of adjacencies, {SRLB_BASE} + number of the "
                    "link"
                )
                raise InputError(routers.where, "srgb", expected, SRLB_BASE + link)
            result.append((False, link, SRLB_BASE + link))
        node = stop
    return result


def _sid(router: Router, algorithm: int) -> int:
    sid = router.sid_of(algorithm)
    assert sid is not None, "check_routers was not called"
    return sid


def to_json(
    topology: Topology, policies: SegmentPolicies, routers: Routers | None = None
) -> dict[str, Any]:
    """Convert policies to JSON: colour, endpoint, candidate paths of weighted label lists."""
    routers = routers or default_routers(topology, policies.algorithm_number)
    return {
        "sr-policies": [
            _policy_json(topology, pair, policies, routers) for pair in sorted(policies.lists)
        ]
    }


def _policy_json(
    topology: Topology, pair: tuple[int, int], policies: SegmentPolicies, routers: Routers
) -> dict[str, Any]:
    """JSON of the policy of a pair of nodes, with one candidate path."""
    source, target = pair
    lists = policies.lists[pair]
    names = topology.node_names
    algorithm = policies.algorithm_number
    addresses = {
        f"{end}-address": routers[names[node]].loopback
        for end, node in (("headend", source), ("endpoint", target))
        if routers[names[node]].loopback
    }
    # Weighted lists of labels.
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


class _Policy:
    """One policy of a headend: names, endpoint, and for each list its weight and labels."""

    def __init__(
        self,
        topology: Topology,
        pair: tuple[int, int],
        policies: SegmentPolicies,
        routers: Routers,
        target: str,
    ) -> None:
        self.name = f"to-{target}"
        self.end = routers[topology.node_names[pair[1]]]
        self.endpoint = self.end.loopback
        self.is_transit = policies.is_transit
        lists = policies.lists[pair]
        algorithm = policies.algorithm_number
        self.lists = [
            (
                f"{self.name}-{number}",
                weight,
                [label for _, _, label in labels(topology, segments, *pair, routers, algorithm)],
            )
            for number, (weight, segments) in enumerate(zip(weights(lists), lists, strict=True), 1)
        ]


def _router_safe_names(names: Sequence[str]) -> list[str]:
    """Return unique words for names that every router accepts: other characters become _, and an
    index follows.
    """
    words = list[str]()
    used_words = set(names)
    for index, name in enumerate(names):
        word = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        if word != name:
            word = f"{word}_{index}"
            while word in used_words:
                word += "_"
            used_words.add(word)
        words.append(word)
    return words


def _segment_lists(policies: list[_Policy], end: str) -> list[str]:
    """Format lists in the syntax shared by FRR and IOS-XR; ``end`` is the line that ends one."""
    lines = ["segment-routing", " traffic-eng"]
    for name, _, stack in (entry for policy in policies for entry in policy.lists):
        lines.append(f"  segment-list {name}")
        lines += [f"   index {10 * hop} mpls label {label}" for hop, label in enumerate(stack, 1)]
        lines.append(f"  {end}")
    return lines


def _frr(policies: list[_Policy]) -> list[str]:
    lines = _segment_lists(policies, "exit")
    for policy in policies:
        lines += [f"  policy color {COLOUR} endpoint {policy.endpoint}", f"   name {policy.name}"]
        lines.append(
            f"   candidate-path preference {_PREFERENCE} name {policy.name} explicit segment-list "
            f"{policy.lists[0][0]}"
        )
        lines.append("  exit")
    return [*lines, " exit", "exit"]


def _iosxr(policies: list[_Policy]) -> list[str]:
    lines = _segment_lists(policies, "!")
    for policy in policies:
        prefix, kind = prefix_of(policy.end)
        lines += [
            f"  policy {policy.name}",
            f"   color {COLOUR} end-point {kind} {policy.endpoint}",
        ]
        if policy.is_transit:
            lines += [
                "   autoroute",
                "    force-sr-include",
                f"    include {kind} {prefix}",
                "   !",
            ]
        lines += ["   candidate-paths", f"    preference {_PREFERENCE}"]
        for name, weight, _ in policy.lists:
            lines += [f"     explicit segment-list {name}", f"      weight {weight}", "     !"]
        lines += ["    !", "   !", "  !"]
    return [*lines, " !", "!"]


def _junos(policies: list[_Policy]) -> list[str]:
    root = "set protocols source-packet-routing"
    lines = []
    for policy in policies:
        for name, _, stack in policy.lists:
            lines += [
                f"{root} segment-list {name} hop-{hop} label {label}"
                for hop, label in enumerate(stack, 1)
            ]
        lines += [
            f"{root} source-routing-path {policy.name} to {policy.endpoint}",
            f"{root} source-routing-path {policy.name} color {COLOUR}",
            *(
                f"{root} source-routing-path {policy.name} primary {name} weight {weight}"
                for name, weight, _ in policy.lists
            ),
        ]
    return lines


_WRITERS: dict[str, Callable[[list[_Policy]], list[str]]] = {
    "frr": _frr,
    "iosxr": _iosxr,
    "junos": _junos,
}
# Prefixes of comments.
_COMMENTS = {"frr": "!", "iosxr": "!", "junos": "#"}


def vendor_of(router: Router) -> str:
    """Vendor whose format a router uses: FRR by default."""
    return router.vendor or "frr"


def prefix_of(router: Router) -> tuple[str, str]:
    """Prefix of the loopback, such as 10.0.0.1/32, and its address family."""
    family, bits = ("ipv6", 128) if ":" in router.loopback else ("ipv4", 32)
    return f"{router.loopback}/{bits}", family


def check_routers(
    path: Path, topology: Topology, routers: Routers | None, algorithms: Sequence[int] = (0,)
) -> None:
    """Raise InputError if the table lacks fields that a file needs: SIDs for JSON, also loopbacks
    for a .conf file.

    JSON without a table uses the SIDs of :func:`default_routers`.
    """
    is_configuration = path.suffix.lower() == ".conf"
    if routers is None:
        if is_configuration:
            expected = "--routers, with loopback and sid of each, for a .conf file"
            raise InputError("--out", "", expected, "no table of routers")
        return
    required: dict[str, Callable[[Router], Any]] = {
        f"sid_{algorithm}" if algorithm else "sid": functools.partial(
            Router.sid_of, algorithm=algorithm
        )
        for algorithm in algorithms
    }
    if is_configuration:
        required["loopback"] = operator.attrgetter("loopback")
    for field, value in required.items():
        missing = [
            name
            for name in topology.node_names
            if name not in routers or value(routers[name]) in (None, "")
        ]
        if missing:
            raise InputError(
                routers.where,
                field,
                "one of every router of the network",
                f"none of {listed(missing)}",
            )


def configuration(
    topology: Topology, policies: SegmentPolicies, routers: Routers
) -> dict[str, str]:
    """Return the configuration of every headend, by name, in its vendor's format (FRR by default).

    The table must satisfy :func:`check_routers`.

    Raises:
        InputError: a split demand on a router of FRR, a transit policy on one that is not IOS-XR,
            or labels of adjacencies inside a global block.
    """
    names = topology.node_names
    words = _router_safe_names(topology.node_names)
    unsupported = sorted(
        {names[source] for source, _ in policies.lists if routers[names[source]].vendor != "iosxr"}
    )
    if policies.is_transit and unsupported:
        raise InputError(
            "--out",
            "",
            "transit policies on routers of IOS-XR alone; or .json",
            listed(unsupported),
        )
    split = sorted(
        {
            names[source]
            for (source, _), lists in policies.lists.items()
            if len(lists) > 1 and vendor_of(routers[names[source]]) == "frr"
        }
    )
    if split:
        expected = (
            "one list for each demand (--one-list), since FRR uses one list of a policy at a time; "
            "or .json"
        )
        raise InputError("--out", "", expected, f"splits on {listed(split)}")
    texts = {}
    for headend in sorted({source for source, _ in policies.lists}):
        pairs = sorted(pair for pair in policies.lists if pair[0] == headend)
        headend_policies = [
            _Policy(topology, pair, policies, routers, words[pair[1]]) for pair in pairs
        ]
        texts[names[headend]] = (
            "\n".join(_WRITERS[vendor_of(routers[names[headend]])](headend_policies)) + "\n"
        )
    return texts


def write_sr_policies(
    path: Path, topology: Topology, policies: SegmentPolicies, routers: Routers | None = None
) -> None:
    """Write the JSON, or for a .conf file the configuration of all headends, each under a comment
    with its name.

    Raises:
        InputError: the errors of :func:`check_routers` and :func:`configuration`.
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
    """Write the configuration of routers to one file, each under a comment with its name."""
    with atomic_file(path) as temporary:
        text = "".join(
            f"{_COMMENTS[vendor_of(routers[name])]} {name}\n{text_of_router}"
            for name, text_of_router in texts.items()
        )
        temporary.write_text(text, encoding="utf-8")
