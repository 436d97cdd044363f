"""Topologies of containerlab (https://containerlab.dev/manual/topo-def-file): ``NAME.clab.yml``, in
and out.

    name: lab
    topology:
      nodes:
        r1: {kind: linux, image: quay.io/frrouting/frr:10.2.1}
        r2: {kind: linux, image: quay.io/frrouting/frr:10.2.1}
      links:
        - endpoints: ["r2:eth2", "r1:eth2"]
        - type: veth
          endpoints: [{node: r1, interface: eth1}, {node: r2, interface: eth1}]
          labels: {capacity: "100", latency: "3.5", metric: "10", back-metric: "20"}

A link is a cable with both directions, in the short form or that of type veth.  Containerlab knows
no capacities and metrics: they stand in the labels of the second form, which it passes over; of the
direction from the second end to the first with ``back-`` where they differ, and ``one-way`` where
there is none.  A link of capacity 0 has failed.  Nodes of the kinds ``bridge`` and ``ovs-bridge``
are no routers: those on one are connected in pairs, each with the metric of the sender.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teal.errors import WARNING, InputError
from teal.formats.link_tables import gbps, milliseconds
from teal.formats.numerals import plain_numbers
from teal.formats.records import (
    Attributes,
    LinkRecord,
    affinities_of,
    number,
    topology_from_records,
)
from teal.network import Topology

ATTRIBUTES = ("capacity", "latency", "metric", "te_metric", "affinity", "capacity_unit")
SUFFIXES = (".clab.yml", ".clab.yaml")
_BRIDGES = ("bridge", "ovs-bridge")
_NO_NODES = (
    "host",
    "mgmt-net",
    "macvlan",
)  # what stands for a node in an end of a link and is none
_IMAGE = "quay.io/frrouting/frr:10.2.1"
_BACK, _ONE_WAY, _NAME = "back-", "one-way", "teal-name"  # prefix of labels, and labels


def read_containerlab(
    path: Path, default_capacity: float | None, attributes: Attributes
) -> Topology:
    """Read a topology.

    Args:
        path: path of the file.
        default_capacity: Gbit/s for links without the label; None to refuse them.
        attributes: names of the labels.

    Raises:
        InputError: no YAML, no nodes or links, an entry of another type, a link between bridges, or
            what :func:`teal.formats.records.topology_from_records` refuses.
    """
    where = str(path)
    document = _mapping(_yaml(path), where, "the file")
    topology = _mapping(document.get("topology"), where, "topology")
    nodes = {
        name: _mapping(node, where, f"nodes: {name}")
        for name, node in _nodes(topology, where).items()
    }
    kinds = {name: _kind(node, topology, where) for name, node in nodes.items()}
    names = {
        name: str(_mapping(node.get("labels"), where, name).get(_NAME, name))
        for name, node in nodes.items()
    }
    if len(set(names.values())) < len(names):
        raise InputError(
            where,
            f"nodes: labels: {_NAME}",
            "a different one for each node",
            "one that is there twice",
        )
    records, skipped, members = list[LinkRecord](), 0, dict[str, list[tuple[LinkRecord, ...]]]()
    with_vars = 0  # links with variables for templates, which are not read
    for place, entry in enumerate(topology["links"]):
        field = f"links[{place}]"
        link = _mapping(entry, where, field)
        ends = _ends(link.get("endpoints", []), where, field)
        with_vars += _has_vars(link)
        if len(ends) != 2 or any(end in _NO_NODES and end not in kinds for end in ends):
            skipped += 1
            continue
        unknown = [end for end in ends if end not in kinds]
        if unknown:
            raise InputError(where, f"{field}: endpoints", "nodes of the file", unknown[0])
        both = names[ends[0]], names[ends[1]]
        both_ways = tuple(
            _records(both, _mapping(link.get("labels"), where, field), attributes, where, field)
        )
        bridges = [end for end in ends if kinds[end] in _BRIDGES]
        if len(bridges) == 2:
            raise InputError(
                where, f"{field}: endpoints", "a router at one end at least", "two bridges"
            )
        if bridges:
            members.setdefault(names[bridges[0]], []).append(both_ways)
        else:
            records += both_ways
    for bridge, links in members.items():
        records += _across(bridge, links)
    notes: tuple[str, ...] = ()
    if skipped:
        notes += (f"{skipped} links do not connect two nodes and are left out.",)
    if with_vars:
        notes += (
            f"{WARNING}{where}: vars of {with_vars} links are not read: labels have capacity, "
            "latency and metric.",
        )
    routers: dict[str, tuple[float, float] | None] = {
        names[name]: None for name, kind in kinds.items() if kind not in _BRIDGES
    }
    title = str(document.get("name") or path.name.split(".")[0])
    return topology_from_records(
        title,
        where,
        routers,
        records,
        directed=True,
        default_capacity=default_capacity,
        notes=notes,
    )


def _yaml(path: Path) -> Any:
    """Lists, mappings and texts: names such as ``on`` and ``010`` stay what they are."""
    try:
        import yaml
    except ImportError:
        raise InputError(
            str(path), "", "pip install pyyaml, to read YAML files", "pyyaml is missing"
        ) from None
    try:
        return yaml.load(
            path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader
        )  # which makes no other objects
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(str(path), "", "a YAML file", " ".join(str(error).split())[:120]) from None


def _has_vars(link: dict[str, Any]) -> bool:
    """Whether a link or one of its ends has variables."""
    ends = link.get("endpoints", [])
    return bool(link.get("vars")) or any(isinstance(end, dict) and end.get("vars") for end in ends)


def _mapping(value: Any, where: str, field: str) -> dict[str, Any]:
    """A mapping with texts as keys; {} for nothing."""
    if value in (None, ""):
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(where, field, "a mapping of names", f"a {type(value).__name__}")
    return value


def _nodes(topology: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(topology.get("nodes"), dict) or not isinstance(topology.get("links"), list):
        raise InputError(
            where,
            "topology",
            "nodes and links, as containerlab has them",
            ", ".join(topology) or "none",
        )
    return _mapping(topology["nodes"], where, "nodes")


def _kind(node: dict[str, Any], topology: dict[str, Any], where: str) -> str:
    """The kind of a node, its own, that of its group, or that of all."""
    groups = _mapping(topology.get("groups"), where, "groups")
    of_group = _mapping(groups.get(str(node.get("group", ""))), where, "groups")
    defaults = _mapping(topology.get("defaults"), where, "defaults")
    return str(node.get("kind") or of_group.get("kind") or defaults.get("kind") or "")


def _ends(ends: Any, where: str, field: str) -> list[str]:
    """The nodes of the ends of a link, each ``node:interface`` or a mapping."""
    if not isinstance(ends, list) or not all(isinstance(end, str | dict) for end in ends):
        raise InputError(
            where, f"{field}: endpoints", "a list of node:interface", f"a {type(ends).__name__}"
        )
    nodes = [end.split(":")[0] if isinstance(end, str) else end.get("node", "") for end in ends]
    if not all(isinstance(node, str) for node in nodes):
        raise InputError(where, f"{field}: endpoints: node", "a name", "another value")
    return nodes


def _records(
    ends: tuple[str, str], labels: dict[str, Any], attributes: Attributes, where: str, field: str
) -> Iterator[LinkRecord]:
    """Both directions of a cable, or one."""

    def text(name: str, prefix: str) -> str:
        found = labels.get(prefix + name, labels.get(name, ""))
        if not isinstance(found, str):
            raise InputError(
                where, f"{field}: labels: {name}", "a text", f"a {type(found).__name__}"
            )
        return found

    def value(name: str, prefix: str) -> float | None:
        given = text(name, prefix)
        return number(given, where, f"{field}: {name}") if given else None

    for prefix, (source, target) in (("", ends), (_BACK, ends[::-1])):
        if prefix and text(_ONE_WAY, "").lower() in ("true", "yes"):
            return
        name = attributes.capacity
        (given,) = plain_numbers([text(name, prefix)], where, f"{field}: {name}")
        capacity = gbps(given, attributes.capacity_unit, where, f"{field}: {name}")
        yield LinkRecord(
            source,
            target,
            capacity,
            milliseconds(
                text(attributes.latency, prefix), "", where, f"{field}: {attributes.latency}"
            ),
            field,
            tuple(labels),
            value(attributes.metric, prefix),
            has_failed=capacity == 0,
            te_metric=value(attributes.te_metric, prefix),
            affinities=affinities_of(
                text(attributes.affinity, prefix), where, f"{field}: {attributes.affinity}"
            ),
        )


def _across(bridge: str, links: list[tuple[LinkRecord, ...]]) -> Iterator[LinkRecord]:
    """Links between the routers on a bridge: the metrics of the sender, and the smaller of the
    capacities.
    """
    for first, second in itertools.permutations(links, 2):
        for out, into in itertools.product(first, second):
            if out.target == bridge == into.source:
                known = [one.capacity for one in (out, into) if one.capacity is not None]
                yield dataclasses.replace(
                    out,
                    target=into.target,
                    capacity=min(known, default=None),
                    affinities=out.affinities | into.affinities,
                    has_failed=out.has_failed or into.has_failed,
                )


def containerlab_text(topology: Topology) -> str:
    """The file of a network, which :func:`read_containerlab` reads back; interfaces are eth1, eth2,
    ... in order.

    Names of nodes are those of the network with ``-`` for what names of containers cannot have; the
    label ``teal-name`` has the original.
    """
    import yaml

    words, nodes, taken = list[str](), dict[str, Any](), set(_NO_NODES)
    for place, name in enumerate(topology.node_names):
        word = re.sub(r"[^a-zA-Z0-9_.-]", "-", name).strip("-._") or "node"
        while word in taken:
            word += f"-{place + 1}"
        taken.add(word)
        words.append(word)
        nodes[word] = {} if word == name else {"labels": {_NAME: name}}
    used = [0] * topology.num_nodes
    links: list[dict[str, Any]] = []
    for pair in topology.link_pairs():
        ends: list[dict[str, str]] = []
        for node in (int(topology.link_source[pair[0]]), int(topology.link_target[pair[0]])):
            used[node] += 1
            ends.append({"node": words[node], "interface": f"eth{used[node]}"})
        forth, back = _labels(topology, pair[0]), _labels(topology, pair[-1])
        names = [name for name in {**forth, **back} if back.get(name) != forth.get(name)]
        differing = {_BACK + name: back.get(name, "") for name in names}
        one_way = {_ONE_WAY: "true"} if len(pair) == 1 else {}
        links.append(
            {"type": "veth", "endpoints": ends, "labels": {**forth, **differing, **one_way}}
        )
    title = re.sub(r"[^a-zA-Z0-9_.-]", "-", topology.name) or "network"
    defaults = {"kind": "linux", "image": _IMAGE}
    document = {"name": title, "topology": {"defaults": defaults, "nodes": nodes, "links": links}}
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def _labels(topology: Topology, link: int) -> dict[str, str]:
    others = topology.igp_attributes(link)
    if "affinity" in others:
        others["affinity"] = ";".join(others["affinity"])
    numbers = {"capacity": float(topology.capacity[link]), "latency": float(topology.latency[link])}
    exact = {name: repr(value).removesuffix(".0") for name, value in numbers.items()}
    return exact | {name: str(value) for name, value in others.items()}
