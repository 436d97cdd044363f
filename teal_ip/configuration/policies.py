"""SR policies as routers take them: configuration of FRR, Cisco IOS-XR and Juniper Junos, and JSON
in RFC 9256's terms.

A policy is known by headend, colour and endpoint.  Its endpoint is the loopback of the target, and
its segment lists are stacks of MPLS labels.  The label of a node segment is the first label of the
global block (SRGB) of the router that reads it, which is the headend for the first label and the
end of the segment before for the others, plus the index (SID) of the node.  Adjacency SIDs are
15000 plus the number of the link, to be configured likewise: routers otherwise choose labels of
their own.  Weights of lists are whole numbers.

FRR's pathd uses one list at a time: demands that are split are refused there, not silently turned
into backups. Transit policies are written for IOS-XR, whose ``autoroute`` steers what crosses a
router.  The texts follow FRR's user guide (pathd), Cisco's *Segment Routing Configuration Guide*
and Juniper's reference of ``protocols source-packet-routing``; FRR's is loaded by ``vtysh -C`` in
tests, the others are compared with examples.
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

SRLB_BASE = 15_000  # the usual first label of a router's own block, which ends below the global one
COLOUR = 100  # colour of all policies
_WEIGHT_SUM = 1_000  # sum of the weights of a candidate path
_PREFERENCE = (
    100  # preference of the candidate path; a policy has one alone, so that any number does
)


def default_routers(topology: Topology, algorithm: int = 0) -> Routers:
    """Routers whose SID is the number of their node, in the usual block, without addresses.

    In a flexible algorithm it is N plus that number.
    """
    nodes = topology.num_nodes
    return Routers(
        [
            Router(
                name, sid=number, algorithm_sids=((algorithm, nodes + number),) if algorithm else ()
            )
            for number, name in enumerate(topology.node_names)
        ],
        topology.name,
    )


def weights(lists: tuple[SegmentList, ...]) -> list[int]:
    """Whole-number weights at least 1 that sum to 1,000 where they can, in proportion to the
    shares.
    """
    return [max(1, round(one.share * _WEIGHT_SUM)) for one in lists]


def labels(
    topology: Topology,
    one: SegmentList,
    source: int,
    target: int,
    routers: Routers,
    algorithm: int = 0,
) -> list[tuple[bool, int, int]]:
    """The segments of a list: whether it is a node's, the number of the node or link, and the
    label.

    Args:
        topology: the network.
        one: the list.
        source: node where it begins.
        target: node where it ends.
        routers: table with SIDs.
        algorithm: number of the flexible algorithm of the nodes' SIDs; 0 for the IGP itself.
    """
    names, result, here = topology.node_names, list[tuple[bool, int, int]](), source
    for stop, link in (*one.stops, (target, -1)):
        end = stop if link < 0 else int(topology.link_source[link])
        if end != here:
            result.append(
                (True, end, routers[names[here]].srgb + _sid(routers[names[end]], algorithm))
            )
        if link >= 0:
            if SRLB_BASE + link >= min(each.srgb for each in routers.values()):
                expected = (
                    f"a global block above the labels of adjacencies, {SRLB_BASE} + number of the "
                    "link"
                )
                raise InputError(routers.where, "srgb", expected, SRLB_BASE + link)
            result.append((False, link, SRLB_BASE + link))
        here = stop
    return result


def _sid(router: Router, algorithm: int) -> int:
    sid = router.sid_of(algorithm)
    assert sid is not None, "check_routers was not called"
    return sid


def to_json(
    topology: Topology, policies: SegmentPolicies, routers: Routers | None = None
) -> dict[str, Any]:
    """Policies with colour, endpoint, and candidate paths of weighted lists of labels."""
    names, algorithm = topology.node_names, policies.algorithm_number
    routers = routers or default_routers(topology, algorithm)
    return {
        "sr-policies": [
            {
                "headend": names[source],
                "endpoint": names[target],
                "colour": COLOUR,
                **({"steers": "all traffic to the endpoint"} if policies.is_transit else {}),
                **({"algorithm": algorithm} if algorithm else {}),
                **{
                    f"{end}-address": routers[names[node]].loopback
                    for end, node in (("headend", source), ("endpoint", target))
                    if routers[names[node]].loopback
                },
                "candidate-paths": [
                    {
                        "preference": _PREFERENCE,
                        "segment-lists": [
                            {
                                "weight": weight,
                                "segments": [
                                    {"type": "node", "node": names[number], "label": label}
                                    if is_node
                                    else {"type": "adjacency", "link": number, "label": label}
                                    for is_node, number, label in labels(
                                        topology, one, source, target, routers, algorithm
                                    )
                                ],
                            }
                            for weight, one in zip(weights(lists), lists, strict=True)
                        ],
                    }
                ],
            }
            for (source, target), lists in sorted(policies.lists.items())
        ]
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
        self.name, self.end = f"to-{target}", routers[topology.node_names[pair[1]]]
        self.endpoint = self.end.loopback
        self.is_transit, lists, algorithm = (
            policies.is_transit,
            policies.lists[pair],
            policies.algorithm_number,
        )
        self.lists = [
            (
                f"{self.name}-{number}",
                weight,
                [label for _, _, label in labels(topology, one, *pair, routers, algorithm)],
            )
            for number, (weight, one) in enumerate(zip(weights(lists), lists, strict=True), 1)
        ]


def _words(names: Sequence[str]) -> list[str]:
    """A word for each name that every router takes, no two equal: other characters become _, and a
    number follows.
    """
    words, taken = list[str](), set(names)
    for number, name in enumerate(names):
        word = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
        if word != name:
            word = f"{word}_{number}"
            while word in taken:
                word += "_"
            taken.add(word)
        words.append(word)
    return words


def _segment_lists(policies: list[_Policy], end: str) -> list[str]:
    """The lists in the form that FRR and IOS-XR share, but for the line that ends one."""
    lines = ["segment-routing", " traffic-eng"]
    for name, _, stack in (part for one in policies for part in one.lists):
        lines.append(f"  segment-list {name}")
        lines += [
            f"   index {10 * number} mpls label {label}" for number, label in enumerate(stack, 1)
        ]
        lines.append(f"  {end}")
    return lines


def _frr(policies: list[_Policy]) -> list[str]:
    lines = _segment_lists(policies, "exit")
    for one in policies:
        lines += [f"  policy color {COLOUR} endpoint {one.endpoint}", f"   name {one.name}"]
        lines.append(
            f"   candidate-path preference {_PREFERENCE} name {one.name} explicit segment-list "
            f"{one.lists[0][0]}"
        )
        lines.append("  exit")
    return [*lines, " exit", "exit"]


def _iosxr(policies: list[_Policy]) -> list[str]:
    lines = _segment_lists(policies, "!")
    for one in policies:
        prefix, kind = prefix_of(one.end)
        lines += [f"  policy {one.name}", f"   color {COLOUR} end-point {kind} {one.endpoint}"]
        if one.is_transit:
            lines += [
                "   autoroute",
                "    force-sr-include",
                f"    include {kind} {prefix}",
                "   !",
            ]
        lines += ["   candidate-paths", f"    preference {_PREFERENCE}"]
        for name, weight, _ in one.lists:
            lines += [f"     explicit segment-list {name}", f"      weight {weight}", "     !"]
        lines += ["    !", "   !", "  !"]
    return [*lines, " !", "!"]


def _junos(policies: list[_Policy]) -> list[str]:
    root = "set protocols source-packet-routing"
    lines = []
    for one in policies:
        for name, _, stack in one.lists:
            lines += [
                f"{root} segment-list {name} hop-{number} label {label}"
                for number, label in enumerate(stack, 1)
            ]
        lines += [
            f"{root} source-routing-path {one.name} to {one.endpoint}",
            f"{root} source-routing-path {one.name} color {COLOUR}",
            *(
                f"{root} source-routing-path {one.name} primary {name} weight {weight}"
                for name, weight, _ in one.lists
            ),
        ]
    return lines


_WRITERS: dict[str, Callable[[list[_Policy]], list[str]]] = {
    "frr": _frr,
    "iosxr": _iosxr,
    "junos": _junos,
}
_COMMENTS = {"frr": "!", "iosxr": "!", "junos": "#"}  # what begins a comment


def vendor_of(router: Router) -> str:
    """The vendor in whose form a router is configured: FRR where the table says none."""
    return router.vendor or "frr"


def prefix_of(router: Router) -> tuple[str, str]:
    """The prefix of the loopback, such as 10.0.0.1/32, and its address family."""
    family, bits = ("ipv6", 128) if ":" in router.loopback else ("ipv4", 32)
    return f"{router.loopback}/{bits}", family


def check_routers(
    path: Path, topology: Topology, routers: Routers | None, algorithms: Sequence[int] = (0,)
) -> None:
    """Raise InputError where the table lacks what a file needs: SIDs for JSON, loopbacks too for a
    .conf file.

    JSON without a table has the SIDs of :func:`default_routers`.
    """
    is_configuration = path.suffix.lower() == ".conf"
    if routers is None:
        if is_configuration:
            expected = "--routers, with loopback and sid of each, for a .conf file"
            raise InputError("--out", "", expected, "no table of routers")
        return
    needed: dict[str, Callable[[Router], Any]] = {
        f"sid_{number}" if number else "sid": functools.partial(Router.sid_of, algorithm=number)
        for number in algorithms
    }
    if is_configuration:
        needed["loopback"] = operator.attrgetter("loopback")
    for field, value in needed.items():
        lacking = [
            name
            for name in topology.node_names
            if name not in routers or value(routers[name]) in (None, "")
        ]
        if lacking:
            raise InputError(
                routers.where,
                field,
                "one of every router of the network",
                f"none of {listed(lacking)}",
            )


def configuration(
    topology: Topology, policies: SegmentPolicies, routers: Routers
) -> dict[str, str]:
    """The configuration of every headend, by its name, in the form of its vendor (FRR where none is
    given).

    The table must have what :func:`check_routers` asks for.

    Raises:
        InputError: a demand that is split on a router of FRR, a transit policy on one that is not
            of IOS-XR, or labels of adjacencies inside a global block.
    """
    names, words = topology.node_names, _words(topology.node_names)
    other = sorted(
        {names[source] for source, _ in policies.lists if routers[names[source]].vendor != "iosxr"}
    )
    if policies.is_transit and other:
        raise InputError(
            "--out", "", "transit policies on routers of IOS-XR alone; or .json", listed(other)
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
    for head in sorted({source for source, _ in policies.lists}):
        pairs = sorted(pair for pair in policies.lists if pair[0] == head)
        own = [_Policy(topology, pair, policies, routers, words[pair[1]]) for pair in pairs]
        texts[names[head]] = "\n".join(_WRITERS[vendor_of(routers[names[head]])](own)) + "\n"
    return texts


def write_sr_policies(
    path: Path, topology: Topology, policies: SegmentPolicies, routers: Routers | None = None
) -> None:
    """Write the JSON, or for a .conf file the configuration of all headends, each under a comment
    with its name.

    Raises:
        InputError: what :func:`check_routers` or :func:`configuration` refuses.
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
    """Write the configuration of routers, by name, to one file, each under a comment with its
    name.
    """
    with atomic_file(path) as temporary:
        text = "".join(
            f"{_COMMENTS[vendor_of(routers[name])]} {name}\n{part}" for name, part in texts.items()
        )
        temporary.write_text(text, encoding="utf-8")
