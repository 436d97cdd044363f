"""Installed segment lists as JSON: what `teal solve --routing segments` writes and `teal simulate` reads.

    {"format": 1, "topology": "germany50", "policies": [
        {"source": "a", "target": "b", "lists": [{"share": 0.6, "segments": ["m", "b"]}, {"share": 0.4, ...}]}]}

A demand that is not listed goes along the IGP's shortest paths.  A segment is the name of a node, or an adjacency: an
object {"link": 17, "from": "a", "to": "b"} with the number of the link, which tells parallel links apart.

SR policies of segment lists: FRR's pathd, and JSON after the YANG model of SR policies (RFC 9256 terms).

Node SIDs are labels: the base of the segment routing global block (SRGB) plus the number of the node, as
``segment-routing prefix ... index N`` configures it.  Adjacency SIDs are the base of the local block (SRLB) plus the
number of the link, to be configured likewise: routers otherwise choose labels of their own.  Weights of the lists of a
candidate path are whole numbers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.network import Topology
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.runtime.storage import atomic_file

FORMAT = 1
_SHARE_TOLERANCE = 1e-6  # by which the shares of a demand may differ from 1


def policies_to_json(topology: Topology, policies: SegmentPolicies) -> dict[str, Any]:
    """The policies as JSON, in the format of the module."""
    names = topology.node_names
    return {
        "format": FORMAT,
        "topology": topology.name,
        "policies": [
            {
                "source": names[source], "target": names[target],
                "lists": [
                    {"share": one.share, "segments": _segments(topology, one, source, target)} for one in lists
                ],
            }
            for (source, target), lists in sorted(policies.lists.items())
        ],
    }  # fmt: skip


def _segments(topology: Topology, one: SegmentList, source: int, target: int) -> list[Any]:
    """Names of nodes, and objects for adjacencies; without a segment that leads to where the list is already."""
    names, result, here = topology.node_names, list[Any](), source
    for stop, link in (*one.stops, (target, -1)):
        end = stop if link < 0 else int(topology.link_source[link])
        result += [names[end]] if end != here else []
        result += [] if link < 0 else [{"link": link, "from": names[end], "to": names[stop]}]
        here = stop
    return result


def write_policies(path: Path, topology: Topology, policies: SegmentPolicies, figures: dict[str, Any]) -> None:
    """Write the lists, with figures of the result under the key ``figures``."""
    with atomic_file(path) as temporary:
        document = {**policies_to_json(topology, policies), "figures": figures}
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_policies(path: Path, topology: Topology) -> SegmentPolicies:
    """Read the lists.

    Raises:
        InputError: no such file, another format, an unknown node, a list that does not end at its target, or shares
            that do not sum to 1.
    """
    where = str(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(where, "policies", "a .json file of segment lists", str(error)) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(
            where, "format", str(FORMAT), document.get("format") if isinstance(document, dict) else "no object"
        )
    lists = dict[tuple[int, int], tuple[SegmentList, ...]]()

    def node(name: Any, field: str) -> int:
        return _node(name, topology, where, field)

    entries = document.get("policies")
    if not isinstance(entries, list):
        raise InputError(where, "policies", "a list", repr(entries))
    for number, entry in enumerate(entries):
        field = f"policies[{number}]"
        if not isinstance(entry, dict) or not isinstance(entry.get("lists"), list) or not entry["lists"]:
            raise InputError(where, field, "an object with source, target and lists", repr(entry)[:80])
        pair = node(entry.get("source"), f"{field}.source"), node(entry.get("target"), f"{field}.target")
        found = []
        for place, one in enumerate(entry["lists"]):
            here = f"{field}.lists[{place}]"
            if not isinstance(one, dict) or not isinstance(one.get("share"), int | float):
                raise InputError(where, here, "an object with share and segments", repr(one)[:80])
            segments = one.get("segments", [])
            if not isinstance(segments, list):
                raise InputError(where, f"{here}.segments", "a list", repr(segments)[:80])
            stops = [_stop(segment, topology, where, f"{here}.segments") for segment in segments]
            if not stops or stops[-1][0] != pair[1]:
                raise InputError(
                    where, f"{here}.segments", f"a list that ends at {entry['target']}", one.get("segments")
                )
            if not (math.isfinite(one["share"]) and one["share"] >= 0):
                raise InputError(where, f"{here}.share", "a share in [0, 1]", one["share"])
            if stops[-1][1] < 0:
                stops.pop()
            links = tuple(link for _, link in stops)
            found.append(
                SegmentList(
                    float(one["share"]), tuple(stop for stop, _ in stops), links if any(e >= 0 for e in links) else ()
                )
            )
        if abs(sum(one.share for one in found) - 1) > _SHARE_TOLERANCE:
            raise InputError(where, field, "shares that sum to 1", sum(one.share for one in found))
        if pair in lists:
            raise InputError(where, field, "each pair once", f"{entry['source']} -> {entry['target']} again")
        lists[pair] = tuple(found)
    return SegmentPolicies(lists)


def _node(name: Any, topology: Topology, where: str, field: str) -> int:
    number = topology.node_index().get(name) if isinstance(name, str) else None
    if number is None:
        raise InputError(where, field, f"a node of {topology.name}", repr(name)[:80])
    return number


def _stop(segment: Any, topology: Topology, where: str, field: str) -> tuple[int, int]:
    """The node to which a segment leads, and its link, -1 for a node segment."""
    if not isinstance(segment, dict):
        return _node(segment, topology, where, field), -1
    link = segment.get("link")
    if not isinstance(link, int) or not 0 <= link < topology.num_links:
        raise InputError(where, f"{field}.link", f"the number of a link, 0 to {topology.num_links - 1}", repr(link))
    ends = int(topology.link_source[link]), int(topology.link_target[link])
    for key, end in zip(("from", "to"), ends, strict=True):
        name = topology.node_names[end]
        if segment.get(key, name) != name:
            raise InputError(where, f"{field}.{key}", f"{name}, an end of link {link}", repr(segment[key])[:80])
    return ends[1], link


SRGB_BASE = 16_000  # the usual first label
SRLB_BASE = 15_000  # the usual first label of a router's own block, which ends below the global one
COLOUR = 100  # of all policies
_WEIGHTS = 1_000  # that the weights of a candidate path sum to
_PREFERENCE = 100  # of the candidate path


def node_label(node: int, base: int = SRGB_BASE) -> int:
    """The label of a node, by its number."""
    return base + node


def weights(lists: tuple[SegmentList, ...]) -> list[int]:
    """Whole-number weights at least 1 that sum to 1,000 where they can, in proportion to the shares."""
    return [max(1, round(one.share * _WEIGHTS)) for one in lists]


def labels(
    topology: Topology, one: SegmentList, source: int, target: int, base: int = SRGB_BASE
) -> list[tuple[bool, int, int]]:
    """The segments of a list: whether it is a node's, the number of the node or link, and the label."""
    result, here = list[tuple[bool, int, int]](), source
    for stop, link in (*one.stops, (target, -1)):
        end = stop if link < 0 else int(topology.link_source[link])
        result += [(True, end, node_label(end, base))] if end != here else []
        result += [] if link < 0 else [(False, link, SRLB_BASE + link)]
        here = stop
    return result


