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

A link is a cable with both directions, in the short form or that of type veth.  Containerlab has no
capacities and metrics: they are labels of the second form, which it ignores; the prefix ``back-``
marks differing values of the reverse direction, and ``one-way`` its absence.  A link of capacity 0
has failed.  Nodes of the kinds ``bridge`` and ``ovs-bridge`` are not routers: the routers on one
are connected in pairs, each with the metric of the sender.  Entry points:
:func:`read_containerlab`, :func:`containerlab_text`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from teal.errors import WARNING, InputError
from teal.formats.link_tables import parse_gbps, parse_milliseconds
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
# Endpoint types of a link that are not nodes.
_NON_NODES = (
    "host",
    "mgmt-net",
    "macvlan",
)
_IMAGE = "quay.io/frrouting/frr:10.2.1"
# Prefix of labels of the reverse direction, and labels.
_REVERSE_PREFIX = "back-"
_ONE_WAY_LABEL = "one-way"
_NAME_LABEL = "teal-name"


def read_containerlab(
    path: Path, default_capacity: float | None, attributes: Attributes
) -> Topology:
    """Read the network of a containerlab file.

    Args:
        path: path of the file.
        default_capacity: Gbit/s of links without the label; None refuses them.
        attributes: names of the labels.

    Raises:
        InputError: not YAML, no nodes or links, an entry of another type, a link between bridges,
            or an error of :func:`teal.formats.records.topology_from_records`.
    """
    where = str(path)
    document = _mapping(_read_yaml(path), where, "the file")
    topology = _mapping(document.get("topology"), where, "topology")
    # Containerlab kind and name of each node; the label teal-name overrides the name.
    nodes = {
        name: _mapping(node, where, f"nodes: {name}")
        for name, node in _nodes(topology, where).items()
    }
    kinds = {name: _kind(node, topology, where) for name, node in nodes.items()}
    names = {
        name: str(_mapping(node.get("labels"), where, name).get(_NAME_LABEL, name))
        for name, node in nodes.items()
    }
    if len(set(names.values())) < len(names):
        raise InputError.invalid(
            where, f"nodes: labels: {_NAME_LABEL}", "two nodes have the same label", "change one"
        )
    # Cables between routers, then links between all pairs of routers on each bridge.
    links = _LinkConverter()
    for index, entry in enumerate(topology["links"]):
        field = f"links[{index}]"
        links.add(_mapping(entry, where, field), names, kinds, attributes, where, field)
    records = links.records
    for bridge, members in links.members_of_bridge.items():
        records += _bridge_links(bridge, members)
    routers: dict[str, tuple[float, float] | None] = {
        names[name]: None for name, kind in kinds.items() if kind not in _BRIDGES
    }
    # The network has the name of the lab, or that of the file.
    title = str(document.get("name") or path.name.split(".")[0])
    return topology_from_records(
        title,
        where,
        routers,
        records,
        directed=True,
        default_capacity=default_capacity,
        notes=links.notes(where),
    )


@dataclasses.dataclass
class _LinkConverter:
    """Converter of the links of a file into records, with counts for notes.

    Attributes:
        records: directed links of the cables between routers.
        members_of_bridge: by the name of a bridge: for each cable to it, its directed links.
        num_skipped: number of links that do not connect two nodes.
        num_with_vars: number of links with template variables, which are not read.
    """

    records: list[LinkRecord] = dataclasses.field(default_factory=list)
    members_of_bridge: dict[str, list[tuple[LinkRecord, ...]]] = dataclasses.field(
        default_factory=dict
    )
    num_skipped: int = 0
    num_with_vars: int = 0

    def add(
        self,
        link: dict[str, Any],
        names: dict[str, str],
        kinds: dict[str, str],
        attributes: Attributes,
        where: str,
        field: str,
    ) -> None:
        """Append the directed links of a cable to the records, or to those of its bridge.

        Args:
            link: parsed entry of the link.
            names: name in the network of each node, by its name in the file.
            kinds: containerlab kind of each node, by its name in the file.
            attributes: names of the labels.
            where: name of the file, for messages.
            field: the link, for messages.

        Raises:
            InputError: an unknown node, an invalid label, or a link between bridges.
        """
        # Skip links that do not connect two nodes, such as links to the host.
        ends = _end_nodes(link.get("endpoints", []), where, field)
        # Template variables (vars) are not read; count the links that have some.
        self.num_with_vars += _has_vars(link)
        if len(ends) != 2 or any(end in _NON_NODES and end not in kinds for end in ends):
            self.num_skipped += 1
            return
        unknown = [end for end in ends if end not in kinds]
        if unknown:
            raise InputError(where, f"{field}: endpoints", "nodes of the file", repr(unknown[0]))
        # Both directions of the cable; cables to bridges are collected by bridge.
        node_names = names[ends[0]], names[ends[1]]
        labels = _mapping(link.get("labels"), where, field)
        directions = tuple(_directed_links(node_names, labels, attributes, where, field))
        bridges = [end for end in ends if kinds[end] in _BRIDGES]
        if len(bridges) == 2:
            raise InputError.invalid(
                where,
                f"{field}: endpoints",
                f"the link connects two bridges, {bridges[0]} and {bridges[1]}",
                "connect a router at one end",
            )
        if bridges:
            self.members_of_bridge.setdefault(names[bridges[0]], []).append(directions)
        else:
            self.records += directions

    def notes(self, where: str) -> tuple[str, ...]:
        """Return notes on the links and variables of the file that were not read; () for none."""
        notes: tuple[str, ...] = ()
        if self.num_skipped:
            notes += (f"{self.num_skipped} links do not connect two nodes and are skipped.",)
        if self.num_with_vars:
            notes += (
                f"{WARNING}{where}: vars of {self.num_with_vars} links are not read: labels have "
                "capacity, latency and metric.",
            )
        return notes


