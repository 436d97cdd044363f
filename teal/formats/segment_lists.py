"""Segment routing policies as JSON, written by `teal segments` and read by `teal simulate`.

    {"format": 1, "topology": "germany50", "policies": [
        {"source": "a", "target": "b",
         "lists": [{"share": 0.6, "segments": ["m", "b"]}, {"share": 0.4, ...}]}]}

With "transit": true a policy steers all traffic that crosses its source towards its target; with
"flex_algo", the definition of a flexible algorithm, segments take its shortest paths, and the lists
steer traffic that is on it.  Other traffic uses the shortest paths of its own algorithm or of the
IGP.  A segment is the name of a node, or an adjacency: an object {"link": 17, "from": "a",
"to": "b"} with the index of the link, which distinguishes parallel links.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from teal.errors import InputError
from teal.network import Topology
from teal.network.flex_algo import FlexAlgo
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.runtime.storage import atomic_file, parsed_json

FORMAT = 1
# Tolerance of the sum of a policy's shares, which is 1.
_SHARE_TOLERANCE = 1e-6


def policies_to_json(topology: Topology, policies: SegmentPolicies) -> dict[str, Any]:
    """Return segment routing policies as JSON: ``format``, ``topology``, ``transit``, ``flex_algo``
    and the segment lists of each pair of nodes.

    Args:
        topology: network with the names.
        policies: the policies, over node and link indices.
    """
    names = topology.node_names
    # Members for transit traffic and a flexible algorithm are present only if they apply.
    return {
        "format": FORMAT,
        "topology": topology.name,
        **({"transit": True} if policies.is_transit else {}),
        **({"flex_algo": str(policies.algorithm)} if policies.algorithm else {}),
        "policies": [
            {
                "source": names[source],
                "target": names[target],
                "lists": [
                    {
                        "share": segment_list.share,
                        "segments": _segments_to_json(topology, segment_list, source, target),
                    }
                    for segment_list in lists
                ],
            }
            for (source, target), lists in sorted(policies.lists.items())
        ],
    }


def _segments_to_json(
    topology: Topology, segment_list: SegmentList, source: int, target: int
) -> list[Any]:
    """Return the segments of a list as JSON: node names, and objects for adjacencies.

    A node segment to the node where the packet already is, is omitted.

    Args:
        topology: network with the names.
        segment_list: the list; its stops are pairs of a node index and a link index, -1 for a node
            segment.
        source: node index of the policy's source.
        target: node index of the policy's target.
    """
    names = topology.node_names
    segments = list[Any]()
    # Node that the packet has reached.
    packet_node = source
    for stop, link in (*segment_list.stops, (target, -1)):
        # An adjacency is preceded by a node segment to the start of its link.
        node_segment_end = stop if link < 0 else int(topology.link_source[link])
        segments += [names[node_segment_end]] if node_segment_end != packet_node else []
        segments += (
            [] if link < 0 else [{"link": link, "from": names[node_segment_end], "to": names[stop]}]
        )
        packet_node = stop
    return segments


def write_policies(
    path: Path, topology: Topology, policies: SegmentPolicies, figures: dict[str, Any]
) -> None:
    """Write segment routing policies to a JSON file.

    Args:
        path: path of the file.
        topology: network with the names.
        policies: the policies, over node and link indices.
        figures: metrics of the policies by name, for the key ``figures``.
    """
    with atomic_file(path) as temporary:
        document = {**policies_to_json(topology, policies), "figures": figures}
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_policies(path: Path, topology: Topology) -> SegmentPolicies:
    """Read segment routing policies from a JSON file.

    Args:
        path: path of the file.
        topology: network with the node names and links.

    Raises:
        InputError: a missing file, another format, an unknown node, a list that does not end at its
            target, or shares that do not sum to 1.
    """
    where = str(path)
    document = _read_document(path, where)
    entries = document.get("policies")
    if not isinstance(entries, list):
        raise InputError(where, "policies", "a list", repr(entries))
    # Policies: the lists of each pair of nodes.
    lists = dict[tuple[int, int], tuple[SegmentList, ...]]()
    for index, entry in enumerate(entries):
        field = f"policies[{index}]"
        pair, segment_lists = _parse_policy(entry, topology, where, field)
        if pair in lists:
            raise InputError.invalid(
                where,
                field,
                f"an earlier policy leads from {entry['source']} to {entry['target']}, too",
                "merge their lists",
            )
        lists[pair] = segment_lists
    # Options of all policies.
    is_transit = document.get("transit", False)
    if not isinstance(is_transit, bool):
        raise InputError(where, "transit", "true or false", repr(is_transit)[:80])
    return SegmentPolicies(lists, is_transit, _parse_flex_algo(document.get("flex_algo"), where))


def _read_document(path: Path, where: str) -> dict[str, Any]:
    """Return the JSON object of a file of policies; raise InputError unless it is one of this
    format.
    """
    try:
        document = parsed_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError.invalid(
            where,
            "policies",
            f"the file of segment lists cannot be read: {error}",
            "name a file that teal segments --out has written",
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        actual = f"format {document.get('format')}" if isinstance(document, dict) else "no object"
        expected = f"a file of teal segments --out (format {FORMAT})"
        raise InputError(where, "", expected, actual)
    return document


def _parse_policy(
    entry: Any, topology: Topology, where: str, field: str
) -> tuple[tuple[int, int], tuple[SegmentList, ...]]:
    """Parse the policy of a pair of nodes: its segment lists and their shares.

    Args:
        entry: JSON of the policy.
        topology: network with the node names.
        where: name of the file, for messages.
        field: location in the file, for messages.

    Returns:
        Node indices of source and target; and its segment lists.

    Raises:
        InputError: an invalid member, a list that does not end at the target, or shares that do not
            sum to 1.
    """
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("lists"), list)
        or not entry["lists"]
    ):
        raise InputError(where, field, "an object with source, target and lists", repr(entry)[:80])
    pair = (
        _node(entry.get("source"), topology, where, f"{field}.source"),
        _node(entry.get("target"), topology, where, f"{field}.target"),
    )
    if pair[0] == pair[1]:
        raise InputError.invalid(
            where,
            field,
            f"source and target are the same node, {entry['source']}",
            "change one",
        )
    # Lists: each ends at the target, and their shares sum to 1.
    segment_lists = []
    for list_index, entry_list in enumerate(entry["lists"]):
        list_field = f"{field}.lists[{list_index}]"
        stops = _parse_stops(entry_list, topology, where, list_field)
        if not stops or stops[-1][0] != pair[1]:
            raise InputError(
                where,
                f"{list_field}.segments",
                f"a list that ends at {entry['target']}",
                entry_list.get("segments"),
            )
        segment_lists.append(_segment_list(entry_list["share"], stops, where, list_field))
    total_share = sum(segment_list.share for segment_list in segment_lists)
    if abs(total_share - 1) > _SHARE_TOLERANCE:
        raise InputError(where, field, "shares that sum to 1", total_share)
    return pair, tuple(segment_lists)


def _parse_stops(
    entry_list: Any, topology: Topology, where: str, field: str
) -> list[tuple[int, int]]:
    """Parse the segments of a list into pairs: index of the node that a segment leads to, and index
    of its link, -1 for a node segment.

    Args:
        entry_list: JSON object with ``share`` and ``segments``.
        topology: network with the node names.
        where: name of the file, for messages.
        field: location in the file, for messages.

    Raises:
        InputError: another JSON value, an unknown node or an unknown link.
    """
    if not isinstance(entry_list, dict) or not isinstance(entry_list.get("share"), int | float):
        raise InputError(where, field, "an object with share and segments", repr(entry_list)[:80])
    segments = entry_list.get("segments", [])
    if not isinstance(segments, list):
        raise InputError(where, f"{field}.segments", "a list", repr(segments)[:80])
    return [_parse_stop(segment, topology, where, f"{field}.segments") for segment in segments]


def _segment_list(
    share: float, stops: list[tuple[int, int]], where: str, field: str
) -> SegmentList:
    """Build a segment list, without a final node segment to the target, which is implied.

    Args:
        share: fraction of the demand.
        stops: node index and link index (-1 for a node segment) of each segment.
        where: name of the file, for messages.
        field: location in the file, for messages.
    """
    if not (math.isfinite(share) and share >= 0):
        raise InputError(where, f"{field}.share", "a share in [0, 1]", share)
    # The last stop is the target; drop it if it is a node segment.
    if stops[-1][1] < 0:
        stops = stops[:-1]
    links = tuple(link for _, link in stops)
    return SegmentList(
        float(share),
        tuple(stop for stop, _ in stops),
        links if any(link >= 0 for link in links) else (),
    )


def _parse_flex_algo(text: Any, where: str) -> FlexAlgo | None:
    """Parse the definition of a flexible algorithm, such as ``128:metric=delay``; None for None."""
    location = f"{where}: flex_algo"
    if text is None:
        return None
    if not isinstance(text, str):
        raise InputError(
            location,
            "",
            "the definition of a flexible algorithm, such as 128:metric=delay",
            repr(text)[:80],
        )
    return FlexAlgo.parse(text, location)


def _node(name: Any, topology: Topology, where: str, field: str) -> int:
    """Return the index of a node by its name; raise InputError for an unknown one."""
    index = topology.node_index().get(name) if isinstance(name, str) else None
    if index is None:
        raise InputError(where, field, f"a node of {topology.name}", repr(name)[:80])
    return index


def _parse_stop(segment: Any, topology: Topology, where: str, field: str) -> tuple[int, int]:
    """Parse a segment: index of the node that it leads to, and index of its link, -1 for a node
    segment.

    Args:
        segment: name of a node, or JSON object of an adjacency.
        topology: the network.
        where: name of the file, for messages.
        field: location in the file, for messages.

    Raises:
        InputError: an unknown node or link, or a link between other nodes.
    """
    if not isinstance(segment, dict):
        return _node(segment, topology, where, field), -1
    link = segment.get("link")
    if not isinstance(link, int) or not 0 <= link < topology.num_links:
        raise InputError(
            where,
            f"{field}.link",
            f"the index of a link, 0 to {topology.num_links - 1}",
            repr(link),
        )
    ends = int(topology.link_source[link]), int(topology.link_target[link])
    # The ends of the link may be named, too, and must then be those of the network.
    for key, end in zip(("from", "to"), ends, strict=True):
        name = topology.node_names[end]
        if topology.name_of(str(segment.get(key, name))) != name:
            raise InputError(
                where, f"{field}.{key}", f"{name}, an end of link {link}", repr(segment[key])[:80]
            )
    return ends[1], link