def to_json(topology: Topology, policies: SegmentPolicies, base: int = SRGB_BASE) -> dict[str, Any]:
    """Policies with colour, endpoint, and candidate paths of weighted lists of labels."""
    names = topology.node_names
    return {"sr-policies": [
        {
            "headend": names[source], "endpoint": names[target], "colour": COLOUR,
            "candidate-paths": [{
                "preference": _PREFERENCE,
                "segment-lists": [
                    {
                        "weight": weight,
                        "segments": [
                            {"type": "node", "node": names[number], "label": label} if is_node else
                            {"type": "adjacency", "link": number, "label": label}
                            for is_node, number, label in labels(topology, one, source, target, base)
                        ],
                    }
                    for weight, one in zip(weights(lists), lists, strict=True)
                ],
            }],
        }
        for (source, target), lists in sorted(policies.lists.items())
    ]}  # fmt: skip


def to_frr(topology: Topology, policies: SegmentPolicies, source: int, base: int = SRGB_BASE) -> str:
    """Configuration of FRR's pathd on one router.

    pathd takes one list a candidate path, and uses the path that it prefers: shares are lost, the largest one wins.
    """
    names = topology.node_names
    lines = ["segment-routing", " traffic-eng"]
    own = [(target, lists) for (s, target), lists in sorted(policies.lists.items()) if s == source]
    for target, lists in own:
        for number, one in enumerate(sorted(lists, key=lambda one: -one.share), 1):
            lines.append(f"  segment-list to-{names[target]}-{number}")
            pushed = labels(topology, one, source, target, base)
            lines += [f"   index {10 * (i + 1)} mpls label {label}" for i, (_, _, label) in enumerate(pushed)]
            lines.append("  exit")
    for target, lists in own:
        lines += [f"  policy color {COLOUR} endpoint {names[target]}", f"   name to-{names[target]}"]
        lines += [
            f"   candidate-path preference {_PREFERENCE - number} name list-{number} explicit "
            f"segment-list to-{names[target]}-{number}"
            for number in range(1, len(lists) + 1)
        ]
        lines.append("  exit")
    return "\n".join([*lines, " exit", "exit"]) + "\n"


def check_depth(topology: Topology, policies: SegmentPolicies, most: int, where: str) -> None:
    """Raise InputError if a list has more segments than routers can push (their maximum SID depth, MSD)."""
    depth = policies.depth(topology.link_source)
    if depth > most:
        raise InputError(where, "segments", f"lists of at most {most} segments (MSD)", depth)


def write_sr_policies(path: Path, topology: Topology, policies: SegmentPolicies, base: int = SRGB_BASE) -> None:
    """Write the JSON, or for a .conf file FRR's configuration of all routers, each under a comment with its name."""
    with atomic_file(path) as temporary:
        if path.suffix.lower() == ".conf":
            sources = sorted({source for source, _ in policies.lists})
            parts = [f"! {topology.node_names[s]}\n{to_frr(topology, policies, s, base)}" for s in sources]
            temporary.write_text("".join(parts), encoding="utf-8")
        else:
            temporary.write_text(json.dumps(to_json(topology, policies, base), indent=1) + "\n", encoding="utf-8")
