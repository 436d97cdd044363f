"""SR policies of segment lists: FRR's pathd, and JSON after the YANG model of SR policies (RFC 9256 terms).

Node SIDs are labels: the base of the segment routing global block (SRGB) plus the number of the node, as
``segment-routing prefix ... index N`` configures it.  Adjacency SIDs are the base of the local block (SRLB) plus the
number of the link, to be configured likewise: routers otherwise choose labels of their own.  Weights of the lists of a
candidate path are whole numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.network import Topology
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.runtime.storage import atomic_file

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
