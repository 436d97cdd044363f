"""SR policies as routers take them: configuration of FRR, Cisco IOS-XR and Juniper Junos, and JSON in RFC 9256's terms.

A policy is known by headend, colour and endpoint.  Its endpoint is the loopback of the target, and its segment lists
are stacks of MPLS labels.  The label of a node segment is the first label of the global block (SRGB) of the router that
reads it, which is the headend for the first label and the end of the segment before for the others, plus the index
(SID) of the node.  Adjacency SIDs are 15000 plus the number of the link, to be configured likewise: routers otherwise
choose labels of their own.  Weights of lists are whole numbers.

FRR's pathd uses one list at a time: demands that are split are refused there, not silently turned into backups.  The
texts follow FRR's user guide (pathd), Cisco's *Segment Routing Configuration Guide* and Juniper's reference of
``protocols source-packet-routing``; FRR's is loaded by ``vtysh -C`` in tests, the others are compared with examples.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.formats.routers import SRGB_BASE, Router, Routers
from teal.network import Topology
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.runtime.storage import atomic_file

SRLB_BASE = 15_000  # the usual first label of a router's own block, which ends below the global one
COLOUR = 100  # of all policies
_WEIGHT_SUM = 1_000  # sum of the weights of a candidate path
_PREFERENCE = 100  # of the candidate path
_MAX_NAMED = 5  # routers in a message


def default_routers(topology: Topology) -> Routers:
    """Routers whose SID is the number of their node, in the usual block, without addresses."""
    return Routers([Router(name, sid=number) for number, name in enumerate(topology.node_names)], topology.name)


def weights(lists: tuple[SegmentList, ...]) -> list[int]:
    """Whole-number weights at least 1 that sum to 1,000 where they can, in proportion to the shares."""
    return [max(1, round(one.share * _WEIGHT_SUM)) for one in lists]


def labels(
    topology: Topology, one: SegmentList, source: int, target: int, routers: Routers
) -> list[tuple[bool, int, int]]:
    """The segments of a list: whether it is a node's, the number of the node or link, and the label."""
    names, result, here = topology.node_names, list[tuple[bool, int, int]](), source
    for stop, link in (*one.stops, (target, -1)):
        end = stop if link < 0 else int(topology.link_source[link])
        if end != here:
            result.append((True, end, routers[names[here]].srgb + _sid(routers[names[end]])))
        if link >= 0:
            if SRLB_BASE + link >= min(each.srgb for each in routers.values()):
                expected = f"a global block above the labels of adjacencies, {SRLB_BASE} + number of the link"
                raise InputError(routers.where, "srgb", expected, SRLB_BASE + link)
            result.append((False, link, SRLB_BASE + link))
        here = stop
    return result


def _sid(router: Router) -> int:
    assert router.sid is not None, "check_routers was not called"
    return router.sid


def to_json(topology: Topology, policies: SegmentPolicies, routers: Routers | None = None) -> dict[str, Any]:
    """Policies with colour, endpoint, and candidate paths of weighted lists of labels.

    Raises:
        InputError: a router without SID.
    """
    names, routers = topology.node_names, routers or default_routers(topology)
    check_routers(topology, routers, loopbacks=False)
    return {"sr-policies": [
        {
            "headend": names[source], "endpoint": names[target], "colour": COLOUR,
            **({"endpoint-address": routers[names[target]].loopback} if routers[names[target]].loopback else {}),
            "candidate-paths": [{
                "preference": _PREFERENCE,
                "segment-lists": [
                    {
                        "weight": weight,
                        "segments": [
                            {"type": "node", "node": names[number], "label": label} if is_node else
                            {"type": "adjacency", "link": number, "label": label}
                            for is_node, number, label in labels(topology, one, source, target, routers)
                        ],
                    }
                    for weight, one in zip(weights(lists), lists, strict=True)
                ],
            }],
        }
        for (source, target), lists in sorted(policies.lists.items())
    ]}  # fmt: skip


class _Policy:
    """One policy of a headend: names, endpoint, and for each list its weight and labels."""

    def __init__(
        self, topology: Topology, pair: tuple[int, int], lists: tuple[SegmentList, ...], routers: Routers
    ) -> None:
        target = topology.node_names[pair[1]]
        self.name, self.endpoint = f"to-{_word(target, pair[1])}", routers[target].loopback
        self.lists = [
            (f"{self.name}-{number}", weight, [label for _, _, label in labels(topology, one, *pair, routers)])
            for number, (weight, one) in enumerate(zip(weights(lists), lists, strict=True), 1)
        ]


def _word(name: str, number: int) -> str:
    """A name that is one word for every router: other characters become _, and the number of the node is added."""
    word = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return word if word == name else f"{word}_{number}"