def _read_yaml(path: Path) -> Any:
    """Parse YAML into lists, mappings and texts, so that names such as ``on`` and ``010`` stay
    texts.
    """
    try:
        import yaml
    except ImportError:
        raise InputError.invalid(
            str(path),
            "",
            "reading YAML needs the package pyyaml, which is not installed",
            "run pip install pyyaml",
        ) from None
    try:
        # The safe loader constructs plain objects only.
        return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        fault = " ".join(str(error).split())[:120]
        raise InputError.invalid(str(path), "", f"the file is not valid YAML: {fault}") from None


def _has_vars(link: dict[str, Any]) -> bool:
    """Return whether a link or one of its ends has ``vars`` (template variables)."""
    ends = link.get("endpoints", [])
    return bool(link.get("vars")) or any(isinstance(end, dict) and end.get("vars") for end in ends)


def _mapping(value: Any, where: str, field: str) -> dict[str, Any]:
    """Return a YAML mapping with text keys, {} for an empty value; raise InputError for others."""
    if value in (None, ""):
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(where, field, "a mapping of names", f"a {type(value).__name__}")
    return value


def _nodes(topology: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the entries of the nodes by name; raise InputError without nodes or links."""
    if not isinstance(topology.get("nodes"), dict) or not isinstance(topology.get("links"), list):
        raise InputError.invalid(
            where,
            "topology",
            "it needs a mapping of nodes and a list of links; its keys are: "
            + (", ".join(topology) or "none"),
        )
    return _mapping(topology["nodes"], where, "nodes")


def _kind(node: dict[str, Any], topology: dict[str, Any], where: str) -> str:
    """Return the containerlab kind of a node: its own, that of its group, or the default; "" if
    there is none.
    """
    groups = _mapping(topology.get("groups"), where, "groups")
    group = _mapping(groups.get(str(node.get("group", ""))), where, "groups")
    defaults = _mapping(topology.get("defaults"), where, "defaults")
    return str(node.get("kind") or group.get("kind") or defaults.get("kind") or "")


def _end_nodes(endpoints: Any, where: str, field: str) -> list[str]:
    """Return the node names of a link's ends, each written ``node:interface`` or as a mapping.

    Args:
        endpoints: YAML value of the link's ``endpoints``.
        where: name of the file, for messages.
        field: the link, for messages.

    Raises:
        InputError: another value.
    """
    if not isinstance(endpoints, list) or not all(isinstance(end, str | dict) for end in endpoints):
        raise InputError(
            where,
            f"{field}: endpoints",
            "a list of node:interface",
            f"a {type(endpoints).__name__}",
        )
    nodes = [
        end.split(":")[0] if isinstance(end, str) else end.get("node", "") for end in endpoints
    ]
    if not all(isinstance(node, str) for node in nodes):
        raise InputError.invalid(
            where,
            f"{field}: endpoints: node",
            "the name of the node is not a text",
            "name a node of the file",
        )
    return nodes


def _directed_links(
    ends: tuple[str, str], labels: dict[str, Any], attributes: Attributes, where: str, field: str
) -> Iterator[LinkRecord]:
    """Yield the directed links of a cable: both directions, or one with the label ``one-way``.

    Args:
        ends: names of its two nodes.
        labels: labels of the link, ``back-NAME`` for the reverse direction.
        attributes: names of the labels.
        where: name of the file, for messages.
        field: the link, for messages.

    Raises:
        InputError: an invalid label.
    """

    # A label of the reverse direction defaults to that of the forward one.
    def label_text(name: str, prefix: str) -> str:
        label = labels.get(prefix + name, labels.get(name, ""))
        if not isinstance(label, str):
            raise InputError(
                where, f"{field}: labels: {name}", "a text", f"a {type(label).__name__}"
            )
        return label

    def label_number(name: str, prefix: str) -> float | None:
        cell = label_text(name, prefix)
        return number(cell, where, f"{field}: {name}") if cell else None

    # The forward direction, then the reverse one unless the label one-way excludes it.
    for prefix, (source, target) in (("", ends), (_REVERSE_PREFIX, ends[::-1])):
        if prefix and label_text(_ONE_WAY_LABEL, "").lower() in ("true", "yes"):
            return
        # Capacity in Gbit/s; a capacity of 0 means that the link has failed.
        name = attributes.capacity
        (capacity_text,) = plain_numbers([label_text(name, prefix)], where, f"{field}: {name}")
        capacity = parse_gbps(capacity_text, attributes.capacity_unit, where, f"{field}: {name}")
        # In order: source, target, capacity, latency, location, names of labels, and metric.
        yield LinkRecord(
            source,
            target,
            capacity,
            parse_milliseconds(
                label_text(attributes.latency, prefix), "", where, f"{field}: {attributes.latency}"
            ),
            field,
            tuple(labels),
            label_number(attributes.metric, prefix),
            has_failed=capacity == 0,
            te_metric=label_number(attributes.te_metric, prefix),
            affinities=affinities_of(
                label_text(attributes.affinity, prefix), where, f"{field}: {attributes.affinity}"
            ),
        )


def _bridge_links(bridge: str, cables: list[tuple[LinkRecord, ...]]) -> Iterator[LinkRecord]:
    """Yield a directed link for each ordered pair of routers on a bridge.

    It has the metric of the sender's cable, the smaller capacity and the affinities of both cables.

    Args:
        bridge: name of the bridge.
        cables: for each cable to the bridge, its directed links.
    """
    # Join each link into the bridge with each link out of it on another cable.
    for first_cable, second_cable in itertools.permutations(cables, 2):
        for outgoing, incoming in itertools.product(first_cable, second_cable):
            if outgoing.target == bridge == incoming.source:
                # Unknown capacities do not limit the joined link.
                capacities = [
                    record.capacity
                    for record in (outgoing, incoming)
                    if record.capacity is not None
                ]
                yield dataclasses.replace(
                    outgoing,
                    target=incoming.target,
                    capacity=min(capacities, default=None),
                    affinities=outgoing.affinities | incoming.affinities,
                    has_failed=outgoing.has_failed or incoming.has_failed,
                )


def containerlab_text(topology: Topology) -> str:
    """Return the text of a containerlab file (YAML) of a network; reading it gives the network
    back.

    Interfaces are eth1, eth2, ... in order.  Capacities, latencies and metrics are labels.
    Characters that are not allowed in container names are replaced by ``-``; the label
    ``teal-name`` then has the original name.
    """
    import yaml

    # Distinct container names, by node index, and the entry of each node.
    container_names = list[str]()
    nodes = dict[str, Any]()
    used_names = set(_NON_NODES)
    for index, name in enumerate(topology.node_names):
        container_name = re.sub(r"[^a-zA-Z0-9_.-]", "-", name).strip("-._") or "node"
        while container_name in used_names:
            container_name += f"-{index + 1}"
        used_names.add(container_name)
        container_names.append(container_name)
        nodes[container_name] = {} if container_name == name else {"labels": {_NAME_LABEL: name}}
    # An entry for each cable: a pair of directed links, or a single one.
    num_interfaces = [0] * topology.num_nodes
    links: list[dict[str, Any]] = []
    for cable in topology.link_pairs():
        # Ends, each on a new interface of its node.
        ends: list[dict[str, str]] = []
        for node in (int(topology.link_source[cable[0]]), int(topology.link_target[cable[0]])):
            num_interfaces[node] += 1
            ends.append({"node": container_names[node], "interface": f"eth{num_interfaces[node]}"})
        # Labels of the first direction, and those that differ in the reverse direction.
        forward_labels = _labels(topology, cable[0])
        reverse_labels = _labels(topology, cable[-1])
        differing_names = [
            name
            for name in {**forward_labels, **reverse_labels}
            if reverse_labels.get(name) != forward_labels.get(name)
        ]
        # The prefix marks labels of the reverse direction.
        prefixed_labels = {
            _REVERSE_PREFIX + name: reverse_labels.get(name, "") for name in differing_names
        }
        one_way_label = {_ONE_WAY_LABEL: "true"} if len(cable) == 1 else {}
        links.append(
            {
                "type": "veth",
                "endpoints": ends,
                "labels": {**forward_labels, **prefixed_labels, **one_way_label},
            }
        )
    # Document with the name and the defaults.
    title = re.sub(r"[^a-zA-Z0-9_.-]", "-", topology.name) or "network"
    defaults = {"kind": "linux", "image": _IMAGE}
    document = {"name": title, "topology": {"defaults": defaults, "nodes": nodes, "links": links}}
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def _labels(topology: Topology, link: int) -> dict[str, str]:
    """Return labels of a directed link: capacity (Gbit/s), latency (ms), metrics, affinities."""
    attributes = topology.igp_attributes(link)
    if "affinity" in attributes:
        attributes["affinity"] = ";".join(attributes["affinity"])
    numbers = {"capacity": float(topology.capacity[link]), "latency": float(topology.latency[link])}
    texts = {name: repr(value).removesuffix(".0") for name, value in numbers.items()}
    return texts | {name: str(value) for name, value in attributes.items()}