def _frr(policies: list[_Policy]) -> list[str]:
    lines = ["segment-routing", " traffic-eng"]
    for one in policies:
        for name, _, stack in one.lists:
            lines.append(f"  segment-list {name}")
            lines += [f"   index {10 * number} mpls label {label}" for number, label in enumerate(stack, 1)]
            lines.append("  exit")
    for one in policies:
        lines += [f"  policy color {COLOUR} endpoint {one.endpoint}", f"   name {one.name}"]
        lines.append(
            f"   candidate-path preference {_PREFERENCE} name {one.name} explicit segment-list {one.lists[0][0]}"
        )
        lines.append("  exit")
    return [*lines, " exit", "exit"]


def _iosxr(policies: list[_Policy]) -> list[str]:
    lines = ["segment-routing", " traffic-eng"]
    for one in policies:
        for name, _, stack in one.lists:
            lines.append(f"  segment-list {name}")
            lines += [f"   index {10 * number} mpls label {label}" for number, label in enumerate(stack, 1)]
            lines.append("  !")
    for one in policies:
        kind = "ipv6" if ":" in one.endpoint else "ipv4"
        lines += [f"  policy {one.name}", f"   color {COLOUR} end-point {kind} {one.endpoint}", "   candidate-paths"]
        lines.append(f"    preference {_PREFERENCE}")
        for name, weight, _ in one.lists:
            lines += [f"     explicit segment-list {name}", f"      weight {weight}", "     !"]
        lines += ["    !", "   !", "  !"]
    return [*lines, " !", "!"]


def _junos(policies: list[_Policy]) -> list[str]:
    root = "set protocols source-packet-routing"
    lines = []
    for one in policies:
        for name, _, stack in one.lists:
            lines += [f"{root} segment-list {name} hop-{number} label {label}" for number, label in enumerate(stack, 1)]
        lines += [
            f"{root} source-routing-path {one.name} to {one.endpoint}",
            f"{root} source-routing-path {one.name} color {COLOUR}",
            *(f"{root} source-routing-path {one.name} primary {name} weight {weight}" for name, weight, _ in one.lists),
        ]
    return lines


_WRITERS: dict[str, Callable[[list[_Policy]], list[str]]] = {"frr": _frr, "iosxr": _iosxr, "junos": _junos}


def check_routers(topology: Topology, routers: Routers, *, loopbacks: bool) -> None:
    """Raise InputError for routers without SID (or without loopback): a label of another router would be written."""
    names = [name for name in topology.node_names if name not in routers or routers[name].sid is None]
    if names:
        raise InputError(routers.where, "sid", "one of every router of the network", f"none of {_some(names)}")
    names = [name for name in topology.node_names if loopbacks and not routers[name].loopback]
    if names:
        raise InputError(routers.where, "loopback", "one of every router of the network", f"none of {_some(names)}")


def configuration(topology: Topology, policies: SegmentPolicies, routers: Routers) -> dict[str, str]:
    """The configuration of every headend, by its name, in the form of its vendor (FRR where none is given).

    Raises:
        InputError: a router without loopback or SID, or a demand that is split on a router of FRR.
    """
    names = topology.node_names
    check_routers(topology, routers, loopbacks=True)
    split = sorted({
        names[source] for (source, _), lists in policies.lists.items()
        if len(lists) > 1 and routers[names[source]].vendor in ("", "frr")
    })  # fmt: skip
    if split:
        expected = "one list for each demand (--one-list), since FRR uses one list of a policy at a time; or .json"
        raise InputError("--out", "", expected, f"splits on {_some(split)}")
    texts = {}
    for head in sorted({source for source, _ in policies.lists}):
        pairs = sorted(pair for pair in policies.lists if pair[0] == head)
        own = [_Policy(topology, pair, policies.lists[pair], routers) for pair in pairs]
        texts[names[head]] = "\n".join(_WRITERS[routers[names[head]].vendor or "frr"](own)) + "\n"
    return texts


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def check_depth(topology: Topology, policies: SegmentPolicies, most: int, where: str) -> None:
    """Raise InputError if a list has more segments than routers can push (their maximum SID depth, MSD)."""
    depth = policies.depth(topology.link_source)
    if depth > most:
        raise InputError(where, "segments", f"lists of at most {most} segments (MSD)", depth)


def write_sr_policies(
    path: Path, topology: Topology, policies: SegmentPolicies, routers: Routers | None = None
) -> None:
    """Write the JSON, or for a .conf file the configuration of all headends, each under a comment with its name.

    Raises:
        InputError: a .conf file without a table of routers, or what :func:`configuration` refuses.
    """
    if path.suffix.lower() != ".conf":
        text = json.dumps(to_json(topology, policies, routers), indent=1) + "\n"
    elif routers is None:
        raise InputError("--out", "", "--routers, with loopback and sid of each, for a .conf file", "no such table")
    else:
        marks = {"junos": "#"}
        parts = configuration(topology, policies, routers).items()
        text = "".join(f"{marks.get(routers[name].vendor, '!')} {name}\n{part}" for name, part in parts)
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


__all__ = ["COLOUR", "SRGB_BASE", "check_depth", "configuration", "labels", "to_json", "weights", "write_sr_policies"]
